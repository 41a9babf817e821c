"""Exact thresholds of many test points, by following a parametric linear program.

The *goal* of a test point is its row times its weight, and its optimal vertex depends on the goal
alone. A path leads from a goal whose vertex is known to the goal of the test point. On the way the
vertex stays optimal until the dual value of a basic point reaches a bound. That point leaves, the
vertex moves along its edge until the first other residual is zero, and that point enters. The steps
are `_next_breakpoint`, `_leave`, `_first_crossing`, `_advance`, `_enter` and `_finish`; `_follow`
is the loop around them.

Paths start at *landmarks*: the base vertex, whose goal is zero, and the vertices of some
calibration rows, which are solved when thresholds are first asked for. Each row is reached from the
nearest landmark before it and becomes one itself if that took some pivots, so landmarks are dense
where vertices change fast. A test point starts at its nearest landmark, whatever other points come
with it, and takes fewer pivots the nearer that is.

`scan_order` says which points a step must scan for the first crossing, and why that is exact. At a
landmark at distance x0, the bound of a block reads ``Q_i y <= c y + |Q_i - c| |y|`` with the way
y = x - x0 from the landmark. It is compared with the *floor* of the block: a lower bound of its
residuals at the landmark, and once a path has read these, their minimum.

Small kernels and those with one caller are inlined before types are inferred. Numba would compile
and optimise each of them on its own and again within its callers, at every depth of calls.
"""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from trustsets.engine.compiled import FloatArray, IntArray, entry, inner
from trustsets.engine.kernels import (
    EDGE_TOL,
    WIDTH,
    ZERO,
    block_products,
    dot,
    exchange,
    invert,
    row_dot,
    weighted_sum,
)
from trustsets.engine.problem import Problem
from trustsets.engine.scan_order import Scan, ScanOrder
from trustsets.status import Status

WEIGHT_TOL = 1e-9  # Breakpoints this close to the weight of the test point count as equal to it.
# A dual value does not move if its coefficient is below this share of the largest.
COEFFICIENT_TOL = 1e-11
CHECK_TOL = 1e-9  # Accuracy asked of coefficients and dual values at the end of a path.
# Distances are enlarged by this factor before they are compared with keys, to cover rounding.
RADIUS_SLACK = 1.0 + 1e-9
FLOOR_SLACK = 1e-9  # The floor of a block is lowered by this share of its terms, to cover rounding.
# The length of a step that nothing ends; finite, so that products with it are never NaN.
UNREACHED = 1e150
# A path may take `CAP_FACTOR * rank + CAP_BASE` pivots; the descent takes over longer ones.
CAP_FACTOR, CAP_BASE = 5, 20
# The same factor for landmarks, because the first ones are far from all others.
LANDMARK_CAP_FACTOR = 20
REFRESH = 50  # Pivots between two computations of the vertex from scratch.
# A row becomes a landmark if it is at least this many pivots away from the nearest one.
WORTH_STORING = 2
ENOUGH = 4  # There are landmarks enough when candidates take fewer pivots than this on average.
# Most work on landmarks, in pivots times the squared rank: some tenths of a second.
LANDMARK_BUDGET = 20_000_000
MANY_ROWS = 10  # Factor of that for a model of which very many thresholds will be asked.
# Landmarks besides the base vertex. More shorten paths but lengthen the search for the nearest.
MOST = 1023
# Memory that landmarks may take: there are fewer of them where the rank is high.
MOST_BYTES = 2**26
ROUND = 256  # Candidates between two checks whether more are worth their time.
POINTS_EACH = 2  # Calibration points per candidate: a small problem does not repay many landmarks.
# Members that landmarks may have on average, and that one may have, in units of the rank.
MEMBER_FACTOR, MOST_MEMBERS = 4, 24

EXACT = int(Status.EXACT)
FALLBACK = int(Status.FALLBACK)
INFINITE = int(Status.HIGH_LEVERAGE)

