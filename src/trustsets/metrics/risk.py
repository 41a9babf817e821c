"""Excess risk of the target coverage (ERT; Braun, Holzmueller, Jordan and Bach 2025).

Also the columns that it and `trustsets.auditing.find_regions` explain coverage by.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats, texts_of
from trustsets._draws import resolve_seed
from trustsets._parameters import Count, Open, check_arguments
from trustsets._progress import progress_bar
from trustsets.basis import PrincipalComponents
from trustsets.errors import InputError
from trustsets.metrics.evaluation import outcomes_of
from trustsets.metrics.inference import PERCENT, Estimate, binomial_interval, mean_estimate
from trustsets.metrics.plain import LOCAL, PlainData
from trustsets.outputs import ModelOutputs
from trustsets.sets import PredictionSets
from trustsets.statistics import Confidence, Entropy, Margin, Statistic, Trust

_STATISTICS: dict[str, Statistic] = {
    "confidence": Confidence(),
    "trust": Trust(),
    "entropy": Entropy(),
    "margin": Margin(),
}
_KINDS = (*_STATISTICS, "sizes", "groups", "predicted", "classes", "components")
# A principal component with less than this share of the spread of the first is rounding.
_NO_SPREAD = 1e-9
DEFAULT_KINDS = ("confidence", "trust", "entropy", "margin", "sizes", "groups", "components")
_COMPONENTS = 10
_FOLDS = 5
FEWEST = 50
# Small trees and small steps: a classifier that fits noise less finds more of the excess risk
# (benchmarks/ert.py has the figures for scikit-learn's own defaults).
BOOSTING = {"max_iter": 100, "max_leaf_nodes": 8, "learning_rate": 0.05}
# scikit-learn's histograms hold at most this many categories.
_MOST_CATEGORIES = 255


@final
@dataclass(frozen=True, eq=False)
class Covariate:
    """One column: its name, the kind it belongs to, and a number per sample, shape (n,).

    For categories the numbers are positions in `levels`.
    """

    name: str
    kind: str
    values: Floats
    levels: tuple[str, ...] = ()


@final
@dataclass(frozen=True, eq=False)
class ExcessRisk(PlainData):
    """How far coverage is from 1 - alpha where a classifier can tell, in percentage points.

    Attributes
    ----------
    total, under, over : Estimate
        L1 excess risk, and its halves by samples whose coverage is predicted to be below and
        above 1 - alpha. Noise floors are means over permuted outcomes.
    p_value : float
        Exact p-value of the hypothesis that misses do not depend on the inputs.
    inputs, predicted : tuple of str, array of shape (n,)
        What the classifier saw, and the coverage it predicts (not kept in JSON).
    """

    alpha: float
    level: float
    n: int
    total: Estimate
    under: Estimate
    over: Estimate
    p_value: float
    n_permutations: int
    inputs: tuple[str, ...]
    predicted: Floats | None = field(default=None, repr=False, metadata=LOCAL)

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The numbers by name."""
        return {f"excess_risk.{name}": getattr(self, name) for name in ("total", "under", "over")}


