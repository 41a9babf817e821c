"""The paper's networks: reading their weights, training two of them, and running all over images.

Training continues after the last whole epoch and extraction after the last whole shard, and both
end with the same numbers: the order of an epoch depends on (seed, epoch), the augmentation of an
image on (seed, epoch, position in the epoch), dropout on (seed, step).
"""

import json
import math
import os
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from trustsets import TrustSetsError
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.storage import atomic_path, digest, read, read_kept, write
from trustsets_paper import Array, Ints
from trustsets_paper.datasets import (
    SHOWN,
    ImageSet,
    Listing,
    check_class_order,
    load_dataset,
)
from trustsets_paper.sources import (
    SAMPLES,
    TRAIN,
    UNREADABLE,
    Description,
    WorkOptions,
    is_extracted,
    write_text,
)

__all__ = ["ARCHITECTURES", "RECIPES", "extract_dataset", "train_dataset"]

# Declarations of operators end with the life of their library.
_declared: list[Any] = []


def load_torchvision() -> tuple[Any, Any]:
    """The modules `models` and `transforms` of torchvision.

    A torchvision that was not built for the installed torch refuses to be imported, because torch
    lacks two operators of object detection. They are declared here without an implementation.
    """
    try:
        from torchvision import models, transforms
    except ModuleNotFoundError as error:
        raise InputError(
            f"images need torchvision and pillow ({error}); pip install 'trustsets[paper]'."
        ) from error
    except RuntimeError as error:
        if "operator torchvision::" not in str(error) or _declared:
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declared.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            _declared[0].define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
        return load_torchvision()
    return models, transforms


models, transforms = load_torchvision()

# --- networks

# Of the red, green and blue of ImageNet's training images: what all five networks expect.
_CHANNEL_MEANS = (0.485, 0.456, 0.406)
_CHANNEL_DEVIATIONS = (0.229, 0.224, 0.225)
FULL_SIZE = 224
"""Side of the square that the networks were made for."""
HEAD = "fc."
_HIDDEN_UNITS = 256
_DROPOUT_SHARE = 0.4


@final
@dataclass(frozen=True)
class Architecture:
    """One network of the paper."""

    name: str  # in torchvision
    weights: str  # where they come from, in a sentence
    start: str = ""  # where those come from that training starts with
    resize: int = 256  # shorter side before the central crop of 224
    accuracy: float | None = None  # on the held-out images, as published
    two_layer_head: bool = False  # instead of the last linear layer, with dropout between

    def build(self, n_classes: int) -> "Network":
        """Make the network with random weights."""
        body = getattr(models, self.name)(weights=None)
        width = body.fc.in_features
        if self.two_layer_head:
            first = _SingleLinear(width, _HIDDEN_UNITS)
            last = _SingleLinear(_HIDDEN_UNITS, n_classes)
            body.fc = nn.Sequential(first, nn.ReLU(), nn.Dropout(_DROPOUT_SHARE), last)
        else:
            body.fc = _SingleLinear(width, n_classes)
        return Network(body)


