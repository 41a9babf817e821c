"""Quantile regression by edge descent: from vertex to vertex, down the steepest edge.

The problem is to minimise ``sum_i copies_i loss(s_i - Q_i b) - linear @ b`` over b. The vector
`linear` contains the test point, as its goal, and points that are fixed on one side: their loss is
linear there, so they enter as the sum of their ``eta_i Q_i``, with ``eta_i`` the slope of the loss.
"""

from typing import NamedTuple

import numpy as np

from trustsets.engine.compiled import BoolArray, FloatArray, IntArray, entry, inner
from trustsets.engine.kernels import (
    EDGE_TOL,
    WIDTH,
    ZERO,
    compensated_sum,
    dot,
    exchange,
    invert,
    nudged_residuals,
    row_dot,
    three_way,
)

__all__ = ["CAPPED", "OPTIMAL", "UNBOUNDED", "PointSet", "descend"]

OPTIMAL, UNBOUNDED, CAPPED = 0, 1, 2

DUAL_TOL = 1e-10
"""A basic dual value may leave its box by this much and still count as optimal."""
REFRESH = 100
"""Pivots between two computations of residuals and sums from scratch."""
CAP_FACTOR = 60
"""Pivots allowed per basic point; at least ten times this many are allowed."""
TINY = float(np.finfo(np.float64).tiny)
"""The residual that a leaving point gets from a step of length zero."""
BEYOND = 1e200
"""Longer than every step, and finite, so that products with it are never NaN."""


class PointSet(NamedTuple):
    """All points of a problem or some of them, as the descent needs them (see `Problem`)."""

    rows: FloatArray
    norms: FloatArray
    centred_scores: FloatArray
    nudges: FloatArray
    copies: FloatArray
    tilt: FloatArray
    score_scale: float

    def take(self, chosen: IntArray) -> "PointSet":
        """Return the set of the points with these row numbers."""
        rows, norms, centred_scores, nudges, copies, tilt = (array[chosen] for array in self[:-1])
        return PointSet(rows, norms, centred_scores, nudges, copies, tilt, self.score_scale)

    def linear(self) -> FloatArray:
        """Linear term of the points' own alphas (see `Problem`)."""
        if not self.tilt.any():
            return np.zeros(self.rows.shape[1])
        return compensated_sum(self.rows, self.tilt)


class Scratch(NamedTuple):
    """Work arrays, allocated outside the kernels: allocation within one takes long to compile."""

    residual: FloatArray
    speed: FloatArray
    step: FloatArray
    drop: FloatArray
    point: IntArray
    total: FloatArray
    ratio: FloatArray
    inverse: FloatArray
    is_basic: BoolArray


