"""The conditional predictor against what it generalises, and its function classes."""

from itertools import product

import numpy as np
import pytest
from sklearn.base import clone

from trustsets import (
    APS,
    RAPS,
    SAPS,
    Bins,
    ConditionalConformal,
    Confidence,
    Custom,
    Entropy,
    Groups,
    Intercept,
    Margin,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
    Softmax,
    StandardConformal,
    Status,
    Trust,
    TrustScore,
)
from trustsets.errors import InputError, StorageError, TrustSetsWarning
from trustsets.scores import MarginScore, TopK

SCORES = [APS(), RAPS(), Softmax(), APS(scale="tail"), APS(own_mass="random")]
SCORES += [SAPS(), TopK(), MarginScore()]
ALPHAS = [0.05, 0.1, 0.2, 0.45]


@pytest.fixture
def halves(make_outputs):
    return make_outputs(1198).split(0.5)


@pytest.fixture
def trust():
    rng = np.random.default_rng(7)
    return TrustScore().fit(rng.normal(size=(300, 3)), rng.integers(5, size=300))


@pytest.mark.parametrize("allow_empty", [True, False])
@pytest.mark.parametrize("score", SCORES, ids=repr)
def test_intercept_is_standard_prediction_bit_for_bit(score, allow_empty, halves):
    calibration, test = halves  # 599 samples: (n + 1)(1 - alpha) is a whole number
    words = {"score": score, "allow_empty": allow_empty}
    conditional = ConditionalConformal(basis=Intercept(), **words).calibrate(calibration)
    standard = StandardConformal(**words).calibrate(calibration)
    for alpha in ALPHAS:
        ours, theirs = (each.predict_set(test, alpha) for each in (conditional, standard))
        np.testing.assert_array_equal(ours.thresholds, theirs.thresholds)
        np.testing.assert_array_equal(ours.mask, theirs.mask)


@pytest.mark.parametrize("score", SCORES, ids=repr)
def test_disjoint_groups_are_mondrian_prediction_bit_for_bit(score, halves):
    calibration, test = halves
    conditional = ConditionalConformal(score=score, basis=Groups()).calibrate(calibration)
    mondrian = MondrianConformal(by=Groups(), score=score).calibrate(calibration)
    for alpha in ALPHAS:
        ours, theirs = (each.predict_set(test, alpha) for each in (conditional, mondrian))
        np.testing.assert_array_equal(ours.thresholds, theirs.thresholds)
        np.testing.assert_array_equal(ours.mask, theirs.mask)


def test_cells_of_a_grid_are_mondrian_prediction_too(halves, trust):
    calibration, test = halves
    bins = Bins(counts=(3, 2))
    conditional = ConditionalConformal(score=APS(), basis=bins, trust=trust)
    mondrian = MondrianConformal(by=bins, trust=trust)
    ours, theirs = (
        each.calibrate(calibration).predict_set(test) for each in (conditional, mondrian)
    )
    np.testing.assert_array_equal(ours.thresholds, theirs.thresholds)


def monomials(degree):
    """Raw powers, as the paper writes them."""

    def columns(outputs):
        x, y = outputs.confidence, outputs.features[:, 0]
        powers = [(i, j) for i, j in product(range(degree + 1), repeat=2) if i + j <= degree]
        return np.column_stack([x**i * y**j for i, j in powers])

    return Custom(columns)


class FirstFeature:
    """A stand-in for a trust score: the first feature."""

    def score(self, features, predicted):
        return np.asarray(features[:, 0], dtype=float)


@pytest.mark.parametrize("degree", [1, 2, 3, 5])
def test_an_orthogonal_basis_of_the_same_span_gives_the_same_sets(degree, halves):
    calibration, test = halves
    orthogonal = ConditionalConformal(basis=Polynomial(degree), trust=FirstFeature())
    powers = ConditionalConformal(basis=monomials(degree))
    ours, theirs = (each.calibrate(calibration).predict_set(test) for each in (orthogonal, powers))
    np.testing.assert_array_equal(ours.mask, theirs.mask)
    finite = np.isfinite(theirs.thresholds)
    np.testing.assert_array_equal(np.isfinite(ours.thresholds), finite)
    np.testing.assert_allclose(
        ours.thresholds[finite], theirs.thresholds[finite], rtol=1e-7, atol=1e-7
    )


