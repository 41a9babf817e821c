"""Frames of pandas, polars and pyarrow, in and out; each is imported only when it is used."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_args

import numpy as np

from trustsets._arrays import Array, Flavour, flavour_of, frame_names, is_missing, to_numpy
from trustsets._parameters import check_arguments
from trustsets.errors import InputError

_MOST_LISTED = 20
# Integers that fit 64 bits, as Python writes them: "007" is a name.
WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")


def needed(module: str, purpose: str, extra: str = "tables") -> Any:
    """Return a module, or say what needs it and how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = (error.name or module).partition(".")[0]
        raise InputError(
            f"{purpose} needs {package}, which is not installed ({error}). Install it with: "
            f'pip install "trustsets[{extra}]"'
        ) from error


def match_columns(names: Sequence[str], patterns: Sequence[str], what: str) -> dict[str, str]:
    """Columns in the order of the patterns, each with the part of its name that ``*`` stands for.

    A pattern without ``*`` is the name of one column and stands for all of it.
    """
    if not patterns:
        raise InputError(f"{what} must be the name of a column, or several; got none.")
    matched: dict[str, str] = {}
    present = set(names)
    for pattern in patterns:
        if not isinstance(pattern, str) or pattern.count("*") > 1:
            raise InputError(
                f"{what} must be texts, names of columns or patterns with one *; got {pattern!r}. "
                "Rename columns whose names are no texts (in pandas: frame.rename(columns=str))."
            )
        expression = re.compile("(.+)".join(map(re.escape, pattern.split("*"))), re.DOTALL)
        candidates = names if "*" in pattern else present & {pattern}
        matches = filter(None, map(expression.fullmatch, candidates))
        parts = {match[0]: match[expression.groups] for match in matches}
        if not parts:
            raise InputError(f"{what}: no column is {pattern!r}; there are {listed(names)}.")
        if both := parts.keys() & matched.keys():
            raise InputError(f"{what}: two patterns match {sorted(both)[0]!r}; give one of them.")
        matched |= parts
    return matched


def class_names(parts: Sequence[str]) -> Array:
    """Class names from parts of column names; integers where all of them are written so."""
    if len(set(parts)) < len(parts):
        twice = next(part for part, count in Counter(parts).items() if count > 1)
        raise InputError(
            f"two columns are of the class {twice!r}; give patterns that match it once."
        )
    whole = all(map(WHOLE.fullmatch, parts))
    return np.array([int(part) for part in parts] if whole else list(parts))


def _without_zeros(text: str) -> str:
    """Return 3 for 3.0, which tools write where other values are missing; else the text itself."""
    whole, _, zeros = text.partition(".")
    return whole if zeros and not zeros.strip("0") and WHOLE.fullmatch(whole) else text


