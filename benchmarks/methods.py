"""The paper's tables on real model outputs: STANDARD, NAIVE, GROUPWISE, CONDITIONAL, PCA.

    python benchmarks/methods.py --bench DIR --output docs/results

Methods are run as the paper runs them (`.paper()` presets, temperature fitted on the
calibration half, empty sets allowed), on half/half splits of the pool stratified by class,
seeds 1 to 10; the last row of each block is this package's default with sets that are never
empty. Bins follow the paper's text. Prints Markdown and writes it with the heatmaps.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets import (
    APS,
    RAPS,
    ConditionalConformal,
    Groups,
    ModelOutputs,
    MondrianConformal,
    PrincipalComponents,
    Softmax,
    StandardConformal,
    TrustScore,
    TrustSetsWarning,
    compare,
    evaluate,
)
from trustsets.metrics import Evaluation
from trustsets.plots import coverage_heatmaps
from trustsets.predictors import Predictor
from trustsets.scores import Score

HERE = Path(__file__).resolve().parents[1]
DEFAULT_BENCH = os.environ.get("TRUSTSETS_BENCH", str(HERE.parent / "shared" / "bench"))
SCORES: dict[str, Score] = {"softmax": Softmax(), "APS": APS(), "RAPS": RAPS()}
Make = Callable[[Score, "Remembered"], Predictor]


class Remembered:
    """A trust score that measures every sample once: splits of one pool share the answers."""

    def __init__(self, trust: TrustScore, outputs: ModelOutputs) -> None:
        assert outputs.features is not None
        values = trust.score(outputs.features, outputs.predicted)
        keys = [row.tobytes() for row in np.ascontiguousarray(outputs.features)]
        self.known = dict(zip(keys, values.tolist(), strict=True))

    def score(self, features: Any, predicted: Any) -> NDArray[np.float64]:
        """Look the samples up; `predicted` is a function of them."""
        return np.array([self.known[row.tobytes()] for row in np.ascontiguousarray(features)])


PAPER_WORDS: dict[str, Any] = {
    "temperature": "tuning",
    "tuning_fraction": 0.0,
    "allow_empty": True,
}
PAPER_METHODS: dict[str, Make] = {
    "STANDARD": lambda score, trust: StandardConformal(score, **PAPER_WORDS),
    "CONDITIONAL (NAIVE)": lambda score, trust: MondrianConformal.paper(trust, score=score),
    "CONDITIONAL": lambda score, trust: ConditionalConformal.paper(trust, score=score),
    "PCA FEATURES": lambda score, trust: ConditionalConformal.paper(
        trust, score=score, basis=PrincipalComponents(20)
    ),
}
GROUP_COLUMNS = ("sex", "age_band", "site")


def groupwise(column: str) -> Make:
    """Return the paper's GROUPWISE for one column."""
    return lambda score, trust: MondrianConformal(Groups(column), score=score, **PAPER_WORDS)


GROUPWISE = {f"GROUPWISE by {column}": groupwise(column) for column in GROUP_COLUMNS}


def default(score: Score, trust: Remembered) -> Predictor:
    """Return the plain constructor with the score in the tail scale."""
    tail = type(score)(scale="tail")
    return ConditionalConformal(tail, trust=trust, temperature="tuning")


def load(bench: Path, name: str) -> tuple[Any, ModelOutputs]:
    """Training points, and the pool as model outputs."""
    with np.load(bench / f"{name}_pool.npz") as pool:
        groups = {key: pool[key] for key in GROUP_COLUMNS if key in pool.files}
        outputs = ModelOutputs(
            logits=pool["logits"],
            features=pool["features"],
            labels=pool["labels"].astype(np.int64),
            groups=groups or None,
        )
    return np.load(bench / f"{name}_train.npz"), outputs


def splits(outputs: ModelOutputs, seeds: int) -> Iterator[tuple[ModelOutputs, ModelOutputs]]:
    """Stratified halves for seeds 1, 2, ..."""
    for seed in range(1, seeds + 1):
        yield outputs.split(0.5, seed=seed, stratify=True)


