"""Predictors under label shift."""

import warnings

import numpy as np
import pytest
from scipy.optimize import linprog

from trustsets import (
    APS,
    Classes,
    ConditionalConformal,
    Confidence,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Softmax,
    StandardConformal,
    load,
)
from trustsets._quantiles import conformal_quantile
from trustsets.errors import InputError, NotCalibratedError, TrustSetsWarning
from trustsets.predictors.quantiles import weighted_quantiles
from trustsets.shift import ClassPrevalence, estimate_prevalence

OLD, NEW = np.array([0.55, 0.3, 0.15]), np.array([0.1, 0.3, 0.6])
RANKS = Polynomial(2, (Confidence("rank"),))


def draw(shares, n, seed, noise=1.0):
    """Classes are not equally hard, so coverage on average depends on their shares."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(shares), p=shares, size=n)
    easy = np.linspace(2.6, 0.8, len(shares))[labels]
    logits = noise * rng.normal(size=(n, len(shares))) + easy[:, None] * np.eye(len(shares))[labels]
    site = rng.choice(["a", "b"], size=n)
    names = range(len(shares))
    return ModelOutputs(logits=1.5 * logits, labels=labels, groups={"site": site}, classes=names)


def known(old, new):
    """Prevalences that are known, not estimated."""
    old, new = np.asarray(old, float), np.asarray(new, float)
    return ClassPrevalence(new, new, new, old, 1.0)


def adapt_to(monkeypatch, predictor, shares):
    """Adapt with known prevalences."""
    monkeypatch.setattr("trustsets.shift.estimate_prevalence", lambda *_: shares)
    return predictor.adapt(draw(NEW, 60, 0))


def program_threshold(phi, scores, weights, row, weight, alpha):
    """Threshold of a weighted new point, by the linear program that defines it."""
    n, p = phi.shape
    cost = np.concatenate([-(1 - alpha) * weight * row, (1 - alpha) * weights, alpha * weights])
    equal = np.hstack([phi, np.eye(n), -np.eye(n)])
    bounds = [(None, None)] * p + [(0, None)] * (2 * n)
    found = linprog(cost, A_eq=equal, b_eq=scores, bounds=bounds)
    return np.inf if found.status == 3 else float(row @ found.x[:p])


@pytest.mark.parametrize("basis", [RANKS, RANKS + Groups("site"), RANKS + Classes(penalty=2.0)])
def test_conditional_sets_are_those_of_weighted_linear_programs(basis, monkeypatch):
    calibration, test = draw(OLD, 80, 0), draw(NEW, 6, 1)
    predictor = ConditionalConformal(basis=basis, allow_empty=True)
    predictor.calibrate(calibration, tuning=draw(OLD, 50, 2))
    adapted = adapt_to(monkeypatch, predictor, known(OLD, NEW))
    sets = adapted.predict_set(test, 0.2)
    basis, penalty = predictor.conditions_on, predictor.state_.fitted.penalty
    weights = (NEW / OLD)[calibration.codes]
    phi, scores = basis.design(calibration), predictor.state_.scores
    rows, zeros = [phi, penalty, -penalty], np.zeros(2 * len(penalty))
    rows, scores = np.vstack(rows), np.concatenate([scores, zeros])
    weights = np.concatenate([weights, np.ones(len(zeros))])
    matrix = predictor.scores(test)
    for i in range(6):
        for y in range(3):
            row = basis.design_for(test.take([i]), np.array([y]))[0]
            exact = program_threshold(rows, scores, weights, row, (NEW / OLD)[y], 0.2)
            assert sets.mask[i, y] == (matrix[i, y] <= exact + 1e-9)
            long_row = (NEW / OLD)[y] * row[None]
            thresholds = adapted.original._cache["weighted"].thresholds(long_row, (0.2,))
            value = thresholds.values[0, 0] / (NEW / OLD)[y]
            np.testing.assert_allclose(value, exact, rtol=1e-7, atol=1e-9)
    assert 0 < sets.mask.sum() < 18


def test_weights_of_conditional_are_multiplicities(monkeypatch):
    """A whole weight on a sample is as many copies of it."""
    calibration, test = draw([0.5, 0.25, 0.25], 400, 3), draw(NEW, 800, 4)
    counts = np.array([1, 3, 2])
    tuning = draw(OLD, 100, 5)
    predictor = ConditionalConformal(basis=RANKS, allow_empty=True)
    predictor.calibrate(calibration, tuning=tuning)
    shares = known([1 / 3] * 3, counts / 6)
    adapted = adapt_to(monkeypatch, predictor, shares)
    copies = calibration.take(np.repeat(np.arange(400), counts[calibration.codes]))
    plain = ConditionalConformal(basis=RANKS, allow_empty=True).calibrate(copies, tuning=tuning)
    phi = plain.conditions_on.design(test)
    matrix = plain.scores(test)
    model = plain._problem.fit(0.1)
    sets = adapted.predict_set(test, 0.1)
    for y in range(3):
        # A new sample of weight 2 is one whose row is twice as long.
        exact = model.thresholds(counts[y] * phi).values / counts[y]
        np.testing.assert_array_equal(sets.mask[:, y], matrix[:, y] <= exact + 1e-9)
    # The case is real: without weights the sets are others.
    assert (sets.mask != predictor.predict_set(test, 0.1).mask).any()


@pytest.mark.parametrize("by_site", [False, True])
def test_each_sample_has_the_weight_of_its_own_label(by_site, monkeypatch):
    calibration, test = draw(OLD, 300, 6), draw(NEW, 20, 7)
    predictor = MondrianConformal(by=Groups("site")) if by_site else StandardConformal()
    predictor.calibrate(calibration)
    thresholds = adapt_to(monkeypatch, predictor, known(OLD, NEW)).predict_set(test, 0.1)
    ratio, scores = NEW / OLD, predictor.state_.scores
    for i in range(20):
        same = calibration.groups["site"] == test.groups["site"][i]
        own = same if by_site else np.ones(300, bool)
        weights = ratio[calibration.codes[own]]
        for y in range(3):
            goal = 0.9 * (weights.sum() + ratio[y]) - 1e-9
            reached = [s for s in scores[own] if weights[scores[own] <= s].sum() >= goal]
            assert thresholds.thresholds[i, y] == min(reached)


@pytest.mark.parametrize("seed", range(3))
def test_weighted_quantiles_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.normal(size=50).round(seed))
    weights, new = rng.integers(0, 4, size=50).astype(float), np.array([0.0, 1.0, 7.0])
    found = weighted_quantiles(scores, weights, new, (0.1, 0.37))
    for k, own in enumerate(new):
        for a, alpha in enumerate((0.1, 0.37)):
            goal = (1 - alpha) * (weights.sum() + own)
            fits = [s for s in scores if weights[scores <= s].sum() >= goal - 1e-9]
            assert found[k, a] == (min(fits) if fits else np.inf)
    for alpha in (0.01, 0.02, 0.1, 0.45):
        plain = weighted_quantiles(scores, np.full(50, 0.3), np.array([0.3]), (alpha,))
        assert plain[0, 0] == conformal_quantile(scores, alpha)
    assert np.isinf(weighted_quantiles(scores, np.zeros(50), new, (0.1,))).all()


@pytest.mark.parametrize(
    "predictor",
    [
        StandardConformal(),
        MondrianConformal(by=Groups("site")),
        MondrianConformal(by="class"),
        ConditionalConformal(basis=RANKS),
        ConditionalConformal(basis=RANKS + Groups("site", penalty=2.0), allow_empty=True),
        ConditionalConformal(basis=RANKS, per_class=True),
        ConditionalConformal(score=Softmax(), basis=Polynomial(1, (Confidence(),))),
    ],
)
@pytest.mark.parametrize("digits", [0, 9])
def test_equal_shares_change_no_set(predictor, digits, monkeypatch):
    calibration, test = draw(OLD, 300, 0), draw(OLD, 200, 1)
    rounded = calibration.with_logits(calibration.logits.round(digits))
    test = test.with_logits(test.logits.round(digits))
    predictor.calibrate(rounded)
    adapted = adapt_to(monkeypatch, predictor, known(OLD, OLD))
    for alpha in (0.1, 0.25):
        expected = predictor.predict_set(test, alpha)
        np.testing.assert_array_equal(adapted.predict_set(test, alpha).mask, expected.mask)


def test_coverage_given_the_class_needs_no_weights(monkeypatch):
    """Deterministic: fails if prevalences change class-conditional sets."""
    predictor = MondrianConformal(by="class").calibrate(draw(OLD, 400, 0))
    adapted, test = adapt_to(monkeypatch, predictor, known(OLD, NEW)), draw(NEW, 200, 1)
    mine, theirs = adapted.predict_set(test, 0.1), predictor.predict_set(test, 0.1)
    np.testing.assert_array_equal(mine.mask, theirs.mask)


def bayes(shares, n, seed):
    """Logits of the best classifier, but for a temperature and a constant for each class."""
    rng = np.random.default_rng(seed)
    labels, means = rng.choice(3, p=shares, size=n), np.array([2.6, 1.7, 0.8])
    x = rng.normal(size=(n, 3)) + np.diag(means)[labels]
    return ModelOutputs(logits=1.7 * (x * means - means**2 / 2 + [0.5, 0.0, -0.3]), labels=labels)


def test_intervals_of_prevalences_contain_the_true_values():
    """At least 90 of 100 intervals of 95%, and estimates as far off as their errors say."""
    results = [
        estimate_prevalence(bayes(OLD, 1500, s), bayes(NEW, 1500, 500 + s)) for s in range(40)
    ]
    inside = [(result.low <= NEW) & (NEW <= result.high) for result in results]
    assert np.mean(inside) > 0.9
    errors = np.array([result.estimate - NEW for result in results])
    stated = np.mean([(result.high - result.low) / 3.92 for result in results], axis=0)
    np.testing.assert_allclose(np.sqrt(np.mean(errors**2, axis=0)), stated, rtol=0.35)
    # False warnings are few.
    assert not any(result.doubts() for result in results)


@pytest.mark.parametrize("count", [1, 2, 49])
def test_a_handful_of_unlabelled_samples_is_refused(count):
    predictor = StandardConformal().calibrate(draw(OLD, 400, 0))
    with pytest.raises(InputError, match=f"50 unlabelled samples or more.* got {count}"):
        predictor.adapt(draw(NEW, count, 1))
    assert predictor.adapt(draw(NEW, 50, 1))


def test_a_false_assumption_is_noticed_and_costs_coverage():
    """The new samples are noisier, too: weights do not repair that, and adapt says so."""
    predictor = StandardConformal(allow_empty=True).calibrate(draw(OLD, 3000, 0))
    with pytest.warns(TrustSetsWarning, match="more than the prevalences has changed"):
        adapted = predictor.adapt(draw(NEW, 2000, 1, noise=2.0))
    test = draw(NEW, 4000, 2, noise=2.0)
    assert adapted.predict_set(test, 0.1).covers(test.labels).mean() < 0.85
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor.adapt(draw(NEW, 2000, 1))


def test_an_adapted_predictor_is_saved_and_says_what_it_guarantees(tmp_path):
    calibration, test = draw(OLD, 400, 0), draw(NEW, 300, 1)
    for predictor in (StandardConformal(score=APS()), ConditionalConformal(basis=RANKS)):
        adapted = predictor.calibrate(calibration).adapt(test)
        adapted.save(tmp_path / "a.trustsets")
        again = load(tmp_path / "a.trustsets")
        mine, theirs = adapted.predict_set(test, (0.1, 0.2)), again.predict_set(test, (0.1, 0.2))
        np.testing.assert_array_equal(mine.mask, theirs.mask)
        assert mine.thresholds.shape == (300, 3, 2)
        p_values = adapted.predict_p(test, (0.1, 0.2))
        np.testing.assert_array_equal(p_values > 0.1, mine.mask[..., 0])
        assert "if only the class prevalences differ" in again.summary()
        np.testing.assert_array_equal(again.prevalence_.estimate, adapted.prevalence_.estimate)
        with pytest.raises(InputError, match="original"):
            adapted.calibrate(calibration)
        with pytest.raises(InputError, match="original"):
            adapted.update(test)
        with pytest.raises(InputError, match="original"):
            adapted.forget(slice(0, 3))


def test_classes_without_samples_or_without_a_share_do_no_harm():
    calibration = draw([0.7, 0.3, 0.0], 400, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustSetsWarning)
        adapted = StandardConformal().calibrate(calibration).adapt(draw([1.0, 0.0, 0.0], 300, 1))
        conditional = ConditionalConformal(basis=RANKS).calibrate(calibration)
        other = conditional.adapt(draw([1.0, 0.0, 0.0], 300, 1))
    assert adapted.prevalence_.estimate[2] == 0.0 and adapted.prevalence_.estimate[0] > 0.95
    # Nothing is known of a class that calibration lacks.
    assert (adapted.prevalence_.low[2], adapted.prevalence_.high[2]) == (0.0, 1.0)
    for own in (adapted, other):
        thresholds = own.predict_set(draw(OLD, 30, 2), 0.1).thresholds
        assert not np.isnan(thresholds).any()


def test_wrong_input_is_refused(tmp_path):
    outputs = draw(OLD, 200, 0)
    predictor = StandardConformal().calibrate(outputs)
    with pytest.raises(InputError, match="shift"):
        predictor.adapt(outputs, shift="concept")
    with pytest.raises(InputError, match="classes"):
        predictor.adapt(ModelOutputs(logits=np.zeros((5, 2))))
    for other in (
        ConditionalConformal(basis=RANKS, randomized=True),
        MondrianConformal.paper(by=Groups("site"), temperature=1.0),
    ):
        with pytest.raises(InputError, match="adapt needs"):
            other.calibrate(outputs).adapt(outputs)
    predictor.save(tmp_path / "a.trustsets")
    with pytest.raises(NotCalibratedError, match="calibration samples"):
        load(tmp_path / "a.trustsets").adapt(outputs)


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
@pytest.mark.parametrize("shift", ["label", "covariate"])
@pytest.mark.parametrize("n_classes", [1, 2])
@pytest.mark.parametrize("m", [1, 3])
def test_one_class_and_one_sample_work(m, n_classes, shift):
    rng = np.random.default_rng(0)
    outputs = ModelOutputs(
        logits=rng.normal(size=(200, n_classes)),
        labels=np.arange(200) % n_classes,
        groups={"site": ["a", "b"] * 100},
    )
    for predictor in (
        StandardConformal(),
        MondrianConformal(by="class"),
        MondrianConformal(by=Groups("site")),
        ConditionalConformal(basis=Groups("site")),
    ):
        adapted = predictor.calibrate(outputs).adapt(outputs, shift=shift)
        sets = adapted.predict_set(outputs.take(np.arange(m)), 0.1)
        assert sets.mask.shape == (m, n_classes) and sets.mask.any(axis=1).all()


@pytest.mark.parametrize("weight", [1.0, 0.1, 1.0 / 3.0])
def test_equal_weights_give_the_split_conformal_quantile(weight):
    """Whatever the weight: sums of it are rounded, and the rank must not be off by one."""
    alphas = (0.05, 0.1, 0.2, 0.25, 0.4, 0.5)
    for n in range(1, 200):
        scores, weights = np.arange(float(n)), np.full(n, weight)
        values = weighted_quantiles(scores, weights, np.array([weight]), alphas)[0]
        np.testing.assert_array_equal(values, [conformal_quantile(scores, a) for a in alphas])


def test_a_class_that_calibration_lacks_keeps_its_weight():
    shares = ClassPrevalence(
        estimate=np.array([0.2, 0.8, 0.0]),
        low=np.zeros(3),
        high=np.ones(3),
        calibration=np.array([0.4, 0.6, 0.0]),
        fit_p=1.0,
    )
    np.testing.assert_allclose(shares.weights, [0.5, 4.0 / 3.0, 1.0])
