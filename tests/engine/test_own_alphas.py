"""An alpha for each calibration point: every solver against the definition."""

from math import ceil

import numpy as np
import pytest
from problems import COMPILED, Array, Case, random_case, reference

from trustsets.engine import extreme as extreme_module
from trustsets.engine import fit as fit_module
from trustsets.engine import fit_quantiles, solve_linear_program
from trustsets.engine.extreme import choose_sample, solve_as_program
from trustsets.engine.linear_program import solve_base
from trustsets.engine.model import QuantileModel
from trustsets.errors import InputError
from trustsets.status import Status

SIZE = None if COMPILED else 30


def some_alphas(kind: str, rng: np.random.Generator, count: int) -> Array:
    if kind == "two":
        return rng.choice([0.05, 0.3], count)
    if kind == "wide":
        return np.asarray(10.0 ** rng.uniform(-5.0, -0.01, count))
    return rng.uniform(0.01, 0.6, count)


def with_copies_and_penalty(case: Case, rng: np.random.Generator, kind: str) -> Case:
    """Every point up to several times, each time with another alpha, and a penalty."""
    n, p = case.phi.shape
    drawn = np.concatenate([np.arange(n), rng.integers(n, size=n)])
    penalty = 0.7 * np.abs(case.phi).max(axis=0) * np.eye(p)[1:]
    phi = np.vstack([case.phi[drawn], penalty, -penalty])
    scores = np.append(case.scores[drawn], np.zeros(2 * len(penalty)))
    alphas = np.append(some_alphas(kind, rng, 2 * n), np.full(2 * len(penalty), 0.5))
    return Case(phi, scores, case.tests, alphas)


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
        case = with_copies_and_penalty(case, rng, kind)
    alphas = some_alphas(kind, rng, len(case.tests))
    weights = rng.uniform(-alphas, 1.0 - alphas)
    weights[1:] = 1.0 - alphas[1:]
    model = fit_quantiles(case.phi, 1e-5 * case.scores, case.alpha)
    assert model.certificate.holds
    found = 1e5 * model.thresholds(case.tests, weights, alpha=alphas).values
    np.testing.assert_allclose(found, reference(case, weights), rtol=1e-9, atol=1e-9)


def test_equal_alphas_give_the_bits_of_one() -> None:
    case = random_case(0, "polynomial3", "rounded", n=400)
    once = fit_quantiles(case.phi, case.scores, 0.13)
    each = fit_quantiles(case.phi, case.scores, np.full(400, 0.13))
    assert each.alpha == once.alpha
    assert once.alphas is None
    assert each.alphas is not None
    assert np.array_equal(each.basic_points, once.basic_points)
    found = each.thresholds(case.phi, alpha=0.13).values
    assert np.array_equal(found, once.thresholds(case.phi).values)


def test_groups_have_the_quantiles_of_their_own_alphas() -> None:
    """Mondrian's k-th smallest score, to the last bit, at every group's alpha."""
    n = 4000 if COMPILED else 120
    rng = np.random.default_rng(3)
    group, alphas = rng.integers(4, size=n), np.array([0.4, 0.25, 0.05, 0.01])
    scores = np.where(rng.random(n) < 0.6, 0.0, rng.random(n))
    model = fit_quantiles(np.eye(4)[group], scores, alphas[group])
    found = model.thresholds(np.eye(4), alpha=alphas).values
    for g in range(4):
        own = np.sort(scores[group == g])
        k = ceil((len(own) + 1) * (1.0 - alphas[g]) - 1e-9)
        assert found[g] == (own[k - 1] if k <= len(own) else np.inf)


def heavy_model() -> tuple[QuantileModel, Array]:
    """Alphas that grow with the input, and test rows up to infinite thresholds."""
    n = 5000 if COMPILED else 150
    rng = np.random.default_rng(5)
    x = np.exp(1.2 * rng.standard_normal(n))
    phi = np.stack([x**k for k in range(4)], axis=1)
    far = np.append(np.quantile(x, [0.5, 0.99, 0.999]), x.max() * np.array([1.0, 1.2, 5.0]))
    alphas = np.clip(0.05 * x, 0.02, 0.6)
    return fit_quantiles(phi, rng.gamma(2.0, size=n), alphas), far[:, None] ** np.arange(4)


