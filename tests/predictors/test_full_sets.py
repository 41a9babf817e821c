"""Strangers, limits of the thresholds of groups, and why a set holds every class.

Thresholds of groups are limited by those that all samples get at alpha and at alpha / 4.
"""

import warnings

import numpy as np
import pytest
from kinds import LINE, PREDICTORS, some

from trustsets import ClusteredConformal, ConditionalConformal, ModelOutputs, MondrianConformal
from trustsets.basis import Classes, Groups, Intercept, Polynomial
from trustsets.errors import InputError
from trustsets.predictors.quantiles import limited
from trustsets.scores import Softmax
from trustsets.statistics import Confidence
from trustsets.status import Status, Thresholds

MAKERS = PREDICTORS | {
    "classes and limited groups": lambda: ConditionalConformal(
        basis=LINE + Classes() + Groups("site", penalty=2.0)
    )
}


def with_sites(make_outputs, n, sites, **words):
    return make_outputs(n, groups={"site": np.resize(sites, n)}, **words)


@pytest.mark.parametrize(
    "predictor",
    [
        MondrianConformal(by=Groups()),
        ConditionalConformal(basis=Groups()),
        ConditionalConformal(basis=Intercept() + Groups()),
    ],
    ids=repr,
)
@pytest.mark.parametrize("stranger", ["A", "b2", "z"])
def test_an_unseen_group_is_infinite_although_all_others_are_finite(
    predictor, stranger, make_outputs
):
    """Wherever its name would stand among those seen."""
    predictor.calibrate(with_sites(make_outputs, 300, ["a", "b", "c"]))
    new = with_sites(make_outputs, 8, ["a", "b", "c", stranger], seed=1)
    sets = predictor.predict_set(new, alpha=[0.2, 0.4])
    strange = new.groups["site"] == stranger
    np.testing.assert_array_equal(np.isinf(sets.thresholds), np.repeat(strange[:, None], 2, 1))
    assert sets.mask[strange].all()
    said = {Status.UNSEEN_GROUP, Status.UNSEEN_DIRECTION}
    assert set(sets.status[strange].ravel().tolist()) <= said
    assert not said & set(sets.status[~strange].ravel().tolist())


