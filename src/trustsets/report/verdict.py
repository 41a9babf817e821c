"""The result of an evaluation in one sentence. Imports metrics and text."""

from collections.abc import Mapping

import numpy as np

from trustsets.metrics.bins import BinTable
from trustsets.metrics.result import Evaluation
from trustsets.report.text import division_title, joined, percent

__all__ = ["judged_by", "under_covered", "verdict"]

# Conf x Rank and set size come last: rank needs the label and size is the method's own
# choice, so that coverage cannot be 1 - alpha in each of their bins.
_LAST = ("conf_rank", "size_strata")


def verdict(evaluations: Mapping[str, Evaluation]) -> str:
    """Say in one sentence whether coverage holds on average and in places.

    It names, for each method, whether the average is within error of 1 - alpha, how many
    bins under-cover significantly (Holm's correction, at one minus the level of the
    intervals), and how much of the coverage gap chance does not explain.

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
    >>> verdict({"standard": evaluate(sets, test, metrics=["class"])}).split(";")[0]
    'On average, standard (88.8%) is within error of the 90% target'
    """
    clauses = [_on_average(evaluations)]
    name = judged_by(evaluations)
    if name is not None:
        tables = {method: item.tables[name] for method, item in evaluations.items()}
        level = 1.0 - next(iter(evaluations.values())).level
        clauses += [_in_places(tables, name, level), _beyond_chance(tables)]
    return "; ".join(clauses) + "."


def judged_by(evaluations: Mapping[str, Evaluation]) -> str | None:
    """Division of the samples that the verdict speaks of: the first that all methods have."""
    first, *others = evaluations.values()
    shared = [name for name in first.tables if all(name in item.tables for item in others)]
    groups = [name for name in shared if name.startswith("group:")]
    wanted = ["conf_trust", *groups, "class", *(name for name in shared if name not in _LAST)]
    return next((name for name in [*wanted, *_LAST] if name in shared), None)


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
        places[place].append(f"{method} ({percent(item.coverage.value)})")
    parts = [
        f"{joined(methods)} {'is' if len(methods) == 1 else 'are'} {place} "
        for place, methods in places.items()
        if methods
    ]
    parts[0] += f"the {100.0 * target:g}% target"
    return "On average, " + joined([parts[0], *(f"{part}it" for part in parts[1:])])


def _in_places(tables: Mapping[str, BinTable], name: str, level: float) -> str:
    """How many bins of each method under-cover significantly."""
    found = {method: under_covered(table, level) for method, table in tables.items()}
    bins = f"{division_title(name)} {'cells' if len(_axes(tables)) == 2 else 'bins'}"
    if not any(found.values()):
        return f"no method under-covers significantly in any of the {_total(tables)} {bins}"
    parts = [
        f"{number or 'none'}{f' of {table.count.size} {bins}' * (i == 0)} for {method}"
        f"{f' (lowest {percent(table.coverage.min())})' * (number > 0)}"
        for i, (method, table, number) in enumerate(
            zip(tables, tables.values(), found.values(), strict=True)
        )
    ]
    return f"coverage is significantly too low (Holm, {100.0 * level:g}%) in {joined(parts)}"


def _beyond_chance(tables: Mapping[str, BinTable]) -> str:
    """How much of the coverage gap is above the noise floor."""
    parts = [
        f"{max(table.gap.above_floor, 0.0):.1f} of {table.gap.value:.1f} points for {method}"
        for method, table in tables.items()
    ]
    return f"of the mean coverage gap there, {joined(parts)} are beyond what chance alone gives"


def _axes(tables: Mapping[str, BinTable]) -> tuple[str, ...]:
    return next(iter(tables.values())).axes


def _total(tables: Mapping[str, BinTable]) -> int:
    return max(table.count.size for table in tables.values())
