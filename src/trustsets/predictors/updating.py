"""Calibration samples that come and go: what is kept of them, and where they are in sorted arrays.

Calibration samples themselves are in memory only. What a method learned (`Learned`) holds sorted
numbers of all of them, so samples can be added to a loaded predictor and, where they are given
again, removed from it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array, Codes, read_only
from trustsets._common.draws import Stream, content_keys
from trustsets.basis import FittedBasis, FittedGroups, FittedSum
from trustsets.basis.labels import FittedProduct
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs, check_alike
from trustsets.predictors.calibrated import Calibrated, Learned, Task
from trustsets.predictors.class_facts import ClassFacts
from trustsets.scores import Score

__all__ = [
    "KeptSamples",
    "changed_state",
    "equal_ranges",
    "knows_groups",
    "places_of",
    "read_numbers",
    "task_of",
    "with_new_rows",
]

# So few places are found one by one in less time than all at once.
_FEW_PLACES = 32


@final
@dataclass(frozen=True)
class KeptSamples:
    """Calibration samples in parts, joined only when all of them are needed.

    Joining copies all outputs, which would take longer than adding a sample to what was learned.

    Attributes
    ----------
    parts : tuple of Task
        In the order in which they came.
    index : (n,) array
        Which samples of all parts, end to end, are still there.
    """

    parts: tuple[Task, ...]
    index: Codes

    @classmethod
    def of(cls, task: Task) -> Self:
        """All samples of a task."""
        return cls((task,), np.arange(len(task.scores)))

    @property
    def next_row(self) -> int:
        """A number beyond the identities of all samples."""
        return 1 + max(int(part.calibration.rows.max()) for part in self.parts)

    def has_any(self, rows: Codes) -> bool:
        """Whether one of the identities is taken."""
        return any(np.isin(rows, part.calibration.rows).any() for part in self.parts)

    def take(self, numbers: Codes) -> Task:
        """Some of the samples, by number."""
        wanted = self.index[numbers]
        sizes = [len(part.scores) for part in self.parts]
        first = np.concatenate([[0], np.cumsum(sizes)])
        found, order = [], []
        for part, start, end in zip(self.parts, first[:-1], first[1:], strict=True):
            own = np.flatnonzero((wanted >= start) & (wanted < end))
            if own.size:
                found.append(_some(part, wanted[own] - start))
                order.append(own)
        back = np.argsort(np.concatenate(order))
        joined = _join(found)
        # The common case needs no further copy.
        return joined if np.array_equal(back, np.arange(back.size)) else _some(joined, back)

    def whole(self) -> Task:
        """All samples as one task, with the tuning samples of the first part."""
        if len(self.parts) == 1 and self.index.size == len(self.parts[0].scores):
            return self.parts[0]
        found = self.take(np.arange(self.index.size))
        first = self.parts[0]
        return replace(found, tuning=first.tuning, tuning_scores=first.tuning_scores)

    def plus(self, added: Task) -> Self:
        """The same with more samples at the end; refuse outputs that cannot be joined."""
        first, more = self.parts[0].calibration, added.calibration
        try:
            check_alike([first, more])
        except InputError as error:
            raise InputError(f"new samples must be like those of calibrate: {error}") from error
        start = sum(len(part.scores) for part in self.parts)
        index = np.concatenate([self.index, start + np.arange(len(added.scores))])
        parts = [*self.parts, added]
        # Parts that are no larger than the last are joined to it. So there are few of them, and a
        # sample that came alone is copied a few times only.
        while len(parts) > 2 and len(parts[-2].scores) <= len(parts[-1].scores):
            parts[-2:] = [_join(parts[-2:])]
        return type(self)(tuple(parts), index)

    def minus(self, numbers: Codes) -> Self:
        """The same without some of the samples, by number."""
        if numbers.size >= self.index.size:
            raise InputError("rows are all calibration samples; at least one must stay.")
        index = np.delete(self.index, numbers)
        rest = type(self)(self.parts, index)
        # Samples that are gone must not fill the memory of a sliding window.
        if 2 * index.size < sum(len(part.scores) for part in self.parts):
            return type(self).of(rest.whole())
        return rest

    def find(self, task: Task) -> Codes:
        """Numbers of the samples that are equal to those of a task, each sample used once."""
        own, others = _sample_keys(self.take(np.arange(self.index.size))), _sample_keys(task)
        order = np.argsort(own, kind="stable")
        low, high = (np.searchsorted(own[order], others, side) for side in ("left", "right"))
        places = _each_once(low, high)
        if (places < 0).any():
            raise InputError(_not_found(np.flatnonzero(places < 0)))
        return np.asarray(order[places])


def _some(task: Task, numbers: Codes) -> Task:
    return replace(task, calibration=task.calibration.take(numbers), scores=task.scores[numbers])


def _join(tasks: Sequence[Task]) -> Task:
    """Calibration samples end to end; everything else is that of the first task."""
    if len(tasks) == 1:
        return tasks[0]
    parts = [task.calibration for task in tasks]
    rows = np.concatenate([part.rows for part in parts])
    scores = np.concatenate([task.scores for task in tasks])
    joined = ModelOutputs.concat(parts)._replaced(rows=read_only(rows))
    return replace(tasks[0], calibration=joined, scores=scores)


def _sample_keys(task: Task) -> Codes:
    """One number for each sample, made of its outputs, label and score."""
    outputs = task.calibration
    codes = outputs.require_labels("forget")
    own = np.column_stack([codes, task.scores])
    # Without identities, the keys of random draws are made of the content.
    return 3 * outputs._replaced(_rows_given=False).draw_keys + content_keys(own)


def task_of(state: Calibrated, score: Score, outputs: ModelOutputs, trust: Any) -> Task:
    """Labelled samples as a task, scored as calibration samples are."""
    outputs.require_labels("a change of the calibration samples")
    outputs = outputs.with_trust(trust)
    scores = state.scoring(score).of_labels(outputs, Stream.CALIBRATION_SCORE)
    return Task(outputs, outputs, scores, lambda: scores, state.seed)


def with_new_rows(
    state: Calibrated, kept: KeptSamples | None, outputs: ModelOutputs
) -> ModelOutputs:
    """New samples, numbered after the present ones where their identities are taken.

    Random draws are made of the identities, and no two samples may share theirs. A loaded
    predictor does not know which are taken, and relies on those that the user gave.
    """
    first = state.n + state.n_tuning if kept is None else kept.next_row
    if outputs.rows.min() >= first or (kept is None and outputs._rows_given):
        return outputs
    if kept is not None and not kept.has_any(outputs.rows):
        return outputs
    return outputs._replaced(rows=read_only(first + np.arange(len(outputs))))


def changed_state(state: Calibrated, learned: Learned, task: Task, sign: int) -> Calibrated:
    """The state after samples were added (`sign` 1) or removed (-1)."""
    facts, n = state.class_facts, state.n + sign * len(task.scores)
    if n < 1:
        raise InputError("rows are all calibration samples; at least one must stay.")
    if facts is not None:
        outputs = task.calibration
        codes = outputs.require_labels("update")
        counts = facts.counts + sign * np.bincount(codes, minlength=facts.counts.size)
        right = round(facts.accuracy * state.n) + sign * int(
            np.sum(outputs.predicted_codes == codes)
        )
        better = facts.reordered if facts.reordered > right / n else 0.0
        facts = ClassFacts(counts, right / n, facts.below_majority, better)
    return replace(state, learned=learned, n=n, class_facts=facts)


def read_numbers(rows: Any, n: int) -> Codes:
    """Sample numbers from integers, booleans or a slice."""
    given = np.arange(n)[rows] if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows))
    if given.dtype == bool and given.shape == (n,):
        given = np.flatnonzero(given)
    if given.size == 0:
        given = given.astype(np.int64)
    whole = given.ndim == 1 and given.dtype.kind in "iu"
    if not whole or ((given < -n) | (given >= n)).any() or np.unique(given % n).size < given.size:
        raise InputError(
            f"rows must be different numbers of calibration samples, from 0 to {n - 1} in the "
            f"order of calibration_rows_, or booleans for all {n}, or the samples themselves as "
            f"ModelOutputs with labels; got {rows!r}."
        )
    return np.asarray(given % n, np.int64)


def equal_ranges(keys: Sequence[Array], wanted: Sequence[Array]) -> tuple[Codes, Codes]:
    """Where the wanted tuples are, or belong, in tuples sorted by their first entry and so on.

    Parameters
    ----------
    keys : sequence of (n,) arrays
        Entries of the sorted tuples, the first entries first.
    wanted : sequence of (m,) arrays

    Returns
    -------
    low, high : (m,) arrays
        Tuples from `low` to before `high` are equal to the wanted one; where there are none,
        both are the place at which it belongs.

    Examples
    --------
    >>> keys = np.array([1, 1, 1, 2]), np.array([5.0, 7.0, 7.0, 6.0])
    >>> equal_ranges(keys, (np.array([1, 1, 2]), np.array([7.0, 6.0, 9.0])))
    (array([1, 1, 4]), array([3, 1, 4]))
    """
    low = np.searchsorted(keys[0], wanted[0], side="left")
    high = np.searchsorted(keys[0], wanted[0], side="right")
    for own, values in zip(keys[1:], wanted[1:], strict=True):
        if np.array_equal(low, high):
            break
        low, high = _bisect(own, values, low, high, False), _bisect(own, values, low, high, True)
    return low, high


def _bisect(keys: Array, values: Array, low: Codes, high: Codes, after: bool) -> Codes:
    """Places of values in keys that increase from each `low` to its `high`."""
    if low.size <= _FEW_PLACES:
        one = bisect_right if after else bisect_left
        each = zip(values.tolist(), low.tolist(), high.tolist(), strict=True)
        return np.array([one(keys, *own) for own in each], np.int64)
    low, high = low.copy(), high.copy()
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = np.minimum((low + high) // 2, keys.size - 1)
        is_before = keys[middle] <= values if after else keys[middle] < values
        is_before &= low < high
        low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
        high = np.maximum(high, low)
    return low


def places_of(keys: Sequence[Array], wanted: Sequence[Array], tolerance: float = 0.0) -> Codes:
    """Places of wanted tuples among sorted ones, each place used once; raise where one is missing.

    Tuples that are not found to the last bit are looked for within `tolerance`, as a share of the
    largest entry of each column: products of matrices depend on the batch in their last digits.
    """
    places = _each_once(*equal_ranges(keys, wanted))
    missing = np.flatnonzero(places < 0)
    if missing.size and tolerance:
        table = np.column_stack(list(keys))
        size = np.abs(table).max(axis=0)
        size[size == 0.0] = 1.0
        free = np.ones(len(table), np.bool_)
        free[places[places >= 0]] = False
        for number in missing:
            gaps = np.abs((table - [own[number] for own in wanted]) / size).max(axis=1)
            gaps[~free] = np.inf
            nearest = int(gaps.argmin())
            if gaps[nearest] <= tolerance:
                places[number], free[nearest] = nearest, False
        missing = np.flatnonzero(places < 0)
    if missing.size:
        raise InputError(_not_found(missing))
    return np.sort(places)


def _each_once(low: Codes, high: Codes) -> Codes:
    """A place of its own from each range of equal ones; -1 where there are not enough."""
    order = np.argsort(low, kind="stable")
    _, start, count = np.unique(low[order], return_index=True, return_counts=True)
    places = np.empty_like(low)
    places[order] = low[order] + np.arange(low.size) - np.repeat(start, count)
    return np.asarray(np.where(places < high, places, -1))


def _not_found(numbers: NDArray[np.int64]) -> str:
    return (
        f"rows must be samples that were calibrated on; {numbers.size} of them are not, the first "
        f"has number {int(numbers[0])}. Pass them with the labels, rows and trust they had."
    )


def knows_groups(basis: FittedBasis, outputs: ModelOutputs) -> bool:
    """Whether all groups of the samples are among those that the basis has functions for."""
    if isinstance(basis, FittedSum):
        return all(knows_groups(part, outputs) for part in basis.parts)
    if isinstance(basis, FittedProduct):
        return knows_groups(basis.left, outputs) and knows_groups(basis.right, outputs)
    return not isinstance(basis, FittedGroups) or basis.could_give(basis.design(outputs))
