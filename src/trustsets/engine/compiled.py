"""How the numerical kernels are compiled, and the notice that tells the user about it.

A kernel that Python calls is an `entry`: it is compiled on first use and cached on disk. A kernel
that only other kernels call is `inner`: it is compiled into the entries that use it. It has no
wrapper for Python and no cache file, so it compiles several times faster.
"""

import logging
import sys
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numba.core import event
from numpy.typing import NDArray

__all__ = ["REASSOCIATE", "BoolArray", "FloatArray", "IntArray", "entry", "inner"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

REASSOCIATE = {"reassoc", "contract", "nsz"}
"""Sums may be reordered, so that they vectorise; infinities and NaN keep their meaning."""

entry = partial(njit, cache=True, nogil=True)
inner = partial(njit, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_NOTICE = (
    "trustsets: compiling numerical kernels for this machine, once per installation; "
    "this takes about 15 seconds (`trustsets warmup` does it beforehand)."
)


class _Announcer(event.Listener):
    """Announces the first compilation. Loading compiled code from the cache causes no event."""

    def on_start(self, event: Any) -> None:
        """Write the notice at the first compilation of a kernel of this package."""
        name = event.data["dispatcher"].py_func.__module__
        if name.startswith("trustsets."):
            stop_announcing()
            logging.getLogger("trustsets").info(_NOTICE)
            print(_NOTICE, file=sys.stderr, flush=True)

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
