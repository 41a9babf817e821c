"""How often intervals of `audit` hold the true coverage, over simulated data sets.

    python studies/audit_intervals.py [--repeats 200] [--samples 1000] [--seed 0]

Labels are drawn from known probabilities, so the true coverage of a predictor given its calibration
is known up to a small error: the probability of each set is averaged over 6,000 new samples. Each
row counts how often 95% intervals hold it, overall, in the cells of Conf x Trust, in groups and in
classes. "Average" counts the same for the coverage averaged over calibrations, which is another
number. "Size" is about the mean size of new sets. "CovGap" is about the CovGap over Conf x Trust
cells that a test set with cells of the same sizes is expected to show. "Alarms" is how often any
cell is called too low, by Holm's test, though its true coverage is not.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trustsets import (
    APS,
    Bins,
    ConditionalConformal,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    audit,
)
from trustsets.metrics import BinTable, Evaluation
from trustsets.predictors import Predictor

ALPHA, NEW, CLASSES = 0.1, 6000, 6
Floats = NDArray[np.float64]
Makers = dict[str, Callable[[], Predictor]]

METHODS: Makers = {
    "STANDARD": lambda: StandardConformal(),
    "STANDARD, continuous scores": lambda: StandardConformal(
        score=APS(own_mass="include"), allow_empty=True
    ),
    "Mondrian by Conf x Trust": lambda: MondrianConformal(by=Bins(), allow_empty=True),
    "Mondrian by class": lambda: MondrianConformal(by="class"),
    "CONDITIONAL, default": lambda: ConditionalConformal(),
    "CONDITIONAL, degree 5, no penalty": lambda: ConditionalConformal(
        basis=Polynomial(5, penalty=0.0), per_class=False, allow_empty=True
    ),
}


@dataclass
class Samples:
    """Simulated outputs with their trust scores and the true label probabilities."""

    outputs: ModelOutputs
    trust: Floats
    truth: Floats


def simulate(rng: np.random.Generator, n: int) -> Samples:
    """A classifier that is overconfident where trust is low and in the small group."""
    logits = 2.0 * rng.normal(size=(n, CLASSES)) + np.linspace(1.0, -1.0, CLASSES)
    trust = rng.gamma(4.0, 0.4, size=n)
    site = rng.choice(list("abcd"), n, p=[0.4, 0.3, 0.2, 0.1])
    sharpness = np.clip(trust / 1.5, 0.3, 1.2) * np.where(site == "d", 0.6, 1.0)
    odds = np.exp(sharpness[:, None] * logits)
    truth = odds / odds.sum(axis=1, keepdims=True)
    labels = (truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, CLASSES - 1)
    outputs = ModelOutputs(
        logits=logits, labels=labels, groups={"site": site}, classes=np.arange(CLASSES)
    )
    return Samples(outputs, trust, truth)


@dataclass
class Tally:
    """Ends of intervals and truths of one kind, a row for each data set; NaN for no samples."""

    lower: list[Floats] = field(default_factory=list)
    upper: list[Floats] = field(default_factory=list)
    truth: list[Floats] = field(default_factory=list)

    def add(self, lower: Any, upper: Any, truth: Any) -> None:
        """Append one data set."""
        self.lower.append(np.atleast_1d(np.asarray(lower, dtype=np.float64)))
        self.upper.append(np.atleast_1d(np.asarray(upper, dtype=np.float64)))
        self.truth.append(np.atleast_1d(np.asarray(truth, dtype=np.float64)))

    def share(self, average: bool = False) -> float:
        """Share of intervals that hold the truth, or the average of the truths over data sets."""
        lower, upper, truth = map(np.array, (self.lower, self.upper, self.truth))
        known = ~np.isnan(lower) & ~np.isnan(truth)
        if average:
            truth = np.broadcast_to(np.nanmean(truth, axis=0), truth.shape)
        return float(((lower <= truth) & (truth <= upper))[known].mean())


def by_cell(cells: NDArray[Any], n_cells: int, weights: Floats, values: Floats) -> Floats:
    """Weighted mean of the values in each cell; NaN for an empty one."""
    total = np.bincount(cells, weights, minlength=n_cells)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(cells, weights * values, minlength=n_cells) / total)


def spread(table: BinTable, n_cells: int, values: Any) -> Floats:
    """Numbers of the bins that hold samples, put in their places among all cells."""
    found = np.full(n_cells, np.nan)
    places = np.ravel_multi_index(tuple(table.index.T), table.shape)
    found[places] = values
    return found


def expected_gap(count: Floats, coverage: Floats) -> float:
    """CovGap in percent that test samples with this true coverage show on average."""
    gaps = []
    for n, c in zip(count.astype(int).tolist(), coverage.tolist(), strict=True):
        hits = np.arange(n + 1)
        gaps.append(stats.binom.pmf(hits, n, c) @ np.abs(hits / n - (1.0 - ALPHA)))
    return 100.0 * float(np.mean(gaps))


def one_data_set(
    make: Callable[[], Predictor], data: Samples, new: Samples, tallies: dict[str, Tally]
) -> bool:
    """Audit one data set and note intervals and truths; whether there was a false alarm."""
    predictor = make().calibrate(data.outputs.with_trust(data.trust))
    kept = predictor.calibration_
    result = audit(predictor, ALPHA, metrics=("conf_trust", "class", "groups"), n_bootstrap=200)
    sets = predictor.predict_set(new.outputs.with_trust(new.trust), ALPHA)
    truth = np.where(sets.mask, new.truth, 0.0).sum(axis=1)
    tallies["overall"].add(result.coverage.lower, result.coverage.upper, truth.mean())
    size = result.metrics["size"]
    tallies["size"].add(size.lower, size.upper, sets.sizes.mean())
    note_classes(result, sets.mask, new, tallies["classes"])
    sites = np.unique(new.outputs.groups["site"], return_inverse=True)[1]
    table = result.tables["group:site"]
    own = by_cell(sites, 4, np.ones(NEW), truth)
    tallies["groups"].add(table.lower, table.upper, own)
    return note_cells(result, kept, new, truth, tallies)


def note_classes(result: Evaluation, mask: Any, new: Samples, tally: Tally) -> None:
    """Coverage given each class, by the probabilities of the classes."""
    table = result.tables["class"]
    own = (new.truth * mask).sum(axis=0) / new.truth.sum(axis=0)
    tally.add(
        spread(table, CLASSES, table.lower),
        spread(table, CLASSES, table.upper),
        own,
    )


def note_cells(
    result: Evaluation, kept: ModelOutputs, new: Samples, truth: Floats, tallies: dict[str, Tally]
) -> bool:
    """Coverage in Conf x Trust cells, whose ends are quantiles of the audited samples."""
    table, fitted = result.tables["conf_trust"], Bins().fit(kept)
    n_cells = int(np.prod(table.shape))
    cells = fitted.cells(new.outputs.with_trust(new.trust))
    inside = cells >= 0
    own = by_cell(cells[inside], n_cells, np.ones(int(inside.sum())), truth[inside])
    known = spread(table, n_cells, table.count)
    here = np.bincount(cells[inside], minlength=n_cells)
    own[here < 30] = np.nan
    tallies["cells"].add(
        spread(table, n_cells, table.lower), spread(table, n_cells, table.upper), own
    )
    usable = ~np.isnan(own) & ~np.isnan(known)
    if usable.sum() == table.count.size:
        expected = expected_gap(known[usable], own[usable])
        tallies["gap"].add(table.gap.lower, table.gap.upper, expected)
    low = spread(table, n_cells, table.holm) <= 0.05
    return bool((low & (own >= 1.0 - ALPHA)).any())


def study(repeats: int, n: int, seed: int, methods: Makers = METHODS) -> list[list[str]]:
    """One row of the table for each method."""
    rows = []
    for name, make in methods.items():
        kinds = ("overall", "cells", "groups", "classes", "size", "gap")
        tallies, alarms = {kind: Tally() for kind in kinds}, 0
        for turn in range(repeats):
            rng = np.random.default_rng([seed, turn])
            data, new = simulate(rng, n), simulate(rng, NEW)
            alarms += one_data_set(make, data, new, tallies)
        shares = [tallies[kind].share() for kind in kinds]
        average = [tallies[kind].share(average=True) for kind in ("overall", "cells")]
        numbers = [*shares[:4], *average, *shares[4:], alarms / repeats]
        rows.append([name, *(f"{100.0 * number:.1f}%" for number in numbers)])
        print("| " + " | ".join(rows[-1]) + " |", flush=True)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    header = (
        "method, overall, cells, groups, classes, average overall, average cells, size, CovGap, "
        "alarms"
    ).split(", ")
    print("| " + " | ".join(header) + " |")
    print("|---" + "|--:" * (len(header) - 1) + "|")
    study(given.repeats, given.samples, given.seed)


if __name__ == "__main__":
    main()
