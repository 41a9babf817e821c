"""The base fit: quantile regression without a test point, from which all paths start.

The problem is to minimise ``sum_i m_i loss(s_i - Q_i b) - linear @ b`` over b, with ``m_i`` the
multiplicity of point i. Three parts work together:

- the *descent* goes from vertex to vertex down the steepest edge (`descend`);
- the *active set* reduces a large problem to few of its points and checks the solution against all
  of them (`_solve`); `extreme` solves test points in a like way;
- the *certificate* proves the vertex at the end optimal (`certify`).

The vector `linear` contains the goal of a test point, where there is one, and points that are fixed
on one side: their loss is linear there, so they enter as the sum of their ``eta_i Q_i``, with
``eta_i`` the slope of the loss.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trustsets.engine.compiled import BoolArray, FloatArray, IntArray, entry, inner, read_only
from trustsets.engine.kernels import (
    EDGE_TOL,
    ZERO,
    compensated_sum,
    dot,
    exchange,
    invert,
    multiply,
    row_dot,
    three_way,
    to_lanes,
    two_product,
    two_sum,
)
from trustsets.engine.lanes import (
    ALL,
    WIDTH,
    absolute,
    below,
    fused,
    load,
    lowest,
    padded,
    spread,
    store,
)
from trustsets.engine.problem import Problem, pivoted_triangle, scan_keys, smallest
from trustsets.errors import InputError

OPTIMAL, UNBOUNDED, CAPPED = 0, 1, 2

DUAL_TOL = 1e-10  # A basic dual value may leave its box by this much and still count as optimal.
REFRESH = 100  # Pivots between two computations of residuals and sums from scratch.
CAP_FACTOR = 60  # Pivots allowed per basic point; at least ten times this many are allowed.
# The residual that a leaving point gets from a step of length zero.
TINY = float(np.finfo(np.float64).tiny)
BEYOND = 1e200  # Longer than every step, and finite, so that products with it are never NaN.
# The rounding error of a residual is below this share of the terms that it is the sum of.
ROUNDING = 2.0**-46
CERTIFICATE_TOL = 1e-8  # Largest accepted violation in a certificate.
# Rounds of reduce, solve, check. The active set grows, so all points are active long before.
MAX_ROUNDS = 60
CORE_SIZE = 3000  # Problems with up to this many points are solved as a whole.
# Active points around the solution of a sample, in units of (rank * n) ** (2/3).
ACTIVE_FACTOR = 1.0
# Growth of the active set when points changed side, and when it is not known which are missing.
GROWTH, BIG_GROWTH = 1.5, 8.0
# With more points than this on the wrong side, a solution is no better centre than the last one.
FEW_WRONG = 200
LEVERAGE_FACTOR = 20  # Points of largest leverage that are always active, in units of the rank.
# A row depends on those chosen before it if its part outside them is below this share.
INDEPENDENT_TOL = 1e-8


class PointSet(NamedTuple):
    """All points of a problem or some of them, read-only (see `Problem`)."""

    rows: FloatArray
    norms: FloatArray
    centred_scores: FloatArray
    perturbations: FloatArray
    multiplicities: FloatArray
    tilt: FloatArray
    score_scale: float

    def take(self, chosen: IntArray) -> "PointSet":
        """Return the set of the points with these row numbers."""
        return PointSet._make([*(read_only(array[chosen]) for array in self[:-1]), self[-1]])

    def linear(self) -> FloatArray:
        """Linear term of the points' own alphas (see `Problem`)."""
        if not self.tilt.any():
            return np.zeros(self.rows.shape[1])
        return compensated_sum(self.rows, self.tilt)


def problem_points(problem: Problem) -> PointSet:
    """Return all points of a problem."""
    arrays = [read_only(getattr(problem, name)) for name in PointSet._fields[:-1]]
    return PointSet._make([*arrays, problem.score_scale])


def loss_slopes(multiplicities: FloatArray, is_above: BoolArray, alpha: float) -> FloatArray:
    """Dual values of points off the fit: ``1 - alpha`` above it and ``-alpha`` below, per copy."""
    return np.asarray(multiplicities * np.where(is_above, 1.0 - alpha, -alpha))


