"""Predictors for other inputs than those of calibration."""

import warnings

import numpy as np
import pytest
from scipy.optimize import linprog

from trustsets import (
    Classes,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Custom,
    Entropy,
    Groups,
    Intercept,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Softmax,
    StandardConformal,
    load,
)
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.shift import CovariateWeights, WeightModel, _cross_fit, _normalised, estimate_weights
from trustsets.status import Status

RANKS = Polynomial(2, (Confidence("rank"),))
BOTH = "ignore:.*:trustsets.errors.TrustSetsWarning"


def draw(n, seed, tilt=0.0, move=0.0):
    """Samples that are harder than the classifier thinks where the first feature is large."""
    rng = np.random.default_rng(seed)
    hard = rng.uniform(size=40 * n)
    hard = hard[rng.uniform(size=hard.size) < np.exp(tilt * hard - max(tilt, 0.0))][:n]
    z = rng.normal(size=(n, 4))
    labels = (3.0 * z * (1.2 - hard)[:, None] + rng.gumbel(size=(n, 4))).argmax(axis=1)
    return ModelOutputs(
        logits=3.0 * z * (1.2 - 0.7 * hard)[:, None],
        labels=labels,
        features=np.column_stack([hard + move, z]),
        groups={"site": np.where(hard > 0.6, "a", "b")},
        classes=range(4),
    )


def log_weight(outputs):
    """A known logarithm of the weight, from -1 to 2."""
    return np.asarray(3.0 * outputs.features[:, :1] - 1.0, np.float64)


def adapt_to(monkeypatch, predictor, function=log_weight):
    """Adapt with known weights."""
    model = WeightModel(Custom(function), np.zeros(1), np.ones(1), False, np.array([0.0, 1.0]))

    def known(calibration, *_):
        own = model.of(calibration)
        return model, CovariateWeights("it", own, 0, 1, 0, 1.0, 1.0)

    monkeypatch.setattr("trustsets.shift.estimate_weights", known)
    return predictor.adapt(draw(5, 0), shift="covariate")


def program_threshold(problem, row, weight, alpha):
    """Threshold of a weighted new sample, by the linear program that defines it."""
    phi, scores, weights = problem
    n, p = phi.shape
    cost = np.concatenate([-(1 - alpha) * weight * row, (1 - alpha) * weights, alpha * weights])
    equal = np.hstack([phi, np.eye(n), -np.eye(n)])
    bounds = [(None, None)] * p + [(0, None)] * (2 * n)
    found = linprog(cost, A_eq=equal, b_eq=scores, bounds=bounds)
    return np.inf if found.status == 3 else float(row @ found.x[:p])


def slow_threshold(predictor, row, weight, alpha):
    """Threshold by linear programs; with a group penalty it is limited by those of two others."""
    fitted, scores = predictor.state_.fitted, predictor.state_.scores
    calibration = predictor.calibration_
    phi, own = fitted.basis.design(calibration), np.exp(log_weight(calibration))

    def solve(alpha, multiple):
        rows = [fitted.penalty]
        rows += [] if fitted.group_penalty is None else [multiple * fitted.group_penalty]
        penalty = np.vstack(rows) if multiple else fitted.penalty
        zeros = np.zeros(2 * len(penalty))
        weights = np.concatenate([own[:, 0], np.ones(zeros.size)])
        problem = np.vstack([phi, penalty, -penalty]), np.append(scores, zeros), weights
        return program_threshold(problem, row, weight, alpha)

    if fitted.group_penalty is None:
        return solve(alpha, 0.0)
    low, high = solve(alpha, 1.0), solve(alpha / 4, 2.0)
    return np.clip(solve(alpha, 0.0), low, max(low, high))


@pytest.mark.parametrize(
    "basis",
    [
        RANKS,
        Polynomial(3, (Confidence("rank"),), penalty=2.0),
        RANKS + Groups("site", penalty=2.0),
        RANKS + Classes(penalty=2.0),
    ],
)
@pytest.mark.parametrize("digits", [1, 9])
def test_conditional_sets_are_those_of_weighted_linear_programs(basis, digits, monkeypatch):
    calibration, test = draw(80, 0), draw(8, 1, tilt=3.0)
    calibration = calibration.with_logits(calibration.logits.round(digits))
    predictor = ConditionalConformal(basis=basis, allow_empty=True)
    predictor.calibrate(calibration, tuning=draw(50, 2))
    adapted = adapt_to(monkeypatch, predictor)
    sets = adapted.predict_set(test, 0.2)
    fitted, new = predictor.conditions_on, np.exp(log_weight(test)[:, 0])
    matrix = predictor.scores(test)
    for i in range(8):
        exact = [
            slow_threshold(
                predictor,
                fitted.design_for(test.take([i]), np.array([y]))[0],
                new[i],
                0.2,
            )
            for y in (range(4) if fitted.uses_label else range(1))
        ]
        np.testing.assert_array_equal(sets.mask[i], matrix[i] <= np.array(exact) + 1e-9)
        if not fitted.uses_label:
            np.testing.assert_allclose(sets.thresholds[i], exact[0], rtol=1e-9, atol=1e-9)
    assert 0 < sets.mask.sum() < 32
    assert (sets.thresholds != predictor.predict_set(test, 0.2).thresholds).any()


