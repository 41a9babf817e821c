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
from trustsets.errors import InputError, NotCalibratedError
from trustsets.metrics import FrequencyBins, binomial_interval
from trustsets.statistics import Confidence

FEW = {"metrics": ("class", "groups"), "n_bootstrap": 20}
METHODS = {
    "standard": StandardConformal(),
    "class": MondrianConformal(by="class"),
    "conditional": ConditionalConformal(
        basis=Polynomial(1, of=(Confidence(),)), per_class=False, tuning_fraction=0.3
    ),
}


def simulated(n=60, seed=0, **more):
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(n, 4))
    labels = (logits / 2.0 + rng.gumbel(size=(n, 4))).argmax(axis=1)
    groups = {"site": rng.choice(["a", "b"], n)}
    return ModelOutputs(
        logits=logits,
        labels=labels,
        groups=groups,
        features=rng.normal(size=(n, 2)),
        classes=np.arange(4),
        **more,
    )


@pytest.mark.parametrize("name", METHODS)
def test_an_audit_evaluates_the_sets_of_n_refits(name):
    """Every set that differs from that of its refit fails for sure."""
    outputs = simulated()
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


def test_trust_and_tuning_samples_of_the_calibration_are_used():
    trust = np.random.default_rng(2).random(90)
    outputs, tuning = simulated(trust=trust[:60]), simulated(30, seed=5, trust=trust[60:])
    predictor = StandardConformal().calibrate(outputs)
    result = audit(predictor, metrics=("conf_trust",))
    same = evaluate(predictor.leave_one_out(), outputs, metrics=("conf_trust",))
    assert result.tables["conf_trust"].gap == same.tables["conf_trust"].gap
    tuned = METHODS["conditional"].__sklearn_clone__().calibrate(outputs, tuning=tuning)
    result = audit(tuned, metrics=("conf_trust",))
    assert result.n == result.n_calibration == 60
    assert result.rows.tolist() == tuned.calibration_rows_.tolist()
    assert np.array_equal(tuned.calibration_.trust, trust[:60])


def test_class_frequencies_are_those_of_the_calibration():
    predictor = METHODS["conditional"].__sklearn_clone__().calibrate(simulated(200))
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


def test_alpha_is_read_as_everywhere_else():
    predictor, alpha = StandardConformal().calibrate(simulated()), np.float32(0.2)
    assert audit(predictor, alpha, **FEW).alpha == predictor.leave_one_out(alpha).alpha == 0.2


def test_the_gap_of_groups_that_the_method_adjusts_for_says_nothing():
    """Left-out coverage of its own groups is fixed: any other count fails for sure."""
    outputs = simulated(400)
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
    ],
)
def test_bad_arguments_are_named(change, words):
    options = {"predictor": StandardConformal().calibrate(simulated())} | change
    with pytest.raises(InputError, match=words):
        audit(**options)


def test_a_predictor_without_its_samples_cannot_be_audited(tmp_path):
    predictor = StandardConformal()
    with pytest.raises(NotCalibratedError):
        audit(predictor)
    predictor.calibrate(simulated()).save(tmp_path / "model.trustsets")
    with pytest.raises(NotCalibratedError, match="do not hold the calibration samples"):
        audit(load(tmp_path / "model.trustsets"))
