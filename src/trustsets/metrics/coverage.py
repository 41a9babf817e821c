"""What was observed: coverage gaps, set sizes, correlation. Plain numbers, no error bars.

Imports errors only; `inference` says how far chance alone could have moved these numbers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats

__all__ = ["Correlation", "SizeSummary", "correlate", "gap_halves", "summarise_sizes"]

Ints = NDArray[np.int64]

PERCENT = 100.0
_SIZE_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def gap_halves(
    count: Ints, covered: Ints, alpha: float, divisor: int | None = None
) -> tuple[Floats, Floats]:
    """Shortfall and excess of coverage in percent; together they are CovGap.

    With c_b the share of covered samples of bin b, averaged over the non-empty bins,

        shortfall = 100 mean max(0, 1 - alpha - c_b)
        excess    = 100 mean max(0, c_b - (1 - alpha))
        CovGap    = 100 mean |c_b - (1 - alpha)| = shortfall + excess

    Parameters
    ----------
    count, covered : int arrays of shape (..., B)
        Samples, and covered samples, of each bin; leading axes are separate tables.
    alpha : float
        Allowed miscoverage.
    divisor : int, optional
        Divide the sums by this number instead of the number of non-empty bins; the paper
        divides the class gap by the number of classes K, present or not.

    Examples
    --------
    >>> shortfall, excess = gap_halves(np.array([10, 4, 0]), np.array([8, 4, 0]), alpha=0.1)
    >>> round(float(shortfall), 6), round(float(excess), 6)
    (5.0, 5.0)
    """
    present = count > 0
    share = covered / np.maximum(count, 1)
    gap = np.where(present, share - (1.0 - alpha), 0.0)
    bins = np.maximum(np.count_nonzero(present, axis=-1), 1) if divisor is None else divisor
    shortfall = PERCENT * np.maximum(-gap, 0.0).sum(axis=-1) / bins
    excess = PERCENT * np.maximum(gap, 0.0).sum(axis=-1) / bins
    return shortfall, excess


@dataclass(frozen=True)
class SizeSummary:
    """Distribution of the sizes of n prediction sets.

    Attributes
    ----------
    mean, standard_error, median : float
        Mean size, its standard error ``sd / sqrt(n)``, and the median.
    empty, full : int
        Number of sets with no class, and with all of them.
    levels, quantiles : arrays of shape (5,)
        Quantiles of the sizes at these levels.
    values, counts : int arrays of shape (S,)
        The histogram: the sizes that occur, increasing, and how often.
    """

    mean: float
    standard_error: float
    median: float
    empty: int
    full: int
    levels: Floats
    quantiles: Floats
    values: Ints
    counts: Ints


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
        levels=np.array(_SIZE_QUANTILES),
        quantiles=np.quantile(sizes, _SIZE_QUANTILES),
        values=values.astype(np.int64),
        counts=counts.astype(np.int64),
    )


@dataclass(frozen=True)
class Correlation:
    """Pearson and Spearman correlation with two-sided p-values; NaN where undefined."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float


def correlate(trust: Floats, rank: Ints) -> Correlation:
    """Correlation of Trust and Rank, both of shape (n,), as in the paper's appendix C.3.

    A constant input has no correlation; infinite Trust has ranks, so Spearman is defined
    there and Pearson is not.

    Examples
    --------
    >>> found = correlate(np.array([3.0, 2.0, 1.0, 0.5]), np.array([1, 1, 2, 9]))
    >>> round(found.pearson, 3), round(found.spearman, 3)
    (-0.749, -0.949)
    """
    from scipy import stats

    undefined = (float("nan"), float("nan"))
    if trust.size < 3 or np.ptp(rank) == 0 or (trust == trust[0]).all():
        return Correlation(*undefined, *undefined)
    spearman = stats.spearmanr(trust, rank)
    pearson = undefined
    if np.isfinite(trust).all():
        found = stats.pearsonr(trust, rank)
        pearson = (float(found.statistic), float(found.pvalue))
    return Correlation(*pearson, float(spearman.statistic), float(spearman.pvalue))
