"""Evidence that grows when a stream changes, with a false-alarm rate that holds at all times.

Evidence is the capital of a gambler who bets against the hypothesis that nothing has changed. Under
the hypothesis it is a test martingale (or smaller), so it ever reaches 1 / q with probability q at
most, however often and whenever one looks (Ville 1939). Nobody knows when a change comes: a part
of the capital starts to bet at every sample, as in the procedure of Shiryaev and Roberts, but with
parts that add up to 1, so that the false-alarm rate holds over an unlimited time.
"""

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from scipy import special

from trustsets._common.arrays import Floats
from trustsets._common.storage import require, storable

__all__ = ["Evidence", "miss_bets", "rank_bets", "tail_bets"]

# A bet multiplies the odds of a miss, or of a large score, by one of these.
_ODDS = (1.5, 2.5, 5.0)
# Bets on a shift of any statistic: odds of the lowest and of the highest tenth, and slopes.
_TAIL = 0.1
_TAIL_ODDS = (2.0, 4.0)
_SLOPES = (-0.8, 0.8)
# After t samples, log(c) / log(t + c) of the capital has not started to bet. Of all slow decays
# this costs little at late changes: about log t + 2 log log t in units of log evidence.
_DELAY = 20.0


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
    peak : float
        Largest log evidence so far.
    alarm_at : int
        Sample at which evidence first reached what an alarm needs; 0 if it never did.
    """

    wealth: Floats
    count: int = 0
    peak: float = 0.0
    alarm_at: int = 0
    now: float = field(default=0.0)

    @classmethod
    def start(cls, n_bets: int) -> "Evidence":
        """Capital of 1 that has not started to bet."""
        return cls(np.full(n_bets, -np.inf))

    def check_state(self) -> None:
        """Refuse what no stream gives, for `storage`."""
        fits = self.wealth.ndim == 1 and not np.isnan(self.wealth).any()
        require(fits, "Evidence.wealth", "must be numbers")
        counted = 0 <= self.alarm_at <= self.count and self.peak >= max(0.0, self.now)
        require(counted, "Evidence.count", "must not be below the sample of the alarm")

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
    steps = [own[:, None] * np.log(odds) - np.log1p((odds - 1.0) * _TAIL) for own in tails]
    slopes = np.log1p(np.array(_SLOPES) * (2.0 * p_values[:, None] - 1.0))
    return np.hstack([*steps, slopes])
