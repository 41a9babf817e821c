"""Outputs of an ONNX classifier over a loader. Needs the extra ``trustsets[onnx]``."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, final

import numpy as np
import onnx
import onnxruntime

from trustsets._common.arrays import Array, to_numpy
from trustsets._common.atomic import StrPath
from trustsets.errors import InputError
from trustsets.extras import functions
from trustsets.extras.batches import Accepts, BatchReader, Choice, Extraction
from trustsets.extras.pooling import Features, check_policy
from trustsets.files.naming import FEATURES
from trustsets.outputs import ModelOutputs

__all__ = ["OnnxClassifier", "extract_outputs"]

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
# Nodes between a linear layer and the logits, whose first input is followed back.
_PASSED = ("Add", "Cast", "Dropout", "Identity", "Reshape", "Squeeze")
_PROPOSALS = 5


def extract_outputs(
    model: "StrPath | OnnxClassifier",
    loader: Iterable[Any],
    layer: str | None = None,
    *,
    features: Features = None,
    inputs: Choice = None,
    labels: str | int | None = None,
    device: str | None = None,
    classes: Any = None,
    shards: StrPath | None = None,
    progress: bool | None = None,
) -> ModelOutputs:
    """Run an ONNX classifier over a loader and keep its logits, features and labels.

    Parameters
    ----------
    model : path or OnnxClassifier
        An ``.onnx`` file with one output of logits, or of probabilities made by a softmax.
    loader : iterable of batches
        See `trustsets.extras.torch.extract_outputs`; arrays may be of NumPy or torch. Entries
        of a mapping are the inputs of these names.
    layer : str, optional
        Name of the output that is the feature of a sample, or of any tensor of the graph.
        Default: an output called ``features`` or ``embeddings``, or else the input of the
        linear layer that makes the logits.
    device : str, optional
        ``"cpu"``, the default, or ``"cuda"``.
    features, inputs, labels, classes, shards, progress
        See `trustsets.extras.torch.extract_outputs`.
    """
    own = model if isinstance(model, OnnxClassifier) else OnnxClassifier(model, layer, device)
    check_policy(features)
    names = frozenset(own.input_names)
    accepts = Accepts(names, names, any_name=False, unnamed=True)
    setting = own.setting() if shards is not None else {}
    extraction = Extraction(
        BatchReader(accepts, inputs=inputs, labels=labels),
        lambda batch: functions.run(own, batch._replace(inputs=own.named(batch.inputs)), features),
        setting | {"features": getattr(features, "__qualname__", features)},
    )
    return extraction.outputs(loader, shards, classes, progress)


@final
class OnnxClassifier:
    """An ONNX file as a function from named inputs to logits and features.

    A graph with a fixed number of samples is run in pieces of that many.

    Parameters
    ----------
    path, layer, device
        See `extract_outputs`.
    """

    def __init__(self, path: StrPath, layer: str | None = None, device: str | None = None) -> None:
        self._path = Path(path)
        graph = _Graph(self._path)
        self._logits = graph.logits(layer)
        self._layer = graph.features(self._logits, layer)
        self._external = graph.external_files()
        self._device = device or "cpu"
        wanted = graph.with_outputs(self._logits, self._layer)
        self._session = _open(self._path, wanted, self._device)
        self._inputs = {each.name: each for each in self._session.get_inputs()}

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return list(self._inputs)

    def setting(self) -> dict[str, Any]:
        """What the outputs depend on besides the inputs."""
        digest = hashlib.sha256()
        for file in (self._path, *self._external):
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        names = {"logits": self._logits, "layer": self._layer, "device": self._device}
        return {"model_sha256": digest.hexdigest()} | names

    def named(self, inputs: Any) -> dict[str, Any]:
        """Inputs of a batch by name."""
        if not isinstance(inputs, Mapping):
            given = inputs if isinstance(inputs, tuple) else (inputs,)
            inputs = dict(zip(self.input_names, given, strict=False))
        absent = [name for name in self.input_names if name not in inputs]
        if absent:
            raise InputError(
                f"{self._path}: the model takes inputs {self.input_names}, and a batch has no "
                f"{absent[0]!r}. Give batches that are mappings with these names."
            )
        return dict(inputs)

    def __call__(self, inputs: Mapping[str, Any]) -> tuple[Array, Array]:
        """Logits and features of a batch."""
        arrays = {name: self._fitted(name, inputs[name]) for name in self.input_names}
        n = len(next(iter(arrays.values())))
        found = [self._run(piece) for piece in self._pieces(arrays, n)]
        logits, features = (np.concatenate(parts)[:n] for parts in zip(*found, strict=True))
        return logits, features

    def _run(self, arrays: dict[str, Array]) -> tuple[Array, Array]:
        try:
            logits, features = self._session.run([self._logits, self._layer], arrays)
        except Exception as error:  # onnxruntime has no base class of its own errors
            raise InputError(f"{self._path}: the model cannot run this batch: {error}") from error
        return logits, features

    def _pieces(self, arrays: dict[str, Array], n: int) -> Iterator[dict[str, Array]]:
        """Pieces of as many samples as the graph takes; the last is filled up with a sample."""
        sizes = [own.shape[0] for own in self._inputs.values() if own.shape]
        size = next((size for size in sizes if isinstance(size, int) and size > 0), n)
        for start in range(0, n, size):
            rows = np.minimum(np.arange(start, start + size), n - 1)
            yield arrays if size == n else {key: value[rows] for key, value in arrays.items()}

    def _fitted(self, name: str, value: Any) -> Array:
        """An input in the type of the graph, of a shape that it takes."""
        own, array = self._inputs[name], to_numpy(value, name)
        dtype = _dtype(own.type)
        known = [size if isinstance(size, int) and size > 0 else None for size in own.shape]
        fits = len(known) == array.ndim and all(
            want in (None, got) for want, got in zip(known[1:], array.shape[1:], strict=True)
        )
        if dtype is None or not fits or (dtype.kind != "f" and array.dtype.kind == "f"):
            wanted = ", ".join("any" if size is None else str(size) for size in ["n", *known[1:]])
            raise InputError(
                f"{self._path}: input {name!r} takes {own.type} of shape ({wanted}); got "
                f"{array.dtype} of shape {array.shape}. Transform the inputs beforehand "
                "(images: --transform MODULE:FUNCTION)."
            )
        return array.astype(dtype, copy=False)


def _dtype(kind: str) -> np.dtype[Any] | None:
    """NumPy's type for a type of onnxruntime, such as ``tensor(float)``."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    usual = {"float": "float32", "double": "float64"}.get(name, name)
    try:
        return np.dtype(usual)
    except TypeError:
        return None


