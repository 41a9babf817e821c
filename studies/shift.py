"""Label shift simulated: coverage and sizes with and without `adapt`, and the error of shares.

Run with ``python studies/shift.py``. Three kinds of new samples: other class shares alone, where
logits are those of the best classifier up to a temperature (`calibrated`) or further from it
(`uncalibrated`), and other class shares together with more noise, where the assumption of `adapt`
is false (`noisy`). Classes are not equally hard, so that coverage on average depends on shares.
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from trustsets import (
    ConditionalConformal,
    Confidence,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    TrustSetsWarning,
)
from trustsets.predictors import Predictor

OLD = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
NEW = OLD[::-1]
MEANS = np.array([2.6, 2.2, 1.8, 1.4, 1.0])
RANKS = Polynomial(3, (Confidence("rank"),))
METHODS: dict[str, Callable[[], Predictor]] = {
    "STANDARD": lambda: StandardConformal(allow_empty=True),
    "CONDITIONAL": lambda: ConditionalConformal(basis=RANKS, allow_empty=True),
    "by class": lambda: MondrianConformal(by="class", allow_empty=True),
}


def draw(shares: np.ndarray, n: int, rng: np.random.Generator, kind: str) -> ModelOutputs:
    """Samples with normal inputs around the mean of their class."""
    labels = rng.choice(len(shares), p=shares, size=n)
    noise = 1.6 if kind == "noisy" else 1.0
    x = noise * rng.normal(size=(n, len(shares))) + np.diag(MEANS)[labels]
    scale = 1.0 if kind == "uncalibrated" else MEANS
    return ModelOutputs(logits=1.5 * (x * scale - np.square(scale) / 2.0), labels=labels)


def run(kind: str, runs: int, n: int, m: int) -> None:
    """Print the table of one kind of shift."""
    source = "calibrated" if kind == "noisy" else kind
    rows: dict[str, list[list[float]]] = {}
    errors, checks, inside, warned = [], [], [], 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        calibration, tuning = (draw(OLD, size, rng, source) for size in (n, 300))
        unlabelled, test = (draw(NEW, m, rng, kind) for _ in range(2))
        for name, make in METHODS.items():
            predictor = make().calibrate(calibration, tuning=tuning)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", TrustSetsWarning)
                adapted = predictor.adapt(unlabelled)
            if name == "STANDARD":
                found: Any = getattr(adapted, "shares_", None)
                errors.append(np.abs(found.shares - NEW))
                checks.append(np.abs(found.check - NEW))
                inside.append((found.low <= NEW) & (NEW <= found.high))
                warned += len(caught) > 0
            for label, own in ((name, predictor), (f"{name}, adapted", adapted)):
                sets = own.predict_set(test, 0.1)
                covered = sets.covers(test.labels)
                by_class = [covered[test.codes == y].mean() for y in range(len(NEW))]
                rows.setdefault(label, []).append([covered.mean(), sets.sizes.mean(), *by_class])
    print(f"\n{kind}: {runs} runs, n = {n}, m = {m}, alpha = 0.1")
    largest = np.mean(np.max(errors, axis=1))
    print(
        f"shares: mean error {np.mean(errors):.4f} (of the worst class {largest:.4f}), by "
        f"predicted classes {np.mean(checks):.4f}; 95% intervals hold {np.mean(inside):.1%}; "
        f"runs with a warning {warned / runs:.0%}"
    )
    print(f"{'method':24s} coverage   size   coverage of each class")
    for label, numbers in rows.items():
        mean = np.mean(numbers, axis=0)
        each = " ".join(f"{value:.3f}" for value in mean[2:])
        print(f"{label:24s} {mean[0]:8.3f} {mean[1]:6.2f}   {each}")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--m", type=int, default=2000)
    given = parser.parse_args()
    for kind in ("calibrated", "uncalibrated", "noisy"):
        run(kind, given.runs, given.n, given.m)


if __name__ == "__main__":
    main()
