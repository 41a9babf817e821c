"""Ranks and quantiles of split conformal prediction, in exact arithmetic."""

from collections.abc import Sequence
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import to_numpy
from trustsets.errors import InputError


def check_alpha(alpha: Any) -> float:
    """Return alpha, the miscoverage asked for, as a float strictly between 0 and 1, or raise."""
    if isinstance(alpha, bool) or not isinstance(alpha, Real | np.floating):
        raise InputError(
            f"alpha must be a number strictly between 0 and 1; got {type(alpha).__name__}."
        )
    # A float32 0.1 prints as 0.1: that decimal is meant, not the nearest float32.
    number = float(str(alpha)) if isinstance(alpha, np.floating) else float(alpha)
    if not 0.0 < number < 1.0:
        raise InputError(f"alpha must lie strictly between 0 and 1; got {alpha}.")
    return number


def check_alphas(alpha: Any) -> tuple[tuple[float, ...], bool]:
    """Return the alphas as a tuple, and whether a single number was given."""
    if isinstance(alpha, Sequence | np.ndarray) and not isinstance(alpha, str):
        n_dimensions = to_numpy(alpha, "alpha").ndim
        if n_dimensions == 1 and len(alpha) > 0:
            return tuple(check_alpha(item) for item in alpha), False
        if n_dimensions != 0:
            raise InputError("alpha must be a number or a non-empty flat sequence of numbers.")
        alpha = alpha.item() if isinstance(alpha, np.ndarray) else alpha
    return (check_alpha(alpha),), True


def conformal_rank(n: int, alpha: float) -> int:
    """Smallest k with k >= (n + 1)(1 - alpha); the threshold is the k-th smallest score.

    Alpha is read as the decimal number it prints as: ``100 * (1 - 0.45)`` is 55.00000000000001.
    """
    share = (n + 1) * (1 - Fraction(repr(float(alpha))))
    return -(-share.numerator // share.denominator)


def conformal_quantile(sorted_scores: NDArray[np.float64], alpha: float) -> float:
    """Finite-sample quantile of ascending scores; +inf when there are too few of them."""
    rank = conformal_rank(sorted_scores.size, alpha)
    return float(sorted_scores[rank - 1]) if rank <= sorted_scores.size else np.inf
