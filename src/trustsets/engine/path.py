"""Exact thresholds of many test points, by following a parametric linear program.

A path leads from the goal of a landmark, whose vertex is known, to the goal of the test point. On
the way the vertex stays optimal until the dual value of a basic point reaches a bound. That point
leaves, the vertex moves along its edge until the first other residual is zero, and that point
enters. The steps are `_next_breakpoint`, `_leave`, `first_crossing`, `_enter` and `_finish`;
`_follow` is the loop around them.

Small kernels and those with one caller are inlined before types are inferred. Numba would compile
and optimise each of them on its own and again within its callers, at every depth of calls.
"""

import numpy as np
from numpy.typing import NDArray

from trustsets.engine.compiled import FloatArray, IntArray, entry, inner
from trustsets.engine.crossing import advance, first_crossing
from trustsets.engine.kernels import WIDTH, ZERO, exchange, invert, rows_dot, weighted_sum
from trustsets.engine.landmarks import (
    DUAL,
    FROM_BASE,
    MOST,
    MOST_MEMBERS,
    NONBASIC_SUM,
    RESIDUAL,
    ROUND,
    Landmarks,
    begin_landmarks,
    candidate_rows,
    nearest_landmark,
)
from trustsets.engine.path_state import (
    BASIC_COPIES,
    BLOCK_CACHE,
    COEFFICIENT,
    DIRECTION,
    EDGE,
    FIRST_CACHE,
    FROM_LANDMARK,
    GOAL,
    LANDMARK_SHIFT,
    ROW,
    SPARE,
    STEP,
    PathState,
    allocate,
    load_landmark,
    store_landmark,
)
from trustsets.engine.problem import Problem
from trustsets.engine.result import Thresholds, blank_thresholds
from trustsets.engine.scan_order import COPIES, DISTANCE, SCORE, SIDE, Scan, ScanOrder
from trustsets.status import Status

__all__ = ["WEIGHT_TOL", "follow_paths", "make_landmarks"]

WEIGHT_TOL = 1e-9
"""Breakpoints this close to the weight of the test point count as equal to it."""
COEFFICIENT_TOL = 1e-11
"""A dual value does not move if its coefficient is below this share of the largest."""
CHECK_TOL = 1e-9
"""Accuracy asked of coefficients and dual values at the end of a path."""
CAP_FACTOR, CAP_BASE = 5, 20
"""A path may take `CAP_FACTOR * rank + CAP_BASE` pivots; the descent takes over longer ones."""
LANDMARK_CAP_FACTOR = 20
"""The same factor for landmarks, because the first ones are far from all others."""
REFRESH = 50
"""Pivots between two computations of the vertex from scratch."""
WORTH_KEEPING = 2
"""A row becomes a landmark if it is at least this many pivots away from the nearest one."""
ENOUGH = 4
"""There are landmarks enough when candidates take fewer pivots than this on average."""
LANDMARK_BUDGET = 20_000_000
"""Most work on landmarks, in pivots times the squared rank: some tenths of a second."""
MANY_ROWS = 10
"""Factor of that for a model of which very many thresholds will be asked."""

EXACT = int(Status.EXACT)
FALLBACK = int(Status.FALLBACK)
INFINITE = int(Status.HIGH_LEVERAGE)


def make_landmarks(
    problem: Problem, scan_order: ScanOrder, most: int = MOST, budget: int = LANDMARK_BUDGET
) -> Landmarks:
    """Solve some calibration rows, as if they were test rows of weight ``1 - alpha``."""
    rows = candidate_rows(problem, most)
    landmarks = begin_landmarks(scan_order, 1 + len(rows))
    weights, starts = np.full(len(rows), 1.0 - problem.alpha), np.zeros(len(rows), np.int64)
    ignored, order = blank_thresholds(len(rows)), np.arange(len(rows))
    follow_paths(rows, weights, starts, order, scan_order.scan, landmarks, ignored, budget)
    return landmarks


