from collections import Counter

import numpy as np
import pytest
from sklearn.base import clone

from trustsets import (
    APS,
    RAPS,
    SAPS,
    Bins,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Softmax,
    StandardConformal,
    Status,
    TemperatureScaling,
)
from trustsets.errors import InputError, NotCalibratedError, TrustSetsWarning
from trustsets.scores import MarginScore

CONFIDENCE_BINS = Bins(Confidence(), edges=((0.4, 0.6),))
CONFIDENCE_CURVE = Polynomial(degree=2, of=(Confidence(),))
PREDICTORS = {
    "standard": StandardConformal(),
    "standard, randomised": StandardConformal(score=APS(own_mass="random")),
    "standard, tail": StandardConformal(score=RAPS(scale="tail", own_mass="random")),
    "standard, margin": StandardConformal(score=MarginScore()),
    "groups": MondrianConformal(by=Groups("site"), score=Softmax()),
    "bins": MondrianConformal(by=CONFIDENCE_BINS, score=APS(own_mass="random")),
    "class": MondrianConformal(by="class", score=APS(own_mass="random")),
    "conditional": ConditionalConformal(basis=CONFIDENCE_CURVE),
    "conditional, SAPS": ConditionalConformal(score=SAPS(scale="tail"), basis=CONFIDENCE_CURVE),
    "conditional, randomised": ConditionalConformal(
        score=APS(own_mass="random"), basis=CONFIDENCE_CURVE + Groups("site"), randomized=True
    ),
    "clusters": ClusteredConformal(score=APS(own_mass="random"), n_clusters=2, tuning_fraction=0.4),
    "clusters, auto": ClusteredConformal(),
}


@pytest.fixture(params=PREDICTORS, ids=str)
def predictor(request):
    return clone(PREDICTORS[request.param])


@pytest.fixture
def halves(make_outputs):
    return make_outputs(1000).split(0.5)


def test_sets_hold_exactly_the_scores_below_the_threshold(halves):
    """The whole of split conformal prediction again, in four lines."""
    calibration, test = halves
    for score in (APS(), RAPS(), Softmax(), APS(scale="tail")):
        sets = (
            StandardConformal(score=score, allow_empty=True)
            .calibrate(calibration)
            .predict_set(test)
        )
        k = int(np.ceil((len(calibration) + 1) * 0.9))
        threshold = np.sort(score.of_labels(calibration))[k - 1]
        np.testing.assert_array_equal(sets.mask, score.matrix(test) <= threshold)
        np.testing.assert_array_equal(sets.thresholds, threshold)


def test_groups_are_standard_prediction_within_each_group(halves):
    calibration, test = halves
    sets = MondrianConformal(by=Groups("site")).calibrate(calibration).predict_set(test)
    for site in "abc":
        here, there = (part.groups["site"] == site for part in (calibration, test))
        alone = StandardConformal().calibrate(calibration.take(here)).predict_set(test.take(there))
        np.testing.assert_array_equal(sets.mask[there], alone.mask)
        np.testing.assert_array_equal(sets.thresholds[there], alone.thresholds)


def test_class_conditional_sets_use_the_threshold_of_the_class(halves):
    """Deterministic, against the quantile of each class by hand."""
    calibration, test = halves
    predictor = MondrianConformal(by="class", allow_empty=True).calibrate(calibration)
    sets = predictor.predict_set(test, alpha=0.2)
    matrix, own = APS().matrix(test), APS().of_labels(calibration)
    for y in range(5):
        scores = np.sort(own[calibration.codes == y])
        threshold = scores[int(np.ceil((scores.size + 1) * 0.8)) - 1]
        np.testing.assert_array_equal(sets.mask[:, y], matrix[:, y] <= threshold)
        np.testing.assert_array_equal(sets.thresholds[:, y], threshold)


def test_sets_are_nested_in_alpha(predictor, halves):
    """Deterministic: fails if a set of a larger alpha has a class more."""
    calibration, test = halves
    alphas = np.linspace(0.05, 0.95, 19).tolist()
    mask = predictor.calibrate(calibration).predict_set(test, alpha=alphas).mask
    assert (mask[:, :, :-1] >= mask[:, :, 1:]).all()
    assert mask[:, :, 0].sum() > mask[:, :, -1].sum()


def test_permuting_rows_permutes_the_sets(predictor, halves, make_outputs):
    """Deterministic: fails if a sample's set depends on its position."""
    calibration, test = halves
    # Tuning samples are given: setting some aside at random would depend on the order.
    tuning = make_outputs(500, seed=7)
    order = np.random.default_rng(0).permutation(500)
    plain = predictor.calibrate(calibration, tuning=tuning).predict_set(test)
    predictor.calibrate(calibration.take(order), tuning=tuning.take(order))
    mixed = predictor.predict_set(test.take(order))
    np.testing.assert_array_equal(mixed.mask, plain.mask[order])
    np.testing.assert_array_equal(mixed.thresholds, plain.thresholds[order])


