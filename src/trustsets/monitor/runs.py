"""Steps of a monitor for programs that run again and again: on files, and on Arrow tables."""

import hashlib
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from trustsets._common.atomic import atomic_path
from trustsets._common.resuming import locked
from trustsets.errors import InputError
from trustsets.files import (
    OutputsFile,
    Snapshot,
    TableColumns,
    check_output,
    content_digest,
    open_for_prediction,
    open_outputs,
    open_table,
    read_late_labels,
    remembered_columns,
)
from trustsets.monitor.history import append_history, prometheus_text
from trustsets.monitor.page import write_page
from trustsets.monitor.verdict import Verdict
from trustsets.monitor.watch import Monitor
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor, load

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Step", "watch_file", "watch_table"]

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
    history, metrics, page : path, optional
        Parquet file that is appended to, Prometheus metrics, and HTML page of the history.
    batch, time : str, optional
        Name of the batch, by default a digest of its content, and when it came.
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
    history: StrPath | None = None
    metrics: StrPath | None = None
    page: StrPath | None = None
    batch: str | None = None
    time: str = ""
    groups: tuple[str, ...] = ()
    in_order: bool = False
    columns: TableColumns = field(default_factory=TableColumns)


def watch_file(step: Step) -> tuple[Verdict, bool]:
    """Take a batch from files into the state of a monitor.

    The state is replaced as a whole after the batch was taken, and it remembers the batch. A run
    that was killed is thus repeated by the same command: a batch counts once, and what was to be
    written after the state is written then.

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
        if step.history is not None:
            # What a killed run had not appended yet.
            append_history(Path(step.history), monitor)
        taken = len(monitor.batches)
        _take_outputs(step, predictor, monitor)
        _take_labels(step, predictor, monitor)
        before.check()
        if len(monitor.batches) > taken or not Path(step.state).exists():
            monitor.save(step.state)
        _write(step, monitor)
    return monitor.verdict(), len(monitor.batches) > taken


def watch_table(
    predictor: Predictor,
    table: "pa.Table",
    state: StrPath,
    *,
    alpha: float = _DEFAULT_ALPHA,
    false_alarm: float = _DEFAULT_RATE,
    reference: ModelOutputs | None = None,
) -> "pa.Table":
    """Take an Arrow table as a batch into the state of a monitor; return it unchanged.

    It is a step for any engine that maps Arrow tables, one at a time. A table counts once, also
    where the engine repeats a step that was interrupted.

    Parameters
    ----------
    predictor : Predictor
        Calibrated.
    table : pyarrow.Table
        Columns as in `trustsets.files.predict_table` and, where they are known, ``labels``. With
        a column ``id``, labels may come later.
    state : path
        File of the state, which is made if it does not exist.
    alpha, false_alarm, reference
        As in `Monitor`, for a new state.
    """
    name = _table_digest(table)
    with _lock(Path(state)):
        if Path(state).exists():
            monitor = Monitor.load(state, predictor)
        else:
            monitor = Monitor(predictor, alpha, reference=reference, false_alarm=false_alarm)
        if table.num_rows and name not in monitor.batches:
            ids = table.column("id").to_pylist() if "id" in table.column_names else None
            monitor.observe(_labelled(predictor, table), ids=ids, batch=name)
            monitor.save(state)
    return table


def _labelled(predictor: Predictor, table: "pa.Table") -> ModelOutputs:
    """Outputs in a table, with labels where it has them."""
    groups, classes = predictor.needed_groups, predictor.classes_
    return open_table(table, groups=groups, classes=classes).read()


def _table_digest(table: "pa.Table") -> str:
    """SHA-256 of names, types and values of a table, however it is cut into chunks."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata().combine_chunks())
    return hashlib.sha256(sink.getvalue()).hexdigest()


def _lock(state: Path) -> AbstractContextManager[None]:
    return locked(state.absolute().parent / f".{state.name}.lock", state)


def _check_outputs(step: Step, inputs: list[Any]) -> None:
    kinds = {"state": ".trustsets", "history": ".parquet", "metrics": ".prom", "page": ".html"}
    for name, suffix in kinds.items():
        path = getattr(step, name)
        if path is not None:
            check_output(path, (suffix,), inputs)
    if step.page is not None and step.history is None:
        raise InputError("page shows the history, so it needs history, a Parquet file.")
    if step.outputs is not None and step.labels is not None:
        raise InputError("give outputs or labels, not both: each is a batch of its own.")


def _open(step: Step, predictor: Predictor) -> Monitor:
    if not Path(step.state).exists():
        reference = None
        if step.reference is not None:
            groups = _groups(step, predictor)
            reference = _source(step, predictor, step.reference, groups).read_all()
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


def _source(step: Step, predictor: Predictor, path: StrPath, groups: list[str]) -> OutputsFile:
    return open_outputs(
        path,
        groups=groups,
        classes=predictor.classes_,
        columns=step.columns,
        remembered=remembered_columns(step.model),
    )


def _take_outputs(step: Step, predictor: Predictor, monitor: Monitor) -> None:
    if step.outputs is None:
        return
    name = step.batch or content_digest(step.outputs)
    if name in monitor.batches:
        return
    open_for_prediction(
        predictor,
        step.outputs,
        name=str(step.model),
        columns=step.columns,
        remembered=remembered_columns(step.model),
    )
    source = _source(step, predictor, step.outputs, _groups(step, predictor))
    outputs = source.read_all()
    ids = None
    if "id" in source.ids:
        ids = source.ids["id"].read_names(0, len(source)).tolist()
    monitor.observe(outputs, ids=ids, batch=name, time=step.time, in_order=step.in_order)


def _take_labels(step: Step, predictor: Predictor, monitor: Monitor) -> None:
    if step.labels is None:
        return
    path = Path(step.labels)
    ids, codes = read_late_labels(path, predictor.classes_, step.columns)
    name = step.batch or content_digest(path)
    monitor.label(ids, codes, batch=name, time=step.time, in_order=step.in_order)


def _write(step: Step, monitor: Monitor) -> None:
    """Write what shows the state; all of it follows from the state and the history."""
    if step.history is not None:
        append_history(Path(step.history), monitor)
    if step.metrics is not None:
        with atomic_path(step.metrics) as temporary:
            temporary.write_text(prometheus_text(monitor.verdict()), encoding="utf-8")
    if step.page is not None and step.history is not None and Path(step.history).exists():
        write_page(Path(step.page), Path(step.history), monitor.verdict())
