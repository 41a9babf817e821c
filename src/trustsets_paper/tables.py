"""The paper's tables next to the printed numbers, and its claims, from one run or from several.

The printed numbers are in ``printed_tables.json``, with two digits after the point as in the paper,
and those of the authors' notebook with six.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import groupby, product
from typing import Any, ClassVar, Literal, final

import numpy as np
from scipy import stats

from trustsets import compare
from trustsets.metrics import Correlation, Evaluation, markdown_table, split_name, title
from trustsets_paper import Floats
from trustsets_paper.protocol import (
    ABLATION,
    CONDITIONAL,
    DEFAULT,
    GROUPWISE,
    MAIN_SCORE,
    MATCHED,
    MATCHED_DEFAULT,
    NAIVE,
    PACKAGE_GROUPWISE,
    PACKAGE_POLYNOMIAL,
    PCA,
    RANK_SHOWN,
    STANDARD,
    Cell,
    Run,
)

MARK = "†"
"""Follows a number that differs from the printed one by more than two standard errors."""
_STANDARD_ERRORS = 2.0
# How far rounding to two digits can move a printed number.
_HALF_UNIT = 0.005
MAIN_COLUMNS = ("coverage", "size", "conf_trust.gap", "conf_rank.gap", "class.gap")
"""Columns of tables 1, 4 and 5."""
# Intervals of means over seeds are not shown, so there is nothing to gain from more.
_BOOTSTRAP = 1
_PERFECT = "perfect (noise floor)"

# --- the printed numbers


@final
@dataclass(frozen=True)
class Printed:
    """One number as printed, and with the digits of the authors' notebook where it has them."""

    mean: float
    standard_error: float
    exact_mean: float | None = None
    exact_error: float | None = None

    @property
    def target(self) -> tuple[float, float, float]:
        """Mean and standard error with the most digits there are, and how far rounding can be."""
        if self.exact_mean is None or self.exact_error is None:
            return self.mean, self.standard_error, _HALF_UNIT
        return self.exact_mean, self.exact_error, 0.0


def read_json(name: str) -> Any:
    """Content of a file of the package."""
    return json.loads(resources.files("trustsets_paper").joinpath(name).read_text("utf-8"))


_PUBLICATION: dict[str, Any] = read_json("printed_tables.json")
PRINTED_SOURCE: str = _PUBLICATION["source"]
"""The publication that the printed numbers come from."""
AUTHORS: dict[str, Any] = _PUBLICATION["authors"]
"""Repository and commit of the authors, and the numbers of their notebook."""


@cache
def printed_values() -> dict[tuple[int | None, str, str, str, str], Printed]:
    """All numbers of tables 1, 2, 4 and 5, by table, dataset, score, method and column.

    Columns are named as in ``Evaluation.metrics``.
    """
    exact = _values(AUTHORS["notebook"])
    return {
        (int(number), *key): Printed(*value, *exact.get(key, ()))
        for number, table in _PUBLICATION["tables"].items()
        for key, value in _values(table).items()
    }


def _values(table: dict[str, Any]) -> dict[tuple[str, str, str, str], list[float]]:
    """Mean and standard error by dataset, score, method and column."""
    return {
        (row["dataset"], row["score"], row["method"], column): value
        for row in table["rows"]
        if "values" in row
        for column, value in zip(table["columns"], row["values"], strict=True)
    }


def printed_correlation(dataset: str) -> dict[str, Any] | None:
    """Row of table 3, or None where the paper has none; p-values are texts such as ``< 0.001``."""
    rows = _PUBLICATION["tables"]["3"]["rows"]
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
    paired: bool = False  # ours and the printed number are of the same test samples

    @property
    def difference(self) -> float:
        """Our number minus the printed one; NaN where there is none."""
        return math.nan if self.printed is None else self.mean - self.printed.target[0]

    @property
    def differs(self) -> bool:
        """Whether the difference exceeds two standard errors and the rounding of print.

        Where both sides have the same test samples, only the printed error counts.
        """
        if self.printed is None:
            return False
        _, error, rounding = self.printed.target
        if not self.paired and not math.isnan(self.standard_error):
            error = math.hypot(error, self.standard_error)
        return abs(self.difference) > _STANDARD_ERRORS * error + rounding


