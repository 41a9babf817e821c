"""Samples behind the numbers of the page: the worst of every heatmap cell, and regions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Floats, texts_of
from trustsets._blocks import for_each_block
from trustsets.auditing import Region, Regions
from trustsets.metrics import BinTable, Evaluation
from trustsets.outputs import ModelOutputs
from trustsets.report.content import fixed, percent, range_of
from trustsets.sets import PredictionSets

# Of larger sets, the page writes out this many classes and gives the size.
MOST_CLASSES = 12
# A cell lists no more samples.
MOST_SAMPLES = 20
# Where the axis of coverage of a region starts, in percent; lower unless all intervals lie above.
_STARTS = (80.0, 50.0, 0.0)
# Categories that describe a region, and by how much their share must be larger than among all.
_TYPICAL = 4
_FAR_MORE = 0.1


Sets = Mapping[str, PredictionSets]


def worst_first(evaluation: Evaluation, label_probability: Floats) -> NDArray[np.int64]:
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
    evaluations: Mapping[str, Evaluation], outputs: ModelOutputs, sets: Sets, tables: Sequence[str]
) -> dict[str, Any]:
    """Worst samples of each bin of the named tables, for every method.

    Returns
    -------
    dict
        ``classes``: all names; ``rows``: sample -> [row, label code, Conf, Trust];
        ``methods``: name -> ``bins`` (table -> samples of each bin) and ``sets``
        (sample -> [covered, size, first codes of the set by decreasing probability]).
    """
    codes = outputs.require_labels("the list of samples")
    likely = np.empty(len(outputs))

    def fill(block: slice) -> None:
        likely[block] = np.take_along_axis(
            outputs.block_probabilities(block), codes[block, None], axis=1
        )[:, 0]

    for_each_block(fill, len(outputs), outputs.n_classes)
    methods: dict[str, Any] = {}
    listed: set[int] = set()
    for method, evaluation in evaluations.items():
        order = worst_first(evaluation, likely)
        shown = [name for name in tables if name in evaluation.tables]
        bins = {name: _by_bin(evaluation.tables[name], order) for name in shown}
        rows = sorted({i for cells in bins.values() for cell in cells for i in cell})
        listed.update(rows)
        methods[method] = {"bins": bins, "sets": _describe_sets(rows, outputs, sets[method])}
    trust = outputs.trust
    described = {
        str(i): [
            int(outputs.rows[i]),
            int(codes[i]),
            # Rounded as shown, because rounding twice could give another number.
            round(float(outputs.confidence[i]), 3),
            None if trust is None else _json_number(float(f"{trust[i]:.3g}")),
        ]
        for i in sorted(listed)
    }
    return {"classes": texts_of(outputs.classes), "rows": described, "methods": methods}


def _by_bin(table: BinTable, order: NDArray[np.int64]) -> list[list[int]]:
    """First samples of each bin in the given order."""
    assert table.cells is not None  # checked: made by evaluate
    cells = table.cells[order]
    by_cell = order[np.argsort(cells, kind="stable")]
    starts = np.searchsorted(np.sort(cells), np.arange(table.count.size))
    ends = starts + np.minimum(table.count, MOST_SAMPLES)
    return [by_cell[a:b].tolist() for a, b in zip(starts, ends, strict=True)]


def _describe_sets(
    rows: list[int], outputs: ModelOutputs, sets: PredictionSets
) -> dict[str, list[Any]]:
    if not rows:
        return {}
    sets, part = sets[rows], outputs.take(rows)
    covered, sizes = sets.covers(part.labels).tolist(), sets.sizes.tolist()
    codes = _likeliest_first(sets, part)
    return {
        str(i): [int(hit), size, row[:size]]
        for i, hit, size, row in zip(rows, covered, sizes, codes, strict=True)
    }


def _likeliest_first(sets: PredictionSets, outputs: ModelOutputs) -> list[list[int]]:
    """Classes by decreasing probability, those outside the set last; ties as the columns."""
    weight = np.where(sets.mask, outputs.probabilities, -1.0)
    order: list[list[int]] = np.argsort(-weight, axis=1, kind="stable")[:, :MOST_CLASSES].tolist()
    return order


def _json_number(value: float) -> float | str:
    """Write infinity, which JSON lacks: the trust of a sample equal to a training sample."""
    return value if np.isfinite(value) else "∞"


# ---- Regions of an audit ----------------------------------------------------------------------


def region_cards(
    regions: Regions, outputs: ModelOutputs | None, sets: PredictionSets | None
) -> tuple[str, list[dict[str, Any]]]:
    """Where the axis of coverage starts; texts and positions on it for each region of a method."""
    lowest = 100.0 * min((item.coverage.lower for item in regions.regions), default=1.0)
    start = next(tick for tick in _STARTS if tick <= lowest)

    def position(share: float) -> float:
        return round(100.0 * (100.0 * share - start) / (100.0 - start), 3)

    cards: list[dict[str, Any]] = []
    for region in regions.regions:
        coverage = region.coverage
        low, high = position(coverage.lower), position(coverage.upper)
        cards.append(
            {
                "region": region,
                "coverage": percent(coverage.value),
                "ends": range_of(coverage.lower, coverage.upper),
                "share": percent(region.share),
                "elsewhere": percent(region.elsewhere),
                "typical": "" if outputs is None else _typical(region, outputs),
                "low": low,
                "width": round(high - low, 3),
                "value": max(position(coverage.value), 0.0),
                "goal": position(coverage.floor),
                "examples": _examples(region, outputs, sets),
            }
        )
    return f"{start:g}%", cards


def _examples(
    region: Region, outputs: ModelOutputs | None, sets: PredictionSets | None
) -> list[list[str]]:
    """Missed samples of a region: row, true class, predicted class, Conf, Trust, set."""
    rows = region.examples
    if outputs is None or sets is None or rows.size == 0:
        return []
    part, sets = outputs.take(rows), sets[rows]
    names, codes = texts_of(part.classes), part.require_labels("the list of samples")
    order, examples = _likeliest_first(sets, part), []
    for i, size in enumerate(sets.sizes.tolist()):
        listed = ", ".join(names[code] for code in order[i][:size]) or "empty set"
        more = f" and {size - MOST_CLASSES:,} more" if size > MOST_CLASSES else ""
        trust = "" if part.trust is None else f"{part.trust[i]:.3g}"
        predicted, confidence = names[part.predicted_codes[i]], fixed(float(part.confidence[i]), 3)
        row = str(int(part.rows[i]))
        examples.append([row, names[codes[i]], predicted, confidence, trust, listed + more])
    return examples


def _typical(region: Region, outputs: ModelOutputs) -> str:
    """Which categories are more frequent in a region than among all samples, in words."""
    if region.members is None:
        return ""
    codes, names = outputs.require_labels("the list of samples"), texts_of(outputs.classes)
    columns = {"true class": [names[code] for code in codes.tolist()]}
    columns |= {"predicted class": [names[code] for code in outputs.predicted_codes.tolist()]}
    columns |= {name: texts_of(values) for name, values in outputs.groups.items()}
    conditions = {item.name for item in region.conditions if item.category is not None}
    differences = []
    for name, texts in columns.items():
        if name in conditions:
            continue
        inside, overall = Counter(texts[i] for i in region.members.tolist()), Counter(texts)
        for value, count in inside.items():
            shares = count / region.members.size, overall[value] / len(texts)
            differences.append((shares[0] - shares[1], shares, f"{name} {value}"))
    differences.sort(key=lambda item: -item[0])
    return ", ".join(
        f"{what} ({percent(here, 0)} against {percent(among_all, 0)})"
        for more, (here, among_all), what in differences[:_TYPICAL]
        if more >= _FAR_MORE
    )
