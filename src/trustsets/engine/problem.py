"""The calibration problem: a whitened basis, scores in general position, the rank; frozen.

What "exact" means. Scores that follow each other more closely than `RESOLUTION` of the score scale
are made equal to the largest of them; a threshold is then the exact optimum for these scores, up to
the rounding of a weighted sum of them. No score gets smaller, so coverage is kept, and where no two
scores are that close nothing changes at all.

Why the solvers end. Different scores are now at least `RESOLUTION` apart. Ties are broken by nudges
below half that gap, so they cannot change the order of scores, and about a hundred times the
rounding of a residual (`kernels.ROUNDING`), so rounding rarely undoes them. A residual within
rounding of zero counts as zero, and the nudges alone decide its side: where a point lies depends on
the vertex and not on how it was reached. In general position every step of the descent makes the
loss strictly smaller, so no vertex comes twice, and there are finitely many. A path passes finitely
many vertices too, each optimal on an interval of the way. Where rounding makes a solver repeat
itself all the same, its cap ends it and the next one takes over: path, descent, reduced linear
program, whole linear program, and the same with scores rounded up more coarsely. Each answer is
certified, and where none is, the threshold is infinite and its status says so.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr

from trustsets.engine.compiled import entry, inner
from trustsets.engine.copies import distinct_points
from trustsets.errors import InputError

__all__ = [
    "BoolArray",
    "FloatArray",
    "IntArray",
    "Problem",
    "Whitening",
    "build_problem",
    "coarsen",
    "read_matrix",
    "scan_keys",
    "whiten_row",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

RANK_TOL = 1e-12
"""A column whose part outside the others is smaller than this share of the largest is dependent."""
UNSEEN_TOL = 1e-9
"""A test row whose part outside the calibration row space exceeds this share of it is unseen."""
RESOLUTION = 2.0**-38
"""Scores closer than this share of the score scale (about 4e-12) count as equal: residuals carry
rounding errors of up to 1e-14, which a difference that decides a sign must exceed clearly."""
PERTURBATION = 2.0**-37
"""Largest change of a score that breaks ties, as a share of the score scale."""
WIDEST_RANGE = 2.0**20
"""Scores beyond this many times the typical size have no say in the score scale."""
CONSTANT_TOL = 1e-11
"""How well the class must reproduce the constant 1 to hold it."""
SHORTEST = 1e-200
"""A whitened row shorter than this never changes side."""
SPLITTER = 2.0**27 + 1.0
"""Veltkamp's constant: splits a double in two halves whose products are exact."""


