"""CLUSTERED: one threshold for each cluster of similar classes."""

from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.quantiles import check_alpha
from trustsets._common.storage import require, require_numbers, storable
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Predictor
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.thresholds import SampleThresholds, quantile_table, side_by_side
from trustsets.predictors.tuning import Method
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score

__all__ = ["ClusteredConformal"]


NULL = -1
"""Cluster of the classes that are too rare to be clustered."""

# A class is described by the quantiles of its scores at these probabilities and at 1 - alpha.
EMBEDDING_QUANTILES = (0.5, 0.6, 0.7, 0.8, 0.9)
# With n samples of each of K classes, the published rule takes c of them for clustering into M
# clusters so that c = 2 M, to tell M distributions apart, and (n - c) K / M = 150 samples are left
# for the threshold of a cluster. Together: c = n K / (75 + K).
FRACTION_CONSTANT = 75
# The clustering fraction is needed before alpha is known.
REFERENCE_ALPHA = 0.1
# Starts of k-means; the best is kept.
STARTS = 10


@final
@storable
@dataclass(frozen=True)
class ClusteredLearned(Learned):
    """Scores and classes of both parts, and the clusterings made so far (one for each alpha)."""

    scores: Floats
    codes: Codes
    tuning_scores: Floats
    tuning_codes: Codes
    totals: Codes
    n_clusters: int | Literal["auto"]
    seed: int
    null_cluster: Literal["standard", "own"] = "standard"

    @cached_property
    def _clusters(self) -> dict[float, Codes]:
        # Not a field: clusters are not stored, but made again when first needed.
        return {}

    def check_state(self) -> None:
        """Refuse scores and classes that no calibration gives."""
        for name in ("", "tuning_"):
            scores, codes = getattr(self, f"{name}scores"), getattr(self, f"{name}codes")
            require_numbers(scores, f"ClusteredLearned.{name}scores", None)
            require_numbers(codes, f"ClusteredLearned.{name}codes", scores.size)
            known = codes.min() >= 0 and codes.max() < self.totals.size
            require(known, f"ClusteredLearned.{name}codes", "must be positions of classes")
        require_numbers(self.totals, "ClusteredLearned.totals", None)
        counts = np.bincount(self.codes, minlength=self.totals.size)
        others = np.bincount(self.tuning_codes, minlength=self.totals.size)
        # The calibration samples alone, where they were used for tuning too.
        sums = any(np.array_equal(self.totals, each) for each in (counts, counts + others))
        require(sums, "ClusteredLearned.totals", "must count the samples of each class")
        count = self.n_clusters == "auto" or _is_count(self.n_clusters)
        require(count, "ClusteredLearned.n_clusters", "must be 1 or more")
        require(0 <= self.seed < 1 << 63, "ClusteredLearned.seed", "must not be negative")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        require(self.scores.size == n, "ClusteredLearned.scores", f"must be those of {n} samples")
        counted = self.totals.size == n_classes
        require(counted, "ClusteredLearned.totals", f"must count {n_classes} classes")

    def prepare(self, alpha: float) -> None:
        """Cluster the classes for this alpha, once."""
        if alpha not in self._clusters:
            self._clusters[alpha] = self._cluster(alpha)

    def clusters(self, alpha: float) -> Codes:
        """Cluster of each class, shape (K,); `NULL` for the rare ones."""
        self.prepare(alpha)
        return self._clusters[alpha]

    @property
    def conditions_on(self) -> None:
        """Nothing: thresholds depend on the candidate class alone."""

    def thresholds(self, alpha: float) -> tuple[Floats, NDArray[np.int8]]:
        """Threshold and status of every class, both of shape (K,)."""
        clusters = self.clusters(alpha)
        names, place = np.unique(clusters, return_inverse=True)
        own = [np.sort(self.scores[clusters[self.codes] == name]) for name in names]
        if names[0] == NULL and self.null_cluster == "standard":
            own[0] = np.sort(self.scores)
        found = quantile_table(own, (alpha,))
        return found.values[place, 0], found.status[place, 0]

    def _cluster(self, alpha: float) -> Codes:
        clusters = np.full(self.totals.size, NULL, dtype=np.int64)
        counts = np.bincount(self.tuning_codes, minlength=clusters.size)
        common = np.flatnonzero(counts >= fewest_points(alpha))
        wanted, fewest = self.n_clusters, 1
        if wanted == "auto":
            # As the authors do: where the data allow one cluster only, nothing is clustered.
            wanted, fewest = published_clusters(self.totals, alpha), 2
        if common.size and wanted >= fewest:
            points = self._embedding(common, alpha)
            clusters[common] = _k_means(points, np.sqrt(counts[common]), wanted, self.seed)
        return clusters

    def _embedding(self, classes: Codes, alpha: float) -> Floats:
        """Quantiles of the tuning scores of each class, one row a class."""
        order = np.argsort(self.tuning_codes, kind="stable")
        start = np.searchsorted(self.tuning_codes[order], np.arange(self.totals.size + 1))
        scores = self.tuning_scores[order]
        shares = np.unique([*EMBEDDING_QUANTILES, 1.0 - alpha])
        return np.array([np.quantile(scores[start[y] : start[y + 1]], shares) for y in classes])


