"""How the numerical kernels are compiled and cached, and the notice that tells the user about it.

A kernel that Python calls is an `entry`: it is compiled on first use and cached on disk. A kernel
that only other kernels call is `inner`: it is compiled into the entries that use it. It has no
wrapper for Python and no cache file, so it compiles several times faster.
"""

import hashlib
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numba.core import caching, event
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# Sums may be reordered, so that they vectorise; infinities and NaN keep their meaning.
REASSOCIATE = {"reassoc", "contract", "nsz"}

_NOTICE = (
    "trustsets: compiling numerical kernels for this machine, once per installation; "
    "this takes about 20 seconds (`trustsets warmup` does it beforehand)."
)
_NO_CACHE = (
    "trustsets: compiling numerical kernels, in every process anew (about 20 seconds), because no "
    "cache folder is writable; set NUMBA_CACHE_DIR to a folder that is."
)


# A kernel contains those that it calls, in whichever file they are, and numba looks at one file.
_SOURCES = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()
_FunctionCache: Any = caching.FunctionCache


class _Cache(_FunctionCache):
    """Compiled code on disk. What cannot be read is compiled again, and never an error."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = self._cache_file._source_stamp, _SOURCES

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load compiled code; None where there is none, or the file is damaged."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # unpickling damaged bytes may raise anything
            logging.getLogger("trustsets").info("ignored damaged compiled code: %r", error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store compiled code if that is possible; a damaged index is written anew."""
        for _ in range(2):
            try:
                super().save_overload(sig, data)
                return
            except Exception as error:  # a damaged index, a full disk
                logging.getLogger("trustsets").info("compiled code was not stored: %r", error)
            with suppress(OSError):
                self.flush()


def entry(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a kernel that Python calls, with a cache on disk if a folder for it is writable."""

    def decorate(function: Callable[..., Any]) -> Any:
        kernel: Any = njit(nogil=True, **options)(function)
        if kernel is not function:  # NUMBA_DISABLE_JIT leaves functions as they are
            try:
                kernel._cache = _Cache(function)
            except RuntimeError:  # no locator: neither the package nor a home folder is writable
                _announcer.notice = _NO_CACHE
        return kernel

    return decorate


# Without reference counts a kernel compiles faster; one that makes arrays says ``_nrt=True``.
inner = partial(njit, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


def read_only(array: Any) -> Any:
    """Return a view of an array that cannot be written to.

    Kernels take what they only read as such views. Numba compiles a kernel for every combination
    of writable and read-only arguments, and in a worker process large arrays are read-only memory
    maps while small ones are writable.
    """
    if type(array) is np.ndarray and not array.flags.writeable:
        return array
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


class _Announcer(event.Listener):
    """Announces the first compilation. Loading compiled code from the cache causes no event."""

    notice = _NOTICE

    def on_start(self, event: Any) -> None:
        """Write the notice at the first compilation of a kernel of this package."""
        name = event.data["dispatcher"].py_func.__module__
        if name.startswith("trustsets."):
            stop_announcing()
            logging.getLogger("trustsets").info(self.notice)
            print(self.notice, file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        """Nothing to say at the end."""


_announcer = _Announcer()
event.register("numba:compile", _announcer)


def stop_announcing() -> None:
    """Write no notice from now on: it was written already, or the caller writes its own."""
    try:
        event.unregister("numba:compile", _announcer)
    except ValueError:  # unregistered before
        return
