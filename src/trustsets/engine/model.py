"""The two public calls: fit once, then compute thresholds of any number of test points."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from trustsets._common.blocks import in_threads
from trustsets.engine.compiled import BoolArray, FloatArray, IntArray
from trustsets.engine.descent import CAPPED, UNBOUNDED
from trustsets.engine.extreme import Solved, WeightedSample, choose_sample, fit_extreme
from trustsets.engine.fit import fit_vertex
from trustsets.engine.kernels import WIDTH, weighted_sum
from trustsets.engine.landmarks import Landmarks, nearest_landmarks
from trustsets.engine.leave_one_out import thresholds_without
from trustsets.engine.linear_program import SOLVER_TOL, solve_reduced
from trustsets.engine.path import (
    LANDMARK_BUDGET,
    MANY_ROWS,
    WEIGHT_TOL,
    follow_paths,
    make_landmarks,
)
from trustsets.engine.problem import RESOLUTION, Problem, build_problem, coarsen
from trustsets.engine.reading import read_follows, read_test_alphas, read_test_rows, read_weights
from trustsets.engine.result import Thresholds, blank_thresholds
from trustsets.engine.scan_order import ScanOrder, make_scan_order
from trustsets.engine.vertex import Certificate, Vertex
from trustsets.status import Status

__all__ = ["QuantileModel", "fit_problem", "fit_quantiles", "make_model", "warm_up"]

RESOLUTIONS = (RESOLUTION, 2.0**-24, 2.0**-12, 4.0)
"""Score differences that count as ties, as shares of the score scale. Where rounding keeps a
solution from being certified, the next one is tried; with the last all scores are equal."""
CHUNK = 256
"""Test points that a thread takes at a time."""
MOST_SOLVED = 256
"""Extreme rows that others may start from; more would lengthen the search for the nearest."""


@dataclass(frozen=True, eq=False)
class QuantileModel:
    """A fitted base problem, which gives thresholds of test points; made by `fit_quantiles`.

    Attributes
    ----------
    alpha : float
        Miscoverage; the mean of `alphas` where these were given.
    basic_points : (rank,) array
        Row numbers of the calibration points that the base fit passes through. They and the
        calibration data determine the model:
        ``fit_quantiles(phi, scores, alpha, start=basic_points)`` makes an equal one without a
        search.
    certificate : Certificate
        Proof that the base fit is optimal.
    """

    alpha: float
    basic_points: IntArray
    certificate: Certificate
    _problem: Problem
    _vertex: Vertex
    _resolution: float
    _threads: int | None = None
    _budget: int = LANDMARK_BUDGET

    @cached_property
    def _scan_order(self) -> ScanOrder:
        """Made when thresholds are first asked for: a fit alone does not need it."""
        return make_scan_order(self._problem, self._vertex)

    @cached_property
    def _landmarks(self) -> Landmarks:
        """Made when thresholds are first asked for, as the scan order is."""
        return make_landmarks(self._problem, self._scan_order, budget=self._budget)

    @property
    def _base_landmark(self) -> Landmarks:
        """The base vertex alone, which is the whole path of rows with weight zero."""
        return make_landmarks(self._problem, self._scan_order, most=0)

    def for_many_rows(self) -> Self:
        """Return the same model for very many test rows: it takes more time to prepare for them."""
        return replace(self, _budget=MANY_ROWS * LANDMARK_BUDGET)

    @cached_property
    def _sample(self) -> WeightedSample:
        return choose_sample(self._problem, self._scan_order)

    @property
    def alphas(self) -> FloatArray | None:
        """Miscoverage of each calibration point, or None where all have the same."""
        return self._problem.alphas

    @property
    def rank(self) -> int:
        """Dimension of the function class on the calibration data."""
        return len(self.basic_points)

    @property
    def n_columns(self) -> int:
        """Number of basis functions p that a test row must have."""
        return len(self._problem.whitening.scale)

    @property
    def n_points(self) -> int:
        """Number of calibration points n."""
        return int(self._problem.copies.sum())

    def thresholds(
        self,
        phi_test: ArrayLike,
        weight: ArrayLike | None = None,
        *,
        alpha: ArrayLike | None = None,
        level: ArrayLike | None = None,
        follows: ArrayLike | None = None,
    ) -> Thresholds:
        r"""Threshold :math:`S^*` of every test row.

        With weight u on a test row :math:`\phi`,

        .. math:: S^* = \phi'\beta(u),\qquad \beta(u) = \arg\min_b \sum_i \ell_\alpha(s_i -
            \Phi_i b) - u\,\phi'b,

        and the smallest such value where the minimum is not unique. Breakpoints within 1e-9 of
        the weight count as equal to it.

        Parameters
        ----------
        phi_test : (m, p) array
            Basis rows of the test points.
        weight : float or (m,) array, optional
            Weights u in ``(-alpha, 1 - alpha]``. The default ``1 - alpha`` gives coverage of at
            least ``1 - alpha``; uniform draws give exactly that.
        alpha : float or (m,) array, optional
            Miscoverage of the test points, by default that of the model; needed if calibration
            points have alphas of their own, from the same function of inputs (Cherian et al. 2024).
        level : float or (m,) array, optional
            The former name of `weight`.
        follows : (m,) array of bool, optional
            Rows whose vertex is near that of the row before: their search starts there. It saves
            time and changes no threshold beyond rounding.

        Returns
        -------
        Thresholds

        Examples
        --------
        The split conformal quantile is the case of a constant:

        >>> import numpy as np
        >>> from trustsets.engine import fit_quantiles
        >>> model = fit_quantiles(np.ones((19, 1)), np.arange(19.0), alpha=0.1)
        >>> model.thresholds(np.ones((1, 1))).values
        array([17.])
        >>> model.thresholds(np.ones((2, 1)), weight=[-0.05, 0.5]).values
        array([17., 17.])

        Each point may have an alpha of its own, here that of its group:

        >>> groups, alphas = np.repeat(np.eye(2), [9, 19], axis=0), np.repeat([0.4, 0.1], [9, 19])
        >>> model = fit_quantiles(groups, np.arange(28.0), alpha=alphas)
        >>> model.thresholds(np.eye(2), alpha=[0.4, 0.1]).values
        array([ 5., 26.])
        """
        phi = read_test_rows(phi_test, self.n_columns)
        alphas = read_test_alphas(alpha, self.alpha if self.alphas is None else None, len(phi))
        weights = read_weights(level if weight is None else weight, alphas, len(phi))
        unseen = self._problem.whitening.leaves_row_space(phi)
        chained = read_follows(follows, len(phi))
        return self._final(self._solve_rows(self._whiten(phi), weights, unseen, chained))

    def leave_one_out(
        self, points: ArrayLike | None = None, weight: ArrayLike | None = None
    ) -> Thresholds:
        """Thresholds of calibration points, each as a test point of the model without it.

        They are exact, as those of one fit for each point would be, and need no other fit.

        Parameters
        ----------
        points : (m,) array of int, optional
            Row numbers of calibration points; by default all, rows of penalties included.
        weight : float or (m,) array, optional
            Weights as in `thresholds`; each point has the alpha it had in the fit.

        Returns
        -------
        Thresholds

        Examples
        --------
        >>> import numpy as np
        >>> from trustsets.engine import fit_quantiles
        >>> fit_quantiles(np.ones((10, 1)), np.arange(10.0), alpha=0.2).leave_one_out().values
        array([8., 8., 8., 8., 8., 8., 8., 8., 7., 7.])
        """
        return self._final(thresholds_without(self._problem, points, weight, self._solve_rows))

    def _solve_rows(
        self,
        rows: FloatArray,
        weights: FloatArray,
        unseen: BoolArray | None = None,
        follows: BoolArray | None = None,
    ) -> Thresholds:
        """Thresholds of whitened rows, in the units of the problem's scores."""
        if not self.certificate.holds:
            status = np.full(len(rows), Status.UNCERTIFIED, np.int8)
            return Thresholds(np.full(len(rows), np.inf), status, np.zeros(len(rows), np.int64))
        result = self._follow(rows, weights, follows)
        if unseen is not None:
            result.values[unseen] = np.copysign(np.inf, weights[unseen])
            result.status[unseen] = Status.UNSEEN_DIRECTION
        self._solve_rest(rows, weights, result)
        return result

    def _final(self, result: Thresholds) -> Thresholds:
        """Change to the units of the scores as they came, and forbid further changes."""
        np.ldexp(result.values, self._problem.exponent, out=result.values)
        if self._resolution > RESOLUTIONS[0]:
            result.status[np.isfinite(result.values)] = Status.ROUNDED_UP
        for array in (result.values, result.status, result.pivots):
            array.flags.writeable = False
        return result

    def fitted(self, phi: ArrayLike) -> FloatArray:
        """Values of the base fit, shape (m,): lower bounds of the thresholds, without a path.

        Infinite for a row with a direction that no calibration point has.

        Examples
        --------
        >>> import numpy as np
        >>> from trustsets.engine import fit_quantiles
        >>> fit_quantiles(np.ones((18, 1)), np.arange(18.0), alpha=0.1).fitted([[1.0]])
        array([16.])
        """
        rows = read_test_rows(phi, self.n_columns)
        if not self.certificate.holds:
            return np.full(len(rows), -np.inf)
        problem, vertex = self._problem, self._vertex
        beta = vertex.inverse.T @ problem.scores[vertex.basic_points]
        # Not a matrix product: the last digits of one depend on the other rows of its batch.
        values = np.einsum("ij,j->i", problem.whitening.apply(rows), beta)
        values[problem.whitening.leaves_row_space(rows)] = np.inf
        return np.asarray(np.ldexp(values, problem.exponent))

    def _whiten(self, phi: FloatArray) -> FloatArray:
        """Whitened rows, computed in threads."""
        rows = np.empty((len(phi), self.rank))

        def run(part: slice) -> None:
            rows[part] = self._problem.whitening.apply(phi[part])

        in_threads(run, list(_chunks(len(phi))), self._threads)
        return rows

    def _follow(
        self, rows: FloatArray, weights: FloatArray, follows: BoolArray | None = None
    ) -> Thresholds:
        """Run the paths in threads; a point's result does not depend on how rows are split."""
        out, starts = blank_thresholds(len(rows)), np.empty(len(rows), np.int64)
        landmarks = self._landmarks if np.any(weights != 0.0) else self._base_landmark

        def locate(part: slice) -> None:
            arrays = landmarks.blocks, landmarks.half_square, np.empty(WIDTH)
            nearest_landmarks(rows[part], weights[part], *arrays, starts[part])

        def run(part: IntArray) -> None:
            follow_paths(rows, weights, starts, part, self._scan_order.scan, landmarks, out)

        in_threads(locate, list(_chunks(len(rows))), self._threads)
        if follows is None:
            order = np.argsort(starts, kind="stable")
            in_threads(run, [order[part] for part in _chunks(len(rows))], self._threads)
            return out
        # Rows that follow one another stay together, and come where the first of them does.
        first = np.maximum.accumulate(np.where(follows, 0, np.arange(len(rows))))
        order = np.argsort(starts[first], kind="stable")
        heads = np.flatnonzero(~follows[order])
        starts[follows] = ~starts[follows]
        in_threads(run, np.split(order, heads[CHUNK::CHUNK]), self._threads)
        return out

    def _solve_rest(self, rows: FloatArray, weights: FloatArray, result: Thresholds) -> None:
        """Solve points whose path was too long or failed its check one by one.

        Their status becomes `EXACT`, `HIGH_LEVERAGE` or, after a linear program, `FALLBACK`.
        """
        left = np.flatnonzero(result.status == Status.FALLBACK)
        if len(left) == 0:
            return
        solved: list[Solved] = []

        def run(i: int) -> None:
            weight = float(weights[i])
            result.values[i], result.status[i] = self._solve_alone(rows[i], weight, solved)

        # The longest rows take longest. Started first, they do not leave a thread waiting.
        lengths = np.einsum("ij,ij->i", rows[left], rows[left])
        in_threads(run, left[np.argsort(-lengths)].tolist(), self._threads)

    def _solve_alone(
        self, row: FloatArray, weight: float, solved: list[Solved]
    ) -> tuple[float, Status]:
        """Solve one whitened row as an extreme one, or by linear program if that fails."""
        problem = self._problem
        # As on a path: just below the weight the optimum is the smallest one at the weight.
        goal = (weight - WEIGHT_TOL) * row
        try:
            status, vertex = fit_extreme(problem, self._scan_order, self._sample, goal, solved)
        except np.linalg.LinAlgError:  # basic rows on the way became dependent
            status, vertex = CAPPED, None
        if status == UNBOUNDED:
            return float(np.copysign(np.inf, weight)), Status.HIGH_LEVERAGE
        if vertex is not None and vertex.certificate.holds:
            if len(solved) < MOST_SOLVED:
                solved.append((goal, vertex.basic_points))
            terms = np.stack([vertex.inverse @ row, problem.scores[vertex.basic_points]])
            return weighted_sum(terms, 0, 1), Status.EXACT
        value = solve_reduced(problem, self._vertex.residuals, row, weight)
        if value is None:
            return self._solve_rounded(row, weight)
        # HiGHS satisfies constraints up to its tolerance, and a threshold may only err upwards.
        value = problem.score_scale * (value + 2.0 * SOLVER_TOL)
        return value, Status.FALLBACK if np.isfinite(value) else Status.HIGH_LEVERAGE

    def _solve_rounded(self, row: FloatArray, weight: float) -> tuple[float, Status]:
        """Solve one row that no solver settled, with scores rounded up more coarsely."""
        coarser = self._coarser
        if coarser is None:
            return np.inf, Status.UNCERTIFIED
        value, status = coarser._solve_alone(row, weight, [])
        return value, Status.ROUNDED_UP if np.isfinite(value) else status

    @cached_property
    def _coarser(self) -> "QuantileModel | None":
        """The model with the next of the `RESOLUTIONS`."""
        left = [step for step in RESOLUTIONS if step > self._resolution]
        return _fit(coarsen(self._problem, left[0]), None, left[0]) if left else None