def test_polynomial_columns_span_the_monomials(make_outputs):
    observed = make_outputs(300).with_trust(FirstFeature())
    ours = Polynomial(4).fit(observed).design(observed)
    theirs = monomials(4).design(observed)
    assert ours.shape == theirs.shape == (300, 15)
    assert np.linalg.cond(ours) < 1e4
    for target, source in [(ours, theirs), (theirs, ours)]:
        fitted = source @ np.linalg.lstsq(source, target, rcond=None)[0]
        np.testing.assert_allclose(fitted, target, atol=1e-8 * np.abs(target).max())


def test_bins_have_one_indicator_per_bin_and_statistic(make_outputs):
    observed = make_outputs(200).with_trust(FirstFeature())
    bins = Bins(Confidence(), counts=5, spacing="uniform") + Bins(Trust(), counts=3)
    phi = bins.fit(observed).design(observed)
    assert phi.shape == (200, 8)
    np.testing.assert_array_equal(phi[:, :5].sum(axis=1), 1.0)
    np.testing.assert_array_equal(phi[:, 5:].sum(axis=1), 1.0)
    np.testing.assert_allclose(phi[:, 5:].sum(axis=0), 200 / 3, atol=1)
    cells = Bins(counts=(5, 3)).fit(observed)
    np.testing.assert_array_equal(cells.design(observed).argmax(axis=1), cells.cells(observed))


def test_principal_components_are_those_of_the_covariance(make_outputs):
    observed = make_outputs(200)
    phi = PrincipalComponents(2).fit(observed).design(observed)
    features = observed.features
    _, vectors = np.linalg.eigh(np.cov(features.T))
    projected = (features - features.mean(axis=0)) @ vectors[:, ::-1][:, :2]
    np.testing.assert_allclose(np.abs(phi[:, 1:]), np.abs(projected), atol=1e-10)
    np.testing.assert_array_equal(phi[:, 0], 1.0)


def test_joined_classes_stand_side_by_side(make_outputs):
    observed = make_outputs(50)
    parts = [Intercept(), Groups(), Polynomial(1, of=(Confidence(),))]
    joined = (parts[0] + parts[1] + parts[2]).fit(observed).design(observed)
    alone = np.hstack([part.fit(observed).design(observed) for part in parts])
    np.testing.assert_array_equal(joined, alone)


def test_transforms_are_logarithms_and_ranks(make_outputs):
    fit_on, new = make_outputs(100), make_outputs(40, seed=3)
    reference, values = fit_on.confidence, new.confidence
    logs = Confidence(transform="log").fit(fit_on).values(new)
    np.testing.assert_allclose(logs, np.log(values))
    ranks = Confidence(transform="rank").fit(fit_on).values(new)
    np.testing.assert_allclose(ranks, [(reference < value).mean() for value in values])


def test_levels_never_cross(halves, trust):
    calibration, test = halves
    alphas = np.linspace(0.9, 0.02, 23).tolist()
    predictor = ConditionalConformal(trust=trust).calibrate(calibration)
    sets = predictor.predict_set(test, alpha=alphas)
    assert (sets.thresholds[:, 1:] >= sets.thresholds[:, :-1]).all()
    assert (sets.mask[:, :, 1:] >= sets.mask[:, :, :-1]).all()


def test_each_level_is_fitted_once(halves):
    calibration, test = halves
    predictor = ConditionalConformal(basis=Intercept()).calibrate(calibration)
    predictor.predict_set(test, alpha=0.1)
    first = predictor._problem.fit(0.1)
    predictor.predict_set(test, alpha=[0.1, 0.2])
    assert predictor._problem.fit(0.1) is first


def test_a_group_that_calibration_never_saw_gets_every_class(make_outputs):
    predictor = ConditionalConformal(basis=Groups() + Intercept()).calibrate(make_outputs(200))
    new = make_outputs(3, seed=1, groups={"site": ["a", "b", "new"]})
    sets = predictor.predict_set(new)
    assert [Status(value).is_infinite for value in sets.status] == [False, False, True]
    assert sets.status[2] == Status.UNSEEN_DIRECTION
    assert sets.mask[2].all()
    assert "no calibration sample has" in predictor.summary(sets)


