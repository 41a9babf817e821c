"""Running a PyTorch classifier on batches: device, precision, hooks. Needs torch.

`evaluating` moves a model to its device, `Tap` catches the features, `Runner` runs batches, and
`run_ahead` keeps a GPU busy while outputs are fetched and written.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trustsets._common.arrays import Array
from trustsets._common.blocks import ahead
from trustsets.errors import InputError
from trustsets.extras.shards import BatchStore, OutputBatches

# How many names an error about an unknown layer proposes.
PROPOSALS = 5
# Batches that may wait to be written; more than one shard of the usual size.
WRITE_AHEAD = 128


class Batch(NamedTuple):
    """Inputs of n samples with their labels and their numbers in some table, where known.

    `digest` is that of the inputs, where a later run is to recognise them.
    """

    inputs: Tensor
    labels: Array | None
    rows: NDArray[np.int64] | None = None
    digest: NDArray[np.uint8] | None = None


@final
class Runner:
    """Runs a model on batches and checks what comes out.

    `tap` catches the features, `place` is the device, and `half` says whether to run in half
    precision. It keeps the logits, and the column of the largest, as asked.
    """

    def __init__(
        self,
        model: nn.Module,
        tap: "Tap",
        place: torch.device,
        half: bool,
        *,
        keep_logits: bool = True,
        keep_predicted: bool = False,
    ) -> None:
        self._model, self._tap = model, tap
        self._place, self._half = place, half
        self._keep_logits, self._keep_predicted = keep_logits, keep_predicted

    def run(self, batch: Batch) -> OutputBatches:
        """Outputs of one batch."""
        return self.launch(batch)()

    def launch(self, batch: Batch) -> Callable[[], OutputBatches]:
        """Start one batch; the function returned waits for its outputs and fetches them.

        On a GPU this returns before the result is there.
        """
        n = len(batch.inputs)
        inputs = batch.inputs.to(self._place, non_blocking=True)
        half = torch.autocast("cuda", dtype=torch.float16) if self._half else nullcontext()
        with torch.inference_mode(), half:
            self._tap.prepare(lambda: self._model(inputs))
            logits = _logits(self._model(inputs), n)
            features = self._tap.features(n)
            predicted = logits.argmax(dim=1) if self._keep_predicted else None
        kept = logits if self._keep_logits else None
        narrow = features if features.dtype == torch.float16 else features.float()
        return lambda: OutputBatches(
            logits=None if kept is None else kept.float().cpu().numpy(),
            features=narrow.cpu().numpy(),
            labels=batch.labels,
            sizes=np.array([len(batch.inputs)], dtype=np.int64),
            rows=batch.rows,
            predicted=None if predicted is None else predicted.cpu().numpy(),
            input_digests=None if batch.digest is None else batch.digest[None],
        )


def run_ahead(runner: Runner, batches: Iterable[Batch], store: BatchStore) -> None:
    """Run batches into a store, the next one before the last is fetched.

    Another thread writes, because checksums and disks are slow. At most `WRITE_AHEAD` batches of
    outputs wait for it.
    """
    writes: deque[Future[None]] = deque()
    with ThreadPoolExecutor(max_workers=1) as writer:
        for fetch in ahead(map(runner.launch, batches), 1):
            writes.append(writer.submit(store.add, fetch()))
            if len(writes) > WRITE_AHEAD or writes[0].done():
                writes.popleft().result()
    for each in writes:
        each.result()


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
class Tap:
    """Hooks that catch the features of a forward pass; all are removed on exit.

    Without a chosen layer, the last linear layer in the order of *execution* is looked for
    during one forward pass of the first batch, and its input is caught from then on.
    """

    def __init__(self, model: nn.Module, chosen: nn.Module | None) -> None:
        self._model, self._chosen = model, chosen
        self._handles: list[Any] = []
        self._caught: Any = None
        self._ready = False

    def __enter__(self) -> "Tap":
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


def find_layer(model: nn.Module, inner: nn.Module, layer: str | nn.Module) -> nn.Module:
    """The chosen module, by name or by itself."""
    names: dict[str, nn.Module] = dict([*model.named_modules(), *inner.named_modules()])
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
def evaluating(model: nn.Module, device: str | torch.device | None) -> Iterator[torch.device]:
    """Put a model in evaluation mode on a device, and restore both at the end."""
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


def use_half(mixed_precision: bool | str, place: torch.device) -> bool:
    """Whether to run in half precision: ``"auto"`` does so on a GPU."""
    if mixed_precision not in (True, False, "auto"):
        raise InputError(f'mixed_precision must be True, False or "auto"; got {mixed_precision!r}.')
    if mixed_precision is True and place.type != "cuda":
        raise InputError(
            f'mixed_precision=True needs a GPU, and the model runs on {place}; use "auto".'
        )
    return mixed_precision is not False and place.type == "cuda"


def add_tensor(digest: Any, tensor: Tensor) -> None:
    """Add type, shape and content of a tensor to a digest."""
    digest.update(f" {tensor.dtype} {tuple(tensor.shape)}".encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    digest.update(flat.view(torch.uint8).numpy().data)


def model_setting(
    model: nn.Module, chosen: nn.Module | None, place: torch.device, half: bool
) -> dict[str, Any]:
    """What the outputs depend on besides the data."""
    names = {module: name for name, module in model.named_modules()}
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(name.encode())
            add_tensor(digest, tensor)
    return {
        # Without its module: the same class run as a script lives in __main__.
        "model": type(model).__qualname__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights_sha256": digest.hexdigest(),
        "layer": None if chosen is None else names.get(chosen, "the model"),
        "device": place.type,
        "mixed_precision": half,
    }
