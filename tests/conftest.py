import numpy as np
import pytest

from trustsets import ModelOutputs


def simulated_logits(n: int, n_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are 1.7 times too large, and labels drawn from the right ones."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, n_classes)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return 1.7 * true, labels


@pytest.fixture
def make_outputs():
    """Return a function that makes simulated outputs with labels, features and groups."""

    def make(n: int = 200, n_classes: int = 5, seed: int = 0, **changes) -> ModelOutputs:
        logits, labels = simulated_logits(n, n_classes, seed)
        rng = np.random.default_rng(seed + 1)
        fields = {
            "logits": logits,
            "labels": labels,
            "features": rng.normal(size=(n, 3)),
            "groups": {"site": rng.choice(["a", "b", "c"], size=n)},
        }
        return ModelOutputs(**(fields | changes))

    return make
