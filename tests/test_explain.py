"""Explanations of single sets, against predictors whose calibration scores were moved."""

import json
from dataclasses import replace

import numpy as np
import pytest

from trustsets import (
    APS,
    Bins,
    Classes,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Groups,
    Intercept,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Softmax,
    StandardConformal,
    Status,
    TrustScore,
    load,
)
from trustsets.engine import ScorePath
from trustsets.errors import InputError
from trustsets.explain import unchanged_range

LINE = Intercept() + Polynomial(1, (Confidence(),))
RANKS = Polynomial(3, (Confidence("rank"),), penalty=2.0)
LABEL_FREE = [
    lambda: StandardConformal(),
    lambda: StandardConformal(score=APS(own_mass="random"), allow_empty=True),
    lambda: StandardConformal(allow_empty=True),
    lambda: MondrianConformal(by=Groups("site")),
    lambda: MondrianConformal(by=Bins(Confidence(), counts=3, spacing="quantile")),
    lambda: ConditionalConformal(basis=LINE),
    lambda: ConditionalConformal(score=Softmax(), basis=RANKS, allow_empty=True),
    lambda: ConditionalConformal(basis=RANKS + Groups("site", penalty=2.0)),
    lambda: ConditionalConformal(basis=LINE + Groups("site", penalty=20.0)),
    lambda: ConditionalConformal(basis=Groups("site")),
    lambda: ConditionalConformal(basis=LINE, randomized=True, allow_empty=True),
]
BY_LABEL = [
    lambda: MondrianConformal(by="class"),
    lambda: ConditionalConformal(basis=LINE + Classes(penalty=0.2)),
    lambda: ConditionalConformal(basis=LINE, per_class=True),
]


def some(seed: int, n: int, digits: int = 9, n_classes: int = 30) -> ModelOutputs:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, n_classes)).round(digits)
    labels = (logits + rng.gumbel(size=(n, n_classes))).argmax(axis=1)
    site = rng.choice(3, p=[0.6, 0.3, 0.1], size=n)
    return ModelOutputs(logits=logits, labels=labels, groups={"site": site}, rows=np.arange(n))


def with_score(predictor, sample, score):
    """The predictor calibrated with another score of one calibration sample."""
    scores = predictor.state_.scores.copy()
    scores[sample.position] += score - sample.score
    return predictor._with_state(replace(predictor.state_, scores=scores))


def tried_scores(own, rng):
    """Scores within the range of a sample, and scores just beyond it."""
    wide = 5.0 * (1.0 + abs(own.score))
    ends = max(own.low, own.score - wide), min(own.high, own.score + wide)
    yield from ((score, True) for score in rng.uniform(*ends, 2))
    for end, sign in ((own.low, -1.0), (own.high, 1.0)):
        if np.isfinite(end):
            yield end + sign * 1e-7 * (1.0 + abs(end)), False


@pytest.mark.parametrize("make", LABEL_FREE)
@pytest.mark.parametrize(("seed", "digits"), [(0, 9), (1, 1)])
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # groups of few samples
def test_sets_change_where_the_ranges_end(make, seed, digits):
    """Deterministic: fails if a range is wider or narrower than it is said to be."""
    rng = np.random.default_rng(seed)
    predictor = make().calibrate(some(seed, 40, digits), tuning=some(9, 120))
    test, n_finite = some(seed + 5, 6), 0
    for place in range(len(test)):
        found = predictor.explain(test[place], alpha=0.25)
        sets = predictor.predict_set(test[place], alpha=0.25)
        assert list(found.classes) == sets[0].tolist()
        assert found.threshold == sets.thresholds[0]
        for own in found.samples[:2]:
            assert own.low <= own.score <= own.high
            assert own.row == predictor.calibration_rows_[own.position]
            for score, same in tried_scores(own, rng):
                again = with_score(predictor, own, score).predict_set(test[place], alpha=0.25)
                assert np.array_equal(again.mask, sets.mask) == same
                n_finite += not same
    assert n_finite