@final
class _SingleLinear(nn.Linear):
    """A linear layer in single precision, whatever the precision around it.

    Half precision would round logits near 16 to multiples of 1/64, and make ties.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, enabled=False):
            return super().forward(inputs.float())


@final
class Network(nn.Module):
    """A torchvision network that takes images (n, 3, height, width) in uint8.

    `features` holds the output of the average pool in the last forward pass.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.features: Tensor | None = None
        for name, values in (("means", _CHANNEL_MEANS), ("deviations", _CHANNEL_DEVIATIONS)):
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1), persistent=False)
        body.get_submodule("avgpool").register_forward_hook(self._keep_features)

    def _keep_features(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.features = None if self.training else output.flatten(1)

    def move(self, device: torch.device) -> None:
        """Move to a device; a GPU runs faster with channels last."""
        self.to(device)
        if device.type == "cuda":
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        scaled = images.float().div(255.0)
        inputs = scaled.sub(self.get_buffer("means")).div(self.get_buffer("deviations"))
        if images.is_cuda:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.body(inputs)
        return logits


_TORCHVISION = "The public one (IMAGENET1K_V1) is https://download.pytorch.org/models/"
_BALANCED = (
    "The public one (instance-balanced sampling) is "
    "https://dl.fbaipublicfiles.com/classifier-balancing/"
)
_NOT_PUBLIC = "There is no public one: make it with trustsets paper train"
ARCHITECTURES = {
    # The paper follows a pipeline that resizes to the crop itself for this dataset.
    "imagenet": Architecture(
        "resnet50", f"{_TORCHVISION}resnet50-0676ba61.pth", resize=224, accuracy=0.761
    ),
    "imagenet-lt": Architecture(
        "resnext50_32x4d",
        f"{_BALANCED}ImageNet_LT/models/resnext50_uniform_e90.pth",
        accuracy=0.444,
    ),
    "places365": Architecture(
        "resnet152",
        f"{_NOT_PUBLIC} places365",
        start=f"{_TORCHVISION}resnet152-394f9c45.pth",
    ),
    "places365-lt": Architecture(
        "resnet152", f"{_BALANCED}Places_LT/models/resnet152_uniform.pth", accuracy=0.302
    ),
    "fitzpatrick17k": Architecture(
        "resnet18",
        f"{_NOT_PUBLIC} fitzpatrick17k",
        start=f"{_TORCHVISION}resnet18-f37072fd.pth",
        two_layer_head=True,
    ),
}
"""Networks by the name of the dataset."""


# --- checkpoints

# Keys under which a checkpoint may keep its state dictionary, and the two parts of one.
_WRAPPERS = ("state_dict_best", "state_dict", "model_state_dict", "model")
_FEATURES, _CLASSIFIER = "feat_model", "classifier"
_PARALLEL = "module."
_COUNTER = "num_batches_tracked"
_LONGEST_REASON = 400


@final
@dataclass(frozen=True)
class Weights:
    """A checkpoint: tensors by their names in torchvision, and metadata of the file."""

    path: Path
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def read_weights(path: Path, source: str) -> Weights:
    """Read a checkpoint; `source` says where a missing one comes from."""
    if not path.is_file():
        raise InputError(f"weights={path}: there is no such file. {source}.")
    if path.suffix == ".safetensors":
        content, facts = _read_safetensors(path)
    else:
        content, facts = _read_pickled(path), {}
    return Weights(path, _flatten(path, content), facts)


def load_weights(network: Network, weights: Weights, *, without_head: bool = False) -> None:
    """Put weights into a network; every tensor must fit a parameter, and every parameter one."""
    state, tensors = network.body.state_dict(), weights.tensors
    # Networks saved by early versions of torch have no counters; nothing here reads them.
    kept = {name: value for name, value in state.items() if name.endswith(_COUNTER)}
    if without_head:
        kept |= {name: value for name, value in state.items() if name.startswith(HEAD)}
        tensors = {name: tensors[name] for name in tensors if not name.startswith(HEAD)}
    try:
        network.body.load_state_dict(kept | tensors)
    except RuntimeError as error:
        raise InputError(
            f"weights={weights.path} do not fit {type(network.body).__name__}: "
            f"{' '.join(str(error).split())[:_LONGEST_REASON]}. Give the weights of this network."
        ) from error


def _read_safetensors(path: Path) -> tuple[Any, dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("trustsets", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, facts
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"weights={path}: not a readable safetensors file ({error}).") from error


def _read_pickled(path: Path) -> Any:
    """Read a file of `torch.save`, letting it build tensors, numbers and NumPy scalars only."""
    scalar = np.float64(0.0).__reduce__()[0]
    numpy_names = [
        (scalar, "numpy.core.multiarray.scalar"),
        (scalar, "numpy._core.multiarray.scalar"),
        np.dtype,
        *(type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64)),
    ]
    try:
        with torch.serialization.safe_globals(numpy_names):  # type: ignore[arg-type]
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"weights={path}: not a checkpoint of tensors that can be read without running code "
            f"({str(error)[:_LONGEST_REASON]}). Save its state dictionary alone."
        ) from error


def _flatten(path: Path, content: Any) -> dict[str, Tensor]:
    """One state dictionary with torchvision's names out of any of the usual forms."""
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping):
        raise InputError(f"weights={path}: holds a {type(content).__name__}, not named tensors.")
    if not (_FEATURES in content and _CLASSIFIER in content):
        return _plain_names(path, content)
    head = _plain_names(path, content[_CLASSIFIER])
    named = {name if name.startswith(HEAD) else HEAD + name: head[name] for name in head}
    return _plain_names(path, content[_FEATURES]) | named


