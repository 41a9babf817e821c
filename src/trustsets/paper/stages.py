"""Stages of an experiment, kept on disk by the content of their inputs.

The key of a result is the identity of its work: name and version of the stage, its options, and
digests of the arrays it is made from (see `trustsets._common.resuming`). So equal inputs are never
worked on twice, a changed option gives new keys to what depends on it and to nothing else, and
nothing in the cache can be out of date. Each result is one checksummed file, written whole or not
at all: a killed run continues where it was, and a damaged file is made again.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from trustsets._common import storage
from trustsets._common.resuming import identity, read_kept

__all__ = ["Stage", "StageCache", "Tally"]


@final
@dataclass(frozen=True)
class Stage:
    """A kind of work.

    Attributes
    ----------
    name : str
        Also the name of its folder.
    version : int
        To be raised whenever the same inputs give other results than before.
    """

    name: str
    version: int = 1

    def key(self, inputs: dict[str, Any]) -> str:
        """Name of the result for these inputs: digests of content, and options as JSON."""
        return identity({"stage": self.name, "version": self.version, "inputs": inputs})


@final
@dataclass(frozen=True)
class Tally:
    """How often a stage was worked on or found, and how long it takes.

    Attributes
    ----------
    made, reused : int
        Results worked on, and results found.
    seconds : float
        Time of the work that was done.
    saved : float
        Time that the results found took when they were made.
    cpu : float
        Processor time of the work, on all cores, whether done now or before.
    """

    made: int = 0
    reused: int = 0
    seconds: float = 0.0
    saved: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.made + other.made,
            self.reused + other.reused,
            self.seconds + other.seconds,
            self.saved + other.saved,
            self.cpu + other.cpu,
        )


@final
class StageCache:
    """Results of stages in a folder.

    Parameters
    ----------
    folder : path, optional
        Made if it does not exist; None keeps nothing. Several runs may share it.
    force : bool
        Work on everything anew, and replace what is there.

    Attributes
    ----------
    tallies : dict of str to Tally
        By name of the stage, in the order of first use.
    details : dict of str to dict of str to Tally
        By name of the stage and label of the work, where labels were given.

    Examples
    --------
    >>> cache, double = StageCache(None), Stage("double")
    >>> cache.get(double, {"x": 2}, lambda: {"result": 4})["result"]
    4
    >>> cache.tallies["double"].made
    1
    """

    def __init__(self, folder: str | os.PathLike[str] | None, *, force: bool = False) -> None:
        self._folder = None if folder is None else Path(folder)
        self._force = force
        self.tallies: dict[str, Tally] = {}
        self.details: dict[str, dict[str, Tally]] = {}

    def get(
        self,
        stage: Stage,
        inputs: dict[str, Any],
        make: Callable[[], dict[str, Any]],
        label: str | None = None,
    ) -> dict[str, Any]:
        """Return the result for these inputs: the kept one, or what `make` gives.

        Parameters
        ----------
        stage : Stage
            Kind of work.
        inputs : dict
            Everything the result depends on: digests and plain options.
        make : callable
            Does the work; gives a dict of arrays, numbers and texts.
        label : str, optional
            Times are also kept by this; the result does not depend on it.
        """
        path = self._path(stage, inputs)
        kept = None if path is None or self._force else _read(path)
        if kept is not None:
            self._add(stage.name, label, Tally(0, 1, 0.0, kept["seconds"], kept["cpu"]))
            return dict(kept["result"])
        wall, cpu = time.perf_counter(), time.process_time()
        result = make()
        seconds, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self._add(stage.name, label, Tally(1, 0, seconds, 0.0, cpu))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.write(path, {"seconds": seconds, "cpu": cpu, "result": result})
        return result

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time work that is not kept."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        taken = time.perf_counter() - wall, 0.0, time.process_time() - cpu
        self._add(name, None, Tally(1, 0, *taken))

    def _add(self, name: str, label: str | None, more: Tally) -> None:
        self.tallies[name] = self.tallies.get(name, Tally()) + more
        if label is not None:
            own = self.details.setdefault(name, {})
            own[label] = own.get(label, Tally()) + more

    def _path(self, stage: Stage, inputs: dict[str, Any]) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / stage.name / f"{stage.key(inputs)}.safetensors"


def _read(path: Path) -> dict[str, Any] | None:
    """The kept result with its times, or None where there is none or it is damaged."""
    found = read_kept(path)
    whole = isinstance(found, dict) and found.keys() == {"seconds", "cpu", "result"}
    return found if whole else None
