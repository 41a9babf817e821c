"""The calibration problem of CONDITIONAL, and the quantile fits made of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.storage import require, require_increasing, require_numbers, storable
from trustsets.basis import Basis, BasisChoice, Classes, FittedBasis, choose_basis
from trustsets.engine import QuantileModel, fit_quantile_process, fit_quantiles
from trustsets.engine.refit import near_points, refit_quantiles
from trustsets.errors import InputError
from trustsets.predictors.calibrated import Learned, Task
from trustsets.predictors.candidates import (
    CandidateRows,
    LabelParts,
    candidate_thresholds,
    spread_rows,
)
from trustsets.predictors.updating import equal_ranges, knows_groups, places_of
from trustsets.statistics import Observed
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
    thresholds. None means that thresholds are not limited.
    """

    basis: FittedBasis
    phi: Floats
    scores: Floats
    penalty: Floats
    choice: BasisChoice | None = None
    group_penalty: Floats | None = None
    tie_spread: float = 0.0

    @cached_property
    def _fits(self) -> dict[tuple[float, float], QuantileModel]:
        # Not a field: fits are not stored, but made again, to the same bits, when first needed.
        return {}

    @cached_property
    def _starts(self) -> dict[tuple[float, float], Codes]:
        # Points near the fits that were made before samples came or went, from which to begin.
        return {}

    @classmethod
    def of(
        cls,
        basis: Basis | str,
        task: Task,
        tie_spread: float = 0.0,
        classes: Classes | None = None,
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
        order = np.lexsort((*phi.T, scores))
        penalty = fitted.penalty_rows(task.calibration)
        bounding = fitted.bounding_rows(task.calibration)
        limiting = bounding if len(bounding) else None
        return cls(fitted, phi[order], scores[order], penalty, choice, limiting, tie_spread)

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

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        require(len(self.phi) == n, "ConditionalLearned.phi", f"must be that of {n} samples")

    @property
    def conditions_on(self) -> FittedBasis:
        """The function class."""
        return self.basis

    def fit(self, alpha: float, group_penalty: float = 0.0) -> QuantileModel:
        """Fit the 1 - alpha quantile, with this multiple of the group penalty; made once."""
        key = (alpha, group_penalty)
        if key not in self._fits:
            while len(self._fits) >= _MOST_FITS:
                self._fits.pop(next(iter(self._fits)))
            points, near = self._points(group_penalty), self._starts.pop(key, None)
            if near is None:
                self._fits[key] = fit_quantiles(*points, alpha=alpha)
            else:
                self._fits[key] = refit_quantiles(*points, alpha, near)
        return self._fits[key]

    def _points(self, group_penalty: float) -> tuple[Floats, Floats]:
        """Rows and scores of the calibration points and of those that stand for penalties."""
        # |w'beta| is the loss of two points of score 0 and rows w and -w: the losses of a
        # residual r and of -r add up to |r|. A penalised fit is a fit with more points.
        penalty = self.penalty
        if group_penalty and self.group_penalty is not None:
            penalty = np.vstack([penalty, group_penalty * self.group_penalty])
        rows = np.vstack([self.phi, penalty, -penalty])
        return rows, np.concatenate([self.scores, np.zeros(2 * len(penalty))])

    def with_samples(self, added: Task) -> Self | None:
        """Insert more samples; None where the basis has no functions for their groups."""
        if not knows_groups(self.basis, added.calibration):
            return None
        phi, scores = self._sorted_points(added)
        places = equal_ranges(_keys(self.phi, self.scores), _keys(phi, scores))[0]

        def moved(numbers: Codes) -> Codes:
            return numbers + np.searchsorted(places, numbers, side="right")

        rows = np.insert(self.phi, places, phi, axis=0)
        return self._changed(rows, np.insert(self.scores, places, scores), moved)

    def without_samples(self, gone: Task) -> Self:
        """Take out some samples."""
        _check_enough(len(self.phi) - len(gone.scores), self.phi.shape[1])
        wanted = _keys(*self._sorted_points(gone))
        places = places_of(_keys(self.phi, self.scores), wanted, _SAME_TOL)

        def moved(numbers: Codes) -> Codes:
            left = numbers[~np.isin(numbers, places)]
            return left - np.searchsorted(places, left)

        rows = np.delete(self.phi, places, axis=0)
        return self._changed(rows, np.delete(self.scores, places), moved)

    def _sorted_points(self, task: Task) -> tuple[Floats, Floats]:
        """Rows and scores of samples, in the order of the calibration problem."""
        phi, scores = self.basis.design(task.calibration), _spread(task, self.tie_spread)
        order = np.lexsort((*phi.T, scores))
        return phi[order], scores[order]

    def _changed(self, phi: Floats, scores: Floats, moved: Callable[[Codes], Codes]) -> Self:
        """The same with other points; `moved` gives the new numbers of old points."""
        new, n = replace(self, phi=phi, scores=scores), len(self.phi)
        starts = self._starts | {key: near_points(fit) for key, fit in self._fits.items()}
        for key, near in starts.items():
            # Those that stand for penalties follow the others.
            own, others = near[near < n], near[near >= n]
            new._starts[key] = np.concatenate([moved(own), others + len(phi) - n])
        return new

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
        grid, places = np.unique(alphas, return_inverse=True)
        processes = [
            fit_quantile_process(*self._points(penalty), factor * grid)
            for factor, penalty in self._limits
        ]
        yield from ([process[place] for process in processes] for place in places.tolist())

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

    def candidates(self, observed: Observed) -> CandidateRows:
        """Rows of new samples with every candidate label."""
        basis, n_classes = self.basis, observed.outputs.n_classes
        cells = basis.class_cells(n_classes)
        codes = np.unique(cells, return_index=True)[1]
        scale = float(np.abs(self.scores).max())
        if not basis.is_additive:
            return CandidateRows(
                lambda cell: basis.design_for(
                    observed, np.full(len(observed.outputs), codes[cell])
                ),
                cells,
                scale,
            )
        # Functions of the label alone: any sample shows them.
        some = np.zeros(len(codes), np.int64)
        trust = np.ones(len(codes)) if observed.has_trust else None
        labels = basis.design_for(Observed(observed.outputs.take(some), trust), codes)
        varying = (labels != labels[0]).any(axis=0)
        rows = basis.design_for(observed, np.full(len(observed.outputs), codes[0]))
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


def _spread(task: Task, tie_spread: float) -> Floats:
    """Scores of the calibration samples, with ties broken by small draws where asked for."""
    if not tie_spread:
        return task.scores
    rows = task.calibration.outputs.rows
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
