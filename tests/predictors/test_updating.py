"""Adding, removing and leaving out samples equals calibrating on what is left, exactly."""

import copy
import pickle

import numpy as np
import pytest
from kinds import LINE, PREDICTORS, RANKS, some
from sklearn.base import clone

from trustsets import (
    APS,
    ClassBias,
    ConditionalConformal,
    Groups,
    ModelOutputs,
    MondrianConformal,
    PredictionSets,
    StandardConformal,
    load,
)
from trustsets.errors import InputError, NotCalibratedError
from trustsets.predictors import Predictor

# Few samples, so that groups are small, are empty for a while, and come back.
few = pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")


def assert_same(changed, fresh, test):
    alphas = (0.1, 0.3)
    first, second = changed.predict_set(test, alphas), fresh.predict_set(test, alphas)
    np.testing.assert_array_equal(first.mask, second.mask)
    np.testing.assert_array_equal(first.status, second.status)
    # A group that is gone leaves a column of zeros, which changes the last digits of a fit.
    np.testing.assert_allclose(first.thresholds, second.thresholds, rtol=1e-12, atol=1e-12)
    assert changed.n_calibration_ == fresh.n_calibration_
    np.testing.assert_array_equal(changed.class_counts_, fresh.class_counts_)
    assert changed.state_.accuracy == pytest.approx(fresh.state_.accuracy)


def test_added_samples_without_rows_have_the_draws_of_a_new_calibration():
    parts = [ModelOutputs(logits=s.logits, labels=s.labels) for s in (some(0, 80), some(1, 40))]
    make = PREDICTORS["random scores"]
    updated = make().calibrate(parts[0]).update(parts[1])
    assert_same(updated, make().calibrate(ModelOutputs.concat(parts)), some(2, 50))


@few
@pytest.mark.parametrize("name", PREDICTORS)
@pytest.mark.parametrize(("seed", "digits"), [(0, 9), (1, 1), (2, 0)])
def test_sequences_of_changes_equal_a_new_calibration(name, seed, digits):
    """Random additions and removals, with sets between them, on samples with many near-equals."""
    rng, make = np.random.default_rng(seed), PREDICTORS[name]
    everything, tuning, test = some(seed, 150, digits), some(seed + 1, 100), some(seed + 2, 20)
    order = np.concatenate([[0, 1, 2], 3 + rng.permutation(147)])
    present, absent = list(order[:70]), list(order[70:])
    predictor = make().calibrate(everything.take(present), tuning=tuning)
    for _ in range(4):
        if rng.random() < 0.5 and absent:
            count = min(int(rng.integers(1, 20)), len(absent))
            new, absent = absent[:count], absent[count:]
            predictor.update(everything.take(new))
            present += new
        else:
            gone = 3 + rng.choice(len(present) - 3, int(rng.integers(1, 15)), replace=False)
            predictor.forget(gone)
            present = np.delete(present, gone).tolist()
        if rng.random() < 0.5:
            predictor.predict_set(test, (0.1, 0.3))
    np.testing.assert_array_equal(predictor.calibration_rows_, present)
    assert_same(predictor, make().calibrate(everything.take(present), tuning=tuning), test)


@few
@pytest.mark.parametrize("name", ["groups", "group indicators", "penalised groups"])
def test_groups_that_calibration_lacked_ask_for_a_calibration(name):
    outputs = some(0, 200)
    known = outputs.take(outputs.groups["site"] != "z")
    predictor = PREDICTORS[name]().calibrate(known, tuning=some(1, 90))
    state = predictor.state_
    with pytest.raises(InputError, match="sample 0 is of a group that calibration lacks"):
        predictor.update(outputs.take(outputs.groups["site"] == "z"))
    assert predictor.state_ is state and predictor.n_calibration_ == len(known)


@few
@pytest.mark.parametrize("name", PREDICTORS)
def test_a_loaded_predictor_takes_samples_and_gives_them_back(name, tmp_path):
    outputs, tuning, test = some(3, 240), some(1, 90), some(2, 50)
    first, more = outputs.take(slice(0, 180)), outputs.take(slice(180, 240))
    PREDICTORS[name]().calibrate(first, tuning=tuning).save(tmp_path / "a.trustsets")
    loaded = load(tmp_path / "a.trustsets").update(more).forget(slice(3, 30))
    rest = outputs.take(np.delete(np.arange(240), slice(3, 30)))
    assert_same(loaded, PREDICTORS[name]().calibrate(rest, tuning=tuning), test)
    loaded.save(tmp_path / "b.trustsets")
    assert_same(load(tmp_path / "b.trustsets"), loaded, test)


