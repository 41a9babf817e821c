"""``trustsets report``: one HTML page about methods on labelled outputs."""

from pathlib import Path
from typing import Annotated

import typer

from trustsets.cli import console
from trustsets.cli.options import (
    AnyAlpha,
    Classes,
    Config,
    Debug,
    Groups,
    Json,
    LabelledOutputs,
    Level,
    Methods,
    Metrics,
    Quiet,
    Seed,
    Train,
    resolved,
)

__all__ = ["report"]


def report(
    context: typer.Context,
    outputs: LabelledOutputs,
    methods: Methods,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the page.")
    ] = Path("report.html"),
    title: Annotated[
        str, typer.Option(metavar="TEXT", help="Title of the page.")
    ] = "Coverage report",
    alpha: AnyAlpha = None,
    train: Train = None,
    classes: Classes = None,
    group: Groups = None,
    metric: Metrics = None,
    level: Level = 0.95,
    seed: Seed = 0,
    config: Config = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write one self-contained HTML page to click through and to print.

    It takes what 'trustsets evaluate' takes, and shows a verdict in
    words, heatmaps of coverage, the worst classes, groups and samples.

    Example:

      trustsets report test.npz standard.trustsets model.trustsets
    """
    from trustsets.files.evaluation import (
        Measurement,
        name_methods,
        report_files,
        results_record,
    )

    record = resolved(context)
    named = name_methods(methods)
    with console.progress("Evaluations", len(named)) as advance:
        found = report_files(
            outputs,
            named,
            Measurement(alpha, tuple(metric) if metric else None, level, seed=seed),
            output,
            train=train,
            classes=classes,
            groups=group or (),
            title=title,
            record=record,
            advance=advance,
        )
    if console.settings.json:
        console.print_json(results_record(found, record))
        return
    console.say(f"The report is in {output}; open it in a browser.")
