"""What a monitor says: whether coverage broke, where, and how sure that is."""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from trustsets._common.frames import Flavour, frame_of_rows
from trustsets.metrics.plain import PlainData
from trustsets.monitor.evidence import Evidence
from trustsets.monitor.intervals import share_intervals
from trustsets.monitor.state import WEIGHTS, MonitorState

__all__ = ["PartRow", "TestRow", "Verdict", "make_verdict"]

_LOG_TEN = math.log(10.0)
# Alarms that the sentences name; the tables have all.
_MOST_NAMED = 5


@final
@dataclass(frozen=True)
class PartRow:
    """Coverage and set size of the labelled samples of one part.

    Attributes
    ----------
    kind, part : str
        ``"all"``, ``"region"``, ``"class"`` or ``"group"``, and the part in words.
    n, covered : int
        Labelled samples, and those whose set holds the label.
    batch_n, batch_covered : int
        The same of the last batch alone.
    coverage, lower, upper : float
        Share covered, and its interval, which holds at all times at once.
    size, size_lower, size_upper : float
        Mean set size, and its interval.
    """

    kind: str
    part: str
    n: int
    covered: int
    batch_n: int
    batch_covered: int
    coverage: float
    lower: float
    upper: float
    size: float
    size_lower: float
    size_upper: float


@final
@dataclass(frozen=True)
class TestRow:
    """State of one test.

    Attributes
    ----------
    kind, part : str
        ``"coverage"`` (more misses than calibration explains), ``"all"``, ``"region"``,
        ``"class"`` or ``"group"`` (scores of the labels have risen), or ``"drift"`` (a statistic
        that needs no label has changed), and what it is about in words.
    n : int
        Samples tested.
    evidence, peak, needed : float
        Evidence now, the largest so far, and what an alarm needs, as powers of ten.
    alarm_at : int
        Number of the tested sample at which there was an alarm; 0 for none.
    """

    kind: str
    part: str
    n: int
    evidence: float
    peak: float
    needed: float
    alarm_at: int


@final
@dataclass(frozen=True)
class Verdict(PlainData):
    """What a monitor found so far.

    Attributes
    ----------
    alarm : bool
        Whether any test has given an alarm. It stays until a new monitor is begun.
    alpha, false_alarm, level : float
        Allowed miscoverage; probability of any alarm, ever, if nothing changes; confidence level
        of the intervals.
    samples, labelled, pending, dropped, batches : int
        Samples seen; with labels; waiting for their labels; given up because too many waited;
        batches taken.
    parts : tuple of PartRow
        Coverage and sizes, where there are labels.
    tests : tuple of TestRow
        All tests.
    """

    alarm: bool
    alpha: float
    false_alarm: float
    level: float
    samples: int
    labelled: int
    pending: int
    dropped: int
    batches: int
    parts: tuple[PartRow, ...]
    tests: tuple[TestRow, ...]

    def __str__(self) -> str:
        return self.summary()

    @property
    def alarms(self) -> tuple[TestRow, ...]:
        """Tests that have given an alarm, those of the most evidence first."""
        found = [test for test in self.tests if test.alarm_at]
        return tuple(sorted(found, key=lambda test: test.needed - test.peak))

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """Coverage and sizes, one row for each part."""
        return frame_of_rows([vars(row) for row in self.parts], flavour)

    def summary(self) -> str:
        """Say it in sentences."""
        seen = (
            f"{self.samples:,} samples in {self.batches:,} "
            f"{'batch' if self.batches == 1 else 'batches'}, {self.labelled:,} of them with "
            f"labels and {self.pending:,} that wait for theirs."
        )
        lines = [self._headline(), seen, self._coverage()]
        lines += [self._sentence(test) for test in self.alarms[:_MOST_NAMED]]
        if len(self.alarms) > _MOST_NAMED:
            lines.append(f"{len(self.alarms) - _MOST_NAMED:,} more tests have given an alarm.")
        if self.dropped:
            lines.append(
                f"{self.dropped:,} samples waited for their labels too long and are left out."
            )
        return "\n".join(line for line in lines if line)

    def _headline(self) -> str:
        rate = f"{100.0 * self.false_alarm:g}%"
        if not self.alarm:
            return f"No alarm. If nothing changes, one ever comes with probability {rate} at most."
        kinds = {test.kind for test in self.alarms}
        what = "the samples have changed" if kinds == {"drift"} else "coverage is at risk"
        return (
            f"Alarm: {what}. If nothing had changed, the probability of any alarm would be {rate} "
            "at most, however often one looks."
        )

    def _coverage(self) -> str:
        if not self.parts:
            return ""
        row = self.parts[0]
        return (
            f"Coverage so far is {_percent(row.coverage)} (interval {_percent(row.lower)} to "
            f"{_percent(row.upper)}), where {_percent(1.0 - self.alpha)} was asked for."
        )

    def _sentence(self, test: TestRow) -> str:
        known = {(row.kind, row.part): row for row in self.parts}
        if test.kind == "drift":
            return (
                f"{test.part.capitalize()} is not distributed as before (alarm at sample "
                f"{test.alarm_at:,}). Labels are not needed to see this; whether coverage suffers, "
                "only labels tell."
            )
        if test.kind == "coverage":
            return (
                f"More labels are missed than the calibration samples explain (alarm at labelled "
                f"sample {test.alarm_at:,})."
            )
        row = known[test.kind, test.part]
        where = "of all samples" if test.kind == "all" else f"where {test.part}"
        return (
            f"Labels {where} agree less with the model than before (alarm at labelled sample "
            f"{test.alarm_at:,} of {test.n:,}). Coverage there is {_percent(row.coverage)}, and "
            f"{_percent(row.batch_covered / row.batch_n) if row.batch_n else 'unknown'} in the "
            "last batch."
        )


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f}%"


