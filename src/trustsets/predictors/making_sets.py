"""From thresholds to sets: at one or several alphas, at one for each sample, of limited size."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import ROUND_DOWN, Context
from typing import TYPE_CHECKING, Any

import numpy as np

from trustsets._common.arrays import Floats, column, to_numpy
from trustsets._common.quantiles import check_alphas
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.calibrated import Calibrated
from trustsets.predictors.thresholds import SampleThresholds
from trustsets.predictors.tuning import Method
from trustsets.sets import PredictionSets
from trustsets.status import Status

if TYPE_CHECKING:
    from trustsets.predictors.set_predictor import SetPredictor

__all__ = [
    "calibration_alphas",
    "each_alpha",
    "make_sets",
    "rounded_down",
    "sample_alphas",
    "sets_of",
]

_FINITE = tuple(status for status in Status if not status.is_infinite)

# Each distinct alpha needs a fit, so alphas that no calibration sample shares are rounded down.
_ROUNDING = Context(prec=3, rounding=ROUND_DOWN)


def make_sets(
    predictor: "SetPredictor", state: Calibrated, outputs: ModelOutputs, alpha: Any, max_size: Any
) -> PredictionSets:
    """Sets of new samples; the parameters are those of `Predictor.predict_set`."""
    if max_size is not None:
        return _sized_sets(predictor, state, outputs, alpha, max_size)
    own = sample_alphas(alpha, len(outputs))
    if own is not None:
        found = _at_own_alphas(predictor, state, outputs, own)
        return replace(sets_of(predictor, state, outputs, found, (0.0,)).at(0.0), alpha=own)
    alphas, single = check_alphas(alpha)
    found = predictor._thresholds(state.learned, outputs, alphas, state.scoring(predictor.score))
    sets = sets_of(predictor, state, outputs, found, alphas)
    return sets.at(alphas[0]) if single else sets


def sets_of(
    predictor: "SetPredictor",
    state: Calibrated,
    outputs: ModelOutputs,
    found: SampleThresholds,
    alphas: tuple[float, ...],
) -> PredictionSets:
    """Compare the scores of all classes with thresholds."""
    scoring = state.scoring(predictor.score)
    mask = scoring.masks(outputs, found, allow_empty=predictor.allow_empty)
    # A full set always says why it is full.
    bounded = mask.all(axis=1) & np.isin(found.status, _FINITE)
    status = np.where(bounded, np.int8(Status.ABOVE_ALL_SCORES), found.status)
    flavour = outputs.flavour
    return PredictionSets(mask, found.values, status, alphas, state.classes, flavour)


def _at_own_alphas(
    predictor: "SetPredictor", state: Calibrated, outputs: ModelOutputs, alphas: Floats
) -> SampleThresholds:
    """Thresholds at the alpha of each sample."""
    method, scoring = predictor._method(), state.scoring(predictor.score)
    if method.own_alphas is not None:
        return method.own_alphas(state.learned, outputs, alphas, scoring)
    if method.batch_dependence:
        raise InputError(f"alpha must be one number here, because {method.batch_dependence}.")
    return each_alpha(
        lambda part, alpha: predictor._thresholds(state.learned, part, (alpha,), scoring),
        outputs,
        rounded_down(alphas),
    )


def _sized_sets(
    predictor: "SetPredictor", state: Calibrated, outputs: ModelOutputs, alpha: Any, max_size: Any
) -> PredictionSets:
    """Sets of at most `max_size` classes."""
    size, sized = _read_size(max_size), predictor._method().sized
    if sized is None:
        raise InputError(
            f"max_size is for ConditionalConformal; {type(predictor).__name__} cannot give each "
            "sample an alpha of its own. ConditionalConformal(basis=Intercept()) makes the same "
            "promise to all samples."
        )
    if isinstance(alpha, Sequence) or np.ndim(alpha) != 0:
        raise InputError("alpha must be one number with max_size, the smallest that sets promise.")
    if size >= state.classes.size:
        sets = make_sets(predictor, state, outputs, alpha, None)
        return replace(sets, alpha=np.full(len(sets), sets.alpha))
    scoring = state.scoring(predictor.score)
    least = check_alphas(alpha)[0][0]
    own = sized(state.learned, outputs, least, size, scoring)
    within = scoring.masks(outputs, own.found, allow_empty=predictor.allow_empty)[..., 0]
    most = scoring.most_likely(outputs, size)
    # Where so few classes cannot keep alpha, the set holds all of them: larger sets keep promises.
    mask = most & (within | (own.alphas > least)[:, None])
    found = own.found
    values, status = found.values[..., 0], found.status[:, 0]
    flavour = outputs.flavour
    return PredictionSets(mask, values, status, own.alphas, state.classes, flavour)


def _read_size(max_size: Any) -> int:
    whole = isinstance(max_size, int | np.integer) and not isinstance(max_size, bool)
    if not whole or max_size < 1:
        raise InputError(f"max_size must be a whole number, 1 or more; got {max_size!r}.")
    return int(max_size)


def calibration_alphas(method: Method, alphas: Any, n: int) -> Floats:
    """Alphas of n calibration samples, for the methods that use them."""
    if method.own_alphas is None:
        raise InputError(
            "alphas of calibration samples are for ConditionalConformal; leave them out."
        )
    return _read_alphas(alphas, "alphas", n)


def sample_alphas(alpha: Any, m: int) -> Floats | None:
    """Alphas of m samples, where an array was given; None for a number, a list or a tuple.

    Examples
    --------
    >>> sample_alphas(np.array([0.1, 0.2]), 2)
    array([0.1, 0.2])
    >>> sample_alphas([0.1, 0.2], 2) is None
    True
    """
    if isinstance(alpha, Sequence | str) or np.ndim(alpha) != 1:
        return None
    given = to_numpy(alpha, "alpha")
    if given.shape != (m,):
        raise InputError(
            f"alpha, an array, must hold one number for each of the {m} samples; got {given.size}. "
            "For sets at several alphas pass a list: alpha.tolist()."
        )
    return _read_alphas(given, "alpha", m)


def _read_alphas(alphas: Any, name: str, n: int) -> Floats:
    """One number strictly between 0 and 1 for each of n samples."""
    given = column(alphas, name, n)
    if given.dtype.kind not in "f":
        raise InputError(f"{name} must hold numbers between 0 and 1; got type {given.dtype}.")
    if given.dtype != np.float64:
        # A float32 0.1 prints as 0.1: that decimal is meant, not the nearest float32.
        given = given.astype(str).astype(np.float64)
    wrong = ~((given > 0.0) & (given < 1.0))
    if wrong.any():
        place = int(np.argmax(wrong))
        raise InputError(
            f"{name} must lie strictly between 0 and 1; sample {place} has {given[place]}."
        )
    return given


def rounded_down(alphas: Floats) -> Floats:
    """Alphas with three digits, so that there are not too many of them.

    Examples
    --------
    >>> rounded_down(np.array([0.29, 0.12345, 0.019999, 0.21999999999999997]))
    array([0.29  , 0.123 , 0.0199, 0.22  ])
    """
    distinct, place = np.unique(alphas, return_inverse=True)
    # In decimals, because 0.29 is less than 29 hundredths in binary. The first rounding, to 12
    # digits, makes 0.22 of 0.21999999999999997, which sums and grids often give.
    cut = [float(_ROUNDING.create_decimal(f"{own:.12g}")) for own in distinct.tolist()]
    return np.array(cut)[place]


def each_alpha(
    thresholds: Callable[[ModelOutputs, float], SampleThresholds],
    outputs: ModelOutputs,
    alphas: Floats,
) -> SampleThresholds:
    """Thresholds of every sample at its alpha, from those of samples with the same alpha."""
    parts: list[tuple[Any, SampleThresholds]] = []
    for alpha in np.unique(alphas).tolist():
        index = np.flatnonzero(alphas == alpha)
        parts.append((index, thresholds(outputs.take(index), alpha)))
    order = np.argsort(np.concatenate([index for index, _ in parts]))
    values, status = (
        np.concatenate([getattr(own, name) for _, own in parts])[order]
        for name in ("values", "status")
    )
    return SampleThresholds(values, status)
