"""Laws of `TrustSetClassifier` over methods, routes, labels and wrappers."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from trustsets import (
    APS,
    RAPS,
    SAPS,
    ConditionalConformal,
    Groups,
    Intercept,
    ModelOutputs,
    MondrianConformal,
    Softmax,
    StandardConformal,
    TrustScore,
    TrustSetClassifier,
)
from trustsets.errors import InputError, NotCalibratedError, TrustSetsWarning
from trustsets.recipes import make_predictor

WITH_TRUST = ["conditional", "mondrian", "paper"]


def numbered(n=240, seed=0):
    """Samples whose first column is their number, and labels that depend on the others."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.arange(n), rng.normal(size=(n, 3))])
    return X, (X[:, 1] + rng.normal(size=n) > 0).astype(int)


def first_column(X):
    return X[:, :1]


class Watched(ClassifierMixin, BaseEstimator):
    """A classifier that notes which samples it is trained on and which it is asked about."""

    def fit(self, X, y):
        self.trained_ = X[:, 0].astype(int)
        self.inner_ = GaussianNB().fit(X[:, 1:], y)
        self.classes_ = self.inner_.classes_
        return self

    def predict_proba(self, X):
        self.asked_ = X[:, 0].astype(int)
        return self.inner_.predict_proba(X[:, 1:])

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def reference_numbers(model, X):
    """Numbers of the samples that the trust score was fitted to, by their features."""
    features = model.outputs(X).features[:, 0]
    stored = model.reference_.to_state()["features"][:, 0]
    return np.flatnonzero(np.isin(features, stored))


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
@pytest.mark.parametrize(("seed", "share"), [(0, 0.3), (1, 0.1), (7, 0.6)])
@pytest.mark.parametrize("route", ["fit", "prefit", "prefit twice", "prefit with training data"])
@pytest.mark.parametrize("method", WITH_TRUST)
def test_the_trust_scores_reference_never_holds_calibration_samples(method, route, share, seed):
    X, y = numbered(seed=seed)
    words = {"features": first_column, "random_state": seed}
    words |= {"calibration_fraction": share, "reference_fraction": share}
    if route == "fit":
        model = TrustSetClassifier(Watched(), method, **words).fit(X, y)
        available = np.arange(240)
    else:
        trained = Watched().fit(X[:80], y[:80])
        model = TrustSetClassifier(trained, method, prefit=True, **words)
        if route == "prefit with training data":
            model.fit(X[:80], y[:80])
        if route == "prefit twice":
            model.calibrate(X[80:180], y[80:180])
        model.calibrate(X[100:240], y[100:240])
        available = np.arange(100, 240)
    calibrated = model.estimator_.asked_
    reference = reference_numbers(model, X)
    assert calibrated.size and reference.size
    assert not np.intersect1d(calibrated, reference).size
    # Every sample has one use: what is not calibrated with is the reference, or was trained on.
    if route == "fit":
        np.testing.assert_array_equal(reference, np.sort(model.estimator_.trained_))
    if route != "prefit with training data":
        together = np.sort(np.concatenate([calibrated, reference]))
        np.testing.assert_array_equal(together, available)


@pytest.mark.parametrize("prefit", [False, True])
def test_every_sample_is_set_aside_for_some_seeds_and_not_for_others(prefit):
    """At random, whatever the order of the samples: calibration is exchangeable with new ones."""
    X, y = numbered(60)
    trained = Watched().fit(X, y)
    times = np.zeros(60, int)
    words = {"features": first_column, "prefit": prefit}
    for seed in range(60):
        estimator, method = trained if prefit else Watched(), StandardConformal(score=Softmax())
        model = TrustSetClassifier(estimator, method, random_state=seed, **words)
        (model.calibrate if prefit else model.fit)(X, y)
        times[model.estimator_.asked_] += 1
    # Binomial(60, 0.3) and Binomial(60, 0.7); 0 or 60 has probability 5e-10.
    assert times.min() > 0 and times.max() < 60
    assert times.sum() == 60 * (42 if prefit else 18)


@pytest.mark.parametrize("part", [slice(0, 100), slice(20, 60)])
def test_calibrating_on_the_reference_is_refused(part):
    X, y = numbered()
    prefit = TrustSetClassifier(Watched().fit(X, y), prefit=True).fit(X[:100], y[:100])
    trained = TrustSetClassifier(Watched(), calibration_fraction=0.5).fit(X, y)
    own = np.sort(trained.estimator_.trained_)[part]
    for model, rows in ((prefit, np.arange(240)[part]), (trained, own)):
        with pytest.raises(InputError, match="samples that fit did not see"):
            model.calibrate(X[rows], y[rows])
    prefit.calibrate(X[99:], y[99:])
    # A few values in common are no sign of the same samples.
    coarse = np.column_stack([X[:, 0], np.sign(X[:, 1:])])
    model = TrustSetClassifier(Watched().fit(coarse, y), features=lambda X: X[:, 1:], prefit=True)
    model.fit(coarse[:200], y[:200]).calibrate(coarse[200:], y[200:])