def _chunks(count: int) -> Iterator[slice]:
    return (slice(low, low + CHUNK) for low in range(0, count, CHUNK))


def fit_quantiles(
    phi_calib: ArrayLike,
    scores_calib: ArrayLike,
    alpha: ArrayLike = 0.1,
    *,
    start: ArrayLike | None = None,
) -> QuantileModel:
    """Fit the quantile regression from which the thresholds of test points follow.

    Parameters
    ----------
    phi_calib : (n, p) array
        Basis rows of the calibration points; any rank, any scale.
    scores_calib : (n,) array
        Scores of their true labels; ties are allowed.
    alpha : float or (n,) array
        Miscoverage, strictly between 0 and 1; an array holds that of each calibration point.
    start : (rank,) array, optional
        The `basic_points` of a model fitted on the same data, which make a search unnecessary.

    Returns
    -------
    QuantileModel

    Examples
    --------
    Each of two disjoint groups gets its own conformal quantile:

    >>> import numpy as np
    >>> groups = np.repeat(np.eye(2), [9, 19], axis=0)
    >>> model = fit_quantiles(groups, np.arange(28.0), alpha=0.1)
    >>> model.thresholds(np.eye(2)).values
    array([ 8., 26.])
    >>> again = fit_quantiles(groups, np.arange(28.0), alpha=0.1, start=model.basic_points)
    >>> bool(np.all(again.basic_points == model.basic_points))
    True
    """
    problem = build_problem(phi_calib, scores_calib, alpha)
    return fit_problem(problem, None if start is None else np.asarray(start))


