"""The calibration problem as the solvers see it, made of what callers pass.

Input is checked here. Equal points are merged into one point with a multiplicity: a sum over points
then has one term for all of them, and a path passes them in one pivot. Rows are whitened, and
scores are brought into general position: thresholds are exact for scores that were merged at
`RESOLUTION`, and the perturbations that break ties make every solver end ("Ties and rounding" in
docs/engine.md).
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from trustsets._arrays import objects_as_floats, to_numpy
from trustsets._draws import number_hashes
from trustsets.engine.compiled import FloatArray, IntArray, entry, inner, read_only
from trustsets.engine.kernels import compensated_sum, three_way, two_product, two_sum
from trustsets.engine.lanes import WIDTH
from trustsets.errors import InputError

# A column whose part outside the others is smaller than this share of the largest is dependent.
RANK_TOL = 1e-12
# A test row whose part outside the calibration row space exceeds this share of it is unseen.
UNSEEN_TOL = 1e-9
SMALLEST = 2.0**-1000  # Entries of basis rows below this count as zero.
# Scores closer than this share of the score scale (about 4e-12) count as equal: residuals carry
# rounding errors of up to 1e-14, which a difference that decides a sign must exceed clearly.
RESOLUTION = 2.0**-38
PERTURBATION = 2.0**-37  # Largest perturbation that breaks ties, as a share of the score scale.
# Scores beyond this many times the typical size have no influence on the score scale.
WIDEST_RANGE = 2.0**20
# The function class contains constants if it reproduces the constant 1 this well.
CONSTANT_TOL = 1e-11
SHORTEST = 1e-200  # A whitened row shorter than this never changes side.
SAMPLED = 64  # Points that decide along which coordinate a part of the points is split.
DEPTH: Any = np.int64(64)  # More halvings than any number of points can need.


class Whitening(NamedTuple):
    """The linear map from basis rows to whitened rows, ``q = D^-1 phi_I T``.

    `D` holds powers of two (scaling is exact), `I` the `rank` independent columns and `T` the
    upper triangular inverse of their R factor, so that calibration rows have ``Q'Q = n I``.
    Any invertible `T` gives the same function class, so `T` itself may carry rounding errors. The
    product must be accurate: it is summed in twice the working precision, because a plain product
    would move thresholds by 1e-6 where the basis has condition 1e10.
    """

    scale: FloatArray  # (p,): exact inverse scale of every column.
    # (rank,) (p - rank,): column numbers. The dependent columns are the independent ones times
    # `relation`.
    independent: IntArray
    dependent: IntArray
    transform: FloatArray  # (rank, rank): `T`, upper triangular.
    # (rank, p - rank): coefficients of the dependent columns, fitted on the calibration data.
    relation: FloatArray
    seen: float  # Largest deviation from `relation` (rounding) among calibration rows.

    def apply(self, phi: FloatArray) -> FloatArray:
        """Whitened rows (m, rank) of basis rows (m, p)."""
        return self.apply_and_compare(read_only(phi))[0]

    def apply_and_compare(self, phi: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Whitened rows, and the distances (m,) of dependent columns from `relation`.

        A row with more than twice the distance `seen` is not in the span of the calibration rows.
        `phi` cannot be written to: numba would compile the kernel for writable rows, too.
        """
        rows, gaps = np.empty((len(phi), len(self.independent))), np.zeros(len(phi))
        _whiten_rows(phi, self, rows, gaps, np.empty((2, rows.shape[1])))
        return rows, gaps


