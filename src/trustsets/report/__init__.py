"""One self-contained HTML page about evaluations, and the parts it is made of.

`write_report` makes the page. The verdict, tables and charts are plain data that other pages,
such as the explorer's, lay out too.
"""

from trustsets.report.content import (
    MOST_CLASSES,
    bin_lists,
    division_names,
    divisions,
    fixed,
    gap_chart,
    glance,
    number,
    percent,
    range_of,
    size_chart,
    worst_first,
)
from trustsets.report.page import judge, page_styles, verdict, write_report

__all__ = [
    "MOST_CLASSES",
    "bin_lists",
    "division_names",
    "divisions",
    "fixed",
    "gap_chart",
    "glance",
    "judge",
    "number",
    "page_styles",
    "percent",
    "range_of",
    "size_chart",
    "verdict",
    "worst_first",
    "write_report",
]
