"""Exact nearest-neighbour distances to a query's own class and to the nearest other class.

- `points`: the reference points, grouped by class, and what a search returns;
- `sketch`: lower bounds by projection, with the proof of their rounding;
- `cpu`: the search on the CPU (numba);
- `gpu`: the same search in torch, on a GPU or not.

`make_search` chooses between the two searches. numba and torch are loaded when it does.
"""

from __future__ import annotations

from typing import Protocol

from trustsets._arrays import Floats
from trustsets._progress import Advance
from trustsets.errors import InputError
from trustsets.neighbours.points import (
    ClassDistances,
    ClassPoints,
    Counts,
    FloatArray,
    IndexArray,
    Queries,
    row_scales,
    row_squares,
)
from trustsets.neighbours.sketch import HEADS, Sketch, build_sketch

__all__ = [
    "HEADS",
    "ClassDistances",
    "ClassPoints",
    "FloatArray",
    "IndexArray",
    "Queries",
    "Search",
    "Sketch",
    "build_sketch",
    "make_search",
    "row_scales",
    "row_squares",
]


class Search(Protocol):
    """Distances from queries to the classes of some points."""

    sketch: Sketch
    counts: Counts

    def distances(self, queries: Queries, advance: Advance | None = None) -> ClassDistances:
        """Distances to the own and the nearest other class."""

    def own_distances(self, queries: Queries) -> Floats:
        """Distances to the own class."""


def make_search(
    points: ClassPoints,
    neighbour: int = 1,
    device: str = "cpu",
    *,
    sketch: Sketch | None = None,
    memory: int | None = None,
) -> Search:
    """Make the search of some points on a device.

    Parameters
    ----------
    points : ClassPoints
    neighbour : int
        The distance to a class is that to its `neighbour`-th nearest point, or to its farthest
        point where it has fewer.
    device : str
        ``"cpu"``, or a torch device such as ``"cuda"``; ``"torch:cpu"`` runs the torch search on
        the CPU.
    sketch : Sketch, optional
        By default `build_sketch` chooses one from the points. It changes the speed alone.
    memory : int, optional
        Bytes of working memory besides the points, their sketches and the results.
    """
    if device == "cpu":
        from trustsets.neighbours.cpu import ExactSearch

        return ExactSearch(points, neighbour, sketch, memory)
    try:
        from trustsets.neighbours.gpu import TorchSearch
    except ImportError as error:
        raise InputError(
            f'device={device!r} needs torch, which is not installed. Install "trustsets[torch]", '
            'or use device="cpu".'
        ) from error
    try:
        return TorchSearch(points, neighbour, device.removeprefix("torch:"), sketch, memory)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f'device={device!r} cannot be used by torch: {error}. Use device="cpu".'
        ) from error
