"""Adding and removing calibration samples equals calibrating on what is left, exactly."""

import copy

import numpy as np
import pytest
from trustsets.predictors.updating import equal_ranges

from trustsets import (
    APS,
    Bins,
    Classes,
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
from trustsets.engine import fit_quantiles
from trustsets.engine.refit import MOST_DRIFT, EarlierFit
from trustsets.errors import InputError, NotCalibratedError
from trustsets.predictors import InterpolatedConformal, RankCalibratedConformal

LINE = Intercept() + Polynomial(1, (Confidence(),))
RANKS = Polynomial(3, (Confidence("rank"),), penalty=2.0)
FAST = {
    "standard": lambda: StandardConformal(temperature="tuning"),
    "random scores": lambda: StandardConformal(APS(own_mass="random"), allow_empty=True),
    "class": lambda: MondrianConformal(by="class"),
    "sites": lambda: MondrianConformal(by=Groups("site")),
    "bins": lambda: MondrianConformal(by=Bins((Confidence(),), (3,), ("quantile",))),
    "default": lambda: ConditionalConformal(),
    "ranks": lambda: ConditionalConformal(Softmax(), RANKS, allow_empty=True),
    "limited": lambda: ConditionalConformal(basis=RANKS + Groups("site", penalty=2.0)),
    "groups": lambda: ConditionalConformal(basis=Intercept() + Groups("site")),
    "randomized": lambda: ConditionalConformal(basis=RANKS, randomized=True, allow_empty=True),
    "label": lambda: ConditionalConformal(basis=RANKS + Classes(penalty=2.0)),
    "components": lambda: ConditionalConformal(basis=PrincipalComponents(2)),
    "interpolated": lambda: InterpolatedConformal(0.5),
    "ranked": lambda: RankCalibratedConformal(),
}
# Few samples, so that groups are small, are empty for a while, and come back.
ignored = pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")


def pool(seed: int, n: int, digits: int = 9) -> ModelOutputs:
    rng = np.random.default_rng(seed)
    logits = (1.5 * rng.normal(size=(n, 3))).round(digits)
    labels = (logits + rng.gumbel(size=(n, 3))).argmax(axis=1)
    site = rng.choice(["a", "b", "c"], p=[0.6, 0.37, 0.03], size=n)
    features = rng.normal(size=(n, 4)).round(digits)
    return ModelOutputs(logits=logits, labels=labels, features=features, groups={"site": site})


def assert_same(changed, fresh, test):
    alphas = (0.1, 0.3)
    mine, theirs = changed.predict_set(test, alphas), fresh.predict_set(test, alphas)
    np.testing.assert_array_equal(mine.mask, theirs.mask)
    np.testing.assert_array_equal(mine.status, theirs.status)
    # Products of matrices depend on the batch in the last digits.
    np.testing.assert_allclose(mine.thresholds, theirs.thresholds, rtol=1e-12, atol=1e-12)
    assert changed.state_.n == fresh.state_.n
    np.testing.assert_array_equal(
        changed.state_.class_facts.counts, fresh.state_.class_facts.counts
    )
    assert changed.state_.class_facts.accuracy == pytest.approx(fresh.state_.class_facts.accuracy)


def run_sequence(make, seed, steps=4, digits=9):
    """Random additions and removals, with sets between them, against a fresh calibration."""
    rng = np.random.default_rng(seed)
    everything, tuning, test = pool(seed, 150, digits), pool(seed + 1, 100), pool(seed + 2, 20)
    order = rng.permutation(150)
    there, left = list(order[:70]), list(order[70:])
    predictor = make().calibrate(everything.take(there), tuning=tuning)
    for _ in range(steps):
        if rng.random() < 0.5 and left:
            count = min(int(rng.integers(1, 20)), len(left))
            new, left = left[:count], left[count:]
            predictor.update(everything.take(new))
            there += new
        else:
            gone = rng.choice(len(there), int(rng.integers(1, 15)), replace=False)
            if rng.random() < 0.5:
                predictor.forget(gone)
            else:
                predictor.forget(everything.take(np.array(there)[gone]))
            there = np.delete(there, gone).tolist()
        if rng.random() < 0.5:
            predictor.predict_set(test, (0.1, 0.3))
    np.testing.assert_array_equal(np.sort(predictor.calibration_rows_), np.sort(there))
    assert_same(predictor, make().calibrate(everything.take(there), tuning=tuning), test)
    return predictor


@ignored
@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(("seed", "digits"), [(0, 9), (1, 1), (2, 0)])
def test_sequences_of_changes_equal_a_new_calibration(name, seed, digits):
    run_sequence(FAST[name], seed, digits=digits)


@ignored
@pytest.mark.parametrize("seed", range(58))
def test_many_sequences_equal_a_new_calibration(seed):
    make = [own for name, own in FAST.items() if name != "default"][seed % (len(FAST) - 1)]
    run_sequence(make, 100 + seed, digits=seed % 3)


def test_a_large_fit_keeps_its_whitening_and_gives_the_same_thresholds():
    outputs, tuning, test = pool(5, 4000), pool(6, 300), pool(7, 500)
    predictor = ConditionalConformal(basis=RANKS).calibrate(
        outputs.take(slice(0, 3900)), tuning=tuning
    )
    before = predictor.predict_set(test, 0.1)
    whitening = predictor.state_.learned.fit(0.1)._problem.whitening
    predictor.update(outputs.take(slice(3900, 4000))).forget(slice(0, 50))
    fresh = ConditionalConformal(basis=RANKS)
    fresh.calibrate(outputs.take(slice(50, 4000)), tuning=tuning)
    changed, wanted = predictor.predict_set(test, 0.1), fresh.predict_set(test, 0.1)
    np.testing.assert_allclose(changed.thresholds, wanted.thresholds, rtol=1e-12)
    np.testing.assert_array_equal(changed.mask, wanted.mask)
    assert (changed.thresholds != before.thresholds).mean() > 0.9
    own, other = (each.state_.learned.fit(0.1) for each in (predictor, fresh))
    assert own._problem.whitening is whitening
    np.testing.assert_array_equal(own.basic_points, other.basic_points)


@ignored
def test_groups_that_calibration_lacked_get_functions_of_their_own():
    outputs = pool(0, 200)
    is_rare = np.arange(200) % 5 == 0
    common = outputs.take(~is_rare)
    rare = ModelOutputs(
        logits=outputs.logits[is_rare],
        features=outputs.features[is_rare],
        labels=outputs.labels[is_rare],
        groups={"site": ["d", "e"] * 20},
        rows=np.flatnonzero(is_rare),
    )
    test = ModelOutputs.concat([pool(2, 50), rare])
    for make in (FAST["sites"], FAST["groups"], FAST["limited"]):
        changed = make().calibrate(common, tuning=pool(1, 90)).update(rare)
        fresh = make().calibrate(ModelOutputs.concat([common, rare]), tuning=pool(1, 90))
        assert_same(changed, fresh, test)


@ignored
@pytest.mark.parametrize("name", ["standard", "sites", "class", "ranks", "limited", "components"])
def test_a_loaded_predictor_takes_and_gives_back_samples(name, tmp_path):
    outputs, tuning, test = pool(3, 300), pool(1, 90), pool(2, 50)
    known = outputs.take(outputs.groups["site"] != "c")
    first, more = known.take(slice(0, 180)), known.take(slice(180, 240))
    FAST[name]().calibrate(first, tuning=tuning).save(tmp_path / "a.trustsets")
    loaded = load(tmp_path / "a.trustsets").update(more).forget(first.take(slice(0, 30)))
    assert_same(loaded, FAST[name]().calibrate(known.take(slice(30, 240)), tuning=tuning), test)
    loaded.save(tmp_path / "b.trustsets")
    assert_same(load(tmp_path / "b.trustsets"), loaded, test)
    with pytest.raises(NotCalibratedError, match="calibration samples"):
        loaded.forget([0])
    if name in ("sites", "limited"):
        with pytest.raises(NotCalibratedError, match="calibration samples"):
            loaded.update(outputs.take(outputs.groups["site"] == "c"))


def test_tuned_parts_stay_until_calibrate_is_called_again():
    outputs = pool(0, 400)
    predictor = ConditionalConformal(temperature="tuning").calibrate(outputs.take(slice(0, 200)))
    temperature, choice = predictor.temperature_, predictor.choice_
    basis, bias = predictor.state_.learned.basis, predictor.state_.class_bias
    predictor.update(outputs.take(slice(200, 400)))
    assert predictor.temperature_ == temperature and predictor.choice_ is choice
    assert predictor.state_.learned.basis is basis and predictor.state_.class_bias is bias
    assert predictor.calibrate(outputs).temperature_ != temperature


def test_identities_that_are_taken_are_given_anew():
    outputs = pool(0, 100)
    predictor = StandardConformal(APS(own_mass="random")).calibrate(outputs).update(pool(1, 10))
    np.testing.assert_array_equal(predictor.calibration_rows_, np.arange(110))
    assert len(np.unique(predictor.state_.learned.scores)) == 110
    same = StandardConformal(APS(own_mass="random")).calibrate(outputs).update(outputs)
    # Equal samples have draws of their own.
    assert len(np.unique(same.state_.learned.scores)) == 200
    assert predictor.leave_one_out(0.1).mask.shape == (110, 3)


def test_leaving_out_counts_the_changed_samples():
    outputs = pool(0, 120)
    predictor = ConditionalConformal(basis=LINE).calibrate(outputs.take(slice(0, 100)))
    predictor.update(outputs.take(slice(100, 120))).forget(np.arange(40))
    fresh = ConditionalConformal(basis=LINE).calibrate(outputs.take(slice(40, 120)))
    np.testing.assert_array_equal(predictor.calibration_rows_, fresh.calibration_rows_)
    mine, theirs = predictor.leave_one_out(0.2), fresh.leave_one_out(0.2)
    np.testing.assert_array_equal(mine.mask, theirs.mask)
    np.testing.assert_allclose(mine.thresholds, theirs.thresholds, rtol=1e-9)


def test_wrong_input_changes_nothing():
    outputs = pool(0, 60)
    predictor = ConditionalConformal(basis=LINE).calibrate(outputs)
    state = copy.copy(predictor.state_)
    for rows in ([60], [-61], [0, 0], [0, -60], [0.5], [True], "a", np.arange(60), pool(9, 3)):
        with pytest.raises(InputError, match="rows"):
            predictor.forget(rows)
    with pytest.raises(InputError, match="rows"):
        predictor.forget(outputs.take([0, 0]))
    with pytest.raises(InputError, match="basis functions"):
        predictor.forget(slice(1, 60))
    with pytest.raises(InputError, match="labels"):
        predictor.update(ModelOutputs(logits=np.zeros((2, 3))))
    with pytest.raises(InputError, match="like those of calibrate"):
        predictor.update(ModelOutputs(logits=np.zeros((2, 3)), labels=[0, 1]))
    with pytest.raises(InputError, match="classes"):
        predictor.update(ModelOutputs(logits=np.zeros((2, 4)), labels=[0, 1]))
    assert predictor.state_ == state or predictor.state_.learned is state.learned
    assert predictor.forget([]) is predictor and predictor.state_.n == 60
    with pytest.raises(NotCalibratedError):
        StandardConformal().update(outputs)


def test_a_window_does_not_keep_what_left_it():
    outputs = pool(0, 400)
    predictor = StandardConformal().calibrate(outputs.take(slice(0, 40)))
    for start in range(40, 400, 10):
        predictor.update(outputs.take(slice(start, start + 10))).forget(slice(0, 10))
    np.testing.assert_array_equal(predictor.calibration_rows_, np.arange(360, 400))
    assert sum(len(part.scores) for part in predictor._kept.parts) < 120


@pytest.mark.parametrize("digits", [0, 1, 9])
def test_places_in_sorted_tuples_are_those_of_a_sort(digits):
    rng = np.random.default_rng(digits)
    table = rng.normal(size=(60, 3)).round(digits)
    table, new = table[np.lexsort(table.T[::-1])], rng.normal(size=(30, 3)).round(digits)
    low, high = equal_ranges(table.T, new.T)
    for row, start, end in zip(new.tolist(), low, high, strict=True):
        assert start == sum(own < row for own in table.tolist())
        assert end == sum(own <= row for own in table.tolist())


def changed_data(rng, phi, scores, gone, added):
    """Data without some rows and with others in between, and where each row was before."""
    origin = np.delete(np.arange(len(phi)), gone)
    at = rng.integers(0, origin.size, len(added[0]))
    rows, values = (
        np.insert(phi[origin], at, added[0], axis=0),
        np.insert(scores[origin], at, added[1]),
    )
    return rows, values, np.insert(origin, at, -1)


def assert_same_problem(model, fresh):
    """All but the whitened rows, the drift and the constant has the bits of a new problem."""
    for name in ("scores", "centred_scores", "nudges", "copies", "first", "point", "exponent"):
        mine, theirs = getattr(model._problem, name), getattr(fresh._problem, name)
        np.testing.assert_array_equal(mine, theirs)
    assert model._problem.score_scale == fresh._problem.score_scale
    assert model._problem.has_constants == fresh._problem.has_constants
    rows = model._problem.rows
    off = np.abs(np.linalg.eigvalsh(rows.T @ rows) / len(rows) - 1.0).max()
    assert off <= model._problem.drift + 1e-9 <= MOST_DRIFT + 1e-9


def family(name, rng, n, digits):
    """Basis rows and scores: smooth, grouped and dependent, without constants, ill-conditioned."""
    x = rng.normal(size=n)
    group = np.eye(3)[rng.integers(0, 3, n)]
    phi = {
        "polynomial": lambda: np.stack([x**k for k in range(4)], axis=1),
        "groups": lambda: np.column_stack([np.ones(n), x, group, x[:, None] * group]),
        "no constants": lambda: np.column_stack([x, np.sin(5.0 * x)]),
        "nearly dependent": lambda: np.stack([np.ones(n), x, 1e3 + 1e-6 * x**2], axis=1),
    }[name]()
    return phi.round(digits) if digits < 3 else phi, (x + rng.exponential(size=n)).round(digits)


@pytest.mark.parametrize("digits", [0, 2, 9])
@pytest.mark.parametrize("name", ["polynomial", "groups", "no constants", "nearly dependent"])
def test_a_changed_fit_is_the_fit_of_the_changed_data(name, digits):
    rng = np.random.default_rng(digits)
    phi, scores = family(name, rng, 1200, digits)
    model = fit_quantiles(phi, scores, 0.1)
    n_kept = 0
    for count in (1, 0, 5, 30, 3, 1):
        gone = rng.choice(len(phi), 5 - min(count, 5) + 1, replace=False)
        gone = np.union1d(gone, model.basic_points[: int(rng.integers(0, 3))])
        added = family(name, rng, count, digits)
        phi, scores, origin = changed_data(rng, phi, scores, gone, added)
        whitening = model._problem.whitening
        model = EarlierFit.of(model).changed(origin).refit(phi, scores)
        fresh = fit_quantiles(phi, scores, 0.1)
        n_kept += model._problem.whitening is whitening
        if name != "nearly dependent":
            # There, rounding decides whether the class contains constants.
            assert_same_problem(model, fresh)
        assert model.certificate.holds
        np.testing.assert_array_equal(model.basic_points, fresh.basic_points)
        found, wanted = model.thresholds(phi[:60]), fresh.thresholds(phi[:60])
        np.testing.assert_allclose(found.values, wanted.values, rtol=1e-10, atol=1e-10)
    # Where several vertices are optimal, as is common with rounded scores, the fit is a new one.
    assert n_kept >= (4 if digits == 9 else 0)


@pytest.mark.parametrize("change", ["long row", "new direction", "lost direction", "outlier"])
def test_what_the_whitening_cannot_take_gives_a_new_one(change):
    rng = np.random.default_rng(0)
    x = rng.normal(size=500)
    rare = np.zeros(500)
    rare[:2] = 1.0
    phi = np.column_stack([np.ones(500), x, x**2, rare, np.zeros(500)])
    scores = x + rng.exponential(size=500)
    model = fit_quantiles(phi, scores, 0.1)
    row = {"long row": [1.0, 30.0, 900.0, 0.0, 0.0], "new direction": [1.0, 0.0, 0.0, 0.0, 1.0]}
    gone = [0, 1] if change == "lost direction" else [5]
    added = (
        np.array([row.get(change, [1.0, 0.5, 0.25, 0.0, 0.0])]),
        np.array([1e30 if change == "outlier" else 2.0]),
    )
    new, values, origin = changed_data(rng, phi, scores, gone, added)
    changed = EarlierFit.of(model).changed(origin).refit(new, values)
    fresh = fit_quantiles(new, values, 0.1)
    assert (changed._problem.whitening is model._problem.whitening) == (change == "outlier")
    assert_same_problem(changed, fresh)
    test = np.vstack([new[:40], np.eye(5)])
    found, wanted = changed.thresholds(test), fresh.thresholds(test)
    np.testing.assert_array_equal(found.status, wanted.status)
    np.testing.assert_allclose(found.values, wanted.values, rtol=1e-10)


def test_changes_without_fits_between_them_add_up():
    rng = np.random.default_rng(1)
    phi, scores = family("polynomial", rng, 900, 9)
    earlier = EarlierFit.of(fit_quantiles(phi, scores, 0.1))
    for _ in range(5):
        added = family("polynomial", rng, 4, 9)
        phi, scores, origin = changed_data(rng, phi, scores, rng.choice(len(phi), 3, False), added)
        earlier = earlier.changed(origin)
    model, fresh = earlier.refit(phi, scores), fit_quantiles(phi, scores, 0.1)
    assert model._problem.whitening is earlier.model._problem.whitening
    assert_same_problem(model, fresh)
    np.testing.assert_array_equal(model.basic_points, fresh.basic_points)
