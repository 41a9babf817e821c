"""The paper's figures, from the runs of one or several datasets.

A single dataset has its heatmaps in one column; several datasets have one row each.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trustsets import ModelOutputs, plots
from trustsets.metrics import Evaluation, label_ranks
from trustsets.storage import atomic_path
from trustsets_paper import Floats, Ints
from trustsets_paper.balls import BallCurve
from trustsets_paper.protocol import (
    CONDITIONAL,
    DEFAULT,
    MAIN_SCORE,
    NAIVE,
    PCA,
    RANK_SHOWN,
    STANDARD,
    Cell,
    Run,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ball_curves", "degree_curves", "draw_figures", "trust_against_rank"]

# Sizes in inches; the space below heatmaps is for their scale of colours.
_PANEL_HEIGHT, _HEATMAP_HEIGHT, _SCALE_HEIGHT = 2.6, 1.55, 0.45
_COLUMNS = 2
_FLOOR = "noise floor"
# Curves over whole numbers are shifted by this much.
_DODGE = 0.2
_SHOWN_SAMPLES = 4000
_STEPS_PER_DOUBLING = 2
# Of the trust scores, whose largest values would leave no room for the others.
_LARGEST_TRUST = 0.999

_HATCHED = "; hatched where there are no samples"
_EDGES = "; unless edges are asked for, rank 1 stands apart and other bins are nearly of one size"
_BARS = (
    "; error bars describe the random choice of balls, as in the paper: the standard deviation "
    "over trials, divided by the root of their number"
)
_CAPTIONS = {
    "figure1": f"Coverage of STANDARD by Conf and Rank, and by Conf and Trust{_HATCHED}{_EDGES}",
    "figure2": f"CovGap over balls in feature space against their radius{_BARS}",
    "figure3": f"Coverage by confidence and trust{_HATCHED}",
    "figure4": f"Coverage by confidence and rank{_HATCHED}{_EDGES}",
    "figure5": "CovGap over Conf x Trust and mean set size of CONDITIONAL against the degree",
    "figure6": "Trust against the logarithm of the rank of the true class",
    "figure7": f"CovGap over balls, principal components of the features included{_BARS}",
}

Panel = tuple[str, Callable[..., Any]]
"""A title, and a function that draws on the axes given as ``ax``."""


def draw_figures(runs: Sequence[Run], folder: Path) -> dict[str, str]:
    """Draw what the runs allow as PNG files, each whole or not at all; gives their captions."""
    import matplotlib as mpl

    compared = (STANDARD, CONDITIONAL, DEFAULT) if len(runs) == 1 else (STANDARD, CONDITIONAL)
    main = (STANDARD, NAIVE, CONDITIONAL)
    makers: dict[str, Callable[[], Figure | None]] = {
        "figure1": lambda: _heatmaps(runs, [(STANDARD, RANK_SHOWN), (STANDARD, "conf_trust")]),
        "figure2": lambda: _ball_panels(runs, (*main, DEFAULT)),
        "figure3": lambda: _heatmaps(runs, [(name, "conf_trust") for name in compared], least=2),
        "figure4": lambda: _heatmaps(runs, [(name, RANK_SHOWN) for name in compared], least=2),
        "figure5": lambda: _degrees(runs),
        "figure6": lambda: _trust_rank(runs),
        "figure7": lambda: _ball_panels(runs, (*main, PCA)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    captions = {}
    with mpl.rc_context({"backend": "agg"}), plots.style():
        for name, make in makers.items():
            figure = make()
            if figure is not None:
                _save(figure, folder / f"{name}.png")
                captions[name] = _CAPTIONS[name]
    return captions


def _save(figure: "Figure", path: Path) -> None:
    from matplotlib import pyplot as plt

    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=plots.DPI["print"])
    plt.close(figure)


def _heatmaps(
    runs: Sequence[Run], cells: Sequence[tuple[str, str]], least: int = 1
) -> "Figure | None":
    """Heatmaps of methods and tables, for each dataset that has all of those which any has."""

    def evaluations(run: Run, method: str) -> list[Evaluation]:
        return run.evaluations.get(run.cell(method), [])

    def has(run: Run, method: str, table: str) -> bool:
        return any(table in item.tables for item in evaluations(run, method))

    cells = [cell for cell in cells if any(has(run, *cell) for run in runs)]
    shown = [run for run in runs if all(has(run, *cell) for cell in cells)]
    if len(cells) < least or not shown:
        return None
    panels = [
        (
            f"{run.source.name}: {method}",
            partial(plots.coverage_heatmap, evaluations(run, method), table),
        )
        for run, (method, table) in product(shown, cells)
    ]
    n_columns = 1 if len(runs) == 1 else len(cells)
    figure, axes = _grid(panels, n_columns, _HEATMAP_HEIGHT, _SCALE_HEIGHT)
    for ax in axes[:-1].flat:
        ax.set_xlabel("")
    plots.add_coverage_bar(figure, axes, 1.0 - shown[0].options.alpha)
    return figure


def _grid(
    panels: Sequence[Panel], n_columns: int, height: float, below: float = 0.0
) -> tuple["Figure", Any]:
    """Draw panels row by row."""
    from matplotlib import pyplot as plt

    n_rows = -(-len(panels) // n_columns)
    size = (plots.HALF_WIDTH * n_columns, height * n_rows + below)
    figure, axes = plt.subplots(
        n_rows, n_columns, figsize=size, squeeze=False, layout="constrained"
    )
    for ax, (title, draw) in zip(axes.flat, panels, strict=False):
        draw(ax=ax)
        ax.set_title(title)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    return figure, axes


def _ball_panels(runs: Sequence[Run], methods: Sequence[str]) -> "Figure | None":
    panels = []
    for run in runs:
        curves = {name: run.balls.get(run.cell(name), []) for name in methods}
        # Methods all of whose seeds drew balls of some radius.
        drawn = {
            name: seeds
            for name, seeds in curves.items()
            if seeds and all(curve.radii.size for curve in seeds)
        }
        if drawn:
            panels.append((run.source.name, partial(ball_curves, drawn)))
    if not panels:
        return None
    figure, axes = _grid(panels, min(_COLUMNS, len(panels)), _PANEL_HEIGHT)
    _legend_below(axes.flat[0], figure)
    return figure


def _legend_below(ax: "Axes", figure: "Figure") -> None:
    """Name the methods and the noise floor below all axes of a figure."""
    entries = zip(*ax.get_legend_handles_labels(), strict=True)
    handles, labels = zip(*sorted(entries, key=lambda entry: entry[1] == _FLOOR), strict=True)
    figure.legend(handles, labels, loc="outside lower center", ncols=2)


def ball_curves(curves: Mapping[str, Sequence[BallCurve]], ax: "Axes") -> None:
    """Draw CovGap over balls against their radius, for methods with one curve for each seed.

    All seeds have the same radii. Error bars are standard errors over trials.
    """
    for i, (name, seeds) in enumerate(curves.items()):
        radii = seeds[0].radii
        gaps, errors, floors = (
            np.stack([getattr(curve, field) for curve in seeds])
            for field in ("gap", "standard_error", "floor")
        )
        # Trials of different seeds are drawn independently.
        error = np.sqrt(np.square(errors).sum(axis=0)) / len(seeds)
        ax.errorbar(radii, gaps.mean(axis=0), error, label=name, **plots.method_style(i))
        if i == 0:  # the noise floor is the same for all methods
            quiet = plots.theme_colour("quiet")
            ax.plot(radii, floors.mean(axis=0), ls=":", color=quiet, label=_FLOOR)
    ax.set(xlabel="Radius of the ball", ylabel="CovGap (%)")
    ax.set_ylim(bottom=0)
    plots.tidy(ax)


def _degrees(runs: Sequence[Run]) -> "Figure | None":
    """A curve for each score of the one dataset, or for each of several datasets."""
    if len(runs) == 1:
        curves = {score: _by_degree(runs[0], score) for score in runs[0].options.scores}
    else:
        curves = {run.source.name: _by_degree(run, MAIN_SCORE) for run in runs}
    shown = {name: curve for name, curve in curves.items() if len(curve) > 1}
    return degree_curves(shown) if shown else None


def degree_curves(results: Mapping[str, Mapping[int, Sequence[Evaluation]]]) -> "Figure":
    """CovGap over Conf x Trust and mean size against the degree, one above the other."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(plots.HALF_WIDTH, 4.4), sharex=True, layout="constrained"
    )
    for i, (name, curve) in enumerate(results.items()):
        degrees = np.array(sorted(curve), dtype=np.float64)
        gaps = [[item.tables["conf_trust"].gap for item in curve[degree]] for degree in degrees]
        sizes = [[item.sizes.mean for item in curve[degree]] for degree in degrees]
        # Curves are shifted a little, so that equal ones do not hide each other.
        at = degrees + _DODGE * (i - (len(results) - 1) / 2.0)
        gap = _mean_and_error([[item.value for item in seeds] for seeds in gaps])
        top.errorbar(at, *gap, label=name, **plots.method_style(i))
        floors = [np.mean([item.floor for item in seeds]) for seeds in gaps]
        top.plot(degrees, floors, ls=":", lw=1, color=plots.method_colour(i))
        bottom.errorbar(at, *_mean_and_error(sizes), label=name, **plots.method_style(i))
    top.plot([], [], ls=":", lw=1, color=plots.theme_colour("quiet"), label=_FLOOR)
    top.set_ylabel("Conf x Trust CovGap (%)")
    top.set_ylim(bottom=0)
    bottom.set(xlabel="Degree", ylabel="Mean set size")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    plots.tidy(top)
    plots.tidy(bottom)
    _legend_below(top, figure)
    return figure


