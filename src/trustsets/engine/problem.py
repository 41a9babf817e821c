"""The calibration problem as the solvers see it: whitened rows, and scores in general position.

Thresholds are exact for scores that were merged at `RESOLUTION`, and the nudges that break ties
make every solver end; docs/engine.md says why ("Ties and rounding").
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from trustsets._common.draws import number_hashes
from trustsets.engine.compiled import FloatArray, IntArray
from trustsets.engine.copies import distinct_points
from trustsets.engine.kernels import compensated_sum
from trustsets.engine.reading import read_alphas, read_matrix, read_scores
from trustsets.engine.whitening import Whitening, fit_whitening

__all__ = [
    "Problem",
    "WhitenedRows",
    "assemble_problem",
    "build_problem",
    "centred_scores",
    "coarsen",
    "scan_keys",
    "score_scale",
]

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
    constant : (rank,) array
        Coefficients of the function nearest to the constant 1.
    has_constants : bool
        Whether the function class contains constants.
    drift : float
        Bound on the distance of the eigenvalues of ``Q'Q / n`` from 1: more than zero if the
        whitening was fitted to other data.
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
    constant: FloatArray
    has_constants: bool
    drift: float
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
    points = distinct_points(matrix, np.ldexp(values, -_exponent(values)))
    if len(points[0]) < len(values):
        matrix = matrix[points[0]]
    whitening = fit_whitening(matrix)
    rows = whitening.apply(matrix)
    constant = rows.T @ np.ones(len(rows)) / len(rows)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    whitened = WhitenedRows(whitening, rows, norms, constant, 0.0)
    return assemble_problem(whitened, points, values, given)


class WhitenedRows(NamedTuple):
    """Rows of the different points, with the `Problem` fields that belong to them."""

    whitening: Whitening
    rows: FloatArray
    norms: FloatArray
    constant: FloatArray
    drift: float


def assemble_problem(
    whitened: WhitenedRows,
    points: tuple[IntArray, FloatArray, IntArray],
    scores: FloatArray,
    alphas: FloatArray,
) -> Problem:
    """Break ties between scores, and compute what else follows from whitened rows.

    Parameters
    ----------
    whitened
    points
        First row number, copies, and number of each row's point, as from `distinct_points`.
    scores : (n_rows,) array
        Of all rows, as they came.
    alphas : array of shape () or (n_rows,)
    """
    whitening, rows, norms, constant, drift = whitened
    first, copies, point = points
    # The mean of equal numbers may differ from them in the last bit.
    alpha = float(np.clip(alphas.mean(), alphas.min(), alphas.max()))
    tilt = np.zeros(len(first))
    if alphas.ndim:
        tilt = np.asarray(np.bincount(point, alpha - alphas), dtype=np.float64)
    exponent = _exponent(scores)
    values = np.ldexp(scores[first], -exponent)
    known = _distinct(values)
    has_constants = bool(np.abs(rows @ constant - 1.0).max() <= CONSTANT_TOL)
    centre = _most_frequent(*known) if has_constants else 0.0
    scale = score_scale(values - centre, copies, float(alphas.min()))
    merged, centred, nudges = _general_position(known, RESOLUTION, scale, has_constants)
    return Problem(
        rows=rows,
        norms=norms,
        scores=merged,
        centred_scores=centred,
        nudges=nudges,
        copies=copies,
        first=first,
        point=point,
        alpha=alpha,
        alphas=alphas if alphas.ndim else None,
        tilt=tilt,
        linear=compensated_sum(rows, tilt) if tilt.any() else np.zeros(whitening.rank),
        score_scale=scale,
        exponent=exponent,
        constant=constant,
        has_constants=has_constants,
        drift=drift,
        whitening=whitening,
    )


def coarsen(problem: Problem, resolution: float) -> Problem:
    """Return the problem with scores closer than `resolution` (of the scale) rounded up."""
    given = resolution, problem.score_scale, problem.has_constants
    scores, centred, nudges = _general_position(_distinct(problem.scores), *given)
    return replace(problem, scores=scores, centred_scores=centred, nudges=nudges)


def scan_keys(residuals: FloatArray, norms: FloatArray) -> FloatArray:
    """Least distance ``|r_i| / |Q_i|`` that the solution moves before point i changes side."""
    out = np.full(len(norms), np.inf)
    np.divide(np.abs(residuals), norms, out=out, where=norms > SHORTEST)
    return out


def _exponent(scores: FloatArray) -> int:
    return int(np.frexp(np.abs(scores).max())[1])


def _distinct(scores: FloatArray) -> tuple[FloatArray, IntArray]:
    """Different scores, increasing, and the number of each score among them.

    As `np.unique` does, but in linear time where the scores are sorted, or nearly so.
    """
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    is_new = np.append(True, ordered[1:] != ordered[:-1])
    group = np.empty(len(scores), np.int64)
    group[order] = np.cumsum(is_new) - 1
    return ordered[is_new], group


def _most_frequent(values: FloatArray, group: IntArray) -> float:
    return float(values[np.argmax(np.bincount(group))])


def centred_scores(scores: FloatArray, has_constants: bool) -> FloatArray:
    """Subtract the most frequent score if the class contains constants, which moves all fits."""
    return scores - _most_frequent(*_distinct(scores)) if has_constants else scores


def score_scale(centred: FloatArray, copies: FloatArray, alpha: float) -> float:
    """Size of the largest centred scores; a few outliers do not count.

    Rounding errors of residuals are relative to this size. The typical score would be a poor
    measure: for a classifier that is nearly always right, the fit lies among few large scores.
    """
    size = np.abs(centred)
    largest, wanted = float(size.max()), (1.0 - 0.25 * alpha) * copies.sum()
    if copies[WIDEST_RANGE * size < largest].sum() < wanted:
        # The typical score is large enough, whichever it is.
        return largest or 1.0
    order = np.argsort(size)
    typical = size[order[np.searchsorted(np.cumsum(copies[order]), wanted)]]
    return float(min(largest, WIDEST_RANGE * typical or np.inf)) or 1.0


def _general_position(
    known: tuple[FloatArray, IntArray], resolution: float, scale: float, has_constants: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Scores without close ones, the same centred, and nudges that break ties; from `_distinct`.

    Scores that follow each other more closely than `resolution * scale` become equal to their
    largest: no score gets smaller, so thresholds can only grow, and coverage is kept. Then every
    score has a fixed random nudge, less than half the gap to the next score. Equal scores become
    distinct, different scores keep their order, and no nudge exceeds `PERTURBATION * scale`.
    Nudges depend on the row number only, never on a test point.
    """
    values, group = known
    is_last = np.append(np.diff(values) > resolution * scale, True)
    values, group = values[is_last], (np.cumsum(is_last) - is_last)[group]
    gaps = np.append(np.diff(values), np.inf)
    largest = np.minimum(PERTURBATION * scale, 0.5 * gaps)
    merged = values[group]
    centre = _most_frequent(values, group) if has_constants else 0.0
    return merged, merged - centre, largest[group] * _uniform_hash(len(group))


def _uniform_hash(count: int) -> FloatArray:
    """Numbers in (0, 1) from the row number, the same on every machine."""
    return ((number_hashes(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
