from bisect import bisect_left
from itertools import product

import numpy as np
import pytest
from scipy import stats

from trustsets._arrays import LARGEST_TRUST
from trustsets.errors import InputError
from trustsets.metrics import binomial_interval, check_guarantee, correlate, expected_gap, holm
from trustsets.metrics.evaluation import summarise_sizes
from trustsets.metrics.inference import (
    bootstrap_gaps,
    expected_worst,
    gap_halves,
    macro_coverage,
    mean_absolute_deviation,
    mean_estimate,
    rms_gap,
    under_coverage,
)


def slow_gaps(count, covered, alpha, divisor=None):
    low = high = 0.0
    present = 0
    for n, k in zip(count, covered, strict=True):
        if n == 0:
            continue
        present += 1
        gap = k / n - (1 - alpha)
        low += max(0.0, -gap)
        high += max(0.0, gap)
    bins = divisor or present
    return 100 * low / bins, 100 * high / bins


@pytest.mark.parametrize("divisor", [None, 12])
def test_gap_halves_against_a_loop(divisor):
    rng = np.random.default_rng(0)
    count = rng.integers(0, 9, size=10)
    covered = rng.binomial(count, 0.8)
    found = gap_halves(count, covered, 0.1, divisor)
    np.testing.assert_allclose(found, slow_gaps(count, covered, 0.1, divisor), rtol=1e-12)
    whole = 100 * np.abs(covered[count > 0] / count[count > 0] - 0.9).sum()
    np.testing.assert_allclose(sum(found), whole / (divisor or (count > 0).sum()), rtol=1e-12)


def test_macro_coverage_against_a_loop():
    rng = np.random.default_rng(1)
    count = rng.integers(1, 12, size=60)
    covered = rng.binomial(count, 0.7)
    pairs = list(zip(count.tolist(), covered.tolist(), strict=True))
    macro = macro_coverage(count, covered, 0.1, 0.95)
    assert macro.value == pytest.approx(sum(k / n for n, k in pairs) / 60)
    assert macro.floor == 0.9
    variance = sum((k + 1) * (n - k + 1) / (n + 2) ** 2 / n for n, k in pairs)
    half = 1.959964 * variance**0.5 / 60
    exact = [stats.binomtest(k, n).proportion_ci(0.95) for n, k in pairs]
    below = sum((k / n - ci.low) ** 2 for (n, k), ci in zip(pairs, exact, strict=True)) ** 0.5 / 60
    above = sum((ci.high - k / n) ** 2 for (n, k), ci in zip(pairs, exact, strict=True)) ** 0.5 / 60
    ends = macro.value - max(half, below), macro.value + max(half, above)
    assert (macro.lower, macro.upper) == pytest.approx(ends)
    # One small bin beside a large one has at least its exact interval.
    for k in range(31):
        macro = macro_coverage(np.array([30, 10**9]), np.array([k, 9 * 10**8]), 0.1, 0.95)
        exact = stats.binomtest(k, 30).proportion_ci(0.95)
        assert (
            2.0 * macro.lower - 0.9 <= exact.low + 1e-4 <= exact.high <= 2.0 * macro.upper - 0.8999
        )


def test_a_covered_bin_has_a_variance():
    """Gaps of bins without misses had intervals without a width."""
    rng, count, truth = np.random.default_rng(0), np.array([1000, 50]), np.array([0.99, 0.99])
    halves = [gap_halves(count, hits, 0.1) for hits in rng.binomial(count, truth, (4000, 2))]
    wanted, held = np.sum(halves, axis=1).mean(), 0
    for hits in rng.binomial(count, truth, (200, 2)):
        lower, upper = bootstrap_gaps([(count, hits)], 0.1, None, 0.95, 200)[0]
        held += lower <= wanted <= upper
    assert held >= 180


@pytest.mark.parametrize(("level", "z"), [(0.8, 1.281552), (0.95, 1.959964), (0.99, 2.575829)])
def test_the_interval_of_a_mean_leaves_as_much_on_either_side(level, z):
    values = np.random.default_rng(2).gamma(2.0, size=70)
    found = mean_estimate(values, level)
    half = z * np.sqrt(np.sum((values - values.mean()) ** 2) / 69 / 70)
    ends = (found.value - half, found.value, found.value + half)
    assert (found.lower, values.mean(), found.upper) == pytest.approx(ends, rel=1e-6)


