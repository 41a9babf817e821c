"""Laws of every predictor, and the definitions of the simple ones."""

from collections import Counter

import numpy as np
import pytest
from kinds import LETTERS, PREDICTORS, some
from sklearn.base import clone

from trustsets import (
    APS,
    RAPS,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Softmax,
    StandardConformal,
    Status,
    TemperatureScaling,
)
from trustsets.errors import InputError, NotCalibratedError, TrustSetsWarning

# Cells and classes may have few samples.
pytestmark = pytest.mark.filterwarnings("ignore:.*too few calibration samples")


@pytest.fixture(params=PREDICTORS, ids=str)
def predictor(request):
    return PREDICTORS[request.param]()


@pytest.fixture
def halves():
    return some(0, 800).split(0.5)


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
    for site in "xyz":
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


def test_permuting_rows_permutes_the_sets(predictor, halves):
    """Deterministic: fails if a sample's set depends on its position."""
    calibration, test = halves
    # Tuning samples are given: setting some aside at random would depend on the order.
    tuning, order = some(7, 400), np.random.default_rng(0).permutation(400)
    plain = predictor.calibrate(calibration, tuning=tuning).predict_set(test)
    predictor.calibrate(calibration.take(order), tuning=tuning.take(order))
    mixed = predictor.predict_set(test.take(order))
    np.testing.assert_array_equal(mixed.mask, plain.mask[order])
    # Means and components are sums, whose last digits depend on the order.
    np.testing.assert_allclose(mixed.thresholds, plain.thresholds[order], rtol=1e-12)


def test_permuting_classes_permutes_the_sets(predictor):
    order = np.array([3, 0, 4, 1, 2])
    # Random draws are keyed on the rows given here; permuted logits are other content.
    calibration, test = some(0, 800).replace(rows=np.arange(800)).split(0.5)

    def permuted(outputs):
        return ModelOutputs(
            logits=outputs.logits[:, order],
            labels=outputs.labels,
            features=outputs.features,
            groups=outputs.groups,
            rows=outputs.rows,
            classes=LETTERS[order],
        )

    plain = predictor.calibrate(calibration).predict_set(test)
    mixed = predictor.calibrate(permuted(calibration)).predict_set(permuted(test))
    np.testing.assert_array_equal(mixed.mask, plain.mask[:, order])


def test_batches_change_nothing(predictor, halves):
    """Deterministic: fails if a sample's set depends on its batch."""
    calibration, test = halves
    predictor.calibrate(calibration)
    whole = predictor.predict_set(test)
    parts = [predictor.predict_set(test.take(slice(i, i + 33))) for i in range(0, 400, 33)]
    for name in ("mask", "status"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(whole, name))
    thresholds = np.concatenate([part.thresholds for part in parts])
    np.testing.assert_allclose(thresholds, whole.thresholds, rtol=1e-12)


def test_single_and_double_precision_agree(predictor):
    single = some(0, 200).with_logits(some(0, 200).logits.astype(np.float32))
    double = single.with_logits(single.logits.astype(np.float64))
    masks = [predictor.calibrate(part).predict_set(part, 0.3).mask for part in (single, double)]
    np.testing.assert_array_equal(*masks)


def test_labels_of_new_samples_are_never_used(predictor, halves):
    """Deterministic: fails if a label of a new sample changes its set."""
    calibration, test = halves
    predictor.calibrate(calibration)
    blind = predictor.predict_set(test.replace(labels=None))
    np.testing.assert_array_equal(blind.mask, predictor.predict_set(test).mask)


@pytest.mark.filterwarnings("ignore:alpha is the miscoverage")
def test_empty_sets_keep_the_most_likely_class(predictor, halves):
    """Deterministic: fails if an empty set stays empty, or another one gains a class."""
    calibration, test = halves
    predictor.calibrate(calibration)
    bare = predictor.set_params(allow_empty=True).predict_set(test, alpha=0.7)
    kept = predictor.set_params(allow_empty=False).predict_set(test, alpha=0.7)
    empty = bare.sizes == 0
    np.testing.assert_array_equal(kept.mask[~empty], bare.mask[~empty])
    likely = predictor.state_.recalibrated(test).predicted_codes
    np.testing.assert_array_equal(kept.mask[empty].argmax(axis=1), likely[empty])
    assert (kept.sizes[empty] == 1).all()


