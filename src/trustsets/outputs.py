"""What a classifier said about n samples, validated once. Imports validation and below.

Everything after this file trusts what it gets: shapes agree, numbers are finite,
labels are known classes.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array, column, floating_matrix, read_only
from trustsets._common.blocks import for_each_block
from trustsets._common.draws import content_keys
from trustsets._common.validation import (
    check_classes,
    check_features,
    check_groups,
    check_probabilities,
    check_rows,
    encode_labels,
)
from trustsets.errors import InputError

__all__ = ["ModelOutputs"]

# log(0) would make temperature scaling of given probabilities produce NaN.
_SMALLEST_PROBABILITY = float(np.finfo(np.float64).tiny)


@final
class ModelOutputs:
    """Outputs of a classifier for n samples, with what is known about the samples.

    Parameters
    ----------
    logits : array of shape (n, K), optional
        Unnormalised scores; NumPy, pandas or torch, float16 to float64. Kept as they
        are (not copied): do not write to the array afterwards.
    probabilities : array of shape (n, K), optional
        Given instead of `logits`; rows must sum to 1 up to rounding, which is repaired.
    features : array of shape (n, d), optional
        Embeddings for the trust score, usually the layer before the last.
    labels : array of shape (n,), optional
        True classes: any values among `classes`.
    groups : array of shape (n,), mapping of names to such arrays, or DataFrame, optional
        Columns to condition on or to evaluate by. A bare array is named ``"group"``.
    classes : sequence of length K, optional
        Class names in the order of the columns. Default: ``0..K-1`` where the labels are
        such integers, otherwise the sorted distinct labels if there are exactly K.
    rows : array of shape (n,), optional
        Non-negative integers that identify the samples; default ``0..n-1``. `take` keeps
        them. Randomised predictions draw one number for each of the rows given here, or,
        where none are given, for the content of the sample (`draw_keys`): either way the
        order and batching of samples never matter.

    Examples
    --------
    >>> outputs = ModelOutputs(logits=[[2.0, 0.0], [0.0, 1.0]], labels=["cat", "dog"])
    >>> outputs
    ModelOutputs(n=2, K=2, labels)
    >>> outputs.predicted
    array(['cat', 'dog'], dtype='<U3')
    >>> first, rest = outputs.split(0.5, seed=0)
    >>> len(first), len(rest)
    (1, 1)
    """

    def __init__(
        self,
        logits: Any = None,
        *,
        probabilities: Any = None,
        features: Any = None,
        labels: Any = None,
        groups: Any = None,
        classes: Any = None,
        rows: Any = None,
    ) -> None:
        if (logits is None) == (probabilities is None):
            raise InputError("Give exactly one of logits and probabilities.")
        self._kind: Literal["logits", "probabilities"]
        if logits is not None:
            self._kind, self._values = "logits", floating_matrix(logits, "logits")
        else:
            self._kind, self._values = "probabilities", check_probabilities(probabilities)
        n, n_classes = self._values.shape
        self._features = None if features is None else check_features(features, n)
        labels = None if labels is None else column(labels, "labels", n)
        self._classes = check_classes(classes, labels, n_classes)
        self._codes = None if labels is None else read_only(encode_labels(labels, self._classes))
        self._groups = check_groups(groups, n)
        self._rows = check_rows(rows, n)
        self._rows_given = rows is not None
        self._shift: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return int(self._values.shape[0])

    def __repr__(self) -> str:
        parts = [f"n={len(self)}", f"K={self.n_classes}"]
        parts += [f"d={self._features.shape[1]}"] if self._features is not None else []
        parts += ["labels"] if self._codes is not None else []
        parts += [f"groups={list(self._groups)}"] if self._groups else []
        return f"ModelOutputs({', '.join(parts)})"

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self._values.shape[1])

    @property
    def classes(self) -> Array:
        """Class names, shape (K,), in the order of the columns."""
        return self._classes

    @property
    def features(self) -> Array | None:
        """Embeddings of shape (n, d), or None."""
        return self._features

    @property
    def groups(self) -> dict[str, Array]:
        """Group columns by name."""
        return dict(self._groups)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Identities of the samples, shape (n,)."""
        return self._rows

    @cached_property
    def draw_keys(self) -> NDArray[np.int64]:
        """What random draws of a prediction are keyed on, shape (n,).

        The rows, where they were given. Otherwise a number made of the logits or
        probabilities and the features of the sample: samples predicted one by one have draws
        of their own, and the same as in any batch. Samples that agree in all these values
        share a draw; give `rows` where a classifier says the very same of many samples.
        """
        if self._rows_given:
            return self._rows
        keys = _keys_of(self._values)
        if self._features is not None:
            # Times 3, so that equal logits and features do not cancel out.
            keys = 3 * keys + _keys_of(self._features)
        return read_only(keys)

    @property
    def codes(self) -> NDArray[np.int64] | None:
        """Column of the true class of each sample, shape (n,), or None without labels."""
        return self._codes

    @property
    def labels(self) -> Array | None:
        """True classes as given, shape (n,), or None."""
        return None if self._codes is None else self._classes[self._codes]

    @cached_property
    def predicted_codes(self) -> NDArray[np.int64]:
        """Column of the most likely class; the first of equals, shape (n,)."""
        if self._shift is None:
            return read_only(np.argmax(self._values, axis=1))
        result = np.empty(len(self), dtype=np.int64)

        def fill(block: slice) -> None:
            result[block] = self._shifted_block(block).argmax(axis=1)

        for_each_block(fill, len(self), self.n_classes)
        return read_only(result)

    @property
    def predicted(self) -> Array:
        """Most likely class of each sample, shape (n,)."""
        return self._classes[self.predicted_codes]

    @property
    def logits(self) -> Array:
        """Logits as given, or the logarithm of the given probabilities, shape (n, K)."""
        if self._kind == "logits":
            return self._values if self._shift is None else self._values + self._shift
        return np.log(np.maximum(self.probabilities, _SMALLEST_PROBABILITY))

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Softmax outputs in float64, shape (n, K); made anew at each call."""
        result = np.empty(self._values.shape)

        def fill(block: slice) -> None:
            result[block] = self.block_probabilities(block)

        for_each_block(fill, len(self), self.n_classes)
        return result

    def block_probabilities(self, block: slice, temperature: float = 1.0) -> NDArray[np.float64]:
        """Float64 probabilities of a block of rows, at a temperature, without the rest."""
        values = self._shifted_block(block)
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

    def _shifted_block(self, block: slice) -> NDArray[np.float64]:
        """Float64 values of a block of rows, with the shift, in their own kind."""
        values = self._values[block].astype(np.float64)
        if self._shift is None:
            return values
        if self._kind == "logits":
            values += self._shift
        else:
            values *= np.exp(self._shift - self._shift.max())
        return values

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """``Conf(x)``, the largest softmax output, shape (n,)."""
        result = np.empty(len(self))

        def fill(block: slice) -> None:
            result[block] = self.block_probabilities(block).max(axis=1)

        for_each_block(fill, len(self), self.n_classes)
        return read_only(result)

    def require_labels(self, purpose: str) -> NDArray[np.int64]:
        """Return the label codes, or say that `purpose` cannot do without."""
        if self._codes is None:
            raise InputError(f"{purpose} needs labels; pass labels= to ModelOutputs.")
        return self._codes

    def take(self, index: Any) -> Self:
        """Return the samples at `index` (integers, booleans or a slice), identities kept."""
        if isinstance(index, slice):
            index = np.arange(len(self))[index]
        index = np.asarray(index)
        if index.dtype == bool and index.shape != (len(self),):
            raise InputError(
                f"index has shape {index.shape}, but a boolean index needs one value "
                f"for each of the {len(self)} samples."
            )
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        if index.size == 0:
            raise InputError("index selects no sample; ModelOutputs cannot be empty.")
        if index.min() < -len(self) or index.max() >= len(self):
            raise InputError(f"index goes beyond the {len(self)} samples.")
        return self._select(index)

    def split(self, fraction: float, seed: int = 0, stratify: Any = None) -> tuple[Self, Self]:
        """Split at random into a part with about `fraction` of the samples and the rest.

        Parameters
        ----------
        fraction : float
            Share of the first part, strictly between 0 and 1.
        seed : int
            The same seed gives the same split.
        stratify : True, str or array of shape (n,), optional
            Keep the shares of the labels (True), of a group column (its name), or of the
            given values equal in both parts, up to rounding.
        """
        first, rest = self.split_indices(fraction, seed, stratify)
        return self._select(first), self._select(rest)

    def split_indices(
        self, fraction: float, seed: int = 0, stratify: Any = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of the samples in the two parts that `split` gives."""
        if not 0.0 < fraction < 1.0:
            raise InputError(f"fraction must lie strictly between 0 and 1; got {fraction}.")
        if len(self) < 2:
            raise InputError("a single sample cannot be split; pass at least two.")
        order = np.random.default_rng(seed).permutation(len(self))
        strata = self._strata(stratify)[order]
        # Each stratum is spread evenly over (0, 1); cutting at `fraction` keeps its share.
        by_stratum = np.argsort(strata, kind="stable")
        _, start, count = np.unique(strata[by_stratum], return_index=True, return_counts=True)
        place = np.arange(len(self)) - np.repeat(start, count)
        position = np.empty(len(self))
        position[by_stratum] = (place + 0.5) / np.repeat(count, count)
        size = min(max(round(fraction * len(self)), 1), len(self) - 1)
        first = np.sort(order[np.argsort(position, kind="stable")[:size]])
        return first, np.setdiff1d(order, first)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join outputs of the same classes end to end.

        Identities are kept where all are different, and numbered anew otherwise.
        """
        if not parts:
            raise InputError("parts must hold at least one ModelOutputs.")
        _check_alike(parts)
        rows = np.concatenate([part.rows for part in parts])
        distinct = np.unique(rows).size == rows.size
        return cls._trusted(
            kind=parts[0]._kind,
            values=np.concatenate([part._values for part in parts]),
            features=_join([part._features for part in parts]),
            classes=parts[0]._classes,
            codes=_join([part._codes for part in parts]),
            groups={
                name: np.concatenate([part._groups[name] for part in parts])
                for name in parts[0]._groups
            },
            rows=rows if distinct else np.arange(rows.size),
            rows_given=distinct and all(part._rows_given for part in parts),
            shift=parts[0]._shift,
        )

    def _strata(self, stratify: Any) -> Array:
        if stratify is None or stratify is False:
            return np.zeros(len(self), dtype=np.int64)
        if stratify is True:
            return self.require_labels("stratify=True")
        if isinstance(stratify, str):
            if stratify not in self._groups:
                raise InputError(
                    f"stratify names no group column: {stratify!r}; there are {list(self._groups)}."
                )
            stratify = self._groups[stratify]
        values = column(stratify, "stratify", len(self))
        return np.unique(values.astype(str), return_inverse=True)[1]

    def _select(self, index: NDArray[np.int64]) -> Self:
        return self._trusted(
            kind=self._kind,
            values=self._values[index],
            features=None if self._features is None else self._features[index],
            classes=self._classes,
            codes=None if self._codes is None else self._codes[index],
            groups={name: column[index] for name, column in self._groups.items()},
            rows=self._rows[index],
            rows_given=self._rows_given,
            shift=self._shift,
        )

    @classmethod
    def _trusted(
        cls,
        *,
        kind: Literal["logits", "probabilities"],
        values: Array,
        features: Array | None,
        classes: Array,
        codes: NDArray[np.int64] | None,
        groups: Mapping[str, Array],
        rows: NDArray[np.int64],
        rows_given: bool,
        shift: NDArray[np.float64] | None = None,
    ) -> Self:
        """Build from parts that were checked before."""
        new = cls.__new__(cls)
        new._kind = kind
        new._values = read_only(values)
        new._features = None if features is None else read_only(features)
        new._classes = classes
        new._codes = None if codes is None else read_only(codes)
        new._groups = {name: read_only(column) for name, column in groups.items()}
        new._rows = read_only(rows)
        new._rows_given = rows_given
        new._shift = shift
        return new

    def shifted(self, shift: Any) -> Self:
        """Return the same samples with a constant added to the logits of each class.

        The sum is taken block by block when it is needed; no second copy of the logits is
        kept.

        Examples
        --------
        >>> outputs = ModelOutputs(probabilities=[[0.6, 0.4]])
        >>> outputs.shifted([0.0, np.log(3.0)]).probabilities.round(3)
        array([[0.333, 0.667]])
        """
        amounts = column(shift, "shift", self.n_classes).astype(np.float64)
        before = np.zeros(self.n_classes) if self._shift is None else self._shift
        return self._trusted(
            kind=self._kind,
            values=self._values,
            features=self._features,
            classes=self._classes,
            codes=self._codes,
            groups=self._groups,
            rows=self._rows,
            rows_given=self._rows_given,
            shift=read_only(before + amounts),
        )

    def with_logits(self, logits: Array) -> Self:
        """Return the same samples with other logits (for example temperature-scaled)."""
        return self._trusted(
            kind="logits",
            values=floating_matrix(logits, "logits"),
            features=self._features,
            classes=self._classes,
            codes=self._codes,
            groups=self._groups,
            rows=self._rows,
            rows_given=self._rows_given,
        )


def _keys_of(values: Array) -> NDArray[np.int64]:
    """A number made of the content of each row."""
    keys = np.empty(len(values), dtype=np.int64)

    def fill(block: slice) -> None:
        keys[block] = content_keys(values[block])

    for_each_block(fill, *values.shape)
    return keys


def _check_alike(parts: Sequence[ModelOutputs]) -> None:
    first = parts[0]
    for number, part in enumerate(parts[1:], start=1):
        same = {
            "logits or probabilities": part._kind == first._kind,
            "classes": np.array_equal(part.classes, first.classes),
            "shift": np.array_equal(_shift_of(part), _shift_of(first)),
            "features": _width(part) == _width(first),
            "labels": (part.codes is None) == (first.codes is None),
            "group columns": list(part.groups) == list(first.groups),
        }
        for what, agrees in same.items():
            if not agrees:
                raise InputError(f"parts[{number}] differs from parts[0] in its {what}.")


def _shift_of(outputs: ModelOutputs) -> NDArray[np.float64]:
    return np.zeros(outputs.n_classes) if outputs._shift is None else outputs._shift


def _width(outputs: ModelOutputs) -> int | None:
    return None if outputs.features is None else int(outputs.features.shape[1])


def _join(pieces: Sequence[Array | None]) -> Array | None:
    present = [piece for piece in pieces if piece is not None]
    return np.concatenate(present) if present else None
