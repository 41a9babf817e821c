"""Exact search on the CPU: blocked products of sketches, then the few full distances left.

One thread handles one block of queries. Its tile of products is small enough to stay in cache,
where the compiled kernels read it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from trustsets._common.arrays import Floats, read_only
from trustsets._common.blocks import available_cores
from trustsets._common.progress import Advance
from trustsets.neighbours.kernels import collect, examine, seed
from trustsets.neighbours.points import (
    BLOCK_ROWS,
    ClassDistances,
    ClassPoints,
    IndexArray,
    NearestSquares,
    Pairs,
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

# The `state` of `kernels.examine`.
_State = tuple[Floats, IndexArray, Floats, IndexArray]


@dataclass
class Counts:
    """What a search had to look at: all pairs, those its bound left, and full distances."""

    pairs: int = 0
    survivors: int = 0
    direct: int = 0


@dataclass
class _Block:
    """Queries that one thread works on, with the arguments that `kernels` describes."""

    own: IndexArray
    head: NDArray[np.float32]
    queries: tuple[Floats, NDArray[np.float32], Floats]
    reference: tuple[NDArray[Any], ...]
    products: NDArray[np.float32]
    found: NDArray[np.int32]
    counts: Counts


class ExactSearch:
    """Exact distances from queries to the classes of some points.

    Parameters
    ----------
    points : ClassPoints
    neighbour : int
        The distance to a class is that to its `neighbour`-th nearest point, or to its farthest
        point where it has fewer.
    sketch : Sketch, optional
        Chosen from the points when not given.
    memory : int, optional
        Bytes of working memory, `WORKING_MEMORY` by default.
    needed : (K,) int64, optional
        Points that each class needs, where these points are a part of all; a class that has fewer
        here is at infinite distance. Without it, a class needs at most the points it has.
    threads : int, optional
        `available_cores` by default, asked again where the search has been sent to another process.
    """

    def __init__(
        self,
        points: ClassPoints,
        neighbour: int = 1,
        sketch: Sketch | None = None,
        memory: int | None = None,
        threads: int | None = None,
        needed: IndexArray | None = None,
    ) -> None:
        self.points = points
        self.neighbour = neighbour
        self.sketch = build_sketch(points, neighbour=neighbour) if sketch is None else sketch
        self.memory = WORKING_MEMORY if memory is None else memory
        self._threads = threads
        self.needed = np.minimum(points.sizes, neighbour) if needed is None else needed
        self._project_points()
        self.counts = Counts()

    @property
    def threads(self) -> int:
        """Threads of the next search."""
        return self._threads or available_cores()

    def _project_points(self) -> None:
        total = len(self.points.features)
        self._head = np.empty((total, self.sketch.head + 2), np.float32)
        beyond = self.sketch.directions - self.sketch.head
        self._rest = np.empty((total, beyond + 2), np.float32)
        self._radius = 0.0
        for start in range(0, total, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            seen = self.sketch.project(self.points.rows(block))
            self._rest[block] = seen.rest
            self._head[block, :-1] = -2.0 * seen.head
            self._head[block, -1] = seen.square
            self._radius = max(self._radius, float(seen.norm.max()))
        if self._radius > FAR:  # an outlier that the choice of the sketch did not see
            self.sketch = self.sketch.widened(self._radius)
            self._project_points()
            return
        self._codes = self.points.codes
        # The sketch of a class: the mean of its sketches, good enough to guess a near class.
        sums = np.add.reduceat(self._head[:, :-1].astype(np.float64), self.points.starts[:-1])
        self._centres = (sums / (-2.0 * self.points.sizes[:, None])).astype(np.float32)

    def distances(self, queries: Queries, advance: Advance | None = None) -> ClassDistances:
        """Distances of all queries; `advance` is told how many are done, for a progress bar."""
        return self.nearest_squares(queries, advance).distances(queries.own, self.needed)

    def nearest_squares(self, queries: Queries, advance: Advance | None = None) -> NearestSquares:
        """Squared distances that can be merged with those to other points."""
        total, width = len(queries.own), int(self.needed.max())
        result = NearestSquares(
            np.empty((total, width)), np.empty(total), np.empty(total, np.int64)
        )

        def work(chosen: IndexArray, block: _Block) -> None:
            result.own[chosen] = self._own(block)
            result.other[chosen], result.other_class[chosen] = self._other(block)

        self._each_block(work, queries, advance=advance)
        return result

    def own_distances(self, queries: Queries) -> Floats:
        """Distance to the own class alone; infinite without one."""
        result = np.empty(len(queries.own))

        def work(chosen: IndexArray, block: _Block) -> None:
            nearest = self._own(block)
            last = self.needed[block.own] - 1
            result[chosen] = np.sqrt(nearest[np.arange(len(chosen)), last])

        self._each_block(work, queries)
        return result

    def within(self, queries: Queries, bound: Floats) -> Pairs:
        """Points of other classes at squared distance up to `bound`.

        Of each class there are the nearest points, no more than it needs, in no particular order.
        """
        lists = len(self.needed) * int(self.needed.max())
        parts: list[Pairs] = []

        def work(chosen: IndexArray, block: _Block) -> None:
            parts.append(self._within(block, chosen, bound[chosen]))

        self._each_block(work, queries, extra=8 * lists)
        return Pairs(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _each_block(
        self,
        work: Callable[[IndexArray, _Block], None],
        queries: Queries,
        extra: int = 0,
        advance: Advance | None = None,
    ) -> None:
        """Call `work` with the numbers of some queries and their block, in threads.

        `extra` are the bytes that a query needs besides its copies.
        """
        size = self._block_size(len(queries.own), extra)
        order = np.argsort(queries.own, kind="stable")  # queries of one class are read together
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        counts = [Counts() for _ in parts]

        def run(chosen: IndexArray, count: Counts) -> int:
            work(chosen, self._block(queries, chosen, count))
            return len(chosen)

        # Each thread calls BLAS for its own tile; BLAS threads below would only contend.
        with _blas().limit(limits=1):
            for done in _in_threads(run, parts, counts, threads=self.threads):
                if advance is not None:
                    advance(done)
        self.counts.pairs += len(queries.own) * len(self._codes)
        self.counts.survivors += sum(count.survivors for count in counts)
        self.counts.direct += sum(count.direct for count in counts)

    def _block_size(self, total: int, extra: int) -> int:
        """Queries of a block, within the memory budget."""
        each = 8 * COPIES_PER_QUERY * self.points.features.shape[1] + extra
        fixed = 8 * TILE_QUERIES * TILE_POINTS
        room = max(self.memory // self.threads - fixed, 0) // each
        # Each thread should get a few blocks, or the last one would work alone.
        share = max(total // (4 * self.threads), TILE_QUERIES)
        return int(min(max(room, 1), BLOCK_QUERIES, share))

    def _block(self, queries: Queries, chosen: IndexArray, counts: Counts) -> _Block:
        rows = queries.rows(chosen)
        seen = self.sketch.project(rows)
        drift, error = self.sketch.slack(seen.norm, self._radius)
        head = np.column_stack([seen.head, np.ones(len(chosen), np.float32)])
        points = self.points
        reference = (points.features, points.scale, self._rest, self._codes, self.needed)
        return _Block(
            queries.own[chosen],
            head,
            (rows, seen.rest, np.column_stack([seen.square, drift, error])),
            tuple(map(read_only, reference)),
            np.empty(TILE_QUERIES * TILE_POINTS, np.float32),
            np.empty(TILE_QUERIES * TILE_POINTS, np.int32),
            counts,
        )

    def _state(self, size: int) -> _State:
        """No class found yet: its place is one past the last, so that any class beats it."""
        return (
            np.full(size, np.inf),
            np.full(size, len(self.needed), np.int64),
            np.full((size, int(self.needed.max())), np.inf),
            np.full(size, -1, np.int64),
        )

    def _own(self, block: _Block) -> Floats:
        """Squared distances to the nearest points of the own class; infinite without one."""
        state = self._state(len(block.own))
        self._read_classes(block, block.own, state)
        return state[2]

    def _other(self, block: _Block) -> tuple[Floats, IndexArray]:
        """Squared distance to the nearest class but the own one, and that class.

        A near class, guessed by its centre, is read first: its distance then rejects almost
        everything in the pass over all the points.
        """
        state = self._state(len(block.own))
        guess = self._guess(block)
        self._read_classes(block, guess, state)
        skipped = np.column_stack([self._ranges(block.own), self._ranges(guess)])
        for tile in _tiles(np.arange(len(block.own)), 0, len(self._codes)):
            self._read(block, tile, skipped, state)
        found = state[1] < len(self.needed)
        return state[0], np.where(found, state[1], -1)

    def _within(self, block: _Block, chosen: IndexArray, bound: Floats) -> Pairs:
        """Pairs of a block of queries; `chosen` are their numbers."""
        classes = len(self.needed)
        nearest = np.full((len(chosen) * classes, int(self.needed.max())), np.inf)
        unused = np.empty(0, np.int64)
        skipped = np.column_stack([self._ranges(block.own), np.zeros((len(chosen), 2), np.int64)])
        for tile in _tiles(np.arange(len(chosen)), 0, len(self._codes)):
            self._read(block, tile, skipped, (bound, unused, nearest, unused), every_class=True)
        place, rank = np.nonzero(np.isfinite(nearest))
        return Pairs(chosen[place // classes], place % classes, nearest[place, rank])

    def _guess(self, block: _Block) -> IndexArray:
        """Class of nearest centre other than the own one; -1 if there is none."""
        if len(self.needed) == 1:
            return np.where(block.own == 0, -1, 0)
        norms = np.einsum("ij,ij->i", self._centres, self._centres)
        gaps = norms - 2.0 * _multiply(block.head[:, :-1], self._centres)
        known = block.own >= 0
        gaps[np.flatnonzero(known), block.own[known]] = np.inf
        guess: IndexArray = gaps.argmin(axis=1)
        return guess

    def _ranges(self, classes: IndexArray) -> IndexArray:
        """First and last + 1 point of each class; an empty range for -1."""
        starts, stops = self.points.starts[classes], self.points.starts[classes + 1]
        return np.where(classes[:, None] < 0, 0, np.column_stack([starts, stops]))

    def _read_classes(self, block: _Block, classes: IndexArray, state: _State) -> None:
        """Read one class for each query."""
        nothing = np.zeros((len(block.own), 4), np.int64)
        for code in np.unique(classes[classes >= 0]):
            members = np.flatnonzero(classes == code)
            start, stop = self.points.starts[code], self.points.starts[code + 1]
            for tile in _tiles(members, start, stop):
                self._read(block, tile, nothing, state, one_class=True)

    def _read(
        self,
        block: _Block,
        place: tuple[IndexArray, int, int],
        skipped: IndexArray,
        state: _State,
        one_class: bool = False,
        every_class: bool = False,
    ) -> None:
        """Update `state` with one tile: some queries and a range of points.

        The products of the sketches come first, then the scan of what they leave.
        """
        rows, start, stop = place
        points, unit = self._head[start:stop], self.sketch.unit
        products = block.products[: len(rows) * len(points)].reshape(len(rows), len(points))
        tile = (_multiply(block.head[rows], points, products), start, rows)
        if one_class:
            seed(tile, block.queries[0], block.reference, state[0])
        count = collect(tile, block.queries, skipped, state[0], unit, block.found)
        block.counts.survivors += count
        block.counts.direct += examine(
            block.found[:count], tile, block.queries, block.reference, state, unit, every_class
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
