"""Bins that depend on the labels of test samples: by Rank, and by the frequency of the class.

Evaluation bins are fitted on the test samples themselves. Those in this file need the label, so
they are for evaluation only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, final, get_args

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.blocks import for_each_block
from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.ranks import ranks_of
from trustsets.basis import Bins, FittedBins, Partition
from trustsets.errors import InputError
from trustsets.metrics.inference import PERCENT, Ints
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, Statistic

__all__ = ["FrequencyBins", "LabelStatistic", "RankBins", "label_ranks", "rank_edges_apart"]

RankTies = Literal["split", "quantiles"]

# Ranges of class frequency grow by this factor at least.
_LEAST_GROWTH = 2.0


def label_ranks(outputs: ModelOutputs) -> Ints:
    """``Rank(x, y)``: 1-based position of the label in decreasing softmax order, shape (n,).

    Among equal outputs the lower column comes first, as in the scores.

    Examples
    --------
    >>> label_ranks(ModelOutputs(probabilities=[[0.2, 0.5, 0.3]] * 3, labels=[0, 1, 2])).tolist()
    [3, 1, 2]
    """
    codes = outputs.require_labels("Rank")
    result = np.empty(len(outputs), dtype=np.int64)

    def fill(block: slice) -> None:
        result[block] = 1 + ranks_of(outputs.block_probabilities(block), codes[block])

    for_each_block(fill, len(outputs), outputs.n_classes)
    return result


@final
@dataclass(frozen=True, eq=False)
class LabelStatistic(Statistic):
    """A number that depends on the labels of particular samples.

    It keeps the values it was made with, so that no predictor can compute those of new
    samples from their labels.
    """

    title: str = field(kw_only=True)
    known: Floats = field(kw_only=True, repr=False)

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the values, for the samples they belong to."""
        if len(outputs) != self.known.size:
            raise InputError(
                f"{self.name} needs the true labels, so its bins hold only for the samples they "
                "were fitted on; use Trust to bin new samples."
            )
        return self.known

    @property
    def name(self) -> str:
        """Short name."""
        return self.title


@final
@dataclass(frozen=True)
class RankBins(Partition):
    """Cells of Conf x Rank: equal widths of Conf, equal shares of Rank.

    Parameters
    ----------
    counts : tuple of two int
        Number of bins of Conf and of Rank.
    nested : bool
        Divide each Conf bin by its own ranks (the paper's text), or all by the same edges
        (the authors' code).
    ties : {"split", "quantiles"}
        What to do with samples of equal rank; three quarters may have rank 1.
        ``"split"`` (the paper's text) makes bins of equal size, with equal ranks in different
        bins where necessary; the choice is random, but fixed by the identity of the sample.
        ``"quantiles"`` (the authors' code) takes the quantiles of the ranks as edges: a
        bin includes its upper edge, equal ranks share a bin, and bins between equal edges
        stay empty.
    edges : sequence of float, optional
        Edges of Rank given by hand, as the authors did for ImageNet: ``(0, 1, 2, 4, 1000)``
        makes the bins {1}, {2}, {3, 4}, {5..1000}; each includes its upper edge. The second
        count, `nested` and `ties` are then not used.

    Examples
    --------
    >>> probabilities = np.tile([0.5, 0.3, 0.15, 0.05], (8, 1))
    >>> labels = [0, 0, 0, 0, 1, 1, 2, 3]
    >>> seen = ModelOutputs(probabilities=probabilities, labels=labels)
    >>> np.bincount(RankBins(counts=(1, 4)).fit(seen).cells(seen)).tolist()
    [2, 2, 2, 2]
    >>> RankBins(counts=(1, 4), ties="quantiles").fit(seen).cells(seen).tolist()  # 1, 1.5, 2.25
    [0, 0, 0, 0, 2, 2, 3, 3]
    >>> RankBins(counts=(1, 2), edges=(0, 2, 4)).fit(seen).cells(seen).tolist()
    [0, 0, 0, 0, 0, 0, 1, 1]
    """

    counts: tuple[int, int] = (10, 4)
    nested: bool = True
    ties: RankTies = "split"
    edges: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if len(self.counts) != 2 or any(count < 1 for count in self.counts):
            raise InputError(f"counts must be two numbers, 1 or more; got {self.counts}.")
        if self.ties not in get_args(RankTies):
            raise InputError(f'ties must be "split" or "quantiles"; got {self.ties!r}.')
        if self.edges is not None:
            object.__setattr__(self, "edges", _check_rank_edges(self.edges))

    @property
    def learns(self) -> bool:
        """Edges of Conf always come from the samples."""
        return True

    def fit(self, outputs: ModelOutputs) -> FittedBins:
        """Place the edges on labelled samples."""
        ranks = label_ranks(outputs)
        if self.edges is None and self.ties == "split":
            return self._split(ranks, outputs)
        outer = Bins((Confidence(),), self.counts[:1], ("uniform",)).fit(outputs)
        if self.edges is not None:
            cuts = _manual_cuts(self.edges, ranks)[None]
        elif self.nested:
            cells = outer.cells(outputs)
            parts = [ranks[cells == cell] for cell in range(outer.n_cells)]
            cuts = np.stack([quantile_cuts(part, self.counts[1]) for part in parts])
        else:
            cuts = quantile_cuts(ranks, self.counts[1])[None]
        return _divided(outer, _ranked(ranks), cuts, outputs)

    def _split(self, ranks: Ints, outputs: ModelOutputs) -> FittedBins:
        """Quantile bins of ranks that are spread over [rank, rank + 1), which breaks all ties."""
        spread = ranks + row_uniforms(0, Stream.RANK_TIES, outputs.rows)
        of = (Confidence(), _ranked(spread))
        bins = Bins(of, self.counts, ("uniform", "quantile"), product=True, nested=self.nested)
        return bins.fit(outputs)


