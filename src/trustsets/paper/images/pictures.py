"""Opening images: decoding, cropping, and the reasons of those that could not be read."""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trustsets._common.blocks import available_cores
from trustsets.paper.images.listing import Listing
from trustsets.paper.images.vision import transforms

__all__ = ["ImageBatch", "Images", "Transform", "consecutive_batches", "evaluation_transform"]

Transform = Callable[[Any], Any]


class ImageBatch(NamedTuple):
    """Readable images of a batch, (n, 3, size, size) uint8, and their rows in the listing.

    `failures` has row and reason of the others.
    """

    images: Tensor
    rows: Tensor
    failures: list[tuple[int, str]]


def evaluation_transform(resize: int, size: int) -> Transform:
    """Shorter side to `resize`, then the central square of `size`."""
    steps: Transform = transforms.Compose(
        [transforms.Resize(resize), transforms.CenterCrop(size), transforms.PILToTensor()]
    )
    return steps


@final
class Images(Dataset[Any]):
    """Images of a listing, by row or by (row, seed of its augmentation).

    Parameters
    ----------
    listing : Listing
    transform : callable
        From a PIL image in RGB to a uint8 tensor of one shape.
    """

    def __init__(self, listing: Listing, transform: Transform) -> None:
        self._listing = listing
        self._transform = transform

    def __len__(self) -> int:
        return len(self._listing)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[int, Tensor | str]:
        """Row, and the image or why there is none."""
        row, seed = key if isinstance(key, tuple) else (key, None)
        try:
            image = _open(self._listing, row)
        except _UNREADABLE as error:
            return row, _reason(error)
        if seed is None:
            return row, self._transform(image)
        # The draws belong to the sample alone, whichever process makes them.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return row, self._transform(image)

    def reason(self, row: int) -> str | None:
        """Why an image cannot be read, or None."""
        try:
            _open(self._listing, row)
        except _UNREADABLE as error:
            return _reason(error)
        return None

    def loader(
        self, batches: Iterable[Sequence[Any]], workers: int | None, place: torch.device
    ) -> "DataLoader[Any]":
        """Batches of the given keys for a device, decoded by `workers` processes.

        With 0 workers, this process decodes; with None there is one for each core.
        """
        return DataLoader(
            self,
            batch_sampler=batches,  # type: ignore[arg-type]
            num_workers=available_cores() if workers is None else workers,
            collate_fn=_collate,
            pin_memory=place.type == "cuda",
        )


# What Pillow raises for files that are no images, cut short, too large, or oddly made.
_UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, struct.error)


def _open(listing: Listing, row: int) -> Any:
    from PIL import Image

    try:
        with Image.open(listing.root / listing.path(row)) as image:
            return image.convert("RGB")
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image"
    return " ".join(str(error).split()) or type(error).__name__


def _collate(items: list[tuple[int, Tensor | str]]) -> ImageBatch:
    images = [image for _, image in items if isinstance(image, Tensor)]
    rows = [row for row, image in items if isinstance(image, Tensor)]
    failures = [(row, reason) for row, reason in items if isinstance(reason, str)]
    stacked = torch.stack(images) if images else torch.empty(0, dtype=torch.uint8)
    return ImageBatch(stacked, torch.tensor(rows, dtype=torch.int64), failures)


def consecutive_batches(start: int, n: int, size: int) -> list[range]:
    """Rows ``start..n-1`` in batches of `size`."""
    return [range(first, min(first + size, n)) for first in range(start, n, size)]
