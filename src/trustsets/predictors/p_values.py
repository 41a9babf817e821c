r"""P-values of all classes: at which alpha each class leaves the set.

For alphas :math:`a_1 < \dots < a_A` and nested sets, :math:`p(x, y)` is the smallest alpha of the
grid at which y is not in the set of x, and 1 if y is in all of them. Then y is in the set at
:math:`a_j` exactly if :math:`p(x, y) > a_j`, and :math:`P(p\le a)\le a` for every a, because
between two alphas of the grid nothing changes.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array, Floats
from trustsets._common.quantiles import check_alphas
from trustsets.engine import default_alphas
from trustsets.predictors.thresholds import SampleThresholds

__all__ = ["PointPredictions", "count_alphas", "grid_of", "p_from_counts", "point_predictions"]


@final
@dataclass(frozen=True)
class PointPredictions:
    """The most plausible class of each sample, and how sure that is.

    Attributes
    ----------
    labels : array of shape (m,)
        The class with the largest p-value; of several, the one with the lowest score.
    confidence : array of shape (m,)
        One minus the second largest p-value: the largest 1 - alpha whose set holds no other class.
    credibility : array of shape (m,)
        The largest p-value. If it is small, no class suits the sample.
    """

    labels: Array
    confidence: Floats
    credibility: Floats


def grid_of(alphas: Any, smallest: float = 0.0) -> tuple[float, ...]:
    """The alphas in increasing order, or those of the default grid that are at least `smallest`."""
    if alphas is None:
        grid = default_alphas()
        alphas = grid[grid >= min(smallest, grid[-1])]
    return tuple(sorted(set(check_alphas(alphas)[0])))


def count_alphas(scores: Floats, found: SampleThresholds) -> NDArray[np.int64]:
    """At how many alphas each class is within the threshold, shape (m, K)."""
    counts = np.zeros(scores.shape, np.int64)
    for place in range(found.values.shape[-1]):
        limit = found.values[..., place]
        counts += scores <= (limit[:, None] if limit.ndim == 1 else limit)
    return counts


def p_from_counts(counts: NDArray[np.int64], grid: tuple[float, ...]) -> Floats:
    """P-values of classes that are in the sets of the first so many alphas.

    Examples
    --------
    >>> p_from_counts(np.array([[0, 1, 2]]), (0.1, 0.2))
    array([[0.1, 0.2, 1. ]])
    """
    return np.append(grid, 1.0)[counts]


def point_predictions(p: Floats, scores: Floats, classes: Array) -> PointPredictions:
    """Confidence and credibility from p-values.

    Examples
    --------
    >>> p, scores = np.array([[0.05, 0.9, 0.2]]), np.array([[3.0, 1.0, 2.0]])
    >>> found = point_predictions(p, scores, np.array(["a", "b", "c"]))
    >>> found.labels.tolist(), found.confidence.tolist(), found.credibility.tolist()
    (['b'], [0.8], [0.9])
    """
    best = np.lexsort((scores, -p), axis=1)
    rows = np.arange(len(p))
    others = p[rows, best[:, 1]] if p.shape[1] > 1 else np.zeros(len(p))
    return PointPredictions(classes[best[:, 0]], 1.0 - others, p[rows, best[:, 0]])
