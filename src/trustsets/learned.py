"""What is learned from the scores of tuning samples: a function, and which function class to take.

1. `Learned`: quantiles of the nonconformity score, predicted by trees.
2. ``basis="auto"``: the function class with the lowest loss on held-out tuning samples.

Only tuning samples are used, so the calibration samples stay exchangeable with new ones
whatever is learned and chosen.
"""

from dataclasses import dataclass, replace
from math import comb
from typing import Annotated, Any, final

import numpy as np

from trustsets._arrays import Array, Codes, Floats
from trustsets._blocks import for_each_block, one_blas_thread
from trustsets._draws import Stream, row_uniforms
from trustsets._parameters import Count, Open, Rule, fits, whole
from trustsets.basis import (
    Basis,
    Bins,
    FittedBasis,
    FittedComponents,
    FittedSum,
    Groups,
    Intercept,
    Polynomial,
    PrincipalComponents,
    Sum,
)
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, Statistic, Trust
from trustsets.storage import require, require_numbers, storable

__all__ = ["FEWEST_TO_LEARN", "BasisChoice", "Learned", "choose_basis"]


# 1. Learned functions.

# How many of the largest probabilities a learned function sees.
_LARGEST_PROBABILITIES = 5


def _is_regressor(value: Any) -> bool:
    has_methods = value is None or (callable(value.fit) and callable(value.predict))
    return has_methods and not isinstance(value, type)


@final
@storable
@dataclass(frozen=True)
class Learned(Basis):
    """Conditional quantiles of the nonconformity score, learned from tuning samples.

    Gradient-boosted trees predict quantiles of the score from log Trust, the largest probabilities,
    their entropy and margin, and principal components of the features (those of them that the
    outputs have). The predictions and a constant are the basis functions: coverage holds over
    their linear combinations, at every alpha, however badly the learner overfits.

    Parameters
    ----------
    quantiles : float or tuple of float
        Levels of the quantiles, one function each.
    n_components : int
        Principal components that the functions see, fitted on training features where the
        predictor has a trust score. 0 leaves the features out.
    n_trees : int
        Trees of the default regressor, scikit-learn's `HistGradientBoostingRegressor`.
    n_leaves : int
        Largest number of leaves per tree.
    regressor : object, optional
        Any regressor with ``fit(X, y)`` and ``predict(X)`` instead. A copy of it learns the score
        itself. The predictor cannot be saved then.

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

    quantiles: Annotated[tuple[Open, ...], Rule("must be numbers between 0 and 1", len)] = (0.9,)
    n_components: Count = 20
    n_trees: Annotated[int, whole(1, 10_000)] = 40
    n_leaves: Annotated[int, whole(2, 10_000)] = 12
    regressor: Annotated[
        Any, Rule("must be an object with methods fit and predict", _is_regressor)
    ] = None

    def __post_init__(self) -> None:
        if fits(self.quantiles, float):
            object.__setattr__(self, "quantiles", (self.quantiles,))
        super().__post_init__()
        object.__setattr__(self, "quantiles", tuple(map(float, self.quantiles)))

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
        predictions = [np.asarray(model.predict(table)) for model in self.models]
        for column in predictions:
            fits = column.dtype.kind in "biuf" and column.shape == (len(outputs),)
            if not fits or not np.isfinite(column).all():
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

    A sample goes `left` if its column is at or below the threshold, otherwise `right`; a leaf leads
    to itself, and adds its value to the `baseline`.
    """

    roots: Codes  # (T,): first nodes of the trees; the other arrays have one entry per node.
    columns: Codes
    thresholds: Floats
    left: Codes
    right: Codes
    values: Floats
    baseline: float
    depth: int  # Steps to the deepest leaf.

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


# 2. The choice.

# More trees, leaves or quantiles of the learned function did not do better.
LEARNED = Learned()
# (degree, penalty) of polynomials in the ranks of Conf and Trust; the first did best on most data.
POLYNOMIALS = ((5, 10.0), (3, 10.0), (1, 0.0), (5, 2.0), (5, 40.0))
# Principal components beside them, and their penalty: with so large a penalty they need no rule
# for few calibration samples, because those leave their coefficients at zero.
COMPONENTS = 12
COMPONENT_PENALTY = 10.0
# Components that are fitted on tuning samples, for want of training samples, are fewer.
SAMPLES_PER_COMPONENT = 20
# With fewer tuning samples nothing is learned from their scores, and function classes without
# polynomials do not take part: folds so small favour what is simple over what all samples support.
FEWEST_TO_LEARN = 500
# Bins of each of Conf and Trust.
BINS = 6
# A candidate takes part if there are this many tuning samples for each of its columns that has no
# penalty, and for each of its polynomials.
SAMPLES_PER_COLUMN = 4
# Another candidate must beat the first by this many standard errors: with few tuning
# samples the losses differ by chance alone, and then the first is the safer choice.
NEEDED_ERRORS = 2.0
# Losses that differ by less than this share are equal: fits of constant scores differ by rounding.
ROUNDING = 1e-9
# The alpha of the pinball loss that is compared.
ALPHA = 0.1
FOLDS = 3
# At most this many tuning samples are used; more would make the choice slow, not better.
MOST_SAMPLES = 1000
# Penalty of `Groups`: coverage of a group of 100 calibration samples can be lower than 1 - alpha by
# at most 5 percentage points.
GROUP_PENALTY = 5.0
# A group column, unless of names of patients, say, has this many tuning samples per value.
FEWEST_PER_GROUP = 10


