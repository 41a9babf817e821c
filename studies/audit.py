"""False alarms and power of `find_regions`, on simulated data sets.

    python studies/audit.py [--null 1000] [--power 200] [--seed 0]

The first table simulates data without regions: coverage is the same everywhere, in several ways
that differ in how misses depend on one another. It counts how often any region is reported, which
may happen for 5% of the data sets at most. The second table plants one region, a conjunction of
two conditions, and compensates elsewhere so that coverage on average stays 1 - alpha. It counts how
often a region is reported, and how often one that shares more than half of its samples with the
planted one (of the samples in either).
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trustsets import APS, ModelOutputs, StandardConformal
from trustsets.auditing import Regions, find_regions
from trustsets.engine import fit_quantiles
from trustsets.metrics import binomial_interval

ALPHA = 0.1
SHARES, DEPTHS, SIZES = (0.05, 0.1, 0.2), (0.05, 0.1, 0.2), (1000, 2000, 5000, 10_000)

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Rng = np.random.Generator
Null = Callable[[Rng], Regions]


def samples(rng: Rng, n: int) -> tuple[ModelOutputs, Floats]:
    """Outputs with features, labels and groups, and trust scores."""
    logits = 1.5 * rng.normal(size=(n, 10))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    groups = {"sex": rng.choice(["f", "m"], n), "site": rng.choice(list("abcdef"), n)}
    outputs = ModelOutputs(
        logits=logits, labels=labels, features=rng.normal(size=(n, 8)), groups=groups
    )
    return outputs, rng.gamma(4.0, 0.4, size=n)


def audit_hits(rng: Rng, n: int, hits: Callable[[ModelOutputs, Floats], Bools]) -> Regions:
    """Regions of simulated samples whose hits come from a function."""
    outputs, trust = samples(rng, n)
    return find_regions(hits(outputs, trust), outputs.with_trust(trust), alpha=ALPHA)


def uniform(n: int, coverage: float) -> Null:
    """Independent hits with one probability."""
    return lambda rng: audit_hits(rng, n, lambda outputs, trust: rng.random(n) < coverage)


def one_calibration(n: int, n_calibration: int) -> Null:
    """Hits given one calibration of STANDARD: their common probability has a Beta law."""
    rank = int(np.ceil((1.0 - ALPHA) * (n_calibration + 1)))

    def run(rng: Rng) -> Regions:
        coverage = float(rng.beta(rank, n_calibration + 1 - rank))
        return uniform(n, coverage)(rng)

    return run


def falling(n: int) -> Null:
    """Coverage that varies from 1 - alpha up to 1 with the confidence, and is never below."""

    def hits(rng: Rng, outputs: ModelOutputs) -> Bools:
        rate = (
            1.0 - ALPHA + ALPHA * np.maximum(0.0, 2.0 * stats.rankdata(outputs.confidence) / n - 1)
        )
        found: Bools = rng.random(n) < rate
        return found

    return lambda rng: audit_hits(rng, n, lambda outputs, trust: hits(rng, outputs))


def left_out_standard(n: int) -> Null:
    """Leave-one-out sets of STANDARD: exactly the samples of the largest scores are missed."""
    rank = int(np.ceil((1.0 - ALPHA) * n))

    def run(rng: Rng) -> Regions:
        scores = rng.random(n)
        # Without itself, a sample is missed if its score exceeds the rank-th of the n - 1 others.
        covered = stats.rankdata(scores, method="ordinal") <= rank
        return audit_hits(rng, n, lambda outputs, trust: covered)

    return run


def left_out_conditional(n: int) -> Null:
    """Leave-one-out sets over polynomials of degree 3 in confidence and trust.

    A sample is covered by the fit of all others exactly if its score is at most the fit of all.
    """

    def hits(rng: Rng, outputs: ModelOutputs, trust: Floats) -> Bools:
        u, v = (stats.rankdata(x) / n - 0.5 for x in (outputs.confidence, trust))
        phi = np.column_stack([u**i * v**j for i in range(4) for j in range(4 - i)])
        scores = rng.random(n)
        model = fit_quantiles(phi, scores, alpha=ALPHA)
        covered = scores <= model.fitted(phi)
        covered[model.basic_points] = True
        return covered

    return lambda rng: audit_hits(rng, n, lambda outputs, trust: hits(rng, outputs, trust))


def standard_sets(n: int, n_calibration: int) -> Null:
    """Real sets of StandardConformal, whose randomised scores do not depend on the input."""

    def run(rng: Rng) -> Regions:
        outputs, trust = samples(rng, n + n_calibration)
        seed = int(rng.integers(2**31))
        predictor = StandardConformal(
            score=APS(own_mass="random"), temperature=None, allow_empty=True, random_state=seed
        )
        first, rest = np.arange(n_calibration), np.arange(n_calibration, n + n_calibration)
        sets = predictor.calibrate(outputs.take(first)).predict_set(outputs.take(rest), alpha=ALPHA)
        by = ("confidence", "trust", "groups", "components")
        return find_regions(sets, outputs.take(rest).with_trust(trust[rest]), by=by)

    return run


NULLS: dict[str, Null] = {
    "independent, coverage 0.9, n = 200": uniform(200, 0.9),
    "independent, coverage 0.9, n = 2,000": uniform(2000, 0.9),
    "one calibration of 200 samples, n = 2,000": one_calibration(2000, 200),
    "one calibration, coverage 0.85 everywhere, n = 2,000": uniform(2000, 0.85),
    "coverage 0.9 up to 1, n = 2,000": falling(2000),
    "leave-one-out, STANDARD, n = 2,000": left_out_standard(2000),
    "leave-one-out, CONDITIONAL, n = 1,000": left_out_conditional(1000),
    "sets of StandardConformal, 500 and n = 1,000": standard_sets(1000, 500),
}


def false_alarms(repeats: int, seed: int) -> None:
    """Print how often data without regions give any."""
    print(f"| data without regions ({repeats:,} data sets each) | false alarms | 95% interval |")
    print("|---|--:|--:|")
    for place, (name, null) in enumerate(NULLS.items()):
        alarms = sum(
            len(null(np.random.default_rng([seed, place, turn]))) > 0 for turn in range(repeats)
        )
        low, high = binomial_interval(alarms, repeats)
        print(f"| {name} | {alarms / repeats:.1%} | {low:.1%} to {high:.1%} |", flush=True)


def planted(rng: Rng, n: int, share: float, depth: float) -> tuple[bool, bool]:
    """Whether any region is reported, and whether one agrees with the planted region."""
    outputs, trust = samples(rng, n)
    side = np.sqrt(share)
    confident = stats.rankdata(outputs.confidence) / n > 1.0 - side
    region = confident & (stats.rankdata(trust) / n <= side)
    own = region.mean()
    rate = np.where(region, 1.0 - ALPHA - depth, 1.0 - ALPHA + depth * own / (1.0 - own))
    found = find_regions(rng.random(n) < rate, outputs.with_trust(trust), alpha=ALPHA).regions
    agrees = False
    for item in found:
        inside = np.zeros(n, dtype=bool)
        inside[np.asarray(item.members)] = True
        agrees |= bool((inside & region).sum() > 0.5 * (inside | region).sum())
    return len(found) > 0, agrees


def power(repeats: int, seed: int) -> None:
    """Print how often planted regions are found."""
    print(f"\n| share | coverage inside | {' | '.join(f'n = {n:,}' for n in SIZES)} |")
    print(f"|--:|--:|{'--:|' * len(SIZES)}")
    for share in SHARES:
        for depth in DEPTHS:
            cells = []
            for n in SIZES:
                draws = [np.random.default_rng([seed, 99, turn]) for turn in range(repeats)]
                found: Any = np.mean([planted(rng, n, share, depth) for rng in draws], axis=0)
                cells.append(f"{found[0]:.0%} ({found[1]:.0%})")
            row = " | ".join(cells)
            print(f"| {share:.0%} | {1.0 - ALPHA - depth:.2f} | {row} |", flush=True)
    print(f"\nReported at all, and in brackets in agreement; {repeats} data sets each.")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--null", type=int, default=1000, help="data sets without regions")
    parser.add_argument("--power", type=int, default=200, help="data sets with a planted region")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.null:
        false_alarms(options.null, options.seed)
    if options.power:
        power(options.power, options.seed)


if __name__ == "__main__":
    main()
