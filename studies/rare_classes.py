"""Average size against under-coverage by class, for methods that look at classes.

    python studies/rare_classes.py --bench DIR

Every cell (task, score, method, seed) is one calibration and one prediction on a half/half split
of the pool, stratified by class. It is appended to a JSON-lines file as soon as it is done, so that
a study that was stopped continues; ``--fresh`` starts anew. Then the table, the figures and the
page of results are written again; ``--only-tables`` does nothing else. ``--test N`` measures on N
test samples, drawn at random (0: all). It and ``--seeds`` take one number, or one for each task.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rare_class_figures import draw_frontier, put_table, write_page
from recipes import Remembered, load, read

from trustsets import (
    APS,
    ClassBias,
    Classes,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    PredictionSets,
    Softmax,
    StandardConformal,
    Status,
    Trust,
    TrustScore,
    TrustSetsWarning,
    evaluate,
)
from trustsets._common.quantiles import conformal_quantile
from trustsets.basis.auto import GROUP_PENALTY
from trustsets.predictors import InterpolatedConformal, RankCalibratedConformal
from trustsets.scores import Score

Floats = NDArray[np.float64]

HERE = Path(__file__).resolve().parents[1]
RESULTS, FIGURES = HERE / "docs" / "results", HERE / "docs" / "figures"
TASKS = ("ham10000", "cifar100lt", "cifar100")
ALPHA = 0.1
SMOOTH = Polynomial(3, (Confidence(transform="rank"), Trust(transform="rank")), penalty=10.0)
PENALTIES = (0.0, 1.0, 3.0, 10.0, 30.0)
TAUS = (0.25, 0.5, 0.75, 0.9, 0.97)
POWERS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True, eq=False)
class Task:
    """A pool of outputs, its trust score, and the shares of the classes in training."""

    name: str
    pool: ModelOutputs
    trust: Remembered
    shares: Floats


def make_task(name: str, bench: Path) -> Task:
    """Read outputs from the benchmark folder."""
    train, pool = load(bench, name)
    labels = train["labels"].astype(np.int64)
    trust = Remembered(TrustScore().fit(train["features"], labels), pool)
    counts = np.bincount(labels, minlength=pool.n_classes) + 1.0
    return Task(name, pool, trust, counts / counts.sum())


@dataclass
class PrevalenceAdjusted:
    """PAS: one threshold for ``-P(y | x) / weight(y)``, the weight a power of the training share.

    The published power is 1. It is a score of its own, whatever the score of the other methods.
    """

    weights: Floats

    def calibrate(self, outputs: ModelOutputs) -> "PrevalenceAdjusted":
        """Keep the scores of the labels."""
        codes = outputs.require_labels("calibrate")
        own = -outputs.probabilities[np.arange(len(outputs)), codes] / self.weights[codes]
        self.scores = np.sort(own)
        return self

    def predict_set(self, outputs: ModelOutputs, alpha: float) -> PredictionSets:
        """Sets that are never empty."""
        scores = -outputs.probabilities / self.weights
        threshold = conformal_quantile(self.scores, alpha)
        mask = scores <= np.maximum(threshold, scores.min(axis=1, keepdims=True))
        status = np.full(len(outputs), Status.EXACT, np.int8)
        thresholds = np.full(len(outputs), threshold)
        return PredictionSets(mask, thresholds, status, alpha, outputs.classes)


Make = Callable[[Task], Any]


def prevalence_adjusted(power: float, task: Task) -> PrevalenceAdjusted:
    """PAS with a power of the shares in training."""
    return PrevalenceAdjusted(task.shares**power)


def conditional(score: Score, task: Task, **words: Any) -> ConditionalConformal:
    """CONDITIONAL with its default parts but for `words`."""
    tail: Score = APS(scale="tail") if isinstance(score, APS) else Softmax(scale="tail")
    return ConditionalConformal(tail, trust=task.trust, **words)


def with_classes(score: Score, penalty: float, task: Task) -> ConditionalConformal:
    """Polynomials and groups as in the default, and an indicator of each class."""
    groups = task.pool.groups
    basis = SMOOTH + Groups(penalty=GROUP_PENALTY) if groups else SMOOTH
    basis = basis + Classes(penalty=penalty)
    return conditional(score, task, basis=basis, class_bias=ClassBias())


def methods(score: Score) -> dict[str, dict[str, Make]]:
    """Makers by family and by the setting of its dial; one without a dial has one, ``""``."""

    def fixed(make: Callable[..., Any], *words: Any, **named: Any) -> Make:
        return lambda task: make(*words, score=score, **named)

    return {
        "STANDARD": {"": fixed(StandardConformal)},
        "class-conditional": {"": fixed(MondrianConformal, "class")},
        "clustered": {"": fixed(ClusteredConformal)},
        "RC3P": {"": fixed(RankCalibratedConformal)},
        "INTERP-Q": {f"tau {tau:g}": fixed(InterpolatedConformal, tau) for tau in TAUS},
        "STANDARD, prevalence": {
            f"gamma {power:g}": fixed(StandardConformal, class_bias=ClassBias(prevalence=power))
            for power in POWERS
        },
        "PAS": {
            f"gamma {power:g}": partial(prevalence_adjusted, power) for power in (0.5, 1.0, 1.5)
        },
        "CONDITIONAL": {"": partial(conditional, score)},
        "CONDITIONAL, prevalence": {
            f"gamma {power:g}": partial(conditional, score, class_bias=ClassBias(prevalence=power))
            for power in (0.0, 0.5, 1.0)
        },
        "CONDITIONAL + Classes": {
            f"penalty {penalty:g}": partial(with_classes, score, penalty) for penalty in PENALTIES
        },
        "CONDITIONAL, per_class=True": {"": partial(conditional, score, per_class=True)},
    }


SCORES: dict[str, Score] = {"APS": APS(), "softmax": Softmax()}


def measure(task: Task, make: Make, seed: int, n_test: int) -> dict[str, Any]:
    """Size and coverage by class of one method on one split."""
    calibration, test = task.pool.split(0.5, seed=seed, stratify=True)
    if 0 < n_test < len(test):
        test = test.split(n_test / len(test), seed=seed)[0]
    start = time.process_time()
    sets = make(task).calibrate(calibration).predict_set(test, alpha=ALPHA)
    seconds = time.process_time() - start
    found = evaluate(
        sets, test, task.trust, metrics=("class", "conf_trust", "conf_rank"), n_bootstrap=2
    ).metrics
    covered, codes = sets.covers(test.labels), test.require_labels("the study")
    counts = np.bincount(codes, minlength=test.n_classes)
    own = np.bincount(codes, covered, test.n_classes)[counts > 0] / counts[counts > 0]
    cell = {
        "coverage": float(covered.mean()),
        "size": float(sets.sizes.mean()),
        "full": float(sets.mask.all(axis=1).mean()),
        "macro": float(own.mean()),
        "below half": float(np.mean(own < 0.5)),
        "under": found["class.shortfall"].value,
        "under floor": found["class.shortfall"].floor,
        "class gap": found["class.gap"].value,
        "conf_trust": found["conf_trust.gap"].value,
        "conf_rank": found["conf_rank.gap"].value,
        "seconds": seconds,
    }
    return {name: round(value, 5) for name, value in cell.items()}


def cells(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is asked for, in the order it is done: all methods of one split together."""
    for seed in range(1, max(options.seeds.values()) + 1):
        for name in options.names:
            if seed > options.seeds[name]:
                continue
            for score in options.scores:
                for family, makers in methods(SCORES[score]).items():
                    for dial in makers:
                        yield {
                            "task": name,
                            "score": score,
                            "family": family,
                            "dial": dial,
                            "seed": seed,
                            "test": options.test[name],
                        }