def test_too_few_points_give_full_sets_that_say_so(make_outputs):
    """Deterministic: fails if the quantile beyond the last score is clamped."""
    sets = StandardConformal().calibrate(make_outputs(8)).predict_set(make_outputs(3, seed=1))
    assert np.isinf(sets.thresholds).all() and sets.mask.all()
    assert (sets.status == Status.TOO_FEW_POINTS).all()


def test_unseen_and_small_groups_give_full_sets_that_say_so(make_outputs):
    """Deterministic: fails if such a group borrows the threshold of another."""
    sites = np.array(["big"] * 50 + ["enough"] * 9 + ["small"] * 5)
    predictor = MondrianConformal(by=Groups()).calibrate(make_outputs(64, groups={"site": sites}))
    new = make_outputs(3, seed=1, groups={"site": ["big", "small", "new"]})
    with pytest.warns(TrustSetsWarning, match="1 of 3 groups have too few"):
        sets = predictor.predict_set(new)
    assert sets.status.tolist() == [Status.EXACT, Status.TOO_FEW_POINTS, Status.UNSEEN_GROUP]
    assert sets.mask[1:].all() and not sets.mask[0].all()


def test_a_class_without_calibration_points_is_in_every_set(make_outputs):
    outputs = make_outputs(300)
    predictor = MondrianConformal(by="class").calibrate(outputs.take(outputs.codes != 2))
    sets = predictor.predict_set(make_outputs(50, seed=1))
    assert sets.mask[:, 2].all()
    assert (sets.status == Status.UNSEEN_GROUP).all()
    assert "nothing is guaranteed" not in predictor.summary()


@pytest.mark.parametrize("by", ["class", Groups("site")])
def test_cells_are_counted_by_name(make_outputs, by):
    outputs = make_outputs(n=300)
    predictor = MondrianConformal(by=by).calibrate(outputs)
    column = outputs.labels if by == "class" else outputs.groups["site"]
    expected = Counter(np.asarray(column).astype(str).tolist())
    assert {name: n for name, n in predictor.cell_counts_.items() if n} == expected


def test_calibrating_again_replaces_everything(predictor):
    test = some(9, 50)
    once = clone(predictor).calibrate(some(1, 300)).predict_set(test, 0.3)
    predictor.calibrate(some(2, 200)).predict_set(test, 0.3)
    again = predictor.calibrate(some(1, 300)).predict_set(test, 0.3)
    np.testing.assert_array_equal(again.mask, once.mask)


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
    ({"score": APS}, "score must be an instance"),
    ({"temperature": -1.0}, "temperature must be positive"),
    ({"temperature": "auto"}, "temperature must be None, a number"),
    ({"temperature": [1.0]}, "temperature must be None, a number"),
    ({"temperature": TemperatureScaling()}, "fitted TemperatureScaling"),
    ({"tuning_fraction": 1.0}, "tuning_fraction must lie"),
    ({"tuning_fraction": None}, "tuning_fraction must lie"),
    ({"score": "lac"}, r"an instance such as APS\(\) or Softmax\(\); got 'lac'"),
    ({"random_state": -1}, "random_state must not be negative"),
    ({"random_state": "x"}, "random_state must be"),
]


@pytest.mark.parametrize(("change", "message"), BAD_PARAMETERS)
@pytest.mark.parametrize("name", ["standard", "bins", "clusters", "ranks"])
def test_bad_parameters_leave_the_calibration_whole(name, halves, change, message):
    calibration, test = halves
    predictor = PREDICTORS[name]().calibrate(calibration)
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
        predictor.calibrate(test.replace(labels=None))
    with pytest.raises(InputError, match="outputs have 4 classes, but calibration had 5"):
        predictor.predict_set(make_outputs(n_classes=4))
    with pytest.raises(InputError, match="dimension 2, but calibration had 3"):
        predictor.predict_set(test.replace(features=np.zeros((400, 2))))
    with pytest.raises(InputError, match="name other classes"):
        predictor.predict_set(make_outputs(labels=None, classes=list("vwxyz")))
    with pytest.raises(InputError, match="alpha must lie"):
        predictor.predict_set(test, alpha=1.5)
    np.testing.assert_array_equal(predictor.predict_set(test).mask, before.mask)


def test_mondrian_needs_a_partition(make_outputs):
    with pytest.raises(InputError, match="by must be Groups"):
        MondrianConformal(by="site").calibrate(make_outputs())
    predictor = MondrianConformal(by=Groups("site")).calibrate(make_outputs())
    with pytest.raises(InputError, match="no group column 'site'"):
        predictor.predict_set(make_outputs(groups=None))
