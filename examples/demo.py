"""Prediction sets for handwritten digits: what `make demo` runs. Offline, a few seconds."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from trustsets import Bins, Confidence, ModelOutputs, MondrianConformal, StandardConformal, load

ALPHA = 0.05


def noisy_digits() -> tuple[np.ndarray, np.ndarray]:
    """Scikit-learn's digits with noise, so that the task is not too easy."""
    images, labels = load_digits(return_X_y=True)
    return images + np.random.default_rng(0).normal(0.0, 5.0, size=images.shape), labels


def held_out_outputs() -> tuple[ModelOutputs, float]:
    """Train on 600 digits; return the outputs on the rest, and the accuracy there."""
    images, labels = noisy_digits()
    train = np.random.default_rng(1).permutation(len(labels)) < 600
    # Hardly regularised: the classifier is right less often than it believes.
    model = LogisticRegression(C=100.0, max_iter=2000).fit(images[train], labels[train])
    logits = model.decision_function(images[~train])
    outputs = ModelOutputs(logits=logits, labels=labels[~train], features=images[~train])
    return outputs, float((outputs.predicted == outputs.labels).mean())


def main() -> None:
    """Calibrate two predictors, compare them where the classifier is sure of itself."""
    outputs, accuracy = held_out_outputs()
    calibration, test = outputs.split(0.5, seed=0)
    bins = Bins(of=(Confidence(),), counts=(4,), spacing=("quantile",))
    predictors = {
        "STANDARD": StandardConformal(),
        "NAIVE (confidence bins)": MondrianConformal(by=bins),
    }
    table = Table(title=f"Sets that should miss at most {ALPHA:.0%} of the true digits")
    for heading in ("method", "coverage", "mean size", "coverage, surest quarter"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    sure = test.confidence >= np.quantile(test.confidence, 0.75)
    for name, predictor in predictors.items():
        sets = predictor.calibrate(calibration).predict_set(test, alpha=ALPHA)
        covered = sets.covers(test.labels)
        table.add_row(
            name,
            f"{covered.mean():.3f}",
            f"{sets.sizes.mean():.2f}",
            f"{covered[sure].mean():.3f}",
        )
    console = Console()
    console.print(
        f"A classifier of noisy digits: {accuracy:.1%} right, "
        f"yet {outputs.confidence.mean():.1%} sure of itself on average."
    )
    console.print(table)
    console.print(f"The first set of the last method: {sets[0].tolist()}.")
    path = Path("demo.trustsets")
    predictor.save(path)
    again = load(path).predict_set(test, alpha=ALPHA)
    assert (again.mask == sets.mask).all()
    console.print(f"The calibrated predictor is in {path.resolve()}; trustsets.load reads it.")


if __name__ == "__main__":
    main()
