"""Extraction by the command line, against plain forward passes with torchvision's own steps."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from trees import BATCH, SIDE, command, copied, make_body, run_killed, save_checkpoint, write_tree

from trustsets.errors import StorageError, TrustSetsWarning
from trustsets.storage import read
from trustsets_paper import networks
from trustsets_paper.datasets import DATASETS
from trustsets_paper.networks import extract_dataset, transforms
from trustsets_paper.sources import Description, WorkOptions, is_extracted, read_extracted

# The paper's pipeline for ImageNet resizes to the crop itself.
RESIZE = dict.fromkeys(DATASETS, round(256 * SIDE / 224)) | {"imagenet": SIDE}


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


def listed(tree, folder, part):
    """Images and labels of a part in order; the drawn split is read back from the result."""
    if "all" not in tree.parts:
        return tree.parts[part]
    known = dict(tree.parts["all"])
    paths = pd.read_parquet(folder / part / "samples.parquet")["path"]
    return [(path, known[path]) for path in paths]


@pytest.mark.filterwarnings("ignore:the network is right:trustsets.errors.TrustSetsWarning")
@pytest.mark.parametrize("dataset", DATASETS)
def test_outputs_are_those_of_a_forward_pass(dataset, prepared, cli, tmp_path):
    tree, body, weights = prepared(dataset)
    out = cli(*command("extract", tree, weights, tmp_path, "--json")).out
    data = read_extracted(tmp_path)
    assert data.name == dataset
    assert Description.read(tmp_path).classes == tuple(tree.classes)
    assert data.fixed_split == dataset.endswith("-lt")
    summary = {part["part"]: part for part in json.loads(out)["parts"]}
    assert list(summary) == ["train", *data.parts]
    for part in summary:
        items = listed(tree, tmp_path, part)
        labels = np.array([label for _, label in items])
        logits, features = direct(body, [tree.images / path for path, _ in items], RESIZE[dataset])
        predicted = logits.argmax(axis=1)
        if part == "train":
            shards = [read(path) for path in sorted((tmp_path / part).glob("shard-*"))]
            stored = np.concatenate([shard["predicted"] for shard in shards])
            assert all("logits" not in shard for shard in shards)
            np.testing.assert_array_equal(data.train[0], features)
            np.testing.assert_array_equal(stored, predicted)
            assert data.train[1].tolist() == [tree.classes[label] for label in labels]
        else:
            outputs = data.parts[part]
            np.testing.assert_array_equal(outputs.logits, logits)
            np.testing.assert_array_equal(outputs.features, features)
            np.testing.assert_array_equal(outputs.codes, labels)
            assert outputs.labels.tolist() == [tree.classes[label] for label in labels]
        assert summary[part]["images"] == summary[part]["run"] == len(items)
        assert summary[part]["unreadable"] == 0
        assert summary[part]["accuracy"] == pytest.approx(np.mean(predicted == labels))
    assert not (tmp_path / "unreadable.txt").exists()


def test_an_accuracy_far_from_the_published_one_is_said(prepared, tmp_path, monkeypatch):
    """What counts is the accuracy on held-out images, within three points."""
    tree, _, weights = prepared("imagenet")
    options = WorkOptions(image_size=SIDE, batch_size=BATCH, device="cpu", workers=0)
    with pytest.warns(TrustSetsWarning, match=r"right for \d+\.\d% of .* 76\.1% is published"):
        *_, held_out = extract_dataset("imagenet", tree.images, weights, tmp_path, options=options)
    near = replace(networks.ARCHITECTURES["imagenet"], accuracy=held_out["accuracy"] + 0.029)
    monkeypatch.setitem(networks.ARCHITECTURES, "imagenet", near)
    # The tiny network may be as right on training images as on others: set the two far apart.
    run = networks._Extraction.run

    def training_is_easier(extraction, images):
        summary, columns = run(extraction, images)
        share = 1.0 if summary["part"] == "train" else held_out["accuracy"]
        return summary | {"accuracy": share}, columns

    monkeypatch.setattr(networks._Extraction, "run", training_is_easier)
    extract_dataset("imagenet", tree.images, weights, tmp_path / "again", options=options)


# --- what a kill leaves


def arrays(folder):
    data = read_extracted(folder)
    named = {"train": data.train[0], "labels": data.train[1]}
    for part, outputs in data.parts.items():
        named |= {part: outputs.logits, f"{part} x": outputs.features, f"{part} y": outputs.codes}
        named |= {f"{part} rows": outputs.rows}
    return named


@pytest.fixture(scope="module")
def holed(prepared, tmp_path_factory):
    """The smallest network, and a tree with damage at the ends of batches and beyond one."""
    tree, _, weights = prepared("fitzpatrick17k")
    damaged = copied(tree, tmp_path_factory.mktemp("holed") / "images")
    for number in (3, 4, 5, 6, 7, 11):
        path = damaged.images / f"{number:032x}.jpg"
        path.write_bytes(path.read_bytes()[:200])
    return damaged, weights


@pytest.mark.parametrize("shards", [1, 4])
def test_a_killed_extraction_continues_bit_for_bit(shards, holed, cli, tmp_path, monkeypatch):
    tree, weights = holed
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    cli(*command("extract", tree, weights, whole))
    arguments = command("extract", tree, weights, killed)
    monkeypatch.setattr(networks, "SHARD_ROWS", BATCH)
    run_killed("networks.write", shards, arguments)
    assert is_extracted(killed)
    with pytest.raises(StorageError, match="not finished"):
        read_extracted(killed)
    kept = {path: path.stat().st_mtime_ns for path in killed.rglob("shard-*")}
    assert kept
    out = cli(*arguments, "--json").out
    ours, theirs = arrays(killed), arrays(whole)
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    # What was on disk was not made again, and what was unreadable then is still named.
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    run = sum(part["run"] for part in json.loads(out)["parts"])
    assert run < len(ours["labels"]) + len(ours["pool"])
    assert (killed / "unreadable.txt").read_text() == (whole / "unreadable.txt").read_text()


def test_a_finished_extraction_is_left_alone(holed, cli, tmp_path):
    tree, weights = holed
    words = command("extract", tree, weights, tmp_path)
    cli(*words)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("shard-*")}
    assert "done before" in cli(*words).out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("shard-*")} == before
    # Another setting is refused, and what is there stays whole.
    assert "batch_size was 4, is 5" in cli(*words, "--batch-size", 5, code=2).err
    assert "seed was 0, is 1" in cli(*words, "--seed", 1, code=2).err
    smaller = write_tree("fitzpatrick17k", tmp_path / "images", train=2, held=2)
    done = cli(*command("extract", smaller, weights, tmp_path), code=2)
    assert "listing_sha256 was" in done.err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("shard-*")} == before
    assert len(read_extracted(tmp_path).train[1])


# --- unreadable images


def test_missing_and_damaged_images_are_named_and_counted(prepared, cli, tmp_path):
    tree, body, weights = prepared("fitzpatrick17k")
    images, output = tmp_path / "images", tmp_path / "out"
    broken, names = copied(tree, images), [path for path, _ in tree.parts["all"]]
    (images / names[0]).unlink()
    (images / names[1]).write_bytes(b"no image at all")
    (images / names[2]).write_bytes((images / names[2]).read_bytes()[:300])
    (images / names[3]).write_bytes(b"")
    err = cli(*command("extract", broken, weights, output)).err
    lines = [line.split("\t") for line in (output / "unreadable.txt").read_text().splitlines()]
    assert sorted(path for _, path, _ in lines) == sorted(names[:4])
    reasons = {path: reason for _, path, reason in lines}
    assert reasons[names[0]] == "no such file"
    assert reasons[names[1]] == reasons[names[3]] == "not an image"
    assert "truncated" in reasons[names[2]]
    assert "4 images could not be read" in err
    assert "unreadable.txt" in err
    # The others are all there, with their own outputs and groups.
    data = read_extracted(output)
    assert len(data.train[1]) + len(data.parts["pool"]) == len(names) - 4
    pool = data.parts["pool"]
    paths = pd.read_parquet(output / "pool" / "samples.parquet")["path"].iloc[pool.rows]
    known = dict(tree.parts["all"])
    assert pool.codes.tolist() == [known[path] for path in paths]
    assert pool.groups["skin_type"].tolist() == [tree.skin_types[path] for path in paths]
    logits, _ = direct(body, [images / path for path in paths], RESIZE["fitzpatrick17k"])
    # Batches are cut differently here, which may change the last bits.
    np.testing.assert_allclose(pool.logits, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["missing", "damaged"])
def test_too_many_unreadable_images_are_an_error(kind, prepared, cli, tmp_path):
    tree, _, weights = prepared("fitzpatrick17k")
    images, output = tmp_path / "images", tmp_path / "out"
    broken = copied(tree, images)
    for path, _ in tree.parts["all"][:3]:
        (images / path).unlink() if kind == "missing" else (images / path).write_bytes(b"?")
    err = cli(*command("extract", broken, weights, output, "--max-unreadable", 2), code=2).err
    assert "3 images under" in err
    assert "--max-unreadable allows 2" in err
    assert len((output / "unreadable.txt").read_text().splitlines()) == 3
    # Missing files are found before anything is run.
    assert (output / "train").exists() == (kind == "damaged")
    cli(*command("extract", broken, weights, output, "--max-unreadable", 3))
    (images / "fitzpatrick17k.csv").rename(tmp_path / "fitzpatrick17k.csv")
    for path in images.iterdir():
        path.write_bytes(b"?")
    words = command("extract", broken, weights, tmp_path / "none", "--max-unreadable", 999)
    assert "no image of part 'train'" in cli(*words, code=2).err


# --- bad input


def test_weights_of_other_classes_are_refused(prepared, cli, tmp_path):
    tree, body, _ = prepared("fitzpatrick17k")
    other = save_checkpoint(tree.dataset, make_body(tree.dataset, 5), tmp_path / "five")
    done = cli(*command("extract", tree, other, tmp_path / "out"), code=2)
    assert "do not fit ResNet" in done.err
    from safetensors.torch import save_file

    path, facts = tmp_path / "facts.safetensors", {"classes": ["a", "b", "c"]}
    save_file(body.state_dict(), path, {"trustsets": json.dumps(facts)})
    done = cli(*command("extract", tree, path, tmp_path / "out"), code=2)
    assert "were trained on other classes" in done.err


def test_devices_that_are_not_there_are_refused(prepared, cli, tmp_path):
    tree, _, weights = prepared("fitzpatrick17k")
    for name in ("cuda:99", "nonsense"):
        done = cli(*command("extract", tree, weights, tmp_path), "--device", name, code=2)
        assert "cannot be used here" in done.err


def test_damaged_folders_are_named(prepared, cli, tmp_path):
    tree, _, weights = prepared("fitzpatrick17k")
    cli(*command("extract", tree, weights, tmp_path))
    whole = Description.read(tmp_path)
    shard = tmp_path / "pool" / "shard-000000000.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StorageError, match="was altered"):
        read_extracted(tmp_path)
    shard.write_bytes(data)
    read_extracted(tmp_path)
    (tmp_path / "pool" / "samples.parquet").write_bytes(b"")
    with pytest.raises(StorageError, match=r"samples\.parquet: missing or damaged"):
        read_extracted(tmp_path)
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        read_extracted(tmp_path)
    replace(whole, rows=whole.rows | {"train": 1}).write(tmp_path)
    with pytest.raises(StorageError, match="rows instead of 1"):
        read_extracted(tmp_path)
    replace(whole, rows={"train": whole.rows["train"], "elsewhere": 3}).write(tmp_path)
    with pytest.raises(StorageError, match="holds 0 rows instead of 3"):
        read_extracted(tmp_path)
    with pytest.raises(StorageError, match=r"dataset\.json: damaged"):
        read_extracted(tmp_path / "pool")
    assert not is_extracted(tmp_path / "pool")
