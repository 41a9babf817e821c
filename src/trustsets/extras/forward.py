"""Running a PyTorch classifier on batches: device, precision, hooks. Needs torch.

`evaluating` moves a model to its device, `Tap` catches the features, `Runner` runs batches and
`run_ahead` keeps a GPU busy while outputs are fetched and written.
"""

import hashlib
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from trustsets._common.blocks import ahead
from trustsets.errors import InputError
from trustsets.extras.batches import Batch, convert, token_mask
from trustsets.extras.pooling import TOKEN_POLICIES, Features, check_policy, one_vector
from trustsets.extras.shards import BatchStore, OutputBatches

# How many names an error about an unknown layer proposes.
PROPOSALS = 5
# Batches that may wait to be written; more than one shard of the usual size.
WRITE_AHEAD = 128
# Name under which Hugging Face models give the features of all tokens.
TOKENS = "last_hidden_state"


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
        n = batch.size
        moved = batch._replace(inputs=convert(batch.inputs, self._move))
        unnamed, named = moved.arguments
        half = torch.autocast("cuda", dtype=torch.float16) if self._half else nullcontext()
        with torch.inference_mode(), half:
            self._tap.prepare(lambda: self._model(*unnamed, **named))
            output = self._model(*unnamed, **named)
            logits = _logits(output, n)
            features = self._tap.features(moved, output)
            predicted = logits.argmax(dim=1) if self._keep_predicted else None
        kept = logits if self._keep_logits else None
        narrow = features if features.dtype == torch.float16 else features.float()
        return lambda: OutputBatches(
            logits=None if kept is None else kept.float().cpu().numpy(),
            features=narrow.cpu().numpy(),
            labels=batch.labels,
            sizes=np.array([n], dtype=np.int64),
            rows=batch.rows,
            predicted=None if predicted is None else predicted.cpu().numpy(),
            input_digests=None if batch.digest is None else batch.digest[None],
        )

    def _move(self, value: Tensor) -> Tensor:
        return value.to(self._place, non_blocking=True)


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
    found = _field(output, "logits")
    if isinstance(output, tuple) and found is None and output:
        found = output[0]
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != n:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"the model must return logits of shape (n, K), here ({n}, K); got {got}. "
            "Wrap it in a module that returns them."
        )
    return found


def _field(output: Any, name: str) -> Any:
    """One of the named outputs; None where there is none, a lone tensor counts as logits."""
    if isinstance(output, Tensor):
        return output if name == "logits" else None
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


