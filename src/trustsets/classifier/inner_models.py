"""What trained classifiers say, also those inside pipelines, searches and other wrappers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from sklearn.base import is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from trustsets._common.arrays import Array
from trustsets.errors import InputError, NotCalibratedError
from trustsets.outputs import ModelOutputs

__all__ = [
    "InnerModel",
    "check_classifies",
    "classes_of",
    "has_leaves",
    "inner_models",
    "is_a",
    "outputs_of",
    "require_trained",
]

# Trained models of each wrapper, by the name of a class it inherits from: importing all of these
# classes would take longer than a small model does.
_INSIDE: dict[str, Callable[[Any], list[Any]]] = {
    "BaseSearchCV": lambda own: [own.best_estimator_],
    "BaseThresholdClassifier": lambda own: [own.estimator_],
    "CalibratedClassifierCV": lambda own: [each.estimator for each in own.calibrated_classifiers_],
    "FrozenEstimator": lambda own: [own.estimator],
    "OneVsRestClassifier": lambda own: list(own.estimators_),
    "SelfTrainingClassifier": lambda own: [own.estimator_],
    "StackingClassifier": lambda own: list(own.estimators_),
    "VotingClassifier": lambda own: list(own.estimators_),
}


@final
@dataclass(frozen=True)
class InnerModel:
    """A trained classifier that wraps no other, and what X goes through before it."""

    model: Any
    transformers: tuple[Any, ...]
    wrappers: tuple[str, ...]

    def transform(self, X: Any) -> Any:
        """What the model sees of X."""
        for each in self.transformers:
            X = each.transform(X)
        return X

    def leaves(self, X: Any) -> Array:
        """Which leaf of each tree a sample falls into, shape (n, trees)."""
        return leaf_numbers(self.model, self.transform(X))

    @property
    def place(self) -> str:
        """Where the model was found, in words."""
        return f" inside {' and '.join(self.wrappers)}" if self.wrappers else ""

    @property
    def steps(self) -> str:
        """The transformers in words."""
        names = [type(step).__name__ for part in self.transformers for _, step in part.steps]
        return ", ".join(names)


def inner_models(estimator: Any) -> Iterator[InnerModel]:
    """Classifiers at the bottom of all wrappers, in their order.

    Wrappers are `Pipeline`, searches such as `GridSearchCV`, `CalibratedClassifierCV`, the two
    classifiers with thresholds, `FrozenEstimator`, voting, stacking, one-versus-rest and
    self-training.
    """
    before: tuple[Any, ...] = ()
    wrappers: tuple[str, ...] = ()
    if isinstance(estimator, Pipeline):
        before = (estimator[:-1],) if len(estimator) > 1 else ()
        inside = [estimator[-1]]
    else:
        found = next((get for name, get in _INSIDE.items() if is_a(estimator, name)), None)
        if found is None:
            yield InnerModel(estimator, (), ())
            return
        inside, wrappers = found(estimator), (type(estimator).__name__,)
    for own in inside:
        for each in inner_models(own):
            yield InnerModel(each.model, before + each.transformers, (*wrappers, *each.wrappers))


def is_a(estimator: Any, name: str) -> bool:
    """Whether the estimator inherits from a class of this name."""
    return any(each.__name__ == name for each in type(estimator).__mro__)


def check_classifies(estimator: Any) -> None:
    """Refuse what can have no outputs, before it is trained.

    Stacking, for one, says what it has only once it is trained.
    """
    hard = is_a(estimator, "VotingClassifier") and estimator.voting == "hard"
    if hard or is_regressor(estimator):
        hint = 'set voting="soft"' if hard else "a regressor has none"
        raise InputError(
            "estimator must be a classifier with predict_proba or decision_function; for "
            f"{type(estimator).__name__}, {hint}."
        )


def classes_of(estimator: Any) -> Array:
    """Names of the classes of a trained classifier, in the order of its outputs."""
    try:
        return np.asarray(estimator.classes_)
    except AttributeError as error:
        raise InputError(
            f"estimator must say its classes once it is trained (classes_); "
            f"{type(estimator).__name__} does not: {error}"
        ) from error


def require_trained(estimator: Any) -> Any:
    """Return the classifier of ``prefit=True``, or refuse it if it is not trained."""
    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        raise NotCalibratedError(
            f"prefit=True needs a trained classifier, but this {type(estimator).__name__} is not "
            "fitted; call its fit first, or set prefit=False."
        ) from error
    return estimator


def outputs_of(estimator: Any, X: Any, **known: Any) -> ModelOutputs:
    """Probabilities, or else margins as logits, with what is known of the samples."""
    if hasattr(estimator, "predict_proba"):
        return ModelOutputs(probabilities=estimator.predict_proba(X), **known)
    if not hasattr(estimator, "decision_function"):
        raise InputError(
            "estimator must be a classifier with predict_proba or decision_function; "
            f"{type(estimator).__name__} has neither."
        )
    margins = np.asarray(estimator.decision_function(X))
    if margins.ndim == 1:
        margins = np.column_stack([-margins, margins]) / 2.0
    n_classes = len(known["classes"])
    if margins.shape[1] != n_classes:
        raise InputError(
            f"decision_function gives {margins.shape[1]} columns for {n_classes} classes; set "
            'decision_function_shape="ovr" of the classifier.'
        )
    return ModelOutputs(logits=margins, **known)


def has_leaves(model: Any) -> bool:
    """Whether `leaf_numbers` knows how to ask the model."""
    return _comes_from(model, "lightgbm", "catboost") or hasattr(model, "apply")


def leaf_numbers(model: Any, X: Any) -> Array:
    """Which leaf of each tree a sample falls into, shape (n, trees)."""
    if _comes_from(model, "lightgbm"):
        leaves = model.predict(X, pred_leaf=True)
    elif _comes_from(model, "catboost"):
        leaves = model.calc_leaf_indexes(X)
    elif hasattr(model, "apply"):
        leaves = model.apply(X)
    else:
        raise InputError(
            'features="leaves" needs trees that say which leaf a sample falls into (LightGBM, '
            "XGBoost, CatBoost, a forest or GradientBoostingClassifier); "
            f"{type(model).__name__} does not."
        )
    leaves = np.asarray(leaves)
    return leaves.reshape(leaves.shape[0], -1).astype(np.int64)


def _comes_from(model: Any, *packages: str) -> bool:
    return any(each.__module__.split(".")[0] in packages for each in type(model).__mro__)
