"""Functions that were learned from tuning samples, and the choice among function classes."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from trustsets import (
    Bins,
    ConditionalConformal,
    Confidence,
    Groups,
    Intercept,
    Learned,
    ModelOutputs,
    Polynomial,
    PrincipalComponents,
    Status,
    TrustScore,
    audit,
    load,
)
from trustsets.basis import Sum
from trustsets.errors import InputError, StorageError
from trustsets.learned import (
    COMPONENT_PENALTY,
    COMPONENTS,
    FEWEST_TO_LEARN,
    GROUP_PENALTY,
    LEARNED,
    Trees,
    _best,
    choose_basis,
)

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
    one, other = (each.predict_set(test, [0.05, 0.2]) for each in (again, predictor))
    np.testing.assert_array_equal(one.thresholds, other.thresholds)
    alone = [again.predict_set(test[i]).thresholds[0] for i in range(0, 60, 9)]
    np.testing.assert_array_equal(alone, predictor.predict_set(test).thresholds[::9])
    grid = [0.05, 0.1, 0.3]
    np.testing.assert_array_equal(again.predict_p(test, grid), predictor.predict_p(test, grid))
    left_out = predictor.leave_one_out(alpha=0.1)
    assert 0.85 < left_out.covers(predictor.calibration_.labels).mean() < 0.95
    assert audit(predictor, alpha=0.1).set_sizes.tolist() == left_out.sizes.tolist()
    more = make_outputs(50, seed=5)
    one, other = (each.update(more).predict_set(test) for each in (again, predictor))
    np.testing.assert_array_equal(one.thresholds, other.thresholds)
    assert predictor.n_calibration_ == 350


def test_several_quantiles_give_several_functions(make_outputs):
    basis = Learned((0.5, 0.9), n_components=0, n_trees=5)
    predictor = ConditionalConformal(basis=basis, tuning_fraction=0.4)
    predictor.calibrate(make_outputs(400, features=None))
    assert "2 learned quantiles" in predictor.summary()
    columns = predictor.conditions_on.design(make_outputs(300, seed=4, features=None))
    assert columns.shape == (300, 3) and (columns[:, 1] <= columns[:, 2]).mean() > 0.9
    assert not predictor.uses_features
    many = make_outputs(50, 8, features=None)
    largest = predictor.conditions_on.table(many)[:, :5]
    np.testing.assert_array_equal(largest, np.sort(many.probabilities, axis=1)[:, -5:])


def test_any_regressor_takes_part_is_copied_and_not_saved(make_outputs, tmp_path):
    samples, test = make_outputs(400), make_outputs(50, seed=3)
    linear = LinearRegression()
    basis = Learned(n_components=0, regressor=linear) + Intercept()
    predictor = ConditionalConformal(basis=basis).calibrate(samples)
    assert np.ptp(predictor.predict_set(test).thresholds) > 0.0
    assert not hasattr(linear, "coef_"), "the regressor is copied, not fitted"
    with pytest.raises(StorageError, match="LinearRegression cannot be saved"):
        predictor.save(tmp_path / "model")


@pytest.mark.parametrize("change", [{"quantiles": (0.5, 1.0)}, {"quantiles": ()}, {"n_leaves": 1}])
def test_wrong_parameters_are_refused(change):
    with pytest.raises(InputError, match=next(iter(change))):
        Learned(**change)


@pytest.mark.parametrize("wrong", [np.nan, "a", [1.0], None])
def test_a_regressor_that_predicts_no_number_is_refused(make_outputs, wrong):
    class Broken:
        def fit(self, table, scores):
            return self

        def predict(self, table):
            return [wrong] * len(table)

    predictor = ConditionalConformal(basis=Learned(regressor=Broken()))
    with pytest.raises(InputError, match="finite number"):
        predictor.calibrate(make_outputs(300))
    with pytest.raises(InputError, match="nonconformity scores"):
        Learned().fit(make_outputs(10))


def test_penalised_components_have_unit_variance_and_training_directions(make_outputs, trust):
    train = make_outputs(300, seed=9)
    basis = PrincipalComponents(2, penalty=5.0, source="training")
    fitted = basis.fit_parts(make_outputs(5), make_outputs(50), training=train.features)
    # Bit for bit, also where features are stored by columns, as in a table.
    columns = fitted.design(train.replace(features=np.asfortranarray(train.features)))
    np.testing.assert_array_equal(columns, fitted.design(train))
    np.testing.assert_allclose(np.cov(columns[:, 1:].T), np.eye(2), atol=1e-10)
    np.testing.assert_array_equal(fitted.penalty_rows(train), 5.0 * np.eye(3)[1:])
    predictor = ConditionalConformal(basis=basis, trust=trust).calibrate(make_outputs(200))
    np.testing.assert_array_equal(predictor.conditions_on.directions, fitted.directions)
    # A direction in which features vary by rounding alone is left out.
    flat = basis.fit_features(np.outer(train.features[:, 0], [1.0, 0.3, 0.7]))
    assert flat.directions[0].any() and not flat.directions[1].any()
    # Without training features they come from the tuning samples, and never from calibration.
    tuning = make_outputs(50)
    plain = basis.fit_parts(make_outputs(40, seed=1), tuning)
    np.testing.assert_array_equal(plain.directions, basis.fit(tuning).directions)
    basis = PrincipalComponents(2, source="tuning")
    chosen = basis.fit_parts(make_outputs(40, seed=1), tuning, training=train.features)
    np.testing.assert_array_equal(chosen.directions, basis.fit(tuning).directions)


def test_leading_directions_are_those_of_an_exact_decomposition():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 20)) * np.geomspace(10.0, 0.1, 20)
    outputs = ModelOutputs(logits=rng.normal(size=(500, 2)), features=features)
    fast, exact = (PrincipalComponents(4, source=s).fit(outputs) for s in ("training", "tuning"))
    np.testing.assert_allclose(np.abs(fast.directions @ exact.directions.T), np.eye(4), atol=1e-5)


def test_constant_features_do_no_harm(make_outputs, trust):
    samples = make_outputs(300, features=np.tile([1.0, 2.0, 3.0], (300, 1)), groups=None)
    basis = Intercept() + PrincipalComponents(2, penalty=1.0, source="training")
    sets = ConditionalConformal(basis=basis).calibrate(samples).predict_set(samples)
    assert np.ptp(sets.thresholds) == 0.0


def test_a_direction_that_one_sample_alone_has_does_not_spoil_the_choice():
    """Folds without it cannot fit it; the losses stay numbers, and nothing warns."""
    logits = np.zeros((200, 3))
    logits[0, 0] = 5.0
    tuning = ModelOutputs(logits=logits, labels=np.zeros(200, dtype=int))
    choice = choose_basis(tuning, np.random.default_rng(0).exponential(size=200))
    assert len(choice.candidates) > 1 and np.isfinite([*choice.losses, *choice.errors]).all()
    # It counts as one at the largest score, which is no loss where all scores are equal.
    assert choose_basis(tuning, np.ones(200)).losses == pytest.approx(0.0)


def test_what_clearly_predicts_better_is_taken(make_outputs):
    tuning = make_outputs(600, groups=None, features=None)
    rank = np.argsort(np.argsort(tuning.confidence)) / 600
    noise = np.random.default_rng(0).exponential(size=600)
    wavy = choose_basis(tuning, np.cos(12.0 * rank) + 0.01 * noise)
    assert wavy.basis == Polynomial(5, (Confidence(transform="rank"),), penalty=2.0)
    assert wavy.losses[wavy.chosen] == wavy.losses.min()
    assert f"standard error {wavy.errors[wavy.chosen]:.2g}" in wavy.sentence.split("lower than")[1]
    sloped = choose_basis(tuning, 3.0 * rank + noise)
    # Another has the lowest loss, by chance alone: that is not enough.
    assert sloped.losses.argmin() != 0
    assert sloped.chosen == 0
    assert sloped.basis == Polynomial(5, (Confidence(transform="rank"),), penalty=10.0)
    assert "had a clearly lower pinball loss" in sloped.sentence
    assert choose_basis(tuning, noise).basis == Intercept()
    cells = choose_basis(tuning, (rank * 6.0).astype(int) % 2 + 0.01 * noise)
    assert cells.basis == Bins(Confidence(), counts=6)


def with_components(tuning, scores, training=None):
    choice = choose_basis(tuning, scores, training)
    parts = choice.basis.parts if isinstance(choice.basis, Sum) else (choice.basis,)
    kinds = {type(part): part for part in parts}
    return choice, kinds.get(PrincipalComponents), kinds.get(Learned)


def test_components_of_the_features_take_part_and_nothing_is_learned_from_few(make_outputs):
    rng = np.random.default_rng(3)
    n = FEWEST_TO_LEARN - 1
    tuning = make_outputs(n, groups=None, features=rng.normal(size=(n, 30)))
    scores = rng.exponential(size=n) + 2.0 * tuning.confidence
    choice, components, learned = with_components(tuning, scores)
    assert components == PrincipalComponents(
        min(COMPONENTS, n // 20), COMPONENT_PENALTY, source="training"
    )
    assert learned is None and not any("learned" in name for name in choice.candidates)
    # Training features can give more components than so few tuning samples.
    few = make_outputs(120, groups=None, features=rng.normal(size=(120, 30)))
    training = rng.normal(size=(400, 30))
    scores = rng.exponential(size=120) + 2.0 * few.confidence
    assert with_components(few, scores)[1].n_components == 6
    assert with_components(few, scores, training)[1].n_components == COMPONENTS
    assert with_components(few, scores, training[:8])[1].n_components == 8


def test_a_learned_function_is_taken_only_where_it_predicts_better(make_outputs):
    rng = np.random.default_rng(4)
    features = rng.normal(size=(900, 3)) * [3.0, 2.0, 1.0]
    tuning = make_outputs(900, groups=None, features=features)
    noise = rng.exponential(size=900)
    # A product of two components is no linear function of them.
    signs = np.sign(features[:, 0] * features[:, 1])
    crossed, components, learned = with_components(tuning, noise * (2.0 + 1.8 * signs))
    assert learned == LEARNED and components is not None
    assert crossed.losses[0] < crossed.losses[1]
    plain, _, learned = with_components(tuning, noise + 2.0 * tuning.confidence)
    assert learned is None
    assert plain.losses[0] <= plain.losses[1]
    assert any("learned" in name for name in plain.candidates)


def test_few_tuning_samples_give_few_columns(make_outputs):
    sizes = {}
    for n in (10, 60, 200):
        choice = choose_basis(make_outputs(n), np.arange(float(n)))
        sizes[n] = max(part.count("degree 5") for part in choice.candidates)
    assert sizes == {10: 0, 60: 1, 200: 1}
    few = choose_basis(make_outputs(5, groups=None), np.arange(5.0))
    assert few.basis == Intercept()
    assert "constant functions: the tuning samples are too few to compare" in few.sentence


def test_groups_take_part_unless_they_name_samples(make_outputs):
    site = np.tile(["a", "b"], 200)
    groups = {"site": site, "patient": np.arange(400), "constant": np.zeros(400)}
    tuning = make_outputs(400, groups=groups)
    choice = choose_basis(tuning, np.random.default_rng(0).exponential(size=400))
    assert choice.groups == ("site",)
    assert choice.basis.parts[-1] == Groups("site", penalty=GROUP_PENALTY)
    assert "few or no calibration samples" in choice.sentence
    assert "indicators of the groups by site" in choice.sentence


def test_every_group_seen_in_calibration_has_its_own_threshold(make_outputs, trust):
    """Group names come from the calibration samples, not from the few used for tuning."""
    tuning = make_outputs(200, groups={"site": np.tile(["a", "b"], 100)})
    calibration = make_outputs(300, groups={"site": np.repeat(["a", "b", "c"], 100)})
    predictor = ConditionalConformal(trust=trust).calibrate(calibration, tuning=tuning)
    assert predictor.conditions_on.parts[-1].values == (("a", "b", "c"),)
    assert predictor.choice_.sentence in predictor.summary()
    sets = predictor.predict_set(make_outputs(30, groups={"site": np.full(30, "c")}))
    assert (sets.status == Status.EXACT).any()


@pytest.mark.parametrize(("gain", "chosen"), [(1.9, 0), (2.1, 1)])
def test_another_candidate_must_win_by_two_standard_errors_of_the_difference(gain, chosen):
    """Differences of -gain +- 10 in 100 samples have standard error 1."""
    noise = 10.0 * np.resize([1.0, -1.0], 100)
    first = 50.0 + 30.0 * np.sin(np.arange(100.0))
    losses = np.column_stack([first, first - gain + noise, first + 1.0])
    number, means, errors = _best(losses)
    np.testing.assert_allclose(means, losses.mean(axis=0))
    np.testing.assert_allclose(errors, [0.0, 1.0, 0.0], atol=1e-12)
    assert number == chosen


def test_rounding_does_not_decide():
    losses = np.full((50, 3), 0.1)
    losses[:, 2] -= 1e-16
    assert _best(losses)[0] == 0
    losses[:, 2] -= 1e-6
    assert _best(losses)[0] == 2
