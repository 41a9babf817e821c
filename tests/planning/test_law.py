"""Sizes against a scan of all sizes, and laws against simulated calibrations."""

import numpy as np
import pytest
from scipy import stats

from trustsets._common.quantiles import conformal_rank
from trustsets.errors import InputError
from trustsets.planning.law import CoverageLaw, needed_to_see, samples_for

ASKED = [
    (0.1, 0.02, 0.95),
    (0.1, 0.15, 0.9),  # coverage cannot be too high
    (0.05, 0.02, 0.9),
    (0.123, 0.05, 0.8),
    (0.01, 0.01, 0.9),
    (0.3, 0.1, 0.99),
    (0.97, 0.02, 0.6),
    (0.12345678901234567, 0.08, 0.9),
]


def slow_probability(sizes, alpha, within, functions=1, penalty=0):
    """The law as the documentation states it, at every size."""
    k = np.array([conformal_rank(n, alpha) for n in sizes.tolist()])
    low = np.maximum(k - penalty, 0.5)
    high = np.minimum(k + functions - 1 + penalty, sizes + 1 - 1e-9)
    below = stats.beta.cdf(max(1 - alpha - within, 0), low, sizes + 1 - np.minimum(low, sizes))
    above = stats.beta.sf(min(1 - alpha + within, 1), high, sizes + 1 - high)
    return np.where(k > sizes, 0.0, np.maximum(0.0, 1.0 - below - above))


def slow_test_power(m, alpha, gap, significance):
    misses = next(t for t in range(m + 2) if stats.binom.sf(t - 1, m, alpha) <= significance)
    return stats.binom.sf(misses - 1, m, alpha + gap)


@pytest.mark.parametrize(("alpha", "within", "probability"), ASKED)
@pytest.mark.parametrize(("functions", "penalty"), [(1, 0.0), (5, 0.0), (3, 2.0)])
def test_needed_is_the_size_from_which_on_all_sizes_suffice(
    alpha, within, probability, functions, penalty
):
    law = CoverageLaw(alpha, functions, penalty)
    needed = law.needed(within, probability)
    sizes = np.arange(2 * needed + 100)
    slow = slow_probability(sizes, alpha, within, functions, penalty)
    np.testing.assert_allclose(law.probability(sizes, within), slow, atol=1e-9)
    assert needed == np.flatnonzero(slow < probability)[-1] + 1


def test_a_smaller_size_may_suffice_where_a_larger_one_does_not():
    law = CoverageLaw(0.1)
    reached = law.probability(np.arange(law.needed(0.02, 0.9462)), 0.02)
    assert np.any(reached >= 0.9462)


@pytest.mark.parametrize(
    ("alpha", "gap", "significance", "power"),
    [
        (0.1, 0.2, 0.05, 0.9),
        (0.05, 0.1, 0.05, 0.8),
        (0.01, 0.1, 0.005, 0.9),
        (0.1, 0.8, 0.05, 0.9),
    ],
)
def test_an_evaluation_sees_the_gap_from_this_size_on(alpha, gap, significance, power):
    needed = needed_to_see(alpha, gap, significance, power)
    powers = [slow_test_power(m, alpha, gap, significance) for m in range(1, 2 * needed + 20)]
    assert needed == np.flatnonzero(np.array(powers) < power)[-1] + 2


def test_tiny_tolerances_are_quick_and_agree_with_the_normal_law():
    needed = CoverageLaw(0.1).needed(1e-4, 0.95)
    assert needed == pytest.approx(0.09 * (stats.norm.ppf(0.975) / 1e-4) ** 2, rel=1e-3)
    assert needed_to_see(0.1, 1e-3, 0.05, 0.9) > 500_000


def test_what_no_number_of_samples_gives_is_refused():
    with pytest.raises(InputError, match="within is too small"):
        CoverageLaw(0.1).needed(1e-9, 0.95)


@pytest.mark.parametrize("share", [1.0, 0.97, 0.3, 0.004])
def test_samples_in_all_give_the_group_its_probability_and_few_more(share):
    law, asked = CoverageLaw(0.1), (0.05, 0.9)
    needed = law.needed(*asked)
    total = law.needed_in_all(*asked, share, needed)
    sizes = np.arange(total + 1)

    def reached(total):
        mass = stats.binom.pmf(sizes, total, share)
        return mass @ law.probability(sizes, asked[0])

    assert reached(total) >= 0.9 - 1e-9
    assert total == needed if share == 1.0 else reached(int(0.93 * total)) < 0.9
    assert stats.binom.sf(199, samples_for(200, share, 0.9), share) >= 0.9
    assert share == 1.0 or stats.binom.sf(199, samples_for(200, share, 0.9) - 1, share) < 0.9


def test_interval_and_tolerance_belong_to_the_law():
    law = CoverageLaw(0.1)
    low, high = law.interval(300, 0.9)
    k = conformal_rank(300, 0.1)
    assert stats.beta.cdf([low, high], k, 301 - k) == pytest.approx([0.05, 0.95])
    within = law.tolerance(300, 0.9)
    assert law.probability(np.array([300]), within)[0] == pytest.approx(0.9, abs=1e-6)
    assert law.interval(5, 0.9) == (1.0, 1.0) and np.isnan(law.tolerance(5, 0.9))


@pytest.mark.parametrize(("alpha", "within", "probability"), [(0.1, 0.05, 0.9), (0.3, 0.1, 0.95)])
def test_simulated_calibrations_reach_the_promised_probability(alpha, within, probability):
    n, runs = CoverageLaw(alpha).needed(within, probability), 20_000
    scores = np.sort(np.random.default_rng(0).random((runs, n)), axis=1)
    coverage = scores[:, conformal_rank(n, alpha) - 1]
    reached = np.mean(np.abs(coverage - (1 - alpha)) <= within)
    assert reached == pytest.approx(
        CoverageLaw(alpha).probability(np.array([n]), within)[0], abs=0.01
    )
    assert reached >= probability - 0.01
