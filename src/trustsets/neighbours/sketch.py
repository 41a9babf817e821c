"""Points grouped by class, and their sketches: lower bounds of distances by projection.

The CPU search and the torch search share these bounds and their proof.

For an orthonormal basis whose first `k` columns are kept, write a centred row as its `k` leading
coordinates `z` and the norm `t` of the rest. By the triangle inequality in the complement,

    |q - x|^2  >=  |z_q - z_x|^2 + (t_q - t_x)^2

so the distance of the (k+1)-vectors `(z, t)` never exceeds the true one. It is computed in float32
as `a_q + b_x - 2 <(z, t)_q, (z, t)_x>`; `Sketch.slack` bounds the rounding error of that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Floats

FloatArray = NDArray[np.floating[Any]]
IndexArray = NDArray[np.int64]

# Rows handled at a time where a float64 copy is needed.
BLOCK_ROWS = 4096
# Most principal directions ever computed: beyond this a projection is no cheaper than the search.
MAX_DIRECTIONS = 254
# Up to this dimension the covariance is decomposed whole; above, by subspace iteration.
EIGH_LIMIT = 512
SUBSPACE_STEPS = 2
PCA_ROWS = 8192
# Rows of that sample that play queries to estimate how many points survive.
PROBE_QUERIES = 64
# Heads tried; two more columns (tail norm and offset) complete a multiple of eight.
HEADS = (14, 22, 30, 38, 46, 62, 94, 126, 190, 254)
# Directions a second, direct bound uses before the full distance is computed.
REFINE = 126
UNIT32, UNIT64 = 2.0**-24, 2.0**-53
# Centred norm, in units of the sketch, beyond which a row is not sketched: squares of such numbers
# could overflow in float32, and a bound this coarse rejects nothing anyway.
FAR = 2.0**40


class ClassDistances(NamedTuple):
    """Distances of `n` queries to their own and to the nearest other class.

    They are infinite where there is no such class or it has no points. `other_class` is the
    index of the other class, the first one among equals, and -1 where there is none.
    """

    own_distance: Floats
    other_distance: Floats
    other_class: IndexArray


@dataclass(frozen=True)
class ScaledRows:
    """Raw rows (m, d) and a factor for each; row `i` stands for `features[i] * scale[i]`.

    The factor is `1 / norm` under normalisation (0 for a zero row), otherwise 1. Beside raw rows it
    never rounds them: equal rows stay at distance 0, and close rows keep all their digits.
    """

    features: FloatArray
    scale: Floats

    def rows(self, index: IndexArray | slice) -> Floats:
        """Scaled rows in float64."""
        taken = self.features[index].astype(np.float64)
        taken *= self.scale[index, None]
        return taken


@dataclass(frozen=True)
class Queries(ScaledRows):
    """Rows to measure distances from; `own_class` is the class index of each, -1 for none."""

    own_class: IndexArray


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


@dataclass(frozen=True)
class Costs:
    """Relative times of one multiply-add, one bound, one second bound, one full coordinate."""

    product: float
    pair: float
    refine: float
    direct: float


# Measured: 0.033 ns a multiply-add, 0.4 ns a pair, 60 ns a second bound, 0.5 ns a coordinate.
CPU_COSTS = Costs(product=1.0, pair=13.0, refine=1800.0, direct=15.0)


class Projection(NamedTuple):
    """Coordinates of `b` rows in a sketch, in units of `1 / sketch.unit`.

    `head` (b, k + 2) float32 has the first `k` coordinates, the norm of the rest beyond those, and
    a 1. `rest` (b, r - k + 2) float32 has what turns the bound of the head into that of all
    directions: the other coordinates, the norm of what is beyond all `r` directions, and the norm
    that is in `head`. `square` is the squared norm of `head` as rounded, without the 1; `norm` that
    of the centred row. Where it exceeds `FAR` the other entries are zero.
    """

    head: NDArray[np.float32]
    rest: NDArray[np.float32]
    square: Floats
    norm: Floats


@dataclass(frozen=True)
class Sketch:
    """A centre, principal directions and the number of them that the bound uses.

    Attributes
    ----------
    mean : (d,) float64
    basis : (d, r) float64 with orthonormal columns, or None: the coordinates themselves.
    head : int
        `k`; equal to `d` where pruning does not save time and the bound is the plain distance.
    unit : float
        A power of two that brings centred points near 1, so that float32 does not overflow.
    """

    mean: Floats
    basis: Floats | None
    head: int
    unit: float

    @cached_property
    def directions(self) -> int:
        """Coordinates kept, `r`."""
        return len(self.mean) if self.basis is None else int(self.basis.shape[1])

    def slack(self, norm: Floats, radius: float) -> tuple[Floats, Floats]:
        """Return rounding allowances `(e, E)` of queries of centred norm `norm`.

        `radius` is the largest centred norm of a point; both are as `Projection` gives them.

        `e` covers the rounding of the coordinates to float32 (2^-24 each, so at most that share of
        the norm) and the tail norm, a square root of a difference of squares each known to
        `(2 sqrt(r) + 4) (d + 16) 2^-53`. `E` covers the float32 product of `k + 2` terms in any
        order of summation. Hence a point at distance D has

            computed bound^2  <=  (D + e)^2 + E.

        A query that is too far away for a sketch has `e` infinite: nothing is rejected.
        """
        # Enlarged a little so that the rounding of the norms themselves does not matter.
        span = (norm + radius) * (1.0 + 1e-9)
        growth = (2.0 * np.sqrt(self.directions) + 4.0) * (len(self.mean) + 16)
        rounding = 4.0 * UNIT32 + np.sqrt(growth * UNIT64)
        drift = np.where(norm > FAR, np.inf, rounding * span)
        return drift, 1.01 * (self.head + 8) * UNIT32 * (span + rounding * span) ** 2

    def widened(self, radius: float) -> Sketch:
        """The same directions, in units that bring points of centred norm `radius` near 1."""
        return replace(self, unit=self.unit * float(2.0 ** -np.round(np.log2(radius))))

    def project(self, rows: Floats) -> Projection:
        """Project scaled float64 rows (b, d)."""
        centred = rows - self.mean
        centred *= self.unit
        square = np.einsum("ij,ij->i", centred, centred)
        norm = np.sqrt(square)
        far = norm > FAR
        if far.any():
            centred[far], square[far] = 0.0, 0.0
        if self.basis is None:
            coordinates, tail = centred, np.zeros(len(rows))
        else:
            coordinates = centred @ self.basis
            tail = np.maximum(square - np.einsum("ij,ij->i", coordinates, coordinates), 0.0)
        k, later = self.head, coordinates[:, self.head :]
        head = np.empty((len(rows), k + 2), np.float32)
        rest = np.empty((len(rows), later.shape[1] + 2), np.float32)
        head[:, :k], rest[:, :-2], rest[:, -2] = coordinates[:, :k], later, np.sqrt(tail)
        head[:, k] = rest[:, -1] = np.sqrt(tail + np.einsum("ij,ij->i", later, later))
        head[:, k + 1] = 1.0
        wide = head[:, :-1].astype(np.float64)
        return Projection(head, rest, np.einsum("ij,ij->i", wide, wide), norm)


def sample_rows(total: int) -> IndexArray:
    """Numbers of the rows that a sketch is chosen from."""
    chosen = np.random.default_rng(0).choice(total, min(PCA_ROWS, total), replace=False)
    return np.sort(chosen).astype(np.int64)


def build_sketch(
    rows: Floats, codes: IndexArray, costs: Costs = CPU_COSTS, neighbour: int = 1
) -> Sketch:
    """Choose centre, directions and head by the estimated cost of a search, from sampled points.

    The choice is deterministic and touches speed alone: any head gives the same distances.
    """
    dimension = rows.shape[1]
    mean = rows.mean(axis=0)
    centred = rows - mean
    largest = float(np.abs(centred).max())
    unit = 1.0 if largest == 0.0 else float(2.0 ** -np.round(np.log2(largest)))
    narrow = (centred * unit).astype(np.float32)
    basis = _principal_directions(narrow, min(dimension, MAX_DIRECTIONS))
    head = _choose_head(narrow, codes, basis, costs, neighbour)
    if head >= dimension:
        return Sketch(mean, None, dimension, unit)
    leading = np.ascontiguousarray(basis[:, : max(head, min(REFINE, basis.shape[1]))])
    return Sketch(mean, leading, head, unit)


def _principal_directions(centred: NDArray[np.float32], count: int) -> Floats:
    """Leading principal directions of centred rows, as orthonormal columns (d, count).

    Above `EIGH_LIMIT` dimensions subspace iteration is enough: the bound holds for any orthonormal
    basis, a slightly rotated one only prunes slightly less.
    """
    dimension = centred.shape[1]
    if dimension <= EIGH_LIMIT:
        _, vectors = np.linalg.eigh((centred.T @ centred).astype(np.float64))
        return np.ascontiguousarray(vectors[:, ::-1][:, :count])
    block = np.random.default_rng(0).standard_normal((dimension, count + 16), np.float32)
    for _ in range(SUBSPACE_STEPS):
        block = np.linalg.qr(centred.T @ (centred @ block))[0]
    # Rotate within the subspace so that the columns come in order of variance.
    image = centred @ block
    _, vectors = np.linalg.eigh((image.T @ image).astype(np.float64))
    ordered = block.astype(np.float64) @ vectors[:, ::-1][:, :count]
    return np.ascontiguousarray(np.linalg.qr(ordered)[0])


def _choose_head(
    rows: NDArray[np.float32],
    codes: IndexArray,
    basis: Floats,
    costs: Costs,
    neighbour: int,
) -> int:
    """Head of least estimated cost, from centred rows.

    A sample is sparser than all the points, so distances and survivors come out too large: the
    estimate errs towards longer heads.
    """
    total, dimension = rows.shape
    asked = np.linspace(0, total - 1, min(PROBE_QUERIES, total)).astype(np.int64)
    queries = rows[asked]
    foreign = codes[asked][:, None] != codes[None, :]
    if not foreign.any():
        return int(dimension)
    squares = [np.einsum("ij,ij->i", side, side) for side in (queries, rows)]
    full = squares[0][:, None] + squares[1] - 2.0 * (queries @ rows.T)
    column = min(neighbour, total) - 1
    best = np.partition(np.where(foreign, full, np.inf), column, axis=1)[:, column]
    narrow = basis.astype(np.float32)
    coordinates = [queries @ narrow, rows @ narrow]

    def share_left(head: int) -> float:
        """Share of pairs of different classes that the bound from `head` directions leaves."""
        left, right = (side[:, :head] for side in coordinates)
        norms = [np.einsum("ij,ij->i", side, side) for side in (left, right)]
        tails = [np.sqrt(np.maximum(s - n, 0.0)) for s, n in zip(squares, norms, strict=True)]
        bound = norms[0][:, None] + norms[1] - 2.0 * (left @ right.T)
        bound += (tails[0][:, None] - tails[1]) ** 2
        return float(((bound <= best[:, None]) & foreign).mean())

    estimates = {dimension: costs.product * (dimension + 1) + costs.pair}
    reach = share_left(min(REFINE, basis.shape[1]))
    for head in HEADS:
        if head <= basis.shape[1] and head < dimension:
            left = share_left(head)
            measured = min(reach / left, 1.0) if left else 0.0
            survivor = costs.refine + measured * costs.direct * dimension
            estimates[head] = costs.product * (head + 2) + costs.pair + left * survivor
    return int(min(estimates, key=lambda head: estimates[head]))
