"""Model outputs in files: which array is what, and samples by ranges of rows."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from trustsets.files.tables import (
    Column,
    arrow_columns,
    check_fits,
    open_columns,
    plain_file,
    stacked,
)
from trustsets.outputs import ModelOutputs

__all__ = [
    "PLAIN",
    "ROW",
    "OutputsFile",
    "TableColumns",
    "arrow_table",
    "open_outputs",
    "open_table",
    "read_classes",
    "read_late_labels",
    "read_training",
    "split_names",
]

ROW = "row"
"""Number of a sample in its data set; random draws are keyed on it."""
_GROUP = "group_"
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
_KINDS: tuple[Literal["logits", "probabilities"], ...] = ("logits", "probabilities")
# Bytes of the numbers of a block of rows.
_BLOCK_BYTES = 64 << 20
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
"""Columns are told apart by their names."""


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
    class_names, stored_classes : array of shape (K,), optional
        Class names as asked for, or else as the file has them; and those of the file alone.
    table : TableColumns
        The names of the columns that were put together, or none.
    """

    path: Path
    kind: Literal["logits", "probabilities"]
    values: Column
    features: Column | None
    labels: Column | None
    trust: Column | None
    groups: Mapping[str, Column]
    ids: Mapping[str, Column]
    class_names: Array | None
    stored_classes: Array | None
    table: TableColumns
    row: Column | None = None

    def __post_init__(self) -> None:
        columns = (self.labels, self.trust, self.row, *self.groups.values(), *self.ids.values())
        for n_dimensions, parts in ((2, (self.values, self.features)), (1, columns)):
            for column in parts:
                if column is not None:
                    _check_shape(column, n_dimensions, self.values)

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return self.values.shape[1]

    def without_labels(self) -> Self:
        """The same samples as if they had no labels."""
        return replace(self, labels=None)

    @cached_property
    def classes(self) -> Array | None:
        """Class names: as asked for, as in the file, or the distinct labels; None for 0 to K-1."""
        names = self.class_names
        if names is not None and names.shape != (self.n_classes,):
            raise InputError(
                f"{self.path}: array 'classes' has shape {names.shape}, and there are "
                f"{self.n_classes} classes. Give one name for each column of the logits."
            )
        if names is not None or self.labels is None:
            return names
        # Decided by all labels of the file, so that a part of it has the names of the whole.
        labels = _complete(self.labels, 0, len(self))
        if labels.dtype.kind in "iub":
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
        fields: dict[str, Any] = {self.kind: _finite(self.values, start, stop)}
        if features and self.features is not None:
            fields["features"] = _finite(self.features, start, stop)
        if self.trust is not None:
            fields["trust"] = self.trust.read_numbers(start, stop)
        names = self.classes
        if self.labels is not None:
            fields["labels"] = read_labels(self.labels, names, start, stop)
            names = np.arange(self.n_classes) if names is None else names
        for name, column in self.groups.items():
            values = column.read_names(start, stop)
            groups = fields.setdefault("groups", {})
            groups[name] = group_column(values, f"{self.path}: group {name!r}", stop - start)
        # Rows of a table may be anywhere in a data set; those of a file are numbered by it.
        rows = np.arange(start, stop)
        if self.row is not None:
            rows = self.row.read_names(start, stop)
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

    @property
    def _width(self) -> int:
        return self.n_classes + (0 if self.features is None else self.features.shape[1])

    def read_all(self) -> ModelOutputs:
        """All samples, which must fit into memory."""
        # Once as they are, once in float64 for the scores, and the sets.
        check_fits(self.path, len(self) * (16 * self._width + self.n_classes))
        return self.read()

    def blocks(self, most_rows: int = 1 << 16) -> Iterator[tuple[int, int]]:
        """Ranges of rows, in order, that are small enough to be worked on at a time."""
        rows = max(1, min(most_rows, _BLOCK_BYTES // (8 * self._width)))
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
        table may have one column for each class instead, such as ``prob_cat``.
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
    with _naming(Path(path)) as target:
        arrays = open_columns(target)
        columns = _for_file(target, arrays, columns)
        return _resolve(target, arrays, groups, ids, classes, columns, remembered)


def open_table(
    table: Any,
    *,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    classes: Any = None,
    columns: TableColumns = PLAIN,
) -> OutputsFile:
    """Open outputs in an Arrow table, or a frame of pandas or polars, as `open_outputs` does."""
    arrays = arrow_columns(arrow_table(table))
    source = _resolve(Path("table"), arrays, groups, ids, classes, columns, PLAIN)
    return replace(source, row=arrays.get(ROW))


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
    if flavour != "pandas":
        return table.to_arrow() if flavour == "polars" else table
    try:
        return pa.Table.from_pandas(table, preserve_index=False)
    except pa.ArrowException as error:
        raise InputError(f"table cannot be read as an Arrow table ({error}).") from error


# --- Which array is what -----------------------------------------------------------------------

_Arrays = Mapping[str, Column]


@contextmanager
def _naming(path: Path) -> Iterator[Path]:
    """Put the name of the file before errors that lack it."""
    try:
        yield path
    except InputError as error:
        if str(error).startswith(str(path)):
            raise
        raise InputError(f"{path}: {error}") from error


def _for_file(path: Path, arrays: _Arrays, columns: TableColumns) -> TableColumns:
    """The columns that were asked for: of a table all, of other files the label, if it is there."""
    if path.suffix.lower() in (".csv", ".parquet"):
        return columns
    return TableColumns(label=columns.label if columns.label in arrays else None)


def _resolve(
    path: Path,
    arrays: _Arrays,
    groups: Sequence[str],
    ids: Sequence[str],
    classes: Any,
    columns: TableColumns,
    remembered: TableColumns,
) -> OutputsFile:
    """Tell the arrays apart by their names."""
    group_columns = {
        name.removeprefix(_GROUP): column
        for name, column in arrays.items()
        if name.startswith(_GROUP) and name != _GROUP
    }
    for group in split_names(groups, arrays):
        if group not in group_columns:
            group_columns[group] = arrays[_required(arrays, group, "group column")]
    copied = [_required(arrays, name, "column to copy") for name in split_names(ids, arrays)]
    copied += ["id"] if "id" in arrays and "id" not in copied else []
    label = _label_name(arrays, columns, remembered)
    features = _matrix(arrays, "features", columns.features, remembered.features)
    stored = _usual(arrays, "classes")
    stored_classes = None if stored is None else _read_class_names(arrays[stored])
    names = stored_classes if classes is None else np.asarray(classes)
    kind, values, column_classes = _values(arrays, columns, remembered, names)
    stored_classes = stored_classes if column_classes is None else column_classes
    is_table = path.suffix.lower() in (".csv", ".parquet")
    trust = _usual(arrays, "trust")
    return OutputsFile(
        path=path,
        kind=kind,
        values=values,
        features=features,
        labels=None if label is None else arrays[label],
        trust=None if trust is None else arrays[trust],
        groups=group_columns,
        ids={name: arrays[name] for name in copied},
        class_names=stored_classes if names is None else names,
        stored_classes=stored_classes,
        table=TableColumns(
            **{kind: tuple(values.names)},
            features=() if features is None else tuple(features.names),
            label=label if is_table else None,
        ),
    )


def _values(
    arrays: _Arrays,
    columns: TableColumns,
    remembered: TableColumns,
    classes: Array | None,
) -> tuple[Literal["logits", "probabilities"], Column, Array | None]:
    """Whether there are logits or probabilities, their matrix, and class names of its columns.

    Columns that were asked for come first; then arrays with the usual names, the columns of the
    calibration, and columns with the usual prefixes.
    """
    for kind in _KINDS:
        if patterns := getattr(columns, kind):
            parts = match_columns(list(arrays), split_names(patterns, arrays), kind)
            if sorted(parts) != sorted(getattr(remembered, kind)):
                return kind, *_class_columns(arrays, kind, parts, classes)
    for kind in _KINDS:
        if (name := _usual(arrays, kind)) is not None and not getattr(columns, kind):
            return kind, arrays[name], None
    for kind in _KINDS:
        names = getattr(remembered, kind)
        if names and all(name in arrays for name in names):
            return kind, stacked(kind, [arrays[name] for name in names]), classes
    for kind in _KINDS:
        if parts := _prefixed(arrays, kind):
            return kind, *_class_columns(arrays, kind, parts, classes)
    raise InputError(
        f"there is no array 'logits' or 'probabilities'; there are {listed(sorted(arrays))}. "
        "Rename yours, or say which columns of a table hold them (--probability-columns 'prob_*')."
    )


def _class_columns(
    arrays: _Arrays, kind: str, parts: Mapping[str, str], classes: Array | None
) -> tuple[Column, Array]:
    """The matrix of columns that are named by classes, in the order of `classes` if there are."""
    if classes is not None:
        by_class = {part: name for name, part in parts.items()}
        wanted = [str(name) for name in classes.tolist()]
        if sorted(by_class) == sorted(wanted):
            return stacked(kind, [arrays[by_class[name]] for name in wanted]), classes
    return stacked(kind, [arrays[name] for name in parts]), class_names([*parts.values()])


def _prefixed(arrays: _Arrays, kind: str) -> dict[str, str]:
    """Columns with a usual prefix, each with the rest of its name."""
    for prefix in _PREFIXES[kind]:
        names = [name for name in arrays if name.startswith(prefix) and name != prefix]
        if names:
            return {name: name.removeprefix(prefix) for name in names}
    return {}


def _matrix(
    arrays: _Arrays, kind: str, patterns: Sequence[str], remembered: Sequence[str] = ()
) -> Column | None:
    """A matrix of this kind: as asked for, an array of its name, or columns as usual."""
    if patterns:
        names = list(match_columns(list(arrays), split_names(patterns, arrays), kind))
    elif (usual := _usual(arrays, kind)) is not None:
        return arrays[usual]
    elif remembered and all(name in arrays for name in remembered):
        names = list(remembered)
    else:
        names = list(_prefixed(arrays, kind))
    return stacked(kind, [arrays[name] for name in names]) if names else None


def _label_name(
    arrays: _Arrays, columns: TableColumns, remembered: TableColumns = PLAIN
) -> str | None:
    if columns.label is not None:
        return _required(arrays, columns.label, "label column")
    usual = _usual(arrays, "labels")
    return remembered.label if usual is None and remembered.label in arrays else usual


def _usual(arrays: _Arrays, what: str) -> str | None:
    return next((name for name in _USUAL[what] if name in arrays), None)


def _required(arrays: _Arrays, name: str, what: str) -> str:
    if name not in arrays:
        raise InputError(f"there is no {what} {name!r}; there are {listed(sorted(arrays))}.")
    return name


def split_names(items: Sequence[str], names: Collection[str] = ()) -> list[str]:
    """Names from a list in which a text may itself be a list with commas.

    Examples
    --------
    >>> split_names(["sex,age", "a, b"], names=["a, b"])
    ['sex', 'age', 'a, b']
    """
    lists = [[item] if item in names else item.split(",") for item in items]
    return list(dict.fromkeys(part.strip() for parts in lists for part in parts if part.strip()))


# --- Values ------------------------------------------------------------------------------------


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
        row, number = np.argwhere(~finite)[0]
        where = f"column {column.names[number]!r}" if column.names else f"column {number}"
        raise column.error(
            f"must be finite; row {start + row}, {where} holds {values[row, number]}. Drop or "
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


def read_labels(
    column: Column, classes: Array | None, start: int = 0, stop: int | None = None
) -> Array:
    """Labels as class names: integers are positions where no name is written as an integer."""
    labels = _complete(column, start, column.shape[0] if stop is None else stop)
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
    names = column.read_names()
    if names.dtype.kind != "O":
        return names
    longest = max((len(str(name)) for name in names), default=0)
    if longest > _LONGEST_NAME:
        raise column.error(f"has a name of {longest:,} characters. Shorten it.")
    return np.array([str(name) for name in names])


def read_classes(path: StrPath) -> Array:
    """Class names from a text file with one a line, or from the array ``classes`` of a file."""
    with _naming(Path(path)) as target:
        if target.suffix.lower() != ".txt":
            arrays = open_columns(target)
            name = _usual(arrays, "classes") or _required(arrays, "classes", "array")
            return _read_class_names(arrays[name])
        try:
            lines = plain_file(target).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"not a text file in UTF-8 ({error}).") from error
    return np.array(lines) if lines else np.array([], dtype="U1")


def read_late_labels(
    path: StrPath, classes: Array, columns: TableColumns = PLAIN
) -> tuple[Array, Array]:
    """Names and labels of samples whose labels came later: the arrays ``id`` and ``labels``."""
    with _naming(Path(path)) as target:
        arrays = open_columns(target)
        label = _label_name(arrays, _for_file(target, arrays, columns))
        ids = arrays[_required(arrays, "id", "array")]
        labels = arrays[label or _required(arrays, "labels", "array")]
        for column in (ids, labels):
            _check_shape(column, 1, ids)
        return ids.read_names(), read_labels(labels, classes)


def read_training(
    path: StrPath, classes: Array | None = None, columns: TableColumns = PLAIN
) -> tuple[Array, Array]:
    """Features and labels of training samples, for the trust score; logits are not needed.

    Integer labels are positions in the array ``classes`` of the file if it has one, and else
    in `classes`.
    """
    with _naming(Path(path)) as target:
        arrays = open_columns(target)
        columns = _for_file(target, arrays, columns)
        features = _matrix(arrays, "features", columns.features)
        if features is None:
            raise InputError(
                "there is no array 'features', which the trust score needs of the training "
                f"samples; there are {listed(sorted(arrays))}."
            )
        label = _label_name(arrays, columns) or _required(arrays, "labels", "array")
        _check_shape(features, 2, features)
        _check_shape(arrays[label], 1, features)
        check_fits(target, 16 * math.prod(features.shape))
        if (name := _usual(arrays, "classes")) is not None:
            classes = _read_class_names(arrays[name])
        return _finite(features, 0, features.shape[0]), read_labels(arrays[label], classes)
