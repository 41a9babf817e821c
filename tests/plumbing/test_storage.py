import importlib
import json
import logging
import os
import struct
import sys

import numpy as np
import pytest
from kinds import PREDICTORS
from safetensors.numpy import save_file

import trustsets
from trustsets import (
    APS,
    Bins,
    ConditionalConformal,
    Confidence,
    Custom,
    Groups,
    MondrianConformal,
    StandardConformal,
    TemperatureScaling,
    storage,
)
from trustsets.errors import InputError, NotCalibratedError, StorageError
from trustsets.storage import digest, locked, read_kept


@pytest.mark.parametrize("name", PREDICTORS)
def test_save_and_load_give_identical_bits(name, make_outputs, tmp_path):
    """Deterministic: fails if a bit of a threshold changes."""
    outputs = make_outputs(600, labels=np.array(list("abcde"))[make_outputs(600).codes])
    calibration, test = outputs.split(0.5)
    predictor = PREDICTORS[name]().calibrate(calibration)
    predictor.save(tmp_path / "model.trustsets")
    loaded = trustsets.load(tmp_path / "model.trustsets")
    assert type(loaded) is type(predictor)
    assert repr(loaded) == repr(predictor)
    loaded.save(tmp_path / "again.trustsets")
    first, second = (tmp_path / each for each in ("model.trustsets", "again.trustsets"))
    assert first.read_bytes() == second.read_bytes()
    alphas = [0.3, 0.2]
    before, after = (each.predict_set(test, alpha=alphas) for each in (predictor, loaded))
    for field in ("mask", "thresholds", "status", "classes"):
        np.testing.assert_array_equal(getattr(before, field), getattr(after, field))


def test_a_fitted_temperature_travels_along(make_outputs, tmp_path):
    outputs = make_outputs()
    scaling = TemperatureScaling().fit(outputs)
    StandardConformal(temperature=scaling).calibrate(outputs).save(tmp_path / "m.trustsets")
    assert trustsets.load(tmp_path / "m.trustsets").temperature.temperature_ == scaling.temperature_


@pytest.mark.parametrize("dtype", [*"?bBhHiIlLqQefdgFO", *">i8 >f4 >U1 S1 M8[D] M8[ns] m8".split()])
def test_arrays_of_any_type_come_back_or_are_refused(dtype, tmp_path):
    names = np.array([np.int64(1), np.int64(0)], dtype=object).astype(dtype)
    if names.dtype.char in "gFMm":
        with pytest.raises(StorageError, match="use texts"):
            storage.write(tmp_path / "a", {"names": names})
    else:
        storage.write(tmp_path / "a", {"names": names})
        again = storage.read(tmp_path / "a")["names"]
        assert again.tolist() == names.tolist() and again.dtype == names.dtype.newbyteorder("=")


@pytest.mark.parametrize("classes", [["x", "yy"], [10, 20], [None, "x"], [1.5, 2.5], [True, False]])
def test_class_names_of_any_type_come_back(classes, tmp_path):
    names = np.array(classes, dtype=object if None in classes else None)
    outputs = trustsets.ModelOutputs(
        logits=np.eye(2), labels=[names[1], names[1]] if None in classes else names, classes=names
    )
    StandardConformal().calibrate(outputs).save(tmp_path / "m.trustsets")
    loaded = trustsets.load(tmp_path / "m.trustsets").classes_
    assert loaded.tolist() == names.tolist()
    assert loaded.dtype == names.dtype


@pytest.fixture
def saved(make_outputs, tmp_path):
    path = tmp_path / "model.trustsets"
    StandardConformal().calibrate(make_outputs()).save(path)
    return path


def test_every_truncation_is_noticed(saved):
    whole = saved.read_bytes()
    for size in [0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1]:
        saved.write_bytes(whole[:size])
        with pytest.raises(StorageError, match="damaged"):
            trustsets.load(saved)


def test_every_altered_byte_is_noticed(saved):
    whole = saved.read_bytes()
    for position in np.random.default_rng(0).integers(len(whole), size=60):
        altered = bytearray(whole)
        altered[position] ^= 0x20
        saved.write_bytes(altered)
        with pytest.raises(StorageError):
            trustsets.load(saved)


