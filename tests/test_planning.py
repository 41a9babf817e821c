"""Sizes against a scan of all sizes, laws against exact sums and simulated calibrations, words."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from scipy import stats

from trustsets import ConditionalConformal, ModelOutputs, plan
from trustsets.errors import InputError
from trustsets.metrics import check_guarantee, missed_at_least
from trustsets.planning import MOST_SAMPLES, TUNING_SHARE, CoverageLaw, Plan, size_of_test
from trustsets.scores import conformal_rank

ASKED = [
    (0.1, 0.02, 0.95),
    (0.1, 0.15, 0.9),  # coverage cannot be too high
    (0.05, 0.02, 0.9),
    (0.123, 0.05, 0.8),
    (0.01, 0.01, 0.9),
    (0.3, 0.1, 0.99),
    (0.97, 0.02, 0.6),
    (0.999, 0.0005, 0.95),
    (0.6, 0.03, 0.9),
    (0.12345678901234567, 0.08, 0.9),
]


def slow_probability(sizes, alpha, within):
    """The law as the documentation states it, at every size."""
    k = np.array([conformal_rank(n, alpha) for n in sizes.tolist()])
    law = stats.beta(np.minimum(k, sizes + 0.5), sizes + 1 - np.minimum(k, sizes + 0.5))
    inside = law.cdf(min(1 - alpha + within, 1)) - law.cdf(max(1 - alpha - within, 0))
    return np.where(k > sizes, 0.0, inside)


def exact_tail(misses, samples, n, alpha):
    """Probability of so many misses, by counting orders of calibration and test scores.

    The threshold is the l-th largest calibration score. At least t test scores exceed it exactly
    if the l + t - 1 largest of all scores hold fewer than l calibration scores.
    """
    above = n + 1 - conformal_rank(n, alpha)
    drawn = above + misses - 1
    ways = sum(comb(n, j) * comb(samples, drawn - j) for j in range(above) if drawn - j <= samples)
    return Fraction(ways, comb(n + samples, drawn))


def critical_misses(samples, n, alpha):
    """Fewest misses that a valid predictor has with probability 5% at most."""
    return next(
        (t for t in range(1, samples + 1) if exact_tail(t, samples, n, alpha) <= 0.05), None
    )


@pytest.mark.parametrize(("alpha", "within", "probability"), ASKED)
def test_needed_is_the_size_from_which_on_all_sizes_suffice(alpha, within, probability):
    """By a scan of all sizes up to twice as many: a size that is off by one fails for sure."""
    law = CoverageLaw(alpha)
    needed = law.needed(within, probability)
    sizes = np.arange(2 * needed + 100)
    slow = slow_probability(sizes, alpha, within)
    np.testing.assert_allclose(law.probability(sizes, within), slow, atol=1e-9)
    assert needed == np.flatnonzero(slow < probability)[-1] + 1


@pytest.mark.parametrize("alpha", [0.1, 0.0987654321, 0.7, 0.987])
def test_needed_beyond_the_scanned_sizes_is_the_last_failure_too(alpha):
    law = CoverageLaw(alpha)
    needed = law.needed(0.0025, 0.95)
    assert needed * alpha > 5000  # blocks, of which 4096 are looked at one by one
    sizes = np.arange(needed - 20_000, needed + 20_000)
    assert needed == sizes[np.flatnonzero(law.probability(sizes, 0.0025) < 0.95)[-1]] + 1


@pytest.mark.parametrize("n", [9, 50, 199, 854])
@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.13])
def test_the_law_of_misses_is_that_of_exchangeable_scores(n, alpha):
    above = n + 1 - conformal_rank(n, alpha)
    for samples in (1, 7, 60, 900):
        for misses in {1, max(1, samples // 9), max(1, samples // 4), samples}:
            exact = float(exact_tail(misses, samples, n, alpha))
            law = missed_at_least(misses, samples, above, n + 1 - above)
            assert law == pytest.approx(exact, abs=1e-11), (samples, misses)


@pytest.mark.parametrize(
    ("n", "alpha", "gap", "power"),
    [(400, 0.1, 0.1, 0.9), (60, 0.2, 0.3, 0.8), (150, 0.03, 0.2, 0.95), (9, 0.1, 0.2, 0.95)],
)
def test_a_test_of_this_size_or_more_sees_the_gap_and_blames_no_valid_predictor(
    n, alpha, gap, power
):
    size, misses = size_of_test(CoverageLaw(alpha), n, gap, power)

    def power_at(samples):
        misses = critical_misses(samples, n, alpha)
        return 0.0 if misses is None else stats.binom.sf(misses - 1, samples, alpha + gap)

    assert misses == critical_misses(size, n, alpha)
    assert all(power_at(samples) >= power for samples in range(size, size + 40))
    # At most about one more block of sizes than the fewest.
    fewest = size - int(2 / alpha) - 2
    assert min(power_at(samples) for samples in range(max(fewest, 1), size)) < power


def test_the_test_is_the_one_that_checks_guarantees():
    size, misses = size_of_test(CoverageLaw(0.1), 400, 0.1, 0.9)
    covered = [size - misses, size - misses + 1]
    checks = [check_guarantee(count, size, 400, 0.1)[0] <= 0.05 for count in covered]
    assert checks == [True, False]


def test_no_test_tells_a_gap_that_valid_predictors_have():
    assert size_of_test(CoverageLaw(0.1), 200, 0.02, 0.95) is None
    assert size_of_test(CoverageLaw(0.1), 5, 0.5, 0.95) is None  # full sets
    sizes = [size_of_test(CoverageLaw(0.1), n, 0.02, 0.95)[0] for n in (854, 5000, 10**6)]
    assert sizes == sorted(sizes, reverse=True)
    # One size of calibration is just enough, so that coverage varies as much as the gap.
    none = plan(probability=0.5, groups=[0.5])
    assert "No test tells" in none.summary()


def test_the_interval_belongs_to_the_law():
    law = CoverageLaw(0.1)
    for n in (*range(1, 30), 300):
        k, ends = conformal_rank(n, 0.1), law.interval(n, 0.9)
        if k > n:  # the sets are full
            assert ends == (1.0, 1.0)
        else:
            assert stats.beta.cdf(ends, k, n + 1 - k) == pytest.approx([0.05, 0.95])


@pytest.mark.parametrize(("alpha", "within", "probability"), [(0.1, 0.05, 0.9), (0.3, 0.1, 0.95)])
def test_simulated_calibrations_reach_the_probability(alpha, within, probability):
    """A probability that is off by 1.4 points fails with probability 97% or more."""
    n, runs = CoverageLaw(alpha).needed(within, probability), 20_000
    scores = np.sort(np.random.default_rng(0).random((runs, n)), axis=1)
    coverage = scores[:, conformal_rank(n, alpha) - 1]
    reached = np.mean(np.abs(coverage - (1 - alpha)) <= within)
    assert reached == pytest.approx(
        CoverageLaw(alpha).probability(np.array([n]), within)[0], abs=0.01
    )
    assert reached >= probability - 0.01


def test_rows_are_those_of_the_shares():
    sizes = plan(n=1000, groups={"north": 0.25}, classes=[48 / 55, 7 / 55])
    assert [row.part for row in sizes.rows] == ["all samples", "group north", "class 0", "class 1"]
    assert [row.present for row in sizes.rows] == [1000, 250, 873, 127]
    law = CoverageLaw(0.1)
    for row in sizes.rows:
        assert row.needed == law.needed(0.02, 0.95) == sizes.needed
        assert (row.in_all - 1) * row.share < row.needed - 1e-6 < row.in_all * row.share
        assert row.probability == law.probability(np.array([row.present]), 0.02)[0]
        assert (row.lower, row.upper) == law.interval(row.present, 0.95)
        assert row.calibrated == (1000 if row.share == 1.0 else row.needed)
        assert (row.test, row.misses) == size_of_test(law, row.calibrated, 0.02, 0.95)


@pytest.mark.parametrize("n", [7, 49, 98, 300])
def test_shares_and_sizes_come_from_outputs(n, make_outputs):
    # 49 * (1 / 49) is less than 1 in floating point.
    outputs = make_outputs(n=n, n_classes=3, groups={"site": ["a"] + ["b"] * (n - 1)})
    present = {row.part: row.present for row in plan(outputs=outputs, within=0.1).rows}
    labels, counts = np.unique(outputs.labels, return_counts=True)
    assert present["all samples"] == n
    assert [present[f"class {name}"] for name in labels] == counts.tolist()
    assert (present["site = a"], present["site = b"]) == (1, n - 1)


def test_too_few_samples_are_said_to_give_full_sets():
    assert "every set must be full" in str(plan(n=5))
    assert "You have 9:" in str(plan(n=9))


def test_json_and_table_hold_all_rows():
    sizes = plan(n=700, groups=[0.5, 0.5])
    again = Plan.from_json(sizes.to_json())
    assert again == sizes
    assert sizes.to_frame()["needed"].tolist() == [row.needed for row in sizes.rows]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("alpha", (0.0, 1.0, 1e-300, 1e-13, float("nan"), "0.1", True)),
        ("within", (0.0, 0.95, 1.0, 1e-300, 1e-9, float("nan"), float("inf"), -1.0)),
        ("probability", (0.0, 1.0, float("nan"), 2.0)),
        ("n", (0, -1, 1.5, 1e300, 10**40, float("nan"), "many", MOST_SAMPLES + 1)),
        ("groups", ([0.6, 0.6], [0.0], [float("nan")], [1e-300], {"a": 2.0}, {"a": "b"}, "ab")),
        ("outputs", (np.zeros((3, 2)),)),
        ("classes", ([0.6, 0.6], {"a": 0.0}, [float("inf")], [-0.5])),
    ],
)
def test_absurd_numbers_are_one_line_that_names_them(name, values):
    for value in values:
        with pytest.raises(InputError) as raised:
            plan(**({"groups": [0.5]} | {name: value}))
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 300, value


def test_the_largest_numbers_are_taken():
    sizes = plan(n=MOST_SAMPLES, groups=[0.01])
    assert sizes.rows[0].probability == 1.0 and sizes.rows[1].present == 10**5
    assert "within the tolerance with probability above 99.99%." in sizes.summary()
    assert "99.99%" not in plan(n=1500).summary() and "and 100% with" in plan(0.02, 0.05).summary()
    # It was 99.99999955%.
    assert "probability above 99.99%." in plan(within=0.05, n=1500).summary()


@pytest.mark.parametrize(("n", "n_classes"), [(60, 3), (1068, 10), (1068, 100), (3000, 10)])
def test_the_default_sets_no_more_aside_than_the_plan_says(n, n_classes):
    """Given as many samples as `with_tuning`, it calibrates on as many as are needed."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, n_classes))
    labels = rng.permutation(np.arange(n) % n_classes)
    predictor = ConditionalConformal().calibrate(ModelOutputs(logits=logits, labels=labels))
    assert predictor.n_tuning_ <= np.ceil(TUNING_SHARE * n)
    sizes = plan(alpha=0.1, within=0.02, probability=0.95)
    assert sizes.with_tuning == 1068 and f"give it {sizes.with_tuning:,}" in sizes.summary()
    assert n != sizes.with_tuning or predictor.n_calibration_ >= sizes.needed
