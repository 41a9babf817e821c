"""The features in which the trust score of a wrapped classifier measures distances.

All that is learned here comes from the training samples of the trust score. These take no part in
calibration, so coverage is guaranteed whatever is learned.
"""

from collections.abc import Callable
from typing import Any, Literal, final

from trustsets._common.arrays import Floats
from trustsets.classifier.feature_columns import FeatureColumns, LeafColumns, columns_for
from trustsets.classifier.inner_models import has_leaves, inner_models
from trustsets.errors import InputError

__all__ = ["Features", "TrustFeatures"]

Features = Literal["auto", "input", "pipeline", "leaves"] | Callable[[Any], Any] | None


@final
class TrustFeatures:
    """Features of samples, from the input of a trained classifier.

    Parameters
    ----------
    features : {"auto", "input", "pipeline", "leaves"} or callable
        As in `TrustSetClassifier`.
    estimator : trained classifier

    Attributes
    ----------
    source : str
        Where the features come from, in words.
    columns : FeatureColumns
        What was learned from the training samples.
    """

    columns: FeatureColumns

    def __init__(self, features: Features, estimator: Any) -> None:
        self._raw, self.source = _source(features, estimator)
        self._is_leaves = isinstance(features, str) and features == "leaves"

    def fit_transform(self, X: Any) -> Floats:
        """Learn from training samples, and return their features."""
        raw = self._raw(X)
        self.columns = (LeafColumns() if self._is_leaves else columns_for(raw)).fit(raw)
        return self.columns.transform(raw)

    def transform(self, X: Any) -> Floats:
        """Features of new samples."""
        return self.columns.transform(self._raw(X))


def _source(features: Features, estimator: Any) -> tuple[Callable[[Any], Any], str]:
    """A function of X, and words for what it gives."""
    if callable(features):
        return features, f"the function {getattr(features, '__name__', repr(features))} of X"
    if not isinstance(features, str) or features not in ("auto", "input", "pipeline", "leaves"):
        raise InputError(
            'features must be "auto", "input", "pipeline", "leaves", a function of X, or None; '
            f"got {features if isinstance(features, str) else type(features).__name__!r}."
        )
    found = list(inner_models(estimator))
    if features == "leaves":
        own = next((each for each in found if has_leaves(each.model)), found[0])
        words = f"the leaves of {type(own.model).__name__}{own.place}"
        return own.leaves, words
    encoded = next((each for each in found if each.transformers), None)
    if features == "pipeline" and encoded is None:
        raise InputError(
            'features="pipeline" needs a pipeline of two steps or more; '
            f'{type(estimator).__name__} holds none. features="input" takes X itself.'
        )
    if encoded is None or features == "input":
        return _itself, "the columns of X"
    return encoded.transform, f"the output of {encoded.steps} in the pipeline{encoded.place}"


def _itself(X: Any) -> Any:
    return X
