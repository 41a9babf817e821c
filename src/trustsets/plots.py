"""The paper's figures from evaluations. Imports metrics and below; matplotlib when drawing.

What a figure shows is prepared by a function of its own (``*_data``) that returns plain
arrays; the drawing functions only put those on axes. They take and return Axes, or return
the Figure where there are several panels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError
from trustsets.metrics.binning import label_ranks
from trustsets.metrics.bins import BinTable
from trustsets.metrics.result import Evaluation
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Observed, SupportsTrust

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
    from matplotlib.figure import Figure

__all__ = [
    "ball_curves",
    "coverage_by_group",
    "coverage_heatmap",
    "coverage_heatmaps",
    "degree_curves",
    "size_histogram",
    "trust_against_rank",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Runs = Evaluation | Sequence[Evaluation]

# Below, at and above the target; the safe pair is vermilion and blue of Okabe and Ito.
_COLOURS = {False: ("#b2182b", "#ffffff", "#1b7837"), True: ("#d55e00", "#ffffff", "#0072b2")}
# Lines of several methods: Okabe and Ito's palette, which is safe for colour-blind readers.
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Deep red is kept for coverage at least this far below the target, so that mere noise in
# good tables is not painted as a catastrophe.
_FULL_COLOUR = 0.2
_LIGHT = 0.55
_SHOWN_POINTS = 4000
_RANKS_PER_DOUBLING = 2
_MOST_BARS = 40


@dataclass(frozen=True, eq=False)
class HeatmapData:
    """Coverage on a grid: rows are the second axis from low to high, columns the first.

    Empty bins hold NaN coverage and zero count.
    """

    coverage: Floats
    count: Ints
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    axes: tuple[str, str]
    target: float


def heatmap_data(evaluation: Evaluation, table: str) -> HeatmapData:
    """Put the bins of a table over two axes on their grid."""
    found = _table(evaluation, table)
    if len(found.axes) != 2:
        raise InputError(
            f"a heatmap needs a table over two axes; {table!r} is over {found.axes}. "
            "Use coverage_by_group for it."
        )
    width, height = found.shape
    coverage, count = np.full((height, width), np.nan), np.zeros((height, width), dtype=np.int64)
    at = (found.index[:, 1], found.index[:, 0])
    coverage[at], count[at] = found.coverage, found.count
    return HeatmapData(
        coverage=coverage,
        count=count,
        columns=_axis_labels(found, 0),
        rows=_axis_labels(found, 1),
        axes=(found.axes[0], found.axes[1]),
        target=1.0 - evaluation.alpha,
    )


def _axis_labels(table: BinTable, axis: int) -> tuple[str, ...]:
    """Ends of the bins along an axis where they are the same everywhere, else quantiles."""
    labels = []
    n = table.shape[axis]
    whole = table.axes[axis] in {"Rank", "Size"}
    for place in range(n):
        ends = {tuple(own.tolist()) for own in table.edges[table.index[:, axis] == place, axis]}
        if len(ends) > 1:
            return tuple(f"{i + 1}/{n}" for i in range(n))
        labels.append("" if not ends else _ends(*ends.pop(), whole))
    return tuple(labels)


def _ends(low: float, high: float, whole: bool) -> str:
    if whole:
        return f"{low:.0f}" if low == high else f"{low:.0f}–{high:.0f}"
    return f"{low:.2g}–{high:.2g}"


def coverage_heatmap(
    evaluation: Evaluation,
    table: str = "conf_trust",
    ax: "Axes | None" = None,
    *,
    counts: bool = False,
    colorblind: bool = False,
    lowest: float | None = None,
) -> "Axes":
    """Coverage in bins over two axes: green over, red under, white at 1 - alpha.

    Parameters
    ----------
    evaluation : Evaluation
        Holds the table.
    table : str
        A table over two axes, such as ``"conf_trust"`` or ``"conf_rank"``.
    ax : Axes, optional
        Where to draw; a new figure by default.
    counts : bool
        Write the number of samples under the coverage.
    colorblind : bool
        Blue over, orange under.
    lowest : float, optional
        Coverage with the deepest colour; default the lowest shown.
    """
    data = heatmap_data(evaluation, table)
    ax = ax if ax is not None else _new_axes((0.72 * len(data.columns) + 1.2, 3.0))
    norm = _norm(data.target, [data], lowest)
    ax.imshow(data.coverage, cmap=_colours(colorblind), norm=norm, origin="lower", aspect="auto")
    _write_cells(ax, data, norm, counts)
    ax.set_facecolor("#e6e6e6")
    ax.set_xticks(range(len(data.columns)), data.columns, rotation=45, ha="right", fontsize=8)
    ax.set_yticks(range(len(data.rows)), data.rows, fontsize=8)
    ax.set_xlabel(data.axes[0])
    ax.set_ylabel(data.axes[1])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def _write_cells(ax: "Axes", data: HeatmapData, norm: "TwoSlopeNorm", counts: bool) -> None:
    for (row, column), value in np.ndenumerate(data.coverage):
        if np.isnan(value):
            continue
        text = f"{value:.2f}" + (f"\nn={data.count[row, column]}" if counts else "")
        deep = abs(float(norm(value)) - 0.5) > _LIGHT / 2.0 + 0.05
        colour = "white" if deep else "black"
        ax.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)


def coverage_heatmaps(
    evaluations: Mapping[str, Evaluation],
    table: str = "conf_trust",
    *,
    counts: bool = False,
    colorblind: bool = False,
) -> "Figure":
    """Heatmaps of several methods side by side, in one scale of colours."""
    from matplotlib import pyplot as plt
    from matplotlib.cm import ScalarMappable

    data = [heatmap_data(item, table) for item in evaluations.values()]
    norm = _norm(data[0].target, data, None)
    width = 0.55 * len(data[0].columns) + 0.6
    figure, axes = plt.subplots(
        1, len(data), figsize=(width * len(data) + 1.0, 3.4), squeeze=False, layout="constrained"
    )
    for ax, (name, item) in zip(axes[0], evaluations.items(), strict=True):
        coverage_heatmap(
            item, table, ax, counts=counts, colorblind=colorblind, lowest=float(norm.vmin or 0.0)
        )
        ax.set_title(name)
    for ax in axes[0, 1:]:
        ax.set_ylabel("")
    bar = figure.colorbar(ScalarMappable(norm, _colours(colorblind)), ax=axes[0].tolist())
    bar.set_label("Coverage")
    bar.set_ticks([float(norm.vmin or 0.0), data[0].target, 1.0])
    bar.ax.set_yticklabels([f"{tick:.2f}" for tick in (norm.vmin or 0.0, data[0].target, 1.0)])
    return figure


def _colours(colorblind: bool) -> "LinearSegmentedColormap":
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("coverage", _COLOURS[colorblind])


def _norm(target: float, data: Sequence[HeatmapData], lowest: float | None) -> "TwoSlopeNorm":
    """White at the target; the deepest colours at 1 and at the lowest coverage."""
    from matplotlib.colors import TwoSlopeNorm

    if lowest is None:
        lowest = float(min(np.nanmin(item.coverage) for item in data))
    # With a target below the margin the scale still needs room under its centre.
    bottom = min(lowest, max(target - _FULL_COLOUR, 0.0), target / 2.0 + target / 2.0 * 0.99)
    return TwoSlopeNorm(vcenter=target, vmin=bottom, vmax=1.0)


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
    runs = [_as_list(results[degree]) for degree in degrees]
    gaps = [[_table(item, table).gap.value for item in own] for own in runs]
    sizes = [[item.sizes.mean for item in own] for own in runs]
    floors = [np.mean([_table(item, table).gap.floor for item in own]) for own in runs]
    return DegreeData(
        degrees=np.array(degrees, dtype=np.float64),
        gap=np.array([np.mean(own) for own in gaps]),
        gap_error=np.array([_standard_error(own) for own in gaps]),
        floor=np.array(floors),
        size=np.array([np.mean(own) for own in sizes]),
        size_error=np.array([_standard_error(own) for own in sizes]),
    )


def degree_curves(
    results: Mapping[str, Mapping[Any, Runs]] | Mapping[Any, Runs], table: str = "conf_trust"
) -> "Figure":
    """CovGap and mean size against the degree of the function class.

    Parameters
    ----------
    results : mapping of degree to Evaluation or list of them over seeds
        Or a mapping of names (data sets) to such mappings.
    table : str
        Table whose CovGap is shown.
    """
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    several: dict[str, Any] = {"": results}
    if all(isinstance(item, Mapping) for item in results.values()):
        several = {str(name): item for name, item in results.items()}
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.2), layout="constrained")
    for i, (name, item) in enumerate(several.items()):
        data, style = degree_data(item, table), _style(i)
        left.errorbar(data.degrees, data.gap, data.gap_error, label=name, **style)
        left.plot(data.degrees, data.floor, ls=":", lw=1, color=style["color"])
        right.errorbar(data.degrees, data.size, data.size_error, label=name, **style)
    left.plot([], [], ls=":", lw=1, color="grey", label="noise floor")
    left.set_ylabel("CovGap (%)")
    right.set_ylabel("Mean set size")
    for ax in (left, right):
        ax.set_xlabel("Degree")
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        _tidy(ax)
    left.legend(frameon=False, fontsize=8)
    return figure


def ball_curves(
    evaluations: Mapping[str, Evaluation], ax: "Axes | None" = None, *, floor: bool = True
) -> "Axes":
    """CovGap over balls against their radius, with standard errors over trials.

    `floor` draws the noise floor of a perfect method, which is the same for all methods.
    """
    curves = {}
    for name, item in evaluations.items():
        if item.balls is None:
            raise InputError(f"evaluations[{name!r}] has no balls; evaluate with features.")
        curves[name] = item.balls
    ax = ax if ax is not None else _new_axes((4.6, 3.2))
    for i, (name, curve) in enumerate(curves.items()):
        ax.errorbar(curve.radii, curve.gap, curve.standard_error, label=name, **_style(i))
    if floor:
        first = next(iter(curves.values()))
        ax.plot(first.radii, first.floor, ls=":", color="grey", label="noise floor")
    ax.set_xlabel("Radius of the ball")
    ax.set_ylabel("CovGap (%)")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize=8)
    return _tidy(ax)


@dataclass(frozen=True, eq=False)
class TrustRankData:
    """Quartiles of Trust for bands of Rank that grow geometrically."""

    rank: Floats
    median: Floats
    lower: Floats
    upper: Floats
    count: Ints


def trust_rank_data(trust: Floats, ranks: Ints) -> TrustRankData:
    """Quartiles of Trust in bands of Rank; the rank of a band is its geometric mean."""
    # Bands double every other step; the low ones are single ranks.
    steps = np.arange(_RANKS_PER_DOUBLING * int(np.ceil(np.log2(ranks.max() + 1))) + 1)
    edges = np.unique(np.floor(2.0 ** (steps / _RANKS_PER_DOUBLING)))
    band = np.searchsorted(edges, ranks, side="right")
    found = np.unique(band)
    quartiles = np.array([np.quantile(trust[band == item], [0.25, 0.5, 0.75]) for item in found])
    return TrustRankData(
        rank=np.array([np.exp(np.log(ranks[band == item]).mean()) for item in found]),
        median=quartiles[:, 1],
        lower=quartiles[:, 0],
        upper=quartiles[:, 2],
        count=np.array([np.count_nonzero(band == item) for item in found]),
    )


def trust_against_rank(
    outputs: ModelOutputs, trust: SupportsTrust, ax: "Axes | None" = None
) -> "Axes":
    """Trust against log Rank: samples, and median and quartiles by rank."""
    values, ranks = Observed(outputs, trust).trust, label_ranks(outputs)
    data = trust_rank_data(values, ranks)
    ax = ax if ax is not None else _new_axes((4.6, 3.2))
    rng = np.random.default_rng(0)
    shown = rng.permutation(ranks.size)[:_SHOWN_POINTS]
    # Ranks are integers: a little noise keeps the samples from hiding each other.
    spread = ranks[shown] * np.exp(rng.uniform(-0.12, 0.12, size=shown.size))
    ax.scatter(spread, values[shown], s=3, color="grey", alpha=0.2, lw=0, rasterized=True)
    ax.fill_between(data.rank, data.lower, data.upper, color=_PALETTE[0], alpha=0.25, lw=0)
    ax.plot(data.rank, data.median, "o-", color=_PALETTE[0], ms=4, label="median and quartiles")
    ax.set_xscale("log")
    finite = values[np.isfinite(values)]
    ax.set_ylim(0.0, 1.05 * float(np.quantile(finite, 0.995)))
    ax.set_xlabel("Rank of the true class (log scale)")
    ax.set_ylabel("Trust")
    ax.legend(frameon=False, fontsize=8)
    return _tidy(ax)


def size_histogram_data(evaluation: Evaluation, edges: Ints) -> Floats:
    """Share of sets with a size in ``[edges[i], edges[i + 1])``, shape (len(edges) - 1,)."""
    sizes = evaluation.sizes
    return np.histogram(sizes.values, edges, weights=sizes.counts)[0] / evaluation.n


def size_edges(largest: int) -> Ints:
    """Edges of size bins: every size up to `_MOST_BARS`, geometric beyond."""
    if largest < _MOST_BARS:
        return np.arange(largest + 2)
    grown = np.geomspace(1, largest + 1, _MOST_BARS).round().astype(np.int64)
    return np.unique(np.concatenate([[0], grown]))


def size_histogram(
    evaluations: Evaluation | Mapping[str, Evaluation], ax: "Axes | None" = None
) -> "Axes":
    """Distribution of set sizes of one or several methods; the dashed line is the mean."""
    named = {"": evaluations} if isinstance(evaluations, Evaluation) else dict(evaluations)
    edges = size_edges(max(int(item.sizes.values.max()) for item in named.values()))
    ax = ax if ax is not None else _new_axes((4.6, 3.2))
    for i, (name, item) in enumerate(named.items()):
        share, colour = size_histogram_data(item, edges), _PALETTE[i % len(_PALETTE)]
        ax.stairs(share, edges - 0.5, fill=True, alpha=0.3, color=colour)
        ax.stairs(share, edges - 0.5, color=colour, label=name)
        ax.axvline(item.sizes.mean, ls="--", lw=1, color=colour)
    if np.diff(edges).max() > 1:
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_xlim(-0.5, float(edges[-1]))
    ax.set_xlabel("Set size")
    ax.set_ylabel("Share of sets")
    if len(named) > 1:
        ax.legend(frameon=False, fontsize=8)
    return _tidy(ax)


@dataclass(frozen=True, eq=False)
class GroupData:
    """Coverage of the bins of a table with intervals, the worst first."""

    labels: tuple[str, ...]
    coverage: Floats
    lower: Floats
    upper: Floats
    count: Ints


def group_data(evaluation: Evaluation, table: str, most: int = _MOST_BARS) -> GroupData:
    """The `most` bins of lowest coverage, the worst first."""
    found = _table(evaluation, table)
    order = np.argsort(found.coverage, kind="stable")[:most]
    return GroupData(
        labels=tuple(found.labels[i] for i in order),
        coverage=found.coverage[order],
        lower=found.lower[order],
        upper=found.upper[order],
        count=found.count[order],
    )


def coverage_by_group(
    evaluations: Evaluation | Mapping[str, Evaluation],
    table: str,
    ax: "Axes | None" = None,
    *,
    most: int = _MOST_BARS,
) -> "Axes":
    """Coverage of each group with its exact interval; the worst of the first method on top.

    Parameters
    ----------
    evaluations : Evaluation, or mapping of names to Evaluation
        One method, or several on the same samples.
    table : str
        Any table, such as ``"group:sex"`` or ``"class"``.
    ax : Axes, optional
        Where to draw.
    most : int
        Show this many groups, those of lowest coverage.
    """
    named = {"": evaluations} if isinstance(evaluations, Evaluation) else dict(evaluations)
    first = next(iter(named.values()))
    shown = group_data(first, table, most)
    place = {label: i for i, label in enumerate(shown.labels)}
    ax = ax if ax is not None else _new_axes((5.0, 0.28 * len(place) * len(named) + 1.2))
    for i, (name, item) in enumerate(named.items()):
        data = group_data(item, table, len(_table(item, table).labels))
        keep = [j for j, label in enumerate(data.labels) if label in place]
        offset = (i - (len(named) - 1) / 2.0) * 0.6 / len(named)
        y = [place[data.labels[j]] + offset for j in keep]
        bars = np.stack([data.coverage - data.lower, data.upper - data.coverage])[:, keep]
        style = {key: value for key, value in _style(i).items() if key not in {"ls", "lw"}}
        ax.errorbar(data.coverage[keep], y, xerr=bars, ls="none", label=name, **style)
    ax.axvline(1.0 - first.alpha, color="grey", ls="--", lw=1)
    texts = [f"{label} (n={n})" for label, n in zip(shown.labels, shown.count, strict=True)]
    ax.set_yticks(range(len(texts)), texts, fontsize=8)
    ax.set_ylim(len(texts) - 0.5, -0.5)
    ax.set_xlabel("Coverage")
    if len(named) > 1:
        ax.legend(frameon=False, fontsize=8)
    return _tidy(ax)


def _table(evaluation: Evaluation, name: str) -> BinTable:
    if name not in evaluation.tables:
        raise InputError(f"there is no table {name!r}; there are {list(evaluation.tables)}.")
    return evaluation.tables[name]


def _as_list(runs: Runs) -> list[Evaluation]:
    return [runs] if isinstance(runs, Evaluation) else list(runs)


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _style(i: int) -> dict[str, Any]:
    """Colour and marker of the i-th method: told apart without colour too."""
    return {
        "color": _PALETTE[i % len(_PALETTE)],
        "marker": _MARKERS[i % len(_MARKERS)],
        "ms": 4,
        "lw": 1.4,
        "ls": "-",
        "capsize": 2,
    }


def _new_axes(size: tuple[float, float]) -> "Axes":
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def _tidy(ax: "Axes") -> "Axes":
    ax.spines[["top", "right"]].set_visible(False)
    return ax
