"""The folder that extraction writes and the experiments read.

::

    FOLDER/
      dataset.json            dataset, classes, parts, model, seed, finished
      train/                  features, labels, predicted classes and rows in shards; no logits
      pool/                   logits, features, labels and rows, to be split by seed
      val/ test/              instead of pool, where the dataset fixes the split
      PART/samples.parquet    path, label and groups of every listed image
      unreadable.txt          part, path and reason of every image that could not be read

Shards are those of `trustsets.extras.shards`. Their ``rows`` are row numbers of
``samples.parquet``; rows of unreadable images are absent. Labels are positions in ``classes``.
Features are float16 from a GPU and float32 from a CPU.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from trustsets._common import storage
from trustsets.errors import StorageError

__all__ = ["Description", "is_extracted", "write_json", "write_text"]

FORMAT = 1
TRAIN, POOL, VAL, TEST = "train", "pool", "val", "test"
SAMPLES = "samples.parquet"
UNREADABLE = "unreadable.txt"
_DESCRIPTION = "dataset.json"


@final
@dataclass(frozen=True)
class Description:
    """What ``dataset.json`` holds.

    Attributes
    ----------
    dataset : str
        Name of the dataset.
    classes : tuple of str
        Class names in the order of the columns of the logits.
    parts : tuple of str
        Subfolders: ``("train", "pool")`` or ``("train", "val", "test")``.
    model : str
        Name of the architecture.
    weights_sha256 : str
        Digest of the weights in the model.
    seed : int or None
        Seed of the training split, where it is drawn.
    finished : bool
        Whether all parts are complete.
    """

    dataset: str
    classes: tuple[str, ...]
    parts: tuple[str, ...]
    model: str
    weights_sha256: str
    seed: int | None
    finished: bool

    def write(self, folder: Path) -> None:
        """Write to a folder, whole or not at all."""
        write_json(folder / _DESCRIPTION, {"format": FORMAT} | asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Description":
        """Read from a folder."""
        path = folder / _DESCRIPTION
        if not path.is_file():
            raise StorageError(
                f"{folder}: no {_DESCRIPTION}, so not a folder of extracted outputs. Make one with "
                "trustsets paper extract."
            )
        try:
            state = json.loads(path.read_text())
            newer = state.pop("format") != FORMAT
            lists = {name: tuple(map(str, state[name])) for name in ("classes", "parts")}
            found = None if newer else cls(**state | lists)
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise StorageError(f"{path}: damaged ({error}). Extract again.") from error
        if found is None:
            raise StorageError(f"{path}: of a newer format than {FORMAT}. Upgrade trustsets.")
        return found


def is_extracted(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds extracted outputs, complete or not."""
    return (Path(folder) / _DESCRIPTION).is_file()


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with storage.atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write plain data as JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
