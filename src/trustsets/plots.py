"""Charts of evaluations: their data, their style, and matplotlib figures.

The report, the explorer and the paper's pages share the data. Nothing else in the package sets
colours, which readers who see few differences between red and green can tell apart.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Array, Floats, number_text
from trustsets._parameters import Positive, check_arguments
from trustsets.errors import InputError
from trustsets.metrics import METRICS, WHOLE_AXES, BinTable, Evaluation, table_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
    from matplotlib.figure import Figure

__all__ = [
    "DPI",
    "HALF_WIDTH",
    "HeatmapData",
    "add_coverage_bar",
    "coverage_by_group",
    "coverage_heatmap",
    "deepest_coverage",
    "heatmap_data",
    "mean_and_error",
    "method_colour",
    "method_style",
    "shade",
    "size_data",
    "style",
    "styled",
    "theme_colour",
    "tidy",
]

P = ParamSpec("P")
R = TypeVar("R")
Theme = Literal["light", "dark"]
Medium = Literal["print", "page"]
Runs = Evaluation | Sequence[Evaluation]
Evaluations = Mapping[str, Evaluation]

# ---- Style --------------------------------------------------------------------------------

# What a page is made of: its ground, panels on it, text, lines, links, alarms, noise floors.
THEMES: dict[Theme, dict[str, str]] = {
    "light": {
        "page": "#ffffff",
        "panel": "#f6f7f9",
        "ink": "#1b1f24",
        "quiet": "#59616c",
        "rule": "#d9dde3",
        "accent": "#1d5c9e",
        "alarm": "#a63c00",
        "floor": "#dfe3e8",
    },
    "dark": {
        "page": "#16181c",
        "panel": "#1e2126",
        "ink": "#e4e6ea",
        "quiet": "#a4abb6",
        "rule": "#343941",
        "accent": "#8ab8ec",
        "alarm": "#f79a5e",
        "floor": "#3b4149",
    },
}
# One colour for each method, of sufficient contrast for thin lines.
METHOD_COLOURS: dict[Theme, tuple[str, ...]] = {
    "light": ("#0b5cc4", "#c9820f", "#178167", "#6a1b5d", "#924a05", "#559ac4", "#33332b"),
    "dark": ("#3a86dd", "#ef5a2c", "#86cf9a", "#9f6f8c", "#f2e85a", "#5fcdf5", "#f4f8fb"),
}
# Coverage below, at and above the target: vermilion and blue of Okabe and Ito.
COVERAGE_COLOURS: dict[Theme, tuple[str, str, str]] = {
    "light": ("#d55e00", "#ffffff", "#0072b2"),
    "dark": ("#e06a10", "#2a2e35", "#2f8fd0"),
}
# Every one but the last has the letter widths of Helvetica. Matplotlib brings the last along.
FONTS = ("Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans")
HALF_WIDTH = 3.5
"""Width of a panel in inches: half of a printed page."""
# Points of text, of numbers along axes and in legends, and in the cells of heatmaps.
TEXT: dict[Medium, tuple[float, float, float]] = {"print": (8, 7, 6.5), "page": (10, 9, 8)}
DPI: dict[Medium, int] = {"print": 200, "page": 105}
"""Dots per inch of saved figures."""
# Coverage this far below the target has the deepest colour. The scale is fixed, so that noise
# in a good table does not look like a failure.
DEEPEST = 0.3

_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# WCAG's relative luminance at which black and white text contrast equally.
_EQUAL_CONTRAST = 0.179

_in_use: ContextVar[tuple[Theme, Medium]] = ContextVar("style", default=("light", "print"))


@contextmanager
def style(theme: Theme = "light", medium: Medium = "print") -> Iterator[None]:
    """Draw for light or dark pages, and for print or with the larger text of a web page."""
    import matplotlib as mpl

    token = _in_use.set((theme, medium))
    settings: Any = matplotlib_style(theme, medium)  # matplotlib types each name
    try:
        with mpl.rc_context(settings):
            yield
    finally:
        _in_use.reset(token)


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a function draw in the style in use."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with style(*_in_use.get()):
            return draw(*args, **kwargs)

    return drawn


def matplotlib_style(theme: Theme = "light", medium: Medium = "print") -> dict[str, Any]:
    """Settings for ``matplotlib.rc_context``."""
    colours, (text, small, _) = THEMES[theme], TEXT[medium]
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    sizes = {f"{axis}.labelsize": small for axis in ("xtick", "ytick")}
    grounds = ("figure.facecolor", "axes.facecolor")
    return {
        "font.family": "sans-serif",
        "font.sans-serif": list(FONTS),
        "font.size": text,
        "axes.titlesize": text,
        "axes.labelsize": text,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": f"cycler('color', {list(METHOD_COLOURS[theme])})",
        "legend.fontsize": small,
        "legend.frameon": False,
        "figure.dpi": DPI["page"],
        "savefig.dpi": DPI[medium],
        **sizes,
        **dict.fromkeys(inked, colours["ink"]),
        **dict.fromkeys(grounds, colours["page"]),
    }


def css_variables(theme: Theme) -> str:
    """The colours of a theme as custom properties of CSS: ``--page``, ``--m0``, ``--under``."""
    below, middle, above = COVERAGE_COLOURS[theme]
    methods = {f"m{i}": colour for i, colour in enumerate(METHOD_COLOURS[theme])}
    colours = THEMES[theme] | methods | {"under": below, "middle": middle, "over": above}
    fonts = ", ".join(f'"{name}"' for name in FONTS)
    lines = [f"color-scheme: {theme}", *(f"--{name}: {code}" for name, code in colours.items())]
    return "".join(f"  {line};\n" for line in [*lines, f"--font: {fonts}, sans-serif"])


def tidy(ax: "Axes") -> "Axes":
    """Give axes the look of the style in use; ticks are made later, when it is no longer."""
    import matplotlib as mpl

    settings = mpl.rcParams
    ax.spines[["top", "right"]].set_visible(False)
    look = {"labelsize": settings["xtick.labelsize"], "colors": settings["xtick.color"]}
    ax.tick_params(which="both", labelfontfamily=settings["font.family"], **look)
    return ax


def theme_colour(name: str) -> str:
    """A colour of the theme in use: page, panel, ink, quiet, rule, accent, alarm or floor."""
    return THEMES[_in_use.get()[0]][name]


def method_colour(i: int) -> str:
    """Colour of the i-th method in the theme in use."""
    colours = METHOD_COLOURS[_in_use.get()[0]]
    return colours[i % len(colours)]


def method_style(i: int) -> dict[str, Any]:
    """Colour and marker of the i-th method; the marker alone tells methods apart too."""
    return {
        "color": method_colour(i),
        "marker": _MARKERS[i % len(_MARKERS)],
        "ms": 3.5,
        "lw": 1.2,
        "ls": "-",
        "capsize": 2,
    }


def mixed(one: str, other: str, share: float) -> str:
    """The first colour with this share of the second in it."""
    pairs = zip(_channels(one), _channels(other), strict=True)
    return "#" + "".join(f"{round(start + share * (end - start)):02x}" for start, end in pairs)


def text_on(colour: str) -> str:
    """Black or white, whichever contrasts more with a colour."""
    linear = [
        part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4
        for part in _channels(colour)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if luminance > _EQUAL_CONTRAST else "#fff"


def _channels(colour: str) -> list[int]:
    """Red, green and blue."""
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def shade(coverage: float, target: float) -> str:
    """Colours of a cell on light and dark pages, deeper the further a coverage is from the target.

    They are the value of a style attribute.
    """
    below = coverage < target
    end = deepest_coverage(target) if below else 1.0
    depth = min((coverage - target) / (end - target), 1.0)
    names = []
    for theme, colours in COVERAGE_COLOURS.items():
        colour = mixed(colours[1], colours[0 if below else 2], depth)
        names += [f"--{theme}:{colour}", f"--{theme}-ink:{text_on(colour)}"]
    return ";".join(names)


def deepest_coverage(target: float) -> float:
    """Coverage at and below which the colour is deepest."""
    return max(target - DEEPEST, 0.0)


# ---- Chart data -----------------------------------------------------------------------------

# Up to this largest size every size is shown by itself; beyond, ranges of sizes grow by the factor.
_SINGLE_SIZES = 15
_SIZE_GROWTH = 1.5
_MOST_DIGITS = 6


@dataclass(frozen=True, eq=False)
class HeatmapData:
    """Coverage on a grid: rows are the second axis from low to high, columns the first.

    It is the mean over seeds, NaN in empty bins. `few` says which bins hold few samples in every
    seed.
    """

    coverage: Floats
    few: NDArray[np.bool_]
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    axes: tuple[str, str]
    target: float


def heatmap_data(runs: Runs, table: str) -> HeatmapData:
    """Put the bins of a table over two axes on their grid; the first seed names the bins."""
    evaluations = _as_list(runs)
    tables = [_table(evaluation, table) for evaluation in evaluations]
    first = tables[0]
    if not first.is_grid:
        raise InputError(
            f"a heatmap needs a table over two axes; {table!r} is over {first.axes}. "
            "Use coverage_by_group for it."
        )
    if len({item.shape for item in tables}) > 1:
        raise InputError(
            f"{table!r} has other numbers of bins in other evaluations. Pass the same to all; for "
            'class frequency, bins={"conf_frequency": FrequencyBins(class_counts=...)}.'
        )
    coverage, _ = mean_and_error(np.stack([_on_grid(t, t.coverage, np.nan) for t in tables]))
    few = np.all([_on_grid(t, t.few, 1.0) for t in tables], axis=0)
    rows = _axis_labels(first, 1)
    nested = rows[0].startswith("Q")
    return HeatmapData(
        coverage=coverage,
        few=few,
        columns=_axis_labels(first, 0),
        rows=rows,
        axes=(
            first.axes[0],
            f"{first.axes[1]}, quantile by {first.axes[0]}" if nested else first.axes[1],
        ),
        target=1.0 - evaluations[0].alpha,
    )


def mean_and_error(values: Floats) -> tuple[Floats, Floats]:
    """Mean and standard error along the first axis, without NaN entries."""
    present = ~np.isnan(values)
    n = present.sum(axis=0)
    mean = np.where(n > 0, np.where(present, values, 0.0).sum(axis=0) / np.maximum(n, 1), np.nan)
    squares = np.where(present, (values - mean) ** 2, 0.0).sum(axis=0)
    error = np.sqrt(squares / np.maximum(n - 1, 1) / np.maximum(n, 1))
    return mean, np.where(n > 1, error, np.nan)


def _on_grid(table: BinTable, values: Array, empty: float) -> Floats:
    """Numbers of the bins on their grid, rows from low to high."""
    grid = np.full(table.shape[::-1], empty)
    grid[table.index[:, 1], table.index[:, 0]] = values
    return grid


def _axis_labels(table: BinTable, axis: int) -> tuple[str, ...]:
    """Ends of the bins along an axis; quantiles where the ends differ from bin to bin."""
    low, high = np.full((2, table.shape[axis]), np.nan)
    for position in np.unique(table.index[:, axis]):
        edges = table.edges[table.index[:, axis] == position, axis]
        low[position], high[position] = edges[:, 0].min(), edges[:, 1].max()
    used = np.flatnonzero(~np.isnan(low))
    whole = table.axes[axis] in WHOLE_AXES
    gaps = low[used[1:]] - high[used[:-1]]
    if np.any(gaps < (1.0 if whole else 0.0)):
        return tuple(f"Q{position + 1}" for position in range(table.shape[axis]))
    return tuple(
        "" if np.isnan(first) else range_label(first, last, whole)
        for first, last in zip(low.tolist(), high.tolist(), strict=True)
    )


def range_label(low: float, high: float, whole: bool) -> str:
    """Both ends of a bin in few letters, such as ``0.999–1`` or ``3–20``."""
    if low == high:
        return f"{low:.0f}" if whole else _significant(low, 2)
    if whole:
        return f"{low:.0f}–{high:.0f}"
    # Enough digits to tell the ends apart: confident models have bins like 0.9993–1.
    digits = 2
    while digits < _MOST_DIGITS and _significant(low, digits) == _significant(high, digits):
        digits += 1
    return f"{_significant(low, digits)}–{_significant(high, digits)}"


def _significant(value: float, digits: int) -> str:
    """A number with so many digits; large numbers are written out, not as 3.5e+02."""
    return number_text(value, ".0f" if abs(value) >= 10.0**digits else f".{digits}g")


def two_digits(value: float) -> str:
    """A coverage in few letters, such as ``.95``, ``.70`` or ``1``."""
    text = f"{value:.2f}"
    return "1" if text == "1.00" else text.removeprefix("0")


def size_data(evaluations: Sequence[Evaluation]) -> tuple[list[str], Floats]:
    """Shares of sets by size: names of the ranges, and shares of shape (methods, ranges).

    Every small size is a range by itself; then ranges grow geometrically.
    """
    largest = max(int(item.sizes.values.max()) for item in evaluations)
    starts = np.arange(largest + 1)
    if largest > _SINGLE_SIZES:
        steps = int(np.ceil(np.log(largest) / np.log(_SIZE_GROWTH)))
        grown = np.unique(np.round(_SIZE_GROWTH ** np.arange(steps + 1)).astype(np.int64))
        starts = np.append(0, grown[grown <= largest])
    edges = np.append(starts, largest + 1)
    counts = [
        np.histogram(item.sizes.values, edges, weights=item.sizes.counts)[0] for item in evaluations
    ]
    labels = [range_label(low, high - 1, True) for low, high in pairwise(edges.tolist())]
    return labels, np.array([row / row.sum() for row in counts])


def _table(evaluation: Evaluation, name: str) -> BinTable:
    if not isinstance(name, str) or name not in evaluation.tables:
        raise InputError(f"there is no table {name!r}; there are {list(evaluation.tables)}.")
    return evaluation.tables[name]


def _as_list(runs: Runs) -> list[Evaluation]:
    evaluations: list[Any] = list(runs) if isinstance(runs, list | tuple) else [runs]
    if not evaluations or not all(isinstance(item, Evaluation) for item in evaluations):
        raise InputError("evaluation must be an Evaluation or a non-empty list of them.")
    return evaluations


# ---- Numbers and names, as people read them ---------------------------------------------------

# Written for a number that is undefined.
NONE = "–"


def division_title(name: str) -> str:
    """Name of a division of the samples for people, such as ``Conf × Trust``."""
    text = table_title(name)
    return text.replace(" x ", " × ") if name in METRICS else text


def fixed(value: float, digits: int) -> str:
    """A finite number with so many digits, halves rounded away from zero as in JavaScript."""
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):,}"


def percent(share: float, digits: int = 1) -> str:
    """A share in percent, such as ``89.7%``."""
    return NONE if math.isnan(share) else f"{fixed(100.0 * share, digits)}%"


def number(value: float, digits: int = 2) -> str:
    """A number with a fixed number of digits; a true minus sign."""
    return NONE if math.isnan(value) else fixed(value, digits).replace("-", "−")


def interval(low: float, high: float, digits: int = 2) -> str:
    """Both ends of an interval, such as ``5.31–6.40``; empty where undefined."""
    if math.isnan(low) or math.isnan(high):
        return ""
    # Next to a minus sign a dash would be read as another one.
    dash = " to " if low < 0.0 else "–"
    return f"{number(low, digits)}{dash}{number(high, digits)}"


def range_of(low: float, high: float, digits: int = 1) -> str:
    """An interval of shares in percent without the sign, such as ``89.1–90.3``."""
    return interval(100.0 * low, 100.0 * high, digits)


def p_value(value: float) -> str:
    """A p-value with as many digits as anyone uses, such as ``0.043`` or ``<0.001``."""
    return "<0.001" if value < 0.001 else fixed(value, 3)


def joined(parts: Sequence[str]) -> str:
    """A list in a sentence: ``a, b and c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


