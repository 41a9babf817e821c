"""The paper's figures from evaluations, drawn with matplotlib.

`trustsets.metrics.figure_data` prepares what a figure shows, and the functions here put it on
axes. They take and return Axes, or return the Figure where there are several panels. All are in
the house style, for dark pages within ``house_style("dark")``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.house_style import (
    HALF_WIDTH,
    colour,
    coverage_colours,
    house_style,
    ink_on,
    method_colour,
    styled,
    tidy,
    tiny_text,
)
from trustsets.metrics import render
from trustsets.metrics.colours import deepest_coverage
from trustsets.metrics.figure_data import (
    HeatmapData,
    Runs,
    as_list,
    ball_data,
    degree_data,
    heatmap_data,
    log_ends,
    size_data,
    table_of,
    trust_rank_data,
    two_digits,
)
from trustsets.metrics.label_bins import label_ranks
from trustsets.metrics.result import Evaluation
from trustsets.outputs import ModelOutputs
from trustsets.statistics import SupportsTrust

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
    from matplotlib.figure import Figure

__all__ = [
    "add_coverage_bar",
    "ball_curves",
    "coverage_by_group",
    "coverage_heatmap",
    "coverage_heatmaps",
    "degree_curves",
    "house_style",
    "legend_below",
    "size_histogram",
    "trust_against_rank",
]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Curves over whole numbers are shifted by this much, so that equal ones do not hide each other.
_DODGE = 0.2
_SHOWN_SAMPLES = 4000
_FLOOR = "noise floor"
# A legend is one row if its names have no more letters than this, and two columns otherwise.
_ROW_OF_NAMES = 30


@styled
def coverage_heatmap(
    evaluation: Runs,
    table: str = "conf_trust",
    ax: "Axes | None" = None,
    *,
    counts: bool = False,
    errors: bool = False,
) -> "Axes":
    """Coverage in bins over two axes: blue above, orange below, white at 1 - alpha.

    Bins without samples are hatched. So are bins of fewer than 10, with their coverage in grey.

    Parameters
    ----------
    evaluation : Evaluation, or list of them over seeds
        Holds the table; over seeds the mean is shown.
    table : str
        A table over two axes: ``"conf_trust"``, ``"conf_rank"``, ``"conf_frequency"``.
    ax : Axes, optional
        Where to draw; a new figure by default.
    counts : bool
        Write the number of samples under the coverage.
    errors : bool
        Write the standard error over seeds under the coverage.
    """
    from matplotlib.colors import to_hex

    data = heatmap_data(evaluation, table)
    ax = ax if ax is not None else _new_axes((0.72 * len(data.columns) + 1.2, 3.0))
    cmap, norm = _scale(data.target)
    shown = np.where(data.few, np.nan, data.coverage)
    ax.imshow(shown, cmap=cmap, norm=norm, origin="lower", aspect="auto")
    _write_cells(ax, data, lambda value: to_hex(cmap(norm(value))), counts, errors)
    ax.patch.set(facecolor=colour("page"), edgecolor=colour("rule"), hatch="////")
    if data.ends:
        ax.set_xticks(np.arange(len(data.ends)) - 0.5, data.ends)
    else:
        ax.set_xticks(range(len(data.columns)), data.columns, rotation=45, ha="right")
    ax.set_yticks(range(len(data.rows)), data.rows)
    ax.set(xlabel=data.axes[0], ylabel=data.axes[1])
    ax = tidy(ax)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def _write_cells(
    ax: "Axes", data: HeatmapData, ground: Callable[[float], str], counts: bool, errors: bool
) -> None:
    for (row, column), value in np.ndenumerate(data.coverage):
        if np.isnan(value):
            continue
        text = two_digits(value) + (f"\nn={data.count[row, column]}" if counts else "")
        if errors and not np.isnan(data.error[row, column]):
            text += f"\n±{two_digits(float(data.error[row, column]))}"
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": tiny_text()}
        style["color"] = ink_on(ground(float(value)))
        if data.few[row, column]:
            box = {"fc": colour("page"), "ec": "none", "pad": 0.6}
            style |= {"color": colour("quiet"), "bbox": box}
        ax.text(column, row, text, **style)


@styled
def coverage_heatmaps(
    evaluations: Mapping[str, Runs],
    table: str | Sequence[str] = "conf_trust",
    *,
    counts: bool = False,
    errors: bool = False,
) -> "Figure":
    """Heatmaps of several methods and tables in one scale of colours.

    Parameters
    ----------
    evaluations : mapping of str to Evaluation, or to a list of them over seeds
        Methods, side by side.
    table : str or sequence of str
        Tables over two axes, one below the other.
    counts, errors
        As in `coverage_heatmap`.
    """
    from matplotlib import pyplot as plt

    tables = [table] if isinstance(table, str) else list(table)
    panels = [(name, runs, item) for item in tables for name, runs in evaluations.items()]
    first = heatmap_data(panels[0][1], tables[0])
    width = max(HALF_WIDTH, 0.25 * len(first.columns) + 1.0)
    n_rows, n_columns = len(tables), len(evaluations)
    lines = 1 + counts + (errors and len(as_list(panels[0][1])) > 1)
    height = (0.08 + 0.14 * lines) * len(first.rows) + 0.62
    size = (width * n_columns, height * n_rows + 0.45)
    figure, axes = plt.subplots(
        n_rows, n_columns, figsize=size, squeeze=False, layout="constrained"
    )
    for ax, (name, runs, item) in zip(axes.flat, panels, strict=True):
        coverage_heatmap(runs, item, ax, counts=counts, errors=errors)
        ax.set_title(name)
    for ax in axes[:, 1:].flat:
        ax.set_ylabel("")
    for ax in axes[:-1].flat:
        ax.set_xlabel("")
    add_coverage_bar(figure, axes, first.target)
    return figure


@styled
def add_coverage_bar(figure: "Figure", axes: Any, target: float) -> None:
    """Explain the colours of heatmaps below an array of axes of shape (rows, columns)."""
    from matplotlib.cm import ScalarMappable

    cmap, norm = _scale(target)
    bar = figure.colorbar(
        ScalarMappable(norm, cmap),
        ax=axes,
        extend="min",
        label="Coverage",
        location="bottom",
        aspect=30 * axes.shape[1],
    )
    ticks = [float(norm.vmin or 0.0), target, 1.0]
    bar.set_ticks(ticks, labels=[f"{tick:.2f}" for tick in ticks])


def _scale(target: float) -> "tuple[LinearSegmentedColormap, TwoSlopeNorm]":
    """The page's colour at the target; the scale is fixed, so that figures can be compared."""
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm

    colours = coverage_colours()
    norm = TwoSlopeNorm(vcenter=target, vmin=deepest_coverage(target), vmax=1.0)
    return LinearSegmentedColormap.from_list("coverage", colours), norm