def fit_whitening(phi: FloatArray) -> tuple[Whitening, FloatArray]:
    """Scale, factor and separate the columns; the whitened rows of `phi`, too."""
    largest = np.abs(phi).max(axis=0, initial=0.0)
    scale = np.ldexp(1.0, -np.frexp(np.where(largest > 0.0, largest, 1.0))[1])
    # The tall matrix is factored without pivoting, which is fast; pivoting its small R is enough.
    triangle = np.asarray(np.linalg.qr(phi * scale, mode="r"))
    pivoted, order, rank = pivoted_triangle(triangle, RANK_TOL)
    block = pivoted[:rank, :rank]
    transform = _solve_upper(block, np.eye(rank)) * np.sqrt(len(phi))
    whitening = Whitening(
        scale=read_only(scale),
        independent=read_only(order[:rank]),
        dependent=read_only(order[rank:]),
        transform=read_only(np.triu(transform)),
        relation=read_only(_solve_upper(block, pivoted[:rank, rank:])),
        seen=0.0,
    )
    rows, gaps = whitening.apply_and_compare(read_only(phi))
    return whitening._replace(seen=float(gaps.max(initial=0.0))), rows


def pivoted_triangle(matrix: FloatArray, tol: float) -> tuple[FloatArray, IntArray, int]:
    """R factor with column pivoting, the order of the columns, and how many are independent."""
    if matrix.size == 0:
        return np.zeros((0, 0)), np.empty(0, np.int64), 0
    from scipy.linalg import qr

    triangle, order = qr(matrix, mode="r", pivoting=True, check_finite=False)
    diagonal = np.abs(np.diagonal(triangle))
    rank = int(np.sum(diagonal > tol * diagonal.max()))
    return np.asarray(triangle, dtype=np.float64), np.asarray(order, dtype=np.int64), rank


def _solve_upper(triangle: FloatArray, right: FloatArray) -> FloatArray:
    """Solve by back substitution."""
    out = np.array(right, order="C")
    for i in range(len(triangle) - 1, -1, -1):
        for j in range(i + 1, len(triangle)):
            out[i] -= triangle[i, j] * out[j]
        out[i] /= triangle[i, i]
    return out


