"""Moved to `trustsets.metrics`; goes when the last import of it is gone."""

from trustsets._common.plain import LOCAL
from trustsets.metrics.binning import BinTable, tabulate

__all__ = ["LOCAL", "BinTable", "tabulate"]
