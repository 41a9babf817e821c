"""The base fit: the vertex that all test points start from, and the proof that it is optimal.

A big problem is never solved whole. A sample is solved (recursively), points far from its
solution are taken to stay on their side, the few others are solved exactly, and every point is
checked; if one changed side, the circle closes again around the better solution (Portnoy and
Koenker 1997). Imports `descent`, `kernels`, `oracle` and `problem`.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import qr

from trustsets.engine.descent import CAPPED, OPTIMAL, Data, descend
from trustsets.engine.kernels import compensated_pull, invert, nudged_residuals
from trustsets.engine.oracle import solve_base
from trustsets.engine.problem import FloatArray, IntArray, Problem, scan_keys
from trustsets.errors import InputError

__all__ = [
    "MAX_ROUNDS",
    "Certificate",
    "Vertex",
    "certify",
    "fit_vertex",
    "heaviest",
    "problem_data",
    "run_descent",
]

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
PROGRAM_SIZE = 200_000
"""Largest problem given to HiGHS as a whole when all else failed; it takes about a minute."""
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
        How far a basic ``eta`` leaves ``[-alpha, 1 - alpha]``, times its copies.
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
        parts = (self.dual_violation, self.sign_violation, self.equality_residual)
        return all(part <= CERTIFICATE_TOL for part in parts)


@dataclass(frozen=True, slots=True, eq=False)
class Vertex:
    """An optimal vertex of the base problem.

    Attributes
    ----------
    basis : (rank,) array
        Basic points, by row number of the problem, in increasing order.
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
    """Solve the base problem, from the vertex `start` when one is given.

    Should the rounds end without a proof, they begin again at the solution that HiGHS finds for
    the whole problem as one linear program. Whether there is a proof then, its certificate says.
    """
    data = problem_data(problem)
    if start is None:
        basis, pivots = _starting_basis(data, problem.alpha)
    else:
        basis, pivots = _read_start(start, problem), 0
    proven, vertex = _prove(problem, data, basis, pivots)
    if not proven and len(data.rows) <= PROGRAM_SIZE:
        optimum = solve_base(data.rows, data.scores + data.nudges, data.copies, problem.alpha)
        if optimum is not None:
            basis = _independent_near(data, optimum)
            _, vertex = _prove(problem, data, basis, vertex.certificate.pivots)
    return vertex


def _prove(problem: Problem, data: Data, basis: IntArray, pivots: int) -> tuple[bool, Vertex]:
    """Whether an optimal vertex was found from `basis` and holds its certificate, and it."""
    no_pull = np.zeros(problem.whitening.rank)
    _, basis, more = _close_in(data, problem.alpha, basis)
    vertex = certify(data, problem.alpha, np.sort(basis), no_pull, pivots + more)
    return vertex.certificate.holds, vertex


def _independent_near(data: Data, optimum: FloatArray) -> IntArray:
    """Independent rows whose points lie as near to a solution as can be: almost its basis."""
    key = scan_keys(data.scores + data.nudges - data.rows @ optimum, data.norms)
    order = np.argsort(key)
    chosen: list[int] = []
    for i in order:
        if len(_greedy_rows(data.rows[[*chosen, i]])) > len(chosen):
            chosen.append(int(i))
        if len(chosen) == data.rows.shape[1]:
            break
    return np.array(chosen, dtype=np.int64)


def _read_start(start: IntArray, problem: Problem) -> IntArray:
    """Check a given basis: `rank` different row numbers whose rows are independent."""
    numbers = np.unique(np.asarray(start, dtype=np.int64))
    basis = np.flatnonzero(np.isin(problem.first, numbers))
    if len(basis) == len(numbers) == problem.whitening.rank:
        values = np.linalg.svd(problem.rows[basis], compute_uv=False)
        if values.min(initial=np.inf) > INDEPENDENT_TOL * values.max(initial=0.0):
            return basis
    rank = problem.whitening.rank
    raise InputError(
        f"start must hold {rank} different row numbers of phi_calib whose rows are independent, "
        f"got {start!r}; pass the `basis` of a model fitted on the same data, or None."
    )


def problem_data(problem: Problem) -> Data:
    """Return all points of a problem."""
    arrays = (problem.rows, problem.norms, problem.centred, problem.nudges, problem.copies)
    return Data(*arrays, problem.score_scale)


