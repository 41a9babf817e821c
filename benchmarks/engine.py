"""The engine against its peers, on the same data in the same run: one table.

Run with ``python benchmarks/engine.py --bench DIRECTORY``. The directory (or the environment
variable TRUSTSETS_BENCH; by default ``../shared/bench`` next to the repository) holds the
cifar100 outputs. MAPIE is timed on a few test points, spread over the test set, through the
method that computes one cutoff from basis rows and scores, without the cost of its classifier.
Peers that are not installed are left out of the table.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import linprog

from trustsets import APS, ModelOutputs, TrustScore
from trustsets.engine import QuantileModel, fit_quantiles
from trustsets.status import Status

Array = NDArray[np.float64]

ALPHA = 0.1
SPREAD = 0.02
DEFAULT_BENCH = Path(__file__).resolve().parents[1] / ".." / "shared" / "bench"


class Data(NamedTuple):
    """Basis rows of calibration and test points, and calibration scores."""

    phi: Array
    scores: Array
    tests: Array


def polynomial(x: Array, degree: int) -> Array:
    """All monomials of two variables up to a degree."""
    a, b = x.T
    return np.stack([a**i * b**j for i in range(degree + 1) for j in range(degree + 1 - i)], axis=1)


def simulated(n: int, m: int, degree: int) -> Data:
    """Skewed scores whose spread grows with the first of two features; no ties."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.random(n + m), np.exp(0.5 * rng.standard_normal(n + m))])
    scores = rng.gamma(2.0, size=n + m) * (0.2 + x[:, 0])
    phi = polynomial(x, degree)
    return Data(phi[:n], scores[:n], phi[n:])


def load_cifar(bench: Path) -> tuple[Array, Array]:
    """Confidence and trust as the paper's authors take it (20,000 x 2), and APS scores."""
    if not (bench / "cifar100_pool.npz").exists():
        raise SystemExit(f"no cifar100_pool.npz in {bench}; pass --bench DIRECTORY")
    train, pool = np.load(bench / "cifar100_train.npz"), np.load(bench / "cifar100_pool.npz")
    labels = pool["labels"].astype(np.int64)
    outputs = ModelOutputs(logits=pool["logits"], labels=labels)
    trust = TrustScore(neighbour=2, squared=True)
    trust.fit(train["features"], train["labels"].astype(np.int64))
    values = trust.score(pool["features"], outputs.predicted)
    return np.column_stack([outputs.confidence, values]), APS().of_labels(outputs)


def resampled(source: tuple[Array, Array], n: int, m: int, degree: int) -> Data:
    """Calibration and test points drawn from two halves of the pool, a little spread.

    A million draws from ten thousand points would be a hundred copies of each; the spread of
    confidence and trust keeps them apart. Scores stay as they are, most of them exactly 0.
    """
    features, scores = source
    rng = np.random.default_rng(0)
    order = rng.permutation(len(scores))
    half = len(scores) // 2
    calib, tests = rng.choice(order[:half], n), rng.choice(order[half:], m)
    drawn = features[np.concatenate([calib, tests])]
    drawn = drawn * np.exp(SPREAD * rng.standard_normal(drawn.shape))
    phi = polynomial(drawn, degree)
    return Data(phi[:n], scores[calib], phi[n:])


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of a call."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def fastest(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of three calls: other work on the machine can only add to them."""
    return min(timed(call)[0] for _ in range(3))


def mapie_seconds(data: Data, points: int) -> float | None:
    """Seconds a test point takes in MAPIE, its base fit not counted; None when not installed."""
    try:
        from mapie.conditional_conformal_prediction import ConditionalSplitConformalClassifier
    except ImportError:
        return None
    peer = ConditionalSplitConformalClassifier(feature_map=np.asarray, confidence_level=1 - ALPHA)
    # What `conformalize` sets, less the cvxpy problem, which exact cutoffs never use.
    peer.phi_calib, peer.scores_calib = data.phi, data.scores
    peer._get_calibration_solution(1 - ALPHA)
    chosen = np.linspace(0, len(data.tests) - 1, points).astype(int)

    def run() -> None:
        for i in chosen:
            peer._predict_conditional_cutoff(1 - ALPHA, data.tests[i : i + 1])

    return timed(run)[0] / points


def linprog_seconds(data: Data) -> float:
    """Seconds of the base fit as one linear program."""
    phi = data.phi / np.abs(data.phi).max(axis=0)
    right = np.zeros(phi.shape[1])
    bounds = (-ALPHA, 1.0 - ALPHA)
    return timed(lambda: linprog(-data.scores, A_eq=phi.T, b_eq=right, bounds=bounds))[0]


def path_pivots(model: QuantileModel, tests: Array) -> NDArray[np.int64]:
    """Number of vertices that the path of each test row passes."""
    return model._follow(
        model._problem.whitening.apply(tests), np.full(len(tests), 1.0 - ALPHA)
    ).pivots


