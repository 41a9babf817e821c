"""`predict_file` and `predict_table`: a prediction set for every sample of a file or table."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from trustsets import _storage as storage
from trustsets._arrays import Array
from trustsets._frames import flavour_of
from trustsets._progress import Progress, no_progress
from trustsets._quantiles import check_alphas
from trustsets._storage import StrPath
from trustsets.errors import InputError
from trustsets.files.reading import (
    PLAIN,
    ROW,
    OutputsFile,
    TableColumns,
    arrow_table,
    open_outputs,
    open_table,
)
from trustsets.files.writing import SET_SUFFIXES, Snapshot, check_output, write_sets
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor, load
from trustsets.sets import PredictionSets
from trustsets.status import Status

__all__ = [
    "PredictionSummary",
    "open_for_prediction",
    "predict_file",
    "predict_table",
    "remembered_columns",
]

_log = logging.getLogger(__name__)

_WORDS = {int(status): status.name.lower() for status in Status}
# Digits of probabilities that are written.
_DIGITS = 6
_RESULT = ("set", "size", "threshold", "status", "alpha")


@final
@dataclass
class PredictionSummary:
    """What the sets of a file are like: how many have each size, and each status by its word."""

    n: int
    n_classes: int
    sizes: Counter[int] = field(default_factory=Counter)
    status: Counter[str] = field(default_factory=Counter)

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
    probabilities: bool = False,
    p_values: bool = False,
    ids: Sequence[str] = (),
    columns: TableColumns = PLAIN,
    progress: Progress = no_progress,
) -> PredictionSummary:
    """Predict a set for every sample of a file, block by block.

    Under its name the result is whole or absent.

    Parameters
    ----------
    model, outputs, result : path
        Saved predictor; model outputs; file to write (`.parquet`, `.csv` or `.jsonl`).
    alpha : float
        Allowed miscoverage.
    max_size : int, optional
        Largest size of a set; the column ``alpha`` then says what each set guarantees.
    probabilities, p_values : bool
        Add a column with the probabilities, or the p-values, of the classes of each set; with
        p-values, ``confidence`` and ``credibility`` of the most plausible class, too.
    ids : sequence of str
        Arrays to copy to the result; one called ``id`` always is.
    columns : TableColumns, optional
        Which columns of a table hold what; by default those that the model was calibrated with.
    progress : callable, optional
        Given the number of samples, returns a context that gives a function, which is then called
        with the number of samples of each finished block.
    """
    check_output(result, SET_SUFFIXES, [model, outputs])
    check_alphas(alpha)
    before = Snapshot(model, outputs)
    predictor: Predictor = load(model)
    source = open_for_prediction(
        predictor,
        outputs,
        name=str(model),
        ids=ids,
        columns=columns,
        remembered=remembered_columns(model),
    )
    _check_copied(source, probabilities, p_values)
    summary = PredictionSummary(len(source), source.n_classes)
    _log.info("%s: predicting %d samples", outputs, len(source))

    def blocks() -> Iterator[dict[str, Any]]:
        # P-values need the thresholds of every class at each of some 100 alphas.
        most_rows = 1 << 12 if p_values else 1 << 16
        with progress(len(source)) as advance:
            for start, stop in source.blocks(most_rows):
                block = {ROW: list(range(start, stop))} | _copied(source, start, stop)
                samples = source.read(start, stop, features=predictor.uses_features)
                sets = predictor.predict_set(samples, float(alpha), max_size=max_size)
                block |= _set_columns(predictor, samples, sets, probabilities, p_values)
                summary.sizes.update(block["size"])
                summary.status.update(block["status"])
                yield block
                advance(stop - start)

    write_sets(result, blocks(), predictor.classes_, before)
    return summary


def predict_table(
    predictor: Predictor,
    table: Any,
    alpha: float = 0.1,
    *,
    max_size: int | None = None,
    probabilities: bool = False,
    p_values: bool = False,
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
    alpha, max_size, probabilities, p_values, ids, columns
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
    import pyarrow as pa

    rows = arrow_table(table)
    if rows.num_rows:
        source = open_table(
            rows,
            groups=predictor.needed_groups,
            ids=ids,
            classes=predictor.classes_,
            columns=columns,
        ).without_labels()
        _check_fits_predictor(source, predictor, "the predictor")
        _check_copied(source, probabilities, p_values)
        if predictor.draws_at_random and source.row is None:
            raise InputError(
                f"table needs a column {ROW!r} with the number of each sample: this predictor "
                "draws at random, and the draws of a sample must not depend on its batch."
            )
        samples = source.read(features=predictor.uses_features)
        sets = predictor.predict_set(samples, float(alpha), max_size=max_size)
        names = [*([ROW] if source.row is not None else []), *source.ids]
    else:
        # Engines pass empty partitions; their results must have the columns of the others.
        samples, sets = None, _no_sets(predictor.classes_, alpha)
        names = [name for name in dict.fromkeys([ROW, *ids, "id"]) if name in rows.column_names]
    types = _arrow_types(predictor.classes_)
    added = _set_columns(predictor, samples, sets, probabilities, p_values)
    found = pa.table(
        {name: rows.column(name) for name in names}
        | {name: pa.array(values, types[name]) for name, values in added.items()}
    )
    if flavour_of(table) == "pandas":
        return found.to_pandas().set_index(table.index)
    if flavour_of(table) == "polars":
        import polars

        return polars.from_arrow(found)
    return found


def _no_sets(classes: Array, alpha: float) -> PredictionSets:
    nothing = np.zeros(0)
    return PredictionSets(
        mask=np.zeros((0, classes.size), dtype=bool),
        thresholds=nothing,
        status=nothing.astype(np.int8),
        alpha=float(alpha),
        classes=classes,
    )


def _arrow_types(classes: Array) -> dict[str, Any]:
    """Types of the columns of a result, equal for every batch."""
    import pyarrow as pa

    number = pa.float64()
    return {
        "set": pa.list_(pa.array(classes.tolist()).type),
        "size": pa.int32(),
        "threshold": number,
        "status": pa.string(),
        "alpha": number,
        "probabilities": pa.list_(number),
        "p_values": pa.list_(number),
        "confidence": number,
        "credibility": number,
    }


def _set_columns(
    predictor: Predictor,
    samples: ModelOutputs | None,
    sets: PredictionSets,
    probabilities: bool,
    p_values: bool,
) -> dict[str, list[Any]]:
    """Columns of a result; the classes of a set come as in `PredictionSets`, likeliest first."""
    chance = np.zeros(sets.mask.shape) if samples is None else samples.probabilities
    order = np.argsort(-chance, axis=1, kind="stable")
    if sets.scores is not None and sets.predicted is not None:
        unlikely = np.arange(sets.classes.size) != sets.predicted[:, None]
        order = np.lexsort((unlikely, sets.scores), axis=1)
    inside = np.take_along_axis(sets.mask, order, axis=1)
    members = [codes[own] for codes, own in zip(order, inside, strict=True)]
    thresholds = sets.thresholds if sets.thresholds.ndim == 1 else sets.thresholds.max(axis=1)
    found: dict[str, list[Any]] = {
        "set": [sets.classes[codes].tolist() for codes in members],
        "size": sets.sizes.tolist(),
        "threshold": thresholds.tolist(),
        "status": [_WORDS[code] for code in sets.status.tolist()],
        "alpha": np.broadcast_to(np.asarray(sets.alpha, dtype=float), len(sets)).tolist(),
    }
    if probabilities:
        chance = chance.round(_DIGITS)
        found["probabilities"] = [chance[row, codes].tolist() for row, codes in enumerate(members)]
    if p_values:
        values, confidence, credibility = _p_values(predictor, samples, sets.classes.size)
        found["p_values"] = [values[row, codes].tolist() for row, codes in enumerate(members)]
        found |= {"confidence": confidence.tolist(), "credibility": credibility.tolist()}
    return found


def _p_values(
    predictor: Predictor, samples: ModelOutputs | None, n_classes: int
) -> tuple[Array, Array, Array]:
    """P-values of all classes, and confidence and credibility of the most plausible one."""
    if samples is None:
        return np.zeros((0, n_classes)), np.zeros(0), np.zeros(0)
    points = predictor.predict_confidence(samples)
    values = np.empty(points.codes.shape)
    np.put_along_axis(values, points.codes, points.p_values, axis=1)
    return values, points.confidence.round(_DIGITS), points.credibility


def _copied(source: OutputsFile, start: int, stop: int) -> dict[str, list[Any]]:
    return {name: own.read_names(start, stop).tolist() for name, own in source.ids.items()}


def _check_copied(source: OutputsFile, probabilities: bool, p_values: bool) -> None:
    taken = {ROW, *_RESULT} | ({"probabilities"} if probabilities else set())
    taken |= {"p_values", "confidence", "credibility"} if p_values else set()
    for name in source.ids:
        if name in taken:
            raise InputError(
                f"column {name!r} cannot be copied: the result has one of that name. Rename it."
            )


def remembered_columns(model: StrPath) -> TableColumns:
    """The columns of the table that a model was calibrated with; none if there was no table."""
    note = storage.read_note(model)
    names: Any = note.get("columns") if isinstance(note, dict) else None
    try:
        lists = {
            kind: tuple(map(str, names[kind])) for kind in ("probabilities", "logits", "features")
        }
        return TableColumns(**lists, label=names["label"])
    except (KeyError, TypeError, AttributeError):
        return PLAIN


def open_for_prediction(
    predictor: Predictor,
    outputs: StrPath,
    *,
    name: str = "the predictor",
    ids: Sequence[str] = (),
    columns: TableColumns = PLAIN,
    remembered: TableColumns = PLAIN,
) -> OutputsFile:
    """Open outputs without their labels, and see that they fit a predictor, called `name`."""
    source = open_outputs(
        outputs,
        groups=predictor.needed_groups,
        ids=ids,
        classes=predictor.classes_,
        columns=columns,
        remembered=remembered,
    )
    _check_fits_predictor(source, predictor, name)
    return source.without_labels()


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
    own = source.own_classes
    if own is not None and not np.array_equal(own, predictor.classes_):
        raise InputError(
            f"{source.path}: it names other classes, or the same in another order, than {name} "
            "was calibrated with. Use outputs of the same classifier."
        )
    if predictor.trust is not None and predictor.uses_features and source.trust is None:
        if source.features is None:
            raise InputError(
                f"{source.path}: there is no array 'features', which {name} needs for its trust "
                "score. Save the embeddings of the samples with their logits."
            )
