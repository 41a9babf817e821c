"""Kept work is found again by its identity alone, and only one process uses a folder."""

import numpy as np
import pytest

from trustsets._common import storage
from trustsets._common.resuming import (
    InUseError,
    WorkFolder,
    digest,
    identity,
    locked,
    read_kept,
    require_same,
)
from trustsets.errors import InputError


def hidden(folder):
    return sorted(item.name for item in folder.glob(".*"))


def test_an_identity_depends_on_every_value_and_not_on_the_order_of_names():
    one = identity({"alpha": 0.1, "rows": [1, 2]})
    assert one == identity({"rows": [1, 2], "alpha": 0.1})
    assert one != identity({"alpha": 0.1, "rows": [2, 1]})
    assert one != identity({"alpha": 0.1, "rows": [1, 2], "more": None})


def test_a_digest_depends_on_content_type_shape_and_place():
    array = np.arange(6.0)
    others = [
        digest(array.reshape(2, 3)),
        digest(array.astype(np.float32)),
        digest(np.nextafter(array, 9.0)),
        digest(array[::-1]),
        digest(array, None),
        digest(None, array),
    ]
    assert digest(array) == digest(array.copy())
    assert digest(array[::2]) == digest(array[::2].copy())
    assert len({digest(array), *others}) == 7


def test_damaged_and_missing_work_is_none(tmp_path):
    path = tmp_path / "kept"
    assert read_kept(path) is None
    storage.write(path, {"values": np.arange(3)})
    assert read_kept(path)["values"].tolist() == [0, 1, 2]
    path.write_bytes(path.read_bytes()[:-1])
    assert read_kept(path) is None


def test_another_setting_is_named():
    require_same("here", {"a": 1}, {"a": 1})
    with pytest.raises(InputError, match=r"here belongs to another run: a was 1, is 2; b was None"):
        require_same("here", {"a": 1}, {"a": 2, "b": 3})


def test_a_lock_keeps_others_out_and_leaves_nothing(tmp_path):
    folder = tmp_path / "new" / "folder"
    with locked(folder, "work"):
        with pytest.raises(InUseError, match="work: another process"), locked(folder, "work"):
            pass
    with locked(folder, "work"):
        pass
    assert list(folder.iterdir()) == []


def test_parts_are_found_by_the_same_setting_alone(tmp_path):
    output = tmp_path / "out"
    with WorkFolder(output, {"a": 1}) as folder:
        (folder.path / "part-0").write_text("zero")
    with WorkFolder(output, {"a": 2}) as folder:
        assert not (folder.path / "part-0").exists()
    with WorkFolder(output, {"a": 1}) as folder:
        assert (folder.path / "part-0").read_text() == "zero"


def test_a_folder_without_parts_is_removed_and_one_with_parts_is_not(tmp_path):
    for name, left in (("notes", 0), ("part-0", 1), ("inside/shard-0", 1)):
        output = tmp_path / name.replace("/", "-")
        with pytest.raises(RuntimeError), WorkFolder(output, {}) as folder:
            path = folder.path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("")
            raise RuntimeError
        assert len(list(tmp_path.glob(f".{output.name}.*"))) == left


def test_the_end_removes_what_other_settings_left_unless_it_is_in_use(tmp_path):
    output = tmp_path / "out"
    for a in (1, 2):
        with WorkFolder(output, {"a": a}) as folder:
            (folder.path / "part-0").write_text("")
    with WorkFolder(tmp_path / "out2", {}) as other:
        (other.path / "part-0").write_text("")
    with WorkFolder(output, {"a": 3}) as folder, WorkFolder(output, {"a": 1}) as busy:
        folder.finish()
        assert hidden(tmp_path) == sorted([busy.path.name, other.path.name])
