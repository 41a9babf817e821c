r"""Thresholds where calibration samples and the new sample have weights.

Let the new sample have a distribution with density ratio w to that of calibration. The new sample
and the calibration samples are then weighted exchangeable: given all n + 1 of them without their
order, sample k is the new one with probability proportional to its weight w_k (Tibshirani, Barber,
Candes and Ramdas 2019). The weight may depend on the label (Podkopaev and Ramdas 2021): then a
candidate y of the new sample comes with the weight w(y), and its threshold depends on y.

For quantiles, the threshold is the smallest score up to which the calibration weights reach
:math:`(1-\alpha)(\sum_i w_i + w)`, where w is the weight of the new sample.

For quantile regression, let g minimise
:math:`\sum_i w_i\,\ell(s_i - g(x_i)) + w\,\ell(s - g(x))` over the function class. In the
direction of :math:`f\ge 0` in the class, this loss has the slope
:math:`\sum_k w_k f(x_k)(1\{s_k \le g(x_k)\} - (1-\alpha))` over all n + 1 samples, which is not
negative because g is optimal. It is also the mean of :math:`f(X)(1\{covered\} - (1-\alpha))` given
the samples without their order, times the sum of the weights. Hence coverage holds over the
function class among the new samples. The loss is positively homogeneous,
:math:`w\,\ell(r) = \ell(w r)` for w > 0, so the problem is that of rows
:math:`w_i\phi_i` and scores :math:`w_i s_i` with the new row :math:`w\phi`, whose threshold is
:math:`w` times the one wanted. Weights of 0 give rows of zeros, which have no influence. Penalties
have no weights: with them, the slope is at least minus the penalty of f.
"""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.storage import require, require_numbers, storable
from trustsets.basis import FittedBasis, FittedSum
from trustsets.errors import TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.predictors.calibrated import Learned
from trustsets.predictors.candidates import CandidateRows
from trustsets.predictors.comparing import effective_size
from trustsets.predictors.conditional_fit import ConditionalLearned
from trustsets.predictors.covariate_weights import WeightModel
from trustsets.predictors.mondrian import MondrianLearned
from trustsets.predictors.standard import StandardLearned
from trustsets.predictors.thresholds import SampleThresholds, side_by_side
from trustsets.status import Status

__all__ = ["CovariateLearned", "ShiftLearned", "WeightedLearned", "weighted_quantiles"]

# A candidate has at least this weight. A class whose share was estimated as zero may still occur,
# and a larger weight of the new sample gives a larger threshold.
_LEAST_WEIGHT = 1e-3
# Sums of weights are rounded; thresholds may only err upwards in what follows from them.
_SUM_TOL = 1e-12
_RAISED = 1.0 + 2.0**-50
_RAISED_MORE = 1.0 + 2.0**-40
# Coverage of one calibration varies by about sqrt(alpha (1 - alpha) / effective size). With fewer
# samples than this times (1 - alpha) / alpha, that is more than half of alpha.
_FEWEST = 4.0


@dataclass(frozen=True)
class WeightedLearned(Learned):
    """What a method learned, with a weight for each sample in the same order."""

    inner: Any

    @property
    @abstractmethod
    def own(self) -> Floats:
        """Weights of the calibration samples."""

    @abstractmethod
    def quantiles(self, outputs: ModelOutputs, alphas: tuple[float, ...]) -> SampleThresholds:
        """Weighted quantiles, within cells where there are some."""

    @abstractmethod
    def fitted(
        self, outputs: ModelOutputs, scores: Floats, alphas: tuple[float, ...]
    ) -> SampleThresholds:
        """Thresholds of CONDITIONAL; `scores` are those of all classes."""

    @property
    def is_fit(self) -> bool:
        """Whether thresholds are those of CONDITIONAL."""
        return isinstance(self.inner, ConditionalLearned)

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        known = isinstance(self.inner, StandardLearned | MondrianLearned | ConditionalLearned)
        require(known, f"{type(self).__name__}.inner", "must be what a method learns")
        self.inner.check_belongs(n, n_classes)

    @property
    def conditions_on(self) -> FittedBasis | None:
        """What the method conditions on."""
        basis: FittedBasis | None = self.inner.conditions_on
        return basis

    @cached_property
    def weighted(self) -> ConditionalLearned:
        """The weighted problem of CONDITIONAL."""
        own, inner = self.own, self.inner
        assert isinstance(inner, ConditionalLearned)
        return replace(inner, phi=inner.phi * own[:, None], scores=inner.scores * own)

    def prepare(self, alpha: float) -> object:
        """Make the fit of CONDITIONAL at this alpha."""
        return self.weighted.prepare(alpha) if self.is_fit else None

    def _candidates(
        self, outputs: ModelOutputs, codes: Codes, cells: Codes, weights: Callable[[int], Any]
    ) -> CandidateRows:
        """Weighted rows of new samples with the labels `codes`, one for each cell of classes."""
        basis, m = self.inner.basis, len(outputs)
        shared = None if basis.uses_label else basis.design(outputs)

        def rows(cell: int) -> Floats:
            label = np.full(m, codes[cell])
            own = basis.design_for(outputs, label) if shared is None else shared
            return np.asarray(weights(codes[cell]) * own)

        scale = float(np.abs(self.weighted.scores).max())
        return CandidateRows(rows, cells.reshape(-1), scale)


