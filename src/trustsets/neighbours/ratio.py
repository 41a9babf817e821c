"""What every trust score shares: the ratio of two distances, and the checks before it.

Where the training points lie, and how they are searched, is up to the classes that follow.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from trustsets._common.arrays import Array, Floats
from trustsets._common.estimator import Estimator
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.neighbours.inputs import as_matrix, class_positions
from trustsets.neighbours.points import ClassDistances, IndexArray, Queries, row_scales

# Added to both distances (relative to the scale of the features): x/0 and 0/0 become numbers.
DISTANCE_FLOOR = 1e-12
# The score where there is no other class, and the most any score can be.
LARGEST_SCORE = 1e12
STORAGE_TYPES = (None, "float16", "float32", "float64")


class DistanceRatio(Estimator):
    """A score of predictions by the distances to the predicted and to the nearest other class."""

    normalize: bool
    neighbour: int
    squared: bool
    storage: str | None
    working_memory: int | None
    classes_: Array
    n_features_in_: int
    scale_: float

    @abstractmethod
    def _measure(self, queries: Queries) -> ClassDistances:
        """Distances from the queries to the classes of the training points."""

    @final
    def distances(self, features: ArrayLike, predicted: ArrayLike) -> tuple[Floats, Floats, Array]:
        """Distances to the predicted class and to the nearest other one, squared if so asked.

        Parameters
        ----------
        features : (n, d) array
        predicted : (n,) array
            Predicted labels, as in `classes_`.

        Returns
        -------
        own : (n,) float64
            Infinite where the predicted class has no training points.
        other : (n,) float64
            Infinite where there is no other class.
        other_class : (n,) array
            Label of the nearest other class, the first in `classes_` among equals. Where there is
            no other class, the only class itself.
        """
        found = self._measure(self._queries(features, predicted))
        own, other = found.own, found.other
        if self.squared:
            own, other = own**2, other**2
        return own, other, self.classes_[np.maximum(found.other_class, 0)]

    @final
    def score(self, features: ArrayLike, predicted: ArrayLike) -> Floats:
        """Trust scores, (n,) float64; see the class for the formula and its special cases."""
        own, other, _ = self.distances(features, predicted)
        floor = DISTANCE_FLOOR * (self.scale_**2 if self.squared else self.scale_)
        # A single class has an infinite other distance; an infinite own distance gives 0.
        return np.minimum((other + floor) / (own + floor), LARGEST_SCORE)

    def _queries(self, features: ArrayLike, predicted: ArrayLike) -> Queries:
        self._require_fit()
        matrix = as_matrix(features, "features")
        if matrix.shape[1] != self.n_features_in_:
            raise InputError(
                f"features must have the {self.n_features_in_} columns that {type(self).__name__} "
                f"was fitted with, got {matrix.shape[1]}. Pass features of the same layer of the "
                "same model."
            )
        own = class_positions(predicted, self.classes_, len(matrix))
        return Queries(matrix, row_scales(matrix, self.normalize), own)

    def _require_fit(self) -> None:
        if not hasattr(self, "classes_"):
            from trustsets.errors import NotCalibratedError

            raise NotCalibratedError(
                f"{type(self).__name__} has no training points yet. Call fit first."
            )

    @property
    def _memory(self) -> int | None:
        """Bytes of working memory."""
        return None if self.working_memory is None else self.working_memory * 2**20

    def _check_common(self, *whole: str) -> None:
        """Check the parameters that all have; those named `whole` are whole numbers, too."""
        names = ["neighbour", *whole]
        names += [] if self.working_memory is None else ["working_memory"]
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}.")
        if self.storage not in STORAGE_TYPES:
            raise InputError(f"storage must be one of {STORAGE_TYPES}, got {self.storage!r}.")

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
