"""APS or softmax (LAC) scores for the default, by the number of classes.

    python studies/score_choice.py --bench DIR [--seeds 1 2 3 4] [--sets cifar100 cifar100lt:20b]
                                   [--samples 1000]

On development outputs, and on subsets of their classes: ``cifar100lt:20b`` keeps 20 random classes
(the letter is the seed), ``cifar100:super`` adds up the probabilities of each of the 20
superclasses. Splits and measures are those of the benchmark (`benchmarks/coverage`, by its
environment), without groups. Each row also has split conformal sets of the same mean size, by APS
and by LAC scores.
"""

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "coverage"))
from data_sets import Task, Trained, _finish, _task, _training
from measures import Judge
from splits import ALPHA, Split

from trustsets import APS, ConditionalConformal, Softmax

__all__ = ["ALPHA", "MEASURES", "Judge", "Split", "load"]  # default_parts.py has them from here

SETS = [
    *("cifar100", "cifar100lt", "cifar100:50c", "cifar100lt:50c", "cifar100:30d", "cifar100lt:30d"),
    *("cifar100:20b", "cifar100lt:20b", "cifar100:super", "cifar100:15e", "cifar100lt:15e"),
    *("cifar100:10a", "cifar100lt:10a", "ham10000"),
]
SCORES = {"APS": APS(scale="tail"), "softmax": Softmax(scale="tail", floor=0.01)}
MEASURES = ("coverage", "size", "ert", "ert_under", "class_under")


def load(folder: Path, name: str) -> Task:
    """Outputs of all classes, of some of them, or of superclasses."""
    base, _, part = name.partition(":")
    with (
        np.load(folder / f"{base}_train.npz") as train,
        np.load(folder / f"{base}_pool.npz") as pool,
    ):
        features, labels = train["features"].astype(np.float32), train["labels"].astype(np.int64)
        logits, pool_labels = pool["logits"].astype(np.float64), pool["labels"].astype(np.int64)
        pool_features = pool["features"].astype(np.float32)
    if part == "super":
        with np.load(folder / "cifar100_names.npz") as names:
            codes = np.unique(names["superclass"], return_inverse=True)[1]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p = (p / p.sum(axis=1, keepdims=True)) @ np.eye(20)[codes]
        logits, labels, pool_labels = (
            np.log(np.maximum(p, 1e-30)),
            codes[labels],
            codes[pool_labels],
        )
    elif part:
        order = np.random.default_rng(ord(part[-1])).permutation(logits.shape[1])
        kept = np.sort(order[: int(part[:-1])])
        train_rows, pool_rows = np.isin(labels, kept), np.isin(pool_labels, kept)
        features, labels = features[train_rows], np.searchsorted(kept, labels[train_rows])
        pool_features, logits = pool_features[pool_rows], logits[pool_rows][:, kept]
        pool_labels = np.searchsorted(kept, pool_labels[pool_rows])
    trained = Trained(
        labels=pool_labels,
        features=pool_features,
        raw=pool_features[:, :1],  # the second judge has nothing to see here
        logits=logits,
        train_features=features,
        train_labels=labels,
    )
    return _task(_finish(trained) | _training(trained) | {"seconds": np.array(0.0)})


def main() -> None:
    """Print a row for each set and score: means over splits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--samples", type=int, default=10**9, help="calibration samples, at most")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| data | score | coverage | size | ERT | under | class | APS split: ERT | under | class")
    print("| LAC split: ERT | under | class |")
    for name in options.sets:
        task = load(options.bench, name)
        for title, score in SCORES.items():
            cells = []
            for seed in options.seeds:
                split = Split.draw(task, seed)
                order = np.random.default_rng(seed).permutation(split.calibration)
                rows = np.sort(order[: options.samples])
                calibration = task.outputs(rows, without=("groups",))
                test = task.outputs(split.test, without=("groups",))
                predictor = ConditionalConformal(score=score, trust=task.trust_score)
                mask = predictor.calibrate(calibration).predict_set(test, alpha=ALPHA).mask
                judge, total = Judge(split), int(mask.sum())
                measured = [
                    judge.measure(mask),
                    judge.measure(judge.of_size(total)),
                    judge.measure(judge.of_size(total, judge.lac_order)),
                ]
                cells.append([[sets[key] for key in MEASURES] for sets in measured])
            ours, aps, lac = np.mean(cells, axis=0)
            numbers = [
                f"{ours[0]:.3f}",
                *(f"{value:.2f}" for value in (*ours[1:], *aps[2:], *lac[2:])),
            ]
            print(f"| {name} | {title} | {' | '.join(numbers)} |", flush=True)


if __name__ == "__main__":
    main()
