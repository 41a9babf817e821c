"""Tables with one number a column: columns by pattern become the matrices that files have."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trustsets._common.patterns import class_names, match_columns
from trustsets.errors import InputError
from trustsets.files.columns import Column, MemoryColumn
from trustsets.files.csv_tables import CsvColumn, csv_matrix
from trustsets.files.naming import (
    CLASSES,
    FEATURES,
    LOGITS,
    PROBABILITIES,
    TABLE_PATTERNS,
    TableColumns,
)
from trustsets.files.parquet import parquet_matrix

__all__ = ["is_table", "with_matrices"]

_MATRICES: dict[str, Callable[[str, Sequence[Column]], Column]] = {
    ".csv": csv_matrix,
    ".parquet": parquet_matrix,
}
_VALUES = (*LOGITS, *PROBABILITIES)


def is_table(path: Path) -> bool:
    """Whether a file may hold one number a column."""
    return path.suffix.lower() in _MATRICES and not path.is_dir()


def with_matrices(
    path: Path, columns: Mapping[str, Column], layout: TableColumns
) -> dict[str, Column]:
    """Columns of a table, with those that patterns name put together.

    Without patterns, those of `TABLE_PATTERNS` are tried where a table lacks a matrix. What ``*``
    stands for gives the array ``classes``.
    """
    stack = _MATRICES[path.suffix.lower()]
    found = dict(columns)
    try:
        kind, parts = _values(columns, layout)
        if parts:
            names = class_names([*parts.values()])
            found = _without(found, (*_VALUES, *CLASSES))
            found |= {kind: stack(kind, [_number_column(columns[name]) for name in parts])}
            found |= {"classes": MemoryColumn(path, "classes", names)}
            for column in columns.values():
                column.of_table = True
        features = _chosen(columns, "features", layout.features, FEATURES)
        if features:
            own = stack("features", [_number_column(columns[name]) for name in features])
            found = _without(found, FEATURES) | {"features": own}
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return found


def _values(columns: Mapping[str, Column], layout: TableColumns) -> tuple[str, dict[str, str]]:
    """Whether the values are logits or probabilities, and their columns with what * stands for."""
    if layout.probabilities or layout.logits:
        kind = "probabilities" if layout.probabilities else "logits"
        return kind, _chosen(columns, kind, layout.probabilities or layout.logits)
    found = {kind: _chosen(columns, kind, (), _VALUES) for kind in ("logits", "probabilities")}
    return next(((kind, own) for kind, own in found.items() if own), ("logits", {}))


def _chosen(
    columns: Mapping[str, Column], kind: str, patterns: Sequence[str], matrix: Sequence[str] = ()
) -> dict[str, str]:
    """Columns as asked for; or as usual, if there is no `matrix` of one of these names."""
    if patterns:
        return match_columns(list(columns), patterns, kind)
    if any(name in columns for name in matrix):
        return {}
    numbers = [name for name, own in columns.items() if _holds_numbers(own)]
    for pattern in TABLE_PATTERNS[kind]:
        if any(len(name) >= len(pattern) and name.startswith(pattern[:-1]) for name in numbers):
            return match_columns(numbers, [pattern], kind)
    return {}


def _holds_numbers(column: Column) -> bool:
    """Whether numbers can be read from a column; cells of a CSV file show it when they are."""
    return len(column.shape) == 1 and (isinstance(column, CsvColumn) or column.dtype.kind in "fiub")


def _number_column(column: Column) -> Column:
    if not _holds_numbers(column):
        raise InputError(f"column {column.name!r} must hold numbers, one in each row.")
    return column


def _without(columns: dict[str, Column], names: Sequence[str]) -> dict[str, Column]:
    return {name: own for name, own in columns.items() if name not in names}
