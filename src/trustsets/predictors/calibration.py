"""What a calibrated predictor knows, and what is learned besides its thresholds."""

import warnings
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Array, Codes, Floats, read_only
from trustsets._storage import require, require_numbers, storable
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.recalibration import ClassBias, TemperatureScaling, check_temperature

__all__ = [
    "Calibration",
    "class_names",
    "resolve_class_bias",
    "resolve_seed",
    "resolve_temperature",
]

# Names that a sentence lists before it only counts.
_MOST_NAMES = 5
# A warning about the classifier needs evidence of this p-value and a difference of this share.
_CLEAR_P = 1e-4
_CLEAR_GAIN = 0.05
# Finding the best order of the columns takes a K x K table of counts and up to K^3 steps.
_MOST_CLASSES = 1000
# With fewer calibration samples it is normal that a class has none; `summary` still names it.
_FEWEST_TO_WARN = 50
# Class prevalences are called uneven from this ratio of the most to the least frequent class.
_UNEVEN = 20


@final
@storable
@dataclass(frozen=True, eq=False)
class Calibration:
    """What a predictor learned: arrays with one entry per calibration sample, and constants.

    Attributes
    ----------
    classes : array of shape (K,)
        Names of the classes, in the order of the columns.
    rows, codes, scores, is_correct : arrays of shape (n,)
        Identity, label and nonconformity score of each calibration sample, and whether the most
        likely class is the label.
    alphas : array of shape (n,), optional
        Alpha of each sample, where `calibrate` was given alphas.
    temperature, class_bias
        What the outputs are recalibrated with before scores are computed.
    n_tuning, tuning_rows
        Number of tuning samples, and identities of those set aside from the calibration samples.
    reused : tuple of str
        What was learned from the calibration samples themselves, in words.
    below_majority : bool
        Whether always predicting the most frequent class is significantly more accurate.
    reordered : float
        Accuracy with another order of the columns, where it is clearly larger; otherwise 0.
    fitted : object
        What the method fitted; see `Predictor._fit`.
    """

    classes: Array
    n_features: int | None
    rows: Codes
    codes: Codes
    scores: Floats
    is_correct: NDArray[np.bool_]
    alphas: Floats | None
    temperature: float
    class_bias: ClassBias | None
    seed: int
    n_tuning: int
    tuning_rows: Codes
    reused: tuple[str, ...]
    below_majority: bool
    reordered: float
    fitted: Any = None

    def __post_init__(self) -> None:
        for name in ("classes", "rows", "codes", "scores", "is_correct", "alphas"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, read_only(getattr(self, name)))

    def check_state(self) -> None:
        """Refuse arrays that do not belong together, for `storage`."""
        require(len(self.classes) > 0, "Calibration.classes", "must not be empty")
        require_numbers(self.scores, "Calibration.scores", None)
        for name in ("rows", "codes"):
            require_numbers(getattr(self, name), f"Calibration.{name}", len(self.scores))
        inside = 0 <= self.codes.min() and self.codes.max() < len(self.classes)
        require(inside, "Calibration.codes", "must be columns of classes")
        fits = len(self.is_correct) == len(self.scores)
        require(fits, "Calibration.is_correct", "must have one entry per sample")
        if self.alphas is not None:
            require_numbers(self.alphas, "Calibration.alphas", len(self.scores))
        if self.class_bias is not None:
            fits = self.class_bias.bias_.size == len(self.classes)
            require(fits, "Calibration.class_bias", "must have a number for each class")
        check_temperature(self.temperature)
        if hasattr(self.fitted, "check_belongs"):
            self.fitted.check_belongs(self)

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def counts(self) -> Codes:
        """Number of calibration samples of each class, shape (K,)."""
        return np.bincount(self.codes, minlength=len(self.classes))

    @property
    def accuracy(self) -> float:
        """Share of the calibration samples whose most likely class is the label."""
        return float(self.is_correct.mean())

    def recalibrated(self, outputs: ModelOutputs) -> ModelOutputs:
        """Outputs with the class biases added to the logits; the temperature is left out."""
        if self.class_bias is None or not self.class_bias.bias_.any():
            return outputs
        return outputs.shifted(self.class_bias.bias_)

    def take(self, index: Codes) -> Self:
        """The same with some of the samples."""
        return replace(
            self,
            rows=self.rows[index],
            codes=self.codes[index],
            scores=self.scores[index],
            is_correct=self.is_correct[index],
            alphas=None if self.alphas is None else self.alphas[index],
            fitted=None if self.fitted is None else self.fitted.take(index),
        )

    def extended(self, more: ModelOutputs, scores: Floats) -> Self:
        """The same with more samples."""
        codes = more.require_labels("update")
        return replace(
            self,
            rows=np.concatenate([self.rows, more.rows]),
            codes=np.concatenate([self.codes, codes]),
            scores=np.concatenate([self.scores, scores]),
            is_correct=np.concatenate([self.is_correct, more.predicted_codes == codes]),
            fitted=None if self.fitted is None else self.fitted.extended(more, self),
        )

    def warn_about_classes(self, *, class_conditional: bool) -> None:
        """Warn of missing classes and of a classifier that does not fit the labels."""
        expected = class_conditional or len(self) < _FEWEST_TO_WARN
        for text in ("" if expected else self._missing_classes(), self._doubts()):
            if text:
                warnings.warn(text, TrustSetsWarning, stacklevel=3)

    def class_sentences(self, *, class_conditional: bool) -> list[str]:
        """All that a summary should say about classes and classifier."""
        named = self.classes.dtype.kind not in "iu"
        order = f"Columns of the outputs, in order: {class_names(self.classes)}." if named else ""
        rare = [] if class_conditional else [self._missing_classes(), self._uneven_prevalence()]
        return [text for text in (order, *rare, self._doubts()) if text]

    def _missing_classes(self) -> str:
        absent = np.flatnonzero(self.counts == 0)
        if not absent.size:
            return ""
        kind, pronoun = ("class", "it") if absent.size == 1 else ("classes", "them")
        return (
            f"There is no calibration sample of {kind} {class_names(self.classes[absent])}, so "
            f"nothing is guaranteed for {pronoun}, only for the other classes."
        )

    def _uneven_prevalence(self) -> str:
        seen = np.where(self.counts > 0, self.counts, self.counts.max())
        low, top = int(seen.argmin()), int(seen.argmax())
        if seen[top] < _UNEVEN * seen[low]:
            return ""
        names = [class_names(self.classes[[code]]) for code in (top, low)]
        return (
            f"There are {seen[top]:,} calibration samples of class {names[0]} and {seen[low]:,} of "
            f"class {names[1]}. Sets may under-cover rare classes, unless coverage is "
            'class-conditional, as with MondrianConformal(by="class").'
        )

    def _doubts(self) -> str:
        share = f"The most likely class is right for {self.accuracy:.1%} of the calibration samples"
        order = f"the columns must be {class_names(self.classes)}, in this order (see classes=)."
        if self.reordered > self.accuracy:
            return (
                f"{share}. It would be right for {self.reordered:.1%} in another order of the "
                f"columns: {order}"
            )
        if not self.below_majority:
            return ""
        top = int(self.counts.argmax())
        usual = self.counts[top] / len(self)
        return (
            f"{share}, but always predicting {class_names(self.classes[[top]])} would be right for "
            f"{usual:.1%}. If the classifier should be better than that, {order}"
        )


