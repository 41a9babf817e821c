"""What a statistic is: one number per sample that does not need the label, then a transform.

A statistic is a small value object.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.storage import require, require_increasing, require_numbers, storable
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs

Transform = Literal["raw", "log", "rank"]

# Logarithms are taken of at least this, so that a statistic of 0 stays finite.
_SMALLEST = 1e-12


@dataclass(frozen=True)
class Statistic(ABC):
    """One number per sample that does not need the label.

    Parameters
    ----------
    transform : {"raw", "log", "rank"}
        The number itself; its logarithm; or its rank among the samples that it is fitted on,
        between 0 and 1. All three carry the same information; the last two have no heavy tail.
    """

    transform: Transform = "raw"

    def __post_init__(self) -> None:
        if self.transform not in ("raw", "log", "rank"):
            raise InputError(f'transform must be "raw", "log" or "rank"; got {self.transform!r}.')

    @property
    @abstractmethod
    def name(self) -> str:
        """Short name for tables and messages."""

    @abstractmethod
    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the untransformed statistic of each sample, shape (n,)."""

    @property
    @final
    def learns(self) -> bool:
        """Whether the transform depends on the data it is fitted on."""
        return self.transform == "rank"

    @final
    def fit(self, outputs: ModelOutputs) -> "FittedStatistic":
        """Learn the transform from samples."""
        reference = np.sort(self.measure(outputs)) if self.learns else None
        return FittedStatistic(self, reference)


@final
@storable
@dataclass(frozen=True)
class FittedStatistic:
    """A statistic, and for ranks the sorted values of the samples it was fitted on."""

    statistic: Statistic
    reference: Floats | None

    def check_state(self) -> None:
        """Refuse a reference that no fit gives."""
        field = "FittedStatistic.reference"
        wanted = self.statistic.learns == (self.reference is not None)
        require(wanted, field, "belongs to the transform 'rank', and to no other")
        if self.reference is not None:
            require_numbers(self.reference, field, None)
            require_increasing(self.reference, field)

    def values(self, outputs: ModelOutputs) -> Floats:
        """Return the transformed statistic of each sample, shape (n,)."""
        measured = self.statistic.measure(outputs)
        if self.reference is not None:
            below = np.searchsorted(self.reference, measured, side="left")
            up_to = np.searchsorted(self.reference, measured, side="right")
            return (below + up_to) / (2.0 * self.reference.size)
        if self.statistic.transform == "log":
            return np.log(np.maximum(measured, _SMALLEST))
        return measured