def test_permuting_classes_permutes_the_sets(predictor, make_outputs):
    order = np.array([3, 0, 4, 1, 2])

    def permuted(outputs):
        return ModelOutputs(
            logits=outputs.logits[:, order],
            labels=np.argsort(order)[outputs.codes],
            features=outputs.features,
            groups=outputs.groups,
            rows=outputs.rows,
        )

    # Random draws are keyed on the rows given here; permuted logits are other content.
    calibration, test = make_outputs(1000, rows=np.arange(1000)).split(0.5)
    plain = predictor.calibrate(calibration).predict_set(test)
    mixed = predictor.calibrate(permuted(calibration)).predict_set(permuted(test))
    np.testing.assert_array_equal(mixed.mask, plain.mask[:, order])


@pytest.mark.parametrize("size", [1, 7, 499])
def test_batches_change_nothing(predictor, halves, size):
    """Deterministic: fails if a sample's set depends on its batch."""
    calibration, test = halves
    predictor.calibrate(calibration)
    whole = predictor.predict_set(test)
    parts = [predictor.predict_set(test.take(slice(i, i + size))) for i in range(0, 500, size)]
    np.testing.assert_array_equal(np.concatenate([part.mask for part in parts]), whole.mask)


def test_single_and_double_precision_agree(predictor, make_outputs):
    single = make_outputs(logits=make_outputs().logits.astype(np.float32))
    double = make_outputs(logits=single.logits.astype(np.float64))
    masks = [predictor.calibrate(each).predict_set(each, 0.3).mask for each in (single, double)]
    np.testing.assert_array_equal(*masks)


def test_labels_of_test_points_are_never_used(predictor, halves):
    """Deterministic: fails if a label of a new sample changes its set."""
    calibration, test = halves
    blind = ModelOutputs(logits=test.logits, features=test.features, groups=test.groups)
    predictor.calibrate(calibration)
    np.testing.assert_array_equal(
        predictor.predict_set(blind).mask, predictor.predict_set(test).mask
    )


@pytest.mark.filterwarnings("ignore:alpha is the miscoverage")
def test_empty_sets_keep_the_most_likely_class(predictor, halves):
    """Deterministic: fails if an empty set stays empty, or another one gains a class."""
    calibration, test = halves
    allowing = clone(predictor).set_params(allow_empty=True).calibrate(calibration)
    bare = allowing.predict_set(test, alpha=0.7)
    kept = predictor.calibrate(calibration).predict_set(test, alpha=0.7)
    empty = bare.sizes == 0
    np.testing.assert_array_equal(kept.mask[~empty], bare.mask[~empty])
    np.testing.assert_array_equal(kept.mask[empty].argmax(axis=1), test.predicted_codes[empty])
    assert (kept.sizes[empty] == 1).all()


def test_too_few_points_give_full_sets_that_say_so(make_outputs):
    """Deterministic: fails if the quantile beyond the last score is clamped."""
    sets = StandardConformal().calibrate(make_outputs(8)).predict_set(make_outputs(3, seed=1))
    assert np.isinf(sets.thresholds).all() and sets.mask.all()
    assert (sets.status == Status.TOO_FEW_POINTS).all()


def test_unseen_and_small_groups_give_full_sets_that_say_so(make_outputs):
    """Deterministic: fails if such a group borrows the threshold of another."""
    sites = np.array(["big"] * 50 + ["small"] * 5)
    predictor = MondrianConformal(by=Groups()).calibrate(make_outputs(55, groups={"site": sites}))
    new = make_outputs(3, seed=1, groups={"site": ["big", "small", "new"]})
    with pytest.warns(TrustSetsWarning, match="1 of 2 groups have too few"):
        sets = predictor.predict_set(new)
    assert sets.status.tolist() == [Status.EXACT, Status.TOO_FEW_POINTS, Status.UNSEEN_GROUP]
    assert sets.mask[1:].all() and not sets.mask[0].all()


def test_a_class_without_calibration_points_is_in_every_set(make_outputs):
    outputs = make_outputs(300)
    predictor = MondrianConformal(by="class").calibrate(outputs.take(outputs.codes != 2))
    sets = predictor.predict_set(make_outputs(50, seed=1))
    assert sets.mask[:, 2].all()
    assert (sets.status == Status.UNSEEN_GROUP).all()


@pytest.mark.parametrize("by", ["class", Groups("site")])
def test_cells_are_counted_by_name(make_outputs, by):
    outputs = make_outputs(n=300)
    predictor = MondrianConformal(by=by).calibrate(outputs)
    column = outputs.labels if by == "class" else outputs.groups["site"]
    expected = Counter(np.asarray(column).astype(str).tolist())
    assert {name: n for name, n in predictor.cell_counts_.items() if n} == expected


