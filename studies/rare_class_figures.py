"""Figures and the page of results of `rare_classes.py`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from trustsets.plots import METHOD_COLOURS, THEMES, style

Row = dict[str, Any]

METHODS = METHOD_COLOURS["light"]
GREY, DARK = THEMES["light"]["quiet"], THEMES["light"]["ink"]
TARGET = 0.9
# Colour and marker of each family; those of the same kind of method share a colour.
LOOKS = {
    "STANDARD": (DARK, "o"),
    "class-conditional": (DARK, "s"),
    "clustered": (DARK, "^"),
    "RC3P": (METHODS[3], "D"),
    "INTERP-Q": (METHODS[4], "v"),
    "PAS": (METHODS[5], "*"),
    "STANDARD, prevalence": (METHODS[2], "P"),
    "CONDITIONAL": (METHODS[0], "o"),
    "CONDITIONAL, prevalence": (METHODS[0], "P"),
    "CONDITIONAL + Classes": (METHODS[1], "o"),
    "CONDITIONAL, per_class=True": (METHODS[1], "s"),
}
# Where a dial begins and ends at another method: the line goes on to that method.
ENDS = {
    "INTERP-Q": ("STANDARD", "class-conditional"),
}
# Settings that are written beside their points in the first panel, and on which side.
WRITTEN = {
    "PAS": ("right", ("gamma 1",)),
    "CONDITIONAL + Classes": ("left", ("penalty 10", "penalty 30")),
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
# Numbers and settings in the short table.
SHORT = {"size": "size", "under": "under", "macro": "macro", "conf_rank": "Conf x Rank"}
SHOWN = {"", "tau 0.5", "tau 0.9", "gamma 0", "gamma 0.5", "gamma 1", "gamma 2"}
SHOWN |= {"penalty 1", "penalty 3", "penalty 10", "penalty 30"}


def by_setting(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Cells of each family and setting of its dial, over seeds."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["family"], row["dial"]), []).append(row)
    return found


def mean(rows: Sequence[Row], name: str) -> float:
    """Mean over seeds."""
    return float(np.mean([row[name] for row in rows]))


def settings_of(rows: Sequence[Row], name: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Size and another number by family and by the setting of its dial."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for (family, dial), own in by_setting(rows).items():
        found.setdefault(family, {})[dial] = (mean(own, "size"), mean(own, name))
    return found


def draw_panel(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """One number against the average size, a line for each family."""
    found = settings_of(rows, name)
    for family, points in found.items():
        colour, marker = LOOKS[family]
        first, last = ENDS.get(family, (None, None))
        before = [found[first][""]] if first in found else []
        after = [found[last][""]] if last in found else []
        axes.plot(*zip(*before, *points.values(), *after, strict=True), color=colour, lw=1.3)
        axes.plot(
            *zip(*points.values(), strict=True),
            color=colour,
            marker=marker,
            ms=9 if marker == "*" else 6.5,
            mec="white",
            mew=0.7,
            ls="",
            label=family,
            clip_on=False,
            # Methods without a dial lie on top of the lines that end at them.
            zorder=5 if len(points) == 1 else 4,
        )
    if name == "under":
        draw_target(axes, mean(rows, "under floor"), "noise floor")
        axes.set_ylim(bottom=0)
    else:
        draw_target(axes, TARGET, "1 - alpha")


def write_settings(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Write some settings of the dials beside their points."""
    found = settings_of(rows, name)
    for family, (side, dials) in WRITTEN.items():
        for dial in dials:
            if dial in found.get(family, {}):
                axes.annotate(
                    dial, found[family][dial], (6 if side == "left" else -6, 3), ha=side,
                    textcoords="offset points", fontsize=8, color=LOOKS[family][0],
                )  # fmt: skip


def draw_target(axes: Axes, value: float, text: str) -> None:
    """A dotted line at what a perfect method would show."""
    axes.axhline(value, color=GREY, lw=0.9, ls=":", zorder=1)
    axes.annotate(
        text, (1, value), (0, 3), xycoords=("axes fraction", "data"), color=GREY,
        textcoords="offset points", ha="right", fontsize=8,
    )  # fmt: skip


def draw_frontier(rows: Sequence[Row], path: Path) -> None:
    """Under-coverage by class and macro coverage against size, a column for each task."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    names = {"under": "under-coverage by class, points", "macro": "macro coverage"}
    with style(medium="page"):
        figure, panels = plt.subplots(
            len(names), len(tasks), figsize=(3.3 * len(tasks), 6.4), squeeze=False, sharex="col"
        )
        for column, task in zip(panels.T, tasks, strict=True):
            own = [row for row in rows if row["task"] == task]
            for axes, name in zip(column, names, strict=True):
                draw_panel(axes, own, name)
            if task == tasks[0]:
                column[0].margins(x=0.22)
                write_settings(column[0], own, "under")
            column[0].set_title(task)
            column[-1].set_xlabel("average size")
        for axes, text in zip(panels[:, 0], names.values(), strict=True):
            axes.set_ylabel(text)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncol=4)
        figure.tight_layout(rect=(0, 0.03 + 0.025 * -(-len(labels) // 4), 1, 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
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


def short_table(rows: Sequence[Row]) -> str:
    """Some settings of all tasks side by side."""
    tasks, names = list(dict.fromkeys(row["task"] for row in rows)), list(SHORT)
    heads = [f"{task}: {SHORT[names[0]]}" for task in tasks]
    heads = [text for head in heads for text in (head, *(SHORT[name] for name in names[1:]))]
    lines = ["| " + " | ".join(["method", *heads]) + " |", "|---" + "|---:" * len(heads) + "|"]
    for (family, dial), own in by_setting(rows).items():
        if dial in SHOWN:
            cells = [[row for row in own if row["task"] == task] for task in tasks]
            numbers = [f"{mean(cell, name):.{COLUMNS[name]}f}" for cell in cells for name in names]
            name = f"{family}, {dial}" if dial else family
            lines.append("| " + " | ".join([name, *numbers]) + " |")
    return "\n".join(lines)


def put_table(rows: Sequence[Row], page: Path) -> None:
    """Replace the table of a page that is written by hand otherwise."""
    first, last = "<!-- table made by studies/rare_classes.py -->\n", "<!-- end of table -->"
    text = page.read_text()
    before, after = text[: text.index(first) + len(first)], text[text.index(last) :]
    seeds = {row["task"]: row["seed"] for row in sorted(rows, key=lambda row: int(row["seed"]))}
    said = ", ".join(f"{count} of {task}" for task, count in seeds.items())
    note = f"Alpha = 0.1; mean over half/half splits ({said})."
    page.write_text(f"{before}\n{short_table(rows)}\n\n{note}\n\n{after}")
