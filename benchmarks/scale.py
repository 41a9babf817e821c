"""Prediction on Ray against one process, on the same two cores, in one table.

    python benchmarks/scale.py [--rows 1000000] [--classes 10 100] [--points 5000]

Every row of the table is a run of its own in a fresh process, after a warm-up that starts the
workers and loads the compiled functions: what is timed reads a Parquet file, predicts and writes
Parquet. "Per core" divides by the cores that the run may use (threads, or workers of one thread
each). Processor time is that of every process involved, Ray's own included: on a machine that is
busy otherwise it says more than the clock does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 16
GROUP_ROWS = 1 << 16
WARM_ROWS = 4096
CALIBRATION = 20_000
MEBIBYTE = 2**20
RUNS = {
    "one process, 1 thread": ("alone", 1),
    "one process, 2 threads": ("threads", 2),
    "Ray, 2 workers of 1 thread": ("ray", 2),
}
PEERS = {"ray": "one process, 1 thread"}


def make_outputs(
    rng: np.random.Generator, centres: NDArray[Any], n: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Logits, features and labels of n samples of Gaussian classes."""
    labels = rng.integers(0, len(centres), n)
    features = (centres[labels] + rng.standard_normal((n, WIDTH))).astype(np.float32)
    logits = 1.5 * (features @ centres.T - 0.5 * (centres**2).sum(axis=1))
    return logits.astype(np.float16), features, labels


def prepare(folder: Path, rows: int, classes: int, points: int) -> None:
    """Write the model, the outputs to predict, and a small part of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from trustsets import ConditionalConformal, Confidence, ModelOutputs, Polynomial, TrustScore
    from trustsets.statistics import Trust

    rng = np.random.default_rng(0)
    centres = rng.standard_normal((classes, WIDTH)) * 0.55
    _, train, labels = make_outputs(rng, centres, points)
    logits, features, labels_new = make_outputs(rng, centres, CALIBRATION)
    outputs = ModelOutputs(logits=logits, features=features, labels=labels_new)
    trust = TrustScore().fit(train, labels)
    basis = Polynomial(degree=2, of=(Confidence(transform="rank"), Trust(transform="rank")))
    method = ConditionalConformal(basis=basis, trust=trust)
    method.calibrate(outputs).save(folder / "model.trustsets")
    logits, features, _ = make_outputs(rng, centres, rows)
    arrays = {"logits": logits, "features": features}
    table = pa.table(
        {
            name: pa.FixedSizeListArray.from_arrays(pa.array(own.reshape(-1)), own.shape[1])
            for name, own in arrays.items()
        }
    )
    pq.write_table(table, folder / "new.parquet", row_group_size=GROUP_ROWS)
    pq.write_table(table.slice(0, WARM_ROWS), folder / "warm.parquet", row_group_size=512)


def processor_seconds(pids: list[int]) -> float:
    """Processor time that processes, with children they have waited for, have used so far."""
    ticks = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            continue
        ticks += sum(int(value) for value in stat.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def family() -> list[int]:
    """Return this process and everything that it started."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(encoding="utf-8")
        except OSError:
            continue
        parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def worker_peaks() -> list[int]:
    """Peak resident bytes of Ray's workers, the object store that they share left out."""
    peaks = []
    for pid in family():
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue
        if title.startswith(b"ray::"):
            sizes = dict(line.split(":", 1) for line in status.splitlines())
            peak, shared = (int(sizes[key].split()[0]) for key in ("VmHWM", "RssShmem"))
            peaks.append((peak - shared) * 1024)
    return peaks


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Clock and processor time of a call, with all processes of this one counted."""
    before, start = processor_seconds(family()), time.perf_counter()
    work()
    return {
        "seconds": time.perf_counter() - start,
        "processor": processor_seconds(family()) - before,
    }


def run_alone(folder: Path) -> dict[str, float]:
    """Predict the file in this process."""
    from trustsets.files import predict_file

    model = folder / "model.trustsets"
    predict_file(model, folder / "warm.parquet", folder / "warm-sets.parquet")
    result = timed(lambda: predict_file(model, folder / "new.parquet", folder / "sets.parquet"))
    return result | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def run_ray(folder: Path) -> dict[str, float]:
    """Predict the file with two workers, and compare with what one process wrote."""
    import pyarrow.parquet as pq
    import ray

    from trustsets import load
    from trustsets.ray import predict_dataset

    predictor = load(folder / "model.trustsets")
    start_ray(ray)

    def predict(source: str, target: str) -> None:
        dataset = ray.data.read_parquet(str(folder / source))
        predict_dataset(dataset, predictor).write_parquet(str(folder / target))

    predict("warm.parquet", "warm-parts.parquet")
    result = timed(lambda: predict("new.parquet", "parts.parquet"))
    peak = max(worker_peaks())
    ray.shutdown()
    parts, alone = (
        np.sort(pq.read_table(folder / name, columns=["threshold"])["threshold"].to_numpy())
        for name in ("parts.parquet", "sets.parquet")
    )
    if not np.array_equal(parts, alone):
        raise SystemExit("the sets from Ray differ from those of one process")
    return result | {"peak": peak}


def start_ray(ray: Any) -> None:
    """Start a local Ray with two cores, without its dashboard."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=500 * MEBIBYTE,
    )


