"""What a run leaves behind: results.json, tables, figures and a page. Imports tables, figures."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets import storage
from trustsets._version import __version__
from trustsets.metrics import render
from trustsets.metrics.plain import to_plain
from trustsets.paper.experiment import Run
from trustsets.paper.figures import CAPTIONS, draw_figures
from trustsets.paper.methods import DEFAULT
from trustsets.paper.printed import DATASETS, printed_source
from trustsets.paper.stages import StageCache, Tally
from trustsets.paper.tables import MARK, Number, PaperTable, correlation_table, paper_tables

__all__ = ["Written", "differences", "time_rows", "write_run"]

PAGE, RESULTS = "README.md", "results.json"
TIME_HEADER = ("Stage", "made", "reused", "seconds", "seconds saved", "processor seconds")
"""Heads of the table that `time_rows` fills."""


@final
@dataclass(frozen=True)
class Written:
    """What was written: the content of results.json, and titles and texts of the tables."""

    results: dict[str, Any]
    tables: list[tuple[str, str]]


def write_run(
    run: Run, folder: str | os.PathLike[str], cache: StageCache, *, figures: bool = True
) -> Written:
    """Write everything into a folder; each file is whole or not there.

    Parameters
    ----------
    run : Run
        What the experiment found.
    folder : path
        Made if it does not exist. It gets ``README.md``, ``results.json``, ``tables/`` and
        ``figures/``.
    cache : StageCache
        Its times go into the page; drawing is timed too.
    figures : bool
        Draw the figures; it takes a few seconds.
    """
    root = Path(folder)
    (root / "tables").mkdir(parents=True, exist_ok=True)
    with cache.timed("tables"):
        tables = paper_tables(run)
    for table in tables:
        _write(root / "tables" / f"{table.slug}.md", table.to_markdown())
        _write(root / "tables" / f"{table.slug}.tex", table.to_latex())
    if run.correlations:
        _write(root / "tables" / "table3.md", correlation_table(run))
    drawn = {}
    if figures:
        with cache.timed("figures"):
            drawn = draw_figures(run, root / "figures")
    results = _plain(run, tables)
    _write(root / RESULTS, json.dumps(results, indent=1, allow_nan=False) + "\n")
    _write(root / PAGE, _page(run, tables, drawn, cache))
    return Written(results, _titled(run, tables))


def _titled(run: Run, tables: list[PaperTable]) -> list[tuple[str, str]]:
    """Titles and texts in the order of the paper, what it does not have last."""
    found = [(table.number or math.inf, _title(table), table.to_markdown()) for table in tables]
    if run.correlations:
        found.append((3, "Table 3: correlation of Trust and Rank", correlation_table(run)))
    return [(title, text) for _, title, text in sorted(found)]


def _title(table: PaperTable) -> str:
    return f"Table {table.number}: {table.title}" if table.number else table.title


def _write(path: Path, text: str) -> None:
    with storage.atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def time_rows(cache: StageCache) -> list[list[str]]:
    """Rows of the table of times: stages, what they are made of, and the sum."""
    rows = []
    for name, tally in cache.tallies.items():
        rows.append(_time_row(name, tally))
        rows += [_time_row(f"- {label}", own) for label, own in cache.details.get(name, {}).items()]
    return [*rows, _time_row("everything", sum(cache.tallies.values(), Tally()))]


def _time_row(name: str, tally: Tally) -> list[str]:
    times = (f"{value:.1f}" for value in (tally.seconds, tally.saved, tally.cpu))
    return [name, f"{tally.made:,}", f"{tally.reused:,}", *times]


def differences(tables: list[PaperTable]) -> list[dict[str, Any]]:
    """Every number that the paper prints too: where, ours, printed, difference, verdict."""
    return [
        {
            "table": table.number,
            "score": row.block,
            "method": row.name,
            "column": column,
            "mean": number.mean,
            "standard_error": _finite(number.standard_error),
            "printed": number.printed.mean,
            "printed_standard_error": number.printed.standard_error,
            "difference": number.difference,
            "differs": number.differs,
        }
        for table in tables
        for row in table.rows
        for column, number in zip(table.columns, row.numbers, strict=True)
        if number.printed is not None
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(run: Run, tables: list[PaperTable]) -> dict[str, Any]:
    """Content of results.json."""
    source = run.source
    return {
        "trustsets": __version__,
        "dataset": source.name,
        "samples": {part: len(own) for part, own in source.parts.items()},
        "training_points": 0 if source.train is None else len(source.train[0]),
        "classes": source.n_classes,
        "groups": list(source.groups),
        "accuracy": _accuracy(run),
        "options": to_plain(run.options),
        "seeds": list(run.seeds),
        "temperatures": run.temperatures,
        "left_out": run.left_out,
        "tables": [_plain_table(table) for table in tables],
        "correlations": to_plain(run.correlations),
        "balls": {
            cell.method: [to_plain(item.balls) for item in own]
            for cell, own in run.evaluations.items()
            if own[0].balls is not None
        },
        "comparison": differences(tables),
    }


def _plain_table(table: PaperTable) -> dict[str, Any]:
    return {
        "number": table.number,
        "title": table.title,
        "rows": [
            {
                table.heads[0].lower(): row.block,
                table.heads[1].lower(): row.name,
                "metrics": {
                    column: _plain_number(number)
                    for column, number in zip(table.columns, row.numbers, strict=True)
                },
            }
            for row in table.rows
        ],
    }


def _plain_number(number: Number) -> dict[str, Any]:
    return {
        "mean": _finite(number.mean),
        "standard_error": _finite(number.standard_error),
        "noise_floor": _finite(number.floor),
        "best": number.best,
    }


def _accuracy(run: Run) -> float:
    outputs = run.source.parts[run.source.test_part]
    return float(np.mean(outputs.predicted_codes == outputs.codes))


def _page(
    run: Run, tables: list[PaperTable], figures: Mapping[str, Path], cache: StageCache
) -> str:
    parts = [f"# {run.source.name}: the paper's tables and figures", _setting(run), _reading(run)]
    if run.left_out:
        parts.append("Left out:\n\n" + "\n".join(f"- {text}" for text in run.left_out))
    parts += [f"## {title}\n\n{text}" for title, text in _titled(run, tables)]
    compared = differences(tables)
    if compared:
        parts.append(_comparison(compared))
    parts += ["## Figures"] if figures else []
    for name, path in figures.items():
        number = name.removeprefix("figure")
        parts.append(
            f"Figure {number}. {CAPTIONS[name]}.\n\n![{CAPTIONS[name]}](figures/{path.name})"
        )
    parts.append("## Time by stage\n\n" + _times(cache))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _setting(run: Run) -> str:
    source, options = run.source, run.options
    sizes = ", ".join(f"{len(own):,} ({part})" for part, own in source.parts.items())
    train = "none" if source.train is None else f"{len(source.train[0]):,}"
    scores, degrees = ", ".join(options.scores), ", ".join(map(str, options.degrees))
    if source.fixed_split:
        split = (
            "The split into calibration and test samples is fixed and the temperature is the exact "
            "maximum-likelihood one, so there is nothing to repeat: one run, and errors in "
            "parentheses are those of sampling the test points."
        )
    else:
        seeds = f"seed {run.seeds[0]}" if len(run.seeds) == 1 else f"seeds {run.seeds[0]} to "
        seeds += "" if len(run.seeds) == 1 else f"{run.seeds[-1]}"
        split = f"Halves stratified by class, {seeds}; standard errors over seeds in parentheses."
    bins = {
        "text": "divided within each confidence bin (the paper's text)",
        "code": "divided by the same edges in all confidence bins (the authors' code)",
    }[options.bins]
    return (
        f"Made by `trustsets paper run {source.name}`, trustsets {__version__}.\n\n"
        f"Samples: {sizes}. Training points for the trust score: {train}. Classes: "
        f"{source.n_classes}. Accuracy: {100 * _accuracy(run):.1f}%. {split}\n\n"
        f"alpha = {options.alpha:g}; scores {scores}; degrees {degrees}, of which "
        f"{options.degree} is in the tables; trust by neighbour {options.neighbour}, "
        f"{'squared' if options.squared else 'plain'} distances; Trust and Rank bins {bins}."
    )


def _reading(run: Run) -> str:
    text = (
        f"All methods but the last are run as the authors ran them: temperature fitted on the "
        f"calibration samples, sets may be empty. *{DEFAULT}* is `ConditionalConformal` as this "
        "package sets it up, with the score in the tail scale and a temperature from tuning "
        "samples; it knows the group columns, if there are any. Its sets are never empty, so that "
        "it covers too much where the classifier is right more often than asked for. Bold: best "
        "or within 0.1 of it. *Perfect* is what noise alone gives with these bins."
    )
    if run.source.name in DATASETS:
        text += (
            f" *Printed* are the numbers of {printed_source()}; {MARK} marks ours where the two "
            "differ by more than two standard errors of the difference and the rounding of print."
        )
    return text


def _comparison(compared: list[dict[str, Any]]) -> str:
    outside = sum(item["differs"] for item in compared)
    rows = [
        [
            str(item["table"]),
            item["score"],
            item["method"],
            render.title(item["column"]),
            f"{item['mean']:.2f}",
            f"{item['printed']:.2f}",
            f"{item['difference']:+.2f}" + (f" {MARK}" if item["differs"] else ""),
        ]
        for item in compared
    ]
    header = ["Table", "Score", "Method", "Column", "ours", "printed", "difference"]
    return (
        f"## Difference from the printed tables\n\n{outside} of {len(compared)} numbers differ by "
        f"more than two standard errors.\n\n{render.markdown_table(header, rows, n_names=4)}"
    )


def _times(cache: StageCache) -> str:
    text = (
        "*Seconds* were spent in this run, *seconds saved* when the results that it reused were "
        "made; *processor seconds* are those of all cores for both."
    )
    return f"{text}\n\n{render.markdown_table(TIME_HEADER, time_rows(cache))}"
