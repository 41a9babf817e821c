"""How much of a number is chance: intervals, noise floors, tests. Imports coverage and below.

Everything here is exact (binomial) except the interval of a coverage gap, which is a
bootstrap. Given the bins, the samples covered in bin b of a perfectly covered method
are Binomial(n_b, 1 - alpha), independent over bins: that is the law behind every floor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

from trustsets._common.arrays import Floats, floating_matrix
from trustsets._common.blocks import for_each_block
from trustsets.errors import InputError
from trustsets.metrics.coverage import PERCENT, Ints, gap_halves
from trustsets.sets import PredictionSets

__all__ = [
    "Estimate",
    "binomial_interval",
    "bootstrap_gaps",
    "conditional_coverage",
    "expected_gap",
    "expected_worst",
    "holm",
    "mean_absolute_deviation",
    "under_coverage",
]

_NONE = float("nan")


@dataclass(frozen=True)
class Estimate:
    """A metric with its error bar and what chance alone would give; NaN where undefined.

    Attributes
    ----------
    value : float
        What was measured.
    lower, upper : float
        Ends of the interval at the level of the evaluation.
    floor : float
        Expected value for a method whose coverage is exactly 1 - alpha everywhere.
    """

    value: float
    lower: float = _NONE
    upper: float = _NONE
    floor: float = _NONE

    @property
    def above_floor(self) -> float:
        """What is left after taking off the noise floor; negative values are chance too."""
        return self.value - self.floor


def binomial_interval(covered: Any, count: Any, level: float = 0.95) -> tuple[Floats, Floats]:
    """Clopper-Pearson interval of a proportion, elementwise.

    The ends are the success probabilities at which the observed count sits exactly at the
    upper or the lower tail of mass (1 - level) / 2, so the interval holds the truth with
    probability at least `level` whatever it is. A count of zero gives [0, 1].

    Examples
    --------
    >>> lower, upper = binomial_interval(9, 10)
    >>> round(float(lower), 3), round(float(upper), 3)
    (0.555, 0.997)
    """
    k, n = np.asarray(covered, dtype=np.float64), np.asarray(count, dtype=np.float64)
    tail = (1.0 - level) / 2.0
    # The shape parameters of the untaken branches may be zero; 1 stands in for them.
    lower = special.betaincinv(np.maximum(k, 1.0), n - k + 1.0, tail)
    upper = special.betaincinv(k + 1.0, np.maximum(n - k, 1.0), 1.0 - tail)
    return np.where(k > 0, lower, 0.0), np.where(k < n, upper, 1.0)


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
    are at the fractions k / n_b. Of many small bins the worst looks bad for any method.

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


def under_coverage(covered: Any, count: Any, alpha: float) -> Floats:
    """One-sided exact p-value per bin: ``P(Binomial(n, 1 - alpha) <= covered)``.

    Small values say that coverage below 1 - alpha is not chance.
    """
    return np.asarray(stats.binom.cdf(covered, count, 1.0 - alpha), dtype=np.float64)


def holm(p_values: Floats) -> Floats:
    """Holm's adjusted p-values: those at most q keep the chance of any false alarm at q.

    The j-th smallest of B is multiplied by B - j + 1, and made non-decreasing.

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
        Level of the intervals, number of resamples, random state.

    Returns
    -------
    tuple of three (lower, upper)
        For CovGap, shortfall, excess, in percent.

    Notes
    -----
    Resampling n points with replacement, bins held fixed, makes the covered and uncovered
    counts of the bins multinomial; they are drawn as such. With several seeds, seeds are
    resampled too.

    An average of absolute values is biased upwards by noise, and a resample is noisier
    than the sample. The interval is therefore the percentile interval moved so that its
    resamples average to the estimate: it is an interval for the *expected CovGap at
    these bin sizes*, the quantity whose value for a perfect method is the noise floor.
    For gaps far from zero its level is nominal; where coverage is perfect the resamples
    scatter by 1.25 times too much, so it errs on the wide side.
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
    """Shortfall and excess of resampled points, shape (n_bootstrap, 2)."""
    occupied = count > 0
    n, k = count[occupied], covered[occupied]
    sizes = rng.multinomial(int(n.sum()), n / n.sum(), size=n_bootstrap)
    hits = rng.binomial(sizes, k / n)
    return np.stack(gap_halves(sizes, hits, alpha, divisor), axis=-1)


def _with_sum(halves: Floats) -> Floats:
    """Put shortfall + excess = CovGap in front, along the last axis."""
    return np.concatenate([halves.sum(axis=-1, keepdims=True), halves], axis=-1)


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
