"""An audit without a test set against an evaluation on the other half of real outputs.

    python studies/audit_against_test.py --bench DIR [--names ham10000 cifar100 cifar100lt]

Half of the outputs calibrates. `audit` leaves out each of its samples once; `evaluate` measures the
same predictor on the other half. The first table has numbers side by side with their 95% intervals.
The second compares the coverage of classes and groups: the mean square of the differences in units
of their standard errors, which is about 1 if left-out samples are as good as test samples; and
processor seconds of calibration and leaving out, evaluation, search for regions, and excess risk.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trustsets import (
    ConditionalConformal,
    ModelOutputs,
    StandardConformal,
    TrustScore,
    audit,
    evaluate,
)
from trustsets.auditing import excess_risk, find_regions
from trustsets.metrics import BinTable, Estimate, title
from trustsets.predictors import Predictor

NUMBERS = ("coverage", "size", "conf_trust.gap", "class.gap", "class.macro", "class.worst")
GROUPS = ("sex", "age_band", "site")


def load(bench: Path, name: str) -> tuple[ModelOutputs, TrustScore]:
    """Held-out outputs, and the trust score of the training samples."""
    pool, train = np.load(bench / f"{name}_pool.npz"), np.load(bench / f"{name}_train.npz")
    outputs = ModelOutputs(
        logits=pool["logits"].astype(np.float64),
        features=pool["features"].astype(np.float32),
        labels=pool["labels"].astype(np.int64),
        groups={key: pool[key] for key in GROUPS if key in pool.files} or None,
        classes=np.arange(pool["logits"].shape[1]),
    )
    trust = TrustScore().fit(train["features"].astype(np.float32), train["labels"].astype(np.int64))
    return outputs, trust


def squares(one: BinTable, other: BinTable) -> list[float]:
    """Squared differences of coverages in standard errors, of bins with 20 samples or more."""
    found = []
    for label, n, k in zip(one.labels, one.count.tolist(), one.covered.tolist(), strict=True):
        if label in other.labels:
            place = other.labels.index(label)
            m, j = int(other.count[place]), int(other.covered[place])
            p = (k + j) / (n + m)
            if min(n, m) >= 20 and 0.0 < p < 1.0:
                found.append((k / n - j / m) ** 2 / (p * (1.0 - p) * (1.0 / n + 1.0 / m)))
    return found


def text(number: Estimate, floor: bool) -> str:
    """A number with its interval and, of a gap, its noise floor."""
    more = f"; floor {number.floor:.2f}" if floor else ""
    return f"{number.value:.3f} ({number.lower:.3f} to {number.upper:.3f}{more})"


def timed(seconds: list[float], part: Callable[[], Any]) -> Any:
    """What a part of an audit gives; its processor seconds are noted."""
    start = time.process_time()
    found = part()
    seconds.append(time.process_time() - start)
    return found


def compare(
    name: str, method: str, predictor: Predictor, data: ModelOutputs, trust: TrustScore
) -> list[str]:
    """Print the numbers of one method on one data set; return its row of the second table."""
    calibration, test = data.split(0.5)
    metrics = ("conf_trust", "class", *(["groups"] if data.groups else []))
    seconds: list[float] = []
    calibration, test = calibration.with_trust(trust), test.with_trust(trust)
    predictor.calibrate(calibration)
    left = timed(seconds, lambda: predictor.leave_one_out(0.1))
    samples = predictor.calibration_
    audited = timed(seconds, lambda: audit(predictor, sets=left, metrics=metrics))
    regions = timed(seconds, lambda: find_regions(left, samples))
    risk = timed(seconds, lambda: excess_risk(left, samples))
    sets = predictor.predict_set(test, 0.1)
    tested = evaluate(sets, test, metrics=metrics)
    rows = [
        [title(key), *(text(own.metrics[key], key.endswith("gap")) for own in (audited, tested))]
        for key in (*NUMBERS, *(["group:site.gap"] if data.groups else []))
    ]
    other = excess_risk(sets, test)
    rows.append(["Excess risk, shortfall", *(text(own.under, True) for own in (risk, other))])
    rows.append(["Regions", *(str(len(own)) for own in (regions, find_regions(sets, test)))])
    for row in rows:
        print("| " + " | ".join([name, method, *row]) + " |", flush=True)
    keys = [key for key in audited.tables if key == "class" or key.startswith("group:")]
    z = [square for key in keys for square in squares(audited.tables[key], tested.tables[key])]
    return [name, method, f"{np.mean(z):.2f} ({len(z)} bins)", *(f"{s:.1f}" for s in seconds)]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--names", nargs="+", default=["ham10000", "cifar100", "cifar100lt"])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| data | method | number | audit, no test set | other half |\n|---|---|---|--:|--:|")
    rows = []
    for name in given.names:
        data, trust = load(given.bench, name)
        for method, predictor in (
            ("STANDARD", StandardConformal()),
            ("CONDITIONAL", ConditionalConformal(trust=trust)),
        ):
            rows.append(compare(name, method, predictor, data, trust))
    print("\n| data | method | mean square | leave out | evaluate | regions | excess risk |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
