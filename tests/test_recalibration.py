import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, logsumexp

from trustsets import ClassBias, ModelOutputs, TemperatureScaling
from trustsets.errors import InputError, NotCalibratedError, StorageError, TrustSetsWarning
from trustsets.recalibration import ClassLikelihood, _without_harm
from trustsets.storage import read, write


def rare_classes(n=3000, n_classes=6, seed=0, shift=None):
    """Labels from a softmax, and logits whose classes are shifted away from it."""
    rng = np.random.default_rng(seed)
    true = 1.5 * rng.normal(size=(n, n_classes))
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    shift = np.zeros(n_classes) if shift is None else shift
    return ModelOutputs(logits=2.0 * (true - shift), labels=labels)


SHIFT = np.array([2.0, 1.0, 0.0, 0.0, -1.0, -2.0])


def test_fit_is_the_minimum_of_the_penalised_likelihood():
    outputs, strength = rare_classes(400, shift=SHIFT), 3.0
    codes = outputs.require_labels("the test")

    def objective(theta):
        logs = log_softmax(theta[0] * outputs.logits + theta[1:], axis=1)
        own = logs[np.arange(len(outputs)), codes].sum()
        return 0.5 * strength * theta[1:] @ theta[1:] - own

    slow = minimize(objective, np.r_[1.0, np.zeros(6)], options={"gtol": 1e-6})
    fast = ClassLikelihood(outputs.logits, codes).minimise(strength)
    assert objective(fast) == pytest.approx(slow.fun, rel=1e-7)
    np.testing.assert_allclose(fast, slow.x, atol=2e-3)


def test_a_shift_of_the_classes_is_found_and_undone():
    outputs = rare_classes(6000, shift=SHIFT)
    fitted = ClassBias().fit(outputs)
    found = fitted.bias_ - fitted.bias_.mean()
    # Logits are twice too large, so the shift is too: what is added is in their units.
    np.testing.assert_allclose(found, 2.0 * SHIFT, atol=0.25)
    right = fitted.transform(outputs).predicted_codes == outputs.codes
    assert right.mean() > np.mean(outputs.predicted_codes == outputs.codes) + 0.05


def test_where_nothing_is_gained_nothing_is_changed():
    chosen = [ClassBias().fit(rare_classes(300, seed=seed)) for seed in range(12)]
    unchanged = [fitted.strength_ == np.inf for fitted in chosen]
    assert np.mean(unchanged) >= 0.5
    for fitted, same in zip(chosen, unchanged, strict=True):
        assert fitted.bias_.any() != same
        assert np.abs(fitted.bias_).max() < 0.5


def test_rare_classes_are_not_lowered_against_the_average_sample():
    codes = np.repeat([0, 1, 2, 3], [60, 30, 6, 4])  # rare: fewer than 12.5
    bias = np.array([1.0, 0.0, -2.0, 3.0])
    mean = bias[codes].mean()
    np.testing.assert_array_equal(_without_harm(bias, codes), [1.0, 0.0, mean, 3.0])
    # As a fit does: class 5, whose logits are too high, is rare here.
    outputs = rare_classes(2000, shift=SHIFT)
    outputs = outputs.take((outputs.codes != 5) | (np.arange(2000) % 40 == 0))
    fitted = ClassBias().fit(outputs)
    theta = ClassLikelihood(outputs.logits, outputs.codes).minimise(fitted.strength_)
    plain = theta[1:] / theta[0]
    expected = np.append(plain[:5], plain[outputs.codes].mean())
    assert plain[5] < expected[5]
    np.testing.assert_allclose(fitted.bias_, expected, rtol=1e-12)


def test_a_bias_that_gains_on_average_alone_is_not_taken():
    """Even shares were learned, and one sample in 20 is of class 1: likelihood would drop it."""
    rng = np.random.default_rng(0)
    labels = (rng.random(2000) < 0.05).astype(int)
    x = rng.normal(size=2000) + 1.5 * labels
    logits = np.column_stack([np.zeros(2000), 1.5 * x - 1.125])
    fitted = ClassBias().fit(ModelOutputs(logits=logits, labels=labels))
    assert fitted.strength_ == np.inf and not fitted.bias_.any()


def test_order_of_samples_and_kind_of_outputs_do_not_matter():
    outputs = rare_classes(500, shift=SHIFT)
    bias = ClassBias().fit(outputs).bias_
    mixed = outputs.take(np.random.default_rng(1).permutation(500))
    np.testing.assert_allclose(ClassBias().fit(mixed).bias_, bias, atol=2e-3)
    same = ModelOutputs(probabilities=outputs.probabilities, labels=outputs.labels)
    np.testing.assert_allclose(ClassBias().fit(same).bias_, bias, atol=2e-3)


