"""Prediction sets: the classes in the set of each sample."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, final, overload

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Array, Flavour, column, encode_labels, picked_rows
from trustsets._frames import make_frame
from trustsets._parameters import check_alpha
from trustsets.errors import InputError
from trustsets.status import IS_INFINITE, Status, Thresholds

__all__ = ["PredictionSets"]

# Fields with an entry for each sample; alpha may be one of them.
_PER_SAMPLE = ("mask", "thresholds", "status", "scores", "predicted", "alpha")


@final
@dataclass(frozen=True, eq=False, repr=False)
class PredictionSets:
    """Prediction sets of m samples at one alpha, or at each of A alphas.

    Attributes
    ----------
    mask : bool array of shape (m, K), or (m, K, A) for a sequence of alphas
        Whether a class is in the set.
    thresholds : array of shape (m,) or (m, A)
        Largest score that a class in the set may have; (m, K) or (m, K, A) where each class has
        its own threshold.
    status : int8 array of shape (m,) or (m, A)
        `Status` of each threshold; ``Status(value).sentence`` says it in words.
    alpha : float, tuple of float, or array of shape (m,)
        Allowed share of sets that miss the true class; an array where every sample has its own.
    classes : array of shape (K,)
        Names of the classes.
    scores : array of shape (m, K), optional
        Nonconformity scores, by which the classes of a set are listed; else in column order.
    predicted : int array of shape (m,), optional
        Column of the most likely class, which comes first among equal scores.
    flavour : str, optional
        Package whose frames `to_frame` gives: the one that the outputs came in.

    Examples
    --------
    >>> scores, limits = np.array([[0.1, 0.8], [0.7, 0.2]]), np.array([0.9, 0.3])
    >>> thresholds = Thresholds(limits, np.zeros(2, dtype=np.int8))
    >>> sets = PredictionSets.from_scores(scores, thresholds, 0.1, classes=np.array(["cat", "dog"]))
    >>> sets
    PredictionSets(2 samples, 2 classes, alpha=0.1, mean size 1.50)
    >>> sets[0].tolist(), sets.sizes.tolist()
    (['cat', 'dog'], [2, 1])
    >>> sets.covers(["dog", "cat"]).tolist()
    [True, False]
    """

    mask: NDArray[np.bool_]
    thresholds: NDArray[np.float64]
    status: NDArray[np.int8]
    alpha: float | tuple[float, ...] | NDArray[np.float64]
    classes: Array
    scores: NDArray[np.float64] | None = None
    predicted: NDArray[np.int64] | None = None
    flavour: Flavour | None = None

    def __post_init__(self) -> None:
        for name in _PER_SAMPLE:
            value = getattr(self, name)
            if isinstance(value, np.ndarray) and value.flags.writeable:
                vars(self)[name] = value = value.view()
                value.flags.writeable = False

    @classmethod
    def from_scores(
        cls,
        scores: NDArray[np.float64],
        thresholds: Thresholds,
        alpha: float | tuple[float, ...],
        *,
        classes: Array | None = None,
        predicted: NDArray[np.int64] | None = None,
        allow_empty: bool = False,
        flavour: Flavour | None = None,
    ) -> Self:
        """Sets of the classes whose nonconformity score is at most the threshold.

        Parameters
        ----------
        scores : array of shape (m, K)
        thresholds : Thresholds
            Values of shape (m,) for one alpha, (m, A) for A alphas, or (m, K, A) where each class
            has thresholds of its own.
        alpha : float or tuple of A floats
        classes : array of shape (K,), optional
            Names; default ``0..K-1``.
        predicted : int array of shape (m,), optional
            Column of the most likely class; default that of the lowest score.
        allow_empty : bool
            False keeps the most likely class in a set that would be empty.
        """
        if not isinstance(allow_empty, bool | np.bool_):
            raise InputError(f"allow_empty must be True or False; got {allow_empty!r:.60}.")
        is_single = not isinstance(alpha, tuple)
        alphas = alpha if isinstance(alpha, tuple) else (alpha,)
        for level in alphas:
            if not (isinstance(level, int | float) and 0.0 <= level <= 1.0):
                raise InputError(f"alpha must lie in [0, 1], or be a tuple; got {alpha!r:.60}.")
        alphas = tuple(map(float, alphas))
        if not isinstance(thresholds, Thresholds):
            raise InputError(f"thresholds must be Thresholds; got {type(thresholds).__name__}.")
        if not isinstance(scores, np.ndarray) or scores.ndim != 2:
            raise InputError("scores must be an array of shape (m, K).")
        m, n_classes = scores.shape
        classes = np.arange(n_classes) if classes is None else classes
        predicted = scores.argmin(axis=1) if predicted is None else predicted
        values, status = thresholds.values, thresholds.status
        shapes = [(m, len(alphas)), (m, n_classes, len(alphas))]
        if len(alphas) == 1:
            shapes.append((m,))
        _check_array("scores", scores, "fiu", [scores.shape])
        _check_array("thresholds.values", values, "f", shapes)
        _check_array("thresholds.status", status, "iu", [(m, *values.shape[1:][-1:])])
        _check_array("classes", classes, "biufSUOmM", [(n_classes,)])
        _check_array("predicted", predicted, "iu", [(m,)])
        if values.ndim == 1:
            values, status = values[:, None], status[:, None]
        limits = values if values.ndim == 3 else values[:, None]
        mask = np.empty((*scores.shape, values.shape[-1]), dtype=bool)
        for number in range(values.shape[-1]):
            np.less_equal(scores, limits[..., number], out=mask[..., number])
        is_full = mask.all(axis=1)
        try:
            if not allow_empty:
                # If the set of any alpha is empty, all alphas get the class: sets stay nested even
                # where the set of a smaller alpha holds other classes.
                empty = np.flatnonzero(~np.all(mask.any(axis=1), axis=1))
                mask[empty, predicted[empty]] = True
            # A full set says why it is full, unless that is the most likely class alone.
            bounded = is_full & ~IS_INFINITE[status]
        except IndexError as error:
            raise InputError(
                f"predicted must be columns of scores, and status values of Status: {error}."
            ) from None
        status = np.where(bounded, np.int8(Status.ABOVE_ALL_SCORES), status)
        if is_single:
            mask, values, status = mask[..., 0], values[..., 0], status[..., 0]
        alpha = alphas[0] if is_single else alphas
        return cls(mask, values, status, alpha, classes, scores, predicted, flavour)

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    def __repr__(self) -> str:
        sizes = self.sizes.mean(axis=0) if len(self) else np.nan
        means = ", ".join(f"{mean:.2f}" for mean in np.atleast_1d(sizes))
        return (
            f"PredictionSets({len(self)} samples, {self.classes.size} classes, "
            f"alpha={self._alpha_words('{}')}, mean size {means})"
        )

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Array | list[Any]) -> Self: ...
    def __getitem__(self, index: Any) -> Any:
        """Return the classes of one sample (a list of them for several alphas), or a part."""
        if isinstance(index, int | np.integer) and not isinstance(index, bool):
            ranked = np.arange(self.classes.size)
            if self.scores is not None and self.predicted is not None:
                ranked = np.lexsort((ranked != self.predicted[index], self.scores[index]))
            members = self.mask[index][ranked]
            if self.is_single:
                return self.classes[ranked[members]]
            return [self.classes[ranked[column]] for column in members.T]
        rows = picked_rows(index, len(self))
        index = index if isinstance(index, slice) else rows  # a slice copies nothing
        arrays = {name: getattr(self, name) for name in _PER_SAMPLE}
        picked = {name: a[index] for name, a in arrays.items() if isinstance(a, np.ndarray)}
        return replace(self, **picked)

    @property
    def is_single(self) -> bool:
        """Whether every sample has one set."""
        return self.mask.ndim == 2

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of classes in each set, shape (m,) or (m, A)."""
        return np.asarray(np.count_nonzero(self.mask, axis=1))

    def at(self, alpha: float) -> Self:
        """Return the sets of one of several alphas."""
        if isinstance(self.alpha, np.ndarray):
            raise InputError("each of these sets has an alpha of its own; predict with alpha=....")
        alphas = (self.alpha,) if isinstance(self.alpha, float) else self.alpha
        alpha = check_alpha(alpha)
        if alpha not in alphas:
            raise InputError(f"alpha={alpha} was not predicted; there are {alphas}.")
        if self.is_single:
            return self
        number = alphas.index(alpha)
        names = ("mask", "thresholds", "status")
        columns = {name: getattr(self, name)[..., number] for name in names}
        return replace(self, alpha=alpha, **columns)

    def covers(self, labels: Any) -> NDArray[np.bool_]:
        """Whether each set holds its label, shape (m,) or (m, A)."""
        codes = encode_labels(column(labels, "labels", len(self)), self.classes)
        return np.asarray(self.mask[np.arange(len(self)), codes])

    def labels(self) -> list[Any]:
        """Classes of each set, the most likely one first."""
        return list(self)

    def describe(self) -> list[str]:
        """Sentences: how many sets are full or empty, and why thresholds are what they are."""
        self._require_single("describe")
        full = self.mask.all(axis=1)
        lines = [
            f"Of {len(self):,} sets at alpha={self._alpha_words('{:g}')}, {full.sum():,} are full "
            f"({self.classes.size} classes) and {np.sum(self.sizes == 0):,} are empty."
        ]
        for status in Status:
            count = int(np.count_nonzero(self.status == status))
            if count and status is not Status.EXACT:
                sets = "1 set" if count == 1 else f"{count:,} sets"
                lines.append(f"{sets}: {status.sentence}.")
        return lines

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row per sample, as `to_columns`, of the outputs' own kind of frame or `flavour`."""
        return make_frame(self.to_columns(), self.flavour if flavour is None else flavour)

    def to_columns(self) -> dict[str, Any]:
        """Set, size, threshold, status in words, and an alpha of its own, of each sample."""
        self._require_single("to_frame")
        names = {int(status): status.name.lower() for status in Status}
        thresholds = self.thresholds
        columns = {
            "set": [members.tolist() for members in self],
            "size": self.sizes,
            # The largest, where each class has its own threshold.
            "threshold": thresholds if thresholds.ndim == 1 else thresholds.max(axis=1),
            "status": [names[value] for value in self.status.tolist()],
        }
        return columns | ({"alpha": self.alpha} if isinstance(self.alpha, np.ndarray) else {})

    def _require_single(self, method: str) -> None:
        if not self.is_single:
            raise InputError(f"{method} shows one alpha; choose it with .at(alpha) first.")

    def _alpha_words(self, form: str) -> str:
        """One alpha, several, or the range of those of the samples."""
        if not isinstance(self.alpha, np.ndarray):
            return form.format(self.alpha)
        return f"{self.alpha.min():.3g} to {self.alpha.max():.3g}" if self.alpha.size else "()"


def _check_array(name: str, array: Any, kinds: str, shapes: list[tuple[int, ...]]) -> None:
    """Raise unless this is an array of one of these kinds, and of one of these shapes."""
    is_array = isinstance(array, np.ndarray)
    if not is_array or array.dtype.kind not in kinds or array.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        came = f"{array.dtype} of shape {array.shape}" if is_array else type(array).__name__
        raise InputError(f"{name} must be an array of shape {wanted}; got {came}.")