def excess_risk(
    sets: PredictionSets | Any,
    outputs: ModelOutputs,
    *,
    alpha: float | None = None,
    by: Sequence[str] | None = None,
    n_permutations: int = 19,
    level: float = 0.95,
    seed: int = 0,
) -> ExcessRisk:
    r"""Measure conditional coverage by how well a classifier predicts misses.

    Parameters
    ----------
    sets : PredictionSets, or bool array of shape (n,)
        Sets of n samples at one alpha, or whether each set contains the true class.
    outputs : ModelOutputs
        The same samples, with trust, features and groups where they are known.
    alpha : float, optional
        Miscoverage that was asked for, where `sets` is an array.
    by : sequence of str, optional
        What the classifier sees, among the names in `find_regions`. Default: all that the data
        allow but the predicted and the true class.
    n_permutations : int
        Permuted outcomes behind the noise floor and the p-value; 0 for neither.
    level : float
        Confidence level of the intervals.
    seed : int
        Random state of folds and permutations.

    Notes
    -----
    With h(x) the predicted coverage of a sample, from gradient boosting that was fitted on the
    other folds, and ``t = 1 - alpha``,

        under = 100 mean( 1[h(x) < t] (t - 1[y in C(x)]) )

    and ``over`` likewise with the signs turned around; ``total`` is their sum. The expectation of
    ``under`` is at most the true shortfall, the mean of
    ``100 max(0, t - P(Y in C(x) | x))``, so the lower end of its interval is a cautious bound of
    the true shortfall.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = 2.0 * rng.normal(size=(2000, 5))
    >>> outputs = ModelOutputs(logits=logits)
    >>> covered = rng.random(2000) < np.where(outputs.confidence > 0.8, 0.8, 0.98)
    >>> risk = excess_risk(covered, outputs, alpha=0.1, n_permutations=0)
    >>> 2.0 < risk.under.value < 6.0
    True
    """
    covered, sizes, alpha = outcomes_of(sets, outputs, alpha)
    n, target = covered.size, 1.0 - alpha
    if n < FEWEST:
        raise InputError(f"excess_risk needs at least {FEWEST} samples; got {n}.")
    check_arguments(Count, n_permutations=n_permutations)
    check_arguments(Open, level=level)
    columns = covariates(outputs, sizes, by, DEFAULT_KINDS, _COMPONENTS, np.arange(n))
    seed = resolve_seed(seed, "seed")
    folds = np.random.default_rng(seed).permutation(n) % _FOLDS
    predicted = _cross_fitted(columns, covered, folds)
    under, over = _halves(predicted, covered, target)
    floors, p_value = (math.nan, math.nan), math.nan
    if n_permutations:
        means = _permuted(columns, covered, folds, target, n_permutations, seed)
        floors = tuple(means.mean(axis=0).tolist())
        # Given the marginal coverage, each half and the total are increasing functions of one
        # another, so one p-value serves all three. Equal values count as reached, whatever the
        # rounding of their sums.
        reached = int(np.count_nonzero(means[:, 0] >= under.mean() - 1e-9))
        p_value = (1 + reached) / (1 + n_permutations)
    halves = zip((under + over, under, over), (sum(floors), *floors), strict=True)
    estimates = [mean_estimate(values, level, floor) for values, floor in halves]
    if covered.all() or not covered.any():
        # Equal outcomes have no spread, but the coverage behind them is not known exactly.
        high, low = PERCENT * (target - np.array(binomial_interval(covered.sum(), n, level)))
        ends = np.array([[max(low, -high), max(high, -low)], [low, high], [-high, -low]])
        pairs = zip(estimates, np.maximum(ends, 0.0).tolist(), strict=True)
        estimates = [replace(item, lower=first, upper=last) for item, (first, last) in pairs]
    return ExcessRisk(
        alpha=alpha,
        level=level,
        n=n,
        total=estimates[0],
        under=estimates[1],
        over=estimates[2],
        p_value=p_value,
        n_permutations=n_permutations,
        inputs=names_of(columns),
        predicted=predicted,
    )


def _halves(predicted: Floats, covered: NDArray[np.bool_], target: float) -> tuple[Floats, Floats]:
    """What each sample adds to the two halves of the excess risk, in percentage points."""
    lacking = 100.0 * (target - covered)
    under = np.where(predicted < target, lacking, 0.0)
    over = np.where(predicted > target, -lacking, 0.0)
    return under, over


