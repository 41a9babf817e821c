"""Finding images and lists on disk: class folders, lists of ``path label`` lines, CSV files."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError
from trustsets.paper.images.listing import ImageSet, Listing
from trustsets.paper.layout import POOL, TRAIN, VAL

__all__ = [
    "by_folders",
    "class_folders",
    "class_names",
    "find_file",
    "flattened",
    "folder_listing",
    "images_in",
    "read_list",
]

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# How many names an error shows of a long list.
SHOWN = 5


def class_folders(folder: Path) -> list[str]:
    """Names of the subfolders, sorted."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )


def images_in(folder: Path) -> list[str]:
    """Names of the image files in a folder, sorted."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    return sorted(name for name in names if name.lower().endswith(IMAGE_SUFFIXES))


def folder_listing(root: Path, part: str, classes: Sequence[str]) -> Listing:
    """Images of ``root/part/CLASS/``, by class and name."""
    found = [
        (f"{part}/{name}/{image}", code)
        for code, name in enumerate(classes)
        for image in images_in(root / part / name)
    ]
    return Listing(root, (path for path, _ in found), [code for _, code in found], scanned=True)


def by_folders(name: str, root: Path) -> ImageSet:
    """The dataset in ``train/CLASS/`` and ``val/CLASS/``, which must have the same classes."""
    classes, others = (class_folders(root / part) for part in (TRAIN, VAL))
    different = sorted(set(classes) ^ set(others))
    if different:
        raise InputError(
            f"{root / TRAIN} and {root / VAL} must have the same class folders; "
            f"{len(different)} are in one alone, such as {different[:SHOWN]}."
        )
    train, pool = (folder_listing(root, part, classes) for part in (TRAIN, VAL))
    return ImageSet(name, tuple(classes), {TRAIN: train, POOL: pool})


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the named file in the first folder that has it; a file stands for its folder."""
    places = (place.parent if place.is_file() else place for place in folders)
    return next((folder / name for folder in places if (folder / name).is_file()), None)


def read_list(path: Path) -> tuple[list[str], NDArray[np.int64]]:
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


def class_names(paths: Sequence[str], labels: NDArray[np.int64], n_classes: int) -> tuple[str, ...]:
    """Names of the folders between the first and the file, or numbers if those are not unique.

    Examples
    --------
    >>> class_names(["train/cat/1.jpg", "train/dog/2.jpg"], np.array([0, 1]), 2)
    ('cat', 'dog')
    >>> class_names(["1.jpg", "2.jpg"], np.array([0, 1]), 2)
    ('0', '1')
    """
    found: dict[int, set[str]] = {}
    for path, label in zip(paths, labels.tolist(), strict=True):
        found.setdefault(label, set()).add("/".join(PurePosixPath(path).parts[1:-1]))
    names = [found.get(code, set()) for code in range(n_classes)]
    if all(len(own) == 1 for own in names) and len(set.union(*names) - {""}) == n_classes:
        return tuple(own.pop() for own in names)
    return tuple(str(code) for code in range(n_classes))


def flattened(root: Path, paths: Sequence[str]) -> list[str]:
    """Drop the class folder from paths of files that have none: ``val/CLASS/x`` to ``val/x``.

    Lists name class folders that a freshly unpacked archive does not have. One file decides
    for each first folder.
    """
    flat: dict[str, bool] = {}
    result: list[str] = []
    for path in paths:
        top, name = path.partition("/")[0], path.rpartition("/")[2]
        if top not in flat:
            flat[top] = not (root / path).exists() and (root / top / name).is_file()
        result.append(f"{top}/{name}" if flat[top] else path)
    return result
