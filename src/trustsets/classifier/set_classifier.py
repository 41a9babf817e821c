"""A scikit-learn classifier that also predicts sets."""

import warnings
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping
from sklearn.utils.validation import (
    _check_feature_names,
    _get_feature_names,
    check_is_fitted,
)

from trustsets._common.arrays import Array
from trustsets._common.validation import check_open
from trustsets.classifier.inner_models import (
    check_classifies,
    classes_of,
    inner_models,
    outputs_of,
    require_trained,
)
from trustsets.classifier.methods import (
    check_method,
    predictor_for,
    uses_features,
    warn_of_left_out_groups,
)
from trustsets.classifier.sample_data import (
    check_data,
    check_known,
    explaining_errors,
    fresh_copy,
    group_columns,
    parameters_of_fit,
    random_part,
    rows_of,
)
from trustsets.classifier.trust_features import Features, TrustFeatures
from trustsets.errors import InputError, NotCalibratedError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.predictors.class_facts import class_names
from trustsets.sets import PredictionSets
from trustsets.trust import TrustScore

__all__ = ["TrustSetClassifier"]


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
        Any scikit-learn classifier, pipeline or search with `predict_proba` or
        `decision_function`; LightGBM, XGBoost and CatBoost classifiers, too.
    method : str or Predictor
        ``"conditional"`` is `ConditionalConformal` with its defaults, which depend on the
        amount of calibration data; ``"paper"`` is the paper's own setting. ``"bins"`` (or
        ``"mondrian"``) uses a grid of confidence and trust. These use the trust score. The
        others never look at features:
        ``"standard"`` is split conformal prediction, ``"class"`` covers each class,
        ``"groups"`` each combination of `groups`, and ``"clustered"`` is
        `ClusteredConformal`. A predictor is used as given, with a trust score fitted here if
        it takes one and has none.
    groups : column of X or list of columns, optional
        Names or numbers of columns of `X` to condition coverage on. The classifier sees them,
        too; a `ColumnTransformer` can keep them from it. Values that are no columns of `X` are
        passed as ``groups=`` to `fit`, `calibrate` and `predict_set` instead. Missing values
        are a group of their own.
    features : {"auto", "input", "pipeline", "leaves"}, callable or None
        Where the trust score measures distances: the input, the output of a pipeline
        before its last step, the leaves of a tree ensemble, or ``features(X)``. ``"auto"``
        takes the second where there is a pipeline, also inside a search, calibration,
        threshold, voting or stacking classifier (the first pipeline of several), and the first
        otherwise; methods without trust score then need no features. Numbers are
        standardised; missing ones are replaced by medians and marked by indicators; texts and
        categories become indicators. Leaves are indicators, too: the distance counts the trees
        that tell two samples apart. Sparse features and leaves of more than 1000 columns are
        reduced to 64 components. None does without a trust score.
    calibration_fraction : float
        Share of the data that `fit` sets aside for calibration.
    prefit : bool
        Do not train the classifier.
    reference_fraction : float
        With ``prefit=True`` and no earlier `fit`, the share of the calibration data that
        serves as training samples of the trust score instead, for methods that have one. Every
        call of `calibrate` sets this share of its own data aside; these samples take no part in
        calibration.
    random_state : int
        Seed of the splits.

    Attributes
    ----------
    estimator_ : classifier
    predictor_ : Predictor
    classes_ : array of shape (K,)
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
    >>> model.feature_source_
    'the output of StandardScaler in the pipeline'
    """

    def __init__(
        self,
        estimator: Any,
        method: str | Predictor = "conditional",
        *,
        groups: Any = None,
        features: Features = "auto",
        calibration_fraction: float = 0.3,
        prefit: bool = False,
        reference_fraction: float = 0.3,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.groups = groups
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

    def get_metadata_routing(self) -> MetadataRouter:
        """Metadata of `fit` go to the classifier; ``set_fit_request`` asks for groups here."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self)
        return router.add(estimator=self.estimator, method_mapping=mapping)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose what `predict_set` returns.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, optional
            `PredictionSets`, or a frame with a row for each sample: set, size, threshold and
            status. A pandas frame has the index of `X`.
        """
        if transform not in (None, "default", "pandas", "polars"):
            raise InputError(
                f'transform must be "default", "pandas" or "polars"; got {transform!r}.'
            )
        if transform is not None:
            # The name under which scikit-learn's clone carries the choice over.
            self._sklearn_output_config = {"transform": transform}
        return self

    def fit(self, X: Any, y: Any, *, groups: Any = None, **fit_params: Any) -> Self:
        """Train and calibrate; with ``prefit=True``, only take training samples for Trust.

        Parameters
        ----------
        X : array, sparse matrix or frame, whatever the classifier takes
        y : array of shape (n,)
        groups : array of shape (n,), mapping of names to such arrays, or frame, optional
            Groups of the samples, if they are no columns of `X`.
        **fit_params
            Passed to the `fit` of the classifier: ``sample_weight``, ``eval_set`` and others.
            Arrays of length n are divided as `X` is, except evaluation sets (names with
            "eval"). Weights have no part in calibration. With metadata routing enabled, the
            classifier and its steps get what they ask for.
        """
        X, y = check_data(X, y)
        if self.prefit:
            if fit_params:
                names = ", ".join(fit_params)
                raise InputError(f"prefit=True trains nothing; leave out {names}.")
            self._adopt(require_trained(self.estimator), X)
            return self._refer_to(X, y, is_training=True)
        columns = group_columns(X, self.groups, groups)
        self._check_parameters(columns)
        share = 1.0 - _fraction(self, "calibration_fraction")
        train, rest = random_part(y, share, self.random_state)
        X_train, estimator = _safe_indexing(X, train), fresh_copy(self.estimator)
        parameters = parameters_of_fit(self, X, fit_params, train)
        with explaining_errors(y, train):
            estimator.fit(X_train, y[train], **parameters)
        self._adopt(estimator, X)._refer_to(X_train, y[train], is_training=True)
        rest = rest[self._seen_in_training(y[rest])]
        return self._calibrate(_safe_indexing(X, rest), y[rest], rows_of(columns, rest))

    def calibrate(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Calibrate on data that the classifier was not trained on; can be called again."""
        X, y = check_data(X, y)
        columns = group_columns(X, self.groups, groups)
        self._check_parameters(columns)
        if self.prefit and not getattr(self, "reference_is_training_", False):
            self._adopt(require_trained(self.estimator), X)
            check_known(y, self.classes_)
            X, y, columns = self._set_reference_aside(X, y, columns)
        elif not hasattr(self, "estimator_"):
            raise NotCalibratedError("there is no trained classifier; call fit, or set prefit.")
        elif self._needs_features and self.encoder_ is None:
            raise NotCalibratedError("the method was changed to one with a trust score; call fit.")
        return self._calibrate(X, y, columns)

    def predict_set(
        self, X: Any, alpha: Any = 0.1, *, groups: Any = None, max_size: int | None = None
    ) -> Any:
        """Sets that miss the true class with probability at most `alpha`.

        Parameters
        ----------
        X : new samples
        alpha, max_size
            As in `Predictor.predict_set`.
        groups : as in `fit`

        Returns
        -------
        sets : PredictionSets
            Or a frame, after `set_output`.
        """
        self._check_calibrated()
        sets = self.predictor_.predict_set(
            self.outputs(X, groups=groups), alpha=alpha, max_size=max_size
        )
        flavour = getattr(self, "_sklearn_output_config", {}).get("transform", "default")
        return _as_flavour(sets, X, flavour)

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
        return np.asarray(outputs_of(self.estimator_, X, classes=self.classes_).probabilities)

    def outputs(self, X: Any, y: Any = None, *, groups: Any = None) -> ModelOutputs:
        """The classifier's outputs on `X`, ready for predictors and metrics."""
        columns = group_columns(X, self.groups, groups)
        self._check_needed(columns)
        return self._described(X, y, columns)

    def _described(self, X: Any, y: Any, groups: dict[str, Array]) -> ModelOutputs:
        """Outputs with all that is known about the samples."""
        self._check_names(X)
        features = None if self.encoder_ is None else self.encoder_.transform(X)
        known = {"labels": y, "groups": groups, "features": features, "classes": self.classes_}
        return outputs_of(self.estimator_, X, **known)

    def _check_parameters(self, groups: dict[str, Array]) -> None:
        """Refuse what would fail only after training."""
        check_method(self.method, has_groups=bool(groups), has_features=self.features is not None)
        check_classifies(self.estimator)

    def _adopt(self, estimator: Any, X: Any) -> Self:
        """Take a trained classifier, and note the names of the columns."""
        self.estimator_ = estimator
        self.classes_ = classes_of(estimator)
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))
        if not hasattr(self, "feature_names_in_"):
            _check_feature_names(self, X, reset=True)
        self._sees_input = not any(each.transformers for each in inner_models(estimator))
        return self

    def _check_names(self, X: Any) -> None:
        """Refuse other columns, also for classifiers that would not notice, such as LightGBM."""
        if self._sees_input and hasattr(self, "feature_names_in_"):
            if _get_feature_names(X) is not None:
                _check_feature_names(self, X, reset=False)

    def _check_calibrated(self) -> None:
        if self.prefit and not hasattr(self, "predictor_"):
            raise NotCalibratedError(
                "there is no calibration yet; call calibrate with samples that the classifier was "
                "not trained on. With prefit=True, fit only takes training samples for Trust."
            )
        check_is_fitted(self)

    def _check_needed(self, columns: dict[str, Array]) -> None:
        """Refuse samples without the groups that their thresholds depend on."""
        needed = self.predictor_.needed_groups if hasattr(self, "predictor_") else ()
        lost = [name for name in needed if name not in columns]
        if lost:
            raise InputError(
                f"groups= lacks {lost}, on which coverage was calibrated; pass "
                f"groups={{{lost[0]!r}: ...}} with one value for each sample. "
                "TrustSetClassifier(groups=...) takes them from columns of X instead."
            )

    def _set_reference_aside(
        self, X: Any, y: Array, columns: dict[str, Array]
    ) -> tuple[Any, Array, dict[str, Array]]:
        """Fit the trust score to a part of the calibration data, and return the rest."""
        share = _fraction(self, "reference_fraction")
        if not self._needs_features:
            self._refer_to(X, y, is_training=False)
            return X, y, columns
        # At every call: a sample must never be calibrated with itself as the reference.
        reference, rest = random_part(y, share, self.random_state)
        self._refer_to(_safe_indexing(X, reference), y[reference], is_training=False)
        return _safe_indexing(X, rest), y[rest], rows_of(columns, rest)

    @property
    def _needs_features(self) -> bool:
        """Whether the trust score, or another part of the method, looks at features."""
        if self.features is None:
            return False
        chosen = not isinstance(self.features, str) or self.features != "auto"
        return chosen or uses_features(self.method)

    def _refer_to(self, X: Any, y: Array, *, is_training: bool) -> Self:
        """Fit the trust score to samples that take no part in calibration."""
        check_known(y, self.classes_)
        self._check_names(X)
        self.encoder_ = self.reference_ = None
        self.feature_source_ = "nothing: the method does without features"
        if self._needs_features:
            encoder = TrustFeatures(self.features, self.estimator_)
            features = encoder.fit_transform(X)
            self.reference_ = TrustScore(normalize=False).fit(features, y)
            self.encoder_, self.feature_source_ = encoder, encoder.source
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

    def _calibrate(self, X: Any, y: Array, groups: dict[str, Array]) -> Self:
        check_known(y, self.classes_)
        outputs = self._described(X, y, groups)
        predictor = predictor_for(self.method, self.reference_, len(outputs), self.random_state)
        self.predictor_ = predictor.calibrate(outputs)
        warn_of_left_out_groups(self.predictor_, groups)
        return self


def _fraction(model: TrustSetClassifier, name: str) -> float:
    value = float(getattr(model, name))
    check_open(**{name: value})
    return value


def _as_flavour(sets: PredictionSets, X: Any, flavour: str) -> Any:
    """Sets themselves, or as a frame."""
    if flavour == "pandas":
        frame = sets.to_frame()
        return frame.set_axis(X.index) if hasattr(X, "iloc") else frame
    if flavour == "polars":
        import polars as pl

        return pl.from_arrow(sets.to_arrow())
    return sets
