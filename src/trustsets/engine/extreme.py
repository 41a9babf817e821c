"""Test points whose path is too long or fails its check, solved one by one.

A very long row pulls the fit across thousands of points. One step of the descent passes many points
at once, so it visits far fewer vertices than a path. It runs over an active set; the first solution
is rough, so the active set moves along with it.

A solution over too few points would run away, because only active points resist the goal. So a
weighted sample of all points represents the fixed ones. A sampled point of weight w acts like w
points if it changes side, and like itself if it does not. At the centre of a round the slope is
therefore that of the whole problem, and if no fixed point has changed side the solution is exact.

Where that fails, HiGHS solves the linear program of all points (`solve_as_program`).
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trustsets.engine.compiled import BoolArray, FloatArray, IntArray, entry, read_only
from trustsets.engine.fit import (
    OPTIMAL,
    PROGRAM_SIZE,
    UNBOUNDED,
    ActiveSet,
    Vertex,
    certify,
    descend,
    loss_slopes,
    problem_points,
)
from trustsets.engine.kernels import compensated_sum, dot, products
from trustsets.engine.lanes import ALL, WIDTH, below, fused, load, lowest, padded, store
from trustsets.engine.linear_program import solve_face
from trustsets.engine.path import Scan, ScanOrder
from trustsets.engine.problem import Problem

# Points in the active set of the first round, and of those after it.
FIRST_ACTIVE, ACTIVE = 1024, 4096
SAMPLE_SIZE = 4096  # Points in the weighted sample of a model.
# Points are sampled with a probability that grows like this power of the length of their row.
SAMPLE_POWER = 1.5
# With no more points than this on the wrong side, the weighted sample is not needed any more.
FEW_WRONG = 200
# Growth of the active set after a round that helped little, and of the sample after a ray.
GROWTH, BIG_GROWTH = 1.5, 8
# Points that have gone this share of their way to the other side are near the centre.
NEAR_SHARE = 0.5
SIMILAR_SHARE = 0.5  # A goal is similar to another if they differ by less than this share of it.
# A ray is a proof if the goal exceeds the growth of the loss along it by this share.
RAY_TOL = 1e-9

Solved = tuple[FloatArray, IntArray]  # A goal, and the basic points of its optimal vertex.


class WeightedSample(NamedTuple):
    """Row numbers in increasing order, and how many points each of them represents."""

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
    points, weights = order[chosen], 1.0 / chance[chosen]
    sorting = np.argsort(points)
    return WeightedSample(points[sorting], weights[sorting])


class Centre(NamedTuple):
    """A vertex around which the active set of a round is chosen."""

    basic_points: IntArray  # (rank,): row numbers in increasing order.
    # Row numbers of points that are on the other side than at the base vertex, or on their way
    # there; and their distance from crossing, which is negative on the other side.
    near: IntArray
    gap: FloatArray
    has_crossed: BoolArray  # (n,): which points are on the other side.
    # (rank,): how much these points have reduced the nonbasic sum of the base vertex.
    crossed_sum: FloatArray


def fit_extreme(
    problem: Problem,
    scan_order: ScanOrder,
    sample: WeightedSample,
    goal: FloatArray,
    solved: list[Solved],
) -> tuple[int, Vertex | None, FloatArray]:
    """Solve the problem with the linear term `goal`: status, vertex if `OPTIMAL`, and last edge.

    If it is `UNBOUNDED` the objective falls without bound along that edge. Residuals of the vertex
    are those of the points active at last. Goals that were `solved` before may shorten the way;
    the optimum is unique, so it does not depend on them.
    """
    fit = _ExtremeFit(problem, scan_order, sample, goal, solved)
    status = fit.run()
    return status, fit.certified() if status == OPTIMAL else None, fit.edge


class _ExtremeFit(ActiveSet):
    """The problem of one extreme test point by active sets."""

    def __init__(
        self,
        problem: Problem,
        scan_order: ScanOrder,
        sample: WeightedSample,
        goal: FloatArray,
        solved: list[Solved],
    ) -> None:
        self.problem, self.scan_order, self.vertex = problem, scan_order, scan_order.vertex
        self.data, self.alpha, self.goal = problem_points(problem), problem.alpha, goal
        self.model_sample = self.sample = sample
        self.size, self.last_wrong, self.pivots = ACTIVE, len(self.data.rows), 0
        self.missed = np.empty(0, np.int64)
        self.centre = self.new_centre = self._first_centre(solved)
        self.n_solved, self.basic, self.linear, self.edge = 0, self.missed, goal, goal

    def _first_centre(self, solved: list[Solved]) -> Centre:
        """Start at the vertex of a similar goal, or at the base vertex."""
        if solved:
            apart = [np.linalg.norm(self.goal - goal) for goal, _ in solved]
            nearest = int(np.argmin(apart))
            if apart[nearest] < SIMILAR_SHARE * np.linalg.norm(self.goal):
                return self._centre_at(solved[nearest][1])
        # No point has crossed yet, and the scan order lists the nearest points first.
        near = self.scan_order.order[:FIRST_ACTIVE]
        distance = self.scan_order.scan.distance[: len(near)]
        nowhere = np.zeros(len(self.data.rows), np.bool_)
        return Centre(self.vertex.basic_points, near, distance, nowhere, np.zeros(len(self.goal)))

    def _centre_at(self, basic: IntArray) -> Centre:
        """Find the points that the vertex of `basic` has put on the other side, or nearly so."""
        scan, order = self.scan_order.scan, self.scan_order.order
        shift = np.linalg.solve(self.data.rows[basic], self.vertex.residuals[basic])
        size = len(scan.distance)
        positions, gap = np.empty(size, np.int64), np.empty(size)
        way = np.zeros(padded(len(shift)))
        way[: len(shift)] = shift
        count = _find_near(scan, way, positions, gap, np.empty(WIDTH))
        positions, gap = positions[:count], gap[:count].copy()
        near, has_crossed = order[positions], np.zeros(len(order), np.bool_)
        has_crossed[near[gap < 0.0]] = True
        crossed = positions[gap < 0.0]
        signed = np.ascontiguousarray(scan.blocks[crossed // WIDTH, :, crossed % WIDTH])
        crossed_sum = compensated_sum(signed, scan.multiplicities[crossed])
        return Centre(basic, near, gap, has_crossed, crossed_sum)

    def choose(self) -> IntArray:
        """Points nearest to the centre, those of high leverage, and both sets of basic points."""
        norms, centre = self.problem.norms, self.centre
        if self.size >= len(norms):
            return np.arange(len(norms))
        near = centre.near
        if self.size < len(near):
            distance = np.abs(centre.gap) / norms[near]
            near = near[np.argpartition(distance, self.size)[: self.size]]
        # The descent starts at the basic points of the centre. Those of the base vertex have slopes
        # between the bounds there, so they cannot be fixed on a side.
        basic = centre.basic_points, self.vertex.basic_points
        parts = [near, *basic, self.scan_order.high_leverage, self.missed]
        return np.unique(np.concatenate(parts))

    def solve_active(self) -> int:
        self.linear = self.goal + self._fixed_sum()
        outside = ~np.isin(self.sample.points, self.active, assume_unique=True)
        points, weights = self.sample.points[outside], self.sample.weights[outside]
        both = np.concatenate([self.active, points])
        order = np.argsort(both)
        both = both[order]
        part = self.data.take(both)
        # A sampled point acts like all the points that it represents.
        represented = np.concatenate([np.ones(len(self.active)), weights])[order]
        part = part._replace(multiplicities=read_only(part.multiplicities * represented))
        # The sampled points are part of the fixed sum already. Subtracting their slopes leaves the
        # slope at the centre unchanged, whatever their weights are.
        sampled = compensated_sum(self.data.rows[points], weights * self._slopes(points))
        start = np.searchsorted(both, self.centre.basic_points)
        linear = self.linear - sampled
        status, pivots, basic, self.edge = descend(part, linear, self.alpha, start)
        self.n_solved, self.basic = len(both), np.sort(both[basic])
        self.pivots += pivots
        return status

    def _slopes(self, points: IntArray) -> FloatArray:
        """Slopes of the loss at the centre; zero for the basic points of the base vertex."""
        is_above = (self.vertex.residuals[points] > 0.0) != self.centre.has_crossed[points]
        slopes = loss_slopes(self.data.multiplicities[points], is_above, self.alpha)
        slopes[np.isin(points, self.vertex.basic_points)] = 0.0
        return slopes

    def _fixed_sum(self) -> FloatArray:
        """Sum of slopes times rows over the fixed points, each on its side of the centre."""
        # That of the base vertex less the changes: the cost does not grow with all points.
        active = compensated_sum(self.data.rows[self.active], self._slopes(self.active))
        return np.asarray(self.vertex.nonbasic_sum - self.centre.crossed_sum - active)

    def wrong_points(self) -> IntArray:
        """Fixed points that changed side or became basic, as sampled points can."""
        self.new_centre = self._centre_at(self.basic)
        return changed_outside(self.centre, self.new_centre, self.active)

    def recentre(self, wrong: IntArray) -> None:
        # The number of wrong points should halve in each round; a larger active set helps.
        if len(wrong) > self.last_wrong // 2:
            self.size = int(GROWTH * self.size) + 1
        # Points that come up again and again stay active; too many only say "not there yet".
        self.missed = np.union1d(self.missed, wrong) if len(wrong) <= self.size else wrong[:0]
        self.centre, self.last_wrong = self.new_centre, len(wrong)
        self.sample = self.model_sample if len(wrong) > FEW_WRONG else NO_SAMPLE

    def is_final(self, status: int) -> bool:
        """Whether a ray is one of all points, too, or all points were solved for."""
        if status == UNBOUNDED:
            # A ray over few points may be stopped by others, so all of them are asked. If their
            # loss grows less than the goal along it, the dual is infeasible.
            loss = _loss_along(self.data.rows, self.data.multiplicities, self.edge, self.alpha)
            if (self.goal + self.problem.linear) @ self.edge > (1.0 + RAY_TOL) * loss:
                return True
        return self.n_solved == len(self.data.rows)

    def enlarge(self) -> None:
        """Take the weighted sample back, or a larger one: too few points resist the goal."""
        if self.sample is NO_SAMPLE:
            self.sample = self.model_sample
        else:
            size = BIG_GROWTH * max(self.n_solved, SAMPLE_SIZE)
            self.sample = choose_sample(self.problem, self.scan_order, size)

    def certified(self) -> Vertex:
        """The last solution with its certificate, over the active points."""
        local, part = np.searchsorted(self.active, self.basic), self.data.take(self.active)
        vertex = certify(part, self.alpha, local, self.linear, self.pivots)
        return replace(vertex, basic_points=self.basic)


def changed_outside(centre: Centre, new: Centre, active: IntArray) -> IntArray:
    """Points outside the active set that changed side, or are basic now."""
    is_wrong = centre.has_crossed != new.has_crossed
    is_wrong[new.basic_points] = True
    is_wrong[active] = False
    return np.flatnonzero(is_wrong)


@entry()
def _find_near(
    scan: Scan, shift: FloatArray, positions: IntArray, gap: FloatArray, left: FloatArray
) -> int:
    """Store positions and gaps of points near the vertex at `shift`; return their number.

    The bounds of `path` skip blocks, with all distances multiplied by `NEAR_SHARE`.
    """
    radius, count = np.sqrt(dot(shift, shift)), 0
    for superblock in range(len(scan.centres)):
        # Keys grow from group to group, so all later points are too far away.
        if NEAR_SHARE * scan.group_key[superblock * WIDTH] > radius:
            break
        with_centre = products(scan.centres, superblock, shift)
        bound = fused(load(scan.spread, superblock), radius, with_centre)
        blocks = ALL & ~below(bound, load(scan.least_distance, superblock) * NEAR_SHARE)
        while blocks != 0:
            block = superblock * WIDTH + lowest(blocks)
            blocks &= blocks - 1
            gone, distance = products(scan.blocks, block, shift), load(scan.distance, block)
            store(left, 0, distance - gone)
            near = below(distance * NEAR_SHARE, gone)
            while near != 0:
                lane = lowest(near)
                near &= near - 1
                positions[count], gap[count] = block * WIDTH + lane, left[lane]
                count += 1
    return count


def _loss_along(
    rows: FloatArray, multiplicities: FloatArray, edge: FloatArray, alpha: float
) -> float:
    """Growth of the loss per unit of an edge, far along it where no residual changes its sign.

    There, a point with ``Q_i edge > 0`` is below the fit and one with ``Q_i edge < 0`` above.
    """
    # No matrix product: its threads would compete with those that solve the rows.
    speed = np.einsum("ij,j->i", rows, edge)
    return float(np.sum(multiplicities * np.maximum(alpha * speed, (alpha - 1.0) * speed)))


def solve_as_program(problem: Problem, row: FloatArray, weight: float) -> float | None:
    """Threshold of a test row in units of the score scale, by HiGHS, or None if that fails, too."""
    if len(problem.rows) > PROGRAM_SIZE:
        return None
    scores, alpha = problem.scores / problem.score_scale, problem.alpha
    multiplicities, linear = problem.multiplicities, problem.linear
    return solve_face(problem.rows, scores, multiplicities, alpha, row, weight, linear)
