"""Split conformal sets, and conditional sets of the same mean size, on one of the demo's tasks."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets.demo.tasks import DemoTask
from trustsets.metrics import evaluate
from trustsets.outputs import ModelOutputs
from trustsets.predictors import ConditionalConformal, StandardConformal
from trustsets.report import write_report
from trustsets.sets import PredictionSets

__all__ = ["ALPHA", "Cell", "Comparison", "Method", "compare_methods"]

ALPHA = 0.1
NAMES = SPLIT, MATCHED, CONDITIONAL = "split conformal", "same size", "conditional"
# Cells of confidence x trust. Trust below 1 says that the nearest training sample is of another
# class than the predicted one; above 1.25 it is of this class by some margin.
_CONFIDENCE = (0.0, 0.8, 0.99, 1.0)
_TRUST = (0.0, 1.25, np.inf)
_FEWEST = 30
_BISECTIONS = 20
_MOST_CLASSES = 6

Step = Callable[[str], AbstractContextManager[Any]]


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
        from scipy.stats import binomtest

        covered = sets.covers(test.labels)[chosen]
        interval = binomtest(int(covered.sum()), covered.size).proportion_ci()
        return cls(
            alpha=float(np.asarray(sets.alpha)),
            coverage=float(covered.mean()),
            lower=float(interval.low),
            upper=float(interval.high),
            size=float(sets.sizes[chosen].mean()),
        )

    def __str__(self) -> str:
        return f"{self.coverage:.1%} ({100 * self.lower:.0f}–{100 * self.upper:.0f})"


@final
@dataclass(frozen=True)
class Cell:
    """Test samples of a range of confidence and a range of trust.

    `p_value` is that of McNemar's exact test that split conformal sets of the same mean size and
    conditional sets cover these samples equally often.
    """

    confidence: tuple[float, float]
    trust: tuple[float, float]
    n: int
    accuracy: float
    methods: dict[str, Method]
    p_value: float

    @property
    def words(self) -> tuple[str, str]:
        """The ranges of confidence and of trust."""
        low, high = self.confidence
        sure = f"{100 * low:.0f}–{high:.0%}" if low else f"< {high:.0%}"
        low, high = self.trust
        return sure, f"≥ {low:g}" if high == np.inf else f"< {high:g}"


@final
@dataclass(frozen=True)
class Comparison:
    """What the comparison measured, as plain numbers and words.

    `methods` has split conformal sets at alpha = 0.1, split conformal sets at the alpha that gives
    the mean size of the conditional ones, and conditional sets at alpha = 0.1.
    """

    task: str
    title: str
    description: str
    n_calibration: int
    n_test: int
    accuracy: float
    confidence: float
    methods: dict[str, Method]
    cells: list[Cell]
    examples: list[list[str]]
    report: str

    @property
    def setting(self) -> str:
        """The data and the question."""
        spread = 2.0 * np.sqrt(
            ALPHA * (1.0 - ALPHA) * (1.0 / self.n_calibration + 1.0 / self.n_test)
        )
        return (
            f"{self.description} Its mean confidence is {self.confidence:.0%}, its accuracy "
            f"{self.accuracy:.0%}. {self.n_calibration:,} images calibrate, {self.n_test:,} test. "
            f"A prediction set should contain the true class with probability {1.0 - ALPHA:.0%}; "
            f"the coverage of one such split varies by about {100 * spread:.1f} points."
        )

    @property
    def finding(self) -> str:
        """What the cells show: the lowest coverage of each method, and where conditional loses."""
        if not self.cells:
            return "There are too few samples to compare cells of confidence and trust."
        lowest = {
            name: min(cell.methods[name].coverage for cell in self.cells) for name in self.methods
        }
        worst = min(self.cells, key=lambda cell: cell.methods[SPLIT].coverage)
        losses = [
            f"confidence {cell.words[0]}, trust {cell.words[1]} (p = {cell.p_value:.2g})"
            for cell in self.cells
            if cell.methods[CONDITIONAL].coverage < cell.methods[MATCHED].coverage
        ]
        text = (
            f"Split conformal sets do worst at confidence {worst.words[0]} and trust "
            f"{worst.words[1]}: they cover {worst.methods[SPLIT].coverage:.0%}. At the same mean "
            f"size, split conformal sets cover {worst.methods[MATCHED].coverage:.0%} there and "
            f"conditional sets {worst.methods[CONDITIONAL].coverage:.0%} (exact paired test: "
            f"p = {worst.p_value:.2g}). The lowest coverage of any cell is "
            f"{lowest[SPLIT]:.0%}, {lowest[MATCHED]:.0%} and {lowest[CONDITIONAL]:.0%}."
        )
        if losses:
            text += f" At the same size, conditional sets cover less at {'; '.join(losses)}."
        return text


def compare_methods(task: DemoTask, report: Path, *, step: Step = nullcontext) -> Comparison:
    """Calibrate both methods, compare them at equal mean size, and write a report.

    `report` is the HTML file to write. `step` is called with a few words before each longer piece
    of work, and returns a context manager around it, such as a progress bar.
    """
    test, labels = task.test, task.test.labels
    with step("calibrating"):
        standard = StandardConformal().calibrate(task.calibration)
        conditional = ConditionalConformal(trust=task.trust).calibrate(task.calibration)
    with step("predicting sets"):
        sets = {
            SPLIT: standard.predict_set(test, alpha=ALPHA),
            CONDITIONAL: conditional.predict_set(test, alpha=ALPHA),
        }
        sets[MATCHED] = _matched(standard, test, sets[CONDITIONAL])
    with step("writing the report"):
        shown = {name: sets[name] for name in (SPLIT, CONDITIONAL)}
        evaluations = {name: evaluate(item, test) for name, item in shown.items()}
        write_report(
            report,
            evaluations,
            predictors={SPLIT: standard, CONDITIONAL: conditional},
            outputs=test,
            sets=shown,
            title=task.title,
            details={"Data": task.description, "Calibration samples": len(task.calibration)},
        )
    return Comparison(
        task=task.name,
        title=task.title,
        description=task.description,
        n_calibration=len(task.calibration),
        n_test=len(test),
        accuracy=float((test.predicted == labels).mean()),
        confidence=float(test.confidence.mean()),
        methods={name: Method.of(sets[name], test) for name in NAMES},
        cells=_cells(sets, test),
        examples=_examples(sets, test),
        report=str(report),
    )


def _matched(
    standard: StandardConformal, test: ModelOutputs, target: PredictionSets
) -> PredictionSets:
    """Split conformal sets at the alpha that gives the target's mean size; labels are not used."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        alpha = (low + high) / 2.0
        sets = standard.predict_set(test, alpha=alpha)
        if sets.sizes.mean() > target.sizes.mean():
            low = alpha
        else:
            high = alpha
    # The last alpha may be on either side; of the two, the larger sets are the fairer opponent.
    return standard.predict_set(test, alpha=low) if low > 0.0 else sets


