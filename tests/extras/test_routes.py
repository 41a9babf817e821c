"""The same model by every route gives the same sets."""

import numpy as np
import pytest
import torch
from tiny_onnx import perceptron
from torch import nn

from trustsets import ConditionalConformal, ModelOutputs, TrustScore
from trustsets.cli import main
from trustsets.extras import functions, onnx
from trustsets.extras.torch import extract_outputs
from trustsets.files import open_outputs

N = 400


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=N)
    return (rng.normal(size=(N, 12)) + np.eye(3, 12)[labels]).astype(np.float32), labels


def layers(network):
    return [
        (layer.weight.detach().numpy(), layer.bias.detach().numpy())
        for layer in (network[1], network[3])
    ]


def loader(data, size, wrap=np.asarray):
    x, y = data
    return [(wrap(x[i : i + size]), y[i : i + size]) for i in range(0, N, size)]


def plain(network):
    (first, first_bias), (second, second_bias) = layers(network)

    def classify(inputs):
        features = np.maximum(inputs @ first.T + first_bias, 0)
        return features @ second.T + second_bias, features

    return classify


def routes(network, data, folder):
    path = folder / "model.onnx"
    perceptron(path, layers(network))
    np.savez(folder / "inputs.npz", inputs=data[0], labels=data[1])
    with pytest.raises(SystemExit):
        main(["extract", str(path), str(folder / "inputs.npz"), "-o", str(folder / "o.npz"), "-q"])
    with torch.no_grad():
        x = torch.from_numpy(data[0])
        direct = ModelOutputs(logits=network(x), features=network[:3](x), labels=data[1])
    mappings = [{"inputs": x, "label": y} for x, y in loader(data, 50, torch.from_numpy)]
    return {
        "arrays": direct,
        "torch": extract_outputs(network, loader(data, 64, torch.from_numpy)),
        "mappings": extract_outputs(network, mappings),
        "function": functions.extract_outputs(plain(network), loader(data, 64)),
        "onnx": onnx.extract_outputs(path, loader(data, 70)),
        "command line": open_outputs(folder / "o.npz").read(),
    }


def sets_of(outputs):
    training, calibration, test = outputs[:100], outputs[100:300], outputs[300:]
    trust = TrustScore().fit(training.features, training.labels)
    predictor = ConditionalConformal(trust=trust).calibrate(calibration)
    return predictor.predict_set(test, alpha=0.1)


def test_sets_are_equal_by_every_route(network, data, tmp_path):
    found = routes(network, data, tmp_path)
    # Random draws are keyed on the numbers themselves, which differ in the last bits: number rows.
    numbered = {
        name: ModelOutputs(
            logits=own.logits, features=own.features, labels=own.labels, rows=np.arange(N)
        )
        for name, own in found.items()
    }
    expected = sets_of(numbered["arrays"])
    assert 0 < expected.sizes.mean() < 3
    for name, own in numbered.items():
        np.testing.assert_allclose(own.logits, numbered["arrays"].logits, rtol=1e-4, atol=1e-5)
        sets = sets_of(own)
        np.testing.assert_array_equal(sets.mask, expected.mask, err_msg=name)
        np.testing.assert_allclose(sets.thresholds, expected.thresholds, rtol=1e-3, atol=1e-4)
