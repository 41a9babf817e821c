"""RC3P, INTERP-Q and class biases in every predictor, against slow versions."""

from math import ceil

import numpy as np
import pytest
from sklearn.base import clone
from trustsets_paper import PluginConformal

from trustsets import (
    APS,
    RAPS,
    ClassBias,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Softmax,
    StandardConformal,
    Status,
    load,
)
from trustsets._common.quantiles import conformal_quantile
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.predictors import InterpolatedConformal, RankCalibratedConformal

# --- RC3P


def slow_rc3p(calibration, test, score, alpha):
    """The published rule, one class and one candidate rank at a time."""
    own, every = score.of_labels(calibration), score.matrix(test)
    mask = np.zeros_like(every, dtype=bool)
    for y in range(calibration.n_classes):
        here = calibration.codes == y
        if not here.any():
            mask[:, y] = True
            continue
        p = calibration.probabilities[here]
        ranks = 1 + (p > p[:, [y]]).sum(axis=1)
        errors = [np.mean(ranks > k) for k in range(1, calibration.n_classes + 1)]
        k = 1 + next(place for place, error in enumerate(errors) if error < alpha)
        n, left = here.sum(), alpha - errors[k - 1]
        place = ceil((n + 1) * (1 - left) - 1e-9)
        threshold = np.sort(own[here])[place - 1] if place <= n else np.inf
        first = 1 + (test.probabilities > test.probabilities[:, [y]]).sum(axis=1) <= k
        mask[:, y] = first & (every[:, y] <= threshold)
    return mask


@pytest.mark.parametrize("score", [APS(), Softmax(), RAPS(scale="tail")], ids=str)
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.25, 0.6])
@pytest.mark.parametrize("n", [7, 60, 700])
def test_rank_calibrated_sets_are_those_of_the_published_rule(score, alpha, n, make_outputs):
    calibration, test = make_outputs(n, 6), make_outputs(200, 6, seed=1)
    predictor = RankCalibratedConformal(score, allow_empty=True).calibrate(calibration)
    expected = slow_rc3p(calibration, test, score, alpha)
    np.testing.assert_array_equal(predictor.predict_set(test, alpha=alpha).mask, expected)


def test_the_largest_rank_leaves_less_than_alpha_above_it(make_outputs):
    calibration = make_outputs(600, 6)
    predictor = RankCalibratedConformal().calibrate(calibration)
    p = calibration.probabilities
    ranks = 1 + (p > p[np.arange(600), calibration.codes][:, None]).sum(axis=1)
    for alpha in (0.05, 0.2, 0.5):
        for y, largest in enumerate(predictor.largest_ranks(alpha)):
            own = ranks[calibration.codes == y]
            assert np.mean(own > largest) < alpha <= np.mean(own > largest - 1)


def test_a_class_without_samples_is_in_every_set_of_rc3p(make_outputs):
    outputs = make_outputs(300, 4)
    with pytest.warns(TrustSetsWarning, match="no calibration sample of class 2"):
        predictor = RankCalibratedConformal().calibrate(outputs.take(outputs.codes != 2))
    sets = predictor.predict_set(make_outputs(50, 4, seed=1))
    assert sets.mask[:, 2].all() and not sets.mask.all()
    assert (sets.status == Status.UNSEEN_GROUP).all()
    assert predictor.largest_ranks()[2] == 4


def test_equal_probabilities_are_ranked_by_column():
    """All classes are equal, so class y always has rank y + 1."""
    outputs = ModelOutputs(logits=np.zeros((40, 4)), labels=np.arange(40) % 4)
    predictor = RankCalibratedConformal(Softmax()).calibrate(outputs)
    assert predictor.largest_ranks().tolist() == [1, 2, 3, 4]
    assert predictor.predict_set(outputs).mask.all()


