"""Options that commands share, and where their values come from and go to."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from trustsets.cli import console

__all__ = [
    "Alpha",
    "AnyAlpha",
    "Classes",
    "Command",
    "Config",
    "Debug",
    "Groups",
    "Json",
    "LabelledOutputs",
    "Level",
    "Methods",
    "Metrics",
    "Quiet",
    "Ray",
    "Seed",
    "Train",
    "resolved",
]

_PANEL = "Common options"
# They say how a command talks or where it runs, not what it computes.
_NOT_STORED = {"config", "json", "quiet", "debug", "ray"}
_RAY, _LOCAL = "--ray", "local"


class Command(TyperCommand):
    """A command whose option --ray may stand without its value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put in the value that is left out."""
        given: list[str] = []
        for place, word in enumerate(args):
            given.append(word)
            if word == _RAY and (place + 1 == len(args) or args[place + 1].startswith("-")):
                given.append(_LOCAL)
        return super().parse_args(ctx, given)


def _set_json(value: bool) -> bool:
    console.settings.json = value
    return value


def _set_quiet(value: bool) -> bool:
    console.settings.quiet = value
    return value


def _set_debug(value: bool) -> bool:
    console.settings.debug = value
    return value


def _load(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a file as defaults; what is typed on the command line wins."""
    if path is not None:
        from trustsets.files.options import read_options

        command = str(context.info_name)
        known = {parameter.name for parameter in context.command.params if parameter.name}
        context.default_map = read_options(path, command, known - _NOT_STORED)
    return path


Alpha = Annotated[
    float,
    typer.Option(
        "--alpha",
        metavar="SHARE",
        help="Share of sets that may miss the true class, between 0 and 1.",
    ),
]
AnyAlpha = Annotated[
    float | None,
    typer.Option(
        "--alpha",
        metavar="SHARE",
        help="Share of sets that may miss the true class. Default: that of the predictions, "
        "or else 0.1.",
    ),
]
LabelledOutputs = Annotated[
    Path,
    typer.Argument(
        metavar="OUTPUTS",
        help="Labelled outputs: .npz, .parquet, .safetensors or a folder of .npy.",
    ),
]
Methods = Annotated[
    list[str],
    typer.Argument(metavar="METHODS", help="Models or predictions, as FILE or NAME=FILE."),
]
Train = Annotated[
    Path | None,
    typer.Option(
        "--train",
        metavar="FILE",
        help="Features and labels of the training data, for the trust score. Default: the "
        "trust score of the first model that has one.",
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(
        "--classes",
        metavar="FILE",
        help="Class names: a text file, or a file with an array 'classes'.",
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="NAME", help="An array that holds groups; may be given again."),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="Measure only this (conf_trust, conf_rank, class, groups, size_strata, "
        "trust_rank, balls, slab); may be given again. Default: all.",
    ),
]
Level = Annotated[float, typer.Option("--level", metavar="SHARE", help="Level of the intervals.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_load,
        rich_help_panel=_PANEL,
        help="Options from a TOML file, or those that made an earlier output; the latter never "
        "say where to write or what code to run.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        is_eager=True,
        callback=_set_json,
        rich_help_panel=_PANEL,
        help="Print the result as JSON.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        is_eager=True,
        callback=_set_quiet,
        rich_help_panel=_PANEL,
        help="Print nothing but results and errors.",
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        is_eager=True,
        callback=_set_debug,
        rich_help_panel=_PANEL,
        help="Show the traceback of an error.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        _RAY,
        metavar="[ADDRESS]",
        help="Run on the Ray cluster at this address, or on one started here.",
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", min=0, help="Seed of everything that is drawn at random."),
]


def resolved(context: typer.Context) -> dict[str, Any]:
    """Return the command and its options as plain data, to be stored in the output."""
    from trustsets._version import __version__

    options = {
        name: _plain(value)
        for name, value in sorted(context.params.items())
        if name not in _NOT_STORED and value is not None
    }
    return {"trustsets": __version__, "command": str(context.info_name), "options": options}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | int | float | str):
        return value.value if hasattr(value, "value") else value
    return str(value.value if hasattr(value, "value") else value)
