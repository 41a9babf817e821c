"""The paper's figures, from the runs of one or several datasets.

Figure 1 shows the coverage of STANDARD by confidence and rank and by confidence and trust. Figures
3 and 4 compare methods by trust and by rank. Figures 2 and 7 show CovGap over balls, figure 5 the
effect of the degree, figure 6 trust against rank. Panels are half a page wide. A single dataset has
its heatmaps in one column; several datasets have one row each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from trustsets import plots
from trustsets._common import storage
from trustsets._common.arrays import Floats
from trustsets.errors import InputError
from trustsets.metrics import Evaluation, label_ranks
from trustsets.metrics import title as metric_title
from trustsets.outputs import ModelOutputs
from trustsets.paper.experiment import RANK_SHOWN, Cell, Run
from trustsets.paper.methods import CONDITIONAL, DEFAULT, NAIVE, PCA, STANDARD
from trustsets.statistics import SupportsTrust

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "ball_curves",
    "ball_data",
    "degree_curves",
    "degree_data",
    "draw_figures",
    "trust_against_rank",
    "trust_rank_data",
]

Runs = Evaluation | Sequence[Evaluation]

_SCORE = "APS"
_COLOURS = 256
# Sizes in inches; the space below heatmaps is for their scale of colours.
_PANEL_HEIGHT, _HEATMAP_HEIGHT, _SCALE_HEIGHT = 2.6, 1.55, 0.45
_COLUMNS = 2
# Curves over whole numbers are shifted by this much, so that equal ones do not hide each other.
_DODGE = 0.2
_SHOWN_SAMPLES = 4000
# Ranges of Rank: so many until the rank has doubled.
_STEPS_PER_DOUBLING = 2

_CAPTIONS = {
    "figure1": "Coverage of STANDARD by confidence and rank, and by confidence and trust",
    "figure2": "CovGap over balls in feature space against their radius",
    "figure3": "Coverage by confidence and trust",
    "figure4": "Coverage by confidence and rank",
    "figure5": "CovGap over Conf x Trust and mean set size of CONDITIONAL against the degree",
    "figure6": "Trust against the rank of the true class",
    "figure7": "CovGap over balls, principal components of the features included",
}
_BY_RANK, _BY_BALLS = {"figure1", "figure4"}, {"figure2", "figure7"}
_HEATMAPS = {"figure1", "figure3", "figure4"}

Panel = tuple[str, Callable[..., Any]]
"""A title, and a function that draws on the axes given as ``ax``."""


def _caption(name: str, runs: Sequence[Run]) -> str:
    """What a figure shows, by the name of its file."""
    text = _CAPTIONS[name]
    if name in _BY_RANK and not all(run.options.edges_by_hand(run.source.name) for run in runs):
        text += "; rank 1 stands apart, and the other ranks are in bins of nearly equal size"
    if name in _BY_BALLS and _ball_errors(runs[0]) == "trials":
        text += (
            "; error bars describe the random choice of balls, as in the paper: the standard "
            "deviation over trials, divided by the root of their number"
        )
    elif name in _BY_BALLS:
        text += "; error bars are standard errors over seeds, or over trials if there is one"
    if name in _HEATMAPS:
        text += "; hatched where there are no samples"
    return text


def draw_figures(runs: Sequence[Run], folder: Path) -> dict[str, str]:
    """Draw what the runs allow as PNG files, each whole or not at all; gives their captions."""
    import matplotlib as mpl

    compared = (STANDARD, CONDITIONAL, DEFAULT) if len(runs) == 1 else (STANDARD, CONDITIONAL)
    main = (STANDARD, NAIVE, CONDITIONAL)
    makers: dict[str, Callable[[], Figure | None]] = {
        "figure1": lambda: _heatmaps(runs, [(STANDARD, RANK_SHOWN), (STANDARD, "conf_trust")]),
        "figure2": lambda: _balls(runs, (*main, DEFAULT)),
        "figure3": lambda: _heatmaps(runs, [(name, "conf_trust") for name in compared], least=2),
        "figure4": lambda: _heatmaps(runs, [(name, RANK_SHOWN) for name in compared], least=2),
        "figure5": lambda: _degrees(runs),
        "figure6": lambda: _trust_rank(runs),
        "figure7": lambda: _balls(runs, (*main, PCA)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    captions = {}
    with mpl.rc_context({"backend": "agg"}), plots.style():
        for name, make in makers.items():
            figure = make()
            if figure is not None:
                _save(figure, folder / f"{name}.png")
                captions[name] = _caption(name, runs)
    return captions


def _save(figure: "Figure", path: Path) -> None:
    """Write a small PNG: few colours are in use, so a palette loses nothing that shows."""
    from matplotlib import pyplot as plt
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=plots.DPI["print"])
    plt.close(figure)
    with storage.atomic_path(path) as temporary, Image.open(drawn) as image:
        few = image.convert("RGB").quantize(
            _COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        few.save(temporary, format="PNG", optimize=True)


def _evaluations(run: Run, method: str) -> list[Evaluation]:
    """Evaluations of a method with the score of the figures; none if it was not run."""
    degree = run.options.degree if method == CONDITIONAL else None
    return run.evaluations.get(Cell(_SCORE, method, degree), [])


def _heatmaps(
    runs: Sequence[Run], cells: Sequence[tuple[str, str]], least: int = 1
) -> "Figure | None":
    """Heatmaps of methods and tables, for each dataset that has all of those which any has."""

    def has(run: Run, method: str, table: str) -> bool:
        return any(table in item.tables for item in _evaluations(run, method))

    known = [cell for cell in cells if any(has(run, *cell) for run in runs)]
    shown = [run for run in runs if all(has(run, *cell) for cell in known)]
    if len(known) < least or not shown:
        return None
    panels = [
        (
            f"{run.source.name}: {method}",
            partial(plots.coverage_heatmap, _evaluations(run, method), table),
        )
        for run, (method, table) in product(shown, known)
    ]
    n_columns = 1 if len(runs) == 1 else len(known)
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


def _balls(runs: Sequence[Run], methods: Sequence[str]) -> "Figure | None":
    panels = []
    for run in runs:
        found = {name: _evaluations(run, name) for name in methods}
        shown = {name: own for name, own in found.items() if own and _has_curve(own)}
        if shown:
            draw = partial(ball_curves, shown, errors=_ball_errors(run), legend=False)
            panels.append((run.source.name, draw))
    if not panels:
        return None
    figure, axes = _grid(panels, min(_COLUMNS, len(panels)), _PANEL_HEIGHT)
    plots.legend_below(axes.flat[0], figure)
    return figure


def _ball_errors(run: Run) -> Literal["seeds", "trials"]:
    """What error bars of balls are taken over; the authors' code takes them over trials."""
    return "trials" if run.options.balls == "growing" else "seeds"


