"""The base fit: the optimal vertex without a test point, from which all paths start.

A large problem is never solved as a whole. A sample is solved first, recursively, and its solution
is the centre of the first active set.
"""

import numpy as np

from trustsets.engine.active_set import ActiveSet, loss_slopes
from trustsets.engine.compiled import FloatArray, IntArray
from trustsets.engine.descent import PointSet, descend
from trustsets.engine.linear_program import solve_base
from trustsets.engine.problem import Problem, scan_keys
from trustsets.engine.vertex import Vertex, certify, inverse_basis, vertex_residuals
from trustsets.errors import InputError

__all__ = ["fit_vertex", "high_leverage", "problem_points", "refit_vertex"]

CORE_SIZE = 3000
"""Problems with up to this many points are solved as a whole."""
ACTIVE_FACTOR = 1.0
"""Active points around the solution of a sample, in units of (rank * n) ** (2/3)."""
GROWTH, BIG_GROWTH = 1.5, 8.0
"""Growth of the active set when points changed side, and when it is not known which are missing."""
LEVERAGE_FACTOR = 20
"""Points of largest leverage that are always active, in units of the rank."""
CHANGED_FACTOR = 60
"""Active points of a problem that changed a little, in units of its rank and of the changes."""
INDEPENDENT_TOL = 1e-8
"""A row depends on those chosen before it if its part outside them is below this share."""
PROGRAM_SIZE = 200_000
"""Largest problem given to HiGHS as a whole when all else failed; it takes about a minute."""


def fit_vertex(problem: Problem, start: IntArray | None = None) -> Vertex:
    """Solve the base problem, from the basic points `start` when they are given.

    If the active sets end without a proof, they start again at the solution that HiGHS finds for
    all points as one linear program. The certificate of the result says whether it is proven.
    """
    data = problem_points(problem)
    if start is None:
        basic, pivots = _starting_points(data, problem.alpha)
    else:
        basic, pivots = _read_start(start, problem), 0
    vertex = _solve_and_certify(data, problem.alpha, basic, pivots)
    if not vertex.certificate.holds and len(data.rows) <= PROGRAM_SIZE:
        nudged = data.centred_scores + data.nudges
        optimum = solve_base(data.rows, nudged, data.copies, problem.alpha, problem.linear)
        if optimum is not None:
            basic = _independent_near(data, optimum)
            vertex = _solve_and_certify(data, problem.alpha, basic, vertex.certificate.pivots)
    return vertex


def refit_vertex(problem: Problem, basic: IntArray, n_changed: int | None = None) -> Vertex:
    """Solve from the basic points of an optimal vertex of nearly the same problem.

    That is one of another alpha or, if `n_changed` is given, one to which so many points came, or
    from which they went.
    """
    rank, size = problem.whitening.rank, None
    if n_changed is not None:
        size = CHANGED_FACTOR * (rank + n_changed)
    return _solve_and_certify(problem_points(problem), problem.alpha, basic, 0, size)


def _solve_and_certify(
    data: PointSet, alpha: float, basic: IntArray, pivots: int, size: int | None = None
) -> Vertex:
    basic, more = _solve(data, alpha, basic, size)
    return certify(data, alpha, np.sort(basic), data.linear(), pivots + more)


def _solve(
    data: PointSet, alpha: float, basic: IntArray, size: int | None = None
) -> tuple[IntArray, int]:
    """Basic points of the last vertex that active sets lead to from `basic`, and the pivots."""
    fit = _BaseFit(data, alpha, basic, size)
    fit.run()
    return fit.found, fit.pivots


