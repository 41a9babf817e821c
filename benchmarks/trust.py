"""Trust scores against their peers, in one table.

    python benchmarks/trust.py [--bench FOLDER] [--repeat 3]
    python benchmarks/trust.py --gpu            # ImageNet size, needs NumPy and torch alone

Peers are timed in the same run, interleaved with ours; the best time of each counts.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _help_bundled_blas() -> None:
    """Tell OpenBLAS the processor before it loads.

    The OpenBLAS inside the faiss-cpu wheel is too old to recognise many virtual machines and then
    falls back to kernels five times slower. The peer should run at its best.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii")
    except OSError:
        return
    core = "SkylakeX" if "avx512f" in flags else "Haswell" if "avx2" in flags else None
    if core is not None and "--as-installed" not in sys.argv:
        os.environ.setdefault("OPENBLAS_CORETYPE", core)


_help_bundled_blas()

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

Array = NDArray[Any]


@dataclass(frozen=True)
class Problem:
    """Training features and labels, query features and predicted labels."""

    name: str
    train: Array
    labels: Array
    queries: Array
    predicted: Array

    def first(self, count: int) -> Problem:
        """Only the first queries."""
        name = f"{self.name}, {count} queries"
        return Problem(name, self.train, self.labels, self.queries[:count], self.predicted[:count])


def spectrum(dimension: int) -> Array:
    """Variances that follow those of the cifar100 features, and go on as a power law.

    The fit is within a factor of two of the measured eigenvalues over five orders of magnitude.
    """
    i = np.arange(dimension)
    values: Array = 1.0 / ((1.0 + i / 8.0) * (1.0 + (i / 60.0) ** 3.2))
    values /= values.sum()
    return values


def generated(points: int, queries: int, dimension: int, classes: int = 100) -> Problem:
    """Gaussian classes with half of the variance between them; three predictions in four right."""
    rng = np.random.default_rng(0)
    spread = np.sqrt(spectrum(dimension) / 2.0).astype(np.float32)
    centres = rng.standard_normal((classes, dimension), np.float32) * spread

    def draw(codes: Array) -> Array:
        rows = rng.standard_normal((len(codes), dimension), np.float32)
        rows *= spread
        rows += centres[codes]
        return rows

    labels, asked = rng.integers(0, classes, points), rng.integers(0, classes, queries)
    guesses = np.where(rng.random(queries) < 0.76, asked, rng.integers(0, classes, queries))
    name = f"generated, {points} x {dimension}"
    return Problem(name, draw(labels), labels, draw(asked), guesses)


def load(folder: Path, name: str) -> tuple[Problem, Array, Array]:
    """Read a benchmark set, with the logits and labels of its queries."""
    train, pool = (np.load(folder / f"{name}_{part}.npz") for part in ("train", "pool"))
    logits, labels = pool["logits"], pool["labels"].astype(np.int64)
    features = train["features"].astype(np.float32)
    title = f"{name}, {features.shape[0]} x {features.shape[1]}"
    queries = pool["features"].astype(np.float32)
    predicted = logits.argmax(axis=1)
    problem = Problem(title, features, train["labels"].astype(np.int64), queries, predicted)
    return problem, logits, labels


def unit_rows(rows: Array) -> Array:
    """Rows divided by their norms."""
    divided: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return divided


def plain_faiss(problem: Problem) -> Callable[[], Array]:
    """One flat search of all queries among all points: less than Trust needs."""
    import faiss

    index = faiss.IndexFlatL2(problem.train.shape[1])
    index.add(unit_rows(problem.train))

    def run() -> Array:
        found: Array = index.search(unit_rows(problem.queries), 1)[0][:, 0]
        return found

    return run


def authors_way(problem: Problem) -> Callable[[], Array]:
    """One flat FAISS index per class, second neighbour, squared distances."""
    import faiss

    rows = unit_rows(problem.train)
    classes = np.unique(problem.labels)
    indexes = []
    for code in classes:
        index = faiss.IndexFlatL2(rows.shape[1])
        index.add(np.ascontiguousarray(rows[problem.labels == code]))
        indexes.append(index)

    def run() -> Array:
        asked = unit_rows(problem.queries)
        table = np.stack([index.search(asked, 2)[0][:, 1] for index in indexes], axis=1)
        return ratio(table, classes, problem.predicted)

    return run