# ---- Figures ----------------------------------------------------------------------------------


@styled
def coverage_heatmap(
    evaluation: Runs,
    table: str = "conf_trust",
    ax: "Axes | None" = None,
) -> "Axes":
    """Coverage in bins over two axes: blue above, orange below, white at 1 - alpha.

    `table` is over two axes, such as ``"conf_trust"``, ``"conf_rank"``, ``"conf_frequency"``; of
    several evaluations (seeds) the mean is shown. Bins without samples are hatched. So are bins of
    fewer than 10, with their coverage in grey.
    """
    from matplotlib.colors import to_hex

    data = heatmap_data(evaluation, table)
    ax = ax if ax is not None else _new_axes((0.72 * len(data.columns) + 1.2, 3.0))
    cmap, norm = _colour_scale(data.target)
    shown = np.where(data.few, np.nan, data.coverage)
    ax.imshow(shown, cmap=cmap, norm=norm, origin="lower", aspect="auto")
    for (row, column), value in np.ndenumerate(data.coverage):
        if np.isnan(value):
            continue
        font = TEXT[_in_use.get()[1]][2]
        look: dict[str, Any] = {"color": text_on(to_hex(cmap(norm(float(value)))))}
        if data.few[row, column]:
            box = {"fc": theme_colour("page"), "ec": "none", "pad": 0.6}
            look = {"color": theme_colour("quiet"), "bbox": box}
        ax.text(column, row, two_digits(value), ha="center", va="center", fontsize=font, **look)
    ax.patch.set(facecolor=theme_colour("page"), edgecolor=theme_colour("rule"), hatch="////")
    ax.set_xticks(range(len(data.columns)), data.columns, rotation=45, ha="right")
    ax.set_yticks(range(len(data.rows)), data.rows)
    ax.set(xlabel=data.axes[0], ylabel=data.axes[1])
    ax = tidy(ax)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


