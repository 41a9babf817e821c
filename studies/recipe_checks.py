"""Checks of the solvers that `recipes.py` tries: against their definitions, and by simulation.

    python studies/recipe_checks.py

Prints what is compared and the largest difference, and fails where one is too large: thresholds
over an RKHS against the definition, solved by a quadratic program; thresholds that never rise
against a linear program with hard constraints; and what each of the two guarantees.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from recipe_kernel import fit_kernel, gaussian, untied
from recipe_solvers import Falling, Model, polynomial_at
from scipy.optimize import linprog

from trustsets.basis.functions import FittedPolynomial
from trustsets.predictors.conditional_fit import ConditionalLearned

Floats = NDArray[np.float64]

LARGEST_DIFFERENCE = 1e-6
LARGEST_Z = 4.0
ALPHA = 0.1
FALLING = Falling(axis=1, grid=8)


def interior_point(
    quadratic: Floats, linear: Floats, phi: Floats, alpha: float
) -> tuple[Floats, Floats]:
    """Solve min eta' Q eta / 2 - s' eta, phi' eta = 0, -alpha <= eta <= 1 - alpha; also give b.

    A primal-dual method, good for a hundred variables; it shares nothing with the path.
    """
    n, p = phi.shape
    eta, b = np.full(n, 0.5 - alpha), np.zeros(p)
    above, below = np.ones(n), np.ones(n)  # prices of the two bounds
    for _ in range(200):
        room_up, room_down = 1.0 - alpha - eta, eta + alpha
        gap = (above @ room_up + below @ room_down) / (2 * n)
        slope = quadratic @ eta + phi @ b - linear + above - below
        if max(gap, np.abs(slope).max(), np.abs(phi.T @ eta).max()) < 1e-12:
            return eta, b
        target = 0.1 * gap
        weights = above / room_up + below / room_down
        pushed = -slope - (target / room_up - above) + (target / room_down - below)
        system = np.block([[quadratic + np.diag(weights), phi], [phi.T, np.zeros((p, p))]])
        moves = np.linalg.solve(system, np.concatenate([pushed, -phi.T @ eta]))
        move = moves[:n]
        above_move = (target + above * move) / room_up - above
        below_move = (target - below * move) / room_down - below
        step = 1.0
        for value, change in (
            (room_up, -move),
            (room_down, move),
            (above, above_move),
            (below, below_move),
        ):
            shrinks = change < 0.0
            step = min(step, 0.99 * np.min(value[shrinks] / -change[shrinks], initial=np.inf))
        eta, b = eta + step * move, b + step * moves[n:]
        above, below = above + step * above_move, below + step * below_move
    raise ArithmeticError("the interior point method did not converge")


def kernel_matrix(points: Floats, width: float) -> Floats:
    """Kernel of all points with all."""
    return np.array([gaussian(points, point, width) for point in points])


def differs_from_definition(
    value: float,
    phi: Floats,
    points: Floats,
    scores: Floats,
    settings: tuple[float, float, float],
) -> float:
    """How far a threshold is from sup {s : s <= g_s(x)}; the last row of phi is the new one.

    g_s(x) is s up to the supremum and stays there: one s on each side of it tells.
    """
    alpha, width, penalty = settings
    quadratic = kernel_matrix(points, width) / penalty

    def fitted(score: float) -> float:
        eta, b = interior_point(quadratic, np.append(scores, score), phi, alpha)
        return float(phi[-1] @ b + quadratic[-1] @ eta)

    below = value - 0.01
    return max(abs(fitted(value + 1.0) - value), below - fitted(below))


def samples(
    rng: np.random.Generator, n: int, groups: int = 1, tied: float = 0.0
) -> tuple[Floats, Floats, Floats]:
    """Rows phi (constant, two linear, indicators that sum to the constant), points, scores."""
    points = rng.uniform(size=(n, 2))
    group = np.eye(groups)[rng.integers(groups, size=n)]
    phi = np.column_stack([np.ones(n), 2.0 * points - 1.0, group])
    scores = rng.exponential(size=n) * (0.1 + np.sin(6.0 * points[:, 0]) ** 2 + points[:, 1])
    return phi, points, np.where(rng.uniform(size=n) < tied, 0.0, scores)


def check_kernel() -> float:
    """Largest difference of a path's threshold from the definition."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for alpha, width, penalty, groups in (
        (0.1, 0.3, 0.03, 1),
        (0.1, 0.3, 0.3, 2),
        (0.2, 0.5, 0.1, 3),
        (0.3, 0.1, 1.0, 1),
        (0.1, 0.2, 10.0, 2),
    ):
        phi, points, scores = samples(rng, 66, groups, tied=0.3)
        own, new = slice(0, 60), slice(60, 66)
        model = fit_kernel(phi[own], points[own], scores[own], alpha, width, penalty)
        found = model.thresholds(phi[new], points[new]).values
        basis = phi[:, 1:]  # the same span, of full rank
        for j, value in zip(range(60, 66), found, strict=True):
            rows = [*range(60), j]
            problem = basis[rows], points[rows], untied(scores[own])
            worst = max(worst, differs_from_definition(value, *problem, (alpha, width, penalty)))
    return worst


