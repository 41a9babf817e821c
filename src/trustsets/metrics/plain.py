"""Results to plain JSON data and back, driven by their type hints; NaN is written as null."""

import dataclasses
import json
import math
import types
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError

LOCAL = {"json": False}
"""Metadata of fields that belong to single samples and are not kept in JSON."""

# The origin of a hint ``NDArray[...]``: the class, or the alias from NumPy 2.5 on.
_ARRAYS: tuple[Any, ...] = (np.ndarray, NDArray)


class PlainData:
    """A dataclass that can be written as JSON and read again."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data: lists, dicts, strings, numbers; None for what is undefined."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def to_json(self) -> str:
        """JSON text that `from_json` reads."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuild from `to_json`, without what belongs to single samples."""
        try:
            data = json.loads(text)
        except (TypeError, ValueError) as error:
            raise InputError(f"text must be JSON written by to_json: {error}.") from None
        built: Self = from_plain(cls, data)
        return built


def to_plain(value: Any) -> Any:
    """Lists, dicts, strings and numbers that `json` writes; local fields are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = (item for item in dataclasses.fields(value) if item.metadata.get("json", True))
        return {item.name: to_plain(getattr(value, item.name)) for item in kept}
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | tuple | list):
        items = value.tolist() if isinstance(value, np.ndarray) else value
        return [to_plain(item) for item in items]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_plain(hint: Any, data: Any) -> Any:
    """Build a value of the hinted type from what `to_plain` made of it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        (hint,) = (item for item in inner if item is not type(None))
        return None if data is None else from_plain(hint, data)
    if dataclasses.is_dataclass(hint):
        return _build(hint, data)
    if origin is dict:
        return {name: from_plain(inner[1], item) for name, item in data.items()}
    if origin is tuple:
        return tuple(from_plain(inner[0], item) for item in data)
    if origin in _ARRAYS:
        # The element type is an argument of the alias, or of the dtype of the class.
        kind = inner[0] if origin is not np.ndarray else get_args(inner[1])[0]
        return np.array(data, dtype=kind)
    return float("nan") if hint is float and data is None else hint(data)


def _build(cls: Any, data: Any) -> Any:
    hints = get_type_hints(cls)
    names = [item.name for item in dataclasses.fields(cls) if item.metadata.get("json", True)]
    if not isinstance(data, dict) or set(data) != set(names):
        raise InputError(f"the JSON data do not describe a {cls.__name__}; expected keys {names}.")
    return cls(**{name: from_plain(hints[name], data[name]) for name in names})
