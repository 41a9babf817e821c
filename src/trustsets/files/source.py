"""Model outputs in a file of any kind, read by ranges of rows.

`open_outputs` reads names, shapes and types only. Numbers are read when they are asked for, and
only those rows, except that a compressed array must be unpacked from its beginning.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array, check_finite, group_column
from trustsets._common.atomic import StrPath
from trustsets._common.optional import needed
from trustsets._common.patterns import listed
from trustsets.errors import InputError
from trustsets.files.columns import Column, read_lines, text_array
from trustsets.files.csv_tables import csv_columns
from trustsets.files.memory import check_fits
from trustsets.files.naming import GROUP_PREFIX, PLAIN, ROW, Roles, TableColumns, find_roles
from trustsets.files.numpy_files import folder_columns, npz_columns
from trustsets.files.parquet import parquet_columns
from trustsets.files.paths import plain_file
from trustsets.files.tensors import is_shard_folder, shard_columns, tensor_columns
from trustsets.files.wide import is_table, with_matrices
from trustsets.outputs import ModelOutputs

if TYPE_CHECKING:
    import pyarrow as pa

READERS: dict[str, Callable[[Path], dict[str, Column]]] = {
    ".npz": npz_columns,
    ".parquet": parquet_columns,
    ".safetensors": tensor_columns,
    ".csv": csv_columns,
}
"""How files of model outputs are read, by extension."""
# Rows at a time when the distinct labels of a whole file are looked for.
_LABEL_ROWS = 1 << 20


def open_columns(path: StrPath, layout: TableColumns = PLAIN) -> dict[str, Column]:
    """Arrays of a file or folder by name; the extension says how to read it.

    Columns of a table that hold one number each are put together as `layout` says.
    """
    target = Path(path)
    if target.is_dir():
        found = shard_columns(target) if is_shard_folder(target) else folder_columns(target)
        if not found:
            raise InputError(
                f"{target}: this folder holds no .npy files; save logits.npy, features.npy and "
                "labels.npy there."
            )
        return found
    plain_file(target)
    suffix = target.suffix.lower()
    if suffix not in READERS:
        raise InputError(
            f"{target}: files of kind {suffix or 'unknown'!r} are not read; use "
            f"{', '.join(READERS)} or a folder of .npy files."
        )
    found = READERS[suffix](target)
    return with_matrices(target, found, layout) if is_table(target) else found


def open_outputs(
    path: StrPath,
    *,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    classes: Any = None,
    columns: TableColumns = PLAIN,
) -> "OutputsFile":
    """Open outputs: `.npz`, `.parquet`, `.safetensors`, `.csv`, a folder of `.npy` or of shards.

    Parameters
    ----------
    path : path
        The arrays are ``logits`` (or ``probabilities``), ``features``, ``labels``, group
        columns ``group_NAME``, and ``classes``, the names of the columns of the logits.
    groups : sequence of str
        Further arrays that are group columns.
    ids : sequence of str
        Arrays to copy to predictions; one called ``id`` always is.
    classes : array of shape (K,), optional
        Class names instead of those in the file. Integer labels are then positions in it.
    columns : TableColumns, optional
        Which columns of a table hold what, where it has one number a column.

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
    found = open_columns(target, columns)
    try:
        roles = find_roles(found, groups, ids, label_in(target, found, columns))
    except InputError as error:
        raise InputError(f"{target}: {error}") from error
    return OutputsFile(target, found, roles, classes)


def label_in(path: Path, found: Collection[str], columns: TableColumns) -> str | None:
    """The name that was given to the labels; in files that are no tables only if it occurs."""
    return columns.label if is_table(path) or columns.label in found else None


