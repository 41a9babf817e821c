"""Run the benchmark: every method on every data set and split; see PROTOCOL.md.

    python benchmarks/coverage/evidence.py [--source DIR] [--sets NAME ...] [--splits 10]

One split of one data set is one piece of work, once for the peers and once for this package. Its
result is a small file in the cache, so that an interrupted run goes on where it stopped. Results of
other code or data are never reused; those of the peers do not depend on this package's methods. At
the end, or with ``--summarize`` at any time, what is complete is summarised in one file for the
page.
"""

import argparse
import hashlib
import importlib.util
import json
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from coverage_page import TITLES
from data_sets import CACHE, ROOT, DataSet, Library, Task, available, checksum
from measures import Judge
from methods import DEFAULT, FEWER_SPLITS, METHODS, REFERENCE
from peers import PEERS
from splits import ALPHA, LARGEST_TEST, Method, Split, quiet

OUTPUT = ROOT / "docs" / "results" / "coverage.json"
LAC_OF_SIZE = "LAC of the default's size"
"""A row that is no method: split conformal sets with LAC scores, as large as the default's."""
MEASURES = ("coverage", "size", "median_size", "empty", *TITLES)
VERSIONS = ("mapie", "torchcp", "crepes", "puncc", "covmetrics", "lightgbm", "scikit-learn")
MEMORY_SET = "mnist1d"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


PARTS: dict[str, dict[str, Method]] = {"package": METHODS, "peers": PEERS}


def fingerprint(part: str) -> str:
    """First digits of a hash of the code that the numbers of a part depend on."""
    here = Path(__file__).parent
    files = [here / name for name in ("splits.py", "measures.py", "peers.py")]
    if part == "package":
        files = [*files[:2], here / "methods.py", *sorted((ROOT / "src/trustsets").rglob("*.py"))]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def result_path(part: str, name: str, seed: int, library: Library) -> Path:
    """Where the result of a piece of work is, or will be."""
    folder = library.cache / "runs" / f"{part}-{fingerprint(part)}"
    return folder / f"{name}-{checksum(library, name)[:8]}-{seed}.json"


@lru_cache
def load(name: str, library: Library) -> Task:
    """A task, which stays in memory for its other splits."""
    return available([name])[0].load(library)


