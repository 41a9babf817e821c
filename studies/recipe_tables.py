"""Markdown tables of the cells that `recipes.py` wrote."""

from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]

TITLES = {
    "ablation": "The default, one ingredient taken away at a time",
    "screen": "Candidates for the default",
}
NOTES = {
    "ablation": (
        "Each row that starts with a minus changes one thing of the default; *score* rows change\n"
        "the score. STANDARD, GROUPWISE and the paper's way have a temperature fitted on the\n"
        "calibration half and may have empty sets, as in the paper's runs; GROUPWISE takes the\n"
        "finite-sample quantile of each group, where the authors take the plain one."
    ),
    "screen": (
        "The first row is the default without its automatic choice of the function class; every\n"
        "other row changes or adds one thing."
    ),
}


# Titles of columns with the number they show and its digits; "-" takes one from another.
COLUMNS = {
    "coverage": ("coverage", 3),
    "size": ("size", 2),
    "full %": ("full", 2),
    "empty %": ("empty", 1),
    "Conf x Trust": ("conf_trust.gap", 2),
    "above floor": ("conf_trust.gap - conf_trust.gap.floor", 2),
    "under": ("conf_trust.shortfall", 2),
    "by the paper's Trust": ("conf_trust_paper.gap", 2),
    "Conf x Rank": ("conf_rank.gap", 2),
    "under ": ("conf_rank.shortfall", 2),
    "class": ("class.gap", 2),
    "under  ": ("class.shortfall", 2),
    "balls": ("balls.gap", 2),
    "true gap": ("conditional.gap", 2),
    "true under": ("conditional.shortfall", 2),
    "worst sex": ("group:sex.worst", 3),
    "worst age": ("group:age_band.worst", 3),
    "worst site": ("group:site.worst", 3),
    "seconds": ("seconds", 1),
}


def _value(row: Row, title: str) -> float:
    name, _, less = COLUMNS[title][0].partition(" - ")
    value: float = row.get(name, np.nan) - (row.get(less, np.nan) if less else 0.0)
    return 100.0 * value if title.endswith("%") else value


def write_tables(rows: list[Row], stage: str, order: list[str], output: Path | None) -> None:
    """Print the tables of a stage, and write them to a page of `output`."""
    rows = [row for row in rows if row["recipe"] in order]
    text = "\n\n".join(_table(rows, task, order) for task in dict.fromkeys(r["task"] for r in rows))
    print(text)
    if output is None:
        return
    command = "python studies/recipes.py --bench DIR --output docs/results"
    command += " --stage screen" if stage == "screen" else ""
    page = (
        f"# {TITLES[stage]}\n\n"
        f"Made with `{command}`; alpha = 0.1,\n"
        "mean (standard error) over seeds 1, 2, ... of half/half splits; seconds were taken on a\n"
        "busy machine. CovGaps are in percent; *under* is the half of the CovGap before it that\n"
        "lies below 1 - alpha, *above floor* what noise alone does not explain, *balls* the mean\n"
        f"over radii. {NOTES[stage]}\n\n{text}\n"
    )
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{stage}.md").write_text(page)


def _table(rows: list[Row], task: str, order: list[str]) -> str:
    own = [row for row in rows if row["task"] == task]
    used = [name for name in COLUMNS if any(np.isfinite(_value(row, name)) for row in own)]
    lines = [
        "| " + " | ".join(["recipe", "seeds", *(name.strip() for name in used)]) + " |",
        "|---|---:" + "|---:" * len(used) + "|",
    ]
    for recipe, cells in _by_recipe(own, order).items():
        if cells:
            values = {name: [_value(row, name) for row in cells] for name in used}
            numbers = [_entry(values[name], COLUMNS[name][1]) for name in used]
            lines.append("| " + " | ".join([recipe, str(len(cells)), *numbers]) + " |")
    return f"## {task}\n\n" + "\n".join(lines)


def _by_recipe(own: list[Row], order: list[str]) -> dict[str, list[Row]]:
    """Cells of each recipe; the first once more on the seeds that fewer-seed recipes have."""
    found = {name: [row for row in own if row["recipe"] == name] for name in order}
    first = found[order[0]]
    fewest = min((len(cells) for cells in found.values() if cells), default=0)
    if 0 < fewest < len(first):
        again = {f"{order[0]}, fewer seeds": [row for row in first if row["seed"] <= fewest]}
        return {order[0]: first} | again | found
    return found


def _entry(numbers: list[float], places: int) -> str:
    values = np.array(numbers)
    error = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else np.nan
    return f"{values.mean():.{places}f}" + (f" ({error:.{places}f})" if values.size > 1 else "")
