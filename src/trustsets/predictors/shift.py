r"""Sets for other class shares than those of calibration (label shift).

Let w(y) be the ratio of new to calibration shares of class y. The new sample and the calibration
samples are then weighted exchangeable: given all n + 1 of them without their order, sample k is the
new one with probability proportional to w(y_k) (Tibshirani, Barber, Candes and Ramdas 2019;
Podkopaev and Ramdas 2021). So a candidate y of the new sample comes with the weight w(y), and its
threshold depends on y.

For quantiles, the threshold is the smallest score up to which the calibration weights reach
:math:`(1-\alpha)(\sum_i w_i + w(y))`.

For quantile regression, let g minimise
:math:`\sum_i w_i\,\ell(s_i - g(x_i)) + w(y)\,\ell(s - g(x))` over the function class. In the
direction of :math:`f\ge 0` in the class, this loss has the slope
:math:`\sum_k w_k f(x_k)(1\{s_k \le g(x_k)\} - (1-\alpha))` over all n + 1 samples, which is not
negative because g is optimal. It is also the mean of :math:`f(X)(1\{covered\} - (1-\alpha))` given
the samples without their order, times the sum of the weights. Hence coverage holds over the
function class among the new samples. The loss is positively homogeneous,
:math:`w\,\ell(r) = \ell(w r)` for w > 0, so the problem is that of rows
:math:`w_i\phi_i` and scores :math:`w_i s_i` with the new row :math:`w(y)\phi`, whose threshold is
:math:`w(y)` times the one wanted. Weights of 0 give rows of zeros, which have no influence.
"""

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.storage import require, require_numbers, storable
from trustsets.basis import FittedBasis
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Predictor
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.candidates import CandidateRows
from trustsets.predictors.conditional import ConditionalConformal
from trustsets.predictors.conditional_fit import ConditionalLearned
from trustsets.predictors.mondrian import MondrianConformal, MondrianLearned
from trustsets.predictors.shares import ClassShares, estimate_shares
from trustsets.predictors.standard import StandardConformal, StandardLearned
from trustsets.predictors.thresholds import SampleThresholds, side_by_side
from trustsets.predictors.tuning import Method
from trustsets.predictors.updating import KeptSamples
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score
from trustsets.statistics import Observed, SupportsTrust
from trustsets.status import Status

__all__ = ["AdaptedConformal", "adapted", "weighted_quantiles"]

# A candidate has at least this weight. A class whose share was estimated as zero may still occur,
# and a larger weight of the new sample gives a larger threshold.
_LEAST_WEIGHT = 1e-3
# Sums of weights are rounded; thresholds may only err upwards in what follows from them.
_SUM_TOL = 1e-12
_RAISED = 1.0 + 2.0**-50


@final
@storable
@dataclass(frozen=True)
class ShiftLearned(Learned):
    """What a method learned, with the label of each sample and the weight of each class."""

    inner: Any
    codes: NDArray[np.int64]
    weights: Floats

    def check_state(self) -> None:
        """Refuse what `adapt` does not make."""
        known = isinstance(self.inner, StandardLearned | MondrianLearned | ConditionalLearned)
        require(known, "ShiftLearned.inner", "must be what a method learns")
        require_numbers(self.weights, "ShiftLearned.weights", None)
        require((self.weights >= 0.0).all(), "ShiftLearned.weights", "must not be negative")
        require_numbers(self.codes, "ShiftLearned.codes", self.inner.scores.size)
        inside = ((self.codes >= 0) & (self.codes < self.weights.size)).all()
        require(inside, "ShiftLearned.codes", "must be columns of classes")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        self.inner.check_belongs(n, n_classes)
        fits = self.weights.size == n_classes
        require(fits, "ShiftLearned.weights", f"must be those of {n_classes} classes")

    @property
    def conditions_on(self) -> FittedBasis | None:
        """What the method conditions on."""
        basis: FittedBasis | None = self.inner.conditions_on
        return basis

    @cached_property
    def weighted(self) -> ConditionalLearned:
        """The weighted problem of CONDITIONAL."""
        own, inner = self.weights[self.codes], self.inner
        assert isinstance(inner, ConditionalLearned)
        return replace(inner, phi=inner.phi * own[:, None], scores=inner.scores * own)

    def prepare(self, alpha: float) -> object:
        """Make the fit of CONDITIONAL at this alpha."""
        is_fit = isinstance(self.inner, ConditionalLearned)
        return self.weighted.prepare(alpha) if is_fit else None

    @property
    def candidate_weights(self) -> Floats:
        """Weight of a new sample with each label."""
        return np.maximum(self.weights, _LEAST_WEIGHT)

    def quantiles(self, observed: Observed, alphas: tuple[float, ...]) -> SampleThresholds:
        """Weighted quantiles of all candidates, within cells where there are some."""
        inner, m = self.inner, len(observed.outputs)
        own = self.weights[self.codes]
        if isinstance(inner, StandardLearned):
            values = weighted_quantiles(inner.scores, own, self.candidate_weights, alphas)
            table, cells = values[None], np.zeros(m, np.int64)
        else:
            parts = zip(inner.by_cell(), inner.split(own), strict=True)
            new = self.candidate_weights
            table = np.stack([weighted_quantiles(s, w, new, alphas) for s, w in parts])
            if inner.partition is None:
                # A candidate is compared with the samples of its own class.
                every = np.arange(len(table))
                table, cells = table[every, every][None], np.zeros(m, np.int64)
            else:
                cells = inner.partition.cells(observed)
        full = np.full((1, *table.shape[1:]), np.inf)
        found = np.concatenate([table, full])[cells]
        status = np.where(np.isinf(found).any(axis=1), Status.TOO_FEW_POINTS, Status.EXACT)
        status[cells < 0] = Status.UNSEEN_GROUP
        return SampleThresholds(found, status.astype(np.int8))

    def fitted(
        self, observed: Observed, scores: Floats, alphas: tuple[float, ...]
    ) -> SampleThresholds:
        """Thresholds of CONDITIONAL for all candidates."""
        weights, basis, m = self.candidate_weights, self.inner.basis, len(observed.outputs)
        keys = np.stack([basis.class_cells(weights.size), weights], axis=1)
        _, first, cells = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        shared = None if basis.uses_label else basis.design(observed)

        def rows(cell: int) -> Floats:
            code = first[cell]
            own = basis.design_for(observed, np.full(m, code)) if shared is None else shared
            return np.asarray(weights[code] * own)

        scale = float(np.abs(self.weighted.scores).max())
        candidates = CandidateRows(rows, cells.reshape(-1), scale)
        found = self.weighted.candidate_thresholds(candidates, scores * weights, alphas)
        return side_by_side([(_raised(own / weights), status) for own, status in found], alphas)


