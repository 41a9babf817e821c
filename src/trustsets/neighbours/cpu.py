"""Exact search on the CPU: blocked products of sketches, then the few full distances left.

One thread handles one block of queries. Its tile of products is small enough to stay in cache,
where the compiled kernels at the end of this file read it back.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numba import float32, float64, int32
from numpy.typing import NDArray

from trustsets._arrays import Floats, read_only
from trustsets._blocks import available_cores, one_blas_thread
from trustsets._progress import Advance
from trustsets.engine.compiled import entry, inner
from trustsets.neighbours.sketch import (
    BLOCK_ROWS,
    FAR,
    UNIT32,
    ClassDistances,
    ClassPoints,
    IndexArray,
    Queries,
    Sketch,
    build_sketch,
    sample_rows,
)

# Bytes a search may use beyond the points, their sketches and its results, whatever n is.
WORKING_MEMORY = 256 * 2**20
# Queries and points of one tile; with fewer queries there are as many times more points. Measured:
# smaller tiles fit the second-level cache better, but their calls cost more than that saves.
TILE_QUERIES, TILE_POINTS = 1024, 512
# Queries a thread takes at a time: many, so that those which share a class are read together.
BLOCK_QUERIES = 2048
# float64 row, its centred copy, the gathered input, coordinates and sketches.
COPIES_PER_QUERY = 5

# A fused multiply-add would leave a rounding residue where two equal rows must be at distance
# exactly 0: sums may be re-associated, which lets them vectorise, but never contracted.
REASSOCIATE = {"reassoc", "nsz"}
# Columns whose bounds are tested together before any of them is looked at alone.
CHUNK = 64
# Coordinates summed between two looks at whether a bound already rules a point out.
STRIDE = 32
# Rounding of a threshold to float32 must never lower it.
ROUND_UP = 2.0**-22


class _Block(NamedTuple):
    """Queries that one thread works on; `scan` describes the arguments `queries` and `counts`."""

    own_class: IndexArray
    head: NDArray[np.float32]
    queries: tuple[Floats, NDArray[np.float32], Floats]
    products: NDArray[np.float32]
    counts: IndexArray


class ExactSearch:
    """Exact distances from queries to the classes of some points; see `make_search`.

    `counts` are the pairs asked for, those that the bounds left, and full distances computed.
    """

    def __init__(
        self,
        points: ClassPoints,
        neighbour: int = 1,
        sketch: Sketch | None = None,
        memory: int | None = None,
    ) -> None:
        if sketch is None:
            chosen = sample_rows(len(points.features))
            codes = points.codes[chosen]
            sketch = build_sketch(points.rows(chosen), codes, neighbour=neighbour)
        self.sketch = sketch
        self.memory = WORKING_MEMORY if memory is None else memory
        self._few = min(self._room(1), TILE_QUERIES)
        self.counts = np.zeros(3, np.int64)
        rest = self._project(points)
        needed = np.minimum(points.sizes, neighbour)
        self._starts, self._most = points.starts, int(needed.max())
        reference = (points.features, points.scale, rest, points.codes, needed)
        self._reference = tuple(map(read_only, reference))
        # One query loads the compiled code now, so that the first request does not wait for it.
        self.distances(Queries(points.features[:1], points.scale[:1], points.codes[:1]))
        self.counts = np.zeros(3, np.int64)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        # Pickle forgets that arrays are read-only, which the compiled code is made for.
        self._reference = tuple(map(read_only, self._reference))

    def _project(self, points: ClassPoints) -> NDArray[np.float32]:
        """Set the heads and centres of the points; return the rest of their sketches."""
        total = len(points.features)
        self._head = np.empty((total, self.sketch.head + 2), np.float32)
        rest = np.empty((total, self.sketch.directions - self.sketch.head + 2), np.float32)
        self._radius = 0.0
        for start in range(0, total, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            projection = self.sketch.project(points.rows(block))
            rest[block] = projection.rest
            self._head[block] = -2.0 * projection.head
            self._head[block, -1] = projection.square
            self._radius = max(self._radius, float(projection.norm.max()))
        if self._radius > FAR:  # an outlier that the choice of the sketch did not see
            self.sketch = self.sketch.widened(self._radius)
            return self._project(points)
        # The sketch of a class: the mean of its sketches, good enough to guess a near class.
        sums = np.add.reduceat(self._head[:, :-1].astype(np.float64), points.starts[:-1])
        centres = (sums / points.sizes[:, None]).astype(np.float32)
        norms = 0.25 * np.einsum("ij,ij->i", centres, centres)
        self._centres = np.column_stack([centres, norms])
        return rest

    def distances(
        self, queries: Queries, advance: Advance | None = None, *, own_only: bool = False
    ) -> ClassDistances:
        """Distances to the own and, unless `own_only`, to the nearest other class.

        `advance` is told how many queries are done, for a progress bar.
        """
        n = len(queries.own_class)
        result = ClassDistances(np.empty(n), np.full(n, np.inf), np.full(n, -1))

        def run(rows: IndexArray) -> IndexArray:
            # OpenBLAS's float32 matrix-vector kernel also multiplies lanes that it never set: a
            # signalling NaN in them raises the flag although no result depends on it.
            with np.errstate(invalid="ignore"):
                block = self._block(queries, rows)
                result.own_distance[rows] = self._nearest(block, block.own_class)[0]
                if not own_only:
                    guess = self._guess(block)
                    nearest = self._nearest(block, guess, everywhere=True)
                    result.other_distance[rows], result.other_class[rows] = nearest
            return block.counts

        # Each thread calls BLAS for its own tile; BLAS threads below would only contend.
        with one_blas_thread:
            # Queries of one class are read together.
            order = np.argsort(queries.own_class, kind="stable")
            if n <= self._few:
                # Without a thread, whose start takes as long.
                self.counts = self.counts + run(order)
                return result
            threads = available_cores()  # of the process that searches, not of the one that fitted
            # Each thread should get a few blocks, or the last one would work alone.
            share = max(n // (4 * threads), TILE_QUERIES)
            size = min(max(self._room(threads), 1), BLOCK_QUERIES, share)
            parts = [order[start : start + size] for start in range(0, n, size)]
            with ThreadPoolExecutor(threads) as pool:
                for rows, counts in zip(parts, pool.map(run, parts), strict=True):
                    self.counts = self.counts + counts
                    if advance is not None:
                        advance(len(rows))
        return result

    def _room(self, threads: int) -> int:
        """Queries of a block, within the memory budget."""
        per_query = 8 * COPIES_PER_QUERY * len(self.sketch.mean)
        tile = 4 * TILE_QUERIES * TILE_POINTS
        return max(self.memory // threads - tile, 0) // per_query

    def _block(self, queries: Queries, chosen: IndexArray) -> _Block:
        rows = queries.rows(chosen)
        head, rest, square, norm = self.sketch.project(rows)
        allowance = np.empty((len(chosen), 3))
        allowance[:, 0] = square
        allowance[:, 1], allowance[:, 2] = self.sketch.slack(norm, self._radius)
        products = np.empty(min(len(chosen) * len(self._head), TILE_QUERIES * TILE_POINTS), "f4")
        counts = np.array([len(chosen) * len(self._head), 0, 0])
        return _Block(queries.own_class[chosen], head, (rows, rest, allowance), products, counts)

    def _guess(self, block: _Block) -> IndexArray:
        """Class of nearest centre other than the own one; -1 if there is none."""
        if len(self._centres) == 1:
            return np.where(block.own_class == 0, -1, 0)
        gaps = block.head @ self._centres.T
        has_class = np.flatnonzero(block.own_class >= 0)
        gaps[has_class, block.own_class[has_class]] = np.inf
        guess: IndexArray = gaps.argmin(axis=1)
        return guess

    def _nearest(
        self, block: _Block, classes: IndexArray, everywhere: bool = False
    ) -> tuple[Floats, IndexArray]:
        """Distance to a class of each query, infinite for -1.

        With `everywhere` it is the distance to the nearest class but the own one, and that class.
        Those of `classes`, which are near, are read first: their distances then reject almost
        everything in the pass over all the points.
        """
        n, n_classes = len(classes), len(self._centres)
        # No class yet: its index is one past the last, so that any class beats it.
        best, best_class = np.full(n, np.inf), np.full(n, n_classes, np.int64)
        state = (best, best_class, np.full((n, self._most), np.inf), np.full(n, -1, np.int64))
        skipped = np.full((n, 2), -1, np.int64)
        for code in np.unique(classes) if n > 1 else classes:
            if code >= 0:
                members = np.flatnonzero(classes == code)
                start, stop = self._starts[code], self._starts[code + 1]
                self._read(block, members, start, stop, skipped, state)
        if everywhere:
            skipped[:, 0], skipped[:, 1] = block.own_class, classes
            self._read(block, np.arange(n), 0, len(self._head), skipped, state)
        return np.sqrt(best), np.where(best_class < n_classes, best_class, -1)

    def _read(
        self,
        block: _Block,
        rows: IndexArray,
        start: int,
        stop: int,
        skipped: IndexArray,
        state: tuple[NDArray[Any], ...],
    ) -> None:
        """Update `state` with some queries and a range of points, tile by tile.

        The products of the sketches come first, then the scan of what they leave.
        """
        width = TILE_POINTS * max(TILE_QUERIES // len(rows), 1)
        for top in range(0, len(rows), TILE_QUERIES):
            some = rows[top : top + TILE_QUERIES]
            head = block.head[some]
            for first in range(start, stop, width):
                points = self._head[first : min(first + width, stop)]
                products = block.products[: len(some) * len(points)].reshape(len(some), -1)
                np.matmul(head, points.T, out=products)
                tile, unit = (products, first, some), self.sketch.unit
                scan(tile, block.queries, self._reference, skipped, state, unit, block.counts)


# The compiled inner loops. Rows are passed as an array and a row number, not as a view: a view of
# an array that all threads share would count a reference to it, atomically, and the threads would
# queue for that counter.


@inner(fastmath=REASSOCIATE)
def squared_distance(
    queries: NDArray[Any], q: int, features: NDArray[Any], i: int, scale: NDArray[Any]
) -> float:
    """`sum_j (query_j - row_j scale)^2` in float64: the one formula every result comes from."""
    total = 0.0
    factor = scale[i]
    for j in range(queries.shape[1]):
        # The difference comes before the square: expanding it would cancel digits of close rows.
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
    norm_gap = float64(queries[q, width]) - float64(points[i, width])
    replaced_gap = float64(queries[q, width + 1]) - float64(points[i, width + 1])
    total = low + (norm_gap * norm_gap - replaced_gap * replaced_gap)
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
def _count_within(products: NDArray[Any], i: int, start: int, stop: int, limit: float) -> int:
    """Products of row i, from `start` to `stop`, that are not above `limit`."""
    count = int32(0)
    for j in range(start, stop):
        count += int32(products[i, j] <= limit)
    return int(count)


@inner()
def _seed(
    products: NDArray[Any], i: int, first: int, full: NDArray[Any], q: int, reference: Any
) -> float:
    """Upper bound of the distance to the class of a tile's points; infinite with too few of them.

    The bound is the farthest of the `needed` points whose products are least.
    """
    features, scale, _, codes, needed = reference
    width = products.shape[1]
    if width < needed[codes[first]]:
        return float(np.inf)
    largest, last_value, last = 0.0, -np.inf, -1
    for _ in range(needed[codes[first]]):
        # The least product that was not taken: of equal ones that of the first point.
        least_value, least = np.inf, -1
        for j in range(width):
            value = products[i, j]
            if value < least_value and (value > last_value or (value == last_value and j > last)):
                least_value, least = value, j
        if least < 0:
            return float(np.inf)
        largest = max(largest, squared_distance(full, q, features, first + least, scale))
        last_value, last = least_value, least
    return largest


@inner()
def _update(state: Any, q: int, code: int, wanted: int, distance: float) -> None:
    """Add a point of class `code` to the list of query `q`, and compare that class with the best.

    Points come class by class, so a query needs one list: that of the class being read. Ties go to
    the class of lower number, whatever the order in which classes are read.
    """
    best, best_class, nearest, current = state
    if current[q] != code:
        current[q] = code
        for rank in range(wanted):
            nearest[q, rank] = np.inf
    # Insert into the increasing list, dropping its last entry.
    rank = wanted - 1
    if distance < nearest[q, rank]:
        while rank > 0 and nearest[q, rank - 1] > distance:
            nearest[q, rank] = nearest[q, rank - 1]
            rank -= 1
        nearest[q, rank] = distance
    last = nearest[q, wanted - 1]
    if last < best[q] or (last == best[q] and code < best_class[q]):
        best[q] = last
        best_class[q] = code


@entry()
def scan(
    tile: Any,
    queries: Any,
    reference: Any,
    skipped: NDArray[Any],
    state: Any,
    unit: float,
    counts: NDArray[Any],
) -> None:
    """Measure the pairs of a tile that the bounds leave.

    A point enters the list of its class when it is no farther than the best distance of its query.
    Once a list holds the points that the class needs, its last entry is the distance to the class.

    Parameters
    ----------
    tile : products, first, rows
        `products` (b, w) float32 holds `b_x - 2 <q, x>` of the sketches of b queries and w points;
        `first` is the number of the first point; `rows` (b,) int64 are the numbers of the queries.
    queries : full, sketches, allowance
        Full rows (n, d) float64; `Projection.rest`; and (n, 3) float64, the squared norm of the
        sketch and the two terms of `Sketch.slack`.
    reference : features, scale, sketches, codes, needed
        The points as in `ClassPoints`, their `Projection.rest`, the class of each, and how many
        points of a class are needed for the distance to it. All are read-only, so that points in
        memory that several processes share use the same compiled code.
    skipped : (n, 2) int64
        Classes that a query ignores. With -1 for both, the tile is of one class.
    state : best, best_class, nearest, current
        The best squared distance of each query, the class at that distance, the nearest points of
        the class being read, and that class.
    unit : float
        Scale of the sketches.
    counts : (3,) int64
        Pairs that the first bound left are added to the second, full distances to the third.
    """
    products, first, rows = tile
    full, sketches, allowance = queries
    features, scale, points, codes, needed = reference
    best = state[0]
    width = products.shape[1]
    survivors, measured = 0, 0
    for i in range(products.shape[0]):
        q = rows[i]
        skip, skip_too = skipped[q, 0], skipped[q, 1]
        shift, drift, error = allowance[q, 0], allowance[q, 1], allowance[q, 2]
        if skip < 0 and skip_too < 0 and best[q] == np.inf:
            best[q] = _seed(products, i, first, full, q, reference)
        limit = threshold(best[q], unit, shift, drift, error)
        for start in range(0, width, CHUNK):
            stop = min(start + CHUNK, width)
            if _count_within(products, i, start, stop, limit) == 0:
                continue
            for j in range(start, stop):
                point = first + j
                code = codes[point]
                if products[i, j] > limit or code in (skip, skip_too):
                    continue
                survivors += 1
                low = float64(products[i, j]) + shift
                reach = np.sqrt(best[q]) * unit + drift
                if ruled_out(sketches, q, points, point, low, reach * reach + error):
                    continue
                measured += 1
                distance = squared_distance(full, q, features, point, scale)
                # At equality, too: the class of lower number wins a tie.
                if distance <= best[q]:
                    _update(state, q, code, needed[code], distance)
                    limit = threshold(best[q], unit, shift, drift, error)
    counts[1] += survivors
    counts[2] += measured
