"""Function classes of the candidate label: phi(x, y) instead of phi(x).

A calibration sample contributes phi(x, y) at its own label, and every candidate label of a new
sample has a threshold of its own. Coverage then holds over functions of both: with an indicator of
each class in the basis, it holds given each class.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats, read_only
from trustsets._blocks import for_each_block
from trustsets._checks import check_not_negative
from trustsets._storage import require, require_numbers, storable
from trustsets.basis.base import Basis, FittedBasis, joint_cells
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs

__all__ = ["ClassClusters", "ClassFrequencies", "Classes", "FittedClassFunctions", "Product"]

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
        sets are smaller. From a penalty of 1 on, a class with few calibration samples or none is
        not in every set. A very large penalty has the same effect as no indicators.

    Examples
    --------
    Together with functions of the sample, coverage holds over both:

    >>> from trustsets import Polynomial
    >>> Polynomial(degree=3) + Classes(penalty=10.0)  # doctest: +ELLIPSIS
    Polynomial(degree=3, ...) + Classes(penalty=10.0)
    >>> from trustsets.outputs import ModelOutputs
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
        table = np.eye(outputs.n_classes)
        return FittedClassFunctions(read_only(table), self.penalty, "function of the label")


@final
@storable
@dataclass(frozen=True)
class ClassClusters(Basis):
    """One indicator for each cluster of classes that are about equally hard.

    For many classes, or classes with few calibration samples. Clusters are learned from tuning
    samples: classes are ordered by the mean probability that their samples give to other classes
    (drawn towards the mean of all classes where samples are few), and the order is cut into
    clusters of equally many classes.

    Parameters
    ----------
    n_clusters : int
        Number of clusters; with as many as classes, each class has its own.
    penalty : float
        As in `Classes`, for the coefficient of each cluster.

    Examples
    --------
    >>> from trustsets.outputs import ModelOutputs
    >>> logits = [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [2.0, 0.0, 0.0]] * 20
    >>> tuning = ModelOutputs(logits=logits, labels=[0, 1, 2] * 20)
    >>> ClassClusters(2).fit(tuning).class_cells(3)
    array([1, 1, 0])
    """

    n_clusters: int = 30
    penalty: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(penalty=self.penalty)
        if self.n_clusters != int(self.n_clusters) or self.n_clusters < 1:
            raise InputError(f"n_clusters must be 1 or more; got {self.n_clusters}.")

    learns = True

    def fit(self, outputs: ModelOutputs) -> "FittedClassFunctions":
        """Order classes by hardness, and cut the order into clusters."""
        n_classes = outputs.n_classes
        hardness = _class_hardness(outputs)
        n_clusters = min(self.n_clusters, n_classes)
        cluster = np.empty(n_classes, np.int64)
        order = np.argsort(hardness, kind="stable")
        cluster[order] = np.arange(n_classes) * n_clusters // n_classes
        table = np.eye(n_clusters)[cluster]
        return FittedClassFunctions(
            read_only(table), self.penalty, "function of the label's cluster"
        )


@final
@storable
@dataclass(frozen=True)
class ClassFrequencies(Basis):
    """Polynomials in the logarithm of a class's number of training samples.

    Coverage then does not drift between frequent and rare classes, at the cost of a few functions
    only.

    Parameters
    ----------
    counts : tuple of int
        Training samples of each class, in the order of the columns.
    degree : int
        Highest power.
    penalty : float
        As in `Classes`, for each coefficient.

    Examples
    --------
    >>> from trustsets.outputs import ModelOutputs
    >>> outputs = ModelOutputs(logits=[[1.0, 0.0], [0.0, 1.0]], labels=[0, 1])
    >>> ClassFrequencies(counts=(9, 99), degree=1).fit(outputs).design(outputs)
    array([[-1.],
           [ 1.]])
    """

    counts: tuple[int, ...]
    degree: int = 2
    penalty: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(penalty=self.penalty)
        if not self.counts or min(self.counts) < 0:
            raise InputError(
                "counts must hold the number of training samples of each class; pass "
                "np.bincount(train_codes) as a tuple."
            )
        if self.degree != int(self.degree) or self.degree < 1:
            raise InputError(f"degree must be 1 or more; got {self.degree}.")

    learns = False

    def fit(self, outputs: ModelOutputs) -> "FittedClassFunctions":
        """Take the counts."""
        if len(self.counts) != outputs.n_classes:
            raise InputError(
                f"ClassFrequencies needs counts for each of the {outputs.n_classes} "
                f"classes; got {len(self.counts)}."
            )
        words = f"polynomial of degree {self.degree} in the log frequency of the label"
        return FittedClassFunctions(read_only(self._table()), self.penalty, words)

    def _table(self) -> Floats:
        """Chebyshev polynomials of the log counts, which are scaled to [-1, 1]."""
        size = np.log1p(np.array(self.counts, dtype=np.float64))
        low, high = size.min(), size.max()
        scaled = (2.0 * size - (low + high)) / (high - low) if high > low else 0.0 * size
        return np.asarray(np.polynomial.chebyshev.chebvander(scaled, self.degree)[:, 1:])


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
        require(
            0.0 <= self.penalty < np.inf, "FittedClassFunctions.penalty", "must not be negative"
        )

    @property
    def width(self) -> int:
        """Functions of the class."""
        return int(self.table.shape[1])

    @property
    def uses_label(self) -> bool:
        """Always."""
        return True

    @property
    def uses_features(self) -> bool:
        """The class alone decides."""
        return False

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return the functions at the samples' own labels."""
        return self.design_for(outputs, outputs.require_labels("a basis of the label"))

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Return the functions at the given labels."""
        return np.asarray(self.table[codes])

    def class_cells(self, n_classes: int) -> Codes:
        """Classes with equal rows of the table share a cell."""
        _, cells = np.unique(self.table, axis=0, return_inverse=True)
        return np.asarray(cells.reshape(-1), np.int64)

    def penalty_rows(self, outputs: ModelOutputs | None) -> Floats:
        """Return the penalty of each coefficient."""
        rows = self.penalty * np.eye(self.width)
        return rows if self.penalty > 0.0 else rows[:0]

    @property
    def description(self) -> str:
        """In words."""
        return self.words


@final
@storable
@dataclass(frozen=True)
class Product(Basis):
    """Products of the functions of two classes; written ``a * b``.

    ``Classes() * Groups("site")`` has an indicator for each class within each site. Functions of
    either class alone are not among the products; add them where they are wanted. A penalty on
    one factor is a penalty on all products with its functions.

    Examples
    --------
    >>> from trustsets import Groups
    >>> Classes() * Groups("site")
    Classes(penalty=0.0) * Groups(columns=('site',), penalty=0.0)
    """

    left: Basis
    right: Basis

    def __repr__(self) -> str:
        return f"{self.left!r} * {self.right!r}"

    @property
    def learns(self) -> bool:
        """Whether either factor learns."""
        return self.left.learns or self.right.learns

    def fit(self, outputs: ModelOutputs) -> "FittedProduct":
        """Fit both factors."""
        return FittedProduct(self.left.fit(outputs), self.right.fit(outputs))

    def fit_parts(
        self, calibration: ModelOutputs, tuning: ModelOutputs, **learned_from: Any
    ) -> "FittedProduct":
        """Fit each factor on the samples that it should see."""
        left = self.left.fit_parts(calibration, tuning, **learned_from)
        return FittedProduct(left, self.right.fit_parts(calibration, tuning, **learned_from))


@final
@storable
@dataclass(frozen=True)
class FittedProduct(FittedBasis):
    """All products of a function of one factor and one of the other."""

    left: FittedBasis
    right: FittedBasis

    @property
    def width(self) -> int | None:
        """Product of the widths."""
        left, right = self.left.width, self.right.width
        return None if left is None or right is None else left * right

    @property
    def uses_label(self) -> bool:
        """Whether either factor does."""
        return self.left.uses_label or self.right.uses_label

    @property
    def is_additive(self) -> bool:
        """Products of functions of the sample and of the label are not."""
        return not self.uses_label

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """Columns of both factors, each once."""
        return tuple(dict.fromkeys((*self.left.needed_groups, *self.right.needed_groups)))

    @property
    def uses_features(self) -> bool:
        """Whether either factor does."""
        return self.left.uses_features or self.right.uses_features

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return all products at the samples' own labels."""
        return _products(self.left.design(outputs), self.right.design(outputs))

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Return all products at the given labels."""
        left = self.left.design_for(outputs, codes)
        return _products(left, self.right.design_for(outputs, codes))

    def class_cells(self, n_classes: int) -> Codes:
        """Classes share a cell where they do in both factors."""
        cells = [self.left.class_cells(n_classes), self.right.class_cells(n_classes)]
        return joint_cells(cells)

    def unseen_groups(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Samples that are of such a group in either factor."""
        return self.left.unseen_groups(outputs) | self.right.unseen_groups(outputs)

    def penalty_rows(self, outputs: ModelOutputs | None) -> Floats:
        """Return the rows of each factor, once for each function of the other."""
        return _rows_of_products(self.left.penalty_rows(outputs), self.right.penalty_rows(outputs))

    def bounding_rows(self, outputs: ModelOutputs | None) -> Floats:
        """Return the rows of each factor, once for each function of the other."""
        left, right = self.left.bounding_rows(outputs), self.right.bounding_rows(outputs)
        return _rows_of_products(left, right)

    @property
    def description(self) -> str:
        """In words."""
        return f"product of a {self.left.description} and a {self.right.description}"


def _products(left: Floats, right: Floats) -> Floats:
    """Products of all pairs of columns."""
    return np.asarray((left[:, :, None] * right[:, None, :]).reshape(len(left), -1))


def _rows_of_products(left: Floats, right: Floats) -> Floats:
    """Penalties on the functions of two factors as penalties on their products."""
    return np.vstack([np.kron(left, np.eye(right.shape[1])), np.kron(np.eye(left.shape[1]), right)])


def _class_hardness(outputs: ModelOutputs) -> Floats:
    """Mean probability that the samples of each class give to other classes."""
    codes = outputs.require_labels("ClassClusters")
    true_probability = np.empty(len(outputs))

    def fill(block: slice) -> None:
        p = outputs.block_probabilities(block)
        true_probability[block] = p[np.arange(len(p)), codes[block]]

    for_each_block(fill, len(outputs), outputs.n_classes)
    count = np.bincount(codes, minlength=outputs.n_classes)
    total = np.bincount(codes, weights=1.0 - true_probability, minlength=outputs.n_classes)
    mean = float(np.mean(1.0 - true_probability))
    return np.asarray((total + _PRIOR_SAMPLES * mean) / (count + _PRIOR_SAMPLES))
