"""STANDARD: split conformal prediction, one threshold for all samples."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self, final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.storage import require, require_increasing, require_numbers, storable
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Predictor
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.leave_one_out import quantiles_without
from trustsets.predictors.thresholds import SampleThresholds, quantile_table
from trustsets.predictors.tuning import Method
from trustsets.predictors.updating import places_of
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score

__all__ = ["StandardConformal"]


@final
@storable
@dataclass(frozen=True)
class StandardLearned(Learned):
    """Calibration scores in increasing order."""

    scores: Floats

    def check_state(self) -> None:
        """Refuse scores that no calibration gives."""
        require_numbers(self.scores, "StandardLearned.scores", None)
        require_increasing(self.scores, "StandardLearned.scores")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        require(self.scores.size == n, "StandardLearned.scores", f"must be those of {n} samples")

    @property
    def conditions_on(self) -> None:
        """Nothing."""

    def prepare(self, alpha: float) -> None:
        """Nothing: a quantile is read off the scores."""

    def with_samples(self, added: Task) -> Self:
        """Insert the scores of more samples."""
        new = np.sort(added.scores)
        return type(self)(np.insert(self.scores, np.searchsorted(self.scores, new), new))

    def without_samples(self, gone: Task) -> Self:
        """Take out the scores of some samples."""
        return type(self)(np.delete(self.scores, places_of([self.scores], [gone.scores])))


@final
@storable
@dataclass(eq=False, repr=False)
class StandardConformal(Predictor):
    """Split conformal prediction: the sets hold the true class with probability 1 - alpha.

    The threshold is the k-th smallest calibration score, k the smallest integer that is at
    least (n + 1)(1 - alpha), computed exactly; past n it is infinite and the set is full.
    The guarantee is on average over samples: it says nothing about any kind of sample.

    Parameters
    ----------
    score : Score
        `APS()` (default), `RAPS()` or `Softmax()`.
    temperature : None, float, TemperatureScaling or "tuning"
        None uses the outputs as they are; a number or a fitted `TemperatureScaling`
        divides the logits; ``"tuning"`` fits it on the tuning part.
    class_bias : None, ClassBias or "tuning"
        None (default) adds nothing to the logits. A `ClassBias` adds its constants; one that is
        not fitted is fitted on the tuning part, and ``"tuning"`` is ``ClassBias()``. With
        ``ClassBias(prevalence=1.0)``, sets hold rare classes more often, while coverage is
        still guaranteed on average alone (prevalence-adjusted scores).
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

    score: Score = APS()
    _: KW_ONLY
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float = 0.2
    random_state: Any = 0

    def _method(self) -> Method:
        return Method(class_bias=self.class_bias)

    def _learn(self, task: Task) -> StandardLearned:
        return StandardLearned(np.sort(task.scores))

    def _could_learn(self, learned: Learned) -> bool:
        return isinstance(learned, StandardLearned)

    def _thresholds(
        self,
        learned: StandardLearned,
        outputs: ModelOutputs,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        only = np.zeros(len(outputs), dtype=np.int64)
        return quantile_table([learned.scores], alphas).of_cells(only)

    def _thresholds_without(
        self, learned: StandardLearned, task: Task, alphas: tuple[float, ...]
    ) -> SampleThresholds:
        only = np.zeros(len(task.scores), dtype=np.int64)
        return SampleThresholds(*quantiles_without(task.scores, only, alphas))

    def _guarantee(self, state: Calibrated) -> str:
        return "the sets hold the true class with probability at least 1 - alpha."
