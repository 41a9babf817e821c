"""Class biases in every predictor."""

import numpy as np
import pytest
from sklearn.base import clone

from trustsets import (
    ClassBias,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Groups,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    load,
)
from trustsets.errors import InputError, TrustSetsWarning

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
    """Deterministic: fails if calibration samples change the biases."""
    calibration, tuning, test = (make_outputs(400, seed=seed) for seed in (0, 1, 2))
    uneven = tuning.take(np.flatnonzero((tuning.codes > 0) | (np.arange(400) % 8 == 0)))
    spec = ClassBias(prevalence=0.7)

    def calibrated(bias):
        predictor = clone(TAKE_BIAS[name]).set_params(class_bias=bias)
        return predictor.calibrate(calibration, tuning=uneven)

    predictor = calibrated(spec)
    expected = ClassBias(prevalence=0.7).fit(uneven)
    assert not spec.is_fitted
    np.testing.assert_array_equal(predictor.state_.class_bias.bias_, expected.bias_)
    sets = predictor.predict_set(test)
    np.testing.assert_array_equal(calibrated(expected).predict_set(test).mask, sets.mask)
    assert (calibrated(None).predict_set(test).mask != sets.mask).any()
    predictor.save(tmp_path / "model.trustsets")
    again = load(tmp_path / "model.trustsets")
    np.testing.assert_array_equal(again.predict_set(test).mask, sets.mask)
    assert not again.class_bias.is_fitted and again.class_bias.prevalence == 0.7


def test_prevalence_adds_to_standard_what_scores_of_shifted_logits_do(make_outputs):
    calibration, test = make_outputs(600), make_outputs(200, seed=1)
    bias = ClassBias(prevalence=1.5).fit(calibration)
    ours = StandardConformal(class_bias=bias).calibrate(calibration).predict_set(test)
    by_hand = [part.with_logits(part.logits + bias.bias_) for part in (calibration, test)]
    plain = StandardConformal().calibrate(by_hand[0]).predict_set(by_hand[1])
    np.testing.assert_array_equal(ours.mask, plain.mask)


def test_an_unfitted_bias_sets_samples_aside_or_warns(make_outputs):
    predictor = StandardConformal(class_bias=ClassBias(prevalence=1.0))
    assert predictor.calibrate(make_outputs(1000)).n_calibration_ == 800
    with pytest.warns(TrustSetsWarning, match="the class biases will be learned from"):
        predictor.set_params(tuning_fraction=0.0).calibrate(make_outputs(1000))
    for bad in ("none", 3, ClassBias):
        with pytest.raises(InputError, match='class_bias must be None, "tuning" or a ClassBias'):
            predictor.set_params(class_bias=bad).calibrate(make_outputs())
