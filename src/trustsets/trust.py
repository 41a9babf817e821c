"""Trust scores: how much closer the predicted class is than any other."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trustsets._arrays import Array, Floats, to_numpy
from trustsets._blocks import for_each_block
from trustsets._estimator import Estimator
from trustsets._progress import progress_bar
from trustsets._storage import require, require_increasing, require_numbers, storable
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.neighbours import (
    ClassPoints,
    FloatArray,
    IndexArray,
    Queries,
    make_search,
    row_scales,
    row_squares,
)

__all__ = ["DISTANCE_FLOOR", "LARGEST_SCORE", "TrustScore"]

# Added to both distances (relative to the scale of the features): x/0 and 0/0 become numbers.
DISTANCE_FLOOR = 1e-12
# The score where there is no other class, and the most any score can be.
LARGEST_SCORE = 1e12
# Pairs of rows from which a run is long enough to show its progress.
LONG_RUN = 10**10
# Rows handled at a time where a float64 copy is needed.
BLOCK_ROWS = 4096


@final
@storable
class TrustScore(Estimator):
    r"""Distance to the nearest other class over the distance to the predicted class.

    With `d(x, c)` the distance from `x` to the `neighbour`-th nearest training point of class `c`
    and `y` the predicted class,

    .. math:: Trust(x, y) = \frac{\min_{c \ne y} d(x, c) + \epsilon}{d(x, y) + \epsilon}

    A large score says that the training data agree with the prediction. The distances are exact on
    every device; they do not depend on how queries are batched.

    Parameters
    ----------
    neighbour : int
        Which nearest point stands for a class. A class with fewer points is represented by its
        farthest one, with a warning when fitting.
    squared : bool
        Use squared distances. `TrustScore(neighbour=2, squared=True)` gives the numbers of the
        authors' runs of the paper.
    normalize : bool
        Divide each row by its Euclidean norm. A zero row has no direction and stays zero: it is at
        distance 1 from every other row.
    filter_fraction : float
        Drop up to this fraction of the points of each class: those with the largest distance to
        their `filter_neighbours`-th nearest point of the class, themselves included. Points tied
        with the last one that stays also stay.
    filter_neighbours : int
        See `filter_fraction`. Classes with fewer points are not filtered.
    device : str
        `"cpu"`, or a torch device such as `"cuda"` or `"cuda:1"`; `"torch:cpu"` runs the torch
        search on the CPU.

    Attributes
    ----------
    classes_ : (K,) array
        Sorted class labels.
    n_features_in_ : int
    scale_ : float
        Length in units of which :math:`\epsilon` is `1e-12`: 1 for normalised rows, else the root
        mean square distance of the training points from their mean, to six digits.

    Notes
    -----
    The score is always finite, increases with the other distance and decreases with that to the
    predicted class. A training point of the predicted class is at distance 0 from it and has a
    score of about `other / 1e-12`. A point that two classes share scores 1. A predicted class
    without training points is infinitely far and scores 0. With a single class the other distance
    is infinite and the score is 1e12, the largest possible.

    Training features are stored in the float type they come in: float16 halves a file.

    Examples
    --------
    >>> import numpy as np
    >>> train = np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0]])
    >>> trust = TrustScore(normalize=False).fit(train, ["cat", "cat", "dog"])
    >>> trust.score([[1.0, 0.0], [1.0, 0.0]], ["cat", "dog"]).round(3)
    array([3.   , 0.333])
    >>> own_distance, other_distance, other_class = trust.distances([[1.0, 0.0]], ["cat"])
    >>> float(own_distance[0]), float(other_distance[0]), str(other_class[0])
    (1.0, 3.0, 'dog')
    """

    classes_: Array
    n_features_in_: int
    scale_: float

    def __init__(
        self,
        *,
        neighbour: int = 1,
        squared: bool = False,
        normalize: bool = True,
        filter_fraction: float = 0.0,
        filter_neighbours: int = 10,
        device: str = "cpu",
    ) -> None:
        self.neighbour = neighbour
        self.squared = squared
        self.normalize = normalize
        self.filter_fraction = filter_fraction
        self.filter_neighbours = filter_neighbours
        self.device = device

    def fit(self, features: ArrayLike, labels: ArrayLike) -> Self:
        """Store the training points, without those that `filter_fraction` drops.

        Parameters
        ----------
        features : (m, d) array
            NumPy, pandas or torch; any float type.
        labels : (m,) array
            Class labels of any sortable type.
        """
        self._check_parameters()
        matrix = _as_matrix(features, "features", half=True)
        classes, codes = np.unique(_as_labels(labels, len(matrix), "labels"), return_inverse=True)
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(classes) + 1)).astype(np.int64)
        stored = _take_rows(matrix, order)
        points = self._class_points(stored, starts)
        dense = self._dense(points)
        if not dense.all():
            points, stored = points.select(dense), stored[dense]
        self._warn_small(classes, points.sizes)
        scale = 1.0 if self.normalize else _spread(points.features)
        self._finish(classes, stored, points, scale)
        return self

    def distances(self, features: ArrayLike, predicted: ArrayLike) -> tuple[Floats, Floats, Array]:
        """Distances to the predicted class and to the nearest other one, squared if `squared`.

        Parameters
        ----------
        features : (n, d) array
        predicted : (n,) array
            Predicted labels, as in `classes_`.

        Returns
        -------
        own_distance : (n,) float64
            Infinite where the predicted class has no training points.
        other_distance : (n,) float64
            Infinite where there is no other class.
        other_class : (n,) array
            Label of the nearest other class, the first in `classes_` among equals. Where there is
            no other class, the only class itself.
        """
        self._require_fit()
        matrix = _as_matrix(features, "features")
        if matrix.shape[1] != self.n_features_in_:
            raise InputError(
                f"features must have the {self.n_features_in_} columns that TrustScore was fitted "
                f"with, got {matrix.shape[1]}. Pass features of the same layer of the same model."
            )
        codes = _class_codes(predicted, self.classes_, len(matrix))
        queries = Queries(matrix, row_scales(matrix, self.normalize), codes)
        is_long = len(matrix) * len(self._points.features) >= LONG_RUN
        wanted = None if is_long else False  # None: on a terminal
        with progress_bar("Trust scores", len(matrix), wanted=wanted) as advance:
            own_distance, other_distance, other_class = self._search.distances(queries, advance)
        if self.squared:
            own_distance, other_distance = own_distance**2, other_distance**2
        return own_distance, other_distance, self.classes_[np.maximum(other_class, 0)]

    def score(self, features: ArrayLike, predicted: ArrayLike) -> Floats:
        """Trust scores, (n,) float64; see the class for the formula and its special cases."""
        own_distance, other_distance, _ = self.distances(features, predicted)
        floor = DISTANCE_FLOOR * (self.scale_**2 if self.squared else self.scale_)
        # A single class has an infinite other distance; an infinite own distance gives 0.
        return np.minimum((other_distance + floor) / (own_distance + floor), LARGEST_SCORE)

    @property
    def training_features_(self) -> FloatArray:
        """The training features as they were passed, shape (m, d), in the order of the classes."""
        self._require_fit()
        return self._stored

    def to_state(self) -> dict[str, Any]:
        """State for `from_state`."""
        self._require_fit()
        return {
            "parameters": self.get_params(deep=False),
            "features": self._stored,
            "starts": self._points.starts,
            "classes": self.classes_,
            "scale": self.scale_,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild an object from `to_state`; its results are equal bit for bit."""
        self = cls(**state["parameters"])
        self._check_parameters()
        _check_state(state)
        stored = np.ascontiguousarray(state["features"])
        points = self._class_points(stored, state["starts"].astype(np.int64))
        self._finish(state["classes"], stored, points, float(state["scale"]))
        return self

    def _class_points(self, stored: FloatArray, starts: IndexArray) -> ClassPoints:
        """Points ready to search: the CPU's kernels need float32 where float16 is stored."""
        half = stored.dtype == np.float16
        wide = stored.astype(np.float32) if half and self.device == "cpu" else stored
        return ClassPoints(wide, row_scales(wide, self.normalize), starts)

    def _finish(
        self, classes: Array, stored: FloatArray, points: ClassPoints, scale: float
    ) -> None:
        """Build the search, then set every learned attribute: a failure leaves the old fit."""
        self._search = make_search(points, self.neighbour, self.device)
        self._points = points
        self._stored = stored
        self.classes_ = classes
        self.n_features_in_ = int(stored.shape[1])
        self.scale_ = scale

    def _dense(self, points: ClassPoints) -> NDArray[np.bool_]:
        r"""Mark the high-density points of each class.

        With :math:`r_k(x)` the radius of the smallest ball around `x` that holds `k` points of its
        class, `x` included, these are :math:`\{x : r_k(x) \le \epsilon\}` for the least
        :math:`\epsilon` that at most `filter_fraction` of the class exceeds.
        """
        dense = np.ones(len(points.features), bool)
        if self.filter_fraction == 0.0:
            return dense
        search = make_search(points, self.filter_neighbours, self.device)
        radii = search.own_distances(Queries(points.features, points.scale, points.codes))
        # As a decimal, not as a binary float: 29% of 100 points are 29, not 28.
        fraction = Fraction(repr(float(self.filter_fraction)))
        for start, size in zip(points.starts[:-1], points.sizes, strict=True):
            if size >= self.filter_neighbours:
                members = slice(start, start + size)
                last = int(size) - 1 - int(fraction * int(size))
                dense[members] = radii[members] <= np.partition(radii[members], last)[last]
        return dense

    def _require_fit(self) -> None:
        if not hasattr(self, "classes_"):
            from trustsets.errors import NotCalibratedError  # imports scikit-learn

            raise NotCalibratedError("TrustScore has no training points yet. Call fit first.")

    def _check_parameters(self) -> None:
        for name in ("neighbour", "filter_neighbours"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}.")
        if not 0.0 <= self.filter_fraction < 1.0:
            raise InputError(
                f"filter_fraction must be in [0, 1), got {self.filter_fraction!r}. "
                "It is the fraction of each class to drop; 0 drops nothing."
            )
        if not isinstance(self.device, str):
            raise InputError(
                f"device must be a string, got {self.device!r}. "
                'Use "cpu", or a torch device such as "cuda".'
            )

    def _warn_small(self, classes: Array, sizes: IndexArray) -> None:
        """Warn of classes with fewer training points than the neighbour asked for."""
        small = np.flatnonzero(sizes < self.neighbour)
        if len(small):
            warnings.warn(
                f"{len(small)} classes have fewer than neighbour={self.neighbour} training points "
                f"(first: {classes[small[0]]!r} with {sizes[small[0]]}); their farthest point is "
                "used instead. Lower neighbour, or add training points.",
                TrustSetsWarning,
                stacklevel=3,
            )


