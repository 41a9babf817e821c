"""Outputs of a PyTorch classifier over a loader. Needs the extra ``trustsets[torch]``."""

import hashlib
import logging
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trustsets._common.arrays import to_numpy
from trustsets._common.atomic import StrPath
from trustsets._common.progress import Advance, progress_bar
from trustsets._common.resuming import locked
from trustsets.errors import InputError
from trustsets.extras.forward import (
    Batch,
    Runner,
    Tap,
    add_tensor,
    evaluating,
    find_layer,
    model_setting,
    use_half,
)
from trustsets.extras.shards import BatchStore
from trustsets.outputs import ModelOutputs

__all__ = ["extract_outputs"]

_log = logging.getLogger(__name__)

# Keys under which a batch that is a mapping may hold its inputs.
INPUT_KEYS = ("inputs", "pixel_values")


def extract_outputs(
    model: nn.Module,
    loader: Iterable[Any],
    layer: str | nn.Module | None = None,
    *,
    device: str | torch.device | None = None,
    mixed_precision: bool | Literal["auto"] = "auto",
    classes: Any = None,
    shards: StrPath | None = None,
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
        loader must give the same batches again; their inputs and labels are compared with
        those of the earlier run, and so are the weights of the model, layer, kind of device
        and precision. One run at a time may use it.
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
    chosen = None if layer is None else find_layer(model, inner, layer)
    lock = nullcontext() if shards is None else locked(Path(shards), f"shards={shards}")
    with lock, evaluating(inner, device) as place:
        half = use_half(mixed_precision, place)
        setting = {} if shards is None else model_setting(inner, chosen, place, half)
        store = BatchStore(shards, setting)
        bar = progress_bar("Model outputs", _length(loader), wanted=progress)
        with Tap(inner, chosen) as tap, bar as advance:
            kept = shards is not None
            _collect(Runner(inner, tap, place, half), loader, store, advance, kept)
    whole = store.finish()
    _log.info("outputs of %d samples, %d batches of them from shards", len(whole), store.n_known)
    return ModelOutputs(
        logits=whole.logits, features=whole.features, labels=whole.labels, classes=classes
    )


def _collect(
    runner: Runner, loader: Iterable[Any], store: BatchStore, advance: Advance, kept: bool
) -> None:
    """Put every batch into the store, running the model on those it does not have.

    Batches that are `kept` on disk are known again by a digest of their inputs.
    """
    index = -1
    for index, item in enumerate(loader):
        batch = _read_batch(item)
        if kept:
            batch = batch._replace(digest=_digest(batch.inputs))
        if index < store.n_known:
            store.check_known(index, len(batch.inputs), batch.labels, batch.digest)
        else:
            if store.finished:
                store.check_count(index + 1)
            store.add(runner.run(batch))
        advance(1)
    if index < 0:
        raise InputError("loader is empty; give at least one batch (is the iterator used up?).")
    store.check_count(index + 1)


def _read_batch(item: Any) -> Batch:
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
    if labels is None:
        return Batch(inputs, None)
    array = to_numpy(labels, "labels")
    if array.shape != (len(inputs),):
        raise InputError(
            f"labels of a batch must have shape ({len(inputs)},), one per input; got {array.shape}."
        )
    return Batch(inputs, array)


def _digest(inputs: Tensor) -> NDArray[np.uint8]:
    """SHA-256 of the inputs of a batch."""
    digest = hashlib.sha256()
    add_tensor(digest, inputs)
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:  # an iterator, or a loader of a stream
        return None
