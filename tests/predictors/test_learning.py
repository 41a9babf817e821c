"""What learns from data learns from tuning samples, or `calibrate` warns; nothing else does."""

import numpy as np
import pytest
from sklearn.base import clone

from trustsets import (
    Bins,
    ClassBias,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Entropy,
    Groups,
    Intercept,
    Learned,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
    StandardConformal,
    TemperatureScaling,
    load,
    storage,
)
from trustsets.errors import InputError, TrustSetsWarning

RANKS = (Confidence(transform="rank"),)
# Each has one part that learns, beside parts that do not.
LEARNING = {
    "components": PrincipalComponents(2),
    "a sum with components": Intercept() + PrincipalComponents(2),
    "a sum with ranks": Groups() + Polynomial(1, RANKS) + Intercept(),
    "one rank of two": Polynomial(1, (Confidence(), Entropy(transform="rank"))),
    "a learned quantile": Learned(n_components=2, n_trees=5),
    "edges": Bins(Confidence(), counts=3, spacing="quantile"),
    "edges by hand on ranks": Bins(*RANKS, edges=((0.3, 0.6),)),
}
FIXED = {
    "raw": Polynomial(2, (Confidence(), Entropy(transform="log"))),
    "a sum": Intercept() + Groups() + Polynomial(1, (Confidence(),)),
    "edges by hand": Bins(Confidence(), edges=((0.5, 0.7),)),
}
PREDICTORS = {name: ConditionalConformal(basis=basis) for name, basis in LEARNING.items()}
PREDICTORS["auto"] = ConditionalConformal()
PREDICTORS["cells"] = MondrianConformal(by=LEARNING["edges by hand on ranks"])
PREDICTORS["biases"] = StandardConformal(class_bias=ClassBias(prevalence=1.0))
WHAT = {"cells": "the bin edges", "biases": "the class biases"}


def learned(predictor):
    """The fitted function class or partition, as a digest of all its numbers, and the biases."""
    bias = predictor.state_.class_bias
    return storage.digest(predictor.conditions_on), None if bias is None else bias.bias_.tolist()


@pytest.mark.parametrize("name", PREDICTORS)
def test_what_learns_takes_tuning_samples_or_warns(name, make_outputs):
    predictor, calibration = PREDICTORS[name], make_outputs(300)
    predictor.set_params(tuning_fraction=0.2).calibrate(calibration)
    assert 0 < predictor.n_tuning_ == 300 - predictor.n_calibration_
    what = WHAT.get(name, "the function class")
    with pytest.warns(TrustSetsWarning, match=f"{what} will be learned from"):
        predictor.set_params(tuning_fraction=0.0).calibrate(calibration)
    assert f"{what} came from the calibration samples" in predictor.summary()


@pytest.mark.parametrize("name", PREDICTORS)
def test_what_is_learned_depends_on_tuning_samples_only(name, make_outputs):
    first, second, tuning, other = (make_outputs(200, seed=seed) for seed in range(4))
    predictor = PREDICTORS[name]
    digest = learned(predictor.calibrate(first, tuning=tuning))
    assert learned(predictor.calibrate(second, tuning=tuning)) == digest
    assert learned(predictor.calibrate(first, tuning=other)) != digest


@pytest.mark.parametrize("name", FIXED)
def test_where_nothing_is_learned_all_samples_calibrate(name, make_outputs):
    """Warnings are errors here: nothing warns, whatever the fraction."""
    for fraction in ("auto", 0.0):
        predictor = ConditionalConformal(basis=FIXED[name], tuning_fraction=fraction)
        state = predictor.calibrate(make_outputs(300)).state_
        assert (len(state), state.n_tuning, state.reused) == (300, 0, ())


CURVE = Polynomial(degree=2, of=(Confidence(),))
TAKE_BIAS = {
    "standard": StandardConformal(),
    "class": MondrianConformal(by="class"),
    "groups": MondrianConformal(by=Groups("site")),
    "clusters": ClusteredConformal(n_clusters=2),
    "conditional": ConditionalConformal(basis=CURVE),
}


@pytest.mark.parametrize("name", TAKE_BIAS)
def test_a_class_bias_is_learned_from_tuning_samples_and_saved(name, make_outputs, tmp_path):
    calibration, tuning, test = (make_outputs(400, seed=seed) for seed in (0, 1, 2))
    uneven = tuning.take(np.flatnonzero((tuning.codes > 0) | (np.arange(400) % 8 == 0)))
    spec = ClassBias(prevalence=0.7)

    def calibrated(bias):
        predictor = clone(TAKE_BIAS[name]).set_params(class_bias=bias, temperature="tuning")
        return predictor.calibrate(calibration, tuning=uneven)

    predictor = calibrated(spec)
    expected = ClassBias(prevalence=0.7).fit(uneven)
    assert not spec.is_fitted
    np.testing.assert_array_equal(predictor.state_.class_bias.bias_, expected.bias_)
    # The temperature is that of the outputs with the biases.
    scaling = TemperatureScaling().fit(expected.transform(uneven))
    assert predictor.temperature_ == scaling.temperature_
    sets = predictor.predict_set(test)
    np.testing.assert_array_equal(calibrated(expected).predict_set(test).mask, sets.mask)
    assert (calibrated(None).predict_set(test).mask != sets.mask).any()
    predictor.save(tmp_path / "model.trustsets")
    again = load(tmp_path / "model.trustsets")
    np.testing.assert_array_equal(again.predict_set(test).mask, sets.mask)
    assert not again.class_bias.is_fitted and again.class_bias.prevalence == 0.7


@pytest.mark.parametrize("predictor", [StandardConformal(), ConditionalConformal(basis=Groups())])
def test_a_bias_does_what_shifted_logits_do(predictor, make_outputs):
    calibration, test = make_outputs(600), make_outputs(200, seed=1)
    bias = ClassBias(prevalence=1.5).fit(calibration)
    by_hand = [part.with_logits(part.logits + bias.bias_) for part in (calibration, test)]
    plain = clone(predictor).calibrate(by_hand[0]).predict_set(by_hand[1])
    ours = predictor.set_params(class_bias=bias).calibrate(calibration).predict_set(test)
    np.testing.assert_array_equal(ours.mask, plain.mask)


@pytest.mark.parametrize("bad", ["none", 3, ClassBias])
def test_what_is_no_class_bias_is_refused(bad, make_outputs):
    with pytest.raises(InputError, match='class_bias must be None, "tuning" or a ClassBias'):
        StandardConformal(class_bias=bad).calibrate(make_outputs())
