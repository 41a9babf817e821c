"""STANDARD: split conformal prediction, one threshold for all samples, or one for each cell."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import numpy as np

from trustsets._arrays import Alphas, Codes, Floats
from trustsets._storage import storable
from trustsets.outputs import ModelOutputs
from trustsets.predictors.calibration import Calibration
from trustsets.predictors.predictor import Predictor
from trustsets.predictors.quantiles import (
    QuantileFit,
    class_thresholds,
    leave_one_out_quantiles,
    quantile_p_values,
    quantile_thresholds,
    weighted_cell_thresholds,
    weighted_quantiles,
)
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score
from trustsets.status import Status, Thresholds

__all__ = ["CellPredictor", "StandardConformal"]


class CellPredictor(Predictor):
    """Split conformal prediction within cells: all samples in one, unless a method says more.

    The threshold of a cell is the finite-sample quantile of its calibration scores.
    """

    def _cells(self) -> tuple[Codes, int]:
        """Cell of each calibration sample, and the number of cells."""
        return np.zeros(len(self.state_), np.int64), 1

    def _new_cells(self, outputs: ModelOutputs) -> Codes | None:
        """Cell of each new sample, -1 for none; None where the cells are the classes."""
        return np.zeros(len(outputs), np.int64)

    @property
    def _members(self) -> list[Codes]:
        """Calibration samples of each cell, by increasing score."""
        return self._cached("members", self._sort_members)

    def _sort_members(self) -> list[Codes]:
        cells, n_cells = self._cells()
        ends = np.cumsum(np.bincount(cells, minlength=n_cells))
        return np.split(np.lexsort((self.state_.scores, cells)), ends[:-1])

    @property
    def _cell_scores(self) -> list[Floats]:
        """Scores of each cell, increasing."""
        return [self.state_.scores[members] for members in self._members]

    def _thresholds(self, outputs: ModelOutputs, scores: Floats, alphas: Alphas) -> Thresholds:
        table = quantile_thresholds(self._cell_scores, alphas)
        return self._look_up(table, self._new_cells(outputs), len(outputs))

    def _look_up(self, table: Thresholds, cells: Codes | None, m: int) -> Thresholds:
        """Thresholds of m samples from those of the cells."""
        if cells is None:
            return class_thresholds(table, m)
        unseen = (cells < 0)[:, None]
        return Thresholds(
            np.where(unseen, np.inf, table.values[cells]),
            np.where(unseen, np.int8(Status.UNSEEN_GROUP), table.status[cells]),
        )

    def _exact_p_values(self, outputs: ModelOutputs, scores: Floats) -> Floats | None:
        cell_scores, cells = self._cell_scores, self._new_cells(outputs)
        if cells is None:
            columns = zip(cell_scores, scores.T, strict=True)
            return np.stack([quantile_p_values(cell, column) for cell, column in columns], axis=1)
        p_values = np.ones_like(scores)  # as in a cell without calibration samples
        for cell in np.unique(cells[cells >= 0]):
            p_values[cells == cell] = quantile_p_values(cell_scores[cell], scores[cells == cell])
        return p_values

    def _leave_one_out_thresholds(self, scores: Floats, alphas: Alphas) -> Thresholds:
        state, samples = self.state_, np.arange(len(self.state_))
        without = leave_one_out_quantiles(state.scores, self._cells()[0], alphas)
        if self._new_cells(self.calibration_) is not None:
            return without
        # A sample has left the cell of its own class alone.
        table = quantile_thresholds(self._cell_scores, alphas)
        values = np.repeat(table.values[None], len(state), axis=0)
        status = np.repeat(table.status[None], len(state), axis=0)
        values[samples, state.codes] = without.values
        status[samples, state.codes] = without.status
        return Thresholds(values, status.max(axis=1))

    def check_weights(self) -> None:
        """Weighted quantiles are always there."""

    def weighted_thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: Alphas, weights: Floats, new: Floats
    ) -> Thresholds:
        """Weighted quantiles within cells."""
        state, (cells, n_cells) = self.state_, self._cells()
        new_cells = self._new_cells(outputs)
        if new_cells is not None:
            return weighted_cell_thresholds(state.scores, cells, weights, new_cells, new, alphas)
        # A candidate is compared with the samples of its own class.
        by_class = np.broadcast_to(new, (max(len(new), 1), n_cells))
        values = np.empty((*by_class.shape, len(alphas)))
        for code, members in enumerate(self._members):
            values[:, code] = weighted_quantiles(
                state.scores[members], weights[members], by_class[:, code], alphas
            )
        values = np.broadcast_to(values, (len(outputs), n_cells, len(alphas)))
        reason = Status.TOO_FEW_POINTS if len(new) == 1 else Status.HIGH_LEVERAGE
        status = np.where(np.isinf(values).any(axis=1), reason, Status.EXACT)
        return Thresholds(values, status.astype(np.int8))

    def quantile_fits(
        self, outputs: ModelOutputs, alpha: float, code: int | None
    ) -> tuple[list[QuantileFit], Codes]:
        """The fit of the constant function over the samples of one cell."""
        cells = self._new_cells(outputs)
        cell = code if cells is None else int(cells[0])
        assert cell is not None  # `explain` asks for a label where the cells are the classes
        members = self._members[cell] if cell >= 0 else np.zeros(0, np.int64)
        return [QuantileFit.of_constant(self.state_.scores[members], alpha)], members


@final
@storable
@dataclass(eq=False, repr=False)
class StandardConformal(CellPredictor):
    """Split conformal prediction: the sets contain the true class with probability 1 - alpha.

    The threshold is the k-th smallest calibration score, k the smallest integer that is at
    least (n + 1)(1 - alpha), computed exactly; past n it is infinite and the set is full.
    Coverage is marginal: nothing is guaranteed for any kind of sample.

    Parameters
    ----------
    score : Score
        `APS()` (default), `RAPS()`, `SAPS()`, `Softmax()` or another nonconformity score.
    temperature : None, float, TemperatureScaling or "tuning"
        What divides the logits; ``"tuning"`` fits it on the tuning samples.
    class_bias : None, ClassBias or "tuning"
        Constants added to the logits of each class. One that is not fitted is fitted on the tuning
        samples; ``"tuning"`` is ``ClassBias()``. With ``ClassBias(prevalence=1.0)``, sets contain
        rare classes more often (prevalence-adjusted scores).
    allow_empty : bool
        False keeps the most likely class in every set; True is the textbook rule.
    tuning_fraction : float
        Share of the calibration samples set aside for what is learned besides the thresholds, if
        anything is. 0 reuses the calibration samples and warns.
    random_state : int, None or generator
        Seed of the tuning split and of randomised scores.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 5))
    >>> labels = (logits + rng.gumbel(size=(1000, 5))).argmax(axis=1)
    >>> outputs = ModelOutputs(logits=logits, labels=labels)
    >>> calibration, test = outputs.split(0.5, seed=1)
    >>> sets = StandardConformal().calibrate(calibration).predict_set(test, alpha=0.1)
    >>> sets
    PredictionSets(500 samples, 5 classes, alpha=0.1, mean size 3.42)
    >>> float(sets.covers(test.labels).mean())
    0.908
    """

    _: KW_ONLY
    score: Score = APS()
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float | str = 0.2
    random_state: Any = 0

    def _fit(self, state: Calibration, calibration: ModelOutputs, tuning: ModelOutputs) -> None:
        """Nothing: a quantile is read off the scores."""

    def _guarantee(self) -> str:
        return "the sets contain the true class with probability at least 1 - alpha (marginally)."
