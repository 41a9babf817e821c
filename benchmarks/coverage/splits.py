"""Splits of a pool, and what a method is."""

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from data_sets import Task
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Predict = Callable[[], Mask]

ALPHA = 0.1
LARGEST_TEST = 3000
"""Test samples of a split, at most: judging them takes most of the time."""
FEW_CLASSES = 15
"""Methods that work through every candidate class take too long with more classes than this."""


@dataclass(frozen=True, eq=False)
class Split:
    """One random division of a pool into calibration and test samples."""

    task: Task
    seed: int
    calibration: NDArray[np.int64]
    test: NDArray[np.int64]

    @classmethod
    def draw(cls, task: Task, seed: int, largest_test: int = LARGEST_TEST) -> "Split":
        """Halves of a random order; the test half is cut at `largest_test`."""
        order = np.random.default_rng(seed).permutation(len(task))
        half = len(task) // 2
        return cls(task, seed, np.sort(order[:half]), np.sort(order[half:][:largest_test]))

    @property
    def test_labels(self) -> NDArray[np.int64]:
        """Columns of the true classes of the test samples."""
        return self.task.labels[self.test]


@dataclass(frozen=True)
class Method:
    """A method by the name of its row.

    Attributes
    ----------
    package : str
        What it is called through; it is left out where this is not installed.
    largest_pool, largest_classes : int
        Pools with more samples, or more classes, are left out because they would take too long.
    """

    name: str
    package: str
    fit: Callable[[Split], Predict]
    largest_pool: int = 10**9
    largest_classes: int = 10**9

    def takes(self, task: Task) -> bool:
        """Whether the method is run on this task."""
        installed = importlib.util.find_spec(self.package.split(".")[0]) is not None
        fits = len(task) <= self.largest_pool and task.n_classes <= self.largest_classes
        return installed and fits


def quiet() -> None:
    """Silence warnings of peers and of small calibration sets; the tables show their effects."""
    warnings.simplefilter("ignore")
