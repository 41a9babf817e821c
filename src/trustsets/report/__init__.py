"""One self-contained HTML page about evaluations. Imports metrics and below.

`write_report` makes the page. What it shows is prepared as plain data (`content`, `charts`,
`samples`, `verdict`), apart from the template that lays it out.
"""

from trustsets.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
