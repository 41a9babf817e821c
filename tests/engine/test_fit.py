"""The base fit: optimal, at every size, with a certificate that can fail."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from problems import COMPILED, random_case
from scipy.optimize import linprog

from trustsets.engine import Certificate, QuantileModel, fit_quantiles
from trustsets.engine import fit as fit_module
from trustsets.engine import model as model_module
from trustsets.engine.fit import CAPPED, Vertex, certify, fit_vertex, problem_points
from trustsets.engine.problem import Problem, build_problem
from trustsets.status import Status

N = 6000 if COMPILED else 150


@pytest.fixture
def small_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make problems of test size go through samples, reduction and checks."""
    monkeypatch.setattr(fit_module, "CORE_SIZE", 40)
    monkeypatch.setattr(fit_module, "ACTIVE_FACTOR", 0.25)


@pytest.mark.usefixtures("small_core")
@pytest.mark.parametrize("scores", ["continuous", "rounded", "mostly_zero", "constant"])
@pytest.mark.parametrize("features", ["polynomial3", "bins", "student", "heavy_polynomial5"])
def test_reduced_fits_reach_the_optimum_of_the_whole(features: str, scores: str) -> None:
    case = random_case(0, features, scores, n=N)
    problem = build_problem(case.phi, case.scores, case.alpha)
    vertex = fit_vertex(problem)
    assert vertex.certificate.holds
    slope = np.where(vertex.residuals > 0, 1 - case.alpha, -case.alpha)
    loss = float(np.ldexp((problem.multiplicities * slope) @ vertex.residuals, problem.exponent))
    bounds = (-case.alpha, 1.0 - case.alpha)
    rows = problem.whitening.apply(case.phi)  # all points, copies apart
    zero = np.zeros(rows.shape[1])
    dual = linprog(-case.scores, A_eq=rows.T, b_eq=zero, bounds=bounds)
    assert loss == pytest.approx(-dual.fun, abs=1e-7 * N)


def test_a_certificate_fails_on_any_violation() -> None:
    assert Certificate(0.0, 0.0, 0.0, 1).holds
    for wrong in ((1e-3, 0.0, 0.0), (0.0, 1e-3, 0.0), (0.0, 0.0, 1e-3)):
        assert not Certificate(*wrong, pivots=1).holds


def test_only_the_optimal_vertex_has_a_certificate() -> None:
    case = random_case(0, "polynomial1", "continuous", n=60)
    problem = build_problem(case.phi, case.scores, 0.1)
    data, best = problem_points(problem), fit_vertex(problem).basic_points
    assert certify(data, 0.1, best, np.zeros(3), 0).certificate.holds
    rng = np.random.default_rng(0)
    for _ in range(50):
        basic = np.sort(rng.choice(60, 3, replace=False))
        if not np.array_equal(basic, best):
            assert not certify(data, 0.1, basic, np.zeros(3), 0).certificate.holds


