"""Thresholds, and why each is what it is: one vocabulary from the engine to the report."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Status", "Thresholds"]


class Status(IntEnum):
    """Outcome of one new sample; stored as int8, read as a sentence.

    Examples
    --------
    >>> Status.UNSEEN_GROUP.sentence
    'no calibration sample shares the group of this sample, so the set is full'
    """

    sentence: str
    EXACT = 0, "the threshold is exact"
    FALLBACK = 1, "the threshold is exact; the slower linear program was needed to find it"
    HIGH_LEVERAGE = (
        2,
        "the calibration samples cannot balance a sample this extreme, so the threshold is "
        "infinite",
    )
    UNSEEN_DIRECTION = (
        3,
        "the sample uses a direction of the function class that no calibration sample has, so "
        "the threshold is infinite",
    )
    TOO_FEW_POINTS = 4, "there are too few calibration samples for this alpha, so the set is full"
    UNSEEN_GROUP = 5, "no calibration sample shares the group of this sample, so the set is full"
    ABOVE_ALL_SCORES = (
        6,
        "the threshold is finite and above the scores of all classes, so the set is full",
    )
    LIMITED = (
        7,
        "the group of this sample has too few calibration samples for a threshold of its own, "
        "so the threshold was limited to the one that all samples would get at alpha / 4",
    )
    ROUNDED_UP = (
        8,
        "rounding errors prevented a proof that the threshold is exact, so calibration scores "
        "were rounded up until there was one: coverage is kept, and the set may be larger",
    )
    UNCERTIFIED = (
        9,
        "rounding errors prevented a proof for every finite threshold, so the threshold is "
        "infinite: coverage is kept",
    )
    NO_GUARANTEE = (
        10,
        "sets of at most max_size classes cannot reach any useful alpha for samples like this "
        "one, so the set contains the most likely classes and nothing is guaranteed (alpha is 1)",
    )

    def __new__(cls, value: int, sentence: str = "") -> Self:
        """Make a member of its number and its sentence."""
        member = int.__new__(cls, value)
        member._value_, member.sentence = value, sentence
        return member

    @property
    def is_infinite(self) -> bool:
        """Whether the threshold is infinite."""
        return Status.HIGH_LEVERAGE <= self <= Status.UNSEEN_GROUP or self == Status.UNCERTIFIED


# By status: whether the threshold is infinite.
IS_INFINITE = np.array([status.is_infinite for status in sorted(Status)])


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of m samples with their `Status`, of shape (m,), or (m, A) for A alphas.

    Values are of shape (m, K, A) where each class has thresholds of its own, and infinite where no
    finite threshold is valid.
    """

    values: NDArray[np.float64]
    status: NDArray[np.int8]
