"""One split into calibration and test samples, with what all methods share. Imports sources.

Everything here is worked out when first asked for, and at most once.
"""

from functools import cached_property
from typing import Any, final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets.basis import FittedBasis
from trustsets.errors import InputError
from trustsets.metrics.balls import Balls, Neighbourhoods
from trustsets.paper.methods import SCORES, Method
from trustsets.paper.sources import VAL, Source
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

    @cached_property
    def observed(self) -> tuple[Observed, Observed]:
        """Calibration and test samples with the paper's trust scores, if there are any."""
        if self._trust is None:
            return Observed(self.calibration), Observed(self.test)
        first, second = self.parts_of(self._trust)
        return Observed(self.calibration, first), Observed(self.test, second)

    def parts_of(self, trust: TrustValues) -> tuple[Floats, Floats]:
        """Trust of the calibration samples and of the test samples."""
        pool = self.source.test_part
        part = VAL if self.source.fixed_split else pool
        return (
            trust[part][self.source.positions(part, self.calibration)],
            trust[pool][self.source.positions(pool, self.test)],
        )

    def task(self, score: str) -> Task:
        """Calibration problem of the paper's methods: everything is tuned on the same samples."""
        if score not in self._scores:
            self._scores[score] = SCORES[score].of_labels(
                self.calibration, temperature=self.temperature
            )
        seen, scores = self.observed[0], self._scores[score]
        return Task(seen, seen, scores, lambda: scores, seed=0)

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
