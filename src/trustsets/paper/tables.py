"""The paper's tables from one run or from several, next to the printed numbers.

Table 1 has the methods with APS, table 2 the methods by group, table 3 the correlation of Trust and
Rank, table 4 principal components as function class, table 5 the methods by score. Two more are not
in the paper: CONDITIONAL by degree, and the methods of related work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from trustsets.paper.printed import HALF_UNIT, Printed, printed_correlation, printed_value

__all__ = [
    "MARK",
    "CorrelationTable",
    "Number",
    "PaperTable",
    "Row",
    "correlation_table",
    "cross_tables",
    "paper_tables",
]

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
    """Names and numbers of one row; rows that share all names but the last are compared."""

    names: tuple[str, ...]
    numbers: tuple[Number, ...]

    @property
    def block(self) -> tuple[str, ...]:
        """Names that rows to be compared share."""
        return self.names[:-1]

    @property
    def name(self) -> str:
        """Name of the row itself: a method, or a degree."""
        return self.names[-1]


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

    def to_markdown(self) -> str:
        """Pipe table; under each row the printed one, where there is one."""
        header = [*self.heads, *map(render.title, self.columns)]
        rows = [row for block in self._blocks(latex=False) for row in block]
        return render.markdown_table(header, rows, n_names=len(self.heads))

    def to_latex(self) -> str:
        """Booktabs table."""
        header = [*self.heads, *map(render.title, self.columns)]
        safe = [render.escape_latex(text) for text in header]
        return render.latex_table(safe, self._blocks(latex=True), n_names=len(self.heads))

    def _blocks(self, *, latex: bool) -> list[list[list[str]]]:
        found: dict[tuple[str, ...], list[list[str]]] = {}
        for row in self.rows:
            own = found.setdefault(row.block, [])
            names = [*(row.block if not own else [""] * len(row.block)), row.name]
            safe = [render.escape_latex(name) if latex else name for name in names]
            own.append(safe + [_text(number, latex) for number in row.numbers])
            if any(number.printed for number in row.numbers):
                own.append([*[""] * len(row.block), "printed", *_printed_cells(row)])
        for block, lines in found.items():
            lines += self._floors(block)
        return list(found.values())

    def _floors(self, block: tuple[str, ...]) -> list[list[str]]:
        """A row for a perfect method, whose gaps are noise alone."""
        rows = [row for row in self.rows if row.block == block]
        floors = np.mean([[number.floor for number in row.numbers] for row in rows], axis=0)
        if np.isnan(floors).all():
            return []
        texts = ["" if math.isnan(value) else f"{value:.2f}" for value in floors]
        return [[*[""] * len(block), _PERFECT, *texts]]


def _text(number: Number, latex: bool) -> str:
    if math.isnan(number.mean):
        return ""
    text = f"{number.mean:.2f}"
    text = render.bold(text, latex=latex) if number.best else text
    if not math.isnan(number.standard_error):
        text += f" ({number.standard_error:.2f})"
    mark = r"$^\dagger$" if latex else f" {MARK}"
    return text + (mark if number.differs else "")


def _printed_cells(row: Row) -> list[str]:
    return [
        ""
        if number.printed is None
        else f"{number.printed.mean:.2f} ({number.printed.standard_error:.2f})"
        for number in row.numbers
    ]


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
        cells = [
            Cell(score, CONDITIONAL, degree)
            for score in options.scores
            for degree in options.degrees
        ]
        found.append(_table(run, None, title, cells, columns, "degrees", "Degree"))
    return [table for table in found if table.rows]


def _columns(run: Run, wanted: Sequence[str]) -> tuple[str, ...]:
    shared = next(iter(run.evaluations.values()))[0].metrics
    return tuple(name for name in wanted if name in shared)


def _cells(run: Run, scores: Sequence[str], methods: Sequence[str]) -> list[Cell]:
    with_degree = {CONDITIONAL, PLUGIN}
    return [
        Cell(score, method, run.options.degree if method in with_degree else None)
        for score in scores
        for method in methods
    ]


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
    there = {
        (cell.score, cell.method if head == "Method" else str(cell.degree)): cell
        for cell in cells
        if cell in run.evaluations
    }
    rows = []
    results = {key: run.evaluations[cell] for key, cell in there.items()}
    compared = compare(results, columns=columns, n_bootstrap=_BOOTSTRAP).entries if there else ()
    for (key, cell), entries in zip(there.items(), compared, strict=True):
        place = (number, run.source.name, cell.score, cell.method)
        numbers = [
            _number(entry, run.evaluations[cell], column, printed_value(*place, column))
            for column, entry in zip(columns, entries, strict=True)
        ]
        rows.append(Row(key, tuple(numbers)))
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
    found = {run.source.name: {table.slug: table for table in paper_tables(run)} for run in runs}
    tables = []
    for slug in ("table1", "table4", "table5", "related"):
        own = {name: made[slug] for name, made in found.items() if slug in made}
        if own:
            tables.append(_joined(own))
    return tables + [
        replace(table, slug=f"table2-{name}", title=f"{table.title}, {name}")
        for name, made in found.items()
        for slug, table in made.items()
        if slug == "table2"
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
        for row in table.rows:
            numbers = tuple(row.numbers[place] for place in places)
            rows.append(Row((name, *row.names[begin:]), numbers))
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
        cells = [[_latex_number(text) for text in row] for row in self.rows]
        return render.latex_table(self.header, [cells])


def _latex_number(text: str) -> str:
    sign, rest = (text[:1], text[1:]) if text[:1] in {"-", "<"} else ("", text)
    return (f"${sign}$" if sign else "") + render.escape_latex(rest)


def correlation_table(runs: Sequence[Run]) -> CorrelationTable:
    """Mean over seeds of both correlations of each run, and the largest p-value."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        if not run.correlations:
            continue
        rows.append((run.source.name, *_correlations(run.correlations)))
        printed = printed_correlation(run.source.name)
        if printed is not None:
            numbers = [f"{printed.pearson:.2f}", printed.pearson_p]
            numbers += [f"{printed.spearman:.2f}", printed.spearman_p]
            rows.append(("printed", *numbers))
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