@final
@storable
@dataclass(frozen=True)
class BasisChoice:
    """What ``basis="auto"`` compared, and what it chose; `sentence` says it in words.

    Attributes
    ----------
    basis : Basis
        The chosen function class, groups included.
    candidates : tuple of str
        The function classes that were compared, groups apart, in words.
    losses, errors : arrays of shape (C,)
        Their mean pinball loss on held-out tuning samples, and standard errors of the differences
        to the first.
    chosen : int
        Which one was taken.
    groups : tuple of str
        Group columns whose indicators were added.
    n_tuning : int
    """

    basis: Basis
    candidates: tuple[str, ...]
    losses: Floats
    errors: Floats
    chosen: int
    groups: tuple[str, ...]
    n_tuning: int

    def check_state(self) -> None:
        """Refuse numbers that no comparison gives."""
        count = len(self.candidates)
        require_numbers(self.losses, "BasisChoice.losses", count)
        require_numbers(self.errors, "BasisChoice.errors", count)
        require(0 <= self.chosen < count, "BasisChoice.chosen", "must be one of the candidates")

    @property
    def sentence(self) -> str:
        """What was chosen and why, in words."""
        what = self.candidates[self.chosen]
        if len(self.candidates) == 1:
            why = "the tuning samples are too few to compare function classes"
        elif self.chosen:
            gain = self.losses[0] - self.losses[self.chosen]
            why = (
                f"its pinball loss on held-out samples, {self.losses[self.chosen]:.4g}, is "
                f"lower than that of {self.candidates[0]} by {gain:.2g} "
                f"(standard error {self.errors[self.chosen]:.2g})"
            )
        else:
            others = len(self.candidates) - 1
            why = f"none of {others} others had a clearly lower pinball loss on held-out samples"
        groups = bounded = ""
        if self.groups:
            groups = f", and indicators of the groups by {', '.join(self.groups)}"
            bounded = (
                " A group with few or no calibration samples cannot raise a threshold above the "
                "one that all samples need at alpha / 4."
            )
        cost = f" The choice was made on {self.n_tuning:,} tuning samples."
        return f"basis='auto' took {what}{groups}: {why}.{cost}{bounded}"


def choose_basis(
    tuning: ModelOutputs, scores: Floats, training: Array | None = None
) -> BasisChoice:
    """Compare function classes by cross-validation within the tuning samples.

    Trust takes part if they have it, components if they have features; these are fitted on the
    features of `training` samples, if there are any. `scores` are those of the tuning labels.
    """
    bases = _candidates(tuning, training)
    losses = _held_out_losses(bases, tuning, scores, training)
    if LEARNED in bases[0].summands and losses[:, 1].mean() <= losses[:, 0].mean():
        # What was learned does not predict better: prefer the same without it.
        bases[:2], losses[:, [0, 1]] = bases[1::-1], losses[:, [1, 0]]
    chosen, means, errors = _best(losses)
    columns = tuple(name for name in tuning.groups if _is_grouping(tuning, name))
    basis = bases[chosen]
    if columns:
        basis = basis + Groups(*columns, penalty=GROUP_PENALTY)
    return BasisChoice(
        basis=basis,
        candidates=tuple(_name(basis) for basis in bases),
        losses=means,
        errors=errors,
        chosen=chosen,
        groups=columns,
        n_tuning=len(tuning),
    )


