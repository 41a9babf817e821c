"""Strangers, sets of classes with thresholds of their own, and why a set holds every class."""

import warnings

import numpy as np
import pytest
from kinds import LINE, PREDICTORS, some

from trustsets import (
    Classes,
    ClusteredConformal,
    ConditionalConformal,
    Groups,
    Intercept,
    ModelOutputs,
    MondrianConformal,
    Softmax,
    Status,
)

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