@final
@storable
@dataclass(eq=False, repr=False)
class AdaptedConformal(Predictor):
    """A predictor for samples with other class shares; made by ``predictor.adapt(unlabelled)``.

    If only the class shares differ, and if they were known, coverage would hold among the new
    samples as it does among samples like those of calibration. The shares are estimated, so it
    holds approximately: `shares_` has their intervals. If the outputs given the class have changed,
    too, nothing is promised; `adapt` warns where the outputs show it.

    Every class has thresholds of its own, so thresholds have shape (m, K). For
    `ConditionalConformal`, a number just below the fitted value stands for a threshold where no
    score lies between the two. Calibrate the original predictor, and adapt it again, to change
    anything.
    """

    shares: ClassShares
    promise: str
    _: KW_ONLY
    score: Score = APS()
    trust: SupportsTrust | None = None
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float | str = 0.0
    random_state: Any = 0

    @property
    def shares_(self) -> ClassShares:
        """Estimated shares of the classes, with intervals and a second estimate."""
        return self.shares

    def _method(self) -> Method:
        return Method(class_bias=self.class_bias)

    def _learn(self, task: Task) -> Learned:
        raise InputError(
            "an adapted predictor keeps its calibration samples; calibrate, update or forget with "
            "the original predictor, and call its adapt again."
        )

    def _could_learn(self, learned: Learned) -> bool:
        if not isinstance(learned, ShiftLearned):
            return False
        return np.array_equal(learned.weights, self.shares.weights)

    def _thresholds(
        self,
        learned: ShiftLearned,
        observed: Observed,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        if not isinstance(learned.inner, ConditionalLearned):
            return learned.quantiles(observed, alphas)
        return learned.fitted(observed, scoring.matrix(observed.outputs), alphas)

    def _guarantee(self, state: Calibrated) -> str:
        return (
            "if only the class shares differ from those of calibration, and up to the error of "
            f"their estimates, {self.promise}"
        )


def adapted(predictor: Predictor, task: Task, unlabelled: ModelOutputs) -> AdaptedConformal:
    """A predictor for the class shares of unlabelled samples."""
    state = predictor.state_
    order = _order(predictor, state.learned, task)
    outputs = task.calibration.outputs
    shares = estimate_shares(outputs, unlabelled)
    shares.warn()
    learned = ShiftLearned(state.learned, outputs.require_labels("adapt")[order], shares.weights)
    new = AdaptedConformal(
        shares,
        predictor._guarantee(state),
        score=predictor.score,
        trust=predictor.trust,
        temperature=state.temperature,
        class_bias=state.class_bias,
        allow_empty=predictor.allow_empty,
        random_state=state.seed,
    )
    new.state_, new._kept = replace(state, learned=learned), KeptSamples.of(task)
    return new


def _order(predictor: Predictor, learned: Any, task: Task) -> Codes:
    """Calibration samples in the order of what was learned; refuse methods without weights."""
    if isinstance(predictor, StandardConformal):
        return np.argsort(task.scores, kind="stable")
    if isinstance(predictor, MondrianConformal) and not predictor.paper_rules:
        return np.lexsort((task.scores, learned.cells_of(task)))
    if isinstance(predictor, ConditionalConformal) and not predictor.randomized:
        phi = learned.basis.design(task.calibration)
        return np.lexsort((*phi.T, learned.used_scores(task)))
    raise InputError(
        "adapt needs StandardConformal, MondrianConformal without paper_rules, or "
        f"ConditionalConformal with randomized=False; got {type(predictor).__name__}."
    )


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


def _raised(values: Floats) -> Floats:
    """Thresholds after a division: a score that was equal to one must not exceed it."""
    return np.where(values > 0.0, values * _RAISED, values / _RAISED)
