"""Options that commands share, and where their values come from and go to."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from trustsets.cli import console

if TYPE_CHECKING:
    from trustsets.files.evaluation import Comparison
    from trustsets.files.naming import TableColumns

__all__ = [
    "DATA",
    "NOT_STORED",
    "Alpha",
    "Classes",
    "ComparisonOptions",
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
_PANEL = "Common options"
# They say how a command talks or where it runs, not what it computes.
NOT_STORED = {"config", "json", "quiet", "debug"}


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

    return option(None, text, *names, is_eager=True, callback=keep, panel=_PANEL)


def _load(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a file as defaults; what is typed on the command line wins."""
    if path is not None:
        from trustsets.files.options import read_options

        command = str(context.info_name)
        known = {parameter.name for parameter in context.command.params if parameter.name}
        context.default_map = read_options(path, command, known - NOT_STORED)
    return path


Alpha = Annotated[
    float,
    option("SHARE", "Share of sets that may miss the true class, between 0 and 1.", "--alpha"),
]
LabelledOutputs = Annotated[
    Path,
    argument("OUTPUTS", "Labelled outputs: .npz, .parquet, .csv, .safetensors, a folder of .npy."),
]
Classes = Annotated[
    Path | None,
    option("FILE", "Class names: a text file, or a file with an array 'classes'.", panel=DATA),
]
Groups = Annotated[
    list[str] | None,
    option(
        "NAME",
        "An array or column that holds groups; may be given again. Missing values are a group.",
        "--group",
        "--group-columns",
        panel=DATA,
    ),
]
LabelColumn = Annotated[
    str | None,
    option("NAME", "Column of a table with the true classes.", "--label-column", panel=DATA),
]
Seed = Annotated[int, option("N", "Seed of everything that is drawn at random.", "--seed", min=0)]


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Options that say which columns of a table hold what: one number a column."""

    probability_columns: Annotated[
        list[str] | None,
        option(
            "PATTERN",
            "Columns of probabilities in a table (.csv, .parquet), such as 'prob_*'; * stands for "
            "the name of the class. May be given again.",
            panel=DATA,
        ),
    ] = None
    logit_columns: Annotated[
        list[str] | None, option("PATTERN", "The same for logits.", panel=DATA)
    ] = None
    feature_columns: Annotated[
        list[str] | None, option("PATTERN", "The same for features, in any order.", panel=DATA)
    ] = None

    def columns(self, label: str | None = None) -> "TableColumns":
        """What `trustsets.files` takes."""
        from trustsets.files.naming import TableColumns

        return TableColumns(
            tuple(self.probability_columns or ()),
            tuple(self.logit_columns or ()),
            tuple(self.feature_columns or ()),
            label,
        )


@dataclasses.dataclass(frozen=True)
class _Config:
    """Where a command may take its options from."""

    config: Annotated[
        Path | None,
        option(
            "FILE",
            "Take options from a TOML file, or those that made an earlier output. An output "
            "never says where to write or what code to run.",
            is_eager=True,
            callback=_load,
            panel=_PANEL,
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class _Common:
    """How every command talks; the callbacks keep the values."""

    json: Annotated[bool, _setting("Print the result as JSON.", "--json")] = False
    quiet: Annotated[bool, _setting("Print nothing but results and errors.", "--quiet", "-q")] = (
        False
    )
    debug: Annotated[bool, _setting("Show the traceback of an error.", "--debug")] = False


@dataclasses.dataclass(frozen=True)
class ComparisonOptions:
    """Options of the commands that evaluate methods: `evaluate` and `report`."""

    outputs: LabelledOutputs
    methods: Annotated[
        list[str], argument("METHODS", "Models or predictions, as FILE or NAME=FILE.")
    ]
    alpha: Annotated[
        float | None,
        option(
            "SHARE",
            "Share of sets that may miss the true class. Default: that of the predictions, "
            "or else 0.1.",
        ),
    ] = None
    train: Annotated[
        Path | None,
        option(
            "FILE",
            "Features and labels of the training data, for the trust score. Default: the "
            "trust score of the first model that has one.",
        ),
    ] = None
    classes: Classes = None
    group: Groups = None
    metric: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Measure only this (conf_trust, conf_rank, conf_frequency, class, groups, "
            "size_strata, trust_rank); may be given again. Default: all.",
        ),
    ] = None
    below: Annotated[
        list[float] | None,
        option(
            "SHARE",
            "Report the share of classes and groups covered less than this; may be given again. "
            "Default: 0.5.",
        ),
    ] = None
    level: Annotated[float, option("SHARE", "Confidence level of the intervals.")] = 0.95
    seed: Seed = 0

    def comparison(self, columns: "TableColumns") -> "Comparison":
        """What `trustsets.files.evaluation` takes."""
        from trustsets.files.evaluation import Comparison, name_methods

        return Comparison(
            self.outputs,
            name_methods(self.methods),
            self.alpha,
            self.train,
            self.classes,
            tuple(self.group or ()),
            tuple(self.metric) if self.metric else None,
            tuple(self.below or (0.5,)),
            self.level,
            seed=self.seed,
            columns=columns,
        )


def expanded(function: Callable[..., None], config: bool = True) -> Callable[..., None]:
    """A command with one parameter for each option, from a function that takes groups of them.

    A parameter of `function` whose type is a dataclass becomes one option for each field. The
    options that every command has are added.

    Parameters
    ----------
    function : callable
        Its parameters, and the fields of the dataclasses, are annotated as Typer wants it.
    config : bool
        Add ``--config``.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {
        name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)
    }
    own = inspect.signature(function).parameters.values()
    parameters = [
        each
        for parameter in own
        for each in (
            _fields(groups[parameter.name])
            if parameter.name in groups
            else [_keyword(parameter.name, hints[parameter.name], parameter.default)]
        )
    ]
    common = [*(_fields(_Config) if config else []), *_fields(_Common)]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        for parameter in common:
            given.pop(parameter.name)
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in _fields(group)})
        function(**given)

    whole = inspect.Signature([*parameters, *common])
    run.__signature__ = whole  # type: ignore[attr-defined]
    run.__annotations__ = {name: each.annotation for name, each in whole.parameters.items()}
    return run


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    empty = inspect.Parameter.empty
    return [
        _keyword(
            field.name,
            hints[field.name],
            empty if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(group)
    ]


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
