"""Prediction sets of files and tables: `predict_file` and `predict_table`."""

import csv
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, final

import numpy as np

from trustsets import _storage as storage
from trustsets._arrays import Array
from trustsets._frames import flavour_of, needed
from trustsets._progress import progress_bar
from trustsets._quantiles import check_alphas
from trustsets._storage import StrPath
from trustsets.errors import InputError
from trustsets.files.outputs import (
    PLAIN,
    ROW,
    OutputsFile,
    TableColumns,
    arrow_table,
    open_outputs,
    open_table,
)
from trustsets.files.tables import plain_file
from trustsets.predictors import Predictor, load
from trustsets.sets import PredictionSets
from trustsets.status import Status

__all__ = [
    "PredictionSummary",
    "check_output",
    "content_digest",
    "open_for_model",
    "predict_file",
    "predict_table",
]

_SUFFIXES = (".parquet", ".csv", ".jsonl")
_WORDS = {int(status): status.name.lower() for status in Status}
# What stands between the classes of a set in a cell of a CSV file.
_SEPARATOR = "|"
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
# Digits of probabilities that are written.
_DIGITS = 6


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
        if source is not None and target.exists() and Path(source).exists():
            if target.samefile(source) and not storage.is_stream(target):
                raise InputError(
                    f"{target}: it is the input {source} itself, which would be lost; give the "
                    "result another name."
                )
    return target


def content_digest(path: StrPath) -> str:
    """SHA-256 of the content of a file, or of the names and contents of a folder's arrays."""
    target, whole = Path(path), hashlib.sha256()
    for file in sorted(target.glob("*.npy")) if target.is_dir() else [target]:
        with plain_file(file).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        whole.update(f"{file.name if target.is_dir() else ''}:{digest}\n".encode(errors="replace"))
    return whole.hexdigest()


@final
@dataclass
class PredictionSummary:
    """What the sets of a file are like: how many have each size, and each status by its word."""

    n: int
    n_classes: int
    sizes: Counter[int] = field(default_factory=Counter)
    status: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "n": self.n,
            "n_classes": self.n_classes,
            "mean_size": sum(size * count for size, count in self.sizes.items()) / self.n,
            "empty": self.sizes[0],
            "full": self.sizes[self.n_classes],
            "status": dict(sorted(self.status.items())),
        }

    def sentences(self) -> list[str]:
        """The summary in sentences."""
        numbers = self.to_dict()
        lines = [
            f"{self.n:,} sets of {numbers['mean_size']:.2f} classes on average; "
            f"{numbers['full']:,} hold all {self.n_classes:,} classes, "
            f"{numbers['empty']:,} are empty."
        ]
        for status in Status:
            count = self.status[status.name.lower()]
            if count and status is not Status.EXACT:
                lines.append(f"{count:,} of them: {status.sentence}.")
        return lines


def predict_file(
    model: StrPath,
    outputs: StrPath,
    result: StrPath,
    *,
    alpha: float = 0.1,
    max_size: int | None = None,
    probabilities: bool = False,
    ids: Sequence[str] = (),
    columns: TableColumns = PLAIN,
    progress: bool | None = None,
) -> PredictionSummary:
    """Predict a set for every sample of a file, block by block.

    Under its name the result is whole or absent.

    Parameters
    ----------
    model, outputs, result : path
        Saved predictor; model outputs; file to write (`.parquet`, `.csv` or `.jsonl`). In a CSV
        file, the classes of a set stand in one cell with ``|`` between them.
    alpha : float
        Allowed miscoverage.
    max_size : int, optional
        Largest size of a set; the column ``alpha`` then says what each set guarantees.
    probabilities : bool
        Add a column with the probabilities of the classes of each set.
    ids : sequence of str
        Arrays to copy to the result; one called ``id`` always is.
    columns : TableColumns, optional
        Which columns of a table hold what; by default those that the model was calibrated with.
    progress : bool, optional
        Show a progress bar; by default on a terminal.
    """
    target = check_output(result, _SUFFIXES, [model, outputs])
    check_alphas(alpha)
    predictor: Predictor = load(model)
    source = open_for_model(outputs, predictor, model, ids=ids, columns=columns).without_labels()
    _check_copied(source, probabilities)
    summary = PredictionSummary(len(source), source.n_classes)

    def blocks() -> Iterator[dict[str, Any]]:
        title = "Prediction sets"
        with progress_bar(title, len(source), wanted=progress, transient=True) as advance:
            for start, stop in source.blocks():
                samples = source.read(start, stop, features=predictor.uses_features)
                sets = predictor.predict_set(samples, float(alpha), max_size=max_size)
                block: dict[str, Any] = {ROW: list(range(start, stop))}
                for name, column in source.ids.items():
                    block[name] = column.read_names(start, stop).tolist()
                block |= _set_columns(sets, samples.probabilities, probabilities)
                summary.sizes.update(block["size"])
                summary.status.update(block["status"])
                yield block
                advance(stop - start)

    _write_sets(target, blocks(), predictor.classes_)
    return summary


