"""``trustsets demo``: the methods compared on data that every machine has."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trustsets.cli import console
from trustsets.cli.options import Seed, option, resolved

if TYPE_CHECKING:
    from trustsets.demo import TaskResult

__all__ = ["demo"]


TaskName = StrEnum("TaskName", ["digits", "library", "simulated"])


def demo(
    context: typer.Context,
    task: Annotated[
        list[TaskName] | None,
        option(
            "TASK",
            "digits, library (functions of Python's standard library) or simulated; may be "
            "given again. Default: all three.",
        ),
    ] = None,
    output: Annotated[
        Path, option("FOLDER", "Where to write the reports.", "--output", "-o")
    ] = Path("trustsets-demo"),
    details: Annotated[
        bool, option(None, "Print the data and a table of each task too.", "--details")
    ] = False,
    seed: Seed = 0,
) -> None:
    """See what the methods do, offline, in a minute or two.

    Trains a small network on each task, calibrates STANDARD, NAIVE and
    CONDITIONAL prediction sets, compares them where the network is sure and
    wrong, and writes a report to open in a browser.

    Example:

      trustsets demo --task library
    """
    names = list(dict.fromkeys(task or TaskName))
    console.say("About a minute of work; the first run compiles for another half minute.")
    record = resolved(context)
    output.mkdir(parents=True, exist_ok=True)
    results = []
    for place, name in enumerate(names, start=1):
        result = _run(str(name), f"{place}/{len(names)} {name}", output, seed)
        if not console.settings.json:
            _show(result, details, first=place == 1)
        results.append(result)
    if console.settings.json:
        from trustsets.metrics.plain import to_plain

        console.print_json(record | {"tasks": to_plain(results)})
        return
    _close(results)


def _run(name: str, prefix: str, folder: Path, seed: int) -> "TaskResult":
    """One task from data to report, with a bar for each step."""
    with console.progress(f"{prefix}: loading", None):
        from trustsets.demo import TASKS, compare_methods
    with console.progress(f"{prefix}: training the network", None):
        task = TASKS[name](seed)
    return compare_methods(
        task,
        folder / f"{name}.html",
        seed=seed,
        step=lambda text: console.progress(f"{prefix}: {text}", None),
    )


def _show(result: "TaskResult", details: bool, first: bool) -> None:
    from trustsets.demo import story

    if first:
        console.print_text("")
        say = story.introduction if details else story.opening
        console.print_text(say(result.alpha))
        console.print_text("")
    if not details:
        head, more = story.headline(result)
        console.print_text(head, style="bold")
        console.print_text(more)
        return
    console.print_text(result.title, style="bold")
    console.print_text(story.setting(result))
    console.print_table(("", *result.methods), story.rows(result))
    console.print_text(story.finding(result), style="cyan")
    console.print_text("")


def _close(results: "list[TaskResult]") -> None:
    from trustsets.demo import story

    console.print_text("")
    console.print_text(story.take_away(results), style="cyan")
    console.print_text("Reports, to open in a browser (--details prints tables here):")
    console.print_lines([f"  {Path(result.report).resolve()}" for result in results])
