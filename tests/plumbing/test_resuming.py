"""Kept work is found again by its identity alone, and only one process uses a folder."""

import numpy as np
import pytest

from trustsets import _storage as storage
from trustsets.errors import InputError
from trustsets.resuming import digest, identity, locked, read_kept


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


def test_a_lock_keeps_others_out_and_leaves_nothing(tmp_path):
    folder = tmp_path / "new" / "folder"
    with locked(folder, "work"):
        with pytest.raises(InputError, match="work: another process"), locked(folder, "work"):
            pass
    with locked(folder, "work"):
        pass
    assert list(folder.iterdir()) == []
