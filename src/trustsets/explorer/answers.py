"""What the page shows for a state, as plain data: the report's own tables, charts and words."""

from typing import Any

from trustsets.explorer.session import Check, Session
from trustsets.explorer.state import State
from trustsets.metrics.colours import deepest_coverage
from trustsets.metrics.plain import to_plain
from trustsets.metrics.result import Evaluation
from trustsets.report import content
from trustsets.report.charts import gap_chart, size_chart
from trustsets.report.text import number, percent
from trustsets.report.verdict import verdict

__all__ = ["answer"]

# What a tooltip shows of each bin.
_BIN_NUMBERS = ("labels", "count", "coverage", "lower", "upper", "mean_size", "p_value", "holm")


def answer(session: Session, state: State, check: Check = lambda: None) -> dict[str, Any]:
    """Numbers of one or two methods at a state.

    Returns
    -------
    dict
        ``methods``, ``verdict``, ``glance``, ``divisions``, ``gaps``, ``sizes`` and ``lists`` are
        those of the report; ``tables`` the numbers of each bin, by method and table; ``points``
        size and under-coverage of each method.
    """
    found = {
        name: session.evaluation(state, place, check) for place, name in enumerate(state.names)
    }
    goals = content.division_names(found)
    check()
    first = next(iter(found.values()))
    points = [_point(session, state, place, own) for place, own in enumerate(found.values())]
    plain: dict[str, Any] = to_plain(
        {
            "state": state.to_dict(),
            "methods": list(found),
            "target": f"{100.0 * (1.0 - state.alpha):g}%",
            "deepest": f"{100.0 * deepest_coverage(1.0 - state.alpha):.3g}%",
            "n": [len(session.split(state.seed).calibration), first.n],
            "verdict": verdict(found),
            "spoken": _spoken(found),
            "glance": content.glance(found, goals),
            "divisions": content.divisions(found),
            "gaps": gap_chart(found, goals),
            "sizes": size_chart(found),
            "lists": content.bin_lists(found),
            "tables": {name: _tables(own) for name, own in found.items()},
            "points": points,
        }
    )
    return plain


def _tables(evaluation: Evaluation) -> dict[str, Any]:
    return {
        name: {own: getattr(table, own) for own in _BIN_NUMBERS}
        for name, table in evaluation.tables.items()
    }


def _point(session: Session, state: State, place: int, found: Evaluation) -> dict[str, Any]:
    """Mean size against the shortfall of coverage over the bins of the first table."""
    name = "conf_trust" if "conf_trust" in found.tables else "conf_rank"
    table, promised = found.tables[name], session.outcome(state, place).promised
    own = found.metrics["size"]
    return {
        "size": own,
        "under": table.shortfall,
        "table": name,
        "promised": "" if promised is None else percent(promised),
    }


def _spoken(found: dict[str, Evaluation]) -> str:
    """One sentence for readers who hear the page."""
    parts = [
        f"{name}: coverage {percent(own.coverage.value)}, mean set size {number(own.sizes.mean)}"
        for name, own in found.items()
    ]
    return "; ".join(parts) + "."
