"""`Monitor`: takes batches with and without labels, and says when coverage breaks.

First comes `Monitor`, then what it says (`Verdict`), then the sequential tests, then its state.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self, final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy import special

from trustsets import storage
from trustsets._arrays import (
    MISSING,
    Array,
    Codes,
    Flavour,
    Floats,
    column,
    encode_labels,
    group_column,
    texts_of,
    to_numpy,
)
from trustsets._draws import Stream, resolve_seed, row_uniforms
from trustsets._frames import frame_of_rows
from trustsets._parameters import Open, check_alpha, check_arguments, check_fields
from trustsets.basis import Bins, FittedBins
from trustsets.errors import InputError, StorageError
from trustsets.metrics import PlainData
from trustsets.outputs import ModelOutputs, require_outputs
from trustsets.planning import CoverageLaw
from trustsets.predictors import Predictor
from trustsets.statistics import Confidence, Trust
from trustsets.storage import storable

__all__ = [
    "EmpiricalDistribution",
    "Evidence",
    "Monitor",
    "Verdict",
    "miss_bets",
    "rank_bets",
    "share_intervals",
    "tail_bets",
]

# Shares of the false-alarm rate: coverage of all samples; scores of all samples; scores of regions,
# of classes and of groups; statistics that need no label.
WEIGHTS = {
    "coverage": 1 / 4,
    "all": 1 / 4,
    "region": 1 / 12,
    "class": 1 / 12,
    "group": 1 / 12,
    "drift": 1 / 4,
}
_BETS = {"miss": 3, "drift": 6}
# A group column takes part if it has at most so many values.
_MOST_GROUPS = 100
_REGIONS = {1: 5, 2: 3}  # quantile bins of Conf alone; or of Conf, and of Trust within each
# Samples that may wait for their labels; of more, the oldest are left out.
_MOST_PENDING = 10_000
# Principal components that the distance of features is made of.
_COMPONENTS = 10
# Principal components that are tested by themselves.
_DIRECTIONS = 3
_SMALLEST_VARIANCE = 1e-12
# Numbers of K classes that are measured at a time.
_BLOCK = 1 << 22
_LOG_TEN = math.log(10.0)
# Alarms that the sentences name; the tables have all.
_MOST_NAMED = 5

# Values are rounded to so many binary digits before they are compared, so that any number of them
# takes little memory. Rounded values tie, and ties are broken at random: p-values stay exact.
_DIGITS = 10
# Values that are ranked at a time; each is compared with all before it in the piece.
_PIECE = 256

# A bet multiplies the odds of a miss, or of a large score, by one of these.
_ODDS = (1.5, 2.5, 5.0)
# Bets on a shift of any statistic: odds of the lowest and of the highest tenth, and slopes.
_TAIL = 0.1
_TAIL_ODDS = (2.0, 4.0)
_SLOPES = (-0.8, 0.8)
# Nobody knows when a change comes: a part of the capital starts to bet at every sample, as in the
# procedure of Shiryaev and Roberts, but with parts that add up to 1, so that the false-alarm rate
# holds over an unlimited time. After t samples, log(c) / log(t + c) of the capital has not started
# to bet. Of all slow decays this costs little at late changes: about log t + 2 log log t in units
# of log evidence.
_DELAY = 20.0

# Steps of a bisection in [0, 1], and the prior Beta(1/2, 1/2) of the mixture.
_STEPS = 60
_PRIOR = 0.5


@final
class Monitor:
    """Watches the coverage of a calibrated predictor on new samples.

    With labels, it counts coverage and set sizes of all samples and by region of Conf and Trust,
    class and group, and tests whether the labels agree less with the model than before. Without
    labels, it tests whether Conf, Trust, set sizes and features have changed. If nothing changes,
    the probability that any of these tests ever gives an alarm is at most `false_alarm`, however
    often one looks.

    Parameters
    ----------
    predictor : Predictor
        Calibrated. It is not changed.
    alpha : float
        Allowed miscoverage of the sets.
    reference : ModelOutputs, optional
        The samples that the predictor was calibrated on, with which new ones are compared. Without,
        all but the scores of all samples together is compared with earlier new samples.
    false_alarm : float
        Probability of any alarm if nothing changes.
    level : float
        Confidence level of each interval.
    random_state : int, None or generator
        Seed of the draws that break ties between scores, and of the order within batches.

    Notes
    -----
    Each new score is ranked among those of the calibration samples and of all earlier new samples;
    such ranks are uniform if nothing changes (Vovk, Gammerman and Shafer 2005). The test of misses
    allows for the rate of misses that the calibration samples explain (exact for
    `StandardConformal`, and for other methods to first order in 1 / n).

    Which samples get late labels must not depend on how hard they are. After an alarm, calibrate on
    recent samples and begin a new monitor.

    Examples
    --------
    >>> from trustsets import StandardConformal
    >>> rng = np.random.default_rng(0)
    >>> logits = 2.0 * rng.normal(size=(3000, 4))
    >>> labels = (logits + rng.gumbel(size=(3000, 4))).argmax(axis=1)
    >>> calibration, new = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> predictor = StandardConformal().calibrate(calibration)
    >>> monitor = Monitor(predictor, alpha=0.1, reference=calibration)
    >>> monitor.observe(new).verdict().alarm
    False
    >>> wrong = ModelOutputs(logits=logits[:500], labels=rng.permutation(labels[:500]))
    >>> monitor.observe(wrong).verdict().alarm
    True
    """

    def __init__(
        self,
        predictor: Predictor,
        alpha: float = 0.1,
        *,
        reference: ModelOutputs | None = None,
        false_alarm: float = 0.05,
        level: float = 0.95,
        random_state: Any = 0,
    ) -> None:
        n = _require_predictor(predictor).n_calibration_
        if reason := predictor.batch_dependence:
            raise InputError(f"predictor cannot be monitored: {reason}.")
        setting = Setting(
            alpha=check_alpha(alpha),
            false_alarm=false_alarm,
            level=level,
            seed=resolve_seed(random_state),
        )
        check_fields(setting)
        # Half of the rate of this test is for the calibration, half for the betting.
        tail = false_alarm * WEIGHTS["coverage"] / 2.0
        lowest, _ = CoverageLaw(setting.alpha).interval(n, 1.0 - 2.0 * tail)
        self._predictor = predictor.copy()  # may be calibrated anew, and `rate` is of this state
        self._state = MonitorState(
            setting=setting,
            rate=max(1.0 - lowest, setting.alpha),
            pending=Samples.none(predictor.classes_.size),
        )
        if reference is not None:
            self._begin(_calibration_part(predictor, self._prepared(reference)), is_reference=True)

    def __repr__(self) -> str:
        samples, labelled = self._state.samples, self._state.coverage.count
        alpha = self._state.setting.alpha
        return f"Monitor(alpha={alpha:g}, {samples:,} samples, {labelled:,} with labels)"

    def observe(
        self,
        outputs: ModelOutputs,
        *,
        ids: Any = None,
        batch: str | None = None,
        in_order: bool = False,
    ) -> Self:
        """Take a batch of new samples, with labels or without.

        Parameters
        ----------
        outputs : ModelOutputs
            New samples.
        ids : array of shape (m,), optional
            Identities. Samples without labels then wait for them, the last 10,000 at most; see
            `label`. Samples that waited and now come with labels are counted once.
        batch : str, optional
            Name of the batch; one of a name that was taken before is left out.
        in_order : bool
            The samples are in the order in which they came. By default their order within the
            batch counts for nothing, as files are often sorted.
        """
        if batch is not None and str(batch) in self.batches:
            return self
        names = _check_ids(ids, len(require_outputs(outputs, "outputs")))
        outputs = self._prepared(outputs)
        order = self._order(len(outputs), in_order)
        outputs, names = outputs.take(order), names[order]
        with self._next_batch(batch):
            if not self._state.parts:
                self._begin(outputs)
            for rows in _blocks(outputs):
                self._take(outputs.take(rows), names[rows])
        return self

    def label(
        self, ids: Any, labels: Any, *, batch: str | None = None, in_order: bool = False
    ) -> int:
        """Take true classes of samples that wait for them; return how many ids were waiting.

        `batch` and `in_order` are as in `observe`, but a batch counts as taken only when all its
        samples were waiting: until then it may be given again. Unknown identities are ignored.
        """
        if batch is not None and str(batch) in self.batches:
            return 0
        ids = to_numpy(ids, "ids")
        names = _check_ids(ids, ids.size)
        codes = encode_labels(column(labels, "labels", len(names)), self._predictor.classes_)
        order = self._order(len(names), in_order)
        names, codes = names[order], codes[order]
        waiting, labelled = _match(self._state.pending.ids, names)
        if labelled.size:
            with self._next_batch(batch if labelled.size == len(names) else None):
                self._label_pending(waiting, codes[labelled])
        return int(labelled.size)

    @property
    def batches(self) -> list[str]:
        """Names of the batches that were taken, of those that have one."""
        return [name for name in self._state.batches if name]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state, with a checksum of the predictor, to a file; no pickle, atomic."""
        storage.write(path, self._state, note=_digest(self._predictor))

    @classmethod
    def load(cls, path: str | os.PathLike[str], predictor: Predictor) -> Self:
        """Continue from a file that `save` wrote, with the same predictor."""
        state = storage.read(path)
        if not isinstance(state, MonitorState):
            raise StorageError(f"{path}: it holds a {type(state).__name__}, not a monitor.")
        if storage.read_note(path) != _digest(_require_predictor(predictor)):
            raise StorageError(
                f"{path}: it is of another predictor, or another calibration. Begin a new monitor."
            )
        monitor = cls.__new__(cls)
        monitor._predictor, monitor._state = predictor.copy(), state
        return monitor

    def verdict(self) -> "Verdict":
        """What the tests say so far; ``print`` shows it in sentences."""
        state, setting = self._state, self._state.setting
        needed = setting.needed(WEIGHTS["coverage"] / 2.0)
        tests = [_test_row("coverage", "misses", state.coverage, needed)]
        watched: list[Part | Drift] = [*state.parts, *state.drifts]
        for item in watched:
            needed = setting.needed(item.weight)
            tests.append(_test_row(item.kind, item.name, item.evidence, needed))
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
            parts=_part_rows(state),
            tests=tuple(tests),
        )

    @contextmanager
    def _next_batch(self, name: str | None) -> Iterator[None]:
        """Count a batch; leave the state as it was if the batch cannot be taken."""
        before = deepcopy(self._state)
        try:
            yield
            self._state.batches = (*self._state.batches, "" if name is None else str(name))
        except BaseException:
            self._state = before
            raise

    def _order(self, n: int, in_order: bool) -> Codes:
        """Order in which the samples of a batch are taken."""
        check_arguments(bool, in_order=in_order)
        if in_order:
            return np.arange(n)
        seed = [self._state.setting.seed, len(self._state.batches)]
        return np.random.default_rng(seed).permutation(n)

    def _prepared(self, outputs: ModelOutputs) -> ModelOutputs:
        """Samples with the class names of the calibration, and with trust where it is known."""
        labelled = require_outputs(outputs, "outputs").codes is not None
        return self._predictor._prepare(outputs, with_labels=labelled)

    def _take(self, outputs: ModelOutputs, ids: Array) -> None:
        """Measure samples that are new, test them without labels, and label or keep them."""
        state, setting, codes = self._state, self._state.setting, outputs.codes
        waiting, labelled = _match(state.pending.ids, ids)
        if codes is not None:
            self._label_pending(waiting, codes[labelled])
        fresh = np.setdiff1d(np.arange(len(ids)), labelled)
        if fresh.size == 0:
            return
        outputs = outputs.take(fresh)
        assert state.regions is not None
        samples = Samples(
            ids=ids[fresh],
            scores=self._predictor.scores(outputs),
            mask=np.array(self._predictor.predict_set(outputs, setting.alpha).mask),
            regions=state.regions.cells(outputs),
            groups={name: np.array(texts_of(values)) for name, values in outputs.groups.items()},
        )
        state.samples += len(samples)
        values = self._statistics(outputs) | {"set size": samples.sizes.astype(np.float64)}
        for drift in state.drifts:
            if drift.name in values:
                drift.add(values[drift.name], setting)
        if codes is not None:
            state.label(samples, codes[fresh])
        elif ids[0]:
            joined = state.pending.joined(samples)
            surplus = max(0, len(joined) - _MOST_PENDING)
            state.pending = joined.take(slice(surplus, None))
            state.dropped += surplus

    def _label_pending(self, waiting: Codes, codes: Codes) -> None:
        if waiting.size:
            pending = self._state.pending
            self._state.label(pending.take(waiting), codes)
            self._state.pending = pending.take(np.setdiff1d(np.arange(len(pending)), waiting))

    def _statistics(self, outputs: ModelOutputs) -> dict[str, Floats]:
        """Statistics that do not depend on the calibration samples."""
        statistics = {"confidence": outputs.confidence}
        if outputs.trust is not None:
            statistics["trust"] = outputs.trust
        if self._state.directions is not None and outputs.features is not None:
            statistics |= self._state.directions.values(outputs.features)
        return statistics

    def _begin(self, outputs: ModelOutputs, is_reference: bool = False) -> None:
        """Define the parts that are watched, by the reference or else by the first batch."""
        state = self._state
        watched = (Confidence(),) if outputs.trust is None else (Confidence(), Trust())
        state.regions = Bins(*watched, counts=_REGIONS[len(watched)]).fit(outputs)
        columns = {name: np.unique(values.astype(str)) for name, values in outputs.groups.items()}
        classes = self._predictor.classes_.tolist()
        state.parts = make_parts(_region_names(state.regions), classes, columns)
        # Directions are learned from one half of a reference, and the other half is ranked.
        uniforms = row_uniforms(state.setting.seed, Stream.MONITOR_PARTS, np.arange(len(outputs)))
        learned = uniforms < 0.5
        if is_reference and outputs.features is not None and min(sum(learned), sum(~learned)) > 1:
            state.directions = Directions.fit(outputs.features[learned])
        statistics = self._statistics(outputs)
        names = [*statistics, "set size"]
        state.drifts = tuple(Drift(name, WEIGHTS["drift"] / len(names)) for name in names)
        if is_reference:
            for drift, (name, values) in zip(state.drifts, statistics.items(), strict=False):
                # Directions fit the samples they were learned from too well.
                drift.earlier.add(values[~learned] if name.startswith("feature ") else values)
        if not is_reference or outputs.codes is None:
            state.parts[0].earlier.add(self._predictor.state_.scores)
            return
        codes, scores = outputs.codes, np.empty(len(outputs))
        for rows in _blocks(outputs):
            matrix = self._predictor.scores(outputs.take(rows))
            scores[rows] = matrix[np.arange(rows.size), codes[rows]]
        regions = state.regions.cells(outputs)
        groups = {name: values.astype(str) for name, values in outputs.groups.items()}
        for part in state.parts:
            part.earlier.add(scores[part.contains(regions, codes, groups)])


