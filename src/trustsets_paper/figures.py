"""The paper's figures, from the runs of one or several datasets.

Figure 1 shows the coverage of STANDARD by confidence and rank and by confidence and trust. Figures
3 and 4 compare methods by trust and by rank. Figures 2 and 7 show CovGap over balls, figure 5 the
effect of the degree, figure 6 trust against rank. Panels are half a page wide. A single dataset has
its heatmaps in one column; several datasets have one row each.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trustsets import InputError, plots
from trustsets.metrics import Evaluation
from trustsets.resuming import atomic_path
from trustsets_paper.balls import BallCurve
from trustsets_paper.protocol import (
    CONDITIONAL,
    DEFAULT,
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

__all__ = ["ball_curves", "draw_figures"]

_SCORE = "APS"
_COLOURS = 256
_DPI = 200
# Sizes in inches; the space below heatmaps is for their scale of colours.
_HALF_WIDTH, _PANEL_HEIGHT, _HEATMAP_HEIGHT, _SCALE_HEIGHT = 3.5, 2.6, 1.55, 0.45
_COLUMNS = 2
_MARKERS = "os^Dv"

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
    with mpl.rc_context({"backend": "agg"}), plots.house_style():
        for name, make in makers.items():
            figure = make()
            if figure is not None:
                _save(figure, folder / f"{name}.png")
                captions[name] = _caption(name, runs)
    return captions


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


def _save(figure: "Figure", path: Path) -> None:
    """Write a small PNG: few colours are in use, so a palette loses nothing that shows."""
    from matplotlib import pyplot as plt
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    plt.close(figure)
    with atomic_path(path) as temporary, Image.open(drawn) as image:
        few = image.convert("RGB").quantize(
            _COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        few.save(temporary, format="PNG", optimize=True)


def _cell(run: Run, method: str) -> Cell:
    """A method with the score and the degree of the figures."""
    return Cell(_SCORE, method, run.options.degree if method == CONDITIONAL else None)


def _heatmaps(
    runs: Sequence[Run], cells: Sequence[tuple[str, str]], least: int = 1
) -> "Figure | None":
    """Heatmaps of methods and tables, for each dataset that has all of those which any has."""

    def evaluations(run: Run, method: str) -> list[Evaluation]:
        return run.evaluations.get(_cell(run, method), [])

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
    size = (_HALF_WIDTH * n_columns, height * n_rows + below)
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
        curves = {name: run.balls.get(_cell(run, name), []) for name in methods}
        # Methods all of whose seeds drew balls of some radius.
        drawn = {
            name: seeds
            for name, seeds in curves.items()
            if seeds and all(curve.radii.size for curve in seeds)
        }
        if drawn:
            panels.append((run.source.name, partial(ball_curves, drawn, errors=_ball_errors(run))))
    if not panels:
        return None
    figure, axes = _grid(panels, min(_COLUMNS, len(panels)), _PANEL_HEIGHT)
    plots.legend_below(axes.flat[0], figure)
    return figure


def _ball_errors(run: Run) -> Literal["seeds", "trials"]:
    """What error bars of balls are taken over; the authors' code takes them over trials."""
    return "trials" if run.options.balls == "growing" else "seeds"


def ball_curves(
    curves: Mapping[str, Sequence[BallCurve]],
    ax: "Axes",
    *,
    errors: Literal["seeds", "trials"] = "seeds",
) -> None:
    """Draw CovGap over balls against their radius.

    Parameters
    ----------
    curves : mapping of str to sequence of BallCurve
        Methods, each with one curve for each seed; all balls have the same radii.
    ax : Axes
        Where to draw.
    errors : {"seeds", "trials"}
        Standard errors over seeds (over trials if there is one seed), or over trials only.
    """
    for i, (name, seeds) in enumerate(curves.items()):
        radii, gap, error, floor = _mean_curve(seeds, errors)
        style: dict[str, Any] = {"color": f"C{i}", "marker": _MARKERS[i % len(_MARKERS)]}
        ax.errorbar(radii, gap, error, label=name, ms=3.5, lw=1.2, capsize=2, **style)
        if i == 0:  # the noise floor is the same for all methods
            lowest = radii, floor
    ax.plot(*lowest, ls=":", color="grey", label="noise floor")
    ax.set(xlabel="Radius of the ball", ylabel="CovGap (%)")
    ax.set_ylim(bottom=0)


def _mean_curve(
    curves: Sequence[BallCurve], errors: Literal["seeds", "trials"]
) -> tuple[Any, Any, Any, Any]:
    """Radii that all seeds have, with the mean gap, its standard error and the mean floor."""
    radii = reduce(np.intersect1d, [curve.radii for curve in curves])
    if not radii.size:
        raise InputError(
            "the seeds share no radius; draw all balls with the same Balls(radii=...)."
        )
    at = [np.searchsorted(curve.radii, radii) for curve in curves]
    gaps, trial_errors, floors = (
        np.stack([getattr(curve, name)[index] for curve, index in zip(curves, at, strict=True)])
        for name in ("gap", "standard_error", "floor")
    )
    if len(curves) > 1 and errors == "seeds":
        error = gaps.std(axis=0, ddof=1) / np.sqrt(len(curves))
    else:  # trials of different seeds are drawn independently
        error = np.sqrt(np.square(trial_errors).sum(axis=0)) / len(curves)
    return radii, gaps.mean(axis=0), error, floors.mean(axis=0)


def _degrees(runs: Sequence[Run]) -> "Figure | None":
    """A curve for each score of the one dataset, or for each of several datasets."""
    if len(runs) == 1:
        curves = {score: _by_degree(runs[0], score) for score in runs[0].options.scores}
    else:
        curves = {run.source.name: _by_degree(run, _SCORE) for run in runs}
    shown = {name: curve for name, curve in curves.items() if len(curve) > 1}
    return plots.degree_curves(shown) if shown else None


def _by_degree(run: Run, score: str) -> dict[int, list[Evaluation]]:
    cells = {degree: Cell(score, CONDITIONAL, degree) for degree in run.options.degrees}
    return {
        degree: run.evaluations[cell] for degree, cell in cells.items() if cell in run.evaluations
    }


def _trust_rank(runs: Sequence[Run]) -> "Figure | None":
    panels = [
        (run.source.name, partial(plots.trust_against_rank, run.source.tested))
        for run in runs
        if run.source.has_trust
    ]
    return _grid(panels, min(_COLUMNS, len(panels)), _PANEL_HEIGHT)[0] if panels else None
