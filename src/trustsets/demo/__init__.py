"""The demo: outputs of a real classifier, and what two kinds of sets do with them.

Split conformal sets are put beside conditional sets of the same mean size.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise, product
from pathlib import Path
from typing import Any, final

import numpy as np

from trustsets._arrays import Array
from trustsets.errors import InputError
from trustsets.metrics import binomial_interval, compare, evaluate, sets_of_size
from trustsets.outputs import ModelOutputs
from trustsets.predictors import ConditionalConformal, StandardConformal
from trustsets.sets import PredictionSets
from trustsets.trust import TrustScore

__all__ = ["TASKS", "Cell", "Comparison", "DemoTask", "Method", "compare_methods", "load"]

ALPHA = 0.1
NAMES = SPLIT, MATCHED, CONDITIONAL = "split conformal", "same size", "trustsets"
# Cells of confidence x trust. Trust below 1 says that the nearest training sample is of another
# class than the predicted one; above 1.25 it is of this class by some margin.
_CONFIDENCE = (0.0, 0.8, 0.99, 1.0)
_TRUST = (0.0, 1.25, np.inf)
_FEWEST = 30
_MOST_CLASSES = 6

Step = Callable[[str], AbstractContextManager[Any]]
Rows = list[tuple[str, ...]]
Table = tuple[tuple[str, ...], Rows]


@final
@dataclass(frozen=True, eq=False)
class DemoTask:
    """Outputs of a classifier on held-out samples, in two halves, with features and trust.

    `trust` is None where only its values ship, and so are `train`, outputs of the training samples,
    and the images. ``images[test.rows]`` are those of the test samples.
    """

    name: str
    title: str
    description: str
    calibration: ModelOutputs
    test: ModelOutputs
    trust: TrustScore | None = None
    train: ModelOutputs | None = None
    images: Array | None = None
    train_images: Array | None = None


def load(name: str = "real", seed: int = 0) -> DemoTask:
    """Return one of the demo's tasks.

    "real" has outputs of a deep network on CIFAR-100, which ship with the package; "digits" trains
    a small network on scikit-learn's digits. `seed` splits the held-out samples in halves.

    Examples
    --------
    >>> task = load("real")
    >>> task.calibration
    ModelOutputs(n=5000, K=100, d=32, trust, labels)
    """
    if name not in TASKS:
        raise InputError(f"name must be one of {', '.join(TASKS)}; got {name!r}.")
    return TASKS[name](seed)


def _real(seed: int) -> DemoTask:
    path = files("trustsets.demo").joinpath("data", "cifar100.npz")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        outputs = ModelOutputs(
            logits=arrays["logits"].astype(np.float32),
            features=arrays["features"].astype(np.float32),
            trust=arrays["trust"],
            labels=arrays["classes"][arrays["labels"]],
            classes=arrays["classes"],
        )
    calibration, test = outputs.split(0.5, seed=seed, stratify=True)
    return DemoTask(
        name="real",
        title="A deep network on CIFAR-100",
        description=(
            f"A Wide-ResNet 28-4, trained on 40,000 images of 100 classes, on {len(outputs):,} "
            "images that it was not trained on. The defaults of this package were chosen on "
            "outputs of this network, among others, so the numbers flatter them."
        ),
        calibration=calibration,
        test=test,
    )


def _digits(seed: int, n_train: int = 100) -> DemoTask:
    """Ten digits, 8 x 8 pixels, and a network that saw few: one trained on many hardly errs."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16.0).astype(np.float32)
    seen, new = train_test_split(
        np.arange(len(labels)), train_size=n_train, random_state=seed, stratify=labels
    )
    network = MLPClassifier(
        (64,), alpha=1e-5, batch_size=25, learning_rate_init=2e-3, random_state=seed
    )
    # Pass by pass, because `fit` would warn; on one core, because threads slow so small a network.
    with threadpool_limits(1):
        for _ in range(300):
            network.partial_fit(pixels[seen], labels[seen], classes=np.arange(10))

    def run(rows: Array) -> ModelOutputs:
        hidden = np.maximum(pixels[rows] @ network.coefs_[0] + network.intercepts_[0], 0.0)
        logits = hidden @ network.coefs_[1] + network.intercepts_[1]
        return ModelOutputs(logits=logits, features=hidden, labels=labels[rows], classes=range(10))

    train, pool = run(seen), run(new)
    trust = TrustScore().fit(np.asarray(train.features), np.asarray(train.labels))
    calibration, test = pool.with_trust(trust).split(0.5, seed=seed)
    return DemoTask(
        name="digits",
        title="A small network on handwritten digits",
        description=(
            f"One hidden layer, trained on {n_train} images of 10 digits, on {len(new):,} images "
            "that it was not trained on."
        ),
        calibration=calibration,
        test=test,
        trust=trust,
        train=train,
        images=pixels[new].reshape(-1, 8, 8),
        train_images=pixels[seen].reshape(-1, 8, 8),
    )


