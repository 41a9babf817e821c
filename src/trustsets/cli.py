"""The command line ``trustsets``, and what other packages need to add commands to it.

A command parses, calls the library, and prints. What it needs is imported when it runs, so that
``--help`` is quick. `main` is the boundary where errors become one line.
"""

import _thread
import functools
import inspect
import json
import math
import os
import re
import shutil
import sys
import textwrap
import threading
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from trustsets._progress import Advance, progress_bar
from trustsets._version import __version__
from trustsets.errors import InputError, TrustSetsError, TrustSetsWarning

if TYPE_CHECKING:
    from trustsets.files import OutputsFile
    from trustsets.metrics import Evaluation
    from trustsets.monitor import Monitor
    from trustsets.outputs import ModelOutputs
    from trustsets.predictors import Predictor
    from trustsets.sets import PredictionSets

__all__ = ["app", "argument", "console", "expanded", "main", "option"]

BAD_INPUT = 2
"""Exit code for input that breaks a rule, as for a command that does not parse."""
NOT_VALID = 1
"""Exit code for a certificate that proves nothing."""
ALARM = 3
"""Exit code when a monitor has an alarm."""
INTERRUPTED = 130
"""What a shell reports of a program that Ctrl-C has ended."""
# Groups and classes that a table shows: those that matter most.
_MOST_ROWS = 12
# Permuted outcomes behind the noise floor of the excess risk.
_PERMUTATIONS = 4
_MODEL = ".trustsets"
# Arguments of `make_predictor` that --set cannot give.
_WITH_OPTIONS = ("method", "score", "trust", "basis", "statistics", "groups", "n")

# --- What commands print -----------------------------------------------------------------------

# Longer lines are hard to read, however wide the terminal is.
_WIDEST = 80
# A table has lines of any length where nothing says how long a line may be.
_ANY_WIDTH = 1000
# Control characters, halves of code points (how Python holds bytes that are no text), and breaks.
_HIDDEN_KINDS = {"Cc", "Cs", "Zl", "Zp"}
# What turns the direction of the text around it.
_TURNING = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}


def visible(text: str) -> str:
    r"""The text with control characters written out: names come from files, and must do nothing.

    Examples
    --------
    >>> print(visible("red: \x1b[31m, two\nlines"))
    red: \x1b[31m, two\nlines
    """
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char) in _HIDDEN_KINDS or char in _TURNING
        else char
        for char in text
    )


def argument(metavar: str, text: str) -> Any:
    """An argument of a command, which has no name to type, with its help text."""
    return typer.Argument(metavar=metavar, help=text)


def option(metavar: str | None, text: str, *names: str, **more: Any) -> Any:
    """An option of a command with its help text; `metavar` stands for its value, None for a flag.

    `names` are such as ``"--output", "-o"``; by default the name of the parameter makes one.
    """
    return typer.Option(*names, metavar=metavar, help=text, **more)


_flag = functools.partial(option, None, rich_help_panel="Common options")