def _mean_and_error(values: Sequence[Sequence[float]]) -> Floats:
    """Means over seeds and their standard errors, which are 0 for one seed, shape (2, degrees)."""
    pairs = [plots.mean_and_error(np.asarray(seeds, dtype=np.float64)) for seeds in values]
    columns: Floats = np.array(pairs).T
    return np.nan_to_num(columns)


def _by_degree(run: Run, score: str) -> dict[int, list[Evaluation]]:
    cells = {degree: Cell(score, CONDITIONAL, degree) for degree in run.options.degrees}
    return {
        degree: run.evaluations[cell] for degree, cell in cells.items() if cell in run.evaluations
    }


def _trust_rank(runs: Sequence[Run]) -> "Figure | None":
    panels = [
        (run.source.name, partial(trust_against_rank, run.source.tested))
        for run in runs
        if run.source.has_trust
    ]
    return _grid(panels, min(_COLUMNS, len(panels)), _PANEL_HEIGHT)[0] if panels else None


def trust_against_rank(outputs: ModelOutputs, ax: "Axes") -> None:
    """Trust against log(Rank): samples, and median and quartiles by rank."""
    trust, ranks = np.asarray(outputs.trust), label_ranks(outputs)
    rng = np.random.default_rng(0)
    shown = rng.permutation(ranks.size)[:_SHOWN_SAMPLES]
    # Ranks are integers: a little noise keeps the samples from hiding each other.
    spread = np.log(ranks[shown]) + rng.uniform(-0.12, 0.12, size=shown.size)
    quiet, first = plots.theme_colour("quiet"), plots.method_colour(0)
    ax.scatter(spread, trust[shown], s=3, color=quiet, alpha=0.2, lw=0, rasterized=True)
    middle, (lower, median, upper) = trust_quartiles(trust, ranks)
    ax.fill_between(np.log(middle), lower, upper, color=first, alpha=0.25, lw=0)
    ax.plot(np.log(middle), median, "o-", color=first, ms=4, label="median and quartiles")
    finite = trust[np.isfinite(trust)]
    ax.set_ylim(0.0, 1.1 * float(np.quantile(finite, _LARGEST_TRUST)) if finite.size else 1.0)
    ax.set(xlabel="log(rank of the true class)", ylabel="Trust")
    ax.legend()
    plots.tidy(ax)


def trust_quartiles(trust: Floats, ranks: Ints) -> tuple[Floats, Floats]:
    """Geometric mean rank and quartiles of Trust, shape (3, R), in ranges of growing Rank."""
    # Low ranks have a range each.
    steps = np.arange(_STEPS_PER_DOUBLING * int(np.ceil(np.log2(ranks.max() + 1))) + 1)
    edges = np.unique(np.round(2.0 ** (steps / _STEPS_PER_DOUBLING)))
    ranges = np.searchsorted(edges, ranks, side="right")
    inside = [ranges == number for number in np.unique(ranges)]
    middle: Floats = np.array([np.exp(np.log(ranks[rows]).mean()) for rows in inside])
    quartiles = np.array([np.quantile(trust[rows], [0.25, 0.5, 0.75]) for rows in inside])
    return middle, quartiles.T
