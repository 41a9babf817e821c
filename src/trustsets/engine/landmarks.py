"""Landmarks: solved problems near which the path of a test point may start.

The vertex of a test point depends on its goal alone, the row times its level. A path may begin
at any goal whose vertex is known; the nearer the two goals, the fewer the pivots between them. The
landmarks are the base vertex, whose goal is zero, and the vertices of some calibration rows,
solved when thresholds are first asked for. Each is reached from the nearest one found before it and
is kept if that took some pivots, so they are dense where vertices change fast. A test point starts
at the nearest: whatever other points come with it, its path is the same.
"""

from typing import NamedTuple

import numpy as np

from trustsets.engine.compiled import entry, inner
from trustsets.engine.kernels import WIDTH, block_products
from trustsets.engine.problem import FloatArray, IntArray, Problem

__all__ = [
    "MOST",
    "MOST_MEMBERS",
    "ROUND",
    "Landmarks",
    "candidate_rows",
    "empty_landmarks",
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
"""Members per dimension that landmarks may have on average (see `Work`), and that one may have."""


class Landmarks(NamedTuple):
    """Vertices to start from; the first axis of arrays up to `slot` but `blocks` counts landmarks.

    Attributes
    ----------
    blocks : (n_blocks, rank, WIDTH) array
        Goals in the layout of `block_products`.
    half_square : (n_blocks * WIDTH,) array
        Half the squared length of each goal; infinite where there is no landmark.
    goal, shift, corner, eta, pull, slot : arrays
        Of the vertex, as in `Work`.
    first : (L + 1,) array
        Where the members of each landmark begin in the arrays below; those of the next follow.
    position, row, side, residual, copies : arrays (capacity, ...)
        Of the members, as in `Work`.
    """

    blocks: FloatArray
    half_square: FloatArray
    goal: FloatArray
    shift: FloatArray
    corner: FloatArray
    eta: FloatArray
    pull: FloatArray
    slot: IntArray
    first: IntArray
    position: IntArray
    row: FloatArray
    side: FloatArray
    residual: FloatArray
    copies: FloatArray


def empty_landmarks(size: int, rank: int) -> Landmarks:
    """Space for `size` landmarks, none of which can be the nearest before it is written."""
    padded, capacity = -(-size // WIDTH) * WIDTH, MEMBER_FACTOR * rank * size
    return Landmarks(
        blocks=np.zeros((padded // WIDTH, rank, WIDTH)),
        half_square=np.full(padded, np.inf),
        goal=np.zeros((size, rank)),
        shift=np.zeros((size, rank)),
        corner=np.zeros((size, rank, rank)),
        eta=np.zeros((size, rank)),
        pull=np.zeros((size, rank)),
        slot=np.zeros((size, rank), np.int64),
        first=np.zeros(size + 1, np.int64),
        position=np.zeros(capacity, np.int64),
        row=np.zeros((capacity, rank)),
        side=np.zeros(capacity),
        residual=np.zeros(capacity),
        copies=np.zeros(capacity),
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


@entry()
def nearest_landmarks(
    rows: FloatArray, levels: FloatArray, marks: Landmarks, out: IntArray
) -> None:
    """Store for every row the number of the landmark whose goal is nearest to its own."""
    here = np.empty(WIDTH)
    for i in range(len(rows)):
        out[i] = nearest_landmark(rows, i, levels[i], marks, len(marks.goal), here)


@inner()
def nearest_landmark(
    rows: FloatArray, i: int, level: float, marks: Landmarks, found: int, here: FloatArray
) -> int:
    """Nearest of the first `found` landmarks to the goal of row i."""
    best, nearest = np.inf, 0
    for block in range(-(-found // WIDTH)):
        block_products(marks.blocks, block, rows[i], here, 0)
        for lane in range(WIDTH):
            far = marks.half_square[block * WIDTH + lane] - level * here[lane]
            if far < best:
                best, nearest = far, block * WIDTH + lane
    return nearest
