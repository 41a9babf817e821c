"""Continuing interrupted work: what it depends on, and files that are whole or not there."""

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
    """SHA-256 of all that some work depends on, as JSON data; the order of keys does not count."""
    return hashlib.sha256(json.dumps(setting, sort_keys=True).encode()).hexdigest()


def digest(*arrays: Array | None) -> str:
    """SHA-256 of the content of arrays: types, shapes and numbers, in this order."""
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
    path = folder / _LOCK
    with path.open("wb") as file:
        # Another run may have ended, and removed the file, just before it was locked.
        is_ours = _try_lock(file) and path.exists()
        if not is_ours or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
            raise InputError(f"{what}: another process is writing there; wait until it is done.")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _try_lock(file: IO[bytes]) -> bool:
    """Whether no other process has it. The system unlocks it after a kill."""
    try:
        import fcntl
    except ImportError:  # Windows: two runs at once are not noticed there
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
