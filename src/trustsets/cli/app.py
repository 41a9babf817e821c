"""The application that holds the commands, and the boundary where errors become one line."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from trustsets._version import __version__
from trustsets.cli import console
from trustsets.cli.calibrate import audit, calibrate
from trustsets.cli.demo import demo
from trustsets.cli.evaluate import evaluate, report
from trustsets.cli.explore import explore
from trustsets.cli.monitor import monitor
from trustsets.cli.options import expanded
from trustsets.cli.paper import paper
from trustsets.cli.plan import plan
from trustsets.cli.predict import predict
from trustsets.cli.verify import verify
from trustsets.cli.warmup import warmup

__all__ = ["app", "run"]

BAD_INPUT = 2
"""Exit code for input that breaks a rule, as for a command that does not parse."""

app = typer.Typer(
    name="trustsets",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trustsets {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Prediction sets that keep their coverage where the classifier is overconfident.

    New here? Run 'trustsets demo'. From arrays on disk to sets:

      trustsets calibrate held_out.npz --train train.npz -o model.trustsets

      trustsets predict model.trustsets new.npz --alpha 0.1 -o sets.csv
    """
    console.reset()


for command in (
    demo, plan, calibrate, predict, evaluate, explore, audit, report, monitor, verify, warmup,
):  # fmt: skip
    app.command()(expanded(command))
app.add_typer(paper)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; input errors end with exit code 2 and one line on stderr."""
    try:
        with console.plain_warnings():
            try:
                app(args=None if arguments is None else list(arguments), prog_name="trustsets")
            finally:
                console.flush()
    except Exception as error:
        if console.settings.debug or not console.is_input_error(error):
            raise
        console.print_error(error)
        sys.exit(BAD_INPUT)
