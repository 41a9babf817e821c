"""The paper's five datasets as they lie on disk; no image is opened.

Each function turns a folder into an `ImageSet`; `load_dataset` picks one by name.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from trustsets._common.arrays import Array
from trustsets.errors import InputError
from trustsets.paper.images.folders import (
    SHOWN,
    by_folders,
    class_folders,
    class_names,
    find_file,
    flattened,
    folder_listing,
    images_in,
    read_list,
)
from trustsets.paper.images.listing import ImageSet, Listing
from trustsets.paper.layout import POOL, TEST, TRAIN, VAL

__all__ = ["DATASETS", "load_dataset"]

LONG_TAIL_SOURCE = "https://github.com/facebookresearch/classifier-balancing/tree/main/data"
PLACES_TRAIN_FOLDERS = (
    "train",
    "data_256_standard",
    "data_256",
    "data_large_standard",
    "data_large",
)
PLACES_VAL_FOLDERS = ("val", "val_256", "val_large")
# Where lists and tables may lie, seen from the images.
NEAR = (".", "..", "../..")
TRAINING_SHARE = 0.7
SKIN_TYPES = {str(number): str(number) for number in range(1, 7)} | {"-1": "unknown"}
SKIN_TYPE_COLUMNS = ("fitzpatrick_scale", "fitzpatrick")
SKIN_SUFFIXES = (".jpg", ".jpeg", ".png", "")


def load_dataset(name: str, images: Path, *, lists: Path | None = None, seed: int = 0) -> ImageSet:
    """List the images of a dataset.

    Parameters
    ----------
    name : str
        One of `DATASETS`.
    images : path
        Folder of the images.
    lists : path, optional
        Folder of the lists or tables that go with the images, or the one file where there is
        one; by default they are looked for beside the images.
    seed : int
        Of the training split of ``fitzpatrick17k``; nothing else is drawn.
    """
    if name not in DATASETS:
        raise InputError(f"dataset must be one of {', '.join(DATASETS)}; got {name!r}.")
    if not images.is_dir():
        raise InputError(f"images={images} is no folder; give the one that holds {name}.")
    if lists is not None and not lists.exists():
        raise InputError(f"lists={lists} does not exist; give a folder, or leave it out.")
    near = [images / step for step in NEAR] if lists is None else [lists]
    return DATASETS[name](images, near, seed)


def _read_table(
    name: str, near: Sequence[Path], columns: Sequence[str], remedy: str
) -> tuple[Path, Any]:
    """A table that stands alone: the file that was given, or the one of that name."""
    path = near[0] if near[0].is_file() else find_file(name, near)
    if path is None:
        raise InputError(remedy)
    rows = pd.read_csv(path, dtype=str)
    absent = [column for column in columns if column not in rows]
    if absent:
        raise InputError(f"{path} needs the columns {columns}; {absent} is not there.")
    return path, rows


def _imagenet(images: Path, near: Sequence[Path], _: int) -> ImageSet:
    absent = [part for part in (TRAIN, VAL) if not (images / part).is_dir()]
    if absent:
        raise InputError(
            f"images={images} must hold the folders train and val of ILSVRC2012; "
            f"{', '.join(absent)} is not there."
        )
    if class_folders(images / VAL):
        return by_folders("imagenet", images)
    classes = tuple(class_folders(images / TRAIN))
    train, pool = folder_listing(images, TRAIN, classes), _flat_imagenet(images, near, classes)
    return ImageSet("imagenet", classes, {TRAIN: train, POOL: pool})


def _flat_imagenet(images: Path, near: Sequence[Path], classes: Sequence[str]) -> Listing:
    """Validation images without class folders; a table says the class of each."""
    table, rows = _read_table(
        "LOC_val_solution.csv",
        near,
        ("ImageId", "PredictionString"),
        f"{images / 'val'} holds images without class folders, so their labels are not known. "
        "Move each into val/CLASS/ with the class of the training folders (the validation "
        "ground truth of the development kit, ILSVRC2012_devkit_t12, has the order), or put "
        "LOC_val_solution.csv of the Kaggle release beside val/ or name it with --lists.",
    )
    synset = dict(zip(rows["ImageId"], rows["PredictionString"].str.split().str[0], strict=True))
    codes = {name: code for code, name in enumerate(classes)}
    found = images_in(images / "val")
    unknown = [name for name in found if synset.get(Path(name).stem) not in codes]
    if unknown:
        raise InputError(
            f"{table} gives no class of the training folders for {len(unknown)} images of "
            f"{images / 'val'}, such as {unknown[:SHOWN]}."
        )
    labels = [codes[synset[Path(name).stem]] for name in found]
    return Listing(images, [f"val/{name}" for name in found], labels)


def _long_tail(name: str, stem: str, images: Path, near: Sequence[Path], _: int) -> ImageSet:
    """Three lists ``STEM_train.txt``, ``STEM_val.txt`` and ``STEM_test.txt``."""
    folders = [*near, *(folder / sub for folder in near for sub in (stem, f"{stem}_v2"))]
    contents = {}
    for part in (TRAIN, VAL, TEST):
        path = find_file(f"{stem}_{part}.txt", folders)
        if path is None:
            raise InputError(
                f"{stem}_{part}.txt (lines of 'path label') is neither beside the images nor where "
                f"--lists points; the public lists are at {LONG_TAIL_SOURCE}/{stem}."
            )
        contents[part] = read_list(path)
    n_classes = 1 + max(int(labels.max(initial=0)) for _, labels in contents.values())
    parts = {
        part: Listing(images, flattened(images, paths), labels)
        for part, (paths, labels) in contents.items()
    }
    return ImageSet(name, class_names(*contents[TRAIN], n_classes), parts)


def _places365(images: Path, near: Sequence[Path], _: int) -> ImageSet:
    """One archive with class folders, or two with lists of their files and categories."""
    if all((images / part).is_dir() for part in (TRAIN, VAL)) and class_folders(images / VAL):
        return by_folders("places365", images)
    folders = [*near, *(folder / "filelist_places365-standard" for folder in near)]
    names = ("places365_train_standard.txt", "places365_val.txt", "categories_places365.txt")
    found = [find_file(name, folders) for name in names]
    absent = [name for name, path in zip(names, found, strict=True) if path is None]
    train, val = (
        next((name for name in choice if (images / name).is_dir()), None)
        for choice in (PLACES_TRAIN_FOLDERS, PLACES_VAL_FOLDERS)
    )
    if absent or train is None or val is None:
        raise InputError(
            f"{images} is in neither form of Places365. Either train/CLASS/ and val/CLASS/ (the "
            "archive places365standard_easyformat.tar), or a folder out of "
            f"{PLACES_TRAIN_FOLDERS}, one out of {PLACES_VAL_FOLDERS}, and the lists {names} "
            f"(filelist_places365-standard.tar). Not found: {absent or 'a folder of images'}."
        )
    train_list, val_list, categories = (read_list(path) for path in found if path is not None)
    order = np.argsort(categories[1], kind="stable")
    # Official names begin with their initial: a/airfield.
    classes = tuple(categories[0][place].partition("/")[2] for place in order)
    parts = {TRAIN: (train, train_list), POOL: (val, val_list)}
    listings = {
        part: Listing(images, [f"{folder}/{path}" for path in paths], labels)
        for part, (folder, (paths, labels)) in parts.items()
    }
    return ImageSet("places365", classes, listings)


def _fitzpatrick17k(images: Path, near: Sequence[Path], seed: int) -> ImageSet:
    table, rows = _read_table(
        "fitzpatrick17k.csv",
        near,
        ("md5hash", "label"),
        "fitzpatrick17k.csv is neither beside the images nor where --lists points; it is at "
        "https://github.com/mattgroh/fitzpatrick17k.",
    )
    if rows[["md5hash", "label"]].isna().any(axis=None):
        raise InputError(f"{table} has rows without md5hash or label; restore the original file.")
    classes, labels = np.unique(rows["label"].to_numpy(dtype=str), return_inverse=True)
    files, types = _skin_files(images, rows["md5hash"]), _skin_types(table, rows)
    # Missing images are drawn like all others.
    order = np.random.default_rng(seed).permutation(len(rows))
    drawn = np.split(order, [round(TRAINING_SHARE * len(rows))])
    parts = {
        part: Listing(images, files[own], labels[own], {"skin_type": types[own]})
        for part, own in zip((TRAIN, POOL), map(np.sort, drawn), strict=True)
    }
    return ImageSet("fitzpatrick17k", tuple(classes.tolist()), parts, seed)


def _skin_files(images: Path, hashes: Iterable[str]) -> Array:
    """File of each image: its hash with one of the usual endings."""
    there = {path.name for path in images.iterdir()}
    choices = ([own + suffix for suffix in SKIN_SUFFIXES] for own in hashes)
    return np.array([next(filter(there.__contains__, own), own[0]) for own in choices])


def _skin_types(table: Path, rows: Any) -> Array:
    column = next((name for name in SKIN_TYPE_COLUMNS if name in rows), None)
    if column is None:
        raise InputError(f"{table} needs a column {' or '.join(SKIN_TYPE_COLUMNS)}.")
    scale = rows[column].fillna("-1").str.strip().str.removesuffix(".0")
    unknown = sorted(set(scale) - set(SKIN_TYPES))
    if unknown:
        raise InputError(
            f"{table}, column {column}: skin types are 1 to 6, and -1 for unknown; got {unknown}."
        )
    return np.array([SKIN_TYPES[value] for value in scale])


DATASETS: dict[str, Callable[[Path, Sequence[Path], int], ImageSet]] = {
    "imagenet": _imagenet,
    "imagenet-lt": partial(_long_tail, "imagenet-lt", "ImageNet_LT"),
    "places365": _places365,
    "places365-lt": partial(_long_tail, "places365-lt", "Places_LT"),
    "fitzpatrick17k": _fitzpatrick17k,
}
"""Readers by the name of the dataset."""
