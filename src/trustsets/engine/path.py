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

A path that is too long, or fails its check, is left to a descent (see `extreme`).

Small kernels and those with one caller are inlined before types are inferred. Numba would compile
and optimise each of them on its own and again within its callers, at every depth of calls.
"""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from trustsets._blocks import one_blas_thread
from trustsets.engine.compiled import REASSOCIATE, FloatArray, IntArray, entry, inner, read_only
from trustsets.engine.fit import Vertex
from trustsets.engine.kernels import (
    EDGE_TOL,
    ZERO,
    accurate_coefficients,
    add_multiple,
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
    Lanes,
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
from trustsets.engine.problem import Problem, neighbour_order, scan_keys, smallest
from trustsets.status import Status

# Blocks of the first group, which stays in the order of keys; groups double after it.
FIRST_BLOCKS = 4
DISTANCE_SLACK = 1.0 + 1e-9  # Distances are enlarged by this factor to cover rounding.
# Accepted error of a basic residual at the end of a path, as a share of the score scale.
DRIFT_TOL = 1e-11
WEIGHT_TOL = 1e-9  # Breakpoints this close to the weight of the test point count as equal to it.
# A dual value does not move if its coefficient is below this share of the largest.
COEFFICIENT_TOL = 1e-11
CHECK_TOL = 1e-9  # Accuracy asked of coefficients and dual values at the end of a path.
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

EXACT = int(Status.EXACT)
FALLBACK = int(Status.FALLBACK)
INFINITE = int(Status.HIGH_LEVERAGE)

# Kernels take few arrays with several rows each, because every array of a tuple adds to the time
# that each kernel with that tuple takes to compile. Every kernel names the rows that it uses by
# views at its entry. The numbers are NumPy integers, because numba compiles a kernel anew for each
# Python integer that is passed to it as a constant.
BASE_ANCHOR: Any = np.int64(1)  # The number of the base vertex among the anchors.
(  # Rows of `PathState.vectors`.
    FROM_BASE,  # The way to the vertex from the base vertex,
    FROM_ANCHOR,  # and from the anchor.
    ANCHOR_SHIFT,  # The way to the anchor from the base vertex.
    EDGE,  # The direction of the step.
    NONBASIC_SUM,  # The sum of the nonbasic points' rows times their dual values.
    DUAL,  # Of each basic point: its dual value,
    BASIC_MULTIPLICITY,  # its multiplicity,
    COEFFICIENT,  # the rate at which the dual value falls, and at the end its share in `ROW`,
    REST,  # and what rounding took from the coefficient at the end.
    ROW,  # The test row.
    GOAL,  # That row times its weight.
    DIRECTION,  # The goal less that where the path started: `COEFFICIENT` times the basic rows.
    RATIO,  # What the exchange of a basic point returns (see `kernels`).
    SPARE,  # Scratch.
    N_VECTORS,
) = cast(Any, np.arange(15))
(  # Rows of `PathState.member`.
    SIDE,  # 0 for basic points, and else the sign of the residual.
    MULTIPLICITY,
    RESIDUAL,
    SPEED,  # The rate at which the residual falls along the edge.
    N_MEMBER,
) = cast(Any, np.arange(5))
# What the scan remembers. `STEP`, `EPOCH` and `ANCHOR` count changes of the vertex, so that nothing
# has to be erased: what was stored under another number is out of date.
(  # Entries of `PathState.counters`.
    STEP,  # Grows with every step.
    EPOCH,  # Grows when the vertex or the members change in any other way.
    ANCHOR,  # The number of the anchor. Paths that share one share what is known there.
    ANCHOR_MEMBERS,  # Members at the anchor.
    N_ANCHORS,
    CAP,  # Pivots that a path may take.
    N_COUNTERS,
) = cast(Any, np.arange(7))
(  # Rows of `PathState.cache` for each block.
    AT_ANCHOR,  # Signed residuals at the anchor, if `READ_FOR` is the `ANCHOR`,
    AT_VERTEX,  # and at the vertex, if `UPDATED_AT` is the `STEP`; those of members are infinite.
    RATE,  # Rates at which residuals fall along the edge.
    BLOCK_ROWS,
) = cast(Any, np.arange(4))
(  # Rows of `PathState.bounds`, with a number for each block.
    FLOOR,  # No residual at the anchor is below this, if `BOUNDED_FOR` is the `ANCHOR`,
    NEAR,  # and none at the vertex below this, if `NEAR_FOR` is the `EPOCH`.
    DROP,  # No residual falls faster than this along the edge.
    N_BOUNDS,
) = cast(Any, np.arange(4))
(  # Rows of `PathState.gates`, with a number for each superblock.
    GATE,  # No point crosses as long as the vertex is not farther than this from the anchor,
    NEAR_GATE,  # or the path has not `travelled` farther than this.
    NEAR_SINCE,  # How far it had when `NEAR` was computed; since then residuals may have fallen.
    N_GATES,
) = cast(Any, np.arange(4))
(  # Rows of `PathState.visits`, with a number for each block, or each superblock.
    UPDATED_AT,
    READ_FOR,
    BOUNDED_FOR,
    NEAR_FOR,
    SCANNED,  # List of the blocks that this step scanned,
    BOUNDED,  # and of the superblocks whose bounds it looked at.
    N_VISITS,
) = cast(Any, np.arange(7))


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
    least_distance[:n_blocks] = distance.reshape(-1, WIDTH).min(axis=1)
    _fill_blocks(read_only(problem.rows), side, order, blocks, centre, spread)
    longest = DISTANCE_SLACK * (np.sqrt(np.einsum("ij,ij->i", centre, centre)) + spread)
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
    blocks: FloatArray,
    centre: FloatArray,
    spread: FloatArray,
) -> None:
    """Store the rows of each block, their centre, and the spread of those that are scanned."""
    rank = rows.shape[1]
    for i in range(len(order)):
        block, lane, point = i // WIDTH, i % WIDTH, order[i]
        for j in range(rank):
            value = side[point] * rows[point, j]
            blocks[block, j, lane] = value
            centre[block, j] += value / WIDTH
    # The basic points come first.
    for i in range(rank, len(order)):
        block, lane, square = i // WIDTH, i % WIDTH, 0.0
        for j in range(rank):
            gap = blocks[block, j, lane] - centre[block, j]
            square += gap * gap
        spread[block] = max(spread[block], DISTANCE_SLACK * np.sqrt(square))


class PathState(NamedTuple):
    """The work arrays of one thread: vertex, members, scan cache and scratch."""

    # Vertex. (N_VECTORS, padded rank): see `FROM_BASE` and those after it.
    vectors: FloatArray
    slot: IntArray  # (rank,): basic point k is member ``slot[k]``.
    # (padded rank / WIDTH, rank, WIDTH) and (rank, padded rank): edges and basic rows.
    edges: FloatArray
    basic_rows: FloatArray
    inversion: FloatArray  # (2, rank, rank): scratch of `invert`.
    # Members, the points whose role may differ from that at the base vertex: its basic points and
    # every point that entered since. The scan skips them. (most,) and (most / WIDTH, rank, WIDTH):
    # their positions and rows; (N_MEMBER, most): see `SIDE`.
    position: IntArray
    member_rows: FloatArray
    member: FloatArray
    # Scan cache. (n_blocks * BLOCK_ROWS, WIDTH), (N_BOUNDS, n_superblocks * WIDTH),
    # (N_GATES, n_superblocks), (N_VISITS, n_blocks) and (N_COUNTERS,): see `AT_ANCHOR`, `FLOOR`,
    # `GATE`, `UPDATED_AT` and `STEP`.
    cache: FloatArray
    bounds: FloatArray
    gates: FloatArray
    visits: IntArray
    counters: IntArray
    travelled: FloatArray  # (1,): length of the way since the `EPOCH` began.


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
        visits=np.zeros((N_VISITS, n_blocks), np.int64),
        counters=np.zeros(N_COUNTERS, np.int64),
        travelled=np.zeros(1),
    )
    state.counters[N_ANCHORS], state.counters[CAP] = BASE_ANCHOR, cap
    return state


def tour_scale(problem: Problem, vertex: Vertex) -> FloatArray:
    """Scale (rank, rank) of a tour: paths are as long as differences of rows times it.

    A change g of the goal moves the fit by about ``H^-1 g``, with H the Gram matrix of the points
    near it, and so crosses points in proportion to ``sqrt(g' H^-1 g)``.
    """
    rank = len(vertex.basic_points)
    keys = scan_keys(vertex.residuals, problem.norms)
    near = problem.rows[smallest(keys, NEAR_POINTS * rank)]
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
    tour = Tour(order, chained)
    _order_stretches(rows, lengths, tour, np.int64(stretch))
    return tour


@entry()
def _order_stretches(rows: FloatArray, lengths: FloatArray, tour: Tour, stretch: int) -> None:
    """Order the rows of each stretch, and say which start at the row before."""
    order = tour.order
    for low in range(0, len(order), stretch):
        high = min(low + stretch, len(order))
        for position in range(low + 1, high):
            nearest, shortest = position, np.inf
            for candidate in range(position, high):
                step = _distance(rows, order[position - 1], order[candidate])
                if step < shortest:
                    nearest, shortest = candidate, step
            order[position], order[nearest] = order[nearest], order[position]
            tour.chained[position] = shortest < lengths[order[position]]


@inner(fastmath=REASSOCIATE)
def _distance(rows: FloatArray, a: int, b: int) -> float:
    square = 0.0
    for j in range(rows.shape[1]):
        gap = rows[a, j] - rows[b, j]
        square += gap * gap
    return float(np.sqrt(square))


def compile_paths() -> None:
    """Compile the kernel, or load it from the cache, on a tour without points."""
    blocks, line, nobody = np.zeros((1, 1, WIDTH)), np.zeros(WIDTH), np.empty(0, np.int64)
    scan = Scan._make([blocks, blocks, *[line] * 9, 0.1, 0.0, 0.0])
    rows, weights, tour = np.empty((0, 1)), np.empty(0), Tour(nobody, nobody)
    follow_paths(rows, weights, tour, np.zeros((4, WIDTH)), scan, blank_results(0), allocate(scan))


@entry(by_helper=True)
def follow_paths(
    rows: FloatArray,
    weights: FloatArray,
    tour: Tour,
    base: FloatArray,
    scan: Scan,
    results: PathResults,
    state: PathState,
) -> None:
    """Store the results of the whitened rows of a tour, or of a stretch of one.

    All arrays are new ones and writable, as the kernel is compiled for them.
    """
    order, (values, status, pivots) = tour.order, results
    row, rank, cap = state.vectors[ROW], rows.shape[1], state.counters[CAP]
    members, since_refresh, since_anchor = ZERO, 0, 0
    for number in range(len(order)):
        i = order[number]
        # A copy, because a view of the shared rows would change their reference count.
        for j in range(rank):
            row[j] = rows[i, j]
        starts_at_base = tour.chained[number] == 0 or members == 0
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
def _first_crossing(members: int, scan: Scan, state: PathState) -> tuple[float, int, int, int]:
    """First zero of a residual along the edge: step, entering point, what was bounded and scanned.

    The entering point is the number of a member, or the number of members plus a position. It is
    -1 if no residual reaches zero: the edge is a ray. Superblocks, then blocks, then points are
    looked at, and skipped as soon as a bound shows that none crosses within the shortest step yet.
    """
    vectors, cache, visits = state.vectors, state.cache, state.visits
    floor, near, drop = state.bounds[FLOOR], state.bounds[NEAR], state.bounds[DROP]
    edge, from_base, from_anchor = vectors[EDGE], vectors[FROM_BASE], vectors[FROM_ANCHOR]
    edge_square = dot(edge, edge)
    edge_length, tiny = DISTANCE_SLACK * np.sqrt(edge_square), EDGE_TOL * np.sqrt(edge_square)
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
        if scan.group_key[superblock * WIDTH] > radius:
            break
        if _is_far(superblock, reach, length * edge_length, scan, state):
            continue
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
        excluded = below(bound, load(floor, superblock))
        excluded |= below(radius, load(scan.group_key, superblock))
        candidates = ALL & ~(excluded | below(fall * length, load(near, superblock)))
        while candidates != 0:
            lane = lowest(candidates)
            candidates &= candidates - 1
            block = superblock * WIDTH + lane
            if visits[READ_FOR, block] != state.counters[ANCHOR]:
                _read_block(block, scan, state)
                # The true minimum is at least the bound before it, so it may rule the block out.
                if below(bound, load(floor, superblock)) >> lane & 1:
                    continue
            rate = _look_at_block(block, members, scan, state)
            visits[SCANNED, scanned] = block
            scanned += 1
            first = block * BLOCK_ROWS
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
def _is_far(superblock: int, reach: float, way: float, scan: Scan, state: PathState) -> bool:
    """Whether no point of a superblock crosses in a step; if not so, its bounds are up to date.

    The step ends at most `reach` from the anchor, and is at most `way` long.
    """
    near, gates, visits = state.bounds[NEAR], state.gates, state.visits
    travelled = state.travelled[0]
    if visits[BOUNDED_FOR, superblock] != state.counters[ANCHOR]:
        _bound_blocks(superblock, scan, state)
    # The products of the whole superblock with the way are below all of its floors.
    if reach < gates[GATE, superblock]:
        return True
    # The same from the vertex, whose bounds fall as the path goes on.
    if visits[NEAR_FOR, superblock] != state.counters[EPOCH]:
        store(near, superblock, spread(-np.inf))
        return False
    if travelled + way < gates[NEAR_GATE, superblock]:
        return True
    # Since `NEAR` was computed it falls by the longest row of the block times the way.
    back = gates[NEAR_SINCE, superblock] - travelled
    store(near, superblock, fused(load(scan.longest, superblock), back, load(near, superblock)))
    return False


@inner(inline="always")
def _look_at_block(block: int, members: int, scan: Scan, state: PathState) -> Lanes:
    """Store residuals of a block at the vertex, unless the step before did; return their rates."""
    vectors, cache, counters = state.vectors, state.cache, state.counters
    edge, first = vectors[EDGE], block * BLOCK_ROWS
    if state.visits[UPDATED_AT, block] == counters[STEP]:
        rate = products(scan.blocks, block, edge)
    else:
        way, rate = two_products(scan.blocks, block, vectors[FROM_ANCHOR], edge)
        store(cache, first + AT_VERTEX, load(cache, first + AT_ANCHOR) - way)
        _hide(block, counters[ANCHOR_MEMBERS], members, AT_VERTEX, state)
    store(cache, first + RATE, rate)
    return rate


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
    state.visits[BOUNDED_FOR, superblock] = state.counters[ANCHOR]
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
    state.visits[READ_FOR, block] = state.counters[ANCHOR]
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
        DISTANCE_SLACK * np.sqrt(max(square + length * (2.0 * along + length * edge_square), 0.0))
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
    travelled[0] += length * (DISTANCE_SLACK * np.sqrt(dot(edge, edge)))
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
