"""A small task for monitors: what may change, and a predictor for it."""

import numpy as np

from trustsets import APS, ModelOutputs, StandardConformal


def draw(rng, n, change=None, labelled=True):
    """Samples of 4 classes with features and sites; `change` says what has broken."""
    logits = 2.0 * rng.normal(size=(n, 4))
    labels = (logits + rng.gumbel(size=(n, 4))).argmax(axis=1)
    features, site = rng.normal(size=(n, 3)), rng.choice(["north", "south"], size=n)
    wrong = {
        None: np.zeros(n, dtype=bool),
        "all": rng.random(n) < 0.5,
        "class": labels == 2,
        "group": (site == "north") & (rng.random(n) < 0.7),
        "region": (features[:, 0] > 0.5) & (rng.random(n) < 0.8),
        "inputs": np.zeros(n, dtype=bool),
    }[change]
    if change == "class":
        logits[wrong] = np.roll(logits[wrong], 1, axis=1)
    else:
        labels = np.where(wrong, rng.integers(4, size=n), labels)
    if change == "inputs":
        features, logits = 2.0 * features, 2.0 * logits
    return ModelOutputs(
        logits=logits, features=features, labels=labels if labelled else None, groups={"site": site}
    )


def calibrated(rng, n=400, **changes):
    """Calibration samples, and a predictor calibrated on them."""
    samples = draw(rng, n)
    own = {"score": APS(own_mass="random"), "allow_empty": True} | changes
    return samples, StandardConformal(**own).calibrate(samples)
