"""Model outputs and prediction sets in files and tables.

`open_outputs` reads outputs by ranges of rows, `predict_file` maps a file to its prediction sets,
and `predict_table` a table. `.npy` files and `.safetensors` are memory-mapped, Parquet is read in
batches, and `.npz` and CSV files are read whole. Nothing is ever unpickled.

Reading order: outputs and which array is what; labels and class names; prediction sets; and, at
the end, arrays of files of each kind.
"""

import csv
import math
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, final

import numpy as np
from numpy.lib import format as npy

from trustsets import storage
from trustsets._arrays import (
    Array,
    check_classes,
    check_distinct,
    encode_labels,
    flavour_of,
    floating_matrix,
    to_numpy,
)
from trustsets._arrays import column as one_per_sample
from trustsets._frames import (
    WHOLE,
    as_names,
    as_names_of,
    class_names,
    listed,
    match_columns,
    needed,
    numbers_of,
    side_by_side,
)
from trustsets._parameters import check_alpha
from trustsets._progress import progress_bar
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor, load
from trustsets.sets import PredictionSets
from trustsets.storage import StrPath

__all__ = [
    "Column",
    "OutputsFile",
    "check_output",
    "open_columns",
    "open_for_model",
    "open_outputs",
    "predict_file",
    "predict_table",
    "read_classes",
    "read_late_labels",
    "read_training",
    "split_names",
]

# Number of a sample in its data set; random draws are keyed on it.
_ROW = "row"
_GROUP = "group_"
_RESULT = (_ROW, "set", "size", "threshold", "status", "alpha")
# Names that arrays usually have; in a table, * stands for the class or number of a column.
_USUAL: dict[str, tuple[str, ...]] = {
    "logits": ("logits", "logit_*", "logits_*"),
    "probabilities": ("probabilities", "probs", "prob_*", "proba_*", "probability_*"),
    "features": ("features", "embeddings", "feature_*", "features_*", "embedding_*"),
    "label": ("labels", "label", "targets"),
    "classes": ("classes", "class_names"),
    "trust": ("trust",),
}
_USUAL_COLUMNS: Mapping[str, str] = {}
_KINDS: tuple[Literal["logits", "probabilities"], ...] = ("logits", "probabilities")
# Bytes of the numbers of a block of rows.
_BLOCK_BYTES = 64 << 20
# What stands between the classes of a set in a cell of a CSV file.
_SEPARATOR = "|"
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

_ENCRYPTED = 1
# Compression that real outputs never reach; constant arrays may, and zip bombs do.
_LARGEST_RATIO = 500
# An array smaller than this is no danger, however it is packed.
_SMALL = 64 << 20
_DELIMITERS = ",;\t|"
# Types of Arrow whose values NumPy has, where none is missing.
_PLAIN = re.compile("u?int|halffloat|float|double|bool")
_LIST = re.compile("(large_|fixed_size_)?list<")
# Rows of a Parquet file that are decoded at a time.
_BATCH_ROWS = 1 << 14
# Rows in which the length of the lists of a column is looked for.
_FIRST_ROWS = 100