def run(
    outputs: ModelOutputs,
    methods: dict[str, tuple[Score, Make]],
    trusts: dict[str, Remembered],
    seeds: int,
    metrics: list[str],
) -> dict[str, list[Evaluation]]:
    """Evaluate every method on every split, by the same trust score."""
    results: dict[str, list[Evaluation]] = {name: [] for name in methods}
    for calibration, test in splits(outputs, seeds):
        for name, (score, make) in methods.items():
            trust = trusts["default" if make is default else "paper"]
            sets = make(score, trust).calibrate(calibration).predict_set(test, alpha=0.1)
            results[name].append(
                evaluate(sets, test, trusts["paper"], metrics=metrics, n_bootstrap=200)
            )
    return results


def all_runs(name: str, bench: Path, seeds: int) -> dict[tuple[str, str, str], list[Evaluation]]:
    """Evaluations of every score and method on one data set, by seed."""
    train, outputs = load(bench, name)
    labels = train["labels"].astype(np.int64)
    settings = {"paper": TrustScore(neighbour=2, squared=True), "default": TrustScore()}
    trusts = {
        key: Remembered(trust.fit(train["features"], labels), outputs)
        for key, trust in settings.items()
    }
    grouped = bool(outputs.groups)
    metrics = ["conf_trust", "conf_rank", "class"] + (["groups"] if grouped else [])
    makes = PAPER_METHODS | (GROUPWISE if grouped else {}) | {"default, tail and rank": default}
    results = {}
    for score_name, score in SCORES.items():
        methods = {key: (score, make) for key, make in makes.items()}
        for key, runs in run(outputs, methods, trusts, seeds, metrics).items():
            results[name, score_name, key] = runs
    return results


def draw(name: str, results: dict[tuple[str, str, str], list[Evaluation]], folder: Path) -> None:
    """Heatmaps of the first seed, as in the paper's figures."""
    shown = ("STANDARD", "CONDITIONAL", "default, tail and rank")
    first = {method: results[name, "APS", method][0] for method in shown}
    for table in ("conf_trust", "conf_rank"):
        figure = coverage_heatmaps(first, table)
        figure.savefig(folder / f"{name}_{table}.png", dpi=110, bbox_inches="tight")


def page(name: str, text: str, seeds: int) -> str:
    """The table as a Markdown page that says how it was made."""
    return (
        f"# {name}: methods and scores, mean (standard error) over seeds 1 to {seeds}\n\n"
        "Made with `python benchmarks/methods.py --bench DIR --output docs/results`; alpha = 0.1.\n"
        "STANDARD, CONDITIONAL (NAIVE), CONDITIONAL and PCA FEATURES are run as the paper runs\n"
        "them; empty sets are allowed. The last method is the package's default for this score,\n"
        "whose sets are never empty (so it over-covers where the classifier is right more than\n"
        "90% of the time). *Perfect* is what noise alone gives with these bins.\n\n"
        f"{text}\n\n"
        "APS, seed 1, coverage by confidence and trust, and by confidence and rank:\n\n"
        f"![Conf x Trust]({name}_conf_trust.png)\n\n![Conf x Rank]({name}_conf_rank.png)\n"
    )


def main() -> None:
    """Print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, default=Path(DEFAULT_BENCH))
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--names", nargs="+", default=["cifar100", "cifar100lt", "ham10000"])
    options = parser.parse_args()
    if not options.bench.is_dir():
        parser.error(f"{options.bench} has no model outputs; name their folder with --bench.")
    # The presets reuse calibration data on purpose, and small groups are part of the story.
    warnings.simplefilter("ignore", TrustSetsWarning)
    for name in options.names:
        start = time.perf_counter()
        results = all_runs(name, options.bench, options.seeds)
        text = compare(results).to_markdown()
        print(f"\n{text}\n\n{name}: {time.perf_counter() - start:.0f} s", flush=True)
        if options.output:
            options.output.mkdir(parents=True, exist_ok=True)
            (options.output / f"{name}.md").write_text(page(name, text, options.seeds))
            draw(name, results, options.output)


if __name__ == "__main__":
    main()
