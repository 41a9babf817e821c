"""Thresholds of every candidate class: time, and how many are decided without a path.

    python benchmarks/candidates.py [--test 25000] [--classes 1000] [--clusters 30]

Simulated logits of many classes of unequal hardness; half of the samples calibrate. Times are those
of `predict_set` less the time that scores alone take, on all cores and in processor seconds.
"""

import argparse
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from trustsets import (
    APS,
    Classes,
    ConditionalConformal,
    Confidence,
    ModelOutputs,
    Polynomial,
    Softmax,
    Trust,
)
from trustsets.engine import QuantileModel, warm_up
from trustsets.scores import Score

SCORES: dict[str, Score] = {"softmax": Softmax(scale="tail"), "aps": APS(scale="tail")}
SMOOTH = Polynomial(5, (Confidence("rank"), Trust("rank")), penalty=10.0)


class Counter:
    """Counts the rows whose thresholds the engine computes."""

    def __init__(self) -> None:
        self.rows, self._real = 0, QuantileModel.thresholds

    def __enter__(self) -> "Counter":
        real, counter = self._real, self

        def counted(model: Any, phi: Any, *rest: Any, **words: Any) -> Any:
            counter.rows += len(phi)
            return real(model, phi, *rest, **words)

        setattr(QuantileModel, "thresholds", counted)  # noqa: B010
        return self

    def __exit__(self, *error: object) -> None:
        setattr(QuantileModel, "thresholds", self._real)  # noqa: B010


def simulate(n: int, n_classes: int) -> ModelOutputs:
    """Outputs of n samples; the classes differ in how far their logit stands out."""
    rng = np.random.default_rng(0)
    codes, lift = rng.integers(n_classes, size=n), rng.uniform(2.0, 6.0, size=n_classes)
    logits = rng.normal(size=(n, n_classes)).astype(np.float32)
    logits[np.arange(n), codes] += lift[codes]
    logits *= 1.5
    trust = np.exp(rng.normal(size=n) + 0.5 * (logits.argmax(axis=1) == codes))
    return ModelOutputs(logits=logits, labels=codes, trust=trust)


def measure(score: Score, basis: Any, outputs: ModelOutputs, most: int) -> list[str]:
    """One row of the table."""
    calibration, test = outputs.split(0.5)
    test = test.take(np.arange(min(most, len(test))))
    predictor = ConditionalConformal(score=score, basis=basis, class_bias=None)
    predictor.calibrate(calibration)
    began = time.perf_counter()
    predictor.scores(test)
    scoring = time.perf_counter() - began
    with Counter() as counter:
        began, busy = time.perf_counter(), time.process_time()
        sets = predictor.predict_set(test, alpha=0.1)
        taken, busy = time.perf_counter() - began, time.process_time() - busy
    fitted = predictor.state_.fitted
    candidates = len(test) * len(set(basis.parts[-1].clusters))
    decided = 1.0 - counter.rows / candidates
    numbers = [
        f"{taken - scoring:.1f}",
        f"{busy:.1f}",
        f"{decided:.1%}",
        f"{sets.sizes.mean():.1f}",
    ]
    return [repr(score), str(fitted.phi.shape[1]), f"{candidates:,}", *numbers]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--test", type=int, default=25_000, help="test samples")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--clusters", type=int, default=30)
    parser.add_argument("--penalty", type=float, default=10.0)
    parser.add_argument("--scores", nargs="+", choices=SCORES, default=list(SCORES))
    options = parser.parse_args()
    warm_up()
    labels = Classes(options.penalty, [c % options.clusters for c in range(options.classes)])
    outputs = simulate(50_000, options.classes)
    columns = ("score", "functions", "candidates", "seconds", "processor", "without a path", "size")
    table = Table(*columns)
    for name in options.scores:
        table.add_row(*measure(SCORES[name], SMOOTH + labels, outputs, options.test))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