def _plain_names(path: Path, state: Mapping[str, Any]) -> dict[str, Tensor]:
    others = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if others or not state:
        raise InputError(
            f"weights={path}: not a state dictionary in a known form; besides tensors it has "
            f"{others[:SHOWN]}. Known are a plain one, one under {', '.join(_WRAPPERS)}, and the "
            f"two parts {_FEATURES} and {_CLASSIFIER}."
        )
    return {str(name).removeprefix(_PARALLEL): value for name, value in state.items()}


# --- images

Transform = Callable[[Any], Any]
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]
"""Shows work by a title and a total; gives a function to call with the steps done."""
# Accuracies that differ by more from the published one are worth a warning.
_ACCURACY_SLACK = 0.03


def pick_device(name: str) -> torch.device:
    """Turn ``"auto"`` into a GPU where there is one; refuse a device that cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={name!r} cannot be used here: {reason}") from error


@final
class UnreadableImages:
    """Images that could not be read, for the file ``unreadable.txt``; too many are an error."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._file, self._limit = folder / UNREADABLE, limit
        self._reasons: dict[tuple[str, str], str] = {}

    def add_missing(self, part: str, listing: Listing) -> None:
        """Add all images of a listing that are not there, before any work is done."""
        self.add(part, listing, ((row, "no such file") for row in listing.missing()))

    def add(self, part: str, listing: Listing, failures: Iterable[tuple[int, str]]) -> None:
        """Add rows with their reasons."""
        self._reasons |= {(part, listing.path(row)): reason for row, reason in failures}
        if len(self._reasons) > self._limit:
            self.write()
            raise InputError(
                f"{len(self._reasons)} images under {listing.root} are missing or damaged, and "
                f"--max-unreadable allows {self._limit}. They are named in {self._file}."
            )

    def write(self) -> None:
        """Write the file, by part and path, or remove an old one where there is nothing to say."""
        self._file.unlink(missing_ok=True)
        reasons = sorted(self._reasons.items())
        lines = (f"{part}\t{path}\t{reason}\n" for (part, path), reason in reasons)
        if reasons:
            write_text(self._file, "".join(lines))


def _show_nothing(title: str, total: int) -> AbstractContextManager[Callable[[int], object]]:
    return nullcontext(lambda steps: None)


# What Pillow raises besides for files that are cut short, too large, or oddly made.
_UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, struct.error)


