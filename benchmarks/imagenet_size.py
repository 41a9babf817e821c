"""The paper's experiment at the size of ImageNet, on generated outputs, with its time per stage.

    python benchmarks/imagenet_size.py                  # 50,000 training points on the CPU
    python benchmarks/imagenet_size.py --device cuda    # all 1,280,000 on a card

50,000 samples of 1,000 classes with 2,048-dimensional features: Gaussian classes whose covariance
decays like that of real features (see `trust.py`), about 75% of them classified rightly by a
classifier that is too sure of itself. Everything that `trustsets paper run` does is run and timed:
trust scores, temperature, all methods and scores, metrics and balls, tables and figures.
"""

import argparse
import os
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from trust import spectrum

from trustsets import ModelOutputs
from trustsets_paper.pages import write_run
from trustsets_paper.protocol import Experiment, Options, parse_numbers
from trustsets_paper.sources import Source

Array = NDArray[Any]
BLOCK = 8192
ALL_POINTS, CPU_POINTS = 1_280_000, 50_000


class World:
    """Classes in feature space, and samples drawn from them by blocks on all cores."""

    def __init__(self, classes: int, dimension: int) -> None:
        self.classes = classes
        self.spread = np.sqrt(spectrum(dimension) / 2.0).astype(np.float32)
        rng = np.random.default_rng(0)
        self.centres = rng.standard_normal((classes, dimension), np.float32) * self.spread

    def features(self, own: Array, other: Array, hardness: Array, seed: int) -> Array:
        """Half-precision features; a hard sample lies between its own class and another."""
        rows = np.empty((own.size, self.spread.size), np.float16)

        def fill(start: int) -> None:
            part = slice(start, start + BLOCK)
            rng = np.random.default_rng([seed, start])
            block = rng.standard_normal((own[part].size, self.spread.size), np.float32)
            block *= self.spread
            share = hardness[part, None]
            block += (1.0 - share) * self.centres[own[part]] + share * self.centres[other[part]]
            rows[part] = block

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(fill, range(0, own.size, BLOCK)))
        return rows

    def train(self, n: int) -> tuple[Array, Array]:
        """Training points, equally many of each class."""
        labels = np.arange(n) % self.classes
        return self.features(labels, labels, np.zeros(n, np.float32), seed=1), labels

    def pool(self, n: int) -> ModelOutputs:
        """Held-out samples with the outputs of an overconfident classifier."""
        rng = np.random.default_rng(2)
        own, other = rng.integers(self.classes, size=(2, n))
        hardness = rng.uniform(0.0, 1.0, size=n).astype(np.float32) ** 1.5
        logits = rng.standard_normal((n, self.classes), np.float32)
        logits[np.arange(n), own] += 7.0 * (1.0 - 0.6 * hardness)
        logits[np.arange(n), other] += 7.0 * (0.2 + 0.6 * hardness)
        features = self.features(own, other, hardness, seed=3)
        return ModelOutputs(logits=(2.0 * logits).astype(np.float16), features=features, labels=own)


def run(options: argparse.Namespace, console: Console) -> None:
    """Generate, run everything, print the times."""
    points = options.points or (CPU_POINTS if options.device == "cpu" else ALL_POINTS)
    start = time.perf_counter()
    world = World(options.classes, options.dimension)
    source = Source("generated", {"pool": world.pool(options.rows)}, world.train(points))
    pool = source.parts["pool"]
    accuracy = np.mean(pool.predicted_codes == pool.codes)
    console.print(
        f"{options.rows:,} x {options.classes:,} logits, {points:,} x {options.dimension:,} "
        f"training points, accuracy {accuracy:.1%}; made in {time.perf_counter() - start:.0f} s"
    )
    _warm_up(world, options.device)
    degrees = parse_numbers(options.degrees, "--degrees")
    chosen = Options(
        seeds=tuple(range(1, options.seeds + 1)), degrees=degrees, device=options.device
    )
    start = time.perf_counter()
    run = Experiment(source, chosen).run(say=console.print)
    with tempfile.TemporaryDirectory() as folder:
        _, tables = write_run(run, folder)
    _report(time.perf_counter() - start, tables, console)


def _warm_up(world: World, device: str) -> None:
    """Import, compile and start the card on a small problem."""
    source = Source("small", {"pool": world.pool(4000)}, world.train(4 * world.classes))
    quick = Options(seeds=(1,), scores=("APS",), degrees=(1, 2), degree=2, device=device)
    Experiment(source, quick).run()


def _report(total: float, tables: list[tuple[str, str]], console: Console) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(
        f"from outputs to tables {total:.0f} s; peak memory {peak:.1f} GiB, data included"
    )
    title, text = tables[0]
    console.print(f"\n{title}\n\n{text}", markup=False)


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--dimension", type=int, default=2_048)
    parser.add_argument("--points", type=int, default=0, help="training points")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--degrees", default="5")
    parser.add_argument("--device", default="cpu")
    run(parser.parse_args(), Console(width=140))


if __name__ == "__main__":
    main()
