import numpy as np
import pytest

from trustsets import ModelOutputs


@pytest.fixture
def make_samples():
    """Return a function that makes outputs with everything a column can come from, and trust."""

    def make(n=2000, n_classes=6, seed=0, **changes):
        rng = np.random.default_rng(seed)
        logits = 1.5 * rng.normal(size=(n, n_classes))
        fields = {
            "logits": logits,
            "labels": (logits + rng.gumbel(size=logits.shape)).argmax(axis=1),
            "features": rng.normal(size=(n, 4)) * [4.0, 2.0, 1.0, 0.5],
            "groups": {"sex": rng.choice(["f", "m"], n), "site": rng.choice(list("abcd"), n)},
        }
        return ModelOutputs(**(fields | changes)), rng.gamma(4.0, 0.4, size=n)

    return make


@pytest.fixture
def draw():
    """Return a function that draws hits: one coverage inside a region, another elsewhere."""

    def hits(region, inside=0.6, elsewhere=0.93, seed=1):
        rng = np.random.default_rng(seed)
        return rng.random(len(region)) < np.where(region, inside, elsewhere)

    return hits