def predict_table(
    predictor: Predictor,
    table: Any,
    alpha: float = 0.1,
    *,
    max_size: int | None = None,
    probabilities: bool = False,
    ids: Sequence[str] = (),
    columns: TableColumns = PLAIN,
) -> Any:
    """Prediction sets of a batch of samples: a table in, a table of the same kind out.

    It is for engines that map batches: Ray, Spark's mapInArrow, Dask. A row of the result depends
    on its own row of the input alone, whatever the batches; a batch may be empty.

    Parameters
    ----------
    predictor : Predictor
        Calibrated.
    table : pyarrow.Table, or frame of pandas or polars
        Columns as in `open_outputs`. Where sets are drawn at random, a column ``row`` must have
        the number of the sample in the whole data set. Labels are not looked at.
    alpha, max_size, probabilities, ids, columns
        As in `predict_file`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from trustsets import ModelOutputs, StandardConformal
    >>> codes = np.arange(99) % 2
    >>> calibration = ModelOutputs(logits=np.eye(2)[codes], labels=np.array(["a", "b"])[codes])
    >>> predictor = StandardConformal().calibrate(calibration)
    >>> batch = pa.table({"id": ["x", "y"], "logits": [[3.0, 0.0], [0.0, 3.0]]})
    >>> predict_table(predictor, batch, alpha=0.1).to_pylist()[1]
    {'id': 'y', 'set': ['b'], 'size': 1, 'threshold': 0.0, 'status': 'exact', 'alpha': 0.1}
    """
    pa = needed("pyarrow", "predict_table")
    rows, classes = arrow_table(table), predictor.classes_
    if rows.num_rows:
        source = open_table(
            rows, groups=predictor.needed_groups, ids=ids, classes=classes, columns=columns
        ).without_labels()
        _check_fits_predictor(source, predictor, "the predictor")
        _check_copied(source, probabilities)
        if predictor.draws_at_random and source.row is None:
            raise InputError(
                f"table needs a column {ROW!r} with the number of each sample: this predictor "
                "draws at random, and the draws of a sample must not depend on its batch."
            )
        samples = source.read(features=predictor.uses_features)
        sets = predictor.predict_set(samples, float(alpha), max_size=max_size)
        added = _set_columns(sets, samples.probabilities, probabilities)
        names = [*([ROW] if source.row is not None else []), *source.ids]
    else:
        # Engines pass empty partitions; their results must have the columns of the others.
        added = {name: [] for name in ("set", "size", "threshold", "status", "alpha")}
        added |= {"probabilities": []} if probabilities else {}
        names = [name for name in dict.fromkeys([ROW, *ids, "id"]) if name in rows.column_names]
    types = {
        "set": pa.list_(pa.array(classes.tolist()).type),
        "size": pa.int32(),
        "threshold": pa.float64(),
        "status": pa.string(),
        "alpha": pa.float64(),
        "probabilities": pa.list_(pa.float64()),
    }
    result = pa.table(
        {name: rows.column(name) for name in names}
        | {name: pa.array(values, types[name]) for name, values in added.items()}
    )
    if flavour_of(table) == "pandas":
        return result.to_pandas().set_index(table.index)
    return (
        needed("polars", "a frame").from_arrow(result) if flavour_of(table) == "polars" else result
    )


