import numpy as np
import pytest

from trustsets.resuming import digest
from trustsets_paper.protocol import StageCache


def square(cache, x, calls=None, version=1):
    def make():
        if calls is not None:
            calls.append(x)
        return {"values": np.asarray(x) ** 2, "count": len(x)}

    return cache.get("square", {"x": digest(np.asarray(x))}, make, version=version)


def test_equal_inputs_are_worked_on_once_over_processes(tmp_path):
    calls = []
    first = square(StageCache(tmp_path), [1.0, 2.0], calls)
    again = StageCache(tmp_path)
    second = square(again, [1.0, 2.0], calls)
    assert len(calls) == 1
    assert np.array_equal(first["values"], second["values"])
    assert second["values"].dtype == first["values"].dtype
    assert second["count"] == 2
    tally = again.tallies["square"]
    assert (tally.made, tally.reused) == (0, 1)
    assert tally.saved > 0.0 and tally.seconds == 0.0


@pytest.mark.parametrize("other", [[1.0, 3.0], [1.0], [1, 2]])
def test_other_content_is_worked_on(tmp_path, other):
    calls = []
    square(StageCache(tmp_path), [1.0, 2.0], calls)
    square(StageCache(tmp_path), other, calls)
    assert len(calls) == 2


def test_a_new_version_of_a_stage_is_worked_on(tmp_path):
    calls = []
    square(StageCache(tmp_path), [1.0], calls)
    square(StageCache(tmp_path), [1.0], calls, version=2)
    assert len(calls) == 2


def test_force_works_anew_and_replaces(tmp_path):
    calls = []
    square(StageCache(tmp_path), [1.0], calls)
    square(StageCache(tmp_path, force=True), [1.0], calls)
    square(StageCache(tmp_path), [1.0], calls)
    assert len(calls) == 2


@pytest.mark.parametrize("damage", [b"", b"not a safetensors file", None])
def test_a_damaged_result_is_made_again(tmp_path, damage):
    square(StageCache(tmp_path), [1.0, 2.0])
    (path,) = (tmp_path / "square").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    calls = []
    found = square(StageCache(tmp_path), [1.0, 2.0], calls)
    assert len(calls) == 1
    assert found["values"].tolist() == [1.0, 4.0]


def test_work_that_fails_leaves_nothing(tmp_path):
    def fail():
        raise KeyboardInterrupt

    cache = StageCache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cache.get("square", {"x": 1}, fail)
    assert list(tmp_path.rglob("*.safetensors")) == []
    assert "square" not in cache.tallies


def test_nothing_is_kept_without_a_folder():
    calls, cache = [], StageCache(None)
    square(cache, [1.0], calls)
    square(cache, [1.0], calls)
    assert len(calls) == 2


def test_digest_tells_content_type_shape_and_order_apart():
    a, b = np.arange(6.0), np.arange(6.0)[::-1]
    known = [
        digest(a),
        digest(b),
        digest(a.reshape(2, 3)),
        digest(a.astype(np.float32)),
        digest(a, b),
        digest(b, a),
        digest(a, None),
        digest(np.array(["a", "b"])),
        digest(np.array(["a", "c"])),
        digest(np.empty(0)),
    ]
    assert len(set(known)) == len(known)
    assert digest(b) == digest(np.ascontiguousarray(b))
    assert digest(np.array(["a", "b"], dtype=object)) == digest(np.array(["a", "b"]))


def test_times_add_up_by_stage_and_label(tmp_path):
    def get(cache, x, label):
        return cache.get("square", {"x": x}, lambda: {"x": x}, label=label)

    cache = StageCache(tmp_path)
    for x, label in ((1, "odd"), (2, "even"), (3, "odd"), (1, "odd")):
        get(cache, x, label)
    own = cache.details["square"]
    assert (own["odd"].made, own["odd"].reused, own["even"].made) == (2, 1, 1)
    both = own["odd"] + own["even"]
    assert vars(both) == pytest.approx(vars(cache.tallies["square"]))
    # The label is no part of the key.
    get(cache, 2, "other")
    assert cache.details["square"]["other"].reused == 1
