"""Summaries of set sizes, of true conditional coverage, and of Trust against Rank."""

from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from scipy import stats

from trustsets._common.arrays import Floats, floating_matrix
from trustsets._common.blocks import for_each_block
from trustsets.errors import InputError
from trustsets.metrics.inference import PERCENT, Estimate, Ints, mean_estimate, share_estimate
from trustsets.sets import PredictionSets

__all__ = [
    "ConditionalSummary",
    "Correlation",
    "SizeSummary",
    "conditional_coverage",
    "correlate",
    "summarise_sizes",
]

_ROUNDING = 1e-9


@final
@dataclass(frozen=True)
class SizeSummary:
    """Distribution of the sizes of n prediction sets.

    Attributes
    ----------
    mean, standard_error, median : float
        Mean size, its standard error ``sd / sqrt(n)``, and the median.
    empty, full : int
        Number of empty sets, and of full sets.
    values, counts : int arrays of shape (S,)
        The histogram: the sizes that occur, increasing, and how often.
    """

    mean: float
    standard_error: float
    median: float
    empty: int
    full: int
    values: Ints
    counts: Ints

    def metrics(self, level: float) -> dict[str, Estimate]:
        """The numbers by their names in ``Evaluation.metrics``, with intervals."""
        half = float(stats.norm.ppf(0.5 + level / 2.0)) * self.standard_error
        n = int(self.counts.sum())
        return {
            "size": Estimate(self.mean, self.mean - half, self.mean + half),
            "size_median": Estimate(self.median),
            "empty": share_estimate(self.empty, n, level),
            "full": share_estimate(self.full, n, level),
        }


def summarise_sizes(sizes: Ints, n_classes: int) -> SizeSummary:
    """Mean, spread and histogram of set sizes.

    Examples
    --------
    >>> summary = summarise_sizes(np.array([0, 1, 1, 3]), n_classes=3)
    >>> summary.mean, summary.median, summary.empty, summary.full
    (1.25, 1.0, 1, 1)
    """
    values, counts = np.unique(sizes, return_counts=True)
    spread = float(sizes.std(ddof=1)) if sizes.size > 1 else float("nan")
    return SizeSummary(
        mean=float(sizes.mean()),
        standard_error=spread / float(np.sqrt(sizes.size)),
        median=float(np.median(sizes)),
        empty=int(np.count_nonzero(sizes == 0)),
        full=int(np.count_nonzero(sizes == n_classes)),
        values=values.astype(np.int64),
        counts=counts.astype(np.int64),
    )


@final
@dataclass(frozen=True)
class Correlation:
    """Pearson and Spearman correlation with two-sided p-values; NaN where undefined."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The numbers by their names in ``Evaluation.metrics``."""
        return {"pearson": Estimate(self.pearson), "spearman": Estimate(self.spearman)}


def correlate(trust: Floats, rank: Ints) -> Correlation:
    """Correlation of Trust and Rank, both of shape (n,), as in the paper's appendix C.3.

    A constant input has no correlation. With infinite Trust, Spearman's correlation is
    defined, as it needs only the order, and Pearson's is not.

    Examples
    --------
    >>> found = correlate(np.array([3.0, 2.0, 1.0, 0.5]), np.array([1, 1, 2, 9]))
    >>> round(found.pearson, 3), round(found.spearman, 3)
    (-0.749, -0.949)
    """
    undefined = (float("nan"), float("nan"))
    if trust.size < 3 or np.ptp(rank) == 0 or (trust == trust[0]).all():
        return Correlation(*undefined, *undefined)
    spearman = stats.spearmanr(trust, rank)
    pearson = undefined
    if np.isfinite(trust).all():
        found = stats.pearsonr(trust, rank)
        pearson = (float(found.statistic), float(found.pvalue))
    return Correlation(*pearson, float(spearman.statistic), float(spearman.pvalue))


@final
@dataclass(frozen=True, eq=False)
class ConditionalSummary:
    """Distribution over samples of the true conditional coverage.

    Attributes
    ----------
    mean : Estimate
        Mean true coverage: marginal coverage without the noise of the labels.
    gap, shortfall, excess : Estimate
        ``100 mean |c(x) - (1 - alpha)|`` and its halves; the floor is 0, as no label is drawn.
    below : Estimate
        Share of samples whose true coverage is under 1 - alpha.
    """

    mean: Estimate
    gap: Estimate
    shortfall: Estimate
    excess: Estimate
    below: Estimate

    @classmethod
    def of(cls, coverage: Floats, alpha: float, level: float) -> Self:
        """Summarise the true coverage of each sample, shape (n,)."""
        # A sum of probabilities that equals 1 - alpha up to rounding is no shortfall.
        away = coverage - (1.0 - alpha)
        away = np.where(np.abs(away) < _ROUNDING, 0.0, away)
        return cls(
            mean=mean_estimate(coverage, level, floor=1.0 - alpha),
            gap=mean_estimate(PERCENT * np.abs(away), level, floor=0.0),
            shortfall=mean_estimate(PERCENT * np.maximum(-away, 0.0), level, floor=0.0),
            excess=mean_estimate(PERCENT * np.maximum(away, 0.0), level, floor=0.0),
            below=share_estimate(int(np.count_nonzero(away < 0.0)), away.size, level),
        )

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The numbers by their names in ``Evaluation.metrics``."""
        parts = ("mean", "gap", "shortfall", "excess", "below")
        return {f"conditional.{part}": getattr(self, part) for part in parts}


def conditional_coverage(sets: PredictionSets, label_probabilities: Any) -> Floats:
    """True coverage of each set where P(y | x) is known: its probability mass, shape (m,).

    Parameters
    ----------
    sets : PredictionSets
        Sets of m samples at one alpha.
    label_probabilities : array of shape (m, K)
        True label probabilities, from a simulation or from many human labels per sample.

    Examples
    --------
    >>> sets = PredictionSets(
    ...     mask=np.array([[True, False], [True, True]]), thresholds=np.zeros(2),
    ...     status=np.zeros(2, dtype=np.int8), alpha=0.1, classes=np.arange(2),
    ... )
    >>> conditional_coverage(sets, [[0.7, 0.3], [0.5, 0.5]]).tolist()
    [0.7, 1.0]
    """
    truth = floating_matrix(label_probabilities, "label_probabilities")
    if truth.shape != sets.mask.shape:
        raise InputError(
            f"label_probabilities must have shape {sets.mask.shape}, one row per set and one "
            f"column per class; got {truth.shape}."
        )
    result = np.empty(len(sets))

    def fill(block: slice) -> None:
        result[block] = np.where(sets.mask[block], truth[block], 0.0).sum(axis=1)

    for_each_block(fill, *truth.shape)
    return result
