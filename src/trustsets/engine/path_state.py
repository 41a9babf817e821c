"""The state of a path: the work arrays of a thread, and how they load and store a landmark."""

from typing import Any, NamedTuple, cast

import numpy as np

from trustsets.engine.compiled import FloatArray, IntArray, inner
from trustsets.engine.kernels import WIDTH, rows_dot
from trustsets.engine.landmarks import FROM_BASE, INVERSE, MEMBER_ROWS, MOST_MEMBERS, Landmarks
from trustsets.engine.scan_order import COPIES, SIDE, Scan

# Rows of `PathState.vectors` after `FROM_BASE`, `DUAL` and `NONBASIC_SUM`, and their number.
(
    FROM_LANDMARK,
    LANDMARK_SHIFT,
    EDGE,
    COEFFICIENT,
    BASIC_COPIES,
    GOAL,
    DIRECTION,
    ROW,
    SPARE,
    N_VECTORS,
) = cast(Any, np.arange(3, 13))
# Row of `PathState.member` after `SIDE`, `COPIES` and `RESIDUAL`, and the number of rows.
SPEED, N_MEMBER = cast(Any, np.arange(3, 5))
# Rows of `PathState.visits`, and their number.
UPDATED_AT, READ_FOR, SCANNED, BOUNDED_FOR, N_VISITS = cast(Any, np.arange(5))
# Entries of `PathState.counters`, and their number.
STEP, LANDMARK, LANDMARK_MEMBERS, N_COUNTERS = cast(Any, np.arange(4))

FIRST_CACHE = 2 * WIDTH
"""Where the blocks begin in `PathState.cache`."""
BLOCK_CACHE = 3 * WIDTH
"""Entries of a block there."""


class PathState(NamedTuple):
    """The work arrays of one thread, packed in four groups (see `scan_order` for why).

    Attributes
    ----------
    vectors : (N_VECTORS, rank) array
        The vertex. It lies `FROM_BASE` away from the base vertex and `FROM_LANDMARK` away from the
        landmark where the path started, which lies `LANDMARK_SHIFT` away from the base vertex.
        `EDGE` is the direction of the step. `NONBASIC_SUM` is the sum of the nonbasic points' rows
        times their dual values. Basic point k has dual value ``DUAL[k]`` and ``BASIC_COPIES[k]``
        copies. `ROW` is the test row, `GOAL` that row times its weight, and `DIRECTION` the goal
        less that of the landmark. ``COEFFICIENT`` expresses `DIRECTION` (at the end of a path:
        `ROW`) in the basic rows; on the way, dual value k falls at the rate ``COEFFICIENT[k]``.
        `SPARE` is scratch.
    slot : (rank,) array
        Vertex: basic point k is member ``slot[k]``.
    inverse : (rank, rank) array
        Vertex: the inverse basis, transposed (see `kernels`).
    position, row : (most,) and (most, rank) arrays
        Members: the points whose role may differ from that at the base vertex, which are its basic
        points and every point that entered since. The scan skips members.
    member : (N_MEMBER, most) array
        Members: `SIDE`, 0 for basic points and else the sign of the residual; `COPIES`;
        `RESIDUAL`; `SPEED`, the rate at which the residual falls along the edge.
    cache : (FIRST_CACHE + n_blocks * BLOCK_CACHE,) array
        Scan cache: two times `WIDTH` entries for the products of the centres of a superblock with
        `FROM_LANDMARK` and `EDGE`; then three times `WIDTH` for each block of points, their signed
        residuals at the landmark, those at the vertex, and their rates. Members are infinite.
    floor : (n_superblocks * WIDTH,) array
        Scan cache: a lower bound of the residuals of each block at the landmark.
    visits : (N_VISITS, n_blocks) array
        Scan cache: residuals of a block at the vertex are valid if `UPDATED_AT` equals the `STEP`;
        those at the landmark if `READ_FOR` equals the `LANDMARK`; and floors if `BOUNDED_FOR` of
        the superblock does, so that paths from one landmark share them. `SCANNED` lists the blocks
        that this step scanned.
    counters : (N_COUNTERS,) array
        Scan cache: `STEP` grows with every step, `LANDMARK` is the number of the landmark plus
        one, `LANDMARK_MEMBERS` the number of its members.
    ratio : (rank,) array
        Scratch of the exchange (see `kernels`).
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
    """Work arrays for paths of at most `most` members; memory that is not touched costs nothing."""
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


@inner()
def load_landmark(landmark: int, landmarks: Landmarks, state: PathState) -> int:
    """Go to the vertex of a landmark and set the direction to the goal; the number of members."""
    vectors, slot, inverse, row = state.vectors, state.slot, state.inverse, state.row
    position, member, counters = state.position, state.member, state.counters
    rank, low = len(slot), landmarks.first[landmark]
    members = int(landmarks.first[landmark + 1] - low)
    counters[STEP] += 1
    counters[LANDMARK] = landmark + 1
    counters[LANDMARK_MEMBERS] = members
    for m in range(members):
        position[m] = landmarks.position[low + m]
        for a in range(MEMBER_ROWS):
            member[a, m] = landmarks.member[a, low + m]
        for j in range(rank):
            row[m, j] = landmarks.row[low + m, j]
    vertex, block, lane = landmarks.vertex, landmark // WIDTH, landmark % WIDTH
    for k in range(rank):
        for a in range(INVERSE):
            vectors[a, k] = vertex[landmark, a, k]
        for j in range(rank):
            inverse[k, j] = vertex[landmark, INVERSE + k, j]
        vectors[LANDMARK_SHIFT, k] = vectors[FROM_BASE, k]
        vectors[FROM_LANDMARK, k] = 0.0
        slot[k] = landmarks.slot[landmark, k]
        vectors[BASIC_COPIES, k] = member[COPIES, slot[k]]
        vectors[DIRECTION, k] = vectors[GOAL, k] - landmarks.blocks[block, k, lane]
    for k in range(rank):
        vectors[COEFFICIENT, k] = rows_dot(inverse, k, vectors, DIRECTION)
    return members


@inner(inline="always")
def store_landmark(
    landmark: int, members: int, scan: Scan, landmarks: Landmarks, state: PathState
) -> bool:
    """Write the present vertex as a landmark; false if there is no room for it."""
    vectors, slot, member = state.vectors, state.slot, state.member
    rank, low, vertex = len(slot), landmarks.first[landmark], landmarks.vertex
    end = low
    for m in range(members):
        position, side = state.position[m], member[SIDE, m]
        # A point that entered and left to its old side has its role at the base vertex again.
        if position >= rank and side == scan.points[SIDE, position]:
            continue
        if end == len(landmarks.position) or end - low == MOST_MEMBERS * rank:
            return False
        for k in range(rank):
            if side == 0.0 and slot[k] == m:
                landmarks.slot[landmark, k] = end - low
        landmarks.position[end] = position
        for a in range(MEMBER_ROWS):
            landmarks.member[a, end] = member[a, m]
        for j in range(rank):
            landmarks.row[end, j] = state.row[m, j]
        end += 1
    landmarks.first[landmark + 1] = end
    for k in range(rank):
        for a in range(INVERSE):
            vertex[landmark, a, k] = vectors[a, k]
        for j in range(rank):
            vertex[landmark, INVERSE + k, j] = state.inverse[k, j]
        landmarks.blocks[landmark // WIDTH, k, landmark % WIDTH] = vectors[GOAL, k]
    landmarks.half_square[landmark] = 0.5 * rows_dot(vectors, GOAL, vectors, GOAL)
    return True
