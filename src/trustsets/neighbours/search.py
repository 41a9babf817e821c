"""Which search serves: on the CPU, in torch on a device, or approximate."""

from __future__ import annotations

from typing import Protocol

from trustsets._common.arrays import Floats
from trustsets._common.progress import Advance
from trustsets.errors import InputError
from trustsets.neighbours.points import ClassDistances, ClassPoints, Queries

APPROXIMATIONS = (None, "pca", "ivf")


class Search(Protocol):
    """What every search of this folder can do."""

    def distances(self, queries: Queries, advance: Advance | None = None) -> ClassDistances:
        """Distances to the own and the nearest other class."""

    def own_distances(self, queries: Queries) -> Floats:
        """Distances to the own class."""


def make_search(
    points: ClassPoints, neighbour: int, device: str, probes: int | None, memory: int | None
) -> Search:
    """Make the search of some points.

    The distance to a class is that to its `neighbour`-th nearest point. `device` is ``"cpu"`` or a
    torch device, `probes` the clusters that an approximate search visits (FAISS; None makes an
    exact search), and `memory` the bytes of working memory.
    """
    if probes is not None:
        return _cluster_search(points, neighbour, probes, memory)
    if device == "cpu":
        from trustsets.neighbours.exact import ExactSearch

        return ExactSearch(points, neighbour, memory=memory)
    return _torch_search(points, neighbour, device, memory)


def _cluster_search(points: ClassPoints, neighbour: int, probes: int, memory: int | None) -> Search:
    from trustsets.neighbours.approximate import ClusterSearch

    try:
        return ClusterSearch(points, neighbour, probes, memory)
    except ImportError as error:
        raise InputError(
            'approximate="ivf" needs FAISS, which is not installed. Install "trustsets[faiss]", or '
            "use approximate=None, which is exact."
        ) from error


def _torch_search(points: ClassPoints, neighbour: int, device: str, memory: int | None) -> Search:
    try:
        from trustsets.neighbours.torch_search import TorchSearch
    except ImportError as error:
        raise InputError(
            f'device={device!r} needs torch, which is not installed. Install "trustsets[torch]", '
            'or use device="cpu".'
        ) from error
    try:
        return TorchSearch(points, neighbour, device.removeprefix("torch:"), memory)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f'device={device!r} cannot be used by torch: {error}. Use device="cpu".'
        ) from error
