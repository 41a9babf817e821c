"""Approximate search: fewer directions (`pca`), or fewer points looked at (`ivf`, with FAISS)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets._common.progress import Advance
from trustsets.neighbours.exact import ExactSearch
from trustsets.neighbours.points import (
    BLOCK_ROWS,
    ClassDistances,
    ClassPoints,
    IndexArray,
    Queries,
    ScaledRows,
)
from trustsets.neighbours.search import Search
from trustsets.neighbours.sketch import PCA_ROWS, principal_directions

# Training points whose nearest other class is also searched exactly, to measure the recall.
RECALL_SAMPLE = 1000
# Training rows that FAISS wants for each cluster.
ROWS_PER_CLUSTER = 39
# Nearest points asked of FAISS per query and per neighbour: other classes need a few to compare.
CANDIDATES = 8


def principal_reduction(points: ClassPoints, components: int) -> tuple[Floats, Floats]:
    """Mean (d,) and leading principal directions (d, components) of the points."""
    rng = np.random.default_rng(0)
    total, dimension = points.shape
    sample = points.rows(np.sort(rng.choice(total, min(total, PCA_ROWS), replace=False)))
    mean = sample.mean(axis=0)
    return mean, principal_directions(
        (sample - mean).astype(np.float32), min(components, dimension), rng
    )


def reduce_rows(given: ScaledRows, mean: Floats, directions: Floats) -> NDArray[np.float32]:
    """Coordinates of the scaled rows along the directions, (n, components)."""
    reduced = np.empty((given.shape[0], directions.shape[1]), np.float32)
    for start in range(0, given.shape[0], BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        reduced[block] = (given.rows(block) - mean) @ directions
    return reduced


def measured_recall(
    exact: tuple[Search, ClassPoints], approximate: tuple[Search, ClassPoints]
) -> float:
    """Share of sampled points whose nearest other class both searches agree on.

    Each search comes with its own form of the same points.
    """
    rng = np.random.default_rng(0)
    total = exact[1].shape[0]
    asked = rng.choice(total, min(RECALL_SAMPLE, total), replace=False)
    own = exact[1].codes[asked]
    truth, found = (
        search.distances(Queries(points.features[asked], points.scale[asked], own)).other_class
        for search, points in (exact, approximate)
    )
    return float(np.mean(truth == found))


class ClusterSearch:
    """Own class exactly, other classes among the points of the nearest clusters (FAISS IVF).

    `probes` clusters are visited per query; all of them make the search exact but for ties. The
    other parameters are those of `ExactSearch`.
    """

    def __init__(
        self, points: ClassPoints, neighbour: int = 1, probes: int = 16, memory: int | None = None
    ) -> None:
        import faiss

        self.points = points
        self.neighbour = neighbour
        self.exact = ExactSearch(points, neighbour, memory=memory)
        total, dimension = points.shape
        clusters = int(max(1, min(4 * np.sqrt(total), total // ROWS_PER_CLUSTER)))
        self.probes = min(probes, clusters)
        quantizer = faiss.IndexFlatL2(dimension)
        self._index = faiss.IndexIVFFlat(quantizer, dimension, clusters)
        self._index.cp.seed = 1
        self._index.train(self._rows(slice(0, None, max(1, total // (256 * clusters)))))
        for start in range(0, total, BLOCK_ROWS):
            self._index.add(self._rows(slice(start, start + BLOCK_ROWS)))

    def _rows(self, some: slice) -> NDArray[np.float32]:
        return self.points.rows(some).astype(np.float32)

    def distances(self, queries: Queries, advance: Advance | None = None) -> ClassDistances:
        """Distances as `ExactSearch.distances`, those to other classes perhaps too large.

        Each class among the points that FAISS finds is measured exactly; the nearest one counts.
        """
        total = len(queries.own)
        own_distance = self.own_distances(queries)
        classes = self._candidates(queries)
        best, named = np.full(total, np.inf), np.full(total, -1, np.int64)
        for column in classes.T:
            # A class already named cannot get nearer.
            fresh = np.flatnonzero((column >= 0) & (column != named))
            if len(fresh) == 0:
                continue
            asked = replace(queries.take(fresh), own=column[fresh])
            distance = self.own_distances(asked)
            closer = distance < best[fresh]
            best[fresh[closer]], named[fresh[closer]] = distance[closer], column[fresh[closer]]
        if advance is not None:
            advance(total)
        return ClassDistances(own_distance, best, named)

    def own_distances(self, queries: Queries) -> Floats:
        """Distance to the own class, exactly."""
        return self.exact.own_distances(queries)

    def _candidates(self, queries: Queries) -> IndexArray:
        """Classes of the nearest points of other classes, in order; -1 past the last one found."""
        import faiss

        # One point names the nearest class, but the second neighbour may be nearer in another.
        asked = 1 if self.neighbour == 1 else CANDIDATES * self.neighbour
        classes = np.full((len(queries.own), asked), -1, np.int64)
        order = np.argsort(queries.own, kind="stable")
        codes, firsts = np.unique(queries.own[order], return_index=True)
        for code, chosen in zip(codes, np.split(order, firsts[1:]), strict=True):
            start, stop = (self.points.starts[code : code + 2]) if code >= 0 else (0, 0)
            parameters = faiss.SearchParametersIVF()
            others = faiss.IDSelectorNot(faiss.IDSelectorRange(int(start), int(stop)))
            parameters.nprobe, parameters.sel = self.probes, others
            for first in range(0, len(chosen), BLOCK_ROWS):
                some = chosen[first : first + BLOCK_ROWS]
                rows = queries.rows(some).astype(np.float32)
                found = self._index.search(rows, asked, params=parameters)[1]
                place = np.searchsorted(self.points.starts, found, side="right") - 1
                classes[some] = np.where(found < 0, -1, place)
        return classes