@final
class OutputsFile:
    """Outputs of a classifier for n samples, on disk; `open_outputs` makes it."""

    def __init__(
        self, path: Path, columns: dict[str, Column], roles: Roles, classes: Any = None
    ) -> None:
        self.path, self.roles, self._columns = path, roles, columns
        if roles.values is None:
            raise InputError(
                f"{path}: there is no array 'logits' or 'probabilities'; there are "
                f"{listed(sorted(columns))}. Rename yours, or say which columns of a table hold "
                "them (--probability-columns 'prob_*')."
            )
        self._values = columns[roles.values]
        matrices = [columns[name] for name in (roles.values, roles.features) if name]
        single = (roles.labels, *roles.groups.values(), *roles.ids)
        singles = [columns[name] for name in single if name]
        for column in matrices:
            _check_column(column, self._values, matrix=True)
        for name in roles.groups.values():
            columns[name].missing_allowed = True
        for column in singles:
            _check_column(column, self._values, matrix=False)
        if roles.labels is not None:
            _check_complete(columns[roles.labels])
        self._used = [*matrices, *singles]
        self.n_classes = self._values.shape[1]
        self._given_classes = None if classes is None else np.asarray(classes)

    def __len__(self) -> int:
        return int(self._values.shape[0])

    def with_classes(self, classes: Any) -> "OutputsFile":
        """The same file with other class names."""
        return OutputsFile(self.path, self._columns, self.roles, classes)

    def without_labels(self) -> "OutputsFile":
        """The same file as if it had no labels, which need not be right then."""
        roles = replace(self.roles, labels=None)
        return OutputsFile(self.path, self._columns, roles, self._given_classes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample with all its arrays."""
        return sum(column.row_bytes for column in self._used)

    @cached_property
    def classes(self) -> Array | None:
        """Class names: as given, as in the file, or the distinct labels where these are texts."""
        names = self._given_classes
        if names is None and self.roles.classes is not None:
            names = _class_names(self.path, self._columns)
        if names is None and self.roles.labels is not None:
            labels = self._columns[self.roles.labels]
            return None if labels.dtype.kind in "iub" else self._distinct_labels(labels)
        if names is not None and names.shape != (self.n_classes,):
            raise InputError(
                f"{self.path}: array 'classes' has shape {names.shape}, and there are "
                f"{self.n_classes} classes. Give one name for each column of the logits."
            )
        return names

    def read(self, start: int = 0, stop: int | None = None) -> ModelOutputs:
        """Samples `start` up to `stop` with their labels; `rows` are the numbers in the file."""
        stop = len(self) if stop is None else min(stop, len(self))
        fields: dict[str, Any] = self.numbers(start, stop)
        if self.roles.labels is not None:
            column = self._columns[self.roles.labels]
            labels = column.read_names(start, stop)
            fields["labels"] = named_labels(column, labels, self.classes, start)
        fields["groups"] = self.group_values(start, stop)
        try:
            return ModelOutputs(**fields, classes=self.classes, rows=np.arange(start, stop))
        except InputError as error:
            raise in_file(self.path, error, start) from error

    def group_values(self, start: int, stop: int) -> dict[str, Array]:
        """Group columns by name; missing values are a group of their own."""
        found = {}
        for group, name in self.roles.groups.items():
            column = self._columns[name]
            own = group_column(column.read_texts(start, stop), column.described, stop - start)
            is_text = own.dtype.kind == "O"
            found[group] = text_array(self.path, name, own.tolist()) if is_text else own
        return found

    def numbers(self, start: int, stop: int, *, features: bool = True) -> dict[str, Array]:
        """Finite numbers of samples: ``logits`` or ``probabilities``, and ``features``."""
        names: dict[str, str] = {self.roles.kind: str(self.roles.values)}
        if features and self.roles.features is not None:
            names["features"] = self.roles.features
        found = {key: self._columns[name].read(start, stop) for key, name in names.items()}
        for key, name in names.items():
            check_finite(found[key], self._columns[name].described, start)
        return found

    def table(
        self, start: int, stop: int, *, first_row: int = 0, features: bool = True
    ) -> "pa.Table":
        """Samples `start` up to `stop` as an Arrow table for `predict_table`, without labels.

        `first_row` is the number of the file's first sample where there are files before it.
        Groups are ``group_NAME``, and the columns to copy to a result keep their names.
        """
        pa = needed("pyarrow", "an Arrow table")
        block = self.block(start, stop, first_row=first_row, features=features)
        return pa.table(
            {
                name: pa.array(own) if own.ndim == 1 else list_array(own)
                for name, own in block.items()
            }
        )

    def block(
        self, start: int, stop: int, *, first_row: int = 0, features: bool = True
    ) -> dict[str, Array]:
        """The same as arrays by name, for `predict_block`."""
        groups = self.group_values(start, stop)
        return (
            {ROW: np.arange(first_row + start, first_row + stop)}
            | self.numbers(start, stop, features=features)
            | {GROUP_PREFIX + group: own for group, own in groups.items()}
            | {name: self._columns[name].read_texts(start, stop) for name in self.roles.ids}
        )

    def _distinct_labels(self, column: Column) -> Array:
        found: set[Any] = set()
        for start in range(0, len(self), _LABEL_ROWS):
            stop = min(start + _LABEL_ROWS, len(self))
            found.update(column.read_texts(start, stop).tolist())
            if len(found) > self.n_classes:
                break
        if len(found) != self.n_classes:
            count = f"over {self.n_classes}" if len(found) > self.n_classes else len(found)
            raise column.error(
                f"has {count} distinct texts for {self.n_classes} classes, so the columns of the "
                "logits cannot be named. Add an array 'classes' with their names in order, or "
                "give --classes."
            )
        return text_array(self.path, column.name, sorted(found))


def named_labels(column: Column, labels: Array, classes: Array | None, start: int = 0) -> Array:
    """Labels as class names: integers are positions where the names are no integers.

    In a table, where a class may be called ``1``, they are its names.
    """
    if classes is None or classes.dtype.kind in "iub" or labels.dtype.kind not in "iub":
        return labels
    if column.of_table and any(str(name).lstrip("-").isdecimal() for name in classes):
        return labels.astype(str)
    codes: NDArray[np.int64] = labels.astype(np.int64)
    wrong = (codes < 0) | (codes >= classes.size)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise column.error(
            f"must hold positions of the {classes.size} classes, 0 to {classes.size - 1}; row "
            f"{start + row} holds {labels[row]}. Repair the labels, or the class names."
        )
    return np.asarray(classes[codes])


def read_classes(path: StrPath) -> Array:
    """Class names from a text file with one a line, or from the array ``classes`` of a file."""
    target = Path(path)
    if target.suffix.lower() != ".txt":
        return _class_names(target, open_columns(target))
    return text_array(target, "classes", read_lines(target))


def _class_names(path: Path, columns: dict[str, Column]) -> Array:
    column = _required(path, columns, "classes", find_roles(columns).classes, "")
    column.require_usable()
    if len(column.shape) != 1:
        raise column.error(f"has shape {column.shape}; it must be a list of names.")
    check_fits(path, column.shape[0] * column.row_bytes)
    return column.read_names(0, column.shape[0])


def _required(
    path: Path, columns: dict[str, Column], what: str, name: str | None, purpose: str
) -> Column:
    if name is None:
        raise InputError(
            f"{path}: there is no array {what!r}{purpose}; there are {', '.join(sorted(columns))}."
        )
    return columns[name]


def read_training(
    path: StrPath, classes: Array | None = None, columns: TableColumns = PLAIN
) -> tuple[Array, Array]:
    """Features and labels of training samples, for the trust score; logits are not needed.

    Integer labels are positions in the array ``classes`` of the file if it has one, and else
    in `classes`.
    """
    training = TrainingFile(path, columns)
    column, n = training.features, training.features.shape[0]
    check_fits(column.path, 2 * n * column.row_bytes)
    matrix = column.read(0, n)
    check_finite(matrix, column.described)
    return matrix, training.read_labels(classes)


@final
class TrainingFile:
    """Columns of features and labels of training samples, whose shapes agree."""

    def __init__(self, path: StrPath, columns: TableColumns = PLAIN) -> None:
        self._path = Path(path)
        self._columns = open_columns(self._path, _training_columns(self._path, columns))
        label = label_in(self._path, self._columns, columns)
        try:
            roles = self._roles = find_roles(self._columns, label=label)
        except InputError as error:
            raise InputError(f"{self._path}: {error}") from error
        purpose = ", which the trust score needs of the training samples"
        self.features = _required(self._path, self._columns, "features", roles.features, purpose)
        self.labels = _required(self._path, self._columns, "labels", roles.labels, purpose)
        _check_column(self.features, self.features, matrix=True)
        _check_column(self.labels, self.features, matrix=False)
        _check_complete(self.labels)

    def read_labels(self, classes: Array | None = None) -> Array:
        """All labels, named as `read_training` says."""
        if self._roles.classes is not None:
            classes = _class_names(self._path, self._columns)
        labels = self.labels.read_names(0, self.labels.shape[0])
        return named_labels(self.labels, labels, classes)


def _training_columns(path: Path, columns: TableColumns) -> TableColumns:
    """What is asked for of a table of training samples, which may lack probabilities and logits."""
    return replace(columns, probabilities=(), logits=()) if is_table(path) else columns


def _check_complete(column: Column) -> None:
    """Refuse labels of which one is known to be missing."""
    if column.first_missing is not None:
        raise column.error(
            f"has no value in row {column.first_missing}. Leave samples without a label out."
        )


def _check_column(column: Column, first: Column, matrix: bool) -> None:
    """Refuse an array of a wrong form, or of other samples than the `first` array."""
    column.require_usable()
    if len(column.shape) != 1 + matrix or 0 in column.shape:
        wanted = "two dimensions, a row" if matrix else "shape (n,), one value"
        raise column.error(
            f"has shape {column.shape}; it must have {wanted} per sample, not empty."
        )
    kinds, what = ("fiub", "numbers") if matrix else ("iubUS", "integers or texts")
    if column.missing_allowed:
        kinds += "f"  # NaN is a missing value
    if column.dtype.kind not in kinds:
        raise column.error(f"must hold {what}; its type is {column.dtype}. Convert it with astype.")
    if column.shape[0] != first.shape[0]:
        raise column.error(
            f"has {column.shape[0]} rows, and the {first.name} have {first.shape[0]}. Save the "
            "same samples in all arrays."
        )


def list_array(matrix: Array) -> Any:
    """A matrix as an Arrow column of lists, without copying."""
    import pyarrow as pa

    flat = np.ascontiguousarray(matrix if matrix.dtype.isnative else matrix.astype(np.float64))
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), matrix.shape[1])


def in_file(path: Path, error: InputError, start: int) -> InputError:
    """The same error with its file, and with where its row numbers begin."""
    where = f" (Rows are counted from row {start} of the file.)" if start else ""
    return InputError(f"{path}: {error}{where}")
