"""The scikit-learn front: a classifier that predicts sets.

Reading order: `TrustSetClassifier`; the samples (labels, groups, parameters of fit);
trained classifiers, also those inside pipelines and searches; the features of the trust score.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.utils import _safe_indexing, assert_all_finite, get_tags, indexable
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    process_routing,
)
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_method_params,
    _get_feature_names,
    _num_samples,
    check_is_fitted,
    column_or_1d,
)

from trustsets._arrays import MISSING, Array, Floats, check_groups, group_column, is_missing
from trustsets._draws import resolve_seed
from trustsets._parameters import Open, check_arguments
from trustsets.basis import Bins
from trustsets.errors import InputError, NotCalibratedError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.predictors import ConditionalConformal, MondrianConformal, Predictor
from trustsets.predictors.class_facts import class_names
from trustsets.recipes import (
    make_predictor,
    make_score,
    method_name,
    uses_trust,
    warn_of_unused_groups,
)
from trustsets.scores import Score
from trustsets.sets import PredictionSets
from trustsets.trust import TrustScore

__all__ = ["TrustSetClassifier"]

Features = Literal["auto", "input"] | Callable[[Any], Any] | None
GroupColumns = dict[str, Array]
Rows = NDArray[np.int64]

# Sparse features of more columns than this are reduced to so many components.
WIDEST = 1000
COMPONENTS = 64
# Rarer values of a column share an indicator, so that names of persons do not take over.
MOST_CATEGORIES = 20


@final
class TrustSetClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Wrap any classifier: `predict_set` gives sets that contain the true class.

    `fit` trains the classifier on one part of the data and calibrates on the other. With
    ``prefit=True`` the classifier is used as it is, and `calibrate` needs data that it was not
    trained on. Marginal coverage is guaranteed for new samples of the classes that training saw,
    the `classes_`; a warning names those that training or calibration lacks.

    Parameters
    ----------
    estimator : classifier
        With `predict_proba` or `decision_function`; also a pipeline, a search, LightGBM, XGBoost
        or CatBoost.
    method : str or Predictor
        A name of `trustsets.recipes`. ``"conditional"``, ``"paper"`` and ``"mondrian"`` use the
        trust score. The others never look at features: ``"standard"`` is split conformal,
        ``"class"`` class-conditional, ``"groups"`` group-conditional prediction, ``"clustered"``
        is `ClusteredConformal`. A predictor is used with its own parameters, and with a trust
        score fitted here if it takes one and has none.
    nonconformity_score : str or Score, optional
        That of a method by name: ``"aps"``, ``"raps"``, ``"saps"``, ``"softmax"``
        (or ``"lac"``), ``"topk"``, ``"margin"``; by default that of the method.
    per_class : bool
        Also guarantee coverage for each class, with the method ``"conditional"``.
    groups : column of X or list of columns, optional
        Names or numbers of columns of `X` to condition coverage on, which the classifier sees,
        too. Values that are no columns of `X` are passed as ``groups=`` to `fit`, `calibrate`
        and `predict_set` instead. Missing values are a group of their own.
    features : {"auto", "input"}, callable or None
        Where the trust score measures distances: the input, or ``features(X)``. ``"auto"`` takes
        the output of a pipeline before its last step where there is one, also inside a search or
        another wrapper, and the input otherwise. Numbers are standardised, with
        medians and indicators for missing ones; other values become indicators; more than 1000
        sparse columns are reduced to 64 components. None does without a trust score.
    calibration_fraction : float
        Share of the data that `fit` sets aside for calibration.
    prefit : bool
        Do not train the classifier.
    reference_fraction : float
        With ``prefit=True`` and no earlier `fit`, the share of the calibration data that every
        call of `calibrate` sets aside for the trust score, for methods that have one.
    random_state : int
        Seed of the splits.

    Attributes
    ----------
    estimator_, predictor_, classes_
        The trained classifier, the calibrated predictor, and the class names.
    reference_ : TrustScore or None
        Fitted to samples that take no part in calibration.
    feature_source_ : str
        Where the features of the trust score come from, in words.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_wine(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), LogisticRegression())
    >>> model = TrustSetClassifier(model).fit(X[::2], y[::2])
    >>> sets = model.predict_set(X[1::2], alpha=0.1)
    >>> bool(sets.covers(y[1::2]).mean() > 0.85)
    True
    """

    def __init__(
        self,
        estimator: Any,
        method: str | Predictor = "conditional",
        *,
        nonconformity_score: str | Score | None = None,
        per_class: bool = False,
        groups: Any = None,
        features: Features = "auto",
        calibration_fraction: float = 0.3,
        prefit: bool = False,
        reference_fraction: float = 0.3,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.nonconformity_score = nonconformity_score
        self.per_class = per_class
        self.groups = groups
        self.features = features
        self.calibration_fraction = calibration_fraction
        self.prefit = prefit
        self.reference_fraction = reference_fraction
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, groups: Any = None, **fit_params: Any) -> Self:
        """Train and calibrate; with ``prefit=True``, only take training samples for Trust.

        Parameters
        ----------
        X : array, sparse matrix or frame, whatever the classifier takes
        y : array of shape (n,)
        groups : array of shape (n,), mapping of names to such arrays, or frame, optional
            Groups of the samples, if they are no columns of `X`.
        **fit_params
            Passed to the `fit` of the classifier. Arrays of length n, such as ``sample_weight``,
            are divided as `X` is, except evaluation sets (names with "eval").
        """
        check_arguments(bool, prefit=self.prefit)
        X, y = _check_data(X, y)
        if self.prefit:
            if fit_params:
                names = ", ".join(fit_params)
                raise InputError(f"prefit=True trains nothing; leave out {names}.")
            with _restored_on_error(self):
                # An earlier calibration does not hold for another classifier or reference.
                self.__dict__.pop("predictor_", None)
                self._adopt(_require_trained(self.estimator), X)
                return self._fit_reference(X, y, is_training=True)
        columns = _group_columns(X, self.groups, groups)
        self._check_parameters(columns)
        train, rest = _random_part(y, 1.0 - self.calibration_fraction, self.random_state)
        X_train, estimator = _safe_indexing(X, train), _fresh_copy(self.estimator)
        parameters = _parameters_of_fit(self, X, fit_params, train)
        estimator.fit(X_train, y[train], **parameters)
        with _restored_on_error(self):
            self._adopt(estimator, X)._fit_reference(X_train, y[train], is_training=True)
            rest = rest[self._seen_in_training(y[rest])]
            outputs = self._described(_safe_indexing(X, rest), y[rest], _take(columns, rest))
            return self._calibrate(outputs)

    def calibrate(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Calibrate on data that the classifier was not trained on; can be called again."""
        X, y = _check_data(X, y)
        columns = _group_columns(X, self.groups, groups)
        self._check_parameters(columns)
        with _restored_on_error(self):
            if self.prefit and not getattr(self, "reference_is_training_", False):
                self._adopt(_require_trained(self.estimator), X)
                _check_known(y, self.classes_)
                X, y, columns = self._set_reference_aside(X, y, columns)
            elif not hasattr(self, "estimator_"):
                raise NotCalibratedError("there is no trained classifier; call fit, or set prefit.")
            elif self._needs_features and self.encoder_ is None:
                raise NotCalibratedError("method changed to one with a trust score; call fit.")
            _check_known(y, self.classes_)
            outputs = self._described(X, y, columns)
            if self.reference_ is not None:
                _check_apart(self.reference_, outputs)
            return self._calibrate(outputs)

    def predict_set(
        self,
        X: Any,
        alpha: Any = 0.1,
        *,
        groups: Any = None,
        sample_alphas: Any = None,
        max_size: int | None = None,
    ) -> PredictionSets:
        """Sets that miss the true class with probability at most `alpha`.

        Groups are as in `fit`, the other parameters as in `Predictor.predict_set`.
        """
        if self.prefit and not hasattr(self, "predictor_"):
            raise NotCalibratedError(
                "there is no calibration yet; call calibrate with samples that the classifier was "
                "not trained on. With prefit=True, fit only takes training samples for Trust."
            )
        check_is_fitted(self)
        outputs = self.outputs(X, groups=groups)
        return self.predictor_.predict_set(
            outputs, alpha, sample_alphas=sample_alphas, max_size=max_size
        )

    def predict(self, X: Any) -> Array:
        """Most likely class of each sample, as the classifier says."""
        check_is_fitted(self)
        self._check_names(X)
        # CatBoost gives a column.
        return np.asarray(self.estimator_.predict(X)).reshape(-1)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities, as the classifier says."""
        check_is_fitted(self)
        self._check_names(X)
        return np.asarray(_outputs_of(self.estimator_, X, classes=self.classes_).probabilities)

    def outputs(self, X: Any, y: Any = None, *, groups: Any = None) -> ModelOutputs:
        """The classifier's outputs on `X`, ready for predictors and metrics."""
        check_is_fitted(self, "encoder_")
        _check_input(X)
        columns = _group_columns(X, self.groups, groups)
        needed = self.predictor_.needed_groups if hasattr(self, "predictor_") else ()
        lost = [name for name in needed if name not in columns]
        if lost:
            raise InputError(
                f"groups= lacks {lost}, on which coverage was calibrated; pass "
                f"groups={{{lost[0]!r}: ...}} with one value for each sample. "
                "TrustSetClassifier(groups=...) takes them from columns of X instead."
            )
        return self._described(X, y, columns)

    def get_metadata_routing(self) -> MetadataRouter:
        """Metadata of `fit` go to the classifier; ``set_fit_request`` asks for groups here."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self)
        return router.add(estimator=self.estimator, method_mapping=mapping)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def _check_parameters(self, groups: GroupColumns) -> None:
        """Refuse what would fail only after training."""
        _check_classifies(self.estimator)
        check_arguments(
            Open,
            calibration_fraction=self.calibration_fraction,
            reference_fraction=self.reference_fraction,
        )
        check_arguments(bool, per_class=self.per_class)
        if isinstance(self.method, Predictor):
            if self.nonconformity_score is not None or self.per_class:
                raise InputError(
                    "nonconformity_score and per_class belong to a method by name; set them in the "
                    f"{type(self.method).__name__} that method holds."
                )
            return
        name = method_name(self.method)
        if isinstance(self.nonconformity_score, str):
            make_score(self.nonconformity_score)
        if self.per_class and name != "conditional":
            raise InputError(
                f'per_class=True belongs to method="conditional"; got method={self.method!r}. '
                'method="class" has a threshold for each class.'
            )
        if name == "paper" and self.features is None:
            raise InputError('method="paper" needs a trust score; do not pass features=None.')
        if name == "groups" and not groups:
            raise InputError(
                'method="groups" needs groups: name columns of X with '
                "TrustSetClassifier(groups=...), or pass groups= with one value for each sample."
            )

    def _adopt(self, estimator: Any, X: Any) -> Self:
        """Take a trained classifier, and note the names of the columns."""
        self.estimator_ = estimator
        if not hasattr(estimator, "classes_"):
            raise InputError(
                "estimator must say its classes once it is trained (classes_); "
                f"{type(estimator).__name__} does not."
            )
        self.classes_ = np.asarray(estimator.classes_)
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))
        if not hasattr(self, "feature_names_in_"):
            _check_feature_names(self, X, reset=True)
        self._sees_input = not any(inner.transformers for inner in _inner_models(estimator))
        return self

    def _check_names(self, X: Any) -> None:
        """Refuse other columns, also for classifiers that would not notice, such as LightGBM."""
        if self._sees_input and hasattr(self, "feature_names_in_"):
            if _get_feature_names(X) is not None:
                _check_feature_names(self, X, reset=False)

    @property
    def _needs_features(self) -> bool:
        """Whether the trust score, or another part of the method, looks at features."""
        if self.features is None:
            return False
        if not isinstance(self.features, str) or self.features != "auto":
            return True
        method = self.method
        if not isinstance(method, Predictor):
            return uses_trust(method)
        if isinstance(method, MondrianConformal) and not isinstance(method.by, Bins):
            return method.draws_at_random
        # Random draws of a sample are made from its features, too.
        return "trust" in method.get_params(deep=False) or method.draws_at_random

    def _fit_reference(self, X: Any, y: Array, *, is_training: bool) -> Self:
        """Fit the trust score to samples that take no part in calibration.

        So does the encoder of the features: coverage is guaranteed whatever both learn.
        """
        _check_known(y, self.classes_)
        self._check_names(X)
        self.encoder_ = self.reference_ = None
        self.feature_source_ = "nothing: the method does without features"
        if self._needs_features:
            raw_features, source = _feature_source(self.features, self.estimator_)
            raw = raw_features(X)
            if callable(self.features) and np.ndim(raw) != 2 and not hasattr(raw, "tocsr"):
                raise InputError("features must give a matrix with one row per sample.")
            encoder = _encoder(raw)
            features = np.asarray(encoder.fit_transform(raw), np.float64)
            self.reference_ = TrustScore(normalize=False).fit(features, y)
            self._raw_features, self.encoder_, self.feature_source_ = raw_features, encoder, source
        self.reference_is_training_ = is_training
        return self

    def _set_reference_aside(
        self, X: Any, y: Array, columns: GroupColumns
    ) -> tuple[Any, Array, GroupColumns]:
        """Fit the trust score to a part of the calibration data, and return the rest."""
        if not self._needs_features:
            self._fit_reference(X, y, is_training=False)
            return X, y, columns
        # At every call: a sample must never be calibrated with itself as the reference.
        reference, rest = _random_part(y, self.reference_fraction, self.random_state)
        self._fit_reference(_safe_indexing(X, reference), y[reference], is_training=False)
        return _safe_indexing(X, rest), y[rest], _take(columns, rest)

    def _seen_in_training(self, y: Array) -> NDArray[np.bool_]:
        """Which samples are of a class that the classifier knows; warn of the others."""
        seen = np.isin(y, self.classes_)
        if not seen.any():
            raise InputError(
                "no sample is left for calibration, because training saw none of their classes; "
                "give more samples of each class."
            )
        if not seen.all():
            warnings.warn(
                f"training had no sample of {class_names(np.unique(y[~seen]))}, so no set can "
                "hold it and coverage is guaranteed for the other classes only; give more samples "
                "of each class.",
                TrustSetsWarning,
                stacklevel=3,
            )
        return seen

    def _described(self, X: Any, y: Any, groups: GroupColumns) -> ModelOutputs:
        """Outputs with labels, groups and features of the samples."""
        self._check_names(X)
        features = None
        if self.encoder_ is not None:
            features = np.asarray(self.encoder_.transform(self._raw_features(X)), np.float64)
        return _outputs_of(
            self.estimator_, X, labels=y, groups=groups, features=features, classes=self.classes_
        )

    def _calibrate(self, outputs: ModelOutputs) -> Self:
        if isinstance(self.method, Predictor):
            predictor: Predictor = clone(self.method)
            if predictor.trust is None and "trust" in predictor.get_params(deep=False):
                predictor.set_params(trust=self.reference_)
        else:
            predictor = make_predictor(
                self.method,
                score=self.nonconformity_score,
                trust=self.reference_,
                n=len(outputs),
                random_state=self.random_state,
                per_class=True if self.per_class else None,
            )
        self.predictor_ = predictor.calibrate(outputs)
        if isinstance(predictor, ConditionalConformal) and predictor.basis == "auto":
            warn_of_unused_groups(predictor, outputs.groups)
        return self


@contextmanager
def _restored_on_error(model: TrustSetClassifier) -> Iterator[None]:
    """Leave a model as it was, where an error would leave it with a part of what was learned."""
    before = dict(model.__dict__)
    try:
        yield
    except BaseException:
        model.__dict__ = before
        raise


# Samples: labels, groups, weights and other parameters of fit.


def _check_input(X: Any) -> None:
    if isinstance(X, ModelOutputs):
        raise InputError(
            "X must be the input of the classifier; got ModelOutputs, which are its outputs. Give "
            "those to a predictor: ConditionalConformal().calibrate(outputs)."
        )


def _check_data(X: Any, y: Any) -> tuple[Any, Array]:
    """X that rows can be taken from, and a label for each."""
    _check_input(X)
    if y is None:
        raise InputError(
            "TrustSetClassifier requires y to be passed, but the target y is None: both training "
            "and calibration need labels."
        )
    X, y = indexable(X, y)
    # NumPy would make texts of a list of names with NaN.
    labels = y if isinstance(y, list | tuple) else np.asarray(y).tolist()
    missing = [row for row, label in enumerate(labels) if is_missing(label)]
    if missing:
        raise InputError(
            f"y must hold a class for each sample; row {missing[0]} holds {labels[missing[0]]!r} "
            f"({len(missing):,} of {len(labels):,} labels are missing). Leave these samples out, "
            "or give them a class."
        )
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    return X, y


def _check_known(y: Array, classes: Array) -> None:
    """Every label must be one of the classes that the classifier was trained on."""
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise InputError(
            f"y must hold classes of the classifier; got {class_names(np.unique(y[unknown]))}, "
            f"which is not among its {classes.size} classes ({class_names(classes)}). Leave these "
            "samples out, or train with them."
        )


def _check_apart(reference: TrustScore, outputs: ModelOutputs) -> None:
    """Refuse to calibrate on samples that the trust score was fitted to.

    Each would be its own nearest neighbour. Where features repeat, nothing can be told.
    """
    stored = np.asarray(reference.to_state()["features"], np.float64)
    rows = {row.tobytes() for row in stored}
    features = np.asarray(outputs.features, np.float64)
    if len(rows) == len(stored) and all(row.tobytes() in rows for row in features):
        raise InputError(
            "X must hold samples that fit did not see; the trust score was fitted to all of "
            "these. Calibrate on other samples, or leave out fit: with prefit=True, calibrate sets "
            "samples for the trust score aside by itself."
        )


def _fresh_copy(estimator: Any) -> Any:
    """A copy to train."""
    try:
        return clone(estimator)
    except RuntimeError:
        # CatBoost copies lists among its parameters, which clone takes for a mistake.
        return deepcopy(estimator)


def _group_columns(X: Any, columns: Any, values: Any) -> GroupColumns:
    """Group columns of samples as texts: columns of X by name or number, or values."""
    if columns is None:
        return check_groups(values, _num_samples(X))
    if values is not None:
        raise InputError(
            f"groups are columns of X already (TrustSetClassifier(groups={columns!r})); leave out "
            "groups= here, or there."
        )
    chosen = columns if isinstance(columns, list | tuple) else [columns]
    return dict(_group_column(X, column) for column in chosen)


def _group_column(X: Any, column: Any) -> tuple[str, Array]:
    is_number = isinstance(column, int | np.integer) and not isinstance(column, bool)
    names = list(getattr(X, "columns", ()))
    if isinstance(column, str) and column not in names:
        has = f"has the columns {names}" if names else "is no table with named columns"
        raise InputError(f"groups= names the column {column!r}, but X {has}.")
    if not is_number and not isinstance(column, str):
        raise InputError(
            f"groups must hold names or numbers of columns of X; got {column!r}. Pass values of "
            "the samples to fit, calibrate and predict_set instead."
        )
    width = np.shape(X)[1] if np.ndim(X) == 2 or hasattr(X, "columns") else 0
    if is_number and not -width <= column < width:
        raise InputError(f"groups= names column {column}, but X has {width} columns.")
    # Rows of a list may mix numbers and texts.
    table = np.asarray(X, dtype=object) if isinstance(X, list) else X
    values = _safe_indexing(table, column, axis=1)
    name = str(names[column] if is_number and names else column)
    values = values.toarray().ravel() if hasattr(values, "toarray") else values
    return name, group_column(values, f"groups[{name!r}]", len(values))


def _take(columns: GroupColumns, rows: Rows) -> GroupColumns:
    """Group columns of some of the samples."""
    return {name: values[rows] for name, values in columns.items()}


def _parameters_of_fit(
    model: TrustSetClassifier, X: Any, parameters: dict[str, Any], train: Rows
) -> dict[str, Any]:
    """Parameters for the fit of the classifier in `model`; arrays go by sample."""
    parameters = {name: value for name, value in parameters.items() if value is not None}
    n = _num_samples(X)
    if get_config()["enable_metadata_routing"]:
        parameters = dict(process_routing(model, "fit", **parameters)["estimator"]["fit"])
    for name, value in parameters.items():
        # The classifier would count training samples, and could take weights of other samples.
        if name.endswith("sample_weight") and "eval" not in name and np.shape(value) != (n,):
            raise InputError(
                f"{name} must have one weight for each of the {n} samples; got shape "
                f"{np.shape(value)}."
            )
    # Evaluation sets of boosted trees may happen to have as many samples as X.
    whole = {name: value for name, value in parameters.items() if "eval" in name}
    return dict(_check_method_params(X, parameters, train)) | whole


def _random_part(y: Array, share: float, seed: int) -> tuple[Rows, Rows]:
    """Random first part with about `share` of the samples, and the rest.

    Not stratified: the calibration samples must stay exchangeable with new ones.
    """
    if _num_samples(y) < 2:
        raise InputError("training and calibration need 2 samples or more; got 1 sample.")
    order = np.random.default_rng(resolve_seed(seed)).permutation(y.shape[0])
    size = min(max(round(share * y.shape[0]), 1), y.shape[0] - 1)
    return np.sort(order[:size]), np.sort(order[size:])


# Trained classifiers, also those inside pipelines, searches and other wrappers.


# Where each wrapper holds its trained models, by the name of a class it inherits from: importing
# all of these classes would take longer than a small model does.
_INSIDE = {
    "BaseSearchCV": "best_estimator_",
    "BaseThresholdClassifier": "estimator_",
    "CalibratedClassifierCV": "calibrated_classifiers_",
    "_CalibratedClassifier": "estimator",
    "FrozenEstimator": "estimator",
    "OneVsRestClassifier": "estimators_",
    "SelfTrainingClassifier": "estimator_",
    "StackingClassifier": "estimators_",
    "VotingClassifier": "estimators_",
}


@final
@dataclass(frozen=True)
class _InnerModel:
    """A trained classifier that wraps no other, and what X goes through before it."""

    model: Any
    transformers: tuple[Any, ...]
    wrappers: tuple[str, ...]

    def transform(self, X: Any) -> Any:
        """What the model sees of X."""
        for transformer in self.transformers:
            X = transformer.transform(X)
        return X


def _inner_models(estimator: Any) -> Iterator[_InnerModel]:
    """Classifiers at the bottom of pipelines and of the wrappers in `_INSIDE`, in their order."""
    before: tuple[Any, ...] = ()
    wrappers: tuple[str, ...] = ()
    if isinstance(estimator, Pipeline):
        before = (estimator[:-1],) if len(estimator) > 1 else ()
        models = estimator[-1]
    else:
        attribute = next((_INSIDE[name] for name in _INSIDE if _inherits(estimator, name)), None)
        if attribute is None:
            yield _InnerModel(estimator, (), ())
            return
        models, wrapper = getattr(estimator, attribute), type(estimator).__name__
        wrappers = () if wrapper.startswith("_") else (wrapper,)
    for model in models if isinstance(models, list) else [models]:
        for inner in _inner_models(model):
            yield _InnerModel(inner.model, before + inner.transformers, wrappers + inner.wrappers)


def _inherits(estimator: Any, name: str) -> bool:
    """Whether the estimator inherits from a class of this name."""
    return any(base.__name__ == name for base in type(estimator).__mro__)


def _check_classifies(estimator: Any) -> None:
    """Refuse what can have no outputs, before it is trained."""
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        raise InputError(
            "estimator must be a classifier with fit and predict_proba or decision_function, such "
            f"as LogisticRegression(); got {estimator!r:.60}."
        )
    hard = _inherits(estimator, "VotingClassifier") and estimator.voting == "hard"
    if hard or is_regressor(estimator):
        hint = 'set voting="soft"' if hard else "a regressor has none"
        raise InputError(
            "estimator must be a classifier with predict_proba or decision_function; for "
            f"{type(estimator).__name__}, {hint}."
        )


def _require_trained(estimator: Any) -> Any:
    """Return the classifier of ``prefit=True``, or refuse it if it is not trained."""
    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        raise NotCalibratedError(
            f"prefit=True needs a trained classifier, but this {type(estimator).__name__} is not "
            "fitted; call its fit first, or set prefit=False."
        ) from error
    return estimator


def _outputs_of(estimator: Any, X: Any, *, classes: Array, **fields: Any) -> ModelOutputs:
    """Probabilities, or else margins as logits, with labels, groups and features."""
    if hasattr(estimator, "predict_proba"):
        return ModelOutputs(probabilities=estimator.predict_proba(X), classes=classes, **fields)
    if not hasattr(estimator, "decision_function"):
        raise InputError(
            "estimator must be a classifier with predict_proba or decision_function; "
            f"{type(estimator).__name__} has neither."
        )
    margins = np.asarray(estimator.decision_function(X))
    if margins.ndim == 1:
        # The margin of a logistic model is the difference of two logits: the softmax of these
        # halves is the model's `predict_proba`.
        margins = np.column_stack([-margins, margins]) / 2.0
    # Three classes have three pairs: the columns do not tell. What is stacked gives no margins.
    of_pairs = any(
        getattr(inner.model, "decision_function_shape", None) == "ovo"
        and len(inner.model.classes_) > 2
        and "StackingClassifier" not in inner.wrappers
        for inner in _inner_models(estimator)
    )
    if of_pairs or margins.shape[1] != len(classes):
        raise InputError(
            f"decision_function must give a margin for each of the {len(classes)} classes, not for "
            f'pairs; got {margins.shape[1]} columns. Set decision_function_shape="ovr".'
        )
    return ModelOutputs(logits=margins, classes=classes, **fields)


# Features in which the trust score measures distances.


def _feature_source(features: Features, estimator: Any) -> tuple[Callable[[Any], Any], str]:
    """A function of X that gives raw features, and words for what they are."""
    if callable(features):
        return features, f"the function {getattr(features, '__name__', repr(features))} of X"
    if not isinstance(features, str) or features not in ("auto", "input"):
        raise InputError(
            'features must be "auto", "input", a function of X, or None; '
            f"got {features if isinstance(features, str) else type(features).__name__!r}."
        )
    encoded = [inner for inner in _inner_models(estimator) if inner.transformers]
    if features == "input" or not encoded:
        return _itself, "the columns of X"
    inner = encoded[0]
    steps = [type(step).__name__ for part in inner.transformers for _, step in part.steps]
    inside = f" inside {' and '.join(inner.wrappers)}" if inner.wrappers else ""
    return inner.transform, f"the output of {', '.join(steps)} in the pipeline{inside}"


def _itself(X: Any) -> Any:
    return X


def _encoder(raw: Any) -> Any:
    """A transformer that suits the raw features: a table, a matrix, or a sparse matrix."""
    if hasattr(raw, "toarray"):
        return _components(*raw.shape) if raw.shape[1] > WIDEST else _number_encoder(raw)
    if not hasattr(raw, "columns") and np.asarray(raw).dtype.kind in "biuf":
        return _number_encoder(raw)
    from sklearn.compose import ColumnTransformer

    table = _table(raw)
    numbers = list(table.select_dtypes(["number", "bool"]).columns)
    others = [name for name in table.columns if name not in numbers]
    indicators = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=MOST_CATEGORIES, sparse_output=False
    )
    parts: list[tuple[str, Any, list[Any]]] = []
    if numbers:
        parts.append(("numbers", _number_encoder(table[numbers]), numbers))
    if others:
        parts.append(("others", make_pipeline(FunctionTransformer(_texts), indicators), others))
    as_table = FunctionTransformer(_table, kw_args={"names": list(table.columns)})
    return make_pipeline(as_table, ColumnTransformer(parts))


def _number_encoder(raw: Any) -> Any:
    """Standardised numbers; medians for missing ones, with indicators where `raw` lacks some."""
    from sklearn.impute import MissingIndicator, SimpleImputer

    medians = SimpleImputer(strategy="median", keep_empty_features=True)
    encoder = make_pipeline(medians, StandardScaler())
    if np.isnan(_numbers(raw)).any():
        encoder = FeatureUnion(
            [("numbers", encoder), ("missing", MissingIndicator(error_on_new=False))]
        )
    return make_pipeline(FunctionTransformer(_numbers), encoder)


def _components(n: int, width: int) -> Any:
    """Leading components; not standardised, so that distances stay close to those before."""
    from sklearn.decomposition import TruncatedSVD

    return TruncatedSVD(max(1, min(COMPONENTS, min(n, width) - 1)), random_state=0)


def _numbers(raw: Any) -> Floats:
    """A float64 matrix, NaN where a number is missing."""
    if hasattr(raw, "toarray"):
        raw = raw.toarray()
    try:
        if hasattr(raw, "iloc"):
            import pandas as pd

            raw = raw.apply(pd.to_numeric).to_numpy(dtype=np.float64, na_value=np.nan)
        return np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"the trust score needs numeric features ({error}). {_REMEDY}") from error


_REMEDY = (
    "Put the encoding of X into a pipeline, pass features= as a function of X, or do without a "
    'trust score (features=None, or method="standard").'
)


def _texts(table: Any) -> NDArray[np.object_]:
    """Values of any kind as texts; a missing value is a value of its own."""
    columns = [
        column.astype(object).where(column.notna(), MISSING).map(str).to_numpy(object)
        for _, column in table.items()
    ]
    return np.column_stack(columns)


def _table(raw: Any, names: list[Any] | None = None) -> Any:
    """A pandas frame from a frame of any kind, or from an array, whose columns get `names`."""
    import pandas as pd

    if isinstance(raw, pd.DataFrame):
        return raw
    if hasattr(raw, "to_pandas"):
        return pd.DataFrame(raw.to_pandas())
    values = np.asarray(raw, dtype=object)
    if values.ndim != 2:
        raise InputError(
            "the trust score needs numeric features or columns of values; got "
            f"{type(raw).__name__} of shape {values.shape}. {_REMEDY}"
        )
    return pd.DataFrame(values, columns=names).convert_dtypes()
