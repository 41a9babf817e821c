"""The paper's claims on any data, and its method without one of its two statistics.

A claim is a difference between two methods, seed by seed on the same samples. It holds where the
mean difference is beyond two standard errors on the claimed side, and is contradicted where it is
beyond them on the other side. One more table varies what is conditioned on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from trustsets import (
    Evaluation,
)
from trustsets_paper import Floats
from trustsets_paper.protocol import (
    ABLATION,
    CONDITIONAL,
    DEFAULT,
    GROUPWISE,
    MAIN_SCORE,
    MATCHED,
    MATCHED_DEFAULT,
    PACKAGE_POLYNOMIAL,
    PCA,
    RANK_SHOWN,
    STANDARD,
    Cell,
    Run,
)
from trustsets_paper.tables import (
    MAIN_COLUMNS,
    PaperTable,
    Row,
    printed_values,
    read_json,
    shared_columns,
    summarise,
)

_STANDARD_ERRORS = 2.0
# Marginal coverage that is printed as 0.90 with two digits.
_COVERAGE_SLACK = 0.005

# --- claims


@final
@dataclass(frozen=True)
class Claim:
    """One statement of the paper: `row` is better than `against` in a column, or not worse."""

    text: str
    row: str
    against: str
    column: str  # of `Evaluation.metrics`, or one of the words that `_values` knows
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
    row = _values(run, claim, claim.row)
    constants = {"coverage": 1.0 - run.options.alpha, "rising pairs": 0.5}
    against = np.full(row.shape, constants.get(claim.column, 0.0))
    if claim.against:
        against = _values(run, claim, claim.against)
    if row.size == 0 or against.size == 0:
        return None
    differences = row - against
    mean, error = float(differences.mean()), 0.0
    if row.size > 1:
        error = float(differences.std(ddof=1) / np.sqrt(row.size))
    estimate = run.evaluations[_cell(run, claim.score, claim.row)][0].metrics.get(claim.column)
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
        return "yes" if abs(cost) <= _COVERAGE_SLACK else "no"
    if cost > _STANDARD_ERRORS * error:
        return "no"
    return "yes" if claim.comparable or cost < -_STANDARD_ERRORS * error else "undecided"


def _cell(run: Run, score: str, method: str) -> Cell:
    return Cell(score, method, run.options.degree if method == CONDITIONAL else None)


def _values(run: Run, claim: Claim, method: str) -> Floats:
    """A number for each seed; empty where there are none."""
    cell, column = _cell(run, claim.score, method), claim.column
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
        cell = _cell(run, score, f"{method} by {name}" if several else method)
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
            evaluations = run.evaluations.get(_cell(run, MAIN_SCORE, name))
            if evaluations:
                title = f"{name}, Conf and Trust" if name == CONDITIONAL else name
                numbers = tuple(summarise(evaluations, column) for column in columns)
                rows.append(Row((run.source.name,), title, numbers))
    title = "What is conditioned on"
    return PaperTable(None, "ablation", title, ("Dataset", "Method"), columns, tuple(rows))
