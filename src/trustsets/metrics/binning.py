"""Bins of test samples, with names for people.

Evaluation bins are fitted on the test samples themselves. Conf x Trust and groups are the
`Bins` and `Groups` that predictors use. Bins of Rank and of classes need the label, so they are
for evaluation only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final, get_args

import numpy as np

from trustsets._common.arrays import Array, Floats
from trustsets._common.blocks import for_each_block
from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.ranks import ranks_of
from trustsets.basis import Bins, FittedBins, FittedGroups, Partition
from trustsets.errors import InputError
from trustsets.metrics.inference import Ints
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, Observed, Statistic

__all__ = [
    "Binned",
    "Rank",
    "RankBins",
    "bin_by_class",
    "bin_by_size",
    "bin_samples",
    "label_ranks",
]

RankTies = Literal["split", "together", "quantiles"]

# Strata of set size: the largest size of each but the last (Angelopoulos et al. 2021).
SIZE_STRATA = (1, 3, 10, 100)
# Axes whose values are whole numbers.
WHOLE_AXES = frozenset({"Rank", "Size"})


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
class Rank(Statistic):
    """Ranks of the labels of particular samples, for evaluation only.

    It keeps the ranks it was made with, so that no predictor can compute the ranks of new
    samples from their labels.
    """

    ranks: Floats = field(kw_only=True, repr=False)

    def measure(self, observed: Observed) -> Floats:
        """Return the ranks, for the samples they belong to."""
        if len(observed.outputs) != self.ranks.size:
            raise InputError(
                "Rank needs the true labels, so its bins hold only for the samples they were "
                "fitted on; use Trust to bin new samples."
            )
        return self.ranks

    @property
    def name(self) -> str:
        """Short name."""
        return "Rank"


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
    ties : {"split", "together", "quantiles"}
        What to do with samples of equal rank; three quarters may have rank 1.
        ``"split"`` (the paper's text) makes bins of equal size, with equal ranks in different
        bins where necessary; the choice is random, but fixed by the identity of the sample.
        ``"quantiles"`` (the authors' code) takes the quantiles of the ranks as edges: a
        bin includes its upper edge, equal ranks share a bin, and bins between equal edges
        stay empty. ``"together"`` keeps equal ranks in one bin and puts each edge, going up,
        where the bin comes closest to an equal share of the samples *that are left*. An
        accurate model then has the bin {1} and equal parts of its errors, which shows
        miscoverage of errors more clearly. With fewer distinct ranks than bins the last
        bins stay empty.
    edges : sequence of float, optional
        Edges of Rank given by hand, as the authors did for ImageNet: ``(0, 1, 2, 4, 1000)``
        makes the bins {1}, {2}, {3, 4}, {5..1000}; each includes its upper edge. The second
        count, `nested` and `ties` are then not used.

    Examples
    --------
    >>> probabilities = np.tile([0.5, 0.3, 0.15, 0.05], (8, 1))
    >>> labels = [0, 0, 0, 0, 1, 1, 2, 3]
    >>> seen = Observed(ModelOutputs(probabilities=probabilities, labels=labels))
    >>> np.bincount(RankBins(counts=(1, 4)).fit(seen).cells(seen)).tolist()
    [2, 2, 2, 2]
    >>> RankBins(counts=(1, 4), ties="together").fit(seen).cells(seen).tolist()
    [0, 0, 0, 0, 1, 1, 2, 3]
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
            raise InputError(f'ties must be "split", "together" or "quantiles"; got {self.ties!r}.')
        if self.edges is not None:
            object.__setattr__(self, "edges", _check_rank_edges(self.edges))

    @property
    def learns(self) -> bool:
        """Edges of Conf always come from the samples."""
        return True

    def fit(self, observed: Observed) -> FittedBins:
        """Place the edges on labelled samples."""
        ranks = label_ranks(observed.outputs)
        outer = Bins((Confidence(),), self.counts[:1], ("uniform",)).fit(observed)
        if self.edges is None and self.ties == "split":
            return self._split(ranks, observed)
        place = quantile_cuts if self.ties == "quantiles" else equal_cuts
        if self.edges is not None:
            cuts = _manual_cuts(self.edges, ranks)[None]
        elif self.nested:
            cells = outer.cells(observed)
            parts = [ranks[cells == cell] for cell in range(outer.n_cells)]
            cuts = np.stack([place(part, self.counts[1]) for part in parts])
        else:
            cuts = place(ranks, self.counts[1])[None]
        of = (*outer.of, Rank(ranks=ranks.astype(np.float64)).fit(observed))
        return FittedBins(of, (*outer.edges, cuts[:1]), (*outer.cuts, cuts), product=True)

    def _split(self, ranks: Ints, observed: Observed) -> FittedBins:
        """Quantile bins of ranks that are spread over [rank, rank + 1), which breaks all ties."""
        spread = ranks + row_uniforms(0, Stream.RANK_TIES, observed.outputs.rows)
        of = (Confidence(), Rank(ranks=spread))
        bins = Bins(of, self.counts, ("uniform", "quantile"), product=True, nested=self.nested)
        return bins.fit(observed)


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
class Binned:
    """Samples divided into the B bins that hold any.

    Attributes
    ----------
    axes : tuple of str
        What the bins are made of, such as ``("Conf", "Trust")``.
    shape : tuple of int
        Number of bins along each axis, empty ones included.
    cells : int array of shape (n,)
        Bin of each sample, 0..B-1; -1 for none.
    labels : tuple of str of length B
        Name of each bin.
    index : int array of shape (B, len(axes))
        Place of each bin along the axes.
    edges : array of shape (B, len(axes), 2)
        Lower and upper end along each axis: for Rank and Size the smallest and largest
        value, NaN where an axis has no order.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    cells: Ints
    labels: tuple[str, ...]
    index: Ints
    edges: Floats


