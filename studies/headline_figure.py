"""The picture of the README, from the results of the benchmark of coverage.

    python studies/headline_figure.py

It reads docs/results/coverage.json and writes docs/figures/headline.svg: on every data set that
nobody tuned on, the excess risk of the default beside that of split conformal sets of its size.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from trustsets import plots

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "coverage.json"
PICTURE = ROOT / "docs" / "figures" / "headline.svg"
MEASURES = {"ert": "excess risk (ERT), points", "ert_under": "its under-coverage component"}
METHOD = "default"


def rows(content: dict[str, Any], measure: str) -> dict[str, tuple[float, float]]:
    """The default and split conformal sets of its size, by data set; no set that was tuned on."""
    index = content["measures"].index(measure)
    pairs = {}
    for name, data in content["sets"].items():
        row = data["methods"].get(METHOD, {})
        if not data["seen"] and "mean" in row:
            pairs[name] = row["mean"][index], row["equal_size_mean"][index]
    return pairs


def draw(content: dict[str, Any]) -> Figure:
    """One row per data set, the largest gap of split conformal sets first."""
    order = sorted(rows(content, "ert").items(), key=lambda item: item[1][1])
    names = [name for name, _ in order]
    with plots.style(medium="page"):
        figure = Figure(figsize=(5.8, 0.9 + 0.27 * len(names)), layout="constrained")
        for ax, (measure, title) in zip(
            figure.subplots(1, 2, sharey=True), MEASURES.items(), strict=True
        ):
            pairs = rows(content, measure)
            ours, others = np.array([pairs[name] for name in names]).T
            places = np.arange(len(names))
            ax.hlines(places, ours, others, color=plots.theme_colour("rule"), lw=2)
            size = {"s": 34, "zorder": 3}
            label = "split conformal sets of the same mean size"
            ax.scatter(
                others, places, color=plots.method_colour(1), marker="s", label=label, **size
            )
            ax.scatter(ours, places, color=plots.method_colour(0), label="trustsets", **size)
            ax.set_yticks(places, names)
            ax.set(xlabel=title, xlim=(min(0.0, ours.min(), others.min()) - 0.1, None))
            plots.tidy(ax)
        handles, labels = ax.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


if __name__ == "__main__":
    with mpl.rc_context({"svg.hashsalt": "trustsets"}):  # the same bytes each time
        figure = draw(json.loads(RESULTS.read_text(encoding="utf-8")))
        figure.savefig(PICTURE, metadata={"Date": None} if PICTURE.suffix == ".svg" else None)