@pytest.mark.parametrize("shift", [None, SHIFT])
@pytest.mark.parametrize("prevalence", [0.0, np.float32(0.5)])
def test_saved_and_loaded_it_is_the_same(shift, prevalence, tmp_path):
    outputs = rare_classes(500, shift=shift)
    fitted = ClassBias(prevalence=prevalence).fit(outputs)
    write(tmp_path / "bias", fitted)
    again = read(tmp_path / "bias")
    np.testing.assert_array_equal(again.bias_, fitted.bias_)
    assert again.strength_ == fitted.strength_
    write(tmp_path / "unfitted", ClassBias(prevalence=prevalence))
    unfitted = read(tmp_path / "unfitted")
    assert not unfitted.is_fitted
    assert unfitted.prevalence == again.prevalence == prevalence


def test_prevalence_divides_probabilities_by_a_power_of_the_shares():
    """Bayes: from the shares of the samples to equal ones, where the biases themselves are 0."""
    rng = np.random.default_rng(0)
    shares = np.array([0.7, 0.2, 0.1])
    labels = rng.choice(3, size=4000, p=shares)
    x = 1.5 * np.eye(3)[labels] + rng.normal(size=(4000, 3))
    density = np.exp(1.5 * x)  # of each class at x, up to a factor of x
    outputs = ModelOutputs(
        probabilities=density * shares / (density @ shares)[:, None], labels=labels
    )
    plain, half, full = (ClassBias(prevalence=power).fit(outputs) for power in (0.0, 0.5, 1.0))
    assert not plain.bias_.any()
    counts = np.bincount(labels) + 1.0
    for fitted, power in ((half, 0.5), (full, 1.0)):
        ratios = outputs.probabilities / (counts / counts.sum()) ** power
        expected = ratios / ratios.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(fitted.transform(outputs).probabilities, expected, rtol=1e-12)
    even = density / density.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(full.transform(outputs).probabilities, even, atol=0.03)
    assert full.strength_ == plain.strength_


def test_prevalence_joins_the_biases_that_are_learned():
    outputs = rare_classes(500, shift=SHIFT)
    plain, full = (ClassBias(prevalence=power).fit(outputs) for power in (0.0, 2.0))
    assert plain.bias_.any()
    counts = np.bincount(outputs.codes) + 1.0
    expected = plain.bias_ - 2.0 * np.log(counts / counts.max())
    np.testing.assert_allclose(full.bias_, expected, rtol=1e-12)


def test_prevalence_of_unseen_single_and_equal_classes():
    def bias(labels, n_classes):
        logits = np.zeros((len(labels), n_classes))
        return ClassBias(prevalence=1.0).fit(ModelOutputs(logits=logits, labels=labels)).bias_

    np.testing.assert_allclose(bias([0, 0, 0, 1], 3), np.log([1.0, 2.0, 4.0]))
    assert not bias([0, 1, 2] * 5, 3).any()
    assert bias([0, 0], 1).tolist() == [0.0]
    np.testing.assert_allclose(bias([1], 2), np.log([2.0, 1.0]))  # one sample: no other bias


@pytest.mark.parametrize("bad", [-0.1, 10.5, np.nan, np.inf, "1", None, True, [1.0]])
def test_a_bad_prevalence_is_named(bad, tmp_path):
    with pytest.raises(InputError, match="prevalence must be a number between 0 and 10; got"):
        ClassBias(prevalence=bad).fit(rare_classes(20))
    with pytest.raises(StorageError, match=r"ClassBias\.prevalence must be a number"):
        write(tmp_path / "bias", ClassBias(prevalence=bad))


def test_a_shifted_view_equals_shifted_logits():
    outputs = rare_classes(50)
    view = outputs.shifted(SHIFT)
    plain = outputs.with_logits(outputs.logits + SHIFT)
    probabilities = ModelOutputs(probabilities=outputs.probabilities).shifted(SHIFT)
    for name in ("probabilities", "confidence", "predicted_codes", "logits"):
        np.testing.assert_allclose(getattr(view, name), getattr(plain, name), rtol=1e-13)
    np.testing.assert_allclose(probabilities.probabilities, plain.probabilities, atol=1e-14)
    np.testing.assert_array_equal(probabilities.predicted_codes, plain.predicted_codes)
    for back in (view.shifted(-SHIFT), view.with_logits(outputs.logits)):
        np.testing.assert_allclose(back.probabilities, outputs.probabilities, atol=1e-14)
    part = view.take([3, 1])
    np.testing.assert_allclose(part.probabilities, plain.probabilities[[3, 1]], rtol=1e-13)
    joined = ModelOutputs.concat([part, view.take([0])])
    np.testing.assert_allclose(joined.logits, plain.logits[[3, 1, 0]], rtol=1e-13)


