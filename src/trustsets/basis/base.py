"""What a function class is, and those of the sample: constants, polynomials, components, your own.

A `Basis` is a value object without data; its `fit` returns a `FittedBasis`, which can be stored.
Coverage is then guaranteed over every function ``f(x) = phi(x)' beta`` of the fitted basis phi.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Literal, final

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from trustsets._arrays import Array, Codes, Floats, floating_matrix
from trustsets._blocks import for_each_block, one_blas_thread
from trustsets._checks import check_least, check_not_negative
from trustsets._storage import require, require_numbers, storable
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, FittedStatistic, Statistic, Trust

__all__ = [
    "Basis",
    "Custom",
    "FittedBasis",
    "FittedPartition",
    "FittedSum",
    "Intercept",
    "Partition",
    "Polynomial",
    "PrincipalComponents",
    "Sum",
]

# Far beyond any use; a file that claims more would only take memory.
_LARGEST_DEGREE = 1000
# Numbers of the training features that principal components are computed from.
_MOST_NUMBERS = 1 << 23
# Subspace iteration: directions besides those wanted, and steps.
_MORE_DIRECTIONS = 10
_ITERATIONS = 5
# Relative to the largest: with a smaller standard deviation a component is constant.
_SMALLEST_DEVIATION = 1e-6


class FittedBasis(ABC):
    """The basis functions phi, with everything they learned."""

    @abstractmethod
    def design(self, outputs: ModelOutputs) -> Floats:
        """Return phi of each sample, shape (n, p)."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The functions it spans, as words that continue "coverage over every ..."."""

    @property
    def uses_label(self) -> bool:
        """Whether phi depends on the candidate label too; `design` then reads the labels."""
        return False

    @property
    def is_additive(self) -> bool:
        """Whether phi(x, y) is a function of x plus a function of y."""
        return True

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Return phi of each sample with a candidate label, given by its code; shape (n, p)."""
        return self.design(outputs)

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """Names of the group columns that `design` reads."""
        return ()

    @property
    def uses_features(self) -> bool:
        """Whether `design` may read the features of samples."""
        return True

    def unseen_groups(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Samples of groups that the function class was not fitted on, shape (n,)."""
        return np.zeros(len(outputs), dtype=bool)

    def penalty_rows(self, outputs: ModelOutputs) -> Floats:
        """Return rows w of shape (q, p); a fit adds the penalty ``sum_j |w_j' beta|`` to its loss.

        Most classes have none. Coverage weighted by ``phi' gamma`` can then differ from 1 - alpha
        by at most ``sum_j |w_j' gamma| / (n + 1)``, n being the number of calibration samples.
        """
        return np.zeros((0, self.design(outputs.take([0])).shape[1]))

    def bounding_rows(self, outputs: ModelOutputs) -> Floats:
        """Return penalty rows of the fits that bound the thresholds, as `Groups` describes."""
        return self.penalty_rows(outputs)[:0]


class FittedPartition(FittedBasis):
    """Basis functions that also put every sample into at most one of finitely many cells."""

    @abstractmethod
    def cells(self, outputs: ModelOutputs) -> Codes:
        """Cell of each sample, shape (n,); -1 for a sample in no cell."""

    @property
    @abstractmethod
    def n_cells(self) -> int:
        """Number of cells."""


class Basis(ABC):
    """A function class, before any data is seen; ``a + b`` spans the functions of both."""

    @property
    @abstractmethod
    def learns(self) -> bool:
        """Whether the span depends on the data it is fitted on."""

    @abstractmethod
    def fit(self, outputs: ModelOutputs) -> FittedBasis:
        """Learn from samples; labels are not used."""

    def fit_parts(
        self, calibration: ModelOutputs, tuning: ModelOutputs, **learned_from: Any
    ) -> FittedBasis:
        """Fit what learns on tuning samples, and the rest on calibration samples.

        A part that does not learn only takes names from the data, such as those of groups.
        `learned_from` has the nonconformity `scores` of the labels of the tuning samples, and the
        features of `training` samples of the classifier, for classes that learn from these.
        """
        return self.fit(tuning if self.learns else calibration)

    def __add__(self, other: "Basis") -> "Sum":
        if not isinstance(other, Basis):
            return NotImplemented
        parts = [part.parts if isinstance(part, Sum) else (part,) for part in (self, other)]
        return Sum(parts[0] + parts[1])


