"""Outputs of any function ``inputs -> (logits, features)`` over a loader. No optional dependency.

This is the way in for JAX, Flax, Keras, and everything else that runs in Python.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trustsets._common.arrays import to_numpy
from trustsets._common.atomic import StrPath
from trustsets.errors import InputError
from trustsets.extras.batches import (
    MASK,
    Accepts,
    Batch,
    BatchReader,
    Choice,
    Extraction,
    token_mask,
)
from trustsets.extras.pooling import Features, check_policy, one_vector
from trustsets.extras.shards import OutputBatches
from trustsets.outputs import ModelOutputs

__all__ = ["extract_outputs"]

Function = Callable[[Any], tuple[Any, Any]]


def extract_outputs(
    function: Function,
    loader: Iterable[Any],
    *,
    features: Features = None,
    inputs: Choice = None,
    labels: str | int | None = None,
    classes: Any = None,
    shards: StrPath | None = None,
    version: str | None = None,
    progress: bool | None = None,
) -> ModelOutputs:
    """Run a function over a loader and keep its logits, features and the labels.

    Parameters
    ----------
    function : callable
        Takes the inputs of a batch as the loader gives them, and returns logits of shape
        (n, K) and features of shape (n, d), as arrays that NumPy can read.
    loader : iterable of batches
        A batch is ``(inputs, labels)``, inputs alone, or a mapping, which the function gets
        without the labels. Inputs are an array of any library, a list of texts, a tuple or a
        mapping of such.
    features, inputs, labels, classes, progress
        See `trustsets.extras.torch.extract_outputs`. A policy `features` applies to what the
        function returns, with the ``attention_mask`` of the batch.
    shards : path, optional
        Directory where a run that was killed continues; see
        `trustsets.extras.torch.extract_outputs`. It needs a `version`.
    version : str, optional
        Names the function and its weights. A later run with another version is refused.

    Returns
    -------
    ModelOutputs
        Logits are float32. Features are float16 where the function gives them so, and
        float32 otherwise.

    Examples
    --------
    >>> weights = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    >>> def classify(inputs):
    ...     features = np.tanh(inputs)
    ...     return features @ weights, features
    >>> loader = [(np.ones((4, 2)), [0, 1, 2, 0]), (np.zeros((1, 2)), [2])]
    >>> extract_outputs(classify, loader)
    ModelOutputs(n=5, K=3, d=2, labels)
    """
    if not callable(function):
        raise InputError(f"function must be callable; got a {type(function).__name__}.")
    if shards is not None and not version:
        raise InputError(
            "shards= need version=, a text that names the function and its weights, so that "
            "outputs of another one are never continued."
        )
    check_policy(features)
    reader = BatchReader(Accepts(), inputs=inputs, labels=labels)
    setting = {"version": version, "features": getattr(features, "__qualname__", features)}
    extraction = Extraction(reader, lambda batch: run(function, batch, features), setting)
    return extraction.outputs(loader, shards, classes, progress)


def run(function: Function, batch: Batch, features: Features) -> OutputBatches:
    """Outputs of one batch."""
    n, result = batch.size, function(batch.inputs)
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise InputError(
            f"the function must return (logits, features); it returned a {type(result).__name__}"
            f"{f' of {len(result)}' if isinstance(result, tuple | list) else ''}."
        )
    logits, values = to_numpy(result[0], "logits"), to_numpy(result[1], "features")
    if logits.ndim != 2 or len(logits) != n:
        raise InputError(
            f"the function must return logits of shape (n, K), here ({n}, K); got {logits.shape}."
        )
    named = batch.inputs if isinstance(batch.inputs, dict) else {}
    mask = token_mask(features, named, batch, values)
    found = one_vector(values, features, n, None if mask is None else to_numpy(mask, MASK))
    narrow = found if found.dtype == np.float16 else found.astype(np.float32)
    return OutputBatches(
        logits=logits.astype(np.float32),
        features=narrow,
        labels=batch.labels,
        sizes=np.array([n], dtype=np.int64),
        input_digests=None if batch.digest is None else batch.digest[None],
    )
