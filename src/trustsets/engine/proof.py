"""The proof of one threshold, in numbers that can be checked without the engine."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trustsets.engine.active_set import loss_slopes
from trustsets.engine.compiled import FloatArray, IntArray
from trustsets.engine.extreme import find_ray, fit_extreme
from trustsets.engine.fit import problem_points
from trustsets.engine.model import QuantileModel
from trustsets.engine.path import WEIGHT_TOL
from trustsets.engine.problem import RESOLUTION
from trustsets.engine.reading import read_test_alphas, read_test_rows, read_weights
from trustsets.engine.vertex import Vertex, certify
from trustsets.engine.whitening import Whitening
from trustsets.errors import InputError, TrustSetsError
from trustsets.status import Status

__all__ = ["ThresholdProof", "prove_threshold"]


@dataclass(frozen=True, slots=True, eq=False)
class ThresholdProof:
    """Numbers that prove a threshold, given the calibration data and the test row.

    A finite threshold is ``row @ coefficients``. Let ``r = scores - phi @ coefficients``, and let
    ``eta_i`` be ``1 - alpha_i`` where ``r_i > 0``, ``-alpha_i`` where ``r_i < 0``, and the given
    `duals` at `points`, where ``r_i`` is zero up to rounding. If every ``eta_i`` lies in
    ``[-alpha_i, 1 - alpha_i]`` and ``phi.T @ eta = -weight * row``, no coefficients are better.

    An infinite threshold has a ray d. Along it the loss grows by
    ``sum_i max(alpha_i x_i, (alpha_i - 1) x_i)`` with ``x = phi @ d``. If that is less than
    ``weight * row @ d``, the objective falls without bound.

    Attributes
    ----------
    threshold : float
    weight : float
        Weight of the test row, 1e-9 below the one asked for: where the optimum at that is not
        unique, the optimum just below it is the smallest one.
    basic_points : (rank,) array
        Row numbers of calibration points that determine the fit; empty for an infinite threshold.
    points, duals : (k,) arrays
        Row numbers of all calibration points on the fit, and their dual values.
    coefficients : (p,) array
        Of the basis functions, or the ray of an infinite threshold.
    """

    threshold: float
    weight: float
    basic_points: IntArray
    points: IntArray
    duals: FloatArray
    coefficients: FloatArray


def prove_threshold(
    model: QuantileModel,
    phi_x: ArrayLike,
    weight: float | None = None,
    *,
    alpha: float | None = None,
) -> ThresholdProof:
    """Compute the threshold of one test row with the numbers that prove it.

    Parameters
    ----------
    model : QuantileModel
    phi_x : (p,) array
        Basis row of the test point.
    weight, alpha : float, optional
        As in `QuantileModel.thresholds`.

    Returns
    -------
    ThresholdProof

    Examples
    --------
    >>> import numpy as np
    >>> from trustsets.engine import fit_quantiles
    >>> model = fit_quantiles(np.ones((19, 1)), np.arange(19.0), alpha=0.1)
    >>> proof = prove_threshold(model, [1.0])
    >>> proof.threshold, proof.points, proof.duals.round(6)
    (17.0, array([17]), array([-0.1]))
    """
    phi = read_test_rows(np.atleast_2d(np.asarray(phi_x, dtype=np.float64)), model.n_columns)
    if len(phi) != 1:
        raise InputError(f"phi_x must be one row, got {len(phi)}; prove thresholds one by one.")
    found = model.thresholds(phi, weight, alpha=alpha)
    default = model.alpha if model.alphas is None else None
    given = float(read_weights(weight, read_test_alphas(alpha, default, 1), 1)[0])
    below = given - WEIGHT_TOL
    value, status = float(found.values[0]), found.status[0]
    if status in (Status.ROUNDED_UP, Status.UNCERTIFIED):
        raise _no_proof()
    goal = below * model._problem.whitening.apply(phi)[0]
    if np.isfinite(value):
        return _prove_finite(model, value, below, goal)
    if status == Status.UNSEEN_DIRECTION:
        ray = np.copysign(1.0, given) * _unseen_direction(model._problem.whitening, phi[0])
        return _infinite(value, below, ray)
    edge = find_ray(model._problem, model._scan_order, model._sample, goal)
    if edge is None or not np.isfinite(edge).all():
        raise _no_proof()
    return _infinite(value, below, _in_basis(model._problem.whitening, edge))


def _prove_finite(
    model: QuantileModel, value: float, weight: float, goal: FloatArray
) -> ThresholdProof:
    problem = model._problem
    vertex = _optimal_vertex(model, goal)
    basic = vertex.basic_points
    beta = np.asarray(np.linalg.solve(problem.rows[basic], problem.scores[basic]), np.float64)
    eta = loss_slopes(problem.copies, vertex.residuals > 0.0, problem.alpha)
    eta[basic] = vertex.eta
    off = np.abs(problem.scores - problem.rows @ beta)
    near = off <= RESOLUTION * problem.score_scale * np.maximum(problem.norms, 1.0)
    near[basic] = True
    points = np.flatnonzero(near[problem.point])
    # Copies share the dual value of their point, and each moves by what its own alpha differs.
    duals = (eta / problem.copies)[problem.point[points]]
    if problem.alphas is not None:
        duals = duals + (problem.alpha - problem.alphas[points])
    coefficients = np.ldexp(_in_basis(problem.whitening, beta), problem.exponent)
    return ThresholdProof(value, weight, problem.first[basic], points, duals, coefficients)


def _optimal_vertex(model: QuantileModel, goal: FloatArray) -> Vertex:
    """Find the optimal vertex of a goal, computed and certified over all points."""
    problem, scan_order = model._problem, model._scan_order
    try:
        _, found = fit_extreme(problem, scan_order, model._sample, goal, [])
    except np.linalg.LinAlgError:  # basic rows on the way became dependent
        found = None
    if found is None:
        raise _no_proof()
    linear = problem.linear + goal
    data, basic = problem_points(problem), found.basic_points
    vertex = certify(data, problem.alpha, basic, linear, found.certificate.pivots)
    if not vertex.certificate.holds:
        raise _no_proof()
    return vertex


def _no_proof() -> TrustSetsError:
    return TrustSetsError(
        "rounding errors prevent a proof of this threshold; scale the basis functions to sizes "
        "near one, or use fewer of them."
    )


def _infinite(value: float, weight: float, ray: FloatArray) -> ThresholdProof:
    nobody = np.empty(0, np.int64)
    return ThresholdProof(value, weight, nobody, nobody, np.empty(0), ray)


def _in_basis(whitening: Whitening, vector: FloatArray) -> FloatArray:
    """Coefficients of the basis functions, from those of whitened rows."""
    out = np.zeros(len(whitening.scale))
    out[whitening.independent] = whitening.transform @ vector
    return np.asarray(out * whitening.scale)


def _unseen_direction(whitening: Whitening, row: FloatArray) -> FloatArray:
    """Coefficients that are zero on all calibration rows, and positive on this row."""
    scaled = row * whitening.scale
    gaps = scaled[whitening.dependent] - scaled[whitening.independent] @ whitening.relation
    worst = int(np.argmax(np.abs(gaps)))
    out = np.zeros(len(row))
    out[whitening.independent] = -whitening.relation[:, worst]
    out[whitening.dependent[worst]] = 1.0
    return np.asarray(np.copysign(1.0, gaps[worst]) * out * whitening.scale)
