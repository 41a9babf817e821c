"""The paper's figures over several datasets, a panel or a curve for each. Imports figures.

1: STANDARD by Conf x Rank and Conf x Trust. 2: balls. 3, 4: STANDARD and CONDITIONAL by Conf x
Trust and Conf x Rank. 5: degree. 6: Trust against Rank. 7: balls with principal components.
Panels are half a page wide, two to a row.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trustsets import plots
from trustsets.paper.experiment import RANK_SHOWN, Run
from trustsets.paper.figures import (
    STYLE,
    ball_errors,
    degrees_of,
    evaluations_of,
    save_figure,
    with_balls,
)
from trustsets.paper.methods import CONDITIONAL, DEFAULT, NAIVE, PCA, STANDARD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CROSS_CAPTIONS", "draw_cross_figures"]

_SCORE = "APS"
_COLUMNS = 2
_PANEL = (3.5, 2.6)
_HEATMAP_HEIGHT = 1.55

CROSS_CAPTIONS = {
    "figure1": "Coverage of STANDARD by confidence and rank (left), confidence and trust (right)",
    "figure2": "CovGap over balls in feature space against their radius",
    "figure3": "Coverage of STANDARD (left) and CONDITIONAL (right) by confidence and trust",
    "figure4": "Coverage of STANDARD (left) and CONDITIONAL (right) by confidence and rank",
    "figure5": "CovGap over Conf x Trust and mean set size of CONDITIONAL against the degree",
    "figure6": "Trust against the rank of the true class",
    "figure7": "CovGap over balls, principal components of the features included",
}
"""What the figures show, by the name of their file."""

Cells = Sequence[tuple[str, str]]
"""Methods and tables of the heatmaps of one dataset, from left to right."""


def draw_cross_figures(runs: Sequence[Run], folder: Path) -> dict[str, Path]:
    """Draw what the runs allow as PNG files, each written whole or not at all."""
    import matplotlib as mpl

    by_trust = [(STANDARD, "conf_trust"), (CONDITIONAL, "conf_trust")]
    by_rank = [(STANDARD, RANK_SHOWN), (CONDITIONAL, RANK_SHOWN)]
    main = (STANDARD, NAIVE, CONDITIONAL)
    makers: dict[str, Callable[[Sequence[Run]], Figure | None]] = {
        "figure1": lambda own: _heatmaps(own, [(STANDARD, RANK_SHOWN), (STANDARD, "conf_trust")]),
        "figure2": lambda own: _panels(own, _balls_of((*main, DEFAULT))),
        "figure3": lambda own: _heatmaps(own, by_trust),
        "figure4": lambda own: _heatmaps(own, by_rank),
        "figure5": _degrees,
        "figure6": lambda own: _panels(own, _trust_rank),
        "figure7": lambda own: _panels(own, _balls_of((*main, PCA))),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    with mpl.rc_context(STYLE):
        for name, make in makers.items():
            figure = make(runs)
            if figure is not None:
                written[name] = folder / f"{name}.png"
                save_figure(figure, written[name])
    return written


def _heatmaps(runs: Sequence[Run], cells: Cells) -> "Figure | None":
    """One row of heatmaps for each dataset that has all of them."""
    from matplotlib import pyplot as plt

    shown = [run for run in runs if all(_has(run, *cell) for cell in cells)]
    if not shown:
        return None
    size = (_PANEL[0] * len(cells), _HEATMAP_HEIGHT * len(shown) + 0.45)
    figure, axes = plt.subplots(
        len(shown), len(cells), figsize=size, squeeze=False, layout="constrained"
    )
    for run, row in zip(shown, axes, strict=True):
        for ax, (method, table) in zip(row, cells, strict=True):
            plots.coverage_heatmap(evaluations_of(run, method), table, ax)
            ax.set_title(f"{run.source.name}: {method}", fontsize=8)
    for ax in axes[:-1].flat:
        ax.set_xlabel("")
    plots.add_coverage_bar(figure, axes, 1.0 - shown[0].options.alpha)
    return figure


def _has(run: Run, method: str, table: str) -> bool:
    own = evaluations_of(run, method)
    return bool(own) and table in own[0].tables


def _panels(runs: Sequence[Run], draw: "Callable[[Run, Axes | None], bool]") -> "Figure | None":
    """One panel for each dataset that `draw` can draw; it is asked without axes first."""
    from matplotlib import pyplot as plt

    shown = [run for run in runs if draw(run, None)]
    if not shown:
        return None
    n_columns = min(_COLUMNS, len(shown))
    n_rows = -(-len(shown) // n_columns)
    size = (_PANEL[0] * n_columns, _PANEL[1] * n_rows)
    figure, axes = plt.subplots(
        n_rows, n_columns, figsize=size, squeeze=False, layout="constrained"
    )
    for run, ax in zip(shown, axes.flat, strict=False):
        draw(run, ax)
        ax.set_title(run.source.name, fontsize=8)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    if axes.flat[0].get_legend() is None:  # one legend for all panels
        plots.legend_below(axes.flat[0], figure)
    return figure


def _balls_of(methods: Sequence[str]) -> "Callable[[Run, Axes | None], bool]":
    def draw(run: Run, ax: "Axes | None") -> bool:
        shown = with_balls(run, methods)
        if shown and ax is not None:
            plots.ball_curves(shown, ax, errors=ball_errors(run), legend=False)
        return bool(shown)

    return draw


def _trust_rank(run: Run, ax: "Axes | None") -> bool:
    if run.trust is not None and ax is not None:
        outputs = run.source.parts[run.source.test_part]
        plots.trust_against_rank(outputs, run.trust, ax)
    return run.trust is not None


def _degrees(runs: Sequence[Run]) -> "Figure | None":
    curves = {run.source.name: degrees_of(run, _SCORE) for run in runs}
    shown = {name: own for name, own in curves.items() if len(own) > 1}
    return plots.degree_curves(shown) if shown else None
