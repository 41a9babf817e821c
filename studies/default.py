"""What each part of the default does: components, tuning share, learned functions, prevalence.

    python studies/default.py --bench DIR [--seeds 1 2] [--tables components learned]

Half of the pool of each data set calibrates (or the first `n` samples of that half), at most 4,000
samples of the other half test, alpha = 0.1. Every row also has split conformal sets of the same
mean size. ERT is `ERT_L1_miscoverage` of the package covmetrics in percentage points, by histogram
gradient boosting on log Trust, the five largest probabilities, their entropy and 20 principal
components of the features; "under" is its under-coverage component, and "class" the mean
under-coverage of the classes. Seconds are processor time of `calibrate` and `predict_set`.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from covmetrics import ERT
from covmetrics.losses import L1_miscoverage, L1_miscoverage_under
from sklearn.ensemble import HistGradientBoostingClassifier

from trustsets import (
    APS,
    Bins,
    ClassBias,
    ConditionalConformal,
    Confidence,
    Intercept,
    Learned,
    ModelOutputs,
    Polynomial,
    PrincipalComponents,
    StandardConformal,
    Trust,
    TrustScore,
)
from trustsets.errors import TrustSetsWarning

ALPHA = 0.1
MOST_TESTED = 4000
BOOSTING = {"max_iter": 100, "max_leaf_nodes": 8, "learning_rate": 0.05}
RANKS = (Confidence(transform="rank"), Trust(transform="rank"))
SMOOTH = Polynomial(5, RANKS, penalty=10.0)
NAMES = ("cifar100", "cifar100lt", "ham10000")
COLUMNS = "coverage size full% ERT under class | split:ERT under class | calibrate predict".split()


def load(folder: Path, name: str) -> tuple[ModelOutputs, TrustScore]:
    """The pool with its trust, and the trust score."""
    with np.load(folder / f"{name}_train.npz") as train:
        trust = TrustScore().fit(train["features"], train["labels"])
    with np.load(folder / f"{name}_pool.npz") as pool:
        outputs = ModelOutputs(**{part: pool[part] for part in ("logits", "features", "labels")})
    return outputs.with_trust(trust), trust


def components(count: int, penalty: float = 10.0) -> PrincipalComponents:
    """Components of the training features."""
    return PrincipalComponents(count, penalty, source="training")


def settings(table: str) -> dict[str, dict[str, Any]]:
    """Parameters of `ConditionalConformal` by name."""
    rows: dict[str, dict[str, Any]] = {"the default": {}}
    twelve = components(12)
    if table in ("components", "small"):
        rows["constants"] = {"basis": Intercept()}
        rows["6 x 6 cells of Conf x Trust"] = {"basis": Bins(Confidence(), Trust(), counts=6)}
        rows["polynomial"] = {"basis": SMOOTH}
        for count, penalty in ((8, 10.0), (12, 10.0), (20, 10.0), (12, 0.0), (20, 0.0)):
            name = f"polynomial, {count} components, penalty {penalty:g}"
            rows[name] = {"basis": SMOOTH + components(count, penalty)}
    if table == "learned":
        learned = SMOOTH + twelve + Learned()
        for share in (0.1, 0.2, 0.3):
            rows[f"share {share}"] = {"basis": learned, "tuning_fraction": share}
        for name, other in {
            "without components": SMOOTH + Learned(),
            "constants and learned": Intercept() + Learned(),
            "80 trees": SMOOTH + twelve + Learned(n_trees=80),
            "6 leaves": SMOOTH + twelve + Learned(n_leaves=6),
            "quantiles .5, .9": SMOOTH + twelve + Learned((0.5, 0.9)),
            "quantiles .8, .9, .95": SMOOTH + twelve + Learned((0.8, 0.9, 0.95)),
        }.items():
            rows[f"share 0.2, {name}"] = {"basis": other, "tuning_fraction": 0.2}
    if table == "prevalence":
        for exponent in (None, 0.0, 0.5, 0.75, 1.0):
            bias = None if exponent is None else ClassBias(prevalence=exponent)
            rows[f"prevalence {exponent}"] = {"class_bias": bias}
        return rows
    return {name: {"class_bias": ClassBias(prevalence=0.75)} | row for name, row in rows.items()}


def excess_risk(table: np.ndarray, covered: np.ndarray) -> list[float]:
    """ERT and its under-coverage component, in percentage points."""
    model = ERT(HistGradientBoostingClassifier, **BOOSTING)
    losses = [L1_miscoverage, L1_miscoverage_under]
    risks = model.evaluate_multiple_losses(table, covered.astype(float), ALPHA, all_losses=losses)
    return [100.0 * float(risk) for risk in risks.values()]


def class_under(covered: np.ndarray, codes: np.ndarray) -> float:
    """Mean under-coverage of the classes, in percentage points."""
    shares = [covered[codes == code].mean() for code in np.unique(codes)]
    return float(100.0 * np.maximum(1.0 - ALPHA - np.array(shares), 0.0).mean())


def inputs(test: ModelOutputs, trust: TrustScore) -> np.ndarray:
    """What the classifier of ERT sees."""
    p = np.sort(test.probabilities, axis=1)[:, ::-1]
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
    fitted = components(20).fit_features(trust.training_features_)
    log_trust = np.log(np.maximum(test.require_trust("ERT"), 1e-12))
    return np.column_stack([log_trust, p[:, :5], entropy, fitted.design(test)[:, 1:]])


def covered_at_size(scores: np.ndarray, size: float, codes: np.ndarray) -> np.ndarray:
    """Whether split conformal sets of this mean size contain the labels."""
    top = scores.argmin(axis=1)
    low, high = 0.0, float(scores.max())
    for _ in range(50):
        middle = 0.5 * (low + high)
        mean = np.maximum((scores <= middle).sum(axis=1), 1).mean()
        low, high = (middle, high) if mean < size else (low, middle)
    rows = np.arange(len(scores))
    return np.asarray((scores[rows, codes] <= high) | (top == codes))


def measure(
    setting: dict[str, Any], calibration: ModelOutputs, test: ModelOutputs, trust: TrustScore
) -> list[float]:
    """The cells of one row."""
    start = time.process_time()
    predictor = ConditionalConformal(trust=trust, **setting).calibrate(calibration)
    fitted = time.process_time()
    sets = predictor.predict_set(test, alpha=ALPHA)
    predicted = time.process_time()
    codes = test.require_labels("ERT")
    covered, table = sets.covers(test.labels), inputs(test, trust)
    split = StandardConformal(score=APS(scale="tail")).calibrate(calibration)
    same = covered_at_size(split.scores(test), sets.sizes.mean(), codes)
    return [
        covered.mean(),
        sets.sizes.mean(),
        100.0 * (sets.sizes == test.n_classes).mean(),
        *excess_risk(table, covered),
        class_under(covered, codes),
        *excess_risk(table, same),
        class_under(same, codes),
        fitted - start,
        predicted - fitted,
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--tables", nargs="+", default=["components", "small", "learned", "prevalence"]
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore", TrustSetsWarning)
    print(f"seeds {options.seeds}: {' '.join(COLUMNS)}")
    for name in NAMES:
        pool, trust = load(options.bench, name)
        for title in options.tables:
            if title == "learned" and name == "ham10000":
                continue  # too few samples to learn from
            n = 1000 if title == "small" else len(pool)
            print(f"\n{name}, {title}, n = {min(n, len(pool) // 2):,}")
            for row, setting in settings(title).items():
                cells = []
                for seed in options.seeds:
                    calibration, test = pool.split(0.5, seed=seed, stratify=True)
                    draws = np.random.default_rng(seed)
                    calibration = calibration.take(draws.permutation(len(calibration))[:n])
                    test = test.take(draws.permutation(len(test))[:MOST_TESTED])
                    cells.append(measure(setting, calibration, test, trust))
                numbers = " ".join(f"{value:7.3f}" for value in np.mean(cells, axis=0))
                print(f"{row:45s} {numbers}", flush=True)


if __name__ == "__main__":
    main()
