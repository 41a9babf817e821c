"""Landmarks: solved goals near which the path of a test point may start.

The goal of a test point is its row times its weight, and its vertex depends on the goal alone. A
path may start at any goal whose vertex is known, and takes fewer pivots the nearer the two are. The
landmarks are the base vertex, whose goal is zero, and the vertices of some calibration rows, which
are solved when thresholds are first asked for. Each row is reached from the nearest landmark found
before it and becomes one itself if that took some pivots, so landmarks are dense where vertices
change fast. A test point starts at its nearest landmark, whatever other points come with it.
"""

from typing import Any, NamedTuple, cast

import numpy as np

from trustsets.engine.compiled import FloatArray, IntArray, entry, inner
from trustsets.engine.kernels import WIDTH, ZERO, block_products
from trustsets.engine.problem import Problem
from trustsets.engine.scan_order import COPIES, ScanOrder

MOST = 1023
"""Landmarks besides the base vertex. More shorten paths but lengthen the search for the nearest."""
MOST_BYTES = 2**26
"""Memory that landmarks may take: there are fewer of them where the rank is high."""
ROUND = 256
"""Candidates between two checks whether more are worth their time."""
POINTS_EACH = 2
"""Calibration points per candidate: a small problem does not repay many landmarks."""
MEMBER_FACTOR, MOST_MEMBERS = 4, 24
"""Members that landmarks may have on average, and that one may have, in units of the rank."""
FROM_BASE, DUAL, NONBASIC_SUM, INVERSE = cast(Any, np.arange(4))
"""Rows of `Landmarks.vertex`; the first three are those of `PathState.vectors`, too."""
RESIDUAL: Any = np.int64(2)
"""Row of the residuals of members, after `SIDE` and `COPIES`."""
MEMBER_ROWS: Any = np.int64(3)
"""Rows of `Landmarks.member`."""


class Landmarks(NamedTuple):
    """Vertices to start from, packed in few arrays (see `scan_order`).

    Attributes
    ----------
    blocks : (n_blocks, rank, WIDTH) array
        Goals, in the layout of `Scan.blocks`.
    half_square : (n_blocks * WIDTH,) array
        Half the squared length of each goal; infinite where there is no landmark.
    vertex : (L, INVERSE + rank, rank) array
        For each landmark the rows `FROM_BASE`, `DUAL` and `NONBASIC_SUM` of `PathState.vectors`,
        then its inverse basis.
    slot : (L, rank) array
        Which members are basic, as in `PathState`.
    first : (L + 1,) array
        Where the members of each landmark begin in the arrays below, which list them in turn.
    position, row, member : (capacity,), (capacity, rank) and (MEMBER_ROWS, capacity) arrays
        The members, as in `PathState`; `member` has the rows `SIDE`, `COPIES` and `RESIDUAL`.
    """

    blocks: FloatArray
    half_square: FloatArray
    vertex: FloatArray
    slot: IntArray
    first: IntArray
    position: IntArray
    row: FloatArray
    member: FloatArray


def begin_landmarks(scan_order: ScanOrder, size: int) -> Landmarks:
    """Write the base vertex, whose goal is zero, as the first of `size` landmarks.

    The others are at infinite distance, so none of them is the nearest before it is written.
    """
    vertex = scan_order.vertex
    rank = len(vertex.eta)
    landmarks = _empty_landmarks(size, rank)
    landmarks.half_square[0], landmarks.first[1] = 0.0, rank
    landmarks.vertex[0, DUAL], landmarks.vertex[0, NONBASIC_SUM] = vertex.eta, vertex.nonbasic_sum
    landmarks.vertex[0, INVERSE:] = vertex.inverse
    landmarks.slot[0] = landmarks.position[:rank] = np.arange(rank)
    landmarks.row[:rank] = scan_order.basic_rows
    landmarks.member[COPIES, :rank] = scan_order.scan.points[COPIES, :rank]
    return landmarks


def _empty_landmarks(size: int, rank: int) -> Landmarks:
    padded, capacity = -(-size // WIDTH) * WIDTH, MEMBER_FACTOR * rank * size
    return Landmarks(
        blocks=np.zeros((padded // WIDTH, rank, WIDTH)),
        half_square=np.full(padded, np.inf),
        vertex=np.zeros((size, INVERSE + rank, rank)),
        slot=np.zeros((size, rank), np.int64),
        first=np.zeros(size + 1, np.int64),
        position=np.zeros(capacity, np.int64),
        row=np.zeros((capacity, rank)),
        member=np.zeros((MEMBER_ROWS, capacity)),
    )


def candidate_rows(problem: Problem, most: int) -> FloatArray:
    """Calibration rows to make landmarks of: a fixed random choice, longer rows more likely.

    Test rows are distributed like calibration rows, and long rows have the longest paths. Within a
    round shorter rows come first, because they lie between the base vertex and the longer ones.
    """
    n_points, rank = problem.rows.shape
    each = 8 * (1 + MEMBER_FACTOR) * max(rank, 1) ** 2
    size = min(most, n_points // POINTS_EACH, MOST_BYTES // each)
    if size == 0 or rank == 0:
        return np.empty((0, rank))
    share = problem.norms / problem.norms.sum()
    chosen = np.random.default_rng(0).choice(n_points, size, p=share)
    _, first = np.unique(chosen, return_index=True)
    chosen = chosen[np.sort(first)]
    for low in range(0, len(chosen), ROUND):
        part = chosen[low : low + ROUND]
        chosen[low : low + ROUND] = part[np.argsort(problem.norms[part])]
    return np.asarray(problem.rows[chosen])


@entry()
def nearest_landmarks(
    rows: FloatArray,
    weights: FloatArray,
    blocks: FloatArray,
    half_square: FloatArray,
    here: FloatArray,
    out: IntArray,
) -> None:
    """Store for every row the number of the landmark whose goal is nearest to its own."""
    for i in range(len(rows)):
        out[i] = nearest_landmark(rows, i, weights[i], blocks, half_square, len(blocks), here)


@inner()
def nearest_landmark(
    rows: FloatArray,
    i: int,
    weight: float,
    blocks: FloatArray,
    half_square: FloatArray,
    count: int,
    here: FloatArray,
) -> int:
    """Number of the landmark, in the first `count` blocks, that is nearest to the goal of row i."""
    best, nearest = np.inf, 0
    # |goal - landmark|^2 / 2 less |goal|^2 / 2, which is the same for all landmarks.
    for block in range(count):
        block_products(blocks, block, rows, i, here, ZERO)
        for lane in range(WIDTH):
            far = half_square[block * WIDTH + lane] - weight * here[lane]
            if far < best:
                best, nearest = far, block * WIDTH + lane
    return nearest
