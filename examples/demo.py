"""Prediction sets for handwritten digits: what `make demo` runs. Offline, under a minute."""

from pathlib import Path

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
    ranks = (Confidence(transform="rank"), Trust(transform="rank"))
    predictors = {
        "STANDARD": StandardConformal(),
        "NAIVE": MondrianConformal(by=Bins(counts=(4, 4), spacing=("quantile",) * 2), trust=trust),
        "CONDITIONAL": ConditionalConformal(basis=Polynomial(3, of=ranks), trust=trust),
    }
    table = Table(title=f"Sets that should miss at most {ALPHA:.0%} of the true digits")
    table.add_column("method")
    for heading in ("coverage", "mean size", "sure, not trusted", "CovGap", "noise alone"):
        table.add_column(heading, justify="right")
    sure = test.confidence >= np.median(test.confidence)
    values = trust.score(test.features, test.predicted)
    doubtful = sure & (values <= np.quantile(values[sure], 0.25))
    grid = {"conf_trust": Bins(counts=(4, 4), spacing=("quantile",) * 2)}
    where_it_hurts, results, all_sets = {}, {}, {}
    for name, predictor in predictors.items():
        sets = predictor.calibrate(calibration).predict_set(test, alpha=ALPHA)
        result = evaluate(sets, test, trust, bins=grid)
        gap = result.metrics["conf_trust.gap"]
        results[name], all_sets[name] = result, sets
        where_it_hurts[name] = sets.covers(test.labels)[doubtful].mean()
        table.add_row(
            name,
            f"{result.coverage.value:.3f}",
            f"{result.sizes.mean:.2f}",
            f"{where_it_hurts[name]:.3f}",
            f"{gap.value:.2f}",
            f"{gap.floor:.2f}",
        )
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
    console.print(f"{predictor.summary(sets)}\n")
    page = write_report(
        "demo-report.html",
        results,
        outputs=test,
        sets=all_sets,
        trust=values,
        title="Noisy digits: where coverage fails",
        guarantee={name: predictor.summary() for name, predictor in predictors.items()},
    )
    console.print(f"The report is in {page.resolve()}; open it in a browser.")
    path = Path("demo.trustsets")
    predictor.save(path)
    assert (load(path).predict_set(test, alpha=ALPHA).mask == sets.mask).all()
    console.print(f"The calibrated predictor is in {path.resolve()}; trustsets.load reads it.")


if __name__ == "__main__":
    main()
