"""What this machine offers: a device, and cores for decoding."""

import os

import torch

from trustsets.errors import InputError

__all__ = ["decoding_workers", "pick_device"]


def pick_device(name: str) -> str:
    """Turn ``"auto"`` into a GPU where there is one; refuse what is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={name!r} cannot be used here: {reason}") from error
    return name


def decoding_workers(count: int | None) -> int:
    """Number of processes that decode images: as asked, or one per core this process may use."""
    if count is not None:
        return count
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
