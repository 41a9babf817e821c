"""Laws of the baselines: RC3P, INTERP-Q, plug-in, atypicality and oracle sets."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from scipy import stats

from trustsets import (
    APS,
    RAPS,
    Bins,
    ConditionalConformal,
    Confidence,
    Groups,
    Intercept,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Softmax,
    StandardConformal,
    Status,
)
from trustsets.engine import fit_quantiles
from trustsets.errors import InputError, TrustSetsWarning
from trustsets_paper.baselines import (
    Atypicality,
    InterpolatedConformal,
    PluginConformal,
    RankCalibratedConformal,
    atypicality_groups,
    oracle_sets,
)

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
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("n", [7, 60, 700])
def test_rank_calibrated_sets_are_those_of_the_published_rule(score, alpha, n, make_outputs):
    calibration, test = make_outputs(n, 6), make_outputs(200, 6, seed=1)
    predictor = RankCalibratedConformal(score=score, allow_empty=True).calibrate(calibration)
    expected = slow_rc3p(calibration, test, score, alpha)
    np.testing.assert_array_equal(predictor.predict_set(test, alpha=alpha).mask, expected)


def test_a_class_without_samples_is_in_every_set_of_rc3p(make_outputs):
    outputs = make_outputs(300, 4)
    with pytest.warns(TrustSetsWarning, match="no calibration sample of class 2"):
        predictor = RankCalibratedConformal().calibrate(outputs.take(outputs.codes != 2))
    sets = predictor.predict_set(make_outputs(50, 4, seed=1))
    assert sets.mask[:, 2].all() and not sets.mask.all()
    assert (sets.status == Status.UNSEEN_GROUP).all()


def test_equal_probabilities_are_ranked_by_column():
    """All classes are equal, so class y always has rank y + 1."""
    outputs = ModelOutputs(logits=np.zeros((40, 4)), labels=np.arange(40) % 4)
    predictor = RankCalibratedConformal(score=Softmax()).calibrate(outputs)
    assert predictor._rules(0.1)[0].tolist() == [0, 1, 2, 3]
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


def finite_sample_quantile(scores, alpha):
    order = ceil((len(scores) + 1) * (1 - Fraction(repr(alpha))))
    return np.sort(scores)[order - 1] if order <= len(scores) else np.inf


def with_few(outputs):
    """The samples with four of class 3, too few for a quantile at alpha = 0.1."""
    few, others = np.flatnonzero(outputs.codes == 3)[:4], np.flatnonzero(outputs.codes != 3)
    return outputs.take(np.concatenate([few, others]))


@pytest.mark.parametrize("score", [APS(), Softmax(), APS(own_mass="random")], ids=str)
def test_the_ends_of_the_dial_are_the_two_methods(score, make_outputs):
    calibration, test = with_few(make_outputs(600, 6)), make_outputs(200, 6, seed=1)
    ends, alphas = (InterpolatedConformal(tau=tau, score=score) for tau in (0.0, 1.0)), (0.05, 0.2)
    first, last = (predictor.calibrate(calibration) for predictor in ends)
    standard = StandardConformal(score=score).calibrate(calibration).predict_set(test, alphas)
    by_class = MondrianConformal(by="class", score=score).calibrate(calibration)
    np.testing.assert_array_equal(first.predict_set(test, alphas).mask, standard.mask)
    with pytest.warns(TrustSetsWarning, match="1 of 6 classes have too few"):
        expected = by_class.predict_set(test, alphas)
    assert np.isinf(expected.thresholds[:, 3]).any()
    np.testing.assert_array_equal(last.predict_set(test, alphas).mask, expected.mask)
    np.testing.assert_array_equal(last.predict_set(test, alphas).thresholds, expected.thresholds)
    assert "2 alpha" not in first.summary() + last.summary()


@pytest.mark.parametrize("tau", [0.01, 0.5, 0.99])
def test_thresholds_are_interpolated(tau, make_outputs):
    calibration, test = with_few(make_outputs(300, 6)), make_outputs(5, 6, seed=1)
    predictor = InterpolatedConformal(tau=tau, score=Softmax()).calibrate(calibration)
    found = predictor.predict_set(test, alpha=0.1)
    scores = Softmax().of_labels(calibration)
    shared = finite_sample_quantile(np.sort(scores), 0.1)
    for y in range(6):
        own = finite_sample_quantile(np.sort(scores[calibration.codes == y]), 0.1)
        assert np.isinf(own) == (y == 3)
        expected = tau * min(own, 1.0) + (1 - tau) * shared
        np.testing.assert_allclose(found.thresholds[:, y], expected, rtol=1e-14)
    assert set(found.status.tolist()) <= {Status.EXACT, Status.ABOVE_ALL_SCORES}
    assert "at least 1 - 2 alpha." in predictor.summary()


def test_with_too_few_samples_for_all_classes_together_sets_are_full(make_outputs):
    few, new = make_outputs(8, classes=range(5)), make_outputs(5, seed=1, classes=range(5))
    sets = InterpolatedConformal(tau=0.5).calibrate(few).predict_set(new)
    assert sets.mask.all() and np.isinf(sets.thresholds).all()
    assert (sets.status == Status.TOO_FEW_POINTS).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tau": -0.1}, "tau must be a number between 0 and 1; got -0.1"),
        ({"tau": np.nan}, "tau must be a number"),
        ({"score": APS(scale="tail")}, "needs scores of at most 1"),
        ({"score": RAPS()}, "needs scores of at most 1"),
    ],
)
def test_bad_words_of_the_interpolation_are_named(words, message, make_outputs):
    with pytest.raises(InputError, match=message):
        InterpolatedConformal(**words).calibrate(make_outputs())


# --- plug-in quantile regression


@pytest.mark.parametrize("n", [1, 9, 10, 20, 21, 137, 500])
@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.45, 0.5])
def test_plug_in_with_a_constant_is_the_empirical_quantile(n, alpha, make_outputs):
    """The smallest minimiser of the pinball loss: the ceil(n (1 - alpha))-th smallest score."""
    calibration = make_outputs(n, classes=range(5))
    test = make_outputs(30, seed=1, classes=range(5))
    predictor = PluginConformal(basis=Intercept(), allow_empty=True).calibrate(calibration)
    share = n * (1 - Fraction(repr(alpha)))
    rank = -(-share.numerator // share.denominator)
    scores = np.sort(APS(scale="tail").of_labels(calibration))
    sets = predictor.predict_set(test, alpha=alpha)
    np.testing.assert_array_equal(sets.thresholds, scores[rank - 1])
    np.testing.assert_array_equal(sets.mask, APS(scale="tail").matrix(test) <= scores[rank - 1])


def test_plug_in_is_the_engine_fit_at_level_zero_below_the_conformal_threshold(make_outputs):
    calibration, test = make_outputs(300), make_outputs(300, seed=1)
    basis = Polynomial(degree=3, of=(Confidence(),))
    sets = PluginConformal(basis=basis).calibrate(calibration).predict_set(test)
    fitted = basis.fit(calibration)
    scores = APS(scale="tail").of_labels(calibration)
    model = fit_quantiles(fitted.design(calibration), scores, alpha=0.1)
    expected = model.thresholds(fitted.design(test), weight=0.0).values
    np.testing.assert_allclose(sets.thresholds, expected, rtol=1e-12)
    # Raising the weight of the new sample from 0 to 1 - alpha can only raise its threshold.
    exact = ConditionalConformal(basis=basis).calibrate(calibration).predict_set(test).thresholds
    assert (expected <= exact + 1e-9).all() and (expected < exact).any()


def test_plug_in_gives_strangers_every_class(make_outputs):
    predictor = PluginConformal(basis=Groups("site")).calibrate(make_outputs(300))
    sets = predictor.predict_set(make_outputs(2, groups={"site": ["a", "new"]}))
    assert sets.status.tolist() == [Status.EXACT, Status.UNSEEN_DIRECTION]
    assert sets.mask[1].all() and np.isinf(sets.thresholds[1])


def test_plug_in_names_what_is_wrong_and_keeps_its_calibration(make_outputs):
    predictor = PluginConformal(basis=Intercept()).calibrate(make_outputs(300))
    before = predictor.predict_set(make_outputs())
    with pytest.raises(InputError, match="pass trust="):
        predictor.set_params(basis=Polynomial()).calibrate(make_outputs(300))
    np.testing.assert_array_equal(predictor.predict_set(make_outputs()).mask, before.mask)


# --- atypicality


def observed(features):
    return ModelOutputs(logits=np.zeros((len(features), 2)), features=features)


@pytest.fixture
def training():
    rng = np.random.default_rng(0)
    labels = rng.choice(["a", "b", "c"], size=200, p=[0.6, 0.3, 0.1])
    place = np.select([labels == "a", labels == "b"], [0.0, 5.0], 20.0)
    mix = np.array([[1.0, 0.3, 0.0], [0.0, 2.0, 0.1], [0.5, 0.0, 0.2]])
    return 100.0 + place[:, None] + rng.normal(size=(200, 3)) @ mix, labels


def test_atypicality_is_the_gaussian_negative_log_density(training):
    features, labels = training
    new = 100.0 + 10.0 * np.random.default_rng(1).normal(size=(50, 3))
    means = {y: features[labels == y].mean(axis=0) for y in "abc"}
    gaps = features - np.array([means[y] for y in labels])
    law = stats.multivariate_normal(cov=gaps.T @ gaps / len(gaps))
    expected = -np.max([law.logpdf(new - means[y]) for y in "abc"], axis=0)
    found = Atypicality.from_training(features, labels).measure(observed(new))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_atypicality_on_a_subspace_ignores_what_training_never_used(training):
    """A dead feature and a repeated one: the density of the rest, up to the volume factor."""
    features, labels = training
    wide = np.column_stack([features, np.full(200, 7.0), features[:, 0]])
    plain, singular = (Atypicality.from_training(each, labels) for each in (features, wide))
    assert singular.whitening.shape == (5, 3)
    new = features[:20] + 1.0
    wide_new = np.column_stack([new, np.full(20, -50.0), new[:, 0]])
    difference = singular.measure(observed(wide_new)) - plain.measure(observed(new))
    # The repeated axis stretches one direction by sqrt(2): log det grows by log 2.
    np.testing.assert_allclose(difference, 0.5 * np.log(2.0), rtol=1e-6)


def test_atypicality_groups_are_mondrian_on_the_published_grid(training):
    atypicality = Atypicality.from_training(*training)
    predictor = atypicality_groups(atypicality, score=Softmax(), tuning_fraction=0.5)
    assert isinstance(predictor, MondrianConformal)
    assert predictor.get_params()["tuning_fraction"] == 0.5
    assert predictor.by == Bins(Confidence(), atypicality, counts=6, nested=False)
    rng = np.random.default_rng(1)
    outputs = ModelOutputs(
        logits=rng.normal(size=(4000, 3)),
        features=100.0 + 5.0 * rng.normal(size=(4000, 3)),
        labels=rng.integers(3, size=4000),
    )
    calibration, tuning = outputs.split(0.75)
    cells = predictor.calibrate(calibration, tuning=tuning).conditions_on
    steps = np.arange(1, 6) / 6
    values = atypicality.measure(tuning)
    np.testing.assert_array_equal(cells.cuts[1][0], np.quantile(values, steps))
    assert cells.n_cells == 36


def test_bad_input_to_atypicality_is_named(training, make_outputs):
    features, labels = training
    for arguments in ((np.zeros((4, 2)), [0, 0, 1, 1]), ([[0.0], [1.0]], [0, 1])):
        with pytest.raises(InputError, match="features do not vary within any class"):
            Atypicality.from_training(*arguments)
    fitted = Atypicality.from_training(features, labels)
    with pytest.raises(InputError, match="Atypicality needs features; pass features="):
        fitted.measure(make_outputs(features=None))


# --- oracle sets


def exact_mass(row, inside):
    return sum((Fraction(repr(p)) for p in row[inside].tolist()), Fraction(0))


@pytest.mark.parametrize("alpha", [0.1, 0.05, 0.3, 0.75])
def test_oracle_sets_cover_every_sample_and_are_smallest(alpha):
    """In exact arithmetic: enough mass with the last class, too little without it."""
    rng = np.random.default_rng(0)
    smooth = rng.dirichlet(np.full(8, 0.3), size=300)
    lattice = rng.multinomial(20, np.full(8, 1 / 8), size=300) / 20  # many sums equal 1 - alpha
    probabilities = np.concatenate([smooth, lattice, np.eye(8), np.full((1, 8), 0.125)])
    sets = oracle_sets(probabilities, alpha)
    for row, inside in zip(probabilities, sets.mask, strict=True):
        target = (1 - Fraction(repr(alpha))) * exact_mass(row, np.ones(8, dtype=bool))
        mass = exact_mass(row, inside)
        assert mass >= target
        assert mass - Fraction(repr(row[inside].min().item())) < target
        assert row[inside].min() >= row[~inside].max(initial=0.0)


def test_oracle_sums_are_those_of_the_decimals():
    """0.5 + 0.3 + 0.1 is below 0.9 in exact binary arithmetic, and 10 x 0.1 is not 1."""
    sets = oracle_sets([[0.5, 0.3, 0.1, 0.1] + [0.0] * 6, [0.1] * 10], alpha=0.1)
    assert sets.sizes.tolist() == [3, 9]
    assert sets[1].tolist() == list(range(9))


def test_oracle_thresholds_are_those_of_aps():
    """The same sets from the APS score of the true probabilities at the thresholds given."""
    rng = np.random.default_rng(0)
    probabilities = rng.multinomial(64, np.full(5, 0.2), size=200) / 64  # exact in binary
    sets = oracle_sets(probabilities, alpha=0.1)
    scores = APS().matrix(ModelOutputs(probabilities=probabilities))
    np.testing.assert_array_equal(sets.mask, scores <= sets.thresholds[:, None])


def test_bad_input_to_the_oracle_is_named():
    with pytest.raises(InputError, match="must sum to 1; row 0 sums"):
        oracle_sets([[0.5, 0.2]])
    with pytest.raises(InputError, match="alpha must lie strictly between 0 and 1"):
        oracle_sets([[0.5, 0.5]], 1.0)
