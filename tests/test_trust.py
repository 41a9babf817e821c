"""Laws of TrustScore: the definition, its odd cases, its state, and its errors."""

import pickle
import sys
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from trustsets import storage
from trustsets.errors import InputError, NotCalibratedError, TrustSetsWarning
from trustsets.trust import DISTANCE_FLOOR, LARGEST_SCORE, TrustScore

NAMES = np.array(["ant", "bee", "cat", "dog", "elk"])


def literal_trust(train, labels, queries, predicted, normalize, neighbour, squared):
    """The definition, word for word, in float64."""
    train, queries = train.astype(np.float64), queries.astype(np.float64)
    if normalize:
        train = train / np.linalg.norm(train, axis=1, keepdims=True)
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    scores = np.empty(len(queries))
    for index, query in enumerate(queries):
        gaps = ((query - train) ** 2).sum(axis=1)
        gaps = gaps if squared else np.sqrt(gaps)
        to_class = {c: np.sort(gaps[labels == c])[neighbour - 1] for c in np.unique(labels)}
        own = to_class.pop(predicted[index])
        scores[index] = min(to_class.values()) / own
    return scores


def literal_filter(points, fraction, k):
    """H_delta of one class as the paper writes it."""
    radii = np.array([np.sort(np.sqrt(((p - points) ** 2).sum(axis=1)))[k - 1] for p in points])
    allowed = Fraction(str(fraction)) * len(points)
    epsilon = min(r for r in radii if (radii > r).sum() <= allowed)
    return radii <= epsilon


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    codes, asked = rng.integers(0, 5, 400), rng.integers(0, 5, 80)
    centres = 2.0 * rng.standard_normal((5, 24))
    train = (centres[codes] + rng.standard_normal((400, 24))).astype(np.float32)
    queries = (centres[asked] + 1.5 * rng.standard_normal((80, 24))).astype(np.float32)
    return train, NAMES[codes], queries, NAMES[rng.integers(0, 5, 80)]


@pytest.mark.parametrize("device", ["cpu", "torch:cpu"])
@pytest.mark.parametrize(("neighbour", "squared"), [(1, False), (2, True), (4, False)])
@pytest.mark.parametrize("normalize", [True, False])
def test_score_is_the_definition(data, normalize, neighbour, squared, device):
    train, labels, queries, predicted = data
    trust = TrustScore(
        normalize=normalize, neighbour=neighbour, squared=squared, device=device
    ).fit(train, labels)
    expected = literal_trust(train, labels, queries, predicted, normalize, neighbour, squared)
    np.testing.assert_allclose(trust.score(queries, predicted), expected, 1e-8)


