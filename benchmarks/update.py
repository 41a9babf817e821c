"""Time to add and to remove calibration samples, against a new fit of all of them.

Run with ``python benchmarks/update.py``; it prints a table of processor times. A new calibration
scores nothing anew and tunes nothing here: it sorts the points and fits, as `update` must, too.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from trustsets import APS, ConditionalConformal, Confidence, ModelOutputs, Polynomial
from trustsets.engine import warm_up
from trustsets.statistics import Margin


def make_outputs(n: int, seed: int) -> ModelOutputs:
    """Simulated outputs of ten classes."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(n, 10))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return ModelOutputs(logits=logits, labels=labels, rows=np.arange(n) + seed * 10**7)


def seconds(work: Callable[[], Any]) -> float:
    """Processor time."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=25_000)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    warm_up()
    basis = Polynomial(degree=5, of=(Confidence("rank"), Margin("rank")))
    outputs, tuning, test = make_outputs(given.n, 0), make_outputs(500, 1), make_outputs(50, 2)

    def fresh() -> ConditionalConformal:
        return ConditionalConformal(APS(scale="tail"), basis).calibrate(outputs, tuning=tuning)

    predictor = fresh().prepare(0.1)
    width = predictor.state_.learned.phi.shape[1]
    print(f"n = {given.n:,}, p = {width}; milliseconds of processor time, the median")

    def median(work: Callable[[int], Any]) -> float:
        return 1e3 * float(np.median([seconds(partial(work, i)) for i in range(given.repeats)]))

    def new_fit(_: int) -> None:
        fresh().prepare(0.1)

    def new_sets(_: int) -> None:
        fresh().predict_set(test, 0.1)

    base, fit = median(new_fit), median(new_sets)
    print(f"new calibration and fit {base:8.1f}    with the first sets {fit:8.1f}")
    print("samples   added: all   each   ratio   removed: all   each   ratio   with sets: ratio")
    for count in (1, 10, 100, 1000):
        more = [make_outputs(count, 10 + i) for i in range(2 * given.repeats)]

        def add(i: int, more: list[ModelOutputs] = more) -> None:
            predictor.update(more[i]).prepare(0.1)

        def remove(_: int, count: int = count) -> None:
            predictor.forget(slice(0, count)).prepare(0.1)

        def add_and_predict(i: int, more: list[ModelOutputs] = more) -> None:
            predictor.update(more[-1 - i]).predict_set(test, 0.1)

        added, gone, shown = median(add), median(remove), median(add_and_predict)
        print(
            f"{count:7d} {added:12.1f} {added / count:6.2f} {base * count / added:7.1f}"
            f"{gone:15.1f} {gone / count:6.2f} {base * count / gone:7.1f}"
            f"{fit * count / shown:19.1f}"
        )


if __name__ == "__main__":
    main()
