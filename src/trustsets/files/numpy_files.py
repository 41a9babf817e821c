"""Arrays in `.npz` files and folders of `.npy` files; never a pickle.

Stored members are read in place, compressed ones as streams. What the header of an array
claims is compared with the size of the file before anything is allocated.
"""

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, final

import numpy as np

from trustsets._common.arrays import Array
from trustsets.errors import InputError
from trustsets.files.columns import (
    CHUNK_BYTES,
    LARGEST_RATIO,
    Column,
    SequentialColumn,
    readable,
    unpacks_too_much,
)
from trustsets.files.paths import plain_file

_LOCAL_HEADER = 30
_ENCRYPTED = 1
_BROKEN = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error,
    UnicodeDecodeError, OverflowError, ValueError,
)  # fmt: skip


class _Header(NamedTuple):
    """What the first bytes of an array say, and how many they are."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: Any
    length: int


def npz_columns(path: Path) -> dict[str, Column]:
    """Arrays of an `.npz` file by name."""
    with readable(path, ".npz", *_BROKEN), zipfile.ZipFile(path) as archive:
        members = [item for item in archive.infolist() if item.filename.endswith(".npy")]
        return {
            item.filename.removesuffix(".npy"): _member_column(path, archive, item)
            for item in members
        }


def folder_columns(path: Path) -> dict[str, Column]:
    """Arrays of a folder of `.npy` files by name."""
    return {file.stem: npy_column(file) for file in sorted(path.glob("*.npy"))}


def npy_column(file: Path) -> Column:
    """The array of an `.npy` file."""
    with plain_file(file).open("rb") as stream:
        header = _read_header(stream, file.stat().st_size, f"{file}: array {file.stem!r}")
    return _PlainColumn(file, file.stem, header, header.length)


def _member_column(path: Path, archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> Column:
    name = item.filename.removesuffix(".npy")
    what = f"{path}: array {name!r}"
    _check_packing(path, what, item)
    with archive.open(item) as stream:
        header = _read_header(stream, item.file_size, what)
    if item.compress_type == zipfile.ZIP_STORED:
        return _PlainColumn(path, name, header, _data_offset(path, item) + header.length)
    if header.fortran and len(header.shape) > 1:
        raise InputError(
            f"{what} is compressed in column order, which cannot be read row by row. Save "
            "numpy.ascontiguousarray of it."
        )
    return _ZippedColumn(path, name, header, item.filename)


def _check_packing(path: Path, what: str, item: zipfile.ZipInfo) -> None:
    """Refuse a member before a byte of it is unpacked, by what the archive says of it.

    Other packings than that of NumPy unpack all they hold at once, however little is asked for.
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
    if not plain and unpacks_too_much(item.file_size, packed):
        raise InputError(
            f"{what} unpacks to {item.file_size / 2**30:.1f} GiB from {packed / 2**20:.1f} MiB, "
            f"over {LARGEST_RATIO} times as much, as a zip bomb does. If it is genuine, save it "
            "with numpy.savez."
        )


def _read_header(stream: IO[bytes], size: int, what: str) -> _Header:
    """Shape and dtype of an array of `size` bytes with its header.

    Arrays of Python objects, which would need pickle, are refused.
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
    claimed, held = math.prod(shape) * int(dtype.itemsize), size - stream.tell()
    if claimed != held:
        raise InputError(
            f"{claim}, {claimed:,} bytes, but the file holds {held:,}. It is truncated or damaged; "
            "save it again."
        )
    return _Header(shape, fortran, dtype, stream.tell())


def _data_offset(path: Path, item: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin: after its own header, a name and extras."""
    with path.open("rb") as file:
        file.seek(item.header_offset)
        local = file.read(_LOCAL_HEADER)
    lengths = np.frombuffer(local, "<u2", 2, _LOCAL_HEADER - 4)
    return item.header_offset + _LOCAL_HEADER + int(lengths.sum())


@final
class _PlainColumn(Column):
    """Bytes of an array as they are in memory, somewhere in a file."""

    def __init__(self, path: Path, name: str, header: _Header, offset: int) -> None:
        super().__init__(path, name, header.shape, header.dtype)
        self._offset = offset
        self._fortran = header.fortran and len(header.shape) > 1

    def read(self, start: int, stop: int) -> Array:
        """Rows from `start` up to `stop`.

        Read, not mapped: pages of a mapped file would count as memory of this process.
        """
        if self._fortran:
            return self._read_by_column(start, stop)
        count = (stop - start) * (self.row_bytes // self.dtype.itemsize)
        with self.path.open("rb") as file:
            values = np.fromfile(
                file, self.dtype, count, offset=self._offset + start * self.row_bytes
            )
        if values.size != count:
            raise self.error("ends too early; the file was changed while it was read.")
        return values.reshape(stop - start, *self.shape[1:])

    def _read_by_column(self, start: int, stop: int) -> Array:
        try:
            whole: Array = np.memmap(
                self.path, self.dtype, "r", self._offset, self.shape, order="F"
            )
        except (ValueError, OSError) as error:
            raise self.error(
                f"cannot be read ({error}); the file may have been changed while it was read."
            ) from error
        return np.array(whole[start:stop], order="C")


@final
class _ZippedColumn(SequentialColumn):
    """A compressed member of a zip file."""

    def __init__(self, path: Path, name: str, header: _Header, member: str) -> None:
        super().__init__(path, name, header.shape, header.dtype)
        self._member, self._header = member, header

    def _chunks_from(self, start: int) -> Iterator[Array]:
        with readable(self.described, ".npz", *_BROKEN), zipfile.ZipFile(self.path) as archive:
            with archive.open(self._member) as stream:
                self._skip(stream, self._header.length + start * self.row_bytes)
                yield from self._arrays(stream, start)

    def _skip(self, stream: IO[bytes], n_bytes: int) -> None:
        while n_bytes > 0:
            skipped = len(stream.read(min(n_bytes, CHUNK_BYTES)))
            if skipped == 0:
                raise EOFError
            n_bytes -= skipped

    def _arrays(self, stream: IO[bytes], start: int) -> Iterator[Array]:
        n = self.shape[0] if self.shape else 1
        while start < n:
            rows = min(self._chunk_rows, n - start)
            data = stream.read(rows * self.row_bytes)
            if len(data) < rows * self.row_bytes:
                raise EOFError
            yield np.frombuffer(data, self.dtype).reshape(rows, *self.shape[1:])
            start += rows
