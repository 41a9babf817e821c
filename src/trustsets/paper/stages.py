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
from dataclasses import astuple, dataclass
from operator import add
from pathlib import Path
from typing import Any, final

from trustsets._common import storage
from trustsets._common.resuming import identity, read_kept

__all__ = ["StageCache", "Tally"]


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
        return Tally(*map(add, astuple(self), astuple(other)))


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
    >>> cache = StageCache(None)
    >>> cache.get("double", {"x": 2}, lambda: {"result": 4})["result"]
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
        stage: str,
        inputs: dict[str, Any],
        make: Callable[[], dict[str, Any]],
        *,
        label: str | None = None,
        version: int = 1,
    ) -> dict[str, Any]:
        """Return the result for these inputs: the kept one, or what `make` gives.

        Parameters
        ----------
        stage : str
            Kind of work, and its folder.
        inputs : dict
            Everything the result depends on: digests and plain options.
        make : callable
            Does the work; gives a dict of arrays, numbers and texts.
        label : str, optional
            Times are also kept by this; the result does not depend on it.
        version : int
            To be raised whenever the same inputs give other results than before.
        """
        key = identity({"stage": stage, "version": version, "inputs": inputs})
        path = self._folder and self._folder / stage / f"{key}.safetensors"
        kept = None if path is None or self._force else read_kept(path)
        if isinstance(kept, dict) and kept.keys() == {"seconds", "cpu", "result"}:
            self._add(stage, label, Tally(0, 1, 0.0, kept["seconds"], kept["cpu"]))
            return dict(kept["result"])
        with self.timed(stage, label) as times:
            result = make()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.write(path, times | {"result": result})
        return result

    @contextmanager
    def timed(self, name: str, label: str | None = None) -> Iterator[dict[str, float]]:
        """Time some work; the dict that it gives has the times at the end."""
        wall, cpu = time.perf_counter(), time.process_time()
        times: dict[str, float] = {}
        yield times
        times |= {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        self._add(name, label, Tally(1, 0, times["seconds"], 0.0, times["cpu"]))

    def _add(self, name: str, label: str | None, more: Tally) -> None:
        self.tallies[name] = self.tallies.get(name, Tally()) + more
        if label is not None:
            own = self.details.setdefault(name, {})
            own[label] = own.get(label, Tally()) + more
