"""Exact thresholds of many test points, by following a parametric linear program.

The goal of a test point is its row times its level, and the vertex of a landmark is optimal for
the landmark's goal. Going from there to the goal of the test point, the vertex stays optimal
until the dual value of a basic point reaches its bound; then that point leaves, the vertex moves
along its edge until the first other residual is zero, and that point enters. The steps are
`_price`, `_leave`, `first_crossing`, `_enter` and `_finish`; `_follow` is the loop around them.

Imports `crossing`, `kernels`, `landmarks`, `problem`, `scan`, `work` and `trustsets.status`.
"""

import numpy as np
from numpy.typing import NDArray

from trustsets.engine.compiled import entry, inner
from trustsets.engine.crossing import advance, first_crossing
from trustsets.engine.kernels import WIDTH, dot, exchange, invert, products, row_dot, snap
from trustsets.engine.landmarks import (
    MOST,
    MOST_MEMBERS,
    ROUND,
    Landmarks,
    candidate_rows,
    empty_landmarks,
    nearest_landmark,
)
from trustsets.engine.problem import FloatArray, IntArray, Problem
from trustsets.engine.scan import Base
from trustsets.engine.work import Work, allocate, begin, begin_at_base, keep
from trustsets.status import Status

__all__ = ["LEVEL_TOL", "follow_all", "make_landmarks"]

LEVEL_TOL = 1e-9
"""Breakpoints this close to the target level count as equal to it."""
WEIGHT_TOL = 1e-11
"""Basic points with a smaller share than this in the direction do not move."""
CHECK_TOL = 1e-9
"""Accuracy asked of weights and dual values at the end of a path."""
CAP_FACTOR, CAP_BASE = 5, 20
"""A path may take `CAP_FACTOR * rank + CAP_BASE` pivots; longer ones are for the descent."""
LANDMARK_CAP_FACTOR = 20
"""The same for landmarks: those found first are far from all others."""
REFRESH = 50
"""Pivots between two computations of the vertex from scratch."""
WORTH_KEEPING = 2
"""Pivots from the nearest landmark from which on a row becomes a landmark itself."""
ENOUGH = 4
"""Pivots that candidates take on average when there are landmarks enough."""
LANDMARK_BUDGET = 20_000_000
"""Most work on landmarks, about, in pivots times the squared rank: some tenths of a second."""

EXACT = int(Status.EXACT)
FALLBACK = int(Status.FALLBACK)
INFINITE = int(Status.HIGH_LEVERAGE)


def make_landmarks(problem: Problem, base: Base, most: int = MOST) -> Landmarks:
    """Solve some calibration rows, as if they were test rows at the highest level."""
    rows = candidate_rows(problem, most)
    marks = empty_landmarks(1 + len(rows), rows.shape[1])
    levels, starts = np.full(len(rows), 1.0 - problem.alpha), np.zeros(len(rows), np.int64)
    ignored = np.empty(len(rows)), np.empty(len(rows), np.int8), np.empty(len(rows), np.int64)
    follow_all(rows, levels, starts, np.arange(len(rows)), base, marks, True, *ignored)
    return marks


@entry()
def follow_all(
    rows: FloatArray,
    levels: FloatArray,
    starts: IntArray,
    order: IntArray,
    base: Base,
    marks: Landmarks,
    fill: bool,
    values: FloatArray,
    status: NDArray[np.int8],
    pivots: IntArray,
) -> None:
    """Thresholds of the whitened rows numbered in `order`, from the landmarks `starts`.

    Writes `values`, `status` and `pivots` in place. Rows with the same landmark should be
    neighbours in `order`: they share what is known about its surroundings. With `fill` there are no
    landmarks yet: the rows are to become them. (A function of its own would take as long to
    compile again.)
    """
    rank = rows.shape[1]
    work, cap = allocate(base, _most(rank)), _cap(rank)
    if fill:
        found = begin_at_base(base, work)
        keep(0 * found, found, base, marks, work)
        found, cap = found // max(rank, 1), _landmark_cap(rank)
    taken = before = 0
    for i in order:
        start = starts[i]
        if fill:
            if i % ROUND == 0 and i > 0:
                if taken - before < ENOUGH * ROUND:
                    return
                before = taken
            if taken * rank * rank > LANDMARK_BUDGET:
                return
            start = nearest_landmark(rows, i, levels[i], marks, found, work.centre_here)
        values[i], status[i], pivots[i], members = _follow(
            rows[i], levels[i], start, cap, base, marks, work
        )
        if fill:
            taken += pivots[i]
            if status[i] == EXACT and pivots[i] >= WORTH_KEEPING and _refresh(members, base, work):
                found += keep(found, members, base, marks, work)


