"""Moved to `trustsets.metrics`; goes when the last import of it is gone."""

from trustsets.metrics.catalogue import bold, escape_latex, latex_table, markdown_table, title

__all__ = ["bold", "escape_latex", "latex_table", "markdown_table", "title"]
