"""Arrays of `.safetensors` files, and of the folders of shards that extraction writes.

A folder of shards holds ``manifest.json`` and ``shard-00000.safetensors`` and so on.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets._common import storage
from trustsets._common.arrays import Array
from trustsets.errors import InputError
from trustsets.files.columns import (
    Column,
    MemoryColumn,
    class_column,
    read_lines,
    readable,
    text_array,
)
from trustsets.files.paths import plain_file

MANIFEST = "manifest.json"
"""What a folder of shards says about itself."""
_CLASSES = "classes"
CLASS_FILE = "classes.txt"
"""Class names of a folder of shards, one a line."""
_DTYPES = {
    "F16": "f2", "F32": "f4", "F64": "f8", "BOOL": "?",
    "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8",
    "U8": "u1", "U16": "u2", "U32": "u4", "U64": "u8",
}  # fmt: skip


def tensor_columns(path: Path) -> dict[str, Column]:
    """Tensors by name; class names may stand in the metadata, as a JSON list ``classes``."""
    with opened(path) as file:
        found: dict[str, Column] = {
            name: _TensorColumn(path, name, file, name) for name in file.keys()
        }
        metadata = file.metadata() or {}
    if _CLASSES in metadata and _CLASSES not in found:
        found[_CLASSES] = class_column(path, metadata[_CLASSES])
    return found


def is_shard_folder(path: Path) -> bool:
    """Whether a folder was written by ``trustsets extract``."""
    return (path / MANIFEST).is_file()


def shard_columns(path: Path) -> dict[str, Column]:
    """Arrays of a folder of shards, each joined from its pieces."""
    manifest = read_manifest(path)
    if not manifest.get("finished") or manifest["shards"] < 1:
        raise InputError(
            f"{path}: the extraction into this folder is not finished; run the same extraction "
            "again, and it continues where it stopped."
        )
    # The count is a claim: the first shard that is missing ends it.
    numbers = range(manifest["shards"])
    pieces = [_shard_fields(shard_path(path, number)) for number in numbers]
    if any(piece.keys() != pieces[0].keys() for piece in pieces):
        raise InputError(f"{path}: its shards hold different arrays; extract again.")
    found: dict[str, Column] = {
        name: _JoinedColumn(path, name, [piece[name] for piece in pieces])
        for name in pieces[0]
        if name not in ("sizes", "input_digests")
    }
    names = path / CLASS_FILE
    if names.is_file():
        found[_CLASSES] = MemoryColumn(
            path, _CLASSES, text_array(names, _CLASSES, read_lines(names))
        )
    return found


def shard_path(folder: Path, number: int) -> Path:
    """Place of a shard."""
    return folder / f"shard-{number:05d}.safetensors"


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a folder says about its shards: setting, shards, rows, finished and their shapes."""
    try:
        text = plain_file(folder / MANIFEST).read_text(encoding="utf-8")
        manifest: dict[str, Any] = storage.parse_json(text)
        missing = {"setting", "finished", "rows", "n_features", "n_classes"} - manifest.keys()
        if missing or not isinstance(manifest["setting"], dict):
            raise ValueError("an entry is missing")
        if not isinstance(manifest["shards"], int) or manifest["shards"] < 0:
            raise ValueError("it counts no shards")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder / MANIFEST}: damaged ({error}); choose another folder, or empty this one and "
            "extract again."
        ) from error
    return manifest


def _shard_fields(path: Path) -> dict[str, Column]:
    """Fields of one stored object, by the tree in its header."""
    with opened(path) as file:
        try:
            header = storage.parse_json((file.metadata() or {})[storage.FORMAT])
            state = storage.parse_json(header["tree"])["state"]
            tensors = {name: node["tensor"] for name, node in state.items() if _is(node, "tensor")}
            texts = {name: node["strings"] for name, node in state.items() if _is(node, "strings")}
            if not all(isinstance(own, str) for each in texts.values() for own in each):
                raise ValueError("its texts are none")
            if not set(tensors.values()) <= set(file.keys()):
                raise ValueError("a tensor is missing")
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}: not a shard that trustsets wrote ({error}); extract again."
            ) from error
        found: dict[str, Column] = {
            name: _TensorColumn(path, name, file, key) for name, key in tensors.items()
        }
    return found | {
        name: MemoryColumn(path, name, text_array(path, name, own)) for name, own in texts.items()
    }


def _is(node: Any, kind: str) -> bool:
    return isinstance(node, dict) and kind in node


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file; an error names it."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"{path}: there is no such file. Extract the outputs again.")
    with readable(path, "safetensors", SafetensorError):
        with safe_open(path, framework="numpy") as file:
            yield file


@final
class _TensorColumn(Column):
    """One tensor; every read opens the file again, so that no mapped page stays in memory."""

    def __init__(self, path: Path, name: str, file: Any, key: str) -> None:
        view = file.get_slice(key)
        # An unknown type gets a dtype that no array may have; it is refused where it is used.
        dtype = np.dtype(_DTYPES.get(str(view.get_dtype()), "V2"))
        super().__init__(path, name, tuple(view.get_shape()), dtype)
        self._key = key

    def read(self, start: int, stop: int) -> Array:
        """Rows from `start` up to `stop`."""
        if self.dtype.kind == "V":
            raise self.error("has a type that NumPy lacks. Save it as float32.")
        with opened(self.path) as file:
            return np.array(file.get_slice(self._key)[start:stop])


@final
class _JoinedColumn(Column):
    """Pieces in several files, end to end."""

    def __init__(self, path: Path, name: str, pieces: Sequence[Column]) -> None:
        first = pieces[0]
        if any(not piece.shape or piece.shape[1:] != first.shape[1:] for piece in pieces):
            raise InputError(f"{path}: its shards have different shapes; extract again.")
        self._ends = np.cumsum([piece.shape[0] for piece in pieces]).tolist()
        self._pieces = pieces
        if len({piece.dtype.kind for piece in pieces}) > 1:
            raise InputError(f"{path}: its shards have different types; extract again.")
        dtype = max((piece.dtype for piece in pieces), key=lambda own: own.itemsize)
        super().__init__(path, name, (self._ends[-1], *first.shape[1:]), dtype)

    def read(self, start: int, stop: int) -> Array:
        """Rows from `start` up to `stop`."""
        found = []
        number = bisect_right(self._ends, start)
        while start < stop:
            before = self._ends[number] - self._pieces[number].shape[0]
            end = min(stop, self._ends[number])
            found.append(self._pieces[number].read(start - before, end - before))
            start, number = end, number + 1
        return np.concatenate(found)
