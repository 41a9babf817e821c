"""ONNX files against the same numbers in NumPy, and on the command line."""

import sys

import numpy as np
import onnx
import pytest
from PIL import Image
from tiny_onnx import perceptron, pooled_text, save

from trustsets import InputError
from trustsets.cli import main
from trustsets.extras import shards as shards_module
from trustsets.extras.onnx import OnnxClassifier, extract_outputs
from trustsets.files import open_outputs

RNG = np.random.default_rng(0)
LAYERS = [
    (RNG.normal(size=(6, 12)).astype(np.float32), RNG.normal(size=6).astype(np.float32)),
    (RNG.normal(size=(3, 6)).astype(np.float32), RNG.normal(size=3).astype(np.float32)),
]


def plain(inputs):
    (first, first_bias), (second, second_bias) = LAYERS
    hidden = inputs.reshape(len(inputs), -1) @ first.T + first_bias
    features = np.maximum(hidden, 0)
    return features @ second.T + second_bias, features, hidden


def batches(sizes=(5, 5, 2)):
    rng = np.random.default_rng(1)
    return [
        (rng.normal(size=(size, 12)).astype(np.float32), rng.integers(3, size=size))
        for size in sizes
    ]


def whole():
    return plain(np.concatenate([x for x, _ in batches()]))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    perceptron(path, LAYERS)
    return path


def assert_close(outputs, logits, features):
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs.features, features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", ["n", 1, 4])
@pytest.mark.parametrize("outputs", [("logits",), ("logits", "features"), ("hidden", "logits")])
def test_outputs_are_those_of_the_layers(tmp_path, outputs, batch):
    """Also where the graph was exported for a fixed number of samples."""
    path = tmp_path / "model.onnx"
    perceptron(path, LAYERS, outputs=outputs, batch=batch)
    logits, features, hidden = whole()
    found = extract_outputs(path, batches())
    assert_close(found, logits, features)
    assert found.labels.tolist() == np.concatenate([y for _, y in batches()]).tolist()
    for layer, expected in [("hidden", hidden), ("features", features)]:
        assert_close(extract_outputs(path, batches(), layer), logits, expected)


def test_a_softmax_at_the_end_is_left_out(tmp_path):
    perceptron(tmp_path / "model.onnx", LAYERS, softmax=True)
    logits, features, _ = whole()
    assert_close(extract_outputs(tmp_path / "model.onnx", batches()), logits, features)


def test_inputs_of_other_types_and_names(model):
    logits, features, _ = whole()
    for form in (
        [(x.astype(np.float64), y) for x, y in batches()],
        [{"inputs": x, "label": y, "id": np.arange(len(x))} for x, y in batches()],
        [{"image": x} for x, _ in batches()],
    ):
        assert_close(extract_outputs(model, form), logits, features)


