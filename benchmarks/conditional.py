"""The whole method at ImageNet size, against MAPIE's time for the thresholds alone.

25,000 calibration and 25,000 test samples, 1,000 classes, 2,048-dimensional features, degree
5: everything from logits and features to sets (trust scores, tuning, fit, paths, sets) is
ours to do; of MAPIE's conditional classifier only the thresholds are timed, on a sample of
points, and extrapolated. Run with ``python benchmarks/conditional.py`` or ``make bench``.
"""

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from engine import Data, mapie_seconds
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from trustsets import ConditionalConformal, ModelOutputs, TrustScore

Array = NDArray[Any]
ALPHA = 0.1


def simulated(n: int, points: int, classes: int, dimension: int) -> tuple[ModelOutputs, Any]:
    """Outputs of n samples, about 75% right and too sure of themselves, and training features.

    A hard sample lies between its own class and another, in features and logits alike.
    """
    rng = np.random.default_rng(0)
    spectrum = ((1.0 + np.arange(dimension)) ** -0.75).astype(np.float32)
    means = rng.standard_normal(size=(classes, dimension), dtype=np.float32) * spectrum

    def features_of(own: Array, other: Array, hardness: Array) -> Array:
        noise = rng.standard_normal(size=(own.size, dimension), dtype=np.float32)
        centre = (1.0 - hardness)[:, None] * means[own] + hardness[:, None] * means[other]
        features: Array = (centre + 0.6 * noise * spectrum).astype(np.float32)
        return features

    own, other = rng.integers(classes, size=(2, n))
    hardness = rng.uniform(0.0, 1.0, size=n).astype(np.float32) ** 1.5
    logits = rng.standard_normal(size=(n, classes), dtype=np.float32)
    logits[np.arange(n), own] += 7.0 * (1.0 - 0.6 * hardness)
    logits[np.arange(n), other] += 7.0 * (0.2 + 0.6 * hardness)
    train_labels = rng.integers(classes, size=points)
    train = features_of(train_labels, train_labels, np.zeros(points, dtype=np.float32))
    features = features_of(own, other, hardness)
    return ModelOutputs(logits=2 * logits, labels=own, features=features), (train, train_labels)


class Stopwatch:
    """Seconds by stage, in the order they were run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def run(options: argparse.Namespace, report: Callable[[Table], None]) -> None:
    """Time the stages, then the peer on the same calibration problem."""
    outputs, train = simulated(2 * options.rows, options.points, options.classes, 2048)
    calibration, test = outputs.split(0.5, seed=0)
    watch = Stopwatch()
    warm = TrustScore().fit(train[0][:2000], train[1][:2000])
    ConditionalConformal(trust=warm).calibrate(calibration.take(slice(0, 2000))).predict_set(
        test.take(slice(0, 10))
    )  # imports and compilation
    with watch.stage("trust: fit on training points"):
        trust = TrustScore().fit(*train)
    predictor = ConditionalConformal(trust=trust)
    with watch.stage("calibrate"):
        predictor.calibrate(calibration)
    with watch.stage("predict sets"):
        sets = predictor.predict_set(test, alpha=ALPHA)
    total = sum(watch.seconds.values())
    state = predictor.state_
    few = test.take(np.linspace(0, len(test) - 1, options.peer_points).astype(int))
    tests = predictor.conditions_on.design(few.with_trust(trust))
    peer = mapie_seconds(Data(state.fitted.phi, state.scores, tests), options.peer_points)
    table = Table(title=f"{options.rows:,} + {options.rows:,} samples, degree 5")
    for heading in ("stage", "seconds"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for name, seconds in {**watch.seconds, "everything": total}.items():
        table.add_row(name, f"{seconds:.1f}")
    if peer is not None:
        table.add_row(f"MAPIE, one threshold ({options.peer_points} measured)", f"{peer:.3f}")
        table.add_row("MAPIE, all thresholds (extrapolated)", f"{peer * options.rows:.0f}")
        table.add_row("times ours", f"{peer * options.rows / total:.0f}")
    covered = sets.covers(test.labels).mean()
    table.add_row("coverage, mean size", f"{covered:.3f}, {sets.sizes.mean():.2f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table.add_row("peak memory, data included (MB)", f"{peak:.0f}")
    report(table)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=25_000)
    parser.add_argument("--points", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--peer-points", type=int, default=20)
    run(parser.parse_args(), Console(width=100).print)


if __name__ == "__main__":
    main()
