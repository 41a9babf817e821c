"""Outputs of a classifier over a loader: logits, features and labels as `ModelOutputs`.

The classifier is a `torch.nn.Module` (models of timm and Hugging Face are) or any function on
batches (an ONNX session is). Torch is needed for modules only.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets._arrays import Array, to_numpy
from trustsets._parameters import check_arguments
from trustsets._progress import progress_bar
from trustsets.errors import InputError, TrustSetsError
from trustsets.outputs import ModelOutputs
from trustsets.storage import StrPath, check_path, locked

__all__ = ["extract_outputs"]

_LABEL_KEYS = ("labels", "label", "targets", "target", "label_ids", "y")
_WIDE = ("logits", "features")
# Outputs of one batch may differ by this share of the largest between runs: a GPU may choose
# another algorithm. Weights that were trained further differ by far more.
_REPEATABLE = 1e-3


def extract_outputs(
    model: Any,
    loader: Iterable[Any],
    *,
    features: Any = None,
    classes: Any = None,
    folder: StrPath | None = None,
    progress: bool | None = None,
) -> ModelOutputs:
    """Run a classifier over a loader and keep its logits, features and labels.

    Parameters
    ----------
    model : torch.nn.Module or function
        A module returns logits of shape (n, K), a mapping or object with ``logits``, or a tuple
        that begins with them. It runs where it is, in evaluation mode without gradients, and is as
        before afterwards. A function of the inputs returns logits or ``(logits, features)``.
    loader : iterable of batches
        A batch is ``(inputs, labels)``, inputs alone, or a mapping with labels under ``"labels"``,
        ``"targets"``, ``"y"`` or the like. A module gets a tuple as ``model(*inputs)`` and a
        mapping as ``model(**inputs)``, without the entries that its ``forward`` does not take.
    features : str, torch.nn.Module, function or False, optional
        Features of a module: the output of a layer, which may be named, or a function of what the
        module returns. Default: the *input* of the classifier head, the last `torch.nn.Linear`
        executed with K outputs. False keeps none.
    classes : sequence of length K, optional
        Class names. Labels that are integers are positions, unless the names are integers too.
    folder : path, optional
        Write ``logits.npy``, ``features.npy`` and ``labels.npy`` there, so that memory holds one
        batch; the command line reads the folder. An interrupted run continues there if batches
        and model are the same: inputs, weights and outputs of the first batch are compared.
    progress : bool, optional
        Show a progress bar; by default on a terminal.

    Returns
    -------
    ModelOutputs
        Features are float16 where the model computes them so. Run under `torch.autocast` for half
        precision on a GPU.

    Examples
    --------
    >>> weights = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    >>> def classify(inputs):
    ...     embedding = np.tanh(inputs)
    ...     return embedding @ weights, embedding
    >>> loader = [(np.ones((4, 2)), [0, 1, 2, 0]), (np.zeros((1, 2)), [2])]
    >>> extract_outputs(classify, loader)
    ModelOutputs(n=5, K=3, d=2, labels)
    """
    if isinstance(loader, str | Mapping) or hasattr(loader, "shape"):
        raise InputError(
            f"loader must give batches; got a single {type(loader).__name__}. For one batch, pass "
            "[(inputs, labels)]."
        )
    identity = ""
    running: AbstractContextManager[Callable[[Any], Any]]
    if _is_module(model):
        model = model.module if hasattr(model, "device_ids") else model  # DataParallel
        layer = _find_layer(model, features)
        running = _running(model, layer)
        identity = "" if folder is None else _identity(model, layer)
    elif not callable(model) or features is not None:
        raise InputError(
            "model must be a torch.nn.Module, or a function without features=, which returns "
            f"logits or (logits, features) itself; got a {type(model).__name__}."
        )
    else:
        running = nullcontext(model)
    _check_arguments(loader, classes, folder, progress)
    total = len(loader) if isinstance(loader, Sized) else None
    lock = nullcontext() if folder is None else locked(Path(folder), f"folder={folder}")
    labels: list[Array | None] = []
    with running as run, lock, progress_bar("Model outputs", total, wanted=progress) as advance:
        store = None if folder is None else _Folder(Path(folder), identity)
        blocks: list[dict[str, Array]] = []
        widths: dict[str, int] = {}
        for number, batch in enumerate(loader):
            inputs, truth = _unpack(batch)
            labels.append(_checked_labels(truth, _count(inputs)))
            if store is None or not store.has(number, inputs, labels[-1]):
                block = _outputs(run, inputs, number)
                widths = widths or {name: values.shape[1] for name, values in block.items()}
                if {name: values.shape[1] for name, values in block.items()} != widths:
                    raise InputError(
                        f"all batches must have logits and features of the same width; the first "
                        f"has {widths}, and batch {number} differs."
                    )
                if store is None:
                    blocks.append(block)
                else:
                    store.add(number, block)
            advance(1)
        columns = _columns(labels, classes)
        if store is not None:
            arrays = store.finish(len(labels), columns)
        else:
            # Blocks are freed as they are joined.
            arrays = {name: np.concatenate([part.pop(name) for part in blocks]) for name in widths}
    return ModelOutputs(**arrays, labels=columns.get("labels"), classes=classes)


def _check_arguments(loader: Any, classes: Any, folder: Any, progress: Any) -> None:
    """Refuse arguments of `extract_outputs` of a wrong kind before the model runs."""
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise InputError(f"loader must give batches; got {type(loader).__name__}.")
    if classes is not None and to_numpy(classes, "classes").ndim != 1:
        raise InputError(f"classes must be a list of names; got {classes!r:.60}.")
    if folder is not None and check_path(folder, "folder").is_file():
        raise InputError(f"folder must be a folder; {folder} is a file.")
    if progress is not None:
        check_arguments(bool, progress=progress)


def _outputs(run: Callable[[Any], Any], inputs: Any, number: int) -> dict[str, Array]:
    """Logits and features of one batch, checked."""
    try:
        result = run(inputs)
    except TrustSetsError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"the model fails on batch {number}, with inputs of {_described(inputs)}: {reason}"
        ) from error
    pair = result if isinstance(result, tuple | list) else (result, None)
    if not 0 < len(pair) <= 2 or pair[0] is None:
        raise InputError(
            f"the function must return logits or (logits, features); got {len(pair)} items."
        )
    block = {  # copies, because the model may write the next batch into the same arrays
        name: np.array(to_numpy(values, name))
        for name, values in zip(_WIDE, pair, strict=False)
        if values is not None
    }
    for name, values in block.items():
        if values.ndim != 2 or len(values) != _count(inputs):
            raise InputError(
                f"{name} of batch {number} must have shape (n, width), here n={_count(inputs)}; "
                f"got {values.shape}. For features of tokens or positions, choose one of them or "
                "average in a function: features=lambda output: ..."
            )
    if block["logits"].dtype != np.float64:
        block["logits"] = block["logits"].astype(np.float32)
    return block


# What loaders give


def _unpack(batch: Any) -> tuple[Any, Any]:
    """Inputs and labels of a batch of a usual form."""
    if isinstance(batch, Mapping):
        rest = dict(batch)
        key = next((key for key in _LABEL_KEYS if key in rest), None)
        return rest, None if key is None else rest.pop(key)
    if not isinstance(batch, tuple | list) or all(isinstance(item, str) for item in batch):
        return batch, None
    if len(batch) > 2:
        raise InputError(
            f"a batch has {len(batch)} items: {_described(batch)}. Say which are inputs and which "
            "are labels: [(batch[:-1], batch[-1]) for batch in loader]."
        )
    return batch[0], batch[1] if len(batch) == 2 else None


def _arrays(inputs: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All arrays of the inputs with their names; a list of texts is one array."""
    if isinstance(inputs, Mapping):
        for key, value in inputs.items():
            yield from _arrays(value, f"{name}{key} ")
    elif isinstance(inputs, tuple | list) and any(hasattr(item, "shape") for item in inputs):
        for number, value in enumerate(inputs):
            yield from _arrays(value, f"{name}{number} ")
    else:
        yield name, inputs


