"""An audit is an evaluation of sets from n refits; its intervals hold what they say."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from trustsets import (
    APS,
    ConditionalConformal,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Softmax,
    StandardConformal,
    audit,
    evaluate,
    load,
)
from trustsets.auditing import ExcessRisk, excess_risk
from trustsets.errors import InputError, NotCalibratedError
from trustsets.metrics import FrequencyBins, binomial_interval
from trustsets.metrics import risk as risk_module
from trustsets.metrics.risk import Covariate
from trustsets.statistics import Confidence

FEW = {"metrics": ("class", "groups"), "n_bootstrap": 20}
METHODS = {
    "standard": StandardConformal(),
    "class": MondrianConformal(by="class"),
    "conditional": ConditionalConformal(
        basis=Polynomial(1, of=(Confidence(),)), per_class=False, tuning_fraction=0.3
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_audit_evaluates_the_sets_of_n_refits(name, make_outputs):
    """Every set that differs from that of its refit fails for sure."""
    outputs = make_outputs(60, 4)
    whole = METHODS[name].__sklearn_clone__().calibrate(outputs)
    result = audit(whole, alpha=0.2, **FEW)
    kept, tuned = (np.isin(outputs.rows, whole.calibration_rows_, invert=i) for i in (False, True))
    rows, covered, sizes = np.flatnonzero(kept), [], []
    for i in rows:
        rest = outputs.take(rows[rows != i])
        tuning = outputs.take(np.flatnonzero(tuned)) if tuned.any() else None
        left = METHODS[name].__sklearn_clone__().calibrate(rest, tuning=tuning)
        own = left.predict_set(outputs.take([i]), alpha=0.2)
        covered.append(bool(own.covers(outputs.take([i]).labels)[0]))
        sizes.append(int(own.sizes[0]))
    order = np.argsort(result.rows)
    assert result.rows[order].tolist() == rows.tolist()
    assert result.covered[order].tolist() == covered
    assert result.set_sizes[order].tolist() == sizes
    assert result.left_out and result.n == rows.size


def test_trust_and_tuning_samples_of_the_calibration_are_used(make_outputs):
    trust = np.random.default_rng(2).random(90)
    outputs = make_outputs(60, 4, trust=trust[:60])
    tuning = make_outputs(30, 4, seed=5, trust=trust[60:])
    predictor = StandardConformal().calibrate(outputs)
    result = audit(predictor, metrics=("conf_trust",))
    same = evaluate(predictor.leave_one_out(), outputs, metrics=("conf_trust",))
    assert result.tables["conf_trust"].gap == same.tables["conf_trust"].gap
    tuned = METHODS["conditional"].__sklearn_clone__().calibrate(outputs, tuning=tuning)
    result = audit(tuned, metrics=("conf_trust",))
    assert result.n == result.n_calibration == 60
    assert result.rows.tolist() == tuned.calibration_rows_.tolist()
    assert np.array_equal(tuned.calibration_.trust, trust[:60])


def test_class_frequencies_are_those_of_the_calibration(make_outputs):
    predictor = METHODS["conditional"].__sklearn_clone__().calibrate(make_outputs(200, 4))
    table = audit(predictor, metrics=("conf_frequency",)).tables["conf_frequency"]
    assert table.axes[1] == "Class frequency in calibration (%)"
    bins = {"conf_frequency": FrequencyBins([1, 2, 30, 40], counts=(2, 2))}
    asked = audit(predictor, metrics=("conf_frequency",), bins=bins).tables["conf_frequency"]
    assert asked.shape == (2, 2) != table.shape


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # one class has all labels
@pytest.mark.parametrize("n", [1, 2, 9, 10, 11, 37, 250, 1000, 9999])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.3, 0.5])
def test_intervals_hold_the_law_of_coverage_given_the_calibration(n, alpha):
    """Left-out coverage is fixed and the truth has a Beta law: other quantiles fail for sure."""
    scores = np.random.default_rng(n).random(n)
    probabilities = np.stack([1.0 - scores, scores], axis=1)
    outputs = ModelOutputs(probabilities=probabilities, labels=np.zeros(n, int), classes=[0, 1])
    predictor = StandardConformal(score=Softmax(), allow_empty=True).calibrate(outputs)
    covered = int(predictor.leave_one_out(alpha).covers(outputs.labels).sum())
    rank = math.ceil(round((1.0 - alpha) * (n + 1), 9))
    lower, upper = binomial_interval(covered, n, 0.95)
    if rank > n:  # the threshold is infinite and the true coverage 1
        assert upper == 1.0
        return
    law = stats.beta(rank, n + 1 - rank)
    assert lower <= law.ppf(0.025) + 1e-12 and law.ppf(0.975) - 1e-12 <= upper
    # Not by being much too wide: one of the ends is that of the law.
    ends = [abs(lower - law.ppf(0.025)), abs(upper - law.ppf(0.975))]
    assert min(ends) < 1e-9


def test_alpha_is_read_as_everywhere_else(make_outputs):
    predictor, alpha = StandardConformal().calibrate(make_outputs(60, 4)), np.float32(0.2)
    assert audit(predictor, alpha, **FEW).alpha == predictor.leave_one_out(alpha).alpha == 0.2


def test_the_gap_of_groups_that_the_method_adjusts_for_says_nothing(make_outputs):
    """Left-out coverage of its own groups is fixed: any other count fails for sure."""
    outputs = make_outputs(400, 4)
    score, by = APS(own_mass="include"), Groups("site")
    own = MondrianConformal(by=by, score=score, allow_empty=True)
    table = audit(own.calibrate(outputs), **FEW).tables["group:site"]
    assert table.covered.tolist() == [math.ceil(round(0.9 * n, 9)) for n in table.count]
    assert table.gap.value < 0.25 * table.gap.floor


@pytest.mark.parametrize("family", ["constant", "one class", "huge", "two samples"])
def test_odd_data_are_audited(family):
    n = 2 if family == "two samples" else 50
    rng = np.random.default_rng(0)
    logits = {
        "constant": np.zeros((n, 3)),
        "one class": np.zeros((n, 1)),
        "huge": 1e30 * rng.normal(size=(n, 3)),
        "two samples": np.zeros((n, 3)),
    }[family]
    labels = rng.integers(logits.shape[1], size=n)
    outputs = ModelOutputs(logits=logits, labels=labels, classes=np.arange(logits.shape[1]))
    result = audit(StandardConformal().calibrate(outputs))
    assert result.n == n and 0.0 <= result.coverage.lower <= result.coverage.upper <= 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": [0.1, 0.2]}, "alpha must be one number"),
        ({"predictor": SimpleNamespace()}, "predictor must be a calibrated predictor"),
        ({"predictor": np.zeros((5, 2))}, r"ModelOutputs\(logits=..., labels=...\)\); got ndarray"),
        ({"metrics": ("class", "nonsense")}, "nonsense"),
        ({"alpha": 0.2}, "sets must be those at alpha=0.2; they are at 0.3"),
    ],
)
def test_bad_arguments_are_named(change, words, make_outputs):
    predictor = StandardConformal().calibrate(make_outputs(60, 4))
    options = {"predictor": predictor, "sets": predictor.leave_one_out(0.3), "alpha": 0.3} | change
    with pytest.raises(InputError, match=words):
        audit(**options)


def test_a_predictor_without_its_samples_cannot_be_audited(tmp_path, make_outputs):
    predictor = StandardConformal()
    with pytest.raises(NotCalibratedError):
        audit(predictor)
    predictor.calibrate(make_outputs(60, 4)).save(tmp_path / "model.trustsets")
    with pytest.raises(NotCalibratedError, match="do not hold the calibration samples"):
        audit(load(tmp_path / "model.trustsets"))


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
def test_bad_arguments_of_the_excess_risk_are_named(changes, words):
    outputs = ModelOutputs(logits=np.zeros((60, 2)))
    with pytest.raises(InputError, match=words):
        excess_risk(np.ones(60), outputs, **({"alpha": 0.1} | changes))
    with pytest.raises(InputError, match="at least 50"):
        excess_risk(np.ones(49), outputs.take(np.arange(49)), alpha=0.1)