class Partition(Basis):
    """A function class of indicators of cells."""

    @abstractmethod
    def fit(self, outputs: ModelOutputs) -> FittedPartition:
        """Learn the cells from samples; labels are not used."""


@final
@storable
@dataclass(frozen=True)
class Sum(Basis):
    """All sums of functions from several classes; written ``a + b``."""

    parts: tuple[Basis, ...]

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.parts)

    @property
    def learns(self) -> bool:
        """Whether any part learns."""
        return any(part.learns for part in self.parts)

    def fit(self, outputs: ModelOutputs) -> "FittedSum":
        """Fit every part."""
        return FittedSum(tuple(part.fit(outputs) for part in self.parts))

    def fit_parts(
        self, calibration: ModelOutputs, tuning: ModelOutputs, **learned_from: Any
    ) -> "FittedSum":
        """Fit each part on the samples that it should see."""
        fitted = (part.fit_parts(calibration, tuning, **learned_from) for part in self.parts)
        return FittedSum(tuple(fitted))


@final
@storable
@dataclass(frozen=True)
class FittedSum(FittedBasis):
    """Columns of all parts side by side; columns that depend on one another do no harm."""

    parts: tuple[FittedBasis, ...]

    def check_state(self) -> None:
        """Refuse a sum of nothing."""
        require(self.parts, "FittedSum.parts", "must not be empty")

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return the columns of all parts."""
        return np.hstack([part.design(outputs) for part in self.parts])

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Return the same at these labels."""
        return np.hstack([part.design_for(outputs, codes) for part in self.parts])

    def penalty_rows(self, outputs: ModelOutputs) -> Floats:
        """Return the rows of all parts, each in the columns of its part."""
        return _block_diagonal([part.penalty_rows(outputs) for part in self.parts])

    def bounding_rows(self, outputs: ModelOutputs) -> Floats:
        """Return the rows of all parts, each in the columns of its part."""
        return _block_diagonal([part.bounding_rows(outputs) for part in self.parts])

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """Columns of all parts, each once."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.needed_groups))

    @property
    def uses_features(self) -> bool:
        """Whether any part does."""
        return any(part.uses_features for part in self.parts)

    @property
    def uses_label(self) -> bool:
        """Whether any part does."""
        return any(part.uses_label for part in self.parts)

    @property
    def is_additive(self) -> bool:
        """Whether every part is."""
        return all(part.is_additive for part in self.parts)

    def unseen_groups(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Samples that are of such a group in any part."""
        return np.asarray(np.any([part.unseen_groups(outputs) for part in self.parts], axis=0))

    @property
    def description(self) -> str:
        """The parts, joined."""
        return ", plus every ".join(part.description for part in self.parts)


def _block_diagonal(blocks: list[Floats]) -> Floats:
    from scipy.linalg import block_diag

    return np.asarray(block_diag(*blocks))