def _described(inputs: Any) -> str:
    return ", ".join(
        f"{name}shape {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        if hasattr(value, "shape")
        else f"{name}{type(value).__name__}"
        for name, value in _arrays(inputs)
    )


def _count(inputs: Any) -> int:
    """Number of samples: rows of the first array."""
    for _, value in _arrays(inputs):
        if (getattr(value, "shape", None) or isinstance(value, tuple | list)) and len(value):
            return len(value)
    raise InputError(
        "a batch must hold an array of inputs with at least one row, one per sample; got "
        f"{_described(inputs) or 'nothing'}. A Dataset of single samples needs a DataLoader."
    )


def _checked_labels(labels: Any, n: int) -> Array | None:
    # A copy, because the loader may write the next batch into the same array.
    array = None if labels is None else np.array(to_numpy(labels, "labels"))
    if array is not None and array.shape != (n,):
        raise InputError(
            f"labels of a batch must have shape ({n},), one per input; got {array.shape}. One-hot "
            "labels need argmax(1), and a Dataset of single samples a DataLoader."
        )
    return array


def _columns(labels: list[Array | None], classes: Any) -> dict[str, Array]:
    """Labels of all batches, positions replaced by class names; and these names."""
    present = [part for part in labels if part is not None]
    if not labels or 0 < len(present) < len(labels):
        raise InputError(
            "loader must give at least one batch, and labels with all or with none; got "
            f"{len(labels)} batches, {len(present)} with labels (is an iterator used up?)."
        )
    columns = {} if classes is None else {"classes": to_numpy(classes, "classes")}
    if not present:
        return columns
    joined = np.concatenate(present)
    names = columns.get("classes", joined[:0])
    if joined.dtype.kind in "iu" and names.dtype.kind not in "iu":
        wrong = joined[(joined < 0) | (joined >= len(names))]
        if wrong.size:
            raise InputError(
                f"labels that are integers must be positions in the {len(names)} classes; got "
                f"{wrong[0]}."
            )
        joined = names[joined]
    return columns | {"labels": joined}


