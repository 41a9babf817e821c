"""Sets of limited size: never exceeded, the truncated score to the letter, and clear refusals."""

import numpy as np
import pytest
from scipy.special import expit

from trustsets import ConditionalConformal, ModelOutputs, StandardConformal
from trustsets.basis import Groups, Intercept, Polynomial
from trustsets.engine.linear_program import solve_linear_program
from trustsets.errors import InputError
from trustsets.predictors import conditional
from trustsets.predictors.conditional import SizeLimits, miss_probability
from trustsets.scores import APS, RAPS, CustomScore, Softmax
from trustsets.statistics import Confidence
from trustsets.status import Status

LINE = Polynomial(1, (Confidence(),))


def normal(rng, n, k):
    return 2.0 * rng.normal(size=(n, k))


FAMILIES = {
    "normal": normal,
    "rounded": lambda rng, n, k: normal(rng, n, k).round(0),
    "constant": lambda rng, n, k: np.zeros((n, k)),
    "huge": lambda rng, n, k: 1e4 * normal(rng, n, k),
    "tiny": lambda rng, n, k: 1e-9 * normal(rng, n, k),
    "one-sided": lambda rng, n, k: normal(rng, n, k) + 30.0 * np.eye(k)[0],
    "two kinds": lambda rng, n, k: normal(rng, n, k) * rng.choice([0.01, 20.0], (n, 1)),
}


def some(family, seed, n, k, noise=1.0):
    rng = np.random.default_rng(seed)
    logits = FAMILIES[family](rng, n, k)
    labels = (np.minimum(logits, 50.0) + noise * rng.gumbel(size=(n, k))).argmax(axis=1)
    groups = {"site": rng.integers(3, size=n)}
    return ModelOutputs(logits=logits, labels=labels, groups=groups, classes=np.arange(k))


@pytest.mark.parametrize("k", [2, 7])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_no_set_is_too_large(family, k):
    calibration, test = some(family, 0, 160, k), some(family, 1, 40, k)
    for predictor in (
        ConditionalConformal(),
        ConditionalConformal(score=Softmax(), basis=LINE + Groups("site"), allow_empty=True),
        ConditionalConformal(score=APS(own_mass="random"), basis=Intercept(), randomized=True),
        ConditionalConformal(score=RAPS(scale="tail"), basis=LINE, temperature=0.5),
    ):
        predictor.calibrate(calibration, tuning=some(family, 2, 80, k))
        ordinary, fresh = predictor.predict_set(test), predictor.copy()
        for size in (1, 3, k):
            sets = predictor.predict_set(test, max_size=size)
            assert sets.sizes.max() <= size
            assert sets.sizes.min() >= (0 if predictor.allow_empty else 1)
            assert ((sets.alpha >= 0.1) & (sets.alpha <= 1.0)).all()
            lost = sets.status == Status.NO_GUARANTEE
            np.testing.assert_array_equal(lost, sets.alpha == 1.0)
            assert (sets.sizes[lost] == min(size, k)).all()
            other, again = (one.predict_set(test, 0.3, max_size=size) for one in (predictor, fresh))
            np.testing.assert_array_equal(other.thresholds, again.thresholds)
            if size >= k:
                np.testing.assert_array_equal(sets.mask, ordinary.mask)
                np.testing.assert_array_equal(sets.alpha, np.full(40, 0.1))


def test_scores_below_zero_lose_guarantees_as_others_do():
    functions, lost = (lambda p: 1.0 - p, lambda p: -p), []
    for function in functions:
        score = CustomScore(function=function)
        predictor = ConditionalConformal(score=score, basis=Groups("site"), class_bias=None)
        predictor.calibrate(some("normal", 0, 300, 10), tuning=some("normal", 1, 300, 10))
        status = predictor.predict_set(some("normal", 2, 500, 10), max_size=2).status
        lost.append(status == Status.NO_GUARANTEE)
    assert lost[0].any()
    np.testing.assert_array_equal(*lost)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("score", [Softmax(), APS()], ids=["softmax", "ties"])
def test_thresholds_are_those_of_the_truncated_score(score, size):
    calibration, tuning = some("normal", 0, 90, 6), some("normal", 1, 150, 6)
    test = some("normal", 2, 25, 6)
    predictor = ConditionalConformal(score=score, basis=LINE, class_bias=None, allow_empty=True)
    sets = predictor.calibrate(calibration, tuning=tuning).predict_set(test, 0.15, max_size=size)
    design = predictor.conditions_on.design
    phi, rows = design(calibration), design(test)
    alphas, own = (
        np.maximum(0.15, miss_probability(design(tuning), ranks(tuning) >= size, new))
        for new in (phi, rows)
    )
    far = 2.0 * score.of_labels(tuning).max()
    scores = score.of_labels(calibration)
    cut = np.where(ranks(calibration) < size, scores, far + 1e-5 * scores / (1.0 + scores))
    most = np.argsort(np.argsort(-test.logits, axis=1), axis=1) < size
    matrix = score.matrix(test)
    for i in range(len(test)):
        value = solve_linear_program(phi, cut, alphas, rows[i], 1.0 - own[i])
        assert sets.thresholds[i] == pytest.approx(value, abs=1e-8)
        raised, lost = own[i] > 0.15, value >= far * (1.0 - 1e-8)
        within = most[i] if raised or lost else most[i] & (matrix[i] <= value + 1e-9)
        np.testing.assert_array_equal(sets.mask[i], within)
        assert sets.alpha[i] == (1.0 if lost else pytest.approx(own[i], rel=1e-9))


