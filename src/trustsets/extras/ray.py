"""Prediction on Ray: datasets of Arrow batches, and files of any number and size.

Ray schedules the work and repeats what was lost with a worker or a machine; this module says what
one piece of work is. The predictor goes into Ray's object store once, and all workers of a machine
read its training samples from there. Ray is imported when it is used.
"""

import json
import logging
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trustsets._common import storage
from trustsets._common.atomic import StrPath
from trustsets._common.progress import Progress, no_progress
from trustsets._common.quantiles import check_alphas
from trustsets.errors import InputError, StorageError
from trustsets.extras.ray_work import (
    Paths,
    Work,
    cut,
    import_ray,
    input_files,
    predict_batch,
    read_piece,
    share,
    watch_batch,
    write_piece,
)
from trustsets.files.part_folder import PartFolder
from trustsets.files.paths import Snapshot, file_identity
from trustsets.files.prediction import DEFAULT_MEMORY, PredictionSummary, open_for_prediction
from trustsets.files.source import open_outputs
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor

__all__ = [
    "connected",
    "predict_dataset",
    "predict_files",
    "read_outputs",
    "watch_dataset",
]

PART_ROWS = 1 << 16
"""Rows of one piece of work, and of one part of the result."""
BATCH_ROWS = 1 << 13
"""Rows of a batch of a dataset."""
# More pieces than this share tasks; a task that is repeated skips the parts that it had made.
_MOST_TASKS = 1 << 12


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
    alpha, ids
        As in `predict_table`.
    batch_rows : int
        Rows predicted at a time: a worker needs memory for these only.
    cpus : float
        Cores of a task, which uses as many threads.

    Returns
    -------
    ray.data.Dataset
        As `predict_table`; write it with `write_parquet`, or map it further.

    Notes
    -----
    For example ``predict_dataset(predictor, ray.data.read_parquet("new")).write_parquet("sets")``.
    """
    check_alphas(alpha)
    work = Work(share(predictor, alpha), float(alpha), tuple(ids))
    return dataset.map_batches(
        predict_batch,
        batch_size=batch_rows,
        batch_format="pyarrow",
        fn_kwargs={"work": work},
        num_cpus=cpus,
    )


def watch_dataset(
    predictor: Predictor,
    dataset: Any,
    state: StrPath,
    *,
    alpha: float = 0.1,
    false_alarm: float = 0.05,
    reference: ModelOutputs | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Any:
    """Take all batches of a Ray dataset into a monitor on their way; the same dataset comes out.

    Nothing runs before the result is consumed. Batches are taken one at a time, and a batch that
    Ray repeats counts once. Read the state afterwards with
    ``Monitor.load(state, predictor).verdict()``.

    Parameters
    ----------
    predictor : Predictor
        Calibrated.
    dataset : ray.data.Dataset
        Columns as in `trustsets.monitor.runs.watch_table`.
    state : path
        File of the monitor, on a file system that all machines share; made if it does not exist.
    alpha, false_alarm, reference
        As in `Monitor`, for a new state.
    batch_rows : int
        Rows of a batch.
    """
    check_alphas(alpha)
    work = Work(share(predictor, alpha), float(alpha))
    given = {"false_alarm": false_alarm, "reference": reference}
    return dataset.map_batches(
        watch_batch,
        batch_size=batch_rows,
        batch_format="pyarrow",
        fn_kwargs={"work": work, "state": str(Path(state).absolute()), "given": given},
        concurrency=1,
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
    work = Work(None, 0.0, tuple(ids), tuple(groups))
    opened = (open_outputs(file, groups=groups, ids=ids) for file in files)
    return _map_pieces(read_piece, cut(opened, part_rows), work)


def predict_files(
    predictor: Predictor,
    outputs: Paths,
    result: StrPath,
    *,
    alpha: float = 0.1,
    memory: int = DEFAULT_MEMORY,
    ids: Sequence[str] = (),
    part_rows: int = PART_ROWS,
    cpus: float = 1,
    record: dict[str, Any] | None = None,
    progress: Progress = no_progress,
) -> PredictionSummary:
    """Predict sets for files of model outputs on Ray.

    The result is a folder of Parquet parts, which readers of Parquet take for one table. It holds
    the sets of all samples in the order of the files. They equal those of one process bit for bit,
    whatever the number of workers and however often some died. The folder appears when it is
    complete. A run that was interrupted, by a bad input for example, continues when it is called
    again.

    Parameters
    ----------
    predictor : Predictor
        Calibrated.
    outputs : path or sequence of paths
        Files that `trustsets.files.open_outputs` reads, or a folder of Parquet files. Row groups
        of at most `part_rows` rows read best.
    result : path
        Name of the folder to make, ending in ``.parquet``. Like `outputs`, it must be on a file
        system that all machines share.
    alpha, memory, ids, record, progress
        As in `trustsets.files.predict_file`; `memory` is for each worker.
    part_rows : int
        Rows of a part; when a worker dies, its part is made again.
    cpus : float
        Cores of a task, which uses as many threads.
    """
    import_ray()
    check_alphas(alpha)
    files = input_files(outputs)
    before = Snapshot(*files)
    opened = (open_for_prediction(predictor, file, ids=ids) for file in files)
    pieces = list(cut(opened, part_rows))
    record = record or {"command": "predict", "options": {"alpha": alpha}}
    setting = {
        "predictor": _identity(predictor),
        "outputs": [file_identity(file) for file in files],
        "columns": list(ids),
        "alpha": alpha,
        "rows": part_rows,
        "record": record,
    }
    shared = share(predictor, alpha)
    with PartFolder(Path(result), setting, record) as folder:
        work = Work(shared, float(alpha), tuple(ids), memory=memory, writer=folder.writer)
        made = _map_pieces(write_piece, pieces, work, num_cpus=cpus)
        rows = [piece.stop - piece.start for piece in pieces]
        summary = PredictionSummary(sum(rows), predictor.classes_.size)
        with progress(summary.n) as advance:
            for part in made.iter_rows():
                _add(summary, json.loads(part["report"]))
                advance(rows[part["number"]])
        before.check()
        folder.finish(rows)
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
    check_answers(address)
    log = logging.getLogger("ray.data")
    level = log.level
    try:
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, error) from error
    log.setLevel("ERROR")
    try:
        yield
    finally:
        log.setLevel(level)
        ray.shutdown()


def _identity(predictor: Predictor) -> str:
    """Digest of a predictor; one that cannot be stored equals no other."""
    try:
        return storage.digest(predictor)
    except StorageError:
        return uuid.uuid4().hex


def check_answers(address: str) -> None:
    """Try to reach an address of the form host:port; Ray itself would wait ten minutes for it."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> InputError:
    return InputError(
        f"{address}: no Ray cluster answers there ({error}). Start one with 'ray start --head' and "
        "give the address that it prints, or give none to start one here."
    )


def _map_pieces(function: Any, pieces: Any, work: Work, **options: Any) -> Any:
    """Dataset of what a function makes of each piece."""
    items = [asdict(piece) for piece in pieces]
    dataset = import_ray().data.from_items(items, override_num_blocks=min(len(items), _MOST_TASKS))
    dataset.context.enable_progress_bars = False
    return dataset.map_batches(
        function, batch_size=1, batch_format="pyarrow", fn_kwargs={"work": work}, **options
    )


def _add(summary: PredictionSummary, report: dict[str, Any]) -> None:
    """Add up what the parts report."""
    if "error" in report:
        name, text = report["error"]
        raise StorageError(text) if name == StorageError.__name__ else InputError(text)
    summary.continued += report["continued"]
    summary.sizes.update(dict(report["sizes"]))
    summary.status.update(report["status"])
