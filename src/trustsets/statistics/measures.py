"""Statistics of the model outputs: confidence, trust, entropy, margin, class frequency."""

from dataclasses import dataclass
from typing import final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.blocks import row_numbers
from trustsets._common.storage import require, storable
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.statistics.statistic import Statistic


@final
@storable
@dataclass(frozen=True)
class Confidence(Statistic):
    """``Conf(x)``: the largest softmax output.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> outputs = ModelOutputs(probabilities=[[0.75, 0.25]])
    >>> Confidence().fit(outputs).values(outputs)
    array([0.75])
    """

    name = "Conf"

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the largest softmax output of each sample."""
        return outputs.confidence


@final
@storable
@dataclass(frozen=True)
class Trust(Statistic):
    """``Trust(x)``: distance to the nearest other class over distance to the predicted one."""

    name = "Trust"

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the trust score of each sample."""
        return outputs.require_trust("Trust")


@final
@storable
@dataclass(frozen=True)
class Entropy(Statistic):
    """Entropy of the softmax outputs, ``-sum_j p_j log p_j``.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> outputs = ModelOutputs(probabilities=[[0.5, 0.5], [1.0, 0.0]])
    >>> Entropy().measure(outputs).round(4)
    array([0.6931, 0.    ])
    """

    name = "Entropy"

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the entropy of each sample."""

        def entropy(block: slice) -> Floats:
            p = outputs.block_probabilities(block)
            return np.asarray(-(p * np.log(np.maximum(p, np.finfo(float).tiny))).sum(axis=1))

        return np.asarray(np.maximum(row_numbers(entropy, len(outputs), outputs.n_classes), 0.0))


@final
@storable
@dataclass(frozen=True)
class Margin(Statistic):
    """Gap between the two largest softmax outputs.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> outputs = ModelOutputs(probabilities=[[0.5, 0.25, 0.25]])
    >>> Margin().measure(outputs)
    array([0.25])
    """

    name = "Margin"

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the margin of each sample."""

        def margin(block: slice) -> Floats:
            top = np.partition(outputs.block_probabilities(block), -2, axis=1)[:, -2:]
            return np.asarray(top[:, 1] - top[:, 0])

        if outputs.n_classes == 1:
            return np.ones(len(outputs))
        return row_numbers(margin, len(outputs), outputs.n_classes)


@final
@storable
@dataclass(frozen=True)
class ClassFrequency(Statistic):
    """``log(1 + training samples of the predicted class)``, for long tails.

    Parameters
    ----------
    transform : {"raw", "log", "rank"}
        See `Statistic`; the logarithm of the count is already taken.
    counts : tuple of int
        Training samples of each class, in the order of the columns.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> outputs = ModelOutputs(logits=[[1.0, 0.0], [0.0, 1.0]])
    >>> ClassFrequency(counts=(9, 99)).measure(outputs).round(4)
    array([2.3026, 4.6052])
    """

    name = "Class frequency"

    counts: tuple[int, ...] = ()

    def check_state(self) -> None:
        """Refuse counts that are none."""
        require(all(n >= 0 for n in self.counts), "ClassFrequency.counts", "must not be negative")

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the log count of the predicted class of each sample."""
        if len(self.counts) != outputs.n_classes:
            raise InputError(
                f"ClassFrequency needs counts for each of the {outputs.n_classes} "
                f"classes; got {len(self.counts)}. Pass np.bincount(train_codes) as a tuple."
            )
        counts = np.array(self.counts, dtype=np.float64)
        return np.asarray(np.log1p(counts)[outputs.predicted_codes])
