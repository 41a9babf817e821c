"""Thresholds of groups are limited by those that all samples get at alpha and at alpha / 4."""

import numpy as np
import pytest

from trustsets import (
    ConditionalConformal,
    Confidence,
    Groups,
    Intercept,
    ModelOutputs,
    Polynomial,
    Softmax,
    Status,
)
from trustsets.errors import InputError
from trustsets.predictors.quantiles import limited
from trustsets.status import Thresholds

ALPHA = 0.1
SMOOTH = Polynomial(1, of=(Confidence(),))
# A penalty so large that the limiting fits know nothing of groups.
PROHIBITIVE = 1e6


def skewed(outputs: ModelOutputs, seed: int = 0) -> ModelOutputs:
    """The same outputs in groups of very different sizes, by two columns."""
    rng = np.random.default_rng(seed)
    site = rng.choice(
        ["back", "face", "ear", "toe"], p=[0.7, 0.27, 0.025, 0.005], size=len(outputs)
    )
    sex = rng.choice(["f", "m", "unknown"], p=[0.5, 0.49, 0.01], size=len(outputs))
    return ModelOutputs(
        logits=outputs.logits, labels=outputs.labels, groups={"site": site, "sex": sex}
    )


def thresholds(basis, calibration, test, alpha=ALPHA):
    return ConditionalConformal(basis=basis).calibrate(calibration).predict_set(test, alpha)


@pytest.fixture
def parts(make_outputs):
    return skewed(make_outputs(600)), skewed(make_outputs(300, seed=5), seed=6)


def test_thresholds_are_those_of_the_groups_limited_by_two_others(parts):
    calibration, test = parts
    own = thresholds(SMOOTH + Groups(), calibration, test)
    low, high = (thresholds(SMOOTH, calibration, test, alpha) for alpha in (ALPHA, ALPHA / 4))
    limited = thresholds(SMOOTH + Groups(penalty=PROHIBITIVE), calibration, test)
    expected = np.clip(own.thresholds, low.thresholds, high.thresholds)
    np.testing.assert_allclose(limited.thresholds, expected, atol=1e-6)
    # All three cases occur, or this test would say little.
    assert (own.thresholds < low.thresholds).any()
    assert (own.thresholds > high.thresholds).any()
    assert (own.thresholds == limited.thresholds).any()


def test_the_lower_fit_decides_where_the_two_cross(parts):
    """Fits at two levels may cross; the guarantee is that of the lower one."""
    calibration, _ = parts
    predictor = ConditionalConformal(basis=SMOOTH + Groups(penalty=10.0)).calibrate(calibration)
    assert len(predictor._problem.limits) == 3
    plain, low, high = [0.0, 3.0, 9.0, 4.0], [2.0] * 4, [1.0, 1.0, 1.0, 5.0]
    exact = np.zeros(4, np.int8)
    result = limited([Thresholds(np.array(values), exact) for values in (plain, low, high)])
    np.testing.assert_array_equal(result.values, [2.0, 2.0, 2.0, 4.0])
    assert [Status(code).name for code in result.status] == ["EXACT", "LIMITED", "LIMITED", "EXACT"]


def test_few_samples_or_none_give_a_finite_threshold_that_says_so(parts):
    calibration, test = parts
    stranger = ["new"] * len(test)
    for columns in ((), ("site",), ("sex",), ("site", "sex")):
        new = test.replace(groups=test.groups | dict.fromkeys(columns, stranger))
        own = thresholds(SMOOTH + Groups(), calibration, new)
        limited = thresholds(SMOOTH + Groups(penalty=10.0), calibration, new)
        without = np.isinf(own.thresholds)
        assert without.any()
        assert np.isfinite(limited.thresholds).all()
        said = {Status.LIMITED, Status.ABOVE_ALL_SCORES}
        assert set(limited.status[without].tolist()) <= said
        full = limited.mask.all(axis=1)
        np.testing.assert_array_equal(limited.status == Status.ABOVE_ALL_SCORES, full)


def test_randomised_sets_are_not_limited(parts):
    """They promise coverage of exactly 1 - alpha, which wider sets would exceed."""
    calibration, test = parts
    found = []
    for penalty in (0.0, 10.0):
        basis = SMOOTH + Groups(penalty=penalty)
        predictor = ConditionalConformal(basis=basis, randomized=True).calibrate(calibration)
        found.append(predictor.predict_set(test).thresholds)
        assert "/ m" not in predictor.summary()
    np.testing.assert_array_equal(*found)


def hard_group(n: int, rng: np.random.Generator) -> ModelOutputs:
    """Two classes; a fifth of the samples, one group, have labels that the logits do not tell."""
    hard = rng.random(n) < 0.2
    score = rng.normal(size=n) * 2.0
    chance = np.where(hard, 0.5, 1.0 / (1.0 + np.exp(-score)))
    labels = (rng.random(n) < chance).astype(int)
    return ModelOutputs(
        logits=np.column_stack([np.zeros(n), score]),
        labels=labels,
        groups={"kind": np.where(hard, "hard", "easy")},
    )


@pytest.mark.statistical
def test_coverage_on_average_is_kept_and_that_of_groups_up_to_the_penalty():
    """Over 150 calibrations of 150 samples, 30 of them hard.

    Without its indicator the hard group is covered 0.72, 20 standard errors below its bound:
    noticed for certain.
    """
    penalty, n = 2.0, 150
    rng = np.random.default_rng(0)
    hits, hard_hits = [], []
    basis = Intercept() + Groups(penalty=penalty)
    for _ in range(150):
        calibration, test = hard_group(n, rng), hard_group(400, rng)
        predictor = ConditionalConformal(score=Softmax(), basis=basis, allow_empty=True).calibrate(
            calibration
        )
        covered = predictor.predict_set(test).covers(test.labels)
        hits.append(covered.mean())
        hard_hits.append(covered[test.groups["kind"] == "hard"].mean())
    error = 3.0 * np.std(hard_hits) / np.sqrt(len(hard_hits))
    assert np.mean(hits) >= 1 - ALPHA - 3.0 * np.std(hits) / np.sqrt(len(hits))
    assert np.mean(hard_hits) >= 1 - ALPHA - penalty / (0.2 * (n + 1)) - error


@pytest.mark.parametrize("penalty", [-1.0, 0.5, np.inf, np.nan])
def test_a_penalty_too_small_to_make_thresholds_finite_is_refused(penalty):
    with pytest.raises(InputError, match="penalty must be 0, or finite and 1 or more"):
        Groups("site", penalty=penalty)