@pytest.mark.parametrize("make", [*LABEL_FREE, ConditionalConformal])
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_thresholds_are_weighted_sums_of_the_named_scores(make):
    predictor = make().calibrate(some(0, 300), tuning=some(9, 200))
    for place in range(3):
        sample = some(7, 3)[place]
        found, proven = predictor.explain(sample), predictor.certificate(sample)
        total = sum(own.weight * own.score for own in found.samples)
        assert total == pytest.approx(proven.threshold, rel=1e-9)
        # A penalty that holds has two points on the fit, of opposite rows.
        assert 2 * found.n_penalties == np.sum(proven.points >= predictor.n_calibration_)
        scores = predictor._untied(predictor.state_) if predictor.randomized else None
        scores = predictor.state_.scores if scores is None else scores
        assert all(scores[own.position] == own.score for own in found.samples)
        weights = [abs(own.weight) for own in found.samples]
        assert weights == sorted(weights, reverse=True)


@pytest.mark.parametrize("make", BY_LABEL)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_a_class_with_a_threshold_of_its_own(make):
    rng = np.random.default_rng(3)
    predictor = make().calibrate(some(0, 25, n_classes=3), tuning=some(9, 100, n_classes=3))
    predictor.allow_empty = True
    test, n_changes = some(4, 6, n_classes=3), 0
    with pytest.raises(InputError, match="label must name a class"):
        predictor.explain(test[0])
    for place in range(18):
        sample, code = test[place // 3], place % 3
        sets = predictor.predict_set(sample, alpha=0.25)
        found = predictor.explain(sample, alpha=0.25, label=code)
        assert (code in found.classes) == sets.mask[0, code]
        assert f"Class {code} is {'' if sets.mask[0, code] else 'not '}in" in found.summary()
        for own in found.samples[:2]:
            for score, same in tried_scores(own, rng):
                again = with_score(predictor, own, score).predict_set(sample, alpha=0.25)
                assert (again.mask[0, code] == sets.mask[0, code]) == same
                n_changes += not same
        assert not predictor.certificate(sample, alpha=0.25, label=code).failing_conditions()
    assert n_changes


def test_the_membership_of_a_class_where_all_share_a_threshold():
    predictor = StandardConformal().calibrate(some(0, 40))
    sample = some(3, 1)
    whole = predictor.explain(sample, 0.25)
    for label in range(30):
        found = predictor.explain(sample, 0.25, label=label)
        assert (label in found.classes) == ("is in the set" in found.summary())
        # One class changes no earlier than the set.
        assert found.samples[0].low <= whole.samples[0].low
        assert found.samples[0].high >= whole.samples[0].high


def test_limits_decide_and_are_explained():
    calibration = some(0, 400)
    rare = np.where(np.arange(400) < 6, "rare", "common")
    calibration = calibration.replace(groups={"site": rare}, features=None)
    basis = RANKS + Groups("site", penalty=2.0)
    predictor = ConditionalConformal(basis=basis).calibrate(calibration, tuning=some(9, 200))
    fits = set()
    for sample in calibration[:12]:
        found = predictor.explain(sample, alpha=0.1)
        assert found.threshold == predictor.predict_set(sample, alpha=0.1).thresholds[0]
        fits.add(found.fit)
        if found.fit == "upper":
            assert Status.LIMITED.sentence in found.summary()
            assert predictor.certificate(sample).alpha == pytest.approx(0.025)
        assert not predictor.certificate(sample).failing_conditions()
    assert "upper" in fits and "plain" in fits


def test_infinite_thresholds_say_that_no_score_matters():
    predictor = StandardConformal().calibrate(some(0, 5))
    found = predictor.explain(some(1, 1), alpha=0.1)
    assert found.samples == () and len(found.classes) == 30
    assert found.summary().startswith("This set is full because there are too few calibration")
    assert "no calibration score could change that" in found.summary()
    assert found.to_dict()["threshold"] is None
    assert not predictor.certificate(some(1, 1)).failing_conditions()


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_a_group_that_calibration_lacks():
    predictor = MondrianConformal(by=Groups("site")).calibrate(some(0, 90))
    strange = ModelOutputs(logits=np.eye(30)[:1], groups={"site": [7]})
    found = predictor.explain(strange)
    assert found.status is Status.UNSEEN_GROUP
    assert "because no calibration sample shares the group of this sample." in found.summary()
    assert not predictor.certificate(strange).failing_conditions()


def test_words_compare_with_the_calibration_samples():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(900, 6))
    labels = features.argmax(axis=1)
    trust = TrustScore().fit(features[:300], labels[:300])
    outputs = ModelOutputs(
        logits=8.0 * features + rng.normal(size=(900, 6)), features=features, labels=labels
    )
    predictor = ConditionalConformal(trust=trust).calibrate(outputs[300:800])
    test = outputs[800:]
    unsure = predictor.explain(test[int(test.confidence.argmin())])
    sure = predictor.explain(test[int(test.confidence.argmax())])
    assert unsure.ranks.keys() == {"Conf", "Trust"} and unsure.ranks["Conf"] < 0.05
    assert "the classifier is unsure" in unsure.summary() and len(unsure.classes) > 1
    assert sure.summary().startswith("This set has one class because the classifier is sure")
    again = json.loads(json.dumps(unsure.to_dict(), allow_nan=False))
    assert again["samples"][0]["weight"] == unsure.samples[0].weight
    assert again["summary"] == unsure.summary() and again["status"] == "exact"
    plain = StandardConformal(score=Softmax()).calibrate(outputs[300:800])
    for own in (plain.explain(sample, alpha) for sample in test[:9] for alpha in (0.1, 0.5)):
        assert own.standard_size == len(own.classes)


