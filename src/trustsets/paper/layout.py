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
from typing import final

from trustsets._common import storage
from trustsets.errors import StorageError

__all__ = ["Description", "is_extracted"]

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
        with storage.atomic_path(folder / _DESCRIPTION) as temporary:
            temporary.write_text(json.dumps({"format": FORMAT} | asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Description":
        """Read from a folder."""
        path = folder / _DESCRIPTION
        try:
            state = json.loads(path.read_text())
            if state.pop("format") != FORMAT:
                raise StorageError(f"{path}: of a newer format than {FORMAT}. Upgrade trustsets.")
            for name in ("classes", "parts"):
                state[name] = tuple(map(str, state[name]))
            return cls(**state)
        except FileNotFoundError as error:
            raise StorageError(
                f"{folder}: no {_DESCRIPTION}, so not a folder of extracted outputs. Make one with "
                "trustsets paper extract."
            ) from error
        except StorageError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise StorageError(f"{path}: damaged ({error}). Extract again.") from error


def is_extracted(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds extracted outputs, complete or not."""
    return (Path(folder) / _DESCRIPTION).is_file()
