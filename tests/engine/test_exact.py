"""The path against the definition, over every kind of problem."""

import numpy as np
import pytest
from problems import COMPILED, Array, Case, polynomial, random_case, reference

from trustsets.engine import QuantileModel, fit_quantiles
from trustsets.engine import path as path_module
from trustsets.engine.path import CAP_BASE, CAP_FACTOR, REFRESH, Tour, make_tour
from trustsets.status import Status

FEATURES = [
    "normal",
    "student",
    "bins",
    "duplicated",
    "polynomial1",
    "polynomial3",
    "polynomial5",
    "polynomial8",
    "heavy_polynomial5",
    "scaled_polynomial4",
]
SCORES = ["continuous", "rounded", "mostly_zero", "constant"]
SEEDS = range(5 if COMPILED else 1)
SIZE = None if COMPILED else 30


def assert_exact(case: Case, weights: Array) -> None:
    result = fit_quantiles(case.phi, case.scores, case.alpha).thresholds(case.tests, weights)
    expected = reference(case, weights)
    finite = np.isfinite(expected)
    assert np.array_equal(result.values[~finite], expected[~finite])
    scale = max(1.0, np.abs(case.scores).max())
    np.testing.assert_allclose(result.values[finite], expected[finite], rtol=0, atol=1e-9 * scale)
    statuses = np.array([Status(code).is_infinite for code in result.status])
    assert np.array_equal(statuses, ~finite)


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("features", FEATURES)
def test_equals_the_definition(features: str, scores: str) -> None:
    for seed in SEEDS:
        case = random_case(seed, features, scores, n=SIZE)
        rng = np.random.default_rng(seed)
        weights = rng.uniform(-case.alpha + 1e-6, 1.0 - case.alpha, len(case.tests))
        weights[[0, -1]] = 1.0 - case.alpha
        assert_exact(case, weights)


@pytest.mark.parametrize("scores", ["continuous", "mostly_zero"])
@pytest.mark.parametrize("features", ["normal", "polynomial8", "bins"])
def test_equals_the_definition_on_larger_problems(features: str, scores: str) -> None:
    case = random_case(0, features, scores, n=5000 if COMPILED else 60, m=2)
    assert_exact(case, np.full(2, 1.0 - case.alpha))


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_fewer_points_than_columns(n: int) -> None:
    case = random_case(1, "polynomial3", "continuous", n=n)
    tests = np.vstack([case.tests, case.phi[:1], 0.0 * case.phi[:1]])
    assert_exact(Case(case.phi, case.scores, tests, 0.4), np.full(len(tests), 0.3))


@pytest.mark.parametrize(("n", "weight"), [(66, -0.2), (63, -0.1), (70, 0.0), (61, 0.3), (64, 0.2)])
def test_a_breakpoint_on_the_weight_gives_the_smallest_value(n: int, weight: float) -> None:
    """With alpha 0.3 and a constant, u = 0.3 n - k is a breakpoint for every integer k."""
    scores = np.random.default_rng(n).permutation(n).astype(float)
    case = Case(np.ones((n, 1)), scores, np.ones((1, 1)), 0.3)
    model = fit_quantiles(case.phi, case.scores, case.alpha)
    value = model.thresholds(case.tests, weight).values[0]
    assert value == reference(case, np.array([weight]))[0]
    assert value < model.thresholds(case.tests, weight + 1e-3).values[0]
    alone, _ = model._solve_alone(model._problem.whitening.apply(case.tests)[0], weight)
    assert np.ldexp(alone, model._problem.exponent) == value
    # In groups, with ties: most breakpoints of the sum of two groups fall on the weight, too.
    phi = np.eye(3)[np.arange(n) % 3]
    tied = Case(phi, np.round(scores / 6.0), np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]), 0.3)
    assert_exact(tied, np.full(2, weight))


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("features", ["normal", "bins", "polynomial3", "heavy_polynomial5"])
def test_copies_of_points_count_one_by_one(features: str, scores: str) -> None:
    """Every point several times, in any order: the definition over all of them."""
    for seed in SEEDS:
        case = random_case(seed, features, scores, n=40)
        rng = np.random.default_rng(seed)
        drawn = np.concatenate([np.arange(40), rng.integers(40, size=90)])
        copied = Case(case.phi[drawn], case.scores[drawn], case.tests, case.alpha)
        weights = rng.uniform(-case.alpha + 1e-6, 1.0 - case.alpha, len(case.tests))
        weights[[0, -1]] = 1.0 - case.alpha
        assert_exact(copied, weights)


