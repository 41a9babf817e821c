"""Checks of the files that commands read and write.

Checks that need no content: an input is a regular file, an output has the right extension and is
none of the inputs, and the inputs are still the same when the output appears.
"""

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from trustsets._common.atomic import StrPath, is_stream
from trustsets.errors import InputError

_PARQUET_PART = re.compile(r"part-\d{6,}\.parquet")


def plain_file(path: StrPath) -> Path:
    """The path of a regular file; reading a pipe or a device might never end."""
    target = Path(path)
    try:
        mode = target.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{target}: there is no such file.") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{target}: this is a folder; give the name of a file.")
    if not stat.S_ISREG(mode):
        raise InputError(f"{target}: this is a pipe or a device; save its content to a file first.")
    return target


def arrow_file(path: StrPath) -> Path:
    """The path of a plain file whose name Arrow can take: it must be text."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{path}: the name holds bytes that are no text in UTF-8, and Arrow cannot open such a "
            "file. Rename it."
        ) from None
    return plain_file(path)


def part_files(output: Path) -> list[Path]:
    """Parquet files of a finished output in the order of their rows: its parts, or itself."""
    if not output.is_dir():
        return [output]
    found = [path for path in output.iterdir() if _PARQUET_PART.fullmatch(path.name)]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def check_output(
    path: StrPath, suffixes: Sequence[str], inputs: Sequence[StrPath | None] = ()
) -> Path:
    """The path of an output that may be written.

    Its folder must exist, its extension must be one of `suffixes`, and it must not replace any of
    the `inputs` that are read to make it.
    """
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise InputError(
            f"{target}: the result is written as {', '.join(suffixes)}; got "
            f"{target.suffix or 'no extension'!r}. Give it a name with that ending."
        )
    if not target.absolute().parent.is_dir():
        raise InputError(f"{target}: its folder does not exist; make it first.")
    if target.is_dir():
        raise InputError(f"{target}: this is a folder; give the name of a file.")
    for given in inputs:
        if given is None or is_stream(target):
            continue
        if target.exists() and Path(given).exists() and target.samefile(given):
            raise InputError(
                f"{target}: it is the input {given} itself, which would be lost; give the result "
                "another name."
            )
    return target


def file_identity(path: StrPath) -> list[Any]:
    """Place, size, inode and times of a file, or of every file in a folder that is not hidden."""
    target = Path(path)
    if not target.exists():
        raise InputError(f"{target}: there is no such file.")
    facts = [(str(file.resolve()), file.stat()) for file in _files(target)]
    return [
        [name, fact.st_size, fact.st_mtime_ns, fact.st_ctime_ns, fact.st_dev, fact.st_ino]
        for name, fact in facts
    ]


def content_digest(path: StrPath) -> str:
    """SHA-256 of the content of a file, or of the names and contents of a folder."""
    target = Path(path)
    if not target.is_dir():
        return file_digest(plain_file(target))
    whole = hashlib.sha256()
    for file in _files(target):
        name = os.fsencode(file.relative_to(target))
        whole.update(b"%d:%s%s" % (len(name), name, file_digest(plain_file(file)).encode()))
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(target: Path) -> list[Path]:
    """The file itself, or all in a folder but hidden ones, where unfinished work lies."""
    if not target.is_dir():
        return [target]
    found = [file for file in sorted(target.rglob("*")) if not file.is_dir()]
    return [
        file
        for file in found
        if not any(part.startswith(".") for part in file.relative_to(target).parts)
    ]


@final
class Snapshot:
    """Inputs as they are now; take it before they are opened.

    A file that is replaced or rewritten while it is read would give a result that mixes two
    files, so `check` is called before a result appears.
    """

    def __init__(self, *paths: StrPath | None) -> None:
        self._before = {Path(path): file_identity(path) for path in paths if path is not None}

    def check(self) -> None:
        """Refuse to go on if an input is not what it was."""
        for path, before in self._before.items():
            if file_identity(path) != before:
                raise InputError(
                    f"{path}: it was changed while it was read, so nothing was written. Run the "
                    "command again when the file is complete."
                )
