"""An audit is an evaluation of sets from n refits; its intervals hold what they say."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import trustsets
from trustsets import (
    APS,
    ConditionalConformal,
    Groups,
    InputError,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    audit,
    evaluate,
)
from trustsets.auditing import excess_risk, leave_out
from trustsets.metrics import Evaluation
from trustsets.metrics.inference import binomial_interval
from trustsets.predictors import Predictor
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
    outputs = simulated()
    result = audit(METHODS[name], outputs, alpha=0.2, **FEW)
    whole = METHODS[name].__sklearn_clone__().calibrate(outputs)
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


@pytest.fixture
def no_calibration(monkeypatch):
    """After it is called, calibrating is an error."""

    def refuse(*_, **__):
        raise AssertionError("calibrated again")

    return lambda: monkeypatch.setattr(Predictor, "calibrate", refuse)


@pytest.mark.parametrize("name", METHODS)
def test_a_predictor_that_knows_the_samples_is_not_calibrated_again(name, no_calibration):
    rows = np.random.default_rng(1).permutation(1000)[:60]
    predictor = METHODS[name].__sklearn_clone__().calibrate(simulated(rows=rows))
    no_calibration()
    left = leave_out(predictor, simulated(rows=rows))
    assert left.predictor is predictor


@pytest.mark.parametrize("change", ["labels", "logits", "groups", "rows", "fewer", "classes"])
def test_other_samples_calibrate_a_copy(change):
    outputs = simulated()
    predictor = METHODS["conditional"].__sklearn_clone__().calibrate(outputs)
    state = predictor.state_
    parts = {
        "logits": outputs.logits,
        "labels": outputs.labels.copy(),
        "groups": outputs.groups,
        "features": outputs.features,
        "classes": outputs.classes,
        "rows": outputs.rows,
    }
    place = int(predictor.calibration_rows_[0])
    if change == "labels":
        parts["labels"][place] = (parts["labels"][place] + 1) % 4
    elif change == "logits":
        parts["logits"] = outputs.logits + 0.5 * np.eye(60, 4, -place)
    elif change == "groups":
        parts["groups"] = {"site": np.where(np.arange(60) == place, "c", outputs.groups["site"])}
    elif change == "rows":
        parts["rows"] = outputs.rows + 100
    elif change == "classes":
        parts |= {
            "classes": np.array(list("abcd")),
            "labels": np.array(list("abcd"))[outputs.codes],
        }
    other = ModelOutputs(**parts)
    other = other.take(np.arange(59)) if change == "fewer" else other
    left = leave_out(predictor, other)
    assert left.predictor is not predictor and predictor.state_ is state
    assert set(left.outputs.rows) <= set(other.rows)


def test_trust_values_and_tuning_samples_are_passed_on():
    outputs, tuning = simulated(), simulated(30, seed=5)
    trust = np.random.default_rng(2).random(90)
    result = audit(StandardConformal(), outputs, trust=trust[:60], metrics=("conf_trust",))
    direct = StandardConformal().calibrate(outputs)
    same = evaluate(direct.leave_one_out(), outputs, trust[:60], metrics=("conf_trust",))
    assert result.tables["conf_trust"].gap == same.tables["conf_trust"].gap
    left = leave_out(METHODS["conditional"], outputs, tuning=tuning, trust=trust)
    assert len(left.outputs) == 60 and left.predictor.state_.n_tuning == 30
    assert np.array_equal(left.trust, trust[:60])


def test_the_excess_risk_is_among_the_metrics_and_json_keeps_it(monkeypatch):
    quick = partial(excess_risk, n_permutations=0)
    monkeypatch.setattr("trustsets.auditing.left_out.excess_risk", quick)
    outputs = simulated(100)
    result = audit(StandardConformal(), outputs, risk=True, level=0.9, seed=3, **FEW)
    sets = StandardConformal().calibrate(outputs).leave_one_out()
    direct = quick(sets, outputs, level=0.9, seed=3)
    assert repr(result.metrics["excess_risk.under"]) == repr(direct.under)
    again = Evaluation.from_json(result.to_json())
    assert again.left_out and repr(again.more) == repr(result.more)
    assert "Excess risk shortfall" in result.to_markdown()
    plain = evaluate(sets, outputs, **FEW)
    assert not plain.left_out and not plain.more


@pytest.mark.parametrize("n", [1, 2, 9, 10, 11, 37, 250, 1000, 9999])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.3, 0.5])
def test_intervals_hold_the_law_of_coverage_given_the_calibration(n, alpha):
    """The theorem of the docstring: left-out coverage is fixed and the truth has a Beta law."""
    scores = np.random.default_rng(n).random(n)
    left = trustsets.predictors.leave_one_out.quantiles_without(
        scores, np.zeros(n, dtype=np.int64), (alpha,)
    )[0][:, 0]
    covered = int((scores <= left).sum())
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


def test_the_gap_of_groups_that_the_method_adjusts_for_says_nothing():
    """Left-out coverage of its own groups is fixed, as the page and the guarantees say."""
    outputs = simulated(400)
    score, by = APS(own_mass="include"), Groups("site")
    own = MondrianConformal(by, score=score, allow_empty=True)
    table = audit(own, outputs, **FEW).tables["group:site"]
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
    result = audit(StandardConformal(), outputs)
    assert result.n == n and 0.0 <= result.coverage.lower <= result.coverage.upper <= 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": [0.1, 0.2]}, "alpha must be one number"),
        ({"alpha": 0.0}, "alpha"),
        ({"predictor": SimpleNamespace()}, "predictor must be a predictor"),
        ({"calibration": ModelOutputs(logits=np.zeros((5, 2)))}, "labels"),
        ({"level": 2.0}, "level"),
        ({"metrics": ("balls", "nonsense")}, "nonsense"),
    ],
)
def test_bad_arguments_are_named(change, words):
    given = {"predictor": StandardConformal(), "calibration": simulated()} | change
    with pytest.raises(InputError, match=words):
        audit(**given)
