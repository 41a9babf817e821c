"""`Monitor`: takes batches with and without labels, and says when coverage breaks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any, Self, final

import numpy as np

from trustsets._common import storage
from trustsets._common.arrays import Array, Codes, column
from trustsets._common.quantiles import check_alpha
from trustsets._common.validation import check_open, encode_labels
from trustsets.errors import InputError, StorageError
from trustsets.monitor.samples import (
    Directions,
    Samples,
    calibration_part,
    check_ids,
    class_scores,
    fit_regions,
    fitting_half,
    known_trust,
    measure,
    region_names,
    stored_scores,
    without_ranked,
)
from trustsets.monitor.state import WEIGHTS, Drift, MonitorState, Setting, make_slices
from trustsets.monitor.verdict import Verdict, make_verdict
from trustsets.outputs import ModelOutputs
from trustsets.planning import CoverageLaw
from trustsets.predictors import Predictor
from trustsets.predictors.set_predictor import as_calibrated
from trustsets.predictors.tuning import resolve_seed

__all__ = ["Monitor"]

# Numbers of K classes that are measured at a time.
_BLOCK = 1 << 22


@final
class Monitor:
    """Watches the coverage of a calibrated predictor on new samples.

    With labels, it counts coverage and set sizes of all samples and by region of Conf and Trust,
    class and group, with intervals that hold at all times at once, and tests whether the labels
    agree less with the model than those of the calibration samples did. Without labels, it tests
    whether Conf, Trust, set sizes and features have changed. Set sizes depend on the calibration
    samples and are compared with those of earlier new samples alone. If nothing changes, the
    probability that any of these tests ever gives an alarm is at most `false_alarm`, however often
    one looks and however few the calibration samples are.

    Parameters
    ----------
    predictor : Predictor
        Calibrated. It is not changed.
    alpha : float
        Allowed miscoverage of the sets.
    reference : ModelOutputs, optional
        The samples that the predictor was calibrated on. New samples are compared with them from
        the first one on. Without, the scores that the predictor keeps are the reference of all
        samples together, and the earlier new samples that of everything else.
    trust : array of shape (n,), optional
        Trust of the reference samples, where it is known already.
    false_alarm : float
        Probability of any alarm if nothing changes.
    level : float
        Confidence level of each interval.
    conditional : bool
        Rank labels by conditional p-values instead of scores, where the predictor conditions on
        something and a reference is given. Half of the reference is needed to compute them, and
        new samples are ranked among the other half, so alarms may take longer. Scores are ranked
        within each region, class and group in any case.
    most_pending : int
        Samples that may wait for their labels; of more, the oldest are left out.
    random_state : int, None or generator
        Seed of the draws that break ties between scores, and of the order within batches.

    Notes
    -----
    The coverage of one calibrated predictor is not exactly 1 - alpha: about half of all predictors
    have less, so a test of "coverage is at least 1 - alpha" would not keep its rate although
    nothing has changed. The tests of scores avoid this exactly: each new score is ranked among
    those of the calibration samples and of all earlier new samples, and such ranks are uniform if
    nothing changes (Vovk, Gammerman and Shafer 2005). The same holds for conditional p-values,
    because those that are ranked come from a calibration on other samples. The test of misses
    counts as normal a rate of misses that the calibration samples explain with a probability that
    is part of the stated rate (exact for `StandardConformal`, and for other methods to first order
    in 1 / n).

    Labels that come later must come for a choice of samples that does not depend on how hard they
    are. After an alarm, calibrate on recent samples and begin a new monitor.

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
        trust: Any = None,
        false_alarm: float = 0.05,
        level: float = 0.95,
        conditional: bool = False,
        most_pending: int = 10_000,
        random_state: Any = 0,
    ) -> None:
        _check(predictor, false_alarm, level, most_pending)
        alpha = check_alpha(alpha)
        known = storage.digest(predictor.state_)
        seed = resolve_seed(random_state)
        setting = Setting(alpha, false_alarm, level, most_pending, seed, known)
        # Half of the rate of this test is for the calibration, half for the betting.
        tail = false_alarm * WEIGHTS["coverage"] / 2.0
        explained = 1.0 - CoverageLaw(alpha).interval(predictor.state_.n, 1.0 - 2.0 * tail)[0]
        self._predictor = predictor
        self._ranking: Predictor | None = None
        self._state = MonitorState(
            setting, max(explained, alpha), Samples.none(predictor.classes_.size)
        )
        if reference is not None:
            known_of = known_trust(predictor, reference, trust)
            self._begin(reference, known_of, is_reference=True, conditional=conditional)

    def observe(
        self,
        outputs: ModelOutputs,
        *,
        ids: Any = None,
        trust: Any = None,
        batch: str | None = None,
        time: str = "",
        in_order: bool = False,
    ) -> Self:
        """Take a batch of new samples, with labels or without.

        Parameters
        ----------
        outputs : ModelOutputs
            New samples.
        ids : array of shape (m,), optional
            Identities. Samples without labels then wait for them; see `label`. Samples that waited
            and now come with labels are counted once.
        trust : array of shape (m,), optional
            Trust of each sample, where it is known already.
        batch : str, optional
            Name of the batch; one of a name that was taken before is left out.
        time : str
            When it came, for a history.
        in_order : bool
            The samples are in the order in which they came. By default their order within the
            batch counts for nothing: files are often sorted, and sorted samples look as if they
            changed all the time.
        """
        if not self._is_new(batch):
            return self
        names = check_ids(ids, len(outputs))
        outputs = as_calibrated(
            self._predictor.state_, outputs, uses_labels=outputs.codes is not None
        )
        known = known_trust(self._predictor, outputs, trust)
        order = self._order(len(outputs), in_order)
        outputs, names = outputs.take(order), names[order]
        known = None if known is None else known[order]
        with self._all_or_nothing():
            if not self._state.slices:
                self._begin(outputs, known)
            self._state.next_batch()
            step = max(1, _BLOCK // outputs.n_classes)
            for start in range(0, len(outputs), step):
                rows = np.arange(start, min(start + step, len(outputs)))
                part = None if known is None else known[rows]
                self._take(outputs.take(rows), names[rows], part)
            self._finish(batch, time)
        return self

    def label(
        self,
        ids: Any,
        labels: Any,
        *,
        batch: str | None = None,
        time: str = "",
        in_order: bool = False,
    ) -> int:
        """Take labels of samples that wait for them; returns how many of the ids were waiting.

        Parameters
        ----------
        ids, labels : arrays of shape (m,)
            Identities and true classes. Unknown identities are ignored.
        batch, time, in_order
            As in `observe`.
        """
        if not self._is_new(batch):
            return 0
        names = check_ids(ids, len(ids))
        codes = encode_labels(column(labels, "labels", len(names)), self._predictor.classes_)
        order = self._order(len(names), in_order)
        names, codes = names[order], codes[order]
        waiting, given = _match(self._state.pending.ids, names)
        with self._all_or_nothing():
            self._state.next_batch()
            self._label_pending(waiting, codes[given])
            self._finish(batch, time)
        return int(given.size)

    def verdict(self) -> Verdict:
        """What was found so far; ``print`` shows it in sentences."""
        return make_verdict(self._state, self._predictor.classes_.size)

    @property
    def batches(self) -> list[str]:
        """Names of the batches that were taken, in their order."""
        return list(self._state.batches)

    @property
    def last_time(self) -> str:
        """When the last batch came, as it was given."""
        return self._state.last_time

    @property
    def alpha(self) -> float:
        """Allowed miscoverage."""
        return self._state.setting.alpha

    @property
    def false_alarm(self) -> float:
        """Probability of any alarm if nothing changes."""
        return self._state.setting.false_alarm

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state, without the predictor, to a file; no pickle, atomic."""
        state = self._state
        if self._ranking is not None:
            own = self._ranking.state_
            state = replace(state, ranking=replace(own, learned=own.learned.with_starts()))
        storage.write(path, state)

    @classmethod
    def load(cls, path: str | os.PathLike[str], predictor: Predictor) -> Self:
        """Continue from a file that `save` wrote, with the same predictor."""
        state = storage.read(path)
        if not isinstance(state, MonitorState):
            raise StorageError(f"{path}: it holds a {type(state).__name__}, not a monitor.")
        if state.setting.predictor != storage.digest(predictor.state_):
            raise StorageError(
                f"{path}: it belongs to a predictor with another calibration. Begin a new monitor."
            )
        monitor = cls.__new__(cls)
        monitor._predictor, monitor._state, monitor._ranking = predictor, state, None
        if state.ranking is not None:
            # In memory it is with the fits made of it, which a copy of the state must not copy.
            monitor._ranking = copy(predictor)
            monitor._ranking.state_, state.ranking = state.ranking, None
        return monitor

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Leave the state as it was if a batch cannot be taken."""
        before = deepcopy(self._state)
        try:
            yield
        except BaseException:
            self._state = before
            raise

    def _is_new(self, batch: str | None) -> bool:
        return batch is None or batch not in self._state.batches

    def _order(self, n: int, in_order: bool) -> Codes:
        """Order in which the samples of a batch are taken."""
        if in_order:
            return np.arange(n)
        seed = [self._state.setting.seed, len(self._state.batches)]
        return np.random.default_rng(seed).permutation(n)

    def _finish(self, batch: str | None, time: str) -> None:
        self._state.batches.append(batch or f"batch {len(self._state.batches) + 1}")
        self._state.last_time = time

    def _take(self, outputs: ModelOutputs, ids: Array, trust: Any) -> None:
        """Measure samples that are new, test them without labels, and label or keep them."""
        state, setting = self._state, self._state.setting
        waiting, given = _match(state.pending.ids, ids)
        fresh = np.setdiff1d(np.arange(len(ids)), given)
        codes = outputs.codes
        if codes is not None:
            self._label_pending(waiting, codes[given])
        if fresh.size == 0:
            return
        assert state.regions is not None
        outputs, trust = outputs.take(fresh), None if trust is None else trust[fresh]
        by = self._predictor, self._ranking
        samples = measure(*by, outputs, setting.alpha, state.regions, ids[fresh], trust)
        state.samples += len(samples)
        values = self._statistics(outputs, trust) | {"set size": samples.sizes * 1.0}
        for drift in state.drifts:
            if drift.name in values:
                drift.add(values[drift.name], setting)
        if codes is not None:
            state.label(samples, codes[fresh])
        elif ids[0]:
            self._keep(samples)

    def _statistics(self, outputs: ModelOutputs, trust: Any) -> dict[str, Any]:
        """Statistics that do not depend on the calibration samples."""
        found = {"confidence": outputs.confidence}
        if trust is not None:
            found["trust"] = trust
        if self._state.directions is not None and outputs.features is not None:
            found |= self._state.directions.values(outputs.features)
        return found

    def _label_pending(self, waiting: Codes, codes: Codes) -> None:
        if waiting.size:
            pending = self._state.pending
            self._state.label(pending.take(waiting), codes)
            self._state.pending = pending.take(np.setdiff1d(np.arange(len(pending)), waiting))

    def _keep(self, samples: Samples) -> None:
        state = self._state
        joined = state.pending.joined(samples)
        surplus = max(0, len(joined) - state.setting.most_pending)
        state.pending, state.dropped = joined.take(slice(surplus, None)), state.dropped + surplus

    def _begin(
        self,
        outputs: ModelOutputs,
        trust: Any,
        is_reference: bool = False,
        conditional: bool = False,
    ) -> None:
        """Define the parts that are watched, by the reference or else by the first batch."""
        state = self._state
        if is_reference:
            kept = calibration_part(self._predictor, outputs)
            outputs, trust = outputs.take(kept), None if trust is None else trust[kept]
        state.regions = fit_regions(outputs.with_trust(trust))
        columns = {name: np.unique(own.astype(str)) for name, own in outputs.groups.items()}
        classes = self._predictor.classes_.tolist()
        state.slices = make_slices(region_names(state.regions), classes, columns)
        halves = fitting_half(len(outputs), state.setting.seed)
        if is_reference and outputs.features is not None and min(sum(halves), sum(~halves)) > 1:
            state.directions = Directions.fit(outputs.features[halves])
        names = [*self._statistics(outputs, trust), "set size"]
        state.drifts = [Drift(name, WEIGHTS["drift"] / len(names)) for name in names]
        if is_reference:
            if conditional and outputs.codes is not None:
                self._rank_without(outputs, trust, ~halves)
            self._fill(outputs, trust, ~halves)
        else:
            state.slices[0].bag.add(stored_scores(self._predictor))

    def _rank_without(self, outputs: ModelOutputs, trust: Any, ranked: Any) -> None:
        """Make the predictor whose p-values the ranked samples and new ones are compared by."""
        alpha, known = self._state.setting.alpha, None if trust is None else trust[ranked]
        self._ranking = without_ranked(self._predictor, outputs.take(ranked), known, alpha)

    def _fill(self, outputs: ModelOutputs, trust: Any, ranked: Any) -> None:
        """Put the reference samples into the bags that new samples are ranked among."""
        state = self._state
        for name, values in self._statistics(outputs, trust).items():
            # Directions fit the samples they were learned from too well.
            own = values[ranked] if name.startswith("feature ") else values
            next(drift for drift in state.drifts if drift.name == name).bag.add(own)
        if outputs.codes is None:
            state.slices[0].bag.add(stored_scores(self._predictor))
            return
        assert state.regions is not None
        if self._ranking is not None:
            outputs, trust = outputs.take(ranked), None if trust is None else trust[ranked]
        scores = self._label_scores(outputs, trust)
        cells = state.regions.cells(outputs.with_trust(trust))
        groups = {name: own.astype(str) for name, own in outputs.groups.items()}
        for own in state.slices:
            if own.kind == "all":
                own.bag.add(scores)
            elif own.kind == "group":
                own.bag.add(scores[groups[own.column] == own.value])
            else:
                own.bag.add(scores[(cells if own.kind == "region" else outputs.codes) == own.place])

    def _label_scores(self, outputs: ModelOutputs, trust: Any) -> Any:
        codes, found = outputs.require_labels("the reference"), np.empty(len(outputs))
        alpha, step = self._state.setting.alpha, max(1, _BLOCK // outputs.n_classes)
        for start in range(0, len(outputs), step):
            rows = np.arange(start, min(start + step, len(outputs)))
            part = None if trust is None else trust[rows]
            by = self._predictor, self._ranking
            scores = class_scores(*by, outputs.take(rows), alpha, part)
            found[rows] = scores[np.arange(rows.size), codes[rows]]
        return found


def _check(predictor: Predictor, false_alarm: float, level: float, most_pending: int) -> None:
    predictor._state()
    check_open(false_alarm=false_alarm, level=level)
    if most_pending < 0:
        raise InputError(f"most_pending must not be negative; got {most_pending}.")
    if reason := predictor.batch_dependence:
        raise InputError(f"predictor cannot be monitored: {reason}.")


def _match(waiting: Array, given: Array) -> tuple[Codes, Codes]:
    """Places in both arrays of the ids that are in both, in the order of the second."""
    place = {name: i for i, name in enumerate(waiting.tolist())}
    found = [(place[name], i) for i, name in enumerate(given.tolist()) if name in place]
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
