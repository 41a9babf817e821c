"""Extreme test points: active sets lead to the optimum of all points from every start."""

from functools import cache

import numpy as np
import pytest
from problems import COMPILED, Array

from trustsets.engine import QuantileModel, fit_quantiles, solve_linear_program
from trustsets.engine import extreme as extreme_module
from trustsets.engine.extreme import SAMPLE_POWER, choose_sample, solve_as_program
from trustsets.status import Status

N = 6000 if COMPILED else 150


def heavy_model(kind: str = "continuous") -> tuple[QuantileModel, Array]:
    """Heavy tails, and test rows far out in them: some have no finite threshold."""
    rng = np.random.default_rng(5)
    x = np.exp(1.2 * rng.standard_normal(N))
    phi = np.stack([x**k for k in range(5)], axis=1)
    far = np.quantile(x, [0.5, 0.9, 0.99, 0.999, 1.0]) * [1.0, 1.0, 1.0, 1.0, 1.1]
    far = np.append(far, x.max() * np.array([1.3, 2.0, 10.0]))
    scores = rng.gamma(2.0, size=N)
    if kind == "ties":
        scores = np.where(scores < 3.0, 0.0, np.round(scores, 1))
    alpha = np.clip(0.05 * x, 0.02, 0.6) if kind == "own alphas" else 0.1
    return fit_quantiles(phi, scores, alpha), far[:, None] ** np.arange(5)


@cache
def program_values(kind: str) -> Array:
    """Thresholds of the test rows at alpha 0.1 by the definition, and by the program in between."""
    model, tests = heavy_model(kind)
    problem = model._problem
    alpha = 0.1 if model.alphas is None else model.alphas
    values = []
    for row in problem.whitening.apply(tests):
        values.append(solve_linear_program(problem.rows, problem.scores, alpha, row, 0.9))
        program = solve_as_program(problem, row, 0.9)
        assert program is not None
        assert problem.score_scale * program == pytest.approx(values[-1], rel=1e-8)
    return np.array(values)


@pytest.mark.parametrize("kind", ["continuous", "ties", "own alphas"])
@pytest.mark.parametrize(
    ("active", "sample"), [(1, 0), (1, 8), (8, 0), (8, 8), (64, 200), (64, N), (N, 0)]
)
def test_few_points_lead_to_the_optimum_of_all(
    monkeypatch: pytest.MonkeyPatch, active: int, sample: int, kind: str
) -> None:
    """Fixed points on the wrong side are found, and infinite thresholds are proven."""
    model, tests = heavy_model(kind)
    problem = model._problem
    along = np.ldexp(model.thresholds(tests, alpha=0.1).values, -problem.exponent)
    np.testing.assert_allclose(along, program_values(kind), rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(extreme_module, "FIRST_ACTIVE", active)
    monkeypatch.setattr(extreme_module, "ACTIVE", active)
    monkeypatch.setattr(extreme_module, "SAMPLE_SIZE", max(sample, 1))
    object.__setattr__(model, "_sample", choose_sample(problem, model._scan_order, sample))
    kinds = set()
    rows = problem.whitening.apply(tests)
    for row, expected in zip(rows, program_values(kind), strict=True):
        value, status = model._solve_alone(row, 0.9)
        kinds.add(status)
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert kinds == {Status.EXACT, Status.HIGH_LEVERAGE}


def test_a_row_that_can_just_be_balanced_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over few points it runs away; only a ray that all points confirm is a proof."""
    model, tests = heavy_model()
    problem = model._problem
    row = problem.whitening.apply(tests[-1:])[0]
    finite, infinite = 0.0, 1.0
    while infinite - finite > 1e-3 * infinite:
        middle = 0.5 * (finite + infinite)
        value = solve_linear_program(problem.rows, problem.scores, 0.1, middle * row, 0.9)
        finite, infinite = (middle, infinite) if np.isfinite(value) else (finite, middle)
    monkeypatch.setattr(extreme_module, "FIRST_ACTIVE", 8)
    monkeypatch.setattr(extreme_module, "ACTIVE", 8)
    for sample in (0, 20):
        object.__setattr__(model, "_sample", choose_sample(problem, model._scan_order, sample))
        for share in (0.7, 0.95, 1.0):
            near = share * finite * row
            value, status = model._solve_alone(near, 0.9)
            expected = solve_linear_program(problem.rows, problem.scores, 0.1, near, 0.9)
            assert value == pytest.approx(expected, rel=1e-7)
            assert status == Status.EXACT
        assert model._solve_alone(infinite * row, 0.9)[1] == Status.HIGH_LEVERAGE


def test_a_sampled_point_that_became_basic_was_fixed_wrongly() -> None:
    nowhere = np.zeros(9, np.bool_)
    old, new = (
        extreme_module.Centre(np.array(basis), np.empty(0, np.int64), np.empty(0), nowhere, nowhere)
        for basis in ([1, 2], [2, 5])
    )
    changed = extreme_module.changed_outside(old, new, np.array([1, 2, 7]))
    np.testing.assert_array_equal(changed, [5])


def test_a_weighted_sample_represents_all_points() -> None:
    """Sampled with probability proportional to their share, they add up to all shares."""
    model, _ = heavy_model()
    problem = model._problem
    share = problem.norms**SAMPLE_POWER
    for count in (10, N // 10, N // 2):
        sample = choose_sample(problem, model._scan_order, count)
        is_sure = sample.weights == 1.0
        assert len(np.unique(sample.points)) == len(sample.points)
        assert np.all(sample.weights >= 1.0)
        sure = sample.points[is_sure]
        assert share[sure].sum() == pytest.approx(share[count * share >= share.sum()].sum())
        unsure = np.setdiff1d(np.arange(N), sure)
        drawn = (sample.weights * share[sample.points])[~is_sure].sum()
        assert abs(drawn - share[unsure].sum()) <= 1.0001 * share.sum() / count
    whole = choose_sample(problem, model._scan_order, N)
    np.testing.assert_array_equal(whole.points, np.arange(N))
    np.testing.assert_array_equal(whole.weights, np.ones(N))
