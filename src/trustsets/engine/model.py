"""The two public calls: fit once, then thresholds of any number of test points."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from trustsets._common.blocks import available_cores
from trustsets.engine.descent import CAPPED, UNBOUNDED
from trustsets.engine.fit import Certificate, Vertex, fit_vertex
from trustsets.engine.kernels import weighted_sum
from trustsets.engine.landmarks import Landmarks, nearest_landmarks
from trustsets.engine.oracle import SOLVER_TOL, solve_reduced
from trustsets.engine.path import LEVEL_TOL, follow_all, make_landmarks
from trustsets.engine.problem import (
    RESOLUTION,
    FloatArray,
    IntArray,
    Problem,
    build_problem,
    coarsen,
    read_matrix,
)
from trustsets.engine.pulled import Guards, Solved, choose_guards, fit_pulled
from trustsets.engine.result import Thresholds
from trustsets.engine.scan import Base, prepare
from trustsets.errors import InputError
from trustsets.status import Status

__all__ = ["QuantileModel", "fit_quantiles", "warm_up"]

T = TypeVar("T")

RESOLUTIONS = (RESOLUTION, 2.0**-24, 2.0**-12, 4.0)
"""How closely scores are told apart, as shares of their scale. Where rounding keeps a solution
from being certified, the next one rounds scores up more coarsely; with the last all are equal."""
CHUNK = 256
"""Test points a thread takes at a time."""
MOST_SOLVED = 256
"""Extreme rows that others may start from; with more the search for the nearest takes longer."""


@dataclass(frozen=True, eq=False)
class QuantileModel:
    """A fitted base problem, ready to give thresholds; made by `fit_quantiles`.

    Attributes
    ----------
    alpha : float
        Miscoverage.
    basis : (rank,) array
        Calibration points that the base fit passes through. The model is a function of the
        calibration data and this array: ``fit_quantiles(phi, scores, alpha, start=basis)``
        makes an equal model without searching.
    certificate : Certificate
        Proof that the base fit is optimal.
    """

    alpha: float
    basis: IntArray
    certificate: Certificate
    _problem: Problem
    _vertex: Vertex
    _base: Base
    _resolution: float
    _certified: bool

    @cached_property
    def _marks(self) -> Landmarks:
        """Made when thresholds are first asked for: a fit alone does not need them."""
        return make_landmarks(self._problem, self._base)

    @property
    def _no_marks(self) -> Landmarks:
        """The base vertex alone, which is the whole path of rows without weight."""
        return make_landmarks(self._problem, self._base, most=0)

    @cached_property
    def _guards(self) -> Guards:
        return choose_guards(self._problem, self._base)

    @property
    def rank(self) -> int:
        """Dimension of the function class on the calibration data."""
        return len(self.basis)

    @property
    def n_columns(self) -> int:
        """Number of basis functions p a test row must have."""
        return len(self._problem.whitening.scale)

    @property
    def n_points(self) -> int:
        """Number of calibration points n."""
        return int(self._problem.copies.sum())

    def thresholds(self, phi_test: ArrayLike, level: ArrayLike | None = None) -> Thresholds:
        r"""Threshold :math:`S^*` of every test row.

        With weight u (the `level`) on a test row :math:`\phi`,

        .. math:: S^* = \phi'\beta(u),\qquad \beta(u) = \arg\min_b \sum_i \ell_\alpha(s_i -
            \Phi_i b) - u\,\phi'b,

        and the smallest such value where the minimum is not unique. Breakpoints within 1e-9 of
        the level count as equal to it.

        Parameters
        ----------
        phi_test : (m, p) array
            Basis rows of the test points.
        level : float or (m,) array, optional
            Weights in ``(-alpha, 1 - alpha]``. The default ``1 - alpha`` gives coverage of at
            least ``1 - alpha``; uniform draws give exactly that.

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
        >>> model.thresholds(np.ones((2, 1)), level=[-0.05, 0.5]).values
        array([17., 17.])
        """
        phi = self._read_rows(phi_test)
        levels = self._read_levels(level, len(phi))
        if not self._certified:
            return self._all_uncertified(len(phi))
        result = self._follow(phi, levels)
        unseen = self._problem.whitening.leaves_row_space(phi)
        result.values[unseen] = np.copysign(np.inf, levels[unseen])
        result.status[unseen] = Status.UNSEEN_DIRECTION
        self._finish_long(phi, levels, result)
        np.ldexp(result.values, self._problem.exponent, out=result.values)
        if self._resolution > RESOLUTIONS[0]:
            result.status[np.isfinite(result.values)] = Status.ROUNDED_UP
        for array in (result.values, result.status, result.pivots):
            array.flags.writeable = False
        return result

    def fitted(self, phi: ArrayLike) -> FloatArray:
        """Values of the base fit, shape (m,): lower bounds of the thresholds, without a path.

        Infinite for a row with a direction that no calibration point has.
        """
        rows = self._read_rows(phi)
        if not self._certified:
            return np.full(len(rows), -np.inf)
        problem, basis = self._problem, self._vertex.basis
        beta = self._vertex.corner.T @ problem.scores[basis]
        # Not a matrix product: the last digits of one depend on the other rows of its batch.
        values = np.einsum("ij,j->i", problem.whitening.apply(rows), beta)
        values[problem.whitening.leaves_row_space(rows)] = np.inf
        return np.asarray(np.ldexp(values, problem.exponent))

    def _all_uncertified(self, count: int) -> Thresholds:
        """Infinite thresholds: the answer where even the coarsest base fit has no proof."""
        status = np.full(count, Status.UNCERTIFIED, np.int8)
        return Thresholds(np.full(count, np.inf), status, np.zeros(count, np.int64))

    def _read_rows(self, phi_test: ArrayLike) -> FloatArray:
        phi = read_matrix(phi_test, "phi_test")
        if phi.shape[1] != self.n_columns:
            raise InputError(
                f"phi_test must have the {self.n_columns} columns of phi_calib, got "
                f"{phi.shape[1]}; use the same basis for calibration and test."
            )
        return phi

    def _read_levels(self, level: ArrayLike | None, count: int) -> FloatArray:
        given = np.asarray(1.0 - self.alpha if level is None else level, dtype=np.float64)
        if given.ndim > 1 or (given.ndim == 1 and len(given) != count):
            raise InputError(
                f"level must be one number or one per test row ({count}), got shape {given.shape}."
            )
        if not np.all((given > -self.alpha) & (given <= 1.0 - self.alpha)):
            raise InputError(
                f"level must lie in (-alpha, 1 - alpha] = ({-self.alpha}, {1.0 - self.alpha}], got "
                f"values from {given.min()} to {given.max()}; draw uniformly from that interval."
            )
        return np.ascontiguousarray(np.broadcast_to(given, (count,)))

    def _follow(self, phi: FloatArray, levels: FloatArray) -> Thresholds:
        """Run the paths in threads; a point's result does not depend on how rows are split."""
        out = Thresholds(
            np.empty(len(phi)), np.empty(len(phi), np.int8), np.empty(len(phi), np.int64)
        )

        rows, starts = np.empty((len(phi), self.rank)), np.empty(len(phi), np.int64)
        marks = self._marks if np.any(levels != 0.0) else self._no_marks

        def locate(part: slice) -> None:
            rows[part] = self._problem.whitening.apply(phi[part])
            nearest_landmarks(rows[part], levels[part], marks, starts[part])

        def run(part: IntArray) -> None:
            follow_all(
                rows,
                levels,
                starts,
                part,
                self._base,
                marks,
                False,
                out.values,
                out.status,
                out.pivots,
            )

        _in_threads(locate, list(_chunks(len(phi))))
        order = np.argsort(starts, kind="stable")
        _in_threads(run, [order[part] for part in _chunks(len(phi))])
        return out

    def _finish_long(self, phi: FloatArray, levels: FloatArray, result: Thresholds) -> None:
        """Points whose path was too long or failed its check: by descent, else by linear program.

        Their status comes back as `EXACT`, `HIGH_LEVERAGE` or, after the program, `FALLBACK`.
        """
        left = np.flatnonzero(result.status == Status.FALLBACK)
        rows = self._problem.whitening.apply(phi[left])
        solved: list[Solved] = []

        def run(k: int) -> None:
            i = left[k]
            result.values[i], result.status[i] = self._solve_alone(
                rows[k], float(levels[i]), solved
            )

        # The longest rows take longest: started first, they do not leave a thread waiting.
        lengths = np.einsum("ij,ij->i", rows, rows)
        _in_threads(run, np.argsort(-lengths).tolist())

    def _solve_alone(
        self, row: FloatArray, level: float, solved: list[Solved]
    ) -> tuple[float, Status]:
        """One whitened row by descent; by linear program if that fails."""
        problem, infinity = self._problem, float(np.copysign(np.inf, level))
        # Just below the level the optimum is unique, and it is the smallest one at the level.
        goal = (level - LEVEL_TOL) * row
        try:
            status, basis, vertex = fit_pulled(
                problem, self._vertex, self._base, self._guards, goal, solved
            )
        except np.linalg.LinAlgError:  # basic rows on the way became dependent
            status, basis, vertex = CAPPED, self._vertex.basis, None
        if status == UNBOUNDED:
            return infinity, Status.HIGH_LEVERAGE
        if vertex is not None and vertex.certificate.holds:
            if len(solved) < MOST_SOLVED:
                solved.append((goal, basis))
            terms = np.stack([vertex.corner @ row, problem.scores[basis]])
            return weighted_sum(terms, 0, 1), Status.EXACT
        scale = problem.score_scale
        value = solve_reduced(
            problem.rows,
            problem.scores / scale,
            problem.copies,
            self._vertex.residuals,
            problem.norms,
            self.alpha,
            row,
            level,
        )
        if value is None:
            return self._solve_rounded(row, level)
        # HiGHS satisfies constraints up to its tolerance; a threshold may only err upwards.
        value += 2.0 * SOLVER_TOL
        return scale * value, Status.FALLBACK if np.isfinite(value) else Status.HIGH_LEVERAGE

    def _solve_rounded(self, row: FloatArray, level: float) -> tuple[float, Status]:
        """One row that no solver could settle: by the same problem with scores rounded up."""
        coarser = self._coarser
        if coarser is None:
            return np.inf, Status.UNCERTIFIED
        value, status = coarser._solve_alone(row, level, [])
        return value, Status.ROUNDED_UP if np.isfinite(value) else status

    @cached_property
    def _coarser(self) -> "QuantileModel | None":
        """The model of coarser scores, the next in `RESOLUTIONS`."""
        left = [step for step in RESOLUTIONS if step > self._resolution]
        return _fit(coarsen(self._problem, left[0]), None, left[0]) if left else None


