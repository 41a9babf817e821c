"""Continuing interrupted work: what it depends on, and files that are whole or not there.

`identity` and `digest` turn all that a result depends on into a short text. `write` stores arrays
and numbers with a checksum, and `read_kept` gives None where a file is missing or damaged, so that
its work is done again. `atomic_path` does the same for files of other kinds, and `locked` keeps a
second process away.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from trustsets._arrays import Array
from trustsets._storage import atomic_path, read, write
from trustsets.errors import InputError, StorageError

__all__ = [
    "atomic_path",
    "digest",
    "identity",
    "locked",
    "read",
    "read_kept",
    "write",
]

_LOCK = ".lock"


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
    checksum = hashlib.sha256()
    for array in arrays:
        if array is None:
            checksum.update(b"none")
            continue
        if array.dtype.kind == "O":
            array = array.astype(str)
        checksum.update(f"{array.dtype.str} {array.shape} ".encode())
        checksum.update(np.ascontiguousarray(array).data if array.size else b"")
    return checksum.hexdigest()


def read_kept(path: Path) -> Any:
    """What `write` put there; None where there is nothing, or it is damaged."""
    try:
        return read(path)
    except StorageError:
        return None


@contextmanager
def locked(folder: Path, what: object) -> Iterator[None]:
    """Keep other processes from a folder, which is made if need be; `what` names the work."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = _try_folder(folder)
    if lock is None:
        raise InputError(f"{what}: another process is writing there; wait until it is done.")
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
    if _try_lock(file) and path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
        return file
    file.close()
    return None


def _try_lock(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: two runs at once are not noticed there
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
