"""Pictures of the explanations, drawn when the site is built.

Those of conformal prediction are of the outputs that ship with the package, so that a reader can
make them again; that of the trust score is of points in a plane.
"""

import io
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import beta

from trustsets import ModelOutputs, PredictionSets, StandardConformal, plots
from trustsets.demo import load
from trustsets.plots import COVERAGE_COLOURS, method_colour, theme_colour, tidy

ALPHA = 0.1
BELOW, _, ABOVE = COVERAGE_COLOURS["light"]
SAMPLE = 29  # a hard apple: five classes are in its set


@cache
def split_conformal() -> tuple[ModelOutputs, ModelOutputs, PredictionSets]:
    """Calibration and test samples of the demo, and split conformal sets of the test samples."""
    data = load()
    predictor = StandardConformal().calibrate(data.calibration)
    return data.calibration, data.test, predictor.predict_set(data.test, alpha=ALPHA)


def conformal_threshold() -> bytes:
    """Scores of calibration samples with their 90% quantile, and the set of one sample."""
    calibration, test, _ = split_conformal()
    scores = 1.0 - calibration.probabilities[np.arange(len(calibration)), calibration.codes]
    rank = int(np.ceil((len(scores) + 1) * (1 - ALPHA)))
    threshold = np.sort(scores)[rank - 1]
    with plots.style(medium="page"):
        figure = Figure(figsize=(8.4, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.hist(scores, bins=40, color=method_colour(0), alpha=0.75)
        left.set(
            yscale="log",
            xlabel="nonconformity score of the true class",
            ylabel="calibration samples",
        )
        left.axvline(threshold, color=BELOW)
        left.annotate(
            f"90% lie left of {threshold:.3f}",
            (threshold, 0.92),
            (-6, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right",
            color=BELOW,
        )
        _draw_set(right, test, threshold)
        for ax in (left, right):
            tidy(ax)
        return _svg(figure)


def _draw_set(ax: Axes, test: ModelOutputs, threshold: float) -> None:
    likely = np.argsort(-test.probabilities[SAMPLE])[:8]
    scores = 1.0 - test.probabilities[SAMPLE, likely]
    inside = scores <= threshold
    names = [str(test.classes[code]) for code in likely]
    places = np.arange(len(likely))[::-1]
    ax.barh(places, scores, color=np.where(inside, method_colour(0), theme_colour("rule")))
    ax.set_yticks(places, names)
    ax.axvline(threshold, color=BELOW)
    ax.set(xlabel="nonconformity score of the class", xlim=(0.0, 1.05))
    ax.set_title(f"a new sample (true class: {np.asarray(test.labels)[SAMPLE]})", loc="left")


def coverage_law() -> bytes:
    """Densities of the coverage of split conformal sets, given the calibration samples."""
    with plots.style(medium="page"):
        figure = Figure(figsize=(6.4, 2.8), layout="constrained")
        ax = figure.subplots()
        grid = np.linspace(0.8, 1.0, 801)
        for i, n in enumerate((100, 1_000, 10_000)):
            rank = int(np.ceil((n + 1) * (1 - ALPHA)))
            density = beta.pdf(grid, rank, n + 1 - rank)
            ax.plot(grid, density, color=method_colour(i), label=f"{n:,} calibration samples")
        ax.set(
            xlabel="coverage of new samples, for one draw of the calibration samples",
            yticks=[],
            ylim=(0, 150),
        )
        ax.legend()
        tidy(ax)
        return _svg(figure)


def uneven_coverage() -> bytes:
    """Coverage of split conformal sets by confidence, with exact intervals."""
    _, test, sets = split_conformal()
    covered, edges = sets.covers(test.labels), np.array([0.0, 0.5, 0.7, 0.8, 0.9, 0.97, 1.0])
    with plots.style(medium="page"):
        figure = Figure(figsize=(6.4, 2.8), layout="constrained")
        ax = figure.subplots()
        for place, (low, high) in enumerate(pairwise(edges)):
            hits = covered[(test.confidence > low) & (test.confidence <= high)]
            k, n = int(hits.sum()), hits.size
            ends = beta.ppf([0.025, 0.975], [k, k + 1], [n - k + 1, max(n - k, 1e-9)])
            ax.plot([place, place], ends, color=method_colour(0), lw=2)
            ax.plot(place, k / n, "o", color=method_colour(0))
            ax.annotate(f"n = {n:,}", (place, 0.615), ha="center", color=theme_colour("quiet"))
        ax.axhline(1 - ALPHA, color=BELOW, lw=1)
        ax.annotate("target", (-0.2, 1 - ALPHA), (0, 3), textcoords="offset points", color=BELOW)
        labels = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
        ax.set_xticks(range(len(labels)), labels)
        ax.set(xlabel="confidence of the network", ylabel="coverage", ylim=(0.6, 1.0))
        tidy(ax)
        return _svg(figure)


def trust_distances() -> bytes:
    """Training points of two classes in a plane, and the two distances of a new point."""
    rng = np.random.default_rng(4)
    first = rng.normal((-1.0, 0.0), 0.55, size=(40, 2))
    second = rng.normal((1.1, 0.2), 0.55, size=(40, 2))
    with plots.style(medium="page"):
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        points = {"high trust": (-0.9, 0.35), "low trust": (0.55, -0.25)}
        for ax, (title, point) in zip(panels, points.items(), strict=True):
            ax.scatter(*first.T, s=16, color=method_colour(0), label="training samples: cat")
            ax.scatter(*second.T, s=16, color=method_colour(1), marker="s", label="dog")
            distances = {}
            for name, cloud in {"cat": first, "dog": second}.items():
                nearest = cloud[np.linalg.norm(cloud - point, axis=1).argmin()]
                distances[name] = float(np.linalg.norm(nearest - point))
                ax.plot(*np.transpose([point, nearest]), color=theme_colour("ink"), lw=1.2)
            ax.plot(*point, "*", ms=14, color=BELOW, label="new sample, predicted cat")
            ratio = distances["dog"] / distances["cat"]
            ax.set_title(
                f"{title}: {distances['dog']:.2f} to a dog / {distances['cat']:.2f} to a cat "
                f"= {ratio:.1f}",
                loc="left",
            )
            ax.set(xticks=[], yticks=[], aspect="equal")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return _svg(figure)


def data_parts() -> bytes:
    """Which part of the data serves which purpose."""
    parts = (
        ("training", 0.46, "the classifier and the\ntrust score learn here"),
        ("tuning", 0.08, "set aside\nby calibrate"),
        ("calibration", 0.23, "thresholds come\nfrom these"),
        ("test", 0.23, "evaluate,\nreport"),
    )
    with plots.style(medium="page"):
        figure = Figure(figsize=(8.4, 1.7), layout="constrained")
        ax = figure.subplots()
        start = 0.0
        for i, (name, width, words) in enumerate(parts):
            ax.barh(0, width, left=start, height=0.6, color=method_colour(i), alpha=0.8, ec="white")
            ax.annotate(name, (start + width / 2, 0), ha="center", va="center", color="white")
            ax.annotate(words, (start + width / 2, -0.45), ha="center", va="top", fontsize=9)
            start += width
        ax.set(xlim=(0, 1), ylim=(-1.2, 0.4))
        ax.axis("off")
        return _svg(figure)


def _svg(figure: Figure) -> bytes:
    import matplotlib as mpl

    stream = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "trustsets", "svg.fonttype": "path"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


PICTURES: dict[str, Callable[[], bytes]] = {
    "conformal_threshold": conformal_threshold,
    "coverage_law": coverage_law,
    "uneven_coverage": uneven_coverage,
    "trust_distances": trust_distances,
    "data_parts": data_parts,
}
"""Functions that return SVG files, by the names of the files."""