class Margins(LogisticRegression):
    """A logistic model that keeps its probabilities to itself."""

    predict_proba = property()


@pytest.mark.parametrize("names", [[0, 1], ["no", "yes"], ["b", "a"], [5, -3], [True, False]])
@pytest.mark.parametrize("C", [0.01, 1.0, 1e4])
def test_binary_margins_of_a_logistic_model_are_its_probabilities(C, names):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 3))
    y = np.array(names)[(X[:, 0] + 0.5 * rng.normal(size=400) > 0.4).astype(int)]
    model = TrustSetClassifier(Margins(C=C), "standard").fit(X[:300], y[:300])
    expected = LogisticRegression.predict_proba(model.estimator_, X[300:])
    np.testing.assert_allclose(model.predict_proba(X[300:]), expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(model.outputs(X[300:]).predicted, model.predict(X[300:]))
    plain = TrustSetClassifier(LogisticRegression(C=C), "standard").fit(X[:300], y[:300])
    sets = [each.predict_set(X[300:], alpha=0.15).sizes for each in (model, plain)]
    np.testing.assert_array_equal(*sets)


WRAPS = {"list": list, "array": lambda y: np.array(y, object), "series": pd.Series}
MISSING = [None, float("nan"), np.nan, pd.NA, pd.NaT]


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("missing", MISSING, ids=str)
@pytest.mark.parametrize("names", [["ash", "oak"], [0, 1]], ids=str)
def test_missing_labels_are_named(names, missing, wrap):
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = (names * 20)[:40]
    prefit = TrustSetClassifier(GaussianNB().fit(X, y), prefit=True)
    y[7], y[30] = missing, missing
    for call in (TrustSetClassifier(GaussianNB()).fit, prefit.fit, prefit.calibrate):
        message = r"y must hold a class for each sample; row 7 holds .* \(2 of 40 labels are miss"
        with pytest.raises(InputError, match=message):
            call(X, wrap(y))


def test_outputs_in_place_of_inputs_are_named():
    X, y = numbered()
    outputs = ModelOutputs(logits=np.column_stack([X[:, 1], -X[:, 1]]), labels=y)
    model = TrustSetClassifier(GaussianNB(), "standard")
    fitted = TrustSetClassifier(GaussianNB(), "standard").fit(X, y)
    calls = (model.fit, model.calibrate, fitted.predict_set)
    for call, arguments in zip(calls, ((outputs, y), (outputs, y), (outputs,)), strict=True):
        with pytest.raises(InputError, match="X must be the input of the classifier; got ModelO"):
            call(*arguments)


SCORES = {"aps": APS, "raps": RAPS, "saps": SAPS, "softmax": Softmax, "lac": Softmax}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("method", ["standard", "class", "conditional", "mondrian"])
def test_scores_and_methods_have_the_names_of_recipes(method, name):
    X, y = numbered(400)
    by_name = TrustSetClassifier(GaussianNB(), method, nonconformity_score=name).fit(X, y)
    assert isinstance(by_name.predictor_.score, SCORES[name])
    trust = by_name.reference_
    expected = make_predictor(method, score=name, trust=trust, n=120)
    assert by_name.predictor_.get_params(deep=False) == expected.get_params(deep=False)
    given = TrustSetClassifier(GaussianNB(), method, nonconformity_score=expected.score).fit(X, y)
    np.testing.assert_array_equal(given.predict_set(X).mask, by_name.predict_set(X).mask)


@pytest.mark.parametrize("method", ["standard", "class", "groups", "conditional", "mondrian"])
def test_sets_are_those_of_the_predictor_whatever_is_asked(method):
    X, y = numbered(1300)
    groups = np.where(X[:, 2] > 0, "north", "south")
    model = TrustSetClassifier(GaussianNB(), method, random_state=5)
    model.fit(X[:1200], y[:1200], groups=groups[:1200])
    assert model.predictor_.get_params()["random_state"] == 5
    outputs = model.outputs(X[1200:], groups=groups[1200:])
    questions = [{"alpha": 0.2}, {"alpha": [0.3, 0.1]}, {"sample_alphas": np.full(100, 0.25)}]
    if method == "conditional":
        questions += [{"max_size": 1}, {"sample_alphas": np.resize([0.05, 0.4], 100)}]
    for question in questions:
        sets = model.predict_set(X[1200:], groups=groups[1200:], **question)
        expected = model.predictor_.predict_set(outputs, **question)
        np.testing.assert_array_equal(sets.mask, expected.mask)
        np.testing.assert_array_equal(sets.alpha, expected.alpha)
    masks = [model.predict_set(X[1200:], groups=groups[1200:], **each).mask for each in questions]
    assert not np.array_equal(masks[0], masks[2])


def test_per_class_is_that_of_the_predictor():
    X, y = numbered(400)
    model = TrustSetClassifier(GaussianNB(), per_class=True).fit(X, y)
    by_hand = TrustSetClassifier(GaussianNB(), ConditionalConformal(per_class=True)).fit(X, y)
    np.testing.assert_array_equal(model.predict_set(X).mask, by_hand.predict_set(X).mask)
    plain = TrustSetClassifier(GaussianNB()).fit(X, y)
    assert plain.predictor_.get_params()["per_class"] == ConditionalConformal().per_class


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"nonconformity_score": "magic"}, "score must be one of aps"),
        ({"method": "standard", "per_class": True}, 'per_class=True belongs to method="cond'),
        ({"per_class": "auto"}, "per_class must be True or False; got 'auto'"),
        ({"method": StandardConformal(), "nonconformity_score": "aps"}, "in the StandardConformal"),
        ({"method": "magic"}, "method must be"),
        ({"method": "paper", "features": None}, "needs a trust score"),
        ({"calibration_fraction": 1.5}, "calibration_fraction must lie"),
        ({"reference_fraction": 1.0}, "reference_fraction must"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(words, message):
    X, y = numbered()

    class Never(GaussianNB):
        def fit(self, X, y):
            raise AssertionError("trained")

    with pytest.raises(InputError, match=message):
        TrustSetClassifier(Never(), **words).fit(X, y)


METHODS = ["conditional", "standard", "mondrian"]


def calibrated(model):
    """Samples that calibration used, for thresholds and for tuning."""
    return model.predictor_.n_calibration_ + model.predictor_.n_tuning_


@parametrize_with_checks([TrustSetClassifier(LogisticRegression(), method) for method in METHODS])
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    X = X + np.random.default_rng(0).normal(0, 4, size=X.shape)
    names = np.array("zero one two three four five six seven eight nine".split())
    return X, names[y]


def test_calibrating_again_is_calibrating_once(digits):
    X, y = digits
    model = GaussianNB().fit(X[:600], y[:600])
    wrapped = TrustSetClassifier(model, prefit=True).calibrate(X[600:1200], y[600:1200])
    once = wrapped.predict_set(X[1200:])
    assert calibrated(wrapped.calibrate(X[600:1200], y[600:1200])) == 420
    np.testing.assert_array_equal(wrapped.predict_set(X[1200:]).mask, once.mask)
    np.testing.assert_array_equal(wrapped.predict_set(X[1200:]).thresholds, once.thresholds)
    # With training data of its own the trust score needs none of the calibration samples.
    wrapped.fit(X[:600], y[:600]).calibrate(X[600:1200], y[600:1200])
    assert calibrated(wrapped) == 600


def test_a_class_that_training_lacks_is_named(digits):
    X, y = digits
    part = np.flatnonzero(y != "nine")[:600]
    rows = np.append(part, np.flatnonzero(y == "nine")[0])
    # A seed that puts the only sample of a class into calibration.
    model = TrustSetClassifier(GaussianNB(), "standard", random_state=25)
    with pytest.warns(TrustSetsWarning, match="training had no sample of 'nine'"):
        model.fit(X[rows], y[rows])
    assert "nine" not in model.classes_ and model.predictor_.n_calibration_ == 179


def test_labels_that_the_classifier_does_not_know_are_refused(digits):
    X, y = digits
    model = GaussianNB().fit(X[:600], y[:600])
    strange = np.where(np.arange(600) == 7, "ten", y[600:1200])
    prefit = TrustSetClassifier(model, prefit=True)
    for call in (prefit.calibrate, prefit.fit):
        with pytest.raises(InputError, match="y must hold classes of the classifier; got 'ten'"):
            call(X[600:1200], strange)
    trained = TrustSetClassifier(GaussianNB(), "standard").fit(X[:600], y[:600])
    with pytest.raises(InputError, match="got 'ten', which is not among its 10 classes"):
        trained.calibrate(X[600:1200], strange)


def test_margins_stand_in_for_probabilities(digits):
    X, y = digits
    for labels in (y, np.where(y == "one", "one", "other")):
        model = TrustSetClassifier(RidgeClassifier(), "standard").fit(X[:1200], labels[:1200])
        np.testing.assert_array_equal(model.outputs(X[1200:]).predicted, model.predict(X[1200:]))
        assert model.predict_set(X[1200:]).covers(labels[1200:]).mean() > 0.85


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
@pytest.mark.parametrize("prefit", [False, True])
def test_a_call_that_fails_changes_nothing(prefit, digits):
    X, y = digits
    estimator = GaussianNB().fit(X[:600], y[:600]) if prefit else GaussianNB()
    model = TrustSetClassifier(estimator, "paper", prefit=prefit)
    call = model.calibrate if prefit else model.fit
    expected = call(X[600:1200], y[600:1200]).predict_set(X[1200:])
    before = {name: id(value) for name, value in vars(model).items()}
    with pytest.raises(InputError, match="calibration samples cannot determine 21 basis func"):
        call(X[1200:1220], y[1200:1220])
    assert {name: id(value) for name, value in vars(model).items()} == before
    np.testing.assert_array_equal(model.predict_set(X[1200:]).mask, expected.mask)


# What scikit-learn users have: pipelines, tables, groups, metadata.
SITES = np.array(["north", "south", "west"])


def drawn(n, seed=0):
    """Points around five centres, named after trees."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(5, size=n)
    X = rng.normal(size=(n, 4)) + 1.5 * np.random.default_rng(7).normal(size=(5, 4))[codes]
    return X, np.array(["ash", "birch", "cedar", "oak", "yew"])[codes]


def as_frame(X, seed=1):
    """The points as a table with missing numbers, a column of texts and one of categories."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(X, columns=list("abcd")).mask(rng.random(X.shape) < 0.1)
    frame["site"] = pd.Categorical(rng.choice(SITES, len(X))).set_categories(SITES)
    frame["note"] = rng.choice(["dry", "wet"], len(X))
    return frame.mask(rng.random(frame.shape) < [0, 0, 0, 0, 0.05, 0])


@pytest.fixture(scope="module")
def table():
    X, y = drawn(900)
    return as_frame(X), y


def pipeline(last=None):
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    encode = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["site", "note"]),
    )
    return make_pipeline(encode, last or LogisticRegression(max_iter=300))


