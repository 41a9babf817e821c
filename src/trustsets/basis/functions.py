"""Function classes that are not indicators: constants, polynomials, components, your own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import comb
from typing import Any, Literal, final

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from trustsets._arrays import Array, Codes, Floats, floating_matrix
from trustsets._blocks import for_each_block
from trustsets._checks import check_not_negative
from trustsets._storage import require, require_numbers, storable
from trustsets.basis.base import Basis, FittedBasis
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, FittedStatistic, Statistic, Trust

__all__ = ["Custom", "Intercept", "Polynomial", "PrincipalComponents"]

# Far beyond any use; a file that claims more would only take memory.
_LARGEST_DEGREE = 1000
# Numbers of the training features that principal components are computed from.
_MOST_NUMBERS = 1 << 23
# Subspace iteration: directions besides those wanted, and steps.
_MORE_DIRECTIONS = 10
_ITERATIONS = 5
# Relative to the largest: with a smaller standard deviation a component is constant.
_SMALLEST_DEVIATION = 1e-6


@final
@storable
@dataclass(frozen=True)
class Intercept(Basis, FittedBasis):
    """Constant functions only: marginal coverage, as in `StandardConformal`.

    Examples
    --------
    >>> outputs = ModelOutputs(logits=[[0.0, 1.0], [1.0, 0.0]])
    >>> Intercept().fit(outputs).design(outputs)
    array([[1.],
           [1.]])
    """

    learns = False
    width = 1
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
    products of Chebyshev polynomials of the statistics, shifted and scaled to [-1, 1]:
    the same functions, hence the same sets, without the loss of digits that powers bring.

    Parameters
    ----------
    degree : int
        Largest total degree; with two statistics there are (d + 1)(d + 2) / 2 columns.
    of : tuple of Statistic
        The variables of the polynomials.
    penalty : float
        The fit minimises ``sum of losses + penalty * sum |coefficient|`` over the coefficients
        of total degree 2 or more (the lasso of quantile regression). The penalty is in units
        of calibration samples. Curvature that only few samples support is then left out, and
        with it the extreme thresholds of polynomials where samples are rare. Linear functions
        have no penalty and an exact guarantee; that of a function with other coefficients
        holds up to ``penalty * sum |coefficient| / (n + 1)``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> outputs = (ModelOutputs(logits=rng.normal(size=(10, 3))))
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
        if not self.of or not all(isinstance(item, Statistic) for item in self.of):
            raise InputError(f"of must be a non-empty tuple of statistics; got {self.of!r}.")

    @property
    def learns(self) -> bool:
        """Whether a transform learns; shifting and scaling do not change the span."""
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
        require(0.0 <= self.penalty < np.inf, "FittedPolynomial.penalty", "must not be negative")

    @property
    def width(self) -> int:
        """Monomials up to the degree."""
        return comb(self.degree + len(self.of), self.degree)

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return one column for each combination of degrees."""
        return self._columns(
            [self._scaled(item.values(outputs), index) for index, item in enumerate(self.of)]
        )

    def _columns(self, scaled: Sequence[Floats]) -> Floats:
        """Products of Chebyshev polynomials of the scaled statistics."""
        tables = [chebyshev.chebvander(values, self.degree) for values in scaled]
        degrees = np.array(self._degrees()).T
        columns = tables[0][:, degrees[0]]
        for table, powers in zip(tables[1:], degrees[1:], strict=True):
            columns *= table[:, powers]
        return np.ascontiguousarray(columns)

    def penalty_rows(self, outputs: ModelOutputs | None) -> Floats:
        """Return one row for each coefficient of total degree 2 or more."""
        total = np.array([sum(degrees) for degrees in self._degrees()])
        rows = self.penalty * np.eye(total.size)
        return rows[total > 1] if self.penalty > 0.0 else rows[:0]

    def _degrees(self) -> list[tuple[int, ...]]:
        every = product(range(self.degree + 1), repeat=len(self.of))
        return [degrees for degrees in every if sum(degrees) <= self.degree]

    def _scaled(self, values: Floats, index: int) -> NDArray[np.float64]:
        low, high = self.low[index], self.high[index]
        return np.asarray((2.0 * values - (low + high)) / (high - low))

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
        What a unit of each coefficient costs in the fit, in calibration samples, as in
        `Polynomial`. Components are divided by their standard deviations where it is positive.
        Coverage weighted by a linear function then holds up to ``penalty * sum |coefficient| /
        (n + 1)``, and components that predict nothing do not enlarge the sets.
    source : {"tuning", "training"}
        Where the directions come from: tuning samples, or the training features that the trust
        score of the predictor holds, which costs no samples. Without a trust score both are tuning
        samples, and then there are fewer components where the tuning samples cannot give as many.

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
        if self.n_components != int(self.n_components) or self.n_components < 1:
            raise InputError(f"n_components must be 1 or more; got {self.n_components}.")
        if self.source not in ("tuning", "training"):
            raise InputError(f'source takes "tuning" or "training"; got {self.source!r}.')

    learns = True

    def fit(self, outputs: ModelOutputs) -> "FittedComponents":
        """Find the directions of largest variance of the features."""
        return self.fit_features(_features(outputs))

    def fit_parts(
        self,
        calibration: ModelOutputs,
        tuning: ModelOutputs,
        *,
        scores: Floats | None = None,
        training: Array | None = None,
    ) -> "FittedComponents":
        """Fit on the tuning samples, or on training features if there are any."""
        if self.source == "training" and training is not None:
            return self.fit_features(training)
        return self.fit(tuning)

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
            directions = (
                np.where(varies, 1.0 / np.where(varies, deviations, 1.0), 0.0)[:, None] * directions
            )
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
        require(0.0 <= self.penalty < np.inf, "FittedComponents.penalty", "must not be negative")

    @property
    def width(self) -> int:
        """The components, and a constant."""
        return 1 + len(self.directions)

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return a column of ones and the components."""
        features = _features(outputs)
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

    def penalty_rows(self, outputs: ModelOutputs | None) -> Floats:
        """Return one row for each component."""
        rows = self.penalty * np.eye(self.width)[1:]
        return rows if self.penalty > 0.0 else rows[:0]

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


def _leading_directions(features: Array, count: int) -> tuple[Floats, Floats, Floats]:
    """The same from at most `_MOST_NUMBERS` numbers, by subspace iteration.

    Any directions will do for a function class, and these take a second where an exact
    decomposition of many wide features takes minutes.
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


