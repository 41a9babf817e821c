"""The application that holds the commands."""

import typer

from trustsets.cli.paper import paper

__all__ = ["app", "main"]

app = typer.Typer(name="trustsets", no_args_is_help=True)
app.add_typer(paper)


@app.callback()
def root() -> None:
    """Prediction sets that keep their coverage where the classifier is overconfident."""


def main() -> None:
    """Run the command line."""
    app()
