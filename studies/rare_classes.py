"""Sizes and coverage by class of the methods for rare classes, with noise floors.

    python studies/rare_classes.py --bench DIR [--seeds 3]

It writes docs/results/rare_classes.md, which docs/howto/rare_classes.md shows. DIR has the outputs
that docs/results/data.md describes.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from trustsets import (
    ClassBias,
    Classes,
    ClusteredConformal,
    ConditionalConformal,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Predictor,
    StandardConformal,
    TrustScore,
    evaluate,
)
from trustsets.basis import Basis
from trustsets.statistics import Confidence, Trust

PAGE = Path(__file__).parents[1] / "docs" / "results" / "rare_classes.md"
METHODS: dict[str, Callable[[ModelOutputs], Predictor]] = {
    "`StandardConformal()`": lambda pool: StandardConformal(),
    '`MondrianConformal(by="class")`': lambda pool: MondrianConformal(by="class"),
    "`ClusteredConformal()`": lambda pool: ClusteredConformal(),
    "default": lambda pool: ConditionalConformal(),
    "default, `class_bias=None`": lambda pool: ConditionalConformal(class_bias=None),
    "default, `ClassBias(prevalence=1.0)`": lambda pool: ConditionalConformal(
        class_bias=ClassBias(prevalence=1.0)
    ),
    "polynomial + `Classes(penalty=3)`": lambda pool: ConditionalConformal(
        basis=_polynomial(pool) + Classes(penalty=3.0)
    ),
    "default, `per_class=True`": lambda pool: ConditionalConformal(per_class=True),
}

BY_CANDIDATE = ("polynomial + `Classes(penalty=3)`", "default, `per_class=True`")
MOST_CLASSES = 30
"""Thresholds of every candidate class take minutes with more classes."""


def _polynomial(pool: ModelOutputs) -> Basis:
    basis = Polynomial(degree=3, of=(Confidence("rank"), Trust("rank")))
    return basis + Groups() if pool.groups else basis


def load(folder: Path, name: str) -> ModelOutputs:
    """The held-out samples of a set of outputs, with trust from its training samples."""
    train, pool = (dict(np.load(folder / f"{name}_{part}.npz")) for part in ("train", "pool"))
    trust = TrustScore().fit(train["features"].astype(np.float32), train["labels"])
    groups = {key: pool[key] for key in ("sex", "age_band", "site") if key in pool}
    return ModelOutputs(
        logits=pool["logits"].astype(np.float32),
        features=pool["features"].astype(np.float32),
        labels=pool["labels"],
        groups=groups or None,
    ).with_trust(trust)


def measure(
    pool: ModelOutputs, make: Callable[[ModelOutputs], Predictor], seed: int
) -> list[float]:
    """Size, coverage, shortfall by class with its noise floor, macro coverage."""
    calibration, test = pool.split(0.5, seed=seed, stratify=True)
    sets = make(pool).calibrate(calibration).predict_set(test, alpha=0.1)
    table = evaluate(sets, test, metrics=["class"]).tables["class"]
    return [
        float(sets.sizes.mean()),
        float(sets.covers(test.labels).mean()),
        table.shortfall.value,
        table.shortfall.floor,
        table.macro.value,
    ]


def table(name: str, pool: ModelOutputs, seeds: int) -> Iterator[str]:
    """Lines of the table of one set of outputs."""
    yield f"| {name} | size | coverage | shortfall by class | noise floor | macro coverage |"
    yield "|---|--:|--:|--:|--:|--:|"
    for title, make in METHODS.items():
        if pool.n_classes > MOST_CLASSES and title in BY_CANDIDATE:
            continue
        runs = [measure(pool, make, seed) for seed in range(1, seeds + 1)]
        size, coverage, short, floor, macro = np.mean(runs, axis=0)
        error = np.std(runs, axis=0, ddof=1)[2] / np.sqrt(len(runs))
        yield (
            f"| {title} | {size:.2f} | {coverage:.3f} | {short:.1f} ({error:.1f}) "
            f"| {floor:.1f} | {macro:.3f} |"
        )


def main() -> None:
    """Write one table for each set of outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    lines = ["# Rare classes", "", "<!-- --8<-- [start:tables] -->"]
    for name in ("ham10000", "cifar100lt"):
        for line in ("", *table(name, load(arguments.bench, name), arguments.seeds)):
            print(line, flush=True)
            lines.append(line)
    lines += ["", "<!-- --8<-- [end:tables] -->"]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
