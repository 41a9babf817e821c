"""Which array of a file is what, by its name: in files and in the tables of `predict_table`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, final

from trustsets.errors import InputError

LOGITS = ("logits",)
PROBABILITIES = ("probabilities", "probs")
FEATURES = ("features", "embeddings")
LABELS = ("labels", "label", "targets")
CLASSES = ("classes", "class_names")
ROW = "row"
"""Number of a sample in its data set; random draws are keyed on it."""
RESULT = ("set", "size", "threshold", "status")
"""Columns that a prediction adds."""
TAKEN = (ROW, *RESULT)
"""Names that a column of the input cannot have in the result."""
GROUP_PREFIX = "group_"
_GROUP_PREFIXES = (GROUP_PREFIX, "groups/", "group:")
_ID = "id"


@final
@dataclass(frozen=True)
class Roles:
    """Names of arrays by what they are; None or empty where there is no such array.

    `kind` says what `values` holds. `groups` maps names of group columns to names of arrays, and
    `ids` are the arrays to copy to the output.
    """

    values: str | None
    kind: Literal["logits", "probabilities"]
    features: str | None
    labels: str | None
    classes: str | None
    groups: dict[str, str]
    ids: tuple[str, ...]


def find_roles(
    names: Collection[str], groups: Sequence[str] = (), ids: Sequence[str] = ()
) -> Roles:
    """Tell the arrays apart by their names.

    `groups` are group columns to look for besides those called ``group_NAME`` or ``groups/NAME``;
    `ids` are arrays to copy to the output besides one called ``id``.

    Examples
    --------
    >>> roles = find_roles(["logits", "y", "group_sex", "site"], groups=["site"])
    >>> roles.values, roles.groups
    ('logits', {'sex': 'group_sex', 'site': 'site'})
    """
    logits, probabilities = _first(LOGITS, names), _first(PROBABILITIES, names)
    found = {
        name.removeprefix(prefix): name
        for name in names
        for prefix in _GROUP_PREFIXES
        if name.startswith(prefix) and name != prefix
    }
    for group in groups:
        if group not in found:
            found[group] = _required(group, names, "group column")
    own = [_required(name, names, "column to copy") for name in dict.fromkeys(ids)]
    for name in own:
        if name in TAKEN:
            raise InputError(
                f"column {name!r} cannot be copied: the result has one of that name. Rename it."
            )
    if _ID in names and _ID not in own:
        own.append(_ID)
    return Roles(
        values=logits or probabilities,
        kind="logits" if logits else "probabilities",
        features=_first(FEATURES, names),
        labels=_first(LABELS, names),
        classes=_first(CLASSES, names),
        groups=found,
        ids=tuple(own),
    )


def _first(wanted: Sequence[str], names: Collection[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _required(name: str, names: Collection[str], what: str) -> str:
    if name not in names:
        raise InputError(f"there is no {what} {name!r}; there are {', '.join(sorted(names))}.")
    return name
