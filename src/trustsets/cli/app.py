"""The application that holds the commands, and the boundary where errors become one line."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trustsets._version import __version__
from trustsets.cli import console
from trustsets.cli.calibrate import audit, calibrate
from trustsets.cli.demo import demo
from trustsets.cli.evaluate import evaluate, report
from trustsets.cli.explore import explore
from trustsets.cli.monitor import monitor
from trustsets.cli.options import argument, expanded
from trustsets.cli.plan import plan
from trustsets.cli.predict import predict

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


NOT_VALID = 1
"""Exit code for a certificate that proves nothing."""


def verify(
    certificate: Annotated[
        Path, argument("CERTIFICATE", "Written by predictor.certificate(...).save: .json or .npz.")
    ],
) -> None:
    """Check that a certificate proves its threshold.

    The check uses nothing but the numbers in the file and NumPy: it is the
    one file trustsets/verify.py, which also runs alone. The exit code is 0
    if the certificate is valid, 1 if it is not, and 2 if it is none.

    Example:

      trustsets verify certificate.json
    """
    from trustsets.errors import InputError
    from trustsets.verify import failing_conditions, read_certificate

    try:
        numbers = read_certificate(str(certificate))
    except ValueError as error:
        raise InputError(str(error)) from error
    found = failing_conditions(numbers)
    claim = f"the threshold {numbers['threshold']:.6g} at alpha {numbers['alpha']:.6g}"
    text = f"not valid: {'; '.join(found)}" if found else f"valid: it proves {claim}"
    if console.settings.json:
        console.print_json({"valid": not found, "failing": found})
    else:
        console.print_lines([text])
    if found:
        raise typer.Exit(NOT_VALID)


def warmup() -> None:
    """Compile the numerical kernels now instead of at the first calibration.

    This is useful when an image is built. Compiled code is kept beside the
    installed package, or in the folder that NUMBA_CACHE_DIR names.

    Example:

      trustsets warmup --quiet
    """
    import numpy as np

    from trustsets.engine import warm_up
    from trustsets.engine.compiled import stop_announcing
    from trustsets.trust import TrustScore

    stop_announcing()
    start, rng = time.perf_counter(), np.random.default_rng(0)
    with console.progress("compiling", total=3) as advance:
        warm_up()
        advance(1)
        for kind in (np.float32, np.float64):
            features, labels = rng.random((60, 3)).astype(kind), np.arange(60) % 3
            TrustScore().fit(features, labels).score(features, labels)
            advance(1)
    seconds = round(time.perf_counter() - start, 1)
    text = f"The numerical kernels are ready (after {seconds} s)."
    console.conclude({"seconds": seconds}, text)


class _PaperCommands(TyperGroup):
    """The commands of `trustsets_paper`, imported when they are asked for."""

    @property
    def commands(self) -> Any:
        """Commands by name."""
        from trustsets_paper.cli import paper as commands

        return typer.main.get_group(commands).commands

    @commands.setter
    def commands(self, value: Any) -> None:
        """Nothing: the group itself has no commands."""


paper = typer.Typer(
    name="paper",
    cls=_PaperCommands,
    no_args_is_help=True,
    help="The paper's experiments, from images to tables.",
)
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
