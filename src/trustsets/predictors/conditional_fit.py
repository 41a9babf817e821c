"""The calibration problem of CONDITIONAL, and the quantile fits made of it."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.storage import require, require_increasing, require_numbers, storable
from trustsets.basis import Basis, BasisChoice, Classes, FittedBasis, choose_basis
from trustsets.engine import (
    QuantileModel,
    QuantileProcess,
    fit_quantile_process,
    fit_quantiles,
)
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.calibrated import Learned, Task
from trustsets.predictors.candidates import (
    CandidateRows,
    LabelParts,
    candidate_thresholds,
    spread_rows,
)
from trustsets.predictors.max_size import LabelRanks, OwnAlphas
from trustsets.predictors.updating import equal_ranges, knows_groups, places_of
from trustsets.status import Status

__all__ = ["TIE_SPREAD", "ConditionalLearned"]

# The fit that limits thresholds from above: its alpha and its group penalty, both in units of those
# of the fit that limits them from below. A smaller alpha or penalty gives more full sets; larger
# ones give less coverage to small groups that are hard.
_UPPER_ALPHA = 0.25
_UPPER_PENALTY = 2.0
# Randomised thresholds are exact for scores without ties. Adding a uniform draw times this number
# to the score of every sample leaves none; it changes no score by more than rounding to 5 digits.
TIE_SPREAD = 1e-5
# Fits that are kept, each with its landmarks; and alphas that are fitted one by one.
_MOST_FITS = 24
_FEW_ALPHAS = 8
# A sample to forget is found if its row and score agree with the kept ones up to this share.
_SAME_TOL = 1e-9
_STORED = {"group_penalty": "restraint"}


@final
@storable
@dataclass(frozen=True)
class ConditionalLearned(Learned):
    """The calibration problem, and the fits made of it so far (one for each alpha).

    `group_penalty` has rows like those of `penalty`; they count only in the two fits that limit
    thresholds. None means that thresholds are not limited. `alphas` are those of the calibration
    samples, if each has its own. `ranks` is what sets of limited size are learned from.

    `starts` come from a file: alpha, multiple of the group penalty and basic points of the fits
    that were made before it was saved.
    """

    basis: FittedBasis
    phi: Floats
    scores: Floats
    penalty: Floats
    choice: BasisChoice | None = None
    group_penalty: Floats | None = None
    tie_spread: float = 0.0
    alphas: Floats | None = None
    ranks: LabelRanks | None = None
    starts: tuple[tuple[float, float, Codes], ...] = ()

    @cached_property
    def _fits(self) -> dict[tuple[Any, float], QuantileModel]:
        # Not a field: fits are not stored, but made again, to the same bits, when first needed.
        return {}

    def with_starts(self) -> Self:
        """The same with the basic points of all fits, which save a loaded model the search."""
        known = {(alpha, penalty): basic for alpha, penalty, basic in self.starts}
        known |= {key: own.basic_points for key, own in self._fits.items() if _is_alpha(key)}
        return replace(self, starts=tuple((*key, basic) for key, basic in known.items()))

    @cached_property
    def _processes(self) -> dict[float, QuantileProcess]:
        """Fits along the last grid of many alphas, by group penalty; small, unlike their models."""
        return {}

    @classmethod
    def of(
        cls,
        basis: Basis | str,
        task: Task,
        tie_spread: float = 0.0,
        classes: Classes | None = None,
        *,
        with_ranks: bool = False,
    ) -> Self:
        """Fit a basis, or choose one, add `classes`, and set up the calibration problem."""
        choice = None
        if isinstance(basis, str):
            choice = choose_basis(task.tuning, task.tuning_scores())
            basis = choice.basis
        fitted = task.fit(basis if classes is None else basis + classes)
        phi = fitted.design(task.calibration)
        _check_enough(*phi.shape)
        scores = _spread(task, tie_spread)
        # Sorted, so that the fit cannot depend on the order in which the samples came.
        ranks = LabelRanks.of_task(fitted, task) if with_ranks else None
        others: list[Any] = [] if ranks is None else [ranks.of_calibration]
        others += [] if task.alphas is None else [task.alphas]
        order = np.lexsort((*others, *phi.T, scores))
        alphas = None if task.alphas is None else task.alphas[order]
        penalty = fitted.penalty_rows(task.calibration)
        bounding = fitted.bounding_rows(task.calibration)
        limiting = bounding if len(bounding) else None
        own = fitted, phi[order], scores[order], penalty, choice, limiting, tie_spread
        return cls(*own, alphas, ranks and ranks.sorted_by(order))

    def could_come_from(
        self, basis: Basis | str, tie_spread: float = 0.0, classes: Classes | None = None
    ) -> bool:
        """Whether `of` could have returned this."""
        if isinstance(basis, str) != (self.choice is not None) or self.tie_spread != tie_spread:
            return False
        chosen = basis if self.choice is None else self.choice.basis
        if not isinstance(chosen, Basis):
            return False
        return (chosen if classes is None else chosen + classes).could_become(self.basis)

    def check_state(self) -> None:
        """Refuse a problem that no calibration gives."""
        width = self.phi.shape[-1] if self.phi.ndim == 2 else 0
        require_numbers(self.phi, "ConditionalLearned.phi", None, None)
        require_numbers(self.scores, "ConditionalLearned.scores", len(self.phi))
        require_increasing(self.scores, "ConditionalLearned.scores")
        known = self.tie_spread in (0.0, TIE_SPREAD)
        require(known, "ConditionalLearned.tie_spread", f"must be 0 or {TIE_SPREAD}")
        made = self.basis.could_give(self.phi)
        require(made, "ConditionalLearned.phi", "must hold values of the basis functions")
        if self.alphas is not None:
            require_numbers(self.alphas, "ConditionalLearned.alphas", len(self.phi))
            inside = self.alphas.min() > 0.0 and self.alphas.max() < 1.0
            require(inside, "ConditionalLearned.alphas", "must lie between 0 and 1")
        if self.ranks is not None:
            made = self.basis.could_give(self.ranks.tuning_phi)
            require(made, "LabelRanks.tuning_phi", "must hold values of the basis functions")
        for name, rows, own in (
            ("penalty", self.penalty, self.basis.penalty_rows),
            ("restraint", self.group_penalty, self.basis.bounding_rows),
        ):
            field = f"ConditionalLearned.{name}"
            if rows is not None:
                require_numbers(rows, field, len(rows) if rows.ndim == 2 else 1, width)
                require(rows.dtype == np.float64, field, "must be of type float64")
            if self.basis.width is not None:
                wanted, found = own(None), np.zeros((0, width)) if rows is None else rows
                require(np.array_equal(found, wanted), field, "must be that of the basis")

        for alpha, multiple, basic in self.starts:
            known = 0.0 < alpha < 1.0 and multiple in (0.0, 1.0, _UPPER_PENALTY)
            known = known and basic.ndim == 1 and basic.dtype.kind == "i" and basic.size <= width
            # Whether the points are optimal is found out, and proven, by the fit.
            require(known, "ConditionalLearned.starts", "must be basic points of some alphas")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        require(len(self.phi) == n, "ConditionalLearned.phi", f"must be that of {n} samples")
        if self.ranks is not None:
            self.ranks.check_belongs(n, n_classes)

    @property
    def conditions_on(self) -> FittedBasis:
        """The function class."""
        return self.basis

    @property
    def smallest_alpha(self) -> float:
        """With fewer samples than this leaves, thresholds are mostly infinite, and slow."""
        return float(self.phi.shape[1] / len(self.phi))

    def fit(self, alpha: float, group_penalty: float = 0.0) -> QuantileModel:
        """Fit the 1 - alpha quantile, with this multiple of the group penalty; made once."""

        def make() -> QuantileModel:
            process = self._processes.get(group_penalty)
            if process is not None and alpha in process.alphas:
                return process.at(alpha)
            fit = self._fit_from_start(alpha, group_penalty)
            return fit.for_many_rows() if self.basis.uses_label else fit

        return self._kept((alpha, group_penalty), make)

    def _kept(
        self, key: tuple[Hashable, float], make: Callable[[], QuantileModel]
    ) -> QuantileModel:
        if key not in self._fits:
            while len(self._fits) >= _MOST_FITS:
                self._fits.pop(next(iter(self._fits)))
            self._fits[key] = make()
        return self._fits[key]

    def _fit_from_start(self, alpha: float, group_penalty: float) -> QuantileModel:
        """Fit from stored basic points, if they are optimal; else as if there were none."""
        points, key = self._points(group_penalty), (alpha, group_penalty)
        start = next((own[2] for own in self.starts if own[:2] == key), None)
        if start is not None:
            try:
                model = fit_quantiles(*points, alpha=alpha, start=start)
            except InputError:  # not those of this problem
                model = None
            if model is not None and model.certificate.holds and model.certificate.pivots == 0:
                return model
        return fit_quantiles(*points, alpha=alpha)

    def _points(self, group_penalty: float) -> tuple[Floats, Floats]:
        """Rows and scores of the calibration points and of those that stand for penalties."""
        # |w'beta| is the loss of two points of score 0 and rows w and -w: the losses of a
        # residual r and of -r add up to |r|. A penalised fit is a fit with more points.
        penalty = self.penalty
        if group_penalty and self.group_penalty is not None:
            penalty = np.vstack([penalty, group_penalty * self.group_penalty])
        if not len(penalty):
            return self.phi, self.scores
        rows = np.vstack([self.phi, penalty, -penalty])
        return rows, np.concatenate([self.scores, np.zeros(2 * len(penalty))])

    def with_samples(self, added: Task) -> Self | None:
        """Insert more samples; None where the basis has no functions for their groups."""
        if not knows_groups(self.basis, added.calibration):
            return None
        phi, scores = self._sorted_points(added)
        places = equal_ranges(_keys(self.phi, self.scores), _keys(phi, scores))[0]
        rows = np.insert(self.phi, places, phi, axis=0)
        return self._changed(rows, np.insert(self.scores, places, scores))

    def without_samples(self, gone: Task) -> Self:
        """Take out some samples."""
        _check_enough(len(self.phi) - len(gone.scores), self.phi.shape[1])
        wanted = _keys(*self._sorted_points(gone))
        places = places_of(_keys(self.phi, self.scores), wanted, _SAME_TOL)
        rows = np.delete(self.phi, places, axis=0)
        return self._changed(rows, np.delete(self.scores, places))

    def _sorted_points(self, task: Task) -> tuple[Floats, Floats]:
        """Rows and scores of samples, in the order of the calibration problem."""
        phi, scores = self.basis.design(task.calibration), _spread(task, self.tie_spread)
        order = np.lexsort((*phi.T, scores))
        return phi[order], scores[order]

    def _changed(self, phi: Floats, scores: Floats) -> Self:
        """The same with other points."""
        if self.alphas is not None:
            raise InputError(
                "samples cannot come or go where each has an alpha of its own; calibrate again."
            )
        # What sets of limited size are learned from is not updated, so `max_size` asks for another
        # calibration.
        return replace(self, phi=phi, scores=scores, ranks=None, starts=())

    @property
    def _limits(self) -> list[tuple[float, float]]:
        """Factor of alpha and of the group penalty of the own fit, the lower and the upper one."""
        limits = [(1.0, 0.0), (1.0, 1.0), (_UPPER_ALPHA, _UPPER_PENALTY)]
        return limits[:1] if self.group_penalty is None else limits

    def prepare(self, alpha: float) -> list[QuantileModel]:
        """Make the fit at alpha and, where thresholds are limited, the lower and the upper one."""
        return [self.fit(factor * alpha, penalty) for factor, penalty in self._limits]

    def fits_along(self, alphas: tuple[float, ...]) -> Iterator[list[QuantileModel]]:
        """What `prepare` gives at each alpha. Where there are many, none of them is kept."""
        if len(alphas) <= _FEW_ALPHAS:
            yield from (self.prepare(alpha) for alpha in alphas)
            return
        self.prepare_along(alphas)
        yield from (self._along(alpha) for alpha in alphas)

    def prepare_along(self, alphas: tuple[float, ...]) -> None:
        """Fit along many alphas, for a fraction of the time of single fits; the last are kept."""
        grid = np.unique(alphas)
        for factor, penalty in self._limits:
            kept = self._processes.get(penalty)
            if kept is None or not np.array_equal(kept.alphas, factor * grid):
                found = fit_quantile_process(*self._points(penalty), factor * grid)
                self._processes[penalty] = found

    def _along(self, alpha: float) -> list[QuantileModel]:
        """What `prepare` gives at an alpha of the last grid, without keeping it."""
        limits = self._limits
        return [self._processes[penalty].at(factor * alpha) for factor, penalty in limits]

    def thresholds(
        self, phi: Floats, alphas: tuple[float, ...]
    ) -> list[tuple[Floats, NDArray[np.int8]]]:
        """Thresholds and statuses of all samples, for each alpha."""
        found = ([fit.thresholds(phi) for fit in fits] for fits in self.fits_along(alphas))
        return [_limited([(own.values, own.status) for own in each]) for each in found]

    def used_scores(self, task: Task) -> Floats:
        """Scores of the calibration samples as they are in the fits, in the order of the task."""
        return _spread(task, self.tie_spread)

    def thresholds_without(
        self, alphas: tuple[float, ...], draws: Floats | None
    ) -> list[tuple[Floats, NDArray[np.int8]]]:
        """Thresholds of the calibration samples, each without itself, in the order of `phi`."""
        points = np.arange(len(self.phi))

        def without(fit: QuantileModel) -> tuple[Floats, NDArray[np.int8]]:
            found = fit.leave_one_out(points, None if draws is None else draws - fit.alpha)
            return found.values, found.status

        if draws is not None:
            # As for new samples, thresholds are not limited then.
            return [without(fits[0]) for fits in self.fits_along(alphas)]
        return [_limited([without(fit) for fit in fits]) for fits in self.fits_along(alphas)]

    def candidates(self, outputs: ModelOutputs) -> CandidateRows:
        """Rows of new samples with every candidate label."""
        basis, n_classes = self.basis, outputs.n_classes
        cells = basis.class_cells(n_classes)
        codes = np.unique(cells, return_index=True)[1]
        scale = float(np.abs(self.scores).max())
        if not basis.is_additive:
            return CandidateRows(
                lambda cell: basis.design_for(outputs, np.full(len(outputs), codes[cell])),
                cells,
                scale,
            )
        # Functions of the label alone: any sample shows them.
        some = np.zeros(len(codes), np.int64)
        labels = basis.design_for(outputs.take(some), codes)
        varying = (labels != labels[0]).any(axis=0)
        rows = basis.design_for(outputs, np.full(len(outputs), codes[0]))
        parts = self._label_parts(np.where(varying, labels, 0.0), varying)
        return CandidateRows(lambda cell: parts.relabel(rows, cell), cells, scale, parts)

    def _label_parts(self, labels: Floats, varying: NDArray[np.bool_]) -> LabelParts:
        """What the bounds of candidates need besides the samples."""
        centres = self.phi[spread_rows(self.phi[:, ~varying])]
        fitted = np.vstack([self.phi, self.penalty, -self.penalty])
        sums = np.stack([np.maximum(fitted, 0.0).sum(axis=0), np.maximum(-fitted, 0.0).sum(axis=0)])
        return LabelParts(labels, varying, centres, sums)

    def candidate_thresholds(
        self, candidates: CandidateRows, scores: Floats, alphas: tuple[float, ...]
    ) -> list[tuple[Floats, NDArray[np.int8]]]:
        """Thresholds of all classes, shape (m, K), and the worst status, for each alpha."""
        found = (
            _limited([candidate_thresholds(fit, candidates, scores) for fit in fits])
            for fits in self.fits_along(alphas)
        )
        return [(own[:, candidates.cells], status.max(axis=1)) for own, status in found]

    def own_thresholds(
        self, problem: OwnAlphas, phi: Floats, weights: Floats | None = None
    ) -> tuple[Floats, NDArray[np.int8]]:
        """Thresholds and statuses where calibration and new samples have alphas of their own.

        `weights` are those of a randomised threshold, which is not limited.
        """
        if weights is not None:
            fit = self._own_fit(problem, *self._limits[0])
            found = fit.thresholds(phi, weight=weights, alpha=problem.alphas)
            return found.values, found.status
        each = [
            self._own_fit(problem, *limit).thresholds(phi, alpha=limit[0] * problem.alphas)
            for limit in self._limits
        ]
        return _limited([(own.values, own.status) for own in each])

    def own_candidate_thresholds(
        self, problem: OwnAlphas, candidates: CandidateRows
    ) -> tuple[Floats, NDArray[np.int8]]:
        """The same for all classes, shape (m, K), and the worst status; every one is computed."""
        cells = range(candidates.n_cells)
        found = [self.own_thresholds(problem, candidates.rows(cell)) for cell in cells]
        values, status = (np.stack(each, axis=1) for each in zip(*found, strict=True))
        return values[:, candidates.cells], status.max(axis=1)

    def _own_fit(self, problem: OwnAlphas, factor: float, penalty: float) -> QuantileModel:
        """Fit with an alpha for each calibration sample, times `factor`; made once."""

        def make() -> QuantileModel:
            rows, scores = self._points(penalty)
            scores[: len(self.scores)] = problem.scores
            # Two points that stand for a penalty may have any alpha, the same for both.
            alphas = np.full(len(scores), problem.calibration.mean())
            alphas[: len(self.scores)] = problem.calibration
            return fit_quantiles(rows, scores, alpha=factor * alphas)

        return self._kept((problem.key, penalty), make)

    def to_state(self) -> dict[str, Any]:
        """Fields by name; files have an older name for the group penalty."""
        own = {item.name: getattr(self, item.name) for item in fields(self)}
        return {_STORED.get(name, name): value for name, value in own.items()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        names = {stored: name for name, stored in _STORED.items()}
        return cls(**{names.get(name, name): value for name, value in state.items()})


def _check_enough(n: int, width: int) -> None:
    if n < width:
        raise InputError(
            f"{n} calibration samples cannot determine {width} basis functions; use a smaller "
            "basis or more samples."
        )


def _keys(phi: Floats, scores: Floats) -> list[Floats]:
    """What the points of the calibration problem are sorted by, the first key first."""
    return [scores, *phi.T[::-1]]


def _is_alpha(key: tuple[Hashable, float]) -> bool:
    """Whether a fit is one at an alpha, and not of a problem with an alpha for each sample."""
    return isinstance(key[0], float)


def _spread(task: Task, tie_spread: float) -> Floats:
    """Scores of the calibration samples, with ties broken by small draws where asked for."""
    if not tie_spread:
        return task.scores
    rows = task.calibration.rows
    return task.scores + tie_spread * row_uniforms(task.seed, Stream.CALIBRATION_TIES, rows)


def _limited(
    found: list[tuple[Floats, NDArray[np.int8]]],
) -> tuple[Floats, NDArray[np.int8]]:
    """Thresholds and statuses, limited from below and from above by those of two other fits.

    Because these thresholds are at least as large as those of the lower fit, its coverage guarantee
    applies to them. Numbers may stand in for thresholds that divide the scores as the thresholds
    do: then their minimum and maximum do so, too.
    """
    (values, status), *limits = found
    if not limits:
        return values, status
    (low, _), (high, of_high) = limits
    # Fits at two alphas may cross where data is sparse; the guarantee is that of `low`.
    top = np.maximum(low, high)
    limited = np.where(np.isfinite(top), np.int8(Status.LIMITED), of_high)
    return np.clip(values, low, top), np.where(values > top, limited, status)
