"""What the comparison on one task found, as plain numbers."""

from dataclasses import dataclass
from typing import final

__all__ = ["MethodResult", "TaskResult"]


@final
@dataclass(frozen=True)
class MethodResult:
    """What one method reached on the test inputs; shares between 0 and 1.

    Attributes
    ----------
    coverage, size : float
        Share of sets that hold the true class, and their mean size.
    contradicted_coverage, contradicted_lower, contradicted_upper, contradicted_size : float
        The same on contradicted inputs, with the exact 95% interval of the coverage; NaN
        where there are none.
    gap, gap_by_chance : float
        Mean distance of coverage from the target over 16 cells of confidence x trust, in
        percentage points, and what a perfect method would show.
    low_coverage : float, optional
        Share of inputs whose true coverage is below 80%, where it is known.
    """

    coverage: float
    size: float
    contradicted_coverage: float
    contradicted_lower: float
    contradicted_upper: float
    contradicted_size: float
    gap: float
    gap_by_chance: float
    low_coverage: float | None = None


@final
@dataclass(frozen=True)
class TaskResult:
    """The comparison on one task.

    Attributes
    ----------
    task, title, about : str
        As in `DemoTask`.
    alpha : float
        Share of sets that may miss the true class.
    n_classes, n_calibration, n_test, n_contradicted : int
        Classes; inputs to calibrate on, to test on, and contradicted ones of the latter.
    accuracy, confidence, calibration_error : float
        Of the classifier, on all it was not trained on.
    contradicted_accuracy, contradicted_confidence : float
        On the contradicted test inputs.
    methods : dict of str to MethodResult
        ``STANDARD``, ``NAIVE`` and ``CONDITIONAL``.
    grown_coverage, grown_size : float
        Coverage of contradicted inputs by STANDARD sets whose level was raised until they
        were as large on average as those of CONDITIONAL, and the mean size reached.
    p_value : float
        Exact test (McNemar) that STANDARD and CONDITIONAL cover contradicted inputs equally.
    report : str
        Where the page is.
    """

    task: str
    title: str
    about: str
    alpha: float
    n_classes: int
    n_calibration: int
    n_test: int
    n_contradicted: int
    accuracy: float
    confidence: float
    calibration_error: float
    contradicted_accuracy: float
    contradicted_confidence: float
    methods: dict[str, MethodResult]
    grown_coverage: float
    grown_size: float
    p_value: float
    report: str

    @property
    def standard(self) -> MethodResult:
        """What ordinary conformal prediction reached."""
        return self.methods["STANDARD"]

    @property
    def conditional(self) -> MethodResult:
        """What conditioning on confidence and trust reached."""
        return self.methods["CONDITIONAL"]
