"""The base fit: optimal, at every size, with a certificate that can fail."""

import numpy as np
import pytest
from problems import COMPILED, random_case
from scipy.optimize import linprog

from trustsets.engine import fit as fit_module
from trustsets.engine import fit_quantiles, solve_oracle
from trustsets.engine.descent import CAPPED
from trustsets.engine.fit import Certificate, fit_vertex
from trustsets.engine.model import QuantileModel
from trustsets.engine.oracle import solve_reduced
from trustsets.engine.problem import build_problem
from trustsets.errors import TrustSetsError
from trustsets.status import Status

N = 6000 if COMPILED else 150


@pytest.fixture
def small_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make problems of test size go through samples, reduction and checks."""
    monkeypatch.setattr(fit_module, "CORE_SIZE", 40)
    monkeypatch.setattr(fit_module, "ACTIVE_FACTOR", 0.25)
    monkeypatch.setattr(fit_module, "solve_base", None)  # no help from the linear program


@pytest.mark.usefixtures("small_core")
@pytest.mark.parametrize("scores", ["continuous", "rounded", "mostly_zero", "constant"])
@pytest.mark.parametrize("features", ["polynomial3", "bins", "student", "heavy_polynomial5"])
def test_reduced_fits_reach_the_optimum_of_the_whole(features: str, scores: str) -> None:
    case = random_case(0, features, scores, n=N)
    problem = build_problem(case.phi, case.scores, case.alpha)
    vertex = fit_vertex(problem)
    assert vertex.certificate.holds
    slope = np.where(vertex.residuals > 0, 1 - case.alpha, -case.alpha)
    loss = float((problem.copies * slope) @ vertex.residuals)
    bounds = (-case.alpha, 1.0 - case.alpha)
    rows = problem.whitening.apply(case.phi)  # all points, copies apart
    zero = np.zeros(rows.shape[1])
    dual = linprog(-case.scores, A_eq=rows.T, b_eq=zero, bounds=bounds)
    assert loss == pytest.approx(-dual.fun, abs=1e-7 * N)


def test_a_certificate_fails_on_any_violation() -> None:
    assert Certificate(0.0, 0.0, 0.0, 1).holds
    for wrong in ((1e-3, 0.0, 0.0), (0.0, 1e-3, 0.0), (0.0, 0.0, 1e-3)):
        assert not Certificate(*wrong, pivots=1).holds


def extreme_model() -> tuple[QuantileModel, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.exp(rng.standard_normal(N // 2))
    phi = np.stack([x**k for k in range(4)], axis=1)
    largest = np.sort(x)[-3]
    tests = np.array([[t**k for k in range(4)] for t in (1.0, 0.8 * largest, 3.0 * x.max())])
    return fit_quantiles(phi, rng.random(N // 2), 0.1), tests


def test_descent_and_program_agree_with_the_path() -> None:
    """The two stand-ins for a path that fails give the value of the path."""
    model, tests = extreme_model()
    problem, vertex = model._problem, model._vertex
    expected = model.thresholds(tests)
    assert expected.status[-1] == Status.HIGH_LEVERAGE
    for row, value in zip(problem.whitening.apply(tests), expected.values, strict=True):
        assert model._solve_alone(row, 0.9, [])[0] == pytest.approx(value, abs=1e-9)
        program = solve_reduced(
            problem.rows,
            problem.scores,
            problem.copies,
            vertex.residuals,
            problem.norms,
            0.1,
            row,
            0.9,
        )
        assert program == pytest.approx(value, abs=1e-9)
        assert program == pytest.approx(
            solve_oracle(problem.rows, problem.scores, 0.1, row, 0.9), abs=1e-9
        )


def test_a_path_that_fails_its_check_goes_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tests = extreme_model()
    expected = model.thresholds(tests)
    broken = model._base._replace(tolerance=-1.0)  # no drift is small enough
    object.__setattr__(model, "_base", broken)
    by_descent = model.thresholds(tests)
    np.testing.assert_allclose(by_descent.values, expected.values, atol=1e-9)
    monkeypatch.setattr(fit_module, "CERTIFICATE_TOL", -1.0)
    by_program = model.thresholds(tests)
    np.testing.assert_allclose(by_program.values, expected.values, atol=1e-9)
    assert by_program.n_fallback == 2
    assert by_program.counts()[Status.FALLBACK] == 2


def test_a_slope_that_turns_exactly_at_a_breakpoint_is_no_ray() -> None:
    """Integer slopes: sums in two orders differ in the last bit, and both must find the turn."""
    rng = np.random.default_rng(0)
    for seed in range(300 if COMPILED else 20):
        x = rng.random(60)
        phi = np.stack([np.ones(60), x, x > 0.5], axis=1)
        assert fit_quantiles(phi, rng.gamma(1.0, 0.2 + x), 0.2).certificate.holds, seed


def test_a_base_fit_without_proof_starts_again_from_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    phi = np.stack([np.ones(200), rng.random(200), rng.random(200)], axis=1)
    scores = np.round(rng.gamma(2.0, size=200), 1)
    expected = fit_quantiles(phi, scores).thresholds(phi[:9]).values
    honest, calls = fit_module._close_in, []

    def failing_once(*arguments: object) -> tuple[int, np.ndarray, int]:
        calls.append(arguments)
        if len(calls) == 1:
            return CAPPED, arguments[2], 0  # type: ignore[return-value]
        return honest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fit_module, "_close_in", failing_once)
    model = fit_quantiles(phi, scores)
    assert len(calls) == 2
    assert model.certificate.holds
    assert model.certificate.pivots < 10  # the program's solution is as good as optimal
    np.testing.assert_allclose(model.thresholds(phi[:9]).values, expected, atol=1e-9)


def test_a_base_fit_that_stays_without_proof_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "CERTIFICATE_TOL", -1.0)
    with pytest.raises(TrustSetsError, match="base fit lost its accuracy"):
        fit_quantiles(np.ones((30, 1)), np.arange(30.0))
