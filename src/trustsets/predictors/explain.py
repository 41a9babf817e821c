"""Why a set is what it is: which calibration samples carry its threshold, and how firmly."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trustsets._common.arrays import Array, Floats
from trustsets._common.quantiles import check_alpha, conformal_quantile
from trustsets.engine import ScorePath
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Predictor
from trustsets.predictors.calibrated import Task
from trustsets.predictors.certificate import (
    FitsOfSample,
    ThresholdCertificate,
    fits_of_sample,
    limited,
    needs_label,
)
from trustsets.predictors.explanation import CarryingSample, Explanation
from trustsets.predictors.set_predictor import as_calibrated
from trustsets.status import Status

__all__ = ["CarryingSample", "Explanation", "certify", "explain", "needs_label", "unchanged_range"]

# Samples whose ranks differ by at most this share are similar.
_SIMILAR_SHARE = 0.05
# Scores this near to a threshold, in standard deviations of the calibration scores, are close.
_CLOSE = 0.1
# Weights below this share of the largest are zero up to rounding.
_NO_WEIGHT = 1e-7


def _fits_to_explain(
    predictor: Predictor, sample: ModelOutputs, alpha: Any, label: Any, trust: Any
) -> tuple[FitsOfSample, ModelOutputs, float, int | None]:
    """Check what `explain` and `certificate` are given, and find the fits of the sample."""
    if len(sample) != 1:
        raise InputError(f"sample must be one sample, such as test[0]; got {len(sample)}.")
    alpha, classes = check_alpha(alpha), predictor.classes_
    code = None
    if label is not None:
        found = np.flatnonzero(classes == label)
        if len(found) != 1:
            raise InputError(f"label must be one of the classes; got {label!r}.")
        code = int(found[0])
    sample = as_calibrated(predictor.state_, sample)
    outputs = sample.with_trust(predictor.trust if trust is None else trust)
    return fits_of_sample(predictor, outputs, alpha, code), outputs, alpha, code


def certify(
    predictor: Predictor, sample: ModelOutputs, alpha: Any, label: Any, trust: Any
) -> ThresholdCertificate:
    """See `Predictor.certificate`."""
    fits = _fits_to_explain(predictor, sample, alpha, label, trust)[0]
    return ThresholdCertificate.of(fits.deciding)


def explain(
    predictor: Predictor, sample: ModelOutputs, alpha: Any, label: Any, trust: Any
) -> Explanation:
    """See `Predictor.explain`."""
    fits, outputs, alpha, code = _fits_to_explain(predictor, sample, alpha, label, trust)
    sets = predictor.predict_set(sample, alpha, trust=trust)
    scoring = predictor._state().scoring(predictor.score)
    scores, proven = scoring.matrix(sample)[0], fits.deciding.proof.threshold
    if sets.thresholds.ndim == 1:
        # With randomised weights, sets subtract a draw that breaks ties.
        threshold, status = float(sets.thresholds[0]), Status(int(sets.status[0]))
        top = int(scoring.corrected(sample).predicted_codes[0])
        interval = _same_outcome(scores, threshold, None if predictor.allow_empty else top, code)
    else:
        assert code is not None
        # The status of the set is the worst of all classes.
        threshold, status, own = proven, fits.status, float(scores[code])
        interval = (own, np.inf) if own <= threshold else (-np.inf, own)
    shift = threshold - proven if np.isfinite(threshold) else 0.0
    samples = tuple(_carrying_samples(predictor, fits, interval, shift))
    calibration = np.sort(predictor._state().learned.scores)
    standard = conformal_quantile(calibration, alpha)
    gaps, close = scores - threshold, _CLOSE * float(np.std(calibration))
    ranks, n_similar = _ranks(predictor._task, outputs)
    return Explanation(
        classes=tuple(sets.classes[sets.mask[0]].tolist()),
        n_classes=len(scores),
        alpha=alpha,
        threshold=threshold,
        status=status,
        label=label,
        label_score=None if code is None else float(scores[code]),
        fit=fits.name,
        samples=samples,
        kept=bool(sets.mask.any() and not (scores <= threshold).any()) and code is None,
        n_penalties=_n_penalties(fits),
        standard_threshold=standard,
        standard_size=max(int(np.count_nonzero(scores <= standard)), not predictor.allow_empty),
        close_below=int(np.count_nonzero((gaps <= 0.0) & (gaps >= -close))),
        close_above=int(np.count_nonzero((gaps > 0.0) & (gaps <= close))),
        ranks=ranks,
        n_similar=n_similar,
    )


def _n_penalties(fits: FitsOfSample) -> int:
    own = fits.deciding.sensitivity
    return 0 if own is None else int(np.count_nonzero(own.points >= len(fits.order)))


def _ranks(task: Task | None, outputs: ModelOutputs) -> tuple[dict[str, float], int | None]:
    """Shares of calibration samples with smaller statistics, and the number of similar samples."""
    if task is None:
        return {}, None
    known = {"Conf": (task.calibration.confidence, float(outputs.confidence[0]))}
    if outputs.trust is not None and task.calibration.trust is not None:
        known["Trust"] = task.calibration.trust, float(outputs.trust[0])
    ranks, similar = {}, np.ones(len(task.scores), np.bool_)
    for name, (values, own) in known.items():
        ordered = np.sort(values)
        ranks[name] = float(np.searchsorted(ordered, own)) / len(ordered)
        # Ties count as similar, whatever their number.
        ends = np.array([ranks[name] - _SIMILAR_SHARE, ranks[name] + _SIMILAR_SHARE])
        low, high = ordered[np.clip(ends * len(ordered), 0, len(ordered) - 1).astype(np.int64)]
        similar &= (values >= low) & (values <= high)
    return ranks, int(np.count_nonzero(similar))


def _same_outcome(
    scores: Floats, threshold: float, kept: int | None, code: int | None
) -> tuple[float, float]:
    """The thresholds, from the first up to the second, that give the same set.

    `kept` is the class that a set holds that would be empty. With `code`, only the membership of
    this class counts.
    """
    bounds = np.concatenate([[-np.inf], np.unique(scores), [np.inf]])

    def outcome(place: int) -> Array:
        members = scores <= bounds[place]
        if kept is not None and not members.any():
            members[kept] = True
        return np.asarray(members if code is None else members[[code]])

    first = int(np.searchsorted(bounds[:-1], threshold, side="right")) - 1
    last, mine = first + 1, outcome(first)
    while first > 0 and np.array_equal(outcome(first - 1), mine):
        first -= 1
    while last < len(bounds) - 1 and np.array_equal(outcome(last), mine):
        last += 1
    return float(bounds[first]), float(bounds[last])


def _carrying_samples(
    predictor: Predictor, fits: FitsOfSample, interval: tuple[float, float], shift: float
) -> Iterator[CarryingSample]:
    """Calibration samples of the deciding fit's threshold, the largest weights first."""
    deciding, task = fits.deciding, predictor._task
    if deciding.sensitivity is None:
        return
    points, weights = deciding.sensitivity.points, deciding.sensitivity.weights
    order = np.argsort(-np.abs(weights), kind="stable")
    for point, weight in zip(points[order].tolist(), weights[order].tolist(), strict=True):
        if point >= len(fits.order) or abs(weight) <= _NO_WEIGHT * np.abs(weights).max():
            continue
        paths = [fit.path(point).shifted(shift) for fit in fits.fits]
        score, place = float(deciding.scores[point]), int(fits.order[point])
        row = None if task is None else int(task.calibration.rows[place])
        low, high = unchanged_range(paths, score, interval)
        yield CarryingSample(row, place, score, weight, low, high, *_span(paths))


