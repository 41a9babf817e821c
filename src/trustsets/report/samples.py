"""The worst samples of every heatmap cell, as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.blocks import for_each_block
from trustsets.metrics.bins import BinTable
from trustsets.metrics.inference import Ints
from trustsets.metrics.result import Evaluation
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.sets import PredictionSets

__all__ = ["MOST_CLASSES", "SampleSource", "list_samples", "worst_first"]

# Of larger sets, the page writes out this many classes and gives the size.
MOST_CLASSES = 12


@final
@dataclass(frozen=True, eq=False)
class SampleSource:
    """Where listed samples come from: checked outputs, the sets and predictors of methods."""

    outputs: ModelOutputs
    sets: Mapping[str, PredictionSets]
    trust: Floats | None
    most: int
    predictors: Mapping[str, Predictor] = field(default_factory=dict)


def worst_first(evaluation: Evaluation, label_probability: Floats) -> Ints:
    """Order of the samples, the worst first, shape (n,).

    Missed samples come first, in increasing order of their label's probability. Covered
    samples follow, those with the largest sets first.

    Parameters
    ----------
    evaluation : Evaluation
        Knows which samples are covered, and the sizes of their sets.
    label_probability : array of shape (n,)
        What the model gave to the true class.
    """
    assert evaluation.covered is not None  # checked: made by evaluate
    assert evaluation.set_sizes is not None
    largest = np.where(evaluation.covered, -evaluation.set_sizes, 0)
    return np.lexsort((label_probability, largest, evaluation.covered)).astype(np.int64)


def list_samples(
    evaluations: Mapping[str, Evaluation], tables: Sequence[str], source: SampleSource
) -> dict[str, Any]:
    """Worst samples of each bin of the named tables, for every method.

    Returns
    -------
    dict
        ``classes``: all names; ``rows``: sample -> [row, label code, Conf, Trust];
        ``methods``: name -> ``bins`` (table -> samples of each bin) and ``sets``
        (sample -> [covered, size, first codes of the set by decreasing probability]).
    """
    likely = _label_probability(source.outputs)
    methods: dict[str, Any] = {}
    listed: set[int] = set()
    for method, evaluation in evaluations.items():
        order = worst_first(evaluation, likely)
        bins = {
            name: _by_bin(evaluation.tables[name], order, source.most)
            for name in tables
            if name in evaluation.tables
        }
        own = sorted({i for cells in bins.values() for cell in cells for i in cell})
        listed.update(own)
        methods[method] = {"bins": bins, "sets": _describe_sets(own, source, method)}
    return {
        "classes": [str(name) for name in source.outputs.classes.tolist()],
        "rows": _describe_rows(sorted(listed), source),
        "methods": methods,
    }


def _label_probability(outputs: ModelOutputs) -> Floats:
    codes = outputs.require_labels("the list of samples")
    found = np.empty(len(outputs))

    def fill(block: slice) -> None:
        own = outputs.block_probabilities(block)
        found[block] = own[np.arange(own.shape[0]), codes[block]]

    for_each_block(fill, len(outputs), outputs.n_classes)
    return found


def _by_bin(table: BinTable, order: Ints, most: int) -> list[list[int]]:
    """First samples of each bin in the given order."""
    assert table.cells is not None  # checked: made by evaluate
    cells = table.cells[order]
    by_cell = order[np.argsort(cells, kind="stable")]
    starts = np.searchsorted(np.sort(cells), np.arange(table.count.size))
    ends = starts + np.minimum(table.count, most)
    return [by_cell[a:b].tolist() for a, b in zip(starts, ends, strict=True)]


def _describe_sets(listed: list[int], source: SampleSource, method: str) -> dict[str, list[Any]]:
    if not listed:
        return {}
    sets = source.sets[method][listed]
    part = source.outputs.take(listed)
    # Classes outside the set go to the end; ties keep the order of the columns.
    weight = np.where(sets.mask, part.probabilities, -1.0)
    order = np.argsort(-weight, axis=1, kind="stable")[:, :MOST_CLASSES]
    covered, sizes = sets.covers(part.labels).tolist(), sets.sizes.tolist()
    return {
        str(i): [int(hit), size, codes[:size]]
        for i, hit, size, codes in zip(listed, covered, sizes, order.tolist(), strict=True)
    }


def _describe_rows(listed: list[int], source: SampleSource) -> dict[str, list[Any]]:
    outputs = source.outputs
    codes = outputs.require_labels("the list of samples")
    return {
        str(i): [
            int(outputs.rows[i]),
            int(codes[i]),
            # Rounded as shown, because rounding twice could give another number.
            round(float(outputs.confidence[i]), 3),
            None if source.trust is None else _finite(float(f"{source.trust[i]:.3g}")),
        ]
        for i in listed
    }


def _finite(value: float) -> float | str:
    """Write infinity, which JSON lacks: the trust of a sample equal to a training sample."""
    return value if np.isfinite(value) else "∞"
