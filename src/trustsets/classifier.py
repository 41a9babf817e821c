"""A scikit-learn classifier that also predicts sets."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _safe_indexing, assert_all_finite, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_is_fitted, column_or_1d

from trustsets._common.arrays import Array
from trustsets.basis import Bins
from trustsets.errors import InputError, NotCalibratedError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.predictors import (
    ConditionalConformal,
    MondrianConformal,
    Predictor,
    StandardConformal,
)
from trustsets.predictors.class_facts import class_names
from trustsets.sets import PredictionSets
from trustsets.trust import TrustScore

__all__ = ["SetScorer", "TrustSetClassifier"]

Features = Literal["auto", "input", "pipeline"] | Callable[[Any], Any]

# The grid of "mondrian" grows with the calibration data: this many samples for each cell.
_SAMPLES_PER_CELL = 50
_LARGEST_SIDE = 5


@final
class TrustSetClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Wrap any classifier: `predict_set` gives sets that hold the true class.

    `fit` trains the classifier on one part of the data and calibrates on the other. With
    ``prefit=True`` the classifier is used as it is, and `calibrate` needs data that it was
    not trained on.

    Coverage is guaranteed for new samples of the classes that training saw, the `classes_`. A
    warning names the classes that training or calibration lacks; `calibrate` refuses labels
    that the classifier does not know.

    Parameters
    ----------
    estimator : classifier
        Any scikit-learn classifier or pipeline with `predict_proba` or `decision_function`.
    method : {"conditional", "standard", "mondrian"} or Predictor
        ``"conditional"`` is `ConditionalConformal` with its defaults, which depend on the
        amount of calibration data; ``"mondrian"`` uses a grid of confidence and trust;
        ``"standard"`` is split conformal prediction. A predictor is used as given, with a
        trust score fitted here if it has none.
    features : {"auto", "input", "pipeline"} or callable
        Where the trust score measures distances: the input, the output of a pipeline
        before its last step, or ``features(X)``. ``"auto"`` takes the second for a
        pipeline and the first otherwise. Columns are standardised.
    calibration_fraction : float
        Share of the data that `fit` sets aside for calibration.
    prefit : bool
        Do not train the classifier.
    reference_fraction : float
        With ``prefit=True`` and no earlier `fit`, the share of the calibration data that
        serves as training samples of the trust score instead. Every call of `calibrate` sets
        this share of its own data aside; these samples take no part in calibration.
    random_state : int
        Seed of the splits.

    Attributes
    ----------
    estimator_ : classifier
    predictor_ : Predictor
    classes_ : array of shape (K,)

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), LogisticRegression())
    >>> sets = TrustSetClassifier(model).fit(X[::2], y[::2]).predict_set(X[1::2], alpha=0.1)
    >>> bool(sets.covers(y[1::2]).mean() > 0.85)
    True
    """

    def __init__(
        self,
        estimator: Any,
        method: Literal["conditional", "standard", "mondrian"] | Predictor = "conditional",
        *,
        features: Features = "auto",
        calibration_fraction: float = 0.3,
        prefit: bool = False,
        reference_fraction: float = 0.3,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.features = features
        self.calibration_fraction = calibration_fraction
        self.prefit = prefit
        self.reference_fraction = reference_fraction
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def fit(self, X: Any, y: Any) -> Self:
        """Train and calibrate; with ``prefit=True``, only take training samples for Trust."""
        X, y = _check_data(X, y)
        if self.prefit:
            check_is_fitted(self.estimator)
            return self._adopt(self.estimator)._refer_to(X, y, is_training=True)
        train, rest = _part(y, 1.0 - _fraction(self, "calibration_fraction"), self.random_state)
        X_train, estimator = _safe_indexing(X, train), clone(self.estimator)
        estimator.fit(X_train, y[train])
        self._adopt(estimator)._refer_to(X_train, y[train], is_training=True)
        rest = rest[self._seen_in_training(y[rest])]
        return self._calibrate(_safe_indexing(X, rest), y[rest])

    def calibrate(self, X: Any, y: Any) -> Self:
        """Calibrate on data that the classifier was not trained on; can be called again."""
        X, y = _check_data(X, y)
        if self.prefit and not getattr(self, "reference_is_training_", False):
            check_is_fitted(self.estimator)
            share = _fraction(self, "reference_fraction")
            self._adopt(self.estimator)
            _check_known(y, self.classes_)
            # At every call: a sample must never be calibrated with itself as the reference.
            reference, rest = _part(y, share, self.random_state)
            self._refer_to(_safe_indexing(X, reference), y[reference], is_training=False)
            X, y = _safe_indexing(X, rest), y[rest]
        elif not hasattr(self, "estimator_"):
            raise NotCalibratedError("there is no trained classifier; call fit, or set prefit.")
        return self._calibrate(X, y)

    def predict_set(self, X: Any, alpha: Any = 0.1) -> PredictionSets:
        """Sets that miss the true class with probability at most `alpha`."""
        check_is_fitted(self)
        return self.predictor_.predict_set(self.outputs(X), alpha=alpha)

    def predict(self, X: Any) -> Array:
        """Most likely class of each sample, as the classifier says."""
        check_is_fitted(self)
        return np.asarray(self.estimator_.predict(X))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities, as the classifier says."""
        check_is_fitted(self)
        return np.asarray(self.outputs(X).probabilities)

    def outputs(self, X: Any, y: Any = None) -> ModelOutputs:
        """The classifier's outputs on `X`, ready for predictors and metrics."""
        features = np.asarray(self.scaler_.transform(self._raw_features(X)))
        arguments = {"features": features, "labels": y, "classes": self.classes_}
        if hasattr(self.estimator_, "predict_proba"):
            return ModelOutputs(probabilities=self.estimator_.predict_proba(X), **arguments)
        margins = np.asarray(self.estimator_.decision_function(X))
        if margins.ndim == 1:
            margins = np.column_stack([-margins, margins]) / 2.0
        return ModelOutputs(logits=margins, **arguments)

    def _adopt(self, estimator: Any) -> Self:
        """Take a trained classifier."""
        self.estimator_ = estimator
        self.classes_ = np.asarray(estimator.classes_)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))
        return self

    def _refer_to(self, X: Any, y: Array, *, is_training: bool) -> Self:
        """Fit the trust score to samples that take no part in calibration."""
        _check_known(y, self.classes_)
        raw = self._raw_features(X)
        self.scaler_ = StandardScaler().fit(raw)
        self.reference_ = TrustScore(normalize=False).fit(self.scaler_.transform(raw), y)
        self.reference_is_training_ = is_training
        return self

    def _seen_in_training(self, y: Array) -> NDArray[np.bool_]:
        """Which samples are of a class that the classifier knows; warn of the others."""
        known = np.isin(y, self.classes_)
        if not known.any():
            raise InputError(
                "no sample is left for calibration, because training saw none of their classes; "
                "give more samples of each class."
            )
        if not known.all():
            warnings.warn(
                f"training had no sample of {class_names(np.unique(y[~known]))}, so no set can "
                "hold it and coverage is guaranteed for the other classes only; give more samples "
                "of each class.",
                TrustSetsWarning,
                stacklevel=3,
            )
        return known

    def _calibrate(self, X: Any, y: Array) -> Self:
        _check_known(y, self.classes_)
        outputs = self.outputs(X, y)
        self.predictor_ = self._predictor(len(outputs)).calibrate(outputs)
        return self

    def _predictor(self, n: int) -> Predictor:
        """A fresh predictor for n calibration samples."""
        if isinstance(self.method, Predictor):
            predictor: Predictor = clone(self.method)
            if predictor.trust is None and "trust" in predictor.get_params(deep=False):
                predictor.set_params(trust=self.reference_)
            return predictor
        if self.method == "standard":
            return StandardConformal(random_state=self.random_state)
        if self.method == "mondrian":
            side = min(_LARGEST_SIDE, max(1, int(np.sqrt(n / _SAMPLES_PER_CELL))))
            bins = Bins(counts=(side, side), spacing=("quantile", "quantile"))
            return MondrianConformal(bins, trust=self.reference_, random_state=self.random_state)
        if self.method == "conditional":
            return ConditionalConformal(trust=self.reference_, random_state=self.random_state)
        raise InputError(
            'method must be "conditional", "standard", "mondrian" or a predictor; '
            f"got {self.method!r}."
        )

    def _raw_features(self, X: Any) -> NDArray[np.float64]:
        """Features before they are standardised."""
        if callable(self.features):
            return _dense_numbers(self.features(X))
        if self.features not in ("auto", "input", "pipeline"):
            raise InputError(
                'features must be "auto", "input", "pipeline" or a function of X; '
                f"got {self.features!r}."
            )
        has_steps = isinstance(self.estimator_, Pipeline) and len(self.estimator_) > 1
        if self.features == "pipeline" and not has_steps:
            raise InputError('features="pipeline" needs a pipeline of two steps or more.')
        before_last = has_steps and self.features != "input"
        return _dense_numbers(self.estimator_[:-1].transform(X) if before_last else X)