@pytest.mark.parametrize("wrap", [make_pipeline, lambda own: GridSearchCV(own, {"C": [1.0]}, cv=2)])
def test_margins_of_three_pairs_are_not_those_of_three_classes(wrap):
    X, y = drawn(300)
    pairs, three, two = wrap(SVC(decision_function_shape="ovo")), y < "oak", y < "cedar"
    with pytest.raises(InputError, match=r"not for pairs; got 3 columns.*shape=\"ovr\""):
        TrustSetClassifier(pairs, "standard").fit(X[three], y[three])
    stacked = StackingClassifier([("a", pairs)], RidgeClassifier(), cv=2)
    for model in (stacked, CalibratedClassifierCV(pairs, cv=2)):
        TrustSetClassifier(model, "standard").fit(X[three], y[three])
    TrustSetClassifier(pairs, "standard").fit(X[two], y[two])


GRID = {"logisticregression__C": [0.1, 1.0]}
WRAPPED = {
    "GridSearchCV": lambda: GridSearchCV(pipeline(), GRID, cv=2),
    "CalibratedClassifierCV": lambda: CalibratedClassifierCV(pipeline(), cv=2),
    "TunedThresholdClassifierCV": lambda: TunedThresholdClassifierCV(pipeline(), cv=2),
    "VotingClassifier": lambda: VotingClassifier([("a", pipeline())], voting="soft"),
    "StackingClassifier": lambda: StackingClassifier([("a", pipeline())], cv=2),
    "CalibratedClassifierCV and GridSearchCV": lambda: CalibratedClassifierCV(
        GridSearchCV(pipeline(), GRID, cv=2), cv=2
    ),
}


