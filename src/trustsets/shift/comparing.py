"""How much weighted samples tell, and whether they are distributed as others are."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Floats

__all__ = ["effective_size", "equal_means", "same_distribution"]


def effective_size(weights: Floats) -> float:
    """(sum of weights)^2 / sum of squares; 0 where all are 0.

    Examples
    --------
    >>> effective_size(np.array([1.0, 1.0, 0.0])), effective_size(np.zeros(2))
    (2.0, 0.0)
    """
    squares = float(np.sum(weights**2))
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def same_distribution(values: Floats, weights: Floats, new: Floats) -> float:
    """P-value of the largest distance of two distribution functions, the first weighted."""
    from scipy.special import kolmogorov

    order, ordered = np.argsort(values), np.sort(new)
    total = np.concatenate([[0.0], np.cumsum(weights[order])])
    grid = np.concatenate([values, new])
    mine = total[np.searchsorted(values[order], grid, side="right")] / total[-1]
    theirs = np.searchsorted(ordered, grid, side="right") / new.size
    size = weights.sum() ** 2 / np.sum(weights**2)
    scale = np.sqrt(size * new.size / (size + new.size))
    return float(kolmogorov(scale * np.abs(mine - theirs).max()))


def equal_means(blocks: Iterable[Floats], is_new: NDArray[np.bool_], weights: Floats) -> float:
    """P-value of equal means of all columns among weighted calibration samples and new ones."""
    from scipy.special import ndtr

    count, farthest, total = 0, 0.0, weights.sum()
    for block in blocks:
        values = block.astype(np.float64)
        old, new = values[~is_new], values[is_new]
        mean = weights @ old / total
        variance = weights**2 @ (old - mean) ** 2 / total**2 + new.var(axis=0) / len(new)
        # A constant that rounding made vary says nothing.
        seen = variance > (1e-9 * np.abs(values).max(axis=0)) ** 2
        gaps = np.abs(mean - new.mean(axis=0))[seen] / np.sqrt(variance[seen])
        count, farthest = count + gaps.size, float(max([farthest, *gaps]))
    return float(min(1.0, 2.0 * count * ndtr(-farthest))) if count else 1.0
