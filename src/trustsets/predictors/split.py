"""Split conformal prediction: one threshold for all samples, or one for each cell or class."""

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Self, final

import numpy as np

from trustsets._arrays import Codes, Floats
from trustsets._parameters import Alphas, check_arguments
from trustsets.basis import Bins, CustomGroups, FittedGroups, FittedPartition, Groups, Partition
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import ModelOutputs, SupportsTrust
from trustsets.predictors.predictor import Calibration, Predictor
from trustsets.predictors.quantiles import (
    QuantileFit,
    class_thresholds,
    leave_one_out_quantiles,
    quantile_p_values,
    quantile_thresholds,
    weighted_quantiles,
    worst_status,
)
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score, conformal_rank
from trustsets.statistics import Confidence, Trust
from trustsets.status import Status, Thresholds
from trustsets.storage import require, require_numbers, storable


class CellPredictor(Predictor):
    """Split conformal prediction within cells: all samples in one, unless a method says more.

    The threshold of a cell is the finite-sample quantile of its calibration scores, unless
    `paper_rules` is set.
    """

    paper_rules: bool = False

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
        # Samples of no cell, whose number is -1, come first.
        ends = np.cumsum(np.bincount(cells + 1, minlength=n_cells + 1))
        return np.split(np.lexsort((self.state_.scores, cells)), ends[:-1])[1:]

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
        if self.paper_rules:
            return None
        cell_scores, cells = self._cell_scores, self._new_cells(outputs)
        if cells is None:
            columns = zip(cell_scores, scores.T, strict=True)
            return np.stack([quantile_p_values(cell, column) for cell, column in columns], axis=1)
        p_values = np.ones_like(scores)  # as in a cell without calibration samples
        for cell in np.unique(cells[cells >= 0]):
            p_values[cells == cell] = quantile_p_values(cell_scores[cell], scores[cells == cell])
        return p_values

    def _leave_one_out_thresholds(self, scores: Floats, alphas: Alphas) -> Thresholds:
        if self.paper_rules:
            return super()._leave_one_out_thresholds(scores, alphas)
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
        return Thresholds(values, worst_status(status))

    def check_weights(self) -> None:
        """Finite-sample quantiles can be weighted."""
        if self.paper_rules:
            super().check_weights()

    def weighted_thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: Alphas, weights: Floats, new: Floats
    ) -> Thresholds:
        """Weighted quantiles within cells."""
        scores, members, cells = self.state_.scores, self._members, self._new_cells(outputs)
        by_class, m = new.shape[1] > 1, len(outputs)
        width = len(members) if cells is None else new.shape[1]
        values, unseen = np.full((m, width, len(alphas)), np.inf), np.zeros(m, np.bool_)
        for cell, index in enumerate(members):
            if cells is None:
                # A candidate is compared with the samples of its own class.
                weight = new[:1, cell] if by_class else new[:, 0]
                values[:, cell] = weighted_quantiles(scores[index], weights[index], weight, alphas)
                continue
            samples = np.flatnonzero(cells == cell)
            if samples.size:
                weight = new[0] if by_class else new[samples, 0]
                part = weighted_quantiles(scores[index], weights[index], weight, alphas)
                values[samples] = part if by_class else part[:, None]
                unseen[samples] = index.size == 0
        reason = Status.TOO_FEW_POINTS if by_class else Status.HIGH_LEVERAGE
        status = np.where(np.isinf(values).any(axis=1), reason, Status.EXACT).astype(np.int8)
        if cells is None:
            return Thresholds(values, status)
        status[unseen | (cells < 0)] = Status.UNSEEN_GROUP
        return Thresholds(values if by_class else values[:, 0], status)

    def quantile_fits(
        self, outputs: ModelOutputs, alpha: float, code: int | None
    ) -> tuple[list[QuantileFit], Codes]:
        """The fit of the constant function over the samples of one cell."""
        if self.paper_rules:
            return super().quantile_fits(outputs, alpha, code)
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


