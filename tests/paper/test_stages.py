import numpy as np
import pytest

from trustsets.resuming import digest
from trustsets_paper.protocol import StageCache


def square(cache, x, calls=None):
    def make():
        if calls is not None:
            calls.append(x)
        return {"values": np.asarray(x) ** 2, "count": len(x)}

    return cache.get("square", {"x": digest(np.asarray(x))}, make)


def test_equal_inputs_are_worked_on_once_over_processes(tmp_path):
    calls = []
    first = square(StageCache(tmp_path), [1.0, 2.0], calls)
    again = StageCache(tmp_path)
    second = square(again, [1.0, 2.0], calls)
    assert len(calls) == 1
    assert np.array_equal(first["values"], second["values"])
    assert second["values"].dtype == first["values"].dtype
    assert second["count"] == 2
    assert (again.made["square"], again.reused["square"]) == (0, 1)


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
    assert not cache.made
