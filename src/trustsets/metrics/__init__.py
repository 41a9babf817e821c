"""Metrics of prediction sets, each with an interval and a noise floor.

`evaluate` measures one method and `compare` puts several side by side. `METRICS` lists every
metric and `NUMBERS` says how their numbers are shown.
"""

from trustsets.metrics.balls import BallCurve, Balls, Neighbourhoods
from trustsets.metrics.binning import Binned, bin_samples
from trustsets.metrics.bins import BinTable
from trustsets.metrics.catalogue import METRICS, NUMBERS, number_of, split_name, table_title
from trustsets.metrics.comparison import Comparison, Entry, compare
from trustsets.metrics.evaluation import evaluate
from trustsets.metrics.inference import (
    Estimate,
    GuaranteeCheck,
    binomial_interval,
    check_guarantee,
    expected_gap,
    holm,
    samples_needed,
    share_estimate,
)
from trustsets.metrics.label_bins import FrequencyBins, RankBins, label_ranks, rank_edges_apart
from trustsets.metrics.plain import PlainData, from_plain, to_plain
from trustsets.metrics.render import bold, escape_latex, latex_table, markdown_table, title
from trustsets.metrics.result import Evaluation
from trustsets.metrics.slab import Slab, SlabCoverage
from trustsets.metrics.summaries import (
    Correlation,
    conditional_coverage,
    correlate,
    summarise_sizes,
)

__all__ = [
    "METRICS",
    "NUMBERS",
    "BallCurve",
    "Balls",
    "BinTable",
    "Binned",
    "Comparison",
    "Correlation",
    "Entry",
    "Estimate",
    "Evaluation",
    "FrequencyBins",
    "GuaranteeCheck",
    "Neighbourhoods",
    "PlainData",
    "RankBins",
    "Slab",
    "SlabCoverage",
    "bin_samples",
    "binomial_interval",
    "bold",
    "check_guarantee",
    "compare",
    "conditional_coverage",
    "correlate",
    "escape_latex",
    "evaluate",
    "expected_gap",
    "from_plain",
    "holm",
    "label_ranks",
    "latex_table",
    "markdown_table",
    "number_of",
    "rank_edges_apart",
    "samples_needed",
    "share_estimate",
    "split_name",
    "summarise_sizes",
    "table_title",
    "title",
    "to_plain",
]
