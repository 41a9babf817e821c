"""`predict_file`: prediction sets for a file of any size, in bounded memory."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, final

import numpy as np

from trustsets._common.arrays import Array
from trustsets._common.atomic import StrPath
from trustsets._common.optional import needed
from trustsets._common.progress import Advance, Progress, no_progress
from trustsets._common.quantiles import check_alphas
from trustsets.errors import InputError
from trustsets.files.memory import rows_that_fit
from trustsets.files.naming import PLAIN, ROW, TableColumns
from trustsets.files.parts import PartStore
from trustsets.files.paths import Snapshot, check_output, content_digest
from trustsets.files.predicted import Predicted, added_columns, predict_block
from trustsets.files.set_files import PREDICTION_SUFFIXES, text_of, write_tables
from trustsets.files.source import OutputsFile, in_file, open_outputs
from trustsets.predictors import Predictor, load
from trustsets.status import Status

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

DEFAULT_MEMORY = 1 << 30
# P-values may need a threshold of every class at each of 100 alphas: so many times a set.
_P_VALUES = 14


@final
@dataclass
class PredictionSummary:
    """What the sets of a file are like: how many have each size, and each status by its word.

    `continued` are the samples that an earlier, interrupted run had done.
    """

    n: int
    n_classes: int
    continued: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    status: Counter[str] = field(default_factory=Counter)

    def add(self, found: Predicted) -> Predicted:
        """Count the sets of a block, and return it."""
        columns = found.sets.to_columns()
        self.sizes.update(columns["size"].tolist())
        self.status.update(columns["status"])
        return found

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
        """The summary in sentences."""
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
    model: StrPath,
    outputs: StrPath,
    result: StrPath,
    *,
    alpha: float = 0.1,
    max_size: int | None = None,
    p_values: int | None = None,
    memory: int = DEFAULT_MEMORY,
    ids: Sequence[str] = (),
    columns: TableColumns = PLAIN,
    record: dict[str, Any] | None = None,
    progress: Progress = no_progress,
) -> PredictionSummary:
    """Predict a set for every sample of a file, block by block.

    A run that was killed continues where it stopped and gives the same file. Under its name the
    result is whole or absent.

    Parameters
    ----------
    model, outputs, result : path
        Saved predictor; model outputs; file to write (`.parquet`, `.csv` or `.jsonl`).
    alpha : float
        Allowed miscoverage.
    max_size : int, optional
        Largest size of a set; a column ``alpha`` then says what each set promises.
    p_values : int, optional
        How many of the largest p-values to write, with their classes (columns ``class_1``,
        ``p_1``, ``class_2``, ...) and the ``confidence`` and ``credibility`` of the first class.
    memory : int
        Bytes that samples and sets at work may take, besides the program and the model.
    ids : sequence of str
        Arrays to copy to the result; one called ``id`` always is.
    columns : TableColumns, optional
        Which columns of a table hold what.
    record : dict, optional
        Options to store with the result.
    progress : callable, optional
        Given the number of samples, returns a context that gives a function, which is then called
        with the number of samples of each finished block.
    """
    target = check_output(result, PREDICTION_SUFFIXES, [model, outputs])
    kind = target.suffix.lower()
    if kind == ".parquet":
        needed("pyarrow", f"{target}: a Parquet file")
    before = Snapshot(model, outputs)
    predictor: Predictor = load(model)
    source = open_for_prediction(predictor, outputs, ids=ids, name=str(model), columns=columns)
    check_alphas(alpha)
    work = BlockPredictor(predictor, source, float(alpha), max_size=max_size, p_values=p_values)
    work.check()
    rows = rows_that_fit(source.row_bytes, work.n_numbers, memory)
    asked = {"alpha": alpha, "max_size": max_size, "p_values": p_values}
    record = record or {"command": "predict", "options": asked}
    setting = {"model": content_digest(model), "kind": kind, "rows": rows} | asked
    _log.info("%s: %d samples in blocks of %d", outputs, len(source), rows)
    with PartStore(target, setting | {"record": record}) as store:
        with progress(len(source)) as advance:
            summary = _predict_parts(work, rows, store, advance, kind)
        _log.info("%s: %d samples were done before", target, summary.continued)
        parts = (_counted(store.read(number), summary) for number in range(len(store)))
        beside = None if kind == ".parquet" else record
        store.finish(lambda file: _assemble(file, kind, parts, record), before.check, beside)
    return summary


def _predict_parts(
    work: "BlockPredictor", rows: int, store: PartStore, advance: Advance, kind: str
) -> PredictionSummary:
    """Make the parts that are not there, or that were made from other samples."""
    n = len(work.source)
    summary = PredictionSummary(n, work.source.n_classes)
    for number, start in enumerate(range(0, n, rows)):
        block = work.read(start, min(start + rows, n))
        size, source = len(block[ROW]), _digest(block)
        if store.holds(number, source):
            summary.continued += size
        else:
            store.write(number, _part(work.predict(block), kind, number == 0), source)
        advance(size)
    return summary


def _digest(block: dict[str, Array]) -> str:
    """Digest of the names, types and values of all arrays."""
    found = hashlib.sha256()
    for name, own in block.items():
        found.update(f"{name} {own.dtype} {own.shape} ".encode())
        texts = own.dtype.kind == "O"
        found.update(json.dumps(own.tolist()).encode() if texts else own.tobytes())
    return found.hexdigest()


def _part(found: Predicted, kind: str, first: bool) -> bytes:
    """A line that counts the sets, and then their content as the result will hold it."""
    counted = PredictionSummary(len(found.sets), found.sets.classes.size)
    counted.add(found)
    line = json.dumps({"sizes": list(counted.sizes.items()), "status": counted.status}).encode()
    if kind == ".parquet":
        return line + b"\n" + bytes(_to_bytes(found.to_arrow()))
    return line + b"\n" + text_of(kind, found.to_columns(), first).encode()


def _counted(part: bytes, summary: PredictionSummary) -> memoryview:
    """Content of a part, whose counts are added to a summary."""
    end = part.index(b"\n")
    counts = json.loads(part[:end])
    summary.sizes.update(dict(counts["sizes"]))
    summary.status.update(counts["status"])
    return memoryview(part)[end + 1 :]


def _assemble(
    file: IO[bytes], kind: str, parts: Iterable[memoryview], record: dict[str, Any]
) -> None:
    """Write the parts end to end."""
    if kind != ".parquet":
        for part in parts:
            file.write(part)
        return
    import pyarrow as pa

    tables = (pa.ipc.open_file(pa.py_buffer(part)).read_all() for part in parts)
    write_tables(file, tables, record)


@final
@dataclass(frozen=True)
class BlockPredictor:
    """Predicts ranges of rows of an open file; errors name the file and the row.

    `first_row` is the number of the file's first sample where there are files before it;
    `max_size` and `p_values` are as in `predict_file`.
    """

    predictor: Predictor
    source: OutputsFile
    alpha: float
    first_row: int = 0
    max_size: int | None = None
    p_values: int | None = None

    def check(self) -> None:
        """Refuse a number of p-values that cannot be, and columns to copy that it would hide."""
        count = self.p_values
        if count is not None and not 1 <= count <= self.source.n_classes:
            raise InputError(
                f"p_values must lie between 1 and {self.source.n_classes}, the number of classes; "
                f"got {count}."
            )
        for name in self.source.roles.ids:
            if name in added_columns(self.max_size, count):
                raise InputError(
                    f"column {name!r} cannot be copied: the result has one of that name. Rename it."
                )

    @property
    def n_numbers(self) -> int:
        """Classes of a sample, counted as often as their arrays take memory."""
        return self.source.n_classes * (1 if self.p_values is None else _P_VALUES)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Read the arrays of the rows `start` up to `stop` that their prediction depends on."""
        features = self.predictor.uses_features
        return self.source.block(start, stop, first_row=self.first_row, features=features)

    def predict(self, block: dict[str, Array]) -> Predicted:
        """Sets of a block."""
        try:
            return predict_block(
                self.predictor,
                block,
                self.alpha,
                ids=self.source.roles.ids,
                max_size=self.max_size,
                p_values=self.p_values,
            )
        except InputError as error:
            start = int(block[ROW][0]) - self.first_row
            raise in_file(self.source.path, error, start) from error


