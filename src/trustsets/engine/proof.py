"""What one threshold rests on: its proof, and how it depends on each calibration score.

A threshold is ``sum_k weights_k * score_k`` over the basic points of the optimal vertex. When one
score moves, the dual values stay feasible, so the vertex stays optimal until a point that is not
basic reaches the fit: a step of the dual simplex method with bounds. So the threshold is piecewise
linear in the score, and constant once the moved point has left the fit. The steps are made on all
points, because moving one of several equal points separates it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from trustsets.engine.compiled import FloatArray, IntArray
from trustsets.engine.extreme import fit_extreme
from trustsets.engine.fit import ROUNDING, UNBOUNDED, Vertex, certify, loss_slopes, problem_points
from trustsets.engine.model import QuantileModel
from trustsets.engine.path import WEIGHT_TOL
from trustsets.engine.problem import RESOLUTION, Problem, Whitening, read_matrix, read_weights
from trustsets.errors import InputError, TrustSetsError
from trustsets.status import Status

# Residuals and dual values whose rates are smaller, relative to the largest, do not move.
RATE_TOL = 1e-10
MOST_STEPS = 1000  # A path that is not finished after so many steps is unknown from there on.


@dataclass(frozen=True, slots=True, eq=False)
class ThresholdProof:
    """Numbers that prove a threshold, given the calibration data and the test row.

    A finite threshold is ``row @ coefficients``. Let ``r = scores - phi @ coefficients``, and let
    ``eta_i`` be ``1 - alpha_i`` where ``r_i > 0``, ``-alpha_i`` where ``r_i < 0``, and the given
    `duals` at `points`, where ``r_i`` is zero up to rounding. If every ``eta_i`` lies in
    ``[-alpha_i, 1 - alpha_i]`` and ``phi.T @ eta = -weight * row``, no coefficients are better.

    An infinite threshold has a ray d. Along it the loss grows by
    ``sum_i max(alpha_i x_i, (alpha_i - 1) x_i)`` with ``x = phi @ d``. If that is less than
    ``weight * row @ d``, the objective falls without bound.

    Attributes
    ----------
    threshold : float
    weight : float
        Weight of the test row, 1e-9 below the one asked for: where the optimum at that is not
        unique, the optimum just below it is the smallest one.
    basic_points : (rank,) array
        Row numbers of calibration points that determine the fit; empty for an infinite threshold.
    points, duals : (k,) arrays
        Row numbers of all calibration points on the fit, and their dual values.
    coefficients : (p,) array
        Of the basis functions, or the ray of an infinite threshold.
    """

    threshold: float
    weight: float
    basic_points: IntArray
    points: IntArray
    duals: FloatArray
    coefficients: FloatArray


def prove_threshold(
    model: QuantileModel,
    phi_x: ArrayLike,
    weight: float | None = None,
    *,
    alpha: float | None = None,
) -> ThresholdProof:
    """Compute the threshold of one test row with the numbers that prove it.

    `phi_x` is its basis row, shape (p,); weight and alpha are as in `QuantileModel.thresholds`.

    Examples
    --------
    >>> import numpy as np
    >>> from trustsets.engine import fit_quantiles
    >>> model = fit_quantiles(np.ones((19, 1)), np.arange(19.0), alpha=0.1)
    >>> proof = prove_threshold(model, [1.0])
    >>> proof.threshold, proof.points, proof.duals.round(6)
    (17.0, array([17]), array([-0.1]))
    """
    phi = read_matrix(np.atleast_2d(np.asarray(phi_x, dtype=np.float64)), "phi_x")
    if len(phi) != 1:
        raise InputError(f"phi_x must be one row, got {len(phi)}; prove thresholds one by one.")
    result = model.thresholds(phi, weight, alpha=alpha)
    asked = float(read_weights(model._problem, weight, alpha, 1)[0])
    below = asked - WEIGHT_TOL
    value, status = float(result.values[0]), result.status[0]
    if status in (Status.ROUNDED_UP, Status.UNCERTIFIED):
        raise _no_proof()
    problem = model._problem
    if status == Status.UNSEEN_DIRECTION:
        ray = np.copysign(1.0, asked) * _unseen_direction(problem.whitening, phi[0])
    else:
        row = problem.whitening.apply(phi)[0]
        goal = below * row
        outcome, vertex, edge = fit_extreme(problem, model._scan_order, model._sample, goal)
        if np.isfinite(value) and vertex is not None:
            return _prove_finite(problem, value, below, goal, vertex)
        if np.isfinite(value) or outcome != UNBOUNDED or not np.isfinite(edge).all():
            raise _no_proof()
        ray = _in_basis(problem.whitening, edge)
    nobody = np.empty(0, np.int64)
    return ThresholdProof(value, below, nobody, nobody, np.empty(0), ray)


def _prove_finite(
    problem: Problem, value: float, weight: float, goal: FloatArray, vertex: Vertex
) -> ThresholdProof:
    # The certificate of an extreme vertex is one over some points; here it is over all of them.
    basic, pivots, linear = vertex.basic_points, vertex.certificate.pivots, problem.linear + goal
    vertex = certify(problem_points(problem), problem.alpha, basic, linear, pivots)
    if not vertex.certificate.holds:
        raise _no_proof()
    beta = np.asarray(np.linalg.solve(problem.rows[basic], problem.scores[basic]), np.float64)
    eta = loss_slopes(problem.multiplicities, vertex.residuals > 0.0, problem.alpha)
    eta[basic] = vertex.eta
    off = np.abs(problem.scores - problem.rows @ beta)
    near = off <= RESOLUTION * problem.score_scale * np.maximum(problem.norms, 1.0)
    # Scores that are large and hardly differ have residuals of which rounding is the larger part.
    near |= off <= ROUNDING * (np.abs(problem.scores) + problem.norms * np.linalg.norm(beta))
    near[basic] = True
    points = np.flatnonzero(near[problem.point])
    # Copies share the dual value of their point, and each moves by what its own alpha differs.
    duals = (eta / problem.multiplicities)[problem.point[points]]
    if problem.alphas is not None:
        duals = duals + (problem.alpha - problem.alphas[points])
    coefficients = np.ldexp(_in_basis(problem.whitening, beta), problem.exponent)
    return ThresholdProof(value, weight, problem.first[basic], points, duals, coefficients)


def _no_proof() -> TrustSetsError:
    return TrustSetsError(
        "rounding errors prevent a proof of this threshold; scale the basis functions to sizes "
        "near one, or use fewer of them."
    )


def _in_basis(whitening: Whitening, vector: FloatArray) -> FloatArray:
    """Coefficients of the basis functions, from those of whitened rows."""
    out = np.zeros(len(whitening.scale))
    out[whitening.independent] = whitening.transform @ vector
    return np.asarray(out * whitening.scale)


def _unseen_direction(whitening: Whitening, row: FloatArray) -> FloatArray:
    """Coefficients that are zero on all calibration rows, and positive on this row."""
    scaled = row * whitening.scale
    gaps = scaled[whitening.dependent] - scaled[whitening.independent] @ whitening.relation
    worst = int(np.argmax(np.abs(gaps)))
    out = np.zeros(len(row))
    out[whitening.independent] = -whitening.relation[:, worst]
    out[whitening.dependent[worst]] = 1.0
    return np.asarray(np.copysign(1.0, gaps[worst]) * out * whitening.scale)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ScorePath:
    """A threshold as a function of one calibration score: linear between the knots.

    Attributes
    ----------
    scores, values : (k,) arrays
        Knots, with increasing scores, and the thresholds there.
    slopes : pair of float
        Slopes below the first knot and above the last one; NaN where the path is not known.

    Examples
    --------
    >>> path = ScorePath(np.array([1.0, 3.0]), np.array([1.0, 2.0]), (0.0, 0.0))
    >>> path.at(np.array([0.0, 2.0, 9.0])), path.reach(1.75)
    (array([1. , 1.5, 2. ]), array([2.5]))
    """

    scores: FloatArray
    values: FloatArray
    slopes: tuple[float, float]

    def at(self, scores: FloatArray) -> FloatArray:
        """Thresholds at the given scores."""
        below = np.minimum(scores - self.scores[0], 0.0)
        above = np.maximum(scores - self.scores[-1], 0.0)
        # A slope of NaN must not touch what is known.
        ends = np.where(below < 0.0, self.slopes[0] * below, 0.0)
        ends = ends + np.where(above > 0.0, self.slopes[1] * above, 0.0)
        return np.asarray(np.interp(scores, self.scores, self.values) + ends)

    def reach(self, value: float) -> FloatArray:
        """Scores at which the threshold passes through `value`."""
        if not (np.isfinite(value) and np.isfinite(self.values).all()):
            return np.empty(0)
        gaps = value - self.values
        steps, rises = np.diff(self.scores), np.diff(self.values)
        inside = np.flatnonzero(gaps[:-1] * gaps[1:] < 0.0)
        scores = [self.scores[inside] + gaps[inside] / rises[inside] * steps[inside]]
        for end, slope, sign in ((0, self.slopes[0], -1.0), (-1, self.slopes[1], 1.0)):
            if slope * sign * gaps[end] > 0.0:
                scores.append(np.array([self.scores[end] + gaps[end] / slope]))
        return np.concatenate(scores)

    def shifted(self, amount: float) -> "ScorePath":
        """The path with `amount` added to all thresholds."""
        return ScorePath(self.scores, self.values + amount, self.slopes)


@final
class Sensitivity:
    """What a proven finite threshold is made of, and how it depends on each score.

    `row` is the basis row of the test point, shape (p,), and `proof` its `prove_threshold`.

    Examples
    --------
    >>> from trustsets.engine import fit_quantiles, prove_threshold
    >>> model = fit_quantiles(np.ones((9, 1)), np.arange(9.0), alpha=0.25)
    >>> row = np.ones(1)
    >>> sensitivity = Sensitivity(model, row, prove_threshold(model, row))
    >>> sensitivity.points, sensitivity.weights
    (array([7]), array([1.]))
    >>> path = sensitivity.path(7)
    >>> path.scores, path.values
    (array([6., 7., 8.]), array([6., 7., 8.]))
    """

    def __init__(self, model: QuantileModel, row: FloatArray, proof: ThresholdProof) -> None:
        problem = model._problem
        self._rows = problem.rows[problem.point]
        self._scores = problem.scores[problem.point]
        self._perturbations = problem.perturbations[problem.point]
        self._exponent = problem.exponent
        self._goal = problem.whitening.apply(np.asarray(row, np.float64)[None])[0]
        alphas = np.full(len(self._rows), problem.alpha)
        self._low = -(alphas if problem.alphas is None else problem.alphas)
        self._proof = proof
        self.points = proof.basic_points
        """Row numbers of the basic points, shape (rank,)."""
        self.weights: FloatArray = self._goal @ np.linalg.inv(self._rows[self.points])
        """Weights of their scores in the threshold, shape (rank,)."""
        self.basic_scores: FloatArray = np.ldexp(self._scores[self.points], self._exponent)
        """Their scores in the fit, where those too close to tell apart are equal."""

    @cached_property
    def duals(self) -> FloatArray:
        """Dual values of all points at the vertex; only basic points are between their bounds."""
        basic = self.points
        perturbed = self._scores + self._perturbations
        beta = np.linalg.solve(self._rows[basic], perturbed[basic])
        eta = np.where(perturbed - self._rows @ beta > 0.0, self._low + 1.0, self._low)
        eta[self._proof.points] = self._proof.duals
        total = eta - self._low
        inside = self._proof.points[np.abs(total[self._proof.points] - 0.5) < 0.5]
        inside = np.setdiff1d(inside, basic)
        # Equal points share the dual value of their sum. One of them, which is basic, keeps what
        # is left over once the others are at their bounds.
        for point in basic:
            same = inside[(self._rows[inside] == self._rows[point]).all(axis=1)]
            same = same[self._scores[same] == self._scores[point]]
            rest = float(total[same].sum() + total[point])
            upper = min(int(rest), len(same))
            total[same], total[same[:upper]], total[point] = 0.0, 1.0, rest - upper
        return np.asarray(self._low + total)

    def path(self, point: int) -> ScorePath:
        """The threshold as a function of the score of one calibration point."""
        start = self._scores[point]
        down, up = (_Walk(self, point, sign).run() for sign in (-1.0, 1.0))
        threshold = float(self.weights @ self._scores[self.points])
        scores = np.array([*down.scores[::-1], start, *up.scores])
        values = np.array([*down.values[::-1], threshold, *up.values])
        is_knot = np.append(True, np.diff(scores) > 0.0)
        return ScorePath(
            np.ldexp(scores[is_knot], self._exponent),
            np.ldexp(values[is_knot], self._exponent),
            (down.slope, up.slope),
        )


@final
class _Walk:
    """The vertices that are optimal while the score of one point moves in one direction.

    Perturbed scores (`target`) decide which point is next, so that no vertex comes twice however
    many scores are equal. Knots are computed from the scores themselves (`plain`).
    """

    def __init__(self, origin: Sensitivity, point: int, sign: float) -> None:
        self.rows, self.low, self.goal = origin._rows, origin._low, origin._goal
        self.target, self.plain = origin._scores + origin._perturbations, origin._scores.copy()
        self.moved, self.sign = point, sign
        self.basic, self.eta = origin.points.copy(), origin.duals.copy()
        self.scores: list[float] = []
        self.values: list[float] = []
        self.slope = 0.0

    def run(self) -> "_Walk":
        """Follow the threshold until it is constant, or moves without end."""
        for _ in range(MOST_STEPS):
            inverse = np.asarray(np.linalg.inv(self.rows[self.basic]), np.float64)
            # The fit follows the score of a basic point, and does not move with any other.
            direction = inverse[:, self.basic == self.moved].sum(axis=1)
            terms = self.goal * direction
            self.slope = float(terms.sum())
            if abs(self.slope) <= RATE_TOL * float(np.abs(terms).max(initial=0.0)):
                # Rounding alone: a moved score would seem to reach every value, far away.
                self.slope = 0.0
            rates = self.rows @ direction
            rates[self.moved] -= 1.0
            entering, step = self._next_point(inverse, rates)
            if entering < 0:
                return self
            self.target[self.moved] += self.sign * step
            fitted = self.rows[entering] @ (inverse @ self.plain[self.basic])
            exact = float((self.plain[entering] - fitted) / rates[entering])
            self.plain[self.moved] += self.sign * max(self.sign * exact, 0.0)
            self.scores.append(float(self.plain[self.moved]))
            self.values.append(float((self.goal @ inverse) @ self.plain[self.basic]))
            self._enter(entering, inverse)
        self.slope = np.nan
        return self

    def _next_point(self, inverse: FloatArray, rates: FloatArray) -> tuple[int, float]:
        """The first point that the fit meets, the first in order of equals, and how far it is.

        `rates` are those at which residuals fall as the score grows.
        """
        sides = np.where(self.eta - self.low > 0.5, 1.0, -1.0)
        sides[self.basic] = 0.0
        residuals = self.target - self.rows @ (inverse @ self.target[self.basic])
        rates = self.sign * sides * rates
        meets = np.flatnonzero(rates > RATE_TOL * np.abs(rates).max(initial=0.0))
        if not len(meets):
            return -1, np.inf
        steps = np.maximum(sides[meets] * residuals[meets], 0.0) / rates[meets]
        first = int(np.argmin(steps))
        return int(meets[first]), float(steps[first])

    def _enter(self, point: int, inverse: FloatArray) -> None:
        """Move the dual value of a point off its bound until another one arrives at a bound."""
        above = self.eta[point] - self.low[point] > 0.5
        change = -1.0 if above else 1.0
        rates = -change * (self.rows[point] @ inverse)
        room = self.eta[self.basic] - self.low[self.basic]
        room = np.clip(np.where(rates > 0.0, 1.0 - room, room), 0.0, 1.0)
        moves = np.abs(rates) > RATE_TOL * np.abs(rates).max(initial=0.0)
        steps = np.full(len(rates), np.inf)
        np.divide(room, np.abs(rates), out=steps, where=moves)
        length = min(float(steps.min(initial=np.inf)), 1.0)
        self.eta[self.basic] += length * rates
        self.eta[point] += change * length
        if length == 1.0:  # it has crossed to the other side, and the vertex stays
            self.eta[point] = self.low[point] + (0.0 if above else 1.0)
            return
        tied = np.flatnonzero(steps <= length)
        leaves = int(tied[np.argmin(self.basic[tied])])
        gone = self.basic[leaves]
        self.eta[gone] = self.low[gone] + (1.0 if rates[leaves] > 0.0 else 0.0)
        self.basic[leaves] = point
