r"""The definition of a threshold as a linear program, solved by HiGHS: for tests and fallback.

With weight u on the test row q, the dual problem is

.. math:: \max_\eta\ \eta's \quad\text{s.t.}\quad Q'\eta = -u q,\quad -\alpha\le\eta_i\le 1-\alpha.

The threshold is the smallest :math:`q'b` over all optimal b. By complementary slackness these
are, for any one optimal :math:`\eta`, the b whose residuals are :math:`\ge 0` where
:math:`\eta_i = 1-\alpha`, :math:`\le 0` where :math:`\eta_i=-\alpha` and zero elsewhere: a second
linear program. Imports `problem` and `trustsets.errors`; it shares no code with the path.
"""

from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, linprog

from trustsets.engine.problem import FloatArray, scan_keys
from trustsets.errors import TrustSetsError

__all__ = ["solve_base", "solve_oracle", "solve_reduced"]

BOUND_TOL = 1e-9
"""Dual values this close to a bound are at it, as on the path."""
SOLVER_TOL = 1e-10
"""Feasibility tolerances of HiGHS, the smallest it takes."""
SOLVED, INFEASIBLE, UNBOUNDED = 0, 2, 3
"""Outcomes in the words of `scipy.optimize.linprog`."""
FIRST_ACTIVE = 2000
"""Points in the first reduced program; each failure takes four times as many."""


def solve_oracle(
    rows: FloatArray, scores: FloatArray, alpha: float, row: FloatArray, level: float
) -> float:
    """Threshold of one test row by its definition.

    Parameters
    ----------
    rows : (n, r) array
        Calibration rows of the basis, well scaled.
    scores : (n,) array
        Scores of size about one.
    alpha : float
    row : (r,) array
        Test row in the same coordinates.
    level : float
        Weight u of the test row.

    Returns
    -------
    float
        ``inf`` (for a positive level) or ``-inf`` when the dual has no feasible point.

    Examples
    --------
    >>> import numpy as np
    >>> solve_oracle(np.ones((9, 1)), np.arange(9.0), 0.1, np.ones(1), 0.9)
    8.0
    >>> solve_oracle(np.ones((8, 1)), np.arange(8.0), 0.1, np.ones(1), 0.9)
    inf
    """
    found = _solve(rows, scores, np.ones(len(rows)), alpha, row, level, np.zeros(len(row)))
    if found is None:
        raise TrustSetsError(
            "HiGHS could not solve this linear program; scale rows and scores to sizes near one."
        )
    return float(np.copysign(np.inf, level)) if np.isnan(found[0]) else found[0]


def solve_reduced(
    rows: FloatArray,
    scores: FloatArray,
    copies: FloatArray,
    residuals: FloatArray,
    norms: FloatArray,
    alpha: float,
    row: FloatArray,
    level: float,
) -> float | None:
    """Solve for the same threshold, given the residuals of a nearby solution; None on failure.

    Points whose residual is large for the length of their row are held on their side. If the
    solution leaves all of them there, it is complementary to a feasible dual of the whole
    problem, so it solves that too; otherwise, or when the small problem has no solution, more
    points take part, in the end all. A point may stand for several `copies`.
    """
    order = np.argsort(scan_keys(residuals, norms))
    size = FIRST_ACTIVE
    while True:
        near, far = order[:size], order[size:]
        eta = copies[far] * np.where(residuals[far] > 0.0, 1.0 - alpha, -alpha)
        pull = eta @ rows[far]
        found = _solve(rows[near], scores[near], copies[near], alpha, row, level, pull)
        if len(far) == 0:
            if found is None:
                return None
            return float(np.copysign(np.inf, level)) if np.isnan(found[0]) else found[0]
        if found is not None and np.isfinite(found[0]):
            value, beta = found
            if np.all((scores[far] - rows[far] @ beta) * eta >= 0.0):
                return value
        size *= 4


def solve_base(
    rows: FloatArray, scores: FloatArray, copies: FloatArray, alpha: float
) -> FloatArray | None:
    """Return a b that minimises the quantile loss, by one program over all points, or None."""
    bounds = np.column_stack([-alpha * copies, (1.0 - alpha) * copies])
    dual = _linprog(-scores, A_eq=rows.T, b_eq=np.zeros(rows.shape[1]), bounds=bounds)
    return -np.asarray(dual.eqlin.marginals) if dual.status == SOLVED else None


def _solve(
    rows: FloatArray,
    scores: FloatArray,
    copies: FloatArray,
    alpha: float,
    row: FloatArray,
    level: float,
    pull: FloatArray,
) -> tuple[float, FloatArray] | None:
    """Smallest optimal value and its b; nan without a dual point, -inf if unbounded, or None."""
    low, high = -alpha * copies, (1.0 - alpha) * copies
    bounds = np.column_stack([low, high])
    dual = _linprog(-scores, A_eq=rows.T, b_eq=-level * row - pull, bounds=bounds)
    if dual.status != SOLVED:
        return (np.nan, np.empty(0)) if _ended_as(dual, INFEASIBLE) else None
    at_high, at_low = dual.x > high - BOUND_TOL, dual.x < low + BOUND_TOL
    inside = ~(at_high | at_low)
    face = _linprog(
        row,
        A_ub=np.vstack([rows[at_high], -rows[at_low]]),
        b_ub=np.concatenate([scores[at_high], -scores[at_low]]),
        A_eq=rows[inside],
        b_eq=scores[inside],
        bounds=(None, None),
    )
    if face.status != SOLVED:
        return (-np.inf, np.empty(0)) if _ended_as(face, UNBOUNDED) else None
    return float(face.fun), face.x


def _linprog(cost: FloatArray, **constraints: Any) -> OptimizeResult:
    """Run HiGHS with its tightest tolerances."""
    tolerances: Any = {
        "primal_feasibility_tolerance": SOLVER_TOL,
        "dual_feasibility_tolerance": SOLVER_TOL,
    }
    return linprog(cost, method="highs", options=tolerances, **constraints)


def _ended_as(result: OptimizeResult, outcome: int) -> bool:
    """Whether a program ended in an outcome that is an answer; others are failures of HiGHS."""
    return result.status == outcome or "unbounded or infeasible" in result.message
