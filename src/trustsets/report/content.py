"""Tables, charts and lists of samples as plain data, which the report and the explorer lay out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import LARGEST_TRUST, Floats, texts_of
from trustsets._blocks import for_each_block
from trustsets.metrics import (
    NUMBERS,
    BinTable,
    Comparison,
    Estimate,
    Evaluation,
    number_of,
    split_name,
    title,
)
from trustsets.outputs import ModelOutputs
from trustsets.plots import (
    DEEPEST,
    NONE,
    Evaluations,
    division_title,
    fixed,
    heatmap_data,
    interval,
    number,
    p_value,
    percent,
    range_of,
    shade,
    size_data,
)
from trustsets.sets import PredictionSets

GlanceRow = tuple[str, list[tuple[str, str]]]

_AVERAGES = ("coverage", "size", "size_median", "empty", "full")
# Rough number of steps of an axis, and the slack for the rounding of quotients.
_STEPS = 5
_SLACK = 1e-9
# Classes of a set that the page writes out, and samples that it lists in a cell.
MOST_CLASSES = 12
MOST_SAMPLES = 20

# ---- Heatmaps -------------------------------------------------------------------------------


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
            [_heatmap(m, item, name) for m, item in evaluations.items() if name in item.tables],
        )
        for name in grid_names(evaluations)
    ]


def _heatmap(method: str, evaluation: Evaluation, name: str) -> Heatmap:
    data, table = heatmap_data(evaluation, name), evaluation.tables[name]
    low, few = table.under_covered(1.0 - evaluation.level), too_few(table, data.target)
    bins = {(int(y), int(x)): i for i, (x, y) in enumerate(table.index.tolist())}

    def cell(i: int | None) -> Cell:
        if i is None:
            return Cell(None)
        share = float(table.coverage[i])
        ends = range_of(float(table.lower[i]), float(table.upper[i]), 0)
        text = ends if few[i] else fixed(100.0 * share, 0)
        return Cell(i, text, shade(share, data.target), _mark(low[i], few[i]))

    rows = [
        (label, [cell(bins.get((y, x))) for x in range(len(data.columns))])
        for y, label in enumerate(data.rows)
    ]
    return Heatmap(method, data.columns, rows[::-1], data.axes)


def too_few(table: BinTable, target: float) -> NDArray[np.bool_]:
    """Bins whose coverage is shown as an interval: few samples, or one too wide for a colour."""
    holds = (table.lower <= target) & (target <= table.upper)
    return table.few | (holds & (table.upper - table.lower > DEEPEST))


def _mark(low: bool, few: bool) -> str:
    """Class of a cell in the style sheet."""
    return " ".join(["low"] * bool(low) + ["few"] * bool(few))


# ---- Table of methods -----------------------------------------------------------------------


@dataclass(frozen=True)
class Glance:
    """Rows of the table of methods that belong together; a cell is its text and its interval."""

    title: str
    rows: list[GlanceRow]


def glance(evaluations: Evaluations, names: Sequence[str]) -> list[Glance]:
    """The table of methods: averages first, then the gaps of the named divisions."""
    averages = [(NUMBERS[name].title, _cells(evaluations, name)) for name in _AVERAGES]
    return [Glance("All samples", averages), *(_gaps(evaluations, name) for name in names)]


def other_measures(evaluations: Evaluations) -> Glance | None:
    """Numbers that have no section of their own; None where no method has any."""
    shown = division_names(evaluations)
    names = [
        name
        for name in dict.fromkeys(name for item in evaluations.values() for name in item.metrics)
        if name not in _AVERAGES and split_name(name)[0] not in shown
    ]
    names.sort(key=lambda name: list(_FORMS).index(number_of(name).form))
    rows = [(title(name), _cells(evaluations, name, floor=True)) for name in names]
    return Glance("Other measures", rows) if rows else None


def equal_size(comparison: Comparison, methods: Sequence[str]) -> Glance:
    """Every method at the mean set size of one of them, the last block of `comparison`."""
    setting = comparison.keys[-1][0]
    rows = dict(zip(comparison.keys, comparison.entries, strict=True))
    numbers = []
    for i, name in enumerate(comparison.columns):
        form = _FORMS[number_of(name).form]
        entries = [rows[setting, method][i] for method in methods]
        cells = [form(Estimate(entry.mean, entry.lower, entry.upper)) for entry in entries]
        numbers.append((title(name).replace(" x ", " × "), cells))
    return Glance(setting, numbers)


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
        ("RMS gap without noise, points", _cells(evaluations, f"{name}.rms")),
        ("Bins significantly too low", [low(item) for item in evaluations.values()]),
        ("Lowest coverage", [_lowest(item, f"{name}.worst") for item in evaluations.values()]),
    ]
    tables = [item.tables[name] for item in evaluations.values() if name in item.tables]
    if tables[0].has_names:
        rows.append(("Macro coverage", _cells(evaluations, f"{name}.macro")))
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
    form, cells = _FORMS[number_of(name).form], []
    for evaluation in evaluations.values():
        item = evaluation.metrics.get(name, Estimate(math.nan))
        text, note = form(item)
        if floor and note and not math.isnan(item.floor):
            note += f", floor {form(Estimate(item.floor))[0]}"
        cells.append((text, note))
    return cells


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

# ---- Lists of classes, groups and set sizes ---------------------------------------------------


@dataclass(frozen=True)
class BinCell:
    """A number of a table that sorts: its value (None if missing), text, and interval."""

    value: float | None
    text: str
    note: str = ""
    mark: str = ""


@dataclass(frozen=True)
class BinList:
    """Bins without a grid: a row per bin by the first method's coverage, columns per method.

    Counts that are the same for every method are given once (`shared_count`), after the name.
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
    lists = []
    for name in division_names(evaluations):
        if name not in grids:
            by_method = {m: e.tables[name] for m, e in evaluations.items() if name in e.tables}
            tables = list(by_method.values())
            counts = [(table.labels, table.count.tolist()) for table in tables]
            shared = all(item == counts[0] for item in counts)
            rows = _rows(tables, shared, first)
            lists.append(BinList(name, division_title(name), list(by_method), shared, rows))
    return lists