def extreme_model() -> tuple[QuantileModel, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.exp(rng.standard_normal(N // 2))
    phi = np.stack([x**k for k in range(4)], axis=1)
    largest = np.sort(x)[-3]
    tests = np.array([[t**k for k in range(4)] for t in (1.0, 0.8 * largest, 3.0 * x.max())])
    return fit_quantiles(phi, rng.random(N // 2), 0.1), tests


def test_each_solver_takes_over_where_the_one_before_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Path, descent, linear program, the same with scores rounded up, and at last infinity."""
    model, tests = extreme_model()
    expected = model.thresholds(tests)
    assert expected.status[-1] == Status.HIGH_LEVERAGE
    order = model._scan_order
    scan = order.scan._replace(tolerance=-1.0)  # no drift is small enough for a path
    object.__setattr__(model, "_scan_order", order._replace(scan=scan))
    by_descent = model.thresholds(tests)
    np.testing.assert_allclose(by_descent.values, expected.values, atol=1e-9)
    honest, nothing = model_module.fit_extreme, (CAPPED, None, np.empty(0))

    def without_proof(*arguments: Any) -> object:
        status, vertex, edge = honest(*arguments)
        unproven = vertex and replace(vertex, certificate=Certificate(1.0, 0.0, 0.0, 1))
        return status, unproven, edge

    def fails(problem: Problem, *rest: object) -> object:
        return nothing if problem is model._problem else honest(problem, *rest)

    monkeypatch.setattr(model_module, "fit_extreme", without_proof)
    by_program = model.thresholds(tests)
    np.testing.assert_allclose(by_program.values, expected.values, atol=1e-9)
    assert np.sum(by_program.status == Status.FALLBACK) == 2
    monkeypatch.setattr(model_module, "solve_as_program", lambda *_: None)
    monkeypatch.setattr(model_module, "fit_extreme", fails)
    rounded = model.thresholds(tests)
    assert list(rounded.status[:2]) == [Status.ROUNDED_UP] * 2
    np.testing.assert_allclose(rounded.values[:2], expected.values[:2], rtol=0, atol=1e-3)
    assert np.all(rounded.values[:2] >= expected.values[:2] - 1e-9)
    monkeypatch.setattr(model_module, "fit_extreme", lambda *_: nothing)
    last = model.thresholds(tests)
    assert list(last.status[:2]) == [Status.UNCERTIFIED] * 2
    assert np.all(last.values == np.inf)


def test_a_slope_that_turns_exactly_at_a_breakpoint_is_no_ray() -> None:
    """Integer slopes: sums in two orders differ in the last bit, and both must find the turn."""
    rng = np.random.default_rng(0)
    for seed in range(300 if COMPILED else 20):
        x = rng.random(60)
        phi = np.stack([np.ones(60), x, x > 0.5], axis=1)
        assert fit_quantiles(phi, rng.gamma(1.0, 0.2 + x), 0.2).certificate.holds, seed


def test_scores_over_hundreds_of_digits_end_in_a_status() -> None:
    """Nothing certifies such a fit, and coverage is kept."""
    rng = np.random.default_rng(172)
    phi = np.vander(np.exp(2.0 * rng.standard_normal(60)), 8)
    scores = np.exp(10.0 * rng.standard_t(1.5, 60).clip(-30.0, 30.0))
    result = fit_quantiles(phi, scores, 0.9).thresholds(phi[:3])
    assert set(result.status) == {Status.UNCERTIFIED}
    assert np.all(result.values == np.inf)


def test_scores_are_rounded_up_until_a_fit_can_be_certified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a certificate for fine scores: larger thresholds that say so, never an error."""
    rng = np.random.default_rng(0)
    phi, scores = np.column_stack([np.ones(60), rng.random(60)]), rng.random(60)
    expected = fit_quantiles(phi, scores, 0.1).thresholds(phi[:5]).values
    real, calls = model_module.fit_vertex, []

    def fails_at_first(problem: Problem, start: object = None) -> Vertex:
        vertex = real(problem, None)
        calls.append(len(np.unique(problem.scores)))
        wrong = replace(vertex.certificate, dual_violation=1.0)
        return replace(vertex, certificate=wrong) if len(calls) <= failures else vertex

    monkeypatch.setattr(model_module, "fit_vertex", fails_at_first)
    for count in (1, 2, 3):
        failures = count
        calls.clear()
        found = fit_quantiles(phi, scores, 0.1).thresholds(phi[:5])
        assert set(found.status) == {Status.ROUNDED_UP}
        assert np.all(found.values >= expected - 1e-12)
    assert calls[0] == 60 and calls[-1] == 1
    calls.clear()
    failures = 4
    found = fit_quantiles(phi, scores, 0.1).thresholds(phi[:5])
    assert set(found.status) == {Status.UNCERTIFIED}
    assert np.all(found.values == np.inf)
