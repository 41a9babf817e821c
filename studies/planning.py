"""What `plan` promises against what calibrations of that size reach.

    python studies/planning.py [--runs 4000]

Every run draws a calibration set of the planned size and computes its coverage: exactly, from known
laws of the scores (scores, groups), or on fresh samples (basis functions).
"""

import argparse
from collections.abc import Callable

import numpy as np

from trustsets._arrays import Floats
from trustsets._quantiles import conformal_rank
from trustsets.engine import fit_quantiles
from trustsets.planning import CoverageLaw

SCORES = [
    (0.1, 0.02, 0.95),
    (0.1, 0.05, 0.9),
    (0.1, 0.01, 0.8),
    (0.05, 0.02, 0.95),
    (0.05, 0.03, 0.99),
    (0.2, 0.05, 0.9),
    (0.3, 0.1, 0.95),
    (0.01, 0.01, 0.9),
    (0.123, 0.04, 0.8),
    (0.5, 0.1, 0.99),
]
GROUPS = [
    (0.1, 0.05, 0.9, 0.5),
    (0.1, 0.03, 0.95, 0.1),
    (0.05, 0.05, 0.9, 0.01),
    (0.2, 0.1, 0.8, 0.3),
]
FUNCTIONS = [
    (0.1, 0.05, 0.9, 2),
    (0.1, 0.05, 0.9, 6),
    (0.1, 0.03, 0.95, 4),
    (0.2, 0.05, 0.9, 4),
    (0.05, 0.03, 0.9, 3),
    (0.1, 0.05, 0.9, 11),
]
_NEW_SAMPLES = 4000


def coverages(rng: np.random.Generator, n: int, alpha: float, runs: int) -> Floats:
    """Coverage of each of many calibrations on n scores without ties."""
    rank = conformal_rank(n, alpha)
    return np.array([1.0 if rank > n else np.partition(rng.random(n), rank - 1)[rank - 1]
                     for _ in range(runs)])  # fmt: skip


def group_coverages(
    rng: np.random.Generator, total: int, share: float, alpha: float, runs: int
) -> Floats:
    """The same for a group that has a random part of all samples; full sets count as 2."""
    sizes = rng.binomial(total, share, size=runs)
    small = CoverageLaw(alpha).smallest
    return np.array([2.0 if n < small else coverages(rng, n, alpha, 1)[0] for n in sizes.tolist()])


def function_coverages(
    rng: np.random.Generator, n: int, functions: int, alpha: float, runs: int
) -> Floats:
    """Coverage of exact thresholds over polynomials in one statistic, on fresh samples."""

    def draw(size: int) -> tuple[Floats, Floats]:
        x = rng.uniform(-1.0, 1.0, size=size)
        return np.vander(x, functions), (1.0 + x**2) * rng.exponential(size=size)

    found = np.empty(runs)
    for run in range(runs):
        model = fit_quantiles(*draw(n), alpha=alpha)
        phi, scores = draw(_NEW_SAMPLES)
        found[run] = np.mean(scores <= model.thresholds(phi).values)
    # Coverage is counted on finitely many samples; their noise is taken out of its spread.
    counted, mean = found.var(ddof=1), found.mean()
    true = max(counted - mean * (1.0 - mean) / _NEW_SAMPLES, 0.0)
    return np.asarray(mean + (found - mean) * np.sqrt(true / counted))


def line(kind: str, setting: tuple[float, ...], n: int, promised: float, found: Floats) -> str:
    """One row of the table."""
    alpha, within, probability = setting[:3]
    reached = float(np.mean(np.abs(found - (1.0 - alpha)) <= within))
    error = np.sqrt(reached * (1.0 - reached) / found.size)
    more = "" if len(setting) == 3 else f"{setting[3]:g}"
    cells = [kind, f"{alpha:g}", f"{within:g}", f"{probability:g}", more, f"{n:,}"]
    cells += [f"{promised:.4f}", f"{reached:.4f}", f"{error:.4f}", f"{found.mean():.4f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--fits", type=int, default=300)
    options = parser.parse_args()
    rng, runs = np.random.default_rng(0), options.runs
    show: Callable[..., None] = lambda *row: print(line(*row), flush=True)  # noqa: E731
    print("| kind | alpha | within | asked | share / p | n | promised | reached | s.e. | mean |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for alpha, within, probability in SCORES:
        law = CoverageLaw(alpha)
        n = law.needed(within, probability)
        promised = float(law.probability(np.array([n]), within)[0])
        found = coverages(rng, n, alpha, runs)
        show("scores", (alpha, within, probability), n, promised, found)
    for alpha, within, probability, share in GROUPS:
        law = CoverageLaw(alpha)
        n = law.needed_in_all(within, probability, share, law.needed(within, probability))
        found = group_coverages(rng, n, share, alpha, runs)
        show("group", (alpha, within, probability, share), n, probability, found)
    for alpha, within, probability, functions in FUNCTIONS:
        law = CoverageLaw(alpha)
        n = law.needed(within, probability)
        promised = float(law.probability(np.array([n]), within)[0])
        found = function_coverages(rng, n, functions, alpha, options.fits)
        show("functions", (alpha, within, probability, functions), n, promised, found)


if __name__ == "__main__":
    main()