def fit_problem(problem: Problem, start: IntArray | None = None) -> QuantileModel:
    """Fit a problem, with coarser scores where it cannot be certified as it is."""
    model = _fit(problem, start, RESOLUTIONS[0])
    while not model.certificate.holds and model._coarser is not None:
        model = model._coarser
    return model


def _fit(problem: Problem, start: IntArray | None, resolution: float) -> QuantileModel:
    return make_model(problem, fit_vertex(problem, start), resolution)


def make_model(
    problem: Problem, vertex: Vertex, resolution: float = RESOLUTION, threads: int | None = None
) -> QuantileModel:
    """Wrap the fitted vertex of a problem; `threads` limits those of its thresholds."""
    return QuantileModel(
        alpha=problem.alpha,
        basic_points=problem.first[vertex.basic_points],
        certificate=vertex.certificate,
        _problem=problem,
        _vertex=vertex,
        _resolution=resolution,
        _threads=threads,
    )


def warm_up() -> None:
    """Compile all kernels of the engine, or load them from the cache, by solving small problems.

    Examples
    --------
    >>> warm_up()
    """
    x = np.exp(2.0 * np.random.default_rng(0).standard_normal(400))
    phi = np.stack([x**k for k in range(4)], axis=1)
    model = fit_quantiles(phi, x, alpha=0.1)
    rows = np.vstack([phi[:20], 9.0 * phi[np.argmax(x)]])
    model.thresholds(rows)
    # No path here is too long, so a finite and an infinite row are solved as if theirs were.
    basic = model._vertex.basic_points
    for row in model._problem.whitening.apply(rows[[0, -1]]):
        model._solve_alone(row, 0.9, [(0.9 * row, basic)])
