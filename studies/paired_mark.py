"""The mark beside printed numbers on a fixed split, with and without pairing.

    python studies/paired_mark.py ../shared/bench

The long-tailed stand-in plays both sides. The *printed* side fits ten temperatures by gradient
steps, as the authors' code does, and rounds means and errors to two digits. *Our* side has the
exact temperature, once with the same rules and once with the trust score of the paper's text in
place of the code's. A useful mark is rare in the first case and common in the second.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets import ConditionalConformal, MondrianConformal, TrustScore, evaluate
from trustsets.errors import TrustSetsWarning
from trustsets.metrics import Evaluation
from trustsets_paper.baselines import AuthorsStandard
from trustsets_paper.protocol import Options
from trustsets_paper.sources import read_source
from trustsets_paper.tables import MAIN_COLUMNS, Number, Printed, share_by_chance, summarise

SEEDS, BATCH, START, RATE, STOP = range(1, 11), 128, 1.3, 0.1, 1e-4


def gradient_temperature(logits: NDArray[Any], labels: NDArray[Any], seed: int) -> float:
    """Temperature after epochs of gradient steps that no longer move it."""
    rng, temperature = np.random.default_rng(seed), START
    for _ in range(1000):
        before = temperature
        order = rng.permutation(len(labels))
        for start in range(0, len(labels), BATCH):
            rows = order[start : start + BATCH]
            scaled = logits[rows] / temperature
            p = np.exp(scaled - scaled.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            mean = (p * logits[rows]).sum(axis=1) - logits[rows, labels[rows]]
            temperature += RATE * float(mean.mean()) / temperature**2
        if abs(temperature - before) < STOP:
            break
    return temperature


def evaluations(parts: tuple[Any, Any], temperature: float | str) -> dict[str, Evaluation]:
    """STANDARD, NAIVE and CONDITIONAL at a temperature."""
    calibration, test = parts
    options: dict[str, Any] = {
        "temperature": temperature,
        "allow_empty": True,
        "tuning_fraction": 0.0,
    }
    methods: dict[str, Any] = {
        "STANDARD": AuthorsStandard(**options),
        "NAIVE": MondrianConformal.paper(**options),
        "CONDITIONAL": ConditionalConformal.paper(**options),
    }
    bins = Options(bins="code").partitions("cifar100lt")
    names = ["conf_trust", "conf_rank", "class"]
    return {
        name: evaluate(
            method.calibrate(calibration).predict_set(test), test, metrics=names, bins=bins
        )
        for name, method in methods.items()
    }


def main(folder: Path) -> None:
    """Print how many of the 15 numbers are marked."""
    warnings.simplefilter("ignore", TrustSetsWarning)
    source = read_source("cifar100lt", folder)
    pool, train = source.parts["pool"], source.train
    assert train is not None
    rules: tuple[dict[str, Any], ...] = ({"neighbour": 2, "squared": True}, {"normalize": False})
    code, text = (
        TrustScore(**rule).fit(*train).score(np.asarray(pool.features), pool.predicted)
        for rule in rules
    )
    sides = {
        name: pool.with_trust(values).split(0.5, seed=1, stratify=True)
        for name, values in (("same rules", code), ("the text's trust score", text))
    }
    calibration = sides["same rules"][0]
    logits = np.asarray(calibration.logits, dtype=np.float64)
    labels = calibration.require_labels("a temperature")
    temperatures = [gradient_temperature(logits, labels, seed) for seed in SEEDS]
    theirs = [evaluations(sides["same rules"], value) for value in temperatures]
    print(f"temperatures of the printed side: {min(temperatures):.4f} to {max(temperatures):.4f}")
    for name, parts in sides.items():
        ours = evaluations(parts, "tuning")
        marks = []
        for paired in (False, True):
            numbers = []
            for method, evaluation in ours.items():
                for column in MAIN_COLUMNS:
                    target = summarise([item[method] for item in theirs], column)
                    shown = Printed(round(target.mean, 2), round(target.standard_error, 2))
                    number = summarise([evaluation], column)
                    numbers.append(
                        Number(number.mean, number.standard_error, printed=shown, paired=paired)
                    )
            marks.append(sum(number.differs for number in numbers))
        print(f"{name}: {marks[0]} of {len(numbers)} marked before, {marks[1]} with pairing")
    print(f"by chance: {15 * share_by_chance(10, paired=True):.1f} of 15 with pairing")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
