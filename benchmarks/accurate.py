"""Very accurate classifiers: time a test sample and share of fallbacks, a row a data set.

Run with ``python benchmarks/accurate.py``. The simulated classifiers are those of the tests: nearly
all APS scores are 0, and softmax scores in the tail scale run over fifteen orders of magnitude. To
compare two versions, run it with each of them first on PYTHONPATH. Times are processor time, so
that other work on the machine counts little; calibration samples and test samples are 1,500 each.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from trustsets import APS, ConditionalConformal, Softmax, TrustScore
from trustsets.errors import TrustSetsError
from trustsets.scores import Score
from trustsets.status import Status

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine"))
from accurate_families import FAMILIES

SIZE = 1500
SCORES: dict[str, Score] = {"APS": APS(scale="tail"), "softmax": Softmax(scale="tail")}
ALPHAS = (0.1, 0.02, 0.01)


def measured(name: str, score: Score, alpha: float) -> tuple[str, ...]:
    """Seconds to calibrate, microseconds a test sample, fallbacks in percent, coverage and size."""
    outputs = FAMILIES[name].draw(0, 3 * SIZE, grouped=False)
    train, calibration, test = (outputs.take(np.arange(k, 3 * SIZE, 3)) for k in range(3))
    trust = TrustScore().fit(np.asarray(train.features), np.asarray(train.labels))
    start = time.process_time()
    try:
        predictor = ConditionalConformal(score=score, trust=trust).calibrate(calibration)
        middle = time.process_time()
        sets = predictor.predict_set(test, alpha=alpha)
    except TrustSetsError as error:
        return "fails", "", "", "", str(error)[:30]
    end = time.process_time()
    slow = np.mean(sets.status == Status.FALLBACK)
    covered = np.mean(sets.covers(np.asarray(test.labels)))
    return (
        f"{middle - start:.2f}",
        f"{1e6 * (end - middle) / SIZE:.0f}",
        f"{100.0 * slow:.1f}",
        f"{covered:.3f}",
        f"{np.mean(sets.sizes):.2f}",
    )


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    measured("ten classes", SCORES["APS"], 0.1)  # compiles
    columns = ("calibrate s", "us a sample", "fallback %", "coverage", "size")
    table = Table("classifier", "score", "alpha", *columns, title="Accurate classifiers")
    for name in FAMILIES:
        for label, score in SCORES.items():
            for alpha in ALPHAS:
                table.add_row(name, label, f"{alpha:g}", *measured(name, score, alpha))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
