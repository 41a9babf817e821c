"""One array of a file, read by ranges of rows.

A column knows its shape before a number is read, so that what a file claims can be checked
before memory is allocated.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

import numpy as np

from trustsets._common.arrays import Array
from trustsets._common.storage import parse_json
from trustsets.errors import InputError
from trustsets.files.paths import plain_file

CHUNK_BYTES = 1 << 20
"""Streams are read in pieces of about this size."""
LARGEST_RATIO = 500
"""Compression that real outputs never reach; constant arrays may, and zip bombs do."""
# An array smaller than this is no danger, however it is packed.
_SMALL = 64 << 20
# An array of texts pads them all to the longest; it may take this many times their own length.
_LARGEST_PADDING = 64


@contextmanager
def readable(what: object, kind: str, *errors: type[Exception]) -> Iterator[None]:
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


def unpacks_too_much(unpacked: int, packed: int) -> bool:
    """Whether so few bytes of a file claim to hold far more than model outputs would."""
    return unpacked > max(_SMALL, LARGEST_RATIO * packed)


def text_array(path: Path, name: str, texts: Sequence[str]) -> Array:
    """Texts as an array, unless one long text among many short ones makes it too large."""
    longest, total = max(map(len, texts), default=0), sum(map(len, texts))
    if 4 * longest * len(texts) > max(_SMALL, 4 * _LARGEST_PADDING * total):
        raise InputError(
            f"{path}: array {name!r} has a text of {longest:,} characters among {len(texts):,} "
            "shorter ones. Shorten it."
        )
    return np.array(texts) if len(texts) else np.array([], dtype="U1")


class Column(ABC):
    """An array of a file: `path`, its `name` there, `shape` and `dtype`.

    `fault` says what is wrong with an array. Such an array is refused only where it is used.
    """

    fault: str | None = None
    missing_allowed = False
    """Whether missing values are read, as a group of their own; `OutputsFile` sets it."""
    of_table = False
    """Whether classes are named by columns of the same table, so that integers may be names."""
    first_missing: int | None = None
    """First row with a missing value, where that is known before reading."""

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.path, self.name, self.shape, self.dtype = path, name, shape, dtype

    @abstractmethod
    def read(self, start: int, stop: int) -> Array:
        """Rows from `start` up to `stop`."""

    @final
    def read_texts(self, start: int, stop: int) -> Array:
        """Rows that may be texts; bytes become texts, and damaged ones are refused."""
        values = self.read(start, stop)
        try:
            if values.dtype.kind == "S":
                return np.asarray(np.char.decode(values, "utf-8"))
            if values.dtype.kind == "U":
                # NumPy itself does not look at its code points.
                values.astype(values.dtype.newbyteorder("<")).tobytes().decode("utf-32-le")
        except UnicodeError as error:
            raise self.error(f"holds bytes that are no text ({error}). Save it again.") from error
        return values

    @final
    def read_names(self, start: int, stop: int) -> Array:
        """Rows as labels or groups; texts get a text type, if that does not take too much room."""
        values = self.read_texts(start, stop)
        if values.dtype.kind != "O":
            return values
        return text_array(self.path, self.name, values.tolist())

    @property
    @final
    def row_bytes(self) -> int:
        """Memory of one row."""
        return math.prod(self.shape[1:]) * self._item_bytes

    @property
    @final
    def described(self) -> str:
        """The file and the array, for messages."""
        return f"{self.path}: array {self.name!r}"

    @property
    def _item_bytes(self) -> int:
        return int(self.dtype.itemsize)

    @final
    def require_usable(self) -> None:
        """Raise the error of an array that cannot be used."""
        if self.fault is not None:
            raise self.error(self.fault)

    @final
    def error(self, what: str) -> InputError:
        """An error about this array; `what` begins with a verb."""
        return InputError(f"{self.described} {what}")


@final
class MemoryColumn(Column):
    """A small array that is in memory already, such as class names."""

    def __init__(self, path: Path, name: str, values: Array) -> None:
        super().__init__(path, name, values.shape, values.dtype)
        self._values = values

    def read(self, start: int, stop: int) -> Array:
        """Rows from `start` up to `stop`."""
        return self._values[start:stop]


def class_column(path: Path, text: str) -> MemoryColumn:
    """Class names that stand as a JSON list in the metadata of a file."""
    try:
        names = parse_json(text)
        if not isinstance(names, list) or not all(isinstance(own, str | int) for own in names):
            raise ValueError("it must hold names")
        whole = {isinstance(own, int) for own in names} == {True}
        values = np.array(names) if whole else text_array(path, "classes", list(map(str, names)))
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{path}: the metadata 'classes' is no JSON list ({error}); write it with json.dumps."
        ) from error
    return MemoryColumn(path, "classes", values)


def read_lines(path: Path) -> list[str]:
    """Lines of a text file."""
    try:
        return plain_file(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file in UTF-8 ({error}).") from error


class SequentialColumn(Column):
    """An array that can only be read from front to back, such as a compressed one.

    It is cheap to continue where the last read ended; any other start opens the stream again.
    """

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(path, name, shape, dtype)
        self._chunks: Iterator[Array] | None = None
        self._next = 0
        self._rest: Array | None = None

    @abstractmethod
    def _chunks_from(self, start: int) -> Iterator[Array]:
        """Pieces end to end; the first begins at row `start`."""

    @property
    @final
    def _chunk_rows(self) -> int:
        return max(1, CHUNK_BYTES // max(1, self.row_bytes))

    @final
    def read(self, start: int, stop: int) -> Array:
        """Rows from `start` up to `stop`."""
        if self._chunks is None or start != self._next:
            self._chunks, self._next, self._rest = self._chunks_from(start), start, None
        pieces: list[Array] = []
        while self._next < stop:
            piece = next(self._chunks, None) if self._rest is None else self._rest
            if piece is None:
                raise self.error(
                    f"ends after {self._next} rows, and {self.shape[0]} were announced. "
                    "The file is damaged; save it again."
                )
            taken = piece[: stop - self._next]
            self._rest = piece[len(taken) :] if len(taken) < len(piece) else None
            self._next += len(taken)
            pieces.append(taken)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
