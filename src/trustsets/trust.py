"""Trust scores: how much closer the predicted class is than any other."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trustsets._common.arrays import Array, Floats
from trustsets._common.progress import progress_bar
from trustsets._common.storage import require, require_increasing, require_numbers, storable
from trustsets.errors import InputError
from trustsets.neighbours.inputs import as_matrix, as_stored, class_codes
from trustsets.neighbours.points import (
    ClassDistances,
    ClassPoints,
    FloatArray,
    Queries,
    row_squares,
    search_points,
    sort_by_class,
    spread,
    squares_about,
    take_rows,
)
from trustsets.neighbours.ratio import DistanceRatio
from trustsets.neighbours.search import APPROXIMATIONS, Search, make_search

__all__ = ["TrustScore"]

# Pairs of rows from which a run is long enough to show its progress.
LONG_RUN = 10**10


@final
@storable
class TrustScore(DistanceRatio):
    r"""Distance to the nearest other class over the distance to the predicted class.

    With `d(x, c)` the distance from `x` to the `neighbour`-th nearest training point of class `c`
    and `y` the predicted class,

    .. math:: Trust(x, y) = \frac{\min_{c \ne y} d(x, c) + \epsilon}{d(x, y) + \epsilon}

    A large score says that the training data agree with the prediction. The distances are exact on
    every device; they do not depend on how queries are batched.

    Parameters
    ----------
    normalize : bool
        Divide each row by its Euclidean norm. A zero row has no direction and stays zero: it is at
        distance 1 from every other row.
    neighbour : int
        Which nearest point stands for a class. A class with fewer points is represented by its
        farthest one, with a warning when fitting.
    squared : bool
        Use squared distances. `TrustScore(neighbour=2, squared=True)` gives the numbers of the
        authors' runs of the paper.
    filter_fraction : float
        Drop up to this fraction of the points of each class: those with the largest distance to
        their `filter_neighbours`-th nearest point of the class, themselves included. Points tied
        with the last one kept are kept too.
    filter_neighbours : int
        See `filter_fraction`. Classes with fewer points are not filtered.
    device : str
        `"cpu"`, or a torch device such as `"cuda"` or `"cuda:1"`; `"torch:cpu"` runs the torch
        search on the CPU.
    storage : {None, "float16", "float32", "float64"}
        How the training features are kept and saved; None keeps the type they came in.
        `"float16"` halves a file and rounds the training features to about three digits.
    approximate : {None, "pca", "ivf"}
        For very large training sets. `"pca"` measures distances in the `components` leading
        principal directions. `"ivf"` looks for other classes in the `probes` nearest of a set of
        clusters; it needs FAISS (``pip install "trustsets[faiss]"``). How often the right other
        class is found is measured when fitting (`recall_`). Coverage guarantees hold for any
        function of the features, so an approximation can make sets larger, but not invalid.
    components : int
        Directions that `"pca"` keeps.
    probes : int
        Clusters that `"ivf"` visits.
    working_memory : int, optional
        MiB that a search may use besides the training points and the results; by default 256, and
        on a GPU a quarter of the free memory, at most 8192.
    progress : bool, optional
        Show a progress bar; by default only for long runs on a terminal.

    Attributes
    ----------
    classes_ : (K,) array
        Sorted class labels.
    n_features_in_ : int
    recall_ : float
        Share of a sample of training points for which the search names the nearest other class
        rightly: 1 when exact.
    scale_ : float
        Length in units of which :math:`\epsilon` is `1e-12`: 1 for normalised rows, else the root
        mean square distance of the training points from their mean, to six digits.

    Notes
    -----
    The score is always finite, increases with the other distance and decreases with the own one.
    A training point of the predicted class has own distance 0 and a score of about
    `other / 1e-12`. A point that two classes share scores 1. A predicted class without training
    points is infinitely far and scores 0. With a single class the other distance is infinite and
    the score is 1e12, the largest possible.

    Examples
    --------
    >>> import numpy as np
    >>> train = np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0]])
    >>> trust = TrustScore(normalize=False).fit(train, ["cat", "cat", "dog"])
    >>> trust.score([[1.0, 0.0], [1.0, 0.0]], ["cat", "dog"]).round(3)
    array([3.   , 0.333])
    >>> own, other, other_class = trust.distances([[1.0, 0.0]], ["cat"])
    >>> float(own[0]), float(other[0]), str(other_class[0])
    (1.0, 3.0, 'dog')
    """

    def __init__(
        self,
        normalize: bool = True,
        neighbour: int = 1,
        squared: bool = False,
        filter_fraction: float = 0.0,
        filter_neighbours: int = 10,
        device: str = "cpu",
        *,
        storage: str | None = None,
        approximate: str | None = None,
        components: int = 64,
        probes: int = 16,
        working_memory: int | None = None,
        progress: bool | None = None,
    ) -> None:
        self.normalize = normalize
        self.neighbour = neighbour
        self.squared = squared
        self.filter_fraction = filter_fraction
        self.filter_neighbours = filter_neighbours
        self.device = device
        self.storage = storage
        self.approximate = approximate
        self.components = components
        self.probes = probes
        self.working_memory = working_memory
        self.progress = progress

    def fit(self, features: ArrayLike, labels: ArrayLike) -> Self:
        """Store the training points, filtered as asked.

        Parameters
        ----------
        features : (m, d) array
            NumPy, pandas or torch; any float type.
        labels : (m,) array
            Class labels of any sortable type.
        """
        self._check_parameters()
        matrix = as_matrix(features, "features", half=True)
        classes, codes = class_codes(labels, len(matrix))
        order, starts = sort_by_class(codes, len(classes))
        stored = as_stored(take_rows(matrix, order), self.storage)
        points = search_points(stored, starts, self.normalize, self._widen)
        keep = self._dense(points)
        if not keep.all():
            points, stored = points.keep(keep), stored[keep]
        self._warn_small(classes, points.sizes)
        scale = 1.0
        if not self.normalize:
            mean = points.features.mean(axis=0, dtype=np.float64)
            scale = spread(squares_about(points.features, mean), len(points.features))
        self._set_up(classes, stored, points, scale)
        return self

    def to_state(self) -> dict[str, Any]:
        """State for `from_state`."""
        self._require_fit()
        return {
            "parameters": self.get_params(deep=False),
            "recall": self.recall_,
            "features": self._stored,
            "starts": self._points.starts,
            "classes": self.classes_,
            "scale": self.scale_,
            "reduction": self._reduction,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild an object from `to_state`; its results are equal bit for bit."""
        self = cls(**state["parameters"])
        self._check_parameters()
        _check_points(state)
        reduction = state["reduction"]
        stored = np.ascontiguousarray(state["features"])
        normalize = self.normalize and reduction is None
        starts = state["starts"].astype(np.int64)
        points = search_points(stored, starts, normalize, self._widen)
        self._finish(state["classes"], stored, points, float(state["scale"]), reduction)
        self.recall_ = float(state["recall"])
        return self

    @property
    def _widen(self) -> bool:
        """Whether the search needs float32; that of a GPU takes float16, in half the memory."""
        return self.device == "cpu" or self.approximate == "ivf"

    def _set_up(
        self, classes: Array, stored: FloatArray, points: ClassPoints, scale: float
    ) -> None:
        """Finish a fit: reduce or cluster when approximate, and measure the recall."""
        exact, reduction = points, None
        if self.approximate == "pca":
            from trustsets.neighbours.approximate import principal_reduction, reduce_rows

            reduction = principal_reduction(points, self.components)
            stored = as_stored(reduce_rows(points, *reduction), self.storage)
            points = search_points(stored, points.starts, False, self._widen)
        self._finish(classes, stored, points, scale, reduction)
        self.recall_ = 1.0
        if self.approximate is not None:
            from trustsets.neighbours.approximate import measured_recall

            truth = self._build_search(exact, exact=True)
            self.recall_ = measured_recall((truth, exact), (self._search, points))

    def _finish(
        self,
        classes: Array,
        stored: FloatArray,
        points: ClassPoints,
        scale: float,
        reduction: tuple[Floats, Floats] | None,
    ) -> None:
        """Build the search, then set every learned attribute: a failure leaves the old fit."""
        search = self._build_search(points)
        self._search = search
        self._points = points
        self._stored = stored
        self._reduction = reduction
        self.classes_ = classes
        self.n_features_in_ = int(stored.shape[1] if reduction is None else len(reduction[0]))
        self.scale_ = scale

    def _build_search(
        self, points: ClassPoints, neighbour: int | None = None, exact: bool = False
    ) -> Search:
        """Make the search that the parameters ask for."""
        wanted = self.neighbour if neighbour is None else neighbour
        probes = self.probes if self.approximate == "ivf" and not exact else None
        return make_search(points, wanted, self.device, probes, self._memory)

    def _dense(self, points: ClassPoints) -> NDArray[np.bool_]:
        r"""Mark the high-density points of each class.

        With :math:`r_k(x)` the radius of the smallest ball around `x` that holds `k` points of its
        class, `x` included, keep :math:`\{x : r_k(x) \le \epsilon\}` for the least
        :math:`\epsilon` that at most `filter_fraction` of the class exceeds.
        """
        keep = np.ones(len(points.features), bool)
        if self.filter_fraction == 0.0:
            return keep
        search = self._build_search(points, self.filter_neighbours, exact=True)
        radii = search.own_distances(Queries(points.features, points.scale, points.codes))
        # As a decimal, not as a binary float: 29% of 100 points are 29, not 28.
        fraction = Fraction(repr(float(self.filter_fraction)))
        for start, size in zip(points.starts[:-1], points.sizes, strict=True):
            if size >= self.filter_neighbours:
                members = slice(start, start + size)
                last = int(size) - 1 - int(fraction * int(size))
                keep[members] = radii[members] <= np.partition(radii[members], last)[last]
        return keep

    def _measure(self, queries: Queries) -> ClassDistances:
        if self._reduction is not None:
            from trustsets.neighbours.approximate import reduce_rows

            reduced = reduce_rows(queries, *self._reduction)
            queries = Queries(reduced, np.ones(len(reduced)), queries.own)
        long = len(queries.own) * len(self._points.features) >= LONG_RUN
        wanted = (None if long else False) if self.progress is None else self.progress
        with progress_bar("Trust scores", len(queries.own), wanted=wanted) as advance:
            return self._search.distances(queries, advance)

    def _check_parameters(self) -> None:
        self._check_common("filter_neighbours", "components", "probes")
        if not 0.0 <= self.filter_fraction < 1.0:
            raise InputError(
                f"filter_fraction must be in [0, 1), got {self.filter_fraction!r}. "
                "It is the fraction of each class to drop; 0 drops nothing."
            )
        if self.approximate not in APPROXIMATIONS:
            raise InputError(
                f"approximate must be one of {APPROXIMATIONS}, got {self.approximate!r}."
            )
        if not isinstance(self.device, str):
            raise InputError(
                f"device must be a string, got {self.device!r}. "
                'Use "cpu", or a torch device such as "cuda".'
            )


