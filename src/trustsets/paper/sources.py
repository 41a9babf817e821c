"""Outputs that an experiment runs on, from any of the places they may lie in. Imports files.

A source is an extracted dataset, a pair ``NAME_pool`` and ``NAME_train`` in one folder, or any
file of model outputs with or without a file of training points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array
from trustsets._common.resuming import digest
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.paper.layout import is_extracted, read_extracted

__all__ = ["Source", "read_source"]

POOL, VAL, TEST = "pool", "val", "test"
# Array of a file of outputs with the true P(y | x), where the law is known.
_TRUTH = "label_probabilities"
_SUFFIXES = (".npz", ".parquet", ".safetensors")


@final
@dataclass(frozen=True, eq=False)
class Source:
    """Samples to calibrate and test on, and training points for the trust score.

    Attributes
    ----------
    name : str
        Name of the dataset.
    parts : dict of str to ModelOutputs
        ``pool``, to be split by seed, or ``val`` and ``test``, a split that is fixed.
    train : (features, labels), optional
        Training points; labels are named like the classes of the parts.
    label_probabilities : array of shape (n, K), optional
        True P(y | x) of the samples of ``pool``, where the law is known.
    train_key : str
        Changes with the content of the training points; worked out if not given.
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
        """Whether calibration and test samples are given, whatever the seed."""
        return POOL not in self.parts

    @property
    def test_part(self) -> str:
        """Part that test samples come from."""
        return TEST if self.fixed_split else POOL

    @property
    def n_calibration(self) -> int:
        """Number of calibration samples of every split."""
        return len(self.parts[VAL]) if self.fixed_split else round(0.5 * len(self.parts[POOL]))

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.parts[self.test_part].n_classes

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the group columns."""
        return tuple(self.parts[self.test_part].groups)

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
        """Names the content of the training points."""
        if self.train is None:
            return "none"
        return self.train_key or digest(*self.train)

    @cached_property
    def outputs_digest(self) -> dict[str, str]:
        """Names the content of logits, labels and identities of each part."""
        return {
            part: digest(own.logits, own.codes, own.rows, own.classes)
            for part, own in self.parts.items()
        }

    @cached_property
    def predicted_digest(self) -> str:
        """Names the content of the predicted classes of all parts."""
        return digest(*(part.predicted for part in self.parts.values()))

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

    def positions(self, part: str, outputs: ModelOutputs) -> NDArray[np.int64]:
        """Where samples taken from a part stand in it."""
        found: NDArray[np.int64] = np.searchsorted(self.parts[part].rows, outputs.rows)
        return found


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
        File of training points, for a single file of outputs.
    groups : sequence of str
        Arrays that are group columns, besides those called ``group_NAME``.
    """
    folder = data / name if is_extracted(data / name) else data
    if is_extracted(folder):
        return _from_extracted(name, folder)
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


def _from_extracted(name: str, folder: Path) -> Source:
    found = read_extracted(folder)
    if found.name != name:
        raise InputError(f"{folder}: holds the outputs of {found.name}, not of {name}.")
    train = (found.train_features, found.classes[found.train_labels])
    return Source(name, found.parts, train, train_key=found.content_key)


def _from_files(name: str, data: Path, train: Path | None, groups: Sequence[str]) -> Source:
    from trustsets.files import open_outputs, read_training
    from trustsets.files.source import open_columns

    outputs = open_outputs(data, groups=groups).read()
    column = open_columns(data).get(_TRUTH)
    truth = None if column is None else column.read_all()
    if outputs.codes is None:
        raise InputError(f"{data}: holds no labels, which an experiment needs; add 'labels'.")
    if train is None:
        return Source(name, {POOL: outputs}, label_probabilities=truth)
    features, labels = read_training(train, outputs.classes)
    return Source(name, {POOL: outputs}, (features, labels), label_probabilities=truth)
