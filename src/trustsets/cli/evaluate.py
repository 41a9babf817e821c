"""``trustsets evaluate`` and ``trustsets report``: where coverage fails, as numbers or a page."""

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trustsets.cli import console
from trustsets.cli.options import (
    Classes,
    Groups,
    LabelColumn,
    LabelledOutputs,
    Seed,
    TableOptions,
    argument,
    option,
    resolved,
)

if TYPE_CHECKING:
    from trustsets.files import TableColumns
    from trustsets.metrics import Entry, Evaluation
    from trustsets.outputs import ModelOutputs
    from trustsets.predictors import Predictor
    from trustsets.sets import PredictionSets

__all__ = ["evaluate", "report"]

_MODEL = ".trustsets"
_ALPHA = "Share of sets that may miss the true class. Default: that of predictions, or else 0.1."
_TRAIN = (
    "Features and labels of the training data, for the trust score. Default: the trust score of "
    "the first model that has one."
)
_METRIC = (
    "Measure only these of conf_trust, conf_rank, conf_frequency, class, groups, size_strata "
    "and trust_rank. Default: all."
)
_BELOW = "Report the share of classes and groups covered less than this; may be given again."


@dataclass(frozen=True)
class ComparisonOptions:
    """Which methods are evaluated on which samples, and what is measured."""

    outputs: LabelledOutputs
    methods: Annotated[list[str], argument("METHODS", "Models or predictions: [NAME=]FILE.")]
    alpha: Annotated[float | None, option("SHARE", _ALPHA)] = None
    train: Annotated[Path | None, option("FILE", _TRAIN)] = None
    classes: Classes = None
    group: Groups = None
    metric: Annotated[list[str] | None, option("NAMES", _METRIC)] = None
    below: Annotated[list[float] | None, option("SHARE", _BELOW)] = None
    level: Annotated[float, option("SHARE", "Confidence level of the intervals.")] = 0.95
    seed: Seed = 0
    label_column: LabelColumn = None

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Files of the methods by name, from ``PATH`` (named by the file) or ``NAME=PATH``."""
        from trustsets.errors import InputError
        from trustsets.files.writing import SET_SUFFIXES

        found: dict[str, Path] = {}
        for item in self.methods:
            name, equals, rest = item.partition("=")
            path = Path(rest if equals else item)
            name = name if equals else path.stem
            if name in found:
                raise InputError(
                    f"two methods are called {name!r} ({found[name]} and {path}); give one another "
                    "name, as in NAME=FILE."
                )
            if path.suffix not in (_MODEL, *SET_SUFFIXES):
                raise InputError(
                    f"{path}: neither a model ({_MODEL}) nor predictions "
                    f"({', '.join(SET_SUFFIXES)})."
                )
            found[name] = path
        return found

    @property
    def inputs(self) -> list[Path]:
        """All files that are read."""
        return [
            path
            for path in (self.outputs, *self.paths.values(), self.train, self.classes)
            if path is not None
        ]


def _load(
    options: ComparisonOptions, columns: "TableColumns"
) -> "tuple[ModelOutputs, dict[str, Predictor], dict[str, PredictionSets]]":
    """The labelled samples with their trust, the models, and the sets of all methods."""
    from trustsets.errors import InputError
    from trustsets.files import read_sets
    from trustsets.predictors import load

    models = {name: path for name, path in options.paths.items() if path.suffix == _MODEL}
    predictors = {name: load(path) for name, path in models.items()}
    samples = _samples(options, columns, predictors)
    sets = {
        name: read_sets(path, samples.classes)
        for name, path in options.paths.items()
        if name not in predictors
    }
    alpha = options.alpha
    if alpha is None:
        alpha = float(next(iter(sets.values())).alpha) if sets else 0.1  # type: ignore[arg-type]
    for name, own in sets.items():
        if own.alpha != alpha:
            raise InputError(
                f"{options.paths[name]}: its sets were made with alpha={own.alpha:g}, and the "
                f"others have alpha={alpha:g}. Compare sets of one alpha."
            )
        if len(own) != len(samples):
            raise InputError(
                f"{options.paths[name]}: it holds {len(own)} sets, and {options.outputs} has "
                f"{len(samples)} samples. Predict the same file that you evaluate on."
            )
    for name, predictor in predictors.items():
        try:
            sets[name] = predictor.predict_set(samples, alpha)
        except InputError as error:
            raise InputError(f"{models[name]} on {options.outputs}: {error}") from error
    return samples, predictors, {name: sets[name] for name in options.paths}


def _samples(
    options: ComparisonOptions, columns: "TableColumns", predictors: "dict[str, Predictor]"
) -> "ModelOutputs":
    """The labelled samples, with the class names of the models and with trust."""
    from trustsets.errors import InputError
    from trustsets.files import open_outputs, read_classes, read_training, remembered_columns
    from trustsets.files.reading import PLAIN
    from trustsets.trust import TrustScore

    classes = None if options.classes is None else read_classes(options.classes)
    groups = list(options.group or ())
    remembered = PLAIN
    for name, predictor in predictors.items():
        groups += predictor.needed_groups
        classes = predictor.classes_ if classes is None else classes
        if remembered == PLAIN:
            remembered = remembered_columns(options.paths[name])
    source = open_outputs(
        options.outputs, groups=groups, classes=classes, columns=columns, remembered=remembered
    )
    if source.own_classes is not None and options.classes is None:
        source = source.with_classes(source.own_classes)
    for name, predictor in predictors.items():
        if source.n_classes != predictor.classes_.size:
            raise InputError(
                f"{options.outputs}: array {source.values.name!r} has {source.n_classes} classes, "
                f"and {options.paths[name]} was calibrated with {predictor.classes_.size}. Use "
                "outputs of the same classifier."
            )
    samples = source.read_labelled("evaluation")
    if options.train is not None:
        if samples.features is None:
            raise InputError(
                f"{options.outputs}: there is no array 'features', which the trust score needs. "
                "Add it, or leave out --train."
            )
        training = read_training(options.train, samples.classes, source.table)
        return samples.with_trust(TrustScore().fit(*training))
    scores = [one.trust for one in predictors.values() if one.trust is not None]
    return samples.with_trust(scores[0]) if scores and samples.features is not None else samples


def _evaluate(
    options: ComparisonOptions,
    samples: "ModelOutputs",
    predictors: "dict[str, Predictor]",
    sets: "dict[str, PredictionSets]",
) -> "dict[str, Evaluation]":
    """Measure all methods."""
    from trustsets.errors import InputError
    from trustsets.files.reading import split_names
    from trustsets.metrics import FrequencyBins, evaluate

    counts = next((one.class_counts_ for one in predictors.values()), None)
    found = {}
    with console.progress("Evaluations", len(sets)) as advance:
        for name, own in sets.items():
            try:
                found[name] = evaluate(
                    own,
                    samples,
                    metrics=split_names(options.metric or ()) or None,
                    # Class frequencies in the calibration samples of the first model.
                    bins={} if counts is None else {"conf_frequency": FrequencyBins(counts)},
                    below=tuple(options.below or (0.5,)),
                    level=options.level,
                    seed=options.seed,
                )
            except InputError as error:
                raise InputError(f"{options.outputs}: {error}") from error
            advance(1)
    return found


def _plain(found: "dict[str, Evaluation]", record: dict[str, Any]) -> dict[str, Any]:
    """Options and evaluations as plain data for JSON."""
    return record | {"evaluations": {name: item.to_dict() for name, item in found.items()}}


def evaluate(
    context: typer.Context,
    output: Annotated[
        Path | None, option("FILE", "Write all numbers as JSON.", "--output", "-o")
    ] = None,
    *,
    options: ComparisonOptions,
    table: TableOptions,
) -> None:
    """Measure where sets keep their coverage and where they fail.

    METHODS are models (.trustsets) or what 'trustsets predict' wrote for the
    same OUTPUTS, as FILE or NAME=FILE. Every number has an interval. The noise
    floor of a gap is what a perfect method would show on so few samples.

    Example:

      trustsets evaluate test.npz standard.trustsets ours=model.trustsets
    """
    from trustsets._storage import atomic_path
    from trustsets.files import Snapshot, check_output

    record = resolved(context)
    if output is not None:
        check_output(output, (".json",), options.inputs)
    before = Snapshot(*options.inputs)
    samples, predictors, sets = _load(options, table.columns(options.label_column))
    found = _evaluate(options, samples, predictors, sets)
    if output is not None:
        with atomic_path(output) as temporary:
            temporary.write_text(json.dumps(_plain(found, record), indent=1) + "\n")
            before.check()
    if console.settings.json:
        console.print_json(_plain(found, record))
        return
    _print(found)
    for name, item in found.items():
        if item.advice:
            console.say(f"{name}: {item.advice}")
    if output is not None:
        console.say(f"All numbers are in {output}.")


def _print(found: "dict[str, Evaluation]") -> None:
    """Print one table: every metric of one method, or the main ones of several."""
    from rich.markup import escape

    from trustsets.metrics import compare, title

    first = next(iter(found.values()))
    table = compare(found, columns=list(first.metrics) if len(found) == 1 else None)
    rows = []
    for place, column in enumerate(table.columns):
        for (name,), entries in zip(table.keys, table.entries, strict=True):
            names = [escape(console.visible(text)) for text in (title(column), name)]
            rows.append([*names, *_cells(entries[place], len(found) > 1)])
    console.print_table(
        ["Metric", "Method", "Value", f"{100 * first.level:g}% interval", "Noise floor"],
        rows,
        title=f"{first.n:,} samples, {first.n_classes:,} classes, alpha = {first.alpha:g}",
        n_names=2,
    )


def _cells(entry: "Entry", several: bool) -> list[str]:
    value = _number(entry.mean)
    interval = f"{_number(entry.lower)} to {_number(entry.upper)}"
    return [
        f"[bold green]{value}[/]" if several and entry.best else value,
        "" if math.isnan(entry.lower) else interval,
        _number(entry.floor),
    ]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def report(
    context: typer.Context,
    output: Annotated[Path, option("FILE", "Where to write the page.", "--output", "-o")] = Path(
        "report.html"
    ),
    title: Annotated[str, option("TEXT", "Title of the page.")] = "Coverage report",
    regions: Annotated[
        bool,
        option(None, "Search for under-covered regions; takes seconds a method.", "--regions"),
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
    from trustsets.files import Snapshot, check_output
    from trustsets.metrics import compare
    from trustsets.report import write_report

    record = resolved(context)
    check_output(output, (".html",), options.inputs)
    before = Snapshot(*options.inputs)
    samples, predictors, sets = _load(options, table.columns(options.label_column))
    found = _evaluate(options, samples, predictors, sets)
    searched = comparison = None
    with console.progress("Report", None):
        if len(predictors) == len(sets) > 1:
            alpha = next(iter(found.values())).alpha
            comparison = compare(predictors, outputs=samples, alpha=alpha, equal_size=True)
        if regions:
            shared: dict[str, Any] = {"level": options.level, "seed": options.seed}
            searched = {name: find_regions(own, samples, **shared) for name, own in sets.items()}
            for name, item in found.items():
                risk = excess_risk(sets[name], samples, **shared)
                found[name] = replace(item, more=risk.metrics)
        before.check()
        write_report(
            output,
            found,
            predictors=predictors,
            outputs=samples,
            sets=sets,
            regions=searched,
            comparison=comparison,
            title=title,
            details={"Outputs": str(options.outputs), "Options": json.dumps(record)},
        )
    text = f"The report is in {output}; open it in a browser."
    console.conclude(_plain(found, record), text)
