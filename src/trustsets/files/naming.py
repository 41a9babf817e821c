"""Which array of a file is what, by its name: in files and in the tables of `predict_table`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, final

from trustsets._common.patterns import listed
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
TABLE_PATTERNS = {
    "logits": ("logit_*", "logits_*"),
    "probabilities": ("prob_*", "proba_*", "probability_*"),
    "features": ("feature_*", "features_*", "embedding_*"),
}
"""Columns of numbers that make a matrix without being asked for, in the tables that lack it."""
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


@final
@dataclass(frozen=True)
class TableColumns:
    """Which columns of a table (`.csv`, or `.parquet` with one number a column) hold what.

    Attributes
    ----------
    probabilities, logits, features : tuple of str
        Names of columns, or patterns with one ``*`` such as ``prob_*``. What ``*`` stands for
        names the classes.
    label : str, optional
        Column of the true classes.
    """

    probabilities: tuple[str, ...] = ()
    logits: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    label: str | None = None

    def __post_init__(self) -> None:
        if self.probabilities and self.logits:
            raise InputError("name the columns of probabilities or those of logits, not both.")


PLAIN = TableColumns()
"""Columns are known by their names."""


def find_roles(
    names: Collection[str],
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    label: str | None = None,
) -> Roles:
    """Tell the arrays apart by their names.

    `groups` are group columns to look for besides those called ``group_NAME`` or ``groups/NAME``;
    `ids` are arrays to copy to the output besides one called ``id``; `label` is the array of labels
    if it has another name than usual.

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
        labels=_first(LABELS, names) if label is None else _required(label, names, "label column"),
        classes=_first(CLASSES, names),
        groups=found,
        ids=tuple(own),
    )


def _first(wanted: Sequence[str], names: Collection[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _required(name: str, names: Collection[str], what: str) -> str:
    if name not in names:
        raise InputError(f"there is no {what} {name!r}; there are {listed(sorted(names))}.")
    return name
