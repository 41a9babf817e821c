"""Where a path stands: the scratch space of a thread, and how it takes up and keeps a landmark.

Imports `kernels`, `landmarks`, `problem` and `scan`.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from trustsets.engine.kernels import WIDTH, dot, products
from trustsets.engine.landmarks import MEMBER_FACTOR, Landmarks
from trustsets.engine.problem import FloatArray, IntArray
from trustsets.engine.scan import Base

__all__ = ["Work", "allocate", "begin", "begin_at_base", "keep"]


class Work(NamedTuple):
    """Scratch space of one thread.

    The vertex lies `shift` away from the base vertex and `way` away from the landmark where the
    path began. Basic point k is member `slot[k]`; it has dual value `eta[k]`, which moves at
    rate ``-weight[k]`` on the way to `goal`. Members are the points whose role differs from the
    base vertex: its basic points and every point that entered since. The scan skips them (`near`
    and `home` are infinite there). `member_side` is 0 for basic points, else the sign of the
    residual; `slot_copies` and `member_copies` count equal calibration points.

    `near` and `speed` hold signed residuals and their rates in scan order. Those of a block
    belong to the present vertex if the block's `stamp` equals `clock`, which moves on at every
    step; `seen` lists the blocks scanned in this step. `home` holds signed residuals at the
    landmark and `floor` a lower bound of those of a block; they belong to the present landmark
    if `read` of the block and `opened` of the chapter equal `mark`. Points that share a landmark
    find them ready.
    """

    near: FloatArray
    speed: FloatArray
    stamp: IntArray
    clock: IntArray
    seen: IntArray
    home: FloatArray
    floor: FloatArray
    read: IntArray
    opened: IntArray
    mark: IntArray
    home_shift: FloatArray
    home_members: IntArray
    far: FloatArray
    centre_here: FloatArray
    centre_speed: FloatArray
    corner: FloatArray
    eta: FloatArray
    weight: FloatArray
    edge: FloatArray
    shift: FloatArray
    way: FloatArray
    pull: FloatArray
    ratio: FloatArray
    spare: FloatArray
    goal: FloatArray
    direction: FloatArray
    slot: IntArray
    slot_copies: FloatArray
    member_position: IntArray
    member_row: FloatArray
    member_side: FloatArray
    member_residual: FloatArray
    member_speed: FloatArray
    member_copies: FloatArray


@njit(cache=True, nogil=True)
def allocate(base: Base, cap: int) -> Work:
    """Scratch space for paths of `cap` pivots; pages of long arrays are free until touched."""
    n_padded, rank = len(base.distance), len(base.eta)
    n_blocks, n_chapters = n_padded // WIDTH, len(base.centres)
    capacity = MEMBER_FACTOR * rank + cap
    return Work(
        near=np.empty(n_padded),
        speed=np.empty(n_padded),
        stamp=np.zeros(n_blocks, np.int64),
        clock=np.zeros(1, np.int64),
        seen=np.empty(n_blocks, np.int64),
        home=np.empty(n_padded),
        floor=np.empty(n_chapters * WIDTH),
        read=np.zeros(n_blocks, np.int64),
        opened=np.zeros(n_chapters, np.int64),
        mark=np.zeros(1, np.int64),
        home_shift=np.zeros(rank),
        home_members=np.zeros(1, np.int64),
        far=np.zeros(1),
        centre_here=np.empty(WIDTH),
        centre_speed=np.empty(WIDTH),
        corner=np.empty((rank, rank)),
        eta=np.empty(rank),
        weight=np.empty(rank),
        edge=np.empty(rank),
        shift=np.empty(rank),
        way=np.empty(rank),
        pull=np.empty(rank),
        ratio=np.empty(rank),
        spare=np.empty(rank),
        goal=np.empty(rank),
        direction=np.empty(rank),
        slot=np.empty(rank, np.int64),
        slot_copies=np.empty(rank),
        member_position=np.empty(capacity, np.int64),
        member_row=np.empty((capacity, rank)),
        member_side=np.empty(capacity),
        member_residual=np.empty(capacity),
        member_speed=np.empty(capacity),
        member_copies=np.empty(capacity),
    )


@njit(cache=True, nogil=True)
def begin(mark: int, marks: Landmarks, work: Work) -> int:
    """Go to the vertex of a landmark, with `goal` ahead; the number of members."""
    rank = len(work.eta)
    work.clock[0] += 1
    work.mark[0] = mark + 1
    members = int(marks.n_members[mark])
    work.home_members[0] = members
    for m in range(members):
        work.member_position[m] = marks.position[mark, m]
        work.member_side[m] = marks.side[mark, m]
        work.member_residual[m] = marks.residual[mark, m]
        work.member_copies[m] = marks.copies[mark, m]
        for j in range(rank):
            work.member_row[m, j] = marks.row[mark, m, j]
    for k in range(rank):
        work.eta[k] = marks.eta[mark, k]
        work.pull[k] = marks.pull[mark, k]
        work.shift[k] = marks.shift[mark, k]
        work.home_shift[k] = marks.shift[mark, k]
        work.way[k] = 0.0
        work.slot[k] = marks.slot[mark, k]
        work.slot_copies[k] = work.member_copies[work.slot[k]]
        work.direction[k] = work.goal[k] - marks.goal[mark, k]
        for j in range(rank):
            work.corner[k, j] = marks.corner[mark, k, j]
    work.far[0] = np.sqrt(dot(work.shift, work.shift))
    products(work.corner, work.direction, work.weight)
    return members


@njit(cache=True, nogil=True)
def begin_at_base(base: Base, work: Work) -> int:
    """Go to the base vertex, whose goal is zero; the number of members."""
    rank = len(work.eta)
    work.corner[:] = base.corner
    work.eta[:] = base.eta
    work.pull[:] = base.pull
    work.shift[:] = 0.0
    work.goal[:] = 0.0
    for k in range(rank):
        work.slot[k] = k
        work.member_position[k] = k
        work.member_side[k] = 0.0
        work.member_residual[k] = 0.0
        work.member_copies[k] = base.copies[k]
        for j in range(rank):
            work.member_row[k, j] = base.rows[k, j]
    return rank


@njit(cache=True, nogil=True)
def keep(mark: int, members: int, base: Base, marks: Landmarks, work: Work) -> bool:
    """Write the present vertex as a landmark; false, and nothing kept, if it has many members.

    A point that entered and left again to the side it came from is a member no more.
    """
    rank, count = len(work.eta), 0
    for m in range(members):
        position, side = work.member_position[m], work.member_side[m]
        if position >= rank and side == base.side[position]:
            continue
        if count == marks.position.shape[1]:
            return False
        for k in range(rank):
            if side == 0.0 and work.slot[k] == m:
                marks.slot[mark, k] = count
        marks.position[mark, count] = position
        marks.side[mark, count] = side
        marks.residual[mark, count] = work.member_residual[m]
        marks.copies[mark, count] = work.member_copies[m]
        marks.row[mark, count] = work.member_row[m]
        count += 1
    marks.n_members[mark] = count
    marks.goal[mark] = work.goal
    marks.shift[mark] = work.shift
    marks.corner[mark] = work.corner
    marks.eta[mark] = work.eta
    marks.pull[mark] = work.pull
    marks.blocks[mark // WIDTH, :, mark % WIDTH] = work.goal
    marks.half_square[mark] = 0.5 * dot(work.goal, work.goal)
    return True
