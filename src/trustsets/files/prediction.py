"""`predict_file`: sets for a file of any size, in bounded memory. Imports its siblings."""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, final

import numpy as np

from trustsets._common.quantiles import check_alphas
from trustsets.errors import InputError
from trustsets.files.memory import rows_that_fit
from trustsets.files.options import bound_record, sidecar
from trustsets.files.parts import PartStore, part_key
from trustsets.files.paths import Snapshot, check_output, content_digest
from trustsets.files.set_files import (
    PREDICTION_SUFFIXES,
    check_suffix,
    has_sidecar,
    write_tables,
)
from trustsets.files.source import OutputsFile, in_file, open_outputs, read_classes
from trustsets.files.tables import predict_table
from trustsets.predictors import Predictor, load
from trustsets.status import Status

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PredictionSummary", "open_for_prediction", "predict_file", "predict_rows"]

_log = logging.getLogger(__name__)

DEFAULT_MEMORY = 1 << 30


@final
@dataclass
class PredictionSummary:
    """What a prediction came to.

    Attributes
    ----------
    n, n_classes : int
        Samples and classes.
    sizes : Counter
        How many sets have each size.
    status : Counter
        How many sets have each status, by its word.
    continued : int
        Samples that an earlier, interrupted run had done.
    """

    n: int
    n_classes: int
    continued: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    status: Counter[str] = field(default_factory=Counter)

    def add(self, table: "pa.Table") -> None:
        """Count the sets of a table."""
        self.sizes.update(table.column("size").to_pylist())
        self.status.update(table.column("status").to_pylist())

    @property
    def mean_size(self) -> float:
        """Mean size of the sets."""
        return sum(size * count for size, count in self.sizes.items()) / self.n

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "n": self.n,
            "n_classes": self.n_classes,
            "mean_size": self.mean_size,
            "empty": self.sizes[0],
            "full": self.sizes[self.n_classes],
            "status": dict(sorted(self.status.items())),
            "continued": self.continued,
        }

    def sentences(self) -> list[str]:
        """The same in words."""
        lines = [
            f"{self.n:,} sets of {self.mean_size:.2f} classes on average; "
            f"{self.sizes[self.n_classes]:,} hold all {self.n_classes:,} classes, "
            f"{self.sizes[0]:,} are empty."
        ]
        for status in Status:
            count = self.status[status.name.lower()]
            if count and status is not Status.EXACT:
                lines.append(f"{count:,} of them: {status.sentence}.")
        return lines


