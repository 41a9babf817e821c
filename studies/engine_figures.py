"""The two figures of docs/engine.md and its table of counts.

Run with ``python studies/engine_figures.py``; it writes PNG files to docs/figures and prints the
table. ``--largest 100000`` leaves the larger problems out.
"""

import argparse
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from trustsets.engine import QuantileModel, fit_quantiles
from trustsets.engine.lanes import WIDTH
from trustsets.engine.path import READ_FOR, Tour, allocate, blank_results, follow_paths
from trustsets.plots import METHOD_COLOURS, THEMES, mixed, style

Array = NDArray[np.float64]

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
ALPHA = 0.1
TESTS = 10_000  # Test points of a tour, and those among them whose path is followed alone.
ALONE = 400
BLUE, ORANGE = METHOD_COLOURS["light"][:2]
GREY, DARK = THEMES["light"]["quiet"], THEMES["light"]["ink"]


class Path2D(NamedTuple):
    """A small problem with a line as function class, and the vertices of one path."""

    x: Array
    scores: Array
    test: float
    weights: Array
    betas: Array


def small_path() -> Path2D:
    """Follow the vertex of one test point by comparing all vertices at every weight."""
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(-1.0, 1.0, 60))
    scores = 1.0 + 0.5 * x + rng.gamma(2.0, 0.35, 60) * (1.2 + 0.6 * x)
    phi, test = np.column_stack([np.ones(60), x]), 1.6
    pairs = np.array(list(combinations(range(60), 2)))
    vertices = np.linalg.solve(phi[pairs], scores[pairs][..., None])[..., 0]
    residuals = scores - vertices @ phi.T
    loss = np.maximum((1.0 - ALPHA) * residuals, -ALPHA * residuals).sum(axis=1)
    gain = vertices @ np.array([1.0, test])
    weights: list[float] = []
    betas: list[Array] = []
    for weight in np.linspace(0.0, 1.0 - ALPHA, 4001):
        best = vertices[np.argmin(loss - weight * gain)]
        if not betas or not np.array_equal(best, betas[-1]):
            weights.append(weight)
            betas.append(best)
    check = fit_quantiles(phi, scores, ALPHA).thresholds([[1.0, test]]).values[0]
    np.testing.assert_allclose(betas[-1] @ [1.0, test], check)
    return Path2D(x, scores, test, np.array(weights), np.array(betas))


def draw_data(axes: Axes, path: Path2D) -> None:
    """Scores against the input, with the fit at every vertex of the path."""
    ends = np.array([-1.05, 1.72])
    axes.scatter(path.x, path.scores, s=13, color=GREY, label="calibration points", zorder=3)
    last = len(path.betas) - 1
    for k, (a, b) in enumerate(path.betas):
        colour = BLUE if k == 0 else ORANGE if k == last else mixed(ORANGE, "#ffffff", 0.6)
        label = {0: "base fit, u = 0", last: f"last fit, u = {1 - ALPHA:.1f}"}.get(k)
        width = 2.0 if label else 1.0
        axes.plot(ends, a + b * ends, color=colour, lw=width, label=label, zorder=width)
    value = path.betas[-1] @ [1.0, path.test]
    axes.axvline(path.test, color=DARK, lw=0.8, ls=":")
    axes.plot(path.test, value, "o", color=ORANGE, ms=7, zorder=4)
    axes.annotate("threshold", (path.test, value), (-8, 5), textcoords="offset points", ha="right")
    axes.set(
        xlabel="input x (dotted: the test point)", ylabel="score", title="The fits of one path"
    )
    axes.legend(loc="upper left")


def draw_vertices(axes: Axes, path: Path2D) -> None:
    """Coefficients: a line per calibration point, where its residual is zero, and the path."""
    a, b = path.betas.T
    wide, high = np.ptp(a), np.ptp(b)
    low, up = a.min() - 0.45 * wide, a.max() + 0.45 * wide
    for x, score in zip(path.x, path.scores, strict=True):
        axes.plot([low, up], [(score - low) / x, (score - up) / x], color=GREY, lw=0.5, alpha=0.6)
    axes.plot(a, b, color=ORANGE, lw=2.0, zorder=3)
    axes.scatter(a[1:-1], b[1:-1], s=26, color="white", edgecolor=ORANGE, zorder=4)
    axes.scatter(a[0], b[0], s=55, color=BLUE, zorder=5)
    axes.scatter(a[-1], b[-1], s=55, color=ORANGE, zorder=5)
    for k, weight in enumerate(path.weights):
        side: dict[str, Any] = {"xytext": (-7, 5), "ha": "right"} if k % 2 else {"xytext": (7, -11)}
        axes.annotate(
            f"{weight:.2f}", path.betas[k], textcoords="offset points", fontsize=8, **side
        )
    axes.set(xlim=(low, up), ylim=(b.min() - 0.3 * high, b.max() + 0.3 * high))
    axes.set(
        xlabel="intercept (grey: a line per calibration point)",
        ylabel="slope",
        title="Its vertices and their weights u",
    )


