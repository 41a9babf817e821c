"""The `.trustsets` file: arrays and JSON in one safetensors file; atomic writes, digests, locks.

A file holds tensors and one JSON header: the version of the format, a tree that says which class
takes which values and arrays, and a SHA-256 of both. Loading builds only classes that were marked
with `storable`, and compares their fields with the annotations; nothing in a file is ever executed.
The checksum detects accidents, not intent: `check_state` of a class keeps compiled code inside its
arrays whatever a file says.
"""

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np

from trustsets._arrays import Array
from trustsets._parameters import annotations_of, fits, rule_words
from trustsets.errors import InputError, StorageError

__all__ = ["atomic_path", "digest", "locked", "read", "read_kept", "write"]

StrPath = str | os.PathLike[str]

_log = logging.getLogger(__name__)

FORMAT = "trustsets"
VERSION = 1

_Arrays = dict[str, Array]
_Storable = TypeVar("_Storable", bound=type)
_REGISTRY: dict[str, type] = {}


@contextmanager
def atomic_path(path: StrPath) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` when the block succeeds.

    Links are followed, and an earlier file keeps its permissions.
    """
    final = check_target(path)
    temporary = final.with_name(f".{final.name}.{uuid4().hex}.part")
    try:
        yield temporary
        if final.exists():
            shutil.copymode(final, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def check_path(path: Any, name: str = "path") -> Path:
    """Return the path of a file or folder, or raise where it is none."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{name} must be a text or a pathlib.Path; got {type(path).__name__}.")
    return Path(path)


def check_target(path: Any) -> Path:
    """The path of a file that can be written, without links: in a folder that exists."""
    target = Path(os.path.realpath(check_path(path)))
    if not target.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; make it first.")
    if target.exists() and not target.is_file():
        raise InputError(f"{path}: this is a folder, a pipe or a device; give the name of a file.")
    return target


@contextmanager
def locked(folder: Path, what: object) -> Iterator[None]:
    """Keep other processes from a folder, which is made if need be; `what` names the work."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows: two runs at once are not noticed there
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        # The system unlocks it after a kill.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InputError(
            f"{what}: another process is writing there; wait until it is done."
        ) from None
    finally:
        os.close(handle)


def storable(cls: _Storable) -> _Storable:
    """Mark a class as one that files may hold.

    It is a plain dataclass, or has ``to_state() -> dict`` and the classmethod
    ``from_state(dict)``. After loading, its method ``check_state()``, if there is one, raises a
    `StorageError` that names the field whose shape or range is wrong; see `require`.
    """
    _REGISTRY[cls.__name__] = cls
    return cls


def write(path: StrPath, value: Any, note: Any = None) -> None:
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


def _function_name(function: Callable[..., Any]) -> str:
    """``module:name`` of a function, by which a saved object refers to it."""
    spec = f"{function.__module__}:{getattr(function, '__qualname__', '')}"
    if function.__module__ == "__main__" or _imported(spec) is not function:
        raise StorageError(
            f"{spec} cannot be saved: a saved function is found again by its name, so it must be "
            "defined with def at the top of a module other than the script that is run."
        )
    return spec


def _imported(spec: str) -> Callable[..., Any] | None:
    """A function that a module, imported already and not of Python itself, defines with def."""
    module, _, name = spec.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names:
        return None
    function = vars(sys.modules[module]).get(name) if module in sys.modules else None
    is_plain = isinstance(function, FunctionType) and function.__module__ == module
    return function if is_plain else None


def read(path: StrPath) -> Any:
    """Read what `write` wrote."""
    with _opened(check_path(path)) as (file, header):
        arrays = {key: file.get_tensor(key) for key in file.keys()}
        if header["sha256"] != _digest(header["tree"], arrays):
            raise StorageError("the content was altered after it was saved. Save it again.")
        return _decode(json.loads(header["tree"]), arrays)


def read_kept(path: Path) -> Any:
    """What `write` put there; None where there is nothing, or it is damaged."""
    try:
        return read(path)
    except StorageError:
        return None


def read_note(path: StrPath) -> Any:
    """Return the note that `write` was given, or None; the rest of the file is not read."""
    with _opened(Path(path)) as (_, header):
        return header.get("note")


@contextmanager
def _opened(path: Path) -> Any:
    """Open a file; gives it and its header. What goes wrong meanwhile is a `StorageError`."""
    from safetensors import safe_open

    try:
        if not path.is_file():
            what = "this is no file" if path.exists() else "there is no such file"
            raise StorageError(f"{what}. Give the name of a saved model.")
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if FORMAT not in metadata:
                raise StorageError("a safetensors file, but not one that trustsets wrote.")
            header = json.loads(metadata[FORMAT])
            if header["version"] > VERSION:
                raise StorageError(
                    f"written in format {header['version']}, and this trustsets reads up to "
                    f"{VERSION}. Upgrade trustsets."
                )
            yield file, header
    except (StorageError, InputError) as error:
        raise StorageError(f"{path}: {error}") from error
    except Exception as error:
        raise StorageError(
            f"{path}: not a .trustsets file, or a damaged one ({error}). Give a saved model, or "
            "save it again."
        ) from error


def digest(*values: Any) -> str:
    """SHA-256 of storable values, in this order; the order of keys does not count."""
    arrays: _Arrays = {}
    return _digest(json.dumps(_encode(values, arrays), sort_keys=True), arrays)


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
    kind = value.dtype.kind
    if kind in "biuf" and value.dtype.char != "g":  # files have no long doubles
        key = str(len(arrays))
        # Unlike ascontiguousarray, this leaves an array of no dimension one.
        arrays[key] = np.asarray(value, dtype=value.dtype.newbyteorder("="), order="C")
        return {"tensor": key}
    items = (value.astype(str) if kind in "US" else value).tolist()
    items = [item.item() if isinstance(item, np.generic) else item for item in items]
    finite = [isinstance(item, float) and abs(item) < np.inf for item in items]
    plain = [isinstance(item, bool | int | str | None) for item in items]
    if kind not in "USO" or not np.all(np.logical_or(plain, finite)):
        raise StorageError(f"names of type {value.dtype} cannot be saved as they are; use texts.")
    return {"names": items, "kind": kind}


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
        case {"names": list(items), "kind": "U" | "S" | "O" as kind}:
            names = np.empty(len(items), dtype=object)
            names[:] = items
            return names.astype(kind)
        case {"function": str(spec)}:
            if (function := _imported(spec)) is not None:
                return function
            raise StorageError(
                f"it uses the function {spec}, which is not there. Import {spec.split(':')[0]} "
                "before you load the file; loading never imports or runs anything itself."
            )
        case {"float": str(text)}:
            return float(text)
    raise StorageError(f"unknown entry {sorted(node)}.")


def _build(name: str, state: dict[str, Any]) -> Any:
    cls: Any = _REGISTRY.get(name)
    if cls is None:
        raise StorageError(f"it holds an unknown kind of object, {name!r}.")
    _check_types(name, cls, state)
    if hasattr(cls, "from_state"):
        value = cls.from_state(state)
    elif cls.__dataclass_params__.init:
        value = cls(**state)
    else:
        # Its constructor takes other arguments than its fields, which were checked above.
        require(state.keys() == cls.__dataclass_fields__.keys(), name, "has other fields")
        value = cls.__new__(cls)
        vars(value).update(state)
    if hasattr(value, "check_state"):
        value.check_state()
    return value


def _check_types(name: str, cls: Any, state: dict[str, Any]) -> None:
    """Fields, or the parameters and attributes of an estimator, are of the annotated types."""
    values, annotations = state, annotations_of(cls)
    if isinstance(state.get("parameters"), dict):
        values = state["parameters"] | state.get("learned", {})
        annotations = annotations_of(cls.__init__) | annotations
    for field, value in values.items():
        require(field in annotations, f"{name}.{field}", "is unknown")
        annotation = annotations[field]
        require(fits(value, annotation), f"{name}.{field}", rule_words(annotation))
