"""``trustsets monitor``: has coverage broken, and where."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trustsets.cli import console
from trustsets.cli.options import Groups, LabelColumn, TableOptions, argument, option, resolved

if TYPE_CHECKING:
    from trustsets.monitor import Verdict

__all__ = ["ALARM", "monitor"]

ALARM = 3
"""Exit code when there is an alarm."""
_MOST_ROWS = 12


def monitor(
    context: typer.Context,
    model: Annotated[Path, argument("MODEL", "Saved by 'trustsets calibrate'.")],
    outputs: Annotated[
        Path | None, argument("OUTPUTS", "New outputs, with labels or without.")
    ] = None,
    *,
    state: Annotated[Path, option("FILE", "State of the monitor (.trustsets), made at first.")],
    labels: Annotated[
        Path | None, option("FILE", "Labels that came later: arrays 'id' and 'labels'.")
    ] = None,
    reference: Annotated[
        Path | None, option("FILE", "What MODEL was calibrated on, for a new state.")
    ] = None,
    alpha: Annotated[
        float | None, option("SHARE", "Share of sets that may miss the true class.")
    ] = None,
    false_alarm: Annotated[
        float | None, option("SHARE", "Probability of any alarm if nothing changes.")
    ] = None,
    batch: Annotated[str | None, option("NAME", "Name of the batch. Default: a digest.")] = None,
    in_order: Annotated[
        bool, option(None, "Samples are in the order in which they came.", "--in-order")
    ] = False,
    group: Groups = None,
    label_column: LabelColumn = None,
    table: TableOptions,
) -> None:
    """Watch coverage over time; exit code 3 means that there is an alarm.

    Run it for every new batch, for example from cron. New samples are
    compared with those of the calibration: by their labels, where there are
    any, and by what the model says about them. If nothing changes, the
    probability of any alarm is 5%, however often you look. A batch counts
    once: after an interruption, give the same command again.

    Example:

      trustsets monitor model.trustsets new.parquet --state watch.trustsets
    """
    from dataclasses import fields

    from trustsets.monitor.runs import Step, watch_file

    record = resolved(context)
    # Options that every command has are in the context, too.
    given: dict[str, Any] = {own.name: context.params.get(own.name) for own in fields(Step)}
    given["groups"] = tuple(group or ())
    given["columns"] = table.columns(label_column)
    found, is_new = watch_file(Step(**given))
    if (outputs or labels) and not is_new:
        console.say("This batch was counted before.")
    if console.settings.json:
        console.print_json(record | found.to_dict())
    else:
        _print(found)
    if found.alarm:
        raise typer.Exit(ALARM)


def _print(found: "Verdict") -> None:
    from rich.markup import escape

    headline, *rest = found.summary().splitlines()
    console.print_text(headline, "bold red" if found.alarm else "bold")
    for line in rest:
        console.print_text(line)
    if not found.parts:
        return
    first, *parts = found.parts
    lowest = sorted(parts, key=lambda row: row.upper)[:_MOST_ROWS]
    rows = [
        [
            escape(console.visible(row.part)),
            f"{row.n:,}",
            f"{row.coverage:.3f}",
            f"{row.lower:.3f} to {row.upper:.3f}",
            f"{row.size:.2f}",
        ]
        for row in (first, *lowest)
    ]
    console.print_text("")
    console.print_table(["Part", "Labelled", "Coverage", "Interval", "Size"], rows)