def run_split(part: str, name: str, seed: int, library: Library) -> None:
    """Run all methods of a part on one split of one data set, and keep the result."""
    quiet()
    path = result_path(part, name, seed, library)
    if path.exists():  # another run that shares the cache was faster
        return
    task = load(name, library)
    split = Split.draw(task, seed)
    judge = Judge(split)
    measured: dict[bytes, dict[str, float]] = {}

    def measure(mask: Any) -> dict[str, float]:
        key = hashlib.sha256(np.packbits(mask).tobytes()).digest()
        if key not in measured:  # sets that are the same need no second judgement
            measured[key] = judge.measure(mask)
        return measured[key]

    rows = {
        method.name: run_method(method, split, judge, measure)
        for method in PARTS[part].values()
        if method.takes(task) and seed <= FEWER_SPLITS.get(method.name, seed)
    }
    if part == "package":
        mask = judge.of_size(rows[DEFAULT]["total"], judge.lac_order)
        rows[LAC_OF_SIZE] = {"at_alpha": measure(mask), "equal_size": rows[DEFAULT]["equal_size"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".partial").write_text(json.dumps(rows))
    path.with_suffix(".partial").rename(path)


def run_method(method: Method, split: Split, judge: Judge, measure: Any) -> dict[str, Any]:
    """Measures of one method, and of split conformal sets that have the same mean size."""
    start = time.process_time()
    try:
        predict = method.fit(split)
        calibrated = time.process_time()
        mask = predict()
    except Exception as error:
        if method.package == "trustsets":
            raise
        return {"failed": f"{type(error).__name__}: {error}"[:200]}
    predicted = time.process_time()
    total = int(mask.sum())
    return {
        "at_alpha": measure(mask),
        "equal_size": measure(judge.of_size(total)),
        "calibrate_seconds": calibrated - start,
        "predict_seconds": 1000.0 * (predicted - calibrated) / len(mask),
        "total": total,
    }


def run_all(options: argparse.Namespace, sets: list[DataSet], library: Library) -> None:
    """Run what the cache lacks, first splits first."""
    for data in sets:
        data.load(library)
    work = [
        (part, data.name, seed)
        for seed in range(1, options.splits + 1)
        for part in options.parts
        for data in sets
        if not result_path(part, data.name, seed, library).exists()
    ]
    start = time.monotonic()
    print(f"{len(work)} pieces of work in {options.processes} processes.", flush=True)
    os.environ |= dict.fromkeys(THREADS, "1")  # for the new processes: one core each
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        futures = {pool.submit(run_split, *piece, library): piece for piece in work}
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            spent = time.monotonic() - start
            left = spent / done * (len(work) - done)
            text = " ".join(str(word) for word in futures[future])
            print(f"{done}/{len(work)} {text}: {spent:.0f} s, {left:.0f} s to go", flush=True)


# ---------------------------------------------------------------------------------- summary


def _column(rows: list[dict[str, Any]], part: str, measure: str) -> list[float]:
    return [row[part][measure] for row in rows if measure in row.get(part, {})]


def _means(values: dict[str, Any]) -> list[float | None]:
    """Means over splits by measure, at four significant digits; None where nothing was measured."""
    return [_rounded(np.mean(values[name])) if len(values[name]) else None for name in MEASURES]


def _deviations(values: dict[str, Any]) -> list[float | None]:
    """Standard deviations over splits by measure, at three significant digits."""
    return [
        None
        if len(values[name]) == 0
        else _rounded(np.std(values[name], ddof=1) if len(values[name]) > 1 else 0.0, digits=3)
        for name in MEASURES
    ]


def _rounded(value: Any, digits: int = 4) -> float:
    return float(f"{float(value):.{digits}g}")


def summarize_method(rows: list[dict[str, Any]], default: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the file: measures, those at equal size, paired differences, seconds."""
    failed = [row["failed"] for row in rows if "failed" in row]
    if failed:
        return {"failed": failed[0], "splits_failed": len(failed)}
    at_alpha = {name: np.array(_column(rows, "at_alpha", name)) for name in MEASURES}
    equal = {name: np.array(_column(rows, "equal_size", name)) for name in MEASURES}
    ours = {name: np.array(_column(default, "at_alpha", name)) for name in MEASURES}
    summary: dict[str, Any] = {
        "splits": len(rows),
        "mean": _means(at_alpha),
        "sd": _deviations(at_alpha),
        "equal_size_mean": _means(equal),
        "minus_equal_size_sd": _deviations({k: at_alpha[k] - equal[k] for k in MEASURES}),
        "default_minus_it_sd": _deviations({k: ours[k] - at_alpha[k] for k in MEASURES}),
    }
    for key in ("calibrate_seconds", "predict_seconds"):
        seconds = [row[key] for row in rows if key in row]
        if seconds:
            summary[key] = _rounded(np.median(seconds))
    return summary


def describe(data: DataSet, library: Library, splits: int) -> dict[str, Any]:
    """What a data set is, for the page."""
    task = data.load(library)
    split = Split.draw(task, 1)
    right = task.probabilities.argmax(axis=1) == task.labels
    return {
        "kind": data.kind,
        "model": data.model,
        "embedding": data.embedding,
        "judge": data.judge,
        "note": data.note,
        "seen": data.seen,
        "source": data.source.address if data.source else "",
        "licence": data.source.licence if data.source else "",
        "download": data.source.size if data.source else "",
        "classes": task.n_classes,
        "calibration": len(split.calibration),
        "test": len(split.test),
        "features": task.features.shape[1],
        "accuracy": _rounded(right.mean()),
        "confidence": _rounded(task.probabilities.max(axis=1).mean()),
        "seconds": _rounded(task.seconds),
        "trust_seconds": _rounded(1000.0 * task.trust_seconds / len(task)),
        "checksum": checksum(library, data.name),
        "splits": splits,
    }


def floor(data: DataSet, library: Library, splits: int) -> dict[str, list[float]]:
    """Over-coverage component of ERT, by each judge, of sets of the most likely class alone.

    Sets that contain the most likely class cover an input at least as often as that class is
    right, so the classifier alone decides how much over-coverage they cannot avoid. Mean and
    standard deviation over splits.
    """
    task = data.load(library)
    values: dict[str, list[float]] = {}
    for seed in range(1, splits + 1):
        judge = Judge(Split.draw(task, seed))
        for name, value in judge.over_coverage(judge.of_size(judge.n)).items():
            values.setdefault(name, []).append(value)
    return {
        name: [_rounded(np.mean(column)), _rounded(np.std(column, ddof=1), digits=3)]
        for name, column in values.items()
    }


def add_floors(options: argparse.Namespace, sets: list[DataSet], library: Library) -> None:
    """Add the floors to the results file as it is, if it is of the same data."""
    results = _read(options.output)
    for data in sets:
        entry = results["sets"][data.name]
        data.load(library)
        if entry["checksum"] != checksum(library, data.name):
            raise SystemExit(f"{options.output} is of another {data.name}.")
        entry["floor"] = floor(data, library, entry["splits"])
        print(data.name, entry["floor"], flush=True)
    write(options.output, results)


def write(path: Path, results: dict[str, Any]) -> None:
    """Write the results file, a method on each line."""
    text = json.dumps(results, separators=(",", ":")).replace('},"', '},\n"')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    print(f"{path}: {len(text) / 1000:.0f} kB, {len(results['sets'])} data sets.")


def summarize(options: argparse.Namespace, sets: list[DataSet], library: Library) -> dict[str, Any]:
    """The content of the results file, from all splits that are in the cache."""
    summary: dict[str, Any] = {}
    for data in sets:
        data.load(library)
        splits = _complete_splits(options, data.name, library)
        if not splits:
            continue
        methods = {}
        for name in (*METHODS, *PEERS, LAC_OF_SIZE):
            run = [rows for rows in splits if name in rows]
            if run:
                methods[name] = summarize_method(
                    [rows[name] for rows in run], [rows[DEFAULT] for rows in run]
                )
        summary[data.name] = {
            **describe(data, library, len(splits)),
            "floor": floor(data, library, len(splits)),
            "methods": methods,
        }
    return {
        "commit": _commit(),
        "default": _default(),
        "code": {part: fingerprint(part) for part in PARTS},
        "command": "make evidence",
        "alpha": ALPHA,
        "largest_test": LARGEST_TEST,
        "reference": REFERENCE,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in VERSIONS},
        "measures": list(MEASURES),
        "memory_mb": _read(memory_path(library)),
        "sets": summary,
    }


def _complete_splits(
    options: argparse.Namespace, name: str, library: Library
) -> list[dict[str, Any]]:
    """Rows of all methods by split, for the splits of which all parts are there."""
    splits = []
    for seed in range(1, options.splits + 1):
        parts = [_read(result_path(part, name, seed, library)) for part in options.parts]
        if all(parts):
            splits.append({method: row for part in parts for method, row in part.items()})
    return splits


def _read(path: Path) -> dict[str, Any]:
    """Content of a file; nothing if it is not there."""
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def _commit() -> str:
    """The commit that froze the defaults, by its title."""
    pattern = "--grep=^Freeze the default$"
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", pattern]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _default() -> str:
    """Fingerprint of the default that ran, as in the stamps of the other pages of results."""
    spec = importlib.util.spec_from_file_location("results", ROOT / "studies" / "results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.fingerprint())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def memory_path(library: Library) -> Path:
    """Where the memory of all methods is, or will be."""
    return library.cache / "runs" / f"memory-{fingerprint('package')}-{fingerprint('peers')}.json"


def measure_memory(options: argparse.Namespace, library: Library) -> None:
    """Megabytes that each method adds to a process that holds the data, on one data set."""
    memory = {}
    for name, method in (METHODS | PEERS).items():
        if method.largest_pool < 10**6:
            continue
        command = [sys.executable, __file__, "--cache", str(options.cache), "--peak-of", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        memory[name] = float(done.stdout.splitlines()[-1])
        print(f"{name}: {memory[name]:.0f} MB", flush=True)
    memory_path(library).write_text(json.dumps(memory))


def peak_of(options: argparse.Namespace) -> None:
    """Print what one method adds to the largest memory of this process."""
    quiet()
    task = available([MEMORY_SET])[0].load(Library(options.cache, options.source))
    small = Split.draw(task, 1, largest_test=100)
    small = Split(task, 1, small.calibration[:1000], small.test)
    method = (METHODS | PEERS)[options.peak_of]
    method.fit(small)()  # imports and compilation
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    method.fit(Split.draw(task, 1))()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def differences(first: Path, second: Path) -> tuple[int, list[str]]:
    """Numbers that two caches share, and the names of those that differ; seconds do not count."""
    shared, differing = 0, []
    for path in sorted((second / "runs").glob("*/*.json")):
        other = _read(first / path.relative_to(second))
        for method, row in _read(path).items():
            for part in ("at_alpha", "equal_size"):
                for measure, value in row.get(part, {}).items():
                    if part in other.get(method, {}):
                        shared += 1
                        if other[method][part][measure] != value:
                            differing.append(f"{path.name} {method} {part} {measure}")
    return shared, differing


def main() -> None:
    """Run, and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="folder of local copies of the sources")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--sets", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--memory", action="store_true", help="measure memory, too")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--summarize", action="store_true", help="run nothing")
    parser.add_argument("--floors", action="store_true", help="add floors to the results file")
    parser.add_argument("--compare", type=Path, help="another cache: say which numbers differ")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of:
        peak_of(options)
        return
    if options.compare:
        shared, differing = differences(options.cache, options.compare)
        print(f"{shared:,} numbers in both caches, {len(differing)} differ.", *differing, sep="\n")
        return
    library = Library(options.cache, options.source)
    sets = available(options.sets)
    if options.floors:
        add_floors(options, sets, library)
        return
    if not options.summarize:
        run_all(options, sets, library)
        if options.memory and not memory_path(library).exists():
            measure_memory(options, library)
    if set(options.parts) != set(PARTS):
        return
    write(options.output, summarize(options, sets, library))


if __name__ == "__main__":
    main()