@final
class Images(Dataset[Any]):
    """Images of one part of a dataset, by (row, seed of its augmentation, if it has any)."""

    def __init__(
        self, part: str, listing: Listing, transform: Transform, progress: Progress
    ) -> None:
        self.part, self.listing = part, listing
        self._transform, self._progress = transform, progress

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, key: tuple[int, int | None]) -> tuple[int, Tensor | str]:
        """Row, and the image or why there is none."""
        row, seed = key
        image = self.open(row)
        if isinstance(image, str) or seed is None:
            return row, image if isinstance(image, str) else self._transform(image)
        # The draws belong to the sample alone, whichever process makes them.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return row, self._transform(image)

    def open(self, row: int) -> Any:
        """An image in RGB, or the text that says why it cannot be read."""
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(self.listing.root / self.listing.path(row)) as image:
                return image.convert("RGB")
        except FileNotFoundError:
            return "no such file"
        except UnidentifiedImageError:
            return "not an image"
        except (Image.DecompressionBombError, *_UNREADABLE) as error:
            return " ".join(str(error).split()) or type(error).__name__

    def batches(
        self,
        keys: Iterable[Sequence[Any]],
        title: str,
        done: int,
        options: WorkOptions,
        unreadable: UnreadableImages,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Decode batches of keys under a progress bar; images that came before are `done`.

        Gives the readable images, (n, 3, size, size) uint8, and their rows in the listing.
        """
        loader: DataLoader[Any] = DataLoader(
            self,
            batch_sampler=keys,  # type: ignore[arg-type]
            num_workers=(os.cpu_count() or 1) if options.workers is None else options.workers,
            collate_fn=_collate,
            pin_memory=options.device != "cpu" and torch.cuda.is_available(),
        )
        with self._progress(title, len(self)) as advance:
            advance(done)
            for images, rows, failures in loader:
                unreadable.add(self.part, self.listing, failures)
                yield images, rows
                advance(len(rows) + len(failures))


def _collate(items: list[tuple[int, Tensor | str]]) -> tuple[Tensor, Tensor, list[Any]]:
    images = [image for _, image in items if isinstance(image, Tensor)]
    rows = [row for row, image in items if isinstance(image, Tensor)]
    failures = [(row, reason) for row, reason in items if isinstance(reason, str)]
    stacked = torch.stack(images) if images else torch.empty(0, dtype=torch.uint8)
    return stacked, torch.tensor(rows, dtype=torch.int64), failures


# --- training

CHECKPOINT = "checkpoint.trustsets"
WEIGHTS = "weights.safetensors"
_STEP_EPOCHS, _STEP_FACTOR = 7, 0.1
_MOMENTUM, _WEIGHT_DECAY = 0.9, 1e-4
_SKIN_MARGIN = 256 / 224


@final
@dataclass(frozen=True)
class Recipe:
    """Everything that determines a training besides data and seed."""

    is_skin: bool  # as Fitzpatrick 17k is trained, else as Places365
    epochs: int
    learning_rate: float

    def rate(self, epoch: int, done: float) -> float:
        """Learning rate in an epoch (from 0) with a share of the whole training done."""
        if self.is_skin:
            return self.learning_rate * float(_STEP_FACTOR ** (epoch // _STEP_EPOCHS))
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimiser."""
        if self.is_skin:
            return torch.optim.Adam(parameters, lr=self.learning_rate)
        return torch.optim.SGD(
            parameters, lr=self.learning_rate, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY
        )

    def transform(self, size: int) -> Transform:
        """Augmentation to images of one size."""
        steps = [transforms.RandomResizedCrop(size)]
        if self.is_skin:  # a larger crop, trimmed after the rotation
            larger = round(_SKIN_MARGIN * size)
            steps = [transforms.RandomResizedCrop(larger, scale=(0.8, 1.0))]
            steps.append(transforms.RandomRotation(15))
        steps += [transforms.RandomHorizontalFlip(), transforms.CenterCrop(size)]
        augment: Transform = transforms.Compose([*steps, transforms.PILToTensor()])
        return augment


RECIPES = {
    # The training script of the dataset's authors, with the paper's network and 50 epochs: the
    # ImageNet weights are frozen (batch statistics adapt), and two new layers are trained with
    # Adam on images drawn equally often from each class. Unlike that script, the last epoch is
    # taken, and not the one that does best on held-out images, because those calibrate and test.
    "fitzpatrick17k": Recipe(is_skin=True, epochs=50, learning_rate=1e-3),
    # The paper says only that a ResNet-152 starts from ImageNet and is fine-tuned.
    "places365": Recipe(is_skin=False, epochs=10, learning_rate=0.01),
}
"""How the two networks of the paper that are not public are trained, by dataset."""


def train_dataset(
    name: str,
    images: Path,
    start: Path,
    folder: Path,
    *,
    options: WorkOptions | None = None,
    progress: Progress = _show_nothing,
    **changes: Any,
) -> tuple[Path, list[dict[str, Any]]]:
    """Fine-tune the paper's network for a dataset, from weights of ImageNet.

    An earlier run in the folder is continued. `changes` are fields of the `Recipe`. Returns the
    path of the final weights, and images, loss and accuracy of each epoch.
    """
    from safetensors.torch import save

    options = options or WorkOptions()
    if name not in RECIPES:
        raise InputError(f"dataset must be one of {', '.join(RECIPES)}; got {name!r}.")
    recipe = replace(RECIPES[name], **changes)
    dataset = load_dataset(name, images, lists=options.lists, seed=options.seed)
    architecture = ARCHITECTURES[name]
    weights = read_weights(start, architecture.start)
    folder.mkdir(parents=True, exist_ok=True)
    # The generators of the calling program go on as if nothing had been drawn.
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        network = architecture.build(len(dataset.classes))
        load_weights(network, weights, without_head=True)
        transform = recipe.transform(options.image_size)
        pictures = Images(TRAIN, dataset.parts[TRAIN], transform, progress)
        history = _Training(pictures, network, recipe, folder, options).run()
    facts = {
        "dataset": dataset.name,
        "classes": dataset.classes,
        "seed": dataset.seed,
        "training_seed": options.seed,
        "recipe": asdict(recipe),
    }
    state = {name: value.cpu().contiguous() for name, value in network.body.state_dict().items()}
    with atomic_path(folder / WEIGHTS) as temporary:
        temporary.write_bytes(save(state, {"trustsets": json.dumps(facts)}))
    return folder / WEIGHTS, history


@final
class _Training:
    """One training: network, optimiser, and the epochs so far."""

    def __init__(
        self, images: Images, network: Network, recipe: Recipe, folder: Path, options: WorkOptions
    ) -> None:
        self._images, self._network, self._recipe = images, network, recipe
        self._listing = listing = images.listing
        self._options, self._device = options, pick_device(options.device)
        self._steps_per_epoch = -(-len(listing) // options.batch_size)
        self._checkpoint = folder / CHECKPOINT
        self._unreadable = UnreadableImages(folder, options.max_unreadable)
        start = _arrays(network.body.state_dict())
        drawn = [options.seed, options.image_size, options.batch_size, listing.digest()]
        self._setting = digest([asdict(recipe), *drawn, [*start], digest(*start.values())])
        network.move(self._device)
        for name, parameter in network.body.named_parameters():
            parameter.requires_grad_(not recipe.is_skin or name.startswith(HEAD))
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._optimizer = recipe.make_optimizer(trained)
        self._history: list[dict[str, Any]] = []

    def run(self) -> list[dict[str, Any]]:
        self._unreadable.add_missing(TRAIN, self._listing)
        self._resume()
        for epoch in range(len(self._history), self._recipe.epochs):
            self._history.append(self._run_epoch(epoch))
            self._save()
        self._unreadable.write()
        return self._history

    def _run_epoch(self, epoch: int) -> dict[str, Any]:
        """Images, loss and accuracy of an epoch, as augmented and with dropout."""
        n, total, right = 0, 0.0, 0
        step = epoch * self._steps_per_epoch
        self._network.train()
        keys = _epoch_batches(self._listing, self._recipe, self._options, epoch)
        title = f"Epoch {epoch + 1} of {self._recipe.epochs}"
        for images, rows in self._images.batches(keys, title, 0, self._options, self._unreadable):
            if len(rows):
                labels = torch.from_numpy(self._listing.labels)[rows]
                loss, correct = self._make_step(images, labels, epoch, step)
                n, total, right = n + len(rows), total + loss * len(rows), right + correct
            step += 1
        return {"images": n, "loss": total / max(n, 1), "accuracy": right / max(n, 1)}

    def _make_step(
        self, images: Tensor, labels: Tensor, epoch: int, step: int
    ) -> tuple[float, int]:
        """One step of the optimiser; gives the loss, and how many images are right."""
        steps = self._recipe.epochs * self._steps_per_epoch
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.rate(epoch, step / steps)
        torch.manual_seed(_draw(self._options.seed, _DROPOUT, step))
        inputs = images.to(self._device, non_blocking=True)
        targets = labels.to(self._device, non_blocking=True)
        half = self._device.type == "cuda" and torch.cuda.is_bf16_supported()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=half):
            logits = self._network(inputs)
        loss = nn.functional.cross_entropy(logits.float(), targets)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        value = float(loss.detach())
        if not np.isfinite(value):
            raise TrustSetsError(
                f"the training diverged in epoch {epoch + 1} (loss {value}); lower the learning "
                f"rate, now {self._recipe.learning_rate}, and use another folder."
            )
        return value, int((logits.argmax(1) == targets).sum())

    def _save(self) -> None:
        moments = self._optimizer.state_dict()["state"]
        state = {
            "setting": self._setting,
            "history": self._history,
            "network": _arrays(self._network.body.state_dict()),
            "optimizer": {str(number): _arrays(values) for number, values in moments.items()},
        }
        write(self._checkpoint, state)

    def _resume(self) -> None:
        if not self._checkpoint.exists():
            return
        state = read(self._checkpoint)
        if not isinstance(state, dict) or state.get("setting") != self._setting:
            raise InputError(
                f"{self._checkpoint} is of a training with other images, start weights, seed or "
                "options; use the same, or another folder."
            )
        self._history = state["history"]
        # Network and optimiser know which of their tensors belong on the device.
        self._network.body.load_state_dict(_tensors(state["network"]))
        moments = {int(number): _tensors(values) for number, values in state["optimizer"].items()}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})