def make_verdict(state: MonitorState, n_classes: int) -> Verdict:
    """Collect what a monitor has counted."""
    setting, tests = state.setting, []
    weight = WEIGHTS["coverage"] / 2.0
    tests.append(_test("coverage", "misses", state.coverage, setting.needed(weight)))
    for own in state.slices:
        tests.append(_test(own.kind, own.name, own.evidence, setting.needed(own.weight)))
    for drift in state.drifts:
        tests.append(_test("drift", drift.name, drift.evidence, setting.needed(drift.weight)))
    return Verdict(
        alarm=any(test.alarm_at for test in tests),
        alpha=setting.alpha,
        false_alarm=setting.false_alarm,
        level=setting.level,
        samples=state.samples,
        labelled=state.coverage.count,
        pending=len(state.pending),
        dropped=state.dropped,
        batches=len(state.batches),
        parts=_part_rows(state, n_classes),
        tests=tuple(tests),
    )


def _test(kind: str, part: str, evidence: Evidence, needed: float) -> TestRow:
    now, peak, wanted = (value / _LOG_TEN for value in (evidence.now, evidence.peak, needed))
    return TestRow(kind, part, evidence.count, now, peak, wanted, evidence.alarm_at)


def _part_rows(state: MonitorState, n_classes: int) -> tuple[PartRow, ...]:
    seen = [own for own in state.slices if own.count]
    count = np.array([own.count for own in seen], dtype=np.float64)
    covered = np.array([own.covered for own in seen], dtype=np.float64)
    lower, upper = share_intervals(covered, count, state.setting.level)
    rows = []
    for own, low, high in zip(seen, lower.tolist(), upper.tolist(), strict=True):
        ends = own.sizes.interval(state.setting.level)
        rows.append(
            PartRow(
                kind=own.kind,
                part=own.name,
                n=own.count,
                covered=own.covered,
                batch_n=own.batch[0],
                batch_covered=own.batch[1],
                coverage=own.covered / own.count,
                lower=low,
                upper=high,
                size=n_classes * own.sizes.mean,
                size_lower=n_classes * ends[0],
                size_upper=n_classes * ends[1],
            )
        )
    return tuple(rows)