def predict_file(
    model: str | os.PathLike[str],
    outputs: str | os.PathLike[str],
    result: str | os.PathLike[str],
    *,
    alpha: float = 0.1,
    memory: int = DEFAULT_MEMORY,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    record: dict[str, Any] | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> PredictionSummary:
    """Predict sets for a file of model outputs, block by block.

    A run that was killed continues where it stopped: blocks that are done lie in a hidden
    folder beside `result` until all are, and then `result` appears at once.

    Parameters
    ----------
    model : path
        A saved predictor.
    outputs : path
        Model outputs; see `open_outputs`. Labels are not looked at.
    result : path
        `.parquet`, `.csv` or `.jsonl`; an earlier file is replaced when the new one is whole.
    alpha : float
        Allowed miscoverage.
    memory : int
        Bytes for a block of samples and its sets, besides the program and the predictor.
    groups, ids : sequence of str
        Further group columns, and arrays to copy; see `open_outputs`.
    record : dict, optional
        Options to store with the result.
    advance : callable
        Called with the number of samples done.
    """
    target = Path(result)
    kind = check_suffix(target)
    check_output(target, PREDICTION_SUFFIXES, [model, outputs])
    before = Snapshot(model, outputs)
    predictor: Predictor = load(model)
    source = open_for_prediction(predictor, outputs, groups=groups, ids=ids, name=str(model))
    check_alphas(alpha)
    rows = rows_that_fit(source.row_bytes, source.n_classes, memory)
    record = record or {"command": "predict", "options": {"alpha": alpha}}
    setting = {
        "model": content_digest(model),
        "kind": kind,
        "alpha": alpha,
        "rows": rows,
        "record": record,
    }
    job = _Job(predictor, source, float(alpha), rows)
    _log.info("%s: %d samples in blocks of %d", outputs, len(source), rows)
    with PartStore(target, part_key(setting)) as store:
        summary = job.run(store, advance)
        if summary.continued:
            _log.info("%s: %d samples were done before", target, summary.continued)
        store.finish(
            lambda file: job.assemble(file, store, target, record, summary),
            before.check,
            (lambda digest: (sidecar(target), bound_record(record, digest)))
            if has_sidecar(target)
            else None,
        )
    return summary


@final
@dataclass(frozen=True)
class _Job:
    """One prediction: who predicts what, in blocks of how many rows."""

    predictor: Predictor
    source: OutputsFile
    alpha: float
    rows: int

    def run(self, store: PartStore, advance: Callable[[int], None]) -> PredictionSummary:
        """Make the blocks that are not there, or that were made from other samples."""
        summary = PredictionSummary(len(self.source), self.source.n_classes)
        for number, start in enumerate(range(0, len(self.source), self.rows)):
            stop = min(start + self.rows, len(self.source))
            samples = read_rows(self.predictor, self.source, start, stop)
            digest = _digest(samples)
            if store.holds(number, digest):
                summary.continued += stop - start
            else:
                store.write(number, _to_bytes(self.predict(samples, start)), digest)
            advance(stop - start)
        return summary

    def predict(self, samples: "pa.Table", start: int) -> "pa.Table":
        """Sets of a block of samples, the first of which is row `start`."""
        return _predict_samples(self.predictor, self.source, samples, start, self.alpha)

    def assemble(
        self,
        file: IO[bytes],
        store: PartStore,
        target: Path,
        record: dict[str, Any],
        summary: PredictionSummary,
    ) -> None:
        """Write all blocks to one file, and count what is in them."""

        def tables() -> Iterator["pa.Table"]:
            for number in range(len(store)):
                table = _from_bytes(store.read(number))
                summary.add(table)
                yield table

        write_tables(file, check_suffix(target), tables(), record)


def predict_rows(
    predictor: Predictor,
    source: OutputsFile,
    start: int,
    stop: int,
    alpha: float,
    first_row: int = 0,
) -> "pa.Table":
    """Sets of the rows `start` up to `stop` of a file; errors name the file and the row."""
    samples = read_rows(predictor, source, start, stop, first_row)
    return _predict_samples(predictor, source, samples, start, alpha)


def read_rows(
    predictor: Predictor, source: OutputsFile, start: int, stop: int, first_row: int = 0
) -> "pa.Table":
    """What a predictor looks at in the rows `start` up to `stop` of a file."""
    return source.table(start, stop, features=predictor.uses_features, first_row=first_row)


def _predict_samples(
    predictor: Predictor, source: OutputsFile, samples: "pa.Table", start: int, alpha: float
) -> "pa.Table":
    try:
        return predict_table(predictor, samples, alpha, ids=source.roles.ids)
    except InputError as error:
        raise in_file(source.path, error, start) from error


def open_for_prediction(
    predictor: Predictor,
    outputs: str | os.PathLike[str],
    *,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    name: str = "the predictor",
) -> OutputsFile:
    """Open outputs, and see that they fit a predictor, which errors call `name`."""
    if reason := predictor.batch_dependence:
        raise InputError(f"{name}: {reason}.")
    source = open_outputs(outputs, groups=[*groups, *predictor.needed_groups], ids=ids)
    n_classes = predictor.classes_.size
    if source.n_classes != n_classes:
        raise InputError(
            f"{outputs}: array {source.roles.values!r} has {source.n_classes} classes, and "
            f"{name} was calibrated with {n_classes}. Use outputs of the same classifier."
        )
    named = source.roles.classes is not None
    if named and not np.array_equal(read_classes(source.path, n_classes), predictor.classes_):
        raise InputError(
            f"{outputs}: array {source.roles.classes!r} names other classes, or the same in "
            f"another order, than {name} was calibrated with. Use outputs of the same classifier."
        )
    if predictor.trust is not None and not source.has_features:
        raise InputError(
            f"{outputs}: there is no array 'features', which {name} needs for its trust score. "
            "Save the embeddings of the samples with their logits."
        )
    return source


def _digest(table: "pa.Table") -> str:
    """Digest of the content of a table."""
    whole = hashlib.sha256(f"{table.schema} {table.num_rows}".encode())
    for column in table.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                whole.update(b"" if buffer is None else buffer)
    return whole.hexdigest()


def _to_bytes(table: "pa.Table") -> memoryview:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def _from_bytes(content: bytes) -> "pa.Table":
    import pyarrow as pa

    return pa.ipc.open_file(pa.py_buffer(content)).read_all()
