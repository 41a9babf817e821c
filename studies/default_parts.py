"""What was tried beside the default's function class, one part after the other.

    python studies/default_parts.py --bench DIR [--seeds 41 42 43 44 45 46]

On the development outputs and subsets of their classes (see `score_choice.py`), from 100 to 10,000
calibration samples; splits and judge are those of the benchmark, without groups. The first row is
the default's first function class without a choice, and each of the others adds one part to the one
above. Columns are means over cells of data and samples, differences to the first row with standard
errors over cells, and split conformal sets of the same mean size.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from score_choice import ALPHA, MEASURES, Judge, Split, load

from trustsets import (
    ClassBias,
    ConditionalConformal,
    Confidence,
    Entropy,
    Learned,
    Polynomial,
    PrincipalComponents,
    Trust,
)

LARGE = [("cifar100", 10_000), ("cifar100lt", 10_000)]
MEDIUM = [(name, 3000) for name in ("cifar100", "cifar100lt", "cifar100:20b", "cifar100lt:20b")]
MEDIUM += [(name, 3000) for name in ("cifar100:15e", "cifar100lt:10a", "cifar100:super")]
MEDIUM += [("ham10000", 1770), ("cifar100", 1000), ("cifar100lt", 1000), ("ham10000", 800)]
MEDIUM += [("cifar100:10a", 800), ("cifar100lt:15e", 600), ("cifar100:20f", 600)]
SMALL = [("cifar100:10a", 300), ("ham10000", 300), ("cifar100lt:20f", 300), ("cifar100", 300)]
SMALL += [("cifar100", 100), ("ham10000", 100), ("cifar100lt", 200), ("cifar100lt:10a", 100)]
GROUPS = {"500 samples and more": LARGE + MEDIUM, "100 to 300 samples": SMALL}
RANKS = [kind(transform="rank") for kind in (Confidence, Trust, Entropy)]
FEW, MANY = 100, 500  # tuning samples


def function_class(n: int, penalty: float, fewest: int, entropy: bool) -> Any:
    """Polynomials and components, a function learned from enough samples, and the entropy."""
    basis: Any = Polynomial(5, tuple(RANKS[:2]), penalty)
    basis = basis + PrincipalComponents(12, penalty, source="training")
    if 0.2 * n >= fewest:
        basis = basis + Learned()
    return basis + Polynomial(1, (RANKS[2],)) if entropy else basis


def rows(n: int) -> Iterator[tuple[str, float, Callable[..., Any]]]:
    """Name, alpha and maker of each row; with few samples nothing is added but the temperature."""
    enough = 0.2 * n >= FEW

    def make(*parts: Any, **setting: Any) -> Callable[..., Any]:
        setting |= {"basis": function_class(n, *parts), "class_bias": ClassBias(prevalence=0.75)}
        return lambda trust: ConditionalConformal(trust=trust, tuning_fraction=0.2, **setting)

    yield "as it is", ALPHA, make(10.0, MANY, False)
    yield "as it is, at alpha = 0.095", 0.095, make(10.0, MANY, False)
    yield "learned from 100 tuning samples on", ALPHA, make(10.0, FEW, False)
    yield "entropy", ALPHA, make(10.0, FEW, enough)
    penalty = 5.0 if enough else 10.0
    yield "penalty 5", ALPHA, make(penalty, FEW, enough)
    yield "temperature", ALPHA, make(penalty, FEW, enough, temperature="tuning")


def measure(folder: Path, name: str, n: int, seeds: list[int]) -> dict[str, Any]:
    """Means over splits of the measures of each row, and of split conformal sets of its size."""
    task, cells = load(folder, name), dict[str, list[Any]]()
    for seed in seeds:
        split = Split.draw(task, seed)
        order = np.random.default_rng(seed).permutation(split.calibration)
        calibration = task.outputs(np.sort(order[:n]), without=("groups",))
        test, judge = task.outputs(split.test, without=("groups",)), Judge(split)
        for title, alpha, make in rows(n):
            predictor = make(task.trust_score).calibrate(calibration)
            mask = predictor.predict_set(test, alpha=alpha).mask
            both = judge.measure(mask), judge.measure(judge.of_size(int(mask.sum())))
            cells.setdefault(title, []).append([[sets[key] for key in MEASURES] for sets in both])
    return {title: np.mean(values, axis=0) for title, values in cells.items()}


def main() -> None:
    """Print a table for each group of cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[41, 42, 43, 44, 45, 46])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for group, cells in GROUPS.items():
        measured = [measure(options.bench, *cell, options.seeds) for cell in cells]
        print(f"\n{group}, {len(cells)} cells\n")
        print("| | size | ERT | under | class | ERT, difference | under, difference |", end="")
        print(" ratio to split: ERT | under |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        for title in measured[0]:
            table = np.array([[cell[title], cell["as it is"]] for cell in measured])
            sizes = np.exp(np.mean(np.log(table[:, 0, 0, 1] / table[:, 1, 0, 1])))
            ours, split = table[:, 0].mean(axis=0)
            differences = table[:, 0, 0] - table[:, 1, 0]
            errors = differences.std(axis=0, ddof=1) / np.sqrt(len(cells))
            gaps = [f"{differences[:, k].mean():+.2f} ({errors[k]:.2f})" for k in (2, 3)]
            ratios = [f"{ours[k] / split[k]:.2f}" for k in (2, 3)]
            means = [f"{sizes:.3f}", *(f"{ours[k]:.2f}" for k in (2, 3, 4))]
            print(f"| {' | '.join([title, *means, *gaps, *ratios])} |", flush=True)


if __name__ == "__main__":
    main()
