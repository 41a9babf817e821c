"""The work of one Ray worker: a batch of a dataset, or a range of rows of a file.

The driver prepares the work with `input_files`, `cut` and `share`. Ray is imported when it is used.
"""

import copy
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from trustsets._common.atomic import StrPath
from trustsets.errors import InputError, TrustSetsError
from trustsets.files.memory import rows_that_fit
from trustsets.files.part_folder import PartWriter
from trustsets.files.prediction import DEFAULT_MEMORY, BlockPredictor, PredictionSummary
from trustsets.files.source import OutputsFile, open_outputs
from trustsets.files.tables import predict_table
from trustsets.monitor.runs import watch_table
from trustsets.predictors import Predictor

if TYPE_CHECKING:
    import pyarrow as pa

Paths = StrPath | Sequence[StrPath]


@final
@dataclass(frozen=True)
class Piece:
    """A range of rows of one file: one piece of work, and one part of the result.

    `first_row` is the number of the file's first sample over all files.
    """

    number: int
    path: str
    start: int
    stop: int
    first_row: int


@final
@dataclass(frozen=True)
class Work:
    """What all pieces have in common.

    The reference to the predictor is inside an object, so that Ray passes it on as a reference and
    does not fetch the predictor for every task.
    """

    predictor: Any
    alpha: float
    ids: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    memory: int = DEFAULT_MEMORY
    writer: PartWriter | None = None


def import_ray() -> Any:
    """Return the module `ray`, or say how to install it."""
    try:
        import ray
        import ray.data  # the dataset library has dependencies of its own
    except ImportError as error:
        raise InputError(
            'Ray is not installed. Install it with: pip install "trustsets[ray]"'
        ) from error
    return ray


def share(predictor: Predictor, alpha: float) -> Any:
    """Put a predictor into the object store, with the fit of this alpha made."""
    return import_ray().put(predictor.prepare(alpha))


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> Predictor:
    """Return the predictor in a worker.

    Training points stay in the memory that the workers of a machine share. The calibrated state is
    small and is copied: the engine's compiled functions are made for arrays that can be written.
    """
    predictor: Predictor = import_ray().get(reference)
    predictor.state_ = copy.deepcopy(predictor.state_)
    return predictor


def input_files(outputs: Paths) -> list[Path]:
    """Files to read, absolute: a folder stands for the Parquet files in it, in order of name."""
    given = [outputs] if isinstance(outputs, str | os.PathLike) else list(outputs)
    files: list[Path] = []
    for path in map(Path, given):
        inside = sorted(path.glob("*.parquet")) if path.is_dir() else []
        files += [file.absolute() for file in inside or [path]]
    if not files:
        raise InputError("outputs must name at least one file.")
    return files


def cut(opened: Iterator[OutputsFile], part_rows: int) -> Iterator[Piece]:
    """Cut files into ranges of rows; only the headers of the files are read."""
    if part_rows < 1:
        raise InputError(f"part_rows must be at least 1; got {part_rows}.")
    number, first_row = 0, 0
    for source in opened:
        for start in range(0, len(source), part_rows):
            stop = min(start + part_rows, len(source))
            yield Piece(number, str(source.path), start, stop, first_row)
            number += 1
        first_row += len(source)


def predict_batch(batch: "pa.Table", work: Work) -> "pa.Table":
    """Sets of a batch of a dataset."""
    return predict_table(_fetch(work.predictor), batch, work.alpha, ids=work.ids)


def watch_batch(batch: "pa.Table", work: Work, state: str, given: dict[str, Any]) -> "pa.Table":
    """Take a batch of a dataset into a monitor, and pass it on."""
    return watch_table(_fetch(work.predictor), batch, state, alpha=work.alpha, **given)


def read_piece(batch: "pa.Table", work: Work) -> "pa.Table":
    """Outputs of a range of rows, numbered over all files."""
    piece = Piece(**batch.to_pylist()[0])
    source = open_outputs(piece.path, groups=work.groups, ids=work.ids)
    return source.table(piece.start, piece.stop, first_row=piece.first_row)


def write_piece(batch: "pa.Table", work: Work) -> "pa.Table":
    """Make one part, unless it is there; report what is in it, or what is wrong with its input.

    An error of the input is a result, not a failure of the task: Ray would wrap it in its own and
    print both, and there is nothing to repeat.
    """
    import pyarrow as pa

    piece = Piece(**batch.to_pylist()[0])
    try:
        made = _make_part(piece, work)
        counts = {"sizes": list(made.sizes.items()), "status": dict(made.status)}
        report: dict[str, Any] = counts | {"continued": made.continued}
    except TrustSetsError as error:
        report = {"error": [type(error).__name__, str(error)]}
    return pa.table({"number": [piece.number], "report": [json.dumps(report)]})


def _make_part(piece: Piece, work: Work) -> PredictionSummary:
    import pyarrow.parquet as pq

    assert work.writer is not None
    path = work.writer.path(piece.number)
    summary = PredictionSummary(piece.stop - piece.start, 0)
    if path.exists():
        summary.continued = summary.n
        found = pq.read_table(path, columns=["size", "status"])
        summary.sizes.update(found.column("size").to_pylist())
        summary.status.update(found.column("status").to_pylist())
    else:
        work.writer.write(piece.number, _predicted(piece, work, summary))
    return summary


def _predicted(piece: Piece, work: Work, summary: PredictionSummary) -> Iterator["pa.Table"]:
    """Sets of a piece, as many rows at a time as fit into memory."""
    predictor = _fetch(work.predictor)
    source = open_outputs(piece.path, groups=predictor.needed_groups, ids=work.ids)
    rows = rows_that_fit(source.row_bytes, source.n_classes, work.memory)
    blocks = BlockPredictor(predictor, source, work.alpha, piece.first_row)
    for start in range(piece.start, piece.stop, rows):
        block = blocks.read(start, min(start + rows, piece.stop))
        yield summary.add(blocks.predict(block)).to_arrow()