# Purposes of random draws: each gets numbers of its own.
_ORDER, _AUGMENT, _DROPOUT = 1, 2, 3


def _draw(seed: int, purpose: int, *position: int) -> int:
    """Give a seed that depends on its arguments alone."""
    sequence = np.random.SeedSequence([seed, purpose, *position])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def _epoch_batches(
    listing: Listing, recipe: Recipe, options: WorkOptions, epoch: int
) -> Iterator[list[tuple[int, int]]]:
    """Rows of each step of an epoch, each with the seed of its augmentation."""
    seed, size = options.seed, options.batch_size
    rng = np.random.default_rng(_draw(seed, _ORDER, epoch))
    rows = _balanced_rows(listing.labels, rng) if recipe.is_skin else rng.permutation(len(listing))
    seeds = np.random.default_rng(_draw(seed, _AUGMENT, epoch)).integers(2**62, size=len(rows))
    for start in range(0, len(rows), size):
        step = slice(start, start + size)
        yield list(zip(rows[step].tolist(), seeds[step].tolist(), strict=True))


def _balanced_rows(labels: Ints, rng: np.random.Generator) -> Ints:
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


# --- extraction

Shard = dict[str, Array]
"""Columns of some images: logits (but not of training images), features, labels, rows, predicted
classes."""
SHARD_ROWS = 16_384
"""Images in a shard, rounded up to whole batches; a kill loses at most so many."""
_SMALL_COLUMNS = ("rows", "labels", "predicted")


