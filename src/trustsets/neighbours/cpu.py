"""Exact search on the CPU: blocked products of sketches, then the few full distances left.

One thread handles one block of queries. Its tile of products is small enough to stay in cache,
where the compiled kernels at the end of this file read it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import float32, float64, int32
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from trustsets._arrays import Floats, read_only
from trustsets._blocks import available_cores
from trustsets._progress import Advance
from trustsets.engine.compiled import entry, inner
from trustsets.neighbours.points import (
    BLOCK_ROWS,
    ClassDistances,
    ClassPoints,
    Counts,
    IndexArray,
    Queries,
)
from trustsets.neighbours.sketch import FAR, Sketch, build_sketch

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
UNIT32 = 2.0**-24

# The `state` of `examine`: best, best_class, nearest, current.
_State = tuple[Floats, IndexArray, Floats, IndexArray]


@dataclass
class _Block:
    """Queries that one thread works on, with the arguments that the kernels describe."""

    own_class: IndexArray
    head: NDArray[np.float32]
    queries: tuple[Floats, NDArray[np.float32], Floats]
    reference: tuple[NDArray[Any], ...]
    products: NDArray[np.float32]
    pairs: NDArray[np.int32]
    counts: Counts


class ExactSearch:
    """Exact distances from queries to the classes of some points.

    The parameters are those of `make_search`; `memory` is `WORKING_MEMORY` by default.
    """

    def __init__(
        self,
        points: ClassPoints,
        neighbour: int = 1,
        sketch: Sketch | None = None,
        memory: int | None = None,
    ) -> None:
        self.points = points
        self.sketch = build_sketch(points, neighbour=neighbour) if sketch is None else sketch
        self.memory = WORKING_MEMORY if memory is None else memory
        self.counts = Counts()
        self._needed = np.minimum(points.sizes, neighbour)
        self._codes = points.codes
        self._project_points()

    def _project_points(self) -> None:
        total = len(self.points.features)
        self._head = np.empty((total, self.sketch.head + 2), np.float32)
        beyond = self.sketch.directions - self.sketch.head
        self._rest = np.empty((total, beyond + 2), np.float32)
        self._radius = 0.0
        for start in range(0, total, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            projection = self.sketch.project(self.points.rows(block))
            self._rest[block] = projection.rest
            self._head[block, :-1] = -2.0 * projection.head
            self._head[block, -1] = projection.square
            self._radius = max(self._radius, float(projection.norm.max()))
        if self._radius > FAR:  # an outlier that the choice of the sketch did not see
            self.sketch = self.sketch.widened(self._radius)
            self._project_points()
            return
        # The sketch of a class: the mean of its sketches, good enough to guess a near class.
        sums = np.add.reduceat(self._head[:, :-1].astype(np.float64), self.points.starts[:-1])
        self._centres = (sums / (-2.0 * self.points.sizes[:, None])).astype(np.float32)

    def distances(self, queries: Queries, advance: Advance | None = None) -> ClassDistances:
        """Distances of all queries; `advance` is told how many are done, for a progress bar."""
        total = len(queries.own_class)
        own_distance, other_distance = np.empty(total), np.empty(total)
        other_class = np.empty(total, np.int64)

        def work(rows: IndexArray, block: _Block) -> None:
            own_distance[rows] = self._own(block)
            other_distance[rows], other_class[rows] = self._other(block)

        self._in_blocks(work, queries, advance)
        return ClassDistances(own_distance, other_distance, other_class)

    def own_distances(self, queries: Queries) -> Floats:
        """Distance to the own class alone; infinite without one."""
        own_distance = np.empty(len(queries.own_class))

        def work(rows: IndexArray, block: _Block) -> None:
            own_distance[rows] = self._own(block)

        self._in_blocks(work, queries)
        return own_distance

    def _in_blocks(
        self,
        work: Callable[[IndexArray, _Block], None],
        queries: Queries,
        advance: Advance | None = None,
    ) -> None:
        """Call `work` with the numbers of some queries and their block, in threads."""
        threads = available_cores()  # of the process that searches, not of the one that fitted
        size = self._block_size(len(queries.own_class), threads)
        # Queries of one class are read together.
        order = np.argsort(queries.own_class, kind="stable")
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        counts = [Counts() for _ in parts]

        def run(rows: IndexArray, count: Counts) -> int:
            work(rows, self._block(queries, rows, count))
            return len(rows)

        # Each thread calls BLAS for its own tile; BLAS threads below would only contend.
        with _blas().limit(limits=1):
            for done in _in_threads(run, parts, counts, threads):
                if advance is not None:
                    advance(done)
        self.counts.pairs += len(queries.own_class) * len(self._codes)
        self.counts.survivors += sum(count.survivors for count in counts)
        self.counts.direct += sum(count.direct for count in counts)

    def _block_size(self, total: int, threads: int) -> int:
        """Queries of a block, within the memory budget."""
        per_query = 8 * COPIES_PER_QUERY * self.points.features.shape[1]
        fixed = 8 * TILE_QUERIES * TILE_POINTS
        room = max(self.memory // threads - fixed, 0) // per_query
        # Each thread should get a few blocks, or the last one would work alone.
        share = max(total // (4 * threads), TILE_QUERIES)
        return int(min(max(room, 1), BLOCK_QUERIES, share))

    def _block(self, queries: Queries, chosen: IndexArray, counts: Counts) -> _Block:
        rows = queries.rows(chosen)
        projection = self.sketch.project(rows)
        drift, error = self.sketch.slack(projection.norm, self._radius)
        allowance = np.column_stack([projection.square, drift, error])
        points = self.points
        reference = (points.features, points.scale, self._rest, self._codes, self._needed)
        return _Block(
            own_class=queries.own_class[chosen],
            head=np.column_stack([projection.head, np.ones(len(chosen), np.float32)]),
            queries=(rows, projection.rest, allowance),
            reference=tuple(map(read_only, reference)),
            products=np.empty(TILE_QUERIES * TILE_POINTS, np.float32),
            pairs=np.empty(TILE_QUERIES * TILE_POINTS, np.int32),
            counts=counts,
        )

    def _state(self, size: int) -> _State:
        """No class yet: its index is one past the last, so that any class beats it."""
        return (
            np.full(size, np.inf),
            np.full(size, len(self._needed), np.int64),
            np.full((size, int(self._needed.max())), np.inf),
            np.full(size, -1, np.int64),
        )

    def _own(self, block: _Block) -> Floats:
        """Distance to the own class; infinite without one."""
        _, _, nearest, _ = state = self._state(len(block.own_class))
        self._read_classes(block, block.own_class, state)
        # Of an own class of -1 nothing was read: all its entries are infinite.
        last = self._needed[block.own_class] - 1
        distances: Floats = np.sqrt(nearest[np.arange(len(block.own_class)), last])
        return distances

    def _other(self, block: _Block) -> tuple[Floats, IndexArray]:
        """Distance to the nearest class but the own one, and that class.

        A near class, guessed by its centre, is read first: its distance then rejects almost
        everything in the pass over all the points.
        """
        best, best_class, _, _ = state = self._state(len(block.own_class))
        guess = self._guess(block)
        self._read_classes(block, guess, state)
        skipped = np.column_stack([self._ranges(block.own_class), self._ranges(guess)])
        for tile in _tiles(np.arange(len(block.own_class)), 0, len(self._codes)):
            self._read(block, tile, skipped, state)
        return np.sqrt(best), np.where(best_class < len(self._needed), best_class, -1)

    def _guess(self, block: _Block) -> IndexArray:
        """Class of nearest centre other than the own one; -1 if there is none."""
        if len(self._needed) == 1:
            return np.where(block.own_class == 0, -1, 0)
        norms = np.einsum("ij,ij->i", self._centres, self._centres)
        gaps = norms - 2.0 * _multiply(block.head[:, :-1], self._centres)
        has_class = block.own_class >= 0
        gaps[np.flatnonzero(has_class), block.own_class[has_class]] = np.inf
        guess: IndexArray = gaps.argmin(axis=1)
        return guess

    def _ranges(self, classes: IndexArray) -> IndexArray:
        """First and last + 1 point of each class; an empty range for -1."""
        starts, stops = self.points.starts[classes], self.points.starts[classes + 1]
        return np.where(classes[:, None] < 0, 0, np.column_stack([starts, stops]))

    def _read_classes(self, block: _Block, classes: IndexArray, state: _State) -> None:
        """Read one class for each query."""
        nothing = np.zeros((len(block.own_class), 4), np.int64)
        for code in np.unique(classes[classes >= 0]):
            members = np.flatnonzero(classes == code)
            start, stop = self.points.starts[code], self.points.starts[code + 1]
            for tile in _tiles(members, start, stop):
                self._read(block, tile, nothing, state, one_class=True)

    def _read(
        self,
        block: _Block,
        tile: tuple[IndexArray, int, int],
        skipped: IndexArray,
        state: _State,
        one_class: bool = False,
    ) -> None:
        """Update `state` with one tile: some queries and a range of points.

        The products of the sketches come first, then the scan of what they leave.
        """
        rows, start, stop = tile
        points, unit = self._head[start:stop], self.sketch.unit
        products = block.products[: len(rows) * len(points)].reshape(len(rows), len(points))
        multiplied = (_multiply(block.head[rows], points, products), start, rows)
        if one_class:
            seed(multiplied, block.queries[0], block.reference, state[0])
        count = collect(multiplied, block.queries, skipped, state[0], unit, block.pairs)
        block.counts.survivors += count
        block.counts.direct += examine(
            block.pairs[:count], multiplied, block.queries, block.reference, state, unit
        )


@cache
def _blas() -> ThreadpoolController:
    """The BLAS of NumPy, which is loaded before this: to look for it takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