@few
def test_sets_of_limited_size_follow_the_changes():
    outputs, tuning, test = some(0, 300), some(1, 200), some(2, 60)
    # Classes are ranked with their biases, which are large where two classes are rare.
    rare = tuning.take((tuning.codes > 1) | (np.arange(200) % 6 == 0))
    biased = PREDICTORS["ranks"]().set_params(class_bias=ClassBias(prevalence=2.0).fit(rare))
    for predictor in (biased, *(PREDICTORS[name]() for name in ("penalised groups", "default"))):
        changed = clone(predictor).calibrate(outputs.take(slice(0, 200)), tuning=tuning)
        changed.predict_set(test, max_size=1)
        changed.update(outputs.take(slice(200, 300))).forget(slice(3, 50))
        rest = outputs.take(np.delete(np.arange(300), slice(3, 50)))
        fresh = clone(predictor).calibrate(rest, tuning=tuning)
        for size in (1, 2):
            mine, other = (each.predict_set(test, max_size=size) for each in (changed, fresh))
            np.testing.assert_array_equal(mine.mask, other.mask)
            np.testing.assert_allclose(mine.alpha, other.alpha, rtol=1e-9)
            np.testing.assert_allclose(mine.thresholds, other.thresholds, rtol=1e-9)


def test_tuned_parts_stay_until_calibrate_is_called_again():
    outputs = some(0, 400)
    predictor = ConditionalConformal(temperature="tuning").calibrate(outputs.take(slice(0, 200)))
    temperature, choice = predictor.temperature_, predictor.choice_
    basis, bias = predictor.conditions_on, predictor.state_.class_bias
    predictor.update(outputs.take(slice(200, 400)))
    assert predictor.temperature_ == temperature and predictor.choice_ is choice
    assert predictor.conditions_on is basis and predictor.state_.class_bias is bias
    assert predictor.calibrate(outputs).temperature_ != temperature


@pytest.mark.parametrize("loaded", [False, True])
def test_new_samples_share_no_identity_with_those_there_are(loaded, tmp_path):
    """Random draws are keyed on the identity, and equal samples have draws of their own."""
    outputs = some(0, 100)
    predictor = StandardConformal(score=APS(own_mass="random"), temperature="tuning")
    predictor.calibrate(outputs)
    tuning = np.setdiff1d(np.arange(100), predictor.calibration_rows_)
    if loaded:
        predictor.save(tmp_path / "a.trustsets")
        predictor = load(tmp_path / "a.trustsets")
    first = predictor.calibration_rows_
    new = predictor.update(some(1, 10)).calibration_rows_[80:]
    assert not np.isin(new, np.concatenate([first, tuning])).any()
    again = predictor.update(outputs).calibration_rows_[90:]
    assert np.unique(predictor.calibration_rows_).size == 190 and not np.isin(again, tuning).any()
    late = predictor.update(outputs.take(tuning[:3])).calibration_rows_[-3:]
    assert not np.isin(late, tuning).any()
    # Numbers that the user gave need not count from zero: new ones come after the largest.
    high = StandardConformal().calibrate(outputs.replace(rows=np.arange(50, 150)))
    high.update(some(5, 60).replace(rows=np.arange(90, 150)))
    assert np.unique(high.calibration_rows_).size == 160
    # Rows that the user gave are kept where they are free.
    kept = some(4, 3).replace(rows=[500, 700, 900])
    np.testing.assert_array_equal(predictor.update(kept).calibration_rows_[-3:], [500, 700, 900])


def test_leaving_out_counts_the_changed_samples():
    outputs = some(0, 120)
    predictor = ConditionalConformal(basis=LINE).calibrate(outputs.take(slice(0, 100)))
    predictor.update(outputs.take(slice(100, 120))).forget(np.arange(40))
    fresh = ConditionalConformal(basis=LINE).calibrate(outputs.take(slice(40, 120)))
    np.testing.assert_array_equal(predictor.calibration_rows_, fresh.calibration_rows_)
    mine, other = predictor.leave_one_out(0.2), fresh.leave_one_out(0.2)
    np.testing.assert_array_equal(mine.mask, other.mask)
    np.testing.assert_allclose(mine.thresholds, other.thresholds, rtol=1e-12)