# Kernels take few arrays with several rows each, because every array of a tuple adds to the time
# that each kernel with that tuple takes to compile. Every kernel names the rows that it uses by
# views at its entry. The numbers are NumPy integers, because numba compiles a kernel anew for each
# Python integer that is passed to it as a constant.
#
# Rows of `PathState.vectors`; those before `INVERSE` are rows of `Landmarks.vertex`, too.
(
    FROM_BASE,
    DUAL,
    NONBASIC_SUM,
    FROM_LANDMARK,
    LANDMARK_SHIFT,
    EDGE,
    COEFFICIENT,
    BASIC_MULTIPLICITY,
    GOAL,
    DIRECTION,
    ROW,
    SPARE,
    N_VECTORS,
) = cast(Any, np.arange(13))
INVERSE: Any = np.int64(3)
# Rows of `PathState.member`, of which landmarks store the first three.
SIDE, MULTIPLICITY, RESIDUAL, SPEED, N_MEMBER = cast(Any, np.arange(5))
STORED_MEMBER: Any = np.int64(3)
# Rows of `PathState.visits`.
UPDATED_AT, READ_FOR, SCANNED, BOUNDED_FOR, N_VISITS = cast(Any, np.arange(5))
# Entries of `PathState.counters`.
STEP, LANDMARK, LANDMARK_MEMBERS, N_COUNTERS = cast(Any, np.arange(4))
# Rows of `PathState.cache`: two of products with the centres of a superblock, and then for each
# block the residuals of its points at the landmark, those at the vertex, and their rates.
WITH_WAY, WITH_EDGE, FIRST_BLOCK = cast(Any, np.arange(3))
AT_LANDMARK, AT_VERTEX, RATE, BLOCK_ROWS = cast(Any, np.arange(4))


class Landmarks(NamedTuple):
    """Vertices to start from, packed in few arrays."""

    blocks: FloatArray  # (n_blocks, rank, WIDTH): goals, in the layout of `Scan.blocks`.
    # (n_blocks * WIDTH,): half the squared length of each goal; infinite where there is no
    # landmark.
    half_square: FloatArray
    # (L, INVERSE + rank, rank): for each landmark the rows `FROM_BASE`, `DUAL` and `NONBASIC_SUM`
    # of `PathState.vectors`, then its inverse basis.
    vertex: FloatArray
    slot: IntArray  # (L, rank): which members are basic, as in `PathState`.
    # (L + 1,): where the members of each landmark begin in the arrays below, which list them in
    # turn.
    first: IntArray
    # (capacity,), (capacity, rank) (STORED_MEMBER, capacity): The members, as in `PathState`;
    # `member` has the rows `SIDE`, `MULTIPLICITY` and `RESIDUAL`.
    position: IntArray
    row: FloatArray
    member: FloatArray


class PathState(NamedTuple):
    """The work arrays of one thread: vertex, members, scan cache and scratch."""

    # (N_VECTORS, rank): the vertex. It lies `FROM_BASE` away from the base vertex and
    # `FROM_LANDMARK` away from the landmark where the path started, which lies `LANDMARK_SHIFT`
    # away from the base vertex. `EDGE` is the direction of the step. `NONBASIC_SUM` is the sum of
    # the nonbasic points' rows times their dual values. Basic point k has the dual value
    # ``DUAL[k]`` and the multiplicity ``BASIC_MULTIPLICITY[k]``. `ROW` is the test row, `GOAL` that
    # row times its weight, and `DIRECTION` the goal less that of the landmark. ``COEFFICIENT``
    # expresses `DIRECTION` (at the end of a path: `ROW`) in the basic rows; on the way, dual value
    # k falls at the rate ``COEFFICIENT[k]``. `SPARE` is scratch.
    vectors: FloatArray
    slot: IntArray  # (rank,): vertex: basic point k is member ``slot[k]``.
    inverse: FloatArray  # (rank, rank): vertex: the inverse basis, transposed (see `kernels`).
    ratio: FloatArray  # (rank,): scratch of the exchange (see `kernels`).
    # (most,) and (most, rank): members, the points whose role may differ from that at the base
    # vertex: its basic points and every point that entered since. The scan skips members.
    position: IntArray
    row: FloatArray
    # (N_MEMBER, most): members: `SIDE`, 0 for basic points and else the sign of the residual;
    # `MULTIPLICITY`; `RESIDUAL`; `SPEED`, the rate at which the residual falls along the edge.
    member: FloatArray
    # (FIRST_BLOCK + n_blocks * BLOCK_ROWS, WIDTH): scan cache: products of the centres of a
    # superblock with `FROM_LANDMARK` and `EDGE`; then for each block the signed residuals
    # `AT_LANDMARK` and `AT_VERTEX`, and their rates. Members are infinite.
    cache: FloatArray
    # (n_superblocks * WIDTH,): scan cache: a lower bound of the residuals of each block at the
    # landmark.
    floor: FloatArray
    # (N_VISITS, n_blocks): scan cache: residuals of a block at the vertex are valid if `UPDATED_AT`
    # equals the `STEP`; those at the landmark if `READ_FOR` equals the `LANDMARK`; and floors if
    # `BOUNDED_FOR` of the superblock does, so that paths from one landmark share them. `SCANNED`
    # lists the blocks that this step scanned.
    visits: IntArray
    # (N_COUNTERS,): scan cache: `STEP` grows with every step, `LANDMARK` is the number of the
    # landmark plus one, `LANDMARK_MEMBERS` the number of its members.
    counters: IntArray


