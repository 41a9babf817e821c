from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from trustsets import ModelOutputs, TrustScore
from trustsets_explorer.session import Session

CLASSES = np.array(["cat", "<b>dog</b>", "cow & calf", "'ox'", "hen", "owl"])


@pytest.fixture(scope="session")
def data():
    """Held-out and training samples of six classes, whose names look like markup."""
    rng = np.random.default_rng(0)
    centres = 1.5 * rng.normal(size=(CLASSES.size, 4))

    def draw(n):
        codes = rng.integers(CLASSES.size, size=n)
        return centres[codes] + rng.normal(size=(n, 4)), codes

    (features, codes), (train, train_codes) = draw(1200), draw(300)
    logits = 1.5 * features @ centres.T
    outputs = ModelOutputs(
        logits=logits - 0.75 * (centres**2).sum(axis=1),
        features=features,
        labels=CLASSES[codes],
        classes=CLASSES,
        groups={"site": rng.choice(["north", "<i>south</i>"], size=len(codes))},
    )
    trust = TrustScore().fit(train, CLASSES[train_codes])
    return SimpleNamespace(
        outputs=outputs, trust=trust, train=(train, CLASSES[train_codes]), classes=CLASSES
    )


@pytest.fixture(scope="session")
def folder(data, tmp_path_factory):
    """Held-out and training files, and images of the held-out samples."""
    folder, outputs = tmp_path_factory.mktemp("files"), data.outputs
    np.savez(
        folder / "held_out.npz",
        logits=outputs.logits,
        features=outputs.features,
        labels=outputs.codes,
        classes=outputs.classes,
        group_site=outputs.groups["site"],
        note=[f"<u>sample {i}</u>" for i in range(len(outputs))],
        image=[f"{i % 3}.png" for i in range(len(outputs))],
    )
    names = outputs.classes.tolist()
    labels = [names.index(label) for label in data.train[1].tolist()]
    np.savez(folder / "train.npz", features=data.train[0], labels=labels)
    (folder / "images").mkdir()
    for i in range(3):
        Image.new("L", (4, 4), 80 * i).save(folder / "images" / f"{i}.png")
    return folder


@pytest.fixture(scope="session")
def session(data):
    return Session(data.outputs, data.trust)
