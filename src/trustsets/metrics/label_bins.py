"""Moved to `trustsets.metrics`; goes when the last import of it is gone."""

from trustsets.metrics.binning import FrequencyBins, RankBins, label_ranks, rank_edges_apart

__all__ = ["FrequencyBins", "RankBins", "label_ranks", "rank_edges_apart"]
