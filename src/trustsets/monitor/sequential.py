"""Sequential tests and intervals, valid at all times at once.

Three steps lead from a stream of numbers to an alarm. `EmpiricalDistribution` ranks each number
among all before it. If nothing changes, these conformal p-values are independent and uniform,
exactly, whatever the law of the numbers and however many are equal (Vovk, Gammerman and Shafer
2005, chapter 8); that calibration samples are few is part of this statement. Bets turn p-values, or
misses, into factors. `Evidence` multiplies the factors: it is the capital of a gambler who bets
against the hypothesis that nothing has changed. Under the hypothesis it is a test martingale (or
smaller), so it ever reaches 1 / q with probability q at most, however often and whenever one looks
(Ville 1939).

`share_intervals` and `MeanTrack` give intervals that hold at every number of samples together,
so that one may look after each batch.
"""

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from scipy import special

from trustsets._arrays import Codes, Floats
from trustsets._storage import require, require_increasing, storable

MOST_SAMPLES = 1 << 53
"""No stream is longer; a count beyond it comes from a forged file."""

# Values are rounded to so many binary digits before they are compared, so that any number of them
# takes little memory. Rounded values tie, and ties are broken at random: p-values stay exact.
_DIGITS = 10
# Values that are ranked at a time; each is compared with all before it in the piece.
_PIECE = 256

# A bet multiplies the odds of a miss, or of a large score, by one of these.
_ODDS = (1.5, 2.5, 5.0)
# Bets on a shift of any statistic: odds of the lowest and of the highest tenth, and slopes.
_TAIL = 0.1
_TAIL_ODDS = (2.0, 4.0)
_SLOPES = (-0.8, 0.8)
# Nobody knows when a change comes: a part of the capital starts to bet at every sample, as in the
# procedure of Shiryaev and Roberts, but with parts that add up to 1, so that the false-alarm rate
# holds over an unlimited time. After t samples, log(c) / log(t + c) of the capital has not started
# to bet. Of all slow decays this costs little at late changes: about log t + 2 log log t in units
# of log evidence.
_DELAY = 20.0

# Steps of a bisection in [0, 1], and the prior Beta(1/2, 1/2) of the mixture.
_STEPS = 60
_PRIOR = 0.5
_LARGEST_BET = 0.5


@final
@storable
@dataclass
class EmpiricalDistribution:
    """All values of a stream so far: distinct ones in increasing order, and how often each came.

    Examples
    --------
    >>> earlier = EmpiricalDistribution()
    >>> earlier.add(np.array([1.0, 2.0, 2.0, 5.0]))
    >>> earlier.p_values(np.array([4.0, 2.0]), draws=np.array([0.5, 0.5])).round(3).tolist()
    [0.3, 0.583]
    """

    values: Floats = field(default_factory=lambda: np.empty(0))
    counts: Codes = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return int(self.counts.sum())

    def check_state(self) -> None:
        """Refuse what no stream gives, for `storage`."""
        name = type(self).__name__
        paired = self.values.ndim == 1 and self.values.shape == self.counts.shape
        require(paired, f"{name}.counts", "must be one for each value")
        require(not np.isnan(self.values).any(), f"{name}.values", "must not be NaN")
        require_increasing(self.values, f"{name}.values", strictly=True)
        counted = bool((self.counts > 0).all()) and self.counts.sum(dtype=float) < MOST_SAMPLES
        require(counted, f"{name}.counts", "must be positive")

    def add(self, values: Floats) -> None:
        """Add values without ranking them."""
        self._merge(_rounded(values))

    def p_values(self, values: Floats, draws: Floats) -> Floats:
        """Rank values one after the other, and add each after it was ranked.

        Parameters
        ----------
        values : array of shape (m,)
            In the order in which they came; no NaN.
        draws : array of shape (m,)
            Uniform draws, which break ties.

        Returns
        -------
        array of shape (m,)
            ``(g + U (e + 1)) / (N + 1)`` with g of the N values before larger and e equal. It is
            small where a value is large.
        """
        rounded, ranks = _rounded(values), np.empty(values.size)
        for start in range(0, values.size, _PIECE):
            piece = slice(start, start + _PIECE)
            ranks[piece] = self._rank(rounded[piece], draws[piece])
            self._merge(rounded[piece])
        return ranks

    def _rank(self, values: Floats, draws: Floats) -> Floats:
        up_to = np.concatenate([[0], np.cumsum(self.counts)])
        below = up_to[np.searchsorted(self.values, values, side="left")]
        not_above = up_to[np.searchsorted(self.values, values, side="right")]
        before = np.tri(values.size, k=-1, dtype=bool)
        larger = up_to[-1] - not_above + np.sum(before & (values > values[:, None]), axis=1)
        equal = not_above - below + np.sum(before & (values == values[:, None]), axis=1)
        return np.asarray((larger + draws * (equal + 1)) / (up_to[-1] + 1 + np.arange(values.size)))

    def _merge(self, values: Floats) -> None:
        joined = np.concatenate([self.values, values])
        times = np.concatenate([self.counts, np.ones(values.size, dtype=np.int64)])
        self.values, inverse = np.unique(joined, return_inverse=True)
        self.counts = np.bincount(inverse, weights=times).astype(np.int64)