@pytest.mark.parametrize("scores", ["continuous", "mostly_zero"])
@pytest.mark.parametrize("features", ["polynomial3", "heavy_polynomial5", "normal", "bins"])
def test_every_way_leads_to_the_same_bits(features: str, scores: str) -> None:
    """Paths from the base vertex and tours in any order end in one place, whatever their weight."""
    case = random_case(3, features, scores, n=1200 if COMPILED else 300, m=60 if COMPILED else 6)
    rng = np.random.default_rng(0)
    weights = rng.uniform(-0.199, 0.8, len(case.tests))
    model = fit_quantiles(case.phi, case.scores, 0.2)
    rows = model._problem.whitening.apply(case.tests)
    expected = model._solve_rows(rows, weights)
    for chained in (0, 1, 1):
        tour = Tour(rng.permutation(len(rows)), np.full(len(rows), chained))
        found = model._solve_rows(rows, weights, tour=tour)
        np.testing.assert_array_equal(found.values, expected.values)
        np.testing.assert_array_equal(found.status, expected.status)
    # A path that is too long is solved from scratch, with the same result.
    for row, weight, value, status in zip(rows, weights, *vars(expected).values(), strict=True):
        if status == Status.EXACT and features != "bins":
            assert model._solve_alone(row, weight)[0] == value


def test_a_tour_is_shorter_than_paths_from_the_base_vertex() -> None:
    """It visits every row once, and a path that was cut off still helps the next one."""
    case = random_case(1, "polynomial3", "continuous", n=2000, m=300 if COMPILED else 40)
    model = fit_quantiles(case.phi, case.scores, 0.1)
    rows, weights = model._problem.whitening.apply(case.tests), np.full(len(case.tests), 0.9)
    tour = make_tour(rows, model._tour_scale)
    assert np.array_equal(np.sort(tour.order), np.arange(len(rows)))
    assert tour.chained[0] == 0
    alone = model._follow(rows, weights, Tour(tour.order, np.zeros(len(rows), np.int64)))
    along = model._follow(rows, weights, tour)
    # The last row is extreme, and only its share of the way can be saved.
    assert along.pivots[:-1].sum() < (0.6 if COMPILED else 0.9) * alone.pivots[:-1].sum()
    assert tour.chained.mean() > 0.5


@pytest.mark.parametrize("scores", ["continuous", "rounded"])
@pytest.mark.parametrize("features", ["normal", "bins", "polynomial3"])
def test_paths_pass_their_own_check(features: str, scores: str) -> None:
    """The next solver would repair a wrong path, so its own result is looked at, with copies."""
    for seed in SEEDS:
        case = random_case(seed, features, scores, n=60, m=12)
        drawn = np.random.default_rng(seed).integers(60, size=240)
        weights = np.full(12, 1.0 - case.alpha)
        model = fit_quantiles(case.phi[drawn], case.scores[drawn], case.alpha)
        found = model._follow(model._problem.whitening.apply(case.tests), weights)
        cap = CAP_FACTOR * model.rank + CAP_BASE
        assert np.all((found.status != Status.FALLBACK) | (found.pivots == cap))


