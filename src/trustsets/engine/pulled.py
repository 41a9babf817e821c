"""Problems with a strong pull: test rows so extreme that their path would pass many vertices.

A step of the descent passes many points at once, so it needs far fewer vertices. It runs over a
band of points that may change side; all others are held on their side, and checked afterwards.
The first solution is rough, so the circle closes again around it: the band moves along, and points
that have clearly changed side are held on the other one (Portnoy and Koenker 1997).

A solution over too few points would run away, because nothing but the band resists the pull. So a
weighted sample of all points, the guards, stands for those that are held. A guard of weight w acts
like w points where it changes side, and like itself where it does not: at the centre of a round
the slope is that of the whole problem, and when no held point has changed side the solution is
exact. Imports `descent`, `fit`, `kernels`, `problem` and `scan`.
"""

from typing import NamedTuple

import numpy as np

from trustsets.engine.compiled import entry
from trustsets.engine.descent import CAPPED, OPTIMAL, UNBOUNDED, Data
from trustsets.engine.fit import MAX_ROUNDS, Vertex, certify, problem_data, run_descent
from trustsets.engine.kernels import WIDTH, add_term, block_products, compensated_pull, row_dot
from trustsets.engine.landmarks import START
from trustsets.engine.problem import BoolArray, FloatArray, IntArray, Problem
from trustsets.engine.scan import COPIES, DISTANCE, FIRST_KEY, LEAST, SPREAD, Base, Scan
from trustsets.engine.work import rows_dot

__all__ = ["Guards", "Solved", "choose_guards", "fit_pulled"]

FIRST_BAND, BAND = 1024, 4096
"""Points in the band of the first round, and of those after it."""
GUARDS = 4096
"""Guards of a model."""
GUARD_POWER = 1.5
"""Points are guards with a probability that grows like this power of the length of their row."""
FEW = 200
"""When no more points than this were held on the wrong side, the guards may go."""
GROWTH, BIG_GROWTH = 1.5, 8
"""Growth of the band when a round helped little, and of the guards when one ran away."""
NEAR = 0.5
"""Points that have gone this share of their way to the other side are found by a look around."""
SIMILAR = 0.5
"""A goal is similar to another if they differ by less than this share of it."""
RAY_TOL = 1e-9
"""A slope along a ray must be below zero by this share of its terms to count as negative."""

Solved = tuple[FloatArray, IntArray]
"""A goal, and the basic points of its optimal vertex."""


class Guards(NamedTuple):
    """Row numbers in increasing order, and how many points each of them stands for."""

    points: IntArray
    weights: FloatArray


NO_GUARDS = Guards(np.empty(0, np.int64), np.empty(0))


def choose_guards(problem: Problem, base: Base, count: int = GUARDS) -> Guards:
    """Draw a systematic sample along the scan order; the longest rows are all taken."""
    if count >= len(base.order):
        return Guards(np.arange(len(base.order)), np.ones(len(base.order)))
    share = problem.norms[base.order] ** GUARD_POWER
    chance = np.minimum(count * share / max(share.sum(), np.finfo(np.float64).tiny), 1.0)
    passed = np.floor(np.cumsum(chance) + 0.5)
    chosen = (np.diff(passed, prepend=0.0) > 0.0) | (chance == 1.0)
    points, weights = base.order[chosen], 1.0 / chance[chosen]
    order = np.argsort(points)
    return Guards(points[order], weights[order])


class Centre(NamedTuple):
    """A vertex as the middle of a round.

    Attributes
    ----------
    basis : (rank,) array
        Row numbers in increasing order.
    near, gap : arrays
        Points that are on the other side than at the base vertex, where the gap is negative, or
        on their way there.
    is_over : (n,) array
        Which points are on the other side.
    flipped : (rank,) array
        By how much those points have made the pull smaller.
    """

    basis: IntArray
    near: IntArray
    gap: FloatArray
    is_over: BoolArray
    flipped: FloatArray