TASKS: dict[str, Callable[[int], DemoTask]] = {"real": _real, "digits": _digits}
"""Functions of a seed, by name."""


@final
@dataclass(frozen=True)
class Method:
    """Coverage of some sets with its exact 95% interval, and their mean size."""

    alpha: float
    coverage: float
    lower: float
    upper: float
    size: float

    @classmethod
    def of(cls, sets: PredictionSets, test: ModelOutputs, chosen: Any = slice(None)) -> "Method":
        """Measure the sets of the chosen samples."""
        covered = sets.covers(test.labels)[chosen]
        lower, upper = map(float, binomial_interval(covered.sum(), covered.size))
        alpha, size = float(np.asarray(sets.alpha)), float(sets.sizes[chosen].mean())
        return cls(alpha, float(covered.mean()), lower, upper, size)

    def __str__(self) -> str:
        return f"{self.coverage:.1%} ({100 * self.lower:.0f}–{100 * self.upper:.0f})"


@final
@dataclass(frozen=True)
class Cell:
    """Test samples of a range of confidence and of trust; `p_value` is McNemar's, at equal size."""

    confidence: str
    trust: str
    n: int
    accuracy: float
    methods: dict[str, Method]
    p_value: float

    def __str__(self) -> str:
        return f"confidence {self.confidence} and trust {self.trust}"

    @property
    def words(self) -> tuple[str, ...]:
        """Its row of the table, which fits 80 columns."""
        coverage = [
            f"{one.coverage:.0%} ({100 * one.lower:.0f}–{100 * one.upper:.0f})"
            for one in self.methods.values()
        ]
        return self.confidence, self.trust, f"{self.n}", f"{self.accuracy:.0%}", *coverage


@final
@dataclass(frozen=True)
class Comparison:
    """What the demo measured, with split conformal sets also at the mean size of trustsets."""

    title: str
    setting: str
    methods: dict[str, Method]
    cells: list[Cell]
    examples: list[list[str]]
    report: str

    @property
    def finding(self) -> str:
        """Where split conformal sets do worst, what changes there, and where it gets worse."""
        if not self.cells:
            return "There are too few samples to compare cells of confidence and trust."
        worst = min(self.cells, key=lambda cell: cell.methods[SPLIT].coverage)
        there = [f"{worst.methods[name].coverage:.0%}" for name in NAMES]
        lowest = [
            f"{min(cell.methods[name].coverage for cell in self.cells):.0%}" for name in NAMES
        ]
        text = (
            f"Split conformal sets do worst at {worst}: they cover {there[0]}. At the same mean "
            f"size, split conformal sets cover {there[1]} there and trustsets {there[2]} (exact "
            f"paired test: p = {worst.p_value:.2g}). The lowest coverage of any cell is "
            f"{lowest[0]}, {lowest[1]} and {lowest[2]}."
        )
        losses = [
            f"{cell} (p = {cell.p_value:.2g})"
            for cell in self.cells
            if cell.methods[CONDITIONAL].coverage < cell.methods[MATCHED].coverage
        ]
        return text + (f" Trustsets cover less at {'; '.join(losses)}." if losses else "")

    @property
    def story(self) -> list[str | list[str] | Table]:
        """Paragraphs, lines as they are, and tables (header and rows), in the order of reading."""
        overall: Rows = [
            (name, f"{method.alpha:.3f}", str(method), f"{method.size:.2f}")
            for name, method in self.methods.items()
        ]
        cells: Rows = [cell.words for cell in self.cells]
        fair = [f"{self.methods[name].coverage:.1%}" for name in (MATCHED, CONDITIONAL)]
        return [
            self.setting,
            (("", "alpha", "coverage (95%)", "classes per set"), overall),
            "The middle row is the fair opponent: split conformal sets made as large as those of "
            f"trustsets, by a smaller alpha. Overall they cover {fair[0]} and {fair[1]}. The "
            "question is for whom. Trust is the distance to the nearest training sample of another "
            "class, divided by that to the nearest one of the predicted class: where it is low, "
            "the training data disagree with the network.",
            (("confidence", "trust", "n", "right", *self.methods), cells),
            self.finding,
            "Three samples, with sets of the same mean size:",
            *self.examples,
            ["Report, to open in a browser:", f"  {Path(self.report).resolve()}"],
        ]


