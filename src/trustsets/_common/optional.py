"""Packages that a plain install does not have."""

from importlib import import_module
from typing import Any

from trustsets.errors import InputError

__all__ = ["needed"]


def needed(module: str, purpose: str, extra: str = "tables") -> Any:
    """Return a module, or say what needs it and how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(
            f"{purpose} needs {package}, which is not installed ({error}). Install it with: "
            f'pip install "trustsets[{extra}]"'
        ) from error
