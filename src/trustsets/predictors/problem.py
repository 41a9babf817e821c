"""The calibration problem of a function class, and the quantile fits made of it."""

from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from typing import Any, Self, TypeVar, final

import numpy as np

from trustsets._arrays import Codes, Floats, read_only
from trustsets.engine import QuantileModel, QuantileProcess, fit_quantile_process, fit_quantiles
from trustsets.errors import InputError
from trustsets.status import Status, Thresholds

__all__ = ["CalibrationProblem", "FitCache", "limited"]

# The fit that limits thresholds from above: its alpha and its group penalty, both in units of those
# of the fit that limits them from below. A smaller alpha or penalty gives more full sets; larger
# ones give less coverage to small groups that are hard.
UPPER_ALPHA = 0.25
UPPER_PENALTY = 2.0
# Alphas up to this number are fitted one by one.
_FEW_ALPHAS = 8

_T = TypeVar("_T")


@final
class FitCache(dict[Hashable, Any]):
    """The last fits by key; each holds its points in scan order, so only a few are kept."""

    def __init__(self, most: int = 24) -> None:
        super().__init__()
        self.most = most

    def get_or_fit(self, key: Hashable, fit: Callable[[], _T]) -> _T:
        """The fit of a key, made if it is not there."""
        if key not in self:
            while len(self) >= self.most:
                del self[next(iter(self))]
            self[key] = fit()
        result: _T = self[key]
        return result


