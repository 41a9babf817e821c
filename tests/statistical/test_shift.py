"""Coverage under label shift with known shares, over many simulations."""

import numpy as np
import pytest

from trustsets import ConditionalConformal, Confidence, ModelOutputs, Polynomial, StandardConformal
from trustsets.predictors.shares import ClassShares

OLD, NEW = np.array([0.55, 0.3, 0.15]), np.array([0.1, 0.3, 0.6])


def draw(shares, n, rng):
    labels = rng.choice(3, p=shares, size=n)
    easy = np.array([2.6, 1.7, 0.8])[labels]
    logits = rng.normal(size=(n, 3)) + easy[:, None] * np.eye(3)[labels]
    return ModelOutputs(logits=1.5 * logits, labels=labels)


@pytest.mark.parametrize("kind", ["standard", "conditional"])
def test_known_shares_keep_the_guarantee(kind, monkeypatch):
    """On average, and for CONDITIONAL weighted by confidence, too; not so without weights."""
    known = ClassShares(NEW, NEW, NEW, NEW, NEW, NEW, OLD, 1.0)
    monkeypatch.setattr("trustsets.predictors.shift.estimate_shares", lambda *_: known)
    rng = np.random.default_rng(0)
    adapted, plain = [], []
    for _ in range(150):
        calibration, test = draw(OLD, 150, rng), draw(NEW, 100, rng)
        if kind == "standard":
            predictor = StandardConformal(allow_empty=True).calibrate(calibration)
        else:
            basis = Polynomial(1, (Confidence(),))
            predictor = ConditionalConformal(basis=basis, allow_empty=True).calibrate(calibration)
        for found, own in ((adapted, predictor.adapt(test)), (plain, predictor)):
            covered = own.predict_set(test, 0.2).covers(test.labels) - 0.8
            found.append([covered.mean(), (covered * (1.0 - test.confidence)).mean()])
    error = np.std(adapted, axis=0) / np.sqrt(len(adapted))
    functions = 1 if kind == "standard" else 2
    assert (np.mean(adapted, axis=0) > -3.0 * error)[:functions].all()
    assert np.mean(adapted, axis=0)[0] < 0.05
    assert np.mean(plain, axis=0)[0] < -0.03
