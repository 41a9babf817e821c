"""STANDARD, NAIVE and CONDITIONAL on one task, measured where the classifier is overconfident.

A sample is called contradicted if the classifier is at least 50% confident of its prediction,
but the most similar training sample is of another class (Trust below 1). Its label is not
needed to tell.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets.basis import Bins
from trustsets.demo.results import MethodResult, TaskResult
from trustsets.demo.task import DemoTask, is_right
from trustsets.metrics import Balls, Evaluation, FrequencyBins, conditional_coverage, evaluate
from trustsets.metrics.inference import share_estimate
from trustsets.outputs import ModelOutputs
from trustsets.predictors import ConditionalConformal, MondrianConformal, StandardConformal
from trustsets.report import percent, write_report
from trustsets.sets import PredictionSets
from trustsets.trust import TrustScore

__all__ = ["ALPHA", "LOW_COVERAGE", "compare_methods", "contradicted"]

ALPHA = 0.1
# From this confidence on, the prediction is more likely than all other classes together.
SURE = 0.5
# A set with a true coverage below this is clearly too small.
LOW_COVERAGE = 0.8
_GROUP = "Contradicted samples"
_GRID = Bins(counts=(4, 4), spacing=("quantile", "quantile"))
# Alphas tried in search of STANDARD sets as large as the CONDITIONAL ones.
_ALPHAS = tuple(float(alpha) for alpha in np.arange(1, 41) / 400)

Bools = NDArray[np.bool_]
Step = Callable[[str], AbstractContextManager[Any]]


def compare_methods(
    task: DemoTask, report: Path, *, seed: int = 0, step: Step = nullcontext
) -> TaskResult:
    """Calibrate the three methods on half of the pool, measure on the other half, write a report.

    Parameters
    ----------
    report : path
        HTML file to write.
    seed : int
        Splits the pool.
    step : callable
        Called with a few words before each longer piece of work; returns a context manager
        that is entered during the work, such as a progress bar.
    """
    case = _Case(task, seed)
    predictors: dict[str, Any] = {
        "STANDARD": StandardConformal(),
        "NAIVE": MondrianConformal(by=_GRID, trust=case.trust),
        "CONDITIONAL": ConditionalConformal(trust=case.trust),
    }
    sets = {}
    for name, predictor in predictors.items():
        with step(f"calibrating {name}"):
            sets[name] = predictor.calibrate(case.calibration).predict_set(case.test, alpha=ALPHA)
    with step("measuring"):
        evaluations = _evaluate(case, sets)
        grown = _grown_sets(predictors["STANDARD"], case.test, sets["CONDITIONAL"])
    with step("writing the report"):
        write_report(
            report,
            evaluations,
            predictors=predictors,
            outputs=case.test.with_trust(case.trust),
            sets=sets,
            title=f"{task.title}: where coverage fails",
            details=_details(task, case, seed),
        )
    return _summarise(case, evaluations, sets, grown, str(report))


def contradicted(outputs: ModelOutputs, trust: Floats) -> Bools:
    """Samples with a confident prediction that the most similar training sample contradicts."""
    return np.asarray((outputs.confidence >= SURE) & (trust < 1.0))


@final
class _Case:
    """A task split in two, with what all methods share; contradicted samples are a group."""

    def __init__(self, task: DemoTask, seed: int) -> None:
        self.task = task
        codes = task.train.require_labels("the trust score")
        self.trust = TrustScore().fit(np.asarray(task.train.features), task.train.classes[codes])
        self.calibration, test = task.pool.split(0.5, seed=seed)
        self.trust_of_test = self.trust.score(np.asarray(test.features), test.predicted)
        self.chosen = contradicted(test, self.trust_of_test)
        self.test = ModelOutputs(
            logits=test.logits,
            features=test.features,
            labels=test.labels,
            classes=test.classes,
            rows=test.rows,
            groups={_GROUP: np.where(self.chosen, "contradicted", "all others")},
        )
        known = task.label_probabilities
        self.truth = None if known is None else known[test.rows]

    def share(self, values: NDArray[Any]) -> float:
        """Mean over the contradicted samples; NaN if there are none."""
        return float(values[self.chosen].mean()) if self.chosen.any() else float("nan")


def _evaluate(case: _Case, sets: Mapping[str, PredictionSets]) -> dict[str, Evaluation]:
    """Every metric of each method; the balls are drawn once for all."""
    balls = Balls().around(np.asarray(case.test.features))
    codes = case.calibration.require_labels("class frequency")
    frequency = FrequencyBins(np.bincount(codes, minlength=case.test.n_classes))
    return {
        name: evaluate(
            item,
            case.test,
            case.trust,
            bins={"conf_trust": _GRID, "conf_frequency": frequency},
            balls=balls,
            label_probabilities=case.truth,
        )
        for name, item in sets.items()
    }


def _grown_sets(
    standard: StandardConformal, test: ModelOutputs, target: PredictionSets
) -> PredictionSets:
    """STANDARD sets at the largest alpha that makes them as large as the target's on average."""
    found = standard.predict_set(test, alpha=_ALPHAS)
    large = np.flatnonzero(found.sizes.mean(axis=0) >= target.sizes.mean())
    return found.at(_ALPHAS[large[-1] if large.size else 0])