def _rounded(values: Floats) -> Floats:
    """Numbers with `_DIGITS` binary digits; infinite ones stay infinite."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**_DIGITS), exponent - _DIGITS)) + 0.0


def miss_bets(misses: Any, rate: float) -> Floats:
    """Bets against "the rate of misses is at most `rate`", shape (m, B), in logarithms."""
    odds = np.array(_ODDS)
    return np.asarray(misses[:, None] * np.log(odds) - np.log1p((odds - 1.0) * rate))


def rank_bets(p_values: Floats, alpha: float) -> Floats:
    """Bets that more than a share alpha of p-values is at most alpha: scores have risen."""
    return miss_bets(p_values <= alpha, alpha)


def tail_bets(p_values: Floats) -> Floats:
    """Bets that p-values are not uniform: more of them low, or high."""
    odds = np.array(_TAIL_ODDS)
    tails = [p_values <= _TAIL, p_values >= 1.0 - _TAIL]
    steps = [tail[:, None] * np.log(odds) - np.log1p((odds - 1.0) * _TAIL) for tail in tails]
    slopes = np.log1p(np.array(_SLOPES) * (2.0 * p_values[:, None] - 1.0))
    return np.hstack([*steps, slopes])


@final
@storable
@dataclass
class Evidence:
    """Capital of several bets, as logarithms.

    Attributes
    ----------
    wealth : array of shape (B,)
        Logarithm of what each bet has made of its started parts.
    count : int
        Samples that were bet on.
    now, peak : float
        Log evidence after the last sample, and the largest after any sample so far.
    alarm_at : int
        Sample at which evidence first reached what an alarm needs; 0 if it never did.
    """

    wealth: Floats
    count: int = 0
    peak: float = 0.0
    alarm_at: int = 0
    now: float = 0.0

    @classmethod
    def start(cls, n_bets: int) -> "Evidence":
        """Capital of 1 that has not started to bet."""
        return cls(np.full(n_bets, -np.inf))

    def check_state(self) -> None:
        """Refuse what no stream gives, for `storage`."""
        numbers = self.wealth.ndim == 1 and not np.isnan(self.wealth).any()
        require(numbers and not np.isposinf(self.wealth).any(), "Evidence.wealth", "must be finite")
        counted = 0 <= self.alarm_at <= self.count < MOST_SAMPLES
        require(counted, "Evidence.count", "must not be below the sample of the alarm")
        require(max(0.0, self.now) <= self.peak < np.inf, "Evidence.peak", "must be the largest")

    def update(self, bets: Floats, needed: float) -> None:
        """Bet on samples in their order.

        Parameters
        ----------
        bets : array of shape (m, B)
            Logarithm of the factor by which each bet multiplies its capital at each sample.
        needed : float
            Log evidence that an alarm needs.
        """
        if len(bets) == 0:
            return
        waiting = _waiting(self.count + np.arange(len(bets) + 1))
        begun = np.log(waiting[:-1] - waiting[1:])
        product = np.cumsum(bets, axis=0)
        # R_t = P_t (R_0 + sum_{s <= t} w_s / P_{s-1}), where P_t is the product of the factors.
        earlier = np.vstack([np.zeros(bets.shape[1]), product[:-1]])
        started = np.vstack([self.wealth, begun[:, None] - earlier])
        wealth = product + np.logaddexp.accumulate(started, axis=0)[1:]
        mean = special.logsumexp(wealth, axis=1) - np.log(bets.shape[1])
        total = np.logaddexp(np.log(waiting[1:]), mean)
        reached = np.flatnonzero(total >= needed)
        if reached.size and not self.alarm_at:
            self.alarm_at = self.count + int(reached[0]) + 1
        self.wealth, self.now = wealth[-1], float(total[-1])
        self.count, self.peak = self.count + len(bets), max(self.peak, float(total.max()))


def _waiting(count: Any) -> Floats:
    """Share of the capital that has not started to bet after so many samples."""
    return np.asarray(np.log(_DELAY) / np.log(count + _DELAY))


def share_intervals(hits: Floats, count: Floats, level: float) -> tuple[Floats, Floats]:
    """Time-uniform interval of a probability from so many hits of so many trials, elementwise.

    The probabilities p at which the likelihood of a mixture over all probabilities is less than
    1 / (1 - level) times that of p (Robbins 1970; Howard, Ramdas, McAuliffe and Sekhon 2021).

    Examples
    --------
    >>> low, high = share_intervals(np.array([900.0]), np.array([1000.0]), level=0.95)
    >>> round(float(low[0]), 3), round(float(high[0]), 3)
    (0.862, 0.931)
    """
    misses = count - hits
    mixture = special.betaln(hits + _PRIOR, misses + _PRIOR) - special.betaln(_PRIOR, _PRIOR)

    def is_out(p: Floats) -> Floats:
        likelihood = special.xlogy(hits, p) + special.xlog1py(misses, -p)
        return np.asarray(mixture - likelihood >= -np.log1p(-level))

    centre = np.where(count > 0, hits / np.maximum(count, 1.0), 0.5)
    ends = []
    for bound in (0.0, 1.0):
        outer, inner = np.full(centre.shape, bound), centre.copy()
        with np.errstate(divide="ignore"):
            for _ in range(_STEPS):
                middle = (outer + inner) / 2.0
                out = is_out(middle)
                outer, inner = np.where(out, middle, outer), np.where(out, inner, middle)
        ends.append(outer)
    return ends[0], ends[1]


@final
@storable
@dataclass
class MeanTrack:
    """Sums from which a time-uniform interval of a bounded mean follows.

    The empirical Bernstein bound with bets made of the past alone (Waudby-Smith and Ramdas 2024,
    theorem 2), for numbers in [0, 1].

    Examples
    --------
    >>> track = MeanTrack()
    >>> track.add(np.tile([0.2, 0.4], 500), level=0.95)
    >>> [round(float(end), 2) for end in track.interval(level=0.95)]
    [0.29, 0.31]
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    bets: float = 0.0
    products: float = 0.0
    spent: float = 0.0

    def check_state(self) -> None:
        """Refuse what no numbers give, for `storage`."""
        numbers = (self.total, self.squares, self.bets, self.products, self.spent)
        sums = all(0.0 <= number < MOST_SAMPLES for number in (self.count, *numbers))
        started = (self.bets > 0.0) == (self.count > 0)
        require(sums and started, "MeanTrack.total", "must be sums of numbers in [0, 1]")

    def add(self, values: Floats, level: float) -> None:
        """Take numbers in [0, 1] in their order."""
        if values.size == 0:
            return
        number = self.count + np.arange(1, values.size + 1)
        sums = self.total + np.cumsum(values)
        mean_after = (0.5 + sums) / (number + 1)
        mean_before = np.concatenate([[(0.5 + self.total) / number[0]], mean_after[:-1]])
        squares = self.squares + np.cumsum((values - mean_after) ** 2)
        before = np.concatenate([[self.squares], squares[:-1]])
        variance = (0.25 + before) / number
        size = 2.0 * np.log(2.0 / (1.0 - level)) / (variance * number * np.log1p(number))
        bets = np.minimum(np.sqrt(size), _LARGEST_BET)
        self.spent += float(np.sum((values - mean_before) ** 2 * (-np.log1p(-bets) - bets)))
        self.bets += float(bets.sum())
        self.products += float(bets @ values)
        self.count, self.total, self.squares = int(number[-1]), float(sums[-1]), float(squares[-1])

    @property
    def mean(self) -> float:
        """Mean of the numbers; NaN for none."""
        return self.total / self.count if self.count else float("nan")

    def interval(self, level: float) -> tuple[float, float]:
        """Interval of the mean, at the level that `add` was given."""
        if not self.count:
            return 0.0, 1.0
        centre = self.products / self.bets
        half = (np.log(2.0 / (1.0 - level)) + self.spent) / self.bets
        return max(centre - half, 0.0), min(centre + half, 1.0)
