"""A folder of parts appears when it is whole, whoever made the parts and how often."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trustsets.errors import InputError, StorageError
from trustsets.files.options import read_record
from trustsets.files.part_folder import PartFolder
from trustsets.files.paths import part_files
from trustsets.files.set_files import read_predictions

RECORD = {"command": "predict", "options": {"alpha": 0.2}}
KEY = {"a": 1}


def sets(start, stop):
    rows = list(range(start, stop))
    return pa.table(
        {
            "row": rows,
            "set": [[row % 3] for row in rows],
            "size": pa.array([1] * len(rows), pa.int32()),
            "threshold": [row / 7 for row in rows],
            "status": ["exact"] * len(rows),
        }
    )


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def test_parts_in_any_order_and_twice_are_one_table(tmp_path):
    output = tmp_path / "sets.parquet"
    with PartFolder(output, KEY, RECORD) as folder:
        for number in (2, 0, 1, 0):
            start = 10 * number
            folder.writer.write(number, iter([sets(start, start + 4), sets(start + 4, start + 10)]))
            assert not output.exists()
        folder.finish([10, 10, 10])
    assert pq.read_table(output).replace_schema_metadata().equals(sets(0, 30))
    assert entries(tmp_path) == ["sets.parquet"]
    assert read_record(output)["options"] == {"alpha": 0.2}
    found = read_predictions(output, np.arange(3))
    assert found.alpha == 0.2 and len(found) == 30
    np.testing.assert_array_equal(np.nonzero(found.mask)[1], np.arange(30) % 3)


@pytest.mark.parametrize("rows", [[10, 10, 10], [10, 9], [10]])
def test_what_does_not_add_up_gets_no_name(tmp_path, rows):
    output = tmp_path / "sets.parquet"
    with PartFolder(output, KEY, RECORD) as folder:
        for number in (0, 1):
            folder.writer.write(number, [sets(0, 10)])
        with pytest.raises(StorageError, match="do not add up"):
            folder.finish(rows)
    assert not output.exists()


def test_a_part_that_fails_leaves_nothing(tmp_path):
    def failing():
        yield sets(0, 10)
        raise InputError("row 10 is bad")

    with PartFolder(tmp_path / "sets.parquet", KEY, RECORD) as folder:
        with pytest.raises(InputError, match="row 10"):
            folder.writer.write(0, failing())
        assert part_files(folder.writer.parts) == []
        assert entries(folder.writer.folder) == [".lock", "parts"]
    assert entries(tmp_path) == []


def test_a_writer_that_comes_too_late_changes_nothing(tmp_path):
    output = tmp_path / "sets.parquet"
    with PartFolder(output, KEY, RECORD) as folder:
        folder.writer.write(0, [sets(0, 10)])
        folder.finish([10])
        before = entries(output)
        with pytest.raises(OSError):
            folder.writer.write(0, [sets(0, 3)])
    assert entries(output) == before
    assert pq.read_table(output).num_rows == 10


def test_parts_of_the_same_key_are_kept_and_of_others_removed_at_the_end(tmp_path):
    output = tmp_path / "sets.parquet"
    for key in (KEY, {"a": 2}):
        with PartFolder(output, key, RECORD) as folder:
            folder.writer.write(0, [sets(0, 10)])
    assert len(entries(tmp_path)) == 2
    with PartFolder(output, KEY, RECORD) as folder:
        assert folder.writer.path(0).exists()
        with pytest.raises(InputError, match="another process"), PartFolder(output, KEY, RECORD):
            pass
        folder.finish([10])
    assert entries(tmp_path) == ["sets.parquet"]
