"""Landmarks: solved problems near which the path of a test point may start.

The vertex of a test point depends on its goal alone, the row times its level. A path may begin
at any goal whose vertex is known; the nearer the two goals, the fewer the pivots between them. The
landmarks are the base vertex, whose goal is zero, and the vertices of some calibration rows,
solved when thresholds are first asked for. Each is reached from the nearest one found before it and
is kept if that took some pivots, so they are dense where vertices change fast. A test point starts
at the nearest: whatever other points come with it, its path is the same.
"""

from typing import Any, NamedTuple, cast

import numpy as np

from trustsets.engine.compiled import entry, inner
from trustsets.engine.kernels import WIDTH, block_products
from trustsets.engine.problem import FloatArray, IntArray, Problem
from trustsets.engine.scan import COPIES, Base

__all__ = [
    "ETA",
    "INVERSE",
    "MEMBER_ROWS",
    "MOST",
    "MOST_MEMBERS",
    "PULL",
    "RESIDUAL",
    "ROUND",
    "SHIFT",
    "Landmarks",
    "begin_landmarks",
    "candidate_rows",
    "nearest_landmark",
    "nearest_landmarks",
]

MOST = 1023
"""Landmarks besides the base vertex. More shorten paths but lengthen the search for the nearest."""
MOST_BYTES = 2**26
"""Memory that landmarks may take: high ranks have fewer of them."""
ROUND = 256
"""Candidates between two looks at whether more are worth their time."""
POINTS_EACH = 2
"""Calibration points per candidate: small problems are not worth many."""
MEMBER_FACTOR, MOST_MEMBERS = 4, 24
"""Members per dimension that landmarks may have on average, and that one may have."""
SHIFT, ETA, PULL, INVERSE = cast(Any, np.arange(4))
"""Rows of `Landmarks.vertex`; the first three are those of `PathState.vectors` too."""
RESIDUAL: Any = np.int64(2)
"""Row of the residuals of members, after `SIDE` and `COPIES`."""
START: Any = np.int64(0)
"""Where products of a block go that nobody keeps."""
MEMBER_ROWS: Any = np.int64(3)
"""Rows of `Landmarks.member`."""


class Landmarks(NamedTuple):
    """Vertices to start from, packed in few arrays (see `scan`).

    Attributes
    ----------
    blocks : (n_blocks, rank, WIDTH) array
        Goals in the layout of `block_products`.
    half_square : (n_blocks * WIDTH,) array
        Half the squared length of each goal; infinite where there is no landmark.
    vertex : (L, INVERSE + rank, rank) array
        Of each landmark: the rows `SHIFT`, `ETA` and `PULL` of `PathState.vectors`, then the
        inverse of its basic rows.
    slot : (L, rank) array
        Members that are basic, as in `PathState`.
    first : (L + 1,) array
        Where the members of each landmark begin in the arrays below; those of the next follow.
    position, row : (capacity,) and (capacity, rank) arrays
        Of the members, as in `PathState`.
    member : (MEMBER_ROWS, capacity) array
        Rows `SIDE`, `COPIES` and `RESIDUAL` of the members.
    """

    blocks: FloatArray
    half_square: FloatArray
    vertex: FloatArray
    slot: IntArray
    first: IntArray
    position: IntArray
    row: FloatArray
    member: FloatArray

    @property
    def goal(self) -> FloatArray:
        """Goals, a row each."""
        n_blocks, rank, width = self.blocks.shape
        rows = self.blocks.transpose(0, 2, 1).reshape(n_blocks * width, rank)
        return rows[: len(self.slot)]


def begin_landmarks(base: Base, size: int) -> Landmarks:
    """Write the base vertex, whose goal is zero, as the first of `size` landmarks.

    None of the others can be the nearest before it is written.
    """
    rank = len(base.eta)
    marks = _empty_landmarks(size, rank)
    marks.half_square[0], marks.first[1] = 0.0, rank
    marks.vertex[0, ETA], marks.vertex[0, PULL], marks.vertex[0, INVERSE:] = (
        base.eta,
        base.pull,
        base.corner,
    )
    marks.slot[0] = marks.position[:rank] = np.arange(rank)
    marks.row[:rank] = base.rows
    marks.member[COPIES, :rank] = base.points[COPIES, :rank]
    return marks


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

    Test rows are distributed like calibration rows, and long ones have the longest paths. Within a
    round shorter rows come first: they lie between the base vertex and the longer ones.
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


def nearest_landmarks(
    rows: FloatArray, levels: FloatArray, marks: Landmarks, out: IntArray
) -> None:
    """Store for every row the number of the landmark whose goal is nearest to its own."""
    _nearest(rows, levels, marks.blocks, marks.half_square, np.empty(WIDTH), out)


@entry()
def _nearest(
    rows: FloatArray,
    levels: FloatArray,
    blocks: FloatArray,
    half_square: FloatArray,
    here: FloatArray,
    out: IntArray,
) -> None:
    for i in range(len(rows)):
        out[i] = nearest_landmark(rows, i, levels[i], blocks, half_square, len(blocks), here)


@inner()
def nearest_landmark(
    rows: FloatArray,
    i: int,
    level: float,
    blocks: FloatArray,
    half_square: FloatArray,
    count: int,
    here: FloatArray,
) -> int:
    """Nearest landmark, among the first `count` blocks of them, to the goal of row i."""
    best, nearest = np.inf, 0
    for block in range(count):
        block_products(blocks, block, rows, i, here, START)
        for lane in range(WIDTH):
            far = half_square[block * WIDTH + lane] - level * here[lane]
            if far < best:
                best, nearest = far, block * WIDTH + lane
    return nearest