def _check_points(state: dict[str, Any]) -> None:
    """Refuse training points that no fit gives; the search relies on every offset."""
    features, starts, classes = state["features"], state["starts"], state["classes"]
    require_numbers(features, "TrustScore.features", None, None)
    square = features.dtype.kind == "f" and np.isfinite(row_squares(features)).all()
    require(square, "TrustScore.features", "must hold real numbers with finite squares")
    require_numbers(starts, "TrustScore.starts", None)
    whole = starts.dtype.kind in "iu" and starts[0] == 0 and starts[-1] == len(features)
    require(whole, "TrustScore.starts", "must divide the features")
    require_increasing(starts.astype(np.int64), "TrustScore.starts", strictly=True)
    known = classes.ndim == 1 and classes.size + 1 == starts.size
    require(known, "TrustScore.classes", "must name each part of the features")
    names = classes.tolist()
    require(names == sorted(set(names)), "TrustScore.classes", "must be distinct and sorted")
    for name, largest in (("scale", np.finfo(np.float64).max), ("recall", 1.0)):
        allowed = isinstance(state[name], float | int) and 0.0 <= state[name] <= largest
        require(allowed, f"TrustScore.{name}", "must be a finite number, not negative")
    if state["reduction"] is not None:
        mean, directions = state["reduction"]
        require_numbers(mean, "TrustScore.reduction", None)
        require_numbers(directions, "TrustScore.reduction", mean.size, features.shape[1])
