"""Row-wise work in cache-sized blocks, in threads; and BLAS without threads of its own.

Every result depends on its own row alone, so neither the block size nor the number of threads can
change it.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ContextDecorator
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

_Item = TypeVar("_Item")

# Bytes of float64 in one block. Sorting and exponentials of blocks this size stay
# in the second-level cache, and NumPy releases the GIL in both.
BLOCK_BYTES = 2 << 20
# Whether the code runs in a thread of `in_threads`; such a thread starts no others.
_thread = threading.local()


def row_blocks(n_rows: int, width: int) -> Iterator[slice]:
    """Yield slices that cover `n_rows` rows of `width` float64 numbers."""
    step = max(1, BLOCK_BYTES // (8 * width))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def for_each_block(function: Callable[[slice], None], n_rows: int, width: int) -> None:
    """Call `function` on every block of rows, in threads when there are several blocks."""
    if 8 * width * n_rows <= BLOCK_BYTES:
        function(slice(0, n_rows))
    else:
        in_threads(function, list(row_blocks(n_rows, width)))


def in_threads(
    run: Callable[[_Item], None], tasks: Sequence[_Item], count: int | None = None
) -> None:
    """Run all tasks in at most `count` threads; NumPy and kernels release the GIL.

    A task that calls this in turn runs its own tasks one after the other.
    """
    count = min(len(tasks), count or available_cores())
    if count <= 1 or getattr(_thread, "is_worker", False):
        for task in tasks:
            run(task)
        return
    waiting = iter(tasks)

    def work() -> None:
        for task in waiting:
            run(task)

    with ThreadPoolExecutor(count, initializer=_mark_thread) as threads:
        try:
            for thread in as_completed([threads.submit(work) for _ in range(count)]):
                thread.result()
        finally:
            for _ in waiting:  # after an error or Ctrl-C, no thread begins another task
                pass


def _mark_thread() -> None:
    _thread.is_worker = True


class _OneBlasThread(ContextDecorator):
    """Keeps BLAS to one thread; threads may enter and leave it in any order.

    A number of BLAS threads counts for the whole process. If each of several threads restored what
    it met, the last one could restore the limit of another: so the first sets it, and the last one
    to leave restores what was before.
    """

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._limit = _blas().limit(limits=1)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limit.restore_original_limits()


one_blas_thread: Any = _OneBlasThread()
"""For factorisations of a few dozen columns: threads of BLAS wait for each other longer than they
compute, ten times as long where all cores are busy."""


@cache
def _blas() -> Any:
    """The BLAS of NumPy and that of SciPy; to look for them takes milliseconds."""
    import scipy.linalg  # noqa: F401  (only what is loaded can be limited)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def row_results(
    function: Callable[[slice], NDArray[Any]],
    n_rows: int,
    width: int,
    *shape: int,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """What a function gives for blocks of rows, put together: an array (n_rows, *shape)."""
    result = np.empty((n_rows, *shape), dtype)

    def fill(rows: slice) -> None:
        result[rows] = function(rows)

    for_each_block(fill, n_rows, width)
    return result


def available_cores() -> int:
    """`OMP_NUM_THREADS` if set, as Ray, Dask and Spark do in their workers, else all cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
