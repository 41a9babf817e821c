"""The numbers that the paper prints, read from ``printed_tables.json``.

The file names the table, row and column of each number; values are as printed, with two
digits after the point.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, final

__all__ = ["Printed", "printed_correlation", "printed_source", "printed_values"]

DATASETS = ("imagenet", "imagenet-lt", "places365", "places365-lt", "fitzpatrick17k")
"""Datasets of the paper."""
HALF_UNIT = 0.005
"""How far rounding to two digits can move a printed number."""


@final
@dataclass(frozen=True)
class Printed:
    """One number as printed."""

    mean: float
    standard_error: float


@cache
def _content() -> dict[str, Any]:
    file = resources.files("trustsets.paper").joinpath("printed_tables.json")
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def printed_source() -> str:
    """Return the publication that the numbers come from."""
    return str(_content()["source"])


@cache
def printed_values() -> dict[tuple[int | None, str, str, str, str], Printed]:
    """All numbers of tables 1, 2, 4 and 5, by table, dataset, score, method and column.

    Columns are named as in ``Evaluation.metrics``.

    Examples
    --------
    >>> printed_values()[5, "imagenet", "softmax", "CONDITIONAL", "size"].mean
    98.36
    """
    return {
        (int(number), row["dataset"], row["score"], row["method"], column): Printed(*value)
        for number, table in _content()["tables"].items()
        for row in table["rows"]
        if "values" in row
        for column, value in zip(table["columns"], row["values"], strict=True)
    }


def printed_correlation(dataset: str) -> dict[str, Any] | None:
    """Row of table 3, or None where the paper has none; p-values are texts such as ``< 0.001``.

    Examples
    --------
    >>> printed_correlation("places365")["pearson_p"]
    '0.004'
    """
    rows = _content()["tables"]["3"]["rows"]
    return next((row for row in rows if row["dataset"] == dataset), None)
