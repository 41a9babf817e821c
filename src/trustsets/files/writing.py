"""Files that commands write, all of it or nothing: model outputs, and prediction sets."""

import csv
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, final

import numpy as np

from trustsets._arrays import Array
from trustsets._frames import needed
from trustsets._storage import StrPath, atomic_path, is_stream, parse_json
from trustsets.errors import InputError
from trustsets.files.arrays import plain_file, read_csv
from trustsets.files.reading import GROUP_PREFIX
from trustsets.outputs import ModelOutputs
from trustsets.sets import PredictionSets
from trustsets.status import Status

__all__ = [
    "SET_SUFFIXES",
    "Snapshot",
    "check_output",
    "content_digest",
    "read_sets",
    "write_outputs",
    "write_sets",
]

SET_SUFFIXES = (".parquet", ".csv", ".jsonl")
"""Extensions of files of prediction sets."""
SEPARATOR = "|"
"""What stands between the classes of a set in a cell of a CSV file."""
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_STATUS = {status.name.lower(): int(status) for status in Status}
# Rows of a file of sets that are read at a time.
_BATCH = 1 << 14


def check_output(
    path: StrPath, suffixes: Sequence[str], inputs: Sequence[StrPath | None] = ()
) -> Path:
    """The path of an output that may be written.

    Its folder must exist, its extension must be one of `suffixes`, and it must not replace any of
    the `inputs` that are read to make it.
    """
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise InputError(
            f"{target}: the result is written as {', '.join(suffixes)}; got "
            f"{target.suffix or 'no extension'!r}. Give it a name with that ending."
        )
    if not target.absolute().parent.is_dir():
        raise InputError(f"{target}: its folder does not exist; make it first.")
    if target.is_dir():
        raise InputError(f"{target}: this is a folder; give the name of a file.")
    for source in inputs:
        if source is None or is_stream(target):
            continue
        if target.exists() and Path(source).exists() and target.samefile(source):
            raise InputError(
                f"{target}: it is the input {source} itself, which would be lost; give the result "
                "another name."
            )
    return target


def _files(target: Path) -> list[Path]:
    """The file itself, or the arrays of a folder."""
    return sorted(target.glob("*.npy")) if target.is_dir() else [target]


def content_digest(path: StrPath) -> str:
    """SHA-256 of the content of a file, or of the names and contents of a folder."""
    target, whole = Path(path), hashlib.sha256()
    for file in _files(target):
        with plain_file(file).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if file == target:
            return digest
        name = os.fsencode(file.relative_to(target))
        whole.update(b"%d:%s%s" % (len(name), name, digest.encode()))
    return whole.hexdigest()


@final
class Snapshot:
    """Inputs as they are now; take it before they are opened.

    A file that is replaced or rewritten while it is read would give a result that mixes two
    files, so `check` is called before a result appears.
    """

    def __init__(self, *paths: StrPath | None) -> None:
        self._before = {Path(path): _identity(Path(path)) for path in paths if path is not None}

    def check(self) -> None:
        """Refuse to go on if an input is not what it was."""
        for path, before in self._before.items():
            if _identity(path) != before:
                raise InputError(
                    f"{path}: it was changed while it was read, so nothing was written. Run the "
                    "command again when the file is complete."
                )


def _identity(path: Path) -> list[Any]:
    if not path.exists():
        raise InputError(f"{path}: there is no such file.")
    facts = [(str(file), file.stat()) for file in _files(path)]
    return [(name, own.st_size, own.st_mtime_ns, own.st_dev, own.st_ino) for name, own in facts]


def write_outputs(path: StrPath, outputs: ModelOutputs) -> None:
    """Write outputs to an `.npz` file, all of it or nothing.

    Examples
    --------
    >>> import tempfile
    >>> from trustsets.files import open_outputs
    >>> outputs = ModelOutputs(logits=np.eye(2), labels=["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_outputs(f"{folder}/outputs.npz", outputs)
    ...     open_outputs(f"{folder}/outputs.npz").read().labels.tolist()
    ['cat', 'dog']
    """
    arrays: dict[str, Any] = {"logits": outputs.logits, "classes": outputs.classes}
    for name in ("features", "trust", "labels"):
        if (values := getattr(outputs, name)) is not None:
            arrays[name] = values
    arrays |= {GROUP_PREFIX + name: own for name, own in outputs.groups.items()}
    for name, own in arrays.items():
        # Objects would be pickled.
        arrays[name] = own.astype(str) if own.dtype.kind == "O" else own
    with atomic_path(check_output(path, (".npz",))) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def write_sets(
    path: StrPath, blocks: Iterable[Mapping[str, Any]], classes: Array, before: Snapshot
) -> None:
    """Write blocks of prediction sets, columns by name, end to end; the extension says how.

    In a CSV file, the classes of a set stand in one cell with ``|`` between them, and so do
    numbers that belong to them.
    """
    target = check_output(path, SET_SUFFIXES)
    suffix = target.suffix.lower()
    if suffix == ".csv":
        _check_csv_names(target, classes)
    with atomic_path(target) as temporary:
        if suffix == ".parquet":
            _write_parquet(temporary, blocks)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                write = _write_csv if suffix == ".csv" else _write_json
                write(file, blocks)
        before.check()


