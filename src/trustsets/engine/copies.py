"""Equal calibration points become one point that counts several times. Imports NumPy and numba.

Sums over points then take one term for all copies, and a path passes them in one pivot instead
of one each.
"""

import numpy as np
from numpy.typing import NDArray

from trustsets.engine.compiled import entry

__all__ = ["distinct_points"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def distinct_points(
    phi: NDArray[np.float64], scores: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """First row number and number of copies of every different point, in order of the first.

    Equal points have equal keys, so they are neighbours when sorted by key. Different points
    with one key may come between them; then some copies stay apart, which costs time only.
    """
    key = np.empty(len(scores))
    largest = np.abs(phi).max(axis=0, initial=0.0)
    factors = np.sqrt(2.0 + np.arange(phi.shape[1])) / np.where(largest > 0.0, largest, 1.0)
    point_keys(phi, scores, factors, key)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    again = 1 + np.flatnonzero(ordered[1:] == ordered[:-1])
    here, before = order[again], order[again - 1]
    again = again[(scores[here] == scores[before]) & (phi[here] == phi[before]).all(axis=1)]
    is_new = np.ones(len(scores), np.bool_)
    is_new[again] = False
    first = order[is_new]
    copies = np.bincount(np.cumsum(is_new) - 1).astype(np.float64)
    sorting = np.argsort(first)
    return first[sorting], copies[sorting]


@entry()
def point_keys(
    phi: NDArray[np.float64],
    scores: NDArray[np.float64],
    factors: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Store one number per point, the same for equal points: all are summed in one order."""
    for i in range(len(scores)):
        total = scores[i]
        for j in range(len(factors)):
            total += factors[j] * phi[i, j]
        out[i] = total
