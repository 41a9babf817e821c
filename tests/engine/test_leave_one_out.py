"""Leaving calibration points out one by one: equal to as many fits of the others."""

import numpy as np
import pytest
from problems import COMPILED, Array, Case, random_case, with_copies_and_penalty

from trustsets.engine import QuantileModel, fit_quantiles
from trustsets.errors import InputError
from trustsets.status import Status


def refitted(case: Case, points: Array, weight: Array | None) -> tuple[Array, Array]:
    """Thresholds and statuses by one fit for each point."""
    alphas = np.broadcast_to(case.alpha, len(case.scores))
    values, status = np.empty(len(points)), np.empty(len(points), np.int8)
    for k, i in enumerate(points):
        others = np.arange(len(case.scores)) != i
        own = case.alpha if np.ndim(case.alpha) == 0 else alphas[others]
        model = fit_quantiles(case.phi[others], case.scores[others], own)
        given = None if weight is None else weight[k]
        found = model.thresholds(case.phi[[i]], given, alpha=alphas[i])
        values[k], status[k] = found.values[0], found.status[0]
    return values, status


def assert_refits(case: Case, count: int, weight: Array | None = None) -> None:
    points = np.arange(count)
    found = fit_quantiles(case.phi, case.scores, case.alpha).leave_one_out(points, weight)
    values, status = refitted(case, points, weight)
    tolerance = 1e-9 * np.abs(case.scores).max()
    np.testing.assert_allclose(found.values, values, rtol=0, atol=tolerance)
    assert np.array_equal(found.status, status)


@pytest.mark.parametrize("scores", ["continuous", "rounded", "mostly_zero"])
@pytest.mark.parametrize(
    "features", ["normal", "student", "bins", "duplicated", "polynomial3", "heavy_polynomial5"]
)
def test_equals_a_fit_without_each_point(features: str, scores: str) -> None:
    n = 40 if COMPILED else 9
    case = random_case(0, features, scores, n=n)
    assert_refits(case, n)
    rng = np.random.default_rng(1)
    weight = rng.uniform(-float(np.max(case.alpha)), 1.0 - float(np.max(case.alpha)), n)
    assert_refits(case, n, weight)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("scores", ["continuous", "mostly_zero", "constant"])
@pytest.mark.parametrize("features", ["normal", "bins", "polynomial3"])
def test_copies_penalties_and_own_alphas(features: str, scores: str, own: bool) -> None:
    """Points up to several times, two rows for each penalty, scores of any size."""
    n = 15 if COMPILED else 6
    rng = np.random.default_rng(3)
    case = random_case(2, features, scores, n=n)
    case = with_copies_and_penalty(case, rng, lambda count: rng.choice([0.1, 0.25, 0.4], count))
    alphas = np.asarray(case.alpha)
    copied = Case(case.phi, 1e6 * case.scores, case.tests, alphas if own else 0.2)
    assert_refits(copied, 2 * n)
    if own:
        assert_refits(copied, 2 * n, rng.uniform(-alphas, 1.0 - alphas)[: 2 * n])


def large_model() -> tuple[QuantileModel, Array, Array]:
    n = 6000 if COMPILED else 200
    rng = np.random.default_rng(4)
    x = np.exp(0.8 * rng.standard_normal(n))
    scores = np.where(rng.random(n) < 0.5, 0.0, rng.gamma(2.0, size=n))
    phi = np.stack([x**k for k in range(4)], axis=1)
    return fit_quantiles(phi, scores, 0.1), phi, scores


def test_every_kind_of_point_in_a_large_problem() -> None:
    """Basic points, points just on either side of the fit, extreme points and far ones."""
    model, phi, scores = large_model()
    found = model.leave_one_out()
    distance = scores - model.fitted(phi)
    near = np.argsort(np.abs(distance))[: 3 * model.rank]
    long = np.argsort(phi[:, 1])[-4:]
    points = np.unique(np.concatenate([model.basic_points, near, long, [0, 1, 2]]))
    assert np.any(distance[points] > 1e-9) and np.any(distance[points] < -1e-9)
    values, status = refitted(Case(phi, scores, phi[:0], 0.1), points, None)
    np.testing.assert_allclose(found.values[points], values, rtol=1e-9, atol=1e-9)
    assert np.array_equal(found.status[points], status)


def test_a_point_is_covered_if_its_score_is_at_most_the_fit() -> None:
    """The law by which an audit may count without any path."""
    model, phi, scores = large_model()
    covered = scores <= model.leave_one_out().values
    clear = np.abs(scores - model.fitted(phi)) > 1e-9
    assert np.array_equal(covered[clear], (scores <= model.fitted(phi))[clear])
    assert np.all(covered[model.basic_points])


def test_some_points_have_the_thresholds_that_they_have_among_all() -> None:
    model, _, _ = large_model()
    points = np.array([7, 3, 3, 90])
    assert np.array_equal(model.leave_one_out(points).values, model.leave_one_out().values[points])
    assert len(model.leave_one_out([]).values) == 0


def test_the_only_point_of_a_direction_leaves_an_unseen_one() -> None:
    model = fit_quantiles(np.eye(3)[[0, 1] * 20 + [2]], np.arange(41.0), alpha=0.1)
    found = model.leave_one_out()
    assert found.status[-1] == Status.UNSEEN_DIRECTION
    assert found.values[-1] == np.inf
    assert set(found.status[:-1].tolist()) == {Status.EXACT}
    twice = fit_quantiles(np.eye(2)[[0] * 20 + [1, 1]], np.append(np.arange(20.0), [3.0, 3.0]), 0.1)
    assert twice.leave_one_out().status[-1] == Status.HIGH_LEVERAGE


@pytest.mark.parametrize("points", [[0, 30], [-1], [0.5], [[0]], 3, [True]])
def test_wrong_points_are_refused(points: object) -> None:
    model = fit_quantiles(np.ones((30, 1)), np.arange(30.0), alpha=0.1)
    with pytest.raises(InputError, match="points must be row numbers of phi_calib, from 0 to 29"):
        model.leave_one_out(points)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="weight must lie in"):
        model.leave_one_out([1], weight=0.95)
