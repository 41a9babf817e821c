r"""Thresholds of every candidate label, where the basis functions depend on the label.

The set of x holds each y with :math:`s(x, y)\le S^*(x, y)`. To decide that, few of the thresholds
are needed. Write W(g) for the largest value of :math:`g'b - \sum_i \ell_\alpha(s_i - \phi_i'b)`;
it is convex, and :math:`S^*` of a row q is its slope at :math:`u q` along q, with u = 1 - alpha.

- From below: the slope at 0 is the fitted value :math:`q'\beta_0`, and slopes increase.
- From above: for t > u, the slope at u is at most
  :math:`(W(tq) - W(uq)) / (t - u)`. There, :math:`W(uq)\ge W(0) + u\,q'\beta_0`. With a row a of
  the candidate at another sample and the difference d = q - a, which does not depend on the
  candidate where the basis is additive,
  :math:`W(tq)\le\theta W(ta/\theta) + (1-\theta) W(td/(1-\theta))`. Finally
  :math:`W(g)\le W(0) + g'\beta(g)`. So thresholds of some rows a for every candidate, and of one
  row d for every sample, bound those of all candidates of all samples.

A candidate whose score lies between the two bounds has its threshold computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets.engine import QuantileModel
from trustsets.status import Status

__all__ = ["CandidateRows", "candidate_thresholds"]

Bools = NDArray[np.bool_]

# Where the bound is taken: t and theta of the module's formula.
_T, _THETA = 1.5, 0.7
# Samples whose rows stand for others, and the fewest samples for which the bound is worth its cost.
_CENTRES = 40
_FEWEST_SAMPLES = 200
# Bounds are sums of a few rounded numbers; scores this close to one, in units of the largest
# number, are not decided by it.
_SLACK = 1e-9
# Rows whose thresholds are computed together.
_ROWS = 1 << 16


@final
@dataclass(frozen=True)
class CandidateRows:
    """Rows phi(x, c) of m samples and C cells of classes.

    Attributes
    ----------
    rows : function
        Rows of the samples (an index array) for one cell, shape (len, p).
    cells : (K,) array
        Cell of each class.
    n_samples : int
    additive : bool
        Whether rows of two samples differ by the same vector in every cell.
    centres : function
        Rows of the samples that stand for others, for one cell, shape (J, p); they must not depend
        on the samples at hand.
    """

    rows: Callable[[Codes, int], Floats]
    cells: Codes
    n_samples: int
    additive: bool
    centres: Callable[[int], Floats]

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return int(self.cells.max()) + 1


def candidate_thresholds(
    model: QuantileModel, candidates: CandidateRows, scores: Floats
) -> tuple[Floats, NDArray[np.int8], float]:
    """Thresholds of all cells that give the exact sets, with statuses.

    Parameters
    ----------
    model : QuantileModel
    candidates : CandidateRows
    scores : (m, K) array
        Scores of all classes.

    Returns
    -------
    thresholds : (m, C) array
        The exact threshold where a class of the cell has a score between the fitted value and it,
        and the fitted value elsewhere: the set is the same.
    status : (m, C) array
        Of the thresholds that were computed; `EXACT` elsewhere.
    share : float
        Share of cells decided without computing their threshold.
    """
    everyone = np.arange(candidates.n_samples)
    low = _fitted(model, candidates)
    high = np.full(low.shape, np.inf)
    if candidates.additive and candidates.n_samples >= _FEWEST_SAMPLES:
        high = _upper_bounds(model, candidates, low)
    slack = _SLACK * max(1.0, float(np.abs(scores).max(initial=0.0)))
    status = np.full(low.shape, np.int8(Status.EXACT))
    computed = 0
    for cell in range(candidates.n_cells):
        own = scores[:, candidates.cells == cell]
        bottom, top = low[:, cell, None], high[:, cell, None]
        open_ = ((own > bottom - slack) & (own <= top + slack)).any(axis=1) | np.isinf(bottom[:, 0])
        for part in np.array_split(everyone[open_], -(-int(open_.sum()) // _ROWS) or 1):
            found = model.thresholds(candidates.rows(part, cell))
            needed = (own[part] > bottom[part]) & (own[part] <= found.values[:, None])
            keep = needed.any(axis=1) | np.isinf(bottom[part, 0])
            low[part[keep], cell] = found.values[keep]
            status[part[keep], cell] = found.status[keep]
            computed += len(part)
    return low, status, 1.0 - computed / max(low.size, 1)


def _fitted(model: QuantileModel, candidates: CandidateRows) -> Floats:
    """Fitted values of all samples and cells, shape (m, C); infinite for unseen directions."""
    everyone = np.arange(candidates.n_samples)
    if not candidates.additive:
        own = [model.fitted(candidates.rows(everyone, cell)) for cell in range(candidates.n_cells)]
        return np.stack(own, axis=1)
    # One row of a cell differs from that of the first cell by the same vector for all samples.
    base = [candidates.centres(cell)[:1] for cell in range(candidates.n_cells)]
    of_cell = np.concatenate([model.fitted(row) for row in base])
    first = int(np.argmax(np.isfinite(of_cell)))
    values = model.fitted(candidates.rows(everyone, first))
    return np.asarray(values[:, None] + (of_cell - of_cell[first]))


def _upper_bounds(model: QuantileModel, candidates: CandidateRows, low: Floats) -> Floats:
    """Bounds of the thresholds from above, shape (m, C); infinite where there is none."""
    everyone, weight = np.arange(candidates.n_samples), 1.0 - model.alpha
    first = int(np.argmax(np.isfinite(low[0]))) if len(low) else 0
    rows, centres = candidates.rows(everyone, first), candidates.centres(first)
    near = _nearest(rows, centres)

    def gain(goal: Floats) -> Floats:
        """``g'beta(g)``: a threshold of the row g / u, times u."""
        return np.asarray(weight * model.thresholds(goal / weight).values)

    used = np.unique(near)
    of_centres = np.full((len(centres), candidates.n_cells), np.inf)
    for cell in range(candidates.n_cells):
        of_centres[used, cell] = gain((_T / _THETA) * candidates.centres(cell)[used])
    of_samples = gain((_T / (1.0 - _THETA)) * (rows - centres[near]))
    total = _THETA * of_centres[near] + (1.0 - _THETA) * of_samples[:, None] - weight * low
    bound = total / (_T - weight)
    return np.where(np.isnan(bound), np.inf, bound)


def _nearest(rows: Floats, centres: Floats) -> Codes:
    """Number of the centre nearest to each row, columns in units of their spread."""
    spread = centres.std(axis=0)
    scaled = centres / np.where(spread > 0.0, spread, 1.0)
    out = np.empty(len(rows), np.int64)
    for low in range(0, len(rows), 4096):
        part = rows[low : low + 4096] / np.where(spread > 0.0, spread, 1.0)
        gaps = part[:, None, :] - scaled[None]
        out[low : low + 4096] = np.einsum("ijk,ijk->ij", gaps, gaps).argmin(axis=1)
    return out


def spread_rows(rows: Floats, count: int = _CENTRES) -> Codes:
    """Numbers of rows that are spread evenly over all of them (k-means, deterministic)."""
    from scipy.cluster.vq import kmeans2

    spread = rows.std(axis=0)
    scaled = rows / np.where(spread > 0.0, spread, 1.0)
    count = min(count, len(np.unique(scaled, axis=0)))
    centres, _ = kmeans2(scaled, count, minit="++", seed=0)
    gaps = [np.einsum("ij,ij->i", scaled - own, scaled - own).argmin() for own in centres]
    return np.unique(np.array(gaps, np.int64))
