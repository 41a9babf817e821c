"""Files that appear complete or not at all.

A new file is written under a temporary name in the same folder and then renamed. Links are
followed. Devices and pipes are written to and never replaced. A file that is rewritten keeps its
permissions.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import IO

StrPath = str | os.PathLike[str]
# A path that leads here is a device, or an open file of some process.
_DEVICES = ("/dev/", "/proc/")


@contextlib.contextmanager
def atomic_path(path: StrPath) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` when the block succeeds.

    Temporary files that a killed process left there are removed.
    """
    target = Path(path)
    place = real_place(target)
    folder = Path(tempfile.gettempdir()) if is_stream(target) else place.parent
    _sweep(folder, place.name)
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{place.name}.", suffix=".part")
    temporary = Path(name)
    with os.fdopen(handle, "rb") as locked:
        # The lock tells `_sweep` in other processes that this file is in use.
        try_lock(locked)
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            if is_stream(target):
                with temporary.open("rb") as source, target.open("wb") as stream:
                    shutil.copyfileobj(source, stream)
            else:
                temporary.chmod(_mode(place))
                temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Whether a path leads to a device, a pipe or a socket."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    plain = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    return not plain or os.path.realpath(path).startswith(_DEVICES)


def real_place(path: Path) -> Path:
    """Where a file of this name lies, or would lie, once links are followed."""
    return path if is_stream(path) else Path(os.path.realpath(path))


def try_lock(file: IO[bytes]) -> bool:
    """Lock an open file for this process; the system unlocks it when the process ends."""
    try:
        import fcntl
    except ImportError:  # Windows: two runs at once are not noticed there
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(folder: Path, name: str) -> None:
    """Remove temporary files of this name that no process is writing any more."""
    for left in folder.glob(f".{escape(name)}.*.part"):
        with contextlib.suppress(OSError), left.open("rb") as file:
            if try_lock(file):
                left.unlink()


def _mode(place: Path) -> int:
    """Permissions of the file that is there, or those of a new one."""
    try:
        return stat.S_IMODE(place.stat().st_mode)
    except FileNotFoundError:
        current = os.umask(0)
        os.umask(current)
        return 0o666 & ~current
