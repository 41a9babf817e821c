"""Quantile regression by edge descent: from vertex to vertex, down the steepest edge.

The problem is to minimise ``sum_i loss(s_i - Q_i b) - pull @ b``. The linear part stands for
points that are known to stay on one side: they enter only through their `pull`, the sum of
``eta_i Q_i`` with ``eta_i`` the slope of the loss on that side. A point may stand for several
equal ones, its `copies`: its loss and its box are that many times as large. Imports `kernels`
and `problem`.
"""

from typing import Any, NamedTuple

import numpy as np

from trustsets.engine.compiled import entry, inner
from trustsets.engine.kernels import (
    WIDTH,
    dot,
    exchange,
    invert,
    nudged_residuals,
    row_dot,
    three_way,
)
from trustsets.engine.problem import BoolArray, FloatArray, IntArray

__all__ = ["CAPPED", "OPTIMAL", "UNBOUNDED", "Data", "descend"]

OPTIMAL, UNBOUNDED, CAPPED = 0, 1, 2

DUAL_TOL = 1e-10
"""A basic dual value may leave its box by this much (its size is one) and still be optimal."""
EDGE_TOL = 1e-11
"""A product with an edge below this share of the edge's length counts as zero."""
REFRESH = 100
"""Pivots between two computations of residuals and pull from scratch."""
CAP_FACTOR = 60
"""Pivots allowed per basic point (and at least this many times ten)."""
FIRST: Any = np.int64(0)
"""A start that is no constant for numba, which compiles a kernel anew for each one passed to it."""
TINY = float(np.finfo(np.float64).tiny)
"""The least that a step of length zero moves a residual."""
BEYOND = 1e200
"""A step longer than all; finite, so that its products are numbers."""


class Data(NamedTuple):
    """What the descent needs of a problem or of a part of it."""

    rows: FloatArray
    norms: FloatArray
    scores: FloatArray
    nudges: FloatArray
    copies: FloatArray
    scale: float

    def take(self, chosen: IntArray) -> "Data":
        """Return the part of these points."""
        return Data(
            self.rows[chosen],
            self.norms[chosen],
            self.scores[chosen],
            self.nudges[chosen],
            self.copies[chosen],
            self.scale,
        )


class Scratch(NamedTuple):
    """Space of the descent, made outside: arrays made within a kernel take long to compile."""

    residual: FloatArray
    speed: FloatArray
    step: FloatArray
    weight: FloatArray
    point: IntArray
    total: FloatArray
    ratio: FloatArray
    inverse: FloatArray
    is_basic: BoolArray


