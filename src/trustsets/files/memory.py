"""How much memory work may take, and how many samples fit into it."""

import os
import re
from pathlib import Path

from trustsets.errors import InputError

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt])i?b?\s*", re.IGNORECASE)
_NAMES = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
# Reading, checking and converting a block hold its arrays up to this many times at once.
_COPIES = 4
# Mask, members and names of a set that holds every class, and the same once more when written.
_SET_BYTES_PER_CLASS = 64
_MOST_ROWS = 1 << 16


def parse_memory(text: str) -> int:
    """Bytes of a size such as ``512MB`` or ``2GB`` (powers of 1024).

    Examples
    --------
    >>> parse_memory("512MB") // 2**20, parse_memory("1.5 GiB") // 2**20
    (512, 1536)
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InputError(f"memory must be a size such as 512MB or 2GB; got {text!r}.")
    return int(float(match.group(1)) * _UNITS[match.group(2).lower()])


def format_bytes(size: float) -> str:
    """A size for people.

    Examples
    --------
    >>> format_bytes(3 * 2**29)
    '1.5 GiB'
    """
    for name in _NAMES[:-1]:
        if size < 1024:
            return f"{size:.0f} {name}" if name == "bytes" else f"{size:.1f} {name}"
        size /= 1024
    return f"{size:.1f} {_NAMES[-1]}"


def rows_that_fit(row_bytes: int, n_classes: int, memory: int) -> int:
    """Samples that can be read, predicted and written at a time within `memory`."""
    need = _COPIES * row_bytes + _SET_BYTES_PER_CLASS * n_classes
    if need > memory:
        raise InputError(
            f"memory={format_bytes(memory)} is too little: one sample of {n_classes:,} classes "
            f"needs {format_bytes(need)}. Allow more."
        )
    return min(memory // need, _MOST_ROWS)


def check_fits(path: Path, need: int) -> None:
    """Refuse a file whose arrays, as announced, do not fit into memory."""
    free = _free_memory()
    if free is not None and need > free:
        raise InputError(
            f"{path}: its arrays need {format_bytes(need)} of memory, and {format_bytes(free)} are "
            "free. Use fewer samples, float16 arrays or a larger machine."
        )


def _free_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
        match = re.search(r"MemAvailable:\s+(\d+) kB", text)
        if match is not None:
            return int(match.group(1)) << 10
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
