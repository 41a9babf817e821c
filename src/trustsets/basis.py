"""Function classes: what coverage is conditioned on.

A `Basis` is a value object without data; its `fit` returns a `FittedBasis`, which can be stored.
Coverage is then guaranteed over every function ``f(x) = phi(x)' beta`` of the fitted basis phi.

1. What a function class is, and sums of them.
2. Functions of the sample: constants, polynomials, principal components, your own.
3. Indicators: of groups, of classes, of bins of statistics.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Annotated, Any, Literal, final

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from trustsets._arrays import Array, Codes, Floats, floating_matrix, group_column, texts_of
from trustsets._blocks import for_each_block, one_blas_thread
from trustsets._frames import as_names_of
from trustsets._parameters import NotNegative, Positive, Rule, check_arguments, check_fields, whole
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, FittedStatistic, Statistic, Trust
from trustsets.storage import require, require_numbers, storable

__all__ = [
    "Basis",
    "Bins",
    "Classes",
    "Custom",
    "CustomGroups",
    "FittedBasis",
    "FittedBins",
    "FittedGroups",
    "FittedPartition",
    "FittedSum",
    "Groups",
    "Intercept",
    "Partition",
    "Polynomial",
    "PrincipalComponents",
    "Sum",
]

Spacing = Literal["uniform", "quantile"]
Statistics = Annotated[tuple[Statistic, ...], Rule("must be a non-empty tuple of statistics", len)]

# Far beyond any use; a file that claims more would only take memory.
_LARGEST_DEGREE = 1000
Degree = Annotated[int, whole(0, _LARGEST_DEGREE)]
# Numbers of the training features that principal components are computed from.
_MOST_NUMBERS = 1 << 23
# Subspace iteration: directions besides those wanted, and steps.
_MORE_DIRECTIONS = 10
_ITERATIONS = 5
# Relative to the largest: with a smaller standard deviation a component is constant.
_SMALLEST_DEVIATION = 1e-6


# 1. What a function class is.


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

    @property
    def summands(self) -> tuple[Any, ...]:
        """The parts of a sum; else itself."""
        return (self,)


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

    def __post_init__(self) -> None:
        check_fields(self)

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

    @property
    def summands(self) -> tuple[Any, ...]:
        """The parts of a sum; else itself."""
        return (self,)

    def __add__(self, other: "Basis") -> "Sum":
        if not isinstance(other, Basis):
            return NotImplemented
        return Sum(self.summands + other.summands)


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

    parts: Annotated[tuple[Basis, ...], Rule("must be a non-empty tuple of function classes", len)]

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.parts)

    @property
    def summands(self) -> tuple[Basis, ...]:
        """The parts."""
        return self.parts

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

    parts: Annotated[tuple[FittedBasis, ...], Rule("must not be empty", len)]

    @property
    def summands(self) -> tuple[FittedBasis, ...]:
        """The parts."""
        return self.parts

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


# 2. Functions of the sample.


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

    degree: Degree = 5
    of: Statistics = (Confidence(), Trust())
    penalty: NotNegative = 0.0

    @property
    def learns(self) -> bool:
        """Whether a transform does; scaling does not change the span, but what a penalty costs."""
        return any(item.learns for item in self.of) or (self.penalty > 0.0 and self.degree > 1)

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

    degree: Degree
    of: Annotated[tuple[FittedStatistic, ...], Rule("must not be empty", len)]
    low: Floats
    high: Floats
    penalty: float = 0.0

    def check_state(self) -> None:
        """Refuse arrays of other shapes, for `storage`."""
        for name in ("low", "high"):
            require_numbers(getattr(self, name), f"FittedPolynomial.{name}", len(self.of))

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return one column for each combination of degrees."""
        tables = []
        for item, low, high in zip(self.of, self.low, self.high, strict=True):
            scaled = (2.0 * item.values(outputs) - (low + high)) / (high - low)
            # So far away a sample has a full set, and no product overflows.
            limit = 1e100 ** (1.0 / max(self.degree, 1))
            scaled = np.clip(scaled, -limit, limit)
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

    n_components: Positive = 20
    penalty: NotNegative = 0.0
    source: Literal["tuning", "training"] = "tuning"

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
            # In C order, and not a matrix product: the last digits of sums along a row depend on
            # its layout, and those of a product on the other rows of its batch.
            centred = np.ascontiguousarray(features[rows] - self.mean)
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
    pca = PCA(count, svd_solver=solver).fit(features.astype(np.float64, order="C"))
    return pca.mean_, pca.components_, np.sqrt(pca.explained_variance_)


