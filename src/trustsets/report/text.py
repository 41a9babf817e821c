"""Numbers and names as people read them."""

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

from trustsets.metrics.catalogue import METRICS, table_title

__all__ = [
    "division_title",
    "fixed",
    "interval",
    "joined",
    "number",
    "p_value",
    "percent",
    "range_of",
]

# Written for a number that is undefined.
NONE = "–"


def division_title(name: str) -> str:
    """Name of a division of the samples for people.

    Examples
    --------
    >>> division_title("conf_trust"), division_title("group:sex")
    ('Conf × Trust', 'sex')
    """
    title = table_title(name)
    return title.replace(" x ", " × ") if name in METRICS else title


def fixed(value: float, digits: int) -> str:
    """A finite number with so many digits, halves rounded away from zero.

    Coverages are ratios of counts, so halves do occur. The page's script rounds them in this
    way, and a table must agree with it.

    Examples
    --------
    >>> fixed(81.25, 1), f"{81.25:.1f}"
    ('81.3', '81.2')
    """
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):,}"


def percent(share: float, digits: int = 1) -> str:
    """A share in percent.

    Examples
    --------
    >>> percent(0.8973), percent(0.9, 0)
    ('89.7%', '90%')
    """
    return NONE if math.isnan(share) else f"{fixed(100.0 * share, digits)}%"


def number(value: float, digits: int = 2) -> str:
    """A number with a fixed number of digits; a true minus sign."""
    return NONE if math.isnan(value) else fixed(value, digits).replace("-", "−")


def interval(low: float, high: float, digits: int = 2) -> str:
    """Both ends of an interval; empty where undefined.

    Examples
    --------
    >>> interval(5.312, 6.4)
    '5.31–6.40'
    """
    if math.isnan(low) or math.isnan(high):
        return ""
    # Next to a minus sign a dash would be read as another one.
    dash = " to " if low < 0.0 else "–"
    return f"{number(low, digits)}{dash}{number(high, digits)}"


def range_of(low: float, high: float, digits: int = 1) -> str:
    """An interval of shares, in percent without the sign.

    Examples
    --------
    >>> range_of(0.8912, 0.9034)
    '89.1–90.3'
    """
    return interval(100.0 * low, 100.0 * high, digits)


def p_value(value: float) -> str:
    """A p-value with as many digits as anyone uses.

    Examples
    --------
    >>> p_value(0.04321), p_value(1e-9)
    ('0.043', '<0.001')
    """
    return "<0.001" if value < 0.001 else fixed(value, 3)


def joined(parts: Sequence[str], last: str = "and") -> str:
    """A list in a sentence.

    Examples
    --------
    >>> joined(["a"]), joined(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {last} {parts[-1]}"
