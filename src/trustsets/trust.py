"""Trust scores: how much closer the predicted class is than any other."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trustsets._arrays import Array, Floats, to_numpy
from trustsets._parameters import Positive, Share
from trustsets._progress import progress_bar
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.estimator import Estimator
from trustsets.neighbours import (
    BLOCK_ROWS,
    ClassPoints,
    FloatArray,
    IndexArray,
    Queries,
    make_search,
)
from trustsets.storage import require, require_numbers, storable

__all__ = ["DISTANCE_FLOOR", "LARGEST_SCORE", "TrustScore"]

# Added to both distances (relative to the scale of the features): x/0 and 0/0 become numbers.
DISTANCE_FLOOR = 1e-12
# The score where there is no other class, and the most any score can be.
LARGEST_SCORE = 1e12
# The radius of a point, by which `filter_fraction` drops points, is that to this neighbour.
FILTER_NEIGHBOURS = 10
# Pairs of rows from which a run is long enough to show its progress.
LONG_RUN = 10**10
# A row of a smaller norm counts as zero: 1 / norm could overflow.
ZERO_NORM = 1e-150


@final
@storable
class TrustScore(Estimator):
    """Distance to the nearest other class over the distance to the predicted class.

    With `d(x, c)` the distance from `x` to the `neighbour`-th nearest training point of class `c`
    and `y` the predicted class,

        Trust(x, y) = (min over c != y of d(x, c) + epsilon) / (d(x, y) + epsilon)

    A large score says that the training data agree with the prediction. The distances are exact on
    every device; they do not depend on how queries are batched.

    Parameters
    ----------
    neighbour : int
        Which nearest point stands for a class; the farthest one of a class with fewer points.
    squared : bool
        Use squared distances; with `neighbour=2`, as the authors' runs of the paper do.
    normalize : bool
        Divide each row by its Euclidean norm. A zero row stays zero, at distance 1 from all others.
    filter_fraction : float
        Drop up to this fraction of the points of each class: those with the largest distance to
        their 10th nearest point of the class, themselves included. Points tied with the last one
        that stays also stay; classes with fewer than 10 points are not filtered.
    device : str
        `"cpu"`, or a torch device such as `"cuda"` or `"cuda:1"`; `"torch:cpu"` runs the torch
        search on the CPU.

    Attributes
    ----------
    classes_ : (K,) array
        Sorted class labels.
    n_features_in_ : int
    scale_ : float
        Length in units of which `epsilon` is `1e-12`: 1 for normalised rows, else the root
        mean square distance of the training points from their mean, to six digits.

    Notes
    -----
    The score is always finite. A training point of the predicted class scores about
    `other / 1e-12`, a point that two classes share 1, and a predicted class without training points
    0. With a single class the score is 1e12, the largest possible.

    Training features are stored in the float type they come in: float16 halves a file.

    Examples
    --------
    >>> import numpy as np
    >>> train = np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0]])
    >>> trust = TrustScore(normalize=False).fit(train, ["cat", "cat", "dog"])
    >>> trust.score([[1.0, 0.0], [1.0, 0.0]], ["cat", "dog"]).round(3)
    array([3.   , 0.333])
    """

    classes_: Array
    n_features_in_: int
    scale_: float

    def __init__(
        self,
        *,
        neighbour: Positive = 1,
        squared: bool = False,
        normalize: bool = True,
        filter_fraction: Share = 0.0,
        device: str = "cpu",
    ) -> None:
        self.neighbour = neighbour
        self.squared = squared
        self.normalize = normalize
        self.filter_fraction = filter_fraction
        self.device = device

    def fit(self, features: ArrayLike, labels: ArrayLike) -> Self:
        """Store features (m, d) and labels (m,), without points that `filter_fraction` drops."""
        self.check_parameters()
        matrix, squares = _as_matrix(features)
        labels = _as_labels(labels, len(matrix), "labels")
        classes, codes = np.unique(labels, return_inverse=True)
        order = np.argsort(codes, kind="stable")
        codes, squares, stored = codes[order], squares[order], matrix[order]
        starts = np.searchsorted(codes, np.arange(len(classes) + 1))
        points = self._class_points(stored, squares, starts)
        if self.filter_fraction > 0.0:
            dense = self._dense(points)
            starts = np.searchsorted(codes[dense], np.arange(len(classes) + 1))
            stored = stored[dense]
            points = self._class_points(stored, squares[dense], starts)
        self._warn_small(classes, points.sizes)
        scale = 1.0 if self.normalize else _spread(points.features)
        self._finish(classes, stored, points, scale)
        return self

    def distances(self, features: ArrayLike, predicted: ArrayLike) -> tuple[Floats, Floats, Array]:
        """Distances of features (n, d) to the predicted class (n,) and to the nearest other one.

        They are squared if `squared`.

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
        if not hasattr(self, "classes_"):
            raise self.not_fitted()
        matrix, squares = _as_matrix(features)
        if matrix.shape[1] != self.n_features_in_:
            raise InputError(
                f"features must have the {self.n_features_in_} columns that TrustScore was fitted "
                f"with, got {matrix.shape[1]}. Pass features of the same layer of the same model."
            )
        labels, classes = _as_labels(predicted, len(matrix), "predicted"), self.classes_
        if (labels.dtype.kind == "U") != (classes.dtype.kind == "U"):
            raise InputError(
                f"predicted must be labels like those of fit ({classes.dtype}), got "
                f"{labels.dtype}. Pass class labels, not positions."
            )
        codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
        codes = np.where(classes[codes] == labels, codes, -1)
        queries = Queries(matrix, self._row_scales(squares), codes)
        if len(matrix) * len(self._stored) < LONG_RUN:
            own_distance, other_distance, other_class = self._search.distances(queries)
        else:
            with progress_bar("Trust scores", len(matrix)) as advance:
                own_distance, other_distance, other_class = self._search.distances(queries, advance)
        if self.squared:
            own_distance, other_distance = own_distance**2, other_distance**2
        return own_distance, other_distance, classes[np.maximum(other_class, 0)]

    def score(self, features: ArrayLike, predicted: ArrayLike) -> Floats:
        """Trust scores, (n,) float64; see the class for the formula and its special cases."""
        own_distance, other_distance, _ = self.distances(features, predicted)
        floor = DISTANCE_FLOOR * (self.scale_**2 if self.squared else self.scale_)
        # A single class has an infinite other distance; an infinite own distance gives 0.
        return np.minimum((other_distance + floor) / (own_distance + floor), LARGEST_SCORE)

    @property
    def training_features_(self) -> FloatArray:
        """The training features as they were passed, shape (m, d), in the order of the classes."""
        if not hasattr(self, "classes_"):
            raise self.not_fitted()
        return self._stored

    def to_state(self) -> dict[str, Any]:
        """State for `from_state`."""
        if not hasattr(self, "classes_"):
            raise self.not_fitted()
        return {
            "parameters": self.get_params(deep=False),
            "features": self._stored,
            "starts": self._starts,
            "classes": self.classes_,
            "scale": self.scale_,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild an object from `to_state`; its results are equal bit for bit."""
        self = cls(**state["parameters"])
        self.check_parameters()
        squares = _check_state(state)
        stored = np.ascontiguousarray(state["features"])
        points = self._class_points(stored, squares, state["starts"])
        self._finish(state["classes"], stored, points, float(state["scale"]))
        return self

    def _class_points(self, stored: FloatArray, squares: Floats, starts: Array) -> ClassPoints:
        """Points ready to search: the CPU's kernels need float32 where float16 is stored."""
        half = stored.dtype == np.float16
        wide = stored.astype(np.float32) if half and self.device == "cpu" else stored
        return ClassPoints(wide, self._row_scales(squares), starts.astype(np.int64))

    def _row_scales(self, squares: Floats) -> Floats:
        """Factor of rows with these squared norms: `1 / norm`, 0 for a zero row, or 1."""
        if not self.normalize:
            return np.ones(len(squares))
        norms = np.sqrt(squares)
        return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > ZERO_NORM)

    def _finish(
        self, classes: Array, stored: FloatArray, points: ClassPoints, scale: float
    ) -> None:
        """Build the search, then set every learned attribute: a failure leaves the old fit."""
        self._search = make_search(points, self.neighbour, self.device)
        self._stored, self._starts = stored, points.starts
        self.classes_ = classes
        self.n_features_in_ = int(stored.shape[1])
        self.scale_ = scale

    def _dense(self, points: ClassPoints) -> NDArray[np.bool_]:
        """Mark the high-density points of each class.

        With ``r_k(x)`` the radius of the smallest ball around `x` that holds `k` points of its
        class, `x` included, these are the x with ``r_k(x) <= epsilon`` for the least
        epsilon that at most `filter_fraction` of the class exceeds.
        """
        dense = np.ones(len(points.features), bool)
        search = make_search(points, FILTER_NEIGHBOURS, self.device)
        queries = Queries(points.features, points.scale, points.codes)
        radii = search.distances(queries, own_only=True).own_distance
        # As a decimal, not as a binary float: 29% of 100 points are 29, not 28.
        fraction = Fraction(repr(float(self.filter_fraction)))
        for start, size in zip(points.starts[:-1], points.sizes, strict=True):
            if size >= FILTER_NEIGHBOURS:
                members = slice(start, start + size)
                last = int(size) - 1 - int(fraction * int(size))
                dense[members] = radii[members] <= np.partition(radii[members], last)[last]
        return dense

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


