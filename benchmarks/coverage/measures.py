"""What is measured of the sets of one split, at alpha and at equal mean size."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.decomposition import PCA
from splits import ALPHA, Mask, Split

from trustsets import APS

Array = NDArray[Any]
Floats = NDArray[np.float64]

TARGET = 1.0 - ALPHA
TRUE_COVERAGE = 0.8
"""Inputs with a true conditional coverage below this are counted, where it is known."""
TOP_PROBABILITIES = 5
COMPONENTS = 20
CONFIDENCE_BINS, TRUST_BINS = 10, 4
FEWEST_IN_GROUP = 30
SLAB_SHARE, SLAB_DIRECTIONS = 0.1, 200
TREES = 25
BOOSTING: dict[str, Any] = {
    "objective": "binary",
    "num_leaves": 8,
    "learning_rate": 0.15,
    "min_data_in_leaf": 30,
    "max_bin": 63,
    "feature_pre_filter": False,
    "seed": 0,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
FOLDS = 5


class CoverageModel(ClassifierMixin, BaseEstimator):
    """The judge's classifier of hits: LightGBM with small trees, on one thread.

    Where the samples it learns from are all hits or all misses, it says so for every sample.
    """

    def fit(self, X: Array, y: Array) -> "CoverageModel":
        """Learn who is covered."""
        import lightgbm

        self.classes_ = np.array([0, 1])
        self.mean_ = float(np.mean(y))
        self.model_ = None
        if 0.0 < self.mean_ < 1.0:
            data = _binned(X.shape, X.tobytes()).set_label(y)
            self.model_ = lightgbm.train(BOOSTING, data, num_boost_round=TREES)
        return self

    def predict_proba(self, X: Array) -> Array:
        """Probability of a miss and of a hit, shape (n, 2)."""
        if self.model_ is None:
            hit = np.full(len(X), self.mean_)
        else:
            hit = np.asarray(self.model_.predict(X))
        return np.stack([1.0 - hit, hit], axis=1)


@lru_cache(maxsize=2 * FOLDS)
def _binned(shape: tuple[int, int], content: bytes) -> Any:
    """LightGBM's bins of the columns, which all methods of a split and fold share."""
    import lightgbm

    rows = np.frombuffer(content).reshape(shape)
    return lightgbm.Dataset(rows, params=BOOSTING, free_raw_data=False).construct()