def test_the_status_of_a_full_set_says_why_it_is_full(make_outputs):
    predictor = ConditionalConformal(basis=Intercept()).calibrate(make_outputs(200))
    sets = predictor.predict_set(make_outputs(300, seed=1), alpha=[0.01, 0.1, 0.4])
    full = sets.mask.all(axis=1)
    assert full.any() and not full.all()
    assert (np.isfinite(sets.thresholds)).all()
    np.testing.assert_array_equal(sets.status == Status.ABOVE_ALL_SCORES, full)
    np.testing.assert_array_equal(sets.status == Status.EXACT, ~full)
    assert not Status.ABOVE_ALL_SCORES.is_infinite


def test_an_extreme_point_gets_every_class(make_outputs):
    features = np.random.default_rng(0).normal(size=(100, 1))
    basis = Intercept() + Custom(lambda outputs: outputs.features)
    predictor = ConditionalConformal(basis=basis).calibrate(make_outputs(100, features=features))
    sets = predictor.predict_set(make_outputs(2, seed=1, features=[[0.0], [1e4]]))
    assert sets.status.tolist() == [Status.EXACT, Status.HIGH_LEVERAGE]
    assert sets.mask[1].all() and not sets.mask[0].all()


def test_the_paper_preset_is_the_paper(trust, halves):
    preset = ConditionalConformal.paper(trust=trust)
    assert preset.score == APS(scale="raw", own_mass="exclude")
    assert preset.basis == Polynomial(5, of=(Confidence("raw"), Trust("raw")))
    assert preset.allow_empty and preset.temperature == "tuning" and not preset.randomized
    with pytest.warns(TrustSetsWarning, match="the temperature will be learned"):
        preset.calibrate(halves[0])
    assert preset.n_calibration_ == len(halves[0])
    assert "holds only approximately" in preset.summary()
    changed = ConditionalConformal.paper(trust=trust, temperature=None, score=RAPS())
    assert changed.temperature is None and changed.score == RAPS()


def test_the_paper_rules_of_naive(trust, halves):
    """Deterministic, against the paper's quantiles by hand."""
    calibration, test = halves
    naive = MondrianConformal.paper(trust=trust, temperature=None)
    with pytest.warns(TrustSetsWarning, match="the bin edges will be learned"):
        naive.calibrate(calibration)
    sets = naive.predict_set(test)
    bins = Bins(counts=(10, 4), spacing=("uniform", "quantile"), nested=False)
    seen, new = (part.with_trust(trust) for part in halves)
    own, theirs = bins.fit(new).cells(new), bins.fit(seen).cells(seen)
    scores = APS().of_labels(calibration)
    for cell in range(40):
        here = scores[theirs == cell]
        expected = np.quantile(here, 0.9, method="higher") if here.size else -np.inf
        np.testing.assert_array_equal(sets.thresholds[own == cell], expected)


def test_a_summary_says_what_is_guaranteed(halves, trust):
    calibration, test = halves
    ranks = (Confidence(transform="rank"), Trust(transform="rank"))
    basis = Polynomial(degree=5, of=ranks, penalty=5.0)
    predictor = ConditionalConformal(basis=basis, trust=trust).calibrate(calibration)
    text = predictor.summary(predictor.predict_set(test))
    assert "every non-negative polynomial of degree 5 in Conf and Trust" in text
    assert "is at least 1 - alpha (21 basis functions)" in text
    assert "at most 0.0104 times the sum" in text
    assert "479 samples (120 others were used for tuning)" in text
    assert "Of 599 sets at alpha=0.1" in text
    random = clone(predictor).set_params(randomized=True).calibrate(calibration)
    assert "is at least 1 - alpha" in random.summary()  # the most likely class is kept
    exact = random.set_params(allow_empty=True).calibrate(calibration).summary()
    assert "equals 1 - alpha" in exact