def compare_methods(task: DemoTask, report: Path, *, step: Step = nullcontext) -> Comparison:
    """Calibrate both methods, compare them at equal mean size, and write a report (HTML).

    `step` is called before each longer piece of work and returns a context manager around it.
    """
    test = task.test
    with step("calibrating"):
        predictors = {
            SPLIT: StandardConformal().calibrate(task.calibration),
            CONDITIONAL: ConditionalConformal(trust=task.trust).calibrate(task.calibration),
        }
    with step("predicting sets"):
        shown = {name: one.predict_set(test, alpha=ALPHA) for name, one in predictors.items()}
        size = float(shown[CONDITIONAL].sizes.mean())
        sets = shown | {MATCHED: sets_of_size(predictors[SPLIT], test, size)}
    with step("writing the report"):
        from trustsets.report import write_report  # here, so that imports are not too deep

        write_report(
            report,
            {name: evaluate(item, test) for name, item in shown.items()},
            predictors=predictors,
            outputs=test,
            sets=shown,
            comparison=compare(predictors, outputs=test, alpha=ALPHA, equal_size=CONDITIONAL),
            title=task.title,
            details={"Data": task.description, "Calibration samples": len(task.calibration)},
        )
    return Comparison(
        title=task.title,
        setting=_setting(task),
        methods={name: Method.of(sets[name], test) for name in NAMES},
        cells=_cells(sets, test),
        examples=_examples(sets[MATCHED], sets[CONDITIONAL], test),
        report=str(report),
    )


def _setting(task: DemoTask) -> str:
    """The data and the question."""
    test, sizes = task.test, (len(task.calibration), len(task.test))
    variance = ALPHA * (1.0 - ALPHA) * sum(1.0 / n for n in sizes)
    return (
        f"{task.description} It is {test.confidence.mean():.0%} sure on average and right in "
        f"{(test.predicted == test.labels).mean():.0%} of the cases. We ask for sets that contain "
        f"the true class with probability {1.0 - ALPHA:.0%}: {sizes[0]:,} images calibrate, "
        f"{sizes[1]:,} test. In one such split coverage varies by about "
        f"{200 * np.sqrt(variance):.1f} points."
    )


def _cells(sets: dict[str, PredictionSets], test: ModelOutputs) -> list[Cell]:
    """Cells of confidence x trust that have enough test samples."""
    from scipy.stats import binomtest

    right, trust = test.predicted == test.labels, test.require_trust("the demo")
    first, second = (sets[name].covers(test.labels) for name in (MATCHED, CONDITIONAL))
    cells = []
    for (low, high), (less, more) in product(pairwise(_CONFIDENCE), pairwise(_TRUST)):
        inside = (test.confidence > low) & (test.confidence <= high)
        inside &= (trust >= less) & (trust < more)
        if inside.sum() < _FEWEST:
            continue
        wins, losses = (int((inside & part).sum()) for part in (second & ~first, first & ~second))
        cells.append(
            Cell(
                confidence=f"{100 * low:.0f}–{high:.0%}" if low else f"< {high:.0%}",
                trust=f"< {more:g}" if np.isfinite(more) else f"≥ {less:g}",
                n=int(inside.sum()),
                accuracy=float(right[inside].mean()),
                methods={name: Method.of(sets[name], test, inside) for name in NAMES},
                p_value=float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0,
            )
        )
    return cells


def _examples(
    matched: PredictionSets, conditional: PredictionSets, test: ModelOutputs
) -> list[list[str]]:
    """Of each kind, the first sample whose sets differ and have few classes."""
    labels, trust = np.asarray(test.labels), test.require_trust("the demo")
    first, second = matched.covers(labels), conditional.covers(labels)
    short = np.maximum(matched.sizes, conditional.sizes) <= _MOST_CLASSES
    differ = short & (matched.mask != conditional.mask).any(axis=1)
    kinds = {
        "Only trustsets contain the true class.": ~first & second,
        "Only split conformal sets contain it.": first & ~second,
        "Both contain it.": first & second,
    }
    return [
        [
            f"{title} Sample {test.rows[row]}: {labels[row]}. The network says "
            f"{test.predicted[row]} ({test.confidence[row]:.0%} sure), trust {trust[row]:.2f}.",
            f"  split conformal: {', '.join(map(str, matched[int(row)]))}",
            f"  trustsets:       {', '.join(map(str, conditional[int(row)]))}",
        ]
        for title, kind in kinds.items()
        for row in np.flatnonzero(kind & differ)[:1]
    ]
