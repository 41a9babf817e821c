"""Ranks, bets and intervals against loops, and their laws over many streams."""

import numpy as np
import pytest
from scipy import special, stats

from trustsets.monitor import (
    EmpiricalDistribution,
    Evidence,
    miss_bets,
    rank_bets,
    share_intervals,
    tail_bets,
)

VALUES = {
    "continuous": lambda rng, n: rng.normal(size=n),
    "mostly zero": lambda rng, n: np.maximum(rng.normal(size=n), 0.0),
    "constant": lambda rng, n: np.full(n, 3.0),
    "infinite": lambda rng, n: np.where(rng.random(n) < 0.3, np.inf, rng.random(n)),
    "tiny and huge": lambda rng, n: 10.0 ** rng.uniform(-300, 300, size=n),
}


def slow_p_values(before, values, draws):
    """The definition, with rounding to ten binary digits."""
    seen, found = [_round(v) for v in before], []
    for value, draw in zip(values, draws, strict=True):
        own = _round(value)
        larger = sum(v > own for v in seen)
        equal = sum(v == own for v in seen) + 1
        found.append((larger + draw * equal) / (len(seen) + 1))
        seen.append(own)
    return np.array(found)


def _round(value):
    if np.isinf(value):
        return float(value)
    mantissa, exponent = np.frexp(value)
    return float(np.ldexp(np.round(mantissa * 1024), int(exponent) - 10))


@pytest.mark.parametrize("kind", VALUES)
def test_p_values_are_the_definition_whatever_the_batches(kind):
    rng = np.random.default_rng(0)
    before, values, draws = VALUES[kind](rng, 50), VALUES[kind](rng, 600), rng.random(600)
    whole, parts = EmpiricalDistribution(), EmpiricalDistribution()
    whole.add(before)
    parts.add(before)
    p_values = whole.p_values(values, draws)
    np.testing.assert_allclose(p_values, slow_p_values(before, values, draws), rtol=1e-12)
    pieces = [
        parts.p_values(v, d)
        for v, d in zip(np.split(values, [1, 300]), np.split(draws, [1, 300]), strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(pieces), p_values)
    np.testing.assert_array_equal(whole.values, parts.values)
    assert len(whole) == 650


@pytest.mark.parametrize("kind", ["continuous", "mostly zero", "constant"])
def test_p_values_are_uniform_and_independent_with_few_calibration_samples(kind):
    """If values are not added to the earlier ones, ranks correlate by 0.2: it fails in 99%."""
    rng = np.random.default_rng(1)
    p_values = np.empty((1200, 2))
    for run in range(1200):
        earlier = EmpiricalDistribution()
        earlier.add(VALUES[kind](rng, 3))
        p_values[run] = earlier.p_values(VALUES[kind](rng, 2), rng.random(2))
    assert min(stats.kstest(column, "uniform").pvalue for column in p_values.T) > 1e-3
    assert abs(np.corrcoef(p_values.T)[0, 1]) < 4 / np.sqrt(1200)


def test_many_values_take_little_memory():
    many = EmpiricalDistribution()
    many.add(np.random.default_rng(0).random(200_000))
    assert many.values.size < 20_000 and len(many) == 200_000


def slow_evidence(bets):
    """Capital of every start, one sample after the other."""

    def waiting(t):
        return np.log(20.0) / np.log(t + 20.0)

    wealth, totals = np.zeros(bets.shape[1]), []
    for t, own in enumerate(np.exp(bets), start=1):
        wealth = (wealth + waiting(t - 1) - waiting(t)) * own
        totals.append(waiting(t) + wealth.mean())
    return np.log(totals)


def test_evidence_is_the_sum_over_all_starts_whatever_the_batches():
    rng = np.random.default_rng(0)
    # Scores rise and fall again, so that the peak is behind.
    bets = rank_bets(np.append(rng.beta(0.7, 1.0, size=300), rng.beta(2.0, 1.0, size=100)), 0.1)
    slow = slow_evidence(bets)
    assert slow[-1] < max(slow) - 1.0
    whole, parts = Evidence.start(3), Evidence.start(3)
    needed = float(np.quantile(slow, 0.8))
    whole.update(bets, needed)
    for piece in np.split(bets, [0, 3, 120]):
        parts.update(piece, needed)
    assert whole.now == pytest.approx(slow[-1], abs=1e-9)
    assert whole.peak == pytest.approx(max(slow), abs=1e-9)
    assert whole.alarm_at == parts.alarm_at == np.flatnonzero(slow >= needed)[0] + 1
    assert parts.now == pytest.approx(whole.now, abs=1e-9)
    assert parts.peak == pytest.approx(whole.peak, abs=1e-9)


@pytest.mark.parametrize(
    "bets",
    [lambda p: rank_bets(p, 0.1), tail_bets, lambda p: miss_bets(p <= 0.2, 0.2)],
    ids=["scores", "drift", "misses"],
)
def test_a_fair_bet_keeps_its_mean_and_rarely_reaches_far(bets):
    p = (np.arange(100_000) + 0.5) / 100_000
    np.testing.assert_allclose(np.exp(bets(p)).mean(axis=0), 1.0, atol=1e-4)
    rng, alarms, last = np.random.default_rng(2), 0, []
    for _ in range(600):
        own = bets(rng.random(200))
        evidence = Evidence.start(own.shape[1])
        evidence.update(own[:20], np.log(10.0))
        last.append(np.exp(evidence.now))
        evidence.update(own[20:], np.log(10.0))
        alarms += evidence.alarm_at > 0
    assert stats.binom.sf(alarms - 1, 600, 0.1) > 1e-3
    # After so few samples the capital has a mean that a simulation can see.
    assert abs(np.mean(last) - 1.0) < 4.0 * np.std(last) / np.sqrt(600)


def test_fewer_misses_than_allowed_are_no_evidence():
    evidence = Evidence.start(3)
    evidence.update(miss_bets(np.random.default_rng(0).random(3000) < 0.05, 0.1), np.log(20.0))
    assert not evidence.alarm_at and evidence.now < 0.0


def test_share_intervals_are_where_the_mixture_does_not_win():
    hits, count = np.array([0.0, 5.0, 40.0, 50.0]), np.array([50.0, 50.0, 50.0, 50.0])
    low, high = share_intervals(hits, count, 0.95)
    for k, n, a, b in zip(hits, count, low, high, strict=True):
        for p in (a, b):
            if 0.0 < p < 1.0:
                ratio = special.betaln(k + 0.5, n - k + 0.5) - special.betaln(0.5, 0.5)
                ratio -= k * np.log(p) + (n - k) * np.log1p(-p)
                assert ratio == pytest.approx(np.log(20.0), abs=1e-6)
    assert low[0] == 0.0 and high[-1] == 1.0
    assert [float(end[0]) for end in share_intervals(np.zeros(1), np.zeros(1), 0.95)] == [0.0, 1.0]


def test_intervals_hold_at_all_times_at_once():
    """At 20% instead of 10% of streams it fails with probability 83%, at 25% with 99.6%.

    Intervals for a single time (Clopper and Pearson) miss the truth in 40% of streams.
    """
    rng, missed = np.random.default_rng(3), 0
    count = np.arange(1.0, 201.0)
    for _ in range(200):
        hits = np.cumsum(rng.random(200) < 0.9)
        low, high = share_intervals(hits * 1.0, count, 0.9)
        missed += bool(np.any((low > 0.9) | (high < 0.9)))
    assert stats.binom.sf(missed - 1, 200, 0.1) > 1e-3