def open_for_prediction(
    predictor: Predictor,
    outputs: StrPath,
    *,
    ids: Sequence[str] = (),
    name: str = "the predictor",
    columns: TableColumns = PLAIN,
) -> OutputsFile:
    """Open outputs, and see that they fit a predictor, which errors call `name`."""
    if reason := predictor.batch_dependence:
        raise InputError(f"{name}: {reason}.")
    source = open_outputs(outputs, groups=predictor.needed_groups, ids=ids, columns=columns)
    check_n_classes(source, predictor, name)
    names = None if source.roles.classes is None else source.classes
    if names is not None and not np.array_equal(names, predictor.classes_):
        raise InputError(
            f"{outputs}: array {source.roles.classes!r} names other classes, or the same in "
            f"another order, than {name} was calibrated with. Use outputs of the same classifier."
        )
    if predictor.trust is not None and source.roles.features is None:
        raise InputError(
            f"{outputs}: there is no array 'features', which {name} needs for its trust score. "
            "Save the embeddings of the samples with their logits."
        )
    return source


def check_n_classes(source: OutputsFile, predictor: Predictor, name: str) -> None:
    """See that outputs have as many classes as a predictor, which errors call `name`."""
    if source.n_classes != predictor.classes_.size:
        raise InputError(
            f"{source.path}: array {source.roles.values!r} has {source.n_classes} classes, and "
            f"{name} was calibrated with {predictor.classes_.size}. Use outputs of the same "
            "classifier."
        )


def _to_bytes(table: "pa.Table") -> memoryview:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())