def _features(outputs: ModelOutputs) -> NDArray[Any]:
    if outputs.features is None:
        raise InputError("PrincipalComponents needs features; pass features= to ModelOutputs.")
    return outputs.features


@final
@storable
@dataclass(frozen=True)
class Custom(Basis, FittedBasis):
    """Any functions: `function` maps `ModelOutputs` to an array of shape (n, p).

    Include a constant (or add `Intercept()`) to keep marginal coverage. The row of a sample
    must depend on that sample alone. A predictor that uses it is saved with the *name* of the
    function, ``module:function``, so the function must be defined at the top of a module.
    Loading a file never imports a module: import it before you load.

    With ``of_label=True`` the functions depend on the candidate label, too: `function` maps
    `ModelOutputs` and the codes of one label for each sample to the array, and every class has
    thresholds of its own. It could return the rank of the label, or the distance to the training
    samples of its class.

    Examples
    --------
    >>> basis = Custom(lambda outputs: outputs.confidence[:, None]) + Intercept()
    >>> outputs = ModelOutputs(probabilities=[[0.75, 0.25]], labels=[1])
    >>> basis.fit(outputs).design(outputs)
    array([[0.75, 1.  ]])
    >>> def of_top(outputs, codes):
    ...     return (codes == outputs.predicted_codes)[:, None]
    >>> Custom(of_top, of_label=True).design(outputs)
    array([[0.]])
    """

    learns = False

    function: Callable[..., Any]
    name: str = "combination of your own functions"
    of_label: bool = False

    @property
    def uses_label(self) -> bool:
        """Whether the function is given labels."""
        return self.of_label

    @property
    def is_additive(self) -> bool:
        """A function of sample and label may be anything."""
        return not self.of_label

    def class_cells(self, n_classes: int) -> Codes:
        """Every class may have its own function."""
        return np.arange(n_classes) if self.of_label else super().class_cells(n_classes)

    def fit(self, outputs: ModelOutputs) -> "Custom":
        """Return itself."""
        return self

    def design(self, outputs: ModelOutputs) -> Floats:
        """Call the function, with the samples' own labels where it is given some."""
        if self.of_label:
            return self.design_for(outputs, outputs.require_labels("a basis of the label"))
        return self._checked(outputs, self.function(outputs))

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Call the function with these labels."""
        if not self.of_label:
            return self.design(outputs)
        return self._checked(outputs, self.function(outputs, codes))

    def _checked(self, outputs: ModelOutputs, returned: Any) -> Floats:
        columns = floating_matrix(returned, "what function returns")
        if columns.shape[0] != len(outputs):
            raise InputError(
                f"function must return one row per sample; got {columns.shape[0]} rows for "
                f"{len(outputs)} samples."
            )
        return columns.astype(np.float64)

    @property
    def description(self) -> str:
        """The functions in words."""
        return self.name