def _has_curve(own: list[Evaluation]) -> bool:
    """Whether all seeds drew balls of some radius."""
    return all(item.balls is not None and item.balls.radii.size for item in own)


def _degrees(runs: Sequence[Run]) -> "Figure | None":
    """A curve for each score of the one dataset, or for each of several datasets."""
    if len(runs) == 1:
        curves = {score: _by_degree(runs[0], score) for score in runs[0].options.scores}
    else:
        curves = {run.source.name: _by_degree(run, _SCORE) for run in runs}
    shown = {name: own for name, own in curves.items() if len(own) > 1}
    return degree_curves(shown) if shown else None


def _by_degree(run: Run, score: str) -> dict[int, list[Evaluation]]:
    cells = {degree: Cell(score, CONDITIONAL, degree) for degree in run.options.degrees}
    known = run.evaluations
    return {degree: known[cell] for degree, cell in cells.items() if cell in known}


def _trust_rank(runs: Sequence[Run]) -> "Figure | None":
    panels = [
        (run.source.name, partial(trust_against_rank, run.source.tested, run.trust))
        for run in runs
        if run.trust is not None
    ]
    return _grid(panels, min(_COLUMNS, len(panels)), _PANEL_HEIGHT)[0] if panels else None


# ---- Curves --------------------------------------------------------------------------------


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

    def summarise(number: Callable[[Evaluation], float]) -> Floats:
        """Means and standard errors, shape (2, degrees)."""
        values = [np.array([number(item) for item in seeds]) for seeds in runs]
        pairs: Floats = np.array([plots.mean_and_error(row) for row in values]).T
        return np.nan_to_num(pairs)

    gap, gap_error = summarise(lambda item: item.tables[table].gap.value)
    size, size_error = summarise(lambda item: item.sizes.mean)
    floor, _ = summarise(lambda item: item.tables[table].gap.floor)
    return DegreeData(np.array(degrees, np.float64), gap, gap_error, floor, size, size_error)


