"""The base fit: the vertex that all test points start from, and the proof that it is optimal.

A big problem is never solved whole. A sample is solved (recursively), points far from its
solution are taken to stay on their side, the few others are solved exactly, and every point is
checked; if one changed side, the circle closes again around the better solution (Portnoy and
Koenker 1997). Imports `descent`, `kernels` and `problem`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import qr

from trustsets.engine.descent import CAPPED, OPTIMAL, descend
from trustsets.engine.kernels import compensated_pull, nudged_residuals
from trustsets.engine.problem import FloatArray, IntArray, Problem, scan_keys
from trustsets.errors import InputError, TrustSetsError

__all__ = ["Certificate", "Vertex", "fit_pulled", "fit_vertex"]

CORE_SIZE = 3000
"""Problems up to this many points are solved whole."""
ACTIVE_FACTOR = 1.0
"""Points kept active around a sample's solution, in units of (rank * n) ** (2/3)."""
MAX_ROUNDS = 60
"""Rounds of reduce, solve, check. The active set grows, so all points are active long before."""
GROWTH, BIG_GROWTH = 1.5, 8.0
"""Growth of the active set when a point changed side, and when nothing says which one to add."""
LEVERAGE_FACTOR = 20
"""Points of largest leverage that are always active, in units of the rank."""
INDEPENDENT_TOL = 1e-8
"""A row whose part outside the rows chosen so far is shorter than this is no basis row."""
ZERO_TOL = 1e-13
"""Residuals below this share of the score scale are rounding: the point is tied."""
CERTIFICATE_TOL = 1e-8
"""Largest accepted violation in a certificate."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Numbers that prove a vertex optimal; all are zero in exact arithmetic.

    With ``eta_i`` equal to ``1 - alpha`` above the fit, ``-alpha`` below it and solved from the
    equality on the basic points, primal and dual values agree. What is left to show is that the
    basic ``eta`` lie in their box and that the equality holds.

    Attributes
    ----------
    dual_violation : float
        How far a basic ``eta`` leaves ``[-alpha, 1 - alpha]``.
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
        worst = max(self.dual_violation, self.sign_violation, self.equality_residual)
        return worst <= CERTIFICATE_TOL


@dataclass(frozen=True, slots=True, eq=False)
class Vertex:
    """An optimal vertex of the base problem.

    Attributes
    ----------
    basis : (rank,) array
        Basic points, by row number of the calibration data, in increasing order.
    corner : (rank, rank) array
        Transposed inverse of the basic rows (see `kernels`).
    residuals : (n,) array
        Of the nudged scores; exactly zero on the basis.
    pull : (rank,) array
        Sum of ``eta_i Q_i`` over nonbasic points, and what was added from outside.
    eta : (rank,) array
        Dual values of the basic points.
    certificate : Certificate
    """

    basis: IntArray
    corner: FloatArray
    residuals: FloatArray
    pull: FloatArray
    eta: FloatArray
    certificate: Certificate


def fit_vertex(problem: Problem, start: IntArray | None = None) -> Vertex:
    """Solve the base problem, from the vertex `start` when one is given."""
    if start is None:
        basis, pivots = _starting_basis(_data(problem), problem.alpha)
    else:
        basis, pivots = _read_start(start, problem), 0
    no_pull = np.zeros(problem.whitening.rank)
    status, basis, more = _close_in(_data(problem), problem.alpha, basis, no_pull)
    vertex = _certified(problem, np.sort(basis), no_pull, pivots + more)
    if status != OPTIMAL or not vertex.certificate.holds:
        raise TrustSetsError(
            f"the base fit lost its accuracy ({vertex.certificate}); the columns of phi_calib "
            "are too close to dependent: rescale them or drop the highest powers."
        )
    return vertex


def fit_pulled(problem: Problem, basis: IntArray, pull: FloatArray) -> tuple[int, Vertex]:
    """Solve the problem with `pull` added, starting at `basis`: status and last vertex.

    For test rows so extreme that their path would pass hundreds of vertices: a step of the
    descent passes many points at once. `UNBOUNDED` means that no vertex is optimal: the dual
    has no feasible point.
    """
    status, found, pivots = _close_in(_data(problem), problem.alpha, basis, pull)
    return status, _certified(problem, np.sort(found), pull, pivots)


def _read_start(start: IntArray, problem: Problem) -> IntArray:
    """Check a given basis: `rank` different row numbers whose rows are independent."""
    n_points, rank = problem.rows.shape
    basis = np.unique(np.asarray(start, dtype=np.int64))
    inside = len(basis) == 0 or (basis[0] >= 0 and basis[-1] < n_points)
    if len(basis) == rank and inside:
        values = np.linalg.svd(problem.rows[basis], compute_uv=False)
        if values.min(initial=np.inf) > INDEPENDENT_TOL * values.max(initial=0.0):
            return basis
    raise InputError(
        f"start must hold {rank} different row numbers of phi_calib whose rows are independent, "
        f"got {start!r}; pass the `basis` of a model fitted on the same data, or None."
    )


class _Data(NamedTuple):
    """What the descent needs of a problem or of a sample of it."""

    rows: FloatArray
    norms: FloatArray
    scores: FloatArray
    nudges: FloatArray
    zero: float

    def take(self, chosen: IntArray) -> "_Data":
        rows, norms = self.rows[chosen], self.norms[chosen]
        return _Data(rows, norms, self.scores[chosen], self.nudges[chosen], self.zero)


def _data(problem: Problem) -> _Data:
    zero = ZERO_TOL * problem.score_scale
    return _Data(problem.rows, problem.norms, problem.centred, problem.nudges, zero)


def _starting_basis(data: _Data, alpha: float) -> tuple[IntArray, int]:
    """Basis of an almost optimal vertex by recursion over samples, and the pivots taken."""
    n_points, rank = data.rows.shape
    if n_points <= max(CORE_SIZE, 4 * rank):
        return _independent_rows(data.rows), 0
    sample = _sample(data.rows, min(n_points // 3, _reduced_size(n_points, rank)))
    part = data.take(sample)
    basis, pivots = _starting_basis(part, alpha)
    _, basis, more = _close_in(part, alpha, basis, np.zeros(rank))
    return sample[basis], pivots + more


def _reduced_size(n_points: int, rank: int) -> int:
    """Size of sample and active set that balances their errors (Portnoy and Koenker)."""
    wanted = int(ACTIVE_FACTOR * (rank * n_points) ** (2.0 / 3.0))
    return min(n_points, max(wanted, CORE_SIZE // 2, 4 * rank))


def _sample(rows: FloatArray, size: int) -> IntArray:
    """Row numbers of a fixed random sample, completed to the full rank."""
    order = np.random.default_rng(0).choice(len(rows), size, replace=False)
    chosen = np.sort(order)
    missing = rows.shape[1] - len(_greedy_rows(rows[chosen]))
    if missing == 0:
        return chosen
    return np.union1d(chosen, _independent_rows(rows))


def _independent_rows(rows: FloatArray) -> IntArray:
    """Numbers of `rank` well-conditioned independent rows."""
    found = _greedy_rows(rows)
    if len(found) < rows.shape[1]:
        raise TrustSetsError(
            "the whitened basis lost its rank; the columns of phi_calib are too close to "
            "dependent: rescale them or drop the highest powers."
        )
    return found


def _greedy_rows(rows: FloatArray) -> IntArray:
    """Rows picked by pivoted QR of the transpose, as many as are independent."""
    if rows.shape[1] == 0:
        return np.empty(0, np.int64)
    triangle, order = qr(rows.T, mode="r", pivoting=True, check_finite=False)
    diagonal = np.abs(np.diagonal(triangle))
    count = int(np.sum(diagonal > INDEPENDENT_TOL * diagonal[0]))
    return np.asarray(order[:count], dtype=np.int64)


def _close_in(
    data: _Data, alpha: float, basis: IntArray, pull: FloatArray
) -> tuple[int, IntArray, int]:
    """Reduce, solve, check, repeat, until no point outside the active set changes side.

    At the end the reduced optimum is optimal for all points: its dual values, together with
    those of the fixed points, are feasible, and every sign agrees with them. A reduced problem
    without an optimum is solved again from where it started, with the points that it should
    have passed on its way out; with all points active there is none.
    """
    n_points, rank = data.rows.shape
    size = n_points if n_points <= CORE_SIZE else _reduced_size(n_points, rank)
    always = _heaviest(data.norms, LEVERAGE_FACTOR * rank)
    total = 0
    residual = _residuals(data, basis)
    for _ in range(MAX_ROUNDS):
        active, fixed = _split(residual, data.norms, np.union1d(basis, always), size)
        status, found, pivots = _solve_active(data, alpha, residual, active, pull, basis)
        total += pivots
        new = _residuals(data, found) if pivots else residual
        changed = fixed[(new[fixed] > 0.0) != (residual[fixed] > 0.0)]
        if len(fixed) == 0 or (status == OPTIMAL and len(changed) == 0):
            return status, found, total
        if status == OPTIMAL:
            basis, residual, growth = found, new, GROWTH
        else:
            always = np.union1d(always, changed)
            growth = GROWTH if len(changed) else BIG_GROWTH
        size = min(n_points, int(growth * max(size, len(always))) + 1)
    return CAPPED, basis, total


def _heaviest(norms: FloatArray, count: int) -> IntArray:
    """Points of largest leverage: without them a reduced problem may have no optimum."""
    if count == 0 or count >= len(norms):
        return np.arange(min(count, len(norms)))
    return np.argpartition(norms, -count)[-count:]


def _residuals(data: _Data, basis: IntArray) -> FloatArray:
    """Residuals of the vertex of `basis`, exactly zero on it."""
    corner = np.ascontiguousarray(np.linalg.inv(data.rows[basis]).T)
    out = np.empty(len(data.rows))
    nudged_residuals(data.rows, data.scores, data.nudges, basis, corner, data.zero, out)
    return out


def _split(
    residual: FloatArray, norms: FloatArray, always: IntArray, size: int
) -> tuple[IntArray, IntArray]:
    """Split points into `always` with the `size` that can change side first, and the others."""
    size = max(size, len(always))
    if size >= len(residual):
        return np.arange(len(residual)), np.empty(0, np.int64)
    key = scan_keys(residual, norms)
    key[always] = -1.0
    order = np.argpartition(key, size)
    return np.sort(order[:size]), order[size:]


def _solve_active(
    data: _Data,
    alpha: float,
    residual: FloatArray,
    active: IntArray,
    pull: FloatArray,
    basis: IntArray,
) -> tuple[int, IntArray, int]:
    """Exact solution over the active points, the others held on their side."""
    eta = np.where(residual > 0.0, 1.0 - alpha, -alpha)
    eta[active] = 0.0
    local = np.searchsorted(active, np.sort(basis))
    part = data.take(active)
    corner = np.zeros((len(basis), len(basis)))
    fixed_pull = pull + data.rows.T @ eta
    status, pivots = descend(
        part.rows, part.scores, part.nudges, data.zero, fixed_pull, alpha, local, corner
    )
    return status, active[local], pivots


def _certified(problem: Problem, basis: IntArray, pull: FloatArray, pivots: int) -> Vertex:
    """Compute everything about a vertex afresh, with the numbers that prove it optimal."""
    low, high = -problem.alpha, 1.0 - problem.alpha
    block, data = problem.rows[basis], _data(problem)
    corner = np.ascontiguousarray(np.linalg.inv(block).T)
    residuals = _residuals(data, basis)
    beta = corner.T @ data.scores[basis]
    off = float(np.abs(data.scores[basis] - block @ beta).max(initial=0.0)) / problem.score_scale
    weights = np.where(residuals > 0.0, high, low)
    weights[basis] = 0.0
    pull = pull + compensated_pull(problem.rows, weights)
    eta = -corner @ pull
    eta -= corner @ (block.T @ eta + pull)
    certificate = Certificate(
        dual_violation=float(np.maximum(eta - high, low - eta).max(initial=0.0)),
        sign_violation=off,
        equality_residual=float(np.abs(block.T @ eta + pull).max(initial=0.0)),
        pivots=pivots,
    )
    return Vertex(basis, corner, residuals, pull, eta, certificate)
