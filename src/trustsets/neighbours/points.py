"""The reference points, grouped by class, and what the searches of them return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets._common.blocks import for_each_block, row_numbers

FloatArray = NDArray[np.floating[Any]]
IndexArray = NDArray[np.int64]

# A row of a smaller norm counts as zero: 1 / norm could overflow.
ZERO_NORM = 1e-150
# Rows handled at a time where a float64 copy is needed.
BLOCK_ROWS = 4096


class ClassDistances(NamedTuple):
    """Distances of `n` queries to their own and to the nearest other class.

    They are infinite where there is no such class or it has no points. `other_class` is the
    place of the other class, the first one among equals, and -1 where there is none.
    """

    own: Floats
    other: Floats
    other_class: IndexArray


class NearestSquares(NamedTuple):
    """Squared distances of `n` queries to some of the points, to be merged with those to others.

    `own` (n, k) are the nearest points of the query's own class in increasing order, infinite past
    the last. `other` is the distance to the nearest other class that has the points it needs here,
    and else infinite; `other_class` is as in `ClassDistances`.
    """

    own: Floats
    other: Floats
    other_class: IndexArray

    def distances(self, own: IndexArray, needed: IndexArray) -> ClassDistances:
        """Distances of queries of the classes `own`, where no other points are to be merged.

        Class `c` is as far as its `needed[c]`-th nearest point.
        """
        known = np.flatnonzero(own >= 0)
        squares = np.full(len(own), np.inf)
        squares[known] = self.own[known, needed[own[known]] - 1]
        return ClassDistances(np.sqrt(squares), np.sqrt(self.other), self.other_class)


class Pairs(NamedTuple):
    """Squared distances from queries to points: number of the query, class of the point."""

    query: IndexArray
    code: IndexArray
    square: Floats


@dataclass(frozen=True)
class ScaledRows:
    """Rows kept as they came; row `i` stands for `features[i] * scale[i]`.

    Keeping the raw rows beside a float64 factor means that normalising never rounds them: two rows
    that are equal as given stay at distance 0, and close rows keep all the digits they came with.

    Attributes
    ----------
    features : (m, d) float32 or float64, or float16 for the torch search
    scale : (m,) float64
        `1 / norm` under normalisation (0 for a zero row), otherwise 1.
    """

    features: FloatArray
    scale: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and dimensions."""
        return self.features.shape[0], self.features.shape[1]

    def rows(self, index: IndexArray | slice) -> Floats:
        """Scaled rows in float64."""
        taken = self.features[index].astype(np.float64)
        taken *= self.scale[index, None]
        return taken


@dataclass(frozen=True)
class Queries(ScaledRows):
    """Rows whose classes are looked for; `own` is the place of each one's class, -1 for none."""

    own: IndexArray

    def take(self, index: IndexArray) -> Queries:
        """Some of the queries."""
        return Queries(self.features[index], self.scale[index], self.own[index])


@dataclass(frozen=True)
class ClassPoints(ScaledRows):
    """Points sorted by class; class `c` is the rows `starts[c]:starts[c + 1]`."""

    starts: IndexArray

    @property
    def sizes(self) -> IndexArray:
        """Points of each class, (K,)."""
        return np.diff(self.starts)

    @property
    def codes(self) -> IndexArray:
        """Class of each point, (m,)."""
        return np.repeat(np.arange(len(self.starts) - 1), self.sizes)

    def keep(self, mask: NDArray[np.bool_]) -> ClassPoints:
        """Only the points where `mask` holds; every class must keep one."""
        sizes = np.add.reduceat(mask.astype(np.int64), self.starts[:-1])
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return ClassPoints(self.features[mask], self.scale[mask], starts)


def row_squares(features: FloatArray) -> Floats:
    """Squared norm of each row, not finite where a number is not or its square is too large."""

    def square(rows: slice) -> Floats:
        wide = features[rows].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            squares: Floats = np.einsum("ij,ij->i", wide, wide)
        return squares

    return row_numbers(square, *features.shape)


def take_rows(features: FloatArray, order: IndexArray) -> FloatArray:
    """``features[order]``, copied by all cores."""
    taken = np.empty_like(features, order="C")

    def copy(rows: slice) -> None:
        taken[rows] = features[order[rows]]

    for_each_block(copy, *features.shape)
    return taken


def row_scales(features: FloatArray, normalize: bool) -> Floats:
    """Factor of each row: `1 / norm` in float64, 0 for a zero row, 1 without `normalize`.

    The norm is summed along the row alone, so it does not depend on the rest of the batch.
    """
    if not normalize:
        return np.ones(len(features))
    norms = np.sqrt(row_squares(features))
    return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > ZERO_NORM)


def sort_by_class(codes: IndexArray, n_classes: int) -> tuple[IndexArray, IndexArray]:
    """Order that puts points class by class, and where each class then starts."""
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(n_classes + 1)).astype(np.int64)
    return order, starts


def search_points(
    stored: FloatArray, starts: IndexArray, normalize: bool, widen: bool = True
) -> ClassPoints:
    """Points ready to search; `widen` makes float32 of float16, as the CPU's kernels need."""
    half = stored.dtype == np.float16
    wide = stored.astype(np.float32) if half and widen else stored
    return ClassPoints(wide, row_scales(wide, normalize), starts)


def spread(total: float, count: int) -> float:
    """Root mean square distance from the mean, or 1 where all points are equal.

    `total` is the sum of the squared distances. Six digits are kept: the others depend on the
    order of the sum, and the score should not depend on the order of the training points.
    """
    return float(f"{np.sqrt(total / count):.6g}") or 1.0


def squares_about(features: FloatArray, mean: Floats) -> float:
    """Sum of the squared distances of the rows from `mean`, in blocks."""
    total = 0.0
    for start in range(0, len(features), BLOCK_ROWS):
        centred = features[start : start + BLOCK_ROWS] - mean
        total += float(np.einsum("ij,ij->", centred, centred))
    return total
