"""What a new environment compiles on first use: seconds in all, and the ten slowest kernels.

Run with ``python benchmarks/cold_start.py``. A fresh process with an empty cache of compiled code
calibrates the default predictor and predicts; then another process does the same from the cache.
Seconds are processor time: compilation runs on one core, whatever else the machine does.
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
    logits, labels = rng.normal(size=(900, 5)), rng.integers(5, size=900)
    outputs = ModelOutputs(logits=logits, features=rng.normal(size=(900, 8)), labels=labels)
    train, calibration, test = (outputs.take(np.arange(k, 900, 3)) for k in range(3))
    start, clock = time.process_time(), time.perf_counter()
    assert train.features is not None and train.labels is not None
    trust = TrustScore().fit(train.features, train.labels)
    ConditionalConformal(trust=trust).calibrate(calibration).predict_set(test, alpha=0.1)
    for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
        print(f"kernel {name} {times[name]} {value}")
    print(f"total {time.process_time() - start} {time.perf_counter() - clock}")


def run(cache: str) -> tuple[list[list[str]], list[str]]:
    """Kernels (name, times compiled, seconds) and the two totals of one process."""
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    lines = subprocess.run(
        [sys.executable, __file__, "child"], env=environment, stdout=subprocess.PIPE, check=True
    ).stdout.decode()
    words = [line.split() for line in lines.splitlines()]
    return [word[1:] for word in words if word[0] == "kernel"], words[-1][1:]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as cache:
        kernels, cold = run(cache)
        _, warm = run(cache)
    table = Table("kernel", "compiled", "seconds", title="First use with an empty cache")
    for name, times, seconds in kernels[:SLOWEST]:
        table.add_row(name, times, f"{float(seconds):.2f}")
    rest = sum(float(row[2]) for row in kernels[SLOWEST:])
    table.add_row(f"{max(len(kernels) - SLOWEST, 0)} others", "", f"{rest:.2f}")
    compiled = sum(float(row[2]) for row in kernels)
    table.add_row("all kernels", str(sum(int(row[1]) for row in kernels)), f"{compiled:.2f}")
    for label, (processor, wall) in (("cold", cold), ("from the cache", warm)):
        table.add_row(f"calibrate and predict, {label}", "", f"{float(processor):.2f}")
        table.add_row(f"the same by the clock, {label}", "", f"{float(wall):.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    child() if "child" in sys.argv else main()