def kd_trees(problem: Problem) -> Callable[[], Array]:
    """One KD-tree per class, as `alibi.confidence.TrustScore` does (its defaults: leaf size 40).

    Written out here because alibi 0.9.6 does not install next to NumPy 2.
    """
    from sklearn.neighbors import KDTree

    rows = unit_rows(problem.train)
    classes = np.unique(problem.labels)
    trees = [KDTree(rows[problem.labels == code], leaf_size=40) for code in classes]

    def run() -> Array:
        asked = unit_rows(problem.queries)
        table = np.stack([tree.query(asked, k=2)[0][:, 1] for tree in trees], axis=1)
        return ratio(table, classes, problem.predicted)

    return run


def ratio(table: Array, classes: Array, predicted: Array) -> Array:
    """Least other distance over the own one."""
    own = classes[None, :] == predicted[:, None]
    other = np.where(own, np.inf, table).min(axis=1)
    trust: Array = other / (table[own] + 1e-12)
    return trust


def ours(problem: Problem, **parameters: Any) -> tuple[Any, Callable[[], Array], float]:
    """Fit a TrustScore; return it, its run, and the time of the fit."""
    from trustsets.trust import TrustScore

    start = time.perf_counter()
    trust = TrustScore(**parameters).fit(problem.train, problem.labels)
    seconds = time.perf_counter() - start
    return trust, lambda: trust.score(problem.queries, problem.predicted), seconds


@dataclass
class Timing:
    """Least wall time and least processor time of some runs, and the last result."""

    wall: float = np.inf
    processor: float = np.inf
    result: Array = field(default_factory=lambda: np.empty(0))


def timed(runs: dict[str, Callable[[], Array]], repeat: int) -> dict[str, Timing]:
    """Time each run `repeat` times, the runs taking turns."""
    timings = {name: Timing() for name in runs}
    next(iter(runs.values()))()  # compiled code is loaded from its cache before the clock starts
    for _ in range(repeat):
        for name, run in runs.items():
            gc.collect()
            wall, processor = time.perf_counter(), time.process_time()
            result = run()
            best = timings[name]
            best.wall = min(best.wall, time.perf_counter() - wall)
            best.processor = min(best.processor, time.process_time() - processor)
            best.result = result
    return timings


def peak_memory(run: Callable[[], Array]) -> float:
    """MiB by which a run raises the resident memory at its highest; NaN where Linux cannot say."""
    try:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _status("VmRSS")
        run()
        return _status("VmHWM") - before
    except OSError:
        return float("nan")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def show(data: str, method: str, mine: Timing, peer: Timing, note: str = "") -> None:
    """Print one row of the table."""
    print(
        f"{data:<34} {method:<32} {mine.wall:>7.2f} s {peer.wall / mine.wall:>6.1f} x"
        f" {mine.processor:>8.2f} s {peer.processor / mine.processor:>6.1f} x  {note}",
        flush=True,
    )


def compare(problem: Problem, repeat: int) -> None:
    """Ours, a plain FAISS search of the same size, and the paper's own runs."""
    trust, run, fit = ours(problem)
    memory = f"peak memory +{peak_memory(run):.0f} MiB"
    _, run_second, _ = ours(problem, neighbour=2, squared=True)
    results = timed(
        {
            "TrustScore": run,
            "one FAISS flat search": plain_faiss(problem),
            "TrustScore, 2nd neighbour": run_second,
            "authors' way (FAISS per class)": authors_way(problem),
        },
        repeat,
    )
    pairs, survivors, measured = trust._search.counts
    left = f"pruned {1 - survivors / pairs:.4%}, full distances {measured / pairs:.4%}"
    note = f"{left}, head {trust._search.sketch.head}, fit {fit:.2f} s"
    gap = _gap(results["TrustScore, 2nd neighbour"], results[PEER_OF_SECOND])
    notes = {
        "TrustScore": note,
        "one FAISS flat search": f"(TrustScore: {memory})",
        "TrustScore, 2nd neighbour": f"differs from the authors' by {gap:.1e} at most",
    }
    for name, timing in results.items():
        rival = "one FAISS flat search" if name in FIRST_PAIR else PEER_OF_SECOND
        show(problem.name, name, timing, results[rival], notes.get(name, ""))


