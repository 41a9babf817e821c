"""What the authors published besides the paper: code, numbers with six digits, trust scores.

``AUTHORS`` names the repository and the commit that was read. Its notebook prints table 1 with six
digits. Its download has the trust scores of every seed, in the order of the authors' halves, which
`authors_halves` gives. Those files are pickled arrays of Python numbers; `read_released_trust`
reads them without running code from the file.
"""

import json
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, final

import numpy as np
from scipy import stats

from trustsets.errors import InputError
from trustsets_paper import Array, Floats, Ints

__all__ = [
    "AUTHORS",
    "ReleasedTrust",
    "authors_halves",
    "compare_trust",
    "publication",
    "read_json",
    "read_released_trust",
    "released_files",
]

# Names of the datasets in the authors' files.
_FILE_NAMES = {"imagenet_lt": "imagenet-lt", "places": "places365", "places_lt": "places365-lt"}
_RELEASED = re.compile(r"(val|test)_(\w+?)_trust(?:_seed(\d+))?\.npy")
# All that an array of numbers needs to be built again.
_SAFE_CLASSES = {("numpy", "ndarray"), ("numpy", "dtype")} | {
    (f"numpy.{core}.multiarray", name)
    for core in ("core", "_core")
    for name in ("_reconstruct", "scalar")
}


def read_json(name: str) -> Any:
    """Content of a file of the package."""
    return json.loads(resources.files("trustsets_paper").joinpath(name).read_text("utf-8"))


@cache
def publication() -> dict[str, Any]:
    """The printed tables, and what the authors published besides them."""
    content: dict[str, Any] = read_json("printed_tables.json")
    return content


AUTHORS: dict[str, Any] = publication()["authors"]
"""Repository, commit, trust scores and notebook of the authors."""


def authors_halves(labels: Array, seed: int) -> tuple[Ints, Ints]:
    """Calibration and test rows of a seed, in the order of the authors' arrays.

    They call scikit-learn's `train_test_split` on the samples in the order of the dataset's files,
    stratified by label. The first half tests, the second calibrates.
    """
    from sklearn.model_selection import train_test_split

    try:
        test, calibration = train_test_split(
            np.arange(len(labels)), test_size=0.5, random_state=seed, stratify=labels
        )
    except ValueError as error:
        raise InputError(
            f"the authors' split cannot be made: {error} Use --splits package."
        ) from error
    return calibration, test


class _Numbers(pickle.Unpickler):
    """Builds arrays and numbers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _SAFE_CLASSES:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        return super().find_class(module, name)


def read_released_trust(path: Path) -> Floats:
    """Trust scores of one of the authors' files, shape (n,)."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            is_pickled = read_header(file)[2].hasobject
            if not is_pickled:
                file.seek(0)
            values = _Numbers(file).load() if is_pickled else np.load(file, allow_pickle=False)
        return np.asarray(values, dtype=np.float64).reshape(-1)
    except (OSError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: not an .npy file of trust scores ({error}).") from error


@final
@dataclass(frozen=True)
class ReleasedTrust:
    """One of the authors' files next to our trust scores of the same samples."""

    file: str
    samples: int
    spearman: float
    median_difference: float  # of ours over theirs, minus 1, in absolute value
    largest_difference: float


def released_files(path: Path, dataset: str) -> list[tuple[Path, str, int]]:
    """Files of the authors' trust scores of a dataset, with their part and seed.

    `path` is one of their files, or the folder ``trust_scores`` that their download makes.
    """
    files = sorted(path.glob("*_trust*.npy")) if path.is_dir() else [path]
    matches = [(file, _RELEASED.fullmatch(file.name)) for file in files]
    chosen = [
        (file, match[1], int(match[3] or 0))
        for file, match in matches
        if match is not None and _FILE_NAMES.get(match[2], match[2]) == dataset
    ]
    if not chosen:
        raise InputError(
            f"{path}: no trust scores of {dataset}; the authors' files are named such as "
            "test_imagenet_trust_seed1.npy or val_places_lt_trust.npy."
        )
    return sorted(chosen, key=lambda item: (item[2], item[1]))


def compare_trust(
    files: Sequence[tuple[Path, str, int]], trust: dict[str, Floats], labels: Array | None
) -> list[ReleasedTrust]:
    """Compare our trust scores with those of `released_files`.

    `trust` are ours, of ``pool`` in the order of its files or of ``val`` and ``test``; `labels` are
    those of ``pool``, None where the split is fixed.
    """
    return [
        _beside(file.name, read_released_trust(file), _ours(trust, labels, part, seed))
        for file, part, seed in files
    ]


def _ours(trust: dict[str, Floats], labels: Array | None, part: str, seed: int) -> Floats:
    if labels is None:
        return trust[part]
    calibration, test = authors_halves(labels, seed)
    return trust["pool"][calibration if part == "val" else test]


def _beside(name: str, theirs: Floats, ours: Floats) -> ReleasedTrust:
    if theirs.shape != ours.shape:
        raise InputError(
            f"{name} has {theirs.size:,} trust scores, and there are {ours.size:,} samples here: "
            "images are missing, or the order of the files is another."
        )
    difference = np.abs(ours / theirs - 1.0)
    return ReleasedTrust(
        file=name,
        samples=theirs.size,
        spearman=float(stats.spearmanr(theirs, ours).statistic),
        median_difference=float(np.median(difference)),
        largest_difference=float(difference.max()),
    )


def released_rows(compared: Sequence[ReleasedTrust]) -> list[list[str]]:
    """Rows of the table of `compare_trust`."""
    return [
        [
            item.file,
            f"{item.samples:,}",
            f"{item.spearman:.6f}",
            f"{item.median_difference:.2e}",
            f"{item.largest_difference:.2e}",
        ]
        for item in compared
    ]
