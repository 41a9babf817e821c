"""``trustsets plan``: how many samples to calibrate and to test on."""

from functools import partial
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
    from trustsets.files.naming import TableColumns
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
    simulate: Annotated[
        Path | None, option("MODEL", "Calibrate copies of this model on parts of OUTPUTS.")
    ] = None,
    repeats: Annotated[int, option("N", "Calibrations of each size.")] = 20,
    group: Groups = None,
    label_column: LabelColumn = None,
    output: Annotated[
        Path | None, option("FILE", "Draw it: .png, .svg or .pdf.", "--output", "-o")
    ] = None,
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
    from trustsets.errors import InputError
    from trustsets.planning import plan as make

    if simulate is not None and outputs is None:
        raise InputError("--simulate needs OUTPUTS, labelled samples to calibrate copies on.")
    record = resolved(context)
    names = ("functions", "penalty", "gap", "repeats")
    given: dict[str, Any] = {name: context.params[name] for name in names}
    given |= {"n": samples, "groups": _shares(share or ())}
    if outputs is not None:
        given |= _read(outputs, simulate, group or (), table.columns(label_column))
    progress = partial(console.progress, "Calibrations")
    found = make(alpha, within, probability, progress=progress, **given)
    if output is not None:
        _draw(found, output)
    if console.settings.json:
        console.print_json(record | found.to_dict())
    else:
        _print(found, output)


def _print(found: "Plan", output: Path | None) -> None:
    for line in found.summary().splitlines():
        console.print_text(line)
        console.print_text("")
    _print_rows(found)
    if output is not None:
        console.say(f"The plot is in {output}.")


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


def _read(
    outputs: Path, simulate: Path | None, groups: Any, columns: "TableColumns"
) -> dict[str, Any]:
    """Labelled samples, and the model to calibrate copies of."""
    from trustsets.files.calibration import load_labelled
    from trustsets.files.source import open_outputs
    from trustsets.predictors import load

    predictor = None if simulate is None else load(simulate)
    names = [*groups, *(() if predictor is None else predictor.needed_groups)]
    source = open_outputs(outputs, groups=list(dict.fromkeys(names)), columns=columns)
    return {"outputs": load_labelled(source, "a plan"), "predictor": predictor}


def _draw(found: "Plan", path: Path) -> None:
    from trustsets.files.paths import check_output
    from trustsets.plots import save_figure

    check_output(path, (".png", ".svg", ".pdf"))
    figure: Any = found.plot().get_figure(root=True)
    save_figure(figure, path, dpi=150)


def _range(row: "PlanRow") -> str:
    """Coverage with the samples that are present."""
    if row.present is None:
        return ""
    return "full sets" if row.lower == 1.0 else f"{row.lower:.3f} to {row.upper:.3f}"


def _simulated(found: "Plan", part: str) -> list[str]:
    """Coverage of a part in the simulation, if there was one."""
    if found.curve is None:
        return []
    coverage, spread, _ = found.simulated(part)
    return [f"{coverage:.3f} +- {spread:.3f}" if spread >= 0.0 else "none tested"]


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
            f"{row.test_in_all:,}",
            *_simulated(found, row.part),
        ]
        for row in (first, *hardest)
    ]
    header = ["Part", "Needed", "In all", "Present", "Coverage with these", "Test samples in all"]
    if found.curve is not None:
        header.append(f"Simulated with {found.curve.sizes[-1]:,}")
    console.print_table(header, rows)
    if len(rest) > len(hardest):
        console.say(
            f"{len(rest) - len(hardest):,} groups and classes that need fewer are left out."
        )