INSIDE = {
    "GridSearchCV": lambda own: own.best_estimator_,
    "CalibratedClassifierCV": lambda own: own.calibrated_classifiers_[0].estimator,
    "VotingClassifier": lambda own: own.estimators_[0],
    "StackingClassifier": lambda own: own.estimators_[0],
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_encoder_inside_wrappers_is_found(name, table):
    frame, y = table
    y = np.where(y == "oak", "oak", "other")
    model = TrustSetClassifier(WRAPPED[name](), "mondrian").fit(frame[:400], y[:400])
    own = f"the output of ColumnTransformer in the pipeline inside {name}"
    assert model.feature_source_ == own
    inner = model.estimator_
    for step in name.split(" and "):
        inner = INSIDE.get(step, lambda own: own.estimator_)(inner)
    encoded = inner[:-1].transform(frame[400:450])
    scaler = model.encoder_.steps[-1][1][-1]
    by_hand = (encoded - scaler.mean_) / scaler.scale_
    np.testing.assert_allclose(model.outputs(frame[400:450]).features, by_hand, atol=1e-12)
    assert model.predict_set(frame[400:]).covers(y[400:]).mean() > 0.8


def test_transformers_at_several_depths_are_applied_in_order():
    X, y = drawn(300)
    inner = CalibratedClassifierCV(make_pipeline(StandardScaler(), GaussianNB()), cv=2)
    model = TrustSetClassifier(make_pipeline(PCA(2), inner), "mondrian").fit(X, y)
    source = "the output of PCA, StandardScaler in the pipeline inside CalibratedClassifierCV"
    assert model.feature_source_ == source
    first, last = model.estimator_
    second = last.calibrated_classifiers_[0].estimator[0]
    scaler = model.encoder_.steps[-1][1][-1]
    by_hand = scaler.transform(second.transform(first.transform(X[:9])))
    np.testing.assert_array_equal(model.outputs(X[:9]).features, by_hand)


def test_every_route_to_the_same_model_gives_the_same_sets(table):
    frame, y = table
    model = pipeline().fit(frame[:400], y[:400])
    voting, found = VotingClassifier([("a", model)], voting="soft"), []
    voting.estimators_, voting.le_, voting.classes_ = [model], None, model.classes_
    for each in (model, FrozenEstimator(model), voting, make_pipeline(model)):
        wrapped = TrustSetClassifier(each, prefit=True).fit(frame[:400], y[:400])
        found.append(wrapped.calibrate(frame[400:700], y[400:700]).predict_set(frame[700:]))
    encode = StandardScaler().fit(model[:-1].transform(frame[:400]))

    def outputs(part, labels=None):
        features = encode.transform(model[:-1].transform(part))
        p = model.predict_proba(part)
        return ModelOutputs(probabilities=p, features=features, labels=labels, classes=names)

    names = model.classes_
    trust = TrustScore(normalize=False).fit(outputs(frame[:400]).features, y[:400])
    by_hand = ConditionalConformal(trust=trust).calibrate(outputs(frame[400:700], y[400:700]))
    found.append(by_hand.predict_set(outputs(frame[700:])))
    for sets in found[1:]:
        np.testing.assert_array_equal(sets.mask, found[0].mask)
        np.testing.assert_array_equal(sets.thresholds, found[0].thresholds)


def features_of(train, new):
    """Features of the trust score that is fitted to `train`, of new samples."""
    constant = DummyClassifier().fit([[0.0]] * 2, ["ash", "oak"])
    model = TrustSetClassifier(constant, prefit=True, features="input")
    model.fit(train, np.resize(["ash", "oak"], len(train)))
    return model.outputs(new).features


def test_missing_numbers_are_medians_with_indicators():
    rng = np.random.default_rng(0)
    train = rng.normal(size=(50, 3))
    train[::5, 1] = np.nan
    new = np.array([[0.5, np.nan, 1.0], [np.nan, 2.0, 1.0]])
    medians = np.nanmedian(train, axis=0)
    filled = np.where(np.isnan(train), medians, train)
    expected = (np.where(np.isnan(new), medians, new) - filled.mean(axis=0)) / filled.std(axis=0)
    found = features_of(train, new)
    np.testing.assert_allclose(found[:, :3], expected, atol=1e-12)
    # Training lacked numbers of the second column only.
    np.testing.assert_array_equal(found[:, 3:], [[1.0], [0.0]])
    empty = features_of(np.full((4, 1), np.nan), [[np.nan], [3.0]])
    assert np.isfinite(empty).all() and empty[0, 1] == 1.0 and empty[1, 1] == 0.0
    with pytest.raises(ValueError, match="infinity"):
        features_of(train, [[np.inf, 1.0, 1.0]])


def test_mixed_columns_are_numbers_and_indicators():
    age, code = pd.array([1, None, 3, 2], dtype="Int64"), pd.Categorical([7, 8, 7, 7])
    frame = pd.DataFrame({"age": age, "code": code, "text": ["x", None, "y", "x"]})
    found = features_of(frame, frame)
    assert found.shape == (4, 1 + 1 + 2 + 3)  # a number, its indicator, values
    np.testing.assert_array_equal(found[:, 1:4], [[0, 1, 0], [1, 0, 1], [0, 1, 0], [0, 1, 0]])
    np.testing.assert_array_equal(found[:, 4:].sum(axis=1), np.ones(4))
    new = frame.assign(text=["z"] * 4)  # never seen
    np.testing.assert_array_equal(features_of(frame, new)[:, 4:], np.zeros((4, 3)))
    # One sample is as in a batch.
    for one in map(slice, range(4), range(1, 5)):
        np.testing.assert_array_equal(features_of(frame, frame[one]), found[one])
    objects = frame[["age", "text"]].to_numpy(object)
    expected = features_of(frame[["age", "text"]], frame[["age", "text"]])
    np.testing.assert_array_equal(features_of(objects, objects), expected)
    np.testing.assert_array_equal(features_of(objects, objects[1:2]), expected[1:2])
    with pytest.raises(InputError, match="numeric features"):
        features_of(frame, frame.assign(age=["a", "b", "c", "d"]))
    with pytest.raises(ValueError, match="now missing:\n- code"):
        features_of(frame, frame[["age", "text"]])
    with pytest.raises(ValueError, match="must be in the same order"):
        features_of(frame, frame[["text", "age", "code"]])


def test_columns_of_the_input_go_by_name_behind_a_pipeline(table):
    """A pipeline may take its columns by name, in any order; so does the trust score then."""
    frame, y = table
    model = TrustSetClassifier(pipeline(), "mondrian", features="input").fit(frame, y)
    shuffled = frame[["note", "d", "site", "b", "a", "c"]]
    np.testing.assert_array_equal(model.outputs(shuffled).features, model.outputs(frame).features)
    columns = make_column_transformer((SimpleImputer(), list("abcd")))
    numbers = make_pipeline(columns, LogisticRegression())
    model = TrustSetClassifier(numbers, "mondrian", features="input").fit(frame[list("abcd")], y)
    found = model.outputs(frame[list("dbca")]).features
    np.testing.assert_array_equal(found, model.outputs(frame[list("abcd")]).features)


def test_missing_numbers_texts_and_polars_are_no_obstacle(table):
    frame, y = table
    frame = frame.astype({"note": "category"})
    tree = HistGradientBoostingClassifier(max_iter=5)
    numbers, kinds = frame[list("abcd")], frame
    for each in (numbers, kinds, numbers.to_numpy(), pl.from_pandas(numbers)):
        model = TrustSetClassifier(tree).fit(each[:600], y[:600])
        assert model.feature_source_ == "the columns of X"
        assert model.predict_set(each[600:]).covers(y[600:]).mean() > 0.8
        assert model.predictor_.uses_features


class Words(ClassifierMixin, BaseEstimator):
    """A classifier of objects that nobody else can read."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        lengths = np.array([[len(word) == len(name) for name in self.classes_] for word in X])
        return (lengths + 0.1) / (lengths + 0.1).sum(axis=1, keepdims=True)

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


@pytest.mark.parametrize("method", ["standard", "class", "groups", "clustered"])
def test_methods_without_trust_never_look_at_features(method):
    rng = np.random.default_rng(0)
    y = rng.choice(["ash", "oaks", "birch"], 300)
    X = [name[::-1] if rng.random() < 0.8 else "?" for name in y]
    groups = {"groups": SITES[rng.integers(3, size=300)]} if method == "groups" else {}
    model = TrustSetClassifier(Words(), method).fit(X, y, **groups)
    assert model.reference_ is None and model.feature_source_.startswith("nothing")
    assert model.predict_set(X, **groups).covers(y).mean() > 0.85
    prefit = TrustSetClassifier(Words().fit(X, y), method, prefit=True)
    prefit.calibrate(X, y, **groups)
    used = prefit.predictor_
    assert used.n_calibration_ + used.n_tuning_ == 300  # nothing is set aside for a trust score
    with pytest.raises(InputError, match="needs numeric features or columns of values"):
        TrustSetClassifier(Words()).fit(X, y)


def test_wide_sparse_features_are_reduced():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300)
    words = [[f"own{k}-{i}" for i in range(300)] + [f"any{i}" for i in range(900)] for k in y]
    X = [" ".join(rng.choice(own, 25)) for own in words]
    model = TrustSetClassifier(make_pipeline(TfidfVectorizer(), LogisticRegression()), "mondrian")
    model.fit(X[:200], y[:200])
    assert model.reference_.n_features_in_ == 64
    assert model.predict_set(X[200:]).covers(y[200:]).mean() > 0.75


def test_groups_by_any_route_are_the_same(table):
    frame, y = table
    text = frame["site"].astype(object).where(frame["site"].notna(), "(missing)").to_numpy(str)
    X = frame[list("abcd")].fillna(0.0).to_numpy()
    codes = frame["site"].cat.codes.to_numpy().astype(float)
    codes[codes < 0] = np.nan
    with_codes = np.column_stack([X, codes])
    routes = [
        (TrustSetClassifier(pipeline(), "groups", groups="site"), frame, None),
        (TrustSetClassifier(pipeline(), "groups", groups=[4]), frame, None),
        (TrustSetClassifier(pipeline(), "groups"), frame, {"site": text}),
        (TrustSetClassifier(pipeline(), "groups"), frame, frame[["site"]]),
        (TrustSetClassifier(pipeline(), "groups"), frame, pl.DataFrame({"site": text})),
        (TrustSetClassifier(pipeline(), "groups"), frame, frame["site"]),
        (TrustSetClassifier(pipeline(), MondrianConformal(by=Groups())), frame, text),
    ]

    def part(groups, rows):
        if groups is None:
            return {}
        own = isinstance(groups, dict)
        return {"groups": {n: v[rows] for n, v in groups.items()} if own else groups[rows]}

    first, new = slice(0, 700), slice(700, 900)
    found = []
    for model, data, groups in routes:
        model.fit(data[first], y[first], **part(groups, first))
        found.append(model.predict_set(data[new], **part(groups, new)).mask)
    for mask in found[1:]:
        np.testing.assert_array_equal(mask, found[0])
    assert [model.reference_ for model, _, _ in routes] == [None] * len(routes)
    outputs = routes[0][0].outputs(frame[new])
    assert sorted(set(outputs.groups["site"])) == ["(missing)", "north", "south", "west"]
    np.testing.assert_array_equal(outputs.groups["site"], text[new])
    by_number = TrustSetClassifier(HistGradientBoostingClassifier(max_iter=3), "groups", groups=4)
    by_number.fit(with_codes[first], y[first])
    assert set(by_number.outputs(with_codes[new]).groups["4"]) == {"0", "1", "2", "(missing)"}
    mask = by_number.predict_set(with_codes[new]).mask
    by_number.fit(with_codes[first].tolist(), y[first].tolist())
    np.testing.assert_array_equal(by_number.predict_set(with_codes[new].tolist()).mask, mask)


def test_conditional_sets_use_the_groups(table):
    frame, y = table
    model = TrustSetClassifier(pipeline(), groups="site").fit(frame[:700], y[:700])
    assert model.predictor_.needed_groups == ("site",)
    assert "Groups" in repr(model.predictor_.choice_.basis)
    with pytest.warns(TrustSetsWarning, match="not conditioned on site"):
        TrustSetClassifier(pipeline(), groups=["note", "site"]).fit(frame[:400], y[:400])


class Recorder(LogisticRegression):
    """Keeps what fit was given."""

    def fit(self, X, y, sample_weight=None):
        self.rows_, self.weights_ = np.array(X), sample_weight
        return super().fit(X, y, sample_weight=sample_weight)


def test_weights_reach_the_classifier_row_by_row():
    X, y = drawn(300)
    weight = np.exp(X[:, 0])
    search = GridSearchCV(make_pipeline(Recorder()), {"recorder__C": [0.1, 1.0]}, cv=2)
    for model, name in (
        (Recorder(), "sample_weight"),
        (make_pipeline(Recorder()), "recorder__sample_weight"),
        (search, "recorder__sample_weight"),
    ):
        fitted = TrustSetClassifier(model, "standard").fit(X, y, **{name: weight}).estimator_
        fitted = getattr(fitted, "best_estimator_", fitted)
        last = fitted if isinstance(fitted, Recorder) else fitted[-1]
        np.testing.assert_array_equal(last.weights_, np.exp(last.rows_[:, 0]))
        assert len(last.weights_) == 210
    with pytest.raises(TypeError, match="sample_weight"):
        TrustSetClassifier(KNeighborsClassifier()).fit(X, y, sample_weight=weight)
    TrustSetClassifier(KNeighborsClassifier(), "standard").fit(X, y, sample_weight=None)
    prefit = TrustSetClassifier(Recorder().fit(X, y), prefit=True)
    with pytest.raises(InputError, match="prefit=True trains nothing; leave out sample_weight"):
        prefit.fit(X, y, sample_weight=weight)


@config_context(enable_metadata_routing=True)
def test_metadata_are_routed():
    X, y = drawn(400)
    weight, groups = np.exp(X[:, 0]), SITES[(X[:, 1] > 0).astype(int)]
    inner = Recorder().set_fit_request(sample_weight=True)
    steps = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), inner)
    model = TrustSetClassifier(steps).fit(X, y, sample_weight=weight, groups=groups)
    assert len(model.estimator_[-1].weights_) == 280
    assert model.predictor_.needed_groups == ("group",)
    asking = TrustSetClassifier(inner, "groups").set_fit_request(groups=True)
    asking.set_score_request(sample_weight=False)
    search = GridSearchCV(asking, {"estimator__C": [0.1, 1.0]}, cv=2)
    best = search.fit(X, y, sample_weight=weight, groups=groups).best_estimator_
    assert np.isfinite(search.best_score_)
    np.testing.assert_array_equal(best.estimator_.weights_, np.exp(best.estimator_.rows_[:, 0]))
    with pytest.raises(ValueError, match="not explicitly set as requested"):
        TrustSetClassifier(LogisticRegression()).fit(X, y, sample_weight=weight)


def test_every_method_has_a_name(table):
    X, y = drawn(900)
    names = "conditional bins mondrian standard class clustered".split()
    for name in names:
        model = TrustSetClassifier(GaussianNB(), name).fit(X[:600], y[:600])
        assert model.predict_set(X[600:]).covers(y[600:]).mean() > 0.82
    with pytest.warns(UserWarning, match="calibration samples"):
        paper = TrustSetClassifier(GaussianNB(), "paper").fit(X[:600], y[:600])
    expected = ConditionalConformal.paper(trust=paper.reference_)
    assert paper.predictor_.get_params() == expected.get_params()
    plain = TrustSetClassifier(GaussianNB(), features=None).fit(X[:600], y[:600])
    assert plain.predictor_.trust is None
    bins = TrustSetClassifier(GaussianNB(), "mondrian", features=None).fit(X[:600], y[:600])
    assert [item.name for item in bins.predictor_.by.of] == ["Conf"]
    predictor = ConditionalConformal(basis=Intercept())
    own = TrustSetClassifier(GaussianNB(), predictor).fit(X, y)
    assert own.predictor_.basis == Intercept() and own.predictor_.trust is not None
    assert predictor.trust is None  # the caller's object stays as it was
    own.set_params(features=None)
    assert own.fit(X, y).predictor_.trust is None
    trust = TrustScore(normalize=False).fit(X[:300], y[:300])
    own.set_params(method=ConditionalConformal(trust=trust), features="input")
    assert own.fit(X, y).predictor_.trust is trust
    wanted = TrustSetClassifier(GaussianNB(), StandardConformal(), features="input").fit(X, y)
    assert wanted.outputs(X).features.shape == (900, 4)


def test_mistakes_are_named(table):
    frame, y = table
    X = frame[list("abcd")].fillna(0.0)
    bayes = TrustSetClassifier(GaussianNB())
    with pytest.raises(NotCalibratedError, match="call fit, or set prefit"):
        bayes.calibrate(X, y)
    for method in (bayes.outputs, bayes.predict, bayes.predict_proba, bayes.predict_set):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            method(X)
    for model, call, message in [
        (bayes, {"groups": y[:5]}, r"must have shape \(900,\), one per sample; got \(5,\)"),
        (TrustSetClassifier(GaussianNB(), groups="city"), {}, "'city', but X has the columns"),
        (TrustSetClassifier(GaussianNB(), groups=7), {}, "names column 7, but X has 4 columns"),
        (TrustSetClassifier(GaussianNB(), groups=[y]), {}, "names or numbers of columns of X"),
        (TrustSetClassifier(GaussianNB(), groups="a"), {"groups": y}, "columns of X already"),
        (TrustSetClassifier(GaussianNB(), "groups"), {}, 'method="groups" needs groups'),
        (TrustSetClassifier(GaussianNB(), features="output"), {}, "features must be"),
        (TrustSetClassifier(LinearRegression()), {}, "a regressor has none"),
        (TrustSetClassifier(VotingClassifier([("a", GaussianNB())])), {}, 'set voting="soft"'),
        (TrustSetClassifier(SVC(decision_function_shape="ovo")), {}, 'shape="ovr"'),
        # As many weights as samples that are trained on: no classifier would notice.
        (bayes, {"sample_weight": np.ones(630)}, r"each of the 900 samples; got shape \(630,\)"),
        (TrustSetClassifier(GaussianNB(), features=X), {}, "of X, or None; got 'DataFrame'"),
    ]:
        with pytest.raises(InputError, match=message):
            model.fit(X, y, **call)
    with pytest.raises(InputError, match="is no table with named columns"):
        TrustSetClassifier(GaussianNB(), groups="a").fit(X.to_numpy(), y)
    with pytest.raises(NotCalibratedError, match="this GaussianNB is not fitted; call its fit"):
        TrustSetClassifier(GaussianNB(), prefit=True).calibrate(X, y)
    started = TrustSetClassifier(GaussianNB().fit(X, y), prefit=True).fit(X, y)
    with pytest.raises(NotCalibratedError, match="no calibration yet; call calibrate with samples"):
        started.predict_set(X)
    again = TrustSetClassifier(GaussianNB().fit(X, y), "standard", prefit=True).calibrate(X, y)
    with pytest.raises(NotCalibratedError, match="no calibration yet"):
        again.fit(X, y).predict_set(X)
    grouped = TrustSetClassifier(GaussianNB(), "groups").fit(X, y, groups={"site": frame["note"]})
    with pytest.raises(InputError, match=r"groups= lacks \['site'\], on which coverage was"):
        grouped.predict_set(X)
    later = TrustSetClassifier(GaussianNB(), "standard").fit(X, y).set_params(method="mondrian")
    with pytest.raises(NotCalibratedError, match="changed to one with a trust score; call fit"):
        later.calibrate(X, y)
