"""`Learned`: functions that were learned from tuning samples, as part of a function class.

Trees are stored as arrays and evaluated here, so that a saved predictor needs neither pickle nor
the version of scikit-learn that it was fitted with.
"""

from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np

from trustsets._arrays import Array, Codes, Floats
from trustsets._blocks import for_each_block
from trustsets._storage import require, require_numbers, storable
from trustsets.basis.base import Basis, FittedBasis
from trustsets.basis.functions import FittedComponents, PrincipalComponents
from trustsets.errors import InputError, StorageError
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Trust

__all__ = ["FittedLearned", "Learned", "Trees"]

# How many of the largest probabilities a function sees.
_LARGEST_PROBABILITIES = 5


@final
@storable
@dataclass(frozen=True)
class Learned(Basis):
    """Conditional quantiles of the nonconformity score, learned from tuning samples.

    Gradient-boosted trees predict quantiles of the score from log Trust, the largest probabilities,
    their entropy and margin, and principal components of the features (those of them that the
    outputs have). The predictions and a constant are the basis functions: coverage holds over
    their linear combinations, at every alpha. Because the functions were learned from other
    samples, the calibration samples stay exchangeable with new ones, however badly the learner
    overfits; a useless function costs no coverage, only the tuning samples. Coverage conditional
    on the input is not guaranteed.

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
        Any regressor with ``fit(X, y)`` and ``predict(X)`` instead, such as one of scikit-learn. It
        is copied, and learns the score itself; the row of a sample must not depend on other
        rows. `quantiles`, `n_trees` and `n_leaves` have no effect then. A predictor can be saved if
        it is a `HistGradientBoostingRegressor`.

    Notes
    -----
    Kiyani, Pappas and Hassani (2024) and Plassier et al. (2025) learn where scores differ too. They
    adjust the score or its level by what they learned, and guarantee marginal coverage. Here a
    learned function is part of the function class of Gibbs, Cherian and Candès (2023), and the
    coverage guarantee extends to it.

    References
    ----------
    S. Kiyani, G. Pappas and H. Hassani. Conformal prediction with learned features. ICML 2024.

    V. Plassier et al. Rectifying conformity scores for better conditional coverage. ICML 2025.

    Examples
    --------
    >>> from trustsets import ConditionalConformal, Confidence, Polynomial
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 5))
    >>> labels = (logits + rng.gumbel(size=(1000, 5))).argmax(axis=1)
    >>> outputs = ModelOutputs(logits=logits, labels=labels)
    >>> basis = Polynomial(1, (Confidence(),)) + Learned(n_trees=20)
    >>> predictor = ConditionalConformal(basis=basis, tuning_fraction=0.3).calibrate(outputs)
    >>> predictor.conditions_on.width
    4
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
        for name, least in (("n_components", 0), ("n_trees", 1), ("n_leaves", 2)):
            value = getattr(self, name)
            if value != int(value) or value < least:
                raise InputError(f"{name} must be a whole number, {least} or more; got {value!r}.")
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
        self,
        calibration: ModelOutputs,
        tuning: ModelOutputs,
        *,
        scores: Floats | None = None,
        training: Array | None = None,
    ) -> "FittedLearned":
        """Learn from the scores of the tuning samples."""
        if scores is None:
            return self.fit(tuning)
        inputs = _Inputs(
            n_largest=min(_LARGEST_PROBABILITIES, tuning.n_classes),
            uses_trust=tuning.trust is not None,
            components=self._components(tuning, training),
        )
        table = inputs.table(tuning)
        # In an order that does not depend on that of the samples: sums in the learner round.
        order = np.lexsort((*table.T, scores))
        models = tuple(_learned(model, table[order], scores[order]) for model in self._regressors())
        return FittedLearned(inputs, models)

    def _components(self, tuning: ModelOutputs, training: Array | None) -> FittedComponents | None:
        if self.n_components == 0 or tuning.features is None:
            return None
        source = tuning.features if training is None else training
        count = min(self.n_components, *source.shape)
        # The penalty only divides the components by their standard deviations.
        return PrincipalComponents(count, penalty=1.0, source="training").fit_features(source)

    def _regressors(self) -> list[Any]:
        from sklearn.base import clone
        from sklearn.ensemble import HistGradientBoostingRegressor

        if self.regressor is not None:
            return [clone(self.regressor, safe=False)]
        return [
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

    def to_state(self) -> dict[str, Any]:
        """What `from_state` needs; of a regressor, its parameters."""
        state = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.regressor is not None:
            _require_boosting(self.regressor)
            state["regressor"] = self.regressor.get_params()
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Learned":
        """Rebuild from `to_state`."""
        if state["regressor"] is not None:
            from sklearn.ensemble import HistGradientBoostingRegressor

            state["regressor"] = HistGradientBoostingRegressor(**state["regressor"])
        return cls(**state)


@final
@storable
@dataclass(frozen=True)
class _Inputs:
    """What a learned function sees of a sample."""

    n_largest: int
    uses_trust: bool
    components: FittedComponents | None

    def table(self, outputs: ModelOutputs) -> Floats:
        """One row per sample: all columns are finite."""
        largest, n_classes = self.n_largest, outputs.n_classes
        of_probabilities = np.empty((len(outputs), largest + 2))

        def fill(rows: slice) -> None:
            p = np.sort(outputs.block_probabilities(rows), axis=1)
            logs = np.log(np.maximum(p, np.finfo(float).tiny))
            of_probabilities[rows, :largest] = p[:, n_classes - largest :]
            of_probabilities[rows, largest] = -(p * logs).sum(axis=1)
            of_probabilities[rows, largest + 1] = p[:, -1] - p[:, max(0, n_classes - 2)]

        for_each_block(fill, len(outputs), n_classes)
        columns = [of_probabilities]
        if self.uses_trust:
            columns.append(Trust(transform="log").fit(outputs).values(outputs)[:, None])
        if self.components is not None:
            columns.append(self.components.design(outputs)[:, 1:])
        return np.hstack(columns)


@final
@storable
@dataclass(frozen=True)
class FittedLearned(FittedBasis):
    """Learned functions: `Trees`, or regressors of another kind."""

    inputs: _Inputs
    models: tuple[Any, ...]

    @property
    def width(self) -> int:
        """The functions, and a constant."""
        return 1 + len(self.models)

    @property
    def uses_features(self) -> bool:
        """For Trust, and for the components."""
        return self.inputs.uses_trust or self.inputs.components is not None

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return a column of ones and the predictions."""
        table = self.inputs.table(outputs)
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

    def to_state(self) -> dict[str, Any]:
        """What `from_state` needs."""
        for model in self.models:
            if not isinstance(model, Trees):
                _require_boosting(model)
        return {"inputs": self.inputs, "models": self.models}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "FittedLearned":
        """Rebuild from `to_state`."""
        return cls(**state)

    def check_state(self) -> None:
        """Refuse models of another kind, for `storage`."""
        trees = len(self.models) > 0 and all(isinstance(model, Trees) for model in self.models)
        require(trees, "FittedLearned.models", "must be trees")