MEASUREMENTS = {
    "alone": run_alone,
    "threads": run_alone,
    "ray": run_ray,
}


def one_run(kind: str, folder: Path) -> None:
    """Do one measurement in this process, and print it as JSON."""
    print(json.dumps(MEASUREMENTS[kind](folder)))


def measure(kind: str, threads: int, folder: Path) -> dict[str, float]:
    """One measurement in a process of its own."""
    per_process = "1" if kind == "ray" else str(threads)
    numbers = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    for name in ("parts.parquet", "warm-parts.parquet"):
        shutil.rmtree(folder / name, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, __file__, "--run", kind, str(folder)],
        env=os.environ | dict.fromkeys(numbers, per_process) | quiet,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(rows: int, classes: int, points: int, repeat: int, only: list[str]) -> None:
    """Print the rows of one number of classes; of several turns the fastest counts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, rows, classes, points)
        best: dict[str, dict[str, float]] = {}
        for _ in range(repeat):
            for title, (kind, cores) in RUNS.items():
                if kind in only:
                    found = measure(kind, cores, folder)
                    if title not in best or found["processor"] < best[title]["processor"]:
                        best[title] = found
        for title, found in best.items():
            show(classes, title, rows, found, best.get(PEERS.get(RUNS[title][0], "")))


def show(
    classes: int, title: str, rows: int, found: dict[str, float], peer: dict[str, float] | None
) -> None:
    """Print one row of the table."""
    cores = RUNS[title][1]
    rate = rows / found["seconds"] / cores
    ratios = ""
    if peer is not None:
        by_clock = rate * peer["seconds"] / rows
        by_processor = peer["processor"] / found["processor"]
        ratios = f"{by_clock:6.2f} {by_processor:9.2f}"
    print(
        f"{classes:>7} {title:<40} {found['seconds']:>8.1f} {rate:>12,.0f} "
        f"{1e6 * found['processor'] / rows:>8.1f} {found['peak'] / MEBIBYTE:>8.0f}  {ratios}",
        flush=True,
    )


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--points", type=int, default=5_000, help="training points")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    parser.add_argument("--run", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        one_run(options.run[0], Path(options.run[1]))
        return
    print(f"{options.rows:,} rows, {options.points:,} training points of {WIDTH} dimensions")
    print(
        f"{'classes':>7} {'run':<40} {'seconds':>8} {'rows/s/core':>12} {'CPU us/row':>8} "
        f"{'MiB/proc':>8}  ratio to 1 process, per core: clock, CPU"
    )
    for classes in options.classes:
        table(options.rows, classes, options.points, options.repeat, options.only)


if __name__ == "__main__":
    main()
