"""Rules for the values of parameters, in their annotations.

A rule stands in the type of a parameter, as in ``alpha: Open``. It is checked when an object is
made or fitted, and when it is read from a file.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from trustsets._arrays import to_numpy
from trustsets.errors import InputError

Alphas = tuple[float, ...]

# No count of anything reaches this, and compiled code could not hold it.
_TOO_MANY = 1 << 31


class Rule(NamedTuple):
    """What a value of an annotated type must be, in words and as a test."""

    words: str
    holds: Callable[[Any], Any]


def whole(least: int, most: float = np.inf) -> Rule:
    """Whole numbers in a range."""
    span = f", {least} or more" if most == np.inf else f" from {least} to {most:,}"
    return Rule(f"must be a whole number{span}", lambda n: least <= n <= most and n < _TOO_MANY)


Count = Annotated[int, whole(0)]
Positive = Annotated[int, whole(1)]
Open = Annotated[float, Rule("must lie strictly between 0 and 1", lambda x: 0.0 < float(x) < 1.0)]
Share = Annotated[float, Rule("must lie in [0, 1)", lambda x: 0.0 <= float(x) < 1.0)]
NotNegative = Annotated[
    float, Rule("must be finite and not negative", lambda x: 0.0 <= float(x) < np.inf)
]
Temperature = Annotated[
    float, Rule("must be positive and finite", lambda x: 0.0 < float(x) < np.inf)
]


def check_arguments(annotation: Any, **arguments: Any) -> None:
    """Raise an error that names the first argument that is not of an annotated type."""
    for name, value in arguments.items():
        if not fits(value, annotation):
            raise InputError(f"{name} {rule_words(annotation)}; got {value!r:.60}.")


def check_fields(value: Any) -> None:
    """Raise an error that names the first field of a dataclass that is not of its type."""
    kind: Any = type(value)
    annotations = annotations_of(kind)
    for item in fields(value):
        check_arguments(annotations.get(item.name, Any), **{item.name: getattr(value, item.name)})


@cache
def annotations_of(function: Any) -> dict[str, Any]:
    """Types of the fields of a class, or of the parameters of a function, by name."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:  # of a class of the user's, by a name that only type checkers import
        return {}


def rule_words(annotation: Any) -> str:
    """What a value of a type must be, for a message."""
    if get_origin(annotation) is Annotated:
        return str(annotation.__metadata__[0].words)
    if get_origin(annotation) is Literal:
        return f"must be {' or '.join(map(repr, get_args(annotation)))}".replace("'", '"')
    words: dict[Any, str] = {bool: "True or False", str: "a text", Callable: "callable"}
    named = words.get(get_origin(annotation) or annotation, f"of the type {annotation}")
    return f"must be {named}"


def fits(value: Any, annotation: Any) -> bool:  # noqa: PLR0911
    """Whether a value is of a type; types that cannot be checked are accepted.

    A list is accepted for a tuple, as it is by the constructors of these classes.
    """
    if isinstance(value, np.generic):
        value = value.item()
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        try:
            return fits(value, inner[0]) and bool(inner[1].holds(value))
        except (TypeError, ValueError, AttributeError, OverflowError):
            return False
    if origin in (Union, UnionType):
        return any(fits(value, item) for item in inner)
    if origin is Literal:
        return any(type(value) is type(item) and value == item for item in inner)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        inner = inner[:1] * len(value) if inner[1:] == (Ellipsis,) else inner
        return len(value) == len(inner) and all(map(fits, value, inner))
    if origin is np.ndarray:
        (dtype,) = get_args(inner[1]) or (Any,)
        is_free = dtype is Any or not isinstance(dtype, type)
        return isinstance(value, np.ndarray) and (is_free or np.issubdtype(value.dtype, dtype))
    if origin is Callable:
        return callable(value)
    if annotation in (int, float):
        kind = Integral if annotation is int else Real
        return isinstance(value, kind) and not isinstance(value, bool)
    is_class = isinstance(annotation, type) and origin is None and annotation is not Any
    return isinstance(value, annotation) if is_class else True


def check_alpha(alpha: Any) -> float:
    """Return alpha, the miscoverage asked for, as a float strictly between 0 and 1, or raise."""
    check_arguments(Open, alpha=alpha)
    # A float32 0.1 prints as 0.1: that decimal is meant, not the nearest float32.
    return float(str(alpha)) if isinstance(alpha, np.floating) else float(alpha)


def check_alphas(alpha: Any) -> tuple[tuple[float, ...], bool]:
    """Return the alphas as a tuple, and whether a single number was given."""
    if isinstance(alpha, Sequence | np.ndarray) and not isinstance(alpha, str):
        n_dimensions = to_numpy(alpha, "alpha").ndim
        if n_dimensions == 1 and len(alpha) > 0:
            return tuple(check_alpha(item) for item in alpha), False
        if n_dimensions != 0:
            raise InputError("alpha must be a number or a non-empty flat sequence of numbers.")
        alpha = alpha.item() if isinstance(alpha, np.ndarray) else alpha
    return (check_alpha(alpha),), True