def _in_threads(run: Callable[[T], None], tasks: Sequence[T]) -> None:
    """Run all tasks; the kernels release the interpreter's lock. One task needs no thread."""
    if len(tasks) <= 1:
        for task in tasks:
            run(task)
        return
    with ThreadPoolExecutor(min(len(tasks), available_cores())) as threads:
        list(threads.map(run, tasks))


def _chunks(count: int) -> Iterator[slice]:
    return (slice(low, low + CHUNK) for low in range(0, count, CHUNK))


def fit_quantiles(
    phi_calib: ArrayLike,
    scores_calib: ArrayLike,
    alpha: float = 0.1,
    *,
    start: ArrayLike | None = None,
) -> QuantileModel:
    """Fit the quantile regression from which thresholds of test points follow.

    Parameters
    ----------
    phi_calib : (n, p) array
        Basis rows of the calibration points; any rank, any scale.
    scores_calib : (n,) array
        Scores of their true labels; ties are welcome.
    alpha : float
        Miscoverage, strictly between 0 and 1.
    start : (rank,) array, optional
        The `basis` of a model fitted on the same data: skips the search.

    Returns
    -------
    QuantileModel

    Examples
    --------
    Two disjoint groups get each their own conformal quantile:

    >>> import numpy as np
    >>> groups = np.repeat(np.eye(2), [9, 19], axis=0)
    >>> model = fit_quantiles(groups, np.arange(28.0), alpha=0.1)
    >>> model.thresholds(np.eye(2)).values
    array([ 8., 26.])
    >>> again = fit_quantiles(groups, np.arange(28.0), alpha=0.1, start=model.basis)
    >>> bool(np.all(again.basis == model.basis))
    True
    """
    problem = build_problem(phi_calib, scores_calib, alpha)
    model = _fit(problem, None if start is None else np.asarray(start), RESOLUTIONS[0])
    while not model._certified and model._coarser is not None:
        model = model._coarser
    return model


def _fit(problem: Problem, start: IntArray | None, resolution: float) -> QuantileModel:
    vertex = fit_vertex(problem, start)
    return QuantileModel(
        alpha=problem.alpha,
        basis=problem.first[vertex.basis],
        certificate=vertex.certificate,
        _problem=problem,
        _vertex=vertex,
        _base=prepare(problem, vertex),
        _resolution=resolution,
        _certified=vertex.certificate.holds,
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
    rows = np.vstack([phi[:20], 0.5 * phi[np.argmax(x)], 9.0 * phi[np.argmax(x)]])
    model.thresholds(rows)
    # Few test points are so extreme that their path is too long; solve one as if it were.
    for row in model._problem.whitening.apply(rows[-2:]):
        model._solve_alone(row, 0.9, [(0.9 * row, model._vertex.basis)])
