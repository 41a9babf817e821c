"""Thresholds of new samples, and the finite-sample quantiles that most of them are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.quantiles import conformal_quantile
from trustsets.status import Status

__all__ = ["SampleThresholds", "SizedThresholds", "quantile_table", "side_by_side"]


@final
@dataclass(frozen=True)
class SampleThresholds:
    """Thresholds and statuses of m samples at A alphas.

    Attributes
    ----------
    values : array of shape (m, A), or (m, K, A) where each class has a threshold of its own
    status : int8 array of shape (m, A)
    """

    values: Floats
    status: NDArray[np.int8]

    def of_cells(self, cells: Codes) -> Self:
        """Give each of m samples the row of its cell."""
        return type(self)(self.values[cells], self.status[cells])

    def of_classes(self, m: int) -> Self:
        """Give m samples all rows, one a class, and the worst of the statuses."""
        worst = self.status.max(axis=0)
        return type(self)(
            np.broadcast_to(self.values, (m, *self.values.shape)),
            np.broadcast_to(worst, (m, worst.size)),
        )


@final
@dataclass(frozen=True)
class SizedThresholds:
    """Thresholds of sets of limited size.

    Attributes
    ----------
    found : SampleThresholds
    alphas : array of shape (m,)
        What each set promises; 1 where it promises nothing.
    """

    found: SampleThresholds
    alphas: Floats


def quantile_table(cells: Iterable[Floats], alphas: tuple[float, ...]) -> SampleThresholds:
    """Finite-sample quantile and status of each of C cells at each alpha, both of shape (C, A).

    `cells` are the calibration scores of each cell, increasing.

    Examples
    --------
    >>> table = quantile_table([np.arange(9.0), np.arange(3.0), np.zeros(0)], (0.1,))
    >>> table.values[:, 0], [Status(code).name for code in table.status[:, 0]]
    (array([ 8., inf, inf]), ['EXACT', 'TOO_FEW_POINTS', 'UNSEEN_GROUP'])
    """
    found = list(cells)
    values = np.array([[conformal_quantile(own, alpha) for alpha in alphas] for own in found])
    status = np.where(np.isinf(values), Status.TOO_FEW_POINTS, Status.EXACT).astype(np.int8)
    status[[own.size == 0 for own in found]] = Status.UNSEEN_GROUP
    return SampleThresholds(values, status)


def side_by_side(
    found: Sequence[tuple[Floats, NDArray[np.int8]]], alphas: tuple[float, ...]
) -> SampleThresholds:
    """Thresholds and statuses of each alpha as columns.

    Quantile fits at different alphas may cross where data is sparse, and a smaller alpha must
    not give a smaller set. The larger threshold is taken, which can only add coverage.
    """
    values, status = (np.stack(columns, axis=-1) for columns in zip(*found, strict=True))
    order = np.argsort(alphas)[::-1]
    values[..., order] = np.maximum.accumulate(values[..., order], axis=-1)
    return SampleThresholds(values, status)
