"""Row-wise work in cache-sized blocks, in threads.

Every result depends on its own row alone, so neither the block size nor the number of threads can
change it.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    if 0 < 8 * n_rows * width <= BLOCK_BYTES:
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
    with ThreadPoolExecutor(count, initializer=_mark_thread) as threads:
        list(threads.map(run, tasks))


def _mark_thread() -> None:
    _thread.is_worker = True


def row_numbers(
    function: Callable[[slice], NDArray[Any]],
    n_rows: int,
    width: int,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """One number for each row, from a function that gives those of a block."""
    if 0 < 8 * n_rows * width <= BLOCK_BYTES:
        return np.array(function(slice(0, n_rows)), dtype)
    result = np.empty(n_rows, dtype)

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