@pytest.mark.parametrize("by", [None, Groups("site"), "class"])
def test_quantiles_count_weights(by, monkeypatch):
    """The smallest score up to which weights reach their share, the new sample's counted."""
    calibration, test = draw(300, 3), draw(40, 4)
    predictor = StandardConformal() if by is None else MondrianConformal(by=by)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustSetsWarning)
        adapted = adapt_to(monkeypatch, predictor.calibrate(calibration))
    found = adapted.predict_set(test, 0.1).thresholds
    weights, new = np.exp(log_weight(calibration)[:, 0]), np.exp(log_weight(test)[:, 0])
    scores = predictor.state_.scores
    for i in range(40):
        for y in range(4 if by == "class" else 1):
            own = np.ones(300, bool)
            if by == "class":
                own = calibration.codes == y
            elif by is not None:
                own = calibration.groups["site"] == test.groups["site"][i]
            goal = 0.9 * (weights[own].sum() + new[i]) - 1e-9
            reached = [s for s in scores[own] if weights[own & (scores <= s)].sum() >= goal]
            expected = min(reached, default=np.inf)
            assert (found[i, y] if by == "class" else found[i]) == expected


@pytest.mark.parametrize(
    "predictor",
    [
        StandardConformal(),
        MondrianConformal(by=Groups("site")),
        MondrianConformal(by="class"),
        ConditionalConformal(basis=RANKS),
        ConditionalConformal(basis=Intercept()),
        ConditionalConformal(basis=RANKS + Groups("site", penalty=2.0), allow_empty=True),
        ConditionalConformal(basis=RANKS, per_class=True),
        ConditionalConformal(score=Softmax(), basis=Polynomial(1, (Confidence(),))),
    ],
)
@pytest.mark.parametrize("digits", [0, 9])
def test_equal_weights_change_no_set(predictor, digits, monkeypatch):
    calibration, test = draw(300, 0), draw(200, 1)
    calibration = calibration.with_logits(calibration.logits.round(digits))
    test = test.with_logits(test.logits.round(digits))
    predictor.calibrate(calibration)
    adapted = adapt_to(monkeypatch, predictor, lambda outputs: 0.0 * log_weight(outputs))
    for alpha in (0.1, 0.25):
        expected = predictor.predict_set(test, alpha)
        np.testing.assert_array_equal(adapted.predict_set(test, alpha).mask, expected.mask)


def test_ties_are_within_the_thresholds_they_make(monkeypatch):
    """With constants alone, thresholds are weighted quantiles; most scores are tied."""
    calibration, test = draw(300, 0), draw(200, 1)
    calibration = calibration.with_logits(calibration.logits.round(0))
    test = test.with_logits(test.logits.round(0))
    fits = ConditionalConformal(score=Softmax(), basis=Intercept(), class_bias=None).calibrate(
        calibration
    )
    quantiles = StandardConformal(score=Softmax()).calibrate(calibration)
    for alpha in (0.05, 0.1, 0.25):
        mine, theirs = (adapt_to(monkeypatch, own) for own in (fits, quantiles))
        expected = theirs.predict_set(test, alpha)
        np.testing.assert_array_equal(mine.predict_set(test, alpha).mask, expected.mask)


def test_no_sample_is_weighted_by_a_model_that_saw_it():
    """Deterministic: fails if the weight of a sample depends on itself."""
    numbers, seen = np.arange(40.0), []
    is_new, folds = numbers >= 25, np.arange(40) % 5

    def fit(columns, _):
        seen.append(set(columns[:, 0]))
        return np.array([0.0, float(len(seen))])

    logs, mean = _cross_fit(fit, numbers[:, None], is_new, folds)
    for fold, own in enumerate(seen):
        assert own == set(numbers[folds != fold])
        out = folds == fold
        offset = np.log(np.sum(~is_new & ~out) / np.sum(is_new & ~out))
        np.testing.assert_allclose(logs[out], (fold + 1) * numbers[out] + offset)
    assert mean[1] == 3.0


