"""Opening images: decoding, cropping, and the reasons of those that could not be read."""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trustsets._common.blocks import available_cores
from trustsets._common.progress import progress_bar
from trustsets.errors import InputError
from trustsets.paper.images.listing import Listing
from trustsets.paper.images.unreadable import UnreadableImages

__all__ = ["Images", "Transform", "WorkOptions"]

Transform = Callable[[Any], Any]


@dataclass(frozen=True)
class WorkOptions:
    """How images are decoded and run; extraction and training have more options of their own.

    Attributes
    ----------
    device : str
        ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU where there is one.
    workers : int, optional
        Processes that decode images; 0 decodes in this one, None has one for each core.
    max_unreadable : int
        How many images in all may be missing or damaged before it is an error.
    progress : bool, optional
        Show progress bars; by default on a terminal.
    """

    device: str = "cpu"
    workers: int | None = 0
    max_unreadable: int = 100
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name in ("workers", "max_unreadable") else 1
            if type(value) is int and value < least:
                rule = "at least 1" if least else "0 or more"
                raise InputError(f"{name} must be {rule}; got {value}.")


@final
class Images(Dataset[Any]):
    """Images of one part of a dataset, by (row, seed of its augmentation, if it has any).

    `transform` makes a uint8 tensor of one shape from a PIL image in RGB.
    """

    def __init__(self, part: str, listing: Listing, transform: Transform) -> None:
        self.part, self.listing = part, listing
        self._transform = transform

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, key: tuple[int, int | None]) -> tuple[int, Tensor | str]:
        """Row, and the image or why there is none."""
        row, seed = key
        image = self.open(row)
        if isinstance(image, str):
            return row, image
        if seed is None:
            return row, self._transform(image)
        # The draws belong to the sample alone, whichever process makes them.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return row, self._transform(image)

    def open(self, row: int) -> Any:
        """An image in RGB, or the text that says why it cannot be read."""
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(self.listing.root / self.listing.path(row)) as image:
                return image.convert("RGB")
        except FileNotFoundError:
            return "no such file"
        except UnidentifiedImageError:
            return "not an image"
        except (Image.DecompressionBombError, *_UNREADABLE) as error:
            return " ".join(str(error).split()) or type(error).__name__

    def batches(
        self,
        keys: Iterable[Sequence[Any]],
        title: str,
        done: int,
        options: WorkOptions,
        unreadable: UnreadableImages,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Decode batches of keys under a progress bar; images that came before are `done`.

        Gives the readable images, (n, 3, size, size) uint8, and their rows in the listing.
        """
        loader: DataLoader[Any] = DataLoader(
            self,
            batch_sampler=keys,  # type: ignore[arg-type]
            num_workers=available_cores() if options.workers is None else options.workers,
            collate_fn=_collate,
            pin_memory=options.device != "cpu" and torch.cuda.is_available(),
        )
        bar = progress_bar(title, len(self), done=done, unit="images", wanted=options.progress)
        with bar as advance:
            for images, rows, failures in loader:
                unreadable.add(self.part, self.listing, failures)
                yield images, rows
                advance(len(rows) + len(failures))


# What Pillow raises besides for files that are cut short, too large, or oddly made.
_UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, struct.error)


def _collate(items: list[tuple[int, Tensor | str]]) -> tuple[Tensor, Tensor, list[Any]]:
    images = [image for _, image in items if isinstance(image, Tensor)]
    rows = [row for row, image in items if isinstance(image, Tensor)]
    failures = [(row, reason) for row, reason in items if isinstance(reason, str)]
    stacked = torch.stack(images) if images else torch.empty(0, dtype=torch.uint8)
    return stacked, torch.tensor(rows, dtype=torch.int64), failures