def test_rank_transforms_are_learned_from_the_tuning_part(make_outputs):
    calibration, tuning = make_outputs(300), make_outputs(80, seed=2)
    basis = Polynomial(1, of=(Confidence(transform="rank"),))
    predictor = ConditionalConformal(basis=basis).calibrate(calibration, tuning=tuning)
    reference = predictor.conditions_on.of[0].reference
    np.testing.assert_array_equal(reference, np.sort(tuning.confidence))
    with pytest.warns(TrustSetsWarning, match="the function class will be learned"):
        predictor.set_params(tuning_fraction=0.0).calibrate(calibration)


BAD = [
    (lambda: Polynomial(-1), "degree must be"),
    (lambda: Polynomial(1.5), "degree must be"),
    (lambda: Polynomial(of=()), "non-empty tuple of statistics"),
    (lambda: PrincipalComponents(0), "n_components must be"),
    (lambda: Confidence(transform="square"), "transform must be"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_function_classes_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_bad_use_is_named_and_leaves_the_calibration_whole(make_outputs, trust):
    outputs = make_outputs(300)
    predictor = ConditionalConformal(trust=trust).calibrate(outputs)
    before = predictor.predict_set(outputs)
    wrong = [
        ({}, make_outputs(300, features=None), "Trust needs features"),
        ({}, make_outputs(300, labels=None), "calibrate needs labels"),
        ({"basis": "best"}, outputs, 'basis must be "auto" or a function class'),
        ({"basis": Polynomial()}, make_outputs(20), "20 calibration samples cannot determine 21"),
        ({"basis": Polynomial(), "trust": None}, outputs, "pass trust="),
        ({"class_bias": "none"}, outputs, "class_bias must be None"),
        ({"basis": PrincipalComponents(4)}, outputs, "n_components=4 exceeds"),
        ({"basis": Custom(lambda o: np.ones((2, 1)))}, outputs, "one row per sample; got 2"),
        ({"basis": Custom(lambda o: np.full((len(o), 1), np.nan))}, outputs, "must be finite"),
    ]
    for change, given, message in wrong:
        good = predictor.get_params(deep=False)
        with pytest.raises(InputError, match=message):
            predictor.set_params(**change).calibrate(given)
        predictor.set_params(**good)
    with pytest.raises(InputError, match="Trust needs features"):
        predictor.predict_set(make_outputs(features=None))
    with pytest.raises(InputError, match="dimension 2, but calibration had 3"):
        predictor.predict_set(make_outputs(features=np.zeros((200, 2))))
    np.testing.assert_array_equal(predictor.predict_set(outputs).mask, before.mask)


def test_your_own_functions_cannot_be_saved(make_outputs, tmp_path):
    basis = Custom(lambda outputs: np.ones((len(outputs), 1)))
    predictor = ConditionalConformal(basis=basis).calibrate(make_outputs())
    with pytest.raises(
        StorageError, match="cannot be saved: a saved function is found again by its name"
    ):
        predictor.save(tmp_path / "model.trustsets")


def test_one_class_and_one_row_work():
    outputs = ModelOutputs(logits=np.zeros((30, 1)), labels=np.zeros(30, dtype=int))
    sets = ConditionalConformal(basis=Intercept()).calibrate(outputs).predict_set(outputs.take([0]))
    assert sets.mask.tolist() == [[True]]


def test_equal_values_share_the_middle_of_their_ranks():
    """The share below plus half the share of equals: 0 for less than all, 1 for more."""
    fit_on, new = (
        ModelOutputs(probabilities=np.column_stack([p, 1.0 - np.array(p)]))
        for p in ([0.6, 0.7, 0.7, 0.7, 0.9], [0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0])
    )
    ranks = Confidence(transform="rank").fit(fit_on).values(new)
    np.testing.assert_allclose(ranks, [0.0, 0.1, 0.2, 0.5, 0.8, 0.9, 1.0])
    # Turning the order round turns the ranks round, ties and all.
    margin, entropy = (
        statistic(transform="rank").fit(fit_on).values(fit_on) for statistic in (Margin, Entropy)
    )
    np.testing.assert_allclose(margin + entropy, 1.0)