class Judge:
    """Measures sets of one split; what depends on the split alone is computed once."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.labels = split.test_labels
        self.n = len(split.test)

    @cached_property
    def columns(self) -> dict[str, Floats]:
        """Inputs of the two judges of ERT, by name: what methods use, and what none of them has."""
        task, test = self.split.task, self.split.test
        probabilities = task.probabilities[test]
        top = -np.sort(-probabilities, axis=1)[:, :TOP_PROBABILITIES]
        entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-12))).sum(axis=1)
        trust = np.log(np.clip(task.trust[test], 1e-6, 1e6))
        features = task.features[test].astype(np.float64)
        count = min(COMPONENTS, features.shape[1])
        components = PCA(count, svd_solver="covariance_eigh").fit_transform(features)
        shared = np.column_stack([trust, entropy, top, components])
        return {"ert": shared, "raw_ert": task.raw[test].astype(np.float64)}

    @cached_property
    def slab(self) -> tuple[Array, Array, Array]:
        """Positions of the test samples along random directions, and which half is searched.

        The last array has the searched samples in the order of each direction.
        """
        columns = self.columns["ert"]
        spread = columns.std(axis=0)
        standard = (columns - columns.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
        rng = np.random.default_rng(self.split.seed)
        directions = rng.normal(size=(standard.shape[1], SLAB_DIRECTIONS))
        searched = rng.permutation(self.n) < self.n // 2
        positions = standard @ directions
        rows = np.flatnonzero(searched)
        return positions, searched, rows[np.argsort(positions[searched], axis=0)]

    @cached_property
    def cells(self) -> Array:
        """Cell of each test sample: ten equal counts of confidence, each in four of trust."""
        task, test = self.split.task, self.split.test
        confidence = _equal_counts(task.probabilities[test].max(axis=1), CONFIDENCE_BINS)
        cells = np.zeros(self.n, dtype=np.int64)
        for level in range(CONFIDENCE_BINS):
            rows = np.flatnonzero(confidence == level)
            inner = _equal_counts(task.trust[test][rows], TRUST_BINS)
            cells[rows] = level * TRUST_BINS + inner
        return cells

    @cached_property
    def order(self) -> Array:
        """Candidates (sample and class, as one number) in the order in which sets grow.

        The most likely class of every sample comes first; the others follow by their APS score,
        so that the first candidates are the split conformal sets of some alpha, whatever their
        number. Equal scores are in random order.
        """
        scores = APS(scale="tail").matrix(self.split.task.outputs(self.split.test))
        best = self.split.task.probabilities[self.split.test].argmax(axis=1)
        scores[np.arange(self.n), best] = -1.0
        ties = np.random.default_rng(self.split.seed).random(scores.size)
        return np.lexsort([ties, scores.ravel()])

    @cached_property
    def lac_order(self) -> Array:
        """The same by decreasing probability: split conformal sets with LAC scores."""
        probabilities = self.split.task.probabilities[self.split.test]
        scores = -probabilities
        scores[np.arange(self.n), probabilities.argmax(axis=1)] = -2.0
        ties = np.random.default_rng(self.split.seed).random(scores.size)
        return np.lexsort([ties, scores.ravel()])

    def of_size(self, total: int, order: Array | None = None) -> Mask:
        """Split conformal sets with exactly this many classes in all (one per sample at least)."""
        mask = np.zeros(self.n * self.split.task.n_classes, dtype=bool)
        mask[(self.order if order is None else order)[: max(total, self.n)]] = True
        return mask.reshape(self.n, -1)

    def measure(self, mask: Mask) -> dict[str, float]:
        """All measures of sets, in percentage points but for sizes and shares."""
        covered = mask[np.arange(self.n), self.labels]
        sizes = mask.sum(axis=1)
        numbers = {
            "coverage": float(covered.mean()),
            "size": float(sizes.mean()),
            "median_size": float(np.median(sizes)),
            "empty": float((sizes == 0).mean()),
            "conf_trust_under": self._under(self.cells, covered),
            "class_under": self._class_under(covered),
            "worst_slab": self._worst_slab(covered),
        }
        for name, columns in self.columns.items():
            numbers |= self._excess_risk(name, columns, covered)
        if self.split.task.groups:
            numbers |= self._groups(covered)
        if self.split.task.truth is not None:
            true = (self.split.task.truth[self.split.test] * mask).sum(axis=1)
            numbers["true_below"] = 100.0 * float((true < TRUE_COVERAGE).mean())
            numbers["true_under"] = 100.0 * float(np.maximum(TARGET - true, 0.0).mean())
        return numbers

    def over_coverage(self, mask: Mask) -> dict[str, float]:
        """Over-coverage component of the excess risk of sets, by each judge."""
        covered = mask[np.arange(self.n), self.labels]
        components = {}
        for name, columns in self.columns.items():
            values = self._excess_risk(name, columns, covered)
            components[name] = values[name] - values[f"{name}_under"]
        return components

    def _excess_risk(self, name: str, columns: Floats, covered: Array) -> dict[str, float]:
        """Excess risk of the target coverage and its under-coverage component, by covmetrics."""
        from covmetrics import ERT
        from covmetrics.losses import L1_miscoverage, L1_miscoverage_under

        losses = [L1_miscoverage, L1_miscoverage_under]
        values: Mapping[str, float] = ERT(CoverageModel).evaluate_multiple_losses(
            columns, covered.astype(np.float64), ALPHA, n_splits=FOLDS, all_losses=losses
        )
        return {
            name: 100.0 * float(values["ERT_L1_miscoverage"]),
            f"{name}_under": 100.0 * float(values["ERT_L1_miscoverage_under"]),
        }

    def _under(self, cells: Array, covered: Array) -> float:
        """Mean shortfall of the coverage of the cells, weighted by their samples."""
        counts = np.bincount(cells)
        hits = np.bincount(cells, weights=covered)
        shortfall = np.maximum(TARGET * counts - hits, 0.0)
        return 100.0 * float(shortfall.sum() / counts.sum())

    def _class_under(self, covered: Array) -> float:
        """Mean shortfall of the coverage of the classes, each counted once."""
        counts = np.bincount(self.labels)
        hits = np.bincount(self.labels, weights=covered)
        present = counts > 0
        return 100.0 * float(np.maximum(TARGET - hits[present] / counts[present], 0.0).mean())

    def _groups(self, covered: Array) -> dict[str, float]:
        """Mean shortfall over groups, and that of the worst with enough samples."""
        shortfalls, counts = [], []
        for column in self.split.task.groups.values():
            _, codes = np.unique(column[self.split.test], return_inverse=True)
            for code in range(codes.max() + 1):
                rows = codes.reshape(-1) == code
                if rows.sum() >= FEWEST_IN_GROUP:
                    shortfalls.append(max(0.0, TARGET - float(covered[rows].mean())))
                    counts.append(int(rows.sum()))
        return {
            "group_under": 100.0 * float(np.average(shortfalls, weights=counts)),
            "worst_group": 100.0 * max(shortfalls),
        }

    def _worst_slab(self, covered: Array) -> float:
        """Shortfall in a tenth of the samples between two parallel planes.

        The slab is the worst of half of the samples; its coverage is that of the other half.
        """
        positions, searched, order = self.slab
        width = max(2, int(SLAB_SHARE * len(order)))
        sums = np.vstack([np.zeros(order.shape[1]), np.cumsum(covered[order], axis=0)])
        hits = sums[width:] - sums[:-width]
        start, direction = np.unravel_index(hits.argmin(), hits.shape)
        low, high = positions[order[[start, start + width - 1], direction], direction]
        values = positions[~searched, direction]
        inside = (values >= low) & (values <= high)
        if not inside.any():
            return 0.0
        return 100.0 * (TARGET - float(covered[~searched][inside].mean()))


def _equal_counts(values: Floats, bins: int) -> Array:
    """Bins of equal counts, by rank; equal values are in one bin."""
    edges = np.quantile(values, np.arange(1, bins) / bins)
    return np.searchsorted(edges, values, side="right")
