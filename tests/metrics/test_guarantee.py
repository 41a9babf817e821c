"""A valid guarantee is called violated in at most 5% of cases, and a broken one is noticed."""

from bisect import bisect_left
from itertools import product

import numpy as np
import pytest
from scipy import stats

from trustsets.errors import InputError
from trustsets.metrics import binomial_interval, check_guarantee

CALIBRATION, TEST = (200, 500, 1000, 5000, 10_000), (500, 2000, 10_000, 50_000)


@pytest.mark.parametrize(("n", "m"), [*product((0, 8, 9, 99, 250, 10_000), (1, 40, 3000))])
@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.45])
def test_p_values_are_the_lower_tail_of_the_beta_binomial_law(n, m, alpha):
    law = n + 1 - int((n + 1) * alpha + 1e-9), int((n + 1) * alpha + 1e-9)
    for k in {0, m // 2, int(0.85 * m), m - 1, m}:
        p = check_guarantee(k, m, n, alpha)[0]
        if law[1] == 0:  # infinite thresholds cover every sample
            assert p == float(k == m)
        else:
            assert p == pytest.approx(stats.betabinom.cdf(k, m, *law), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("n_functions", [0, 5, 150, 300])
def test_basis_functions_take_samples_from_the_law(n_functions):
    """Mean 1 - alpha, and the variance of as many samples as are left."""
    found = check_guarantee([170, 180, 195], 200, 250, 0.1, n_functions=n_functions)
    left = max(250 - n_functions, 1)
    wanted = stats.betabinom.cdf([170, 180, 195], 200, 0.9 * left, 0.1 * left)
    assert found == pytest.approx(wanted, rel=1e-6)


def test_counts_that_cannot_be_are_refused():
    """Swapped, covered and count would give a p-value of 1."""
    for covered, count, alpha in ((1000, 875, 0.1), (-1, 10, 0.1), (5, 10, 1.5)):
        with pytest.raises(InputError, match=r"covered must be between|alpha must lie"):
            check_guarantee(covered, count, 500, alpha)


def rates(n, m, shift=0.0):
    """Exact chances that a guarantee, or this predictor by its interval, is called too low.

    `shift` is taken off the coverage of every calibration draw.
    """
    steps = (np.arange(4000) + 0.5) / 4000
    coverage = stats.beta.ppf(steps, n + 1 - (n + 1) // 10, (n + 1) // 10) - shift
    rules = (
        lambda k: check_guarantee(k, m, n, 0.1)[0] <= 0.05,
        lambda k: binomial_interval(k, m)[1] < 0.9,
    )
    largest = [bisect_left(range(m), True, key=lambda k, rule=rule: not rule(k)) for rule in rules]
    return [float(stats.binom.cdf(k - 1, m, coverage).mean()) for k in largest]


@pytest.mark.parametrize(("n", "m"), [*product(CALIBRATION, TEST)])
def test_valid_split_conformal_is_called_violated_in_at_most_one_case_of_twenty(n, m):
    """By the exact law: a rate above 5.01% fails for sure; test intervals alone reach 42%."""
    violated, below = rates(n, m)
    assert violated <= 0.0501
    # The interval over test samples alone is about this predictor, not about its guarantee.
    assert m < 2 * n or below > 0.09


@pytest.mark.parametrize(
    ("n", "m", "shift", "least"),
    [
        (1000, 2000, 0.02, 0.45),
        (5000, 10_000, 0.02, 0.98),
        (1000, 2000, 0.05, 0.99),
        (200, 500, 0.05, 0.5),
        (200, 500, 0.1, 0.98),
    ],
)
def test_broken_guarantees_are_noticed(n, m, shift, least):
    assert rates(n, m, shift)[0] > least