@final
@dataclass(frozen=True)
class SetScorer:
    """Scoring function for `GridSearchCV` and friends; larger is better.

    Parameters
    ----------
    metric : {"coverage_gap", "size"}
        Minus the mean distance between coverage and 1 - alpha (in percent) over `n_bins`
        equal shares of the samples by confidence; or minus the mean size of the sets.
    alpha : float
        Allowed miscoverage.
    n_bins : int
        Number of shares.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_digits(return_X_y=True)
    >>> model = TrustSetClassifier(GaussianNB(), "standard").fit(X[:900], y[:900])
    >>> bool(SetScorer("size")(model, X[900:], y[900:]) < -1.0)
    True
    """

    metric: Literal["coverage_gap", "size"] = "coverage_gap"
    alpha: float = 0.1
    n_bins: int = 5

    def __post_init__(self) -> None:
        if self.metric not in ("coverage_gap", "size"):
            raise InputError(f'metric must be "coverage_gap" or "size"; got {self.metric!r}.')

    def __call__(self, estimator: TrustSetClassifier, X: Any, y: Any) -> float:
        """Score a fitted classifier on samples with known classes."""
        outputs = estimator.outputs(X)
        sets = estimator.predictor_.predict_set(outputs, alpha=self.alpha)
        if self.metric == "size":
            return -float(sets.sizes.mean())
        covered = sets.covers(y)[np.argsort(outputs.confidence, kind="stable")]
        shares = [part.mean() for part in np.array_split(covered, self.n_bins) if part.size]
        return -100.0 * float(np.mean(np.abs(np.array(shares) - (1.0 - self.alpha))))


