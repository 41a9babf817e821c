"""Work that continues after an interruption; every long job of the package uses these pieces.

`identity` turns all that the work depends on into a digest. Finished parts are written whole or not
at all (see `atomic`), and a later run uses them only if they carry the same identity: in their name
(`WorkFolder`, the stages of an experiment) or in a record that lies with them (`require_same`). A
part that is damaged is made again (`read_kept`), and a lock keeps a second process away.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import IO, Any, Self, final

import numpy as np

from trustsets._common import storage
from trustsets._common.arrays import Array
from trustsets._common.atomic import try_lock
from trustsets._version import __version__
from trustsets.errors import InputError, StorageError

_LOCK = ".lock"
_KEY_DIGITS = 16
_PARTS = ("part-", "shard-")


def identity(setting: Any) -> str:
    """SHA-256 of all that some work depends on, given as JSON data.

    Examples
    --------
    >>> identity({"alpha": 0.1, "seed": 1}) == identity({"seed": 1, "alpha": 0.1})
    True
    """
    return hashlib.sha256(json.dumps(setting, sort_keys=True).encode()).hexdigest()


def digest(*arrays: Array | None) -> str:
    """SHA-256 of the content of arrays: types, shapes and numbers, in this order.

    Examples
    --------
    >>> one, other = np.array([1.0, 2.0]), np.array([1.0, 2.0])
    >>> digest(one) == digest(other), digest(one) == digest(one.astype(np.float32))
    (True, False)
    """
    found = hashlib.sha256()
    for array in arrays:
        if array is None:
            found.update(b"none")
            continue
        if array.dtype.kind == "O":
            array = array.astype(str)
        found.update(f"{array.dtype.str} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).data if array.size else b"")
    return found.hexdigest()


def read_kept(path: Path) -> Any:
    """What `storage.write` put there; None where there is nothing, or it is damaged."""
    try:
        return storage.read(path)
    except StorageError:
        return None


def require_same(where: str, stored: Mapping[str, Any], setting: Mapping[str, Any]) -> None:
    """Refuse to continue the work of a folder that was begun with another setting."""
    names = sorted(stored.keys() | setting.keys())
    other = [
        f"{name} was {stored.get(name)!r}, is {setting.get(name)!r}"
        for name in names
        if stored.get(name) != setting.get(name)
    ]
    if other:
        raise InputError(
            f"{where} belongs to another run: {'; '.join(other)}. Choose another directory, or "
            "empty this one."
        )


@final
class InUseError(InputError):
    """Another process is doing the same work."""


@contextmanager
def locked(folder: Path, what: object) -> Iterator[None]:
    """Keep other processes from a folder, which is made if need be; `what` names the work."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = _try_folder(folder)
    if lock is None:
        raise InUseError(f"{what}: another process is writing there; wait until it is done.")
    try:
        yield
    finally:
        (folder / _LOCK).unlink(missing_ok=True)
        lock.close()


def _try_folder(folder: Path) -> IO[bytes] | None:
    """Lock a folder; None if another process has it. The system unlocks it after a kill."""
    path = folder / _LOCK
    file = path.open("wb")
    # Another run may have ended, and removed the file, just before it was locked.
    if try_lock(file) and path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
        return file
    file.close()
    return None


@final
class WorkFolder:
    """Hidden folder beside an output, where finished parts wait until the output is whole.

    Use it as a context. Its name holds the identity of the work, so parts of other inputs or
    options are never found. If no part (``part-*`` or ``shard-*``) is there at the end, it is
    removed.

    `place` is the output to be, as an absolute path or with links followed if that matters.
    `setting` is all that the parts depend on, as JSON data; the version of this package is added.
    """

    def __init__(self, place: Path, setting: Any) -> None:
        if not place.absolute().parent.is_dir():
            raise InputError(f"{place}: its folder does not exist; make it first.")
        self._place = place
        key = identity([__version__, setting])[:_KEY_DIGITS]
        self.path = place.parent / f".{place.name}.{key}.parts"
        self._lock = locked(self.path, place)

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if not any(item.name.startswith(_PARTS) for item in self.path.rglob("*-*")):
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.__exit__(None, None, None)

    def finish(self) -> None:
        """Remove all parts, also those that runs with other settings left for the same output."""
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in self._place.parent.glob(f".{escape(self._place.name)}.*.parts"):
            lock = _try_folder(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                lock.close()
