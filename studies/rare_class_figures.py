"""Figures and the page of results of `rare_classes.py`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from trustsets.metrics.colours import METHODS

Row = dict[str, Any]

GREY, DARK = "#9aa0a6", "#2b2b2b"
TARGET = 0.9
# Colour and marker of each family; those of the same kind of method share a colour.
LOOKS = {
    "STANDARD": (DARK, "o"),
    "class-conditional": (DARK, "s"),
    "clustered": (DARK, "^"),
    "RC3P": (METHODS[3], "D"),
    "INTERP-Q": (METHODS[4], "v"),
    "PAS": (METHODS[2], "*"),
    "STANDARD, prevalence": (METHODS[2], "P"),
    "CONDITIONAL": (METHODS[0], "o"),
    "CONDITIONAL, prevalence": (METHODS[0], "P"),
    "CONDITIONAL + Classes": (METHODS[1], "X"),
    "CONDITIONAL, per_class=True": (METHODS[1], "s"),
}
# Families without a setting at which they are STANDARD or CONDITIONAL begin on their own.
STARTS = {
    "INTERP-Q": ("STANDARD", "class-conditional"),
    "STANDARD, prevalence": ("STANDARD",),
    "CONDITIONAL, prevalence": ("CONDITIONAL",),
}
COLUMNS = {
    "coverage": 3,
    "size": 2,
    "full": 3,
    "under": 2,
    "macro": 3,
    "below half": 3,
    "class gap": 2,
    "conf_trust": 2,
    "conf_rank": 2,
    "seconds": 1,
}
HEADS = {
    "conf_trust": "Conf x Trust",
    "conf_rank": "Conf x Rank",
    "below half": "classes below 50%",
}
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


def by_setting(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Cells of each family and setting of its dial, over seeds."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["family"], row["dial"]), []).append(row)
    return found


def mean(rows: Sequence[Row], name: str) -> float:
    """Mean over seeds."""
    return float(np.mean([row[name] for row in rows]))


def curves(rows: Sequence[Row], name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Size and another number of each family, one row for each setting of its dial.

    A dial begins, or ends, at the method that it equals there.
    """
    settings = by_setting(rows)
    points = {key: (mean(own, "size"), mean(own, name)) for key, own in settings.items()}
    found = {}
    for family in dict.fromkeys(key[0] for key in points):
        own = [value for key, value in points.items() if key[0] == family]
        ends = [points[end, ""] for end in STARTS.get(family, ()) if (end, "") in points]
        found[family] = np.array(ends[:1] + own + ends[1:])
    return found


def draw_panel(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """One number against the average size, a line for each family."""
    for family, points in curves(rows, name).items():
        colour, marker = LOOKS[family]
        axes.plot(
            *points.T,
            color=colour,
            marker=marker,
            ms=8 if marker == "*" else 5.5,
            mec="white",
            mew=0.6,
            lw=1.4,
            label=family,
            clip_on=False,
            zorder=4 if family.startswith("CONDITIONAL") else 3,
        )
    if name == "under":
        floor = mean(rows, "under floor")
        axes.axhline(floor, color=GREY, lw=0.9, ls=":")
        axes.annotate(
            "noise floor", (1, floor), (0, 3), xycoords=("axes fraction", "data"), color=GREY,
            textcoords="offset points", ha="right", fontsize=8,
        )  # fmt: skip
        axes.set_ylim(bottom=0)
    else:
        axes.axhline(TARGET, color=GREY, lw=0.9, ls=":")


def draw_frontier(rows: Sequence[Row], path: Path) -> None:
    """Under-coverage by class and macro coverage against size, a column for each task."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    names = {"under": "under-coverage by class, points", "macro": "macro coverage"}
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(names), len(tasks), figsize=(3.3 * len(tasks), 6.4), squeeze=False, sharex="col"
        )
        for column, task in zip(panels.T, tasks, strict=True):
            own = [row for row in rows if row["task"] == task]
            for axes, name in zip(column, names, strict=True):
                draw_panel(axes, own, name)
            column[0].set_title(task)
            column[-1].set_xlabel("average size")
        for axes, text in zip(panels[:, 0], names.values(), strict=True):
            axes.set_ylabel(text)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncol=4, fontsize=8.5)
        figure.tight_layout(rect=(0, 0.03 + 0.025 * -(-len(labels) // 4), 1, 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
        plt.close(figure)


def entry(rows: Sequence[Row], name: str, places: int) -> str:
    """Mean and standard error over seeds."""
    values = np.array([row[name] for row in rows])
    text = f"{values.mean():.{places}f}"
    if values.size > 1 and name != "seconds":
        text += f" ({values.std(ddof=1) / np.sqrt(values.size):.{places}f})"
    return text


def table(rows: Sequence[Row]) -> str:
    """All settings of one task and score."""
    heads = ["method", "seeds", *(HEADS.get(name, name) for name in COLUMNS)]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for (family, dial), own in by_setting(rows).items():
        numbers = [entry(own, name, places) for name, places in COLUMNS.items()]
        name = f"{family}, {dial}" if dial else family
        lines.append("| " + " | ".join([name, str(len(own)), *numbers]) + " |")
    return "\n".join(lines)


def write_page(rows: Sequence[Row], path: Path) -> None:
    """All tables on one page."""
    parts = []
    for task, score in dict.fromkeys((row["task"], row["score"]) for row in rows):
        own = [row for row in rows if (row["task"], row["score"]) == (task, score)]
        floor = mean(own, "under floor")
        size = own[0]["test"]
        tested = f"{size:,}" if size else "all"
        parts.append(
            f"## {task}, {score}\n\nMeasured on {tested} test samples of each split; the noise "
            f"floor of *under* is {floor:.2f}.\n\n{table(own)}"
        )
    text = (
        "# Coverage by class against average size\n\n"
        "Made with `python studies/rare_classes.py --bench DIR`; alpha = 0.1, mean (standard\n"
        "error) over seeds 1, 2, ... of half/half splits. *under* is the half of the class CovGap\n"
        "that lies below 1 - alpha, *macro* the mean of the coverages of the classes, *full* the\n"
        "share of full sets. CovGaps are in points; seconds are of processor time.\n"
        "[../rare_classes.md](../rare_classes.md) explains the methods.\n\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n\n".join(parts) + "\n")
