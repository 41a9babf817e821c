"""Bins of test samples, with names for people.

Conf x Trust and groups are the `Bins` and `Groups` that predictors use, fitted on the test samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from trustsets._common.arrays import Array, Floats
from trustsets.basis import FittedBins, FittedGroups, Partition
from trustsets.errors import InputError
from trustsets.metrics.inference import Ints
from trustsets.metrics.label_bins import LabelStatistic
from trustsets.outputs import ModelOutputs

__all__ = ["Binned", "bin_by_class", "bin_by_size", "bin_samples"]

# Strata of set size: the largest size of each but the last (Angelopoulos et al. 2021).
SIZE_STRATA = (1, 3, 10, 100)
# Axes whose values are whole numbers.
WHOLE_AXES = frozenset({"Rank", "Size"})


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
        Lower and upper end along each axis: for Rank, class frequency and Size the smallest
        and largest value, NaN where an axis has no order.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    cells: Ints
    labels: tuple[str, ...]
    index: Ints
    edges: Floats


def bin_samples(partition: Partition, outputs: ModelOutputs, name: str = "bins") -> Binned:
    """Fit a partition on samples and put them into its bins.

    Examples
    --------
    >>> from trustsets import Groups
    >>> outputs = ModelOutputs(logits=[[1.0, 0.0]] * 3, groups={"sex": ["f", "m", "f"]})
    >>> bin_samples(Groups("sex"), outputs).labels
    ('f', 'm')
    """
    if not isinstance(partition, Partition):
        raise InputError(
            f"{name} must be a Partition such as Bins(), RankBins() or Groups(...); "
            f"got {type(partition).__name__}."
        )
    fitted = partition.fit(outputs)
    cells = fitted.cells(outputs)
    codes = np.unique(cells[cells >= 0])
    if codes.size == 0:
        raise InputError(f"{name} leaves every bin empty: no sample fits any; widen the bins.")
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


def _grid(fitted: FittedBins, outputs: ModelOutputs, codes: Ints, cells: Ints) -> Binned:
    """Bins with ends along the axes of a grid."""
    shape = tuple(cuts.shape[1] + 1 for cuts in fitted.cuts)
    index = np.stack(np.unravel_index(codes, shape), axis=1)
    edges = np.empty((codes.size, len(shape), 2))
    parents = np.zeros(codes.size, dtype=np.int64)
    for axis, (item, cuts) in enumerate(zip(fitted.of, fitted.cuts, strict=True)):
        values = item.values(outputs)
        own = cuts[parents] if cuts.shape[0] > 1 else np.repeat(cuts, codes.size, axis=0)
        ends = np.pad(own, ((0, 0), (1, 1)), constant_values=((0, 0), (-np.inf, np.inf)))
        at = index[:, axis, None] + np.arange(2)
        edges[:, axis] = np.take_along_axis(ends, at, axis=1).clip(values.min(), values.max())
        if isinstance(item.statistic, LabelStatistic):
            # Ranks whose ties are parted lie between whole numbers.
            whole = item.statistic.name in WHOLE_AXES
            edges[:, axis] = _extremes(np.floor(values) if whole else values, cells, codes.size)
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
    if name in WHOLE_AXES:
        return f"{name} {low:.0f}" if low == high else f"{name} {low:.0f}-{high:.0f}"
    return f"{name} {low:.3g}" if low == high else f"{name} {low:.3g} to {high:.3g}"