@final
@storable
@dataclass(frozen=True)
class Trees:
    """A sum of regression trees, all of their nodes one after the other.

    Attributes
    ----------
    roots : int array of shape (T,)
        First node of each tree.
    columns, thresholds, left, right : arrays of shape (N,)
        A sample goes to `left` if its column is at or below the threshold, otherwise to `right`. A
        leaf leads to itself.
    values : array of shape (N,)
        What a leaf adds.
    baseline : float
        What the sum starts with.
    depth : int
        Steps from a root to the deepest leaf.
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
        require_numbers(self.thresholds, "Trees.thresholds", None)
        count = len(self.thresholds)
        require_numbers(self.values, "Trees.values", count)
        require_numbers(self.roots, "Trees.roots", None)
        for name in ("roots", "left", "right"):
            nodes = getattr(self, name)
            require_numbers(nodes, f"Trees.{name}", len(self.roots) if name == "roots" else count)
            inside = nodes.dtype.kind == "i" and 0 <= nodes.min() and nodes.max() < count
            require(inside, f"Trees.{name}", "must be nodes")
        require_numbers(self.columns, "Trees.columns", count)
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


def _learned(model: Any, table: Floats, scores: Floats) -> Any:
    """A fitted regressor, as `Trees` if it is made of trees that they can stand for."""
    from threadpoolctl import threadpool_limits

    # So few samples gain nothing from threads, and on a busy machine threads wait for each other.
    with threadpool_limits(1, user_api="openmp"):
        model.fit(table, scores)
    return Trees.of(model) if _is_boosting(model) else model


def _is_boosting(model: Any) -> bool:
    """Whether predictions are the plain sum of trees without categories."""
    is_known = type(model).__name__ == "HistGradientBoostingRegressor"
    plain = is_known and model.loss not in ("poisson", "gamma")
    return plain and type(model).__module__.startswith("sklearn.")


def _require_boosting(model: Any) -> None:
    if not _is_boosting(model):
        raise StorageError(
            f"functions that a {type(model).__name__} learned cannot be saved; use Learned() with "
            "the default regressor, or with a HistGradientBoostingRegressor."
        )
