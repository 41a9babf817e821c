"""The search for regions of low coverage: conjunctions of a few conditions, by beam search.

Everything here sees the searched half of the samples only: where numbers may be divided, which
categories are frequent, and which region looks worst.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets.auditing.covariates import Covariate

__all__ = ["Condition", "describe", "evidence", "inside", "search_regions"]

Bools = NDArray[np.bool_]
Rule = tuple["Condition", ...]

# Numbers may be divided at these shares of the searched samples; a division may move by a third
# of the distance to the next to have fewer digits.
_SHARES = np.arange(1, 16) / 16
_LEEWAY = 1 / 48
# Regions that are extended by one more condition, the best of each length.
_BEAM = 12


@final
@dataclass(frozen=True)
class Condition:
    """One condition on one column: ``above < x <= at_most``, or ``x`` is the category.

    Attributes
    ----------
    name : str
        The column, such as ``"confidence"``.
    above, at_most : float
        Ends of the interval; NaN where it has none.
    category : str or None
        The value of a column of categories.

    Examples
    --------
    >>> str(Condition("confidence", above=0.9)), str(Condition("sex", category="male"))
    ('confidence is above 0.9', 'sex is male')
    """

    name: str
    above: float = math.nan
    at_most: float = math.nan
    category: str | None = None

    def __str__(self) -> str:
        if self.category is not None:
            return f"{self.name} is {self.category}"
        ends = {"above": self.above, "at most": self.at_most}
        parts = [f"{words} {_digits(end)}" for words, end in ends.items() if not math.isnan(end)]
        return f"{self.name} is {' and '.join(parts)}"

    def holds(self, column: Covariate) -> Bools:
        """Whether each value of its column satisfies the condition."""
        if self.category is not None:
            if self.category not in column.levels:
                return np.zeros(column.values.size, dtype=bool)
            same: Bools = column.values == column.levels.index(self.category)
            return same
        # Comparisons with NaN are false, so an end that is not there excludes no value.
        outside = (column.values <= self.above) | (column.values > self.at_most)
        return ~outside


def _digits(number: float) -> str:
    """All digits of a number, so that the words are the condition itself."""
    return repr(number).removesuffix(".0")


def inside(rule: Rule, columns: Sequence[Covariate]) -> Bools:
    """Samples that satisfy every condition, shape (n,)."""
    by_name = {column.name: column for column in columns}
    held: Bools = np.all([item.holds(by_name[item.name]) for item in rule], axis=0)
    return held


def describe(rule: Rule) -> str:
    """The conditions in words.

    Examples
    --------
    >>> describe((Condition("trust", at_most=1.2), Condition("confidence", 0.5, 0.9)))
    'trust is at most 1.2, and confidence is above 0.5 and at most 0.9'
    """
    return ", and ".join(str(item) for item in rule)


def evidence(count: Floats, covered: Floats, target: float) -> Floats:
    """Evidence of coverage below the target: Chernoff's bound on minus the log p-value.

    With c the observed coverage of n samples, ``n KL(c || target)`` where c is below the target,
    and 0 elsewhere.

    Examples
    --------
    >>> evidence(np.array([100.0, 100.0]), np.array([80.0, 95.0]), 0.9).round(3).tolist()
    [4.44, 0.0]
    """
    share = covered / np.maximum(count, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        hits = np.where(share > 0.0, share * np.log(share / target), 0.0)
        misses = np.where(share < 1.0, (1.0 - share) * np.log((1.0 - share) / (1.0 - target)), 0.0)
    return np.where(share < target, count * (hits + misses), 0.0)


def search_regions(
    columns: Sequence[Covariate],
    covered: Bools,
    target: float,
    *,
    max_conditions: int,
    fewest: int,
    max_regions: int,
) -> list[Rule]:
    """Regions that look worst, the worst first, each among the samples of no earlier one.

    The worst region has the most evidence after a correction for the number of regions of so
    many conditions. The first is always returned, others only while the evidence exceeds the
    correction.

    Parameters
    ----------
    columns : sequence of Covariate
        Columns of the searched samples.
    covered : bool array of shape (n,)
        Whether each set contains the true class.
    target : float
        Coverage that was asked for.
    max_conditions, fewest, max_regions : int
        Most conditions, fewest samples of a region, and most regions.
    """
    candidates = _Candidates(columns, fewest)
    left = np.ones(covered.size, dtype=bool)
    found: list[Rule] = []
    for _ in range(max_regions):
        # A calibration that came out low lowers all regions alike, which is no region.
        reference = min(target, float(covered[left].mean())) if left.any() else 0.0
        if not 0.0 < reference:
            break
        best = candidates.worst(left, covered, reference, max_conditions, fewest)
        if best is None or (found and best[1] <= 0.0):
            break
        found.append(_merged(candidates.conditions[place] for place in best[0]))
        if best[1] <= 0.0:
            break
        left &= ~inside(found[-1], columns)
    return found


class _Candidates:
    """Every single condition, and the searched samples that satisfy it."""

    def __init__(self, columns: Sequence[Covariate], fewest: int) -> None:
        self.conditions: list[Condition] = []
        self.kinds: list[str] = []
        held = []
        for column in columns:
            for condition in _conditions(column, fewest):
                self.conditions.append(condition)
                self.kinds.append(column.kind)
                held.append(condition.holds(column))
        self.held = np.array(held, dtype=np.float32).reshape(len(held), -1)

    def worst(
        self, left: Bools, covered: Bools, target: float, max_conditions: int, fewest: int
    ) -> tuple[tuple[int, ...], float] | None:
        """Places of the conditions of the worst region, and its evidence after correction."""
        if not self.conditions:
            return None
        correction = math.log(len(self.conditions))
        best: tuple[tuple[int, ...], float] | None = None
        beam: list[tuple[int, ...]] = [()]
        for length in range(1, max_conditions + 1):
            grown = self._grow(beam, left, covered, target, fewest)
            if not grown:
                break
            beam = [rule for rule, _ in grown]
            if best is None or grown[0][1] - length * correction > best[1]:
                best = (beam[0], grown[0][1] - length * correction)
        return best

    def _grow(
        self,
        beam: list[tuple[int, ...]],
        left: Bools,
        covered: Bools,
        target: float,
        fewest: int,
    ) -> list[tuple[tuple[int, ...], float]]:
        """The best regions with one condition more, with their evidence, the best first."""
        masks = np.array([self.held[list(rule)].min(axis=0, initial=1.0) for rule in beam]) * left
        # Sums of zeros and ones below 2**24 are exact in single precision.
        count = (masks @ self.held.T).astype(np.float64)
        hits = ((masks * covered) @ self.held.T).astype(np.float64)
        gain = evidence(count, hits, target)
        # A condition that excludes no sample only makes the region longer.
        whole = masks.sum(axis=1, dtype=np.float64)[:, None]
        gain[(count < fewest) | ((count == whole) & (len(beam[0]) > 0))] = -1.0
        found: dict[tuple[int, ...], float] = {}
        for flat in np.argsort(-gain, axis=None, kind="stable"):
            row, place = divmod(int(flat), len(self.conditions))
            if gain[row, place] <= 0.0 or len(found) == _BEAM:
                break
            rule = tuple(sorted({*beam[row], place}))
            if self._may_combine(rule):
                found.setdefault(rule, float(gain[row, place]))
        return list(found.items())

    def _may_combine(self, rule: tuple[int, ...]) -> bool:
        """Whether the conditions may stand together.

        The true class stands with groups only: together with the confidence or the predicted
        class it says that the prediction is wrong, and every method misses more of those.
        """
        kinds = {self.kinds[place] for place in rule}
        return "classes" not in kinds or kinds <= {"classes", "groups"}


def _conditions(column: Covariate, fewest: int) -> Iterator[Condition]:
    """All conditions on one column that hold for `fewest` samples or more."""
    if column.levels:
        counts = np.bincount(column.values.astype(np.int64), minlength=len(column.levels))
        for place in np.flatnonzero(counts >= fewest).tolist():
            yield Condition(column.name, category=column.levels[place])
        return
    for cut in _cuts(column.values):
        yield Condition(column.name, at_most=cut)
        yield Condition(column.name, above=cut)


def _cuts(values: Floats) -> list[float]:
    """Numbers with few digits that divide the values at about the shares `_SHARES`."""
    ordered = np.sort(values)
    cuts = set()
    for share in _SHARES:
        ends = np.array([share - _LEEWAY, share, share + _LEEWAY]) * (ordered.size - 1)
        low, middle, high = ordered[np.rint(ends).astype(np.int64)].tolist()
        if math.isfinite(middle):
            cuts.add(_shortest(low, middle, high))
    return sorted(cut for cut in cuts if ordered[0] <= cut < ordered[-1])


def _shortest(low: float, middle: float, high: float) -> float:
    """The middle, rounded to as few digits as keep it between low and high.

    Examples
    --------
    >>> _shortest(0.91, 0.9237, 0.94), _shortest(5.0, 5.0, 5.0), _shortest(-1.5, -0.02, 0.3)
    (0.92, 5.0, -0.02)
    """
    rounded = (float(f"{middle:.{digits}g}") for digits in range(1, 17))
    return next((number for number in rounded if low <= number <= high), middle)


def _merged(conditions: Iterator[Condition]) -> Rule:
    """Join two ends on the same column into one condition."""
    joined: dict[str, Condition] = {}
    for item in conditions:
        own = joined.get(item.name)
        if own is None:
            joined[item.name] = item
            continue
        joined[item.name] = replace(
            own,
            above=float(np.fmax(own.above, item.above)),
            at_most=float(np.fmin(own.at_most, item.at_most)),
        )
    return tuple(joined.values())