def two_kinds(n, seed):
    """Class 0 is always surely right; half of class 1 is mistaken for class 0."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    logits = np.column_stack([np.full(n, 6.0), np.zeros(n)])
    hard = labels == 1
    logits[hard, 1] = rng.uniform(0.0, 12.0, size=hard.sum())
    return ModelOutputs(logits=logits, labels=labels)


@pytest.mark.parametrize(
    "predictor",
    [
        MondrianConformal(by="class", score=Softmax()),
        ClusteredConformal(score=Softmax(), n_clusters=2),
    ],
    ids=repr,
)
def test_sets_nest_where_classes_have_unequal_thresholds(predictor):
    """The class kept in an empty set may not be the one that a smaller alpha has."""
    predictor.calibrate(two_kinds(400, 0), tuning=two_kinds(400, 1))
    # Nearly even, class 0 ahead: too unsure for class 0, well within reach for class 1.
    even = ModelOutputs(logits=[[0.2, 0.0], [0.1, 0.0], [9.0, 0.0]])
    for alphas in ([0.1, 0.7], [0.1, 0.2], [0.7, 0.1], [0.7, 0.4, 0.1, 0.9]):
        sets = predictor.predict_set(even, alpha=alphas)
        order = np.argsort(alphas)
        smaller, larger = (sets.mask[:, :, part] for part in (order[:-1], order[1:]))
        assert (smaller >= larger).all()
        assert (sets.sizes > 0).all()
        p_values = predictor.predict_p(even, sorted(alphas))
        np.testing.assert_array_equal(p_values[..., None] > np.array(alphas), sets.mask)
    bare = predictor.set_params(allow_empty=True).predict_set(even, alpha=[0.1, 0.7])
    predictor.set_params(allow_empty=False)
    # The case that this is about occurs: only class 1 at 0.1, nothing at 0.7.
    assert bare.mask[0].tolist() == [[False, False], [True, False]]


@pytest.mark.parametrize("n", [40, 400])
@pytest.mark.parametrize("name", MAKERS)
def test_every_full_set_has_a_reason(name, n):
    """A full set is infinite or above all scores, and only a full set is said to be."""
    new = some(1, 300)
    new = new.replace(groups={"site": np.resize(["x", "y", "new"], 300)})
    with warnings.catch_warnings():
        # Too few samples for a cell, or for a temperature, is the point of one of the cases.
        warnings.simplefilter("ignore")
        predictor = MAKERS[name]().calibrate(some(0, n))
        sets = predictor.predict_set(new, alpha=[0.01, 0.05, 0.1, 0.5])
    full = sets.mask.all(axis=1)
    assert full.any() and not full.all()
    infinite = np.isin(sets.status, [status for status in Status if status.is_infinite])
    above = sets.status == Status.ABOVE_ALL_SCORES
    assert (infinite | above)[full].all() and full[above].all()
    without = np.isinf(sets.thresholds)  # randomised thresholds may also be infinitely small
    if sets.thresholds.ndim == 3:
        without = without.any(axis=1)
    else:
        assert full[np.isposinf(sets.thresholds)].all()
    np.testing.assert_array_equal(infinite, without)


ALPHA = 0.1
SMOOTH = Polynomial(1, of=(Confidence(),))
# A penalty so large that the limiting fits know nothing of groups.
PROHIBITIVE = 1e6


def skewed(outputs: ModelOutputs, seed: int = 0) -> ModelOutputs:
    """The same outputs in groups of very different sizes, by two columns."""
    rng = np.random.default_rng(seed)
    sites = ["back", "face", "ear", "toe"]
    site = rng.choice(sites, p=[0.7, 0.27, 0.025, 0.005], size=len(outputs))
    sex = rng.choice(["f", "m", "unknown"], p=[0.5, 0.49, 0.01], size=len(outputs))
    groups = {"site": site, "sex": sex}
    return ModelOutputs(logits=outputs.logits, labels=outputs.labels, groups=groups)


def sets_of(basis, calibration, test, alpha=ALPHA):
    return ConditionalConformal(basis=basis).calibrate(calibration).predict_set(test, alpha)


@pytest.fixture
def parts(make_outputs):
    return skewed(make_outputs(600)), skewed(make_outputs(300, seed=5), seed=6)


def test_thresholds_are_those_of_the_groups_limited_by_two_others(parts):
    calibration, test = parts
    own = sets_of(SMOOTH + Groups(), calibration, test)
    low, high = (sets_of(SMOOTH, calibration, test, alpha) for alpha in (ALPHA, ALPHA / 4))
    limited = sets_of(SMOOTH + Groups(penalty=PROHIBITIVE), calibration, test)
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
    plain, low, high = [0.0, 3.0, 9.0, 4.0, 5.0], [2.0] * 5, [1.0, 1.0, 1.0, 5.0, 5.0]
    exact = np.zeros(5, np.int8)
    result = limited([Thresholds(np.array(values), exact) for values in (plain, low, high)])
    np.testing.assert_array_equal(result.values, [2.0, 2.0, 2.0, 4.0, 5.0])
    assert (result.status == Status.LIMITED).tolist() == [False, True, True, False, False]


def test_few_samples_or_none_give_a_finite_threshold_that_says_so(parts):
    calibration, test = parts
    stranger = ["new"] * len(test)
    for columns in ((), ("site",), ("sex",), ("site", "sex")):
        new = test.replace(groups=test.groups | dict.fromkeys(columns, stranger))
        own = sets_of(SMOOTH + Groups(), calibration, new)
        limited = sets_of(SMOOTH + Groups(penalty=10.0), calibration, new)
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
    kind = np.where(hard, "hard", "easy")
    logits = np.column_stack([np.zeros(n), score])
    return ModelOutputs(logits=logits, labels=labels, groups={"kind": kind})


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
        predictor = ConditionalConformal(score=Softmax(), basis=basis, allow_empty=True)
        predictor.calibrate(calibration)
        covered = predictor.predict_set(test).covers(test.labels)
        hits.append(covered.mean())
        hard_hits.append(covered[test.groups["kind"] == "hard"].mean())
    error = 3.0 * np.std(hard_hits) / np.sqrt(len(hard_hits))
    assert np.mean(hits) >= 1 - ALPHA - 3.0 * np.std(hits) / np.sqrt(len(hits))
    assert np.mean(hard_hits) >= 1 - ALPHA - penalty / (0.2 * (n + 1)) - error


def test_a_penalty_too_small_to_make_thresholds_finite_is_refused():
    with pytest.raises(InputError, match="penalty must be 0, or finite and 1 or more"):
        Groups("site", penalty=0.5)
