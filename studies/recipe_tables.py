"""Markdown tables of the cells that `recipes.py` wrote."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
Column = Callable[[Row], float]

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


def _gap(name: str) -> Column:
    return lambda row: row.get(f"{name}.gap", np.nan)


def _above(name: str) -> Column:
    return lambda row: row.get(f"{name}.gap", np.nan) - row.get(f"{name}.gap.floor", np.nan)


def _under(name: str) -> Column:
    return lambda row: row.get(f"{name}.shortfall", np.nan)


def _plain(name: str, factor: float = 1.0) -> Column:
    return lambda row: factor * row.get(name, np.nan)


COLUMNS: dict[str, tuple[Column, int]] = {
    "coverage": (_plain("coverage"), 3),
    "size": (_plain("size"), 2),
    "full %": (_plain("full", 100.0), 2),
    "empty %": (_plain("empty", 100.0), 1),
    "Conf x Trust": (_gap("conf_trust"), 2),
    "above floor": (_above("conf_trust"), 2),
    "under": (_under("conf_trust"), 2),
    "by the paper's Trust": (_gap("conf_trust_paper"), 2),
    "Conf x Rank": (_gap("conf_rank"), 2),
    "under ": (_under("conf_rank"), 2),
    "class": (_gap("class"), 2),
    "under  ": (_under("class"), 2),
    "balls": (_gap("balls"), 2),
    "true gap": (_gap("conditional"), 2),
    "true under": (_under("conditional"), 2),
    "worst sex": (_plain("group:sex.worst"), 3),
    "worst age": (_plain("group:age_band.worst"), 3),
    "worst site": (_plain("group:site.worst"), 3),
    "seconds": (_plain("seconds"), 1),
}


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
    used = {
        name: kind for name, kind in COLUMNS.items() if any(np.isfinite(kind[0](r)) for r in own)
    }
    lines = [
        "| " + " | ".join(["recipe", "seeds", *(name.strip() for name in used)]) + " |",
        "|---|---:" + "|---:" * len(used) + "|",
    ]
    for recipe, cells in _by_recipe(own, order).items():
        if cells:
            numbers = [_entry([get(row) for row in cells], places) for get, places in used.values()]
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
