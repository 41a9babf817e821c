"""Oracle sets, for data whose true probabilities are known."""

from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets._common.quantiles import check_alphas
from trustsets._common.validation import check_classes, check_probabilities
from trustsets.sets import PredictionSets
from trustsets.status import Status

__all__ = ["oracle_sets"]


# Sums of K float64 probabilities err by much less than this; nearer to the target than
# this, the comparison is made again in exact arithmetic.
_CLOSE = 1e-9


def oracle_sets(probabilities: Any, alpha: Any = 0.1, classes: Any = None) -> PredictionSets:
    """Smallest sets of most likely classes with total true probability at least 1 - alpha.

    With true probabilities p_(1) >= p_(2) >= ... of a sample, its set holds the k most
    likely classes (the first columns among equals), k the smallest number with
    ``p_(1) + ... + p_(k) >= 1 - alpha`` (section 2.2 of the paper). Coverage then holds for
    every single sample, and no sets with that property are smaller. They are the best that
    any method can reach on simulated data.

    Sums near 1 - alpha are compared exactly, and probabilities and alpha are read as the
    decimals they print as: ten classes of 0.1 give nine at alpha = 0.1.

    Parameters
    ----------
    probabilities : array of shape (m, K)
        ``P(Y = y | X = x)``; rows sum to 1 up to rounding, and are compared with
        ``1 - alpha`` of their sum.
    alpha : float or sequence of float
        Allowed miscoverage.
    classes : sequence of length K, optional
        Names of the classes; default ``0..K-1``.

    Returns
    -------
    PredictionSets
        Its thresholds are in the scale of `APS`, where s(x, y) is the probability of the
        classes ranked before y: the largest s of the classes in the set.

    Examples
    --------
    >>> sets = oracle_sets([[0.6, 0.3, 0.1], [0.1, 0.0, 0.9]], alpha=0.1, classes=list("abc"))
    >>> [own.tolist() for own in sets]
    [['a', 'b'], ['c']]
    """
    alphas, single = check_alphas(alpha)
    values = check_probabilities(probabilities).astype(np.float64)
    names = check_classes(classes, None, values.shape[1])
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    counts = np.stack([_counts(ranked, own) for own in alphas], axis=1)
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(values.shape[1])[None, :], axis=1)
    mask = places[:, :, None] < counts[:, None, :]
    above = np.hstack([np.zeros((len(ranked), 1)), np.cumsum(ranked[:, :-1], axis=1)])
    thresholds = np.take_along_axis(above, counts - 1, axis=1)
    status = np.full(counts.shape, Status.EXACT, dtype=np.int8)
    sets = PredictionSets(mask, thresholds, status, alphas, names)
    return sets.at(alphas[0]) if single else sets


def _counts(ranked: Floats, alpha: float) -> NDArray[np.int64]:
    """Size of each set: exact where the running sum comes close to the target."""
    mass = np.cumsum(ranked, axis=1)
    target = (1.0 - alpha) * mass[:, -1:]
    counts: NDArray[np.int64] = np.count_nonzero(mass < target, axis=1) + 1
    for row in np.flatnonzero((np.abs(mass - target) < _CLOSE).any(axis=1)):
        counts[row] = _exact_count(ranked[row], alpha)
    return counts


def _exact_count(ranked: Floats, alpha: float) -> int:
    terms = [Fraction(repr(value)) for value in ranked.tolist()]
    target = (1 - Fraction(repr(alpha))) * sum(terms)
    return next(count for count, mass in enumerate(accumulate(terms), 1) if mass >= target)
