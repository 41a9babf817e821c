"""Model outputs in files: which array is what, and samples by ranges of rows."""

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, final

import numpy as np

from trustsets._arrays import Array, group_column
from trustsets._checks import check_classes
from trustsets._frames import class_names, flavour_of, frame_names, listed, match_columns, needed
from trustsets._storage import StrPath
from trustsets.errors import InputError
from trustsets.files.arrays import Column, open_columns, plain_file, stacked, table_columns
from trustsets.outputs import ModelOutputs

__all__ = [
    "OutputsFile",
    "TableColumns",
    "arrow_table",
    "open_outputs",
    "open_table",
    "read_classes",
    "read_late_labels",
    "read_training",
]

ROW = "row"
"""Number of a sample in its data set; random draws are keyed on it."""
GROUP_PREFIX = "group_"
_USUAL: dict[str, tuple[str, ...]] = {
    "logits": ("logits",),
    "probabilities": ("probabilities", "probs"),
    "features": ("features", "embeddings"),
    "labels": ("labels", "label", "targets"),
    "classes": ("classes", "class_names"),
    "trust": ("trust",),
}
# Columns of numbers that make a matrix without being asked for, in tables that lack it.
_PREFIXES: dict[str, tuple[str, ...]] = {
    "logits": ("logit_", "logits_"),
    "probabilities": ("prob_", "proba_", "probability_"),
    "features": ("feature_", "features_", "embedding_"),
}
# How pandas calls the index of a frame in a Parquet file.
_INDEX = "__index_level_"
# Rows that sum to 1 up to this are probabilities.
_SUM_TOLERANCE = 0.02
# Bytes of the numbers of a block of rows.
_BLOCK_BYTES = 64 << 20
_MOST_ROWS = 1 << 16
_LONGEST_NAME = 10_000


