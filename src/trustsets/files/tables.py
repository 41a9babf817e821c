"""Arrays of a file by name: `.npz`, `.safetensors`, `.csv`, `.parquet` or a folder of `.npy` files.

`open_columns` reads names and shapes. Values are read by ranges of rows: `.npy` files and
`.safetensors` are memory-mapped, Parquet is read in batches, and an array of an `.npz` file and a
CSV file are read whole. Nothing is ever unpickled.
"""

import csv
import math
import os
import re
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any, final

import numpy as np

from trustsets._arrays import Array
from trustsets._frames import needed
from trustsets._storage import StrPath
from trustsets.errors import InputError

__all__ = [
    "Column",
    "arrow_columns",
    "check_fits",
    "open_columns",
    "plain_file",
    "read_csv",
    "stacked",
]

# What zipfile and NumPy raise on damaged files.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error,
    OSError, OverflowError, ValueError,
)  # fmt: skip
_ENCRYPTED = 1
# Compression that real outputs never reach; constant arrays may, and zip bombs do.
_LARGEST_RATIO = 500
# An array smaller than this is no danger, however it is packed.
_SMALL = 64 << 20
_DELIMITERS = ",;\t|"
# Integers as Python writes them; "007" is a name. Tools with missing values append ".0".
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_ROUND = re.compile(r"(-?(?:0|[1-9]\d{0,17}))(?:\.0+)?")
# Rows of a Parquet file that are decoded at a time.
_BATCH_ROWS = 1 << 14
# Rows in which the length of the lists of a column is looked for.
_FIRST_ROWS = 100


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


def check_fits(path: Path, need: int) -> None:
    """Refuse arrays whose announced size in bytes does not fit into the free memory."""
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


def open_columns(path: StrPath) -> "dict[str, Column]":
    """Arrays of a file or folder by name; the extension says how to read it."""
    target = Path(path)
    if target.is_dir():
        files = sorted(target.glob("*.npy"))
        if not files:
            raise InputError(
                f"{target}: this folder holds no .npy files; save logits.npy, features.npy and "
                "labels.npy there."
            )
        return {file.stem: Column(file, file.stem, _map_npy(file)) for file in files}
    readers: dict[str, Callable[[Path], dict[str, Any]]] = {
        ".npz": _read_npz,
        ".parquet": _read_parquet,
        ".safetensors": _read_tensors,
        ".csv": _read_csv_arrays,
    }
    suffix = plain_file(target).suffix.lower()
    if suffix not in readers:
        raise InputError(
            f"{target}: files of kind {suffix or 'unknown'!r} are not read; use "
            f"{', '.join(readers)} or a folder of .npy files."
        )
    return {name: Column(target, name, values) for name, values in readers[suffix](target).items()}


@final
class Column:
    """An array of a file, or columns of a table side by side, read by ranges of rows.

    `values` has a shape and gives the rows of a slice. `source` names the file in messages, and
    `names` the columns of a table that make a matrix.
    """

    def __init__(self, source: object, name: str, values: Any, names: Sequence[str] = ()) -> None:
        self.source, self.name, self.values, self.names = source, name, values, names
        self.shape: tuple[int, ...] = tuple(values.shape)

    def read_numbers(self, start: int = 0, stop: int | None = None) -> Array:
        """Rows of numbers from `start` up to `stop`; missing ones are NaN."""
        values = self._rows(start, stop)
        if values.dtype.kind == "O":
            return self._parsed(values, start)
        if values.dtype.kind not in "fiub":
            raise self.error(f"must hold numbers; its type is {values.dtype}. Convert it.")
        return values

    def read_names(self, start: int = 0, stop: int | None = None) -> Array:
        """Rows of integers or texts; missing ones are None or NaN."""
        values = self._rows(start, stop)
        if values.dtype.kind not in "fiubUSO":
            raise self.error(
                f"must hold integers or texts; its type is {values.dtype}. Convert it."
            )
        try:
            if values.dtype.kind == "S":
                return np.asarray(np.char.decode(values, "utf-8"))
            if values.dtype.kind == "U":
                # NumPy itself does not look at its code points.
                values.astype(values.dtype.newbyteorder("<")).tobytes().decode("utf-32-le")
        except UnicodeError as error:
            raise self.error(f"holds bytes that are no text ({error}). Save it again.") from error
        return values

    def _rows(self, start: int, stop: int | None) -> Array:
        with _readable(f"{self.source}: array {self.name!r}", *_DAMAGE):
            return np.array(self.values[start : self.shape[0] if stop is None else stop])

    def _parsed(self, texts: Array, start: int) -> Array:
        numbers = np.empty(len(texts))
        for row, text in enumerate(texts.tolist()):
            try:
                # Python reads 1_000 as a number.
                numbers[row] = float("" if text is None or "_" in text else text)
            except ValueError:
                hint = "Write numbers with a decimal point." if "," in (text or "") else ""
                raise self.error(
                    f"must hold numbers; row {start + row} "
                    f"{f'holds {text!r}' if text else 'is empty'}. "
                    f"{hint or 'Fill or drop such rows first.'}"
                ) from None
        return numbers

    def error(self, what: str) -> InputError:
        """An error about this array; `what` begins with a verb."""
        return InputError(f"{self.source}: array {self.name!r} {what}")