def _as_matrix(value: Any) -> tuple[FloatArray, Floats]:
    """Check a matrix of features, and return it with the squared norm of each row."""
    try:
        matrix = value if type(value) is np.ndarray else to_numpy(value, "features")
        if matrix.dtype not in (np.float16, np.float32):
            matrix = matrix.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"features must be a matrix of numbers: {error}.") from error
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(
            f"features must be a matrix with at least one row and one column, got shape "
            f"{matrix.shape}. Pass one row per sample."
        )
    matrix = np.ascontiguousarray(matrix)
    squares = row_squares(matrix)
    # Any NaN, infinity or value too large to square makes the sum not finite.
    bad = np.flatnonzero(~np.isfinite(squares))
    if len(bad):
        raise InputError(
            f"features must be finite with finite squared norms, but {len(bad)} rows are not "
            f"(first: row {bad[0]}). Remove or impute them, or scale the features down."
        )
    return matrix, squares


def row_squares(features: FloatArray) -> Floats:
    """Squared norm of each row, summed along the row alone: it does not depend on the batch."""
    squares = np.empty(len(features))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(features), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            wide = features[block].astype(np.float64)
            np.einsum("ij,ij->i", wide, wide, out=squares[block])
    return squares


def _as_labels(value: Any, length: int, name: str) -> NDArray[Any]:
    """Check a vector of labels; strings come as fixed-width unicode, so they store as such."""
    labels = value if type(value) is np.ndarray else to_numpy(value, name)
    if labels.dtype.kind in "OT":
        labels = to_numpy(labels.tolist(), name)
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


