"""Function classes of indicators: of groups, of classes, and of bins of statistics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, final, get_type_hints

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats, group_column, texts_of
from trustsets._checks import check_least, check_not_negative
from trustsets._storage import require, require_numbers, storable
from trustsets.basis.base import Basis, FittedBasis, FittedPartition, Partition, penalty_on
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, FittedStatistic, Statistic, Trust

__all__ = ["Bins", "Classes", "CustomGroups", "FittedBins", "FittedGroups", "Groups"]

Spacing = Literal["uniform", "quantile"]


class _Listing(Partition):
    """A partition whose constructor takes the items of its first field one by one."""

    def to_state(self) -> dict[str, Any]:
        """What `from_state` needs."""
        return {name: getattr(self, name) for name in get_type_hints(type(self))}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        first, *others = get_type_hints(cls)
        return cls(*state[first], **{name: state[name] for name in others})


@final
@storable
@dataclass(frozen=True)
class Groups(_Listing):
    """Indicators of the values of group columns.

    As a function class, the values of several columns overlap: coverage holds for each
    value of each column. As a partition (in `MondrianConformal`), the cells are the
    combinations of values. Values of any type are told apart by their text.

    Parameters
    ----------
    *columns : str
        Names of group columns of the outputs; none means all of them.
    penalty : float
        With 0 (default), coverage is exact for every value, and a value with too few
        calibration samples has an infinite threshold. With 1 or more, in units of calibration
        samples, `ConditionalConformal` bounds the thresholds by those of two more fits, in which
        the coefficients of values have this penalty: from below at alpha, from above at alpha / 4
        and twice the penalty. Thresholds are then finite for groups of any size, and the coverage
        of a value with m expected calibration samples can be lower than 1 - alpha by at most
        ``penalty / m``. Add `Intercept()`, or another class that contains the constants, to keep
        marginal coverage. Partitions ignore the penalty.

    Examples
    --------
    >>> outputs = ModelOutputs(logits=[[1.0, 0.0]] * 3, groups={"sex": ["f", "m", "f"]})
    >>> Groups("sex").fit(outputs).cells(outputs)
    array([0, 1, 0])
    """

    columns: tuple[str, ...]
    penalty: float

    # The names of groups are no numbers learned from the samples.
    learns = False

    def __init__(self, *columns: str, penalty: float = 0.0) -> None:
        if any(not isinstance(column, str) for column in columns):
            raise InputError(f"Groups takes names of group columns; got {columns!r}.")
        if not (np.isfinite(penalty) and (penalty == 0.0 or penalty >= 1.0)):
            # A penalty of less than one sample cannot balance the new sample in the fit: the
            # threshold of a group without calibration samples would be infinite again.
            raise InputError(f"penalty must be 0, or finite and 1 or more; got {penalty}.")
        vars(self).update(columns=columns, penalty=float(penalty))

    def fit(self, outputs: ModelOutputs) -> "FittedGroups":
        """Note which combinations of values occur."""
        columns = self.columns or tuple(outputs.groups)
        if not columns:
            raise InputError("Groups needs group columns; pass groups= to ModelOutputs.")
        return FittedGroups.seen_in(outputs, columns, None, self.penalty)


@final
@storable
@dataclass(frozen=True)
class CustomGroups(Partition):
    """Groups that a function of `ModelOutputs` returns, one value per sample; see `Custom`."""

    learns = False

    function: Callable[[ModelOutputs], Any]

    def fit(self, outputs: ModelOutputs) -> "FittedGroups":
        """Note which groups occur."""
        return FittedGroups.seen_in(outputs, ("group",), self, 0.0)


@final
@storable
@dataclass(frozen=True)
class FittedGroups(FittedPartition):
    """Values of each column, and combinations of them, that were seen; in sorted order.

    Columns are those of the outputs, or the one that a function returns.
    """

    columns: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    combinations: tuple[tuple[str, ...], ...]
    custom: CustomGroups | None = None
    penalty: float = 0.0

    @classmethod
    def seen_in(
        cls,
        outputs: ModelOutputs,
        columns: tuple[str, ...],
        custom: CustomGroups | None,
        penalty: float,
    ) -> "FittedGroups":
        """Groups of these samples."""
        texts = _texts(outputs, columns, custom)
        values = tuple(tuple(sorted(set(column))) for column in texts)
        combinations = tuple(sorted(set(zip(*texts, strict=True))))
        return cls(columns, values, combinations, custom, penalty)

    def check_state(self) -> None:
        """Refuse lists of other lengths."""
        n = len(self.columns)
        require(n and len(self.values) == n, "FittedGroups.values", "must be those of each column")
        complete = all(len(row) == n for row in self.combinations)
        require(complete, "FittedGroups.combinations", "must have a value of each column")

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """The group columns of the outputs."""
        return self.columns if self.custom is None else ()

    @property
    def uses_features(self) -> bool:
        """A function may."""
        return self.custom is not None

    @property
    def n_cells(self) -> int:
        """Number of combinations seen."""
        return len(self.combinations)

    def cells(self, outputs: ModelOutputs) -> Codes:
        """Cell of each sample; -1 for a combination that was not seen."""
        code_of = {combination: code for code, combination in enumerate(self.combinations)}
        table = zip(*_texts(outputs, self.columns, self.custom), strict=True)
        return np.array([code_of.get(row, -1) for row in table], dtype=np.int64)

    def _codes(self, outputs: ModelOutputs) -> list[Codes]:
        """Number of each sample's value by column; that past the last for one never seen."""
        codes = []
        texts = _texts(outputs, self.columns, self.custom)
        for column, values in zip(texts, self.values, strict=True):
            code_of = {value: code for code, value in enumerate(values)}
            codes.append(np.array([code_of.get(text, len(values)) for text in column], np.int64))
        return codes

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return an indicator of each value of each column, and of values never seen.

        The last is zero on all samples of the fit: a sample of an unknown group has a basis
        function that no calibration sample has, and the fit reports it as such.
        """
        widths = [len(values) + 1 for values in self.values]
        return np.hstack(list(map(one_hot, self._codes(outputs), widths)))

    def unseen_groups(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Samples with a value of some column that was never seen."""
        numbers = map(len, self.values)
        unseen = [codes == n for codes, n in zip(self._codes(outputs), numbers, strict=True)]
        return np.asarray(np.any(unseen, axis=0))

    def bounding_rows(self, outputs: ModelOutputs) -> Floats:
        """Return one row for each coefficient, those of values never seen included."""
        width = sum(len(values) + 1 for values in self.values)
        return penalty_on(np.ones(width, dtype=bool), self.penalty)

    @property
    def description(self) -> str:
        """The functions in words."""
        groups = "your own groups" if self.custom else f"the groups by {', '.join(self.columns)}"
        return f"combination of indicators of {groups}"


