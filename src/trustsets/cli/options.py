"""Options that commands share."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from trustsets.cli import console

if TYPE_CHECKING:
    from trustsets.files import TableColumns

__all__ = [
    "DATA",
    "Alpha",
    "Classes",
    "Groups",
    "LabelColumn",
    "LabelledOutputs",
    "Seed",
    "TableOptions",
    "argument",
    "expanded",
    "option",
    "resolved",
]

DATA = "Data"
"""Panel of the options that name files and arrays."""
# They say how a command talks, not what it computes.
NOT_STORED = {"json", "quiet", "debug"}


def argument(metavar: str, text: str) -> Any:
    """An argument of a command, which has no name to type, with its help text."""
    return typer.Argument(metavar=metavar, help=text)


def option(
    metavar: str | None, text: str, *names: str, panel: str | None = None, **more: Any
) -> Any:
    """An option of a command with its help text; `metavar` stands for its value, None for a flag.

    `names` are such as ``"--output", "-o"``; by default the name of the parameter makes one.
    """
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


def _setting(text: str, *names: str) -> Any:
    """A flag whose value is kept in the settings of the console."""

    def keep(value: bool) -> bool:
        setattr(console.settings, names[0].removeprefix("--"), value)
        return value

    return option(None, text, *names, is_eager=True, callback=keep, panel="Common options")


_ALPHA = "Share of sets that may miss the true class, between 0 and 1."
_FILES = "Labelled outputs: .npz, .parquet, .csv, .safetensors, a folder of .npy."
_CLASSES = "Class names: a text file, or a file with an array 'classes'."
_GROUPS = "Arrays or columns that hold groups, such as site,sex. Missing values are a group."
_PROBABILITIES = (
    "Columns of probabilities in a table, such as 'prob_*' or cat,dog; * stands for the class. "
    "Default: those of MODEL, prob_*, or columns that are named like the classes."
)

Alpha = Annotated[float, option("SHARE", _ALPHA, "--alpha")]
LabelledOutputs = Annotated[Path, argument("OUTPUTS", _FILES)]
Classes = Annotated[Path | None, option("FILE", _CLASSES)]
Groups = Annotated[list[str] | None, option("NAMES", _GROUPS, "--group")]
LabelColumn = Annotated[str | None, option("NAME", "Column of a table with the true classes.")]
Seed = Annotated[int, option("N", "Seed of everything that is drawn at random.", "--seed", min=0)]


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Options that say which columns of a table hold what: one number a column."""

    probability_columns: Annotated[list[str] | None, option("NAMES", _PROBABILITIES)] = None
    logit_columns: Annotated[list[str] | None, option("NAMES", "The same for logits.")] = None
    feature_columns: Annotated[list[str] | None, option("NAMES", "The same for features.")] = None

    def columns(self, label: str | None = None) -> "TableColumns":
        """What `trustsets.files` takes."""
        from trustsets.files import TableColumns

        return TableColumns(
            probabilities=tuple(self.probability_columns or ()),
            logits=tuple(self.logit_columns or ()),
            features=tuple(self.feature_columns or ()),
            label=label,
        )


@dataclasses.dataclass(frozen=True)
class _Common:
    """How every command talks; the callbacks keep the values."""

    json: Annotated[bool, _setting("Print the result as JSON.", "--json")] = False
    quiet: Annotated[bool, _setting("Print results and errors only.", "--quiet", "-q")] = False
    debug: Annotated[bool, _setting("Show the traceback of an error.", "--debug")] = False


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """A command with one parameter for each option, from a function that takes groups of them.

    A parameter of `function` whose type is a dataclass becomes one option for each field. The
    options that every command has are added. All are annotated as Typer wants it.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in groups:
            parameters += _fields(groups[parameter.name])
        else:
            parameters.append(_keyword(parameter.name, hints[parameter.name], parameter.default))
    common = _fields(_Common)

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for parameter in common:
            values.pop(parameter.name)
        for name, group in groups.items():
            chosen = {field.name: values.pop(field.name) for field in _fields(group)}
            values[name] = group(**chosen)  # type: ignore[operator]
        function(**values)

    whole = inspect.Signature([*parameters, *common])
    run.__signature__ = whole  # type: ignore[attr-defined]
    run.__annotations__ = {name: own.annotation for name, own in whole.parameters.items()}
    return run


def _fields(group: Any) -> list[inspect.Parameter]:
    hints, empty = get_type_hints(group, include_extras=True), inspect.Parameter.empty
    defaults = {
        field.name: empty if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(group)
    }
    return [_keyword(name, hints[name], default) for name, default in defaults.items()]


def _keyword(name: str, hint: Any, default: Any) -> inspect.Parameter:
    # Only keywords may have a default before one that has none.
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def resolved(context: typer.Context) -> dict[str, Any]:
    """Return the command and its options as plain data, to be stored in the output."""
    from trustsets._version import __version__

    options = {
        name: _plain(value)
        for name, value in sorted(context.params.items())
        if name not in NOT_STORED and value is not None
    }
    return {"trustsets": __version__, "command": str(context.info_name), "options": options}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float) else str(value)
