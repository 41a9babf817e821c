"""Where a path stands: the scratch space of a thread, and how it takes up and keeps a landmark.

Imports `kernels`, `landmarks`, `problem` and `scan`.
"""

from typing import NamedTuple

import numpy as np

from trustsets.engine.compiled import inner
from trustsets.engine.kernels import WIDTH, dot, products
from trustsets.engine.landmarks import MOST_MEMBERS, Landmarks
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


@inner()
def allocate(base: Base, most: int) -> Work:
    """Scratch space for paths of at most `most` members; untouched pages cost nothing."""
    n_padded, rank = len(base.distance), len(base.eta)
    n_blocks, n_chapters = n_padded // WIDTH, len(base.centres)
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
        member_position=np.empty(most, np.int64),
        member_row=np.empty((most, rank)),
        member_side=np.empty(most),
        member_residual=np.empty(most),
        member_speed=np.empty(most),
        member_copies=np.empty(most),
    )


@inner()
def begin(mark: int, marks: Landmarks, work: Work) -> int:
    """Go to the vertex of a landmark, with `goal` ahead; the number of members."""
    rank = len(work.eta)
    work.clock[0] += 1
    work.mark[0] = mark + 1
    low = marks.first[mark]
    members = int(marks.first[mark + 1] - low)
    work.home_members[0] = members
    for m in range(members):
        work.member_position[m] = marks.position[low + m]
        work.member_side[m] = marks.side[low + m]
        work.member_residual[m] = marks.residual[low + m]
        work.member_copies[m] = marks.copies[low + m]
        for j in range(rank):
            work.member_row[m, j] = marks.row[low + m, j]
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


@inner()
def begin_at_base(base: Base, work: Work) -> int:
    """Go to the base vertex, whose goal is zero; the number of members."""
    rank = len(work.eta)
    for k in range(rank):
        work.eta[k] = base.eta[k]
        work.pull[k] = base.pull[k]
        work.shift[k] = 0.0
        work.goal[k] = 0.0
        work.slot[k] = k
        work.member_position[k] = k
        work.member_side[k] = 0.0
        work.member_residual[k] = 0.0
        work.member_copies[k] = base.copies[k]
        for j in range(rank):
            work.corner[k, j] = base.corner[k, j]
            work.member_row[k, j] = base.rows[k, j]
    return rank


@inner()
def keep(mark: int, members: int, base: Base, marks: Landmarks, work: Work) -> bool:
    """Write the present vertex as a landmark; false, and nothing kept, if there is no room.

    A point that entered and left again to the side it came from is a member no more.
    """
    rank, low = len(work.eta), marks.first[mark]
    end = low
    for m in range(members):
        position, side = work.member_position[m], work.member_side[m]
        if position >= rank and side == base.side[position]:
            continue
        if end == len(marks.position) or end - low == MOST_MEMBERS * rank:
            return False
        for k in range(rank):
            if side == 0.0 and work.slot[k] == m:
                marks.slot[mark, k] = end - low
        marks.position[end] = position
        marks.side[end] = side
        marks.residual[end] = work.member_residual[m]
        marks.copies[end] = work.member_copies[m]
        for j in range(rank):
            marks.row[end, j] = work.member_row[m, j]
        end += 1
    marks.first[mark + 1] = end
    for k in range(rank):
        marks.goal[mark, k] = work.goal[k]
        marks.shift[mark, k] = work.shift[k]
        marks.eta[mark, k] = work.eta[k]
        marks.pull[mark, k] = work.pull[k]
        marks.blocks[mark // WIDTH, k, mark % WIDTH] = work.goal[k]
        for j in range(rank):
            marks.corner[mark, k, j] = work.corner[k, j]
    marks.half_square[mark] = 0.5 * dot(work.goal, work.goal)
    return True
