"""Exact thresholds of many test points, by following a parametric linear program.

"The path" in docs/engine.md has the steps: `_next_breakpoint`, `_leave`, `_first_crossing`,
`_advance`, `_enter` and `_finish`; `_follow` is the loop around them. The *goal* of a test point is
its row times its weight, and its optimal vertex depends on the goal alone.

Test points are visited on a *tour* on which neighbours have similar rows. A path starts at the
vertex of the point before, or at the base vertex, whose goal is zero, if that is nearer. The
threshold depends on the last vertex alone, and not on the way there (`accurate_coefficients`).

"Why few points are scanned" in docs/engine.md has the two bounds that spare a step most points.
Rows are multiplied by the sign of their residual at the base vertex, so that every residual starts
positive. Both bounds hold for every shorter step, too, so a crossing only shortens the scan.
The second is tighter from an *anchor*, a vertex on the tour: the way from there is compared with
the *floor* of the block, a lower bound of its residuals at the anchor, and once a path has read
these, their minimum. Lower bounds of the residuals at the present vertex fall with every step.

A path that is too long, or fails its check, is left to a descent (`fit_extreme`), and where that
fails, HiGHS solves the linear program of all points (`solve_as_program`).

Small kernels and those with one caller are inlined before types are inferred. Numba would compile
and optimise each of them on its own and again within its callers, at every depth of calls.
"""

from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from trustsets._blocks import one_blas_thread
from trustsets.engine.compiled import (
    REASSOCIATE,
    BoolArray,
    FloatArray,
    IntArray,
    entry,
    inner,
    read_only,
)
from trustsets.engine.fit import (
    BIG_GROWTH,
    CAPPED,
    FEW_WRONG,
    GROWTH,
    MAX_ROUNDS,
    OPTIMAL,
    PROGRAM_SIZE,
    UNBOUNDED,
    PointSet,
    Vertex,
    certify,
    descend,
    loss_slopes,
    problem_points,
)
from trustsets.engine.kernels import (
    EDGE_TOL,
    ZERO,
    accurate_coefficients,
    add_multiple,
    compensated_sum,
    dot,
    exchange,
    invert,
    multiply,
    products,
    to_lanes,
    two_products,
    weighted_sum,
)
from trustsets.engine.lanes import (
    ALL,
    WIDTH,
    absolute,
    below,
    fused,
    least,
    load,
    lowest,
    padded,
    spread,
    store,
)
from trustsets.engine.linear_program import solve_face
from trustsets.engine.problem import Problem, neighbour_order, scan_keys
from trustsets.status import Status

# Blocks of the first group, which stays in the order of keys; groups double after it.
FIRST_BLOCKS = 4
SPREAD_SLACK = 1.0 + 1e-9  # Distances to a centre are enlarged by this factor to cover rounding.
# Accepted error of a basic residual at the end of a path, as a share of the score scale.
DRIFT_TOL = 1e-11
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
CAP_FACTOR, CAP_BASE = 30, 20
REFRESH = 50  # Pivots between two computations of the vertex from scratch.
ANCHORED = 32  # Pivots on a tour between two anchors.
# Members that a tour may collect, in units of the rank, before it starts at the base vertex again.
MOST_MEMBERS = 24
STRETCH = 256  # Test points of a tour among which the next one is chosen, and that a thread takes.
LONG_STRETCH = 4096  # The same for a tour that serves many alphas: fewer pivots, and made once.
NEAR_POINTS = 6  # Points near the base fit that measure a tour, in units of the rank.
# Points in the active set of the first round, and of those after it.
FIRST_ACTIVE, ACTIVE = 1024, 4096
SAMPLE_SIZE = 4096  # Points in the weighted sample of a model.
# Points are sampled with a probability that grows like this power of the length of their row.
SAMPLE_POWER = 1.5
# Points that have gone this share of their way to the other side are near the centre.
NEAR_SHARE = 0.5
# A ray is a proof if the goal exceeds the growth of the loss along it by this share.
RAY_TOL = 1e-9

EXACT = int(Status.EXACT)
FALLBACK = int(Status.FALLBACK)
INFINITE = int(Status.HIGH_LEVERAGE)

# Kernels take few arrays with several rows each, because every array of a tuple adds to the time
# that each kernel with that tuple takes to compile. Every kernel names the rows that it uses by
# views at its entry. The numbers are NumPy integers, because numba compiles a kernel anew for each
# Python integer that is passed to it as a constant.
#
# Rows of `PathState.vectors`.
(
    FROM_BASE,
    DUAL,
    NONBASIC_SUM,
    FROM_ANCHOR,
    ANCHOR_SHIFT,
    EDGE,
    COEFFICIENT,
    BASIC_MULTIPLICITY,
    GOAL,
    DIRECTION,
    ROW,
    SPARE,
    REST,
    RATIO,
    N_VECTORS,
) = cast(Any, np.arange(15))
# Rows of `PathState.member`.
SIDE, MULTIPLICITY, RESIDUAL, SPEED, N_MEMBER = cast(Any, np.arange(5))
# Rows of `PathState.bounds`.
FLOOR, NEAR, DROP, N_BOUNDS = cast(Any, np.arange(4))
# Rows of `PathState.visits`.
UPDATED_AT, READ_FOR, SCANNED, BOUNDED_FOR, NEAR_FOR, BOUNDED, N_VISITS = cast(Any, np.arange(7))
# Rows of `PathState.gates`.
GATE, NEAR_GATE, NEAR_SINCE, N_GATES = cast(Any, np.arange(4))
# Entries of `PathState.counters`.
STEP, EPOCH, ANCHOR, ANCHOR_MEMBERS, N_ANCHORS, CAP, N_COUNTERS = cast(Any, np.arange(7))
# Rows of `PathState.cache` for each block: the residuals of its points at the anchor and at the
# vertex, and the rates at which they fall along the edge.
AT_ANCHOR, AT_VERTEX, RATE, BLOCK_ROWS = cast(Any, np.arange(4))
BASE_ANCHOR: Any = np.int64(1)  # The number of the base vertex among the anchors.


class Scan(NamedTuple):
    """Points in scan order, as kernels read them; a position is a place in that order."""

    # (n_blocks, rank, WIDTH): rows times the sign of their residual, transposed in blocks so that
    # the products of a block with a vector run over contiguous points; padded with zeros.
    blocks: FloatArray
    # (n_superblocks, rank, WIDTH): centres of the blocks in the same layout; `WIDTH` blocks form a
    # superblock.
    centres: FloatArray
    # (n_superblocks * WIDTH,): for each block the largest distance of a point to the centre; a
    # bound on the length of its rows, and one over that; the smallest absolute residual; and the
    # smallest key of the block's group (infinite for padding).
    spread: FloatArray
    longest: FloatArray
    steepness: FloatArray
    least_distance: FloatArray
    group_key: FloatArray
    # (n_blocks * WIDTH,): for each position the sign of the residual, +1 for basic points; the
    # number of equal calibration points; the absolute residual, infinite for basic points and
    # padding; and the score before centring.
    side: FloatArray
    multiplicities: FloatArray
    distance: FloatArray
    score: FloatArray
    # Miscoverage; a bound on the length of any goal that points can balance; accepted drift of a
    # residual.
    alpha: float
    reach: float
    tolerance: float


