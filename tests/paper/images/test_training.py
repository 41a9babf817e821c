"""Fine-tuning: what is learned, and that a kill changes nothing of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from trees import SIDE, command, copied, make_body, run_killed, write_tree

from trustsets import TrustSetsError
from trustsets.errors import InputError
from trustsets.storage import read as read_file
from trustsets_paper import networks as training
from trustsets_paper.datasets import Listing
from trustsets_paper.networks import RECIPES, train_dataset
from trustsets_paper.sources import WorkOptions, read_extracted

EPOCHS = 2
NOTHING = torch.empty(0)


@pytest.fixture(scope="module")
def skin(tmp_path_factory):
    """A tiny tree, and a start with the classes of another task."""
    root = tmp_path_factory.mktemp("skin")
    tree = write_tree("fitzpatrick17k", root / "images", train=5, held=3)
    torch.save(make_body("fitzpatrick17k", 9).state_dict(), root / "start.pth")
    return tree, root / "start.pth"


def train(tree, start, output, workers=0, batch_size=4, **changes):
    machine = {"batch_size": batch_size, "device": "cpu", "workers": workers}
    options = WorkOptions(image_size=SIDE, **machine)
    shared = {"epochs": EPOCHS} | changes
    return train_dataset(tree.dataset, tree.images, start, output, options=options, **shared)


def train_command(tree, start, output, *more):
    return command("train", tree, start, output, "--epochs", EPOCHS, *more)


def read(path):
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["trustsets"])
        return {name: file.get_tensor(name) for name in file.keys()}, facts


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.fixture(scope="module")
def uninterrupted(skin, tmp_path_factory):
    return train(*skin, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("steps", [3, 7])
def test_a_killed_training_gives_the_same_weights(steps, skin, uninterrupted, cli, tmp_path):
    """24 x 0.7 = 16 images are 4 steps an epoch: killed in the first and in the second."""
    tree, start = skin
    arguments = train_command(tree, start, tmp_path)
    run_killed("networks._Training._make_step", steps, arguments)
    assert not (tmp_path / "weights.safetensors").exists()
    checkpoint = tmp_path / "checkpoint.trustsets"
    epochs = len(read_file(checkpoint)["history"]) if checkpoint.exists() else 0
    assert epochs == steps // 4
    path, history = uninterrupted
    assert json.loads(cli(*arguments, "--json").out)["epochs"] == history
    assert_same(read(tmp_path / "weights.safetensors")[0], read(path)[0])


def test_what_is_learned(skin, uninterrupted):
    """The two new layers; of the rest only the statistics of the batches move."""
    tree, start = skin
    path, history = uninterrupted
    tensors, facts = read(path)
    before = torch.load(start, weights_only=True)
    assert facts["classes"] == tree.classes
    assert (facts["dataset"], facts["seed"]) == ("fitzpatrick17k", 0)
    moved = {name for name in before if not torch.equal(before[name], tensors.get(name, NOTHING))}
    statistics = {name for name in before if "running_" in name or "num_batches" in name}
    assert moved == statistics | {name for name in before if name.startswith("fc.")}
    assert tensors["fc.3.weight"].shape == (3, 256)
    assert [epoch["images"] for epoch in history] == [16, 16]


def test_training_lowers_the_loss_and_leaves_the_generators(tmp_path):
    """Classes of one colour each are learned in a few steps."""
    from PIL import Image

    images = tmp_path / "images"
    tree = write_tree("fitzpatrick17k", images, train=6, held=4)
    for path, label in tree.parts["all"]:
        colour = tuple(255 if channel == label else 0 for channel in range(3))
        Image.new("RGB", (SIDE, SIDE), colour).save(images / path, format="PNG")
    torch.save(make_body("fitzpatrick17k", 3).state_dict(), tmp_path / "start.pth")
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    changes = {"is_skin": False, "learning_rate": 0.05, "epochs": 3, "batch_size": 7}
    _, history = train(tree, tmp_path / "start.pth", tmp_path / "out", **changes)
    assert torch.equal(torch.rand(3), expected)
    assert history[-1]["loss"] < 0.7 * history[0]["loss"]
    assert history[-1]["accuracy"] > history[0]["accuracy"]


# Forked workers are what torch uses on Linux; Python 3.12 and later warn of threads.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_change_nothing(skin, uninterrupted, tmp_path):
    path, _ = train(*skin, tmp_path, workers=2)
    assert_same(read(path)[0], read(uninterrupted[0])[0])


def test_extraction_takes_the_weights_of_this_split_only(skin, uninterrupted, cli, tmp_path):
    tree, _ = skin
    words = command("extract", tree, uninterrupted[0], tmp_path)
    assert "were trained with --seed 0" in cli(*words, "--seed", 5, code=2).err
    cli(*words)
    assert len(read_extracted(tmp_path).train[1]) == 16


def test_another_training_does_not_continue_this_one(skin, cli, tmp_path):
    tree, start = skin
    arguments = train_command(tree, start, tmp_path)
    cli(*arguments)
    weights = (tmp_path / "weights.safetensors").read_bytes()
    assert "epoch" in cli(*arguments).out
    assert (tmp_path / "weights.safetensors").read_bytes() == weights
    for change in (["--seed", 1], ["--epochs", 3], ["--learning-rate", 0.5], ["--batch-size", 5]):
        done = cli(*arguments, *change, code=2)
        assert "is of a training with other images" in done.err
    assert (tmp_path / "weights.safetensors").read_bytes() == weights


def test_unreadable_images_are_named(skin, cli, tmp_path):
    tree, start = skin
    broken = copied(tree, tmp_path / "images")
    for path, _ in tree.parts["all"][:8]:
        (broken.images / path).unlink()
    err = cli(*train_command(broken, start, tmp_path / "out")).err
    lines = (tmp_path / "out" / "unreadable.txt").read_text().splitlines()
    assert f"{len(lines)} images could not be read" in err
    assert 0 < len(lines) <= 8
    assert all(line.endswith("\tno such file") for line in lines)
    words = train_command(broken, start, tmp_path / "none", "--max-unreadable", 0)
    assert "--max-unreadable allows 0" in cli(*words, code=2).err


def test_divergence_is_said(skin, tmp_path):
    with pytest.raises(TrustSetsError, match=r"diverged in epoch .* lower the learning rate"):
        train(*skin, tmp_path, epochs=50, learning_rate=1e30, is_skin=False)


def test_bad_input_is_named(skin, tmp_path):
    tree, _ = skin
    with pytest.raises(InputError, match="dataset must be one of fitzpatrick17k, places365"):
        train_dataset("imagenet", tree.images, tmp_path, tmp_path)
    with pytest.raises(InputError, match=r"no such file.*resnet18-f37072fd\.pth"):
        train_dataset("fitzpatrick17k", tree.images, tmp_path / "x.pth", tmp_path)


# --- the recipe


def test_orders_depend_on_seed_and_epoch_alone():
    listing = Listing(None, map(str, range(10)), np.arange(10) % 2)

    def batches(seed, epoch):
        options = WorkOptions(seed=seed, batch_size=4)
        return list(training._epoch_batches(listing, RECIPES["places365"], options, epoch))

    one = batches(0, 0)
    assert one == batches(0, 0)
    assert [len(batch) for batch in one] == [4, 4, 2]
    assert sorted(row for batch in one for row, _ in batch) == list(range(10))
    assert one != batches(0, 1)
    assert one != batches(1, 0)
    # No image is augmented in the same way twice.
    keys = [key for epoch in (0, 1) for batch in batches(0, epoch) for _, key in batch]
    assert len(set(keys)) == 20


def test_balanced_epochs_draw_classes_equally():
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    rows = training._balanced_rows(labels, np.random.default_rng(0))
    counts = np.bincount(labels[rows])
    # Binomial with n = 1000 and p = 1/3: four standard deviations are 60.
    assert counts.sum() == 1000
    assert np.abs(counts - 1000 / 3).max() < 60


def test_rates_fall_as_the_recipes_say():
    steps = RECIPES["fitzpatrick17k"]
    rates = [steps.rate(epoch, 0.0) for epoch in (0, 6, 7, 14)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-5])
    cosine = RECIPES["places365"]
    assert [cosine.rate(0, done) for done in (0.0, 0.5, 1.0)] == pytest.approx([0.01, 0.005, 0.0])


@pytest.mark.parametrize("dataset", RECIPES)
def test_augmentation_gives_images_of_the_size(dataset):
    from PIL import Image

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8))
    torch.manual_seed(0)
    transform = RECIPES[dataset].transform(SIDE)
    first, second = transform(picture), transform(picture)
    assert first.shape == second.shape == (3, SIDE, SIDE)
    assert first.dtype == torch.uint8
    assert not torch.equal(first, second)


def test_all_layers_of_the_places_network_are_trained(tmp_path, monkeypatch):
    """One step of the places recipe on the skin network's body, which is small."""
    from trustsets_paper import networks as models

    small = replace(models.ARCHITECTURES["places365"], name="resnet18")
    monkeypatch.setitem(training.ARCHITECTURES, "places365", small)
    tree = write_tree("places365", tmp_path / "images", train=2, held=1)
    start = make_body("fitzpatrick17k", 9).state_dict()
    torch.save(start, tmp_path / "start.pth")
    path, _ = train(tree, tmp_path / "start.pth", tmp_path / "out", epochs=1, batch_size=3)
    tensors, facts = read(path)
    assert facts["seed"] is None
    assert not torch.equal(tensors["conv1.weight"], start["conv1.weight"])
    assert tensors["fc.weight"].shape == (3, 512)
