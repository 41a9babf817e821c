"""Fine-tuning, with checkpoints that a killed run continues from.

Nothing random outlives a step: the order of an epoch depends on (seed, epoch), the augmentation
of an image on (seed, epoch, place in the epoch), dropout on (seed, step). So a run that was
killed and continued gives, on a CPU, the weights of one that was not, bit for bit, and neither
depends on the number of processes that decode images.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trustsets._common import storage
from trustsets._common.arrays import Array
from trustsets._common.resuming import digest, identity
from trustsets.errors import InputError, TrustSetsError
from trustsets.paper.images.datasets import load_dataset
from trustsets.paper.images.listing import ImageSet, Listing
from trustsets.paper.images.models import (
    ARCHITECTURES,
    HEAD,
    Network,
    load_weights,
    pick_device,
    read_weights,
)
from trustsets.paper.images.pictures import Images, WorkOptions
from trustsets.paper.images.recipes import RECIPES, Recipe
from trustsets.paper.images.unreadable import UnreadableImages
from trustsets.paper.layout import TRAIN

__all__ = ["EpochSummary", "TrainingOptions", "train_dataset"]

CHECKPOINT = "checkpoint.trustsets"
WEIGHTS = "weights.safetensors"


@final
@dataclass(frozen=True)
class TrainingOptions(WorkOptions):
    """How a training runs; none of it changes the result on a CPU. See also `WorkOptions`.

    Attributes
    ----------
    checkpoint_steps : int
        Steps between checkpoints within an epoch; there is one after each epoch anyway.
    """

    checkpoint_steps: int = 1000


@final
@storage.storable
@dataclass(frozen=True)
class EpochSummary:
    """Sums over the training images of one epoch."""

    epoch: int
    images: int = 0
    loss_sum: float = 0.0
    correct: int = 0

    @property
    def loss(self) -> float:
        """Mean cross-entropy."""
        return self.loss_sum / max(self.images, 1)

    @property
    def accuracy(self) -> float:
        """Share of images classified right, as augmented and with dropout."""
        return self.correct / max(self.images, 1)


def train_dataset(
    name: str,
    images: Path,
    start: Path,
    folder: Path,
    *,
    lists: Path | None = None,
    seed: int = 0,
    size: int = 224,
    options: TrainingOptions | None = None,
    **changes: Any,
) -> tuple[Path, list[EpochSummary]]:
    """Fine-tune the paper's network for a dataset.

    Parameters
    ----------
    name : str
        ``"places365"`` or ``"fitzpatrick17k"``.
    images, lists : path
        See `load_dataset`.
    start : path
        Weights to start from, those of ImageNet.
    folder : path
        Where checkpoints and the final ``weights.safetensors`` go; an earlier run there is
        continued.
    seed : int
        Of everything random, the training split included.
    size : int
        Side of the images that the network sees.
    **changes
        Fields of the `Recipe` to change: epochs, batch_size, learning_rate...

    Returns
    -------
    path, list of EpochSummary
        The final weights, and how the epochs went.
    """
    from safetensors.torch import save

    if name not in RECIPES:
        raise InputError(f"dataset must be one of {', '.join(RECIPES)}; got {name!r}.")
    recipe = replace(RECIPES[name], **changes)
    dataset = load_dataset(name, images, lists=lists, seed=seed)
    architecture = ARCHITECTURES[name]
    weights = read_weights(start, architecture.start)
    folder.mkdir(parents=True, exist_ok=True)
    # The generators of the calling program go on as if nothing had been drawn.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = architecture.build(len(dataset.classes))
        load_weights(network, weights, without_head=True)
        chosen = options or TrainingOptions()
        history = _Training(dataset, network, recipe, seed, size, folder, chosen).run()
    facts = {
        "dataset": dataset.name,
        "classes": dataset.classes,
        "seed": dataset.seed,
        "training_seed": seed,
        "recipe": asdict(recipe),
    }
    state = {name: value.cpu().contiguous() for name, value in network.body.state_dict().items()}
    with storage.atomic_path(folder / WEIGHTS) as temporary:
        temporary.write_bytes(save(state, {"trustsets": json.dumps(facts)}))
    return folder / WEIGHTS, history


@final
class _Training:
    """One training: network, optimiser, and where it stands."""

    def __init__(
        self,
        dataset: ImageSet,
        network: Network,
        recipe: Recipe,
        seed: int,
        size: int,
        folder: Path,
        options: TrainingOptions,
    ) -> None:
        self._recipe, self._seed, self._options = recipe, seed, options
        self._listing = dataset.parts[TRAIN]
        self._images = Images(TRAIN, self._listing, recipe.transform(size))
        self._steps_per_epoch = -(-len(self._listing) // recipe.batch_size)
        self._checkpoint = folder / CHECKPOINT
        self._unreadable = UnreadableImages(folder, options.max_unreadable)
        start = _arrays(network.body.state_dict())
        weights = [list(start), digest(*start.values())]
        self._setting = identity([asdict(recipe), seed, size, self._listing.digest(), weights])
        self._place = pick_device(options.device)
        self._network = network.to(self._place)
        self._network.prefer_layout_of(self._place)
        for name, parameter in network.body.named_parameters():
            parameter.requires_grad_(not recipe.head_only or name.startswith(HEAD))
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._optimizer = recipe.make_optimizer(trained)
        # The next step to make, its epoch, and the epochs so far; the last may be unfinished.
        self._epoch, self._step = 0, 0
        self._history: list[EpochSummary] = []

    def run(self) -> list[EpochSummary]:
        """Train to the end, from wherever an earlier run was."""
        self._unreadable.add_missing(TRAIN, self._listing)
        self._resume()
        while self._epoch < self._recipe.epochs:
            self._run_epoch()
        self._unreadable.write()
        return self._history

    def _run_epoch(self) -> None:
        """All remaining steps of an epoch."""
        first = self._step - self._epoch * self._steps_per_epoch
        if first == 0:
            self._history.append(EpochSummary(self._epoch))
        self._network.train()
        keys = _epoch_batches(self._listing, self._recipe, self._seed, self._epoch, first)
        title = f"Epoch {self._epoch + 1} of {self._recipe.epochs}"
        done = first * self._recipe.batch_size
        work = self._options, self._unreadable
        for images, rows in self._images.batches(keys, title, done, *work):
            if len(rows):
                self._make_step(images, torch.from_numpy(self._listing.labels)[rows])
            self._step += 1
            if self._step % self._options.checkpoint_steps == 0:
                self._save()
        self._epoch += 1
        self._save()

    def _make_step(self, images: Tensor, labels: Tensor) -> None:
        steps = self._recipe.epochs * self._steps_per_epoch
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.rate(self._epoch, self._step / steps)
        torch.manual_seed(_draw(self._seed, _DROPOUT, self._step))
        inputs, targets = (each.to(self._place, non_blocking=True) for each in (images, labels))
        half = self._place.type == "cuda" and torch.cuda.is_bf16_supported()
        with torch.autocast(self._place.type, torch.bfloat16, enabled=half):
            logits = self._network(inputs)
        loss = nn.functional.cross_entropy(logits.float(), targets)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        lost, count, last = float(loss.detach()), len(labels), self._history[-1]
        if not np.isfinite(lost):
            raise TrustSetsError(
                f"the training diverged in epoch {self._epoch + 1} (loss {lost}); lower the "
                f"learning rate, now {self._recipe.learning_rate}, and use another folder."
            )
        correct = last.correct + int((logits.argmax(1) == targets).sum())
        sums = last.images + count, last.loss_sum + lost * count, correct
        self._history[-1] = EpochSummary(last.epoch, *sums)

    def _save(self) -> None:
        moments = self._optimizer.state_dict()["state"]
        state = {
            "setting": self._setting,
            "epoch": self._epoch,
            "step": self._step,
            "history": self._history,
            "network": _arrays(self._network.body.state_dict()),
            "optimizer": {str(number): _arrays(own) for number, own in moments.items()},
        }
        storage.write(self._checkpoint, state)

    def _resume(self) -> None:
        if not self._checkpoint.exists():
            return
        state = storage.read(self._checkpoint)
        if not isinstance(state, dict) or state.get("setting") != self._setting:
            raise InputError(
                f"{self._checkpoint} is of a training with other images, start weights, seed or "
                "options; use the same, or another folder."
            )
        self._epoch, self._step, self._history = state["epoch"], state["step"], state["history"]
        # Network and optimiser know which of their tensors belong on the device.
        self._network.body.load_state_dict(_tensors(state["network"]))
        moments = {int(number): _tensors(own) for number, own in state["optimizer"].items()}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})


# Purposes of random draws: each gets numbers of its own.
_ORDER, _AUGMENT, _DROPOUT = 1, 2, 3


def _draw(seed: int, purpose: int, *place: int) -> int:
    """Give a seed that depends on its arguments alone."""
    return int(np.random.SeedSequence([seed, purpose, *place]).generate_state(1, np.uint64)[0] >> 1)


def _epoch_batches(
    listing: Listing, recipe: Recipe, seed: int, epoch: int, first: int = 0
) -> Iterator[list[tuple[int, int]]]:
    """Rows of each step of an epoch from a step on, each with the seed of its augmentation."""
    rng = np.random.default_rng(_draw(seed, _ORDER, epoch))
    rows = _balanced_rows(listing.labels, rng) if recipe.balanced else rng.permutation(len(listing))
    seeds = np.random.default_rng(_draw(seed, _AUGMENT, epoch)).integers(2**62, size=len(rows))
    size = recipe.batch_size
    for start in range(first * size, len(rows), size):
        own = slice(start, start + size)
        yield list(zip(rows[own].tolist(), seeds[own].tolist(), strict=True))


def _balanced_rows(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """As many rows as there are, drawn with replacement, each class with the same chance."""
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    chances = 1.0 / counts[codes] / len(counts)
    return rng.choice(len(labels), size=len(labels), p=chances / chances.sum())


def _arrays(tensors: dict[str, Any]) -> dict[str, Array]:
    return {
        name: value.detach().cpu().numpy().copy()
        for name, value in tensors.items()
        if isinstance(value, Tensor)
    }


def _tensors(arrays: dict[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
