"""Thresholds over a Gaussian RKHS with a quadratic penalty, exactly, by following a path.

The smooth class of Gibbs, Cherian and Candès (2023): g = phi' b + g_K with g_K in the RKHS of
the kernel k. A new point x with weight u on it changes the calibration problem to

    min  sum_i loss(s_i - g(x_i)) - u g(x) + (lambda / 2) |g_K|^2,       S*(x) = g(x),

u = 1 - alpha, loss(r) = max(r, 0) - alpha r. By the representer theorem g_K = (sum_i eta_i
k(x_i, .) + u k(x, .)) / lambda, where eta_i, the slope of the loss, is 1 - alpha above the fit,
-alpha below it and in between where the residual is zero (the elbow), and sum_i eta_i phi_i =
-u phi. As u grows, b, eta and residuals move along straight lines until an eta of the elbow
reaches a bound or a residual reaches zero: the path of the support vector machine (Hastie et
al. 2004; Cauwenberghs and Poggio 2001). The same steps make the fit at u = 0: start at the
linear program (lambda infinite), whose solution is optimal for other scores s~, and move the
scores from s~ to s.

What is guaranteed. Let g be the fit with the true score of the new point included. Its slopes
satisfy sum_{i <= n+1} eta_i f(x_i) = lambda <f_K, g_K> for every f = phi' c + f_K (set the
derivative of the objective along f to zero). A sample is missed where eta = 1 - alpha and
covered where eta = -alpha, so covered - (1 - alpha) = -eta off the elbow, and the n + 1 terms
are exchangeable. With u drawn from (-alpha, 1 - alpha) hence

    E[f(X) (covered - (1 - alpha))] = -lambda / (n + 1) E<f_K, g_K>,

and ">=" for f >= 0 with u = 1 - alpha, where all of the elbow is covered: exact for f = phi' c,
off by the penalty's own term for f in the RKHS.

Ties are broken by adding a fixed sequence in [0, 1e-4) to the calibration scores. It only
raises them, so coverage does not suffer; no set changes unless a score lies that close.

`recipe_checks.py` checks all this against a quadratic program and by simulation.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from trustsets.engine import Thresholds, fit_quantiles
from trustsets.status import Status

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Coefficients b, slopes eta, residuals, and sides: 1 above the fit, -1 below, 0 on the elbow.
State = tuple[Floats, Floats, Floats, Ints]

JITTER = 1e-4
"""Ties among scores are broken on this scale."""
MAX_STEPS = 20_000
"""Steps of one path."""
DONE, ENDLESS, CAPPED = 0, 1, 2
"""A path arrived; nothing balances the new point; too many steps."""
LEVERAGE_TOL = 1e-8
"""An elbow point whose leverage is this close to 1 is the last one to determine some direction."""
SLOPE_TOL = 1e-10
"""Movements below this share of the largest one are rounding."""
WEIGHT_TOL = 1e-9
"""A path stops this much below its final weight, at the smallest of several optima."""
KKT_TOL = 1e-7
"""Largest accepted violation of the conditions for an optimum."""


@njit(cache=True)
def _direction(
    phi: Floats, kernel: Floats, elbow: Ints, pull: Floats, drift: Floats
) -> tuple[Floats, Floats]:
    """Movement of b and of the elbow's eta that keeps the elbow's residuals at zero."""
    p, q = phi.shape[1], len(elbow)
    system = np.zeros((p + q, p + q))
    right = np.empty(p + q)
    right[:p] = -pull
    for a in range(q):
        i = elbow[a]
        right[p + a] = drift[i]
        system[p + a, :p] = phi[i]
        system[:p, p + a] = phi[i]
        for c in range(q):
            system[p + a, p + c] = kernel[i, elbow[c]]
    moves = np.linalg.solve(system, right)
    return moves[:p], moves[p:]


@njit(cache=True)
def _residual_moves(
    phi: Floats, kernel: Floats, elbow: Ints, drift: Floats, b_move: Floats, eta_move: Floats
) -> Floats:
    moves = drift - phi @ b_move
    for a in range(len(elbow)):
        row, speed = kernel[elbow[a]], eta_move[a]
        for i in range(len(moves)):  # spelled out: no array in between
            moves[i] -= speed * row[i]
    moves[elbow] = 0.0
    return moves


@njit(cache=True)
def _first_zero(residuals: Floats, moves: Floats, side: Ints) -> tuple[float, int]:
    """Step until a point outside the elbow reaches the fit, and which one."""
    largest = 0.0
    for i in range(len(moves)):
        largest = max(largest, abs(moves[i]))
    least = SLOPE_TOL * largest
    step, who = np.inf, -1
    for i in range(len(moves)):
        speed = -side[i] * moves[i]
        if speed > least and abs(residuals[i]) < step * speed:
            step, who = abs(residuals[i]) / speed, i
    return step, who


@njit(cache=True)
def _first_bound(eta: Floats, elbow: Ints, eta_move: Floats, alpha: float) -> tuple[float, int]:
    """Step until an eta of the elbow reaches a bound, and its place in the elbow."""
    # The eta of a group's only elbow point often sits on a bound (10 samples at alpha = 0.1) and
    # stays there: rounding must not make it leave.
    least = SLOPE_TOL * np.max(np.abs(eta_move))
    step, place = np.inf, -1
    for a in range(len(elbow)):
        if abs(eta_move[a]) > least:
            bound = 1.0 - alpha if eta_move[a] > 0.0 else -alpha
            own = max((bound - eta[elbow[a]]) / eta_move[a], 0.0)
            if own < step:
                step, place = own, a
    return step, place


@njit(cache=True)
def _holds_alone(phi: Floats, elbow: Ints, place: int) -> tuple[bool, Floats]:
    """Whether phi of the elbow loses rank without one point; the direction that is lost."""
    rows = phi[elbow]
    lost = np.linalg.solve(rows.T @ rows, rows[place])
    return rows[place] @ lost > 1.0 - LEVERAGE_TOL, lost


@njit(cache=True)
def _let_go(
    phi: Floats, state: State, elbow: Ints, place: int, alpha: float, upper: bool
) -> tuple[int, bool]:
    """Move an elbow point to its side of the fit; return who takes its place, and if none can.

    Where the point alone determined a direction of phi, b may move along it freely, with the point
    going to its side, until another one reaches the fit. Elsewhere nobody (-1) has to follow.
    """
    b, eta, residuals, side = state
    gone = elbow[place]
    side[gone] = 1 if upper else -1
    eta[gone] = 1.0 - alpha if upper else -alpha
    alone, lost = _holds_alone(phi, elbow, place)
    if not alone:
        return -1, False
    lost *= -side[gone]
    slide = -(phi @ lost)
    slide[elbow] = 0.0
    slide[gone] = side[gone]
    step, who = _first_zero(residuals, slide, side)
    if who >= 0:
        b += step * lost
        residuals += step * slide
    return who, who < 0


@njit(cache=True)
def follow(
    phi: Floats,
    kernel: Floats,
    state: State,
    pull: Floats,
    drift: Floats,
    length: float,
    alpha: float,
) -> tuple[int, int]:
    """Move an optimum in place; return status and steps.

    The problem at time t has ``sum_i eta_i phi_i = const - t pull`` and scores ``s + t drift``.
    `kernel` is already divided by lambda.
    """
    b, eta, residuals, side = state
    elbow = np.flatnonzero(side == 0)
    left = length
    for steps in range(MAX_STEPS):
        b_move, eta_move = _direction(phi, kernel, elbow, pull, drift)
        moves = _residual_moves(phi, kernel, elbow, drift, b_move, eta_move)
        enter_at, who = _first_zero(residuals, moves, side)
        leave_at, place = _first_bound(eta, elbow, eta_move, alpha)
        step = min(left, enter_at, leave_at)
        b += step * b_move
        eta[elbow] += step * eta_move
        for i in range(len(moves)):
            residuals[i] += step * moves[i]
        left -= step
        if left <= 0.0:
            return DONE, steps
        if leave_at < enter_at:
            who, endless = _let_go(phi, state, elbow, place, alpha, eta_move[place] > 0.0)
            elbow = np.delete(elbow, place)
            if endless:
                return ENDLESS, steps
        if who >= 0:
            residuals[who] = 0.0
            side[who] = 0
            elbow = np.append(elbow, who)
    return CAPPED, MAX_STEPS


@njit(cache=True)
def gaussian(points: Floats, centre: Floats, width: float) -> Floats:
    """Kernel of all points with one."""
    distance = np.zeros(len(points))
    for axis in range(points.shape[1]):
        distance += (points[:, axis] - centre[axis]) ** 2
    return np.exp(distance / (-2.0 * width**2))


@njit(cache=True)
def _violation(phi: Floats, state: State, pull: Floats, alpha: float) -> float:
    """How far a state is from the conditions for an optimum; zero in exact arithmetic."""
    _, eta, residuals, side = state
    worst: float = np.max(np.abs(phi.T @ eta + pull)) / np.sqrt(len(phi))
    for i in range(len(eta)):
        wrong = abs(residuals[i]) if side[i] == 0 else -side[i] * residuals[i]
        worst = max(worst, wrong, eta[i] - (1.0 - alpha), -alpha - eta[i])
    return worst


@dataclass(frozen=True)
class Whitening:
    """Columns of full rank with the span of phi on the calibration points."""

    map: Floats
    span: Floats

    @classmethod
    def of(cls, phi: Floats) -> "Whitening":
        """Directions that the rows of phi have."""
        _, sizes, rows = np.linalg.svd(phi, full_matrices=False)
        kept = sizes > 1e-10 * sizes[0]
        return cls(rows[kept].T / sizes[kept] * np.sqrt(len(phi)), rows[kept].T)

    def leaves(self, phi: Floats) -> NDArray[np.bool_]:
        """Rows with a direction that calibration never saw."""
        rest = np.linalg.norm(phi - phi @ self.span @ self.span.T, axis=1)
        return np.asarray(rest > 1e-8 * np.linalg.norm(phi, axis=1))


@dataclass(frozen=True, eq=False)
class KernelModel:
    """The fit at u = 0, from which every new point starts."""

    alpha: float
    width: float
    penalty: float
    whitening: Whitening
    phi: Floats
    points: Floats
    kernel: Floats
    state: State
    steps: int
    violation: float

    def thresholds(self, phi: Floats, points: Floats, weight: Floats | None = None) -> Thresholds:
        """Threshold of every new point at this weight, by default 1 - alpha."""
        weights = np.full(len(phi), 1.0 - self.alpha) if weight is None else weight
        values, codes, steps, violations = _all_thresholds(
            self.phi,
            self.points,
            self.kernel,
            self.state,
            (np.ascontiguousarray(phi @ self.whitening.map), points, weights),
            (self.alpha, self.width, self.penalty),
        )
        status = np.where(codes == ENDLESS, Status.HIGH_LEVERAGE, Status.EXACT).astype(np.int8)
        unseen = self.whitening.leaves(phi)
        status[unseen] = Status.UNSEEN_DIRECTION
        endless = status > Status.FALLBACK
        values[endless] = np.copysign(np.inf, weights[endless])
        failed = (status == Status.EXACT) & ((codes == CAPPED) | (violations > KKT_TOL))
        if failed.any():
            raise ArithmeticError(f"{failed.sum()} paths failed: {violations[failed]}")
        return Thresholds(values, status, steps)


def untied(scores: Floats) -> Floats:
    """Add multiples of the golden ratio, modulo 1: a fixed sequence that does not repeat."""
    golden = 0.5 * (np.sqrt(5.0) - 1.0)
    return np.asarray(scores + JITTER * np.modf(golden * np.arange(1, len(scores) + 1))[0])


def fit_kernel(
    phi: Floats, points: Floats, scores: Floats, alpha: float, width: float, penalty: float
) -> KernelModel:
    """Fit g = phi' b + g_K at u = 0; `penalty` is lambda, `points` are what the kernel looks at."""
    scores = untied(scores)
    whitening = Whitening.of(phi)
    phi = np.ascontiguousarray(phi @ whitening.map)
    points = np.ascontiguousarray(points)
    kernel = np.empty((len(phi), len(phi)))
    for i, point in enumerate(points):
        kernel[i] = gaussian(points, point, width) / penalty
    state = _program(phi, scores, alpha)
    drift = kernel @ -state[1]  # from scores for which the program's solution is optimal
    status, steps = follow(phi, kernel, state, np.zeros(phi.shape[1]), drift, 1.0, alpha)
    if status != DONE:
        raise ArithmeticError(f"the fit ended with status {status} after {steps} steps")
    state = _polish(phi, kernel, scores, state)
    violation = _violation(phi, state, np.zeros(phi.shape[1]), alpha)
    if violation > KKT_TOL:
        raise ArithmeticError(f"the fit is off by {violation}")
    return KernelModel(
        alpha, width, penalty, whitening, phi, points, kernel, state, steps, violation
    )