def _ranked(ranks: Ints | Floats) -> LabelStatistic:
    return LabelStatistic(title="Rank", known=ranks.astype(np.float64))


def _divided(
    outer: FittedBins, by: LabelStatistic, cuts: Floats, outputs: ModelOutputs
) -> FittedBins:
    """Bins of Conf, each divided by a row of cuts of its own, or all by the only row."""
    of = (*outer.of, by.fit(outputs))
    return FittedBins(of, (*outer.edges, cuts[:1]), (*outer.cuts, cuts), product=True)


def _check_rank_edges(edges: Sequence[float]) -> tuple[float, ...]:
    checked = tuple(float(edge) for edge in edges)
    if len(checked) < 2 or not np.isfinite(checked).all() or np.any(np.diff(checked) <= 0.0):
        raise InputError(f"edges must be two or more finite, increasing numbers; got {edges!r}.")
    if checked[0] >= 1.0:
        raise InputError(f"edges must start below the first rank, 1; got {edges!r}.")
    return checked


def _manual_cuts(edges: Sequence[float], ranks: Ints) -> Floats:
    if ranks.max() > edges[-1]:
        raise InputError(
            f"edges must reach the largest rank, {ranks.max()}; got {edges[-1]:g} as the last."
        )
    return _above(np.array(edges[1:-1]))


def _above(edges: Floats) -> Floats:
    """Cuts just above edges, so that an integer rank equal to an edge is below the cut."""
    cuts: Floats = np.floor(edges) + 0.5
    return cuts


def quantile_cuts(ranks: Ints, count: int) -> Floats:
    """Inner edges of `count` bins at the plain quantiles of the ranks (the authors' code).

    Shape (count - 1,), non-decreasing; a bin holds its upper edge. +inf without ranks.

    Examples
    --------
    >>> quantile_cuts(np.array([1, 1, 1, 2, 5]), 4).tolist()  # quartiles 1, 1 and 2
    [1.5, 1.5, 2.5]
    """
    if not ranks.size:
        return np.full(count - 1, np.inf)
    return _above(np.quantile(ranks, np.arange(1, count) / count))


def rank_edges_apart(ranks: Ints, count: int = 4) -> tuple[float, ...]:
    """Edges for heatmaps: a bin for rank 1, and bins of nearly equal size for other ranks.

    Examples
    --------
    >>> rank_edges_apart(np.array([1, 1, 1, 1, 2, 2, 3, 4, 9]))
    (0.0, 1.0, 2.0, 3.0, 9.0)
    """
    errors = ranks[ranks > 1]
    cuts = equal_cuts(errors, count - 1) if errors.size else np.empty(0)
    inner = np.floor(cuts[np.isfinite(cuts)]).tolist()
    return (0.0, 1.0, *inner, float(max(ranks.max(), 2)))