@pytest.mark.parametrize("kind", [ClassBias, TemperatureScaling])
def test_bad_use_is_named(kind):
    outputs = rare_classes(50)
    with pytest.raises(NotCalibratedError, match="fit"):
        kind().transform(outputs)
    with pytest.raises(InputError, match="outputs must be ModelOutputs"):
        kind().fit(outputs.logits)
    with pytest.raises(InputError, match="needs labels"):
        kind().fit(ModelOutputs(logits=outputs.logits))


def test_biases_and_shifts_belong_to_their_classes():
    outputs = rare_classes(50)
    with pytest.raises(InputError, match="6 classes, but the biases are for 2"):
        ClassBias().fit(rare_classes(50, 2)).transform(outputs)
    with pytest.raises(InputError, match="shift must hold one finite number"):
        outputs.shifted(np.full(6, np.nan))
    with pytest.raises(InputError, match=r"parts\[1\] differs from parts\[0\] in its shift"):
        ModelOutputs.concat([outputs, outputs.shifted(SHIFT)])


def negative_log_likelihood(outputs, temperature):
    scaled = outputs.logits.astype(np.float64) / temperature
    own = scaled[np.arange(len(outputs)), outputs.codes]
    return np.mean(logsumexp(scaled, axis=1) - own)


@pytest.mark.parametrize("factor", [0.02, 0.3, 1.0, 4.0, 30.0])
def test_temperature_is_the_minimum(make_outputs, factor):
    plain = make_outputs(500)
    outputs = plain.with_logits(plain.logits * factor)
    fitted = TemperatureScaling().fit(outputs).temperature_
    best = minimize_scalar(
        lambda log_t: negative_log_likelihood(outputs, np.exp(log_t)),
        bounds=(-8, 6),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert fitted == pytest.approx(np.exp(best.x), rel=1e-5)
    assert negative_log_likelihood(outputs, fitted) <= best.fun + 1e-12


def test_transform_divides_the_logits(make_outputs):
    outputs = make_outputs()
    scaling = TemperatureScaling().fit(outputs)
    scaled = scaling.transform(outputs)
    np.testing.assert_allclose(scaled.logits, outputs.logits / scaling.temperature_)
    np.testing.assert_array_equal(scaled.labels, outputs.labels)
    assert TemperatureScaling().fit(scaled).temperature_ == pytest.approx(1.0, rel=1e-10)


def test_separated_labels_leave_the_temperature_alone():
    outputs = ModelOutputs(logits=np.eye(4), labels=np.arange(4))
    with pytest.warns(TrustSetsWarning, match="temperature stays 1"):
        assert TemperatureScaling().fit(outputs).temperature_ == 1.0


def test_worse_than_chance_stops_at_the_largest_temperature():
    outputs = ModelOutputs(logits=[[1.0, 0.0], [0.0, 1.0]], labels=[1, 0])
    with pytest.warns(TrustSetsWarning, match="no better than chance"):
        assert TemperatureScaling().fit(outputs).temperature_ == 100.0


@pytest.mark.parametrize("zeros", [1, 30, 200])
def test_labels_of_probability_zero_change_neither_temperature_nor_bias(zeros):
    """As of a forest: right for most samples, and sure of another class for some."""
    rng = np.random.default_rng(zeros)
    labels, probabilities = rng.integers(4, size=600), rng.dirichlet(np.full(4, 0.5), size=600)
    labels[zeros:] = [rng.choice(4, p=row**0.7 / np.sum(row**0.7)) for row in probabilities[zeros:]]
    probabilities[:zeros] = np.roll(np.eye(4), 1, axis=1)[labels[:zeros]]
    outputs = ModelOutputs(probabilities=probabilities, labels=labels)
    fitted = TemperatureScaling().fit(outputs).temperature_
    assert fitted == TemperatureScaling().fit(outputs[zeros:]).temperature_
    # Not by logits: as the scores have it.
    scaled = [outputs.block_probabilities(slice(zeros, None), fitted * x) for x in (0.99, 1, 1.01)]
    chances = np.log([p[np.arange(600 - zeros), labels[zeros:]] for p in scaled]).mean(axis=1)
    assert chances.argmax() == 1
    bias, other = ClassBias().fit(outputs), ClassBias().fit(outputs[zeros:])
    np.testing.assert_array_equal(bias.bias_, other.bias_)
