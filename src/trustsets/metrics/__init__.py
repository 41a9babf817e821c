"""Metrics of prediction sets, each with an interval and a noise floor.

`evaluate` measures one method, `compare` puts several side by side, and `check_guarantee` tests
whether a guarantee agrees with the test samples. `METRICS` lists every metric.
"""

from trustsets.metrics.binning import (
    WHOLE_AXES,
    Binned,
    BinTable,
    FrequencyBins,
    RankBins,
    bin_samples,
    label_ranks,
    rank_edges_apart,
)
from trustsets.metrics.catalogue import (
    METRICS,
    NUMBERS,
    PAPER_BINS,
    Metric,
    markdown_table,
    number_of,
    split_name,
    table_title,
    title,
)
from trustsets.metrics.comparison import (
    Comparison,
    Entry,
    compare,
    sets_of_size,
)
from trustsets.metrics.evaluation import (
    Correlation,
    Evaluation,
    correlate,
    evaluate,
    outcomes_of,
)
from trustsets.metrics.inference import (
    Estimate,
    binomial_interval,
    check_guarantee,
    expected_gap,
    holm,
    missed_at_least,
    rms_gap,
    share_estimate,
    under_coverage,
)
from trustsets.metrics.plain import PlainData, to_plain
from trustsets.metrics.risk import ExcessRisk, excess_risk

__all__ = [
    "METRICS",
    "NUMBERS",
    "PAPER_BINS",
    "WHOLE_AXES",
    "BinTable",
    "Binned",
    "Comparison",
    "Correlation",
    "Entry",
    "Estimate",
    "Evaluation",
    "ExcessRisk",
    "FrequencyBins",
    "Metric",
    "PlainData",
    "RankBins",
    "bin_samples",
    "binomial_interval",
    "check_guarantee",
    "compare",
    "correlate",
    "evaluate",
    "excess_risk",
    "expected_gap",
    "holm",
    "label_ranks",
    "markdown_table",
    "missed_at_least",
    "number_of",
    "outcomes_of",
    "rank_edges_apart",
    "rms_gap",
    "sets_of_size",
    "share_estimate",
    "split_name",
    "table_title",
    "title",
    "to_plain",
    "under_coverage",
]
