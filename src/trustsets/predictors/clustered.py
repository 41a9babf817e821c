"""CLUSTERED: one threshold for each cluster of similar classes."""

from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Literal, Self, final
from weakref import WeakKeyDictionary

import numpy as np

from trustsets._arrays import Codes, Floats
from trustsets._draws import Stream
from trustsets._parameters import Alphas, Positive, check_alpha, check_arguments
from trustsets.outputs import ModelOutputs
from trustsets.predictors.predictor import Calibration, Predictor
from trustsets.predictors.quantiles import class_thresholds, nested_thresholds, quantile_thresholds
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score
from trustsets.status import Thresholds
from trustsets.storage import require, require_numbers, storable

# Cluster of the classes that are too rare to be clustered.
NULL = -1
# A class is described by the quantiles of its scores at these probabilities and at 1 - alpha.
EMBEDDING_QUANTILES = (0.5, 0.6, 0.7, 0.8, 0.9)
# With n samples of each of K classes, the published rule clusters c of them into M = c / 2 clusters
# and leaves (n - c) K / M = 150 for the threshold of a cluster. Together: c = n K / (75 + K).
FRACTION_CONSTANT = 75
# The clustering fraction is needed before alpha is known.
REFERENCE_ALPHA = 0.1
# Starts of k-means; the best is kept.
STARTS = 10


@final
@storable
@dataclass(frozen=True, eq=False)
class TuningScores:
    """Nonconformity scores and labels of the tuning samples."""

    scores: Floats
    codes: Codes

    def check_belongs(self, state: Calibration) -> None:
        """Refuse labels that are no columns, for `storage`."""
        require_numbers(self.scores, "TuningScores.scores", None)
        require_numbers(self.codes, "TuningScores.codes", len(self.scores))
        inside = 0 <= self.codes.min() and self.codes.max() < len(state.classes)
        require(inside, "TuningScores.codes", "must be columns of classes")

    def clusters(self, n_classes: int, alpha: float, wanted: int, seed: int) -> Codes:
        """Cluster of each class, shape (K,), `NULL` for the rare ones; made once."""
        made, name = _MADE.setdefault(self, {}), (alpha, wanted)
        if name not in made:
            counts = np.bincount(self.codes, minlength=n_classes)
            common = np.flatnonzero(counts >= fewest_points(alpha))
            clusters = np.full(n_classes, NULL, dtype=np.int64)
            if common.size and wanted:
                points = _embedding(self, common, alpha)
                clusters[common] = _k_means(points, np.sqrt(counts[common]), wanted, seed)
            made[name] = clusters
        return made[name]

    def take(self, index: Codes) -> Self:
        """The same: what was tuned stays as it is."""
        return self

    def extended(self, outputs: ModelOutputs, state: Calibration) -> Self:
        """The same: what was tuned stays as it is."""
        return self


# Clusters by alpha and number. Calibrations without one sample or another share tuning scores, and
# so these; they are no part of a state, which no query changes.
_MADE: WeakKeyDictionary[TuningScores, dict[tuple[float, int], Codes]] = WeakKeyDictionary()


