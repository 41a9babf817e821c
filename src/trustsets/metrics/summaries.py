"""Moved to `trustsets.metrics`; goes when the last import of it is gone."""

from trustsets.metrics.evaluation import (
    Correlation,
    conditional_coverage,
    correlate,
    summarise_sizes,
)

__all__ = ["Correlation", "conditional_coverage", "correlate", "summarise_sizes"]
