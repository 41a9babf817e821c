"""Images and texts of samples: read from the given folder only, and made anew before they go."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

__all__ = ["Gallery", "Train"]

_LONGEST_TEXT = 5000
_LARGEST_IMAGE = 512
_MOST_PIXELS = 50_000_000
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


@final
@dataclass(frozen=True, eq=False)
class Train:
    """Features and labels of the training samples."""

    features: Array
    labels: Array


@final
@dataclass(frozen=True, eq=False)
class Gallery:
    """Images and texts of samples, by part (``held_out`` or ``train``) and row.

    Attributes
    ----------
    train : Train, optional
        The training samples, among which the nearest are looked for.
    folder : path, optional
        Where images are; nothing outside it is ever read.
    files : dict
        Names of the image files of each part, within the folder.
    arrays : dict
        Images of each part as arrays, instead of files.
    texts : dict
        Texts of each part.
    """

    train: Train | None = None
    folder: Path | None = None
    files: dict[str, Sequence[str]] | None = None
    arrays: dict[str, Array] | None = None
    texts: dict[str, Sequence[str]] | None = None

    def has_image(self, part: str, row: int) -> bool:
        """Whether there is an image of a sample."""
        return any(row < len((own or {}).get(part, ())) for own in (self.files, self.arrays))

    def text(self, part: str, row: int) -> str | None:
        """The text of a sample, or None."""
        own = (self.texts or {}).get(part, ())
        return str(own[row])[:_LONGEST_TEXT] if row < len(own) else None

    def image(self, part: str, row: int) -> bytes | None:
        """The image of a sample, made anew as a small PNG; None where there is none."""
        from PIL import Image

        if not self.has_image(part, row):
            return None
        try:
            if self.arrays is not None:
                return _small_png(Image.fromarray(_pixels(self.arrays[part][row])))
            path = self._inside(part, row)
            if path is None:
                return None
            with Image.open(path, formats=_FORMATS) as image:
                width, height = image.size
                # Before anything is unpacked: a small file may claim a huge image.
                return None if width * height > _MOST_PIXELS else _small_png(image)
        except Exception:
            # Files that are no images fail in as many ways as there are formats.
            return None

    def _inside(self, part: str, row: int) -> Path | None:
        """The file of an image, if links and dots do not lead out of the folder."""
        if self.folder is None or self.files is None:
            return None
        folder = self.folder.resolve()
        # Unlike Path.resolve, this reports a loop of links as an OSError in every Python.
        path = Path(os.path.realpath(folder / str(self.files[part][row]), strict=True))
        return path if path.is_relative_to(folder) and path.is_file() else None


def _pixels(values: Array) -> NDArray[np.uint8]:
    """Grey or colour values as bytes; real numbers are taken to lie between 0 and 1."""
    if values.dtype == np.uint8:
        return values
    return np.asarray(np.rint(255.0 * np.clip(np.nan_to_num(values), 0.0, 1.0)), dtype=np.uint8)


def _small_png(image: Any) -> bytes:
    image.thumbnail((_LARGEST_IMAGE, _LARGEST_IMAGE))
    out = io.BytesIO()
    image.convert("RGB").save(out, format="PNG")
    return out.getvalue()
