"""Adding and removing calibration samples equals calibrating on what is left, exactly."""

import copy

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
    PrincipalComponents,
    Softmax,
    StandardConformal,
    load,
)
from trustsets.errors import InputError, NotCalibratedError

LINE = Intercept() + Polynomial(1, (Confidence(),))
RANKS = Polynomial(3, (Confidence("rank"),), penalty=2.0)
MAKERS = {
    "standard": lambda: StandardConformal(temperature="tuning"),
    "random scores": lambda: StandardConformal(score=APS(own_mass="random"), allow_empty=True),
    "class": lambda: MondrianConformal(by="class"),
    "sites": lambda: MondrianConformal(by=Groups("site")),
    "bins": lambda: MondrianConformal(by=Bins(Confidence(), counts=3)),
    "default": lambda: ConditionalConformal(),
    "ranks": lambda: ConditionalConformal(score=Softmax(), basis=RANKS, allow_empty=True),
    "limited": lambda: ConditionalConformal(basis=RANKS + Groups("site", penalty=2.0)),
    "groups": lambda: ConditionalConformal(basis=Intercept() + Groups("site")),
    "randomized": lambda: ConditionalConformal(basis=RANKS, randomized=True, allow_empty=True),
    "label": lambda: ConditionalConformal(basis=RANKS + Classes(penalty=2.0)),
    "components": lambda: ConditionalConformal(basis=PrincipalComponents(2)),
    "clustered": lambda: ClusteredConformal(n_clusters=2),
    "clustered, auto": lambda: ClusteredConformal(),
}
# Few samples, so that groups are small, are empty for a while, and come back.
few = pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")


def pool(seed: int, n: int, digits: int = 9) -> ModelOutputs:
    rng = np.random.default_rng(seed)
    logits = (1.5 * rng.normal(size=(n, 3))).round(digits)
    labels = (logits + rng.gumbel(size=(n, 3))).argmax(axis=1)
    site = rng.choice(["a", "b", "c"], p=[0.6, 0.3, 0.1], size=n)
    site[:3] = ["a", "b", "c"]
    features = rng.normal(size=(n, 4)).round(digits)
    return ModelOutputs(logits=logits, labels=labels, features=features, groups={"site": site})


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


@few
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("seed", "digits"), [(0, 9), (1, 1), (2, 0), (3, 9), (4, 0)])
def test_sequences_of_changes_equal_a_new_calibration(name, seed, digits):
    """Random additions and removals, with sets between them, on samples with many near-equals."""
    rng, make = np.random.default_rng(seed), MAKERS[name]
    everything, tuning, test = pool(seed, 150, digits), pool(seed + 1, 100), pool(seed + 2, 20)
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
@pytest.mark.parametrize("name", MAKERS)
def test_after_all_first_samples_are_gone_the_others_decide(name):
    first, more, tuning, test = pool(0, 80), pool(3, 90), pool(1, 100), pool(2, 50)
    changed = MAKERS[name]().calibrate(first, tuning=tuning).update(more).forget(slice(0, 80))
    others = more.replace(rows=np.arange(80, 170))
    assert_same(changed, MAKERS[name]().calibrate(others, tuning=tuning), test)


@few
@pytest.mark.parametrize("name", ["sites", "groups", "limited"])
def test_groups_that_calibration_lacked_ask_for_a_calibration(name):
    outputs = pool(0, 200)
    known = outputs.take(outputs.groups["site"] != "c")
    predictor = MAKERS[name]().calibrate(known, tuning=pool(1, 90))
    state = predictor.state_
    with pytest.raises(InputError, match="sample 0 is of a group that calibration lacks"):
        predictor.update(outputs.take(outputs.groups["site"] == "c"))
    assert predictor.state_ is state and predictor.n_calibration_ == len(known)


@few
@pytest.mark.parametrize("name", ["standard", "sites", "class", "ranks", "limited", "clustered"])
def test_a_loaded_predictor_takes_samples_and_gives_them_back(name, tmp_path):
    outputs, tuning, test = pool(3, 240), pool(1, 90), pool(2, 50)
    first, more = outputs.take(slice(0, 180)), outputs.take(slice(180, 240))
    MAKERS[name]().calibrate(first, tuning=tuning).save(tmp_path / "a.trustsets")
    loaded = load(tmp_path / "a.trustsets").update(more).forget(slice(3, 30))
    rest = outputs.take(np.delete(np.arange(240), slice(3, 30)))
    assert_same(loaded, MAKERS[name]().calibrate(rest, tuning=tuning), test)
    loaded.save(tmp_path / "b.trustsets")
    assert_same(load(tmp_path / "b.trustsets"), loaded, test)