def _starting_basis(data: Data, alpha: float) -> tuple[IntArray, int]:
    """Basis of an almost optimal vertex by recursion over samples, and the pivots taken."""
    n_points, rank = data.rows.shape
    if n_points <= max(CORE_SIZE, 4 * rank):
        return _independent_rows(data.rows), 0
    sample = _sample(data.rows, min(n_points // 3, _reduced_size(n_points, rank)))
    part = data.take(sample)
    basis, pivots = _starting_basis(part, alpha)
    _, basis, more = _close_in(part, alpha, basis)
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
    """Numbers of `rank` independent rows, as well-conditioned as can be."""
    return _pivoted_rows(rows)[1][: rows.shape[1]]


def _greedy_rows(rows: FloatArray) -> IntArray:
    """Rows picked by pivoted QR of the transpose, as many as are independent."""
    diagonal, order = _pivoted_rows(rows)
    count = int(np.sum(diagonal > INDEPENDENT_TOL * diagonal.max(initial=0.0)))
    return order[:count]


def _pivoted_rows(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """Lengths beyond the rows before, and row numbers, in the order of a pivoted QR."""
    if rows.shape[1] == 0:
        return np.empty(0), np.empty(0, np.int64)
    triangle, order = qr(rows.T, mode="r", pivoting=True, check_finite=False)
    return np.abs(np.diagonal(triangle)), np.asarray(order, dtype=np.int64)


def _close_in(data: Data, alpha: float, basis: IntArray) -> tuple[int, IntArray, int]:
    """Reduce, solve, check, repeat, until no point outside the active set changes side.

    At the end the reduced optimum is optimal for all points: its dual values, together with
    those of the fixed points, are feasible, and every sign agrees with them. A reduced problem
    without an optimum is solved again from where it started, with the points that it should
    have passed on its way out; with all points active there is none.
    """
    n_points, rank = data.rows.shape
    size = n_points if n_points <= CORE_SIZE else _reduced_size(n_points, rank)
    always = heaviest(data.norms, rank)
    total = 0
    residual = _residuals(data, basis)
    for _ in range(MAX_ROUNDS):
        active, fixed = _split(residual, data.norms, np.union1d(basis, always), size)
        status, found, pivots = _solve_active(data, alpha, residual, active, basis)
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


def heaviest(norms: FloatArray, rank: int) -> IntArray:
    """Points of largest leverage: without them a reduced problem may have no optimum."""
    count = LEVERAGE_FACTOR * rank
    if count == 0 or count >= len(norms):
        return np.arange(min(count, len(norms)))
    return np.argpartition(norms, -count)[-count:]


def _residuals(data: Data, basis: IntArray) -> FloatArray:
    """Residuals of the vertex of `basis`, exactly zero on it."""
    out = np.empty(len(data.rows))
    corner = inverse_rows(data.rows, basis)
    nudged_residuals(data.rows, data.norms, data.scores, data.nudges, basis, corner, out)
    return out


def inverse_rows(rows: FloatArray, basis: IntArray) -> FloatArray:
    """Transposed inverse of the basic rows; not a number where they are dependent."""
    corner = np.empty((len(basis), len(basis)))
    if not invert(rows, basis, corner):
        corner[:] = np.nan
    return corner


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
    data: Data,
    alpha: float,
    residual: FloatArray,
    active: IntArray,
    basis: IntArray,
) -> tuple[int, IntArray, int]:
    """Exact solution over the active points, the others held on their side."""
    eta = data.copies * np.where(residual > 0.0, 1.0 - alpha, -alpha)
    eta[active] = 0.0
    local = np.searchsorted(active, np.sort(basis))
    part = data.take(active)
    status, pivots, _ = run_descent(part, data.rows.T @ eta, alpha, local)
    return status, active[local], pivots


def run_descent(
    data: Data, pull: FloatArray, alpha: float, basis: IntArray
) -> tuple[int, int, FloatArray]:
    """Descend from `basis`, which is changed in place: status, pivots and the last edge."""
    edge = np.zeros(len(basis))
    status, pivots = descend(data, pull, alpha, basis, edge)
    return status, pivots, edge


def certify(data: Data, alpha: float, basis: IntArray, pull: FloatArray, pivots: int) -> Vertex:
    """Compute everything about a vertex afresh, with the numbers that prove it optimal."""
    low, high = -alpha * data.copies, (1.0 - alpha) * data.copies
    block = data.rows[basis]
    corner = inverse_rows(data.rows, basis)
    residuals = _residuals(data, basis)
    beta = corner.T @ data.scores[basis]
    off = float(np.abs(data.scores[basis] - block @ beta).max(initial=0.0)) / data.scale
    weights = np.where(residuals > 0.0, high, low)
    weights[basis] = 0.0
    pull = pull + compensated_pull(data.rows, weights)
    eta = -corner @ pull
    eta -= corner @ (block.T @ eta + pull)
    certificate = Certificate(
        dual_violation=float(np.maximum(eta - high[basis], low[basis] - eta).max(initial=0.0)),
        sign_violation=off,
        equality_residual=float(np.abs(block.T @ eta + pull).max(initial=0.0)),
        pivots=pivots,
    )
    return Vertex(basis, corner, residuals, pull, eta, certificate)
