"""The definition of a threshold as a linear program, solved by HiGHS: for tests and as fallback.

The threshold is the smallest ``q'b`` over all optimal b. By complementary slackness these are, for
any one optimal eta of the dual, the b whose residuals are ``>= 0`` where ``eta_i = 1 - alpha``,
``<= 0`` where ``eta_i = -alpha`` and zero elsewhere: a second linear program.
`solve_linear_program` shares no code with the path, so it can be its test.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from trustsets.engine.compiled import FloatArray
from trustsets.errors import TrustSetsError

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult


BOUND_TOL = 1e-9  # Dual values this close to a bound count as equal to it, as on the path.
SOLVER_TOL = 1e-10  # Feasibility tolerances of HiGHS, the smallest it accepts.
SOLVED, INFEASIBLE, UNBOUNDED = 0, 2, 3  # Outcomes as `scipy.optimize.linprog` numbers them.


def solve_linear_program(
    rows: FloatArray, scores: FloatArray, alpha: float | FloatArray, row: FloatArray, weight: float
) -> float:
    """Threshold of one test row by its definition.

    It is infinite, with the sign of the weight, when the dual has no feasible point.

    Parameters
    ----------
    rows, scores : (n, r) and (n,) arrays
        Calibration rows of the basis, well scaled, and scores of size about one.
    alpha : float or (n,) array
        Miscoverage; an array holds that of each calibration point.
    row, weight : (r,) array and float
        Test row in the same coordinates, and its weight u.

    Examples
    --------
    >>> import numpy as np
    >>> solve_linear_program(np.ones((9, 1)), np.arange(9.0), 0.1, np.ones(1), 0.9)
    8.0
    >>> solve_linear_program(np.ones((8, 1)), np.arange(8.0), 0.1, np.ones(1), 0.9)
    inf
    """
    value = solve_face(rows, scores, alpha, row, weight)
    if value is None:
        raise TrustSetsError(
            "HiGHS could not solve this linear program; scale rows and scores to sizes near one."
        )
    return value


def solve_face(
    rows: FloatArray,
    scores: FloatArray,
    alpha: float | FloatArray,
    row: FloatArray,
    weight: float,
    multiplicities: float | FloatArray = 1.0,
    linear: float | FloatArray = 0.0,
) -> float | None:
    """Threshold as in `solve_linear_program`; -inf if it is unbounded, None if HiGHS fails."""
    low, high = -alpha * multiplicities, (1.0 - alpha) * multiplicities
    bounds = np.column_stack([low, high])
    dual = _linprog(-scores, A_eq=rows.T, b_eq=-weight * row - linear, bounds=bounds)
    if dual.status != SOLVED:
        return float(np.copysign(np.inf, weight)) if _ended_as(dual, INFEASIBLE) else None
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
        return -np.inf if _ended_as(face, UNBOUNDED) else None
    return float(face.fun)


def _linprog(cost: FloatArray, **constraints: Any) -> "OptimizeResult":
    """Run HiGHS with its tightest tolerances."""
    tolerances: Any = {
        "primal_feasibility_tolerance": SOLVER_TOL,
        "dual_feasibility_tolerance": SOLVER_TOL,
    }
    from scipy.optimize import linprog

    return linprog(cost, method="highs", options=tolerances, **constraints)


def _ended_as(result: "OptimizeResult", outcome: int) -> bool:
    """Whether a program ended in this outcome, which is an answer and no failure of HiGHS."""
    return result.status == outcome or "unbounded or infeasible" in result.message
