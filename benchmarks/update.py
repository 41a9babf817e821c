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


def measure(n: int, repeats: int) -> None:
    """Print the rows of one calibration size, with a fit and with sets of 50 samples after it."""
    basis = Polynomial(degree=5, of=(Confidence("rank"), Margin("rank")))
    outputs, tuning, test = make_outputs(n, 0), make_outputs(500, 1), make_outputs(50, 2)

    def fresh() -> ConditionalConformal:
        return ConditionalConformal(score=APS(scale="tail"), basis=basis).calibrate(
            outputs, tuning=tuning
        )

    predictor = fresh().prepare(0.1)

    def median(work: Callable[[int], Any]) -> float:
        return 1e3 * float(np.median([seconds(partial(work, i)) for i in range(repeats)]))

    def new_fit(_: int) -> None:
        fresh().prepare(0.1)

    def new_sets(_: int) -> None:
        fresh().predict_set(test, 0.1)

    for count in (1, 10, 100):
        more = [make_outputs(count, 10 + i) for i in range(2 * repeats)]

        def add(i: int, more: list[ModelOutputs] = more) -> None:
            predictor.update(more[i]).prepare(0.1)

        def remove(_: int, count: int = count) -> None:
            predictor.forget(slice(0, count)).prepare(0.1)

        def add_and_predict(i: int, more: list[ModelOutputs] = more) -> None:
            predictor.update(more[-1 - i]).predict_set(test, 0.1)

        # In turns, because other work on the machine makes all of them slower.
        base, added, gone = median(new_fit), median(add), median(remove)
        sets, shown = median(new_sets), median(add_and_predict)
        print(
            f"| {n:,} | {count} | {base:.1f} | {added:.2f} ({base / added:.1f}) | "
            f"{gone:.2f} ({base / gone:.1f}) | {sets:.1f} | {shown:.1f} ({sets / shown:.1f}) |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[2_500, 25_000])
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    warm_up()
    print("milliseconds of processor time, medians; in brackets the ratio to a new calibration")
    print("| n | samples | new fit | added | removed | new, with sets | added, with sets |")
    print("|---|---|---|---|---|---|---|")
    for n in given.n:
        measure(n, given.repeats)


if __name__ == "__main__":
    main()