@pytest.mark.parametrize("p", [0.9, 0.5, 0.75, 0.05, 0.999])
def test_deviation_of_a_binomial_share_against_enumeration(p):
    sizes = np.array([1, 2, 3, 4, 10, 19, 20, 100, 251])
    slow = [
        sum(stats.binom.pmf(k, n, p) * abs(k / n - p) for k in range(n + 1)) for n in sizes.tolist()
    ]
    np.testing.assert_allclose(mean_absolute_deviation(sizes, p), slow, rtol=1e-10)
    assert mean_absolute_deviation(np.array([0]), p)[0] == 0.0


def test_noise_floors_against_enumeration_of_every_outcome():
    count, alpha = np.array([3, 0, 5, 2, 2]), 0.2
    gap = low = worst = 0.0
    for hits in product(*(range(n + 1) for n in count)):
        chance = np.prod([stats.binom.pmf(k, n, 0.8) for k, n in zip(hits, count, strict=True)])
        halves = slow_gaps(count, hits, alpha)
        gap += chance * sum(halves)
        low += chance * halves[0]
        worst += chance * min(k / n for k, n in zip(hits, count, strict=True) if n)
    assert expected_gap(count, alpha) == pytest.approx(gap, rel=1e-10)
    assert expected_gap(count, alpha) / 2 == pytest.approx(low, rel=1e-10)
    assert expected_gap(count, alpha, divisor=5) == pytest.approx(gap * 4 / 5, rel=1e-10)
    assert expected_worst(count, alpha) == pytest.approx(worst, rel=1e-10)


def test_squared_gap_has_no_bias_by_enumeration_of_every_outcome():
    """For bins of any sizes and true coverages; bins of one sample take no part."""
    for size, coverage in product((2, 3, 20), (0.0, 0.3, 0.8, 0.9, 0.97, 1.0)):
        hits = np.arange(size + 1)
        chance = stats.binom.pmf(hits, size, coverage)
        # Beside a bin that is never covered, no estimate is negative; bins of one do not count.
        tables = [(np.array([size, 1, size]), np.array([0, 1, k])) for k in hits.tolist()]
        squares = [2.0 * (rms_gap(*table, 0.1, 0.95).value / 100.0) ** 2 for table in tables]
        assert chance @ squares - 0.9**2 == pytest.approx((coverage - 0.9) ** 2, abs=1e-12)
    assert np.isnan(rms_gap(np.array([1, 1]), np.array([0, 1]), 0.1, 0.95).value)


@pytest.mark.parametrize(
    ("sizes", "coverage", "raw"),
    [
        # The raw gap of bins of 20 samples at 80%: 10.8, with a noise floor of 5.1.
        ([20] * 200, [0.8] * 200, 10.8),
        ([20] * 200, [0.9] * 200, 5.1),
        ([5, 20, 80, 320] * 50, [0.7, 0.85, 0.9, 0.95] * 50, None),
        ([250] * 40, [0.9, 0.88] * 20, None),
    ],
)
def test_rms_gap_is_that_of_the_true_coverages(sizes, coverage, raw):
    """Within the error of 400 tables; the interval contains it in 92% of cases or more."""
    rng, count, truth = np.random.default_rng(0), np.array(sizes), np.array(coverage)
    hits = rng.binomial(count, truth, size=(400, count.size))
    if raw is not None:
        assert np.mean(sum(gap_halves(count, hits, 0.1))) == pytest.approx(raw, abs=0.06)
    wanted = 100.0 * np.sqrt(np.mean((truth - 0.9) ** 2))
    found = [rms_gap(count, row, 0.1, 0.95) for row in hits]
    squares = np.array([item.value**2 for item in found])
    if wanted > 2.0:
        error = squares.std() / np.sqrt(400)
        assert abs(squares.mean() - wanted**2) < 3.5 * error
    else:  # truncated at 0; the raw gap is above 1.5 in each of these tables
        assert np.median(squares) <= (wanted + 0.7) ** 2
    inside = np.mean([item.lower <= wanted <= item.upper for item in found])
    assert inside > 0.92 - 3.0 * np.sqrt(0.92 * 0.08 / 400)


def test_exact_interval_solves_its_defining_equations():
    count = np.array([10, 10, 10, 200, 1])
    covered = np.array([0, 10, 9, 171, 1])
    lower, upper = binomial_interval(covered, count, level=0.9)
    inner = covered > 0
    np.testing.assert_allclose(stats.binom.sf(covered - 1, count, lower)[inner], 0.05, rtol=1e-8)
    inner = covered < count
    np.testing.assert_allclose(stats.binom.cdf(covered, count, upper)[inner], 0.05, rtol=1e-8)
    assert lower[0] == 0.0
    assert upper[1] == upper[4] == 1.0
    assert tuple(float(end) for end in binomial_interval(0, 0)) == (0.0, 1.0)