class ScanOrder(NamedTuple):
    """The base vertex with all points in scan order."""

    scan: Scan  # The points. Basic points come first, in the order of `vertex`.
    order: IntArray  # (n,): row number in the problem of each position.
    vertex: Vertex  # The optimal vertex of the base problem, by row numbers of the problem.
    # (2 + 2 rank, padded rank): its dual values, the sum of the nonbasic points' rows times theirs,
    # the inverse basis, and the rows of the basic points.
    base: FloatArray


def make_scan_order(problem: Problem, vertex: Vertex) -> ScanOrder:
    """Put the points in scan order."""
    n_points, rank = problem.rows.shape
    key = scan_keys(vertex.residuals, problem.norms)
    key[vertex.basic_points] = -1.0 - np.arange(rank)[::-1]
    order = np.argsort(key, kind="stable")
    side = np.where(vertex.residuals >= 0.0, 1.0, -1.0)
    group_key = _arrange(problem, side, key, order)
    columns = np.zeros((4, padded(n_points)))
    sides, multiplicities, score, distance = columns
    sides[:n_points], multiplicities[:n_points] = side[order], problem.multiplicities[order]
    score[:n_points], distance[:] = problem.scores[order], np.inf
    distance[rank:n_points] = np.abs(vertex.residuals[order[rank:]])
    n_blocks = padded(n_points) // WIDTH
    blocks = np.zeros((n_blocks, rank, WIDTH))
    centre, spread = np.zeros((padded(n_blocks), rank)), np.zeros(padded(n_blocks))
    least_distance = np.full(len(spread), np.inf)
    rows = read_only(problem.rows)
    _fill_blocks(rows, side, order, distance, blocks, centre, spread, least_distance)
    longest = SPREAD_SLACK * (np.sqrt(np.einsum("ij,ij->i", centre, centre)) + spread)
    # No eta in the box balances a goal that is longer than this.
    reach = max(problem.alpha, 1.0 - problem.alpha) * (problem.norms @ problem.multiplicities)
    reach += np.linalg.norm(problem.linear)
    scan = Scan(
        blocks=blocks,
        centres=to_lanes(centre),
        spread=spread,
        longest=longest,
        # Padding and rows of zeros never cross: any large number serves them.
        steepness=(1.0 - FLOOR_SLACK) / np.maximum(longest, 1e-150),
        least_distance=least_distance,
        group_key=group_key,
        side=sides,
        multiplicities=multiplicities,
        distance=distance,
        score=score,
        alpha=problem.alpha,
        reach=float(reach),
        tolerance=DRIFT_TOL * problem.score_scale,
    )
    basic_rows = problem.rows[vertex.basic_points]
    base = np.zeros((2 + 2 * rank, padded(rank)))
    base[:, :rank] = np.vstack([vertex.eta, vertex.nonbasic_sum, vertex.inverse.T, basic_rows])
    return ScanOrder(scan, order, vertex, base)


