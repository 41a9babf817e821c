"""How the numerical kernels are compiled, and the one line that says so.

A kernel that Python calls is an `entry`: it is compiled on first use and kept on disk. What only
other kernels call is `inner`: it becomes part of the entries that use it. Without the code that
would let Python call it, and without a file of its own, it compiles several times faster.
"""

import logging
import sys
from functools import partial
from typing import Any

from numba import njit
from numba.core import event

__all__ = ["REASSOCIATE", "entry", "inner"]

REASSOCIATE = {"reassoc", "contract", "nsz"}
"""Sums may be reordered, which lets them vectorise; infinities and NaN keep their meaning."""

entry = partial(njit, cache=True, nogil=True)
inner = partial(njit, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_NOTICE = (
    "trustsets: compiling numerical kernels for this machine, once per installation; "
    "this takes about 15 seconds (`trustsets warmup` does it beforehand)."
)


class _Announcer(event.Listener):
    """Says once that kernels are being compiled; code that comes from the cache is no event."""

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
    """Write no notice from now on: it was written, or the caller has said so itself."""
    try:
        event.unregister("numba:compile", _announcer)
    except ValueError:  # unregistered before
        return