@final
@storable
@dataclass(frozen=True)
class Classes(Basis):
    """One indicator for each candidate class, or cluster of classes: class-conditional coverage.

    Parameters
    ----------
    penalty : float
        What a unit of each coefficient costs in the fit, in calibration samples. With 0
        (default) coverage is at least 1 - alpha given each class, and a class with too few
        calibration samples for that is in every set. With a penalty c, coverage given a class
        with m expected calibration samples can be lower than 1 - alpha by at most ``c / m``, and
        sets are smaller; from 1 on, no class is in every set for want of samples.
    clusters : sequence of int, optional
        Number of the cluster of each class, from 0 on. Classes of a cluster share an indicator,
        so coverage holds given the cluster. They must not come from the calibration samples.

    Examples
    --------
    >>> outputs = ModelOutputs(logits=[[1.0, 0.0, 0.0]], labels=[2])
    >>> Classes().fit(outputs).design(outputs)
    array([[0., 0., 1.]])
    >>> Classes(clusters=[0, 1, 1]).fit(outputs).design(outputs)
    array([[0., 1.]])
    """

    penalty: float = 0.0
    clusters: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_not_negative(penalty=self.penalty)
        if self.clusters is not None:
            clusters = tuple(int(number) for number in self.clusters)
            object.__setattr__(self, "clusters", clusters)
            check_least(0, clusters=min(clusters, default=-1))

    learns = False

    def fit(self, outputs: ModelOutputs) -> "FittedClasses":
        """Take the classes of the outputs."""
        clusters = tuple(self.clusters or range(outputs.n_classes))
        if len(clusters) != outputs.n_classes:
            raise InputError(
                f"clusters must have a number for each of {outputs.n_classes} classes, "
                f"but has {len(clusters)}."
            )
        return FittedClasses(clusters, self.penalty)