def point_row(name: str, data: Data, peer: float | None) -> tuple[list[str], float, float]:
    """One line about thresholds, and the seconds of a mean and of a usual point.

    Usual are the 99.5% with the shortest paths; the longest of the others are cut off and solved
    by descent.
    """
    seconds, model = timed(lambda: fit_quantiles(data.phi, data.scores, ALPHA))
    result = model.thresholds(data.tests)
    pivots = path_pivots(model, data.tests)
    each = fastest(lambda: model.thresholds(data.tests)) / len(data.tests)
    usual = data.tests[pivots <= np.quantile(pivots, 0.995)]
    typical = fastest(lambda: model.thresholds(usual)) / len(usual)
    cells = [
        name,
        f"{len(data.scores):,} x {model.rank}",
        f"{seconds:.2f} s",
        f"{1e6 * each:.1f} us",
        f"{1e6 * typical:.1f} us",
        f"{pivots.mean():.1f}",
        f"{np.isinf(result.values).sum()} / {np.sum(result.status == Status.FALLBACK)}",
        "" if peer is None else f"{1e3 * peer:.0f} ms",
        "" if peer is None else f"{peer / each:,.0f}",
    ]
    print(*cells, sep="  ", file=sys.stderr)  # so that a long run shows where it is
    return cells, each, typical


def compile_seconds() -> float:
    """Seconds of a first small run: compilation, or reading it from disk."""

    def run() -> QuantileModel:
        data = simulated(4000, 600, 2)
        model = fit_quantiles(data.phi, data.scores, ALPHA)
        model.thresholds(data.tests)
        return model

    return timed(run)[0]


def fill(table: Table, bench: Path, points: int, big: int) -> None:
    """All lines of the table."""
    cifar = load_cifar(bench)
    problems = {"cifar100": resampled(cifar, 25_000, 25_000, 5)}
    problems["simulated"] = simulated(25_000, 25_000, 5)
    each: dict[str, list[float]] = {}
    for name, data in problems.items():
        cells, *each[name] = point_row(name, data, mapie_seconds(data, points))
        table.add_row(*cells)
    for name, data in (
        ("cifar100", resampled(cifar, big, 25_000, 5)),
        ("simulated", simulated(big, 25_000, 5)),
    ):
        cells, *seconds = point_row(name, data, None)
        ratios = [f"x {own / small:.2f}" for own, small in zip(seconds, each[name], strict=True)]
        table.add_row(*cells[:-2], "against n = 25,000:", ", usual ".join(ratios))
    for name, data in (
        ("cifar100, degree 10", resampled(cifar, 25_000, 5_000, 10)),
        ("simulated, degree 10", simulated(25_000, 5_000, 10)),
    ):
        table.add_row(*point_row(name, data, None)[0])


def fill_fits(table: Table, big: int) -> None:
    """Add base fits against one linear program."""
    data = simulated(100_000, 1, 5)
    peer = linprog_seconds(data)
    for n in (100_000, big):
        part = data if n == 100_000 else simulated(n, 1, 5)
        seconds, model = timed(partial(fit_quantiles, part.phi, part.scores, ALPHA))
        cells = [f"{n:,} x {model.rank}", f"{seconds:.2f} s", str(model.certificate.holds)]
        table.add_row(*cells, f"{peer:.1f} s (n = 100,000)", f"{peer / seconds:.1f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The engine against its peers.")
    default = Path(os.environ.get("TRUSTSETS_BENCH", DEFAULT_BENCH))
    parser.add_argument("--bench", type=Path, default=default, help="folder of model outputs")
    parser.add_argument("--points", type=int, default=20, help="test points given to MAPIE")
    parser.add_argument("--big", type=int, default=1_000_000, help="size of the largest problem")
    arguments = parser.parse_args()
    console = Console(width=150)
    console.print(f"compile or load from cache, and a first small run: {compile_seconds():.1f} s")
    console.print(f"the same once more: {compile_seconds():.2f} s")
    points = Table(title=f"Thresholds, {os.cpu_count()} cores; MAPIE on {arguments.points} points")
    for column in (
        "problem",
        "n x p",
        "fit",
        "a point",
        "usual point",
        "pivots",
        "infinite / fallback",
    ):
        points.add_column(column)
    points.add_column("MAPIE a point")
    points.add_column("ratio")
    fill(points, arguments.bench, arguments.points, arguments.big)
    console.print(points)
    fits = Table(title="Base fit, whitening and scan order included")
    for column in ("n x p", "fit", "certificate", "linprog", "ratio"):
        fits.add_column(column)
    fill_fits(fits, arguments.big)
    console.print(fits)


if __name__ == "__main__":
    main()
