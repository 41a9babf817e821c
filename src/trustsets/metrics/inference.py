"""Coverage gaps, their intervals and noise floors, and tests of under-coverage.

Given the thresholds of a predictor, the covered samples of a bin are binomial: intervals, noise
floors and `under_coverage` follow from this law. A guarantee averages over calibration draws, and a
valid predictor covers less than 1 - alpha after about half of them: see `check_guarantee`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from trustsets._arrays import Floats
from trustsets._parameters import Count, check_alpha, check_arguments
from trustsets.errors import InputError
from trustsets.scores import conformal_rank

Ints = NDArray[np.int64]

PERCENT = 100.0
# Gauss-Legendre nodes and the tails that they leave out: the integral is right to about 1e-12.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_TAIL = 1e-17


@dataclass(frozen=True)
class Estimate:
    """A metric with its interval and its noise floor; NaN where undefined.

    The noise floor is the expected value for a method whose coverage is 1 - alpha everywhere. It is
    not a part of the value: noise adds little to a gap that is large.
    """

    value: float
    lower: float = math.nan
    upper: float = math.nan
    floor: float = math.nan


def share_estimate(covered: Any, count: Any, level: float, floor: float = math.nan) -> Estimate:
    """Share of `count` samples with its exact interval; NaN for no samples."""
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

    It contains the true probability with probability `level` or more. A count of zero gives
    [0, 1].
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

    `count` and `covered` have shape (..., B). `divisor` takes the place of the number of non-empty
    bins: the paper divides the class gap by the number of classes, present or not.
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
    """
    n = np.asarray(count, dtype=np.int64)
    trials = np.maximum(n, 1)
    mode = np.minimum(np.floor(trials * probability), trials - 1)
    mass = stats.binom.pmf(mode, trials - 1, probability)
    return np.where(n > 0, 2.0 * probability * (1.0 - probability) * mass, 0.0)


def expected_gap(count: Ints, alpha: float, divisor: int | None = None) -> float:
    """Noise floor of CovGap in percent, for bins of these sizes; half of it for each half."""
    sizes, repeats = np.unique(count[count > 0], return_counts=True)
    total = float(mean_absolute_deviation(sizes, 1.0 - alpha) @ repeats)
    return PERCENT * total / (divisor or max(int(repeats.sum()), 1))


def rms_gap(count: Ints, covered: Ints, alpha: float, level: float) -> Estimate:
    """Root mean square distance of the *true* coverage of bins from 1 - alpha, in percent.

    CovGap of few samples is too large: at a true coverage of 0.8 in bins of 20 samples it is 10.8
    on average, not 10. The square of a gap can be estimated without bias: k covered samples of n
    give ``(k/n - (1 - alpha))^2 - k (n - k) / (n^2 (n - 1))``. The value is the root of the mean
    over bins with two samples or more, 0 where that is negative.
    """
    n, k = (values[count > 1].astype(np.float64) for values in (count, covered))
    if not n.size:
        return Estimate(math.nan)
    squares = (k / n - (1.0 - alpha)) ** 2 - k * (n - k) / (n**2 * (n - 1.0))
    share = _smoothed(n, k)
    noise = share * (1.0 - share) / n
    # Variance of a squared normal variable, of which the noise has been subtracted.
    variance = (4.0 * np.maximum(squares, 0.0) * noise + 2.0 * noise**2).sum() / n.size**2
    half = stats.norm.ppf(0.5 + level / 2.0) * math.sqrt(variance)
    ends = squares.mean() + np.array([0.0, -half, half])
    return Estimate(*(PERCENT * np.sqrt(np.maximum(ends, 0.0))).tolist())


def expected_worst(count: Ints, alpha: float) -> float:
    """Noise floor of the worst coverage, ``E min_b X_b / n_b``: the integral of P(min > t)."""
    # P(min > t) = prod_b P(X_b > t n_b) is a step function with steps at the fractions k / n_b.
    sizes, repeats = np.unique(count[count > 0], return_counts=True)
    fractions = [np.arange(size + 1) / size for size in sizes.tolist()]
    steps = np.unique(np.concatenate(fractions))
    log_survival = np.zeros(steps.size - 1)
    for size, shares, times in zip(sizes.tolist(), fractions, repeats.tolist(), strict=True):
        # P(X > k) for k = -1..size; a fraction k/n is the same float for equal rationals.
        tail = np.append(1.0, stats.binom.sf(np.arange(size + 1), size, 1.0 - alpha))
        with np.errstate(divide="ignore"):
            step = np.searchsorted(shares, steps[:-1], side="right")
            log_survival += times * np.log(tail[step])
    return float(np.exp(log_survival) @ np.diff(steps))


