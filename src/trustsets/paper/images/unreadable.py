"""Images that could not be read: they are named and counted, and too many are an error."""

from collections.abc import Iterable
from pathlib import Path
from typing import final

from trustsets.errors import InputError
from trustsets.paper.images.folders import SHOWN
from trustsets.paper.images.listing import Listing
from trustsets.paper.layout import UNREADABLE, write_text

__all__ = ["UnreadableImages"]


@final
class UnreadableImages:
    """Collects names and reasons for the file ``unreadable.txt`` of a folder."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._file = folder / UNREADABLE
        self._limit = limit
        self._reasons: dict[tuple[str, str], str] = {}

    def add_missing(self, part: str, listing: Listing) -> None:
        """Add all images of a listing that are not there, before any work is done."""
        self.add(part, listing, ((row, "no such file") for row in listing.missing().tolist()))

    def add(self, part: str, listing: Listing, failures: Iterable[tuple[int, str]]) -> None:
        """Add rows with their reasons; once more than allowed are known, it is an error."""
        self._reasons |= {(part, listing.path(row)): reason for row, reason in failures}
        count = len(self._reasons)
        if count > self._limit:
            self.write()
            first = [f"{part} {path}: {why}" for (part, path), why in sorted(self._reasons.items())]
            raise InputError(
                f"{count} images under {listing.root} are missing or damaged, and "
                f"--max-unreadable allows {self._limit}. The first: {'; '.join(first[:SHOWN])}. "
                f"All that are known are in {self._file}."
            )

    def write(self) -> None:
        """Write the file, by part and path, or remove an old one where there is nothing to say."""
        if not self._reasons:
            self._file.unlink(missing_ok=True)
            return
        known = sorted(self._reasons.items())
        lines = (f"{part}\t{path}\t{reason}\n" for (part, path), reason in known)
        write_text(self._file, "".join(lines))
