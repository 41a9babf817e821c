"""What every task of the demo gives: a small network's outputs on two sets of samples."""

from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets.outputs import ModelOutputs

__all__ = ["DemoTask", "Network", "is_right"]

Singles = NDArray[np.float32]

_LARGEST_BATCH = 128
_FEWEST_BATCHES = 4
_RATE = 2e-3
_CALIBRATION_BINS = 15


@final
@dataclass(frozen=True, eq=False)
class Network:
    """One hidden layer of rectified units, and logits that are a linear map of them.

    It becomes overconfident in the usual way: it has more weights than samples, and its
    training goes on after the training error has reached zero.
    """

    weights: tuple[Singles, Singles]
    biases: tuple[Singles, Singles]

    @classmethod
    def train(cls, inputs: Any, codes: Any, *, width: int, epochs: int, seed: int) -> Self:
        """Minimise the cross entropy with Adam.

        Parameters
        ----------
        inputs : array of shape (n, d)
        codes : array of shape (n,)
            Classes ``0..K-1``, each of which occurs.
        width, epochs : int
            Hidden units, and passes over the data.
        seed : int
            For the first weights and the order of the samples.
        """
        from sklearn.neural_network import MLPClassifier
        from threadpoolctl import threadpool_limits

        batch = min(_LARGEST_BATCH, max(len(codes) // _FEWEST_BATCHES, 1))
        model = MLPClassifier(
            (width,), alpha=1e-5, batch_size=batch, learning_rate_init=_RATE, random_state=seed
        )
        inputs = np.asarray(inputs, dtype=np.float32)
        # Pass by pass, because `fit` would warn that it has not converged. On one core, because
        # threads slow down matrix products of this size.
        with threadpool_limits(1):
            for _ in range(epochs):
                model.partial_fit(inputs, codes, classes=np.unique(codes))
        return cls(tuple(model.coefs_), tuple(model.intercepts_))

    def outputs(self, inputs: Any, labels: Any, classes: Any) -> ModelOutputs:
        """Outputs on samples, with the hidden layer as features."""
        inputs = np.asarray(inputs, dtype=np.float32)
        hidden = np.maximum(inputs @ self.weights[0] + self.biases[0], np.float32(0.0))
        logits = hidden @ self.weights[1] + self.biases[1]
        return ModelOutputs(logits=logits, features=hidden, labels=labels, classes=classes)


@final
@dataclass(frozen=True, eq=False)
class DemoTask:
    """A classifier trained on some samples, and its outputs on others.

    Attributes
    ----------
    name : str
        What the command line calls it.
    title, about : str
        A heading, and a sentence on the data.
    train : ModelOutputs
        What the classifier was trained on, for `TrustScore`.
    pool : ModelOutputs
        Samples it never saw, to be split into calibration and test; rows are ``0..n-1``.
    label_probabilities : array of shape (n, K), or None
        True P(y | x) of the pool, where known; ``label_probabilities[test.rows]`` belongs
        to a part of the pool.
    texts, images : pair, or None
        Texts or images of the training samples and of the pool, where samples have such.
    """

    name: str
    title: str
    about: str
    train: ModelOutputs
    pool: ModelOutputs
    label_probabilities: Floats | None = None
    texts: tuple[list[str], list[str]] | None = None
    images: tuple[Singles, Singles] | None = None

    @property
    def accuracy(self) -> float:
        """Share of the pool that the classifier gets right."""
        return float(is_right(self.pool).mean())

    @property
    def confidence(self) -> float:
        """Mean confidence on the pool; a calibrated classifier has it equal to the accuracy."""
        return float(self.pool.confidence.mean())

    @property
    def calibration_error(self) -> float:
        """Mean distance of accuracy from confidence over 15 equal bins of confidence."""
        surplus = self.pool.confidence - is_right(self.pool)
        bins = (self.pool.confidence * _CALIBRATION_BINS).astype(np.int64)
        sums = np.bincount(np.minimum(bins, _CALIBRATION_BINS - 1), weights=surplus)
        return float(np.abs(sums).sum() / len(self.pool))


def is_right(outputs: ModelOutputs) -> NDArray[np.bool_]:
    """Whether each prediction is the true class, shape (n,)."""
    return np.equal(outputs.predicted_codes, outputs.require_labels("the accuracy"))
