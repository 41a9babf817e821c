"""Extreme rows: few points at a time lead to the optimum of all, wherever the search starts."""

from typing import Any

import numpy as np
import pytest
from problems import COMPILED

from trustsets.engine import fit_quantiles, solve_oracle
from trustsets.engine import pulled as pulled_module
from trustsets.engine.model import QuantileModel
from trustsets.engine.pulled import GUARD_POWER, Solved, choose_guards
from trustsets.status import Status

N = 6000 if COMPILED else 150


def heavy_model(ties: bool = False) -> tuple[QuantileModel, np.ndarray]:
    """Heavy tails, and test rows far out in them: some have no finite threshold."""
    rng = np.random.default_rng(5)
    x = np.exp(1.2 * rng.standard_normal(N))
    phi = np.stack([x**k for k in range(5)], axis=1)
    far = np.quantile(x, [0.5, 0.9, 0.99, 0.999, 1.0]) * [1.0, 1.0, 1.0, 1.0, 1.1]
    far = np.append(far, x.max() * np.array([1.3, 2.0, 10.0]))
    scores = rng.gamma(2.0, size=N)
    if ties:
        scores = np.where(scores < 3.0, 0.0, np.round(scores, 1))
    return fit_quantiles(phi, scores, 0.1), far[:, None] ** np.arange(5)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("band", "guards"), [(1, 0), (1, 8), (8, 0), (8, 8), (64, 200), (64, N), (N, 0)]
)
def test_few_points_lead_to_the_optimum_of_all(
    monkeypatch: pytest.MonkeyPatch, band: int, guards: int, ties: bool
) -> None:
    """Held points that should have moved are found, and infinite thresholds proven."""
    model, tests = heavy_model(ties)
    problem = model._problem
    monkeypatch.setattr(pulled_module, "FIRST_BAND", band)
    monkeypatch.setattr(pulled_module, "BAND", band)
    monkeypatch.setattr(pulled_module, "GUARDS", max(guards, 1))
    object.__setattr__(model, "_guards", choose_guards(problem, model._base, guards))
    kinds = set()
    for row in problem.whitening.apply(tests):
        value, status = model._solve_alone(row, 0.9, [])
        kinds.add(status)
        expected = solve_oracle(problem.rows, problem.scores, 0.1, row, 0.9)
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
        is_finite = np.isfinite(solve_oracle(problem.rows, problem.scores, 0.1, middle * row, 0.9))
        finite, infinite = (middle, infinite) if is_finite else (finite, middle)
    monkeypatch.setattr(pulled_module, "FIRST_BAND", 8)
    monkeypatch.setattr(pulled_module, "BAND", 8)
    for guards in (0, 20):
        object.__setattr__(model, "_guards", choose_guards(problem, model._base, guards))
        for share in (0.7, 0.95, 1.0):
            near = share * finite * row
            value, status = model._solve_alone(near, 0.9, [])
            expected = solve_oracle(problem.rows, problem.scores, 0.1, near, 0.9)
            assert value == pytest.approx(expected, rel=1e-7)
            assert status == Status.EXACT
        assert model._solve_alone(infinite * row, 0.9, [])[1] == Status.HIGH_LEVERAGE


def test_a_guard_that_became_basic_was_not_held_rightly() -> None:
    nowhere = np.zeros(9, np.bool_)
    old, new = (
        pulled_module.Centre(np.array(basis), np.empty(0, np.int64), np.empty(0), nowhere, nowhere)
        for basis in ([1, 2], [2, 5])
    )
    changed = pulled_module._changed_outside(old, new, np.array([1, 2, 7]))
    np.testing.assert_array_equal(changed, [5])


def test_what_was_solved_before_changes_the_way_and_not_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, tests = heavy_model()
    looks: list[tuple[int, ...]] = []
    honest = pulled_module._look_around

    def noting(*arguments: Any) -> pulled_module.Centre:
        looks.append(tuple(arguments[3].tolist()))
        return honest(*arguments)

    monkeypatch.setattr(pulled_module, "_look_around", noting)
    similar = np.stack([tests[1] * scale for scale in (1.0, 0.9, 0.95)])
    rows = model._problem.whitening.apply(similar)
    alone = [model._solve_alone(row, 0.9, []) for row in rows]
    n_alone = len(looks)
    solved: list[Solved] = []
    together = [model._solve_alone(row, 0.9, solved) for row in rows]
    assert together == alone  # to the last bit
    assert len(solved) == 3
    first = tuple(solved[0][1].tolist())
    assert looks[n_alone:].count(first) > looks[:n_alone].count(first)  # others began there


def test_guards_stand_for_all_points() -> None:
    """Sampled with probability proportional to their share, they add up to all shares."""
    model, _ = heavy_model()
    problem = model._problem
    share = problem.norms**GUARD_POWER
    for count in (10, N // 10, N // 2):
        guards = choose_guards(problem, model._base, count)
        is_sure = guards.weights == 1.0
        assert np.all(np.diff(guards.points) > 0)
        assert np.all(guards.weights >= 1.0)
        sure = guards.points[is_sure]
        assert share[sure].sum() == pytest.approx(share[count * share >= share.sum()].sum())
        unsure = np.setdiff1d(np.arange(N), sure)
        drawn = (guards.weights * share[guards.points])[~is_sure].sum()
        assert abs(drawn - share[unsure].sum()) <= 1.0001 * share.sum() / count
    whole = choose_guards(problem, model._base, N)
    np.testing.assert_array_equal(whole.points, np.arange(N))
    np.testing.assert_array_equal(whole.weights, np.ones(N))
