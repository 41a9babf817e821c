"""Excess risk of the target coverage against the `covmetrics` package, on the same inputs.

    python benchmarks/ert.py [--bench DIR] [--permutations 19]

Half of the pool of each data set calibrates STANDARD, the paper's method and the default at alpha
0.1; the other half is measured. Both packages see the same table of inputs and the same hits.
covmetrics runs with scikit-learn's histogram gradient boosting, once with scikit-learn's own
settings and once with ours, so that the second row differs from ours in folds alone. Figures are
percentage points under 1 - alpha, and processor seconds. Without the folder of model outputs,
simulated data take their place.
"""

import argparse
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets import (
    ConditionalConformal,
    ModelOutputs,
    PredictionSets,
    StandardConformal,
    TrustScore,
)
from trustsets.auditing import excess_risk
from trustsets.errors import TrustSetsWarning
from trustsets.metrics.risk import BOOSTING, DEFAULT_KINDS, classifier_inputs, covariates

ALPHA = 0.1
GROUP_COLUMNS = ("sex", "age_band", "site")
Floats = NDArray[np.float64]


def saved(folder: Path, name: str) -> tuple[ModelOutputs, Any, Any]:
    """Outputs of the pool, and features and labels of the training samples."""
    with np.load(folder / f"{name}_pool.npz") as pool, np.load(folder / f"{name}_train.npz") as own:
        groups = {column: pool[column] for column in GROUP_COLUMNS if column in pool.files}
        parts = {part: pool[part] for part in ("logits", "features", "labels")}
        return ModelOutputs(**parts, groups=groups or None), own["features"], own["labels"]


def simulated() -> tuple[ModelOutputs, Any, Any]:
    """Ten overlapping classes, and logits that are twice too large."""
    rng = np.random.default_rng(0)
    means, labels = rng.normal(size=(10, 16)), rng.integers(10, size=6000)
    features = means[labels] + 1.5 * rng.normal(size=(6000, 16))
    logits = 2.0 * features @ means.T / 2.25 - (means**2).sum(axis=1) / 2.25
    outputs = ModelOutputs(logits=logits, features=features, labels=labels).take(np.arange(4000))
    return outputs, features[4000:], labels[4000:]


def tasks(folder: Path) -> Iterator[tuple[str, tuple[ModelOutputs, Any, Any]]]:
    """Data sets by name."""
    found = [name for name in ("cifar100", "ham10000") if (folder / f"{name}_pool.npz").exists()]
    for name in found:
        yield name, saved(folder, name)
    if not found:
        yield "simulated", simulated()


def methods(trust: TrustScore) -> dict[str, Any]:
    """Predictors by name."""
    return {
        "STANDARD": StandardConformal(),
        "the paper's": ConditionalConformal.paper(trust=trust),
        "the default": ConditionalConformal(trust=trust),
    }


def peer(settings: dict[str, Any]) -> Callable[[Floats, Floats, list[int]], float]:
    """The under half of covmetrics' L1 excess risk, in percentage points."""
    from covmetrics import ERT
    from covmetrics.losses import L1_miscoverage_under
    from sklearn.ensemble import HistGradientBoostingClassifier

    def run(table: Floats, covered: Floats, categories: list[int]) -> float:
        model = ERT(HistGradientBoostingClassifier, categorical_features=categories, **settings)
        return 100.0 * float(model.evaluate(table, covered, ALPHA, loss=L1_miscoverage_under))

    return run


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and processor seconds."""
    start = time.process_time()
    result = action()
    return result, time.process_time() - start


def measure(sets: PredictionSets, test: ModelOutputs, trust: Floats, permutations: int) -> str:
    """The cells of one row."""
    own, seconds = timed(lambda: excess_risk(sets, test.with_trust(trust), n_permutations=0))
    cells = [f"{own.under.value:.2f}", f"{seconds:.1f}"]
    risk = excess_risk(sets, test.with_trust(trust), n_permutations=permutations)
    cells += [
        f"{risk.under.lower:.2f} to {risk.under.upper:.2f}",
        f"{risk.under.floor:.2f}",
        f"{risk.p_value:.2f}",
    ]
    if importlib.util.find_spec("covmetrics") is None:
        return " | ".join([*cells, "", "", ""])
    columns = covariates(
        test.with_trust(trust), sets.sizes, None, DEFAULT_KINDS, 10, np.arange(len(test))
    )
    table, categories = classifier_inputs(columns)
    hits = sets.covers(test.labels).astype(np.float64)
    same, same_seconds = timed(lambda: peer(BOOSTING)(table, hits, categories))
    usual, _ = timed(lambda: peer({})(table, hits, categories))
    return " | ".join([*cells, f"{same:.2f}", f"{same_seconds:.1f}", f"{usual:.2f}"])


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    beside = Path(__file__).resolve().parents[2] / "shared" / "bench"
    default = Path(os.environ.get("TRUSTSETS_BENCH", beside))
    parser.add_argument("--bench", type=Path, default=default, help="folder of model outputs")
    parser.add_argument("--permutations", type=int, default=19)
    options = parser.parse_args()
    warnings.simplefilter("ignore", TrustSetsWarning)
    head = "data | method | under | seconds | 95% interval | noise floor | p | covmetrics, our "
    print(f"| {head}settings | seconds | covmetrics, scikit-learn's settings |")
    print(f"|---|---|{'--:|' * 8}")
    for name, (outputs, features, labels) in tasks(options.bench):
        trust = TrustScore().fit(features, labels)
        calibration, test = outputs.split(0.5, seed=1, stratify=True)
        values = test.with_trust(trust).require_trust("this benchmark")
        for title, predictor in methods(trust).items():
            sets = predictor.calibrate(calibration).predict_set(test, alpha=ALPHA)
            row = measure(sets, test, values, options.permutations)
            print(f"| {name} | {title} | {row} |", flush=True)


if __name__ == "__main__":
    main()