@inner()
def _cap(rank: int) -> int:
    return CAP_FACTOR * rank + CAP_BASE


@inner()
def _landmark_cap(rank: int) -> int:
    return LANDMARK_CAP_FACTOR * rank + CAP_BASE


@inner()
def _most(rank: int) -> int:
    """Members that a path can have: every pivot adds one to those of the landmark."""
    return MOST_MEMBERS * rank + _landmark_cap(rank)


@inner()
def _follow(
    row: FloatArray,
    level: float,
    start: int,
    cap: int,
    base: Base,
    marks: Landmarks,
    work: Work,
) -> tuple[float, int, int, int]:
    """Value, status and number of pivots of one test row; and of members where it is exact."""
    infinity = np.inf if level > 0.0 else -np.inf
    # |Q' eta| <= reach for every eta in the box: a longer row cannot be balanced. Written so
    # that a row which overflowed ends here too.
    if not np.sqrt(dot(row, row)) * abs(level) <= base.reach:
        return infinity, INFINITE, 0, 0
    # Just below the level the optimum is unique, and it is the smallest one at the level.
    for j in range(len(row)):
        work.goal[j] = (level - LEVEL_TOL) * row[j]
    members, done = begin(start, marks, work), 0.0
    for pivot in range(cap):
        if pivot > 0 and pivot % REFRESH == 0:
            if not _refresh(members, base, work):
                return np.nan, FALLBACK, pivot, 0
        leaving, room = _price(work.eta, work.weight, work.slot_copies, base.alpha)
        if leaving < 0 or done + room > 1.0:
            value, accurate = _finish(row, base, work)
            return value, EXACT if accurate else FALLBACK, pivot, members
        done += room
        _leave(leaving, room, base.alpha, work)
        length, entering, seen = first_crossing(members, base, work)
        if entering < 0:
            return infinity, INFINITE, pivot, 0
        advance(length, members, seen, work)
        members = _enter(leaving, entering, members, base, work)
    return np.nan, FALLBACK, cap, 0


@inner()
def _bound(alpha: float, upper: bool, copies: float) -> float:
    """Bound of a dual value; equal calibration points act as one with a larger box."""
    return copies * (1.0 - alpha if upper else -alpha)


@inner()
def _price(
    eta: FloatArray, weight: FloatArray, copies: FloatArray, alpha: float
) -> tuple[int, float]:
    """Find the basic point whose dual value meets its bound first, and the share of the way.

    Dual values move at rate ``-weight``; -1 when none moves.
    """
    leaving, best, largest = -1, np.inf, 1.0
    for k in range(len(weight)):
        largest = max(largest, abs(weight[k]))
    for k in range(len(weight)):
        rate = weight[k]
        if abs(rate) > WEIGHT_TOL * largest:
            bound = _bound(alpha, rate < 0.0, copies[k])
            room = max((eta[k] - bound) / rate, 0.0)
            if room < best:
                leaving, best = k, room
    return leaving, best


@inner()
def _leave(leaving: int, room: float, alpha: float, work: Work) -> None:
    """Move the dual values, take the leaving point out of the basis and set the edge."""
    for k in range(len(work.eta)):
        work.eta[k] -= room * work.weight[k]
    rises = work.weight[leaving] < 0.0
    bound = _bound(alpha, rises, work.slot_copies[leaving])
    member = work.slot[leaving]
    # At its upper bound a residual may turn positive: Q_k edge = -1; at the lower one, +1.
    work.member_side[member] = 1.0 if rises else -1.0
    work.member_residual[member] = 0.0
    for j in range(len(work.edge)):
        work.edge[j] = -work.member_side[member] * work.corner[leaving, j]
        work.pull[j] += bound * work.member_row[member, j]


