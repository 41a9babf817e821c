"""The paper's tables from one run or from several, next to the printed numbers.

Table 1 has the methods with APS, table 2 the methods by group, table 3 the correlation of Trust and
Rank, table 4 principal components as function class, table 5 the methods by score. Two more are not
in the paper: CONDITIONAL by degree, and the methods of related work. The printed numbers are in
``printed_tables.json``, with two digits after the point as in the paper.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import groupby, product
from typing import Any, ClassVar, final

import numpy as np
from scipy import stats

from trustsets import compare
from trustsets.metrics import (
    Correlation,
    Entry,
    Evaluation,
    bold,
    escape_latex,
    latex_table,
    markdown_table,
    title,
)
from trustsets_paper.protocol import (
    CONDITIONAL,
    DEFAULT,
    GROUPWISE,
    NAIVE,
    PACKAGE_GROUPWISE,
    PCA,
    PLUGIN,
    RELATED,
    STANDARD,
    Cell,
    Run,
)

__all__ = [
    "CorrelationTable",
    "PaperTable",
    "Printed",
    "correlation_table",
    "cross_tables",
    "paper_tables",
    "printed_correlation",
    "printed_source",
    "printed_values",
]

MARK = "†"
"""Follows a number that differs from the printed one by more than two standard errors."""
_STANDARD_ERRORS = 2.0
# How far rounding to two digits can move a printed number.
_HALF_UNIT = 0.005
_MAIN_COLUMNS = ("coverage", "size", "conf_trust.gap", "conf_rank.gap", "class.gap")
_MAIN_SCORE = "APS"
# Intervals of means over seeds are not shown, so there is nothing to gain from more.
_BOOTSTRAP = 1
_PERFECT = "perfect (noise floor)"

# --- the printed numbers


@final
@dataclass(frozen=True)
class Printed:
    """One number as printed."""

    mean: float
    standard_error: float


@cache
def _content() -> dict[str, Any]:
    file = resources.files("trustsets_paper").joinpath("printed_tables.json")
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def printed_source() -> str:
    """Return the publication that the numbers come from."""
    return str(_content()["source"])


@cache
def printed_values() -> dict[tuple[int | None, str, str, str, str], Printed]:
    """All numbers of tables 1, 2, 4 and 5, by table, dataset, score, method and column.

    Columns are named as in ``Evaluation.metrics``.

    Examples
    --------
    >>> printed_values()[5, "imagenet", "softmax", "CONDITIONAL", "size"].mean
    98.36
    """
    return {
        (int(number), row["dataset"], row["score"], row["method"], column): Printed(*value)
        for number, table in _content()["tables"].items()
        for row in table["rows"]
        if "values" in row
        for column, value in zip(table["columns"], row["values"], strict=True)
    }


def printed_correlation(dataset: str) -> dict[str, Any] | None:
    """Row of table 3, or None where the paper has none; p-values are texts such as ``< 0.001``.

    Examples
    --------
    >>> printed_correlation("places365")["pearson_p"]
    '0.004'
    """
    rows = _content()["tables"]["3"]["rows"]
    return next((row for row in rows if row["dataset"] == dataset), None)


# --- tables


@final
@dataclass(frozen=True)
class Number:
    """One cell of a table."""

    mean: float
    standard_error: float  # over seeds; of sampling the test samples where there is one seed
    floor: float = math.nan  # noise floor
    best: bool = False  # of its block, or within 0.1 of the best
    printed: Printed | None = None

    @property
    def difference(self) -> float:
        """Our number minus the printed one; NaN where there is none."""
        return math.nan if self.printed is None else self.mean - self.printed.mean

    @property
    def differs(self) -> bool:
        """Whether the difference exceeds two standard errors and the rounding of print."""
        if self.printed is None:
            return False
        error = 0.0 if math.isnan(self.standard_error) else self.standard_error
        error = math.hypot(error, self.printed.standard_error)
        return abs(self.difference) > _STANDARD_ERRORS * error + _HALF_UNIT


@final
@dataclass(frozen=True)
class Row:
    """A method, or a degree, with its numbers; rows of one block are compared."""

    block: tuple[str, ...]
    name: str
    numbers: tuple[Number, ...]


@final
@dataclass(frozen=True)
class PaperTable:
    """A table with its number in the paper (None if it is not there) and the name of its file."""

    number: int | None
    slug: str
    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def heading(self) -> str:
        """Number, if there is one, and title."""
        return f"Table {self.number}: {self.title}" if self.number else self.title

    @property
    def _header(self) -> list[str]:
        return [*self.heads, *map(title, self.columns)]

    def to_markdown(self) -> str:
        """Pipe table; under each row the printed one, where there is one."""
        rows = [row for block in self._blocks(latex=False) for row in block]
        return markdown_table(self._header, rows, n_names=len(self.heads))

    def to_latex(self) -> str:
        """Booktabs table."""
        safe = [escape_latex(text) for text in self._header]
        return latex_table(safe, self._blocks(latex=True), n_names=len(self.heads))

    def _blocks(self, *, latex: bool) -> list[list[list[str]]]:
        blocks, mark = [], r"$^\dagger$" if latex else f" {MARK}"
        for block, group in groupby(self.rows, key=lambda row: row.block):
            rows, blank = list(group), [""] * len(block)
            lines: list[list[str]] = []
            for row in rows:
                names = [*(blank if lines else block), row.name]
                line = [escape_latex(name) if latex else name for name in names]
                line += [_text(item, latex) + mark * item.differs for item in row.numbers]
                lines.append(line)
                printed = [_text(item.printed) for item in row.numbers]
                lines += [[*blank, "printed", *printed]] if any(printed) else []
            # A perfect method, whose gaps are noise alone.
            floors = np.mean([[item.floor for item in row.numbers] for row in rows], axis=0)
            texts = ["" if math.isnan(value) else f"{value:.2f}" for value in floors]
            blocks.append(lines + ([[*blank, _PERFECT, *texts]] if any(texts) else []))
        return blocks


def _text(number: Number | Printed | None, latex: bool = False) -> str:
    """Mean and standard error, where there are any."""
    if number is None or math.isnan(number.mean):
        return ""
    mean, error = f"{number.mean:.2f}", number.standard_error
    if isinstance(number, Number) and number.best:
        mean = bold(mean, latex=latex)
    return mean + ("" if math.isnan(error) else f" ({error:.2f})")


def paper_tables(run: Run) -> list[PaperTable]:
    """Tables 1, 2, 4, 5, those by degree and of related work, as far as the run allows."""
    source, options = run.source, run.options
    main, one = [STANDARD, NAIVE, CONDITIONAL], [_MAIN_SCORE]
    columns, tables = _columns(run, _MAIN_COLUMNS), []
    if source.has_trust:
        cells = _cells(run, one, [*main, DEFAULT])
        tables.append(_table(run, 1, f"methods, {_MAIN_SCORE} score", cells, columns))
    if source.groups:
        tables.append(_group_table(run))
    if source.has_features:
        name = "principal components of the features as function class"
        tables.append(_table(run, 4, name, _cells(run, one, [*main, PCA, DEFAULT]), columns))
    if options.related:
        cells = _cells(run, one, [STANDARD, CONDITIONAL, *RELATED, DEFAULT])
        tables.append(_table(run, None, "Methods of related work", cells, columns, "related"))
    cells = _cells(run, options.scores, [*main, DEFAULT])
    tables.append(_table(run, 5, "methods by conformity score", cells, columns))
    if source.has_trust and len(options.degrees) > 1:
        name = f"{CONDITIONAL} by degree of the polynomials (the paper stops at 5)"
        pairs = product(options.scores, options.degrees)
        cells = [Cell(score, CONDITIONAL, degree) for score, degree in pairs]
        tables.append(_table(run, None, name, cells, columns, "degrees", "Degree"))
    return [table for table in tables if table.rows]


def _columns(run: Run, wanted: Sequence[str]) -> tuple[str, ...]:
    shared = next(iter(run.evaluations.values()))[0].metrics
    return tuple(name for name in wanted if name in shared)


def _cells(run: Run, scores: Sequence[str], methods: Sequence[str]) -> list[Cell]:
    degrees = dict.fromkeys((CONDITIONAL, PLUGIN), run.options.degree)
    pairs = product(scores, methods)
    return [Cell(score, method, degrees.get(method)) for score, method in pairs]


def _group_table(run: Run) -> PaperTable:
    parts = [f"group:{name}.{part}" for name in run.source.groups for part in ("gap", "worst")]
    columns = _columns(run, ["coverage", "size", *parts, "class.gap"])
    names = dict.fromkeys(cell.method for cell in run.evaluations)
    paper = [name for name in names if name.startswith(GROUPWISE)]
    package = [name for name in names if name.startswith(PACKAGE_GROUPWISE)]
    methods = [STANDARD, *paper, CONDITIONAL, *package, DEFAULT]
    return _table(run, 2, "methods by group", _cells(run, [_MAIN_SCORE], methods), columns)


def _table(
    run: Run,
    number: int | None,
    heading: str,
    cells: Sequence[Cell],
    columns: tuple[str, ...],
    slug: str = "",
    head: str = "Method",
) -> PaperTable:
    """Table of the cells that were run; numbers in the paper's tables have the printed ones."""
    named = {
        (cell.score, cell.method if head == "Method" else str(cell.degree)): cell
        for cell in cells
        if cell in run.evaluations
    }
    results = {key: run.evaluations[cell] for key, cell in named.items()}
    compared = compare(results, columns=columns, n_bootstrap=_BOOTSTRAP).entries if named else ()
    rows = []
    for ((score, name), cell), entries in zip(named.items(), compared, strict=True):
        key = (number, run.source.name, score, cell.method)
        numbers = [
            _number(entry, results[score, name], column, printed_values().get((*key, column)))
            for column, entry in zip(columns, entries, strict=True)
        ]
        rows.append(Row((score,), name, tuple(numbers)))
    slug = slug or f"table{number}"
    return PaperTable(number, slug, heading, ("Score", head), columns, tuple(rows))


