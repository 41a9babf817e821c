"""The numbers that the paper prints, read from ``printed_tables.json``.

The file names the table, row and column of each number; values are as printed, with two
digits after the point.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, final

__all__ = [
    "DATASETS",
    "HALF_UNIT",
    "Printed",
    "PrintedCorrelation",
    "printed_correlation",
    "printed_source",
    "printed_value",
    "printed_values",
]

DATASETS = ("imagenet", "imagenet-lt", "places365", "places365-lt", "fitzpatrick17k")
"""Datasets of the paper."""
HALF_UNIT = 0.005
"""How far rounding to two digits can move a printed number."""
_FILE = "printed_tables.json"


@final
@dataclass(frozen=True)
class Printed:
    """One printed number with its place.

    Attributes
    ----------
    table : int
        Number of the table, 1, 2, 4 or 5.
    dataset, score, method, column : str
        Row and column; the column is the name of a metric as in ``Evaluation.metrics``.
    mean, standard_error : float
        As printed.
    """

    table: int
    dataset: str
    score: str
    method: str
    column: str
    mean: float
    standard_error: float


@final
@dataclass(frozen=True)
class PrintedCorrelation:
    """One row of table 3; p-values are texts such as ``< 0.001``."""

    dataset: str
    pearson: float
    pearson_p: str
    spearman: float
    spearman_p: str


@cache
def _content() -> dict[str, Any]:
    text = resources.files("trustsets.paper").joinpath(_FILE).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def printed_source() -> str:
    """Return the publication that the numbers come from."""
    return str(_content()["source"])


@cache
def printed_values() -> tuple[Printed, ...]:
    """All numbers of tables 1, 2, 4 and 5.

    Examples
    --------
    >>> first = printed_values()[1]
    >>> first.table, first.dataset, first.method, first.column, first.mean
    (1, 'imagenet', 'STANDARD', 'size', 4.32)
    """
    return tuple(
        Printed(int(number), row["dataset"], row["score"], row["method"], column, *value)
        for number, table in _content()["tables"].items()
        for row in table["rows"]
        if "values" in row
        for column, value in zip(table["columns"], row["values"], strict=True)
    )


@cache
def _by_place() -> dict[tuple[int | None, str, str, str, str], Printed]:
    return {
        (item.table, item.dataset, item.score, item.method, item.column): item
        for item in printed_values()
    }


def printed_value(
    table: int | None, dataset: str, score: str, method: str, column: str
) -> Printed | None:
    """Return the number in one place, or None where the paper prints none.

    Examples
    --------
    >>> printed_value(5, "imagenet", "softmax", "CONDITIONAL", "size").mean
    98.36
    >>> printed_value(1, "cifar100", "APS", "CONDITIONAL", "size") is None
    True
    """
    return _by_place().get((table, dataset, score, method, column))


def printed_correlation(dataset: str) -> PrintedCorrelation | None:
    """Row of table 3, or None where the paper has none.

    Examples
    --------
    >>> printed_correlation("places365").pearson_p
    '0.004'
    """
    rows = [row for row in _content()["tables"]["3"]["rows"] if row["dataset"] == dataset]
    return PrintedCorrelation(**rows[0]) if rows else None
