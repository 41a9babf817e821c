"""An alpha for each calibration point: every solver against the definition."""

from functools import partial

import numpy as np
import pytest
from problems import COMPILED, Array, Case, random_case, reference, with_copies_and_penalty
from scipy.optimize import linprog

from trustsets.engine import extreme as extreme_module
from trustsets.engine import fit as fit_module
from trustsets.engine import fit_quantiles, solve_linear_program
from trustsets.engine.extreme import choose_sample

SIZE = None if COMPILED else 30


def some_alphas(kind: str, rng: np.random.Generator, count: int) -> Array:
    if kind == "two":
        return rng.choice([0.05, 0.3], count)
    if kind == "wide":
        return np.asarray(10.0 ** rng.uniform(-5.0, -0.01, count))
    return rng.uniform(0.01, 0.6, count)


@pytest.mark.parametrize("kind", ["uniform", "two", "wide"])
@pytest.mark.parametrize("scores", ["continuous", "mostly_zero"])
@pytest.mark.parametrize(
    "features", ["normal", "student", "bins", "duplicated", "polynomial5", "scaled_polynomial4"]
)
def test_equals_the_definition(features: str, scores: str, kind: str) -> None:
    rng = np.random.default_rng(len(features))
    case = random_case(50, features, scores, n=SIZE)
    if kind == "two":
        case = Case(case.phi, case.scores, case.tests, some_alphas(kind, rng, len(case.phi)))
    else:
        case = with_copies_and_penalty(case, rng, partial(some_alphas, kind, rng))
    alphas = some_alphas(kind, rng, len(case.tests))
    weights = rng.uniform(-alphas, 1.0 - alphas)
    weights[1:] = 1.0 - alphas[1:]
    model = fit_quantiles(case.phi, 1e-5 * case.scores, case.alpha)
    assert model.certificate.holds
    found = 1e5 * model.thresholds(case.tests, weights, alpha=alphas).values
    np.testing.assert_allclose(found, reference(case, weights), rtol=1e-9, atol=1e-9)


def test_rows_that_only_the_own_alphas_can_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goals up to 0.9 n have a finite threshold, and with one alpha of 0.5 only up to 0.5 n."""
    monkeypatch.setattr(extreme_module, "FIRST_ACTIVE", 4)
    monkeypatch.setattr(extreme_module, "ACTIVE", 4)
    n = 400 if COMPILED else 60
    phi, alphas = np.repeat([[1.0], [-1.0]], n // 2, axis=0), np.repeat([0.9, 0.1], n // 2)
    model = fit_quantiles(phi, np.random.default_rng(0).random(n), alphas)
    problem = model._problem
    object.__setattr__(model, "_sample", choose_sample(problem, model._scan_order, 0))
    tests = n * np.array([[0.45], [0.55], [0.8], [0.89], [0.91], [1.2]])
    found = model.thresholds(tests, 0.999, alpha=0.001).values
    assert np.isfinite(found).tolist() == [True, True, True, True, False, False]
    for row, value in zip(problem.whitening.apply(tests), found, strict=True):
        expected = solve_linear_program(problem.rows, problem.scores, alphas, row, 0.999)
        assert np.ldexp(expected, problem.exponent) == pytest.approx(value, rel=1e-9)
        assert model._solve_alone(row, 0.999)[0] == pytest.approx(expected, rel=1e-9)


def test_a_fit_over_samples_needs_as_few_pivots_as_with_one_alpha(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Samples have the alphas of their points, so their solution is near that of all points."""
    monkeypatch.setattr(fit_module, "CORE_SIZE", 40)
    rng = np.random.default_rng(2)
    n = 20_000 if COMPILED else 300
    x = rng.random(n)
    phi, scores = np.stack([np.ones(n), x, x**2], axis=1), rng.gamma(2.0, size=n)
    alphas = 0.05 + 0.5 * x
    model = fit_quantiles(phi, scores, alphas)
    assert model.certificate.holds
    assert model.certificate.pivots <= 3 * fit_quantiles(phi, scores, 0.3).certificate.pivots
    problem = model._problem
    perturbed = problem.centred_scores + problem.perturbations
    bounds = np.column_stack([-alphas, 1.0 - alphas])
    dual = linprog(-perturbed, A_eq=problem.rows.T, b_eq=np.zeros(3), bounds=bounds)
    basic, beta = model._scan_order.vertex.basic_points, -dual.eqlin.marginals
    np.testing.assert_allclose(problem.rows[basic] @ beta, perturbed[basic], atol=1e-9)