def _cells(sets: dict[str, PredictionSets], test: ModelOutputs) -> list[Cell]:
    """Cells of confidence x trust that have enough test samples."""
    right, trust = test.predicted == test.labels, test.require_trust("the demo")
    cells = []
    for sure in pairwise(_CONFIDENCE):
        for trusted in pairwise(_TRUST):
            inside = (test.confidence > sure[0]) & (test.confidence <= sure[1])
            inside &= (trust >= trusted[0]) & (trust < trusted[1])
            if inside.sum() >= _FEWEST:
                methods = {name: Method.of(sets[name], test, inside) for name in NAMES}
                n, accuracy = int(inside.sum()), float(right[inside].mean())
                p_value = _paired_test(sets, test, inside)
                cells.append(Cell(sure, trusted, n, accuracy, methods, p_value))
    return cells


def _paired_test(
    sets: dict[str, PredictionSets], test: ModelOutputs, chosen: NDArray[np.bool_]
) -> float:
    from scipy.stats import binomtest

    first, second = (sets[name].covers(test.labels)[chosen] for name in (MATCHED, CONDITIONAL))
    only_first, only_second = int((first & ~second).sum()), int((~first & second).sum())
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_first, only_first + only_second).pvalue)


def _examples(sets: dict[str, PredictionSets], test: ModelOutputs) -> list[list[str]]:
    """A sample that conditional sets alone cover, one that they alone miss, and one of both.

    Of each kind it is the first sample whose sets differ and have few classes.
    """
    matched, conditional = sets[MATCHED], sets[CONDITIONAL]
    first, second = matched.covers(test.labels), conditional.covers(test.labels)
    short = np.maximum(matched.sizes, conditional.sizes) <= _MOST_CLASSES
    differ = short & (matched.mask != conditional.mask).any(axis=1)
    trust, labels = test.require_trust("the demo"), np.asarray(test.labels)
    examples = []
    for title, kind in {
        "Only the conditional set covers": ~first & second,
        "Only the split conformal set covers": first & ~second,
        "Both cover": first & second,
    }.items():
        for row in np.flatnonzero(kind & differ)[:1]:
            said = f"{test.predicted[row]} ({test.confidence[row]:.0%}), trust {trust[row]:.2f}"
            examples.append(
                [
                    f"{title}: sample {test.rows[row]} is {labels[row]}, the network says {said}.",
                    f"  same size:   {', '.join(map(str, matched[int(row)]))}",
                    f"  conditional: {', '.join(map(str, conditional[int(row)]))}",
                ]
            )
    return examples
