import numpy as np
import pytest

from trustsets import ModelOutputs, StandardConformal
from trustsets.auditing import ExcessRisk, excess_risk
from trustsets.errors import InputError
from trustsets.metrics import risk as risk_module
from trustsets.metrics.risk import Covariate


def slow_halves(predicted, covered, target):
    """The definition, one sample at a time."""
    under = over = 0.0
    for h, hit in zip(predicted.tolist(), covered.tolist(), strict=True):
        if h < target:
            under += target - hit
        elif h > target:
            over += hit - target
    return 100.0 * under / len(covered), 100.0 * over / len(covered)


def test_numbers_follow_the_definition_and_hang_together(make_samples, draw):
    outputs, trust = make_samples(600)
    covered = draw(trust > 1.5, inside=0.75, elsewhere=0.95)
    found = excess_risk(covered, outputs.with_trust(trust), alpha=0.1, n_permutations=0)
    under, over = slow_halves(found.predicted, covered, 0.9)
    assert found.under.value == pytest.approx(under) and found.over.value == pytest.approx(over)
    assert found.total.value == pytest.approx(under + over)
    assert under - over == pytest.approx(100.0 * (0.9 - covered.mean()))
    assert np.isnan(found.p_value) and np.isnan(found.under.floor)


def test_a_prediction_does_not_depend_on_the_outcomes_of_its_fold():
    rng = np.random.default_rng(0)
    columns = [Covariate("x", "trust", rng.normal(size=300))]
    covered = rng.random(300) < 0.8
    folds = rng.permutation(300) % 5
    before = risk_module._cross_fitted(columns, covered, folds)
    for fold in range(5):
        changed = np.where(folds == fold, ~covered, covered)
        after = risk_module._cross_fitted(columns, changed, folds)
        assert (after[folds == fold] == before[folds == fold]).all()
        assert (after[folds != fold] != before[folds != fold]).any()


def test_planted_misses_are_found_and_permuted_ones_are_not(make_samples, draw):
    outputs, trust = make_samples(1500)
    region = trust <= 1.4
    found = excess_risk(
        draw(region, 0.8, 0.975), outputs.with_trust(trust), alpha=0.1, n_permutations=4
    )
    truth = 100.0 * region.mean() * 0.1
    assert 0.6 * truth < found.under.value < 1.3 * truth
    assert found.under.lower < truth
    assert found.p_value == 1 / 5 and abs(found.under.floor) < 1.5
    even = excess_risk(
        draw(region, 0.9, 0.9), outputs.with_trust(trust), alpha=0.1, n_permutations=4
    )
    assert even.under.value < 1.5 and even.p_value > 1 / 5


def test_monotone_changes_of_a_column_change_nothing(make_samples, draw):
    outputs, trust = make_samples(400)
    covered = draw(trust <= 1.4)
    plain, changed = (
        excess_risk(covered, outputs.with_trust(values), alpha=0.1, n_permutations=0)
        for values in (trust, np.where(trust > 2.5, np.inf, trust) * 1e-300)
    )
    rest = excess_risk(covered, outputs.with_trust(trust**3), alpha=0.1, n_permutations=0)
    assert (rest.predicted == plain.predicted).all()
    assert np.isfinite(changed.predicted).all()


def test_sets_add_their_size_and_json_keeps_the_numbers(make_samples):
    outputs, trust = make_samples(200)
    sets = StandardConformal().calibrate(outputs).predict_set(outputs, alpha=0.1)
    found = excess_risk(sets, outputs.with_trust(trust), n_permutations=1)
    assert "set size" in found.inputs and "true class" not in found.inputs
    assert found.inputs[-1] == "principal components of the features"
    again = ExcessRisk.from_json(found.to_json())
    assert again.to_dict() == found.to_dict()


@pytest.mark.parametrize("fill", [True, False])
def test_all_covered_or_all_missed_needs_no_classifier(fill, make_samples):
    outputs, trust = make_samples(60)
    found = excess_risk(np.full(60, fill), outputs.with_trust(trust), alpha=0.1, n_permutations=2)
    assert found.over.value == pytest.approx(10.0 if fill else 0.0)
    assert found.under.value == pytest.approx(0.0 if fill else 90.0)
    assert found.p_value == 1.0 and found.total.value == pytest.approx(found.total.floor)


def test_more_categories_than_a_histogram_holds_are_allowed():
    n = 900
    own = np.random.default_rng(1).permutation(600)[np.arange(n) % 600]
    groups = {"own": own}
    outputs = ModelOutputs(logits=np.zeros((n, 2)), groups=groups)
    covered = np.random.default_rng(0).random(n) < 0.9
    table, categories = risk_module.classifier_inputs(
        [Covariate("own", "groups", own * 1.0, tuple(map(str, range(600))))]
    )
    assert categories == [0] and table.max() == 254
    # The rarest become one, and the others stay apart.
    joined, sizes = table[:, 0] == 254, np.bincount(own)[own]
    assert sizes[~joined].min() >= sizes[joined].max()
    assert len({*zip(own[~joined], table[~joined, 0], strict=True)}) == 254
    found = excess_risk(covered, outputs, alpha=0.1, by=("groups",), n_permutations=0)
    assert np.isfinite(found.total.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_permutations": -1}, "n_permutations"),
        ({"level": 0.0}, "level"),
        ({"alpha": 1.5}, "alpha must lie strictly between"),
        ({"by": ("components",)}, "needs features"),
        ({"by": ("groups",)}, "needs group columns"),
    ],
)
def test_bad_arguments_are_named(changes, words):
    outputs = ModelOutputs(logits=np.zeros((60, 2)))
    with pytest.raises(InputError, match=words):
        excess_risk(np.ones(60), outputs, **({"alpha": 0.1} | changes))
    with pytest.raises(InputError, match="at least 50"):
        excess_risk(np.ones(49), outputs.take(np.arange(49)), alpha=0.1)
