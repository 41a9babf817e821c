"""Where people wait: p-values, one sample, a new alpha, the demo, candidate labels, compilation.

    python benchmarks/waiting.py [--against OTHER/src] [--turns 5] [--only p-values one-sample]

Every wait is measured in a process of its own, in processor seconds and with its peak memory.
Single requests and new alphas are measured by the clock: threads that wait after a matrix product
use processor time, but nobody waits for them. With ``--against`` the source of another checkout is
measured in turn with this one, in the same run.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

ALPHA = 0.1
SAMPLES, CLASSES, DIMENSION = 10_000, 100, 256


def simulated(count: int, seed: int, classes: int = CLASSES, dimension: int = DIMENSION) -> Any:
    """Features of Gaussian classes with a decaying spectrum, overconfident logits, labels."""
    from trustsets import ModelOutputs

    scale = 1.0 / np.sqrt(1.0 + np.arange(dimension))
    centres = 1.5 * scale * np.random.default_rng(0).normal(size=(classes, dimension))
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    features = centres[labels] + scale * rng.normal(size=(count, dimension))
    logits = 3.0 * (features @ centres.T - 0.5 * np.einsum("ij,ij->i", centres, centres))
    return ModelOutputs(
        logits=logits.astype(np.float32), features=features.astype(np.float32), labels=labels
    )


def with_trust_values(count: int, classes: int, seed: int = 0) -> Any:
    """Outputs of many classes that differ in how far their logit stands out, and trust values."""
    from trustsets import ModelOutputs

    rng = np.random.default_rng(seed)
    lift = np.random.default_rng(0).uniform(2.0, 6.0, size=classes)
    codes = rng.integers(classes, size=count)
    logits = rng.normal(size=(count, classes)).astype(np.float32)
    logits[np.arange(count), codes] += lift[codes]
    trust = np.exp(rng.normal(size=count) + 0.5 * (logits.argmax(axis=1) == codes))
    return ModelOutputs(logits=1.5 * logits, labels=codes, trust=trust)


@contextmanager
def timed(name: str) -> Any:
    """Report the processor seconds of a block, and the peak memory of the process after it."""
    start = time.process_time()
    yield
    report(name, time.process_time() - start)


def report(name: str, seconds: float) -> None:
    """Hand a measurement to the parent process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name}\t{seconds}\t{peak}", flush=True)


def polynomial() -> Any:
    """The smooth part of the default basis."""
    from trustsets import Confidence, Polynomial, Trust

    return Polynomial(5, (Confidence("rank"), Trust("rank")), penalty=10.0)


def p_values() -> None:
    """A hundred alphas of 4,000 samples x 200 classes."""
    from trustsets import ConditionalConformal

    predictor = ConditionalConformal(basis=polynomial())
    predictor.calibrate(with_trust_values(SAMPLES, 200))
    test = with_trust_values(4_000, 200, seed=1)
    predictor.predict_set(test.take(np.arange(10)), alpha=ALPHA)
    with timed("p-values, 4,000 x 200, 100 alphas"):
        predictor.predict_p(test)


def saved(folder: str) -> Path:
    """The default predictor with 20,000 reference points, asked once and saved."""
    from trustsets import ConditionalConformal, TrustScore

    path = Path(folder) / "model.trustsets"
    train = simulated(20_000, 1)
    trust = TrustScore().fit(train.features, train.labels)
    predictor = ConditionalConformal(trust=trust).calibrate(simulated(SAMPLES, 2))
    predictor.predict_set(simulated(2, 3), alpha=ALPHA)
    predictor.save(path)
    return path


def one_sample(path: str) -> None:
    """The first request of a new process, then single samples, then a new alpha."""
    from trustsets import load

    samples = simulated(400, 3)
    ones = [samples.take(np.array([i])) for i in range(len(samples))]
    predictor = load(path)
    with timed("first request of a process"):
        predictor.predict_set(ones[0], alpha=ALPHA)
    spent = []
    for one in ones:
        start = time.perf_counter()
        predictor.predict_set(one, alpha=ALPHA)
        spent.append(time.perf_counter() - start)
    report("one sample, median", float(np.median(spent)))
    report("one sample, 99th percentile", float(np.quantile(spent, 0.99)))
    new_alphas(predictor, ones, "simulated, n = 10,000")


def new_alphas(predictor: Any, samples: list[Any], data: str) -> None:
    """The first sample at an alpha that was not asked for before, by the clock."""
    fresh = []
    for number, alpha in enumerate(np.arange(0.03, 0.3, 0.009).round(3).tolist()):
        start = time.perf_counter()
        predictor.predict_set(samples[number], alpha=alpha)
        fresh.append(time.perf_counter() - start)
    report(f"a new alpha, {data}: median", float(np.median(fresh)))
    report(f"a new alpha, {data}: 95th percentile", float(np.quantile(fresh, 0.95)))