def check_kernel_guarantee(repeats: int = 1500, n: int = 40) -> tuple[Floats, Floats, Floats]:
    """Mean of f (covered - (1 - alpha)), of -lambda <f_K, g_K> / (n + 1), and z of the difference.

    The functions are 1, both linear ones and kernels around two places. The first mean is over
    30 new points for each calibration set, the second looks at the first of them alone.
    """
    rng = np.random.default_rng(1)
    alpha, width, penalty = 0.2, 0.15, 50.0
    places = np.array([[0.26, 0.1], [0.52, 0.1]])  # where scores vary most, and least
    left, right = np.empty((repeats, 5)), np.zeros((repeats, 5))
    for repeat in range(repeats):
        phi, points, scores = samples(rng, n + 30)
        model = fit_kernel(phi[:n], points[:n], scores[:n], alpha, width, penalty)
        weights = rng.uniform(-alpha, 1.0 - alpha, size=30)
        covered = scores[n:] <= model.thresholds(phi[n:], points[n:], weights).values
        near = np.array([gaussian(points, place, width) for place in places])
        values = np.vstack([phi[n:, :3].T, near[:, n:]])
        left[repeat] = (values * (covered - (1.0 - alpha))).mean(axis=1)
        first = slice(0, n + 1)
        quadratic = kernel_matrix(points[first], width) / penalty
        eta, _ = interior_point(quadratic, scores[first], phi[first, :3], alpha)
        right[repeat, 3:] = -(near[:, first] @ eta) / (n + 1)  # lambda g_K(place) is near' eta
    difference = left - right
    z = difference.mean(axis=0) / (difference.std(axis=0, ddof=1) / np.sqrt(repeats))
    return left.mean(axis=0), right.mean(axis=0), z


