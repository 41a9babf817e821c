"""One split into calibration and test samples, with what all methods share. Imports sources.

Everything here is worked out when first asked for, and at most once.
"""

from functools import cached_property
from typing import Any, final

import numpy as np

from trustsets.basis import FittedBasis
from trustsets.errors import InputError
from trustsets.metrics.balls import Balls, Neighbourhoods
from trustsets.outputs import ModelOutputs
from trustsets.paper.methods import SCORES, KnownTrust, Method
from trustsets.paper.sources import VAL, Source
from trustsets.predictors.base import Predictor, Task
from trustsets.scores import RankedScores
from trustsets.statistics import Floats, Observed
from trustsets.temperature import TemperatureScaling

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
        Of the split, where it is not fixed.
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
        self.source, self.seed = source, seed
        self.calibration, self.test = source.split(seed)
        self._trust = trust
        self._scores: dict[str, Floats] = {}
        self._ranked: tuple[str, RankedScores] | None = None
        self._components: dict[int, FittedBasis] = {}
        self._balls: tuple[Balls, Neighbourhoods] | None = None
        self.temperature = 1.0

    @property
    def key(self) -> dict[str, Any]:
        """Names the samples of both halves by content and seed."""
        seed = None if self.source.fixed_split else self.seed
        return {"outputs": self.source.outputs_digest, "seed": seed}

    def observe(self, outputs: ModelOutputs, trust: TrustValues | None) -> Observed:
        """Some of the samples, with their trust scores if there are any."""
        if trust is None:
            return Observed(outputs)
        part = self.source.test_part
        if self.source.fixed_split and outputs is not self.test:
            part = VAL
        return Observed(outputs, KnownTrust(trust[part][self.source.positions(part, outputs)]))

    @cached_property
    def observed(self) -> tuple[Observed, Observed]:
        """Calibration and test samples with the paper's trust scores."""
        return self.observe(self.calibration, self._trust), self.observe(self.test, self._trust)

    def task(self, score: str) -> Task:
        """Calibration problem of the paper's methods: everything is tuned on the same samples."""
        if score not in self._scores:
            self._scores[score] = SCORES[score].of_labels(
                self.calibration, temperature=self.temperature
            )
        seen, scores = self.observed[0], self._scores[score]
        return Task(seen, seen, scores, lambda: scores, seed=0)

    def tuned_task(self, predictor: Predictor, trust: TrustValues | None) -> tuple[Task, float]:
        """Calibration problem and temperature of a predictor that sets tuning samples aside."""
        fraction = float(predictor.tuning_fraction)
        tuning, rest = self.calibration.split(fraction, seed=predictor.random_state)
        temperature = TemperatureScaling().fit(tuning).temperature_

        def scores(part: ModelOutputs) -> Floats:
            return predictor.score.of_labels(part, temperature=temperature)

        seen = self.observe(rest, trust)
        task = Task(seen, self.observe(tuning, trust), scores(rest), lambda: scores(tuning), seed=0)
        return task, temperature

    def ranked(self, score: str) -> RankedScores:
        """Scores of all ranks of the test samples; those of one score are held at a time."""
        if self._ranked is None or self._ranked[0] != score:
            made = SCORES[score].ranked(self.test, temperature=self.temperature)
            self._ranked = (score, made)
        return self._ranked[1]

    def components(self, method: Method) -> FittedBasis:
        """Principal components of the calibration samples, found once for all scores."""
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