@dataclass(frozen=True, slots=True, eq=False)
class Whitening:
    r"""The linear map from basis rows to whitened rows, :math:`q = D^{-1}\phi_I\, T`.

    `D` holds powers of two (scaling is exact), `I` the `rank` independent columns and `T` the
    upper triangular inverse of their R factor, so that calibration rows have :math:`Q'Q = n I`.
    The function class only depends on `T` through its span, so `T` may be any matrix; what must
    be exact is the product. It is summed in twice the working precision: with bases of condition
    1e10 a plain product would move thresholds by 1e-6.

    Attributes
    ----------
    scale : (p,) array
        Exact inverse scale of every column.
    independent, dependent : (rank,) and (p - rank,) arrays
        Columns by number. A dependent column is `relation` applied to the independent ones.
    transform : (rank, rank) array
        `T`, upper triangular.
    relation : (rank, p - rank) array
        How dependent columns follow from independent ones on the calibration data.
    seen : float
        Largest deviation from `relation` (rounding) among calibration rows.
    """

    scale: FloatArray
    independent: IntArray
    dependent: IntArray
    transform: FloatArray
    relation: FloatArray
    seen: float

    @property
    def rank(self) -> int:
        """Dimension of the function class on the calibration data."""
        return len(self.independent)

    def apply(self, phi: FloatArray) -> FloatArray:
        """Whitened rows (m, rank) of basis rows (m, p)."""
        rows = np.empty((len(phi), self.rank))
        whiten_rows(phi, self.scale, self.independent, self.transform, rows)
        return rows

    def leaves_row_space(self, phi: FloatArray) -> BoolArray:
        """Whether each row (m, p) has a part that no combination of calibration rows has."""
        return self.deviations(phi) > 2.0 * self.seen

    def deviations(self, phi: FloatArray) -> FloatArray:
        """Distance (m,) of dependent columns from `relation`, beyond rounding."""
        out = np.zeros(len(phi))
        relation_gaps(phi, self.scale, self.independent, self.dependent, self.relation, out)
        return out


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
    centred : (n,) array
        Scores less their most frequent value where the class holds constants, else the scores.
        Solvers use these: the residuals of the many points at that value are then exact.
    nudges : (n,) array
        What is added to the scores to bring them in general position: ties broken, order kept.
        Kept apart from the scores, beside which most digits of a nudge would be lost.
    copies : (n,) array
        How many equal calibration points (basis row and score) each point stands for.
    first : (n,) array
        Row number of the first of them in the calibration data.
    alpha : float
        Miscoverage.
    score_scale : float
        The size of the largest scores that matter, to which tolerances refer.
    exponent : int
        The largest score lies between ``2 ** (exponent - 1)`` and ``2 ** exponent``. Powers of two
        change no digit of a score, so thresholds scale with scores bit for bit.
    whitening : Whitening
        The map that made `rows`.
    """

    rows: FloatArray
    norms: FloatArray
    scores: FloatArray
    centred: FloatArray
    nudges: FloatArray
    copies: FloatArray
    first: IntArray
    alpha: float
    score_scale: float
    exponent: int
    whitening: Whitening


def build_problem(phi: ArrayLike, scores: ArrayLike, alpha: float) -> Problem:
    """Validate, collapse equal points, whiten and put in general position.

    Parameters
    ----------
    phi : (n, p) array
    scores : (n,) array
    alpha : float in (0, 1)
    """
    matrix = read_matrix(phi, "phi_calib")
    target = _read_scores(scores, len(matrix))
    level = _read_alpha(alpha)
    exponent = int(np.frexp(np.abs(target).max())[1])
    target = np.ldexp(target, -exponent)
    first, copies = distinct_points(matrix, target)
    if len(first) < len(target):
        matrix, target = matrix[first], target[first]
    whitening = _whitening(matrix)
    rows = whitening.apply(matrix)
    scale = _score_scale(_centre(target, rows), copies, level)
    target = _merge_close(target, RESOLUTION * scale)
    return Problem(
        rows=rows,
        norms=np.sqrt(np.einsum("ij,ij->i", rows, rows)),
        scores=target,
        centred=_centre(target, rows),
        nudges=_break_ties(target, scale),
        copies=copies,
        first=first,
        alpha=level,
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
        centred=_centre(scores, problem.rows),
        nudges=_break_ties(scores, problem.score_scale),
    )


def read_matrix(phi: ArrayLike, name: str) -> FloatArray:
    """Return a C-ordered float64 matrix of finite numbers; raise InputError on anything else."""
    matrix = np.ascontiguousarray(np.asarray(phi, dtype=np.float64))
    if matrix.ndim != 2:
        raise InputError(
            f"{name} must be a matrix with one row per point, got {matrix.ndim} dimension(s) "
            f"of shape {matrix.shape}; reshape a single column with {name}[:, None]."
        )
    _require_finite(matrix, name)
    return matrix


def _read_scores(scores: ArrayLike, n_rows: int) -> FloatArray:
    target = np.array(scores, dtype=np.float64, copy=True)
    if target.ndim != 1 or len(target) != n_rows:
        raise InputError(
            f"scores_calib must be one number per row of phi_calib ({n_rows}), got shape "
            f"{target.shape}; pass the score of the true label of every calibration point."
        )
    if n_rows == 0:
        raise InputError(
            "phi_calib must have at least one row, got none; pass some calibration points."
        )
    _require_finite(target, "scores_calib")
    return target


def _read_alpha(alpha: float) -> float:
    if not 0.0 < alpha < 1.0:
        raise InputError(
            f"alpha must lie strictly between 0 and 1, got {alpha!r}; "
            "use 0.1 for a coverage of 90 percent."
        )
    return float(alpha)


def _require_finite(values: FloatArray, name: str) -> None:
    if not np.isfinite(values).all():
        first = np.argwhere(~np.isfinite(values))[0].tolist()
        raise InputError(
            f"{name} must be finite, got {values[tuple(first)]} at index {first}; "
            "drop or repair such points first."
        )


def _whitening(phi: FloatArray) -> Whitening:
    """Scale columns, factor, and separate independent from dependent columns."""
    n_rows = len(phi)
    largest = np.abs(phi).max(axis=0, initial=0.0)
    scale = np.ldexp(1.0, -np.frexp(np.where(largest > 0.0, largest, 1.0))[1])
    pivoted, order = _pivoted_triangle(phi * scale)
    diagonal = np.abs(np.diagonal(pivoted))
    rank = int(np.sum(diagonal > RANK_TOL * diagonal.max(initial=0.0)))
    block = np.ascontiguousarray(pivoted[:rank, :rank])
    transform = _solve_upper(block, np.eye(rank)) * np.sqrt(n_rows)
    relation = _solve_upper(block, np.ascontiguousarray(pivoted[:rank, rank:]))
    found = Whitening(
        scale=scale,
        independent=order[:rank],
        dependent=order[rank:],
        transform=np.ascontiguousarray(np.triu(transform)),
        relation=np.ascontiguousarray(relation),
        seen=0.0,
    )
    return replace(found, seen=float(found.deviations(phi).max(initial=0.0)))


def _pivoted_triangle(matrix: FloatArray) -> tuple[FloatArray, IntArray]:
    """R factor with column pivoting, and the order of the columns.

    The tall matrix is factored without pivoting, which is fast; pivoting its small R is enough.
    """
    if matrix.shape[1] == 0:
        return np.zeros((0, 0)), np.empty(0, np.int64)
    triangle = np.linalg.qr(matrix, mode="r")
    pivoted, order = qr(triangle, mode="r", pivoting=True)
    return np.asarray(pivoted, dtype=np.float64), np.asarray(order, dtype=np.int64)


@entry()
def _solve_upper(triangle: FloatArray, right: FloatArray) -> FloatArray:
    """Back substitution; far faster than a library call at this size."""
    out = right.copy()
    for i in range(len(triangle) - 1, -1, -1):
        for k in range(out.shape[1]):
            for j in range(i + 1, len(triangle)):
                out[i, k] -= triangle[i, j] * out[j, k]
            out[i, k] /= triangle[i, i]
    return out


def scan_keys(residuals: FloatArray, norms: FloatArray) -> FloatArray:
    """How far the solution must move before each point can change side: ``|r_i| / |Q_i|``."""
    out = np.full(len(norms), np.inf)
    np.divide(np.abs(residuals), norms, out=out, where=norms > SHORTEST)
    return out


def _centre(scores: FloatArray, rows: FloatArray) -> FloatArray:
    """Subtract the most frequent score if the class holds constants: all fits move along."""
    constant = rows.T @ np.ones(len(rows)) / len(rows)
    if np.abs(rows @ constant - 1.0).max() > CONSTANT_TOL:
        return scores
    values, counts = np.unique(scores, return_counts=True)
    return np.asarray(scores - values[np.argmax(counts)])


def _score_scale(centred: FloatArray, copies: FloatArray, alpha: float) -> float:
    """Size of the largest centred scores; few outliers do not count.

    Rounding of residuals is relative to this size, whatever the typical score is: where a
    classifier is nearly always right, the fit lies among the few large scores.
    """
    size = np.abs(centred)
    order = np.argsort(size)
    passed = np.cumsum(copies[order])
    typical = size[order[np.searchsorted(passed, (1.0 - 0.25 * alpha) * passed[-1])]]
    return float(min(size.max(), WIDEST_RANGE * typical or np.inf)) or 1.0


def _merge_close(scores: FloatArray, resolution: float) -> FloatArray:
    """Make scores that follow each other more closely than `resolution` equal to their largest.

    No score gets smaller, so thresholds can only grow: coverage is kept.
    """
    values, group = np.unique(scores, return_inverse=True)
    ends = np.append(np.diff(values) > resolution, True)
    last = np.flatnonzero(ends)
    return np.asarray(values[last[np.searchsorted(last, np.arange(len(values)))]][group])


def _break_ties(scores: FloatArray, scale: float) -> FloatArray:
    """Give every score a fixed random nudge, less than half the gap to the next score.

    Equal scores become distinct, different scores keep their order, and no change exceeds
    `PERTURBATION * scale`. The amounts depend on the row number only, never on a test point.
    """
    values, group = np.unique(scores, return_inverse=True)
    gaps = np.append(np.diff(values), np.inf)
    room = np.minimum(PERTURBATION * scale, 0.5 * gaps)
    return np.asarray(room[group] * _uniform_hash(len(scores)))


def _uniform_hash(count: int) -> FloatArray:
    """Numbers in (0, 1) from the row number (splitmix64), the same on every machine."""
    state = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


@inner()
def _add_product(x: float, row: FloatArray, first: int, total: FloatArray, low: FloatArray) -> None:
    """Add `x * row` to the double-double sums `total + low`, from column `first` on.

    Two-product and two-sum (Dekker, Knuth): the error of each product and of each sum is
    computed exactly and kept in `low`. Written over columns, so that it vectorises.
    """
    x_high = SPLITTER * x
    x_high = x_high - (x_high - x)
    x_low = x - x_high
    for k in range(first, len(row)):
        y = row[k]
        y_high = SPLITTER * y
        y_high = y_high - (y_high - y)
        y_low = y - y_high
        product = x * y
        error = x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)
        new = total[k] + product
        part = new - total[k]
        low[k] += ((total[k] - (new - part)) + (product - part)) + error
        total[k] = new


@inner()
def whiten_row(
    phi: FloatArray,
    scale: FloatArray,
    independent: IntArray,
    transform: FloatArray,
    out: FloatArray,
    low: FloatArray,
) -> None:
    """One whitened row, correct to the last bits; equal rows give equal bits in any batch."""
    for k in range(len(out)):
        out[k] = low[k] = 0.0
    for j in range(len(independent)):
        column = independent[j]
        _add_product(phi[column] * scale[column], transform[j], j, out, low)
    for k in range(len(out)):
        out[k] += low[k]


@entry()
def whiten_rows(
    phi: FloatArray,
    scale: FloatArray,
    independent: IntArray,
    transform: FloatArray,
    out: FloatArray,
) -> None:
    """Whiten every row of `phi` (m, p) into `out` (m, rank)."""
    low = np.empty(out.shape[1])
    for i in range(len(phi)):
        whiten_row(phi[i], scale, independent, transform, out[i], low)


@entry()
def relation_gaps(
    phi: FloatArray,
    scale: FloatArray,
    independent: IntArray,
    dependent: IntArray,
    relation: FloatArray,
    gap: FloatArray,
) -> None:
    """Per row, how far dependent columns are from their relation, beyond `UNSEEN_TOL`."""
    for i in range(len(phi)):
        for k in range(len(dependent)):
            column = dependent[k]
            difference = phi[i, column] * scale[column]
            magnitude = abs(difference)
            for j in range(len(independent)):
                term = phi[i, independent[j]] * scale[independent[j]] * relation[j, k]
                difference -= term
                magnitude += abs(term)
            gap[i] = max(gap[i], abs(difference) - UNSEEN_TOL * magnitude)
