"""Random numbers for different purposes are independent, and the promises rest on that."""

from itertools import combinations
from typing import ClassVar

import numpy as np

from trustsets import ClusteredConformal, ConditionalConformal, Intercept
from trustsets._draws import Stream, row_uniforms
from trustsets.scores import RankScore

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


class Recorder(RankScore):
    """Softmax scores that keep the draws they are given."""

    kept: ClassVar[list[np.ndarray]] = []

    @property
    def randomized(self):
        return True

    def _raw(self, sorted_probabilities, draws):
        self.kept.append(draws.copy())
        return 1.0 - sorted_probabilities

    def _tail(self, sorted_probabilities, draws):
        return sorted_probabilities


def test_calibration_tuning_prediction_and_level_have_draws_of_their_own(make_outputs):
    """The same samples everywhere: equal rows and equal contents must not share a draw."""
    outputs = make_outputs(500)
    Recorder.kept.clear()
    clusters = ClusteredConformal(score=Recorder(), n_clusters=2).calibrate(outputs, tuning=outputs)
    clusters.predict_set(outputs)
    conditional = ConditionalConformal(score=Recorder(), basis=Intercept(), randomized=True)
    conditional.calibrate(outputs)
    level = conditional._draws(outputs)[0]
    calibration, tuning, prediction, again = Recorder.kept
    np.testing.assert_array_equal(again, calibration)
    for first, second in combinations((calibration, tuning, prediction, level), 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / np.sqrt(500)
