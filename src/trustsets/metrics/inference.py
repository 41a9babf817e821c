"""Coverage gaps, their intervals and noise floors, and tests of under-coverage.

Everything here is exact (binomial) except the intervals of coverage gaps, which are a
bootstrap, and of means over bins, which are normal. Given the bins, a method with coverage
1 - alpha everywhere covers Binomial(n_b, 1 - alpha) of the n_b samples of bin b, independently
over bins. Every noise floor is an expectation under this law.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from trustsets._common.arrays import Floats
from trustsets._common.quantiles import conformal_rank

__all__ = [
    "Estimate",
    "binomial_interval",
    "bootstrap_gaps",
    "expected_gap",
    "expected_worst",
    "gap_halves",
    "guarantee_test",
    "holm",
    "macro_coverage",
    "mean_absolute_deviation",
    "mean_estimate",
    "share_below",
    "share_estimate",
    "under_coverage",
]

Ints = NDArray[np.int64]

PERCENT = 100.0
# Rounding in a share times a count.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A metric with its interval and its noise floor; NaN where undefined.

    Attributes
    ----------
    value : float
        What was measured.
    lower, upper : float
        Ends of the interval, at the confidence level of the evaluation.
    floor : float
        Expected value for a method whose coverage is exactly 1 - alpha everywhere.
    """

    value: float
    lower: float = math.nan
    upper: float = math.nan
    floor: float = math.nan

    @property
    def above_floor(self) -> float:
        """Value minus noise floor; a perfect method is above or below 0 by noise alone."""
        return self.value - self.floor


def share_estimate(covered: Any, count: Any, level: float, floor: float = math.nan) -> Estimate:
    """Share of `count` samples with its exact interval; NaN for no samples.

    Examples
    --------
    >>> share_estimate(9, 10, level=0.95).value
    0.9
    """
    lower, upper = binomial_interval(covered, count, level)
    value = float(covered / count) if count else math.nan
    return Estimate(value, float(lower), float(upper), floor)


def mean_estimate(values: Any, level: float, floor: float = math.nan) -> Estimate:
    """Mean of independent numbers with its normal interval."""
    values = np.asarray(values, dtype=np.float64)
    spread = values.std(ddof=1) if values.size > 1 else math.nan
    half = float(stats.norm.ppf(0.5 + level / 2.0) * spread / np.sqrt(values.size))
    mean = float(values.mean())
    return Estimate(mean, mean - half, mean + half, floor)


def binomial_interval(covered: Any, count: Any, level: float = 0.95) -> tuple[Floats, Floats]:
    """Clopper-Pearson interval of a proportion, elementwise.

    Each end is the success probability at which the observed count lies exactly at the
    end of a tail of mass (1 - level) / 2. The interval therefore contains the true
    probability with probability `level` or more. A count of zero gives [0, 1].

    Examples
    --------
    >>> lower, upper = binomial_interval(9, 10)
    >>> round(float(lower), 3), round(float(upper), 3)
    (0.555, 0.997)
    """
    k, n = np.asarray(covered, dtype=np.float64), np.asarray(count, dtype=np.float64)
    tail = (1.0 - level) / 2.0
    # A shape parameter may be zero where its result is not used; 1 takes its place.
    lower = special.betaincinv(np.maximum(k, 1.0), n - k + 1.0, tail)
    upper = special.betaincinv(k + 1.0, np.maximum(n - k, 1.0), 1.0 - tail)
    return np.where(k > 0, lower, 0.0), np.where(k < n, upper, 1.0)


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


