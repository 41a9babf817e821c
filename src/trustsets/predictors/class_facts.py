"""What calibration samples say about the classes and the classifier, in sentences."""

from typing import Any

import numpy as np

from trustsets._arrays import Array, Codes
from trustsets.outputs import ModelOutputs

# Names that a sentence lists before it only counts.
_MOST_NAMES = 5
# A warning about the classifier needs evidence of this p-value and a difference of this share.
_CLEAR_P = 1e-4
_CLEAR_GAIN = 0.05
# Finding the best order of the columns takes a K x K table of counts and up to K^3 steps.
_MOST_CLASSES = 1000
# Class prevalences are called uneven from this ratio of the most to the least frequent class.
_UNEVEN = 20


def missing_classes(classes: Array, counts: Codes) -> str:
    """Which classes have no calibration sample; nothing if all have some."""
    absent = np.flatnonzero(counts == 0)
    if not absent.size:
        return ""
    kind, pronoun = ("class", "it") if absent.size == 1 else ("classes", "them")
    return (
        f"There is no calibration sample of {kind} {class_names(classes[absent])}, so "
        f"nothing is guaranteed for {pronoun}, only for the other classes."
    )


def uneven_prevalence(classes: Array, counts: Codes) -> str:
    """Which class has far more samples than another; nothing if none has."""
    seen = np.where(counts > 0, counts, counts.max())
    low, top = int(seen.argmin()), int(seen.argmax())
    if seen[top] < _UNEVEN * seen[low]:
        return ""
    names = [class_names(classes[[code]]) for code in (top, low)]
    return (
        f"There are {seen[top]:,} calibration samples of class {names[0]} and {seen[low]:,} of "
        f"class {names[1]}. Sets may under-cover rare classes, unless coverage is "
        'class-conditional, as with MondrianConformal(by="class").'
    )


def classifier_sentence(
    classes: Array, counts: Codes, accuracy: float, *, below_majority: bool, reordered: float
) -> str:
    """What `classifier_doubts` gives, in words; nothing without doubts."""
    share = f"The most likely class is right for {accuracy:.1%} of the calibration samples"
    order = f"the columns must be {class_names(classes)}, in this order (see classes=)."
    if reordered > accuracy:
        return (
            f"{share}. It would be right for {reordered:.1%} in another order of the "
            f"columns: {order}"
        )
    top = int(counts.argmax())
    # Doubts of `calibrate` may be outdated after `update` and `forget`.
    if not below_majority or accuracy * counts.sum() >= counts[top]:
        return ""
    return (
        f"{share}, but always predicting {class_names(classes[[top]])} would be right for "
        f"{counts[top] / counts.sum():.1%}. If the classifier should be better than that, {order}"
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