@plots.styled
def degree_curves(
    results: Mapping[str, Mapping[int, Runs]] | Mapping[int, Runs], table: str = "conf_trust"
) -> "Figure":
    """CovGap and mean size against the degree of the function class, one above the other.

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
        2, 1, figsize=(plots.HALF_WIDTH, 4.4), sharex=True, layout="constrained"
    )
    is_nested = results and all(isinstance(item, Mapping) for item in results.values())
    curves: dict[Any, Any] = dict(results) if is_nested else {"": results}
    for i, (name, item) in enumerate(curves.items()):
        data, look = degree_data(item, table), plots.method_style(i)
        at = data.degrees + _DODGE * (i - (len(curves) - 1) / 2.0)
        top.errorbar(at, data.gap, data.gap_error, label=name, **look)
        top.plot(data.degrees, data.floor, ls=":", lw=1, color=look["color"])
        bottom.errorbar(at, data.size, data.size_error, label=name, **look)
    top.plot([], [], ls=":", lw=1, color=plots.theme_colour("quiet"), label="noise floor")
    top.set_ylabel(f"{metric_title(table + '.gap')} (%)")
    top.set_ylim(bottom=0)
    bottom.set(xlabel="Degree", ylabel="Mean set size")
    for ax in (top, bottom):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        plots.tidy(ax)
    plots.legend_below(top, figure)
    return figure


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
    found = [item.balls for item in _as_list(runs)]
    curves = [curve for curve in found if curve is not None]
    if len(curves) < len(found):
        raise InputError("an evaluation has no balls; evaluate with features.")
    if len(curves) == 1:
        only = curves[0]
        return BallData(only.radii, only.gap, only.standard_error, only.floor)
    radii = reduce(np.intersect1d, [curve.radii for curve in curves])
    if not radii.size:
        raise InputError(
            "the seeds share no radius; draw all balls with the same Balls(radii=...)."
        )
    at = [(curve, np.searchsorted(curve.radii, radii)) for curve in curves]
    mean, error = plots.mean_and_error(np.stack([curve.gap[index] for curve, index in at]))
    floors = np.stack([curve.floor[index] for curve, index in at])
    if errors == "trials":
        # Trials of different seeds are drawn independently.
        squares = np.square([curve.standard_error[index] for curve, index in at])
        error = np.sqrt(squares.sum(axis=0)) / len(curves)
    return BallData(radii, mean, error, floors.mean(axis=0))


@plots.styled
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
    is_new = ax is None
    ax = ax if ax is not None else _new_axes(3.0)
    for i, (name, curve) in enumerate(curves.items()):
        ax.errorbar(curve.radii, curve.gap, curve.error, label=name, **plots.method_style(i))
    first = next(iter(curves.values()))  # the noise floor is the same for all methods
    quiet = plots.theme_colour("quiet")
    ax.plot(first.radii, first.floor, ls=":", color=quiet, label="noise floor")
    ax.set(xlabel="Radius of the ball", ylabel="CovGap (%)")
    ax.set_ylim(bottom=0)
    if legend:
        plots.legend_below(ax, ax.get_figure(root=True) if is_new else None)
    return plots.tidy(ax)


@dataclass(frozen=True, eq=False)
class TrustRankData:
    """Quartiles of Trust for ranges of Rank that grow geometrically."""

    rank: Floats
    median: Floats
    lower: Floats
    upper: Floats
    count: NDArray[np.int64]


def trust_rank_data(trust: Floats, ranks: NDArray[np.int64]) -> TrustRankData:
    """Quartiles of Trust in ranges of Rank; the rank of a range is its geometric mean."""
    # Low ranks have a range each.
    steps = np.arange(_STEPS_PER_DOUBLING * int(np.ceil(np.log2(ranks.max() + 1))) + 1)
    edges = np.unique(np.round(2.0 ** (steps / _STEPS_PER_DOUBLING)))
    ranges = np.searchsorted(edges, ranks, side="right")
    members = [ranges == number for number in np.unique(ranges)]
    lower, median, upper = np.array(
        [np.quantile(trust[inside], [0.25, 0.5, 0.75]) for inside in members]
    ).T
    return TrustRankData(
        rank=np.array([np.exp(np.log(ranks[inside]).mean()) for inside in members]),
        median=median,
        lower=lower,
        upper=upper,
        count=np.array([np.count_nonzero(inside) for inside in members]),
    )


@plots.styled
def trust_against_rank(
    outputs: ModelOutputs, trust: SupportsTrust | Floats, ax: "Axes | None" = None
) -> "Axes":
    """Trust against Rank, both in log scale: samples, and median and quartiles by rank."""
    from matplotlib.ticker import LogLocator, NullFormatter

    values = outputs.with_trust(trust).require_trust("trust_against_rank")
    ranks = label_ranks(outputs)
    data = trust_rank_data(values, ranks)
    ax = ax if ax is not None else _new_axes(2.7)
    rng = np.random.default_rng(0)
    shown = rng.permutation(ranks.size)[:_SHOWN_SAMPLES]
    # Ranks are integers: a little noise keeps the samples from hiding each other.
    spread = ranks[shown] * np.exp(rng.uniform(-0.12, 0.12, size=shown.size))
    quiet, first = plots.theme_colour("quiet"), plots.method_colour(0)
    ax.scatter(spread, values[shown], s=3, color=quiet, alpha=0.2, lw=0, rasterized=True)
    ax.fill_between(data.rank, data.lower, data.upper, color=first, alpha=0.25, lw=0)
    ax.plot(data.rank, data.median, "o-", color=first, ms=4, label="median and quartiles")
    ax.set(xscale="log", yscale="log", ylim=_log_ends(values))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    ax.set(xlabel="Rank of the true class (log scale)", ylabel="Trust (log scale)")
    ax.legend()
    return plots.tidy(ax)


def _log_ends(values: Floats) -> tuple[float, float]:
    """Ends of a log axis that show nearly all samples; a Trust of 0 cannot be shown."""
    shown = values[np.isfinite(values) & (values > 0.0)]
    if not shown.size:
        return 0.1, 10.0
    low, high = np.quantile(shown, [0.001, 0.999])
    return float(low) / 1.1, float(high) * 1.1


def _as_list(runs: Runs) -> list[Evaluation]:
    return [runs] if isinstance(runs, Evaluation) else list(runs)


def _new_axes(height: float) -> "Axes":
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(plots.HALF_WIDTH, height), layout="constrained")[1]
