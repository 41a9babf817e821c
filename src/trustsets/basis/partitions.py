"""Function classes of indicators: of groups, and of bins of statistics; both are partitions too."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats, group_column, texts_of
from trustsets._storage import require, require_numbers, storable
from trustsets.basis.base import FittedPartition, Partition
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, FittedStatistic, Statistic, Trust

__all__ = ["Bins", "CustomGroups", "FittedBins", "FittedGroups", "Groups"]

Spacing = Literal["uniform", "quantile"]


@final
@storable
@dataclass(frozen=True)
class Groups(Partition):
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
        calibration samples has an infinite threshold. With 1 or more, `ConditionalConformal`
        makes two more fits in which the coefficient of each value has this penalty, in units
        of calibration samples. Their thresholds bound the others: from below those of the fit
        at alpha, from above those of the fit at alpha / 4 with twice the penalty. Thresholds
        are then finite for groups of any size, and the coverage of a value with m expected
        calibration samples can be lower than 1 - alpha by at most ``penalty / m``. Add
        `Intercept()`, or another class that contains the constants, to keep marginal
        coverage. Partitions ignore the penalty.

    Examples
    --------
    >>> from trustsets.outputs import ModelOutputs
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
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "penalty", float(penalty))

    def to_state(self) -> dict[str, Any]:
        """What `from_state` needs."""
        return {"columns": self.columns, "penalty": self.penalty}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Groups":
        """Rebuild from `to_state`."""
        return cls(*state["columns"], penalty=state.get("penalty", 0.0))

    def fit(self, outputs: ModelOutputs) -> "FittedGroups":
        """Note which combinations of values occur."""
        columns = self.columns or tuple(outputs.groups)
        if not columns:
            raise InputError("Groups needs group columns; pass groups= to ModelOutputs.")
        table = _group_table(outputs, columns)
        values = tuple(tuple(sorted(set(texts))) for texts in zip(*table, strict=True))
        return FittedGroups(columns, values, tuple(sorted(set(table))), self.penalty)


@final
@storable
@dataclass(frozen=True)
class FittedGroups(FittedPartition):
    """Values of each column, and combinations of them, that were seen; in sorted order."""

    columns: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    combinations: tuple[tuple[str, ...], ...]
    penalty: float = 0.0

    def check_state(self) -> None:
        """Refuse values and combinations that no fit gives."""
        n = len(self.columns)
        require(n and len(self.values) == n, "FittedGroups.values", "must be those of each column")
        lists: list[list[Any]] = [list(items) for items in (*self.values, self.combinations)]
        for items in lists:
            listed = len(items) > 0 and items == sorted(set(items))
            require(listed, "FittedGroups.values", "must be distinct and sorted")
        consistent = all(
            len(row) == n and all(text in seen for text, seen in zip(row, self.values, strict=True))
            for row in self.combinations
        )
        require(consistent, "FittedGroups.combinations", "must be made of the values")
        allowed = self.penalty == 0.0 or 1.0 <= self.penalty < np.inf
        require(allowed, "FittedGroups.penalty", "must be 0, or 1 or more")

    @property
    def width(self) -> int:
        """Values of each column, and one for those never seen."""
        return sum(len(values) + 1 for values in self.values)

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """The group columns."""
        return self.columns

    @property
    def uses_features(self) -> bool:
        """Groups alone decide."""
        return False

    def cells(self, outputs: ModelOutputs) -> Codes:
        """Cell of each sample; -1 for a combination that was not seen."""
        code_of = {combination: code for code, combination in enumerate(self.combinations)}
        table = _group_table(outputs, self.columns)
        return np.array([code_of.get(row, -1) for row in table], dtype=np.int64)

    @property
    def n_cells(self) -> int:
        """Number of combinations seen."""
        return len(self.combinations)

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return an indicator of each value of each column, and of values never seen.

        The last is zero on all samples of the fit: a sample of an unknown group has a basis
        function that no calibration sample has, and the fit reports it as such.
        """
        columns = list(zip(*_group_table(outputs, self.columns), strict=True))
        parts = []
        for texts, values in zip(columns, self.values, strict=True):
            code_of = {value: code for code, value in enumerate(values)}
            codes = [code_of.get(text, len(values)) for text in texts]
            parts.append(_one_hot(codes, len(values) + 1))
        return np.hstack(parts)

    def unseen_groups(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Samples with a value of some column that was never seen."""
        columns = zip(*_group_table(outputs, self.columns), strict=True)
        unseen = np.zeros(len(outputs), dtype=bool)
        for texts, values in zip(columns, self.values, strict=True):
            unseen |= ~np.isin(np.array(texts, dtype=object), np.array(values, dtype=object))
        return unseen

    def bounding_rows(self, outputs: ModelOutputs | None) -> Floats:
        """Return one row for each coefficient, those of values never seen included."""
        return self.penalty * np.eye(self.width)[: self.width if self.penalty else 0]

    @property
    def description(self) -> str:
        """The functions in words."""
        return f"combination of indicators of the groups by {', '.join(self.columns)}"


def _one_hot(codes: Any, width: int) -> Floats:
    return np.asarray(np.eye(width)[np.asarray(codes)])


def _group_table(outputs: ModelOutputs, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    """One tuple of texts per sample."""
    groups = outputs.groups
    for column in columns:
        if column not in groups:
            raise InputError(
                f"the outputs have no group column {column!r}; they have {list(groups)}. "
                "Pass groups= to ModelOutputs."
            )
    texts = [texts_of(groups[column]) for column in columns]
    return list(zip(*texts, strict=True))


@final
@storable
@dataclass(frozen=True)
class CustomGroups(Partition):
    """Groups that a function of `ModelOutputs` returns, one value per sample.

    The group of a sample must depend on that sample alone. A predictor that uses it is saved with
    the name of the function, as `Custom` describes.

    Examples
    --------
    >>> groups = CustomGroups(lambda outputs: outputs.confidence > 0.7)
    >>> outputs = ModelOutputs(probabilities=[[0.6, 0.4], [0.9, 0.1]])
    >>> groups.fit(outputs).cells(outputs)
    array([0, 1])
    """

    learns = False

    function: Callable[[ModelOutputs], Any]

    def fit(self, outputs: ModelOutputs) -> "FittedCustomGroups":
        """Note which groups occur."""
        return FittedCustomGroups(self, tuple(sorted(set(self.texts(outputs)))))

    def texts(self, outputs: ModelOutputs) -> list[str]:
        """Group of each sample as a text."""
        return texts_of(group_column(self.function(outputs), "what function returns", len(outputs)))


@final
@storable
@dataclass(frozen=True)
class FittedCustomGroups(FittedPartition):
    """The groups that were seen, in sorted order."""

    groups: CustomGroups
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """The groups, and one function for those never seen."""
        return len(self.values) + 1

    @property
    def n_cells(self) -> int:
        """Number of groups seen."""
        return len(self.values)

    def cells(self, outputs: ModelOutputs) -> Codes:
        """Group of each sample; -1 for one that was not seen."""
        codes = {text: code for code, text in enumerate(self.values)}
        return np.array([codes.get(text, -1) for text in self.groups.texts(outputs)], np.int64)

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return an indicator of each group, and of groups never seen."""
        return _one_hot(self.cells(outputs), self.width)

    def unseen_groups(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Samples of groups never seen."""
        return self.cells(outputs) < 0

    @property
    def description(self) -> str:
        """The functions in words."""
        return "combination of indicators of your own groups"


@final
@storable
@dataclass(frozen=True, init=False, repr=False)
class Bins(Partition):
    """Cells of a grid of statistics, by default of Conf and Trust (Corollary 1).

    As a function class it has an indicator of each cell, which guarantees coverage in every cell.
    ``Bins(Confidence()) + Bins(Trust())`` has an indicator of each bin of either statistic:
    coverage in every bin of Conf and in every bin of Trust. With d indicators and n
    calibration samples, coverage in a cell B is at least 1 - alpha and, if scores are continuous,
    at most 1 - alpha + d / ((n + 1) P(B)).

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
        `counts`, `spacing` and `nested` have no effect.

    Notes
    -----
    A value on an edge belongs to the bin above it; values outside the range seen while
    fitting belong to the first or last bin.

    Examples
    --------
    >>> from trustsets.outputs import ModelOutputs
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
        numbers = (counts,) * len(of) if isinstance(counts, int | np.integer) else tuple(counts)
        spacings = (spacing,) * len(of) if isinstance(spacing, str) else tuple(spacing)
        if edges is not None:
            edges = _check_edges(edges, len(of))
        elif not len(of) == len(numbers) == len(spacings):
            raise InputError(
                "counts and spacing must be single values, or have one for each statistic; got "
                f"{len(numbers)} and {len(spacings)} for {len(of)}."
            )
        if any(count < 1 for count in numbers):
            raise InputError(f"counts must be 1 or more; got {counts}.")
        if set(spacings) - {"uniform", "quantile"}:
            raise InputError(f'spacing takes "uniform" or "quantile"; got {spacing!r}.')
        vars(self).update(of=of, counts=numbers, spacing=spacings, nested=bool(nested), edges=edges)

    def __repr__(self) -> str:
        grid = f"counts={self.counts}, spacing={self.spacing}, nested={self.nested}"
        names = ", ".join(map(repr, self.of))
        return f"Bins({names}, {grid if self.edges is None else f'edges={self.edges}'})"

    def to_state(self) -> dict[str, Any]:
        """What `from_state` needs."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Bins":
        """Rebuild from `to_state`."""
        return cls(*state.pop("of"), **state)

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
    """Inner edges of each statistic.

    `cuts` divide the cells of the grid: one row, or a row for each cell that the statistics before
    it form.
    """

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

    @property
    def width(self) -> int:
        """Number of cells."""
        return self.n_cells

    def cells(self, outputs: ModelOutputs) -> Codes:
        """Cell of the grid that each sample is in."""
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
        return _one_hot(self.cells(outputs), self.n_cells)

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
