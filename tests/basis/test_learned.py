"""Functions that were learned from tuning samples, as part of a function class."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from trustsets import (
    ConditionalConformal,
    Confidence,
    Intercept,
    Learned,
    ModelOutputs,
    Polynomial,
    PrincipalComponents,
    TrustScore,
    audit,
    load,
)
from trustsets.errors import InputError, StorageError
from trustsets.learned import Trees

SMALL = Learned(n_components=3, n_trees=10, n_leaves=6)


@pytest.fixture
def trust(make_outputs):
    train = make_outputs(300, seed=9)
    return TrustScore().fit(train.features, train.labels)


@pytest.fixture
def predictor(make_outputs, trust):
    basis = Polynomial(1, (Confidence(),)) + SMALL
    chosen = ConditionalConformal(basis=basis, trust=trust, tuning_fraction=0.4)
    return chosen.calibrate(make_outputs(500))


def test_trees_predict_bitwise_what_the_regressor_does():
    rng = np.random.default_rng(0)
    table = np.round(rng.normal(size=(800, 6)), 1)  # values on thresholds, and ties
    scores = np.exp(table[:, 0]) + rng.exponential(size=800)
    learner = HistGradientBoostingRegressor(loss="quantile", quantile=0.9, max_iter=30)
    model = learner.fit(table, scores)
    trees = Trees.of(model)
    new = np.vstack([table, rng.normal(size=(500, 6)), np.full((1, 6), 1e9)])
    np.testing.assert_array_equal(trees.predict(new), model.predict(new))
    alone = np.concatenate([trees.predict(new[[i]]) for i in range(0, len(new), 7)])
    np.testing.assert_array_equal(alone, trees.predict(new)[::7])
    constant = clone(learner).fit(0.0 * table, scores)
    np.testing.assert_array_equal(Trees.of(constant).predict(new), constant.predict(new))


@pytest.mark.parametrize("basis", [SMALL, replace(SMALL, regressor=LinearRegression())])
def test_order_of_tuning_samples_does_not_matter(basis, make_outputs, trust):
    """Bit for bit, also where the sums of the learner round as those of least squares do."""
    tuning, calibration = make_outputs(400, seed=2), make_outputs(200)
    order = np.random.default_rng(0).permutation(400)
    test = make_outputs(50, seed=3)
    first, second = (
        ConditionalConformal(basis=basis, trust=trust)
        .calibrate(calibration, tuning=samples)
        .predict_set(test)
        for samples in (tuning, tuning.take(order))
    )
    np.testing.assert_array_equal(first.thresholds, second.thresholds)


def test_every_method_works_and_survives_storage(predictor, make_outputs, tmp_path):
    test = make_outputs(60, seed=3)
    predictor.save(tmp_path / "model")
    again = load(tmp_path / "model")
    for other in (predictor, again):
        assert other.predict_set(test, max_size=2).sizes.max() <= 2
        assert other.explain(test[0], alpha=0.1).summary()
    np.testing.assert_array_equal(
        again.predict_set(test, [0.05, 0.2]).thresholds,
        predictor.predict_set(test, [0.05, 0.2]).thresholds,
    )
    alone = [again.predict_set(test[i]).thresholds[0] for i in range(0, 60, 9)]
    np.testing.assert_array_equal(alone, predictor.predict_set(test).thresholds[::9])
    grid = [0.05, 0.1, 0.3]
    np.testing.assert_array_equal(again.predict_p(test, grid), predictor.predict_p(test, grid))
    left_out = predictor.leave_one_out(alpha=0.1)
    assert 0.85 < left_out.covers(predictor.calibration_.labels).mean() < 0.95
    assert audit(predictor, alpha=0.1) is not None
    more = make_outputs(50, seed=5)
    np.testing.assert_array_equal(
        again.update(more).predict_set(test).thresholds,
        predictor.update(more).predict_set(test).thresholds,
    )
    assert predictor.n_calibration_ == 350


def test_several_quantiles_give_several_functions(make_outputs):
    basis = Learned((0.5, 0.9), n_components=0, n_trees=5)
    predictor = ConditionalConformal(basis=basis, tuning_fraction=0.4)
    predictor.calibrate(make_outputs(400, features=None))
    assert "2 learned quantiles" in predictor.summary()
    columns = predictor.conditions_on.design(make_outputs(300, seed=4, features=None))
    assert columns.shape == (300, 3)
    assert (columns[:, 1] <= columns[:, 2]).mean() > 0.9
    assert not predictor.uses_features


def test_any_regressor_takes_part_is_copied_and_not_saved(make_outputs, tmp_path):
    samples, test = make_outputs(400), make_outputs(50, seed=3)
    linear = LinearRegression()
    basis = Learned(n_components=0, regressor=linear) + Intercept()
    predictor = ConditionalConformal(basis=basis).calibrate(samples)
    assert np.ptp(predictor.predict_set(test).thresholds) > 0.0
    assert not hasattr(linear, "coef_"), "the regressor is copied, not fitted"
    with pytest.raises(StorageError, match="LinearRegression cannot be saved"):
        predictor.save(tmp_path / "model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantiles": (0.5, 1.0)}, "quantiles"),
        ({"quantiles": ()}, "quantiles"),
        ({"n_leaves": 1}, "n_leaves"),
    ],
)
def test_wrong_parameters_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        Learned(**change)


def test_a_regressor_that_predicts_no_number_is_refused(make_outputs):
    class Broken:
        def fit(self, table, scores):
            return self

        def predict(self, table):
            return np.full(len(table), np.nan)

    predictor = ConditionalConformal(basis=Learned(regressor=Broken()))
    with pytest.raises(InputError, match="finite number"):
        predictor.calibrate(make_outputs(300))
    with pytest.raises(InputError, match="nonconformity scores"):
        Learned().fit(make_outputs(10))


def test_penalised_components_have_unit_variance_and_training_directions(make_outputs, trust):
    train = make_outputs(300, seed=9)
    basis = PrincipalComponents(2, penalty=5.0, source="training")
    fitted = basis.fit_parts(make_outputs(5), make_outputs(50), training=train.features)
    columns = fitted.design(ModelOutputs(logits=train.logits, features=train.features))
    np.testing.assert_allclose(columns[:, 1:].std(axis=0, ddof=1), 1.0)
    np.testing.assert_allclose(np.cov(columns[:, 1:].T)[0, 1], 0.0, atol=1e-10)
    np.testing.assert_array_equal(fitted.penalty_rows(train), 5.0 * np.eye(3)[1:])
    predictor = ConditionalConformal(basis=basis, trust=trust).calibrate(make_outputs(200))
    np.testing.assert_array_equal(predictor.conditions_on.directions, fitted.directions)


def test_leading_directions_are_those_of_an_exact_decomposition():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 20)) * np.geomspace(10.0, 0.1, 20)
    outputs = ModelOutputs(logits=rng.normal(size=(500, 2)), features=features)
    fast = PrincipalComponents(4, source="training").fit(outputs)
    exact = PrincipalComponents(4).fit(outputs)
    np.testing.assert_allclose(np.abs(fast.directions @ exact.directions.T), np.eye(4), atol=1e-5)


def test_constant_features_do_no_harm(make_outputs, trust):
    features = np.tile([1.0, 2.0, 3.0], (300, 1))
    samples = make_outputs(300, features=features, groups=None)
    basis = Intercept() + PrincipalComponents(2, penalty=1.0, source="training")
    sets = ConditionalConformal(basis=basis).calibrate(samples).predict_set(samples)
    assert np.ptp(sets.thresholds) == 0.0
