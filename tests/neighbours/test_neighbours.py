"""Laws of the searches: each equals a direct float64 computation, whatever the data look like."""

import numpy as np
import pytest

from trustsets.neighbours import HEADS, ClassPoints, Queries, Sketch, make_search

RELATIVE = 1e-5
# Two computations in float64 of the same distance between rows of norm 1 differ by less than this.
ABSOLUTE = 1e-12


def row_scales(features, normalize):
    norms = np.linalg.norm(features.astype(np.float64), axis=1)
    scales = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0.0)
    return scales if normalize else np.ones(len(features))


def make_points(features, codes, normalize):
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(codes.max() + 2)).astype(np.int64)
    features = np.ascontiguousarray(features[order])
    return ClassPoints(features, row_scales(features, normalize), starts)


def brute_force(points, queries, scale, own, neighbour):
    """The definition, one query and one class at a time, by differences in float64."""
    rows = points.rows(slice(None))
    total_classes = len(points.starts) - 1
    table = np.full((len(queries), total_classes), np.inf)
    for index, (query, factor) in enumerate(zip(queries, scale, strict=True)):
        gaps = np.sqrt(((query.astype(np.float64) * factor - rows) ** 2).sum(axis=1))
        for code in range(total_classes):
            members = np.sort(gaps[points.starts[code] : points.starts[code + 1]])
            table[index, code] = members[min(neighbour, len(members)) - 1]
    numbers = np.arange(len(queries))
    own_distance = np.where(own < 0, np.inf, table[numbers, own])
    table[numbers[own >= 0], own[own >= 0]] = np.inf
    return own_distance, table.min(axis=1), table


def assert_equal_to_brute_force(search, points, queries, scale, own, neighbour):
    found = search.distances(Queries(queries, scale, own))
    own_distance, other, table = brute_force(points, queries, scale, own, neighbour)
    unit = max(float(np.abs(points.rows(slice(None))).max()), 1e-300)
    np.testing.assert_allclose(found.own_distance, own_distance, RELATIVE, ABSOLUTE * unit)
    np.testing.assert_allclose(found.other_distance, other, RELATIVE, ABSOLUTE * unit)
    # The class named is a nearest one: ties in float64 may break either way against brute force.
    some = np.isfinite(other)
    named = table[np.flatnonzero(some), found.other_class[some]]
    np.testing.assert_allclose(named, other[some], 1e-12, ABSOLUTE * unit)
    assert (found.other_class[~some] == -1).all()


def random_case(rng):
    return rng.standard_normal((900, 40)), rng.integers(0, 7, 900), rng.standard_normal((60, 40))


def clustered_case(rng):
    centres = 3.0 * rng.standard_normal((12, 96)) * np.exp(-np.arange(96) / 12)
    codes, asked = rng.integers(0, 12, 900), rng.integers(0, 12, 60)
    noise = np.exp(-np.arange(96) / 20)
    return (
        centres[codes] + noise * rng.standard_normal((900, 96)),
        codes,
        centres[asked] + noise * rng.standard_normal((60, 96)),
    )


def low_rank_case(rng):
    mix = rng.standard_normal((3, 80))
    return (
        rng.standard_normal((800, 3)) @ mix,
        rng.integers(0, 5, 800),
        rng.standard_normal((50, 3)) @ mix,
    )


def heavy_tailed_case(rng):
    return (rng.standard_cauchy((700, 50)), rng.integers(0, 6, 700), rng.standard_cauchy((50, 50)))


def offset_case(rng):
    """Distances near 1 around a point at 1e6: the dot-product form loses every digit in float32."""
    return (
        1e6 + rng.standard_normal((600, 60)),
        rng.integers(0, 5, 600),
        1e6 + rng.standard_normal((40, 60)),
    )


def duplicate_case(rng):
    base = rng.standard_normal((60, 30))
    features = base[rng.integers(0, 60, 600)]
    return features, rng.integers(0, 4, 600), base[rng.integers(0, 60, 50)]


def near_tie_case(rng):
    """Every point at almost the same distance from every query, to one part in 1e7."""
    centre = rng.standard_normal(48)
    sphere = rng.standard_normal((800, 48))
    sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
    radii = 1.0 + 1e-7 * rng.standard_normal((800, 1))
    return centre + sphere * radii, rng.integers(0, 6, 800), np.repeat(centre[None], 50, axis=0)


def far_query_case(rng):
    return (
        rng.standard_normal((300, 20)),
        rng.integers(0, 3, 300),
        rng.standard_normal((40, 20)) * 10.0 ** rng.integers(0, 38, (40, 1)),
    )


def far_point_case(rng):
    """More points than the sketch is chosen from, and one among them that squares to infinity."""
    features = rng.standard_normal((9000, 5))
    features[8999] *= 1e25
    codes = rng.integers(0, 3, 9000)
    codes[8999] = 3
    return features, codes, rng.standard_normal((20, 5)) * 10.0 ** rng.integers(0, 30, (20, 1))


def far_class_case(rng):
    """One point, in the first of several blocks, is far away and the only one of its class."""
    features, codes = rng.standard_normal((5000, 5)), np.ones(5000, int)
    features[0], codes[0] = 1e5 * features[0], 0
    return features, codes, rng.standard_normal((20, 5))


def zero_vector_case(rng):
    features, queries = rng.standard_normal((200, 10)), rng.standard_normal((30, 10))
    features[::7], queries[::5] = 0.0, 0.0
    return features, rng.integers(0, 3, 200), queries


