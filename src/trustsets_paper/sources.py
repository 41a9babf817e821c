"""The model outputs that an experiment runs on, and the folder that extraction writes.

``rows`` in the shards of the folder are row numbers of ``samples.parquet``; those of unreadable
images are absent. Labels are positions in ``classes``.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, final

import numpy as np
from typer import Option

from trustsets import ModelOutputs
from trustsets.errors import InputError, StorageError
from trustsets.storage import atomic_path, digest, read
from trustsets_paper import Array
from trustsets_paper.authors import authors_halves

PAPER_DATASETS = ("imagenet", "imagenet-lt", "places365", "places365-lt", "fitzpatrick17k")
"""Datasets of the paper."""
FORMAT = 2
TRAIN, POOL, VAL, TEST = "train", "pool", "val", "test"
SAMPLES = "samples.parquet"
UNREADABLE = "unreadable.txt"
_DESCRIPTION = "dataset.json"
_SUFFIXES = (".npz", ".parquet", ".safetensors")


@final
@dataclass(frozen=True)
class WorkOptions:
    """Which images there are, and how they are decoded and run: options of two commands."""

    lists: Annotated[Path | None, Option(help="Folder of lists or tables. Default: nearby.")] = None
    seed: Annotated[int, Option(help="Of the split of fitzpatrick17k and of training.", min=0)] = 0
    image_size: Annotated[int, Option(help="Side that the network sees.", min=1)] = 224
    batch_size: Annotated[int, Option(help="Images that are run together.", min=1)] = 256
    max_unreadable: Annotated[int, Option(help="Missing or damaged images allowed.", min=0)] = 100
    device: Annotated[str, Option(help="cpu, cuda, or auto: a GPU where there is one.")] = "auto"
    workers: Annotated[int | None, Option(help="Decoding processes. Default: all.", min=0)] = None


@final
@dataclass(frozen=True, eq=False)
class Source:
    """Samples to calibrate and test on, and training samples for the trust score.

    `parts` are ``pool``, to be split by seed, or ``val`` and ``test``, a split that is fixed.
    `train` are features and labels.
    """

    name: str
    parts: dict[str, ModelOutputs]
    train: tuple[Array, Array] | None = None

    def __post_init__(self) -> None:
        for part, outputs in self.parts.items():
            outputs.require_labels(f"{part} of {self.name}")
            if np.any(np.diff(outputs.rows) <= 0):
                raise InputError(f"rows of {part} of {self.name} must be increasing.")

    @property
    def fixed_split(self) -> bool:
        """Whether the dataset itself says which samples calibrate and which test."""
        return POOL not in self.parts

    @property
    def tested(self) -> ModelOutputs:
        """All samples that are test samples in some split."""
        return self.parts[TEST if self.fixed_split else POOL]

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
        """Group columns."""
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
    def digests(self) -> dict[str, Any]:
        """Digests of training samples and features, of each part and of each group column."""
        parts = self.parts.values()
        return {
            "train": "none" if self.train is None else digest(*self.train),
            "features": digest(*(part.features for part in parts)),
            "outputs": {
                part: digest(outputs.logits, outputs.codes, outputs.rows, outputs.classes)
                for part, outputs in self.parts.items()
            },
            "groups": {
                name: digest(*(part.groups[name] for part in parts)) for name in self.groups
            },
        }

    def with_trust(self, trust: dict[str, Array]) -> Self:
        """Return the same samples with their trust scores, given for each part."""
        parts = {part: outputs.with_trust(trust[part]) for part, outputs in self.parts.items()}
        return replace(self, parts=parts)

    def split(self, seed: int, rule: str = "package") -> tuple[ModelOutputs, ModelOutputs]:
        """Calibration and test samples: halves stratified by class, or the fixed parts."""
        if self.fixed_split:
            return self.parts[VAL], self.parts[TEST]
        pool = self.parts[POOL]
        if rule == "authors":
            calibration, test = authors_halves(pool.require_labels("a split"), seed)
            return pool.take(np.sort(calibration)), pool.take(np.sort(test))
        return pool.split(0.5, seed=seed, stratify=True)


def read_source(
    name: str, data: Path, train: Path | None = None, groups: Sequence[str] = ()
) -> Source:
    """Find and read the outputs of a dataset.

    `data` is a folder that ``trustsets paper extract`` wrote, or one that holds such a folder; a
    folder with files ``NAME_pool`` and ``NAME_train``; or one file of outputs, to which `train` may
    add training samples. `groups` are group columns, besides ``group_NAME``.
    """
    from trustsets.files import open_outputs, read_training

    folder = data / name if is_extracted(data / name) else data
    if is_extracted(folder):
        source = read_extracted(folder)
        if source.name != name:
            raise InputError(f"{folder}: holds the outputs of {source.name}, not of {name}.")
        return source
    if data.is_dir():
        pool = _paired(data, f"{name}_pool")
        if pool is None:
            raise InputError(
                f"{data}: holds neither extracted outputs ({_DESCRIPTION}) nor {name}_pool.npz. "
                "Name the folder that trustsets paper extract wrote, or a file of outputs."
            )
        data, train = pool, train or _paired(data, f"{name}_train")
    outputs = open_outputs(data, groups=groups).read()
    if outputs.codes is None:
        raise InputError(f"{data}: holds no labels, which an experiment needs; add 'labels'.")
    points = None if train is None else read_training(train, outputs.classes)
    return Source(name, {POOL: outputs}, points)


def _paired(folder: Path, stem: str) -> Path | None:
    candidates = (folder / f"{stem}{suffix}" for suffix in _SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


@final
@dataclass(frozen=True)
class Description:
    """What ``dataset.json`` holds."""

    dataset: str
    classes: tuple[str, ...]  # in the order of the columns of the logits
    seed: int | None  # of the training split, where it is drawn
    setting: dict[str, Any]  # network, weights, images: all that the outputs depend on
    rows: dict[str, int] | None = None  # readable images of each part, once all are complete

    def write(self, folder: Path) -> None:
        """Write to a folder, whole or not at all."""
        content = json.dumps({"format": FORMAT} | asdict(self), indent=1)
        write_text(folder / _DESCRIPTION, content + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Description":
        """Read from a folder."""
        path = folder / _DESCRIPTION
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if state.pop("format") != FORMAT:
                raise ValueError(f"it is not of format {FORMAT}")
            return cls(**state | {"classes": tuple(map(str, state["classes"]))})
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise StorageError(f"{path}: damaged ({error}). Extract again.") from error


def is_extracted(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds extracted outputs, complete or not."""
    return (Path(folder) / _DESCRIPTION).is_file()


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_extracted(folder: str | os.PathLike[str]) -> Source:
    """Read a complete folder of ``trustsets paper extract``."""
    root = Path(folder)
    description = Description.read(root)
    if description.rows is None:
        raise StorageError(
            f"{root}: the extraction of {description.dataset} is not finished. Run trustsets paper "
            "extract again with the same options; it continues."
        )
    classes = np.array(description.classes)
    columns = {part: _read_shards(root / part, n) for part, n in description.rows.items()}
    train = columns.pop(TRAIN)
    return Source(
        description.dataset,
        {part: _outputs(root / part, values, classes) for part, values in columns.items()},
        (train["features"], classes[train["labels"]]),
    )


