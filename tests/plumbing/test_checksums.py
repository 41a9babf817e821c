"""The checksum of a saved model covers how its bytes are read, not the bytes alone."""

import json
import struct

import numpy as np
import pytest

import trustsets
from trustsets import StandardConformal
from trustsets import _storage as storage
from trustsets.errors import StorageError


@pytest.fixture
def saved(make_outputs, tmp_path):
    path = tmp_path / "model.trustsets"
    StandardConformal().calibrate(make_outputs()).save(path)
    return path


def test_shape_and_type_are_part_of_the_checksum():
    """The same bytes read in another way are another content."""
    numbers = np.arange(6, dtype=np.int64)
    forms = [
        numbers,
        numbers.reshape(2, 3),
        numbers.reshape(3, 2),
        numbers.reshape(1, 6),
        numbers.view(np.float64),
        numbers.view(np.uint64),
        numbers.view(np.int32),
        np.zeros((0, 3)),
        np.zeros((3, 0)),
        np.zeros((3, 0), dtype=np.float32),
    ]
    assert len({storage.digest(each) for each in forms}) == len(forms)
    assert storage.digest(np.asfortranarray(forms[1])) == storage.digest(forms[1])


@pytest.mark.parametrize(
    "change", [{"dtype": "I64"}, {"shape": [2, 100]}, {"shape": [200, 1]}], ids=str
)
def test_a_tensor_declared_otherwise_is_noticed(change, saved):
    """The header of the file is changed, not one byte of its numbers."""
    data = saved.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    arrays = {key: own for key, own in header.items() if own.get("shape") == [200]}
    (name,) = (key for key, own in arrays.items() if own["dtype"] == "F64")
    header[name] |= change
    text = json.dumps(header).encode()
    saved.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(StorageError, match="altered"):
        trustsets.load(saved)