def _open(path: Path, model: str | bytes, device: str) -> Any:
    if device not in _PROVIDERS or _PROVIDERS[device] not in onnxruntime.get_available_providers():
        there = [name for name, own in _PROVIDERS.items()
                 if own in onnxruntime.get_available_providers()]  # fmt: skip
        raise InputError(f"device={device!r} is not there for onnxruntime; it has {there}.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    try:
        return onnxruntime.InferenceSession(model, options, providers=[_PROVIDERS[device]])
    except Exception as error:  # onnxruntime has no base class of its own errors
        raise InputError(f"{path}: onnxruntime cannot open this model: {error}") from error


@final
class _Graph:
    """The graph of an ONNX file: which tensors are logits and features."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(f"{path}: there is no such file.")
        try:
            model = onnx.load(str(path), load_external_data=False)
        except Exception as error:  # protobuf's errors differ between its versions
            raise InputError(f"{path}: not an ONNX model, or a damaged one ({error}).") from error
        self._path, self._graph = path, model.graph
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._outputs = [each.name for each in model.graph.output]
        self._weights = {each.name for each in model.graph.initializer}
        self._weights |= {node.output[0] for node in model.graph.node if node.op_type == "Constant"}

    def logits(self, layer: str | None) -> str:
        """The tensor of logits: the output called so, or the only one that is no feature."""
        others = [name for name in self._outputs if name not in (layer, *FEATURES)]
        found = [name for name in others if name == "logits"] or others
        if len(found) != 1:
            raise InputError(
                f"{self._path}: the outputs are {self._outputs}; one of them must be called "
                "'logits', or be the only one besides the features (layer=)."
            )
        node = self._makers.get(found[0])
        while node is not None and node.op_type in ("Cast", "Identity"):
            node = self._makers.get(node.input[0])
        # Not the logarithm of the probabilities: those that were rounded to 0 would be lost.
        return str(node.input[0]) if node is not None and node.op_type == "Softmax" else found[0]

    def features(self, logits: str, layer: str | None) -> str:
        """The tensor of features: as chosen, or what the last linear layer gets."""
        if layer is not None:
            names = [*self._outputs, *self._makers]
            if layer not in names:
                near = get_close_matches(layer, names, _PROPOSALS, cutoff=0.4) or self._outputs
                raise InputError(
                    f"{self._path}: layer={layer!r} is no tensor of the model; near names are "
                    f"{near}."
                )
            return layer
        named = [name for name in FEATURES if name in self._outputs]
        return named[0] if named else self._before_last_linear(logits)

    def _before_last_linear(self, name: str) -> str:
        start = name
        while (node := self._makers.get(name)) is not None:
            inputs = [each for each in node.input if each and each not in self._weights]
            if node.op_type in ("Gemm", "MatMul") and len(inputs) == 1:
                return str(inputs[0])
            if node.op_type not in _PASSED or not inputs:
                break
            name = inputs[0]
        raise InputError(
            f"{self._path}: {start!r} does not come from a linear layer, so there is no default "
            f"for the features; give layer=, the name of a tensor, such as {self._last_names()}."
        )

    def _last_names(self) -> list[str]:
        return [name for name in self._makers if name not in self._weights][-_PROPOSALS:]

    def external_files(self) -> Sequence[Path]:
        """Files beside the model that hold its weights."""
        places = {
            entry.value
            for tensor in self._graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        return [self._path.parent / place for place in sorted(places)]

    def with_outputs(self, *names: str) -> str | bytes:
        """The model with these tensors among its outputs: its path, or a changed copy."""
        absent = [name for name in dict.fromkeys(names) if name not in self._outputs]
        if not absent:
            return str(self._path)
        model = onnx.load(str(self._path))
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in absent)
        try:
            return bytes(model.SerializeToString())
        except ValueError as error:  # more than 2 GB
            raise InputError(
                f"{self._path}: the model is too large to be changed in memory; export it with "
                f"the outputs {absent}."
            ) from error
