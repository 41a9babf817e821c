"""Sets of at most k classes: their target, their coverage, and how often there is no guarantee.

For every data set and k: the mean of 1 - alpha over the samples with a guarantee, the coverage of
their sets, the mean absolute and the worst difference of the two over cells of confidence and trust
(10 x 4, cells of 100 samples or more), the share of samples without a guarantee, and the mean size.
Means over seeds; half of the samples calibrate, the other half tests.

    python studies/max_size.py --bench DIR [--errors 0.5 1 1.5]
"""

import argparse
from pathlib import Path

import numpy as np

from trustsets import ConditionalConformal, ModelOutputs, TrustScore
from trustsets.predictors import conditional

NAMES = ("cifar100", "cifar100lt", "ham10000")
SIZES = (1, 2, 3, 5)
FEWEST = 100
COLUMNS = ("target", "coverage", "cells", "worst", "none", "size")


def load(folder: Path, name: str) -> ModelOutputs:
    """Samples of the pool, with their trust."""
    train, pool = (np.load(folder / f"{name}_{part}.npz") for part in ("train", "pool"))
    trust = TrustScore().fit(train["features"].astype(np.float32), train["labels"])
    outputs = ModelOutputs(
        logits=pool["logits"].astype(np.float64),
        features=pool["features"].astype(np.float32),
        labels=pool["labels"].astype(np.int64),
    )
    return outputs.with_trust(trust)


def cells(test: ModelOutputs) -> np.ndarray:
    """Cell of each sample: confidence in 10 parts of equal width, trust in 4 of equal size."""
    wide = np.linspace(test.confidence.min(), test.confidence.max(), 11)[1:-1]
    trust = test.require_trust("this study")
    quarters = np.quantile(trust, (0.25, 0.5, 0.75))
    return 4 * np.searchsorted(wide, test.confidence) + np.searchsorted(quarters, trust)


def measure(predictor: ConditionalConformal, test: ModelOutputs, size: int) -> list[float]:
    """The row of one k."""
    sets = predictor.predict_set(test, alpha=0.1, max_size=size)
    assert sets.sizes.max() <= size
    alphas = np.asarray(sets.alpha)
    guaranteed, covered = alphas < 1.0, sets.covers(test.labels)
    gap = covered - (1.0 - alphas)
    codes = cells(test)
    gaps = [gap[guaranteed & (codes == cell)] for cell in np.unique(codes)]
    means = [differences.mean() for differences in gaps if differences.size >= FEWEST] or [np.nan]
    return [
        1.0 - alphas[guaranteed].mean(),
        covered[guaranteed].mean(),
        float(np.abs(means).mean()),
        float(np.min(means)),
        1.0 - guaranteed.mean(),
        sets.sizes.mean(),
    ]


def study(outputs: ModelOutputs, seeds: int) -> np.ndarray:
    """Means over seeds, one row for each k."""
    runs = []
    for seed in range(seeds):
        calibration, test = outputs.split(0.5, seed=seed)
        predictor = ConditionalConformal(random_state=seed).calibrate(calibration)
        runs.append([measure(predictor, test, size) for size in SIZES])
    return np.asarray(np.nanmean(runs, axis=0))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--errors", type=float, nargs="+", default=[conditional.ERRORS])
    arguments = parser.parse_args()
    print(f"{'data':<12}{'errors':>7}{'k':>4}" + "".join(f"{name:>10}" for name in COLUMNS))
    for name in NAMES:
        outputs = load(arguments.bench, name)
        for errors in arguments.errors:
            conditional.ERRORS = errors
            for size, row in zip(SIZES, study(outputs, arguments.seeds), strict=True):
                numbers = "".join(f"{number:>10.3f}" for number in row)
                print(f"{name:<12}{errors:>7g}{size:>4}{numbers}", flush=True)


if __name__ == "__main__":
    main()
