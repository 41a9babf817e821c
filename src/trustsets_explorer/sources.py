"""Explorers of files and of the demo's tasks."""

from pathlib import Path
from typing import Any

from trustsets.demo import load
from trustsets.errors import InputError
from trustsets.files import open_columns, open_outputs, read_classes, read_training
from trustsets.outputs import ModelOutputs
from trustsets.trust import TrustScore
from trustsets_explorer.launch import Explorer, StrPath, explore

__all__ = ["explore_files", "explore_task"]

# Columns that may name the image file of each sample.
_IMAGE_COLUMNS = ("image", "path", "file", "id")


def explore_files(
    outputs: StrPath,
    *,
    train: StrPath | None = None,
    classes: StrPath | None = None,
    groups: tuple[str, ...] = (),
    images: StrPath | None = None,
    text: str | None = None,
    port: int = 0,
    browser: bool = True,
) -> Explorer:
    """Explore a file of labelled outputs; the parameters are those of ``trustsets explore``."""
    if images is not None and text is not None:
        raise InputError("samples have images or texts; give --images or --text, not both.")
    names = None if classes is None else read_classes(classes)
    source = open_outputs(outputs, groups=groups, classes=names)
    held_out = source.read_labelled("the explorer")
    given: dict[str, Any] = {"names": {"outputs": str(outputs)}}
    if train is not None:
        given["train"] = read_training(train, held_out.classes, source.table)
        given["trust"] = TrustScore().fit(*given["train"])
        given["names"]["train"] = str(train)
    if text is not None:
        given["texts"] = _texts(outputs, text)
        if train is not None and text in open_columns(train):
            given["train_texts"] = _texts(train, text)
    if images is not None:
        given |= {"images": Path(images), "image_names": _image_names(outputs)}
        given |= {} if train is None else {"train_images": _image_names(train)}
    return explore(held_out, port=port, browser=browser, **given)


def explore_task(name: str, *, seed: int = 0, port: int = 0, browser: bool = True) -> Explorer:
    """Explore the data of one of the demo's tasks."""
    task = load(name, seed)
    outputs = ModelOutputs.concat([task.calibration, task.test])
    images = None if task.images is None else task.images[outputs.rows]
    return explore(
        outputs,
        train=task.train,
        images=images,
        train_images=task.train_images,
        port=port,
        browser=browser,
    )


def _texts(path: StrPath, name: str) -> list[str]:
    columns = open_columns(path)
    if name not in columns:
        raise InputError(
            f"{path}: there is no array {name!r} of texts; there are {', '.join(sorted(columns))}."
        )
    column = columns[name]
    if len(column.shape) != 1:
        raise InputError(f"{path}: array {name!r} must hold one text for each sample.")
    found: list[str] = column.read_names(0, column.shape[0]).astype(str).tolist()
    return found


def _image_names(path: StrPath) -> list[str] | None:
    """Names of the image files, from the first column that may hold them."""
    columns = open_columns(path)
    known = next((name for name in _IMAGE_COLUMNS if name in columns), None)
    return None if known is None else _texts(path, known)
