"""Exact thresholds of many test points, by following a parametric linear program.

A test row q gets weight v, which grows from 0 to its target. The vertex of the base fit stays
optimal until the dual value of a basic point reaches its bound; then that point leaves, the
vertex moves along its edge until the first other residual is zero, and that point enters. The
steps are `_price`, `_ratio_test`, `_pivot` and `_finish`; `_follow` is the loop around them.

Which points a step must look at, and why that is exact, is told in `scan`. Imports `kernels`,
`problem`, `scan` and `trustsets.status`.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from trustsets.engine.kernels import dot, exchange, products, row_dot, snap
from trustsets.engine.problem import FloatArray, IntArray, whiten_row
from trustsets.engine.scan import WIDTH, Base, block_products
from trustsets.status import Status

__all__ = ["LEVEL_TOL", "follow_all"]

LEVEL_TOL = 1e-9
"""Breakpoints this close to the target level count as equal to it."""
WEIGHT_TOL = 1e-11
"""Basic points with a smaller share than this in the test row do not move."""
EDGE_TOL = 1e-11
"""A product with an edge below this share of the edge's length counts as zero."""
RADIUS_SLACK = 1.0 + 1e-9
"""Room for rounding in the comparison of keys and distances."""
UNREACHED = 1e150
"""The length of a step that nothing ends; finite, so that its products are numbers."""
BOUND_SLACK = 1.0 - 1e-9
"""Room for rounding in the bound of a block."""
CHECK_TOL = 1e-9
"""Accuracy asked of weights and dual values at the end of a path."""
CAP_FACTOR, CAP_BASE = 8, 50
"""A path may take `CAP_FACTOR * rank + CAP_BASE` pivots; longer ones are for the descent."""
REFRESH = 50
"""Pivots between two computations of the vertex from scratch."""

EXACT = int(Status.EXACT)
FALLBACK = int(Status.FALLBACK)
INFINITE = int(Status.HIGH_LEVERAGE)


class Work(NamedTuple):
    """Scratch space of one thread.

    `near` and `speed` hold signed residuals and their rates in scan order. Those of a block
    belong to the present vertex if the block's `stamp` equals `clock[0]`, which moves on at every
    step; `seen` lists the blocks scanned in this step. Members are the points whose role differs
    from the base vertex: its basic points and every point that entered since. The scan skips them
    (`near` is infinite there).
    """

    near: FloatArray
    speed: FloatArray
    stamp: IntArray
    clock: IntArray
    seen: IntArray
    centre_here: FloatArray
    centre_speed: FloatArray
    corner: FloatArray
    eta: FloatArray
    weight: FloatArray
    edge: FloatArray
    shift: FloatArray
    pull: FloatArray
    ratio: FloatArray
    spare: FloatArray
    member_position: IntArray
    member_row: FloatArray
    member_side: FloatArray
    member_residual: FloatArray
    member_speed: FloatArray
    slot: IntArray


@njit(cache=True, nogil=True)
def follow_all(
    phi: FloatArray,
    levels: FloatArray,
    scale: FloatArray,
    independent: IntArray,
    transform: FloatArray,
    base: Base,
    values: FloatArray,
    status: NDArray[np.int8],
    pivots: IntArray,
) -> None:
    """Thresholds of the rows of `phi`; writes `values`, `status` and `pivots` in place."""
    rank = len(base.eta)
    work = _allocate(base)
    row, low = np.empty(rank), np.empty(rank)
    for i in range(len(phi)):
        sign = 1.0 if levels[i] > 0.0 else -1.0
        whiten_row(phi[i], scale, independent, transform, row, low)
        for j in range(rank):
            row[j] *= sign
        # Below zero the path runs the other way on -q. The threshold is the smallest optimal
        # value either way: at equality a rising path stops and a falling one goes on.
        target = abs(levels[i])
        value, status[i], pivots[i] = _follow(row, target, sign > 0.0, base, work)
        values[i] = sign * value