def test_tokens_by_policy(tmp_path):
    table, head = RNG.normal(size=(9, 4)), RNG.normal(size=(4, 3))
    path = tmp_path / "text.onnx"
    pooled_text(path, table.astype(np.float32), head.astype(np.float32))
    ids = np.array([[1, 2, 3, 0], [4, 5, 0, 0], [6, 0, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}
    short = {key: value[2:, :1] for key, value in batch.items()}
    means = np.array([table[row[row > 0]].mean(axis=0) for row in ids])
    for given, rows in [([batch], [0, 1, 2]), ([short], [2]), ([short, batch], [2, 0, 1, 2])]:
        found = extract_outputs(path, given, "last_hidden_state", features="mean")
        assert_close(found, (means @ head)[rows], means[rows])
    assert_close(extract_outputs(path, [batch], "mean"), means @ head, means)
    last = extract_outputs(path, [batch], "last_hidden_state", features="last token")
    assert_close(last, means @ head, table[[3, 5, 6]])
    with pytest.raises(InputError, match="several vectors a sample"):
        extract_outputs(path, [batch], "last_hidden_state")
    with pytest.raises(InputError, match="a batch has no 'attention_mask'"):
        extract_outputs(path, [ids], "mean")


def test_weights_in_a_file_beside(tmp_path, model):
    logits, features, _ = whole()
    path = tmp_path / "large.onnx"
    onnx.save(
        onnx.load(model), str(path), save_as_external_data=True, location="w.bin", size_threshold=0
    )
    assert_close(extract_outputs(path, batches(), shards=tmp_path / "run"), logits, features)
    data = bytearray((tmp_path / "w.bin").read_bytes())
    data[2] ^= 1
    (tmp_path / "w.bin").write_bytes(data)
    with pytest.raises(InputError, match="model_sha256 was"):
        extract_outputs(path, batches(), shards=tmp_path / "run")


def test_a_run_that_died_continues_bit_for_bit(model, tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "SHARD_ROWS", 5)
    complete = extract_outputs(model, batches())

    def dies():
        yield from batches()[:2]
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        extract_outputs(model, dies(), shards=tmp_path / "run")
    seen, once = [], OnnxClassifier.__call__

    def counted(self, inputs):
        seen.append(len(inputs["inputs"]))
        return once(self, inputs)

    monkeypatch.setattr(OnnxClassifier, "__call__", counted)
    again = extract_outputs(model, batches(), shards=tmp_path / "run")
    assert seen == [2]
    np.testing.assert_array_equal(again.logits, complete.logits)
    with pytest.raises(InputError, match="layer was 'features', is 'hidden'"):
        extract_outputs(model, batches(), "hidden", shards=tmp_path / "run")


def test_bad_models_and_inputs_are_named(model, tmp_path):
    x = batches()[0][0]
    (tmp_path / "text.onnx").write_text("no model")
    perceptron(tmp_path / "two.onnx", LAYERS, outputs=("hidden", "features", "flat", "product"))
    node = onnx.helper.make_node("Relu", ["inputs"], ["logits"])
    shape = {"inputs": (onnx.TensorProto.FLOAT, ["n", 12])}
    save(tmp_path / "relu.onnx", [node], shape, ("logits",), {})
    for arguments, words in [
        ((tmp_path / "gone.onnx", [x]), "there is no such file"),
        ((tmp_path / "text.onnx", [x]), "not an ONNX model"),
        ((tmp_path / "two.onnx", [x]), "one of them must be called 'logits'"),
        ((tmp_path / "relu.onnx", [x]), r"does not come from a linear layer.*such as \['logits'\]"),
        ((model, [x], "hiden"), r"near names are \['hidden'"),
        ((model, [x[:, :5]]), r"takes tensor\(float\) of shape \(n, 12\); got .* \(5, 5\)"),
        ((model, [x[:, :, None]]), r"of shape \(5, 12, 1\)"),
        ((model, [["a", "b"]]), "takes tensor"),
        ((model, []), "loader is empty"),
    ]:
        with pytest.raises(InputError, match=words):
            extract_outputs(*arguments)
    with pytest.raises(InputError, match="device='tpu' is not there"):
        extract_outputs(model, [x], device="tpu")


# --- on the command line


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    perceptron("model.onnx", LAYERS, shape=(3, 2, 2))
    return tmp_path


def command(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code or 0


def photos(folder):
    rng = np.random.default_rng(0)
    found = []
    for name in ("ant", "bee", "cat"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            found.append(rng.integers(256, size=(2, 2, 3), dtype=np.uint8))
            Image.fromarray(found[-1]).save(folder / name / f"{number}.png")
    return np.stack(found).astype(np.float32).transpose(0, 3, 1, 2) / 255


def test_images_without_torch(work, monkeypatch):
    images = photos(work / "photos")
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it is an error
    assert command("extract", "model.onnx", "photos", "-o", "o.npz", "-q") == 0
    found = open_outputs("o.npz").read()
    assert_close(found, *plain(images)[:2])
    assert found.labels.tolist() == ["ant"] * 3 + ["bee"] * 3 + ["cat"] * 3
    assert command("extract", "model.onnx", "photos", "-o", "h.npz", "--layer", "hidden", "-q") == 0
    assert_close(open_outputs("h.npz").read(), plain(images)[0], plain(images)[2])


@pytest.mark.parametrize("kind", ["npz", "npy", "folder"])
def test_arrays(work, kind):
    inputs = np.random.default_rng(0).normal(size=(20, 3, 2, 2)).astype(np.float32)
    labels = np.arange(20) % 3
    source = {"npz": "inputs.npz", "npy": "inputs.npy", "folder": "arrays"}[kind]
    (work / "arrays").mkdir()
    np.savez("inputs.npz", inputs=inputs, labels=labels)
    np.save("inputs.npy", inputs)
    np.save("arrays/inputs.npy", inputs)
    np.save("arrays/labels.npy", labels)
    for result in ("o.npz", "parts"):
        assert (
            command("extract", "model.onnx", source, "-o", result, "--batch-size", "7", "-q") == 0
        )
        found = open_outputs(result).read()
        assert_close(found, *plain(inputs)[:2])
        assert found.labels is None if kind == "npy" else found.labels.tolist() == labels.tolist()


def test_arrays_by_the_names_of_the_inputs(work):
    table, head = np.eye(9, 4, dtype=np.float32), np.ones((4, 3), dtype=np.float32)
    pooled_text("text.onnx", table, head)
    ids = np.arange(1, 9).reshape(4, 2)
    np.savez("texts.npz", input_ids=ids, attention_mask=np.ones_like(ids), labels=[0, 1, 2, 0])
    options = ["--layer", "last_hidden_state", "--features", "mean", "-q"]
    assert command("extract", "text.onnx", "texts.npz", "-o", "o.npz", *options) == 0
    found = open_outputs("o.npz").read()
    np.testing.assert_allclose(found.features, table[ids].mean(axis=1))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("model.onnx inputs.npz -o o.npz --weights inputs.npz", "holds its weights"),
        ("gone.onnx inputs.npz -o o.npz", "gone.onnx: there is no such file"),
        ("model.onnx wide.npz -o o.npz", "takes tensor(float) of shape (n, 3, 2, 2)"),
        ("model.onnx inputs.npz -o o.npz --layer hiden", "near names are"),
        ("model.onnx inputs.npz -o o.npz --features avg", "features must be one of"),
        ("model.onnx logits.npz -o o.npz", "no array 'inputs', or one for each of inputs"),
        ("model.onnx inputs.npz -o model.onnx", "the result is written as"),
    ],
)
def test_bad_input_is_one_line(work, arguments, words, capsys):
    np.savez("inputs.npz", inputs=np.zeros((5, 3, 2, 2)))
    np.savez("wide.npz", inputs=np.zeros((5, 3, 4, 4)))
    np.savez("logits.npz", logits=np.eye(3))
    assert command("extract", *arguments.split()) == 2
    error = capsys.readouterr().err
    assert words in error and error.startswith("Error: ") and error.count("\n") == 1
    assert not (work / "o.npz").exists() and not list(work.glob(".*"))


def test_a_missing_dependency_is_named(work, monkeypatch, capsys):
    np.savez("inputs.npz", inputs=np.zeros((5, 3, 2, 2)))
    monkeypatch.delitem(sys.modules, "trustsets.extras.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert command("extract", "model.onnx", "inputs.npz", "-o", "o.npz") == 2
    assert 'Install "trustsets[onnx]"' in capsys.readouterr().err
