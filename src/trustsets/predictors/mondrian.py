"""NAIVE and GROUPWISE: a threshold of its own for every cell of a partition."""

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.quantiles import conformal_rank
from trustsets._common.storage import require, require_increasing, require_numbers, storable
from trustsets.basis import Bins, FittedGroups, FittedPartition, Groups, Partition
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Predictor
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.leave_one_out import quantiles_without
from trustsets.predictors.thresholds import SampleThresholds, quantile_table
from trustsets.predictors.tuning import Method
from trustsets.predictors.updating import places_of
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score
from trustsets.statistics import SupportsTrust
from trustsets.status import Status

__all__ = ["MondrianConformal"]

_TOGETHER = (
    "the paper's own NAIVE computes its bins from the samples to predict, so its sets depend on "
    "what is predicted together; calibrate the method without paper rules"
)


@final
@storable
@dataclass(frozen=True)
class MondrianLearned(Learned):
    """Scores by cell: those of cell c are ``scores[start[c]:start[c + 1]]``, increasing."""

    partition: FittedPartition | None
    scores: Floats
    start: NDArray[np.int64]

    def check_state(self) -> None:
        """Refuse cells and scores that no calibration gives."""
        start = self.start
        require_numbers(start, "MondrianLearned.start", None)
        require_increasing(start, "MondrianLearned.start")
        whole = start[0] == 0 and start[-1] == self.scores.size and start.size > 1
        require(whole, "MondrianLearned.start", "must divide the scores")
        require_numbers(self.scores, "MondrianLearned.scores", None)
        for own in self.by_cell():
            require_increasing(own, "MondrianLearned.scores")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        cells = n_classes if self.partition is None else self.partition.n_cells
        require(self.start.size == cells + 1, "MondrianLearned.start", f"must have {cells} cells")
        require(self.scores.size == n, "MondrianLearned.scores", f"must be those of {n} samples")

    @classmethod
    def of(
        cls, partition: FittedPartition | None, cells: Codes, n_cells: int, scores: Floats
    ) -> Self:
        """Sort the scores by cell."""
        start = np.concatenate([[0], np.cumsum(np.bincount(cells, minlength=n_cells))])
        return cls(partition, scores[np.lexsort((scores, cells))], start.astype(np.int64))

    @classmethod
    def of_classes(cls, task: Task) -> Self:
        """Sort the calibration scores by the class of the label."""
        outputs = task.calibration
        return cls.of(None, outputs.require_labels("calibrate"), outputs.n_classes, task.scores)

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Numbers of each cell, from those of all samples in the same order."""
        return np.split(values, self.start[1:-1])

    def by_cell(self) -> list[Floats]:
        """Scores of each cell."""
        return self.split(self.scores)

    @property
    def conditions_on(self) -> FittedPartition | None:
        """The partition; None for one by class, which is not known of new samples."""
        return self.partition

    def prepare(self, alpha: float) -> None:
        """Nothing: quantiles are read off the scores."""

    def with_samples(self, added: Task) -> Self | None:
        """Insert the scores of more samples; None where one is in no known cell."""
        cells = self.cells_of(added)
        if (cells < 0).any():
            return None
        joined = np.concatenate([self._own_cells, cells])
        return self.of(
            self.partition, joined, self.start.size - 1, np.concatenate([self.scores, added.scores])
        )

    def without_samples(self, gone: Task) -> Self:
        """Take out the scores of some samples."""
        own = self._own_cells
        places = places_of([own, self.scores], [self.cells_of(gone), gone.scores])
        left, n_cells = np.delete(own, places), self.start.size - 1
        return self.of(self.partition, left, n_cells, np.delete(self.scores, places))

    @property
    def _own_cells(self) -> Codes:
        """Cell of each score."""
        return np.repeat(np.arange(self.start.size - 1), np.diff(self.start))

    def cells_of(self, task: Task) -> Codes:
        """Cells of the samples of a task."""
        if self.partition is None:
            return task.calibration.require_labels("calibrate")
        return self.partition.cells(task.calibration)

    def paper_quantiles(self, alphas: tuple[float, ...]) -> SampleThresholds:
        """The authors' rule: plain quantiles, and empty sets in cells without samples."""
        seen = np.diff(self.start) > 0
        values = np.full((seen.size, len(alphas)), -np.inf)
        for cell, own in enumerate(self.by_cell()):
            if seen[cell]:
                values[cell] = np.quantile(own, 1.0 - np.array(alphas), method="higher")
        status = np.where(seen[:, None], Status.EXACT, Status.UNSEEN_GROUP)
        return SampleThresholds(values, np.broadcast_to(status, values.shape).astype(np.int8))