def macro_coverage(count: Ints, covered: Ints, alpha: float, level: float) -> Estimate:
    """Mean of the coverages of B non-empty bins, each counted once whatever its size.

    The interval is the normal one, with variance ``sum_b p_b (1 - p_b) / n_b / B^2``. A bin of
    one sample would seem to have no variance, so p_b is ``(covered + 1) / (count + 2)``. Where a
    few bins decide, it is too short: its ends are at least as far away as those made of the exact
    interval of each bin (Zou and Donner 2008), which for one bin is that interval.
    """
    share, smooth = covered / count, _smoothed(count, covered)
    tail, mean = (1.0 - level) / 2.0, float(share.mean())
    half = -stats.norm.ppf(tail) * np.linalg.norm(np.sqrt(smooth * (1.0 - smooth) / count))
    # A beta law without successes, or without failures, is a point at the end.
    lower = np.nan_to_num(stats.beta.ppf(tail, covered, count - covered + 1))
    upper = np.nan_to_num(stats.beta.ppf(1.0 - tail, covered + 1, count - covered), nan=1.0)
    far = [float(max(half, np.linalg.norm(share - end))) / count.size for end in (lower, upper)]
    return Estimate(mean, max(mean - far[0], 0.0), min(mean + far[1], 1.0), 1.0 - alpha)


def _smoothed(count: Any, covered: Any) -> Floats:
    """Coverage of each bin by Laplace's rule, which is never 0 or 1."""
    return np.asarray((covered + 1.0) / (count + 2.0))


def under_coverage(covered: Any, count: Any, alpha: float) -> Floats:
    """One-sided exact p-value of each bin: ``P(Binomial(n, 1 - alpha) <= covered)``.

    Small values mean that noise alone does not explain a coverage below 1 - alpha.
    """
    return np.asarray(stats.binom.cdf(covered, count, 1.0 - alpha), dtype=np.float64)


def holm(p_values: Floats) -> Floats:
    """Holm's adjusted p-values: the j-th smallest of B times B - j + 1, made non-decreasing.

    Calling every bin with an adjusted p-value up to q under-covered makes any false positive with
    probability q at most.
    """
    order = np.argsort(p_values)
    factors = np.arange(p_values.size, 0, -1)
    rising = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    adjusted = np.empty_like(p_values)
    adjusted[order] = rising
    return adjusted


def check_guarantee(
    covered: Any,
    count: Any,
    n_calibration: Any,
    alpha: float,
    *,
    n_functions: int | None = None,
) -> Floats:
    """Probability of so few covered test samples, or fewer, although coverage is guaranteed.

    It is over calibration draws and test samples. Small p-values mean that the guarantee does not
    agree with the test samples; `holm` corrects those of several groups or classes.

    Parameters
    ----------
    covered, count : int, or int arrays of shape (B,)
        Covered test samples, and test samples: all of them for marginal coverage, or those of
        each group or class that has a guarantee of its own.
    n_calibration : int, or int array of shape (B,)
        Calibration samples behind each guarantee: all of them, or those of the group or class.
    alpha : float
        Miscoverage that was asked for.
    n_functions : int, optional
        Basis functions of a `ConditionalConformal`; None for split conformal thresholds
        (`StandardConformal`, the cells and classes of `MondrianConformal`).

    Notes
    -----
    With continuous scores and exchangeable samples, the coverage of a split conformal threshold
    given n calibration samples has the law Beta(n + 1 - l, l), ``l = floor((n + 1) alpha)``, and
    the number of covered ones among m test samples is beta-binomial; with ties it is stochastically
    larger. For p basis functions the law is Beta with mean 1 - alpha and n - p effective samples,
    an approximation on the cautious side.

    Examples
    --------
    >>> check_guarantee(875, 1000, n_calibration=500, alpha=0.1).round(3)
    array([0.072])
    >>> holm(check_guarantee([900, 400], [1000, 500], [500, 300], alpha=0.1)) <= 0.05
    array([False,  True])
    """
    alpha = check_alpha(alpha)
    if n_functions is not None:
        check_arguments(Count, n_functions=n_functions)
    asked = covered, count, n_calibration
    try:
        k, m, n = counts = np.array(np.broadcast_arrays(*map(np.atleast_1d, asked)))
        fits = counts.dtype.kind in "iu" and counts.ndim == 2 and np.all((k >= 0) & (k <= m))
    except ValueError:
        fits = False
    if not fits or np.any(n < 0):
        rule = "covered must be between 0 and count, and n_calibration not negative, all integers"
        raise InputError(f"{rule} and of one length; got {asked!r:.120}.")
    return np.array(
        [
            _p_value(hits, total, _miss_law(size, alpha, n_functions))
            for hits, total, size in zip(k.tolist(), m.tolist(), n.tolist(), strict=True)
        ]
    )


