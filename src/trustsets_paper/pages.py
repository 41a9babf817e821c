"""The pages of the experiments: one for a run, and an overview of the runs of several datasets.

A page is Markdown made from ``page.md.jinja``; its tables are files of their own, too, and
``results.json`` has the numbers of a run.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from trustsets import __version__
from trustsets.metrics import markdown_table, to_plain
from trustsets_paper.figures import draw_figures
from trustsets_paper.protocol import Options, Run
from trustsets_paper.sources import PAPER_DATASETS, write_text
from trustsets_paper.tables import (
    AUTHORS,
    MARK,
    PRINTED_SOURCE,
    CorrelationTable,
    PaperTable,
    ablation_table,
    claims_rows,
    correlation_table,
    cross_tables,
    paper_tables,
    share_by_chance,
)

__all__ = ["write_overview", "write_run"]


def write_run(
    run: Run,
    folder: str | os.PathLike[str],
    *,
    figures: bool = True,
    command: str | None = None,
    released: Sequence[dict[str, Any]] = (),
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Write everything into a folder; `released` are rows of `compare_trust`."""
    root = Path(folder)
    tables = paper_tables(run)
    results = plain_results(run, tables) | {"released_trust": released}
    texts = _write_page(
        root,
        [run],
        [*tables, correlation_table([run])],
        title=f"{run.source.name}: the paper's tables and figures",
        command=command,
        captions=draw_figures([run], root / "figures") if figures else {},
        released=released,
        compared=results["comparison"],
        chance=share_by_chance(len(Options().seeds), paired=run.source.fixed_split),
    )
    write_text(root / "results.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    return results, texts


def write_overview(
    runs: Sequence[Run],
    folder: str | os.PathLike[str],
    *,
    figures: bool = True,
    command: str | None = None,
) -> list[tuple[str, str]]:
    """Write a page over several datasets: claims, the ablation, and the paper's tables."""
    root = Path(folder)
    header, rows = claims_rows(runs)
    claims = markdown_table(header, rows, n_names=len(header))
    words = [text.partition(":")[0] for row in rows for text in row[-len(runs) :]]
    texts = _write_page(
        root,
        runs,
        [ablation_table(runs), *cross_tables(runs), correlation_table(runs)],
        title="The paper's claims, tables and figures, dataset by dataset",
        command=command,
        captions=draw_figures(runs, root / "figures") if figures else {},
        claims=claims.rstrip(),
        counts=", ".join(f"{words.count(word)} {word}" for word in ("yes", "no", "undecided")),
    )
    write_text(root / "tables" / "claims.md", claims)
    return [("Claims", claims), *texts]


def _write_page(
    root: Path,
    runs: Sequence[Run],
    tables: Sequence[PaperTable | CorrelationTable],
    **content: Any,
) -> list[tuple[str, str]]:
    """Write the tables, and the page that shows them in the order of the paper."""
    (root / "tables").mkdir(parents=True, exist_ok=True)
    texts = []
    for table in sorted(tables, key=lambda table: table.number or 0):
        if table.rows:
            texts.append((table.heading, table.to_markdown()))
            write_text(root / "tables" / f"{table.slug}.md", texts[-1][1])
    environment = Environment(
        loader=PackageLoader("trustsets_paper", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the page is Markdown
    )
    optional = dict.fromkeys(("claims", "counts", "released", "compared", "chance"))
    page = environment.get_template("page.md.jinja").render(
        optional | content,
        command=content["command"] or "trustsets_paper.pages",
        version=__version__,
        authors=AUTHORS,
        printed_source=PRINTED_SOURCE,
        mark=MARK,
        runs=runs,
        settings=_different_settings(runs),
        others=[run.source.name for run in runs if run.source.name not in PAPER_DATASETS],
        tables=[(heading, text.rstrip()) for heading, text in texts],
    )
    write_text(root / "README.md", page.rstrip() + "\n")
    return texts


def _different_settings(runs: Sequence[Run]) -> list[Run]:
    """A run for each setting; the rank edges may depend on the dataset."""
    settings = {
        (run.options, run.source.fixed_split, run.options.edges_by_hand(run.source.name))
        for run in runs
    }
    return list(runs[:1]) if len(settings) == 1 else list(runs)


# --- numbers


def plain_results(run: Run, tables: Sequence[PaperTable]) -> dict[str, Any]:
    """Content of ``results.json``."""
    source = run.source
    content: dict[str, Any] = to_plain(
        {
            "trustsets": __version__,
            "dataset": source.name,
            "samples": {part: len(outputs) for part, outputs in source.parts.items()},
            "training_points": 0 if source.train is None else len(source.train[0]),
            "classes": source.tested.n_classes,
            "groups": source.groups,
            "accuracy": source.accuracy,
            "options": run.options,
            "seeds": run.seeds,
            "temperatures": run.temperatures,
            "left_out": run.left_out,
            "tables": [_plain_table(table) for table in tables],
            "correlations": run.correlations,
            "balls": {cell.method: curves for cell, curves in run.balls.items()},
            "comparison": differences(tables),
        }
    )
    return content


def differences(tables: Sequence[PaperTable]) -> list[dict[str, Any]]:
    """Every number that the paper prints too: where it is, ours, printed, difference, verdict."""
    return [
        {
            "table": table.number,
            "score": row.block[-1],
            "method": row.name,
            "column": column,
            "mean": number.mean,
            "printed": number.printed.mean,
            "notebook": number.printed.exact_mean,
            "difference": number.difference,
            "differs": number.differs,
        }
        for table in tables
        for row in table.rows
        for column, number in zip(table.columns, row.numbers, strict=True)
        if number.printed is not None
    ]


def _plain_table(table: PaperTable) -> dict[str, Any]:
    heads = [head.lower() for head in table.heads]
    rows = [
        dict(zip(heads, (*row.block, row.name), strict=True))
        | {"metrics": dict(zip(table.columns, row.numbers, strict=True))}
        for row in table.rows
    ]
    return {"number": table.number, "title": table.title, "rows": rows}
