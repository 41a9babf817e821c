"""Other populations simulated: coverage with and without `adapt`, errors of the estimates.

Run with ``python studies/shift.py``. Three kinds of label shift: other class prevalences alone,
where logits are those of the best classifier up to a temperature (`calibrated`) or further from it
(`uncalibrated`), and other class prevalences together with more noise, where the assumption of
`adapt` is false (`noisy`). Classes are not equally hard, so that marginal coverage depends on
prevalences.

Six kinds of covariate shift. The first feature says how hard a sample is, and the classifier does
not know it well. New samples are more often hard (`inputs`), with weights of features or, wrongly,
of confidence alone (`blind`); more often of low confidence (`confidence`); as in calibration
(`none`); more often hard and with other labels, too (`labels`); or harder than all calibration
samples (`outside`). In `blind`, `labels` and `outside`, the assumption of `adapt` is false.
"""

import argparse
import warnings
from collections.abc import Callable

import numpy as np

from trustsets import (
    ConditionalConformal,
    Confidence,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    PredictionSets,
    StandardConformal,
)
from trustsets.errors import TrustSetsWarning
from trustsets.predictors import Predictor

OLD = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
NEW = OLD[::-1]
MEANS = np.array([2.6, 2.2, 1.8, 1.4, 1.0])
RANKS = Polynomial(3, (Confidence("rank"),))
METHODS: dict[str, Callable[[], Predictor]] = {
    "STANDARD": lambda: StandardConformal(allow_empty=True),
    "CONDITIONAL": lambda: ConditionalConformal(basis=RANKS, allow_empty=True),
    "by class": lambda: MondrianConformal(by="class", allow_empty=True),
}

TILT = 3.0
INPUT_METHODS: dict[str, Callable[[], Predictor]] = {
    "STANDARD": METHODS["STANDARD"],
    "CONDITIONAL": METHODS["CONDITIONAL"],
    "by group": lambda: MondrianConformal(by=Groups("kind"), allow_empty=True),
}


def draw(prevalences: np.ndarray, n: int, rng: np.random.Generator, kind: str) -> ModelOutputs:
    """Samples with normal inputs around the mean of their class."""
    labels = rng.choice(len(prevalences), p=prevalences, size=n)
    noise = 1.6 if kind == "noisy" else 1.0
    x = noise * rng.normal(size=(n, len(prevalences))) + np.diag(MEANS)[labels]
    scale = 1.0 if kind == "uncalibrated" else MEANS
    return ModelOutputs(logits=1.5 * (x * scale - np.square(scale) / 2.0), labels=labels)


def run(kind: str, runs: int, n: int, m: int) -> None:
    """Print the table of one kind of shift."""
    source = "calibrated" if kind == "noisy" else kind
    rows: dict[str, list[list[float]]] = {}
    errors, inside, warned = [], [], 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        calibration, tuning = (draw(OLD, size, rng, source) for size in (n, 300))
        unlabelled, test = (draw(NEW, m, rng, kind) for _ in range(2))
        for name, make in METHODS.items():
            predictor = make().calibrate(calibration, tuning=tuning)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", TrustSetsWarning)
                adapted = predictor.adapt(unlabelled)
            if name == "STANDARD":
                prevalence = adapted.prevalence_
                errors.append(np.abs(prevalence.estimate - NEW))
                inside.append((prevalence.low <= NEW) & (NEW <= prevalence.high))
                warned += len(caught) > 0
            for label, method in ((name, predictor), (f"{name}, adapted", adapted)):
                sets = method.predict_set(test, 0.1)
                covered = sets.covers(test.labels)
                by_class = [covered[test.codes == y].mean() for y in range(len(NEW))]
                rows.setdefault(label, []).append([covered.mean(), sets.sizes.mean(), *by_class])
    print(f"\n{kind}: {runs} runs, n = {n}, m = {m}, alpha = 0.1")
    largest = np.mean(np.max(errors, axis=1))
    print(
        f"prevalences: mean error {np.mean(errors):.4f} (of the worst class {largest:.4f}); "
        f"95% intervals contain {np.mean(inside):.1%}; runs with a warning {warned / runs:.0%}"
    )
    print(f"{'method':24s} coverage   size   coverage of each class")
    for label, numbers in rows.items():
        mean = np.mean(numbers, axis=0)
        classes = " ".join(f"{value:.3f}" for value in mean[2:])
        print(f"{label:24s} {mean[0]:8.3f} {mean[1]:6.2f}   {classes}")


