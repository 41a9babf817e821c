"""A search of shards, merged, equals the search of all points bit for bit."""

import numpy as np
import pytest

from trustsets.neighbours.exact import ExactSearch
from trustsets.neighbours.partial import ShardSearch, merged_distances
from trustsets.neighbours.points import ClassPoints, Queries, row_scales

CLASSES = 6


def sorted_points(features, codes, normalize):
    """Points by class, and the classes that have any."""
    order = np.argsort(codes, kind="stable")
    places, firsts = np.unique(codes[order], return_index=True)
    starts = np.append(firsts, len(codes)).astype(np.int64)
    features = np.ascontiguousarray(features[order])
    return ClassPoints(features, row_scales(features, normalize), starts), places


def merged(features, codes, shards, queries, own, neighbour, normalize):
    needed = np.minimum(np.bincount(codes, minlength=CLASSES), neighbour)
    searches = [
        ShardSearch(*sorted_points(features[shards == s], codes[shards == s], normalize), needed)
        for s in np.unique(shards)
    ]
    scale = row_scales(queries, normalize)
    return merged_distances(
        [search.nearest(Queries(queries, scale, own)) for search in searches],
        lambda bound: (search.within(Queries(queries, scale, own), bound) for search in searches),
        own,
        needed,
    )


def whole(features, codes, queries, own, neighbour, normalize):
    points, places = sorted_points(features, codes, normalize)
    assert len(places) == CLASSES
    return ExactSearch(points, neighbour).distances(
        Queries(queries, row_scales(queries, normalize), own)
    )


def clouds(rng, n):
    codes = np.append(np.arange(CLASSES), rng.integers(0, CLASSES, n - CLASSES))
    return 0.6 * rng.normal(size=(CLASSES, 20))[codes] + rng.normal(size=(n, 20)), codes


def tied(rng, n):
    """Points on a small grid: most distances occur many times, in several classes."""
    codes = np.append(np.arange(CLASSES), rng.integers(0, CLASSES, n - CLASSES))
    return rng.integers(0, 2, size=(n, 4)).astype(float), codes


def rare(rng, n):
    """Classes of one, two, three ... points: fewer than the neighbour asked for."""
    codes = np.repeat(np.arange(CLASSES), [1, 2, 3, 4, n // 3, n - 10 - n // 3])
    return rng.normal(size=(n, 8)), codes


def dealt(rng, codes):
    return rng.integers(0, 3, len(codes))


def by_class(rng, codes):
    """Every class lies whole in one shard, and two shards have no class in common."""
    return codes // 2


def crumbs(rng, codes):
    """So many shards that none has the neighbours that a class needs."""
    return np.arange(len(codes)) % (len(codes) // 2)


@pytest.mark.parametrize("neighbour", [1, 2, 5])
@pytest.mark.parametrize("split", [dealt, by_class, crumbs])
@pytest.mark.parametrize("case", [clouds, tied, rare])
def test_shards_give_the_bits_of_one_search(case, split, neighbour):
    rng = np.random.default_rng(neighbour)
    features, codes = case(rng, 60 if split is crumbs else 240)
    for dtype, normalize in ((np.float64, False), (np.float32, True)):
        points = features.astype(dtype)
        queries = np.concatenate([points[:20], case(rng, 60)[0].astype(dtype)])
        own = rng.integers(-1, CLASSES, len(queries))
        arguments = (queries, own, neighbour, normalize)
        expected = whole(points, codes, *arguments)
        found = merged(points, codes, split(rng, codes), *arguments)
        for name in ("own", "other", "other_class"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


def test_the_nearest_class_may_be_second_in_every_shard():
    """Each shard alone names class 1 with its two near points; class 0 wins only over both."""
    features = np.array([[1.0], [9.0], [2.0], [2.1], [1.1], [9.0], [2.2], [2.3]])
    codes = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    shards = np.repeat([0, 1], 4)
    needed = np.array([2, 2])
    queries, own = np.zeros((1, 1)), np.array([-1])
    searches = [
        ShardSearch(*sorted_points(features[shards == s], codes[shards == s], False), needed)
        for s in (0, 1)
    ]
    first = [search.nearest(Queries(queries, np.ones(1), own)) for search in searches]
    assert [int(part.other_class[0]) for part in first] == [1, 1]
    found = merged_distances(
        first,
        lambda bound: [
            search.within(Queries(queries, np.ones(1), own), bound) for search in searches
        ],
        own,
        needed,
    )
    assert (found.other[0], found.other_class[0]) == (1.1, 0)


def test_no_other_class():
    features = np.random.default_rng(0).normal(size=(9, 3))
    needed = np.array([2])
    searches = [
        ShardSearch(*sorted_points(features[part], np.zeros(3, int), True), needed)
        for part in (slice(0, 3), slice(3, 6), slice(6, 9))
    ]
    queries, own = features[:2], np.array([0, 0])
    scale = row_scales(queries, True)
    found = merged_distances(
        [search.nearest(Queries(queries, scale, own)) for search in searches],
        lambda bound: [search.within(Queries(queries, scale, own), bound) for search in searches],
        own,
        needed,
    )
    assert np.isinf(found.other).all() and (found.other_class == -1).all()
    assert np.isfinite(found.own).all()
