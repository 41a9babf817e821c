"""Intervals of coverage and of set sizes that hold at all times at once.

The usual interval holds at one number of samples that was fixed before. These hold at every number
of samples together, so that one may look after each batch.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy import special

from trustsets._common.arrays import Floats
from trustsets._common.storage import require, storable

__all__ = ["MeanTrack", "share_intervals"]

# Steps of a bisection in [0, 1], and the prior Beta(1/2, 1/2) of the mixture.
_STEPS = 60
_PRIOR = 0.5
_LARGEST_BET = 0.5


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
        fits = self.count >= 0 and np.isfinite(numbers).all() and min(numbers) >= 0.0
        require(fits, "MeanTrack.total", "must be sums of numbers in [0, 1]")

    def add(self, values: Floats, level: float) -> None:
        """Take numbers in [0, 1] in their order."""
        if values.size == 0:
            return
        place = self.count + np.arange(1, values.size + 1)
        sums = self.total + np.cumsum(values)
        mean_after = (0.5 + sums) / (place + 1)
        mean_before = np.concatenate([[(0.5 + self.total) / place[0]], mean_after[:-1]])
        squares = self.squares + np.cumsum((values - mean_after) ** 2)
        before = np.concatenate([[self.squares], squares[:-1]])
        variance = (0.25 + before) / place
        size = 2.0 * np.log(2.0 / (1.0 - level)) / (variance * place * np.log1p(place))
        bets = np.minimum(np.sqrt(size), _LARGEST_BET)
        self.spent += float(np.sum((values - mean_before) ** 2 * (-np.log1p(-bets) - bets)))
        self.bets += float(bets.sum())
        self.products += float(bets @ values)
        self.count, self.total, self.squares = int(place[-1]), float(sums[-1]), float(squares[-1])

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
