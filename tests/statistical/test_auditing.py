"""How often audits raise false alarms, and what their bounds hold, over simulated data sets."""

import numpy as np
import pytest
from scipy import stats

from trustsets import (
    APS,
    ConditionalConformal,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    audit,
)
from trustsets.auditing import excess_risk, find_regions

pytestmark = pytest.mark.statistical

REPEATS = 150


def simulated(rng, n):
    logits = 1.5 * rng.normal(size=(n, 4))
    groups = {"site": rng.choice(list("abcd"), n)}
    labels = rng.integers(4, size=n)
    features = rng.normal(size=(n, 3))
    outputs = ModelOutputs(logits=logits, labels=labels, features=features, groups=groups)
    return outputs, rng.gamma(4.0, 0.4, size=n)


@pytest.mark.parametrize("way", ["independent", "low calibration", "leave-one-out"])
def test_regions_are_reported_by_mistake_at_most_as_often_as_the_level_says(way):
    """A rate of 35% instead of 20% fails with probability 85%, of 40% with 99%.

    Regions that are tested on the half they were found on are reported in 90% of data sets; without
    Fisher's test, in 97% of those where coverage is low everywhere.
    """
    alarms = 0
    for seed in range(REPEATS):
        rng = np.random.default_rng([7, seed])
        outputs, trust = simulated(rng, 600)
        coverage = 0.8 if way == "low calibration" else 0.9
        covered = rng.random(600) < coverage
        if way == "leave-one-out":  # of STANDARD: a fixed number of misses
            covered = rng.permutation(600) >= 60
        alarms += len(find_regions(covered, outputs.with_trust(trust), alpha=0.1, level=0.8)) > 0
    assert stats.binom.sf(alarms - 1, REPEATS, 0.2) > 1e-3


def test_lower_ends_of_excess_risk_are_below_the_true_shortfall():
    """A rate of 50% instead of 10% fails with probability 95%; without cross-fitting it is 100%."""
    above = 0
    for seed in range(25):
        rng = np.random.default_rng([8, seed])
        outputs, trust = simulated(rng, 500)
        rate = np.where(trust <= 1.5, 0.82, 0.96)
        found = excess_risk(
            rng.random(500) < rate,
            outputs.with_trust(trust),
            alpha=0.1,
            level=0.8,
            n_permutations=0,
        )
        above += found.under.lower > 100.0 * np.maximum(0.9 - rate, 0.0).mean()
    assert stats.binom.sf(above - 1, 25, 0.1) > 1e-3


AUDITED = {
    "standard": lambda: StandardConformal(score=APS(), allow_empty=True),
    "by class": lambda: MondrianConformal(by="class"),
    "conditional": lambda: ConditionalConformal(
        basis=Polynomial(3), per_class=False, temperature=None, allow_empty=True
    ),
}


def with_truth(rng, n):
    """Samples of a classifier that is wrong more often at low trust, and P(y | x)."""
    logits, trust = 2.0 * rng.normal(size=(n, 4)), rng.gamma(4.0, 0.4, size=n)
    odds = np.exp(np.clip(trust / 1.5, 0.2, 1.5)[:, None] * logits)
    truth = odds / odds.sum(axis=1, keepdims=True)
    labels = (truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, 3)
    groups = {"trust": np.where(trust < 1.0, "low", np.where(trust < 2.0, "middle", "high"))}
    outputs = ModelOutputs(logits=logits, labels=labels, groups=groups, classes=np.arange(4))
    return outputs, trust, truth


@pytest.mark.parametrize("method", AUDITED)
def test_intervals_of_an_audit_hold_the_coverage_given_this_calibration(method):
    """Intervals of 90% in the place of 95% fail (planted once for each method).

    So does one of the eight that holds in 75% of data sets, with probability 85%.
    studies/audit_intervals.py is the larger version.
    """
    held, repeats, n = np.zeros(8), 60, 300
    for seed in range(repeats):
        rng = np.random.default_rng([9, seed])
        outputs, trust, _ = with_truth(rng, n)
        new, new_trust, truth = with_truth(rng, 2000)
        predictor = AUDITED[method]().calibrate(outputs.with_trust(trust))
        result = audit(predictor, metrics=("class", "groups"), n_bootstrap=1)
        sets = predictor.predict_set(new.with_trust(new_trust))
        own = (sets.mask * truth).sum(axis=1)
        places = np.unique(new.groups["trust"], return_inverse=True)[1]
        by_group = np.bincount(places, own) / np.bincount(places)
        by_class = (sets.mask * truth).sum(axis=0) / truth.sum(axis=0)
        groups, classes = result.tables["group:trust"], result.tables["class"]
        lower = np.r_[result.coverage.lower, groups.lower, classes.lower]
        upper = np.r_[result.coverage.upper, groups.upper, classes.upper]
        true = np.r_[own.mean(), by_group, by_class]
        held += (lower <= true) & (true <= upper)
    # Each of the eight kinds of interval, and about the right number in all.
    assert stats.binom.cdf(held.min(), repeats, 0.95) > 1e-4
    assert 0.93 < held.mean() / repeats < 0.995
