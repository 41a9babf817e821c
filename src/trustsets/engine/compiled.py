"""How the numerical kernels are compiled and cached, and the notice that tells the user about it.

A kernel that Python calls is an `entry`: it is compiled on first use and cached on disk. A kernel
that only other kernels call is `inner`: it is compiled into the entries that use it. It has no
wrapper for Python and no cache file, and is optimised within the entries only, so it compiles
several times faster. The first compilation starts a helper process for the largest kernel.
"""

import atexit
import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numba.core import caching, codegen, compiler, event
from numpy.typing import NDArray

from trustsets._blocks import available_cores

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# Sums may be reordered, so that they vectorise; infinities and NaN keep their meaning.
REASSOCIATE = {"reassoc", "contract", "nsz"}

_NOTICE = (
    "trustsets: compiling numerical kernels for this machine, once per installation; "
    "this takes about 10 seconds (`trustsets warmup` does it beforehand)."
)
_NO_CACHE = (
    "trustsets: compiling numerical kernels, in every process anew (about 20 seconds), because no "
    "cache folder is writable; set NUMBA_CACHE_DIR to a folder that is."
)
_HELPER = (
    "from trustsets.engine import compiled, path; compiled.stop_announcing(); path.compile_paths()"
)
_HELPER_SECONDS = 120  # Nobody waits longer for the helper; it takes about a tenth of this.

# A kernel contains those that it calls, in whichever file they are, and numba looks at one file.
_SOURCES = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()
_FunctionCache: Any = caching.FunctionCache
_Library: Any = codegen.JITCodeLibrary
_Compiler: Any = compiler.Compiler


class _Cache(_FunctionCache):
    """Compiled code on disk. What cannot be read is compiled again, and never an error."""

    def __init__(self, function: Callable[..., Any], by_helper: bool) -> None:
        super().__init__(function)
        self._by_helper = by_helper
        self._cache_file._source_stamp = self._cache_file._source_stamp, _SOURCES

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load compiled code; None where there is none, or the file is damaged."""
        overload = self._load(sig, target_context)
        if overload is None and self._by_helper and _announcer.helper is not None:
            with suppress(subprocess.TimeoutExpired):
                _announcer.helper.wait(_HELPER_SECONDS)
            overload = self._load(sig, target_context)
        return overload

    def _load(self, sig: Any, target_context: Any) -> Any:
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


# Kernels compile much faster without reference counts (they make no arrays; callers pass what they
# need) and without the exceptions of a division by zero.
_OPTIONS: Any = {"nogil": True, "_nrt": False, "error_model": "numpy"}


def entry(*, by_helper: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a kernel that Python calls, with a cache on disk if a folder for it is writable.

    The one that takes longest is compiled `by_helper`, where there is a helper process.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        kernel: Any = njit(**_OPTIONS, **options)(function)
        if kernel is not function:  # NUMBA_DISABLE_JIT leaves functions as they are
            try:
                kernel._cache = _Cache(function, by_helper)
            except RuntimeError:  # no locator: neither the package nor a home folder is writable
                _announcer.notice = _NO_CACHE
        return kernel

    return decorate


class _InnerLibrary(_Library):
    """Code of an inner kernel."""

    def _optimize_final_module(self) -> None:
        """Nothing: the entries that contain the code are optimised as a whole."""


class _InnerCompiler(_Compiler):
    def define_pipelines(self) -> Any:
        state = self.state
        state.library = _InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()


inner = partial(
    njit,
    **_OPTIONS,
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
    pipeline_class=_InnerCompiler,
)


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
    helper: "subprocess.Popen[bytes] | None" = None

    def on_start(self, event: Any) -> None:
        """Write the notice at the first compilation of a kernel of this package."""
        name = event.data["dispatcher"].py_func.__module__
        if name.startswith("trustsets."):
            stop_announcing()
            logging.getLogger("trustsets").info(self.notice)
            print(self.notice, file=sys.stderr, flush=True)
            start_helper()

    def on_end(self, event: Any) -> None:
        """Nothing to say at the end."""


_announcer = _Announcer()
event.register("numba:compile", _announcer)


def stop_announcing() -> None:
    """Write no notice from now on: it was written already, or the caller writes its own."""
    with suppress(ValueError):  # unregistered before
        event.unregister("numba:compile", _announcer)


def start_helper() -> None:
    """Compile the kernel that takes longest in another process, where a second core is free."""
    # An embedded or frozen interpreter is no command that runs Python code.
    is_python = Path(sys.executable or "").name.startswith("python")
    if not is_python or available_cores() < 2 or _announcer.notice is _NO_CACHE:
        return
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with suppress(OSError):
        _announcer.helper = subprocess.Popen(
            [sys.executable, "-c", _HELPER],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        atexit.register(_stop, _announcer.helper)


def _stop(helper: "subprocess.Popen[bytes]") -> None:
    helper.terminate()
    helper.wait()
