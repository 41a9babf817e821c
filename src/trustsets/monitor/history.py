"""The history of a monitor: a Parquet file that grows by batches, and Prometheus metrics."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trustsets._common.atomic import atomic_path
from trustsets._common.optional import needed
from trustsets.errors import InputError
from trustsets.monitor.verdict import Verdict
from trustsets.monitor.watch import Monitor

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["append_history", "prometheus_text", "read_history"]

_KEYS = ("kind", "part")
_FLOATS = ("coverage", "lower", "upper", "size", "size_lower", "size_upper", "evidence", "needed")
_COUNTS = ("n", "covered", "batch_n", "batch_covered", "alarm_at")
_METRICS = {
    "coverage": "Share of labelled samples whose set holds the label.",
    "lower": "Lower end of the interval of the coverage.",
    "upper": "Upper end of the interval of the coverage.",
    "size": "Mean number of classes in a set.",
    "n": "Samples counted.",
    "evidence": "Evidence of a change, as a power of ten.",
    "needed": "Evidence that an alarm needs, as a power of ten.",
}


def append_history(path: Path, monitor: Monitor) -> None:
    """Add the rows of the last batch, unless they are there; the file is whole at all times."""
    pa = needed("pyarrow", f"{path}: a history in Parquet")
    import pyarrow.parquet as pq

    batch = len(monitor.batches)
    earlier = read_history(path) if path.exists() else None
    if batch == 0:
        return
    if earlier is not None and len(earlier):
        last = max(earlier.column("batch").to_pylist())
        if last > batch:
            raise InputError(
                f"{path}: it has {last} batches, and the state has {batch}. It is the history of "
                "another monitor; give another name."
            )
        if last == batch:
            return
    rows = [
        {"batch": batch, "name": monitor.batches[-1], "time": monitor.last_time} | row
        for row in _rows(monitor.verdict())
    ]
    table = pa.Table.from_pylist(rows, schema=_schema())
    with atomic_path(path) as temporary:
        pq.write_table(table if earlier is None else pa.concat_tables([earlier, table]), temporary)


def read_history(path: Path) -> "pa.Table":
    """The rows of a history, the first batch first."""
    pa = needed("pyarrow", f"{path}: a history in Parquet")
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file, or a damaged one ({error}).") from error
    if table.schema.names != _schema().names:
        raise InputError(f"{path}: it is no history of a monitor; give another name.")
    return table


def prometheus_text(verdict: Verdict) -> str:
    """Metrics in the text format of Prometheus."""
    lines = [
        *_metric("alarm", "Whether any test has given an alarm.", [("", float(verdict.alarm))]),
        *_metric("samples_total", "Samples seen.", [("", verdict.samples)], kind="counter"),
        *_metric("labelled_total", "Samples with labels.", [("", verdict.labelled)], "counter"),
        *_metric("pending", "Samples that wait for their labels.", [("", verdict.pending)]),
    ]
    rows = _rows(verdict)
    for name, about in _METRICS.items():
        found = [(_labels(row), row[name]) for row in rows if row.get(name) is not None]
        lines += _metric(f"part_{name}", about, found)
    alarms = [(_labels(row), float(row["alarm_at"] > 0)) for row in rows]
    return "\n".join([*lines, *_metric("part_alarm", "Whether the test has alarmed.", alarms), ""])


def _rows(verdict: Verdict) -> list[dict[str, Any]]:
    """One row for each test, with the coverage of its part where it has one."""
    parts = {(row.kind, row.part): vars(row) for row in verdict.parts}
    return [
        parts.get((test.kind, test.part), {})
        | {name: own for name, own in vars(test).items() if name != "peak"}
        for test in verdict.tests
        if test.n
    ]


def _schema() -> "pa.Schema":
    import pyarrow as pa

    texts = [("name", pa.string()), ("time", pa.string()), *((key, pa.string()) for key in _KEYS)]
    counts = [(name, pa.int64()) for name in _COUNTS]
    return pa.schema(
        [("batch", pa.int64()), *texts, *counts, *((n, pa.float64()) for n in _FLOATS)]
    )


def _metric(
    name: str, about: str, values: list[tuple[str, float]], kind: str = "gauge"
) -> list[str]:
    full = f"trustsets_{name}"
    head = [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
    return [*head, *(f"{full}{labels} {value:.10g}" for labels, value in values)]


def _labels(row: dict[str, Any]) -> str:
    escaped = {key: _escaped(str(row[key])) for key in _KEYS}
    return "{" + ",".join(f'{key}="{text}"' for key, text in escaped.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
