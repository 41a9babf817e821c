"""Where a path stands: the scratch space of a thread, and how it takes up and keeps a landmark.

Imports `kernels`, `landmarks`, `problem` and `scan`.
"""

from typing import Any, NamedTuple, cast

import numpy as np

from trustsets.engine.compiled import REASSOCIATE, inner
from trustsets.engine.kernels import WIDTH
from trustsets.engine.landmarks import (
    INVERSE,
    MEMBER_ROWS,
    MOST_MEMBERS,
    SHIFT,
    Landmarks,
)
from trustsets.engine.problem import FloatArray, IntArray
from trustsets.engine.scan import COPIES, SIDE, Scan

__all__ = [
    "BLOCK_CACHE",
    "CLOCK",
    "DIRECTION",
    "EDGE",
    "FIRST_CACHE",
    "GOAL",
    "HOME_SHIFT",
    "KNOWN",
    "MARK",
    "OPENED",
    "READ",
    "ROW",
    "SEEN",
    "SIZE",
    "SPARE",
    "SPEED",
    "STAMP",
    "WAY",
    "WEIGHT",
    "PathState",
    "allocate",
    "begin",
    "keep",
    "rows_dot",
]

# Rows of `PathState.vectors` after `SHIFT`, `ETA` and `PULL`, and how many there are.
WAY, HOME_SHIFT, EDGE, WEIGHT, SIZE, GOAL, DIRECTION, ROW, SPARE, N_VECTORS = cast(
    Any, np.arange(3, 13)
)
# Row of `PathState.member` after `SIDE`, `COPIES` and `RESIDUAL`, and how many there are.
SPEED, N_MEMBER = cast(Any, np.arange(3, 5))
# Rows of `PathState.visits`, and how many there are.
STAMP, READ, SEEN, OPENED, N_VISITS = cast(Any, np.arange(5))
# Entries of `PathState.counters`, and how many there are.
CLOCK, MARK, KNOWN, N_COUNTERS = cast(Any, np.arange(4))

FIRST_CACHE = 2 * WIDTH
"""Where the blocks begin in `PathState.cache`."""
BLOCK_CACHE = 3 * WIDTH
"""Entries of a block there."""


class PathState(NamedTuple):
    """Scratch space of one thread, packed in few arrays (see `scan`).

    Attributes
    ----------
    vectors : (N_VECTORS, rank) array
        The vertex lies `SHIFT` away from the base vertex and `WAY` away from the landmark where
        the path began, which is `HOME_SHIFT` away from the base vertex. `EDGE` is the direction
        of the step. Basic point k has dual value ``ETA[k]``, which moves at rate ``-WEIGHT[k]``
        on the way to `GOAL`, and stands for ``SIZE[k]`` equal calibration points. `PULL` is the
        sum of the nonbasic points' rows times their dual values, `DIRECTION` the goal less that
        of the landmark, `ROW` the row of the test point; `SPARE` is free.
    slot : (rank,) array
        Basic point k is member ``slot[k]``.
    inverse : (rank, rank) array
        Transposed inverse of the basic rows (`corner` in `kernels`).
    ratio : (rank,) array
        Of the last exchange (see `kernels`).
    position, row : (most,) and (most, rank) arrays
        Members are the points whose role differs from the base vertex: its basic points and every
        point that entered since. The scan skips them: residuals in `cache` are infinite there.
    member : (N_MEMBER, most) array
        Of each member: `SIDE`, 0 for basic points, else the sign of the residual; `COPIES`, how
        many equal calibration points it stands for; `RESIDUAL`, and its rate `SPEED`.
    cache : (FIRST_CACHE + n_blocks * BLOCK_CACHE,) array
        Two times `WIDTH` entries for a chapter, the products of its centres with way and edge. Then
        three times `WIDTH` for each block of points: signed residuals at the landmark; signed
        residuals now; their rates.
    floor : (n_chapters * WIDTH,) array
        A lower bound of the residuals of each block at the landmark.
    visits : (N_VISITS, n_blocks) array
        Present residuals of a block are valid if its `STAMP` equals the `CLOCK`. Those at the
        landmark are if its `READ` equals the `MARK`, and floors are if `OPENED` of the chapter
        does: points that share a landmark find them ready. `SEEN` lists the blocks of this step.
    counters : (N_COUNTERS,) array
        `CLOCK` moves on at every step, `MARK` is the number of the landmark plus one, `KNOWN` the
        number of its members.
    """

    vectors: FloatArray
    slot: IntArray
    inverse: FloatArray
    ratio: FloatArray
    position: IntArray
    row: FloatArray
    member: FloatArray
    cache: FloatArray
    floor: FloatArray
    visits: IntArray
    counters: IntArray