@dataclass
class Console:
    """Results go to stdout, everything else to stderr; the fields are options of every command.

    Output on a terminal has colour; piped output is plain text in whole lines.
    """

    json: Annotated[bool, _flag("Print the result as JSON.", "--json")] = False
    quiet: Annotated[bool, _flag("Print results and errors only.", "--quiet", "-q")] = False
    debug: Annotated[bool, _flag("Show the traceback of an error.", "--debug")] = False

    def say(self, *lines: str) -> None:
        """Tell the person what happened, on stderr; nothing with --quiet."""
        if self.quiet:
            return
        width = _width(sys.stderr)
        for line in map(visible, lines):
            text = line if width is None else textwrap.fill(line, width, break_on_hyphens=False)
            _rich(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)

    def conclude(self, result: dict[str, Any], *lines: str) -> None:
        """End a command: print its result with --json, and say what happened otherwise."""
        if self.json:
            self.print_json(result)
        else:
            self.say(*lines)

    def print_json(self, value: Any) -> None:
        """Print a result for machines: one JSON object, of data or of results with `to_dict`."""
        text = json.dumps(value, indent=2, allow_nan=False, default=lambda item: item.to_dict())
        _print(text)

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines of a result as they are."""
        for line in lines:
            _print(visible(line))

    def print_text(self, text: str, style: str = "") -> None:
        """Print paragraphs of a result, broken into lines, in a rich style such as ``"bold"``."""
        width = min(_width(sys.stdout) or _WIDEST, _WIDEST)
        for paragraph in text.split("\n"):
            for line in textwrap.wrap(visible(paragraph), width) or [""]:
                _rich().print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def print_table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        title: str | None = None,
        n_names: int = 1,
    ) -> None:
        """Print a table; the first `n_names` columns are on the left, numbers on the right.

        The title goes to stderr, below the table, which begins with its header in a file.
        """
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for number, name in enumerate(header):
            table.add_column(name, justify="left" if number < n_names else "right", overflow="fold")
        for row in rows:
            table.add_row(*(Text(visible(cell)) for cell in row))
        rich = _rich(width=_width(sys.stdout) or _ANY_WIDTH)
        with rich.capture() as captured:
            rich.print(table)
        for line in captured.get().splitlines():
            _print(line.rstrip())
        if title is not None:
            self.say(title)

    def progress(self, title: str, total: int | None) -> AbstractContextManager[Advance]:
        """A bar on a terminal, unless --quiet; gives a function to call with the steps done."""
        return progress_bar(title, total, wanted=False if self.quiet else None, transient=True)


console = Console()


def _width(stream: Any) -> int | None:
    """Characters in a line: as COLUMNS says, those of a terminal, or None for any number."""
    if os.environ.get("COLUMNS") or (stream is not None and stream.isatty()):
        return max(20, shutil.get_terminal_size().columns)
    return None


def _rich(stderr: bool = False, width: int | None = None) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, width=width)


def _print(text: str) -> None:
    if sys.stdout is None:
        raise InputError("standard output is closed, so the result cannot be printed there.")
    try:
        print(text, flush=True)
    except OSError as error:
        # Python would try again, at its exit, to write what could not be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(f"standard output cannot be written: {error.strerror}.") from error


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings of this package as one line each, and others with --debug only.

    Blocks of a file warn of the same with other numbers; it is said once.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        usual, said = warnings.showwarning, set[str]()

        def show(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
            if category.__module__ == "trustsets.errors":
                words = re.sub(r"\d[\d.,]*", "", str(message))
                if not console.quiet and words not in said:
                    said.add(words)
                    _print_to_stderr("Warning", "yellow", str(message))
            elif console.debug:
                usual(message, category, *rest, **named)

        warnings.showwarning = show
        yield


def _error_text(error: Exception, command: str) -> str | None:
    """What the person can repair: which file, what is wrong, what to do; None for other errors."""
    if isinstance(error, OSError):
        path = error.filename
        where = f"{os.fspath(path)}: " if isinstance(path, str | os.PathLike) else ""
        return f"{where}{error.strerror or error}."
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!r} holds bytes that are no text in UTF-8. Rename it."
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("trustsets"):
        extra = command if command in ("explore", "paper") else "tables"
        return f'this needs {error.name}; install it with: pip install "trustsets[{extra}]"'
    if isinstance(error, MemoryError):
        text = str(error) or "none is left"
        return f"there is not enough memory ({text}). Use fewer samples at once."
    return str(error) if isinstance(error, TrustSetsError) else None


def _print_to_stderr(word: str, style: str, text: str) -> None:
    from rich.text import Text

    line = Text.assemble((f"{word}: ", style), visible(" ".join(text.split())))
    _rich(stderr=True).print(line, soft_wrap=True, highlight=False)


# --- Options -----------------------------------------------------------------------------------


_KINDS = ".npz, .parquet, .csv, .safetensors, a folder of .npy."
_GROUPS = "Arrays or columns that hold groups, such as site,sex. Missing values are a group."
_COLUMNS = (
    "Columns of probabilities in a table, such as 'p_*' or cat,dog; * stands for the class. "
    "Default: prob_*, or logit_*."
)
_TRAIN = (
    "Features and labels of the training data, for the trust score. Without it, coverage is "
    "conditioned on confidence and groups."
)
_METHOD = (
    "conditional, standard, mondrian (cells of confidence and trust), groups, class, clustered, "
    "or paper (CONDITIONAL as the paper's authors run it, with their trust score; --set "
    "neighbour=1 --set squared=false takes the usual one)."
)
_SCORE = "aps, raps, saps, topk, softmax (or lac) or margin. Default: the method chooses."
_BASIS = (
    "Function class of 'conditional': a list of polynomial, bins, groups, components and "
    "intercept, which are added up. Default: chosen on the tuning samples."
)
_STATISTIC = "What polynomial and bins are functions of: of confidence, trust, entropy, margin."
_SET = (
    "Any parameter of the predictor, its score or basis, as in Python: degree=3, lam=0.1, "
    "temperature=tuning, per_class=true, random_state=7. May be given again."
)
_METRIC = (
    "Measure only these of conf_trust, conf_rank, conf_frequency, class, groups, size_strata "
    "and trust_rank. Default: all."
)

_TaskName = StrEnum("_TaskName", ["real", "digits"])
_Names = list[str] | None
_Task = Annotated[_TaskName, option("TASK", "real (ships with the package) or digits (trained).")]
_Alpha = Annotated[float, option("SHARE", "Share of sets that may miss the true class.")]
_Labelled = Annotated[Path, argument("OUTPUTS", f"Labelled outputs: {_KINDS}")]
_Model = Annotated[Path, argument("MODEL", "Saved by 'trustsets calibrate'.")]
_Page = Annotated[Path, option("FILE", "Where to write the page.", "--output", "-o")]
_Classes = Annotated[Path | None, option("FILE", "Class names: a text file, one on each line.")]
_Groups = Annotated[_Names, option("NAMES", _GROUPS, "--group")]


@dataclass(frozen=True)
class MethodOptions:
    """Options that say which predictor is made, in the words of `trustsets.recipes`."""

    train: Annotated[Path | None, option("FILE", _TRAIN)] = None
    classes: _Classes = None
    group: _Groups = None
    label_column: Annotated[str | None, option("NAME", "Column of the true classes.")] = None
    probability_columns: Annotated[str | None, option("NAMES", _COLUMNS)] = None
    feature_columns: Annotated[str | None, option("NAMES", "The same for features.")] = None
    method: Annotated[str, option("METHOD", _METHOD)] = "conditional"
    score: Annotated[str | None, option("SCORE", _SCORE)] = None
    basis: Annotated[_Names, option("NAMES", _BASIS)] = None
    statistic: Annotated[_Names, option("NAMES", _STATISTIC)] = None
    set: Annotated[_Names, option("NAME=VALUE", _SET)] = None

    @property
    def columns(self) -> dict[str, str]:
        """Which columns of a table hold what, as `trustsets.files` takes it."""
        asked = {
            "probabilities": self.probability_columns,
            "features": self.feature_columns,
            "label": self.label_column,
        }
        return {kind: text for kind, text in asked.items() if text is not None}


@dataclass(frozen=True)
class ComparisonOptions:
    """Which models are evaluated on which samples, and what is measured."""

    outputs: _Labelled
    models: Annotated[list[str], argument("MODELS", "Saved by 'trustsets calibrate': [NAME=]FILE.")]
    alpha: _Alpha = 0.1
    group: _Groups = None
    metric: Annotated[_Names, option("NAMES", _METRIC)] = None


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """A command with one parameter for each option, from a function that takes groups of them.

    A parameter of `function` whose type is a dataclass becomes one option for each field. The
    options that every command has are added. All are annotated as Typer wants it.
    """
    annotated = inspect.signature(function).parameters.values()
    kinds: dict[str, Any] = {item.name: item.annotation for item in annotated}
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for item in annotated:
        kind = groups.get(item.name)
        parameters += [item] if kind is None else inspect.signature(kind).parameters.values()
    parameters += inspect.signature(Console).parameters.values()

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for item in fields(Console):
            setattr(console, item.name, values.pop(item.name))
        for name, group in groups.items():
            values[name] = group(**{item.name: values.pop(item.name) for item in fields(group)})
        function(**values)

    # Only keywords may have a default before one that has none.
    keywords = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in keywords}
    return run


# --- Commands ----------------------------------------------------------------------------------

app = typer.Typer(
    name="trustsets",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; input errors end with exit code 2 and one line on stderr."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    hook, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    if hasattr(sys.stdout, "reconfigure"):
        # Names come from files, and a terminal may lack their letters.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _plain_warnings():
            app(args=words, prog_name="trustsets")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        text = _error_text(error, command=words[0])
        if console.debug or text is None:
            raise
        _print_to_stderr("Error", "bold red", text)
        sys.exit(BAD_INPUT)
    finally:
        sys.unraisablehook = hook


def _interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python prints and forgets a Ctrl-C that meets a callback: send it again, moments later."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    is_sent = False
    while not is_sent:
        again = threading.Timer(0.05, _thread.interrupt_main)
        again.daemon = True
        try:
            again.start()
            is_sent = True
        except KeyboardInterrupt:
            pass  # it came before this function has ended, and would be forgotten as well


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trustsets {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, option(None, "Show the version.", "--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Prediction sets with more even coverage across confidence, trust and groups.

    New here? Run 'trustsets demo'. From arrays on disk to sets:

      trustsets calibrate held_out.npz --train train.npz -o model.trustsets

      trustsets predict model.trustsets new.npz --alpha 0.1 -o sets.csv
    """