@inner()
def _enter(leaving: int, entering: int, members: int, base: Base, work: Work) -> int:
    """Make the entering point basic in place of the leaving one; the new number of members."""
    member = entering
    if entering >= members:
        member, position = members, entering - members
        _join(member, position, base, work)
        members += 1
    bound = _bound(base.alpha, work.member_side[member] > 0.0, work.member_copies[member])
    work.member_side[member] = 0.0
    work.member_residual[member] = 0.0
    work.slot[leaving] = member
    work.slot_copies[leaving] = work.member_copies[member]
    work.eta[leaving] = bound
    exchange(work.corner, leaving, work.member_row, member, work.ratio)
    pivot_weight = work.weight[leaving]
    for k in range(len(work.weight)):
        work.pull[k] -= bound * work.member_row[member, k]
        work.weight[k] -= work.ratio[k] * pivot_weight
    work.weight[leaving] = work.ratio[leaving] * pivot_weight
    return members


@inner()
def _join(member: int, position: int, base: Base, work: Work) -> None:
    """Make a point a member: its row is copied out of its block, and the scan skips it."""
    block, lane, side = position // WIDTH, position % WIDTH, base.side[position]
    work.near[position] = np.inf
    work.member_position[member] = position
    work.member_side[member] = side
    work.member_copies[member] = base.copies[position]
    for j in range(len(work.eta)):
        work.member_row[member, j] = side * base.blocks[block, j, lane]


@inner()
def _refresh(members: int, base: Base, work: Work) -> bool:
    """Compute inverse, weights, vertex and residuals without the drift of updates."""
    work.clock[0] += 1
    rank = len(work.eta)
    if not invert(work.member_row, work.slot, work.corner):
        return False
    products(work.corner, work.direction, work.weight)
    for j in range(rank):
        work.shift[j] = 0.0
    for k in range(rank):
        start = _base_residual(work.member_position[work.slot[k]], base)
        for j in range(rank):
            work.shift[j] += start * work.corner[k, j]
    for j in range(rank):
        work.way[j] = work.shift[j] - work.home_shift[j]
    for m in range(members):
        if work.member_side[m] != 0.0:
            start = _base_residual(work.member_position[m], base)
            work.member_residual[m] = start - row_dot(work.member_row, m, work.shift)
    return True


@inner()
def _base_residual(position: int, base: Base) -> float:
    """Residual of a point at the base vertex."""
    if position < len(base.eta):
        return 0.0
    return float(base.side[position] * base.distance[position])


@inner()
def _finish(row: FloatArray, base: Base, work: Work) -> tuple[float, bool]:
    """Threshold of the last vertex, and whether the vertex passes its check.

    Everything is measured against the basic rows themselves, not against the updated inverse,
    which only serves to correct. The weights solve ``Q_B' w = q`` and the threshold is
    ``w @ s_B`` with scores as given. Dual feasibility does not depend on scores, so breaking
    ties moved the path but not this value.
    """
    products(work.corner, row, work.weight)
    for _ in range(2):
        off = _refine(row, work.weight, work)
    for j in range(len(row)):
        work.edge[j] = -work.goal[j] - work.pull[j]
    for _ in range(2):
        off_dual = _refine(work.edge, work.eta, work)
    drift, outside, value = 0.0, 0.0, 0.0
    for k in range(len(row)):
        member, copies = work.slot[k], work.slot_copies[k]
        position = work.member_position[member]
        start = _base_residual(position, base)
        drift = max(drift, abs(start - row_dot(work.member_row, member, work.shift)))
        low, high = _bound(base.alpha, False, copies), _bound(base.alpha, True, copies)
        outside = max(outside, work.eta[k] - high, low - work.eta[k])
        value += snap(work.weight[k]) * base.scores[position]
    size = max(1.0, np.sqrt(dot(row, row)))
    accurate = off <= CHECK_TOL * size and off_dual <= CHECK_TOL * size
    return value, accurate and outside <= 10.0 * CHECK_TOL * size and drift <= base.tolerance


@inner()
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