@pytest.mark.parametrize("order", "CF")
def test_batches_give_equal_bits(data, order):
    train, labels, queries, predicted = data
    trust = TrustScore().fit(train, labels)
    whole = trust.score(np.asarray(queries, order=order), predicted)
    for size in (1, 7):
        parts = [
            trust.score(queries[i : i + size], predicted[i : i + size])
            for i in range(0, len(queries), size)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("normalize", [True, False])
def test_order_of_rows_and_queries_does_not_matter(normalize):
    rng = np.random.default_rng(0)
    train, labels = rng.normal(size=(5000, 7)) + 3.0, rng.integers(0, 4, 5000)
    # Some are at distance 0, where the score is all scale.
    queries, predicted = np.vstack([train[:20], train[20:40] + 0.1]), labels[:40]
    rows, asked = rng.permutation(5000), rng.permutation(40)
    one = TrustScore(normalize=normalize).fit(train, labels).score(queries, predicted)
    other = TrustScore(normalize=normalize).fit(train[rows], labels[rows])
    np.testing.assert_array_equal(other.score(queries[asked], predicted[asked]), one[asked])


def test_any_container_and_float_type(data):
    torch = pytest.importorskip("torch")
    train, labels, queries, predicted = data
    half, asked = train.astype(np.float16), queries.astype(np.float16)
    expected = TrustScore().fit(half, labels).score(asked, predicted)
    for wrap in (np.float32, np.float64, pd.DataFrame, torch.from_numpy, np.ndarray.tolist):
        trust = TrustScore().fit(wrap(half), pd.Series(labels))
        np.testing.assert_allclose(trust.score(wrap(asked), list(predicted)), expected, 1e-12)
    text = np.dtypes.StringDType()
    named = TrustScore().fit(half, labels.astype(text)).score(asked, predicted.astype(text))
    np.testing.assert_array_equal(named, expected)
    # The torch search keeps half precision as it came; distances are those of the same numbers.
    found = TrustScore(device="torch:cpu").fit(half, labels).score(asked, predicted)
    np.testing.assert_allclose(found, expected, 1e-12)


@pytest.mark.parametrize("fraction", [0.1, 0.29, 0.5])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_filter_is_the_papers_high_density_set(fraction, k, monkeypatch):
    rng = np.random.default_rng(3)
    train = np.round(rng.standard_normal((230, 3)), 1)  # rounded: ties and duplicates
    labels = np.repeat([0, 1, 2, 3], [100, 113, 10, 7])
    monkeypatch.setattr("trustsets.trust.FILTER_NEIGHBOURS", k)
    trust = TrustScore(normalize=False, filter_fraction=fraction).fit(train, labels)
    state = trust.to_state()
    for code in range(4):
        members = train[labels == code]
        mask = literal_filter(members, fraction, k) if len(members) >= k else np.ones(7, bool)
        found = state["features"][state["starts"][code] : state["starts"][code + 1]]
        np.testing.assert_array_equal(found, members[mask])


@pytest.mark.parametrize("device", ["cpu", "torch:cpu"])
def test_odd_cases(device):
    train = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    trust = TrustScore(normalize=False, device=device).fit(train, ["a", "a", "b", "c"])
    own, other, named = trust.distances([[0.0, 0.0], [0.0, 3.0], [5.0, 0.0]], ["a", "b", "zebra"])
    assert own.tolist() == [0.0, 0.0, np.inf]
    assert other.tolist() == [0.0, 3.0, 3.0]
    assert named.tolist() == ["c", "a", "a"]
    score = trust.score([[0.0, 0.0], [0.0, 3.0], [5.0, 0.0]], ["a", "b", "zebra"])
    assert score[0] == 1.0
    assert score[1] == min(3.0 / (DISTANCE_FLOOR * trust.scale_) + 1.0, LARGEST_SCORE)
    assert score[2] == 0.0
    # So has any name without training points, wherever it sorts among the classes.
    assert trust.score(np.full((3, 2), 5.0), ["", "aa", "bb"]).tolist() == [0.0, 0.0, 0.0]
    # A single class has no other.
    trust = TrustScore(device=device).fit([[1.0, 0.0], [0.0, 1.0]], ["only", "only"])
    own, other, named = trust.distances([[1.0, 1.0]], ["only"])
    assert np.isfinite(own).all() and np.isinf(other).all() and named.tolist() == ["only"]
    assert trust.score([[1.0, 1.0]], ["only"]).tolist() == [LARGEST_SCORE]


def test_small_class_uses_its_farthest_point():
    train = np.array([[0.0], [1.0], [2.0], [10.0]])
    with pytest.warns(TrustSetsWarning, match=r"fewer than neighbour=3 .* with 1\)"):
        trust = TrustScore(normalize=False, neighbour=3).fit(train, [0, 0, 0, 1])
    own, other, _ = trust.distances([[0.0]], [0])
    assert (own[0], other[0]) == (2.0, 10.0)


def test_only_rows_of_zeros_have_no_direction():
    """They are one away from every other; float32 goes down to 1e-38."""
    trust = TrustScore().fit([[0.0, 0.0], [3.0, 4.0]], ["zero", "one"])
    own, other, _ = trust.distances([[0.0, 0.0], [6.0, 8.0]], ["one", "one"])
    np.testing.assert_allclose(own, [1.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(other, [0.0, 1.0])
    trust = TrustScore().fit(np.eye(2, dtype=np.float32), ["x", "y"])
    for size in (1.0, 1e-15, 1e-30, 1e-37):
        query = np.array([[3.0, 4.0]], dtype=np.float32) * np.float32(size)
        own, other, _ = trust.distances(query, ["y"])
        np.testing.assert_allclose([own[0], other[0]], np.sqrt([0.4, 0.8]), rtol=1e-6)


def test_score_is_finite_and_monotone_in_the_distances():
    """One own and one other point on a line, at every pair of distances from 0 to huge."""
    steps = np.array([0.0, 1e-300, 1e-15, 1e-9, 1.0, 1e9, 1e100])
    table = np.empty((len(steps), len(steps)))
    for i, own in enumerate(steps):
        for j, other in enumerate(steps):
            trust = TrustScore(normalize=False).fit(
                [[own], [-other], [1.0]], ["own", "other", "own"]
            )
            trust.scale_ = 1.0
            table[i, j] = trust.score([[0.0]], ["own"])[0]
    assert np.isfinite(table).all()
    assert (np.diff(table, axis=0) <= 0).all() and (np.diff(table, axis=1) >= 0).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("device", ["cpu", "torch:cpu"])
def test_copies_and_files_give_equal_bits(data, dtype, device, tmp_path):
    """Also a copy whose arrays are read-only, as in the shared memory of several processes."""
    train, labels, queries, predicted = data
    trust = TrustScore(device=device, filter_fraction=0.1, neighbour=2, squared=True)
    trust.fit(train.astype(dtype), labels)
    storage.write(tmp_path / "trust.trustsets", trust)
    again = storage.read(tmp_path / "trust.trustsets")
    buffers: list[pickle.PickleBuffer] = []
    kept = pickle.dumps(trust, protocol=5, buffer_callback=buffers.append)
    shared = pickle.loads(kept, buffers=[bytes(buffer) for buffer in buffers])
    assert not shared.training_features_.flags.writeable
    expected = trust.score(queries, predicted)
    for copy in (again, shared):
        np.testing.assert_array_equal(copy.score(queries, predicted), expected)
    assert again.get_params() == trust.get_params()
    assert again.to_state()["features"].dtype == dtype


def test_before_a_fit_there_is_no_score(data):
    train, labels, _, _ = data
    with pytest.raises(NotCalibratedError, match="fit"):
        clone(TrustScore(neighbour=2).fit(train, labels)).score(train, labels)


def test_only_long_runs_on_a_terminal_show_a_progress_bar(data, capsys, monkeypatch):
    train, labels, queries, predicted = data
    trust = TrustScore().fit(train, labels)
    for long_run, terminal in ((10**10, True), (1, False), (1, True)):
        monkeypatch.setattr("trustsets.trust.LONG_RUN", long_run)
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        trust.score(queries, predicted)
        assert ("Trust scores" in capsys.readouterr().err) == (long_run == 1 and terminal)


NAN = np.array([[1.0, np.nan]])


@pytest.mark.parametrize(
    ("features", "predicted", "message"),
    [
        (NAN, ["a"], "features must be finite"),
        ([[1.0, np.inf]], ["a"], "features must be finite"),
        ([[1.0, 1e200]], ["a"], "scale the features down"),
        ([[1.0, 2.0, 3.0]], ["a"], "2 columns"),
        ([1.0, 2.0], ["a"], "one row per sample"),
        (np.empty((0, 2)), [], "at least one row"),
        ([["x", "y"]], ["a"], "matrix of numbers"),
        ([[1.0, 2.0]], ["a", "b"], "one label per row"),
        ([[1.0, 2.0]], [3], "labels like those of fit"),
    ],
)
def test_bad_queries_are_named_and_leave_the_object_usable(features, predicted, message):
    trust = TrustScore().fit([[1.0, 0.0], [0.0, 1.0]], ["a", "b"])
    before = trust.score([[1.0, 0.5]], ["a"])
    with pytest.raises(InputError, match=message):
        trust.score(features, predicted)
    with pytest.raises(InputError):
        trust.fit(NAN, ["a"])
    np.testing.assert_array_equal(trust.score([[1.0, 0.5]], ["a"]), before)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"filter_fraction": 1.0}, "filter_fraction must lie in"),
        ({"device": "abacus"}, "cannot be used by torch"),
    ],
)
def test_bad_parameters_and_labels_are_named(parameters, message):
    with pytest.raises(InputError, match=message):
        TrustScore(**parameters).fit([[1.0], [2.0]], [0, 1])
    with pytest.raises(InputError, match="labels must not hold"):
        TrustScore().fit([[1.0], [2.0]], [0.0, np.nan])


@pytest.mark.parametrize("device", ["cpu", "torch:cpu"])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("factor", [2.0**-100, 1e-8, 1e3, 2.0**100])
def test_scaling_all_features_changes_no_score(normalize, squared, device, factor):
    """Also where the own distance is 0, and for rows so short that a fixed floor would win."""
    rng = np.random.default_rng(0)
    train, labels = rng.normal(size=(60, 4)), np.arange(60) % 3
    queries, predicted = np.vstack([train[:6], rng.normal(size=(20, 4))]), np.arange(26) % 3
    make = TrustScore(normalize=normalize, squared=squared, device=device)
    plain = make.fit(train, labels).score(queries, predicted)
    scaled = make.fit(factor * train, labels).score(factor * queries, predicted)
    # The unit of the floor is kept to six digits; only own distances of 0 see it.
    np.testing.assert_allclose(scaled[:6], plain[:6], rtol=1e-5)
    np.testing.assert_allclose(scaled[6:], plain[6:], rtol=1e-6)
    assert (plain[:6] > 1e9).all() and (plain[:6] < LARGEST_SCORE).any()
    assert (plain[6:] < 1e6).all()
