"""What a predictor says it needs of new samples is what it needs; known trust can be an array."""

import numpy as np
import pytest
from kinds import PREDICTORS, some

from trustsets import (
    Bins,
    ConditionalConformal,
    Confidence,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Trust,
    TrustScore,
    evaluate,
)
from trustsets.errors import InputError


@pytest.fixture(params=PREDICTORS)
def calibrated(request):
    """A calibrated predictor of each kind, and new samples."""
    return PREDICTORS[request.param]().calibrate(some(0, 400)), some(5, 60)


def rebuilt(outputs, features=True, groups=None, first_row=0):
    """The same samples with rows of their own, and without what is left out."""
    return ModelOutputs(
        logits=outputs.logits,
        classes=outputs.classes,
        features=outputs.features if features else None,
        groups=outputs.groups if groups is None else groups,
        rows=first_row + np.arange(len(outputs)),
    )


def same(one, other):
    return np.array_equal(one.thresholds, other.thresholds) and np.array_equal(one.mask, other.mask)


def test_needed_groups_are_the_columns_without_which_there_are_no_sets(calibrated):
    predictor, test = calibrated
    whole = predictor.predict_set(rebuilt(test))
    needed = {name: test.groups[name] for name in predictor.needed_groups}
    other = {"unused": np.arange(len(test))}
    assert same(predictor.predict_set(rebuilt(test, groups=needed | other)), whole)
    for name in needed:
        left = {other: own for other, own in needed.items() if other != name}
        with pytest.raises(InputError, match=name):
            predictor.predict_set(rebuilt(test, groups=left))


def test_features_are_not_needed_where_a_predictor_says_so(calibrated):
    predictor, test = calibrated
    if not predictor.uses_features:
        without = predictor.predict_set(rebuilt(test, features=False))
        assert same(without, predictor.predict_set(rebuilt(test)))


def test_what_uses_groups_trust_or_neither_says_so(make_outputs):
    outputs = make_outputs(300)
    both = ConditionalConformal(basis=Groups("site") + Groups("site")).calibrate(outputs)
    assert both.needed_groups == ("site",) and not both.uses_features
    trust = TrustScore().fit(outputs.features, outputs.labels)
    assert MondrianConformal(by=Bins(counts=(2, 2)), trust=trust).calibrate(outputs).uses_features
    assert not MondrianConformal(by="class").calibrate(outputs).uses_features


def test_draws_move_the_sets_of_those_that_draw_and_of_no_others(calibrated):
    """With other rows, and so with other draws, the same samples get other thresholds or sets."""
    predictor, test = calibrated
    one = predictor.predict_set(rebuilt(test), alpha=0.3)
    moved = predictor.predict_set(rebuilt(test, first_row=1000), alpha=0.3)
    assert same(moved, one) != predictor.draws_at_random


def test_sets_depend_on_their_batch_only_where_a_predictor_says_why(make_outputs):
    for make in PREDICTORS.values():  # see `test_batches_change_nothing`
        assert make().calibrate(some(0, 200)).batch_dependence is None
    bins = Bins(Confidence(), counts=4, spacing="quantile")
    paper = MondrianConformal.paper(by=bins, temperature=1.0)
    with pytest.warns(UserWarning, match="bin edges"):
        paper.calibrate(make_outputs(300))
    assert "depend on what is predicted together" in paper.batch_dependence
    whole, part = (paper.predict_set(make_outputs(40).take(np.arange(n))) for n in (40, 7))
    assert not np.array_equal(whole.thresholds[:7], part.thresholds)
    by_hand = Bins(Confidence(), edges=((0.5, 0.8),))
    assert MondrianConformal.paper(by=by_hand).batch_dependence is None


@pytest.mark.parametrize("own_tuning", [False, True])
def test_known_trust_stands_in_for_a_trust_score(make_outputs, own_tuning):
    """Values follow their samples through the tuning split."""
    train, calibration, tuning, test = (make_outputs(n, seed=n) for n in (80, 500, 200, 50))
    trust = TrustScore().fit(train.features, train.labels)
    other = tuning if own_tuning else None
    # The default would fit its components on training features, where there is a trust score.
    basis = Polynomial(3, (Confidence(transform="rank"), Trust(transform="rank")))
    first = ConditionalConformal(basis=basis, trust=trust).calibrate(calibration, tuning=other)
    known = [part if part is None else part.with_trust(trust) for part in (calibration, other)]
    second = ConditionalConformal(basis=basis).calibrate(known[0], tuning=known[1])
    sets = first.predict_set(test)
    own = trust.score(test.features, test.predicted)
    assert same(second.predict_set(test.replace(trust=own)), sets)
    assert same(second.predict_set(rebuilt(test, features=False).replace(trust=own)), sets)
    assert not same(second.predict_set(test.replace(trust=own[::-1])), sets)
    with pytest.raises(InputError, match="pass trust="):
        second.predict_set(test)
    for wrong in (own[1:], "high", ["high"] * 50, np.full(50, np.nan)):
        with pytest.raises(InputError, match="trust must be an array"):
            test.replace(trust=wrong)
    chosen = {"metrics": ["conf_trust", "trust_rank"], "n_bootstrap": 5}
    found = evaluate(sets, test.with_trust(own), **chosen).metrics
    assert found == evaluate(sets, test.with_trust(trust), **chosen).metrics