@styled
def add_coverage_bar(figure: "Figure", axes: Any, target: float) -> None:
    """Explain the colours of heatmaps below an array of axes of shape (rows, columns)."""
    from matplotlib.cm import ScalarMappable

    cmap, norm = _colour_scale(target)
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


def _colour_scale(target: float) -> "tuple[LinearSegmentedColormap, TwoSlopeNorm]":
    """The page's colour at the target; the scale is fixed, so that figures can be compared."""
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm

    colours = COVERAGE_COLOURS[_in_use.get()[0]]
    norm = TwoSlopeNorm(vcenter=target, vmin=deepest_coverage(target), vmax=1.0)
    return LinearSegmentedColormap.from_list("coverage", colours), norm


@styled
def coverage_by_group(
    evaluations: Evaluation | Mapping[str, Evaluation],
    table: str,
    ax: "Axes | None" = None,
    *,
    most: int = 40,
) -> "Axes":
    """Coverage of each group with its exact interval; the worst of the first method on top.

    `table` is any table, such as ``"group:sex"`` or ``"class"``, of one method or of several on the
    same samples. The `most` groups of lowest coverage are shown.
    """
    check_arguments(Positive, most=most)
    methods = evaluations if isinstance(evaluations, Mapping) else {"": evaluations}
    first = _as_list(list(methods.values()))[0]
    shown = _table(first, table)
    order = np.argsort(shown.coverage, kind="stable")[:most].tolist()
    height = {shown.labels[j]: i for i, j in enumerate(order)}
    size = (5.0, (0.1 + 0.16 * len(methods)) * len(height) + 1.2)
    ax = ax if ax is not None else _new_axes(size)
    for i, (name, item) in enumerate(methods.items()):
        data = _table(item, table)
        bins = [j for j, label in enumerate(data.labels) if label in height]
        offset = 0.6 / len(methods) * (i - (len(methods) - 1) / 2.0)
        y = [height[data.labels[j]] + offset for j in bins]
        bars = np.stack([data.coverage - data.lower, data.upper - data.coverage])[:, bins]
        look = method_style(i) | {"ls": "none"}
        ax.errorbar(data.coverage[bins], y, xerr=bars, label=name, **look)
    ax.axvline(1.0 - first.alpha, color=theme_colour("quiet"), ls="--", lw=1)
    texts = [f"{shown.labels[j]} (n={shown.count[j]})" for j in order]
    ax.set_yticks(range(len(texts)), texts)
    ax.set_ylim(len(texts) - 0.5, -0.5)
    ax.set_xlabel("Coverage")
    if len(methods) > 1:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(methods))
    return tidy(ax)


def _new_axes(size: tuple[float, float]) -> "Axes":
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]
