"""Laws of ranks: those of a stable sort, however many probabilities are equal."""

import numpy as np
import pytest

from trustsets._arrays import count_up_to, most_likely, ranks_of


@pytest.fixture(params=[2, 5, 1000])
def probabilities(request):
    """Rows of few different values (many ties) up to none."""
    return np.random.default_rng(0).integers(0, request.param, size=(300, 7)).astype(float)


def order(probabilities):
    return np.argsort(-probabilities, axis=1, kind="stable")


def test_ranks_are_places_in_a_stable_sort(probabilities):
    codes = np.random.default_rng(1).integers(0, 7, len(probabilities))
    expected = [
        list(row).index(code) for row, code in zip(order(probabilities), codes, strict=True)
    ]
    assert ranks_of(probabilities, codes).tolist() == expected


def test_the_most_likely_are_the_first_of_a_stable_sort(probabilities):
    ranked = -np.sort(-probabilities, axis=1)
    for count in range(8):
        mask = most_likely(probabilities, ranked, np.full(len(probabilities), count))
        for row, first in zip(mask, order(probabilities), strict=True):
            assert sorted(np.flatnonzero(row)) == sorted(first[:count])


def test_counts_of_scores_up_to_a_threshold():
    by_rank = np.sort(np.random.default_rng(0).integers(0, 4, size=(200, 6)), axis=1).astype(float)
    thresholds = np.random.default_rng(1).choice([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, np.inf], 200)
    expected = [sum(row <= bound) for row, bound in zip(by_rank, thresholds, strict=True)]
    assert count_up_to(by_rank, thresholds).tolist() == expected
