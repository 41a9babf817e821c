"""Exact thresholds of many test points, by following a parametric linear program.

The goal of a test point is its row times its level, and the vertex of a landmark is optimal for
the landmark's goal. Going from there to the goal of the test point, the vertex stays optimal
until the dual value of a basic point reaches its bound; then that point leaves, the vertex moves
along its edge until the first other residual is zero, and that point enters. The steps are
`_price`, `_leave`, `first_crossing`, `_enter` and `_finish`; `_follow` is the loop around them.

Kernels with one caller, and small ones, are inlined before types are inferred. Numba compiles and
optimises every other kernel on its own and again within its callers, at each level of calls.

Imports `crossing`, `kernels`, `landmarks`, `problem`, `scan`, `work` and `trustsets.status`.
"""

import numpy as np
from numpy.typing import NDArray

from trustsets.engine.compiled import entry, inner
from trustsets.engine.crossing import advance, first_crossing
from trustsets.engine.kernels import WIDTH, exchange, invert, weighted_sum
from trustsets.engine.landmarks import (
    ETA,
    MOST,
    MOST_MEMBERS,
    PULL,
    RESIDUAL,
    ROUND,
    SHIFT,
    START,
    Landmarks,
    begin_landmarks,
    candidate_rows,
    nearest_landmark,
)
from trustsets.engine.problem import FloatArray, IntArray, Problem
from trustsets.engine.scan import COPIES, DISTANCE, SCORE, SIDE, Base, Scan
from trustsets.engine.work import (
    BLOCK_CACHE,
    CLOCK,
    DIRECTION,
    EDGE,
    FIRST_CACHE,
    GOAL,
    HOME_SHIFT,
    ROW,
    SIZE,
    SPARE,
    WAY,
    WEIGHT,
    PathState,
    allocate,
    begin,
    keep,
    rows_dot,
)
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
    marks = begin_landmarks(base, 1 + len(rows))
    levels, starts = np.full(len(rows), 1.0 - problem.alpha), np.zeros(len(rows), np.int64)
    ignored = np.empty(len(rows)), np.empty(len(rows), np.int8), np.empty(len(rows), np.int64)
    follow_all(rows, levels, starts, np.arange(len(rows)), base, marks, True, *ignored)
    return marks


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
    neighbours in `order`: they share what is known about its surroundings. With `fill` there is but
    the first landmark: the rows are to become the others. (A function of its own would take as
    long to compile again.)
    """
    rank = rows.shape[1]
    # Every pivot adds a member to those of the landmark, at most.
    longest = LANDMARK_CAP_FACTOR * rank + CAP_BASE
    cap = longest if fill else CAP_FACTOR * rank + CAP_BASE
    # Arrays made within a kernel take a second to compile.
    state = allocate(base.scan, MOST_MEMBERS * rank + longest)
    _follow_all(
        rows, levels, starts, order, base.scan, marks, fill, cap, values, status, pivots, state
    )


@entry()
def _follow_all(
    rows: FloatArray,
    levels: FloatArray,
    starts: IntArray,
    order: IntArray,
    scan: Scan,
    marks: Landmarks,
    fill: bool,
    cap: int,
    values: FloatArray,
    status: NDArray[np.int8],
    pivots: IntArray,
    state: PathState,
) -> None:
    vectors, rank = state.vectors, rows.shape[1]
    taken, before, found = 0, 0, START + 1
    for i in order:
        start = starts[i]
        if fill:
            if i % ROUND == 0 and i > 0:
                if taken - before < ENOUGH * ROUND:
                    return
                before = taken
            if taken * rank * rank > LANDMARK_BUDGET:
                return
            start = nearest_landmark(
                rows, i, levels[i], marks.blocks, marks.half_square, -(-found // WIDTH), state.cache
            )
        for j in range(rank):
            vectors[ROW, j] = rows[i, j]
        values[i], status[i], pivots[i], members = _follow(
            levels[i], start, cap, scan, marks, state
        )
        if fill:
            taken += pivots[i]
            if status[i] == EXACT and pivots[i] >= WORTH_KEEPING and _refresh(members, scan, state):
                found += keep(found, members, scan, marks, state)


@inner(inline="always")
def _follow(
    level: float, start: int, cap: int, scan: Scan, marks: Landmarks, state: PathState
) -> tuple[float, int, int, int]:
    """Value, status and number of pivots of one test row; and of members where it is exact."""
    vectors = state.vectors
    infinity = np.inf if level > 0.0 else -np.inf
    # |Q' eta| <= reach for every eta in the box: a longer row cannot be balanced. Written so
    # that a row which overflowed ends here too.
    if not np.sqrt(rows_dot(vectors, ROW, vectors, ROW)) * abs(level) <= scan.reach:
        return infinity, INFINITE, 0, 0
    # Just below the level the optimum is unique, and it is the smallest one at the level.
    for j in range(vectors.shape[1]):
        vectors[GOAL, j] = (level - LEVEL_TOL) * vectors[ROW, j]
    members, done = begin(start, marks, state), 0.0
    for pivot in range(cap):
        if pivot > 0 and pivot % REFRESH == 0:
            if not _refresh(members, scan, state):
                return np.nan, FALLBACK, pivot, 0
        leaving, room = _price(vectors, scan.alpha)
        if leaving < 0 or done + room > 1.0:
            value, accurate = _finish(scan, state)
            return value, EXACT if accurate else FALLBACK, pivot, members
        done += room
        _leave(leaving, room, scan.alpha, state)
        length, entering, seen = first_crossing(members, scan, state)
        if entering < 0:
            return infinity, INFINITE, pivot, 0
        advance(length, members, seen, state)
        members = _enter(leaving, entering, members, scan, state)
    return np.nan, FALLBACK, cap, 0


@inner(inline="always")
def _bound(alpha: float, upper: bool, copies: float) -> float:
    """Bound of a dual value; equal calibration points act as one with a larger box."""
    return copies * (1.0 - alpha if upper else -alpha)


@inner()
def _price(vectors: FloatArray, alpha: float) -> tuple[int, float]:
    """Find the basic point whose dual value meets its bound first, and the share of the way.

    Dual values move at rate ``-weight``; -1 when none moves.
    """
    leaving, best, largest = -1, np.inf, 1.0
    for k in range(vectors.shape[1]):
        largest = max(largest, abs(vectors[WEIGHT, k]))
    for k in range(vectors.shape[1]):
        rate = vectors[WEIGHT, k]
        if abs(rate) > WEIGHT_TOL * largest:
            bound = _bound(alpha, rate < 0.0, vectors[SIZE, k])
            room = max((vectors[ETA, k] - bound) / rate, 0.0)
            if room < best:
                leaving, best = k, room
    return leaving, best


@inner(inline="always")
def _leave(leaving: int, room: float, alpha: float, state: PathState) -> None:
    """Move the dual values, take the leaving point out of the basis and set the edge."""
    vectors, member, slot = state.vectors, state.member, state.slot[leaving]
    for k in range(vectors.shape[1]):
        vectors[ETA, k] -= room * vectors[WEIGHT, k]
    rises = vectors[WEIGHT, leaving] < 0.0
    bound = _bound(alpha, rises, vectors[SIZE, leaving])
    # At its upper bound a residual may turn positive: Q_k edge = -1; at the lower one, +1.
    side = 1.0 if rises else -1.0
    member[SIDE, slot] = side
    member[RESIDUAL, slot] = 0.0
    for j in range(vectors.shape[1]):
        vectors[EDGE, j] = -side * state.inverse[leaving, j]
        vectors[PULL, j] += bound * state.row[slot, j]


@inner()
def _enter(leaving: int, entering: int, members: int, scan: Scan, state: PathState) -> int:
    """Make the entering point basic in place of the leaving one; the new number of members."""
    vectors, member, row, ratio = state.vectors, state.member, state.row, state.ratio
    new = entering
    if entering >= members:
        new = members
        _join(new, entering - members, scan, state)
        members += 1
    copies = member[COPIES, new]
    bound = _bound(scan.alpha, member[SIDE, new] > 0.0, copies)
    member[SIDE, new] = 0.0
    member[RESIDUAL, new] = 0.0
    state.slot[leaving] = new
    vectors[SIZE, leaving] = copies
    vectors[ETA, leaving] = bound
    exchange(state.inverse, leaving, row, new, ratio)
    pivot_weight = vectors[WEIGHT, leaving]
    for k in range(len(ratio)):
        vectors[PULL, k] -= bound * row[new, k]
        vectors[WEIGHT, k] -= ratio[k] * pivot_weight
    vectors[WEIGHT, leaving] = ratio[leaving] * pivot_weight
    return members


@inner(inline="always")
def _join(new: int, position: int, scan: Scan, state: PathState) -> None:
    """Make a point a member: its row is copied out of its block, and the scan skips it."""
    block, lane, side = position // WIDTH, position % WIDTH, scan.points[SIDE, position]
    state.cache[FIRST_CACHE + block * BLOCK_CACHE + WIDTH + lane] = np.inf
    state.position[new] = position
    state.member[SIDE, new] = side
    state.member[COPIES, new] = scan.points[COPIES, position]
    for j in range(state.row.shape[1]):
        state.row[new, j] = side * scan.blocks[block, j, lane]


@inner()
def _refresh(members: int, scan: Scan, state: PathState) -> bool:
    """Compute inverse, weights, vertex and residuals without the drift of updates."""
    vectors, member, position, points = state.vectors, state.member, state.position, scan.points
    inverse, slot, row, rank = state.inverse, state.slot, state.row, len(state.slot)
    state.counters[CLOCK] += 1
    if not invert(row, slot, inverse):
        return False
    for k in range(rank):
        vectors[WEIGHT, k] = rows_dot(inverse, k, vectors, DIRECTION)
        vectors[SHIFT, k] = 0.0
    for k in range(rank):
        start = _base_residual(position[slot[k]], rank, points)
        for j in range(rank):
            vectors[SHIFT, j] += start * inverse[k, j]
    for j in range(rank):
        vectors[WAY, j] = vectors[SHIFT, j] - vectors[HOME_SHIFT, j]
    for m in range(members):
        if member[SIDE, m] != 0.0:
            start = _base_residual(position[m], rank, points)
            member[RESIDUAL, m] = start - rows_dot(row, m, vectors, SHIFT)
    return True


@inner(inline="always")
def _base_residual(position: int, rank: int, points: FloatArray) -> float:
    """Residual of a point at the base vertex; its basic points come first."""
    if position < rank:
        return 0.0
    return float(points[SIDE, position] * points[DISTANCE, position])


@inner()
def _finish(scan: Scan, state: PathState) -> tuple[float, bool]:
    """Threshold of the last vertex, and whether the vertex passes its check.

    Everything is measured against the basic rows themselves, not against the updated inverse,
    which only serves to correct. The weights solve ``Q_B' w = q`` and the threshold is
    ``w @ s_B`` with scores as given. Dual feasibility does not depend on
    scores, so breaking ties moved the path but not this value.
    """
    vectors, row, slot, inverse = state.vectors, state.row, state.slot, state.inverse
    rank, points = len(slot), scan.points
    for k in range(rank):
        vectors[WEIGHT, k] = rows_dot(inverse, k, vectors, ROW)
        vectors[EDGE, k] = -vectors[GOAL, k] - vectors[PULL, k]
    off, off_dual = 0.0, 0.0
    for _ in range(2):
        off = _refine(ROW, WEIGHT, vectors, row, slot, inverse)
        off_dual = _refine(EDGE, ETA, vectors, row, slot, inverse)
    drift, outside = 0.0, 0.0
    for k in range(rank):
        position, copies, eta = state.position[slot[k]], vectors[SIZE, k], vectors[ETA, k]
        start = _base_residual(position, rank, points)
        drift = max(drift, abs(start - rows_dot(row, slot[k], vectors, SHIFT)))
        outside = max(outside, eta - copies * (1.0 - scan.alpha), -copies * scan.alpha - eta)
        vectors[SPARE, k] = points[SCORE, position]
    value = weighted_sum(vectors, WEIGHT, SPARE)
    size = max(1.0, np.sqrt(rows_dot(vectors, ROW, vectors, ROW)))
    accurate = off <= CHECK_TOL * size and off_dual <= CHECK_TOL * size
    return value, accurate and outside <= 10.0 * CHECK_TOL * size and drift <= scan.tolerance


@inner()
def _refine(
    target: int,
    solution: int,
    vectors: FloatArray,
    row: FloatArray,
    slot: IntArray,
    inverse: FloatArray,
) -> float:
    """One step of refinement of ``Q_B' solution = target``; the largest error before it.

    Target and solution are rows of `vectors`.
    """
    rank = len(slot)
    for j in range(rank):
        vectors[SPARE, j] = vectors[target, j]
    for k in range(rank):
        for j in range(rank):
            vectors[SPARE, j] -= vectors[solution, k] * row[slot[k], j]
    worst = 0.0
    for j in range(rank):
        worst = max(worst, abs(vectors[SPARE, j]))
    for k in range(rank):
        vectors[solution, k] += rows_dot(inverse, k, vectors, SPARE)
    return worst
