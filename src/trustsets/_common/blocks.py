"""Row-wise work in cache-sized blocks, and how many threads may do it. Imports nothing.

Every result depends on its own row alone, so neither the block size nor the
number of threads can change it.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

__all__ = ["available_cores", "for_each_block", "row_blocks"]

# Bytes of float64 in one block. Sorting and exponentials of blocks this size stay
# in the second-level cache, and NumPy releases the GIL in both.
BLOCK_BYTES = 2 << 20


def row_blocks(n_rows: int, width: int) -> Iterator[slice]:
    """Yield slices that cover `n_rows` rows of `width` float64 numbers."""
    step = max(1, BLOCK_BYTES // (8 * width))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def for_each_block(function: Callable[[slice], None], n_rows: int, width: int) -> None:
    """Call `function` on every block of rows, in threads when there are several blocks."""
    blocks = list(row_blocks(n_rows, width))
    if len(blocks) == 1:
        function(blocks[0])
        return
    with ThreadPoolExecutor(max_workers=min(len(blocks), available_cores())) as pool:
        for _ in pool.map(function, blocks):
            pass


def available_cores() -> int:
    """Threads that this process should use: `OMP_NUM_THREADS` if set, else one for each core.

    Ray, Dask and Spark set that variable in their workers to the cores a task has; every worker
    of a machine would use all of its cores otherwise.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
