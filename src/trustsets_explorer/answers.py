"""What the page shows for a state, as plain data: the report's own tables, charts and words."""

from typing import Any

from trustsets.metrics import Evaluation, to_plain
from trustsets.plots import deepest_coverage
from trustsets.report import (
    bin_lists,
    division_names,
    divisions,
    gap_chart,
    glance,
    number,
    percent,
    size_chart,
    verdict,
)
from trustsets_explorer.session import Check, Outcome, Session
from trustsets_explorer.state import State

__all__ = ["answer", "preview"]

# What a tooltip shows of each bin.
_BIN_NUMBERS = ("labels", "count", "coverage", "lower", "upper", "mean_size", "p_value", "holm")


def preview(session: Session, state: State, check: Check = lambda: None) -> dict[str, Any]:
    """The same as `answer` with approximate sets, quickly; empty where that cannot be done.

    While a slider moves, the eye needs something at once. The sets are never larger than the exact
    ones, and differ from them for a few samples in a hundred.
    """
    places = range(len(state.settings))
    found = [session.preview(state, place, check) for place in places]
    known = [own for own in found if own is not None]
    if len(known) < len(found):
        return {}
    return _shown(session, state, known, check) | {"approximate": True}


def answer(session: Session, state: State, check: Check = lambda: None) -> dict[str, Any]:
    """Numbers of one or two methods at a state.

    Returns
    -------
    dict
        ``methods``, ``verdict``, ``glance``, ``divisions``, ``gaps``, ``sizes`` and ``lists`` are
        those of the report; ``tables`` the numbers of each bin, by method and table; ``points``
        size and under-coverage of each method.
    """
    found = [session.outcome(state, place, check) for place in range(len(state.settings))]
    return _shown(session, state, found, check)


def _shown(session: Session, state: State, outcomes: list[Outcome], check: Check) -> dict[str, Any]:
    found = {
        name: session.evaluation(state, place, check, outcomes[place])
        for place, name in enumerate(state.names)
    }
    goals = division_names(found)
    check()
    predictors = {
        name: session.predictor(state.settings[place], state.seed)
        for place, name in enumerate(state.names)
        if state.settings[place].used.max_size is None
    }
    first = next(iter(found.values()))
    points = [_point(*pair) for pair in zip(outcomes, found.values(), strict=True)]
    plain: dict[str, Any] = to_plain(
        {
            "state": state.to_dict(),
            "methods": list(found),
            "target": f"{100.0 * (1.0 - state.alpha):g}%",
            "deepest": f"{100.0 * deepest_coverage(1.0 - state.alpha):.3g}%",
            "n": [len(session.split(state.seed).calibration), first.n],
            "verdict": str(verdict(found, predictors)),
            "spoken": _spoken(found),
            "glance": glance(found, goals),
            "divisions": divisions(found),
            "gaps": gap_chart(found, goals),
            "sizes": size_chart(found),
            "lists": bin_lists(found),
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


def _point(outcome: Outcome, found: Evaluation) -> dict[str, Any]:
    """Mean size against the shortfall of coverage over the bins of the first table."""
    name = "conf_trust" if "conf_trust" in found.tables else "conf_rank"
    return {
        "size": found.metrics["size"],
        "under": found.tables[name].shortfall,
        "table": name,
        "promised": "" if outcome.promised is None else percent(outcome.promised),
    }


def _spoken(found: dict[str, Evaluation]) -> str:
    """One sentence for readers who hear the page."""
    parts = [
        f"{name}: coverage {percent(own.coverage.value)}, mean set size {number(own.sizes.mean)}"
        for name, own in found.items()
    ]
    return "; ".join(parts) + "."
