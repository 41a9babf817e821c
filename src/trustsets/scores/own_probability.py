"""Scores that compare the probability of the label with 1, or with that of another label."""

from dataclasses import dataclass
from typing import final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.storage import storable
from trustsets.scores.score import Score

__all__ = ["MarginScore", "Softmax"]


@final
@storable
@dataclass(frozen=True, kw_only=True)
class Softmax(Score):
    """One minus the softmax output of the label: ``s = 1 - p_y`` (also called LAC).

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> outputs = ModelOutputs(probabilities=[[0.75, 0.25]], labels=[0])
    >>> Softmax().of_labels(outputs)
    array([0.25])
    """

    randomized = False

    def _raw(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        return 1.0 - sorted_probabilities

    def _tail(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        return sorted_probabilities


@final
@storable
@dataclass(frozen=True, kw_only=True)
class MarginScore(Score):
    """The largest probability of another label minus that of the label.

    With ``p_(1) >= p_(2) >= ...`` the sorted probabilities, ``s = p_(2) - p_(1)`` for the most
    likely label and ``s = p_(1) - p_(k)`` for the label of rank k, between -1 and 1 (Johansson,
    Linusson, Löfström and Boström 2017). The statistic `Margin` is one number for a sample.

    Parameters
    ----------
    scale : {"raw", "tail"}
        See `Score`; ``"tail"`` is ``-log((1 - s) / 2)``.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> outputs = ModelOutputs(probabilities=[[0.625, 0.25, 0.125]])
    >>> MarginScore().matrix(outputs)
    array([[-0.375,  0.375,  0.5  ]])
    """

    randomized = False

    def _raw(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        raw = sorted_probabilities[:, :1] - sorted_probabilities
        raw[:, 0] = -_lead(sorted_probabilities)
        return raw

    def _tail(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        # 1 - p_(1) is the sum of the others, from the smallest upwards: no digits are lost.
        others = np.cumsum(sorted_probabilities[:, :0:-1], axis=1)[:, -1:]
        tail = sorted_probabilities.copy()
        tail[:, 1:] += others
        tail[:, 0] = 1.0 + _lead(sorted_probabilities)
        tail /= 2.0
        # Decreasing in exact arithmetic; with rounding, a worse rank could score lower.
        np.minimum.accumulate(tail, axis=1, out=tail)
        return tail


def _lead(ranked: Floats) -> Floats:
    """How far the largest probability is above the second; a single class has no second."""
    second = ranked[:, 1] if ranked.shape[1] > 1 else 0.0
    lead: Floats = ranked[:, 0] - second
    return lead
