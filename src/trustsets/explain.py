"""Why a set is what it is: the calibration samples behind its threshold, and a certificate.

The threshold of `StandardConformal`, or of a cell of a partition, is that of a fit of the constant
function.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from trustsets._arrays import Array, Codes, Floats
from trustsets.engine import ScorePath
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor, QuantileFit
from trustsets.scores import conformal_quantile
from trustsets.status import Status
from trustsets.storage import atomic_path
from trustsets.verify import TINY, failing_conditions, is_on_fit

__all__ = ["Explanation", "InfluentialSample", "ThresholdCertificate", "certify", "explain"]

_FITS = ("plain", "lower", "upper")
# Weights below this share of the largest are zero up to rounding.
_NO_WEIGHT = 1e-7
# A path of thresholds is right up to this share of them.
_ROUNDING = 1e-11
# A statistic of this share of the calibration samples or less is low, and of all but so many high.
_LOW_SHARE = 0.25
# What a low and a high value of a statistic means.
_MEANINGS = {
    "Conf": ("the classifier is unsure", "the classifier is sure"),
    "Trust": (
        "its features are not clearly nearer to the predicted class than to another",
        "its features are clearly nearer to the predicted class than to any other",
    ),
}


@final
@dataclass(frozen=True)
class InfluentialSample:
    """A calibration sample whose score is part of a threshold.

    Attributes
    ----------
    row : int
        Its row among the samples given to `calibrate`.
    position : int
        Its position in the order of `calibration_rows_`.
    score, weight : float
        Its score, and the weight of the score in the threshold.
    low, high : float
        The set, or the membership of the explained class, is the same for all scores of this sample
        between these two, the other samples as they are, and changes just beyond them. Infinite
        where it never changes. Ties at the ends are not part of the statement.
    """

    row: int
    position: int
    score: float
    weight: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"row {self.row}: score {self.score:.4g}, weight {self.weight:.3g}; the outcome is the "
            f"same while this score is between {self.low:.4g} and {self.high:.4g}"
        )


@final
@dataclass(frozen=True)
class Explanation:
    """Why the set of one sample is what it is; `summary` says it in words.

    Attributes
    ----------
    classes : tuple
        The set.
    n_classes : int
    alpha, threshold : float
    status : Status
    label : class name or None
        The class whose membership is explained; None for the whole set.
    label_score : float or None
        Its score.
    fit : {"plain", "lower", "upper"}
        The fit that decides the threshold; the last two where thresholds of groups are limited.
    samples : tuple of InfluentialSample
        The threshold is ``sum(weight * score)`` over these, largest weights first; none where it is
        infinite. Then no calibration score could change that, because it depends on none.
    kept : bool
        Whether the set would be empty, and holds the most likely class for that reason.
    n_penalties : int
        How many penalties hold in place of further samples; their scores are 0.
    standard_threshold, standard_size : float and int
        What STANDARD would give with the same scores.
    ranks : dict
        Share of the calibration samples with smaller Conf and Trust, where these are in memory.
    """

    classes: tuple[Any, ...]
    n_classes: int
    alpha: float
    threshold: float
    status: Status
    label: Any
    label_score: float | None
    fit: str
    samples: tuple[InfluentialSample, ...]
    kept: bool
    n_penalties: int
    standard_threshold: float
    standard_size: int
    ranks: dict[str, float]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the outcome is as it is, as clauses; the most important first."""
        return tuple(_reasons(self))

    def summary(self) -> str:
        """The explanation in words."""
        because = "; ".join(self.reasons)
        lines = [f"{self._outcome} because {because}."]
        if self.samples:
            penalties = f" and {self.n_penalties} of penalties, which are 0"
            lines.append(
                f"The threshold of {self.threshold:.4g} is a weighted sum of these calibration "
                f"scores{penalties if self.n_penalties else ''}:"
            )
            lines += [f"  {sample}" for sample in self.samples]
        elif not np.isfinite(self.threshold):
            lines.append("The threshold is infinite, and no calibration score could change that.")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()

    @property
    def _outcome(self) -> str:
        if self.label is not None:
            return f"Class {self.label} is {'' if self.label in self.classes else 'not '}in the set"
        size = len(self.classes)
        if size == self.n_classes:
            return "This set is full"
        words = {0: "is empty", 1: "has one class"}
        return f"This set {words.get(size, f'has {size} of {self.n_classes} classes')}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; None stands for infinite numbers."""
        words = {"status": self.status.name.lower(), "reasons": self.reasons}
        plain: dict[str, Any] = _plain(asdict(self) | words | {"summary": self.summary()})
        return plain


