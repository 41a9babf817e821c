"""The conditional predictor against what it generalises, and its function classes."""

from itertools import product

import numpy as np
import pytest
from kinds import FirstFeature
from sklearn.base import clone

from trustsets import ConditionalConformal, MondrianConformal, StandardConformal, TrustScore
from trustsets.basis import Bins, Custom, Groups, Intercept, Polynomial, PrincipalComponents
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.recipes import make_predictor
from trustsets.scores import APS, RAPS, SAPS, MarginScore, Softmax, TopK
from trustsets.statistics import Confidence, Trust
from trustsets.status import Status

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


@pytest.mark.parametrize(
    ("n_classes", "score"), [(19, APS(scale="tail")), (20, Softmax(scale="tail", floor=0.01))]
)
def test_the_default_score_follows_the_number_of_classes(n_classes, score, make_outputs):
    calibration, test = make_outputs(600, n_classes).split(0.5)
    default = ConditionalConformal().calibrate(calibration)
    chosen = ConditionalConformal(score=score).calibrate(calibration)
    assert default.score_ == score
    np.testing.assert_array_equal(default.predict_p(test), chosen.predict_p(test))
    assert make_predictor("conditional", score="auto").score == "auto"


CELLS = {"groups": Groups(), "bins": Bins(counts=(3, 2))}
SIMPLE = {name: (cells, MondrianConformal(by=cells)) for name, cells in CELLS.items()}
SIMPLE["one cell"] = Intercept(), StandardConformal()


@pytest.mark.parametrize("allow_empty", [True, False])
@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("score", SCORES, ids=repr)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # cells of few samples
def test_disjoint_cells_are_split_conformal_in_each_bit_for_bit(
    score, name, allow_empty, halves, trust
):
    calibration, test = halves  # 599 samples: (n + 1)(1 - alpha) is a whole number
    basis, other = SIMPLE[name]
    words = {"score": score, "allow_empty": allow_empty, "trust": trust}
    conditional = ConditionalConformal(basis=basis, **words).calibrate(calibration)
    if isinstance(other, StandardConformal):
        del words["trust"]
    simple = clone(other).set_params(**words).calibrate(calibration)
    for alpha in ALPHAS:
        ours, theirs = (each.predict_set(test, alpha) for each in (conditional, simple))
        np.testing.assert_array_equal(ours.thresholds, theirs.thresholds)
        np.testing.assert_array_equal(ours.mask, theirs.mask)


def monomials(degree):
    """Raw powers, as the paper writes them."""

    def columns(outputs):
        x, y = outputs.confidence, outputs.features[:, 0]
        powers = [(i, j) for i, j in product(range(degree + 1), repeat=2) if i + j <= degree]
        return np.column_stack([x**i * y**j for i, j in powers])

    return Custom(columns)


@pytest.mark.parametrize("degree", [1, 2, 3, 5])
def test_an_orthogonal_basis_of_the_same_span_gives_the_same_sets(degree, halves):
    calibration, test = halves
    orthogonal = ConditionalConformal(basis=Polynomial(degree), trust=FirstFeature())
    powers = ConditionalConformal(basis=monomials(degree))
    ours, theirs = (each.calibrate(calibration).predict_set(test) for each in (orthogonal, powers))
    np.testing.assert_array_equal(ours.mask, theirs.mask)
    np.testing.assert_allclose(ours.thresholds, theirs.thresholds, rtol=1e-7, atol=1e-7)


def test_principal_components_are_those_of_the_covariance(make_outputs):
    observed = make_outputs(200)
    phi = PrincipalComponents(2).fit(observed).design(observed)
    features = observed.features
    _, vectors = np.linalg.eigh(np.cov(features.T))
    projected = (features - features.mean(axis=0)) @ vectors[:, ::-1][:, :2]
    np.testing.assert_allclose(np.abs(phi[:, 1:]), np.abs(projected), atol=1e-10)
    np.testing.assert_array_equal(phi[:, 0], 1.0)


def test_each_level_is_fitted_once(halves):
    calibration, test = halves
    predictor = ConditionalConformal(basis=Intercept()).calibrate(calibration)
    predictor.predict_set(test, alpha=0.1)
    first = predictor._problem.fit(0.1)
    predictor.predict_set(test, alpha=[0.1, 0.2])
    assert predictor._problem.fit(0.1) is first


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
        sets = naive.calibrate(calibration).predict_set(test)
    bins = Bins(counts=(10, 4), spacing=("uniform", "quantile"), nested=False)
    seen, new = (part.with_trust(trust) for part in halves)
    own, theirs = bins.fit(new).cells(new), bins.fit(seen).cells(seen)
    scores = APS().of_labels(calibration)
    for cell in range(40):
        here = scores[theirs == cell]
        expected = np.quantile(here, 0.9, method="higher") if here.size else -np.inf
        np.testing.assert_array_equal(sets.thresholds[own == cell], expected)
    by_site = MondrianConformal.paper(by=Groups("site"), temperature=None).calibrate(calibration)
    assert not by_site.predict_set(test.replace(groups={"site": ["new"] * len(test)})).mask.any()


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


def test_the_class_of_a_trust_score_is_none(make_outputs):
    with pytest.raises(InputError, match="fitted trust score; got the class TrustScore"):
        ConditionalConformal(trust=TrustScore).calibrate(make_outputs(100))


def test_a_trust_score_of_other_classes_is_named(make_outputs):
    """Labels from 1 beside columns from 0 would give every sample the trust of another class."""
    outputs = make_outputs(n=300)
    trust = TrustScore().fit(outputs.features, outputs.labels + 1)
    with pytest.warns(TrustSetsWarning, match=f"samples of class {outputs.n_classes}, and the out"):
        ConditionalConformal(trust=trust, basis=Polynomial(1)).calibrate(outputs)