def share_by_chance(n_seeds: int, *, paired: bool) -> float:
    """Share of numbers that are marked although both sides estimate the same, at most."""
    # The plain standard deviation is too small by the root of (n - 1) / n.
    limit = _STANDARD_ERRORS * math.sqrt((n_seeds - 1) / n_seeds)
    return float(2.0 * stats.t.sf(limit, (n_seeds - 1) * (1 if paired else 2)))


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

    def to_markdown(self) -> str:
        """Pipe table; under each row the printed one, where there is one."""
        lines: list[list[str]] = []
        for block, group in groupby(self.rows, key=lambda row: row.block):
            rows, blank, names = list(group), [""] * len(block), list(block)
            for row in rows:
                texts = [_text(item) + f" {MARK}" * item.differs for item in row.numbers]
                lines.append([*names, row.name, *texts])
                names = blank
                printed = [_text(item.printed) for item in row.numbers]
                lines += [[*blank, "printed", *printed]] if any(printed) else []
            # A perfect method, whose gaps are noise alone.
            floors = np.mean([[item.floor for item in row.numbers] for row in rows], axis=0)
            texts = ["" if math.isnan(value) else f"{value:.2f}" for value in floors]
            lines += [[*blank, _PERFECT, *texts]] if any(texts) else []
        header = [*self.heads, *map(title, self.columns)]
        return markdown_table(header, lines, n_names=len(self.heads))


def _text(number: Number | Printed | None) -> str:
    """Mean and standard error, where there are any."""
    if number is None or math.isnan(number.mean):
        return ""
    mean, error = f"{number.mean:.2f}", number.standard_error
    if isinstance(number, Number) and number.best:
        mean = f"**{mean}**"
    return mean + ("" if math.isnan(error) else f" ({error:.2f})")


def paper_tables(run: Run) -> list[PaperTable]:
    """Tables 1, 2, 4, 5 and that by degree, as far as the run allows."""
    source, options = run.source, run.options
    main, package = [STANDARD, NAIVE, CONDITIONAL], [MATCHED, DEFAULT]
    columns, tables = shared_columns(run, MAIN_COLUMNS), []
    if source.has_trust:
        cells = _cells(run, [MAIN_SCORE], [*main, *package])
        tables.append(_table(run, 1, f"methods, {MAIN_SCORE} score", cells, columns))
    if source.groups:
        tables.append(_group_table(run))
    if source.has_features:
        heading = "principal components of the features as function class"
        cells = _cells(run, [MAIN_SCORE], [*main, PCA, *package])
        tables.append(_table(run, 4, heading, cells, columns))
    cells = _cells(run, options.scores, [*main, *package])
    tables.append(_table(run, 5, "methods by conformity score", cells, columns))
    if source.has_trust and len(options.degrees) > 1:
        heading = f"{CONDITIONAL} by degree of the polynomials (the paper stops at 5)"
        pairs = product(options.scores, options.degrees)
        cells = [Cell(score, CONDITIONAL, degree) for score, degree in pairs]
        rows = _rows(run, None, {(cell.score, str(cell.degree)): cell for cell in cells}, columns)
        tables.append(PaperTable(None, "degrees", heading, ("Score", "Degree"), columns, rows))
    return [table for table in tables if table.rows]


def shared_columns(run: Run, wanted: Sequence[str]) -> tuple[str, ...]:
    """Those of the columns that the run has."""
    measured = next(iter(run.evaluations.values()))[0].metrics
    return tuple(name for name in wanted if name in measured)


def _cells(run: Run, scores: Sequence[str], methods: Sequence[str]) -> list[Cell]:
    return [run.cell(method, score) for score, method in product(scores, methods)]


def _group_table(run: Run) -> PaperTable:
    parts = [f"group:{name}.{part}" for name in run.source.groups for part in ("gap", "worst")]
    columns = shared_columns(run, ["coverage", "size", *parts, "class.gap"])
    names = dict.fromkeys(cell.method for cell in run.evaluations)
    paper = [name for name in names if name.startswith(GROUPWISE)]
    package = [name for name in names if name.startswith(PACKAGE_GROUPWISE)]
    methods = [STANDARD, *paper, CONDITIONAL, MATCHED, *package, DEFAULT]
    return _table(run, 2, "methods by group", _cells(run, [MAIN_SCORE], methods), columns)


def _table(
    run: Run, number: int, heading: str, cells: Sequence[Cell], columns: tuple[str, ...]
) -> PaperTable:
    """Table of the cells that were run; numbers in the paper's tables have the printed ones."""
    named = {(cell.score, cell.method): cell for cell in cells}
    rows = _rows(run, number, named, columns)
    return PaperTable(number, f"table{number}", heading, ("Score", "Method"), columns, rows)


def _rows(
    run: Run, number: int | None, named: dict[tuple[str, str], Cell], columns: tuple[str, ...]
) -> tuple[Row, ...]:
    """Rows by score and name. Those of the package, in lower case, do not compete for bold."""
    results = {key: run.evaluations[cell] for key, cell in named.items() if cell in run.evaluations}
    competing = {key: runs for key, runs in results.items() if not key[1][0].islower()}
    best: dict[tuple[str, ...], Sequence[bool]] = {}
    if competing:
        compared = compare(competing, columns=columns, n_bootstrap=_BOOTSTRAP)
        for names, entries in zip(compared.keys, compared.entries, strict=True):
            best[names] = [entry.best for entry in entries]
    rows = []
    for (score, name), runs in results.items():
        key = (number, run.source.name, score, named[score, name].method)
        flags = best.get((score, name), [False] * len(columns))
        numbers = [
            replace(
                summarise(runs, column),
                best=flag,
                printed=printed_values().get((*key, column)),
                paired=run.source.fixed_split,
            )
            for column, flag in zip(columns, flags, strict=True)
        ]
        rows.append(Row((score,), name, tuple(numbers)))
    return tuple(rows)


