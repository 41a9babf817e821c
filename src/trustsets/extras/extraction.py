"""`extract_file`: inputs in files to outputs in files, through a PyTorch model.

Needs the extra ``trustsets[torch]``; folders of images also need Pillow. A model is named as
``module:function``, which is code that the user chose to run. Nothing is ever unpickled: weights
come from safetensors files.
"""

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from trustsets._common.arrays import Array
from trustsets._common.atomic import StrPath, atomic_path
from trustsets._common.resuming import WorkFolder
from trustsets.errors import InputError
from trustsets.extras.shards import OtherInputsError
from trustsets.extras.torch import extract_outputs
from trustsets.files.naming import LABELS
from trustsets.files.options import sidecar
from trustsets.files.paths import Snapshot, check_output
from trustsets.files.source import named_labels, open_columns, read_classes
from trustsets.files.tensors import CLASS_FILE, is_shard_folder
from trustsets.files.writing import WRITERS, write_outputs
from trustsets.outputs import ModelOutputs

__all__ = ["extract_file"]

INPUTS = ("inputs", "images", "x")
"""Names under which a file may hold its inputs."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


def extract_file(
    model: str,
    inputs: StrPath,
    result: StrPath,
    *,
    weights: StrPath | None = None,
    layer: str | None = None,
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
    inputs : path
        An array ``inputs`` (one row per sample) and perhaps ``labels`` in any file that
        `open_outputs` reads, or a folder of images: those of class NAME in a subfolder NAME,
        or all in the folder itself, without labels.
    result : path
        `.npz`, `.parquet` or `.safetensors`, or a folder, which is filled with shards.
    weights : path, optional
        A safetensors file with the state of the model.
    layer : str, optional
        See `extract_outputs`.
    transform : str, optional
        ``module:function`` that turns a PIL image into a tensor. Default: red, green and blue
        between 0 and 1, of shape (3, height, width).
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
    _check_target(target, sources)
    before = Snapshot(*sources)
    network = _build_model(model, weights)
    names = None if classes is None else read_classes(classes)
    path = Path(inputs)
    images = path.is_dir() and not any(path.glob("*.npy"))
    if transform is not None and not images:
        raise InputError(f"{path}: a transform is for images; transform arrays beforehand.")
    samples = _Images(path, transform, names) if images else _Arrays(path, names)
    loader = _Loader(samples, batch_size, before)

    def extract(shards: Path) -> ModelOutputs:
        return extract_outputs(
            network, loader, layer, device=device, classes=samples.classes, shards=shards,
            progress=progress,
        )  # fmt: skip

    if target.suffix == "":
        outputs = extract(target)
        _write_beside(target, samples.classes, record)
        return outputs
    setting = [model, transform, batch_size, *map(str, sources)]
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


def _find(spec: str, what: str) -> Callable[..., Any]:
    """Import ``module:function``, also from the current folder."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise InputError(f"{what} must be MODULE:FUNCTION, such as my_model:build; got {spec!r}.")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{what} {spec!r} cannot be imported ({error}). Run the command where {module_name} "
            "can be imported, for example in its folder."
        ) from error
    if not callable(found):
        raise InputError(f"{what} {spec!r} is no function; it is a {type(found).__name__}.")
    return cast("Callable[..., Any]", found)


def _build_model(spec: str, weights: StrPath | None) -> nn.Module:
    network = _find(spec, "model")()
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


@final
class _Loader:
    """Batches of samples; at the end it checks that no input file was changed meanwhile."""

    def __init__(self, samples: "_Arrays | _Images", batch_size: int, before: Snapshot) -> None:
        self._samples, self._size, self._before = samples, batch_size, before

    def __len__(self) -> int:
        return -(-len(self._samples) // self._size)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        n = len(self._samples)
        for start in range(0, n, self._size):
            yield self._samples.read(start, min(start + self._size, n))
        self._before.check()


@final
class _Arrays:
    """The array ``inputs`` of a file, with its labels if there are any."""

    def __init__(self, path: Path, classes: Array | None) -> None:
        columns = open_columns(path)
        name = next((name for name in INPUTS if name in columns), None)
        if name is None:
            raise InputError(
                f"{path}: there is no array 'inputs'; there are {', '.join(sorted(columns))}."
            )
        inputs = self._inputs = columns[name]
        inputs.require_usable()
        if inputs.dtype.kind not in "fiub" or len(inputs.shape) < 2:
            raise inputs.error(
                f"has shape {inputs.shape} and type {inputs.dtype}; it must hold numbers, one row "
                "per sample."
            )
        self._labels = next((columns[name] for name in LABELS if name in columns), None)
        if self._labels is not None and self._labels.shape != inputs.shape[:1]:
            raise self._labels.error(
                f"has shape {self._labels.shape}; there must be one for each of the "
                f"{inputs.shape[0]} inputs."
            )
        if classes is None and "classes" in columns:
            classes = read_classes(path)
        self.classes = classes

    def __len__(self) -> int:
        return self._inputs.shape[0]

    def read(self, start: int, stop: int) -> tuple[Any, ...]:
        """Inputs and labels of the rows `start` up to `stop`."""
        batch = torch.from_numpy(np.array(self._inputs.read(start, stop)))
        numbers = batch if batch.is_floating_point() else batch.float()
        if self._labels is None:
            return (numbers,)
        labels = self._labels.read_texts(start, stop)
        return numbers, named_labels(self._labels, labels, self.classes, start)


@final
class _Images:
    """The images of a folder; subfolders are classes."""

    def __init__(self, path: Path, transform: str | None, classes: Array | None) -> None:
        folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
        self._labelled = bool(folders)
        self._files = [
            file
            for folder in folders or [path]
            for file in sorted(folder.iterdir())
            if file.suffix.lower() in IMAGE_SUFFIXES
        ]
        if not self._files:
            raise InputError(
                f"{path}: there are no images ({', '.join(IMAGE_SUFFIXES)}) in this folder."
            )
        names = np.array([folder.name for folder in folders]) if folders else None
        self.classes = names if classes is None else classes
        self._transform = _to_tensor if transform is None else _find(transform, "transform")

    def __len__(self) -> int:
        return len(self._files)

    def read(self, start: int, stop: int) -> tuple[Any, ...]:
        """Tensors and labels of the images `start` up to `stop`."""
        files = self._files[start:stop]
        batch = _stack([self._read(file) for file in files], files)
        labels = np.array([file.parent.name for file in files])
        return (batch, labels) if self._labelled else (batch,)

    def _read(self, file: Path) -> Tensor:
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as error:
            raise InputError(
                'folders of images need Pillow, which is not installed. Install "pillow".'
            ) from error
        try:
            with Image.open(file) as image:
                tensor = self._transform(image.convert("RGB"))
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise InputError(f"{file}: not a readable image ({error}). Remove it.") from error
        if not isinstance(tensor, Tensor):
            raise InputError(
                f"transform must return a tensor; it returned a {type(tensor).__name__}."
            )
        return tensor


def _to_tensor(image: Any) -> Tensor:
    values = np.asarray(image, dtype=np.float32) / 255.0
    return torch.from_numpy(values).permute(2, 0, 1)


def _stack(tensors: list[Tensor], files: list[Path]) -> Tensor:
    for tensor, file in zip(tensors, files, strict=True):
        if tensor.shape != tensors[0].shape:
            raise InputError(
                f"{file}: this image becomes a tensor of shape {tuple(tensor.shape)}, and "
                f"{files[0]} one of {tuple(tensors[0].shape)}. Give a transform that makes them "
                "alike (--transform MODULE:FUNCTION)."
            )
    return torch.stack(tensors)
