"""What a method is given to learn from, and what a calibrated predictor keeps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array, Codes, Floats
from trustsets._common.blocks import row_numbers
from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.ranks import ranks_of
from trustsets._common.storage import require, storable
from trustsets.basis import Basis, FittedBasis
from trustsets.outputs import ModelOutputs
from trustsets.predictors.class_facts import ClassFacts
from trustsets.predictors.thresholds import SampleThresholds
from trustsets.recalibration import ClassBias
from trustsets.recalibration.temperature import check_temperature
from trustsets.scores import Score

__all__ = ["Calibrated", "Learned", "Scoring", "Task"]

# Counts and seeds are 64-bit numbers.
_LARGEST_COUNT = 1 << 63


@final
@dataclass(frozen=True)
class Task:
    """Calibration samples, and the samples that everything but thresholds is learned from.

    `scores` are those of the calibration labels. ``tuning_scores()`` computes those of the
    tuning labels, for the methods that need them. `alphas` are those of the calibration samples,
    where each has its own, and ``ranks(outputs)`` computes the ranks of labels.
    """

    calibration: ModelOutputs
    tuning: ModelOutputs
    scores: Floats
    tuning_scores: Callable[[], Floats]
    seed: int
    alphas: Floats | None = None
    ranks: Callable[[ModelOutputs], Codes] | None = None

    @property
    def has_own_tuning(self) -> bool:
        """Whether the tuning samples are others than the calibration samples."""
        return self.tuning is not self.calibration

    def fit(self, basis: Basis) -> FittedBasis:
        """Fit a function class: what learns on tuning samples, the rest on calibration samples."""
        return basis.fit_parts(self.calibration, self.tuning)


class Learned(ABC):
    """What a method keeps of the calibration samples; storable."""

    @property
    @abstractmethod
    def conditions_on(self) -> FittedBasis | None:
        """What thresholds of a sample depend on; None where all samples have the same."""

    @property
    def smallest_alpha(self) -> float:
        """The smallest alpha that is worth asking for, where none is given."""
        return 0.0

    @abstractmethod
    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes, for `storage`."""

    @abstractmethod
    def prepare(self, alpha: float) -> object:
        """Compute what all thresholds at this alpha have in common, and keep it."""

    def with_starts(self) -> Self:
        """The same with what makes `prepare` fast for the alphas that it was called with."""
        return self

    def with_samples(self, added: Task) -> Self | None:
        """The same with more samples; None where all must be learned again."""
        return None

    def without_samples(self, gone: Task) -> Self | None:
        """The same without some of the samples; None where all must be learned again."""
        return None


