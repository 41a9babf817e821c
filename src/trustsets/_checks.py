"""The rules for the arguments of `ModelOutputs`, and for numbers, one function each."""

import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import (
    Array,
    column,
    floating_matrix,
    group_column,
    read_only,
    to_numpy,
)
from trustsets._blocks import row_blocks
from trustsets._frames import flavour_of, frame_names
from trustsets.errors import InputError, TrustSetsWarning

# Probabilities written with three digits: each is off by half a thousandth at most. A row whose sum
# is farther from 1 than this explains is refused, and so is one that is off by a tenth.
_DECIMAL_ROUNDING = 5e-4
_LARGEST_GAP = 0.1
# Sums this close to 1 are never repaired: classifiers round, and what was equal should stay so.
_CLOSE_SUM = 1e-8
# Rows of logits that sum to 1 as closely as this, without a negative number, are probabilities.
_LOOKS_LIKE_SUM = 1e-3
# No count of anything reaches this, and compiled code could not hold it.
_TOO_MANY = 1 << 31


def encode_labels(labels: Array, classes: Array, name: str = "labels") -> NDArray[np.int64]:
    """Positions of `labels` in `classes`, or an error that names the first unknown label."""
    is_range = classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(classes.size))
    if is_range and labels.dtype.kind in "iu":
        codes = labels.astype(np.int64)
        unknown = (codes < 0) | (codes >= classes.size)
    else:
        positions = {value: code for code, value in enumerate(classes.tolist())}
        try:
            columns = [positions.get(value, -1) for value in labels.tolist()]
        except TypeError:
            raise InputError(f"{name} must be names of classes, not lists or dicts.") from None
        codes = np.array(columns, dtype=np.int64)
        unknown = codes < 0
    if unknown.any():
        row = int(np.argmax(unknown))
        raise InputError(
            f"{name} must be among the {classes.size} classes; row {row} holds "
            f"{labels.tolist()[row]!r}. Pass classes= in the order of the columns, or repair the "
            "labels."
        )
    return codes


