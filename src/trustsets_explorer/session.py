"""The data, and what was computed from them: splits, predictors, outcomes of sets.

All of it is cached, the least recently used first to go: at most three splits (each a copy of the
held-out outputs), six predictors (each with its calibration problem and up to 24 fits, about 5 MB
each at 21 basis functions), the outcomes of 200 states (9 bytes a test sample) and their answers
(some 70 kB), and the sorted scores of four predictors (8 bytes for each class of each test sample).
What takes long is done in stages, and `check` is called between them: it raises `Superseded` when a
newer state has come.
"""

import json
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError, TrustSetsWarning
from trustsets.metrics import Binned, Evaluation, evaluate, to_plain
from trustsets.outputs import ModelOutputs, SupportsTrust
from trustsets.plots import deepest_coverage
from trustsets.predictors import ConditionalConformal, Predictor
from trustsets.report import (
    bin_lists,
    division_names,
    divisions,
    gap_chart,
    glance,
    number,
    percent,
    size_chart,
    verdict,
)
from trustsets.sets import PredictionSets
from trustsets.trust import TrustScore
from trustsets_explorer.state import Parameters, Setting, State

SLIDER = tuple(round(0.005 * step, 3) for step in range(1, 101))
"""Alphas of the page's slider."""
T = TypeVar("T")
Array = NDArray[Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Check = Callable[[], None]

_MOST_SPLITS, _MOST_PREDICTORS, _MOST_STATES, _MOST_RANKED = 3, 6, 200, 4
# Seconds of a stage, for which a newer question waits at most, and fewest and most test samples.
_STAGE_SECONDS, _STAGE_SAMPLES = 0.1, (100, 2500)
# Nearest alphas of the slider whose outcomes are made while nobody asks.
_PREPARED = 20
# Strips of equal confidence that the test samples are gone through in.
_STRIPS = 40
# Resamples behind the intervals, fewer while the numbers are approximate.
_BOOTSTRAP, _ROUGH_BOOTSTRAP = 200, 50
_TABLES = ("conf_trust", "conf_rank", "conf_frequency", "class", "groups")


class Superseded(Exception):
    """A newer state has come, so that nobody waits for this one any more."""


@final
class Cache(OrderedDict[Hashable, Any]):
    """The values used last, at most so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made if it is not there."""
        if key not in self:
            self[key] = make()
            while len(self) > self._most:
                self.popitem(last=False)
        self.move_to_end(key)
        value: T = self[key]
        return value


@final
@dataclass(frozen=True, eq=False)
class Split:
    """Calibration and test samples of one seed, with their trust, and the bins of the latter."""

    calibration: ModelOutputs
    test: ModelOutputs
    positions: NDArray[np.int64]

    @cached_property
    def binned(self) -> dict[str, Binned]:
        """Bins that do not depend on the sets."""
        n = len(self.test)
        blank = evaluate(
            np.zeros(n, bool),
            self.test,
            sizes=np.zeros(n, np.int64),
            alpha=0.5,
            metrics=self.tables,
            n_bootstrap=1,
        )
        return dict(blank.tables)

    @cached_property
    def order(self) -> Ints:
        """Test samples so that neighbours have much the same confidence and trust.

        Thresholds of similar samples share most of their work: this order takes a third of the
        time of a random one.
        """
        n = len(self.test)
        strip = _ranks(self.test.confidence) * _STRIPS // n
        within = np.zeros(n) if self.test.trust is None else _ranks(self.test.trust)
        return np.lexsort((np.where(strip % 2, -within, within), strip))

    @property
    def tables(self) -> list[str]:
        """Metrics that the samples allow."""
        lacking = {"conf_trust"} if self.test.trust is None else set()
        lacking |= set() if self.test.groups else {"groups"}
        return [name for name in _TABLES if name not in lacking]


def _ranks(values: Floats) -> Ints:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable")


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """Which sets of the test samples contain the label, and their sizes.

    A rough outcome is that of approximate sets.
    """

    covered: NDArray[np.bool_]
    sizes: Ints
    is_rough: bool = False


@final
class Session:
    """Held-out outputs with labels, and everything that was computed from them so far."""

    def __init__(
        self,
        outputs: ModelOutputs,
        trust: SupportsTrust | Floats | None = None,
        *,
        share: float = 0.5,
    ) -> None:
        outputs.require_labels("the explorer")
        if not 0.0 < share < 1.0:
            raise InputError(f"share must lie strictly between 0 and 1; got {share}.")
        self.outputs, self.share = outputs.with_trust(trust), share
        self.n_test = len(outputs.split_indices(share)[1])
        self.trust_score = trust if isinstance(trust, TrustScore) else None
        self.trust = self.outputs.trust
        has_trust = self.trust is not None
        self.parameters = Parameters.of(tuple(outputs.groups), has_trust=has_trust)
        self._splits, self._predictors = Cache(_MOST_SPLITS), Cache(_MOST_PREDICTORS)
        self._outcomes, self._ranked = Cache(_MOST_STATES), Cache(_MOST_RANKED)
        self.answers = Cache(_MOST_STATES)
        # Set when the explorer ends, which ends the work under way.
        self.is_closed = threading.Event()

    @property
    def first_state(self) -> State:
        """What the page shows first: the default method beside the standard one."""
        statistics = tuple(
            name for name in ("confidence", "trust") if name in self.parameters.statistics
        )
        setting = Setting(statistics=statistics)
        standard = replace(setting, method="standard", scale="raw")
        return State((setting, standard))

    def split(self, seed: int) -> Split:
        """Calibration and test samples of a seed."""
        return self._splits.get_or_make(seed, lambda: self._make_split(seed))

    def _make_split(self, seed: int) -> Split:
        first, rest = self.outputs.split_indices(self.share, seed)
        return Split(self.outputs.take(first), self.outputs.take(rest), rest)

    def predictor(self, setting: Setting, seed: int) -> Predictor:
        """The calibrated predictor of a setting."""

        def make() -> Predictor:
            split = self.split(seed)
            with warnings.catch_warnings():
                # The page shows what a warning would say: full sets, and the summary's sentences.
                warnings.simplefilter("ignore", TrustSetsWarning)
                return setting.build(self.trust_score).calibrate(split.calibration)

        return self._predictors.get_or_make((setting.used, seed), make)

    def sets(self, state: State, index: int, rows: Array) -> PredictionSets:
        """Sets of some of the test samples."""
        setting, split = state.settings[index].used, self.split(state.seed)
        predictor = self.predictor(setting, state.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrustSetsWarning)
            return predictor.predict_set(split.test.take(rows), state.alpha)

    def outcome(self, state: State, index: int, check: Check = lambda: None) -> Outcome:
        """Hits and sizes of the sets of all test samples, made in stages."""
        setting = state.settings[index].used
        key = setting, state.alpha, state.seed
        return self._outcomes.get_or_make(key, lambda: self._make_outcome(state, index, check))

    def _make_outcome(self, state: State, index: int, check: Check) -> Outcome:
        split = self.split(state.seed)
        check()
        self.predictor(state.settings[index], state.seed)
        codes, n = split.test.require_labels("the explorer"), len(split.positions)
        covered, sizes = np.empty(n, bool), np.empty(n, np.int64)
        stop, stage = 0, _STAGE_SAMPLES[0]
        while stop < n:
            check()
            began = time.perf_counter()
            rows = split.order[stop : stop + stage]
            stop += rows.size
            sets = self.sets(state, index, rows)
            covered[rows] = sets.mask[np.arange(rows.size), codes[rows]]
            sizes[rows] = sets.sizes
            seconds = max(time.perf_counter() - began, 1e-6)
            stage = int(np.clip(rows.size * _STAGE_SECONDS / seconds, *_STAGE_SAMPLES))
        check()
        return Outcome(covered, sizes)

    def preview(self, state: State, index: int, check: Check = lambda: None) -> Outcome | None:
        """Outcome with fitted values, lower bounds of thresholds; None where that is not quick."""
        setting = state.settings[index].used
        predictor, split = self.predictor(setting, state.seed), self.split(state.seed)
        is_made = (setting, state.alpha, state.seed) in self._outcomes
        if is_made or not isinstance(predictor, ConditionalConformal):
            return self.outcome(state, index, check)
        if predictor.conditions_on.uses_label:
            return None
        check()
        fitted = predictor.fitted_values(split.test, state.alpha)
        check()
        ranked, of_labels = self._ranked.get_or_make(
            (setting, state.seed), lambda: self._sorted_scores(predictor, split.test)
        )
        sizes = np.count_nonzero(ranked <= fitted[:, None], axis=1)
        covered = of_labels <= fitted
        if not predictor.allow_empty:
            # The class of lowest score stays in a set that would be empty.
            covered |= (sizes == 0) & (of_labels == ranked[:, 0])
            sizes = np.maximum(sizes, 1)
        return Outcome(covered, sizes, is_rough=True)

    @staticmethod
    def _sorted_scores(predictor: Predictor, test: ModelOutputs) -> tuple[Floats, Floats]:
        """Nonconformity scores of all classes in increasing order, and those of the labels."""
        scores, codes = predictor.scores(test), test.require_labels("the explorer")
        return np.sort(scores, axis=1), scores[np.arange(len(codes)), codes]

    def prepare_alphas(self, state: State, check: Check = lambda: None) -> list[State]:
        """Fit along the alphas of the slider; returns the states whose answers come next.

        It may run beside other work: it changes only the fits of predictors that are there.
        """
        for setting in state.settings:
            check()
            predictor = self._predictors.get((setting.used, state.seed))
            if isinstance(predictor, ConditionalConformal):
                predictor.prepare_along(SLIDER)
        nearest = sorted(SLIDER, key=lambda alpha: abs(alpha - state.alpha))
        return [replace(state, alpha=alpha) for alpha in nearest[:_PREPARED]]

    def evaluation(
        self,
        state: State,
        index: int,
        check: Check = lambda: None,
        outcome: Outcome | None = None,
    ) -> Evaluation:
        """What `trustsets.evaluate` gives for the sets of a state, or for another `outcome`."""
        outcome = outcome or self.outcome(state, index, check)
        split = self.split(state.seed)
        check()
        return evaluate(
            outcome.covered,
            split.test,
            sizes=outcome.sizes,
            alpha=state.alpha,
            metrics=split.tables,
            bins=split.binned,
            n_bootstrap=_ROUGH_BOOTSTRAP if outcome.is_rough else _BOOTSTRAP,
        )


# What a tooltip shows of each bin.
_BIN_NUMBERS = ("labels", "count", "coverage", "lower", "upper", "mean_size", "p_value", "holm")


def answer(session: Session, state: State, check: Check = lambda: None) -> str:
    """Numbers of one or two methods at a state, as JSON: tables, charts and words of the report."""

    def make() -> str:
        outcomes = [session.outcome(state, index, check) for index in range(len(state.settings))]
        return _as_json(_shown(session, state, outcomes, check))

    return session.answers.get_or_make(state, make)


def preview(session: Session, state: State, check: Check = lambda: None) -> str:
    """The same as `answer` with approximate sets, quickly; empty where that cannot be done.

    The sets are never larger than the exact ones, and differ for a few samples in a hundred.
    """
    indices = range(len(state.settings))
    outcomes = [session.preview(state, index, check) for index in indices]
    quick = [outcome for outcome in outcomes if outcome is not None]
    if len(quick) < len(outcomes):
        return "{}"
    if not any(outcome.is_rough for outcome in quick):
        return answer(session, state, check)
    return _as_json(_shown(session, state, quick, check) | {"approximate": True})


def _as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def _shown(session: Session, state: State, outcomes: list[Outcome], check: Check) -> dict[str, Any]:
    evaluations = {
        name: session.evaluation(state, index, check, outcomes[index])
        for index, name in enumerate(state.names)
    }
    goals = division_names(evaluations)
    check()
    predictors = {
        name: session.predictor(setting, state.seed)
        for name, setting in zip(state.names, state.settings, strict=True)
    }
    sentences = [text for _, section in verdict(evaluations, predictors) for text in section]
    first = next(iter(evaluations.values()))
    points = [_point(evaluation) for evaluation in evaluations.values()]
    plain: dict[str, Any] = to_plain(
        {
            "state": state.to_dict(),
            "methods": list(evaluations),
            "target": f"{100.0 * (1.0 - state.alpha):g}%",
            "deepest": f"{100.0 * deepest_coverage(1.0 - state.alpha):.3g}%",
            "n": [len(session.split(state.seed).calibration), first.n],
            "verdict": " ".join(sentences),
            "spoken": _spoken(evaluations),
            "glance": glance(evaluations, goals),
            "divisions": divisions(evaluations),
            "gaps": gap_chart(evaluations, goals),
            "sizes": size_chart(evaluations),
            "lists": bin_lists(evaluations),
            "tables": {name: _tables(evaluation) for name, evaluation in evaluations.items()},
            "points": points,
        }
    )
    return plain


def _tables(evaluation: Evaluation) -> dict[str, Any]:
    return {
        name: {column: getattr(table, column) for column in _BIN_NUMBERS}
        for name, table in evaluation.tables.items()
    }


def _point(evaluation: Evaluation) -> dict[str, Any]:
    """Mean size against the shortfall of coverage over the bins of the first table."""
    name = "conf_trust" if "conf_trust" in evaluation.tables else "conf_rank"
    return {
        "size": evaluation.metrics["size"],
        "under": evaluation.tables[name].shortfall,
        "table": name,
    }


def _spoken(evaluations: dict[str, Evaluation]) -> str:
    """One sentence for readers who hear the page."""
    parts = list[str]()
    for name, evaluation in evaluations.items():
        coverage, size = percent(evaluation.coverage.value), number(evaluation.sizes.mean)
        parts.append(f"{name}, coverage {coverage}, mean set size {size}")
    return "; ".join(parts) + "."
