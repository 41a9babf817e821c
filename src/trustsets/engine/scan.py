"""The order in which points are looked at, so that a few of them are enough.

Why a look at few points is exact. Let ``r_i`` be the residuals at the base vertex b0 and x the
way gone from it. With rows multiplied by the sign of ``r_i``, point i keeps its sign as long as
``Q_i x <= |r_i|``. Residuals are linear along a step, so a point that starts on its side crosses
zero before the end of the step exactly if it would be on the other side at the end, at x. Then

- by Cauchy's inequality ``Q_i x <= |Q_i| |x|``: no point with ``key_i = |r_i| / |Q_i| > |x|``
  crosses. Points are ordered by groups of increasing key, and the scan ends at the first group
  whose smallest key exceeds |x|;
- for a block of points with centre c, ``Q_i x <= c x + |Q_i - c| |x|``: the block has no
  crossing when this, with the largest ``|Q_i - c|``, stays below the smallest ``|r_i|``. Within
  a group, points are put into blocks of neighbours, so that the bound is tight.

Both tests hold for a longer step as well as for a shorter one, so a crossing found on the way
only makes the rest of the scan shorter. Residual gaps shrink like 1 / n while their density grows
like n: the number of points looked at does not depend on n.

A path that began at a landmark, at x0, has a short way y = x - x0. The bound of a block then reads
``Q_i y <= c y + |Q_i - c| |y|`` and is compared with the smallest residual of the block at x0,
its floor: first a lower bound of that, later the value itself.

Imports `fit`, `kernels` and `problem`.
"""

from typing import Any, NamedTuple, cast

import numpy as np

from trustsets.engine.compiled import entry, inner
from trustsets.engine.fit import Vertex, heaviest
from trustsets.engine.kernels import WIDTH, three_way
from trustsets.engine.problem import FloatArray, IntArray, Problem, scan_keys

__all__ = [
    "COPIES",
    "DISTANCE",
    "FIRST_KEY",
    "LEAST",
    "SCORE",
    "SIDE",
    "SPREAD",
    "Base",
    "Scan",
    "prepare",
]

# Kernels hand over few arrays, each with several rows: every array of a tuple adds to the time it
# takes to compile each kernel that has the tuple. The numbers of the rows are NumPy's, since numba
# compiles a kernel anew for each Python integer that is passed to it as a constant.
SIDE, COPIES, DISTANCE, SCORE = cast(Any, np.arange(4))
"""Rows of `Scan.points`; those of members begin with the same two."""
SPREAD, LEAST, FIRST_KEY = cast(Any, np.arange(3))
"""Rows of `Scan.summary`."""

FIRST_BLOCKS = 4
"""Blocks of the first group, which is kept in the order of keys; groups then double."""
SAMPLED = 64
"""Points that decide along which coordinate a set of points is split."""
DEPTH: Any = np.int64(64)
"""How often a group can be halved, and more."""
SPREAD_SLACK = 1.0 + 1e-9
"""Room for rounding in distances to a centre."""
DRIFT_TOL = 1e-11
"""Accepted error of a basic residual at the end of a path, as a share of the score scale."""


class Scan(NamedTuple):
    """What compiled code reads of `Base`, under the same names."""

    blocks: FloatArray
    centres: FloatArray
    summary: FloatArray
    points: FloatArray
    alpha: float
    reach: float
    tolerance: float


class Base(NamedTuple):
    """The base vertex with all points in scan order; a position is a place in that order.

    Attributes
    ----------
    blocks : (n_blocks, rank, WIDTH) array
        Rows times the sign of their residual, transposed in blocks so that the products of a
        block with a vector run over contiguous points; padded with zeros.
    centres : (n_chapters, rank, WIDTH) array
        Centres of the blocks, `WIDTH` blocks to a chapter, in the same layout.
    summary : (3, n_chapters * WIDTH) array
        Of each block: in row `SPREAD` the largest distance to its centre, in row `LEAST` the
        smallest absolute residual, in row `FIRST_KEY` the smallest key of its group (infinite for
        padding).
    points : (4, n_blocks * WIDTH) array
        Of each position: in row `SIDE` the sign of the residual, +1 for basic points; in row
        `COPIES` how many equal calibration points it stands for; in row `DISTANCE` the absolute
        residual, infinite for basic points and padding; in row `SCORE` the score as given.
    order : (n,) array
        Row number in the problem of each position.
    heavy : array
        Row numbers of the points of largest leverage.
    rows, corner, eta, pull : arrays
        Of the vertex. Its basic points come first in scan order, in the order of `corner`.
    alpha, reach, tolerance : float
        Miscoverage; a bound on the length of any ``Q' eta``; accepted drift of a residual.
    """

    blocks: FloatArray
    centres: FloatArray
    summary: FloatArray
    points: FloatArray
    order: IntArray
    heavy: IntArray
    rows: FloatArray
    corner: FloatArray
    eta: FloatArray
    pull: FloatArray
    alpha: float
    reach: float
    tolerance: float

    @property
    def scan(self) -> Scan:
        """The part for compiled code."""
        return Scan(
            self.blocks,
            self.centres,
            self.summary,
            self.points,
            self.alpha,
            self.reach,
            self.tolerance,
        )


