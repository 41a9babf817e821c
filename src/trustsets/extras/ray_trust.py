"""Trust scores whose training points are spread over a Ray cluster; Ray is imported when used.

One actor holds one shard of the points and answers with the few distances that
`neighbours.partial` needs for an exact merge. Ray restarts an actor that was lost, and the actor
reads its shard again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self, final

import numpy as np
from sklearn.base import clone

from trustsets._common.arrays import Array, Floats
from trustsets._common.blocks import ahead
from trustsets.errors import InputError, TrustSetsError
from trustsets.extras.ray_work import Paths, import_ray, input_files
from trustsets.files.source import TrainingFile, read_training
from trustsets.neighbours.inputs import as_labels, as_matrix, as_stored, class_codes
from trustsets.neighbours.partial import ShardSearch, merged_distances
from trustsets.neighbours.points import (
    ClassDistances,
    ClassPoints,
    FloatArray,
    IndexArray,
    NearestSquares,
    Pairs,
    Queries,
    search_points,
    sort_by_class,
    spread,
    squares_about,
)
from trustsets.neighbours.ratio import DistanceRatio

# Bytes of queries that travel to the shards at a time, and how many such blocks are on their way.
_BLOCK_BYTES = 32 << 20
_BLOCK_ROWS = 1 << 13
_AHEAD = 2


class _Contents(NamedTuple):
    """What the labels and the header of a shard say: counts by class, columns and dtype."""

    classes: Array
    counts: IndexArray
    width: int
    dtype: str


@final
@dataclass(frozen=True)
class _Setting:
    """What every shard must know to answer in the terms of all."""

    score: "ShardedTrustScore"
    dtype: str
    classes: Array
    needed: IndexArray


@final
class ShardedTrustScore(DistanceRatio):
    """`TrustScore` with its training points on the machines of a Ray cluster.

    For training sets that do not fit one machine. Scores and distances equal those of
    `TrustScore`, fitted on all the points in one process, bit for bit on the same kind of
    processor. A predictor takes it as its `trust`, and `predict_dataset` and `predict_files` send
    it along; it lives as long as the Ray session and is not saved with the predictor.

    Parameters
    ----------
    normalize, neighbour, squared, storage, working_memory
        As in `TrustScore`. Filtering by density needs all the points of a class in one place: do
        it before the points are sharded.

    Attributes
    ----------
    classes_, scale_, n_features_in_
        As in `TrustScore`.
    sizes_ : (K,) array
        Training points of each class.

    Notes
    -----
    For example::

        trust = ShardedTrustScore().fit("train/", workers=16)
        predictor = ConditionalConformal(trust=trust).calibrate(outputs)
        predict_files(predictor, "new/", "sets.parquet")
    """

    def __init__(
        self,
        normalize: bool = True,
        neighbour: int = 1,
        squared: bool = False,
        *,
        storage: str | None = None,
        working_memory: int | None = None,
    ) -> None:
        self.normalize = normalize
        self.neighbour = neighbour
        self.squared = squared
        self.storage = storage
        self.working_memory = working_memory

    def fit(
        self, shards: Paths, *, workers: int | None = None, options: dict[str, Any] | None = None
    ) -> Self:
        """Let actors read the training points, and keep them there.

        Parameters
        ----------
        shards : path or sequence of paths
            Files with ``features`` and ``labels``, as `trustsets.files.read_training` reads them,
            or a folder of Parquet files, on a file system that all machines share.
        workers : int, optional
            Number of actors that share the files; by default each file has its own.
        options : dict, optional
            Options of the actors in Ray's words, such as ``{"num_cpus": 4, "memory": 60e9}``.
        """
        self._check_common()
        ray = import_ray()
        files = [str(path) for path in input_files(shards)]
        look = ray.remote(_look_into)
        contents = list(_answers(ray, [look.remote(path) for path in files]))
        setting, sizes, width = self._setting(files, contents)
        self._warn_small(setting.classes, sizes)
        dealt = np.array_split(np.array(files), min(workers or len(files), len(files)))
        actor = ray.remote(_Shard).options(
            **{"scheduling_strategy": "SPREAD", **(options or {})},
            max_restarts=-1,
            max_task_retries=-1,
        )
        shared = ray.put(setting)
        actors = [actor.remote([str(path) for path in part], shared) for part in dealt]
        list(_answers(ray, [each.ready.remote() for each in actors]))
        total = int(sizes.sum())
        scale = 1.0 if self.normalize else _common_spread(ray, actors, total)
        self._actors, self._shared, self._needed = actors, shared, setting.needed
        self.classes_, self.sizes_ = setting.classes, sizes
        self.n_features_in_, self.scale_ = width, scale
        return self

    def _setting(
        self, files: Sequence[str], contents: Sequence[_Contents]
    ) -> tuple[_Setting, IndexArray, int]:
        """Classes over all shards, with the number of their points; shards must be alike."""
        first = contents[0]
        for path, content in zip(files, contents, strict=True):
            if content.width != first.width:
                raise InputError(
                    f"{path}: features have {content.width} columns, and those of {files[0]} have "
                    f"{first.width}. Use features of the same layer of the same model."
                )
            if (content.classes.dtype.kind == "U") != (first.classes.dtype.kind == "U"):
                raise InputError(
                    f"{path}: labels are {content.classes.dtype}, and those of {files[0]} are "
                    f"{first.classes.dtype}. Write them alike."
                )
        classes = np.unique(np.concatenate([content.classes for content in contents]))
        sizes = np.zeros(len(classes), np.int64)
        for content in contents:
            sizes[np.searchsorted(classes, content.classes)] += content.counts
        needed = np.minimum(sizes, self.neighbour)
        # One type for all, as in one process: compiled sums of other types round differently.
        dtype = str(np.result_type(*(content.dtype for content in contents)))
        return _Setting(clone(self), dtype, classes, needed), sizes, first.width

    def _measure(self, queries: Queries) -> ClassDistances:
        total, width = queries.shape
        rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (8 * width)))
        blocks = (np.arange(start, min(start + rows, total)) for start in range(0, total, rows))
        asked = (self._ask(queries.take(block)) for block in blocks)
        parts = [finish() for finish in ahead(asked, _AHEAD)]
        return ClassDistances(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _ask(self, queries: Queries) -> Callable[[], ClassDistances]:
        """Send a block of queries to every shard; the function returned waits for the answers."""
        ray = import_ray()
        asked = ray.put(queries)
        first = [actor.nearest.remote(asked) for actor in self._actors]

        def second(bound: Floats) -> Iterator[Pairs]:
            placed = ray.put(bound)
            return _answers(ray, [actor.within.remote(asked, placed) for actor in self._actors])

        return lambda: merged_distances(_answers(ray, first), second, queries.own, self._needed)


class _Shard:
    """One shard of the training points; an actor.

    The files are read by the first call: an error in the constructor would be Ray's, not ours.
    """

    def __init__(self, paths: Sequence[str], setting: _Setting) -> None:
        self._paths, self._setting = paths, setting

    @cached_property
    def _loaded(self) -> tuple[ClassPoints, ShardSearch]:
        return _load(self._paths, self._setting)

    def ready(self) -> None:
        """Answer once the shard is read."""
        _ = self._loaded

    def sums(self) -> Floats:
        """Sum of each column."""
        return np.asarray(self._loaded[0].features.sum(axis=0, dtype=np.float64))

    def squares(self, mean: Floats) -> float:
        """Sum of the squared distances from `mean`."""
        return squares_about(self._loaded[0].features, mean)

    def nearest(self, queries: Queries) -> NearestSquares:
        """See `ShardSearch.nearest`."""
        return self._loaded[1].nearest(queries)

    def within(self, queries: Queries, bound: Floats) -> Pairs:
        """See `ShardSearch.within`."""
        return self._loaded[1].within(queries, bound)


def _load(paths: Sequence[str], setting: _Setting) -> tuple[ClassPoints, ShardSearch]:
    """Read the points of a shard, and prepare their search."""
    matrix, labels, half = _read(paths, setting.dtype)
    classes, codes = class_codes(labels, len(matrix))
    order, starts = sort_by_class(codes, len(classes))
    stored = as_stored(matrix[order], setting.score.storage or half)
    points = search_points(stored, starts, setting.score.normalize)
    places = np.searchsorted(setting.classes, classes).astype(np.int64)
    return points, ShardSearch(points, places, setting.needed, setting.score._memory)


def _look_into(path: str) -> _Contents:
    """Count the labels of a file; its features are not read."""
    training = TrainingFile(path)
    features = training.features
    values = as_labels(training.read_labels(), features.shape[0], f"{path}: labels")
    classes, counts = np.unique(values, return_counts=True)
    dtype = np.dtype(features.dtype)
    wide = dtype if dtype in (np.float16, np.float32) else np.dtype(np.float64)
    return _Contents(classes, counts.astype(np.int64), int(features.shape[1]), str(wide))


def _read(paths: Sequence[str], dtype: str) -> tuple[FloatArray, Array, str | None]:
    """Points of some files in the type of all, and what they are kept as if that is float16."""
    read = [read_training(path) for path in paths]
    features = np.concatenate([as_matrix(part, "features") for part, _ in read])
    labels = np.concatenate([labels for _, labels in read])
    half = dtype if dtype == "float16" else None
    wide = np.dtype(np.float32) if half else np.dtype(dtype)
    return features.astype(wide, copy=False), labels, half


def _common_spread(ray: Any, actors: Sequence[Any], total: int) -> float:
    """Spread of the points of all shards about their common mean."""
    sums = list(_answers(ray, [actor.sums.remote() for actor in actors]))
    mean = ray.put(np.sum(sums, axis=0) / total)
    squares = _answers(ray, [actor.squares.remote(mean) for actor in actors])
    return spread(float(sum(squares)), total)


def _answers(ray: Any, references: Sequence[Any]) -> Iterator[Any]:
    """Results in order; an error of this package is raised as it was, not wrapped by Ray."""
    for reference in references:
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TrustSetsError):
                raise error.cause from None
            raise
        yield answer