@final
@storable
@dataclass(eq=False, repr=False)
class MondrianConformal(Predictor):
    """Conformal prediction within each cell of a partition (Mondrian conformal prediction).

    Each cell gets the finite-sample quantile of its own calibration scores, so the sets
    hold the true class with probability 1 - alpha *within every cell*. Cells without
    calibration samples, or with too few for alpha, get full sets, and the status says so.

    Parameters
    ----------
    by : Groups, Bins or "class"
        ``Groups()`` uses the group columns, as the paper's GROUPWISE does, ``Bins()`` a grid
        of statistics, as its NAIVE does (both with the finite-sample quantile, which the
        authors leave out: see `MondrianConformal.paper`). ``"class"`` gives
        each class its own threshold: the set holds y if s(x, y) is at most the threshold of
        y, which guarantees coverage given the true class.
    score, temperature, class_bias, allow_empty, tuning_fraction, random_state
        As in `StandardConformal`. The edges of `Bins` are learned from the tuning part.
    trust : TrustScore, optional
        Fitted trust score, needed where the cells depend on Trust.
    paper_rules : bool
        True follows the authors' code, without a guarantee: thresholds are plain 1 - alpha
        quantiles (the higher of two neighbours) without the finite-sample correction, cells
        without calibration samples get empty sets, and the edges of `Bins` are computed again
        from the samples to predict. See `MondrianConformal.paper`.

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

    by: Partition | Literal["class"] = Groups()
    _: KW_ONLY
    score: Score = APS()
    trust: SupportsTrust | None = None
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float = 0.2
    random_state: Any = 0
    paper_rules: bool = False

    @classmethod
    def paper(cls, trust: SupportsTrust | None = None, **changes: Any) -> Self:
        """Return the paper's NAIVE as the authors run it (see `paper_rules`).

        Ten confidence bins of equal width times four quantile bins of Trust, APS without
        the own mass, a temperature fitted on the calibration samples, empty sets allowed.
        ``MondrianConformal.paper(by=Groups("skin_type"))`` is their GROUPWISE: the same
        rule with groups in the place of bins.

        Examples
        --------
        >>> from trustsets import ModelOutputs
        >>> p = [0.9, 0.8, 0.7, 0.6, 0.5]
        >>> outputs = ModelOutputs(probabilities=np.stack([p, np.subtract(1, p)], axis=1),
        ...                        labels=[1] * 5, groups={"site": ["north"] * 5})
        >>> own = {"by": Groups("site"), "temperature": 1.0}
        >>> groupwise = MondrianConformal.paper(**own).calibrate(outputs)
        >>> groupwise.predict_set(outputs, alpha=0.4).thresholds[0]  # of .5 .6 .7 .8 .9
        np.float64(0.8)
        """
        setting: dict[str, Any] = {
            "by": Bins(nested=False),
            "temperature": "tuning",
            "tuning_fraction": 0.0,
            "allow_empty": True,
            "paper_rules": True,
        }
        return cls(trust=trust, **(setting | changes))

    def _method(self) -> Method:
        if not isinstance(self.by, Partition):
            if self.by != "class":
                raise InputError(f'by must be Groups(...), Bins(...) or "class"; got {self.by!r}.')
            return Method((), self.class_bias, covers_each_class=not self.paper_rules)
        if not self.by.learns:
            return Method((), self.class_bias)
        together = _TOGETHER if self.paper_rules else None
        return Method(("the bin edges",), self.class_bias, batch_dependence=together)

    def _learn(self, task: Task) -> MondrianLearned:
        if not isinstance(self.by, Partition):
            return MondrianLearned.of_classes(task)
        partition: Any = task.fit(self.by)
        cells = partition.cells(task.calibration)
        return MondrianLearned.of(partition, cells, partition.n_cells, task.scores)

    def _could_learn(self, learned: Learned) -> bool:
        if not isinstance(learned, MondrianLearned):
            return False
        if learned.partition is None:
            return self.by == "class"
        return isinstance(self.by, Partition) and self.by.could_become(learned.partition)

    def _thresholds(
        self,
        learned: MondrianLearned,
        outputs: ModelOutputs,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        if self.paper_rules:
            found = learned.paper_quantiles(alphas)
        else:
            found = quantile_table(learned.by_cell(), alphas)
            _warn_small_cells(learned, alphas)
        partition = learned.partition
        if partition is None or not isinstance(self.by, Partition):
            return found.of_classes(len(outputs))
        if self.paper_rules and self.by.learns:
            partition = self.by.fit(outputs)
        cells = partition.cells(outputs)
        unseen = (cells < 0)[:, None]
        return SampleThresholds(
            np.where(unseen, -np.inf if self.paper_rules else np.inf, found.values[cells]),
            np.where(unseen, np.int8(Status.UNSEEN_GROUP), found.status[cells]),
        )

    def _thresholds_without(
        self, learned: MondrianLearned, task: Task, alphas: tuple[float, ...]
    ) -> SampleThresholds:
        if self.paper_rules:
            return super()._thresholds_without(learned, task, alphas)
        if learned.partition is not None:
            cells = learned.partition.cells(task.calibration)
            return SampleThresholds(*quantiles_without(task.scores, cells, alphas))
        # A sample has left the cell of its own class alone.
        codes = task.calibration.require_labels("leave_one_out")
        table = quantile_table(learned.by_cell(), alphas)
        values, status = quantiles_without(task.scores, codes, alphas)
        found = table.of_classes(len(codes))
        own, samples = np.array(found.values), np.arange(len(codes))
        own[samples, codes] = values
        statuses = np.broadcast_to(table.status, (len(codes), *table.status.shape)).copy()
        statuses[samples, codes] = status
        return SampleThresholds(own, statuses.max(axis=1))

    @property
    def cell_counts_(self) -> dict[str, int]:
        """Calibration samples of each class, group or cell, by name.

        Groups of several columns are joined by a comma, cells of a grid are numbered.
        """
        state, learned = self._state(), self._state().learned
        names = [str(name) for name in state.classes.tolist()]
        if isinstance(learned.partition, FittedGroups):
            names = [", ".join(group) for group in learned.partition.combinations]
        elif learned.partition is not None:
            names = [str(cell) for cell in range(learned.partition.n_cells)]
        return dict(zip(names, np.diff(learned.start).tolist(), strict=True))

    def _guarantee(self, state: Calibrated) -> str:
        if self.paper_rules:
            return "none, because the authors' own rule leaves out the finite-sample correction."
        cells = "class" if self.by == "class" else "cell of the partition"
        return (
            "the sets hold the true class with probability at least 1 - alpha within every "
            f"{cells}."
        )


def _warn_small_cells(learned: MondrianLearned, alphas: tuple[float, ...]) -> None:
    sizes = np.diff(learned.start)
    alpha = min(alphas)
    small = sum(1 for size in sizes[sizes > 0].tolist() if conformal_rank(size, alpha) > size)
    if small:
        warnings.warn(
            f"{small} of {np.count_nonzero(sizes)} groups have too few calibration samples for "
            f"alpha={alpha:g} (the smallest has {sizes[sizes > 0].min()}); their sets are "
            "full. Use fewer groups, more data or a larger alpha.",
            TrustSetsWarning,
            stacklevel=4,
        )