@final
class CalibrationProblem:
    """Calibration points of a function class, and the fits made of them so far.

    Parameters
    ----------
    phi, scores : arrays of shape (n, p) and (n,)
        Basis functions and nonconformity scores of the calibration samples.
    penalty : array of shape (q, p)
        Rows w; a fit adds ``sum_j |w_j' beta|`` to its loss.
    group_penalty : array of shape (r, p), optional
        Rows like those of `penalty` that count only in the two fits which limit the thresholds;
        without them thresholds are not limited.
    ties : sequence of arrays of shape (n,)
        What orders points with equal rows and scores.
    starts : tuple of (alpha, multiple of the group penalty, basic points)
        Fits that were made before, from which to begin.
    """

    def __init__(
        self,
        phi: Floats,
        scores: Floats,
        penalty: Floats,
        group_penalty: Floats | None,
        *,
        ties: tuple[Floats | Codes, ...] = (),
        starts: tuple[tuple[float, float, Codes], ...] = (),
    ) -> None:
        # Sorted, so that a fit cannot depend on the order in which the samples came.
        self.order = np.lexsort((*ties, *phi.T, scores))
        self.phi, self.scores = read_only(phi[self.order]), read_only(scores[self.order])
        self.penalty, self.group_penalty = penalty, group_penalty
        self.starts = starts
        self.fits = FitCache()
        self._processes: dict[float, QuantileProcess] = {}

    def weighted(self, weights: Floats) -> Self:
        """The problem with a weight for each sample, in the order of the samples."""
        # w loss(r) = loss(w r) for w >= 0: rows and scores are scaled, in the same order.
        other, weights = type(self).__new__(type(self)), weights[self.order]
        vars(other).update(vars(self))
        other.phi = read_only(self.phi * weights[:, None])
        other.scores = read_only(self.scores * weights)
        other.starts, other.fits, other._processes = (), FitCache(), {}
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

    @property
    def limits(self) -> list[tuple[float, float]]:
        """Factors of alpha and of the group penalty: the plain fit, the lower and the upper one."""
        limits = [(1.0, 0.0), (1.0, 1.0), (UPPER_ALPHA, UPPER_PENALTY)]
        return limits[:1] if self.group_penalty is None else limits

    def fit(self, alpha: float, multiple: float = 0.0) -> QuantileModel:
        """Fit the 1 - alpha quantile, with this multiple of the group penalty; made once."""

        def make() -> QuantileModel:
            process = self._processes.get(multiple)
            if process is not None and alpha in process.alphas:
                return process.at(alpha)
            return self._fit_from_start(alpha, multiple)

        return self.fits.get_or_fit((alpha, multiple), make)

    def _fit_from_start(self, alpha: float, multiple: float) -> QuantileModel:
        """Fit from stored basic points, if they are optimal; else as if there were none."""
        rows, scores = self.points(multiple)
        for start_alpha, start_multiple, basic in self.starts:
            if (start_alpha, start_multiple) == (alpha, multiple):
                try:
                    model = fit_quantiles(rows, scores, alpha=alpha, start=basic)
                except InputError:  # not those of this problem
                    break
                if model.certificate.holds and model.certificate.pivots == 0:
                    return model
        return fit_quantiles(rows, scores, alpha=alpha)

    def all_starts(self) -> tuple[tuple[float, float, Codes], ...]:
        """Basic points of all fits, which save a loaded predictor the search."""
        starts: dict[Any, Codes] = {
            (alpha, multiple): basic for alpha, multiple, basic in self.starts
        }
        for key, model in self.fits.items():
            if isinstance(key, tuple) and isinstance(key[0], float):  # a fit at one alpha
                starts[key] = model.basic_points
        return tuple((*key, basic) for key, basic in starts.items())

    def prepare(self, alpha: float) -> list[QuantileModel]:
        """Make the fit at alpha and, where thresholds are limited, the lower and the upper one."""
        return [self.fit(factor * alpha, multiple) for factor, multiple in self.limits]

    def prepare_along(self, alphas: tuple[float, ...]) -> None:
        """Fit along many alphas, for a fraction of the time of single fits; the last are kept."""
        grid = np.unique(alphas)
        for factor, multiple in self.limits:
            process = self._processes.get(multiple)
            if process is None or not np.array_equal(process.alphas, factor * grid):
                rows, scores = self.points(multiple)
                self._processes[multiple] = fit_quantile_process(rows, scores, factor * grid)

    def fits_along(self, alphas: tuple[float, ...]) -> Iterator[list[QuantileModel]]:
        """What `prepare` gives at each alpha. Where there are many, none of them is kept."""
        if len(alphas) <= _FEW_ALPHAS:
            yield from (self.prepare(alpha) for alpha in alphas)
            return
        self.prepare_along(alphas)
        for alpha in alphas:
            yield [self._processes[multiple].at(factor * alpha) for factor, multiple in self.limits]

    def thresholds(self, phi: Floats, alphas: tuple[float, ...]) -> list[Thresholds]:
        """Thresholds of new samples with these rows, for each alpha."""
        if len(alphas) <= _FEW_ALPHAS:
            return [
                limited([model.thresholds(phi) for model in self.prepare(alpha)])
                for alpha in alphas
            ]
        return [limited(parts) for parts in self._along(phi, alphas, None)]

    def random_thresholds(
        self, phi: Floats, alphas: tuple[float, ...], draws: Floats
    ) -> list[Thresholds]:
        """Thresholds with random weights; limited ones would cover more than exactly 1 - alpha."""
        if len(alphas) <= _FEW_ALPHAS:
            return [self.fit(alpha).thresholds(phi, weight=draws - alpha) for alpha in alphas]
        return [parts[0] for parts in self._along(phi, alphas, draws)]

    def _along(
        self, phi: Floats, alphas: tuple[float, ...], draws: Floats | None
    ) -> list[list[Thresholds]]:
        """Thresholds at many alphas; for each of them those of all fits that `prepare` makes."""
        self.prepare_along(alphas)
        limits = self.limits if draws is None else self.limits[:1]
        processes = [self._processes[multiple].thresholds(phi, draws) for _, multiple in limits]
        parts = [list(parts) for parts in zip(*processes, strict=True)]
        # A process has each alpha once, in increasing order.
        return [parts[number] for number in np.searchsorted(np.unique(alphas), alphas)]

    def leave_one_out(self, alphas: tuple[float, ...], draws: Floats | None) -> list[Thresholds]:
        """Thresholds of the calibration samples, each without itself, in their given order."""
        points, back = np.arange(len(self.phi)), np.argsort(self.order)

        def without(model: QuantileModel) -> Thresholds:
            weight = None if draws is None else draws[self.order] - model.alpha
            result = model.leave_one_out(points, weight)
            return Thresholds(result.values[back], result.status[back])

        if draws is not None:
            # As for new samples, random thresholds are not limited.
            return [without(models[0]) for models in self.fits_along(alphas)]
        return [limited([without(model) for model in models]) for models in self.fits_along(alphas)]

    def sample_alpha_fits(
        self, key: Hashable, scores: Floats, alphas: Floats
    ) -> list[tuple[float, QuantileModel]]:
        """Fits where every calibration sample has an alpha, with their factors of alpha.

        `scores` and `alphas` are in the order of the samples; `key` names the two.
        """
        return [
            (factor, self._sample_alpha_fit((key, factor, multiple), scores, alphas))
            for factor, multiple in self.limits
        ]

    def _sample_alpha_fit(
        self, key: tuple[Hashable, float, float], scores: Floats, alphas: Floats
    ) -> QuantileModel:
        _, factor, multiple = key

        def make() -> QuantileModel:
            rows, _ = self.points(multiple)
            n_penalties = len(rows) - len(self.scores)
            # Two points that stand for a penalty may have any alpha, the same for both.
            others = np.full(n_penalties, alphas[self.order].mean())
            return fit_quantiles(
                rows,
                np.concatenate([scores[self.order], np.zeros(n_penalties)]),
                alpha=factor * np.concatenate([alphas[self.order], others]),
            )

        return self.fits.get_or_fit(key, make)

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
