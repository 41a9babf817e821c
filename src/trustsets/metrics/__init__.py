"""Metrics of prediction sets, each with an interval and a noise floor.

`evaluate` measures one method and `compare` puts several side by side. `catalogue` lists every
metric; the other modules compute them.
"""

from trustsets.metrics.balls import BallCurve, Balls, Neighbourhoods
from trustsets.metrics.bins import BinTable
from trustsets.metrics.comparison import Comparison, Entry, compare
from trustsets.metrics.evaluation import evaluate
from trustsets.metrics.inference import Estimate, expected_gap, guarantee_test
from trustsets.metrics.label_bins import FrequencyBins, RankBins, label_ranks
from trustsets.metrics.result import Evaluation
from trustsets.metrics.slab import Slab, SlabCoverage
from trustsets.metrics.summaries import conditional_coverage

__all__ = [
    "BallCurve",
    "Balls",
    "BinTable",
    "Comparison",
    "Entry",
    "Estimate",
    "Evaluation",
    "FrequencyBins",
    "Neighbourhoods",
    "RankBins",
    "Slab",
    "SlabCoverage",
    "compare",
    "conditional_coverage",
    "evaluate",
    "expected_gap",
    "guarantee_test",
    "label_ranks",
]
