"""What every task of the demo gives: a trained classifier's outputs on two sets of samples."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets.demo.network import Network
from trustsets.outputs import ModelOutputs

__all__ = ["DemoTask", "is_right", "run_network"]


_CALIBRATION_BINS = 15


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
    """

    name: str
    title: str
    about: str
    train: ModelOutputs
    pool: ModelOutputs
    label_probabilities: Floats | None = None

    @property
    def accuracy(self) -> float:
        """Share of the pool that the classifier gets right."""
        return float(is_right(self.pool).mean())

    @property
    def confidence(self) -> float:
        """Mean confidence on the pool: equal to the accuracy, were the classifier calibrated."""
        return float(self.pool.confidence.mean())

    @property
    def calibration_error(self) -> float:
        """Mean distance of accuracy from confidence over 15 equal bins of confidence."""
        surplus = self.pool.confidence - is_right(self.pool)
        bins = (self.pool.confidence * _CALIBRATION_BINS).astype(np.int64)
        sums = np.bincount(np.minimum(bins, _CALIBRATION_BINS - 1), weights=surplus)
        return float(np.abs(sums).sum() / len(self.pool))


def run_network(network: Network, inputs: Any, labels: Any, classes: Any) -> ModelOutputs:
    """Outputs of a trained network on samples, with its hidden layer as features."""
    hidden = network.hidden(inputs)
    return ModelOutputs(
        logits=network.logits(hidden), features=hidden, labels=labels, classes=classes
    )


def is_right(outputs: ModelOutputs) -> NDArray[np.bool_]:
    """Whether each prediction is the true class, shape (n,)."""
    return np.equal(outputs.predicted_codes, outputs.require_labels("the accuracy"))