@dataclass(frozen=True)
class FallingProblem:
    """Cubic polynomials of two statistics, and scores that rise where the fit may not."""

    learned: ConditionalLearned
    model: Model
    phi: Floats
    points: Floats
    scores: Floats

    @classmethod
    def draw(cls, rng: np.random.Generator, n: int, n_new: int) -> "FallingProblem":
        """Draw calibration samples, fit, and draw new samples."""
        points = rng.uniform(size=(n + n_new, 2))
        scores = rng.exponential(size=n + n_new) * (0.3 + points[:, 0] + 2.0 * points[:, 1])
        smooth = FittedPolynomial(3, (), np.zeros(2), np.ones(2))
        phi = polynomial_at(smooth, *points.T)
        penalty = np.eye(phi.shape[1])[2:4]  # powers 2 and 3 of the second statistic
        learned = ConditionalLearned(smooth, phi[:n], scores[:n], penalty)
        model = FALLING.fit(learned, ALPHA)
        return cls(learned, model, phi[n:], points[n:], scores[n:])

    def by_program(self, row: Floats) -> float:
        """Threshold of a row from the linear program with hard constraints.

        Variables: b, positive and negative parts of the residuals, absolute values.
        """
        phi, scores, penalty = self.learned.phi, self.learned.scores, self.learned.penalty
        rises = FALLING.rows(self.learned.basis, phi.shape[1])
        n, q = len(phi), len(penalty)
        level = 1.0 - ALPHA - 1e-9  # the smallest optimum, as in the engine
        cost = [-level * row, np.full(n, 1.0 - ALPHA), np.full(n, ALPHA), np.ones(q)]
        upper = np.block(
            [
                [penalty, np.zeros((q, 2 * n)), -np.eye(q)],
                [-penalty, np.zeros((q, 2 * n)), -np.eye(q)],
                [rises, np.zeros((len(rises), 2 * n + q))],
            ]
        )
        found = linprog(
            np.concatenate(cost),
            A_ub=upper,
            b_ub=np.zeros(len(upper)),
            A_eq=np.hstack([phi, np.eye(n), -np.eye(n), np.zeros((n, q))]),
            b_eq=scores,
            bounds=[(None, None)] * phi.shape[1] + [(0, None)] * (2 * n + q),
            method="highs",
        )
        return np.inf if found.x is None else float(row @ found.x[: len(row)])


def check_falling() -> tuple[float, float]:
    """Largest difference from the linear program, and the largest rise of the fit on the grid."""
    problem = FallingProblem.draw(np.random.default_rng(2), 200, 20)
    found = problem.model.thresholds(problem.phi).values
    expected = np.array([problem.by_program(row) for row in problem.phi])
    finite = np.isfinite(expected)
    assert finite.any() and np.array_equal(finite, np.isfinite(found))
    rises = FALLING.rows(problem.learned.basis, problem.phi.shape[1])
    steps = problem.model.thresholds(rises, weight=0.0).values  # linear in the row at weight 0
    return float(np.abs(found - expected)[finite].max()), float(steps.max())


def check_falling_guarantee(repeats: int = 300) -> tuple[Floats, Floats]:
    """Mean of f (covered - (1 - alpha)) with standard errors, f constant, falling, rising."""
    rng = np.random.default_rng(3)
    gaps = np.empty((repeats, 3))
    for repeat in range(repeats):
        problem = FallingProblem.draw(rng, 100, 50)
        covered = problem.scores <= problem.model.thresholds(problem.phi).values
        along = problem.points[:, 1]
        weights = np.array([np.ones(len(along)), 1.0 - along, along])
        gaps[repeat] = (weights * (covered - (1.0 - ALPHA))).mean(axis=1)
    return gaps.mean(axis=0), gaps.std(axis=0, ddof=1) / np.sqrt(repeats)


def main() -> None:
    """Run all checks."""
    difference = check_kernel()
    print(f"RKHS, thresholds against the definition: largest difference {difference:.1e}")
    assert difference < LARGEST_DIFFERENCE
    left, right, z = check_kernel_guarantee()
    print("RKHS, mean of f (covered - (1 - alpha)):  ", left.round(4))
    print("      the penalty's term, as derived:       ", right.round(4))
    print("      difference in standard errors:      ", z.round(2))
    assert np.all(np.abs(z) < LARGEST_Z)
    difference, rise = check_falling()
    print(f"never rising, against the linear program: largest difference {difference:.1e}")
    print(f"      largest rise on the grid: {rise:.1e}")
    assert max(difference, rise) < LARGEST_DIFFERENCE
    mean, error = check_falling_guarantee()
    print("never rising, mean of f (covered - (1 - alpha)), f constant, falling, rising:")
    print("     ", mean.round(4), "standard errors", error.round(4))
    assert np.all(mean[:2] > -LARGEST_Z * error[:2])


if __name__ == "__main__":
    main()
