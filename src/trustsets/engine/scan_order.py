"""The order in which points are scanned, so that a scan of few of them is exact.

Let ``r_i`` be the residuals at the base vertex and x the distance vector of the path from it. With
rows multiplied by the sign of ``r_i``, point i keeps its sign as long as ``Q_i x <= |r_i|``.
Residuals are linear along a step, so a point crosses zero within the step exactly if it lies on
the other side at the end of it. Two bounds show that a point does not:

- ``Q_i x <= |Q_i| |x|`` (Cauchy and Schwarz): no point with ``key_i = |r_i| / |Q_i| > |x|``
  crosses. Points are sorted into groups of increasing key, and the scan ends at the first group
  whose smallest key exceeds |x|;
- ``Q_i x <= c x + |Q_i - c| |x|`` for a block of points with centre c: no point of the block
  crosses if this bound, with the largest ``|Q_i - c|``, is below the smallest ``|r_i|``. Blocks
  consist of neighbours within a group, which makes the bound tight.

Both bounds hold for every shorter step, too, so a crossing that is found only shortens the scan.
A path whose way is measured from another vertex compares the bound of that shorter way with the
residuals there instead (see `path`).
"""

from typing import Any, NamedTuple

import numpy as np

from trustsets.engine.compiled import FloatArray, IntArray, entry, inner, read_only
from trustsets.engine.fit import Vertex, high_leverage
from trustsets.engine.kernels import WIDTH, three_way
from trustsets.engine.problem import Problem, scan_keys

# Blocks of the first group, which stays in the order of keys; groups double after it.
FIRST_BLOCKS = 4
SAMPLED = 64  # Points that decide along which coordinate a part of a group is split.
DEPTH: Any = np.int64(64)  # More halvings than a group can need.
SPREAD_SLACK = 1.0 + 1e-9  # Distances to a centre are enlarged by this factor to cover rounding.
# Accepted error of a basic residual at the end of a path, as a share of the score scale.
DRIFT_TOL = 1e-11


class Scan(NamedTuple):
    """Points in scan order, as kernels read them; a position is a place in that order."""

    # (n_blocks, rank, WIDTH): rows times the sign of their residual, transposed in blocks so that
    # the products of a block with a vector run over contiguous points; padded with zeros.
    blocks: FloatArray
    # (n_superblocks, rank, WIDTH): centres of the blocks in the same layout; `WIDTH` blocks form a
    # superblock.
    centres: FloatArray
    # (n_superblocks * WIDTH,): for each block the largest distance of a point to the centre, the
    # same plus the length of the centre, the smallest absolute residual, and the smallest key of
    # the block's group (infinite for padding).
    spread: FloatArray
    extent: FloatArray
    least_distance: FloatArray
    group_key: FloatArray
    # (n_blocks * WIDTH,): for each position the sign of the residual, +1 for basic points; the
    # number of equal calibration points; the absolute residual, infinite for basic points and
    # padding; and the score before centring.
    side: FloatArray
    multiplicities: FloatArray
    distance: FloatArray
    score: FloatArray
    # Miscoverage; a bound on the length of any goal that points can balance; accepted drift of a
    # residual.
    alpha: float
    reach: float
    tolerance: float


class ScanOrder(NamedTuple):
    """The base vertex with all points in scan order."""

    scan: Scan  # The points. Basic points come first, in the order of `vertex`.
    order: IntArray  # (n,): row number in the problem of each position.
    vertex: Vertex  # The optimal vertex of the base problem, by row numbers of the problem.
    # (2 + 2 rank, rank): its dual values, the sum of the nonbasic points' rows times theirs, the
    # inverse basis, and the rows of the basic points.
    base: FloatArray
    high_leverage: IntArray  # Row numbers of the points of largest leverage.