@final
@dataclass(frozen=True)
class OutputsFile:
    """Outputs of a classifier for n samples, in a file; `open_outputs` makes it.

    `values` are logits or probabilities, as `kind` says.
    """

    path: Path
    kind: Literal["logits", "probabilities"]
    values: "Column"
    features: "Column | None"
    labels: "Column | None"
    trust: "Column | None"
    groups: "Mapping[str, Column]"
    ids: "Mapping[str, Column]"
    classes: Array | None
    row: "Column | None" = None

    def __post_init__(self) -> None:
        if self.features is not None:
            _check_shape(self.features, 2, self.values)
        columns = (self.labels, self.trust, self.row, *self.groups.values(), *self.ids.values())
        for column in filter(None, columns):
            _check_shape(column, 1, self.values)
        for name in self.ids:
            if name in _RESULT:
                raise InputError(
                    f"column {name!r} cannot be copied: the result has one of that name. Rename it."
                )
        names = self.classes
        if names is not None and names.shape != (self.n_classes,):
            raise self.values.error(
                f"has {self.n_classes} classes, and the model, --classes or 'classes' names "
                f"{names.size}. Use outputs of the same classifier, and one name for each column."
            )

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return self.values.shape[1]

    @property
    def feature_names(self) -> Sequence[str]:
        """Columns of a table that the features came from; none if they are one array."""
        return () if self.features is None else self.features.parts

    def read(
        self, start: int = 0, stop: int | None = None, *, features: bool = True
    ) -> ModelOutputs:
        """Samples `start` up to `stop`; their `rows` are their numbers in the file."""
        stop = len(self) if stop is None else min(stop, len(self))
        fields: dict[str, Any] = {self.kind: self.values.read_numbers(start, stop)}
        if features and self.features is not None:
            fields["features"] = self.features.read_numbers(start, stop)
        if self.trust is not None:
            fields["trust"] = self.trust.read_numbers(start, stop)
        if self.labels is not None:
            fields["labels"] = _read_labels(self.labels, self.classes, start, stop)
        groups = {name: column.read_names(start, stop) for name, column in self.groups.items()}
        # Rows of a table may be anywhere in a data set; those of a file are numbered by it.
        rows = np.arange(start, stop) if self.row is None else self.row.read_names(start, stop)
        try:
            return ModelOutputs(**fields, groups=groups, classes=self.classes, rows=rows)
        except InputError as error:
            # It counts the rows of this block, and the reader those of the file.
            message = re.sub(
                r"\brow (\d+)", lambda m: f"row {start + int(m[1])}", str(error), count=1
            )
            raise InputError(f"{self.path}: {message}") from error

    def read_labelled(self, purpose: str) -> ModelOutputs:
        """All samples, which must have labels and fit into memory."""
        if self.labels is None:
            raise InputError(
                f"{self.path}: there is no array 'labels', and {purpose} needs the true classes. "
                "Call them so, or calibrate with the name of their column (--label-column)."
            )
        return self.read_all()

    @property
    def _width(self) -> int:
        return self.n_classes + (0 if self.features is None else self.features.shape[1])

    def read_all(self) -> ModelOutputs:
        """All samples, which must fit into memory."""
        # Once as they are, once in float64 for the scores, and the sets.
        _check_memory(self.path, len(self) * (16 * self._width + self.n_classes))
        return self.read()

    def blocks(self, most_rows: int = 1 << 16) -> Iterator[tuple[int, int]]:
        """Ranges of rows, in order, that are small enough to be worked on at a time."""
        rows = max(1, min(most_rows, _BLOCK_BYTES // (8 * self._width)))
        for start in range(0, len(self), rows):
            yield start, min(start + rows, len(self))


def open_outputs(
    source: Any,
    *,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
    classes: Any = None,
    columns: Mapping[str, str] = _USUAL_COLUMNS,
    if_present: bool = False,
    feature_names: Sequence[str] = (),
) -> OutputsFile:
    """Open outputs: `.npz`, `.parquet`, `.safetensors`, `.csv`, a folder of `.npy` files, a table.

    Parameters
    ----------
    source : path or pyarrow.Table
        The arrays are ``logits`` (or ``probabilities``), ``features``, ``labels``, ``trust``,
        group columns ``group_NAME``, and ``classes``, the names of the columns of the logits. A
        table may have one column for each class instead, such as ``prob_cat``.
    groups, ids : sequence of str
        Further group columns; arrays to copy to predictions, which one called ``id`` always is.
    classes : array of shape (K,), optional
        Class names, where the file has none. Integer labels are then positions in it.
    columns : mapping, optional
        Which columns of a table hold ``probabilities``, ``logits``, ``features`` and ``label``,
        where their names do not say so: a list with commas, or a pattern with one ``*`` such as
        ``p_*``; what ``*`` stands for names the classes.
    if_present : bool
        Use `columns` only where the table has them, as those that a model remembers.
    feature_names : sequence of str, optional
        The columns that the features must have in a table, where they may have any order.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/new.npz", logits=np.eye(3), labels=[0, 1, 2])
    ...     source = open_outputs(f"{folder}/new.npz")
    ...     len(source), source.read(1, 3)
    (3, ModelOutputs(n=2, K=3, labels))
    """
    path = Path("table") if flavour_of(source) else storage.check_path(source)
    with naming(path):
        arrays = open_columns(source)
        matched = _match(arrays, columns, if_present)
        group_columns = {
            name.removeprefix(_GROUP): column
            for name, column in arrays.items()
            if name.startswith(_GROUP) and name != _GROUP
        }
        for group in split_names(groups, {*group_columns, *arrays}):
            if group not in group_columns:
                group_columns[group] = _required(arrays, group, "group column")
        wanted = [*split_names(ids, arrays), *({"id"} & arrays.keys())]
        copied = {name: _required(arrays, name, "column to copy") for name in wanted}
        labels, stored = _array(matched, "label"), _read_class_names(matched)
        names = stored if classes is None else to_numpy(classes, "classes")
        kind, values, column_classes = _values(arrays, matched, columns, names)
        _check_shape(values, 2, values)
        stored = stored if column_classes is None else column_classes
        names = stored if names is None else names
        if stored is not None and not np.array_equal(stored, np.asarray(names)):
            raise InputError(
                "it names other classes, or the same in another order, than the model or "
                "--classes. Use outputs of the same classifier."
            )
        if names is None and labels is not None:
            # Of all labels of the file, so that a part of it has the names of the whole.
            _check_memory(path, 8 * values.shape[0])
            _check_shape(labels, 1, values)
            whole = one_per_sample(_read_labels(labels, None), "labels", values.shape[0])
            names = check_classes(None, whole, values.shape[1])
        return OutputsFile(
            path=path,
            kind=kind,
            values=values,
            features=_array(matched, "features", feature_names),
            labels=labels,
            trust=_array(matched, "trust"),
            groups=group_columns,
            ids=copied,
            classes=names,
            row=arrays.get(_ROW) if flavour_of(source) else None,
        )


# --- Which array is what -----------------------------------------------------------------------

_Arrays = Mapping[str, "Column"]
# Arrays by what they hold, each with what the * of its pattern stands for.
_Matched = Mapping[str, Mapping["Column", str]]


@contextmanager
def naming(path: StrPath) -> Iterator[None]:
    """Put the name of the file before errors that lack it."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(str(path)):
            raise
        raise InputError(f"{path}: {error}") from error


def _match(
    arrays: _Arrays, columns: Mapping[str, str] = _USUAL_COLUMNS, if_present: bool = False
) -> _Matched:
    """Arrays by what they hold: as `columns` says, and else by their usual names."""
    if not isinstance(columns, Mapping) or not set(columns) <= set(_USUAL):
        raise InputError(
            f"columns must map some of {', '.join(_USUAL)} to names of columns; got "
            f"{columns!r:.60}."
        )
    names, matched = list(arrays), dict[str, dict[str, str]]()
    for kind, usual in _USUAL.items():
        if kind in columns:
            with suppress(InputError) if if_present else nullcontext():
                matched[kind] = match_columns(names, split_names([columns[kind]], names), kind)
        for pattern in usual:
            if kind not in matched:
                with suppress(InputError):
                    matched[kind] = match_columns(names, [pattern], kind)
    return {
        kind: {arrays[name]: part for name, part in parts.items()}
        for kind, parts in matched.items()
    }


def _array(matched: _Matched, kind: str, names: Sequence[str] = ()) -> "Column | None":
    """The array of a kind, or its columns side by side, those of `names` in their order."""
    if kind not in matched:
        return None
    first, *rest = matched[kind]
    is_matrix = kind in (*_KINDS, "features")
    if not rest and (not is_matrix or first.name in _USUAL[kind] or len(first.shape) > 1):
        return first
    by_name = {column.name: column for column in matched[kind]}
    # Tools write feature_10 before feature_2, and no shape shows that.
    if names and (odd := {*names} ^ by_name.keys()):
        raise InputError(
            f"{kind} must be in the same columns as for the calibration; {min(odd)!r} is in one of "
            "the two files only."
        )
    columns = [by_name[name] for name in names or by_name]
    for column in columns:
        if column.shape != first.shape or len(column.shape) != 1:
            raise column.error("must hold one number in each row.")
    values, parts = first.values, [column.name for column in columns]
    if isinstance(values, _ArrowColumn):
        values = _ArrowColumn(values.table, parts, len(parts))
    else:
        values = side_by_side([column.read_numbers() for column in columns])
    return Column(first.source, kind, values, parts)


def _values(
    arrays: _Arrays, matched: _Matched, columns: Mapping[str, str], classes: Array | None
) -> "tuple[Literal['logits', 'probabilities'], Column, Array | None]":
    """Whether there are logits or probabilities, their matrix, and class names of its columns.

    Columns that are named by `classes` are put into their order. Columns that are listed one by one
    are in the order of the classes, whatever they are called.
    """
    kind = min(_KINDS, key=lambda kind: (kind not in matched, kind not in columns))
    parts = matched.get(kind, {})
    by_class = {part: column.name for column, part in parts.items()}
    wanted = [] if classes is None else [str(name) for name in classes.tolist()]
    is_named = sorted(parts.values()) == sorted(wanted)
    values = _array(matched, kind, [by_class[name] for name in wanted if is_named])
    if values is None:
        raise InputError(
            f"there is no array 'logits' or 'probabilities'; there are {listed(sorted(arrays))}. "
            "Rename yours, or calibrate with the names of their columns "
            "(--probability-columns 'p_*')."
        )
    is_listed = all(column.name == part for column, part in parts.items())
    if not values.parts or (classes is not None and is_listed and not is_named):
        return kind, values, None
    return kind, values, classes if is_named else class_names([*parts.values()])


def _required(arrays: _Arrays, name: str, what: str) -> "Column":
    if name not in arrays:
        raise InputError(f"there is no {what} {name!r}; there are {listed(sorted(arrays))}.")
    return arrays[name]


def split_names(items: Any, present: Container[str] = ()) -> list[str]:
    """Names from a list in which a text may itself be a list with commas, if it is not `present`.

    Examples
    --------
    >>> split_names(["sex,age", "site"])
    ['sex', 'age', 'site']
    """
    texts = as_names(items, "names of columns")
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"names of columns must be texts; got {texts!r:.60}.")
    split = ([text] if text in present else text.split(",") for text in texts)
    parts = [part if part in present else part.strip() for part in chain.from_iterable(split)]
    return [part for part in dict.fromkeys(parts) if part]


# --- Labels and class names --------------------------------------------------------------------


def _check_shape(column: "Column", n_dimensions: int, values: "Column") -> None:
    """Refuse an array of a wrong form, or of other samples than the logits."""
    if len(column.shape) != n_dimensions or 0 in column.shape:
        wanted = "two dimensions, a row" if n_dimensions == 2 else "shape (n,), one value"
        raise column.error(
            f"has shape {column.shape}; it must have {wanted} per sample, not empty."
        )
    if column.shape[0] != values.shape[0]:
        raise column.error(
            f"has {column.shape[0]} rows, and the {values.name} have {values.shape[0]}. Save the "
            "same samples in all arrays."
        )


def _read_labels(
    column: "Column", classes: Array | None, start: int = 0, stop: int | None = None
) -> Array:
    """Labels as class names: integers are positions where no name is written as an integer."""
    labels = column.read_names(start, stop)
    if labels.dtype.kind == "f":
        raise column.error(
            "must hold integers or texts, and none missing; its type is float. Convert it."
        )
    kind = labels.dtype.kind
    if classes is None or kind not in "Oiu" or (kind != "O" and classes.dtype.kind in "iub"):
        return labels
    if kind == "O" or any(re.fullmatch(r"-?\d+(\.0*)?", str(name)) for name in classes):
        return np.array(as_names_of(labels.tolist(), classes.tolist()), dtype=object)
    wrong = (labels < 0) | (labels >= classes.size)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise column.error(
            f"must hold positions of the {classes.size} classes, 0 to {classes.size - 1}; row "
            f"{start + row} holds {labels[row]}. Repair the labels, or the class names."
        )
    return np.asarray(classes[labels.astype(np.int64)])


def _read_class_names(matched: _Matched) -> Array | None:
    """The array of class names, if there is one."""
    column = _array(matched, "classes")
    if column is None:
        return None
    if len(column.shape) != 1:
        raise column.error(f"has shape {column.shape}; it must be a list of names.")
    names = column.read_names()
    return np.array([str(name) for name in names]) if names.dtype.kind == "O" else names


def read_classes(path: StrPath) -> Array:
    """Class names from a text file with one on each line."""
    try:
        lines = plain_file(path).read_text(encoding="utf-8-sig").rstrip("\n").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file in UTF-8 ({error}).") from error
    return np.array(lines, dtype=str)


def read_late_labels(
    path: StrPath, classes: Array, columns: Mapping[str, str] = _USUAL_COLUMNS
) -> tuple[Array, Array]:
    """Names and labels of samples whose labels came later: the arrays ``id`` and ``labels``."""
    with naming(path):
        arrays = open_columns(path)
        ids = _required(arrays, "id", "array")
        matched = _match(arrays, columns, if_present=True)
        labels = _array(matched, "label") or _required(arrays, "labels", "array")
        for column in (ids, labels):
            _check_shape(column, 1, ids)
        return ids.read_names(), _read_labels(labels, classes)


def read_training(
    path: StrPath,
    classes: Array | None = None,
    columns: Mapping[str, str] = _USUAL_COLUMNS,
    feature_names: Sequence[str] = (),
) -> tuple[Array, Array]:
    """Features and labels of training samples, for the trust score; logits are not needed.

    Integer labels are positions in the array ``classes`` of the file if it has one, and else
    in `classes`, which has all classes that there are; `feature_names` are as in `open_outputs`.
    """
    classes = None if classes is None else check_classes(classes, None, np.size(classes))
    with naming(path):
        arrays = open_columns(path)
        matched = _match(arrays, columns, if_present=True)
        features = _array(matched, "features", feature_names)
        if features is None:
            raise InputError(
                "there is no array 'features', which the trust score needs of the training "
                f"samples; there are {listed(sorted(arrays))}."
            )
        column = _array(matched, "label") or _required(arrays, "labels", "array")
        _check_shape(features, 2, features)
        _check_shape(column, 1, features)
        _check_memory(path, 16 * math.prod(features.shape))
        stored = _read_class_names(matched)
        labels = _read_labels(column, classes if stored is None else stored)
        if classes is not None:
            encode_labels(labels, classes)
        return floating_matrix(features.read_numbers(), "array 'features'"), labels


# --- Prediction sets ---------------------------------------------------------------------------


def check_output(
    path: StrPath, suffixes: Sequence[str], inputs: Sequence[StrPath | None] = ()
) -> Path:
    """The path of an output: in a folder that exists, with a suffix, and none of the `inputs`."""
    storage.check_target(path)
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise InputError(
            f"{target}: the result is written as {', '.join(suffixes)}; got "
            f"{target.suffix or 'no extension'!r}. Give it a name with that ending."
        )
    for source in [Path(item) for item in inputs if item is not None]:
        if target.exists() and source.exists() and target.samefile(source):
            raise InputError(
                f"{target}: it is the input {source} itself, which would be lost; give the "
                "result another name."
            )
    return target


def predict_file(
    model: StrPath,
    outputs: StrPath,
    result: StrPath,
    *,
    alpha: float = 0.1,
    max_size: int | None = None,
    ids: Sequence[str] = (),
    progress: bool | None = None,
) -> dict[str, Any]:
    """Predict a set for every sample of a file, block by block; the result is whole or absent.

    Parameters
    ----------
    model, outputs, result : path
        Saved predictor; model outputs; file to write (`.parquet` or `.csv`). In a CSV
        file, the classes of a set stand in one cell with ``|`` between them.
    alpha, max_size
        As in `Predictor.predict_set`; the column ``alpha`` says what each set guarantees.
    ids : sequence of str
        Arrays to copy to the result; one called ``id`` always is.
    progress : bool, optional
        Show a progress bar; by default on a terminal.

    Returns
    -------
    dict
        Numbers of samples (``n``), of classes, and of sets that are empty or full, by status, and
        their mean size.
    """
    inputs = [storage.check_path(model, "model"), storage.check_path(outputs, "outputs")]
    target = check_output(result, (".parquet", ".csv"), inputs)
    alpha = check_alpha(alpha)
    predictor: Predictor = load(model)
    source = replace(open_for_model(outputs, predictor, model, ids=ids), labels=None)
    n, sizes, status = len(source), Counter[int](), Counter[str]()

    def blocks() -> Iterator[dict[str, Any]]:
        with progress_bar("Prediction sets", n, wanted=progress, transient=True) as advance:
            for start, stop in source.blocks():
                samples = source.read(start, stop, features=predictor.uses_features)
                with naming(source.path):
                    sets = predictor.predict_set(samples, alpha, max_size=max_size)
                columns: dict[str, list[Any]] = {_ROW: list(range(start, stop))}
                for name, column in source.ids.items():
                    columns[name] = column.read_names(start, stop).tolist()
                columns |= _set_columns(sets)
                sizes.update(columns["size"])
                status.update(columns["status"])
                yield columns
                advance(stop - start)

    if target.suffix.lower() == ".parquet":
        _write_parquet(target, blocks(), predictor.classes_, source.ids)
    else:
        _write_csv(target, blocks(), predictor.classes_)
    return {
        "n": n,
        "n_classes": source.n_classes,
        "mean_size": sum(size * count for size, count in sizes.items()) / n,
        "empty": sizes[0],
        "full": sizes[source.n_classes],
        "status": dict(sorted(status.items())),
    }


def predict_table(
    predictor: Predictor,
    table: Any,
    alpha: float = 0.1,
    *,
    max_size: int | None = None,
    ids: Sequence[str] = (),
) -> Any:
    """Prediction sets of a batch of samples, for engines that map batches: Ray, Spark, Dask.

    A row of the result depends on its own row of the input alone; a batch may be empty.

    Parameters
    ----------
    predictor : Predictor
        Calibrated.
    table : pyarrow.Table
        Columns as in `open_outputs`. Where sets are drawn at random, a column ``row`` must have
        the number of the sample in the whole data set. Labels are not looked at.
    alpha, max_size, ids
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
    _check_table(table)
    if not isinstance(predictor, Predictor):
        raise InputError(f"predictor must be calibrated; got {type(predictor).__name__}.")
    alpha, types = check_alpha(alpha), _result_types(predictor.classes_)
    wanted = dict.fromkeys([_ROW, *split_names(ids, table.column_names), "id"])
    columns = {name: table.column(name) for name in wanted if name in table.column_names}
    # Engines pass empty partitions; their results must have the columns of the others.
    added: dict[str, list[Any]] = {name: [] for name in types}
    if table.num_rows:
        source = replace(open_for_model(table, predictor, ids=ids), labels=None)
        if predictor.draws_at_random and source.row is None:
            raise InputError(
                f"table needs a column {_ROW!r} with the number of each sample: this predictor "
                "draws at random, and the draws of a sample must not depend on its batch."
            )
        samples = source.read(features=predictor.uses_features)
        added = _set_columns(predictor.predict_set(samples, alpha, max_size=max_size))
    return pa.table(columns | {name: pa.array(added[name], types[name]) for name in types})


def _result_types(classes: Array) -> dict[str, Any]:
    """Arrow types of the columns that a result has besides those that are copied."""
    import pyarrow as pa

    names = pa.list_(pa.array(classes.tolist()).type)
    types = (names, pa.int32(), pa.float64(), pa.string(), pa.float64())
    return dict(zip(_RESULT[1:], types, strict=True))


def _set_columns(sets: PredictionSets) -> dict[str, list[Any]]:
    """Columns of a result; the classes of a set come as in `PredictionSets`, likeliest first."""
    columns = sets.to_columns() | {"alpha": np.full(len(sets), sets.alpha)}
    return {
        name: values.tolist() if isinstance(values, np.ndarray) else values
        for name, values in columns.items()
    }


def open_for_model(
    outputs: Any,
    predictor: Predictor,
    model: StrPath | None = None,
    *,
    groups: Sequence[str] = (),
    ids: Sequence[str] = (),
) -> OutputsFile:
    """Open outputs that must have what a predictor needs, whose file is `model`.

    Columns of a table are those of its calibration, where the table has them.
    """
    source = open_outputs(
        outputs,
        groups=[*groups, *predictor.needed_groups],
        ids=ids,
        classes=predictor.classes_,
        if_present=True,
        **({} if model is None else remembered_columns(model)),
    )
    name = "the predictor" if model is None else model
    if reason := predictor.batch_dependence:
        raise InputError(f"{name}: {reason}.")
    needs_trust = predictor.trust is not None and predictor.uses_features
    if needs_trust and source.trust is None and source.features is None:
        raise InputError(
            f"{source.path}: there is no array 'features', which {name} needs for its trust "
            "score. Save the embeddings of the samples with their logits."
        )
    return source


def remembered_columns(model: StrPath) -> dict[str, Any]:
    """The columns that a model was calibrated with, as arguments of `open_outputs`."""
    note = storage.read_note(model)
    columns, names = map((note if isinstance(note, dict) else {}).get, ("columns", "features"))
    return {
        "columns": columns if isinstance(columns, dict) else {},
        "feature_names": [*map(str, names)] if isinstance(names, list) else [],
    }


def _write_parquet(
    target: Path, blocks: Iterable[dict[str, Any]], classes: Array, ids: "Mapping[str, Column]"
) -> None:
    pa = needed("pyarrow", f"{target}: a Parquet file")
    import pyarrow.parquet as pq

    # A block may have nothing but missing values, so its own types say little.
    copied = {name: column.arrow_type for name, column in ids.items()}
    schema = pa.schema({_ROW: pa.int64()} | copied | _result_types(classes))
    with storage.atomic_path(target) as path:
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for block in blocks:
                writer.write_table(pa.table(block, schema=schema))


def _write_csv(target: Path, blocks: Iterable[dict[str, Any]], classes: Array) -> None:
    barred = next((name for name in map(str, classes.tolist()) if _SEPARATOR in name), None)
    if barred is not None:
        raise InputError(
            f"{target}: the class {barred!r} holds {_SEPARATOR!r}, which separates the classes of "
            "a set in a CSV file. Write .parquet."
        )
    with storage.atomic_path(target) as path, path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)  # with the usual "\r\n": with "\n" alone it would not quote "\r"
        for number, block in enumerate(blocks):
            if number == 0:
                rows.writerow([_no_formula(name) for name in block])
            rows.writerows(zip(*(map(_cell, column) for column in block.values()), strict=True))


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        value = _SEPARATOR.join(map(str, value))
    return _no_formula(value) if isinstance(value, str) else value


def _no_formula(text: str) -> str:
    """Spreadsheets run text that starts like a formula, but no number: an apostrophe stops them."""
    if not text.startswith(_FORMULA_STARTS):
        return text
    try:
        for part in text.split(_SEPARATOR):
            float(part)
    except ValueError:
        return f"'{text}"
    return text


# --- Arrays of files ---------------------------------------------------------------------------


def plain_file(path: StrPath) -> Path:
    """The path of a regular file; reading a pipe or a device might never end."""
    target = storage.check_path(path)
    if not target.exists():
        raise InputError(f"{target}: there is no such file.")
    if target.is_dir():
        raise InputError(f"{target}: this is a folder; give the name of a file.")
    if not target.is_file():
        raise InputError(f"{target}: this is a pipe or a device; save its content to a file first.")
    return target


def _check_memory(path: StrPath, need: int) -> None:
    """Refuse arrays whose announced size in bytes does not fit into the free memory."""
    try:
        match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:  # not Linux: nothing is known, and Python says so when it happens
        return
    free = int(match[1]) << 10 if match else need
    if need > free:
        raise InputError(
            f"{path}: its arrays need {need / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} "
            "GiB are free. Use fewer samples, float16 arrays or a larger machine."
        )


def _check_table(table: Any) -> None:
    if flavour_of(table) != "pyarrow":
        raise InputError(f"table must be a pyarrow.Table; got {type(table).__name__}.")


def open_columns(path: Any) -> "dict[str, Column]":
    """Arrays of a file, folder or table by name; the extension says how to read a file."""
    if flavour_of(path) is not None:
        _check_table(path)
        return {name: Column("table", name, values) for name, values in _read_arrow(path).items()}
    target = storage.check_path(path)
    if target.is_dir():
        files = sorted(target.glob("*.npy"))
        if not files:
            raise InputError(
                f"{target}: this folder holds no .npy files; save logits.npy, features.npy and "
                "labels.npy there."
            )
        return {file.stem: Column(file, file.stem, _map_npy(file)) for file in files}
    readers: dict[str, Callable[[Path], dict[str, Any]]] = {
        ".npz": _read_npz,
        ".parquet": _read_arrow,
        ".safetensors": _read_tensors,
        ".csv": _read_csv,
    }
    suffix = plain_file(target).suffix.lower()
    if suffix not in readers:
        raise InputError(
            f"{target}: files of kind {suffix or 'unknown'!r} are not read; use "
            f"{', '.join(readers)} or a folder of .npy files."
        )
    return {name: Column(target, name, values) for name, values in readers[suffix](target).items()}


@final
class Column:
    """An array of a file, or columns of a table side by side, read by ranges of rows.

    `values` has a shape and gives the rows of a slice, `source` names the file in messages, and
    `parts` are the names of columns side by side.
    """

    def __init__(self, source: object, name: str, values: Any, parts: Sequence[str] = ()) -> None:
        self.source, self.name, self.values, self.parts = source, name, values, parts
        self.described = f"{source}: array {name!r}"
        self.shape: tuple[int, ...] = tuple(values.shape)

    def read_numbers(self, start: int = 0, stop: int | None = None) -> Array:
        """Rows of numbers from `start` up to `stop`; missing ones are NaN."""
        return numbers_of(self._rows(start, stop), self.described, start)

    def read_names(self, start: int = 0, stop: int | None = None) -> Array:
        """Rows of integers, texts or other objects with a text; missing ones are None or NaN."""
        values = self._rows(start, stop)
        if values.dtype.kind not in "fiubUSO":
            raise self.error(
                f"must hold integers or texts; its type is {values.dtype}. Convert it."
            )
        try:
            if values.dtype.kind == "S":
                return np.asarray(np.char.decode(values, "utf-8"))
            if values.dtype.kind == "U":
                # NumPy itself does not look at its code points.
                values.astype(values.dtype.newbyteorder("<")).tobytes().decode("utf-32-le")
        except UnicodeError as error:
            raise self.error(f"holds bytes that are no text ({error}). Save it again.") from error
        return values

    @property
    def arrow_type(self) -> Any:
        """Type of its names in an Arrow table."""
        import pyarrow as pa

        if isinstance(self.values, _ArrowColumn):
            return self.values.type
        dtype = self.read_names(0, 1).dtype.newbyteorder("=")
        return pa.string() if dtype.kind in "USO" else pa.from_numpy_dtype(dtype)

    def _rows(self, start: int, stop: int | None) -> Array:
        with _readable(self.described):
            return np.array(self.values[start : self.shape[0] if stop is None else stop])

    def error(self, what: str) -> InputError:
        """An error about this array; `what` begins with a verb."""
        return InputError(f"{self.described} {what}")


@contextmanager
def _readable(what: object) -> Iterator[None]:
    """Turn what a library raises on a damaged file, which may be anything, into an error."""
    try:
        yield
    except (FileNotFoundError, PermissionError, InputError, MemoryError):
        raise
    except Exception as error:  # of zipfile, NumPy, safetensors or Arrow, which list none
        raise InputError(
            f"{what}: it cannot be read ({str(error) or 'it ends too early'}). It is truncated or "
            "damaged; save it again."
        ) from error


def _check_header(stream: IO[bytes], size: int, what: str) -> None:
    """Refuse an array of `size` bytes, with its header, that holds anything else than it claims.

    Python objects, which would need pickle, are refused too.
    """
    try:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, _, dtype = read[npy.read_magic(stream)](stream)
    except Exception as error:  # NumPy passes on whatever Python's own parser raises
        raise InputError(
            f"{what} is no NumPy array, or a damaged one ({error}). Save it again."
        ) from error
    if dtype.hasobject:
        raise InputError(
            f"{what} holds Python objects, which only pickle could read, and pickle can run code. "
            "Save it with a plain dtype, such as astype(str)."
        )
    claimed, present = math.prod(shape) * int(dtype.itemsize), size - stream.tell()
    if claimed != present or min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise InputError(
            f"{what} claims shape {shape} of {dtype}, {claimed:,} bytes, but the file holds "
            f"{present:,}. It is truncated or damaged; save it again."
        )


def _map_npy(path: Path) -> Array:
    """An `.npy` file, memory-mapped."""
    with plain_file(path).open("rb") as stream:
        _check_header(stream, path.stat().st_size, f"{path}: array {path.stem!r}")
    with _readable(path):
        return npy.open_memmap(path, mode="r")


def _read_npz(path: Path) -> dict[str, Array]:
    """Arrays of an `.npz` file, each read whole after a look at its announced size."""
    arrays = {}
    with _readable(path), zipfile.ZipFile(path) as archive:
        for item in archive.infolist():
            name, extension = os.path.splitext(item.filename)
            if extension != ".npy":
                continue
            what = f"{path}: array {name!r}"
            # Other packings than those of NumPy unpack all they hold at once.
            is_usual = item.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            if not is_usual or item.flag_bits & _ENCRYPTED:
                raise InputError(
                    f"{what} is packed or encrypted in a way that NumPy never writes. Save it with "
                    "numpy.savez."
                )
            packed = min(item.compress_size, path.stat().st_size)
            if item.file_size > max(_SMALL, _LARGEST_RATIO * packed):
                raise InputError(
                    f"{what} announces {item.file_size / 2**30:.1f} GiB in "
                    f"{packed / 2**20:.1f} MiB, over {_LARGEST_RATIO} times as much, as a zip bomb "
                    "does. If it is genuine, save it with numpy.savez."
                )
            _check_memory(path, item.file_size)
            with archive.open(item) as stream:
                _check_header(stream, item.file_size, what)
                stream.seek(0)
                # All of it is read, so zipfile compares the checksum.
                arrays[name] = npy.read_array(stream, allow_pickle=False)
    return arrays


def _read_tensors(path: Path) -> "dict[str, _Tensor]":
    from safetensors import safe_open

    with _readable(path):
        file: Any = safe_open(path, framework="numpy")
        return {
            name: _Tensor(f"{path}: array {name!r}", file.get_slice(name)) for name in file.keys()
        }


@final
class _Tensor:
    """One tensor of a `.safetensors` file, memory-mapped."""

    def __init__(self, described: str, view: Any) -> None:
        self._described, self._view, self.shape = described, view, tuple(view.get_shape())

    def __getitem__(self, rows: slice) -> Array:
        try:
            return np.asarray(self._view[rows])
        except (TypeError, AttributeError) as error:
            kind = self._view.get_dtype()
            raise InputError(
                f"{self._described} is of type {kind}, which NumPy lacks. Save it as float32."
            ) from error


def _cells(cells: Sequence[str]) -> Array:
    """Integers where all cells are, and else texts, None where they are missing."""
    if all(map(WHOLE.fullmatch, cells)):
        return np.array(list(map(int, cells)), dtype=np.int64)
    return np.array([cell or None for cell in cells], dtype=object)


def _read_csv(path: Path) -> dict[str, Array]:
    """Columns by name; those without a name, such as an index, are left out, and blank lines too.

    What separates the names in the first line separates the cells.
    """
    largest = csv.field_size_limit(2**31 - 1)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = next((line for line in file if line.strip()), "")
            delimiter = max(_DELIMITERS, key=re.sub('"[^"]*"', "", first).count)
            file.seek(0)
            lines = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
            names = [name.strip() for name in next((row for row in lines if row), [])]
            rows: list[list[str]] = []
            for row in lines:
                if row and len(row) != len(names):
                    raise InputError(
                        f"{path}: row {len(rows)} (line {lines.line_num}) has {len(row)} cells, "
                        f"and the first line names {len(names)} columns. Repair it, or put texts "
                        f"that hold {delimiter!r} into quotes."
                    )
                rows += [row] if row else []
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path}: not a readable CSV file ({error}). Save it again, as UTF-8."
        ) from error
    finally:
        csv.field_size_limit(largest)
    if not any(names):
        raise InputError(f"{path}: it is empty; its first line must name the columns.")
    check_distinct([name for name in names if name], path)
    if not rows:
        raise InputError(f"{path}: it has the names of columns, but no rows.")
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return {name: _cells(cells) for name, cells in columns if name}


