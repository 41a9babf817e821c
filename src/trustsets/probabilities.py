"""Checks of probabilities that are passed, and of logits that look like them."""

import warnings
from typing import Any

import numpy as np

from trustsets._arrays import Array, floating_matrix
from trustsets._blocks import row_blocks
from trustsets.errors import InputError, TrustSetsWarning

# Probabilities written with three digits: each is off by half a thousandth at most. A row whose sum
# is farther from 1 than this explains is refused, and so is one that is off by a tenth.
_DECIMAL_ROUNDING = 5e-4
_LARGEST_GAP = 0.1
# Sums this close to 1 are never repaired: classifiers round, and what was equal should stay so.
_CLOSE_SUM = 1e-8
# Rows of logits that sum to 1 as closely as this, without a negative number, are probabilities.
_LOOKS_LIKE_SUM = 1e-3


def check_probabilities(value: Any) -> Array:
    """Rows are non-negative and sum to 1, at least up to decimal rounding."""
    array = floating_matrix(value, "probabilities")
    lowest, sums = np.empty(len(array)), np.empty(len(array))
    for block in row_blocks(*array.shape):
        piece = array[block].astype(np.float64)
        lowest[block], sums[block] = piece.min(axis=1), piece.sum(axis=1)
    gaps, rounding = np.abs(sums - 1.0), rounding_of_sums(array)
    largest_gap = max(rounding, min(_DECIMAL_ROUNDING * (array.shape[1] + 1), _LARGEST_GAP))
    wrong = (lowest < 0.0) | (gaps > largest_gap)
    if wrong.any():
        row = int(np.argmax(wrong))
        rule = f"rows of probabilities must sum to 1; row {row} sums to {sums[row]:.6g}"
        if lowest[row] < 0.0:
            rule = f"probabilities must not be negative; row {row} has {array[row].min()}"
        raise InputError(f"{rule}. If these are logits, pass them as logits=.")
    if n_off := np.count_nonzero(gaps > rounding):
        warnings.warn(
            f"{n_off:,} of {len(array):,} rows of probabilities do not sum to 1 (sums from "
            f"{sums.min():.6g} to {sums.max():.6g}), as if they were rounded; these rows are "
            "divided by their sum. Pass unrounded probabilities, or logits, for exact ties.",
            TrustSetsWarning,
            stacklevel=4,
        )
    return array


def rounding_of_sums(probabilities: Array) -> float:
    """How far a sum of probabilities may be from 1 by the rounding of their type alone.

    Each number is off by at most half a unit in the last place, so that their sum is off by half an
    eps; classifiers that compute in the type itself lose a few more.
    """
    return max(_CLOSE_SUM, float(8 * np.finfo(probabilities.dtype).eps))


def warn_if_probabilities(logits: Array) -> None:
    """Warn where all rows of logits look like probabilities."""
    if logits.shape[1] < 2 or logits[0].min() < 0.0:
        return
    some = logits[:1000].astype(np.float64)
    sums = some.sum(axis=1)
    inside = ((some > 0.0) & (some < 1.0)).any()  # not indicators, which make small examples
    if inside and some.min() >= 0.0 and np.abs(sums - 1.0).max() <= _LOOKS_LIKE_SUM:
        warnings.warn(
            "logits look like probabilities: no number is negative, and rows sum to 1. Pass them "
            "as probabilities= unless they are logits.",
            TrustSetsWarning,
            stacklevel=4,
        )