def ranks(outputs):
    order = np.argsort(np.argsort(-outputs.logits, axis=1), axis=1)
    return order[np.arange(len(outputs)), outputs.codes]


def test_a_guarantee_that_cannot_be_reached_is_withdrawn():
    """If tuning samples are far easier than calibration samples, no alpha they suggest holds."""
    easy, hard = some("normal", 0, 300, 5, noise=0.05), some("normal", 1, 300, 5, noise=9.0)
    predictor = ConditionalConformal(basis=Intercept()).calibrate(hard, tuning=easy)
    sets = predictor.predict_set(some("normal", 2, 40, 5), max_size=2)
    assert (sets.alpha == 1.0).all() and (sets.sizes == 2).all()
    assert (sets.status == Status.NO_GUARANTEE).all()
    assert "nothing is guaranteed" in sets.describe()[1]


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_an_intercept_gives_all_samples_one_alpha():
    tuning = some("normal", 1, 400, 5)
    predictor = ConditionalConformal(basis=Intercept())
    predictor.calibrate(some("normal", 0, 400, 5), tuning=tuning)
    sets = predictor.predict_set(some("normal", 2, 40, 5), max_size=1)
    assert np.ptp(sets.alpha) == 0.0
    missed = np.mean(ranks(tuning) >= 1)
    error = np.sqrt(missed * (1.0 - missed) / 400)
    assert sets.alpha[0] == pytest.approx(missed + error, abs=0.01)


def test_what_cannot_be_is_said():
    calibration, test = some("normal", 0, 300, 5), some("normal", 1, 20, 5)
    with pytest.raises(InputError, match=r"ConditionalConformal\(basis=Intercept\(\)\)"):
        StandardConformal().calibrate(calibration).predict_set(test, max_size=2)
    with pytest.raises(InputError, match="calibrate again with tuning="):
        ConditionalConformal(basis=LINE).calibrate(calibration).predict_set(test, max_size=2)
    with pytest.raises(InputError, match="functions of the sample alone"):
        ConditionalConformal(per_class=True).calibrate(calibration).predict_set(test, max_size=2)
    predictor = ConditionalConformal().calibrate(calibration)
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(InputError, match="max_size must be a whole number"):
            predictor.predict_set(test, max_size=wrong)
    for wrong in ([0.1, 0.2], np.full(20, 0.1)):
        with pytest.raises(InputError, match="max_size takes one alpha"):
            predictor.predict_set(test, wrong, max_size=2)
    assert predictor.predict_set(test, max_size=2).sizes.max() <= 2


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.5, 1.0])
def test_shares_are_estimated_from_above(rate):
    """The estimate is sane where there are no events, or only events, and follows the truth."""
    rng = np.random.default_rng(0)
    phi = np.column_stack([np.ones(300), rng.normal(size=(300, 3))])
    share = miss_probability(phi, rng.random(300) < rate, phi)
    assert np.isfinite(share).all() and abs(share.mean() - rate) < 0.06


def test_shares_follow_a_function_of_the_rows(monkeypatch):
    monkeypatch.setattr(conditional, "ERRORS", 0.0)
    rng = np.random.default_rng(0)
    phi = np.column_stack([np.ones(4000), rng.normal(size=4000), rng.uniform(size=4000) ** 2])
    truth = expit(-1.0 + 1.5 * phi[:, 1])
    happened = rng.random(4000) < truth
    share = miss_probability(phi, happened, phi)
    assert np.abs(share - truth).max() < 0.06
    # Extreme rows are no error, and a row does not depend on the others.
    far = miss_probability(phi, truth > 0.5, 1e308 * phi[:3])
    assert ((far >= 0.0) & (far <= 1.0)).all()
    np.testing.assert_array_equal(share[7:8], miss_probability(phi, happened, phi[7:8]))


def test_a_threshold_at_the_score_of_left_out_classes_guarantees_nothing():
    """Also where rounding has moved it below that score."""
    limits = SizeLimits(np.zeros(2, int), np.zeros(2, int), np.zeros((2, 1)), beyond=8.0)
    close = 8.0 * np.array([1.0 + 1e-12, 1.0, 1.0 - 1e-12, 1.0 - 1e-6, 0.5])
    assert limits.reaches(close).tolist() == [True, True, True, False, False]