@final
@storable
@dataclass(eq=False, repr=False)
class ClusteredConformal(Predictor):
    """Conformal prediction with one threshold for each cluster of classes with similar scores.

    Classes are described by quantiles of their tuning scores, and clustered by k-means with weights
    ``sqrt(n_y)``. Each cluster gets the finite-sample quantile of the calibration scores of
    its classes. Coverage is at least 1 - alpha *given that the true class is in a cluster*.

    A class with fewer than ``1 / alpha - 1`` tuning samples goes to the null cluster. As published,
    it uses the threshold of all calibration samples, which guarantees nothing for its classes: with
    many rare classes even marginal coverage falls below 1 - alpha.

    Parameters
    ----------
    score, temperature, class_bias, allow_empty, random_state
        As in `StandardConformal`; the seed is also that of k-means.
    n_clusters : int or "auto"
        Clusters besides the null cluster; as many as there are classes, or more, give each
        its own. ``"auto"`` is the published rule: with ``n_y`` samples of class y in both parts,
        ``n_alpha`` the fewest that give a finite quantile, ``n = max(min_y n_y, n_alpha)`` and
        K classes with at least n samples, the share of samples for clustering is
        ``gamma = K / (75 + K)``, and there are ``M = floor(floor(gamma n) / 2)`` clusters.
        If M < 2 nothing is clustered: all classes are in the null cluster.
    null_cluster : {"standard", "own"}
        ``"standard"`` is the published rule. ``"own"`` treats the null cluster like the others, so
        that coverage is at least 1 - alpha given that the class is in it, and hence marginally;
        with too few samples its classes are in every set.
    tuning_fraction : float or "auto"
        Share of the samples set aside for clustering (if none are given); ``"auto"`` is the
        published gamma at alpha = 0.1. 0 reuses the calibration samples and warns.

    References
    ----------
    T. Ding, A. N. Angelopoulos, S. Bates, M. I. Jordan and R. J. Tibshirani. Class-conditional
    conformal prediction with many classes. NeurIPS 2023.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(4, size=4000)
    >>> noise = np.array([0.5, 0.5, 2.0, 2.0])[labels]  # two easy classes, two hard ones
    >>> logits = 3.0 * np.eye(4)[labels] + noise[:, None] * rng.normal(size=(4000, 4))
    >>> outputs = ModelOutputs(logits=logits, labels=labels)
    >>> predictor = ClusteredConformal(n_clusters=2, tuning_fraction=0.3).calibrate(outputs)
    >>> clusters = predictor.clusters(alpha=0.1)
    >>> bool(clusters[0] == clusters[1] != clusters[2] == clusters[3])
    True
    """

    _: KW_ONLY
    score: Score = APS()
    n_clusters: int | Literal["auto"] = "auto"
    null_cluster: Literal["standard", "own"] = "standard"
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float | str = "auto"
    random_state: Any = 0

    # Clusters depend on alpha, and are made when an alpha is first used.

    def clusters(self, alpha: float = 0.1) -> Codes:
        """Cluster of each class at an alpha, shape (K,); -1 is the null cluster."""
        return self._clusters(check_alpha(alpha)).copy()

    def _check_parameters(self) -> None:
        if not (isinstance(self.n_clusters, str) and self.n_clusters == "auto"):
            check_arguments(Positive, n_clusters=self.n_clusters)
        check_arguments(Literal["standard", "own"], null_cluster=self.null_cluster)

    def _tuned(self) -> tuple[str, ...]:
        return ("the clusters of classes",)

    def _default_fraction(self, outputs: ModelOutputs) -> float:
        codes = outputs.require_labels("calibrate")
        totals = np.bincount(codes, minlength=outputs.n_classes)
        return published_rule(totals, REFERENCE_ALPHA)[0]

    def _fit(
        self, state: Calibration, calibration: ModelOutputs, tuning: ModelOutputs
    ) -> TuningScores:
        codes = tuning.require_labels("clustering of classes")
        return TuningScores(self._label_scores(tuning, state, Stream.TUNING_SCORE), codes)

    def _thresholds(self, outputs: ModelOutputs, scores: Floats, alphas: Alphas) -> Thresholds:
        table = nested_thresholds([self._cluster_thresholds(alpha) for alpha in alphas], alphas)
        return class_thresholds(table, len(outputs))

    def _cluster_thresholds(self, alpha: float) -> Thresholds:
        """Threshold and status of every class, both of shape (K,)."""
        state, clusters = self.state_, self._clusters(alpha)
        names, inverse = np.unique(clusters, return_inverse=True)
        scores = [np.sort(state.scores[clusters[state.codes] == name]) for name in names]
        if names[0] == NULL and self.null_cluster == "standard":
            scores[0] = np.sort(state.scores)
        table = quantile_thresholds(scores, (alpha,))
        return Thresholds(table.values[inverse, 0], table.status[inverse, 0])

    def _clusters(self, alpha: float) -> Codes:
        """Cluster of each class, shape (K,); `NULL` for the rare ones."""
        state, wanted, n_classes = self._state(), self.n_clusters, len(self._state().classes)
        fitted: TuningScores = state.fitted
        if wanted == "auto":
            counts = np.bincount(fitted.codes, minlength=n_classes)
            wanted = published_rule(state.counts + (counts if state.n_tuning else 0), alpha)[1]
            # As the authors do: where the data allow one cluster only, nothing is clustered.
            wanted = wanted if wanted > 1 else 0
        return fitted.clusters(n_classes, alpha, wanted, state.seed)

    def _guarantee(self) -> str:
        text = (
            "the sets contain the true class with probability at least 1 - alpha within every "
            "cluster of classes"
        )
        if self.null_cluster == "own":
            return f"{text}, the null cluster of rare classes included, and hence marginally."
        return (
            f"{text} except the null cluster of rare classes. Where there are rare classes, "
            'nothing is guaranteed for them, nor marginally; null_cluster="own" guarantees both.'
        )


def _embedding(fitted: TuningScores, classes: Codes, alpha: float) -> Floats:
    """Quantiles of the tuning scores of each class, one row a class."""
    order = np.argsort(fitted.codes, kind="stable")
    start = np.searchsorted(fitted.codes[order], np.arange(fitted.codes.max() + 2))
    scores = fitted.scores[order]
    shares = np.unique([*EMBEDDING_QUANTILES, 1.0 - alpha])
    return np.array([np.quantile(scores[start[y] : start[y + 1]], shares) for y in classes])


def fewest_points(alpha: float) -> int:
    """Smallest n with a finite conformal quantile: the first n of at least 1 / alpha - 1."""
    return max(1, ceil(1 / Fraction(repr(float(alpha))) - 1))


def published_rule(totals: Codes, alpha: float) -> tuple[float, int]:
    """Share of the samples to cluster with, and the number of clusters.

    The share is ``K / (75 + K)``, K the classes that are not rare, and there are half as many
    clusters as that is of the samples of the rarest of them.
    """
    enough = max(int(totals.min()), fewest_points(alpha))
    # With only rare classes nothing will be clustered; the smallest fraction is right then.
    kept = max(1, int(np.count_nonzero(totals >= enough)))
    whole = FRACTION_CONSTANT + kept
    return kept / whole, enough * kept // whole // 2


def _k_means(points: Floats, weights: Floats, n_clusters: int, seed: int) -> Codes:
    """Weighted k-means that does not depend on the order of the points."""
    if n_clusters >= len(points):
        return np.arange(len(points))
    from sklearn.cluster import KMeans

    order = np.lexsort((weights, *points.T))
    distinct = len(np.unique(points, axis=0))
    means = KMeans(min(n_clusters, distinct), n_init=STARTS, random_state=seed % 2**32)
    labels = np.empty(len(points), dtype=np.int64)
    labels[order] = means.fit(points[order], sample_weight=weights[order]).labels_
    return labels