@final
@storable
@dataclass(frozen=True)
class FittedClasses(FittedBasis):
    """Functions of the candidate class alone."""

    clusters: tuple[int, ...]
    penalty: float

    uses_label = True
    uses_features = False
    description = "function of the label"

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return the indicators at the samples' own labels."""
        return self.design_for(outputs, outputs.require_labels("a basis of the label"))

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Return the indicators at these labels."""
        return one_hot(np.array(self.clusters)[codes], max(self.clusters) + 1)

    def penalty_rows(self, outputs: ModelOutputs) -> Floats:
        """Return the penalty of each coefficient."""
        return penalty_on(np.ones(max(self.clusters) + 1, dtype=bool), self.penalty)


def one_hot(codes: Codes, width: int) -> Floats:
    """Indicators of codes below `width`."""
    return np.equal.outer(codes, np.arange(width)).astype(np.float64)


def _texts(
    outputs: ModelOutputs, columns: tuple[str, ...], custom: CustomGroups | None
) -> list[list[str]]:
    """Groups of the samples as texts, one list for each column."""
    if custom is not None:
        groups = custom.function(outputs)
        return [texts_of(group_column(groups, "what function returns", len(outputs)))]
    for column in columns:
        if column not in outputs.groups:
            raise InputError(
                f"the outputs have no group column {column!r}; they have {list(outputs.groups)}. "
                "Pass groups= to ModelOutputs."
            )
    return [texts_of(outputs.groups[column]) for column in columns]


@final
@storable
@dataclass(frozen=True, init=False, repr=False)
class Bins(_Listing):
    """Cells of a grid of statistics, by default of Conf and Trust (Corollary 1).

    As a function class it has an indicator of each cell: with d of them and n calibration samples,
    coverage in a cell B is at least 1 - alpha and, if scores are continuous, at most
    1 - alpha + d / ((n + 1) P(B)). ``Bins(Confidence()) + Bins(Trust())`` has coverage in
    every bin of either statistic.

    Parameters
    ----------
    *of : Statistic
        The statistics to bin, the outermost first; none means `Confidence()` and `Trust()`.
    counts : int or tuple of int
        Number of bins of each statistic.
    spacing : {"uniform", "quantile"} or tuple of these
        Equal widths between the smallest and the largest value, or equal shares.
    nested : bool
        Divide each bin of the first statistic by its own quantiles of the second (the paper's
        text), or use the same edges everywhere (the authors' code).
    edges : tuple of sequences, optional
        Inner edges, one increasing sequence per statistic. Nothing is learned then, and
        `counts`, `spacing` and `nested` have no effect. A value on an edge belongs to the bin
        above it.

    Examples
    --------
    >>> outputs = ModelOutputs(probabilities=[[0.6, 0.4], [0.9, 0.1], [1.0, 0.0]])
    >>> Bins(Confidence(), counts=2, spacing="uniform").fit(outputs).cells(outputs)
    array([0, 1, 1])
    """

    of: tuple[Statistic, ...]
    counts: tuple[int, ...]
    spacing: tuple[Spacing, ...]
    nested: bool
    edges: tuple[tuple[float, ...], ...] | None

    def __init__(
        self,
        *of: Statistic,
        counts: int | tuple[int, ...] = 6,
        spacing: Spacing | tuple[Spacing, ...] = "quantile",
        nested: bool = True,
        edges: Any = None,
    ) -> None:
        of = of or (Confidence(), Trust())
        if not all(isinstance(item, Statistic) for item in of):
            raise InputError(f"Bins takes statistics such as Confidence(); got {of!r}.")
        numbers = tuple(counts) if isinstance(counts, tuple | list) else (counts,) * len(of)
        spacings = tuple(spacing) if isinstance(spacing, tuple | list) else (spacing,) * len(of)
        if edges is not None:
            edges = _check_edges(edges, len(of))
        elif not len(of) == len(numbers) == len(spacings):
            raise InputError(
                "counts and spacing must be single values, or have one for each statistic; got "
                f"{len(numbers)} and {len(spacings)} for {len(of)}."
            )
        if not all(isinstance(count, int | np.integer) and count >= 1 for count in numbers):
            raise InputError(f"counts must be whole numbers, 1 or more; got {counts!r}.")
        if set(spacings) - {"uniform", "quantile"}:
            raise InputError(f'spacing takes "uniform" or "quantile"; got {spacing!r}.')
        vars(self).update(of=of, counts=numbers, spacing=spacings, nested=bool(nested), edges=edges)

    def __repr__(self) -> str:
        # Code that makes it again, as the live page shows it.
        grid = f"counts={self.counts}, spacing={self.spacing}, nested={self.nested}"
        names = ", ".join(map(repr, self.of))
        return f"Bins({names}, {grid if self.edges is None else f'edges={self.edges}'})"

    @property
    def learns(self) -> bool:
        """Edges are learned unless given by hand."""
        return self.edges is None or any(item.learns for item in self.of)

    def fit(self, outputs: ModelOutputs) -> "FittedBins":
        """Place the edges."""
        of = tuple(item.fit(outputs) for item in self.of)
        if self.edges is not None:
            return FittedBins(of, tuple(np.array([cuts]) for cuts in self.edges))
        cells = np.zeros(len(outputs), dtype=np.int64)
        n_cells, cuts = 1, []
        for item, count, spacing in zip(of, self.counts, self.spacing, strict=True):
            values = item.values(outputs)
            if self.nested and spacing == "quantile":
                cuts.append(_nested_edges(values, cells, n_cells, count))
            else:
                cuts.append(_edges(values, count, spacing)[None, :])
            cells = _descend(cells, values, cuts[-1])
            n_cells *= count
        return FittedBins(of, tuple(cuts))


@final
@storable
@dataclass(frozen=True)
class FittedBins(FittedPartition):
    """Inner edges of each statistic: one row, or a row for each cell of the statistics before."""

    of: tuple[FittedStatistic, ...]
    cuts: tuple[Floats, ...]

    def check_state(self) -> None:
        """Refuse edges of other shapes, for `storage`."""
        require(len(self.of) == len(self.cuts) > 0, "FittedBins.cuts", "must be those of each")
        n_cells = 1
        for cuts in self.cuts:
            require(cuts.ndim == 2, "FittedBins.cuts", "must have two dimensions")
            count = cuts.shape[1]
            require_numbers(cuts, "FittedBins.cuts", 1 if len(cuts) == 1 else n_cells, count)
            n_cells *= count + 1

    def cells(self, outputs: ModelOutputs) -> Codes:
        """Cell of each sample."""
        cells = np.zeros(len(outputs), dtype=np.int64)
        for item, cuts in zip(self.of, self.cuts, strict=True):
            cells = _descend(cells, item.values(outputs), cuts)
        return cells

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return int(np.prod([cuts.shape[1] + 1 for cuts in self.cuts]))

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return the indicators of all cells."""
        return one_hot(self.cells(outputs), self.n_cells)

    @property
    def description(self) -> str:
        """The functions in words."""
        names = " x ".join(item.statistic.name for item in self.of)
        return f"combination of indicators of cells of {names}"


def _descend(cells: Codes, values: Floats, cuts: Floats) -> Codes:
    """Divide each cell by the edges of one more statistic."""
    edges = cuts[cells] if cuts.shape[0] > 1 else cuts
    inner: Codes = cells * (cuts.shape[1] + 1) + np.count_nonzero(values[:, None] >= edges, axis=1)
    return inner


def _edges(values: Floats, count: int, spacing: Spacing) -> Floats:
    """Inner edges over all samples."""
    steps = np.arange(1, count) / count
    if spacing == "uniform":
        return np.asarray(values.min() + steps * (values.max() - values.min()))
    return np.asarray(np.quantile(values, steps))


def _nested_edges(values: Floats, cells: Codes, n_cells: int, count: int) -> Floats:
    """Quantiles within each cell; an empty cell gets those of all samples."""
    groups = [values[cells == cell] for cell in range(n_cells)]
    return np.array([_edges(part if part.size else values, count, "quantile") for part in groups])


def _check_edges(edges: Any, n: int) -> tuple[tuple[float, ...], ...]:
    if len(edges) != n:
        raise InputError(f"edges must hold one sequence for each of the {n} statistics.")
    checked = tuple(tuple(float(edge) for edge in cuts) for cuts in edges)
    if any(np.any(np.diff(cuts) <= 0.0) or not np.isfinite(cuts).all() for cuts in checked):
        raise InputError(f"edges must be finite and increasing; got {edges!r}.")
    return checked
