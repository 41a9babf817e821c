"""One split into calibration and test samples, with what all methods share.

Everything is computed when it is first asked for, and at most once.
"""

from functools import cached_property
from typing import Any, final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets.basis import FittedBasis
from trustsets.errors import InputError
from trustsets.metrics.balls import Balls, Neighbourhoods
from trustsets.paper.methods import Method
from trustsets.paper.options import SCORES
from trustsets.paper.sources import Source
from trustsets.predictors.calibrated import Task
from trustsets.scores import RankedScores
from trustsets.statistics import Observed

__all__ = ["Split", "TrustValues"]

TrustValues = dict[str, Floats]
"""Trust scores of the samples of each part of a source."""


@final
class Split:
    """Calibration and test samples of one seed.

    Parameters
    ----------
    source : Source
        The samples.
    seed : int
        Seed of the split, where it is not fixed.
    trust : TrustValues, optional
        The paper's trust scores.

    Attributes
    ----------
    calibration, test : ModelOutputs
        The samples.
    temperature : float
        Divides the logits; to be set before scores are asked for.
    """

    def __init__(self, source: Source, seed: int, trust: TrustValues | None) -> None:
        self.source, self.seed, self._trust = source, seed, trust
        self.calibration, self.test = source.split(seed)
        self.temperature = 1.0
        self._scored: tuple[str, Task, RankedScores] | None = None
        self._components: dict[int, FittedBasis] = {}
        self._balls: tuple[Balls, Neighbourhoods] | None = None

    @property
    def key(self) -> dict[str, Any]:
        """Names the samples of both halves by content and seed."""
        seed = None if self.source.fixed_split else self.seed
        return {"outputs": self.source.outputs_digest, "seed": seed}

    @cached_property
    def observed(self) -> tuple[Observed, Observed]:
        """Calibration and test samples with the paper's trust scores, if there are any."""
        if self._trust is None:
            return Observed(self.calibration), Observed(self.test)
        first, second = self.trust_of_halves(self._trust)
        return Observed(self.calibration, first), Observed(self.test, second)

    def trust_of_halves(self, trust: TrustValues) -> tuple[Floats, Floats]:
        """Trust of the calibration samples and of the test samples."""
        source = self.source
        first, second = source.calibration_part, source.test_part
        return (
            trust[first][source.positions(first, self.calibration)],
            trust[second][source.positions(second, self.test)],
        )

    def scored(self, score: str) -> tuple[Task, RankedScores]:
        """Calibration problem of the paper's methods, and the scores of the test samples.

        Everything is tuned on the calibration samples themselves. One score is in memory at a
        time.
        """
        if self._scored is None or self._scored[0] != score:
            chosen, seen = SCORES[score], self.observed[0]
            scores = chosen.of_labels(self.calibration, temperature=self.temperature)
            task = Task(seen, seen, scores, lambda: scores, seed=0)
            ranked = chosen.ranked(self.test, temperature=self.temperature)
            self._scored = score, task, ranked
        return self._scored[1:]

    def components(self, method: Method) -> FittedBasis:
        """Principal components of the calibration samples, computed once for all scores."""
        if method.n_components not in self._components:
            self._components[method.n_components] = method.basis.fit(self.observed[0])
        return self._components[method.n_components]

    def neighbourhoods(self, plan: Balls) -> Neighbourhoods:
        """Balls around test samples, the same for all methods."""
        if self.test.features is None:
            raise InputError("balls need features.")
        if self._balls is None or self._balls[0] != plan:
            self._balls = (plan, plan.around(np.asarray(self.test.features)))
        return self._balls[1]