def _details(task: DemoTask, case: _Case, seed: int) -> dict[str, str]:
    return {
        "Data": task.about,
        "Classifier": (
            f"one hidden layer; accuracy {percent(task.accuracy)}, mean confidence "
            f"{percent(task.confidence)}, calibration error {percent(task.calibration_error)}"
        ),
        "Trust": "distances in the hidden layer",
        _GROUP: "confidence of 50% or more, but the most similar training sample is of another "
        "class",
        "Calibration samples": f"{len(case.calibration):,}",
        "Seed": str(seed),
    }


def _summarise(
    case: _Case,
    evaluations: Mapping[str, Evaluation],
    sets: Mapping[str, PredictionSets],
    grown: PredictionSets,
    report: str,
) -> TaskResult:
    task, test = case.task, case.test
    covers = {name: item.covers(test.labels)[case.chosen] for name, item in sets.items()}
    return TaskResult(
        task=task.name,
        title=task.title,
        about=task.about,
        alpha=ALPHA,
        n_classes=test.n_classes,
        n_calibration=len(case.calibration),
        n_test=len(test),
        n_contradicted=int(case.chosen.sum()),
        accuracy=task.accuracy,
        confidence=task.confidence,
        calibration_error=task.calibration_error,
        contradicted_accuracy=case.share(is_right(test)),
        contradicted_confidence=case.share(test.confidence),
        methods={name: _method(case, evaluations[name], sets[name]) for name in evaluations},
        grown_coverage=case.share(grown.covers(test.labels)),
        grown_size=float(grown.sizes.mean()),
        p_value=_paired_test(covers["STANDARD"], covers["CONDITIONAL"]),
        report=report,
    )


def _method(case: _Case, found: Evaluation, sets: PredictionSets) -> MethodResult:
    gap = found.metrics["conf_trust.gap"]
    covered = sets.covers(case.test.labels)[case.chosen]
    there = share_estimate(int(covered.sum()), covered.size, found.level)
    true = None if case.truth is None else conditional_coverage(sets, case.truth)
    return MethodResult(
        coverage=found.coverage.value,
        size=found.sizes.mean,
        contradicted_coverage=there.value,
        contradicted_lower=there.lower,
        contradicted_upper=there.upper,
        contradicted_size=case.share(sets.sizes),
        gap=gap.value,
        noise_floor=gap.floor,
        low_coverage=None if true is None else float((true < LOW_COVERAGE).mean()),
    )


def _paired_test(first: Bools, second: Bools) -> float:
    """McNemar's exact test that each method covers as many samples that the other misses."""
    from scipy import stats

    only_first, only_second = int((first & ~second).sum()), int((~first & second).sum())
    if only_first + only_second == 0:
        return 1.0
    return float(stats.binomtest(only_first, only_first + only_second).pvalue)
