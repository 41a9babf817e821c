"""Thresholds of calibration samples, each by the predictor calibrated on all others.

What the tuning part learned stays fixed. Predictors with a closed form have their own; the others
learn once for each sample, which is `relearn`.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.progress import progress_bar
from trustsets._common.quantiles import conformal_rank
from trustsets.outputs import ModelOutputs
from trustsets.predictors.calibrated import Task
from trustsets.predictors.thresholds import SampleThresholds
from trustsets.status import Status

__all__ = ["quantiles_without", "relearn", "without"]


def without(task: Task, sample: int) -> Task:
    """The task with one calibration sample less."""
    rest = np.delete(np.arange(len(task.scores)), sample)
    alphas = None if task.alphas is None else task.alphas[rest]
    return replace(
        task, calibration=task.calibration.take(rest), scores=task.scores[rest], alphas=alphas
    )


def relearn(
    task: Task, thresholds: Callable[[Task, ModelOutputs], SampleThresholds]
) -> SampleThresholds:
    """Thresholds of each sample from the task without it, one after the other."""
    found = []
    with progress_bar("leaving samples out", len(task.scores)) as advance:
        for i in range(len(task.scores)):
            found.append(thresholds(without(task, i), task.calibration.take(np.array([i]))))
            advance(1)
    return SampleThresholds(
        np.concatenate([own.values for own in found]),
        np.concatenate([own.status for own in found]),
    )


def quantiles_without(
    scores: Floats, cells: Codes, alphas: tuple[float, ...]
) -> tuple[Floats, NDArray[np.int8]]:
    """Quantile of the other scores of each sample's cell and its status, both of shape (n, A).

    Examples
    --------
    >>> scores, cells = np.array([3.0, 1.0, 2.0, 7.0]), np.array([0, 0, 0, 1])
    >>> values, status = quantiles_without(scores, cells, (0.5,))
    >>> values[:, 0], [Status(int(code)).name for code in status[:, 0]]
    (array([ 2.,  3.,  3., inf]), ['EXACT', 'EXACT', 'EXACT', 'UNSEEN_GROUP'])
    """
    values = np.full((len(scores), len(alphas)), np.inf)
    alone = np.int8(Status.UNSEEN_GROUP)
    status = np.full(values.shape, alone)
    for members in _by_cell(cells):
        others, own = len(members) - 1, scores[members]
        ordered = np.sort(own)
        for place, alpha in enumerate(alphas):
            rank = conformal_rank(others, alpha)
            if rank <= others:
                # Without one of the first `rank` scores, the next one takes their last place.
                is_early = own <= ordered[rank - 1]
                values[members, place] = np.where(is_early, ordered[rank], ordered[rank - 1])
            if others:
                found = Status.EXACT if rank <= others else Status.TOO_FEW_POINTS
                status[members, place] = np.int8(found)
    return values, status


def _by_cell(cells: Codes) -> list[Codes]:
    """Numbers of the samples of each cell that has some."""
    order = np.argsort(cells, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(cells[order])) + 1)