@app.command()
@expanded
def demo(
    task: _Task = _TaskName.real,
    output: Annotated[Path, option("FOLDER", "Where to write the report.", "--output", "-o")] = (
        Path("trustsets-demo")
    ),
) -> None:
    """See what the sets do, offline, in about 20 seconds.

    What split conformal sets do on outputs of a deep network, what trustsets do
    at the same mean size, for whom it matters, three samples in words, and a
    report to open in a browser.

    Example:

      trustsets demo --task digits
    """
    output.mkdir(parents=True, exist_ok=True)
    console.say("About 20 seconds of work; the first run compiles for some more.")
    with console.progress("loading", None):
        from trustsets.demo import compare_methods, load

        data = load(str(task))
    result = compare_methods(
        data, output / f"{task}.html", step=lambda text: console.progress(text, None)
    )
    if console.json:
        from trustsets.metrics import to_plain

        console.print_json(to_plain(result))
        return
    console.print_text(result.title, style="bold")
    for part in result.story:
        if isinstance(part, tuple):
            console.print_table(*part)
        else:
            first, *lines = [part] if isinstance(part, str) else part
            console.print_text(first)
            console.print_lines(lines)
        console.print_text("")


@app.command()
@expanded
def plan(
    outputs: Annotated[Path | None, argument("OUTPUTS", "Labelled outputs.")] = None,
    alpha: _Alpha = 0.1,
    within: Annotated[float, option("SHARE", "Tolerance of the coverage.")] = 0.02,
    probability: Annotated[float, option("SHARE", "How likely it should be kept.")] = 0.95,
    samples: Annotated[int | None, option("N", "Calibration samples there are.")] = None,
) -> None:
    """Say how many samples to calibrate on, and to test on.

    The coverage of a model depends on the calibration samples that happened
    to be drawn. Its law is known exactly, and gives the size from which on
    coverage is within a tolerance, for all samples and each group or class.
    Their shares come from OUTPUTS. --json has the numbers of each.

    Example:

      trustsets plan --alpha 0.1 --within 0.02 --probability 0.95
    """
    from trustsets.files import open_outputs
    from trustsets.planning import plan as make_plan

    labelled = None if outputs is None else open_outputs(outputs).read_labelled("a plan")
    result = make_plan(alpha, within, probability, outputs=labelled, n=samples)
    if console.json:
        console.print_json(result)
    else:
        console.print_text(result.summary())


