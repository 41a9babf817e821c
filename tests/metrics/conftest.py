import numpy as np
import pytest

from trustsets import ModelOutputs, PredictionSets


class FirstFeature:
    """Stands in for a trust score: the first feature, made positive."""

    def score(self, features, predicted):
        return np.exp(np.asarray(features, dtype=float)[:, 0])


def sets_with(hits, codes, sizes, n_classes, alpha=0.1, classes=None):
    """Sets of given sizes that hold the label exactly where `hits` says."""
    n = len(hits)
    mask = np.zeros((n, n_classes), dtype=bool)
    for i in range(n):
        others = [c for c in range(n_classes) if c != codes[i]]
        members = ([codes[i]] if hits[i] else []) + others
        mask[i, members[: max(sizes[i], 1) if hits[i] else min(sizes[i], n_classes - 1)]] = True
    names = np.arange(n_classes) if classes is None else np.asarray(classes)
    return PredictionSets(mask, np.zeros(n), np.zeros(n, dtype=np.int8), alpha, names)


@pytest.fixture
def trust():
    return FirstFeature()


@pytest.fixture
def make_case():
    """Return a function that makes outputs and sets whose coverage is known."""

    def make(n=600, n_classes=6, seed=0, alpha=0.1, rate=None, features=None, **fields):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(n, n_classes)) * 2.0
        labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
        features = rng.normal(size=(n, 3)) if features is None else features
        rate = np.full(n, 1.0 - alpha) if rate is None else rate
        hits = rng.random(n) < rate
        sizes = rng.integers(0, n_classes + 1, size=n)
        groups = {"sex": rng.choice(["f", "m"], size=n), "site": rng.choice(["a", "b", "c"], n)}
        given = {"logits": logits, "labels": labels, "features": features, "groups": groups}
        outputs = ModelOutputs(**(given | fields))
        return sets_with(hits, labels, sizes, n_classes, alpha), outputs

    return make
