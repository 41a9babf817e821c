"""Laws of the statistics: the definition one sample at a time, and what a transform may learn."""

import numpy as np
import pytest

from trustsets import Confidence, Entropy, Margin, ModelOutputs, Trust
from trustsets.errors import InputError, StorageError
from trustsets.statistics import FittedStatistic


class PlantedTrust:
    """Trust that is the first feature, and how often it was asked for."""

    def __init__(self):
        self.calls = 0

    def score(self, features, predicted):
        self.calls += 1
        return features[:, 0] ** 2


def softmax(row):
    weights = [np.exp(value - max(row)) for value in row]
    return [weight / sum(weights) for weight in weights]


def by_definition(name, row):
    """One sample, in plain Python."""
    p = sorted(softmax(row), reverse=True)
    return {"Conf": p[0], "Entropy": -sum(q * np.log(q) for q in p), "Margin": p[0] - p[1]}[name]


PLAIN = [Confidence(), Entropy(), Margin()]


@pytest.mark.parametrize("statistic", PLAIN, ids=lambda statistic: statistic.name)
def test_a_statistic_is_its_definition(statistic, make_outputs):
    outputs = make_outputs(60)
    expected = [by_definition(statistic.name, row) for row in outputs.logits]
    np.testing.assert_allclose(statistic.measure(outputs), expected, rtol=1e-12)


@pytest.mark.parametrize("statistic", PLAIN, ids=lambda statistic: statistic.name)
def test_a_sample_has_the_same_number_in_any_batch(statistic, make_outputs):
    outputs = make_outputs(50)
    whole = statistic.measure(outputs)
    order = np.random.default_rng(0).permutation(50)
    np.testing.assert_array_equal(statistic.measure(outputs.take(order)), whole[order])
    alone = [statistic.measure(outputs.take([i]))[0] for i in range(50)]
    np.testing.assert_array_equal(alone, whole)


def test_entropy_and_margin_at_their_ends():
    sure = ModelOutputs(probabilities=[[1.0, 0.0, 0.0]])
    even = ModelOutputs(probabilities=[[0.25, 0.25, 0.25, 0.25]])
    only = ModelOutputs(probabilities=[[1.0]])
    assert (Entropy().measure(sure)[0], Margin().measure(sure)[0]) == (0.0, 1.0)
    assert Entropy().measure(even)[0] == pytest.approx(np.log(4.0))
    assert (Margin().measure(even)[0], Margin().measure(only)[0]) == (0.0, 1.0)


def test_trust_is_asked_for_once(make_outputs):
    planted, outputs = PlantedTrust(), make_outputs(20)
    observed = outputs.with_trust(planted)
    for _ in range(3):
        np.testing.assert_array_equal(Trust().measure(observed), outputs.features[:, 0] ** 2)
    assert planted.calls == 1


def test_ranks_are_mid_ranks_among_the_samples_of_the_fit():
    """The share of fitted values below, and half of those that are equal."""
    fitted_on = ModelOutputs(logits=np.zeros((5, 2)), features=np.sqrt([[1], [2], [2], [3], [9]]))
    asked = ModelOutputs(logits=np.zeros((5, 2)), features=np.sqrt([[0], [2], [2.5], [9], [10]]))
    fitted = Trust(transform="rank").fit(fitted_on.with_trust(PlantedTrust()))
    # Values are rounded squares of roots: compare through the same computation.
    below, equal = np.array([0, 1, 3, 4, 5]), np.array([0, 2, 0, 1, 0])
    found = fitted.values(asked.with_trust(PlantedTrust()))
    np.testing.assert_allclose(found, (below + 0.5 * equal) / 5)


@pytest.mark.parametrize(("transform", "learns"), [("raw", False), ("log", False), ("rank", True)])
def test_only_ranks_depend_on_the_samples_of_the_fit(transform, learns, make_outputs):
    statistic = Confidence(transform=transform)
    asked = make_outputs(30, seed=5)
    one, other = (statistic.fit(make_outputs(100, seed=seed)).values(asked) for seed in (1, 2))
    assert statistic.learns == learns == (not np.array_equal(one, other))


def test_the_logarithm_of_zero_is_finite():
    observed = ModelOutputs(logits=[[0.0, 0.0]], features=[[0.0]]).with_trust(PlantedTrust())
    assert np.isfinite(Trust(transform="log").fit(observed).values(observed)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda seen: Confidence(transform="square"), "transform must be"),
        (lambda seen: Trust().measure(seen), "pass trust="),
        (lambda seen: seen.replace(features=None).with_trust(PlantedTrust()), "features="),
    ],
)
def test_bad_input_is_named(make, message, make_outputs):
    with pytest.raises(InputError, match=message):
        make(make_outputs(5))


@pytest.mark.parametrize(
    ("statistic", "reference"),
    [
        (Confidence(), np.array([0.1])),
        (Confidence(transform="rank"), None),
        (Confidence(transform="rank"), np.array([0.1, np.nan])),
    ],
)
def test_a_reference_that_no_fit_gives_is_refused(statistic, reference):
    with pytest.raises(StorageError, match="reference"):
        FittedStatistic(statistic, reference).check_state()