def stacked(name: str, columns: Sequence[Column]) -> Column:
    """Several columns of one table as the columns of a matrix."""
    names = [column.name for column in columns]
    for column in columns:
        if column.shape != columns[0].shape or len(column.shape) != 1:
            raise column.error("must hold one number in each row.")
    first = columns[0].values
    if isinstance(first, _ArrowColumn):
        return Column(columns[0].source, name, _ArrowColumn(first.table, names, len(names)), names)
    parts = [column.read_numbers() for column in columns]
    return Column(columns[0].source, name, _side_by_side(parts), names)


def _side_by_side(columns: Sequence[Array]) -> Array:
    """A matrix of the columns' type if they share a floating one, and else float64."""
    types = {column.dtype for column in columns}
    is_floating = len(types) == 1 and columns[0].dtype.kind == "f"
    return np.column_stack(columns).astype(columns[0].dtype if is_floating else np.float64)


@contextmanager
def _readable(what: object, *errors: type[Exception]) -> Iterator[None]:
    """Turn what a library raises on a damaged file into an error that names it."""
    try:
        yield
    except (FileNotFoundError, PermissionError, InputError, MemoryError):
        raise
    except errors as error:
        raise InputError(
            f"{what}: it cannot be read ({str(error) or 'it ends too early'}). It is truncated or "
            "damaged; save it again."
        ) from error


# --- NumPy and safetensors ---------------------------------------------------------------------


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
    claimed, present = math.prod(shape) * int(dtype.itemsize), size - stream.tell()
    if claimed != present or min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise InputError(
            f"{what} claims shape {shape} of {dtype}, {claimed:,} bytes, but the file holds "
            f"{present:,}. It is truncated or damaged; save it again."
        )
    return shape, fortran, dtype


def _map_npy(path: Path) -> Array:
    """An `.npy` file, memory-mapped."""
    with plain_file(path).open("rb") as stream:
        what = f"{path}: array {path.stem!r}"
        shape, fortran, dtype = _read_header(stream, path.stat().st_size, what)
        offset = stream.tell()
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, order="F" if fortran else "C")


def _read_npz(path: Path) -> "dict[str, _PackedArray]":
    with _readable(path, *_DAMAGE), zipfile.ZipFile(path) as archive:
        items = [item for item in archive.infolist() if item.filename.endswith(".npy")]
        return {
            item.filename.removesuffix(".npy"): _PackedArray(path, archive, item) for item in items
        }


