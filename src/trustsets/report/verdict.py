"""The result of an evaluation in words. Imports metrics and text."""

from collections.abc import Mapping

import numpy as np

from trustsets.metrics.bins import BinTable
from trustsets.metrics.result import Evaluation
from trustsets.report.text import division_title, fixed, joined, percent

__all__ = ["ONE_METHOD", "is_grid", "judged_by", "under_covered", "verdict"]

# Stands for the name where a single evaluation came without one.
ONE_METHOD = "this method"

# Conf x Rank and set size come last: rank needs the label and size is the method's own
# choice, so that coverage cannot be 1 - alpha in each of their bins.
_LAST = ("conf_rank", "size_strata")
# From so many methods on, the sentence speaks of all and of extremes where it can.
_MANY = 4


def verdict(evaluations: Mapping[str, Evaluation]) -> str:
    """Say in words whether coverage holds on average and in places.

    It names, for each method, whether the average is within error of 1 - alpha, how many
    bins under-cover significantly (Holm's correction within a table, at one minus the level
    of the intervals), and how much of the coverage gap chance does not explain. The table
    that `judged_by` picks comes first and all others that the methods share follow. Where
    classes are far below the target, it points to the method that covers each class.

    Parameters
    ----------
    evaluations : mapping of method name to Evaluation
        Of the same test samples.

    Examples
    --------
    >>> from trustsets import ModelOutputs, StandardConformal, evaluate
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 4))
    >>> labels = (logits + rng.gumbel(size=(2000, 4))).argmax(axis=1)
    >>> calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> sets = StandardConformal().calibrate(calibration).predict_set(test)
    >>> verdict({"standard": evaluate(sets, test, metrics=["class"])}).split(";")[1]
    ' coverage is significantly too low (Holm, 5%) in none of 4 classes'
    """
    clauses = [_on_average(evaluations)]
    name = judged_by(evaluations)
    if name is not None:
        tables = {method: item.tables[name] for method, item in evaluations.items()}
        level = 1.0 - next(iter(evaluations.values())).level
        clauses += [_in_places(tables, name, level), _beyond_chance(tables)]
        clauses += _elsewhere(evaluations, name, level)
    return " ".join(["; ".join(clauses) + ".", *_advice(evaluations)])


def judged_by(evaluations: Mapping[str, Evaluation]) -> str | None:
    """Division of the samples that the verdict speaks of: the first that all methods have."""
    return next(iter(_in_order(evaluations)), None)


