"""The demo's data: a classifier's outputs on samples that it was not trained on."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import final

import numpy as np

from trustsets._arrays import Array
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.trust import TrustScore

__all__ = ["TASKS", "DemoTask", "load"]


@final
@dataclass(frozen=True, eq=False)
class DemoTask:
    """Outputs of a classifier on held-out samples, in two halves.

    Attributes
    ----------
    calibration, test : ModelOutputs
        Labelled samples that the classifier was not trained on, with features and trust.
    trust : TrustScore, optional
        What the trust is from; None where only its values ship.
    train : ModelOutputs, optional
        What the classifier was trained on.
    images, train_images : array of shape (n, height, width), optional
        Images of all held-out samples (``images[test.rows]`` are those of the test samples), and
        of the training samples.
    """

    name: str
    title: str
    description: str
    calibration: ModelOutputs
    test: ModelOutputs
    trust: TrustScore | None = None
    train: ModelOutputs | None = None
    images: Array | None = None
    train_images: Array | None = None


def load(name: str = "real", seed: int = 0) -> DemoTask:
    """Return one of the demo's tasks.

    Parameters
    ----------
    name : {"real", "digits"}
        Outputs of a deep network on CIFAR-100 that ship with the package, or a small network that
        is trained on scikit-learn's digits in some seconds.
    seed : int
        Splits the held-out samples in halves; chooses the training samples of the digits.

    Examples
    --------
    >>> task = load("real")
    >>> task.calibration
    ModelOutputs(n=5000, K=100, d=32, trust, labels)
    """
    if name not in TASKS:
        raise InputError(f"name must be one of {', '.join(TASKS)}; got {name!r}.")
    return TASKS[name](seed)


def _real(seed: int) -> DemoTask:
    path = files("trustsets.demo").joinpath("data", "cifar100.npz")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        outputs = ModelOutputs(
            logits=arrays["logits"].astype(np.float32),
            features=arrays["features"].astype(np.float32),
            trust=arrays["trust"],
            labels=arrays["classes"][arrays["labels"]],
            classes=arrays["classes"],
        )
    calibration, test = outputs.split(0.5, seed=seed, stratify=True)
    return DemoTask(
        name="real",
        title="A deep network on CIFAR-100",
        description=(
            f"A Wide-ResNet 28-4, trained on 40,000 images of 100 classes, on {len(outputs):,} "
            "images that it was not trained on. The defaults of this package were chosen on "
            "outputs of this network, among others, so the numbers flatter them."
        ),
        calibration=calibration,
        test=test,
    )


def _digits(seed: int, n_train: int = 100) -> DemoTask:
    """Ten digits, 8 x 8 pixels, and a network that saw few: one trained on many hardly errs."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16.0).astype(np.float32)
    seen, new = train_test_split(
        np.arange(len(labels)), train_size=n_train, random_state=seed, stratify=labels
    )
    network = MLPClassifier(
        (64,), alpha=1e-5, batch_size=25, learning_rate_init=2e-3, random_state=seed
    )
    # Pass by pass, because `fit` would warn; on one core, because threads slow so small a network.
    with threadpool_limits(1):
        for _ in range(300):
            network.partial_fit(pixels[seen], labels[seen], classes=np.arange(10))

    def run(rows: Array) -> ModelOutputs:
        hidden = np.maximum(pixels[rows] @ network.coefs_[0] + network.intercepts_[0], 0.0)
        logits = hidden @ network.coefs_[1] + network.intercepts_[1]
        return ModelOutputs(logits=logits, features=hidden, labels=labels[rows], classes=range(10))

    train, pool = run(seen), run(new)
    trust = TrustScore().fit(np.asarray(train.features), np.asarray(train.labels))
    calibration, test = pool.with_trust(trust).split(0.5, seed=seed)
    return DemoTask(
        name="digits",
        title="A small network on handwritten digits",
        description=(
            f"One hidden layer, trained on {n_train} images of 10 digits, on {len(new):,} images "
            "that it was not trained on."
        ),
        calibration=calibration,
        test=test,
        trust=trust,
        train=train,
        images=pixels[new].reshape(-1, 8, 8),
        train_images=pixels[seen].reshape(-1, 8, 8),
    )


TASKS: dict[str, Callable[[int], DemoTask]] = {"real": _real, "digits": _digits}
"""Functions of a seed, by the names that `load` takes."""