def check_probabilities(value: Any) -> Array:
    """Rows are non-negative and sum to 1, at least up to decimal rounding."""
    array = floating_matrix(value, "probabilities")
    rounding = rounding_of_sums(array)
    tolerance = max(rounding, min(_DECIMAL_ROUNDING * (array.shape[1] + 1), _LARGEST_GAP))
    lowest, highest, n_off = 1.0, 1.0, 0
    for block in row_blocks(*array.shape):
        piece = array[block].astype(np.float64)
        if piece.min() < 0.0:
            row = block.start + int(np.argmax(piece.min(axis=1) < 0.0))
            raise InputError(
                f"probabilities must not be negative; row {row} has {array[row].min()}. "
                "If these are logits, pass them as logits=."
            )
        sums = piece.sum(axis=1)
        wrong = np.abs(sums - 1.0) > tolerance
        n_off += int(np.count_nonzero(np.abs(sums - 1.0) > rounding))
        lowest, highest = min(lowest, float(sums.min())), max(highest, float(sums.max()))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"rows of probabilities must sum to 1; row {block.start + row} sums to "
                f"{sums[row]:.6g}. If these are logits, pass them as logits=."
            )
    if n_off:
        warnings.warn(
            f"{n_off:,} of {len(array):,} rows of probabilities do not sum to 1 (sums from "
            f"{lowest:.6g} to {highest:.6g}), as if they were rounded; these rows are divided by "
            "their sum. Pass unrounded probabilities, or logits, for exact ties.",
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


def check_features(value: Any, n: int) -> Array:
    """One row of finite numbers per sample."""
    array = floating_matrix(value, "features")
    if array.shape[0] != n:
        raise InputError(
            f"features must have one row per sample; got {array.shape[0]} rows for {n} samples."
        )
    return array


def check_trust(value: Any, n: int) -> NDArray[np.float64]:
    """One number per sample, which may be infinite but not missing."""
    trust = to_numpy(value, "trust")
    if trust.shape != (n,) or trust.dtype.kind not in "fiu" or np.isnan(trust).any():
        raise InputError(
            f"trust must be an array of shape ({n},) without NaN; got shape {trust.shape} and type "
            f"{trust.dtype}. A fitted TrustScore goes to the predictor."
        )
    return read_only(trust.astype(np.float64))


def check_classes(value: Any, labels: Array | None, n_classes: int) -> Array:
    """Name the columns: as given, as integers from zero, or from the labels."""
    if value is not None:
        classes = to_numpy(value, "classes")
        if classes.shape != (n_classes,):
            raise InputError(
                f"classes must name the {n_classes} columns; got shape {classes.shape}."
            )
        if len(set(classes.tolist())) != n_classes:
            raise InputError("classes must be distinct; a name occurs twice.")
        return read_only(classes)
    if labels is None:
        return read_only(np.arange(n_classes))
    distinct = _distinct(labels)
    if distinct.dtype.kind in "iu" and distinct[0] >= 0 and distinct[-1] < n_classes:
        if n_classes > 2 and np.array_equal(distinct, np.arange(1, n_classes)):
            raise InputError(
                f"labels are all of 1 to {n_classes - 1} for {n_classes} columns: positions of "
                f"which 0 does not occur, or names 1 to {n_classes} of which the last does not. "
                "Pass classes= in the order of the columns, such as classes=range(K)."
            )
        return read_only(np.arange(n_classes))
    if distinct.dtype.kind == "i" and distinct[:2].tolist() == [-1, 0]:
        # As a class name, the usual mark of unlabelled samples would shift all columns by one.
        raise InputError(
            "labels hold -1 among positions of columns, where it often marks a sample without a "
            "label; leave such samples out, or pass classes= in the order of the columns."
        )
    if distinct.size != n_classes:
        raise InputError(
            f"labels have {distinct.size} distinct values (such as {distinct.tolist()[0]!r}) for "
            f"{n_classes} columns, so the columns cannot be named; pass classes= in their order."
        )
    return read_only(distinct)


def _distinct(labels: Array) -> Array:
    try:
        return np.unique(labels)
    except TypeError:
        raise InputError(
            "labels mix types that cannot be sorted; pass classes= in the order of the columns."
        ) from None


def check_groups(value: Any, n: int) -> dict[str, Array]:
    """Columns by name, from an array, a mapping or a frame."""
    if value is None:
        return {}
    names: Any = value
    if flavour_of(value) is not None:
        names = frame_names(value, "groups")
    elif not isinstance(value, Mapping):
        value = names = {"group": value}
    return {str(name): group_column(value[name], f"groups[{name!r}]", n) for name in names}


def check_rows(value: Any, n: int) -> NDArray[np.int64]:
    """Identities are non-negative integers; by default they count from zero."""
    if value is None:
        return read_only(np.arange(n, dtype=np.int64))
    array = column(value, "rows", n)
    if array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise InputError("rows must be non-negative integers that identify the samples.")
    return read_only(array.astype(np.int64))


def check_number(value: Any, name: str, largest: float) -> float:
    """Return a number between 0 and `largest` as a float, or raise."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not (number and 0.0 <= float(value) <= largest):
        raise InputError(f"{name} must be a number between 0 and {largest:g}; got {value!r}.")
    return float(value)


def check_open(**numbers: Any) -> None:
    """Raise unless each of the numbers, which are arguments by name, is between 0 and 1."""
    for name, value in numbers.items():
        if not (isinstance(value, Real) and 0.0 < float(value) < 1.0):
            raise InputError(f"{name} must lie strictly between 0 and 1; got {value}.")


def check_least(least: int, **numbers: Any) -> None:
    """Raise unless each of the numbers, which are arguments by name, is at least `least`."""
    for name, value in numbers.items():
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not (whole and least <= int(value) < _TOO_MANY):
            raise InputError(f"{name} must be a whole number, {least} or more; got {value}.")


def check_not_negative(**numbers: Any) -> None:
    """Raise unless each of the numbers, which are arguments by name, is finite and not negative."""
    for name, value in numbers.items():
        if not (isinstance(value, Real) and 0.0 <= float(value) < np.inf):
            raise InputError(f"{name} must be finite and not negative; got {value}.")


def check_choice(value: Any, name: str, *choices: str) -> None:
    """Raise unless the value is one of some texts."""
    if not (isinstance(value, str) and value in choices):
        texts = [f'"{choice}"' for choice in choices]
        words = " or ".join([", ".join(texts[:-1]), texts[-1]])
        raise InputError(f"{name} must be {words}; got {value!r:.60}.")


def check_flags(**flags: Any) -> None:
    """Raise unless each of the values, which are arguments by name, is True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise InputError(f"{name} must be True or False; got {value!r:.60}.")
