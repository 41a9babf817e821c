"""Arrays of any library, and the arguments of `ModelOutputs`, become checked NumPy arrays here."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trustsets._blocks import row_blocks
from trustsets.errors import InputError

Array = NDArray[Any]
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

Flavour = Literal["pandas", "polars", "pyarrow"]
"""The package that a frame is of."""
_FRAMES = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "Table"}

LARGEST_TRUST = 1e300
"""What stands for infinite trust, which would have no differences, means or edges of bins."""
MISSING = "(missing)"
"""The group of the samples whose value in a group column is missing."""


def to_numpy(value: Any, name: str) -> Array:
    """Return `value` (NumPy, pandas, torch, list) as a NumPy array, without copying if possible."""
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):  # torch's, also of a subclass
            value = value.detach().cpu()
            value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
        array: Array = np.asanyarray(value)
    except (RuntimeError, TypeError, ValueError) as error:  # sparse tensors, lists of other lengths
        raise InputError(f"{name} must be an array: {str(error).rstrip('.')}.") from None
    if isinstance(array, np.ma.MaskedArray):
        raise InputError(f"{name} must not be a masked array; fill or drop the masked entries.")
    # Rows of np.matrix are matrices again, and much of NumPy does without StringDType.
    return np.asarray(array.astype(object) if array.dtype.kind == "T" else array)


def objects_as_floats(array: Array) -> Array:
    """Numbers in an array of objects, which pandas' own types give, as float64; else the array."""
    if array.dtype.kind != "O" or any(isinstance(item, str | bytes) for item in array.flat):
        return array
    try:
        return array.astype(np.float64)
    except (OverflowError, TypeError, ValueError):
        return array


def floating_matrix(value: Any, name: str, n: int | None = None) -> Array:
    """Check a non-empty matrix of finite numbers, with n rows if asked; integers become float64."""
    array = objects_as_floats(to_numpy(value, name))
    if array.ndim != 2 or array.size == 0:
        rule = "must have two dimensions, one row per sample, and not be empty"
        raise InputError(f"{name} {rule}; got shape {array.shape}.")
    if n not in (None, len(array)):
        raise InputError(f"{name} must have one row per sample; got {len(array)} for {n} samples.")
    if array.dtype.kind not in "iubf":
        raise InputError(f"{name} must hold real numbers, none missing; got dtype {array.dtype}.")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8 or not array.dtype.isnative:
        array = array.astype(np.float64)
    # In blocks, so that a large memory-mapped array is never in memory as a whole.
    for block in row_blocks(*array.shape):
        is_finite = np.isfinite(array[block])
        if not is_finite.all():
            row, column = np.argwhere(~is_finite)[0] + (block.start, 0)
            raise InputError(
                f"{name} must be finite; row {row}, column {column} holds {array[row, column]}. "
                "Drop or repair such rows first."
            )
    return read_only(array)


def column(value: Any, name: str, n: int) -> Array:
    """Check one value per sample, none of them missing."""
    array = to_numpy(value, name)
    if array.shape != (n,):
        raise InputError(f"{name} must have shape ({n},), one per sample; got {array.shape}.")
    missing = ~np.isfinite(array) if array.dtype.kind in "fcmM" else np.zeros(0, bool)
    if array.dtype.kind == "O":
        missing = np.array([is_missing(item) for item in array], bool)
    if missing.any():
        raise InputError(
            f"{name} must not hold missing values, NaN or infinity; row {missing.argmax()} does. "
            "Fill or drop such rows first."
        )
    return read_only(array)


def group_column(value: Any, name: str, n: int) -> Array:
    """Check one group per sample; return texts, integers or booleans, `MISSING` for missing ones.

    Integers become floats where one is missing, so floats without a fraction are taken as integers.
    """
    array = to_numpy(value, name)
    if array.dtype.kind not in "fmMOS" or array.shape != (n,):
        return column(array, name, n)
    if array.dtype.kind in "mM":
        return read_only(np.where(np.isnat(array), MISSING, array.astype(str)))
    texts = np.full(n, MISSING, dtype=object)
    for row, item in enumerate(array.tolist()):
        if is_missing(item):
            continue
        if isinstance(item, float) and np.isinf(item):
            raise InputError(f"{name} must not hold infinity.")
        is_whole = isinstance(item, float) and item.is_integer()
        texts[row] = str(int(item) if is_whole else item)
        if isinstance(item, bytes):
            texts[row] = item.decode(errors="backslashreplace")
    return read_only(texts.astype(str))


def is_missing(item: Any) -> bool:
    """Whether a value is None, NaN, NaT, or pandas' NA."""
    if type(item).__name__ in {"NAType", "NaTType"}:  # pandas' own, without importing pandas
        return True
    is_number = isinstance(item, complex | float | np.inexact | np.datetime64)
    return item is None or (is_number and bool(np.isnan(item)))


def picked_rows(index: Any, n: int) -> Codes:
    """Numbers of the rows that an index (a list, array or slice) picks among n samples."""
    try:
        rows = np.atleast_1d(np.arange(n)[index])
    except (IndexError, TypeError, ValueError) as error:
        raise InputError(f"index does not fit {n} samples: {error}.") from None
    if rows.ndim > 1:
        raise InputError(f"index must have one dimension; got {rows.ndim}.")
    return rows


def texts_of(values: Array) -> list[str]:
    """Values of a column as texts; objects are not padded to the longest of them."""
    is_object = values.dtype.kind == "O"
    return [str(item) for item in (values if is_object else values.astype(str).tolist())]


