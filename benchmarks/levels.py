"""Fits at a hundred alphas as one process, against single fits, and thresholds at all of them.

Run with ``python benchmarks/levels.py [--n 8000 25000] [--tests 10000]``. Times are processor time,
so a busy machine does not spoil them; with ``OMP_NUM_THREADS=1`` they are those of one thread.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from trustsets.engine import (
    QuantileModel,
    QuantileProcess,
    fit_quantile_process,
    fit_quantiles,
    warm_up,
)

Array = NDArray[np.float64]
T = TypeVar("T")
DEGREE = 5
PARTS = (0.0, 0.005, 0.02, 0.1, 1.0)


def simulated(count: int, seed: int) -> tuple[Array, Array]:
    """Polynomials of two features (21 columns), and scores whose spread grows with the first."""
    rng = np.random.default_rng(seed)
    a, b = x = rng.random((2, count))
    powers = [(i, j) for i in range(DEGREE + 1) for j in range(DEGREE + 1 - i)]
    return np.stack([a**i * b**j for i, j in powers], axis=1), rng.gamma(2.0, 0.2 + x[0])


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Processor seconds of some work, and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def started(phi: Array, scores: Array, alphas: Array) -> list[QuantileModel]:
    """Single fits that start at the basic points of the alpha before."""
    models: list[QuantileModel] = []
    for alpha in alphas:
        start = models[-1].basic_points if models else None
        models.append(fit_quantiles(phi, scores, alpha, start=start))
    return models


def same_bits(process: QuantileProcess, singles: list[QuantileModel]) -> bool:
    """Whether every fit of the process passes through the points of the single one."""
    pairs = zip(process, singles, strict=True)
    return all(np.array_equal(own.basic_points, one.basic_points) for own, one in pairs)


def fits(table: Table, n: int) -> QuantileProcess:
    """Add the rows of the fits at one size."""
    phi, scores = simulated(n, 0)
    seconds, process = timed(lambda: fit_quantile_process(phi, scores))
    alphas = process.alphas
    single, models = timed(lambda: [fit_quantiles(phi, scores, alpha) for alpha in alphas])
    chain, _ = timed(lambda: started(phi, scores, alphas))
    same = "same fits" if same_bits(process, models) else "OTHER FITS"
    for name, value in (("process", seconds), ("started fits", chain), ("single fits", single)):
        row = f"{value:.2f} s", f"{value / seconds:.1f} x"
        table.add_row(f"{n:,}", f"{len(alphas)} alphas, {name}", *row, same)
    return process


def thresholds(table: Table, n: int, process: QuantileProcess, tests: Array) -> None:
    """Add the rows of the thresholds, by parts of the grid."""
    spent = np.empty(len(process))
    for k, model in enumerate(process):
        spent[k] = timed(partial(model.thresholds, tests))[0]
    for low, high in pairwise(PARTS):
        part = spent[(process.alphas >= low) & (process.alphas < high)]
        each = 1e6 * part.sum() / (len(part) * len(tests))
        name = f"thresholds, {len(part)} alphas in [{low}, {high})"
        table.add_row(f"{n:,}", name, f"{part.sum():.2f} s", "", f"{each:.1f} us each")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[8_000, 25_000])
    parser.add_argument("--tests", type=int, default=10_000)
    options = parser.parse_args()
    warm_up()
    table = Table("n", "work", "processor time", "to process", "", title="Many alphas")
    for n in options.n:
        process = fits(table, n)
        if options.tests:
            thresholds(table, n, process, simulated(options.tests, 1)[0])
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
