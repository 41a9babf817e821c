"""From images to outputs on disk: features and logits of every part of a dataset.

The folder that results is described in `trustsets.paper.layout`. A run that was killed is
continued by the same call: whole batches that are on disk are neither decoded nor run again,
and the arrays are the same bit for bit. Memory holds the network, batches that wait to be written,
a shard in the making (together about 1 GB with 2,048 features and 1,000 classes), and the labels
and paths of the listing; it does not grow with the number of images otherwise.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from trustsets._common.progress import progress_bar
from trustsets.errors import InputError
from trustsets.extras.forward import (
    Batch,
    Runner,
    Tap,
    evaluating,
    model_setting,
    run_ahead,
    use_half,
)
from trustsets.extras.shards import BatchStore
from trustsets.paper.images.datasets import load_dataset
from trustsets.paper.images.listing import ImageSet, Listing
from trustsets.paper.images.models import (
    ARCHITECTURES,
    FEATURE_LAYER,
    FULL_SIZE,
    Network,
    Weights,
    load_weights,
    read_weights,
)
from trustsets.paper.images.pictures import Images, consecutive_batches, evaluation_transform
from trustsets.paper.images.unreadable import UnreadableImages
from trustsets.paper.layout import SAMPLES, TRAIN, Description, is_extracted

__all__ = ["ExtractionOptions", "PartSummary", "extract_dataset", "extract_images"]


@final
@dataclass(frozen=True)
class ExtractionOptions:
    """How images are run.

    Attributes
    ----------
    resize, size : int
        Length of the shorter side, and of the square cut out of its middle.
    batch_size : int
        Images that are run together.
    workers : int
        Processes that decode images; 0 decodes in this one.
    device : str
        ``"cpu"``, ``"cuda"``...
    mixed_precision : "auto", True or False
        Half precision; ``"auto"`` on a GPU.
    max_unreadable : int
        How many images in all may be missing or damaged before it is an error.
    shard_rows : int, optional
        Rows after which a shard is written, and so what a kill can cost.
    progress : bool, optional
        Show progress bars; by default on a terminal.
    """

    resize: int
    size: int
    batch_size: int = 256
    workers: int = 0
    device: str = "cpu"
    mixed_precision: bool | Literal["auto"] = "auto"
    max_unreadable: int = 100
    shard_rows: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name in ("resize", "size", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}.")
        for name in ("workers", "max_unreadable"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative; got {getattr(self, name)}.")
        if self.shard_rows is not None and self.shard_rows < 1:
            raise InputError(f"shard_rows must be at least 1; got {self.shard_rows}.")


@final
@dataclass(frozen=True)
class PartSummary:
    """What became of one part.

    Attributes
    ----------
    part : str
    images, unreadable : int
        In the shards, and left out.
    run : int
        Images of this run; the others were there.
    seconds : float
        Time of this run.
    accuracy : float
        Share of images whose largest logit is that of their class.
    """

    part: str
    images: int
    unreadable: int
    run: int
    seconds: float
    accuracy: float

    @property
    def speed(self) -> float:
        """Images a second in this run."""
        return self.run / self.seconds if self.seconds > 0 else 0.0


def extract_images(
    dataset: ImageSet, network: Network, model: str, folder: Path, options: ExtractionOptions
) -> list[PartSummary]:
    """Run a network over all parts of a dataset and write what it says.

    Parameters
    ----------
    dataset : ImageSet
    network : Network
        With its weights.
    model : str
        Name of the network, for the record.
    folder : path
        Where the outputs go; an earlier run there is continued, or kept if it is complete.
    options : ExtractionOptions
    """
    folder.mkdir(parents=True, exist_ok=True)
    with evaluating(network, options.device) as place:
        network.prefer_layout_of(place)
        half = use_half(options.mixed_precision, place)
        chosen = network.get_submodule(FEATURE_LAYER)
        setting = model_setting(network, chosen, place, half) | {
            "batch_size": options.batch_size,
            "resize": options.resize,
            "size": options.size,
        }
        description = _describe(dataset, model, setting["weights_sha256"])
        _begin(folder, description)
        unreadable = UnreadableImages(folder, options.max_unreadable)
        for part, listing in dataset.parts.items():
            unreadable.add_missing(part, listing)
        summaries = []
        with Tap(network, chosen) as tap:
            for part, listing in dataset.parts.items():
                runner = Runner(
                    network, tap, place, half, keep_logits=part != TRAIN, keep_predicted=True
                )
                job = _PartJob(part, listing, folder / part, setting, options, unreadable)
                summaries.append(job.run(runner, pin=place.type == "cuda"))
    replace(description, finished=True).write(folder)
    return summaries


def _describe(dataset: ImageSet, model: str, digest: str) -> Description:
    return Description(
        dataset=dataset.name,
        classes=dataset.classes,
        parts=tuple(dataset.parts),
        model=model,
        weights_sha256=digest,
        seed=dataset.seed,
        finished=False,
    )


def _begin(folder: Path, description: Description) -> None:
    """Refuse a folder of another run, and mark a new one as unfinished."""
    if is_extracted(folder):
        stored = replace(Description.read(folder), finished=False)
        for name in ("dataset", "seed", "model", "weights_sha256", "classes", "parts"):
            if getattr(stored, name) != getattr(description, name):
                raise InputError(
                    f"out={folder} belongs to another extraction: its {name} is another. Choose "
                    "another folder, or empty this one."
                )
    else:
        description.write(folder)


@final
class _PartJob:
    """Extraction of one part."""

    def __init__(
        self,
        part: str,
        listing: Listing,
        directory: Path,
        setting: dict[str, Any],
        options: ExtractionOptions,
        unreadable: UnreadableImages,
    ) -> None:
        self._part, self._listing, self._directory = part, listing, directory
        self._options, self._unreadable = options, unreadable
        self._setting = setting | {"listing_sha256": listing.digest()}
        self._images = Images(listing, evaluation_transform(options.resize, options.size))

    def run(self, runner: Runner, pin: bool) -> PartSummary:
        """Do what is not done yet."""
        store = BatchStore(
            self._directory, self._setting, keep=False, shard_rows=self._options.shard_rows
        )
        self._listing.write(self._directory / SAMPLES)
        start = time.perf_counter()
        known = len(store.column("rows"))
        if not store.finished:
            run_ahead(runner, self._batches(self._first_row(store), pin), store)
        return self._end(store, known, time.perf_counter() - start)

    def _first_row(self, store: BatchStore) -> int:
        """Shards hold whole batches, so the next one begins at the next multiple of the size."""
        size = self._options.batch_size
        rows = store.column("rows")
        return 0 if rows.size == 0 else -(-(int(rows[-1]) + 1) // size) * size

    def _batches(self, first: int, pin: bool) -> Iterator[Batch]:
        """All batches from a row on, without the images that cannot be read."""
        n, options = len(self._listing), self._options
        loader = self._images.loader(
            consecutive_batches(first, n, options.batch_size), options.workers, pin
        )
        with progress_bar(
            self._part, n, done=first, unit="images", wanted=options.progress
        ) as advance:
            for images, rows, failures in loader:
                for row, reason in failures:
                    self._unreadable.add(self._part, self._listing, row, reason)
                if len(rows):
                    yield Batch(images, self._listing.labels[rows.numpy()], rows.numpy())
                advance(len(rows) + len(failures))

    def _end(self, store: BatchStore, known: int, seconds: float) -> PartSummary:
        """Say which images are left out, also those that an earlier run met, and close."""
        store.flush()
        rows = store.column("rows")
        left_out = np.setdiff1d(np.arange(len(self._listing)), rows)
        for row in left_out.tolist():
            reason = self._images.reason(row) or "could not be read when it was its turn"
            self._unreadable.add(self._part, self._listing, row, reason)
        self._unreadable.write()
        if rows.size == 0:
            raise InputError(f"no image of part {self._part!r} of the dataset could be read.")
        store.finish()
        return PartSummary(
            part=self._part,
            images=len(rows),
            unreadable=len(left_out),
            run=len(rows) - known,
            seconds=seconds,
            accuracy=float(np.mean(store.column("predicted") == store.column("labels"))),
        )


def extract_dataset(
    name: str,
    images: Path,
    weights: Path,
    folder: Path,
    *,
    lists: Path | None = None,
    seed: int = 0,
    resize: int | None = None,
    size: int = 224,
    **options: Any,
) -> list[PartSummary]:
    """Extract one of the paper's datasets with the paper's network.

    Parameters
    ----------
    name, images, lists, seed
        See `load_dataset`.
    weights : path
        Checkpoint of the network.
    folder : path
        Where the outputs go.
    resize : int, optional
        Default: as in the paper for this dataset, in proportion to `size`.
    size : int
        Side of the images that the network sees.
    **options
        Further `ExtractionOptions`.
    """
    dataset = load_dataset(name, images, lists=lists, seed=seed)
    architecture = ARCHITECTURES[name]
    checkpoint = read_weights(weights, architecture.weights)
    _check_origin(checkpoint, dataset)
    network = architecture.build(len(dataset.classes))
    load_weights(network, checkpoint)
    side = round(architecture.resize * size / FULL_SIZE) if resize is None else resize
    chosen = ExtractionOptions(resize=side, size=size, **options)
    return extract_images(dataset, network, architecture.name, folder, chosen)


def _check_origin(weights: Weights, dataset: ImageSet) -> None:
    """Weights must be for these classes; those we trained also say which split they saw."""
    n_classes, facts = weights.n_classes, weights.facts
    if n_classes is not None and n_classes != len(dataset.classes):
        raise InputError(
            f"weights={weights.path} have {n_classes} classes, and the images of {dataset.name} "
            f"{len(dataset.classes)}; one of the two is not complete, or not of this dataset."
        )
    if tuple(facts.get("classes", dataset.classes)) != dataset.classes:
        raise InputError(
            f"weights={weights.path} were trained on other classes than {dataset.name} has here."
        )
    if facts.get("seed", dataset.seed) != dataset.seed:
        raise InputError(
            f"weights={weights.path} were trained with --seed {facts['seed']}, so images of the "
            f"training split of seed {dataset.seed} are others; use the same seed."
        )