def _check_csv_names(target: Path, classes: Array) -> None:
    for name in map(str, classes.tolist()):
        if SEPARATOR in name:
            raise InputError(
                f"{target}: the class {name!r} holds {SEPARATOR!r}, which separates the classes of "
                "a set in a CSV file. Write .jsonl or .parquet."
            )


def _write_parquet(path: Path, blocks: Iterable[Mapping[str, Any]]) -> None:
    pa = needed("pyarrow", f"{path}: a Parquet file")
    import pyarrow.parquet as pq

    writer = None
    try:
        for block in blocks:
            table = pa.table(dict(block))
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table.cast(writer.schema))
    finally:
        if writer is not None:
            writer.close()


def _write_csv(file: IO[str], blocks: Iterable[Mapping[str, Any]]) -> None:
    rows = csv.writer(file, lineterminator="\n")
    for number, block in enumerate(blocks):
        if number == 0:
            rows.writerow([_no_formula(name) for name in block])
        rows.writerows(zip(*(map(_cell, own) for own in block.values()), strict=True))


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        value = SEPARATOR.join(map(str, value))
    return _no_formula(value) if isinstance(value, str) else value


def _no_formula(text: str) -> str:
    """Spreadsheets run text that starts like a formula; an apostrophe keeps it text."""
    if not text.startswith(_FORMULA_STARTS):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _write_json(file: IO[str], blocks: Iterable[Mapping[str, Any]]) -> None:
    """One line a row; JSON has no infinity: such a threshold is null, and the status says why."""
    for block in blocks:
        for row in zip(*block.values(), strict=True):
            line = dict(zip(block, row, strict=True))
            if not math.isfinite(line["threshold"]):
                line["threshold"] = None
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


def read_sets(path: StrPath, classes: Array) -> PredictionSets:
    """Prediction sets of a file that `trustsets predict` wrote.

    `classes` are all class names, in the order of the columns of the outputs.
    """
    target = Path(path)
    rows = {".parquet": _parquet_rows, ".csv": _csv_rows, ".jsonl": _json_rows}[
        plain_file(target).suffix.lower()
    ](target)
    codes = {str(name): code for code, name in enumerate(classes.tolist())}
    masks, thresholds, status, alphas = [], [], [], set()
    try:
        while batch := list(islice(rows, _BATCH)):
            mask = np.zeros((len(batch), classes.size), dtype=bool)
            for row, (members, threshold, word, alpha) in enumerate(batch):
                mask[row, [_code(target, codes, str(name)) for name in members]] = True
                thresholds.append(math.inf if threshold is None else float(threshold))
                status.append(_STATUS[word])
                alphas.add(float(alpha))
            masks.append(mask)
    except (InputError, UnicodeEncodeError):
        raise
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(
            f"{target}: not predictions that trustsets wrote, or damaged ones ({error}). Run "
            "'trustsets predict' again."
        ) from error
    if not masks:
        raise InputError(f"{target}: it holds no predictions; run 'trustsets predict' again.")
    if len(alphas) > 1 or not 0.0 < min(alphas) < 1.0:
        raise InputError(
            f"{target}: its sets have no one alpha between 0 and 1, so there is no one coverage to "
            "compare with. Run 'trustsets predict' without --max-size."
        )
    return PredictionSets(
        mask=np.concatenate(masks),
        thresholds=np.array(thresholds),
        status=np.array(status, dtype=np.int8),
        alpha=alphas.pop(),
        classes=classes,
    )


def _code(path: Path, codes: Mapping[str, int], name: str) -> int:
    if name not in codes and name.startswith("'"):
        name = name[1:]  # what keeps a spreadsheet from running it
    if name not in codes:
        raise InputError(
            f"{path}: its sets hold the class {name!r}, which the labelled outputs do not have. "
            "Use outputs of the same classifier, with the same class names."
        )
    return codes[name]


# A set, its threshold (None for infinity), its status and its alpha.
_Row = tuple[list[Any], Any, str, Any]


def _parquet_rows(path: Path) -> Iterator[_Row]:
    pa = needed("pyarrow", f"{path}: a Parquet file")
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH, columns=["set", "threshold", "status", "alpha"]):
                for row in batch.to_pylist():
                    yield row["set"], row["threshold"], row["status"], row["alpha"]
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error


def _csv_rows(path: Path) -> Iterator[_Row]:
    names, rows = read_csv(path)
    place = {name: number for number, name in enumerate(names)}
    for row in rows:
        cell, size = row[place["set"]], int(row[place["size"]])
        members = cell.split(SEPARATOR) if size else []
        yield members, row[place["threshold"]], row[place["status"]], row[place["alpha"]]


def _json_rows(path: Path) -> Iterator[_Row]:
    with path.open(encoding="utf-8") as file:
        for line in map(parse_json, file):
            yield line["set"], line["threshold"], line["status"], line["alpha"]
