"""The code of docs/howto/tools.md runs, and the messages of its tables are those that come."""

import re
from pathlib import Path

import blocks
import numpy as np
import pytest

from trustsets.errors import InputError
from trustsets.extract import extract_outputs

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "tools.md").read_text(encoding="utf-8")
PARTS = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
SECTIONS = dict(zip(PARTS[1::2], PARTS[2::2], strict=True))
# Sections that run as they stand, in one namespace, and the packages that they need.
ALONE = {
    ("scikit-learn pipelines",): ("sklearn",),
    ("scikit-learn pipelines", "XGBoost, CatBoost, LightGBM"): ("xgboost", "catboost"),
}
# Sections that need a model, loaders or arrays.
WITH_MODELS = [
    "PyTorch loaders",
    "Hugging Face and timm",
    "ONNX, JAX, Flax, Keras, and anything else",
]
RNG = np.random.default_rng(0)
Y = RNG.integers(3, size=300)
X = (RNG.normal(size=(300, 4)) + np.eye(3, 4)[Y]).astype(np.float32)
WEIGHTS = [RNG.normal(size=shape).astype(np.float32) for shape in [(6, 4), (6,), (3, 6), (3,)]]


class Texts(nn.Module):
    """What a Hugging Face model is, as far as it is used here."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(9, 16), nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask=None, output_hidden_states=False):
        states = self.tokens(input_ids)
        out = {"logits": self.head(states[:, 0]), "hidden_states": (states,)}
        return type("Output", (), out)()


def batches(wrap=np.asarray, rows=slice(0, 300)):
    x, y = wrap(X[rows]), wrap(Y[rows])
    return [(x[start : start + 50], y[start : start + 50]) for start in range(0, len(x), 50)]


def tokens(length=9):
    ids = torch.randint(1, 9, (20, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 0] % 3}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the page calls your model, loaders and arrays."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    return {
        "network": nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
        "train_loader": batches(torch.tensor, slice(0, 100)),
        "held_out_loader": batches(torch.tensor, slice(100, 300)),
        "model": Texts(),
        "loader": [tokens(5), tokens(9)],
        "batches": batches(),
        "parameters": WEIGHTS,
        "apply_body": lambda weights, x: np.maximum(x @ weights[0].T + weights[1], 0),
        "apply_head": lambda weights, x: x @ weights[2].T + weights[3],
    }


def run(title, names, capsys):
    """Run the code of a section, block by block, and compare what it prints."""
    code = list(blocks.BLOCK.finditer(SECTIONS[title]))
    assert code
    for block in code:
        exec(compile(block["code"], f"tools.md: {title}", "exec"), names)
        assert blocks.same_output(capsys.readouterr().out, block["output"] or "")
        yield


@pytest.mark.parametrize("titles", ALONE, ids=lambda titles: titles[-1])
def test_code_runs_as_it_stands(titles, tmp_path, monkeypatch, capsys):
    for package in ALONE[titles]:
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "first_try"}
    for title in titles:
        list(run(title, names, capsys))


@pytest.mark.parametrize("title", WITH_MODELS)
def test_code_runs_with_a_model(title, names, capsys):
    for _ in run(title, names, capsys):
        assert len(names.get("sets", names.get("outputs")))


def mistakes(names):
    """What goes wrong, in the order of the page."""
    x, y = torch.tensor(X[:50]), torch.tensor(Y[:50])
    network, model = names["network"], names["model"]
    narrow = [(torch.zeros(50, 7), y)]
    one_hot = [tokens() | {"labels": np.eye(3)[tokens()["labels"]]}]

    def classify(inputs, weights=WEIGHTS[0]):
        return np.asarray(inputs) @ weights.T, inputs

    def another_model():
        extract_outputs(classify, batches()[:2], folder="run")
        extract_outputs(lambda inputs: classify(inputs, 2.0 * WEIGHTS[0]), batches(), folder="run")

    return [
        lambda: extract_outputs(network, [(x, y, y)]),
        lambda: extract_outputs(network, [(x, y)], features="avgpool"),
        lambda: extract_outputs(network, narrow),
        lambda: extract_outputs(model, names["loader"][1:], features="tokens"),
        lambda: extract_outputs(model, one_hot),
        lambda: extract_outputs(classify, narrow),
        another_model,
    ]


def test_messages_are_those_of_the_page(names):
    row = re.compile(r"^\| .* \| `(.*?)`(?: \.\.\.)? \|$", flags=re.MULTILINE)
    messages = [text for title in WITH_MODELS for text in row.findall(SECTIONS[title])]
    made = mistakes(names)
    assert len(messages) == len(made)
    for message, mistake in zip(messages, made, strict=True):
        with pytest.raises(InputError) as caught:
            mistake()
        assert message in str(caught.value)