@final
@dataclass(frozen=True)
class Scoring:
    """How scores are computed: the score, class biases, temperature and random draws."""

    score: Score
    class_bias: ClassBias | None
    temperature: float
    seed: int

    def corrected(self, outputs: ModelOutputs) -> ModelOutputs:
        """Outputs with the class biases added, as the score sees them."""
        return outputs if self.class_bias is None else self.class_bias.transform(outputs)

    def of_labels(self, outputs: ModelOutputs, stream: Stream) -> Floats:
        """Scores of the labels, shape (n,); random draws are keyed on the rows."""
        return self.score.of_labels(
            self.corrected(outputs),
            temperature=self.temperature,
            draws=row_uniforms(self.seed, stream, outputs.rows) if self.score.randomized else None,
        )

    def task(self, calibration: ModelOutputs, tuning: ModelOutputs, alphas: Floats | None) -> Task:
        """What a method learns from."""
        return Task(
            calibration=calibration,
            tuning=tuning,
            scores=self.of_labels(calibration, Stream.CALIBRATION_SCORE),
            tuning_scores=partial(self.of_labels, tuning, Stream.TUNING_SCORE),
            seed=self.seed,
            alphas=alphas,
            ranks=self.ranks,
        )

    def ranks(self, outputs: ModelOutputs) -> Codes:
        """0-based ranks of the labels by probability, shape (n,): their order by score."""
        corrected, codes = self.corrected(outputs), outputs.require_labels("calibrate")
        return row_numbers(
            lambda rows: ranks_of(
                corrected.block_probabilities(rows, self.temperature), codes[rows]
            ),
            len(outputs),
            outputs.n_classes,
            np.int64,
        )

    def most_likely(self, outputs: ModelOutputs, count: int) -> NDArray[np.bool_]:
        """Mark the `count` most likely classes, which have the lowest scores, shape (m, K)."""
        return self.score.sets(
            self.corrected(outputs),
            np.full(len(outputs), -np.inf),
            temperature=self.temperature,
            draws=self._draws(Stream.PREDICTION_SCORE, outputs),
            smallest=count,
        )

    def matrix(self, outputs: ModelOutputs) -> Floats:
        """Scores of all classes of new samples, shape (m, K)."""
        return self.score.matrix(
            self.corrected(outputs),
            temperature=self.temperature,
            draws=self._draws(Stream.PREDICTION_SCORE, outputs),
        )

    def masks(
        self, outputs: ModelOutputs, thresholds: SampleThresholds, *, allow_empty: bool
    ) -> NDArray[np.bool_]:
        """Which classes are in the sets, shape (m, K, A)."""
        corrected = self.corrected(outputs)
        draws = self._draws(Stream.PREDICTION_SCORE, outputs)
        if thresholds.values.ndim == 2:
            return self.score.sets(
                corrected,
                thresholds.values,
                temperature=self.temperature,
                draws=draws,
                smallest=0 if allow_empty else 1,
            )
        scores = self.matrix(outputs)
        mask: NDArray[np.bool_] = scores[:, :, None] <= thresholds.values
        if not allow_empty:
            # If the set of any alpha is empty, all alphas get the class, or the sets of the
            # smaller alphas, which may hold other classes, would not be nested.
            empty = ~np.all(mask.any(axis=1), axis=1, keepdims=True)
            mask[np.arange(len(outputs)), corrected.predicted_codes] |= empty
        return mask

    def _draws(self, stream: Stream, outputs: ModelOutputs) -> Floats | None:
        # The keys are hashes of the outputs, so they are made only where a score needs draws.
        return row_uniforms(self.seed, stream, outputs.draw_keys) if self.score.randomized else None


@final
@storable
@dataclass(frozen=True)
class Calibrated:
    """All that a calibrated predictor knows besides its parameters."""

    classes: Array
    n_features: int | None
    n: int
    n_tuning: int
    reused: tuple[str, ...]
    temperature: float
    seed: int
    learned: Any
    class_bias: ClassBias | None = None
    class_facts: ClassFacts | None = None

    def scoring(self, score: Score) -> Scoring:
        """How new samples are scored."""
        return Scoring(score, self.class_bias, self.temperature, self.seed)

    def check_state(self) -> None:
        """Refuse numbers that no calibration gives, and parts that belong to different data."""
        names = self.classes.tolist() if self.classes.ndim == 1 else []
        # NaN is not equal to itself.
        distinct = names and len(set(names)) == len(names) and names == self.classes.tolist()
        require(distinct, "Calibrated.classes", "must be distinct names")
        for name, least in (("n", 1), ("n_tuning", 0), ("seed", 0), ("n_features", 1)):
            own = getattr(self, name)
            enough = own is None or least <= own < _LARGEST_COUNT
            require(enough, f"Calibrated.{name}", f"must be {least} or more")
        check_temperature(self.temperature)
        known = isinstance(self.learned, Learned)
        require(known, "Calibrated.learned", "must be what a method learns")
        self.learned.check_belongs(self.n, len(names))
        fits = self.class_bias is None or self.class_bias.bias_.size == len(names)
        require(fits, "Calibrated.class_bias", "must have a number for each class")
        require(self.class_facts, "Calibrated.class_facts", "must be there")
        assert self.class_facts is not None
        self.class_facts.check_belongs(self.n, len(names))
