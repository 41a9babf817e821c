"""What the page shows, as plain data for the template. Imports metrics and the parts beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trustsets.metrics import render
from trustsets.metrics.bins import BinTable
from trustsets.metrics.figure_data import heatmap_data
from trustsets.metrics.inference import Estimate
from trustsets.metrics.result import Evaluation
from trustsets.report.colours import shade
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
from trustsets.report.verdict import is_grid, under_covered

__all__ = [
    "BinList",
    "Division",
    "Glance",
    "bin_lists",
    "division_names",
    "divisions",
    "glance",
    "grid_names",
    "other_measures",
]

Evaluations = Mapping[str, Evaluation]

# Numbers that have a section of their own, or none: shares in percent, gaps in points.
_SHARES = ("slab", "conditional.mean", "conditional.below")
_POINTS = ("conditional.gap", "conditional.shortfall", "conditional.excess")
_PLAIN = ("pearson", "spearman")


@dataclass(frozen=True)
class Cell:
    """One cell of a heatmap; `bin` is None where no sample fell."""

    bin: int | None
    text: str
    style: str
    flagged: bool


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
    return [name for name in division_names(evaluations) if is_grid(tables[name])]


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
    data = heatmap_data(evaluation, name)
    table = evaluation.tables[name]
    level, target = 1.0 - evaluation.level, 1.0 - evaluation.alpha
    at = {(int(y), int(x)): i for i, (x, y) in enumerate(table.index.tolist())}

    def cell(y: int, x: int) -> Cell:
        place = at.get((y, x))
        if place is None:
            return Cell(None, "", "", False)
        share = float(table.coverage[place])
        colours = shade(share, target).style
        return Cell(place, fixed(100.0 * share, 0), colours, bool(table.holm[place] <= level))

    rows = [
        (label, [cell(y, x) for x in range(len(data.columns))]) for y, label in enumerate(data.rows)
    ]
    return Heatmap(method, data.columns, rows[::-1], data.axes)


@dataclass(frozen=True)
class Glance:
    """Rows of the table of methods that belong together; a cell is its text and its interval."""

    title: str
    rows: list[tuple[str, list[tuple[str, str]]]]


def glance(evaluations: Evaluations, names: Sequence[str]) -> list[Glance]:
    """The table of methods: averages first, then the gaps of the named divisions."""
    return [_averages(evaluations), *(_gaps(evaluations, name) for name in names)]


def _averages(evaluations: Evaluations) -> Glance:
    found = [item.metrics for item in evaluations.values()]
    return Glance(
        "On average",
        [
            ("Coverage", [_share(item["coverage"]) for item in found]),
            ("Mean set size", [_points(item["size"]) for item in found]),
            ("Median set size", [(f"{item['size_median'].value:g}", "") for item in found]),
            ("Empty sets", [_rare(item["empty"]) for item in found]),
            ("Sets of all classes", [_rare(item["full"]) for item in found]),
        ],
    )


def _gaps(evaluations: Evaluations, name: str) -> Glance:
    tables = [item.tables.get(name) for item in evaluations.values()]
    level = 1.0 - next(iter(evaluations.values())).level
    none = (NONE, "")
    return Glance(
        division_title(name),
        [
            ("CovGap, points", [none if t is None else _points(t.gap) for t in tables]),
            ("Above the noise floor", [none if t is None else _above(t.gap) for t in tables]),
            (
                "Bins significantly too low",
                [
                    none if t is None else (f"{under_covered(t, level):,}", f"of {t.count.size:,}")
                    for t in tables
                ],
            ),
            ("Lowest coverage", [none if t is None else _share(t.worst) for t in tables]),
        ],
    )


def other_measures(evaluations: Evaluations) -> Glance | None:
    """Worst slab, true conditional coverage, correlation; None where no method has any."""
    found = [item.metrics for item in evaluations.values()]
    rows = []
    for names, form in ((_SHARES, _share), (_POINTS, _points), (_PLAIN, _points)):
        for name in names:
            if any(name in item for item in found):
                cells = [form(item[name]) if name in item else (NONE, "") for item in found]
                rows.append((render.title(name), cells))
    return Glance("Other measures", rows) if rows else None


def _share(item: Estimate) -> tuple[str, str]:
    return percent(item.value), range_of(item.lower, item.upper)


def _rare(item: Estimate) -> tuple[str, str]:
    """A share near 0, which needs another digit."""
    return percent(item.value, 2), interval(100.0 * item.lower, 100.0 * item.upper)


def _above(gap: Estimate) -> tuple[str, str]:
    return number(gap.above_floor), f"floor {number(gap.floor)}"


def _points(item: Estimate) -> tuple[str, str]:
    return number(item.value), interval(item.lower, item.upper)


@dataclass(frozen=True)
class BinCell:
    """A number of a table that sorts: its value (None if missing), text, and interval."""

    value: float | None
    text: str
    note: str = ""
    flagged: bool = False


@dataclass(frozen=True)
class BinList:
    """Bins without a grid (classes, groups, set sizes): a row per bin, columns per method.

    The rows start in the order of the first method's coverage, the lowest first. Counts
    that are the same for every method are given once (`shared_count`), after the name.
    """

    name: str
    title: str
    methods: list[str]
    shared_count: bool
    rows: list[tuple[str, list[BinCell]]]


def bin_lists(evaluations: Evaluations) -> list[BinList]:
    """Every table that is not on a grid."""
    grids = grid_names(evaluations)
    found = []
    for name in division_names(evaluations):
        own = {
            method: (item.tables[name], 1.0 - item.level)
            for method, item in evaluations.items()
            if name in item.tables and name not in grids
        }
        if own:
            shared = _same_counts([table for table, _ in own.values()])
            rows = _rows(own, shared)
            found.append(BinList(name, division_title(name), list(own), shared, rows))
    return found


def _same_counts(tables: Sequence[BinTable]) -> bool:
    first = tables[0]
    return all(
        other.labels == first.labels and np.array_equal(other.count, first.count)
        for other in tables[1:]
    )


def _rows(
    tables: Mapping[str, tuple[BinTable, float]], shared_count: bool
) -> list[tuple[str, list[BinCell]]]:
    """Cells by bin; methods may have different bins where these are of set sizes."""
    places = [_places(table.labels) for table, _ in tables.values()]
    keys = list(dict.fromkeys(key for own in places for key in own))
    first = next(iter(tables.values()))[0]
    lowest = {key: float(first.coverage[i]) for key, i in places[0].items()}
    keys.sort(key=lambda key: lowest.get(key, np.inf))

    def cells(key: tuple[str, int]) -> list[BinCell]:
        found = [
            _bin_cells(table, own.get(key), level)
            for own, (table, level) in zip(places, tables.values(), strict=True)
        ]
        if shared_count:
            found = [found[0][:1], *(own[1:] for own in found)]
        return [cell for own in found for cell in own]

    return [(key[0], cells(key)) for key in keys]


def _places(labels: Sequence[str]) -> dict[tuple[str, int], int]:
    """Bin by name; ends that round alike make names that recur, so these are numbered."""
    seen: dict[str, int] = {}
    found = {}
    for i, label in enumerate(labels):
        seen[label] = seen.get(label, -1) + 1
        found[label, seen[label]] = i
    return found


def _bin_cells(table: BinTable, place: int | None, level: float) -> list[BinCell]:
    """Count, coverage, mean size and adjusted p-value of one bin."""
    if place is None:
        return [BinCell(None, NONE)] * 4
    count, share = int(table.count[place]), float(table.coverage[place])
    size, holm = float(table.mean_size[place]), float(table.holm[place])
    ends = range_of(float(table.lower[place]), float(table.upper[place]))
    return [
        BinCell(count, f"{count:,}"),
        BinCell(share, percent(share), ends, flagged=holm <= level),
        BinCell(size, number(size)),
        BinCell(holm, p_value(holm)),
    ]
