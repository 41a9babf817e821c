"""Why a threshold is what it is: one small vocabulary from the engine to the report.

Imports nothing of the package.
"""

from enum import IntEnum

__all__ = ["Status"]


class Status(IntEnum):
    """Outcome of one test point; stored as int8, read as a sentence.

    Examples
    --------
    >>> Status.UNSEEN_GROUP.sentence
    'no calibration point shares the group of this point, so its set holds every class'
    """

    EXACT = 0
    FALLBACK = 1
    HIGH_LEVERAGE = 2
    UNSEEN_DIRECTION = 3
    TOO_FEW_POINTS = 4
    UNSEEN_GROUP = 5
    ABOVE_ALL_SCORES = 6
    RESTRAINED = 7
    ROUNDED_UP = 8
    UNCERTIFIED = 9

    @property
    def sentence(self) -> str:
        """Plain words for a person who reads the result."""
        return _SENTENCES[self]

    @property
    def is_infinite(self) -> bool:
        """Whether the threshold is infinite."""
        return Status.HIGH_LEVERAGE <= self <= Status.UNSEEN_GROUP or self == Status.UNCERTIFIED


_SENTENCES = {
    Status.EXACT: "the threshold is exact",
    Status.FALLBACK: "the threshold is exact; the slower linear program was needed to find it",
    Status.HIGH_LEVERAGE: (
        "the calibration data cannot balance a point this extreme, so its threshold is infinite"
    ),
    Status.UNSEEN_DIRECTION: (
        "the point uses a direction of the function class that no calibration point has, "
        "so its threshold is infinite"
    ),
    Status.TOO_FEW_POINTS: (
        "there are too few calibration points for this alpha, so the set holds every class"
    ),
    Status.UNSEEN_GROUP: (
        "no calibration point shares the group of this point, so its set holds every class"
    ),
    Status.ABOVE_ALL_SCORES: (
        "the threshold is finite and above the score of every class, so the set holds them all"
    ),
    Status.RESTRAINED: (
        "the groups of this point ask for a higher threshold than all points together need at a "
        "quarter of alpha, so it has the latter"
    ),
    Status.ROUNDED_UP: (
        "rounding errors kept the exact threshold from being certified, so calibration scores were "
        "rounded up until one could be: coverage is kept, and the set may be larger"
    ),
    Status.UNCERTIFIED: (
        "rounding errors kept any finite threshold from being certified, so it is infinite: "
        "coverage is kept"
    ),
}
