"""The reference points, grouped by class, and what the searches of them return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Floats
from trustsets._blocks import row_numbers

FloatArray = NDArray[np.floating[Any]]
IndexArray = NDArray[np.int64]

# A row of a smaller norm counts as zero: 1 / norm could overflow.
ZERO_NORM = 1e-150
# Rows handled at a time where a float64 copy is needed.
BLOCK_ROWS = 4096


class ClassDistances(NamedTuple):
    """Distances of `n` queries to their own and to the nearest other class.

    They are infinite where there is no such class or it has no points. `other_class` is the
    index of the other class, the first one among equals, and -1 where there is none.
    """

    own_distance: Floats
    other_distance: Floats
    other_class: IndexArray


@dataclass
class Counts:
    """What a search had to look at: all pairs, those its bound left, and full distances."""

    pairs: int = 0
    survivors: int = 0
    direct: int = 0


@dataclass(frozen=True)
class ScaledRows:
    """Raw rows and a factor for each; row `i` stands for `features[i] * scale[i]`.

    Keeping the raw rows beside a float64 factor means that normalising never rounds them: two rows
    that are equal in the input stay at distance 0, and close rows keep all their digits.

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
    """Rows to measure distances from; `own_class` is the class index of each, -1 for none."""

    own_class: IndexArray

    def take(self, index: IndexArray) -> Queries:
        """Some of the queries."""
        return Queries(self.features[index], self.scale[index], self.own_class[index])


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

    def select(self, mask: NDArray[np.bool_]) -> ClassPoints:
        """Only the points where `mask` holds, at least one of every class."""
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


def row_scales(features: FloatArray, normalize: bool) -> Floats:
    """Factor of each row: `1 / norm` in float64, 0 for a zero row, 1 without `normalize`.

    The norm is summed along the row alone, so it does not depend on the rest of the batch.
    """
    if not normalize:
        return np.ones(len(features))
    norms = np.sqrt(row_squares(features))
    return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > ZERO_NORM)
