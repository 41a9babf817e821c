"""What learns from data learns from tuning samples, or `calibrate` warns; nothing else does."""

import numpy as np
import pytest

from trustsets import (
    Bins,
    ConditionalConformal,
    Confidence,
    Entropy,
    Groups,
    Intercept,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
)
from trustsets import _storage as storage
from trustsets.errors import TrustSetsWarning

RANKS = (Confidence(transform="rank"),)
# Each has one part that learns, beside parts that do not.
LEARNING = {
    "components": PrincipalComponents(2),
    "a sum with components": Intercept() + PrincipalComponents(2),
    "a sum with ranks": Groups() + Polynomial(1, RANKS) + Intercept(),
    "one rank of two": Polynomial(1, (Confidence(), Entropy(transform="rank"))),
    "edges": Bins(Confidence(), counts=3, spacing="quantile"),
    "edges by hand on ranks": Bins(*RANKS, edges=((0.3, 0.6),)),
}
FIXED = {
    "raw": Polynomial(2, (Confidence(), Entropy(transform="log"))),
    "a sum": Intercept() + Groups() + Polynomial(1, (Confidence(),)),
    "edges by hand": Bins(Confidence(), edges=((0.5, 0.7),)),
}
METHODS = (ConditionalConformal,)


def learned(predictor):
    """The fitted function class or partition, as a digest of all its numbers."""
    return storage.digest(predictor.conditions_on)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LEARNING)
def test_a_part_that_learns_takes_tuning_samples_or_warns(method, name, make_outputs):
    calibration = make_outputs(300)
    apart = method(basis=LEARNING[name]).calibrate(calibration)
    assert 0 < apart.n_tuning_ == 300 - apart.n_calibration_
    with pytest.warns(TrustSetsWarning, match="the function class will be learned from"):
        reused = method(basis=LEARNING[name], tuning_fraction=0.0).calibrate(calibration)
    assert "holds only approximately, because the function class" in reused.summary()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LEARNING)
def test_what_is_learned_depends_on_tuning_samples_only(method, name, make_outputs):
    first, second, tuning, other = (make_outputs(200, seed=seed) for seed in range(4))
    predictor = method(basis=LEARNING[name])
    own = learned(predictor.calibrate(first, tuning=tuning))
    assert learned(predictor.calibrate(second, tuning=tuning)) == own
    assert learned(predictor.calibrate(first, tuning=other)) != own


def test_components_are_those_of_the_tuning_features(make_outputs):
    calibration, tuning = make_outputs(200), make_outputs(80, seed=1)
    predictor = ConditionalConformal(basis=Groups() + PrincipalComponents(2))
    parts = predictor.calibrate(calibration, tuning=tuning).conditions_on.parts
    alone = PrincipalComponents(2).fit(tuning)
    np.testing.assert_array_equal(parts[1].mean, alone.mean)
    np.testing.assert_array_equal(parts[1].directions, alone.directions)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FIXED)
def test_where_nothing_is_learned_all_samples_calibrate(method, name, make_outputs):
    """Warnings are errors here: nothing warns, whatever the fraction."""
    for words in ({}, {"tuning_fraction": 0.0}):
        state = method(basis=FIXED[name], **words).calibrate(make_outputs(300)).state_
        assert (len(state), state.n_tuning, state.reused) == (300, 0, ())


def test_cells_that_are_learned_take_tuning_samples_or_warn(make_outputs):
    by = LEARNING["edges by hand on ranks"]
    assert MondrianConformal(by=by).calibrate(make_outputs(300)).n_calibration_ == 240
    with pytest.warns(TrustSetsWarning, match="the bin edges will be learned from"):
        MondrianConformal(by=by, tuning_fraction=0.0).calibrate(make_outputs(300))
    first, second, tuning = (make_outputs(300, seed=seed) for seed in range(3))
    predictor = MondrianConformal(by=by)
    own = learned(predictor.calibrate(first, tuning=tuning))
    assert learned(predictor.calibrate(second, tuning=tuning)) == own
    fixed = MondrianConformal(by=FIXED["edges by hand"], tuning_fraction=0.0)
    assert fixed.calibrate(make_outputs(300)).n_calibration_ == 300
