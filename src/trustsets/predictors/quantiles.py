"""Thresholds from calibration scores: quantiles of cells, and quantile fits of a function class.

1. Quantiles of the scores of each cell, plain or weighted, for split conformal predictors.
2. `CalibrationProblem`: the quantile fits of a function class, and the thresholds they give.
3. Thresholds of every candidate label, where basis functions depend on the label.
4. `QuantileFit`: the fit behind one threshold, for explanations and certificates.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats, read_only
from trustsets._blocks import one_blas_thread
from trustsets._parameters import Alphas
from trustsets.basis import FittedBasis
from trustsets.engine import (
    QuantileModel,
    QuantileProcess,
    ScorePath,
    Sensitivity,
    ThresholdProof,
    fit_quantile_process,
    fit_quantiles,
    prove_threshold,
)
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.scores import conformal_quantile, conformal_rank
from trustsets.status import IS_INFINITE, Status, Thresholds

Bools = NDArray[np.bool_]

# Sums of weights are rounded; thresholds may only err upwards in what follows from them.
_SUM_TOL = 1e-12
# The fit that limits thresholds from above: its alpha and its group penalty, both in units of those
# of the fit that limits them from below. A smaller alpha or penalty gives more full sets; larger
# ones give less coverage to small groups that are hard.
UPPER_ALPHA = 0.25
UPPER_PENALTY = 2.0
# Alphas up to this number are fitted one by one, and as many fits are kept as the second says: each
# holds landmarks of some megabytes.
_FEW_ALPHAS = 8
_MOST_FITS = 24


# 1. Quantiles of cells.


def quantile_thresholds(cells: Iterable[Floats], alphas: Alphas) -> Thresholds:
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
    """Give m samples all rows of a table, one per class, and the worst of the statuses."""
    worst = worst_status(table.status[None])
    return Thresholds(
        np.broadcast_to(table.values, (m, *table.values.shape)),
        np.broadcast_to(worst, (m, worst.size)),
    )


def worst_status(status: NDArray[np.int8]) -> NDArray[np.int8]:
    """The status of each sample, shape (m,), from those of its classes, shape (m, K).

    That of an infinite threshold comes first. Further axes, such as one of alphas, stay.
    """
    infinite = np.where(IS_INFINITE[status], status, 0).max(axis=1)
    return np.asarray(np.where(infinite > 0, infinite, status.max(axis=1)), np.int8)


def quantile_p_values(cell_scores: Floats, scores: Floats) -> Floats:
    """P-values ``(1 + #{s_i >= s}) / (n + 1)`` of scores, from n increasing calibration scores.

    A score is at most the finite-sample quantile at alpha exactly if its p-value exceeds alpha.
    """
    above = cell_scores.size - np.searchsorted(cell_scores, scores, side="left")
    return np.asarray((1.0 + above) / (cell_scores.size + 1.0))


def leave_one_out_quantiles(scores: Floats, cells: Codes, alphas: Alphas) -> Thresholds:
    """Quantile of the other scores of each sample's cell and its status, both of shape (n, A).

    Samples of no cell, whose number is -1, have infinite ones.
    """
    values = np.full((len(scores), len(alphas)), np.inf)
    status = np.full(values.shape, np.int8(Status.UNSEEN_GROUP))
    order = np.argsort(cells, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(cells[order])) + 1):
        others, ordered = len(members) - 1, np.sort(scores[members])
        if cells[members[0]] < 0:
            continue
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


def weighted_quantiles(scores: Floats, weights: Floats, new: Floats, alphas: Alphas) -> Floats:
    """Smallest score up to which the weights reach ``(1 - alpha) (sum_i w_i + w)``.

    `scores` of shape (n,) increase, and have `weights`. `new` are K weights that the new sample may
    have; the result has shape (K, A).
    """
    total = np.cumsum(weights)
    if not total.size or total[-1] <= 0.0:
        return np.full((new.size, len(alphas)), np.inf)
    goals = (total[-1] + new)[:, None] * (1.0 - np.array(alphas))
    ranks = np.searchsorted(total, goals * (1.0 - _SUM_TOL))
    return np.asarray(np.append(scores, np.inf)[ranks])


# 2. Fits of a function class.


@final
class CalibrationProblem:
    """Calibration points of a function class, and the fits made of them so far.

    A fit adds ``|w' beta|`` to its loss for each row w of `penalty` (q, p). Rows of `group_penalty`
    count only in the two fits which limit the thresholds; without them thresholds are not limited.
    `ties` order points with equal rows and scores, and `starts` are those of `all_starts`.
    """

    def __init__(
        self,
        phi: Floats,
        scores: Floats,
        penalty: Floats,
        group_penalty: Floats | None,
        *,
        ties: tuple[Floats | Codes, ...] = (),
        uses_label: bool = False,
        starts: tuple[tuple[float, float, Codes], ...] = (),
    ) -> None:
        # Sorted, so that a fit cannot depend on the order in which the samples came.
        self.order = np.lexsort((*ties, *phi.T, scores))
        self.phi, self.scores = read_only(phi[self.order]), read_only(scores[self.order])
        self.penalty, self.group_penalty = penalty, group_penalty
        self.uses_label, self.starts = uses_label, starts
        # Factors of alpha and of the group penalty: the plain fit, the lower and the upper one.
        self.limits = [(1.0, 0.0)]
        if group_penalty is not None:
            self.limits += [(1.0, 1.0), (UPPER_ALPHA, UPPER_PENALTY)]
        self._fits: dict[tuple[Any, ...], QuantileModel] = {}
        self._processes: dict[float, QuantileProcess] = {}
        self._lock = Lock()  # of `_fits`: threads may share a predictor

    def weighted(self, weights: Floats) -> Self:
        """The problem with a weight for each sample, in the order of the samples."""
        # w loss(r) = loss(w r) for w >= 0: rows and scores are scaled, in the same order.
        other, weights = type(self).__new__(type(self)), weights[self.order]
        vars(other).update(vars(self))
        other.phi = read_only(self.phi * weights[:, None])
        other.scores = read_only(self.scores * weights)
        other.starts, other._fits, other._processes, other._lock = (), {}, {}, Lock()
        vars(other).pop("scale", None)
        return other

    @cached_property
    def scale(self) -> float:
        """Largest size of a calibration score."""
        return float(np.abs(self.scores).max())

    def points(self, multiple: float) -> tuple[Floats, Floats]:
        """Rows and scores of the calibration points and of those that stand for penalties."""
        # |w'beta| is the loss of two points of score 0 and rows w and -w: the losses of a
        # residual r and of -r add up to |r|. A penalised fit is a fit with more points.
        penalty = self.penalty
        if multiple and self.group_penalty is not None:
            penalty = np.vstack([penalty, multiple * self.group_penalty])
        if not len(penalty):
            return self.phi, self.scores
        rows = np.vstack([self.phi, penalty, -penalty])
        return rows, np.concatenate([self.scores, np.zeros(2 * len(penalty))])

    def fit(self, alpha: float, multiple: float = 0.0) -> QuantileModel:
        """Fit the 1 - alpha quantile, with this multiple of the group penalty; made once."""
        model = self._fits.get((alpha, multiple))
        if model is None:
            process = self._processes.get(multiple)
            if process is not None and alpha in process.alphas:
                model = process.at(alpha)
            else:
                model = self._fit_from_start(alpha, multiple)
            self._keep((alpha, multiple), model)
        return model

    def _keep(self, key: tuple[Any, ...], model: QuantileModel) -> None:
        """Keep a fit, and drop the oldest ones where there are too many."""
        with self._lock:
            while len(self._fits) >= _MOST_FITS:
                del self._fits[next(iter(self._fits))]
            self._fits[key] = model

    @one_blas_thread
    def _fit_from_start(self, alpha: float, multiple: float) -> QuantileModel:
        """Fit from stored basic points, if they are optimal, or from a fit at another alpha.

        The result is bitwise identical to that of a search from the beginning.
        """
        for start_alpha, start_multiple, basic in self.starts:
            if (start_alpha, start_multiple) == (alpha, multiple):
                try:
                    model = fit_quantiles(*self.points(multiple), alpha=alpha, start=basic)
                except InputError:  # not those of this problem
                    break
                if model.certificate.holds and model.certificate.pivots == 0:
                    return model
        with self._lock:
            others = [model for key, model in self._fits.items() if key[1:] == (multiple,)]
        if others:
            near = min(others, key=lambda other: abs(other.alpha - alpha)).at(alpha)
            if near is not None:
                return near
        return fit_quantiles(*self.points(multiple), alpha=alpha)

    def all_starts(self) -> tuple[tuple[float, float, Codes], ...]:
        """Basic points of all fits, which save a loaded predictor the search."""
        starts: dict[Any, Codes] = {
            (alpha, multiple): basic for alpha, multiple, basic in self.starts
        }
        for key, model in self._fits.items():
            if isinstance(key, tuple) and isinstance(key[0], float):  # a fit at one alpha
                starts[key] = model.basic_points
        return tuple((*key, basic) for key, basic in starts.items())

    def prepare(self, alpha: float) -> list[QuantileModel]:
        """Make the fit at alpha and, where thresholds are limited, the lower and the upper one."""
        return [self.fit(factor * alpha, multiple) for factor, multiple in self.limits]

    @one_blas_thread
    def prepare_along(self, alphas: Alphas) -> list[QuantileProcess]:
        """The fits of `limits` along many alphas, for a fraction of the time of single fits.

        The last ones are kept; other threads may replace them at any time.
        """
        grid, processes = np.unique(alphas), []
        for factor, multiple in self.limits:
            process = self._processes.get(multiple)
            if process is None or not np.array_equal(process.alphas, factor * grid):
                rows, scores = self.points(multiple)
                process = fit_quantile_process(rows, scores, factor * grid)
                self._processes[multiple] = process
            processes.append(process)
        return processes

    def fits_along(self, alphas: Alphas) -> Iterator[list[QuantileModel]]:
        """What `prepare` gives at each alpha. Where there are many, none of them is kept."""
        if len(alphas) <= _FEW_ALPHAS:
            yield from map(self.prepare, alphas)
            return
        processes = self.prepare_along(alphas)
        for alpha in alphas:
            pairs = zip(processes, self.limits, strict=True)
            yield [process.at(factor * alpha) for process, (factor, _) in pairs]

    def thresholds(self, phi: Floats, alphas: Alphas, draws: Floats | None = None) -> Thresholds:
        """Thresholds of new samples with these rows, shape (m, A); with random weights U - alpha.

        Random ones are not limited: they would cover more than exactly 1 - alpha.
        """
        limits = self.limits if draws is None else self.limits[:1]
        if len(alphas) > _FEW_ALPHAS:
            return self._many_thresholds(phi, alphas, 1.0 if draws is None else draws, len(limits))
        parts = []
        for alpha in alphas:
            results = []
            for factor, multiple in limits:
                model = self.fit(factor * alpha, multiple)
                weight = None if draws is None else draws - model.alpha
                results.append(model.thresholds(phi, weight))
            parts.append(results[0] if len(limits) == 1 else limited(results))
        return nested_thresholds(parts, alphas)

    def _many_thresholds(self, phi: Floats, alphas: Alphas, share: Any, n_fits: int) -> Thresholds:
        """The same for many alphas, which share most of the work."""
        # A process has each alpha once, in increasing order.
        numbers = np.searchsorted(np.unique(alphas), alphas)
        made = self.prepare_along(alphas)[:n_fits]
        processes = [process.thresholds(phi, share) for process in made]
        parts = [limited(list(results)) for results in zip(*processes, strict=True)]
        return nested_thresholds([parts[number] for number in numbers], alphas)

    def leave_one_out(self, alphas: Alphas, draws: Floats | None) -> Thresholds:
        """Thresholds of the calibration samples, each without itself, in their given order."""
        points, parts = np.arange(len(self.phi)), []
        for models in self.fits_along(alphas):
            if draws is None:
                parts.append(limited([model.leave_one_out(points) for model in models]))
            else:
                # As for new samples, random thresholds are not limited.
                weight = draws[self.order] - models[0].alpha
                parts.append(models[0].leave_one_out(points, weight))
        thresholds, back = nested_thresholds(parts, alphas), np.argsort(self.order)
        return Thresholds(thresholds.values[back], thresholds.status[back])

    @one_blas_thread
    def sample_alpha_fits(
        self, name: Hashable, scores: Floats, alphas: Floats
    ) -> list[tuple[float, QuantileModel]]:
        """Fits where every calibration sample has an alpha, with their factors of alpha.

        `scores` and `alphas` are in the order of the samples; `name` stands for the two.
        """
        fits = []
        for factor, multiple in self.limits:
            model = self._fits.get((name, factor, multiple))
            if model is None:
                rows, _ = self.points(multiple)
                n_penalties = len(rows) - len(self.scores)
                # Two points that stand for a penalty may have any alpha, the same for both.
                others = np.full(n_penalties, alphas[self.order].mean())
                model = fit_quantiles(
                    rows,
                    np.concatenate([scores[self.order], np.zeros(n_penalties)]),
                    alpha=factor * np.concatenate([alphas[self.order], others]),
                )
                self._keep((name, factor, multiple), model)
            fits.append((factor, model))
        return fits

    def sample_alpha_thresholds(
        self,
        fits: list[tuple[float, QuantileModel]],
        phi: Floats,
        alphas: Floats,
        draws: Floats | None = None,
    ) -> Thresholds:
        """Thresholds of new samples that have an alpha each, from `sample_alpha_fits`."""
        if draws is not None:
            return fits[0][1].thresholds(phi, weight=draws - alphas, alpha=alphas)
        return limited([model.thresholds(phi, alpha=factor * alphas) for factor, model in fits])


def limited(parts: list[Thresholds]) -> Thresholds:
    """Thresholds, limited from below and from above by those of two other fits.

    Because these thresholds are at least as large as those of the lower fit, its coverage guarantee
    applies to them. Numbers may stand in for thresholds that divide the scores as the thresholds
    do: then their minimum and maximum do so, too.
    """
    if len(parts) == 1:
        return parts[0]
    plain, low, high = parts
    # Fits at two alphas may cross where data is sparse; the guarantee is that of `low`.
    top = np.maximum(low.values, high.values)
    status = np.where(np.isfinite(top), np.int8(Status.LIMITED), high.status)
    return Thresholds(
        np.clip(plain.values, low.values, top),
        np.where(plain.values > top, status, plain.status),
    )


def nested_thresholds(parts: list[Thresholds], alphas: Alphas) -> Thresholds:
    """Thresholds at each alpha side by side, never smaller for a smaller alpha.

    Quantile fits may cross where data is sparse; the larger threshold only adds coverage.
    """
    if len(parts) == 1:
        return Thresholds(parts[0].values[..., None], parts[0].status[..., None])
    values = np.stack([part.values for part in parts], axis=-1)
    status = np.stack([part.status for part in parts], axis=-1)
    order, finite = np.argsort(alphas)[::-1], np.isfinite(values)
    values[..., order] = np.maximum.accumulate(values[..., order], axis=-1)
    raised = finite & np.isinf(values)
    if raised.any():
        # The reason is that of the larger alpha.
        raised = np.asarray(raised.any(axis=1)) if raised.ndim == 3 else raised
        for larger, smaller in pairwise(order):
            rows = raised[:, smaller]
            status[rows, smaller] = status[rows, larger]
    return Thresholds(values, status)


# 3. Thresholds of every candidate label.
#
# The set of x holds each y with s(x, y) <= S*(x, y). To decide that, few of the thresholds are
# needed. Write W(g) for the largest value of g'b - sum_i loss(s_i - phi_i'b); it is convex, and S*
# of a row q is its slope at u q along q, with u = 1 - alpha.
#
# - From below: the slope at 0 is the fitted value q'beta(0), and slopes increase.
# - From above: for t > u, the slope at u is at most (W(tq) - W(uq)) / (t - u). There,
#   W(uq) >= W(0) + u q'beta(0). With a row a of the candidate at another sample and the difference
#   d = q - a, which does not depend on the candidate where the basis is additive,
#   W(tq) <= theta W(ta / theta) + (1 - theta) W(td / (1 - theta)). Finally, because slopes
#   increase, W(g) <= W(0) + g'(beta(g / 2) + beta(g)) / 2 <= W(0) + g'beta(g). So the thresholds of
#   some rows a for every candidate, and of one row d for every sample, bound those of all
#   candidates of all samples.
#
# A candidate whose score lies between the two bounds has its threshold computed.

# Where the upper bound is taken: t and theta of the formula.
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
    """The parts of a basis that is the sum of functions of the sample and of the label."""

    labels: Floats  # (C, p): the functions of the label for each cell; zero in the other columns.
    varying: Bools  # (p,): columns that depend on the label.
    # (J, p): rows of calibration samples that stand for others, with any label.
    centres: Floats
    # (2, p): sums of the positive values of each calibration column, and of the size of the others.
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
    """Rows phi(x, c) of m samples and C cells of classes."""

    rows: Callable[[int], Floats]  # Of all samples for one cell, (m, p).
    cells: Codes  # (K,): cell of each class.
    scale: float  # Largest size of a calibration score.
    parts: LabelParts | None = None  # None if functions of sample and label cannot be told apart.

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return int(self.cells.max()) + 1


def candidate_rows(
    problem: CalibrationProblem, basis: FittedBasis, outputs: ModelOutputs
) -> CandidateRows:
    """Rows of new samples with every candidate label."""
    codes = np.arange(outputs.n_classes)

    def labelled(code: int) -> Floats:
        return basis.design_for(outputs, np.full(len(outputs), code))

    if not basis.is_additive:
        return CandidateRows(labelled, codes, problem.scale)
    # Functions of the label alone: any sample shows them. Classes of equal functions share a cell.
    labels = basis.design_for(outputs.take(np.zeros(len(codes), np.int64)), codes)
    _, first, cells = np.unique(labels, axis=0, return_index=True, return_inverse=True)
    codes, cells = np.sort(first), np.argsort(np.argsort(first))[cells.reshape(-1)]
    labels = labels[codes]
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
    """Numbers, shape (m, C), that divide the scores as the thresholds of the candidates do.

    The exact threshold where a class of the cell has a score between the lower bound and it;
    elsewhere the lower bound, which gives the same set, and status `EXACT`.
    """
    low = _fitted(model, candidates)
    low -= _rounding(low, candidates.scale)
    high = np.full(low.shape, np.inf)
    infinite = np.zeros(candidates.n_cells, np.bool_)
    if candidates.parts is not None:
        infinite = candidates.parts.are_infinite(model.alpha, 1.0 - model.alpha)
        if len(scores) >= _FEWEST_SAMPLES and candidates.n_cells >= _FEWEST_CELLS:
            high = _upper_bounds(model, candidates, candidates.parts, low)
            high += 2.0 * _rounding(high, candidates.scale)
    status = np.full(low.shape, np.int8(Status.EXACT))
    # Where no calibration point shares a direction, the threshold is infinite.
    unseen = np.isinf(low)
    wanted = (_between(scores, low, high, candidates.cells) | unseen) & ~infinite
    values = low.copy()
    for cell in np.flatnonzero(wanted.any(axis=0)).tolist():
        index = np.flatnonzero(wanted[:, cell])
        part = model.thresholds(candidates.rows(cell)[index])
        values[index, cell], status[index, cell] = part.values, part.status
    exact = wanted & (_between(scores, low, values, candidates.cells) | unseen)
    values, status = np.where(exact, values, low), np.where(exact, status, np.int8(Status.EXACT))
    values[:, infinite], status[:, infinite] = np.inf, Status.HIGH_LEVERAGE
    return Thresholds(values, status)


def _between(scores: Floats, low: Floats, high: Floats, cells: Codes) -> Bools:
    """Cells, shape (m, C), one of whose classes has a score above `low` and at most `high`."""
    out = np.empty(low.shape, np.bool_)
    for cell in range(low.shape[1]):
        members = scores[:, cells == cell]
        within = (members > low[:, cell, None]) & (members <= high[:, cell, None])
        out[:, cell] = within.any(axis=1)
    return out


def _fitted(model: QuantileModel, candidates: CandidateRows) -> Floats:
    """Fitted values of all samples and cells, shape (m, C); infinite for unseen directions."""
    if candidates.parts is None:
        columns = [model.fitted(candidates.rows(cell)) for cell in range(candidates.n_cells)]
        return np.stack(columns, axis=1)
    # The rows of two cells differ by the same vector for all samples.
    offsets = candidates.parts.offsets(model)
    seen = _seen_cell(offsets)
    values = model.fitted(candidates.rows(seen))
    if not np.isfinite(offsets[seen]):
        # There is no lower bound, and every threshold is computed.
        return np.full((len(values), len(offsets)), -np.inf)
    return np.asarray(values[:, None] + (offsets - offsets[seen]))


def _rounding(bounds: Floats, scale: float) -> Floats:
    """How far bounds may be off; it depends on no other sample. Infinite ones stay as they are."""
    size = np.where(np.isfinite(bounds), np.abs(bounds), 0.0)
    return _SLACK * np.maximum(size, scale)


def _seen_cell(values: Floats) -> int:
    """The last cell whose value is finite."""
    return len(values) - 1 - int(np.argmax(np.isfinite(values[::-1])))


def _upper_bounds(
    model: QuantileModel, candidates: CandidateRows, parts: LabelParts, low: Floats
) -> Floats:
    """Bounds of the thresholds from above, shape (m, C); infinite where there is none."""
    weight = 1.0 - model.alpha
    seen = _seen_cell(low.min(axis=0))
    rows, centres = candidates.rows(seen), parts.relabel(parts.centres, seen)
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


# 4. The fit behind one threshold.


@final
@dataclass(frozen=True, eq=False)
class QuantileFit:
    """A fit over calibration samples and, after them, points that stand for penalties."""

    phi: Floats  # (n, p)
    scores: Floats  # (n,)
    alpha: float
    row: Floats  # (p,): basis functions of the new sample.
    weight: float  # Of the new sample.

    @classmethod
    def of_constant(cls, scores: Floats, alpha: float) -> Self:
        """The fit whose threshold is the finite-sample quantile of the scores."""
        return cls(np.ones((len(scores), 1)), scores, alpha, np.ones(1), 1.0 - alpha)

    @cached_property
    def model(self) -> QuantileModel:
        """The fit at weight 0, which all samples share."""
        return fit_quantiles(self.phi, self.scores, alpha=self.alpha)

    @cached_property
    def proof(self) -> ThresholdProof:
        """The threshold of the row, with the numbers that prove it."""
        if len(self.phi):
            return prove_threshold(self.model, self.row, self.weight)
        none = np.empty(0, np.int64)
        return ThresholdProof(np.inf, self.weight, none, none, np.empty(0), self.row)

    @cached_property
    def sensitivity(self) -> Sensitivity | None:
        """How the threshold depends on scores; None where it is infinite, whatever they are."""
        if not np.isfinite(self.proof.threshold):
            return None
        return Sensitivity(self.model, self.row, self.proof)

    def path(self, point: int) -> ScorePath:
        """The threshold as a function of the score of one point."""
        if self.sensitivity is None:
            return ScorePath(np.zeros(1), np.array([self.proof.threshold]), (0.0, 0.0))
        path = self.sensitivity.path(point)
        # Thresholds are rounded up, so that a class whose score equals one stays in the set.
        return path.shifted(self.proof.threshold - float(path.at(self.scores[[point]])[0]))
