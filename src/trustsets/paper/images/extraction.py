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
from typing import Literal, final

import numpy as np

from trustsets.errors import InputError
from trustsets.extras.batches import Batch
from trustsets.extras.forward import (
    Runner,
    Tap,
    evaluating,
    model_setting,
    run_ahead,
    use_half,
)
from trustsets.extras.shards import BatchStore
from trustsets.paper.images.datasets import load_dataset
from trustsets.paper.images.listing import ImageSet
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
from trustsets.paper.images.pictures import Images, WorkOptions
from trustsets.paper.images.unreadable import UnreadableImages
from trustsets.paper.images.vision import transforms
from trustsets.paper.layout import SAMPLES, TRAIN, Description, is_extracted

__all__ = ["ExtractionOptions", "PartSummary", "extract_dataset"]


@final
@dataclass(frozen=True)
class ExtractionOptions(WorkOptions):
    """How images are run; see also `WorkOptions`.

    Attributes
    ----------
    resize : int, optional
        Length of the shorter side; by default as in the paper, in proportion to `size`.
    size : int
        Side of the square cut out of the middle, which the network sees.
    batch_size : int
        Images that are run together.
    mixed_precision : "auto", True or False
        Half precision; ``"auto"`` on a GPU.
    shard_rows : int, optional
        Rows after which a shard is written; at most so many are lost by a kill.
    """

    resize: int | None = None
    size: int = FULL_SIZE
    batch_size: int = 256
    mixed_precision: bool | Literal["auto"] = "auto"
    shard_rows: int | None = None


@final
@dataclass(frozen=True)
class PartSummary:
    """Outcome of one part.

    Attributes
    ----------
    images, unreadable : int
        Images in the shards, and images left out.
    run, seconds : int, float
        Images and time of this run; the other images were there before.
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
    steps = [transforms.Resize(options.resize), transforms.CenterCrop(options.size)]
    transform = transforms.Compose([*steps, transforms.PILToTensor()])
    summaries = []
    with Tap(network, layer) as tap:
        for part, listing in dataset.parts.items():
            whole = setting | {"listing_sha256": listing.digest()}
            store = BatchStore(folder / part, whole, keep=False, shard_rows=options.shard_rows)
            listing.write(folder / part / SAMPLES)
            logits = part != TRAIN
            runner = Runner(network, tap, place, half, keep_logits=logits, keep_predicted=True)
            images = Images(part, listing, transform)
            summaries.append(_extract_part(images, runner, store, options, unreadable))
    replace(description, finished=True).write(folder)
    return summaries


def _begin(folder: Path, description: Description) -> None:
    """Refuse a folder of another run, and mark a new one as unfinished."""
    if not is_extracted(folder):
        description.write(folder)
        return
    stored = vars(replace(Description.read(folder), finished=False))
    other = [name for name, value in vars(description).items() if stored[name] != value]
    if other:
        raise InputError(
            f"out={folder} belongs to another extraction: its {other[0]} is another. Choose "
            "another folder, or empty this one."
        )


def _extract_part(
    images: Images,
    runner: Runner,
    store: BatchStore,
    options: ExtractionOptions,
    unreadable: UnreadableImages,
) -> PartSummary:
    """Do what is not done yet, and name the images left out, also those of an earlier run."""
    start, known = time.perf_counter(), store.column("rows")
    if not store.finished:
        # Shards hold whole batches, so the next one starts at a multiple of their size.
        size = options.batch_size
        first = -(-(int(known[-1]) + 1) // size) * size if known.size else 0
        run_ahead(runner, _batches(images, first, options, unreadable), store)
    seconds = time.perf_counter() - start
    store.flush()
    rows = store.column("rows")
    left_out = np.setdiff1d(np.arange(len(images)), rows).tolist()
    for row in left_out:
        why = images.open(row)
        reason = why if isinstance(why, str) else "could not be read when it was its turn"
        unreadable.add(images.part, images.listing, [(row, reason)])
    unreadable.write()
    if rows.size == 0:
        raise InputError(f"no image of part {images.part!r} of the dataset could be read.")
    store.finish()
    return PartSummary(
        part=images.part,
        images=len(rows),
        unreadable=len(left_out),
        run=len(rows) - len(known),
        seconds=seconds,
        accuracy=float(np.mean(store.column("predicted") == store.column("labels"))),
    )


def _batches(
    images: Images, first: int, options: ExtractionOptions, unreadable: UnreadableImages
) -> Iterator[Batch]:
    """All batches from a row on, without the images that cannot be read."""
    n, size, labels = len(images), options.batch_size, images.listing.labels
    rows_of = (range(start, min(start + size, n)) for start in range(first, n, size))
    keys = ([(row, None) for row in rows] for rows in rows_of)
    for inputs, numbers in images.batches(keys, images.part, first, options, unreadable):
        rows = numbers.numpy()
        if rows.size:
            yield Batch(inputs, labels[rows], rows)


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
