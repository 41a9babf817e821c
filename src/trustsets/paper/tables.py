"""The paper's tables from one run or from several, next to the printed numbers.

Table 1 has the methods with APS, table 2 the methods by group, table 3 the correlation of Trust and
Rank, table 4 principal components as function class, table 5 the methods by score. Two more are not
in the paper: CONDITIONAL by degree, and the methods of related work.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import ClassVar, final

import numpy as np
from scipy import stats

from trustsets.metrics import render
from trustsets.metrics.comparison import Entry, compare
from trustsets.metrics.result import Evaluation
from trustsets.metrics.summaries import Correlation
from trustsets.paper.experiment import Cell, Run
from trustsets.paper.methods import (
    CONDITIONAL,
    DEFAULT,
    GROUPWISE,
    NAIVE,
    OWN_GROUPWISE,
    PCA,
    PLUGIN,
    RELATED,
    STANDARD,
)
from trustsets.paper.printed import HALF_UNIT, Printed, printed_correlation, printed_values

__all__ = ["CorrelationTable", "PaperTable", "correlation_table", "cross_tables", "paper_tables"]

MARK = "†"
"""Follows a number that differs from the printed one by more than two standard errors."""
_STANDARD_ERRORS = 2.0
_MAIN = ("coverage", "size", "conf_trust.gap", "conf_rank.gap", "class.gap")
_MAIN_SCORE = "APS"
# Intervals of means over seeds are not shown, so there is nothing to gain from more.
_BOOTSTRAP = 1
_PERFECT = "perfect (noise floor)"


@final
@dataclass(frozen=True)
class Number:
    """One cell of a table.

    Attributes
    ----------
    mean, standard_error : float
        Mean and standard error over seeds. The standard deviation divides by the number of
        seeds, as in the printed tables. With one seed the error is that of sampling the test
        samples.
    floor : float
        Noise floor; NaN where undefined.
    best : bool
        Whether it is the best of its block, or within 0.1 of it.
    printed : Printed or None
        The number that the paper prints.
    """

    mean: float
    standard_error: float
    floor: float = math.nan
    best: bool = False
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
        own = 0.0 if math.isnan(self.standard_error) else self.standard_error
        error = math.hypot(own, self.printed.standard_error)
        return abs(self.difference) > _STANDARD_ERRORS * error + HALF_UNIT


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
        return [*self.heads, *map(render.title, self.columns)]

    def to_markdown(self) -> str:
        """Pipe table; under each row the printed one, where there is one."""
        rows = [row for block in self._blocks(latex=False) for row in block]
        return render.markdown_table(self._header, rows, n_names=len(self.heads))

    def to_latex(self) -> str:
        """Booktabs table."""
        safe = [render.escape_latex(text) for text in self._header]
        return render.latex_table(safe, self._blocks(latex=True), n_names=len(self.heads))

    def _blocks(self, *, latex: bool) -> list[list[list[str]]]:
        found, mark = [], r"$^\dagger$" if latex else f" {MARK}"
        for block, group in groupby(self.rows, key=lambda row: row.block):
            rows, blank = list(group), [""] * len(block)
            lines: list[list[str]] = []
            for row in rows:
                names = [*(blank if lines else block), row.name]
                safe = [render.escape_latex(name) if latex else name for name in names]
                for number in row.numbers:
                    safe.append(_cell(number, latex, number.best) + mark * number.differs)
                lines.append(safe)
                printed = [_cell(number.printed) for number in row.numbers]
                lines += [[*blank, "printed", *printed]] if any(printed) else []
            # A perfect method, whose gaps are noise alone.
            floors = np.mean([[number.floor for number in row.numbers] for row in rows], axis=0)
            texts = ["" if math.isnan(value) else f"{value:.2f}" for value in floors]
            found.append(lines + ([[*blank, _PERFECT, *texts]] if any(texts) else []))
        return found


def _cell(number: Number | Printed | None, latex: bool = False, best: bool = False) -> str:
    """Mean and standard error, where they are known."""
    if number is None or math.isnan(number.mean):
        return ""
    mean, error = f"{number.mean:.2f}", number.standard_error
    shown = render.bold(mean, latex=latex) if best else mean
    return shown + ("" if math.isnan(error) else f" ({error:.2f})")


def paper_tables(run: Run) -> list[PaperTable]:
    """Tables 1, 2, 4, 5, those by degree and of related work, as far as the run allows."""
    source, options = run.source, run.options
    main, one = [STANDARD, NAIVE, CONDITIONAL], [_MAIN_SCORE]
    columns, found = _columns(run, _MAIN), []
    if source.has_trust:
        cells = _cells(run, one, [*main, DEFAULT])
        found.append(_table(run, 1, f"methods, {_MAIN_SCORE} score", cells, columns))
    if source.groups:
        found.append(_group_table(run))
    if source.has_features:
        title = "principal components of the features as function class"
        found.append(_table(run, 4, title, _cells(run, one, [*main, PCA, DEFAULT]), columns))
    if options.related:
        cells = _cells(run, one, [STANDARD, CONDITIONAL, *RELATED, DEFAULT])
        found.append(_table(run, None, "Methods of related work", cells, columns, "related"))
    cells = _cells(run, options.scores, [*main, DEFAULT])
    found.append(_table(run, 5, "methods by conformity score", cells, columns))
    if source.has_trust and len(options.degrees) > 1:
        title = f"{CONDITIONAL} by degree of the polynomials (the paper stops at 5)"
        pairs = product(options.scores, options.degrees)
        cells = [Cell(score, CONDITIONAL, degree) for score, degree in pairs]
        found.append(_table(run, None, title, cells, columns, "degrees", "Degree"))
    return [table for table in found if table.rows]


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
    known = dict.fromkeys(cell.method for cell in run.evaluations)
    own = [name for name in known if name.startswith(GROUPWISE)]
    package = [name for name in known if name.startswith(OWN_GROUPWISE)]
    methods = [STANDARD, *own, CONDITIONAL, *package, DEFAULT]
    return _table(run, 2, "methods by group", _cells(run, [_MAIN_SCORE], methods), columns)


def _table(
    run: Run,
    number: int | None,
    title: str,
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
        place = (number, run.source.name, score, cell.method)
        numbers = [
            _number(entry, results[score, name], column, printed_values().get((*place, column)))
            for column, entry in zip(columns, entries, strict=True)
        ]
        rows.append(Row((score,), name, tuple(numbers)))
    return PaperTable(
        number, slug or f"table{number}", title, ("Score", head), columns, tuple(rows)
    )


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
    found: dict[str, dict[str, PaperTable]] = {}
    for run in runs:
        for table in paper_tables(run):
            found.setdefault(table.slug, {})[run.source.name] = table
    joined = [
        _joined(found[slug]) for slug in ("table1", "table4", "table5", "related") if slug in found
    ]
    return joined + [
        replace(table, slug=f"table2-{name}", title=f"{table.title}, {name}")
        for name, table in found.get("table2", {}).items()
    ]


def _joined(own: dict[str, PaperTable]) -> PaperTable:
    """The same table of several datasets, with the columns that all of them have."""
    first = next(iter(own.values()))
    shared = [
        name for name in first.columns if all(name in table.columns for table in own.values())
    ]
    # All tables but that by score have a single score, which their titles name.
    begin = 0 if first.number == 5 else 1
    rows = []
    for name, table in own.items():
        places = [table.columns.index(column) for column in shared]
        rows += [
            Row((name, *row.block[begin:]), row.name, tuple(row.numbers[i] for i in places))
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
        return render.markdown_table(self.header, self.rows)

    def to_latex(self) -> str:
        """Booktabs table; minus and less-than signs are set as mathematics."""
        safe = ([render.escape_latex(text) for text in row] for row in self.rows)
        cells = [[re.sub("^[-<]", r"$\g<0>$", text) for text in row] for row in safe]
        return render.latex_table(self.header, [cells])


def correlation_table(runs: Sequence[Run]) -> CorrelationTable:
    """Mean over seeds of both correlations of each run, and the largest p-value."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        if not run.correlations:
            continue
        rows.append((run.source.name, *_correlations(run.correlations)))
        known = printed_correlation(run.source.name)
        if known is not None:
            pearson, spearman = f"{known['pearson']:.2f}", f"{known['spearman']:.2f}"
            rows.append(("printed", pearson, known["pearson_p"], spearman, known["spearman_p"]))
    return CorrelationTable(tuple(rows))


def _correlations(found: Sequence[Correlation]) -> list[str]:
    texts = []
    for name in ("pearson", "spearman"):
        values = [getattr(item, name) for item in found]
        error = f" ({_standard_error(values):.3f})" if len(values) > 1 else ""
        largest = max(getattr(item, f"{name}_p") for item in found)
        texts.append(f"{np.mean(values):.3f}{error}")
        texts.append("< 0.001" if largest < 0.001 else f"{largest:.3f}")
    return texts
