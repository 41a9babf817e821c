"""The paper's five networks, and reading their weights from local files.

A checkpoint may be a plain state dictionary, one under a key such as ``state_dict``, or in two
parts (feature model and classifier), each perhaps saved from a `torch.nn.DataParallel`. No code
in a file is run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from trustsets.errors import InputError
from trustsets.paper.images.folders import SHOWN
from trustsets.paper.images.vision import models

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Network",
    "Weights",
    "load_weights",
    "pick_device",
    "read_weights",
]

# Of the red, green and blue of ImageNet's training images: what all five networks expect.
CHANNEL_MEANS = (0.485, 0.456, 0.406)
CHANNEL_DEVIATIONS = (0.229, 0.224, 0.225)
FULL_SIZE = 224
FEATURE_LAYER = "body.avgpool"
HEAD = "fc."
HIDDEN_UNITS = 256
DROPOUT = 0.4

# Keys under which a checkpoint may keep its state dictionary, and the two parts of one.
_WRAPPERS = ("state_dict_best", "state_dict", "model_state_dict", "model")
_TWO_PARTS = (("feat_model", "classifier"), ("state_dict_model", "state_dict_classifier"))
_PARALLEL = "module."
_COUNTER = "num_batches_tracked"


@final
@dataclass(frozen=True)
class Architecture:
    """One network of the paper.

    Attributes
    ----------
    name : str
        Name in torchvision.
    weights : str
        Where the weights come from, in a sentence.
    start : str
        Where the weights come from that training starts with; empty where none is needed.
    resize : int
        Length of the shorter side before the central crop of 224.
    two_layer_head : bool
        Whether the last linear layer is replaced by two with dropout between.
    """

    name: str
    weights: str
    start: str = ""
    resize: int = 256
    two_layer_head: bool = False

    def build(self, n_classes: int) -> "Network":
        """Make the network with random weights."""
        body = getattr(models, self.name)(weights=None)
        width = body.fc.in_features
        if self.two_layer_head:
            first, last = _SingleLinear(width, HIDDEN_UNITS), _SingleLinear(HIDDEN_UNITS, n_classes)
            body.fc = nn.Sequential(first, nn.ReLU(), nn.Dropout(DROPOUT), last)
        else:
            body.fc = _SingleLinear(width, n_classes)
        return Network(body)


@final
class _SingleLinear(nn.Linear):
    """A linear layer in single precision, whatever the precision around it.

    Half precision would round logits near 16 to multiples of 1/64, which changes probabilities
    by a percent and makes ties of different scores. The layer costs next to nothing.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute logits in float32."""
        with torch.autocast(inputs.device.type, enabled=False):
            return super().forward(inputs.float())


def _torchvision(file: str) -> str:
    where = f"https://download.pytorch.org/models/{file}"
    return f"The public one is {file} (torchvision, IMAGENET1K_V1): {where}"


def _balanced(folder: str, file: str) -> str:
    where = f"https://dl.fbaipublicfiles.com/classifier-balancing/{folder}/models/{file}"
    what = "classifier-balancing, instance-balanced sampling"
    return f"The public one is {file} ({what}): {where}"


_NOT_PUBLIC = "There is no public one: make it with trustsets paper train"
ARCHITECTURES = {
    # The paper follows a pipeline that resizes to the crop itself for this dataset.
    "imagenet": Architecture("resnet50", _torchvision("resnet50-0676ba61.pth"), resize=224),
    "imagenet-lt": Architecture(
        "resnext50_32x4d", _balanced("ImageNet_LT", "resnext50_uniform_e90.pth")
    ),
    "places365": Architecture(
        "resnet152", f"{_NOT_PUBLIC} places365", start=_torchvision("resnet152-394f9c45.pth")
    ),
    "places365-lt": Architecture("resnet152", _balanced("Places_LT", "resnet152_uniform.pth")),
    "fitzpatrick17k": Architecture(
        "resnet18",
        f"{_NOT_PUBLIC} fitzpatrick17k",
        start=_torchvision("resnet18-f37072fd.pth"),
        two_layer_head=True,
    ),
}
"""Networks by the name of the dataset."""


@final
class Network(nn.Module):
    """A torchvision network that takes images of bytes and normalises them where it runs.

    Bytes are a quarter of what floats would be, on the way to a GPU.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        for name, values in (("means", CHANNEL_MEANS), ("deviations", CHANNEL_DEVIATIONS)):
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1), persistent=False)

    def prefer_layout_of(self, place: torch.device) -> None:
        """Lay out the weights as a device likes them: a GPU runs faster with channels last."""
        if place.type == "cuda":
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images (n, 3, height, width) in uint8."""
        scaled = images.float().div(255.0)
        inputs = scaled.sub(self.get_buffer("means")).div(self.get_buffer("deviations"))
        if images.is_cuda:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.body(inputs)
        return logits


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
@dataclass(frozen=True)
class Weights:
    """A checkpoint: tensors by their names in torchvision, and metadata of the file."""

    path: Path
    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    @property
    def n_classes(self) -> int | None:
        """Outputs of the last layer, where there is one."""
        biases = [name for name in self.tensors if name.startswith(HEAD) and name.endswith("bias")]
        return len(self.tensors[max(biases)]) if biases else None


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
    """Put weights into a network; every tensor must have its place, and every place a tensor.

    Parameters
    ----------
    without_head : bool
        Leave the last layers as they are, and take the rest (to start a training).
    """
    own, given = (
        {name: own[name] for name in own if not (without_head and name.startswith(HEAD))}
        for own in (network.body.state_dict(), weights.tensors)
    )
    # Networks saved by early versions of torch have no counters; nothing here reads them.
    missing = [name for name in own if name not in given and not name.endswith(_COUNTER)]
    further = [name for name in given if name not in own]
    shapes = [
        f"{name} is {tuple(given[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    problems = [
        f"{len(names)} {what}, such as {', '.join(names[:SHOWN])}"
        for what, names in [("missing", missing), ("without a place", further), ("misfits", shapes)]
        if names
    ]
    if problems:
        linear = [module for module in network.body.modules() if isinstance(module, nn.Linear)]
        raise InputError(
            f"weights={weights.path} do not fit {type(network.body).__name__} with "
            f"{linear[-1].out_features} classes: {'; '.join(problems)}. Give the weights of this "
            "network."
        )
    network.body.load_state_dict(given, strict=False)


def _read_safetensors(path: Path) -> tuple[Any, dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("trustsets", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, facts
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"weights={path}: not a readable safetensors file ({error}).") from error


def _read_pickled(path: Path) -> Any:
    """Read a file of `torch.save`, letting it build tensors and plain numbers only.

    Accuracies that were saved along are often NumPy scalars, which are as harmless.
    """
    scalar = np.float64(0.0).__reduce__()[0]
    numpy_names = [
        (scalar, "numpy.core.multiarray.scalar"),
        (scalar, "numpy._core.multiarray.scalar"),
        np.dtype,
        type(np.dtype(np.float64)),
        type(np.dtype(np.float32)),
        type(np.dtype(np.int64)),
    ]
    try:
        with torch.serialization.safe_globals(numpy_names):  # type: ignore[arg-type]
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"weights={path}: not a checkpoint of tensors that can be read without running code "
            f"({str(error).splitlines()[0][:200]}). Save its state dictionary alone, or as "
            "safetensors."
        ) from error


def _flatten(path: Path, content: Any) -> dict[str, Tensor]:
    """One state dictionary with torchvision's names out of any of the known forms."""
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping):
        raise InputError(f"weights={path}: holds a {type(content).__name__}, not named tensors.")
    for features, classifier in _TWO_PARTS:
        if features in content and classifier in content:
            filled = [key for key, part in content.items() if isinstance(part, Mapping) and part]
            further = [key for key in filled if key not in (features, classifier)]
            if further:
                raise InputError(
                    f"weights={path}: has the parts {features} and {classifier}, and further ones "
                    f"({further}) that this network has no place for; leaving them out would "
                    "change what it computes."
                )
            head = _plain_names(path, content[classifier])
            named = {name if name.startswith(HEAD) else HEAD + name: head[name] for name in head}
            return _plain_names(path, content[features]) | named
    return _plain_names(path, content)


def _plain_names(path: Path, state: Mapping[str, Any]) -> dict[str, Tensor]:
    others = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if others or not state:
        raise InputError(
            f"weights={path}: not a state dictionary in a known form; besides tensors it has "
            f"{others[:SHOWN]}. Known are a plain one, one under {', '.join(_WRAPPERS)}, and the "
            f"two parts {_TWO_PARTS[0]} or {_TWO_PARTS[1]}."
        )
    return {str(name).removeprefix(_PARALLEL): value for name, value in state.items()}