class _Scratch(NamedTuple):
    """Work arrays, allocated outside the kernels: allocation within one takes long to compile."""

    blocks: FloatArray  # (n_blocks, rank, WIDTH): the rows in blocks (see `to_lanes`).
    residual: FloatArray  # (n_blocks * WIDTH,)
    speed: FloatArray  # (n_blocks * WIDTH,): rates at which residuals fall.
    # (n,): steps to the zeros that a search looks at, what they change, and their points.
    step: FloatArray
    drop: FloatArray
    point: IntArray
    edges: FloatArray  # The inverse basis in blocks.
    # (2, rank, rank) and (2, padded rank): what `_solve_vertex` makes.
    inversion: FloatArray
    betas: FloatArray
    # (padded rank,): the sum of slopes times rows; dual values and squared lengths of the edges;
    # the row that enters; and what `exchange` returns.
    total: FloatArray
    eta: FloatArray
    square: FloatArray
    row: FloatArray
    ratio: FloatArray
    is_basic: BoolArray


def descend(
    data: PointSet, linear: FloatArray, alpha: float, start: IntArray
) -> tuple[int, int, IntArray, FloatArray]:
    """Descend from the vertex of `start`: status, number of pivots, basic points and last edge.

    The steepest edge is that of the dual value furthest outside its box, relative to the length of
    the edge. Because ties are broken, every step makes the loss smaller, so no vertex is visited
    twice. The last edge of an `UNBOUNDED` problem is a ray.
    """
    n_points, rank = data.rows.shape
    width = padded(rank)
    arrays = [
        to_lanes(data.rows),
        *np.zeros((2, padded(n_points))),
        *np.empty((2, n_points)),
        np.empty(n_points, np.int64),
        np.zeros((width // WIDTH, rank, WIDTH)),
        np.empty((2, rank, rank)),
        np.zeros((2, width)),
        *np.zeros((5, width)),
        np.zeros(n_points, np.bool_),
    ]
    scratch = _Scratch._make(arrays)
    basic, edge = np.array(start), np.zeros(width)
    status, pivots = _descend(data, read_only(linear), alpha, basic, edge, scratch)
    return int(status), int(pivots), basic, edge[:rank]


@entry()
def _descend(  # noqa: PLR0912 - a pivot reads from top to bottom
    data: PointSet,
    linear: FloatArray,
    alpha: float,
    basic: IntArray,
    edge: FloatArray,
    scratch: _Scratch,
) -> tuple[int, int]:
    rows, multiplicities, rank = data.rows, data.multiplicities, len(basic)
    residual, speed, total = scratch.residual, scratch.speed, scratch.total
    inverse, edges, is_basic = scratch.inversion[1], scratch.edges, scratch.is_basic
    for k in range(rank):
        is_basic[basic[k]] = True
    # The first pivot finds the vertex stale, so everything is computed from scratch.
    cap, length, stale = CAP_FACTOR * max(rank, 10), BEYOND, REFRESH
    for pivot in range(cap):
        leaving, excess, sign = -1, 0.0, 0.0
        if stale < REFRESH:
            leaving, excess, sign = _steepest_edge(alpha, multiplicities, basic, scratch)
        # Updates drift, so only freshly computed numbers may decide that a vertex is optimal.
        if leaving < 0:
            if not _solve_vertex(data, basic, scratch.inversion, scratch.betas, residual):
                return CAPPED, pivot
            for j in range(rank):
                total[j] = linear[j]
                for k in range(rank):
                    edges[k // WIDTH, j, k % WIDTH] = inverse[k, j]
            for i in range(len(rows)):
                if not is_basic[i]:
                    eta = multiplicities[i] * (1.0 - alpha if residual[i] > 0.0 else -alpha)
                    for j in range(rank):
                        total[j] += eta * rows[i, j]
            leaving, excess, sign = _steepest_edge(alpha, multiplicities, basic, scratch)
            stale = 0
            if leaving < 0:
                return OPTIMAL, pivot
        stale += 1
        # Along the edge the residual of the leaving point gets the sign of the broken bound.
        for j in range(rank):
            edge[j] = -sign * edges[leaving // WIDTH, j, leaving % WIDTH]
        multiply(scratch.blocks, edge, speed)
        for k in range(rank):
            speed[basic[k]] = 0.0
        chosen = _turn(multiplicities, edge, excess, length, scratch)
        if chosen < 0:
            return UNBOUNDED, pivot
        length, entering, out = scratch.step[chosen], scratch.point[chosen], basic[leaving]
        _pass_points(data, length, scratch)
        # After a step of length zero, too, the leaving point lies on a side.
        new = sign * max(length, TINY)
        left_at = multiplicities[out] * (1.0 - alpha if new > 0.0 else -alpha)
        came_from = multiplicities[entering] * (1.0 - alpha if residual[entering] > 0.0 else -alpha)
        # Only these two points change their role, so the sum changes by their two rows.
        for j in range(rank):
            total[j] += left_at * rows[out, j] - came_from * rows[entering, j]
        residual[out], residual[entering] = new, 0.0
        basic[leaving], is_basic[out], is_basic[entering] = entering, False, True
        for j in range(rank):
            scratch.row[j] = rows[entering, j]
        # The edge has been gone, so its array is free.
        exchange(edges, leaving, scratch.row, scratch.ratio, edge)
    return CAPPED, cap


@inner()
def _steepest_edge(
    alpha: float, multiplicities: FloatArray, basic: IntArray, scratch: _Scratch
) -> tuple[int, float, float]:
    """Find the basic point to leave: its number, the excess of its dual value, and the side."""
    edges, rank = scratch.edges, scratch.edges.shape[1]
    for block in range(len(edges)):
        dual, square = spread(0.0), spread(0.0)
        for j in range(rank):
            entry_j = load(edges, block * rank + j)
            dual = fused(entry_j, -scratch.total[j], dual)
            square = fused(entry_j, entry_j, square)
        store(scratch.eta, block, dual)
        store(scratch.square, block, square)
    leaving, best, excess, sign = -1, 0.0, 0.0, 0.0
    for k in range(rank):
        eta, multiplicity = scratch.eta[k], multiplicities[basic[k]]
        above, below_box = eta - multiplicity * (1.0 - alpha), -alpha * multiplicity - eta
        violation = max(above, below_box)
        if violation <= DUAL_TOL:
            continue
        # The slope along edge k, per unit of its residual, is minus the excess of dual value k.
        slope = violation / np.sqrt(scratch.square[k])
        if slope > best:
            leaving, best, excess = k, slope, violation
            sign = 1.0 if above > below_box else -1.0
    return leaving, excess, sign


@inner(inline="always")
def _turn(
    multiplicities: FloatArray, edge: FloatArray, excess: float, last: float, scratch: _Scratch
) -> int:
    """Position in `step` and `point` of the crossing at which the slope turns, or -1."""
    residual, speed = scratch.residual, scratch.speed
    tiny = EDGE_TOL * np.sqrt(dot(edge, edge))
    # Most steps are about as long as the one before. A horizon a few times as far leaves few
    # crossings to select from; the second is further, and the third look has no horizon.
    for look in range(3):
        horizon = BEYOND if look == 2 else (64.0 if look else 4.0) * last
        count = 0
        for block in range(len(scratch.blocks)):
            # Nearly all points fail this one comparison.
            gone = absolute(load(speed, block)) * horizon
            candidates = ALL & ~below(gone, absolute(load(residual, block)))
            while candidates != 0:
                i = block * WIDTH + lowest(candidates)
                candidates &= candidates - 1
                rate = speed[i] if residual[i] > 0.0 else -speed[i]
                if rate > tiny:
                    # At its zero a point changes the slope of the loss by its `drop`.
                    scratch.step[count] = abs(residual[i]) / rate
                    scratch.drop[count] = multiplicities[i] * rate
                    scratch.point[count] = i
                    count += 1
        chosen = _weighted_select(scratch.step, scratch.drop, scratch.point, count, excess)
        if chosen >= 0:
            return chosen
    return -1


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
        less, more = three_way(step, drop, index, low, high)
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
def _pass_points(data: PointSet, length: float, scratch: _Scratch) -> None:
    """Go `length` along the edge; a point that changes side changes the sum by its row."""
    rows, multiplicities, total = data.rows, data.multiplicities, scratch.total
    residual, speed = scratch.residual, scratch.speed
    for block in range(len(scratch.blocks)):
        old = load(residual, block)
        new = fused(load(speed, block), -length, old)
        store(residual, block, new)
        changed = below(0.0, old) ^ below(0.0, new)
        while changed != 0:
            i = block * WIDTH + lowest(changed)
            changed &= changed - 1
            change = multiplicities[i] if residual[i] > 0.0 else -multiplicities[i]
            for j in range(rows.shape[1]):
                total[j] += change * rows[i, j]


@entry()
def _solve_vertex(
    data: PointSet, basic: IntArray, inversion: FloatArray, betas: FloatArray, residual: FloatArray
) -> bool:
    """Inverse basis and residuals of perturbed scores at the vertex of the `basic` points.

    The inverse is ``inversion[1]``; all else but `residual` is scratch. Where the basic rows are
    dependent both are NaN, and the result is false. Residuals of basic points are exactly zero.
    Scores and perturbations are solved for separately. A residual of the scores within `ROUNDING`
    of zero counts as zero: the point is tied, and the residual of its perturbation, which has all
    its digits, decides its side. So the side depends on the vertex and not on the way there.
    """
    rows, norms, perturbations = data.rows, data.norms, data.perturbations
    centred_scores, rank = data.centred_scores, len(basic)
    matrix, inverse, beta, perturbation_beta = inversion[0], inversion[1], betas[0], betas[1]
    for k in range(rank):
        for j in range(rank):
            matrix[k, j] = rows[basic[k], j]
    is_vertex = invert(matrix, inverse)
    _refined_solution(rows, centred_scores, basic, inverse, beta)
    _refined_solution(rows, perturbations, basic, inverse, perturbation_beta)
    beta_length = np.sqrt(dot(beta, beta))
    for i in range(len(rows)):
        score_residual = centred_scores[i] - row_dot(rows, i, beta)
        residual[i] = perturbations[i] - row_dot(rows, i, perturbation_beta)
        if abs(score_residual) > ROUNDING * (abs(centred_scores[i]) + norms[i] * beta_length):
            residual[i] += score_residual
    for k in range(rank):
        residual[basic[k]] = 0.0
    return is_vertex


@inner()
def _refined_solution(
    rows: FloatArray, values: FloatArray, basic: IntArray, inverse: FloatArray, out: FloatArray
) -> None:
    """Solve ``rows[basic] @ out = values[basic]``, refined with residuals in twice the precision.

    Basic rows may be nearly dependent. Refinement leaves no error but the rounding of `out` itself.
    """
    rank = len(basic)
    for j in range(rank):
        out[j] = 0.0
    for _ in range(3):
        for k in range(rank):
            residual = _gap(rows, basic[k], out, values[basic[k]])
            for j in range(rank):
                out[j] += residual * inverse[k, j]


@inner()
def _gap(rows: FloatArray, i: int, vector: FloatArray, value: float) -> float:
    """``value - rows[i] @ vector`` with the rounding errors of all products and sums added back."""
    total, lost = value, 0.0
    for j in range(rows.shape[1]):
        product, error = two_product(rows[i, j], -vector[j])
        lost += error
        total, error = two_sum(total, product)
        lost += error
    return total + lost


@dataclass(frozen=True, slots=True)
class Certificate:
    """Numbers that prove a vertex optimal; all are zero in exact arithmetic.

    Let ``eta_i`` be ``1 - alpha`` above the fit and ``-alpha`` below it, and let the equality
    ``Q' eta = 0`` determine it on the basic points. Then primal and dual values agree. It remains
    to show that the basic ``eta`` lie in their box and that the equality holds.

    Attributes
    ----------
    dual_violation : float
        How far a basic ``eta`` leaves ``[-alpha, 1 - alpha]``, times its multiplicity.
    sign_violation : float
        Largest residual of a basic point, as a share of the score scale.
    equality_residual : float
        Largest entry of ``Q' eta``; whitened columns have length ``sqrt(n)``.
    pivots : int
        Vertices visited, samples included.
    """

    dual_violation: float
    sign_violation: float
    equality_residual: float
    pivots: int

    @property
    def holds(self) -> bool:
        """Whether all three are zero up to rounding."""
        return (
            self.dual_violation <= CERTIFICATE_TOL
            and self.sign_violation <= CERTIFICATE_TOL
            and self.equality_residual <= CERTIFICATE_TOL
        )


@dataclass(frozen=True, slots=True, eq=False)
class Vertex:
    """A vertex over a `PointSet`, with its certificate."""

    # (rank,): row numbers, in the point set, of the points with residual zero; in increasing order.
    basic_points: IntArray
    # (rank, rank): inverse basis, transposed (see `kernels`); NaN where the basic rows are
    # dependent.
    inverse: FloatArray
    residuals: FloatArray  # (n,): of the perturbed scores; exactly zero at the basic points.
    # (rank,): sum of ``eta_i Q_i`` over nonbasic points, and the linear term of the problem.
    nonbasic_sum: FloatArray
    eta: FloatArray  # (rank,): dual values of the basic points.
    room: float  # From them to the nearest bound of a box; negative where one is outside of it.
    certificate: Certificate


def certify(
    data: PointSet, alpha: float, basic: IntArray, linear: FloatArray, pivots: int
) -> Vertex:
    """Compute everything about a vertex anew, with the numbers that prove it optimal."""
    low, high = -alpha * data.multiplicities[basic], (1.0 - alpha) * data.multiplicities[basic]
    basic_rows = data.rows[basic]
    inverse, residuals = _solve_at(data, basic)
    beta = inverse.T @ data.centred_scores[basic]
    basic_residual = float(np.abs(data.centred_scores[basic] - basic_rows @ beta).max(initial=0.0))
    slopes = loss_slopes(data.multiplicities, residuals > 0.0, alpha)
    slopes[basic] = 0.0
    total = linear + compensated_sum(data.rows, slopes)
    eta = -inverse @ total
    # One step of refinement removes the error of the inverse.
    eta -= inverse @ (basic_rows.T @ eta + total)
    room = float(np.minimum(high - eta, eta - low).min(initial=np.inf))
    certificate = Certificate(
        dual_violation=max(-room, 0.0),
        sign_violation=basic_residual / data.score_scale,
        equality_residual=float(np.abs(basic_rows.T @ eta + total).max(initial=0.0)),
        pivots=pivots,
    )
    return Vertex(basic, inverse, residuals, total, eta, room, certificate)


def _solve_at(data: PointSet, basic: IntArray) -> tuple[FloatArray, FloatArray]:
    """Inverse basis and residuals at the vertex of the `basic` points, NaN where it is singular."""
    rank, residuals = len(basic), np.empty(len(data.rows))
    inversion, betas = np.empty((2, rank, rank)), np.zeros((2, padded(rank)))
    # A copy, writable as the basic points of `_descend` are: the kernel is compiled once for both.
    _solve_vertex(data, basic.copy(), inversion, betas, residuals)
    return inversion[1], residuals


def fit_vertex(problem: Problem, start: IntArray | None = None) -> Vertex:
    """Solve the base problem, from the basic points `start` when they are given."""
    if start is None:
        return refit_vertex(problem, *_starting_points(problem_points(problem), problem.alpha))
    return refit_vertex(problem, _read_start(start, problem))


def refit_vertex(problem: Problem, basic: IntArray, pivots: int = 0) -> Vertex:
    """Solve from a vertex, such as that of another alpha, which took so many pivots to find."""
    data, alpha = problem_points(problem), problem.alpha
    basic, more = _solve(data, alpha, basic)
    return certify(data, alpha, np.sort(basic), problem.linear, pivots + more)


def _solve(data: PointSet, alpha: float, basic: IntArray) -> tuple[IntArray, int]:
    """Basic points of the last vertex that active sets lead to from `basic`, and the pivots.

    Points outside the active set are fixed on their side of a centre. If the solution over the
    active points leaves every fixed point there, it is optimal for all points: the dual values of
    both together are feasible, and every sign agrees with them (Portnoy and Koenker 1997).
    """
    n_points, rank = data.rows.shape
    size = n_points if n_points <= CORE_SIZE else _reduced_size(n_points, rank)
    # Without the points of largest leverage a reduced problem may have no optimum.
    always = smallest(-data.norms, LEVERAGE_FACTOR * rank)
    residuals, sums, pivots = _solve_at(data, basic)[1], data.linear(), 0
    for _ in range(MAX_ROUNDS):
        active = _active_points(data, residuals, np.union1d(basic, always), size)
        slopes = loss_slopes(data.multiplicities, residuals > 0.0, alpha)
        slopes[active] = 0.0
        linear = sums + data.rows.T @ slopes
        start = np.searchsorted(active, np.sort(basic))
        status, more, reached, _ = descend(data.take(active), linear, alpha, start)
        pivots += more
        new_basic = active[reached]
        new_residuals = _solve_at(data, new_basic)[1] if more else residuals
        is_wrong = (new_residuals > 0.0) != (residuals > 0.0)
        is_wrong[active] = False
        wrong = np.flatnonzero(is_wrong)
        if len(active) == n_points or (status == OPTIMAL and len(wrong) == 0):
            break
        factor = GROWTH
        if status == OPTIMAL and len(wrong) <= FEW_WRONG:
            basic, residuals = new_basic, new_residuals
        else:
            # Only active points resisted, so the solution ran away: keep the centre, and start
            # again with the points that it passed.
            always = np.union1d(always, wrong)
            factor = GROWTH if len(wrong) else BIG_GROWTH
        size = min(n_points, int(factor * max(size, len(always))) + 1)
    return new_basic, pivots


def _active_points(data: PointSet, residuals: FloatArray, always: IntArray, size: int) -> IntArray:
    """Row numbers of the points nearest to the fit, and of those that are always active."""
    key = scan_keys(residuals, data.norms)
    key[always] = -1.0
    return np.sort(smallest(key, max(size, len(always))))


def _read_start(start: IntArray, problem: Problem) -> IntArray:
    """Check given basic points: `rank` different row numbers whose rows are independent."""
    rank = problem.rows.shape[1]
    is_list = start.ndim == 1 and (start.dtype.kind in "iu" or start.size == 0)
    numbers = np.unique(start) if is_list else np.empty(0, np.int64)
    basic = np.flatnonzero(np.isin(problem.first, numbers))
    if is_list and len(basic) == len(numbers) == rank:
        if pivoted_triangle(problem.rows[basic], INDEPENDENT_TOL)[2] == rank:
            return basic
    raise InputError(
        f"start must hold {rank} different row numbers of phi_calib whose rows are independent, "
        f"got {start!r}; pass the `basic_points` of a model fitted on the same data, or None."
    )


def _starting_points(data: PointSet, alpha: float) -> tuple[IntArray, int]:
    """Basic points of an almost optimal vertex by recursion over samples, and the pivots taken."""
    n_points, rank = data.rows.shape
    if n_points <= max(CORE_SIZE, 4 * rank):
        return _independent_rows(data.rows), 0
    sample = _sample(data.rows, min(n_points // 3, _reduced_size(n_points, rank)))
    part = data.take(sample)
    basic, pivots = _starting_points(part, alpha)
    basic, more = _solve(part, alpha, basic)
    return sample[basic], pivots + more


def _reduced_size(n_points: int, rank: int) -> int:
    """Size of sample and active set that balances their errors (Portnoy and Koenker)."""
    wanted = int(ACTIVE_FACTOR * (rank * n_points) ** (2.0 / 3.0))
    return min(n_points, max(wanted, CORE_SIZE // 2, 4 * rank))


def _sample(rows: FloatArray, size: int) -> IntArray:
    """Row numbers of a fixed random sample, completed to the full rank."""
    chosen = np.sort(np.random.default_rng(0).choice(len(rows), size, replace=False))
    if pivoted_triangle(rows[chosen].T, INDEPENDENT_TOL)[2] == rows.shape[1]:
        return chosen
    return np.union1d(chosen, _independent_rows(rows))


def _independent_rows(rows: FloatArray) -> IntArray:
    """Numbers of `rank` independent rows that a pivoted QR makes well conditioned."""
    return pivoted_triangle(rows.T, INDEPENDENT_TOL)[1][: rows.shape[1]]