def summarise(runs: Sequence[Evaluation], column: str) -> Number:
    """Mean over seeds, its standard error and the noise floor of one metric."""
    estimates = [item.metrics[column] for item in runs]
    values = [item.value for item in estimates]
    if len(runs) > 1:
        error = _standard_error(values)
    else:
        width = estimates[0].upper - estimates[0].lower
        table, part = split_name(column)
        # The interval of the lowest of B coverages is corrected for the choice among them.
        tests = runs[0].tables[table].count.size if part == "worst" else 1
        error = width / (2.0 * float(stats.norm.isf((1.0 - runs[0].level) / tests / 2.0)))
    return Number(float(np.mean(values)), error, float(np.mean([item.floor for item in estimates])))


def _standard_error(values: Sequence[float]) -> float:
    """As the authors compute it: the deviation divides by n."""
    return float(np.std(values) / np.sqrt(len(values)))


def cross_tables(runs: Sequence[Run]) -> list[PaperTable]:
    """Tables 1, 4 and 5 with a block for each dataset, and each table 2, whose groups differ."""
    by_slug: dict[str, dict[str, PaperTable]] = {}
    for run in runs:
        for table in paper_tables(run):
            by_slug.setdefault(table.slug, {})[run.source.name] = table
    joined = [_joined(by_slug[slug]) for slug in ("table1", "table4", "table5") if slug in by_slug]
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