def read_only(array: Array) -> Array:
    """Return a view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


def flavour_of(value: Any) -> Flavour | None:
    """Which package a frame is of; None for anything else."""
    package: Any = type(value).__module__.partition(".")[0]
    return package if _FRAMES.get(package) == type(value).__name__ else None


def frame_names(frame: Any, what: str = "frame") -> list[Any]:
    """Names of the columns, none of them twice."""
    names = list(frame.column_names if flavour_of(frame) == "pyarrow" else frame.columns)
    check_distinct(names, what)
    return names


def check_distinct(names: Sequence[Any], what: object) -> None:
    """Refuse columns of the same name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{what}: two columns are called {twice!r}; rename one of them.")


def encode_labels(labels: Array, classes: Array) -> Codes:
    """Positions of `labels` in `classes`, or an error that names the first unknown label."""
    is_range = classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(classes.size))
    if is_range and labels.dtype.kind in "iu":
        codes = labels.astype(np.int64)
        unknown = (codes < 0) | (codes >= classes.size)
    else:
        try:
            positions = {value: code for code, value in enumerate(classes.tolist())}
            columns = [positions.get(value, -1) for value in labels.tolist()]
        except TypeError:
            raise InputError("labels must be names of classes, not lists or dicts.") from None
        codes = np.array(columns, dtype=np.int64)
        unknown = codes < 0
    if unknown.any():
        row = int(np.argmax(unknown))
        raise InputError(
            f"labels must be among the {classes.size} classes; row {row} holds "
            f"{labels.tolist()[row]!r}. Pass classes= in the order of the columns, or repair the "
            "labels."
        )
    return read_only(codes)


def check_trust(value: Any, n: int, name: str = "trust") -> Floats:
    """One number per sample, which may be infinite but not missing."""
    trust = to_numpy(value, name)
    if trust.shape != (n,) or trust.dtype.kind not in "fiu" or np.isnan(trust).any():
        remedy = " A fitted TrustScore goes to the predictor." if hasattr(value, "score") else ""
        raise InputError(
            f"{name} must be an array of shape ({n},) without NaN; got shape {trust.shape} and "
            f"type {trust.dtype}.{remedy}"
        )
    return read_only(np.clip(trust.astype(np.float64), -LARGEST_TRUST, LARGEST_TRUST))


def number_text(value: float, form: str) -> str:
    """Return a number in a format, or ∞ where it stands for infinite trust."""
    return format(value, form) if abs(value) < LARGEST_TRUST else "∞" if value > 0.0 else "-∞"


def check_classes(value: Any, labels: Array | None, n_classes: int) -> Array:
    """Name the columns: as given, as integers from zero, or from the labels."""
    if value is not None:
        classes = to_numpy(value, "classes")
        if classes.shape != (n_classes,):
            raise InputError(f"classes must name the {n_classes} columns; got {classes.shape}.")
        try:  # NaN is not equal to itself, so that no other outputs could have the same classes
            fits = len(set(classes.tolist())) == n_classes and np.array_equal(classes, classes)
        except TypeError:
            fits = False
        if not fits:
            raise InputError("classes must be distinct names, and none of them NaN or a list.")
        return read_only(classes)
    if labels is None:
        return read_only(np.arange(n_classes))
    try:
        distinct = np.unique(labels)
    except TypeError:
        raise InputError(
            "labels mix types that cannot be sorted; pass classes= in the order of the columns."
        ) from None
    is_whole = distinct.dtype.kind in "iu"
    # All positions but the first may be all names but the last. The usual mark of samples without a
    # label would, as the name of a class, shift all columns by one.
    all_but_one = n_classes > 2 and np.array_equal(distinct, np.arange(1, n_classes))
    if is_whole and (all_but_one or distinct[:2].tolist() == [-1, 0]):
        raise InputError(
            f"labels from {distinct[0]} to {distinct[-1]} may be positions or names of the "
            f"{n_classes} columns, and -1 may mark samples without a label; leave such samples "
            "out, or pass classes= in the order of the columns, such as classes=range(K)."
        )
    if is_whole and distinct[0] >= 0 and distinct[-1] < n_classes:
        return read_only(np.arange(n_classes))
    if distinct.size != n_classes:
        raise InputError(
            f"labels have {distinct.size} distinct values (such as {distinct.tolist()[0]!r}) for "
            f"{n_classes} columns, so the columns cannot be named; pass classes= in their order."
        )
    return read_only(distinct)


def check_groups(value: Any, n: int) -> dict[str, Array]:
    """Columns by name, from an array, a mapping or a frame."""
    if value is None:
        return {}
    names: Any = value
    if flavour_of(value) is not None:
        names = frame_names(value, "groups")
    elif not isinstance(value, Mapping):
        value = names = {"group": value}
    check_distinct([str(name) for name in names], "groups")
    return {str(name): group_column(value[name], f"groups[{name!r}]", n) for name in names}


def check_rows(value: Any, n: int) -> Codes:
    """Identities are non-negative integers; by default they count from zero."""
    if value is None:
        return read_only(np.arange(n, dtype=np.int64))
    array = column(value, "rows", n)
    if array.dtype.kind not in "iu" or (array.astype(np.int64) < 0).any():  # also from 2**63 on
        raise InputError("rows must be non-negative integers, below 2**63, that identify samples.")
    return read_only(array.astype(np.int64))
