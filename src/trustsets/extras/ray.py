"""Prediction on Ray: datasets of Arrow batches, and files of any number and size.

Imports Ray when it is used. Ray schedules the work, moves it and repeats what was lost with a
worker or a machine; here stands only what one piece of work is. The predictor goes into Ray's
object store once, and all workers of a machine read its training points from there.
"""

import copy
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from trustsets import storage
from trustsets.errors import InputError, NotCalibratedError, StorageError, TrustSetsError
from trustsets.files.memory import rows_that_fit
from trustsets.files.needs import needed_groups
from trustsets.files.part_folder import PartFolder, PartWriter
from trustsets.files.parts import file_identity, part_key
from trustsets.files.prediction import (
    DEFAULT_MEMORY,
    PredictionSummary,
    open_for_prediction,
    predict_rows,
)
from trustsets.files.source import OutputsFile, open_outputs
from trustsets.files.tables import predict_table
from trustsets.predictors import Predictor
from trustsets.predictors.conditional import ConditionalLearned
from trustsets.quantiles import check_alphas

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["connected", "count_rows", "predict_dataset", "predict_files", "read_outputs"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

PART_ROWS = 1 << 16
"""Rows of one piece of work, and of one part of the result."""
BATCH_ROWS = 1 << 13
"""Rows of a batch of a dataset."""
# More pieces than this share tasks; a task that is repeated skips the parts that it had made.
_MOST_TASKS = 1 << 12


@final
@dataclass(frozen=True)
class Piece:
    """A range of rows of one file: a piece of work.

    Attributes
    ----------
    number : int
        Of the part of the result.
    path : str
    start, stop : int
        Rows of the file.
    first_row : int
        Number of the file's first sample over all files.
    """

    number: int
    path: str
    start: int
    stop: int
    first_row: int


@final
@dataclass(frozen=True)
class _Work:
    """What all pieces have in common. The reference is inside, so Ray hands it on unopened."""

    predictor: Any
    alpha: float
    ids: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    memory: int = DEFAULT_MEMORY
    writer: PartWriter | None = None


def predict_dataset(
    predictor: Predictor,
    dataset: Any,
    alpha: float = 0.1,
    *,
    ids: Sequence[str] = (),
    batch_rows: int = BATCH_ROWS,
    cpus: float = 1,
) -> Any:
    """Prediction sets of a Ray dataset, as another one; nothing runs before it is consumed.

    Parameters
    ----------
    predictor : Predictor
        Calibrated.
    dataset : ray.data.Dataset
        Columns as in `trustsets.files.predict_table`. Where sets are drawn at random there must
        be a column ``row``; `read_outputs` makes one.
    alpha : float
        Allowed miscoverage.
    ids : sequence of str
        Columns to copy to the result; ``row`` and ``id`` are copied where they are.
    batch_rows : int
        Rows predicted at a time: a worker needs memory for these only.
    cpus : float
        Cores of a task, which uses as many threads.

    Returns
    -------
    ray.data.Dataset
        As `predict_table`; write it with `write_parquet`, or map it further.

    Examples
    --------
    >>> predictor = ...                                        # doctest: +SKIP
    >>> sets = predict_dataset(predictor, ray.data.read_parquet("new/"))  # doctest: +SKIP
    >>> sets.write_parquet("sets/")                            # doctest: +SKIP
    """
    check_alphas(alpha)
    work = _Work(_share(predictor, alpha), float(alpha), tuple(ids))
    return dataset.map_batches(
        _predict_batch,
        batch_size=batch_rows,
        batch_format="pyarrow",
        fn_kwargs={"work": work},
        num_cpus=cpus,
    )


def read_outputs(
    outputs: Paths,
    *,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    part_rows: int = PART_ROWS,
) -> Any:
    """Ray dataset of model outputs in files, with the number of each sample in a column ``row``.

    Unlike `ray.data.read_parquet` it numbers the rows (over all files, in their order), checks
    them, and names the file and the row of a value that is not finite (in the text of Ray's own
    error, which wraps it).

    Parameters
    ----------
    outputs : path or sequence of paths
        Files that `trustsets.files.open_outputs` reads, or a folder of Parquet files.
    groups, ids : sequence of str
        Further group columns, and arrays to keep for the result.
    part_rows : int
        Rows that are read at a time.
    """
    files = input_files(outputs)
    work = _Work(None, 0.0, tuple(ids), tuple(groups))
    opened = (open_outputs(file, groups=groups, ids=ids) for file in files)
    return _dataset(_pieces(opened, part_rows)).map_batches(
        _read_piece, batch_size=1, batch_format="pyarrow", fn_kwargs={"work": work}
    )


def predict_files(
    predictor: Predictor,
    outputs: Paths,
    result: str | os.PathLike[str],
    *,
    alpha: float = 0.1,
    memory: int = DEFAULT_MEMORY,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    part_rows: int = PART_ROWS,
    cpus: float = 1,
    record: dict[str, Any] | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> PredictionSummary:
    """Predict sets for files of model outputs on Ray.

    The result is a folder of Parquet parts, which readers of Parquet take for one table: the sets
    of all samples in the order of the files, the same bits as in one process whatever the number
    of workers and however often some died. It appears when it is whole. A run that was
    interrupted, by a bad input for example, goes on where it stopped when it is called again.

    Parameters
    ----------
    predictor : Predictor
        Calibrated.
    outputs : path or sequence of paths
        Files that `trustsets.files.open_outputs` reads, or a folder of Parquet files. Row groups
        of at most `part_rows` rows read best.
    result : path
        Name of the folder to be, ending in ``.parquet``, like `outputs` on a file system that all
        machines share.
    alpha : float
        Allowed miscoverage.
    memory : int
        Bytes that a worker may use for samples and sets, besides the program and the predictor.
    groups, ids : sequence of str
        Further group columns, and arrays to copy; see `open_outputs`.
    part_rows : int
        Rows of a part, which is also what is made again when a worker dies.
    cpus : float
        Cores of a task, which uses as many threads.
    record : dict, optional
        Options to store with the result.
    advance : callable
        Called with the number of samples done.
    """
    check_alphas(alpha)
    files = input_files(outputs)
    opened = (open_for_prediction(predictor, file, groups=groups, ids=ids) for file in files)
    pieces = list(_pieces(opened, part_rows))
    record = record or {"command": "predict", "options": {"alpha": alpha}}
    setting = {
        "predictor": _identity(predictor),
        "outputs": [file_identity(file) for file in files],
        "columns": [list(groups), list(ids)],
        "alpha": alpha,
        "rows": part_rows,
        "record": record,
    }
    shared = _share(predictor, alpha)
    with PartFolder(Path(result), part_key(setting), record) as folder:
        work = _Work(shared, float(alpha), tuple(ids), tuple(groups), memory, folder.writer)
        made = _dataset(pieces).map_batches(
            _write_piece, batch_size=1, batch_format="pyarrow", fn_kwargs={"work": work},
            num_cpus=cpus,
        )  # fmt: skip
        summary = _summarise(made, pieces, predictor.classes_.size, advance)
        folder.finish([piece.stop - piece.start for piece in pieces])
    return summary


@contextmanager
def connected(address: str = "local") -> Iterator[None]:
    """Connect to the Ray cluster at an address, or start one on this machine, for a while.

    Parameters
    ----------
    address : str
        As ``ray.init`` takes it, such as ``"10.0.0.1:6379"`` or ``"auto"``; ``"local"`` starts a
        Ray on this machine, and stops it at the end.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    log = logging.getLogger("ray.data")
    level = log.level
    try:
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"address={address!r}: no Ray cluster answers there ({error}). Start one with 'ray "
            "start --head' and give the address that it prints."
        ) from error
    log.setLevel("ERROR")
    try:
        yield
    finally:
        log.setLevel(level)
        ray.shutdown()


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


def _share(predictor: Predictor, alpha: float) -> Any:
    """Put a predictor into the object store, with the fit of this alpha made."""
    if not hasattr(predictor, "state_"):
        raise NotCalibratedError("predictor is not calibrated; call calibrate first.")
    learned = predictor.state_.learned
    if isinstance(learned, ConditionalLearned):
        learned.fit(float(alpha))
    return import_ray().put(predictor)


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> Predictor:
    """Return the predictor in a worker.

    Training points stay in the memory that the workers of a machine share. The calibrated state is
    small and is copied: the engine's compiled functions are made for arrays that can be written.
    """
    predictor: Predictor = import_ray().get(reference)
    predictor.state_ = copy.deepcopy(predictor.state_)
    return predictor


def _identity(predictor: Predictor) -> str:
    """Digest of a predictor; one that cannot be stored equals no other."""
    try:
        return storage.digest(predictor)
    except StorageError:
        return uuid.uuid4().hex


def count_rows(outputs: Paths) -> int:
    """Samples in files of model outputs; only the headers of the files are read."""
    return sum(len(open_outputs(file)) for file in input_files(outputs))


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


def _pieces(opened: Iterator[OutputsFile], part_rows: int) -> Iterator[Piece]:
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


def _dataset(pieces: Any) -> Any:
    items = [asdict(piece) for piece in pieces]
    dataset = import_ray().data.from_items(items, override_num_blocks=min(len(items), _MOST_TASKS))
    dataset.context.enable_progress_bars = False
    return dataset


def _only_piece(batch: "pa.Table") -> Piece:
    return Piece(**batch.to_pylist()[0])


def _predict_batch(batch: "pa.Table", work: _Work) -> "pa.Table":
    return predict_table(_fetch(work.predictor), batch, work.alpha, ids=work.ids)


def _read_piece(batch: "pa.Table", work: _Work) -> "pa.Table":
    piece = _only_piece(batch)
    source = open_outputs(piece.path, groups=work.groups, ids=work.ids)
    return source.table(piece.start, piece.stop, first_row=piece.first_row)


def _write_piece(batch: "pa.Table", work: _Work) -> "pa.Table":
    """Make one part, unless it is there; report what is in it, or what is wrong with its input.

    An error of the input is a result, not a failure of the task: Ray would wrap it in its own and
    print both, and there is nothing to repeat.
    """
    import pyarrow as pa

    piece = _only_piece(batch)
    try:
        report = _report(_make_part(piece, work))
    except TrustSetsError as error:
        report = {"error": [type(error).__name__, str(error)]}
    return pa.table({"number": [piece.number], "report": [json.dumps(report)]})


def _make_part(piece: Piece, work: _Work) -> PredictionSummary:
    import pyarrow.parquet as pq

    assert work.writer is not None
    path = work.writer.path(piece.number)
    summary = PredictionSummary(piece.stop - piece.start, 0)
    if path.exists():
        summary.continued = summary.n
        summary.add(pq.read_table(path, columns=["size", "status"]))
    else:
        work.writer.write(piece.number, _predicted(piece, work, summary))
    return summary


def _report(summary: PredictionSummary) -> dict[str, Any]:
    return {
        "continued": summary.continued,
        "sizes": list(summary.sizes.items()),
        "status": dict(summary.status),
    }


def _predicted(piece: Piece, work: _Work, summary: PredictionSummary) -> Iterator["pa.Table"]:
    """Sets of a piece, as many rows at a time as fit into memory."""
    predictor = _fetch(work.predictor)
    source = open_outputs(
        piece.path, groups=[*work.groups, *needed_groups(predictor)], ids=work.ids
    )
    rows = rows_that_fit(source.row_bytes, source.n_classes, work.memory)
    for start in range(piece.start, piece.stop, rows):
        stop = min(start + rows, piece.stop)
        table = predict_rows(predictor, source, start, stop, work.alpha, piece.first_row)
        summary.add(table)
        yield table


def _summarise(
    made: Any, pieces: Sequence[Piece], n_classes: int, advance: Callable[[int], None]
) -> PredictionSummary:
    """Let the work run, and add up what the parts report."""
    summary = PredictionSummary(sum(piece.stop - piece.start for piece in pieces), n_classes)
    for part in made.iter_rows():
        piece, report = pieces[part["number"]], json.loads(part["report"])
        if "error" in report:
            name, text = report["error"]
            raise StorageError(text) if name == StorageError.__name__ else InputError(text)
        summary.continued += report["continued"]
        summary.sizes.update(dict(report["sizes"]))
        summary.status.update(report["status"])
        advance(piece.stop - piece.start)
    return summary
