"""Prediction sets for handwritten digits: what `make demo` runs. Offline, under a minute."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from trustsets import (
    Bins,
    ConditionalConformal,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    TrustScore,
    evaluate,
    load,
    write_report,
)
from trustsets.statistics import Confidence, Trust

ALPHA = 0.1
COPIES = 4
GRID = Bins(counts=(4, 4), spacing=("quantile", "quantile"))


def noisy_digits() -> tuple[np.ndarray, np.ndarray]:
    """Scikit-learn's digits, each several times with fresh noise: a task with real errors."""
    images, labels = load_digits(return_X_y=True)
    images, labels = np.tile(images, (COPIES, 1)), np.tile(labels, COPIES)
    noise = np.random.default_rng(0).normal(0.0, 0.35, size=images.shape)
    return images / 16.0 + noise, labels


def train() -> tuple[TrustScore, ModelOutputs]:
    """Train on a sixth of the digits; return the trust score, and the outputs on the rest."""
    images, labels = noisy_digits()
    chosen = np.random.default_rng(1).uniform(size=len(labels)) < 1 / 6
    # Hardly regularised: the classifier is right far less often than it believes.
    model = LogisticRegression(C=1000.0, max_iter=5000).fit(images[chosen], labels[chosen])
    trust = TrustScore().fit(images[chosen], labels[chosen])
    logits = model.decision_function(images[~chosen])
    return trust, ModelOutputs(logits=logits, labels=labels[~chosen], features=images[~chosen])


def methods(trust: TrustScore) -> dict[str, Any]:
    """The paper's three methods, at a size that suits some thousand samples."""
    ranks = (Confidence(transform="rank"), Trust(transform="rank"))
    return {
        "STANDARD": StandardConformal(),
        "NAIVE": MondrianConformal(by=GRID, trust=trust),
        "CONDITIONAL": ConditionalConformal(basis=Polynomial(3, of=ranks), trust=trust),
    }


def doubtful(test: ModelOutputs, trust: np.ndarray) -> np.ndarray:
    """The more confident half of the samples, and of it the quarter with the lowest trust."""
    sure = test.confidence >= np.median(test.confidence)
    return sure & (trust <= np.quantile(trust[sure], 0.25))


def show(console: Console, results: dict[str, Any], where_it_hurts: dict[str, float]) -> None:
    """Print the comparison, and the sentence to take away."""
    table = Table(title=f"Sets that should miss at most {ALPHA:.0%} of the true digits")
    table.add_column("method")
    for heading in ("coverage", "mean size", "sure, not trusted", "CovGap", "noise alone"):
        table.add_column(heading, justify="right")
    for name, result in results.items():
        gap = result.metrics["conf_trust.gap"]
        numbers = (result.sizes.mean, gap.value, gap.floor)
        size, value, floor = (f"{number:.2f}" for number in numbers)
        hurt = f"{where_it_hurts[name]:.3f}"
        table.add_row(name, f"{result.coverage.value:.3f}", size, hurt, value, floor)
    console.print(table)
    console.print(
        "[dim]sure, not trusted: coverage in the more confident half, on the quarter of it with "
        "the lowest trust. CovGap: mean distance of coverage from the target, in percent, over "
        "16 cells of confidence x trust.[/]\n"
    )
    console.print(
        "Where the classifier is sure of itself but its neighbours disagree, STANDARD sets hold "
        f"the true digit {where_it_hurts['STANDARD']:.0%} of the time, CONDITIONAL sets "
        f"{where_it_hurts['CONDITIONAL']:.0%}.\n"
    )


def main() -> None:
    """Calibrate three predictors, and compare them where the classifier errs."""
    console = Console()
    trust, outputs = train()
    right = float((outputs.predicted == outputs.labels).mean())
    console.print(
        f"A classifier of noisy digits: {right:.0%} right, and "
        f"{outputs.confidence.mean():.0%} sure of itself on average."
    )
    calibration, test = outputs.split(0.5, seed=0)
    values = trust.score(test.features, test.predicted)
    chosen, predictors = doubtful(test, values), methods(trust)
    where_it_hurts, results, sets = {}, {}, {}
    for name, predictor in predictors.items():
        sets[name] = predictor.calibrate(calibration).predict_set(test, alpha=ALPHA)
        results[name] = evaluate(sets[name], test, trust, bins={"conf_trust": GRID})
        where_it_hurts[name] = sets[name].covers(test.labels)[chosen].mean()
    show(console, results, where_it_hurts)
    console.print(f"{predictor.summary(sets[name])}\n")
    page = write_report(
        "demo-report.html",
        results,
        outputs=test,
        sets=sets,
        trust=values,
        title="Noisy digits: where coverage fails",
        guarantee={name: predictor.summary() for name, predictor in predictors.items()},
    )
    console.print(f"The report is in {page.resolve()}; open it in a browser.")
    path = Path("demo.trustsets")
    predictor.save(path)
    assert (load(path).predict_set(test, alpha=ALPHA).mask == sets[name].mask).all()
    console.print(f"The calibrated predictor is in {path.resolve()}; trustsets.load reads it.")


if __name__ == "__main__":
    main()
