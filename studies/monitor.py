"""False alarms of `Monitor` without a change, and the delay of its alarms after one.

    python studies/monitor.py [--streams 1000] [--length 3000] [--drifts 40]

Every stream has new calibration samples, a newly calibrated predictor and a new monitor, so that
the randomness of the calibration counts. A change comes after 1,000 labelled samples.
"""

import argparse
import warnings
from collections import Counter
from typing import Any

import numpy as np

from trustsets import (
    APS,
    ConditionalConformal,
    ModelOutputs,
    Monitor,
    Polynomial,
    StandardConformal,
    TrustScore,
)
from trustsets.errors import TrustSetsWarning

CLASSES = 5
CALIBRATION = 500
BATCH = 100
CHANGE = 1000
FALSE_ALARM = 0.05
METHODS = ("standard", "conditional")
KINDS = ("all samples", "one region", "one class", "one group", "inputs moved", "inputs spread")


class World:
    """A task whose classifier is overconfident; `kind` says what changes, None for nothing."""

    def __init__(self) -> None:
        rng = np.random.default_rng(12345)
        self.weights = 1.2 * rng.normal(size=(6, CLASSES))
        features = rng.normal(size=(2000, 6))
        labels = self._labels(rng, features)
        self.trust = TrustScore().fit(features, labels)

    def _labels(self, rng: np.random.Generator, features: Any) -> Any:
        true = features @ self.weights
        return (true + rng.gumbel(size=true.shape)).argmax(axis=1)

    def draw(self, rng: np.random.Generator, n: int, kind: str | None = None) -> ModelOutputs:
        """Samples with labels."""
        features = rng.normal(size=(n, 6))
        site = rng.choice(["north", "south", "west"], size=n)
        if kind == "inputs moved":
            features[:, 0] += 0.7
        elif kind == "inputs spread":
            features *= 1.3
        labels, logits = self._labels(rng, features), 1.5 * features @ self.weights
        wrong = np.zeros(n, dtype=bool)
        if kind == "all samples":
            wrong = rng.random(n) < 0.15
        elif kind == "one region":
            top = np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
            wrong = (1.0 / top > 0.97) & (rng.random(n) < 0.4)
        elif kind == "one class":
            wrong = (labels == 2) & (rng.random(n) < 0.5)
        elif kind == "one group":
            wrong = (site == "west") & (rng.random(n) < 0.4)
        if kind == "one class":
            # The classifier no longer knows the class: another class gets its logits.
            logits[wrong] = np.roll(logits[wrong], 1, axis=1)
        else:
            labels = np.where(wrong, rng.integers(CLASSES, size=n), labels)
        return ModelOutputs(logits=logits, features=features, labels=labels, groups={"site": site})


def predictor_of(method: str, world: World, seed: int) -> Any:
    """A predictor that is not calibrated."""
    if method == "standard":
        return StandardConformal(score=APS(own_mass="random"), allow_empty=True, random_state=seed)
    return ConditionalConformal(basis=Polynomial(degree=2), trust=world.trust, random_state=seed)


def run_stream(
    world: World,
    seed: int,
    length: int,
    method: str,
    kind: str | None,
    batch: int = BATCH,
    with_reference: bool = True,
) -> tuple[int, list[Any]]:
    """Labelled samples until the first alarm (0 for none), and the tests that gave it."""
    rng = np.random.default_rng(seed)
    calibration = world.draw(rng, CALIBRATION)
    predictor = predictor_of(method, world, seed).calibrate(calibration)
    reference = calibration if with_reference else None
    monitor = Monitor(
        predictor, 0.1, reference=reference, false_alarm=FALSE_ALARM, random_state=seed
    )
    for start in range(0, length, batch):
        monitor.observe(world.draw(rng, batch, kind if start >= CHANGE else None))
        found = monitor.verdict()
        if found.alarm:
            return start + batch, list(found.alarms)
    return 0, []


def false_alarms(world: World, streams: int, length: int, method: str, reference: bool) -> None:
    """Print the share of streams without a change that had an alarm, and of which kind."""
    kinds: Counter[str] = Counter()
    total = 0
    for seed in range(streams):
        # A monitor looks after every sample, whatever the batches: large ones only save time.
        at, alarms = run_stream(world, seed, length, method, None, length, reference)
        total += at > 0
        kinds.update({test.kind for test in alarms})
    share = total / streams
    error = np.sqrt(share * (1.0 - share) / streams)
    print(
        f"| {method} | {'yes' if reference else 'no'} | {streams} x {length} | {FALSE_ALARM} | "
        f"{share:.4f} ({error:.4f}) | {dict(kinds)} |",
        flush=True,
    )


def delays(world: World, streams: int, length: int, method: str, kind: str) -> None:
    """Print how long alarms took after a change, and which tests gave the first."""
    waited, before = [], 0
    kinds: Counter[str] = Counter()
    for seed in range(streams):
        at, alarms = run_stream(world, 10_000 + seed, CHANGE + length, method, kind)
        if 0 < at <= CHANGE:
            before += 1
            continue
        waited.append(at - CHANGE if at else length + BATCH)
        kinds.update({f"{test.kind}: {test.part}" for test in alarms})
    low, middle, high = np.quantile(waited, [0.1, 0.5, 0.9])
    missed = sum(own > length for own in waited)
    common = "; ".join(f"{name} ({count})" for name, count in kinds.most_common(3))
    print(
        f"| {method} | {kind} | {middle:.0f} | {low:.0f} to {high:.0f} | {missed} | {before} | "
        f"{common} |",
        flush=True,
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--length", type=int, default=3000)
    parser.add_argument("--drifts", type=int, default=40)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    world = World()
    warnings.simplefilter("ignore", TrustSetsWarning)
    if options.drifts:
        print("| method | change | median delay | 10% to 90% | none | before | first alarms by |")
        print("|---|---|---|---|---|---|---|")
        for method in options.methods:
            for kind in options.kinds:
                delays(world, options.drifts, 4000, method, kind)
    if options.streams:
        print("| method | reference | streams | stated | alarms (s.e.) | by kind |")
        print("|---|---|---|---|---|---|")
        for method in options.methods:
            false_alarms(world, options.streams, options.length, method, reference=True)
        if "standard" in options.methods:
            false_alarms(world, options.streams, options.length, "standard", reference=False)


if __name__ == "__main__":
    main()
