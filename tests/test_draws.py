import numpy as np
import pytest
from scipy import stats

from trustsets.draws import Stream, row_uniforms


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


def test_neighbouring_rows_seeds_and_streams_are_independent():
    rows = np.arange(20_000)
    base = row_uniforms(0, Stream.PREDICTION_SCORE, rows)
    others = [
        base[1:],
        row_uniforms(1, Stream.PREDICTION_SCORE, rows),
        row_uniforms(0, Stream.CALIBRATION_SCORE, rows),
    ]
    for other in others:
        correlation = np.corrcoef(base[: other.size], other)[0, 1]
        assert abs(correlation) < 5 / np.sqrt(rows.size)
