"""`evaluate_files` and `report_files`: methods against labelled outputs. Imports its siblings."""

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError
from trustsets.files.calibration import load_labelled
from trustsets.files.options import OPTIONS_FACT
from trustsets.files.parts import PartStore, part_key
from trustsets.files.paths import Snapshot, check_output, content_digest
from trustsets.files.set_files import PREDICTION_SUFFIXES, read_alpha, read_predictions
from trustsets.files.source import open_outputs, read_classes, read_training
from trustsets.metrics import Balls, Evaluation, Neighbourhoods, evaluate
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor, load
from trustsets.report import write_report
from trustsets.sets import PredictionSets
from trustsets.trust import TrustScore

__all__ = ["Measurement", "evaluate_files", "name_methods", "report_files", "results_record"]

_log = logging.getLogger(__name__)

MODEL_SUFFIX = ".trustsets"
DEFAULT_ALPHA = 0.1
StrPath = str | os.PathLike[str]


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
class Measurement:
    """What to measure.

    Attributes
    ----------
    alpha : float, optional
        Level of the models' sets. Default: that of the predictions, or else 0.1.
    metrics : tuple of str, optional
        See `trustsets.evaluate`; by default all that the data allow.
    level, n_bootstrap, seed
        Of the intervals.
    """

    alpha: float | None = None
    metrics: tuple[str, ...] | None = None
    level: float = 0.95
    n_bootstrap: int = 1000
    seed: int = 0


def evaluate_files(
    outputs: StrPath,
    methods: Mapping[str, Path],
    measurement: Measurement,
    *,
    train: StrPath | None = None,
    classes: StrPath | None = None,
    groups: Sequence[str] = (),
    result: StrPath | None = None,
    record: dict[str, Any] | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Evaluation]:
    """Evaluate models or predictions on a file of labelled outputs.

    Parameters
    ----------
    outputs : path
        Labelled outputs; all of it is read into memory.
    methods : mapping of names to paths
        Models or predictions of the same outputs; see `name_methods`.
    measurement : Measurement
        What to measure.
    train : path, optional
        Training samples for the trust score. Default: the trust score of the first model
        that has one, for all methods.
    classes : path, optional
        Class names; see `read_classes`. Default: those in `outputs`, or of the first model.
    groups : sequence of str
        Arrays that are group columns, besides ``group_NAME``.
    result : path, optional
        Where to write everything as JSON. A run that was killed continues with the first
        method that was not done.
    record : dict, optional
        Options to store with the result.
    advance : callable
        Called with 1 after each method.
    """
    record = record or {"command": "evaluate", "options": {}}
    paths = [path for path in (outputs, *methods.values(), train, classes) if path is not None]
    if result is not None:
        check_output(result, (".json",), paths)
    before = Snapshot(*paths)
    test = _Test(Path(outputs), dict(methods), measurement, train, classes, tuple(groups))
    if result is None:
        return {name: _then(test.evaluate(name), advance) for name in methods}
    setting = {
        "files": [content_digest(path) for path in paths],
        "alpha": test.alpha,
        "methods": list(methods),
        "measurement": vars(measurement),
        "record": record,
    }
    with PartStore(result, part_key(setting)) as store:
        found = {}
        for number, name in enumerate(methods):
            if not store.holds(number):
                store.write(number, test.evaluate(name).to_json().encode())
            found[name] = _then(Evaluation.from_json(store.read(number).decode()), advance)

        def assemble(file: IO[bytes]) -> None:
            file.write(json.dumps(results_record(found, record), indent=1).encode() + b"\n")

        store.finish(assemble, before.check)
    return found


def results_record(found: Mapping[str, Evaluation], record: dict[str, Any]) -> dict[str, Any]:
    """Options and evaluations as plain data for JSON."""
    return record | {"evaluations": {name: item.to_dict() for name, item in found.items()}}


