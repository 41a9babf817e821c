"""Small datasets with trust, groups and a fixed or a free split, for the experiments."""

import numpy as np
import pandas as pd

from trustsets import ModelOutputs
from trustsets.storage import write
from trustsets_paper.protocol import Options
from trustsets_paper.sources import Description, Source

CLASSES = 5
QUICK = Options(seeds=(1, 2), scores=("softmax", "APS"), degrees=(1, 2), degree=2)


def draw(n, seed, classes=CLASSES):
    """Features around the means of their classes, and logits that see them with noise."""
    rng = np.random.default_rng(seed)
    means = 0.7 * np.random.default_rng(99).normal(size=(classes, 6))
    labels = rng.integers(classes, size=n)
    features = means[labels] + rng.normal(size=(n, 6))
    distances = ((features[:, None] - means) ** 2).sum(axis=2)
    logits = -distances + rng.normal(size=(n, classes))
    return features.astype(np.float32), logits.astype(np.float32), labels, rng


def small_outputs(n=300, seed=0, **changes):
    features, logits, labels, rng = draw(n, seed)
    groups = {"site": rng.choice(["north", "south"], size=n)}
    fields = {"features": features, "logits": logits, "labels": labels, "groups": groups}
    return ModelOutputs(**(fields | changes))


def small_train(n=400, seed=7):
    features, _, labels, _ = draw(n, seed)
    return features, labels


def small_source(name="small", fixed=False, **changes):
    train = small_train()
    if fixed:
        parts = {"val": small_outputs(200, 1), "test": small_outputs(200, 2)}
    else:
        parts = {"pool": small_outputs(**changes)}
    return Source(name, parts, train)


def write_extracted(folder, dataset, fixed):
    """A folder in the layout of ``trustsets paper extract``."""
    parts = {"val": 60, "test": 60} if fixed else {"pool": 120}
    for seed, (part, n) in enumerate({"train": 150, **parts}.items()):
        features, logits, labels, rng = draw(n, seed)
        rows = np.arange(n) + (np.arange(n) >= n // 2)  # one image could not be read
        columns = {"rows": rows, "labels": labels, "features": features}
        columns["predicted"] = logits.argmax(axis=1)
        columns |= {} if part == "train" else {"logits": logits}
        (folder / part).mkdir(parents=True)
        write(folder / part / "shard-000000000.safetensors", columns)
        table = pd.DataFrame({"path": [f"{i}.png" for i in range(n + 1)], "label": 0})
        if dataset == "fitzpatrick17k":
            table["skin_type"] = rng.choice(["1", "2", "unknown"], size=n + 1)
        table.to_parquet(folder / part / "samples.parquet")
    names = tuple(f"class {i}" for i in range(CLASSES))
    Description(dataset, names, None, {}, {"train": 150, **parts}).write(folder)
