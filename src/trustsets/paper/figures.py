"""The paper's figures from a run. Imports plots and experiment; matplotlib when drawing.

1: STANDARD by Conf x Rank and Conf x Trust. 2: balls. 3, 4: STANDARD and CONDITIONAL by Conf x
Trust and Conf x Rank. 5: degree. 6: Trust against Rank. 7: balls with principal components.
"""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trustsets import plots
from trustsets._common import storage
from trustsets.metrics.result import Evaluation
from trustsets.paper.experiment import RANK_SHOWN, Cell, Run
from trustsets.paper.methods import CONDITIONAL, DEFAULT, NAIVE, PCA, STANDARD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "STYLE",
    "ball_errors",
    "caption",
    "degrees_of",
    "draw_figures",
    "evaluations_of",
    "save_figure",
    "with_balls",
]

_SCORE = "APS"
_DPI = 200
_COLOURS = 256
STYLE: Any = {"backend": "agg", "font.size": 8, "xtick.labelsize": 7, "ytick.labelsize": 7}
"""Letters that can be read where a figure is half a page wide."""

_CAPTIONS = {
    "figure1": "Coverage of STANDARD by confidence and rank (top), confidence and trust (bottom)",
    "figure2": "CovGap over balls in feature space against their radius",
    "figure3": "Coverage by confidence and trust",
    "figure4": "Coverage by confidence and rank",
    "figure5": "CovGap over Conf x Trust and mean set size of CONDITIONAL against the degree",
    "figure6": "Trust against the rank of the true class",
    "figure7": "CovGap over balls, principal components of the features included",
}
_BY_RANK, _BY_BALLS = {"figure1", "figure4"}, {"figure2", "figure7"}
_HEATMAPS = {"figure1", "figure3", "figure4"}


def caption(name: str, run: Run) -> str:
    """What a figure shows, by the name of its file."""
    text = _CAPTIONS[name]
    if name in _BY_RANK and run.options.edges_by_hand(run.source.name) is None:
        text += "; rank 1 stands apart, and the other ranks are in bins of nearly equal size"
    if name in _BY_BALLS and run.options.balls == "growing":
        text += (
            "; error bars are of the drawing of balls, as in the paper: the standard deviation "
            "over trials over the root of their number"
        )
    elif name in _BY_BALLS:
        text += "; error bars are standard errors over seeds, or over trials if there is one"
    if name in _HEATMAPS:
        text += "; hatched where there are no samples"
    return text


def draw_figures(run: Run, folder: Path) -> dict[str, Path]:
    """Draw what the run allows as PNG files, each written whole or not at all."""
    import matplotlib as mpl

    makers: dict[str, Callable[[Run], Figure | None]] = {
        "figure1": _standard,
        "figure2": lambda own: _balls(own, (STANDARD, NAIVE, CONDITIONAL, DEFAULT)),
        "figure3": lambda own: _heatmaps(own, "conf_trust"),
        "figure4": lambda own: _heatmaps(own, RANK_SHOWN),
        "figure5": _degrees,
        "figure6": _trust_rank,
        "figure7": lambda own: _balls(own, (STANDARD, NAIVE, CONDITIONAL, PCA)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    with mpl.rc_context(STYLE):
        for name, make in makers.items():
            figure = make(run)
            if figure is not None:
                written[name] = folder / f"{name}.png"
                save_figure(figure, written[name])
    return written


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a small PNG: few colours are in use, so a palette loses nothing that shows."""
    from matplotlib import pyplot as plt
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    plt.close(figure)
    with storage.atomic_path(path) as temporary, Image.open(drawn) as image:
        few = image.convert("RGB").quantize(
            _COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        few.save(temporary, format="PNG", optimize=True)


def evaluations_of(run: Run, method: str) -> list[Evaluation]:
    """Evaluations of a method with the score of the figures; none if it was not run."""
    degree = run.options.degree if method == CONDITIONAL else None
    return run.evaluations.get(Cell(_SCORE, method, degree), [])


def _standard(run: Run) -> "Figure | None":
    own = evaluations_of(run, STANDARD)
    if not own:
        return None
    tables = [name for name in (RANK_SHOWN, "conf_trust") if name in own[0].tables]
    return plots.coverage_heatmaps({STANDARD: own}, tables)


def _heatmaps(run: Run, table: str) -> "Figure | None":
    found = {name: evaluations_of(run, name) for name in (STANDARD, CONDITIONAL, DEFAULT)}
    shown = {name: own for name, own in found.items() if own and table in own[0].tables}
    if len(shown) < 2:
        return None
    return plots.coverage_heatmaps(shown, table, stacked=True)


def _balls(run: Run, methods: tuple[str, ...]) -> "Figure | None":
    shown = with_balls(run, methods)
    if not shown:
        return None
    ax = plots.ball_curves(shown, errors=ball_errors(run))
    return ax.figure  # type: ignore[return-value]


def with_balls(run: Run, methods: Sequence[str]) -> dict[str, list[Evaluation]]:
    """Evaluations of those methods that have curves over balls."""
    found = {name: evaluations_of(run, name) for name in methods}
    return {name: own for name, own in found.items() if own and _has_curve(own)}


def ball_errors(run: Run) -> Literal["seeds", "trials"]:
    """What error bars of balls speak of: of the trials, with the authors' balls."""
    return "trials" if run.options.balls == "growing" else "seeds"


def _has_curve(runs: list[Evaluation]) -> bool:
    """Whether all seeds drew balls of some radius."""
    return all(item.balls is not None and item.balls.radii.size for item in runs)


def degrees_of(run: Run, score: str) -> dict[int, list[Evaluation]]:
    """Evaluations of CONDITIONAL by degree, with one score."""
    cells = {degree: Cell(score, CONDITIONAL, degree) for degree in run.options.degrees}
    known = run.evaluations
    return {degree: known[cell] for degree, cell in cells.items() if cell in known}


def _degrees(run: Run) -> "Figure | None":
    curves = {score: degrees_of(run, score) for score in run.options.scores}
    shown = {score: own for score, own in curves.items() if len(own) > 1}
    return plots.degree_curves(shown) if shown else None


def _trust_rank(run: Run) -> "Figure | None":
    if run.trust is None:
        return None
    outputs = run.source.parts[run.source.test_part]
    ax = plots.trust_against_rank(outputs, run.trust)
    return ax.figure  # type: ignore[return-value]