def _check_data(X: Any, y: Any) -> tuple[Any, Array]:
    if y is None:
        raise InputError(
            "TrustSetClassifier requires y to be passed, but the target y is None: both training "
            "and calibration need labels."
        )
    X, y = indexable(X, y)
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    return X, y


def _fraction(model: TrustSetClassifier, name: str) -> float:
    value = float(getattr(model, name))
    if not 0.0 < value < 1.0:
        raise InputError(f"{name} must lie strictly between 0 and 1; got {value}.")
    return value


def _check_known(y: Array, classes: Array) -> None:
    """Every label must be one of the classes that the classifier was trained on."""
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise InputError(
            f"y must hold classes of the classifier; got {class_names(np.unique(y[unknown]))}, "
            f"which is not among its {classes.size} classes ({class_names(classes)}). Leave these "
            "samples out, or train with them."
        )


def _part(y: Array, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random first part with about `share` of the samples, and the rest.

    Not stratified, and no class has a place of its own in either part: the calibration
    samples must stay exchangeable with new ones.
    """
    if _num_samples(y) < 2:
        raise InputError("training and calibration need 2 samples or more; got 1 sample.")
    order = np.random.default_rng(seed).permutation(y.shape[0])
    size = min(max(round(share * y.shape[0]), 1), y.shape[0] - 1)
    return np.sort(order[:size]), np.sort(order[size:])


def _dense_numbers(values: Any) -> NDArray[np.float64]:
    """A float64 matrix from an array, a frame or a sparse matrix."""
    if hasattr(values, "toarray"):
        values = values.toarray()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            "the trust score needs numeric features; put the encoding of X into a pipeline, or "
            f"pass features= as a function of X ({error})."
        ) from error
