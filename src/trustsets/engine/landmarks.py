"""Landmarks: solved problems near which the path of a test point may start.

The vertex of a test point depends on its goal alone, the row times its level. A path may begin
at any goal whose vertex is known; the nearer the two goals, the fewer the pivots between them. The
landmarks are the base vertex, whose goal is zero, and the vertices of some calibration rows,
solved once when the model is made. A test point starts at the nearest: whatever other points
come with it, its path is the same. Imports `kernels`, `problem`.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from trustsets.engine.kernels import WIDTH, block_products
from trustsets.engine.problem import FloatArray, IntArray, Problem

__all__ = ["MEMBER_FACTOR", "Landmarks", "candidate_rows", "empty_landmarks", "nearest_landmarks"]

MOST = 255
"""Landmarks besides the base vertex. More shorten paths but lengthen the search for the nearest."""
POINTS_EACH = 64
"""Calibration points per landmark: small problems are not worth many."""
MEMBER_FACTOR = 3
"""A landmark has at most this many members per dimension (see `Work`); others are dropped."""


class Landmarks(NamedTuple):
    """Vertices to start from; the first axis of every array but `blocks` counts landmarks.

    Attributes
    ----------
    blocks : (n_blocks, rank, WIDTH) array
        Goals in the layout of `block_products`.
    half_square : (n_blocks * WIDTH,) array
        Half the squared length of each goal; infinite where there is no landmark.
    goal, shift, corner, eta, pull, slot : arrays
        Of the vertex, as in `Work`.
    n_members : (L,) array
    position, row, side, residual, copies : arrays (L, MEMBER_FACTOR * rank, ...)
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
    n_members: IntArray
    position: IntArray
    row: FloatArray
    side: FloatArray
    residual: FloatArray
    copies: FloatArray


def empty_landmarks(size: int, rank: int) -> Landmarks:
    """Space for `size` landmarks, none of which can be the nearest before it is written."""
    padded, members = -(-size // WIDTH) * WIDTH, MEMBER_FACTOR * rank
    return Landmarks(
        blocks=np.zeros((padded // WIDTH, rank, WIDTH)),
        half_square=np.full(padded, np.inf),
        goal=np.zeros((size, rank)),
        shift=np.zeros((size, rank)),
        corner=np.zeros((size, rank, rank)),
        eta=np.zeros((size, rank)),
        pull=np.zeros((size, rank)),
        slot=np.zeros((size, rank), np.int64),
        n_members=np.zeros(size, np.int64),
        position=np.zeros((size, members), np.int64),
        row=np.zeros((size, members, rank)),
        side=np.zeros((size, members)),
        residual=np.zeros((size, members)),
        copies=np.zeros((size, members)),
    )


def candidate_rows(problem: Problem) -> FloatArray:
    """Calibration rows to make landmarks of: a fixed random choice, longer rows more likely.

    Test rows are distributed like calibration rows, and long ones have the longest paths.
    """
    n_points, rank = problem.rows.shape
    size = min(MOST, n_points // POINTS_EACH)
    if size == 0 or rank == 0:
        return np.empty((0, rank))
    share = problem.norms / problem.norms.sum()
    chosen = np.random.default_rng(0).choice(n_points, size, p=share)
    return np.asarray(problem.rows[np.unique(chosen)])


@njit(cache=True, nogil=True)
def nearest_landmarks(
    rows: FloatArray, levels: FloatArray, marks: Landmarks, out: IntArray
) -> None:
    """Store for every row the number of the landmark whose goal is nearest to its own."""
    here = np.empty(WIDTH)
    for i in range(len(rows)):
        best = np.inf
        out[i] = 0
        for block in range(len(marks.blocks)):
            block_products(marks.blocks, block, rows[i], here, 0)
            for lane in range(WIDTH):
                far = marks.half_square[block * WIDTH + lane] - levels[i] * here[lane]
                if far < best:
                    best = far
                    out[i] = block * WIDTH + lane
