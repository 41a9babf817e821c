"""The result of the engine: thresholds, each with a status."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trustsets.status import Status

__all__ = ["Thresholds", "blank_thresholds"]


@dataclass(frozen=True, slots=True, eq=False)
class Thresholds:
    """Thresholds of m test points.

    Attributes
    ----------
    values : (m,) float64 array
        ``S*`` of every point, infinite where no finite one is valid.
    status : (m,) int8 array
        A `trustsets.status.Status` per point.
    pivots : (m,) int64 array
        Number of vertices that the path of each point passed.

    Examples
    --------
    >>> import numpy as np
    >>> from trustsets.engine import fit_quantiles
    >>> model = fit_quantiles(np.ones((9, 1)), np.arange(9.0), alpha=0.1)
    >>> result = model.thresholds(np.array([[1.0], [2.0]]))
    >>> result.values
    array([ 8., inf])
    >>> result.counts()
    {<Status.EXACT: 0>: 1, <Status.HIGH_LEVERAGE: 2>: 1}
    """

    values: NDArray[np.float64]
    status: NDArray[np.int8]
    pivots: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def n_fallback(self) -> int:
        """Number of points that needed the slower linear program."""
        return int(np.sum(self.status == Status.FALLBACK))

    def counts(self) -> Mapping[Status, int]:
        """How many points ended in each status that occurs."""
        codes, numbers = np.unique(self.status, return_counts=True)
        return {Status(int(code)): int(n) for code, n in zip(codes, numbers, strict=True)}


def blank_thresholds(count: int) -> Thresholds:
    """Thresholds of `count` points, with arrays still to be filled."""
    return Thresholds(np.empty(count), np.empty(count, np.int8), np.empty(count, np.int64))
