"""Bins of test samples, some of which need the label, and the table of coverage in each bin."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from trustsets import scores
from trustsets._arrays import Array, Flavour, Floats, number_text, to_numpy
from trustsets._draws import Stream, row_uniforms
from trustsets._frames import make_frame
from trustsets._parameters import Positive, Rule
from trustsets.basis import Bins, FittedBins, FittedGroups, Partition
from trustsets.errors import InputError
from trustsets.metrics.inference import (
    PERCENT,
    Estimate,
    Ints,
    binomial_interval,
    bootstrap_gaps,
    expected_gap,
    expected_worst,
    gap_halves,
    holm,
    macro_coverage,
    rms_gap,
    share_estimate,
    under_coverage,
)
from trustsets.metrics.plain import LOCAL
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, Statistic

RankTies = Literal["split", "quantiles"]
TwoCounts = Annotated[tuple[Positive, Positive], Rule("must be two numbers, 1 or more", len)]

# Strata of set size: the largest size of each but the last (Angelopoulos et al. 2021).
SIZE_STRATA = (1, 3, 10, 100)
# Axes whose values are whole numbers.
WHOLE_AXES = frozenset({"Rank", "Size"})
# Ranges of class frequency grow by this factor at least.
_LEAST_GROWTH = 2.0
# As in the paper's balls, which hold at least 10 samples.
_FEW = 10


@dataclass(frozen=True, eq=False, kw_only=True)
class Binned:
    """Samples divided into the B bins that hold any.

    Attributes
    ----------
    axes : tuple of str
        What the bins are made of, such as ``("Conf", "Trust")``.
    shape : tuple of int
        Number of bins along each axis, empty ones included.
    labels : tuple of str of length B
        Name of each bin.
    index : int array of shape (B, len(axes))
        Position of each bin along the axes.
    edges : array of shape (B, len(axes), 2)
        Lower and upper end along each axis; NaN where an axis has no order.
    divisor : int, optional
        What CovGap divides by; None means the number of bins that hold samples.
    cells : int array of shape (n,), or None
        Bin of each sample, 0..B-1; -1 for none. Not kept in JSON.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    labels: tuple[str, ...]
    index: Ints
    edges: Floats
    divisor: int | None = None
    cells: Ints | None = field(default=None, repr=False, metadata=LOCAL)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class BinTable(Binned):
    """Coverage in each of B bins, and what it adds up to.

    Attributes
    ----------
    name : str
        Name of the table, such as ``"conf_trust"``.
    axes, shape, labels, index, edges, divisor, cells
        As in `Binned`.
    count, covered, mean_size : arrays of shape (B,)
        Samples, samples whose set contains their label, mean size of the sets.
    coverage, lower, upper : arrays of shape (B,)
        Share covered with its exact binomial interval.
    p_value, holm : arrays of shape (B,)
        Exact one-sided test that the coverage is below 1 - alpha: unadjusted, and with Holm's
        correction for the number of bins.
    gap, shortfall, excess, rms : Estimate
        CovGap in percent, its two halves, and the root mean square gap without noise.
    worst, macro : Estimate
        Lowest coverage of any bin, with an interval corrected for the choice among B bins
        (Bonferroni); mean of the coverages of the bins.
    flavour : str, optional
        Package that the outputs came in as a frame; not kept in JSON.
    """

    name: str
    count: Ints
    covered: Ints
    coverage: Floats
    lower: Floats
    upper: Floats
    mean_size: Floats
    p_value: Floats
    holm: Floats
    gap: Estimate
    shortfall: Estimate
    excess: Estimate
    rms: Estimate
    worst: Estimate
    macro: Estimate
    flavour: Flavour | None = field(default=None, repr=False, metadata=LOCAL)

    @property
    def is_grid(self) -> bool:
        """Whether the bins lie on a grid of two axes."""
        return len(self.axes) == 2

    @property
    def has_names(self) -> bool:
        """Whether bins have names, as classes and groups do, and no ends along an axis."""
        return bool(np.isnan(self.edges).all())

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The numbers by the ends of their names in ``Evaluation.metrics``."""
        names = ["gap", "shortfall", "excess", "rms", "worst"]
        names += ["macro"] if self.has_names else []
        return {name: getattr(self, name) for name in names}

    @property
    def few(self) -> NDArray[np.bool_]:
        """Bins of so few samples that their coverage alone says little: fewer than 10."""
        return self.count < _FEW

    def under_covered(self, significance: float) -> NDArray[np.bool_]:
        """Bins whose coverage is significantly below 1 - alpha after Holm's correction."""
        return self.holm <= significance

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row per bin; a frame of the package that the outputs came in, or of `flavour`."""
        names = "count covered coverage lower upper mean_size p_value holm"
        columns = {"bin": list(self.labels)} | {n: getattr(self, n) for n in names.split()}
        return make_frame(columns, flavour or self.flavour)


def tabulate(
    name: str,
    binned: Binned,
    covered: NDArray[np.bool_],
    sizes: Ints,
    alpha: float,
    level: float,
    n_bootstrap: int,
) -> BinTable:
    """Count covered samples by bin, with intervals, tests and noise floors."""
    if binned.cells is None or binned.cells.size != covered.size:
        raise InputError(
            f"the bins of {name!r} belong to other samples; make them anew for these "
            f"{covered.size:,} samples."
        )
    inside, n_bins = binned.cells >= 0, len(binned.labels)
    cells = binned.cells[inside]
    count = np.bincount(cells, minlength=n_bins)
    hits = np.bincount(cells[covered[inside]], minlength=n_bins)
    lower, upper = binomial_interval(hits, count, level)
    p_value = under_coverage(hits, count, alpha)
    shortfall, excess = (float(half) for half in gap_halves(count, hits, alpha, binned.divisor))
    ends = bootstrap_gaps([(count, hits)], alpha, binned.divisor, level, n_bootstrap)
    floor = expected_gap(count, alpha, binned.divisor)
    lowest = int(np.argmin(hits / count))
    # The lowest of B coverages: corrected for the choice among them.
    corrected = 1.0 - (1.0 - level) / n_bins
    return BinTable(
        name=name,
        **{item.name: getattr(binned, item.name) for item in fields(Binned)},
        count=count,
        covered=hits,
        coverage=hits / count,
        lower=lower,
        upper=upper,
        mean_size=np.bincount(cells, weights=sizes[inside], minlength=n_bins) / count,
        p_value=p_value,
        holm=holm(p_value),
        gap=Estimate(shortfall + excess, *ends[0], floor),
        shortfall=Estimate(shortfall, *ends[1], floor / 2.0),
        excess=Estimate(excess, *ends[2], floor / 2.0),
        rms=rms_gap(count, hits, alpha, level),
        worst=share_estimate(hits[lowest], count[lowest], corrected, expected_worst(count, alpha)),
        macro=macro_coverage(count, hits, alpha, level),
    )


def bin_samples(partition: Partition | Binned, outputs: ModelOutputs, name: str = "bins") -> Binned:
    """Fit a partition on samples and put them into its bins; bins stay as they are."""
    if isinstance(partition, Binned):
        return partition
    if not isinstance(partition, Partition):
        raise InputError(
            f"bins {name!r} must be a Partition such as Bins(), RankBins() or Groups(...); "
            f"got {type(partition).__name__}."
        )
    fitted = partition.fit(outputs)
    cells = fitted.cells(outputs)
    codes = np.unique(cells[cells >= 0])
    if codes.size == 0:
        raise InputError(f"bins {name!r} hold no sample; widen them.")
    compact = np.where(cells >= 0, np.searchsorted(codes, cells), -1)
    if isinstance(fitted, FittedBins):
        return _grid(fitted, outputs, codes, compact)
    axis, labels = name, [f"{name} {code}" for code in codes.tolist()]
    if isinstance(fitted, FittedGroups):
        axis = " x ".join(fitted.columns)
        labels = [", ".join(fitted.combinations[code]) for code in codes.tolist()]
    return _flat(axis, fitted.n_cells, compact, labels, codes)


def bin_by_class(outputs: ModelOutputs) -> Binned:
    """One bin per class that occurs, in the order of the columns."""
    codes, cells = np.unique(outputs.require_labels("the class bins"), return_inverse=True)
    names = [str(name) for name in outputs.classes[codes].tolist()]
    # As in the paper, the gap over classes is divided by K, whether all occur or not.
    classes = _flat("Class", outputs.n_classes, cells, names, codes)
    return replace(classes, divisor=outputs.n_classes)


def bin_by_size(sizes: Ints, n_classes: int) -> Binned:
    """Strata of set size: 0-1, 2-3, 4-10, 11-100, more; as far as there are classes."""
    upper = np.array([top for top in SIZE_STRATA if top < n_classes] + [n_classes])
    lower = np.append(0, upper[:-1] + 1)
    codes, cells = np.unique(np.searchsorted(upper, sizes), return_inverse=True)
    ends = np.stack([lower, upper], axis=1)[codes]
    labels = [_span("Size", low, high) for low, high in ends.tolist()]
    return replace(_flat("Size", upper.size, cells, labels, codes), edges=ends[:, None] * 1.0)


def _flat(axis: str, n_cells: int, cells: Array, labels: Sequence[str], codes: Ints) -> Binned:
    """Bins along one axis without ends."""
    return Binned(
        axes=(axis,),
        shape=(n_cells,),
        labels=tuple(labels),
        index=codes[:, None],
        edges=np.full((len(labels), 1, 2), np.nan),
        cells=cells.astype(np.int64),
    )


def _grid(fitted: FittedBins, outputs: ModelOutputs, codes: Ints, cells: Ints) -> Binned:
    """Bins with ends along the axes of a grid."""
    shape = tuple(cuts.shape[1] + 1 for cuts in fitted.cuts)
    index = np.stack(np.unravel_index(codes, shape), axis=1)
    edges = np.empty((codes.size, len(shape), 2))
    parents = np.zeros(codes.size, dtype=np.int64)
    for axis, (item, cuts) in enumerate(zip(fitted.of, fitted.cuts, strict=True)):
        values = item.values(outputs)
        inner = cuts[parents] if cuts.shape[0] > 1 else np.repeat(cuts, codes.size, axis=0)
        ends = np.pad(inner, ((0, 0), (1, 1)), constant_values=((0, 0), (-np.inf, np.inf)))
        at = index[:, axis, None] + np.arange(2)
        edges[:, axis] = np.take_along_axis(ends, at, axis=1).clip(values.min(), values.max())
        if isinstance(item.statistic, LabelStatistic):
            # Ranks whose ties are broken lie between whole numbers.
            whole = item.statistic.name in WHOLE_AXES
            edges[:, axis] = _extremes(np.floor(values) if whole else values, cells, codes.size)
        parents = parents * shape[axis] + index[:, axis]
    names = tuple(item.statistic.name for item in fitted.of)
    labels = tuple(
        ", ".join(_span(name, low, high) for name, (low, high) in zip(names, ends, strict=True))
        for ends in edges.tolist()
    )
    index = index.astype(np.int64)
    return Binned(axes=names, shape=shape, labels=labels, index=index, edges=edges, cells=cells)


def _extremes(values: Floats, cells: Ints, n_bins: int) -> Floats:
    """Smallest and largest value in each bin, shape (n_bins, 2)."""
    low, high = np.full(n_bins, np.inf), np.full(n_bins, -np.inf)
    np.minimum.at(low, cells[cells >= 0], values[cells >= 0])
    np.maximum.at(high, cells[cells >= 0], values[cells >= 0])
    return np.stack([low, high], axis=1)


def _span(name: str, low: float, high: float) -> str:
    """An interval in words."""
    if name in WHOLE_AXES:
        return f"{name} {low:.0f}" if low == high else f"{name} {low:.0f}–{high:.0f}"
    first, last = number_text(low, ".3g"), number_text(high, ".3g")
    return f"{name} {first}" if low == high else f"{name} {first} to {last}"


def label_ranks(outputs: ModelOutputs) -> Ints:
    """``Rank(x, y)``: 1-based position of the label in decreasing softmax order, shape (n,).

    Among equal outputs the lower column comes first, as in the scores.
    """
    return 1 + scores.label_positions(outputs)


@final
@dataclass(frozen=True, eq=False)
class LabelStatistic(Statistic):
    """A number that depends on the labels of particular samples, for no others."""

    title: str = field(kw_only=True)
    numbers: Floats = field(kw_only=True, repr=False)

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the values, for the samples they belong to."""
        if len(outputs) != self.numbers.size:
            raise InputError(
                f"{self.name} needs the true labels, so its bins hold only for the samples they "
                "were fitted on; use Trust to bin new samples."
            )
        return self.numbers

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
        Divide each Conf bin by its own ranks (the paper's text), or all by the same edges.
    ties : {"split", "quantiles"}
        ``"split"`` (the paper's text) makes bins of equal size and breaks ties at random;
        ``"quantiles"`` (the authors' code) leaves equal ranks together.
    edges : sequence of float, optional
        Edges of Rank by hand: ``(0, 1, 2, 4, 1000)`` makes the bins {1}, {2}, {3, 4}, {5..1000}.
    """

    counts: TwoCounts = (10, 4)
    nested: bool = True
    ties: RankTies = "split"
    edges: Sequence[float] | None = None

    # Edges of Conf always come from the samples.
    learns = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.edges is not None:
            object.__setattr__(self, "edges", _check_rank_edges(self.edges))

    def fit(self, outputs: ModelOutputs) -> FittedBins:
        """Place the edges on labelled samples."""
        ranks = label_ranks(outputs)
        if self.edges is None and self.ties == "split":
            return self._split(ranks, outputs)
        outer = _conf_bins(self.counts[0]).fit(outputs)
        if self.edges is not None:
            cuts = _above(np.array(self.edges[1:-1]))[None]
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
        return Bins(
            Confidence(),
            _ranked(spread),
            counts=self.counts,
            spacing=("uniform", "quantile"),
            nested=self.nested,
        ).fit(outputs)


@final
@dataclass(frozen=True)
class FrequencyBins(Partition):
    """Cells of Conf x class frequency: equal widths of Conf, ranges of growing frequency.

    The frequency of a sample is the share of its label's class, in percent. Ranges grow by the same
    factor, 2 or more.

    Parameters
    ----------
    class_counts : sequence of int, optional
        Calibration samples of each class, ``predictor.class_counts_``. Default: the test labels
        are counted.
    counts : tuple of two int
        Number of bins of Conf, and the largest number of ranges of frequency.
    """

    class_counts: Sequence[int] | Ints | None = None
    counts: TwoCounts = (5, 4)

    # Edges always come from the samples.
    learns = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_counts is not None:
            counts = to_numpy(self.class_counts, "class_counts")
            whole = counts.ndim == 1 and counts.dtype.kind in "iu"
            if not whole or not counts.any() or counts.min() < 0:
                raise InputError(
                    "class_counts must be whole numbers, one for each class, 0 or more and not all "
                    f"0; got {self.class_counts!r}."
                )
            object.__setattr__(self, "class_counts", tuple(counts.tolist()))

    def fit(self, outputs: ModelOutputs) -> FittedBins:
        """Place the edges on labelled samples."""
        codes = outputs.require_labels("class frequency")
        counts, source = self.class_counts, "calibration"
        if counts is None:
            counts, source = np.bincount(codes, minlength=outputs.n_classes), "test"
        if len(counts) != outputs.n_classes:
            raise InputError(
                f"class_counts must have one number for each of the {outputs.n_classes} classes; "
                f"got {len(counts)}."
            )
        frequency = (PERCENT * np.array(counts) / np.sum(counts))[codes]
        statistic = LabelStatistic(title=f"Class frequency in {source} (%)", numbers=frequency)
        cuts = _growing_cuts(frequency, self.counts[1])[None]
        return _divided(_conf_bins(self.counts[0]).fit(outputs), statistic, cuts, outputs)


def _check_rank_edges(edges: Sequence[float]) -> tuple[float, ...]:
    numbers = to_numpy(edges, "edges")
    is_list = numbers.ndim == 1 and numbers.size > 1 and numbers.dtype.kind in "fiu"
    if not is_list or not np.isfinite(numbers).all() or np.any(np.diff(numbers) <= 0.0):
        raise InputError(f"edges must be two or more finite, increasing numbers; got {edges!r}.")
    return tuple(float(edge) for edge in numbers)


def _conf_bins(count: int) -> Bins:
    """Bins of equal widths of Conf."""
    return Bins(Confidence(), counts=count, spacing="uniform")


def _ranked(ranks: Ints | Floats) -> LabelStatistic:
    return LabelStatistic(title="Rank", numbers=ranks.astype(np.float64))


def _divided(
    outer: FittedBins, statistic: LabelStatistic, cuts: Floats, outputs: ModelOutputs
) -> FittedBins:
    """Bins of Conf, each divided by a row of cuts of its own, or all by the only row."""
    of = (*outer.of, statistic.fit(outputs))
    return FittedBins(of, (*outer.cuts, cuts))


def _above(edges: Any) -> Floats:
    """Cuts just above edges, so that an integer rank equal to an edge is below the cut."""
    return np.asarray(np.floor(edges) + 0.5)


def quantile_cuts(ranks: Ints, count: int) -> Floats:
    """Inner edges of bins, which hold their upper edge, at plain quantiles (the authors' code)."""
    if not ranks.size:
        return np.full(count - 1, np.inf)
    return _above(np.quantile(ranks, np.arange(1, count) / count))


def rank_edges_apart(ranks: Ints, count: int = 4) -> tuple[float, ...]:
    """Edges for heatmaps: a bin for rank 1, and bins of nearly equal size for other ranks."""
    errors = ranks[ranks > 1]
    cuts = equal_cuts(errors, count - 1) if errors.size else np.empty(0)
    inner = np.floor(cuts[np.isfinite(cuts)]).tolist()
    return (0.0, 1.0, *inner, float(max(ranks.max(), 2)))


def equal_cuts(ranks: Ints, count: int) -> Floats:
    """Inner edges of bins of nearly equal size that never separate equal ranks; +inf if empty."""
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


def _growing_cuts(values: Floats, most: int) -> Floats:
    """Inner edges of at most `most` ranges that grow by one factor; zeros are in the first."""
    positive = values[values > 0.0]
    if not positive.size:
        return np.empty(0)
    low, high = positive.min(), positive.max()
    count = int(np.clip(np.log(high / low) / np.log(_LEAST_GROWTH), 1, most))
    return np.asarray(low * (high / low) ** (np.arange(1, count) / count))