def rewrite(path, change):
    """Change the metadata of a saved file, leaving its tensors alone."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    own = json.loads(header["__metadata__"]["trustsets"])
    change(own)
    header["__metadata__"]["trustsets"] = json.dumps(own)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_a_newer_format_asks_for_an_upgrade(saved):
    rewrite(saved, lambda own: own.update(version=2))
    with pytest.raises(StorageError, match=r"written in format 2.*Upgrade"):
        trustsets.load(saved)


def test_only_known_classes_are_built(saved):
    def plant(own):
        tree = json.loads(own["tree"])
        tree["object"] = "os.system"
        own["tree"] = json.dumps(tree)

    rewrite(saved, plant)
    with pytest.raises(StorageError, match="altered"):
        trustsets.load(saved)
    with pytest.raises(StorageError, match="unknown kind of object"):
        storage._build("os.system", {})


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "foreign.safetensors"
    save_file({"x": np.zeros(2)}, path)
    with pytest.raises(StorageError, match="not one that trustsets wrote"):
        trustsets.load(path)
    path.write_text("hello")
    with pytest.raises(StorageError, match=r"not a \.trustsets file"):
        trustsets.load(path)
    with pytest.raises(StorageError, match="no such file"):
        trustsets.load(tmp_path / "missing")
    storage.write(path, APS())
    with pytest.raises(StorageError, match="holds a APS, not a predictor"):
        trustsets.load(path)


def test_a_failed_write_leaves_the_old_file_and_no_other(saved, monkeypatch):
    before = saved.read_bytes()

    def full_disk(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        trustsets.load(saved).save(saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_has_the_usual_permissions_and_an_old_one_keeps_its_own(mask, tmp_path):
    path, before = tmp_path / "a", os.umask(mask)
    try:
        storage.write(path, {"values": np.arange(3)})
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask
        path.chmod(0o640)
        storage.write(path, {"values": np.arange(4)})
        assert path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


def test_what_cannot_be_saved_is_named(make_outputs, tmp_path):
    with pytest.raises(NotCalibratedError, match="call calibrate first"):
        StandardConformal().save(tmp_path / "m.trustsets")
    with pytest.raises(StorageError, match="type object cannot be saved"):
        storage.write(tmp_path / "m.trustsets", object())
    for shape in ((0,), (0, 3), (3, 0)):
        with pytest.raises(StorageError, match="field must have shape"):
            storage.require_numbers(np.zeros(shape), "field", *[None] * len(shape))
    assert os.listdir(tmp_path) == []


def test_what_can_be_saved_can_be_loaded(make_outputs, tmp_path):
    """Parameters of NumPy's types, and lists for tuples; what would not load is not saved."""
    bins = Bins(Confidence(), counts=[np.int64(3)], spacing=["quantile"])
    odd = MondrianConformal(by=bins, temperature=np.float64(1.5), allow_empty=np.bool_(True))
    odd.calibrate(make_outputs()).save(tmp_path / "m.trustsets")
    assert trustsets.load(tmp_path / "m.trustsets").allow_empty is True
    changed = StandardConformal().calibrate(make_outputs())
    changed.allow_empty = "yes"
    with pytest.raises(StorageError, match=r"StandardConformal\.allow_empty must be True or False"):
        changed.save(tmp_path / "n")
    assert not (tmp_path / "n").exists()


OWN = """
import numpy as np

def columns(outputs):
    return np.column_stack([np.ones(len(outputs)), outputs.confidence])

print("imported")
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_functions.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_functions")
    sys.modules.pop("own_functions", None)


def test_a_custom_basis_is_saved_by_name(own_module, make_outputs, tmp_path, capsys):
    calibration, test = make_outputs(400).split(0.5)
    basis = Custom(own_module.columns) + Groups("site")
    predictor = ConditionalConformal(basis=basis).calibrate(calibration)
    path = tmp_path / "m.trustsets"
    predictor.save(path)
    before, after = (each.predict_set(test) for each in (predictor, trustsets.load(path)))
    np.testing.assert_array_equal(before.thresholds, after.thresholds)
    # A process that did not import it is told so, and nothing is imported for it.
    del sys.modules["own_functions"]
    capsys.readouterr()
    with pytest.raises(StorageError, match=r"own_functions:columns.*Import own_functions before"):
        trustsets.load(path)
    assert "own_functions" not in sys.modules and capsys.readouterr().out == ""


@pytest.mark.parametrize("spec", ["shutil:rmtree", "numpy:array", "trustsets.outputs:column", ""])
def test_a_file_cannot_name_any_function(spec):
    """Nor one of Python itself, nor one that a module has from another."""
    with pytest.raises(StorageError, match="which is not there"):
        storage._decode({"function": spec}, {})


def test_the_package_logs_to_its_own_logger(make_outputs, tmp_path, caplog):
    logger = logging.getLogger("trustsets")
    assert any(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
    assert logger.level == logging.NOTSET
    with caplog.at_level("INFO", "trustsets"):
        StandardConformal().calibrate(make_outputs(200)).save(tmp_path / "m.trustsets")
        trustsets.load(tmp_path / "m.trustsets")
    texts = [record.getMessage() for record in caplog.records]
    assert "StandardConformal: calibrating on 200 samples of 5 classes, tuning on 0 others" in texts
    path = tmp_path / "m.trustsets"
    assert {f"{path}: saved a StandardConformal", f"{path}: loaded a StandardConformal"} <= {*texts}


def test_shape_and_type_are_part_of_the_checksum():
    """The same bytes read in another way are another content."""
    numbers = np.arange(6, dtype=np.int64)
    forms = [numbers, *map(numbers.reshape, ((2, 3), (3, 2), (1, 6)))]
    forms += map(numbers.view, (np.float64, np.uint64, np.int32))
    forms += [np.zeros((0, 3)), np.zeros((3, 0)), np.zeros((3, 0), dtype=np.float32)]
    forms += [numbers[::-1], np.nextafter(np.arange(6.0), 9.0), np.arange(6.0)]
    assert len({storage.digest(each) for each in forms}) == len(forms)
    assert storage.digest(np.asfortranarray(forms[1])) == storage.digest(forms[1])
    assert digest(numbers[::2]) == digest(numbers[::2].copy())
    assert digest(numbers, None) != digest(None, numbers)


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


def test_a_digest_depends_on_every_value_and_not_on_the_order_of_names():
    one = digest({"alpha": 0.1, "rows": [1, 2]})
    assert one == digest({"rows": [1, 2], "alpha": 0.1})
    assert one != digest({"alpha": 0.1, "rows": [2, 1]})
    assert one != digest({"alpha": 0.1, "rows": [1, 2], "more": None})


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
