"""Seconds and peak memory of every metric of one method at ImageNet's size.

Simulated outputs: n = 25,000 samples, K = 1,000 classes, d = 2,048 features. The trust
score itself is not timed here; its values are drawn at random. Memory is the most that a
stage used on top of the data, measured in a second run. Run: python benchmarks/metrics.py
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets import ModelOutputs, PredictionSets, StandardConformal, evaluate
from trustsets.metrics import METRICS

Floats = NDArray[np.float64]


class StoredTrust:
    """Trust scores that were computed before."""

    def __init__(self, values: Floats) -> None:
        self.values = values

    def score(self, features: Any, predicted: Any) -> Floats:
        """Return the stored values."""
        return self.values


def simulate(n: int, n_classes: int, d: int) -> tuple[ModelOutputs, PredictionSets, StoredTrust]:
    """Clustered features, logits from distances to class means, sets of split conformal."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(n_classes, d)).astype(np.float32)
    labels = rng.integers(n_classes, size=2 * n)
    features = means[labels] + 12.0 * rng.normal(size=(2 * n, d)).astype(np.float32)
    logits = features @ means.T / 150.0
    groups = {"site": rng.choice(list("abcdef"), size=2 * n)}
    outputs = ModelOutputs(logits=logits, features=features, labels=labels, groups=groups)
    calibration, test = outputs.split(0.5)
    sets = StandardConformal().calibrate(calibration).predict_set(test, alpha=0.1)
    return test, sets, StoredTrust(rng.gamma(4.0, 0.4, size=len(test)))


def measure(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and the most memory in use at once, in GB."""
    start = time.perf_counter()
    action()
    seconds = time.perf_counter() - start
    tracemalloc.start()
    action()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, peak / 1e9


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=25_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--features", type=int, default=2_048)
    options = parser.parse_args()
    outputs, sets, trust = simulate(options.n, options.classes, options.features)
    print(f"n={len(outputs)} K={outputs.n_classes} d={options.features}, {sets}")
    print(f"{'stage':24s} {'seconds':>8s} {'peak GB':>8s}")
    stages: dict[str, tuple[str, ...] | None] = {"coverage and size": ()}
    stages |= {name: (name,) for name in METRICS} | {"everything": None}
    for stage, metrics in stages.items():
        seconds, peak = measure(
            lambda chosen=metrics: evaluate(  # type: ignore[misc]
                sets, outputs.with_trust(trust), metrics=chosen
            )
        )
        print(f"{stage:24s} {seconds:8.2f} {peak:8.2f}")


if __name__ == "__main__":
    main()
