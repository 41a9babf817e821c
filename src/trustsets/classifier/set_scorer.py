"""A scorer of sets for scikit-learn's searches."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
from sklearn.utils.metadata_routing import MetadataRequest

from trustsets.errors import InputError

if TYPE_CHECKING:
    from trustsets.classifier.set_classifier import TrustSetClassifier

__all__ = ["SetScorer"]


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
    >>> from trustsets import TrustSetClassifier
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

    def __call__(
        self, estimator: "TrustSetClassifier", X: Any, y: Any, *, groups: Any = None
    ) -> float:
        """Score a fitted classifier on samples with known classes."""
        # A search may pass groups for its folds alone.
        outputs = estimator.outputs(X, groups=None if estimator.groups is not None else groups)
        sets = estimator.predictor_.predict_set(outputs, alpha=self.alpha)
        if self.metric == "size":
            return -float(sets.sizes.mean())
        covered = sets.covers(y)[np.argsort(outputs.confidence, kind="stable")]
        shares = [part.mean() for part in np.array_split(covered, self.n_bins) if part.size]
        return -100.0 * float(np.mean(np.abs(np.array(shares) - (1.0 - self.alpha))))

    def get_metadata_routing(self) -> MetadataRequest:
        """Ask for groups where scikit-learn routes metadata, for methods that need them."""
        request = MetadataRequest(owner="SetScorer")
        request.score.add_request(param="groups", alias=True)
        return request
