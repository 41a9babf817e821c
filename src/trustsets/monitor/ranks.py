"""Conformal p-values of a stream: the rank of each value among all before it.

If the values of a stream, those of the calibration samples first, come in random order, then the
p-values are independent and uniform, exactly, whatever the law of the values and however many are
equal (Vovk, Gammerman and Shafer 2005, chapter 8). That calibration samples are few, and thresholds
therefore not exact, is part of this statement.
"""

from dataclasses import dataclass, field
from typing import final

import numpy as np

from trustsets._common.arrays import Codes, Floats
from trustsets._common.storage import require, require_increasing, storable

__all__ = ["Bag"]

# Values are rounded to so many binary digits before they are compared, so that a bag of any number
# of them stays small. Rounded values tie, and ties are broken at random: p-values stay exact.
_DIGITS = 10
# Values that are ranked at a time; each is compared with all before it in the piece.
_PIECE = 256


@final
@storable
@dataclass
class Bag:
    """All values of a stream so far: distinct ones in increasing order, and how often each came.

    Examples
    --------
    >>> bag = Bag()
    >>> bag.add(np.array([1.0, 2.0, 2.0, 5.0]))
    >>> bag.p_values(np.array([4.0, 2.0]), draws=np.array([0.5, 0.5])).round(3).tolist()
    [0.3, 0.583]
    """

    values: Floats = field(default_factory=lambda: np.empty(0))
    counts: Codes = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return int(self.counts.sum())

    def check_state(self) -> None:
        """Refuse what no stream gives, for `storage`."""
        fits = self.values.ndim == 1 and self.values.shape == self.counts.shape
        require(fits, "Bag.counts", "must be one for each value")
        require(not np.isnan(self.values).any(), "Bag.values", "must not be NaN")
        require_increasing(self.values, "Bag.values", strictly=True)
        require((self.counts > 0).all(), "Bag.counts", "must be positive")

    def add(self, values: Floats) -> None:
        """Put values into the bag without ranking them."""
        self._merge(_rounded(values))

    def p_values(self, values: Floats, draws: Floats) -> Floats:
        """Rank values one after the other, and put each into the bag after it was ranked.

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
        rounded, found = _rounded(values), np.empty(values.size)
        for start in range(0, values.size, _PIECE):
            piece = slice(start, start + _PIECE)
            found[piece] = self._rank(rounded[piece], draws[piece])
            self._merge(rounded[piece])
        return found

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
        self.values, place = np.unique(joined, return_inverse=True)
        self.counts = np.bincount(place, weights=times).astype(np.int64)


def _rounded(values: Floats) -> Floats:
    """Numbers with `_DIGITS` binary digits; the largest of all kinds stay infinite."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**_DIGITS), exponent - _DIGITS)) + 0.0
