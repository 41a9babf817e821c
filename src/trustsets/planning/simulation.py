"""Coverage of calibration sets of several sizes, on the user's own outputs.

A calibration set is drawn without replacement from labelled samples, a copy of the predictor is
calibrated on it, and coverage is counted on samples that were left out. This is exact: under the
assumption of every conformal method the samples that are left out are new samples. Their number is
finite, so the spread of the counted coverage is that of the coverage plus binomial noise, which is
subtracted.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from trustsets._common.arrays import Array, Floats
from trustsets._common.progress import Progress, no_progress
from trustsets._common.validation import check_least
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.metrics.inference import Ints
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor

__all__ = ["Curve", "class_parts", "group_parts", "simulate"]

# Sizes of the curve: the largest leaves out this share of the samples, and each next one is half.
_LEFT_OUT = 1.0 / 3.0
_SIZES = 4
_FEWEST = 50
# More samples that are left out make a run slow; their noise is subtracted in any case.
_MOST_TESTED = 5000


@final
@dataclass(frozen=True)
class Curve:
    """Coverage and size of sets against the number of calibration samples.

    Attributes
    ----------
    sizes : int array of shape (S,)
        Calibration samples, tuning samples included.
    repeats : int
        Calibration sets drawn of each size.
    coverage, spread : arrays of shape (S,)
        Mean coverage over calibration sets, and its standard deviation from one set to the next.
    reached : array of shape (S,)
        Share of the calibration sets whose coverage is within the tolerance.
    set_size : array of shape (S,)
        Mean size of the sets.
    parts : tuple of str
        The P groups and classes of the samples.
    part_coverage, part_spread, part_reached : arrays of shape (S, P)
        As `coverage`, `spread` and `reached`, of the samples of each; NaN where there were none.
    """

    sizes: Ints
    repeats: int
    coverage: Floats
    spread: Floats
    reached: Floats
    set_size: Floats
    parts: tuple[str, ...]
    part_coverage: Floats
    part_spread: Floats
    part_reached: Floats


def simulate(
    predictor: Predictor,
    outputs: ModelOutputs,
    alpha: float,
    within: float,
    *,
    sizes: Sequence[int] | None = None,
    repeats: int = 20,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Curve:
    """Calibrate copies of a predictor on random parts of labelled outputs.

    Parameters
    ----------
    predictor : Predictor
        Calibrated or not; it is not changed.
    outputs : ModelOutputs
        N samples with labels that the classifier was not trained on.
    alpha, within : float
        Allowed miscoverage, and tolerance.
    sizes : sequence of int, optional
        Sizes of the calibration sets; default: two thirds of N, and half, a quarter and an eighth
        of that.
    repeats, seed : int
        Calibration sets of each size, and the seed that they are drawn with.
    progress : callable, optional
        Told the number of calibrations; gives a context around them.
    """
    outputs.require_labels("a simulation")
    parts = group_parts(outputs) | class_parts(outputs)
    chosen = _check_sizes(sizes, len(outputs), repeats)
    trust = _known_trust(predictor, outputs)
    rng = np.random.default_rng(seed)
    tested = np.empty((len(chosen), repeats, 1 + len(parts)))
    covered, size = np.empty_like(tested), np.empty((len(chosen), repeats))
    with progress(len(chosen) * repeats) as advance, warnings.catch_warnings():
        # What a small calibration set lacks is what the curve is about.
        warnings.simplefilter("ignore", TrustSetsWarning)
        for place, n in enumerate(chosen):
            for run in range(repeats):
                # With its own seed, a copy also draws its tuning samples and random scores anew.
                own = clone(predictor).set_params(random_state=int(rng.integers(1 << 31)))
                order = rng.permutation(len(outputs))[: n + _MOST_TESTED]
                rest, hits, sizes_of = _one_run(own, outputs, trust, (order, n), alpha)
                inside = [np.ones(rest.size, np.bool_), *(own[rest] for own in parts.values())]
                tested[place, run] = [np.count_nonzero(own) for own in inside]
                covered[place, run] = [np.count_nonzero(hits[own]) for own in inside]
                size[place, run] = sizes_of.mean()
                advance(1)
    mean, spread, reached = _summarise(covered, tested, alpha, within)
    return Curve(
        sizes=np.array(chosen, dtype=np.int64),
        repeats=repeats,
        coverage=mean[:, 0],
        spread=spread[:, 0],
        reached=reached[:, 0],
        set_size=size.mean(axis=1),
        parts=tuple(parts),
        part_coverage=mean[:, 1:],
        part_spread=spread[:, 1:],
        part_reached=reached[:, 1:],
    )


def group_parts(outputs: ModelOutputs) -> dict[str, NDArray[np.bool_]]:
    """Which samples are of each group, by name."""
    found: dict[str, NDArray[np.bool_]] = {}
    for column, values in outputs.groups.items():
        found |= _parts_of(values, f"{column} =")
    return found


def class_parts(outputs: ModelOutputs) -> dict[str, NDArray[np.bool_]]:
    """Which samples are of each class, by name."""
    return {} if outputs.labels is None else _parts_of(outputs.labels, "class")


def _parts_of(values: Array, word: str) -> dict[str, NDArray[np.bool_]]:
    texts = values.astype(str)
    return {f"{word} {name}": texts == name for name in np.unique(texts).tolist()}


def _check_sizes(sizes: Sequence[int] | None, n: int, repeats: int) -> list[int]:
    check_least(2, repeats=repeats)
    if sizes is None:
        largest = int(n * (1.0 - _LEFT_OUT))
        halves = [largest >> shift for shift in reversed(range(_SIZES))]
        sizes = [own for own in halves if own >= _FEWEST]
        if not sizes:
            least = math.ceil(_FEWEST / (1.0 - _LEFT_OUT)) + 1
            raise InputError(f"outputs must have {least} samples or more to simulate; got {n}.")
    if not sizes or min(sizes) < 1 or max(sizes) >= n:
        raise InputError(f"sizes must be between 1 and {n - 1}, fewer than the {n} samples.")
    return sorted(set(sizes))


def _known_trust(predictor: Predictor, outputs: ModelOutputs) -> Floats | None:
    """Trust of all samples, computed once for all calibration sets."""
    if predictor.trust is None or outputs.features is None:
        return None
    return outputs.with_trust(predictor.trust).trust


def _one_run(
    predictor: Predictor,
    outputs: ModelOutputs,
    trust: Floats | None,
    drawn: tuple[Ints, int],
    alpha: float,
) -> tuple[Ints, NDArray[np.bool_], Ints]:
    """Samples that were left out, whether each is covered, and the size of its set."""
    order, n = drawn
    used, rest = np.sort(order[:n]), np.sort(order[n:])
    known = [None, None] if trust is None else [trust[used], trust[rest]]
    test = outputs.take(rest)
    predictor.calibrate(outputs.take(used), trust=known[0])
    sets = predictor.predict_set(test, alpha=alpha, trust=known[1])
    return rest, sets.covers(test.labels), sets.sizes


def _summarise(
    covered: Floats, tested: Floats, alpha: float, within: float
) -> tuple[Floats, Floats, Floats]:
    """Mean and spread of the coverage over runs (axis 1), and the share within the tolerance."""
    seen, known = tested > 0, np.maximum(tested, 1.0)
    runs = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    coverage = np.where(seen, covered / known, 0.0)
    mean = coverage.sum(axis=1, keepdims=True) / runs
    off = np.where(seen, coverage - mean, 0.0)
    counted = (off**2).sum(axis=1, keepdims=True) / np.maximum(runs - 1, 1)
    # The variance of a Beta-binomial share: Var C + E[C (1 - C)] / tested.
    shares = (seen / np.maximum(known - 1.0, 1.0)).sum(axis=1, keepdims=True) / runs
    true = np.maximum(counted - (mean * (1.0 - mean) - counted) * shares, 0.0)
    shrunk = mean + off * np.sqrt(true / np.maximum(counted, np.finfo(float).tiny))
    inside = seen & (np.abs(shrunk - (1.0 - alpha)) <= within)
    reached = inside.sum(axis=1) / runs[:, 0]
    empty = ~seen.any(axis=1)
    found = mean[:, 0], np.sqrt(true[:, 0]), reached
    first, second, third = (np.where(empty, np.nan, own) for own in found)
    return first, second, third