@final
@dataclass(frozen=True)
class TableColumns:
    """Which columns of a table hold what, where it has one number a column.

    Attributes
    ----------
    probabilities, logits, features : tuple of str
        Names of columns, or patterns with one ``*`` such as ``prob_*``; what ``*`` stands for
        names the classes. A text with commas is a list.
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


@final
@dataclass(frozen=True)
class OutputsFile:
    """Outputs of a classifier for n samples, in a file; `open_outputs` makes it.

    Attributes
    ----------
    path : Path
        The file, for messages.
    kind : {"logits", "probabilities"}
        What `values` holds.
    class_names, own_classes : array of shape (K,), optional
        Class names as they were given, or as the file has them; and those of the file alone.
    table : TableColumns
        The names of the columns that were put together, or none.
    """

    path: Path
    kind: Literal["logits", "probabilities"]
    values: Column
    features: Column | None
    labels: Column | None
    trust: Column | None
    row: Column | None
    groups: Mapping[str, Column]
    ids: Mapping[str, Column]
    class_names: Array | None
    own_classes: Array | None
    table: TableColumns
    in_memory: bool = False

    def __post_init__(self) -> None:
        for column in (self.values, self.features):
            if column is not None:
                _check_shape(column, 2, self.values)
        for column in (
            self.labels,
            self.trust,
            self.row,
            *self.groups.values(),
            *self.ids.values(),
        ):
            if column is not None:
                _check_shape(column, 1, self.values)

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return self.values.shape[1]

    def with_classes(self, classes: Any) -> Self:
        """The same samples with other class names."""
        return replace(self, class_names=np.asarray(classes))

    def without_labels(self) -> Self:
        """The same samples as if they had no labels."""
        return replace(self, labels=None)

    @property
    def classes(self) -> Array | None:
        """Class names: as given, as in the file, or the distinct labels where these are texts."""
        names = self.class_names
        if names is None:
            return self._distinct_labels
        if names.shape != (self.n_classes,):
            raise InputError(
                f"{self.path}: array 'classes' has shape {names.shape}, and there are "
                f"{self.n_classes} classes. Give one name for each column of the logits."
            )
        return names

    @cached_property
    def _distinct_labels(self) -> Array | None:
        if self.labels is None:
            return None
        labels = _complete(self.labels, 0, len(self))
        if labels.dtype.kind in "iub":
            # Decided by all labels of the file, so that a part of it has the names of the whole.
            try:
                names = check_classes(None, labels, self.n_classes)
            except InputError as error:
                if labels.min() < 0 or labels.max() >= self.n_classes:
                    return None  # a label that is no class is named, with its row, when it is read
                raise InputError(f"{self.path}: {error}") from error
            return None if np.array_equal(names, np.arange(self.n_classes)) else names
        distinct = sorted(set(labels.tolist()))
        if len(distinct) != self.n_classes:
            raise self.labels.error(
                f"has {len(distinct)} distinct texts for {self.n_classes} classes, so the columns "
                "of the logits cannot be named. Add an array 'classes' with their names in order, "
                "or give --classes."
            )
        return np.array(distinct)

    def read(
        self, start: int = 0, stop: int | None = None, *, features: bool = True
    ) -> ModelOutputs:
        """Samples `start` up to `stop`; their `rows` are their numbers in the file."""
        stop = len(self) if stop is None else min(stop, len(self))
        n = stop - start
        fields: dict[str, Any] = {self.kind: _finite(self.values, start, stop)}
        if features and self.features is not None:
            fields["features"] = _finite(self.features, start, stop)
        if self.trust is not None:
            fields["trust"] = self.trust.read_numbers(start, stop)
        if self.labels is not None:
            fields["labels"] = read_labels(self.labels, self.classes, start, stop)
        fields["groups"] = {
            name: group_column(column.read_names(start, stop), f"{self.path}: group {name!r}", n)
            for name, column in self.groups.items()
        }
        # Rows of a table may be anywhere in a data set; those of a file are numbered by it.
        rows = None if self.in_memory else np.arange(start, stop)
        if self.row is not None:
            rows = self.row.read_names(start, stop)
        names = self.classes
        if names is None and self.labels is not None:
            names = np.arange(self.n_classes)
        try:
            return ModelOutputs(**fields, classes=names, rows=rows)
        except InputError as error:
            # It counts the rows of this block, and the reader those of the file.
            message = re.sub(
                r"\brow (\d+)", lambda m: f"row {start + int(m[1])}", str(error), count=1
            )
            raise InputError(f"{self.path}: {message}") from error

    def read_labelled(self, purpose: str) -> ModelOutputs:
        """All samples, which must have labels and fit into memory."""
        if self.labels is None:
            raise InputError(
                f"{self.path}: there is no array 'labels', and {purpose} needs the true classes. "
                "Add them, or name their column (--label-column)."
            )
        return self.read_all()

    def read_all(self) -> ModelOutputs:
        """All samples, which must fit into memory."""
        # Once as they are, once in float64 for the scores, and the sets.
        width = self.n_classes + (0 if self.features is None else self.features.shape[1])
        check_fits(self.path, len(self) * (16 * width + self.n_classes))
        return self.read()

    def blocks(self, most_rows: int = _MOST_ROWS) -> Iterator[tuple[int, int]]:
        """Ranges of rows, in order, that are small enough to be worked on at a time."""
        width = self.n_classes + (0 if self.features is None else self.features.shape[1])
        rows = max(1, min(most_rows, _BLOCK_BYTES // (8 * width)))
        for start in range(0, len(self), rows):
            yield start, min(start + rows, len(self))


def open_outputs(
    path: StrPath,
    *,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    classes: Any = None,
    columns: TableColumns = PLAIN,
    remembered: TableColumns = PLAIN,
) -> OutputsFile:
    """Open outputs: `.npz`, `.parquet`, `.safetensors`, `.csv` or a folder of `.npy` files.

    Parameters
    ----------
    path : path
        The arrays are ``logits`` (or ``probabilities``), ``features``, ``labels``, ``trust``,
        group columns ``group_NAME``, and ``classes``, the names of the columns of the logits. A
        table may have one column for each class instead: ``prob_cat``, or just ``cat``.
    groups : sequence of str
        Further arrays that are group columns.
    ids : sequence of str
        Arrays to copy to predictions; one called ``id`` always is.
    classes : array of shape (K,), optional
        Class names instead of those in the file. Integer labels are then positions in it.
    columns : TableColumns, optional
        Which columns of a table hold what.
    remembered : TableColumns, optional
        The same, for a table that has these columns and does not say otherwise.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/new.npz", logits=np.eye(3), labels=[0, 1, 2])
    ...     source = open_outputs(f"{folder}/new.npz")
    ...     len(source), source.read(1, 3)
    (3, ModelOutputs(n=2, K=3, labels))
    """
    target = Path(path)
    found = open_columns(target)
    tabular = target.suffix.lower() in (".csv", ".parquet")
    try:
        return _resolve(target, found, tabular, groups, ids, classes, columns, remembered)
    except InputError as error:
        raise _in_file(target, error) from error


def open_table(
    table: Any,
    *,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    classes: Any = None,
    columns: TableColumns = PLAIN,
) -> OutputsFile:
    """Open outputs in an Arrow table, or a frame of pandas or polars, as `open_outputs` does."""
    found = table_columns(arrow_table(table))
    source = _resolve(Path("table"), found, True, groups, ids, classes, columns, PLAIN)
    return replace(source, row=found.get(ROW), in_memory=True)


def arrow_table(table: Any) -> Any:
    """An Arrow table of a frame of pandas or polars, or the table itself."""
    pa = needed("pyarrow", "an Arrow table")
    flavour = flavour_of(table)
    if flavour is None:
        raise InputError(
            "table must be a pyarrow Table or a frame of pandas or polars; got "
            f"{type(table).__name__}."
        )
    frame_names(table, "table")
    if flavour == "polars":
        return table.to_arrow()
    if flavour == "pyarrow":
        return table
    try:
        return pa.Table.from_pandas(table, preserve_index=False)
    except pa.ArrowException as error:
        raise InputError(f"table cannot be read as an Arrow table ({error}).") from error


def _resolve(
    path: Path,
    found: dict[str, Column],
    tabular: bool,
    groups: Sequence[str],
    ids: Sequence[str],
    classes: Any,
    columns: TableColumns,
    remembered: TableColumns,
) -> OutputsFile:
    """Tell the arrays apart by their names."""
    group_columns = {
        name.removeprefix(prefix): column
        for name, column in found.items()
        for prefix in (GROUP_PREFIX, "groups/", "group:")
        if name.startswith(prefix) and name != prefix
    }
    for group in split_names(groups, found):
        if group not in group_columns:
            group_columns[group] = _required(found, group, "group column")
    copied = {name: _required(found, name, "column to copy") for name in split_names(ids, found)}
    if "id" in found:
        copied.setdefault("id", found["id"])
    label = _label_name(found, tabular, columns.label, remembered.label)
    features = _matrix(found, tabular, "features", columns.features, remembered.features)
    stored = _usual(found, "classes")
    own_names = None if stored is None else _read_class_names(found[stored])
    names = own_names if classes is None else np.asarray(classes)
    other = {label, ROW, "id", "trust", *copied, *(group.name for group in group_columns.values())}
    other |= set() if features is None else {features.name, *features.names}
    kind, values, column_names = _values(found, tabular, columns, remembered, names, label, other)
    own_names = own_names if column_names is None else column_names
    table = TableColumns(
        **{kind: tuple(values.names)},
        features=() if features is None else tuple(features.names),
        label=label if tabular else None,
    )
    trust = _usual(found, "trust")
    return OutputsFile(
        path=path,
        kind=kind,
        values=values,
        features=features,
        labels=None if label is None else found[label],
        trust=None if trust is None else found[trust],
        row=None,
        groups=group_columns,
        ids=copied,
        class_names=own_names if names is None else names,
        own_classes=own_names,
        table=table,
    )


def _values(
    found: Mapping[str, Column],
    tabular: bool,
    columns: TableColumns,
    remembered: TableColumns,
    classes: Array | None,
    label: str | None,
    other: Collection[str | None],
) -> tuple[Literal["logits", "probabilities"], Column, Array | None]:
    """Whether there are logits or probabilities, their matrix, and class names of its columns."""
    kinds: tuple[Literal["logits", "probabilities"], ...] = ("logits", "probabilities")
    for kind in kinds:
        patterns = getattr(columns, kind)
        if patterns and (tabular or _usual(found, kind) is None):
            parts = match_columns(list(found), split_names(patterns, found), kind)
            if sorted(parts) != sorted(getattr(remembered, kind)):
                return kind, *_class_columns(found, kind, parts, classes)
    for kind in kinds:
        if (name := _usual(found, kind)) is not None:
            return kind, found[name], None
    for kind in kinds:
        names = getattr(remembered, kind)
        if names and all(name in found for name in names):
            return kind, stacked(kind, [found[name] for name in names]), classes
    for kind in kinds:
        for prefix in _PREFIXES[kind]:
            names = [name for name in found if name.startswith(prefix) and name != prefix]
            if names:
                parts = {name: name.removeprefix(prefix) for name in names}
                return kind, *_class_columns(found, kind, parts, classes)
    named = _named_like_classes(found, classes, label, other)
    if named:
        kind = "probabilities" if _sum_to_one([found[name] for name in named]) else "logits"
        return kind, *_class_columns(found, kind, dict(zip(named, named, strict=True)), classes)
    raise InputError(
        f"there is no array 'logits' or 'probabilities'; there are {listed(sorted(found))}. Rename "
        "yours, or say which columns of a table hold them (--probability-columns 'prob_*')."
    )


def _class_columns(
    found: Mapping[str, Column], kind: str, parts: Mapping[str, str], classes: Array | None
) -> tuple[Column, Array]:
    """The matrix of columns that are named by classes, in the order of `classes` if given."""
    if classes is not None:
        by_class = {part: name for name, part in parts.items()}
        wanted = [str(name) for name in classes.tolist()]
        if sorted(by_class) == sorted(wanted):
            return stacked(kind, [found[by_class[name]] for name in wanted]), classes
    return stacked(kind, [found[name] for name in parts]), class_names([*parts.values()])


def _named_like_classes(
    found: Mapping[str, Column],
    classes: Array | None,
    label: str | None,
    other: Collection[str | None],
) -> list[str]:
    """Columns that have the names of the classes; without classes, those of the labels."""
    if classes is not None:
        names = [str(name) for name in classes.tolist()]
        return names if all(name in found for name in names) else []
    if label is None:
        return []
    labels = found[label].read_names(0, found[label].shape[0])
    wanted = {str(value) for value in labels.tolist()}
    numbers = [
        name
        for name, own in found.items()
        if name not in other and not name.startswith(_INDEX) and own.holds_numbers
    ]
    named = [name for name in found if name in wanted and name not in other]
    if len(named) < max(2, len(wanted)):
        return []
    for name in named:
        found[name].read_numbers(0, found[name].shape[0])  # says which cell is none
    if len(named) == len(numbers):
        return named
    # A class without a labelled sample has a column, too, and other numbers have columns as well:
    # only the sum of probabilities tells the two apart.
    for names in (named, numbers):
        if _sum_to_one([found[name] for name in names]):
            return names
    rest = [name for name in numbers if name not in wanted]
    raise InputError(
        f"the columns {listed(named)} are named like labels, and {listed(rest)} may be classes or "
        "not. Say which columns hold the classes (--logit-columns or --probability-columns)."
    )


def _sum_to_one(columns: Sequence[Column]) -> bool:
    numbers = stacked("probabilities", columns).read_numbers(0, columns[0].shape[0])
    sums = numbers.sum(axis=1, dtype=np.float64)
    return bool((numbers >= 0.0).all() and (np.abs(sums - 1.0) <= _SUM_TOLERANCE).all())


def _matrix(
    found: Mapping[str, Column],
    tabular: bool,
    kind: str,
    patterns: Sequence[str],
    remembered: Sequence[str] = (),
) -> Column | None:
    """A matrix of this kind: as asked for, an array of its name, or columns as usual."""
    usual = _usual(found, kind)
    if patterns and (tabular or usual is None):
        names = list(match_columns(list(found), split_names(patterns, found), kind))
    elif usual is not None:
        return found[usual]
    elif remembered and all(name in found for name in remembered):
        names = list(remembered)
    else:
        by_prefix = (
            [name for name in found if name.startswith(prefix) and name != prefix]
            for prefix in _PREFIXES[kind]
        )
        names = next((names for names in by_prefix if names), [])
    return stacked(kind, [found[name] for name in names]) if names else None


def _label_name(
    found: Mapping[str, Column], tabular: bool, asked: str | None, remembered: str | None
) -> str | None:
    usual = _usual(found, "labels")
    if asked is not None and (tabular or asked in found):
        return _required(found, asked, "label column").name
    if usual is None and remembered in found:
        return remembered
    return usual


def _usual(found: Collection[str], what: str) -> str | None:
    return next((name for name in _USUAL[what] if name in found), None)


def _required(found: Mapping[str, Column], name: str, what: str) -> Column:
    if name not in found:
        raise InputError(f"there is no {what} {name!r}; there are {listed(sorted(found))}.")
    return found[name]


def split_names(items: Sequence[str], names: Collection[str] = ()) -> list[str]:
    """Names from a list in which a text may itself be a list with commas.

    Examples
    --------
    >>> split_names(["sex,age", "a, b"], names=["a, b"])
    ['sex', 'age', 'a, b']
    """
    parts = [[item] if item in names else item.split(",") for item in items]
    return list(dict.fromkeys(part.strip() for own in parts for part in own if part.strip()))


def _check_shape(column: Column, n_dimensions: int, values: Column) -> None:
    """Refuse an array of a wrong form, or of other samples than the logits."""
    if len(column.shape) != n_dimensions or 0 in column.shape:
        wanted = "two dimensions, a row" if n_dimensions == 2 else "shape (n,), one value"
        raise column.error(
            f"has shape {column.shape}; it must have {wanted} per sample, not empty."
        )
    if column.shape[0] != values.shape[0]:
        raise column.error(
            f"has {column.shape[0]} rows, and the {values.name} have {values.shape[0]}. Save the "
            "same samples in all arrays."
        )


def _finite(column: Column, start: int, stop: int) -> Array:
    """Numbers of some rows; an error names the first that is none."""
    values = column.read_numbers(start, stop)
    finite = np.isfinite(values)
    if not finite.all():
        row, place = np.argwhere(~finite)[0]
        where = f"column {column.names[place]!r}" if column.names else f"column {place}"
        raise column.error(
            f"must be finite; row {start + row}, {where} holds {values[row, place]}. Drop or "
            "repair such rows first."
        )
    return values


def _complete(column: Column, start: int, stop: int) -> Array:
    """Labels of some rows, none of them missing."""
    labels = column.read_names(start, stop)
    if labels.dtype.kind in "iubUS":
        return labels
    missing = [
        item is None or (isinstance(item, float) and math.isnan(item)) for item in labels.tolist()
    ]
    if any(missing):
        row = start + missing.index(True)
        raise column.error(f"has no value in row {row}. Leave samples without a label out.")
    if labels.dtype.kind == "f":
        raise column.error("must hold integers or texts; its type is float. Convert it.")
    return labels


def read_labels(column: Column, classes: Array | None, start: int, stop: int) -> Array:
    """Labels as class names: integers are positions where no name is written as an integer."""
    labels = _complete(column, start, stop)
    if classes is None or classes.dtype.kind in "iub" or labels.dtype.kind not in "iu":
        return labels
    if any(str(name).lstrip("-").isdecimal() for name in classes):
        return labels.astype(str)
    wrong = (labels < 0) | (labels >= classes.size)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise column.error(
            f"must hold positions of the {classes.size} classes, 0 to {classes.size - 1}; row "
            f"{start + row} holds {labels[row]}. Repair the labels, or the class names."
        )
    return np.asarray(classes[labels.astype(np.int64)])


def _read_class_names(column: Column) -> Array:
    if len(column.shape) != 1:
        raise column.error(f"has shape {column.shape}; it must be a list of names.")
    names = column.read_names(0, column.shape[0])
    if names.dtype.kind != "O":
        return names
    longest = max((len(str(name)) for name in names), default=0)
    if longest > _LONGEST_NAME:
        raise column.error(f"has a name of {longest:,} characters. Shorten it.")
    return np.array([str(name) for name in names])


def read_classes(path: StrPath) -> Array:
    """Class names from a text file with one a line, or from the array ``classes`` of a file."""
    target = Path(path)
    if target.suffix.lower() != ".txt":
        found = open_columns(target)
        name = _usual(found, "classes")
        if name is None:
            raise InputError(
                f"{target}: there is no array 'classes'; there are {listed(sorted(found))}."
            )
        return _read_class_names(found[name])
    try:
        lines = plain_file(target).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{target}: not a text file in UTF-8 ({error}).") from error
    return np.array(lines) if lines else np.array([], dtype="U1")


def read_late_labels(
    path: StrPath, classes: Array, columns: TableColumns = PLAIN
) -> tuple[Array, Array]:
    """Names and labels of samples whose labels came later: the arrays ``id`` and ``labels``."""
    target = Path(path)
    found = open_columns(target)
    tabular = target.suffix.lower() in (".csv", ".parquet")
    label = _label_name(found, tabular, columns.label, None)
    if label is None or "id" not in found:
        raise InputError(
            f"{target}: it needs arrays 'id' and 'labels'; there are {listed(sorted(found))}."
        )
    n = found["id"].shape[0]
    if found["id"].shape != (n,) or found[label].shape != (n,):
        raise InputError(f"{target}: arrays 'id' and 'labels' must have one value for each sample.")
    return found["id"].read_names(0, n), read_labels(found[label], classes, 0, n)


def read_training(
    path: StrPath, classes: Array | None = None, columns: TableColumns = PLAIN
) -> tuple[Array, Array]:
    """Features and labels of training samples, for the trust score; logits are not needed.

    Integer labels are positions in the array ``classes`` of the file if it has one, and else
    in `classes`.
    """
    target = Path(path)
    found = open_columns(target)
    tabular = target.suffix.lower() in (".csv", ".parquet")
    try:
        features = _matrix(found, tabular, "features", columns.features)
        label = _label_name(found, tabular, columns.label, None)
        for what, there in (("features", features), ("labels", label)):
            if there is None:
                raise InputError(
                    f"there is no array {what!r}, which the trust score needs of the training "
                    f"samples; there are {listed(sorted(found))}."
                )
        assert features is not None and label is not None
        _check_shape(features, 2, features)
        _check_shape(found[label], 1, features)
    except InputError as error:
        raise _in_file(target, error) from error
    n = features.shape[0]
    check_fits(target, 16 * n * features.shape[1])
    if (name := _usual(found, "classes")) is not None:
        classes = _read_class_names(found[name])
    return _finite(features, 0, n), read_labels(found[label], classes, 0, n)


def _in_file(path: Path, error: InputError) -> InputError:
    """The same error with the name of its file, unless it has it."""
    return error if str(error).startswith(str(path)) else InputError(f"{path}: {error}")


def check_fits(path: Path, need: int) -> None:
    """Refuse a file whose arrays, as announced, do not fit into memory."""
    try:
        match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        free = int(match.group(1)) << 10 if match else None
    except OSError:
        free = None
    if free is None and hasattr(os, "sysconf"):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if free is not None and need > free:
        raise InputError(
            f"{path}: its arrays need {need / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} "
            "GiB are free. Use fewer samples, float16 arrays or a larger machine."
        )
