"""The code of docs/first_tries.md runs, and the messages of its tables are those that come."""

import re
import warnings

import numpy as np
import pytest
import torch
from first_tries import SECTIONS, blocks
from tiny_onnx import perceptron, pooled_text
from torch import nn

from trustsets import InputError
from trustsets.extras import functions, onnx, timm, transformers
from trustsets.extras import torch as torch_outputs

# Sections that run as they stand, in one namespace, and the package that the last of them needs.
ALONE = {
    ("scikit-learn pipelines", "scikit-learn searches and ensembles"): "sklearn",
    ("LightGBM",): "lightgbm",
    ("XGBoost",): "xgboost",
    ("CatBoost",): "catboost",
}
# Sections that need a model, loaders or arrays.
WITH_MODELS = [
    "PyTorch loaders",
    "Hugging Face",
    "timm",
    "ONNX files",
    "JAX, Flax, Keras, and anything else",
]
pytestmark = pytest.mark.usefixtures("one_thread")
RNG = np.random.default_rng(0)
Y = RNG.integers(3, size=300)
X = (RNG.normal(size=(300, 4)) + np.eye(3, 4)[Y]).astype(np.float32)
WEIGHTS = [RNG.normal(size=shape).astype(np.float32) for shape in [(6, 4), (6,), (3, 6), (3,)]]


def batches(wrap=np.asarray, rows=slice(0, 300)):
    x, y = wrap(X[rows]), wrap(Y[rows])
    return [(x[start : start + 50], y[start : start + 50]) for start in range(0, len(x), 50)]


def text_model():
    hugging = pytest.importorskip("transformers")
    config = hugging.BertConfig(
        vocab_size=9, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=3,
    )  # fmt: skip
    return hugging.BertForSequenceClassification(config)


class Words:
    """What a pipeline is made of, as far as it is used: texts are digits."""

    feature_extractor = image_processor = None

    def __init__(self, model):
        self._preprocess_params = {}
        self.model, self.tokenizer = model, self
        self.pad_token_id, self.padding_side = 0, "right"

    def preprocess(self, text):
        ids = torch.tensor([[int(word) for word in text.split()]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def tokens(length=9):
    ids = torch.randint(1, 9, (20, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 0] % 3}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the page calls your model, loaders and arrays."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    body, head = (WEIGHTS[0], WEIGHTS[1]), (WEIGHTS[2], WEIGHTS[3])
    perceptron("model.onnx", [body, head], shape=(4,))
    model = text_model()
    return {
        "network": nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
        "train_loader": batches(torch.tensor, slice(0, 100)),
        "held_out_loader": batches(torch.tensor, slice(100, 300)),
        "model": model,
        "pipe": Words(model),
        "texts": ["1 2 3", "4", "5 6"],
        "labels": [0, 1, 2],
        "loader": [tokens(5), tokens(9)],
        "timm_model": pytest.importorskip("timm").create_model("test_resnet", num_classes=3),
        "image_loader": [(torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 2, 0]))],
        "batches": batches(),
        "parameters": WEIGHTS,
        "apply_body": lambda own, x: np.maximum(x @ own[0].T + own[1], 0),
        "apply_head": lambda own, x: x @ own[2].T + own[3],
    }


def run(title, names):
    """Run the code of a section, block by block."""
    code = blocks(title)
    assert code
    for block in code:
        exec(compile(block, f"first_tries.md: {title}", "exec"), names)
        yield


@pytest.mark.parametrize("titles", ALONE, ids=lambda titles: titles[-1])
def test_code_runs_as_it_stands(titles, tmp_path, monkeypatch, capsys):
    pytest.importorskip(ALONE[titles], reason=f"{ALONE[titles]} is not installed")
    monkeypatch.chdir(tmp_path)
    own = {"__name__": "first_try"}
    for title in titles:
        list(run(title, own))
    assert capsys.readouterr().out.startswith("[")  # a set


@pytest.mark.parametrize("title", WITH_MODELS)
def test_code_runs_with_a_model(title, names):
    for _ in run(title, names):
        assert len(names.get("sets", names.get("outputs", names.get("test"))))


def mistakes(names):
    """What goes wrong, in the order of the page."""
    x, y = torch.tensor(X[:50]), torch.tensor(Y[:50])
    network, model, loader = names["network"], names["model"], names["loader"]
    softmax = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    bare = [{"input_ids": tokens()["input_ids"]}]
    pooled_text("text.onnx", np.eye(9, 4, dtype=np.float32), np.ones((4, 3), dtype=np.float32))
    images, resnet = names["image_loader"], names["timm_model"]
    images = [(torch.rand(4, 3, 64, 64), images[0][1])]
    narrow = [(np.zeros((50, 7), dtype=np.float32), Y[:50])]

    def function(inputs):
        return inputs, np.zeros((len(inputs), 5, 6))

    return [
        lambda: torch_outputs.extract_outputs(network, [(x, y, y)]),
        lambda: torch_outputs.extract_outputs(network, [(x, y)], "avgpool"),
        lambda: torch_outputs.extract_outputs(softmax, [(x, y)]),
        lambda: torch_outputs.extract_outputs(model, loader[1:], "bert.encoder.layer.0"),
        lambda: torch_outputs.extract_outputs(model, bare, features="mean"),
        lambda: transformers.pipeline_outputs(names["pipe"], names["texts"], [0, 1]),
        lambda: timm.extract_outputs(resnet, images, features="cls"),
        lambda: timm.extract_outputs(network, images),
        lambda: timm.extract_outputs(resnet, images, features="pre-logits"),
        lambda: onnx.extract_outputs("model.onnx", narrow),
        lambda: onnx.extract_outputs("model.onnx", names["batches"], "embedding"),
        lambda: onnx.extract_outputs("text.onnx", [np.ones((2, 3), dtype=int)], "mean"),
        lambda: functions.extract_outputs(lambda inputs: inputs, names["batches"]),
        lambda: functions.extract_outputs(function, names["batches"]),
        lambda: functions.extract_outputs(function, names["batches"], shards="run"),
    ]


def test_messages_are_those_of_the_page(names):
    row = re.compile(r"^\| .* \| (?:\w+: )?`(.*?)`(?: \.\.\.)? \|$", flags=re.MULTILINE)
    messages = [found for title in WITH_MODELS for found in row.findall(SECTIONS[title])]
    made = mistakes(names)
    assert len(messages) == len(made) == 3 * len(WITH_MODELS)
    for message, mistake in zip(messages, made, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises((InputError, UserWarning)) as caught:
                mistake()
        assert message in str(caught.value)