def draw_path() -> None:
    """Figure 1: a path in two dimensions."""
    path = small_path()
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.9), layout="constrained")
    draw_data(axes[0], path)
    draw_vertices(axes[1], path)
    figure.savefig(FIGURES / "engine_path.png")


class Counts(NamedTuple):
    """Work per test point of one problem."""

    n: int
    fit_pivots: int
    base_pivots: Array
    base_points: Array
    pivots: Array


def simulated(n: int) -> tuple[Array, Array, Array]:
    """Polynomials of degree 5 in two features; skewed scores whose spread grows with one."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.random(n + TESTS), np.exp(0.5 * rng.standard_normal(n + TESTS))])
    scores = rng.gamma(2.0, size=n + TESTS) * (0.2 + x[:, 0])
    powers = [(i, j) for i in range(6) for j in range(6 - i)]
    phi = np.stack([x[:, 0] ** i * x[:, 1] ** j for i, j in powers], axis=1)
    return phi[:n], scores[:n], phi[n:]


def count_work(model: QuantileModel, tests: Array) -> tuple[Array, Array]:
    """Pivots and points read by the path of each test row from the base vertex."""
    order, rows = model._scan_order, model._problem.whitening.apply(tests)
    weights, results = np.full(len(rows), 1.0 - ALPHA), blank_results(len(rows))
    points = np.zeros(len(rows))
    for i in range(len(rows)):
        state, tour = allocate(order.scan), Tour(np.array([i]), np.array([0]))
        follow_paths(rows, weights, tour, order.base, order.scan, results, state)
        points[i] = WIDTH * np.count_nonzero(state.visits[READ_FOR])
    return results.pivots.astype(np.float64), points


def measure(n: int) -> Counts:
    """Counts of one size."""
    phi, scores, tests = simulated(n)
    model = fit_quantiles(phi, scores, ALPHA)
    along = model._follow(
        model._problem.whitening.apply(tests), np.full(len(tests), 1.0 - ALPHA)
    ).pivots
    base = count_work(model, tests[:ALONE])
    return Counts(n, model.certificate.pivots, *base, along.astype(np.float64))


def draw_line(axes: Axes, sizes: list[int], values: list[Array], colour: str, label: str) -> None:
    """The mean over test points, and the 90% quantile as a thin line."""
    axes.plot(sizes, [v.mean() for v in values], "o-", color=colour, ms=4, label=f"{label}, mean")
    high = [np.quantile(v, 0.9) for v in values]
    axes.plot(sizes, high, "--", color=colour, lw=0.9, label="90% quantile")


def draw_scan(counts: list[Counts]) -> None:
    """Figure 2: points scanned and pivots against n."""
    sizes = [c.n for c in counts]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.7), layout="constrained")
    left.plot(sizes, sizes, color=GREY, lw=1.2, ls=":")
    left.annotate(
        "all points", (sizes[-1], sizes[-1]), (-8, 0), textcoords="offset points", ha="right"
    )
    draw_line(left, sizes, [c.base_points for c in counts], BLUE, "from the base vertex")
    left.set(xscale="log", yscale="log", ylim=(10, 3e6), title="Points scanned by one path")
    draw_line(right, sizes, [c.base_pivots for c in counts], BLUE, "from the base vertex")
    draw_line(right, sizes, [c.pivots for c in counts], ORANGE, "on a tour of 10,000")
    right.set(xscale="log", ylim=(0, 21), yticks=range(0, 19, 3), title="Pivots of one path")
    for axes in (left, right):
        axes.set_xlabel("calibration points n")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    right.legend(loc="upper left")
    figure.savefig(FIGURES / "engine_scan.png")


def print_table(counts: list[Counts]) -> None:
    """The table of docs/engine.md."""
    print(
        "| n | pivots of the fit | pivots from the base vertex | points scanned | pivots on a "
        "tour |\n|---:|---:|---:|---:|---:|"
    )
    for c in counts:
        cells = [f"{c.n:,}", f"{c.fit_pivots:,}"]
        points = f"{np.median(c.base_points):,.0f} ({c.base_points.mean():,.0f})"
        cells += [f"{c.base_pivots.mean():.1f}", points, f"{c.pivots.mean():.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Write both figures and print the table."""
    parser = argparse.ArgumentParser(description="Figures of docs/engine.md.")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="largest n")
    options = parser.parse_args()
    counts = [measure(n) for n in SIZES if n <= options.largest]
    with style(medium="page"):
        draw_path()
        draw_scan(counts)
    print_table(counts)


if __name__ == "__main__":
    main()
