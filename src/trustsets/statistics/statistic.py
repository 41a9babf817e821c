"""What a statistic is: one number per sample that does not need the label, then a transform.

A statistic is a small value object. `Observed` holds the samples and the trust score, and computes
each number once.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, Self, final, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from trustsets._common.arrays import Codes, Floats, to_numpy
from trustsets._common.blocks import for_each_block
from trustsets._common.storage import require, require_increasing, require_numbers, storable
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs

Transform = Literal["raw", "log", "rank"]

# Logarithms are taken of at least this, so that a statistic of 0 stays finite.
_SMALLEST = 1e-12


@runtime_checkable
class SupportsTrust(Protocol):
    """Anything that scores predictions by the features, such as a fitted `TrustScore`."""

    def score(self, features: Any, predicted: Any) -> Floats:
        """Trust of each prediction, shape (n,)."""


@final
class Observed:
    """Samples together with their trust; each statistic is computed once.

    `trust` is a fitted trust score, or an array of shape (n,) of values that are known already.
    """

    def __init__(
        self, outputs: ModelOutputs, trust: SupportsTrust | ArrayLike | None = None
    ) -> None:
        self.outputs = outputs
        # Checked for None first: an instance check of a protocol takes a while.
        self.trust_score = trust if trust is not None and isinstance(trust, SupportsTrust) else None
        self.has_trust = trust is not None
        if trust is not None and self.trust_score is None:
            self.trust = _known_trust(trust, len(outputs))

    def split(self, fraction: float, seed: int = 0) -> tuple[Self, Self]:
        """Split at random, as `ModelOutputs.split` does, into a first part and the rest."""
        first, rest = (self.take(rows) for rows in self.outputs.split_indices(fraction, seed))
        return first, rest

    def take(self, rows: Codes) -> Self:
        """Some of the samples, by number; what is known of their trust is kept."""
        known = self.has_trust and (self.trust_score is None or "trust" in vars(self))
        return type(self)(self.outputs.take(rows), self.trust[rows] if known else self.trust_score)

    @property
    def confidence(self) -> Floats:
        """Largest softmax output, shape (n,), of the outputs as given (temperature 1)."""
        return self.outputs.confidence

    @cached_property
    def trust(self) -> Floats:
        """Trust score of the most likely class, shape (n,)."""
        if self.trust_score is None:
            raise InputError("Trust is needed, but no trust score was given; pass trust=.")
        if self.outputs.features is None:
            raise InputError("Trust needs features; pass features= to ModelOutputs.")
        return self.trust_score.score(self.outputs.features, self.outputs.predicted)

    @cached_property
    def entropy_and_margin(self) -> tuple[Floats, Floats]:
        """Entropy of the softmax, and the gap between its two largest outputs."""
        entropy, margin = np.empty(len(self.outputs)), np.ones(len(self.outputs))

        def fill(block: slice) -> None:
            p = self.outputs.block_probabilities(block)
            entropy[block] = -(p * np.log(np.maximum(p, np.finfo(float).tiny))).sum(axis=1)
            if p.shape[1] > 1:
                top = np.partition(p, -2, axis=1)[:, -2:]
                margin[block] = top[:, 1] - top[:, 0]

        for_each_block(fill, len(self.outputs), self.outputs.n_classes)
        return np.maximum(entropy, 0.0), margin


def _known_trust(values: Any, n: int) -> Floats:
    trust = to_numpy(values, "trust")
    numbers = trust.dtype.kind in "fiu" and not np.isnan(trust).any()
    if trust.shape != (n,) or not numbers:
        raise InputError(
            f"trust must be a fitted trust score, or an array of shape ({n},) without NaN; got "
            f"shape {trust.shape} and type {trust.dtype}."
        )
    return trust.astype(np.float64)


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
    def measure(self, observed: Observed) -> Floats:
        """Return the untransformed statistic of each sample, shape (n,)."""

    @property
    @final
    def learns(self) -> bool:
        """Whether the transform depends on the data it is fitted on."""
        return self.transform == "rank"

    @final
    def fit(self, observed: Observed) -> "FittedStatistic":
        """Learn the transform from samples."""
        reference = np.sort(self.measure(observed)) if self.learns else None
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

    def values(self, observed: Observed) -> Floats:
        """Return the transformed statistic of each sample, shape (n,)."""
        measured = self.statistic.measure(observed)
        if self.reference is not None:
            below = np.searchsorted(self.reference, measured, side="left")
            up_to = np.searchsorted(self.reference, measured, side="right")
            return (below + up_to) / (2.0 * self.reference.size)
        if self.statistic.transform == "log":
            return np.log(np.maximum(measured, _SMALLEST))
        return measured
