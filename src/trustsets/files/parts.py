"""Work in parts that survives a kill at any moment. Imports errors only.

Finished parts lie in a hidden folder beside the output, named by a digest of everything
they depend on, so parts of other inputs or options are never used. The name of a part holds
the digest of its content. The output itself is assembled there too and then renamed, so
under its own name it is whole or absent.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from glob import escape
from pathlib import Path
from typing import IO, Any, Self, final

from trustsets._version import __version__
from trustsets.errors import InputError

__all__ = ["PartStore", "file_identity", "lock_folder", "part_files", "part_key", "parts_folder"]

_DIGITS = 16
_PARQUET_PART = re.compile(r"part-\d{6,}\.parquet")


def part_key(setting: dict[str, Any]) -> str:
    """Digest of all that the parts depend on, and of the version that makes them."""
    text = json.dumps([__version__, setting], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_identity(path: str | os.PathLike[str]) -> list[Any]:
    """Place, size and time of change of a file, or of every file in a folder."""
    target = Path(path)
    if not target.exists():
        raise InputError(f"{target}: there is no such file.")
    files = sorted(target.rglob("*")) if target.is_dir() else [target]
    facts = [(str(file.resolve()), file.stat()) for file in files]
    return [[name, fact.st_size, fact.st_mtime_ns] for name, fact in facts]


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
        self._folder = parts_folder(self.output, key)
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

    def __contains__(self, number: int) -> bool:
        return number in self._finished

    def __len__(self) -> int:
        return len(self._finished)

    def write(self, number: int, content: bytes | memoryview) -> None:
        """Keep a finished part, all of it or nothing."""
        digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
        path = self._folder / f"part-{number:08d}-{digest}"
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
        self, assemble: Callable[[IO[bytes]], None], beside: Sequence[tuple[Path, str]] = ()
    ) -> None:
        """Put the output in its place, `beside` it small texts, and remove the parts."""
        self._place(self.output, assemble)
        for path, text in beside:
            self._place(path, partial(_write_text, text))
        _remove(self._folder)
        # What other options left behind for the same output is of no more use either.
        for folder in self.output.parent.glob(f".{escape(self.output.name)}.*.parts"):
            lock = lock_folder(folder)
            if lock is not None:
                _remove(folder)
                lock.close()

    def _place(self, target: Path, assemble: Callable[[IO[bytes]], None]) -> None:
        temporary = self._folder / "assembled"
        try:
            with temporary.open("wb") as file:
                assemble(file)
                _flush(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        temporary.replace(target)


def _write_text(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _checked_number(path: Path) -> int | None:
    """Number of a part whose content is what its name says; None otherwise."""
    pieces = path.name.split("-")
    if len(pieces) != 3 or not pieces[1].isdigit():
        return None
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]
    return int(pieces[1]) if digest == pieces[2] else None


def lock_folder(folder: Path) -> IO[bytes] | None:
    """Lock a folder for this process; None if another has it. The system lets go after a kill."""
    file = (folder / "lock").open("wb")
    try:
        import fcntl
    except ImportError:  # Windows: two runs at once are not noticed there
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