def test_holm_against_step_down_testing():
    rng = np.random.default_rng(1)
    for _ in range(50):
        p = rng.beta(0.3, 2.0, size=8).round(3)
        for level in (0.01, 0.05, 0.2):
            rejected = set()
            for step, i in enumerate(np.argsort(p, kind="stable")):
                if p[i] * (8 - step) > level:
                    break
                rejected.add(int(i))
            assert set(np.flatnonzero(holm(p) <= level).tolist()) == rejected


def test_sizes_of_sets():
    sizes = np.array([0, 0, 1, 4, 4, 4, 2])
    found = summarise_sizes(sizes, n_classes=4)
    assert (found.empty, found.full, found.median) == (2, 3, 2.0)
    assert found.mean == pytest.approx(15 / 7)
    counts = dict(zip(found.values.tolist(), found.counts.tolist(), strict=True))
    assert counts == {0: 2, 1: 1, 2: 1, 4: 3}
    spread = sum((size - 15 / 7) ** 2 for size in sizes) / 6
    assert found.standard_error == pytest.approx((spread / 7) ** 0.5)


def test_correlation_is_undefined_rather_than_wrong():
    constant = correlate(np.ones(5), np.array([1, 2, 3, 4, 5]))
    assert np.isnan([constant.pearson, constant.spearman]).all()
    for largest in (np.inf, LARGEST_TRUST):
        infinite = correlate(np.array([1.0, 2.0, largest, 3.0]), np.array([4, 3, 1, 2]))
        assert np.isnan(infinite.pearson)
        assert infinite.spearman == pytest.approx(-1.0)


def test_bootstrap_resamples_points():
    """The multinomial shortcut against resampling indices one sample at a time."""
    rng = np.random.default_rng(3)
    cells = rng.integers(5, size=400)
    hits = rng.random(400) < np.array([0.95, 0.9, 0.6, 0.9, 0.85])[cells]
    count, covered = np.bincount(cells, minlength=5), np.bincount(cells[hits], minlength=5)
    slow = []
    for _ in range(4000):
        again = rng.integers(400, size=400)
        own = cells[again]
        halves = slow_gaps(np.bincount(own, minlength=5), np.bincount(own[hits[again]]), 0.1)
        slow.append([sum(halves), *halves])
    slow = np.array(slow)
    estimates = slow_gaps(count, covered, 0.1)
    estimates = np.array([sum(estimates), *estimates])
    expected = np.quantile(slow, [0.025, 0.975], axis=0) - slow.mean(axis=0) + estimates
    found = np.array(bootstrap_gaps([(count, covered)], 0.1, None, 0.95, 4000)).T
    np.testing.assert_allclose(found, np.maximum(expected, 0.0), atol=0.25)


@pytest.mark.statistical
def test_exact_interval_holds_the_truth_at_least_as_often_as_it_says():
    """By the sum over all outcomes: an interval that holds less often than 90% fails for sure."""
    for n, p in product((10, 50, 400), (0.7, 0.9, 0.99)):
        k = np.arange(n + 1)
        lower, upper = binomial_interval(k, n, level=0.9)
        held = stats.binom.pmf(k, n, p)[(lower <= p) & (p <= upper)].sum()
        assert held >= 0.9


