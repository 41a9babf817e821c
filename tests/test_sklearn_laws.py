"""Laws of `TrustSetClassifier` over methods, routes, labels and wrappers."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from trustsets import (
    APS,
    RAPS,
    SAPS,
    ConditionalConformal,
    ModelOutputs,
    Softmax,
    StandardConformal,
    TrustSetClassifier,
)
from trustsets.errors import InputError
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
    for seed in range(60):
        model = TrustSetClassifier(
            trained if prefit else Watched(),
            StandardConformal(score=Softmax()),
            features=first_column,
            prefit=prefit,
            random_state=seed,
        )
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
    prefit.calibrate(X[100:], y[100:])
    # A few values in common are no sign of the same samples.
    coarse = np.column_stack([X[:, 0], np.round(X[:, 1:])])
    model = TrustSetClassifier(Watched().fit(coarse, y), features=lambda X: X[:, 1:], prefit=True)
    model.fit(coarse[:200], y[:200]).calibrate(coarse[200:], y[200:])


class Margins(ClassifierMixin, BaseEstimator):
    """A logistic model that keeps its probabilities to itself."""

    def __init__(self, C=1.0):
        self.C = C

    def fit(self, X, y):
        self.inner_ = LogisticRegression(C=self.C).fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def decision_function(self, X):
        return self.inner_.decision_function(X)

    def predict(self, X):
        return self.inner_.predict(X)


@pytest.mark.parametrize("names", [[0, 1], ["no", "yes"], ["b", "a"], [5, -3], [True, False]])
@pytest.mark.parametrize("C", [0.01, 1.0, 1e4])
def test_binary_margins_of_a_logistic_model_are_its_probabilities(C, names):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 3))
    y = np.array(names)[(X[:, 0] + 0.5 * rng.normal(size=400) > 0.4).astype(int)]
    model = TrustSetClassifier(Margins(C), "standard").fit(X[:300], y[:300])
    expected = model.estimator_.inner_.predict_proba(X[300:])
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
        (
            {"method": StandardConformal(), "nonconformity_score": "aps"},
            "set them in the StandardConformal that method holds",
        ),
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