def _gap(one: Timing, other: Timing) -> float:
    """Largest relative difference of two results."""
    return float(np.abs(one.result / other.result - 1.0).max())


FIRST_PAIR = ("TrustScore", "one FAISS flat search")
PEER_OF_SECOND = "authors' way (FAISS per class)"


def compare_trees(problem: Problem) -> None:
    """Ours and one KD-tree per class, on few queries: the trees are slow."""
    _, run, _ = ours(problem, neighbour=2)
    results = timed({"TrustScore, 2nd neighbour": run, "KD-trees (as alibi)": kd_trees(problem)}, 1)
    peer = results["KD-trees (as alibi)"]
    gap = _gap(results["TrustScore, 2nd neighbour"], peer)
    for name, timing in results.items():
        note = f"differs by {gap:.1e} at most" if name.startswith("Trust") else ""
        show(problem.name, name, timing, peer, note)


def correlate(folder: Path) -> None:
    """Spearman correlation of Trust with the rank of the true label."""
    from scipy.stats import spearmanr

    for name in ("cifar100", "cifar100lt", "ham10000"):
        problem, logits, labels = load(folder, name)
        trust = ours(problem)[1]()
        true = logits[np.arange(len(labels)), labels][:, None]
        rank = 1 + (logits > true).sum(axis=1)
        print(f"Spearman(Trust, Rank) on {name:<11} {spearmanr(trust, rank).statistic:+.3f}")


def cpu(options: argparse.Namespace) -> None:
    """Print the whole table."""
    folder = Path(options.bench)
    print(f"{CORES} cores; x: how many times faster than the peer of the same group of rows")
    print(f"{'data':<34} {'method':<32} {'wall':>9} {'':>8} {'processor':>10}")
    if options.only != "generated":
        problem = load(folder, "cifar100")[0]
        compare(problem, options.repeat)
        compare_trees(problem.first(300))
        correlate(folder)
        del problem
    if options.only != "cifar100":
        compare(generated(40_000, 20_000, 2048), max(options.repeat - 1, 1))


def gpu(options: argparse.Namespace) -> None:
    """Search a generated problem of ImageNet's size on the card, and check a subset directly."""
    import torch

    from trustsets.neighbours import Queries
    from trustsets.neighbours.gpu import TorchPoints, TorchSearch

    device = torch.device(options.device)
    torch.manual_seed(0)
    points, starts, queries, own = _generate(options, device)
    print(
        f"{_device_name(device)}: {options.queries} queries, {options.points} x 2048, 1000 classes"
    )
    limits = {name: _matmul_rate(device, name) for name in ("float32", "tf32", "bfloat16")}
    print(
        "measured product limits: " + ", ".join(f"{k} {v:.0f} TFLOP/s" for k, v in limits.items())
    )
    start = _now(device)
    search = TorchSearch(TorchPoints(points, _scales(points), starts))
    print(f"fit {_now(device) - start:.2f} s, head {search.sketch.head} of 2048")
    scale = _scales(queries)
    search.distances(Queries(queries[:1024], scale[:1024], own[:1024]))  # warm up
    search.counts[:] = 0
    start = _now(device)
    found = search.distances(Queries(queries, scale, own))
    seconds = _now(device) - start
    whole = 2.0 * options.queries * options.points * 2048 / 1e12
    done = 2.0 * options.queries * options.points * (search.sketch.head + 1) / 1e12
    print(
        f"search {seconds:.2f} s: {done / seconds:.1f} TFLOP/s of products done "
        f"({done / seconds / limits['tf32']:.1%} of the TF32 limit), worth {whole / seconds:.0f} "
        f"TFLOP/s of a search in all 2048 dimensions ({whole / seconds / limits['tf32']:.1%})"
    )
    pairs, survivors, measured = search.counts
    print(f"pruned {1 - survivors / pairs:.5%}, full distances {measured / pairs:.6%}")
    if device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB")
    for name, precision in {"TF32": "high", "float32": "highest"}.items():
        plain = _plain_search_seconds(points, queries, device, precision)
        print(
            f"plain {name} product and minimum of all pairs: {plain:.2f} s, "
            f"{plain / seconds:.1f} x ours"
        )
    _check(points, starts, queries, own, found, options.check)