def _reasons(explanation: Explanation) -> Iterator[str]:
    size, large = len(explanation.classes), len(explanation.classes) > 1
    if explanation.label is not None:
        side = "at most" if (explanation.label_score or 0.0) <= explanation.threshold else "above"
        yield (
            f"its score of {explanation.label_score:.4g} is {side} its threshold of "
            f"{explanation.threshold:.4g}"
        )
    if explanation.status is not Status.EXACT or not explanation.samples:
        yield explanation.status.sentence.removesuffix(", so the set is full")
    if explanation.fit == "lower":
        yield (
            "the threshold was raised to that of the fit in which groups have a penalty, whose "
            "guarantee is that of the sets"
        )
    is_kept = "the most likely class is kept where a set would be empty"
    if explanation.kept and explanation.label is not None:
        yield is_kept
    if explanation.label is not None or not explanation.samples:
        return
    if explanation.kept or not size:
        yield f"no class has a score at or below the threshold of {explanation.threshold:.4g}"
    if explanation.kept:
        yield is_kept
    for name, meaning in _MEANINGS.items():
        share = explanation.ranks.get(name, 0.5)
        if large and share <= _LOW_SHARE:
            yield f"{meaning[0]} ({1 - share:.0%} of the calibration samples have a {name} as high)"
        elif size == 1 and share >= 1.0 - _LOW_SHARE:
            yield f"{meaning[1]} ({share:.0%} of the calibration samples have a lower {name})"
    threshold, standard = explanation.threshold, explanation.standard_threshold
    mine = f"its threshold of {threshold:.4g}"
    if size != explanation.standard_size:
        kind = "higher" if threshold > standard else "lower"
        yield (
            f"{mine} is {kind} than the {standard:.4g} of STANDARD, which would give "
            f"{explanation.standard_size}"
        )
    elif size and not explanation.kept:
        many = "so many classes have scores" if size > 1 else "no other class has a score"
        yield f"{many} at or below {mine} ({standard:.4g} of STANDARD would give as many)"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if isinstance(value, bool | int | None) else str(value)


@final
class _DecidingFit:
    """The fits that decide the threshold of one sample, and which of them does.

    There is the plain fit and, where thresholds are limited, the lower and the upper one. The
    threshold is the smaller of the first and the last, or that of the lower one if it is more.
    `order` says which calibration sample each point of the fits is; penalties come after them.
    """

    def __init__(self, fits: list[QuantileFit], order: Codes) -> None:
        values = [fit.proof.threshold for fit in fits]
        self.fits, self.order = fits, order
        self.number = values.index(float(_limited(values)))
        self.fit, self.name = fits[self.number], _FITS[self.number]

    @property
    def status(self) -> Status:
        """Status of the deciding fit's threshold."""
        fit = self.fit
        if not np.isfinite(fit.proof.threshold) and fit.phi.shape[1] == 1:
            return Status.TOO_FEW_POINTS if len(fit.phi) else Status.UNSEEN_GROUP
        if self.name == "upper" and np.isfinite(fit.proof.threshold):
            return Status.LIMITED
        return Status(int(fit.model.thresholds(fit.row[None], fit.weight).status[0]))

    @property
    def n_penalties(self) -> int:
        """How many penalties hold in place of samples."""
        sensitivity = self.fit.sensitivity
        if sensitivity is None:
            return 0
        return int(np.count_nonzero(sensitivity.points >= len(self.order)))


def _limited(values: list[Any]) -> Any:
    """The threshold that is made of those of one fit or three."""
    if len(values) == 1:
        return values[0]
    plain, low, high = values
    return np.maximum(low, np.minimum(plain, high))


def certify(
    predictor: Predictor, sample: ModelOutputs, alpha: float, code: int | None
) -> "ThresholdCertificate":
    """See `Predictor.certificate`."""
    return ThresholdCertificate.of(_DecidingFit(*predictor.quantile_fits(sample, alpha, code)).fit)


