"""The folder that extraction writes and the experiments read. Needs no torch.

::

    FOLDER/
      dataset.json            dataset, classes, parts, model, seed, finished
      train/                  features, labels, predicted and rows in shards; no logits
      pool/                   logits, features, labels and rows: split by seed
      val/ test/              instead of pool, where the dataset fixes the split
      PART/samples.parquet    path, label and groups of every listed image
      unreadable.txt          part, path and reason of every image that could not be read

Shards are those of `trustsets.extras.shards`. Their ``rows`` are row numbers of
``samples.parquet``; rows of unreadable images are absent. Labels are codes, positions in
``classes``. Features are float16 from a GPU and float32 from a CPU.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trustsets._common import storage
from trustsets._common.arrays import Array
from trustsets.errors import InputError, StorageError
from trustsets.extras.shards import read_shards, shard_paths
from trustsets.files.tensors import read_manifest
from trustsets.outputs import ModelOutputs

__all__ = ["Description", "Extracted", "is_extracted", "read_extracted"]

FORMAT = 1
TRAIN = "train"
POOL = "pool"
SAMPLES = "samples.parquet"
UNREADABLE = "unreadable.txt"
_DESCRIPTION = "dataset.json"
# Columns of samples.parquet that are not groups.
_PLAIN_COLUMNS = ("path", "label")


@final
@dataclass(frozen=True)
class Description:
    """What ``dataset.json`` holds.

    Attributes
    ----------
    dataset : str
        Name of the dataset.
    classes : tuple of str
        Class names in the order of the columns of the logits.
    parts : tuple of str
        Subfolders: ``("train", "pool")`` or ``("train", "val", "test")``.
    model : str
        Name of the architecture.
    weights_sha256 : str
        Of the weights in the model.
    seed : int or None
        Of the training split, where it is drawn.
    finished : bool
        Whether all parts are complete.
    """

    dataset: str
    classes: tuple[str, ...]
    parts: tuple[str, ...]
    model: str
    weights_sha256: str
    seed: int | None
    finished: bool

    def write(self, folder: Path) -> None:
        """Write to a folder, whole or not at all."""
        with storage.atomic_path(folder / _DESCRIPTION) as temporary:
            temporary.write_text(json.dumps({"format": FORMAT} | asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Description":
        """Read from a folder."""
        path = folder / _DESCRIPTION
        try:
            state = json.loads(path.read_text())
            if state.pop("format") != FORMAT:
                raise StorageError(f"{path}: of a newer format than {FORMAT}. Upgrade trustsets.")
            for name in ("classes", "parts"):
                state[name] = tuple(map(str, state[name]))
            return cls(**state)
        except FileNotFoundError as error:
            raise StorageError(
                f"{folder}: no {_DESCRIPTION}, so not a folder of extracted outputs. Make one with "
                "trustsets paper extract."
            ) from error
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"{path}: damaged ({error}). Extract again.") from error


@final
@dataclass(frozen=True)
class Extracted:
    """Outputs of one dataset.

    Attributes
    ----------
    name : str
        Name of the dataset.
    classes : array of shape (K,)
        Class names.
    train_features : array of shape (n, d)
        Features of the training images, for the trust score.
    train_labels, train_predicted : arrays of shape (n,)
        True and predicted classes of the training images, as positions in `classes`.
    parts : dict
        ``pool``, or ``val`` and ``test``, as `ModelOutputs`.
    content_key : str
        Changes with the content of any shard.
    """

    name: str
    classes: Array
    train_features: Array
    train_labels: NDArray[np.int64]
    train_predicted: NDArray[np.int64]
    parts: dict[str, ModelOutputs]
    content_key: str

    @property
    def fixed_split(self) -> bool:
        """Whether the dataset itself says which samples calibrate and which test."""
        return POOL not in self.parts

    def split(self, seed: int) -> tuple[ModelOutputs, ModelOutputs]:
        """Calibration and test samples: halves of each class by seed, or the fixed parts."""
        if self.fixed_split:
            return self.parts["val"], self.parts["test"]
        return self.parts[POOL].split(0.5, seed=seed, stratify=True)


def is_extracted(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds extracted outputs, complete or not."""
    return (Path(folder) / _DESCRIPTION).is_file()


def read_extracted(folder: str | os.PathLike[str]) -> Extracted:
    """Read a complete folder; memory is that of the arrays and one shard."""
    root = Path(folder)
    description = Description.read(root)
    if not description.finished or not all(map(_is_finished, _folders(root, description))):
        raise StorageError(
            f"{root}: the extraction of {description.dataset} is not finished. Run trustsets paper "
            "extract again with the same options; it continues."
        )
    classes = np.array(description.classes)
    train = _read_part(root / TRAIN, ("features", "labels", "predicted"))
    return Extracted(
        name=description.dataset,
        classes=classes,
        train_features=train["features"],
        train_labels=train["labels"],
        train_predicted=train["predicted"],
        parts={
            part: _read_outputs(root / part, classes) for part in description.parts if part != TRAIN
        },
        content_key=_content_key(root, description),
    )


def _read_outputs(directory: Path, classes: Array) -> ModelOutputs:
    arrays = _read_part(directory, ("logits", "features", "labels", "rows"))
    rows = arrays["rows"]
    try:
        samples = pd.read_parquet(directory / SAMPLES).iloc[rows]
    except (OSError, ValueError, IndexError) as error:
        raise StorageError(
            f"{directory / SAMPLES}: missing or damaged ({error}). Extract again."
        ) from error
    groups = {str(name): samples[name].to_numpy() for name in samples if name not in _PLAIN_COLUMNS}
    return ModelOutputs(
        logits=arrays["logits"],
        features=arrays["features"],
        labels=classes[arrays["labels"]],
        groups=groups or None,
        classes=classes,
        rows=rows,
    )


def _read_part(directory: Path, names: tuple[str, ...]) -> dict[str, Array]:
    """Named arrays of all shards, each filled in place so that nothing is held twice."""
    n = int(_manifest(directory)["rows"])
    arrays: dict[str, Array] = {}
    start = 0
    for part in read_shards(directory):
        for name in names:
            piece: Array | None = getattr(part, name)
            if piece is None:
                raise StorageError(f"{directory}: its shards have no {name}. Extract again.")
            whole = arrays.setdefault(name, np.empty((n, *piece.shape[1:]), piece.dtype))
            whole[start : start + len(part)] = piece
        start += len(part)
    if start != n or n == 0:
        raise StorageError(f"{directory}: holds {start} rows instead of {n}. Extract again.")
    return arrays


def _folders(root: Path, description: Description) -> list[Path]:
    return [root / part for part in description.parts]


def _is_finished(directory: Path) -> bool:
    return bool(_manifest(directory)["finished"])


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        return read_manifest(directory)
    except (InputError, OSError) as error:
        raise StorageError(f"{directory}: no readable part of a dataset ({error}).") from error


def _content_key(root: Path, description: Description) -> str:
    digest = hashlib.sha256(json.dumps(asdict(description)).encode())
    for folder in _folders(root, description):
        for path in shard_paths(folder):
            digest.update(f"{folder.name} {storage.checksum(path)}".encode())
    return digest.hexdigest()
