"""An output that is a folder of Parquet parts, made by many processes.

The name of a part follows from its number alone, and each part is written whole or not at all, so
making one twice changes nothing. The folder gets its own name when every part is there.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from trustsets._common.atomic import atomic_path
from trustsets._common.resuming import WorkFolder
from trustsets.errors import InputError, StorageError
from trustsets.files.paths import part_files
from trustsets.files.set_files import write_tables

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = ".parquet"


@final
@dataclass(frozen=True)
class PartWriter:
    """Where parts go; a small value that can be sent to other processes.

    The folder is on a file system that all processes share; every part holds the record.
    """

    folder: Path
    record: dict[str, Any]

    @property
    def parts(self) -> Path:
        """Folder of the finished parts, and of nothing else."""
        return self.folder / "parts"

    def path(self, number: int) -> Path:
        """Place of a finished part."""
        return self.parts / f"part-{number:06d}{_SUFFIX}"

    def write(self, number: int, tables: Iterable["pa.Table"]) -> None:
        """Put a part in its place, all of it or nothing.

        Until then it has a name of its own outside the folder of parts: two processes may make
        the same part at once, and a process that was given up may still finish later.
        """
        whole = self.folder / f"{number}-{uuid.uuid4().hex}"
        with atomic_path(whole) as temporary, temporary.open("wb") as file:
            write_tables(file, tables, self.record)
        whole.replace(self.path(number))


@final
class PartFolder:
    """A folder in the making; use it as a context around the work of the writers.

    The output must not exist yet, and the folder it will be in must. `setting` is all that the
    parts depend on, as JSON data: parts of an earlier, interrupted run with the same setting are
    kept. The record is stored in every part.
    """

    def __init__(self, output: Path, setting: Any, record: dict[str, Any]) -> None:
        self.output = output
        if output.suffix.lower() != _SUFFIX:
            raise InputError(
                f"{output}: a folder of Parquet parts is written; give it a name that ends in "
                f"{_SUFFIX}."
            )
        if output.exists():
            raise InputError(f"{output}: it exists already; remove it, or choose another name.")
        self._folder = WorkFolder(output.absolute(), setting)
        self.writer = PartWriter(self._folder.path, record)

    def __enter__(self) -> Self:
        self._folder.__enter__()
        self.writer.parts.mkdir(exist_ok=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self._folder.__exit__(*error)

    def finish(self, rows: Sequence[int]) -> None:
        """Give the folder its name, once it holds the parts with these numbers of rows."""
        import pyarrow.parquet as pq

        found = part_files(self.writer.parts)
        wanted = [self.writer.path(number) for number in range(len(rows))]
        if found != wanted or [pq.read_metadata(path).num_rows for path in found] != list(rows):
            raise StorageError(
                f"{self.writer.parts}: the parts do not add up to the rows of the inputs. Is it on "
                "a file system that all machines share? Remove the folder and run again."
            )
        self.writer.parts.rename(self.output)
        self._folder.finish()