def classifier_doubts(outputs: ModelOutputs) -> dict[str, Any]:
    """Whether the majority class, or another order of the columns, is clearly more accurate."""
    codes, predicted = outputs.require_labels("calibrate"), outputs.predicted_codes
    counts = np.bincount(codes, minlength=outputs.n_classes)
    right, usual = predicted == codes, codes == counts.argmax()
    below = _is_clear(int(np.sum(~right & usual)), int(np.sum(right & ~usual)))
    return {"below_majority": below, "reordered": _better_order(codes, predicted, counts)}


def class_names(classes: Array) -> str:
    """Names in a row for a sentence; of many, the first few and how many more there are.

    Examples
    --------
    >>> class_names(np.array(["cat", "dog"])), class_names(np.arange(9))
    ("'cat' and 'dog'", '0, 1, 2, 3, 4 and 4 others')
    """
    names = [repr(name) for name in classes[:_MOST_NAMES].tolist()]
    if classes.size > _MOST_NAMES:
        rest = classes.size - _MOST_NAMES
        return f"{', '.join(names)} and {rest:,} other{'s' if rest > 1 else ''}"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _is_clear(better: int, worse: int) -> bool:
    """Whether so many wins are significant (one-sided sign test)."""
    from scipy import special

    return better > 0 and bool(special.bdtr(worse, better + worse, 0.5) < _CLEAR_P)


def _better_order(codes: Codes, predicted: Codes, counts: Codes) -> float:
    """Accuracy under the order of the columns that fits best, if clearly better; otherwise 0.

    The order is learned on one half of the samples and tested on the other.
    """
    width = counts.size
    if width > _MOST_CLASSES:
        return 0.0
    from scipy.optimize import linear_sum_assignment

    learn = np.arange(codes.size) % 2 == 0
    table = np.bincount(codes[learn] * width + predicted[learn], minlength=width * width)
    # By shares of each class, so that frequent classes do not decide for the rare ones.
    shares = table.reshape(width, width) / np.maximum(counts, 1)[:, None]
    fits = linear_sum_assignment(shares + 1e-9 * np.eye(width), maximize=True)[1]
    right, other = codes[~learn] == predicted[~learn], fits[codes[~learn]] == predicted[~learn]
    if not _is_clear(int(np.sum(other & ~right)), int(np.sum(right & ~other))):
        return 0.0
    gain = float(other.mean() - right.mean())
    return float(other.mean()) if gain > _CLEAR_GAIN else 0.0


def resolve_temperature(
    value: float | TemperatureScaling | str | None, tuning: ModelOutputs
) -> float:
    """The number to divide logits by, from any of the accepted forms."""
    if value is None:
        return 1.0
    if isinstance(value, TemperatureScaling) and hasattr(value, "temperature_"):
        return value.temperature_
    if value == "tuning":
        return TemperatureScaling().fit(tuning).temperature_
    if isinstance(value, str | TemperatureScaling):
        raise InputError(
            'temperature must be None, a number, a fitted TemperatureScaling or "tuning"; got '
            f"{value!r}."
        )
    return check_temperature(value)


def resolve_class_bias(value: ClassBias | str | None, tuning: ModelOutputs) -> ClassBias | None:
    """The fitted class biases, or None where nothing is to be added."""
    if value is None or (isinstance(value, ClassBias) and value.is_fitted):
        return value
    if isinstance(value, ClassBias) or value == "tuning":
        return ClassBias(prevalence=getattr(value, "prevalence", 0.0)).fit(tuning)
    raise InputError(f'class_bias must be None, "tuning" or a ClassBias; got {value!r}.')


def resolve_seed(random_state: Any) -> int:
    """A non-negative integer seed from any of scikit-learn's forms of random_state."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        if random_state < 0:
            raise InputError(f"random_state must not be negative; got {random_state}.")
        return int(random_state)
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(1 << 31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(1 << 31))
    raise InputError(f"random_state must be an integer, None or a generator; got {random_state!r}.")
