"""`evaluate_files` and `report_files`: methods against labelled outputs."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.atomic import StrPath
from trustsets._common.progress import Progress, no_progress
from trustsets.auditing import Regions, excess_risk, find_regions
from trustsets.basis import Partition
from trustsets.errors import InputError
from trustsets.files.calibration import load_labelled
from trustsets.files.naming import PLAIN, TableColumns
from trustsets.files.options import OPTIONS_FACT
from trustsets.files.parts import PartStore
from trustsets.files.paths import Snapshot, check_output, content_digest
from trustsets.files.prediction import check_n_classes
from trustsets.files.set_files import (
    DEFAULT_ALPHA,
    PREDICTION_SUFFIXES,
    read_alpha,
    read_predictions,
)
from trustsets.files.source import open_outputs, read_classes, read_training
from trustsets.metrics import Estimate, Evaluation, FrequencyBins, evaluate
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor, load
from trustsets.report import write_report
from trustsets.sets import PredictionSets
from trustsets.trust import TrustScore

_log = logging.getLogger(__name__)

MODEL_SUFFIX = ".trustsets"


def name_methods(items: Sequence[str]) -> dict[str, Path]:
    """Methods by name from ``PATH`` (named by the file) or ``NAME=PATH``.

    Examples
    --------
    >>> list(name_methods(["standard.trustsets", "ours=out/model.trustsets"]))
    ['standard', 'ours']
    """
    found: dict[str, Path] = {}
    for item in items:
        name, given, rest = item.partition("=")
        path = Path(rest if given else item)
        name = name if given else path.stem
        if name in found:
            raise InputError(
                f"two methods are called {name!r} ({found[name]} and {path}); give one another "
                "name, as in NAME=FILE."
            )
        if path.suffix not in (MODEL_SUFFIX, *PREDICTION_SUFFIXES):
            raise InputError(
                f"{path}: neither a model ({MODEL_SUFFIX}) nor predictions "
                f"({', '.join(PREDICTION_SUFFIXES)})."
            )
        found[name] = path
    if not found:
        raise InputError("there is nothing to evaluate; give at least one model or predictions.")
    return found


@final
@dataclass(frozen=True)
class Comparison:
    """Which methods are evaluated on which samples, and what is measured.

    Attributes
    ----------
    outputs : path
        Labelled outputs; all of it is read into memory.
    methods : mapping of names to paths
        Models, or predictions of the same outputs; see `name_methods`.
    alpha : float, optional
        Allowed miscoverage of the models' sets. Default: that of the predictions, or else 0.1.
    train : path, optional
        Training samples for the trust score. Default: the trust score of the first model that
        has one, for all methods.
    classes : path, optional
        Class names; see `read_classes`. Default: those in `outputs`, or of the first model.
    groups : tuple of str
        Arrays that are group columns, besides ``group_NAME``.
    columns : TableColumns
        Which columns of tables hold what.
    metrics, below, level, n_bootstrap, seed
        See `trustsets.evaluate`.
    """

    outputs: StrPath
    methods: Mapping[str, Path]
    alpha: float | None = None
    train: StrPath | None = None
    classes: StrPath | None = None
    groups: tuple[str, ...] = ()
    metrics: tuple[str, ...] | None = None
    below: tuple[float, ...] = (0.5,)
    level: float = 0.95
    n_bootstrap: int = 1000
    seed: int = 0
    columns: TableColumns = PLAIN

    @property
    def files(self) -> list[StrPath]:
        """All files that are read."""
        given = [self.outputs, *self.methods.values(), self.train, self.classes]
        return [path for path in given if path is not None]

    @property
    def measured(self) -> dict[str, Any]:
        """Options of `trustsets.evaluate`, by name."""
        names = ("metrics", "below", "level", "n_bootstrap", "seed")
        return {name: getattr(self, name) for name in names}


def evaluate_files(
    comparison: Comparison,
    result: StrPath | None = None,
    *,
    record: dict[str, Any] | None = None,
    progress: Progress = no_progress,
) -> dict[str, Evaluation]:
    """Evaluate models or predictions on a file of labelled outputs.

    Parameters
    ----------
    comparison : Comparison
        Methods, samples and metrics.
    result : path, optional
        Where to write everything as JSON. A run that was killed continues with the first
        method that was not done.
    record : dict, optional
        Options to store with the result.
    progress : callable, optional
        As in `predict_file`; a step is one method.
    """
    if result is not None:
        check_output(result, (".json",), comparison.files)
    before = Snapshot(*comparison.files)
    test = _Test(comparison)
    if result is None:
        return test.evaluate_all(progress)
    record = record or {"command": "evaluate", "options": {}}
    setting = {
        "files": [content_digest(path) for path in comparison.files],
        "alpha": test.alpha,
        "methods": list(comparison.methods),
        "measured": comparison.measured,
        "columns": asdict(comparison.columns),
        "record": record,
    }
    with PartStore(result, setting) as store:
        found = test.evaluate_all(progress, store)
        text = json.dumps(results_record(found, record), indent=1).encode() + b"\n"
        store.finish(lambda file: file.write(text), before.check)
    return found


def results_record(found: Mapping[str, Evaluation], record: dict[str, Any]) -> dict[str, Any]:
    """Options and evaluations as plain data for JSON."""
    return record | {"evaluations": {name: item.to_dict() for name, item in found.items()}}


def report_files(
    comparison: Comparison,
    result: StrPath,
    *,
    title: str = "Coverage report",
    regions: bool = False,
    slider: bool = True,
    record: dict[str, Any] | None = None,
    progress: Progress = no_progress,
) -> dict[str, Evaluation]:
    """Evaluate as `evaluate_files` does, and write a page about it; see `write_report`.

    With `regions`, under-covered regions are searched for and the excess risk is measured. With
    `slider`, the page shows the models at other alphas too.
    """
    check_output(result, (".html",), comparison.files)
    before = Snapshot(*comparison.files)
    test = _Test(comparison)
    found = test.evaluate_all(progress)
    sets = {name: test.sets(name) for name in found}
    searched = {name: test.find_regions(name) for name in found} if regions else None
    if regions:
        found = {name: replace(item, more=test.risk(name)) for name, item in found.items()}
    before.check()
    # Models at some twenty alphas take longer than all before.
    with progress(1) as advance:
        write_report(
            result,
            found,
            outputs=test.outputs,
            sets=sets,
            trust=test.trust,
            regions=searched,
            title=title,
            guarantee={
                name: predictor.summary(sets[name]) for name, predictor in test.predictors.items()
            },
            details={
                "Outputs": str(comparison.outputs),
                OPTIONS_FACT: json.dumps(record or {"command": "report", "options": {}}),
            },
            predictors=test.predictors,
            slider=slider,
        )
        advance(1)
    return found


@final
class _Test:
    """The samples and methods of a comparison, loaded when they are needed, and once."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison, self._path = comparison, Path(comparison.outputs)
        self._methods = comparison.methods
        self.predictors: dict[str, Predictor] = {
            name: load(file) for name, file in self._methods.items() if file.suffix == MODEL_SUFFIX
        }
        self.alpha = self._common_alpha()
        # Prediction sets of a method, made once.
        self.sets = cache(self._make_sets)

    def _common_alpha(self) -> float:
        """The one alpha of all methods."""
        given = {
            str(file): read_alpha(file)
            for name, file in self._methods.items()
            if name not in self.predictors
        }
        wanted = self._comparison.alpha
        alpha = next(iter(given.values()), DEFAULT_ALPHA) if wanted is None else wanted
        for file, own in given.items():
            if own != alpha:
                raise InputError(
                    f"{file}: its sets were made with alpha={own:g}, and the others have "
                    f"alpha={alpha:g}. Compare sets of one alpha."
                )
        return alpha

    @cached_property
    def outputs(self) -> ModelOutputs:
        """The labelled samples, with the class names of the models."""
        needed = [name for one in self.predictors.values() for name in one.needed_groups]
        groups = list(dict.fromkeys([*self._comparison.groups, *needed]))
        source = open_outputs(self._path, groups=groups, columns=self._comparison.columns)
        if self._comparison.classes is not None:
            source = source.with_classes(read_classes(self._comparison.classes))
        elif source.roles.classes is None and self.predictors:
            source = source.with_classes(next(iter(self.predictors.values())).classes_)
        for name, predictor in self.predictors.items():
            check_n_classes(source, predictor, str(self._methods[name]))
        return load_labelled(source, "evaluation")

    @cached_property
    def trust(self) -> Floats | None:
        """Trust score of each sample, if training samples or a model give one."""
        features, train = self.outputs.features, self._comparison.train
        if features is None and train is not None:
            raise InputError(
                f"{self._path}: there is no array 'features', which the trust score needs. "
                "Add it, or leave out --train."
            )
        scores = [one.trust for one in self.predictors.values() if one.trust is not None]
        if train is not None:
            own = read_training(train, self.outputs.classes, self._comparison.columns)
            scores = [TrustScore().fit(*own)]
        if not scores or features is None:
            return None
        return np.asarray(scores[0].score(features, self.outputs.predicted))

    @cached_property
    def _with_trust(self) -> ModelOutputs:
        return self.outputs.with_trust(self.trust)

    @cached_property
    def _bins(self) -> dict[str, Partition]:
        """Class frequencies in the calibration samples of the first model, if there is one."""
        counts = [one.class_counts_ for one in self.predictors.values()]
        return {"conf_frequency": FrequencyBins(counts[0])} if counts else {}

    def _make_sets(self, name: str) -> PredictionSets:
        file = self._methods[name]
        if name in self.predictors:
            try:
                return self.predictors[name].predict_set(self.outputs, alpha=self.alpha)
            except InputError as error:
                raise InputError(f"{file} on {self._path}: {error}") from error
        found = read_predictions(file, self.outputs.classes)
        if len(found) != len(self.outputs):
            raise InputError(
                f"{file}: it holds {len(found)} sets, and {self._path} has {len(self.outputs)} "
                "samples. Predict the same file that you evaluate on."
            )
        return found

    def find_regions(self, name: str) -> Regions:
        """Regions where a method covers too little."""
        given = self._comparison
        return find_regions(self.sets(name), self._with_trust, level=given.level, seed=given.seed)

    def risk(self, name: str) -> dict[str, Estimate]:
        """Numbers of the excess risk of a method."""
        given = self._comparison
        return excess_risk(
            self.sets(name), self._with_trust, level=given.level, seed=given.seed
        ).metrics

    def evaluate_all(
        self, progress: Progress, store: PartStore | None = None
    ) -> dict[str, Evaluation]:
        """Measure all methods; a store keeps each result, and those of an earlier run are used."""
        found = {}
        with progress(len(self._methods)) as advance:
            for number, name in enumerate(self._methods):
                if store is None:
                    found[name] = self._evaluate(name)
                else:
                    if not store.holds(number):
                        store.write(number, self._evaluate(name).to_json().encode())
                    found[name] = Evaluation.from_json(store.read(number).decode())
                advance(1)
        return found

    def _evaluate(self, name: str) -> Evaluation:
        """Measure one method."""
        _log.info("%s: evaluating on %s", self._methods[name], self._path)
        try:
            return evaluate(
                self.sets(name),
                self._with_trust,
                bins=self._bins,
                **self._comparison.measured,
            )
        except InputError as error:
            if str(error).startswith(str(self._methods[name])):
                raise
            raise InputError(f"{self._path}: {error}") from error
