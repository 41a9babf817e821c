"""`AdaptedConformal`: a calibrated predictor with weights for another population."""

import warnings
from dataclasses import dataclass
from typing import Any, NoReturn, Self, final

import numpy as np

from trustsets._arrays import Floats
from trustsets._storage import storable
from trustsets.basis import FittedBasis, FittedSum
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.shift.covariate import CovariateWeights, WeightModel, estimate_weights
from trustsets.shift.prevalence import ClassPrevalence, estimate_prevalence
from trustsets.status import Thresholds

__all__ = ["AdaptedConformal", "adapt"]

# A candidate class has at least this weight. A class whose prevalence was estimated as zero may
# still occur, and a larger weight of the new sample gives a larger threshold.
_LEAST_WEIGHT = 1e-3
# Coverage of one calibration varies by about sqrt(alpha (1 - alpha) / effective size). With fewer
# samples than this times (1 - alpha) / alpha, that is more than half of alpha.
_FEWEST = 4.0


@final
@storable
@dataclass(eq=False, repr=False)
class AdaptedConformal(Predictor):
    """A predictor for another population; made by ``predictor.adapt``.

    With ``shift="label"``: if only the class prevalences differ, and if they were known, coverage
    would hold among the new samples as it does among samples exchangeable with those of
    calibration. The prevalences are estimated, so it holds approximately: `prevalence_` has their
    intervals. If the outputs given the class have changed, too, nothing is guaranteed; `adapt`
    warns where the outputs show it. Every class has thresholds of its own, so thresholds have shape
    (m, K). For `ConditionalConformal`, a number just below the fitted value stands for a threshold
    where no score lies between the two.

    With ``shift="covariate"``: the same if only the distribution of what tells the populations
    apart differs: `weights_` has the weights and their effective sample size. A sample that is
    unlike all calibration samples has a large weight, and hence a large or full set.

    Calibrate the original predictor, and adapt it again, to change anything.
    """

    _population = "new samples like the unlabelled ones"

    original: Predictor
    shift: ClassPrevalence | CovariateWeights
    model: WeightModel | None = None

    def __post_init__(self) -> None:
        original = self.original
        self.score, self.trust = original.score, original.trust
        self.temperature, self.class_bias = original.temperature, original.class_bias
        self.allow_empty, self.random_state = original.allow_empty, original.random_state
        self.tuning_fraction = original.tuning_fraction
        self.state_ = original.state_

    @property
    def prevalence_(self) -> ClassPrevalence:
        """Estimated class prevalences, with intervals."""
        if not isinstance(self.shift, ClassPrevalence):
            raise AttributeError('prevalence_ is that of shift="label"; see weights_.')
        return self.shift

    @property
    def weights_(self) -> CovariateWeights:
        """Estimated weights of the calibration samples, and their effective sample size."""
        if not isinstance(self.shift, CovariateWeights):
            raise AttributeError('weights_ are those of shift="covariate"; see prevalence_.')
        return self.shift

    @property
    def is_class_conditional(self) -> bool:
        """Whether the original predictor is."""
        return self.original.is_class_conditional

    @property
    def has_class_thresholds(self) -> bool:
        """Weights of label shift depend on the candidate class."""
        return isinstance(self.shift, ClassPrevalence) or self.original.has_class_thresholds

    @property
    def conditions_on(self) -> FittedBasis | None:
        """What the original predictor conditions on, and what weights depend on."""
        basis = self.original.conditions_on
        if self.model is None:
            return basis
        return self.model.basis if basis is None else FittedSum((basis, self.model.basis))

    @property
    def smallest_alpha(self) -> float:
        """With smaller ones, coverage varies a lot from one calibration to the next."""
        if not isinstance(self.shift, CovariateWeights):
            return self.original.smallest_alpha
        size = self.shift.effective_size
        functions = self.original.smallest_alpha * len(self.state_)
        return max(_FEWEST / (size + _FEWEST), min(functions / max(size, 1.0), 0.5))

    def _fit(self, *_: Any) -> NoReturn:
        raise InputError(
            "an adapted predictor keeps its calibration samples; calibrate, update or forget with "
            "the original predictor, and call its adapt again."
        )

    def calibrate(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: an adapted predictor keeps its calibration samples."""
        self._fit()

    def update(self, more: ModelOutputs) -> NoReturn:
        """Refuse: an adapted predictor keeps its calibration samples."""
        self._fit()

    def forget(self, rows: Any) -> NoReturn:
        """Refuse: an adapted predictor keeps its calibration samples."""
        self._fit()

    def leave_one_out(self, alpha: Any = 0.1) -> NoReturn:
        """Refuse: calibration samples are not exchangeable with the new ones."""
        raise InputError("leave_one_out is for the original predictor, before adapt.")

    def prepare(self, alpha: float) -> Self:
        """Nothing: the first prediction at an alpha makes its fit."""
        return self

    def _thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: tuple[float, ...]
    ) -> Thresholds:
        if isinstance(self.shift, ClassPrevalence):
            weights = self.shift.weights[self.state_.codes]
            new = np.maximum(self.shift.weights, _LEAST_WEIGHT)[None, :]
        else:
            assert self.model is not None
            self._warn_if_few(alphas)
            weights, new = self.shift.weights, self.model.of(outputs)[:, None]
        return self.original.weighted_thresholds(outputs, scores, alphas, weights, new)

    def _warn_if_few(self, alphas: tuple[float, ...]) -> None:
        if min(alphas) < self.smallest_alpha:
            warnings.warn(
                f"The effective sample size of the weighted calibration samples is "
                f"{self.weights_.effective_size:.0f}, few for alpha={min(alphas):g}: coverage may "
                "be far from 1 - alpha, or sets full. Use an alpha of "
                f"{self.smallest_alpha:.2g} or more, or more calibration samples that are like the "
                "new ones.",
                TrustSetsWarning,
                stacklevel=5,
            )

    def _guarantee(self) -> str:
        guarantee = self.original._guarantee()
        if isinstance(self.shift, ClassPrevalence):
            return (
                "if only the class prevalences differ from those of calibration, and up to the "
                f"error of their estimates, {guarantee}"
            )
        return (
            f"if labels and outputs given {self.shift.of} are distributed as in calibration, and "
            f"up to the error of estimated weights, {guarantee} The effective sample size is "
            f"{self.shift.effective_size:,.0f}."
        )

    def to_state(self) -> dict[str, Any]:
        """Parameters, of which the original predictor has the state, for `storage`."""
        return {"parameters": self.get_params(deep=False)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        return cls(**state["parameters"])


def adapt(predictor: Predictor, unlabelled: ModelOutputs, shift: str, of: Any) -> AdaptedConformal:
    """A predictor for the population of unlabelled samples; see `Predictor.adapt`."""
    calibration, state = predictor.calibration_, predictor.state_
    predictor.check_weights()
    if shift == "label":
        prevalence = estimate_prevalence(calibration, unlabelled)
        prevalence.warn()
        return AdaptedConformal(predictor.copy(), prevalence)
    model, weights = estimate_weights(
        calibration, unlabelled, of, predictor.conditions_on, state.seed
    )
    weights.warn()
    return AdaptedConformal(predictor.copy(), weights, model)
