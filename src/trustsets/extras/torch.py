"""Outputs of a PyTorch classifier. The only file that needs the extra ``trustsets[torch]``."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from trustsets.arrays import Array, to_numpy
from trustsets.errors import InputError
from trustsets.extras.shards import BatchStore, OutputBatches
from trustsets.outputs import ModelOutputs

__all__ = ["extract_outputs"]

# Keys under which a batch that is a mapping may hold its inputs.
INPUT_KEYS = ("inputs", "pixel_values")
# How many names an error about an unknown layer proposes.
PROPOSALS = 5


def extract_outputs(
    model: nn.Module,
    loader: Iterable[Any],
    layer: str | nn.Module | None = None,
    *,
    device: str | torch.device | None = None,
    mixed_precision: bool | Literal["auto"] = "auto",
    classes: Any = None,
    shards: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> ModelOutputs:
    """Run a classifier over a loader and keep its logits, features and labels.

    The model runs in evaluation mode without gradients. Afterwards, also after an error, it
    is as before: training mode of every module, device, no hooks.

    Parameters
    ----------
    model : torch.nn.Module
        Maps a batch of n inputs to logits of shape (n, K), or to a mapping with such
        ``"logits"``. A `torch.nn.DataParallel` is run on its first device.
    loader : iterable of batches
        A batch is ``(inputs, labels)``, inputs alone, or a mapping with ``"inputs"`` or
        ``"pixel_values"`` and, optionally, ``"labels"``. Inputs are one tensor with a row
        per sample; labels have shape (n,), and come with all batches or with none.
    layer : str or torch.nn.Module, optional
        Module, or its dotted name, whose output (flattened) is the feature of a sample.
        Default: the *input* of the last `torch.nn.Linear` that the model executes.
    device : str or torch.device, optional
        Where to run; by default where the model is.
    mixed_precision : "auto", True or False
        Autocast to half precision: ``"auto"`` does so on a GPU, and there only.
    classes : sequence of length K, optional
        Class names; see `ModelOutputs`.
    shards : path, optional
        Directory for safetensors shards, one for every 16,384 rows or a little more. A run
        that was killed continues there: it reads the shards, goes through their batches
        without running the model, and gives the same arrays bit for bit. For that the
        loader must give the same batches again; their sizes and labels are checked, and so
        are the weights of the model, layer, kind of device and precision.
    progress : bool, optional
        Show a progress bar; by default on a terminal.

    Returns
    -------
    ModelOutputs
        Logits are float32. Features are float16 where the model computes them so (mixed
        precision, or a half-precision model), and float32 otherwise.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> loader = [(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])) for _ in range(2)]
    >>> extract_outputs(model, loader)
    ModelOutputs(n=10, K=3, d=8, labels)
    """
    inner = model.module if isinstance(model, nn.DataParallel) else model
    chosen = None if layer is None else _find_layer(model, inner, layer)
    with _evaluating(inner, device) as place:
        half = _use_half(mixed_precision, place)
        setting = {} if shards is None else _setting(inner, chosen, place, half)
        store = BatchStore(shards, setting)
        with _Tap(inner, chosen) as tap, _progress_bar(progress, loader) as advance:
            _collect(_Runner(inner, tap, place, half), loader, store, advance)
    whole = store.finish()
    return ModelOutputs(
        logits=whole.logits, features=whole.features, labels=whole.labels, classes=classes
    )


class _Batch(NamedTuple):
    inputs: Tensor
    labels: Array | None


def _collect(
    runner: "_Runner", loader: Iterable[Any], store: BatchStore, advance: Callable[[], None]
) -> None:
    """Put every batch into the store, running the model on those it does not have."""
    index = -1
    for index, item in enumerate(loader):
        batch = _read_batch(item)
        if index < store.n_known:
            store.check_known(index, len(batch.inputs), batch.labels)
        else:
            if store.finished:
                store.check_count(index + 1)
            store.add(runner.run(batch))
        advance()
    if index < 0:
        raise InputError("loader is empty; give at least one batch (is the iterator used up?).")
    store.check_count(index + 1)


def _read_batch(item: Any) -> _Batch:
    """Inputs and labels of a batch, in any of the accepted forms."""
    labels = None
    if isinstance(item, Mapping):
        key = next((key for key in INPUT_KEYS if key in item), None)
        if key is None:
            raise InputError(
                f"a batch that is a mapping needs one of {INPUT_KEYS}; got {list(item)}."
            )
        inputs, labels = item[key], item.get("labels")
    elif isinstance(item, tuple | list) and len(item) in (1, 2):
        inputs, labels = (*item, None)[:2]
    else:
        inputs = item
    if not isinstance(inputs, Tensor) or inputs.ndim == 0 or len(inputs) == 0:
        raise InputError(
            "loader must give batches (inputs, labels), inputs alone, or mappings, with inputs a "
            f"tensor of at least one row; got inputs of type {type(inputs).__name__}."
        )
    return _Batch(inputs, None if labels is None else _read_labels(labels, len(inputs)))


def _read_labels(labels: Any, n: int) -> Array:
    array = to_numpy(labels, "labels")
    if array.shape != (n,):
        raise InputError(
            f"labels of a batch must have shape ({n},), one per input; got {array.shape}."
        )
    return array


@final
class _Runner:
    """Runs the model on batches and checks what comes out."""

    def __init__(self, model: nn.Module, tap: "_Tap", place: torch.device, half: bool) -> None:
        self._model, self._tap = model, tap
        self._place, self._half = place, half

    def run(self, batch: _Batch) -> OutputBatches:
        """Outputs of one batch."""
        n = len(batch.inputs)
        inputs = batch.inputs.to(self._place, non_blocking=True)
        with torch.inference_mode(), self._precision():
            self._tap.prepare(lambda: self._model(inputs))
            logits = _logits(self._model(inputs), n)
            features = self._tap.features(n)
        narrow = features if features.dtype == torch.float16 else features.float()
        return OutputBatches(
            logits=logits.float().cpu().numpy(),
            features=narrow.cpu().numpy(),
            labels=batch.labels,
            sizes=np.array([n], dtype=np.int64),
        )

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", dtype=torch.float16) if self._half else nullcontext()


def _logits(output: Any, n: int) -> Tensor:
    if isinstance(output, Mapping):
        output = output.get("logits")
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != n:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(
            f"the model must return logits of shape (n, K), here ({n}, K); got {got}. "
            "Wrap it in a module that returns them."
        )
    return output


@final
class _Tap:
    """Hooks that catch the features of a forward pass; all are removed on exit.

    Without a chosen layer, the last linear layer in the order of *execution* is looked for
    during one forward pass of the first batch, and its input is caught from then on.
    """

    def __init__(self, model: nn.Module, chosen: nn.Module | None) -> None:
        self._model, self._chosen = model, chosen
        self._handles: list[Any] = []
        self._caught: Any = None
        self._ready = False

    def __enter__(self) -> "_Tap":
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def prepare(self, forward: Callable[[], object]) -> None:
        """Place the hook, once; `forward` runs the model where its last layer is unknown."""
        if self._ready:
            return
        if self._chosen is not None:
            self._handles.append(self._chosen.register_forward_hook(self._catch_output))
        else:
            last = self._last_linear(forward)
            self._handles.append(
                last.register_forward_pre_hook(self._catch_input, with_kwargs=True)
            )
        self._ready = True

    def features(self, n: int) -> Tensor:
        """Return what was caught in the last forward pass, one flat row per sample."""
        caught, self._caught = self._caught, None
        if not isinstance(caught, Tensor) or caught.ndim == 0 or len(caught) != n:
            got = tuple(caught.shape) if isinstance(caught, Tensor) else type(caught).__name__
            raise InputError(
                f"the feature layer must give one tensor with {n} rows when the model runs; got "
                f"{'nothing: the model did not execute it' if caught is None else got}. "
                "Choose another layer=."
            )
        return caught.reshape(n, -1)

    def _last_linear(self, forward: Callable[[], object]) -> nn.Module:
        executed: list[nn.Module] = []
        for module in self._model.modules():
            if isinstance(module, nn.Linear):
                hook = module.register_forward_pre_hook(lambda own, _: executed.append(own))
                self._handles.append(hook)
        forward()
        self._release()
        if not executed:
            raise InputError(
                "the model executes no torch.nn.Linear, so there is no default layer; pass layer= "
                "with the name of the module whose output is the feature, such as "
                f"{[name for name, _ in self._model.named_modules()][-1]!r}."
            )
        return executed[-1]

    def _release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # Copies, because a later layer may work in place (ReLU after a chosen layer does).
    def _catch_output(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._caught = output.clone() if isinstance(output, Tensor) else output

    def _catch_input(self, module: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        self._caught = (inputs[0] if inputs else named["input"]).clone()


def _find_layer(model: nn.Module, inner: nn.Module, layer: str | nn.Module) -> nn.Module:
    """The chosen module, by name or by itself."""
    names: dict[str, nn.Module] = {}
    names.update(model.named_modules())
    names.update(inner.named_modules())
    if isinstance(layer, nn.Module):
        if not any(layer is module for module in names.values()):
            raise InputError(
                f"layer must be a module of the model; this {type(layer).__name__} is not one of "
                "them. Pass a module from model.modules(), or its name."
            )
        return layer
    if not isinstance(layer, str):
        raise InputError(f"layer must be a name or a module; got {type(layer).__name__}.")
    if layer not in names or not layer:
        near = get_close_matches(layer, names, PROPOSALS, cutoff=0.4) or list(names)[-PROPOSALS:]
        raise InputError(
            f"layer={layer!r} is no module of the model; near names are {near}. "
            "See dict(model.named_modules()) for all."
        )
    return names[layer]


@contextmanager
def _evaluating(model: nn.Module, device: str | torch.device | None) -> Iterator[torch.device]:
    """Evaluation mode on a device; training modes and device come back at the end."""
    modes = [(module, module.training) for module in model.modules()]
    homes = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    home = next(model.parameters(), torch.empty(0)).device
    place = home if device is None else torch.device(device)
    moved = bool(homes - {place}) and device is not None
    if moved and len(homes) > 1:
        raise InputError(
            f"device={device!r} would gather a model that lies on several devices "
            f"({sorted(map(str, homes))}); leave device out."
        )
    try:
        model.eval()
        if moved:
            model.to(place)
        yield place
    finally:
        if moved:
            model.to(home)
        for module, training in modes:
            module.training = training


def _use_half(mixed_precision: bool | str, place: torch.device) -> bool:
    if mixed_precision not in (True, False, "auto"):
        raise InputError(f'mixed_precision must be True, False or "auto"; got {mixed_precision!r}.')
    if mixed_precision is True and place.type != "cuda":
        raise InputError(
            f'mixed_precision=True needs a GPU, and the model runs on {place}; use "auto".'
        )
    return mixed_precision is not False and place.type == "cuda"


def _setting(
    model: nn.Module, chosen: nn.Module | None, place: torch.device, half: bool
) -> dict[str, Any]:
    """What the outputs depend on besides the data."""
    names = {module: name for name, module in model.named_modules()}
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return {
        # Without its module: the same class run as a script lives in __main__.
        "model": type(model).__qualname__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights_sha256": digest.hexdigest(),
        "layer": None if chosen is None else names.get(chosen, "the model"),
        "device": place.type,
        "mixed_precision": half,
    }


@contextmanager
def _progress_bar(wanted: bool | None, loader: Iterable[Any]) -> Iterator[Callable[[], None]]:
    """Give a function to call after each batch."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    try:
        total = len(loader)  # type: ignore[arg-type]
    except TypeError:  # an iterator, or a loader of a stream
        total = None
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("Model outputs", total=total)
        yield lambda: bar.advance(task)
