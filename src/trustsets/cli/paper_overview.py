"""``trustsets paper overview``: one page over the results of several datasets."""

from pathlib import Path
from typing import Annotated

import typer

from trustsets.cli import console
from trustsets.cli.options import argument, option
from trustsets.cli.paper_run import Figures, command_line

__all__ = ["overview"]

Folders = Annotated[
    list[Path], argument("DIR...", "Folders that 'paper run' wrote, one a dataset.")
]
Output = Annotated[Path, option("DIR", "Folder of the page.", "--output", "-o")]


def overview(
    context: typer.Context,
    folders: Folders,
    output: Output = Path("results/overview"),
    figures: Figures = True,
) -> None:
    """Put the results of several datasets on one page, as the paper prints them.

    Tables have one block for each dataset, figures one panel. Everything comes
    from the stages that the runs kept, so it takes seconds; run it from the
    same folder as them.

    Example:

      trustsets paper overview results/imagenet results/places365 -o results/all
    """
    from trustsets.paper.page import write_overview
    from trustsets.paper.results import find_run

    runs = []
    for folder in folders:
        runs.append(find_run(folder))
        console.say(f"{folder}: {len(runs[-1].evaluations)} rows of {runs[-1].source.name}.")
    tables = write_overview(runs, output, figures=figures, command=command_line(context))
    if console.settings.json:
        console.print_json({"output": str(output), "tables": dict(tables)})
        return
    for title, table in tables:
        console.print_lines([title, "", *table.rstrip().splitlines(), ""])
    console.say(f"Written to {output}.")