def _set_columns(
    sets: PredictionSets, probabilities: Array, with_probabilities: bool
) -> dict[str, list[Any]]:
    """Columns of a result; the classes of a set come as in `PredictionSets`, likeliest first."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    if sets.scores is not None and sets.predicted is not None:
        unlikely = np.arange(sets.classes.size) != sets.predicted[:, None]
        order = np.lexsort((unlikely, sets.scores), axis=1)
    inside = np.take_along_axis(sets.mask, order, axis=1)
    members = [codes[within] for codes, within in zip(order, inside, strict=True)]
    thresholds = sets.thresholds if sets.thresholds.ndim == 1 else sets.thresholds.max(axis=1)
    columns: dict[str, list[Any]] = {
        "set": [sets.classes[codes].tolist() for codes in members],
        "size": sets.sizes.tolist(),
        "threshold": thresholds.tolist(),
        "status": [_WORDS[code] for code in sets.status.tolist()],
        "alpha": np.broadcast_to(np.asarray(sets.alpha, dtype=float), len(sets)).tolist(),
    }
    if with_probabilities:
        rounded = probabilities.round(_DIGITS)
        columns["probabilities"] = [
            row[codes].tolist() for row, codes in zip(rounded, members, strict=True)
        ]
    return columns


def _check_copied(source: OutputsFile, probabilities: bool) -> None:
    taken = {ROW, "set", "size", "threshold", "status", "alpha"}
    taken |= {"probabilities"} if probabilities else set()
    for name in source.ids:
        if name in taken:
            raise InputError(
                f"column {name!r} cannot be copied: the result has one of that name. Rename it."
            )


def open_for_model(
    outputs: StrPath,
    predictor: Predictor,
    model: StrPath,
    *,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    columns: TableColumns = PLAIN,
) -> OutputsFile:
    """Open outputs that must fit a predictor, whose file is `model`.

    Columns of a table are those of its calibration, unless `columns` says otherwise.
    """
    source = open_outputs(
        outputs,
        groups=[*groups, *predictor.needed_groups],
        ids=ids,
        classes=predictor.classes_,
        columns=columns,
        remembered=_remembered_columns(model),
    )
    _check_fits_predictor(source, predictor, str(model))
    return source


def _remembered_columns(model: StrPath) -> TableColumns:
    """The columns of the table that a model was calibrated with; none if there was no table."""
    note = storage.read_note(model)
    try:
        names = note["columns"]
        kinds = ("probabilities", "logits", "features")
        lists = {kind: tuple(map(str, names[kind])) for kind in kinds}
        return TableColumns(**lists, label=None if names["label"] is None else str(names["label"]))
    except (KeyError, TypeError):
        return PLAIN


def _check_fits_predictor(source: OutputsFile, predictor: Predictor, name: str) -> None:
    """Refuse outputs of other classes, and those that lack what a predictor needs."""
    if reason := predictor.batch_dependence:
        raise InputError(f"{name}: {reason}.")
    if source.n_classes != predictor.classes_.size:
        raise InputError(
            f"{source.path}: array {source.values.name!r} has {source.n_classes} classes, and "
            f"{name} was calibrated with {predictor.classes_.size}. Use outputs of the same "
            "classifier."
        )
    classes = source.stored_classes
    if classes is not None and not np.array_equal(classes, predictor.classes_):
        raise InputError(
            f"{source.path}: it names other classes, or the same in another order, than {name} "
            "was calibrated with. Use outputs of the same classifier."
        )
    needs_trust = predictor.trust is not None and predictor.uses_features
    if needs_trust and source.trust is None and source.features is None:
        raise InputError(
            f"{source.path}: there is no array 'features', which {name} needs for its trust "
            "score. Save the embeddings of the samples with their logits."
        )


# --- Files of sets -----------------------------------------------------------------------------


def _write_sets(target: Path, blocks: Iterable[Mapping[str, Any]], classes: Array) -> None:
    """Write blocks of columns by name, end to end; the extension says how."""
    suffix = target.suffix.lower()
    if suffix == ".csv":
        for name in map(str, classes.tolist()):
            if _SEPARATOR in name:
                raise InputError(
                    f"{target}: the class {name!r} holds {_SEPARATOR!r}, which separates the "
                    "classes of a set in a CSV file. Write .jsonl or .parquet."
                )
    if suffix == ".parquet":
        needed("pyarrow", f"{target}: a Parquet file")
    with storage.atomic_path(target) as temporary:
        if suffix == ".parquet":
            _write_parquet(temporary, blocks)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                write = _write_csv if suffix == ".csv" else _write_json
                write(file, blocks)


def _write_parquet(path: Path, blocks: Iterable[Mapping[str, Any]]) -> None:
    import pyarrow as pa
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
        rows.writerows(zip(*(map(_cell, column) for column in block.values()), strict=True))


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        value = _SEPARATOR.join(map(str, value))
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
