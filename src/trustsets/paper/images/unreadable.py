"""Images that could not be read: they are named and counted, and too many are an error."""

from pathlib import Path
from typing import final

from trustsets._common import storage
from trustsets.errors import InputError
from trustsets.paper.images.folders import SHOWN
from trustsets.paper.images.listing import Listing
from trustsets.paper.layout import UNREADABLE

__all__ = ["UnreadableImages"]


@final
class UnreadableImages:
    """Collects names and reasons for ``unreadable.txt``.

    Parameters
    ----------
    folder : path
        Where the file goes.
    limit : int
        How many there may be.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._file = folder / UNREADABLE
        self._limit = limit
        self._reasons: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def add_missing(self, part: str, listing: Listing) -> None:
        """Add all images of a listing that are not there, before any work is done."""
        for row in listing.missing().tolist():
            self._reasons[part, listing.path(row)] = "no such file"
        self._check(listing)

    def add(self, part: str, listing: Listing, row: int, reason: str) -> None:
        """Add one image; once more than allowed are known, it is an error."""
        self._reasons[part, listing.path(row)] = reason
        self._check(listing)

    def lines(self) -> list[str]:
        """One line for each image, in the order of parts and paths."""
        return [
            f"{part}\t{path}\t{reason}" for (part, path), reason in sorted(self._reasons.items())
        ]

    def write(self) -> None:
        """Write the file, or remove an old one where there is nothing to say."""
        if not self._reasons:
            self._file.unlink(missing_ok=True)
            return
        with storage.atomic_path(self._file) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in self.lines()), encoding="utf-8")

    def _check(self, listing: Listing) -> None:
        if len(self) <= self._limit:
            return
        self.write()
        shown = self.lines()[:SHOWN]
        first = "; ".join(line.replace("\t", " ", 1).replace("\t", ": ") for line in shown)
        raise InputError(
            f"{len(self)} images under {listing.root} are missing or damaged, and "
            f"--max-unreadable allows {self._limit}. The first: {first}. All that are known are in "
            f"{self._file}."
        )
