import json
import os
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

import trustsets
from trustsets import (
    APS,
    RAPS,
    Atypicality,
    Bins,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Entropy,
    Groups,
    Intercept,
    MondrianConformal,
    NotCalibratedError,
    PluginConformal,
    Polynomial,
    PrincipalComponents,
    Softmax,
    StandardConformal,
    StorageError,
    TemperatureScaling,
    TrustScore,
    storage,
)
from trustsets.predictors import atypicality_groups

TRAINING = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
PREDICTORS = {
    "standard": lambda: StandardConformal(APS(own_mass="random"), random_state=3),
    "standard, tuned": lambda: StandardConformal(temperature="tuning", allow_empty=True),
    "groups": lambda: MondrianConformal(by=Groups("site"), score=RAPS(lam=0.1, k_reg=1)),
    "bins": lambda: MondrianConformal(
        by=Bins(of=(Confidence(),), counts=(3,), spacing=("quantile",)), score=Softmax(scale="tail")
    ),
    "class": lambda: MondrianConformal(by="class", temperature=1.5),
    "conditional": lambda: ConditionalConformal(
        basis=Polynomial(2, of=(Confidence(transform="rank"), Entropy(transform="log")))
        + PrincipalComponents(2)
        + Groups("site"),
        randomized=True,
    ),
    "conditional, trust": lambda: ConditionalConformal(
        basis=Polynomial(2) + Bins(counts=(2, 2), product=True) + Intercept(),
        trust=TrustScore().fit(np.random.default_rng(0).normal(size=(60, 3)), list("abcde") * 12),
    ),
    "plug-in": lambda: PluginConformal(
        basis=Polynomial(degree=2, of=(Confidence(transform="rank"),))
    ),
    "clusters": lambda: ClusteredConformal(
        APS(own_mass="random"), n_clusters=2, tuning_fraction=0.4, random_state=4
    ),
    "atypicality": lambda: atypicality_groups(Atypicality.from_training(*TRAINING), groups=2),
}


@pytest.mark.parametrize("name", PREDICTORS)
def test_save_and_load_give_identical_bits(name, make_outputs, tmp_path):
    outputs = make_outputs(600, labels=np.array(list("abcde"))[make_outputs(600).codes])
    calibration, test = outputs.split(0.5)
    predictor = PREDICTORS[name]().calibrate(calibration)
    predictor.save(tmp_path / "model.trustsets")
    loaded = trustsets.load(tmp_path / "model.trustsets")
    assert type(loaded) is type(predictor)
    assert repr(loaded) == repr(predictor)
    alphas = [0.3, 0.2]
    before, after = (each.predict_set(test, alpha=alphas) for each in (predictor, loaded))
    for field in ("mask", "thresholds", "status", "classes"):
        np.testing.assert_array_equal(getattr(before, field), getattr(after, field))
    loaded.save(tmp_path / "again.trustsets")
    first, second = (tmp_path / each for each in ("model.trustsets", "again.trustsets"))
    assert first.read_bytes() == second.read_bytes()


def test_a_fitted_temperature_travels_along(make_outputs, tmp_path):
    outputs = make_outputs()
    scaling = TemperatureScaling().fit(outputs)
    StandardConformal(temperature=scaling).calibrate(outputs).save(tmp_path / "m.trustsets")
    assert trustsets.load(tmp_path / "m.trustsets").temperature.temperature_ == scaling.temperature_


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


def test_what_cannot_be_saved_is_named(make_outputs, tmp_path):
    with pytest.raises(NotCalibratedError, match="call calibrate first"):
        StandardConformal().save(tmp_path / "m.trustsets")
    with pytest.raises(StorageError, match="type object cannot be saved"):
        storage.write(tmp_path / "m.trustsets", object())
    assert os.listdir(tmp_path) == []
