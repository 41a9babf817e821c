"""The model outputs that an experiment runs on, and where they can be read from.

A source is a folder that ``trustsets paper extract`` wrote, a pair of files ``NAME_pool`` and
``NAME_train``, or any file of model outputs with or without a file of training samples.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets._common import storage
from trustsets._common.arrays import Array
from trustsets._common.optional import needed
from trustsets._common.resuming import digest
from trustsets.errors import InputError, StorageError
from trustsets.extras.shards import read_shards, shard_paths
from trustsets.files.tensors import read_manifest
from trustsets.outputs import ModelOutputs
from trustsets.paper.layout import POOL, SAMPLES, TEST, TRAIN, VAL, Description, is_extracted

__all__ = ["Source", "read_extracted", "read_source"]

# Array of a file of outputs with the true P(y | x), where the distribution is known.
_TRUTH = "label_probabilities"
_SUFFIXES = (".npz", ".parquet", ".safetensors")


@final
@dataclass(frozen=True, eq=False)
class Source:
    """Samples to calibrate and test on, and training samples for the trust score.

    Attributes
    ----------
    name : str
        Name of the dataset.
    parts : dict of str to ModelOutputs
        ``pool``, to be split by seed, or ``val`` and ``test``, a split that is fixed.
    train : (features, labels), optional
        Training samples; labels are named like the classes of the parts.
    train_key : str
        Changes with the content of the training samples; computed if not given.
    label_probabilities : array of shape (n, K), optional
        True P(y | x) of the samples of ``pool``, where the distribution is known.
    """

    name: str
    parts: dict[str, ModelOutputs]
    train: tuple[Array, Array] | None = None
    train_key: str = ""
    label_probabilities: Array | None = None

    def __post_init__(self) -> None:
        for part, outputs in self.parts.items():
            outputs.require_labels(f"{part} of {self.name}")
            if np.any(np.diff(outputs.rows) <= 0):
                raise InputError(f"rows of {part} of {self.name} must be increasing.")
        truth, pool = self.label_probabilities, self.parts.get(POOL)
        if truth is not None and (pool is None or truth.shape != (len(pool), pool.n_classes)):
            raise InputError(
                f"label_probabilities of {self.name} must have a row for each sample of the pool "
                f"and a column for each class; got the shape {truth.shape}."
            )

    @property
    def fixed_split(self) -> bool:
        """Whether the dataset itself says which samples calibrate and which test."""
        return POOL not in self.parts

    @property
    def halves(self) -> tuple[str, str]:
        """Parts that calibration samples and test samples come from."""
        return (VAL, TEST) if self.fixed_split else (POOL, POOL)

    @property
    def tested(self) -> ModelOutputs:
        """All samples that are test samples in some split."""
        return self.parts[self.halves[1]]

    @property
    def accuracy(self) -> float:
        """Accuracy of the classifier on the samples that test samples come from."""
        return float(np.mean(self.tested.predicted_codes == self.tested.codes))

    @property
    def n_calibration(self) -> int:
        """Number of calibration samples of every split."""
        return len(self.parts[VAL]) if self.fixed_split else round(0.5 * len(self.parts[POOL]))

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the group columns."""
        return tuple(self.tested.groups)

    @property
    def has_features(self) -> bool:
        """Whether the samples have features."""
        return all(part.features is not None for part in self.parts.values())

    @property
    def has_trust(self) -> bool:
        """Whether trust scores can be computed."""
        return self.train is not None and self.has_features

    @cached_property
    def train_digest(self) -> str:
        """Names the content of the training samples."""
        if self.train is None:
            return "none"
        return self.train_key or digest(*self.train)

    @cached_property
    def outputs_digest(self) -> dict[str, str]:
        """Names the content of logits, labels and row numbers of each part."""
        return {
            part: digest(own.logits, own.codes, own.rows, own.classes)
            for part, own in self.parts.items()
        }

    @cached_property
    def features_digest(self) -> str:
        """Names the content of the features of all parts."""
        return digest(*(part.features for part in self.parts.values()))

    def groups_digest(self, name: str) -> str:
        """Names the content of a group column."""
        return digest(*(part.groups[name] for part in self.parts.values()))

    def split(self, seed: int) -> tuple[ModelOutputs, ModelOutputs]:
        """Calibration and test samples: halves stratified by class, or the fixed parts."""
        if self.fixed_split:
            return self.parts[VAL], self.parts[TEST]
        return self.parts[POOL].split(0.5, seed=seed, stratify=True)


