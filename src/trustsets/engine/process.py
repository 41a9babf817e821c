"""Fits of the same data at many alphas, and the thresholds that they give.

A fit at another alpha shares the rows and starts at a vertex that is not far away. An optimal
vertex whose dual values all lie strictly inside their box is the only one. Where a dual value is at
its bound, the vertex depends on the way there: these alphas are fitted from the beginning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from trustsets._blocks import in_threads
from trustsets.engine.compiled import FloatArray, IntArray
from trustsets.engine.fit import certify, problem_points
from trustsets.engine.model import QuantileModel, fit_problem, refit
from trustsets.engine.path import LONG_STRETCH, STRETCH, make_tour
from trustsets.engine.problem import Problem, at_alpha, build_problem, read_matrix, read_weights
from trustsets.errors import InputError
from trustsets.status import Thresholds

# Alphas whose fits start from one another. Each chain begins with a whole search and is the work
# of one thread.
CHAIN = 25
# Every so many alphas one decides which rows are near each other.
APART = 12


class _Fit(NamedTuple):
    """What it takes to make the model of one alpha again; small, unlike the model itself."""

    problem: Problem
    basic: IntArray
    pivots: int


@dataclass(frozen=True, eq=False)
class QuantileProcess:
    """Fits of the same data at many alphas; made by `fit_quantile_process`.

    It is a sequence of models. They share the data, and each is bitwise identical to the one that
    `fit_quantiles` makes at its alpha. A model is made anew whenever it is asked for, because what
    it keeps to compute thresholds fast can take megabytes for each alpha.

    Attributes
    ----------
    alphas : (A,) array
        Miscoverages, increasing.

    Examples
    --------
    >>> import numpy as np
    >>> from trustsets.engine import fit_quantile_process
    >>> process = fit_quantile_process(np.ones((99, 1)), np.arange(99.0), [0.01, 0.1, 0.2])
    >>> process.at(0.1).thresholds(np.ones((1, 1))).values
    array([89.])
    """

    alphas: FloatArray
    _fits: tuple[_Fit, ...]

    def __len__(self) -> int:
        return len(self._fits)

    def __getitem__(self, number: int) -> QuantileModel:
        """Make the model of the alpha with this number."""
        problem, basic, pivots = self._fits[number]
        points = problem_points(problem)
        vertex = certify(points, problem.alpha, basic, problem.linear, pivots)
        return QuantileModel(problem, vertex)

    def __iter__(self) -> Iterator[QuantileModel]:
        return map(self.__getitem__, range(len(self)))

    def thresholds(self, phi_test: ArrayLike, shares: ArrayLike = 1.0) -> list[Thresholds]:
        """Thresholds of test rows (m, p) at each alpha, as `QuantileModel.thresholds` has them.

        `shares` are numbers U in (0, 1], one or (m,): the weight of a row is ``U - alpha``.
        """
        # Rows are checked, whitened and ordered once; each thread works at one alpha at a time.
        first = self[0]
        phi = read_matrix(phi_test, "phi_test", len(first._problem.whitening.scale))
        rows, unseen = first._whiten(phi)
        # A mean of whitened rows and of some alphas' scales serves all of them.
        models = (self[number] for number in range(0, len(self), APART))
        scales = [
            np.eye(first.rank),
            *(model._tour_scale for model in models if model.certificate.holds),
        ]
        joined = np.hstack([scale / np.linalg.norm(scale) for scale in scales])
        tour = make_tour(rows, np.asarray(np.linalg.qr(joined.T, mode="r")).T, LONG_STRETCH)
        results: list[Any] = [None] * len(self)

        def run(number: int) -> None:
            model = self[number]
            weights = read_weights(model._problem, np.asarray(shares) - model.alpha, None, len(phi))
            results[number] = model._final(model._solve_rows(rows, weights, unseen, tour))

        # Few rows take less time than handing them from thread to thread.
        in_threads(run, range(len(self)), 1 if len(rows) <= STRETCH else None)
        return results

    def at(self, alpha: float) -> QuantileModel:
        """Make the model of an alpha of the grid."""
        number = int(np.searchsorted(self.alphas, alpha))
        if number == len(self) or self.alphas[number] != alpha:
            raise InputError(
                f"alpha must be one of the {len(self)} alphas of this process, from "
                f"{self.alphas[0]} to {self.alphas[-1]}, got {alpha!r}; fit the process with it."
            )
        return self[number]


def default_alphas() -> FloatArray:
    """A hundred alphas from 0.001 to 0.98, finer near 0: round numbers, as users ask for them.

    Examples
    --------
    >>> alphas = default_alphas()
    >>> len(alphas), alphas[:3].tolist(), bool(0.1 in alphas)
    (100, [0.001, 0.002, 0.003], True)
    """
    parts = (range(1, 21), range(25, 101, 5), range(110, 501, 10), range(520, 981, 20))
    return np.concatenate([np.array(part) for part in parts]) / 1000.0


def fit_quantile_process(
    phi_calib: ArrayLike, scores_calib: ArrayLike, alphas: ArrayLike | None = None
) -> QuantileProcess:
    """Fit quantile regressions at many alphas, for a fraction of the time of single fits.

    Parameters
    ----------
    phi_calib, scores_calib : arrays
        As in `fit_quantiles`.
    alphas : (A,) array, optional
        Miscoverages, strictly between 0 and 1 and increasing; by default `default_alphas`.
    """
    grid = default_alphas() if alphas is None else _read_grid(alphas)
    first = build_problem(phi_calib, scores_calib, float(grid[0]))
    fits: list[Any] = [None] * len(grid)

    def run(begin: int) -> None:
        start = None
        for number in range(begin, min(begin + CHAIN, len(grid))):
            problem = at_alpha(first, float(grid[number]))
            model = fit_problem(problem) if start is None else refit(problem, start)
            start, pivots = model._vertex.basic_points, model.certificate.pivots
            fits[number] = _Fit(model._problem, start, pivots)

    in_threads(run, range(0, len(grid), CHAIN))
    return QuantileProcess(grid, tuple(fits))


def _read_grid(alphas: ArrayLike) -> FloatArray:
    grid = np.array(alphas, dtype=np.float64)
    inside = grid.ndim == 1 and len(grid) > 0 and bool(np.all((grid > 0.0) & (grid < 1.0)))
    if not inside or np.any(np.diff(grid) <= 0.0):
        raise InputError(
            "alphas must be increasing numbers strictly between 0 and 1, at least one, got "
            f"{alphas!r}; sort them, or pass None for the default grid."
        )
    return grid