@pytest.mark.parametrize("of", ["features", lambda outputs: outputs.features[:, :1]])
def test_weights_are_near_the_density_ratio(of):
    calibration, new = draw(3000, 0), draw(3000, 1, tilt=2.0)
    model, found = estimate_weights(calibration, new, of, None, 0)
    test = draw(2000, 2)
    for outputs, own in ((calibration, found.weights), (test, model.of(test))):
        truth = np.exp(2.0 * outputs.features[:, 0]) * 2.0 / (np.exp(2.0) - 1.0)
        assert np.abs(own - truth).mean() < 0.12  # 0.55 without weights
    assert found.doubts() == [] and found.n_outside == 0
    squares = np.sum(found.weights**2)
    assert found.effective_size == pytest.approx(found.weights.sum() ** 2 / squares)
    assert 1800 < found.effective_size < 2700


def test_weights_do_not_depend_on_the_order_of_samples():
    calibration, new = draw(300, 0), draw(200, 1, tilt=2.0)
    order, other = np.random.default_rng(0).permutation(300), np.arange(200)[::-1]
    plain = [own.replace(rows=np.arange(len(own))) for own in (calibration, new)]
    mixed = [plain[0].take(order), plain[1].take(other)]
    for of in ("statistics", "features", Groups("site")):
        found = estimate_weights(*plain, of, None, 0)[1]
        again = estimate_weights(*mixed, of, None, 0)[1]
        np.testing.assert_allclose(again.weights, found.weights[order], rtol=1e-6)


def test_large_weights_are_clipped_and_tiny_ones_dropped():
    weights = np.array([1e-9] + [1.0] * 98 + [1e6])
    found, mean, n_clipped = _normalised(weights)
    clip = 10.0 * weights.mean()
    np.testing.assert_allclose(found, np.minimum(weights, clip) / mean * (weights > 1e-8))
    assert n_clipped == 1 and found.mean() == pytest.approx(1.0)
    text = CovariateWeights("it", found, n_clipped, 5, 0, 1.0, 1.0).doubts()
    assert len(text) == 1 and "1 of 100" in text[0] and "10 times" in text[0]


@pytest.mark.parametrize(
    "predictor",
    [
        StandardConformal(allow_empty=True),
        MondrianConformal(by=Groups("site"), allow_empty=True),
        ConditionalConformal(basis=RANKS, allow_empty=True),
    ],
)
def test_samples_outside_have_full_sets_and_a_warning(predictor):
    """Deterministic: fails if such samples have small sets or `adapt` is silent."""
    predictor.calibrate(draw(400, 0), tuning=draw(100, 9))
    far, near = draw(300, 1, move=5.0), draw(300, 2)
    with pytest.warns(TrustSetsWarning, match="300 of 300 unlabelled samples are where there are"):
        adapted = predictor.adapt(far, shift="covariate", of="features")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustSetsWarning)
        sets = adapted.predict_set(far, 0.1)
        # A blind choice of `of` is noticed, too.
        blind = predictor.adapt(far, shift="covariate")
    assert sets.mask.all() and (sets.status == Status.HIGH_LEVERAGE).all()
    assert any("Features" in text for text in blind.weights_.doubts())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert predictor.adapt(near, shift="covariate").weights_.effective_size > 390


def test_changed_labels_are_not_seen_and_cost_coverage():
    """The assumption is false, and no unlabelled sample can show it."""
    predictor = StandardConformal(allow_empty=True).calibrate(draw(2000, 0))
    adapted = predictor.adapt(draw(2000, 1, tilt=2.0), shift="covariate", of="features")
    assert adapted.weights_.doubts() == []
    test, rng = draw(4000, 2, tilt=2.0), np.random.default_rng(3)
    right = adapted.predict_set(test, 0.1).covers(test.labels)
    changed = np.where(rng.uniform(size=4000) < 0.3, rng.integers(4, size=4000), test.labels)
    assert right.mean() > 0.88 and adapted.predict_set(test, 0.1).covers(changed).mean() < 0.85


