"""What the comparison on one task found, as plain numbers."""

from dataclasses import dataclass
from typing import final

__all__ = ["MethodResult", "TaskResult"]


@final
@dataclass(frozen=True)
class MethodResult:
    """What one method reached on the test samples; shares lie between 0 and 1.

    Attributes
    ----------
    coverage, size : float
        Share of sets that hold the label, and their mean size.
    contradicted_coverage, contradicted_lower, contradicted_upper, contradicted_size : float
        The same on contradicted samples, with the exact 95% interval of the coverage; NaN
        (interval 0 to 1) if there are none.
    gap, noise_floor : float
        CovGap over 16 cells of confidence x trust in percentage points, and what a perfect
        method would show.
    low_coverage : float, optional
        Share of samples whose true coverage is below 80%, where it is known.
    """

    coverage: float
    size: float
    contradicted_coverage: float
    contradicted_lower: float
    contradicted_upper: float
    contradicted_size: float
    gap: float
    noise_floor: float
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
        Miscoverage that was asked for.
    n_classes, n_calibration, n_test, n_contradicted : int
        Classes; calibration samples, test samples, and contradicted test samples.
    accuracy, confidence, calibration_error : float
        Of the classifier, on all samples that it was not trained on.
    contradicted_accuracy, contradicted_confidence : float
        On the contradicted test samples.
    methods : dict of str to MethodResult
        ``STANDARD``, ``NAIVE`` and ``CONDITIONAL``.
    grown_coverage, grown_size : float
        Coverage of contradicted samples by STANDARD sets whose alpha was lowered until they
        were as large on average as those of CONDITIONAL, and the mean size reached.
    p_value : float
        Exact test (McNemar) that STANDARD and CONDITIONAL cover contradicted samples equally.
    report : str
        Path of the report.
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
