"""One step of a monitor on files, for a command that is run again and again."""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from trustsets._common.resuming import locked
from trustsets.errors import InputError
from trustsets.files.memory import check_fits
from trustsets.files.naming import PLAIN, TableColumns, find_roles
from trustsets.files.paths import Snapshot, check_output, content_digest
from trustsets.files.prediction import open_for_prediction
from trustsets.files.source import OutputsFile, label_in, named_labels, open_columns, open_outputs
from trustsets.monitor.monitor import Monitor, Verdict
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor, load

__all__ = ["Step", "watch_file"]

StrPath = str | os.PathLike[str]
_DEFAULT_ALPHA, _DEFAULT_RATE = 0.1, 0.05


@final
@dataclass(frozen=True)
class Step:
    """What one run of a monitor reads and writes.

    Attributes
    ----------
    model, state : path
        Saved predictor; state of the monitor, which is made if it does not exist.
    outputs : path, optional
        New outputs, with labels or without; with an array ``id``, labels may come later.
    labels : path, optional
        Labels of earlier samples: arrays ``id`` and ``labels``.
    reference : path, optional
        Outputs that the model was calibrated on, for a new state.
    alpha, false_alarm : float, optional
        See `Monitor`; those of the state by default.
    batch : str, optional
        Name of the batch, by default a digest of its content.
    groups : tuple of str
        Arrays that are group columns, besides ``group_NAME``.
    in_order : bool
        The samples of a file are in the order in which they came.
    columns : TableColumns
        Which columns of tables hold what.
    """

    model: StrPath
    state: StrPath
    outputs: StrPath | None = None
    labels: StrPath | None = None
    reference: StrPath | None = None
    alpha: float | None = None
    false_alarm: float | None = None
    batch: str | None = None
    groups: tuple[str, ...] = ()
    in_order: bool = False
    columns: TableColumns = PLAIN


def watch_file(step: Step) -> tuple[Verdict, bool]:
    """Take a batch from files into the state of a monitor.

    The state is replaced as a whole after the batch was taken, and it remembers the batch. A run
    that was killed is thus repeated by the same command: a batch counts once.

    Returns
    -------
    verdict : Verdict
    is_new : bool
        Whether the batch had not been taken before.
    """
    inputs = [step.model, step.outputs, step.labels, step.reference]
    _check_outputs(step, inputs)
    with _lock(Path(step.state)):
        before = Snapshot(*inputs)
        predictor: Predictor = load(step.model)
        monitor = _open(step, predictor)
        taken = len(monitor.batches)
        _take_outputs(step, predictor, monitor)
        _take_labels(step, predictor, monitor)
        before.check()
        if len(monitor.batches) > taken or not Path(step.state).exists():
            monitor.save(step.state)
    return monitor.verdict(), len(monitor.batches) > taken


def _lock(state: Path) -> AbstractContextManager[None]:
    return locked(state.absolute().parent / f".{state.name}.lock", state)


def _check_outputs(step: Step, inputs: list[Any]) -> None:
    check_output(step.state, (".trustsets",), inputs)
    if step.outputs is not None and step.labels is not None:
        raise InputError("give outputs or labels, not both: each is a batch of its own.")


def _open(step: Step, predictor: Predictor) -> Monitor:
    if not Path(step.state).exists():
        reference = None
        if step.reference is not None:
            groups = _groups(step, predictor)
            source = open_outputs(step.reference, groups=groups, columns=step.columns)
            reference = _read(_named(source, predictor))
        alpha = _DEFAULT_ALPHA if step.alpha is None else step.alpha
        rate = _DEFAULT_RATE if step.false_alarm is None else step.false_alarm
        return Monitor(predictor, alpha, reference=reference, false_alarm=rate)
    monitor = Monitor.load(step.state, predictor)
    for name, given in (("alpha", step.alpha), ("false_alarm", step.false_alarm)):
        known = getattr(monitor, name)
        if given is not None and given != known:
            raise InputError(
                f"{step.state}: it was begun with {name}={known:g}; got {given:g}. Leave it out, "
                "or begin a new state."
            )
    return monitor


def _groups(step: Step, predictor: Predictor) -> list[str]:
    return list(dict.fromkeys([*step.groups, *predictor.needed_groups]))


def _named(source: OutputsFile, predictor: Predictor) -> OutputsFile:
    return source if source.roles.classes is not None else source.with_classes(predictor.classes_)


def _read(source: OutputsFile) -> ModelOutputs:
    check_fits(source.path, len(source) * (2 * source.row_bytes + 18 * source.n_classes))
    return source.read()


def _take_outputs(step: Step, predictor: Predictor, monitor: Monitor) -> None:
    if step.outputs is None:
        return
    name = step.batch or content_digest(step.outputs)
    if name in monitor.batches:
        return
    open_for_prediction(predictor, step.outputs, name=str(step.model), columns=step.columns)
    groups = _groups(step, predictor)
    source = open_outputs(step.outputs, groups=groups, columns=step.columns)
    outputs = _read(_named(source, predictor))
    ids = None
    if "id" in source.roles.ids:
        ids = open_columns(Path(step.outputs))["id"].read_texts(0, len(source)).tolist()
    monitor.observe(outputs, ids=ids, batch=name, in_order=step.in_order)


def _take_labels(step: Step, predictor: Predictor, monitor: Monitor) -> None:
    if step.labels is None:
        return
    path = Path(step.labels)
    columns = open_columns(path)
    roles = find_roles(columns, label=label_in(path, columns, step.columns))
    if roles.labels is None or "id" not in columns:
        raise InputError(
            f"{path}: it needs arrays 'id' and 'labels'; there are {', '.join(sorted(columns))}."
        )
    shape = columns["id"].shape
    if shape != columns[roles.labels].shape or len(shape) != 1:
        raise InputError(f"{path}: arrays 'id' and 'labels' must have one value for each sample.")
    ids, labels = (columns[name].read(0, shape[0]) for name in ("id", roles.labels))
    codes = named_labels(columns[roles.labels], labels, predictor.classes_)
    name = step.batch or content_digest(path)
    monitor.label(ids, codes, batch=name, in_order=step.in_order)
