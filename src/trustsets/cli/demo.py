"""``trustsets demo``: split conformal and conditional sets on data that ship with the package."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trustsets.cli import console
from trustsets.cli.options import Seed, option, resolved

if TYPE_CHECKING:
    from trustsets.demo import Comparison

__all__ = ["TaskName", "demo"]

TaskName = StrEnum("TaskName", ["real", "digits"])


def demo(
    context: typer.Context,
    task: Annotated[
        TaskName,
        option(
            "TASK",
            "real (outputs of a deep network, which ship with the package) or digits (a small "
            "network, trained now).",
        ),
    ] = TaskName.real,
    output: Annotated[Path, option("FOLDER", "Where to write the report.", "--output", "-o")] = (
        Path("trustsets-demo")
    ),
    seed: Seed = 0,
) -> None:
    """See what the sets do, offline, in about 20 seconds.

    Compares split conformal sets with conditional sets of the same mean size,
    by confidence and trust, shows sets of some samples, and writes a report to
    open in a browser.

    Example:

      trustsets demo --task digits
    """
    console.say("About 20 seconds of work; the first run compiles for some more.")
    record = resolved(context)
    output.mkdir(parents=True, exist_ok=True)
    with console.progress("loading", None):
        from trustsets.demo import compare_methods, load

        data = load(str(task), seed)
    result = compare_methods(
        data, output / f"{task}.html", step=lambda text: console.progress(text, None)
    )
    if console.settings.json:
        from trustsets.metrics import to_plain

        console.print_json(record | {"result": to_plain(result)})
        return
    _show(result)


def _show(result: "Comparison") -> None:
    names = list(result.methods)
    console.print_text(result.title, style="bold")
    console.print_text(result.setting)
    console.print_text("")
    console.print_table(
        ("", "alpha", "coverage (95%)", "classes per set"),
        [
            (name, f"{own.alpha:.3f}", str(own), f"{own.size:.2f}")
            for name, own in result.methods.items()
        ],
    )
    console.print_text("Coverage by confidence and trust", style="bold")
    console.print_text(
        "Trust is the distance to the nearest training sample of another class, divided by that to "
        "the nearest one of the predicted class."
    )
    console.print_table(
        ("confidence", "trust", "n", "right", *names),
        [
            (*cell.words, str(cell.n), f"{cell.accuracy:.0%}", *map(str, cell.methods.values()))
            for cell in result.cells
        ],
    )
    console.print_text(result.finding, style="cyan")
    console.print_text("")
    console.print_text("Some sets, at the same mean size", style="bold")
    for lines in result.examples:
        console.print_text(lines[0])
        console.print_lines(lines[1:])
    console.print_text("")
    console.print_lines(["Report, to open in a browser:", f"  {Path(result.report).resolve()}"])
