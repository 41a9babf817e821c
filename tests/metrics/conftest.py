import numpy as np
import pytest
from kinds import FirstFeature
from report_cases import sets_that_cover


@pytest.fixture
def trust():
    return FirstFeature()


@pytest.fixture
def make_case(make_outputs):
    """Return a function that makes outputs and sets whose coverage is known."""

    def make(n=600, n_classes=6, seed=0, alpha=0.1, rate=None, **fields):
        rng = np.random.default_rng(seed)
        groups = {"sex": rng.choice(["f", "m"], size=n), "site": rng.choice(["a", "b", "c"], n)}
        outputs = make_outputs(n, n_classes, seed, **({"groups": groups} | fields))
        hits = rng.random(n) < (1.0 - alpha if rate is None else rate)
        return sets_that_cover(hits, outputs, seed, alpha), outputs

    return make