def draw_inputs(n: int, rng: np.random.Generator, kind: str = "none") -> ModelOutputs:
    """Samples whose first feature says how hard they are."""
    hard = rng.uniform(size=40 * n)
    if kind in ("inputs", "blind", "labels"):
        hard = hard[rng.uniform(size=hard.size) < np.exp(TILT * (hard - 1.0))]
    hard = hard + (1.2 if kind == "outside" else 0.0)
    z, limited = rng.normal(size=(hard.size, 5)), np.minimum(hard, 1.1)
    true = 3.0 * z * (1.2 - limited)[:, None]
    if kind == "labels":
        true /= 2.0
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    outputs = ModelOutputs(
        logits=3.0 * z * (1.2 - 0.7 * limited)[:, None],
        labels=labels,
        features=np.column_stack([hard, z]),
        groups={"kind": np.where(hard > 0.5, "hard", "easy")},
    )
    if kind == "confidence":
        chance = np.exp(-TILT * outputs.confidence)
        return outputs.take(np.flatnonzero(rng.uniform(size=hard.size) < chance)[:n])
    return outputs.take(slice(0, n))


def true_weights(outputs: ModelOutputs, kind: str) -> np.ndarray | None:
    """Density ratio of the new samples, up to a constant; None where there is none."""
    if kind in ("inputs", "blind", "labels"):
        assert outputs.features is not None
        return np.exp(TILT * outputs.features[:, 0].astype(np.float64))
    if kind == "confidence":
        return np.exp(-TILT * outputs.confidence)
    return None if kind == "outside" else np.ones(len(outputs))


def run_inputs(kind: str, runs: int, n: int, m: int) -> None:
    """Print the table of one kind of covariate shift."""
    of = "statistics" if kind in ("blind", "confidence", "none") else "features"
    rows: dict[str, list[list[float]]] = {}
    errors, sizes, warned = [], [], 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        calibration, tuning = draw_inputs(n, rng), draw_inputs(300, rng)
        unlabelled, test = (draw_inputs(m, rng, kind) for _ in range(2))
        for name, make in INPUT_METHODS.items():
            predictor = make().calibrate(calibration, tuning=tuning)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", TrustSetsWarning)
                adapted = predictor.adapt(unlabelled, shift="covariate", of=of)
                if name == "STANDARD":
                    ratios, truth = adapted.weights_, true_weights(calibration, kind)
                    if truth is not None:
                        errors.append(np.abs(ratios.weights - truth / truth.mean()).mean())
                    sizes.append(ratios.effective_size)
                    warned += len(caught) > 0
                for label, method in ((name, predictor), (f"{name}, adapted", adapted)):
                    rows.setdefault(label, []).append(_summary(method.predict_set(test, 0.1), test))
    error = f"mean error {np.mean(errors):.3f}" if errors else "no density ratio"
    print(f"\n{kind} (of {of}): {runs} runs, n = {n}, m = {m}, alpha = 0.1")
    print(f"weights: {error}; effective size {np.mean(sizes):.0f}; warned {warned / runs:.0%}")
    print(f"{'method':24s} coverage   size   full   easy   hard")
    for label, numbers in rows.items():
        mean = np.mean(numbers, axis=0)
        groups = " ".join(f"{value:6.3f}" for value in mean[3:])
        print(f"{label:24s} {mean[0]:8.3f} {mean[1]:6.2f} {mean[2]:6.1%} {groups}")


def _summary(sets: PredictionSets, test: ModelOutputs) -> list[float]:
    covered, kinds = sets.covers(test.labels), test.groups["kind"]
    parts = [covered[kinds == name] for name in ("easy", "hard")]
    means = [part.mean() if part.size else np.nan for part in parts]
    return [covered.mean(), sets.sizes.mean(), sets.mask.all(axis=1).mean(), *means]


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--m", type=int, default=2000)
    options = parser.parse_args()
    for kind in ("calibrated", "uncalibrated", "noisy"):
        run(kind, options.runs, options.n, options.m)
    for kind in ("none", "inputs", "confidence", "blind", "labels", "outside"):
        run_inputs(kind, options.runs, options.n, options.m)


if __name__ == "__main__":
    main()
