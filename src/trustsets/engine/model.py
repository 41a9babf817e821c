"""Fit once, then compute thresholds of any number of test points."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trustsets._arrays import to_numpy
from trustsets._blocks import in_threads
from trustsets.engine.compiled import BoolArray, FloatArray, IntArray
from trustsets.engine.extreme import WeightedSample, choose_sample, fit_extreme, solve_as_program
from trustsets.engine.fit import UNBOUNDED, Certificate, Vertex, fit_vertex, refit_vertex
from trustsets.engine.kernels import vertex_threshold
from trustsets.engine.linear_program import SOLVER_TOL
from trustsets.engine.path import (
    STRETCH,
    WEIGHT_TOL,
    PathResults,
    PathState,
    ScanOrder,
    Tour,
    allocate,
    blank_results,
    follow_paths,
    make_scan_order,
    make_tour,
    tour_scale,
)
from trustsets.engine.problem import (
    RANK_TOL,
    RESOLUTION,
    Problem,
    at_alpha,
    build_problem,
    coarsen,
    read_alphas,
    read_matrix,
    read_points,
    read_weights,
)
from trustsets.status import Status, Thresholds

# Score differences that count as ties, as shares of the score scale. Where rounding keeps a
# solution from being certified, the next one is tried; with the last all scores are equal.
RESOLUTIONS = (RESOLUTION, 2.0**-24, 2.0**-12, 4.0)
# An optimal vertex is unique if no dual value comes this close to a bound of its box.
UNIQUE_TOL = 1e-7


@dataclass(frozen=True, eq=False)
class QuantileModel:
    """A fitted base problem, which gives thresholds of test points; made by `fit_quantiles`."""

    _problem: Problem
    _vertex: Vertex

    def __post_init__(self) -> None:
        """Forbid changes of all learned arrays: predictors and threads share them."""
        parts = (self._problem, self._vertex)
        values = [getattr(part, field.name) for part in parts for field in fields(part)]
        for value in (*values, *self._problem.whitening):
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Store the fields alone: the scan order takes several times the memory of the fit."""
        return type(self), (self._problem, self._vertex)

    @cached_property
    def _is_proven(self) -> bool:
        return self.certificate.holds

    @cached_property
    def _scan_order(self) -> ScanOrder:
        """Made when thresholds are first asked for: a fit alone does not need it."""
        return make_scan_order(self._problem, self._vertex)

    @cached_property
    def _tour_scale(self) -> FloatArray:
        """In which rows near each other have short paths between them."""
        return tour_scale(self._problem, self._vertex)

    @cached_property
    def _states(self) -> list[PathState]:
        """Work arrays that no thread uses at present; what they know about blocks stays valid."""
        return []

    @cached_property
    def _sample(self) -> WeightedSample:
        return choose_sample(self._problem, self._scan_order)

    @property
    def alpha(self) -> float:
        """Miscoverage; the mean of `alphas` where each calibration point has its own."""
        return self._problem.alpha

    @property
    def alphas(self) -> FloatArray | None:
        """Miscoverage of each calibration point, or None where all have the same."""
        return self._problem.alphas

    @property
    def rank(self) -> int:
        """Dimension of the function class on the calibration data."""
        return len(self._vertex.basic_points)

    @property
    def basic_points(self) -> IntArray:
        """Row numbers (rank,) of the calibration points that the base fit passes through.

        They and the calibration data determine the model:
        ``fit_quantiles(phi, scores, alpha, start=basic_points)`` makes an equal one without a
        search.
        """
        return self._problem.first[self._vertex.basic_points]

    @property
    def certificate(self) -> Certificate:
        """Proof that the base fit is optimal."""
        return self._vertex.certificate

    def thresholds(
        self,
        phi_test: ArrayLike,
        weight: ArrayLike | None = None,
        *,
        alpha: ArrayLike | None = None,
    ) -> Thresholds:
        """Threshold of every test row: "The linear program" in docs/engine.md defines it.

        Breakpoints within 1e-9 of the weight count as equal to it.

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
        problem = self._problem
        phi = read_matrix(phi_test, "phi_test", len(problem.whitening.scale))
        weights = read_weights(problem, weight, alpha, len(phi))
        rows, unseen = self._whiten(phi)
        return self._final(self._solve_rows(rows, weights, unseen))

    def at(self, alpha: float) -> "QuantileModel | None":
        """The same data at another alpha, by a search that starts here; None where they differ.

        It is bitwise identical to the model of `fit_quantiles`.
        """
        if self._problem.resolution > RESOLUTION or self.alphas is not None:
            return None
        number = float(read_alphas(alpha, 1, "model").item())
        return refit(at_alpha(self._problem, number), self._vertex.basic_points)

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

        Examples
        --------
        >>> import numpy as np
        >>> from trustsets.engine import fit_quantiles
        >>> fit_quantiles(np.ones((10, 1)), np.arange(10.0), alpha=0.2).leave_one_out().values
        array([8., 8., 8., 8., 8., 8., 8., 8., 7., 7.])
        """
        problem = self._problem
        numbers = read_points(points, len(problem.point))
        alphas = np.asarray(problem.alpha if problem.alphas is None else problem.alphas[numbers])
        below = read_weights(problem, weight, alphas, len(numbers)) - (1.0 - alphas)
        point = problem.point[numbers]
        if problem.alphas is None and len(np.unique(below)) == 1:
            # Copies with the same weight have the same threshold.
            point, back = np.unique(point, return_inverse=True)
            once = self._solve_without(point, below[: len(point)])
            return self._final(Thresholds(once.values[back], once.status[back]))
        return self._final(self._solve_without(point, below))

    def _solve_without(self, point: IntArray, below: FloatArray) -> Thresholds:
        """Thresholds of points without one copy of each, `below` being ``u - (1 - alpha)``.

        "Leaving one point out" in docs/engine.md: that of its row with weight ``u - (1 - alpha)``
        in the model of all points where this is below its score, and with ``u + alpha`` elsewhere.
        """
        problem = self._problem
        rows, scores = problem.rows[point], problem.scores[point]
        result = self._solve_rows(rows, below)
        # A score within rounding of the fit counts as one on it. If it lies above, the second
        # threshold exceeds the first by no more than this.
        is_above = scores > result.values + RESOLUTION * problem.score_scale
        rest = np.flatnonzero(~is_above)
        second = self._solve_rows(rows[rest], below[rest] + 1.0)
        result.values[rest], result.status[rest] = second.values, second.status
        infinite = np.flatnonzero(result.status == Status.HIGH_LEVERAGE)
        result.status[infinite[self._are_alone(point[infinite])]] = Status.UNSEEN_DIRECTION
        return result

    def _are_alone(self, point: IntArray) -> BoolArray:
        """Whether each of these points is the only one with some direction.

        Its leverage is then one, and its column ``Q (Q'Q)^-1 Q_i`` of the hat matrix is zero for
        all other points. At most `rank` points have a leverage near one.
        """
        problem, rows = self._problem, self._problem.rows
        alone = (problem.multiplicities[point] == 1.0) & (
            problem.norms[point] ** 2 > 0.5 * len(rows)
        )
        for k in np.flatnonzero(alone):
            # Whitening makes Q'Q a multiple of the identity only up to the condition of the basis.
            column = np.abs(rows @ np.linalg.solve(rows.T @ rows, rows[point[k]]))
            column[point[k]] = 0.0
            alone[k] = column.max() <= RANK_TOL
        return np.asarray(alone)

    def _solve_rows(
        self,
        rows: FloatArray,
        weights: FloatArray,
        unseen: BoolArray | None = None,
        tour: Tour | None = None,
    ) -> Thresholds:
        """Thresholds of whitened rows, in the units of the problem's scores."""
        if not self._is_proven:
            status = np.full(len(rows), Status.UNCERTIFIED, np.int8)
            return Thresholds(np.full(len(rows), np.inf), status)
        paths = self._follow(rows, weights, tour)
        result = Thresholds(paths.values, paths.status)
        if unseen is not None:
            result.values[unseen] = np.copysign(np.inf, weights[unseen])
            result.status[unseen] = Status.UNSEEN_DIRECTION

        def run(i: int) -> None:
            result.values[i], result.status[i] = self._solve_alone(rows[i], float(weights[i]))

        # Paths that are too long or failed their check.
        left = np.flatnonzero(result.status == Status.FALLBACK).tolist()
        if left:
            in_threads(run, left)
        return result

    def _final(self, result: Thresholds) -> Thresholds:
        """Change to the units of the scores as they came, and forbid further changes."""
        np.ldexp(result.values, self._problem.exponent, out=result.values)
        if self._problem.resolution > RESOLUTION:
            result.status[np.isfinite(result.values)] = Status.ROUNDED_UP
        for array in (result.values, result.status):
            array.flags.writeable = False
        return result

    def fitted(self, phi: ArrayLike) -> FloatArray:
        """Values of the base fit, shape (m,): lower bounds of the thresholds, without a path.

        Infinite for a row with a direction that no calibration point has.
        """
        problem, vertex = self._problem, self._vertex
        matrix = read_matrix(phi, "phi", len(problem.whitening.scale))
        if not self._is_proven:
            return np.full(len(matrix), -np.inf)
        rows, unseen = self._whiten(matrix)
        beta = vertex.inverse.T @ problem.scores[vertex.basic_points]
        # Not a matrix product: the last digits of one depend on the other rows of its batch.
        values = np.einsum("ij,j->i", rows, beta)
        values[unseen] = np.inf
        return np.asarray(np.ldexp(values, problem.exponent))

    def _whiten(self, phi: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Whitened rows, and which of them leave the span of the calibration rows."""
        whitening = self._problem.whitening
        rows, gaps = np.empty((len(phi), len(whitening.independent))), np.empty(len(phi))

        def run(part: slice) -> None:
            rows[part], gaps[part] = whitening.apply_and_compare(phi[part])

        _in_stretches(run, len(phi))
        return rows, gaps > 2.0 * whitening.seen

    def _follow(
        self, rows: FloatArray, weights: FloatArray, tour: Tour | None = None
    ) -> PathResults:
        """Run the paths in threads; a point's result does not depend on how rows are split."""
        results, start = blank_results(len(rows)), self._scan_order
        is_whole = tour is not None
        if tour is None:
            # A single row has no neighbours, and nobody should wait for their distances.
            alone = Tour(np.zeros(1, np.int64), np.zeros(1, np.int64))
            tour = alone if len(rows) == 1 else make_tour(rows, self._tour_scale)

        def run(part: slice) -> None:
            try:
                state = self._states.pop()
            except IndexError:
                state = allocate(start.scan)
            stretch = Tour(tour.order[part], tour.chained[part])
            follow_paths(rows, weights, stretch, start.base, start.scan, results, state)
            self._states.append(state)

        if is_whole:
            # A tour that serves many alphas: each thread has one of them.
            run(slice(None))
        else:
            _in_stretches(run, len(rows))
        return results

    def _solve_alone(self, row: FloatArray, weight: float) -> tuple[float, Status]:
        """Solve one whitened row as an extreme one, or by linear program if that fails."""
        problem = self._problem
        # As on a path: just below the weight the optimum is the smallest one at the weight.
        goal = (weight - WEIGHT_TOL) * row
        status, vertex, _ = fit_extreme(problem, self._scan_order, self._sample, goal)
        if status == UNBOUNDED:
            return float(np.copysign(np.inf, weight)), Status.HIGH_LEVERAGE
        if vertex is not None and vertex.certificate.holds:
            basic, inverse = vertex.basic_points, vertex.inverse
            value = vertex_threshold(problem.rows, basic, inverse, row, problem.scores)
            return value, Status.EXACT
        optimum = solve_as_program(problem, row, weight)
        if optimum is not None:
            # HiGHS satisfies constraints up to its tolerance, and a threshold may only err upwards.
            value = problem.score_scale * (optimum + 2.0 * SOLVER_TOL)
            return value, Status.FALLBACK if np.isfinite(value) else Status.HIGH_LEVERAGE
        if self._coarser is None:
            return np.inf, Status.UNCERTIFIED
        value, status = self._coarser._solve_alone(row, weight)
        return value, Status.ROUNDED_UP if np.isfinite(value) else status

    @cached_property
    def _coarser(self) -> "QuantileModel | None":
        """The model with the next of the `RESOLUTIONS`."""
        coarser = [step for step in RESOLUTIONS if step > self._problem.resolution]
        if not coarser:
            return None
        problem = coarsen(self._problem, coarser[0])
        return QuantileModel(problem, fit_vertex(problem))


def _in_stretches(run: Callable[[slice], None], count: int) -> None:
    """Run for all of so many rows, in threads if they are several stretches."""
    if count <= STRETCH:
        # A single row would wait longer for the threads than for its result.
        run(slice(None))
    else:
        in_threads(run, [slice(low, low + STRETCH) for low in range(0, count, STRETCH)])


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

    Examples
    --------
    Each of two disjoint groups gets its own conformal quantile:

    >>> import numpy as np
    >>> groups = np.repeat(np.eye(2), [9, 19], axis=0)
    >>> model = fit_quantiles(groups, np.arange(28.0), alpha=0.1)
    >>> model.thresholds(np.eye(2)).values
    array([ 8., 26.])
    """
    problem = build_problem(phi_calib, scores_calib, alpha)
    return fit_problem(problem, None if start is None else to_numpy(start, "start"))


def fit_problem(problem: Problem, start: IntArray | None = None) -> QuantileModel:
    """Fit a problem, with coarser scores where it cannot be certified as it is."""
    model = QuantileModel(problem, fit_vertex(problem, start))
    while not model.certificate.holds and model._coarser is not None:
        model = model._coarser
    return model


def refit(problem: Problem, start: IntArray) -> QuantileModel:
    """Fit from the basic points of another alpha, where that finds the only optimal vertex."""
    vertex = refit_vertex(problem, start)
    # No other vertex is optimal where all dual values lie clearly inside their box.
    if vertex.certificate.holds and vertex.room > UNIQUE_TOL:
        return QuantileModel(problem, vertex)
    return fit_problem(problem)


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
    for row in model._problem.whitening.apply(rows[[0, -1]]):
        model._solve_alone(row, 0.9)
