"""Fits of data that changed a little, started from what is known about the fit before.

The points through which a fit passes, and those near it, seldom change when points are added or
removed. An optimal vertex whose dual values all lie strictly inside their box is the only one (see
`process`), so a fit that starts there has the bits of one that starts from nothing.
"""

import numpy as np
from numpy.typing import ArrayLike

from trustsets.engine.compiled import FloatArray, IntArray
from trustsets.engine.fit import INDEPENDENT_TOL, refit_vertex
from trustsets.engine.model import QuantileModel, fit_problem, make_model
from trustsets.engine.problem import build_problem, scan_keys
from trustsets.engine.process import is_unique

__all__ = ["near_points", "refit_quantiles"]

NEAR_FACTOR = 3
"""Points near the fit that are kept besides the basic ones, in units of the rank."""


def near_points(model: QuantileModel) -> IntArray:
    """Row numbers of the basic points of a fit, and then of those nearest to it.

    Examples
    --------
    >>> from trustsets.engine import fit_quantiles
    >>> near_points(fit_quantiles(np.ones((99, 1)), np.arange(99.0), alpha=0.1))[0]
    np.int64(89)
    """
    problem, vertex = model._problem, model._vertex
    key = scan_keys(vertex.residuals, problem.norms)
    key[vertex.basic_points] = -1.0
    count = min((1 + NEAR_FACTOR) * model.rank, len(key))
    nearest = np.argpartition(key, count - 1)[:count] if count else np.empty(0, np.int64)
    return problem.first[nearest[np.argsort(key[nearest], kind="stable")]]


def refit_quantiles(
    phi_calib: ArrayLike, scores_calib: ArrayLike, alpha: float, near: IntArray
) -> QuantileModel:
    """Fit as `fit_quantiles` does, from points near the solution.

    Parameters
    ----------
    phi_calib, scores_calib, alpha
        As in `fit_quantiles`.
    near : array of int
        Row numbers of points near the fit, the nearest first, such as those of `near_points` for
        nearly the same data. They affect the time that the fit takes, and nothing else.

    Returns
    -------
    QuantileModel

    Examples
    --------
    >>> from trustsets.engine import fit_quantiles
    >>> phi, scores = np.ones((100, 1)), np.arange(100.0)
    >>> near = near_points(fit_quantiles(phi[:99], scores[:99], alpha=0.1))
    >>> refit_quantiles(phi, scores, 0.1, near).thresholds(phi[:1]).values
    array([90.])
    """
    problem = build_problem(phi_calib, scores_calib, alpha)
    basic = _independent(problem.rows, problem.point[near])
    if len(basic) == problem.whitening.rank:
        model = make_model(problem, refit_vertex(problem, basic))
        if model.certificate.holds and is_unique(model._vertex, problem):
            return model
    return fit_problem(problem)


def _independent(rows: FloatArray, candidates: IntArray) -> IntArray:
    """The first candidates whose rows are independent of those before, by Gram and Schmidt."""
    chosen: list[int] = []
    units = np.zeros((rows.shape[1], rows.shape[1]))
    for number in candidates.tolist():
        if len(chosen) == len(units):
            break
        known = units[: len(chosen)]
        rest = rows[number] - known.T @ (known @ rows[number])
        # The second time removes what rounding left.
        rest -= known.T @ (known @ rest)
        length = float(np.linalg.norm(rest))
        if length > np.sqrt(INDEPENDENT_TOL) * float(np.linalg.norm(rows[number])):
            units[len(chosen)] = rest / length
            chosen.append(number)
    return np.array(chosen, dtype=np.int64)