@one_blas_thread  # also so that the last digits do not depend on the number of cores
def _leading_directions(features: Array, count: int) -> tuple[Floats, Floats, Floats]:
    """The same from at most `_MOST_NUMBERS` numbers, by subspace iteration.

    It takes a second where an exact decomposition of many wide features takes minutes.
    """
    stride = -(-features.size // _MOST_NUMBERS)
    rows = features[::stride].astype(np.float64, order="C")
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


# 3. Indicators.


@final
@storable
@dataclass(frozen=True, init=False)
class Groups(Partition):
    """Indicators of the values of group columns.

    As a function class, the values of several columns overlap: coverage holds for each
    value of each column. As a partition (in `MondrianConformal`), the cells are the
    combinations of values. Values of any type are told apart by their text.

    Parameters
    ----------
    *columns : str
        Names of group columns of the outputs; none means all of them.
    penalty : float
        With 0 (default), coverage is exact for every value, and a value with too few
        calibration samples has an infinite threshold. With 1 or more, in units of calibration
        samples, `ConditionalConformal` bounds the thresholds by those of two more fits, in which
        the coefficients of values have this penalty: from below at alpha, from above at alpha / 4
        and twice the penalty. Thresholds are then finite for groups of any size, and the coverage
        of a value with m expected calibration samples can be lower than 1 - alpha by at most
        ``penalty / m``. Add `Intercept()`, or another class that contains the constants, to keep
        marginal coverage. Partitions ignore the penalty.

    Examples
    --------
    >>> outputs = ModelOutputs(logits=[[1.0, 0.0]] * 3, groups={"sex": ["f", "m", "f"]})
    >>> Groups("sex").fit(outputs).cells(outputs)
    array([0, 1, 0])
    """

    columns: Annotated[tuple[str, ...], Rule("must be names of group columns", lambda _: True)]
    # A penalty of less than one sample cannot balance the new sample in the fit: the threshold of a
    # group without calibration samples would be infinite again.
    penalty: Annotated[
        float,
        Rule("must be 0, or finite and 1 or more", lambda x: x == 0.0 or 1.0 <= float(x) < np.inf),
    ]

    # The names of groups are no numbers learned from the samples.
    learns = False

    def __init__(self, *columns: str, penalty: float = 0.0) -> None:
        vars(self).update(columns=columns, penalty=penalty)
        check_fields(self)

    def fit(self, outputs: ModelOutputs) -> "FittedGroups":
        """Note which combinations of values occur."""
        columns = self.columns or tuple(outputs.groups)
        if not columns:
            raise InputError("Groups needs group columns; pass groups= to ModelOutputs.")
        return FittedGroups.seen_in(outputs, columns, None, self.penalty)


@final
@storable
@dataclass(frozen=True)
class CustomGroups(Partition):
    """Groups that a function of `ModelOutputs` returns, one value per sample; see `Custom`."""

    learns = False

    function: Callable[[ModelOutputs], Any]

    def fit(self, outputs: ModelOutputs) -> "FittedGroups":
        """Note which groups occur."""
        return FittedGroups.seen_in(outputs, ("group",), self, 0.0)


@final
@storable
@dataclass(frozen=True)
class FittedGroups(FittedPartition):
    """Values of each column, and combinations of them, that were seen; in sorted order.

    Columns are those of the outputs, or the one that a function returns.
    """

    columns: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    combinations: tuple[tuple[str, ...], ...]
    custom: CustomGroups | None = None
    penalty: float = 0.0

    @classmethod
    def seen_in(
        cls,
        outputs: ModelOutputs,
        columns: tuple[str, ...],
        custom: CustomGroups | None,
        penalty: float,
    ) -> "FittedGroups":
        """Groups of these samples."""
        texts = _texts(outputs, columns, custom)
        values = tuple(tuple(sorted(set(column))) for column in texts)
        combinations = tuple(sorted(set(zip(*texts, strict=True))))
        return cls(columns, values, combinations, custom, penalty)

    def check_state(self) -> None:
        """Refuse lists of other lengths."""
        n = len(self.columns)
        require(n and len(self.values) == n, "FittedGroups.values", "must be those of each column")
        complete = all(len(row) == n for row in self.combinations)
        require(complete, "FittedGroups.combinations", "must have a value of each column")

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """The group columns of the outputs."""
        return self.columns if self.custom is None else ()

    @property
    def uses_features(self) -> bool:
        """A function may."""
        return self.custom is not None

    @property
    def n_cells(self) -> int:
        """Number of combinations seen."""
        return len(self.combinations)

    def _read(self, outputs: ModelOutputs) -> list[list[str]]:
        """Values of each column; 3.0 is 3 where only one of them was seen."""
        texts = _texts(outputs, self.columns, self.custom)
        return [as_names_of(*pair) for pair in zip(texts, self.values, strict=True)]

    def cells(self, outputs: ModelOutputs) -> Codes:
        """Cell of each sample; -1 for a combination that was not seen."""
        code_of = {combination: code for code, combination in enumerate(self.combinations)}
        table = zip(*self._read(outputs), strict=True)
        return np.array([code_of.get(row, -1) for row in table], dtype=np.int64)

    def _codes(self, outputs: ModelOutputs) -> list[Codes]:
        """Number of each sample's value by column; that past the last for one never seen."""
        codes = []
        for column, values in zip(self._read(outputs), self.values, strict=True):
            code_of = {value: code for code, value in enumerate(values)}
            codes.append(np.array([code_of.get(text, len(values)) for text in column], np.int64))
        return codes

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return an indicator of each value of each column, and of values never seen.

        The last is zero on all samples of the fit: a sample of an unknown group has a basis
        function that no calibration sample has, and the fit reports it as such.
        """
        widths = [len(values) + 1 for values in self.values]
        return np.hstack(list(map(one_hot, self._codes(outputs), widths)))

    def unseen_groups(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Samples with a value of some column that was never seen."""
        numbers = map(len, self.values)
        unseen = [codes == n for codes, n in zip(self._codes(outputs), numbers, strict=True)]
        return np.asarray(np.any(unseen, axis=0))

    def bounding_rows(self, outputs: ModelOutputs) -> Floats:
        """Return one row for each coefficient, those of values never seen included."""
        width = sum(len(values) + 1 for values in self.values)
        return penalty_on(np.ones(width, dtype=bool), self.penalty)

    @property
    def description(self) -> str:
        """The functions in words."""
        groups = "your own groups" if self.custom else f"the groups by {', '.join(self.columns)}"
        return f"combination of indicators of {groups}"


@final
@storable
@dataclass(frozen=True)
class Classes(Basis):
    """One indicator for each candidate class, or cluster of classes: class-conditional coverage.

    Parameters
    ----------
    penalty : float
        What a unit of each coefficient costs in the fit, in calibration samples. With 0
        (default) coverage is at least 1 - alpha given each class, and a class with too few
        calibration samples for that is in every set. With a penalty c, coverage given a class
        with m expected calibration samples can be lower than 1 - alpha by at most ``c / m``, and
        sets are smaller; from 1 on, no class is in every set for want of samples.
    clusters : sequence of int, optional
        Number of the cluster of each class, from 0 on. Classes of a cluster share an indicator,
        so coverage holds given the cluster. They must not come from the calibration samples.

    Examples
    --------
    >>> outputs = ModelOutputs(logits=[[1.0, 0.0, 0.0]], labels=[2])
    >>> Classes().fit(outputs).design(outputs)
    array([[0., 0., 1.]])
    >>> Classes(clusters=[0, 1, 1]).fit(outputs).design(outputs)
    array([[0., 1.]])
    """

    penalty: NotNegative = 0.0
    clusters: Annotated[
        Sequence[int] | None,
        Rule(
            "must hold a whole number for each class, 0 or more and less than their number",
            lambda c: c is None or (min(c) >= 0 and max(c) < len(c) and {*map(int, c)} == {*c}),
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clusters is not None:
            object.__setattr__(self, "clusters", tuple(map(int, self.clusters)))

    learns = False

    def fit(self, outputs: ModelOutputs) -> "FittedClasses":
        """Take the classes of the outputs."""
        clusters = tuple(self.clusters or range(outputs.n_classes))
        if len(clusters) != outputs.n_classes:
            raise InputError(
                f"clusters must have a number for each of {outputs.n_classes} classes, "
                f"but has {len(clusters)}."
            )
        return FittedClasses(clusters, self.penalty)


@final
@storable
@dataclass(frozen=True)
class FittedClasses(FittedBasis):
    """Functions of the candidate class alone."""

    clusters: tuple[int, ...]
    penalty: float

    uses_label = True
    uses_features = False
    description = "function of the label"

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return the indicators at the samples' own labels."""
        return self.design_for(outputs, outputs.require_labels("a basis of the label"))

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Return the indicators at these labels."""
        return one_hot(np.array(self.clusters)[codes], max(self.clusters) + 1)

    def penalty_rows(self, outputs: ModelOutputs) -> Floats:
        """Return the penalty of each coefficient."""
        return penalty_on(np.ones(max(self.clusters) + 1, dtype=bool), self.penalty)


def one_hot(codes: Codes, width: int) -> Floats:
    """Indicators of codes below `width`."""
    return np.equal.outer(codes, np.arange(width)).astype(np.float64)


def _texts(
    outputs: ModelOutputs, columns: tuple[str, ...], custom: CustomGroups | None
) -> list[list[str]]:
    """Groups of the samples as texts, one list for each column."""
    if custom is not None:
        groups = custom.function(outputs)
        return [texts_of(group_column(groups, "what function returns", len(outputs)))]
    for column in columns:
        if column not in outputs.groups:
            raise InputError(
                f"the outputs have no group column {column!r}; they have {list(outputs.groups)}. "
                "Pass groups= to ModelOutputs."
            )
    return [texts_of(outputs.groups[column]) for column in columns]


def _are_increasing(edges: Any) -> bool:
    rows = [np.asarray(cuts, np.float64) for cuts in edges]
    finite = all(cuts.ndim == 1 and np.isfinite(cuts).all() for cuts in rows)
    return finite and all(np.all(np.diff(cuts) > 0.0) for cuts in rows)


_Edges = Annotated[Any, Rule("must be sequences of finite, increasing numbers", _are_increasing)]


@final
@storable
@dataclass(frozen=True, init=False, repr=False)
class Bins(Partition):
    """Cells of a grid of statistics, by default of Conf and Trust (Corollary 1).

    As a function class it has an indicator of each cell: with d of them and n calibration samples,
    coverage in a cell B is at least 1 - alpha and, if scores are continuous, at most
    1 - alpha + d / ((n + 1) P(B)). ``Bins(Confidence()) + Bins(Trust())`` has coverage in
    every bin of either statistic.

    Parameters
    ----------
    *of : Statistic
        The statistics to bin, the outermost first; none means `Confidence()` and `Trust()`.
    counts : int or tuple of int
        Number of bins of each statistic.
    spacing : {"uniform", "quantile"} or tuple of these
        Equal widths between the smallest and the largest value, or equal shares.
    nested : bool
        Divide each bin of the first statistic by its own quantiles of the second (the paper's
        text), or use the same edges everywhere (the authors' code).
    edges : tuple of sequences, optional
        Inner edges, one increasing sequence per statistic. Nothing is learned then, and
        `counts`, `spacing` and `nested` have no effect. A value on an edge belongs to the bin
        above it.

    Examples
    --------
    >>> outputs = ModelOutputs(probabilities=[[0.6, 0.4], [0.9, 0.1], [1.0, 0.0]])
    >>> Bins(Confidence(), counts=2, spacing="uniform").fit(outputs).cells(outputs)
    array([0, 1, 1])
    """

    of: Statistics
    counts: Annotated[
        tuple[int, ...],
        Rule(
            "must be whole numbers, 1 or more, of at most 100,000 cells",
            lambda counts: min(counts) >= 1 and prod(counts) <= 100_000,
        ),
    ]
    spacing: Annotated[tuple[Spacing, ...], Rule('must be "uniform" or "quantile"', len)]
    nested: bool
    edges: tuple[tuple[float, ...], ...] | None

    def __init__(
        self,
        *of: Statistic,
        counts: int | tuple[int, ...] = 6,
        spacing: Spacing | tuple[Spacing, ...] = "quantile",
        nested: bool = True,
        edges: Any = None,
    ) -> None:
        of = of or (Confidence(), Trust())
        numbers = tuple(counts) if isinstance(counts, tuple | list) else (counts,) * len(of)
        spacings = tuple(spacing) if isinstance(spacing, tuple | list) else (spacing,) * len(of)
        if edges is not None:
            check_arguments(_Edges, edges=edges)
            edges = tuple(tuple(map(float, cuts)) for cuts in edges)
        lengths = (len(numbers), len(spacings)) if edges is None else (len(edges),)
        if {*lengths} != {len(of)}:
            raise InputError(
                "counts and spacing must be single values, or have one for each statistic, and "
                f"edges one sequence for each statistic; got {lengths} for {len(of)}."
            )
        vars(self).update(of=of, counts=numbers, spacing=spacings, nested=nested, edges=edges)
        check_fields(self)

    def __repr__(self) -> str:
        # Code that makes it again, as the live page shows it.
        grid = f"counts={self.counts}, spacing={self.spacing}, nested={self.nested}"
        names = ", ".join(map(repr, self.of))
        return f"Bins({names}, {grid if self.edges is None else f'edges={self.edges}'})"

    @property
    def learns(self) -> bool:
        """Edges are learned unless given by hand."""
        return self.edges is None or any(item.learns for item in self.of)

    def fit(self, outputs: ModelOutputs) -> "FittedBins":
        """Place the edges."""
        of = tuple(item.fit(outputs) for item in self.of)
        if self.edges is not None:
            return FittedBins(of, tuple(np.array([cuts]) for cuts in self.edges))
        cells = np.zeros(len(outputs), dtype=np.int64)
        n_cells, cuts = 1, []
        for item, count, spacing in zip(of, self.counts, self.spacing, strict=True):
            values = item.values(outputs)
            if self.nested and spacing == "quantile":
                cuts.append(_nested_edges(values, cells, n_cells, count))
            else:
                cuts.append(_edges(values, count, spacing)[None, :])
            cells = _descend(cells, values, cuts[-1])
            n_cells *= count
        return FittedBins(of, tuple(cuts))


@final
@storable
@dataclass(frozen=True)
class FittedBins(FittedPartition):
    """Inner edges of each statistic: one row, or a row for each cell of the statistics before."""

    of: tuple[FittedStatistic, ...]
    cuts: tuple[Floats, ...]

    def check_state(self) -> None:
        """Refuse edges of other shapes, for `storage`."""
        require(len(self.of) == len(self.cuts) > 0, "FittedBins.cuts", "must be those of each")
        n_cells = 1
        for cuts in self.cuts:
            require(cuts.ndim == 2, "FittedBins.cuts", "must have two dimensions")
            count = cuts.shape[1]
            require_numbers(cuts, "FittedBins.cuts", 1 if len(cuts) == 1 else n_cells, count)
            n_cells *= count + 1

    def cells(self, outputs: ModelOutputs) -> Codes:
        """Cell of each sample."""
        cells = np.zeros(len(outputs), dtype=np.int64)
        for item, cuts in zip(self.of, self.cuts, strict=True):
            cells = _descend(cells, item.values(outputs), cuts)
        return cells

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return int(np.prod([cuts.shape[1] + 1 for cuts in self.cuts]))

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return the indicators of all cells."""
        return one_hot(self.cells(outputs), self.n_cells)

    @property
    def description(self) -> str:
        """The functions in words."""
        names = " x ".join(item.statistic.name for item in self.of)
        return f"combination of indicators of cells of {names}"


def _descend(cells: Codes, values: Floats, cuts: Floats) -> Codes:
    """Divide each cell by the edges of one more statistic."""
    edges = cuts[cells] if cuts.shape[0] > 1 else cuts
    inner: Codes = cells * (cuts.shape[1] + 1) + np.count_nonzero(values[:, None] >= edges, axis=1)
    return inner


def _edges(values: Floats, count: int, spacing: Spacing) -> Floats:
    """Inner edges over all samples."""
    steps = np.arange(1, count) / count
    if spacing == "uniform":
        return np.asarray(values.min() + steps * (values.max() - values.min()))
    return np.asarray(np.quantile(values, steps))


def _nested_edges(values: Floats, cells: Codes, n_cells: int, count: int) -> Floats:
    """Quantiles within each cell; an empty cell gets those of all samples."""
    groups = [values[cells == cell] for cell in range(n_cells)]
    return np.array([_edges(part if part.size else values, count, "quantile") for part in groups])


def penalty_on(columns: NDArray[np.bool_], penalty: float) -> Floats:
    """Penalty rows of the coefficients of some columns; none where the penalty is 0."""
    return np.asarray(penalty * np.eye(columns.size)[columns & (penalty > 0.0)])
