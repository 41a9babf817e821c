"""`extract` on the command line: arrays and images in, outputs that calibrate reads out."""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from trustsets import InputError
from trustsets.extras.forward import Runner
from trustsets.files import open_outputs
from trustsets.files.options import read_record

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))

def halve(image):
    import numpy as np
    small = image.resize((2, 2))
    return torch.from_numpy(np.asarray(small, dtype=np.float32)).permute(2, 0, 1) / 255 - 0.5

def number():
    return 7

word = "hello"
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with a module; the module is forgotten afterwards."""
    (tmp_path / "own_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
    yield tmp_path
    __import__("sys").modules.pop("own_model", None)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))


def inputs(n=50):
    return np.random.default_rng(0).normal(size=(n, 3, 2, 2)).astype(np.float32)


def write_inputs(**more):
    np.savez("inputs.npz", inputs=inputs(), labels=np.arange(50) % 3, **more)


@pytest.mark.parametrize("result", ["o.npz", "o.parquet", "o.safetensors", "folder"])
def test_arrays(result, run, work):
    write_inputs(classes=np.array(["a", "b", "c"]))
    done = run("extract", "own_model:build", "inputs.npz", "-o", result, "--batch-size", "7")
    assert done.code == 0, done.err
    found = open_outputs(result).read()
    with torch.no_grad():
        logits = network()(torch.from_numpy(inputs())).numpy()
        features = network()[:3](torch.from_numpy(inputs())).numpy()
    np.testing.assert_allclose(found.logits, logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.features, features, rtol=1e-5, atol=1e-6)
    assert found.labels.tolist() == [["a", "b", "c"][i % 3] for i in range(50)]
    assert read_record(work / result)["options"]["batch_size"] == 7
    expected = {"inputs.npz", "own_model.py", result}
    assert {item.name for item in work.iterdir()} - {"__pycache__"} == expected


def test_weights_layer_and_names(run, work):
    write_inputs()
    other = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))
    save_file(other.state_dict(), "w.safetensors")
    (work / "names.txt").write_text("x\ny\nz\n")
    arguments = ["extract", "own_model:build", "inputs.npz", "-o", "o.npz", "--json"]
    done = run(*arguments, "--weights", "w.safetensors", "--layer", "1", "--classes", "names.txt")
    assert json.loads(done.out)["n_features"] == 6
    found = open_outputs("o.npz").read()
    with torch.no_grad():
        hidden = other[:2](torch.from_numpy(inputs())).numpy()
    np.testing.assert_allclose(found.features, hidden, rtol=1e-5, atol=1e-6)
    assert found.classes.tolist() == ["x", "y", "z"]


@pytest.fixture
def photos(work):
    rng = np.random.default_rng(0)
    pixels = {}
    for name in ("cat", "ant", "bee"):
        (work / "photos" / name).mkdir(parents=True)
        for number in range(4):
            pixels[name, number] = rng.integers(256, size=(2, 2, 3), dtype=np.uint8)
            Image.fromarray(pixels[name, number]).save(work / "photos" / name / f"{number}.png")
    return pixels


def test_images_by_folder(run, work, photos):
    done = run("extract", "own_model:build", "photos", "-o", "o.npz", "-q")
    assert (done.code, done.out, done.err) == (0, "", "")
    found = open_outputs("o.npz").read()
    assert found.classes.tolist() == ["ant", "bee", "cat"]
    assert found.labels.tolist() == ["ant"] * 4 + ["bee"] * 4 + ["cat"] * 4
    batch = np.stack([photos[name, i] for name in ("ant", "bee", "cat") for i in range(4)])
    tensor = torch.from_numpy(batch.astype(np.float32) / 255).permute(0, 3, 1, 2)
    with torch.no_grad():
        np.testing.assert_allclose(found.logits, network()(tensor).numpy(), rtol=1e-5, atol=1e-6)


def test_images_with_a_transform_and_without_labels(run, work):
    (work / "flat").mkdir()
    for number in range(3):
        Image.new("RGB", (8 + number, 8), (10 * number, 0, 0)).save(work / "flat" / f"{number}.jpg")
    done = run("extract", "own_model:build", "flat", "-o", "o.npz")
    assert done.code == 2 and "--transform" in done.err and "1.jpg" in done.err
    arguments = ["extract", "own_model:build", "flat", "-o", "o.npz"]
    assert run(*arguments, "--transform", "own_model:halve").code == 0
    assert open_outputs("o.npz").read().labels is None


def test_an_interrupted_extraction_continues(run, work, monkeypatch):
    write_inputs()
    monkeypatch.setattr("trustsets.extras.shards.SHARD_ROWS", 10)
    arguments = ["extract", "own_model:build", "inputs.npz", "--batch-size", "10", "-o"]
    assert run(*arguments, "whole.npz").code == 0
    seen = []
    once = Runner.run

    def stop(runner, batch):
        seen.append(len(batch.inputs))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return once(runner, batch)

    monkeypatch.setattr(Runner, "run", stop)
    assert run(*arguments, "o.npz").code == 130
    assert not (work / "o.npz").exists()
    assert run(*arguments, "o.npz").code == 0
    assert len(seen) == 3 + 3  # two of five batches were kept
    whole, again = np.load("whole.npz"), np.load("o.npz")
    np.testing.assert_array_equal(whole["logits"], again["logits"])
    assert not list(work.glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("own_model inputs.npz -o o.npz", "model must be MODULE:FUNCTION"),
        ("own_model:nothing inputs.npz -o o.npz", "cannot be imported"),
        ("no_such_module:build inputs.npz -o o.npz", "cannot be imported"),
        ("own_model:word inputs.npz -o o.npz", "is no function"),
        ("own_model:number inputs.npz -o o.npz", "must return a torch.nn.Module"),
        ("own_model:build missing.npz -o o.npz", "missing.npz: there is no such file"),
        ("own_model:build logits.npz -o o.npz", "logits.npz: there is no array 'inputs'"),
        ("own_model:build inputs.npz -o o.pkl", "o.pkl: the result is written as"),
        ("own_model:build inputs.npz -o no/o.npz", "folder does not exist"),
        ("own_model:build inputs.npz -o o.npz --weights w.pt", "can run code"),
        ("own_model:build inputs.npz -o o.npz --weights w.safetensors", "do not fit the model"),
        ("own_model:build inputs.npz -o o.npz --layer nothing", "no module of the model"),
        ("own_model:build inputs.npz -o o.npz --transform own_model:halve", "is for images"),
        ("own_model:build inputs.npz -o broken", "broken: this folder holds other things"),
        ("own_model:build empty -o o.npz", "there are no images"),
        ("own_model:build broken -o o.npz", "not a readable image"),
    ],
)
def test_bad_input_is_one_line(arguments, words, run, work):
    write_inputs()
    np.savez("logits.npz", logits=np.eye(3))
    save_file({"nothing": torch.zeros(2)}, "w.safetensors")
    (work / "w.pt").write_bytes(b"")
    (work / "empty").mkdir()
    (work / "broken").mkdir()
    (work / "broken" / "a.png").write_bytes(b"no image")
    done = run("extract", *arguments.split())
    assert done.code == 2 and words in done.err
    assert done.err.startswith("Error: ") and done.err.count("\n") == 1
    assert not (work / "o.npz").exists() and not list(work.glob(".*"))
    assert (work / "broken" / "a.png").exists()


def unlabelled(path, seed):
    rng = np.random.default_rng(seed)
    np.savez(path, inputs=rng.normal(size=(50, 3, 2, 2)).astype(np.float32))


@pytest.mark.parametrize("result", ["o.npz", "folder"])
def test_other_inputs_of_equal_count_never_give_the_old_outputs(result, run, work):
    for seed in (0, 1):
        unlabelled(f"inputs{seed}.npz", seed)
        assert run("extract", "own_model:build", f"inputs{seed}.npz", "-o", f"{seed}.npz").code == 0
    unlabelled("inputs.npz", 0)
    arguments = ["extract", "own_model:build", "inputs.npz", "-o", result]
    assert run(*arguments).code == 0
    unlabelled("inputs.npz", 1)
    done = run(*arguments)
    if result == "folder":
        assert done.code == 2 and "batch 0 has other inputs than are stored" in done.err
        assert "another directory" in done.err
        unlabelled("inputs.npz", 0)
        assert run(*arguments).code == 0  # its own inputs are known again
    else:
        assert done.code == 0
        np.testing.assert_array_equal(np.load(result)["logits"], np.load("1.npz")["logits"])


def test_another_transform_never_gives_the_old_outputs(run, work, photos):
    (work / "own_model.py").write_text(
        MODEL + "\ndef darker(image):\n    return halve(image) / 2\n"
    )
    arguments = ["extract", "own_model:build", "photos", "-o", "folder", "--transform"]
    assert run(*arguments, "own_model:halve").code == 0
    done = run(*arguments, "own_model:darker")
    assert done.code == 2 and "has other inputs than are stored" in done.err
    assert run(*arguments, "own_model:halve").code == 0


def test_changed_inputs_start_an_interrupted_extraction_anew(run, work, monkeypatch):
    monkeypatch.setattr("trustsets.extras.shards.SHARD_ROWS", 10)
    unlabelled("other.npz", 1)
    arguments = ["extract", "own_model:build", "--batch-size", "10"]
    assert run(*arguments, "other.npz", "-o", "expected.npz").code == 0
    unlabelled("inputs.npz", 0)
    once = Runner.run

    def stop(runner, batch, seen=[]):  # noqa: B006
        seen.append(batch)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return once(runner, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run", stop)
        assert run(*arguments, "inputs.npz", "-o", "o.npz").code == 130
    times = ((work / "inputs.npz").stat().st_atime_ns, (work / "inputs.npz").stat().st_mtime_ns)
    unlabelled("inputs.npz", 1)
    os.utime("inputs.npz", ns=times)
    assert run(*arguments, "inputs.npz", "-o", "o.npz").code == 0
    np.testing.assert_array_equal(np.load("o.npz")["logits"], np.load("expected.npz")["logits"])
    assert not list(work.glob(".*"))


@pytest.mark.parametrize("result", ["o.npz", "folder"])
def test_inputs_replaced_while_they_are_read_are_noticed(result, run, work, monkeypatch):
    unlabelled("inputs.npz", 0)
    once = Runner.run

    def swap(runner, batch):
        unlabelled("inputs.npz", 1)
        return once(runner, batch)

    monkeypatch.setattr(Runner, "run", swap)
    done = run("extract", "own_model:build", "inputs.npz", "--batch-size", "10", "-o", result)
    assert done.code == 2 and "it was changed while it was read" in done.err
    if result == "folder":
        with pytest.raises(InputError, match="not finished"):
            open_outputs(result)
    else:
        assert not (work / result).exists()


@pytest.mark.parametrize("result", ["o.npz", "folder"])
def test_two_extractions_into_one_place_are_noticed(result, run, work, monkeypatch):
    """The second begins while the first is at work; it leaves the first alone."""
    write_inputs()
    arguments = ["extract", "own_model:build", "inputs.npz", "-o", result]
    once, second = Runner.run, []

    def meanwhile(runner, batch):
        if not second:
            second.append(None)
            second[0] = run(*arguments)
        return once(runner, batch)

    monkeypatch.setattr(Runner, "run", meanwhile)
    assert run(*arguments).code == 0
    assert second[0].code == 2 and "another process is writing there" in second[0].err
    assert len(open_outputs(result)) == 50
    assert not list(work.glob(".*")) and not list(work.glob("folder/.*"))


def test_a_data_file_names_no_code_to_run(run, work):
    write_inputs()
    (work / "evil.py").write_text("open('code_was_run', 'w')\n" + MODEL)
    options = {"model": "evil:build", "transform": "evil:halve", "inputs": "inputs.npz"}
    record = {"command": "extract", "options": options | {"output": "o.npz"}}
    (work / "received.json").write_text(json.dumps(record))
    for more in ([], ["-o", "o.npz"]):
        assert run("extract", "--config", "received.json", *more).code == 2
    assert not (work / "code_was_run").exists() and not (work / "o.npz").exists()
    done = run("extract", "own_model:build", "--config", "received.json", "-o", "o.npz")
    assert done.code == 0, done.err
    assert not (work / "code_was_run").exists()
