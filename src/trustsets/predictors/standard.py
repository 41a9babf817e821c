"""STANDARD: split conformal prediction, one threshold for all samples."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import numpy as np

from trustsets._arrays import Codes, Floats
from trustsets._storage import storable
from trustsets.outputs import ModelOutputs
from trustsets.predictors.calibration import Calibration
from trustsets.predictors.predictor import Predictor
from trustsets.predictors.quantiles import (
    QuantileFit,
    leave_one_out_quantiles,
    quantile_p_values,
    quantile_thresholds,
    weighted_cell_thresholds,
)
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score
from trustsets.status import Thresholds

__all__ = ["StandardConformal"]


@final
@storable
@dataclass(eq=False, repr=False)
class StandardConformal(Predictor):
    """Split conformal prediction: the sets contain the true class with probability 1 - alpha.

    The threshold is the k-th smallest calibration score, k the smallest integer that is at
    least (n + 1)(1 - alpha), computed exactly; past n it is infinite and the set is full.
    Coverage is marginal: nothing is guaranteed for any kind of sample.

    Parameters
    ----------
    score : Score
        `APS()` (default), `RAPS()`, `SAPS()`, `Softmax()` or another nonconformity score.
    temperature : None, float, TemperatureScaling or "tuning"
        None uses the outputs as they are; a number or a fitted `TemperatureScaling`
        divides the logits; ``"tuning"`` fits it on the tuning samples.
    class_bias : None, ClassBias or "tuning"
        None (default) adds nothing to the logits. A `ClassBias` adds its constants; one that is
        not fitted is fitted on the tuning samples, and ``"tuning"`` is ``ClassBias()``. With
        ``ClassBias(prevalence=1.0)``, sets contain rare classes more often, while coverage is
        still guaranteed marginally alone (prevalence-adjusted scores).
    allow_empty : bool
        False (default) keeps the most likely class in every set; True is the textbook
        rule, under which a set can be empty.
    tuning_fraction : float
        Share of the calibration samples set aside for what is learned besides the
        thresholds, if anything is and no tuning samples are given. 0 reuses the
        calibration samples and warns.
    random_state : int, None or generator
        Seed of the tuning split and of randomised scores.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 5))
    >>> labels = (logits + rng.gumbel(size=(1000, 5))).argmax(axis=1)
    >>> outputs = ModelOutputs(logits=logits, labels=labels)
    >>> calibration, test = outputs.split(0.5, seed=1)
    >>> sets = StandardConformal().calibrate(calibration).predict_set(test, alpha=0.1)
    >>> sets
    PredictionSets(500 samples, 5 classes, alpha=0.1, mean size 3.42)
    >>> float(sets.covers(test.labels).mean())
    0.908
    """

    _: KW_ONLY
    score: Score = APS()
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float | str = 0.2
    random_state: Any = 0

    def _fit(self, state: Calibration, calibration: ModelOutputs, tuning: ModelOutputs) -> None:
        """Nothing: a quantile is read off the scores."""

    def _thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: tuple[float, ...]
    ) -> Thresholds:
        table = quantile_thresholds([np.sort(self.state_.scores)], alphas)
        one_cell = np.zeros(len(outputs), dtype=np.int64)
        return Thresholds(table.values[one_cell], table.status[one_cell])

    def _exact_p_values(self, outputs: ModelOutputs, scores: Floats) -> Floats:
        return quantile_p_values(np.sort(self.state_.scores), scores)

    def _leave_one_out_thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: tuple[float, ...]
    ) -> Thresholds:
        one_cell = np.zeros(len(outputs), dtype=np.int64)
        return leave_one_out_quantiles(self.state_.scores, one_cell, alphas)

    def check_weights(self) -> None:
        """Weighted quantiles are always there."""

    def weighted_thresholds(
        self,
        outputs: ModelOutputs,
        scores: Floats,
        alphas: tuple[float, ...],
        weights: Floats,
        new_weights: Floats,
    ) -> Thresholds:
        """Weighted quantiles of all samples, or of all candidate classes."""
        cells = np.zeros(len(weights), dtype=np.int64)
        new_cells = np.zeros(len(outputs), dtype=np.int64)
        return weighted_cell_thresholds(
            self.state_.scores, cells, weights, new_cells, new_weights, alphas
        )

    def quantile_fits(
        self, outputs: ModelOutputs, alpha: float, code: int | None
    ) -> tuple[list[QuantileFit], Codes]:
        """The fit of the constant function, whose threshold is the quantile."""
        order = np.argsort(self.state_.scores, kind="stable")
        return [QuantileFit.of_constant(self.state_.scores[order], alpha)], order

    def _guarantee(self) -> str:
        return "the sets contain the true class with probability at least 1 - alpha (marginally)."
