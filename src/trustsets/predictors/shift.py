"""Predictors for other class shares, or other inputs, than those of calibration."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, final

import numpy as np

from trustsets._common.arrays import Codes
from trustsets._common.storage import storable
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Predictor
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.conditional import ConditionalConformal
from trustsets.predictors.covariate_weights import CovariateWeights, estimate_weights
from trustsets.predictors.mondrian import MondrianConformal
from trustsets.predictors.shares import ClassShares, estimate_shares
from trustsets.predictors.standard import StandardConformal
from trustsets.predictors.thresholds import SampleThresholds
from trustsets.predictors.tuning import Method
from trustsets.predictors.updating import KeptSamples
from trustsets.predictors.weighted import CovariateLearned, ShiftLearned, WeightedLearned
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score
from trustsets.statistics import SupportsTrust

__all__ = ["AdaptedConformal", "adapted"]


@final
@storable
@dataclass(eq=False, repr=False)
class AdaptedConformal(Predictor):
    """A predictor for another population; made by ``predictor.adapt(unlabelled)``.

    With ``shift="label"``: if only the class shares differ, and if they were known, coverage would
    hold among the new samples as it does among samples like those of calibration. The shares are
    estimated, so it holds approximately: `shares_` has their intervals. If the outputs given the
    class have changed, too, nothing is promised; `adapt` warns where the outputs show it. Every
    class has thresholds of its own, so thresholds have shape (m, K). For
    `ConditionalConformal`, a number just below the fitted value stands for a threshold where no
    score lies between the two.

    With ``shift="covariate"``: the same if only the distribution of what tells the populations
    apart differs, with weights in the place of shares: `weights_` has them and their effective
    sample size. A sample that is unlike all calibration samples has a large weight, and hence a
    large or full set.

    Calibrate the original predictor, and adapt it again, to change anything.
    """

    _population = "new samples like the unlabelled ones"

    shift: ClassShares | CovariateWeights
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
        if not isinstance(self.shift, ClassShares):
            raise AttributeError('shares_ are those of shift="label"; see weights_.')
        return self.shift

    @property
    def weights_(self) -> CovariateWeights:
        """Estimated weights of the calibration samples, and their effective sample size."""
        if not isinstance(self.shift, CovariateWeights):
            raise AttributeError('weights_ are those of shift="covariate"; see shares_.')
        return self.shift

    def _method(self) -> Method:
        return Method(class_bias=self.class_bias)

    def _learn(self, task: Task) -> Learned:
        raise InputError(
            "an adapted predictor keeps its calibration samples; calibrate, update or forget with "
            "the original predictor, and call its adapt again."
        )

    def _could_learn(self, learned: Learned) -> bool:
        own = self.shift.weights
        if isinstance(learned, ShiftLearned):
            same = isinstance(self.shift, ClassShares)
            return same and np.array_equal(own, learned.weights)
        # What was learned is in another order than the weights.
        if not isinstance(learned, CovariateLearned) or isinstance(self.shift, ClassShares):
            return False
        return np.array_equal(np.sort(own), np.sort(learned.weights))

    def _thresholds(
        self,
        learned: WeightedLearned,
        outputs: ModelOutputs,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        if isinstance(learned, CovariateLearned):
            learned.warn_if_few(alphas)
        if not learned.is_fit:
            return learned.quantiles(outputs, alphas)
        return learned.fitted(outputs, scoring.matrix(outputs), alphas)

    def _guarantee(self, state: Calibrated) -> str:
        if isinstance(self.shift, ClassShares):
            return (
                "if only the class shares differ from those of calibration, and up to the error of "
                f"their estimates, {self.promise}"
            )
        return (
            f"if labels and outputs given {self.shift.of} are distributed as in calibration, and "
            f"up to the error of estimated weights, {self.promise} The weighted calibration "
            f"samples tell as much as {self.shift.effective_size:,.0f} unweighted ones."
        )


def adapted(
    predictor: Predictor, task: Task, new: ModelOutputs, shift: str, of: Any
) -> AdaptedConformal:
    """A predictor for the population of unlabelled samples."""
    state, outputs = predictor.state_, task.calibration
    order = _order(predictor, state.learned, task)
    learned: WeightedLearned
    found: ClassShares | CovariateWeights
    if shift == "label":
        found = estimate_shares(outputs, new)
        learned = ShiftLearned(state.learned, outputs.require_labels("adapt")[order], found.weights)
    else:
        on = state.learned.conditions_on
        model, found = estimate_weights(task.calibration, new, of, on, state.seed)
        learned = CovariateLearned(state.learned, found.weights[order], model)
    found.warn()
    made = AdaptedConformal(
        found,
        predictor._guarantee(state),
        score=predictor.score,
        trust=predictor.trust,
        temperature=state.temperature,
        class_bias=state.class_bias,
        allow_empty=predictor.allow_empty,
        random_state=state.seed,
    )
    made.state_, made._kept = replace(state, learned=learned), KeptSamples.of(task)
    return made


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
