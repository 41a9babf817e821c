"""`extract_file`: inputs in files to outputs in files, through a PyTorch or ONNX model.

Needs the extra ``trustsets[torch]`` or ``trustsets[onnx]``; folders of images also need Pillow. A
PyTorch model is named as ``module:function``, which is code that the user chose to run. Nothing is
ever unpickled: weights come from safetensors files.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets._common.arrays import Array
from trustsets._common.atomic import StrPath, atomic_path
from trustsets._common.resuming import WorkFolder
from trustsets.errors import InputError
from trustsets.extras.inputs import Loader, Wrap, find_function, open_samples
from trustsets.extras.shards import OtherInputsError
from trustsets.files.options import sidecar
from trustsets.files.paths import Snapshot, check_output
from trustsets.files.source import read_classes
from trustsets.files.tensors import CLASS_FILE, is_shard_folder
from trustsets.files.writing import WRITERS, write_outputs
from trustsets.outputs import ModelOutputs

__all__ = ["extract_file"]


def extract_file(
    model: str,
    inputs: StrPath,
    result: StrPath,
    *,
    weights: StrPath | None = None,
    layer: str | None = None,
    features: str | None = None,
    transform: str | None = None,
    classes: StrPath | None = None,
    batch_size: int = 64,
    device: str | None = None,
    record: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> ModelOutputs:
    """Run a model over a file of inputs or a folder of images, and write its outputs.

    A run that was killed continues where it stopped.

    Parameters
    ----------
    model : str
        ``module:function``; the function takes no arguments and returns a `torch.nn.Module`.
        Or an ``.onnx`` file, which is run by onnxruntime.
    inputs : path
        An array ``inputs`` (one row per sample) and perhaps ``labels`` in any file that
        `open_outputs` reads, or an ``.npy`` file of inputs; for an ONNX model, arrays may have
        the names of its inputs. Or a folder of images: those of class NAME in a subfolder
        NAME, or all in the folder itself, without labels.
    result : path
        `.npz`, `.parquet` or `.safetensors`, or a folder, which is filled with shards.
    weights : path, optional
        A safetensors file with the state of the model.
    layer, features : str, optional
        See `trustsets.extras.torch.extract_outputs` and `trustsets.extras.onnx`.
    transform : str, optional
        ``module:function`` that turns a PIL image into a tensor or array. Default: red, green
        and blue between 0 and 1, of shape (3, height, width).
    classes : path, optional
        Class names in the order of the logits; see `read_classes`. Default: the names of the
        subfolders, sorted.
    batch_size, device
        How many samples at a time, and where.
    record : dict, optional
        Options to store with the result.
    progress : bool, optional
        Show a progress bar; by default on a terminal.
    """
    target, sources = Path(result), [inputs, weights, classes]
    own = [model] if _is_onnx(model) else []
    _check_target(target, [*sources, *own])
    before = Snapshot(*sources, *own)
    backend = (
        _onnx_backend(model, weights, layer, device) if own else _torch_backend(model, weights)
    )
    names = None if classes is None else read_classes(classes)
    samples = open_samples(Path(inputs), transform, names, backend.wrap, backend.names)
    loader = Loader(samples, batch_size, before)
    more = {"features": features, "classes": samples.classes, "progress": progress}
    if not own:
        more |= {"layer": layer, "device": device}

    def extract(shards: Path) -> ModelOutputs:
        return backend.extract(loader, shards=shards, **more)

    if target.suffix == "":
        outputs = extract(target)
        _write_beside(target, samples.classes, record)
        return outputs
    setting = [model, transform, batch_size, *map(str, sources)]
    return _through_parts(target, setting, extract, record)


def _through_parts(
    target: Path, setting: list[Any], extract: Callable[[Path], ModelOutputs], record: Any
) -> ModelOutputs:
    """Extract into a hidden folder beside a file, and write the file when all is done."""
    with WorkFolder(target, {"extract": setting}) as folder:
        shards = folder.path / "shards"
        try:
            outputs = extract(shards)
        except OtherInputsError:
            # They were left by a run whose inputs have changed since.
            shutil.rmtree(shards)
            outputs = extract(shards)
        write_outputs(target, outputs, record)
        folder.finish()
    return outputs


@final
@dataclass(frozen=True)
class _Backend:
    """How a kind of model is run: `wrap` makes its arrays, and `names` are those of its inputs."""

    extract: Callable[..., ModelOutputs]
    wrap: Wrap
    names: tuple[str, ...] = ()


def _is_onnx(model: str) -> bool:
    return model.lower().endswith(".onnx")


def _onnx_backend(
    model: str, weights: StrPath | None, layer: str | None, device: str | None
) -> _Backend:
    try:
        from trustsets.extras.onnx import OnnxClassifier, extract_outputs
    except ImportError as error:
        raise _not_installed("onnx", error) from error
    if weights is not None:
        raise InputError(f"{model}: an ONNX file holds its weights; leave --weights out.")
    own = OnnxClassifier(model, layer, device)
    names = tuple(own.input_names)
    return _Backend(lambda loader, **options: extract_outputs(own, loader, **options),
                    lambda array: array, names)  # fmt: skip


def _torch_backend(model: str, weights: StrPath | None) -> _Backend:
    try:
        import torch

        from trustsets.extras.torch import extract_outputs
    except ImportError as error:
        raise _not_installed("torch", error) from error
    network = _build_model(model, weights)

    def tensor(array: Array) -> torch.Tensor:
        return torch.from_numpy(array if array.dtype.kind == "f" else array.astype(np.float32))

    return _Backend(lambda loader, **options: extract_outputs(network, loader, **options), tensor)


def _not_installed(extra: str, error: ImportError) -> InputError:
    return InputError(
        f'extract needs {extra}, which is not installed ({error}). Install "trustsets[{extra}]".'
    )


def _check_target(target: Path, sources: list[StrPath | None]) -> None:
    """The result is a file of a known kind, or a folder that is new or holds shards."""
    if target.suffix:
        check_output(target, tuple(WRITERS), sources)
    elif target.is_dir() and not is_shard_folder(target):
        if any(not item.name.startswith(".") for item in target.iterdir()):
            raise InputError(f"{target}: this folder holds other things; give a new name.")


def _write_beside(folder: Path, classes: Any, record: dict[str, Any] | None) -> None:
    if classes is not None:
        with atomic_path(folder / CLASS_FILE) as temporary:
            temporary.write_text("".join(f"{name}\n" for name in classes), encoding="utf-8")
    if record is not None:
        with atomic_path(folder / sidecar(folder).name) as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n")


def _build_model(spec: str, weights: StrPath | None) -> Any:
    from torch import nn

    network = find_function(spec, "model")()
    if not isinstance(network, nn.Module):
        raise InputError(
            f"model {spec!r} returned a {type(network).__name__}; it must return a torch.nn.Module."
        )
    if weights is None:
        return network
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(weights)
    if path.suffix.lower() != ".safetensors":
        raise InputError(
            f"{path}: weights are read from .safetensors files alone, because other kinds can run "
            "code. Convert them with safetensors.torch.save_file(model.state_dict(), ...)."
        )
    try:
        network.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        raise InputError(f"{path}: these weights do not fit the model: {error}") from error
    return network
