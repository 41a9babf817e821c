"""Options that commands share, and functions of groups of options as commands."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from trustsets.cli import console

if TYPE_CHECKING:
    from trustsets.files import TableColumns

__all__ = ["MethodOptions", "TableOptions", "argument", "expanded", "option", "resolved"]

# They say how a command talks, not what it computes.
_NOT_STORED = {"json", "quiet", "debug"}


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


TaskName = StrEnum("TaskName", ["real", "digits"])
_KINDS = ".npz, .parquet, .csv, .safetensors, a folder of .npy."
_GROUPS = "Arrays or columns that hold groups, such as site,sex. Missing values are a group."
_PROBABILITIES = (
    "Columns of probabilities in a table, such as 'prob_*' or cat,dog; * stands for the class. "
    "Default: those of MODEL, or prob_*."
)
_TRAIN = (
    "Features and labels of the training data, for the trust score. Without it, coverage is "
    "conditioned on confidence and groups."
)
_METHOD = (
    "conditional, standard, mondrian (cells of confidence and trust), groups, class, clustered, "
    "paper or naive (CONDITIONAL and NAIVE as the paper runs them)."
)
_SCORE = "aps (default), raps, saps, topk, softmax (or lac) or margin."
_BASIS = (
    "Function class of 'conditional': a list of polynomial, bins, groups, components and "
    "intercept, which are added up. Default: chosen on the tuning samples."
)
_STATISTIC = "What polynomial and bins are functions of: of confidence, trust, entropy, margin."
_SET = (
    "Any parameter of the predictor, its score or basis, as in Python: degree=3, lam=0.1, "
    "temperature=tuning, per_class=true, allow_empty=true. May be given again."
)

Alpha = Annotated[float, option("SHARE", "Share of sets that may miss the true class.")]
LabelledOutputs = Annotated[Path, argument("OUTPUTS", f"Labelled outputs: {_KINDS}")]
NewOutputs = Annotated[Path, argument("OUTPUTS", f"New outputs: {_KINDS}")]
Model = Annotated[Path, argument("MODEL", "Saved by 'trustsets calibrate'.")]
Page = Annotated[Path, option("FILE", "Where to write the page.", "--output", "-o")]
Level = Annotated[float, option("SHARE", "Confidence level of the intervals.")]
Classes = Annotated[Path | None, option("FILE", "Class names: a text file, or array 'classes'.")]
Groups = Annotated[list[str] | None, option("NAMES", _GROUPS, "--group")]
LabelColumn = Annotated[str | None, option("NAME", "Column of a table with the true classes.")]
Task = Annotated[TaskName, option("TASK", "real (ships with the package) or digits (trained now).")]
Seed = Annotated[int, option("N", "Seed of everything that is drawn at random.", min=0)]


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
class MethodOptions:
    """Options that say which predictor is made, in the words of `trustsets.recipes`."""

    train: Annotated[Path | None, option("FILE", _TRAIN)] = None
    tuning: Annotated[Path | None, option("FILE", "Other labelled outputs to tune on.")] = None
    classes: Classes = None
    group: Groups = None
    label_column: LabelColumn = None
    method: Annotated[str, option("METHOD", _METHOD)] = "conditional"
    score: Annotated[str | None, option("SCORE", _SCORE)] = None
    basis: Annotated[list[str] | None, option("NAMES", _BASIS)] = None
    statistic: Annotated[list[str] | None, option("NAMES", _STATISTIC)] = None
    set: Annotated[list[str] | None, option("NAME=VALUE", _SET)] = None
    seed: Seed = 0


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
    run.__annotations__ = {name: item.annotation for name, item in whole.parameters.items()}
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
        if name not in _NOT_STORED and value is not None
    }
    return {"trustsets": __version__, "command": str(context.info_name), "options": options}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float) else str(value)
