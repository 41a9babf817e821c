"""Finished parts are kept, damaged and foreign ones are not, and the output is whole or absent."""

import hashlib
import json

import pytest

from trustsets.errors import InputError
from trustsets.files.parts import PartStore

KEY = {"alpha": 0.1}


def join(store, n):
    def assemble(file):
        for number in range(n):
            file.write(store.read(number))

    return assemble


def folders(path):
    return sorted(item.name for item in path.glob(".*.parts"))


def test_parts_become_the_output_and_disappear(tmp_path):
    with PartStore(tmp_path / "out", KEY) as store:
        store.write(1, b"world")
        store.write(0, b"hello ")
        assert not (tmp_path / "out").exists()
        store.finish(join(store, 2), record={"a": 1})
    assert (tmp_path / "out").read_bytes() == b"hello world"
    beside = json.loads((tmp_path / "out.options.json").read_text())
    assert beside == {"a": 1, "sha256": hashlib.sha256(b"hello world").hexdigest()}
    assert sorted(item.name for item in tmp_path.iterdir()) == ["out", "out.options.json"]


def test_a_later_run_continues(tmp_path):
    with PartStore(tmp_path / "out", KEY) as store:
        store.write(0, b"a")
    with PartStore(tmp_path / "out", KEY) as store:
        assert store.holds(0) and not store.holds(1) and len(store) == 1
        assert store.read(0) == b"a"


def test_other_options_never_share_parts_and_are_cleared_in_the_end(tmp_path):
    with PartStore(tmp_path / "out", KEY) as store:
        store.write(0, b"a")
    with PartStore(tmp_path / "out", {"alpha": 0.2}) as store:
        assert not store.holds(0)
        store.write(0, b"b")
        store.finish(join(store, 1))
    assert (tmp_path / "out").read_bytes() == b"b"
    assert folders(tmp_path) == []


def test_a_damaged_part_is_made_again(tmp_path):
    with PartStore(tmp_path / "out", KEY) as store:
        store.write(0, b"aaaa")
        store.write(1, b"bbbb")
        store.write(2, b"cccc")
    (folder,) = tmp_path.glob(".*.parts")
    parts = sorted(folder.glob("part-*"))
    parts[0].write_bytes(b"aaa")
    parts[2].write_bytes(b"cccd")
    (folder / "part-nonsense").write_bytes(b"")
    with PartStore(tmp_path / "out", KEY) as store:
        assert [store.holds(number) for number in range(3)] == [False, True, False]


def test_a_failing_end_keeps_the_earlier_output_and_the_parts(tmp_path):
    (tmp_path / "out").write_bytes(b"earlier")

    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with PartStore(tmp_path / "out", KEY) as store:
        store.write(0, b"a")
        with pytest.raises(OSError, match="No space"):
            store.finish(fail)
    assert (tmp_path / "out").read_bytes() == b"earlier"
    with PartStore(tmp_path / "out", KEY) as store:
        assert store.holds(0)


def test_a_part_of_another_source_is_made_again(tmp_path):
    with PartStore(tmp_path / "out", KEY) as store:
        store.write(0, b"a", "f" * 64)
    with PartStore(tmp_path / "out", KEY) as store:
        assert store.holds(0, "f" * 64) and not store.holds(0, "e" * 64)
        store.write(0, b"b", "e" * 64)
    with PartStore(tmp_path / "out", KEY) as store:
        assert store.holds(0, "e" * 64) and store.read(0) == b"b" and len(store) == 1


def test_a_failing_check_keeps_the_parts(tmp_path):
    def refuse():
        raise InputError("changed")

    with PartStore(tmp_path / "out", KEY) as store:
        store.write(0, b"a")
        with pytest.raises(InputError, match="changed"):
            store.finish(join(store, 1), refuse)
    assert not (tmp_path / "out").exists()
    with PartStore(tmp_path / "out", KEY) as store:
        assert store.holds(0)


def test_nothing_is_left_of_a_run_that_did_nothing(tmp_path):
    with pytest.raises(InputError), PartStore(tmp_path / "out", KEY):
        raise InputError("bad input")
    assert list(tmp_path.iterdir()) == []


def test_two_runs_at_once_are_noticed(tmp_path):
    with PartStore(tmp_path / "out", KEY) as store:
        store.write(0, b"a")
        with pytest.raises(InputError, match="another process"), PartStore(tmp_path / "out", KEY):
            pass
        # Another run with other options leaves the parts of this one alone.
        with PartStore(tmp_path / "out", {"alpha": 0.3}) as other:
            other.write(0, b"b")
            other.finish(join(other, 1))
        assert store.read(0) == b"a"


@pytest.mark.parametrize("name", ["missing/out", "folder"])
def test_bad_places(name, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder"):
        PartStore(tmp_path / name, KEY)