def _program(phi: Floats, scores: Floats, alpha: float) -> State:
    """The optimum without the RKHS: a vertex of a linear program."""
    basis = fit_quantiles(phi, scores, alpha=alpha).basic_points
    b = np.linalg.solve(phi[basis], scores[basis])
    residuals = scores - phi @ b
    side = np.where(residuals > 0.0, 1, -1).astype(np.int64)
    side[basis], residuals[basis] = 0, 0.0
    eta = np.where(side > 0, 1.0 - alpha, -alpha)
    eta[basis] = 0.0
    eta[basis] = np.linalg.solve(phi[basis].T, -(phi.T @ eta))
    return np.asarray(b, dtype=np.float64), eta, residuals, side


def _polish(phi: Floats, kernel: Floats, scores: Floats, state: State) -> State:
    """Solve once more for the elbow that was reached: many steps leave some rounding."""
    _, eta, _, side = state
    elbow = np.flatnonzero(side == 0)
    fixed = np.where(side == 0, 0.0, eta)
    b, own = _direction(phi, kernel, elbow, phi.T @ fixed, scores - kernel @ fixed)
    eta = fixed.copy()
    eta[elbow] = own
    return b, eta, scores - phi @ b - kernel @ eta, side


@njit(cache=True)
def _all_thresholds(
    phi: Floats,
    points: Floats,
    kernel: Floats,
    base: State,
    new: tuple[Floats, Floats, Floats],
    settings: tuple[float, float, float],
) -> tuple[Floats, Ints, Ints, Floats]:
    rows, places, weights = new
    alpha, width, penalty = settings
    values, violations = np.empty(len(rows)), np.zeros(len(rows))
    codes, steps = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for j in range(len(rows)):
        near = gaussian(points, places[j], width) / penalty
        sign = 1.0 if weights[j] >= 0.0 else -1.0
        state = (base[0].copy(), base[1].copy(), base[2].copy(), base[3].copy())
        codes[j], steps[j] = follow(
            phi, kernel, state, sign * rows[j], -sign * near, abs(weights[j]) - WEIGHT_TOL, alpha
        )
        values[j] = rows[j] @ state[0] + near @ state[1] + weights[j] / penalty
        if codes[j] == DONE:
            violations[j] = _violation(phi, state, weights[j] * rows[j], alpha)
    return values, codes, steps, violations