def _as_matrix(value: Any, name: str, half: bool = False) -> FloatArray:
    """Check a matrix of features; other numbers than floats become float64, exactly.

    float16 becomes float32, unless `half` lets it stay.
    """
    try:
        matrix = to_numpy(value, name)
        if matrix.dtype == np.float16:
            matrix = matrix if half else matrix.astype(np.float32)
        elif matrix.dtype != np.float32:
            matrix = matrix.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a matrix of numbers: {error}.") from error
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(
            f"{name} must be a matrix with at least one row and one column, got shape "
            f"{matrix.shape}. Pass one row per sample."
        )
    # One pass: any NaN, infinity or value too large to square makes the sum not finite.
    bad = np.flatnonzero(~np.isfinite(row_squares(matrix)))
    if len(bad):
        raise InputError(
            f"{name} must be finite with finite squared norms, but {len(bad)} rows are not (first: "
            f"row {bad[0]}). Remove or impute them, or scale the features down."
        )
    return np.ascontiguousarray(matrix)


def _as_labels(value: Any, length: int, name: str) -> NDArray[Any]:
    """Check a vector of labels; strings come as fixed-width unicode, so they store as such."""
    labels = to_numpy(value, name)
    if labels.dtype == object:
        text = all(isinstance(label, str) for label in labels.ravel())
        labels = labels.astype(str) if text else np.asarray(labels.tolist())
    if labels.ndim != 1 or len(labels) != length:
        raise InputError(
            f"{name} must be a vector with one label per row of features ({length}), got shape "
            f"{labels.shape}."
        )
    if labels.dtype.kind not in "biufU":
        raise InputError(f"{name} must hold numbers or strings, got {labels.dtype}.")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise InputError(f"{name} must not hold NaN. Remove the rows without a label.")
    return labels


