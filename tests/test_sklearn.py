import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from trustsets import (
    APS,
    ConditionalConformal,
    Intercept,
    MondrianConformal,
    StandardConformal,
    TrustScore,
    TrustSetClassifier,
)
from trustsets.errors import InputError, NotCalibratedError, TrustSetsWarning
from trustsets.sklearn import SetScorer

METHODS = ["conditional", "standard", "mondrian"]


def calibrated(model):
    """Samples that calibration used, for thresholds and for tuning."""
    return model.predictor_.n_calibration_ + model.predictor_.n_tuning_


def _scaler(model):
    return model.encoder_.steps[-1][1][-1]


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


@pytest.mark.parametrize("method", METHODS)
def test_sets_cover_names_of_new_digits(method, digits):
    X, y = digits
    model = TrustSetClassifier(GaussianNB(), method).fit(X[:1200], y[:1200])
    sets = model.predict_set(X[1200:], alpha=0.1)
    assert sets.covers(y[1200:]).mean() > 0.9 - 4 * np.sqrt(0.09 / 360 + 0.09 / 597)
    assert sets[0].dtype == y.dtype
    np.testing.assert_array_equal(model.predict(X[1200:]), model.estimator_.predict(X[1200:]))
    np.testing.assert_allclose(
        model.predict_proba(X[1200:]), model.estimator_.predict_proba(X[1200:]), atol=1e-12
    )


def test_it_is_the_parts_put_together(digits):
    X, y = digits
    whole = TrustSetClassifier(GaussianNB(), random_state=3).fit(X[:1200], y[:1200])
    model = GaussianNB().fit(X[:700], y[:700])
    prefit = TrustSetClassifier(model, StandardConformal(), prefit=True)
    prefit.fit(X[:700], y[:700]).calibrate(X[700:1200], y[700:1200])
    by_hand = StandardConformal().calibrate(prefit.outputs(X[700:1200], y[700:1200]))
    np.testing.assert_array_equal(
        prefit.predict_set(X[1200:]).mask, by_hand.predict_set(prefit.outputs(X[1200:])).mask
    )
    assert prefit.estimator_ is model
    assert isinstance(whole.predictor_.trust, TrustScore)
    assert calibrated(whole) == 360


def test_training_and_calibration_samples_are_apart(digits):
    X, y = digits
    seen = {}

    class Recorder(GaussianNB):
        def fit(self, X, y):
            seen["training"] = list(zip(map(bytes, np.ascontiguousarray(X)), y, strict=True))
            return super().fit(X, y)

        def predict_proba(self, X):
            seen["calibration"] = list(map(bytes, np.ascontiguousarray(X)))
            return super().predict_proba(X)

    words = {"calibration_fraction": 0.25, "features": "input"}
    model = TrustSetClassifier(Recorder(), "standard", **words).fit(X, y)
    trained = dict(seen["training"])
    assert len(seen["calibration"]) == model.predictor_.n_calibration_
    assert not set(trained) & set(seen["calibration"])
    # Together they are all samples, once each, and training had the labels of its own.
    everything = dict(zip(map(bytes, np.ascontiguousarray(X)), y, strict=True))
    assert sorted([*trained, *seen["calibration"]]) == sorted(everything)
    assert all(everything[row] == label for row, label in trained.items())
    reference = _scaler(model).inverse_transform(model.reference_.to_state()["features"])
    distances = np.abs(X[:, None, :3] - reference[None, :, :3]).max(axis=2).min(axis=1)
    is_trained = np.array([bytes(row) in trained for row in np.ascontiguousarray(X)])
    np.testing.assert_array_equal(distances < 1e-9, is_trained)


def test_prefit_calibrates_without_training_data(digits):
    X, y = digits
    model = GaussianNB().fit(X[:600], y[:600])
    wrapped = TrustSetClassifier(model, prefit=True).calibrate(X[600:1200], y[600:1200])
    assert wrapped.predict_set(X[1200:]).covers(y[1200:]).mean() > 0.8
    assert calibrated(wrapped) == 420  # 30% are training points of the trust score


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
    rng = np.random.default_rng(0)
    while True:  # a seed that puts the only sample of a class into calibration
        seed = int(rng.integers(1000))
        rest = np.random.default_rng(seed).permutation(601)[round(0.7 * 601) :]
        if 600 in rest:
            break
    rows = np.append(part, np.flatnonzero(y == "nine")[0])
    model = TrustSetClassifier(GaussianNB(), "standard", random_state=seed)
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


def test_a_class_that_calibration_lacks_is_named(digits):
    X, y = digits
    model = GaussianNB().fit(X[:600], y[:600])
    without = 600 + np.flatnonzero(y[600:1200] != "two")
    wrapped = TrustSetClassifier(model, "standard", prefit=True)
    with pytest.warns(TrustSetsWarning, match="no calibration sample of class 'two'"):
        wrapped.calibrate(X[without], y[without])
    assert "nothing is guaranteed for it" in wrapped.predictor_.summary()


