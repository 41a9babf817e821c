"""Function classes of the candidate label: phi(x, y) instead of phi(x).

Every candidate label of a new sample then has a threshold of its own, and coverage holds over
functions of both: with an indicator of each class in the basis, it holds given each class.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from trustsets._arrays import Codes, Floats, read_only
from trustsets._blocks import row_numbers
from trustsets._checks import check_least, check_not_negative
from trustsets._storage import require_numbers, storable
from trustsets.basis.base import Basis, FittedBasis, equal_rows, penalty_on
from trustsets.basis.partitions import one_hot
from trustsets.outputs import ModelOutputs

__all__ = ["ClassClusters", "Classes"]

# A class counts in its cluster as if it had this many more samples of average hardness, so that
# the hardness of a class with few samples is not decided by them alone.
_PRIOR_SAMPLES = 5.0


@final
@storable
@dataclass(frozen=True)
class Classes(Basis):
    """One indicator for each candidate class: class-conditional coverage.

    Parameters
    ----------
    penalty : float
        What a unit of each coefficient costs in the fit, in calibration samples. With 0
        (default) coverage is at least 1 - alpha given each class, and a class with too few
        calibration samples for that is in every set. With a penalty c, coverage given a class
        with m expected calibration samples can be lower than 1 - alpha by at most ``c / m``, and
        sets are smaller; from 1 on, no class is in every set for want of samples.

    Examples
    --------
    >>> outputs = ModelOutputs(logits=[[1.0, 0.0, 0.0]], labels=[2])
    >>> Classes().fit(outputs).design(outputs)
    array([[0., 0., 1.]])
    """

    penalty: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(penalty=self.penalty)

    learns = False

    def fit(self, outputs: ModelOutputs) -> "FittedClassFunctions":
        """Take the classes of the outputs."""
        table = one_hot(np.arange(outputs.n_classes), outputs.n_classes)
        return FittedClassFunctions(read_only(table), self.penalty, "function of the label")


@final
@storable
@dataclass(frozen=True)
class ClassClusters(Basis):
    """One indicator for each cluster of classes that are about equally hard.

    For many classes, or classes with few calibration samples. Tuning samples order classes by the
    mean probability that their samples give to other classes (drawn towards the mean of all classes
    where samples are few), and the order is cut into clusters of equally many classes.

    Parameters
    ----------
    n_clusters : int
        Number of clusters; with as many as classes, each class has its own.
    penalty : float
        As in `Classes`, for the coefficient of each cluster.
    """

    n_clusters: int = 30
    penalty: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(penalty=self.penalty)
        check_least(1, n_clusters=self.n_clusters)

    learns = True

    def fit(self, outputs: ModelOutputs) -> "FittedClassFunctions":
        """Order classes by hardness, and cut the order into clusters."""
        n_classes = outputs.n_classes
        n_clusters = min(self.n_clusters, n_classes)
        cluster = np.empty(n_classes, np.int64)
        order = np.argsort(_class_hardness(outputs), kind="stable")
        cluster[order] = np.arange(n_classes) * n_clusters // n_classes
        table, words = one_hot(cluster, n_clusters), "function of the label's cluster"
        return FittedClassFunctions(read_only(table), self.penalty, words)


@final
@storable
@dataclass(frozen=True)
class FittedClassFunctions(FittedBasis):
    """Functions of the candidate class alone: a table with a row for each class."""

    table: Floats
    penalty: float
    words: str

    def check_state(self) -> None:
        """Refuse a table that no fit gives."""
        require_numbers(self.table, "FittedClassFunctions.table", None, None)

    uses_label = True
    uses_features = False

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return the functions at the samples' own labels."""
        return self.design_for(outputs, outputs.require_labels("a basis of the label"))

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Return the functions at the given labels."""
        return np.asarray(self.table[codes])

    def class_cells(self, n_classes: int) -> Codes:
        """Classes with equal rows of the table share a cell."""
        return equal_rows(self.table)

    def penalty_rows(self, outputs: ModelOutputs) -> Floats:
        """Return the penalty of each coefficient."""
        return penalty_on(np.ones(self.table.shape[1], dtype=bool), self.penalty)

    @property
    def description(self) -> str:
        """In words."""
        return self.words


def _class_hardness(outputs: ModelOutputs) -> Floats:
    """Mean probability that the samples of each class give to other classes."""
    codes, n_classes = outputs.require_labels("ClassClusters"), outputs.n_classes

    def of_label(rows: slice) -> Floats:
        p = outputs.block_probabilities(rows)
        return np.asarray(p[np.arange(len(p)), codes[rows]])

    others = 1.0 - row_numbers(of_label, len(outputs), n_classes)
    total = np.bincount(codes, weights=others, minlength=n_classes)
    count = np.bincount(codes, minlength=n_classes)
    return np.asarray((total + _PRIOR_SAMPLES * others.mean()) / (count + _PRIOR_SAMPLES))
