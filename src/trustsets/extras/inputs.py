"""Inputs of a model in files: arrays, and folders of images, batch by batch.

No optional dependency but Pillow, for images.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast, final

import numpy as np

from trustsets._common.arrays import Array
from trustsets.errors import InputError
from trustsets.extras.batches import is_array
from trustsets.files.columns import Column
from trustsets.files.naming import LABELS
from trustsets.files.numpy_files import npy_column
from trustsets.files.paths import Snapshot
from trustsets.files.source import named_labels, open_columns, read_classes

INPUTS = ("inputs", "images", "x")
"""Names under which a file may hold its inputs."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")

Wrap = Callable[[Array], Any]
"""Makes the array that a model takes from a NumPy array."""


class Samples(Protocol):
    """Samples that can be read in ranges; `classes` are names of the classes, where known."""

    classes: Array | None

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> tuple[Any, ...]:
        """Inputs and, where they are known, labels of the samples `start` up to `stop`."""


def open_samples(
    path: Path, transform: str | None, classes: Array | None, wrap: Wrap, names: Sequence[str]
) -> Samples:
    """The samples of a file or a folder; `names` are those of the inputs of the model."""
    if path.is_dir() and not any(path.glob("*.npy")):
        return _Images(path, transform, classes, wrap)
    if transform is not None:
        raise InputError(f"{path}: a transform is for images; transform arrays beforehand.")
    return _Arrays(path, classes, wrap, names)


@final
class Loader:
    """Batches of samples; at the end it checks that no input file was changed meanwhile."""

    def __init__(self, samples: Samples, batch_size: int, before: Snapshot) -> None:
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
    """The array ``inputs`` of a file, or one for each input, with labels if there are any."""

    def __init__(self, path: Path, classes: Array | None, wrap: Wrap, names: Sequence[str]) -> None:
        lone = path.suffix.lower() == ".npy" and not path.is_dir()
        columns = {"inputs": npy_column(path)} if lone else open_columns(path)
        self._inputs = _find_inputs(path, columns, names)
        self._wrap = wrap
        rows = next(iter(self._inputs.values())).shape[:1]
        labels = next((columns[name] for name in LABELS if name in columns), None)
        for column in [*self._inputs.values(), *([] if labels is None else [labels])]:
            if column.shape[:1] != rows or (column is labels and len(column.shape) != 1):
                raise column.error(
                    f"has shape {column.shape}; there must be one for each of the {rows[0]} inputs."
                )
        self._labels = labels
        if classes is None and "classes" in columns:
            classes = read_classes(path)
        self.classes = classes

    def __len__(self) -> int:
        return next(iter(self._inputs.values())).shape[0]

    def read(self, start: int, stop: int) -> tuple[Any, ...]:
        """Inputs and labels of the rows `start` up to `stop`."""
        read = {
            name: self._wrap(np.array(column.read(start, stop)))
            for name, column in self._inputs.items()
        }
        inputs = read if len(read) > 1 else next(iter(read.values()))
        if self._labels is None:
            return (inputs,)
        labels = self._labels.read_texts(start, stop)
        return inputs, named_labels(self._labels, labels, self.classes, start)


def _find_inputs(path: Path, columns: dict[str, Column], names: Sequence[str]) -> dict[str, Column]:
    """Columns of the inputs: those of the model by name, or the one called so."""
    known = next((name for name in INPUTS if name in columns), None)
    chosen = [name for name in names if name in columns]
    if not chosen or (len(chosen) < len(names) and known is not None):
        chosen = [] if known is None else [known]
    if not chosen:
        also = f", or one for each of {', '.join(names)}" if names else ""
        raise InputError(
            f"{path}: there is no array 'inputs'{also}; there are {', '.join(sorted(columns))}."
        )
    for name in chosen:
        column = columns[name]
        column.require_usable()
        if column.dtype.kind not in "fiub" or len(column.shape) < 2:
            raise column.error(
                f"has shape {column.shape} and type {column.dtype}; it must hold numbers, one row "
                "per sample."
            )
    return {name: columns[name] for name in chosen}


@final
class _Images:
    """The images of a folder; subfolders are classes."""

    def __init__(
        self, path: Path, transform: str | None, classes: Array | None, wrap: Wrap
    ) -> None:
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
        own = None if transform is None else find_function(transform, "transform")
        self._transform = own or (lambda image: wrap(_colours(image)))

    def __len__(self) -> int:
        return len(self._files)

    def read(self, start: int, stop: int) -> tuple[Any, ...]:
        """Arrays and labels of the images `start` up to `stop`."""
        files = self._files[start:stop]
        batch = _stack([self._read(file) for file in files], files)
        labels = np.array([file.parent.name for file in files])
        return (batch, labels) if self._labelled else (batch,)

    def _read(self, file: Path) -> Any:
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as error:
            raise InputError(
                'folders of images need Pillow, which is not installed. Install "pillow".'
            ) from error
        try:
            with Image.open(file) as image:
                array = self._transform(image.convert("RGB"))
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise InputError(f"{file}: not a readable image ({error}). Remove it.") from error
        if not is_array(array):
            raise InputError(
                f"transform must return a tensor or an array; it returned a {type(array).__name__}."
            )
        return array


def _colours(image: Any) -> Array:
    """Red, green and blue between 0 and 1, of shape (3, height, width)."""
    values: Array = np.asarray(image, dtype=np.float32) / 255.0
    return values.transpose(2, 0, 1)


def _stack(arrays: list[Any], files: list[Path]) -> Any:
    for array, file in zip(arrays, files, strict=True):
        if array.shape != arrays[0].shape:
            raise InputError(
                f"{file}: this image becomes a tensor of shape {tuple(array.shape)}, and "
                f"{files[0]} one of {tuple(arrays[0].shape)}. Give a transform that makes them "
                "alike (--transform MODULE:FUNCTION)."
            )
    if type(arrays[0]).__module__.partition(".")[0] == "torch":
        import torch

        return torch.stack(arrays)
    return np.stack(arrays)


def find_function(spec: str, what: str) -> Callable[..., Any]:
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
