"""A file made in parts, which survives a kill at any moment.

Finished parts lie in a `WorkFolder`. The name of a part holds the digests of its content and of
what it was made from, so a damaged part, or one of other samples, is never used.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self, final

from trustsets._common.atomic import StrPath, atomic_path, is_stream, real_place
from trustsets._common.resuming import WorkFolder
from trustsets.errors import InputError
from trustsets.files.options import write_sidecar
from trustsets.files.paths import file_digest

_DIGITS = 16


@final
class PartStore:
    """Numbered parts of an output file, whose folder must exist; use it as a context.

    `setting` is all that every part depends on, as JSON data; see `WorkFolder`.
    """

    def __init__(self, output: StrPath, setting: Any) -> None:
        self.output = Path(output)
        if self.output.is_dir():
            raise InputError(f"{self.output}: this is a folder; give the name of a file.")
        self._folder = WorkFolder(real_place(self.output), setting)
        self._finished: dict[int, Path] = {}

    def __enter__(self) -> Self:
        self._folder.__enter__()
        for path in sorted(self._folder.path.glob("part-*")):
            number = _checked_number(path)
            if number is None:
                path.unlink()
            else:
                self._finished[number] = path
        return self

    def __exit__(self, *error: Any) -> None:
        self._folder.__exit__(*error)

    def __len__(self) -> int:
        return len(self._finished)

    def holds(self, number: int, source: str = "") -> bool:
        """Whether a part is there that was made from what has the digest `source`."""
        path = self._finished.get(number)
        return path is not None and path.name.split("-")[3] == source[:_DIGITS]

    def write(self, number: int, content: bytes | memoryview, source: str = "") -> None:
        """Keep a finished part, all of it or nothing; `source` is a digest of its input."""
        digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
        path = self._folder.path / f"part-{number:08d}-{digest}-{source[:_DIGITS]}"
        if number in self._finished:
            self._finished.pop(number).unlink()
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)
        self._finished[number] = path

    def read(self, number: int) -> bytes:
        """Content of a part."""
        return self._finished[number].read_bytes()

    def finish(
        self,
        assemble: Callable[[IO[bytes]], object],
        check: Callable[[], None] = lambda: None,
        record: dict[str, Any] | None = None,
    ) -> None:
        """Put the output in its place and remove the parts.

        `assemble` writes the output to an open file. `check` is called before the output appears;
        if it raises an error, the parts stay for the next run. A record is written beside the
        output, unless this is a pipe or a device.
        """
        with atomic_path(self.output) as temporary:
            with temporary.open("wb") as file:
                assemble(file)
            digest = file_digest(temporary)
            check()
        if record is not None and not is_stream(self.output):
            write_sidecar(self.output, record, digest)
        self._folder.finish()


def _checked_number(path: Path) -> int | None:
    """Number of a part whose content is what its name says; None otherwise."""
    pieces = path.name.split("-")
    if len(pieces) != 4 or not pieces[1].isdigit():
        return None
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]
    return int(pieces[1]) if digest == pieces[2] else None
