"""Accurate classifiers: heavy ties and wide ranges never raise, and thresholds stay exact."""

import warnings
from collections import Counter

import numpy as np
import pytest
from accurate_families import FAMILIES
from problems import Array, Case, one_hot, polynomial, reference

from trustsets import APS, RAPS, ConditionalConformal, ModelOutputs, Softmax, TrustScore
from trustsets.engine import fit_quantiles
from trustsets.errors import TrustSetsWarning
from trustsets.status import Status

SCORES = (APS(scale="tail"), APS(), RAPS(scale="tail"), Softmax(scale="tail"))
ALPHAS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
SLOW = {Status.FALLBACK, Status.ROUNDED_UP, Status.UNCERTIFIED}


def parts(name: str, seed: int, size: int) -> tuple[ModelOutputs, ModelOutputs, ModelOutputs]:
    """Training, calibration and test samples; every other seed has no groups."""
    outputs = FAMILIES[name].draw(seed, 3 * size, grouped=seed % 2 == 0)
    train, calibration, test = (outputs.take(np.arange(k, 3 * size, 3)) for k in range(3))
    return train, calibration, test


@pytest.mark.statistical
@pytest.mark.parametrize("name", FAMILIES)
def test_no_data_set_of_an_accurate_classifier_fails(name: str) -> None:
    """Six data sets, four scores, six alphas; with and without groups and trust."""
    counts: Counter[Status] = Counter()
    for seed in range(6):
        train, calibration, test = parts(name, seed, 150)
        trust = TrustScore().fit(train.features, train.labels) if seed % 3 else None
        for score in SCORES:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrustSetsWarning)
                predictor = ConditionalConformal(score=score, trust=trust).calibrate(calibration)
                sets = predictor.predict_set(test, alpha=ALPHAS)
            assert np.all(sets.mask[:, :, 0] <= sets.mask[:, :, -1])
            counts.update(Status(int(code)) for code in sets.status.ravel())
    assert sum(counts[status] for status in SLOW) <= 0.01 * counts.total()


def problem(name: str, seed: int, score: int, size: int) -> tuple[Array, Array]:
    """Polynomials in the ranks of confidence and a feature, with groups; and scores."""
    outputs = FAMILIES[name].draw(seed, size)
    values = np.column_stack([outputs.confidence, outputs.features[:, 0]])
    ranks = values.argsort(axis=0).argsort(axis=0) / size
    phi = polynomial(ranks, 3)
    if seed % 2:
        phi = np.hstack([phi, one_hot(outputs.groups["site"], 4)])
    return phi, SCORES[score].of_labels(outputs)


@pytest.mark.statistical
@pytest.mark.parametrize("name", FAMILIES)
def test_thresholds_equal_the_linear_program(name: str) -> None:
    """About 200 thresholds a family, 2,000 in all.

    The program is solved by HiGHS with rows whitened by a singular value decomposition and scores
    divided by the largest, so that its absolute tolerance of 1e-10 is relative to the scores.
    """
    rng, size = np.random.default_rng(0), 160
    for seed in range(5):
        for score in range(len(SCORES)):
            phi, scores = problem(name, seed, score, size + 10)
            alpha = ALPHAS[rng.integers(len(ALPHAS))]
            assert_exact(phi[:size], scores[:size], phi[size:], alpha)


def assert_exact(phi: Array, scores: Array, tests: Array, alpha: float) -> None:
    largest = np.abs(scores).max() or 1.0
    found = fit_quantiles(phi, scores, alpha).thresholds(tests)
    case = Case(phi, scores / largest, tests, alpha)
    expected = reference(case, np.full(len(tests), 1.0 - alpha))
    assert not SLOW & set(found.status)
    np.testing.assert_allclose(found.values / largest, expected, rtol=0, atol=1e-9)


def simulated(seed: int, offset: float = 0.0, constant: bool = True) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    phi = polynomial(rng.random((204, 2)), 2)[:, 0 if constant else 1 :]
    return phi[:200], rng.gamma(2.0, size=200) + offset, phi[200:]


@pytest.mark.parametrize("name", ["ten sharp classes", "hundred classes"])
def test_powers_of_two_go_through_bit_for_bit(name: str) -> None:
    phi, scores = problem(name, 1, 3, 204)
    # The smallest scores would lose digits to the end of the range of numbers.
    scores = np.where(scores < 2.0**-40, 0.0, scores)
    expected = fit_quantiles(phi[:200], scores[:200], 0.05).thresholds(phi[200:]).values
    assert np.isfinite(expected).any()
    for power in (-970, -500, -165, -1, 1, 100, 500, 1000):
        scaled = np.ldexp(scores[:200], power)
        found = fit_quantiles(phi[:200], scaled, 0.05).thresholds(phi[200:]).values
        assert np.array_equal(found, np.ldexp(expected, power))


@pytest.mark.parametrize("offset", [1e-3, 1.0, -7.0, 1e6, -1e9])
def test_a_constant_shifts_thresholds_where_the_class_holds_it(offset: float) -> None:
    phi, scores, tests = simulated(0)
    plain = fit_quantiles(phi, scores, 0.1).thresholds(tests).values
    moved = fit_quantiles(phi, scores + offset, 0.1).thresholds(tests).values
    np.testing.assert_allclose(moved - offset, plain, rtol=0, atol=1e-9 * max(1.0, abs(offset)))


@pytest.mark.parametrize("offset", [1e7, 1e8, 1e10, 1e12])
def test_a_large_offset_outside_the_class_is_no_obstacle(offset: float) -> None:
    phi, scores, tests = simulated(1, offset, constant=False)
    assert_exact(phi, scores, tests, 0.1)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("size", [1e12, 1e100, 1e300])
def test_huge_outliers_are_no_obstacle(size: float, alpha: float) -> None:
    phi, scores, tests = simulated(2)
    scores[:20] = size
    assert_exact(phi, scores, tests, alpha)


@pytest.mark.parametrize("low", [-3, -9, -15, -300])
@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5])
def test_scores_over_many_orders_of_magnitude(low: int, alpha: float) -> None:
    phi, _, tests = simulated(3)
    scores = 10.0 ** np.random.default_rng(low % 7).uniform(low, 1, len(phi))
    assert_exact(phi, scores, tests, alpha)


def test_close_scores_count_as_the_largest_of_them() -> None:
    """What cannot be told apart is rounded up: a threshold among such scores covers them all."""
    scores = np.concatenate([1e-14 * np.arange(1, 91), np.ones(9)])
    values = fit_quantiles(np.ones((99, 1)), scores, 0.2).thresholds(np.ones((1, 1))).values
    assert values[0] == 90e-14
    apart = fit_quantiles(np.ones((99, 1)), 1e5 * scores, 0.2).thresholds(np.ones((1, 1)))
    assert apart.values[0] == 1e5 * 90e-14  # the scale grows along
    alone = fit_quantiles(np.ones((90, 1)), scores[:90], 0.2).thresholds(np.ones((1, 1)))
    assert alone.values[0] == scores[72]  # exact where nothing larger sets the scale
