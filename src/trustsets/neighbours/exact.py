"""Exact search on the CPU: blocked products of sketches, then the few full distances left.

Imports `points`, `sketch` and, through `kernels`, numba. One thread handles one block of queries;
its tile of products is small enough to stay in cache, where the compiled scan reads it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from trustsets._common.blocks import available_cores
from trustsets.neighbours.kernels import collect, examine, gather, seed
from trustsets.neighbours.points import (
    BLOCK_ROWS,
    ClassDistances,
    ClassPoints,
    FloatArray,
    IndexArray,
    NearestSquares,
    Pairs,
)
from trustsets.neighbours.sketch import FAR, Sketch, build_sketch

__all__ = ["WORKING_MEMORY", "ExactSearch"]

# Bytes a search may use beyond the points, their sketches and its results, whatever n is.
WORKING_MEMORY = 256 * 2**20
# Queries and points of one tile. Measured: smaller tiles fit the second-level cache better, but
# their calls cost more than that saves.
TILE_QUERIES, TILE_POINTS = 1024, 512
# Queries a thread takes at a time: many, so that those which share a class are read together.
BLOCK_QUERIES = 2048
# float64 row, its centred copy, the gathered input, coordinates and sketches.
COPIES_PER_QUERY = 5


# Best squared distance, its class, nearest distances in the class being read, and that class.
_State = tuple[NDArray[np.float64], IndexArray, NDArray[np.float64], IndexArray]


@dataclass
class Counts:
    """What a search had to look at: all pairs, those its bound left, and full distances."""

    pairs: int = 0
    survivors: int = 0
    direct: int = 0

    def add(self, pairs: int, counts: IndexArray) -> None:
        """Add one block."""
        self.pairs += pairs
        self.survivors += int(counts[0])
        self.direct += int(counts[1])


@dataclass
class _Block:
    """Queries that one thread works on."""

    own: IndexArray
    head: NDArray[np.float32]
    queries: tuple[NDArray[np.float64], NDArray[np.float32], NDArray[np.float64]]
    products: NDArray[np.float32]
    found: NDArray[np.int32]
    counts: IndexArray = field(default_factory=lambda: np.zeros(2, np.int64))


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
        self._reference = (
            self.points.features, self.points.scale, self._rest, self._codes, self.needed
        )  # fmt: skip
        # The sketch of a class: the mean of its sketches, good enough to guess a near class.
        sums = np.add.reduceat(self._head[:, :-1].astype(np.float64), self.points.starts[:-1])
        self._centres = (sums / (-2.0 * self.points.sizes[:, None])).astype(np.float32)

    def distances(
        self,
        features: FloatArray,
        scale: NDArray[np.float64],
        own: IndexArray,
        advance: Callable[[int], None] | None = None,
    ) -> ClassDistances:
        """Distances of the rows `features * scale[:, None]`.

        Parameters
        ----------
        features : (n, d) float array
        scale : (n,) float64
        own : (n,) int64
            Position of each query's own class, -1 for none.
        advance : callable, optional
            Told the number of queries done, for a progress bar.
        """
        total = len(features)
        result = ClassDistances(np.empty(total), np.empty(total), np.empty(total, np.int64))

        def work(chosen: IndexArray) -> int:
            block = self._block(features, scale, own, chosen)
            result.own[chosen] = np.sqrt(self._own(block)[0])
            squares, result.other_class[chosen] = self._other(block)
            result.other[chosen] = np.sqrt(squares)
            self.counts.add(len(chosen) * len(self._codes), block.counts)
            return len(chosen)

        self._run(work, self._blocks(own), advance)
        return result

    def nearest_squares(
        self, features: FloatArray, scale: NDArray[np.float64], own: IndexArray
    ) -> NearestSquares:
        """What a merge with the results of other points needs; arguments as in `distances`."""
        total, width = len(features), int(self.needed.max())
        result = NearestSquares(
            np.empty((total, width)), np.empty(total), np.empty(total, np.int64)
        )

        def work(chosen: IndexArray) -> int:
            block = self._block(features, scale, own, chosen)
            result.own[chosen] = self._own(block)[1]
            result.other[chosen], result.other_class[chosen] = self._other(block)
            return len(chosen)

        self._run(work, self._blocks(own), None)
        return result

    def within(
        self,
        features: FloatArray,
        scale: NDArray[np.float64],
        own: IndexArray,
        bound: NDArray[np.float64],
    ) -> Pairs:
        """Points of other classes at squared distance up to `bound`: of each class the nearest.

        No more of a class than it needs, in no particular order.
        """
        lists = len(self.needed) * int(self.needed.max())
        parts: list[Pairs] = []

        def work(chosen: IndexArray) -> int:
            block = self._block(features, scale, own, chosen)
            parts.append(self._within(block, chosen, bound[chosen]))
            return len(chosen)

        self._run(work, self._blocks(own, 8 * lists), None)
        return Pairs(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def own_distances(
        self, features: FloatArray, scale: NDArray[np.float64], own: IndexArray
    ) -> NDArray[np.float64]:
        """Distance to the own class alone."""
        result = np.empty(len(features))

        def work(chosen: IndexArray) -> int:
            squares, _ = self._own(self._block(features, scale, own, chosen))
            result[chosen] = np.sqrt(squares)
            return len(chosen)

        self._run(work, self._blocks(own), None)
        return result

    def _run(
        self,
        work: Callable[[IndexArray], int],
        blocks: Iterator[IndexArray],
        advance: Callable[[int], None] | None,
    ) -> None:
        # Each thread calls BLAS for its own tile; BLAS threads below would only contend.
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(self.threads) as pool:
            for done in pool.map(work, blocks):
                if advance is not None:
                    advance(done)

    def _blocks(self, own: IndexArray, extra: int = 0) -> Iterator[IndexArray]:
        """Yield queries in blocks of similar own class, within the memory budget.

        `extra` are the bytes that a query needs besides its copies.
        """
        each = 8 * COPIES_PER_QUERY * self.points.features.shape[1] + extra
        fixed = 8 * TILE_QUERIES * TILE_POINTS
        room = max(self.memory // self.threads - fixed, 0) // each
        # Each thread should get a few blocks, or the last one would work alone.
        share = max(len(own) // (4 * self.threads), TILE_QUERIES)
        size = int(min(max(room, 1), BLOCK_QUERIES, share))
        order = np.argsort(own, kind="stable")
        for start in range(0, len(order), size):
            yield order[start : start + size]

    def _block(
        self, features: FloatArray, scale: NDArray[np.float64], own: IndexArray, chosen: IndexArray
    ) -> _Block:
        rows = features[chosen].astype(np.float64)
        rows *= scale[chosen, None]
        seen = self.sketch.project(rows)
        drift, error = self.sketch.slack(seen.norm, self._radius)
        head = np.column_stack([seen.head, np.ones(len(chosen), np.float32)])
        return _Block(
            own[chosen],
            head,
            (rows, seen.rest, np.column_stack([seen.square, drift, error])),
            np.empty(TILE_QUERIES * TILE_POINTS, np.float32),
            np.empty(TILE_QUERIES * TILE_POINTS, np.int32),
        )

    def _state(self, size: int) -> _State:
        """No class found yet: its place is one past the last, so that any class beats it."""
        return (
            np.full(size, np.inf),
            np.full(size, len(self.needed), np.int64),
            np.full((size, int(self.needed.max())), np.inf),
            np.full(size, -1, np.int64),
        )

    def _own(self, block: _Block) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Squared distances to the own class and to its nearest points; infinite without one."""
        state = self._state(len(block.own))
        self._read_classes(block, block.own, state)
        return state[0], state[2]

    def _other(self, block: _Block) -> tuple[NDArray[np.float64], IndexArray]:
        """Squared distance to the nearest class but the own one, and that class.

        A near class, guessed by its centre, is read first: its distance then rejects almost
        everything in the pass over all the points.
        """
        size = len(block.own)
        state = self._state(size)
        guess = self._guess(block)
        self._read_classes(block, guess, state)
        skipped = np.column_stack([self._ranges(block.own), self._ranges(guess)])
        everyone = np.arange(size)
        for first in range(0, size, TILE_QUERIES):
            rows = everyone[first : first + TILE_QUERIES]
            for start in range(0, len(self._codes), TILE_POINTS):
                self._read(block, rows, start, start + TILE_POINTS, skipped, state, False)
        found = state[1] < len(self.needed)
        return state[0], np.where(found, state[1], -1)

    def _within(self, block: _Block, chosen: IndexArray, bound: NDArray[np.float64]) -> Pairs:
        """Pairs of a block of queries; `chosen` are their numbers."""
        classes = len(self.needed)
        nearest = np.full((len(chosen) * classes, int(self.needed.max())), np.inf)
        skipped = np.column_stack([self._ranges(block.own), np.zeros((len(chosen), 2), np.int64)])
        everyone, unit = np.arange(len(chosen)), self.sketch.unit
        full, sketches, allowance = block.queries
        for first in range(0, len(chosen), TILE_QUERIES):
            rows = everyone[first : first + TILE_QUERIES]
            for start in range(0, len(self._codes), TILE_POINTS):
                products = self._products(block, rows, start, start + TILE_POINTS)
                count = collect(products, start, rows, skipped, allowance, bound, unit, block.found)
                gather(
                    block.found[:count], products, start, rows, full, sketches, allowance,
                    self._reference, bound, nearest, unit,
                )  # fmt: skip
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
            for top in range(0, len(members), TILE_QUERIES):
                rows = members[top : top + TILE_QUERIES]
                for first in range(start, stop, TILE_POINTS):
                    last = min(first + TILE_POINTS, stop)
                    self._read(block, rows, first, last, nothing, state, True)

    def _products(
        self, block: _Block, rows: IndexArray, start: int, stop: int
    ) -> NDArray[np.float32]:
        """Products of some queries with a range of points, in the block's own space."""
        points = self._head[start:stop]
        products = block.products[: len(rows) * len(points)].reshape(len(rows), len(points))
        return _multiply(block.head[rows], points, products)

    def _read(
        self,
        block: _Block,
        rows: IndexArray,
        start: int,
        stop: int,
        skipped: IndexArray,
        state: _State,
        one_class: bool,
    ) -> None:
        """One tile: the products of some queries with a range of points, then the scan."""
        products = self._products(block, rows, start, stop)
        full, sketches, allowance = block.queries
        if one_class:
            seed(products, start, rows, full, self._reference, state[0])
        unit = self.sketch.unit
        count = collect(products, start, rows, skipped, allowance, state[0], unit, block.found)
        block.counts[0] += count
        block.counts[1] += examine(
            block.found[:count], products, start, rows, full, sketches, allowance,
            self._reference, state, unit,
        )  # fmt: skip


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
