"""The compiled inner loops of the CPU search. Imports NumPy and numba alone.

Float sums may be re-associated (that is what lets them vectorise) but never contracted: a fused
multiply-add would leave a rounding residue where two equal rows must be at distance exactly 0.

Rows are passed as an array and a row number, not as a view: a view of an array that all threads
share counts a reference to it, atomically, and the threads would queue for that counter.

Kernels that read features exist for float32 and for float64, each compiled when it is first called.
What only kernels call has no entry for Python, which would take longer to compile than the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
from numba import float32, float64, int32, int64, njit, types, void
from numpy.typing import NDArray

__all__ = ["collect", "examine", "gather", "seed"]

REASSOCIATE = {"reassoc", "nsz"}
# Columns whose bounds are tested together before any of them is looked at alone.
CHUNK = 64
# Coordinates summed between two looks at whether a bound already rules a point out.
STRIDE = 32
# Rounding of a threshold to float32 must never lower it.
ROUND_UP = 2.0**-22
UNIT32 = 2.0**-24

# The points may lie in memory that processes share and none may write to.
_POINTS32 = types.Array(float32, 2, "C", readonly=True)
_POINTS64 = types.Array(float64, 2, "C", readonly=True)
_FACTORS = types.Array(float64, 1, "C", readonly=True)
_CODES = types.Array(int64, 1, "C", readonly=True)


_inner = partial(njit, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@_inner(fastmath=REASSOCIATE)
def squared_distance(
    queries: NDArray[Any], q: int, features: NDArray[Any], i: int, scale: NDArray[Any]
) -> float:
    """`sum_j (query_j - row_j scale)^2` in float64: the one formula every result comes from."""
    total = 0.0
    factor = scale[i]
    for j in range(queries.shape[1]):
        gap = queries[q, j] - float64(features[i, j]) * factor
        total += gap * gap
    return total


@_inner(fastmath=REASSOCIATE)
def ruled_out(
    queries: NDArray[Any], q: int, points: NDArray[Any], i: int, low: float, cap: float
) -> bool:
    """Whether the bound from all directions exceeds `cap`, given `low`, the head's own bound.

    The rows are `Projection.rest`: in the bound, the gap of the norms beyond the head gives way to
    the coordinates there and the gap of the norms beyond those. Differences are taken first, so
    their sum of `w` squares has relative error below `(w + 4) 2^-24`, by which it is shortened.
    """
    width = queries.shape[1] - 2
    beyond = float64(queries[q, width]) - float64(points[i, width])
    replaced = float64(queries[q, width + 1]) - float64(points[i, width + 1])
    total = low + (beyond * beyond - replaced * replaced)
    shorten = 1.0 - 2.0 * (width + 8) * UNIT32
    whole = width // STRIDE
    for block in range(whole):
        part = float32(0.0)
        for j in range(STRIDE):
            step = queries[q, block * STRIDE + j] - points[i, block * STRIDE + j]
            part += step * step
        total += shorten * float64(part)
        if total > cap:
            return True
    part = float32(0.0)
    for j in range(whole * STRIDE, width):
        step = queries[q, j] - points[i, j]
        part += step * step
    return bool(total + shorten * float64(part) > cap)


@_inner()
def threshold(best: float, unit: float, shift: float, drift: float, error: float) -> float:
    """Largest value of the float32 product that a point at squared distance `best` can have."""
    reach = np.sqrt(best) * unit + drift
    value = reach * reach + error - shift
    return float32(value + abs(value) * ROUND_UP)  # type: ignore[no-any-return]


@_inner()
def _inside(ranges: NDArray[Any], q: int, start: int, stop: int) -> bool:
    first = ranges[q, 0] <= start and stop <= ranges[q, 1]
    return bool(first or (ranges[q, 2] <= start and stop <= ranges[q, 3]))


@_inner()
def _count_kept(products: NDArray[Any], i: int, start: int, stop: int, limit: float) -> int:
    """Products of row i, from `start` to `stop`, that are not above `limit`."""
    kept = int32(0)
    for j in range(start, stop):
        kept += int32(products[i, j] <= limit)
    return int(kept)


@njit(
    int64(
        float32[:, ::1], int64, int64[::1], int64[:, ::1], float64[:, ::1], float64[::1], float64,
        int32[::1],
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def collect(
    products: NDArray[Any],
    first: int,
    rows: NDArray[Any],
    skipped: NDArray[Any],
    allowance: NDArray[Any],
    best: NDArray[Any],
    unit: float,
    found: NDArray[Any],
) -> int:
    """Write to `found` the tile's pairs that the bound leaves, as flat positions; their number.

    Parameters
    ----------
    products : (b, w) float32
        `b_x - 2 <q, x>` of the sketches; a pair is dropped when it exceeds its `threshold`.
    first : int
        Number of the tile's first point.
    rows : (b,) int64
        Queries of the tile's rows.
    skipped : (n, 4) int64
        Two ranges of points that a query ignores.
    allowance : (n, 3) float64
        Squared norm of the query's sketch, and the two terms of `Sketch.slack`.
    best : (n,) float64
        Squared distances to beat.
    unit : float
        Scale of the sketches.
    found : (at least b w,) int32
    """
    count = 0
    width = products.shape[1]
    for i in range(products.shape[0]):
        q = rows[i]
        limit = threshold(best[q], unit, allowance[q, 0], allowance[q, 1], allowance[q, 2])
        for start in range(0, width, CHUNK):
            stop = min(start + CHUNK, width)
            if _inside(skipped, q, first + start, first + stop):
                continue
            if _count_kept(products, i, start, stop, limit) == 0:
                continue
            for j in range(start, stop):
                if products[i, j] <= limit and not _inside(skipped, q, first + j, first + j + 1):
                    found[count] = i * width + j
                    count += 1
    return count


_tuple: Any = types.Tuple
_STATE = _tuple([float64[::1], int64[::1], float64[:, ::1], int64[::1]])
_REFERENCES = {
    np.dtype(kind.dtype.name): _tuple([kind, _FACTORS, _POINTS32, _CODES, _CODES])
    for kind in (_POINTS32, _POINTS64)
}
_lock = threading.Lock()


def _for_features(
    result: Any, *before: Any, after: tuple[Any, ...]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a kernel for the type of the features when it is first called with it.

    Its signature is `result` of the arguments `before`, the reference and those `after` it. One
    signature for each type admits arrays that may be written to and arrays that may not.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: dict[Any, Callable[..., Any]] = {}

        @wraps(function)
        def call(*arguments: Any) -> Any:
            kind = arguments[len(before)][0].dtype
            if kind not in compiled:
                with _lock:
                    if kind not in compiled:
                        signature = result(*before, _REFERENCES[kind], *after)
                        compiled[kind] = njit(signature, cache=True, nogil=True)(function)
            return compiled[kind](*arguments)

        return call

    return decorate


@_for_features(void, float32[:, ::1], int64, int64[::1], float64[:, ::1], after=(float64[::1],))
def seed(
    products: NDArray[Any],
    first: int,
    rows: NDArray[Any],
    full: NDArray[Any],
    reference: Any,
    best: NDArray[Any],
) -> None:
    """Lower infinite `best` to an upper bound of the distance to the class of a tile.

    The bound is the farthest of the `needed` points whose products are least. Every point of the
    tile must be of one class; nothing happens when the tile has too few of them.
    """
    features, scale, _, codes, needed = reference
    wanted = needed[codes[first]]
    width = products.shape[1]
    if width < wanted:
        return
    line = np.empty(width, np.float32)
    for i in range(products.shape[0]):
        q = rows[i]
        if best[q] < np.inf:
            continue
        largest = 0.0
        for j in range(width):
            line[j] = products[i, j]
        for _ in range(wanted):
            least = 0
            for j in range(width):
                if line[j] < line[least]:
                    least = j
            largest = max(largest, squared_distance(full, q, features, first + least, scale))
            line[least] = np.inf
        best[q] = largest


@_inner()
def _insert(nearest: NDArray[Any], q: int, wanted: int, value: float) -> None:
    """Put `value` into the increasing list `nearest[q, :wanted]`, dropping its last."""
    place = wanted - 1
    if value >= nearest[q, place]:
        return
    while place > 0 and nearest[q, place - 1] > value:
        nearest[q, place] = nearest[q, place - 1]
        place -= 1
    nearest[q, place] = value


@_for_features(
    int64, int32[::1], float32[:, ::1], int64, int64[::1], float64[:, ::1], float32[:, ::1],
    float64[:, ::1], after=(_STATE, float64),
)  # fmt: skip
def examine(
    found: NDArray[Any],
    products: NDArray[Any],
    first: int,
    rows: NDArray[Any],
    full: NDArray[Any],
    sketches: NDArray[Any],
    allowance: NDArray[Any],
    reference: Any,
    state: Any,
    unit: float,
) -> int:
    """Update the best class of each query with the pairs `found`; the full distances computed.

    A point enters its class's list when it is no further than the best class so far; once the list
    holds the neighbours the class needs, its last entry is the distance to the class. Ties go to
    the class of lower number, whatever the order in which classes are read. Points must come class
    by class over successive calls, as in a `ClassPoints`.

    Parameters
    ----------
    found : (count,) int32
        Flat positions in the tile.
    products : (b, w) float32
        The tile, which starts at point `first`.
    rows : (b,) int64
        Queries of the tile's rows.
    full, sketches, allowance : (n, d) float64, `Projection.rest`, (n, 3) float64
    reference : features, scale, sketch and class of each point; number each class `needed`
    state : best squared distance, its class, nearest distances within the class being read, and
        that class
    unit : float
        Scale of the sketches.
    """
    features, scale, points, codes, needed = reference
    best, best_class, nearest, current = state
    computed = 0
    width = products.shape[1]
    for k in range(len(found)):
        i, j = found[k] // width, found[k] % width
        q, point = rows[i], first + j
        low = float64(products[i, j]) + allowance[q, 0]
        reach = np.sqrt(best[q]) * unit + allowance[q, 1]
        if ruled_out(sketches, q, points, point, low, reach * reach + allowance[q, 2]):
            continue
        computed += 1
        distance = squared_distance(full, q, features, point, scale)
        if distance > best[q]:
            continue
        code = codes[point]
        wanted = needed[code]
        if current[q] != code:
            current[q] = code
            for place in range(wanted):
                nearest[q, place] = np.inf
        _insert(nearest, q, wanted, distance)
        last = nearest[q, wanted - 1]
        if last < best[q] or (last == best[q] and code < best_class[q]):
            best[q] = last
            best_class[q] = code
    return computed


@_for_features(
    void, int32[::1], float32[:, ::1], int64, int64[::1], float64[:, ::1], float32[:, ::1],
    float64[:, ::1], after=(float64[::1], float64[:, ::1], float64),
)  # fmt: skip
def gather(
    found: NDArray[Any],
    products: NDArray[Any],
    first: int,
    rows: NDArray[Any],
    full: NDArray[Any],
    sketches: NDArray[Any],
    allowance: NDArray[Any],
    reference: Any,
    bound: NDArray[Any],
    nearest: NDArray[Any],
    unit: float,
) -> None:
    """Put the pairs `found` that are within `bound` into the list of their query and class.

    As `examine`, but the bound stays and every class has a list, the row
    ``query * classes + class`` of `nearest`.
    """
    features, scale, points, codes, needed = reference
    width = products.shape[1]
    for k in range(len(found)):
        i, j = found[k] // width, found[k] % width
        q, point = rows[i], first + j
        low = float64(products[i, j]) + allowance[q, 0]
        reach = np.sqrt(bound[q]) * unit + allowance[q, 1]
        if ruled_out(sketches, q, points, point, low, reach * reach + allowance[q, 2]):
            continue
        distance = squared_distance(full, q, features, point, scale)
        if distance <= bound[q]:
            code = codes[point]
            _insert(nearest, q * len(needed) + code, needed[code], distance)