def test_a_predictor_from_a_file_names_the_same_rows(tmp_path):
    predictor = ConditionalConformal(basis=LINE).calibrate(some(0, 200), tuning=some(9, 100))
    predictor.save(tmp_path / "model.trustsets")
    loaded, sample = load(tmp_path / "model.trustsets"), some(3, 1)
    again, known = loaded.explain(sample), predictor.explain(sample)
    assert again.samples == known.samples and again.ranks == {} and known.ranks
    scores = loaded.state_.scores
    assert [scores[own.position] for own in again.samples] == [own.score for own in again.samples]
    assert str(again) == again.summary() and f"row {again.samples[0].row}: score" in str(again)


def test_what_cannot_be_explained_is_refused():
    calibration, sample = some(0, 200), some(1, 1)
    standard = StandardConformal().calibrate(calibration)
    with pytest.raises(InputError, match="sample must be one sample, such as test"):
        standard.explain(calibration)
    with pytest.raises(InputError, match="label must be one of the classes; got 'x'"):
        standard.explain(sample, label="x")
    with pytest.raises(InputError, match="alpha must lie strictly between"):
        standard.certificate(sample, alpha=1.5)
    for other in (ClusteredConformal(), MondrianConformal.paper(by=Groups("site"))):
        other.temperature = None
        with pytest.raises(InputError, match="has no explanation of its thresholds"):
            other.calibrate(calibration, tuning=calibration).explain(sample)


def test_trust_that_calibration_lacked_is_left_out():
    found = StandardConformal().calibrate(some(0, 200)).explain(some(1, 1).replace(trust=[2.0]))
    assert list(found.ranks) == ["Conf"]
    calibration = some(0, 200).replace(trust=np.arange(200.0))
    known, by_conf = StandardConformal().calibrate(calibration), np.argsort(calibration.confidence)
    # Shares of smaller values: a calibration sample is not below itself.
    sample = calibration[int(by_conf[50])].replace(trust=[50.0])
    assert known.explain(sample).ranks == {"Conf": 0.25, "Trust": 0.25}