def extract_dataset(
    name: str,
    images: Path,
    weights: Path,
    folder: Path,
    *,
    options: WorkOptions | None = None,
    resize: int | None = None,
    progress: Progress = _show_nothing,
) -> list[dict[str, Any]]:
    """Run the paper's network over one of its datasets; an earlier run in `folder` is continued.

    Returns for each part the number of images, how many are unreadable and were run now, seconds
    and accuracy.
    """
    options = options or WorkOptions()
    device = pick_device(options.device)
    dataset = load_dataset(name, images, lists=options.lists, seed=options.seed)
    architecture = ARCHITECTURES[name]
    checkpoint = read_weights(weights, architecture.weights)
    _check_origin(checkpoint, dataset)
    network = architecture.build(len(dataset.classes))
    load_weights(network, checkpoint)
    network.eval()
    setting = {
        "model": architecture.name,
        "weights_sha256": digest(*_arrays(network.body.state_dict()).values()),
        "device": device.type,
        "batch_size": options.batch_size,
        "resize": resize or round(architecture.resize * options.image_size / FULL_SIZE),
        "size": options.image_size,
        "listing_sha256": {part: listing.digest() for part, listing in dataset.parts.items()},
    }
    network.move(device)
    folder.mkdir(parents=True, exist_ok=True)
    description = Description(dataset.name, dataset.classes, dataset.seed, setting)
    _begin(folder, description)
    unreadable = UnreadableImages(folder, options.max_unreadable)
    for part, listing in dataset.parts.items():
        unreadable.add_missing(part, listing)
    steps = [transforms.Resize(setting["resize"]), transforms.CenterCrop(options.image_size)]
    transform = transforms.Compose([*steps, transforms.PILToTensor()])
    extraction = _Extraction(network, device, folder, options, unreadable)
    summaries = []
    for part, listing in dataset.parts.items():
        (folder / part).mkdir(exist_ok=True)
        listing.write(folder / part / SAMPLES)
        summary, columns = extraction.run(Images(part, listing, transform, progress))
        summaries.append(summary)
        if part != TRAIN:
            check_class_order(dataset, columns["labels"], columns["predicted"])
    replace(description, rows={item["part"]: item["images"] for item in summaries}).write(folder)
    accuracy, published = summaries[-1]["accuracy"], architecture.accuracy
    if published is not None and abs(accuracy - published) > _ACCURACY_SLACK:
        warnings.warn(
            f"the network is right for {accuracy:.1%} of the held-out images of {name}; "
            f"{published:.1%} is published for its weights. Check the weights, the order of the "
            "classes, and the preparation of the images (--resize).",
            TrustSetsWarning,
            stacklevel=2,
        )
    return summaries


def _begin(folder: Path, description: Description) -> None:
    """Refuse a folder of another run, and mark a new one as unfinished."""
    if not is_extracted(folder):
        description.write(folder)
        return
    before, now = (
        item.setting | {"dataset": item.dataset, "seed": item.seed}
        for item in (Description.read(folder), description)
    )
    other = [
        f"{name} was {before.get(name)!r}, is {value!r}"
        for name, value in now.items()
        if before.get(name) != value
    ]
    if other:
        raise InputError(
            f"out={folder} belongs to another extraction: {'; '.join(other)}. Choose another "
            "folder, or empty this one."
        )


