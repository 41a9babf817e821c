from types import SimpleNamespace

import numpy as np
import pytest

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
def session(data):
    return Session(data.outputs, data.trust)