@pytest.mark.statistical
def test_rc3p_covers_classes_of_few_samples_too_rarely():
    """What its docstring says: five samples cover 5 / 6 at least, which is less than 1 - alpha."""
    rng, missed = np.random.default_rng(0), []
    for _ in range(400):
        logits = rng.normal(size=(2200, 8))
        labels = (1.5 * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        outputs = ModelOutputs(logits=logits, labels=labels)
        few, many = (np.flatnonzero(labels == y)[:n] for y, n in ((0, 5), (1, 100)))
        rest = np.flatnonzero(labels[:1000] > 1)
        predictor = RankCalibratedConformal(allow_empty=True)
        predictor.calibrate(outputs.take(np.concatenate([few, many, rest])))
        test = outputs.take(slice(1500, 2200))
        covered = predictor.predict_set(test).covers(test.labels)
        missed.append([1.0 - covered[test.codes == y].mean() for y in (0, 1)])
    mean, error = np.mean(missed, axis=0), np.std(missed, axis=0) / np.sqrt(len(missed))
    assert 0.1 + 3 * error[0] < mean[0] < 1 / 6 + 4 * error[0]
    assert 0.02 < mean[1] < 0.1 + 1 / 101 + 4 * error[1]


# --- INTERP-Q


def with_few(outputs):
    """The samples with four of class 3, too few for a quantile at alpha = 0.1."""
    few, others = np.flatnonzero(outputs.codes == 3)[:4], np.flatnonzero(outputs.codes != 3)
    return outputs.take(np.concatenate([few, others]))


@pytest.mark.parametrize("score", [APS(), Softmax(), APS(own_mass="random")], ids=str)
def test_the_ends_of_the_dial_are_the_two_methods(score, make_outputs):
    calibration, test = with_few(make_outputs(600, 6)), make_outputs(200, 6, seed=1)
    first, last = (
        InterpolatedConformal(tau, score=score).calibrate(calibration) for tau in (0.0, 1.0)
    )
    alphas = (0.05, 0.2)
    standard = StandardConformal(score).calibrate(calibration).predict_set(test, alphas)
    by_class = MondrianConformal("class", score=score).calibrate(calibration)
    np.testing.assert_array_equal(first.predict_set(test, alphas).mask, standard.mask)
    with pytest.warns(TrustSetsWarning, match="1 of 6 groups have too few"):
        expected = by_class.predict_set(test, alphas)
    assert np.isinf(expected.thresholds[:, 3]).any()
    np.testing.assert_array_equal(last.predict_set(test, alphas).mask, expected.mask)
    np.testing.assert_array_equal(last.predict_set(test, alphas).thresholds, expected.thresholds)
    assert "2 alpha" not in first.summary() + last.summary()


@pytest.mark.parametrize("tau", [0.01, 0.5, 0.99])
def test_thresholds_are_interpolated(tau, make_outputs):
    calibration, test = with_few(make_outputs(300, 6)), make_outputs(5, 6, seed=1)
    predictor = InterpolatedConformal(tau, score=Softmax()).calibrate(calibration)
    found = predictor.predict_set(test, alpha=0.1)
    scores = Softmax().of_labels(calibration)
    shared = conformal_quantile(np.sort(scores), 0.1)
    for y in range(6):
        own = conformal_quantile(np.sort(scores[calibration.codes == y]), 0.1)
        assert np.isinf(own) == (y == 3)
        expected = tau * min(own, 1.0) + (1 - tau) * shared
        np.testing.assert_allclose(found.thresholds[:, y], expected, rtol=1e-14)
    assert set(found.status.tolist()) <= {Status.EXACT, Status.ABOVE_ALL_SCORES}
    assert "at least 1 - 2 alpha." in predictor.summary()


@pytest.mark.parametrize("tau", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("score", [APS(), Softmax()], ids=str)
def test_sets_hold_what_both_methods_hold(tau, score, make_outputs):
    """Each of the two misses with probability alpha at most, so both together with 2 alpha."""
    calibration, test = make_outputs(600, 6), make_outputs(300, 6, seed=1)
    methods = StandardConformal(score), MondrianConformal("class", score=score)
    alphas = (0.1, 0.3, 0.6)
    standard, by_class = (each.calibrate(calibration).predict_set(test, alphas) for each in methods)
    between = InterpolatedConformal(tau, score=score).calibrate(calibration)
    mask = between.predict_set(test, alphas).mask
    assert (mask >= (standard.mask & by_class.mask)).all()
    assert (mask <= (standard.mask | by_class.mask)).all()


def test_with_too_few_samples_for_all_classes_together_sets_are_full(make_outputs):
    predictor = InterpolatedConformal(0.5).calibrate(make_outputs(8))
    sets = predictor.predict_set(make_outputs(5, seed=1))
    assert sets.mask.all() and np.isinf(sets.thresholds).all()
    assert (sets.status == Status.TOO_FEW_POINTS).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tau": -0.1}, "tau must be a number between 0 and 1; got -0.1"),
        ({"tau": np.nan}, "tau must be a number"),
        ({"tau": "half"}, "tau must be a number"),
        ({"tau": True}, "tau must be a number"),
        ({"score": APS(scale="tail")}, "needs scores of at most 1"),
        ({"score": RAPS()}, "needs scores of at most 1"),
    ],
)
def test_bad_words_of_the_interpolation_are_named(words, message, make_outputs):
    with pytest.raises(InputError, match=message):
        InterpolatedConformal(**words).calibrate(make_outputs())