def as_names_of(values: Iterable[Any], names: Sequence[Any]) -> list[Any]:
    """Values as the name of the same text, or else of the same whole number, if any."""
    by_text = {_without_zeros(str(name)): name for name in names}
    by_text |= {str(name): name for name in names}
    return [
        value
        if value is None
        else by_text.get(str(value), by_text.get(_without_zeros(str(value)), value))
        for value in values
    ]


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first of them if there are many."""
    some = ", ".join(map(str, names[:_MOST_LISTED])) or "none"
    return some if len(names) <= _MOST_LISTED else f"{some} and {len(names) - _MOST_LISTED} more"


def frame_fields(
    frame: Any,
    matrices: Mapping[str, str | Sequence[str]],
    label: str | None,
    groups: str | Sequence[str],
) -> dict[str, Any]:
    """Arguments of `ModelOutputs` from the columns of a frame; see `ModelOutputs.from_frame`."""
    if flavour_of(frame) is None:
        raise InputError(f"frame must be of pandas, polars or pyarrow; got {type(frame).__name__}.")
    names = [name for name in frame_names(frame) if isinstance(name, str)]
    wanted = {name: as_names(patterns, name) for name, patterns in matrices.items()}
    columns = {key: match_columns(names, asked, key) for key, asked in wanted.items() if asked}
    if ("logits" in columns) == ("probabilities" in columns):
        raise InputError("Give exactly one of logits and probabilities, as names of columns.")
    parts = columns.get("logits") or columns["probabilities"]
    columns_of_groups = as_names(groups, "groups")
    single = [*columns_of_groups, *([] if label is None else [label])]
    lost = [name for name in single if not (isinstance(name, str) and name in names)]
    if lost:
        # Not a pattern: one name stands for one column here.
        raise InputError(f"label and groups: no column is {lost[0]!r}; there are {listed(names)}.")
    matrices_of = {
        name: side_by_side(
            [numbers_of(to_numpy(frame[part], part), f"column {part!r}") for part in matched]
        )
        for name, matched in columns.items()
    }
    return matrices_of | {
        "labels": None if label is None else frame[label],
        "groups": {name: frame[name] for name in columns_of_groups},
        "classes": class_names([*parts.values()]),
    }


def as_names(names: str | Sequence[str] | None, what: str) -> list[str]:
    """A list of names from one name, several or none."""
    if names is None:
        return []
    if not isinstance(names, Iterable):
        raise InputError(f"{what} must be a name or a list of names; got {names!r:.60}.")
    return [names] if isinstance(names, str) else list(names)


def numbers_of(values: Array, what: str, first_row: int = 0) -> Array:
    """Numbers as they are; those in texts and other objects as float64, where none may be missing.

    `what` names the values in messages, and `first_row` is the number of the first of them.
    """
    if values.dtype.kind in "fiub":
        return values
    if values.dtype.kind != "O":
        raise InputError(f"{what} must hold numbers; its type is {values.dtype}. Convert it.")
    numbers = np.empty(len(values))
    for row, value in enumerate(values.tolist()):
        is_text = isinstance(value, str | bytes)
        try:
            # Python reads 1_000 as a number.
            numbers[row] = float("" if value is None or (is_text and "_" in str(value)) else value)
        except (OverflowError, TypeError, ValueError):
            is_empty = value == "" if is_text else is_missing(value)
            problem = "is empty" if is_empty else f"holds {value!r:.60}"
            hint = "Convert it, or fill or drop such rows."
            if is_text and "," in str(value):
                hint = "Write numbers with a decimal point."
            raise InputError(
                f"{what} must hold numbers; row {first_row + row} {problem}. {hint}"
            ) from None
    return numbers


def side_by_side(columns: Sequence[Array]) -> Array:
    """A matrix of the columns' type if they share a floating one, and else float64."""
    types = {column.dtype for column in columns}
    is_floating = len(types) == 1 and columns[0].dtype.kind == "f"
    return np.column_stack(columns).astype(columns[0].dtype if is_floating else np.float64)


def make_frame(
    columns: Mapping[str, Any], flavour: Flavour | None = None, *, index: str | None = None
) -> Any:
    """Columns as a frame; the first package that is installed where none is asked for.

    `index` is the column that names the rows: the index of a pandas frame.
    """
    installed = (name for name in get_args(Flavour) if find_spec(name) is not None)
    chosen = flavour if flavour is not None else next(installed, "pandas")
    check_arguments(Flavour, flavour=chosen)
    package = needed(chosen, "a frame")
    plain = {name: _plain(values) for name, values in columns.items()}
    if chosen == "pyarrow":
        return package.table(plain)
    frame = package.DataFrame(plain)
    return frame.set_index(index) if index is not None and chosen == "pandas" else frame


def frame_of_rows(
    rows: Sequence[Mapping[str, Any]],
    flavour: Flavour | None = None,
    *,
    columns: Sequence[str] = (),
    index: str | None = None,
) -> Any:
    """Rows, all with the same names, as a frame; `columns` gives their order, and that of none."""
    names = list(columns) or list(rows[0] if rows else ())
    return make_frame({name: [row[name] for row in rows] for name in names}, flavour, index=index)


def _plain(values: Any) -> Any:
    """Values whose type Arrow can tell."""
    return values.tolist() if isinstance(values, np.ndarray) and values.dtype == object else values
