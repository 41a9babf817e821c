"""One self-contained HTML page about evaluations.

`write_report` makes the page. `content`, `charts`, `samples`, `alphas` and `verdict` prepare
what it shows as plain data, and the template lays it out.
"""

from trustsets.report.page import write_report

__all__ = ["write_report"]
