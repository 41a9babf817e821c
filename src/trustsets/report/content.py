"""The tables and heatmaps of the page as plain data for the template."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trustsets.metrics.bins import BinTable
from trustsets.metrics.catalogue import METRICS, NUMBERS, number_of, split_name
from trustsets.metrics.colours import DEEPEST, shade
from trustsets.metrics.figure_data import heatmap_data
from trustsets.metrics.inference import Estimate
from trustsets.metrics.render import title
from trustsets.metrics.result import Evaluation
from trustsets.report.text import (
    NONE,
    division_title,
    fixed,
    interval,
    number,
    p_value,
    percent,
    range_of,
)

__all__ = [
    "BinList",
    "Division",
    "Glance",
    "averages",
    "bin_lists",
    "division_names",
    "divisions",
    "glance",
    "grid_names",
    "other_measures",
    "terms",
    "too_few",
]

Evaluations = Mapping[str, Evaluation]
GlanceRow = tuple[str, list[tuple[str, str]]]

_AVERAGES = ("coverage", "size", "size_median", "empty", "full")


@dataclass(frozen=True)
class Cell:
    """One cell of a heatmap; `bin` is None if it has no samples."""

    bin: int | None
    text: str = ""
    style: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Heatmap:
    """Coverage of one method on a grid; the first row is the highest."""

    method: str
    columns: tuple[str, ...]
    rows: list[tuple[str, list[Cell]]]
    axes: tuple[str, str]


@dataclass(frozen=True)
class Division:
    """Heatmaps of one table, side by side."""

    name: str
    title: str
    heatmaps: list[Heatmap]


def division_names(evaluations: Evaluations) -> list[str]:
    """Names of all tables, in order of appearance."""
    return list(dict.fromkeys(name for item in evaluations.values() for name in item.tables))


def grid_names(evaluations: Evaluations) -> list[str]:
    """Names of the tables over two axes."""
    tables = {name: table for item in evaluations.values() for name, table in item.tables.items()}
    return [name for name in division_names(evaluations) if tables[name].is_grid]


def divisions(evaluations: Evaluations) -> list[Division]:
    """Every table over two axes as heatmaps, one per method that has it."""
    return [
        Division(
            name,
            division_title(name),
            [_heatmap(own, item, name) for own, item in evaluations.items() if name in item.tables],
        )
        for name in grid_names(evaluations)
    ]


def _heatmap(method: str, evaluation: Evaluation, name: str) -> Heatmap:
    data, table = heatmap_data(evaluation, name), evaluation.tables[name]
    low, few = table.under_covered(1.0 - evaluation.level), too_few(table, data.target)
    at = {(int(y), int(x)): i for i, (x, y) in enumerate(table.index.tolist())}

    def cell(place: int | None) -> Cell:
        if place is None:
            return Cell(None)
        share, mark = float(table.coverage[place]), _mark(low[place], few[place])
        ends = range_of(float(table.lower[place]), float(table.upper[place]), 0)
        text = ends if few[place] else fixed(100.0 * share, 0)
        return Cell(place, text, shade(share, data.target).style, mark)

    rows = [
        (label, [cell(at.get((y, x))) for x in range(len(data.columns))])
        for y, label in enumerate(data.rows)
    ]
    return Heatmap(method, data.columns, rows[::-1], data.axes)


def too_few(table: BinTable, target: float) -> NDArray[np.bool_]:
    """Bins whose coverage is shown as an interval, in a neutral colour.

    They have fewer than 10 samples, or an interval that holds the target and is wider than the
    scale of colours is deep, so that the colour would be chance.
    """
    holds = (table.lower <= target) & (target <= table.upper)
    return table.few | (holds & (table.upper - table.lower > DEEPEST))


def _mark(low: bool, few: bool) -> str:
    """Class of a cell in the style sheet."""
    return " ".join(["low"] * bool(low) + ["few"] * bool(few))


@dataclass(frozen=True)
class Glance:
    """Rows of the table of methods that belong together; a cell is its text and its interval.

    Those that `moves` follow the slider over alpha.
    """

    title: str
    rows: list[GlanceRow]
    moves: bool = False


def glance(evaluations: Evaluations, names: Sequence[str]) -> list[Glance]:
    """The table of methods: averages first, then the gaps of the named divisions."""
    first = Glance("On average", averages(evaluations), moves=True)
    return [first, *(_gaps(evaluations, name) for name in names)]


def averages(evaluations: Evaluations) -> list[GlanceRow]:
    """Coverage and sizes of the sets of each method."""
    return [(NUMBERS[name].title, _cells(evaluations, name)) for name in _AVERAGES]


def other_measures(evaluations: Evaluations) -> Glance | None:
    """Numbers that have no section of their own; None where no method has any."""
    known = [*division_names(evaluations), "excess_risk"]
    found = dict.fromkeys(name for item in evaluations.values() for name in item.metrics)
    names = [name for name in found if name not in _AVERAGES and split_name(name)[0] not in known]
    names.sort(key=lambda name: list(_FORMS).index(number_of(name).form))
    rows = [(title(name), _cells(evaluations, name)) for name in names]
    return Glance("Other measures", rows) if rows else None


def terms(evaluations: Evaluations) -> list[tuple[str, str]]:
    """Explanations of the metrics on the page that few readers know."""

    def has(item: Evaluation, name: str) -> bool:
        field = METRICS[name].field
        return name in item.tables if field == "tables" else getattr(item, field) is not None

    return [
        (row.title, row.about)
        for name, row in METRICS.items()
        if row.about and any(has(item, name) for item in evaluations.values())
    ]


def _gaps(evaluations: Evaluations, name: str) -> Glance:
    significance = 1.0 - next(iter(evaluations.values())).level

    def low(item: Evaluation) -> tuple[str, str]:
        if name not in item.tables:
            return NONE, ""
        under = item.tables[name].under_covered(significance)
        return f"{under.sum():,}", f"of {under.size:,}"

    rows = [
        ("CovGap, points", _cells(evaluations, f"{name}.gap", floor=True)),
        ("Shortfall, points", _cells(evaluations, f"{name}.shortfall", floor=True)),
        ("Bins significantly too low", [low(item) for item in evaluations.values()]),
        ("Lowest coverage", [_lowest(item, f"{name}.worst") for item in evaluations.values()]),
    ]
    tables = [item.tables[name] for item in evaluations.values() if name in item.tables]
    if tables[0].has_names:
        rows.append(("Macro coverage", _cells(evaluations, f"{name}.macro")))
        for least in dict.fromkeys(least for table in tables for least in table.below):
            cells = _cells(evaluations, f"{name}.below_{least}", floor=True)
            rows.append((f"Covered less than {100.0 * float(least):.4g}%", cells))
    return Glance(division_title(name), rows)


def _lowest(evaluation: Evaluation, name: str) -> tuple[str, str]:
    """The lowest coverage of any bin; only its interval where that is wide."""
    item = evaluation.metrics.get(name, Estimate(math.nan))
    (text, ends), floor = _share(item), percent(item.floor)
    if item.upper - item.lower > DEEPEST:
        return f"{ends}%", f"too few samples, floor {floor}"
    return text, ends and f"{ends}, floor {floor}"


def _cells(evaluations: Evaluations, name: str, *, floor: bool = False) -> list[tuple[str, str]]:
    """One number of every method with its interval, and with its noise floor where asked for."""
    form = _FORMS[number_of(name).form]
    found = [item.metrics.get(name, Estimate(math.nan)) for item in evaluations.values()]
    texts = [form(item) for item in found]
    if not floor:
        return texts
    floors = [form(Estimate(item.floor))[0] for item in found]
    return [
        (text, note and f"{note}, floor {own}")
        for (text, note), own in zip(texts, floors, strict=True)
    ]


def _share(item: Estimate) -> tuple[str, str]:
    return percent(item.value), range_of(item.lower, item.upper)


def _rare(item: Estimate) -> tuple[str, str]:
    """A share near 0, which needs another digit."""
    return percent(item.value, 2), interval(100.0 * item.lower, 100.0 * item.upper)


def _points(item: Estimate) -> tuple[str, str]:
    return number(item.value), interval(item.lower, item.upper)


def _whole(item: Estimate) -> tuple[str, str]:
    return NONE if math.isnan(item.value) else f"{item.value:g}", ""


_FORMS = {"share": _share, "rare": _rare, "points": _points, "plain": _points, "whole": _whole}


@dataclass(frozen=True)
class BinCell:
    """A number of a table that sorts: its value (None if missing), text, and interval."""

    value: float | None
    text: str
    note: str = ""
    mark: str = ""


@dataclass(frozen=True)
class BinList:
    """Bins without a grid (classes, groups, set sizes): a row per bin, columns per method.

    Rows are in increasing order of the first method's coverage. Counts that are the same for
    every method are given once (`shared_count`), after the name.
    """

    name: str
    title: str
    methods: list[str]
    shared_count: bool
    rows: list[tuple[str, list[BinCell]]]


def bin_lists(evaluations: Evaluations) -> list[BinList]:
    """Every table that is not on a grid."""
    grids = grid_names(evaluations)
    first = next(iter(evaluations.values()))
    found = []
    for name in division_names(evaluations):
        own = {m: item.tables[name] for m, item in evaluations.items() if name in item.tables}
        if name not in grids:
            tables = list(own.values())
            shared = all(_same_counts(tables[0], other) for other in tables[1:])
            rows = _rows(tables, shared, first)
            found.append(BinList(name, division_title(name), list(own), shared, rows))
    return found


def _same_counts(one: BinTable, other: BinTable) -> bool:
    return one.labels == other.labels and np.array_equal(one.count, other.count)


def _rows(
    tables: Sequence[BinTable], shared_count: bool, first: Evaluation
) -> list[tuple[str, list[BinCell]]]:
    """Cells by bin; methods may have different bins where these are of set sizes."""
    places = [_places(table.labels) for table in tables]
    keys = list(dict.fromkeys(key for own in places for key in own))
    listed = [_bin_cells(table, first) for table in tables]

    def cells(key: tuple[str, int]) -> list[BinCell]:
        found = [
            own[at[key]] if key in at else [BinCell(None, NONE)] * 4
            for at, own in zip(places, listed, strict=True)
        ]
        if shared_count:
            found = [found[0][:1], *(own[1:] for own in found)]
        return [cell for own in found for cell in own]

    def lowest(key: tuple[str, int]) -> float:
        own = listed[0][places[0][key]][1].value if key in places[0] else None
        return math.inf if own is None else own

    return [(key[0], cells(key)) for key in sorted(keys, key=lowest)]


def _places(labels: Sequence[str]) -> dict[tuple[str, int], int]:
    """Bins by name and number: bins whose ends round alike have the same name."""
    seen: dict[str, int] = {}
    found = {}
    for i, label in enumerate(labels):
        seen[label] = seen.get(label, -1) + 1
        found[label, seen[label]] = i
    return found


def _bin_cells(table: BinTable, evaluation: Evaluation) -> list[list[BinCell]]:
    """Count, coverage, mean size and adjusted p-value of each bin.

    Coverages of too few samples have no value, so that they come last in the order.
    """
    low = table.under_covered(1.0 - evaluation.level).tolist()
    few = too_few(table, 1.0 - evaluation.alpha).tolist()

    def coverage(i: int) -> BinCell:
        share, mark = float(table.coverage[i]), _mark(low[i], few[i])
        ends = range_of(float(table.lower[i]), float(table.upper[i]))
        if few[i]:
            return BinCell(share if low[i] else None, f"{ends}%", "too few samples", mark)
        return BinCell(share, percent(share), ends, mark)

    return [
        [
            BinCell(count, f"{count:,}"),
            coverage(i),
            BinCell(size, number(size)),
            BinCell(adjusted, p_value(adjusted)),
        ]
        for i, (count, size, adjusted) in enumerate(
            zip(table.count.tolist(), table.mean_size.tolist(), table.holm.tolist(), strict=True)
        )
    ]
