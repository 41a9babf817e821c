"""Numbers known about a sample before its label: what coverage is conditioned on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from trustsets._arrays import Floats
from trustsets._blocks import row_results
from trustsets._parameters import check_fields
from trustsets.outputs import ModelOutputs, require_outputs
from trustsets.storage import require, require_numbers, storable

__all__ = [
    "Confidence",
    "Entropy",
    "FittedStatistic",
    "Margin",
    "Statistic",
    "Transform",
    "Trust",
]

Transform = Literal["raw", "log", "rank"]

# Logarithms are taken of at least this, so that a statistic of 0 stays finite.
_SMALLEST = 1e-12


@dataclass(frozen=True)
class Statistic(ABC):
    """One number per sample that does not need the label.

    Parameters
    ----------
    transform : {"raw", "log", "rank"}
        The number itself; its logarithm; or its rank among the fitted samples, between 0 and 1.
    """

    transform: Transform = "raw"

    def __post_init__(self) -> None:
        check_fields(self)

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


@final
@storable
@dataclass(frozen=True)
class Confidence(Statistic):
    """``Conf(x)``: the largest softmax output.

    Examples
    --------
    >>> outputs = ModelOutputs(probabilities=[[0.75, 0.25]])
    >>> Confidence().fit(outputs).values(outputs)
    array([0.75])
    """

    name = "Conf"

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the largest softmax output of each sample."""
        return require_outputs(outputs, "outputs").confidence


@final
@storable
@dataclass(frozen=True)
class Trust(Statistic):
    """``Trust(x)``: distance to the nearest other class over distance to the predicted one."""

    name = "Trust"

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the trust score of each sample."""
        return require_outputs(outputs, "outputs").require_trust("Trust")


@final
@storable
@dataclass(frozen=True)
class Entropy(Statistic):
    """Entropy of the softmax outputs, ``-sum_j p_j log p_j``."""

    name = "Entropy"

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the entropy of each sample."""
        require_outputs(outputs, "outputs")

        def entropy(block: slice) -> Floats:
            p = outputs.block_probabilities(block)
            return np.asarray(-(p * np.log(np.maximum(p, np.finfo(float).tiny))).sum(axis=1))

        return np.asarray(np.maximum(row_results(entropy, len(outputs), outputs.n_classes), 0.0))


@final
@storable
@dataclass(frozen=True)
class Margin(Statistic):
    """Gap between the two largest softmax outputs."""

    name = "Margin"

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the margin of each sample."""
        require_outputs(outputs, "outputs")

        def margin(block: slice) -> Floats:
            top = np.partition(outputs.block_probabilities(block), -2, axis=1)[:, -2:]
            return np.asarray(top[:, 1] - top[:, 0])

        if outputs.n_classes == 1:
            return np.ones(len(outputs))
        return row_results(margin, len(outputs), outputs.n_classes)