# --- Calibrating -------------------------------------------------------------------------------


@app.command()
@expanded
def calibrate(
    outputs: _Labelled,
    output: Annotated[Path, option("MODEL", "Where to save it (.trustsets).", "--output", "-o")],
    *,
    options: MethodOptions,
) -> None:
    """Learn thresholds from labelled samples the classifier was not trained on.

    OUTPUTS holds the arrays 'logits' (or 'probabilities'), 'labels', for the
    trust score 'features' (the layer before the last), and, if you like,
    'classes' (their names) and groups called 'group_NAME'. In a table, such as
    a .csv file, each class has a column: 'prob_cat'. The model remembers the
    columns. The allowed miscoverage alpha is chosen later, when predicting.

    Example:

      trustsets calibrate held_out.npz --train train.npz -o model.trustsets
    """
    from trustsets import storage
    from trustsets.files import check_output

    check_output(output, (_MODEL,), [outputs, options.train, options.classes])
    with console.progress("Calibrating", None):
        predictor, features = _calibrated(outputs, options, "calibration")
    note = {"trustsets": __version__, "columns": options.columns, "features": features}
    storage.write(output, predictor, note)
    summary = predictor.summary()
    result = {
        "output": str(output),
        "n": predictor.n_calibration_,
        "n_tuning": predictor.n_tuning_,
        "n_classes": predictor.classes_.size,
        "temperature": predictor.temperature_,
        "summary": summary,
    }
    console.conclude(result, *summary.split("\n"), f"Saved to {output}.")


@app.command()
@expanded
def audit(
    outputs: _Labelled,
    output: _Page = Path("audit.html"),
    alpha: _Alpha = 0.1,
    *,
    options: MethodOptions,
) -> None:
    """Measure coverage without a test set, and search for where it fails.

    OUTPUTS holds labelled samples, as for 'trustsets calibrate'. Each sample is
    left out once: its set comes from all the others. The page names regions
    whose coverage is too low.

    Example:

      trustsets audit held_out.npz --train train.npz -o audit.html
    """
    from trustsets import auditing
    from trustsets.files import check_output
    from trustsets.report import write_report

    check_output(output, (".html",), [outputs, options.train, options.classes])
    with console.progress("Auditing", None):
        predictor, _ = _calibrated(outputs, options, "an audit", always_trust=True)
        sets, left_out = predictor.leave_one_out(alpha), predictor.calibration_
        regions = auditing.find_regions(sets, left_out)
        risk = auditing.excess_risk(sets, left_out, n_permutations=_PERMUTATIONS)
        evaluation = replace(auditing.audit(predictor, alpha, sets=sets), more=risk.metrics)
        write_report(
            output,
            {options.method: evaluation},
            predictors=predictor,
            outputs=left_out,
            sets=sets,
            regions=regions,
            title="Audit",
            details={"Outputs": str(outputs), "Tuning samples, not audited": predictor.n_tuning_},
        )
    if not console.json:
        console.print_text(regions.summary())
    text = f"No test set was used. The audit is in {output}; open it in a browser."
    console.conclude({"evaluation": evaluation, "regions": regions}, text)


