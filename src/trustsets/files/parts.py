"""Work in parts that survives a kill at any moment. Imports atomic, errors and paths.

Finished parts lie in a hidden folder beside the output, named by a digest of the options they
depend on. The name of a part holds the digests of its content and of what it was made from, so
a part of other inputs or options is never used. The output itself is assembled there too and then
renamed, so under its own name it is whole or absent.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from glob import escape
from pathlib import Path
from typing import IO, Any, Self, final

from trustsets._common.atomic import is_stream, put_in_place, real_place, try_lock
from trustsets._version import __version__
from trustsets.errors import InputError

__all__ = ["PartStore", "lock_folder", "part_files", "part_key", "parts_folder"]

_DIGITS = 16
_PARQUET_PART = re.compile(r"part-\d{6,}\.parquet")


def part_key(setting: dict[str, Any]) -> str:
    """Digest of all that the parts depend on, and of the version that makes them."""
    text = json.dumps([__version__, setting], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def parts_folder(output: Path, key: str) -> Path:
    """Hidden folder beside an output for the parts with this key."""
    return output.parent / f".{output.name}.{key[:_DIGITS]}.parts"


def part_files(output: Path) -> list[Path]:
    """Parquet files of a finished output in the order of their rows: its parts, or itself."""
    if not output.is_dir():
        return [output]
    found = [path for path in output.iterdir() if _PARQUET_PART.fullmatch(path.name)]
    return sorted(found, key=lambda path: (len(path.name), path.name))


@final
class PartStore:
    """Numbered parts of an output; use it as a context.

    Parameters
    ----------
    output : path
        The file to be; its folder must exist.
    key : str
        See `part_key`.
    """

    def __init__(self, output: str | os.PathLike[str], key: str) -> None:
        self.output = Path(output)
        if not self.output.absolute().parent.is_dir():
            raise InputError(f"{self.output}: its folder does not exist; make it first.")
        if self.output.is_dir():
            raise InputError(f"{self.output}: this is a folder; give the name of a file.")
        # Beside the file itself where the output is a link: it is renamed at the end.
        self._folder = parts_folder(real_place(self.output), key)
        self._lock: IO[bytes] | None = None
        self._finished: dict[int, Path] = {}

    def __enter__(self) -> Self:
        self._folder.mkdir(exist_ok=True)
        self._lock = lock_folder(self._folder)
        if self._lock is None:
            raise InputError(
                f"{self.output}: another process is making this file; wait until it is done."
            )
        for path in sorted(self._folder.glob("part-*")):
            number = _checked_number(path)
            if number is None:
                path.unlink()
            else:
                self._finished[number] = path
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            if not self._finished:
                _remove(self._folder)
            self._lock.close()

    def holds(self, number: int, source: str = "") -> bool:
        """Whether a part is there that was made from what has the digest `source`."""
        return number in self._finished and _source(self._finished[number]) == source[:_DIGITS]

    def __len__(self) -> int:
        return len(self._finished)

    def write(self, number: int, content: bytes | memoryview, source: str = "") -> None:
        """Keep a finished part, all of it or nothing; `source` is a digest of its input."""
        digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
        path = self._folder / f"part-{number:08d}-{digest}-{source[:_DIGITS]}"
        if number in self._finished:
            self._finished.pop(number).unlink()
        temporary = self._folder / "unfinished"
        with temporary.open("wb") as file:
            file.write(content)
            _flush(file)
        temporary.replace(path)
        self._finished[number] = path

    def read(self, number: int) -> bytes:
        """Content of a part."""
        return self._finished[number].read_bytes()

    def finish(
        self,
        assemble: Callable[[IO[bytes]], None],
        check: Callable[[], None] = lambda: None,
        beside: Callable[[str], tuple[Path, str]] | None = None,
    ) -> None:
        """Put the output in its place and remove the parts.

        Parameters
        ----------
        assemble : callable
            Writes the output to an open file.
        check : callable
            Called before the output appears; an error of it leaves the parts for the next run.
        beside : callable, optional
            Maps the SHA-256 of the output to the place and the text of a small file beside it.
            A pipe or a device gets none.
        """
        digest = self._place(self.output, assemble, check)
        if beside is not None and not is_stream(self.output):
            path, text = beside(digest)
            self._place(path, partial(_write_text, text))
        _remove(self._folder)
        # What other options left behind for the same output is of no more use either.
        place = real_place(self.output)
        for folder in place.parent.glob(f".{escape(place.name)}.*.parts"):
            lock = lock_folder(folder)
            if lock is not None:
                _remove(folder)
                lock.close()

    def _place(
        self,
        target: Path,
        assemble: Callable[[IO[bytes]], None],
        check: Callable[[], None] = lambda: None,
    ) -> str:
        """Put a file in its place; return the SHA-256 of its content."""
        temporary = self._folder / "assembled"
        try:
            with temporary.open("wb") as file:
                assemble(file)
                _flush(file)
            with temporary.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            check()
            put_in_place(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        return digest


def _write_text(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _checked_number(path: Path) -> int | None:
    """Number of a part whose content is what its name says; None otherwise."""
    pieces = path.name.split("-")
    if len(pieces) != 4 or not pieces[1].isdigit():
        return None
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]
    return int(pieces[1]) if digest == pieces[2] else None


def _source(path: Path) -> str:
    return path.name.split("-")[3]


def lock_folder(folder: Path, name: str = "lock") -> IO[bytes] | None:
    """Lock a folder for this process; None if another has it. The system lets go after a kill."""
    path = folder / name
    file = path.open("wb")
    # Another run may have ended, and removed the file, just before it was locked.
    if try_lock(file) and path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
        return file
    file.close()
    return None


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
