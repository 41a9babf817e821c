"""Excess risk of the target coverage (ERT; Braun, Holzmueller, Jordan and Bach 2025)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Floats
from trustsets._checks import check_least, check_open
from trustsets._frames import Flavour
from trustsets._plain import LOCAL, PlainData
from trustsets._progress import progress_bar
from trustsets.errors import InputError
from trustsets.metrics.covariates import Covariate, covariates, names_of
from trustsets.metrics.evaluation import estimates_frame, outcomes_of
from trustsets.metrics.inference import Estimate, level_text, mean_estimate, share_estimate
from trustsets.outputs import ModelOutputs
from trustsets.sets import PredictionSets

DEFAULT_KINDS = ("confidence", "trust", "entropy", "margin", "sizes", "groups", "components")
_FOLDS = 5
FEWEST = 50
# Small trees and small steps: a classifier that fits noise less finds more of the excess risk
# (benchmarks/ert.py has the figures for scikit-learn's own defaults).
BOOSTING = {"max_iter": 100, "max_leaf_nodes": 8, "learning_rate": 0.05}
# scikit-learn's histograms hold at most this many categories.
_MOST_CATEGORIES = 255


@final
@dataclass(frozen=True, eq=False)
class ExcessRisk(PlainData):
    """How far coverage is from 1 - alpha where a classifier can tell, in percentage points.

    Attributes
    ----------
    total, under, over : Estimate
        L1 excess risk, and its halves by samples whose coverage is predicted to be below and
        above 1 - alpha. Noise floors are means over permuted outcomes.
    flagged, flagged_coverage : Estimate
        Share of the samples predicted to be below 1 - alpha, and their coverage.
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
    flagged: Estimate
    flagged_coverage: Estimate
    p_value: float
    n_permutations: int
    inputs: tuple[str, ...]
    predicted: Floats | None = field(default=None, repr=False, metadata=LOCAL)

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The numbers by name."""
        names = ("total", "under", "over", "flagged", "flagged_coverage")
        return {f"excess_risk.{name}": getattr(self, name) for name in names}

    def summary(self) -> str:
        """The result in plain words."""
        under, flagged = self.under, self.flagged_coverage
        text = (
            f"From {', '.join(self.inputs)}, a classifier predicts which sets miss the true class. "
            f"It expects less than {1.0 - self.alpha:.4g} coverage for {self.flagged.value:.1%} of "
            "the samples"
        )
        if self.flagged.value > 0.0:
            text += f", and {flagged.value:.1%} of their sets contain the true class"
        text += (
            f". Averaged over all samples, the estimated shortfall of coverage is "
            f"{under.value:.2f} points ({level_text(self.level)} interval {under.lower:.2f} to "
            f"{under.upper:.2f}); a better classifier may find more."
        )
        if self.n_permutations:
            text += (
                f" Misses that do not depend on the samples would give {under.floor:.2f} "
                f"(p = {self.p_value:.3g})."
            )
        return text

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row per number: value, interval, noise floor."""
        return estimates_frame(self.metrics, flavour)


def excess_risk(
    sets: PredictionSets | Any,
    outputs: ModelOutputs,
    *,
    alpha: float | None = None,
    by: Sequence[str] | None = None,
    n_components: int = 10,
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
        The same samples; with trust, with features for principal components, groups for groups.
    alpha : float, optional
        Miscoverage that was asked for, where `sets` is an array.
    by : sequence of str, optional
        What the classifier sees, among the names in `find_regions`. Default: all that the data
        allow but the predicted and the true class. The true class is not known when predicting;
        with it, class-conditional coverage is measured too.
    n_components : int
        Principal components of the features that the classifier sees.
    n_permutations : int
        Permuted outcomes behind the noise floor and the p-value; 0 for neither.
    level, seed
        Confidence level of the intervals; random state of folds and permutations.

    Notes
    -----
    With :math:`h(x)` the predicted coverage of a sample, from gradient boosting that was fitted
    on the other folds, and :math:`t = 1 - \alpha`,

    .. math:: under = 100 \, mean \{ 1[h(x) < t] (t - 1[y \in C(x)]) \}

    and ``over`` likewise with the signs turned around; ``total`` is their sum. The expectation of
    ``under`` is at most the true shortfall, the mean of :math:`100 \max(0, t - P(Y \in C(x) \mid
    x))`, and equals it for the right h. Intervals are normal ones of these means, for the
    classifier as fitted: the lower end is a cautious bound of the true shortfall.

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
    check_least(0, n_permutations=n_permutations)
    check_open(level=level)
    columns = covariates(outputs, sizes, by, DEFAULT_KINDS, n_components, np.arange(n))
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
    below = predicted < target
    return ExcessRisk(
        alpha=alpha,
        level=level,
        n=n,
        total=mean_estimate(under + over, level, sum(floors)),
        under=mean_estimate(under, level, floors[0]),
        over=mean_estimate(over, level, floors[1]),
        flagged=share_estimate(int(below.sum()), below.size, level),
        flagged_coverage=share_estimate(int(covered[below].sum()), int(below.sum()), level, target),
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