def _calibrated(
    outputs: Path, options: MethodOptions, purpose: str, *, always_trust: bool = False
) -> "tuple[Predictor, list[str]]":
    """The predictor that the options describe, calibrated; the columns of its features."""
    from trustsets import recipes
    from trustsets.files import naming, open_outputs, read_classes, split_names
    from trustsets.trust import TrustScore

    classes = None if options.classes is None else read_classes(options.classes)
    group = options.group or ()
    source = open_outputs(outputs, groups=group, classes=classes, columns=options.columns)
    samples, groups = source.read_labelled(purpose), split_names(group, source.groups)
    basis, statistics = split_names(options.basis), split_names(options.statistic)
    parameters = _parameters(options.set or ())
    method = recipes.method_name(options.method)
    is_paper = method in recipes.AUTHORS_METHODS
    could_use_trust = samples.trust is None and recipes.uses_trust(method, basis, statistics)
    trust = None
    if options.train is None and could_use_trust and ("trust" in statistics or is_paper):
        raise InputError(
            "the trust score needs training samples: give a file with their features and "
            "labels (--train FILE)."
        )
    if options.train is not None and samples.trust is None and (could_use_trust or always_trust):
        points = _training_samples(options.train, source, options.columns)
        setting = {key: parameters.pop(key) for key in recipes.AUTHORS_TRUST if key in parameters}
        setting = recipes.AUTHORS_TRUST | setting if is_paper else setting
        trust = TrustScore(**setting).fit(*points)
    elif options.train is not None:
        console.say("--train is not used: the outputs have trust, or the method does without it.")
    predictor = recipes.make_predictor(
        method,
        score=options.score,
        trust=trust,
        basis=basis,
        statistics=statistics,
        groups=groups,
        n=len(samples),
        **parameters,
    )
    if reason := predictor.batch_dependence:
        raise InputError(f"{reason} (--method mondrian). In Python, it predicts all at once.")
    with naming(outputs):
        predictor.calibrate(samples.with_trust(trust))
    if could_use_trust and trust is None:
        console.say("There are no training samples (--train), so trust is not used.")
    if method != "class":
        recipes.warn_of_unused_groups(predictor, groups)
    return predictor, [*source.feature_names]


def _training_samples(train: Path, source: "OutputsFile", columns: dict[str, str]) -> Any:
    """Features and labels for the trust score of the samples of `source`."""
    from trustsets.files import read_training

    if source.features is None:
        raise InputError(
            f"{source.path}: there is no array 'features', which the trust score needs. Save the "
            "embeddings with the logits, name their columns (--feature-columns), or leave out "
            "--train."
        )
    points = read_training(train, source.classes, columns, source.feature_names)
    if source.path.samefile(train):
        warnings.warn(
            f"{train} is both the calibration file and the training file. Coverage is guaranteed "
            "only for a calibration on samples that the classifier was not trained on, and that "
            "are not their own neighbours in the trust score. Give another file.",
            TrustSetsWarning,
            stacklevel=2,
        )
    return points


def _parameters(items: Sequence[str]) -> dict[str, Any]:
    """Parameters by name from ``NAME=VALUE``: numbers, true, false, null, or texts."""
    parameters: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise InputError(f"--set must be NAME=VALUE, such as degree=3; got {item!r}.")
        if name in _WITH_OPTIONS:
            raise InputError(f"--set does not take {name}: it has an option of its own (--help).")
        parameters[name] = text
        with suppress(ValueError, RecursionError):
            parameters[name] = json.loads(text)
    return parameters


# --- Predicting --------------------------------------------------------------------------------


@app.command()
@expanded
def predict(
    model: _Model,
    outputs: Annotated[Path, argument("OUTPUTS", f"New outputs: {_KINDS}")],
    output: Annotated[Path, option("FILE", "Result: .parquet or .csv.", "--output", "-o")],
    alpha: _Alpha = 0.1,
    max_size: Annotated[int | None, option("K", "Largest size of a set.")] = None,
    id: Annotated[_Names, option("NAMES", "Arrays to copy: name,date.")] = None,
) -> None:
    """Write a set of possible classes for every new sample.

    A set lists its classes likeliest first; in a .csv file they stand in one
    cell, as in 'cat|dog'. With --max-size K, the column 'alpha' says what a set
    guarantees where K classes cannot keep alpha. The array 'id' is copied.
    Nothing appears under the name of the result until it is whole.

    Example:

      trustsets predict model.trustsets new.npz --alpha 0.1 -o sets.csv
    """
    from trustsets.files import predict_file
    from trustsets.status import Status

    summary = predict_file(
        model,
        outputs,
        output,
        alpha=alpha,
        max_size=max_size,
        ids=id or (),
        progress=False if console.quiet else None,
    )
    lines = [
        f"{summary['n']:,} sets of {summary['mean_size']:.2f} classes on average; "
        f"{summary['full']:,} hold all {summary['n_classes']:,} classes, "
        f"{summary['empty']:,} are empty."
    ]
    for status in Status:
        count = summary["status"].get(status.name.lower(), 0)
        if count and status is not Status.EXACT:
            lines.append(f"{count:,} of them: {status.sentence}.")
    console.conclude({"output": str(output)} | summary, *lines, f"Written to {output}.")


