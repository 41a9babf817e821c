"""``trustsets paper``: the paper's experiments, from images to tables."""

import typer

from trustsets.cli.options import expanded
from trustsets.cli.paper_images import extract, train
from trustsets.cli.paper_overview import overview
from trustsets.cli.paper_run import run

__all__ = ["paper"]

paper = typer.Typer(
    name="paper", no_args_is_help=True, help="The paper's experiments, from images to tables."
)
for command in (extract, train, run):
    paper.command()(expanded(command))
paper.command()(expanded(overview))
