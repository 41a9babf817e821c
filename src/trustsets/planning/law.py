"""Laws of the coverage of one calibration set, and the sample sizes that follow from them.

The coverage of a split conformal predictor depends on its n calibration samples. With scores that
have no ties it has the law Beta(k, n + 1 - k), where k is `conformal_rank` (Vovk 2012). In other
words the miss rate has the law Beta(l, m - l) with m = n + 1 and l = floor(m alpha).
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import final

import numpy as np
from scipy import special, stats

from trustsets._common.arrays import Codes, Floats
from trustsets.errors import InputError

__all__ = ["CoverageLaw", "needed_to_see", "samples_for"]

# All blocks up to this one are looked at; beyond it the last that fails is found by bisection.
_SCANNED = 4096
# Sizes are whole numbers, so the value of a block wobbles: by as much as its trend changes over
# about sqrt(l) blocks. So many times that are looked at after the last block that failed.
_WOBBLE = 8.0
# The search ends with an error at so many blocks, which are a trillion samples and more.
_MOST_BLOCKS = 1 << 40
# The size of a group lies within so many standard deviations, up to a probability of 1e-18.
_DEVIATIONS = 9.0
# A guess of a number of samples is searched around by this factor.
_NEAR = 0.8
_SMALLEST_STEP = 1e-12


@final
@dataclass(frozen=True)
class CoverageLaw:
    """How coverage varies from one calibration set to the next.

    Attributes
    ----------
    alpha : float
        Allowed miscoverage.
    functions : int
        Number p of basis functions. Up to p - 1 more calibration samples are then covered, so the
        upper tail is that of Beta(k + p - 1, n + 2 - k - p). For p = 1 the law is exact. For more
        functions it joins the bounds of the mean, which are exact, to the spread of p = 1, which
        is right to first order in 1 / n.
    penalty : float
        Penalty of the function that coverage is weighted by, in calibration samples. It moves
        coverage by at most penalty / n, up or down.

    Examples
    --------
    >>> law = CoverageLaw(0.1)
    >>> law.needed(within=0.02, probability=0.95)
    854
    >>> [round(end, 3) for end in law.interval(500, probability=0.95)]
    [0.873, 0.925]
    """

    alpha: float
    functions: int = 1
    penalty: float = 0.0

    @cached_property
    def fraction(self) -> Fraction:
        """Alpha as the decimal number it prints as."""
        return Fraction(repr(self.alpha))

    @property
    def smallest(self) -> int:
        """Fewest calibration samples with which a set can leave out a class."""
        return int(self._first(np.array([1]))[0]) - 1

    def probability(self, n: Codes, within: float) -> Floats:
        """Probability that coverage is at most `within` away from 1 - alpha, at each n.

        It is 0 where n is under `smallest`: the sets are full, and their coverage says nothing.
        """
        m, misses = n + 1, self._misses(n + 1)
        most, least = self._ends(misses, m)
        below = special.betaincc(most, m - most, min(self.alpha + within, 1.0))
        above = special.betainc(least, m - least, max(self.alpha - within, 0.0))
        return np.where(misses > 0, np.maximum(1.0 - below - above, 0.0), 0.0)

    def interval(self, n: int, probability: float) -> tuple[float, float]:
        """Interval that holds the coverage with this probability, half of the rest on each side."""
        if n < self.smallest:
            return 1.0, 1.0
        tail, m = (1.0 - probability) / 2.0, np.array([n + 1])
        most, least = self._ends(self._misses(m), m)
        low = special.betaincinv(most, m - most, 1.0 - tail)
        high = special.betaincinv(least, m - least, tail)
        return 1.0 - float(low[0]), 1.0 - float(high[0])

    def tolerance(self, n: int, probability: float) -> float:
        """Smallest `within` that coverage keeps to with this probability; NaN for full sets."""
        if n < self.smallest:
            return float("nan")
        low, high, size = 0.0, 1.0, np.array([n])
        while high - low > _SMALLEST_STEP:
            middle = (low + high) / 2.0
            enough = self.probability(size, middle)[0] >= probability
            low, high = (low, middle) if enough else (middle, high)
        return high

    def needed(self, within: float, probability: float) -> int:
        """Size from which on coverage is within the tolerance with the probability, at every n.

        The probability rises and falls with n, as l = floor(m alpha) stays the same for a block of
        about 1 / alpha sizes. For fixed l the miss rate is of an exponential family in m, so that
        the probability of an interval first rises and then falls (Karlin 1968). Its smallest value
        in a block is thus at one of the two ends: two values decide about a block, however long.
        """

        def lowest(blocks: Codes) -> Floats:
            ends = np.stack([self._first(blocks) - 1, self._first(blocks + 1) - 2])
            return np.asarray(self.probability(ends, within).min(axis=0))

        def fails(n: int) -> bool:
            return bool(self.probability(np.array([n]), within)[0] < probability)

        block = _last_below(lowest, probability, "within")
        first, last = (self._first(np.array([block, block + 1])) - [1, 2]).tolist()
        # In the block that fails last, all sizes suffice from some size on, or its end fails.
        return 1 + (last if block == 0 else _last_where(fails, first, last))

    def needed_in_all(self, within: float, probability: float, share: float, needed: int) -> int:
        """Calibration samples in all, of which a group has a share, by the law of its size.

        The size j of the group is binomial. The probability at size j is replaced by the lowest at
        this or any larger size, so that the result holds for every larger number too. This asks for
        a few samples more, never for fewer. `needed` is the result of `needed`.
        """
        start, lowest = _lowest_from(self, within, needed)

        def fails(total: int) -> bool:
            around = _DEVIATIONS * np.sqrt(total * share * (1.0 - share)) + 1.0
            low, high = max(0, int(total * share - around)), min(total, int(total * share + around))
            own = np.arange(low, high + 1)
            reached = np.where(own < start, 0.0, lowest[(own - start).clip(0, lowest.size - 1)])
            found = float(stats.binom.pmf(own, total, share) @ reached)
            return found < probability - _SMALLEST_STEP

        return _first_enough(fails, int(needed / share))

    def _ends(self, misses: Codes, m: Codes) -> tuple[Floats, Floats]:
        """Most and least misses l of the Beta laws of the two tails, kept inside (0, m)."""
        most = misses + self.penalty
        least = misses - (self.functions - 1) - self.penalty
        # A miss rate of about 0 stands for sets that may all hold the label.
        return np.clip(most, _SMALLEST_STEP, m - 0.5), np.clip(least, _SMALLEST_STEP, m - 0.5)

    def _misses(self, m: Codes) -> Codes:
        """``floor(m alpha)`` in exact arithmetic."""
        return _exact(m, lambda own: own * self.fraction.numerator // self.fraction.denominator)

    def _first(self, misses: Codes) -> Codes:
        """Smallest m with ``floor(m alpha)`` equal to a number."""
        top, bottom = self.fraction.numerator, self.fraction.denominator
        return _exact(misses, lambda own: -(-own * bottom // top))


@lru_cache(maxsize=8)
def _lowest_from(law: CoverageLaw, within: float, needed: int) -> tuple[int, Floats]:
    """A size, and for each from it on the lowest probability at this or any larger size."""
    spread = int(_DEVIATIONS * np.sqrt(needed) + 2.0 / law.alpha)
    start = max(0, needed - 2 * spread)
    found = law.probability(np.arange(start, needed + 4 * spread), within)
    return start, np.minimum.accumulate(found[::-1])[::-1]


def needed_to_see(alpha: float, gap: float, significance: float, power: float) -> int:
    """Test samples from which on an evaluation sees that coverage is lower by `gap`.

    It sees the gap if the exact one-sided binomial test, the `p_value` of an evaluation, rejects a
    coverage of 1 - alpha, which it does by mistake with probability `significance` at most. The
    test rejects from t misses on. For fixed t its power rises with the number of samples, so the
    smallest number of samples with this t has the lowest power.

    Examples
    --------
    >>> needed_to_see(0.1, gap=0.02, significance=0.05, power=0.9)
    2174
    """

    def first(needed: Codes) -> Codes:
        """Smallest number of samples of which so many misses are needed, at least as many."""
        return _most_samples(needed - 1, alpha, significance) + 1

    def lowest(needed: Codes) -> Floats:
        m = np.maximum(first(needed), needed)
        return np.asarray(special.betainc(needed, m - needed + 1, alpha + gap))

    def fails(m: int) -> bool:
        return bool(special.betainc(block, m - block + 1, alpha + gap) < power)

    block = _last_below(lowest, power, "gap")
    ends = first(np.array([block, block + 1]))
    return 1 + _last_where(fails, max(int(ends[0]), block), int(ends[1]) - 1)


def samples_for(wanted: int, share: float, probability: float) -> int:
    """Samples in all of which a group with this share has so many, with this probability."""

    def fails(total: int) -> bool:
        return bool(stats.binom.sf(wanted - 1, total, share) < probability)

    return _first_enough(fails, int(wanted / share))


def _most_samples(misses: Codes, alpha: float, significance: float) -> Codes:
    """Most samples of which so many misses have a probability of `significance` at most."""
    low = np.maximum(misses - 1, 0)
    high = np.asarray(np.ceil((misses + 1) / alpha), dtype=np.int64) + 1
    # A single miss is not enough at any number of samples if alpha exceeds the significance.
    while np.any(high - low > 1):
        middle = (low + high) // 2
        rare = special.betainc(misses, middle - misses + 1, alpha) <= significance
        low, high = np.where(rare, middle, low), np.where(rare, high, middle)
    return np.where(misses > 0, low, 0)


def _last_below(lowest: Callable[[Codes], Floats], wanted: float, name: str) -> int:
    """Last of the numbers 1, 2, ... whose value is below the one wanted; 0 if none is.

    Values rise in the long run and wobble; see `_WOBBLE`.
    """
    found = np.flatnonzero(lowest(np.arange(1, _SCANNED + 1)) < wanted)
    last = 0 if found.size == 0 else int(found[-1]) + 1
    high = _SCANNED
    while lowest(np.array([high]))[0] < wanted:
        high *= 2
        if high > _MOST_BLOCKS:
            raise InputError(f"{name} is too small: no number of samples that exists is enough.")
    if high > _SCANNED:
        last = _last_where(lambda block: bool(lowest(np.array([block]))[0] < wanted), last, high)
    while True:
        near = np.arange(last + 1, last + 2 + int(_WOBBLE * np.sqrt(last)))
        below = np.flatnonzero(lowest(near) < wanted)
        if below.size == 0:
            return last
        last = int(near[below[-1]])


def _last_where(fails: Callable[[int], bool], low: int, high: int) -> int:
    """Last number of low..high that fails, by bisection: all after it do not, and `low` does."""
    if fails(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return low


def _first_enough(fails: Callable[[int], bool], guess: int) -> int:
    """First number that does not fail, where none after it does; it is near the guess."""
    low, high = int(_NEAR * guess), guess + 1
    while fails(high):
        low, high = high, 1 + int(high / _NEAR)
    return 1 + _last_where(fails, low if fails(low) else 0, high)


def _exact(numbers: Codes, function: Callable[[int], int]) -> Codes:
    """A function of whole numbers, in Python's integers, which never overflow."""
    found = [function(own) for own in numbers.ravel().tolist()]
    return np.array(found, dtype=np.int64).reshape(numbers.shape)