def _rows(
    tables: Sequence[BinTable], shared_count: bool, first: Evaluation
) -> list[tuple[str, list[BinCell]]]:
    """Cells by bin; methods may have different bins where these are of set sizes."""
    numbers = [_bin_numbers(table.labels) for table in tables]
    keys = list(dict.fromkeys(key for bins in numbers for key in bins))
    listed = [_bin_cells(table, first) for table in tables]

    def cells(key: tuple[str, int]) -> list[BinCell]:
        parts = [
            rows[bins[key]] if key in bins else [BinCell(None, NONE)] * 4
            for bins, rows in zip(numbers, listed, strict=True)
        ]
        if shared_count:
            parts = [parts[0][:1], *(part[1:] for part in parts)]
        return [cell for part in parts for cell in part]

    def lowest(key: tuple[str, int]) -> float:
        value = listed[0][numbers[0][key]][1].value if key in numbers[0] else None
        return math.inf if value is None else value

    return [(key[0], cells(key)) for key in sorted(keys, key=lowest)]


def _bin_numbers(labels: Sequence[str]) -> dict[tuple[str, int], int]:
    """Bins by name and number: bins whose ends round alike have the same name."""
    seen: dict[str, int] = {}
    numbers = {}
    for i, label in enumerate(labels):
        seen[label] = seen.get(label, -1) + 1
        numbers[label, seen[label]] = i
    return numbers


def _bin_cells(table: BinTable, evaluation: Evaluation) -> list[list[BinCell]]:
    """Count, coverage (without a value if samples are too few), mean size and adjusted p-value."""
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


# ---- Charts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GapMark:
    """CovGap of one method: positions along the axis in percent, and in words."""

    method: str
    slot: int
    floor: float
    low: float
    width: float
    value: float
    text: str
    note: str


@dataclass(frozen=True)
class GapChart:
    """CovGap of every division and method on one axis, with intervals and noise floors."""

    rows: list[tuple[str, list[GapMark]]]
    axis: list[tuple[float, str]]


def gap_chart(evaluations: Evaluations, names: Sequence[str]) -> GapChart:
    """Marks for the gaps of the named divisions."""
    gaps = {
        name: [
            (slot, method, item.tables[name].gap)
            for slot, (method, item) in enumerate(evaluations.items())
            if name in item.tables
        ]
        for name in names
    }
    ends = [end for row in gaps.values() for *_, gap in row for end in (gap.upper, gap.floor)]
    axis = ticks(max(filter(math.isfinite, ends), default=1.0))

    def position(value: float) -> float:
        return round(100.0 * value / axis[-1], 3)

    def mark(slot: int, method: str, gap: Estimate) -> GapMark:
        return GapMark(
            method=method,
            slot=slot,
            floor=position(gap.floor),
            low=position(gap.lower),
            width=position(gap.upper - gap.lower),
            value=position(gap.value),
            text=number(gap.value),
            note=f"CovGap {number(gap.value)} ({interval(gap.lower, gap.upper)}), "
            f"noise floor {number(gap.floor)}",
        )

    rows = [(division_title(name), [mark(*item) for item in row]) for name, row in gaps.items()]
    return GapChart(rows, [(position(tick), f"{tick:g}") for tick in axis])


