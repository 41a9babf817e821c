"""Coverage over thousands of random splits against its exact law.

With continuous scores and n calibration points, the coverage of a fresh point given the
calibration data is Beta(k, n + 1 - k) with k the conformal rank; the number covered among
m test points is therefore beta-binomial. An off-by-one rank shifts its mean by 1/(n + 1).
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from trustsets import APS, Groups, ModelOutputs, MondrianConformal, StandardConformal

pytestmark = pytest.mark.statistical


def simulate(rng, n, n_classes=3):
    logits = rng.normal(size=(n, n_classes)) * 2.0
    labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, labels


def covered_counts(predictor, n, m, alpha, repeats, groups=None):
    """Number covered among m test points, for fresh calibration data each time."""
    rng = np.random.default_rng(0)
    counts = []
    for repeat in range(repeats):
        logits, labels = simulate(rng, n + m)
        columns = None if groups is None else {"g": groups}
        outputs = ModelOutputs(logits=logits, labels=labels, groups=columns)
        predictor.set_params(random_state=repeat).calibrate(outputs.take(slice(0, n)))
        test = outputs.take(slice(n, n + m))
        counts.append(predictor.predict_set(test, alpha=alpha).covers(test.labels))
    return np.array(counts)


def assert_beta_binomial(counts, n, m, alpha):
    rank = math.ceil((n + 1) * (1 - Fraction(str(alpha))))
    # The other formulas in use (n for n + 1, floor for ceiling) must be told apart here.
    assert math.ceil(n * (1 - Fraction(str(alpha)))) != rank
    assert math.floor((n + 1) * (1 - Fraction(str(alpha)))) != rank
    law = stats.betabinom(m, rank, n + 1 - rank)
    standard_error = law.std() / np.sqrt(counts.size)
    assert abs(counts.mean() - law.mean()) < 4.0 * standard_error
    # An off-by-one rank must be visible at this sample size, or the test says nothing.
    assert m / (n + 1) > 8.0 * standard_error
    observed = np.bincount(counts, minlength=m + 1)
    keep = law.pmf(np.arange(m + 1)) * counts.size > 5
    expected = np.append(law.pmf(np.flatnonzero(keep)), law.pmf(np.flatnonzero(~keep)).sum())
    observed = np.append(observed[keep], observed[~keep].sum())
    assert stats.chisquare(observed, expected / expected.sum() * counts.size).pvalue > 1e-4


# The randomised score is continuous, so the law is exact.
@pytest.mark.parametrize(("n", "alpha"), [(20, 0.1), (20, 0.45), (30, 0.3)])
def test_standard_coverage_is_beta_binomial(n, alpha):
    """A rank that is off by one is 8 standard errors away or more: noticed in 99.99% of runs."""
    predictor = StandardConformal(score=APS(own_mass="random"), allow_empty=True)
    counts = covered_counts(predictor, n, 40, alpha, repeats=3000).sum(axis=1)
    assert_beta_binomial(counts, n, 40, alpha)


def test_mondrian_coverage_is_beta_binomial_in_each_group():
    """As above, in either group; one quantile for both would have another law."""
    n, m, alpha = 20, 40, 0.2
    groups = np.array(["a"] * n + ["b"] * n + ["a"] * m + ["b"] * m)
    predictor = MondrianConformal(by=Groups(), score=APS(own_mass="random"), allow_empty=True)
    covered = covered_counts(predictor, 2 * n, 2 * m, alpha, repeats=3000, groups=groups)
    assert_beta_binomial(covered[:, :m].sum(axis=1), n, m, alpha)
    assert_beta_binomial(covered[:, m:].sum(axis=1), n, m, alpha)


def test_deterministic_score_covers_at_least_as_much():
    """Ties (atoms at 0) can only add coverage.

    A rank that is one too low is 8 standard errors below the target: noticed in 99.99% of runs.
    """
    counts = covered_counts(StandardConformal(allow_empty=True), 30, 40, 0.2, repeats=1500)
    per_run = counts.mean(axis=1)
    error = per_run.std() / np.sqrt(per_run.size)
    assert per_run.mean() > 0.8 - 4.0 * error and 8.0 * error < 1.0 / 31
