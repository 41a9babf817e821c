"""The picture of the home page: coverage by confidence and trust, ordinary sets and ours.

    python studies/before_after.py --bench DIR

Halves of the CIFAR-100 pool calibrate and test, for seeds 1 to 10; cells pool the test samples of
all seeds. The middle panel has ordinary sets at the alpha that makes them as large as ours.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from recipes import Task, make_task

from trustsets import ConditionalConformal, ModelOutputs, StandardConformal
from trustsets._common.atomic import atomic_path
from trustsets._common.progress import progress_bar
from trustsets.plots import shade, styled, theme_colour

ALPHA = 0.1
SEEDS = range(1, 11)
CONF = (0.5, 0.8, 0.95)
TRUST = (1.0, 1.1, 1.2, 1.5)
FEWEST = 100
DOCS = Path(__file__).resolve().parents[1] / "docs"
METHODS = ("ordinary sets", "ordinary sets, enlarged", "trustsets")
Floats = NDArray[np.float64]


class Cells:
    """Hits and samples by trust and confidence, and the sizes of sets."""

    def __init__(self) -> None:
        self.hits = np.zeros((len(TRUST) + 1, len(CONF) + 1))
        self.samples = np.zeros_like(self.hits)
        self.sizes: list[float] = []
        self.coverages: list[float] = []

    def add(self, sets: Any, test: ModelOutputs, trust: Floats) -> None:
        """Count the test samples of one split."""
        place = np.digitize(trust, TRUST), np.digitize(test.confidence, CONF)
        hit = sets.covers(test.labels)
        np.add.at(self.hits, place, hit)
        np.add.at(self.samples, place, 1.0)
        self.sizes.append(float(sets.sizes.mean()))
        self.coverages.append(float(hit.mean()))

    @property
    def coverage(self) -> Floats:
        """Coverage of each cell; NaN where samples are too few."""
        enough = np.where(self.samples >= FEWEST, self.samples, np.nan)
        return np.asarray(self.hits / enough)


def enlarged(predictor: StandardConformal, test: ModelOutputs, size: float) -> Any:
    """Ordinary sets at the largest alpha whose sets are at least of this mean size."""
    low, high = 0.001, ALPHA
    for _ in range(14):
        middle = (low + high) / 2.0
        large = predictor.predict_set(test, alpha=middle).sizes.mean() >= size
        low, high = (middle, high) if large else (low, middle)
    return predictor.predict_set(test, alpha=low)


def measure(task: Task) -> dict[str, Cells]:
    """Cells of the three methods."""
    cells = {method: Cells() for method in METHODS}
    with progress_bar("splits", len(SEEDS)) as advance:
        for seed in SEEDS:
            calibration, test = task.pool.split(0.5, seed=seed, stratify=True)
            trust = task.trust.score(test.features, test.predicted)
            ours = ConditionalConformal(trust=task.trust).calibrate(calibration)
            ordinary = StandardConformal().calibrate(calibration)
            found = ours.predict_set(test, alpha=ALPHA)
            cells["trustsets"].add(found, test, trust)
            cells["ordinary sets"].add(ordinary.predict_set(test, alpha=ALPHA), test, trust)
            larger = enlarged(ordinary, test, float(found.sizes.mean()))
            cells["ordinary sets, enlarged"].add(larger, test, trust)
            advance(1)
    return cells


def ranges(edges: tuple[float, ...]) -> list[str]:
    """Names of the bins between edges."""
    inner = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    return [f"below {edges[0]:g}", *inner, f"above {edges[-1]:g}"]


@styled
def draw(cells: dict[str, Cells], path: Path) -> None:
    """Three heatmaps, one for each method."""
    figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.8), sharey=True, layout="constrained")
    for ax, (method, cell) in zip(axes, cells.items(), strict=True):
        _panel(ax, cell.coverage)
        size, coverage = np.mean(cell.sizes), np.mean(cell.coverages)
        ax.set_title(f"{method}\n{coverage:.1%} on average, {size:.1f} classes a set")
        ax.set_xticks(range(len(CONF) + 1), ranges(CONF))
        ax.set_xlabel("confidence")
    axes[0].set_yticks(range(len(TRUST) + 1), ranges(TRUST))
    axes[0].set_ylabel("trust")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def _panel(ax: Any, coverage: Floats) -> None:
    for (row, column), value in np.ndenumerate(coverage):
        known = bool(np.isfinite(value))
        shown = shade(value, 1.0 - ALPHA) if known else None
        fill, ink = (shown.light, shown.light_ink) if shown else (theme_colour("panel"), theme_colour("quiet"))
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fc=fill, ec=theme_colour("rule")))
        text = f"{100 * value:.0f}%" if known else "few"
        ax.text(column, row, text, ha="center", va="center", color=ink)
    ax.set(xlim=(-0.5, coverage.shape[1] - 0.5), ylim=(-0.5, coverage.shape[0] - 0.5))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def table(cells: dict[str, Cells]) -> str:
    """The figure's numbers in Markdown."""
    conf, trust = ranges(CONF), ranges(TRUST)
    lines = [
        "# Coverage by confidence and trust",
        "",
        "Made by `studies/before_after.py`: CIFAR-100, alpha = 0.1, halves by seeds 1 to 10, cells "
        f"pooled over seeds; cells of fewer than {FEWEST} samples are left out. Samples are in "
        "brackets. This is one of the three sets of outputs that the defaults were chosen on.",
    ]
    for method, cell in cells.items():
        size, coverage = np.mean(cell.sizes), np.mean(cell.coverages)
        lines += [
            "",
            f"**{method}**: coverage {coverage:.3f}, size {size:.2f}",
            "",
            "| trust \\ confidence | " + " | ".join(conf) + " |",
            "|---|" + "---:|" * len(conf),
        ]
        for name, values, counts in zip(trust, cell.coverage, cell.samples, strict=True):
            shown = [
                f"{value:.4f} ({count:,.0f})" if np.isfinite(value) else f"({count:,.0f})"
                for value, count in zip(values, counts, strict=True)
            ]
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, draw, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True, help="folder of model outputs")
    cells = measure(make_task("cifar100", parser.parse_args().bench))
    draw(cells, DOCS / "figures" / "before_after.png")
    text = table(cells)
    with atomic_path(DOCS / "results" / "before_after.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
