"""A vertex of the base problem, and the certificate that proves one optimal."""

from dataclasses import dataclass

import numpy as np

from trustsets.engine.active_set import loss_slopes
from trustsets.engine.compiled import FloatArray, IntArray
from trustsets.engine.descent import PointSet
from trustsets.engine.kernels import compensated_sum, invert, nudged_residuals

__all__ = ["Certificate", "Vertex", "certify", "vertex_residuals"]

CERTIFICATE_TOL = 1e-8
"""Largest accepted violation in a certificate."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Numbers that prove a vertex optimal; all are zero in exact arithmetic.

    Let ``eta_i`` be ``1 - alpha`` above the fit and ``-alpha`` below it, and let the equality
    ``Q' eta = 0`` determine it on the basic points. Then primal and dual values agree. It remains
    to show that the basic ``eta`` lie in their box and that the equality holds.

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
    """A vertex over a `PointSet`, with its certificate.

    Attributes
    ----------
    basic_points : (rank,) array
        Row numbers, in the point set, of the points with residual zero; in increasing order.
    inverse : (rank, rank) array
        Inverse basis, transposed (see `kernels`).
    residuals : (n,) array
        Of the nudged scores; exactly zero at the basic points.
    nonbasic_sum : (rank,) array
        Sum of ``eta_i Q_i`` over nonbasic points, and the linear term of the problem.
    eta : (rank,) array
        Dual values of the basic points.
    certificate : Certificate
    """

    basic_points: IntArray
    inverse: FloatArray
    residuals: FloatArray
    nonbasic_sum: FloatArray
    eta: FloatArray
    certificate: Certificate


def vertex_residuals(data: PointSet, basic: IntArray, inverse: FloatArray) -> FloatArray:
    """Residuals of all points at the vertex of the `basic` ones, exactly zero there."""
    out = np.empty(len(data.rows))
    arrays = data.rows, data.norms, data.centred_scores, data.nudges
    nudged_residuals(*arrays, basic, inverse, out)
    return out


def inverse_basis(rows: FloatArray, basic: IntArray) -> FloatArray:
    """Transposed inverse of the basic rows; NaN where they are dependent."""
    inverse = np.empty((len(basic), len(basic)))
    if not invert(rows, basic, inverse):
        inverse[:] = np.nan
    return inverse


def certify(
    data: PointSet, alpha: float, basic: IntArray, linear: FloatArray, pivots: int
) -> Vertex:
    """Compute everything about a vertex anew, with the numbers that prove it optimal."""
    low, high = -alpha * data.copies[basic], (1.0 - alpha) * data.copies[basic]
    block = data.rows[basic]
    inverse = inverse_basis(data.rows, basic)
    residuals = vertex_residuals(data, basic, inverse)
    beta = inverse.T @ data.centred_scores[basic]
    off = float(np.abs(data.centred_scores[basic] - block @ beta).max(initial=0.0))
    slopes = loss_slopes(data.copies, residuals > 0.0, alpha)
    slopes[basic] = 0.0
    total = linear + compensated_sum(data.rows, slopes)
    eta = -inverse @ total
    # One step of refinement removes the error of the inverse.
    eta -= inverse @ (block.T @ eta + total)
    certificate = Certificate(
        dual_violation=float(np.maximum(eta - high, low - eta).max(initial=0.0)),
        sign_violation=off / data.score_scale,
        equality_residual=float(np.abs(block.T @ eta + total).max(initial=0.0)),
        pivots=pivots,
    )
    return Vertex(basic, inverse, residuals, total, eta, certificate)