def make_scan_order(problem: Problem, vertex: Vertex) -> ScanOrder:
    """Put the points in scan order."""
    n_points, rank = problem.rows.shape
    key = scan_keys(vertex.residuals, problem.norms)
    key[vertex.basic_points] = -1.0 - np.arange(rank)[::-1]
    order = np.argsort(key, kind="stable")
    side = np.where(vertex.residuals >= 0.0, 1.0, -1.0)
    group_key = _arrange(problem.rows, side, key, order)
    n_blocks = -(-n_points // WIDTH)
    padded = n_blocks * WIDTH
    signed = np.zeros((n_blocks, WIDTH, rank))
    signed.reshape(padded, rank)[:n_points] = problem.rows[order] * side[order, None]
    sides, multiplicities, score = np.zeros(padded), np.zeros(padded), np.zeros(padded)
    sides[:n_points], multiplicities[:n_points] = side[order], problem.multiplicities[order]
    score[:n_points] = problem.scores[order]
    distance = np.full(padded, np.inf)
    distance[rank:n_points] = np.abs(vertex.residuals[order[rank:]])
    centres, spread, extent, least = _summarise(signed, distance.reshape(n_blocks, WIDTH))
    scan = Scan(
        blocks=np.ascontiguousarray(signed.transpose(0, 2, 1)),
        centres=centres,
        spread=spread,
        extent=extent,
        least_distance=least,
        group_key=group_key,
        side=sides,
        multiplicities=multiplicities,
        distance=distance,
        score=score,
        alpha=problem.alpha,
        reach=_reach(problem),
        tolerance=DRIFT_TOL * problem.score_scale,
    )
    basic_rows = problem.rows[vertex.basic_points]
    base = np.vstack([vertex.eta, vertex.nonbasic_sum, vertex.inverse, basic_rows])
    return ScanOrder(scan, order, vertex, base, high_leverage(problem.norms, rank))


def neighbour_order(rows: FloatArray) -> IntArray:
    """Order rows (m, rank) so that neighbours in a k-d tree follow each other."""
    order = np.arange(len(rows))
    _split(rows, np.ones(len(rows)), order)
    return order


def _split(rows: FloatArray, side: FloatArray, group: IntArray) -> None:
    values, waiting = np.empty((2, len(group))), np.zeros((2, DEPTH), np.int64)
    _split_into_blocks(read_only(rows), side, group, *values, *waiting)


def _reach(problem: Problem) -> float:
    """Length that no goal exceeds whose dual has a feasible point."""
    longest = max(problem.alpha, 1.0 - problem.alpha) * float(
        problem.norms @ problem.multiplicities
    )
    return longest + float(np.linalg.norm(problem.linear))


def _arrange(rows: FloatArray, side: FloatArray, key: FloatArray, order: IntArray) -> FloatArray:
    """Sort each group of `order` into blocks of neighbours; the group key of every block."""
    n_points, rank = rows.shape
    n_blocks = -(-n_points // WIDTH)
    group_key = np.full(-(-n_blocks // WIDTH) * WIDTH, np.inf)
    size = max(FIRST_BLOCKS, -(-rank // WIDTH))
    group_key[: min(size, n_blocks)] = key[order[: size * WIDTH : WIDTH]]
    low = size
    while low < n_blocks:
        group = order[low * WIDTH : (low + size) * WIDTH]
        group_key[low : min(low + size, n_blocks)] = key[group[0]]
        _split(rows, side, group)
        low, size = low + size, 2 * size
    return group_key


def _summarise(
    signed: FloatArray, distance: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Centres, spreads, extents and least distances of blocks (n_blocks, WIDTH, rank)."""
    n_blocks, _, rank = signed.shape
    n_superblocks = -(-n_blocks // WIDTH)
    centre = np.zeros((n_superblocks * WIDTH, rank))
    spread, least = np.zeros(n_superblocks * WIDTH), np.full(n_superblocks * WIDTH, np.inf)
    centre[:n_blocks] = signed.mean(axis=1)
    _spreads(signed, distance, centre, spread, least)
    extent = SPREAD_SLACK * (np.sqrt(np.einsum("ij,ij->i", centre, centre)) + spread)
    centres = centre.reshape(n_superblocks, WIDTH, rank).transpose(0, 2, 1)
    return np.ascontiguousarray(centres), spread, extent, least


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

    The group is halved repeatedly along the coordinate of largest variance, as in a k-d tree.
    """
    # A stack of the parts that are still to be halved; it holds at most one of every size.
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
    """Find the coordinate of largest variance, estimated from some points of [low, high)."""
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
