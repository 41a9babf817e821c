"""Logits to APS and RAPS sets, calibration included, against MAPIE and TorchCP.

Every contender runs in a process of its own on the same logits, so that its peak memory
can be told apart; the time is the median over repeats, imports and compilation left out.
MAPIE chooses its RAPS constants by a search of its own, which is part of its time.
Run with ``make bench`` or ``python benchmarks/sets.py [--rows 25000 --classes 1000]``.
"""

import argparse
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

Array = NDArray[Any]
Job = Callable[[Array, Array, Array], Array]

ALPHA = 0.1
LAM, K_REG = 0.01, 5


def simulated(rows: int, classes: int) -> tuple[Array, Array, Array]:
    """Calibration logits, their labels, test logits: float32, about as accurate as ImageNet's."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal(size=(2 * rows, classes), dtype=np.float32)
    labels = rng.integers(classes, size=2 * rows)
    logits[np.arange(2 * rows), labels] += rng.normal(4.5, 1.5, size=2 * rows).astype(np.float32)
    logits *= 2
    return logits[:rows], labels[:rows], logits[rows:]


def trustsets_job(name: str) -> Job:
    """The package itself."""
    from trustsets import APS, RAPS, ModelOutputs, StandardConformal

    score = {"APS": APS(), "RAPS": RAPS(lam=LAM, k_reg=K_REG)}[name]

    def run(calibration: Array, labels: Array, test: Array) -> Array:
        predictor = StandardConformal(score=score)
        predictor.calibrate(ModelOutputs(logits=calibration, labels=labels))
        return predictor.predict_set(ModelOutputs(logits=test), alpha=ALPHA).mask

    return run


def mapie_job(name: str) -> Job:
    """MAPIE, with a classifier that only turns given logits into probabilities."""
    from mapie.classification import SplitConformalClassifier
    from scipy.special import softmax
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Saved(ClassifierMixin, BaseEstimator):
        def fit(self, X: Array, y: Array) -> "Saved":
            self.classes_ = np.arange(X.shape[1])
            return self

        def predict_proba(self, X: Array) -> Array:
            return np.asarray(softmax(X, axis=1))

        def predict(self, X: Array) -> Array:
            return np.asarray(X.argmax(axis=1))

    def run(calibration: Array, labels: Array, test: Array) -> Array:
        model = SplitConformalClassifier(
            Saved().fit(calibration, labels),
            confidence_level=1 - ALPHA,
            conformity_score=name.lower(),
            random_state=0,
        )
        model.conformalize(calibration, labels)
        return np.asarray(model.predict_set(test)[1][:, :, 0])

    return run


def torchcp_job(name: str) -> Job:
    """TorchCP on the same two cores, deterministic scores."""
    import torch
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import APS, RAPS

    scores = {
        "APS": APS(randomized=False),
        "RAPS": RAPS(randomized=False, penalty=LAM, kreg=K_REG),
    }

    def run(calibration: Array, labels: Array, test: Array) -> Array:
        predictor = SplitPredictor(scores[name])
        predictor.calculate_threshold(
            torch.from_numpy(calibration), torch.from_numpy(labels), alpha=ALPHA
        )
        return np.asarray(predictor.predict_with_logits(torch.from_numpy(test)))

    return run


JOBS: dict[str, Callable[[str], Job]] = {
    "trustsets": trustsets_job,
    "mapie": mapie_job,
    "torchcp": torchcp_job,
}


def measure(package: str, score: str, rows: int, classes: int, repeats: int) -> dict[str, float]:
    """Run one contender here, and report seconds, peak memory and the sets' size."""
    calibration, labels, test = simulated(rows, classes)
    job = JOBS[package](score)
    warm = min(rows, 10 * classes)
    job(calibration[:warm], labels[:warm], test[:100])  # imports and compilation
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        mask = job(calibration, labels, test)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": statistics.median(seconds),
        "peak_mb": peak / 1024,
        "own_mb": (peak - before) / 1024,
        "size": float(mask.sum(axis=1).mean()),
    }


def in_own_process(package: str, score: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure one contender in a fresh process."""
    arguments = [f"--{key}={value}" for key, value in vars(options).items() if key != "only"]
    command = [sys.executable, __file__, *arguments, f"--only={package}:{score}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Print one table, or measure one contender when called with --only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=25_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        package, score = options.only.split(":")
        result = measure(package, score, options.rows, options.classes, options.repeats)
        print(json.dumps(result))
        return
    table = Table(title=f"{options.rows:,} x {options.classes:,} logits to sets, two halves")
    for heading in (
        "score",
        "package",
        "seconds",
        "times ours",
        "peak MB",
        "above data MB",
        "size",
    ):
        table.add_column(heading, justify="left" if heading in ("score", "package") else "right")
    for score in ("APS", "RAPS"):
        present = [name for name in JOBS if importlib.util.find_spec(name)]
        rows = {name: in_own_process(name, score, options) for name in present}
        for name, row in rows.items():
            table.add_row(
                score,
                name,
                f"{row['seconds']:.2f}",
                f"{row['seconds'] / rows['trustsets']['seconds']:.1f}",
                f"{row['peak_mb']:.0f}",
                f"{row['own_mb']:.0f}",
                f"{row['size']:.2f}",
            )
    Console(width=100).print(table)
    for name in JOBS:
        if not importlib.util.find_spec(name):
            print(f"{name} is not installed here, so it is left out.")


if __name__ == "__main__":
    main()
