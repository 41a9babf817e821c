"""Extreme test points, whose path is too long or fails its check, are solved one by one.

A very long row pulls the fit across thousands of points. One step of the descent passes many of
them at once, so it visits far fewer vertices than a path. It runs over an active set; the first
solution is rough, so the active set moves along with it.

A solution over too few points would run away, because only active points resist the goal. So a
weighted sample of all points represents the fixed ones. A sampled point of weight w acts like w
points if it changes side, and like itself if it does not. At the centre of a round the slope is
therefore that of the whole problem, and if no fixed point has changed side the solution is exact.

Where that fails, too, HiGHS solves the linear program of all points (`solve_as_program`).
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trustsets.engine.compiled import BoolArray, FloatArray, IntArray, read_only
from trustsets.engine.fit import (
    BIG_GROWTH,
    CAPPED,
    FEW_WRONG,
    GROWTH,
    MAX_ROUNDS,
    OPTIMAL,
    UNBOUNDED,
    PointSet,
    Vertex,
    certify,
    descend,
    loss_slopes,
    problem_points,
)
from trustsets.engine.kernels import compensated_sum
from trustsets.engine.linear_program import solve_face
from trustsets.engine.path import ScanOrder
from trustsets.engine.problem import Problem, scan_keys, smallest

# Points in the active set of the first round, and of those after it.
FIRST_ACTIVE, ACTIVE = 1024, 4096
SAMPLE_SIZE = 4096  # Points in the weighted sample of a model.
# Points are sampled with a probability that grows like this power of the length of their row.
SAMPLE_POWER = 1.5
# Points that have gone this share of their way to the other side are near the centre.
NEAR_SHARE = 0.5
# A ray is a proof if the goal exceeds the growth of the loss along it by this share.
RAY_TOL = 1e-9
# Largest problem given to HiGHS as a whole when all else failed; it takes about a minute.
PROGRAM_SIZE = 200_000


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
        keys = scan_keys(centre.gap, data.norms[centre.near])
        near = centre.near[smallest(keys, size)] if size < n_points else np.arange(n_points)
        active = np.union1d(near, always)
        points, part, linear = _reduced(problem, base, centre, active, sample)
        start = np.searchsorted(active, centre.basic_points)
        status, more, basic, edge = descend(part, goal + linear, alpha, start)
        pivots += more
        if status == OPTIMAL:
            basic = np.sort(basic)
            try:
                new = _centre_at(points[basic], scan_order, data.rows)
            except np.linalg.LinAlgError:  # the basic rows became dependent
                return CAPPED, None, edge
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


def _reduced(
    problem: Problem, base: Vertex, centre: Centre, active: IntArray, sample: WeightedSample
) -> tuple[IntArray, PointSet, FloatArray]:
    """Active points and then sampled ones: row numbers, points, and linear term of all others."""
    outside = ~np.isin(sample.points, active, assume_unique=True)
    points = np.concatenate([active, sample.points[outside]])
    weights = np.concatenate([np.ones(len(active)), sample.weights[outside]])
    part = problem_points(problem).take(points)
    # A sampled point acts like all the points that it represents.
    part = part._replace(multiplicities=read_only(part.multiplicities * weights))
    is_above = (base.residuals[points] > 0.0) != centre.has_crossed[points]
    slopes = loss_slopes(part.multiplicities, is_above, problem.alpha)
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
    scores, copies = problem.scores / problem.score_scale, problem.multiplicities
    return solve_face(problem.rows, scores, problem.alpha, row, weight, copies, problem.linear)