class PathResults(NamedTuple):
    """Value, status and number of pivots of each path, shape (m,)."""

    values: FloatArray
    status: NDArray[np.int8]
    pivots: IntArray


def blank_results(count: int) -> PathResults:
    """Arrays for the results of `count` paths, still to be filled."""
    return PathResults(np.empty(count), np.empty(count, np.int8), np.empty(count, np.int64))


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
        cache=np.empty((FIRST_BLOCK + n_blocks * BLOCK_ROWS, WIDTH)),
        floor=np.empty(len(scan.spread)),
        visits=np.zeros((N_VISITS, n_blocks), np.int64),
        counters=np.zeros(N_COUNTERS, np.int64),
    )


def make_landmarks(
    problem: Problem, scan_order: ScanOrder, most: int = MOST, budget: int = LANDMARK_BUDGET
) -> Landmarks:
    """Solve some calibration rows, as if they were test rows of weight ``1 - alpha``."""
    rows = _candidate_rows(problem, most)
    landmarks = _begin_landmarks(scan_order, 1 + len(rows))
    weights, starts = np.full(len(rows), 1.0 - problem.alpha), np.zeros(len(rows), np.int64)
    results, order = blank_results(len(rows)), np.arange(len(rows))
    follow_paths(rows, weights, starts, order, scan_order.scan, landmarks, results, budget)
    return landmarks


