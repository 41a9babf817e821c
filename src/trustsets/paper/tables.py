"""The paper's tables from a run, next to the printed numbers. Imports experiment and printed.

Table 1: methods with APS. 2: methods by group. 3: correlation of Trust and Rank. 4: principal
components as function class. 5: methods by score. And two that the paper does not have:
CONDITIONAL by degree, and the methods of related work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

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
        Over seeds, the latter from the plain standard deviation (divided by the number of
        seeds), as the printed ones are; with one seed the error is that of sampling the
        test points.
    floor : float
        What noise alone gives; NaN where undefined.
    best : bool
        Whether it is the best of its block, or within 0.1 of it.
    printed : Printed or None
        The paper's number.
    """

    mean: float
    standard_error: float
    floor: float = math.nan
    best: bool = False
    printed: Printed | None = None

    @property
    def difference(self) -> float:
        """Ours less the printed number; NaN where there is none."""
        return math.nan if self.printed is None else self.mean - self.printed.mean

    @property
    def differs(self) -> bool:
        """Whether the difference exceeds two standard errors of it and the rounding of print."""
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
        """What the row itself is called: a method, or a degree."""
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
            own.append(self._names(row, latex, first=not own) + _cells(row, latex))
            if any(number.printed for number in row.numbers):
                own.append([*[""] * len(row.block), "printed", *_printed_cells(row)])
        for block, lines in found.items():
            lines += self._floors(block)
        return list(found.values())

    def _names(self, row: Row, latex: bool, *, first: bool) -> list[str]:
        names = [*(row.block if first else [""] * len(row.block)), row.name]
        return [render.escape_latex(name) if latex else name for name in names]

    def _floors(self, block: tuple[str, ...]) -> list[list[str]]:
        """A row for a perfect method, whose gaps are noise alone."""
        rows = [row for row in self.rows if row.block == block]
        floors = np.mean([[number.floor for number in row.numbers] for row in rows], axis=0)
        if np.isnan(floors).all():
            return []
        texts = ["" if math.isnan(value) else f"{value:.2f}" for value in floors]
        return [[*[""] * len(block), _PERFECT, *texts]]


def _cells(row: Row, latex: bool) -> list[str]:
    return [_text(number, latex) for number in row.numbers]


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
    main = [STANDARD, NAIVE, CONDITIONAL, DEFAULT]
    columns = _columns(run, _MAIN)
    found = []
    if _MAIN_SCORE in run.options.scores:
        if run.source.has_trust:
            title = f"methods, {_MAIN_SCORE} score"
            found.append(_table(run, 1, title, [_MAIN_SCORE], main, columns))
        if run.source.groups:
            found.append(_group_table(run))
        if run.source.has_features:
            title = "principal components of the features as function class"
            methods = [*main[:-1], PCA, DEFAULT]
            found.append(_table(run, 4, title, [_MAIN_SCORE], methods, columns))
        if run.options.related:
            methods = [STANDARD, CONDITIONAL, *RELATED, DEFAULT]
            title = "Methods of related work"
            found.append(_table(run, None, title, [_MAIN_SCORE], methods, columns))
    title = "methods by conformity score"
    found.append(_table(run, 5, title, run.options.scores, main, columns))
    if run.source.has_trust and len(run.options.degrees) > 1:
        found.append(_degree_table(run, columns))
    return [table for table in found if table.rows]


def _columns(run: Run, wanted: Sequence[str]) -> tuple[str, ...]:
    shared = next(iter(run.evaluations.values()))[0].metrics
    return tuple(name for name in wanted if name in shared)


def _group_table(run: Run) -> PaperTable:
    parts = [f"group:{name}.{part}" for name in run.source.groups for part in ("gap", "worst")]
    columns = _columns(run, ["coverage", "size", *parts, "class.gap"])
    own = [cell.method for cell in run.evaluations if cell.method.startswith(GROUPWISE)]
    package = [cell.method for cell in run.evaluations if cell.method.startswith(OWN_GROUPWISE)]
    methods = [STANDARD, *dict.fromkeys(own), CONDITIONAL, *dict.fromkeys(package), DEFAULT]
    return _table(run, 2, "methods by group", [_MAIN_SCORE], methods, columns)


def _table(
    run: Run,
    number: int | None,
    title: str,
    scores: Sequence[str],
    methods: Sequence[str],
    columns: tuple[str, ...],
) -> PaperTable:
    with_degree = {CONDITIONAL, PLUGIN}
    cells = [
        Cell(score, method, run.options.degree if method in with_degree else None)
        for score in scores
        for method in methods
    ]
    slug = f"table{number}" if number else "related"
    rows = _rows(run, number, cells, [cell.method for cell in cells], columns)
    return PaperTable(number, slug, title, ("Score", "Method"), columns, rows)


def _degree_table(run: Run, columns: tuple[str, ...]) -> PaperTable:
    cells = [
        Cell(score, CONDITIONAL, degree)
        for score in run.options.scores
        for degree in run.options.degrees
    ]
    title = f"{CONDITIONAL} by degree of the polynomials (the paper stops at 5)"
    rows = _rows(run, None, cells, [str(cell.degree) for cell in cells], columns)
    return PaperTable(None, "degrees", title, ("Score", "Degree"), columns, rows)


def _rows(
    run: Run,
    table: int | None,
    cells: Sequence[Cell],
    names: Sequence[str],
    columns: tuple[str, ...],
) -> tuple[Row, ...]:
    """Rows of the cells that were run, with the printed numbers of a table of the paper."""
    there = {
        (cell.score, name): cell
        for cell, name in zip(cells, names, strict=True)
        if cell in run.evaluations
    }
    if not there:
        return ()
    results = {key: run.evaluations[cell] for key, cell in there.items()}
    compared = compare(results, columns=columns, n_bootstrap=_BOOTSTRAP)
    rows = []
    for (key, cell), entries in zip(there.items(), compared.entries, strict=True):
        numbers = tuple(
            _number(
                entry,
                run.evaluations[cell],
                column,
                table and printed_value(table, run.source.name, cell.score, cell.method, column),
            )
            for column, entry in zip(columns, entries, strict=True)
        )
        rows.append(Row(key, numbers))
    return tuple(rows)


def _number(
    entry: Entry, runs: Sequence[Evaluation], column: str, printed: Printed | int | None
) -> Number:
    if len(runs) > 1:
        error = _standard_error([item.metrics[column].value for item in runs])
    else:
        interval = runs[0].metrics[column]
        error = (interval.upper - interval.lower) / (2.0 * _normal_quantile(runs[0].level))
    known = printed if isinstance(printed, Printed) else None
    return Number(entry.mean, error, entry.floor, entry.best, known)


def _normal_quantile(level: float) -> float:
    return float(stats.norm.ppf(0.5 + level / 2.0))


def _standard_error(values: Sequence[float]) -> float:
    """Standard error over seeds as the authors compute it: the deviation divides by n."""
    return float(np.std(values) / np.sqrt(len(values)))


@final
@dataclass(frozen=True)
class CorrelationTable:
    """Table 3: a row for each dataset, followed by the printed one where there is one."""

    rows: tuple[tuple[str, ...], ...]
    header: tuple[str, ...] = ("Dataset", "Pearson", "p-value", "Spearman", "p-value")

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
        if run.correlations:
            rows.append((run.source.name, *_correlations(run.correlations)))
        printed = printed_correlation(run.source.name)
        if run.correlations and printed is not None:
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
