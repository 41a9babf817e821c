"""The calibration problem as the solvers see it: whitened rows, and scores in general position.

Thresholds are exact for scores that were merged at `RESOLUTION`, and the nudges that break ties
make every solver end; docs/engine.md says why ("Ties and rounding").
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from trustsets.engine.compiled import FloatArray, IntArray
from trustsets.engine.copies import distinct_points
from trustsets.engine.kernels import compensated_sum
from trustsets.engine.reading import read_alphas, read_matrix, read_scores
from trustsets.engine.whitening import Whitening, fit_whitening

__all__ = ["Problem", "build_problem", "coarsen", "scan_keys"]

RESOLUTION = 2.0**-38
"""Scores closer than this share of the score scale (about 4e-12) count as equal: residuals carry
rounding errors of up to 1e-14, which a difference that decides a sign must exceed clearly."""
PERTURBATION = 2.0**-37
"""Largest nudge that breaks ties, as a share of the score scale."""
WIDEST_RANGE = 2.0**20
"""Scores beyond this many times the typical size have no influence on the score scale."""
CONSTANT_TOL = 1e-11
"""The function class contains constants if it reproduces the constant 1 this well."""
SHORTEST = 1e-200
"""A whitened row shorter than this never changes side."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Calibration data as the solvers see it.

    Attributes
    ----------
    rows : (n, rank) array
        Whitened basis rows.
    norms : (n,) array
        Their lengths.
    scores : (n,) array
        Scores over ``2 ** exponent``, with scores that are too close to tell apart made equal to
        the largest of them: thresholds are sums of these, times ``2 ** exponent``.
    centred_scores : (n,) array
        The scores less their most frequent value where the function class contains constants,
        else the scores. Solvers use these: residuals of points at that value are then exact.
    nudges : (n,) array
        Small amounts that break ties and keep the order of scores. They are stored apart from
        the scores, because a sum of the two would lose most digits of the nudge.
    copies : (n,) array
        How many equal calibration points (basis row and score) each point stands for.
    first : (n,) array
        Row number of the first of them in the calibration data.
    point : (n_rows,) array
        Number of the point that each row of the calibration data became.
    alpha : float
        Miscoverage; the mean where every row has its own.
    alphas : (n_rows,) array or None
        Miscoverage of every row of the calibration data, where they were given one by one.
    tilt : (n,) array
        How much `alpha` exceeds the alphas of the point's rows, summed over its copies.
    linear : (rank,) array
        Sum of ``tilt_i Q_i``. Because ``loss_a(r) = loss_b(r) + (b - a) r`` for any two alphas a
        and b, the problem with an alpha for each point is that with one alpha and this linear term.
    score_scale : float
        The size of the largest scores, outliers apart, to which tolerances refer.
    exponent : int
        The largest score lies between ``2 ** (exponent - 1)`` and ``2 ** exponent``. Powers of two
        change no digit of a score, so thresholds scale with scores bit for bit.
    whitening : Whitening
        The map that made `rows`.
    """

    rows: FloatArray
    norms: FloatArray
    scores: FloatArray
    centred_scores: FloatArray
    nudges: FloatArray
    copies: FloatArray
    first: IntArray
    point: IntArray
    alpha: float
    alphas: FloatArray | None
    tilt: FloatArray
    linear: FloatArray
    score_scale: float
    exponent: int
    whitening: Whitening


def build_problem(phi: ArrayLike, scores: ArrayLike, alpha: ArrayLike) -> Problem:
    """Validate the data, merge equal points, whiten the rows and break ties between scores.

    Parameters
    ----------
    phi : (n, p) array
    scores : (n,) array
    alpha : float or (n,) array in (0, 1)
    """
    matrix = read_matrix(phi, "phi_calib")
    values = read_scores(scores, len(matrix))
    given = read_alphas(alpha, len(matrix), "row of phi_calib")
    # The mean of equal numbers may differ from them in the last bit.
    one_alpha = float(np.clip(given.mean(), given.min(), given.max()))
    exponent = int(np.frexp(np.abs(values).max())[1])
    values = np.ldexp(values, -exponent)
    first, copies, point = distinct_points(matrix, values)
    tilts = np.broadcast_to(one_alpha - given, point.shape)
    tilt = np.asarray(np.bincount(point, tilts), dtype=np.float64)
    if len(first) < len(values):
        matrix, values = matrix[first], values[first]
    whitening = fit_whitening(matrix)
    rows = whitening.apply(matrix)
    scale = _score_scale(_centre(values, rows), copies, float(given.min()))
    values = _merge_close(values, RESOLUTION * scale)
    return Problem(
        rows=rows,
        norms=np.sqrt(np.einsum("ij,ij->i", rows, rows)),
        scores=values,
        centred_scores=_centre(values, rows),
        nudges=_break_ties(values, scale),
        copies=copies,
        first=first,
        point=point,
        alpha=one_alpha,
        alphas=given if given.ndim else None,
        tilt=tilt,
        linear=compensated_sum(rows, tilt) if tilt.any() else np.zeros(whitening.rank),
        score_scale=scale,
        exponent=exponent,
        whitening=whitening,
    )


def coarsen(problem: Problem, resolution: float) -> Problem:
    """Return the problem with scores closer than `resolution` (of the scale) rounded up."""
    scores = _merge_close(problem.scores, resolution * problem.score_scale)
    return replace(
        problem,
        scores=scores,
        centred_scores=_centre(scores, problem.rows),
        nudges=_break_ties(scores, problem.score_scale),
    )


def scan_keys(residuals: FloatArray, norms: FloatArray) -> FloatArray:
    """Least distance ``|r_i| / |Q_i|`` that the solution moves before point i changes side."""
    out = np.full(len(norms), np.inf)
    np.divide(np.abs(residuals), norms, out=out, where=norms > SHORTEST)
    return out


def _centre(scores: FloatArray, rows: FloatArray) -> FloatArray:
    """Subtract the most frequent score if the class contains constants, which moves all fits."""
    constant = rows.T @ np.ones(len(rows)) / len(rows)
    if np.abs(rows @ constant - 1.0).max() > CONSTANT_TOL:
        return scores
    values, counts = np.unique(scores, return_counts=True)
    return np.asarray(scores - values[np.argmax(counts)])


def _score_scale(centred: FloatArray, copies: FloatArray, alpha: float) -> float:
    """Size of the largest centred scores; a few outliers do not count.

    Rounding errors of residuals are relative to this size. The typical score would be a poor
    measure: for a classifier that is nearly always right, the fit lies among few large scores.
    """
    size = np.abs(centred)
    order = np.argsort(size)
    passed = np.cumsum(copies[order])
    typical = size[order[np.searchsorted(passed, (1.0 - 0.25 * alpha) * passed[-1])]]
    return float(min(size.max(), WIDEST_RANGE * typical or np.inf)) or 1.0


def _merge_close(scores: FloatArray, resolution: float) -> FloatArray:
    """Make scores that follow each other more closely than `resolution` equal to their largest.

    No score gets smaller, so thresholds can only grow, and coverage is kept.
    """
    values, group = np.unique(scores, return_inverse=True)
    last = np.flatnonzero(np.append(np.diff(values) > resolution, True))
    return np.asarray(values[last[np.searchsorted(last, np.arange(len(values)))]][group])


def _break_ties(scores: FloatArray, scale: float) -> FloatArray:
    """Give every score a fixed random nudge, less than half the gap to the next score.

    Equal scores become distinct, different scores keep their order, and no change exceeds
    `PERTURBATION * scale`. The amounts depend on the row number only, never on a test point.
    """
    values, group = np.unique(scores, return_inverse=True)
    gaps = np.append(np.diff(values), np.inf)
    largest = np.minimum(PERTURBATION * scale, 0.5 * gaps)
    return np.asarray(largest[group] * _uniform_hash(len(scores)))


def _uniform_hash(count: int) -> FloatArray:
    """Numbers in (0, 1) from the row number (splitmix64), the same on every machine."""
    state = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
