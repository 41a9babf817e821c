"""A penalised fit is a fit with pseudo points; its guarantee is what the docstrings say."""

import numpy as np
import pytest
from scipy.optimize import linprog

from trustsets import ConditionalConformal, Confidence, Groups, Intercept, Polynomial
from trustsets.predictors.quantiles import CalibrationProblem

ALPHA = 0.1


def penalised_threshold(phi, scores, rows, test, level):
    """The definition as one linear program: losses, absolute values, and the test point's pull.

    Variables: b (free), positive and negative parts of residuals, absolute values t.
    """
    n, p = phi.shape
    q = len(rows)
    cost = np.concatenate([-level * test, np.full(n, 1 - ALPHA), np.full(n, ALPHA), np.ones(q)])
    residuals = np.hstack([phi, np.eye(n), -np.eye(n), np.zeros((n, q))])
    above = np.hstack([rows, np.zeros((q, 2 * n)), -np.eye(q)])
    below = np.hstack([-rows, np.zeros((q, 2 * n)), -np.eye(q)])
    bounds = [(None, None)] * p + [(0, None)] * (2 * n + q)
    words = {"A_eq": residuals, "b_eq": scores, "bounds": bounds, "method": "highs"}
    found = linprog(cost, A_ub=np.vstack([above, below]), b_ub=np.zeros(2 * q), **words)
    return found.x[:p] @ test


@pytest.mark.parametrize("price", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("level", [0.9, 0.35, -0.05])
def test_pseudo_points_solve_the_penalised_program(price, level):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(150, 1))
    phi, test = (np.polynomial.chebyshev.chebvander(v[:, 0], 4) for v in (x, x[:12] * 0.9))
    scores = rng.exponential(size=150) * (1.2 + x[:, 0] ** 2)
    penalty = price * np.eye(5)[2:]
    model = CalibrationProblem(phi, scores, penalty, None).fit(ALPHA)
    fast = model.thresholds(test, weight=level).values
    slow = [penalised_threshold(phi, scores, penalty, row, level) for row in test]
    np.testing.assert_allclose(fast, slow, atol=1e-6)


def test_a_large_penalty_leaves_linear_functions(make_outputs):
    calibration, test = make_outputs(400), make_outputs(60, seed=5)
    of = (Confidence(),)
    stiff, linear = (
        ConditionalConformal(basis=basis).calibrate(calibration, tuning=test).predict_set(test)
        for basis in (Polynomial(5, of, penalty=1e6), Polynomial(1, of))
    )
    np.testing.assert_allclose(stiff.thresholds, linear.thresholds, atol=1e-7)
    # What a coefficient costs depends on the scale, which is therefore learned from tuning samples.
    assert Polynomial(2, of, penalty=1.0).learns
    assert not any(basis.learns for basis in (Polynomial(2, of), Polynomial(1, of, penalty=1.0)))


def test_a_sum_pays_for_each_part_in_its_own_columns(make_outputs):
    observed = make_outputs()
    smooth = Polynomial(3, (Confidence(),), penalty=2.0)
    fitted = (Groups() + smooth + Intercept()).fit(observed)
    rows = fitted.penalty_rows(observed)
    n_groups = Groups().fit(observed).design(observed).shape[1]
    expected = np.zeros((2, n_groups + 5))
    expected[0, n_groups + 2] = expected[1, n_groups + 3] = 2.0
    np.testing.assert_array_equal(rows, expected)


def weighted_gaps(price, functions, n=80, repeats=300, m=50):
    """Mean of f(x) (covered - (1 - alpha)) over calibration sets, with standard errors."""
    rng = np.random.default_rng(1)
    gaps = np.empty((repeats, len(functions)))
    penalty = price * np.eye(4)[2:]
    for repeat in range(repeats):
        x = rng.uniform(-1, 1, size=n + m)
        # Strong curvature: a penalty has something to hold back.
        scale = 0.2 + 3.0 * x**2
        scores = rng.exponential(size=n + m) * scale
        phi = np.polynomial.chebyshev.chebvander(x, 3)
        model = CalibrationProblem(phi[:n], scores[:n], penalty, None).fit(ALPHA)
        level = rng.uniform(-ALPHA, 1 - ALPHA, size=m)
        thresholds = model.thresholds(phi[n:], weight=level).values
        covered = -np.expm1(-np.maximum(thresholds, 0.0) / scale[n:])  # its probability
        values = np.array([f(phi[n:]) for f in functions])
        gaps[repeat] = (values * (covered - (1 - ALPHA))).mean(axis=1)
    return gaps.mean(axis=0), gaps.std(axis=0, ddof=1) / np.sqrt(repeats)


@pytest.mark.statistical
def test_guarantee_is_exact_where_free_and_bounded_where_paid_for():
    """Twice the penalty is 17 standard errors beyond the bound: noticed for certain.

    A bias of one sample in 80 where functions are free, 6 standard errors, is noticed in 97%.
    """
    price, n = 4.0, 80
    functions = [lambda p: p[:, 0], lambda p: p[:, 1], lambda p: p[:, 2], lambda p: p[:, 3]]
    mean, error = weighted_gaps(price, functions, n=n)
    # Constant and linear: exactly 1 - alpha in the randomised version.
    assert np.all(np.abs(mean[:2]) < 4 * error[:2])
    # Curved: off by no more than price / (n + 1), and the bound is not idle.
    bound = price / (n + 1)
    assert np.all(np.abs(mean[2:]) < bound + 4 * error[2:])
    assert abs(mean[2]) > 0.3 * bound
    free_mean, free_error = weighted_gaps(0.0, functions, n=n)
    assert np.all(np.abs(free_mean) < 4 * free_error)
