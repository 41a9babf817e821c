"""One self-contained HTML page about evaluations, and the parts it is made of.

`write_report` makes the page. The verdict, tables and charts are plain data that other pages,
such as the explorer's, lay out too.
"""

from trustsets.report.content import (
    BinCell,
    BinList,
    Cell,
    Division,
    GapChart,
    GapMark,
    Glance,
    Heatmap,
    bin_lists,
    division_names,
    divisions,
    fixed,
    gap_chart,
    glance,
    number,
    p_value,
    percent,
    range_of,
    size_chart,
)
from trustsets.report.page import page_environment, page_styles, write_report
from trustsets.report.samples import MOST_CLASSES, worst_first
from trustsets.report.verdict import Judgement, Verdict, judge, verdict

__all__ = [
    "MOST_CLASSES",
    "BinCell",
    "BinList",
    "Cell",
    "Division",
    "GapChart",
    "GapMark",
    "Glance",
    "Heatmap",
    "Judgement",
    "Verdict",
    "bin_lists",
    "division_names",
    "divisions",
    "fixed",
    "gap_chart",
    "glance",
    "judge",
    "number",
    "p_value",
    "page_environment",
    "page_styles",
    "percent",
    "range_of",
    "size_chart",
    "verdict",
    "worst_first",
    "write_report",
]
