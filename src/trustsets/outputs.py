"""What a classifier said about n samples, checked once.

Everything after this file relies on it: shapes agree, numbers are finite, labels are classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, Self, final, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from trustsets import _blocks
from trustsets._arrays import (
    LARGEST_TRUST,
    Array,
    Codes,
    Flavour,
    Floats,
    check_classes,
    check_groups,
    check_rows,
    check_trust,
    column,
    encode_labels,
    flavour_of,
    floating_matrix,
    picked_rows,
    read_only,
)
from trustsets._draws import content_keys, resolve_seed
from trustsets._frames import frame_fields
from trustsets._parameters import Open, check_arguments
from trustsets.errors import InputError
from trustsets.probabilities import check_probabilities, rounding_of_sums, warn_if_probabilities

__all__ = ["ModelOutputs", "SupportsTrust", "require_outputs"]


@runtime_checkable
class SupportsTrust(Protocol):
    """Anything that scores predictions by the features, such as a fitted `TrustScore`."""

    def score(self, features: Any, predicted: Any) -> Floats:
        """Trust of each prediction, shape (n,)."""


@final
@dataclass(frozen=True, init=False, repr=False, eq=False)
class ModelOutputs:
    """Outputs of a classifier for n samples, with what is known about the samples.

    Parameters
    ----------
    logits : array of shape (n, K), optional
        Unnormalised outputs; NumPy, pandas or torch. The array is kept, not copied: do not write to
        it afterwards.
    probabilities : array of shape (n, K), optional
        Instead of `logits`. Rows must sum to 1; where they do so only up to decimal rounding, they
        are divided by their sum, with a warning.
    features : array of shape (n, d), optional
        Embeddings for the trust score, usually the layer before the last.
    trust : array of shape (n,), optional
        Trust of the most likely class. A predictor with a fitted `TrustScore` fills it in from the
        features.
    labels : array of shape (n,), optional
        True classes: any values among `classes`.
    groups : array of shape (n,), mapping of names to such arrays, or DataFrame, optional
        Columns to condition on or to evaluate by. A bare array is named ``"group"``.
    classes : sequence of length K, optional
        Class names in the order of the columns. Default: ``0..K-1`` where the labels are such
        integers, otherwise the sorted distinct labels if there are exactly K.
    rows : array of shape (n,), optional
        Non-negative integers that identify the samples; default ``0..n-1``. `take` keeps them, and
        randomised predictions depend on them (see `draw_keys`).

    Attributes
    ----------
    codes : array of shape (n,) or None
        Column of the true class of each sample.
    n_classes : int
        Number of classes K.
    has_given_rows : bool
        Whether `rows` were given, and are not just positions.
    flavour : str or None
        Package of the frame that these are from.

    Examples
    --------
    >>> outputs = ModelOutputs(logits=[[2.0, 0.0], [0.0, 1.0]], labels=["cat", "dog"])
    >>> outputs
    ModelOutputs(n=2, K=2, labels)
    >>> outputs.predicted
    array(['cat', 'dog'], dtype='<U3')
    """

    classes: Array
    n_classes: int
    features: Array | None
    trust: Floats | None
    rows: Codes
    codes: Codes | None
    has_given_rows: bool
    flavour: Flavour | None
    _kind: Literal["logits", "probabilities"]
    _values: Array
    _groups: dict[str, Array]
    _shift: Floats | None  # added to the logits of each class

    def __init__(
        self,
        logits: Any = None,
        *,
        probabilities: Any = None,
        features: Any = None,
        labels: Any = None,
        groups: Any = None,
        trust: Any = None,
        classes: Any = None,
        rows: Any = None,
    ) -> None:
        if (logits is None) == (probabilities is None):
            raise InputError("Give exactly one of logits and probabilities.")
        if logits is not None:
            kind, values = "logits", floating_matrix(logits, "logits")
            warn_if_probabilities(values)
        else:
            kind, values = "probabilities", check_probabilities(probabilities)
        vars(self).update(_kind=kind, _values=values, n_classes=values.shape[1], _shift=None)
        changes = {"features": features, "trust": trust, "labels": labels}
        changes |= {"groups": groups, "classes": classes, "rows": rows}
        vars(self).update(self._checked(changes), flavour=None)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        probabilities: str | Sequence[str] = (),
        logits: str | Sequence[str] = (),
        features: str | Sequence[str] = (),
        label: str | None = None,
        groups: str | Sequence[str] = (),
        classes: Any = None,
    ) -> Self:
        """Outputs in the columns of a pandas or polars frame, or of an Arrow table.

        Columns are given by name, or by a pattern with one ``*`` such as ``"prob_*"``. What ``*``
        stands for names the classes, unless `classes` do. Missing groups are a group of their own.

        Examples
        --------
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"p_cat": [0.9, 0.2], "p_dog": [0.1, 0.8], "true": ["cat", "dog"]})
        >>> outputs = ModelOutputs.from_frame(frame, probabilities="p_*", label="true")
        >>> outputs, outputs.classes.tolist()
        (ModelOutputs(n=2, K=2, labels), ['cat', 'dog'])
        """
        named = {"probabilities": probabilities, "logits": logits, "features": features}
        arguments = frame_fields(frame, named, label, groups)
        if classes is not None:
            arguments["classes"] = classes
        return cls(**arguments)._replaced(flavour=flavour_of(frame))

    def replace(self, **changes: Any) -> Self:
        """Return the same samples with other features, trust, labels, groups, classes or rows.

        None removes what is there. Labels stay at their columns where only `classes` change.
        """
        names = {"features", "trust", "labels", "groups", "classes", "rows"}
        if unknown := changes.keys() - names:
            raise InputError(f"replace takes {sorted(names)}; got {sorted(unknown)}.")
        return self._replaced(**self._checked(changes))

    def _checked(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Fields made of parameters of the constructor."""
        n, fields = len(self), dict[str, Any]()
        labels, features, trust = map(changes.get, ("labels", "features", "trust"))
        labels = None if labels is None else column(labels, "labels", n)
        if "classes" in changes:
            fields["classes"] = check_classes(changes["classes"], labels, self.n_classes)
        if "labels" in changes:
            classes = fields["classes"] if "classes" in fields else self.classes
            fields["codes"] = None if labels is None else encode_labels(labels, classes)
        if "features" in changes:
            numbers = None if features is None else floating_matrix(features, "features", n)
            fields["features"] = numbers
        if "trust" in changes:
            fields["trust"] = None if trust is None else check_trust(trust, n)
        if "groups" in changes:
            fields["_groups"] = check_groups(changes["groups"], n)
        if "rows" in changes:
            fields["rows"] = check_rows(changes["rows"], n)
            fields["has_given_rows"] = changes["rows"] is not None
        return fields

    def _replaced(self, **changes: Any) -> Self:
        """The same with other fields, which were checked before."""
        new = type(self).__new__(type(self))
        vars(new).update(vars(self))
        for name in ("predicted_codes", "confidence", "draw_keys"):
            vars(new).pop(name, None)  # computed from what may have changed
        vars(new).update(changes)
        return new

    def __len__(self) -> int:
        return int(self._values.shape[0])

    def __repr__(self) -> str:
        parts = [f"n={len(self)}", f"K={self.n_classes}"]
        parts += [f"d={self.features.shape[1]}"] if self.features is not None else []
        parts += ["trust"] if self.trust is not None else []
        parts += ["labels"] if self.codes is not None else []
        parts += [f"groups={list(self.groups)}"] if self.groups else []
        return f"ModelOutputs({', '.join(parts)})"

    @property
    def groups(self) -> dict[str, Array]:
        """Group columns by name."""
        return dict(self._groups)

    @cached_property
    def draw_keys(self) -> Codes:
        """One integer per sample, shape (n,), that its random draws are made from.

        These are the `rows` where they were given, and otherwise a hash of the outputs and the
        features: a sample alone has the same draw as in any batch.
        """
        if self.has_given_rows:
            return self.rows

        def keys_of(array: Array) -> Codes:
            return _blocks.row_results(
                lambda block: content_keys(array[block]), *array.shape, dtype=np.int64
            )

        keys = keys_of(self._values)
        if self.features is not None:
            # Times 3, so that equal logits and features do not cancel out.
            keys = 3 * keys + keys_of(self.features)
        return read_only(keys)

    @property
    def labels(self) -> Array | None:
        """True classes as given, shape (n,), or None."""
        return None if self.codes is None else self.classes[self.codes]

    @cached_property
    def predicted_codes(self) -> Codes:
        """Column of the most likely class, the first of equals, shape (n,)."""

        def most_likely(block: slice) -> Codes:
            # By blocks: argmax copies an array that cannot be written to.
            values = self._values[block] if self._shift is None else self._shifted_block(block)
            return np.asarray(values.argmax(axis=1))

        if self.is_one_block:
            codes = np.asarray(self._shifted_block(slice(None)).argmax(axis=1))
        else:
            codes = _blocks.row_results(most_likely, *self._values.shape, dtype=np.int64)
        codes.setflags(write=False)
        return codes

    @property
    def predicted(self) -> Array:
        """Most likely class of each sample, shape (n,)."""
        return self.classes[self.predicted_codes]

    @property
    def logits(self) -> Array:
        """Logits as given, or the logarithm of the given probabilities, shape (n, K)."""
        values, shift = self._values, self._shift
        if self._kind == "logits":
            return values if shift is None else values + shift
        # The logarithm of 0 would make temperature scaling produce NaN.
        return np.log(np.maximum(self.probabilities, np.finfo(np.float64).tiny))

    @property
    def probabilities(self) -> Floats:
        """Softmax outputs in float64, shape (n, K); computed at each call."""
        return _blocks.row_results(self.block_probabilities, *self._values.shape, self.n_classes)

    @property
    def is_one_block(self) -> bool:
        """Whether there are so few numbers that `block_probabilities` should give them all."""
        return 8 * self._values.size <= _blocks.BLOCK_BYTES

    def block_probabilities(self, block: slice, temperature: float = 1.0) -> Floats:
        """Float64 probabilities of a block of rows, at a temperature."""
        values = self._shifted_block(block)
        if self._kind == "probabilities" and temperature == 1.0 and self._shift is None:
            # As they were given, so that equal probabilities stay equal; only rows that do not sum
            # to 1, up to the rounding of their type, are divided by their sum.
            sums = values.sum(axis=1, keepdims=True)
            off = np.abs(sums - 1.0) > rounding_of_sums(self._values)
            return np.asarray(np.where(off, values / sums, values))
        if self._kind == "logits":
            values -= values.max(axis=1, keepdims=True)
            if temperature != 1.0:
                values /= temperature
            np.exp(values, out=values)
        elif temperature != 1.0:
            values /= values.max(axis=1, keepdims=True)
            values **= 1.0 / temperature
        values /= values.sum(axis=1, keepdims=True)
        return values

    def _shifted_block(self, block: slice) -> Floats:
        """Float64 logits or probabilities of a block of rows, with the shift."""
        # In C order: sums along a row depend on the layout in their last bit, and a row taken alone
        # has another layout than in a batch that is stored by columns.
        values, shift = self._values[block].astype(np.float64, order="C"), self._shift
        if shift is None:
            return values
        if self._kind == "logits":
            values += shift
        else:
            # No factor is zero, because a row may have one probability alone.
            values *= np.exp(np.maximum(shift - shift.max(), -700.0))
        return values

    @cached_property
    def confidence(self) -> Floats:
        """``Conf(x)``, the largest softmax output, shape (n,)."""
        values: Floats
        if self.is_one_block:
            values = self.block_probabilities(slice(None)).max(axis=1)
        else:
            values = _blocks.row_results(
                lambda block: self.block_probabilities(block).max(axis=1), *self._values.shape
            )
        values.setflags(write=False)
        return values

    def require_labels(self, purpose: str) -> Codes:
        """Return the label codes, or raise an error that names `purpose`."""
        if self.codes is None:
            raise InputError(f"{purpose} needs labels; pass labels= to ModelOutputs.")
        return self.codes

    def require_features(self, purpose: str) -> Array:
        """Return the features, or raise an error that names `purpose`."""
        if self.features is None:
            raise InputError(f"{purpose} needs features; pass features= to ModelOutputs.")
        return self.features

    def require_trust(self, purpose: str) -> Floats:
        """Return the trust, or raise an error that names `purpose`."""
        if self.trust is None:
            raise InputError(f"{purpose} needs trust; pass trust=, or features= and a TrustScore.")
        return self.trust

    def take(self, index: Any) -> Self:
        """Return the samples at `index` (a list, array or slice), identities kept."""
        rows = picked_rows(index, len(self))
        if rows.size == 0:
            raise InputError("index selects no sample; ModelOutputs cannot be empty.")
        return self._replaced(**_per_sample([self], lambda arrays: arrays[0][rows]))

    def __getitem__(self, index: Any) -> Self:
        """The sample at an integer, or what `take` gives for anything else."""
        if not isinstance(index, int | np.integer) or isinstance(index, bool):
            return self.take(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} goes beyond the {len(self)} samples.")
        return self.take([index])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        # NumPy would otherwise look for samples within samples, without end.
        raise InputError("ModelOutputs are no array; pass their logits, features or labels.")

    def split(self, fraction: float, seed: int = 0, stratify: bool = False) -> tuple[Self, Self]:
        """Split at random into a part with about `fraction` of the samples and the rest.

        With `stratify` both parts have the same shares of the labels, up to rounding.
        """
        first, rest = self.split_indices(fraction, seed, stratify)
        return self.take(first), self.take(rest)

    def split_indices(
        self, fraction: float, seed: int = 0, stratify: bool = False
    ) -> tuple[Codes, Codes]:
        """Positions of the samples in the two parts that `split` gives."""
        check_arguments(Open, fraction=fraction)
        if len(self) < 2:
            raise InputError("a single sample cannot be split.")
        check_arguments(bool, stratify=stratify)
        order = np.random.default_rng(resolve_seed(seed, "seed")).permutation(len(self))
        strata = self.require_labels("stratify")[order] if stratify else np.zeros(len(self))
        # Each stratum is spread evenly over (0, 1); cutting at `fraction` keeps its share.
        by_stratum = np.argsort(strata, kind="stable")
        _, start, count = np.unique(strata[by_stratum], return_index=True, return_counts=True)
        rank = np.arange(len(self)) - np.repeat(start, count)
        position = np.empty(len(self))
        position[by_stratum] = (rank + 0.5) / np.repeat(count, count)
        size = min(max(round(fraction * len(self)), 1), len(self) - 1)
        first = np.sort(order[np.argsort(position, kind="stable")[:size]])
        return first, np.setdiff1d(order, first)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join outputs end to end; identities that are not all different are numbered anew."""
        if not isinstance(parts, Sequence) or not parts:
            raise InputError("parts must be a list of at least one ModelOutputs.")
        forms = [require_outputs(part, f"parts[{i}]")._form() for i, part in enumerate(parts)]
        for number, form in enumerate(forms):
            for what, value in form.items():
                if value != forms[0][what]:
                    raise InputError(f"parts[{number}] differs from parts[0] in its {what}.")
        joined = _per_sample(parts, np.concatenate)
        distinct = np.unique(joined["rows"]).size == joined["rows"].size
        if not distinct:
            joined["rows"] = read_only(np.arange(joined["rows"].size))
        is_given = distinct and all(part.has_given_rows for part in parts)
        return parts[0]._replaced(**joined, has_given_rows=is_given)

    def _form(self) -> dict[str, Any]:
        """What the parts of `concat` must agree in."""
        return {
            "logits or probabilities": self._kind,
            "classes": self.classes.tolist(),
            "shift": None if self._shift is None else self._shift.tolist(),
            "features": None if self.features is None else self.features.shape[1],
            "trust": self.trust is None,
            "labels": self.codes is None,
            "group columns": list(self._groups),
        }

    def shifted(self, shift: Floats) -> Self:
        """Return the same samples with a constant added to the logits of each class."""
        is_array = isinstance(shift, np.ndarray) and shift.dtype.kind in "fiu"
        if not is_array or shift.shape != self.classes.shape or not np.isfinite(shift).all():
            raise InputError(
                f"shift must hold one finite number for each of the {self.n_classes} classes, in "
                f"an array; got {shift!r:.60}."
            )
        amounts = shift.astype(np.float64)
        return self._replaced(_shift=amounts if self._shift is None else self._shift + amounts)

    def with_trust(self, trust: SupportsTrust | ArrayLike | None) -> Self:
        """Return the same samples with their trust: values, or what a fitted trust score gives.

        A trust score fills in values where there are none yet.
        """
        if trust is None:
            return self
        if isinstance(trust, type):
            raise InputError(f"trust must be a fitted trust score; got the class {trust.__name__}.")
        score = getattr(trust, "score", None)
        if not callable(score):
            return self._replaced(trust=check_trust(trust, len(self)))
        if self.trust is not None:
            return self
        if self.features is None:
            raise InputError("Trust needs features; pass features= or trust= to ModelOutputs.")
        codes = self.predicted_codes
        values = score(self.features, self.classes[codes])
        is_plain = isinstance(values, np.ndarray) and values.dtype == np.float64
        if not is_plain or values.shape != codes.shape or np.isnan(values).any():
            # A trust score of the user's may return anything.
            values = check_trust(values, len(self), f"what {type(trust).__name__}.score returns")
        values = np.clip(values, -LARGEST_TRUST, LARGEST_TRUST)
        values.setflags(write=False)
        return self._replaced(trust=values)

    def with_logits(self, logits: Array) -> Self:
        """Return the same samples with other logits (for example temperature-scaled)."""
        values = floating_matrix(logits, "logits", len(self))
        if values.shape[1] != self.n_classes:
            raise InputError(f"logits must have {self.n_classes} columns; got {values.shape[1]}.")
        return self._replaced(_kind="logits", _values=values, _shift=None)


def require_outputs(value: Any, argument: str) -> ModelOutputs:
    """Return `value` if it is `ModelOutputs`; otherwise raise an error that says how to wrap it."""
    if isinstance(value, ModelOutputs):
        return value
    remedy = "Wrap it: ModelOutputs(logits=..., labels=...) or ModelOutputs(probabilities=...)."
    if flavour_of(value) is not None:
        remedy = 'Wrap it: ModelOutputs.from_frame(frame, probabilities="...", label="...").'
    raise InputError(f"{argument} must be ModelOutputs; got {type(value).__name__}. {remedy}")


def _per_sample(
    parts: Sequence[ModelOutputs], function: Callable[[list[Array]], Array]
) -> dict[str, Any]:
    """Fields with a value for each sample: `function` of those of the parts, None where missing."""

    def applied(arrays: list[Any]) -> Array | None:
        return None if arrays[0] is None else read_only(function(arrays))

    names = ("_values", "features", "trust", "codes", "rows")
    fields = {name: applied([getattr(part, name) for part in parts]) for name in names}
    columns = parts[0]._groups
    groups = {name: applied([part._groups[name] for part in parts]) for name in columns}
    return fields | {"_groups": groups}