@njit(cache=True, nogil=True)
def _allocate(base: Base) -> Work:
    """Scratch space; pages of the two long arrays cost nothing until they are touched."""
    n_padded, rank = len(base.distance), len(base.eta)
    capacity = rank + CAP_FACTOR * rank + CAP_BASE
    member_row = np.empty((capacity, rank))
    member_row[:rank] = base.rows
    return Work(
        np.empty(n_padded),
        np.empty(n_padded),
        np.zeros(n_padded // WIDTH, np.int64),
        np.zeros(1, np.int64),
        np.empty(n_padded // WIDTH, np.int64),
        np.empty(WIDTH),
        np.empty(WIDTH),
        np.empty((rank, rank)),
        np.empty(rank),
        np.empty(rank),
        np.empty(rank),
        np.empty(rank),
        np.empty(rank),
        np.empty(rank),
        np.empty(rank),
        np.arange(capacity),
        member_row,
        np.empty(capacity),
        np.empty(capacity),
        np.empty(capacity),
        np.empty(rank, np.int64),
    )


@njit(cache=True, nogil=True)
def _follow(
    row: FloatArray, target: float, stop_at_equality: bool, base: Base, work: Work
) -> tuple[float, int, int]:
    """Value, status and number of pivots of one test row."""
    # |Q' eta| <= reach for every eta in the box: a longer row cannot be balanced. Written so
    # that a row which overflowed ends here too.
    if not np.sqrt(dot(row, row)) * target <= base.reach:
        return np.inf, INFINITE, 0
    _start(row, base, work)
    members, level = len(row), 0.0
    goal = target - LEVEL_TOL if stop_at_equality else target + LEVEL_TOL
    for pivot in range(CAP_FACTOR * len(row) + CAP_BASE):
        if pivot > 0 and pivot % REFRESH == 0:
            _refresh(row, members, base, work)
        leaving, room = _price(work.eta, work.weight, base.alpha)
        if leaving < 0 or level + room > goal:
            value, ok = _finish(row, target, base, work)
            return value, EXACT if ok else FALLBACK, pivot
        level += room
        _leave(leaving, room, base.alpha, work)
        length, entering, seen = _ratio_test(members, base, work)
        if entering < 0:
            return np.inf, INFINITE, pivot
        _advance(length, members, seen, work)
        members = _enter(leaving, entering, members, base, work)
    return np.nan, FALLBACK, CAP_FACTOR * len(row) + CAP_BASE


@njit(cache=True, nogil=True)
def _start(row: FloatArray, base: Base, work: Work) -> None:
    """Begin at the base vertex."""
    work.clock[0] += 1
    work.corner[:] = base.corner
    work.eta[:] = base.eta
    work.pull[:] = base.pull
    work.shift[:] = 0.0
    products(base.corner, row, work.weight)
    for k in range(len(row)):
        work.slot[k] = k
        work.member_side[k] = 0.0


@njit(cache=True, nogil=True)
def _gather(blocks: FloatArray, position: int, side: float, out: FloatArray, member: int) -> None:
    """Copy the row of one point out of its block."""
    block, lane = position // WIDTH, position % WIDTH
    for j in range(out.shape[1]):
        out[member, j] = side * blocks[block, j, lane]


@njit(cache=True, nogil=True)
def _price(eta: FloatArray, weight: FloatArray, alpha: float) -> tuple[int, float]:
    """Find the basic point whose dual value meets its bound first, and the level until then.

    Dual values move at rate ``-weight``; -1 when none moves.
    """
    leaving, best, largest = -1, np.inf, 1.0
    for k in range(len(weight)):
        largest = max(largest, abs(weight[k]))
    for k in range(len(weight)):
        if abs(weight[k]) > WEIGHT_TOL * largest:
            bound = 1.0 - alpha if weight[k] < 0.0 else -alpha
            room = max((eta[k] - bound) / weight[k], 0.0)
            if room < best:
                leaving, best = k, room
    return leaving, best


@njit(cache=True, nogil=True)
def _leave(leaving: int, room: float, alpha: float, work: Work) -> None:
    """Move the dual values, take the leaving point out of the basis and set the edge."""
    for k in range(len(work.eta)):
        work.eta[k] -= room * work.weight[k]
    rises = work.weight[leaving] < 0.0
    bound = 1.0 - alpha if rises else -alpha
    member = work.slot[leaving]
    # At its upper bound a residual may turn positive: Q_k edge = -1; at the lower one, +1.
    work.member_side[member] = 1.0 if rises else -1.0
    work.member_residual[member] = 0.0
    for j in range(len(work.edge)):
        work.edge[j] = -work.member_side[member] * work.corner[leaving, j]
        work.pull[j] += bound * work.member_row[member, j]


@njit(cache=True, nogil=True)
def _ratio_test(members: int, base: Base, work: Work) -> tuple[float, int, int]:
    """First zero of a residual along the edge: step, entering point, number of blocks seen.

    The entering point is a member's number, or the number of members plus its position; it is
    -1 when the edge is a ray.
    """
    long = dot(work.edge, work.edge)
    tiny = EDGE_TOL * np.sqrt(long)
    here, along = dot(work.shift, work.shift), dot(work.shift, work.edge)
    length, entering = _member_crossing(members, tiny, work)
    radius, seen = _radius(here, along, long, length), 0
    for chapter in range(len(base.centres)):
        if base.first_key[chapter * WIDTH] > radius:
            break
        block_products(base.centres, chapter, work.shift, work.centre_here, 0)
        block_products(base.centres, chapter, work.edge, work.centre_speed, 0)
        for lane in range(WIDTH):
            block = chapter * WIDTH + lane
            if base.first_key[block] > radius:
                break
            # The bound of the block: at the end of the step its signed products stay below this.
            end = work.centre_here[lane] + length * work.centre_speed[lane]
            bound = end + base.spread[block] * radius
            if bound < BOUND_SLACK * base.least[block]:
                continue
            work.seen[seen] = block
            seen += 1
            if work.stamp[block] != work.clock[0]:
                _load(block, members, base.blocks, base.distance, work)
            block_products(base.blocks, block, work.edge, work.speed, block * WIDTH)
            shorter, position = _block_crossing(work.near, work.speed, block * WIDTH, tiny, length)
            if position >= 0:
                length, entering = shorter, members + position
                radius = _radius(here, along, long, length)
    return length, entering, seen


@njit(cache=True, nogil=True)
def _radius(here: float, along: float, long: float, length: float) -> float:
    """Distance from the base vertex after a step of `length` along the edge."""
    if length >= UNREACHED:
        return UNREACHED * UNREACHED  # beyond all keys, but not beyond padding
    square = here + length * (2.0 * along + length * long)
    return float(RADIUS_SLACK * np.sqrt(max(square, 0.0)))


@njit(cache=True, nogil=True)
def _member_crossing(members: int, tiny: float, work: Work) -> tuple[float, int]:
    """First zero among members that are not basic."""
    length, entering = UNREACHED, -1
    for m in range(members):
        side = work.member_side[m]
        if side != 0.0:
            rate = row_dot(work.member_row, m, work.edge)
            work.member_speed[m] = rate
            if side * rate > tiny:
                step = max(side * work.member_residual[m], 0.0) / (side * rate)
                if step < length:
                    length, entering = step, m
    return length, entering


@njit(cache=True, nogil=True)
def _load(block: int, members: int, blocks: FloatArray, distance: FloatArray, work: Work) -> None:
    """Signed residuals of one more block at the present vertex."""
    low = block * WIDTH
    block_products(blocks, block, work.shift, work.near, low)
    for i in range(low, low + WIDTH):
        work.near[i] = distance[i] - work.near[i]
    for m in range(members):
        if work.member_position[m] // WIDTH == block:
            work.near[work.member_position[m]] = np.inf


@njit(cache=True, nogil=True)
def _block_crossing(
    near: FloatArray, speed: FloatArray, low: int, tiny: float, length: float
) -> tuple[float, int]:
    """First zero before `length` in the block at `low`: step and position, or -1.

    The count is a loop without branches, which vectorises; nearly all blocks end there.
    """
    count = 0
    for i in range(low, low + WIDTH):
        count += (speed[i] > tiny) & (near[i] < length * speed[i])
    found = -1
    if count > 0:
        for i in range(low, low + WIDTH):
            if speed[i] > tiny and near[i] < length * speed[i]:
                length, found = max(near[i], 0.0) / speed[i], i
    return length, found


@njit(cache=True, nogil=True)
def _advance(length: float, members: int, seen: int, work: Work) -> None:
    """Move the vertex and all residuals in view."""
    work.clock[0] += 1
    for j in range(len(work.shift)):
        work.shift[j] += length * work.edge[j]
    for m in range(members):
        if work.member_side[m] != 0.0:
            work.member_residual[m] -= length * work.member_speed[m]
    for s in range(seen):
        low = work.seen[s] * WIDTH
        work.stamp[work.seen[s]] = work.clock[0]
        for i in range(low, low + WIDTH):
            work.near[i] -= length * work.speed[i]


@njit(cache=True, nogil=True)
def _enter(leaving: int, entering: int, members: int, base: Base, work: Work) -> int:
    """Make the entering point basic in place of the leaving one; the new number of members."""
    member = entering
    if entering >= members:
        member, position = members, entering - members
        work.member_position[member] = position
        work.member_side[member] = base.side[position]
        _gather(base.blocks, position, base.side[position], work.member_row, member)
        work.near[position] = np.inf
        members += 1
    bound = 1.0 - base.alpha if work.member_side[member] > 0.0 else -base.alpha
    work.member_side[member] = 0.0
    work.member_residual[member] = 0.0
    work.slot[leaving] = member
    work.eta[leaving] = bound
    exchange(work.corner, leaving, work.member_row, member, work.ratio)
    pivot_weight = work.weight[leaving]
    for k in range(len(work.weight)):
        work.pull[k] -= bound * work.member_row[member, k]
        work.weight[k] -= work.ratio[k] * pivot_weight
    work.weight[leaving] = work.ratio[leaving] * pivot_weight
    return members


@njit(cache=True, nogil=True)
def _refresh(row: FloatArray, members: int, base: Base, work: Work) -> None:
    """Compute inverse, weights, vertex and residuals without the drift of updates."""
    work.clock[0] += 1
    rank = len(row)
    block = np.empty((rank, rank))
    for k in range(rank):
        block[k] = work.member_row[work.slot[k]]
    work.corner[:] = np.linalg.inv(block).T
    products(work.corner, row, work.weight)
    work.shift[:] = 0.0
    for k in range(rank):
        start = _base_residual(work.member_position[work.slot[k]], base)
        for j in range(rank):
            work.shift[j] += start * work.corner[k, j]
    for m in range(members):
        if work.member_side[m] != 0.0:
            start = _base_residual(work.member_position[m], base)
            work.member_residual[m] = start - row_dot(work.member_row, m, work.shift)


@njit(cache=True, nogil=True)
def _base_residual(position: int, base: Base) -> float:
    """Residual of a point at the base vertex."""
    if position < len(base.eta):
        return 0.0
    return float(base.side[position] * base.distance[position])


@njit(cache=True, nogil=True)
def _finish(row: FloatArray, target: float, base: Base, work: Work) -> tuple[float, bool]:
    """Threshold of the last vertex, and whether the vertex passes its check.

    Everything is measured against the basic rows themselves, not against the updated inverse,
    which only serves to correct. The weights solve ``Q_B' w = q`` and the threshold is
    ``w @ s_B`` with scores as given. Dual feasibility does not depend on scores, so breaking
    ties moved the path but not this value.
    """
    rank = len(row)
    for _ in range(2):
        off = _refine(row, work.weight, work)
    for j in range(rank):
        work.edge[j] = -target * row[j] - work.pull[j]
    for _ in range(2):
        off_dual = _refine(work.edge, work.eta, work)
    drift, outside, value = 0.0, 0.0, 0.0
    for k in range(rank):
        member = work.slot[k]
        position = work.member_position[member]
        start = _base_residual(position, base)
        drift = max(drift, abs(start - row_dot(work.member_row, member, work.shift)))
        outside = max(outside, work.eta[k] - (1.0 - base.alpha), -base.alpha - work.eta[k])
        value += snap(work.weight[k]) * base.scores[position]
    size = max(1.0, np.sqrt(dot(row, row)))
    accurate = off <= CHECK_TOL * size and off_dual <= CHECK_TOL * size
    return value, accurate and outside <= 10.0 * CHECK_TOL * size and drift <= base.tolerance


@njit(cache=True, nogil=True)
def _refine(target: FloatArray, solution: FloatArray, work: Work) -> float:
    """One step of refinement of ``Q_B' solution = target``; the largest error before it."""
    for j in range(len(target)):
        work.spare[j] = target[j]
    for k in range(len(target)):
        member = work.slot[k]
        for j in range(len(target)):
            work.spare[j] -= solution[k] * work.member_row[member, j]
    worst = 0.0
    for j in range(len(target)):
        worst = max(worst, abs(work.spare[j]))
    for k in range(len(target)):
        solution[k] += row_dot(work.corner, k, work.spare)
    return worst
