"""Continuing interrupted work: what it depends on, and files that are whole or not there.

`identity` and `digest` turn all that a result depends on into a short text. `write` stores arrays
and numbers with a checksum, and `read_kept` gives None where a file is missing or damaged, so that
its work is done again. `atomic_path` does the same for files of other kinds.
"""

from trustsets._common.resuming import digest, identity, read_kept
from trustsets._common.storage import atomic_path, read, write

__all__ = ["atomic_path", "digest", "identity", "read", "read_kept", "write"]
