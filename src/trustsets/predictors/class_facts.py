"""What calibration labels say about the classes and the classifier.

A guarantee on average does not protect a class that calibration lacks or that is rare, and it
does not tell a user that the columns are in another order than the class names.
"""

import warnings
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from trustsets._common.arrays import Array, Codes
from trustsets._common.storage import require, require_numbers, storable
from trustsets.errors import TrustSetsWarning
from trustsets.outputs import ModelOutputs

__all__ = ["ClassFacts", "class_names"]


# Names that a sentence lists before it only counts.
_MOST_NAMES = 5
# A warning about the classifier needs evidence of this p-value and a difference of this share.
_CLEAR_P = 1e-4
_CLEAR_GAIN = 0.05
# Finding the best order of the columns takes a K x K table of counts and up to K^3 steps.
_MOST_CLASSES = 1000
# With fewer calibration samples it is normal that a class has none; `summary` still names it.
_FEWEST_TO_WARN = 50
# How far a share times a number of samples may be from a whole number by rounding.
_WHOLE = 1e-6
# Classes are called uneven from this ratio of the most to the least frequent one.
_UNEVEN = 20


@final
@storable
@dataclass(frozen=True)
class ClassFacts:
    """Counts of the calibration labels, and how often the classifier was right on them.

    Attributes
    ----------
    counts : int array of shape (K,)
        Calibration samples of each class.
    accuracy : float
        Share of calibration samples whose most likely class is the label.
    below_majority : bool
        Whether always predicting the most frequent class is significantly more accurate.
    reordered : float
        Accuracy with another order of the columns, where it is clearly larger; otherwise 0. The
        order is learned on one half of the samples and tested on the other.
    """

    counts: Codes
    accuracy: float
    below_majority: bool
    reordered: float

    def check_state(self) -> None:
        """Refuse numbers that no labels give, for `storage`."""
        require_numbers(self.counts, "ClassFacts.counts", None)
        require((self.counts >= 0).all(), "ClassFacts.counts", "must not be negative")
        right = self.accuracy * int(self.counts.sum())
        whole = 0.0 <= self.accuracy <= 1.0 and abs(right - round(right)) < _WHOLE
        require(whole, "ClassFacts.accuracy", "must be a share of the samples")
        larger = self.reordered == 0.0 or self.accuracy < self.reordered <= 1.0
        require(larger, "ClassFacts.reordered", "must be 0 or a larger accuracy")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse counts of other samples or classes, for `storage`."""
        fits = self.counts.size == n_classes and self.counts.sum() == n
        require(fits, "ClassFacts.counts", f"must count {n} samples of {n_classes} classes")

    @classmethod
    def of(cls, outputs: ModelOutputs) -> Self:
        """Count the labels of calibration samples."""
        codes, predicted = outputs.require_labels("calibrate"), outputs.predicted_codes
        counts = np.bincount(codes, minlength=outputs.n_classes)
        right = predicted == codes
        usual = codes == counts.argmax()
        below = _is_clear(int(np.sum(~right & usual)), int(np.sum(right & ~usual)))
        return cls(counts, float(right.mean()), below, _better_order(codes, predicted, counts))

    def missing(self, classes: Array) -> str:
        """Sentence on the classes without a calibration sample; empty if there are none."""
        absent = np.flatnonzero(self.counts == 0)
        if not absent.size:
            return ""
        kind, pronoun = ("class", "it") if absent.size == 1 else ("classes", "them")
        return (
            f"There is no calibration sample of {kind} {class_names(classes[absent])}, so nothing "
            f"is guaranteed for {pronoun}, only for the other classes."
        )

    def doubts(self, classes: Array) -> str:
        """Sentence on a classifier that does not fit the labels; empty if it does."""
        share = f"The most likely class is right for {self.accuracy:.1%} of the calibration samples"
        order = f"the columns must be {class_names(classes)}, in this order (see classes=)."
        if self.reordered:
            return (
                f"{share}. It would be right for {self.reordered:.1%} in another order of the "
                f"columns: {order}"
            )
        if not self.below_majority:
            return ""
        top = int(self.counts.argmax())
        usual = self.counts[top] / self.counts.sum()
        return (
            f"{share}, but always predicting {class_names(classes[[top]])} would be right for "
            f"{usual:.1%}. If the classifier should be better than that, {order}"
        )

    def uneven(self, classes: Array) -> str:
        """Sentence on rare classes; empty where all are about as frequent."""
        seen = np.where(self.counts > 0, self.counts, self.counts.max())
        low, top = int(seen.argmin()), int(seen.argmax())
        if seen[top] < _UNEVEN * seen[low]:
            return ""
        return (
            f"There are {seen[top]:,} calibration samples of class {class_names(classes[[top]])} "
            f"and {seen[low]:,} of class {class_names(classes[[low]])}. Sets may miss rare classes "
            "often, unless coverage is guaranteed for each class, as by "
            'MondrianConformal(by="class").'
        )

    def warn(self, classes: Array, *, each_class: bool) -> None:
        """Warn of what a user would not expect; `each_class` if each class has a guarantee."""
        expected = each_class or self.counts.sum() < _FEWEST_TO_WARN
        for text in filter(None, ("" if expected else self.missing(classes), self.doubts(classes))):
            warnings.warn(text, TrustSetsWarning, stacklevel=3)

    def sentences(self, classes: Array, *, each_class: bool) -> list[str]:
        """All that a summary should say."""
        order = f"Columns of the outputs, in order: {class_names(classes)}."
        named = [] if classes.dtype.kind in "iu" else [order]
        own = [] if each_class else [self.missing(classes), self.uneven(classes)]
        return [text for text in (*named, *own, self.doubts(classes)) if text]


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
    """Accuracy under the order of the columns that fits best, if clearly better; otherwise 0."""
    width = counts.size
    if width > _MOST_CLASSES:
        return 0.0
    from scipy.optimize import linear_sum_assignment

    learn = np.arange(codes.size) % 2 == 0
    table = np.bincount(codes[learn] * width + predicted[learn], minlength=width * width)
    # By shares of each class, so that frequent classes do not decide for the rare ones.
    shares = table.reshape(width, width) / np.maximum(counts, 1)[:, None]
    fits = linear_sum_assignment(shares + 1e-9 * np.eye(width), maximize=True)[1]
    own, other = codes[~learn] == predicted[~learn], fits[codes[~learn]] == predicted[~learn]
    if not _is_clear(int(np.sum(other & ~own)), int(np.sum(own & ~other))):
        return 0.0
    gain = float(other.mean() - own.mean())
    return float(other.mean()) if gain > _CLEAR_GAIN else 0.0