# --- Evaluating --------------------------------------------------------------------------------


@app.command()
@expanded
def evaluate(options: ComparisonOptions) -> None:
    """Measure where sets keep their coverage and where they fail.

    MODELS are files (.trustsets) as FILE or NAME=FILE. Every number has an
    interval. The noise floor of a gap is what a perfect method would show on
    so few samples. --json prints all of them.

    Example:

      trustsets evaluate test.npz standard.trustsets ours=model.trustsets
    """
    from trustsets.metrics import compare, title

    evaluations, *_ = _evaluated(options)
    if console.json:
        console.print_json({"trustsets": __version__, "evaluations": evaluations})
        return

    def text(number: float) -> str:
        return "" if math.isnan(number) else f"{number:.3f}"

    # Every metric of one method, or the main ones of several.
    first = next(iter(evaluations.values()))
    table = compare(evaluations, columns=list(first.metrics) if len(evaluations) == 1 else None)
    rows = []
    for column, entries in zip(table.columns, zip(*table.entries, strict=True), strict=True):
        for (name,), entry in zip(table.keys, entries, strict=True):
            interval = f"{text(entry.lower)} to {text(entry.upper)}" if text(entry.lower) else ""
            rows.append([title(column), name, text(entry.mean), interval, text(entry.floor)])
    console.print_table(
        ["Metric", "Method", "Value", f"{100 * first.level:g}% interval", "Noise floor"],
        rows,
        title=f"{first.n:,} samples, {first.n_classes:,} classes, alpha = {first.alpha:g}. Gaps, "
        "shortfalls and excesses are in percentage points.",
        n_names=2,
    )


@app.command()
@expanded
def report(options: ComparisonOptions, output: _Page = Path("report.html")) -> None:
    """Write one self-contained HTML page to click through and to print.

    It takes what 'trustsets evaluate' takes, and says whether marginal coverage
    reaches its target, in which classes and groups it does not, and what to do.
    Then come heatmaps of coverage, and the worst classes, groups and samples.
    Several models are also compared at the mean set size of the last one.

    Example:

      trustsets report test.npz standard.trustsets model.trustsets
    """
    from trustsets.metrics import compare
    from trustsets.report import write_report

    evaluations, samples, predictors, sets = _evaluated(options, output)
    comparison = None
    with console.progress("Report", None):
        if len(predictors) > 1:
            comparison = compare(predictors, outputs=samples, alpha=options.alpha, equal_size=True)
        write_report(
            output,
            evaluations,
            predictors=predictors,
            outputs=_judged(samples, predictors),
            sets=sets,
            comparison=comparison,
            details={"Outputs": str(options.outputs)},
        )
    text = f"The report is in {output}; open it in a browser."
    console.conclude({"evaluations": evaluations}, text)


def _evaluated(
    options: ComparisonOptions, output: Path | None = None
) -> "tuple[dict[str, Evaluation], ModelOutputs, dict[str, Predictor], dict[str, PredictionSets]]":
    """Evaluations of all models; the labelled samples as they were read, the models, their sets."""
    from trustsets import metrics
    from trustsets.files import check_output, naming, open_for_model, split_names
    from trustsets.predictors import load

    paths = _paths_by_name(options.models)
    if output is not None:
        check_output(output, (".html",), [options.outputs, *paths.values()])
    predictors = {name: load(path) for name, path in paths.items()}
    # Class names, columns and class frequencies are those of the first model.
    name, first = next(iter(predictors.items()))
    groups = [*(options.group or ())]
    groups += [group for predictor in predictors.values() for group in predictor.needed_groups]
    source = open_for_model(options.outputs, first, paths[name], groups=groups)
    samples = source.read_labelled("evaluation")
    judged = _judged(samples, predictors)
    asked = split_names(options.metric) or None
    bins = {"conf_frequency": metrics.FrequencyBins(first.class_counts_)}
    evaluations, sets = {}, {}
    with console.progress("Evaluations", len(predictors)) as advance:
        for name, predictor in predictors.items():
            with naming(f"{paths[name]} on {options.outputs}"):
                sets[name] = predictor.predict_set(samples, options.alpha)
                evaluations[name] = metrics.evaluate(sets[name], judged, metrics=asked, bins=bins)
            advance(1)
    return evaluations, samples, predictors, sets