def correlation_table(runs: Sequence[Run]) -> CorrelationTable:
    """Mean over seeds of both correlations of each run, and the largest p-value."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        if not run.correlations:
            continue
        rows.append((run.source.name, *_correlations(run.correlations)))
        if row := printed_correlation(run.source.name):
            pearson, spearman = f"{row['pearson']:.2f}", f"{row['spearman']:.2f}"
            rows.append(("printed", pearson, row["pearson_p"], spearman, row["spearman_p"]))
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


# --- claims


@final
@dataclass(frozen=True)
class Claim:
    """One statement of the paper: `row` is better than `against` in a column, or not worse.

    It holds where the mean difference over seeds is beyond two standard errors on the claimed side,
    and is contradicted where it is beyond them on the other side.
    """

    text: str
    row: str
    against: str
    column: str  # of `Evaluation.metrics`, or one of the words that `_claim_values` knows
    section: str = ""  # of the paper
    score: str = MAIN_SCORE
    higher: bool = False  # higher is better
    comparable: bool = False  # it holds as well where neither is better
    claimed: bool = True  # by the paper; otherwise it is a comparison that the paper lacks


CLAIMS = tuple(Claim(**fields) for fields in read_json("claims.json"))
"""Claims in the order of the paper, and the same against STANDARD of the same mean size."""


@final
@dataclass(frozen=True)
class Verdict:
    """What the seeds of one dataset say of a claim."""

    word: Literal["yes", "no", "undecided"]
    value: float
    against: float
    difference: float
    standard_error: float
    floor: float

    @property
    def text(self) -> str:
        """The verdict, both numbers, and the noise floor where the first does not exceed it."""
        numbers = f"{self.value:.2f} against {self.against:.2f}"
        change = f"{self.difference:+.2f} ({self.standard_error:.2f})"
        below = f"; noise floor {self.floor:.2f}" if self.value <= self.floor else ""
        return f"{self.word}: {numbers}, {change}{below}"


def judge(claim: Claim, run: Run) -> Verdict | None:
    """Judge a claim by paired differences over seeds; None where the run has not what it needs."""
    row = _claim_values(run, claim, claim.row)
    constants = {"coverage": 1.0 - run.options.alpha, "rising pairs": 0.5}
    against = np.full(row.shape, constants.get(claim.column, 0.0))
    if claim.against:
        against = _claim_values(run, claim, claim.against)
    if row.size == 0 or against.size == 0:
        return None
    differences = row - against
    mean, error = float(differences.mean()), 0.0
    if row.size > 1:
        error = float(differences.std(ddof=1) / np.sqrt(row.size))
    estimate = run.evaluations[run.cell(claim.row, claim.score)][0].metrics.get(claim.column)
    return Verdict(
        word=_word(-mean if claim.higher else mean, error, claim),
        value=float(row.mean()),
        against=float(against.mean()),
        difference=mean,
        standard_error=error,
        floor=estimate.floor if estimate is not None and claim.column.endswith("gap") else np.nan,
    )


def _word(cost: float, error: float, claim: Claim) -> Literal["yes", "no", "undecided"]:
    if claim.column == "coverage":
        return "yes" if abs(cost) <= _HALF_UNIT else "no"
    if cost > _STANDARD_ERRORS * error:
        return "no"
    return "yes" if claim.comparable or cost < -_STANDARD_ERRORS * error else "undecided"


def _claim_values(run: Run, claim: Claim, method: str) -> Floats:
    """A number for each seed; empty where there are none."""
    cell, column = run.cell(method, claim.score), claim.column
    if column.startswith("groups."):
        return _group_values(run, claim.score, method, column.removeprefix("groups."))
    evaluations = run.evaluations.get(cell, [])
    if column in ("smallest balls", "largest balls"):
        end = 0 if column == "smallest balls" else -1
        curves = [curve for curve in run.balls.get(cell, []) if curve.radii.size]
        return np.array([curve.gap[end] for curve in curves])
    if column == "rising pairs":
        return np.array([_rising_pairs(item) for item in evaluations])
    return np.array([item.metrics[column].value for item in evaluations if column in item.metrics])


def _group_values(run: Run, score: str, method: str, part: str) -> Floats:
    """Mean gap over the group columns, or the lowest coverage of any group.

    GROUPWISE is judged by the column that it uses.
    """
    names = run.source.groups
    several = method == GROUPWISE and len(names) > 1
    columns = []
    for name in names:
        cell = run.cell(f"{method} by {name}" if several else method, score)
        runs = run.evaluations.get(cell, [])
        columns.append([item.metrics[f"group:{name}.{part}"].value for item in runs])
    values: Floats = np.array(columns, dtype=np.float64)
    if not values.size:
        return np.empty(0)
    return np.asarray(values.mean(axis=0) if part == "gap" else values.min(axis=0))


def _rising_pairs(evaluation: Evaluation) -> float:
    """Share of neighbouring Rank bins of one Conf bin in which coverage rises."""
    table = evaluation.tables[RANK_SHOWN]
    coverage = np.full(table.shape, np.nan)
    coverage[tuple(table.index.T)] = table.coverage
    steps = np.diff(coverage, axis=1)
    steps = steps[~np.isnan(steps)]
    return float(np.mean(steps > 0.0)) if steps.size else np.nan


def claims_rows(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of claims: what is printed, and a column for each run."""
    header = ["Claim", "Section", "printed", *(run.source.name for run in runs)]
    rows = []
    for claim in CLAIMS:
        verdicts = [judge(claim, run) for run in runs]
        texts = ["" if verdict is None else verdict.text for verdict in verdicts]
        if any(texts):
            section = claim.section if claim.claimed else "not in the paper"
            rows.append([claim.text, section, _printed_words(claim), *texts])
    return header, rows


def _printed_words(claim: Claim) -> str:
    """How many of the paper's datasets agree by the printed numbers and their errors."""
    number = 4 if claim.against == PCA else 5
    if claim.column.startswith("groups."):
        number = 2
    column = claim.column.replace("groups.", "group:skin_type.")
    printed = printed_values()
    words = []
    for key, item in printed.items():
        table, _, score, method, name = key
        if (table, score, method, name) == (number, claim.score, claim.row, column):
            other = printed.get((*key[:3], claim.against, name))
            if other is not None:
                (mean, error, _), (base, base_error, _) = item.target, other.target
                cost = base - mean if claim.higher else mean - base
                words.append(_word(cost, float(np.hypot(error, base_error)), claim))
    counts = [f"{words.count(word)} {word}" for word in ("yes", "no", "undecided") if word in words]
    return ", ".join(counts)


# --- the ablation


def ablation_table(runs: Sequence[Run]) -> PaperTable:
    """What is conditioned on: Conf, Trust or both, in the paper's setting and in the default's."""
    names = [STANDARD, *(f"{CONDITIONAL}, {name}" for name in ABLATION if name != "Conf and Trust")]
    names += [CONDITIONAL, MATCHED]
    names += [f"{PACKAGE_POLYNOMIAL}, {name}" for name in ABLATION] + [DEFAULT, MATCHED_DEFAULT]
    columns = shared_columns(runs[0], MAIN_COLUMNS)
    rows = []
    for run in runs:
        for name in names:
            evaluations = run.evaluations.get(run.cell(name))
            if evaluations:
                title = f"{name}, Conf and Trust" if name == CONDITIONAL else name
                numbers = tuple(summarise(evaluations, column) for column in columns)
                rows.append(Row((run.source.name,), title, numbers))
    title = "What is conditioned on"
    return PaperTable(None, "ablation", title, ("Dataset", "Method"), columns, tuple(rows))
