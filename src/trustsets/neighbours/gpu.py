"""The exact search in torch, for a GPU.

The method and its proof are those of `cpu`: bounds from a product of sketches, thresholds from a
near class, full distances in float64 for the pairs left. Tiles are large, because a GPU is idle
between small ones. Products may run in TF32, whose rounding is part of the slack.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trustsets._progress import Advance
from trustsets.neighbours.sketch import (
    BLOCK_ROWS,
    FAR,
    ClassDistances,
    ClassPoints,
    Costs,
    IndexArray,
    Queries,
    Sketch,
    build_sketch,
    sample_rows,
)

# On a GPU products are nearly free and gathering survivors is not: prefer long heads.
GPU_COSTS = Costs(product=1.0, pair=100.0, refine=40_000.0, direct=200.0)
# TF32 keeps 10 bits of each factor. Neither TF32 nor the float32 accumulator has to round to
# nearest, so each is allowed one unit more.
TF32_UNIT, ACCUMULATOR_UNIT = 2.0**-10, 2.0**-22
ROUND_UP = 2.0**-22
# Points of a class that are compared directly: all of a small class, or a first upper bound.
DIRECT_POINTS = 2048
# Most queries of a block: classes are visited one by one in each of them.
TILE_QUERIES = 65536
# Bytes of a pair in a tile if all survive: product, masks and position.
BYTES_PER_PAIR = 24
# Of the working memory: tiles, float64 rows of the queries, rows gathered for full distances.
TILE_SHARE, QUERY_SHARE, GATHER_SHARE = 0.5, 0.25, 0.25
# Working memory by default: fixed on a CPU; on a GPU a quarter of what is free, at most this.
CPU_MEMORY, GPU_MEMORY = 256 * 2**20, 16 * 2**30


@dataclass(frozen=True)
class TorchPoints:
    """A `ClassPoints` on a device: features (m, d), scale (m,) float64 and starts (K + 1,)."""

    features: Tensor
    scale: Tensor
    starts: IndexArray

    @classmethod
    def of(cls, points: ClassPoints, device: str) -> TorchPoints:
        """Copy points to a device."""
        features = torch.from_numpy(points.features).to(device)
        return cls(features, torch.from_numpy(points.scale).to(device), points.starts)

    @property
    def shape(self) -> tuple[int, int]:
        """Points and dimensions."""
        return self.features.shape[0], self.features.shape[1]

    @property
    def codes(self) -> IndexArray:
        """Class of each point, (m,)."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def take(self, index: Tensor | slice) -> Tensor:
        """Scaled rows in float64, on the device."""
        return self.features[index].double() * self.scale[index, None]


class _Block(NamedTuple):
    """Queries sorted by own class: rows, sketches and the terms of their thresholds."""

    own_class: IndexArray
    rows: Tensor
    coordinates: Tensor
    head: Tensor
    square: Tensor
    drift: Tensor
    error: Tensor


class _Pairs(NamedTuple):
    """Full squared distances of some pairs: query, class and distance."""

    query: Tensor
    code: Tensor
    distance: Tensor


