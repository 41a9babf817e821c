"""Columns of a `.parquet` file: lists become rows of a matrix. Imports columns."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets.arrays import Array
from trustsets.errors import InputError
from trustsets.files.columns import Column, SequentialColumn, class_column, file_error

__all__ = ["list_matrix", "parquet_columns", "scalar_values"]

# Pages are read through a buffer of this size instead of a whole row group at once.
_BUFFER = 1 << 20


def parquet_columns(path: Path) -> dict[str, Column]:
    """Columns by name; those of a type that is of no use here are left out."""
    with _readable(path):
        metadata, schema = _open(path)
    found: dict[str, Column] = {}
    for field in schema:
        kind = _kind(field.type)
        if kind is not None:
            width = _list_width(path, field.name, metadata) if kind == "list" else None
            found[field.name] = _ParquetColumn(path, field, metadata, width)
    text = (schema.metadata or {}).get(b"classes")
    if text is not None and "classes" not in found:
        found["classes"] = class_column(path, text.decode())
    return found


def list_matrix(values: Any, describe: str) -> Array:
    """Numbers of a list column (Array or ChunkedArray) as a matrix, without copying if possible."""
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    flat = values.flatten()
    if values.null_count or flat.null_count:
        raise InputError(f"{describe} has missing values. Fill or drop them first.")
    n = len(values)
    lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False)) if n else [0]
    if len(lengths) > 1:
        raise InputError(
            f"{describe} has lists of {lengths[0]} to {lengths[-1]} numbers; all rows need "
            "equally many."
        )
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(n, int(lengths[0]))


def scalar_values(values: Any, describe: str) -> Array:
    """Values of a scalar column as an array; texts get a text dtype."""
    import pyarrow as pa

    if values.null_count:
        raise InputError(f"{describe} has missing values. Fill or drop them first.")
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    found = np.asarray(
        values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()
    )
    return found.astype(str) if found.dtype.kind == "O" else found


def _kind(arrow: Any) -> str | None:
    from pyarrow import types

    if types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow):
        value = arrow.value_type
        return "list" if types.is_floating(value) or types.is_integer(value) else None
    value = arrow.value_type if types.is_dictionary(arrow) else arrow
    texts = types.is_string(value) or types.is_large_string(value)
    numbers = types.is_integer(value) or types.is_floating(value) or types.is_boolean(value)
    return "scalar" if texts or numbers else None


def _list_width(path: Path, name: str, metadata: Any) -> int:
    """Numbers in every list, from the counts of the footer: nothing is read for it."""
    leaves = [
        index
        for index in range(metadata.num_columns)
        if metadata.schema.column(index).path.split(".")[0] == name
    ]
    widths: set[float] = set()
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if rows:
            widths.add(metadata.row_group(group).column(leaves[0]).num_values / rows)
    if len(widths) != 1 or not next(iter(widths)).is_integer():
        raise file_error(
            path, name, "has lists of different lengths, or no rows; all need equally many numbers."
        )
    return int(widths.pop())


def _open(path: Path, metadata: Any = None) -> Any:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False, metadata=metadata)
    return (file.metadata, file.schema_arrow) if metadata is None else file


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: not a readable Parquet file ({error}). It is truncated or damaged; write it "
            "again."
        ) from error


@final
class _ParquetColumn(SequentialColumn):
    """One column, streamed in batches of rows."""

    def __init__(self, path: Path, field: Any, metadata: Any, width: int | None) -> None:
        value = field.type if width is None else field.type.value_type
        shape = (metadata.num_rows,) if width is None else (metadata.num_rows, width)
        super().__init__(path, field.name, shape, _dtype(value))
        self._metadata, self._width = metadata, width

    def _chunks_from(self, start: int) -> Iterator[Array]:
        first, skip = self._group_at(start)
        groups = list(range(first, self._metadata.num_row_groups))
        with _readable(self.path), _open(self.path, self._metadata) as file:
            batches = file.iter_batches(self._chunk_rows, groups, [self.name], use_threads=False)
            for batch in batches:
                values = batch.column(0)[skip:]
                skip = max(0, skip - len(batch))
                if len(values):
                    yield self._convert(values)

    def _group_at(self, start: int) -> tuple[int, int]:
        """Row group that holds a row, and the rows before it in the group."""
        for group in range(self._metadata.num_row_groups):
            rows = self._metadata.row_group(group).num_rows
            if start < rows:
                return group, start
            start -= rows
        return self._metadata.num_row_groups, 0

    def _convert(self, values: Any) -> Array:
        describe = f"{self.path}: array {self.name!r}"
        if self._width is None:
            return scalar_values(values, describe)
        matrix = list_matrix(values, describe)
        if matrix.shape[1] != self._width:
            raise self.error(
                f"has lists of {matrix.shape[1]} and of {self._width} numbers; all rows need "
                "equally many."
            )
        return matrix


def _dtype(arrow: Any) -> np.dtype[Any]:
    from pyarrow import types

    value = arrow.value_type if types.is_dictionary(arrow) else arrow
    if types.is_string(value) or types.is_large_string(value):
        return np.dtype("U")
    dtype: np.dtype[Any] = np.dtype(value.to_pandas_dtype())
    return dtype