@final
@dataclass(frozen=True)
class _Extraction:
    """A network that is ready on its device, and where its outputs go."""

    network: Network
    device: torch.device
    folder: Path
    options: WorkOptions
    unreadable: UnreadableImages

    def run(self, images: Images) -> tuple[dict[str, Any], Shard]:
        """Make the shards that are not there; gives rows, labels and predicted classes, too."""
        start, size = time.perf_counter(), self.options.batch_size
        n, shard_rows = len(images), -(-SHARD_ROWS // size) * size
        paths = {
            first: self.folder / images.part / f"shard-{first:09d}.safetensors"
            for first in range(0, n, shard_rows)
        }
        # Of shards that are whole only the small columns stay in memory.
        columns = {first: _small(read_kept(path)) for first, path in paths.items()}
        there = sum(len(shard["rows"]) for shard in columns.values() if shard is not None)
        missing = [first for first, shard in columns.items() if shard is None]
        batches = [
            range(row, min(row + size, n))
            for first in missing
            for row in range(first, min(first + shard_rows, n), size)
        ]
        waiting: list[Shard] = []
        for rows, outputs in zip(batches, self._outputs(images, batches, there), strict=True):
            waiting.append(outputs)
            first = rows.start // shard_rows * shard_rows
            if rows.stop in (first + shard_rows, n):
                shard = _join(waiting)
                write(paths[first], shard)
                columns[first], waiting = _small(shard), []
        small = _join([shard for shard in columns.values() if shard is not None])
        return self._summary(images, small, there, time.perf_counter() - start), small

    def _outputs(self, images: Images, batches: Sequence[range], done: int) -> Iterator[Shard]:
        keys = [[(row, None) for row in rows] for rows in batches]
        for inputs, readable in images.batches(
            keys, images.part, done, self.options, self.unreadable
        ):
            rows = readable.numpy()
            shard = {"rows": rows, "labels": images.listing.labels[rows]}
            if rows.size:
                shard |= self._forward(inputs, with_logits=images.part != TRAIN)
            yield shard

    def _forward(self, inputs: Tensor, *, with_logits: bool) -> Shard:
        half = self.device.type == "cuda"
        with torch.inference_mode(), torch.autocast("cuda", torch.float16, enabled=half):
            logits = self.network(inputs.to(self.device, non_blocking=True)).float()
            features, predicted = self.network.features, logits.argmax(dim=1)
        assert features is not None  # the hook ran in the forward pass
        tensors = {"features": features, "predicted": predicted}
        if with_logits:
            tensors["logits"] = logits
        return {name: value.cpu().numpy() for name, value in tensors.items()}

    def _summary(
        self, images: Images, columns: Shard, there: int, seconds: float
    ) -> dict[str, Any]:
        rows, part = columns["rows"], images.part
        left_out = np.setdiff1d(np.arange(len(images)), rows).tolist()
        for row in left_out:
            why = images.open(row)
            reason = why if isinstance(why, str) else "could not be read when it was its turn"
            self.unreadable.add(part, images.listing, [(row, reason)])
        self.unreadable.write()
        if rows.size == 0:
            raise InputError(f"no image of part {part!r} of the dataset could be read.")
        return {
            "part": part,
            "images": len(rows),
            "unreadable": len(left_out),
            "run": len(rows) - there,
            "seconds": seconds,
            "accuracy": float(np.mean(columns["predicted"] == columns["labels"])),
        }


def _join(shards: Sequence[Shard]) -> Shard:
    """Columns of consecutive shards, end to end; those without images have few columns."""
    filled = [shard for shard in shards if len(shard["rows"])] or shards[:1]
    return {name: np.concatenate([shard[name] for shard in filled]) for name in filled[0]}


def _small(shard: Shard | None) -> Shard | None:
    if shard is None:
        return None
    return {name: shard[name] for name in _SMALL_COLUMNS if name in shard}


def _check_origin(weights: Weights, dataset: ImageSet) -> None:
    """Check that weights of our own belong to these classes and to this split."""
    facts = weights.facts
    if tuple(facts.get("classes", dataset.classes)) != dataset.classes:
        raise InputError(
            f"weights={weights.path} were trained on other classes than {dataset.name} has here."
        )
    if facts.get("seed", dataset.seed) != dataset.seed:
        raise InputError(
            f"weights={weights.path} were trained with --seed {facts['seed']}, so images of the "
            f"training split of seed {dataset.seed} are others; use the same seed."
        )
