"""``trustsets evaluate``: where coverage fails, with intervals and noise floors."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trustsets.cli import console
from trustsets.cli.options import ComparisonOptions, LabelColumn, TableOptions, option, resolved

if TYPE_CHECKING:
    from trustsets.metrics import Entry, Evaluation

__all__ = ["evaluate", "print_evaluations"]


def evaluate(
    context: typer.Context,
    output: Annotated[
        Path | None, option("FILE", "Write all numbers as JSON.", "--output", "-o")
    ] = None,
    label_column: LabelColumn = None,
    *,
    options: ComparisonOptions,
    table: TableOptions,
) -> None:
    """Measure where sets keep their coverage and where they fail.

    METHODS are models (.trustsets) or what 'trustsets predict' wrote for the
    same OUTPUTS, as FILE or NAME=FILE. Every number has an interval. The noise
    floor of a gap is what a perfect method would show on so few samples.

    Example:

      trustsets evaluate test.npz standard.trustsets ours=model.trustsets
    """
    from trustsets.files.evaluation import evaluate_files, results_record

    record = resolved(context)
    bar = partial(console.progress, "Evaluations")
    comparison = options.comparison(table.columns(label_column))
    found = evaluate_files(comparison, output, record=record, progress=bar)
    if console.settings.json:
        console.print_json(results_record(found, record))
        return
    print_evaluations(found)
    for name, item in found.items():
        if item.advice:
            console.say(f"{name}: {item.advice}")
    if output is not None:
        console.say(f"All numbers are in {output}.")


def print_evaluations(found: "dict[str, Evaluation]") -> None:
    """Print one table: every metric of one method, or the main ones of several."""
    from rich.markup import escape

    from trustsets.metrics import compare
    from trustsets.metrics.render import title

    first = next(iter(found.values()))
    table = compare(found, columns=list(first.metrics) if len(found) == 1 else None)
    rows = []
    for place, column in enumerate(table.columns):
        for (name,), entries in zip(table.keys, table.entries, strict=True):
            names = [escape(console.visible(text)) for text in (title(column), name)]
            rows.append([*names, *_cells(entries[place], len(found) > 1)])
    header = ["Metric", "Method", "Value", f"{100 * first.level:g}% interval", "Noise floor"]
    console.print_table(
        header,
        rows,
        title=f"{first.n:,} samples, {first.n_classes:,} classes, alpha = {first.alpha:g}",
        n_names=2,
    )


def _cells(entry: "Entry", several: bool) -> list[str]:
    value = _number(entry.mean)
    interval = f"{_number(entry.lower)} to {_number(entry.upper)}"
    return [
        f"[bold green]{value}[/]" if several and entry.best else value,
        "" if math.isnan(entry.lower) else interval,
        _number(entry.floor),
    ]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"
