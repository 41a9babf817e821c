"""The compiled inner loops of the CPU search.

Float sums may be re-associated, which lets them vectorise, but never contracted: a fused
multiply-add would leave a rounding residue where two equal rows must be at distance exactly 0.

Rows are passed as an array and a row number, not as a view. A view of an array that all threads
share would count a reference to it, atomically, and the threads would queue for that counter.

Several kernels share these arguments:

tile : products, first, rows
    `products` (b, w) float32 holds `b_x - 2 <q, x>` of the sketches of b queries and w points;
    `first` is the number of the first point; `rows` (b,) int64 are the numbers of the queries.
queries : full, sketches, allowance
    Full rows (n, d) float64; `Projection.rest`; and (n, 3) float64, the squared norm of the sketch
    and the two terms of `Sketch.slack`.
reference : features, scale, sketches, codes, needed
    The points as in `ClassPoints`, their `Projection.rest`, the class of each, and how many points
    of a class are needed for the distance to it. All are read-only, so that points in memory that
    several processes share use the same compiled code.
unit : float
    Scale of the sketches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64, int32
from numpy.typing import NDArray

from trustsets.engine.compiled import entry, inner

REASSOCIATE = {"reassoc", "nsz"}
# Columns whose bounds are tested together before any of them is looked at alone.
CHUNK = 64
# Coordinates summed between two looks at whether a bound already rules a point out.
STRIDE = 32
# Rounding of a threshold to float32 must never lower it.
ROUND_UP = 2.0**-22
UNIT32 = 2.0**-24


@inner(fastmath=REASSOCIATE)
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


@inner(fastmath=REASSOCIATE)
def ruled_out(
    queries: NDArray[Any], q: int, points: NDArray[Any], i: int, low: float, cap: float
) -> bool:
    """Whether the bound from all directions exceeds `cap`, given `low`, the head's own bound.

    The rows are `Projection.rest`. In the bound, the gap of the norms beyond the head is replaced
    by the coordinates there and the gap of the norms beyond those. Differences are taken before
    squares, so the sum of `w` squares has a relative error below `(w + 4) 2^-24`; it is shortened
    by more than that.
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


@inner()
def threshold(best: float, unit: float, shift: float, drift: float, error: float) -> float:
    """Largest value of the float32 product that a point at squared distance `best` can have."""
    reach = np.sqrt(best) * unit + drift
    value = reach * reach + error - shift
    return float32(value + abs(value) * ROUND_UP)  # type: ignore[no-any-return]


@inner()
def _inside(ranges: NDArray[Any], q: int, start: int, stop: int) -> bool:
    first = ranges[q, 0] <= start and stop <= ranges[q, 1]
    return bool(first or (ranges[q, 2] <= start and stop <= ranges[q, 3]))


@inner()
def _count_kept(products: NDArray[Any], i: int, start: int, stop: int, limit: float) -> int:
    """Products of row i, from `start` to `stop`, that are not above `limit`."""
    kept = int32(0)
    for j in range(start, stop):
        kept += int32(products[i, j] <= limit)
    return int(kept)


@entry()
def collect(
    tile: Any,
    queries: Any,
    skipped: NDArray[Any],
    best: NDArray[Any],
    unit: float,
    found: NDArray[Any],
) -> int:
    """Write to `found` the tile's pairs that the bound leaves, as flat positions; return how many.

    A row of `skipped` (n, 4) holds two ranges of points that the query ignores, and `best` (n,) the
    squared distances to beat. The other arguments are explained at the top of this file.
    """
    products, first, rows = tile
    allowance = queries[2]
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


@entry()
def seed(tile: Any, full: NDArray[Any], reference: Any, best: NDArray[Any]) -> None:
    """Lower infinite `best` to an upper bound of the distance to the class of a tile.

    The bound is the farthest of the `needed` points whose products are least. Every point of the
    tile must be of one class; nothing happens when the tile has too few of them.
    """
    products, first, rows = tile
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


@inner()
def _insert(nearest: NDArray[Any], row: int, wanted: int, value: float) -> None:
    """Put `value` into the increasing list `nearest[row, :wanted]`, dropping its last."""
    place = wanted - 1
    if value >= nearest[row, place]:
        return
    while place > 0 and nearest[row, place - 1] > value:
        nearest[row, place] = nearest[row, place - 1]
        place -= 1
    nearest[row, place] = value


@inner()
def _update(state: Any, q: int, code: int, wanted: int, distance: float) -> None:
    """Add a point of class `code` to the list of query `q`, and compare that class with the best.

    Points come class by class, so a query needs one list: that of the class being read. Ties go to
    the class of lower number, whatever the order in which classes are read.
    """
    best, best_class, nearest, current = state
    if current[q] != code:
        current[q] = code
        for place in range(wanted):
            nearest[q, place] = np.inf
    _insert(nearest, q, wanted, distance)
    last = nearest[q, wanted - 1]
    if last < best[q] or (last == best[q] and code < best_class[q]):
        best[q] = last
        best_class[q] = code


@entry()
def examine(
    found: NDArray[Any],
    tile: Any,
    queries: Any,
    reference: Any,
    state: Any,
    unit: float,
    every_class: bool,
) -> int:
    """Measure the pairs `found` that are not ruled out; return how many full distances that took.

    A point enters the list of its class when it is no farther than the best distance of its query.
    Once a list holds the points that the class needs, its last entry is the distance to the class.

    The `state` is (best, best_class, nearest, current): the best squared distance of each query,
    the class at that distance, the nearest points of the class being read, and that class. With
    `every_class`, the points of every class within `best` are kept, and `best` stays as it is. The
    list of query q and class c is then the row ``q * classes + c`` of `nearest`.
    """
    products, first, rows = tile
    full, sketches, allowance = queries
    features, scale, points, codes, needed = reference
    best, nearest = state[0], state[2]
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
        if every_class:
            _insert(nearest, q * len(needed) + code, needed[code], distance)
        else:
            _update(state, q, code, needed[code], distance)
    return computed