def _paths_by_name(models: Sequence[str]) -> dict[str, Path]:
    """Files of models by name, from ``PATH`` (named by the file) or ``NAME=PATH``."""
    paths: dict[str, Path] = {}
    for item in models:
        name, _, rest = item.partition("=")
        path = Path(rest if name and rest else item)
        name = name if name and rest else path.stem
        if name in paths:
            raise InputError(
                f"two models are called {name!r} ({paths[name]} and {path}); give one another "
                "name, as in NAME=FILE."
            )
        paths[name] = path
    return paths


def _judged(samples: "ModelOutputs", predictors: "dict[str, Predictor]") -> "ModelOutputs":
    """The samples with the trust whose bins judge every model; each predicts with its own."""
    trust = next((one.trust for one in predictors.values() if one.trust is not None), None)
    return samples if samples.features is None else samples.with_trust(trust)


# --- Watching and looking ----------------------------------------------------------------------


@app.command()
@expanded
def explore(
    outputs: Annotated[Path | None, argument("OUTPUTS", "Labelled outputs; else the demo.")] = None,
    train: Annotated[Path | None, option("FILE", "Training features and labels.")] = None,
    images: Annotated[Path | None, option("FOLDER", "Images of the samples.")] = None,
    text: Annotated[str | None, option("NAME", "The array of the files that holds texts.")] = None,
    classes: _Classes = None,
    group: _Groups = None,
    task: _Task = _TaskName.real,
    port: Annotated[int, option("N", "Where to listen; 0 takes a free port.", min=0)] = 0,
    browser: Annotated[bool, option(None, "Open the page.", "--browser/--no-browser")] = True,
) -> None:
    """Move parameters on your own data and watch coverage.

    Serves a page on this machine alone. It splits OUTPUTS into calibration
    and test samples and shows what alpha, score, degree, trust, classes and
    groups do, with intervals and noise floors. The arrays 'image', 'path',
    'file' or 'id' name the files of --images; else their order counts.
    Ctrl-C ends it.

    Example:

      trustsets explore held_out.npz --train train.npz
    """
    from trustsets_explorer import explore_files, explore_task

    with console.progress("Preparing the explorer", None):
        if outputs is None:
            explorer = explore_task(str(task), port=port, browser=browser)
        else:
            explorer = explore_files(
                outputs,
                train=train,
                classes=classes,
                groups=tuple(group or ()),
                images=images,
                text=text,
                port=port,
                browser=browser,
            )
    try:
        console.print_lines([json.dumps({"url": explorer.url}) if console.json else explorer.url])
        console.say("The explorer is at this address, for this machine alone. Ctrl-C ends it.")
        explorer.wait()
    except KeyboardInterrupt:
        explorer.stop()
        console.say("The explorer has ended.")


@app.command()
@expanded
def monitor(
    model: _Model,
    outputs: Annotated[Path | None, argument("OUTPUTS", "New outputs.")] = None,
    *,
    state: Annotated[Path, option("FILE", "State of the monitor (.trustsets), made at first.")],
    labels: Annotated[Path | None, option("FILE", "Late labels, by 'id'.")] = None,
    reference: Annotated[Path | None, option("FILE", "What MODEL was calibrated on.")] = None,
    alpha: Annotated[float | None, option("SHARE", "Allowed miscoverage.")] = None,
    false_alarm: Annotated[float | None, option("SHARE", "Chance of a false alarm.")] = None,
) -> None:
    """Watch coverage over time; exit code 3 means that there is an alarm.

    Run it for every new batch, for example from cron. New samples are
    compared with those of the calibration: by their labels, where there are
    any, and by what the model says about them. If nothing changes, the
    probability of any alarm is at most 5%, however often you look. A batch
    counts once: after an interruption, give the same command again. Labels
    that come later are a file with the arrays 'id' and 'labels'.

    Example:

      trustsets monitor model.trustsets new.parquet --state watch.trustsets
    """
    from trustsets import files
    from trustsets.monitor import Monitor
    from trustsets.predictors import load
    from trustsets.storage import digest, locked

    if outputs is not None and labels is not None:
        raise InputError("give OUTPUTS or --labels, not both: each is a batch of its own.")
    files.check_output(state, (_MODEL,), [model, outputs, labels, reference])
    options = (("alpha", alpha), ("false_alarm", false_alarm))
    asked: dict[str, Any] = {name: value for name, value in options if value is not None}
    # The state is replaced as a whole after the batch was taken, and it remembers the batch: a run
    # that was killed is repeated by the same command.
    with locked(state.absolute().parent / f".{state.name}.lock", state):
        predictor = load(model)
        if state.exists() and asked:
            raise InputError(
                f"{state}: alpha and false_alarm are those with which it was begun; leave them "
                "out, or begin a new state."
            )
        if state.exists():
            watch = Monitor.load(state, predictor)
        else:
            samples = None
            if reference is not None:
                samples = files.open_for_model(reference, predictor, model).read_all()
            watch = Monitor(predictor, reference=samples, **asked)
        n_batches, n_waiting = len(watch.batches), 0
        if outputs is not None:
            _observe(watch, files.open_for_model(outputs, predictor, model))
            if len(watch.batches) == n_batches:
                console.say("This batch was counted before.")
        if labels is not None:
            columns = files.remembered_columns(model)["columns"]
            ids, late = files.read_late_labels(labels, predictor.classes_, columns)
            with files.naming(labels):
                n_waiting = watch.label(ids, late, batch=digest(ids.astype(str), late.astype(str)))
            console.say(f"{n_waiting:,} of {ids.size:,} ids were waiting for their label.")
        if n_waiting or len(watch.batches) > n_batches or not state.exists():
            watch.save(state)
    verdict = watch.verdict()
    if console.json:
        console.print_json(verdict)
    else:
        headline, _, rest = verdict.summary().partition("\n")
        console.print_text(headline, "bold red" if verdict.alarm else "bold")
        console.print_text(rest)
        _print_parts(verdict.parts)
    if verdict.alarm:
        raise typer.Exit(ALARM)


