"""How often audits raise false alarms, and what their bounds hold, over simulated data sets."""

import numpy as np
import pytest
from scipy import stats

from trustsets import ModelOutputs
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
    alarms = 0
    for seed in range(REPEATS):
        rng = np.random.default_rng([7, seed])
        outputs, trust = simulated(rng, 600)
        coverage = 0.8 if way == "low calibration" else 0.9
        covered = rng.random(600) < coverage
        if way == "leave-one-out":  # of STANDARD: a fixed number of misses
            covered = rng.permutation(600) >= 60
        alarms += len(find_regions(covered, outputs, trust, alpha=0.1, level=0.8)) > 0
    assert stats.binom.sf(alarms - 1, REPEATS, 0.2) > 1e-3


def test_lower_ends_of_excess_risk_are_below_the_true_shortfall():
    above = 0
    for seed in range(25):
        rng = np.random.default_rng([8, seed])
        outputs, trust = simulated(rng, 500)
        rate = np.where(trust <= 1.5, 0.82, 0.96)
        found = excess_risk(
            rng.random(500) < rate, outputs, trust, alpha=0.1, level=0.8, n_permutations=0
        )
        above += found.under.lower > 100.0 * np.maximum(0.9 - rate, 0.0).mean()
    assert stats.binom.sf(above - 1, 25, 0.1) > 1e-3
