"""Coverage at the alpha of each sample, where P(Y | X) is known and alphas depend on the inputs."""

import numpy as np
import pytest

from trustsets import ConditionalConformal, Confidence, ModelOutputs, Polynomial, Softmax

pytestmark = pytest.mark.statistical

N_CLASSES, SIZE = 4, 2
BASIS = Polynomial(degree=2, of=(Confidence(),))


def simulate(n, rng):
    """Outputs of an overconfident classifier, and the true probabilities."""
    logits = rng.normal(size=(n, N_CLASSES)) * rng.uniform(0.3, 4.0, size=(n, 1))
    true = np.exp(0.6 * (logits - logits.max(axis=1, keepdims=True)))
    true /= true.sum(axis=1, keepdims=True)
    labels = (true.cumsum(axis=1) > rng.uniform(size=(n, 1))).argmax(axis=1)
    return ModelOutputs(logits=logits, labels=labels, classes=np.arange(N_CLASSES)), true


def alpha_of(outputs):
    """Sure samples are promised more, in steps: few alphas need few fits."""
    return np.round(0.05 + 0.5 * (1.0 - outputs.confidence), 1).clip(0.05)


def weights(outputs):
    """Functions of the class, none of them negative."""
    confidence = outputs.confidence
    return np.stack([np.ones(len(outputs)), confidence, (confidence - 0.7) ** 2])


def summary(gaps):
    gaps = np.array(gaps)
    return gaps.mean(axis=0), gaps.std(axis=0, ddof=1) / np.sqrt(len(gaps))


def test_randomised_coverage_is_exact_at_the_alpha_of_each_sample():
    """A bias of one sample in 60 is 5 to 7 standard errors: noticed in 99% of runs."""
    rng, gaps, wrong = np.random.default_rng(0), [], []
    for repeat in range(400):
        calibration, _ = simulate(60, rng)
        test, true = simulate(200, rng)
        predictor = ConditionalConformal(
            score=Softmax(), basis=BASIS, randomized=True, allow_empty=True, random_state=repeat
        ).calibrate(calibration, alphas=alpha_of(calibration))
        for found, own in ((gaps, predictor), (wrong, without_alphas(predictor, calibration))):
            sets = own.predict_set(test, sample_alphas=alpha_of(test))
            gap = (sets.mask * true).sum(axis=1) - (1.0 - sets.alpha)
            found.append(weights(test) @ gap / weights(test).sum(axis=1))
    mean, error = summary(gaps)
    assert (np.abs(mean) < 4.0 * error).all(), (mean, error)
    # The sets of one alpha at a time, which promise less, would be seen to differ.
    mean, error = summary(wrong)
    assert (np.abs(mean) > 4.0 * error).any(), (mean, error)


def without_alphas(predictor, calibration):
    return ConditionalConformal(**predictor.get_params(deep=False)).calibrate(calibration)


def test_sets_of_limited_size_keep_what_they_promise():
    """A bias of one sample in 50 is 5 standard errors: noticed in 90% of runs."""
    rng, exact, promised = np.random.default_rng(1), [], []
    for repeat in range(300):
        (calibration, _), (tuning, _), (test, true) = (simulate(n, rng) for n in (50, 60, 200))
        over = weights(test) / weights(test).sum(axis=1, keepdims=True)
        setting = {"score": Softmax(), "basis": BASIS, "allow_empty": True, "random_state": repeat}
        drawn = ConditionalConformal(randomized=True, **setting)
        drawn.calibrate(calibration, tuning=tuning)
        exact.append(over @ truncated_gap(drawn, test, true))
        plain = ConditionalConformal(**setting).calibrate(calibration, tuning=tuning)
        sets = plain.predict_set(test, max_size=SIZE)
        gap = (sets.mask * true).sum(axis=1) - (1.0 - sets.alpha)
        promised.append(over @ (gap + (sets.alpha == 1.0)))
    # The sets of the truncated score, before they are cut, are covered exactly.
    mean, error = summary(exact)
    assert (np.abs(mean) < 4.0 * error).all(), (mean, error)
    assert (error < 1.0 / 51 / 4).all()
    # Coverage is what is promised, up to the share of samples without a promise.
    mean, error = summary(promised)
    assert (mean > -4.0 * error).all(), (mean, error)


def truncated_gap(predictor, test, true):
    """Coverage of {y : s'(x, y) <= S*(x)} less what it should be, for each sample."""
    limits = predictor.state_.fitted.size_limits
    thresholds, _ = predictor._sized_thresholds(test, 0.1, SIZE)
    alphas = limits.alphas(predictor.conditions_on.design(test), 0.1, SIZE)
    scores = Softmax().matrix(test)
    beyond = limits.beyond + 1e-5 * scores / (1.0 + scores)
    # Softmax scores fall as probabilities rise, so the most likely classes have the lowest ones.
    is_likely = scores.argsort(axis=1, kind="stable").argsort(axis=1) < SIZE
    cut = np.where(is_likely, scores, beyond)
    return ((cut <= thresholds.values) * true).sum(axis=1) - (1.0 - alphas)
