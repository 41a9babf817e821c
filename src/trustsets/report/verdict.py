"""The result of evaluations in a few sentences."""

from collections.abc import Mapping, Sequence

from trustsets.metrics.bins import BinTable
from trustsets.metrics.catalogue import METRICS
from trustsets.metrics.result import REMEDY, Evaluation
from trustsets.report.text import division_title, fixed, joined, percent

__all__ = ["ONE_METHOD", "goal_tables", "named", "verdict"]

# The name of a single evaluation that was given without one.
ONE_METHOD = "this method"

# Bins in which no method can reach the target come last.
_LAST = tuple(name for name, row in METRICS.items() if not row.is_goal)
# From so many methods on, sentences name the extremes instead of each method where they can.
_MANY = 4

Tables = Mapping[str, BinTable]


def verdict(evaluations: Mapping[str, Evaluation]) -> str:
    """Say in words whether coverage holds on average and in places.

    It names, for each method, whether the average is within error of 1 - alpha, how many
    bins are significantly under-covered (after Holm's correction within a table, at one minus
    the level of the intervals), and how much of the coverage gap is above the noise floor.
    Conf x Trust comes first, then groups, classes and all other tables that the methods share.
    Where classes are far below the target, it points to the method that covers each class.

    Parameters
    ----------
    evaluations : mapping of method name to Evaluation
        Of the same test samples.

    Examples
    --------
    >>> import numpy as np
    >>> from trustsets import ModelOutputs, StandardConformal, evaluate
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 4))
    >>> labels = (logits + rng.gumbel(size=(2000, 4))).argmax(axis=1)
    >>> calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> sets = StandardConformal().calibrate(calibration).predict_set(test)
    >>> verdict({"standard": evaluate(sets, test, metrics=["class"])}).split(". ")[1]
    'Coverage is significantly too low (Holm’s correction, 5%) in none of 4 classes'
    """
    significance = 1.0 - next(iter(evaluations.values())).level
    tables: list[Tables] = [
        {method: item.tables[name] for method, item in evaluations.items()}
        for name in _in_order(evaluations)
    ]
    sentences = [_on_average(evaluations)]
    if tables:
        test = f"significantly too low (Holm’s correction, {100.0 * significance:.3g}%)"
        where = _where(tables[0], significance) or f"in none of {_bins_in_words(tables[0])}"
        sentences += [f"Coverage is {test} {where}", _above_floor(tables[0])]
        sentences += _elsewhere(tables[1:], significance)
    return " ".join([*(f"{text}." for text in sentences), *_advice(evaluations)])


def goal_tables(evaluation: Evaluation) -> list[str]:
    """Tables in each of whose bins a method can reach its target, in the order of the verdict."""
    return [name for name in _in_order({"": evaluation}) if name not in _LAST]


def _in_order(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Tables that all methods have, in the order of the verdict."""
    first, *others = evaluations.values()
    shared = [name for name in first.tables if all(name in item.tables for item in others)]
    groups = [name for name in shared if name.startswith("group:")]
    wanted = ["conf_trust", *groups, "class", *(name for name in shared if name not in _LAST)]
    return [name for name in dict.fromkeys([*wanted, *_LAST]) if name in shared]


def _on_average(evaluations: Mapping[str, Evaluation]) -> str:
    """Methods by where their interval lies: around the target, below or above it."""
    places: dict[str, list[str]] = {"within error of": [], "below": [], "above": []}
    for method, item in evaluations.items():
        target = 1.0 - item.alpha
        below, above = item.coverage.upper < target, item.coverage.lower > target
        place = "below" if below else "above" if above else "within error of"
        places[place].append(f"{named(method)} ({percent(item.coverage.value)})")
    parts = [
        f"{_all_ornamed(methods, evaluations)} {'is' if len(methods) == 1 else 'are'} {place} "
        for place, methods in places.items()
        if methods
    ]
    parts[0] += f"the {100.0 * target:g}% target"
    return "On average, " + joined([parts[0], *(f"{part}it" for part in parts[1:])])


def _all_ornamed(methods: list[str], evaluations: Mapping[str, Evaluation]) -> str:
    """A list of methods, or "all methods" where naming each would take long."""
    if len(methods) < len(evaluations) or len(methods) < _MANY:
        return joined(methods)
    shares = sorted(item.coverage.value for item in evaluations.values())
    return f"all {len(methods)} methods ({percent(shares[0])} to {percent(shares[-1])})"


def _where(tables: Tables, significance: float) -> str:
    """In how many bins each method is significantly under-covered; empty if in none."""
    parts, found, bins = [], False, f" of {_bins_in_words(tables)}"
    for method, table in tables.items():
        low = table.coverage[table.under_covered(significance)]
        lowest = f" (lowest {percent(float(low.min()))})" if low.size else ""
        parts.append(f"in {low.size or 'none'}{bins}{_of(method, tables)}{lowest}")
        found, bins = found or low.size > 0, ""  # the bins are named once
    return joined(parts) if found else ""


def _elsewhere(others: Sequence[Tables], significance: float) -> list[str]:
    """The same for all other tables: those with under-covered bins, then those without."""
    low, fine = [], []
    for tables in others:
        where = _where(tables, significance)
        if not where:
            fine.append(_bins_in_words(tables))
            continue
        unreachable = next(iter(tables.values())).name in _LAST
        why = "; no method can reach the target in each of them" if unreachable else ""
        low.append(f"Coverage is too low {where}{why}")
    return low + ([f"Coverage is too low in none of {joined(fine)}"] if fine else [])


def _above_floor(tables: Tables) -> str:
    """How much of the coverage gap is above the noise floor; of many methods, the extremes."""
    above = {method: max(table.gap.above_floor, 0.0) for method, table in tables.items()}
    shown = sorted(above, key=above.__getitem__) if len(above) >= _MANY else list(above)
    parts = [
        f"{fixed(above[method], 1)} of {fixed(tables[method].gap.value, 1)} points"
        + _of(method, tables)
        for method in shown
    ]
    what = f"from {parts[0]} to {parts[-1]}" if len(above) >= _MANY else joined(parts)
    return f"Of the mean coverage gap there, {what} are above the noise floor"


def _advice(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """What to do about under-covered classes, and for which method if there are several."""
    found = {method: item.poor_classes for method, item in evaluations.items() if item.poor_classes}
    if len(evaluations) > 1:
        found = {m: f"For {named(m)}: {text[0].lower()}{text[1:]}" for m, text in found.items()}
    return [*(f"{text}." for text in found.values()), REMEDY] if found else []


def _of(method: str, tables: Tables) -> str:
    """Whose number it is, if there are several methods."""
    return f" for {named(method)}" if len(tables) > 1 else ""


def _bins_in_words(tables: Tables) -> str:
    """How many bins of which kind there are."""
    table = next(iter(tables.values()))
    title = division_title(table.name)
    usual = f"{title} {'cells' if table.is_grid else 'bins'}"
    if table.name.startswith("group:"):
        usual = f"groups by {title}"
    kind = {"class": "classes", "size_strata": "bins of set size"}.get(table.name, usual)
    return f"{table.count.size:,} {kind}"


def named(method: str) -> str:
    """The name in quotes, which set several words apart from the sentence."""
    return method if method == ONE_METHOD else f"“{method}”"
