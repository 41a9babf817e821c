"""What a new environment compiles on first use: seconds in all, and the ten slowest kernels.

Run with ``python benchmarks/cold_start.py``. A fresh process with an empty cache of compiled code
calibrates the default predictor and predicts, with one core and with all of them (a helper process
then compiles the largest kernel); then another process does the same from the cache. Seconds are
processor time, that of the helper included, whatever else the machine does.
"""

import os
import subprocess
import sys
import tempfile
import time

from rich.console import Console
from rich.table import Table

SLOWEST = 10


def child() -> None:
    """Calibrate and predict; print what was compiled, a line each, and the seconds it all took."""
    from collections import defaultdict

    import numpy as np
    from numba.core import event

    seconds: dict[str, float] = defaultdict(float)
    times: dict[str, int] = defaultdict(int)
    stack: list[list[float]] = []

    class Listener(event.Listener):
        """Own time of each compilation: what it starts itself is taken off."""

        def on_start(self, happened: event.Event) -> None:
            stack.append([time.process_time(), 0.0])

        def on_end(self, happened: event.Event) -> None:
            start, inner = stack.pop()
            whole = time.process_time() - start
            if stack:
                stack[-1][1] += whole
            function = happened.data["dispatcher"].py_func
            name = f"{function.__module__}.{function.__name__}"
            seconds[name] += whole - inner
            times[name] += 1

    event.register("numba:compile", Listener())
    from trustsets import ConditionalConformal, ModelOutputs, TrustScore

    rng = np.random.default_rng(0)
    logits, features = rng.normal(size=(600, 5)), rng.normal(size=(600, 8))
    labels = rng.integers(5, size=600)
    outputs = ModelOutputs(logits=logits, features=features, labels=labels)
    calibration, test = outputs.split(0.5)
    start, clock = processor(), time.perf_counter()
    trust = TrustScore().fit(features + 1.0, labels)
    ConditionalConformal(trust=trust).calibrate(calibration).predict_set(test, alpha=0.1)
    for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
        print(f"kernel {name} {times[name]} {value}")
    print(f"total {processor() - start} {time.perf_counter() - clock}")


def processor() -> float:
    """Processor time of this process and of the helper that it waited for."""
    return sum(os.times()[:4])


def run(cache: str, cores: str) -> tuple[list[list[str]], list[str]]:
    """Kernels (name, times compiled, seconds) and the two totals of one process."""
    environment = os.environ | {"NUMBA_CACHE_DIR": cache, "OMP_NUM_THREADS": cores}
    lines = subprocess.run(
        [sys.executable, __file__, "child"], env=environment, stdout=subprocess.PIPE, check=True
    ).stdout.decode()
    words = [line.split() for line in lines.splitlines()]
    return [word[1:] for word in words if word[0] == "kernel"], words[-1][1:]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as cache:
        kernels, alone = run(f"{cache}/one", "1")
        _, helped = run(f"{cache}/all", "")
        _, warm = run(f"{cache}/all", "")
    totals = {"cold": alone, "cold, with a helper": helped, "from the cache": warm}
    table = Table("kernel", "compiled", "seconds", title="First use with an empty cache")
    for name, times, seconds in kernels[:SLOWEST]:
        table.add_row(name, times, f"{float(seconds):.2f}")
    rest = sum(float(row[2]) for row in kernels[SLOWEST:])
    table.add_row(f"{max(len(kernels) - SLOWEST, 0)} others", "", f"{rest:.2f}")
    compiled = sum(float(row[2]) for row in kernels)
    table.add_row("all kernels", str(sum(int(row[1]) for row in kernels)), f"{compiled:.2f}")
    for label, (spent, wall) in totals.items():
        table.add_row(f"calibrate and predict, {label}", "", f"{float(spent):.2f}")
        table.add_row(f"the same by the clock, {label}", "", f"{float(wall):.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    child() if "child" in sys.argv else main()
