"""The `.trustsets` file: arrays and JSON in one safetensors file, no code; and atomic writes.

A file holds tensors and one JSON header: the version of the format, a tree that says which class
takes which values and arrays, and a SHA-256 of both. Loading builds only classes that were marked
with `storable`, and compares their fields with the annotations; nothing in a file is ever executed.
The checksum detects accidents, not intent: `check_state` of a class keeps compiled code inside its
arrays whatever a file says.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import stat
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from trustsets._arrays import Array
from trustsets.errors import InputError, StorageError

StrPath = str | os.PathLike[str]

_log = logging.getLogger(__name__)

FORMAT = "trustsets"
VERSION = 1
# NumPy pads texts to a common width. A file may claim at most this multiple of their length.
_LARGEST_PADDING = 64
_SMALL = 1 << 20

_Arrays = dict[str, Array]
_Storable = TypeVar("_Storable", bound=type)
_REGISTRY: dict[str, type] = {}


@contextlib.contextmanager
def atomic_path(path: StrPath) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` when the block succeeds.

    Links are followed, and an earlier file keeps its permissions.
    """
    final = Path(os.path.realpath(check_path(path)))
    if not final.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; make it first.")
    if final.exists() and not final.is_file():
        raise InputError(f"{path}: this is a folder, a pipe or a device; give the name of a file.")
    handle, name = tempfile.mkstemp(dir=final.parent, prefix=f".{final.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(_mode(final))
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def _mode(path: Path) -> int:
    """Permissions of the file that is there, or those of a new one."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        current = os.umask(0)
        os.umask(current)
        return 0o666 & ~current


def storable(cls: _Storable) -> _Storable:
    """Mark a class as one that files may hold.

    It is a plain dataclass, or has ``to_state() -> dict`` and the classmethod
    ``from_state(dict)``. After loading, its method ``check_state()``, if there is one, raises a
    `StorageError` that names the field whose shape or range is wrong; see `require`.
    """
    _REGISTRY[cls.__name__] = cls
    return cls


def write(path: StrPath, value: Any, note: dict[str, Any] | None = None) -> None:
    """Write a storable object to `path`, completely or not at all.

    `note` is plain JSON data about the file, such as how it was made; see `read_note`.
    """
    from safetensors.numpy import save

    arrays: _Arrays = {}
    tree = json.dumps(_encode(value, arrays), allow_nan=False)
    header: dict[str, Any] = {"version": VERSION, "sha256": _digest(tree, arrays), "tree": tree}
    if note is not None:
        header["note"] = note
    with atomic_path(path) as temporary:
        temporary.write_bytes(save(arrays, {FORMAT: json.dumps(header)}))
    _log.info("%s: saved a %s", path, type(value).__name__)


def require(holds: object, field: str, rule: str) -> None:
    """Raise a `StorageError` that names a field unless its rule holds."""
    if not holds:
        raise StorageError(f"{field} {rule}.")


def require_numbers(values: Any, field: str, *shape: int | None) -> None:
    """Finite numbers of a shape; None stands for any size but zero."""
    wanted = ", ".join("any" if size is None else str(size) for size in shape)
    has_shape = len(shape) == values.ndim and all(
        n == size or (size is None and n > 0) for n, size in zip(values.shape, shape, strict=True)
    )
    require(has_shape, field, f"must have shape ({wanted}), and has {values.shape}")
    require(values.dtype.kind in "fiu", field, f"must hold numbers, and holds {values.dtype}")
    require(np.isfinite(values).all(), field, "must be finite")


def require_increasing(values: Any, field: str, strictly: bool = False) -> None:
    """Numbers along the last axis in increasing order."""
    steps = np.diff(values, axis=-1)
    require((steps > 0).all() if strictly else (steps >= 0).all(), field, "must be increasing")


def _function_name(function: Callable[..., Any]) -> str:
    """``module:name`` of a function, by which a saved object refers to it."""
    spec = f"{function.__module__}:{getattr(function, '__qualname__', '')}"
    if function.__module__ == "__main__" or _imported(spec) is not function:
        raise StorageError(
            f"{spec} cannot be saved: a saved function is found again by its name, so it must be "
            "defined with def at the top of a module other than the script that is run."
        )
    return spec


def _named_function(spec: str) -> Callable[..., Any]:
    function = _imported(spec)
    if function is None:
        raise StorageError(
            f"it uses the function {spec}, which is not there. Import {spec.partition(':')[0]} "
            "before you load the file; loading never imports or runs anything itself."
        )
    return function


def _imported(spec: str) -> Callable[..., Any] | None:
    """A function that a module, imported already and not of Python itself, defines with def."""
    module, _, name = spec.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names:
        return None
    function = vars(sys.modules[module]).get(name) if module in sys.modules else None
    is_plain = isinstance(function, FunctionType) and function.__module__ == module
    return function if is_plain else None


def parse_json(text: str | bytes) -> Any:
    """JSON as the standard has it; a `ValueError` for anything else, however deep it goes."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read(path: StrPath) -> Any:
    """Read what `write` wrote."""
    header, arrays = _read_parts(check_path(path))
    try:
        return _decode(parse_json(header["tree"]), arrays)
    except (StorageError, InputError) as error:
        raise StorageError(f"{path}: {error}") from error
    except Exception as error:
        raise StorageError(f"{path}: its content does not fit together ({error}).") from error


def read_note(path: StrPath) -> Any:
    """Return the note that `write` was given, or None; the rest of the file is not read."""
    with _opened(Path(path)) as file:
        return _check_header(Path(path), file.metadata() or {}).get("note")


def _read_parts(path: Path) -> tuple[dict[str, Any], _Arrays]:
    with _opened(path) as file:
        header = _check_header(path, file.metadata() or {})
        try:
            arrays = {key: file.get_tensor(key) for key in file.keys()}
        except (TypeError, AttributeError, ValueError) as error:
            raise StorageError(f"{path}: it holds numbers of an unknown type ({error}).") from error
    if header["sha256"] != _digest(header["tree"], arrays):
        raise StorageError(f"{path}: the content was altered after it was saved. Save it again.")
    return header, arrays


@contextlib.contextmanager
def _opened(path: Path) -> Any:
    """Open a safetensors file; what goes wrong in it is a `StorageError`."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        what = "this is no file" if path.exists() else "there is no such file"
        raise StorageError(f"{path}: {what}. Give the name of a saved model.")
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise StorageError(
            f"{path}: not a .trustsets file, or a damaged one ({error}). Give a saved model, or "
            "save it again."
        ) from error


def _check_header(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    if FORMAT not in metadata:
        raise StorageError(f"{path}: a safetensors file, but not one that trustsets wrote.")
    try:
        header: dict[str, Any] = parse_json(metadata[FORMAT])
        version = int(header["version"])
        if not (isinstance(header["sha256"], str) and isinstance(header["tree"], str)):
            raise TypeError("digest and tree are texts")
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise StorageError(f"{path}: its header is damaged. Save it again.") from error
    if version > VERSION:
        raise StorageError(
            f"{path}: written in format {version}, and this trustsets reads up to {VERSION}. "
            "Upgrade trustsets."
        )
    return header


def digest(value: Any) -> str:
    """Digest of a storable object: equal for objects that would be stored alike."""
    arrays: _Arrays = {}
    return _digest(json.dumps(_encode(value, arrays), allow_nan=False), arrays)


def _digest(tree: str, arrays: _Arrays) -> str:
    digest = hashlib.sha256(tree.encode())
    for key in sorted(arrays):
        array = np.asarray(arrays[key], order="C")
        digest.update(f"{key} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()


def _encode(value: Any, arrays: _Arrays) -> Any:  # noqa: PLR0911
    """Turn a value into JSON, its numeric arrays into named tensors."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray):
        return _encode_array(value, arrays)
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_encode(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"dict": {str(key): _encode(item, arrays) for key, item in value.items()}}
    if callable(value) and _REGISTRY.get(type(value).__name__) is not type(value):
        return {"function": _function_name(value)}
    return _encode_object(value, arrays)


def _encode_array(value: Array, arrays: _Arrays) -> Any:
    if value.dtype.kind in "US":
        return {"strings": value.astype(str).tolist(), "width": value.dtype.str}
    if value.dtype.kind == "O":
        for item in value.tolist():
            if item is not None and not isinstance(item, bool | int | float | str):
                kind = type(item).__name__
                raise StorageError(f"a class or group name of type {kind} cannot be saved.")
        return {"objects": value.tolist()}
    if value.dtype.kind not in "biuf":
        raise StorageError(f"an array of dtype {value.dtype} cannot be saved.")
    key = str(len(arrays))
    # Unlike ascontiguousarray, this leaves an array of no dimension one.
    arrays[key] = np.asarray(value, order="C")
    return {"tensor": key}


def _encode_object(value: Any, arrays: _Arrays) -> Any:
    cls: Any = type(value)
    name = cls.__name__
    if _REGISTRY.get(name) is not cls:
        raise StorageError(f"an object of type {name} cannot be saved.")
    if dataclasses.is_dataclass(value) and not hasattr(value, "to_state"):
        state = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    else:
        state = value.to_state()
    # What could not be loaded is refused now, while it can still be repaired.
    _check_types(name, cls, state)
    return {"object": name, "state": {key: _encode(item, arrays) for key, item in state.items()}}


def _decode(node: Any, arrays: _Arrays) -> Any:  # noqa: PLR0911
    """Inverse of `_encode`, building registered classes only."""
    if not isinstance(node, dict):
        return node
    match node:
        case {"object": str(name), "state": dict(state)}:
            return _build(name, {key: _decode(item, arrays) for key, item in state.items()})
        case {"tensor": str(key)}:
            return arrays[key]
        case {"list": list(items)}:
            return [_decode(item, arrays) for item in items]
        case {"tuple": list(items)}:
            return tuple(_decode(item, arrays) for item in items)
        case {"dict": dict(items)}:
            return {key: _decode(item, arrays) for key, item in items.items()}
        case {"strings": list(items), "width": str(width)}:
            return _text_array(items, width)
        case {"objects": list(items)}:
            objects = np.empty(len(items), dtype=object)
            objects[:] = items
            return objects
        case {"function": str(name)}:
            return _named_function(name)
        case {"float": "inf" | "-inf" | "nan" as text}:
            return float(text)
    raise StorageError(f"unknown entry {sorted(node)}.")


def _text_array(items: list[Any], width: str) -> Array:
    """Texts in the dtype that the file names, checked first: a huge width would fill the memory."""
    require(all(isinstance(item, str) for item in items), "an array of texts", "must hold texts")
    dtype = np.dtype(width)
    length = sum(map(len, items)) + len(items)
    room = max(_SMALL, _LARGEST_PADDING * dtype.alignment * length)
    allowed = dtype.kind in "US" and 0 < dtype.itemsize * max(1, len(items)) <= room
    require(allowed or not items, "an array of texts", f"cannot have the type {width!r}")
    return np.array(items, dtype=dtype if items else "U1")


def _build(name: str, state: dict[str, Any]) -> Any:
    cls: Any = _REGISTRY.get(name)
    if cls is None:
        raise StorageError(f"it holds an unknown kind of object, {name!r}.")
    _check_types(name, cls, state)
    value = cls.from_state(state) if hasattr(cls, "from_state") else cls(**state)
    if hasattr(value, "check_state"):
        value.check_state()
    return value


def _check_types(name: str, cls: Any, state: dict[str, Any]) -> None:
    """Fields of a dataclass, or parameters of an estimator, are of the annotated types."""
    parameters = state.get("parameters")
    if isinstance(parameters, dict):
        values, hints = parameters, get_type_hints(cls.__init__)
    elif dataclasses.is_dataclass(cls):
        values, hints = state, get_type_hints(cls)
    else:
        return
    for field, value in values.items():
        is_right = field not in hints or fits(value, hints[field])
        require(is_right, f"{name}.{field}", "is of a wrong type")


def fits(value: Any, annotation: Any) -> bool:  # noqa: PLR0911
    """Whether a value is of a type; types that cannot be checked are accepted.

    A list is accepted for a tuple, as it is by the constructors of these classes.
    """
    if isinstance(value, np.generic):
        value = value.item()
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, item) for item in inner)
    if origin is Literal:
        return any(type(value) is type(item) and value == item for item in inner)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        inner = inner[:1] * len(value) if inner[1:] == (Ellipsis,) else inner
        return len(value) == len(inner) and all(map(fits, value, inner))
    if origin is np.ndarray:
        (wanted,) = get_args(inner[1]) or (Any,)
        free = wanted is Any or not isinstance(wanted, type)
        return isinstance(value, np.ndarray) and (free or np.issubdtype(value.dtype, wanted))
    if annotation is Any:
        return True
    if annotation is None:
        return value is None
    if annotation in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole or (annotation is float and isinstance(value, float))
    if getattr(annotation, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(annotation) if not name.startswith("_"))
    if isinstance(annotation, type) and origin is None:
        return isinstance(value, annotation)
    return True


def check_path(path: Any, name: str = "path") -> Path:
    """Return the path of a file or folder, or raise where it is none."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{name} must be a text or a pathlib.Path; got {type(path).__name__}.")
    return Path(path)
