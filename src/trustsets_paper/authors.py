"""The authors' halves of a pool, and the trust scores that they released for every seed."""

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from trustsets.errors import InputError
from trustsets_paper import Array, Floats, Ints

__all__ = ["authors_halves", "compare_trust", "read_released_trust", "released_files"]

# Names of the datasets in the authors' files.
_FILE_NAMES = {"imagenet_lt": "imagenet-lt", "places": "places365", "places_lt": "places365-lt"}
_RELEASED = re.compile(r"(val|test)_(\w+?)_trust(?:_seed(\d+))?\.npy")
# All that an array of numbers needs to be built again.
_SAFE_CLASSES = {("numpy", "ndarray"), ("numpy", "dtype")} | {
    (f"numpy.{core}.multiarray", name)
    for core in ("core", "_core")
    for name in ("_reconstruct", "scalar")
}


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
    """Trust scores of one of the authors' files: a pickled array of Python numbers."""
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            return np.asarray(_Numbers(file).load(), dtype=np.float64).reshape(-1)
    except (OSError, TypeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: not the authors' trust scores ({error}).") from error


def released_files(path: Path, dataset: str) -> list[tuple[Path, str, int]]:
    """The authors' files of a dataset, with part and seed: `path` itself, or those in a folder."""
    files = list[tuple[Path, str, int]]()
    for file in sorted(path.glob("*.npy")) if path.is_dir() else [path]:
        match = _RELEASED.fullmatch(file.name)
        if match is not None and _FILE_NAMES.get(match[2], match[2]) == dataset:
            files.append((file, match[1], int(match[3] or 0)))
    if not files:
        raise InputError(
            f"{path}: no trust scores of {dataset}; the authors' files are named such as "
            "test_imagenet_trust_seed1.npy or val_places_lt_trust.npy."
        )
    return files


def compare_trust(
    files: Sequence[tuple[Path, str, int]], trust: dict[str, Floats], labels: Array | None
) -> list[dict[str, Any]]:
    """Compare our trust scores with those of `released_files`; differences are relative.

    `trust` are those of ``pool``, whose `labels` make the halves, or of the fixed ``val`` and
    ``test``.
    """
    rows = list[dict[str, Any]]()
    for file, part, seed in files:
        theirs, ours = read_released_trust(file), trust.get(part, np.empty(0))
        if labels is not None:
            calibration, test = authors_halves(labels, seed)
            ours = trust["pool"][calibration if part == "val" else test]
        if theirs.shape != ours.shape:
            raise InputError(
                f"{file.name} has {theirs.size:,} trust scores, and there are {ours.size:,} "
                "samples here: images are missing, or the order of the files is another."
            )
        gaps = np.abs(ours / theirs - 1.0)
        rows.append(
            {
                "file": file.name,
                "samples": theirs.size,
                "spearman": float(stats.spearmanr(theirs, ours).statistic),
                "median_difference": float(np.median(gaps)),
                "largest_difference": float(gaps.max()),
            }
        )
    return rows
