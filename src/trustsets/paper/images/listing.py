"""Which images a dataset has, before any is opened."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trustsets._common import storage
from trustsets._common.arrays import Array
from trustsets.errors import InputError

__all__ = ["ImageSet", "Listing"]


@final
class Listing:
    """Images of one part of a dataset, in the order in which they are run.

    Parameters
    ----------
    root : path
        Folder that the paths start from.
    paths : n strings
    labels : array of shape (n,)
        Positions in the class names of the dataset.
    groups : mapping of names to arrays of shape (n,)
    scanned : bool
        Whether the paths were read from the folders themselves, so that none is missing.
    """

    def __init__(
        self,
        root: Path,
        paths: Iterable[str],
        labels: Sequence[int] | NDArray[np.int64],
        groups: Mapping[str, Array] | None = None,
        *,
        scanned: bool = False,
    ) -> None:
        self.root, self.groups, self._scanned = root, groups or {}, scanned
        # Arrow keeps a million paths in one block, which worker processes share; Python strings
        # would be copied into each of them.
        self._paths = pa.array(list(paths), pa.string())
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, row: int) -> str:
        """Path of one image below the root."""
        return str(self._paths[row].as_py())

    def missing(self) -> NDArray[np.int64]:
        """Rows of images whose files are not there."""
        if self._scanned:
            return np.empty(0, dtype=np.int64)
        absent = (row for row in range(len(self)) if not (self.root / self.path(row)).is_file())
        return np.fromiter(absent, dtype=np.int64)

    def digest(self) -> str:
        """SHA-256 of paths and labels; the root does not enter, so images may move."""
        digest = hashlib.sha256(np.ascontiguousarray(self.labels).data)
        for path in self._paths:
            digest.update(path.as_py().encode() + b"\0")
        return digest.hexdigest()

    def write(self, path: Path) -> None:
        """Write paths, labels and groups as a Parquet table."""
        columns = {"path": self._paths, "label": self.labels, **self.groups}
        with storage.atomic_path(path) as temporary:
            pq.write_table(pa.table(columns), temporary)


@final
@dataclass(frozen=True, eq=False)
class ImageSet:
    """A dataset: its classes, and the images of each of its parts.

    Attributes
    ----------
    name : str
    classes : tuple of str
        Class names; a label is a position in them.
    parts : mapping of str to Listing
        ``train`` and ``pool``, or ``train``, ``val`` and ``test``.
    seed : int, optional
        Of the training split, where it is drawn.
    """

    name: str
    classes: tuple[str, ...]
    parts: Mapping[str, Listing]
    seed: int | None = None

    def __post_init__(self) -> None:
        for part, listing in self.parts.items():
            if len(listing) == 0:
                raise InputError(
                    f"{self.name} has no images in its part {part!r} under {listing.root}; check "
                    "--images."
                )
            if listing.labels.max() >= len(self.classes):
                raise InputError(
                    f"{self.name}, part {part!r}: has a label {listing.labels.max()}, and there "
                    f"are only {len(self.classes)} classes; labels count from 0."
                )