class TorchSearch:
    """As `ExactSearch`, on a torch device where the points may be already.

    `memory` is by default 256 MiB on a CPU, and on a GPU a quarter of what is free, at most 16 GiB.
    """

    def __init__(
        self,
        points: ClassPoints | TorchPoints,
        neighbour: int = 1,
        device: str = "cpu",
        sketch: Sketch | None = None,
        memory: int | None = None,
    ) -> None:
        self.points = TorchPoints.of(points, device) if isinstance(points, ClassPoints) else points
        self.device = self.points.features.device
        if memory is None and self.device.type == "cuda":
            memory = int(min(torch.cuda.mem_get_info(self.device)[0] // 4, GPU_MEMORY))
        self.memory = CPU_MEMORY if memory is None else memory
        if sketch is None:
            chosen = sample_rows(self.points.shape[0])
            rows = self.points.take(torch.from_numpy(chosen)).cpu().numpy()
            sketch = build_sketch(rows, self.points.codes[chosen], GPU_COSTS, neighbour)
        self.sketch = sketch
        self.needed = np.minimum(np.diff(self.points.starts), neighbour)
        self.counts = np.zeros(3, np.int64)
        self._project_points()

    def _project_points(self) -> None:
        self._mean = torch.from_numpy(self.sketch.mean).to(self.device)
        basis = self.sketch.basis
        self._basis = None if basis is None else torch.from_numpy(basis).to(self.device)
        total = self.points.shape[0]
        blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, total, BLOCK_ROWS)]
        projections = [self._project(self.points.take(block)) for block in blocks]
        coordinates, heads, squares, norms = zip(*projections, strict=True)
        self._coordinates, self._head = torch.cat(coordinates), torch.cat(heads)
        self._squares = torch.cat(squares).float()
        self._radius = float(torch.stack([norm.max() for norm in norms]).max())
        if self._radius > FAR:  # an outlier that the choice of the sketch did not see
            self.sketch = self.sketch.widened(self._radius)
            self._project_points()
            return
        self._codes = torch.from_numpy(self.points.codes).to(self.device)
        self._needed = torch.from_numpy(self.needed).to(self.device)
        centres = torch.zeros(len(self.needed), self._head.shape[1], dtype=torch.float64)
        centres = centres.to(self.device).index_add_(0, self._codes, self._head.double())
        sizes = torch.from_numpy(np.diff(self.points.starts)).to(self.device)
        self._centres = (centres / sizes[:, None]).float()
        self._head *= -2.0

    def _project(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `Sketch.project`: coordinates, head, its squared norm and the centred norm."""
        head = self.sketch.head
        centred = (rows - self._mean) * self.sketch.unit
        square = centred.square().sum(dim=1)
        norm = square.sqrt()
        near = norm <= FAR
        centred, square = centred * near[:, None], square * near
        if self._basis is None:
            coordinates, tail = centred, torch.zeros_like(square)
        else:
            coordinates = centred @ self._basis
            tail = (square - coordinates.square().sum(dim=1)).clamp_min(0.0)
        rest = (tail + coordinates[:, head:].square().sum(dim=1)).sqrt()
        leading = torch.cat([coordinates[:, :head], rest[:, None]], dim=1).float()
        full = torch.cat([coordinates, tail.sqrt()[:, None]], dim=1).float()
        return full, leading, leading.double().square().sum(dim=1), norm

    def distances(
        self, queries: Queries, advance: Advance | None = None, *, own_only: bool = False
    ) -> ClassDistances:
        """Distances as those of `ExactSearch`; rows and scales may also be tensors."""
        n = len(queries.own_class)
        result = ClassDistances(np.empty(n), np.full(n, np.inf), np.full(n, -1))
        room = int(QUERY_SHARE * self.memory / (32 * self.points.shape[1]))
        size = min(max(room, 1), TILE_QUERIES)
        order = np.argsort(queries.own_class, kind="stable")  # queries of a class are together
        with _fast_products(self.device):
            for start in range(0, len(order), size):
                chosen = order[start : start + size]
                block = self._block(queries, chosen)
                result.own_distance[chosen] = self._own(block).cpu().numpy()
                if not own_only:
                    other, classes = self._other(block)
                    result.other_distance[chosen] = other.cpu().numpy()
                    result.other_class[chosen] = classes.cpu().numpy()
                if advance is not None:
                    advance(len(chosen))
        return result

    def _block(self, queries: Queries, chosen: IndexArray) -> _Block:
        rows = torch.as_tensor(queries.features[chosen]).to(self.device).double()
        rows *= torch.as_tensor(queries.scale[chosen]).to(self.device)[:, None]
        coordinates, head, square, norm = self._project(rows)
        drift, _ = self.sketch.slack(norm.cpu().numpy(), self._radius)
        span = norm + self._radius
        terms = 1.01 * (self.sketch.head + 8) * ACCUMULATOR_UNIT
        # A product is at most span^2 / 4; both its factors and their double count once each.
        products = 1.01 * TF32_UNIT if self.device.type == "cuda" else 0.0
        error = (terms + products) * (span * 1.00001) ** 2
        drifts = torch.from_numpy(drift).to(self.device)
        own_class = queries.own_class[chosen]
        return _Block(own_class, rows, coordinates, head, square, drifts, error)

    def _own(self, block: _Block) -> Tensor:
        """Distance to the own class; infinite without one."""
        best = self._nearby(block, block.own_class)
        sizes = np.diff(self.points.starts)
        for code in np.unique(block.own_class[block.own_class >= 0]):
            if sizes[code] > DIRECT_POINTS:  # `_nearby` saw a part of it
                first, last = np.searchsorted(block.own_class, [code, code + 1])
                members = slice(int(first), int(last))
                start, stop = int(self.points.starts[code]), int(self.points.starts[code + 1])
                part = _Block._make(array[members] for array in block)
                best[members], _ = self._read(part, best[members], start, stop, [])
        return best.sqrt()

    def _other(self, block: _Block) -> tuple[Tensor, Tensor]:
        """Distance to the nearest class but the own one, and that class."""
        if len(self.needed) == 1:
            guess = np.where(block.own_class == 0, -1, 0)
        else:
            gaps = self._centres.square().sum(dim=1) - 2.0 * (block.head @ self._centres.T)
            rows = np.flatnonzero(block.own_class >= 0)
            gaps[torch.from_numpy(rows), torch.from_numpy(block.own_class[rows])] = torch.inf
            guess = gaps.argmin(dim=1).cpu().numpy()
        best = self._nearby(block, guess)
        none = torch.from_numpy(guess < 0).to(self.device)
        # Without another class everything is masked: a finite bound keeps the tiles empty.
        bound = torch.where(none, 0.0, best)
        # Pairs of one class are left out: first and last query, first and last point.
        codes, firsts = np.unique(block.own_class, return_index=True)
        lasts = np.append(firsts[1:], len(block.own_class))
        starts = self.points.starts
        ranges = np.column_stack([firsts, lasts, starts[codes], starts[codes + 1]])[codes >= 0]
        best, code = self._read(block, bound, 0, self.points.shape[0], ranges.tolist())
        best = torch.where(none, torch.inf, best)
        return best.sqrt(), torch.where(none, -1, code)

    def _nearby(self, block: _Block, classes: IndexArray) -> Tensor:
        """Squared distance to a class, among at most `DIRECT_POINTS` of it; infinite for -1."""
        best = torch.full((len(classes),), torch.inf, dtype=torch.float64, device=self.device)
        order = np.argsort(classes, kind="stable")
        codes, firsts = np.unique(classes[order], return_index=True)
        for code, rows in zip(codes, np.split(order, firsts[1:]), strict=True):
            if code < 0:
                continue
            start = int(self.points.starts[code])
            stop = min(int(self.points.starts[code + 1]), start + DIRECT_POINTS)
            chosen = torch.from_numpy(rows).to(self.device)
            gaps = torch.cdist(
                block.rows[chosen],
                self.points.take(slice(start, stop)),
                compute_mode="donot_use_mm_for_euclid_dist",
            )
            wanted = int(self.needed[code])
            best[chosen] = gaps.topk(wanted, dim=1, largest=False).values[:, -1].square()
        return best

    def _read(
        self,
        block: _Block,
        bound: Tensor,
        start: int,
        stop: int,
        masked: list[list[int]],
    ) -> tuple[Tensor, Tensor]:
        """Best squared distance and class within a range of points, given an upper bound."""
        width = max(int(TILE_SHARE * self.memory / BYTES_PER_PAIR) // len(block.rows), 1)
        none = torch.empty(0, dtype=torch.int64, device=self.device)
        pairs = _Pairs(none, none, none.double())
        counts = np.array([len(block.rows) * (stop - start), 0, 0])
        for first in range(start, stop, width):
            last = min(first + width, stop)
            survivors = self._survivors(block, bound, first, last, masked)
            measured = self._measure(block, bound, survivors)
            counts[1:] += len(survivors), len(measured.query)
            pairs = self._reduce(_Pairs(*map(torch.cat, zip(pairs, measured, strict=True))))
        self.counts = self.counts + counts
        return self._best(pairs, len(block.rows))

    def _survivors(
        self,
        block: _Block,
        bound: Tensor,
        first: int,
        last: int,
        masked: list[list[int]],
    ) -> Tensor:
        """Pairs (query, point) that the bound leaves, (c, 2)."""
        reach = bound.sqrt() * self.sketch.unit + block.drift
        limit = reach.square() + block.error - block.square
        limit = (limit + limit.abs() * ROUND_UP).float()
        products = torch.addmm(self._squares[first:last], block.head, self._head[first:last].T)
        within = products <= limit[:, None]
        for top, bottom, left, right in masked:
            if left < last and right > first:
                within[top:bottom, max(left - first, 0) : right - first] = False
        survivors = within.nonzero()
        survivors[:, 1] += first
        return survivors

    def _measure(self, block: _Block, bound: Tensor, survivors: Tensor) -> _Pairs:
        """Full distances of the pairs that a second, finer bound leaves."""
        width = self._coordinates.shape[1]
        reach = bound.sqrt() * self.sketch.unit + block.drift
        cap = (reach.square() * (1.0 + 2.0 * (width + 8) * ACCUMULATOR_UNIT)).float()
        room = max(int(GATHER_SHARE * self.memory / (12 * width)), 1)
        parts = []
        for query, point in (part.unbind(1) for part in torch.split(survivors, room)):
            gaps = (block.coordinates[query] - self._coordinates[point]).square().sum(dim=1)
            near = gaps <= cap[query]
            parts.append(torch.stack([query[near], point[near]], dim=1))
        left = torch.cat(parts) if parts else survivors
        room = max(int(GATHER_SHARE * self.memory / (32 * self.points.shape[1])), 1)
        distances = [
            (block.rows[query] - self.points.take(point)).square().sum(dim=1)
            for query, point in (part.unbind(1) for part in torch.split(left, room))
        ]
        distance = torch.cat(distances) if distances else bound[:0]
        return _Pairs(left[:, 0], self._codes[left[:, 1]], distance)

    def _reduce(self, pairs: _Pairs) -> _Pairs:
        """Keep, of each query and class, the nearest points that the class needs, in order."""
        order = pairs.distance.argsort(stable=True)
        key = pairs.query * len(self.needed) + pairs.code
        order = order[key[order].argsort(stable=True)]
        rank = self._ranks(key[order])
        order = order[rank < self._needed[pairs.code[order]]]
        return _Pairs(pairs.query[order], pairs.code[order], pairs.distance[order])

    def _ranks(self, key: Tensor) -> Tensor:
        """Position of each entry among those of equal `key`, a sorted vector."""
        positions = torch.arange(len(key), device=self.device)
        first = torch.ones(len(key), dtype=torch.bool, device=self.device)
        first[1:] = key[1:] != key[:-1]
        if not len(key):
            return positions
        return positions - torch.where(first, positions, 0).cummax(dim=0).values

    def _best(self, pairs: _Pairs, size: int) -> tuple[Tensor, Tensor]:
        """Least distance to a class per query, and that class; of equals the first."""
        rank = self._ranks(pairs.query * len(self.needed) + pairs.code)
        last = rank == self._needed[pairs.code] - 1
        query, code, distance = pairs.query[last], pairs.code[last], pairs.distance[last]
        best = torch.full((size,), torch.inf, dtype=torch.float64, device=self.device)
        best.scatter_reduce_(0, query, distance, "amin")
        tied = distance == best[query]
        best_code = torch.full((size,), len(self.needed), device=self.device)
        best_code.scatter_reduce_(0, query[tied], code[tied], "amin")
        return best, best_code


@contextmanager
def _fast_products(device: torch.device) -> Iterator[None]:
    """Allow TF32 for the bounds; full distances never go through a product."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