@final
@storable
@dataclass(eq=False, repr=False)
class ClusteredConformal(Predictor):
    r"""Conformal prediction with one threshold for each cluster of classes with similar scores.

    Classes are described by the 0.5, 0.6, 0.7, 0.8, 0.9 and 1 - alpha quantiles of their
    tuning scores, and clustered by k-means with weights :math:`\sqrt{n_y}`. Each cluster gets
    the finite-sample quantile of the calibration scores of its classes, and the set holds y if
    s(x, y) is at most the threshold of y's cluster. Coverage is at least 1 - alpha *given that
    the true class is in a cluster*. Given the class it is close to that, as far as the classes
    of a cluster have similar scores.

    A class with fewer than ``1 / alpha - 1`` tuning samples goes to the null cluster. As
    published, the null cluster uses the standard threshold of all calibration samples, which
    guarantees nothing for its classes: with many rare classes coverage falls below 1 - alpha
    even on average. ``null_cluster="own"`` treats it as a cluster like the others.

    Parameters
    ----------
    score, temperature, class_bias, allow_empty, random_state
        As in `StandardConformal`; the seed is also that of k-means.
    n_clusters : int or "auto"
        Clusters besides the null cluster; as many as there are classes, or more, give each
        its own. ``"auto"`` is the published rule: with :math:`n_y` samples of class y
        in both parts, :math:`n_\alpha` the fewest that give a finite quantile,
        :math:`\tilde n = \max(\min_y n_y, n_\alpha)` and :math:`\tilde K` classes with at
        least :math:`\tilde n` samples,

        .. math:: \gamma = \tilde K / (75 + \tilde K), \qquad
                  M = \lfloor \lfloor \gamma \tilde n \rfloor / 2 \rfloor.

        If M < 2 nothing is clustered: all classes are in the null cluster.
    null_cluster : {"standard", "own"}
        ``"standard"`` is the published rule. ``"own"`` takes the finite-sample quantile of the
        calibration scores of the null cluster's classes, so that coverage is at least
        1 - alpha given that the class is in it, and hence on average; with too few such
        samples its classes are in every set.
    tuning_fraction : float or "auto"
        Share of the samples set aside for clustering (if none are given); ``"auto"`` is the
        published :math:`\gamma` at alpha = 0.1. 0 reuses the calibration samples and warns.

    Notes
    -----
    Clusters depend on alpha and are made when an alpha is first used. For a sequence of alphas,
    thresholds that cross between clusterings are raised, so that sets are nested.

    References
    ----------
    T. Ding, A. N. Angelopoulos, S. Bates, M. I. Jordan and R. J. Tibshirani.
    Class-conditional conformal prediction with many classes. NeurIPS 2023 (section 2.2, and
    the choice of clustering parameters in the experiments).

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(4, size=4000)
    >>> noise = np.array([0.5, 0.5, 2.0, 2.0])[labels]  # two easy classes, two hard ones
    >>> logits = 3.0 * np.eye(4)[labels] + noise[:, None] * rng.normal(size=(4000, 4))
    >>> calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> predictor = ClusteredConformal(n_clusters=2, tuning_fraction=0.3).calibrate(calibration)
    >>> clusters = predictor.clusters(alpha=0.1)
    >>> bool(clusters[0] == clusters[1] != clusters[2] == clusters[3])
    True
    >>> predictor.predict_set(test, alpha=0.1)
    PredictionSets(2000 samples, 4 classes, alpha=0.1, mean size 1.29)
    """

    score: Score = APS()
    n_clusters: int | Literal["auto"] = "auto"
    _: KW_ONLY
    null_cluster: Literal["standard", "own"] = "standard"
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float | str = "auto"
    random_state: Any = 0

    def clusters(self, alpha: float = 0.1) -> Codes:
        """Cluster of each class at an alpha, shape (K,); -1 is the null cluster."""
        learned: ClusteredLearned = self._state().learned
        return learned.clusters(check_alpha(alpha)).copy()

    def _method(self) -> Method:
        if self.n_clusters != "auto" and not _is_count(self.n_clusters):
            raise InputError(
                'n_clusters must be a whole number of at least 1, or "auto"; '
                f"got {self.n_clusters!r}."
            )
        if self.null_cluster not in ("standard", "own"):
            raise InputError(
                f'null_cluster must be "standard" or "own"; got {self.null_cluster!r}.'
            )
        return Method(
            ("the clusters of classes",),
            self.class_bias,
            auto_fraction=lambda outputs: published_fraction(
                np.bincount(outputs.require_labels("calibrate"), minlength=outputs.n_classes),
                REFERENCE_ALPHA,
            ),
        )

    def _learn(self, task: Task) -> ClusteredLearned:
        calibration, tuning = task.calibration, task.tuning
        if not np.array_equal(tuning.classes, calibration.classes):
            raise InputError(
                "tuning samples name other classes, or the same in another order, than the "
                "calibration samples; pass tuning= of the same classifier."
            )
        codes = calibration.require_labels("calibrate")
        tuning_codes = tuning.require_labels("clustering of classes")
        both = codes if tuning is calibration else np.concatenate([codes, tuning_codes])
        return ClusteredLearned(
            scores=task.scores,
            codes=codes,
            tuning_scores=task.tuning_scores(),
            tuning_codes=tuning_codes,
            totals=np.bincount(both, minlength=calibration.n_classes),
            n_clusters=self.n_clusters if self.n_clusters == "auto" else int(self.n_clusters),
            seed=task.seed,
            null_cluster=self.null_cluster,
        )

    def _could_learn(self, learned: Learned) -> bool:
        return isinstance(learned, ClusteredLearned) and learned.n_clusters == self.n_clusters

    def _thresholds(
        self,
        learned: ClusteredLearned,
        outputs: ModelOutputs,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        found = side_by_side([learned.thresholds(alpha) for alpha in alphas], alphas)
        return found.of_classes(len(outputs))

    def _guarantee(self, state: Calibrated) -> str:
        text = (
            "the sets hold the true class with probability at least 1 - alpha within every "
            "cluster of classes"
        )
        if self.null_cluster == "own":
            return f"{text}, the null cluster of rare classes included, and hence on average."
        return (
            f"{text} except the null cluster. The null cluster holds the rare classes and uses "
            "the threshold of all samples, which guarantees nothing for them. Where there are "
            "rare classes, nothing is guaranteed on average either; "
            'null_cluster="own" guarantees both.'
        )


def fewest_points(alpha: float) -> int:
    """Smallest n with a finite conformal quantile: the first n of at least 1 / alpha - 1.

    Examples
    --------
    >>> fewest_points(0.1), fewest_points(0.3)
    (9, 3)
    """
    return max(1, ceil(1 / Fraction(repr(float(alpha))) - 1))


def published_fraction(totals: Codes, alpha: float) -> float:
    """Share of the samples to cluster with: ``K / (75 + K)``, K the classes that are not rare.

    Examples
    --------
    >>> published_fraction(np.array([50] * 25), alpha=0.1)
    0.25
    """
    _, kept = _kept(totals, alpha)
    return kept / (FRACTION_CONSTANT + kept)


def published_clusters(totals: Codes, alpha: float) -> int:
    """Number of clusters: half of the clustering samples of the rarest class that counts.

    Examples
    --------
    >>> published_clusters(np.array([50] * 25), alpha=0.1)  # a quarter of 50, halved
    6
    """
    enough, kept = _kept(totals, alpha)
    return enough * kept // (FRACTION_CONSTANT + kept) // 2


def _kept(totals: Codes, alpha: float) -> tuple[int, int]:
    """Samples that a class must have to count, and the number of classes that have them."""
    enough = max(int(totals.min()), fewest_points(alpha))
    # With only rare classes nothing will be clustered; the smallest fraction is right then.
    return enough, max(1, int(np.count_nonzero(totals >= enough)))


def _is_count(value: Any) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and value >= 1


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
