r"""Thresholds of calibration points, each as a test point of the model without it.

They need no other fit, because the fit of all points contains those without one. For point i, let
:math:`t(u)` be its threshold with weight u in the model without it, and :math:`F(g)` that of its
row with weight g in the model of all points. There its own dual value :math:`\eta_i` acts like
weight on its row, too. If its score s lies above the fit, :math:`\eta_i = 1 - \alpha` and
:math:`F(g) = t(g + 1 - \alpha)`; if s lies below, :math:`F(g) = t(g - \alpha)`; and else the fit
passes through s. Because t increases,

.. math::
    F(u - (1 - \alpha)) &= \min\{t(u), \max(s, t(u - 1))\},\\
    F(u + \alpha) &= \max\{t(u), \min(s, t(u + 1))\}.

So :math:`t(u)` is the first of the two where that is below s, and the second elsewhere. For the
usual weight :math:`u = 1 - \alpha` the first is the value of the fit, and the second puts weight 1
on the row. Copies of the point count as other points do.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from trustsets.engine.compiled import BoolArray, FloatArray, IntArray
from trustsets.engine.problem import RESOLUTION, Problem
from trustsets.engine.reading import read_points, read_weights
from trustsets.engine.result import Thresholds
from trustsets.engine.whitening import RANK_TOL
from trustsets.status import Status

__all__ = ["thresholds_without"]

Solve = Callable[[FloatArray, FloatArray], Thresholds]
"""Thresholds of whitened rows with these weights, in the units of the problem's scores."""


def thresholds_without(
    problem: Problem, points: ArrayLike | None, weight: ArrayLike | None, solve: Solve
) -> Thresholds:
    """Thresholds of calibration points by row number, each without itself."""
    numbers = read_points(points, len(problem.point))
    alphas = np.asarray(problem.alpha if problem.alphas is None else problem.alphas[numbers])
    below = read_weights(weight, alphas, len(numbers)) - (1.0 - alphas)
    point = problem.point[numbers]
    if problem.alphas is None and len(np.unique(below)) == 1:
        # Copies with the same weight have the same threshold.
        point, back = np.unique(point, return_inverse=True)
        found = _solve_distinct(problem, point, below[: len(point)], solve)
        return Thresholds(found.values[back], found.status[back], found.pivots[back])
    return _solve_distinct(problem, point, below, solve)


def _solve_distinct(
    problem: Problem, point: IntArray, below: FloatArray, solve: Solve
) -> Thresholds:
    """Thresholds of points without one copy of each, `below` being ``u - (1 - alpha)``."""
    rows, scores = problem.rows[point], problem.scores[point]
    found = solve(rows, below)
    # A score within rounding of the fit counts as one on it. If it lies above, the second threshold
    # exceeds the first by no more than this.
    is_above = scores > found.values + RESOLUTION * problem.score_scale
    rest = np.flatnonzero(~is_above)
    again = solve(rows[rest], below[rest] + 1.0)
    found.values[rest], found.status[rest] = again.values, again.status
    found.pivots[rest] += again.pivots
    infinite = np.flatnonzero(found.status == Status.HIGH_LEVERAGE)
    found.status[infinite[_are_alone(problem, point[infinite])]] = Status.UNSEEN_DIRECTION
    return found


def _are_alone(problem: Problem, point: IntArray) -> BoolArray:
    """Whether each of these points is the only one with some direction.

    Its leverage is then one, and its column ``Q (Q'Q)^-1 Q_i`` of the hat matrix is zero for all
    other points. At most `rank` points have a leverage near one.
    """
    rows = problem.rows
    alone = (problem.copies[point] == 1.0) & (problem.norms[point] ** 2 > 0.5 * len(rows))
    for k in np.flatnonzero(alone):
        # Whitening makes Q'Q a multiple of the identity only up to the condition of the basis.
        column = np.abs(rows @ np.linalg.solve(rows.T @ rows, rows[point[k]]))
        column[point[k]] = 0.0
        alone[k] = column.max() <= RANK_TOL
    return np.asarray(alone)