def _observe(watch: "Monitor", source: "OutputsFile") -> None:
    """Show a monitor all samples of a file; their content says whether it has seen them."""
    from trustsets.files import naming
    from trustsets.storage import digest

    samples = source.read_all()
    ids = source.ids["id"].read_names() if "id" in source.ids else None
    texts = None if ids is None else ids.astype(str)
    batch = digest(samples.logits, samples.features, samples.labels, texts)
    with naming(source.path):
        watch.observe(samples, ids=ids, batch=batch)


def _print_parts(parts: Sequence[Any]) -> None:
    """Coverage of all samples, and of the parts where it is lowest."""
    rows = []
    for row in (*parts[:1], *sorted(parts[1:], key=lambda row: row.upper)[:_MOST_ROWS]):
        interval = f"{row.lower:.3f} to {row.upper:.3f}"
        numbers = [f"{row.n:,}", f"{row.coverage:.3f}", interval, f"{row.size:.2f}"]
        rows.append([row.part, *numbers])
    if rows:
        console.print_text("")
        console.print_table(["Part", "Labelled", "Coverage", "Interval", "Size"], rows)


@app.command()
@expanded
def verify(
    certificate: Annotated[Path, argument("CERTIFICATE", "A .json or .npz file.")],
) -> None:
    """Check that a certificate proves its threshold.

    The check uses nothing but the numbers in the file and NumPy: it is the
    one file trustsets/verify.py, which also runs alone. The exit code is 0
    if the certificate is valid, 1 if it is not, and 2 if it is none.

    Certificates are written by predictor.certificate(...).save(...).

    Example:

      trustsets verify certificate.json
    """
    from trustsets.verify import failing_conditions, read_certificate

    try:
        numbers = read_certificate(str(certificate))
    except ValueError as error:
        raise InputError(str(error)) from error
    failing = failing_conditions(numbers)
    claim = f"the threshold {numbers['threshold']:.6g} at alpha {numbers['alpha']:.6g}"
    text = f"not valid: {'; '.join(failing)}" if failing else f"valid: it proves {claim}"
    if console.json:
        console.print_json({"valid": not failing, "failing": failing})
    else:
        console.print_lines([text])
    if failing:
        raise typer.Exit(NOT_VALID)


@app.command()
@expanded
def warmup() -> None:
    """Compile the numerical kernels now instead of at the first calibration.

    This is useful when an image is built. Compiled code is kept beside the
    installed package, or in the folder that NUMBA_CACHE_DIR names.

    Example:

      trustsets warmup --quiet
    """
    import numpy as np

    from trustsets.engine import warm_up
    from trustsets.engine.compiled import start_helper, stop_announcing
    from trustsets.trust import TrustScore

    stop_announcing()
    start_helper()
    start, labels = time.perf_counter(), np.arange(60) % 3
    features = np.random.default_rng(0).random((60, 3))
    with console.progress("compiling", None):
        warm_up()
        for points in (features.astype(np.float32), features):
            TrustScore().fit(points, labels).score(points, labels)
    seconds = round(time.perf_counter() - start, 1)
    console.conclude({"seconds": seconds}, f"The numerical kernels are ready ({seconds} s).")


class _PaperCommands(TyperGroup):
    """The commands of `trustsets_paper`, imported when they are asked for."""

    @property
    def commands(self) -> Any:
        """Commands by name."""
        from trustsets_paper.cli import paper as commands

        return typer.main.get_group(commands).commands

    @commands.setter
    def commands(self, value: Any) -> None:
        """Nothing: the group itself has no commands."""


paper = typer.Typer(
    name="paper",
    cls=_PaperCommands,
    no_args_is_help=True,
    help="The paper's experiments, from images to tables.",
)
app.add_typer(paper)

if __name__ == "__main__":
    # As this module under its name, whose console the commands of other packages share.
    import trustsets.cli

    trustsets.cli.main()
