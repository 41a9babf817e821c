"""Conformity scores: how badly a label agrees with the classifier.

`score` has what all of them share. `own_probability` has scores that compare the probability of the
label itself, and `by_rank` those that count what is ranked above it.
"""

from trustsets.scores.by_rank import APS, RAPS, SAPS, TopK
from trustsets.scores.own_probability import MarginScore, Softmax
from trustsets.scores.score import RankedScores, Score

__all__ = ["APS", "RAPS", "SAPS", "MarginScore", "RankedScores", "Score", "Softmax", "TopK"]
