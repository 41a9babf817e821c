"""Equal calibration points are merged into one point with a number of copies.

A sum over points then has one term for all copies, and a path passes them in one pivot.
"""

import numpy as np

from trustsets.engine.compiled import FloatArray, IntArray, entry

__all__ = ["distinct_points"]


def distinct_points(phi: FloatArray, scores: FloatArray) -> tuple[IntArray, FloatArray, IntArray]:
    """First row number and number of copies of every different point, in order of the first.

    The third array holds the number of the different point of each row. Equal points have equal
    keys, so sorting by key makes them neighbours. A different point with the same key may come
    between two copies. These then stay apart, which costs time only.
    """
    key = np.empty(len(scores))
    largest = np.abs(phi).max(axis=0, initial=0.0)
    factors = np.sqrt(2.0 + np.arange(phi.shape[1])) / np.where(largest > 0.0, largest, 1.0)
    _point_keys(phi, scores, factors, key)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    again = 1 + np.flatnonzero(ordered[1:] == ordered[:-1])
    here, before = order[again], order[again - 1]
    again = again[(scores[here] == scores[before]) & (phi[here] == phi[before]).all(axis=1)]
    is_new = np.ones(len(scores), np.bool_)
    is_new[again] = False
    first, group = order[is_new], np.cumsum(is_new) - 1
    copies = np.bincount(group).astype(np.float64)
    sorting = np.argsort(first)
    place, point = np.empty(len(first), np.int64), np.empty(len(scores), np.int64)
    place[sorting] = np.arange(len(first))
    point[order] = place[group]
    return first[sorting], copies[sorting], point


@entry()
def _point_keys(phi: FloatArray, scores: FloatArray, factors: FloatArray, out: FloatArray) -> None:
    """Store one key per point; equal points get equal bits because the order of sums is fixed."""
    for i in range(len(scores)):
        total = scores[i]
        for j in range(len(factors)):
            total += factors[j] * phi[i, j]
        out[i] = total