def descend(
    data: Data, pull: FloatArray, alpha: float, basis: IntArray, edge: FloatArray
) -> tuple[int, int]:
    """Walk down to an optimal vertex, changing `basis` and `edge`: status and number of pivots.

    Each step leaves the vertex along the edge whose dual value is furthest outside its box
    relative to the edge's length (steepest descent) and goes on through other residuals' zeros
    until the slope turns (Barrodale and Roberts 1973). Scores in general position make every step
    strictly downhill, so no vertex comes twice. The last edge of an `UNBOUNDED` problem is a ray.
    """
    n_points, rank = data.rows.shape
    padded = -(-n_points // WIDTH) * WIDTH
    space = Scratch(
        residual=np.zeros(padded),
        speed=np.zeros(padded),
        step=np.empty(n_points),
        weight=np.empty(n_points),
        point=np.empty(n_points, np.int64),
        total=np.empty(rank),
        ratio=np.empty(rank),
        inverse=np.empty((rank, rank)),
        is_basic=np.zeros(n_points, np.bool_),
    )
    status, pivots = _descend(data, pull, alpha, basis, edge, space)
    return int(status), int(pivots)


@entry()
def _descend(
    data: Data,
    pull: FloatArray,
    alpha: float,
    basis: IntArray,
    edge: FloatArray,
    space: Scratch,
) -> tuple[int, int]:
    rows, copies, rank = data.rows, data.copies, len(basis)
    residual, speed, step, weight, index, total, ratio, corner, is_basic = space
    for k in range(rank):
        is_basic[basis[k]] = True
    cap, length, stale = CAP_FACTOR * max(rank, 10), BEYOND, REFRESH
    for pivot in range(cap):
        leaving, excess, sign = -1, 0.0, 0.0
        if stale < REFRESH:
            leaving, excess, sign = _steepest_edge(corner, total, alpha, copies, basis)
        # Whether a vertex is optimal is decided by numbers without the drift of updates.
        if leaving < 0:
            if not _refresh(data, pull, alpha, basis, is_basic, corner, residual, total):
                return CAPPED, pivot
            leaving, excess, sign = _steepest_edge(corner, total, alpha, copies, basis)
            stale = 0
        if leaving < 0:
            return OPTIMAL, pivot
        stale += 1
        for j in range(rank):
            edge[j] = -sign * corner[leaving, j]
        _speeds(rows, edge, basis, speed)
        chosen = _turn(residual, speed, copies, edge, excess, length, step, weight, index)
        if chosen < 0:
            return UNBOUNDED, pivot
        length, entering, out = step[chosen], index[chosen], basis[leaving]
        _pass_points(rows, copies, residual, speed, length, total)
        beyond = sign * max(length, TINY)
        _swap(rows, copies, alpha, residual, out, beyond, entering, total)
        basis[leaving], is_basic[out], is_basic[entering] = entering, False, True
        exchange(corner, leaving, rows, entering, ratio)
    return CAPPED, cap


@inner(inline="always")
def _refresh(
    data: Data,
    pull: FloatArray,
    alpha: float,
    basis: IntArray,
    is_basic: BoolArray,
    corner: FloatArray,
    residual: FloatArray,
    total: FloatArray,
) -> bool:
    """Compute inverse, residuals and total pull of a vertex from scratch; false if singular."""
    if not invert(data.rows, basis, corner):
        return False
    nudged_residuals(data.rows, data.norms, data.scores, data.nudges, basis, corner, residual)
    _total_pull(data.rows, data.copies, residual, is_basic, pull, alpha, total)
    return True


@inner(inline="always")
def _speeds(rows: FloatArray, edge: FloatArray, basis: IntArray, speed: FloatArray) -> None:
    """Rates at which residuals fall along the edge; those of basic points count as zero."""
    for i in range(len(rows)):
        speed[i] = row_dot(rows, i, edge)
    for k in range(len(basis)):
        speed[basis[k]] = 0.0


@inner(inline="always")
def _total_pull(
    rows: FloatArray,
    copies: FloatArray,
    residual: FloatArray,
    is_basic: BoolArray,
    pull: FloatArray,
    alpha: float,
    total: FloatArray,
) -> None:
    """Sum of ``eta_i Q_i`` over nonbasic points, and the pull of the fixed ones."""
    for j in range(len(total)):
        total[j] = pull[j]
    for i in range(len(rows)):
        if not is_basic[i]:
            eta = copies[i] * (1.0 - alpha if residual[i] > 0.0 else -alpha)
            for j in range(len(total)):
                total[j] += eta * rows[i, j]


@inner()
def _steepest_edge(
    corner: FloatArray, total: FloatArray, alpha: float, copies: FloatArray, basis: IntArray
) -> tuple[int, float, float]:
    """Find the basic point whose dual value breaks its box most steeply: number, excess, side."""
    leaving, best, excess, sign = -1, 0.0, 0.0, 0.0
    for k in range(len(corner)):
        eta = -row_dot(corner, k, total)
        size = copies[basis[k]]
        above, below = eta - size * (1.0 - alpha), -alpha * size - eta
        violation = max(above, below)
        if violation <= DUAL_TOL:
            continue
        slope = violation / np.sqrt(_square(corner, k))
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
    residual: FloatArray,
    speed: FloatArray,
    copies: FloatArray,
    edge: FloatArray,
    excess: float,
    last: float,
    step: FloatArray,
    weight: FloatArray,
    index: IntArray,
) -> int:
    """Place in `step` and `index` of the crossing at which the slope turns, or -1.

    Steps are mostly about as long as the one before, the `last`. So crossings are looked for up to
    a horizon near that, further off only if the slope has not turned there, and then without one.
    """
    tiny = EDGE_TOL * np.sqrt(dot(edge, edge))
    for look in range(3):
        horizon = BEYOND if look == 2 else (64.0 if look else 4.0) * last
        count = _crossings(residual, speed, copies, tiny, horizon, step, weight, index)
        chosen = _weighted_select(step, weight, index, count, excess)
        if chosen >= 0:
            return chosen
    return -1