def _arrange(problem: Problem, side: FloatArray, key: FloatArray, order: IntArray) -> FloatArray:
    """Sort each group of `order` into blocks of neighbours; the group key of every block."""
    n_points, rank = problem.rows.shape
    n_blocks = -(-n_points // WIDTH)
    group_key = np.full(-(-n_blocks // WIDTH) * WIDTH, np.inf)
    size = max(FIRST_BLOCKS, -(-rank // WIDTH))
    group_key[: min(size, n_blocks)] = key[order[: size * WIDTH : WIDTH]]
    # Points that follow each other in a k-d tree of all points, apart by their side.
    neighbours = problem.neighbours + n_points * (side < 0.0)
    low = size
    while low < n_blocks:
        group = order[low * WIDTH : (low + size) * WIDTH]
        group_key[low : min(low + size, n_blocks)] = key[group[0]]
        group[:] = group[np.argsort(neighbours[group])]
        low, size = low + size, 2 * size
    return group_key


@entry()
def _fill_blocks(
    rows: FloatArray,
    side: FloatArray,
    order: IntArray,
    distance: FloatArray,
    blocks: FloatArray,
    centre: FloatArray,
    spread: FloatArray,
    least_distance: FloatArray,
) -> None:
    """Store the rows of each block, their centre and spread, and the least residual."""
    rank = rows.shape[1]
    for i in range(len(order)):
        block, lane, point = i // WIDTH, i % WIDTH, order[i]
        for j in range(rank):
            value = side[point] * rows[point, j]
            blocks[block, j, lane] = value
            centre[block, j] += value / WIDTH
    for i in range(len(order)):
        block, lane, square = i // WIDTH, i % WIDTH, 0.0
        if distance[i] < np.inf:
            for j in range(rank):
                gap = blocks[block, j, lane] - centre[block, j]
                square += gap * gap
            spread[block] = max(spread[block], SPREAD_SLACK * np.sqrt(square))
            least_distance[block] = min(least_distance[block], distance[i])


class PathState(NamedTuple):
    """The work arrays of one thread: vertex, members, scan cache and scratch."""

    # (N_VECTORS, padded rank): the vertex. It lies `FROM_BASE` away from the base vertex and
    # `FROM_ANCHOR` away from the anchor, which lies `ANCHOR_SHIFT` away from the base vertex.
    # `EDGE` is the direction of the step. `NONBASIC_SUM` is the sum of the nonbasic points' rows
    # times their dual values. Basic point k has the dual value ``DUAL[k]`` and the multiplicity
    # ``BASIC_MULTIPLICITY[k]``. `ROW` is the test row, `GOAL` that row times its weight, and
    # `DIRECTION` the goal less that where the path started. ``COEFFICIENT`` expresses `DIRECTION`
    # (at the end of a path: `ROW`) in the basic rows; on the way, dual value k falls at the rate
    # ``COEFFICIENT[k]``. `REST` is what rounding took from the coefficients at the end, `RATIO`
    # what the exchange of a basic point returns (see `kernels`), and `SPARE` is scratch.
    vectors: FloatArray
    slot: IntArray  # (rank,): vertex: basic point k is member ``slot[k]``.
    # (padded rank / WIDTH, rank, WIDTH) and (rank, padded rank): vertex: edges and basic rows.
    edges: FloatArray
    basic_rows: FloatArray
    inversion: FloatArray  # (2, rank, rank): scratch of `invert`.
    # (most,) and (most / WIDTH, rank, WIDTH): members, the points whose role may differ from that
    # at the base vertex: its basic points and every point that entered since, and their rows. The
    # scan skips members.
    position: IntArray
    member_rows: FloatArray
    # (N_MEMBER, most): members: `SIDE`, 0 for basic points and else the sign of the residual;
    # `MULTIPLICITY`; `RESIDUAL`; `SPEED`, the rate at which the residual falls along the edge.
    member: FloatArray
    # (n_blocks * BLOCK_ROWS, WIDTH): scan cache: of each block the signed residuals `AT_ANCHOR`
    # and `AT_VERTEX`, and their rates. Members are infinite.
    cache: FloatArray
    # (N_BOUNDS, n_superblocks * WIDTH): scan cache: lower bounds of the residuals of each block at
    # the anchor and at the vertex, and the rate at which they fall at most along the edge.
    bounds: FloatArray
    # (N_GATES, n_superblocks): scan cache: how far from the anchor a path may be before a point of
    # the superblock can cross; how far it may have `travelled`; and how far it had when `NEAR` was
    # computed: since then it falls by the longest row of the block times the way.
    gates: FloatArray
    travelled: FloatArray  # (1,): scan cache: length of the way since the `EPOCH` began.
    # (N_VISITS, n_blocks): scan cache: residuals of a block at the vertex are valid if `UPDATED_AT`
    # equals the `STEP`; those at the anchor if `READ_FOR` equals the `ANCHOR`; and floors if
    # `BOUNDED_FOR` of the superblock does, so that paths from one anchor share them. `NEAR` of a
    # superblock is valid if its `NEAR_FOR` equals the `EPOCH`. `BOUNDED` lists the superblocks
    # whose bounds this step looked at, and `SCANNED` the blocks that it scanned.
    visits: IntArray
    # (N_COUNTERS,): scan cache: `STEP` grows with every step, and `EPOCH` when the vertex or the
    # members change in another way. `ANCHOR` is the number of the anchor, `ANCHOR_MEMBERS` the
    # number of its members, and `N_ANCHORS` counts anchors.
    counters: IntArray


class PathResults(NamedTuple):
    """Value, status and number of pivots of each path, shape (m,)."""

    values: FloatArray
    status: NDArray[np.int8]
    pivots: IntArray


class Tour(NamedTuple):
    """Test rows in the order of their paths: row numbers, and which start at the row before."""

    order: IntArray
    chained: IntArray


def blank_results(count: int) -> PathResults:
    """Arrays for the results of `count` paths, still to be filled."""
    return PathResults(np.empty(count), np.empty(count, np.int8), np.empty(count, np.int64))


def allocate(scan: Scan) -> PathState:
    """Work arrays for the paths of a model; memory that is not touched costs nothing."""
    n_blocks, rank, _ = scan.blocks.shape
    cap = CAP_FACTOR * rank + CAP_BASE
    # Every pivot adds at most one member.
    most = padded(MOST_MEMBERS * rank + cap)
    state = PathState(
        vectors=np.zeros((N_VECTORS, padded(rank))),
        slot=np.zeros(rank, np.int64),
        edges=np.zeros((padded(rank) // WIDTH, rank, WIDTH)),
        basic_rows=np.zeros((rank, padded(rank))),
        inversion=np.empty((2, rank, rank)),
        position=np.zeros(most, np.int64),
        member_rows=np.zeros((most // WIDTH, rank, WIDTH)),
        member=np.zeros((N_MEMBER, most)),
        cache=np.empty((n_blocks * BLOCK_ROWS, WIDTH)),
        bounds=np.empty((N_BOUNDS, len(scan.spread))),
        gates=np.empty((N_GATES, len(scan.centres))),
        travelled=np.zeros(1),
        visits=np.zeros((N_VISITS, n_blocks), np.int64),
        counters=np.zeros(N_COUNTERS, np.int64),
    )
    state.counters[N_ANCHORS], state.counters[CAP] = BASE_ANCHOR, cap
    return state


def tour_scale(problem: Problem, vertex: Vertex) -> FloatArray:
    """Scale (rank, rank) of a tour: paths are as long as differences of rows times it.

    A change g of the goal moves the fit by about ``H^-1 g``, with H the Gram matrix of the points
    near it, and so crosses points in proportion to ``sqrt(g' H^-1 g)``.
    """
    rank = len(vertex.basic_points)
    count = min(NEAR_POINTS * rank, len(problem.rows))
    key = scan_keys(vertex.residuals, problem.norms)
    near = problem.rows[np.argpartition(key, count - 1)[:count]]
    # In coordinates of the basic rows, which are near the fit, H is at least the identity.
    coordinates = np.vstack([np.eye(rank), near @ vertex.inverse.T])
    with one_blas_thread:
        triangle = np.asarray(np.linalg.qr(coordinates, mode="r"))
        return np.asarray(np.linalg.solve(triangle.T, vertex.inverse).T)


def make_tour(rows: FloatArray, scale: FloatArray, stretch: int = STRETCH) -> Tour:
    """Order rows (m, rank) so that each is near the one before, within `stretch` of a k-d tree.

    Distances are those of rows times `scale`. A row that is nearer to zero than to the row before
    starts at the base vertex: rows of many dimensions are far from each other.
    """
    with one_blas_thread:
        rows = rows @ scale
    order, chained = neighbour_order(rows), np.zeros(len(rows), np.int64)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    _order_stretches(rows, lengths, order, chained, np.empty(len(rows)), np.int64(stretch))
    return Tour(order, chained)


@entry()
def _order_stretches(
    rows: FloatArray,
    lengths: FloatArray,
    order: IntArray,
    chained: IntArray,
    steps: FloatArray,
    stretch: int,
) -> None:
    """Order the rows of each stretch; `steps` are the distances from the row before."""
    for low in range(0, len(order), stretch):
        high = min(low + stretch, len(order))
        for position in range(low + 1, high):
            nearest, steps[position] = position, np.inf
            for candidate in range(position, high):
                step = _distance(rows, order[position - 1], order[candidate])
                if step < steps[position]:
                    nearest, steps[position] = candidate, step
            order[position], order[nearest] = order[nearest], order[position]
        for position in range(low + 1, high):
            chained[position] = steps[position] < lengths[order[position]]


@inner(fastmath=REASSOCIATE)
def _distance(rows: FloatArray, a: int, b: int) -> float:
    square = 0.0
    for j in range(rows.shape[1]):
        gap = rows[a, j] - rows[b, j]
        square += gap * gap
    return float(np.sqrt(square))


def follow_paths(
    rows: FloatArray,
    weights: FloatArray,
    tour: Tour,
    scan_order: ScanOrder,
    results: PathResults,
    state: PathState,
) -> None:
    """Store the results of the whitened rows of a tour, or of a stretch of one."""
    # All arrays are new ones and writable, as the kernel is compiled for them.
    _follow_paths(rows, weights, *tour, scan_order.base, scan_order.scan, *results, state)


def compile_paths() -> None:
    """Compile the kernel, or load it from the cache, on a tour without points."""
    blocks, line, nobody = np.zeros((1, 1, WIDTH)), np.zeros(WIDTH), np.empty(0, np.int64)
    scan = Scan._make([blocks, blocks, *[line] * 9, 0.1, 0.0, 0.0])
    rows, weights, base = np.empty((0, 1)), np.empty(0), np.zeros((4, WIDTH))
    _follow_paths(rows, weights, nobody, nobody, base, scan, *blank_results(0), allocate(scan))


@entry(by_helper=True)
def _follow_paths(
    rows: FloatArray,
    weights: FloatArray,
    order: IntArray,
    chained: IntArray,
    base: FloatArray,
    scan: Scan,
    values: FloatArray,
    status: NDArray[np.int8],
    pivots: IntArray,
    state: PathState,
) -> None:
    row, rank, cap = state.vectors[ROW], rows.shape[1], state.counters[CAP]
    members, since_refresh, since_anchor = ZERO, 0, 0
    for number in range(len(order)):
        i = order[number]
        # A copy, because a view of the shared rows would change their reference count.
        for j in range(rank):
            row[j] = rows[i, j]
        starts_at_base = chained[number] == 0 or members == 0
        if not starts_at_base and since_refresh >= REFRESH:
            since_refresh = 0
            starts_at_base = not _refresh(members, scan, state)
        if not starts_at_base and since_anchor >= ANCHORED:
            since_anchor = 0
            members = _anchor(members, scan, state)
        if starts_at_base or members + cap > len(state.position):
            members, since_refresh, since_anchor = _load_base(base, scan, state), 0, 0
        values[i], status[i], pivots[i], members = _follow(weights[i], members, cap, scan, state)
        since_refresh += pivots[i]
        since_anchor += pivots[i]


@inner(inline="always")
def _follow(
    weight: float, members: int, cap: int, scan: Scan, state: PathState
) -> tuple[float, int, int, int]:
    """Value, status and pivots of one test row, and the number of members; 0 without a vertex."""
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
    multiply(state.edges, direction, vectors[COEFFICIENT])
    done = 0.0
    for pivot in range(cap):
        if pivot > 0 and pivot % REFRESH == 0:
            if not _refresh(members, scan, state):
                return np.nan, FALLBACK, pivot, 0
        leaving, share = _next_breakpoint(vectors, len(state.slot), scan.alpha)
        if leaving < 0 or done + share > 1.0:
            value, accurate = _finish(scan, state)
            return value, EXACT if accurate else FALLBACK, pivot, members
        # Dual values and goal move together; the shares of the way add up to 1 at the goal.
        done += share
        _leave(leaving, share, scan.alpha, state)
        length, entering, bounded, scanned = _first_crossing(members, scan, state)
        # No residual ends the edge: it is a ray, which proves that the dual is infeasible.
        if entering < 0:
            return infinity, INFINITE, pivot, 0
        _advance(length, members, bounded, scanned, scan, state)
        members = _enter(leaving, entering, members, scan, state)
    # The vertex is that of a goal on the way, where the next path can start.
    add_multiple(goal, done - 1.0, direction)
    return np.nan, FALLBACK, cap, members


@inner(inline="always")
def _begin_epoch(state: PathState) -> None:
    """Forget the bounds at the vertex: it was computed anew, or the scan sees other points."""
    state.counters[STEP] += 1
    state.counters[EPOCH] += 1
    state.travelled[0] = 0.0


@inner(inline="always")
def _load_base(base: FloatArray, scan: Scan, state: PathState) -> int:
    """Go to the base vertex, whose goal is zero; the number of its members."""
    vectors, member, rank, width = state.vectors, state.member, len(state.slot), len(state.edges)
    _begin_epoch(state)
    state.counters[ANCHOR] = BASE_ANCHOR
    state.counters[ANCHOR_MEMBERS] = rank
    for k in range(rank):
        vectors[DUAL, k], vectors[NONBASIC_SUM, k] = base[0, k], base[1, k]
        vectors[FROM_BASE, k] = vectors[FROM_ANCHOR, k] = vectors[ANCHOR_SHIFT, k] = 0.0
        vectors[GOAL, k] = 0.0
        vectors[BASIC_MULTIPLICITY, k] = scan.multiplicities[k]
        # The basic points of the base vertex come first in scan order.
        state.slot[k] = state.position[k] = k
        member[SIDE, k] = member[RESIDUAL, k] = 0.0
        member[MULTIPLICITY, k] = scan.multiplicities[k]
        for j in range(width):
            store(state.edges, j * rank + k, load(base, (2 + k) * width + j))
            store(state.basic_rows, k * width + j, load(base, (2 + rank + k) * width + j))
        for j in range(rank):
            state.member_rows[k // WIDTH, j, k % WIDTH] = base[2 + rank + k, j]
    return rank


@inner(inline="always")
def _anchor(members: int, scan: Scan, state: PathState) -> int:
    """Make the present vertex the anchor; the number of members that are left.

    Points that are back in their role at the base vertex are members no longer: from here on the
    scan sees them again.
    """
    vectors, slot, member = state.vectors, state.slot, state.member
    rank, kept = len(slot), 0
    for m in range(members):
        position, side = state.position[m], member[SIDE, m]
        if position >= rank and side == scan.side[position]:
            continue
        for k in range(rank):
            if side == 0.0 and slot[k] == m:
                slot[k] = kept
        state.position[kept] = position
        for field in range(SPEED):
            member[field, kept] = member[field, m]
        for j in range(rank):
            row = state.member_rows[m // WIDTH, j, m % WIDTH]
            state.member_rows[kept // WIDTH, j, kept % WIDTH] = row
        kept += 1
    for j in range(rank):
        vectors[ANCHOR_SHIFT, j] = vectors[FROM_BASE, j]
        vectors[FROM_ANCHOR, j] = 0.0
    _begin_epoch(state)
    state.counters[N_ANCHORS] += 1
    state.counters[ANCHOR] = state.counters[N_ANCHORS]
    state.counters[ANCHOR_MEMBERS] = kept
    return kept


@inner(inline="always")
def _bound(alpha: float, upper: bool, multiplicity: float) -> float:
    """Bound of a dual value; the box of a point grows with its multiplicity."""
    return multiplicity * (1.0 - alpha if upper else -alpha)


@inner()
def _next_breakpoint(vectors: FloatArray, rank: int, alpha: float) -> tuple[int, float]:
    """Find the basic point whose dual value meets its bound first, and the share of the way there.

    This is the ratio test of the dual: value k falls at the rate ``coefficient[k]``. The point is
    -1 when none moves.
    """
    coefficient, dual = vectors[COEFFICIENT], vectors[DUAL]
    multiplicities = vectors[BASIC_MULTIPLICITY]
    leaving, nearest, largest = -1, np.inf, 1.0
    for k in range(rank):
        largest = max(largest, abs(coefficient[k]))
    for k in range(rank):
        rate = coefficient[k]
        if abs(rate) > COEFFICIENT_TOL * largest:
            bound = _bound(alpha, rate < 0.0, multiplicities[k])
            # A dual value that rounding put outside its box leaves at once.
            share = max((dual[k] - bound) / rate, 0.0)
            if share < nearest:
                leaving, nearest = k, share
    return leaving, nearest


@inner(inline="always")
def _leave(leaving: int, share: float, alpha: float, state: PathState) -> None:
    """Move the dual values to the breakpoint, make a point nonbasic and set the edge."""
    vectors, slot = state.vectors, state.slot[leaving]
    coefficient, dual, edge = vectors[COEFFICIENT], vectors[DUAL], vectors[EDGE]
    add_multiple(dual, -share, coefficient)
    rises = coefficient[leaving] < 0.0
    bound = _bound(alpha, rises, vectors[BASIC_MULTIPLICITY, leaving])
    # A point whose dual value is at its upper bound may get a positive residual, so its product
    # with the edge is -1; at the lower bound the residual may turn negative.
    side = 1.0 if rises else -1.0
    state.member[SIDE, slot] = side
    state.member[RESIDUAL, slot] = 0.0
    for j in range(len(state.slot)):
        edge[j] = -side * state.edges[leaving // WIDTH, j, leaving % WIDTH]
    add_multiple(vectors[NONBASIC_SUM], bound, state.basic_rows[leaving])


@inner()
def _first_crossing(  # noqa: PLR0912, PLR0915 - a scan reads from top to bottom
    members: int, scan: Scan, state: PathState
) -> tuple[float, int, int, int]:
    """First zero of a residual along the edge: step, entering point, what was bounded and scanned.

    The entering point is the number of a member, or the number of members plus a position. It is
    -1 if no residual reaches zero: the edge is a ray.
    """
    vectors, cache, bounds, visits = state.vectors, state.cache, state.bounds, state.visits
    floor, near, drop, near_for = bounds[FLOOR], bounds[NEAR], bounds[DROP], visits[NEAR_FOR]
    edge, from_base, from_anchor = vectors[EDGE], vectors[FROM_BASE], vectors[FROM_ANCHOR]
    updated_at, read_for, bounded_for = visits[UPDATED_AT], visits[READ_FOR], visits[BOUNDED_FOR]
    group_key, counters, travelled = scan.group_key, state.counters, state.travelled[0]
    gate, near_gate, near_since = state.gates[GATE], state.gates[NEAR_GATE], state.gates[NEAR_SINCE]
    step, anchor, edge_square = counters[STEP], counters[ANCHOR], dot(edge, edge)
    edge_length = RADIUS_SLACK * np.sqrt(edge_square)
    tiny = EDGE_TOL * np.sqrt(edge_square)
    # Squared distances from base vertex and anchor are quadratic along the edge; their terms.
    base_square, base_along = dot(from_base, from_base), dot(from_base, edge)
    anchor_square, anchor_along = dot(from_anchor, from_anchor), dot(from_anchor, edge)
    # Members come first: they are few, and a short step makes the scan short.
    length, entering = _member_crossing(members, tiny, state)
    radius = _after(base_square, base_along, edge_square, length)
    reach = _after(anchor_square, anchor_along, edge_square, length)
    bounded, scanned = 0, 0
    for superblock in range(len(scan.centres)):
        # Group keys grow, so no later block can have a crossing either.
        if group_key[superblock * WIDTH] > radius:
            break
        if bounded_for[superblock] != anchor:
            bounded_for[superblock] = anchor
            _bound_blocks(superblock, scan, state)
        # The products of the whole superblock with the way are below all of its floors.
        if reach < gate[superblock]:
            continue
        # The same from the vertex, whose bounds fall as the path goes on.
        if near_for[superblock] != counters[EPOCH]:
            store(near, superblock, spread(-np.inf))
        elif travelled + length * edge_length < near_gate[superblock]:
            continue
        else:
            way = near_since[superblock] - travelled
            fallen = fused(load(scan.longest, superblock), way, load(near, superblock))
            store(near, superblock, fallen)
        visits[BOUNDED, bounded] = superblock
        bounded += 1
        with_way, with_edge = two_products(scan.centres, superblock, from_anchor, edge)
        # At the end of the step the products Q_i y of a block are at most this.
        extent = load(scan.spread, superblock)
        bound = fused(extent, reach, fused(with_edge, length, with_way))
        # The way of this step alone may be too short for the residuals at the vertex.
        term = extent * edge_length
        fall = with_edge + term + (absolute(with_edge) + term) * FLOOR_SLACK
        store(drop, superblock, fall)
        excluded = below(bound, load(floor, superblock)) | below(
            radius, load(group_key, superblock)
        )
        candidates = ALL & ~(excluded | below(fall * length, load(near, superblock)))
        while candidates != 0:
            lane = lowest(candidates)
            candidates &= candidates - 1
            block = superblock * WIDTH + lane
            if read_for[block] != anchor:
                read_for[block] = anchor
                _read_block(block, scan, state)
                # The true minimum is at least the bound before it, so it may rule the block out.
                if below(bound, load(floor, superblock)) >> lane & 1:
                    continue
            # If the step before did not scan the block, its residuals are out of date.
            first = block * BLOCK_ROWS
            if updated_at[block] != step:
                way, rate = two_products(scan.blocks, block, from_anchor, edge)
                store(cache, first + AT_VERTEX, load(cache, first + AT_ANCHOR) - way)
                _hide(block, counters[ANCHOR_MEMBERS], members, AT_VERTEX, state)
            else:
                rate = products(scan.blocks, block, edge)
            store(cache, first + RATE, rate)
            visits[SCANNED, scanned] = block
            scanned += 1
            crossings = below(tiny, rate) & below(load(cache, first + AT_VERTEX), rate * length)
            if crossings != 0:
                length, lane = _nearest_crossing(crossings, length, first, cache)
                entering = members + block * WIDTH + lane
                radius = _after(base_square, base_along, edge_square, length)
                reach = _after(anchor_square, anchor_along, edge_square, length)
                bound = fused(extent, reach, fused(with_edge, length, with_way))
                candidates &= ~below(bound, load(floor, superblock))
                candidates &= ~below(fall * length, load(near, superblock))
    return length, entering, bounded, scanned


@inner(inline="always")
def _nearest_crossing(
    crossings: int, length: float, first: int, cache: FloatArray
) -> tuple[float, int]:
    """The shortest step to a zero among residuals of a block that cross, and its lane."""
    nearest = lowest(crossings)
    while crossings != 0:
        lane = lowest(crossings)
        crossings &= crossings - 1
        residual, speed = cache[first + AT_VERTEX, lane], cache[first + RATE, lane]
        if residual < length * speed:
            length, nearest = max(residual, 0.0) / speed, lane
    return length, nearest


@inner(inline="always")
def _bound_blocks(superblock: int, scan: Scan, state: PathState) -> None:
    """Bound the residuals of blocks at a new anchor from below, until a path reads them."""
    floor, shift = state.bounds[FLOOR], state.vectors[ANCHOR_SHIFT]
    product = products(scan.centres, superblock, shift)
    term = load(scan.spread, superblock) * np.sqrt(dot(shift, shift))
    slack = (absolute(product) + term) * FLOOR_SLACK
    least_distance = load(scan.least_distance, superblock) * (1.0 - FLOOR_SLACK)
    store(floor, superblock, least_distance - (product + term + slack))
    _set_gate(superblock, scan, state)


@inner(inline="always")
def _read_block(block: int, scan: Scan, state: PathState) -> None:
    """Compute the residuals of a block at the anchor; their minimum replaces its bound."""
    floor, cache, row = state.bounds[FLOOR], state.cache, block * BLOCK_ROWS + AT_ANCHOR
    shift = products(scan.blocks, block, state.vectors[ANCHOR_SHIFT])
    store(cache, row, load(scan.distance, block) - shift)
    _hide(block, ZERO, state.counters[ANCHOR_MEMBERS], AT_ANCHOR, state)
    nearest = least(load(cache, row))
    floor[block] = nearest * (1.0 - FLOOR_SLACK if nearest > 0.0 else 1.0 + FLOOR_SLACK)
    _set_gate(block // WIDTH, scan, state)


@inner(inline="always")
def _set_gate(superblock: int, scan: Scan, state: PathState) -> None:
    """Store the shortest way from the anchor on which a block could have a crossing."""
    floor = load(state.bounds[FLOOR], superblock)
    state.gates[GATE, superblock] = least(floor * load(scan.steepness, superblock))


@inner(inline="always")
def _after(square: float, along: float, edge_square: float, length: float) -> float:
    """Distance after a step of `length`, from the squared distance before it and its terms."""
    if length >= UNREACHED:
        # Beyond all keys, but below the infinite keys of padding.
        return UNREACHED * UNREACHED
    return float(
        RADIUS_SLACK * np.sqrt(max(square + length * (2.0 * along + length * edge_square), 0.0))
    )


@inner()
def _member_crossing(members: int, tiny: float, state: PathState) -> tuple[float, int]:
    """First zero among members that are not basic; stores their rates."""
    member, edge = state.member, state.vectors[EDGE]
    sides, residuals, speeds = member[SIDE], member[RESIDUAL], member[SPEED]
    length, entering = UNREACHED, -1
    for block in range((members + WIDTH - 1) // WIDTH):
        rate, side = products(state.member_rows, block, edge), load(sides, block)
        store(speeds, block, rate)
        # Basic points have the side 0, and so no crossing.
        distance, speed = load(residuals, block) * side, rate * side
        crossings = below(tiny, speed) & below(distance, speed * length)
        while crossings != 0:
            m = block * WIDTH + lowest(crossings)
            crossings &= crossings - 1
            # Rounding can leave a residual on the wrong side of zero; its step is zero.
            step = max(sides[m] * residuals[m], 0.0) / (sides[m] * speeds[m])
            if step < length and m < members:
                length, entering = step, m
    return length, entering


@inner(inline="always")
def _hide(block: int, first: int, last: int, row: int, state: PathState) -> None:
    """Make the residuals of members of a block infinite, so that the scan never chooses them."""
    start = block * WIDTH
    for m in range(first, last):
        lane = state.position[m] - start
        if 0 <= lane < WIDTH:
            state.cache[block * BLOCK_ROWS + row, lane] = np.inf


@inner(inline="always")
def _advance(
    length: float, members: int, bounded: int, scanned: int, scan: Scan, state: PathState
) -> None:
    """Move the vertex, and residuals and bounds of members and blocks, along the edge."""
    vectors, member, visits, cache = state.vectors, state.member, state.visits, state.cache
    near, drop = state.bounds[NEAR], state.bounds[DROP]
    edge, travelled = vectors[EDGE], state.travelled
    state.counters[STEP] += 1
    step = state.counters[STEP]
    travelled[0] += length * (RADIUS_SLACK * np.sqrt(dot(edge, edge)))
    add_multiple(vectors[FROM_BASE], length, edge)
    add_multiple(vectors[FROM_ANCHOR], length, edge)
    for block in range((members + WIDTH - 1) // WIDTH):
        speed, residual = load(member[SPEED], block), load(member[RESIDUAL], block)
        store(member[RESIDUAL], block, fused(speed, -length, residual))
    for k in range(bounded):
        superblock = visits[BOUNDED, k]
        store(near, superblock, fused(load(drop, superblock), -length, load(near, superblock)))
    for k in range(scanned):
        block = visits[SCANNED, k]
        first = block * BLOCK_ROWS
        residual = fused(load(cache, first + RATE), -length, load(cache, first + AT_VERTEX))
        store(cache, first + AT_VERTEX, residual)
        near[block] = least(residual)
        visits[UPDATED_AT, block] = step
    for k in range(bounded):
        superblock = visits[BOUNDED, k]
        room = least(load(near, superblock) * load(scan.steepness, superblock))
        visits[NEAR_FOR, superblock] = state.counters[EPOCH]
        state.gates[NEAR_GATE, superblock] = travelled[0] + room
        state.gates[NEAR_SINCE, superblock] = travelled[0]


@inner(inline="always")
def _enter(leaving: int, entering: int, members: int, scan: Scan, state: PathState) -> int:
    """Make a point basic in place of the leaving one; the new number of members."""
    vectors, member, row = state.vectors, state.member, state.basic_rows[leaving]
    coefficient, ratio, rank = vectors[COEFFICIENT], vectors[RATIO], len(state.slot)
    new = entering
    if entering >= members:
        # It joins the members: its row is copied out of its block, and the scan skips it.
        new, position = members, entering - members
        block, lane, side = position // WIDTH, position % WIDTH, scan.side[position]
        state.cache[block * BLOCK_ROWS + AT_VERTEX, lane] = np.inf
        state.position[new] = position
        member[SIDE, new], member[MULTIPLICITY, new] = side, scan.multiplicities[position]
        for j in range(rank):
            state.member_rows[new // WIDTH, j, new % WIDTH] = side * scan.blocks[block, j, lane]
        members += 1
    for j in range(rank):
        row[j] = state.member_rows[new // WIDTH, j, new % WIDTH]
    multiplicity = member[MULTIPLICITY, new]
    bound = _bound(scan.alpha, member[SIDE, new] > 0.0, multiplicity)
    member[SIDE, new] = 0.0
    member[RESIDUAL, new] = 0.0
    state.slot[leaving] = new
    vectors[BASIC_MULTIPLICITY, leaving] = multiplicity
    vectors[DUAL, leaving] = bound
    exchange(state.edges, leaving, row, ratio, vectors[SPARE])
    add_multiple(vectors[NONBASIC_SUM], -bound, row)
    # The rank-one update of the inverse changes the coefficients by the same ratios.
    pivot_coefficient = coefficient[leaving]
    add_multiple(coefficient, -pivot_coefficient, ratio)
    coefficient[leaving] = ratio[leaving] * pivot_coefficient
    return members


@inner()
def _refresh(members: int, scan: Scan, state: PathState) -> bool:
    """Compute inverse, coefficients, vertex and residuals anew; false if they are singular.

    The vertex solves ``Q_B x = r_B`` with the residuals ``r_B`` of its basic points at the base
    vertex, and x its distance from there.
    """
    vectors, member, position = state.vectors, state.member, state.position
    matrix, inverse, rank = state.inversion[0], state.inversion[1], len(state.slot)
    from_base = vectors[FROM_BASE]
    _begin_epoch(state)
    for k in range(rank):
        for j in range(rank):
            matrix[k, j] = state.basic_rows[k, j]
    if not invert(matrix, inverse):
        return False
    for k in range(rank):
        for j in range(rank):
            state.edges[k // WIDTH, j, k % WIDTH] = inverse[k, j]
    multiply(state.edges, vectors[DIRECTION], vectors[COEFFICIENT])
    for j in range(rank):
        from_base[j] = 0.0
    for k in range(rank):
        base_residual = _base_residual(position[state.slot[k]], rank, scan)
        for j in range(rank):
            from_base[j] += base_residual * inverse[k, j]
    for j in range(rank):
        vectors[FROM_ANCHOR, j] = from_base[j] - vectors[ANCHOR_SHIFT, j]
    for block in range((members + WIDTH - 1) // WIDTH):
        store(member[RESIDUAL], block, products(state.member_rows, block, from_base))
    for m in range(members):
        member[RESIDUAL, m] = _base_residual(position[m], rank, scan) - member[RESIDUAL, m]
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
    vectors, slot, rank = state.vectors, state.slot, len(state.slot)
    test_row, coefficient, dual = vectors[ROW], vectors[COEFFICIENT], vectors[DUAL]
    target, scores, rest = vectors[EDGE], vectors[SPARE], vectors[REST]
    multiply(state.edges, test_row, coefficient)
    for k in range(rank):
        # The edge is not needed any more, so its row takes what the basic points must balance.
        target[k] = -vectors[GOAL, k] - vectors[NONBASIC_SUM, k]
    # The second round measures what the first has left.
    _refine(test_row, coefficient, state)
    _refine(target, dual, state)
    dual_error = _refine(target, dual, state)
    coefficient_error = accurate_coefficients(
        state.basic_rows, state.edges, test_row, coefficient, rest, scores
    )
    drift, outside = 0.0, 0.0
    for k in range(rank):
        position, eta = state.position[slot[k]], dual[k]
        multiplicity = vectors[BASIC_MULTIPLICITY, k]
        base_residual = _base_residual(position, rank, scan)
        drift = max(drift, abs(base_residual - dot(state.basic_rows[k], vectors[FROM_BASE])))
        outside = max(
            outside, eta - multiplicity * (1.0 - scan.alpha), -multiplicity * scan.alpha - eta
        )
        scores[k] = scan.score[position]
    value = weighted_sum(coefficient, rest, scores, rank)
    row_length = max(1.0, np.sqrt(dot(test_row, test_row)))
    accurate = coefficient_error <= CHECK_TOL * row_length and dual_error <= CHECK_TOL * row_length
    return value, accurate and outside <= 10.0 * CHECK_TOL * row_length and drift <= scan.tolerance


@inner()
def _refine(target: FloatArray, solution: FloatArray, state: PathState) -> float:
    """One step of refinement of ``Q_B' solution = target``; the largest error before it."""
    rows, gap, width = state.basic_rows, state.vectors[SPARE], len(state.edges)
    for j in range(width):
        total = load(target, j)
        for k in range(len(rows)):
            total = fused(load(rows, k * width + j), -solution[k], total)
        store(gap, j, total)
    worst = 0.0
    for j in range(len(rows)):
        worst = max(worst, abs(gap[j]))
    for k in range(width):
        store(solution, k, load(solution, k) + products(state.edges, k, gap))
    return worst


# Extreme test points, whose path is too long or fails its check, are solved one by one.
#
# A very long row pulls the fit across thousands of points. One step of the descent passes many of
# them at once, so it visits far fewer vertices than a path. It runs over an active set; the first
# solution is rough, so the active set moves along with it.
#
# A solution over too few points would run away, because only active points resist the goal. So a
# weighted sample of all points represents the fixed ones. A sampled point of weight w acts like w
# points if it changes side, and like itself if it does not. At the centre of a round the slope is
# therefore that of the whole problem, and if no fixed point has changed side the solution is exact.


class WeightedSample(NamedTuple):
    """Row numbers of points, and how many points each of them represents."""

    points: IntArray
    weights: FloatArray


NO_SAMPLE = WeightedSample(np.empty(0, np.int64), np.empty(0))


def choose_sample(
    problem: Problem, scan_order: ScanOrder, count: int = SAMPLE_SIZE
) -> WeightedSample:
    """Draw a systematic sample along the scan order; the longest rows are all taken."""
    order = scan_order.order
    if count >= len(order):
        return WeightedSample(np.arange(len(order)), np.ones(len(order)))
    share = problem.norms[order] ** SAMPLE_POWER
    chance = np.minimum(count * share / max(share.sum(), np.finfo(np.float64).tiny), 1.0)
    passed = np.floor(np.cumsum(chance) + 0.5)
    # Rounding of the cumulative sum may hide a step of one, so certain points are added.
    chosen = (np.diff(passed, prepend=0.0) > 0.0) | (chance == 1.0)
    return WeightedSample(order[chosen], 1.0 / chance[chosen])


class Centre(NamedTuple):
    """A vertex around which the active set of a round is chosen."""

    basic_points: IntArray  # (rank,): row numbers.
    # Row numbers of points that are on the other side than at the base vertex, or on their way
    # there; and their distance from crossing, which is negative on the other side.
    near: IntArray
    gap: FloatArray
    has_crossed: BoolArray  # (n,): which points are on the other side.
    # (rank,): how much these points have reduced the nonbasic sum of the base vertex.
    crossed_sum: FloatArray


def fit_extreme(
    problem: Problem, scan_order: ScanOrder, model_sample: WeightedSample, goal: FloatArray
) -> tuple[int, Vertex | None, FloatArray]:
    """Solve the problem with the linear term `goal`: status, vertex if `OPTIMAL`, and last edge.

    If it is `UNBOUNDED` the objective falls without bound along that edge. Residuals of the vertex
    are those of the points that took part at last.
    """
    data, alpha, base = problem_points(problem), problem.alpha, scan_order.vertex
    n_points, sample = len(data.rows), model_sample
    # No point has crossed yet, and the scan order lists the nearest points first.
    near = scan_order.order[:FIRST_ACTIVE]
    distance, nowhere = scan_order.scan.distance[: len(near)], np.zeros(n_points, np.bool_)
    centre = Centre(base.basic_points, near, distance, nowhere, np.zeros(len(goal)))
    size, last_wrong, pivots, missed = ACTIVE, n_points, 0, np.empty(0, np.int64)
    for _ in range(MAX_ROUNDS):
        # The descent starts at the basic points of the centre. Those of the base vertex have slopes
        # between the bounds there, so they cannot be fixed on a side.
        always = np.concatenate([centre.basic_points, base.basic_points, missed])
        active = np.union1d(_nearest(centre, data.norms, size), always)
        points, part, linear = _reduced(data, alpha, base, centre, active, sample)
        start = np.searchsorted(active, centre.basic_points)
        status, more, basic, edge = descend(part, goal + linear, alpha, start)
        pivots += more
        if status == OPTIMAL:
            basic = np.sort(basic)
            new = _centre_at(points[basic], scan_order, data.rows)
            wrong = changed_outside(centre, new, active)
            if len(wrong) == 0:
                vertex = certify(part, alpha, basic, goal + linear, pivots)
                return OPTIMAL, replace(vertex, basic_points=points[basic]), edge
            # The number of wrong points should halve in each round; a larger active set helps.
            if len(wrong) > last_wrong // 2:
                size = int(GROWTH * size) + 1
            # Points that come up again and again stay active; too many only say "not there yet".
            missed = np.union1d(missed, wrong) if len(wrong) <= size else wrong[:0]
            centre, last_wrong = new, len(wrong)
            sample = model_sample if len(wrong) > FEW_WRONG else NO_SAMPLE
        elif len(points) == n_points:
            return status, None, edge
        elif status == UNBOUNDED and _is_ray(data, alpha, goal + problem.linear, edge):
            return UNBOUNDED, None, edge
        elif sample is NO_SAMPLE:
            sample = model_sample
        else:
            # Too few points resist the goal.
            size_of_sample = int(BIG_GROWTH) * max(len(points), SAMPLE_SIZE)
            sample = choose_sample(problem, scan_order, size_of_sample)
    return CAPPED, None, edge


def _nearest(centre: Centre, norms: FloatArray, size: int) -> IntArray:
    """The `size` points nearest to the centre."""
    if size >= len(norms):
        return np.arange(len(norms))
    if size >= len(centre.near):
        return centre.near
    distance = np.abs(centre.gap) / norms[centre.near]
    return centre.near[np.argpartition(distance, size)[:size]]


def _reduced(
    data: PointSet,
    alpha: float,
    base: Vertex,
    centre: Centre,
    active: IntArray,
    sample: WeightedSample,
) -> tuple[IntArray, PointSet, FloatArray]:
    """Active points and then sampled ones: row numbers, points, and linear term of all others."""
    outside = ~np.isin(sample.points, active, assume_unique=True)
    points = np.concatenate([active, sample.points[outside]])
    weights = np.concatenate([np.ones(len(active)), sample.weights[outside]])
    part = data.take(points)
    # A sampled point acts like all the points that it represents.
    part = part._replace(multiplicities=read_only(part.multiplicities * weights))
    is_above = (base.residuals[points] > 0.0) != centre.has_crossed[points]
    slopes = loss_slopes(part.multiplicities, is_above, alpha)
    slopes[np.isin(points, base.basic_points)] = 0.0
    # The sum of slopes over all points at the centre is that of the base vertex less the changes:
    # its cost does not grow with their number. The slopes of sampled points are part of it, so
    # subtracting them leaves the slope at the centre unchanged, whatever their weights are.
    linear = base.nonbasic_sum - centre.crossed_sum - compensated_sum(part.rows, slopes)
    return points, part, np.asarray(linear)


def _centre_at(basic: IntArray, scan_order: ScanOrder, rows: FloatArray) -> Centre:
    """Find the points that the vertex of `basic` has put on the other side, or nearly so."""
    scan, order = scan_order.scan, scan_order.order
    shift = np.linalg.solve(rows[basic], scan_order.vertex.residuals[basic])
    # Keys grow from group to group, so all points after these are too far away.
    radius = np.linalg.norm(shift) / NEAR_SHARE
    n_blocks = int(np.searchsorted(scan.group_key[: len(scan.blocks)], radius, side="right"))
    gone = np.matmul(shift, scan.blocks[:n_blocks]).reshape(-1)
    distance = scan.distance[: len(gone)]
    positions = np.flatnonzero(distance * NEAR_SHARE < gone)
    near, gap = order[positions], distance[positions] - gone[positions]
    crossed = positions[gap < 0.0]
    has_crossed = np.zeros(len(order), np.bool_)
    has_crossed[order[crossed]] = True
    changes = scan.side[crossed] * scan.multiplicities[crossed]
    return Centre(basic, near, gap, has_crossed, compensated_sum(rows[order[crossed]], changes))


def changed_outside(centre: Centre, new: Centre, active: IntArray) -> IntArray:
    """Points outside the active set that changed side, or are basic now, as sampled points can."""
    is_wrong = centre.has_crossed != new.has_crossed
    is_wrong[new.basic_points] = True
    is_wrong[active] = False
    return np.flatnonzero(is_wrong)


def _is_ray(data: PointSet, alpha: float, goal: FloatArray, edge: FloatArray) -> bool:
    """Whether the loss of all points grows less than the goal along an edge: no dual is feasible.

    A ray over few points may be stopped by others. Far along it no residual changes its sign: a
    point with ``Q_i edge > 0`` is below the fit and one with ``Q_i edge < 0`` above.
    """
    # No matrix product: its threads would compete with those that solve the rows.
    speed = np.einsum("ij,j->i", data.rows, edge)
    loss = np.sum(data.multiplicities * np.maximum(alpha * speed, (alpha - 1.0) * speed))
    return bool(goal @ edge > (1.0 + RAY_TOL) * loss)


def solve_as_program(problem: Problem, row: FloatArray, weight: float) -> float | None:
    """Threshold of a test row in units of the score scale, by HiGHS, or None if that fails, too."""
    if len(problem.rows) > PROGRAM_SIZE:
        return None
    scores, alpha = problem.scores / problem.score_scale, problem.alpha
    multiplicities, linear = problem.multiplicities, problem.linear
    return solve_face(problem.rows, scores, multiplicities, alpha, row, weight, linear)
