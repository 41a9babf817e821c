"""Laws of atypicality: the density it names, and what must not change it."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from trustsets_paper import Atypicality

from trustsets import ModelOutputs


def training(seed=0, n=300, d=4):
    rng = np.random.default_rng(seed)
    codes = np.append(np.arange(3), rng.integers(0, 3, n - 3))
    mix = rng.normal(size=(d, d))
    return 3.0 * rng.normal(size=(3, d))[codes] + rng.normal(size=(n, d)) @ mix, codes


def measured(statistic, features):
    outputs = ModelOutputs(logits=np.zeros((len(features), 2)), features=features)
    return statistic.measure(outputs)


def test_it_is_the_negative_log_density_of_the_likeliest_class():
    features, codes = training()
    means = np.array([features[codes == c].mean(axis=0) for c in range(3)])
    deviations = features - means[codes]
    covariance = deviations.T @ deviations / len(features)
    asked = np.random.default_rng(1).normal(size=(40, 4)) * 4.0
    expected = -np.max(
        [multivariate_normal(mean, covariance).logpdf(asked) for mean in means], axis=0
    )
    found = measured(Atypicality.from_training(features, codes), asked)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_turn_and_a_shift_of_all_features_change_nothing():
    features, codes = training()
    asked = np.random.default_rng(1).normal(size=(20, 4)) * 4.0
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(4, 4)))[0]
    plain = measured(Atypicality.from_training(features, codes), asked)
    moved = measured(Atypicality.from_training(features @ turn + 7.0, codes), asked @ turn + 7.0)
    np.testing.assert_allclose(moved, plain, rtol=1e-8)


def test_features_that_never_vary_are_ignored():
    features, codes = training()
    asked = np.random.default_rng(1).normal(size=(20, 4))
    plain = measured(Atypicality.from_training(features, codes), asked)
    wide = np.column_stack([features, np.full(len(features), 5.0)])
    constant = np.column_stack([asked, np.arange(20.0)])
    np.testing.assert_allclose(
        measured(Atypicality.from_training(wide, codes), constant), plain, rtol=1e-8
    )


def test_blocks_of_training_rows_add_up(monkeypatch):
    features, codes = training()
    whole = Atypicality.from_training(features, codes)
    monkeypatch.setattr("trustsets.statistics.atypicality.FIT_ROWS", 7)
    asked = features[:15] + 1.0
    pieces = measured(Atypicality.from_training(features, codes), asked)
    np.testing.assert_allclose(pieces, measured(whole, asked), rtol=1e-9)


@pytest.mark.parametrize("labels", [["a", "b", "a"], [2, 1, 2]])
def test_class_names_of_any_type(labels):
    features = [[0.0], [4.0], [2.0]]
    found = measured(Atypicality.from_training(features, labels), np.array([[1.0], [4.0]]))
    # Means 1 and 4, variance 2 / 3; both samples lie at a mean.
    np.testing.assert_allclose(found, 0.5 * np.log(2.0 * np.pi * 2.0 / 3.0))