def report_files(
    outputs: StrPath,
    methods: Mapping[str, Path],
    measurement: Measurement,
    result: StrPath,
    *,
    train: StrPath | None = None,
    classes: StrPath | None = None,
    groups: Sequence[str] = (),
    title: str = "Coverage report",
    record: dict[str, Any] | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Evaluation]:
    """Evaluate as `evaluate_files` does, and write a page about it; see `write_report`."""
    paths = [outputs, *methods.values(), train, classes]
    check_output(result, (".html",), paths)
    before = Snapshot(*paths)
    test = _Test(Path(outputs), dict(methods), measurement, train, classes, tuple(groups))
    found = {name: _then(test.evaluate(name), advance) for name in methods}
    sets = {name: test.sets(name) for name in methods}
    before.check()
    write_report(
        result,
        found,
        outputs=test.outputs,
        sets=sets,
        trust=test.trust,
        title=title,
        guarantee={
            name: predictor.summary(sets[name]) for name, predictor in test.predictors.items()
        },
        details={
            "Outputs": str(outputs),
            OPTIONS_FACT: json.dumps(record or {"command": "report", "options": {}}),
        },
    )
    return found


def _then(evaluation: Evaluation, advance: Callable[[int], None]) -> Evaluation:
    advance(1)
    return evaluation


@final
class _Test:
    """Labelled samples, the methods, and all that their evaluations share; loaded when needed."""

    def __init__(
        self,
        path: Path,
        methods: dict[str, Path],
        measurement: Measurement,
        train: StrPath | None,
        classes: StrPath | None,
        groups: tuple[str, ...],
    ) -> None:
        self._path, self._methods, self._measurement = path, methods, measurement
        self._train, self._classes, self._groups = train, classes, groups
        self.predictors: dict[str, Predictor] = {
            name: load(file) for name, file in methods.items() if file.suffix == MODEL_SUFFIX
        }
        self.alpha = self._level()
        self._sets: dict[str, PredictionSets] = {}

    def _level(self) -> float:
        """The one alpha of all methods."""
        given = {
            str(file): read_alpha(file)
            for name, file in self._methods.items()
            if name not in self.predictors
        }
        wanted = self._measurement.alpha
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
        groups = list(dict.fromkeys([*self._groups, *needed]))
        source = open_outputs(self._path, groups=groups)
        names = None if self._classes is None else read_classes(self._classes)
        if names is None and source.roles.classes is None:
            names = next((one.classes_ for one in self.predictors.values()), None)
        source = open_outputs(self._path, groups=groups, classes=names)
        for name, predictor in self.predictors.items():
            if predictor.classes_.size != source.n_classes:
                raise InputError(
                    f"{self._path}: array {source.roles.values!r} has {source.n_classes} classes, "
                    f"and {self._methods[name]} was calibrated with {predictor.classes_.size}. "
                    "Use outputs of the same classifier."
                )
        return load_labelled(source, "evaluation")

    @cached_property
    def trust(self) -> NDArray[np.float64] | None:
        """Trust score of each sample, if training samples or a model give one."""
        features = self.outputs.features
        if self._train is not None:
            if features is None:
                raise InputError(
                    f"{self._path}: there is no array 'features', which the trust score needs. "
                    "Add it, or leave out --train."
                )
            score: Any = TrustScore().fit(*read_training(self._train, self.outputs.classes))
        else:
            score = next(
                (one.trust for one in self.predictors.values() if one.trust is not None), None
            )
        if score is None or features is None:
            return None
        return np.asarray(score.score(features, self.outputs.predicted))

    @cached_property
    def _balls(self) -> Balls | Neighbourhoods:
        features, metrics = self.outputs.features, self._measurement.metrics
        if features is None or (metrics is not None and "balls" not in metrics):
            return Balls()
        return Balls().around(features) if len(features) > 1 else Balls()

    def sets(self, name: str) -> PredictionSets:
        """Prediction sets of a method."""
        if name not in self._sets:
            self._sets[name] = self._make_sets(name)
        return self._sets[name]

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

    def evaluate(self, name: str) -> Evaluation:
        """Measure one method."""
        _log.info("%s: evaluating on %s", self._methods[name], self._path)
        wanted = self._measurement
        try:
            return evaluate(
                self.sets(name),
                self.outputs,
                self.trust,
                metrics=wanted.metrics,
                balls=self._balls,
                level=wanted.level,
                n_bootstrap=wanted.n_bootstrap,
                seed=wanted.seed,
            )
        except InputError as error:
            if str(error).startswith(str(self._methods[name])):
                raise
            raise InputError(f"{self._path}: {error}") from error