def _candidate_rows(problem: Problem, most: int) -> FloatArray:
    """Calibration rows to make landmarks of: a fixed random choice, longer rows more likely.

    Test rows are distributed like calibration rows, and long rows have the longest paths. Within a
    round shorter rows come first, because they lie between the base vertex and the longer ones.
    """
    n_points, rank = problem.rows.shape
    bytes_each = 8 * (1 + MEMBER_FACTOR) * max(rank, 1) ** 2
    size = min(most, n_points // POINTS_EACH, MOST_BYTES // bytes_each)
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


def _begin_landmarks(scan_order: ScanOrder, size: int) -> Landmarks:
    """Write the base vertex, whose goal is zero, as the first of `size` landmarks.

    The others are at infinite distance, so none of them is the nearest before it is written.
    """
    vertex = scan_order.vertex
    rank = len(vertex.eta)
    padded, capacity = -(-size // WIDTH) * WIDTH, MEMBER_FACTOR * rank * size
    landmarks = Landmarks(
        blocks=np.zeros((padded // WIDTH, rank, WIDTH)),
        half_square=np.full(padded, np.inf),
        vertex=np.zeros((size, INVERSE + rank, rank)),
        slot=np.zeros((size, rank), np.int64),
        first=np.zeros(size + 1, np.int64),
        position=np.zeros(capacity, np.int64),
        row=np.zeros((capacity, rank)),
        member=np.zeros((STORED_MEMBER, capacity)),
    )
    landmarks.half_square[0], landmarks.first[1] = 0.0, rank
    landmarks.vertex[0, DUAL], landmarks.vertex[0, NONBASIC_SUM] = vertex.eta, vertex.nonbasic_sum
    landmarks.vertex[0, INVERSE:] = vertex.inverse
    landmarks.slot[0] = landmarks.position[:rank] = np.arange(rank)
    landmarks.row[:rank] = scan_order.basic_rows
    landmarks.member[MULTIPLICITY, :rank] = scan_order.scan.multiplicities[:rank]
    return landmarks


def nearest_landmarks(
    rows: FloatArray, weights: FloatArray, landmarks: Landmarks, out: IntArray
) -> None:
    """Store for every row the number of the landmark whose goal is nearest to its own."""
    row, products = np.empty(rows.shape[1]), np.empty((1, WIDTH))
    _nearest_landmarks(rows, weights, landmarks.blocks, landmarks.half_square, row, products, out)


@entry()
def _nearest_landmarks(
    rows: FloatArray,
    weights: FloatArray,
    blocks: FloatArray,
    half_square: FloatArray,
    row: FloatArray,
    products: FloatArray,
    out: IntArray,
) -> None:
    for i in range(len(rows)):
        # A copy, because a view of the shared rows would change their reference count.
        for j in range(len(row)):
            row[j] = rows[i, j]
        out[i] = _nearest_landmark(row, weights[i], blocks, half_square, len(blocks), products)


@inner()
def _nearest_landmark(
    row: FloatArray,
    weight: float,
    blocks: FloatArray,
    half_square: FloatArray,
    count: int,
    products: FloatArray,
) -> int:
    """Number of the landmark, in the first `count` blocks, that is nearest to the goal of a row."""
    least, nearest = np.inf, 0
    # |goal - landmark|^2 / 2 less |goal|^2 / 2, which is the same for all landmarks.
    for block in range(count):
        block_products(blocks, block, row, products, ZERO)
        for lane in range(WIDTH):
            far = half_square[block * WIDTH + lane] - weight * products[0, lane]
            if far < least:
                least, nearest = far, block * WIDTH + lane
    return nearest


def follow_paths(
    rows: FloatArray,
    weights: FloatArray,
    starts: IntArray,
    order: IntArray,
    scan: Scan,
    landmarks: Landmarks,
    results: PathResults,
    budget: int = 0,
) -> None:
    """Store the results of the whitened rows in `order`, from the landmarks `starts`.

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
    _follow_paths(rows, weights, starts, order, scan, landmarks, budget, cap, *results, state)


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
    row, rank = state.vectors[ROW], rows.shape[1]
    taken, taken_before, n_landmarks = 0, 0, ZERO + 1
    members, since_refresh = 0, 0
    for i in order:
        for j in range(rank):
            row[j] = rows[i, j]
        start = starts[i]
        if budget > 0:
            if i % ROUND == 0 and i > 0:
                if taken - taken_before < ENOUGH * ROUND:
                    return
                taken_before = taken
            if taken * rank * rank > budget:
                return
            blocks, n_blocks = landmarks.blocks, -(-n_landmarks // WIDTH)
            start = _nearest_landmark(
                row, weights[i], blocks, landmarks.half_square, n_blocks, state.cache
            )
        if start < 0 and (members == 0 or members + cap > len(state.position)):
            start = ~start
        if start < 0 and since_refresh >= REFRESH:
            since_refresh = 0
            if not _refresh(members, scan, state):
                start = ~start
        if start >= 0:
            since_refresh = 0
        values[i], status[i], pivots[i], members = _follow(
            weights[i], start, members, cap, scan, landmarks, state
        )
        since_refresh += pivots[i]
        if budget > 0:
            taken += pivots[i]
            # Paths that start at a landmark inherit its errors, so it is computed from scratch.
            if status[i] == EXACT and pivots[i] >= WORTH_STORING and _refresh(members, scan, state):
                n_landmarks += _store_landmark(n_landmarks, members, scan, landmarks, state)


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
    row, goal, direction = vectors[ROW], vectors[GOAL], vectors[DIRECTION]
    infinity = np.inf if weight > 0.0 else -np.inf
    # |Q' eta| <= reach for every eta in the box, so the dual of a longer row is infeasible. The
    # comparison is negated so that a row whose length overflowed to NaN ends here, too.
    if not np.sqrt(dot(row, row)) * abs(weight) <= scan.reach:
        return infinity, INFINITE, 0, 0
    # Where the optimum at the weight is not unique, that just below it is its smallest one.
    for j in range(len(row)):
        new_goal = (weight - WEIGHT_TOL) * row[j]
        direction[j] = new_goal - goal[j]
        goal[j] = new_goal
    if start >= 0:
        members = _load_landmark(start, landmarks, state)
    else:
        for k in range(len(row)):
            vectors[COEFFICIENT, k] = row_dot(state.inverse, k, direction)
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
        length, entering, scanned = _first_crossing(members, scan, state)
        # No residual ends the edge: it is a ray, which proves that the dual is infeasible.
        if entering < 0:
            return infinity, INFINITE, pivot, 0
        _advance(length, members, scanned, state)
        members = _enter(leaving, entering, members, scan, state)
    return np.nan, FALLBACK, cap, 0


@inner()
def _load_landmark(landmark: int, landmarks: Landmarks, state: PathState) -> int:
    """Go to the vertex of a landmark and set the direction to the goal; the number of members."""
    vectors, slot, inverse, row = state.vectors, state.slot, state.inverse, state.row
    position, member, counters = state.position, state.member, state.counters
    goal, direction = vectors[GOAL], vectors[DIRECTION]
    rank, low = len(slot), landmarks.first[landmark]
    members = int(landmarks.first[landmark + 1] - low)
    counters[STEP] += 1
    counters[LANDMARK] = landmark + 1
    counters[LANDMARK_MEMBERS] = members
    for m in range(members):
        position[m] = landmarks.position[low + m]
        for a in range(STORED_MEMBER):
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
        vectors[BASIC_MULTIPLICITY, k] = member[MULTIPLICITY, slot[k]]
        direction[k] = goal[k] - landmarks.blocks[block, k, lane]
    for k in range(rank):
        vectors[COEFFICIENT, k] = row_dot(inverse, k, direction)
    return members


@inner(inline="always")
def _store_landmark(
    landmark: int, members: int, scan: Scan, landmarks: Landmarks, state: PathState
) -> bool:
    """Write the present vertex as a landmark; false if there is no room for it."""
    vectors, slot, member = state.vectors, state.slot, state.member
    goal, side = vectors[GOAL], member[SIDE]
    rank, low, vertex = len(slot), landmarks.first[landmark], landmarks.vertex
    end = low
    for m in range(members):
        position = state.position[m]
        # A point that entered and left to its old side has its role at the base vertex again.
        if position >= rank and side[m] == scan.side[position]:
            continue
        if end == len(landmarks.position) or end - low == MOST_MEMBERS * rank:
            return False
        for k in range(rank):
            if side[m] == 0.0 and slot[k] == m:
                landmarks.slot[landmark, k] = end - low
        landmarks.position[end] = position
        for a in range(STORED_MEMBER):
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
        landmarks.blocks[landmark // WIDTH, k, landmark % WIDTH] = goal[k]
    landmarks.half_square[landmark] = 0.5 * dot(goal, goal)
    return True


@inner(inline="always")
def _bound(alpha: float, upper: bool, multiplicities: float) -> float:
    """Bound of a dual value; the box of a point grows with its multiplicity."""
    return multiplicities * (1.0 - alpha if upper else -alpha)


@inner()
def _next_breakpoint(vectors: FloatArray, alpha: float) -> tuple[int, float]:
    """Find the basic point whose dual value meets its bound first, and the share of the way there.

    This is the ratio test of the dual: value k falls at the rate ``coefficient[k]``. The point is
    -1 when none moves.
    """
    coefficient, dual, multiplicities = (
        vectors[COEFFICIENT],
        vectors[DUAL],
        vectors[BASIC_MULTIPLICITY],
    )
    leaving, least, largest = -1, np.inf, 1.0
    for k in range(len(dual)):
        largest = max(largest, abs(coefficient[k]))
    for k in range(len(dual)):
        rate = coefficient[k]
        if abs(rate) > COEFFICIENT_TOL * largest:
            bound = _bound(alpha, rate < 0.0, multiplicities[k])
            # A dual value that rounding put outside its box leaves at once.
            share = max((dual[k] - bound) / rate, 0.0)
            if share < least:
                leaving, least = k, share
    return leaving, least


@inner(inline="always")
def _leave(leaving: int, share: float, alpha: float, state: PathState) -> None:
    """Move the dual values to the breakpoint, make a point nonbasic and set the edge."""
    vectors, slot = state.vectors, state.slot[leaving]
    coefficient, dual, edge = vectors[COEFFICIENT], vectors[DUAL], vectors[EDGE]
    nonbasic_sum = vectors[NONBASIC_SUM]
    for k in range(len(dual)):
        dual[k] -= share * coefficient[k]
    rises = coefficient[leaving] < 0.0
    bound = _bound(alpha, rises, vectors[BASIC_MULTIPLICITY, leaving])
    # A point whose dual value is at its upper bound may get a positive residual, so its product
    # with the edge is -1; at the lower bound the residual may turn negative.
    side = 1.0 if rises else -1.0
    state.member[SIDE, slot] = side
    state.member[RESIDUAL, slot] = 0.0
    for j in range(len(edge)):
        edge[j] = -side * state.inverse[leaving, j]
        nonbasic_sum[j] += bound * state.row[slot, j]


@inner()
def _first_crossing(  # noqa: PLR0912, PLR0915 - a scan reads from top to bottom
    members: int, scan: Scan, state: PathState
) -> tuple[float, int, int]:
    """First zero of a residual along the edge: step, entering point, number of scanned blocks.

    The entering point is the number of a member, or the number of members plus a position. It is
    -1 if no residual reaches zero: the edge is a ray.
    """
    vectors, cache, floor, visits = state.vectors, state.cache, state.floor, state.visits
    edge, from_base, from_landmark = vectors[EDGE], vectors[FROM_BASE], vectors[FROM_LANDMARK]
    updated_at, read_for, bounded_for = visits[UPDATED_AT], visits[READ_FOR], visits[BOUNDED_FOR]
    spread, group_key, counters = scan.spread, scan.group_key, state.counters
    step, landmark, hidden = counters[STEP], counters[LANDMARK], counters[LANDMARK_MEMBERS]
    shift, long = vectors[LANDMARK_SHIFT], dot(edge, edge)
    tiny, far = EDGE_TOL * np.sqrt(long), np.sqrt(dot(shift, shift))
    # Terms of the distances from base vertex and landmark, which are quadratic along the edge.
    here, along = dot(from_base, from_base), dot(from_base, edge)
    gone, ahead = dot(from_landmark, from_landmark), dot(from_landmark, edge)
    # Members come first: they are few, and a short step makes the scan short.
    length, entering = _member_crossing(members, tiny, state.row, state.member, edge)
    radius, reach = _after(here, along, long, length), _after(gone, ahead, long, length)
    scanned = 0
    for superblock in range(len(scan.centres)):
        # Group keys grow, so no later block can have a crossing either.
        if group_key[superblock * WIDTH] > radius:
            break
        if bounded_for[superblock] != landmark:
            # Lower bounds of the residuals at the landmark, until a path reads these.
            bounded_for[superblock] = landmark
            block_products(scan.centres, superblock, shift, cache, WITH_WAY)
            for lane in range(WIDTH):
                block, middle = superblock * WIDTH + lane, cache[WITH_WAY, lane]
                around = spread[block] * far
                slack = FLOOR_SLACK * (abs(middle) + around)
                least = (1.0 - FLOOR_SLACK) * scan.least_distance[block]
                floor[block] = least - (middle + around + slack)
        block_products(scan.centres, superblock, from_landmark, cache, WITH_WAY)
        block_products(scan.centres, superblock, edge, cache, WITH_EDGE)
        for lane in range(WIDTH):
            block = superblock * WIDTH + lane
            # At the end of the step the products Q_i y of the block are at most this.
            bound = cache[WITH_WAY, lane] + length * cache[WITH_EDGE, lane] + spread[block] * reach
            if group_key[block] > radius or bound < floor[block]:
                continue
            first = FIRST_BLOCK + block * BLOCK_ROWS
            if read_for[block] != landmark:
                # The first path that needs the block replaces its bound by the true minimum.
                read_for[block] = landmark
                row = first + AT_LANDMARK
                block_products(scan.blocks, block, shift, cache, row)
                for i in range(WIDTH):
                    cache[row, i] = scan.distance[block * WIDTH + i] - cache[row, i]
                _hide(block, ZERO, hidden, row, state)
                least = np.inf
                for i in range(WIDTH):
                    least = min(least, cache[row, i])
                floor[block] = least * (1.0 - FLOOR_SLACK if least > 0.0 else 1.0 + FLOOR_SLACK)
                if bound < floor[block]:
                    continue
            if updated_at[block] != step:
                # The step before did not scan the block, so its residuals are out of date.
                row = first + AT_VERTEX
                block_products(scan.blocks, block, from_landmark, cache, row)
                for i in range(WIDTH):
                    cache[row, i] = cache[first + AT_LANDMARK, i] - cache[row, i]
                _hide(block, hidden, members, row, state)
            visits[SCANNED, scanned] = block
            scanned += 1
            block_products(scan.blocks, block, edge, cache, first + RATE)
            shorter, crossing = _block_crossing(cache, first, tiny, length)
            if crossing >= 0:
                length, entering = shorter, members + block * WIDTH + crossing
                radius, reach = _after(here, along, long, length), _after(gone, ahead, long, length)
    return length, entering, scanned


@inner(inline="always")
def _after(square: float, along: float, long: float, length: float) -> float:
    """Distance after a step of `length`, from the squared distance before it and its terms."""
    if length >= UNREACHED:
        # Beyond all keys, but below the infinite keys of padding.
        return UNREACHED * UNREACHED
    return float(RADIUS_SLACK * np.sqrt(max(square + length * (2.0 * along + length * long), 0.0)))


@inner()
def _member_crossing(
    members: int, tiny: float, row: FloatArray, member: FloatArray, edge: FloatArray
) -> tuple[float, int]:
    """First zero among members that are not basic; stores their rates."""
    sides, residual, speed = member[SIDE], member[RESIDUAL], member[SPEED]
    length, entering = UNREACHED, -1
    for m in range(members):
        side = sides[m]
        if side != 0.0:
            rate = row_dot(row, m, edge)
            speed[m] = rate
            if side * rate > tiny:
                # Rounding can leave a residual on the wrong side of zero; its step is zero.
                step = max(side * residual[m], 0.0) / (side * rate)
                if step < length:
                    length, entering = step, m
    return length, entering


@inner(inline="always")
def _hide(block: int, first: int, last: int, row: int, state: PathState) -> None:
    """Make the residuals of members of a block infinite, so that the scan never chooses them."""
    position, cache = state.position, state.cache
    for m in range(first, last):
        if position[m] // WIDTH == block:
            cache[row, position[m] % WIDTH] = np.inf


@inner()
def _block_crossing(cache: FloatArray, first: int, tiny: float, length: float) -> tuple[float, int]:
    """First zero before `length` of the residuals of a block: step and lane, or -1."""
    residual, rate = first + AT_VERTEX, first + RATE
    count = 0
    # A loop without branches vectorises, and most blocks have no crossing.
    for lane in range(WIDTH):
        count += (cache[rate, lane] > tiny) & (cache[residual, lane] < length * cache[rate, lane])
    crossing = -1
    if count > 0:
        for lane in range(WIDTH):
            near, speed = cache[residual, lane], cache[rate, lane]
            if speed > tiny and near < length * speed:
                length, crossing = max(near, 0.0) / speed, lane
    return length, crossing


@inner()
def _advance(length: float, members: int, scanned: int, state: PathState) -> None:
    """Move the vertex, and the residuals of members and scanned blocks, along the edge."""
    vectors, member, visits, cache = state.vectors, state.member, state.visits, state.cache
    edge, from_base, from_landmark = vectors[EDGE], vectors[FROM_BASE], vectors[FROM_LANDMARK]
    side, residual, speed = member[SIDE], member[RESIDUAL], member[SPEED]
    state.counters[STEP] += 1
    step = state.counters[STEP]
    for j in range(len(edge)):
        change = length * edge[j]
        from_base[j] += change
        from_landmark[j] += change
    for m in range(members):
        if side[m] != 0.0:
            residual[m] -= length * speed[m]
    for s in range(scanned):
        block = visits[SCANNED, s]
        visits[UPDATED_AT, block] = step
        first = FIRST_BLOCK + block * BLOCK_ROWS
        for lane in range(WIDTH):
            cache[first + AT_VERTEX, lane] -= length * cache[first + RATE, lane]


@inner()
def _enter(leaving: int, entering: int, members: int, scan: Scan, state: PathState) -> int:
    """Make a point basic in place of the leaving one; the new number of members."""
    vectors, member, row, ratio = state.vectors, state.member, state.row, state.ratio
    coefficient, nonbasic_sum = vectors[COEFFICIENT], vectors[NONBASIC_SUM]
    new = entering
    if entering >= members:
        # It joins the members: its row is copied out of its block, and the scan skips it.
        new, position = members, entering - members
        block, lane, side = position // WIDTH, position % WIDTH, scan.side[position]
        state.cache[FIRST_BLOCK + block * BLOCK_ROWS + AT_VERTEX, lane] = np.inf
        state.position[new] = position
        member[SIDE, new], member[MULTIPLICITY, new] = side, scan.multiplicities[position]
        for j in range(row.shape[1]):
            row[new, j] = side * scan.blocks[block, j, lane]
        members += 1
    multiplicities = member[MULTIPLICITY, new]
    bound = _bound(scan.alpha, member[SIDE, new] > 0.0, multiplicities)
    member[SIDE, new] = 0.0
    member[RESIDUAL, new] = 0.0
    state.slot[leaving] = new
    vectors[BASIC_MULTIPLICITY, leaving] = multiplicities
    vectors[DUAL, leaving] = bound
    exchange(state.inverse, leaving, row[new], ratio)
    # The rank-one update of the inverse changes the coefficients by the same ratios.
    pivot_coefficient = coefficient[leaving]
    for k in range(len(ratio)):
        nonbasic_sum[k] -= bound * row[new, k]
        coefficient[k] -= ratio[k] * pivot_coefficient
    coefficient[leaving] = ratio[leaving] * pivot_coefficient
    return members


@inner()
def _refresh(members: int, scan: Scan, state: PathState) -> bool:
    """Compute inverse, coefficients, vertex and residuals anew; false if they are singular.

    The vertex solves ``Q_B x = r_B`` with the residuals ``r_B`` of its basic points at the base
    vertex, and x its distance from there.
    """
    vectors, member, position = state.vectors, state.member, state.position
    inverse, slot, row, rank = state.inverse, state.slot, state.row, len(state.slot)
    from_base, direction = vectors[FROM_BASE], vectors[DIRECTION]
    state.counters[STEP] += 1
    if not invert(row, slot, inverse):
        return False
    for k in range(rank):
        vectors[COEFFICIENT, k] = row_dot(inverse, k, direction)
        from_base[k] = 0.0
    for k in range(rank):
        start = _base_residual(position[slot[k]], rank, scan)
        for j in range(rank):
            from_base[j] += start * inverse[k, j]
    for j in range(rank):
        vectors[FROM_LANDMARK, j] = from_base[j] - vectors[LANDMARK_SHIFT, j]
    for m in range(members):
        if member[SIDE, m] != 0.0:
            start = _base_residual(position[m], rank, scan)
            member[RESIDUAL, m] = start - row_dot(row, m, from_base)
    return True


@inner(inline="always")
def _base_residual(position: int, rank: int, scan: Scan) -> float:
    """Residual of a point at the base vertex, whose basic points come first in scan order."""
    if position < rank:
        return 0.0
    return float(scan.side[position] * scan.distance[position])


@inner()
def _finish(scan: Scan, state: PathState) -> tuple[float, bool]:
    """Threshold of the last vertex, and whether the vertex passes its check.

    All errors are measured with the basic rows themselves; the updated inverse serves only to
    correct them. The coefficients solve ``Q_B' c = q`` and the threshold is ``c @ s_B`` with the
    scores themselves: dual feasibility does not depend on scores, so this vertex is optimal for
    them without perturbations, too.
    """
    vectors, slot, inverse, rank = state.vectors, state.slot, state.inverse, len(state.slot)
    test_row, coefficient, dual = vectors[ROW], vectors[COEFFICIENT], vectors[DUAL]
    target, scores = vectors[EDGE], vectors[SPARE]
    for k in range(rank):
        coefficient[k] = row_dot(inverse, k, test_row)
    for k in range(rank):
        # The edge is not needed any more, so its row takes what the basic points must balance.
        target[k] = -vectors[GOAL, k] - vectors[NONBASIC_SUM, k]
    off, off_dual = 0.0, 0.0
    # The second round measures what the first has left.
    for _ in range(2):
        off = _refine(test_row, coefficient, state)
        off_dual = _refine(target, dual, state)
    drift, outside = 0.0, 0.0
    for k in range(rank):
        position, multiplicities, eta = (
            state.position[slot[k]],
            vectors[BASIC_MULTIPLICITY, k],
            dual[k],
        )
        start = _base_residual(position, rank, scan)
        drift = max(drift, abs(start - row_dot(state.row, slot[k], vectors[FROM_BASE])))
        outside = max(
            outside, eta - multiplicities * (1.0 - scan.alpha), -multiplicities * scan.alpha - eta
        )
        scores[k] = scan.score[position]
    value = weighted_sum(coefficient, scores)
    size = max(1.0, np.sqrt(dot(test_row, test_row)))
    accurate = off <= CHECK_TOL * size and off_dual <= CHECK_TOL * size
    return value, accurate and outside <= 10.0 * CHECK_TOL * size and drift <= scan.tolerance


@inner()
def _refine(target: FloatArray, solution: FloatArray, state: PathState) -> float:
    """One step of refinement of ``Q_B' solution = target``; the largest error before it."""
    row, slot, gap = state.row, state.slot, state.vectors[SPARE]
    rank = len(slot)
    for j in range(rank):
        gap[j] = target[j]
    for k in range(rank):
        for j in range(rank):
            gap[j] -= solution[k] * row[slot[k], j]
    worst = 0.0
    for j in range(rank):
        worst = max(worst, abs(gap[j]))
    for k in range(rank):
        solution[k] += row_dot(state.inverse, k, gap)
    return worst
