"""Tiny datasets laid out like the paper's five, and checkpoints in the forms they come in."""

import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn

from trustsets_paper.networks import models

# Batch statistics of a single image need more than one position in the last layer.
SIDE, BATCH = 40, 4
LISTS = {"imagenet-lt": "ImageNet_LT", "places365-lt": "Places_LT"}


@dataclass(frozen=True)
class Tree:
    """What was written: arguments for the command line, and the truth to compare with."""

    dataset: str
    images: Path
    classes: list[str]
    parts: dict[str, list[tuple[str, int]]]
    skin_types: dict[str, str] | None = None


def command(action: str, tree: Tree, weights: Path, output: Path, *more: object) -> list[str]:
    """Words of ``trustsets paper extract`` or ``train`` on few small images."""
    paths = ["--images", tree.images, "--weights", weights, "--output", output]
    machine = ["--batch-size", BATCH, "--image-size", SIDE, "--device", "cpu", "--workers", 0]
    return [str(word) for word in ("paper", action, tree.dataset, *paths, *machine, *more)]


KILLED = """
import os, signal, sys
import torch
from trustsets.cli import main
from trustsets_paper import networks

torch.set_num_threads(1)
plain, left = {name}, [{calls}]

def dying(*arguments):
    result = plain(*arguments)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

{name} = dying
networks.SHARD_ROWS = {shard_rows}
main(sys.argv[1:])
"""


def run_killed(name: str, calls: int, arguments: list[str]) -> None:
    """Run a command that is killed as soon as a function has been called so many times."""
    code = KILLED.format(name=name, calls=calls, shard_rows=BATCH)
    child = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(child, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def draw_image(path: Path, number: int) -> None:
    """A random picture whose sides and colours depend on its number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(number)
    height, width = rng.integers(SIDE, SIDE + 16, size=2)
    pixels = rng.integers(0, 256, size=(height, width, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    # Real archives have some grey images; they must come out with three channels.
    (picture.convert("L") if number % 5 == 0 else picture).save(path, format="PNG")


def draw_all(root: Path, parts: dict[str, list[tuple[str, int]]]) -> None:
    number = 0
    for items in parts.values():
        for path, _ in items:
            number += 1
            draw_image(root / path, number)


def in_folders(part: str, classes: list[str], count: int, suffix: str, start: int = 0):
    return [
        (f"{part}/{name}/{start + number:05d}.{suffix}", code)
        for code, name in enumerate(classes)
        for number in range(count)
    ]


def write_tree(dataset: str, root: Path, n_classes: int = 3, train: int = 3, held: int = 4) -> Tree:
    """Write a dataset with so many classes, and images a class in training and held out."""
    if dataset == "fitzpatrick17k":
        return write_skin(root, n_classes, train + held)
    suffix = "JPEG" if dataset.startswith("imagenet") else "jpg"
    stem = "n0144" if dataset.startswith("imagenet") else "place_"
    classes = [f"{stem}{code}" for code in range(n_classes)]
    parts = {"train": in_folders("train", classes, train, suffix)}
    if dataset.endswith("-lt"):
        parts["val"] = in_folders("train", classes, held, suffix, start=train)
        parts["test"] = in_folders("val", classes, held, suffix)
        write_lists(root, LISTS[dataset], parts)
    else:
        parts["pool"] = in_folders("val", classes, held, suffix)
    draw_all(root, parts)
    return Tree(dataset, root, classes, parts)


def write_lists(root: Path, stem: str, parts: dict[str, list[tuple[str, int]]]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for part, items in parts.items():
        lines = "".join(f"{path} {label}\n" for path, label in items)
        (root / f"{stem}_{part}.txt").write_text(lines)


def write_skin(root: Path, n_classes: int, count: int) -> Tree:
    """The CSV and the images of Fitzpatrick 17k; the parts depend on the seed."""
    classes = [f"condition {code}" for code in range(n_classes)]
    scale = [1, 2, 3, 4, 5, 6, -1]
    table = pd.DataFrame(
        {
            "md5hash": [f"{number:032x}" for number in range(n_classes * count)],
            "fitzpatrick_scale": [scale[n % 7] for n in range(n_classes * count)],
            "label": [classes[n % n_classes] for n in range(n_classes * count)],
            "url": "https://example.org",
        }
    )
    root.mkdir(parents=True, exist_ok=True)
    table.to_csv(root / "fitzpatrick17k.csv", index=False)
    items = [(f"{own}.jpg", n % n_classes) for n, own in enumerate(table["md5hash"])]
    draw_all(root, {"all": items})
    types = [str(value) if value > 0 else "unknown" for value in table["fitzpatrick_scale"]]
    skin_types = {path: own for (path, _), own in zip(items, types, strict=True)}
    return Tree("fitzpatrick17k", root, classes, {"all": items}, skin_types)


def copied(tree: Tree, folder: Path) -> Tree:
    """The same tree in another folder, to be damaged."""
    shutil.copytree(tree.images, folder)
    return replace(tree, images=folder)


def make_body(dataset: str, n_classes: int) -> nn.Module:
    """The network of a dataset with random weights, tamed so that its outputs stay moderate."""
    name = {
        "imagenet": "resnet50",
        "imagenet-lt": "resnext50_32x4d",
        "places365": "resnet152",
        "places365-lt": "resnet152",
        "fitzpatrick17k": "resnet18",
    }[dataset]
    torch.manual_seed(len(dataset))
    body = getattr(models, name)(weights=None, num_classes=n_classes)
    if dataset == "fitzpatrick17k":
        head = nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.4), nn.Linear(256, n_classes)
        body.fc = nn.Sequential(*head)
    for module in body.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.fill_(0.5)
            module.running_mean.normal_(0.0, 0.1)
    return body


def save_checkpoint(dataset: str, body: nn.Module, folder: Path) -> Path:
    """Save a network in the form in which its weights are published."""
    folder.mkdir(parents=True, exist_ok=True)
    state = body.state_dict()
    if dataset in ("places365", "fitzpatrick17k"):
        from safetensors.torch import save_file

        path = folder / "weights.safetensors"
        save_file(state, path)
        return path
    path = folder / "weights.pth"
    if dataset.endswith("-lt"):
        parallel = {f"module.{name}": value for name, value in state.items()}
        features = {key: value for key, value in parallel.items() if ".fc." not in key}
        classifier = {key: value for key, value in parallel.items() if ".fc." in key}
        best = {"feat_model": features, "classifier": classifier}
        facts = {"epoch": 90, "best_acc": np.float64(0.444), "centroids": None}
        torch.save({"state_dict_best": best, **facts}, path)
    else:
        torch.save(state, path)
    return path
