"""Watch the coverage of a calibrated predictor over time.

`sequential` has the tests and intervals; `monitor` takes batches of samples, counts, and says what
the tests say.
"""

from trustsets.monitor.monitor import Monitor, Verdict
from trustsets.monitor.sequential import (
    EmpiricalDistribution,
    Evidence,
    MeanTrack,
    miss_bets,
    rank_bets,
    share_intervals,
    tail_bets,
)

__all__ = [
    "EmpiricalDistribution",
    "Evidence",
    "MeanTrack",
    "Monitor",
    "Verdict",
    "miss_bets",
    "rank_bets",
    "share_intervals",
    "tail_bets",
]
