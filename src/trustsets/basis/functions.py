"""Functions of the sample: constants, polynomials, components, learned ones, your own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, final

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from trustsets._arrays import Array, Codes, Floats, floating_matrix
from trustsets._blocks import for_each_block
from trustsets._checks import check_least, check_not_negative
from trustsets._storage import require, require_numbers, storable
from trustsets.basis.base import Basis, FittedBasis, penalty_on
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, FittedStatistic, Statistic, Trust

__all__ = ["Custom", "Intercept", "Learned", "Polynomial", "PrincipalComponents"]

# Far beyond any use; a file that claims more would only take memory.
_LARGEST_DEGREE = 1000
# Numbers of the training features that principal components are computed from.
_MOST_NUMBERS = 1 << 23
# Subspace iteration: directions besides those wanted, and steps.
_MORE_DIRECTIONS = 10
_ITERATIONS = 5
# Relative to the largest: with a smaller standard deviation a component is constant.
_SMALLEST_DEVIATION = 1e-6
# How many of the largest probabilities a learned function sees.
_LARGEST_PROBABILITIES = 5


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
        if not self.of or not all(isinstance(item, Statistic) for item in self.of):
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
        degrees = np.array(self._degrees()).T
        columns = tables[0][:, degrees[0]]
        for table, powers in zip(tables[1:], degrees[1:], strict=True):
            columns *= table[:, powers]
        return np.ascontiguousarray(columns)

    def penalty_rows(self, outputs: ModelOutputs) -> Floats:
        """Return one row for each coefficient of total degree 2 or more."""
        return penalty_on(np.array([sum(degrees) > 1 for degrees in self._degrees()]), self.penalty)

    def _degrees(self) -> list[tuple[int, ...]]:
        every = product(range(self.degree + 1), repeat=len(self.of))
        return [degrees for degrees in every if sum(degrees) <= self.degree]

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
        score of the predictor holds, which costs no samples. Without a trust score both are tuning
        samples.

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
        return self.fit_features(_features(outputs))

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


def _features(outputs: ModelOutputs) -> NDArray[Any]:
    if outputs.features is None:
        raise InputError("PrincipalComponents needs features; pass features= to ModelOutputs.")
    return outputs.features


@final
@storable
@dataclass(frozen=True)
class Learned(Basis):
    """Conditional quantiles of the nonconformity score, learned from tuning samples.

    Gradient-boosted trees predict quantiles of the score from log Trust, the largest probabilities,
    their entropy and margin, and principal components of the features (those of them that the
    outputs have). The predictions and a constant are the basis functions: coverage holds over
    their linear combinations, at every alpha, however badly the learner overfits, because it saw
    other samples. Coverage conditional on the input is not guaranteed.

    Parameters
    ----------
    quantiles : float or tuple of float
        Levels of the quantiles, one function each.
    n_components : int
        Principal components that the functions see, fitted on training features where the
        predictor has a trust score. 0 leaves the features out.
    n_trees, n_leaves : int
        Size of the default regressor, scikit-learn's `HistGradientBoostingRegressor`.
    regressor : object, optional
        Any regressor with ``fit(X, y)`` and ``predict(X)`` instead. A copy of it learns the score
        itself, and `quantiles`, `n_trees` and `n_leaves` have no effect. What it predicts for a
        sample must not depend on other samples. The predictor cannot be saved then.

    References
    ----------
    S. Kiyani, G. Pappas and H. Hassani. Conformal prediction with learned features. ICML 2024.

    V. Plassier et al. Rectifying conformity scores for better conditional coverage. ICML 2025.

    Examples
    --------
    >>> from trustsets import ConditionalConformal
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 5))
    >>> labels = (logits + rng.gumbel(size=(1000, 5))).argmax(axis=1)
    >>> outputs = ModelOutputs(logits=logits, labels=labels)
    >>> basis = Polynomial(1, (Confidence(),)) + Learned(n_trees=20)
    >>> predictor = ConditionalConformal(basis=basis, tuning_fraction=0.3).calibrate(outputs)
    >>> predictor.conditions_on.design(outputs).shape
    (1000, 4)
    """

    quantiles: tuple[float, ...] = (0.9,)
    n_components: int = 20
    n_trees: int = 40
    n_leaves: int = 12
    regressor: Any = None

    def __post_init__(self) -> None:
        quantiles = np.atleast_1d(np.asarray(self.quantiles, np.float64)).tolist()
        if not quantiles or not all(0.0 < level < 1.0 for level in quantiles):
            raise InputError(f"quantiles must lie between 0 and 1; got {self.quantiles!r}.")
        object.__setattr__(self, "quantiles", tuple(quantiles))
        check_least(0, n_components=self.n_components)
        check_least(1, n_trees=self.n_trees)
        check_least(2, n_leaves=self.n_leaves)
        for method in ("fit", "predict"):
            if self.regressor is not None and not hasattr(self.regressor, method):
                raise InputError(f"regressor must have a method {method}; got {self.regressor!r}.")

    learns = True

    def fit(self, outputs: ModelOutputs) -> "FittedLearned":
        """Not possible: what is learned needs nonconformity scores."""
        raise InputError(
            "Learned needs the nonconformity scores of tuning samples; use it as basis= of "
            "ConditionalConformal."
        )

    def fit_parts(
        self, calibration: ModelOutputs, tuning: ModelOutputs, **learned_from: Any
    ) -> "FittedLearned":
        """Learn from the scores of the tuning samples."""
        scores: Floats | None = learned_from.get("scores")
        if scores is None:
            return self.fit(tuning)
        components, features = None, learned_from.get("training")
        if self.n_components > 0 and tuning.features is not None:
            features = tuning.features if features is None else features
            count = min(self.n_components, *features.shape)
            # The penalty only divides the components by their standard deviations.
            scaled = PrincipalComponents(count, penalty=1.0, source="training")
            components = scaled.fit_features(features)
        fitted = FittedLearned(tuning.trust is not None, components, ())
        table = fitted.table(tuning)
        # In an order that does not depend on that of the samples: sums in the learner round.
        order = np.lexsort((*table.T, scores))
        return replace(fitted, models=self._models(table[order], scores[order]))

    def _models(self, table: Floats, scores: Floats) -> tuple[Any, ...]:
        """Fitted regressors; the default ones as `Trees`, which can be stored."""
        from sklearn.base import clone
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        models: list[Any] = [
            HistGradientBoostingRegressor(
                loss="quantile",
                quantile=level,
                max_iter=self.n_trees,
                max_leaf_nodes=self.n_leaves,
                early_stopping=False,
                random_state=0,
            )
            for level in self.quantiles
        ]
        if self.regressor is not None:
            models = [clone(self.regressor, safe=False)]
        # So few samples gain nothing from threads, which wait for each other on a busy machine.
        with threadpool_limits(1, user_api="openmp"):
            for model in models:
                model.fit(table, scores)
        return tuple(models if self.regressor is not None else map(Trees.of, models))


@final
@storable
@dataclass(frozen=True)
class FittedLearned(FittedBasis):
    """Learned functions: `Trees`, or regressors of another kind."""

    uses_trust: bool
    components: FittedComponents | None
    models: tuple[Any, ...]

    def table(self, outputs: ModelOutputs) -> Floats:
        """What the functions see of the samples, one row each: all columns are finite."""
        n_classes = outputs.n_classes
        largest = min(_LARGEST_PROBABILITIES, n_classes)
        columns = [np.empty((len(outputs), largest + 2))]

        def fill(rows: slice) -> None:
            p = np.sort(outputs.block_probabilities(rows), axis=1)
            logs = np.log(np.maximum(p, np.finfo(float).tiny))
            entropy, margin = -(p * logs).sum(axis=1), p[:, -1] - p[:, max(0, n_classes - 2)]
            columns[0][rows] = np.column_stack([p[:, n_classes - largest :], entropy, margin])

        for_each_block(fill, len(outputs), n_classes)
        if self.uses_trust:
            columns.append(Trust(transform="log").fit(outputs).values(outputs)[:, None])
        if self.components is not None:
            columns.append(self.components.design(outputs)[:, 1:])
        return np.hstack(columns)

    @property
    def uses_features(self) -> bool:
        """For Trust, and for the components."""
        return self.uses_trust or self.components is not None

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return a column of ones and the predictions."""
        table = self.table(outputs)
        predictions = [np.asarray(model.predict(table), np.float64) for model in self.models]
        for column in predictions:
            if column.shape != (len(outputs),) or not np.isfinite(column).all():
                raise InputError("regressor must predict one finite number for each sample.")
        return np.column_stack([np.ones(len(outputs)), *predictions])

    @property
    def description(self) -> str:
        """The functions in words."""
        count = len(self.models)
        return f"linear function of {count} learned quantile{'s' if count > 1 else ''} of the score"

    def check_state(self) -> None:
        """Refuse models of another kind, for `storage`."""
        trees = len(self.models) > 0 and all(isinstance(model, Trees) for model in self.models)
        require(trees, "FittedLearned.models", "must be trees")


