"""Warnings and words about classes: what calibration saw, and whether the columns fit."""

import numpy as np
import pytest

from trustsets import (
    ClusteredConformal,
    ConditionalConformal,
    ModelOutputs,
    MondrianConformal,
    StandardConformal,
    evaluate,
)
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.predictors.class_facts import classifier_doubts

NAMES = np.array(["eel", "ant", "dog", "cat", "bee"])  # not in the order of the alphabet


def animals(n, seed=0, **words):
    """Outputs whose columns are in the order of `NAMES`."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(n, 5))
    codes = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return ModelOutputs(logits=logits, labels=NAMES[codes], **words)


def test_an_order_guessed_from_the_names_is_stated_and_checked():
    """Deterministic: fails if a wrong order passes in silence, or a right one warns."""
    with pytest.warns(TrustSetsWarning, match="in another order of the columns"):
        guessed = StandardConformal().calibrate(animals(800))
    said = guessed.summary()
    assert "Columns of the outputs, in order: 'ant', 'bee', 'cat', 'dog' and 'eel'." in said
    assert "the columns must be 'ant', 'bee', 'cat', 'dog' and 'eel', in this order" in said
    right = StandardConformal().calibrate(animals(800, classes=NAMES)).summary()  # no warning
    assert "in order: 'eel', 'ant', 'dog', 'cat' and 'bee'." in right
    assert "must be" not in right


@pytest.mark.parametrize("seed", range(10))
def test_right_orders_raise_no_doubt(seed):
    rng = np.random.default_rng(seed)
    for n, n_classes, strength in [(60, 3, 0.0), (60, 20, 0.5), (400, 100, 1.0), (500, 4, 0.0)]:
        logits = strength * rng.normal(size=(n, n_classes))
        noise = rng.normal(size=logits.shape)
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        outputs = ModelOutputs(logits=logits + noise, labels=labels)
        assert classifier_doubts(outputs) == {"below_majority": False, "reordered": 0.0}


def test_an_order_of_many_even_classes_is_checked():
    """Where no class is frequent, accuracy alone could not be below that of the majority."""
    rng = np.random.default_rng(0)
    logits = 4.0 * rng.normal(size=(3000, 100))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    shuffled = logits[:, rng.permutation(100)]
    assert classifier_doubts(ModelOutputs(logits=shuffled, labels=labels))["reordered"] > 0.5


def test_accuracy_below_the_most_frequent_class_warns():
    rng = np.random.default_rng(0)
    labels = (rng.random(500) < 0.1).astype(int)
    noise = ModelOutputs(logits=rng.normal(size=(500, 2)), labels=labels)
    with pytest.warns(TrustSetsWarning, match=r"right for 49\.6% .* always predicting 0 would be"):
        StandardConformal().calibrate(noise)
    # As good as the majority, within error: no warning.
    same = ModelOutputs(logits=[[1.0, 0.0]] * 500, labels=labels)
    assert not classifier_doubts(same)["below_majority"]


PROMISE = "no calibration sample of class 4, so nothing is guaranteed for it"


@pytest.mark.parametrize("predictor", [StandardConformal(), ConditionalConformal()])
def test_a_class_without_calibration_samples_is_named(predictor, make_outputs):
    """Deterministic: fails if it is not named."""
    outputs = make_outputs(600, 5)
    seen = outputs.take(outputs.codes != 4)
    with pytest.warns(TrustSetsWarning, match=PROMISE):
        predictor.calibrate(seen)
    assert PROMISE in predictor.summary()
    predictor.calibrate(outputs)
    assert PROMISE not in predictor.summary()


def imbalanced(n, rng):
    """One sample in 200 is of class 1, and the classifier knows it."""
    labels = (rng.random(n) < 1 / 200).astype(int)
    x = rng.normal(size=n) + 1.5 * labels
    logits = np.column_stack([np.zeros(n), 1.5 * x - 1.125 - np.log(200)])
    return ModelOutputs(logits=logits, labels=labels)


def test_imbalance_points_to_the_method_for_each_class():
    rng = np.random.default_rng(0)
    calibration, test = imbalanced(20_000, rng), imbalanced(20_000, rng)
    predictor = StandardConformal().calibrate(calibration)
    result = evaluate(predictor.predict_set(test, alpha=0.1), test)
    assert result.tables["class"].coverage[1] < 0.2 and result.coverage.value > 0.95
    assert 'MondrianConformal(by="class")' in predictor.summary()
    by_class = MondrianConformal(by="class").calibrate(calibration)
    assert 'by="class"' not in by_class.summary()


def test_the_null_cluster_is_promised_only_what_it_gets(make_outputs):
    published = ClusteredConformal().calibrate(make_outputs(300))
    assert "nothing is guaranteed for them" in published.summary()
    assert "hence marginally" not in published.summary()
    own = ClusteredConformal(null_cluster="own").calibrate(make_outputs(300))
    assert "included, and hence marginally" in own.summary()
    with pytest.raises(InputError, match='null_cluster must be "standard" or "own"'):
        ClusteredConformal(null_cluster="none").calibrate(make_outputs(300))