def _number(
    entry: Entry, runs: Sequence[Evaluation], column: str, printed: Printed | None
) -> Number:
    if len(runs) > 1:
        error = _standard_error([item.metrics[column].value for item in runs])
    else:
        interval, level = runs[0].metrics[column], runs[0].level
        error = (interval.upper - interval.lower) / (2.0 * stats.norm.ppf(0.5 + level / 2.0))
    return Number(entry.mean, float(error), entry.floor, entry.best, printed)


def _standard_error(values: Sequence[float]) -> float:
    """Standard error over seeds as the authors compute it: the deviation divides by n."""
    return float(np.std(values) / np.sqrt(len(values)))


def cross_tables(runs: Sequence[Run]) -> list[PaperTable]:
    """Tables 1, 4, 5 and that of related work with a block for each dataset, and each table 2.

    Groups have other names in each dataset, so that their tables cannot be joined.
    """
    by_slug: dict[str, dict[str, PaperTable]] = {}
    for run in runs:
        for table in paper_tables(run):
            by_slug.setdefault(table.slug, {})[run.source.name] = table
    joined = [
        _joined(by_slug[slug])
        for slug in ("table1", "table4", "table5", "related")
        if slug in by_slug
    ]
    return joined + [
        replace(table, slug=f"table2-{name}", title=f"{table.title}, {name}")
        for name, table in by_slug.get("table2", {}).items()
    ]


