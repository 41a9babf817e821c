"""Methods at the same alpha, and at the mean set size of the default, on data that ship.

Writes docs/results/equal_size.md; five splits of each task, some minutes.
"""

import argparse
from pathlib import Path

from trustsets import (
    Bins,
    ConditionalConformal,
    Confidence,
    ModelOutputs,
    MondrianConformal,
    Predictor,
    StandardConformal,
    Trust,
    TrustScore,
    compare,
)
from trustsets.demo import load

PAGE = Path(__file__).parents[1] / "docs" / "results" / "equal_size.md"
ABOUT = """
alpha = 0.1, halves of the samples; mean (standard error) over seeds. The first block of each table
has every method at alpha = 0.1. In the second block, each has the alpha that gives the mean set
size of the default on the test samples (labels take no part in the choice), and is judged against
the same target of 90%. *Shortfall* is how many points of coverage are missing, averaged over bins;
*excess risk* is how far coverage is from the target where a classifier can tell, and its shortfall
the part below it. In bold: within 0.1 of the best of the block.
"""


def methods(trust: TrustScore | None) -> dict[str, Predictor]:
    """Predictors by name, the reference last."""
    cells = Bins(Confidence(), Trust(), counts=6, spacing="quantile")
    return {
        "split conformal": StandardConformal(),
        "Mondrian, 6 x 6 cells": MondrianConformal(by=cells, trust=trust),
        "the paper's setting": ConditionalConformal.paper(trust=trust),
        "default": ConditionalConformal(trust=trust),
    }


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    sections = [f"# Methods at equal mean set size\n{ABOUT}"]
    for name in ("real", "digits"):
        task = load(name)
        samples = ModelOutputs.concat([task.calibration, task.test]).with_trust(task.trust)
        predictors: dict[str, list[Predictor]] = {method: [] for method in methods(task.trust)}
        tests = []
        for seed in range(1, options.seeds + 1):
            calibration, test = samples.split(0.5, seed=seed)
            tests.append(test)
            for method, predictor in methods(task.trust).items():
                predictors[method].append(predictor.calibrate(calibration))
        table = compare(predictors, outputs=tests, equal_size="default", n_bootstrap=200)
        sections.append(f"## {task.title}\n\n{task.description}\n\n{table.to_markdown()}")
    PAGE.write_text("\n".join(sections))


if __name__ == "__main__":
    main()