def _in_threads(
    run: Callable[[IndexArray, Counts], int],
    parts: list[IndexArray],
    counts: list[Counts],
    threads: int,
) -> Iterator[int]:
    """Yield the results in order; a single part needs no thread, whose start takes as long."""
    if len(parts) == 1:
        yield run(parts[0], counts[0])
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(run, parts, counts)


def _tiles(rows: IndexArray, start: int, stop: int) -> Iterator[tuple[IndexArray, int, int]]:
    """Yield queries with the first and last + 1 of a range of points, one tile after another."""
    width = TILE_POINTS * max(TILE_QUERIES // max(len(rows), 1), 1)
    for top in range(0, len(rows), TILE_QUERIES):
        for first in range(start, stop, width):
            yield rows[top : top + TILE_QUERIES], first, min(first + width, stop)


def _multiply(
    left: NDArray[np.float32], right: NDArray[np.float32], out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Products of rows with rows, ``left @ right.T``.

    All numbers are finite and far from overflow. NumPy may report an invalid operation all the
    same: OpenBLAS's float32 matrix-vector kernel for five columns also multiplies lanes that it
    never set, and a signalling NaN in them raises the flag although no result depends on it.
    """
    with np.errstate(invalid="ignore"):
        return np.matmul(left, right.T, out=out)


# The compiled inner loops. Rows are passed as an array and a row number, not as a view: a view of
# an array that all threads share would count a reference to it, atomically, and the threads would
# queue for that counter. Several kernels share these arguments:
#
# tile : products, first, rows
#     `products` (b, w) float32 holds `b_x - 2 <q, x>` of the sketches of b queries and w points;
#     `first` is the number of the first point; `rows` (b,) int64 are the numbers of the queries.
# queries : full, sketches, allowance
#     Full rows (n, d) float64; `Projection.rest`; and (n, 3) float64, the squared norm of the
#     sketch and the two terms of `Sketch.slack`.
# reference : features, scale, sketches, codes, needed
#     The points as in `ClassPoints`, their `Projection.rest`, the class of each, and how many
#     points of a class are needed for the distance to it. All are read-only, so that points in
#     memory that several processes share use the same compiled code.
# unit : float
#     Scale of the sketches.


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
def _inside(ranges: NDArray[Any], q: int, start: int, stop: int) -> bool:
    first = ranges[q, 0] <= start and stop <= ranges[q, 1]
    return bool(first or (ranges[q, 2] <= start and stop <= ranges[q, 3]))


@inner()
def _count_within(products: NDArray[Any], i: int, start: int, stop: int, limit: float) -> int:
    """Products of row i, from `start` to `stop`, that are not above `limit`."""
    count = int32(0)
    for j in range(start, stop):
        count += int32(products[i, j] <= limit)
    return int(count)


@entry()
def collect(
    tile: Any,
    queries: Any,
    skipped: NDArray[Any],
    best: NDArray[Any],
    unit: float,
    pairs: NDArray[Any],
) -> int:
    """Write to `pairs` the tile's pairs that the bound leaves, as flat positions; return how many.

    A row of `skipped` (n, 4) holds two ranges of points that the query ignores, and `best` (n,) the
    squared distances to beat. The other arguments are explained above.
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
            if _count_within(products, i, start, stop, limit) == 0:
                continue
            for j in range(start, stop):
                if products[i, j] <= limit and not _inside(skipped, q, first + j, first + j + 1):
                    pairs[count] = i * width + j
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
    remaining = np.empty(width, np.float32)
    for i in range(products.shape[0]):
        q = rows[i]
        if best[q] < np.inf:
            continue
        largest = 0.0
        for j in range(width):
            remaining[j] = products[i, j]
        for _ in range(wanted):
            least = 0
            for j in range(width):
                if remaining[j] < remaining[least]:
                    least = j
            largest = max(largest, squared_distance(full, q, features, first + least, scale))
            remaining[least] = np.inf
        best[q] = largest


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
def examine(
    pairs: NDArray[Any], tile: Any, queries: Any, reference: Any, state: Any, unit: float
) -> int:
    """Measure the `pairs` that are not ruled out; return how many full distances that took.

    A point enters the list of its class when it is no farther than the best distance of its query.
    Once a list holds the points that the class needs, its last entry is the distance to the class.

    The `state` is (best, best_class, nearest, current): the best squared distance of each query,
    the class at that distance, the nearest points of the class being read, and that class.
    """
    products, first, rows = tile
    full, sketches, allowance = queries
    features, scale, points, codes, needed = reference
    best = state[0]
    computed = 0
    width = products.shape[1]
    for k in range(len(pairs)):
        i, j = pairs[k] // width, pairs[k] % width
        q, point = rows[i], first + j
        low = float64(products[i, j]) + allowance[q, 0]
        reach = np.sqrt(best[q]) * unit + allowance[q, 1]
        if ruled_out(sketches, q, points, point, low, reach * reach + allowance[q, 2]):
            continue
        computed += 1
        distance = squared_distance(full, q, features, point, scale)
        # At equality, too: the class of lower number wins a tie.
        if distance <= best[q]:
            _update(state, q, codes[point], needed[codes[point]], distance)
    return computed
