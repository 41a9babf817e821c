import numpy as np
import pytest

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
)
from trustsets.basis import Sum
from trustsets.learned import (
    COMPONENT_PENALTY,
    COMPONENTS,
    FEWEST_TO_LEARN,
    GROUP_PENALTY,
    LEARNED,
    _best,
    choose_basis,
)


@pytest.fixture
def trust(make_outputs):
    train = make_outputs(300, seed=9)
    return TrustScore().fit(train.features, train.labels)


def test_a_direction_that_one_sample_alone_has_does_not_spoil_the_choice():
    """Folds without it cannot fit it; the losses stay numbers, and nothing warns."""
    logits = np.zeros((200, 3))
    logits[0, 0] = 5.0
    tuning = ModelOutputs(logits=logits, labels=np.zeros(200, dtype=int))
    choice = choose_basis(tuning, np.random.default_rng(0).exponential(size=200))
    assert len(choice.candidates) > 1
    assert np.isfinite(choice.losses).all()
    assert np.isfinite(choice.errors).all()


def test_what_clearly_predicts_better_is_taken(make_outputs):
    tuning = make_outputs(600, groups=None, features=None)
    rank = np.argsort(np.argsort(tuning.confidence)) / 600
    noise = np.random.default_rng(0).exponential(size=600)
    wavy = choose_basis(tuning, np.cos(12.0 * rank) + 0.01 * noise)
    assert wavy.basis == Polynomial(5, (Confidence(transform="rank"),), penalty=2.0)
    assert wavy.losses[wavy.chosen] == wavy.losses.min()
    assert "is lower than that of" in wavy.sentence
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
    assert learned is None
    assert not any("learned" in name for name in choice.candidates)
    # Training features can give more components than so few tuning samples.
    few = make_outputs(120, groups=None, features=rng.normal(size=(120, 30)))
    training = rng.normal(size=(400, 30))
    scores = rng.exponential(size=120) + 2.0 * few.confidence
    assert with_components(few, scores)[1].n_components == 6
    assert with_components(few, scores, training)[1].n_components == COMPONENTS


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
