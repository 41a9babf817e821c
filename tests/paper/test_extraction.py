"""Extraction by the command line, against plain forward passes with torchvision's own steps."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from trees import SIDE, make_body, save_checkpoint, write_tree
from typer.testing import CliRunner

from trustsets.cli.main import app
from trustsets.paper.datasets import DATASETS
from trustsets.paper.layout import read_extracted
from trustsets.paper.vision import transforms

BATCH = 4
RESIZE = {"imagenet": SIDE}
OPTIONS = ["--image-size", str(SIDE), "--batch-size", str(BATCH), "--device", "cpu"]


def command(dataset, tree, weights, out, *more):
    places = ["--images", tree.images, "--weights", weights, "--output", out]
    return ["paper", "extract", dataset, *map(str, places), *OPTIONS, "--workers", "0", *more]


def run(arguments):
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Tree, network and checkpoint of a dataset, made once for the module."""
    made = {}

    def prepare(dataset):
        if dataset not in made:
            root = tmp_path_factory.mktemp(dataset)
            tree = write_tree(dataset, root / "images")
            body = make_body(dataset, len(tree.classes))
            made[dataset] = tree, body, save_checkpoint(dataset, body, root / "weights")
        return made[dataset]

    return prepare


def direct(body, paths, resize):
    """Logits and features by torchvision's own transforms, in batches of the same images."""
    steps = transforms.Compose(
        [
            transforms.Resize(resize),
            transforms.CenterCrop(SIDE),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    bottom = nn.Sequential(*list(body.children())[:-1]).eval()
    logits, features = [], []
    for start in range(0, len(paths), BATCH):
        images = [Image.open(path).convert("RGB") for path in paths[start : start + BATCH]]
        with torch.no_grad():
            features.append(bottom(torch.stack([steps(image) for image in images])).flatten(1))
            logits.append(body.fc.eval()(features[-1]))
    return torch.cat(logits).numpy(), torch.cat(features).numpy()


def listed(tree, data, part):
    """Images and labels of a part in order; the skin split is read back from the result."""
    if tree.dataset != "fitzpatrick17k":
        return tree.parts[part]
    known = dict(tree.parts["all"])
    samples = data / part / "samples.parquet"
    return [(path, known[path]) for path in __import__("pandas").read_parquet(samples)["path"]]


@pytest.mark.parametrize("dataset", DATASETS)
def test_outputs_are_those_of_a_forward_pass(dataset, prepared, tmp_path):
    tree, body, weights = prepared(dataset)
    out = tmp_path / "out"
    done = run(command(dataset, tree, weights, out))
    assert done.exit_code == 0, done.output
    data = read_extracted(out)
    resize = RESIZE.get(dataset, round(256 * SIDE / 224))
    assert data.name == dataset
    assert data.classes.tolist() == tree.classes
    assert data.fixed_split == dataset.endswith("-lt")
    for part in ("train", *data.parts):
        items = listed(tree, out, part)
        labels = [label for _, label in items]
        logits, features = direct(body, [tree.images / path for path, _ in items], resize)
        if part == "train":
            np.testing.assert_array_equal(data.train_features, features)
            np.testing.assert_array_equal(data.train_predicted, logits.argmax(axis=1))
            np.testing.assert_array_equal(data.train_labels, labels)
        else:
            outputs = data.parts[part]
            np.testing.assert_array_equal(outputs.logits, logits)
            np.testing.assert_array_equal(outputs.features, features)
            np.testing.assert_array_equal(outputs.codes, labels)
            assert f"{part}: {len(items)} images" in done.output
    calibration, test = data.split(seed=1)
    assert len(calibration) + len(test) == sum(map(len, data.parts.values()))
