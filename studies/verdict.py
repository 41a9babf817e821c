"""How often the verdict of a report calls a valid predictor broken, and a broken one valid.

Split conformal prediction with continuous scores, alpha = 0.1: the scores of n calibration samples
are uniform, so that the coverage of the predictor is its threshold, and the number of covered ones
among m test samples is binomial. "Interval" is the rule that ignores the calibration draw (the 95%
interval of the test samples lies below 1 - alpha), "verdict" that of `trustsets.report.judge` for
marginal coverage (2.5%) with `check_guarantee`, "5%" the same test at 5%. A predictor with a true
coverage of 0.88 was calibrated for alpha = 0.12, and so on.
"""

import argparse

import numpy as np
from scipy import stats

from trustsets.metrics import binomial_interval, check_guarantee, markdown_table
from trustsets.scores import conformal_rank

ALPHA = 0.1
CALIBRATION = (200, 500, 1000, 2000, 5000, 10_000)
TEST = (500, 2000, 10_000, 50_000)
TRUE = (0.88, 0.85, 0.80)


def draw(rng: np.random.Generator, n: int, m: int, asked: float, repeats: int) -> np.ndarray:
    """Covered test samples of predictors that were calibrated for the miscoverage `asked`."""
    rank = conformal_rank(n, asked)
    # The threshold is the rank-th smallest of n uniform scores.
    coverage = rng.beta(rank, n + 1 - rank, size=repeats)
    return rng.binomial(m, coverage)


def largest_called_low(n: int, m: int, significance: float) -> int:
    """The largest number of covered test samples that the test calls too low."""
    low, high = -1, m
    while high - low > 1:
        middle = (low + high) // 2
        if check_guarantee(middle, m, n, ALPHA)[0] <= significance:
            low = middle
        else:
            high = middle
    return low


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    header = ["calibration", "test", "valid: interval", "verdict", "5%"]
    header += [f"true {true:g}: verdict" for true in TRUE]
    rows = []
    for n in CALIBRATION:
        for m in TEST:
            rng = np.random.default_rng([options.seed, n, m])
            strict, loose = (largest_called_low(n, m, level) for level in (0.025, 0.05))
            valid = draw(rng, n, m, ALPHA, options.repeats)
            by_interval = binomial_interval(valid, m)[1] < 1.0 - ALPHA
            rates = [by_interval.mean(), (valid <= strict).mean(), (valid <= loose).mean()]
            for true in TRUE:
                broken = draw(rng, n, m, round(1.0 - true, 10), options.repeats)
                rates.append((broken <= strict).mean())
            rows.append([f"{n:,}", f"{m:,}", *(f"{100 * rate:.1f}%" for rate in rates)])
    print(markdown_table(header, rows, n_names=2))
    worst = max(float(row[4].rstrip("%")) for row in rows)
    error = 100 * stats.norm.ppf(0.975) * np.sqrt(0.05 * 0.95 / options.repeats)
    print(f"Largest rate of the 5% test: {worst:.1f}% (error of the simulation {error:.1f}).")


if __name__ == "__main__":
    main()