def _generate(options: argparse.Namespace, device: Any) -> tuple[Any, Array, Any, Array]:
    """Points sorted by class, class starts, queries and their predicted classes."""
    import torch

    classes = 1000
    spread = torch.from_numpy(np.sqrt(spectrum(2048) / 2.0)).float().to(device)
    centres = torch.randn(classes, 2048, device=device) * spread
    codes = np.sort(np.arange(options.points) % classes)
    rng = np.random.default_rng(0)
    asked = rng.integers(0, classes, options.queries)
    own = np.where(rng.random(len(asked)) < 0.76, asked, rng.integers(0, classes, len(asked)))

    def draw(chosen: Array) -> Any:
        rows = torch.empty(len(chosen), 2048, device=device)
        for first in range(0, len(chosen), 65536):
            some = torch.from_numpy(chosen[first : first + 65536]).to(device)
            rows[first : first + 65536] = centres[some] + spread * torch.randn(
                len(some), 2048, device=device
            )
        return rows

    starts = np.searchsorted(codes, np.arange(classes + 1)).astype(np.int64)
    return draw(codes), starts, draw(asked), own


def _scales(rows: Any) -> Any:
    """Inverse norms in float64, a block at a time."""
    import torch

    return torch.cat([1.0 / block.double().norm(dim=1) for block in torch.split(rows, 65536)])


def _matmul_rate(device: Any, kind: str) -> float:
    """TFLOP/s of a plain square product."""
    import torch

    size = 8192 if device.type == "cuda" else 512
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    for _ in range(3):
        left @ right
    start = _now(device)
    for _ in range(20):
        left @ right
    seconds = (_now(device) - start) / 20
    torch.set_float32_matmul_precision("highest")
    return 2.0 * size**3 / seconds / 1e12


def _plain_search_seconds(points: Any, queries: Any, device: Any, precision: str) -> float:
    """Time of what a plain search does at least: all products in all dimensions, and a minimum."""
    import torch

    torch.set_float32_matmul_precision(precision)
    start = _now(device)
    for asked in torch.split(queries, 8192):
        best = torch.full((len(asked),), -torch.inf, device=device)
        for rows in torch.split(points, 65536):
            best = torch.maximum(best, (asked @ rows.T).amax(dim=1))
    seconds = _now(device) - start
    torch.set_float32_matmul_precision("highest")
    return seconds


def _check(points: Any, starts: Array, queries: Any, own: Array, found: Any, count: int) -> None:
    """Compare some queries with direct float64 distances computed on the CPU."""
    import torch

    asked = np.linspace(0, len(own) - 1, count).astype(np.int64)
    rows = queries[torch.from_numpy(asked)].cpu().double()
    rows /= rows.norm(dim=1, keepdim=True)
    gaps = []
    for block in torch.split(points, 32768):
        wide = block.cpu().double()
        wide /= wide.norm(dim=1, keepdim=True)
        gaps.append(torch.cdist(rows, wide, compute_mode="donot_use_mm_for_euclid_dist"))
    table = np.minimum.reduceat(torch.cat(gaps, dim=1).numpy(), starts[:-1], axis=1)
    each = np.arange(count)
    expected_own = table[each, own[asked]].copy()
    table[each, own[asked]] = np.inf
    worst_own = np.abs(found.own_distance[asked] / expected_own - 1).max()
    worst_other = np.abs(found.other_distance[asked] / table.min(axis=1) - 1).max()
    agree = (table.argmin(axis=1) == found.other_class[asked]).mean()
    print(
        f"{count} queries against direct float64 on the CPU: own differs {worst_own:.1e}, other "
        f"{worst_other:.1e}, same class {agree:.1%}"
    )


def _device_name(device: Any) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device}"


def _now(device: Any) -> float:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    beside = Path(__file__).resolve().parents[2] / "shared" / "bench"
    parser.add_argument("--bench", default=os.environ.get("TRUSTSETS_BENCH", beside))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=("cifar100", "generated"), help="part of the table")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument(
        "--as-installed", action="store_true", help="leave FAISS's BLAS to find the processor"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--queries", type=int, default=50_000)
    parser.add_argument("--points", type=int, default=1_280_000)
    parser.add_argument("--check", type=int, default=64, help="queries checked against the CPU")
    options = parser.parse_args()
    (gpu if options.gpu else cpu)(options)


if __name__ == "__main__":
    main()