def far_rows(features: str) -> tuple[Case, Array]:
    """A problem, and test rows at many times their size, up to infinite thresholds."""
    n, rng = 900, np.random.default_rng(1)
    if features == "line":
        phi = np.column_stack([np.ones(n), rng.uniform(-1.0, 1.0, n)])
        case = Case(phi, rng.gamma(2.0, size=n), phi[:3], 0.1)
    else:
        case = random_case(1, features, "continuous", n=n, m=3)
    sizes = np.array([0.25, 1.0, 4.0, 16.0, 60.0])
    return case, (case.tests * sizes[:, None, None]).reshape(-1, case.phi.shape[1])


def ignore_bounds(model: QuantileModel, **fields: Array) -> None:
    """Let no key end a scan, and change other fields of it."""
    order = model._scan_order
    keys = np.where(np.isfinite(order.scan.group_key), -2.0 - model.rank, np.inf)
    scan = order.scan._replace(group_key=keys, **fields)
    object.__setattr__(model, "_scan_order", order._replace(scan=scan))
    model._states.clear()


@pytest.mark.parametrize("features", ["polynomial3", "polynomial8"])
def test_the_scan_may_end_where_keys_exceed_the_distance(features: str) -> None:
    """Leave-one-out of tied scores, with as much weight as a row can have, is that of all keys."""
    for seed in range(4 if COMPILED else 1):
        case = random_case(seed, features, "mostly_zero", n=400 if COMPILED else 40)
        model, every = (fit_quantiles(case.phi, case.scores, 0.1) for _ in range(2))
        ignore_bounds(every)
        values = every.leave_one_out().values
        np.testing.assert_allclose(model.leave_one_out().values, values, rtol=0, atol=1e-9)


@pytest.mark.parametrize("features", ["line", "polynomial1", "student"])
def test_bounds_never_hide_a_crossing(monkeypatch: pytest.MonkeyPatch, features: str) -> None:
    """Long paths from the base vertex are the same when every block is scanned in every step."""
    monkeypatch.setattr(path_module, "CAP_FACTOR", 60)
    case, tests = far_rows(features)
    model = fit_quantiles(case.phi, case.scores, 0.1)
    base = Tour(np.arange(len(tests)), np.zeros(len(tests), np.int64))
    bounded = model._follow(model._problem.whitening.apply(tests), np.full(len(tests), 0.9), base)
    spread = np.full_like(model._scan_order.scan.spread, 1e7)
    ignore_bounds(model, spread=spread, steepness=1.0 / spread)
    whole = model._follow(model._problem.whitening.apply(tests), np.full(len(tests), 0.9), base)
    longest = int(np.argmax(np.where(bounded.status == Status.EXACT, bounded.pivots, -1)))
    assert bounded.pivots[longest] > REFRESH
    row = model._problem.whitening.apply(tests[longest : longest + 1])[0]
    alone, _ = model._solve_alone(row, 0.9)
    assert bounded.values[longest] == pytest.approx(alone, rel=1e-9)
    np.testing.assert_array_equal(bounded.status, whole.status)
    np.testing.assert_array_equal(bounded.pivots, whole.pivots)
    np.testing.assert_allclose(bounded.values, whole.values, rtol=1e-12)


def test_a_tour_is_short_where_few_points_resist_the_goal() -> None:
    """Beside equal scores and penalties a tour by the distance of whitened rows is far longer."""
    rng = np.random.default_rng(0)
    n, m = (2000, 300) if COMPILED else (300, 60)
    x = rng.random((n + m, 2))
    phi = np.column_stack([polynomial(x, 3), rng.standard_normal((n + m, 12))])
    scores = np.where(rng.random(n) < x[:n, 0] ** 4, rng.gamma(2.0, size=n), 0.0)
    penalty = 10.0 * np.eye(22)[10:]
    rows = np.vstack([phi[:n], penalty, -penalty])
    model = fit_quantiles(rows, np.append(scores, np.zeros(24)), 0.1)
    tests, weights = model._problem.whitening.apply(phi[n:]), np.full(m, 0.9)
    near, far = (
        model._follow(tests, weights, make_tour(tests, scale)).pivots.sum()
        for scale in (model._tour_scale, np.eye(model.rank))
    )
    assert near < 0.8 * far