def explain(
    predictor: Predictor, sample: ModelOutputs, alpha: float, code: int | None
) -> "Explanation":
    """See `Predictor.explain`."""
    deciding = _DecidingFit(*predictor.quantile_fits(sample, alpha, code))
    sets, proven = predictor.predict_set(sample, alpha), deciding.fit.proof.threshold
    assert sets.scores is not None
    scores = sets.scores[0]
    top = None if predictor.allow_empty or sets.predicted is None else int(sets.predicted[0])
    members = scores <= sets.thresholds[0]  # before the most likely class is kept
    if sets.thresholds.ndim == 1:
        # With randomised weights, sets subtract a draw that breaks ties.
        threshold, status = float(sets.thresholds[0]), Status(int(sets.status[0]))
        interval = _same_outcome(scores, threshold, top, code)
    else:
        assert code is not None
        # The status of the set is the worst of all classes.
        threshold, status, score = proven, deciding.status, float(scores[code])
        interval = (score, np.inf) if score <= threshold else (-np.inf, score)
        if code == top and not np.delete(members, code).any():
            interval = (-np.inf, np.inf)  # it is in the set anyway
    shift = threshold - proven if np.isfinite(threshold) else 0.0
    calibration = np.sort(predictor.state_.scores)
    standard = conformal_quantile(calibration, alpha)
    return Explanation(
        classes=tuple(sets[0].tolist()),
        n_classes=len(scores),
        alpha=alpha,
        threshold=threshold,
        status=status,
        label=None if code is None else predictor.classes_.tolist()[code],
        label_score=None if code is None else float(scores[code]),
        fit=deciding.name,
        samples=tuple(_influential_samples(predictor, deciding, interval, shift)),
        kept=top is not None and not members.any() and code in (None, top),
        n_penalties=deciding.n_penalties,
        standard_threshold=standard,
        standard_size=max(int(np.count_nonzero(scores <= standard)), not predictor.allow_empty),
        ranks=_ranks(predictor, sample),
    )


def _ranks(predictor: Predictor, sample: ModelOutputs) -> dict[str, float]:
    """Shares of calibration samples with smaller statistics, where these are in memory."""
    if not predictor.has_calibration:
        return {}
    calibration = predictor.calibration_
    ranks = {"Conf": float(np.mean(calibration.confidence < sample.confidence[0]))}
    if sample.trust is not None and calibration.trust is not None:
        ranks["Trust"] = float(np.mean(calibration.trust < sample.trust[0]))
    return ranks


def _same_outcome(
    scores: Floats, threshold: float, kept: int | None, code: int | None
) -> tuple[float, float]:
    """The thresholds, from the first up to the second, that give the same set.

    `kept` is the class that a set holds that would be empty. With `code`, only the membership of
    this class counts.
    """
    bounds = np.concatenate([[-np.inf], np.unique(scores), [np.inf]])

    def outcome(number: int) -> Array:
        members = scores <= bounds[number]
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


def _influential_samples(
    predictor: Predictor, deciding: _DecidingFit, interval: tuple[float, float], shift: float
) -> Iterator[InfluentialSample]:
    """Calibration samples of the deciding fit's threshold, the largest weights first."""
    sensitivity = deciding.fit.sensitivity
    if sensitivity is None:
        return
    points, weights = sensitivity.points, sensitivity.weights
    order = np.argsort(-np.abs(weights), kind="stable")
    for point, weight in zip(points[order].tolist(), weights[order].tolist(), strict=True):
        if point >= len(deciding.order) or abs(weight) <= _NO_WEIGHT * np.abs(weights).max():
            continue
        paths = [fit.path(point).shifted(shift) for fit in deciding.fits]
        score, position = float(deciding.fit.scores[point]), int(deciding.order[point])
        row = int(predictor.calibration_rows_[position])
        low, high = unchanged_range(paths, score, interval)
        yield InfluentialSample(row, position, score, weight, low, high)


def unchanged_range(
    paths: list[ScorePath], score: float, interval: tuple[float, float]
) -> tuple[float, float]:
    """How far a score can move, down and up, while the threshold stays in an interval.

    Between the knots of the paths and the scores at which they pass an end of the interval, the
    answer cannot change, so one score in each piece is tried.
    """
    ends = [np.concatenate([path.scores, *map(path.reach, interval)]) for path in paths]
    knots = np.unique(np.concatenate([*ends, [score]]))
    wide = 1.0 + np.abs(knots[[0, -1]])
    bounds = np.concatenate([[-np.inf], knots, [np.inf]])
    tried = np.concatenate(
        [[knots[0] - wide[0]], (knots[1:] + knots[:-1]) / 2.0, [knots[-1] + wide[1]]]
    )
    thresholds = _limited([path.at(np.append(tried, score)) for path in paths])
    # A threshold that stops where a class has its score must not miss it by rounding.
    finite, now = [end for end in interval if np.isfinite(end)], thresholds[-1]
    rounding = _ROUNDING * max(map(abs, (now, *finite)))
    for end in finite:
        if abs(now - end) > rounding:
            thresholds = np.where(np.abs(thresholds - end) <= rounding, end, thresholds)
    thresholds = thresholds[:-1]
    changed = ~((thresholds >= interval[0]) & (thresholds < interval[1]))
    # Piece k lies between bounds k and k + 1.
    here = int(np.searchsorted(knots, score))
    below = np.flatnonzero(changed[: here + 1])
    above = np.flatnonzero(changed[here + 1 :])
    low = bounds[below[-1] + 1] if len(below) else -np.inf
    high = bounds[here + 1 + above[0]] if len(above) else np.inf
    return float(low), float(high)


