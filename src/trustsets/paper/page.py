"""What a run leaves behind: results.json, tables, figures and a page. Imports tables, figures."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from trustsets._common import storage
from trustsets._version import __version__
from trustsets.errors import InputError
from trustsets.metrics import render
from trustsets.metrics.plain import to_plain
from trustsets.paper.experiment import Run
from trustsets.paper.figures import caption, draw_figures
from trustsets.paper.options import Options
from trustsets.paper.stages import StageCache, Tally
from trustsets.paper.tables import MARK, Number, PaperTable, correlation_table, paper_tables
from trustsets.paper.words import accuracy, figure_text, reading, samples, setting

__all__ = [
    "Made",
    "Written",
    "differences",
    "read_made",
    "time_rows",
    "write_run",
    "write_text",
]

PAGE, RESULTS, MADE = "README.md", "results.json", "run.json"
TIME_HEADER = ("Stage", "made", "reused", "seconds", "seconds saved", "processor seconds")
"""Heads of the table that `time_rows` fills."""


@final
@dataclass(frozen=True)
class Written:
    """What was written: the content of results.json, and titles and texts of the tables."""

    results: dict[str, Any]
    tables: list[tuple[str, str]]


@final
@dataclass(frozen=True)
class Made:
    """Where a run came from: enough to find it again in its cache.

    Attributes
    ----------
    command : str
        What was typed, with every option that is not at its default.
    dataset, data, train, groups
        As for `read_source`.
    cache : str
        Folder of the stages.
    """

    command: str
    dataset: str
    data: str
    train: str | None
    groups: tuple[str, ...]
    cache: str


def read_made(folder: str | os.PathLike[str]) -> tuple[Made, Options]:
    """Where the run in a folder came from, and with which options."""
    path = Path(folder) / MADE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path}: there is no such file; name folders that trustsets paper run wrote."
        ) from None
    options = {name: _tupled(value) for name, value in content.pop("options").items()}
    return Made(**{name: _tupled(value) for name, value in content.items()}), Options(**options)


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def write_run(
    run: Run,
    folder: str | os.PathLike[str],
    cache: StageCache,
    *,
    figures: bool = True,
    made: Made | None = None,
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
    made : Made, optional
        Where the run came from, for the page; kept in ``run.json``, for `read_made`.
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
    write_text(root / PAGE, _page(run, tables, drawn, cache, made))
    if made is not None:
        whole = to_plain(made) | {"options": to_plain(run.options)}
        write_text(root / MADE, json.dumps(whole, indent=1) + "\n")
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
        "accuracy": accuracy(run),
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


def _page(
    run: Run,
    tables: list[PaperTable],
    figures: Mapping[str, Path],
    cache: StageCache,
    made: Made | None,
) -> str:
    how = "`write_run` of `trustsets.paper.page`" if made is None else f"`{made.command}`"
    parts = [
        f"# {run.source.name}: the paper's tables and figures",
        f"Made by {how}, trustsets {__version__}.",
        f"{samples(run)} {setting(run)}",
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