# Modules of torch


def _is_module(value: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _find_layer(model: Any, features: Any) -> Any:
    """The layer that gives the features, a function of the output, None for the head, or False."""
    layers = dict(model.named_modules())
    if features is None or features is False:
        return features
    if isinstance(features, str) and features in layers:
        return layers[features]
    inside = not _is_module(features) or any(features is layer for layer in layers.values())
    if callable(features) and inside:
        return features
    near = get_close_matches(str(features), layers, 5, cutoff=0.4) or list(layers)[-5:]
    raise InputError(
        "features must be a layer of the model or its name, a function of the model's output, or "
        f"False; got {features!r}. Near names are {near}; see dict(model.named_modules()) for all."
    )


@contextmanager
def _running(model: Any, layer: Any) -> Iterator[Callable[[Any], Any]]:
    """Evaluate a module; modes and hooks are as before at the end."""
    import torch

    modes = [(module, module.training) for module in model.modules()]
    first = next(model.parameters(), torch.empty(0))
    hooks: list[Any] = []
    caught: list[Any] = []

    def forward(inputs: Any) -> Any:
        arguments, named = _arguments(model, _tensors(inputs, first.device, first.dtype))
        return model(*arguments, **named)

    def run(inputs: Any) -> tuple[Any, Any]:
        with torch.inference_mode():
            if layer is None and not hooks:
                head = _find_head(model, lambda: _logits(forward(inputs)))
                hooks.append(head.register_forward_pre_hook(catch_input, with_kwargs=True))
            output = forward(inputs)
            caught.append(layer(output) if callable(layer) and not _is_module(layer) else None)
            values = next((value for value in caught if value is not None), None)
            caught.clear()
            if layer is not False and not isinstance(values, torch.Tensor):
                raise InputError(
                    "the layer or function of features= must give one tensor when the model runs; "
                    f"got {type(values).__name__}. Choose another."
                )
            return _logits(output), values

    def catch(value: Any) -> None:
        # A copy, because a later layer may work in place (a ReLU often does).
        caught[:] = [value.clone() if isinstance(value, torch.Tensor) else value]

    def catch_input(module: Any, inputs: Any, named: dict[str, Any]) -> None:
        catch([*inputs, *named.values()][0])

    def catch_output(module: Any, inputs: Any, output: Any) -> None:
        catch(output)

    try:
        model.eval()
        if _is_module(layer):
            hooks.append(layer.register_forward_hook(catch_output))
        yield run
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training


def _find_head(model: Any, logits: Callable[[], Any]) -> Any:
    """The last linear layer executed whose outputs are as many as the logits."""
    import torch

    executed: list[Any] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, _: executed.append(module))
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    try:
        n_classes = logits().shape[-1]
    finally:
        for hook in hooks:
            hook.remove()
    heads = [module for module in executed if module.out_features == n_classes]
    if not heads:
        raise InputError(
            f"the model executes no torch.nn.Linear with {n_classes} outputs, so its head is not "
            "known. Name the layer whose output are the features, such as features="
            f"{[name for name, _ in model.named_modules()][-1]!r}, or pass features=False."
        )
    return heads[-1]


