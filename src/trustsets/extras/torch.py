"""Outputs of a PyTorch classifier over a loader. Needs the extra ``trustsets[torch]``."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trustsets._common.atomic import StrPath
from trustsets.errors import InputError
from trustsets.extras.batches import Accepts, BatchReader, Choice, Extraction
from trustsets.extras.forward import (
    Runner,
    Tap,
    add_tensor,
    evaluating,
    find_layer,
    model_setting,
    use_half,
)
from trustsets.extras.pooling import Features
from trustsets.outputs import ModelOutputs

__all__ = ["extract_outputs"]


def extract_outputs(
    model: nn.Module,
    loader: Iterable[Any],
    layer: str | nn.Module | None = None,
    *,
    features: Features = None,
    inputs: Choice = None,
    labels: str | int | None = None,
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
        Maps a batch of n inputs to logits of shape (n, K), or to anything with such
        ``logits``: a mapping, an output of Hugging Face, a tuple that begins with them. A
        `torch.nn.DataParallel` is run on its first device.
    loader : iterable of batches
        A batch is ``(inputs, labels)``, inputs alone, or a mapping. Inputs are a tensor with
        a row per sample, a tuple (``model(*inputs)``) or a mapping (``model(**inputs)``).
        ``(input, ..., input, labels)`` is understood if the labels are the only item of one
        dimension. A mapping holds its labels under ``"labels"``, ``"label"``, ``"targets"``,
        ``"target"``, ``"label_ids"`` or ``"y"``; the model gets the entries that its
        ``forward`` takes. If it takes none of the names, it gets the one input, called
        ``"inputs"``, ``"pixel_values"``, ``"image"`` or so. Other entries are left out.
        Labels have shape (n,), and come with all batches or with none.
    layer : str or torch.nn.Module, optional
        Where features come from: a module, its dotted name, or the name of an output, such as
        ``"pooler_output"``. Default: the *input* of the last `torch.nn.Linear` that the model
        executes; for features of tokens, the ``last_hidden_state`` if some module returns one.
    features : str or function, optional
        How they become one vector a sample. For tokens, of shape (n, tokens, d): ``"cls"``
        takes the first, ``"last token"`` the last and ``"mean"`` the mean of those that the
        ``attention_mask`` of the batch names, whatever the padding. For feature maps, of
        shape (n, channels, height, width): ``"pool"`` takes the mean over all positions.
        ``"flatten"`` joins all numbers, and ``"pre_logits"`` is the default layer. A function
        gets the output of `layer`, or of the model, and returns an array of shape (n, d).
        Without a policy, feature maps are flattened and tokens are an error.
    inputs : str, int or sequence of them, optional
        Which items of a batch are inputs, where the rules above do not say: keys of a mapping
        or places in a tuple. One of them is passed without its name.
    labels : str or int, optional
        Which item holds the labels.
    device : str or torch.device, optional
        Where to run; by default where the model is.
    mixed_precision : "auto", True or False
        Autocast to half precision: ``"auto"`` does so on a GPU, and there only.
    classes : sequence of length K, optional
        Class names; see `ModelOutputs`. Labels that are numbers are places in it.
    shards : path, optional
        Directory for safetensors shards, one for every 16,384 rows or a little more. A run
        that was killed continues there: it reads the shards, goes through their batches
        without running the model, and gives the same arrays bit for bit. For that the
        loader must give the same batches again; their inputs and labels are compared with
        those of the earlier run, and so are the weights of the model, layer, policy (a
        function by its name), kind of device and precision. One run at a time may use it.
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
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model must be a torch.nn.Module; got a {type(model).__name__}. For a function of "
            "yours, use trustsets.extras.functions, and for an .onnx file trustsets.extras.onnx."
        )
    inner = model.module if isinstance(model, nn.DataParallel) else model
    chosen = find_layer(model, inner, layer)
    reader = BatchReader(Accepts.of(inner.forward), _is_tensor, inputs, labels)
    with evaluating(inner, device) as place, Tap(inner, chosen, features) as tap:
        half = use_half(mixed_precision, place)
        # A digest of all weights takes time; without shards nothing is compared.
        setting = {} if shards is None else model_setting(inner, chosen, place, half, features)
        run = Runner(inner, tap, place, half).run
        extraction = Extraction(reader, run, setting, add_tensor)
        return extraction.outputs(loader, shards, classes, progress)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)
