"""Fits at many alphas, each started from the one before, equal single fits bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
from problems import COMPILED, Array, polynomial, random_case

from trustsets.engine import QuantileModel, default_alphas, fit_quantile_process, fit_quantiles
from trustsets.engine import model as model_module
from trustsets.engine.fit import Vertex, refit_vertex
from trustsets.engine.problem import Problem
from trustsets.errors import InputError

ALPHAS = np.array([0.02, 0.1, 0.11, 0.25, 0.5, 0.9] if COMPILED else [0.1, 0.11, 0.5])


def assert_equal(found: QuantileModel, single: QuantileModel, tests: Array) -> None:
    """The same vertex and proof, to the last bit: all that thresholds are made of."""
    assert found.alpha == single.alpha
    np.testing.assert_array_equal(found.basic_points, single.basic_points)
    own, other = (replace(model.certificate, pivots=0) for model in (found, single))
    assert own == other
    assert found._problem.resolution == single._problem.resolution
    assert found._problem.score_scale == single._problem.score_scale
    np.testing.assert_array_equal(found.fitted(tests), single.fitted(tests))
    np.testing.assert_array_equal(found._vertex.residuals, single._vertex.residuals)


@pytest.mark.parametrize("scores", ["continuous", "rounded", "mostly_zero", "constant"])
@pytest.mark.parametrize("features", ["polynomial3", "bins", "student", "duplicated", "normal"])
@pytest.mark.parametrize("n", [1, 7, 150] if COMPILED else [12])
def test_fits_of_a_process_equal_single_fits(features: str, scores: str, n: int) -> None:
    case = random_case(0, features, scores, n=n)
    process = fit_quantile_process(case.phi, case.scores, ALPHAS)
    for model, alpha in zip(process, ALPHAS, strict=True):
        single = fit_quantiles(case.phi, case.scores, alpha)
        assert_equal(model, single, case.tests)
        other = model.at(0.3)
        if other is not None:
            assert_equal(other, fit_quantiles(case.phi, case.scores, 0.3), case.tests)
    # Thresholds at all alphas together, with random weights, too.
    draws = np.random.default_rng(0).uniform(0.01, 1.0, len(case.tests))
    for shares in (1.0, draws):
        along = process.thresholds(case.tests, shares)
        for found, alpha in zip(along, ALPHAS, strict=True):
            single = fit_quantiles(case.phi, case.scores, alpha)
            expected = single.thresholds(case.tests, shares - alpha)
            np.testing.assert_array_equal(found.values, expected.values)
            np.testing.assert_array_equal(found.status, expected.status)


def test_a_model_at_another_alpha_needs_one_alpha_and_any_scale() -> None:
    """Where few scores are far larger than the others, alpha decides which of them are typical."""
    rng = np.random.default_rng(0)
    phi, scores = polynomial(rng.random((200, 2)), 1), rng.random(200)
    assert fit_quantiles(phi, scores, 0.1).at(0.2) is not None
    assert fit_quantiles(phi, scores, np.full(200, 0.1)).at(0.2) is None
    scores[:2] = 1e9, 2e9
    other = fit_quantiles(phi, scores, 0.1).at(0.2)
    assert other is not None
    assert_equal(other, fit_quantiles(phi, scores, 0.2), phi)


@pytest.mark.skipif(not COMPILED, reason="thousands of points take too long without compilation")
@pytest.mark.parametrize("scores", ["continuous", "mostly_zero"])
def test_large_penalised_fits_equal_single_ones(scores: str) -> None:
    """More than 3,000 points, so that active sets take part; a penalty is two points each."""
    case = random_case(0, "polynomial5", scores, n=5000)
    penalty = np.diag(np.geomspace(1.0, 300.0, case.phi.shape[1]))[1:]
    phi = np.vstack([case.phi, penalty, -penalty])
    values = np.append(case.scores, np.zeros(2 * len(penalty)))
    process = fit_quantile_process(phi, values, np.append([0.002, 0.005], ALPHAS))
    singles = [fit_quantiles(phi, values, alpha) for alpha in process.alphas]
    for model, single in zip(process, singles, strict=True):
        assert_equal(model, single, case.tests)
    own, other = (sum(model.certificate.pivots for model in some) for some in (process, singles))
    assert own < other


def test_where_several_vertices_are_optimal_the_single_fit_decides() -> None:
    """With a constant, every alpha that makes alpha n whole has an interval of optima."""
    phi, scores = np.ones((100, 1)), np.random.default_rng(0).random(100)
    process = fit_quantile_process(phi, scores, np.linspace(0.01, 0.99, 99 if COMPILED else 15))
    other = 0
    for k, model in enumerate(process):
        single = fit_quantiles(phi, scores, model.alpha)
        assert_equal(model, single, phi[:1])
        if k:
            start = process._fits[k - 1].basic
            other += not np.array_equal(
                refit_vertex(single._problem, start).basic_points, single._vertex.basic_points
            )
    # The case is real: from the alpha before, another of the optimal vertices is reached.
    assert other > 0


def test_the_score_scale_is_that_of_each_alpha() -> None:
    """A few scores a million times as large as the others make the scale depend on alpha."""
    rng = np.random.default_rng(0)
    phi = np.column_stack([np.ones(300), rng.random(300)])
    for scores in (
        np.exp(6.0 * rng.standard_t(2.0, 300)),
        np.where(np.arange(300) % 7 == 0, np.geomspace(1e-9, 1.0, 300), 0.0),
    ):
        process = fit_quantile_process(phi, scores, [0.02, 0.1, 0.5, 0.9])
        assert len({model._problem.score_scale for model in process}) > 1
        for model in process:
            assert_equal(model, fit_quantiles(phi, scores, model.alpha), phi[:5])


def test_a_fit_without_proof_is_made_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(1, "polynomial3", "continuous", n=150)

    def without_proof(problem: Problem, basic: np.ndarray) -> Vertex:
        vertex = refit_vertex(problem, basic)
        return replace(vertex, certificate=replace(vertex.certificate, dual_violation=1.0))

    monkeypatch.setattr(model_module, "refit_vertex", without_proof)
    for model in fit_quantile_process(case.phi, case.scores, ALPHAS):
        assert model.certificate.holds
        assert_equal(model, fit_quantiles(case.phi, case.scores, model.alpha), case.tests)


def test_models_are_made_when_asked_for_and_not_kept() -> None:
    case = random_case(0, "polynomial3", "continuous", n=60)
    process = fit_quantile_process(case.phi, case.scores, [0.1, 0.2])
    model = process.at(0.2)
    assert "_scan_order" not in vars(model)
    model.thresholds(case.tests)
    assert "_scan_order" in vars(model)
    assert process[1] is not model
    assert process[1]._problem is model._problem
    for alpha in (0.15, 0.9):
        with pytest.raises(InputError, match=f"alpha must be one of the 2 alphas .* got {alpha}"):
            process.at(alpha)


@pytest.mark.parametrize(
    "alphas", [[], 0.1, [0.2, 0.1], [0.1, 0.1], [0.0, 0.5], [0.5, 1.0], [0.1, np.nan]]
)
def test_alphas_increase_strictly_between_0_and_1(alphas: object) -> None:
    with pytest.raises(InputError, match="alphas must be increasing"):
        fit_quantile_process(np.ones((9, 1)), np.arange(9.0), alphas)


def test_the_default_grid_is_finer_near_zero() -> None:
    grid = default_alphas()
    assert len(grid) == 100
    gaps = np.diff(grid, prepend=0.0)
    assert np.all(np.diff(gaps) >= -1e-12) and gaps[0] == 0.001 and grid[-1] == 0.98
    assert {0.01, 0.05, 0.1, 0.2} <= set(grid.tolist())
    phi = polynomial(np.random.default_rng(0).random((60, 2)), 1)
    process = fit_quantile_process(phi, np.arange(60.0) if COMPILED else np.zeros(60))
    np.testing.assert_array_equal(process.alphas, grid)
    assert all(model.certificate.holds for model in process)