def descend(
    data: PointSet, linear: FloatArray, alpha: float, basic: IntArray
) -> tuple[int, int, FloatArray]:
    """Descend to an optimal vertex, changing `basic`: status, number of pivots and last edge.

    Each step leaves the vertex along the steepest edge: the dual value furthest outside its box,
    relative to the length of the edge. The step passes the zeros of other residuals until the
    slope turns (Barrodale and Roberts 1973). Because ties are broken, every step makes the loss
    smaller, so no vertex is visited twice. The last edge of an `UNBOUNDED` problem is a ray.
    """
    n_points, rank = data.rows.shape
    padded = -(-n_points // WIDTH) * WIDTH
    scratch = Scratch(
        residual=np.zeros(padded),
        speed=np.zeros(padded),
        step=np.empty(n_points),
        drop=np.empty(n_points),
        point=np.empty(n_points, np.int64),
        total=np.empty(rank),
        ratio=np.empty(rank),
        inverse=np.empty((rank, rank)),
        is_basic=np.zeros(n_points, np.bool_),
    )
    edge = np.zeros(rank)
    status, pivots = _descend(data, linear, alpha, basic, edge, scratch)
    return int(status), int(pivots), edge


@entry()
def _descend(
    data: PointSet,
    linear: FloatArray,
    alpha: float,
    basic: IntArray,
    edge: FloatArray,
    scratch: Scratch,
) -> tuple[int, int]:
    rows, copies, rank = data.rows, data.copies, len(basic)
    total, inverse, is_basic = scratch.total, scratch.inverse, scratch.is_basic
    for k in range(rank):
        is_basic[basic[k]] = True
    # The first pivot finds the vertex stale, so everything is computed from scratch.
    cap, length, stale = CAP_FACTOR * max(rank, 10), BEYOND, REFRESH
    for pivot in range(cap):
        leaving, excess, sign = -1, 0.0, 0.0
        if stale < REFRESH:
            leaving, excess, sign = _steepest_edge(inverse, total, alpha, copies, basic)
        # Updates drift, so only freshly computed numbers may decide that a vertex is optimal.
        if leaving < 0:
            if not _refresh(data, linear, alpha, basic, scratch):
                return CAPPED, pivot
            leaving, excess, sign = _steepest_edge(inverse, total, alpha, copies, basic)
            stale = 0
        if leaving < 0:
            return OPTIMAL, pivot
        stale += 1
        # Along the edge the residual of the leaving point gets the sign of the broken bound.
        for j in range(rank):
            edge[j] = -sign * inverse[leaving, j]
        _speeds(rows, edge, basic, scratch.speed)
        chosen = _turn(copies, edge, excess, length, scratch)
        if chosen < 0:
            return UNBOUNDED, pivot
        length, entering, out = scratch.step[chosen], scratch.point[chosen], basic[leaving]
        _pass_points(data, length, scratch)
        # After a step of length zero, too, the leaving point lies on a side.
        _swap(data, alpha, out, sign * max(length, TINY), entering, scratch)
        basic[leaving], is_basic[out], is_basic[entering] = entering, False, True
        exchange(inverse, leaving, rows, entering, scratch.ratio)
    return CAPPED, cap


@inner(inline="always")
def _refresh(
    data: PointSet, linear: FloatArray, alpha: float, basic: IntArray, scratch: Scratch
) -> bool:
    """Compute inverse, residuals and sum of a vertex from scratch; false if it is singular."""
    residual, inverse, rows = scratch.residual, scratch.inverse, data.rows
    if not invert(rows, basic, inverse):
        return False
    centred, nudges = data.centred_scores, data.nudges
    nudged_residuals(rows, data.norms, centred, nudges, basic, inverse, residual)
    _nonbasic_sum(data, linear, alpha, scratch)
    return True


@inner(inline="always")
def _speeds(rows: FloatArray, edge: FloatArray, basic: IntArray, speed: FloatArray) -> None:
    """Rates at which residuals fall along the edge; those of basic points count as zero."""
    for i in range(len(rows)):
        speed[i] = row_dot(rows, i, edge)
    for k in range(len(basic)):
        speed[basic[k]] = 0.0


@inner(inline="always")
def _nonbasic_sum(data: PointSet, linear: FloatArray, alpha: float, scratch: Scratch) -> None:
    """Store `linear` plus the sum of ``eta_i Q_i`` over nonbasic points."""
    rows, copies, total = data.rows, data.copies, scratch.total
    residual, is_basic = scratch.residual, scratch.is_basic
    for j in range(len(total)):
        total[j] = linear[j]
    for i in range(len(rows)):
        if not is_basic[i]:
            eta = copies[i] * (1.0 - alpha if residual[i] > 0.0 else -alpha)
            for j in range(len(total)):
                total[j] += eta * rows[i, j]


@inner()
def _steepest_edge(
    inverse: FloatArray, total: FloatArray, alpha: float, copies: FloatArray, basic: IntArray
) -> tuple[int, float, float]:
    """Find the basic point to leave: its number, the excess of its dual value, and the side.

    The slope along edge k, per unit of its residual, is minus the excess of dual value k.
    """
    leaving, best, excess, sign = -1, 0.0, 0.0, 0.0
    for k in range(len(inverse)):
        eta = -row_dot(inverse, k, total)
        size = copies[basic[k]]
        above, below = eta - size * (1.0 - alpha), -alpha * size - eta
        violation = max(above, below)
        if violation <= DUAL_TOL:
            continue
        slope = violation / np.sqrt(_square(inverse, k))
        if slope > best:
            leaving, best, excess = k, slope, violation
            sign = 1.0 if above > below else -1.0
    return leaving, excess, sign


@inner(inline="always")
def _square(matrix: FloatArray, i: int) -> float:
    total = 0.0
    for j in range(matrix.shape[1]):
        total += matrix[i, j] * matrix[i, j]
    return total


@inner(inline="always")
def _turn(
    copies: FloatArray, edge: FloatArray, excess: float, last: float, scratch: Scratch
) -> int:
    """Place in `step` and `index` of the crossing at which the slope turns, or -1."""
    tiny = EDGE_TOL * np.sqrt(dot(edge, edge))
    # Most steps are about as long as the one before. A horizon a few times as far leaves few
    # crossings to select from; the second is further, and the third look has no horizon.
    for look in range(3):
        horizon = BEYOND if look == 2 else (64.0 if look else 4.0) * last
        count = _crossings(copies, tiny, horizon, scratch)
        chosen = _weighted_select(scratch.step, scratch.drop, scratch.point, count, excess)
        if chosen >= 0:
            return chosen
    return -1


@inner()
def _crossings(copies: FloatArray, tiny: float, horizon: float, scratch: Scratch) -> int:
    """Collect where residuals ``residual - t * speed`` reach zero for t up to the horizon.

    At its zero a point changes the slope of the loss by its copies times its rate, its `drop`.
    """
    residual, speed, count = scratch.residual, scratch.speed, 0
    for low in range(0, len(residual), WIDTH):
        n_here = 0
        # This loop has no branches, so it vectorises, and most blocks have no crossing.
        for i in range(low, low + WIDTH):
            rate = speed[i] if residual[i] > 0.0 else -speed[i]
            n_here += (rate > tiny) & (abs(residual[i]) <= horizon * rate)
        if n_here == 0:
            continue
        for i in range(low, low + WIDTH):
            rate = speed[i] if residual[i] > 0.0 else -speed[i]
            if rate > tiny and abs(residual[i]) <= horizon * rate:
                scratch.step[count] = abs(residual[i]) / rate
                scratch.drop[count] = copies[i] * rate
                scratch.point[count] = i
                count += 1
    return count


@inner()
def _weighted_select(
    step: FloatArray, drop: FloatArray, index: IntArray, count: int, need: float
) -> int:
    """Position of the smallest step at which the drops of steps up to it reach `need`, or -1.

    Quickselect: each round splits the candidates in three by a pivot value and keeps one part,
    so it ends after at most `count` rounds.
    """
    low, high, passed, after = ZERO, count, 0.0, -1
    while low < high:
        a, b, c = step[low], step[(low + high) // 2], step[high - 1]
        # The median of three is a good pivot value for sorted and for random steps.
        pivot = max(min(a, b), min(max(a, b), c))
        less, more = three_way(step, drop, index, low, high, pivot)
        below = passed
        for i in range(low, less):
            below += drop[i]
        if below >= need and less > low:
            # Summed again in another order, this part may miss `need` by rounding. The entry
            # just after it is then the answer.
            high, after = less, less
            continue
        for i in range(less, more):
            below += drop[i]
            if below >= need:
                return i
        low, passed = more, below
    return after


@inner()
def _pass_points(data: PointSet, length: float, scratch: Scratch) -> None:
    """Go `length` along the edge; a point that changes side changes the sum by its row.

    The speeds are not needed any more, so their array takes the old residuals.
    """
    rows, copies, total = data.rows, data.copies, scratch.total
    residual, speed = scratch.residual, scratch.speed
    for low in range(0, len(residual), WIDTH):
        passed = 0
        # Without branches, as in `_crossings`: in most blocks no point changes side.
        for i in range(low, low + WIDTH):
            new = residual[i] - length * speed[i]
            passed += (residual[i] > 0.0) != (new > 0.0)
            speed[i], residual[i] = residual[i], new
        if passed == 0:
            continue
        for i in range(low, low + WIDTH):
            if (speed[i] > 0.0) != (residual[i] > 0.0):
                change = copies[i] if residual[i] > 0.0 else -copies[i]
                for j in range(len(total)):
                    total[j] += change * rows[i, j]


@inner(inline="always")
def _swap(
    data: PointSet, alpha: float, leaving: int, new: float, entering: int, scratch: Scratch
) -> None:
    """Exchange two points in the residuals and in the sum; the leaving one gets residual `new`."""
    rows, copies, residual, total = data.rows, data.copies, scratch.residual, scratch.total
    left_at = copies[leaving] * (1.0 - alpha if new > 0.0 else -alpha)
    came_from = copies[entering] * (1.0 - alpha if residual[entering] > 0.0 else -alpha)
    for j in range(len(total)):
        total[j] += left_at * rows[leaving, j] - came_from * rows[entering, j]
    residual[leaving], residual[entering] = new, 0.0