def equal_cuts(ranks: Ints, count: int) -> Floats:
    """Inner edges of `count` bins of nearly equal size that never separate equal ranks.

    Shape (count - 1,), non-decreasing; +inf for bins that stay empty.
    """
    cuts = np.full(count - 1, np.inf)
    distinct, repeats = np.unique(ranks, return_counts=True)
    upto = np.cumsum(repeats)
    first, done = 0, 0
    for i in range(count - 1):
        if first >= distinct.size - 1:
            break
        share = (ranks.size - done) / (count - i)
        last = first + int(np.argmin(np.abs(upto[first:-1] - done - share)))
        cuts[i] = distinct[last] + 0.5
        first, done = last + 1, int(upto[last])
    return cuts


@final
@dataclass(frozen=True)
class FrequencyBins(Partition):
    """Cells of Conf x class frequency: equal widths of Conf, ranges of growing frequency.

    The frequency of a sample is the share of its label's class, in percent. Ranges of
    frequency grow by the same factor, which is 2 or more. Classes that are about equally
    frequent are therefore in one range.

    Parameters
    ----------
    class_counts : sequence of int, optional
        Calibration samples of each class, in the order of the columns, such as
        ``np.bincount(calibration.codes, minlength=K)``. Default: the test labels are counted.
    source : str
        What was counted, for the name of the axis.
    counts : tuple of two int
        Number of bins of Conf, and the largest number of ranges of frequency.

    Examples
    --------
    >>> outputs = ModelOutputs(logits=np.eye(3)[[0, 0, 0, 1, 2]], labels=[0, 0, 0, 1, 2])
    >>> bins = FrequencyBins(class_counts=(80, 15, 5), counts=(1, 3))
    >>> bins.fit(outputs).cells(outputs).tolist()
    [2, 2, 2, 1, 0]
    """

    class_counts: Sequence[int] | Ints | None = None
    source: str = "calibration"
    counts: tuple[int, int] = (5, 4)

    def __post_init__(self) -> None:
        if len(self.counts) != 2 or any(count < 1 for count in self.counts):
            raise InputError(f"counts must be two numbers, 1 or more; got {self.counts}.")
        if self.class_counts is not None:
            counts = np.asarray(self.class_counts)
            whole = counts.ndim == 1 and counts.dtype.kind in "iu"
            if not whole or not counts.any() or counts.min() < 0:
                raise InputError(
                    "class_counts must be whole numbers, one for each class, 0 or more and not all "
                    f"0; got {self.class_counts!r}."
                )
            object.__setattr__(self, "class_counts", tuple(counts.tolist()))

    @property
    def learns(self) -> bool:
        """Edges always come from the samples."""
        return True

    def fit(self, outputs: ModelOutputs) -> FittedBins:
        """Place the edges on labelled samples."""
        codes = outputs.require_labels("class frequency")
        own = self.class_counts
        found = np.bincount(codes, minlength=outputs.n_classes) if own is None else np.array(own)
        if found.size != outputs.n_classes:
            raise InputError(
                f"class_counts must have one number for each of the {outputs.n_classes} classes; "
                f"got {found.size}."
            )
        frequency = (PERCENT * found / found.sum())[codes]
        source = "test" if own is None else self.source
        by = LabelStatistic(title=f"Class frequency in {source} (%)", known=frequency)
        cuts = _growing_cuts(frequency, self.counts[1])[None]
        outer = Bins((Confidence(),), self.counts[:1], ("uniform",)).fit(outputs)
        return _divided(outer, by, cuts, outputs)


def _growing_cuts(values: Floats, most: int) -> Floats:
    """Inner edges of at most `most` ranges whose ends grow by one factor; zeros are in the first.

    Examples
    --------
    >>> _growing_cuts(np.array([1.0, 3.0, 100.0]), 2), _growing_cuts(np.array([0.9, 1.1]), 4)
    (array([10.]), array([], dtype=float64))
    """
    positive = values[values > 0.0]
    if not positive.size:
        return np.empty(0)
    low, high = positive.min(), positive.max()
    count = int(np.clip(np.log(high / low) / np.log(_LEAST_GROWTH), 1, most))
    return np.asarray(low * (high / low) ** (np.arange(1, count) / count))
