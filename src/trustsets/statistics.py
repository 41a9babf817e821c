"""Numbers known about a sample before its label: what coverage is conditioned on.

Imports outputs and below. A statistic is a small value object; the samples and the trust
score it looks at come together in `Observed`, which computes each number once.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.storage import storable

__all__ = ["Confidence", "Observed", "Statistic", "SupportsTrust", "Trust"]

Floats = NDArray[np.float64]


class SupportsTrust(Protocol):
    """Anything that scores predictions by the features, such as a fitted `TrustScore`."""

    def score(self, features: Any, predicted: Any) -> Floats:
        """Trust of each prediction, shape (n,)."""


@final
class Observed:
    """Samples together with the trust score in use; each statistic is computed once."""

    def __init__(self, outputs: ModelOutputs, trust: SupportsTrust | None = None) -> None:
        self.outputs = outputs
        self.trust_score = trust

    @property
    def confidence(self) -> Floats:
        """Largest softmax output, shape (n,), of the outputs as given (temperature 1)."""
        return self.outputs.confidence

    @cached_property
    def trust(self) -> Floats:
        """Trust score of the most likely class, shape (n,)."""
        if self.trust_score is None:
            raise InputError("Trust is asked for, but no trust score was given; pass trust=.")
        if self.outputs.features is None:
            raise InputError("Trust needs features; pass features= to ModelOutputs.")
        return self.trust_score.score(self.outputs.features, self.outputs.predicted)


@dataclass(frozen=True)
class Statistic(ABC):
    """One number per sample that does not need the label."""

    @abstractmethod
    def values(self, observed: Observed) -> Floats:
        """Return the statistic of each sample, shape (n,)."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Short name for tables and messages."""


@final
@storable
@dataclass(frozen=True)
class Confidence(Statistic):
    """``Conf(x)``: the largest softmax output.

    Examples
    --------
    >>> Confidence().values(Observed(ModelOutputs(probabilities=[[0.7, 0.3]])))
    array([0.7])
    """

    def values(self, observed: Observed) -> Floats:
        """Return the largest softmax output of each sample."""
        return observed.confidence

    @property
    def name(self) -> str:
        """Short name."""
        return "Conf"


@final
@storable
@dataclass(frozen=True)
class Trust(Statistic):
    """``Trust(x)``: distance to the nearest other class over distance to the predicted one."""

    def values(self, observed: Observed) -> Floats:
        """Return the trust score of each sample."""
        return observed.trust

    @property
    def name(self) -> str:
        """Short name."""
        return "Trust"
