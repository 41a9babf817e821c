"""``trustsets plan``: how many samples to calibrate and to test on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trustsets.cli import console
from trustsets.cli.options import (
    Alpha,
    Groups,
    LabelColumn,
    TableOptions,
    argument,
    option,
    resolved,
)

if TYPE_CHECKING:
    from trustsets.planning import Plan, PlanRow

__all__ = ["plan"]

# Groups and classes that the table shows, those that need the most samples.
_MOST_ROWS = 12


def plan(
    context: typer.Context,
    outputs: Annotated[
        Path | None,
        argument("OUTPUTS", "Labelled outputs, which give the shares of groups and classes."),
    ] = None,
    alpha: Alpha = 0.1,
    within: Annotated[float, option("SHARE", "Tolerance of the coverage.")] = 0.02,
    probability: Annotated[float, option("SHARE", "How likely it should be kept.")] = 0.95,
    samples: Annotated[
        int | None, option("N", "Calibration samples there are. Default: those of OUTPUTS.")
    ] = None,
    share: Annotated[
        list[str] | None, option("NAME=SHARE", "A group and its share; may be given again.")
    ] = None,
    functions: Annotated[int, option("N", "Basis functions of the method 'conditional'.")] = 1,
    penalty: Annotated[float, option("N", "Penalty of groups or classes among them.")] = 0.0,
    gap: Annotated[
        float | None, option("SHARE", "Lack of coverage to see in an evaluation.")
    ] = None,
    group: Groups = None,
    label_column: LabelColumn = None,
    *,
    table: TableOptions,
) -> None:
    """Say how many samples to calibrate on, and to test on.

    The coverage of a model depends on the calibration samples that happened
    to be drawn. Its law is known exactly, and gives the size from which on
    coverage is within a tolerance, for all samples and each group or class.

    Example:

      trustsets plan --alpha 0.1 --within 0.02 --probability 0.95
    """
    from trustsets.planning import plan as make

    record = resolved(context)
    names = ("functions", "penalty", "gap")
    given: dict[str, Any] = {name: context.params[name] for name in names}
    given |= {"n": samples, "groups": _shares(share or ())}
    if outputs is not None:
        from trustsets.files import open_outputs

        source = open_outputs(outputs, groups=group or (), columns=table.columns(label_column))
        given["outputs"] = source.read_labelled("a plan")
    found = make(alpha, within, probability, **given)
    if console.settings.json:
        console.print_json(record | found.to_dict())
    else:
        _print(found)


def _print(found: "Plan") -> None:
    for line in found.summary().splitlines():
        console.print_text(line)
        console.print_text("")
    _print_rows(found)


def _shares(items: Any) -> dict[str, float] | None:
    """Groups by name from ``NAME=SHARE``."""
    from trustsets.errors import InputError

    found: dict[str, float] = {}
    for item in items:
        name, given, text = item.rpartition("=")
        try:
            found[name] = float(text)
        except ValueError:
            given = ""
        if not given or not name:
            raise InputError(f"--share must be NAME=SHARE, such as north=0.2; got {item!r}.")
    return found or None


def _range(row: "PlanRow") -> str:
    """Coverage with the samples that are present."""
    if row.present is None:
        return ""
    return "full sets" if row.lower == 1.0 else f"{row.lower:.3f} to {row.upper:.3f}"


def _print_rows(found: "Plan") -> None:
    from rich.markup import escape

    first, *rest = found.rows
    hardest = sorted(rest, key=lambda row: -row.in_all)[:_MOST_ROWS]
    rows = [
        [
            escape(console.visible(row.part)),
            f"{row.needed:,}",
            f"{row.in_all:,}",
            "" if row.present is None else f"{row.present:,}",
            _range(row),
            "none is enough" if row.test_in_all is None else f"{row.test_in_all:,}",
        ]
        for row in (first, *hardest)
    ]
    header = ["Part", "Needed", "In all", "Present", "Coverage with these", "Test samples in all"]
    console.print_table(header, rows)
    if len(rest) > len(hardest):
        console.say(
            f"{len(rest) - len(hardest):,} groups and classes that need fewer are left out."
        )