def designs():
    """Sizes and true coverages of classes: large and small, tiny, one sample each, a long tail."""
    rng = np.random.default_rng(9)
    tiny, tail = rng.integers(1, 6, size=100), np.maximum(1500 // np.arange(1, 151), 1)
    return {
        "lesions": (
            np.array([20, 25, 55, 90, 190, 190, 1200]),
            np.array([0.35, 0.6, 0.7, 0.8, 0.85, 0.55, 0.98]),
        ),
        "tiny": (tiny, rng.beta(4, 1.5, size=100)),
        "one each": (np.ones(100, dtype=int), np.full(100, 0.9)),
        "tail": (tail, 0.95 - 0.5 * np.arange(150) / 150),
        "perfect": (np.full(50, 30), np.full(50, 0.9)),
    }


@pytest.mark.statistical
@pytest.mark.parametrize("name", designs())
def test_intervals_of_means_over_bins_hold_their_expectation(name):
    """One that holds in 90% of tables instead of 94% fails with probability 96%."""
    count, rates = designs()[name]
    rng, held = np.random.default_rng(10), 0
    for covered in rng.binomial(count, rates, size=(1000, count.size)):
        macro = macro_coverage(count, covered, 0.1, 0.95)
        held += macro.lower <= rates.mean() <= macro.upper
    assert held / 1000 > 0.94 - 3 * np.sqrt(0.06 / 1000)


@pytest.mark.statistical
def test_holm_keeps_false_alarms_at_its_level():
    """A rate of 13% instead of 10% fails with probability 91%; uncorrected, nearly all alarm."""
    rng = np.random.default_rng(7)
    count = rng.integers(20, 400, size=40)
    covered = rng.binomial(count, 0.9, size=(3000, 40))
    p = under_coverage(covered, count, 0.1)
    alarms = np.mean([(holm(row) <= 0.1).any() for row in p])
    assert 0.02 < alarms < 0.1 + 4 * np.sqrt(0.09 / 3000)


@pytest.mark.parametrize(
    ("count", "covered"),
    [([254, 146], [215, 146]), ([300, 1], [300, 1]), ([50, 1, 1], [0, 0, 0]), ([9, 40], [8, 30])],
)
def test_intervals_of_gaps_hold_the_estimate(count, covered):
    """A bin that is always covered: an excess of 5.000 points had the interval 4.998 to 4.998."""
    table = np.array(count), np.array(covered)
    halves = gap_halves(*table, 0.1, None)
    for n_bootstrap in (1, 20, 1000):
        intervals = bootstrap_gaps([table], 0.1, None, 0.95, n_bootstrap)
        for value, (lower, upper) in zip((sum(halves), *halves), intervals, strict=True):
            assert lower <= value <= upper
        assert all(end[1] <= most for end, most in zip(intervals, (90, 90, 10), strict=True))


def test_bootstrap_over_seeds_shows_the_noise_within_them():
    """Seeds, and points within each: against resampling both, one at a time."""
    rng = np.random.default_rng(8)
    count = np.array([60, 40, 80])
    rates = ([0.7, 0.85, 0.95], [0.75, 0.8, 0.99], [0.65, 0.9, 0.97])
    tables = [(count, np.round(count * rate).astype(int)) for rate in map(np.array, rates)]
    slow = []
    for _ in range(4000):
        halves = []
        for which in rng.integers(3, size=3):
            sizes = rng.multinomial(180, count / 180)
            hits = rng.binomial(sizes, tables[which][1] / count)
            halves.append(slow_gaps(sizes, hits, 0.1))
        low, high = np.mean(halves, axis=0)
        slow.append([low + high, low, high])
    width = np.ptp(np.quantile(slow, [0.025, 0.975], axis=0), axis=0)
    found = np.array(bootstrap_gaps(tables, 0.1, None, 0.95, 8000))
    np.testing.assert_allclose(np.ptp(found, axis=1), width, rtol=0.08)
    # Equal seeds have noise within them alone, which averages out over nine of them.
    one, nine = (bootstrap_gaps(tables[:1] * n, 0.1, None, 0.95, 8000)[0] for n in (1, 9))
    assert np.ptp(nine) == pytest.approx(np.ptp(one) / 3, rel=0.08)


def test_p_values_of_both_correlations_by_hand():
    """Student's t of the values, and of their ranks; small samples, so that both are large."""
    trust = np.array([0.3, 2.0, 1.1, 0.2, 9.0, 1.5, 0.9, 4.0])
    rank = np.array([1, 3, 2, 1, 1, 5, 2, 4])
    found = correlate(trust, rank)
    for x, y, r, p in (
        (trust, rank, found.pearson, found.pearson_p),
        (stats.rankdata(trust), stats.rankdata(rank), found.spearman, found.spearman_p),
    ):
        assert r == pytest.approx(np.corrcoef(x, y)[0, 1])
        assert p == pytest.approx(2 * stats.t.sf(abs(r) * np.sqrt(6 / (1 - r**2)), 6))
    assert abs(found.pearson_p - found.spearman_p) > 0.1


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
    wrong = [(1000, 875, 500), (-1, 10, 500), (5, 10, -1), (5, 10, np.nan), (np.nan, 10, 500)]
    for counts in [*wrong, ("5", 10, 500), ([1, 2], [3, 3, 3], 500), ([1], [[2], [3, 4]], 500)]:
        with pytest.raises(InputError, match="covered must be between 0 and count, and n_calib"):
            check_guarantee(*counts, 0.1)
    for name, value in {"alpha": 1.5, "n_functions": -1}.items():
        with pytest.raises(InputError, match=f"{name} must"):
            check_guarantee(5, 10, 500, **({"alpha": 0.1} | {name: value}))


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