def allocate(scan: Scan, most: int) -> PathState:
    """Scratch space for paths of at most `most` members; untouched pages cost nothing."""
    n_blocks, rank, _ = scan.blocks.shape
    return PathState(
        vectors=np.empty((N_VECTORS, rank)),
        slot=np.zeros(rank, np.int64),
        inverse=np.empty((rank, rank)),
        ratio=np.empty(rank),
        position=np.zeros(most, np.int64),
        row=np.empty((most, rank)),
        member=np.empty((N_MEMBER, most)),
        cache=np.empty(FIRST_CACHE + n_blocks * BLOCK_CACHE),
        floor=np.empty(scan.summary.shape[1]),
        visits=np.zeros((N_VISITS, n_blocks), np.int64),
        counters=np.zeros(N_COUNTERS, np.int64),
    )


@inner(fastmath=REASSOCIATE)
def rows_dot(left: FloatArray, i: int, right: FloatArray, k: int) -> float:
    """Inner product of row i of one matrix and row k of another; the sum may be reordered."""
    total = 0.0
    for j in range(left.shape[1]):
        total += left[i, j] * right[k, j]
    return total


@inner()
def begin(mark: int, marks: Landmarks, state: PathState) -> int:
    """Go to the vertex of a landmark, with the goal ahead; the number of members."""
    vectors, slot, inverse, row = state.vectors, state.slot, state.inverse, state.row
    position, member, counters = state.position, state.member, state.counters
    rank, low = len(slot), marks.first[mark]
    members = int(marks.first[mark + 1] - low)
    counters[CLOCK] += 1
    counters[MARK] = mark + 1
    counters[KNOWN] = members
    for m in range(members):
        position[m] = marks.position[low + m]
        for a in range(MEMBER_ROWS):
            member[a, m] = marks.member[a, low + m]
        for j in range(rank):
            row[m, j] = marks.row[low + m, j]
    vertex = marks.vertex
    for k in range(rank):
        for a in range(INVERSE):
            vectors[a, k] = vertex[mark, a, k]
        for j in range(rank):
            inverse[k, j] = vertex[mark, INVERSE + k, j]
        vectors[HOME_SHIFT, k] = vectors[SHIFT, k]
        vectors[WAY, k] = 0.0
        slot[k] = marks.slot[mark, k]
        vectors[SIZE, k] = member[COPIES, slot[k]]
        vectors[DIRECTION, k] = vectors[GOAL, k] - marks.blocks[mark // WIDTH, k, mark % WIDTH]
    for k in range(rank):
        vectors[WEIGHT, k] = rows_dot(inverse, k, vectors, DIRECTION)
    return members


@inner(inline="always")
def keep(mark: int, members: int, scan: Scan, marks: Landmarks, state: PathState) -> bool:
    """Write the present vertex as a landmark; false, and nothing kept, if there is no room.

    A point that entered and left again to the side it came from is a member no more.
    """
    vectors, slot, member = state.vectors, state.slot, state.member
    rank, low, vertex = len(slot), marks.first[mark], marks.vertex
    end = low
    for m in range(members):
        position, side = state.position[m], member[SIDE, m]
        if position >= rank and side == scan.points[SIDE, position]:
            continue
        if end == len(marks.position) or end - low == MOST_MEMBERS * rank:
            return False
        for k in range(rank):
            if side == 0.0 and slot[k] == m:
                marks.slot[mark, k] = end - low
        marks.position[end] = position
        for a in range(MEMBER_ROWS):
            marks.member[a, end] = member[a, m]
        for j in range(rank):
            marks.row[end, j] = state.row[m, j]
        end += 1
    marks.first[mark + 1] = end
    for k in range(rank):
        for a in range(INVERSE):
            vertex[mark, a, k] = vectors[a, k]
        for j in range(rank):
            vertex[mark, INVERSE + k, j] = state.inverse[k, j]
        marks.blocks[mark // WIDTH, k, mark % WIDTH] = vectors[GOAL, k]
    marks.half_square[mark] = 0.5 * rows_dot(vectors, GOAL, vectors, GOAL)
    return True