@final
@storable
@dataclass(frozen=True)
class Trees:
    """A sum of regression trees, all of their nodes one after the other.

    `roots` (T,) are the first nodes of the trees. At each of the N nodes a sample goes `left` if
    its column is at or below the threshold, otherwise `right`; a leaf leads to itself, and adds its
    value to the `baseline`. `depth` is the number of steps to the deepest leaf.
    """

    roots: Codes
    columns: Codes
    thresholds: Floats
    left: Codes
    right: Codes
    values: Floats
    baseline: float
    depth: int

    @classmethod
    def of(cls, model: Any) -> "Trees":
        """The trees of a fitted `HistGradientBoostingRegressor`."""
        nodes = [predictor.nodes for (predictor,) in model._predictors]
        sizes = np.array([len(part) for part in nodes])
        roots = np.cumsum(sizes) - sizes
        joined, offset = np.concatenate(nodes), np.repeat(roots, sizes)
        leaf = joined["is_leaf"].astype(bool)
        here = np.arange(len(joined))
        return cls(
            roots=roots,
            columns=np.where(leaf, 0, joined["feature_idx"]),
            thresholds=np.where(leaf, 0.0, joined["num_threshold"]),
            left=np.where(leaf, here, joined["left"] + offset),
            right=np.where(leaf, here, joined["right"] + offset),
            values=np.where(leaf, joined["value"], 0.0),
            baseline=float(model._baseline_prediction.item()),
            depth=int(joined["depth"].max()),
        )

    def check_state(self) -> None:
        """Refuse nodes that lead outside of the arrays."""
        require_numbers(self.roots, "Trees.roots", None)
        require_numbers(self.thresholds, "Trees.thresholds", None)
        count = len(self.thresholds)
        for name in ("values", "columns", "left", "right"):
            require_numbers(getattr(self, name), f"Trees.{name}", count)
        for name in ("roots", "left", "right"):
            nodes = getattr(self, name)
            inside = nodes.dtype.kind == "i" and 0 <= nodes.min() and nodes.max() < count
            require(inside, f"Trees.{name}", "must be nodes")
        require(self.columns.min() >= 0, "Trees.columns", "must not be negative")
        require(0 <= self.depth < count, "Trees.depth", "must be less than the nodes")
        require(np.isfinite(self.baseline), "Trees.baseline", "must be finite")

    def predict(self, table: Floats) -> Floats:
        """Predictions of the rows of a table, bitwise those of the regressor."""
        result = np.empty(len(table))

        def fill(rows: slice) -> None:
            part = table[rows]
            index = np.arange(len(part))[:, None]
            node = np.broadcast_to(self.roots, (len(part), self.roots.size))
            for _ in range(self.depth):
                below = part[index, self.columns[node]] <= self.thresholds[node]
                node = np.where(below, self.left[node], self.right[node])
            # One tree after the other, as the regressor adds them: other orders round differently.
            terms = self.values[node]
            terms[:, 0] += self.baseline
            result[rows] = np.cumsum(terms, axis=1)[:, -1]

        for_each_block(fill, len(table), 4 * self.roots.size)
        return result


@final
@storable
@dataclass(frozen=True)
class Custom(Basis, FittedBasis):
    """Any functions: `function` maps `ModelOutputs` to an array of shape (n, p).

    Include a constant (or add `Intercept()`) to keep marginal coverage. The row of a sample
    must depend on that sample alone. A predictor that uses it is saved with the *name* of the
    function, ``module:function``, so the function must be defined at the top of a module, which
    must be imported before the file is loaded.

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

    def class_cells(self, n_classes: int) -> Codes:
        """Every class may have its own function."""
        return np.arange(n_classes) if self.of_label else super().class_cells(n_classes)

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
