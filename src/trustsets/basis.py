"""Ways to divide samples: what coverage is asked to hold within. Imports statistics and below.

A specification (`Bins`, `Groups`) is a value object without data. Its `fit` looks at
samples and returns a fitted partition that maps any samples to cells.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from trustsets.arrays import Array
from trustsets.errors import InputError
from trustsets.statistics import Confidence, Observed, Statistic, Trust
from trustsets.storage import storable

__all__ = ["Bins", "FittedPartition", "Groups", "Partition"]

Codes = NDArray[np.int64]
Spacing = Literal["uniform", "quantile"]


class FittedPartition(ABC):
    """A rule that puts every sample into at most one of finitely many cells."""

    @abstractmethod
    def cells(self, observed: Observed) -> Codes:
        """Cell of each sample, shape (n,); -1 for a sample that fits none."""

    @property
    @abstractmethod
    def n_cells(self) -> int:
        """Number of cells."""


class Partition(ABC):
    """How to divide samples, before any data is seen."""

    @property
    @abstractmethod
    def learns(self) -> bool:
        """Whether `fit` takes numbers from the data that tuning data should provide."""

    @abstractmethod
    def fit(self, observed: Observed) -> FittedPartition:
        """Learn the cells from samples."""


@final
@storable
@dataclass(frozen=True)
class Groups(Partition):
    """Cells are the values of group columns, or the combinations of several columns' values.

    Parameters
    ----------
    *columns : str
        Names of group columns of the outputs; none means all of them.

    Examples
    --------
    >>> from trustsets.outputs import ModelOutputs
    >>> outputs = ModelOutputs(logits=[[1.0, 0.0]] * 3, groups={"sex": ["f", "m", "f"]})
    >>> Groups("sex").fit(Observed(outputs)).cells(Observed(outputs))
    array([0, 1, 0])
    """

    columns: tuple[str, ...]

    def __init__(self, *columns: str) -> None:
        if any(not isinstance(column, str) for column in columns):
            raise InputError(f"Groups takes names of group columns; got {columns!r}.")
        object.__setattr__(self, "columns", columns)

    def to_state(self) -> dict[str, Any]:
        """What `from_state` needs."""
        return {"columns": self.columns}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Groups":
        """Rebuild from `to_state`."""
        return cls(*state["columns"])

    @property
    def learns(self) -> bool:
        """The names of groups are not learned numbers."""
        return False

    def fit(self, observed: Observed) -> "FittedGroups":
        """Note which combinations of values occur."""
        columns = self.columns or tuple(observed.outputs.groups)
        if not columns:
            raise InputError("Groups needs group columns; pass groups= to ModelOutputs.")
        table = _group_table(observed, columns)
        levels = tuple(np.array(sorted({row[i] for row in table})) for i in range(len(columns)))
        return FittedGroups(columns, levels, tuple(sorted(set(table))))


@final
@storable
@dataclass(frozen=True)
class FittedGroups(FittedPartition):
    """Combinations of group values that were seen, in sorted order."""

    columns: tuple[str, ...]
    levels: tuple[Array, ...]
    combinations: tuple[tuple[str, ...], ...]

    def cells(self, observed: Observed) -> Codes:
        """Cell of each sample; -1 for a combination that was not seen."""
        place = {combination: code for code, combination in enumerate(self.combinations)}
        table = _group_table(observed, self.columns)
        return np.array([place.get(row, -1) for row in table], dtype=np.int64)

    @property
    def n_cells(self) -> int:
        """Number of combinations seen."""
        return len(self.combinations)


def _group_table(observed: Observed, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    """One tuple of values per sample; values of any type are told apart by their text."""
    groups = observed.outputs.groups
    for column in columns:
        if column not in groups:
            raise InputError(
                f"the outputs have no group column {column!r}; they have {list(groups)}. "
                "Pass groups= to ModelOutputs."
            )
    texts = [groups[column].astype(str).tolist() for column in columns]
    return list(zip(*texts, strict=True))


@final
@storable
@dataclass(frozen=True)
class Bins(Partition):
    """Cells of a grid over statistics, by default Conf x Trust as in the paper.

    Parameters
    ----------
    of : tuple of Statistic
        What to bin, outermost first.
    counts : tuple of int
        Number of bins of each statistic.
    spacing : tuple of {"uniform", "quantile"}
        Equal widths between the smallest and the largest value, or equal shares.
    nested : bool
        Divide each bin of the first statistic by its own quantiles of the second (the
        paper's text), or use the same edges everywhere (the authors' code).
    edges : tuple of sequences, optional
        Inner edges given by hand, one increasing sequence per statistic; nothing is
        learned then, and `counts`, `spacing` and `nested` do not matter.

    Notes
    -----
    A value on an edge belongs to the bin above it; values outside the range seen while
    fitting belong to the first or last bin.

    Examples
    --------
    >>> from trustsets.outputs import ModelOutputs
    >>> seen = Observed(ModelOutputs(probabilities=[[0.6, 0.4], [0.9, 0.1], [1.0, 0.0]]))
    >>> Bins(of=(Confidence(),), counts=(2,), spacing=("uniform",)).fit(seen).cells(seen)
    array([0, 1, 1])
    """

    of: tuple[Statistic, ...] = (Confidence(), Trust())
    counts: tuple[int, ...] = (10, 4)
    spacing: tuple[Spacing, ...] = ("uniform", "quantile")
    nested: bool = True
    edges: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        if not self.of or not all(isinstance(item, Statistic) for item in self.of):
            raise InputError(f"of must be a non-empty tuple of statistics; got {self.of!r}.")
        if self.edges is not None:
            object.__setattr__(self, "edges", _check_edges(self.edges, len(self.of)))
            return
        if not len(self.of) == len(self.counts) == len(self.spacing):
            raise InputError(
                "of, counts and spacing must have equal lengths; got "
                f"{len(self.of)}, {len(self.counts)} and {len(self.spacing)}."
            )
        if any(count < 1 for count in self.counts):
            raise InputError(f"counts must be 1 or more; got {self.counts}.")
        if set(self.spacing) - {"uniform", "quantile"}:
            raise InputError(f'spacing takes "uniform" or "quantile"; got {self.spacing}.')

    @property
    def learns(self) -> bool:
        """Edges are learned unless given by hand."""
        return self.edges is None

    def fit(self, observed: Observed) -> "FittedBins":
        """Place the edges."""
        if self.edges is not None:
            return FittedBins(self.of, tuple(np.array([cuts]) for cuts in self.edges))
        cells = np.zeros(len(observed.outputs), dtype=np.int64)
        n_cells, cuts = 1, []
        for item, count, spacing in zip(self.of, self.counts, self.spacing, strict=True):
            values = item.values(observed)
            within = cells if self.nested and spacing == "quantile" else np.zeros_like(cells)
            cuts.append(_cuts(values, within, n_cells if within is cells else 1, count, spacing))
            cells = _descend(cells, values, cuts[-1])
            n_cells *= count
        return FittedBins(self.of, tuple(cuts))


@final
@storable
@dataclass(frozen=True)
class FittedBins(FittedPartition):
    """Inner edges of each statistic: shape (1, count - 1), or one row per outer cell."""

    of: tuple[Statistic, ...]
    cuts: tuple[NDArray[np.float64], ...]

    def cells(self, observed: Observed) -> Codes:
        """Cell of each sample."""
        cells = np.zeros(len(observed.outputs), dtype=np.int64)
        for item, cuts in zip(self.of, self.cuts, strict=True):
            cells = _descend(cells, item.values(observed), cuts)
        return cells

    @property
    def n_cells(self) -> int:
        """Number of grid cells."""
        return int(np.prod([cuts.shape[1] + 1 for cuts in self.cuts]))


def _descend(cells: Codes, values: NDArray[np.float64], cuts: NDArray[np.float64]) -> Codes:
    """Divide each cell by the edges of one more statistic."""
    own = cuts[cells] if cuts.shape[0] > 1 else cuts
    inner: Codes = cells * (cuts.shape[1] + 1) + np.count_nonzero(values[:, None] >= own, axis=1)
    return inner


def _cuts(
    values: NDArray[np.float64], cells: Codes, n_cells: int, count: int, spacing: Spacing
) -> NDArray[np.float64]:
    """Inner edges within each cell; an empty cell gets those of all samples."""
    steps = np.arange(1, count) / count
    if spacing == "uniform":
        return np.array([values.min() + steps * (values.max() - values.min())])
    everywhere = np.quantile(values, steps)
    rows = [
        np.quantile(values[cells == cell], steps) if (cells == cell).any() else everywhere
        for cell in range(n_cells)
    ]
    return np.array(rows)


def _check_edges(edges: Any, n: int) -> tuple[tuple[float, ...], ...]:
    if len(edges) != n:
        raise InputError(f"edges must hold one sequence for each of the {n} statistics.")
    checked = tuple(tuple(float(edge) for edge in cuts) for cuts in edges)
    if any(np.any(np.diff(cuts) <= 0.0) or not np.isfinite(cuts).all() for cuts in checked):
        raise InputError(f"edges must be finite and increasing; got {edges!r}.")
    return checked
