"""Arrays of a file by name: `.npz`, `.safetensors`, `.csv`, `.parquet` or a folder of `.npy` files.

`open_columns` reads names and shapes. Numbers are read when they are asked for, by ranges of rows:
`.npy` files and `.safetensors` are memory-mapped, Parquet is read in batches, and an array of an
`.npz` file and a CSV file are read whole. Nothing is ever unpickled.
"""

import csv
import math
import re
import stat
import struct
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal, final

import numpy as np

from trustsets._arrays import Array
from trustsets._frames import needed
from trustsets._storage import StrPath
from trustsets.errors import InputError

__all__ = [
    "Column",
    "open_columns",
    "plain_file",
    "read_csv",
    "stacked",
    "table_columns",
]

# Compression that real outputs never reach; constant arrays may, and zip bombs do.
_LARGEST_RATIO = 500
# An array smaller than this is no danger, however it is packed.
_SMALL = 64 << 20
_ENCRYPTED = 1
_DELIMITERS = ",;\t|"
# Integers as Python writes them; "007" is a name. Tools with missing values append ".0".
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_ROUND = re.compile(r"(-?(?:0|[1-9]\d{0,17}))(?:\.0+)?")
# Rows of a Parquet file that are decoded at a time.
_BATCH_ROWS = 1 << 14
# Rows in which the length of the lists of a column is looked for.
_FIRST_ROWS = 100
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error,
    UnicodeDecodeError, OverflowError, ValueError,
)  # fmt: skip
_TENSOR_TYPES = {
    "F16": "f2", "F32": "f4", "F64": "f8", "BOOL": "?",
    "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8",
    "U8": "u1", "U16": "u2", "U32": "u4", "U64": "u8",
}  # fmt: skip


def plain_file(path: StrPath) -> Path:
    """The path of a regular file; reading a pipe or a device might never end."""
    target = Path(path)
    try:
        mode = target.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{target}: there is no such file.") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{target}: this is a folder; give the name of a file.")
    if not stat.S_ISREG(mode):
        raise InputError(f"{target}: this is a pipe or a device; save its content to a file first.")
    return target


def open_columns(path: StrPath) -> "dict[str, Column]":
    """Arrays of a file or folder by name; the extension says how to read it."""
    target = Path(path)
    if target.is_dir():
        found: dict[str, Column] = {
            file.stem: _NpyColumn(file) for file in sorted(target.glob("*.npy"))
        }
        if not found:
            raise InputError(
                f"{target}: this folder holds no .npy files; save logits.npy, features.npy and "
                "labels.npy there."
            )
        return found
    readers = {
        ".npz": _npz_columns,
        ".parquet": _parquet_columns,
        ".safetensors": _tensor_columns,
        ".csv": _csv_columns,
    }
    suffix = plain_file(target).suffix.lower()
    if suffix not in readers:
        raise InputError(
            f"{target}: files of kind {suffix or 'unknown'!r} are not read; use "
            f"{', '.join(readers)} or a folder of .npy files."
        )
    return readers[suffix](target)


class Column(ABC):
    """An array of a file, read by ranges of rows.

    `source` names the file in messages. Whether numbers or names can be read shows when they are.
    """

    names: Sequence[str] = ()
    """Names of the columns of a table, where several make a matrix."""

    def __init__(self, source: object, name: str, shape: tuple[int, ...]) -> None:
        self.source, self.name, self.shape = source, name, shape

    @abstractmethod
    def read_numbers(self, start: int, stop: int) -> Array:
        """Rows of numbers from `start` up to `stop`; missing ones are NaN."""

    @abstractmethod
    def read_names(self, start: int, stop: int) -> Array:
        """Rows of integers or texts; missing ones are None or NaN."""

    @property
    def holds_numbers(self) -> bool:
        """Whether all values are numbers."""
        try:
            self.read_numbers(0, self.shape[0])
        except InputError:
            return False
        return True

    @final
    def error(self, what: str) -> InputError:
        """An error about this array; `what` begins with a verb."""
        return InputError(f"{self.source}: array {self.name!r} {what}")