def prepare(problem: Problem, vertex: Vertex) -> Base:
    """Put the points in scan order."""
    n_points, rank = problem.rows.shape
    key = scan_keys(vertex.residuals, problem.norms)
    key[vertex.basis] = -1.0 - np.arange(rank)[::-1]
    order = np.argsort(key, kind="stable")
    side = np.where(vertex.residuals >= 0.0, 1.0, -1.0)
    first_key = _arrange(problem.rows, side, key, order)
    n_blocks = -(-n_points // WIDTH)
    signed = np.zeros((n_blocks, WIDTH, rank))
    signed.reshape(n_blocks * WIDTH, rank)[:n_points] = problem.rows[order] * side[order, None]
    points = np.zeros((4, n_blocks * WIDTH))
    points[SIDE, :n_points], points[COPIES, :n_points] = side[order], problem.copies[order]
    points[SCORE, :n_points], points[DISTANCE] = problem.scores[order], np.inf
    points[DISTANCE, rank:n_points] = np.abs(vertex.residuals[order[rank:]])
    centres, spread, least = _summarise(signed, points[DISTANCE].reshape(n_blocks, WIDTH))
    return Base(
        blocks=np.ascontiguousarray(signed.transpose(0, 2, 1)),
        centres=centres,
        summary=np.stack([spread, least, first_key]),
        points=points,
        order=order,
        heavy=heaviest(problem.norms, rank),
        rows=problem.rows[vertex.basis],
        corner=vertex.corner,
        eta=vertex.eta,
        pull=vertex.pull,
        alpha=problem.alpha,
        reach=max(problem.alpha, 1.0 - problem.alpha) * float(problem.norms @ problem.copies),
        tolerance=DRIFT_TOL * problem.score_scale,
    )


def _arrange(rows: FloatArray, side: FloatArray, key: FloatArray, order: IntArray) -> FloatArray:
    """Make blocks of neighbours within each group of `order`; the first key of every block."""
    n_points, rank = rows.shape
    n_blocks = -(-n_points // WIDTH)
    first_key = np.full(-(-n_blocks // WIDTH) * WIDTH, np.inf)
    size = max(FIRST_BLOCKS, -(-rank // WIDTH))
    first_key[: min(size, n_blocks)] = key[order[: size * WIDTH : WIDTH]]
    low = size
    while low < n_blocks:
        group = order[low * WIDTH : (low + size) * WIDTH]
        first_key[low : min(low + size, n_blocks)] = key[group[0]]
        values, waiting = np.empty((2, len(group))), np.zeros((2, DEPTH), np.int64)
        _split_into_blocks(rows, side, group, *values, *waiting)
        low, size = low + size, 2 * size
    return first_key


def _summarise(
    signed: FloatArray, distance: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Centres, spreads and least distances of blocks (n_blocks, WIDTH, rank)."""
    n_blocks, _, rank = signed.shape
    n_chapters = -(-n_blocks // WIDTH)
    centre = np.zeros((n_chapters * WIDTH, rank))
    spread, least = np.zeros(n_chapters * WIDTH), np.full(n_chapters * WIDTH, np.inf)
    centre[:n_blocks] = signed.mean(axis=1)
    _spreads(signed, distance, centre, spread, least)
    centres = centre.reshape(n_chapters, WIDTH, rank).transpose(0, 2, 1)
    return np.ascontiguousarray(centres), spread, least


@entry()
def _spreads(
    signed: FloatArray,
    distance: FloatArray,
    centre: FloatArray,
    spread: FloatArray,
    least: FloatArray,
) -> None:
    """Largest distance to the centre and smallest residual of each block."""
    for block in range(len(signed)):
        for lane in range(WIDTH):
            if distance[block, lane] == np.inf:
                continue
            square = 0.0
            for j in range(signed.shape[2]):
                gap = signed[block, lane, j] - centre[block, j]
                square += gap * gap
            spread[block] = max(spread[block], SPREAD_SLACK * np.sqrt(square))
            least[block] = min(least[block], distance[block, lane])


@entry()
def _split_into_blocks(
    rows: FloatArray,
    side: FloatArray,
    group: IntArray,
    values: FloatArray,
    spare: FloatArray,
    lows: IntArray,
    highs: IntArray,
) -> None:
    """Reorder a group so that every `WIDTH` consecutive points are neighbours.

    Halves the group again and again along the coordinate in which its points differ most.
    """
    # Parts that are still to be halved; one of every size at most waits.
    lows[0], highs[0], waiting = 0, len(group), 1
    while waiting > 0:
        waiting -= 1
        low, high = lows[waiting], highs[waiting]
        n_blocks = -(-(high - low) // WIDTH)
        if n_blocks < 2:
            continue
        column = _widest(rows, side, group, low, high)
        for i in range(low, high):
            values[i] = side[group[i]] * rows[group[i], column]
        middle = low + (n_blocks // 2) * WIDTH
        _part_at(values, spare, group, low, high, middle)
        lows[waiting], highs[waiting] = low, middle
        lows[waiting + 1], highs[waiting + 1] = middle, high
        waiting += 2


@inner()
def _widest(rows: FloatArray, side: FloatArray, group: IntArray, low: int, high: int) -> int:
    """Find the coordinate of largest variance among some of the points of [low, high)."""
    step = max(1, (high - low) // SAMPLED)
    best, widest = -1.0, 0
    for j in range(rows.shape[1]):
        total, square, count = 0.0, 0.0, 0
        for i in range(low, high, step):
            value = side[group[i]] * rows[group[i], j]
            total += value
            square += value * value
            count += 1
        mean = total / count
        variance = square / count - mean * mean
        if variance > best:
            best, widest = variance, j
    return widest


@inner()
def _part_at(
    values: FloatArray, spare: FloatArray, group: IntArray, low: int, high: int, middle: int
) -> None:
    """Put the smallest values of [low, high) before `middle` (quickselect)."""
    while high - low > 1:
        a, b, c = values[low], values[(low + high) // 2], values[high - 1]
        less, more = three_way(values, spare, group, low, high, max(min(a, b), min(max(a, b), c)))
        if middle < less:
            high = less
        elif middle >= more:
            low = more
        else:
            return
