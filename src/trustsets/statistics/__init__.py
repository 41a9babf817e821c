"""Numbers known about a sample before its label: what coverage is conditioned on."""

from trustsets.outputs import SupportsTrust
from trustsets.statistics.measures import ClassFrequency, Confidence, Entropy, Margin, Trust
from trustsets.statistics.statistic import (
    FittedStatistic,
    Statistic,
    Transform,
)

__all__ = [
    "ClassFrequency",
    "Confidence",
    "Entropy",
    "FittedStatistic",
    "Margin",
    "Statistic",
    "SupportsTrust",
    "Transform",
    "Trust",
]
