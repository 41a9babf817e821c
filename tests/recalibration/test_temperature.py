import warnings

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from trustsets import ModelOutputs, TemperatureScaling
from trustsets.errors import InputError, NotCalibratedError
from trustsets.errors import TrustSetsWarning as Warned


def negative_log_likelihood(outputs, temperature):
    scaled = outputs.logits.astype(np.float64) / temperature
    own = scaled[np.arange(len(outputs)), outputs.codes]
    return np.mean(logsumexp(scaled, axis=1) - own)


@pytest.mark.parametrize("factor", [0.02, 0.3, 1.0, 4.0, 30.0])
def test_temperature_is_the_minimum(make_outputs, factor):
    plain = make_outputs(500)
    outputs = plain.with_logits(plain.logits * factor)
    fitted = TemperatureScaling().fit(outputs).temperature_
    best = minimize_scalar(
        lambda log_t: negative_log_likelihood(outputs, np.exp(log_t)),
        bounds=(-8, 6),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert fitted == pytest.approx(np.exp(best.x), rel=1e-5)
    assert negative_log_likelihood(outputs, fitted) <= best.fun + 1e-12


def test_transform_divides_the_logits(make_outputs):
    outputs = make_outputs()
    scaling = TemperatureScaling().fit(outputs)
    scaled = scaling.transform(outputs)
    np.testing.assert_allclose(scaled.logits, outputs.logits / scaling.temperature_)
    np.testing.assert_array_equal(scaled.labels, outputs.labels)
    assert TemperatureScaling().fit(scaled).temperature_ == pytest.approx(1.0, rel=1e-10)


def test_separated_labels_leave_the_temperature_alone():
    outputs = ModelOutputs(logits=np.eye(4), labels=np.arange(4))
    with pytest.warns(Warned, match="temperature stays 1"):
        assert TemperatureScaling().fit(outputs).temperature_ == 1.0


def test_worse_than_chance_stops_at_the_largest_temperature():
    outputs = ModelOutputs(logits=[[1.0, 0.0], [0.0, 1.0]], labels=[1, 0])
    with pytest.warns(Warned, match="no better than chance"):
        assert TemperatureScaling().fit(outputs).temperature_ == 100.0


@pytest.mark.parametrize("zeros", [1, 30, 200])
def test_labels_of_probability_zero_are_named_instead_of_chance(zeros):
    """As of a forest: right for most samples, and sure of another class for some."""
    rng = np.random.default_rng(zeros)
    labels = rng.integers(4, size=600)
    probabilities = np.where(np.arange(4) == labels[:, None], 0.97, 0.01)
    probabilities[:zeros] = np.roll(np.eye(4), 1, axis=1)[labels[:zeros]]
    outputs = ModelOutputs(probabilities=probabilities, labels=labels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = TemperatureScaling().fit(outputs).temperature_
    assert [str(each.message) for each in caught] == (fitted == 100.0) * [
        f"the temperature stops at 100: {zeros} of 600 labels have a probability of zero; smooth "
        "the probabilities or do without a temperature."
    ]
    assert zeros == 1 or fitted == 100.0


def test_bad_use_is_named(make_outputs):
    with pytest.raises(NotCalibratedError, match="call fit first"):
        TemperatureScaling().transform(make_outputs())
    with pytest.raises(InputError, match="outputs must be ModelOutputs"):
        TemperatureScaling().fit(np.zeros((3, 2)))
    with pytest.raises(InputError, match="needs labels"):
        TemperatureScaling().fit(make_outputs(labels=None))