def test_a_set_that_would_be_empty_keeps_its_class():
    logits = np.tile([4.0, 0.0, 0.0], (40, 1))
    outputs = ModelOutputs(logits=logits, labels=[0] * 40)
    for allow_empty in (False, True):
        predictor = StandardConformal(score=Softmax(), allow_empty=allow_empty).calibrate(outputs)
        unsure = ModelOutputs(logits=[[0.1, 0.0, 0.0]])
        found = predictor.explain(unsure)
        assert len(found.classes) == (not allow_empty)
        assert found.samples[0].low == -np.inf and found.samples[0].high == np.inf
    assert found.summary().startswith("This set is empty because no class has a score")


@pytest.mark.parametrize(
    "kind", [StandardConformal, lambda **kw: MondrianConformal(by="class", **kw)]
)
def test_a_class_that_is_kept_is_said_to_be(kind):
    """Its score is above the threshold, and no calibration score changes that it is in the set."""
    rng = np.random.default_rng(0)
    logits = 2.0 * rng.normal(size=(400, 3))
    labels = (logits + 0.1 * rng.gumbel(size=(400, 3))).argmax(axis=1)
    predictor = kind(score=Softmax())
    predictor.calibrate(ModelOutputs(logits=logits, labels=labels))
    sample = ModelOutputs(logits=[[0.1, 0.0, -0.1]])
    explanation = predictor.explain(sample, 0.1, label=0)
    assert explanation.kept and "the most likely class is kept" in explanation.summary()
    assert all(not np.isfinite([item.low, item.high]).all() for item in explanation.samples)
    assert not predictor.explain(sample, 0.1, label=1).kept


@pytest.mark.parametrize("n", [9, 99])
def test_the_threshold_is_that_of_the_set_however_alpha_is_rounded(n):
    logits = np.random.default_rng(0).normal(size=(n + 1, 4))
    outputs = ModelOutputs(logits=logits, labels=np.arange(n + 1) % 4)
    predictor = StandardConformal(score=Softmax()).calibrate(outputs.take(slice(n)))
    threshold = predictor.predict_set(outputs[n], 1.0 - 0.9).thresholds[0]
    assert predictor.explain(outputs[n], 1.0 - 0.9).samples[0].score == threshold
    assert predictor.certificate(outputs[n], 1.0 - 0.9).threshold == threshold


def test_ties_at_the_score_of_a_class():
    # Most scores are 0, and so is that of the most likely class of every new sample.
    rng = np.random.default_rng(0)
    logits = 4.0 * rng.normal(size=(120, 4))
    labels = np.where(rng.random(120) < 0.15, rng.integers(4, size=120), logits.argmax(axis=1))
    outputs = ModelOutputs(logits=logits, labels=labels)
    for basis in (Intercept(), LINE):
        predictor = ConditionalConformal(score=APS(), basis=basis, allow_empty=True)
        predictor.calibrate(outputs[:100])
        for place in range(100, 110):
            found = predictor.explain(outputs[place], alpha=0.25)
            sets = predictor.predict_set(outputs[place], alpha=0.25)
            for own in found.samples:
                for score, same in tried_scores(own, rng):
                    again = with_score(predictor, own, score).predict_set(outputs[place], 0.25)
                    assert np.array_equal(again.mask, sets.mask) == same


def test_a_range_ends_where_the_path_is_not_known():
    path = ScorePath(np.array([0.0, 1.0]), np.array([0.0, 1.0]), (0.0, np.nan))
    assert unchanged_range([path], 0.5, (-1.0, 2.0)) == (-np.inf, 1.0)
    assert unchanged_range([path], 0.5, (0.25, 0.75)) == (0.25, 0.75)
    short = ScorePath(path.scores, path.values - 1e-14, (0.0, 0.0))  # it stops at 1, but for digits
    assert unchanged_range([short], 0.5, (-1.0, 1.0)) == (-np.inf, 1.0)
