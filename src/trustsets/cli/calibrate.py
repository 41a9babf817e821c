"""``trustsets calibrate`` and ``trustsets audit``: labelled outputs to a predictor or a page."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trustsets.cli import console
from trustsets.cli.options import (
    Alpha,
    Classes,
    Groups,
    LabelColumn,
    LabelledOutputs,
    Seed,
    TableOptions,
    option,
    resolved,
)

if TYPE_CHECKING:
    from trustsets.files import OutputsFile, TableColumns
    from trustsets.outputs import ModelOutputs
    from trustsets.predictors import Predictor
    from trustsets.trust import TrustScore

__all__ = ["audit", "calibrate"]

_TRAIN = (
    "Features and labels of the training data, for the trust score. Without it, coverage is "
    "conditioned on confidence and groups."
)
_TUNING = "Other labelled outputs to tune on, instead of a part of OUTPUTS."
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


@dataclass(frozen=True)
class MethodOptions:
    """Options that say which predictor is made, in the words of `trustsets.recipes`."""

    train: Annotated[Path | None, option("FILE", _TRAIN)] = None
    tuning: Annotated[Path | None, option("FILE", _TUNING)] = None
    classes: Classes = None
    group: Groups = None
    label_column: LabelColumn = None
    method: Annotated[str, option("METHOD", _METHOD)] = "conditional"
    score: Annotated[str | None, option("SCORE", _SCORE)] = None
    basis: Annotated[list[str] | None, option("NAMES", _BASIS)] = None
    statistic: Annotated[list[str] | None, option("NAMES", _STATISTIC)] = None
    set: Annotated[list[str] | None, option("NAME=VALUE", _SET)] = None
    seed: Seed = 0

    def samples(self, outputs: Path, columns: "TableColumns") -> "OutputsFile":
        """The labelled outputs."""
        from trustsets.files import open_outputs, read_classes

        names = None if self.classes is None else read_classes(self.classes)
        return open_outputs(outputs, groups=self.group or (), classes=names, columns=columns)

    @property
    def could_use_trust(self) -> bool:
        """Whether the method has a place for a trust score."""
        from trustsets.files.reading import split_names
        from trustsets.recipes import uses_trust

        basis, statistics = split_names(self.basis or ()), split_names(self.statistic or ())
        return uses_trust(self.method, basis, statistics)

    def predictor(
        self, source: "OutputsFile", samples: "ModelOutputs", *, always_trust: bool = False
    ) -> "tuple[Predictor, ModelOutputs]":
        """The predictor, not calibrated, and the samples with trust where it is known."""
        from trustsets.files.reading import split_names
        from trustsets.recipes import make_predictor

        parameters = _parameters(self.set or ())
        neighbour = parameters.pop("neighbour", 1)
        basis = split_names(self.basis or ()) or None
        statistics = split_names(self.statistic or ())
        trust = None
        if self.could_use_trust or (always_trust and self.train is not None):
            trust = self._trust(source, samples, neighbour, "trust" in statistics)
        predictor = make_predictor(
            self.method,
            score=self.score,
            trust=trust,
            basis=basis[0] if basis == ["auto"] else basis,
            statistics=statistics,
            groups=split_names(self.group or (), samples.groups),
            n=len(samples),
            seed=self.seed,
            **parameters,
        )
        return predictor, samples if trust is None else samples.with_trust(trust)

    def _trust(
        self, source: "OutputsFile", samples: "ModelOutputs", neighbour: int, asked: bool
    ) -> "TrustScore | None":
        """The trust score of the training samples."""
        import numpy as np

        from trustsets.errors import InputError, TrustSetsWarning
        from trustsets.files import read_training
        from trustsets.trust import TrustScore

        if samples.trust is not None:
            return None
        if self.train is None:
            if asked or self.method in ("paper", "naive"):
                raise InputError(
                    "the trust score needs training samples: give a file with their features and "
                    "labels (--train FILE)."
                )
            return None
        if samples.features is None:
            raise InputError(
                f"{source.path}: there is no array 'features', which the trust score needs. Save "
                "the embeddings with the logits, name their columns (--feature-columns), or leave "
                "out --train."
            )
        features, labels = read_training(self.train, samples.classes, source.table)
        if source.path.samefile(self.train):
            warnings.warn(
                f"{self.train} is both the calibration file and the training file. Coverage is "
                "guaranteed only for a calibration on samples that the classifier was not trained "
                "on, and that are not their own neighbours in the trust score. Give another file.",
                TrustSetsWarning,
                stacklevel=2,
            )
        if features.shape[1] != samples.features.shape[1]:
            raise InputError(
                f"{self.train}: array 'features' has {features.shape[1]} columns, and "
                f"{source.path} has {samples.features.shape[1]}. Use the same layer of the same "
                "model."
            )
        unknown = np.setdiff1d(labels, samples.classes)
        if unknown.size:
            raise InputError(
                f"{self.train}: array 'labels' holds {unknown[0]!r}, which is no class of "
                f"{source.path}. Use the same class names in both."
            )
        return TrustScore(neighbour=neighbour).fit(features, labels)

    def tuning_samples(self, source: "OutputsFile") -> "ModelOutputs | None":
        """The tuning samples, which must be of the same classes in the same order."""
        if self.tuning is None:
            return None
        return _same_classes(self.tuning, source, self.group).read_labelled("tuning")

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Refuse values of parameters that Python refuses: they come from the command line."""
        from trustsets.errors import InputError

        try:
            yield
        except InputError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            if not self.set:
                raise
            raise InputError(f"--set {' '.join(self.set)}: {error}.") from error

    def warn_of_groups(self, predictor: "Predictor") -> None:
        """Say which groups that were named the predictor does not depend on."""
        from trustsets.errors import TrustSetsWarning
        from trustsets.files.reading import split_names

        unused = [
            name for name in split_names(self.group or ()) if name not in predictor.needed_groups
        ]
        if unused and self.method != "class":
            warnings.warn(
                f"coverage is not conditioned on {', '.join(unused)}: the method {self.method} "
                "does without groups, or their values have too few tuning samples. Use the method "
                "groups, merge values, or give more samples.",
                TrustSetsWarning,
                stacklevel=2,
            )