def test_a_small_effective_size_is_stated():
    """Deterministic: fails if few effective samples pass in silence."""
    predictor = StandardConformal().calibrate(draw(400, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustSetsWarning)
        adapted = predictor.adapt(draw(400, 1, tilt=9.0), shift="covariate", of="features")
    size = adapted.weights_.effective_size
    assert size < 150 and f"effective sample size is {size:,.0f}" in adapted.summary()
    with pytest.warns(TrustSetsWarning, match="few for alpha=0.01"):
        adapted.predict_set(draw(5, 2), 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted.predict_set(draw(5, 2), 0.2)
        adapted.predict_p(draw(5, 2))


def columns(outputs):
    """Columns of one's own, which a file can name."""
    return outputs.features[:, :2]


@pytest.mark.filterwarnings(BOTH)
@pytest.mark.parametrize("of", ["statistics", "features", Groups("site"), columns])
def test_an_adapted_predictor_is_saved_and_says_what_it_guarantees(of, tmp_path):
    calibration, new, test = draw(400, 0), draw(300, 1, tilt=2.0), draw(100, 2, tilt=2.0)
    for predictor in (
        StandardConformal(),
        MondrianConformal(by="class"),
        ConditionalConformal(basis=Polynomial(2, (Entropy("rank"),))),
    ):
        adapted = predictor.calibrate(calibration).adapt(new, shift="covariate", of=of)
        adapted.save(tmp_path / "a.trustsets")
        again = load(tmp_path / "a.trustsets")
        mine, theirs = adapted.predict_set(test, (0.1, 0.2)), again.predict_set(test, (0.1, 0.2))
        np.testing.assert_array_equal(mine.mask, theirs.mask)
        np.testing.assert_array_equal(mine.thresholds, theirs.thresholds)
        alone = adapted.predict_set(test.take([7]), (0.1, 0.2))
        np.testing.assert_array_equal(alone.thresholds[0], mine.thresholds[7])
        p_values = adapted.predict_p(test, (0.1, 0.2))
        np.testing.assert_array_equal(p_values > 0.1, mine.mask[..., 0])
        assert "up to the error of estimated weights" in again.summary()
        assert again.uses_features or of != "features"
        np.testing.assert_array_equal(again.weights_.weights, adapted.weights_.weights)
        assert not hasattr(again, "prevalence_")
        with pytest.raises(InputError, match="original"):
            adapted.update(test)


def test_wrong_input_is_refused():
    outputs, few = draw(200, 0), draw(10, 1)
    predictor = StandardConformal().calibrate(outputs)

    def refuse(match, given=outputs, own=predictor, **options):
        with pytest.raises(InputError, match=match):
            own.adapt(given, shift="covariate", **options)

    refuse("of must be", of="colour")
    refuse("of must be", of=3)
    refuse(r"outputs\.rows", of=(np.zeros((200, 1)), np.zeros((200, 1))))
    refuse("of must be", of=np.zeros(3))
    refuse("20 calibration samples", few)
    refuse("needs features", outputs.replace(features=None), of="features")
    refuse("must not depend on the label", of=Classes())
    refuse("one row per sample", of=lambda outputs: np.zeros((3, 1)))
    for other in (ClusteredConformal(), ConditionalConformal(basis=RANKS, randomized=True)):
        refuse("adapt needs", own=other.calibrate(outputs))


def test_weights_of_new_samples_are_in_units_of_those_of_calibration():
    """Also where odds are tiny, because the populations have nothing in common."""
    calibration, far = draw(400, 0), draw(300, 1, move=1.0)
    model, found = estimate_weights(calibration, far, "features", None, 0)
    assert found.weights.mean() == pytest.approx(1.0)
    seen = found.weights > 0.1
    assert 0.3 < np.median(model.of(calibration)[seen] / found.weights[seen]) < 3.0


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_columns_of_any_size_give_the_same_weights(size):
    both = [own for own in (draw(300, 0), draw(200, 1, tilt=2.0))]
    plain = estimate_weights(*both, columns, None, 0)[1]
    other = estimate_weights(*both, lambda own: size * columns(own), None, 0)[1]
    np.testing.assert_allclose(other.weights, plain.weights, rtol=1e-6)


@pytest.mark.parametrize("of", ["statistics", "features", Groups("site")])
def test_samples_that_do_not_vary_do_no_harm(of):
    """One value of everything, and of one population alone."""
    same, other = (draw(60, seed).take(np.zeros(60, int)) for seed in (0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustSetsWarning)
        predictor = StandardConformal().calibrate(same)
        for new in (same, other):
            adapted = predictor.adapt(new, shift="covariate", of=of)
            np.testing.assert_allclose(adapted.weights_.weights, 1.0, atol=0.2)
            assert not np.isnan(adapted.predict_set(new, 0.1).thresholds).any()
    assert adapted.predict_set(same, 0.1).mask.any()
