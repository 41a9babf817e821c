"""MONDRIAN: a threshold of its own for every group, cell of statistics, or class."""

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Self, final

import numpy as np

from trustsets._arrays import Alphas, Codes, Floats
from trustsets._quantiles import conformal_rank
from trustsets._storage import require, require_numbers, storable
from trustsets.basis import Bins, CustomGroups, FittedGroups, FittedPartition, Groups, Partition
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import ModelOutputs, SupportsTrust
from trustsets.predictors.calibration import Calibration
from trustsets.predictors.predictor import Predictor
from trustsets.predictors.quantiles import QuantileFit
from trustsets.predictors.standard import CellPredictor
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score
from trustsets.statistics import Confidence, Trust
from trustsets.status import Status, Thresholds

__all__ = ["FittedCells", "MondrianConformal"]


@final
@storable
@dataclass(frozen=True, eq=False)
class FittedCells:
    """The fitted partition, and the cell of each calibration sample, shape (n,)."""

    partition: FittedPartition
    cells: Codes

    def check_belongs(self, state: Calibration) -> None:
        """Refuse cells that the partition or the samples do not have, for `storage`."""
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

    Each cell gets the finite-sample quantile of its own calibration scores, so the sets contain the
    true class with probability 1 - alpha *within every cell*: coverage is group-conditional. Cells
    without calibration samples, or with too few for alpha, get full sets, and the status says so.

    Parameters
    ----------
    by : Groups, Bins, function or "class"
        ``Groups()`` uses the group columns, as the paper's GROUPWISE does, ``Bins()`` a grid of
        statistics, as its NAIVE does (both with the finite-sample quantile, which the authors leave
        out: see `MondrianConformal.paper`). A function of `ModelOutputs` returns the group of each
        sample. ``"class"`` gives each class its own threshold: the set contains y if s(x, y) is at
        most the threshold of y, which makes coverage class-conditional.
    score, temperature, class_bias, allow_empty, tuning_fraction, random_state
        As in `StandardConformal`. The edges of `Bins` are learned from the tuning samples.
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
        allowed. ``MondrianConformal.paper(by=Groups("skin_type"))`` is their GROUPWISE: the same
        rule with groups in the place of bins.

        Parameters
        ----------
        **changes
            Any parameters of the constructor that should differ, `trust` among them.

        Examples
        --------
        >>> from trustsets import ModelOutputs
        >>> p = [0.9, 0.8, 0.7, 0.6, 0.5]
        >>> outputs = ModelOutputs(probabilities=np.stack([p, np.subtract(1, p)], axis=1),
        ...                        labels=[1] * 5, classes=[0, 1], groups={"site": ["north"] * 5})
        >>> groupwise = MondrianConformal.paper(by=Groups("site"), temperature=1.0)
        >>> groupwise.calibrate(outputs).predict_set(outputs, alpha=0.4).thresholds[0]
        np.float64(0.8)
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
        if not isinstance(self.by, Partition) and self.by != "class" and not callable(self.by):
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
        """Calibration samples of each class, group or cell, by name.

        Groups of several columns are joined by a comma, cells of a grid are numbered.
        """
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
        partition = self.conditions_on
        if partition is None or self._partition is None:
            return None
        if self.paper_rules and self._partition.learns:
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

    def _exact_p_values(self, outputs: ModelOutputs, scores: Floats) -> Floats | None:
        return None if self.paper_rules else super()._exact_p_values(outputs, scores)

    def _leave_one_out_thresholds(self, scores: Floats, alphas: Alphas) -> Thresholds:
        if self.paper_rules:
            return Predictor._leave_one_out_thresholds(self, scores, alphas)
        return super()._leave_one_out_thresholds(scores, alphas)

    def check_weights(self) -> None:
        """The authors' rule has no weights."""
        if self.paper_rules:
            Predictor.check_weights(self)

    def quantile_fits(
        self, outputs: ModelOutputs, alpha: float, code: int | None
    ) -> tuple[list[QuantileFit], Codes]:
        """The fit of the constant function over the samples of one cell."""
        frame = Predictor if self.paper_rules else CellPredictor
        return frame.quantile_fits(self, outputs, alpha, code)

    def _warn_about_small_cells(self, alpha: float) -> None:
        sizes = [len(members) for members in self._members if len(members)]
        small = sum(conformal_rank(size, alpha) > size for size in sizes)
        if not small:
            return
        what, effect = "groups", "their sets are full"
        if self.is_class_conditional:
            what, effect = "classes", "these classes are in every set"
        warnings.warn(
            f"{small} of {len(sizes)} {what} have too few calibration samples for alpha={alpha:g} "
            f"(the smallest has {min(sizes)}); {effect}. Use fewer {what}, more data or a larger "
            "alpha.",
            TrustSetsWarning,
            stacklevel=4,
        )

    def _guarantee(self) -> str:
        if self.paper_rules:
            return "none, because the authors' own rule leaves out the finite-sample correction."
        by_class = self._partition is None
        what = "class (class-conditional)" if by_class else "cell (group-conditional)"
        return (
            "the sets contain the true class with probability at least 1 - alpha within every "
            f"{what}."
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
