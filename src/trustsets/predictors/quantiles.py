"""Thresholds that are quantiles of calibration scores, and the fit behind one threshold."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self, final

import numpy as np

from trustsets._arrays import Codes, Floats
from trustsets._quantiles import conformal_quantile, conformal_rank
from trustsets.status import Status, Thresholds

if TYPE_CHECKING:
    # The engine compiles; predictors of plain quantiles do not wait for it.
    from trustsets.engine import QuantileModel, ScorePath, Sensitivity, ThresholdProof

# Sums of weights are rounded; thresholds may only err upwards in what follows from them.
_SUM_TOL = 1e-12

__all__ = [
    "QuantileFit",
    "class_thresholds",
    "leave_one_out_quantiles",
    "quantile_thresholds",
    "weighted_cell_thresholds",
    "weighted_quantiles",
]


def quantile_thresholds(cells: Iterable[Floats], alphas: tuple[float, ...]) -> Thresholds:
    """Finite-sample quantile and status of each of C cells at each alpha, both of shape (C, A).

    `cells` are the calibration scores of each cell, increasing.

    Examples
    --------
    >>> table = quantile_thresholds([np.arange(9.0), np.arange(3.0), np.zeros(0)], (0.1,))
    >>> table.values[:, 0], [Status(code).name for code in table.status[:, 0]]
    (array([ 8., inf, inf]), ['EXACT', 'TOO_FEW_POINTS', 'UNSEEN_GROUP'])
    """
    scores = list(cells)
    values = np.array([[conformal_quantile(cell, alpha) for alpha in alphas] for cell in scores])
    status = np.where(np.isinf(values), Status.TOO_FEW_POINTS, Status.EXACT).astype(np.int8)
    status[[cell.size == 0 for cell in scores]] = Status.UNSEEN_GROUP
    return Thresholds(values, status)


def class_thresholds(table: Thresholds, m: int) -> Thresholds:
    """Give m samples all rows of a table, one a class, and the worst of the statuses."""
    worst = table.status.max(axis=0)
    return Thresholds(
        np.broadcast_to(table.values, (m, *table.values.shape)),
        np.broadcast_to(worst, (m, worst.size)),
    )


def leave_one_out_quantiles(scores: Floats, cells: Codes, alphas: tuple[float, ...]) -> Thresholds:
    """Quantile of the other scores of each sample's cell and its status, both of shape (n, A).

    Examples
    --------
    >>> scores, cells = np.array([3.0, 1.0, 2.0, 7.0]), np.array([0, 0, 0, 1])
    >>> thresholds = leave_one_out_quantiles(scores, cells, (0.5,))
    >>> thresholds.values[:, 0], [Status(code).name for code in thresholds.status[:, 0]]
    (array([ 2.,  3.,  3., inf]), ['EXACT', 'EXACT', 'EXACT', 'UNSEEN_GROUP'])
    """
    values = np.full((len(scores), len(alphas)), np.inf)
    status = np.full(values.shape, np.int8(Status.UNSEEN_GROUP))
    order = np.argsort(cells, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(cells[order])) + 1):
        others, ordered = len(members) - 1, np.sort(scores[members])
        for number, alpha in enumerate(alphas):
            rank = conformal_rank(others, alpha)
            if rank <= others:
                # Without one of the first `rank` scores, the next one takes the last rank.
                is_early = scores[members] <= ordered[rank - 1]
                values[members, number] = np.where(is_early, ordered[rank], ordered[rank - 1])
            if others:
                enough = Status.EXACT if rank <= others else Status.TOO_FEW_POINTS
                status[members, number] = np.int8(enough)
    return Thresholds(values, status)


def weighted_quantiles(
    scores: Floats, weights: Floats, new: Floats, alphas: tuple[float, ...]
) -> Floats:
    r"""Smallest score up to which the weights reach :math:`(1-\alpha)(\sum_i w_i + w)`.

    Parameters
    ----------
    scores, weights : (n,) arrays
        Calibration scores in increasing order, and their weights.
    new : (K,) array
        Weights that the new sample may have.
    alphas : tuple of A floats

    Returns
    -------
    (K, A) array

    Examples
    --------
    >>> scores = np.arange(9.0)
    >>> weighted_quantiles(scores, np.ones(9), np.array([1.0, 2.0]), (0.1, 0.3))[:, 1]
    array([6., 7.])
    """
    total = np.cumsum(weights)
    if not total.size or total[-1] <= 0.0:
        return np.full((new.size, len(alphas)), np.inf)
    goals = (total[-1] + new)[:, None] * (1.0 - np.array(alphas))
    places = np.searchsorted(total, goals * (1.0 - _SUM_TOL))
    return np.asarray(np.append(scores, np.inf)[places])


def weighted_cell_thresholds(
    scores: Floats,
    cells: Codes,
    weights: Floats,
    new_cells: Codes,
    new_weights: Floats,
    alphas: tuple[float, ...],
) -> Thresholds:
    """Weighted quantiles within cells, of shape (m, A), or (m, K, A) for weights of candidates.

    `new_weights` has shape (m, 1), or (1, K) where the weight depends on the candidate class.
    """
    m = len(new_cells)
    by_class = len(new_weights) == 1 and (m > 1 or new_weights.shape[1] > 1)
    shape = (m, new_weights.shape[1], len(alphas)) if by_class else (m, len(alphas))
    values, is_seen = np.full(shape, np.inf), np.zeros(m, dtype=bool)
    for cell in np.unique(new_cells[new_cells >= 0]):
        samples, members = np.flatnonzero(new_cells == cell), np.flatnonzero(cells == cell)
        order = members[np.argsort(scores[members], kind="stable")]
        new = new_weights[0] if by_class else new_weights[samples, 0]
        values[samples] = weighted_quantiles(scores[order], weights[order], new, alphas)
        is_seen[samples] = members.size > 0
    infinite = np.isinf(values).any(axis=1) if by_class else np.isinf(values)
    reason = Status.TOO_FEW_POINTS if by_class else Status.HIGH_LEVERAGE
    status = np.where(infinite, reason, Status.EXACT).astype(np.int8)
    status[~is_seen] = Status.UNSEEN_GROUP
    return Thresholds(values, status)


@final
@dataclass(frozen=True, eq=False)
class QuantileFit:
    """A fit over calibration samples and, after them, points that stand for penalties.

    Attributes
    ----------
    phi, scores : arrays of shape (n, p) and (n,)
        Basis functions and scores of the points.
    alpha : float
    row : array of shape (p,)
        Basis functions of the new sample.
    weight : float
        Weight of the new sample.
    """

    phi: Floats
    scores: Floats
    alpha: float
    row: Floats
    weight: float

    @classmethod
    def of_constant(cls, scores: Floats, alpha: float) -> Self:
        """The fit whose threshold is the finite-sample quantile of the scores."""
        return cls(np.ones((len(scores), 1)), scores, alpha, np.ones(1), 1.0 - alpha)

    @cached_property
    def model(self) -> "QuantileModel":
        """The fit at weight 0, which all samples share."""
        from trustsets.engine import fit_quantiles

        return fit_quantiles(self.phi, self.scores, alpha=self.alpha)

    @cached_property
    def proof(self) -> "ThresholdProof":
        """The threshold of the row, with the numbers that prove it."""
        from trustsets.engine import ThresholdProof, prove_threshold

        if len(self.phi):
            return prove_threshold(self.model, self.row, self.weight)
        none = np.empty(0, np.int64)
        return ThresholdProof(np.inf, self.weight, none, none, np.empty(0), self.row)

    @cached_property
    def sensitivity(self) -> "Sensitivity | None":
        """How the threshold depends on scores; None where it is infinite, whatever they are."""
        from trustsets.engine import Sensitivity

        if not np.isfinite(self.proof.threshold):
            return None
        return Sensitivity(self.model, self.row, self.proof)

    def path(self, point: int) -> "ScorePath":
        """The threshold as a function of the score of one point."""
        from trustsets.engine import ScorePath

        if self.sensitivity is None:
            return ScorePath(np.zeros(1), np.array([self.proof.threshold]), (0.0, 0.0))
        path = self.sensitivity.path(point)
        # Thresholds are rounded up, so that a class whose score equals one stays in the set.
        return path.shifted(self.proof.threshold - float(path.at(self.scores[[point]])[0]))