def fit_pulled(
    problem: Problem,
    vertex: Vertex,
    base: Base,
    guards: Guards,
    goal: FloatArray,
    solved: list[Solved],
) -> tuple[int, IntArray, Vertex | None]:
    """Solve the problem with the pull `goal` added: status, basic points, optimal vertex.

    `vertex` is the one of the base problem; `UNBOUNDED` means that no vertex is optimal: the dual
    has no feasible point. Goals that were `solved` before may shorten the way. The optimum is
    unique, so it does not depend on them.
    """
    data, alpha, total = problem_data(problem), problem.alpha, 0
    centre, size, last = _begin(data, vertex, base, goal, solved), BAND, len(data.rows)
    watch, missed = guards, np.empty(0, np.int64)
    for _ in range(MAX_ROUNDS):
        band = _band(problem.norms, vertex, base, centre, missed, size)
        pull = goal + _held_pull(data, vertex, alpha, centre, band)
        active, status, basis, pivots, edge = _solve(data, vertex, alpha, centre, band, watch, pull)
        total += pivots
        if status == UNBOUNDED:
            loss = _loss_along(data.rows, data.copies, edge, alpha)
            if goal @ edge > (1.0 + RAY_TOL) * loss:
                return UNBOUNDED, basis, None
        if status != OPTIMAL:
            if active == len(data.rows):
                return status, basis, None
            more = BIG_GROWTH * max(active, GUARDS)
            watch = guards if watch is NO_GUARDS else choose_guards(problem, base, more)
            continue
        new = _look_around(data, vertex, base, basis)
        wrong = _changed_outside(centre, new, band)
        if len(wrong) == 0:
            local = np.searchsorted(band, basis)
            return OPTIMAL, basis, certify(data.take(band), alpha, local, pull, total)
        if len(wrong) > last // 2:
            size = int(GROWTH * size) + 1
        missed = np.union1d(missed, wrong) if len(wrong) <= size else wrong[:0]
        centre, last, watch = new, len(wrong), guards if len(wrong) > FEW else NO_GUARDS
    return CAPPED, centre.basis, None


def _begin(
    data: Data, vertex: Vertex, base: Base, goal: FloatArray, solved: list[Solved]
) -> Centre:
    """Start at the base vertex, where nothing has moved yet, or at that of a similar goal."""
    if solved:
        apart = [np.linalg.norm(goal - known) for known, _ in solved]
        nearest = int(np.argmin(apart))
        if apart[nearest] < SIMILAR * np.linalg.norm(goal):
            return _look_around(data, vertex, base, solved[nearest][1])
    near = base.order[:FIRST_BAND]
    nowhere = np.zeros(len(base.order), np.bool_)
    distance = base.points[DISTANCE, : len(near)]
    return Centre(vertex.basis, near, distance, nowhere, np.zeros(len(goal)))


def _look_around(data: Data, vertex: Vertex, base: Base, basis: IntArray) -> Centre:
    """Find the points that the vertex of `basis` has put on the other side, or almost."""
    shift = np.asarray(np.linalg.solve(data.rows[basis], vertex.residuals[basis]), np.float64)
    size = base.points.shape[1]
    found, gap = np.empty(size, np.int64), np.empty(size)
    count = _find_near(base.scan, shift[None], found, gap)
    found, gap = found[:count], gap[:count].copy()
    near, is_over = base.order[found], np.zeros(len(base.order), np.bool_)
    is_over[near[gap < 0.0]] = True
    return Centre(basis, near, gap, is_over, _pull_of(base.blocks, base.points, found[gap < 0.0]))


@entry()
def _find_near(scan: Scan, shift: FloatArray, found: IntArray, gap: FloatArray) -> int:
    """Store positions and gaps of points near the vertex at ``shift[0]``; return their number.

    Blocks are passed over by the bounds of `scan`, with all points `NEAR` times as far away.
    """
    middle, gone = np.empty(WIDTH), np.empty(WIDTH)
    summary, points = scan.summary, scan.points
    radius = np.sqrt(rows_dot(shift, START, shift, START))
    count = 0
    for chapter in range(len(scan.centres)):
        if NEAR * summary[FIRST_KEY, chapter * WIDTH] > radius:
            break
        block_products(scan.centres, chapter, shift, START, middle, START)
        for lane in range(WIDTH):
            block = chapter * WIDTH + lane
            if middle[lane] + summary[SPREAD, block] * radius < NEAR * summary[LEAST, block]:
                continue
            block_products(scan.blocks, block, shift, START, gone, START)
            for i in range(WIDTH):
                position = block * WIDTH + i
                if gone[i] > NEAR * points[DISTANCE, position]:
                    found[count], gap[count] = position, points[DISTANCE, position] - gone[i]
                    count += 1
    return count