def _same_classes(path: Path, source: "OutputsFile", groups: Any) -> "OutputsFile":
    """Outputs of the same classes in the same order, or without names."""
    import numpy as np

    from trustsets.errors import InputError
    from trustsets.files import open_outputs

    other = open_outputs(path, groups=groups or (), classes=source.classes, remembered=source.table)
    names: Any = source.classes
    if other.own_classes is not None and not np.array_equal(other.own_classes, names):
        raise InputError(
            f"{path}: its classes are not those of the calibration samples, or in another order. "
            "Use outputs of the same classifier."
        )
    return other


def _parameters(items: Any) -> dict[str, Any]:
    """Parameters by name from ``NAME=VALUE``: numbers, true, false, null, or texts."""
    from trustsets.errors import InputError

    found: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise InputError(f"--set must be NAME=VALUE, such as degree=3; got {item!r}.")
        try:
            found[name.strip().replace("-", "_")] = json.loads(text)
        except (ValueError, RecursionError):
            found[name.strip().replace("-", "_")] = text
    return found


def calibrate(
    context: typer.Context,
    outputs: LabelledOutputs,
    output: Annotated[Path, option("MODEL", "Where to save it (.trustsets).", "--output", "-o")],
    *,
    options: MethodOptions,
    adapt: Annotated[
        Path | None, option("FILE", "Unlabelled outputs of another population to predict.")
    ] = None,
    shift: Annotated[
        Literal["label", "covariate"], option("WHAT", "How it differs: label or covariate shift.")
    ] = "label",
    table: TableOptions,
) -> None:
    """Learn thresholds from labelled samples the classifier was not trained on.

    OUTPUTS holds the arrays 'logits' (or 'probabilities'), 'labels', for the
    trust score 'features' (the layer before the last), and, if you like,
    'classes' (their names) and groups called 'group_NAME'. In a table, such as
    a .csv file, each class has a column: 'prob_cat', or just 'cat'. The model
    remembers the columns. The allowed miscoverage alpha is chosen later, when
    predicting.

    Example:

      trustsets calibrate held_out.npz --train train.npz -o model.trustsets
    """
    from trustsets import _storage as storage
    from trustsets.files import Snapshot, check_output

    inputs = [outputs, options.train, options.tuning, options.classes, adapt]
    check_output(output, (".trustsets",), inputs)
    before = Snapshot(*inputs)
    columns = table.columns(options.label_column)
    with console.progress("Calibrating", None):
        source = options.samples(outputs, columns)
        with options.checked():
            predictor, samples = options.predictor(source, source.read_labelled("calibration"))
            predictor.calibrate(samples, tuning=options.tuning_samples(source))
        options.warn_of_groups(predictor)
        if adapt is not None:
            other = _same_classes(adapt, source, predictor.needed_groups)
            predictor = predictor.adapt(other.without_labels().read_all(), shift=shift)
    before.check()
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
    if options.train is None and options.could_use_trust and samples.trust is None:
        notes.append("There are no training samples (--train), so trust is not used.")
    lines = (*notes, *summary.split("\n"), f"Saved to {output}.")
    console.conclude(record | result, *lines)


def audit(
    context: typer.Context,
    outputs: LabelledOutputs,
    output: Annotated[Path, option("FILE", "Where to write the page.", "--output", "-o")] = Path(
        "audit.html"
    ),
    alpha: Alpha = 0.1,
    level: Annotated[float, option("SHARE", "Confidence level of the intervals.")] = 0.95,
    title: Annotated[str, option("TEXT", "Title of the page.")] = "Audit",
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
    from trustsets.auditing import find_regions
    from trustsets.files import Snapshot, check_output
    from trustsets.report import write_report

    inputs = [outputs, options.train, options.tuning, options.classes]
    check_output(output, (".html",), inputs)
    before, record = Snapshot(*inputs), resolved(context)
    with console.progress("Auditing", None):
        source = options.samples(outputs, table.columns(options.label_column))
        samples = source.read_labelled("an audit")
        with options.checked():
            predictor, samples = options.predictor(source, samples, always_trust=True)
            predictor.calibrate(samples, tuning=options.tuning_samples(source))
        options.warn_of_groups(predictor)
        shared: dict[str, Any] = {"level": level, "seed": options.seed}
        sets, left_out = predictor.leave_one_out(alpha), predictor.calibration_
        regions = find_regions(sets, left_out, **shared)
        evaluation = audit_predictor(predictor, alpha, sets=sets, risk=True, **shared)
        before.check()
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
            title=title,
            details=details,
        )
    if console.settings.json:
        console.print_json(
            record | {"evaluation": evaluation.to_dict(), "regions": regions.to_dict()}
        )
        return
    for line in regions.summary().split("\n"):
        console.print_text(line)
    console.say(f"No test set was used. The audit is in {output}; open it in a browser.")