@final
@storable
@dataclass(frozen=True)
class Intercept(Basis, FittedBasis):
    """Constant functions only: marginal coverage, as in `StandardConformal`."""

    learns = False
    description = "constant function"

    def fit(self, outputs: ModelOutputs) -> "Intercept":
        """Return itself."""
        return self

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return a column of ones."""
        return np.ones((len(outputs), 1))


@final
@storable
@dataclass(frozen=True)
class Polynomial(Basis):
    """Polynomials of statistics up to a total degree, by default of Conf and Trust.

    The span is that of the monomials ``Conf^i Trust^j``, i + j <= degree. The columns are
    products of Chebyshev polynomials of the scaled statistics, which lose fewer digits than powers.

    Parameters
    ----------
    degree : int
        Largest total degree; with two statistics there are (d + 1)(d + 2) / 2 columns.
    of : tuple of Statistic
        The variables of the polynomials.
    penalty : float
        The fit minimises ``sum of losses + penalty * sum |coefficient|`` over the coefficients
        of total degree 2 or more (the lasso of quantile regression), in units of calibration
        samples. Curvature that few samples support is then left out. Linear functions have no
        penalty and an exact guarantee; that of a function with other coefficients holds up to
        ``penalty * sum |coefficient| / (n + 1)``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> outputs = ModelOutputs(logits=rng.normal(size=(10, 3)))
    >>> Polynomial(degree=4, of=(Confidence(),)).fit(outputs).design(outputs).shape
    (10, 5)
    """

    degree: int = 5
    of: tuple[Statistic, ...] = (Confidence(), Trust())
    penalty: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(penalty=self.penalty)
        if self.degree != int(self.degree) or self.degree < 0:
            raise InputError(f"degree must be a whole number, 0 or more; got {self.degree}.")
        is_tuple = isinstance(self.of, tuple | list) and len(self.of) > 0
        if not is_tuple or not all(isinstance(item, Statistic) for item in self.of):
            raise InputError(f"of must be a non-empty tuple of statistics; got {self.of!r}.")

    @property
    def learns(self) -> bool:
        """Whether a transform does; shifting and scaling do not change the span."""
        return any(item.learns for item in self.of)

    def fit(self, outputs: ModelOutputs) -> "FittedPolynomial":
        """Fit the transforms, and find the range of each statistic."""
        fitted = tuple(item.fit(outputs) for item in self.of)
        values = [item.values(outputs) for item in fitted]
        low = np.array([statistic.min() for statistic in values])
        high = np.array([statistic.max() for statistic in values])
        high = np.where(high > low, high, low + 1.0)
        return FittedPolynomial(self.degree, fitted, low, high, self.penalty)


@final
@storable
@dataclass(frozen=True)
class FittedPolynomial(FittedBasis):
    """Products of Chebyshev polynomials on the range between `low` and `high`."""

    degree: int
    of: tuple[FittedStatistic, ...]
    low: Floats
    high: Floats
    penalty: float = 0.0

    def check_state(self) -> None:
        """Refuse ranges and degrees that no fit gives."""
        for name in ("low", "high"):
            require_numbers(getattr(self, name), f"FittedPolynomial.{name}", len(self.of))
        require(self.of, "FittedPolynomial.of", "must not be empty")
        require((self.low < self.high).all(), "FittedPolynomial.low", "must be below high")
        require(0 <= self.degree <= _LARGEST_DEGREE, "FittedPolynomial.degree", "is out of range")

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return one column for each combination of degrees."""
        tables = []
        for item, low, high in zip(self.of, self.low, self.high, strict=True):
            scaled = (2.0 * item.values(outputs) - (low + high)) / (high - low)
            tables.append(np.asarray(chebyshev.chebvander(scaled, self.degree)))
        degrees = self._degrees
        columns = tables[0][:, degrees[0]]
        for table, powers in zip(tables[1:], degrees[1:], strict=True):
            columns *= table[:, powers]
        return np.ascontiguousarray(columns)

    def penalty_rows(self, outputs: ModelOutputs) -> Floats:
        """Return one row for each coefficient of total degree 2 or more."""
        return penalty_on(self._degrees.sum(axis=0) > 1, self.penalty)

    @cached_property
    def _degrees(self) -> Codes:
        """Degree of each column in each statistic, shape (number of statistics, p)."""
        every = product(range(self.degree + 1), repeat=len(self.of))
        return np.array([degrees for degrees in every if sum(degrees) <= self.degree]).T

    @property
    def description(self) -> str:
        """The functions in words."""
        names = " and ".join(item.statistic.name for item in self.of)
        return f"polynomial of degree {self.degree} in {names}"


