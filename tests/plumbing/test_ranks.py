"""Laws of ranks: those of a stable sort, however many probabilities are equal."""

import numpy as np
import pytest

from trustsets._arrays import ranks_of


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
