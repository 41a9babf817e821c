"""What a run leaves behind: results.json, tables, figures and a page. Imports tables, figures."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets import storage
from trustsets._version import __version__
from trustsets.metrics import render
from trustsets.metrics.plain import to_plain
from trustsets.paper.experiment import Run
from trustsets.paper.figures import caption, draw_figures
from trustsets.paper.methods import ATYPICALITY, CLUSTERED, DEFAULT, OWN_GROUPWISE, PLUGIN
from trustsets.paper.printed import DATASETS, printed_source
from trustsets.paper.stages import StageCache, Tally
from trustsets.paper.tables import MARK, Number, PaperTable, correlation_table, paper_tables

__all__ = [
    "Written",
    "differences",
    "figure_text",
    "reading",
    "setting",
    "time_rows",
    "write_run",
    "write_text",
]

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
    run: Run,
    folder: str | os.PathLike[str],
    cache: StageCache,
    *,
    figures: bool = True,
    command: str | None = None,
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
    command : str, optional
        What made the run, for the page.
    """
    root = Path(folder)
    (root / "tables").mkdir(parents=True, exist_ok=True)
    with cache.timed("tables"):
        tables = paper_tables(run)
    for table in tables:
        write_text(root / "tables" / f"{table.slug}.md", table.to_markdown())
        write_text(root / "tables" / f"{table.slug}.tex", table.to_latex())
    if run.correlations:
        write_text(root / "tables" / "table3.md", correlation_table([run]).to_markdown())
        write_text(root / "tables" / "table3.tex", correlation_table([run]).to_latex())
    drawn = {}
    if figures:
        with cache.timed("figures"):
            drawn = draw_figures(run, root / "figures")
    results = _plain(run, tables)
    write_text(root / RESULTS, json.dumps(results, indent=1, allow_nan=False) + "\n")
    write_text(root / PAGE, _page(run, tables, drawn, cache, command))
    return Written(results, _titled(run, tables))


def _titled(run: Run, tables: list[PaperTable]) -> list[tuple[str, str]]:
    """Titles and texts in the order of the paper, what it does not have last."""
    found = [(table.number or math.inf, _title(table), table.to_markdown()) for table in tables]
    if run.correlations:
        text = correlation_table([run]).to_markdown()
        found.append((3, "Table 3: correlation of Trust and Rank", text))
    return [(title, text) for _, title, text in sorted(found)]


def _title(table: PaperTable) -> str:
    return f"Table {table.number}: {table.title}" if table.number else table.title


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
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
            "score": row.block[-1],
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
                **{head.lower(): name for head, name in zip(table.heads, row.names, strict=True)},
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
    run: Run,
    tables: list[PaperTable],
    figures: Mapping[str, Path],
    cache: StageCache,
    command: str | None,
) -> str:
    made = "`write_run` of `trustsets.paper.page`" if command is None else f"`{command}`"
    parts = [
        f"# {run.source.name}: the paper's tables and figures",
        f"Made by {made}, trustsets {__version__}.",
        setting(run),
        reading([run]),
    ]
    if run.left_out:
        parts.append("Left out:\n\n" + "\n".join(f"- {text}" for text in run.left_out))
    parts += [f"## {title}\n\n{text}" for title, text in _titled(run, tables)]
    compared = differences(tables)
    if compared:
        parts.append(_comparison(compared))
    parts += ["## Figures"] if figures else []
    parts += [figure_text(name, caption(name, run)) for name in figures]
    parts.append("## Time by stage\n\n" + _times(cache))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def figure_text(name: str, text: str) -> str:
    """A figure with its number and caption."""
    return f"Figure {name.removeprefix('figure')}. {text}.\n\n![{text}](figures/{name}.png)"


def setting(run: Run) -> str:
    """Samples and options of a run in words."""
    source, options = run.source, run.options
    sizes = ", ".join(f"{len(own):,} ({part})" for part, own in source.parts.items())
    train = "none" if source.train is None else f"{len(source.train[0]):,}"
    scores, degrees = ", ".join(options.scores), ", ".join(map(str, options.degrees))
    return (
        f"Samples: {sizes}. Training points for the trust score: {train}. Classes: "
        f"{source.n_classes}. Accuracy: {100 * _accuracy(run):.1f}%. {_split(run)}\n\n"
        f"alpha = {options.alpha:g}; scores {scores}; degrees {degrees}, of which "
        f"{options.degree} is in the tables. {_trust(run)} {_bins(run)} {_balls(run)}"
    )


def _split(run: Run) -> str:
    if run.source.fixed_split:
        return (
            "The split into calibration and test samples is fixed and the temperature is the exact "
            "maximum-likelihood one, so there is nothing to repeat: one run, and errors in "
            "parentheses are those of sampling the test points."
        )
    first, last = run.seeds[0], run.seeds[-1]
    seeds = f"seed {first}" if len(run.seeds) == 1 else f"seeds {first} to {last}"
    return (
        f"Halves stratified by class, {seeds}; in parentheses standard errors over seeds (plain "
        "standard deviation over the root of their number)."
    )


def _trust(run: Run) -> str:
    options = run.options
    rows = "features divided by their L2 norm" if options.normalize else "features as they are"
    distances = "squared" if options.squared else "plain"
    text = f"Trust: {rows}, neighbour {options.neighbour} of each class, {distances} distances"
    kinds = {(True, 2, True): "the authors' code", (False, 1, False): "the paper's text"}
    known = kinds.get((options.normalize, options.neighbour, options.squared))
    return f"{text} ({known})." if known else f"{text}."


def _bins(run: Run) -> str:
    options = run.options
    text = {
        "text": "divided within each confidence bin (the paper's text)",
        "code": "divided by the same quantiles in all confidence bins (the authors' code)",
    }[options.bins]
    edges = options.edges_by_hand(run.source.name)
    if edges is None:
        return f"Trust and Rank bins are {text}."
    listed = ", ".join(f"{edge:g}" for edge in edges)
    return f"Trust bins are {text}; Rank bins have the edges {listed}."


def _balls(run: Run) -> str:
    return {
        "growing": "Balls grow until they hold 10 other samples (the authors' code).",
        "fixed": "Balls have one radius, around samples with 10 neighbours (the package's own).",
    }[run.options.balls]


def reading(runs: Sequence[Run]) -> str:
    """How to read the tables, and what was run in them."""
    text = (
        "The paper's methods are run as the authors ran them: temperature fitted on the "
        "calibration samples, Conf of the unscaled softmax, sets that may be empty; NAIVE and "
        "GROUPWISE with plain quantiles and nothing where calibration has no samples. Two things "
        "are this package's: the temperature is the exact maximum-likelihood one, where the "
        "authors took gradient steps, and the components of PCA FEATURES come from the "
        "calibration samples, which the paper does not say. "
        f"*{DEFAULT}* is `ConditionalConformal` as this package sets it up, with the score in the "
        "tail scale; it knows the group columns, if there are any. Its sets are never empty, so "
        "that it covers too much where the classifier is right more often than asked for."
    )
    if any(run.source.groups for run in runs):
        text += f" *{OWN_GROUPWISE}* is GROUPWISE with the finite-sample quantile of each group."
    if any(run.options.related for run in runs):
        text += (
            f" Of related work, {PLUGIN} shares everything with CONDITIONAL but its fit; "
            f"{CLUSTERED} and {ATYPICALITY} are those of this package, at the same temperature."
        )
    text += " Bold: best or within 0.1 of it. *Perfect* is what noise alone gives with these bins."
    if any(run.source.name in DATASETS for run in runs):
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
