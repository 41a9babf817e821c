"""Any range of rows of any kind of file is that slice of the arrays."""

import tracemalloc

import numpy as np
import pytest
from outputs_files import CLASSES, WRITERS, simulated, write_npz, write_tensors

from trustsets import ModelOutputs
from trustsets.errors import InputError
from trustsets.files import open_outputs, read_training, write_outputs
from trustsets.files.source import read_classes


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_range_is_a_slice(kind, dtype, tmp_path):
    arrays = simulated(dtype=dtype)
    source = open_outputs(WRITERS[kind](tmp_path / "outputs", arrays))
    assert len(source) == 300 and source.n_classes == 5
    rng = np.random.default_rng(0)
    ends = [(0, 300), (0, 1), (299, 300), (37, 80), (80, 200)]
    ends += [tuple(sorted(rng.choice(301, 2, replace=False))) for _ in range(6)]
    for start, stop in ends:
        found = source.read(start, stop)
        np.testing.assert_array_equal(found.logits, arrays["logits"][start:stop])
        assert found.logits.dtype == dtype
        np.testing.assert_array_equal(found.features, arrays["features"][start:stop])
        np.testing.assert_array_equal(found.labels, CLASSES[arrays["labels"][start:stop]])
        np.testing.assert_array_equal(found.rows, np.arange(start, stop))
        for name, own in found.groups.items():
            assert name == "site"
            np.testing.assert_array_equal(own, arrays["group_site"][start:stop])
    has_texts = kind not in ("safetensors", "shards")
    assert list(found.groups) == (["site"] if has_texts else [])


@pytest.mark.parametrize("kind", WRITERS)
def test_tables_hold_the_same_as_outputs(kind, tmp_path):
    source = open_outputs(WRITERS[kind](tmp_path / "outputs", simulated()))
    table, outputs = source.table(50, 90), source.read(50, 90)
    assert table.column("row").to_pylist() == outputs.rows.tolist()
    np.testing.assert_array_equal(np.array(table.column("logits").to_pylist()), outputs.logits)
    np.testing.assert_array_equal(np.array(table.column("features").to_pylist()), outputs.features)
    if "group_site" in table.column_names:
        assert table.column("group_site").to_pylist() == outputs.groups["site"].tolist()
        assert table.column("id").to_pylist() == [f"s{i}" for i in range(50, 90)]
    assert "features" not in source.numbers(0, 3, features=False)


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors"])
@pytest.mark.parametrize("names", [CLASSES, None])
def test_what_is_written_is_read(suffix, names, tmp_path):
    arrays = simulated(dtype=np.float16)
    labels = arrays["labels"] if names is None else names[arrays["labels"]]
    outputs = ModelOutputs(
        logits=arrays["logits"],
        features=arrays["features"],
        labels=labels,
        classes=names,
        groups={"age": np.arange(300) % 3},
    )
    path = tmp_path / f"outputs{suffix}"
    write_outputs(path, outputs, {"command": "test", "options": {}})
    found = open_outputs(path).read()
    for name in ("logits", "features", "labels", "classes"):
        np.testing.assert_array_equal(getattr(found, name), getattr(outputs, name))
    np.testing.assert_array_equal(found.groups["age"], outputs.groups["age"])


def test_texts_cannot_be_safetensors(tmp_path):
    outputs = ModelOutputs(logits=np.eye(2), groups={"site": ["a", "b"]})
    with pytest.raises(InputError, match=r"numbers only, and 'group_site' holds texts"):
        write_outputs(tmp_path / "outputs.safetensors", outputs)
    assert list(tmp_path.iterdir()) == []


def test_probabilities_and_other_names(tmp_path):
    p = np.full((4, 2), 0.5)
    path = write_npz(tmp_path / "a", {"probs": p, "embeddings": p, "label": [0, 1, 0, 1]})
    outputs = open_outputs(path).read(1, 3)
    np.testing.assert_array_equal(outputs.probabilities, p[1:3])
    assert outputs.features.shape == (2, 2) and outputs.labels.tolist() == [1, 0]


def test_labels_that_are_texts_name_the_classes(tmp_path):
    arrays = simulated() | {"labels": CLASSES[simulated()["labels"]]}
    del arrays["classes"]
    source = open_outputs(write_npz(tmp_path / "a", arrays))
    # A part that lacks some classes still has all their names.
    assert source.read(0, 2).classes.tolist() == CLASSES.tolist()


def test_named_groups_and_ids(tmp_path):
    arrays = simulated()
    arrays["site"] = arrays.pop("group_site")
    path = write_npz(tmp_path / "a", arrays)
    assert open_outputs(path).read(0, 3).groups == {}
    assert list(open_outputs(path, groups=["site"]).read(0, 3).groups) == ["site"]
    table = open_outputs(path, ids=["labels"]).table(0, 2)
    assert {"labels", "id"} <= set(table.column_names)
    with pytest.raises(InputError, match=r"a\.npz: there is no group column 'age'; there are"):
        open_outputs(path, groups=["age"])


def test_training_samples_need_no_logits(tmp_path):
    arrays = simulated()
    path = write_npz(tmp_path / "a", {name: arrays[name] for name in ("features", "labels")})
    features, labels = read_training(path, CLASSES)
    np.testing.assert_array_equal(features, arrays["features"])
    np.testing.assert_array_equal(labels, CLASSES[arrays["labels"]])
    # Names of its own, in another order, say what its positions mean.
    write_npz(path.with_suffix(""), dict(np.load(path)) | {"classes": CLASSES[::-1]})
    np.testing.assert_array_equal(read_training(path, CLASSES)[1], CLASSES[::-1][arrays["labels"]])
    with pytest.raises(InputError, match="there is no array 'features'"):
        read_training(write_npz(tmp_path / "b", {"labels": arrays["labels"]}))


def test_class_names_from_a_file(tmp_path):
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\ndog\neel\n")
    assert read_classes(tmp_path / "names.txt").tolist() == CLASSES.tolist()
    write_npz(tmp_path / "names", {"classes": CLASSES})
    assert read_classes(tmp_path / "names.npz").tolist() == CLASSES.tolist()
    np.savez(tmp_path / "six.npz", logits=np.eye(6))
    source = open_outputs(tmp_path / "six.npz", classes=CLASSES)
    with pytest.raises(InputError, match=r"shape \(5,\), and there are 6 classes"):
        _ = source.classes


def test_safetensors_class_names_must_be_json(tmp_path):
    from safetensors.numpy import save_file

    path = write_tensors(tmp_path / "a", simulated())
    save_file({"logits": np.eye(2)}, path, {"classes": "ant, bee"})
    with pytest.raises(InputError, match=r"a\.safetensors: the metadata 'classes' is no JSON"):
        open_outputs(path)


def test_unfinished_shards_are_refused(tmp_path):
    path = WRITERS["shards"](tmp_path / "shards", simulated())
    manifest = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(manifest.replace('"finished": true', '"finished": false'))
    with pytest.raises(InputError, match="not finished; run the same extraction again"):
        open_outputs(path)


@pytest.mark.parametrize("kind", ["npz", "compressed npz", "folder of npy", "safetensors"])
def test_reading_a_part_takes_the_memory_of_a_part(kind, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"logits": rng.integers(0, 9, size=(200_000, 20)).astype(np.float32)}  # 16 MB
    path = WRITERS[kind](tmp_path / "outputs", arrays | {"classes": np.arange(20)})
    source = open_outputs(path)
    tracemalloc.start()
    for start in range(0, 200_000, 5000):
        source.table(start, start + 5000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 7 << 20  # a chunk of 1 MB, some times over while it is unpacked, and the part
