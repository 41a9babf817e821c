"""``trustsets report``: one HTML page about methods on labelled outputs."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trustsets.cli import console
from trustsets.cli.options import ComparisonOptions, LabelColumn, TableOptions, option, resolved

__all__ = ["report"]


def report(
    context: typer.Context,
    output: Annotated[Path, option("FILE", "Where to write the page.", "--output", "-o")] = Path(
        "report.html"
    ),
    title: Annotated[str, option("TEXT", "Title of the page.")] = "Coverage report",
    regions: Annotated[
        bool,
        option(None, "Search for under-covered regions; takes seconds a method.", "--regions"),
    ] = False,
    label_column: LabelColumn = None,
    *,
    options: ComparisonOptions,
    table: TableOptions,
) -> None:
    """Write one self-contained HTML page to click through and to print.

    It takes what 'trustsets evaluate' takes, and says whether marginal coverage
    reaches its target, in which classes and groups it does not, and what to do.
    Then come heatmaps of coverage, and the worst classes, groups and samples.

    Example:

      trustsets report test.npz standard.trustsets model.trustsets
    """
    from trustsets.files.evaluation import report_files, results_record

    record = resolved(context)
    bar = partial(console.progress, "Report")
    found = report_files(
        options.comparison(table.columns(label_column)),
        output,
        title=title,
        regions=regions,
        record=record,
        progress=bar,
    )
    text = f"The report is in {output}; open it in a browser."
    console.conclude(results_record(found, record), text)