def mean_absolute_deviation(count: Any, probability: float) -> Floats:
    """``E |X/n - p|`` for X ~ Binomial(n, p), elementwise in n; 0 where n is 0.

    De Moivre's closed form: with m = floor(n p),

        E |X - n p| = 2 n p (1 - p) P(Binomial(n - 1, p) = m).

    Where n p is an integer both neighbouring m give the same value, so rounding in n p
    does no harm.

    Examples
    --------
    >>> mean_absolute_deviation(np.array([1, 2]), 0.5).round(10).tolist()
    [0.5, 0.25]
    """
    n = np.asarray(count, dtype=np.int64)
    trials = np.maximum(n, 1)
    mode = np.minimum(np.floor(trials * probability), trials - 1)
    mass = stats.binom.pmf(mode, trials - 1, probability)
    return np.where(n > 0, 2.0 * probability * (1.0 - probability) * mass, 0.0)


def expected_gap(count: Ints, alpha: float, divisor: int | None = None) -> float:
    """Noise floor of CovGap in percent, for bins of these sizes; exact.

    The mean deviation of an unbiased share is half above and half below, so each half of
    CovGap has exactly half of this as its own floor.

    Examples
    --------
    >>> round(expected_gap(np.full(40, 250), alpha=0.1), 3)
    1.509
    """
    sizes, repeats = np.unique(count[count > 0], return_counts=True)
    total = float(mean_absolute_deviation(sizes, 1.0 - alpha) @ repeats)
    return PERCENT * total / (divisor or max(int(repeats.sum()), 1))


def expected_worst(count: Ints, alpha: float) -> float:
    """Noise floor of the worst coverage: ``E min_b X_b / n_b``; exact.

    The integral of ``P(min > t) = prod_b P(X_b > t n_b)``, a step function whose steps
    are at the fractions k / n_b. The worst of many small bins is low for any method.

    Examples
    --------
    >>> round(expected_worst(np.array([1, 1]), alpha=0.1), 3)  # both must be covered
    0.81
    """
    sizes, repeats = np.unique(count[count > 0], return_counts=True)
    fractions = [np.arange(size + 1) / size for size in sizes.tolist()]
    steps = np.unique(np.concatenate(fractions))
    log_survival = np.zeros(steps.size - 1)
    for size, own, times in zip(sizes.tolist(), fractions, repeats.tolist(), strict=True):
        # P(X > k) for k = -1..size; a fraction k/n is the same float for equal rationals.
        tail = np.append(1.0, stats.binom.sf(np.arange(size + 1), size, 1.0 - alpha))
        with np.errstate(divide="ignore"):
            place = np.searchsorted(own, steps[:-1], side="right")
            log_survival += times * np.log(tail[place])
    return float(np.exp(log_survival) @ np.diff(steps))


def macro_coverage(count: Ints, covered: Ints, alpha: float, level: float) -> Estimate:
    """Mean of the coverages of B bins, each counted once whatever its size.

    Parameters
    ----------
    count, covered : int arrays of shape (B,)
        Samples, which every bin has, and covered samples.
    alpha, level : float
        Allowed miscoverage, and confidence level of the interval.

    Notes
    -----
    The target is the mean of the true coverages of these bins, and the noise floor is 1 - alpha.
    The interval is the normal one, with variance ``sum_b p_b (1 - p_b) / n_b / B^2``. A bin of
    one sample would seem to have no variance, so p_b is ``(covered + 1) / (count + 2)``. In
    bins of few samples with coverage above 0.7 this makes the interval wider than necessary.

    Examples
    --------
    >>> macro_coverage(np.array([100, 2]), np.array([90, 1]), alpha=0.1, level=0.95).value
    0.7
    """
    variance = _smoothed(count, covered) * (1.0 - _smoothed(count, covered)) / count
    return _mean_over_bins(covered / count, variance, level, 1.0 - alpha)


