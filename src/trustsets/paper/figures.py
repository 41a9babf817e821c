"""The paper's figures, from the runs of one or several datasets.

Figure 1 shows the coverage of STANDARD by confidence and rank and by confidence and trust. Figures
3 and 4 compare methods by trust and by rank. Figures 2 and 7 show CovGap over balls, figure 5 the
effect of the degree, figure 6 trust against rank. Panels are half a page wide. A single dataset has
its heatmaps in one column; several datasets have one row each.
"""

from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trustsets import plots
from trustsets._common import storage
from trustsets._common.house_style import DPI, HALF_WIDTH, house_style
from trustsets.metrics.result import Evaluation
from trustsets.paper.experiment import RANK_SHOWN, Cell, Run
from trustsets.paper.methods import CONDITIONAL, DEFAULT, NAIVE, PCA, STANDARD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_figures"]

_SCORE = "APS"
_COLOURS = 256
# Sizes in inches; the space below heatmaps is for their scale of colours.
_PANEL_HEIGHT, _HEATMAP_HEIGHT, _SCALE_HEIGHT = 2.6, 1.55, 0.45
_COLUMNS = 2

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
    with mpl.rc_context({"backend": "agg"}), house_style():
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
    figure.savefig(drawn, format="png", dpi=DPI["print"])
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
    size = (HALF_WIDTH * n_columns, height * n_rows + below)
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
            draw = partial(plots.ball_curves, shown, errors=_ball_errors(run), legend=False)
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
    return plots.degree_curves(shown) if shown else None


def _by_degree(run: Run, score: str) -> dict[int, list[Evaluation]]:
    cells = {degree: Cell(score, CONDITIONAL, degree) for degree in run.options.degrees}
    known = run.evaluations
    return {degree: known[cell] for degree, cell in cells.items() if cell in known}


def _trust_rank(runs: Sequence[Run]) -> "Figure | None":
    panels = [
        (run.source.name, partial(plots.trust_against_rank, run.source.tested, run.trust))
        for run in runs
        if run.trust is not None
    ]
    return _grid(panels, min(_COLUMNS, len(panels)), _PANEL_HEIGHT)[0] if panels else None
