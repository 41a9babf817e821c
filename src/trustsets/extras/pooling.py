"""From the features of tokens or positions to one vector a sample. No optional dependency.

Arrays may be of NumPy or of torch: only operations that both spell alike are used.
"""

from collections.abc import Callable
from typing import Any

from trustsets.errors import InputError

TOKEN_POLICIES = ("cls", "mean", "last token")
"""Policies for values of shape (n, tokens, d)."""
POLICIES = (*TOKEN_POLICIES, "pool", "flatten", "pre_logits")

Features = str | Callable[[Any], Any] | None
"""How features become one vector a sample: the name of a policy, a function, or None."""

_REMEDY = (
    'Say how to make one vector of them: features="cls" (the first token), "mean" or "last token" '
    '(by the attention mask), "pool" (mean over the positions of a feature map of shape '
    '(n, channels, height, width)), "flatten", or a function.'
)


def check_policy(features: Features) -> None:
    """Refuse anything but the name of a policy, a function, or None."""
    if features is None or callable(features) or features in POLICIES:
        return
    raise InputError(
        f"features must be one of {', '.join(map(repr, POLICIES))}, or a function; got "
        f"{features!r}. The name of a module or of an output goes into layer=."
    )


def one_vector(values: Any, features: Features, n: int, mask: Any = None) -> Any:
    """Features of shape (n, d) by a policy.

    Parameters
    ----------
    values : array of shape (n, ...)
        (n, tokens, d) for "cls", "mean" and "last token"; (n, channels, height, width) for "pool".
    features : str, function or None
        Without a policy, values of two dimensions are kept and feature maps are flattened; values
        of three dimensions may be tokens and are refused.
    mask : array of shape (n, tokens), optional
        Zero where a token is padding; by default all tokens count.

    Examples
    --------
    >>> import numpy as np
    >>> tokens = np.array([[[1.0], [3.0], [99.0]], [[2.0], [4.0], [6.0]]])
    >>> mask = np.array([[1, 1, 0], [1, 1, 1]])
    >>> one_vector(tokens, "mean", 2, mask).tolist(), one_vector(tokens, "cls", 2, mask).tolist()
    ([[2.0], [4.0]], [[1.0], [2.0]])
    >>> one_vector(tokens, "last token", 2, mask).tolist()
    [[3.0], [6.0]]
    """
    if callable(features):
        values = features(values)
    shape = _shape(values)
    if not shape or shape[0] != n:
        got = shape or type(values).__name__
        raise InputError(
            f"the features must be one array with {n} rows, one for each sample; got {got}. Choose "
            "another layer=, or a function features=."
        )
    if features in TOKEN_POLICIES:
        return _of_tokens(values, str(features), mask)
    if features == "pool":
        return _pooled(values)
    # Of shape (n, d, 1) or so, there is one vector already.
    if len(shape) == 3 and shape[2] != 1 and features != "flatten":
        raise InputError(f"the features have shape {shape}: several vectors a sample. {_REMEDY}")
    return values.reshape(n, -1)


def _shape(values: Any) -> tuple[int, ...]:
    return tuple(getattr(values, "shape", ()))


def _of_tokens(values: Any, policy: str, mask: Any) -> Any:
    shape = _shape(values)
    if len(shape) != 3:
        raise InputError(
            f"features={policy!r} needs values of shape (n, tokens, d); these have shape {shape}. "
            "Name the module or the output that has tokens in layer=, or leave features= out."
        )
    if mask is None:
        whole = {"cls": lambda: values[:, 0], "last token": lambda: values[:, -1]}
        return whole.get(policy, lambda: values.mean(1))()
    if _shape(mask) != shape[:2]:
        raise InputError(
            f"the attention mask has shape {_shape(mask)}, and the features have {shape}: there "
            "must be one entry for each token. Choose another layer=."
        )
    used = mask != 0
    count = used.cumsum(1)
    if bool((count[:, -1] == 0).any()):
        raise InputError("a sample has an attention mask of zeros alone; drop samples of no token.")
    if policy == "mean":
        kept = values + 0
        kept[mask == 0] = 0  # not a product: padding may hold NaN
        # Divided first, so that sums in half precision do not overflow.
        return (kept / count[:, -1][:, None, None]).sum(1)
    # One token a sample: the first or the last that is no padding, on whichever side that is.
    place = 1 if policy == "cls" else count[:, -1:]
    return values[used & (count == place)]


def _pooled(values: Any) -> Any:
    shape = _shape(values)
    if len(shape) < 4:
        raise InputError(
            'features="pool" needs a feature map of shape (n, channels, height, width); the values '
            f'have shape {shape}. For tokens, of shape (n, tokens, d), use features="mean"; for '
            "(n, channels, length) a function that averages the last axis."
        )
    return values.reshape(shape[0], shape[1], -1).mean(2)