@few
def test_sets_of_limited_size_follow_the_changes():
    outputs, tuning, test = pool(0, 300), pool(1, 200), pool(2, 60)
    for name in ("ranks", "limited", "default"):
        changed = MAKERS[name]().calibrate(outputs.take(slice(0, 200)), tuning=tuning)
        changed.predict_set(test, max_size=1)
        changed.update(outputs.take(slice(200, 300))).forget(slice(3, 50))
        rest = outputs.take(np.delete(np.arange(300), slice(3, 50)))
        fresh = MAKERS[name]().calibrate(rest, tuning=tuning)
        for size in (1, 2):
            mine, other = (each.predict_set(test, max_size=size) for each in (changed, fresh))
            np.testing.assert_array_equal(mine.mask, other.mask)
            np.testing.assert_allclose(mine.alpha, other.alpha, rtol=1e-9)


def test_tuned_parts_stay_until_calibrate_is_called_again():
    outputs = pool(0, 400)
    predictor = ConditionalConformal(temperature="tuning").calibrate(outputs.take(slice(0, 200)))
    temperature, choice, bias = (
        predictor.temperature_,
        predictor.choice_,
        predictor.state_.class_bias,
    )
    basis = predictor.conditions_on
    predictor.update(outputs.take(slice(200, 400)))
    assert predictor.temperature_ == temperature and predictor.choice_ is choice
    assert predictor.conditions_on is basis and predictor.state_.class_bias is bias
    assert predictor.calibrate(outputs).temperature_ != temperature


@pytest.mark.parametrize("loaded", [False, True])
def test_new_samples_share_no_identity_with_those_there_are(loaded, tmp_path):
    """Random draws are keyed on the identity, and equal samples have draws of their own."""
    outputs = pool(0, 100)
    predictor = StandardConformal(score=APS(own_mass="random"), temperature="tuning")
    predictor.calibrate(outputs)
    tuning = np.setdiff1d(np.arange(100), predictor.calibration_rows_)
    if loaded:
        predictor.save(tmp_path / "a.trustsets")
        predictor = load(tmp_path / "a.trustsets")
    first = predictor.calibration_rows_
    new = predictor.update(pool(1, 10)).calibration_rows_[80:]
    assert not np.isin(new, np.concatenate([first, tuning])).any()
    again = predictor.update(outputs).calibration_rows_[90:]
    assert np.unique(predictor.calibration_rows_).size == 190 and not np.isin(again, tuning).any()
    # Numbers that the user gave need not count from zero: new ones come after the largest.
    high = StandardConformal().calibrate(outputs.replace(rows=np.arange(50, 150)))
    high.update(pool(5, 60).replace(rows=np.arange(90, 150)))
    assert np.unique(high.calibration_rows_).size == 160
    # Rows that the user gave are kept where they are free.
    kept = pool(4, 3).replace(rows=[500, 700, 900])
    np.testing.assert_array_equal(predictor.update(kept).calibration_rows_[-3:], [500, 700, 900])


def test_leaving_out_counts_the_changed_samples():
    outputs = pool(0, 120)
    predictor = ConditionalConformal(basis=LINE).calibrate(outputs.take(slice(0, 100)))
    predictor.update(outputs.take(slice(100, 120))).forget(np.arange(40))
    fresh = ConditionalConformal(basis=LINE).calibrate(outputs.take(slice(40, 120)))
    np.testing.assert_array_equal(predictor.calibration_rows_, fresh.calibration_rows_)
    mine, other = predictor.leave_one_out(0.2), fresh.leave_one_out(0.2)
    np.testing.assert_array_equal(mine.mask, other.mask)
    np.testing.assert_array_equal(mine.thresholds, other.thresholds)


def test_wrong_input_changes_nothing():
    outputs = pool(0, 60)
    predictor = ConditionalConformal(basis=LINE).calibrate(outputs)
    state = predictor.state_
    for rows in ([60], [-61], [0, 0], [0, -60], [0.5], [True], "a", np.arange(60)):
        with pytest.raises(InputError, match="rows"):
            predictor.forget(rows)
    with pytest.raises(InputError, match="basis functions"):
        predictor.forget(slice(1, 60))
    with pytest.raises(InputError, match="labels"):
        predictor.update(ModelOutputs(logits=np.zeros((2, 3))))
    with pytest.raises(InputError, match="like those of calibrate"):
        predictor.update(ModelOutputs(logits=np.zeros((2, 3)), labels=[0, 1]))
    with pytest.raises(InputError, match="classes"):
        predictor.update(ModelOutputs(logits=np.zeros((2, 4)), labels=[0, 1]))
    with pytest.raises(InputError, match=r"Wrap it: ModelOutputs\("):
        predictor.update(np.zeros((2, 3)))
    by_alpha = copy.copy(predictor).calibrate(outputs, alphas=np.full(60, 0.1))
    with pytest.raises(InputError, match="have alphas; calibrate again"):
        by_alpha.update(outputs)
    assert predictor.state_ is state
    assert predictor.forget([]) is predictor and predictor.n_calibration_ == 60
    with pytest.raises(NotCalibratedError):
        StandardConformal().update(outputs)
