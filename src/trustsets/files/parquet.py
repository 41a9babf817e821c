"""Columns of a `.parquet` file; lists become rows of a matrix."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets._common.arrays import MISSING, Array
from trustsets._common.optional import needed
from trustsets.errors import InputError
from trustsets.files.columns import (
    LARGEST_RATIO,
    Column,
    SequentialColumn,
    class_column,
    readable,
    unpacks_too_much,
)
from trustsets.files.paths import arrow_file

# Pages are read through a buffer of this size instead of a whole row group at once.
_BUFFER = 1 << 20
# Texts are read so many at a time; their codes are small, however long they are.
_TEXT_ROWS = 1 << 13


def parquet_columns(path: Path) -> dict[str, Column]:
    """Columns by name; those of a type that is of no use here are left out."""
    with readable_parquet(path):
        metadata, schema = _open(path)
    rows = sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    if rows != metadata.num_rows or rows < 0:
        raise InputError(f"{path}: its groups do not add up to its rows; write it again.")
    found: dict[str, Column] = {}
    for field in schema:
        value = _value_type(field.type)
        if value is not None:
            found[field.name] = _column(path, field, metadata, value)
    text = (schema.metadata or {}).get(b"classes")
    if text is not None and "classes" not in found:
        found["classes"] = class_column(path, text.decode(errors="replace"))
    return found


def _column(path: Path, field: Any, metadata: Any, dtype: np.dtype[Any]) -> Column:
    """One column; what is wrong with it matters only where it is used.

    What the footer says of a chunk of a column is not asked for: where it is damaged, Arrow ends
    the whole process.
    """
    column = _ParquetColumn(path, field.name, metadata, dtype)
    if _is_list(field.type):
        try:
            width = column.first_width(field.type)
            column = _ParquetColumn(path, field.name, metadata, dtype, width)
        except InputError:
            column.fault = "cannot be read; it has no rows, or is damaged. Write it again."
    if dtype.kind == "U":
        groups = range(metadata.num_row_groups)
        unpacked = sum(metadata.row_group(group).total_byte_size for group in groups)
    else:
        unpacked = metadata.num_rows * column.row_bytes
    packed = path.stat().st_size
    if unpacks_too_much(unpacked, packed):
        column.fault = (
            f"claims {unpacked / 2**30:.1f} GiB, and the file has {packed / 2**20:.1f} MiB, over "
            f"{LARGEST_RATIO} times less. If it is genuine, write it without compression."
        )
    return column


def list_matrix(values: Any, describe: str) -> Array:
    """Numbers of a list column (Array or ChunkedArray) as a matrix, without copying if possible."""
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if not _is_list(values.type):
        raise InputError(
            f"{describe} must hold lists of numbers; it holds {values.type}. Convert it."
        )
    flat = values.flatten()
    if values.null_count or flat.null_count:
        raise InputError(f"{describe} has missing values. Fill or drop them first.")
    n = len(values)
    lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False)) if n else [0]
    if len(lengths) > 1:
        raise InputError(
            f"{describe} has lists of different lengths: lists of {lengths[0]} to {lengths[-1]} "
            "numbers. All rows need equally many."
        )
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(n, int(lengths[0]))


def scalar_values(values: Any, describe: str, *, missing: bool = False) -> Array:
    """Values of a scalar column as an array; texts stay objects, so that none is padded.

    With `missing`, missing numbers are NaN and other missing values None; else they are refused.
    """
    import pyarrow as pa

    if values.null_count and not missing:
        raise InputError(f"{describe} has missing values. Fill or drop them first.")
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return np.asarray(
        values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()
    )


def parquet_matrix(name: str, columns: Sequence[Column]) -> Column:
    """Several columns of one file as a matrix."""
    own = [column for column in columns if isinstance(column, _ParquetColumn)]
    return _ParquetMatrix(name, own)


def _batches(
    path: Path, metadata: Any, names: list[str], start: int, rows: int, texts: Sequence[str] = ()
) -> Iterator[Any]:
    """Record batches from row `start` on, so many rows at a time; `texts` come as codes."""
    first, skip = _group_at(metadata, start)
    groups = list(range(first, metadata.num_row_groups))
    with readable_parquet(path), _open(path, metadata, texts) as file:
        for batch in file.iter_batches(rows, groups, names, use_threads=False):
            found = batch[skip:]
            skip = max(0, skip - len(batch))
            if len(found):
                yield found


def _group_at(metadata: Any, start: int) -> tuple[int, int]:
    """Row group that holds a row, and the rows before it in the group."""
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if start < rows:
            return group, start
        start -= rows
    return metadata.num_row_groups, 0


def _is_list(arrow: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow)
    )


def _value_type(arrow: Any) -> np.dtype[Any] | None:
    """Type of the values of a column, or of its lists; None where they are of no use."""
    from pyarrow import types

    value = arrow.value_type if _is_list(arrow) or types.is_dictionary(arrow) else arrow
    numbers = types.is_integer(value) or types.is_floating(value)
    if not _is_list(arrow):
        if types.is_string(value) or types.is_large_string(value):
            return np.dtype("U")
        numbers = numbers or types.is_boolean(value)
    return np.dtype(value.to_pandas_dtype()) if numbers else None


def _open(path: Path, metadata: Any = None, texts: Sequence[str] = ()) -> Any:
    """Metadata and schema; or, given the former, the file, with columns of `texts` as codes."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(
        arrow_file(path),
        buffer_size=_BUFFER,
        pre_buffer=False,
        metadata=metadata,
        read_dictionary=list(texts) or None,
    )
    return (file.metadata, file.schema_arrow) if metadata is None else file


