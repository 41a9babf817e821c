"""The commands, and the boundary where errors become one line.

A command parses, calls the library, and prints. What it needs is imported when it runs, so that
``--help`` is quick.
"""

import json
import math
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from trustsets._version import __version__
from trustsets.cli import console
from trustsets.cli.options import (
    Alpha,
    Classes,
    Groups,
    LabelColumn,
    LabelledOutputs,
    Level,
    MethodOptions,
    Model,
    NewOutputs,
    Page,
    Seed,
    TableOptions,
    Task,
    TaskName,
    argument,
    expanded,
    option,
    resolved,
)

if TYPE_CHECKING:
    from trustsets.files import OutputsFile
    from trustsets.metrics import Evaluation
    from trustsets.monitor import Monitor
    from trustsets.outputs import ModelOutputs
    from trustsets.predictors import Predictor
    from trustsets.sets import PredictionSets
    from trustsets.trust import TrustScore

__all__ = ["app", "run"]

BAD_INPUT = 2
"""Exit code for input that breaks a rule, as for a command that does not parse."""
NOT_VALID = 1
"""Exit code for a certificate that proves nothing."""
ALARM = 3
"""Exit code when a monitor has an alarm."""
# Groups and classes that a table shows: those that matter most.
_MOST_ROWS = 12
_MODEL = ".trustsets"

_TRAIN = (
    "Features and labels of the training data, for the trust score. Default: the trust score of "
    "the first model that has one."
)
_METRIC = (
    "Measure only these of conf_trust, conf_rank, conf_frequency, class, groups, size_strata "
    "and trust_rank. Default: all."
)

app = typer.Typer(
    name="trustsets",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; input errors end with exit code 2 and one line on stderr."""
    try:
        with console.plain_warnings():
            try:
                app(args=None if arguments is None else list(arguments), prog_name="trustsets")
            finally:
                console.flush()
    except Exception as error:
        if console.settings.debug or not console.is_input_error(error):
            raise
        console.print_error(error)
        sys.exit(BAD_INPUT)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trustsets {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Prediction sets with more even coverage across confidence, trust and groups.

    New here? Run 'trustsets demo'. From arrays on disk to sets:

      trustsets calibrate held_out.npz --train train.npz -o model.trustsets

      trustsets predict model.trustsets new.npz --alpha 0.1 -o sets.csv
    """
    console.reset()


@app.command()
@expanded
def demo(
    context: typer.Context,
    task: Task = TaskName.real,
    output: Annotated[Path, option("FOLDER", "Where to write the report.", "--output", "-o")] = (
        Path("trustsets-demo")
    ),
    seed: Seed = 0,
) -> None:
    """See what the sets do, offline, in about 20 seconds.

    What split conformal sets do on outputs of a deep network, what trustsets do
    at the same mean size, for whom it matters, three samples in words, and a
    report to open in a browser.

    Example:

      trustsets demo --task digits
    """
    console.say("About 20 seconds of work; the first run compiles for some more.")
    output.mkdir(parents=True, exist_ok=True)
    with console.progress("loading", None):
        from trustsets.demo import compare_methods, load

        data = load(str(task), seed)
    result = compare_methods(
        data, output / f"{task}.html", step=lambda text: console.progress(text, None)
    )
    if console.settings.json:
        from trustsets.metrics import to_plain

        console.print_json(resolved(context) | {"result": to_plain(result)})
        return
    console.print_text(result.title, style="bold")
    for part in result.story:
        if isinstance(part, str):
            console.print_text(part)
        elif isinstance(part, list):
            console.print_text(part[0])
            console.print_lines(part[1:])
        else:
            console.print_table(*part)
        console.print_text("")


@app.command()
@expanded
def plan(
    context: typer.Context,
    outputs: Annotated[Path | None, argument("OUTPUTS", "Labelled outputs.")] = None,
    alpha: Alpha = 0.1,
    within: Annotated[float, option("SHARE", "Tolerance of the coverage.")] = 0.02,
    probability: Annotated[float, option("SHARE", "How likely it should be kept.")] = 0.95,
    samples: Annotated[int | None, option("N", "Calibration samples there are.")] = None,
    share: Annotated[list[str] | None, option("NAME=SHARE", "A group and its share.")] = None,
    group: Groups = None,
    label_column: LabelColumn = None,
    *,
    table: TableOptions,
) -> None:
    """Say how many samples to calibrate on, and to test on.

    The coverage of a model depends on the calibration samples that happened
    to be drawn. Its law is known exactly, and gives the size from which on
    coverage is within a tolerance, for all samples and each group or class.
    Their shares come from OUTPUTS, or from --share, which may be given again.

    Example:

      trustsets plan --alpha 0.1 --within 0.02 --probability 0.95
    """
    from trustsets.errors import InputError
    from trustsets.files import open_outputs
    from trustsets.planning import plan as make_plan

    shares: dict[str, float] = {}
    for item in share or ():
        name, _, text = item.rpartition("=")
        try:
            shares[name] = float(text)
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"--share must be NAME=SHARE, such as north=0.2; got {item!r}.")
    labelled = None
    if outputs is not None:
        source = open_outputs(outputs, groups=group or (), columns=table.columns(label_column))
        labelled = source.read_labelled("a plan")
    result = make_plan(
        alpha, within, probability, outputs=labelled, n=samples, groups=shares or None
    )
    if console.settings.json:
        console.print_json(resolved(context) | result.to_dict())
        return
    for line in result.summary().splitlines():
        console.print_text(line)
        console.print_text("")
    first, *rest = result.rows
    hardest = sorted(rest, key=lambda row: -row.in_all)[:_MOST_ROWS]
    rows = []
    for row in (first, *hardest):
        coverage = "full sets" if row.lower == 1.0 else f"{row.lower:.3f} to {row.upper:.3f}"
        present = ["", ""] if row.present is None else [f"{row.present:,}", coverage]
        test = "none is enough" if row.test_in_all is None else f"{row.test_in_all:,}"
        rows.append([row.part, f"{row.needed:,}", f"{row.in_all:,}", *present, test])
    header = ["Part", "Needed", "In all", "Present", "Coverage with these", "Test samples in all"]
    console.print_table(header, rows)
    if len(rest) > len(hardest):
        console.say(
            f"{len(rest) - len(hardest):,} groups and classes that need fewer are left out."
        )