def size_chart(evaluations: Evaluations) -> list[tuple[str, list[tuple[int, float, str]]]]:
    """Share of the sets by size: a row per range of sizes, with a bar per method.

    A bar is the slot of its method, its length in percent of the longest bar, and its text.
    """
    labels, shares = size_data(list(evaluations.values()))
    longest = float(shares.max())
    # With many classes there may be small sizes that no set has; the largest always occurs.
    start = int(np.argmax(shares.any(axis=0)))
    return [
        (
            label,
            [
                (slot, round(100.0 * share / longest, 2), percent(share))
                for slot, share in enumerate(row)
            ],
        )
        for label, row in zip(labels[start:], shares.T[start:].tolist(), strict=True)
    ]


def ticks(top: float) -> list[float]:
    """Round numbers from 0 to the first at or above `top`."""
    if not top > 0.0:
        return [0.0, 1.0]
    rough = top / _STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * power for unit in (1, 2, 2.5, 5, 10) if unit * power >= rough - _SLACK)
    return [round(i * step, 10) for i in range(math.ceil(top / step - _SLACK) + 1)]


# ---- Samples ----------------------------------------------------------------------------------


def worst_first(evaluation: Evaluation, label_probability: Floats) -> NDArray[np.int64]:
    """Order of the samples: the missed by their label's probability, then the largest sets."""
    assert evaluation.covered is not None  # checked: made by evaluate
    assert evaluation.set_sizes is not None
    largest = np.where(evaluation.covered, -evaluation.set_sizes, 0)
    return np.lexsort((label_probability, largest, evaluation.covered)).astype(np.int64)


def list_samples(
    evaluations: Mapping[str, Evaluation],
    outputs: ModelOutputs,
    sets: Mapping[str, PredictionSets],
    tables: Sequence[str],
) -> dict[str, Any]:
    """Worst samples of each bin of the named tables, for every method.

    ``rows`` are [row, label code, Conf, Trust] by sample, ``bins`` samples of each bin by table,
    ``sets`` [covered, size, likeliest codes of the set] by sample.
    """
    codes = outputs.require_labels("the list of samples")
    likely = np.empty(len(outputs))

    def fill(block: slice) -> None:
        likely[block] = np.take_along_axis(
            outputs.block_probabilities(block), codes[block, None], axis=1
        )[:, 0]

    for_each_block(fill, len(outputs), outputs.n_classes)
    methods: dict[str, Any] = {}
    listed: set[int] = set()
    for method, evaluation in evaluations.items():
        order = worst_first(evaluation, likely)
        shown = [name for name in tables if name in evaluation.tables]
        bins = {name: _by_bin(evaluation.tables[name], order) for name in shown}
        rows = sorted({i for cells in bins.values() for cell in cells for i in cell})
        listed.update(rows)
        described = _describe_sets(rows, outputs, sets[method]) if rows else {}
        methods[method] = {"bins": bins, "sets": described}
    trust = outputs.trust
    infinite = np.zeros(len(outputs)) if trust is None else trust >= LARGEST_TRUST
    samples = {
        str(i): [
            int(outputs.rows[i]),
            int(codes[i]),
            # Rounded as shown, because rounding twice could give another number.
            round(float(outputs.confidence[i]), 3),
            # JSON lacks infinity: the trust of a sample equal to a training sample.
            None if trust is None else "∞" if infinite[i] else float(f"{trust[i]:.3g}"),
        ]
        for i in sorted(listed)
    }
    return {"classes": texts_of(outputs.classes), "rows": samples, "methods": methods}


def _by_bin(table: BinTable, order: NDArray[np.int64]) -> list[list[int]]:
    """First samples of each bin in the given order."""
    assert table.cells is not None  # checked: made by evaluate
    cells = table.cells[order]
    by_cell = order[np.argsort(cells, kind="stable")]
    starts = np.searchsorted(np.sort(cells), np.arange(table.count.size))
    ends = starts + np.minimum(table.count, MOST_SAMPLES)
    return [by_cell[a:b].tolist() for a, b in zip(starts, ends, strict=True)]


def _describe_sets(
    rows: list[int], outputs: ModelOutputs, sets: PredictionSets
) -> dict[str, list[Any]]:
    """Of some samples: whether covered, set size, and the likeliest classes of the set."""
    sets, part = sets[rows], outputs.take(rows)
    # Classes outside the set come last; ties as the columns.
    weight = np.where(sets.mask, part.probabilities, -1.0)
    codes = np.argsort(-weight, axis=1, kind="stable")[:, :MOST_CLASSES].tolist()
    covered, sizes = sets.covers(part.labels).tolist(), sets.sizes.tolist()
    return {
        str(i): [int(hit), size, row[:size]]
        for i, hit, size, row in zip(rows, covered, sizes, codes, strict=True)
    }
