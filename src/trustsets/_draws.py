"""One uniform number per sample, a pure function of (seed, stream, key).

The key is the row number of a sample or a number made of its content, so that its draw is the same
whatever the batch, the order or the number of threads.
"""

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Stream(IntEnum):
    """What the draws are for; different purposes get independent draws."""

    CALIBRATION_SCORE = 1
    PREDICTION_SCORE = 2
    PREDICTION_LEVEL = 3
    RANK_TIES = 4
    TUNING_SCORE = 5
    CLASS_BIAS_FOLDS = 6
    BASIS_FOLDS = 7
    CALIBRATION_TIES = 8
    PREDICTION_TIES = 9
    SHIFT_FOLDS = 10
    MONITOR_TIES = 20
    MONITOR_PARTS = 21


def resolve_seed(random_state: Any, name: str = "random_state") -> int:
    """A non-negative integer seed from any of scikit-learn's forms of random_state."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        if random_state < 0:
            raise InputError(f"{name} must not be negative; got {random_state}.")
        return int(random_state)
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(1 << 31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(1 << 31))
    raise InputError(f"{name} must be an integer, None or a generator; got {random_state!r:.60}.")


def row_uniforms(seed: int, stream: Stream, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform draws in [0, 1), one for each row number.

    The output function of SplitMix64 (Steele, Lea and Flood 2014), applied twice, turns
    (seed, stream) into a key and (key, row) into 53 random bits.
    """
    start = np.array([(seed * _GOLDEN + int(stream)) & _MASK], dtype=np.uint64)
    key = _mix(_mix(start) + np.uint64(_GOLDEN))
    bits = _mix(_mix(rows.astype(np.uint64) * np.uint64(_GOLDEN) + key) ^ key)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def content_keys(numbers: NDArray[np.floating]) -> NDArray[np.int64]:
    """One 64-bit number for each row of an (n, d) array, made of its values and their columns."""
    # + 0.0 turns -0.0, which equals 0.0, into it.
    bits = np.ascontiguousarray(numbers.astype(np.float64) + 0.0).view(np.uint64)
    column = number_hashes(bits.shape[1])
    return _mix(_mix(bits + column).sum(axis=1, dtype=np.uint64)).view(np.int64)


def number_hashes(count: int) -> NDArray[np.uint64]:
    """64 random bits of each number from 1 to `count`, by SplitMix64."""
    return _mix(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
