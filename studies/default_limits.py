"""The default with few calibration samples, and judged by all features.

    python studies/default_limits.py --bench DIR --table small --seeds 1 2 3 4 5
    python studies/default_limits.py --bench DIR --table features --seeds 1 2 3

Samples, split conformal sets of equal size and ERT are those of `default.py`. *small* has n = 60 to
300 calibration samples: "before" is the default before components and learned functions, which is
the default on outputs without features. *features* judges half of the pool: ERT once with the
columns of `default.py`, once with all features instead of their 20 components.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from default import (
    ALPHA,
    MOST_TESTED,
    NAMES,
    SMOOTH,
    class_under,
    covered_at_size,
    excess_risk,
    inputs,
    load,
)

from trustsets import APS, ConditionalConformal, ModelOutputs, StandardConformal, TrustScore
from trustsets.errors import TrustSetsWarning

SMALL = (60, 100, 200, 300)
CONFIDENCE_BINS, TRUST_BINS = 10, 4
MADE: dict[str, Callable[..., Any]] = {
    "default": ConditionalConformal,
    "before": ConditionalConformal,
    "polynomial": lambda trust: ConditionalConformal(basis=SMOOTH, trust=trust),
    "the paper's way": lambda trust: ConditionalConformal.paper(trust=trust),
}


def cells(test: ModelOutputs) -> np.ndarray:
    """Cell of each sample: ten equal counts of confidence, each in four of trust."""
    confidence, trust = test.confidence, test.require_trust("cells")
    edges = np.quantile(confidence, np.arange(1, CONFIDENCE_BINS) / CONFIDENCE_BINS)
    outer = np.searchsorted(edges, confidence, side="right")
    inner = np.zeros(len(test), dtype=np.int64)
    for level in np.unique(outer):
        values = trust[outer == level]
        cuts = np.quantile(values, np.arange(1, TRUST_BINS) / TRUST_BINS)
        inner[outer == level] = np.searchsorted(cuts, values, side="right")
    return outer * TRUST_BINS + inner


def cell_under(covered: np.ndarray, cell: np.ndarray) -> float:
    """Shortfall of the coverage of the cells, weighted by their samples, in percentage points."""
    counts, hits = np.bincount(cell), np.bincount(cell, weights=covered)
    return float(100.0 * np.maximum((1.0 - ALPHA) * counts - hits, 0.0).sum() / counts.sum())


def all_features(test: ModelOutputs, trust: TrustScore) -> np.ndarray:
    """The columns of `inputs`, with all features for their components."""
    return np.column_stack([inputs(test, trust)[:, :7], np.asarray(test.features, np.float64)])


def parts(pool: ModelOutputs, seed: int, n: int) -> tuple[ModelOutputs, ModelOutputs]:
    """Calibration and test samples of a split."""
    calibration, test = pool.split(0.5, seed=seed, stratify=True)
    draws = np.random.default_rng(seed)
    calibration = calibration.take(draws.permutation(len(calibration))[:n])
    return calibration, test.take(draws.permutation(len(test))[:MOST_TESTED])


def covered_by(
    names: tuple[str, ...], calibration: ModelOutputs, test: ModelOutputs, trust: TrustScore
) -> Iterator[tuple[str, float, np.ndarray]]:
    """Name, mean size and hits of methods, and of split conformal sets of the default's size."""
    for name in names:
        samples = [calibration, test]
        if name == "before":
            samples = [part.replace(features=None) for part in samples]
        predictor = MADE[name](trust=None if name == "before" else trust)
        sets = predictor.calibrate(samples[0]).predict_set(samples[1], alpha=ALPHA)
        yield name, sets.sizes.mean(), sets.covers(test.labels)
        if name == "default":
            split = StandardConformal(score=APS(scale="tail")).calibrate(calibration)
            codes = test.require_labels("sizes")
            same = covered_at_size(split.scores(test), sets.sizes.mean(), codes)
            yield "split, equal size", sets.sizes.mean(), same


def main() -> None:
    """Print a table: means over splits, and the standard deviation of the size over splits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--table", choices=("small", "features"), required=True)
    parser.add_argument("--sets", nargs="+", default=NAMES)
    options = parser.parse_args()
    warnings.simplefilter("ignore", TrustSetsWarning)
    small = options.table == "small"
    print("coverage size (sd) " + ("Conf x Trust under, class under" if small else "ERT under x 2"))
    for data in options.sets:
        pool, trust = load(options.bench, data)
        for n in SMALL if small else (len(pool),):
            rows: dict[str, list[list[float]]] = {}
            for seed in options.seeds:
                calibration, test = parts(pool, seed, n)
                names = tuple(MADE) if small else ("default", "polynomial")
                for name, size, covered in covered_by(names, calibration, test, trust):
                    if small:
                        codes = test.require_labels("classes")
                        more = [cell_under(covered, cells(test)), class_under(covered, codes)]
                    else:
                        seen = (inputs(test, trust), all_features(test, trust))
                        more = [risk for table in seen for risk in excess_risk(table, covered)]
                    rows.setdefault(name, []).append([covered.mean(), size, *more])
            for name, values in rows.items():
                mean, spread = np.mean(values, axis=0), np.std(values, axis=0, ddof=1)
                numbers = " ".join(f"{value:6.2f}" for value in mean[2:])
                sizes = f"{mean[0]:.3f} {mean[1]:6.2f} ({spread[1]:.2f})"
                print(f"{data:10s} {len(calibration):6d} {name:18s} {sizes} {numbers}", flush=True)


if __name__ == "__main__":
    main()