class _BaseFit(ActiveSet):
    """The base problem by active sets, which begin around the vertex of the `basic` points."""

    def __init__(
        self, data: PointSet, alpha: float, basic: IntArray, size: int | None = None
    ) -> None:
        n_points, rank = data.rows.shape
        self.data, self.alpha, self.basic, self.found = data, alpha, basic, basic
        self.linear = data.linear()
        self.size = n_points if n_points <= CORE_SIZE else _reduced_size(n_points, rank)
        if size is not None:
            self.size = min(self.size, size)
        self.always = high_leverage(data.norms, rank)
        self.residuals = self.new_residuals = self._residuals()
        self.pivots = 0

    def _residuals(self) -> FloatArray:
        inverse = inverse_basis(self.data.rows, self.found)
        return vertex_residuals(self.data, self.found, inverse)

    def choose(self) -> IntArray:
        """Points that can change side first, with the basic ones and those of high leverage."""
        always = np.union1d(self.basic, self.always)
        size = max(self.size, len(always))
        if size >= len(self.residuals):
            return np.arange(len(self.residuals))
        key = scan_keys(self.residuals, self.data.norms)
        key[always] = -1.0
        return np.sort(np.argpartition(key, size)[:size])

    def solve_active(self) -> int:
        """Descend over the active points."""
        slopes = loss_slopes(self.data.copies, self.residuals > 0.0, self.alpha)
        slopes[self.active] = 0.0
        local = np.searchsorted(self.active, np.sort(self.basic))
        part = self.data.take(self.active)
        linear = self.linear + self.data.rows.T @ slopes
        status, pivots, _ = descend(part, linear, self.alpha, local)
        self.found = self.active[local]
        self.pivots += pivots
        self.new_residuals = self._residuals() if pivots else self.residuals
        return status

    def wrong_points(self) -> IntArray:
        """Fixed points whose residual changed its sign."""
        is_wrong = (self.new_residuals > 0.0) != (self.residuals > 0.0)
        is_wrong[self.active] = False
        return np.flatnonzero(is_wrong)

    def recentre(self, wrong: IntArray) -> None:
        """Choose the next active set around the new solution."""
        self.basic, self.residuals = self.found, self.new_residuals
        self._grow(GROWTH)

    def is_final(self, status: int) -> bool:
        """With all points active there are no more to add."""
        return len(self.active) == len(self.residuals)

    def enlarge(self) -> None:
        """Start again from the same vertex, with the points that the failed solution passed."""
        wrong = self.wrong_points()
        self.always = np.union1d(self.always, wrong)
        self._grow(GROWTH if len(wrong) else BIG_GROWTH)

    def _grow(self, factor: float) -> None:
        size = int(factor * max(self.size, len(self.always))) + 1
        self.size = min(len(self.residuals), size)


def _independent_near(data: PointSet, optimum: FloatArray) -> IntArray:
    """Points with independent rows that lie nearest to a solution: almost its basic points."""
    key = scan_keys(data.centred_scores + data.nudges - data.rows @ optimum, data.norms)
    chosen: list[int] = []
    for i in np.argsort(key):
        if len(_greedy_rows(data.rows[[*chosen, i]])) > len(chosen):
            chosen.append(int(i))
        if len(chosen) == data.rows.shape[1]:
            break
    return np.array(chosen, dtype=np.int64)


def _read_start(start: IntArray, problem: Problem) -> IntArray:
    """Check given basic points: `rank` different row numbers whose rows are independent."""
    rank = problem.whitening.rank
    numbers = np.unique(np.asarray(start, dtype=np.int64))
    basic = np.flatnonzero(np.isin(problem.first, numbers))
    if len(basic) == len(numbers) == rank:
        values = np.linalg.svd(problem.rows[basic], compute_uv=False)
        if values.min(initial=np.inf) > INDEPENDENT_TOL * values.max(initial=0.0):
            return basic
    raise InputError(
        f"start must hold {rank} different row numbers of phi_calib whose rows are independent, "
        f"got {start!r}; pass the `basic_points` of a model fitted on the same data, or None."
    )


def problem_points(problem: Problem) -> PointSet:
    """Return all points of a problem."""
    arrays = (problem.rows, problem.norms, problem.centred_scores, problem.nudges)
    return PointSet(*arrays, problem.copies, problem.tilt, problem.score_scale)


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
    if len(_greedy_rows(rows[chosen])) == rows.shape[1]:
        return chosen
    return np.union1d(chosen, _independent_rows(rows))


def _independent_rows(rows: FloatArray) -> IntArray:
    """Numbers of `rank` independent rows that a pivoted QR makes well conditioned."""
    return _pivoted_rows(rows)[1][: rows.shape[1]]


def _greedy_rows(rows: FloatArray) -> IntArray:
    """Rows picked by pivoted QR of the transpose, as many as are independent."""
    diagonal, order = _pivoted_rows(rows)
    count = int(np.sum(diagonal > INDEPENDENT_TOL * diagonal.max(initial=0.0)))
    return order[:count]


def _pivoted_rows(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """Lengths outside the rows before, and row numbers, in the order of a pivoted QR."""
    if rows.shape[1] == 0:
        return np.empty(0), np.empty(0, np.int64)
    from scipy.linalg import qr

    triangle, order = qr(rows.T, mode="r", pivoting=True, check_finite=False)
    return np.abs(np.diagonal(triangle)), np.asarray(order, dtype=np.int64)


def high_leverage(norms: FloatArray, rank: int) -> IntArray:
    """Points of largest leverage: without them a reduced problem may have no optimum."""
    count = LEVERAGE_FACTOR * rank
    if count == 0 or count >= len(norms):
        return np.arange(min(count, len(norms)))
    return np.argpartition(norms, -count)[-count:]