def _class_codes(predicted: Any, classes: NDArray[Any], length: int) -> IndexArray:
    """Index of each label in `classes`, -1 for a label that is not there."""
    labels = _as_labels(predicted, length, "predicted")
    if (labels.dtype.kind == "U") != (classes.dtype.kind == "U"):
        raise InputError(
            f"predicted must be labels like those of fit ({classes.dtype}), got {labels.dtype}. "
            "Pass class labels, not positions."
        )
    codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[codes] == labels, codes, -1).astype(np.int64)


def _take_rows(features: FloatArray, order: IndexArray) -> FloatArray:
    """``features[order]``, copied by all cores."""
    taken = np.empty_like(features, order="C")

    def copy(rows: slice) -> None:
        taken[rows] = features[order[rows]]

    for_each_block(copy, *features.shape)
    return taken


def _spread(features: FloatArray) -> float:
    """Root mean square distance from the mean, or 1 where all points are equal.

    Six digits are stored: the others depend on the order of the sum, and the score should not
    depend on the order of the training points.
    """
    mean = features.mean(axis=0, dtype=np.float64)
    total = 0.0
    for start in range(0, len(features), BLOCK_ROWS):
        centred = features[start : start + BLOCK_ROWS] - mean
        total += float(np.einsum("ij,ij->", centred, centred))
    return float(f"{np.sqrt(total / len(features)):.6g}") or 1.0


def _check_state(state: dict[str, Any]) -> None:
    """Refuse training points that no fit gives; the search relies on every offset."""
    features, starts, classes = state["features"], state["starts"], state["classes"]
    require_numbers(features, "TrustScore.features", None, None)
    square = features.dtype.kind == "f" and np.isfinite(row_squares(features)).all()
    require(square, "TrustScore.features", "must hold real numbers with finite squares")
    require_numbers(starts, "TrustScore.starts", None)
    whole = starts.dtype.kind in "iu" and starts[0] == 0 and starts[-1] == len(features)
    require(whole, "TrustScore.starts", "must divide the features")
    require_increasing(starts.astype(np.int64), "TrustScore.starts", strictly=True)
    one_each = classes.ndim == 1 and classes.size + 1 == starts.size
    require(one_each, "TrustScore.classes", "must name each part of the features")
    names = classes.tolist()
    require(names == sorted(set(names)), "TrustScore.classes", "must be distinct and sorted")
    finite = isinstance(state["scale"], float | int) and 0.0 <= state["scale"] < np.inf
    require(finite, "TrustScore.scale", "must be a finite number, not negative")