@styled
def degree_curves(
    results: Mapping[str, Mapping[int, Runs]] | Mapping[int, Runs], table: str = "conf_trust"
) -> "Figure":
    """CovGap and mean size against the degree of the function class, one above the other.

    Curves are shifted a little, so that equal ones do not hide each other.

    Parameters
    ----------
    results : mapping of degree to Evaluation or list of them over seeds
        Or a mapping of names, such as data sets, to such mappings.
    table : str
        Table whose CovGap is shown.
    """
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(HALF_WIDTH, 4.4), sharex=True, layout="constrained"
    )
    is_nested = results and all(isinstance(item, Mapping) for item in results.values())
    curves: dict[Any, Any] = dict(results) if is_nested else {"": results}
    for i, (name, item) in enumerate(curves.items()):
        data, style = degree_data(item, table), _style(i)
        at = data.degrees + _DODGE * _offset(i, len(curves))
        top.errorbar(at, data.gap, data.gap_error, label=name, **style)
        top.plot(data.degrees, data.floor, ls=":", lw=1, color=style["color"])
        bottom.errorbar(at, data.size, data.size_error, label=name, **style)
    top.plot([], [], ls=":", lw=1, color=colour("quiet"), label=_FLOOR)
    top.set_ylabel(f"{render.title(table + '.gap')} (%)")
    top.set_ylim(bottom=0)
    bottom.set(xlabel="Degree", ylabel="Mean set size")
    for ax in (top, bottom):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        tidy(ax)
    legend_below(top, figure)
    return figure


@styled
def ball_curves(
    evaluations: Mapping[str, Runs],
    ax: "Axes | None" = None,
    *,
    errors: Literal["seeds", "trials"] = "seeds",
    legend: bool = True,
) -> "Axes":
    """CovGap over balls against their radius.

    Parameters
    ----------
    evaluations : mapping of str to Evaluation, or to a list of them over seeds
        Methods, whose balls have the same radii.
    ax : Axes, optional
        Where to draw; a new figure by default.
    errors : {"seeds", "trials"}
        Standard errors over seeds (over trials if there is one seed), or over trials only.
    legend : bool
        Name the methods: below a new figure, or on the given axes.
    """
    curves = {name: ball_data(runs, errors) for name, runs in evaluations.items()}
    own = ax is None
    ax = ax if ax is not None else _new_axes((HALF_WIDTH, 3.0))
    for i, (name, curve) in enumerate(curves.items()):
        ax.errorbar(curve.radii, curve.gap, curve.error, label=name, **_style(i))
    first = next(iter(curves.values()))  # the noise floor is the same for all methods
    ax.plot(first.radii, first.floor, ls=":", color=colour("quiet"), label=_FLOOR)
    ax.set(xlabel="Radius of the ball", ylabel="CovGap (%)")
    ax.set_ylim(bottom=0)
    if legend:
        legend_below(ax, ax.get_figure(root=True) if own else None)
    return tidy(ax)