def _span(paths: list[ScorePath]) -> tuple[float, float]:
    """The lowest and the highest threshold that any score gives; NaN where it is not known."""
    places = np.unique(np.concatenate([path.scores for path in paths]))
    ends = [
        [end + np.inf * slope if slope else end for end, slope in _end_slopes(path)]
        for path in paths
    ]
    every = limited(
        [np.append(path.at(places), end) for path, end in zip(paths, ends, strict=True)]
    )
    return float(every.min()), float(every.max())


def _end_slopes(path: ScorePath) -> Iterator[tuple[float, float]]:
    """Thresholds at the first and the last knot, and how they change away from the others."""
    yield float(path.values[0]), -path.slopes[0]
    yield float(path.values[-1]), path.slopes[1]


def unchanged_range(
    paths: list[ScorePath], score: float, interval: tuple[float, float]
) -> tuple[float, float]:
    """How far a score can move, down and up, while the threshold stays in an interval.

    Between the knots of the paths and the scores at which they pass an end of the interval, the
    answer cannot change, so one score in each piece is tried.
    """
    found = [np.concatenate([path.scores, *map(path.reach, interval)]) for path in paths]
    places = np.unique(np.concatenate([*found, [score]]))
    wide = 1.0 + np.abs(places[[0, -1]])
    ends = np.concatenate([[-np.inf], places, [np.inf]])
    tried = np.concatenate(
        [[places[0] - wide[0]], (places[1:] + places[:-1]) / 2.0, [places[-1] + wide[1]]]
    )
    thresholds = limited([path.at(tried) for path in paths])
    changed = ~((thresholds >= interval[0]) & (thresholds < interval[1]))
    # Piece k lies between ends k and k + 1.
    here = int(np.searchsorted(places, score))
    below = np.flatnonzero(changed[: here + 1])
    above = np.flatnonzero(changed[here + 1 :])
    low = ends[below[-1] + 1] if len(below) else -np.inf
    high = ends[here + 1 + above[0]] if len(above) else np.inf
    return float(low), float(high)