def demo() -> None:
    """The default on outputs of a deep network that ship with the package."""
    from trustsets import ConditionalConformal
    from trustsets.demo import load

    data = load()
    predictor = ConditionalConformal().calibrate(data.calibration)
    predictor.predict_set(data.test.take(np.arange(300)), alpha=0.5)
    with timed("demo: calibrate with 5,000 samples"):
        predictor.calibrate(data.calibration)
    with timed("demo: 5,000 sets"):
        predictor.predict_set(data.test, alpha=ALPHA)
    new_alphas(predictor, [data.test[i] for i in range(40)], "demo, n = 4,000")


def candidates(score: str) -> None:
    """Functions of the label: 25,000 samples x 1,000 classes in 30 clusters."""
    from trustsets import APS, Classes, ConditionalConformal, Softmax

    basis = polynomial() + Classes(10.0, clusters=[c % 30 for c in range(1_000)])
    kind = Softmax(scale="tail") if score == "softmax" else APS(scale="tail")
    calibration, test = with_trust_values(50_000, 1_000).split(0.5)
    predictor = ConditionalConformal(score=kind, basis=basis, class_bias=None)
    predictor.calibrate(calibration)
    with timed(f"candidate labels, 25,000 x 1,000, {score}"):
        predictor.predict_set(test, alpha=ALPHA)


def growth() -> None:
    """Microseconds of a threshold with 25,000 and with 1,000,000 calibration points."""
    from trustsets.engine import fit_quantiles

    def rows(count: int, seed: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(seed)
        a, b = rng.random((2, count))
        powers = [(i, j) for i in range(6) for j in range(6 - i)]
        return np.stack([a**i * b**j for i, j in powers], axis=1), rng.gamma(2.0, 0.2 + a)

    tests, spent = rows(10_000, 1)[0], {}
    for n in (25_000, 1_000_000):
        model = fit_quantiles(*rows(n, 0), alpha=ALPHA)
        model.thresholds(tests[:1])
        seconds = []
        for _ in range(5):
            start = time.process_time()
            model.thresholds(tests)
            seconds.append(time.process_time() - start)
        spent[n] = float(np.median(seconds))
        report(f"10,000 thresholds, n = {n:,}", spent[n])
    report("the second as a multiple of the first", spent[1_000_000] / spent[25_000])


def compilation() -> None:
    """The default's whole way with an empty cache of compiled code."""
    from trustsets import ConditionalConformal, ModelOutputs, TrustScore

    rng = np.random.default_rng(0)
    logits, features = rng.normal(size=(600, 5)), rng.normal(size=(600, 8))
    labels = rng.integers(5, size=600)
    outputs = ModelOutputs(logits=logits, features=features, labels=labels)
    calibration, test = outputs.split(0.5)
    with timed("first compilation"):
        trust = TrustScore().fit(features + 1.0, labels)
        ConditionalConformal(trust=trust).calibrate(calibration).predict_set(test, alpha=ALPHA)


WAITS: dict[str, Callable[..., None]] = {
    "p-values": p_values,
    "one-sample": one_sample,
    "demo": demo,
    "softmax-candidates": lambda: candidates("softmax"),
    "aps-candidates": lambda: candidates("aps"),
    "growth": growth,
    "compilation": compilation,
}


def run(name: str, source: str, cache: str) -> list[tuple[str, float, float]]:
    """Measure one wait with the source of a checkout: names, seconds, peak memory in MB."""
    environment = os.environ | {"PYTHONPATH": source, "NUMBA_CACHE_DIR": cache}
    with tempfile.TemporaryDirectory() as folder:
        if name == "compilation":
            environment["NUMBA_CACHE_DIR"] = folder
        words = [sys.executable, __file__, "--child", name]
        if name == "one-sample":
            subprocess.run([*words[:-1], f"save:{folder}"], env=environment, check=True)
            words += ["--path", str(Path(folder) / "model.trustsets")]
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 2]
    return [(label, float(seconds), float(peak)) for label, seconds, peak in lines]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", help="the src folder of another checkout")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WAITS, default=list(WAITS))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        if options.child.startswith("save:"):
            saved(options.child.removeprefix("save:"))
        else:
            WAITS[options.child](*([options.path] if options.path else []))
        return
    sources = [str(Path(__file__).parents[1] / "src")]
    sources += [options.against] if options.against else []
    columns = [word for name in ("here", "there")[: len(sources)] for word in (name, "peak MB")]
    table = Table("wait (processor seconds)", *columns, *["ratio"] * (len(sources) - 1))
    with tempfile.TemporaryDirectory() as cache:
        for name in options.only:
            runs: dict[str, list[list[tuple[float, float]]]] = {}
            for turn in range(options.turns + 1):
                for place, source in enumerate(sources):
                    folder = str(Path(cache) / str(place))
                    for label, seconds, peak in run(name, source, folder):
                        pair = runs.setdefault(label, [[] for _ in sources])
                        # The first turn fills the cache of compiled code.
                        if turn or options.turns == 0:
                            pair[place].append((seconds, peak))
            for label, pair in runs.items():
                medians = [np.median(part, axis=0) for part in pair]
                cells = [cell for one in medians for cell in (f"{one[0]:.4g}", f"{one[1]:.0f}")]
                ratio = [f"{medians[0][0] / medians[1][0]:.2f}"] if len(medians) > 1 else []
                table.add_row(label, *cells, *ratio)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
