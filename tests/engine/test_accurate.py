"""Accurate classifiers: heavy ties and wide ranges never raise, and thresholds stay exact.

Classes are Gaussian clouds around random centres, and the logits are their log-likelihood ratios
times a sharpness. Far apart centres make the classifier right 95% to 100% of the time: nearly all
APS scores are then exactly 0, and softmax scores in the tail scale run over fifteen orders of
magnitude.
"""

import warnings
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from problems import Array, Case, one_hot, polynomial, reference

from trustsets import APS, RAPS, ConditionalConformal, ModelOutputs, Softmax, TrustScore
from trustsets.engine import fit_quantiles
from trustsets.errors import TrustSetsWarning
from trustsets.status import Status

SCORES = (APS(scale="tail"), APS(), RAPS(scale="tail"), Softmax(scale="tail"))
ALPHAS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
SLOW = {Status.FALLBACK, Status.ROUNDED_UP, Status.UNCERTIFIED}


@dataclass(frozen=True)
class Family:
    """A way to simulate an accurate classifier."""

    n_classes: int
    n_features: int
    spread: float
    sharpness: float
    tail: float = 0.0

    def draw(self, seed: int, count: int, grouped: bool = True) -> ModelOutputs:
        """Outputs of `count` samples with features, labels and perhaps two group columns."""
        rng = np.random.default_rng([seed, self.n_classes, self.n_features])
        centres = self.spread * rng.standard_normal((self.n_classes, self.n_features))
        shares = np.exp(-self.tail * np.arange(self.n_classes) / self.n_classes)
        labels = rng.choice(self.n_classes, count, p=shares / shares.sum())
        features = centres[labels] + rng.standard_normal((count, self.n_features))
        ratios = features @ centres.T - 0.5 * np.square(centres).sum(axis=1)
        groups = {"site": rng.choice(4, count, p=[0.6, 0.25, 0.1, 0.05]), "sex": labels % 2}
        return ModelOutputs(
            logits=self.sharpness * ratios,
            features=features,
            labels=labels,
            groups=groups if grouped else None,
        )


FAMILIES = {
    "hundred classes": Family(100, 256, 0.35, 0.9),
    "two classes": Family(2, 8, 1.0, 1.0),
    "two far classes": Family(2, 4, 3.0, 2.0),
    "ten classes": Family(10, 32, 0.8, 1.0),
    "ten sharp classes": Family(10, 32, 0.7, 3.0),
    "ten classes, never wrong": Family(10, 32, 2.5, 1.0),
    "thirty classes, long tail": Family(30, 64, 0.6, 1.0, tail=4.0),
    "thirty dull classes": Family(30, 64, 0.55, 0.3),
    "five classes, few features": Family(5, 3, 2.5, 1.5),
    "sixty classes": Family(60, 128, 0.45, 1.2),
}


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


def simulated(seed: int, constant: bool = True) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    phi = polynomial(rng.random((204, 2)), 2)[:, 0 if constant else 1 :]
    return phi[:200], rng.gamma(2.0, size=200), phi[200:]


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


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("kind", ["offset outside the class", "outliers", "orders of magnitude"])
def test_no_range_of_scores_is_an_obstacle(kind: str, alpha: float) -> None:
    for power in (7, 12) if "offset" in kind else (3, 15, 100, 300):
        phi, scores, tests = simulated(power, constant="offset" not in kind)
        if "offset" in kind:
            scores += 10.0**power
        elif kind == "outliers":
            scores[:20] = 10.0**power
        else:
            scores = 10.0 ** np.random.default_rng(power).uniform(-power, 1, len(phi))
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