@final
@storable
@dataclass(frozen=True)
class PrincipalComponents(Basis):
    """Linear functions of the leading principal components of the features, and constants.

    Parameters
    ----------
    n_components : int
        Number of components.
    penalty : float
        As in `Polynomial`, for the coefficient of each component. Where it is positive, components
        are divided by their standard deviations, and those that predict nothing do not enlarge
        the sets.
    source : {"tuning", "training"}
        Where the directions come from: tuning samples, or the training features that the trust
        score of the predictor holds, if it has one, which costs no samples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> outputs = ModelOutputs(logits=rng.normal(size=(9, 2)), features=rng.normal(size=(9, 4)))
    >>> PrincipalComponents(3).fit(outputs).design(outputs).shape
    (9, 4)
    """

    n_components: int = 20
    penalty: float = 0.0
    source: Literal["tuning", "training"] = "tuning"

    def __post_init__(self) -> None:
        check_not_negative(penalty=self.penalty)
        check_least(1, n_components=self.n_components)
        if self.source not in ("tuning", "training"):
            raise InputError(f'source takes "tuning" or "training"; got {self.source!r}.')

    learns = True

    def fit(self, outputs: ModelOutputs) -> "FittedComponents":
        """Find the directions of largest variance of the features."""
        return self.fit_features(outputs.require_features("PrincipalComponents"))

    def fit_parts(
        self, calibration: ModelOutputs, tuning: ModelOutputs, **learned_from: Any
    ) -> "FittedComponents":
        """Fit on the tuning samples, or on training features if there are any."""
        training = learned_from.get("training") if self.source == "training" else None
        return self.fit(tuning) if training is None else self.fit_features(training)

    def fit_features(self, features: Array) -> "FittedComponents":
        """Find the directions of largest variance of these features, shape (n, d)."""
        if self.n_components > min(features.shape):
            raise InputError(
                f"n_components={self.n_components} exceeds what {features.shape[0]} samples of "
                f"dimension {features.shape[1]} can give; ask for fewer."
            )
        if self.source == "training":
            mean, directions, deviations = _leading_directions(features, self.n_components)
        else:
            mean, directions, deviations = _exact_directions(features, self.n_components)
        if self.penalty > 0.0:
            # Directions in which the features do not vary would only be rounding errors.
            varies = deviations > _SMALLEST_DEVIATION * deviations.max()
            scale = np.where(varies, 1.0 / np.where(varies, deviations, 1.0), 0.0)
            directions = scale[:, None] * directions
        return FittedComponents(mean, np.ascontiguousarray(directions), self.penalty)