class _ArrayColumn(Column):
    """A NumPy array, `values`, in memory or mapped into it."""

    def __init__(self, source: object, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(source, name, shape)
        self.dtype = np.dtype(dtype)

    @abstractmethod
    def _rows(self, start: int, stop: int) -> Array:
        """Rows from `start` up to `stop`, in memory."""

    def read_numbers(self, start: int, stop: int) -> Array:
        """Rows of numbers."""
        if self.dtype.kind not in "fiub":
            raise self.error(f"must hold numbers; its type is {self.dtype}. Convert it.")
        return self._rows(start, stop)

    def read_names(self, start: int, stop: int) -> Array:
        """Rows of integers or texts; bytes become texts."""
        if self.dtype.kind not in "iubfUS":
            raise self.error(f"must hold integers or texts; its type is {self.dtype}. Convert it.")
        values = self._rows(start, stop)
        try:
            if values.dtype.kind == "S":
                return np.asarray(np.char.decode(values, "utf-8"))
            if values.dtype.kind == "U":
                # NumPy itself does not look at its code points.
                values.astype(values.dtype.newbyteorder("<")).tobytes().decode("utf-32-le")
        except UnicodeError as error:
            raise self.error(f"holds bytes that are no text ({error}). Save it again.") from error
        return values


@contextmanager
def _readable(what: object, kind: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn what a library raises on a damaged file into an error that names it."""
    try:
        yield
    except (FileNotFoundError, InputError, MemoryError):
        raise
    except errors as error:
        raise InputError(
            f"{what}: not a readable {kind} file ({str(error) or 'it ends too early'}). It is "
            "truncated or damaged; save it again."
        ) from error


# --- NumPy -------------------------------------------------------------------------------------


def _read_header(stream: IO[bytes], size: int, what: str) -> tuple[tuple[int, ...], bool, Any]:
    """Shape, order and dtype of an array of `size` bytes with its header.

    Python objects, which would need pickle, are refused, and so are claims of more than there is.
    """
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(stream)
    except Exception as error:  # NumPy passes on whatever Python's own parser raises
        raise InputError(
            f"{what} is no NumPy array, or a damaged one ({error}). Save it again."
        ) from error
    if dtype.hasobject:
        raise InputError(
            f"{what} holds Python objects, which only pickle could read, and pickle can run code. "
            "Save it with a plain dtype, such as astype(str)."
        )
    claim = f"{what} claims shape {shape} of {dtype}"
    if min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise InputError(f"{claim}, which no array has. Save it again.")
    claimed, present = math.prod(shape) * int(dtype.itemsize), size - stream.tell()
    if claimed != present:
        raise InputError(
            f"{claim}, {claimed:,} bytes, but the file holds {present:,}. It is truncated or "
            "damaged; save it again."
        )
    return shape, fortran, dtype


@final
class _NpyColumn(_ArrayColumn):
    """An `.npy` file, memory-mapped."""

    def __init__(self, path: Path) -> None:
        with plain_file(path).open("rb") as stream:
            what = f"{path}: array {path.stem!r}"
            shape, fortran, dtype = _read_header(stream, path.stat().st_size, what)
            self._offset = stream.tell()
        super().__init__(path, path.stem, shape, dtype)
        self._path = path
        self._order: Literal["C", "F"] = "F" if fortran else "C"

    def _rows(self, start: int, stop: int) -> Array:
        try:
            # Mapped anew for each range, so that pages that were read can leave the memory.
            values: Array = np.memmap(
                self._path, self.dtype, "r", self._offset, self.shape, order=self._order
            )
        except (ValueError, OSError) as error:
            raise self.error(
                f"cannot be read ({error}); the file may have been changed while it was read."
            ) from error
        return np.array(values[start:stop], order="C")


def _npz_columns(path: Path) -> dict[str, Column]:
    with _readable(path, ".npz", *_DAMAGE), zipfile.ZipFile(path) as archive:
        members = [item for item in archive.infolist() if item.filename.endswith(".npy")]
        return {
            item.filename.removesuffix(".npy"): _NpzColumn(path, archive, item) for item in members
        }


@final
class _NpzColumn(_ArrayColumn):
    """An array of an `.npz` file, read whole at first use, with its checksum."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> None:
        name = item.filename.removesuffix(".npy")
        what = f"{path}: array {name!r}"
        _check_packing(path, what, item)
        with archive.open(item) as stream:
            shape, _, dtype = _read_header(stream, item.file_size, what)
        super().__init__(path, name, shape, dtype)
        self._path, self._member = path, item.filename

    @cached_property
    def _values(self) -> Array:
        what = f"{self.source}: array {self.name!r}"
        with _readable(what, ".npz", *_DAMAGE), zipfile.ZipFile(self._path) as archive:
            with archive.open(self._member) as stream:
                values: Array = np.lib.format.read_array(stream, allow_pickle=False)
                # The checksum is compared when the end of a member is reached.
                if stream.read(1):
                    raise ValueError("it goes on after its last number")
        return values

    def _rows(self, start: int, stop: int) -> Array:
        return self._values[start:stop]


def _check_packing(path: Path, what: str, item: zipfile.ZipInfo) -> None:
    """Refuse a member before a byte of it is unpacked, by what the archive says of it.

    Other packings than those of NumPy unpack all they hold at once, however little is asked for.
    """
    plain = item.compress_type == zipfile.ZIP_STORED
    if not (plain or item.compress_type == zipfile.ZIP_DEFLATED) or item.flag_bits & _ENCRYPTED:
        raise InputError(
            f"{what} is packed or encrypted in a way that NumPy never writes. Save it with "
            "numpy.savez."
        )
    packed = min(item.compress_size, path.stat().st_size)
    if item.compress_size > packed or (plain and item.file_size != item.compress_size):
        raise InputError(
            f"{what} claims more bytes than the file has. It is damaged; save it again."
        )
    if not plain and item.file_size > max(_SMALL, _LARGEST_RATIO * packed):
        raise InputError(
            f"{what} unpacks to {item.file_size / 2**30:.1f} GiB from {packed / 2**20:.1f} MiB, "
            f"over {_LARGEST_RATIO} times as much, as a zip bomb does. If it is genuine, save it "
            "with numpy.savez."
        )


# --- safetensors -------------------------------------------------------------------------------


def _tensor_columns(path: Path) -> dict[str, Column]:
    with _opened_tensors(path) as file:
        return {name: _TensorColumn(path, name, file) for name in file.keys()}


@contextmanager
def _opened_tensors(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    with _readable(path, "safetensors", SafetensorError):
        with safe_open(plain_file(path), framework="numpy") as file:
            yield file


@final
class _TensorColumn(_ArrayColumn):
    """One tensor of a `.safetensors` file, memory-mapped."""

    def __init__(self, path: Path, name: str, file: Any) -> None:
        view = file.get_slice(name)
        # A type that NumPy lacks gets one that no array may have; it is refused where it is used.
        dtype = _TENSOR_TYPES.get(str(view.get_dtype()), "V2")
        super().__init__(path, name, tuple(view.get_shape()), dtype)
        self._path = path

    def _rows(self, start: int, stop: int) -> Array:
        if self.dtype.kind == "V":
            raise self.error("has a type that NumPy lacks. Save it as float32.")
        with _opened_tensors(self._path) as file:
            return np.array(file.get_slice(self.name)[start:stop])


# --- CSV ---------------------------------------------------------------------------------------


def _csv_columns(path: Path) -> dict[str, Column]:
    """Columns by name; those without a name, such as an index, are left out."""
    names, rows = read_csv(path)
    columns = zip(*rows, strict=True)
    return {
        name: _CsvColumn(path, name, cells)
        for name, cells in zip(names, columns, strict=True)
        if name
    }


def read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the cells of each row below them.

    What separates the names in the first line separates the cells. Blank lines are left out.
    """
    largest = csv.field_size_limit(2**31 - 1)
    try:
        with plain_file(path).open(encoding="utf-8-sig", newline="") as file:
            first = next((line for line in file if line.strip()), "")
            delimiter = max(_DELIMITERS, key=first.count)
            file.seek(0)
            lines = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
            names = [name.strip() for name in next((row for row in lines if row), [])]
            rows: list[list[str]] = []
            for row in lines:
                if not row:
                    continue
                if len(row) != len(names):
                    raise InputError(
                        f"{path}: row {len(rows)} (line {lines.line_num}) has {len(row)} cells, "
                        f"and the first line names {len(names)} columns. Repair it, or put texts "
                        f"that hold {delimiter!r} into quotes."
                    )
                rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path}: not a readable CSV file ({error}). Save it again, as UTF-8."
        ) from error
    finally:
        csv.field_size_limit(largest)
    if not any(names):
        raise InputError(f"{path}: it is empty; its first line must name the columns.")
    check_distinct(path, [name for name in names if name])
    if not rows:
        raise InputError(f"{path}: it has the names of columns, but no rows.")
    return names, rows


def check_distinct(source: object, names: Sequence[str]) -> None:
    """Refuse a table in which two columns have one name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{source}: two columns are called {twice!r}; rename one of them.")


@final
class _CsvColumn(Column):
    """One column of a CSV file: cells, which are numbers or names as they are asked for."""

    def __init__(self, path: Path, name: str, cells: Sequence[str]) -> None:
        super().__init__(path, name, (len(cells),))
        self._cells = cells

    @cached_property
    def _numbers(self) -> Array:
        try:
            return np.array(list(map(_number, self._cells)))
        except ValueError:
            pass
        for row, cell in enumerate(self._cells):
            try:
                _number(cell)
            except ValueError:
                hint = "Write numbers with a decimal point." if "," in cell else ""
                raise InputError(
                    f"{self.source}: column {self.name!r} must hold numbers; row {row} "
                    f"{f'holds {cell!r}' if cell else 'is empty'}. "
                    f"{hint or 'Fill or drop such rows first.'}"
                ) from None
        raise AssertionError("all cells are numbers")

    @cached_property
    def _names(self) -> Array:
        """Integers where all cells are, and else texts, None where they are missing."""
        if all(map(_WHOLE.fullmatch, self._cells)):
            return np.array(list(map(int, self._cells)), dtype=np.int64)
        names: Array = np.array([cell or None for cell in self._cells], dtype=object)
        # A missing value among integers makes other tools write 3.0 for 3.
        if all(cell is None or _ROUND.fullmatch(cell) for cell in names):
            names[:] = [None if cell is None else cell.partition(".")[0] for cell in names]
        return names

    def read_numbers(self, start: int, stop: int) -> Array:
        """Cells as float64."""
        return self._numbers[start:stop]

    def read_names(self, start: int, stop: int) -> Array:
        """Cells as integers or texts."""
        return self._names[start:stop]


def _number(cell: str) -> float:
    if "_" in cell:  # Python reads 1_000 as a number
        raise ValueError
    return float(cell)


def stacked(name: str, columns: Sequence[Column]) -> Column:
    """Several columns of one table as the columns of a matrix."""
    arrow = [column for column in columns if isinstance(column, ArrowColumn)]
    if len(arrow) == len(columns):
        return ArrowColumn.stacked(name, arrow)
    return _StackedColumn(name, columns)


@final
class _StackedColumn(Column):
    """A matrix of columns that are in memory."""

    def __init__(self, name: str, columns: Sequence[Column]) -> None:
        first = columns[0]
        super().__init__(first.source, name, (first.shape[0], len(columns)))
        for column in columns:
            if len(column.shape) != 1 or column.shape != first.shape:
                raise InputError(f"column {column.name!r} must hold one number in each row.")
        self._columns = columns
        self.names = [column.name for column in columns]

    def read_numbers(self, start: int, stop: int) -> Array:
        """Rows of numbers."""
        parts = [column.read_numbers(start, stop) for column in self._columns]
        return np.column_stack(parts).astype(common_type(parts), copy=False)

    def read_names(self, start: int, stop: int) -> Array:
        """Nothing: a matrix holds numbers."""
        raise self.error("holds numbers.")


def common_type(parts: Sequence[Array]) -> Any:
    """The type of all columns if they share a floating one, and else float64."""
    types = {part.dtype for part in parts}
    return types.pop() if len(types) == 1 and next(iter(types)).kind == "f" else np.float64


# --- Arrow -------------------------------------------------------------------------------------


def _parquet_columns(path: Path) -> dict[str, Column]:
    needed("pyarrow", f"{path}: a Parquet file")
    return _arrow_columns(_ArrowRows(path))


def table_columns(table: Any) -> dict[str, Column]:
    """Columns of an Arrow table by name."""
    return _arrow_columns(_ArrowRows(table))


def _arrow_columns(rows: "_ArrowRows") -> dict[str, Column]:
    check_distinct(rows.described, rows.schema.names)
    return {field.name: ArrowColumn.of(rows, field) for field in rows.schema}


@final
class _ArrowRows:
    """Rows of a Parquet file, decoded in batches, or of an Arrow table.

    It is cheap to go on where the last read ended; any other start begins at the first row. What
    the footer of a file says of a chunk of a column is not asked for: where it is damaged, Arrow
    ends the whole process.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self.described = source if isinstance(source, Path) else "table"
        # For each choice of columns: batches, the row after those read, and what was left over.
        self._streams: dict[tuple[str, ...], tuple[Iterator[Any], int, Any]] = {}
        if not isinstance(source, Path):
            self.schema, self.n_rows = source.schema, source.num_rows
            return
        with self.readable(), self._open() as file:
            self.schema, self.n_rows = file.schema_arrow, int(file.metadata.num_rows)
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        if sum(groups) != self.n_rows or min(groups, default=0) < 0:
            raise InputError(f"{source}: its groups do not add up to its rows; write it again.")

    def readable(self) -> AbstractContextManager[None]:
        """A context that names the file where its content turns out to be damaged."""
        import pyarrow as pa

        raised = (pa.ArrowException, OSError, ValueError, OverflowError, KeyError)
        return _readable(self.described, "Parquet", *raised)

    def _open(self) -> Any:
        import pyarrow.parquet as pq

        try:
            str(self._source).encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{self._source}: the name holds bytes that are no text in UTF-8, and Arrow cannot "
                "open such a file. Rename it."
            ) from None
        # Pages are read through a buffer instead of a whole row group at once.
        return pq.ParquetFile(self._source, buffer_size=1 << 20, pre_buffer=False)

    def read(self, names: Sequence[str], start: int, stop: int) -> Any:
        """Columns of the rows `start` up to `stop` as a table."""
        import pyarrow as pa

        key = tuple(names)
        batches, position, rest = self._streams.pop(key, (iter(()), -1, None))
        if position != start:
            batches, position, rest = self._batches(key), 0, None
        pieces = []
        with self.readable():
            while position < stop:
                batch = next(batches, None) if rest is None else rest
                if batch is None:
                    raise InputError(f"{self.described}: it ends after {position} rows.")
                taken = batch.slice(max(0, start - position), stop - max(start, position))
                end = min(stop, position + len(batch))
                rest = batch.slice(end - position) if end < position + len(batch) else None
                position = end
                if len(taken):
                    pieces.append(taken)
            self._streams[key] = batches, position, rest
            fields = [self.schema.field(name) for name in key]
            return pa.Table.from_batches(pieces, pieces[0].schema if pieces else pa.schema(fields))

    def _batches(self, names: tuple[str, ...]) -> Iterator[Any]:
        if not isinstance(self._source, Path):
            yield from self._source.select(list(names)).to_batches()
            return
        with self._open() as file:
            yield from file.iter_batches(_BATCH_ROWS, columns=list(names), use_threads=False)


@final
class ArrowColumn(Column):
    """Numbers or texts of a column, lists of numbers as rows, or the numbers of several columns."""

    def __init__(self, rows: _ArrowRows, name: str, types: Mapping[str, Any], width: int) -> None:
        shape = (rows.n_rows, width) if width else (rows.n_rows,)
        super().__init__(rows.described, name, shape)
        self._rows, self._types = rows, dict(types)

    @classmethod
    def of(cls, rows: _ArrowRows, field: Any) -> "ArrowColumn":
        """One column of a table or file."""
        width = 0
        if _is_list(field.type):
            width = getattr(field.type, "list_size", -1)
            if width < 0:
                # All lists must be as long as the first, which is checked when they are read.
                lists = rows.read([field.name], 0, min(_FIRST_ROWS, rows.n_rows)).column(0)
                width = next((len(own) for own in lists.to_pylist() if own), 1)
        return cls(rows, field.name, {field.name: field.type}, width)

    @classmethod
    def stacked(cls, name: str, columns: "Sequence[ArrowColumn]") -> "ArrowColumn":
        """Several columns as a matrix."""
        types = {key: kind for column in columns for key, kind in column._types.items()}
        for key, kind in types.items():
            if not _is_number(kind):
                raise InputError(
                    f"column {key!r} must hold numbers, one in each row; it holds {kind}. Convert "
                    "it."
                )
        column = cls(columns[0]._rows, name, types, len(types))
        column.names = list(types)
        return column

    @property
    def holds_numbers(self) -> bool:
        """Whether it has one number in each row."""
        return len(self.shape) == 1 and all(map(_is_number, self._types.values()))

    def read_numbers(self, start: int, stop: int) -> Array:
        """Rows of numbers; those of several columns side by side."""
        with self._rows.readable():
            table = self._rows.read(list(self._types), start, stop)
            if self.names:
                parts = [_numbers(table.column(name)) for name in self._types]
                return np.column_stack(parts).astype(common_type(parts), copy=False)
            (kind,) = self._types.values()
            if _is_list(kind) and _is_number(kind.value_type):
                return self._matrix(table.column(0), start)
            if not _is_number(kind):
                raise self.error(f"must hold numbers; it holds {kind}. Convert it.")
            return _numbers(table.column(0))

    def _matrix(self, values: Any, start: int) -> Array:
        """Lists of numbers as the rows of a matrix."""
        import pyarrow.compute as pc

        n, width = len(values), self.shape[1]
        lengths = pc.fill_null(pc.list_value_length(values), -1).to_numpy()
        if n and lengths.min() < 0:
            row = start + int(np.argmax(lengths < 0))
            raise self.error(f"has missing values, in row {row}. Fill or drop them first.")
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            raise self.error(
                f"has lists of different lengths: row {start + row} has {lengths[row]} numbers, "
                f"and the first row {width}. All rows need equally many."
            )
        flat = pc.list_flatten(values)
        if flat.null_count:
            row = start + int(np.argmax(pc.is_null(flat).to_numpy())) // width
            raise self.error(f"has missing values, in row {row}. Fill or drop them first.")
        return _numbers(flat).reshape(n, width)

    def read_names(self, start: int, stop: int) -> Array:
        """Rows of integers or texts; missing texts are None, and missing integers NaN."""
        from pyarrow import types

        (kind,) = self._types.values()
        value = _plain_type(kind)
        with self._rows.readable():
            values = self._rows.read(list(self._types), start, stop).column(0)
            if _is_number(kind):
                return _numbers(values)
            if not _is_text(value) and not types.is_null(value):
                raise self.error(f"must hold integers or texts; it holds {kind}. Convert it.")
            texts: Array = np.empty(len(values), dtype=object)
            try:
                texts[:] = values.to_pylist()
            except UnicodeDecodeError as error:
                raise self.error(
                    f"holds bytes that are no text ({error}). Save it again."
                ) from error
            return texts


def _plain_type(kind: Any) -> Any:
    """The type of the values of a column that may be encoded by a dictionary or have a tag."""
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    view = getattr(types, "is_string_view", lambda kind: False)
    return bool(types.is_string(kind) or types.is_large_string(kind) or view(kind))


def _is_number(kind: Any) -> bool:
    """Whether a type holds numbers: floating, integers of any width, decimals, or booleans."""
    from pyarrow import types

    value = _plain_type(kind)
    return bool(
        types.is_integer(value)
        or types.is_floating(value)
        or types.is_decimal(value)
        or types.is_boolean(value)
    )


def _numbers(values: Any) -> Array:
    """Numbers of any Arrow type as an array; missing ones are NaN."""
    import pyarrow as pa

    kind = _plain_type(values.type)
    if values.type != kind:
        values = values.cast(kind)
    if pa.types.is_decimal(kind):
        values = values.cast(pa.float64())
    if pa.types.is_boolean(kind) and values.null_count:
        values = values.cast(pa.int8())
    chunked = isinstance(values, pa.ChunkedArray)
    return np.asarray(values.to_numpy() if chunked else values.to_numpy(zero_copy_only=False))
