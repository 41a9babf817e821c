"""One HTML page with the history of a monitor; it needs no network and no script."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets._common.atomic import atomic_path
from trustsets._version import __version__
from trustsets.monitor.history import read_history
from trustsets.monitor.verdict import Verdict
from trustsets.report import page_environment, page_styles, percent

__all__ = ["Chart", "write_page"]

_WIDTH, _HEIGHT = 680.0, 260.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 668.0, 10.0, 218.0
# Parts with the most evidence that the page draws, and numbers along the axis of batches.
_MOST_LINES = 5
_MOST_MARKS = 8


@final
@dataclass(frozen=True)
class Chart:
    """Lines over batches in drawing units, with a shaded interval and a dashed target."""

    title: str
    note: str
    x_axis: list[tuple[float, str]]
    y_axis: list[tuple[float, str]]
    lines: list[tuple[int, str, str]]
    shade: str
    target: float | None


def write_page(path: Path, history: Path, verdict: Verdict) -> None:
    """Draw the history of a monitor."""
    rows = read_history(history).to_pylist()
    template = page_environment("trustsets.monitor").get_template("monitor.html")
    page = template.render(
        verdict=verdict,
        sentences=verdict.summary().splitlines(),
        charts=_charts(rows, verdict),
        percent=percent,
        version=__version__,
        css=page_styles(),
    )
    with atomic_path(path) as temporary:
        temporary.write_bytes(page.encode("utf-8", "backslashreplace"))


def _charts(rows: list[dict[str, Any]], verdict: Verdict) -> list[Chart]:
    whole = [row for row in rows if row["kind"] == "all"]
    charts = []
    if whole:
        x = [row["batch"] for row in whole]
        batch = [row["batch_covered"] / row["batch_n"] if row["batch_n"] else None for row in whole]
        lines = {"so far": [row["coverage"] for row in whole], "in the batch": batch}
        ends = [row["lower"] for row in whole], [row["upper"] for row in whole]
        note = "Share of labelled samples whose set holds the label. Dashed: what was asked for."
        charts.append(_chart("Coverage", note, x, lines, ends, 1.0 - verdict.alpha))
        ends = [row["size_lower"] for row in whole], [row["size_upper"] for row in whole]
        sizes = {"so far": [row["size"] for row in whole]}
        charts.append(_chart("Set size", "Mean number of classes in a set.", x, sizes, ends))
    return [*charts, _evidence_chart(rows)] if rows else charts


def _evidence_chart(rows: list[dict[str, Any]]) -> Chart:
    """Evidence of the tests that had the most, as a share of what an alarm needs."""
    batches = sorted({row["batch"] for row in rows})
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        name = "misses" if row["kind"] == "coverage" else row["part"]
        found.setdefault(name, {})[row["batch"]] = max(row["evidence"] / row["needed"], 0.0)
    names = sorted(found, key=lambda name: -max(found[name].values()))[:_MOST_LINES]
    lines = {name: [found[name].get(batch) for batch in batches] for name in names}
    note = (
        "Logarithm of the evidence of a change as a share of what an alarm needs (dashed); the "
        f"{len(names)} tests that had the most."
    )
    return _chart("Evidence of a change", note, batches, lines, None, 1.0)


def _chart(
    title: str,
    note: str,
    x: Sequence[int],
    lines: dict[str, list[float | None]],
    ends: tuple[list[float], list[float]] | None,
    target: float | None = None,
) -> Chart:
    drawn = [value for own in lines.values() for value in own if value is not None]
    drawn += [] if ends is None else [*ends[0], *ends[1]]
    drawn += [] if target is None else [target]
    y_ticks: list[float] = np.linspace(min(drawn), max(drawn), 5).round(4).tolist()
    y_ticks[-1] += float(y_ticks[-1] == y_ticks[0])

    def across(batch: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (batch - x[0]) / max(x[-1] - x[0], 1), 2)

    def up(value: float) -> float:
        share = (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return round(_BOTTOM - (_BOTTOM - _TOP) * share, 2)

    def points(values: Sequence[float | None], at: Sequence[int] = x) -> str:
        pairs = zip(at, values, strict=True)
        return " ".join(f"{across(b)},{up(v)}" for b, v in pairs if v is not None)

    marks = np.unique(np.linspace(x[0], x[-1], min(len(x), _MOST_MARKS)).round().astype(int))
    both = "" if ends is None else f"{points(ends[0])} {points(ends[1][::-1], x[::-1])}"
    return Chart(
        title=title,
        note=note,
        x_axis=[(across(batch), f"{batch:,}") for batch in marks.tolist()],
        y_axis=[(up(tick), f"{tick:g}") for tick in y_ticks],
        lines=[(slot, name, points(own)) for slot, (name, own) in enumerate(lines.items())],
        shade=both,
        target=None if target is None else up(target),
    )