@final
@storable
@dataclass(frozen=True)
class FittedComponents(FittedBasis):
    """Mean and directions of a principal component analysis."""

    mean: Floats
    directions: Floats
    penalty: float = 0.0

    def check_state(self) -> None:
        """Refuse arrays that no fit gives."""
        require_numbers(self.mean, "FittedComponents.mean", None)
        require_numbers(self.directions, "FittedComponents.directions", None, self.mean.size)

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return a column of ones and the components."""
        features = outputs.require_features("PrincipalComponents")
        if features.shape[1] != self.mean.size:
            raise InputError(
                f"features have dimension {features.shape[1]}, but {self.mean.size} when fitted."
            )
        columns = np.ones((len(features), 1 + len(self.directions)))

        def project(rows: slice) -> None:
            centred = features[rows] - self.mean
            # Not a matrix product: the last digits of one depend on the other rows of its batch.
            np.einsum("ij,kj->ik", centred, self.directions, out=columns[rows, 1:])

        for_each_block(project, *features.shape)
        return np.ascontiguousarray(columns)

    def penalty_rows(self, outputs: ModelOutputs) -> Floats:
        """Return one row for each component."""
        return penalty_on(np.arange(1 + len(self.directions)) > 0, self.penalty)

    @property
    def description(self) -> str:
        """The functions in words."""
        return f"linear function of the first {len(self.directions)} principal components"


def _exact_directions(features: Array, count: int) -> tuple[Floats, Floats, Floats]:
    """Mean, directions and standard deviations of the leading principal components."""
    from sklearn.decomposition import PCA

    # The covariance has enough digits for the leading directions, and decomposing it is ten times
    # faster than a singular value decomposition of many samples.
    solver = "covariance_eigh" if features.shape[0] > features.shape[1] else "full"
    pca = PCA(count, svd_solver=solver).fit(features.astype(np.float64))
    return pca.mean_, pca.components_, np.sqrt(pca.explained_variance_)


@one_blas_thread  # also so that the last digits do not depend on the number of cores
def _leading_directions(features: Array, count: int) -> tuple[Floats, Floats, Floats]:
    """The same from at most `_MOST_NUMBERS` numbers, by subspace iteration.

    It takes a second where an exact decomposition of many wide features takes minutes.
    """
    stride = -(-features.size // _MOST_NUMBERS)
    rows = features[::stride].astype(np.float64)
    # Sums round: in this order, that in which the samples came does not show in the last digits.
    rows = rows[np.argsort(np.einsum("ij,ij->i", rows, rows), kind="stable")]
    mean = rows.mean(axis=0)
    rows -= mean
    width = min(count + _MORE_DIRECTIONS, *rows.shape)
    span = np.random.default_rng(0).normal(size=(rows.shape[1], width))
    for _ in range(_ITERATIONS):
        span = np.linalg.qr(rows.T @ (rows @ span))[0]
    singular, rotation = np.linalg.svd(rows @ span, full_matrices=False)[1:]
    directions = (rotation @ span.T)[:count]
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.sign(directions[np.arange(len(directions)), largest])[:, None]
    return mean, directions, singular[:count] / np.sqrt(max(1, len(rows) - 1))


@final
@storable
@dataclass(frozen=True)
class Custom(Basis, FittedBasis):
    """Any functions: `function` maps `ModelOutputs` to an array of shape (n, p).

    Add `Intercept()` to keep marginal coverage. The row of a sample must depend on that sample
    alone. A predictor is saved with the *name* of the function, which must be defined at the top of
    a module, and imported before the file is loaded.

    With ``of_label=True``, `function` gets `ModelOutputs` and the codes of one candidate label for
    each sample, and every class has thresholds of its own.

    Examples
    --------
    >>> basis = Custom(lambda outputs: outputs.confidence[:, None]) + Intercept()
    >>> outputs = ModelOutputs(probabilities=[[0.75, 0.25]])
    >>> basis.fit(outputs).design(outputs)
    array([[0.75, 1.  ]])
    """

    learns = False
    description = "combination of your own functions"

    function: Callable[..., Any]
    of_label: bool = False

    @property
    def uses_label(self) -> bool:
        """Whether the function is given labels."""
        return self.of_label

    @property
    def is_additive(self) -> bool:
        """A function of sample and label may be anything."""
        return not self.of_label

    def fit(self, outputs: ModelOutputs) -> "Custom":
        """Return itself."""
        return self

    def design(self, outputs: ModelOutputs) -> Floats:
        """Call the function, with the samples' own labels where it is given some."""
        codes = np.zeros(0, np.int64)
        if self.of_label:
            codes = outputs.require_labels("a basis of the label")
        return self.design_for(outputs, codes)

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Call the function, with these labels where it is given some."""
        returned = self.function(outputs, codes) if self.of_label else self.function(outputs)
        columns = floating_matrix(returned, "what function returns")
        if columns.shape[0] != len(outputs):
            raise InputError(
                f"function must return one row per sample; got {columns.shape[0]} rows for "
                f"{len(outputs)} samples."
            )
        return columns.astype(np.float64)


def penalty_on(columns: NDArray[np.bool_], penalty: float) -> Floats:
    """Penalty rows of the coefficients of some columns; none where the penalty is 0."""
    return np.asarray(penalty * np.eye(columns.size)[columns & (penalty > 0.0)])