def _cross_fitted(
    columns: Sequence[Covariate], covered: NDArray[np.bool_], folds: NDArray[np.int64]
) -> Floats:
    """Coverage of each sample, predicted by a classifier that saw the other folds, shape (n,)."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    table, categories = classifier_inputs(columns)
    predicted = np.empty(covered.size)
    for fold in range(_FOLDS):
        held_out, others = folds == fold, folds != fold
        if covered[others].all() or not covered[others].any():
            predicted[held_out] = covered[others].mean()
            continue
        model = HistGradientBoostingClassifier(
            **BOOSTING, early_stopping=False, categorical_features=categories, random_state=0
        )
        model.fit(table[others], covered[others])
        predicted[held_out] = model.predict_proba(table[held_out])[:, 1]
    return predicted


def classifier_inputs(columns: Sequence[Covariate]) -> tuple[Floats, list[int]]:
    """Inputs of the classifier, shape (n, p), and which of them are categories.

    Numbers are replaced by their ranks, so that infinite values stay usable. Of very many
    categories, the rarest become one.
    """
    table = np.empty((columns[0].values.size, len(columns)))
    for number, item in enumerate(columns):
        codes = np.unique(item.values, return_inverse=True)[1]
        if item.levels:
            by_count = np.argsort(-np.bincount(codes), kind="stable")
            codes = np.minimum(np.argsort(by_count)[codes], _MOST_CATEGORIES - 1)
        table[:, number] = codes
    return table, [number for number, item in enumerate(columns) if item.levels]


def _permuted(
    columns: Sequence[Covariate],
    covered: NDArray[np.bool_],
    folds: NDArray[np.int64],
    target: float,
    n_permutations: int,
    seed: int,
) -> Floats:
    """Mean halves of the excess risk of permuted outcomes, shape (n_permutations, 2)."""
    rng = np.random.default_rng([seed, 1])
    means = np.empty((n_permutations, 2))
    with progress_bar("Permuted outcomes", n_permutations) as advance:
        for turn in range(n_permutations):
            shuffled = rng.permutation(covered)
            predicted = _cross_fitted(columns, shuffled, folds)
            means[turn] = [half.mean() for half in _halves(predicted, shuffled, target)]
            advance(1)
    return means


# ---- Columns that coverage is explained by ------------------------------------------------------


def covariates(
    outputs: ModelOutputs,
    sizes: Codes | None,
    by: Sequence[str] | None,
    default: Sequence[str],
    n_components: int,
    learn: Codes,
) -> list[Covariate]:
    """Columns of the kinds in `by`, or of those among `default` that the data allow.

    Principal components are learned from the samples `learn`.
    """
    if isinstance(by, str) or not isinstance(by, Iterable | None):
        raise InputError(f"by must be a sequence of names; write by=({by!r},).")
    lacking = {
        "trust": "" if outputs.trust is not None else "trust; pass trust= to ModelOutputs",
        "sizes": "" if sizes is not None else "PredictionSets",
        "groups": "" if outputs.groups else "group columns; pass groups= to ModelOutputs",
        "classes": "" if outputs.codes is not None else "labels; pass labels= to ModelOutputs",
    }
    if outputs.features is None:
        lacking["components"] = "features; pass features= to ModelOutputs"
    columns: list[Covariate] = []
    for kind in default if by is None else by:
        if not isinstance(kind, str) or kind not in _KINDS:
            raise InputError(f"by holds {kind!r}, which is none of {', '.join(_KINDS)}.")
        missing = lacking.get(kind, "")
        if missing and by is not None:
            raise InputError(f"by asks for {kind!r}, which needs {missing}.")
        if not missing:
            columns += _columns(kind, outputs, sizes, n_components, learn)
    if not columns:
        raise InputError("by must name at least one kind of column.")
    # Conditions find their column by its name, and a group column may be called as another is.
    taken = {item.name for item in columns if item.kind != "groups"}
    names = {item.name for item in columns}
    for position, item in enumerate(columns):
        name = item.name
        while item.kind == "groups" and item.name in taken and name in names:
            name = f"group {name}"
        names.add(name)
        columns[position] = replace(item, name=name)
    return columns


def _columns(
    kind: str, outputs: ModelOutputs, sizes: Codes | None, n_components: int, learn: Codes
) -> list[Covariate]:
    """Columns of one kind, for which nothing is missing."""
    if kind in _STATISTICS:
        return [Covariate(kind, kind, _STATISTICS[kind].measure(outputs))]
    if kind == "sizes":
        return [Covariate("set size", kind, np.asarray(sizes, dtype=np.float64))]
    if kind == "groups":
        return [_categories(name, texts_of(values)) for name, values in outputs.groups.items()]
    if kind == "components":
        return _components(outputs, n_components, learn)
    levels = tuple(texts_of(outputs.classes))
    if kind == "predicted":
        codes = outputs.predicted_codes
        return [Covariate("predicted class", kind, codes.astype(np.float64), levels)]
    codes = outputs.require_labels("the true class")
    return [Covariate("true class", kind, codes.astype(np.float64), levels)]


def _categories(name: str, texts: list[str]) -> Covariate:
    levels = tuple(sorted(set(texts)))
    codes = {level: float(code) for code, level in enumerate(levels)}
    return Covariate(name, "groups", np.array([codes[text] for text in texts]), levels)


def _components(outputs: ModelOutputs, count: int, learn: Codes) -> list[Covariate]:
    """Leading principal components, learned from some samples and computed for all."""
    assert outputs.features is not None  # checked by `covariates`
    learned = outputs.features[learn]
    count = min(count, *learned.shape)
    if count < 1 or (learned == learned[0]).all():
        return []
    basis = PrincipalComponents(count).fit(outputs.take(learn))
    scores = basis.design(outputs)[:, 1:]
    spread = np.abs(scores[learn]).max(axis=0)
    return [
        Covariate(f"principal component {number + 1}", "components", scores[:, number])
        for number in np.flatnonzero(spread > _NO_SPREAD * spread[0]).tolist()
    ]


def restrict(columns: Sequence[Covariate], rows: Codes) -> list[Covariate]:
    """The same columns of some of the samples."""
    return [replace(item, values=item.values[rows]) for item in columns]


def names_of(columns: Sequence[Covariate]) -> tuple[str, ...]:
    """Names of the columns for a sentence; principal components count as one."""
    names = [item.name for item in columns if item.kind != "components"]
    if any(item.kind == "components" for item in columns):
        names.append("principal components of the features")
    return tuple(names)