@final
@storable
@dataclass(frozen=True)
class ShiftLearned(WeightedLearned):
    """What a method learned, with the label of each sample and the weight of each class."""

    codes: NDArray[np.int64]
    weights: Floats

    def check_state(self) -> None:
        """Refuse what `adapt` does not make."""
        require_numbers(self.weights, "ShiftLearned.weights", None)
        require((self.weights >= 0.0).all(), "ShiftLearned.weights", "must not be negative")
        inside = ((self.codes >= 0) & (self.codes < self.weights.size)).all()
        require(inside, "ShiftLearned.codes", "must be columns of classes")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        super().check_belongs(n, n_classes)
        require_numbers(self.codes, "ShiftLearned.codes", n)
        fits = self.weights.size == n_classes
        require(fits, "ShiftLearned.weights", f"must be those of {n_classes} classes")

    @property
    def own(self) -> Floats:
        """Weight of the class of each calibration sample."""
        return np.asarray(self.weights[self.codes])

    @property
    def candidate_weights(self) -> Floats:
        """Weight of a new sample with each label."""
        return np.maximum(self.weights, _LEAST_WEIGHT)

    def quantiles(self, outputs: ModelOutputs, alphas: tuple[float, ...]) -> SampleThresholds:
        """Weighted quantiles of all candidates, within cells where there are some."""
        inner, m = self.inner, len(outputs)
        if isinstance(inner, StandardLearned):
            values = weighted_quantiles(inner.scores, self.own, self.candidate_weights, alphas)
            table, cells = values[None], np.zeros(m, np.int64)
        else:
            parts = zip(inner.by_cell(), inner.split(self.own), strict=True)
            new = self.candidate_weights
            table = np.stack([weighted_quantiles(s, w, new, alphas) for s, w in parts])
            if inner.partition is None:
                # A candidate is compared with the samples of its own class.
                every = np.arange(len(table))
                table, cells = table[every, every][None], np.zeros(m, np.int64)
            else:
                cells = inner.partition.cells(outputs)
        full = np.full((1, *table.shape[1:]), np.inf)
        found = np.concatenate([table, full])[cells]
        status = np.where(np.isinf(found).any(axis=1), Status.TOO_FEW_POINTS, Status.EXACT)
        status[cells < 0] = Status.UNSEEN_GROUP
        return SampleThresholds(found, status.astype(np.int8))

    def fitted(
        self, outputs: ModelOutputs, scores: Floats, alphas: tuple[float, ...]
    ) -> SampleThresholds:
        """Thresholds of CONDITIONAL for all candidates."""
        weights = self.candidate_weights
        keys = np.stack([self.inner.basis.class_cells(weights.size), weights], axis=1)
        _, first, cells = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        candidates = self._candidates(outputs, first, cells, lambda code: weights[code])
        found = self.weighted.candidate_thresholds(candidates, scores * weights, alphas)
        return side_by_side(
            [(_raised(own / weights, _RAISED), status) for own, status in found], alphas
        )


