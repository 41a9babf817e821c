"""Coverage under label and covariate shift, over many simulations."""

import numpy as np
import pytest

from trustsets import (
    ConditionalConformal,
    Confidence,
    Custom,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    StandardConformal,
)
from trustsets.shift import ClassPrevalence, CovariateWeights, WeightModel

OLD, NEW = np.array([0.55, 0.3, 0.15]), np.array([0.1, 0.3, 0.6])


def draw(shares, n, rng):
    labels = rng.choice(3, p=shares, size=n)
    easy = np.array([2.6, 1.7, 0.8])[labels]
    logits = rng.normal(size=(n, 3)) + easy[:, None] * np.eye(3)[labels]
    return ModelOutputs(logits=1.5 * logits, labels=labels)


@pytest.mark.parametrize("kind", ["standard", "conditional"])
def test_known_shares_keep_the_guarantee(kind, monkeypatch):
    """On average, and for CONDITIONAL weighted by confidence, too.

    Weights that are left out cost 6 to 11 points, 10 standard errors or more: noticed for certain.
    """
    known = ClassPrevalence(NEW, NEW, NEW, OLD, 1.0)
    monkeypatch.setattr("trustsets.shift.estimate_prevalence", lambda *_: known)
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


TILT = 3.0
MAKERS = {
    "standard": lambda: StandardConformal(allow_empty=True),
    "mondrian": lambda: MondrianConformal(by=Groups("kind"), allow_empty=True),
    "conditional": lambda: ConditionalConformal(
        basis=Polynomial(1, (Confidence(),)), allow_empty=True
    ),
}


def draw_inputs(n, rng, tilt=0.0, blur=1.0):
    """Samples that are harder than the classifier thinks where the first feature is large."""
    hard = rng.uniform(size=20 * n)
    hard = hard[rng.uniform(size=hard.size) < np.exp(tilt * (hard - 1.0))][:n]
    z = rng.normal(size=(n, 4))
    labels = (blur * 3.0 * z * (1.2 - hard)[:, None] + rng.gumbel(size=z.shape)).argmax(axis=1)
    return ModelOutputs(
        logits=3.0 * z * (1.2 - 0.7 * hard)[:, None],
        labels=labels,
        features=hard[:, None],
        groups={"kind": np.where(z[:, 0] > 0.0, "a", "b")},
    )


def log_ratio(outputs):
    return TILT * outputs.features[:, :1]


def known_weights(calibration, *_):
    """The density ratio itself."""
    constant = np.log(TILT / (np.exp(TILT) - 1.0))
    coefficients = np.array([constant, 1.0])
    model = WeightModel(Custom(log_ratio), np.zeros(1), np.ones(1), False, coefficients)
    return model, CovariateWeights("it", model.of(calibration), 0, 1, 0, 1.0)


def gaps(adapted, plain, test, kind):
    """Coverage less 0.8 of both, on average and weighted by a function of the method's class."""
    weight = (test.groups["kind"] == "a") if kind == "mondrian" else 1.0 - test.confidence
    found = []
    for own in (adapted, plain):
        covered = own.predict_set(test, 0.2).covers(test.labels) - 0.8
        found += [covered.mean(), (covered * weight).mean()]
    return found


@pytest.mark.parametrize("kind", MAKERS)
def test_known_weights_keep_the_guarantee(kind, monkeypatch):
    """On average and over the method's own class, as its plain version does without a shift.

    Weights that are left out cost 4 to 6 points, 8 standard errors or more: noticed for certain.
    """
    monkeypatch.setattr("trustsets.shift.estimate_weights", known_weights)
    rng, found = np.random.default_rng(0), []
    for _ in range(150):
        calibration, test = draw_inputs(150, rng), draw_inputs(100, rng, TILT)
        plain = MAKERS[kind]().calibrate(calibration)
        found.append(gaps(plain.adapt(test, shift="covariate"), plain, test, kind))
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(len(found))
    functions = 1 if kind == "standard" else 2
    assert (mean > -3.0 * error)[:functions].all()
    assert mean[0] < 0.05 and mean[2] < -0.03


def test_estimated_weights_nearly_keep_it_unless_labels_have_changed():
    """Within a point of the promise; ten points below it where the assumption is false."""
    rng, right, wrong = np.random.default_rng(1), [], []
    for _ in range(25):
        calibration, new = draw_inputs(600, rng), draw_inputs(600, rng, TILT)
        plain = StandardConformal(allow_empty=True).calibrate(calibration)
        adapted = plain.adapt(new, shift="covariate", of="features")
        assert not adapted.weights_.doubts()
        for found, blur in ((right, 1.0), (wrong, 0.4)):
            test = draw_inputs(400, rng, TILT, blur)
            found.append(adapted.predict_set(test, 0.2).covers(test.labels).mean())
    assert abs(np.mean(right) - 0.8) < 0.01 + 3.0 * np.std(right) / np.sqrt(25)
    assert np.mean(wrong) < 0.7
