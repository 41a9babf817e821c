"""From images to outputs on disk: features and logits of every part of a dataset.

The folder that results is described in `trustsets.paper.layout`. A run that was killed is
continued by the same call: batches that are on disk are neither decoded nor run again, and the
arrays are the same bit for bit. Memory holds the network, batches that wait to be written, one
unfinished shard (together about 1 GB with 2,048 features and 1,000 classes), and the labels and
paths of the listing. Otherwise it does not grow with the number of images.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch

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
    pick_device,
    read_weights,
)
from trustsets.paper.images.pictures import Images, consecutive_batches, evaluation_transform
from trustsets.paper.images.unreadable import UnreadableImages
from trustsets.paper.layout import SAMPLES, TRAIN, Description, is_extracted

__all__ = ["ExtractionOptions", "PartSummary", "extract_dataset"]


@final
@dataclass(frozen=True)
class ExtractionOptions:
    """How images are run.

    Attributes
    ----------
    resize : int, optional
        Length of the shorter side; by default as in the paper, in proportion to `size`.
    size : int
        Side of the square cut out of the middle, which the network sees.
    batch_size : int
        Images that are run together.
    workers : int, optional
        Processes that decode images; 0 decodes in this one, None has one for each core.
    device : str
        ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU where there is one.
    mixed_precision : "auto", True or False
        Half precision; ``"auto"`` on a GPU.
    max_unreadable : int
        How many images in all may be missing or damaged before it is an error.
    shard_rows : int, optional
        Rows after which a shard is written; at most so many are lost by a kill.
    progress : bool, optional
        Show progress bars; by default on a terminal.
    """

    resize: int | None = None
    size: int = FULL_SIZE
    batch_size: int = 256
    workers: int | None = 0
    device: str = "cpu"
    mixed_precision: bool | Literal["auto"] = "auto"
    max_unreadable: int = 100
    shard_rows: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        least = {"resize": 1, "size": 1, "batch_size": 1, "shard_rows": 1}
        for name, bound in (least | {"workers": 0, "max_unreadable": 0}).items():
            value = getattr(self, name)
            if value is not None and value < bound:
                rule = "at least 1" if bound else "0 or more"
                raise InputError(f"{name} must be {rule}; got {value}.")


@final
@dataclass(frozen=True)
class PartSummary:
    """Outcome of one part.

    Attributes
    ----------
    part : str
        Name of the part.
    images, unreadable : int
        Images in the shards, and images left out.
    run : int
        Images of this run; the others were there before.
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


def extract_dataset(
    name: str,
    images: Path,
    weights: Path,
    folder: Path,
    *,
    lists: Path | None = None,
    seed: int = 0,
    options: ExtractionOptions | None = None,
) -> list[PartSummary]:
    """Run the paper's network over all parts of one of its datasets and write the outputs.

    Parameters
    ----------
    name, images, lists, seed
        See `load_dataset`.
    weights : path
        Checkpoint of the network.
    folder : path
        Where the outputs go; an earlier run there is continued, or kept if it is complete.
    options : ExtractionOptions, optional
        How images are run.
    """
    chosen = options or ExtractionOptions()
    place = pick_device(chosen.device)
    dataset = load_dataset(name, images, lists=lists, seed=seed)
    architecture = ARCHITECTURES[name]
    checkpoint = read_weights(weights, architecture.weights)
    _check_origin(checkpoint, dataset)
    network = architecture.build(len(dataset.classes))
    load_weights(network, checkpoint)
    if chosen.resize is None:
        chosen = replace(chosen, resize=round(architecture.resize * chosen.size / FULL_SIZE))
    folder.mkdir(parents=True, exist_ok=True)
    with evaluating(network, place):
        network.prefer_layout_of(place)
        return _extract(dataset, network, architecture.name, folder, chosen)


def _extract(
    dataset: ImageSet, network: Network, model: str, folder: Path, options: ExtractionOptions
) -> list[PartSummary]:
    """Run a network that is ready on its device."""
    place = next(network.parameters()).device
    half = use_half(options.mixed_precision, place)
    layer = network.get_submodule(FEATURE_LAYER)
    setting = model_setting(network, layer, place, half)
    setting |= {name: getattr(options, name) for name in ("batch_size", "resize", "size")}
    description = Description(
        dataset=dataset.name,
        classes=dataset.classes,
        parts=tuple(dataset.parts),
        model=model,
        weights_sha256=setting["weights_sha256"],
        seed=dataset.seed,
        finished=False,
    )
    _begin(folder, description)
    unreadable = UnreadableImages(folder, options.max_unreadable)
    for part, listing in dataset.parts.items():
        unreadable.add_missing(part, listing)
    summaries = []
    with Tap(network, layer) as tap:
        for part, listing in dataset.parts.items():
            runner = Runner(
                network, tap, place, half, keep_logits=part != TRAIN, keep_predicted=True
            )
            job = _PartJob(part, listing, folder / part, setting, options, unreadable)
            summaries.append(job.run(runner, place))
    replace(description, finished=True).write(folder)
    return summaries


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
        resize = options.size if options.resize is None else options.resize
        self._images = Images(listing, evaluation_transform(resize, options.size))

    def run(self, runner: Runner, place: torch.device) -> PartSummary:
        """Do what is not done yet."""
        store = BatchStore(
            self._directory, self._setting, keep=False, shard_rows=self._options.shard_rows
        )
        self._listing.write(self._directory / SAMPLES)
        start = time.perf_counter()
        known = len(store.column("rows"))
        if not store.finished:
            run_ahead(runner, self._batches(self._first_row(store), place), store)
        return self._end(store, known, time.perf_counter() - start)

    def _first_row(self, store: BatchStore) -> int:
        """First row that is not done: shards hold whole batches, so a multiple of their size."""
        size = self._options.batch_size
        rows = store.column("rows")
        return 0 if rows.size == 0 else -(-(int(rows[-1]) + 1) // size) * size

    def _batches(self, first: int, place: torch.device) -> Iterator[Batch]:
        """All batches from a row on, without the images that cannot be read."""
        n, options = len(self._listing), self._options
        loader = self._images.loader(
            consecutive_batches(first, n, options.batch_size), options.workers, place
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
        """Name the images that are left out, also those of an earlier run, and close the store."""
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


def _check_origin(weights: Weights, dataset: ImageSet) -> None:
    """Check that weights belong to these classes, and to this split if they are our own."""
    n_classes, facts = weights.n_classes, weights.facts
    if n_classes is not None and n_classes != len(dataset.classes):
        raise InputError(
            f"weights={weights.path} have {n_classes} classes, and the images of {dataset.name} "
            f"have {len(dataset.classes)}; give the weights and all images of one dataset."
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
