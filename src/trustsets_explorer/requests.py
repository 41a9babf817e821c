"""What a page can ask for, by name: each action takes a checked `Ask` and gives plain data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from trustsets.errors import InputError
from trustsets_explorer import answers, exports, samples
from trustsets_explorer.gallery import Gallery
from trustsets_explorer.session import Check, Session
from trustsets_explorer.state import State

__all__ = ["ACTIONS", "Ask"]

_MOST_ROWS = 50


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Ask:
    """One question of a page: a state, one of its methods, a bin, or some test samples."""

    session: Session
    gallery: Gallery
    names: dict[str, str]
    state: State
    check: Check
    place: Any = 0
    table: Any = None
    bin: Any = None
    rows: Any = None

    def __post_init__(self) -> None:
        n, places = self.session.n_test, range(len(self.state.settings))
        if not _whole_in(self.place, places):
            raise InputError("place must be 0, or 1 for a second method.")
        if self.rows is not None:
            known = isinstance(self.rows, list) and 0 < len(self.rows) <= _MOST_ROWS
            if not known or not all(_whole_in(row, range(n)) for row in self.rows):
                raise InputError(f"rows must be up to {_MOST_ROWS} numbers of test samples.")

    @property
    def test_rows(self) -> NDArray[np.int64]:
        """The test samples that are asked about."""
        if self.rows is None:
            raise InputError("rows must be given here.")
        return np.array(self.rows, dtype=np.int64)


def _whole_in(value: Any, allowed: range) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in allowed


def _answer(ask: Ask) -> dict[str, Any]:
    return answers.answer(ask.session, ask.state, ask.check)


def _preview(ask: Ask) -> dict[str, Any]:
    return answers.preview(ask.session, ask.state, ask.check)


def _list(ask: Ask) -> dict[str, Any]:
    return samples.list_cell(ask.session, ask.state, ask.place, ask.table, ask.bin, ask.check)


def _p_values(ask: Ask) -> list[Any]:
    return samples.p_values(ask.session, ask.state, ask.place, ask.test_rows, ask.check)


def _sample(ask: Ask) -> dict[str, Any]:
    row = int(ask.test_rows[0])
    return samples.describe(ask.session, ask.gallery, ask.state, ask.place, row)


def _regions(ask: Ask) -> dict[str, Any]:
    return samples.regions(ask.session, ask.state, ask.place, ask.check)


def _code(ask: Ask) -> dict[str, str]:
    return {
        "python": exports.as_python(ask.session, ask.state, ask.place, ask.names),
        "command": exports.as_command(ask.state, ask.place, ask.names),
    }


def _predictor(ask: Ask) -> Response:
    data = exports.saved_predictor(ask.session, ask.state, ask.place)
    return Response(data, media_type="application/octet-stream")


def _report(ask: Ask) -> Response:
    data = exports.saved_report(ask.session, ask.state, ask.names, ask.check)
    return Response(data, media_type="application/octet-stream")


ACTIONS: dict[str, Callable[[Ask], Any]] = {
    "answer": _answer,
    "preview": _preview,
    "list": _list,
    "p-values": _p_values,
    "sample": _sample,
    "regions": _regions,
    "code": _code,
    "predictor": _predictor,
    "report": _report,
}