@entry()
def _pull_of(blocks: FloatArray, points: FloatArray, positions: IntArray) -> FloatArray:
    """Sum of the rows of points, times the sign of their residuals and their copies."""
    total, lost = np.zeros(blocks.shape[1]), np.zeros(blocks.shape[1])
    for position in positions:
        block, lane = position // WIDTH, position % WIDTH
        for j in range(len(total)):
            add_term(points[COPIES, position] * blocks[block, j, lane], j, total, lost)
    for j in range(len(total)):
        total[j] += lost[j]
    return total


def _band(
    norms: FloatArray, vertex: Vertex, base: Base, centre: Centre, missed: IntArray, size: int
) -> IntArray:
    """Points that may change side in this round: the nearest, the longest, both bases."""
    if size >= len(norms):
        return np.arange(len(norms))
    near = centre.near
    if size < len(near):
        near = near[np.argpartition(np.abs(centre.gap) / norms[near], size)[:size]]
    parts = [near, centre.basis, vertex.basis, base.heavy, missed]
    return np.unique(np.concatenate(parts))


def _slopes(
    data: Data, vertex: Vertex, alpha: float, centre: Centre, points: IntArray
) -> FloatArray:
    """Slopes of the loss of some points at a centre; zero for the basis of the base vertex."""
    is_above = (vertex.residuals[points] > 0.0) != centre.is_over[points]
    eta = data.copies[points] * np.where(is_above, 1.0 - alpha, -alpha)
    eta[np.isin(points, vertex.basis)] = 0.0
    return np.asarray(eta)


def _held_pull(
    data: Data, vertex: Vertex, alpha: float, centre: Centre, band: IntArray
) -> FloatArray:
    """Pull of the points outside the band, each on its side of the centre."""
    own = compensated_pull(data.rows[band], _slopes(data, vertex, alpha, centre, band))
    return np.asarray(vertex.pull - centre.flipped - own)


def _solve(
    data: Data,
    vertex: Vertex,
    alpha: float,
    centre: Centre,
    band: IntArray,
    guards: Guards,
    pull: FloatArray,
) -> tuple[int, int, IntArray, int, FloatArray]:
    """Solve over band and guards: their number, status, basis, pivots and last edge."""
    outside = ~np.isin(guards.points, band, assume_unique=True)
    points, weights = guards.points[outside], guards.weights[outside]
    active = np.concatenate([band, points])
    order = np.argsort(active)
    active = active[order]
    part = data.take(active)
    part.copies[:] *= np.concatenate([np.ones(len(band)), weights])[order]
    slopes = weights * _slopes(data, vertex, alpha, centre, points)
    pull = pull - compensated_pull(data.rows[points], slopes)
    local = np.searchsorted(active, centre.basis)
    status, pivots, edge = run_descent(part, pull, alpha, local)
    return len(active), status, np.sort(active[local]), pivots, edge


def _changed_outside(centre: Centre, new: Centre, band: IntArray) -> IntArray:
    """Points outside the band that changed side, or became basic: they were not held rightly."""
    is_wrong = centre.is_over != new.is_over
    is_wrong[new.basis] = True
    is_wrong[band] = False
    return np.flatnonzero(is_wrong)


@entry()
def _loss_along(rows: FloatArray, copies: FloatArray, edge: FloatArray, alpha: float) -> float:
    """Growth of the loss far along an edge, if no more residual changes its sign.

    In the end a point with ``Q_i edge > 0`` is below the fit and one with ``Q_i edge < 0`` above.
    If this is less than the product of edge and goal, the value falls for ever: a proof that the
    dual is infeasible. Written out, because the threads of a matrix library would get in the way
    of those that solve the rows.
    """
    total = 0.0
    for i in range(len(rows)):
        speed = row_dot(rows, i, edge)
        total += copies[i] * max(alpha * speed, (alpha - 1.0) * speed)
    return total