@final
class _PackedArray:
    """An array of an `.npz` file, read whole at first use, if its announced size fits in memory."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> None:
        what = f"{path}: array {item.filename.removesuffix('.npy')!r}"
        # Other packings than those of NumPy unpack all they hold at once.
        is_usual = item.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if not is_usual or item.flag_bits & _ENCRYPTED:
            raise InputError(
                f"{what} is packed or encrypted in a way that NumPy never writes. Save it with "
                "numpy.savez."
            )
        packed = min(item.compress_size, path.stat().st_size)
        if item.file_size > max(_SMALL, _LARGEST_RATIO * packed):
            raise InputError(
                f"{what} announces {item.file_size / 2**30:.1f} GiB in {packed / 2**20:.1f} MiB, "
                f"over {_LARGEST_RATIO} times as much, as a zip bomb does. If it is genuine, save "
                "it with numpy.savez."
            )
        check_fits(path, item.file_size)
        with archive.open(item) as stream:
            self.shape, _, _ = _read_header(stream, item.file_size, what)
        self._path, self._member = path, item.filename

    @cached_property
    def _values(self) -> Array:
        with zipfile.ZipFile(self._path) as archive, archive.open(self._member) as stream:
            values: Array = np.lib.format.read_array(stream, allow_pickle=False)
            # The checksum is compared when the end of a member is reached.
            if stream.read(1):
                raise ValueError("it goes on after its last number")
        return values

    def __getitem__(self, rows: slice) -> Array:
        return self._values[rows]


def _read_tensors(path: Path) -> "dict[str, _Tensor]":
    from safetensors import SafetensorError, safe_open

    with _readable(path, SafetensorError):
        file: Any = safe_open(path, framework="numpy")
        return {name: _Tensor(file.get_slice(name)) for name in file.keys()}


@final
class _Tensor:
    """One tensor of a `.safetensors` file, memory-mapped."""

    def __init__(self, view: Any) -> None:
        self._view, self.shape = view, tuple(view.get_shape())

    def __getitem__(self, rows: slice) -> Array:
        try:
            return np.asarray(self._view[rows])
        except (TypeError, AttributeError) as error:
            raise ValueError(f"{self._view.get_dtype()} is a type that NumPy lacks") from error


# --- CSV ---------------------------------------------------------------------------------------


def _read_csv_arrays(path: Path) -> dict[str, Array]:
    """Columns by name; those without a name, such as an index, are left out."""
    names, rows = read_csv(path)
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return {name: _cells(cells) for name, cells in columns if name}


def _cells(cells: Sequence[str]) -> Array:
    """Integers where all cells are, and else texts, None where they are missing."""
    if all(map(_WHOLE.fullmatch, cells)):
        return np.array(list(map(int, cells)), dtype=np.int64)
    texts: Array = np.array([cell or None for cell in cells], dtype=object)
    # A missing value among integers makes other tools write 3.0 for 3.
    if all(text is None or _ROUND.fullmatch(text) for text in texts):
        texts[:] = [None if text is None else text.partition(".")[0] for text in texts]
    return texts


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
                if row and len(row) != len(names):
                    raise InputError(
                        f"{path}: row {len(rows)} (line {lines.line_num}) has {len(row)} cells, "
                        f"and the first line names {len(names)} columns. Repair it, or put texts "
                        f"that hold {delimiter!r} into quotes."
                    )
                rows += [row] if row else []
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path}: not a readable CSV file ({error}). Save it again, as UTF-8."
        ) from error
    finally:
        csv.field_size_limit(largest)
    if not any(names):
        raise InputError(f"{path}: it is empty; its first line must name the columns.")
    _check_distinct(path, [name for name in names if name])
    if not rows:
        raise InputError(f"{path}: it has the names of columns, but no rows.")
    return names, rows


def _check_distinct(source: object, names: Sequence[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{source}: two columns are called {twice!r}; rename one of them.")


# --- Arrow -------------------------------------------------------------------------------------


def _read_parquet(path: Path) -> "dict[str, _ArrowColumn]":
    needed("pyarrow", f"{path}: a Parquet file")
    return _arrow_arrays(_ArrowTable(path))


def arrow_columns(table: Any) -> dict[str, Column]:
    """Columns of an Arrow table by name."""
    arrays = _arrow_arrays(_ArrowTable(table))
    return {name: Column("table", name, values) for name, values in arrays.items()}


def _arrow_arrays(table: "_ArrowTable") -> "dict[str, _ArrowColumn]":
    _check_distinct(table.described, table.schema.names)
    return {
        field.name: _ArrowColumn(table, [field.name], _list_width(table, field))
        for field in table.schema
    }


def _list_width(table: "_ArrowTable", field: Any) -> int:
    """Numbers in a row of a column of lists; 0 for one that holds no lists."""
    if not _is_list(field.type):
        return 0
    width = getattr(field.type, "list_size", -1)
    if width < 0:
        # All lists must be as long as the first, which is checked when they are read.
        lists = table.read([field.name], 0, min(_FIRST_ROWS, table.n_rows)).column(0)
        width = next((len(numbers) for numbers in lists.to_pylist() if numbers), 1)
    return int(width)


@final
class _ArrowTable:
    """Rows of a Parquet file, decoded in batches, or of an Arrow table.

    It is cheap to go on where the last read ended; any other start begins at the first row. What
    the footer of a file says of a chunk of a column is not asked for: where it is damaged, Arrow
    ends the whole process.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self.described = source if isinstance(source, Path) else "table"
        self._streams: dict[tuple[str, ...], _Batches] = {}
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
        return _readable(self.described, *raised)

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

    def _decoded(self, names: Sequence[str]) -> Iterator[Any]:
        with self._open() as file:
            yield from file.iter_batches(_BATCH_ROWS, columns=list(names), use_threads=False)

    def read(self, names: Sequence[str], start: int, stop: int) -> Any:
        """Columns of the rows `start` up to `stop` as a table."""
        import pyarrow as pa

        if not isinstance(self._source, Path):
            return self._source.select(list(names)).slice(start, stop - start)
        stream = self._streams.pop(tuple(names), None)
        if stream is None or stream.position != start:
            stream = _Batches(self.described, self._decoded(names))
        with self.readable():
            stream.take(start - stream.position)
            pieces = stream.take(stop - start)
            schema = pa.schema([self.schema.field(name) for name in names])
            table = pa.Table.from_batches(pieces, pieces[0].schema if pieces else schema)
        self._streams[tuple(names)] = stream
        return table


