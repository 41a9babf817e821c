"""Where a threshold is known in closed form the engine returns those very bits."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from problems import COMPILED, Array, polynomial

from trustsets.engine import fit_quantiles
from trustsets.status import Status

SIZES = [1, 8, 9, 10, 19, 99, 100, 999, 5000] if COMPILED else [1, 8, 9, 10, 19, 40]
ALPHAS = [0.01, 0.05, 0.1, 0.2, 0.3, 0.45, 0.5, 0.9]


def split_conformal(scores: Array, alpha: float) -> float:
    """The k-th smallest score, k = ceil((n + 1)(1 - alpha)) in exact arithmetic."""
    k = ceil((len(scores) + 1) * (1 - Fraction(repr(alpha))))
    return float(np.sort(scores)[k - 1]) if k <= len(scores) else np.inf


def some_scores(kind: str, n: int) -> Array:
    scores = np.random.default_rng(n).random(n)
    if kind == "rounded":
        return np.round(scores, 1)
    if kind == "nearly equal":
        return 0.3 + np.arange(n) * np.spacing(0.3)
    return np.where(scores < 0.76, 0.0, scores) if kind == "mostly zero" else scores


@pytest.mark.parametrize("kind", ["continuous", "rounded", "mostly zero", "nearly equal"])
@pytest.mark.parametrize("constant", [1.0, 0.7e-3])
def test_an_intercept_is_split_conformal(kind: str, constant: float) -> None:
    for n in SIZES:
        scores = some_scores(kind, n)
        phi = np.full((n, 1), constant)
        for alpha in ALPHAS:
            found = fit_quantiles(phi, scores, alpha).thresholds(phi[:1]).values[0]
            assert found == split_conformal(scores, alpha), (n, alpha)


@pytest.mark.parametrize("kind", ["continuous", "rounded", "mostly zero"])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.45, None])
def test_disjoint_groups_are_mondrian(kind: str, alpha: float | None) -> None:
    """With one alpha, and with one for each group."""
    n = 4000 if COMPILED else 120
    rng = np.random.default_rng(3)
    group = rng.choice(5, n, p=[0.5, 0.3, 0.15, 0.04, 0.01])
    scores = some_scores(kind, n)
    alphas = [0.4, 0.25, 0.1, 0.05, 0.01] if alpha is None else [alpha] * 5
    model = fit_quantiles(np.eye(5)[group], scores, np.take(alphas, group) if not alpha else alpha)
    found = model.thresholds(np.eye(5), alpha=alphas).values
    expected = [split_conformal(scores[group == g], own) for g, own in enumerate(alphas)]
    assert found.tolist() == expected


def test_a_row_leaves_the_span_by_more_than_rounding() -> None:
    """A group without points does, and the sum of two others, if it is off; no row far away."""
    model = fit_quantiles(np.eye(3)[[0, 1] * 20], np.arange(40.0), alpha=0.1)
    assert model.thresholds(np.eye(3)).values.tolist() == [36.0, 37.0, np.inf]
    assert model.thresholds(np.eye(3), weight=-0.05).values[2] == -np.inf
    site, x = np.arange(300) % 12, np.random.default_rng(0).normal(size=(2, 300, 1))
    sums = fit_quantiles(np.hstack([x[0] ** 0, x[0], 1.0 + x[0]]), x[1, :, 0])
    tests = [[1.0, 0.3, 1.3 + off] for off in (0.0, 1e-12, 1e-7, -1e-7)]
    # The regions are sums of sites, which numbers far out must not hide.
    nested = np.hstack([np.eye(12)[site], np.eye(4)[site // 3], np.eye(2)[site // 6], x[0], x[1]])
    far = fit_quantiles(nested, x[1, :, 0]).thresholds(nested * np.append(np.ones(18), [1e3, 1e3]))
    exact, unseen = Status.EXACT, Status.UNSEEN_DIRECTION
    assert model.thresholds(np.eye(3)).status.tolist() == [exact, exact, unseen]
    assert sums.thresholds(tests).status.tolist() == [exact, exact, unseen, unseen]
    assert (far.status != unseen).all()


def test_a_long_row_is_finite_as_far_as_the_duals_reach() -> None:
    """Those of n ones, in [-alpha, 1 - alpha], balance goals between (alpha - 1) n and alpha n."""
    for alpha in ALPHAS:
        model = fit_quantiles(np.ones((40, 1)), np.arange(40.0), alpha)
        weights = np.repeat([1.0 - alpha, -0.5 * alpha], 2)
        goals = 40.0 * np.repeat([alpha, alpha - 1.0], 2) * [0.99, 1.01, 0.99, 1.01]
        values = model.thresholds((goals / weights)[:, None], weights).values
        assert np.isfinite(values[::2]).all() and values[1::2].tolist() == [np.inf, -np.inf]


def test_zero_scores_give_thresholds_of_exactly_zero() -> None:
    rng = np.random.default_rng(0)
    phi = polynomial(rng.random((200, 2)), 3)
    values = fit_quantiles(phi, np.zeros(200), alpha=0.1).thresholds(phi).values
    finite = values[np.isfinite(values)]
    assert len(finite) > 100 and np.all(finite == 0.0) and not np.signbit(finite).any()


def test_thresholds_rise_with_the_weight() -> None:
    rng = np.random.default_rng(5)
    phi = polynomial(rng.random((150, 2)), 2)
    model = fit_quantiles(phi, np.round(rng.random(150), 1))
    path = [model.thresholds(phi[:9], u).values for u in np.linspace(-0.099, 0.9, 41)]
    assert np.all(np.diff(np.array(path), axis=0) >= -1e-9)


def test_basic_points_rebuild_the_model_without_search() -> None:
    rng = np.random.default_rng(6)
    n = 8000 if COMPILED else 200
    phi, scores = polynomial(rng.random((n, 2)), 3), rng.random(n)
    phi[1::2], scores[1::2] = phi[::2], scores[::2]  # equal points are merged
    model = fit_quantiles(phi, scores)
    basic = model.basic_points
    np.testing.assert_allclose(model.fitted(phi[basic]), scores[basic], atol=1e-9)
    again = fit_quantiles(phi, scores, start=basic)
    assert again.certificate.pivots == 0 and np.array_equal(again.basic_points, basic)
    assert np.array_equal(again.thresholds(phi[:50]).values, model.thresholds(phi[:50]).values)


def test_sums_of_groups_have_thresholds_without_rounding() -> None:
    """Weights are integers there, so whole scores give whole thresholds."""
    for seed in range(40 if COMPILED else 5):
        rng = np.random.default_rng(seed)
        n = 600 if COMPILED else 80
        phi = np.hstack([np.eye(5)[rng.integers(5, size=n)], np.eye(4)[rng.integers(4, size=n)]])
        values = fit_quantiles(phi, rng.integers(1000, size=n).astype(float)).thresholds(phi).values
        assert np.array_equal(values, np.round(values))


@pytest.mark.parametrize("tiny", [5e-324, 1e-310, 1e-300])
def test_columns_of_tiny_numbers_are_no_obstacle(tiny):
    phi = np.column_stack([np.ones(40), np.where(np.arange(40) < 20, tiny, 0.0)])
    model = fit_quantiles(phi, np.arange(40.0), alpha=0.2)
    assert model.certificate.holds
    with np.errstate(over="ignore"):  # compiled kernels do not warn
        found = model.thresholds([[1.0, 0.0], [1.0, 1.0]])
    # A function that is far larger than in calibration gives no finite threshold.
    assert np.isfinite(found.values).tolist() == [True, False]