@inner()
def _crossings(
    residual: FloatArray,
    speed: FloatArray,
    copies: FloatArray,
    tiny: float,
    horizon: float,
    step: FloatArray,
    weight: FloatArray,
    index: IntArray,
) -> int:
    """Collect where residuals `residual - t * speed` reach zero for t up to the horizon.

    Points are first counted, by blocks and without branches: such a loop vectorises.
    """
    count = 0
    for low in range(0, len(residual), WIDTH):
        n_here = 0
        for i in range(low, low + WIDTH):
            rate = speed[i] if residual[i] > 0.0 else -speed[i]
            n_here += (rate > tiny) & (abs(residual[i]) <= horizon * rate)
        if n_here == 0:
            continue
        for i in range(low, low + WIDTH):
            rate = speed[i] if residual[i] > 0.0 else -speed[i]
            if rate > tiny and abs(residual[i]) <= horizon * rate:
                step[count] = abs(residual[i]) / rate
                weight[count] = copies[i] * rate
                index[count] = i
                count += 1
    return count


@inner()
def _weighted_select(
    step: FloatArray, weight: FloatArray, index: IntArray, count: int, need: float
) -> int:
    """Position of the smallest step at which the weights of steps up to it reach `need`, or -1.

    Quickselect: each round splits the candidates in three by a pivot value and keeps one part,
    so it ends after at most `count` rounds. A sum in another order may miss `need` by rounding
    in a part that had reached it; the entry just after that part is then the answer.
    """
    low, high, passed, after = FIRST, count, 0.0, -1
    while low < high:
        a, b, c = step[low], step[(low + high) // 2], step[high - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        less, more = three_way(step, weight, index, low, high, pivot)
        below = passed
        for i in range(low, less):
            below += weight[i]
        if below >= need and less > low:
            high, after = less, less
            continue
        for i in range(less, more):
            below += weight[i]
            if below >= need:
                return i
        low, passed = more, below
    return after


@inner()
def _pass_points(
    rows: FloatArray,
    copies: FloatArray,
    residual: FloatArray,
    speed: FloatArray,
    length: float,
    total: FloatArray,
) -> None:
    """Go `length` along the edge; points that changed side change their pull by their row.

    The speeds are of no more use: their place keeps the old residuals.
    """
    for low in range(0, len(residual), WIDTH):
        passed = 0
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
    rows: FloatArray,
    copies: FloatArray,
    alpha: float,
    residual: FloatArray,
    leaving: int,
    new: float,
    entering: int,
    total: FloatArray,
) -> None:
    """Exchange two points in the residuals and in the total pull.

    The leaving point gets the residual `new`; a step of length zero still has a side, so it is
    never zero.
    """
    left_at = copies[leaving] * (1.0 - alpha if new > 0.0 else -alpha)
    came_from = copies[entering] * (1.0 - alpha if residual[entering] > 0.0 else -alpha)
    for j in range(len(total)):
        total[j] += left_at * rows[leaving, j] - came_from * rows[entering, j]
    residual[leaving], residual[entering] = new, 0.0