@final
@dataclass(frozen=True, eq=False, repr=False)
class ThresholdCertificate:
    """All numbers from which one threshold can be checked without this package.

    ``trustsets verify FILE`` checks a saved certificate, and so does ``python verify.py FILE`` with
    the one file ``trustsets/verify.py``, which needs NumPy alone and says why the check is a proof.
    That `phi` and `row` belong to certain samples is not part of it.

    Attributes
    ----------
    alpha, weight : float
        Miscoverage of the fit, and the weight of the sample, which is ``1 - alpha`` less 1e-9 or,
        with ``randomized=True``, a draw.
    threshold : float
        The threshold to be proven. Where thresholds are limited, that of the deciding fit. With
        ``randomized=True`` the sets subtract a draw that breaks ties.
    row : (p,) array
        Basis functions of the sample.
    phi, scores : (n, p) and (n,) arrays
        Basis functions and scores of the calibration samples, and points of penalties after them.
        A score that the engine cannot tell from the fit (4e-12 of the largest) is that of the fit.
    coefficients : (p,) array
        Of the optimal function or, for an infinite threshold, of a direction without a minimum.
    points, duals : (k,) arrays
        Row numbers of the points on the fit, and the slopes of their losses.
    """

    alpha: float
    weight: float
    threshold: float
    row: Floats
    phi: Floats
    scores: Floats
    coefficients: Floats
    points: Codes
    duals: Floats

    @classmethod
    def of(cls, fit: QuantileFit) -> Self:
        """The certificate of a fit's threshold."""
        proof, scores, b = fit.proof, fit.scores, fit.proof.coefficients
        points, duals = proof.points, proof.duals
        if fit.sensitivity is not None:
            rows = fit.phi[proof.basic_points]
            sizes = np.maximum(np.abs(rows).max(axis=0, initial=0.0), TINY)
            for _ in range(4):  # each leaves 1e-16 of the error
                rest = fit.sensitivity.basic_scores - rows @ b
                b = b + np.linalg.lstsq(rows / sizes, rest, rcond=None)[0] / sizes
            b = np.where(np.abs(b) * sizes > 1e-30 * np.abs(scores).max(), b, 0.0)
            fitted, on_fit = fit.phi @ b, is_on_fit(fit.phi, scores, b)
            # To the engine, scores this near to the fit were equal to others, or tied with the fit.
            tied = (scores > fitted) != (fit.sensitivity.duals > 0.5 - fit.alpha)
            tied[proof.basic_points] = True
            scores = np.where(tied & ~on_fit, fitted, scores)
            points = np.flatnonzero(tied | on_fit)
            duals = fit.sensitivity.duals[points]
        return cls(
            alpha=fit.alpha,
            weight=proof.weight,
            threshold=proof.threshold,
            row=fit.row,
            phi=fit.phi,
            scores=scores,
            coefficients=b,
            points=points,
            duals=duals,
        )

    def __repr__(self) -> str:
        return (
            f"ThresholdCertificate(threshold={self.threshold:.6g}, alpha={self.alpha:g}, "
            f"{len(self.scores):,} points, {len(self.row)} basis functions)"
        )

    def failing_conditions(self) -> list[str]:
        """What is wrong, in words; nothing if the threshold is proven."""
        return failing_conditions(asdict(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .npz or .json file; atomic, and without pickle."""
        kind = Path(path).suffix.lower()
        if kind not in (".npz", ".json"):
            raise InputError(f"path must end in .npz or .json; got {os.fspath(path)!r}.")
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in asdict(self).items()}
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            if kind == ".npz":
                np.savez_compressed(file, **arrays)
                return
            plain: dict[str, Any] = {name: value.tolist() for name, value in arrays.items()}
            if not np.isfinite(self.threshold):
                # JSON has no infinity; `float` reads the word.
                plain["threshold"] = str(self.threshold)
            file.write(json.dumps(plain, allow_nan=False).encode())