def _tensors(inputs: Any, device: Any, dtype: Any) -> Any:
    """Inputs on the device; NumPy arrays become tensors, of the model's type if they are float."""
    import torch

    if isinstance(inputs, Mapping):
        return {key: _tensors(value, device, dtype) for key, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(_tensors(value, device, dtype) for value in inputs)
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "fiub":
        inputs = torch.as_tensor(inputs, dtype=dtype if inputs.dtype.kind == "f" else None)
    return inputs.to(device, non_blocking=True) if isinstance(inputs, torch.Tensor) else inputs


def _arguments(model: Any, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of ``forward``."""
    if not isinstance(inputs, dict):
        return (inputs if isinstance(inputs, tuple) else (inputs,)), {}
    parameters = signature(model.forward).parameters
    if any(item.kind is Parameter.VAR_KEYWORD for item in parameters.values()):
        return (), inputs
    named = {key: value for key, value in inputs.items() if key in parameters}
    if named or len(inputs) != 1:
        return (), named
    return tuple(inputs.values()), {}


def _logits(output: Any) -> Any:
    import torch

    logits = output.get("logits") if isinstance(output, Mapping) else output
    if not isinstance(logits, torch.Tensor) and hasattr(output, "logits"):
        logits = output.logits
    if isinstance(logits, tuple):
        logits = logits[0] if logits else None
    if not isinstance(logits, torch.Tensor):
        raise InputError(
            f"the model must return logits of shape (n, K); it returned a {type(output).__name__}. "
            "Pass a function that returns logits or (logits, features)."
        )
    return logits


def _identity(model: Any, layer: Any) -> str:
    """Digest of all that the outputs of a module depend on besides the inputs."""
    names = {module: name for name, module in model.named_modules()}
    chosen = names[layer] if _is_module(layer) else getattr(layer, "__qualname__", layer)
    digest = _digest(model.state_dict())
    # The class without its module: the same class run as a script lives in __main__.
    digest.update(f"{type(model).__qualname__} {chosen}".encode())
    return str(digest.hexdigest())


# Where outputs are collected


def _digest(inputs: Any, digest: Any = None) -> Any:
    """SHA-256 of the names, types, shapes and values of arrays, added to an earlier one."""
    digest = digest or hashlib.sha256()
    for name, value in _arrays(inputs):
        array = to_numpy(value, "inputs")
        array = array.astype(str) if array.dtype.kind == "O" else array
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest


@final
class _Folder:
    """Outputs in `.npy` files that grow, and a record of the batches that they hold.

    The record is written last: what a killed process wrote beyond it is written again.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder, self._path = folder, folder / "extraction.json"
        self._inputs = hashlib.sha256()
        # Digests of the model, of the inputs of the first batch, and of those of all batches.
        self._record: dict[str, Any] = {"model": identity, "first": "", "inputs": ""}
        self._record |= {"batches": 0, "rows": 0}
        if self._path.exists():
            try:
                record = json.loads(self._path.read_text(encoding="utf-8"))
                self._record = {name: record[name] for name in self._record}
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{self._path}: damaged ({error}). Empty the folder.") from error
            if self._record["model"] != identity:
                raise self._refuse("its model, weights or features= differ")
        self._stored = int(self._record["batches"])

    def has(self, number: int, inputs: Any, labels: Array | None) -> bool:
        """Whether the outputs of a batch are stored, and need not be compared with new ones."""
        _digest(inputs if labels is None else (inputs, labels), self._inputs)
        # Checked early, for a shuffled loader, and at the end of what is stored.
        expected = {0: self._record["first"], self._stored - 1: self._record["inputs"]}
        if number < self._stored and number in expected:
            if self._inputs.hexdigest() != expected[number]:
                raise self._refuse("its loader gave other inputs or labels")
        # The first batch runs again: of a function, only its outputs tell that it has changed.
        return 0 < number < self._stored

    def add(self, number: int, block: dict[str, Array]) -> None:
        """Append the outputs of a batch, or compare them with those that are stored."""
        if self._record["rows"]:
            there = [name for name in _WIDE if (self._folder / f"{name}.npy").exists()]
            if there != list(block):
                raise self._refuse(f"its model gave {' and '.join(there)}")
            # A file has one type: another, such as float16 under autocast, becomes that.
            block = {name: new.astype(self._load(name).dtype) for name, new in block.items()}
        if number < self._stored:
            for name, new in block.items():
                old = self._load(name)[: len(new)]
                allowed = _REPEATABLE * float(np.abs(old).max(initial=0.0))
                if old.shape != new.shape or not np.allclose(old, new, rtol=0.0, atol=allowed):
                    raise self._refuse(f"its model gave other {name} for the first batch")
            return
        for name, values in block.items():
            self._append(self._folder / f"{name}.npy", values)
        self._record["batches"] += 1
        self._record["rows"] += len(block["logits"])
        self._record["inputs"] = self._inputs.hexdigest()
        self._record["first"] = self._record["first"] or self._record["inputs"]
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._record), encoding="utf-8")
        temporary.replace(self._path)

    def finish(self, count: int, columns: dict[str, Array]) -> dict[str, Array]:
        """Write labels and class names beside the outputs, and map these into memory."""
        if count < self._stored:
            raise self._refuse("its loader gave more batches")
        for name, column in columns.items():
            np.save(self._folder / f"{name}.npy", column, allow_pickle=False)
        there = [name for name in _WIDE if (self._folder / f"{name}.npy").exists()]
        return {name: self._load(name) for name in there}

    def _append(self, path: Path, values: Array) -> None:
        rows = self._record["rows"]
        with path.open("r+b" if rows else "w+b") as file:
            # NumPy leaves room in the header for any number of rows, so its length is the same.
            header = {"descr": values.dtype.str, "fortran_order": False}
            shape = (rows + len(values), values.shape[1])
            np.lib.format.write_array_header_1_0(file, header | {"shape": shape})
            file.seek(rows * values.itemsize * values.shape[1], 1)
            file.write(np.ascontiguousarray(values).tobytes())

    def _load(self, name: str) -> Array:
        path = self._folder / f"{name}.npy"
        try:
            array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError) as error:
            raise InputError(f"{path}: damaged ({error}). Empty the folder.") from error
        return array[: self._record["rows"]]

    def _refuse(self, why: str) -> InputError:
        return InputError(
            f"folder={self._folder} belongs to another run: {why}. To continue it, use the same "
            "model and the same batches (shuffle=False); otherwise use another folder."
        )
