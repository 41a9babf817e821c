"""Prediction sets as files: Parquet, CSV or JSON lines by extension."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trustsets._common.arrays import Array
from trustsets._common.optional import needed
from trustsets._common.storage import parse_json
from trustsets.errors import InputError
from trustsets.files.options import OPTIONS, read_record
from trustsets.files.paths import part_files
from trustsets.sets import PredictionSets
from trustsets.status import Status

if TYPE_CHECKING:
    import pyarrow as pa

PREDICTION_SUFFIXES = (".parquet", ".csv", ".jsonl")
DEFAULT_ALPHA = 0.1
_CODES = {status.name.lower(): int(status) for status in Status}
_CODES["restrained"] = int(Status.LIMITED)  # the former word
# Rows that are read at a time.
_BATCH = 1 << 14
# A set, its threshold (None for infinity) and its status.
_Row = tuple[list[Any], float | None, str]
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write_tables(file: IO[bytes], tables: Iterable["pa.Table"], record: dict[str, Any]) -> None:
    """Write tables of predictions end to end as Parquet, with the record in its schema."""
    import pyarrow.parquet as pq

    writer = None
    with ExitStack() as closing:
        for table in tables:
            if writer is None:
                schema = table.schema.with_metadata({OPTIONS: json.dumps(record)})
                writer = pq.ParquetWriter(file, schema, compression="zstd")
                closing.enter_context(writer)
            writer.write_table(table.cast(schema), row_group_size=len(table))


def text_of(suffix: str, columns: dict[str, list[Any]], first: bool) -> str:
    """Predictions as lines of CSV or JSON; the `first` ones begin with the names of columns."""
    return _csv_text(columns, first) if suffix == ".csv" else _json_text(columns)


def _csv_text(columns: dict[str, list[Any]], first: bool) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    if first:
        rows.writerow([_no_formula(name) for name in columns])
    cells = [_csv_cells(name, values) for name, values in columns.items()]
    rows.writerows(zip(*cells, strict=True))
    return text.getvalue()


def _csv_cells(name: str, values: list[Any]) -> list[Any]:
    """A set is a JSON list in one cell: class names may hold any separator."""
    if name == "set":
        return [json.dumps(own, ensure_ascii=False) for own in values]
    return [_no_formula(own) if isinstance(own, str) else own for own in values]


def _no_formula(text: str) -> str:
    """Spreadsheets run text that starts like a formula; an apostrophe keeps it text."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _json_text(columns: dict[str, list[Any]]) -> str:
    """One line a row; JSON has no infinity: such a threshold is null, and the status says why."""
    finite = [value if math.isfinite(value) else None for value in columns["threshold"]]
    columns = columns | {"threshold": finite}
    rows = (dict(zip(columns, own, strict=True)) for own in zip(*columns.values(), strict=True))
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    return "".join(f"{line}\n" for line in lines)


def read_predictions(path: Path, classes: Array) -> PredictionSets:
    """Prediction sets of a file that `trustsets predict` wrote.

    It is Parquet (a file or a folder of parts), CSV or JSON lines. `classes` are all class names,
    in the order of the columns of the outputs.
    """
    alpha = read_alpha(path)
    readers = {".parquet": _parquet_rows, ".csv": _csv_rows, ".jsonl": _json_rows}
    place = {name: code for code, name in enumerate(classes.tolist())}
    rows = readers[path.suffix.lower()](path)
    batches = []
    try:
        while batch := list(islice(rows, _BATCH)):
            batches.append(_read_batch(path, batch, place))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, OSError, csv.Error) as error:
        raise InputError(
            f"{path}: not predictions that trustsets wrote, or damaged ones ({error}). Run "
            "'trustsets predict' again."
        ) from error
    if not batches:
        raise InputError(f"{path}: it holds no predictions; run 'trustsets predict' again.")
    mask, thresholds, status = (np.concatenate(each) for each in zip(*batches, strict=True))
    return PredictionSets(
        mask=mask, thresholds=thresholds, status=status, alpha=alpha, classes=classes
    )


def read_alpha(path: Path) -> float:
    """Alpha in the record of predictions; 0.1, the default of `predict`, where it has none."""
    options = read_record(path)["options"]
    if options.get("max_size") is not None:
        raise InputError(
            f"{path}: its sets were made with a largest size, so each has an alpha of its own, and "
            "there is no one coverage to compare with. Run 'trustsets predict' without --max-size."
        )
    alpha = options.get("alpha", DEFAULT_ALPHA)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0.0 < alpha < 1.0:
        raise InputError(
            f"{path}: its options give alpha={alpha!r}, which is no share between 0 and 1. Run "
            "'trustsets predict' again."
        )
    return float(alpha)


def _read_batch(path: Path, batch: list[_Row], place: dict[Any, int]) -> tuple[Array, ...]:
    """Mask, thresholds and status of some rows."""
    given, thresholds, status = zip(*batch, strict=True)
    sets = [list(own) for own in given]
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
    return (
        mask,
        np.array([math.inf if value is None else float(value) for value in thresholds]),
        np.array([_CODES[word] for word in status], dtype=np.int8),
    )


def _parquet_rows(path: Path) -> Iterator[_Row]:
    pa = needed("pyarrow", f"{path}: a Parquet file")
    import pyarrow.parquet as pq

    names = ["set", "threshold", "status"]
    try:
        for part in part_files(path):
            with pq.ParquetFile(part) as file:
                for batch in file.iter_batches(_BATCH, columns=names):
                    columns = [batch.column(name).to_pylist() for name in names]
                    yield from zip(*columns, strict=True)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error


def _csv_rows(path: Path) -> Iterator[_Row]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield parse_json(row["set"]), float(row["threshold"]), row["status"]


def _json_rows(path: Path) -> Iterator[_Row]:
    with path.open(encoding="utf-8") as file:
        for line in map(parse_json, file):
            yield line["set"], line["threshold"], line["status"]