def follow_paths(
    rows: FloatArray,
    weights: FloatArray,
    starts: IntArray,
    order: IntArray,
    scan: Scan,
    landmarks: Landmarks,
    out: Thresholds,
    budget: int = 0,
) -> None:
    """Store in `out` the thresholds of the whitened rows in `order`, from landmarks `starts`.

    Rows with the same landmark should be neighbours in `order`, because they share what is known
    about its surroundings. A start of ``~landmark`` is the vertex of the row before, or the
    landmark if that row has none. With a `budget` there is only the first landmark, and the rows
    become the others. (A separate kernel for this would take as long to compile again.)
    """
    rank = rows.shape[1]
    # Every pivot adds at most one member to those of the landmark.
    longest = LANDMARK_CAP_FACTOR * rank + CAP_BASE
    cap = longest if budget else CAP_FACTOR * rank + CAP_BASE
    # Arrays are allocated here, because an allocation within a kernel takes a second to compile.
    state = allocate(scan, MOST_MEMBERS * rank + longest)
    arrays = out.values, out.status, out.pivots
    _follow_paths(rows, weights, starts, order, scan, landmarks, budget, cap, *arrays, state)


@entry()
def _follow_paths(
    rows: FloatArray,
    weights: FloatArray,
    starts: IntArray,
    order: IntArray,
    scan: Scan,
    landmarks: Landmarks,
    budget: int,
    cap: int,
    values: FloatArray,
    status: NDArray[np.int8],
    pivots: IntArray,
    state: PathState,
) -> None:
    vectors, rank = state.vectors, rows.shape[1]
    taken, before, found = 0, 0, ZERO + 1
    members, since = 0, 0
    for i in order:
        start = starts[i]
        if budget > 0:
            if i % ROUND == 0 and i > 0:
                if taken - before < ENOUGH * ROUND:
                    return
                before = taken
            if taken * rank * rank > budget:
                return
            blocks, n_blocks = landmarks.blocks, -(-found // WIDTH)
            start = nearest_landmark(
                rows, i, weights[i], blocks, landmarks.half_square, n_blocks, state.cache
            )
        for j in range(rank):
            vectors[ROW, j] = rows[i, j]
        if start < 0 and (members == 0 or members + cap > len(state.position)):
            start = ~start
        if start < 0 and since >= REFRESH:
            since = 0
            if not _refresh(members, scan, state):
                start = ~start
        if start >= 0:
            since = 0
        values[i], status[i], pivots[i], members = _follow(
            weights[i], start, members, cap, scan, landmarks, state
        )
        since += pivots[i]
        if budget > 0:
            taken += pivots[i]
            # Paths that start at a landmark inherit its errors, so it is computed from scratch.
            if status[i] == EXACT and pivots[i] >= WORTH_KEEPING and _refresh(members, scan, state):
                found += store_landmark(found, members, scan, landmarks, state)


@inner(inline="always")
def _follow(
    weight: float,
    start: int,
    members: int,
    cap: int,
    scan: Scan,
    landmarks: Landmarks,
    state: PathState,
) -> tuple[float, int, int, int]:
    """Value, status and pivots of one test row, and the number of members where it is exact.

    With a negative start the path begins at the present vertex, which has `members`.
    """
    vectors = state.vectors
    infinity = np.inf if weight > 0.0 else -np.inf
    # |Q' eta| <= reach for every eta in the box, so the dual of a longer row is infeasible. The
    # comparison is negated so that a row whose length overflowed to NaN ends here, too.
    if not np.sqrt(rows_dot(vectors, ROW, vectors, ROW)) * abs(weight) <= scan.reach:
        return infinity, INFINITE, 0, 0
    # Where the optimum at the weight is not unique, that just below it is its smallest one.
    for j in range(vectors.shape[1]):
        goal = (weight - WEIGHT_TOL) * vectors[ROW, j]
        vectors[DIRECTION, j] = goal - vectors[GOAL, j]
        vectors[GOAL, j] = goal
    if start >= 0:
        members = load_landmark(start, landmarks, state)
    else:
        for k in range(vectors.shape[1]):
            vectors[COEFFICIENT, k] = rows_dot(state.inverse, k, vectors, DIRECTION)
    done = 0.0
    for pivot in range(cap):
        if pivot > 0 and pivot % REFRESH == 0:
            if not _refresh(members, scan, state):
                return np.nan, FALLBACK, pivot, 0
        leaving, share = _next_breakpoint(vectors, scan.alpha)
        if leaving < 0 or done + share > 1.0:
            value, accurate = _finish(scan, state)
            return value, EXACT if accurate else FALLBACK, pivot, members
        done += share
        _leave(leaving, share, scan.alpha, state)
        length, entering, scanned = first_crossing(members, scan, state)
        # No residual ends the edge: it is a ray, which proves that the dual is infeasible.
        if entering < 0:
            return infinity, INFINITE, pivot, 0
        advance(length, members, scanned, state)
        members = _enter(leaving, entering, members, scan, state)
    return np.nan, FALLBACK, cap, 0


@inner(inline="always")
def _bound(alpha: float, upper: bool, copies: float) -> float:
    """Bound of a dual value; the box of a point grows with its copies."""
    return copies * (1.0 - alpha if upper else -alpha)


@inner()
def _next_breakpoint(vectors: FloatArray, alpha: float) -> tuple[int, float]:
    """Find the basic point whose dual value meets its bound first, and the share of the way there.

    This is the ratio test of the dual: value k falls at the rate ``COEFFICIENT[k]``. The point is
    -1 when none moves.
    """
    leaving, best, largest = -1, np.inf, 1.0
    for k in range(vectors.shape[1]):
        largest = max(largest, abs(vectors[COEFFICIENT, k]))
    for k in range(vectors.shape[1]):
        rate = vectors[COEFFICIENT, k]
        if abs(rate) > COEFFICIENT_TOL * largest:
            bound = _bound(alpha, rate < 0.0, vectors[BASIC_COPIES, k])
            # A dual value that rounding put outside its box leaves at once.
            share = max((vectors[DUAL, k] - bound) / rate, 0.0)
            if share < best:
                leaving, best = k, share
    return leaving, best


@inner(inline="always")
def _leave(leaving: int, share: float, alpha: float, state: PathState) -> None:
    """Move the dual values to the breakpoint, make a point nonbasic and set the edge."""
    vectors, member, slot = state.vectors, state.member, state.slot[leaving]
    for k in range(vectors.shape[1]):
        vectors[DUAL, k] -= share * vectors[COEFFICIENT, k]
    rises = vectors[COEFFICIENT, leaving] < 0.0
    bound = _bound(alpha, rises, vectors[BASIC_COPIES, leaving])
    # A point whose dual value is at its upper bound may get a positive residual, so its product
    # with the edge is -1; at the lower bound the residual may turn negative.
    side = 1.0 if rises else -1.0
    member[SIDE, slot] = side
    member[RESIDUAL, slot] = 0.0
    for j in range(vectors.shape[1]):
        vectors[EDGE, j] = -side * state.inverse[leaving, j]
        vectors[NONBASIC_SUM, j] += bound * state.row[slot, j]


@inner()
def _enter(leaving: int, entering: int, members: int, scan: Scan, state: PathState) -> int:
    """Make a point basic in place of the leaving one; the new number of members."""
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
    vectors[BASIC_COPIES, leaving] = copies
    vectors[DUAL, leaving] = bound
    exchange(state.inverse, leaving, row, new, ratio)
    # The rank-one update of the inverse changes the coefficients by the same ratios.
    pivot_coefficient = vectors[COEFFICIENT, leaving]
    for k in range(len(ratio)):
        vectors[NONBASIC_SUM, k] -= bound * row[new, k]
        vectors[COEFFICIENT, k] -= ratio[k] * pivot_coefficient
    vectors[COEFFICIENT, leaving] = ratio[leaving] * pivot_coefficient
    return members


@inner(inline="always")
def _join(new: int, position: int, scan: Scan, state: PathState) -> None:
    """Make a point a member: copy its row out of its block and hide it from the scan."""
    block, lane, side = position // WIDTH, position % WIDTH, scan.points[SIDE, position]
    state.cache[FIRST_CACHE + block * BLOCK_CACHE + WIDTH + lane] = np.inf
    state.position[new] = position
    state.member[SIDE, new] = side
    state.member[COPIES, new] = scan.points[COPIES, position]
    for j in range(state.row.shape[1]):
        state.row[new, j] = side * scan.blocks[block, j, lane]


@inner()
def _refresh(members: int, scan: Scan, state: PathState) -> bool:
    """Compute inverse, coefficients, vertex and residuals anew; false if they are singular.

    The vertex solves ``Q_B x = r_B`` with the residuals ``r_B`` of its basic points at the base
    vertex, and x its distance from there.
    """
    vectors, member, position, points = state.vectors, state.member, state.position, scan.points
    inverse, slot, row, rank = state.inverse, state.slot, state.row, len(state.slot)
    state.counters[STEP] += 1
    if not invert(row, slot, inverse):
        return False
    for k in range(rank):
        vectors[COEFFICIENT, k] = rows_dot(inverse, k, vectors, DIRECTION)
        vectors[FROM_BASE, k] = 0.0
    for k in range(rank):
        start = _base_residual(position[slot[k]], rank, points)
        for j in range(rank):
            vectors[FROM_BASE, j] += start * inverse[k, j]
    for j in range(rank):
        vectors[FROM_LANDMARK, j] = vectors[FROM_BASE, j] - vectors[LANDMARK_SHIFT, j]
    for m in range(members):
        if member[SIDE, m] != 0.0:
            start = _base_residual(position[m], rank, points)
            member[RESIDUAL, m] = start - rows_dot(row, m, vectors, FROM_BASE)
    return True


@inner(inline="always")
def _base_residual(position: int, rank: int, points: FloatArray) -> float:
    """Residual of a point at the base vertex, whose basic points come first in scan order."""
    if position < rank:
        return 0.0
    return float(points[SIDE, position] * points[DISTANCE, position])


@inner()
def _finish(scan: Scan, state: PathState) -> tuple[float, bool]:
    """Threshold of the last vertex, and whether the vertex passes its check.

    All errors are measured with the basic rows themselves; the updated inverse serves only to
    correct them. The coefficients solve ``Q_B' c = q`` and the threshold is ``c @ s_B`` with scores
    before nudges. Dual feasibility does not depend on scores, so this vertex is optimal for them.
    """
    vectors, row, slot, inverse = state.vectors, state.row, state.slot, state.inverse
    rank, points = len(slot), scan.points
    for k in range(rank):
        vectors[COEFFICIENT, k] = rows_dot(inverse, k, vectors, ROW)
        vectors[EDGE, k] = -vectors[GOAL, k] - vectors[NONBASIC_SUM, k]
    off, off_dual = 0.0, 0.0
    # The second round measures what the first has left.
    for _ in range(2):
        off = _refine(ROW, COEFFICIENT, vectors, row, slot, inverse)
        off_dual = _refine(EDGE, DUAL, vectors, row, slot, inverse)
    drift, outside = 0.0, 0.0
    for k in range(rank):
        position, copies, eta = state.position[slot[k]], vectors[BASIC_COPIES, k], vectors[DUAL, k]
        start = _base_residual(position, rank, points)
        drift = max(drift, abs(start - rows_dot(row, slot[k], vectors, FROM_BASE)))
        outside = max(outside, eta - copies * (1.0 - scan.alpha), -copies * scan.alpha - eta)
        vectors[SPARE, k] = points[SCORE, position]
    value = weighted_sum(vectors, COEFFICIENT, SPARE)
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

    `target` and `solution` are numbers of rows of `vectors`.
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