def _read_arrow(source: Any) -> "dict[str, _ArrowColumn]":
    """Columns of a Parquet file or of a table."""
    table = _ArrowTable(source)
    check_distinct(table.schema.names, table.described)
    return {
        field.name: _ArrowColumn(table, [field.name], _list_width(table, field))
        for field in table.schema
    }


def _list_width(table: "_ArrowTable", field: Any) -> int:
    """Numbers in a row of a column of lists; 0 for one that holds no lists."""
    if not _LIST.match(str(field.type)):
        return 0
    width = getattr(field.type, "list_size", -1)
    if width < 0:
        # All lists must be as long as the first, which is checked when they are read.
        lists = table.read([field.name], 0, min(_FIRST_ROWS, table.n_rows)).column(0)
        width = next((len(numbers) for numbers in lists.to_pylist() if numbers), 1)
    return int(width)


@final
class _ArrowTable:
    """Rows of a Parquet file, decoded in batches, or of an Arrow table.

    It is cheap to go on where the last read ended; any other start begins at the first row. What
    the footer of a file says of a chunk of a column is not asked for: where it is damaged, Arrow
    ends the whole process.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self.described = source if isinstance(source, Path) else "table"
        needed("pyarrow", f"{self.described}: a Parquet file")
        # Where the batches of some columns go on, and these batches.
        self._streams: dict[tuple[str, ...], tuple[int, Iterator[Any]]] = {}
        if not isinstance(source, Path):
            self.schema, self.n_rows = source.schema, source.num_rows
            return
        with _readable(source), self._open() as file:
            self.schema, self.n_rows = file.schema_arrow, int(file.metadata.num_rows)
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        if sum(groups) != self.n_rows or min(groups, default=0) < 0:
            raise InputError(f"{source}: its groups do not add up to its rows; write it again.")

    def _open(self) -> Any:
        import pyarrow.parquet as pq

        # Pages are read through a buffer instead of a whole row group at once.
        return pq.ParquetFile(self._source, buffer_size=1 << 20, pre_buffer=False)

    def read(self, names: Sequence[str], start: int, stop: int) -> Any:
        """Columns of the rows `start` up to `stop` as a table."""
        import pyarrow as pa

        if not isinstance(self._source, Path):
            return self._source.select(list(names)).slice(start, stop - start)
        key, pieces = tuple(names), []
        position, batches = self._streams.pop(key, (self.n_rows + 1, iter(())))
        with _readable(self.described):
            if position > start:
                options = {"columns": list(names), "use_threads": False}
                position, batches = 0, self._open().iter_batches(_BATCH_ROWS, **options)
            while position < stop:
                batch: Any = next(batches, None)
                if batch is None:
                    raise InputError(f"{self.described}: it ends after {position} rows.")
                pieces.append(batch.slice(max(0, start - position), stop - max(start, position)))
                if position + len(batch) > stop:
                    batches = chain([batch.slice(stop - position)], batches)
                position = min(stop, position + len(batch))
            schema = pa.schema([self.schema.field(name) for name in names])
            table = pa.Table.from_batches(pieces, pieces[0].schema if pieces else schema)
        self._streams[key] = position, batches
        return table


@final
class _ArrowColumn:
    """Numbers or texts of a column, lists of numbers as rows, or the numbers of several columns."""

    def __init__(self, table: _ArrowTable, names: Sequence[str], width: int) -> None:
        self.table, self._names = table, list(names)
        self.shape: tuple[int, ...] = (table.n_rows, width) if width else (table.n_rows,)
        kind = table.schema.field(self._names[0]).type
        self.type = kind.value_type if str(kind).startswith("dictionary") else kind

    def __getitem__(self, rows: slice) -> Array:
        columns = self.table.read(self._names, rows.start, rows.stop).columns
        if _LIST.match(str(columns[0].type)):
            return self._matrix(columns[0], rows.start)
        if len(self.shape) == 2:
            return side_by_side(list(map(self._numbers, columns, self._names)))
        values, is_plain = columns[0].cast(self.type), _PLAIN.match(str(self.type))
        if is_plain and not values.null_count:
            return np.asarray(values.to_numpy())
        # As floats, large integers would lose digits, and decimals and dates their text.
        return np.array(values.to_pylist(), dtype=object)

    def _matrix(self, values: Any, start: int) -> Array:
        """Lists of numbers as the rows of a matrix."""
        import pyarrow.compute as pc

        width = self.shape[1]
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            raise InputError(
                f"{self.table.described}: column {self._names[0]!r} must have lists of one length: "
                f"row {start + row} has {lengths[row]} numbers, and the first row {width}. Fill or "
                "drop such rows first."
            )
        numbers = self._numbers(pc.list_flatten(values), self._names[0])
        return numbers.reshape(len(values), width)

    def _numbers(self, values: Any, name: str) -> Array:
        """Numbers of any Arrow type; missing ones are NaN."""
        import pyarrow as pa

        if not _PLAIN.match(str(values.type)):
            try:
                values = values.cast(pa.float64())
            except pa.ArrowException:
                raise InputError(
                    f"{self.table.described}: column {name!r} must hold numbers; it holds "
                    f"{values.type}. Convert it."
                ) from None
        return np.asarray(values.to_numpy())