def _candidates(tuning: ModelOutputs, training: Array | None) -> list[Basis]:
    """Function classes that the tuning samples can tell apart; constants if there are very few."""
    of: tuple[Statistic, ...] = (Confidence(transform="rank"),)
    if tuning.trust is not None:
        of = (*of, Trust(transform="rank"))
    room = len(tuning) // SAMPLES_PER_COLUMN
    polynomials = [
        Polynomial(degree, of, penalty)
        for degree, penalty in POLYNOMIALS
        if comb(degree + len(of), degree) <= room
    ]
    if not polynomials:
        return [Intercept()]
    many = len(tuning) >= FEWEST_TO_LEARN
    plain: list[Basis] = []
    if many:
        plain = [Intercept(), Bins(*[type(item)() for item in of], counts=BINS)]
    count = _component_count(tuning, training)
    if count == 0:
        return [*polynomials, *plain]
    features: Basis = PrincipalComponents(count, COMPONENT_PENALTY, source="training")
    bases = [polynomials[0] + features]
    if many:
        features = features + LEARNED
        bases.insert(0, polynomials[0] + features)
    return bases + [other + features for other in polynomials[1:]] + [polynomials[0], *plain]


def _component_count(tuning: ModelOutputs, training: Array | None) -> int:
    """Number of principal components of the features; 0 without features."""
    if tuning.features is None:
        return 0
    if training is None:
        return min(COMPONENTS, int(tuning.features.shape[1]), len(tuning) // SAMPLES_PER_COMPONENT)
    return min(COMPONENTS, *map(int, training.shape))


def _held_out_losses(
    bases: list[Basis], tuning: ModelOutputs, scores: Floats, training: Array | None
) -> Floats:
    """Pinball loss of tuning samples (rows) under fits without their fold (columns)."""
    from trustsets.engine import fit_quantiles

    if len(bases) == 1:
        return np.zeros((scores.size, 1))
    order = np.argsort(row_uniforms(0, Stream.BASIS_FOLDS, tuning.rows), kind="stable")
    compared, learned_from = order[:MOST_SAMPLES], np.arange(len(tuning))
    if LEARNED in bases[0].summands:
        # What is learned must be judged by other samples than it was learned from.
        compared = compared[: len(tuning) // 2]
        learned_from = np.sort(order[compared.size :])
    sample, sample_scores = tuning.take(compared), scores[compared]
    # Candidates share parts, and each part is fitted once.
    fitted = {
        part: part.fit_parts(
            sample, tuning.take(learned_from), scores=scores[learned_from], training=training
        )
        for part in dict.fromkeys(part for basis in bases for part in basis.summands)
    }
    designs = {part: function.design(sample) for part, function in fitted.items()}
    fold = np.arange(compared.size) % FOLDS
    losses = np.empty((compared.size, len(bases)))
    for column, basis in enumerate(bases):
        parts = basis.summands
        phi = np.hstack([designs[part] for part in parts])
        penalty = FittedSum(tuple(fitted[part] for part in parts)).penalty_rows(sample)
        for k in range(FOLDS):
            rows = np.vstack([phi[fold != k], penalty, -penalty])
            padded = np.concatenate([sample_scores[fold != k], np.zeros(2 * len(penalty))])
            with one_blas_thread:
                model = fit_quantiles(rows, padded, alpha=ALPHA)
            fit = model.thresholds(phi[fold == k], weight=0.0).values
            # A sample with a basis function that is zero in the other folds has no finite
            # threshold. It counts as one at the largest score: the set is full either way.
            fit = np.where(np.isfinite(fit), fit, scores.max())
            residual = sample_scores[fold == k] - fit
            losses[fold == k, column] = np.maximum((1.0 - ALPHA) * residual, -ALPHA * residual)
    return losses


def _best(losses: Floats) -> tuple[int, Floats, Floats]:
    """The number of the candidate to take, mean losses, standard errors of the differences."""
    means = losses.mean(axis=0)
    differences = losses - losses[:, :1]
    errors = differences.std(axis=0) / np.sqrt(len(losses))
    clear = means[0] - means > NEEDED_ERRORS * errors + ROUNDING * means[0]
    clear[0] = False
    chosen = int(np.where(clear, means, np.inf).argmin()) if clear.any() else 0
    return chosen, means, errors


def _is_grouping(tuning: ModelOutputs, name: str) -> bool:
    values = np.unique(tuning.groups[name].astype(str))
    return values.size > 1 and len(tuning) >= FEWEST_PER_GROUP * values.size


def _name(basis: Basis) -> str:
    """A function class in words."""
    match basis:
        case Sum(parts):
            return " with ".join(_name(part) for part in parts)
        case Polynomial(degree, of, penalty):
            names = " and ".join(item.name for item in of)
            suffix = f" (penalty {penalty:g})" if penalty else ""
            return f"polynomials of degree {degree} in the ranks of {names}{suffix}"
        case PrincipalComponents(n_components, penalty):
            return f"{n_components} principal components (penalty {penalty:g})"
        case Bins():
            return f"cells of {' x '.join(item.name for item in basis.of)}"
        case Learned():
            return "a learned quantile"
    return "constant functions"
