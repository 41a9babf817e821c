"""One split into calibration and test samples, with what all methods share.

Everything is computed when it is first asked for, and at most once.
"""

from functools import cached_property
from typing import Any, final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets.basis import FittedBasis
from trustsets.metrics.balls import Balls, Neighbourhoods
from trustsets.outputs import ModelOutputs
from trustsets.paper.methods import Method
from trustsets.paper.options import SCORES
from trustsets.paper.sources import Source
from trustsets.predictors.calibrated import Task
from trustsets.scores import RankedScores

__all__ = ["PartValues", "Split"]

PartValues = dict[str, Floats]
"""Numbers of the samples of each part of a source, such as trust scores."""


@final
class Split:
    """Calibration and test samples of one seed, with the paper's trust scores if there are any.

    `temperature` divides the logits; it is to be set before scores are asked for.
    """

    def __init__(self, source: Source, seed: int, trust: PartValues | None) -> None:
        self.source, self._trust = source, trust
        self.calibration, self.test = source.split(seed)
        self.temperature = 1.0
        # Names the samples of both halves by content and seed.
        own_seed = None if source.fixed_split else seed
        self.key: dict[str, Any] = {"outputs": source.outputs_digest, "seed": own_seed}
        self._scored: tuple[str, Task, RankedScores] | None = None
        self._components: FittedBasis | None = None
        self._balls: Neighbourhoods | None = None

    @cached_property
    def outputs(self) -> tuple[ModelOutputs, ModelOutputs]:
        """Calibration and test samples with the paper's trust scores, if there are any."""
        first, second = self.of_halves(self._trust)
        return self.calibration.with_trust(first), self.test.with_trust(second)

    def of_halves(self, values: PartValues | None) -> tuple[Floats | None, Floats | None]:
        """Values of the calibration samples and of the test samples; None where none are given."""
        if values is None:
            return None, None
        first, second = (
            values[part][np.searchsorted(self.source.parts[part].rows, own.rows)]
            for part, own in zip(self.source.halves, (self.calibration, self.test), strict=True)
        )
        return first, second

    def scored(self, score: str) -> tuple[Task, RankedScores]:
        """Calibration problem of the paper's methods, and the scores of the test samples.

        Everything is tuned on the calibration samples themselves. One score is in memory at a
        time.
        """
        if self._scored is None or self._scored[0] != score:
            chosen, seen = SCORES[score], self.outputs[0]
            scores = chosen.of_labels(self.calibration, temperature=self.temperature)
            task = Task(seen, seen, scores, lambda: scores, seed=0)
            ranked = chosen.ranked(self.test, temperature=self.temperature)
            self._scored = score, task, ranked
        return self._scored[1:]

    def components(self, method: Method) -> FittedBasis:
        """Principal components of the calibration samples, computed once for all scores."""
        if self._components is None:
            self._components = method.basis.fit(self.outputs[0])
        return self._components

    def neighbourhoods(self, plan: Balls) -> Neighbourhoods:
        """Balls around test samples, the same for all methods."""
        if self._balls is None:
            self._balls = plan.around(np.asarray(self.test.features))
        return self._balls
