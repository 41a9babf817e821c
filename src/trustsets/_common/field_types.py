"""Whether a value is of an annotated type.

`storage` compares the values in a file with the annotations of their class, so that no class has
to check the types of its own fields.
"""

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np


def mismatch(values: Mapping[str, Any], annotated: Any) -> str | None:
    """Name of the first value that is not what `annotated` (a class or function) says."""
    hints = get_type_hints(annotated)
    return next(
        (name for name, own in values.items() if name in hints and not fits(own, hints[name])), None
    )


def fits(value: Any, annotation: Any) -> bool:  # noqa: PLR0911
    """Whether a value is of a type; types that cannot be checked are accepted.

    A list is accepted for a tuple, as it is by the constructors of these classes.

    Examples
    --------
    >>> fits(3, int), fits(3, float), fits(True, int), fits("3", int | None)
    (True, True, False, False)
    >>> fits((1, 2), tuple[int, ...]), fits((1, "a"), tuple[int, ...])
    (True, False)
    """
    if isinstance(value, np.generic):
        value = value.item()
    origin, own = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in own)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in own)
    if origin is tuple:
        return isinstance(value, tuple | list) and _tuple_fits(value, own)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) and _dtype_fits(value.dtype, own)
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


def _tuple_fits(value: tuple[Any, ...] | list[Any], own: tuple[Any, ...]) -> bool:
    if len(own) == 2 and own[1] is Ellipsis:
        return all(fits(item, own[0]) for item in value)
    return len(value) == len(own) and all(map(fits, value, own))


def _dtype_fits(dtype: np.dtype[Any], own: tuple[Any, ...]) -> bool:
    (wanted,) = get_args(own[1]) or (Any,)
    return wanted is Any or not isinstance(wanted, type) or np.issubdtype(dtype, wanted)
