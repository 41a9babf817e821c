"""What ``per_class="auto"`` changes: the default before and after, on all tasks.

    python studies/class_defaults.py --bench DIR

Both are calibrated on one half of a pool and measured on the other, for seeds 1 to 10. The table
shows the mean of each and the mean difference with its standard error over the seeds.
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from recipes import Task, make_task

from trustsets import ConditionalConformal, TrustSetsWarning, evaluate
from trustsets._common.atomic import atomic_path
from trustsets._common.progress import progress_bar

TASKS = ("cifar100", "cifar100lt", "ham10000", "simulated", "digits", "library")
SEEDS = range(1, 11)
ALPHA = 0.1
BELOW = "class.below_0.5"
COLUMNS = {
    "size": "size",
    "coverage": "coverage",
    "conf_trust.gap": "Conf x Trust",
    "conf_rank.gap": "Conf x Rank",
    "class.gap": "class",
    "class.shortfall": "class (under)",
    "class.macro": "macro coverage",
    BELOW: "classes below 50%",
}
PLACES = {"coverage": 3, "class.macro": 3, BELOW: 3}
RESULT = Path(__file__).resolve().parents[1] / "docs" / "results" / "class_defaults.md"


def measure(task: Task, seed: int, per_class: bool | str) -> list[float]:
    """The numbers of one split."""
    calibration, test = task.pool.split(0.5, seed=seed, stratify=True)
    predictor = ConditionalConformal(trust=task.trust, per_class=per_class)
    sets = predictor.calibrate(calibration).predict_set(test, alpha=ALPHA)
    trust = task.trust.score(test.features, test.predicted)
    kinds = ["conf_trust", "conf_rank", "class"]
    found: Any = evaluate(sets, test, trust, metrics=kinds, n_bootstrap=2).metrics
    means = {"size": sets.sizes.mean(), "coverage": sets.covers(test.labels).mean()}
    return [float(means[name] if name in means else found[name].value) for name in COLUMNS]


def rows_of(name: str, values: NDArray[np.float64]) -> list[str]:
    """Three rows of the table from values of shape (seeds, 2, columns)."""
    places = [PLACES.get(column, 2) for column in COLUMNS]
    change = values[:, 1] - values[:, 0]
    error = change.std(axis=0, ddof=1) / np.sqrt(len(values))
    before, after = (
        [f"{mean:.{digits}f}" for mean, digits in zip(part, places, strict=True)]
        for part in values.mean(axis=0)
    )
    moved = [
        f"{mean:+.{digits}f} ± {own:.{digits}f}"
        for mean, own, digits in zip(change.mean(axis=0), error, places, strict=True)
    ]
    parts = (("`per_class=False`", before), ('`"auto"`', after), ("change", moved))
    return [f"| {name} | {what} | " + " | ".join(cells) + " |" for what, cells in parts]


def main() -> None:
    """Measure all tasks and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True, help="folder of real outputs")
    options = parser.parse_args()
    warnings.simplefilter("ignore", TrustSetsWarning)
    head = ["task", "default", *COLUMNS.values()]
    lines = [
        "# The default for rare classes, before and after",
        "",
        "Made by `studies/class_defaults.py`: alpha = 0.1, seeds 1 to 10; the change with its "
        "standard error over the seeds.",
        "",
        "| " + " | ".join(head) + " |",
        "|---|---|" + "---:|" * len(COLUMNS),
    ]
    with progress_bar("splits", len(TASKS) * len(SEEDS), wanted=True) as advance:
        for name in TASKS:
            task, values = make_task(name, options.bench), []
            for seed in SEEDS:
                values.append([measure(task, seed, setting) for setting in (False, "auto")])
                advance(1)
            lines += rows_of(name, np.array(values))
    with atomic_path(RESULT) as path:
        path.write_text("\n".join(lines) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