def study(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Do the cells that the file does not hold yet, and return those that are asked for."""
    rows = read(options.cells)
    tasks: dict[str, Task] = {}
    asked = list(cells(options))
    for key in asked:
        if options.only_tables or any(key.items() <= row.items() for row in rows):
            continue
        name = key["task"]
        if name not in tasks:
            tasks = {name: make_task(name, options.bench)}
        make = methods(SCORES[key["score"]])[key["family"]][key["dial"]]
        row = key | measure(tasks[name], make, key["seed"], key["test"])
        rows.append(row)
        with options.cells.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*(row[word] for word in (*key, "size", "under", "macro", "seconds")), flush=True)
    # In the order of the methods, whatever the order in which they were done.
    return complete([row for key in asked for row in rows if key.items() <= row.items()])


def complete(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells of the splits on which every method is done: only those can be compared."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["task"], row["score"], row["seed"]), []).append(row)
    wanted = {score: sum(map(len, methods(SCORES[score]).values())) for score in SCORES}
    return [row for key, own in found.items() if len(own) == wanted[key[1]] for row in own]


def parse() -> argparse.Namespace:
    """Options of the command line."""
    bench = os.environ.get("TRUSTSETS_BENCH", str(HERE.parent / "shared" / "bench"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, default=Path(bench))
    parser.add_argument("--cells", type=Path, default=RESULTS / "rare_classes.jsonl")
    parser.add_argument("--names", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--scores", nargs="+", choices=list(SCORES), default=list(SCORES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 3, 3])
    parser.add_argument("--test", type=int, nargs="+", default=[0], help="test samples")
    parser.add_argument("--fresh", action="store_true", help="forget earlier cells")
    parser.add_argument("--only-tables", action="store_true")
    options = parser.parse_args()
    for word in ("seeds", "test"):
        given = getattr(options, word)
        if len(given) not in (1, len(options.names)):
            parser.error(f"--{word} takes one number, or one for each task.")
        given = given * len(options.names) if len(given) == 1 else given
        setattr(options, word, dict(zip(options.names, given, strict=True)))
    return options


def main() -> None:
    """Run the study, and write its page and figures."""
    options = parse()
    # Small classes are the subject of the study.
    warnings.simplefilter("ignore", TrustSetsWarning)
    if options.fresh:
        options.cells.unlink(missing_ok=True)
    rows = study(options)
    write_page(rows, RESULTS / "rare_classes.md")
    for score in dict.fromkeys(row["score"] for row in rows):
        suffix = "" if score == "APS" else f"_{score}"
        own = [row for row in rows if row["score"] == score]
        draw_frontier(own, FIGURES / f"rare_classes{suffix}.png")
        if score == "APS":
            put_table(own, HERE / "docs" / "rare_classes.md")


if __name__ == "__main__":
    main()
