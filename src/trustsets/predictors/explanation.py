"""The explanation of a set as data and in words; `explain` computes it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from trustsets.status import Status

__all__ = ["CarryingSample", "Explanation"]

# A statistic of this share of the calibration samples or less is low, and of all but so many high.
_LOW_SHARE = 0.25
# With fewer similar samples than this many times 1 / alpha, they have no quantile of their own to
# speak of.
_FEW_SIMILAR = 2.0
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
class CarryingSample:
    """A calibration sample whose score is part of a threshold.

    Attributes
    ----------
    row : int or None
        Its row among the samples given to `calibrate`; None where they are not in memory.
    place : int
        Its place among the calibration samples: in the order of `calibration_rows_`, or of the
        scores (by group, for Mondrian) where the samples are not in memory.
    score, weight : float
        Its score, and the weight of the score in the threshold.
    low, high : float
        The set, or the membership of the explained class, is the same for all scores of this sample
        between these two, the other samples as they are, and changes just beyond them. Infinite
        where it never changes. Ties at the ends are not part of the statement.
    lowest, highest : float
        Between these two the threshold stays, whatever the score of this sample is.
    """

    row: int | None
    place: int
    score: float
    weight: float
    low: float
    high: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        name = f"place {self.place}" if self.row is None else f"row {self.row}"
        return f"{name}: score {self.score:.4g}, weight {self.weight:.3g}; {self._range}"

    @property
    def _range(self) -> str:
        kept = "the outcome is the same"
        low, high = np.isfinite(self.low), np.isfinite(self.high)
        if low and high:
            return f"{kept} while this score is between {self.low:.4g} and {self.high:.4g}"
        if low or high:
            end = f"at least {self.low:.4g}" if low else f"at most {self.high:.4g}"
            return f"{kept} while this score is {end}"
        span = f"the threshold stays between {self.lowest:.4g} and {self.highest:.4g}"
        return f"{kept} whatever this score is ({span})"


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
    fit : {"own", "lower", "upper"}
        The fit that decides the threshold; the last two where thresholds of groups are limited.
    samples : tuple of CarryingSample
        The threshold is ``sum(weight * score)`` over these, largest weights first; none where it is
        infinite. Then no calibration score could change that, because it depends on none.
    kept : bool
        Whether the set would be empty, and holds the most likely class for that reason.
    n_penalties : int
        How many penalties hold in place of further samples; their scores are 0.
    standard_threshold, standard_size : float and int
        What STANDARD would give with the same scores.
    close_below, close_above : int
        Number of classes whose scores are within a tenth of a standard deviation of the calibration
        scores below and above the threshold.
    ranks : dict
        Share of the calibration samples with smaller Conf and Trust, where these are in memory.
    n_similar : int or None
        Calibration samples whose ranks of Conf and Trust are within 5 percentage points.
    """

    classes: tuple[Any, ...]
    n_classes: int
    alpha: float
    threshold: float
    status: Status
    label: Any
    label_score: float | None
    fit: str
    samples: tuple[CarryingSample, ...]
    kept: bool
    n_penalties: int
    standard_threshold: float
    standard_size: int
    close_below: int
    close_above: int
    ranks: dict[str, float]
    n_similar: int | None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the outcome is as it is, as clauses; the most important first."""
        return tuple(_reasons(self))

    @property
    def summary(self) -> str:
        """The explanation in words."""
        because = "; ".join(self.reasons)
        lines = [f"{self._outcome} because {because}."]
        if self.samples:
            others = f" ({_count(self.n_penalties, 'penalty')} with score 0 take part, too)"
            lines.append(
                f"The threshold of {self.threshold:.4g} is a weighted sum of the scores of "
                f"{_count(len(self.samples), 'calibration sample')}"
                f"{others if self.n_penalties else ''}:"
            )
            lines += [f"  {sample}" for sample in self.samples]
        elif not np.isfinite(self.threshold):
            lines.append("The threshold is infinite, and no calibration score could change that.")
        if self.label is None and self.samples:
            lines.append(
                f"Classes with a score just below the threshold: {self.close_below}; just above "
                f"it: {self.close_above}."
            )
        return "\n".join(lines)

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
        out = asdict(self) | words | {"summary": self.summary}
        plain: dict[str, Any] = _plain(out)
        return plain


def _count(number: int, noun: str) -> str:
    """A number with its noun."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


def _reasons(own: Explanation) -> Iterator[str]:
    size, large = len(own.classes), len(own.classes) > 1
    if own.label is not None:
        side = "at most" if (own.label_score or 0.0) <= own.threshold else "above"
        yield f"its score of {own.label_score:.4g} is {side} its threshold of {own.threshold:.4g}"
    if own.status is not Status.EXACT or not own.samples:
        yield own.status.sentence.removesuffix(", so the set is full")
    if own.fit == "lower":
        yield (
            "the threshold was raised to that of the fit in which groups have a penalty, whose "
            "guarantee is that of the sets"
        )
    if own.label is not None or not own.samples:
        return
    if own.kept or not size:
        yield f"no class has a score at or below the threshold of {own.threshold:.4g}"
    if own.kept:
        yield "the most likely class is kept where a set would be empty"
    for name, meaning in _MEANINGS.items():
        share = own.ranks.get(name, 0.5)
        if large and share <= _LOW_SHARE:
            yield f"{meaning[0]} ({1 - share:.0%} of the calibration samples have a {name} as high)"
        elif size == 1 and share >= 1.0 - _LOW_SHARE:
            yield f"{meaning[1]} ({share:.0%} of the calibration samples have a lower {name})"
    yield from _compared(own)
    if large and own.n_similar is not None and own.n_similar < _FEW_SIMILAR / own.alpha:
        names = " and ".join(own.ranks)
        yield f"few calibration samples ({own.n_similar}) are similar to it in {names}"
    if large and own.close_below > 1:
        yield f"{own.close_below} classes have scores just below the threshold"


def _compared(own: Explanation) -> Iterator[str]:
    """How the threshold compares with that of STANDARD."""
    size, theirs, other = len(own.classes), own.standard_size, own.standard_threshold
    mine = f"its threshold of {own.threshold:.4g}"
    if size != theirs:
        kind = "higher" if own.threshold > other else "lower"
        yield f"{mine} is {kind} than the {other:.4g} of STANDARD, which would give {theirs}"
    elif size and not own.kept:
        many = "so many classes have scores" if size > 1 else "no other class has a score"
        same = f"{other:.4g} of STANDARD would give as many"
        same = "the same as that of STANDARD" if own.threshold == other else same
        yield f"{many} at or below {mine} ({same})"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if isinstance(value, bool | int | None) else str(value)
