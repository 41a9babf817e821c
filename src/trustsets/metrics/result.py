"""Moved to `trustsets.metrics`; goes when the last import of it is gone."""

from trustsets.metrics.evaluation import _REMEDY as REMEDY
from trustsets.metrics.evaluation import Evaluation

__all__ = ["REMEDY", "Evaluation"]
