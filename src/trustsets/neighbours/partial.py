"""A search whose points lie in several places: what each finds, and how that is merged.

Nothing here knows where the shards are.

The distance from a query to class `c` is that to its `k_c`-th nearest point over all shards, where
`k_c` is the least of `neighbour` and the points that the class has in all. For the own class the
`k_c` nearest points of each shard are enough. For the other classes there are two rounds:

1. Each shard gives the least distance to a class of which it has `k_c` points. That class is at
   most as far over all shards, so the least such distance `B` of any shard bounds the result.
2. Each shard gives its points within `B`, of each class the nearest `k_c` at most. A class that is
   within `B` over all shards has its `k_c` nearest points among these, and the nearest class is
   such a class. So is every class tied with it.

With `neighbour=1` the first round already is the result: a minimum over shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets.neighbours.exact import ExactSearch
from trustsets.neighbours.points import (
    ClassDistances,
    ClassPoints,
    IndexArray,
    NearestSquares,
    Pairs,
    Queries,
)


@final
class ShardSearch:
    """The search of one shard, in the numbers that the classes have over all shards.

    Every class of `points` has one; `places` are the positions of these classes among all, in
    increasing order: ties are then broken alike. `needed` (K,) are the points that stand for each
    of all classes, `min(size over all shards, neighbour)`.
    """

    def __init__(
        self,
        points: ClassPoints,
        places: IndexArray,
        needed: IndexArray,
        memory: int | None = None,
    ) -> None:
        self._places = places
        self._here = np.full(len(needed), -1, np.int64)
        self._here[places] = np.arange(len(places))
        self._width = int(needed.max())
        self._search = ExactSearch(points, self._width, memory=memory, needed=needed[places])

    def nearest(self, queries: Queries) -> NearestSquares:
        """Give the shard's part of the first round; own classes are places among all classes."""
        found = self._search.nearest_squares(self._local(queries))
        lists = np.full((len(queries.own), self._width), np.inf)
        lists[:, : found.own.shape[1]] = found.own
        named = np.where(found.other_class < 0, -1, self._places[found.other_class])
        return NearestSquares(lists, found.other, named)

    def within(self, queries: Queries, bound: Floats) -> Pairs:
        """Give the shard's part of the second round."""
        found = self._search.within(self._local(queries), bound)
        return Pairs(found.query, self._places[found.code], found.square)

    def _local(self, queries: Queries) -> Queries:
        return replace(queries, own=np.where(queries.own < 0, -1, self._here[queries.own]))


def merged_distances(
    first: Iterable[NearestSquares],
    second: Callable[[Floats], Iterable[Pairs]],
    own: IndexArray,
    needed: IndexArray,
) -> ClassDistances:
    """Distances over all shards, equal to those of one search of all points, bit for bit.

    `first` is what `ShardSearch.nearest` gave in each shard. `second`, called if any class needs
    more than one point, maps the bounds of the queries to what `ShardSearch.within` gives in each.
    """
    merged = _merge_nearest(first)
    if needed.max() > 1:
        other, named = _merge_pairs(second(merged.other), needed, len(own))
        merged = NearestSquares(merged.own, other, named)
    return merged.distances(own, needed)


def _merge_nearest(parts: Iterable[NearestSquares]) -> NearestSquares:
    """Join first rounds: nearest points of the own class, and the least other distance.

    Of equal other distances the class of lower number counts.
    """
    parts = iter(parts)
    merged = next(parts)
    for part in parts:
        width = merged.own.shape[1]
        lists = np.sort(np.concatenate([merged.own, part.own], axis=1), axis=1)[:, :width]
        # As unsigned numbers, -1 is above every class.
        lower = part.other_class.astype(np.uint64) < merged.other_class.astype(np.uint64)
        better = (part.other < merged.other) | ((part.other == merged.other) & lower)
        merged = NearestSquares(
            lists,
            np.where(better, part.other, merged.other),
            np.where(better, part.other_class, merged.other_class),
        )
    return merged


def _merge_pairs(
    parts: Iterable[Pairs], needed: IndexArray, total: int
) -> tuple[Floats, IndexArray]:
    """Join second rounds: squared distance to the nearest other class, and that class.

    `total` is the number of queries.
    """
    query, code, square = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.lexsort((square, code, query))
    query, code, square = query[order], code[order], square[order]
    stands = _ranks(query * len(needed) + code) == needed[code] - 1
    query, code, square = query[stands], code[stands], square[stands]
    order = np.lexsort((code, square, query))
    first = order[_ranks(query[order]) == 0]
    best, named = np.full(total, np.inf), np.full(total, -1, np.int64)
    best[query[first]], named[query[first]] = square[first], code[first]
    return best, named


def _ranks(key: IndexArray) -> IndexArray:
    """Position of each entry among those of equal `key`, a sorted vector."""
    each = np.arange(len(key))
    fresh = np.ones(len(key), bool)
    fresh[1:] = key[1:] != key[:-1]
    ranks: IndexArray = each - np.maximum.accumulate(np.where(fresh, each, 0))
    return ranks