@final
@storable
@dataclass(frozen=True)
class CovariateLearned(WeightedLearned):
    """What a method learned, with the weight of each sample and a model of that of new ones."""

    weights: Floats
    model: WeightModel

    def check_state(self) -> None:
        """Refuse what `adapt` does not make."""
        require_numbers(self.weights, "CovariateLearned.weights", None)
        require((self.weights >= 0.0).all(), "CovariateLearned.weights", "must not be negative")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        super().check_belongs(n, n_classes)
        fits = self.weights.size == n
        require(fits, "CovariateLearned.weights", f"must be those of {n} samples")

    @property
    def own(self) -> Floats:
        """Weight of each calibration sample."""
        return self.weights

    @property
    def conditions_on(self) -> FittedBasis:
        """What the method conditions on, and what weights depend on."""
        inner = super().conditions_on
        return self.model.basis if inner is None else FittedSum((inner, self.model.basis))

    @property
    def smallest_alpha(self) -> float:
        """With smaller ones, coverage varies a lot from one calibration to the next."""
        size = effective_size(self.weights)
        functions = float(self.inner.smallest_alpha) * self.weights.size
        return max(_FEWEST / (size + _FEWEST), min(functions / max(size, 1.0), 0.5))

    def warn_if_few(self, alphas: tuple[float, ...]) -> None:
        """Warn where the effective size is small for an alpha."""
        if min(alphas) < self.smallest_alpha:
            size = effective_size(self.weights)
            warnings.warn(
                f"The weighted calibration samples tell as much as {size:.0f} unweighted ones, few "
                f"for alpha={min(alphas):g}: coverage may be far from 1 - alpha, or sets full. Use "
                f"an alpha of {self.smallest_alpha:.2g} or more, or more calibration samples that "
                "are like the new ones.",
                TrustSetsWarning,
                stacklevel=5,
            )

    def quantiles(self, outputs: ModelOutputs, alphas: tuple[float, ...]) -> SampleThresholds:
        """Weighted quantiles of all samples, within cells where there are some."""
        inner, new = self.inner, self.model.of(outputs)
        cells = np.zeros(new.size, np.int64)
        parts = [(inner.scores, self.weights)]
        if isinstance(inner, MondrianLearned):
            parts = list(zip(inner.by_cell(), inner.split(self.weights), strict=True))
            if inner.partition is None:
                # A candidate is compared with the samples of its own class.
                each = [weighted_quantiles(s, w, new, alphas) for s, w in parts]
                found = np.stack(each, axis=1)
                return SampleThresholds(found, _status(np.asarray(np.isinf(found).any(axis=1))))
            cells = inner.partition.cells(outputs)
        found = np.full((new.size, len(alphas)), np.inf)
        for cell, (scores, weights) in enumerate(parts):
            mine = cells == cell
            found[mine] = weighted_quantiles(scores, weights, new[mine], alphas)
        status = _status(np.isinf(found))
        empty = np.array([scores.size == 0 for scores, _ in parts] + [True])
        status[empty[cells]] = Status.UNSEEN_GROUP
        return SampleThresholds(found, status)

    def fitted(
        self, outputs: ModelOutputs, scores: Floats, alphas: tuple[float, ...]
    ) -> SampleThresholds:
        """Thresholds of CONDITIONAL, for all candidates where functions depend on the label."""
        new, basis = self.model.of(outputs)[:, None], self.inner.basis
        if basis.uses_label:
            cells = basis.class_cells(scores.shape[1])
            first = np.unique(cells, return_index=True)[1]
            candidates = self._candidates(outputs, first, cells, lambda code: new)
            found = self.weighted.candidate_thresholds(candidates, scores * new, alphas)
        else:
            found = self.weighted.thresholds(basis.design(outputs) * new, alphas)
            new = new[:, 0]
        return side_by_side(
            [(_raised(own / new, _RAISED_MORE), status) for own, status in found], alphas
        )


def _status(infinite: NDArray[np.bool_]) -> NDArray[np.int8]:
    return np.where(infinite, Status.HIGH_LEVERAGE, Status.EXACT).astype(np.int8)


def weighted_quantiles(
    scores: Floats, weights: Floats, new: Floats, alphas: tuple[float, ...]
) -> Floats:
    """Smallest score up to which weights reach a share of 1 - alpha, the new sample's counted.

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


def _raised(values: Floats, factor: float) -> Floats:
    """Thresholds after a division: a score that was equal to one must not exceed it."""
    return np.where(values > 0.0, values * factor, values / factor)
