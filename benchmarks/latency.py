"""How long a saved predictor takes to answer: cold start, first answer, one sample, batches.

Run with ``python benchmarks/latency.py [--points 40000] [--calibration 10000] [--turns 400]``. A
predictor with a trust score is calibrated, asked once and saved; a new process loads the file and
answers. Times are by the clock, and by the processor beside it: on a busy machine the clock also
counts the work of others.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

CLASSES, DIMENSION = 100, 256
ALPHA = 0.1
BATCHES = (1, 32, 1000)

Array = NDArray[np.float64]


def generated(count: int, seed: int) -> tuple[Array, Array, NDArray[np.int64]]:
    """Features of Gaussian classes with a decaying spectrum, overconfident logits, labels."""
    scale = 1.0 / np.sqrt(1.0 + np.arange(DIMENSION))
    centres = 1.5 * scale * np.random.default_rng(0).normal(size=(CLASSES, DIMENSION))
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    features = centres[labels] + scale * rng.normal(size=(count, DIMENSION))
    square = np.einsum("ij,ij->i", centres, centres)
    logits = 3.0 * (features @ centres.T - 0.5 * square)
    return features.astype(np.float32), logits.astype(np.float32), labels


def build(path: Path, points: int, calibration: int) -> None:
    """Calibrate a predictor, ask it once and save it."""
    from trustsets import ConditionalConformal, ModelOutputs, TrustScore

    features, _, labels = generated(points, 1)
    trust = TrustScore().fit(features, labels)
    features, logits, labels = generated(calibration, 2)
    outputs = ModelOutputs(logits=logits, features=features, labels=labels)
    predictor = ConditionalConformal(trust=trust).calibrate(outputs)
    predictor.predict_set(outputs.take(np.arange(2)), alpha=ALPHA)
    predictor.save(path)


def child(path: str, turns: int) -> None:
    """Load the file and answer; print a line of numbers for each kind of question."""
    features, logits, _ = generated(max(BATCHES) + turns, 3)
    begin, cpu = time.perf_counter(), time.process_time()
    from trustsets import ModelOutputs, load

    def report(name: str, start: tuple[float, float]) -> tuple[float, float]:
        now = time.perf_counter(), time.process_time()
        print(f"{name}\t{now[0] - start[0]}\t{now[1] - start[1]}", flush=True)
        return now

    loaded_at = report("import", (begin, cpu))
    predictor = load(path)
    ready = report("load", loaded_at)

    def answer(first: int, count: int) -> None:
        some = slice(first, first + count)
        outputs = ModelOutputs(logits=logits[some], features=features[some])
        predictor.predict_set(outputs, alpha=ALPHA)

    answer(0, 1)
    report("first", ready)
    for count in BATCHES:
        repeats = turns if count == 1 else max(turns // 10, 5)
        for name, clock in (("clock", time.perf_counter), ("processor", time.process_time)):
            spent = timed(partial(answer, count=count), clock, repeats)
            middle, late = np.quantile(spent, [0.5, 0.99])
            print(f"{count} {name}\t{middle}\t{late}", flush=True)


def timed(work: Callable[[int], None], clock: Callable[[], float], turns: int) -> list[float]:
    """Seconds of each turn, after a few that do not count."""
    spent = []
    for turn in range(-5, turns):
        start = clock()
        work(max(turn, 0))
        spent.append(clock() - start)
    return spent[5:]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=40_000)
    parser.add_argument("--calibration", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.turns)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.trustsets"
        build(path, options.points, options.calibration)
        size = path.stat().st_size / 2**20
        command = [sys.executable, __file__, "--child", str(path), "--turns", str(options.turns)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    found = {name: (1e3 * float(one), 1e3 * float(two)) for name, one, two in lines}
    title = f"{options.points:,} x {DIMENSION} training, {options.calibration:,} calibration"
    table = Table("", "clock, ms", "processor, ms", title=f"{title}, file of {size:.0f} MB")
    for name, label in (("import", "import"), ("load", "load"), ("first", "first answer")):
        table.add_row(label, *(f"{value:.1f}" for value in found[name]))
    cold = np.sum([found[name] for name in ("import", "load", "first")], axis=0)
    table.add_row("cold start: all three", *(f"{value:.1f}" for value in cold))
    for count in BATCHES:
        label = "one sample" if count == 1 else f"batch of {count:,}"
        clock, processor = found[f"{count} clock"], found[f"{count} processor"]
        for place, word in enumerate(("median", "99th percentile")):
            table.add_row(f"{label}, {word}", f"{clock[place]:.2f}", f"{processor[place]:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