def share_below(count: Ints, covered: Ints, least: float, alpha: float, level: float) -> Estimate:
    """Share of bins whose coverage is less than `least`, such as a half.

    Parameters
    ----------
    count, covered, alpha, level
        As in `macro_coverage`.
    least : float
        The coverage that bins should reach.

    Notes
    -----
    A bin of few samples is easily below by chance, whatever its true coverage. The number
    is therefore to be read against its noise floor, the exact expected share of a method
    with coverage 1 - alpha in each bin. The interval is for the *expected share at these bin
    sizes*, not for the share of bins whose true coverage is below. It is the smaller of two.
    The first is the exact binomial interval of B draws, which holds because a sum of
    independent indicators varies less than a binomial of the same mean (Hoeffding 1956). The
    second is normal. Its variance is that of the indicators if each bin had other samples,
    drawn with a coverage that is uncertain too. It is much smaller where most bins are clearly
    on one side. In simulations the 95% interval held in 92% of cases where all true coverages
    equal `least`, and in 94% or more otherwise.

    Examples
    --------
    >>> found = share_below(np.array([100, 2]), np.array([90, 0]), 0.5, alpha=0.1, level=0.95)
    >>> found.value, round(found.floor, 3)
    (0.5, 0.005)
    """
    needed = np.ceil(least * count - _ROUNDING)
    below, p = covered < needed, _smoothed(count, covered)
    # The noise of the new samples and that of the known ones, which is as large.
    spread = np.sqrt(2.0 * count * p * (1.0 - p))
    chance = special.ndtr((needed - 0.5 - count * p) / spread)
    floor = float(np.mean(under_coverage(needed - 1, count, alpha)))
    found = _mean_over_bins(below, chance * (1.0 - chance), level, floor)
    exact = share_estimate(int(below.sum()), below.size, level)
    ends = max(found.lower, exact.lower), min(found.upper, exact.upper)
    return Estimate(found.value, *ends, floor)


def _smoothed(count: Ints, covered: Ints) -> Floats:
    """Coverage of each bin by Laplace's rule, which is never 0 or 1."""
    return np.asarray((covered + 1.0) / (count + 2.0))


def _mean_over_bins(values: Any, variances: Floats, level: float, floor: float) -> Estimate:
    """Mean of independent shares of known variance, with its normal interval."""
    mean = float(values.mean())
    half = float(stats.norm.ppf(0.5 + level / 2.0) * np.sqrt(variances.sum()) / values.size)
    return Estimate(mean, max(mean - half, 0.0), min(mean + half, 1.0), floor)


def under_coverage(covered: Any, count: Any, alpha: float) -> Floats:
    """One-sided exact p-value of each bin: ``P(Binomial(n, 1 - alpha) <= covered)``.

    Small values mean that noise alone does not explain a coverage below 1 - alpha.
    """
    return np.asarray(stats.binom.cdf(covered, count, 1.0 - alpha), dtype=np.float64)


def guarantee_test(covered: Any, n_test: Any, n_calibration: Any, alpha: float) -> Floats:
    """P-value of coverage 1 - alpha, over calibration and test samples; elementwise.

    Split conformal prediction with n calibration samples and continuous scores covers a share of
    all samples with the law Beta(k, n + 1 - k), k the conformal rank. The number of covered test
    samples is therefore Beta-binomial, and the p-value is its distribution function. With ties,
    and with sets that are never empty, coverage is larger and the p-value conservative.

    Parameters
    ----------
    covered, n_test : int or arrays
        Covered test samples, and test samples.
    n_calibration : float or array
        Calibration samples behind the threshold. Where the number is not whole, an
        approximation, the Beta law has mean 1 - alpha and the variance of so many samples.
    alpha : float
        Allowed miscoverage.

    Examples
    --------
    Of 1,000 test samples 870 are covered. For a fixed predictor with coverage 0.9 that is
    unlikely; with 100 calibration samples it is not.

    >>> round(float(under_coverage(870, 1000, 0.1)), 4), guarantee_test(870, 1000, 100, 0.1).round(2)
    (0.0013, array(0.17))
    """
    covered, m, n = np.broadcast_arrays(covered, n_test, np.asarray(n_calibration, np.float64))
    whole = n == np.floor(n)
    ranks = np.array([conformal_rank(int(size), alpha) for size in n.flat]).reshape(n.shape)
    first = np.where(whole, ranks, (n + 1.0) * (1.0 - alpha))
    # Too few calibration samples: the threshold is infinite and every sample is covered.
    full = whole & (ranks > n)
    found = stats.betabinom.cdf(covered, m, first, np.where(full, 1.0, n + 1.0 - first))
    return np.where(full, np.where(covered >= m, 1.0, 0.0), found)