@entry()
def _whiten_rows(
    phi: FloatArray, whitening: Whitening, rows: FloatArray, gaps: FloatArray, sums: FloatArray
) -> None:
    """Whiten rows, correct to the last bits in any batch, and compare their dependent columns."""
    scale, independent, dependent, transform, relation, _ = whitening
    total, low = sums[0], sums[1]
    for i in range(len(phi)):
        for k in range(len(low)):
            total[k] = low[k] = 0.0
        for j in range(len(independent)):
            value = phi[i, independent[j]] * scale[independent[j]]
            # The error of each product and of each sum is computed exactly and kept in `low`.
            for k in range(j, len(low)):
                product, error = two_product(value, transform[j, k])
                total[k], lost = two_sum(total[k], product)
                low[k] += lost + error
        for k in range(len(low)):
            rows[i, k] = total[k] + low[k]
        for k in range(len(dependent)):
            column = dependent[k]
            difference = phi[i, column] * scale[column]
            magnitude = abs(difference)
            for j in range(len(independent)):
                number = phi[i, independent[j]] * scale[independent[j]]
                difference -= number * relation[j, k]
                # A coefficient that should be zero is a rounding error: alone, in a row where all
                # others meet zeros, it would make any sample an unseen one.
                magnitude += abs(number) * max(abs(relation[j, k]), RANK_TOL / UNSEEN_TOL)
            gaps[i] = max(gaps[i], abs(difference) - UNSEEN_TOL * magnitude)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Calibration data as the solvers see it."""

    rows: FloatArray  # (n, rank): whitened basis rows.
    norms: FloatArray  # (n,): their lengths.
    neighbours: IntArray  # (n,): positions in an order where similar rows follow each other.
    # (n,): scores over ``2 ** exponent``, with scores that are too close to tell apart made equal
    # to the largest of them: thresholds are sums of these, times ``2 ** exponent``.
    scores: FloatArray
    # (n,): the scores less their most frequent value where the function class contains constants,
    # else the scores. Solvers use these: residuals of points at that value are then exact.
    centred_scores: FloatArray
    # (n,): small amounts that break ties and keep the order of scores. They are stored apart from
    # the scores, because a sum of the two would lose most digits of the perturbation.
    perturbations: FloatArray
    # (n,): how many equal calibration points (basis row and score) each point stands for.
    multiplicities: FloatArray
    first: IntArray  # (n,): row number of the first of them in the calibration data.
    point: IntArray  # (n_rows,): number of the point that each row of the calibration data became.
    alpha: float  # Miscoverage; the mean where every row has its own.
    # (n_rows,) or None: miscoverage of every row of the calibration data, where they were given one
    # by one.
    alphas: FloatArray | None
    # (n,): how much `alpha` exceeds the alphas of the point's rows, summed over these.
    tilt: FloatArray
    # (rank,): sum of ``tilt_i Q_i``. Because ``loss_a(r) = loss_b(r) + (b - a) r`` for any two
    # alphas a and b, the problem with an alpha for each point is that with one alpha and this
    # linear term.
    linear: FloatArray
    score_scale: float  # The size of the largest scores, outliers apart, to which tolerances refer.
    # The largest score lies between ``2 ** (exponent - 1)`` and ``2 ** exponent``. Powers of two
    # change no digit of a score, so thresholds scale with scores bit for bit.
    exponent: int
    has_constants: bool  # Whether the function class contains constants.
    values: FloatArray  # (n,): scores over ``2 ** exponent`` as they came.
    resolution: float  # Scores closer than this share of the score scale were made equal.
    centre: float  # What was taken from `scores` to centre them.
    whitening: Whitening  # The map that made `rows`.


def build_problem(phi: ArrayLike, scores: ArrayLike, alpha: ArrayLike) -> Problem:
    """Validate the data, merge equal points, whiten the rows and break ties between scores."""
    matrix = read_matrix(phi, "phi_calib")
    all_scores = read_scores(scores, len(matrix))
    alphas = read_alphas(alpha, len(matrix), "row of phi_calib")
    # The mean of equal numbers may differ from them in the last bit.
    mean_alpha = float(np.clip(alphas.mean(), alphas.min(), alphas.max()))
    exponent = int(np.frexp(np.abs(all_scores).max())[1])
    scaled = np.ldexp(all_scores, -exponent)
    first, multiplicities, point = distinct_points(matrix, scaled)
    if len(first) < len(scaled):
        matrix = matrix[first]
    whitening, rows = fit_whitening(matrix)
    tilt = np.zeros(len(first))
    if alphas.ndim:
        tilt = np.asarray(np.bincount(point, mean_alpha - alphas), dtype=np.float64)
    values = scaled[first]
    # Whitened columns are orthogonal, so this is the least-squares fit of the constant 1.
    constant = rows.T @ np.ones(len(rows)) / len(rows)
    has_constants = bool(np.abs(rows @ constant - 1.0).max() <= CONSTANT_TOL)
    distinct = _distinct(values)
    centre = _most_frequent(*distinct) if has_constants else 0.0
    problem = Problem(
        rows=rows,
        norms=np.sqrt(np.einsum("ij,ij->i", rows, rows)),
        neighbours=np.argsort(neighbour_order(rows)),
        scores=values,
        centred_scores=values,
        perturbations=values,
        multiplicities=multiplicities,
        first=first,
        point=point,
        alpha=mean_alpha,
        alphas=alphas if alphas.ndim else None,
        tilt=tilt,
        linear=compensated_sum(rows, tilt) if tilt.any() else np.zeros(rows.shape[1]),
        score_scale=_score_scale(values - centre, multiplicities, float(alphas.min())),
        exponent=exponent,
        has_constants=has_constants,
        values=values,
        resolution=0.0,
        centre=centre,
        whitening=whitening,
    )
    return coarsen(problem, RESOLUTION, distinct)


def at_alpha(problem: Problem, alpha: float) -> Problem:
    """Return the problem of the same data at another alpha, bitwise that of `build_problem`.

    Where a few scores are a million times as large as the others, alpha decides which scores are
    too close to tell apart.
    """
    scale = _score_scale(problem.values - problem.centre, problem.multiplicities, alpha)
    if scale == problem.score_scale:
        return replace(problem, alpha=alpha)
    unmerged = replace(problem, scores=problem.values, alpha=alpha, score_scale=scale)
    return coarsen(unmerged, RESOLUTION)


def coarsen(
    problem: Problem, resolution: float, distinct: tuple[FloatArray, IntArray] | None = None
) -> Problem:
    """Return the problem with scores closer than `resolution` (of the scale) made equal.

    Scores that follow each other more closely become equal to their largest, and ties are broken
    anew. "Ties and rounding" in docs/engine.md says why that is harmless. `distinct` is what
    `_distinct` says of the scores, where that is known.
    """
    values, group = distinct or _distinct(problem.scores)
    is_last = np.append(np.diff(values) > resolution * problem.score_scale, True)
    values, group = values[is_last], (np.cumsum(is_last) - is_last)[group]
    gaps = np.append(np.diff(values), np.inf)
    largest = np.minimum(PERTURBATION * problem.score_scale, 0.5 * gaps)
    merged = values[group]
    centre = _most_frequent(values, group) if problem.has_constants else 0.0
    # Numbers in (0, 1) from the row number, the same on every machine.
    bits = (number_hashes(len(group)) >> np.uint64(11)).astype(np.float64)
    return replace(
        problem,
        scores=merged,
        resolution=resolution,
        centred_scores=merged - centre,
        perturbations=largest[group] * ((bits + 0.5) * 2.0**-53),
    )


def neighbour_order(rows: FloatArray) -> IntArray:
    """Order rows so that every `WIDTH` consecutive ones are neighbours."""
    order, values = np.arange(len(rows)), np.empty((2, len(rows)))
    parts, sums = np.zeros((2, DEPTH), np.int64), np.empty((2, rows.shape[1]))
    _halve(read_only(rows), order, values, parts, sums)
    return order


@entry()
def _halve(
    rows: FloatArray, order: IntArray, values: FloatArray, parts: IntArray, sums: FloatArray
) -> None:
    """Halve the rows repeatedly along the coordinate of largest variance, as in a k-d tree."""
    # `parts` is a stack of those that are still to be halved; it holds at most one of every size.
    lows, highs = parts[0], parts[1]
    lows[0], highs[0], waiting = 0, len(order), 1
    while waiting > 0:
        waiting -= 1
        low, high = lows[waiting], highs[waiting]
        n_blocks = -(-(high - low) // WIDTH)
        if n_blocks < 2:
            continue
        column = _widest(rows, order, low, high, sums)
        for i in range(low, high):
            values[0, i] = rows[order[i], column]
        middle = low + (n_blocks // 2) * WIDTH
        _part_at(values, order, low, high, middle)
        lows[waiting], highs[waiting] = low, middle
        lows[waiting + 1], highs[waiting + 1] = middle, high
        waiting += 2


@inner()
def _widest(rows: FloatArray, order: IntArray, low: int, high: int, sums: FloatArray) -> int:
    """Find the coordinate of largest variance, estimated from some points of [low, high)."""
    step, rank = max(1, (high - low) // SAMPLED), rows.shape[1]
    count = (high - low + step - 1) // step
    for j in range(rank):
        sums[0, j] = sums[1, j] = 0.0
    # Rows are read one by one, and coordinates run fastest, so that the sums vectorise.
    for i in range(low, high, step):
        for j in range(rank):
            value = rows[order[i], j]
            sums[0, j] += value
            sums[1, j] += value * value
    best, widest = -1.0, 0
    for j in range(rank):
        mean = sums[0, j] / count
        variance = sums[1, j] / count - mean * mean
        if variance > best:
            best, widest = variance, j
    return widest


@inner()
def _part_at(values: FloatArray, order: IntArray, low: int, high: int, middle: int) -> None:
    """Put the smallest of ``values[0]`` in [low, high) before `middle` (quickselect)."""
    key, spare = values[0], values[1]
    while high - low > 1:
        less, more = three_way(key, spare, order, low, high)
        if middle < less:
            high = less
        elif middle >= more:
            low = more
        else:
            return


def scan_keys(residuals: FloatArray, norms: FloatArray) -> FloatArray:
    """Least distance ``|r_i| / |Q_i|`` that the solution moves before point i changes side."""
    out = np.full(len(norms), np.inf)
    np.divide(np.abs(residuals), norms, out=out, where=norms > SHORTEST)
    return out


def smallest(keys: FloatArray, count: int) -> IntArray:
    """Numbers of the `count` smallest keys, in any order; of all where they are fewer."""
    return np.argpartition(keys, count)[:count] if count < len(keys) else np.arange(len(keys))


def _distinct(scores: FloatArray) -> tuple[FloatArray, IntArray]:
    """Different scores, increasing, and the number of each score among them."""
    # As `np.unique` does, but in linear time where the scores are sorted, or nearly so.
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    is_new = np.append(True, ordered[1:] != ordered[:-1])
    group = np.empty(len(scores), np.int64)
    group[order] = np.cumsum(is_new) - 1
    return ordered[is_new], group


def _most_frequent(values: FloatArray, group: IntArray) -> float:
    return float(values[np.argmax(np.bincount(group))])


def _score_scale(centred: FloatArray, multiplicities: FloatArray, alpha: float) -> float:
    """Size of the largest centred scores; a few outliers do not count.

    Rounding errors of residuals are relative to this size. The typical score would be a poor
    measure: for a classifier that is nearly always right, the fit lies among few large scores.
    """
    size = np.abs(centred)
    largest, wanted = float(size.max()), (1.0 - 0.25 * alpha) * multiplicities.sum()
    if multiplicities[WIDEST_RANGE * size < largest].sum() < wanted:
        # The typical score is large enough, whichever it is.
        return largest or 1.0
    order = np.argsort(size)
    typical = size[order[np.searchsorted(np.cumsum(multiplicities[order]), wanted)]]
    return float(min(largest, WIDEST_RANGE * typical or np.inf)) or 1.0


def distinct_points(phi: FloatArray, scores: FloatArray) -> tuple[IntArray, FloatArray, IntArray]:
    """First row number and multiplicity of every different point, in order of the first.

    The third array holds the number of the different point of each row. Equal points have equal
    keys, so sorting by key makes them neighbours. A different point with the same key may come
    between two equal ones. These then stay apart, which costs time only.
    """
    key = scores.copy()
    largest = np.abs(phi).max(axis=0, initial=0.0)
    factors = np.sqrt(2.0 + np.arange(phi.shape[1])) / np.where(largest > 0.0, largest, 1.0)
    for factor, column in zip(factors, phi.T, strict=True):
        key += factor * column
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    again = 1 + np.flatnonzero(ordered[1:] == ordered[:-1])
    here, before = order[again], order[again - 1]
    again = again[(scores[here] == scores[before]) & (phi[here] == phi[before]).all(axis=1)]
    is_new = np.ones(len(scores), np.bool_)
    is_new[again] = False
    first, point = order[is_new], np.empty(len(scores), np.int64)
    sorting = np.argsort(first)
    point[order] = np.argsort(sorting)[np.cumsum(is_new) - 1]
    return first[sorting], np.bincount(point).astype(np.float64), point


def read_matrix(phi: ArrayLike, name: str, n_columns: int | None = None) -> FloatArray:
    """Return a C-ordered float64 matrix of finite numbers; raise InputError on anything else.

    It cannot be written to, as kernels expect it of what they only read. Numbers so small that the
    inverse of a column's scale would overflow become zero.
    """
    matrix = np.ascontiguousarray(_as_floats(phi, name))
    if matrix.ndim != 2:
        raise InputError(
            f"{name} must be a matrix with one row per point, got {matrix.ndim} dimension(s) "
            f"of shape {matrix.shape}; reshape a single column with {name}[:, None]."
        )
    if n_columns is not None and matrix.shape[1] != n_columns:
        raise InputError(
            f"{name} must have the {n_columns} columns of phi_calib, got {matrix.shape[1]}; "
            "use the same basis for calibration and test."
        )
    tiny = (np.abs(matrix) < SMALLEST) & (matrix != 0.0)
    matrix = np.where(tiny, 0.0, matrix) if tiny.any() else matrix.view()
    matrix.flags.writeable = False
    return matrix


def read_scores(scores: ArrayLike, n_rows: int) -> FloatArray:
    """Return a copy of the scores, one for each row; raise InputError on anything else."""
    values = np.array(_as_floats(scores, "scores_calib"), copy=True)
    if values.ndim != 1 or len(values) != n_rows:
        raise InputError(
            f"scores_calib must be one number per row of phi_calib ({n_rows}), got shape "
            f"{values.shape}; pass the score of the true label of every calibration point."
        )
    if n_rows == 0:
        raise InputError(
            "phi_calib must have at least one row, got none; pass some calibration points."
        )
    return values


def read_alphas(alpha: ArrayLike, count: int, of: str) -> FloatArray:
    """Return one alpha (no dimension) or `count` of them; raise InputError on anything else."""
    alphas = np.array(_one_or_many(alpha, "alpha", count, of), copy=True)
    wrong = alphas[~((alphas > 0.0) & (alphas < 1.0))]
    if wrong.size:
        raise InputError(
            f"alpha must lie strictly between 0 and 1, got {wrong.flat[0]}; "
            "use 0.1 for a coverage of 90 percent."
        )
    return alphas


def read_weights(
    problem: Problem, weight: ArrayLike | None, alpha: ArrayLike | None, count: int
) -> FloatArray:
    """Return the weights of `count` test points, ``1 - alpha`` by default."""
    if alpha is not None:
        alphas = read_alphas(alpha, count, "test row")
    elif problem.alphas is None:
        alphas = np.asarray(problem.alpha)
    else:
        raise InputError(
            "alpha must be given with phi_test, because each calibration point has an alpha of "
            "its own; pass the alpha of every test point."
        )
    if weight is None:
        weights = 1.0 - alphas
    else:
        weights = _one_or_many(weight, "weight", count, "test row")
    if not np.all((weights > -alphas) & (weights <= 1.0 - alphas)):
        interval = f" = ({-alphas}, {1.0 - alphas}]" if alphas.ndim == 0 else ""
        raise InputError(
            f"weight must lie in (-alpha, 1 - alpha]{interval}, got values from {weights.min()} "
            f"to {weights.max()}; draw uniformly from that interval."
        )
    # A new array: numba would compile all kernels again for a read-only view.
    return np.full(count, weights)


def read_points(points: ArrayLike | None, count: int) -> IntArray:
    """Return row numbers below `count`, all of them by default; raise InputError on others."""
    numbers = to_numpy(np.arange(count) if points is None else points, "points")
    is_list = numbers.ndim == 1 and (numbers.dtype.kind in "iu" or numbers.size == 0)
    if not is_list or np.any((numbers < 0) | (numbers >= count)):
        raise InputError(
            f"points must be row numbers of phi_calib, from 0 to {count - 1}, got {points!r:.60}; "
            "pass an array of integers, or None for all."
        )
    return numbers.astype(np.int64)


def _as_floats(values: ArrayLike, name: str) -> FloatArray:
    """Return finite real numbers as float64; raise InputError on anything else."""
    is_plain = type(values) is np.ndarray and values.dtype == np.float64
    array: Any = values if is_plain else objects_as_floats(to_numpy(values, name))
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{name} must hold real numbers, got {type(values).__name__}; pass an array of floats."
        )
    numbers = np.asarray(array, dtype=np.float64)
    if not np.isfinite(numbers).all():
        first = np.argwhere(~np.isfinite(numbers))[0].tolist()
        index = f" at index {first}" if first else ""
        raise InputError(
            f"{name} must be finite, got {numbers[tuple(first)]}{index}; drop or repair such "
            "points first."
        )
    return numbers


def _one_or_many(values: ArrayLike, name: str, count: int, of: str) -> FloatArray:
    """Return one number (no dimension) or `count` of them; raise InputError on anything else."""
    numbers = _as_floats(values, name)
    if numbers.shape not in ((), (count,)):
        raise InputError(
            f"{name} must be one number or one per {of} ({count}), got shape {numbers.shape}; "
            "pass a number or an array of that length."
        )
    return numbers
