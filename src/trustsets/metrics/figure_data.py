"""What figures and reports show, as plain arrays that can be tested without drawing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array, Floats
from trustsets.errors import InputError
from trustsets.metrics.binning import WHOLE_AXES
from trustsets.metrics.bins import BinTable
from trustsets.metrics.inference import Ints
from trustsets.metrics.result import Evaluation

__all__ = [
    "BallData",
    "DegreeData",
    "HeatmapData",
    "Runs",
    "SizeData",
    "TrustRankData",
    "as_list",
    "ball_data",
    "degree_data",
    "heatmap_data",
    "log_ends",
    "size_data",
    "table_of",
    "trust_rank_data",
    "two_digits",
]

Runs = Evaluation | Sequence[Evaluation]

# Ranges of Rank: so many until the rank has doubled.
_STEPS_PER_DOUBLING = 2
# Up to this largest size every size is shown by itself; beyond, ranges of sizes grow by the factor.
_SINGLE_SIZES = 15
_SIZE_GROWTH = 1.5
_MOST_DIGITS = 6


@dataclass(frozen=True, eq=False)
class HeatmapData:
    """Coverage on a grid: rows are the second axis from low to high, columns the first.

    Over several seeds coverage and count are means over the seeds in which the bin holds
    samples; `error` is the standard error of the coverage over seeds, NaN for one seed.
    Empty bins hold NaN coverage and zero count. `few` says which bins hold few samples in every
    seed (`BinTable.few`), empty ones included. `ends` are the edges between columns, from
    the lowest to the highest; empty where neighbouring columns do not share them.
    """

    coverage: Floats
    error: Floats
    count: Ints
    few: NDArray[np.bool_]
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    axes: tuple[str, str]
    target: float
    ends: tuple[str, ...] = ()


def heatmap_data(runs: Runs, table: str) -> HeatmapData:
    """Put the bins of a table over two axes on their grid; the first seed names the bins."""
    items = as_list(runs)
    tables = [table_of(item, table) for item in items]
    first = tables[0]
    if not first.is_grid:
        raise InputError(
            f"a heatmap needs a table over two axes; {table!r} is over {first.axes}. "
            "Use coverage_by_group for it."
        )
    coverage, error = _mean_and_error(np.stack([_on_grid(t, t.coverage, np.nan) for t in tables]))
    count = np.mean([_on_grid(found, found.count, 0.0) for found in tables], axis=0)
    few = np.all([_on_grid(found, found.few, 1.0) for found in tables], axis=0)
    return HeatmapData(
        coverage=coverage,
        error=error,
        count=np.rint(count).astype(np.int64),
        few=few,
        columns=_axis_labels(first, 0),
        rows=(rows := _axis_labels(first, 1)),
        axes=(first.axes[0], _axis_title(first, rows)),
        target=1.0 - items[0].alpha,
        ends=_column_ends(first),
    )


def _on_grid(table: BinTable, values: Array, empty: float) -> Floats:
    """Numbers of the bins by place, rows from low to high."""
    grid = np.full(table.shape[::-1], empty)
    grid[table.index[:, 1], table.index[:, 0]] = values
    return grid


def _mean_and_error(values: Floats) -> tuple[Floats, Floats]:
    """Mean and standard error along the first axis, without NaN entries."""
    there = ~np.isnan(values)
    n = there.sum(axis=0)
    mean = np.where(n > 0, np.where(there, values, 0.0).sum(axis=0) / np.maximum(n, 1), np.nan)
    squares = np.where(there, (values - mean) ** 2, 0.0).sum(axis=0)
    error = np.sqrt(squares / np.maximum(n - 1, 1) / np.maximum(n, 1))
    return mean, np.where(n > 1, error, np.nan)


def _axis_labels(table: BinTable, axis: int) -> tuple[str, ...]:
    """Ends of the bins along an axis; quantiles where the ends differ from bin to bin."""
    low, high = np.full((2, table.shape[axis]), np.nan)
    for place in np.unique(table.index[:, axis]):
        own = table.edges[table.index[:, axis] == place, axis]
        low[place], high[place] = own[:, 0].min(), own[:, 1].max()
    used = np.flatnonzero(~np.isnan(low))
    whole = table.axes[axis] in WHOLE_AXES
    gaps = low[used[1:]] - high[used[:-1]]
    if np.any(gaps < (1.0 if whole else 0.0)):
        return tuple(f"Q{place + 1}" for place in range(table.shape[axis]))
    return tuple(
        "" if np.isnan(first) else _ends(first, last, whole)
        for first, last in zip(low.tolist(), high.tolist(), strict=True)
    )


def _column_ends(table: BinTable) -> tuple[str, ...]:
    """Edges between neighbouring columns, where all columns are there and share them."""
    found = [table.edges[table.index[:, 0] == place, 0] for place in range(table.shape[0])]
    if table.axes[0] in WHOLE_AXES or not all(own.size for own in found):
        return ()
    low, high = np.array([own[0] for own in found]).T
    if not np.allclose(low[1:], high[:-1]):
        return ()
    return tuple(two_digits(value) for value in (*low.tolist(), float(high[-1])))


def two_digits(value: float) -> str:
    """A coverage in few letters: two digits after the point, no leading zero.

    Examples
    --------
    >>> two_digits(0.954), two_digits(0.998), two_digits(0.7)
    ('.95', '1', '.70')
    """
    text = f"{value:.2f}"
    return "1" if text == "1.00" else text.removeprefix("0")


def _axis_title(table: BinTable, labels: tuple[str, ...]) -> str:
    nested = labels[0].startswith("Q")
    return f"{table.axes[1]}, quantile by {table.axes[0]}" if nested else table.axes[1]


def _ends(low: float, high: float, whole: bool) -> str:
    if low == high:
        return f"{low:.0f}" if whole else _digits(low, 2)
    if whole:
        return f"{low:.0f}–{high:.0f}"
    # Enough digits to tell the ends apart: confident models have bins like 0.9993–1.
    digits = 2
    while digits < _MOST_DIGITS and _digits(low, digits) == _digits(high, digits):
        digits += 1
    return f"{_digits(low, digits)}–{_digits(high, digits)}"


def _digits(value: float, digits: int) -> str:
    """A number with so many digits; large numbers are written out, not as 3.5e+02."""
    return f"{value:.0f}" if abs(value) >= 10.0**digits else f"{value:.{digits}g}"


@dataclass(frozen=True, eq=False)
class DegreeData:
    """Mean and standard error over seeds, by degree; errors are 0 for one seed."""

    degrees: Floats
    gap: Floats
    gap_error: Floats
    floor: Floats
    size: Floats
    size_error: Floats


def degree_data(results: Mapping[Any, Runs], table: str = "conf_trust") -> DegreeData:
    """Collect CovGap and size of each degree of the function class."""
    if not results:
        raise InputError("results must hold at least one degree.")
    degrees = sorted(results)
    runs = [as_list(results[degree]) for degree in degrees]

    def summarise(number: Callable[[Evaluation], float]) -> Floats:
        """Means and standard errors, shape (2, degrees)."""
        values = [np.array([number(item) for item in own]) for own in runs]
        found: Floats = np.array([_mean_and_error(own) for own in values]).T
        return np.nan_to_num(found)

    gap, gap_error = summarise(lambda item: table_of(item, table).gap.value)
    size, size_error = summarise(lambda item: item.sizes.mean)
    floor, _ = summarise(lambda item: table_of(item, table).gap.floor)
    return DegreeData(np.array(degrees, np.float64), gap, gap_error, floor, size, size_error)


@dataclass(frozen=True, eq=False)
class BallData:
    """CovGap over balls by radius.

    `error` is the standard error over seeds; over trials where there is one seed, or where
    `ball_data` was asked for it.
    """

    radii: Floats
    gap: Floats
    error: Floats
    floor: Floats


def ball_data(runs: Runs, errors: Literal["seeds", "trials"] = "seeds") -> BallData:
    """Mean curve over seeds, at the radii that all seeds have.

    `errors` says what the error bars of several seeds measure: the spread over seeds, or
    only that of the drawing of balls in the trials, as in the paper.
    """
    curves = [item.balls for item in as_list(runs)]
    known = [curve for curve in curves if curve is not None]
    if len(known) < len(curves):
        raise InputError("an evaluation has no balls; evaluate with features.")
    if len(known) == 1:
        only = known[0]
        return BallData(only.radii, only.gap, only.standard_error, only.floor)
    radii = reduce(np.intersect1d, [curve.radii for curve in known])
    if not radii.size:
        raise InputError(
            "the seeds share no radius; draw all balls with the same Balls(radii=...)."
        )
    at = [(curve, np.searchsorted(curve.radii, radii)) for curve in known]
    mean, error = _mean_and_error(np.stack([curve.gap[own] for curve, own in at]))
    floors = np.stack([curve.floor[own] for curve, own in at])
    if errors == "trials":
        # Trials of different seeds are drawn independently.
        squares = np.square([curve.standard_error[own] for curve, own in at])
        error = np.sqrt(squares.sum(axis=0)) / len(known)
    return BallData(radii, mean, error, floors.mean(axis=0))


@dataclass(frozen=True, eq=False)
class TrustRankData:
    """Quartiles of Trust for ranges of Rank that grow geometrically."""

    rank: Floats
    median: Floats
    lower: Floats
    upper: Floats
    count: Ints


def trust_rank_data(trust: Floats, ranks: Ints) -> TrustRankData:
    """Quartiles of Trust in ranges of Rank; the rank of a range is its geometric mean."""
    # Low ranks have a range each.
    steps = np.arange(_STEPS_PER_DOUBLING * int(np.ceil(np.log2(ranks.max() + 1))) + 1)
    edges = np.unique(np.round(2.0 ** (steps / _STEPS_PER_DOUBLING)))
    place = np.searchsorted(edges, ranks, side="right")
    found = [place == own for own in np.unique(place)]
    lower, median, upper = np.array(
        [np.quantile(trust[inside], [0.25, 0.5, 0.75]) for inside in found]
    ).T
    return TrustRankData(
        rank=np.array([np.exp(np.log(ranks[inside]).mean()) for inside in found]),
        median=median,
        lower=lower,
        upper=upper,
        count=np.array([np.count_nonzero(inside) for inside in found]),
    )


def log_ends(values: Floats) -> tuple[float, float]:
    """Ends of a log axis that show nearly all samples; a Trust of 0 cannot be shown."""
    shown = values[np.isfinite(values) & (values > 0.0)]
    if not shown.size:
        return 0.1, 10.0
    low, high = np.quantile(shown, [0.001, 0.999])
    return float(low) / 1.1, float(high) * 1.1


@dataclass(frozen=True, eq=False)
class SizeData:
    """Share of sets by size: every small size, then ranges that grow geometrically."""

    labels: tuple[str, ...]
    shares: Floats


def size_data(evaluations: Sequence[Evaluation]) -> SizeData:
    """Shares of the sets of several methods in the same ranges, shape (methods, ranges)."""
    largest = max(int(item.sizes.values.max()) for item in evaluations)
    starts = np.arange(largest + 1)
    if largest > _SINGLE_SIZES:
        steps = int(np.ceil(np.log(largest) / np.log(_SIZE_GROWTH)))
        grown = np.unique(np.round(_SIZE_GROWTH ** np.arange(steps + 1)).astype(np.int64))
        starts = np.append(0, grown[grown <= largest])
    edges = np.append(starts, largest + 1)
    shares = [
        np.histogram(item.sizes.values, edges, weights=item.sizes.counts)[0] for item in evaluations
    ]
    return SizeData(
        labels=tuple(_ends(low, high - 1, True) for low, high in pairwise(edges.tolist())),
        shares=np.array([own / own.sum() for own in shares]),
    )


def table_of(evaluation: Evaluation, name: str) -> BinTable:
    """A table of bins by its name."""
    if name not in evaluation.tables:
        raise InputError(f"there is no table {name!r}; there are {list(evaluation.tables)}.")
    return evaluation.tables[name]


def as_list(runs: Runs) -> list[Evaluation]:
    """One evaluation, or those over seeds, as a list."""
    return [runs] if isinstance(runs, Evaluation) else list(runs)
