"""Exact nearest-neighbour distances to a query's own class and to the nearest other class.

- `sketch`: points grouped by class, and lower bounds of distances with their proof;
- `cpu`: the search on the CPU (numba);
- `gpu`: the same search in torch, on a GPU or not.

`make_search` chooses between the two searches. numba and torch are loaded when it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trustsets.errors import InputError
from trustsets.neighbours.sketch import (
    BLOCK_ROWS,
    HEADS,
    ClassPoints,
    FloatArray,
    IndexArray,
    Queries,
    Sketch,
)

if TYPE_CHECKING:
    from trustsets.neighbours.cpu import ExactSearch
    from trustsets.neighbours.gpu import TorchSearch

__all__ = [
    "BLOCK_ROWS",
    "HEADS",
    "ClassPoints",
    "FloatArray",
    "IndexArray",
    "Queries",
    "Sketch",
    "make_search",
]


def make_search(
    points: ClassPoints,
    neighbour: int = 1,
    device: str = "cpu",
    *,
    sketch: Sketch | None = None,
    memory: int | None = None,
) -> ExactSearch | TorchSearch:
    """Make the search of some points on a device, with parameters as in `TrustScore`.

    `sketch` changes the speed alone; by default one is chosen from the points. `memory` is the
    number of bytes besides the points, their sketches and the results.
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
