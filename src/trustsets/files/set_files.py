"""Prediction sets as files: Parquet, CSV or JSON lines by extension. Imports options, sets."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from trustsets._common.arrays import Array
from trustsets._common.storage import parse_json
from trustsets.errors import InputError
from trustsets.files.options import OPTIONS, read_record
from trustsets.files.parts import part_files
from trustsets.sets import PredictionSets
from trustsets.status import Status

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "PREDICTION_SUFFIXES",
    "check_suffix",
    "has_sidecar",
    "read_alpha",
    "read_predictions",
    "write_tables",
]

PREDICTION_SUFFIXES = (".parquet", ".csv", ".jsonl")
DEFAULT_ALPHA = 0.1
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def check_suffix(path: Path) -> str:
    """The extension of a prediction file, if it is one that can be written."""
    suffix = path.suffix.lower()
    if suffix not in PREDICTION_SUFFIXES:
        raise InputError(
            f"{path}: predictions are written as {', '.join(PREDICTION_SUFFIXES)}; got "
            f"{suffix or 'no extension'!r}."
        )
    return suffix


def has_sidecar(path: Path) -> bool:
    """Whether the options need a file of their own."""
    return check_suffix(path) != ".parquet"


def write_tables(
    file: IO[bytes], suffix: str, tables: Iterable["pa.Table"], record: dict[str, Any]
) -> None:
    """Write tables of predictions end to end; Parquet carries the record in its schema."""
    writers: dict[str, Callable[..., None]] = {
        ".parquet": _write_parquet,
        ".csv": _write_csv,
        ".jsonl": _write_lines,
    }
    writers[suffix](file, tables, record)


def _write_parquet(file: IO[bytes], tables: Iterable["pa.Table"], record: dict[str, Any]) -> None:
    import pyarrow.parquet as pq

    writer = None
    with ExitStack() as closing:
        for table in tables:
            if writer is None:
                schema = table.schema.with_metadata({OPTIONS: json.dumps(record)})
                writer = pq.ParquetWriter(file, schema, compression="zstd")
                closing.enter_context(writer)
            writer.write_table(table.cast(schema), row_group_size=len(table))


def _write_csv(file: IO[bytes], tables: Iterable["pa.Table"], record: dict[str, Any]) -> None:
    first = True
    for table in tables:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        if first:
            rows.writerow([_no_formula(name) for name in table.column_names])
        columns = [_csv_cells(name, table) for name in table.column_names]
        rows.writerows(zip(*columns, strict=True))
        file.write(text.getvalue().encode())
        first = False


def _csv_cells(name: str, table: "pa.Table") -> list[Any]:
    """A set is a JSON list in one cell: class names may hold any separator."""
    values: list[Any] = table.column(name).to_pylist()
    if name == "set":
        return [json.dumps(own, ensure_ascii=False) for own in values]
    return [_no_formula(own) if isinstance(own, str) else own for own in values]


def _no_formula(text: str) -> str:
    """Spreadsheets run text that starts like a formula; an apostrophe keeps it text."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _write_lines(file: IO[bytes], tables: Iterable["pa.Table"], record: dict[str, Any]) -> None:
    for table in tables:
        lines = [
            json.dumps(_without_infinity(row), ensure_ascii=False, allow_nan=False)
            for row in table.to_pylist()
        ]
        file.write("".join(f"{line}\n" for line in lines).encode())


def _without_infinity(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: an infinite threshold is null, and the status says why."""
    return row if math.isfinite(row["threshold"]) else row | {"threshold": None}


def read_predictions(path: Path, classes: Array) -> PredictionSets:
    """Prediction sets of a file that `trustsets predict` wrote.

    Parameters
    ----------
    path : path
        Parquet (a file or a folder of parts), CSV or JSON lines.
    classes : array of shape (K,)
        All class names, in the order of the columns of the outputs.
    """
    alpha = read_alpha(path)
    reader = {".parquet": _read_parquet, ".csv": _read_csv, ".jsonl": _read_lines}
    place = {name: code for code, name in enumerate(classes.tolist())}
    masks, thresholds, status = [], [], []
    for batch in reader[check_suffix(path)](path):
        masks.append(_mask(path, batch.sets, place))
        thresholds.append(batch.thresholds)
        status.append(batch.status)
    if not masks:
        raise InputError(f"{path}: it holds no predictions; run 'trustsets predict' again.")
    return PredictionSets(
        mask=np.concatenate(masks),
        thresholds=np.concatenate(thresholds),
        status=np.concatenate(status),
        alpha=alpha,
        classes=classes,
    )


def read_alpha(path: Path) -> float:
    """The level that the record of predictions gives; 0.1, the default, where it has none."""
    alpha = read_record(path)["options"].get("alpha", DEFAULT_ALPHA)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0.0 < alpha < 1.0:
        raise InputError(
            f"{path}: its options give alpha={alpha!r}, which is no share between 0 and 1. Run "
            "'trustsets predict' again."
        )
    return float(alpha)


@final
class _Batch(NamedTuple):
    sets: list[list[Any]]
    thresholds: Array
    status: Array


_CODES = {status.name.lower(): int(status) for status in Status}
_CODES["restrained"] = int(Status.LIMITED)  # the former word
_LINES = 1 << 14


def _batch(path: Path, rows: list[tuple[list[Any], float | None, str]]) -> _Batch:
    try:
        return _Batch(
            [list(own) for own, _, _ in rows],
            np.array([math.inf if value is None else float(value) for _, value, _ in rows]),
            np.array([_CODES[word] for _, _, word in rows], dtype=np.int8),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error


def _mask(path: Path, sets: list[list[Any]], place: dict[Any, int]) -> Array:
    mask = np.zeros((len(sets), len(place)), dtype=bool)
    rows = np.repeat(np.arange(len(sets)), [len(own) for own in sets])
    try:
        members = [place[name] for own in sets for name in own]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path}: its sets hold the class {error}, which the labelled outputs do not have. Use "
            "outputs of the same classifier, with the same class names."
        ) from error
    mask[rows, members] = True
    return mask


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path}: not predictions that trustsets wrote, or damaged ones ({error}). Run 'trustsets "
        "predict' again."
    )


def _read_parquet(path: Path) -> Iterator[_Batch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["set", "threshold", "status"]
    try:
        for part in part_files(path):
            with pq.ParquetFile(part) as file:
                for batch in file.iter_batches(_LINES, columns=names):
                    columns = [batch.column(name).to_pylist() for name in names]
                    yield _batch(part, list(zip(*columns, strict=True)))
    except (pa.ArrowException, KeyError, OSError) as error:
        raise _damaged(path, error) from error


def _read_csv(path: Path) -> Iterator[_Batch]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = (
            (parse_json(row["set"]), float(row["threshold"]), row["status"])
            for row in csv.DictReader(file)
        )
        yield from _in_batches(path, rows)


def _read_lines(path: Path) -> Iterator[_Batch]:
    with path.open(encoding="utf-8") as file:
        lines = (parse_json(line) for line in file)
        yield from _in_batches(
            path, ((line["set"], line["threshold"], line["status"]) for line in lines)
        )


def _in_batches(
    path: Path, rows: Iterator[tuple[list[Any], float | None, str]]
) -> Iterator[_Batch]:
    waiting: list[tuple[list[Any], float | None, str]] = []
    try:
        for row in rows:
            waiting.append(row)
            if len(waiting) == _LINES:
                yield _batch(path, waiting)
                waiting = []
    except (ValueError, KeyError, TypeError, UnicodeDecodeError, csv.Error) as error:
        raise _damaged(path, error) from error
    if waiting:
        yield _batch(path, waiting)
