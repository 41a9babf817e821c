"""Row-wise work in cache-sized blocks on all cores. Imports nothing of the package.

Every result depends on its own row alone, so neither the block size nor the
number of threads can change it.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

__all__ = ["for_each_block", "row_blocks"]

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
    with ThreadPoolExecutor(max_workers=min(len(blocks), _available_cores())) as pool:
        for _ in pool.map(function, blocks):
            pass


def _available_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