@styled
def legend_below(ax: "Axes", figure: "Figure | None" = None) -> None:
    """Name the methods, then the noise floor, below all axes of a figure, or on the axes."""
    # By default a legend lists lines, such as the noise floor, before error bars.
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] == _FLOOR)
    named = [handles[i] for i in order], [labels[i] for i in order]
    if figure is None:
        ax.legend(*named)
    else:
        columns = len(order) if sum(map(len, labels)) <= _ROW_OF_NAMES else 2
        figure.legend(*named, loc="outside lower center", ncols=columns)


@styled
def trust_against_rank(
    outputs: ModelOutputs, trust: SupportsTrust | Floats, ax: "Axes | None" = None
) -> "Axes":
    """Trust against Rank, both in log scale: samples, and median and quartiles by rank."""
    from matplotlib.ticker import LogLocator, NullFormatter

    values = outputs.with_trust(trust).require_trust("trust_against_rank")
    ranks = label_ranks(outputs)
    data = trust_rank_data(values, ranks)
    ax = ax if ax is not None else _new_axes((HALF_WIDTH, 2.7))
    rng = np.random.default_rng(0)
    shown = rng.permutation(ranks.size)[:_SHOWN_SAMPLES]
    # Ranks are integers: a little noise keeps the samples from hiding each other.
    spread = ranks[shown] * np.exp(rng.uniform(-0.12, 0.12, size=shown.size))
    ax.scatter(spread, values[shown], s=3, color=colour("quiet"), alpha=0.2, lw=0, rasterized=True)
    ax.fill_between(data.rank, data.lower, data.upper, color=method_colour(0), alpha=0.25, lw=0)
    ax.plot(
        data.rank, data.median, "o-", color=method_colour(0), ms=4, label="median and quartiles"
    )
    ax.set(xscale="log", yscale="log", ylim=log_ends(values))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    ax.set(xlabel="Rank of the true class (log scale)", ylabel="Trust (log scale)")
    ax.legend()
    return tidy(ax)


@styled
def size_histogram(
    evaluations: Evaluation | Mapping[str, Evaluation], ax: "Axes | None" = None
) -> "Axes":
    """Distribution of set sizes of one or several methods."""
    named = {"all sets": evaluations} if isinstance(evaluations, Evaluation) else evaluations
    data = size_data(list(named.values()))
    ax = ax if ax is not None else _new_axes((max(4.6, 0.36 * len(data.labels) + 1.0), 3.2))
    places, width = np.arange(len(data.labels)), 0.8 / len(named)
    for i, (name, item) in enumerate(named.items()):
        text = f"{name} (mean {item.sizes.mean:.2f})"
        at = places + width * _offset(i, len(named))
        ax.bar(at, data.shares[i], width, color=method_colour(i), label=text)
    ax.set_xticks(places, data.labels, rotation=45, ha="right")
    ax.set(xlabel="Set size", ylabel="Share of sets")
    ax.legend()
    return tidy(ax)


@styled
def coverage_by_group(
    evaluations: Evaluation | Mapping[str, Evaluation],
    table: str,
    ax: "Axes | None" = None,
    *,
    most: int = 40,
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
    shown = table_of(first, table)
    order = np.argsort(shown.coverage, kind="stable")[:most].tolist()
    place = {shown.labels[j]: i for i, j in enumerate(order)}
    ax = ax if ax is not None else _new_axes((5.0, (0.1 + 0.16 * len(named)) * len(place) + 1.2))
    for i, (name, item) in enumerate(named.items()):
        data = table_of(item, table)
        keep = [j for j, label in enumerate(data.labels) if label in place]
        offset = 0.6 / len(named) * _offset(i, len(named))
        y = [place[data.labels[j]] + offset for j in keep]
        bars = np.stack([data.coverage - data.lower, data.upper - data.coverage])[:, keep]
        style = {key: value for key, value in _style(i).items() if key not in {"ls", "lw"}}
        ax.errorbar(data.coverage[keep], y, xerr=bars, ls="none", label=name, **style)
    ax.axvline(1.0 - first.alpha, color=colour("quiet"), ls="--", lw=1)
    texts = [f"{shown.labels[j]} (n={shown.count[j]})" for j in order]
    ax.set_yticks(range(len(texts)), texts)
    ax.set_ylim(len(texts) - 0.5, -0.5)
    ax.set_xlabel("Coverage")
    if len(named) > 1:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(named))
    return tidy(ax)


def _offset(i: int, n: int) -> float:
    """Place of the i-th of n marks around their middle, in steps."""
    return i - (n - 1) / 2.0


def _style(i: int) -> dict[str, Any]:
    """Colour and marker of the i-th method; the marker alone tells methods apart too."""
    return {
        "color": method_colour(i),
        "marker": _MARKERS[i % len(_MARKERS)],
        "ms": 3.5,
        "lw": 1.2,
        "ls": "-",
        "capsize": 2,
    }


def _new_axes(size: tuple[float, float]) -> "Axes":
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]
