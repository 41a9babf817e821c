"""Batches of outputs, in memory, in shards on disk, or both. No optional dependency.

`trustsets.files.tensors` describes a folder of shards. Each shard is written whole or not at all
and carries a checksum, so a run can be killed at any moment: a truncated or altered shard is
noticed and made again.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common import storage
from trustsets._common.arrays import Array
from trustsets._common.atomic import StrPath, atomic_path
from trustsets._common.resuming import read_kept, require_same
from trustsets.errors import InputError, StorageError
from trustsets.files.tensors import MANIFEST, read_manifest, shard_path

SHARD_ROWS = 16384
"""A shard is written as soon as this many rows are waiting; it holds whole batches."""

_DIGEST_BYTES = 32


@final
@storage.storable
@dataclass(frozen=True)
class OutputBatches:
    """Outputs of consecutive batches; `sizes` are their numbers of rows, and sum to n.

    There are logits of shape (n, K), unless only the features matter, features of shape (n, d), and
    where they are known labels, the numbers `rows` of the samples in some table, and the column
    `predicted` of the largest logit, of shape (n,). `input_digests` of shape (batches, 32) are the
    SHA-256 of the inputs of each batch, where a later run is to recognise them.
    """

    logits: Array | None
    features: Array
    labels: Array | None
    sizes: NDArray[np.int64]
    rows: NDArray[np.int64] | None = None
    predicted: NDArray[np.int64] | None = None
    input_digests: NDArray[np.uint8] | None = None

    def check_state(self) -> None:
        """Refuse arrays that do not belong together."""
        n = len(self.features) if self.features.ndim == 2 else -1
        counted = self.sizes.ndim == 1 and (self.sizes > 0).all() and self.sizes.sum() == n
        storage.require(counted, "OutputBatches.sizes", "must add up to the rows of the features")
        storage.require(
            self.logits is None or (self.logits.ndim == 2 and len(self.logits) == n),
            "OutputBatches.logits", f"must have {n} rows",
        )  # fmt: skip
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("labels", "rows", "predicted"), (n,))
        shapes["input_digests"] = (len(self.sizes), _DIGEST_BYTES)
        for name, shape in shapes.items():
            own = getattr(self, name)
            fits = own is None or own.shape == shape
            storage.require(fits, f"OutputBatches.{name}", f"must have shape {shape}")

    def __len__(self) -> int:
        return len(self.features)

    @classmethod
    def join(cls, parts: Sequence["OutputBatches"]) -> "OutputBatches":
        """All parts, end to end."""
        return cls(*(_join([getattr(part, own.name) for part in parts]) for own in fields(cls)))

    def batches(self) -> Iterator[tuple[int, Any, Any]]:
        """Size, labels and digest of the inputs of each batch."""
        nothing: list[Array | None] = [None] * len(self.sizes)
        ends = np.cumsum(self.sizes)[:-1]
        labels = nothing if self.labels is None else np.split(self.labels, ends)
        digests = nothing if self.input_digests is None else list(self.input_digests)
        return zip(self.sizes.tolist(), labels, digests, strict=True)


@final
class OtherInputsError(InputError):
    """Shards on disk were made from other inputs than those at hand."""


@final
class BatchStore:
    """Collects batches in order; with a directory, it continues what an earlier run left there.

    Parameters
    ----------
    directory : path, optional
        Where shards are; made if it does not exist. One run at a time may use it.
    setting : dict
        What the outputs depend on, as JSON; an earlier run must have had the same.
    keep : bool
        Keep the outputs in memory, for `finish`. Without, memory holds one shard, and the
        labels and row numbers of the rest; a directory is needed.
    shard_rows : int
        Rows after which a shard is written.

    Attributes
    ----------
    finished : bool
        Whether an earlier run finished.
    """

    def __init__(
        self,
        directory: StrPath | None,
        setting: dict[str, Any],
        *,
        keep: bool = True,
        shard_rows: int | None = None,
    ) -> None:
        if directory is None and not keep:
            raise InputError("outputs that are not kept in memory need a directory for shards.")
        self._directory = None if directory is None else Path(directory)
        self._setting = setting
        self._keep = keep
        self._shard_rows = SHARD_ROWS if shard_rows is None else shard_rows
        self._rows = 0
        self._parts: list[OutputBatches] = []
        self._waiting: list[OutputBatches] = []
        self.finished = False
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._resume(self._directory)
        self._known = [batch for part in self._parts for batch in part.batches()]

    @property
    def n_known(self) -> int:
        """How many batches an earlier run left."""
        return len(self._known)

    def column(self, name: Literal["labels", "rows", "predicted"]) -> Array:
        """One column of all shards so far; empty where batches do not carry it."""
        pieces: list[Array] = [getattr(part, name) for part in self._parts]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def check_known(self, index: int, size: int, labels: Any, digest: Any = None) -> None:
        """Refuse a batch that differs from the stored one in its place.

        `digest` is that of its inputs, where they are compared.
        """
        stored_size, stored, stored_digest = self._known[index]
        if size != stored_size:
            self._refuse(f"batch {index} has {size} rows, and {stored_size} are stored")
        if not np.array_equal(stored, labels):
            self._refuse(f"batch {index} has other labels than are stored")
        if digest is not None and not np.array_equal(stored_digest, digest):
            self._refuse(f"batch {index} has other inputs than are stored")

    def check_count(self, n_batches: int) -> None:
        """Refuse a loader that ends before the stored batches do, or goes on after a full run."""
        if n_batches < self.n_known or (self.finished and n_batches > self.n_known):
            ends = "ends after" if n_batches < self.n_known else "has at least"
            self._refuse(f"it {ends} {n_batches} batches, and {self.n_known} are stored")

    def add(self, batch: OutputBatches) -> None:
        """Append one batch; writes a shard when enough rows wait."""
        first = (self._parts or self._waiting or [batch])[0]
        _check_alike(first, batch)
        self._waiting.append(batch)
        if sum(len(each) for each in self._waiting) >= self._shard_rows:
            self.flush()

    def finish(self) -> OutputBatches:
        """Write what waits, mark the end, and return everything that is kept in memory."""
        self.flush()
        if not self.finished:
            self.finished = True
            self._write_manifest()
        return OutputBatches.join(self._parts)

    def flush(self) -> None:
        """Write what waits as a shard."""
        if not self._waiting:
            return
        part = OutputBatches.join(self._waiting)
        if self._directory is not None:
            storage.write(shard_path(self._directory, len(self._parts)), part)
        self._take(part)
        self._waiting = []
        self._write_manifest()

    def _take(self, part: OutputBatches) -> None:
        self._rows += len(part)
        if not self._keep:
            # Labels and digests stay, to compare later batches with.
            logits = None if part.logits is None else part.logits[:0].copy()
            part = replace(part, logits=logits, features=part.features[:0].copy())
        self._parts.append(part)

    def _resume(self, directory: Path) -> None:
        for left_over in directory.glob(".*.part"):
            left_over.unlink()
        if not (directory / MANIFEST).exists():
            if shard_path(directory, 0).exists():
                raise InputError(
                    f"shards={directory} holds shards without a {MANIFEST}, so it is not known "
                    "which model they are from; choose another directory, or empty this one."
                )
            self._write_manifest()
            return
        manifest = read_manifest(directory)
        require_same(f"shards={directory}", manifest["setting"], self._setting)
        for part in _resumable_shards(directory):
            self._take(part)
        # A shard that was damaged after the end makes the run unfinished again.
        self.finished = bool(manifest["finished"]) and len(self._parts) == manifest["shards"]

    def _write_manifest(self) -> None:
        if self._directory is None:
            return
        first = self._parts[0] if self._parts else None
        logits = None if first is None else first.logits
        manifest = {
            "setting": self._setting,
            "n_classes": None if logits is None else int(logits.shape[1]),
            "n_features": None if first is None else int(first.features.shape[1]),
            "rows_per_shard": self._shard_rows,
            "shards": len(self._parts),
            "rows": self._rows,
            "finished": self.finished,
        }
        with atomic_path(self._directory / MANIFEST) as temporary:
            temporary.write_text(json.dumps(manifest, indent=2) + "\n")

    def _refuse(self, what: str) -> None:
        raise OtherInputsError(
            f"the loader differs from the one that wrote shards={self._directory}: {what}. Use the "
            "same data in the same order (shuffle=False) and batches of the same size, or another "
            "directory."
        )


def _join(pieces: Sequence[Array | None]) -> Any:
    present = [piece for piece in pieces if piece is not None]
    return np.concatenate(present) if present else None


def _check_alike(first: OutputBatches, batch: OutputBatches) -> None:
    """All batches have the same classes, feature dimension, and labels or none."""
    for name, arrays in [
        ("classes", (first.logits, batch.logits)),
        ("features", (first.features, batch.features)),
    ]:
        one, other = (0 if array is None else array.shape[1] for array in arrays)
        if one != other:
            raise InputError(
                f"the model gives {other} {name} for a batch, and {one} for the first; all batches "
                "need the same. Choose a layer= whose output has one size."
            )
    if (first.labels is None) != (batch.labels is None):
        raise InputError(
            "the loader gives labels with some batches and not with others; give them always or "
            "never."
        )


def shard_paths(directory: StrPath) -> list[Path]:
    """Files of a directory's shards, in order, as many as its manifest counts."""
    folder = Path(directory)
    count = read_manifest(folder)["shards"]
    # The count is a claim; a list of it ends with the first shard that is missing.
    there = len(list(folder.glob("shard-*")))
    return [shard_path(folder, number) for number in range(min(count, there + 1))]


def read_shards(directory: StrPath) -> Iterator[OutputBatches]:
    """Shards of a directory one by one; a missing or damaged one is a `StorageError`."""
    for path in shard_paths(directory):
        part = storage.read(path)
        if not isinstance(part, OutputBatches):
            raise StorageError(
                f"{path}: holds a {type(part).__name__} instead of a shard of outputs."
            )
        yield part


def _resumable_shards(directory: Path) -> Iterator[OutputBatches]:
    """The shards before the first that is missing or damaged; those after it are removed."""
    number = 0
    while isinstance(part := read_kept(shard_path(directory, number)), OutputBatches):
        number += 1
        yield part
    while (path := shard_path(directory, number)).exists():
        path.unlink()
        number += 1
