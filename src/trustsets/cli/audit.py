"""``trustsets audit``: coverage of a method without a test set, and where it fails."""

from pathlib import Path
from typing import Annotated

import typer

from trustsets.cli import console
from trustsets.cli.calibrate import Neighbour, RecipeOptions, Train, Tuning
from trustsets.cli.options import (
    Alpha,
    Classes,
    LabelColumn,
    LabelledOutputs,
    TableOptions,
    option,
    resolved,
)

__all__ = ["audit"]


def audit(
    context: typer.Context,
    outputs: LabelledOutputs,
    output: Annotated[Path, option("FILE", "Where to write the page.", "--output", "-o")] = Path(
        "audit.html"
    ),
    alpha: Alpha = 0.1,
    level: Annotated[float, option("SHARE", "Confidence level of the intervals.")] = 0.95,
    by: Annotated[
        list[str] | None,
        option(
            "NAME",
            "What regions may be about (confidence, trust, entropy, margin, sizes, groups, "
            "predicted, classes, components); may be given again. Default: all but entropy, "
            "margin and sizes.",
        ),
    ] = None,
    permutations: Annotated[
        int, option("N", "Permutations behind the noise floor of the excess risk.", min=0)
    ] = 19,
    title: Annotated[str, option("TEXT", "Title of the page.")] = "Audit",
    train: Train = None,
    tuning: Tuning = None,
    classes: Classes = None,
    neighbour: Neighbour = 1,
    label_column: LabelColumn = None,
    *,
    options: RecipeOptions,
    table: TableOptions,
) -> None:
    """Measure coverage without a test set, and search for where it fails.

    OUTPUTS holds labelled samples, as for 'trustsets calibrate'. Each sample is
    left out once: its set comes from all the others. The page names regions
    whose coverage is too low.

    Example:

      trustsets audit held_out.npz --train train.npz -o audit.html
    """
    from trustsets.files.audit import AuditFiles, audit_file

    record = resolved(context)
    given = AuditFiles(
        outputs,
        options.recipe(),
        alpha,
        level,
        train=train,
        tuning=tuning,
        classes=classes,
        neighbour=neighbour,
        by=tuple(by) if by else None,
        permutations=permutations,
        columns=table.columns(label_column),
    )
    evaluation, regions = audit_file(given, output, title=title, record=record)
    if console.settings.json:
        found = {"evaluation": evaluation.to_dict(), "regions": regions.to_dict()}
        console.print_json(record | found)
        return
    for line in regions.summary().split("\n"):
        console.print_text(line)
    console.say(f"No test set was used. The audit is in {output}; open it in a browser.")
