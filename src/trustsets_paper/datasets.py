"""The paper's five datasets as they lie on disk; no image is opened.

They are published as class folders, lists of ``path label`` lines and CSV tables.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.model_selection import train_test_split

from trustsets.errors import InputError
from trustsets.storage import atomic_path
from trustsets_paper import Array, Ints
from trustsets_paper.sources import POOL, TEST, TRAIN, VAL

__all__ = ["DATASETS", "ImageSet", "Listing", "check_class_order", "load_dataset"]

SHOWN = 5
"""How many names an error shows of a long list."""
_IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Where lists and tables may lie, seen from the images; Kaggle's lie three levels up.
_NEAR = (".", "..", "../..", "../../..")
_KAGGLE_IMAGES = "ILSVRC/Data/CLS-LOC"
_LONG_TAIL_LISTS = "https://github.com/facebookresearch/classifier-balancing/tree/main/data"
_PLACES_TRAIN = ("train", "data_256_standard", "data_256", "data_large_standard", "data_large")
_PLACES_VAL = ("val", "val_256", "val_large")
_TRAINING_SHARE = 0.7
_SKIN_TYPES = {str(number): str(number) for number in range(1, 7)} | {"-1": "unknown"}
_SKIN_TYPE = "fitzpatrick_scale"
_SKIN_SUFFIXES = (".jpg", ".jpeg", ".png", "")
_SKIN_SITE = "https://github.com/mattgroh/fitzpatrick17k"
# The lists of Places365-LT number five classes otherwise than the class folders of Places365, which
# are in the official order.
_FOLDER_ORDER = ("desert-sand", "desert-vegetation", "desert_road", "field-wild", "field_road")
_LIST_ORDER = ("desert_road", "desert-sand", "desert-vegetation", "field_road", "field-wild")


@final
class Listing:
    """Images of one part of a dataset, in the order in which they are run.

    `paths` start from `root`, and `labels` are positions in the class names. With `scanned` the
    paths were read from the folders themselves, so that none is missing.
    """

    def __init__(
        self,
        root: Path,
        paths: Iterable[str],
        labels: Sequence[int] | Ints,
        groups: Mapping[str, Array] | None = None,
        *,
        scanned: bool = False,
    ) -> None:
        self.root, self.groups, self._scanned = root, groups or {}, scanned
        # Arrow keeps a million paths in one block, which worker processes share; Python strings
        # would be copied into each of them.
        self._paths = pa.array(list(paths), pa.string())
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, row: int) -> str:
        """Path of one image below the root."""
        return str(self._paths[row].as_py())

    def missing(self) -> list[int]:
        """Rows of images whose files are not there."""
        if self._scanned:
            return []
        return [row for row in range(len(self)) if not (self.root / self.path(row)).is_file()]

    def digest(self) -> str:
        """SHA-256 of paths and labels; the root does not enter, so images may move."""
        digest = hashlib.sha256(np.ascontiguousarray(self.labels).data)
        for path in self._paths:
            digest.update(path.as_py().encode() + b"\0")
        return digest.hexdigest()

    def write(self, path: Path) -> None:
        """Write paths, labels and groups as a Parquet table."""
        columns = {"path": self._paths, "label": self.labels, **self.groups}
        with atomic_path(path) as temporary:
            pq.write_table(pa.table(columns), temporary)


@final
@dataclass(frozen=True, eq=False)
class ImageSet:
    """A dataset: its classes, and the images of each of its parts."""

    name: str
    classes: tuple[str, ...]  # a label is a position in them
    parts: Mapping[str, Listing]  # train and pool, or train, val and test
    seed: int | None = None  # of the training split, where it is drawn

    def __post_init__(self) -> None:
        for part, listing in self.parts.items():
            if len(listing) == 0:
                raise InputError(
                    f"{self.name} has no images in its part {part!r} under {listing.root}; check "
                    "--images."
                )
            if listing.labels.max() >= len(self.classes):
                raise InputError(
                    f"{self.name}, part {part!r}: has a label {listing.labels.max()}, and there "
                    f"are only {len(self.classes)} classes; labels count from 0."
                )


def load_dataset(name: str, images: Path, *, lists: Path | None = None, seed: int = 0) -> ImageSet:
    """List the images of one of `DATASETS`.

    `lists` is the folder of its lists or tables; by default they are looked for beside the images.
    `seed` is that of the training split of ``fitzpatrick17k``.
    """
    if name not in DATASETS:
        raise InputError(f"dataset must be one of {', '.join(DATASETS)}; got {name!r}.")
    if not images.is_dir():
        raise InputError(f"images={images} is no folder; give the one that holds {name}.")
    if lists is not None and not lists.is_dir():
        raise InputError(f"lists={lists} is no folder; give one, or leave it out.")
    near = [images / step for step in _NEAR] if lists is None else [lists]
    if name.startswith("imagenet") and (images / _KAGGLE_IMAGES).is_dir():
        images = images / _KAGGLE_IMAGES
    return DATASETS[name](images, near, seed)


# --- class folders, lists and tables


def _class_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )


def _images_in(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    return sorted(name for name in names if name.lower().endswith(_IMAGE_SUFFIXES))


def _folder_listing(root: Path, part: str, classes: Sequence[str]) -> Listing:
    """Images of ``root/part/CLASS/``, by class and name."""
    pairs = [
        (f"{part}/{name}/{image}", code)
        for code, name in enumerate(classes)
        for image in _images_in(root / part / name)
    ]
    return Listing(root, (path for path, _ in pairs), [code for _, code in pairs], scanned=True)


def _by_folders(name: str, root: Path) -> ImageSet:
    """The dataset in ``train/CLASS/`` and ``val/CLASS/``, which must have the same classes."""
    classes, others = (_class_folders(root / part) for part in (TRAIN, VAL))
    different = sorted(set(classes) ^ set(others))
    if different:
        raise InputError(
            f"{root / TRAIN} and {root / VAL} must have the same class folders; "
            f"{len(different)} are in one alone, such as {different[:SHOWN]}."
        )
    train, pool = (_folder_listing(root, part, classes) for part in (TRAIN, VAL))
    return ImageSet(name, tuple(classes), {TRAIN: train, POOL: pool})


def _find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """The named file in the first folder that has it."""
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _read_list(path: Path) -> tuple[list[str], Ints]:
    """Paths and labels of a list with one ``path label`` a line."""
    paths: list[str] = []
    labels: list[int] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        fields = line.rsplit(None, 1)
        if len(fields) != 2 or not fields[1].isdecimal():
            raise InputError(
                f"{path}, line {number}: must be 'path label', labels from 0; got {line!r}."
            )
        paths.append(fields[0].strip().lstrip("/"))
        labels.append(int(fields[1]))
    return paths, np.array(labels, dtype=np.int64)


def _read_table(
    name: str, near: Sequence[Path], columns: Sequence[str], remedy: str
) -> tuple[Path, Any]:
    """Read the table of that name, which must have these columns."""
    path = _find_file(name, near)
    if path is None:
        raise InputError(remedy)
    rows = pd.read_csv(path, dtype=str)
    absent = [column for column in columns if column not in rows]
    if absent:
        raise InputError(f"{path} needs the columns {columns}; {absent} is not there.")
    return path, rows


def _class_names(paths: Sequence[str], labels: Ints, n_classes: int) -> tuple[str, ...]:
    """Names of the folders between the first and the file, or numbers if those are not unique."""
    names: list[set[str]] = [set() for _ in range(n_classes)]
    for path, label in zip(paths, labels.tolist(), strict=True):
        names[label].add("/".join(PurePosixPath(path).parts[1:-1]))
    if all(len(name) == 1 for name in names) and len(set.union(*names) - {""}) == n_classes:
        return tuple(name.pop() for name in names)
    return tuple(str(code) for code in range(n_classes))


def _flattened(root: Path, paths: Sequence[str]) -> list[str]:
    """Drop class folders that an archive does not have: ``val/CLASS/x`` becomes ``val/x``.

    One file decides for each first folder.
    """
    flat: dict[str, bool] = {}
    result: list[str] = []
    for path in paths:
        top, name = path.partition("/")[0], path.rpartition("/")[2]
        if top not in flat:
            flat[top] = not (root / path).exists() and (root / top / name).is_file()
        result.append(f"{top}/{name}" if flat[top] else path)
    return result


# --- the datasets


def _imagenet(images: Path, near: Sequence[Path], _: int) -> ImageSet:
    absent = [part for part in (TRAIN, VAL) if not (images / part).is_dir()]
    if absent:
        raise InputError(
            f"images={images} must hold the folders train and val of ILSVRC2012; "
            f"{', '.join(absent)} is not there."
        )
    if _class_folders(images / VAL):
        return _by_folders("imagenet", images)
    classes = tuple(_class_folders(images / TRAIN))
    train, pool = _folder_listing(images, TRAIN, classes), _flat_imagenet(images, near, classes)
    return ImageSet("imagenet", classes, {TRAIN: train, POOL: pool})


def _flat_imagenet(images: Path, near: Sequence[Path], classes: Sequence[str]) -> Listing:
    """Validation images without class folders; a table says the class of each."""
    table, rows = _read_table(
        "LOC_val_solution.csv",
        near,
        ("ImageId", "PredictionString"),
        f"{images / 'val'} holds images without class folders, so their labels are not known. "
        "Move each into val/CLASS/, or put LOC_val_solution.csv of the Kaggle release beside val/ "
        "or name it with --lists.",
    )
    synset = dict(zip(rows["ImageId"], rows["PredictionString"].str.split().str[0], strict=True))
    codes = {name: code for code, name in enumerate(classes)}
    names = _images_in(images / "val")
    unknown = [name for name in names if synset.get(Path(name).stem) not in codes]
    if unknown:
        raise InputError(
            f"{table} gives no class of the training folders for {len(unknown)} images of "
            f"{images / 'val'}, such as {unknown[:SHOWN]}."
        )
    labels = np.array([codes[synset[Path(name).stem]] for name in names], dtype=np.int64)
    # By class and name, the order of class folders, which the authors' splits depend on.
    order = np.argsort(labels, kind="stable")
    return Listing(images, [f"val/{names[row]}" for row in order], labels[order])


def _long_tail(name: str, stem: str, images: Path, near: Sequence[Path], _: int) -> ImageSet:
    """Three lists ``STEM_train.txt``, ``STEM_val.txt`` and ``STEM_test.txt``."""
    folders = [*near, *(folder / sub for folder in near for sub in (stem, f"{stem}_v2"))]
    contents = {}
    for part in (TRAIN, VAL, TEST):
        path = _find_file(f"{stem}_{part}.txt", folders)
        if path is None:
            raise InputError(
                f"{stem}_{part}.txt (lines of 'path label') is neither beside the images nor where "
                f"--lists points; the public lists are at {_LONG_TAIL_LISTS}/{stem}."
            )
        contents[part] = _read_list(path)
    n_classes = 1 + max(int(labels.max(initial=0)) for _, labels in contents.values())
    train, val = _places_folders(images)
    archives = name == "places365-lt" and not (images / TRAIN).is_dir() and train and val
    parts = {}
    for part, (paths, labels) in contents.items():
        files = [_in_archives(path, str(train), str(val)) for path in paths] if archives else paths
        parts[part] = Listing(images, files if archives else _flattened(images, paths), labels)
    return ImageSet(name, _class_names(*contents[TRAIN], n_classes), parts)


def _places_folders(images: Path) -> tuple[str | None, str | None]:
    """Folders of the two archives of Places365, for training and validation."""
    train, val = (
        next((name for name in choice if (images / name).is_dir()), None)
        for choice in (_PLACES_TRAIN, _PLACES_VAL)
    )
    return train, val


def _in_archives(path: str, train: str, val: str) -> str:
    """Where a file of a long-tail list lies in the two archives of Places365."""
    part, name, file = path.split("/")
    folder = f"{train}/{name[0]}/{name.replace('-', '/')}" if part == TRAIN else val
    return f"{folder}/{file}"


def _places365(images: Path, near: Sequence[Path], _: int) -> ImageSet:
    """One archive with class folders, or two with lists of their files and categories."""
    if all((images / part).is_dir() for part in (TRAIN, VAL)) and _class_folders(images / VAL):
        return _by_folders("places365", images)
    folders = [*near, *(folder / "filelist_places365-standard" for folder in near)]
    names = ("places365_train_standard.txt", "places365_val.txt", "categories_places365.txt")
    paths = [_find_file(name, folders) for name in names]
    absent = [name for name, path in zip(names, paths, strict=True) if path is None]
    train, val = _places_folders(images)
    if absent or train is None or val is None:
        raise InputError(
            f"{images} is in neither form of Places365: train/CLASS/ and val/CLASS/ (the archive "
            f"places365standard_easyformat.tar), or one of {_PLACES_TRAIN}, one of {_PLACES_VAL}, "
            f"and the lists of filelist_places365-standard.tar. Not found: {absent or 'images'}."
        )
    train_list, val_list, categories = (_read_list(path) for path in paths if path is not None)
    order = np.argsort(categories[1], kind="stable")
    # Official names begin with their initial: a/airfield.
    classes = tuple(categories[0][position].partition("/")[2] for position in order)
    parts = {TRAIN: (train, train_list), POOL: (val, val_list)}
    listings = {
        part: Listing(images, [f"{folder}/{path}" for path in files], labels)
        for part, (folder, (files, labels)) in parts.items()
    }
    return ImageSet("places365", classes, listings)


def _fitzpatrick17k(images: Path, near: Sequence[Path], seed: int) -> ImageSet:
    table, rows = _read_table(
        "fitzpatrick17k.csv",
        near,
        ("md5hash", "label", _SKIN_TYPE),
        "fitzpatrick17k.csv is neither beside the images nor where --lists points; it is at "
        f"{_SKIN_SITE}.",
    )
    if rows[["md5hash", "label"]].isna().any(axis=None):
        raise InputError(f"{table} has rows without md5hash or label; restore the original file.")
    classes, labels = np.unique(rows["label"].to_numpy(dtype=str), return_inverse=True)
    files, types = _skin_files(images, rows), _skin_types(table, rows)
    # Missing images are drawn like all others, so that the split does not depend on them.
    try:
        drawn = train_test_split(
            np.arange(len(rows)), train_size=_TRAINING_SHARE, random_state=seed, stratify=labels
        )
    except ValueError as error:
        raise InputError(f"{table} cannot be split by condition: {error}.") from error
    parts = {
        part: Listing(images, files[chosen], labels[chosen], {"skin_type": types[chosen]})
        for part, chosen in zip((TRAIN, POOL), map(np.sort, drawn), strict=True)
    }
    return ImageSet("fitzpatrick17k", tuple(classes.tolist()), parts, seed)


def _skin_files(images: Path, rows: Any) -> Array:
    """File of each image: its hash with one of the usual endings, or its ``url_alphanum``."""
    there = {path.name for path in images.iterdir()}
    hashes = rows["md5hash"]
    addresses = rows["url_alphanum"] if "url_alphanum" in rows else hashes
    choices = [
        [*(name + suffix for suffix in _SKIN_SUFFIXES), str(address)]
        for name, address in zip(hashes, addresses, strict=True)
    ]
    if not any(there.intersection(names) for names in choices):
        raise InputError(
            f"images={images} holds no image that is named by its md5hash or url_alphanum. They "
            "come from the addresses in the column url, or from the authors on request: "
            f"{_SKIN_SITE}."
        )
    return np.array([next(filter(there.__contains__, names), names[0]) for names in choices])


def _skin_types(table: Path, rows: Any) -> Array:
    scale = rows[_SKIN_TYPE].fillna("-1").str.strip()
    unknown = sorted(set(scale) - set(_SKIN_TYPES))
    if unknown:
        raise InputError(f"{table}: {_SKIN_TYPE} is 1 to 6, and -1 for unknown; got {unknown}.")
    return np.array([_SKIN_TYPES[value] for value in scale])


def check_class_order(dataset: ImageSet, labels: Ints, predicted: Ints) -> None:
    """Refuse outputs of Places365 whose network numbers five classes otherwise."""
    codes = {name.replace("/", "-"): code for code, name in enumerate(dataset.classes)}
    if not dataset.name.startswith("places365") or not codes.keys() >= set(_FOLDER_ORDER):
        return
    by_folder = sorted(_FOLDER_ORDER, key=codes.__getitem__) == list(_FOLDER_ORDER)
    other = _LIST_ORDER if by_folder else _FOLDER_ORDER
    renumbered = np.arange(len(dataset.classes))
    renumbered[[codes[name] for name in other]] = sorted(codes[name] for name in other)
    rows = np.isin(labels, [codes[name] for name in other])
    right, otherwise = (
        np.count_nonzero(predicted[rows] == values[rows]) for values in (labels, renumbered[labels])
    )
    if otherwise > right:
        raise InputError(
            f"these weights number {', '.join(_FOLDER_ORDER)} otherwise than {dataset.name} does "
            f"here: {right} of {rows.sum()} samples of these classes are right, and {otherwise} in "
            "the other order. Give the weights of this dataset, or reorder their last layer."
        )


DATASETS: dict[str, Callable[[Path, Sequence[Path], int], ImageSet]] = {
    "imagenet": _imagenet,
    "imagenet-lt": partial(_long_tail, "imagenet-lt", "ImageNet_LT"),
    "places365": _places365,
    "places365-lt": partial(_long_tail, "places365-lt", "Places_LT"),
    "fitzpatrick17k": _fitzpatrick17k,
}
"""Readers by the name of the dataset."""
