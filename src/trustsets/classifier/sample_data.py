"""What users pass besides the classifier: labels, groups, weights and other parameters of fit."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, assert_all_finite, indexable
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_method_params, _num_samples, column_or_1d

from trustsets._common.arrays import Array, group_column
from trustsets._common.validation import check_groups
from trustsets.classifier.inner_models import is_a
from trustsets.errors import InputError
from trustsets.predictors.class_facts import class_names

__all__ = [
    "check_data",
    "check_known",
    "explaining_errors",
    "fresh_copy",
    "group_columns",
    "parameters_of_fit",
    "random_part",
    "rows_of",
]

GroupColumns = dict[str, Array]


def check_data(X: Any, y: Any) -> tuple[Any, Array]:
    """X that rows can be taken from, and a label for each."""
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


def check_known(y: Array, classes: Array) -> None:
    """Every label must be one of the classes that the classifier was trained on."""
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise InputError(
            f"y must hold classes of the classifier; got {class_names(np.unique(y[unknown]))}, "
            f"which is not among its {classes.size} classes ({class_names(classes)}). Leave these "
            "samples out, or train with them."
        )


@contextmanager
def explaining_errors(y: Array, train: NDArray[np.int64]) -> Iterator[None]:
    """Say in errors of a model, which does not know of the split, what it may be about.

    XGBoost, for one, takes the labels 0 to K - 1 and no others.
    """
    try:
        yield
    except Exception as error:
        lost = np.setdiff1d(y, y[train])
        if lost.size:
            error.add_note(
                "TrustSetClassifier trains on a part of the samples, which has none of class "
                f"{class_names(lost)}. Give more samples of each class or another random_state, "
                "or train the model yourself and set prefit=True."
            )
        if "Invalid classes" in str(error) and not lost.size:
            error.add_note(
                "XGBoost takes the labels 0 to K - 1; encode y with scikit-learn's LabelEncoder."
            )
        raise


def fresh_copy(estimator: Any) -> Any:
    """A copy to train."""
    try:
        return clone(estimator)
    except RuntimeError:
        # CatBoost copies lists among its parameters, which clone takes for a mistake.
        return deepcopy(estimator)


def group_columns(X: Any, columns: Any, given: Any) -> GroupColumns:
    """Group columns of samples as texts: columns of X by name or number, or given ones."""
    if columns is None:
        return check_groups(given, _num_samples(X))
    if given is not None:
        raise InputError(
            f"groups are columns of X already (TrustSetClassifier(groups={columns!r})); leave out "
            "groups= here, or there."
        )
    chosen = columns if isinstance(columns, list | tuple) else [columns]
    return dict(_group_column(X, each) for each in chosen)


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


def parameters_of_fit(
    model: Any, X: Any, given: dict[str, Any], train: NDArray[np.int64]
) -> dict[str, Any]:
    """Parameters for the fit of the classifier in `model`; arrays go by sample."""
    given = {name: value for name, value in given.items() if value is not None}
    n = _num_samples(X)
    if get_config()["enable_metadata_routing"]:
        given = dict(process_routing(model, "fit", **given)["estimator"]["fit"])
    elif "sample_weight" in given:
        name = _weight_name(model.estimator)
        if name is None:
            raise InputError(
                f"sample_weight is for classifiers whose fit takes it; that of "
                f"{type(model.estimator).__name__} does not. Leave it out."
            )
        given = {name if own == "sample_weight" else own: each for own, each in given.items()}
    for name, value in given.items():
        # The classifier would count training samples, and could take weights of other samples.
        if name.endswith("sample_weight") and "eval" not in name and np.shape(value) != (n,):
            raise InputError(
                f"{name} must have one weight for each of the {n} samples; got shape "
                f"{np.shape(value)}."
            )
    # Evaluation sets of boosted trees may happen to have as many samples as X.
    whole = {name: value for name, value in given.items() if "eval" in name}
    return dict(_check_method_params(X, given, train)) | whole


def _weight_name(estimator: Any) -> str | None:
    """Name under which the fit of a classifier takes sample weights, if it does."""
    if isinstance(estimator, Pipeline):
        step, last = estimator.steps[-1]
        inner = _weight_name(last)
        return None if inner is None else f"{step}__{inner}"
    if is_a(estimator, "BaseSearchCV"):
        return _weight_name(estimator.estimator)
    known = inspect.signature(estimator.fit).parameters.values()
    takes = any(own.name == "sample_weight" or own.kind is own.VAR_KEYWORD for own in known)
    return "sample_weight" if takes else None


def random_part(y: Array, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random first part with about `share` of the samples, and the rest.

    Not stratified, and no class has a place of its own in either part: the calibration
    samples must stay exchangeable with new ones.
    """
    if _num_samples(y) < 2:
        raise InputError("training and calibration need 2 samples or more; got 1 sample.")
    order = np.random.default_rng(seed).permutation(y.shape[0])
    size = min(max(round(share * y.shape[0]), 1), y.shape[0] - 1)
    return np.sort(order[:size]), np.sort(order[size:])


def rows_of(columns: GroupColumns, rows: NDArray[np.int64]) -> GroupColumns:
    """Group columns of some of the samples."""
    return {name: values[rows] for name, values in columns.items()}