@final
@storable
@dataclass(frozen=True, eq=False)
class FittedCells:
    """The fitted partition, and the cell of each calibration sample, shape (n,)."""

    partition: FittedPartition
    cells: Codes

    def check_belongs(self, state: Calibration) -> None:
        """Refuse cells that the partition does not have, for `storage`."""
        require_numbers(self.cells, "FittedCells.cells", len(state))
        inside = -1 <= self.cells.min() and self.cells.max() < self.partition.n_cells
        require(inside, "FittedCells.cells", f"must be below {self.partition.n_cells}")

    def take(self, index: Codes) -> Self:
        """The same with some of the samples."""
        return replace(self, cells=self.cells[index])

    def extended(self, outputs: ModelOutputs, state: Calibration) -> Self:
        """The same with more samples."""
        cells = self.partition.cells(outputs)
        if (cells < 0).any():
            raise InputError(
                f"sample {int(np.argmax(cells < 0))} is of a group that calibration lacks; call "
                "calibrate with all samples."
            )
        return replace(self, cells=np.concatenate([self.cells, cells]))


@final
@storable
@dataclass(eq=False, repr=False)
class MondrianConformal(CellPredictor):
    """Conformal prediction within each cell of a partition (Mondrian conformal prediction).

    Each cell gets the finite-sample quantile of its own calibration scores: coverage is
    group-conditional, at least 1 - alpha *within every cell*. Cells without calibration samples, or
    with too few for alpha, get full sets, and the status says so.

    Parameters
    ----------
    by : Groups, Bins, function or "class"
        The group columns, a grid of statistics, or a function of `ModelOutputs` that returns the
        group of each sample. ``"class"`` gives each class its own threshold, which makes coverage
        class-conditional.
    score, temperature, class_bias, allow_empty, tuning_fraction, random_state
        As in `StandardConformal`. The edges of `Bins` are learned from the tuning samples.
    trust : TrustScore, optional
        Fitted trust score, needed where the cells depend on Trust.
    paper_rules : bool
        True follows the paper's authors, without a guarantee: plain 1 - alpha quantiles (the higher
        of two neighbours), empty sets in cells without calibration samples, and edges of `Bins`
        computed again from the samples to predict.

    Examples
    --------
    >>> from trustsets import Groups, ModelOutputs
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 4))
    >>> labels = (logits + rng.gumbel(size=(2000, 4))).argmax(axis=1)
    >>> site = np.where(np.arange(2000) % 4 == 0, "north", "south")
    >>> outputs = ModelOutputs(logits=logits, labels=labels, groups={"site": site})
    >>> calibration, test = outputs.split(0.5)
    >>> sets = MondrianConformal(by=Groups("site")).calibrate(calibration).predict_set(test)
    >>> len(np.unique(sets.thresholds))  # one for each site
    2
    """

    _: KW_ONLY
    by: Partition | Callable[[ModelOutputs], Any] | Literal["class"] = Groups()
    score: Score = APS()
    trust: SupportsTrust | None = None
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float | str = 0.2
    random_state: Any = 0
    paper_rules: bool = False

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return the paper's NAIVE as the authors run it (see `paper_rules`).

        Ten confidence bins of equal width times four quantile bins of Trust, APS without the
        label's own probability, a temperature fitted on the calibration samples, empty sets
        allowed. ``MondrianConformal.paper(by=Groups("skin_type"))`` is their GROUPWISE. `changes`
        are parameters that should differ, `trust` among them.
        """
        setting: dict[str, Any] = {
            "by": Bins(
                Confidence(), Trust(), counts=(10, 4), spacing=("uniform", "quantile"), nested=False
            ),
            "temperature": "tuning",
            "tuning_fraction": 0.0,
            "allow_empty": True,
            "paper_rules": True,
        }
        return cls(**(setting | changes))

    def _check_parameters(self) -> None:
        check_arguments(bool, paper_rules=self.paper_rules)
        by_class = isinstance(self.by, str) and self.by == "class"
        if not isinstance(self.by, Partition) and not by_class and not callable(self.by):
            raise InputError(
                f'by must be Groups(...), Bins(...), a function of ModelOutputs or "class"; got '
                f"{self.by!r}."
            )

    @property
    def _partition(self) -> Partition | None:
        """The partition of samples; None for one by class, which is not known of new samples."""
        if isinstance(self.by, Partition):
            return self.by
        return CustomGroups(self.by) if callable(self.by) else None

    def _tuned(self) -> tuple[str, ...]:
        partition = self._partition
        return ("the bin edges",) if partition is not None and partition.learns else ()

    @property
    def is_class_conditional(self) -> bool:
        """Whether thresholds are by class."""
        return self._partition is None and not self.paper_rules

    @property
    def conditions_on(self) -> FittedPartition | None:
        """The partition; None for one by class."""
        fitted: FittedCells | None = self._state().fitted
        return None if fitted is None else fitted.partition

    @property
    def batch_dependence(self) -> str | None:
        """Why sets depend on their batch: the authors' bins are those of the new samples."""
        if not (self.paper_rules and self._tuned()):
            return None
        return (
            "the paper's own NAIVE computes its bins from the samples to predict, so its sets "
            "depend on what is predicted together; calibrate the method without paper rules"
        )

    @property
    def cell_counts_(self) -> dict[str, int]:
        """Calibration samples of each class, group or cell (these are numbered), by name."""
        partition, sizes = self.conditions_on, [len(members) for members in self._members]
        names = [str(name) for name in self.classes_.tolist()]
        if isinstance(partition, FittedGroups):
            names = [", ".join(group) for group in partition.combinations]
        elif partition is not None:
            names = [str(cell) for cell in range(partition.n_cells)]
        return dict(zip(names, sizes, strict=True))

    def _fit(
        self, state: Calibration, calibration: ModelOutputs, tuning: ModelOutputs
    ) -> FittedCells | None:
        partition = self._partition
        if partition is None:
            return None
        fitted: Any = partition.fit_parts(calibration, tuning)
        return FittedCells(fitted, fitted.cells(calibration))

    def _cells(self) -> tuple[Codes, int]:
        state = self.state_
        if state.fitted is None:
            return state.codes, len(state.classes)
        return state.fitted.cells, state.fitted.partition.n_cells

    def _new_cells(self, outputs: ModelOutputs) -> Codes | None:
        # `by` may have been set after calibration; the thresholds are those of the partition then.
        partition = self.conditions_on
        if partition is None:
            return None
        if self.paper_rules and self._partition is not None and self._partition.learns:
            partition = self._partition.fit(outputs)
        return partition.cells(outputs)

    def _thresholds(self, outputs: ModelOutputs, scores: Floats, alphas: Alphas) -> Thresholds:
        if not self.paper_rules:
            self._warn_about_small_cells(min(alphas))
            return super()._thresholds(outputs, scores, alphas)
        table, cells = _plain_quantiles(self._cell_scores, alphas), self._new_cells(outputs)
        thresholds = self._look_up(table, cells, len(outputs))
        if cells is not None:
            thresholds.values[cells < 0] = -np.inf
        return thresholds

    def _warn_about_small_cells(self, alpha: float) -> None:
        sizes = [len(members) for members in self._members if len(members)]
        small = sum(conformal_rank(size, alpha) > size for size in sizes)
        if small:
            what, effect = "groups", "their sets are full"
            if self.is_class_conditional:
                what, effect = "classes", "these classes are in every set"
            warnings.warn(
                f"{small} of {len(sizes)} {what} have too few calibration samples for "
                f"alpha={alpha:g} (the smallest has {min(sizes)}); {effect}. Use fewer {what}, "
                "more data or a larger alpha.",
                TrustSetsWarning,
                stacklevel=4,
            )

    def _guarantee(self) -> str:
        if self.paper_rules:
            return "none, because the authors' own rule leaves out the finite-sample correction."
        cell = (
            "class (class-conditional)" if self._partition is None else "cell (group-conditional)"
        )
        return (
            f"the sets contain the true class with probability at least 1 - alpha in every {cell}."
        )


def _plain_quantiles(cell_scores: list[Floats], alphas: Alphas) -> Thresholds:
    """The authors' rule: plain quantiles, and empty sets in cells without samples."""
    values = np.full((len(cell_scores), len(alphas)), -np.inf)
    status = np.full(values.shape, np.int8(Status.UNSEEN_GROUP))
    for cell, scores in enumerate(cell_scores):
        if scores.size:
            values[cell] = np.quantile(scores, 1.0 - np.array(alphas), method="higher")
            status[cell] = np.int8(Status.EXACT)
    return Thresholds(values, status)
