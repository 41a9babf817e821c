"""Where coverage fails, with error bars and noise floors. Imports sets, basis and below.

`evaluate` measures one method, `compare` puts several side by side; the modules hold the
single metrics for those who want just one.
"""

from trustsets.metrics.balls import BallCurve, Balls, Neighbourhoods
from trustsets.metrics.binning import Rank, RankBins, label_ranks
from trustsets.metrics.bins import BinTable
from trustsets.metrics.comparison import Comparison, Entry, compare
from trustsets.metrics.evaluation import evaluate
from trustsets.metrics.inference import Estimate, conditional_coverage, expected_gap
from trustsets.metrics.result import Evaluation
from trustsets.metrics.slab import Slab, SlabCoverage

__all__ = [
    "BallCurve",
    "Balls",
    "BinTable",
    "Comparison",
    "Entry",
    "Estimate",
    "Evaluation",
    "Neighbourhoods",
    "Rank",
    "RankBins",
    "Slab",
    "SlabCoverage",
    "compare",
    "conditional_coverage",
    "evaluate",
    "expected_gap",
    "label_ranks",
]