def tiny_case(rng):
    return np.array([[1.0], [2.0], [4.0]]), np.array([0, 1, 1]), np.array([[0.0], [3.5]])


CASES = [
    random_case, clustered_case, low_rank_case, heavy_tailed_case, offset_case, duplicate_case,
    near_tie_case, far_query_case, far_point_case, far_class_case, zero_vector_case, tiny_case,
]  # fmt: skip


def prepared(case, normalize, dtype, seed=0):
    rng = np.random.default_rng(seed)
    features, codes, queries = case(rng)
    features, queries = features.astype(dtype), queries.astype(dtype)
    points = make_points(features, codes, normalize)
    own = rng.integers(-1, codes.max() + 1, len(queries))
    return points, queries, row_scales(queries, normalize), own


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("neighbour", [1, 3])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    ("device", "dtype"), [("torch:cpu", np.float32), ("cpu", np.float32), ("cpu", np.float64)]
)
def test_equals_the_definition(case, normalize, device, dtype, neighbour):
    if device != "cpu":
        pytest.importorskip("torch")
    points, queries, scale, own = prepared(case, normalize, dtype)
    search = make_search(points, neighbour, device)
    assert_equal_to_brute_force(search, points, queries, scale, own, neighbour)


@pytest.mark.parametrize("device", ["cpu", "torch:cpu"])
@pytest.mark.parametrize("head", [1, 3, 14, 62, 96])
def test_every_head_gives_the_same_distances(head, device):
    """Bit for bit on the CPU, where every distance comes from one formula."""
    points, queries, scale, own = prepared(clustered_case, True, np.float32)
    whole = make_search(points).sketch
    rows = points.rows(slice(None)) - whole.mean
    basis = np.linalg.svd(rows, full_matrices=False)[2].T
    leading = None if head == 96 else np.ascontiguousarray(basis[:, : max(head, 20)])
    sketch = Sketch(whole.mean, leading, head, whole.unit)
    expected = make_search(points, 2).distances(Queries(queries, scale, own))
    search = make_search(points, 2, device, sketch=sketch)
    found = search.distances(Queries(queries, scale, own))
    assert search.sketch.head == head
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0 if device == "cpu" else 1e-12)


def test_batches_budget_and_threads_do_not_change_a_bit(monkeypatch):
    points, queries, scale, own = prepared(clustered_case, True, np.float32)
    expected = make_search(points).distances(Queries(queries, scale, own))
    for memory, threads in ((1, 1), (2**23, 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        search = make_search(points, memory=memory)
        found = search.distances(Queries(queries, scale, own))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_bounds_never_exceed_the_distance():
    """The proof of `Sketch.slack`, on data made to round badly."""
    for case in (offset_case, near_tie_case, heavy_tailed_case, low_rank_case):
        points, queries, scale, _ = prepared(case, False, np.float64)
        mean = points.rows(slice(None)).mean(axis=0)
        rows = points.rows(slice(None)) - mean
        basis = np.linalg.svd(rows, full_matrices=False)[2][:14].T.copy()
        radius = float(np.linalg.norm(rows, axis=1).max())
        unit = 2.0 ** -np.round(np.log2(radius))
        sketch = Sketch(mean, basis, min(8, basis.shape[1]), unit)
        asked, given = sketch.project(queries * scale[:, None]), sketch.project(rows + mean)
        drift, error = sketch.slack(asked.norm, float(given.norm.max()))
        heads = [projection.head[:, :-1] for projection in (asked, given)]
        squares = (heads[1].astype(np.float64) ** 2).sum(axis=1).astype(np.float32)
        bound = asked.square[:, None] + squares - 2 * (heads[0] @ heads[1].T)
        gaps = queries[:, None] - points.rows(slice(None))
        distances = np.sqrt((gaps**2).sum(axis=2)) * unit
        assert (bound <= (distances + drift[:, None]) ** 2 + error[:, None]).all()


def test_pruning_prunes_where_it_can():
    points, queries, scale, own = prepared(clustered_case, True, np.float32)
    search = make_search(points)
    search.distances(Queries(queries, scale, own))
    assert search.sketch.head in HEADS
    pairs, survivors, measured = search.counts
    assert pairs == len(queries) * len(points.features)
    assert measured <= survivors < 0.2 * pairs
    # Where nothing can be pruned, the bound is the plain distance.
    rng = np.random.default_rng(0)
    points = make_points(rng.standard_normal((2000, 64)), rng.integers(0, 4, 2000), True)
    assert make_search(points).sketch.head == 64


def test_ties_go_to_the_first_class():
    features = np.array([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])
    points = make_points(features, np.array([3, 2, 1, 0]), False)
    found = make_search(points).distances(
        Queries(np.zeros((4, 2)), np.ones(4), np.array([0, 1, 2, -1]))
    )
    assert found.other_class.tolist() == [1, 0, 0, 0]


def test_torch_equals_cpu_in_small_tiles_and_large_classes(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr("trustsets.neighbours.gpu.DIRECT_POINTS", 16)
    points, queries, scale, own = prepared(clustered_case, True, np.float32)
    expected = make_search(points, 2).distances(Queries(queries, scale, own))
    search = make_search(points, 2, "torch:cpu", memory=2**16)
    found = search.distances(Queries(queries, scale, own))
    np.testing.assert_allclose(found.own_distance, expected.own_distance, 1e-12)
    np.testing.assert_allclose(found.other_distance, expected.other_distance, 1e-12)
    np.testing.assert_array_equal(found.other_class, expected.other_class)
    assert search.counts[2] < search.counts[0]