@pytest.mark.parametrize("active", [8, 64, 6000])
def test_every_solver_gives_the_same(monkeypatch: pytest.MonkeyPatch, active: int) -> None:
    """Path, descent over few points and linear program, finite and infinite."""
    monkeypatch.setattr(extreme_module, "FIRST_ACTIVE", active)
    monkeypatch.setattr(extreme_module, "ACTIVE", active)
    model, tests = heavy_model()
    problem, alpha = model._problem, 0.3
    found = model.thresholds(tests, alpha=alpha)
    assert set(found.status.tolist()) == {Status.EXACT, Status.HIGH_LEVERAGE}
    object.__setattr__(model, "_sample", choose_sample(problem, model._scan_order, active))
    rows = problem.whitening.apply(tests)
    for row, value in zip(rows, found.values, strict=True):
        assert model.alphas is not None
        expected = np.ldexp(
            solve_linear_program(problem.rows, problem.scores, model.alphas, row, 1.0 - alpha),
            problem.exponent,
        )
        assert value == pytest.approx(expected, rel=1e-9)
        alone, status = model._solve_alone(row, 1.0 - alpha, [])
        assert status in (Status.EXACT, Status.HIGH_LEVERAGE)
        assert np.ldexp(alone, problem.exponent) == pytest.approx(value, rel=1e-9)
        program = solve_as_program(problem, row, 1.0 - alpha)
        assert program is not None
        size = np.ldexp(problem.score_scale, problem.exponent)
        assert size * program == pytest.approx(value, rel=1e-8)


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
        assert model._solve_alone(row, 0.999, [])[0] == pytest.approx(expected, rel=1e-9)


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
    again = fit_quantiles(phi, scores, alphas, start=model.basic_points)
    assert again.certificate.pivots == 0
    problem = model._problem
    perturbed = problem.centred_scores + problem.perturbations
    beta = solve_base(
        problem.rows, perturbed, problem.multiplicities, problem.alpha, problem.linear
    )
    assert beta is not None
    basic = model._scan_order.vertex.basic_points
    np.testing.assert_allclose(problem.rows[basic] @ beta, perturbed[basic], atol=1e-9)


PHI, SCORES = np.column_stack([np.ones(30), np.arange(30.0)]), np.linspace(0.0, 1.0, 30)


@pytest.mark.parametrize(
    ("alpha", "words"),
    [
        (np.full(29, 0.1), r"alpha must be one number or one per row of phi_calib \(30\).*\(29,\)"),
        (np.full((30, 1), 0.1), r"alpha must be one number or one per row.*\(30, 1\)"),
        (np.linspace(0.0, 0.9, 30), "alpha must lie strictly between 0 and 1, got 0.0"),
        (np.full(30, np.nan), "alpha must lie strictly between 0 and 1, got nan"),
    ],
)
def test_wrong_alphas_are_refused(alpha: Array, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_quantiles(PHI, SCORES, alpha)


def test_wrong_alphas_of_test_points_are_refused() -> None:
    model = fit_quantiles(PHI, SCORES, np.linspace(0.1, 0.3, 30))
    with pytest.raises(InputError, match="alpha must be given with phi_test"):
        model.thresholds(PHI[:2])
    with pytest.raises(InputError, match="alpha must be given with phi_test"):
        model.thresholds(PHI[:2], weight=0.5)
    with pytest.raises(InputError, match=r"one per test row \(2\), got shape \(3,\)"):
        model.thresholds(PHI[:2], alpha=[0.1, 0.2, 0.3])
    with pytest.raises(InputError, match=r"weight must lie in \(-alpha, 1 - alpha\], got"):
        model.thresholds(PHI[:2], weight=0.8, alpha=[0.1, 0.3])
    assert np.all(np.isfinite(model.thresholds(PHI[:2], 0.7, alpha=[0.1, 0.3]).values))
    # A test point may have an alpha of its own where the calibration points share one, too.
    shared = fit_quantiles(PHI, SCORES, 0.2)
    expected = shared.thresholds(PHI[:2], weight=0.7).values
    assert np.array_equal(shared.thresholds(PHI[:2], alpha=0.3).values, expected)