def _require_predictor(predictor: Any) -> Predictor:
    if not isinstance(predictor, Predictor):
        raise InputError(
            f"predictor must be a calibrated predictor; got {type(predictor).__name__}."
        )
    if hasattr(predictor, "shift") or getattr(predictor, "paper_rules", False):
        raise InputError(
            "predictor must guarantee marginal coverage of samples like those of calibration; one "
            "that was adapted, or has paper_rules=True, does not. Calibrate on labelled samples of "
            "the population to monitor."
        )
    return predictor


def _digest(value: Any) -> str:
    """Checksum of a parameter or, of a predictor, of what its sets depend on."""
    if isinstance(value, Predictor):
        # Taking all samples drops what only makes a loaded predictor faster.
        state = value._state().take(np.arange(value.n_calibration_))
        parameters = {name: _digest(item) for name, item in value.get_params(deep=False).items()}
        return storage.digest(type(value).__name__, state, parameters)
    try:
        return storage.digest(value)
    except StorageError:  # your own trust score, say, which no file can hold
        return type(value).__name__


def _blocks(outputs: ModelOutputs) -> list[Codes]:
    """Rows that are measured at a time."""
    step = max(1, _BLOCK // outputs.n_classes)
    starts = range(0, len(outputs), step)
    return [np.arange(start, min(start + step, len(outputs))) for start in starts]


def _calibration_part(predictor: Predictor, reference: ModelOutputs) -> ModelOutputs:
    """The calibration samples among all that `calibrate` was given, tuning samples included."""
    used = np.isin(reference.rows, predictor.calibration_rows_)
    whole = len(reference) == predictor.n_calibration_ + predictor.n_tuning_
    return reference.take(used) if whole and used.any() else reference


def _check_ids(ids: Sequence[Any] | Array | None, n: int) -> Array:
    """Identities as texts; empty ones where none are given."""
    if ids is None:
        return np.full(n, "", dtype="U1")
    # Integers with gaps come as floats: 7.0 is the sample 7.
    texts = np.array(texts_of(group_column(ids, "ids", n)), dtype=str)
    if np.unique(texts).size != n or np.isin(texts, ["", MISSING]).any():
        raise InputError("ids must be different for all samples, and neither missing nor empty.")
    return texts


def _match(waiting: Array, ids: Array) -> tuple[Codes, Codes]:
    """Positions in both arrays of the ids that are in both, in the order of the second."""
    position = {name: i for i, name in enumerate(waiting.tolist())}
    pairs = [(position[name], i) for i, name in enumerate(ids.tolist()) if name in position]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


@final
@dataclass(frozen=True)
class PartRow:
    """Coverage and set size of the labelled samples of one part.

    `kind` is ``"all"``, ``"region"``, ``"class"`` or ``"group"``, and `part` says it in words.
    Intervals hold at all times at once, and `size` is a mean.
    """

    kind: str
    part: str
    n: int
    covered: int
    coverage: float
    lower: float
    upper: float
    size: float


@final
@dataclass(frozen=True)
class TestRow:
    """State of one test.

    `kind` is ``"coverage"`` (more misses than the calibration explains), ``"all"``, ``"region"``,
    ``"class"`` or ``"group"`` (scores of the labels have risen), or ``"drift"`` (a statistic that
    needs no label has changed). `evidence` now, its `peak` so far and what an alarm has `needed`
    are powers of ten. `alarm_at` is the tested sample at which there was an alarm; 0 for none.
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
    samples, labelled, pending, dropped, batches : int
        Samples seen; with labels; waiting for their labels; given up because too many waited;
        batches taken.
    parts, tests : tuple of PartRow, tuple of TestRow
        Coverage and sizes, where there are labels; and all tests.
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
        alarms = [test for test in self.tests if test.alarm_at]
        return tuple(sorted(alarms, key=lambda test: test.needed - test.peak))

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
            f"Coverage so far is {row.coverage:.1%} (interval {row.lower:.1%} to {row.upper:.1%}), "
            f"where {1.0 - self.alpha:.1%} was asked for."
        )

    def _sentence(self, test: TestRow) -> str:
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
        row = next(row for row in self.parts if (row.kind, row.part) == (test.kind, test.part))
        where = "of all samples" if test.kind == "all" else f"where {test.part}"
        return (
            f"Labels {where} agree less with the model than before (alarm at labelled sample "
            f"{test.alarm_at:,} of {test.n:,}). Coverage there is {row.coverage:.1%}."
        )


def _test_row(kind: str, part: str, evidence: "Evidence", needed: float) -> TestRow:
    now, peak, wanted = (value / _LOG_TEN for value in (evidence.now, evidence.peak, needed))
    return TestRow(kind, part, evidence.count, now, peak, wanted, evidence.alarm_at)


def _part_rows(state: "MonitorState") -> tuple[PartRow, ...]:
    parts = [part for part in state.parts if part.count]
    count = np.array([part.count for part in parts], dtype=np.float64)
    covered = np.array([part.covered for part in parts], dtype=np.float64)
    lower, upper = share_intervals(covered, count, state.setting.level)
    return tuple(
        PartRow(
            kind=part.kind,
            part=part.name,
            n=part.count,
            covered=part.covered,
            coverage=part.covered / part.count,
            lower=low,
            upper=high,
            size=part.sizes / part.count,
        )
        for part, low, high in zip(parts, lower.tolist(), upper.tolist(), strict=True)
    )


# ---- Sequential tests and intervals ------------------------------------------------------------

# Three steps lead from a stream of numbers to an alarm. `EmpiricalDistribution` ranks each number
# among all before it. If nothing changes, these conformal p-values are independent and uniform,
# whatever the law of the numbers and however many are equal (Vovk, Gammerman and Shafer 2005,
# chapter 8). Bets turn p-values, or misses, into factors. `Evidence` multiplies the factors: it is
# the capital of a gambler who bets against the hypothesis that nothing has changed. Under the
# hypothesis it is a test martingale (or smaller), so it ever reaches 1 / q with probability q at
# most, however often one looks (Ville 1939).


@final
@storable
@dataclass
class EmpiricalDistribution:
    """All values of a stream so far: distinct ones in increasing order, and how often each came."""

    values: Floats = field(default_factory=lambda: np.empty(0))
    counts: Codes = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return int(self.counts.sum())

    def add(self, values: Floats) -> None:
        """Add values without ranking them."""
        self._merge(_rounded(values))

    def p_values(self, values: Floats, draws: Floats) -> Floats:
        """Rank values one after the other, and add each after it was ranked, shape (m,).

        With g of the N values before larger, e equal, and a uniform draw U that breaks ties, it is
        ``(g + U (e + 1)) / (N + 1)``: small where a value is large.
        """
        rounded, ranks = _rounded(values), np.empty(values.size)
        for start in range(0, values.size, _PIECE):
            piece = slice(start, start + _PIECE)
            ranks[piece] = self._rank(rounded[piece], draws[piece])
            self._merge(rounded[piece])
        return ranks

    def _rank(self, values: Floats, draws: Floats) -> Floats:
        up_to = np.concatenate([[0], np.cumsum(self.counts)])
        below = up_to[np.searchsorted(self.values, values, side="left")]
        not_above = up_to[np.searchsorted(self.values, values, side="right")]
        before = np.tri(values.size, k=-1, dtype=bool)
        larger = up_to[-1] - not_above + np.sum(before & (values > values[:, None]), axis=1)
        equal = not_above - below + np.sum(before & (values == values[:, None]), axis=1)
        return np.asarray((larger + draws * (equal + 1)) / (up_to[-1] + 1 + np.arange(values.size)))

    def _merge(self, values: Floats) -> None:
        joined = np.concatenate([self.values, values])
        times = np.concatenate([self.counts, np.ones(values.size, dtype=np.int64)])
        self.values, inverse = np.unique(joined, return_inverse=True)
        self.counts = np.bincount(inverse, weights=times).astype(np.int64)


def _rounded(values: Floats) -> Floats:
    """Numbers with `_DIGITS` binary digits; infinite ones stay infinite."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**_DIGITS), exponent - _DIGITS)) + 0.0


def miss_bets(misses: Any, rate: float) -> Floats:
    """Bets against "the rate of misses is at most `rate`", shape (m, B), in logarithms."""
    odds = np.array(_ODDS)
    return np.asarray(misses[:, None] * np.log(odds) - np.log1p((odds - 1.0) * rate))


def rank_bets(p_values: Floats, alpha: float) -> Floats:
    """Bets that more than a share alpha of p-values is at most alpha: scores have risen."""
    return miss_bets(p_values <= alpha, alpha)


def tail_bets(p_values: Floats) -> Floats:
    """Bets that p-values are not uniform: more of them low, or high."""
    odds = np.array(_TAIL_ODDS)
    tails = [p_values <= _TAIL, p_values >= 1.0 - _TAIL]
    steps = [tail[:, None] * np.log(odds) - np.log1p((odds - 1.0) * _TAIL) for tail in tails]
    slopes = np.log1p(np.array(_SLOPES) * (2.0 * p_values[:, None] - 1.0))
    return np.hstack([*steps, slopes])


@final
@storable
@dataclass
class Evidence:
    """Capital of several bets, as logarithms.

    `wealth`, of shape (B,), is what each bet has made of its started parts. `now` is the evidence
    after the last of `count` samples, `peak` the largest so far, and `alarm_at` the sample at which
    it first reached what an alarm needs; 0 if it never did.
    """

    wealth: Floats
    count: int = 0
    peak: float = 0.0
    alarm_at: int = 0
    now: float = 0.0

    @classmethod
    def start(cls, n_bets: int) -> "Evidence":
        """Capital of 1 that has not started to bet."""
        return cls(np.full(n_bets, -np.inf))

    def update(self, bets: Floats, needed: float) -> None:
        """Bet on samples in their order, by log factors of shape (m, B)."""
        if len(bets) == 0:
            return
        waiting = _waiting(self.count + np.arange(len(bets) + 1))
        begun = np.log(waiting[:-1] - waiting[1:])
        product = np.cumsum(bets, axis=0)
        # R_t = P_t (R_0 + sum_{s <= t} w_s / P_{s-1}), where P_t is the product of the factors.
        earlier = np.vstack([np.zeros(bets.shape[1]), product[:-1]])
        started = np.vstack([self.wealth, begun[:, None] - earlier])
        wealth = product + np.logaddexp.accumulate(started, axis=0)[1:]
        mean = np.logaddexp.reduce(wealth, axis=1) - np.log(bets.shape[1])
        total = np.logaddexp(np.log(waiting[1:]), mean)
        reached = np.flatnonzero(total >= needed)
        if reached.size and not self.alarm_at:
            self.alarm_at = self.count + int(reached[0]) + 1
        self.wealth, self.now = wealth[-1], float(total[-1])
        self.count, self.peak = self.count + len(bets), max(self.peak, float(total.max()))


def _waiting(count: Any) -> Floats:
    """Share of the capital that has not started to bet after so many samples."""
    return np.asarray(np.log(_DELAY) / np.log(count + _DELAY))


def share_intervals(hits: Floats, count: Floats, level: float) -> tuple[Floats, Floats]:
    """Time-uniform interval of a probability from so many hits of so many trials, elementwise.

    The probabilities p at which the likelihood of a mixture over all probabilities is less than
    1 / (1 - level) times that of p (Robbins 1970; Howard, Ramdas, McAuliffe and Sekhon 2021).
    """
    misses = count - hits
    mixture = special.betaln(hits + _PRIOR, misses + _PRIOR) - special.betaln(_PRIOR, _PRIOR)

    def is_out(p: Floats) -> Floats:
        likelihood = special.xlogy(hits, p) + special.xlog1py(misses, -p)
        return np.asarray(mixture - likelihood >= -np.log1p(-level))

    centre = np.where(count > 0, hits / np.maximum(count, 1.0), 0.5)
    ends = []
    for bound in (0.0, 1.0):
        outer, inner = np.full(centre.shape, bound), centre.copy()
        with np.errstate(divide="ignore"):
            for _ in range(_STEPS):
                middle = (outer + inner) / 2.0
                out = is_out(middle)
                outer, inner = np.where(out, middle, outer), np.where(out, inner, middle)
        ends.append(outer)
    return ends[0], ends[1]


# ---- State ------------------------------------------------------------------------------------


@final
@storable
@dataclass(frozen=True)
class Setting:
    """Parameters of a monitor."""

    alpha: Open
    false_alarm: Open
    level: Open
    seed: int

    def needed(self, weight: float) -> float:
        """Log evidence that an alarm of a test needs, which has a share of the rate."""
        return float(-np.log(self.false_alarm * weight))

    def draws(self, name: str, start: int, count: int) -> Floats:
        """Uniform draws for the samples of a test, the same whatever the batches."""
        seed = (self.seed << 32) + crc32(name.encode())
        return row_uniforms(seed, Stream.MONITOR_TIES, np.arange(start, start + count))


def _region_names(regions: FittedBins) -> list[str]:
    """What each region contains, in words, in the order of the cells."""
    names = [""]
    for item, cuts in zip(regions.of, regions.cuts, strict=True):
        spans = [_spans(item.statistic.name, edges) for edges in cuts.tolist()]
        pairs = zip(names, spans, strict=True)
        names = [f"{name}, {span}".removeprefix(", ") for name, inner in pairs for span in inner]
    return names


def _spans(word: str, edges: list[float]) -> list[str]:
    """Names of the bins between edges."""
    inner = [f"{word} {low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    return [f"{word} below {edges[0]:.3g}", *inner, f"{word} from {edges[-1]:.3g}"]


@final
@storable
@dataclass(frozen=True)
class Directions:
    """Mean and principal components of features, for a few numbers that show a shift."""

    mean: Floats
    axes: Floats
    variances: Floats
    rest: float

    @classmethod
    def fit(cls, features: Array) -> Self:
        """Learn from the features of some samples, which must not be ranked afterwards."""
        numbers = features.astype(np.float64)
        mean = numbers.mean(axis=0)
        _, sizes, axes = np.linalg.svd(numbers - mean, full_matrices=False)
        variances = np.maximum(sizes**2 / len(numbers), _SMALLEST_VARIANCE)
        used = min(_COMPONENTS, variances.size)
        # Nothing is left but rounding where the axes span the features.
        others = numbers.shape[1] - used
        left = variances[used:].sum() / others if others else 1.0
        return cls(mean, axes[:used], variances[:used], max(float(left), _SMALLEST_VARIANCE))

    def values(self, features: Array) -> dict[str, Floats]:
        """Squared distance to the mean in units of the spread, and the first coordinates."""
        if features.shape[1] != self.mean.size:
            raise InputError(
                f"features must have {self.mean.size} columns, as those of the reference; got "
                f"{features.shape[1]}."
            )
        # Sums of a row are rounded in the order of its memory, and those of BLAS by the batch, too.
        centred = np.ascontiguousarray(features, dtype=np.float64) - self.mean
        along = np.einsum("ij,kj->ik", centred, self.axes)
        inside = (along**2 / self.variances).sum(axis=1)
        outside = np.maximum((centred**2).sum(axis=1) - (along**2).sum(axis=1), 0.0)
        first = enumerate(along.T[:_DIRECTIONS], start=1)
        return {"feature distance": inside + outside / self.rest} | {
            f"feature direction {number}": values for number, values in first
        }


@final
@storable
@dataclass
class Samples:
    """Measured samples without labels, which may come later."""

    ids: Array  # texts, shape (m,)
    scores: Floats  # of all classes, shape (m, K)
    mask: NDArray[np.bool_]  # prediction sets, shape (m, K)
    regions: Codes  # region of Conf and Trust, shape (m,)
    groups: dict[str, Array]  # texts, shape (m,)

    def __len__(self) -> int:
        return int(self.ids.size)

    @classmethod
    def none(cls, n_classes: int) -> Self:
        """No samples."""
        nothing = np.empty((0, n_classes))
        return cls(np.empty(0, "U1"), nothing, nothing.astype(bool), np.empty(0, np.int64), {})

    @property
    def sizes(self) -> Codes:
        """Number of classes in each set."""
        return np.asarray(np.count_nonzero(self.mask, axis=1))

    def take(self, index: Any) -> Self:
        """Some of the samples."""
        return type(self)(
            ids=self.ids[index],
            scores=self.scores[index],
            mask=self.mask[index],
            regions=self.regions[index],
            groups={name: column[index] for name, column in self.groups.items()},
        )

    def joined(self, other: "Samples") -> Self:
        """These samples and then others; those of a group column that one lacks are unknown."""
        names = dict.fromkeys([*self.groups, *other.groups])

        def column(part: Samples, name: str) -> Array:
            return part.groups.get(name, np.full(len(part), "", dtype="U1"))

        return type(self)(
            ids=np.concatenate([self.ids, other.ids]),
            scores=np.vstack([self.scores, other.scores]),
            mask=np.vstack([self.mask, other.mask]),
            regions=np.concatenate([self.regions, other.regions]),
            groups={n: np.concatenate([column(self, n), column(other, n)]) for n in names},
        )


@final
@storable
@dataclass
class Part:
    """Labelled samples of one kind: coverage, sizes, and the test of their scores.

    `code` is the number of the region or class, `column` and `value` are those of the group.
    """

    kind: str
    name: str
    weight: float
    code: int = 0
    column: str = ""
    value: str = ""
    count: int = 0
    covered: int = 0
    sizes: int = 0  # sum of the sizes of the sets
    earlier: EmpiricalDistribution = field(default_factory=EmpiricalDistribution)
    evidence: Evidence = field(default_factory=lambda: Evidence.start(_BETS["miss"]))

    def contains(self, regions: Codes, codes: Codes, groups: Mapping[str, Array]) -> Any:
        """Which samples it is about, from their regions, label codes and groups."""
        if self.kind == "all":
            return np.ones(len(codes), dtype=bool)
        if self.kind == "group":
            return groups.get(self.column, np.full(len(codes), "")) == self.value
        return (regions if self.kind == "region" else codes) == self.code

    def add(self, covered: Any, sizes: Codes, scores: Floats, setting: Setting) -> None:
        """Take labelled samples: whether covered, set size, score of the label."""
        draws = setting.draws(f"{self.kind}:{self.name}", self.count, scores.size)
        bets = rank_bets(self.earlier.p_values(scores, draws), setting.alpha)
        self.evidence.update(bets, setting.needed(self.weight))
        self.count += scores.size
        self.covered += int(np.count_nonzero(covered))
        self.sizes += int(sizes.sum())


@final
@storable
@dataclass
class Drift:
    """The test of a statistic that needs no label."""

    name: str
    weight: float
    earlier: EmpiricalDistribution = field(default_factory=EmpiricalDistribution)
    evidence: Evidence = field(default_factory=lambda: Evidence.start(_BETS["drift"]))

    kind = "drift"

    def add(self, values: Floats, setting: Setting) -> None:
        """Take the statistic of samples."""
        draws = setting.draws(f"drift:{self.name}", self.evidence.count, values.size)
        bets = tail_bets(self.earlier.p_values(values, draws))
        self.evidence.update(bets, setting.needed(self.weight))


@final
@storable
@dataclass
class MonitorState:
    """All that a monitor knows besides its predictor."""

    setting: Setting
    # Misses that the calibration samples explain, up to half the false-alarm rate of `coverage`.
    rate: float
    pending: Samples
    # Tests with and without labels; none before the first samples.
    parts: tuple[Part, ...] = ()
    drifts: tuple[Drift, ...] = ()
    regions: FittedBins | None = None
    directions: Directions | None = None
    # Evidence of more misses than `rate`.
    coverage: Evidence = field(default_factory=lambda: Evidence.start(_BETS["miss"]))
    samples: int = 0
    dropped: int = 0
    batches: tuple[str, ...] = ()

    def label(self, samples: Samples, codes: Codes) -> None:
        """Take labels of measured samples."""
        rows = np.arange(len(samples))
        covered, sizes = samples.mask[rows, codes], samples.sizes
        scores = samples.scores[rows, codes]
        needed = self.setting.needed(WEIGHTS["coverage"] / 2.0)
        self.coverage.update(miss_bets(~covered, self.rate), needed)
        for part in self.parts:
            inside = part.contains(samples.regions, codes, samples.groups)
            if inside.any():
                part.add(covered[inside], sizes[inside], scores[inside], self.setting)


def make_parts(
    regions: Sequence[str], classes: Sequence[Any], columns: Mapping[str, Array]
) -> tuple[Part, ...]:
    """All samples, then regions, classes and groups; each kind shares its rate equally."""
    groups = [
        (name, value)
        for name, values in columns.items()
        if values.size <= _MOST_GROUPS
        for value in values.tolist()
    ]
    names = {"region": list(regions), "class": [f"class {name}" for name in classes]}
    share = WEIGHTS["group"] / max(len(groups), 1)
    return (
        Part("all", "all samples", WEIGHTS["all"]),
        *(
            Part(kind, name, WEIGHTS[kind] / len(parts), code=code)
            for kind, parts in names.items()
            for code, name in enumerate(parts)
        ),
        *(
            Part("group", f"{name} = {value}", share, column=name, value=value)
            for name, value in groups
        ),
    )
