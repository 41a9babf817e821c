"""``trustsets paper``: the paper's experiments, from images to tables."""

import typer

from trustsets.cli.paper_images import extract, train

__all__ = ["paper"]

paper = typer.Typer(
    name="paper", no_args_is_help=True, help="The paper's experiments, from images to tables."
)
paper.command()(extract)
paper.command()(train)