def bin_samples(partition: Partition, observed: Observed, name: str = "bins") -> Binned:
    """Fit a partition on samples and put them into its bins.

    Examples
    --------
    >>> from trustsets import Groups
    >>> outputs = ModelOutputs(logits=[[1.0, 0.0]] * 3, groups={"sex": ["f", "m", "f"]})
    >>> bin_samples(Groups("sex"), Observed(outputs)).labels
    ('f', 'm')
    """
    if not isinstance(partition, Partition):
        raise InputError(
            f"{name} must be a Partition such as Bins(), RankBins() or Groups(...); "
            f"got {type(partition).__name__}."
        )
    fitted = partition.fit(observed)
    cells = fitted.cells(observed)
    codes = np.unique(cells[cells >= 0])
    if codes.size == 0:
        raise InputError(f"{name} leaves every bin empty: no sample fits any; widen the bins.")
    compact = np.where(cells >= 0, np.searchsorted(codes, cells), -1)
    if isinstance(fitted, FittedBins):
        return _grid(fitted, observed, codes, compact)
    axis, labels = name, [f"{name} {code}" for code in codes.tolist()]
    if isinstance(fitted, FittedGroups):
        axis = " x ".join(fitted.columns)
        labels = [", ".join(fitted.combinations[code]) for code in codes.tolist()]
    return _flat(axis, fitted.n_cells, compact, labels, codes)


def bin_by_class(outputs: ModelOutputs) -> Binned:
    """One bin per class that occurs, in the order of the columns."""
    found = outputs.require_labels("the class bins")
    codes, cells = np.unique(found, return_inverse=True)
    names = [str(name) for name in outputs.classes[codes].tolist()]
    return _flat("Class", outputs.n_classes, cells, names, codes)


def bin_by_size(sizes: Ints, n_classes: int) -> Binned:
    """Strata of set size: 0-1, 2-3, 4-10, 11-100, more; as far as there are classes.

    Examples
    --------
    >>> bin_by_size(np.array([1, 0, 7]), n_classes=10).labels
    ('Size 0-1', 'Size 4-10')
    """
    upper = np.array([top for top in SIZE_STRATA if top < n_classes] + [n_classes])
    lower = np.append(0, upper[:-1] + 1)
    codes, cells = np.unique(np.searchsorted(upper, sizes), return_inverse=True)
    ends = np.stack([lower, upper], axis=1)[codes]
    labels = [_span("Size", low, high) for low, high in ends.tolist()]
    return replace(_flat("Size", upper.size, cells, labels, codes), edges=ends[:, None] * 1.0)


def _flat(axis: str, n_cells: int, cells: Array, labels: Sequence[str], codes: Ints) -> Binned:
    """Bins along one axis without ends."""
    edges = np.full((len(labels), 1, 2), np.nan)
    return Binned((axis,), (n_cells,), cells.astype(np.int64), tuple(labels), codes[:, None], edges)


def _grid(fitted: FittedBins, observed: Observed, codes: Ints, cells: Ints) -> Binned:
    """Bins with ends along the axes of a grid."""
    shape = tuple(cuts.shape[1] + 1 for cuts in fitted.cuts)
    index = np.stack(np.unravel_index(codes, shape), axis=1)
    edges = np.empty((codes.size, len(shape), 2))
    parents = np.zeros(codes.size, dtype=np.int64)
    for axis, (item, cuts) in enumerate(zip(fitted.of, fitted.cuts, strict=True)):
        values = item.values(observed)
        own = cuts[parents] if cuts.shape[0] > 1 else np.repeat(cuts, codes.size, axis=0)
        ends = np.pad(own, ((0, 0), (1, 1)), constant_values=((0, 0), (-np.inf, np.inf)))
        at = index[:, axis, None] + np.arange(2)
        edges[:, axis] = np.take_along_axis(ends, at, axis=1).clip(values.min(), values.max())
        if item.statistic.name == "Rank":
            edges[:, axis] = _extremes(np.floor(values), cells, codes.size)
        parents = parents * shape[axis] + index[:, axis]
    names = tuple(item.statistic.name for item in fitted.of)
    labels = tuple(
        ", ".join(_span(name, low, high) for name, (low, high) in zip(names, own, strict=True))
        for own in edges.tolist()
    )
    return Binned(names, shape, cells, labels, index.astype(np.int64), edges)


def _extremes(values: Floats, cells: Ints, n_bins: int) -> Floats:
    """Smallest and largest value in each bin, shape (n_bins, 2)."""
    low, high = np.full(n_bins, np.inf), np.full(n_bins, -np.inf)
    np.minimum.at(low, cells[cells >= 0], values[cells >= 0])
    np.maximum.at(high, cells[cells >= 0], values[cells >= 0])
    return np.stack([low, high], axis=1)


def _span(name: str, low: float, high: float) -> str:
    """An interval in words."""
    if name not in WHOLE_AXES:
        return f"{name} {low:.3g} to {high:.3g}"
    return f"{name} {low:.0f}" if low == high else f"{name} {low:.0f}-{high:.0f}"