def test_calibrating_again_replaces_everything(predictor, make_outputs):
    test = make_outputs(50, seed=9)
    once = clone(predictor).calibrate(make_outputs(300, seed=1)).predict_set(test, 0.3)
    predictor.calibrate(make_outputs(300, 3)).calibrate(make_outputs(300, seed=1))
    np.testing.assert_array_equal(predictor.predict_set(test, 0.3).mask, once.mask)


def test_tuning_data_is_set_aside_given_or_reused(make_outputs):
    """Deterministic: fails if tuning samples calibrate too, or their reuse is silent."""
    calibration, tuning = make_outputs(1000), make_outputs(400, seed=5)
    tuned = StandardConformal(temperature="tuning")
    assert tuned.calibrate(calibration).n_calibration_ == 800
    tuned.calibrate(calibration, tuning=tuning)
    assert tuned.n_calibration_ == 1000
    assert tuned.temperature_ == TemperatureScaling().fit(tuning).temperature_
    with pytest.warns(TrustSetsWarning, match="the temperature will be learned from"):
        tuned.set_params(tuning_fraction=0.0).calibrate(calibration)
    assert tuned.temperature_ == TemperatureScaling().fit(calibration).temperature_
    assert StandardConformal().calibrate(calibration).n_calibration_ == 1000


@pytest.mark.parametrize("form", [2.0, TemperatureScaling])
def test_temperature_comes_as_number_or_object(form, halves):
    calibration, test = halves
    temperature = form if isinstance(form, float) else form().fit(calibration)
    value = temperature if isinstance(form, float) else temperature.temperature_
    scaled = StandardConformal(temperature=temperature).calibrate(calibration).predict_set(test)
    by_hand = [part.with_logits(part.logits / value) for part in halves]
    plain = StandardConformal().calibrate(by_hand[0]).predict_set(by_hand[1])
    np.testing.assert_array_equal(scaled.mask, plain.mask)


def test_scikit_learn_can_clone_and_set(predictor, halves):
    copy = clone(predictor.calibrate(halves[0]))
    assert not hasattr(copy, "state_")
    assert copy.set_params(allow_empty=True).get_params()["allow_empty"]


BAD_PARAMETERS = [
    ({"score": APS}, "score must be a score"),
    ({"temperature": -1.0}, "temperature must be positive"),
    ({"temperature": "auto"}, "temperature must be None, a number"),
    ({"temperature": TemperatureScaling()}, "fitted TemperatureScaling"),
    ({"tuning_fraction": 1.0}, "tuning_fraction must lie"),
    ({"random_state": -1}, "random_state must not be negative"),
    ({"random_state": "x"}, "random_state must be"),
]


@pytest.mark.parametrize(("change", "message"), BAD_PARAMETERS)
def test_bad_parameters_leave_the_calibration_whole(predictor, halves, change, message):
    calibration, test = halves
    predictor.calibrate(calibration)
    before, good = predictor.predict_set(test), predictor.get_params(deep=False)
    with pytest.raises(InputError, match=message):
        predictor.set_params(**change).calibrate(calibration)
    predictor.set_params(**good)
    np.testing.assert_array_equal(predictor.predict_set(test).mask, before.mask)


def test_bad_outputs_are_named_and_leave_the_calibration_whole(predictor, halves, make_outputs):
    calibration, test = halves
    with pytest.raises(NotCalibratedError, match="call calibrate first"):
        predictor.predict_set(test)
    predictor.calibrate(calibration)
    before = predictor.predict_set(test)
    with pytest.raises(InputError, match="calibrate needs labels"):
        predictor.calibrate(make_outputs(labels=None))
    with pytest.raises(InputError, match="outputs have 4 classes, but calibration had 5"):
        predictor.predict_set(make_outputs(n_classes=4))
    with pytest.raises(InputError, match="dimension 2, but calibration had 3"):
        predictor.predict_set(make_outputs(features=np.zeros((200, 2))))
    with pytest.raises(InputError, match="name other classes"):
        predictor.predict_set(make_outputs(labels=None, classes=list("abcde")))
    with pytest.raises(InputError, match="alpha must lie"):
        predictor.predict_set(test, alpha=1.5)
    np.testing.assert_array_equal(predictor.predict_set(test).mask, before.mask)


def test_mondrian_needs_a_partition(make_outputs):
    with pytest.raises(InputError, match="by must be Groups"):
        MondrianConformal(by="site").calibrate(make_outputs())
    predictor = MondrianConformal(by=Groups("site")).calibrate(make_outputs())
    with pytest.raises(InputError, match="no group column 'site'"):
        predictor.predict_set(make_outputs(groups=None))