def _in_order(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Tables that all methods have, those that a verdict should speak of first in front."""
    first, *others = evaluations.values()
    shared = [name for name in first.tables if all(name in item.tables for item in others)]
    groups = [name for name in shared if name.startswith("group:")]
    wanted = ["conf_trust", *groups, "class", *(name for name in shared if name not in _LAST)]
    return [name for name in dict.fromkeys([*wanted, *_LAST]) if name in shared]


def is_grid(table: BinTable) -> bool:
    """Whether the bins lie on a grid of two axes."""
    return len(table.axes) == 2


def under_covered(table: BinTable, level: float) -> int:
    """Number of bins whose coverage is below 1 - alpha, surely after Holm's correction."""
    return int(np.count_nonzero(table.holm <= level))


def _on_average(evaluations: Mapping[str, Evaluation]) -> str:
    """Methods by where their interval lies: around the target, below or above it."""
    places: dict[str, list[str]] = {"within error of": [], "below": [], "above": []}
    for method, item in evaluations.items():
        target = 1.0 - item.alpha
        place = "within error of"
        if item.coverage.upper < target:
            place = "below"
        elif item.coverage.lower > target:
            place = "above"
        places[place].append(f"{_named(method)} ({percent(item.coverage.value)})")
    parts = [
        f"{_all_or_named(methods, evaluations)} {'is' if len(methods) == 1 else 'are'} {place} "
        for place, methods in places.items()
        if methods
    ]
    parts[0] += f"the {100.0 * target:g}% target"
    return "On average, " + joined([parts[0], *(f"{part}it" for part in parts[1:])])


def _all_or_named(methods: list[str], evaluations: Mapping[str, Evaluation]) -> str:
    """A list of methods, or that it is all of them where naming each would take long."""
    if len(methods) < len(evaluations) or len(methods) < _MANY:
        return joined(methods)
    shares = sorted(item.coverage.value for item in evaluations.values())
    return f"all {len(methods)} methods ({percent(shares[0])} to {percent(shares[-1])})"


def _in_places(tables: Mapping[str, BinTable], name: str, level: float) -> str:
    """How many bins of each method under-cover significantly."""
    low = f"coverage is significantly too low (Holm, {100.0 * level:.3g}%) in "
    bins, found = _bins_in_words(name, tables), _found(tables, level)
    return f"of {bins}, {low}{found}" if found else f"{low}none of {bins}"


def _advice(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """What each method's classes ask for, and whose they are if there can be doubt."""
    found = {method: item.advice for method, item in evaluations.items() if item.advice}
    if len(evaluations) == 1:
        return list(found.values())
    return [f"For {_named(method)}: {text[0].lower()}{text[1:]}" for method, text in found.items()]


def _elsewhere(evaluations: Mapping[str, Evaluation], judged: str, level: float) -> list[str]:
    """The same for every other table: those with bins too low, then those without."""
    low, fine = [], []
    for name in _in_order(evaluations):
        tables = {method: item.tables[name] for method, item in evaluations.items()}
        bins, found = _bins_in_words(name, tables), _found(tables, level)
        if name != judged and found:
            # Rank needs the label and size is the method's own choice.
            why = ", where no method can reach the target in each" if name in _LAST else ""
            low.append(f"of {bins}{why}, it is too low in {found}")
        elif name != judged:
            fine.append(bins)
    return low + ([f"it is too low in none of {joined(fine)}"] if fine else [])


def _found(tables: Mapping[str, BinTable], level: float) -> str:
    """How many bins of each method are surely too low; empty if there are none."""
    found = {method: under_covered(table, level) for method, table in tables.items()}
    if not any(found.values()):
        return ""
    return joined(
        [
            f"{number or 'none'}{_of(method, tables)}"
            + (f" (lowest {percent(_lowest(tables[method], level))})" if number else "")
            for method, number in found.items()
        ]
    )


def _beyond_chance(tables: Mapping[str, BinTable]) -> str:
    """How much of the coverage gap is above the noise floor; of many methods, the extremes."""
    beyond = {method: max(table.gap.above_floor, 0.0) for method, table in tables.items()}
    shown = sorted(beyond, key=beyond.__getitem__) if len(beyond) >= _MANY else list(beyond)
    parts = [
        f"{fixed(beyond[method], 1)} of {fixed(tables[method].gap.value, 1)} points"
        + _of(method, tables)
        for method in shown
    ]
    what = f"from {parts[0]} to {parts[-1]}" if len(beyond) >= _MANY else joined(parts)
    return f"of the mean coverage gap there, {what} are beyond what chance alone gives"


def _of(method: str, tables: Mapping[str, BinTable]) -> str:
    """Whose number it is, if there can be doubt."""
    return f" for {_named(method)}" if len(tables) > 1 else ""


def _bins_in_words(name: str, tables: Mapping[str, BinTable]) -> str:
    """How many bins of which kind there are."""
    table = next(iter(tables.values()))
    kind = f"{division_title(name)} {'cells' if is_grid(table) else 'bins'}"
    if name == "class":
        kind = "classes"
    elif name.startswith("group:"):
        kind = f"groups by {division_title(name)}"
    return f"{table.count.size:,} {kind}"


def _lowest(table: BinTable, level: float) -> float:
    """Lowest coverage among the bins that surely under-cover."""
    return float(table.coverage[table.holm <= level].min())


def _named(method: str) -> str:
    """Names may be several words: quotes keep them apart from the sentence."""
    return method if method == ONE_METHOD else f"“{method}”"