def _read_shards(directory: Path, n: int) -> dict[str, Array]:
    """Columns of all shards of a part, filled in place so that nothing is in memory twice."""
    columns: dict[str, Array] = {}
    stop = 0
    for path in sorted(directory.glob("shard-*.safetensors")):
        shard = read(path)
        start, stop = stop, stop + len(shard["rows"])
        for name, piece in shard.items() if stop > start else ():
            column = columns.setdefault(name, np.empty((n, *piece.shape[1:]), piece.dtype))
            column[start:stop] = piece[: n - start]
    if stop != n or n == 0:
        raise StorageError(f"{directory}: holds {stop} rows instead of {n}. Extract again.")
    return columns


def _outputs(directory: Path, columns: dict[str, Array], classes: Array) -> ModelOutputs:
    import pandas as pd

    try:
        samples = pd.read_parquet(directory / SAMPLES).iloc[columns["rows"]]
    except (OSError, ValueError, IndexError) as error:
        raise StorageError(
            f"{directory / SAMPLES}: missing or damaged ({error}). Extract again."
        ) from error
    names = (name for name in samples if name not in ("path", "label"))
    groups = {str(name): samples[name].to_numpy() for name in names}
    return ModelOutputs(
        logits=columns["logits"],
        features=columns["features"],
        labels=classes[columns["labels"]],
        groups=groups or None,
        classes=classes,
        rows=columns["rows"],
    )