# --- Calibrating -------------------------------------------------------------------------------


@app.command()
@expanded
def calibrate(
    context: typer.Context,
    outputs: LabelledOutputs,
    output: Annotated[Path, option("MODEL", "Where to save it (.trustsets).", "--output", "-o")],
    *,
    options: MethodOptions,
    adapt: Annotated[Path | None, option("FILE", "Unlabelled outputs to adapt to.")] = None,
    shift: Annotated[Literal["label", "covariate"], option("WHAT", "How they differ.")] = "label",
    table: TableOptions,
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
    from trustsets import _storage as storage
    from trustsets.files import check_output

    inputs = [outputs, options.train, options.tuning, options.classes, adapt]
    check_output(output, (_MODEL,), inputs)
    with console.progress("Calibrating", None):
        source, predictor = _calibrated(outputs, options, table, "calibration")
        if adapt is not None:
            other = _same_classes(adapt, source, predictor.needed_groups)
            predictor = predictor.adapt(other.without_labels().read_all(), shift=shift)
    record = resolved(context)
    storage.write(output, predictor, record | {"columns": asdict(source.table)})
    summary = predictor.summary()
    result = {
        "output": str(output),
        "n": predictor.n_calibration_,
        "n_tuning": predictor.n_tuning_,
        "n_classes": predictor.classes_.size,
        "temperature": predictor.temperature_,
        "summary": summary,
    }
    notes = []
    if options.train is None and _could_use_trust(options) and source.trust is None:
        notes.append("There are no training samples (--train), so trust is not used.")
    console.conclude(record | result, *notes, *summary.split("\n"), f"Saved to {output}.")


@app.command()
@expanded
def audit(
    context: typer.Context,
    outputs: LabelledOutputs,
    output: Page = Path("audit.html"),
    alpha: Alpha = 0.1,
    level: Level = 0.95,
    *,
    options: MethodOptions,
    table: TableOptions,
) -> None:
    """Measure coverage without a test set, and search for where it fails.

    OUTPUTS holds labelled samples, as for 'trustsets calibrate'. Each sample is
    left out once: its set comes from all the others. The page names regions
    whose coverage is too low.

    Example:

      trustsets audit held_out.npz --train train.npz -o audit.html
    """
    from trustsets.auditing import audit as audit_predictor
    from trustsets.auditing import excess_risk, find_regions
    from trustsets.files import check_output
    from trustsets.report import write_report

    check_output(output, (".html",), [outputs, options.train, options.tuning, options.classes])
    record = resolved(context)
    with console.progress("Auditing", None):
        _, predictor = _calibrated(outputs, options, table, "an audit", always_trust=True)
        sets, left_out = predictor.leave_one_out(alpha), predictor.calibration_
        shared: dict[str, Any] = {"level": level, "seed": options.seed}
        regions = find_regions(sets, left_out, **shared)
        risk = excess_risk(sets, left_out, **shared)
        evaluation = audit_predictor(predictor, alpha, sets=sets, level=level)
        evaluation = replace(evaluation, more=risk.metrics)
        details = {"Outputs": str(outputs), "Options": json.dumps(record)}
        if predictor.n_tuning_:
            details["Tuning samples"] = f"{predictor.n_tuning_:,}, not audited"
        write_report(
            output,
            {options.method: evaluation},
            predictors=predictor,
            outputs=left_out,
            sets=sets,
            regions=regions,
            title="Audit",
            details=details,
        )
    if console.settings.json:
        result = {"evaluation": evaluation.to_dict(), "regions": regions.to_dict()}
        console.print_json(record | result)
        return
    for line in regions.summary().split("\n"):
        console.print_text(line)
    console.say(f"No test set was used. The audit is in {output}; open it in a browser.")


def _calibrated(
    outputs: Path,
    options: MethodOptions,
    table: TableOptions,
    purpose: str,
    *,
    always_trust: bool = False,
) -> "tuple[OutputsFile, Predictor]":
    """The labelled outputs, and the predictor that the options describe, calibrated with them."""
    from trustsets.files import open_outputs, read_classes, split_names
    from trustsets.recipes import make_predictor, method_name, warn_of_unused_groups

    names = None if options.classes is None else read_classes(options.classes)
    columns = table.columns(options.label_column)
    source = open_outputs(outputs, groups=options.group or (), classes=names, columns=columns)
    samples = source.read_labelled(purpose)
    groups = split_names(options.group or (), samples.groups)
    parameters = _parameters(options.set or ())
    with _values_of_set(options):
        trust = None
        neighbour = parameters.pop("neighbour", 1)
        if _could_use_trust(options) or (always_trust and options.train is not None):
            trust = _trust(options, source, samples, neighbour)
        basis = split_names(options.basis or ()) or None
        predictor = make_predictor(
            options.method,
            score=options.score,
            trust=trust,
            basis="auto" if basis == ["auto"] else basis,
            statistics=split_names(options.statistic or ()),
            groups=groups,
            n=len(samples),
            seed=options.seed,
            **parameters,
        )
        tuning = None
        if options.tuning is not None:
            tuning = _same_classes(options.tuning, source, groups).read_labelled("tuning")
        predictor.calibrate(samples.with_trust(trust), tuning=tuning)
    if method_name(options.method) != "class":
        warn_of_unused_groups(predictor, groups)
    return source, predictor


def _parameters(items: Sequence[str]) -> dict[str, Any]:
    """Parameters by name from ``NAME=VALUE``: numbers, true, false, null, or texts."""
    from trustsets.errors import InputError

    parameters: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise InputError(f"--set must be NAME=VALUE, such as degree=3; got {item!r}.")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        parameters[name.strip().replace("-", "_")] = value
    return parameters


@contextmanager
def _values_of_set(options: MethodOptions) -> Iterator[None]:
    """Values of parameters that Python refuses come from the command line."""
    from trustsets.errors import InputError

    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        if not options.set:
            raise
        raise InputError(f"--set {' '.join(options.set)}: {error}.") from error


def _could_use_trust(options: MethodOptions) -> bool:
    from trustsets.files import split_names
    from trustsets.recipes import uses_trust

    basis, statistics = split_names(options.basis or ()), split_names(options.statistic or ())
    return uses_trust(options.method, basis, statistics)


def _trust(
    options: MethodOptions, source: "OutputsFile", samples: "ModelOutputs", neighbour: int
) -> "TrustScore | None":
    """The trust score of the training samples; None where the outputs have trust, or without."""
    import numpy as np

    from trustsets.errors import InputError, TrustSetsWarning
    from trustsets.files import read_training, split_names
    from trustsets.recipes import method_name
    from trustsets.trust import TrustScore

    if samples.trust is not None:
        return None
    if options.train is None:
        asked = "trust" in split_names(options.statistic or ())
        if asked or method_name(options.method) in ("paper", "naive"):
            raise InputError(
                "the trust score needs training samples: give a file with their features and "
                "labels (--train FILE)."
            )
        return None
    if samples.features is None:
        raise InputError(
            f"{source.path}: there is no array 'features', which the trust score needs. Save the "
            "embeddings with the logits, name their columns (--feature-columns), or leave out "
            "--train."
        )
    features, labels = read_training(options.train, samples.classes, source.table)
    if source.path.samefile(options.train):
        warnings.warn(
            f"{options.train} is both the calibration file and the training file. Coverage is "
            "guaranteed only for a calibration on samples that the classifier was not trained on, "
            "and that are not their own neighbours in the trust score. Give another file.",
            TrustSetsWarning,
            stacklevel=2,
        )
    if features.shape[1] != samples.features.shape[1]:
        raise InputError(
            f"{options.train}: array 'features' has {features.shape[1]} columns, and {source.path} "
            f"has {samples.features.shape[1]}. Use the same layer of the same model."
        )
    unknown = np.setdiff1d(labels, samples.classes)
    if unknown.size:
        raise InputError(
            f"{options.train}: array 'labels' holds {unknown[0]!r}, which is no class of "
            f"{source.path}. Use the same class names in both."
        )
    return TrustScore(neighbour=neighbour).fit(features, labels)


def _same_classes(path: Path, source: "OutputsFile", groups: Sequence[str]) -> "OutputsFile":
    """Outputs of the same classes in the same order, or without names."""
    import numpy as np

    from trustsets.errors import InputError
    from trustsets.files import open_outputs

    other = open_outputs(path, groups=groups, classes=source.classes, remembered=source.table)
    names: Any = source.classes
    if other.stored_classes is not None and not np.array_equal(other.stored_classes, names):
        raise InputError(
            f"{path}: its classes are not those of the calibration samples, or in another order. "
            "Use outputs of the same classifier."
        )
    return other


# --- Predicting --------------------------------------------------------------------------------


@app.command()
@expanded
def predict(
    context: typer.Context,
    model: Model,
    outputs: NewOutputs,
    output: Annotated[Path, option("FILE", "Result: .parquet, .csv or .jsonl.", "--output", "-o")],
    alpha: Alpha = 0.1,
    max_size: Annotated[int | None, option("K", "Largest size of a set.")] = None,
    probabilities: Annotated[
        bool, option(None, "Write those of a set.", "--probabilities")
    ] = False,
    id: Annotated[list[str] | None, option("NAMES", "Arrays to copy: name,date.")] = None,
    *,
    table: TableOptions,
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

    summary = predict_file(
        model,
        outputs,
        output,
        alpha=alpha,
        max_size=max_size,
        probabilities=probabilities,
        ids=id or (),
        columns=table.columns(),
        progress=False if console.settings.quiet else None,
    )
    result = resolved(context) | {"output": str(output)} | summary.to_dict()
    console.conclude(result, *summary.sentences(), f"Written to {output}.")


# --- Evaluating --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparisonOptions:
    """Which models are evaluated on which samples, and what is measured."""

    outputs: LabelledOutputs
    models: Annotated[list[str], argument("MODELS", "Saved by 'trustsets calibrate': [NAME=]FILE.")]
    alpha: Alpha = 0.1
    train: Annotated[Path | None, option("FILE", _TRAIN)] = None
    group: Groups = None
    metric: Annotated[list[str] | None, option("NAMES", _METRIC)] = None
    level: Level = 0.95
    seed: Seed = 0
    label_column: LabelColumn = None

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Files of the models by name, from ``PATH`` (named by the file) or ``NAME=PATH``."""
        from trustsets.errors import InputError

        paths: dict[str, Path] = {}
        for item in self.models:
            name, equals, rest = item.partition("=")
            path = Path(rest if equals else item)
            name = name if equals else path.stem
            if name in paths:
                raise InputError(
                    f"two models are called {name!r} ({paths[name]} and {path}); give one another "
                    "name, as in NAME=FILE."
                )
            paths[name] = path
        return paths


@app.command()
@expanded
def evaluate(
    context: typer.Context,
    output: Annotated[
        Path | None, option("FILE", "Write numbers as JSON.", "--output", "-o")
    ] = None,
    *,
    options: ComparisonOptions,
    table: TableOptions,
) -> None:
    """Measure where sets keep their coverage and where they fail.

    MODELS are files (.trustsets) as FILE or NAME=FILE. Every number has an
    interval. The noise floor of a gap is what a perfect method would show on
    so few samples.

    Example:

      trustsets evaluate test.npz standard.trustsets ours=model.trustsets
    """
    from trustsets._storage import atomic_path

    evaluations, *_ = _evaluated(options, table, output, ".json")
    result = _plain(resolved(context), evaluations)
    if output is not None:
        with atomic_path(output) as temporary:
            temporary.write_text(json.dumps(result, indent=1) + "\n")
    if console.settings.json:
        console.print_json(result)
        return
    _print_evaluations(evaluations)
    for name, item in evaluations.items():
        if item.advice:
            console.say(f"{name}: {item.advice}")
    if output is not None:
        console.say(f"All numbers are in {output}.")


@app.command()
@expanded
def report(
    context: typer.Context,
    output: Page = Path("report.html"),
    regions: Annotated[
        bool, option(None, "Search for under-covered regions.", "--regions")
    ] = False,
    *,
    options: ComparisonOptions,
    table: TableOptions,
) -> None:
    """Write one self-contained HTML page to click through and to print.

    It takes what 'trustsets evaluate' takes, and says whether marginal coverage
    reaches its target, in which classes and groups it does not, and what to do.
    Then come heatmaps of coverage, and the worst classes, groups and samples.
    Several models are also compared at the mean set size of the last one.

    Example:

      trustsets report test.npz standard.trustsets model.trustsets
    """
    from trustsets.auditing import excess_risk, find_regions
    from trustsets.metrics import compare
    from trustsets.report import write_report

    record = resolved(context)
    evaluations, samples, predictors, sets = _evaluated(options, table, output, ".html")
    searched = comparison = None
    with console.progress("Report", None):
        if len(predictors) > 1:
            comparison = compare(predictors, outputs=samples, alpha=options.alpha, equal_size=True)
        if regions:
            shared: dict[str, Any] = {"level": options.level, "seed": options.seed}
            searched = {name: find_regions(one, samples, **shared) for name, one in sets.items()}
            for name, item in evaluations.items():
                risk = excess_risk(sets[name], samples, **shared)
                evaluations[name] = replace(item, more=risk.metrics)
        write_report(
            output,
            evaluations,
            predictors=predictors,
            outputs=samples,
            sets=sets,
            regions=searched,
            comparison=comparison,
            details={"Outputs": str(options.outputs), "Options": json.dumps(record)},
        )
    text = f"The report is in {output}; open it in a browser."
    console.conclude(_plain(record, evaluations), text)


def _evaluated(
    options: ComparisonOptions, table: TableOptions, output: Path | None, suffix: str
) -> "tuple[dict[str, Evaluation], ModelOutputs, dict[str, Predictor], dict[str, PredictionSets]]":
    """Evaluations of all models; the labelled samples with trust, the models, and their sets."""
    from trustsets.errors import InputError
    from trustsets.files import check_output, open_for_model, read_training, split_names
    from trustsets.metrics import FrequencyBins
    from trustsets.metrics import evaluate as evaluate_sets
    from trustsets.predictors import load
    from trustsets.trust import TrustScore

    if output is not None:
        inputs = [options.outputs, *options.paths.values(), options.train]
        check_output(output, (suffix,), inputs)
    predictors = {name: load(path) for name, path in options.paths.items()}
    groups = list(options.group or ())
    for predictor in predictors.values():
        groups += predictor.needed_groups
    columns = table.columns(options.label_column)
    for name, predictor in reversed(predictors.items()):
        # The class names and columns of the first model are those that are used.
        path = options.paths[name]
        source = open_for_model(options.outputs, predictor, path, groups=groups, columns=columns)
    samples = source.read_labelled("evaluation")
    trust = next((one.trust for one in predictors.values() if one.trust is not None), None)
    if options.train is not None:
        trust = TrustScore().fit(*read_training(options.train, samples.classes, source.table))
    if options.train is not None or samples.features is not None:
        samples = samples.with_trust(trust)
    # Class frequencies in the calibration samples of the first model.
    counts = next(iter(predictors.values())).class_counts_
    evaluations, sets = {}, {}
    with console.progress("Evaluations", len(predictors)) as advance:
        for name, predictor in predictors.items():
            try:
                sets[name] = predictor.predict_set(samples, options.alpha)
                evaluations[name] = evaluate_sets(
                    sets[name],
                    samples,
                    metrics=split_names(options.metric or ()) or None,
                    bins={"conf_frequency": FrequencyBins(counts)},
                    level=options.level,
                )
            except InputError as error:
                path = options.paths[name]
                raise InputError(f"{path} on {options.outputs}: {error}") from error
            advance(1)
    return evaluations, samples, predictors, sets


def _plain(record: dict[str, Any], evaluations: "dict[str, Evaluation]") -> dict[str, Any]:
    """Options and evaluations as plain data for JSON."""
    return record | {"evaluations": {name: item.to_dict() for name, item in evaluations.items()}}


def _print_evaluations(evaluations: "dict[str, Evaluation]") -> None:
    """Print one table: every metric of one method, or the main ones of several."""
    from trustsets.metrics import compare
    from trustsets.metrics import title as metric_title

    def text(number: float) -> str:
        return "" if math.isnan(number) else f"{number:.3f}"

    first = next(iter(evaluations.values()))
    is_single = len(evaluations) == 1
    table = compare(evaluations, columns=list(first.metrics) if is_single else None)
    rows = []
    for number, column in enumerate(table.columns):
        for (name,), entries in zip(table.keys, table.entries, strict=True):
            entry = entries[number]
            interval = f"{text(entry.lower)} to {text(entry.upper)}" if text(entry.lower) else ""
            rows.append([metric_title(column), name, text(entry.mean), interval, text(entry.floor)])
    console.print_table(
        ["Metric", "Method", "Value", f"{100 * first.level:g}% interval", "Noise floor"],
        rows,
        title=f"{first.n:,} samples, {first.n_classes:,} classes, alpha = {first.alpha:g}",
        n_names=2,
    )


# --- Watching and looking ----------------------------------------------------------------------


@app.command()
@expanded
def explore(
    context: typer.Context,
    outputs: Annotated[Path | None, argument("OUTPUTS", "Labelled outputs; else the demo.")] = None,
    train: Annotated[Path | None, option("FILE", "Training features and labels.")] = None,
    images: Annotated[Path | None, option("FOLDER", "Images of the samples.")] = None,
    text: Annotated[str | None, option("NAME", "The array of the files that holds texts.")] = None,
    classes: Classes = None,
    group: Groups = None,
    task: Task = TaskName.digits,
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
        console.print_lines([explorer.url])
        console.flush()
        console.say("The explorer is at this address, for this machine alone. Ctrl-C ends it.")
        explorer.wait()
    except KeyboardInterrupt:
        explorer.stop()
        console.say("The explorer has ended.")


@app.command()
@expanded
def monitor(
    context: typer.Context,
    model: Model,
    outputs: Annotated[Path | None, argument("OUTPUTS", "New outputs.")] = None,
    *,
    state: Annotated[Path, option("FILE", "State of the monitor (.trustsets), made at first.")],
    labels: Annotated[Path | None, option("FILE", "Late labels, by 'id'.")] = None,
    reference: Annotated[Path | None, option("FILE", "What MODEL was calibrated on.")] = None,
    alpha: Annotated[float | None, option("SHARE", "Allowed miscoverage.")] = None,
    false_alarm: Annotated[float | None, option("SHARE", "Chance of a false alarm.")] = None,
    batch: Annotated[str | None, option("NAME", "Name of the batch. Default: a digest.")] = None,
    in_order: Annotated[bool, option(None, "Samples are in order of time.", "--in-order")] = False,
    group: Groups = None,
    label_column: LabelColumn = None,
    table: TableOptions,
) -> None:
    """Watch coverage over time; exit code 3 means that there is an alarm.

    Run it for every new batch, for example from cron. New samples are
    compared with those of the calibration: by their labels, where there are
    any, and by what the model says about them. If nothing changes, the
    probability of any alarm is 5%, however often you look. A batch counts
    once: after an interruption, give the same command again. Labels that come
    later are a file with the arrays 'id' and 'labels'.

    Example:

      trustsets monitor model.trustsets new.parquet --state watch.trustsets
    """
    from trustsets.errors import InputError
    from trustsets.files import check_output, content_digest, open_for_model, read_late_labels
    from trustsets.predictors import load
    from trustsets.resuming import locked

    if outputs is not None and labels is not None:
        raise InputError("give OUTPUTS or --labels, not both: each is a batch of its own.")
    check_output(state, (_MODEL,), [model, outputs, labels, reference])
    columns = table.columns(label_column)
    # The state is replaced as a whole after the batch was taken, and it remembers the batch: a run
    # that was killed is repeated by the same command.
    with locked(state.absolute().parent / f".{state.name}.lock", state):
        predictor = load(model)
        open_batch = partial(
            open_for_model, predictor=predictor, model=model, groups=group or (), columns=columns
        )
        begun = None
        if reference is not None and not state.exists():
            begun = open_batch(reference).read_all()
        watch = _open_monitor(state, predictor, begun, {"alpha": alpha, "false_alarm": false_alarm})
        n_before = len(watch.batches)
        if outputs is not None and (name := batch or content_digest(outputs)) not in watch.batches:
            source = open_batch(outputs)
            ids = source.ids["id"].read_names().tolist() if "id" in source.ids else None
            watch.observe(source.read_all(), ids=ids, batch=name, in_order=in_order)
        if labels is not None:
            ids, late = read_late_labels(labels, predictor.classes_, columns)
            watch.label(ids, late, batch=batch or content_digest(labels), in_order=in_order)
        is_new = len(watch.batches) > n_before
        if is_new or not state.exists():
            watch.save(state)
    verdict = watch.verdict()
    if (outputs or labels) and not is_new:
        console.say("This batch was counted before.")
    if console.settings.json:
        console.print_json(resolved(context) | verdict.to_dict())
    else:
        headline, *rest = verdict.summary().splitlines()
        console.print_text(headline, "bold red" if verdict.alarm else "bold")
        for line in rest:
            console.print_text(line)
        lowest = sorted(verdict.parts[1:], key=lambda row: row.upper)[:_MOST_ROWS]
        rows = [
            [
                row.part,
                f"{row.n:,}",
                f"{row.coverage:.3f}",
                f"{row.lower:.3f} to {row.upper:.3f}",
                f"{row.size:.2f}",
            ]
            for row in (*verdict.parts[:1], *lowest)
        ]
        if rows:
            console.print_text("")
            console.print_table(["Part", "Labelled", "Coverage", "Interval", "Size"], rows)
    if verdict.alarm:
        raise typer.Exit(ALARM)


def _open_monitor(
    state: Path,
    predictor: "Predictor",
    reference: "ModelOutputs | None",
    parameters: dict[str, float | None],
) -> "Monitor":
    """The monitor of a state, which is begun if there is none."""
    from trustsets.errors import InputError
    from trustsets.monitor import Monitor

    wanted: dict[str, Any] = {
        name: value for name, value in parameters.items() if value is not None
    }
    if not state.exists():
        return Monitor(predictor, reference=reference, **wanted)
    watch = Monitor.load(state, predictor)
    for name, value in wanted.items():
        begun_with = getattr(watch.verdict(), name)
        if value != begun_with:
            raise InputError(
                f"{state}: it was begun with {name}={begun_with:g}; got {value:g}. Leave it out, "
                "or begin a new state."
            )
    return watch


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
    from trustsets.errors import InputError
    from trustsets.verify import failing_conditions, read_certificate

    try:
        numbers = read_certificate(str(certificate))
    except ValueError as error:
        raise InputError(str(error)) from error
    failing = failing_conditions(numbers)
    claim = f"the threshold {numbers['threshold']:.6g} at alpha {numbers['alpha']:.6g}"
    text = f"not valid: {'; '.join(failing)}" if failing else f"valid: it proves {claim}"
    if console.settings.json:
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
    from trustsets.engine.compiled import stop_announcing
    from trustsets.trust import TrustScore

    stop_announcing()
    start, rng = time.perf_counter(), np.random.default_rng(0)
    with console.progress("compiling", total=3) as advance:
        warm_up()
        advance(1)
        for kind in (np.float32, np.float64):
            features, labels = rng.random((60, 3)).astype(kind), np.arange(60) % 3
            TrustScore().fit(features, labels).score(features, labels)
            advance(1)
    seconds = round(time.perf_counter() - start, 1)
    text = f"The numerical kernels are ready (after {seconds} s)."
    console.conclude({"seconds": seconds}, text)


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
