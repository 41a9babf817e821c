r"""Thresholds of every candidate label, where the basis functions depend on the label.

The set of x holds each y with :math:`s(x, y)\le S^*(x, y)`. To decide that, few of the thresholds
are needed. Write W(g) for the largest value of :math:`g'b - \sum_i \ell_\alpha(s_i - \phi_i'b)`;
it is convex, and :math:`S^*` of a row q is its slope at :math:`u q` along q, with u = 1 - alpha.

- From below: the slope at 0 is the fitted value :math:`q'\beta_0`, and slopes increase.
- From above: for t > u, the slope at u is at most
  :math:`(W(tq) - W(uq)) / (t - u)`. There, :math:`W(uq)\ge W(0) + u\,q'\beta_0`. With a row a of
  the candidate at another sample and the difference d = q - a, which does not depend on the
  candidate where the basis is additive,
  :math:`W(tq)\le\theta W(ta/\theta) + (1-\theta) W(td/(1-\theta))`. Finally, because slopes
  increase, :math:`W(g)\le W(0) + g'(\beta(g/2) + \beta(g))/2\le W(0) + g'\beta(g)`. So the
  thresholds of some rows a for every candidate, and of one row d for every sample, bound those of
  all candidates of all samples.

A candidate whose score lies between the two bounds has its threshold computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats
from trustsets.basis import FittedBasis
from trustsets.engine import QuantileModel
from trustsets.outputs import ModelOutputs
from trustsets.predictors.problem import CalibrationProblem
from trustsets.status import Status, Thresholds

__all__ = ["CandidateRows", "LabelParts", "candidate_rows", "candidate_thresholds"]

Bools = NDArray[np.bool_]

# Where the bound is taken: t and theta of the module's formula.
_T, _THETA = 1.5, 0.7
# Samples whose rows stand for others, and the fewest samples and cells for which the bound is worth
# its cost: one path for each sample, and a longer one than those of the sample's cells.
_CENTRES = 40
_ROUNDS = 5
_FEWEST_SAMPLES = 200
_FEWEST_CELLS = 20
# Bounds are sums of a few rounded numbers. A score this close to one, in units of the largest
# calibration score or of the bound itself, is not decided by it.
_SLACK = 1e-9
# Numbers that are held at a time while centres are compared with rows.
_NUMBERS = 1 << 22


@final
@dataclass(frozen=True)
class LabelParts:
    """What is known where a basis is the sum of functions of the sample and of the label.

    Attributes
    ----------
    labels : (C, p) array
        The functions of the label for each cell, and zero in the other columns.
    varying : (p,) array
        Columns that depend on the label.
    centres : (J, p) array
        Rows of samples that stand for others, with any label. They must not depend on the samples
        at hand.
    column_sums : (2, p) array
        Sums of the positive values of each calibration column, and of the negative ones without
        their sign.
    """

    labels: Floats
    varying: Bools
    centres: Floats
    column_sums: Floats

    def relabel(self, rows: Floats, cells: Codes | int) -> Floats:
        """Return the rows with the labels of other cells."""
        return np.where(self.varying, self.labels[cells], rows)

    def are_infinite(self, alpha: float, weight: float) -> Bools:
        """Cells, shape (C,), whose thresholds are infinite at this weight for every sample.

        Along the ray of one coefficient j the loss grows by at most ``alpha`` times the sum of the
        positive values of column j and ``1 - alpha`` times that of the negative ones. If the weight
        of a new row gains more, there is no minimum: a class with so few calibration samples
        cannot balance a new one.
        """
        cost = alpha * self.column_sums[0] + (1.0 - alpha) * self.column_sums[1]
        return np.asarray((weight * self.labels > (1.0 + _SLACK) * cost).any(axis=1))

    def offsets(self, model: QuantileModel) -> Floats:
        """Fitted values of one sample with the label of each cell, shape (C,)."""
        rows = [self.relabel(self.centres[:1], cell) for cell in range(len(self.labels))]
        return np.concatenate([model.fitted(row) for row in rows])


@final
@dataclass(frozen=True)
class CandidateRows:
    """Rows phi(x, c) of m samples and C cells of classes.

    Attributes
    ----------
    rows : function
        Rows of all samples for one cell, shape (m, p).
    cells : (K,) array
        Cell of each class.
    scale : float
        Largest size of a calibration score.
    parts : LabelParts, optional
        For bases that are the sum of functions of the sample and of the label.
    """

    rows: Callable[[int], Floats]
    cells: Codes
    scale: float
    parts: LabelParts | None = None

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return int(self.cells.max()) + 1


def candidate_rows(
    problem: CalibrationProblem, basis: FittedBasis, outputs: ModelOutputs
) -> CandidateRows:
    """Rows of new samples with every candidate label."""
    cells = basis.class_cells(outputs.n_classes)
    codes = np.unique(cells, return_index=True)[1]

    def labelled(cell: int) -> Floats:
        return basis.design_for(outputs, np.full(len(outputs), codes[cell]))

    if not basis.is_additive:
        return CandidateRows(labelled, cells, problem.scale)
    # Functions of the label alone: any sample shows them.
    labels = basis.design_for(outputs.take(np.zeros(len(codes), np.int64)), codes)
    varying = (labels != labels[0]).any(axis=0)
    rows = labelled(0)
    fitted = np.vstack([problem.phi, problem.penalty, -problem.penalty])
    parts = LabelParts(
        labels=np.where(varying, labels, 0.0),
        varying=varying,
        centres=problem.phi[_spread_rows(problem.phi[:, ~varying])],
        column_sums=np.stack(
            [np.maximum(fitted, 0.0).sum(axis=0), np.maximum(-fitted, 0.0).sum(axis=0)]
        ),
    )
    return CandidateRows(lambda cell: parts.relabel(rows, cell), cells, problem.scale, parts)


def candidate_thresholds(
    model: QuantileModel, candidates: CandidateRows, scores: Floats
) -> Thresholds:
    """Numbers that divide the scores of all candidates as their thresholds do, with statuses.

    Parameters
    ----------
    model : QuantileModel
    candidates : CandidateRows
    scores : (m, K) array
        Scores of all classes.

    Returns
    -------
    Thresholds
        Of shape (m, C). The exact threshold where a class of the cell has a score between the lower
        bound and it; elsewhere the lower bound, which gives the same set, and status `EXACT`.
    """
    low = _fitted(model, candidates)
    low -= _rounding(low, candidates.scale)
    high = np.full(low.shape, np.inf)
    infinite = np.zeros(candidates.n_cells, np.bool_)
    if candidates.parts is not None:
        infinite = candidates.parts.are_infinite(model.alpha, 1.0 - model.alpha)
        if len(scores) >= _FEWEST_SAMPLES and candidates.n_cells >= _FEWEST_CELLS:
            high = _upper_bounds(model, candidates, low)
            high += 2.0 * _rounding(high, candidates.scale)
    status = np.full(low.shape, np.int8(Status.EXACT))
    # Where no calibration point shares a direction, the threshold is infinite.
    unseen = np.isinf(low)
    left = (_between(scores, low, high, candidates.cells) | unseen) & ~infinite
    values = low.copy()
    for cell in np.flatnonzero(left.any(axis=0)).tolist():
        index = np.flatnonzero(left[:, cell])
        exact = model.thresholds(candidates.rows(cell)[index])
        values[index, cell], status[index, cell] = exact.values, exact.status
    kept = left & (_between(scores, low, values, candidates.cells) | unseen)
    values, status = np.where(kept, values, low), np.where(kept, status, np.int8(Status.EXACT))
    values[:, infinite], status[:, infinite] = np.inf, Status.HIGH_LEVERAGE
    return Thresholds(values, status)


def _between(scores: Floats, low: Floats, high: Floats, cells: Codes) -> Bools:
    """Cells, shape (m, C), one of whose classes has a score above `low` and at most `high`."""
    out = np.empty(low.shape, np.bool_)
    for cell in range(low.shape[1]):
        own = scores[:, cells == cell]
        within = (own > low[:, cell, None]) & (own <= high[:, cell, None])
        out[:, cell] = within.any(axis=1)
    return out


def _fitted(model: QuantileModel, candidates: CandidateRows) -> Floats:
    """Fitted values of all samples and cells, shape (m, C); infinite for unseen directions."""
    if candidates.parts is None:
        own = [model.fitted(candidates.rows(cell)) for cell in range(candidates.n_cells)]
        return np.stack(own, axis=1)
    # The rows of two cells differ by the same vector for all samples.
    of_cells = candidates.parts.offsets(model)
    first = _seen_cell(of_cells)
    values = model.fitted(candidates.rows(first))
    if not np.isfinite(of_cells[first]):
        # There is no lower bound, and every threshold is computed.
        return np.full((len(values), len(of_cells)), -np.inf)
    return np.asarray(values[:, None] + (of_cells - of_cells[first]))


def _rounding(bounds: Floats, scale: float) -> Floats:
    """How far bounds may be off; it depends on no other sample. Infinite ones stay as they are."""
    size = np.where(np.isfinite(bounds), np.abs(bounds), 0.0)
    return _SLACK * np.maximum(size, scale)


def _seen_cell(values: Floats) -> int:
    """The first cell whose value is finite."""
    return int(np.argmax(np.isfinite(values)))


def _upper_bounds(model: QuantileModel, candidates: CandidateRows, low: Floats) -> Floats:
    """Bounds of the thresholds from above, shape (m, C); infinite where there is none."""
    parts = candidates.parts
    assert parts is not None
    weight = 1.0 - model.alpha
    first = _seen_cell(low.min(axis=0))
    rows, centres = candidates.rows(first), parts.relabel(parts.centres, first)
    near = _nearest(rows, centres)
    used = np.unique(near)
    of_centres = np.full((len(centres), candidates.n_cells), np.inf)
    finite = ~parts.are_infinite(model.alpha, _T / _THETA)
    # ``g'(beta(g / 2) + beta(g)) / 2`` for g = t a / theta: thresholds are those at g / u.
    factor = _T / _THETA / weight
    for cell in np.flatnonzero(finite).tolist():
        goals = factor * parts.relabel(centres[used], cell)
        half, whole = model.thresholds(0.5 * goals).values, model.thresholds(goals).values
        of_centres[used, cell] = weight * (half + 0.5 * whole)
    # ``g'beta(g)`` for g = t d / (1 - theta).
    goals = (_T / (1.0 - _THETA) / weight) * (rows - centres[near])
    of_samples = weight * model.thresholds(goals).values
    total = _THETA * of_centres[near] + (1.0 - _THETA) * of_samples[:, None] - weight * low
    bound = total / (_T - weight)
    return np.where(np.isnan(bound), np.inf, bound)


def _nearest(rows: Floats, centres: Floats) -> Codes:
    """Number of the centre nearest to each row, in units of the spread of the centres."""
    spread = centres.std(axis=0)
    unit = np.where(spread > 0.0, spread, 1.0)
    out = np.empty(len(rows), np.int64)
    step = max(1, _NUMBERS // max(centres.size, 1))
    for low in range(0, len(rows), step):
        gaps = (rows[low : low + step, None, :] - centres[None]) / unit
        out[low : low + step] = np.einsum("ijk,ijk->ij", gaps, gaps).argmin(axis=1)
    return out


def _spread_rows(rows: Floats) -> Codes:
    """Numbers of a few rows that are spread over all of them: means of clusters, nearly."""
    if rows.shape[1] == 0:
        return np.zeros(1, np.int64)
    spread = rows.std(axis=0)
    scaled = rows / np.where(spread > 0.0, spread, 1.0)
    centres = scaled[np.linspace(0, len(rows) - 1, min(_CENTRES, len(rows))).astype(np.int64)]
    for _ in range(_ROUNDS):
        near = _nearest(scaled, centres)
        size = np.bincount(near, minlength=len(centres))
        total = np.zeros_like(centres)
        np.add.at(total, near, scaled)
        centres = (total / np.maximum(size, 1)[:, None])[size > 0]
    return np.unique(_nearest(centres, scaled))