@final
class _Batches:
    """Batches of rows, taken by numbers of rows."""

    def __init__(self, described: object, batches: Iterator[Any]) -> None:
        self._described, self._batches, self._rest = described, batches, None
        self.position = 0

    def take(self, count: int) -> list[Any]:
        """The next `count` rows, in pieces."""
        pieces = []
        while count > 0:
            batch: Any = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                raise InputError(f"{self._described}: it ends after {self.position} rows.")
            piece = batch.slice(0, count)
            self._rest = batch.slice(len(piece)) if len(piece) < len(batch) else None
            self.position += len(piece)
            count -= len(piece)
            pieces.append(piece)
        return pieces


@final
class _ArrowColumn:
    """Numbers or texts of a column, lists of numbers as rows, or the numbers of several columns."""

    def __init__(self, table: _ArrowTable, names: Sequence[str], width: int) -> None:
        self.table, self._names = table, list(names)
        self.shape: tuple[int, ...] = (table.n_rows, width) if width else (table.n_rows,)

    def __getitem__(self, rows: slice) -> Array:
        with self.table.readable():
            columns = self.table.read(self._names, rows.start, rows.stop).columns
            kind = columns[0].type
            if _is_list(kind):
                return self._matrix(columns[0], rows.start)
            if len(self.shape) == 2:
                return _side_by_side(list(map(self._numbers, columns, self._names)))
            if _is_text(kind):
                texts: Array = np.empty(len(columns[0]), dtype=object)
                texts[:] = columns[0].to_pylist()
                return texts
            return self._numbers(columns[0], self._names[0])

    def _matrix(self, values: Any, start: int) -> Array:
        """Lists of numbers as the rows of a matrix."""
        import pyarrow.compute as pc

        width = self.shape[1]
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            raise InputError(
                f"{self.table.described}: column {self._names[0]!r} must have lists of one length: "
                f"row {start + row} has {lengths[row]} numbers, and the first row {width}. Fill or "
                "drop such rows first."
            )
        numbers = self._numbers(pc.list_flatten(values), self._names[0])
        return numbers.reshape(len(values), width)

    def _numbers(self, values: Any, name: str) -> Array:
        """Numbers of any Arrow type; missing ones are NaN."""
        import pyarrow as pa
        from pyarrow import types

        kind = values.type.value_type if types.is_dictionary(values.type) else values.type
        checks = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
        if not any(check(kind) for check in checks):
            raise InputError(
                f"{self.table.described}: column {name!r} must hold numbers; it holds {kind}. "
                "Convert it."
            )
        is_plain = kind == values.type and not types.is_decimal(kind)
        if not is_plain or (types.is_boolean(kind) and values.null_count):
            values = values.cast(pa.float64())
        chunked = isinstance(values, pa.ChunkedArray)
        return np.asarray(values.to_numpy() if chunked else values.to_numpy(zero_copy_only=False))


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_text(kind: Any) -> bool:
    """Whether a type holds texts, or nothing at all, as a column without values does."""
    from pyarrow import types

    checks = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    value = kind.value_type if types.is_dictionary(kind) else kind
    return any(check(value) for check in checks)