def read_source(
    name: str, data: Path, train: Path | None = None, groups: Sequence[str] = ()
) -> Source:
    """Find and read the outputs of a dataset.

    Parameters
    ----------
    name : str
        Name of the dataset.
    data : path
        A folder that ``trustsets paper extract`` wrote; a folder with ``NAME_pool`` and
        ``NAME_train`` files; or one file of outputs. Files are ``.npz``, ``.parquet`` or
        ``.safetensors``.
    train : path, optional
        File of training samples, for a single file of outputs.
    groups : sequence of str
        Arrays that are group columns, besides those called ``group_NAME``.
    """
    folder = data / name if is_extracted(data / name) else data
    if is_extracted(folder):
        found = read_extracted(folder)
        if found.name != name:
            raise InputError(f"{folder}: holds the outputs of {found.name}, not of {name}.")
        return found
    if not data.is_dir():
        return _from_files(name, data, train, groups)
    pool = _paired(data, f"{name}_pool")
    if pool is None:
        raise InputError(
            f"{data}: holds neither extracted outputs (dataset.json) nor a file {name}_pool.npz. "
            "Name the folder that trustsets paper extract wrote, or a file of outputs."
        )
    return _from_files(name, pool, train or _paired(data, f"{name}_train"), groups)


def _paired(folder: Path, stem: str) -> Path | None:
    candidates = (folder / f"{stem}{suffix}" for suffix in _SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def _from_files(name: str, data: Path, train: Path | None, groups: Sequence[str]) -> Source:
    from trustsets.files import open_outputs, read_training
    from trustsets.files.source import open_columns

    outputs = open_outputs(data, groups=groups).read()
    if outputs.codes is None:
        raise InputError(f"{data}: holds no labels, which an experiment needs; add 'labels'.")
    column = open_columns(data).get(_TRUTH)
    truth = None if column is None else column.read(0, column.shape[0] if column.shape else 1)
    points = None if train is None else read_training(train, outputs.classes)
    return Source(name, {POOL: outputs}, points, label_probabilities=truth)


def read_extracted(folder: str | os.PathLike[str]) -> Source:
    """Read a complete folder of ``trustsets paper extract``; its form is described in `layout`.

    Memory is that of the arrays and one shard.
    """
    root = Path(folder)
    description = Description.read(root)
    folders = {part: root / part for part in description.parts}
    if not (description.finished and all(_manifest(own)["finished"] for own in folders.values())):
        raise StorageError(
            f"{root}: the extraction of {description.dataset} is not finished. Run trustsets paper "
            "extract again with the same options; it continues."
        )
    classes = np.array(description.classes)
    train = _read_part(folders.pop(TRAIN), ("features", "labels"))
    return Source(
        description.dataset,
        {part: _read_outputs(own, classes) for part, own in folders.items()},
        (train["features"], classes[train["labels"]]),
        train_key=_content_key(root, description),
    )


def _read_outputs(directory: Path, classes: Array) -> ModelOutputs:
    arrays = _read_part(directory, ("logits", "features", "labels", "rows"))
    rows, pd = arrays["rows"], needed("pandas", "reading samples", "paper")
    try:
        samples = pd.read_parquet(directory / SAMPLES).iloc[rows]
    except (OSError, ValueError, IndexError) as error:
        raise StorageError(
            f"{directory / SAMPLES}: missing or damaged ({error}). Extract again."
        ) from error
    names = (name for name in samples if name not in ("path", "label"))
    groups = {str(name): samples[name].to_numpy() for name in names}
    return ModelOutputs(
        logits=arrays["logits"],
        features=arrays["features"],
        labels=classes[arrays["labels"]],
        groups=groups or None,
        classes=classes,
        rows=rows,
    )


def _read_part(directory: Path, names: tuple[str, ...]) -> dict[str, Array]:
    """Named arrays of all shards, each filled in place so that nothing is in memory twice."""
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


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        return read_manifest(directory)
    except (InputError, OSError) as error:
        raise StorageError(f"{directory}: no readable part of a dataset ({error}).") from error


def _content_key(root: Path, description: Description) -> str:
    found = hashlib.sha256(json.dumps(asdict(description)).encode())
    for part in description.parts:
        for path in shard_paths(root / part):
            found.update(f"{part} {storage.checksum(path)}".encode())
    return found.hexdigest()
