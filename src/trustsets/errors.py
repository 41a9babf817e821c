"""The errors and the warning of this package.

Every message names the argument, the rule, what came instead, and what to do.
"""

from sklearn.exceptions import NotFittedError

__all__ = ["InputError", "NotCalibratedError", "StorageError", "TrustSetsError", "TrustSetsWarning"]


class TrustSetsError(Exception):
    """Base class of every error this package raises on purpose."""


class InputError(TrustSetsError, ValueError):
    """An argument breaks a documented rule."""


class StorageError(TrustSetsError, ValueError):
    """A file is not a readable `.trustsets` file."""


class NotCalibratedError(TrustSetsError, NotFittedError):
    """The object was used before `fit` or `calibrate`."""


class TrustSetsWarning(UserWarning):
    """The result is valid, but probably not what was wanted."""