def test_frames_and_pipelines_work_together(digits):
    X, y = digits
    frame = pd.DataFrame(X[:, :12], columns=[f"c{i}" for i in range(12)])
    frame["corner"] = np.where(X[:, 20] > 8, "dark", "light")
    encode = make_column_transformer(
        (OneHotEncoder(), ["corner"]), remainder=StandardScaler(), sparse_threshold=1.0
    )
    model = make_pipeline(encode, LogisticRegression(max_iter=1000))
    wrapped = TrustSetClassifier(model).fit(frame[:1200], y[:1200])
    assert wrapped.reference_.n_features_in_ == 14
    assert list(wrapped.feature_names_in_) == list(frame.columns)
    assert wrapped.predict_set(frame[1200:]).covers(y[1200:]).mean() > 0.8
    both = clone(wrapped).set_params(features="input").fit(frame, y)
    assert both.reference_.n_features_in_ == 14  # twelve numbers, dark and light
    chosen = clone(wrapped).set_params(features=lambda X: X[["c3", "c4"]])
    assert chosen.fit(frame, y).reference_.n_features_in_ == 2


def test_margins_stand_in_for_probabilities(digits):
    X, y = digits
    for labels in (y, np.where(y == "one", "one", "other")):
        model = TrustSetClassifier(RidgeClassifier(), "standard").fit(X[:1200], labels[:1200])
        np.testing.assert_array_equal(
            model.outputs(X[1200:]).predicted, model.estimator_.predict(X[1200:])
        )
        assert model.predict_set(X[1200:]).covers(labels[1200:]).mean() > 0.85


def test_it_works_inside_pipelines_and_searches(digits):
    X, y = digits
    inner = TrustSetClassifier(LogisticRegression(max_iter=300), "standard")
    model = Pipeline([("scale", StandardScaler()), ("sets", inner)]).fit(X[:600], y[:600])
    assert model.predict(X[600:]).shape == (1197,)
    for metric in ("size", "coverage_gap"):
        search = GridSearchCV(
            TrustSetClassifier(GaussianNB(), "conditional"),
            {"estimator__var_smoothing": [1e-9, 0.5], "method": ["conditional", "standard"]},
            scoring=SetScorer(metric),
            cv=2,
        ).fit(X[:800], y[:800])
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert (search.cv_results_["mean_test_score"] <= 0.0).all()


def test_scorers_measure_what_they_say(digits):
    X, y = digits
    model = TrustSetClassifier(GaussianNB(), "standard").fit(X[:1200], y[:1200])
    sets = model.predict_set(X[1200:], alpha=0.2)
    assert SetScorer("size", alpha=0.2)(model, X[1200:], y[1200:]) == -sets.sizes.mean()
    one_bin = SetScorer("coverage_gap", alpha=0.2, n_bins=1)(model, X[1200:], y[1200:])
    assert one_bin == pytest.approx(-100 * abs(sets.covers(y[1200:]).mean() - 0.8))
    with pytest.raises(InputError, match="metric must be"):
        SetScorer("accuracy")


def test_the_function_class_grows_with_the_data(digits):
    X, y = digits
    first = []
    for n in (60, 300, 1797):
        model = TrustSetClassifier(GaussianNB()).fit(X[:n], y[:n])
        first.append(model.predictor_.choice_.candidates[0])
    assert first[0] == "constant functions"
    assert first[1].startswith("polynomials of degree 1 in the ranks of Conf and Trust")
    assert first[2].startswith("polynomials of degree 5 in the ranks of Conf and Trust")


def test_your_own_predictor_is_used(digits):
    X, y = digits
    own = ConditionalConformal(score=APS(), basis=Intercept())
    model = TrustSetClassifier(GaussianNB(), own).fit(X[:900], y[:900])
    assert model.predictor_.basis == Intercept()
    assert own.trust is None  # the caller's object stays as it was
    classwise = TrustSetClassifier(GaussianNB(), MondrianConformal(by="class")).fit(X, y)
    assert classwise.predictor_.by == "class"


def test_bad_use_is_named(digits):
    X, y = digits
    with pytest.raises(NotCalibratedError, match="call fit, or set prefit"):
        TrustSetClassifier(GaussianNB()).calibrate(X, y)
    for change, message in [
        ({"method": "magic"}, "method must be"),
        ({"features": "output"}, "features must be"),
        ({"features": "pipeline"}, "needs a pipeline"),
        ({"features": "leaves"}, "GaussianNB does not"),
        ({"method": "paper", "features": None}, "needs a trust score"),
        ({"calibration_fraction": 1.5}, "calibration_fraction must lie"),
    ]:
        with pytest.raises(InputError, match=message):
            TrustSetClassifier(GaussianNB(), **change).fit(X, y)
