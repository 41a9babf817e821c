import numpy as np
import pytest
from scipy import stats

from trustsets._draws import Stream, content_keys, row_uniforms

SEEDS = (*range(12), 2**31, 2**31 + 1, 2**63, 2**64 - 1)


def correlations(first, second):
    """Of every row of one array with every row of another."""
    first, second = (part - part.mean(axis=1, keepdims=True) for part in (first, second))
    scales = np.outer(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
    return first @ second.T / scales


def test_all_pairs_of_seed_and_stream_are_uncorrelated():
    """Also one row apart: no sequence is another one shifted."""
    rows = np.arange(4001)
    drawn = np.array([row_uniforms(seed, stream, rows) for seed in SEEDS for stream in Stream])
    same = correlations(drawn[:, 1:], drawn[:, 1:])
    np.fill_diagonal(same, 0.0)
    shifted = correlations(drawn[:, 1:], drawn[:, :-1])
    # The largest of 12,544 normal numbers is about 4.
    assert max(np.abs(same).max(), np.abs(shifted).max()) < 6.0 / np.sqrt(4000)


def test_draws_depend_on_the_row_alone():
    rows = np.arange(1000)
    whole = row_uniforms(7, Stream.PREDICTION_SCORE, rows)
    shuffled = np.random.default_rng(0).permutation(rows)
    np.testing.assert_array_equal(
        row_uniforms(7, Stream.PREDICTION_SCORE, shuffled), whole[shuffled]
    )


@pytest.mark.parametrize("seed", [0, 1, 2**40])
@pytest.mark.parametrize("stream", list(Stream))
def test_draws_are_uniform(seed, stream):
    draws = row_uniforms(seed, stream, np.arange(20_000))
    assert draws.min() >= 0.0 and draws.max() < 1.0
    assert stats.kstest(draws, "uniform").pvalue > 1e-4


def test_keys_of_content_depend_on_the_row_alone():
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(500, 7)).astype(np.float32)
    keys = content_keys(numbers)
    np.testing.assert_array_equal([content_keys(row[None])[0] for row in numbers], keys)
    np.testing.assert_array_equal(content_keys(numbers.astype(np.float64)), keys)
    assert content_keys(np.array([[-0.0]]))[0] == content_keys(np.array([[0.0]]))[0]


def test_keys_of_different_content_are_different():
    """Small integers, swapped columns, single changed bits: what a weak mixture would join."""
    grid = np.array(np.meshgrid(*[np.arange(12.0)] * 4)).reshape(4, -1).T
    assert np.unique(content_keys(grid)).size == len(grid)
    draws = row_uniforms(0, Stream.PREDICTION_SCORE, content_keys(grid))
    assert stats.kstest(draws, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 5 / np.sqrt(len(grid))