@final
class Tap:
    """Hooks that catch the features of a forward pass; all are removed on exit.

    `chosen` is a module, whose output is caught, or the name of an output of the model or of one of
    its modules. Without it, the place depends on `features`, and is looked for during one
    forward pass of the first batch. A function gets the output of the model; policies about
    tokens use the last ``last_hidden_state`` that a module returns. Otherwise it is the input of
    the last linear layer in the order of *execution*.
    """

    def __init__(
        self, model: nn.Module, chosen: nn.Module | str | None, features: Features = None
    ) -> None:
        check_policy(features)
        if features == "pre_logits" and chosen is not None:
            raise InputError(
                'features="pre_logits" are the input of the last linear layer; leave layer= out.'
            )
        self._model, self._chosen, self._features = model, chosen, features
        self._handles: list[Any] = []
        self._caught: Any = None
        self._ready = False

    def __enter__(self) -> "Tap":
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def prepare(self, forward: Callable[[], object]) -> None:
        """Place the hook, once; `forward` runs the model where the place is unknown."""
        if self._ready:
            return
        if isinstance(self._chosen, nn.Module):
            self._handles.append(self._chosen.register_forward_hook(self._catch_output))
        elif self._chosen is not None or not callable(self._features):
            self._search(forward)
        self._ready = True

    def features(self, batch: Batch, output: object = None) -> Tensor:
        """Features of the last forward pass, which gave `output`, one row per sample."""
        caught, self._caught = self._caught, None
        n, policy = batch.size, self._features
        if self._chosen is None and callable(policy):
            caught = output
        elif not isinstance(caught, Tensor) and not callable(policy):
            raise InputError(
                f"the feature layer must give one tensor with {n} rows when the model runs; got "
                f"{_described(caught)}. Choose another layer=."
            )
        mask = token_mask(policy, _named(self._model, batch), batch, caught)
        found = one_vector(caught, policy, n, mask)
        if not isinstance(found, Tensor):
            raise InputError(f"features= must return a tensor; it returned {_described(found)}.")
        return found

    def _search(self, forward: Callable[[], object]) -> None:
        """Hook the named output if a module has it, and otherwise the last linear layer."""
        name = self._chosen if isinstance(self._chosen, str) else None
        if name is None and self._features in (*TOKEN_POLICIES, "pool"):
            name = TOKENS
        linear: list[nn.Module] = []
        named: list[nn.Module] = []
        outputs: set[str] = set()

        def note(module: nn.Module, _: Any, output: Any) -> None:
            outputs.update(output if isinstance(output, Mapping) else ())
            if name is not None and _field(output, name) is not None:
                named.append(module)

        for module in self._model.modules():
            self._handles.append(module.register_forward_hook(note))
            if isinstance(module, nn.Linear):
                hook = module.register_forward_pre_hook(lambda own, _: linear.append(own))
                self._handles.append(hook)
        forward()
        self._release()
        if named and name is not None:
            self._handles.append(named[-1].register_forward_hook(self._catch_field(name)))
        elif self._chosen is not None:
            raise _unknown_layer(self._model, str(self._chosen), outputs)
        else:
            hook = self._last(linear).register_forward_pre_hook(self._catch_input, with_kwargs=True)
            self._handles.append(hook)

    def _last(self, executed: list[nn.Module]) -> nn.Module:
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
        if isinstance(output, Mapping) and not callable(self._features):
            output = output.get(TOKENS, output)
        self._caught = output.clone() if isinstance(output, Tensor) else output

    def _catch_input(self, module: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        self._caught = (inputs[0] if inputs else named["input"]).clone()

    def _catch_field(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def catch(module: nn.Module, inputs: Any, output: Any) -> None:
            self._catch_output(module, inputs, _field(output, name))

        return catch


def _described(value: object) -> str:
    if value is None:
        return "nothing: the model did not execute it"
    return type(value).__name__


def _named(model: nn.Module, batch: Batch) -> Mapping[str, Any]:
    """Inputs of a batch by the names that the model gives them."""
    unnamed, named = batch.arguments
    if len(unnamed) < 2:
        return named
    return inspect.signature(model.forward).bind(*unnamed).arguments


def find_layer(
    model: nn.Module, inner: nn.Module, layer: str | nn.Module | None
) -> nn.Module | str | None:
    """The chosen module, by name or by itself; another name may be that of an output."""
    names: dict[str, nn.Module] = dict([*model.named_modules(), *inner.named_modules()])
    if isinstance(layer, nn.Module):
        if not any(layer is module for module in names.values()):
            raise InputError(
                f"layer must be a module of the model; this {type(layer).__name__} is not one of "
                "them. Pass a module from model.modules(), or its name."
            )
        return layer
    if layer is not None and not isinstance(layer, str):
        raise InputError(f"layer must be a name or a module; got {type(layer).__name__}.")
    return names.get(layer, layer) if layer else layer


def _unknown_layer(model: nn.Module, layer: str, outputs: set[str]) -> InputError:
    names = [name for name, _ in model.named_modules()]
    near = get_close_matches(layer, [*names, *outputs], PROPOSALS, cutoff=0.4) or names[-PROPOSALS:]
    also = f" Its outputs are {sorted(outputs)}." if outputs else ""
    return InputError(
        f"layer={layer!r} is no module of the model, and no name of an output; near names are "
        f"{near}. See dict(model.named_modules()) for all.{also}"
    )


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
    model: nn.Module,
    chosen: nn.Module | str | None,
    place: torch.device,
    half: bool,
    features: Features = None,
) -> dict[str, Any]:
    """What the outputs depend on besides the data; a function for the features by its name."""
    names = {module: name for name, module in model.named_modules()}
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(name.encode())
            add_tensor(digest, tensor)
    named = chosen if isinstance(chosen, str | None) else names.get(chosen, "the model")
    policy = getattr(features, "__qualname__", features)
    return ({} if policy is None else {"features": str(policy)}) | {
        # Without its module: the same class run as a script lives in __main__.
        "model": type(model).__qualname__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights_sha256": digest.hexdigest(),
        "layer": named,
        "device": place.type,
        "mixed_precision": half,
    }