def _miss_law(n: int, alpha: float, n_functions: int | None) -> tuple[float, float]:
    """Parameters of the Beta law of the miss rate over calibration draws; the first 0 for none."""
    if n_functions is not None:
        effective = max(n - n_functions, 1)
        return alpha * effective, (1.0 - alpha) * effective
    rank = conformal_rank(n, alpha)
    return float(n + 1 - rank), float(rank)


def _p_value(covered: int, count: int, law: tuple[float, float]) -> float:
    """Probability of so few covered samples or fewer."""
    if covered >= count:
        return 1.0
    return missed_at_least(count - covered, count, *law) if law[0] > 0.0 else 0.0


def missed_at_least(misses: float, samples: float, a: float, b: float) -> float:
    """Probability that a predictor misses so many of the samples, if its miss rate is Beta(a, b).

    A binomial number reaches t exactly if a variable with law Beta(t, m - t + 1) is at most its
    probability, so this is P(B <= A) for two independent Beta variables. It is integrated over
    the narrower of the two, on which the distribution function of the other varies slowly. The
    sum of the Beta-binomial law has as many terms as there are misses.
    """
    other = (misses, samples - misses + 1.0)
    # Densities of parameters below 1 have a pole.
    if a + b >= samples + 1.0 and min(a, b) >= 1.0:
        x, weights = _quadrature(a, b)
        return float(weights @ special.betainc(*other, x))
    x, weights = _quadrature(*other)
    return float(weights @ special.betaincc(a, b, x))


def _quadrature(a: float, b: float) -> tuple[Floats, Floats]:
    """Nodes and weights with which means over a Beta law are sums."""
    low, high = special.betaincinv(a, b, _TAIL), special.betainccinv(a, b, _TAIL)
    x = (low + high) / 2.0 + (high - low) / 2.0 * _NODES
    # The density relative to that at the mean: its logarithm itself would lose all digits where
    # a and b are large.
    mean = a / (a + b)
    log_density = special.xlog1py(a - 1.0, (x - mean) / mean)
    log_density += special.xlog1py(b - 1.0, (mean - x) / (1.0 - mean))
    weights = _WEIGHTS * np.exp(log_density - log_density.max())
    return x, weights / weights.sum()


def bootstrap_gaps(
    tables: Sequence[tuple[Ints, Ints]],
    alpha: float,
    divisor: int | None,
    level: float,
    n_bootstrap: int,
) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    """Intervals of CovGap, shortfall and excess, the mean over seeds if there are several.

    `tables` has a pair (count, covered) of shape (B,) for each seed. With several seeds, the seeds
    are resampled too. It is an interval for the *expected CovGap at these bin sizes*, whose value
    for a perfect method is the noise floor.
    """
    rng = np.random.default_rng(0)
    drawn = np.stack([_resample(rng, *table, alpha, divisor, n_bootstrap) for table in tables])
    if len(tables) > 1:
        which = rng.integers(len(tables), size=(len(tables), n_bootstrap))
        replicate = rng.integers(n_bootstrap, size=(len(tables), n_bootstrap))
        drawn = drawn[which, replicate]
    resamples = _with_sum(drawn.mean(axis=0))
    halves = [np.stack(gap_halves(*table, alpha, divisor)) for table in tables]
    estimates = _with_sum(np.mean(halves, axis=0))
    tail = (1.0 - level) / 2.0
    # A resample is noisier than the sample: shift the mean of the resamples to the estimate.
    ends = np.quantile(resamples, [tail, 1.0 - tail], axis=0)
    largest = PERCENT * np.array([max(alpha, 1.0 - alpha), 1.0 - alpha, alpha])
    ends = np.clip(ends - resamples.mean(axis=0) + estimates, 0.0, largest)
    # Where nearly all resamples are equal, a few others can shift both ends past the estimate.
    lower, upper = np.minimum(ends[0], estimates), np.maximum(ends[1], estimates)
    gap, shortfall, excess = zip(lower.tolist(), upper.tolist(), strict=True)
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
    # Resampled samples in fixed bins have multinomial counts.
    sizes = rng.multinomial(int(n.sum()), n / n.sum(), size=n_bootstrap)
    # A bin without misses would otherwise seem to have no variance.
    hits = rng.binomial(sizes, (k + 0.5) / (n + 1.0))
    return np.stack(gap_halves(sizes, hits, alpha, divisor), axis=-1)


def _with_sum(halves: Floats) -> Floats:
    """Put shortfall + excess = CovGap in front, along the last axis."""
    return np.concatenate([halves.sum(axis=-1, keepdims=True), halves], axis=-1)
