import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.estimator_checks import parametrize_with_checks

from trustsets import TrustSetClassifier
from trustsets.errors import InputError, TrustSetsWarning

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
        np.testing.assert_array_equal(
            model.outputs(X[1200:]).predicted, model.estimator_.predict(X[1200:])
        )
        assert model.predict_set(X[1200:]).covers(labels[1200:]).mean() > 0.85