def holm(p_values: Floats) -> Floats:
    """Holm's adjusted p-values: the j-th smallest of B times B - j + 1, made non-decreasing.

    Calling every bin with an adjusted p-value up to q under-covered makes any false alarm with
    probability q at most.

    Examples
    --------
    >>> holm(np.array([0.01, 0.04, 0.03])).round(6).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = np.arange(p_values.size, 0, -1)
    rising = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    adjusted = np.empty_like(p_values)
    adjusted[order] = rising
    return adjusted


def bootstrap_gaps(
    tables: Sequence[tuple[Ints, Ints]],
    alpha: float,
    *,
    divisor: int | None = None,
    level: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    """Intervals of CovGap, shortfall and excess, the mean over seeds if there are several.

    Parameters
    ----------
    tables : sequence of (count, covered), each of shape (B,)
        One pair per seed.
    alpha, divisor
        As in `gap_halves`.
    level, n_bootstrap, seed
        Confidence level of the intervals, number of resamples, random state.

    Returns
    -------
    tuple of three (lower, upper)
        For CovGap, shortfall, excess, in percent.

    Notes
    -----
    Resampling n samples with replacement in fixed bins makes the covered and uncovered
    counts of the bins multinomial, so the counts are drawn directly. With several seeds, the
    seeds are resampled too.

    Noise biases a mean of absolute values upwards, and a resample is noisier than the
    sample. The percentile interval is therefore shifted until the mean of the resamples
    equals the estimate. The result is an interval for the *expected CovGap at these bin
    sizes*, the quantity whose value for a perfect method is the noise floor. For gaps far
    from zero its level is nominal; where coverage is perfect the resamples scatter 1.25
    times too much, so the interval is too wide.
    """
    rng = np.random.default_rng(seed)
    drawn = np.stack([_resample(rng, *table, alpha, divisor, n_bootstrap) for table in tables])
    if len(tables) > 1:
        which = rng.integers(len(tables), size=(len(tables), n_bootstrap))
        replicate = rng.integers(n_bootstrap, size=(len(tables), n_bootstrap))
        drawn = drawn[which, replicate]
    resamples = _with_sum(drawn.mean(axis=0))
    halves = [np.stack(gap_halves(*table, alpha, divisor)) for table in tables]
    estimates = _with_sum(np.mean(halves, axis=0))
    tail = (1.0 - level) / 2.0
    ends = np.quantile(resamples, [tail, 1.0 - tail], axis=0)
    ends = np.maximum(ends - resamples.mean(axis=0) + estimates, 0.0)
    gap, shortfall, excess = ((float(low), float(high)) for low, high in ends.T)
    return gap, shortfall, excess


def _resample(
    rng: np.random.Generator,
    count: Ints,
    covered: Ints,
    alpha: float,
    divisor: int | None,
    n_bootstrap: int,
) -> Floats:
    """Shortfall and excess of resampled samples, shape (n_bootstrap, 2)."""
    occupied = count > 0
    n, k = count[occupied], covered[occupied]
    sizes = rng.multinomial(int(n.sum()), n / n.sum(), size=n_bootstrap)
    hits = rng.binomial(sizes, k / n)
    return np.stack(gap_halves(sizes, hits, alpha, divisor), axis=-1)


def _with_sum(halves: Floats) -> Floats:
    """Put shortfall + excess = CovGap in front, along the last axis."""
    return np.concatenate([halves.sum(axis=-1, keepdims=True), halves], axis=-1)
