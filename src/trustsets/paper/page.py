"""The pages of the experiments: one for a run, and an overview of the runs of several datasets."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustsets._version import __version__
from trustsets.errors import InputError
from trustsets.metrics import render
from trustsets.paper.experiment import Run
from trustsets.paper.figures import draw_figures
from trustsets.paper.layout import write_json, write_text
from trustsets.paper.results import Made, plain_results
from trustsets.paper.stages import StageCache, Tally
from trustsets.paper.tables import (
    MARK,
    CorrelationTable,
    PaperTable,
    correlation_table,
    cross_tables,
    paper_tables,
)
from trustsets.paper.words import reading, samples, setting

__all__ = ["time_rows", "write_overview", "write_run"]

TIME_HEADER = ("Stage", "made", "reused", "seconds", "seconds saved", "processor seconds")
"""Heads of the table that `time_rows` fills."""


def write_run(
    run: Run,
    folder: str | os.PathLike[str],
    cache: StageCache,
    *,
    figures: bool = True,
    made: Made | None = None,
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Write everything into a folder; each file is written whole or not at all.

    Parameters
    ----------
    folder : path
        Made if it does not exist. It gets ``README.md``, ``results.json``, ``tables/`` and
        ``figures/``.
    cache : StageCache
        Its times go into the page; drawing is timed too.
    figures : bool
        Draw the figures; it takes a few seconds.
    made : Made, optional
        Where the run came from, for the page; stored in ``run.json``, for `find_run`.

    Returns
    -------
    dict, list of (str, str)
        Content of ``results.json``, and headings and texts of the tables.
    """
    root = Path(folder)
    with cache.timed("tables"):
        tables = paper_tables(run)
    captions = {}
    if figures:
        with cache.timed("figures"):
            captions = draw_figures([run], root / "figures")
    results = plain_results(run, tables)
    left_out = "Left out:\n\n" + "\n".join(f"- {text}" for text in run.left_out)
    texts = _write_page(
        root,
        [
            f"# {run.source.name}: the paper's tables and figures",
            _made_by(None if made is None else made.command),
            f"{samples(run)} {setting(run)}",
            reading([run]),
            left_out if run.left_out else "",
        ],
        [*tables, correlation_table([run])],
        captions,
        [_comparison(results["comparison"]), _times(cache)],
    )
    write_json(root / "results.json", results)
    if made is not None:
        made.write(run.options, root)
    return results, texts


def write_overview(
    runs: Sequence[Run],
    folder: str | os.PathLike[str],
    *,
    figures: bool = True,
    command: str | None = None,
) -> list[tuple[str, str]]:
    """Write a page over several datasets, as the paper prints them.

    Parameters
    ----------
    runs : sequence of Run
        One for each dataset, in the order of the page.
    folder : path
        Made if it does not exist. It gets ``README.md``, ``tables/`` and ``figures/``.
    command : str, optional
        The command that makes the page.

    Returns
    -------
    list of (str, str)
        Headings and texts of the tables.
    """
    names = [run.source.name for run in runs]
    if not runs or len(set(names)) < len(names):
        raise InputError(f"an overview needs runs of different datasets; got {names}.")
    root = Path(folder)
    return _write_page(
        root,
        [
            "# The paper's tables and figures, dataset by dataset",
            _made_by(command),
            *_settings(runs),
            reading(runs),
        ],
        [*cross_tables(runs), correlation_table(runs)],
        draw_figures(runs, root / "figures") if figures else {},
    )


def _write_page(
    root: Path,
    introduction: Sequence[str],
    tables: Sequence[PaperTable | CorrelationTable],
    captions: Mapping[str, str],
    closing: Sequence[str] = (),
) -> list[tuple[str, str]]:
    """Write the tables, and the page that shows them in the order of the paper."""
    (root / "tables").mkdir(parents=True, exist_ok=True)
    texts = []
    for table in sorted(tables, key=lambda own: (own.number or math.inf, own.heading)):
        if table.rows:
            texts.append((table.heading, table.to_markdown()))
            write_text(root / "tables" / f"{table.slug}.md", texts[-1][1])
            write_text(root / "tables" / f"{table.slug}.tex", table.to_latex())
    parts = [*introduction, *(f"## {heading}\n\n{text}" for heading, text in texts)]
    parts += ["## Figures"] if captions else []
    parts += [
        f"Figure {name.removeprefix('figure')}. {text}.\n\n![{text}](figures/{name}.png)"
        for name, text in captions.items()
    ]
    whole = "\n\n".join(part.rstrip() for part in [*parts, *closing] if part)
    write_text(root / "README.md", whole + "\n")
    return texts


def _made_by(command: str | None) -> str:
    return f"Made by `{command or 'trustsets.paper.page'}`, trustsets {__version__}."


def _settings(runs: Sequence[Run]) -> list[str]:
    """Samples of each dataset, and options: once, where they are the same."""
    data = {run.source.name: samples(run) for run in runs}
    options = {run.source.name: setting(run) for run in runs}
    if len(set(options.values())) > 1:
        return [f"**{name}.** {text} {options[name]}" for name, text in data.items()]
    listed = "\n".join(f"- **{name}.** {text}" for name, text in data.items())
    return [listed, next(iter(options.values()))]


def _comparison(compared: list[dict[str, Any]]) -> str:
    if not compared:
        return ""
    header = ["Table", "Score", "Method", "Column", "ours", "printed", "difference"]
    rows = [
        [
            *(str(item["table"]), item["score"], item["method"], render.title(item["column"])),
            *(f"{item['mean']:.2f}", f"{item['printed']:.2f}"),
            f"{item['difference']:+.2f}" + f" {MARK}" * item["differs"],
        ]
        for item in compared
    ]
    outside = sum(item["differs"] for item in compared)
    return (
        f"## Difference from the printed tables\n\n{outside} of {len(compared)} numbers differ by "
        f"more than two standard errors.\n\n{render.markdown_table(header, rows, n_names=4)}"
    )


def _times(cache: StageCache) -> str:
    return (
        "## Time by stage\n\n*Seconds* were spent in this run. *Seconds saved* were spent when the "
        "results that it reused were made. *Processor seconds* are those of all cores for both."
        f"\n\n{render.markdown_table(TIME_HEADER, time_rows(cache))}"
    )


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