def _spread(features: FloatArray) -> float:
    """Root mean square distance from the mean, or 1 where all points are equal."""
    mean = features.mean(axis=0, dtype=np.float64)
    total = 0.0
    for start in range(0, len(features), BLOCK_ROWS):
        centred = features[start : start + BLOCK_ROWS] - mean
        total += float(np.einsum("ij,ij->", centred, centred))
    # Six digits: the others depend on the order of the training points, and scores should not.
    return float(f"{np.sqrt(total / len(features)):.6g}") or 1.0


def _check_state(state: dict[str, Any]) -> Floats:
    """Refuse training points that no fit gives; return their squared norms."""
    features, starts, classes = state["features"], state["starts"], state["classes"]
    require_numbers(features, "TrustScore.features", None, None)
    squares = row_squares(features)
    square = features.dtype.kind == "f" and np.isfinite(squares).all()
    require(square, "TrustScore.features", "must hold real numbers with finite squares")
    require_numbers(starts, "TrustScore.starts", None)
    whole = starts.dtype.kind in "iu" and starts[0] == 0 and starts[-1] == len(features)
    require(whole, "TrustScore.starts", "must divide the features")
    in_order = (np.diff(starts.astype(np.int64)) > 0).all()
    require(in_order, "TrustScore.starts", "must be increasing")
    names = classes.tolist()
    one_each = classes.shape == (len(starts) - 1,) and names == sorted(set(names))
    require(one_each, "TrustScore.classes", "must name each part of the features, in order")
    finite = isinstance(state["scale"], float | int) and 0.0 <= state["scale"] < np.inf
    require(finite, "TrustScore.scale", "must be a finite number, not negative")
    return squares