def readable_parquet(path: Path) -> AbstractContextManager[None]:
    """Turn what Arrow raises on a damaged file into an error that names it."""
    pa = needed("pyarrow", f"{path}: a Parquet file")
    known = (pa.ArrowException, OSError, ValueError, OverflowError, KeyError)
    return readable(path, "Parquet", *known)


@final
class _ParquetColumn(SequentialColumn):
    """Texts, numbers, or lists of `width` numbers, streamed in batches of rows.

    Texts are read as codes and distinct texts: one that is long or frequent is kept once.
    """

    def __init__(
        self, path: Path, name: str, metadata: Any, dtype: np.dtype[Any], width: int | None = None
    ) -> None:
        shape = (metadata.num_rows,) if width is None else (metadata.num_rows, width)
        super().__init__(path, name, shape, dtype)
        self.metadata, self._width = metadata, width

    @cached_property
    def _item_bytes(self) -> int:
        """Bytes of a number, or of the longest text, for which the column is passed through."""
        import pyarrow.compute as pc

        if self.dtype.kind != "U":
            return self.dtype.itemsize
        longest = 0
        for values in self._batches(0, _TEXT_ROWS):
            with readable_parquet(self.path):
                own = pc.max(pc.binary_length(values.dictionary)).as_py()
            longest = max(longest, own or 0)
        return longest

    def first_width(self, arrow: Any) -> int:
        """Length of the first list; all others must have it too, which is checked on reading."""
        from pyarrow import types

        if types.is_fixed_size_list(arrow):
            return int(arrow.list_size)
        for values in self._batches(0, 1):
            return int(list_matrix(values, self.name).shape[1])
        raise self.error("has no rows.")

    def _chunks_from(self, start: int) -> Iterator[Array]:
        rows = _TEXT_ROWS if self.dtype.kind == "U" else self._chunk_rows
        for values in self._batches(start, rows):
            with readable_parquet(self.path):  # damage may only show now
                found = self._convert(values)
            yield found

    def _batches(self, start: int, rows: int) -> Iterator[Any]:
        """Arrow values from row `start` on, so many rows at a time."""
        texts = [self.name] if self.dtype.kind == "U" else []
        for batch in _batches(self.path, self.metadata, [self.name], start, rows, texts):
            yield batch.column(self.name)

    def _convert(self, values: Any) -> Array:
        """A batch of Arrow values as an array."""
        if self.dtype.kind == "U":
            return self._texts(values)
        if self._width is None:
            return scalar_values(values, self.described, missing=self.missing_allowed)
        matrix = list_matrix(values, self.described)
        if matrix.shape[1] != self._width:
            raise self.error(
                f"has lists of different lengths: lists of {matrix.shape[1]} and of {self._width} "
                "numbers. All rows need equally many."
            )
        return matrix

    def _texts(self, values: Any) -> Array:
        if values.null_count and self.missing_allowed:
            values = values.cast(values.type.value_type).fill_null(MISSING).dictionary_encode()
        if values.null_count:
            raise self.error("has missing values. Fill or drop them first.")
        codes, place = np.unique(values.indices.to_numpy(), return_inverse=True)
        try:
            texts = values.dictionary.take(codes).to_pylist()
        except UnicodeDecodeError as error:
            raise self.error(f"holds bytes that are no text ({error}). Save it again.") from error
        found = np.empty(len(texts), dtype=object)
        found[:] = texts
        return found[place]


@final
class _ParquetMatrix(SequentialColumn):
    """Numbers of several columns; each has a value in every row."""

    def __init__(self, name: str, columns: Sequence[_ParquetColumn]) -> None:
        first = columns[0]
        dtype = np.result_type(*[column.dtype for column in columns])
        super().__init__(first.path, name, (first.shape[0], len(columns)), dtype)
        self._metadata, self._columns = first.metadata, list(columns)

    def _chunks_from(self, start: int) -> Iterator[Array]:
        names = [column.name for column in self._columns]
        for batch in _batches(self.path, self._metadata, names, start, self._chunk_rows):
            with readable_parquet(self.path):
                found = [
                    scalar_values(batch.column(column.name), column.described)
                    for column in self._columns
                ]
            yield np.column_stack(found).astype(self.dtype, copy=False)