def _joined(tables: dict[str, PaperTable]) -> PaperTable:
    """The same table of several datasets, with the columns that all of them have."""
    first = next(iter(tables.values()))
    shared = [
        name for name in first.columns if all(name in table.columns for table in tables.values())
    ]
    # All tables but that by score have a single score, which their titles name.
    begin = 0 if first.number == 5 else 1
    rows = []
    for name, table in tables.items():
        indices = [table.columns.index(column) for column in shared]
        rows += [
            Row((name, *row.block[begin:]), row.name, tuple(row.numbers[i] for i in indices))
            for row in table.rows
        ]
    heads = ("Dataset", *first.heads[begin:])
    return replace(first, heads=heads, columns=tuple(shared), rows=tuple(rows))


@final
@dataclass(frozen=True)
class CorrelationTable:
    """Table 3: a row for each dataset, followed by the printed one where there is one."""

    rows: tuple[tuple[str, ...], ...]
    header: ClassVar = ("Dataset", "Pearson", "p-value", "Spearman", "p-value")
    number: ClassVar = 3
    slug: ClassVar = "table3"
    heading: ClassVar = "Table 3: correlation of Trust and Rank"

    def to_markdown(self) -> str:
        """Pipe table."""
        return markdown_table(self.header, self.rows)

    def to_latex(self) -> str:
        """Booktabs table; minus and less-than signs are set as mathematics."""
        safe = ([escape_latex(text) for text in row] for row in self.rows)
        cells = [[re.sub("^[-<]", r"$\g<0>$", text) for text in row] for row in safe]
        return latex_table(self.header, [cells])


def correlation_table(runs: Sequence[Run]) -> CorrelationTable:
    """Mean over seeds of both correlations of each run, and the largest p-value."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        if not run.correlations:
            continue
        rows.append((run.source.name, *_correlations(run.correlations)))
        printed = printed_correlation(run.source.name)
        if printed is not None:
            pearson, spearman = f"{printed['pearson']:.2f}", f"{printed['spearman']:.2f}"
            rows.append(("printed", pearson, printed["pearson_p"], spearman, printed["spearman_p"]))
    return CorrelationTable(tuple(rows))


def _correlations(correlations: Sequence[Correlation]) -> list[str]:
    texts = []
    for name in ("pearson", "spearman"):
        values = [getattr(item, name) for item in correlations]
        error = f" ({_standard_error(values):.3f})" if len(values) > 1 else ""
        largest = max(getattr(item, f"{name}_p") for item in correlations)
        texts.append(f"{np.mean(values):.3f}{error}")
        texts.append("< 0.001" if largest < 0.001 else f"{largest:.3f}")
    return texts
