"""Ranks of labels by probability; of equal probabilities the lower column comes first."""

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats


def count_up_to(by_rank: Floats, threshold: Floats) -> Codes:
    """How many ranks have a score of at most the threshold; scores never decrease."""
    above = by_rank > threshold[:, None]
    count: Codes = np.where(above[:, -1], above.argmax(axis=1), by_rank.shape[1])
    return count


def ranks_of(probabilities: Floats, codes: Codes) -> Codes:
    """0-based rank of one label per row; among equals the lower column comes first."""
    own = np.take_along_axis(probabilities, codes[:, None], axis=1)
    before = np.arange(probabilities.shape[1]) < codes[:, None]
    ahead = (probabilities > own) | ((probabilities == own) & before)
    ranks: Codes = np.count_nonzero(ahead, axis=1)
    return ranks


def most_likely(probabilities: Floats, ranked: Floats, count: Codes) -> NDArray[np.bool_]:
    """Mark the `count` most likely labels of each row; among equals the lower columns.

    `ranked` holds the probabilities of each row in decreasing order.
    """
    last = np.take_along_axis(ranked, np.maximum(count - 1, 0)[:, None], axis=1)
    mask: NDArray[np.bool_] = probabilities >= last
    mask[count == 0] = False
    after = np.minimum(count, ranked.shape[1] - 1)
    following = np.take_along_axis(ranked, after[:, None], axis=1)
    tied_rows = np.flatnonzero((following == last)[:, 0] & (count > 0) & (count <= after))
    # Where equal probabilities lie on both sides of the cut, the first columns are taken.
    if tied_rows.size:
        tied = probabilities[tied_rows] == last[tied_rows]
        mask[tied_rows] &= ~tied
        places = count[tied_rows] - np.count_nonzero(mask[tied_rows], axis=1)
        mask[tied_rows] |= tied & (np.cumsum(tied, axis=1) <= places[:, None])
    return mask
