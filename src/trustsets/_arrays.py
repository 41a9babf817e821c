"""Arrays of any library become checked NumPy arrays here, and labels their ranks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError

Array = NDArray[Any]
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Alphas = tuple[float, ...]

MISSING = "(missing)"
"""The group of the samples whose value in a group column is missing."""

# Finiteness is checked in pieces of this many numbers, so that checking a large
# memory-mapped array never brings the whole of it into memory.
_PIECE = 1 << 22


def to_numpy(value: Any, name: str) -> Array:
    """Return `value` (NumPy, pandas, torch, list) as a NumPy array, without copying if possible."""
    if type(value).__module__.split(".")[0] == "torch":
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            value = value.float()
        return np.asarray(value.numpy())
    try:
        array: Array = np.asanyarray(value)
    except ValueError as error:  # lists of different lengths
        raise InputError(f"{name} must be an array: {error}.") from None
    if isinstance(array, np.ma.MaskedArray):
        raise InputError(f"{name} must not be a masked array; fill or drop the masked entries.")
    return array


def floating_matrix(value: Any, name: str) -> Array:
    """Check a two-dimensional, non-empty, finite array; integers become float64."""
    array = to_numpy(value, name)
    if array.ndim != 2:
        raise InputError(
            f"{name} must have two dimensions, one row per sample; got shape {array.shape}."
        )
    if array.shape[0] == 0 or array.shape[1] == 0:
        raise InputError(f"{name} must not be empty; got shape {array.shape}.")
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype.kind != "f":
        raise InputError(f"{name} must hold real numbers; got dtype {array.dtype}.")
    if array.dtype.itemsize > 8 or not array.dtype.isnative:
        array = array.astype(np.float64)
    _check_finite(array, name)
    return read_only(array)


def _check_finite(array: Array, name: str) -> None:
    """Raise an error that names the first row with NaN or infinity."""
    rows = max(1, _PIECE // array.shape[1])
    for start in range(0, array.shape[0], rows):
        piece = np.isfinite(array[start : start + rows])
        if not piece.all():
            row, column = np.argwhere(~piece)[0]
            raise InputError(
                f"{name} must be finite; row {start + row}, column {column} holds "
                f"{array[start + row, column]}. Drop or repair such rows first."
            )


def column(value: Any, name: str, n: int) -> Array:
    """Check one value per sample, none of them missing."""
    array = to_numpy(value, name)
    if array.shape != (n,):
        raise InputError(f"{name} must have shape ({n},), one per sample; got {array.shape}.")
    missing = ~np.isfinite(array) if array.dtype.kind == "f" else np.zeros(0, bool)
    if array.dtype.kind == "O":
        missing = np.array([is_missing(item) for item in array], bool)
    if missing.any():
        raise InputError(
            f"{name} must not hold missing values, NaN or infinity; row {missing.argmax()} does. "
            "Fill or drop such rows first."
        )
    return read_only(array)


def group_column(value: Any, name: str, n: int) -> Array:
    """Check one group per sample; missing values become the group `MISSING`.

    Groups are told apart by their texts. Integers become floats where one is missing, so floats
    without a fraction are taken as integers.
    """
    array = to_numpy(value, name)
    if array.dtype.kind not in "fmMO" or array.shape != (n,):
        return column(array, name, n)
    items = array.tolist()
    if array.dtype.kind in "mM":
        items = [None if text == "NaT" else text for text in array.astype(str).tolist()]
    missing = np.array([is_missing(item) for item in items], dtype=bool)
    present = [item for item, gone in zip(items, missing, strict=True) if not gone]
    if not missing.any() and not any(isinstance(item, float) for item in present):
        return column(array, name, n)
    if any(isinstance(item, float) and np.isinf(item) for item in present):
        raise InputError(f"{name} must not hold infinity.")
    texts = np.full(n, MISSING, dtype=object)
    texts[~missing] = [_group_text(item) for item in present]
    return read_only(texts.astype(str))


def _group_text(item: Any) -> str:
    return str(int(item)) if isinstance(item, float) and item.is_integer() else str(item)


def is_missing(item: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NA or NaT."""
    if type(item).__name__ in {"NAType", "NaTType"}:  # pandas' own, without importing pandas
        return True
    return item is None or (isinstance(item, float) and np.isnan(item))


def texts_of(values: Array) -> list[str]:
    """Values of a column as texts; objects are not padded to the longest of them."""
    is_object = values.dtype.kind == "O"
    return [str(item) for item in (values if is_object else values.astype(str).tolist())]


def read_only(array: Array) -> Array:
    """Return a view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


def ranks_of(probabilities: Floats, codes: Codes) -> Codes:
    """0-based rank of one label per row; among equals the lower column comes first."""
    labels = np.take_along_axis(probabilities, codes[:, None], axis=1)
    before = np.arange(probabilities.shape[1]) < codes[:, None]
    ahead = (probabilities > labels) | ((probabilities == labels) & before)
    ranks: Codes = np.count_nonzero(ahead, axis=1)
    return ranks