# --- class biases in every predictor

CURVE = Polynomial(degree=2, of=(Confidence(),))
TAKE_BIAS = {
    "standard": StandardConformal(),
    "class": MondrianConformal("class"),
    "groups": MondrianConformal(Groups("site")),
    "clusters": ClusteredConformal(n_clusters=2),
    "plug-in": PluginConformal(basis=CURVE),
    "interpolated": InterpolatedConformal(0.5),
    "conditional": ConditionalConformal(basis=CURVE),
}


@pytest.mark.parametrize("name", TAKE_BIAS)
def test_a_class_bias_is_learned_from_tuning_samples_and_saved(name, make_outputs, tmp_path):
    calibration, tuning, test = (make_outputs(400, seed=seed) for seed in (0, 1, 2))
    uneven = tuning.take(np.flatnonzero((tuning.codes > 0) | (np.arange(400) % 8 == 0)))
    spec = ClassBias(prevalence=0.7)

    def calibrated(bias):
        predictor = clone(TAKE_BIAS[name]).set_params(class_bias=bias)
        return predictor.calibrate(calibration, tuning=uneven)

    predictor = calibrated(spec)
    expected = ClassBias(prevalence=0.7).fit(uneven)
    assert not spec.is_fitted
    np.testing.assert_array_equal(predictor.state_.class_bias.bias_, expected.bias_)
    sets = predictor.predict_set(test)
    np.testing.assert_array_equal(calibrated(expected).predict_set(test).mask, sets.mask)
    assert (calibrated(None).predict_set(test).mask != sets.mask).any()
    predictor.save(tmp_path / "model.trustsets")
    again = load(tmp_path / "model.trustsets")
    np.testing.assert_array_equal(again.predict_set(test).mask, sets.mask)
    assert not again.class_bias.is_fitted and again.class_bias.prevalence == 0.7


def test_prevalence_adds_to_standard_what_scores_of_shifted_logits_do(make_outputs):
    calibration, test = make_outputs(600), make_outputs(200, seed=1)
    bias = ClassBias(prevalence=1.5).fit(calibration)
    ours = StandardConformal(class_bias=bias).calibrate(calibration).predict_set(test)
    by_hand = [part.with_logits(part.logits + bias.bias_) for part in (calibration, test)]
    plain = StandardConformal().calibrate(by_hand[0]).predict_set(by_hand[1])
    np.testing.assert_array_equal(ours.mask, plain.mask)


def test_an_unfitted_bias_sets_samples_aside_or_warns(make_outputs):
    predictor = StandardConformal(class_bias=ClassBias(prevalence=1.0))
    assert predictor.calibrate(make_outputs(1000)).state_.n == 800
    with pytest.warns(TrustSetsWarning, match="the class biases will be learned from"):
        predictor.set_params(tuning_fraction=0.0).calibrate(make_outputs(1000))
    for bad in ("none", 3, ClassBias):
        with pytest.raises(InputError, match='class_bias must be None, "tuning" or a ClassBias'):
            predictor.set_params(class_bias=bad).calibrate(make_outputs())