def test_wrong_input_changes_nothing():
    outputs = some(0, 60)
    predictor = ConditionalConformal(basis=LINE).calibrate(outputs)
    state = predictor.state_
    huge = np.arange(60, dtype=np.uint64) + (2**63 - 60)
    for rows in ([60], [-61], [0, 0], [0, -60], [0.5], [True], "a", np.arange(60), ~huge[:1]):
        with pytest.raises(InputError, match="rows"):
            predictor.forget(rows)
    by_alpha = copy.copy(predictor).calibrate(outputs, alphas=np.full(60, 0.1))
    for change, given, message in (
        (predictor.forget, slice(1, 60), "basis functions"),
        (predictor.update, outputs.replace(labels=None), "labels"),
        (predictor.update, outputs.replace(features=None), "like those of calibrate"),
        (predictor.update, ModelOutputs(logits=np.zeros((2, 4)), labels=[0, 1]), "classes"),
        (predictor.update, np.zeros((2, 3)), r"Wrap it: ModelOutputs\("),
        (by_alpha.update, outputs, "have alphas; calibrate again"),
        (StandardConformal().calibrate(last := outputs.replace(rows=huge)).update, last, "below 2"),
    ):
        with pytest.raises(InputError, match=message):
            change(given)
    assert predictor.state_ is state
    assert predictor.forget([]) is predictor and predictor.n_calibration_ == 60
    with pytest.raises(NotCalibratedError):
        StandardConformal().update(outputs)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint64])
def test_positions_may_be_of_any_integer_type(kind):
    predictor = StandardConformal().calibrate(some(0, 300))
    assert predictor.forget(np.array([1, 2], kind)).calibration_rows_[:2].tolist() == [0, 3]


# Samples that are left out, one at a time.

MAKERS = PREDICTORS | {"paper rules": lambda: MondrianConformal.paper(by=Groups("site"))}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("seed", "digits"), [(0, 9), (1, 1), (2, 0)])
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # groups of few samples
def test_leaving_out_equals_calibrating_on_the_others(name, seed, digits):
    predictor = MAKERS[name]().calibrate(some(seed, 60, digits))
    alphas = (0.1, 0.3)
    sets = predictor.leave_one_out(alphas)
    # The slow way: thresholds of a predictor without each sample.
    scores = predictor.scores(predictor.calibration_)
    slow = Predictor._leave_one_out_thresholds(predictor, scores, alphas)
    expected = PredictionSets.from_scores(
        scores, slow, alphas, predicted=sets.predicted, allow_empty=predictor.allow_empty
    )
    np.testing.assert_array_equal(sets.mask, expected.mask)
    np.testing.assert_array_equal(sets.status, expected.status)
    np.testing.assert_allclose(sets.thresholds, expected.thresholds, rtol=1e-9, atol=1e-9)


def test_rows_say_which_samples_were_left_out():
    outputs = some(3, 200)
    predictor = ConditionalConformal(basis=RANKS).calibrate(outputs)
    sets, rows = predictor.leave_one_out(0.2), predictor.calibration_rows_
    assert len(sets) == len(rows) == predictor.n_calibration_ < 200
    misses = ~sets.covers(outputs.take(rows).labels)
    # Coverage over the constant function holds on average over calibrations, and here nearly.
    assert misses.mean() < 0.2 + 0.05


def test_files_and_copies_do_not_hold_the_samples(tmp_path):
    predictor = StandardConformal().calibrate(some(0, 60))
    predictor.save(tmp_path / "p.trustsets")
    others = load(tmp_path / "p.trustsets"), copy.deepcopy(predictor)
    for other in (*others, pickle.loads(pickle.dumps(predictor))):
        with pytest.raises(NotCalibratedError, match="do not hold the calibration samples"):
            other.leave_one_out()
    with pytest.raises(NotCalibratedError, match="not calibrated"):
        StandardConformal().leave_one_out()
