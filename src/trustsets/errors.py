"""The errors and the warning of this package.

Every message names the argument, the rule, what came instead, and what to do.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sklearn.exceptions import NotFittedError

__all__ = ["InputError", "NotCalibratedError", "StorageError", "TrustSetsError", "TrustSetsWarning"]


class TrustSetsError(Exception):
    """Base class of every error this package raises on purpose."""


class InputError(TrustSetsError, ValueError):
    """An argument breaks a documented rule."""


class StorageError(TrustSetsError, ValueError):
    """A file is not a readable `.trustsets` file."""


class TrustSetsWarning(UserWarning):
    """The result is valid, but probably not what was wanted."""


if TYPE_CHECKING:

    class NotCalibratedError(TrustSetsError, NotFittedError):
        """The object was used before `fit` or `calibrate`."""


def __getattr__(name: str) -> Any:
    # Made when it is first asked for: its base class is in scikit-learn, whose import is slow.
    if name != "NotCalibratedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sklearn.exceptions import NotFittedError

    about = {"__doc__": "The object was used before `fit` or `calibrate`.", "__module__": __name__}
    made = globals()[name] = type(name, (TrustSetsError, NotFittedError), about)
    return made
