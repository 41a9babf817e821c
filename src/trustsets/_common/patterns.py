"""Columns of a table by patterns of their names, such as ``prob_*``."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from trustsets._common.arrays import Array
from trustsets.errors import InputError

__all__ = ["class_names", "listed", "match_columns"]

_MOST_LISTED = 20
# Integers that fit 64 bits, as Python writes them.
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")


def match_columns(names: Sequence[str], patterns: Sequence[str], what: str) -> dict[str, str]:
    """Columns, each with the part of its name that ``*`` stands for.

    Columns come in the order of the patterns, and those of one pattern in the order of the table.
    A pattern without ``*`` is the name of one column and stands for all of it.

    Examples
    --------
    >>> match_columns(["id", "prob_cat", "prob_dog"], ["prob_*"], "probabilities")
    {'prob_cat': 'cat', 'prob_dog': 'dog'}
    """
    found: dict[str, str] = {}
    known = set(names)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InputError(
                f"{what} must be texts, names of columns or patterns; got {pattern!r}. Rename "
                "columns whose names are no texts (in pandas: frame.rename(columns=str))."
            )
        before, star, after = pattern.partition("*")
        if "*" in after:
            raise InputError(f"{what} must have one * in a pattern; got {pattern!r}.")
        if not star:
            own = {pattern: pattern} if pattern in known else {}
        else:
            least = len(before) + len(after)
            own = {
                name: name[len(before) : len(name) - len(after)]
                for name in names
                if len(name) > least and name.startswith(before) and name.endswith(after)
            }
        if not own:
            raise InputError(f"{what}: no column is {pattern!r}; there are {listed(names)}.")
        both = next((name for name in own if name in found), None)
        if both is not None:
            raise InputError(f"{what}: two patterns match the column {both!r}; give one of them.")
        found |= own
    return found


def class_names(parts: Sequence[str]) -> Array:
    """Class names from parts of column names; integers where all of them are written so.

    Examples
    --------
    >>> class_names(["0", "1"]), class_names(["01", "1"])
    (array([0, 1]), array(['01', '1'], dtype='<U2'))
    """
    if len(set(parts)) < len(parts):
        twice = next(part for part, count in Counter(parts).items() if count > 1)
        raise InputError(
            f"two columns are of the class {twice!r}; give patterns that match it once."
        )
    whole = all(map(_WHOLE.fullmatch, parts))
    return np.array([int(part) for part in parts] if whole else list(parts))


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first of them if there are many."""
    some = ", ".join(map(str, names[:_MOST_LISTED])) or "none"
    return some if len(names) <= _MOST_LISTED else f"{some} and {len(names) - _MOST_LISTED} more"
