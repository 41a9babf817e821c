"""The data, and what was computed from them: splits, predictors, evaluations of sets.

All of it is cached, the least recently used first to go: at most three splits (each a copy of the
held-out outputs), six predictors (each with its calibration problem and up to 24 fits; a fit of the
default predictor takes 4 MB with 10,000 calibration samples, so that all take 600 MB at most), the
evaluations of 200 methods (9 bytes a test sample) and the answers of 200 states (some 60 kB). What
takes long is done in stages, and `check` is called between them: it raises `Superseded` when a
newer state has come.
"""

import json
import math
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError, TrustSetsWarning
from trustsets.metrics import Binned, Evaluation, evaluate, to_plain
from trustsets.outputs import ModelOutputs, SupportsTrust
from trustsets.plots import deepest_coverage
from trustsets.predictors import Predictor
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

_MOST_SPLITS, _MOST_PREDICTORS, _MOST_STATES, _MOST_UNFINISHED = 3, 6, 200, 4
# Numbers of the first test samples are shown where the sets of all would take more seconds.
_FIRST_SECONDS, _FIRST_SAMPLES = 0.2, 1000
# Seconds of a stage, for which a newer question waits at most, and fewest and most test samples.
_STAGE_SECONDS, _STAGE_SAMPLES = 0.1, (100, 2500)
# Nearest alphas of the slider whose answers are made while nobody asks.
_PREPARED = 40
# Strips of equal confidence that the test samples are gone through in.
_STRIPS = 40
# Resamples behind the intervals.
_BOOTSTRAP = 200
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
@dataclass(eq=False)
class Outcome:
    """Which sets of the test samples contain the label, and their sizes, of the first `done`."""

    covered: NDArray[np.bool_]
    sizes: Ints
    done: int = 0


@final
@dataclass(frozen=True, eq=False)
class Split:
    """Calibration and test samples of one seed, with their trust, and the bins of the latter."""

    calibration: ModelOutputs
    test: ModelOutputs
    positions: Ints
    bins: dict[str, Binned] = field(default_factory=dict)

    @cached_property
    def order(self) -> Ints:
        """Test samples in the order in which their sets are made.

        The first ones are drawn at random, so that numbers of them alone are of the same kind as
        those of all. Among them, and among the others, neighbours have much the same confidence and
        trust: their thresholds share most of the work, which a random order makes twice as long.
        """
        n = len(self.test)
        strip = _ranks(self.test.confidence) * _STRIPS // n
        within = np.zeros(n) if self.test.trust is None else _ranks(self.test.trust)
        is_later = np.random.default_rng(0).permutation(n) >= _FIRST_SAMPLES
        return np.lexsort((np.where(strip % 2, -within, within), strip, is_later))

    @property
    def tables(self) -> list[str]:
        """Metrics that the samples allow."""
        lacking = {"conf_trust"} if self.test.trust is None else set()
        lacking |= set() if self.test.groups else {"groups"}
        return [name for name in _TABLES if name not in lacking]

    def evaluate(self, outcome: Outcome, alpha: float, *, is_first: bool = False) -> Evaluation:
        """Evaluate sets of all test samples, or of the first ones."""
        rows = np.sort(self.order[:_FIRST_SAMPLES]) if is_first else np.arange(len(self.test))
        result = evaluate(
            outcome.covered[rows],
            self.test.take(rows) if is_first else self.test,
            sizes=outcome.sizes[rows],
            alpha=alpha,
            metrics=self.tables,
            bins={} if is_first else self.bins,
            n_bootstrap=_BOOTSTRAP,
        )
        if not is_first and not self.bins:
            # They do not depend on the sets.
            self.bins.update(result.tables)
        return result


def _ranks(values: Floats) -> Ints:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable")


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
        self._evaluations, self.answers = Cache(_MOST_STATES), Cache(_MOST_STATES)
        self._outcomes = Cache(_MOST_UNFINISHED)
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

    def evaluations(self, state: State, check: Check = lambda: None) -> dict[str, Evaluation]:
        """What `trustsets.evaluate` gives for the methods of a state, by name."""
        return {
            name: self.evaluation(state, index, check) for index, name in enumerate(state.names)
        }

    def evaluation(self, state: State, index: int, check: Check = lambda: None) -> Evaluation:
        """The evaluation of one method, kept until many others were asked for."""

        def make() -> Evaluation:
            outcome = self.outcome(state, index, check)
            check()
            return self.split(state.seed).evaluate(outcome, state.alpha)

        key = state.settings[index].used, state.alpha, state.seed
        return self._evaluations.get_or_make(key, make)

    def outcome(self, state: State, index: int, check: Check, end: float = math.inf) -> Outcome:
        """Hits and sizes, made in stages; the first ones alone where all are not done by `end`."""
        split, n = self.split(state.seed), self.n_test
        key = state.settings[index].used, state.alpha, state.seed
        whole = self._evaluations.get(key)
        if whole is not None:
            return Outcome(whole.covered, whole.set_sizes, n)
        check()
        outcome: Outcome = self._outcomes.get_or_make(
            key, lambda: Outcome(np.empty(n, bool), np.empty(n, np.int64))
        )
        codes, stage = split.test.require_labels("the explorer"), _STAGE_SAMPLES[0]
        pace = 0.0
        while outcome.done < n:
            check()
            began = time.monotonic()
            is_first = outcome.done < _FIRST_SAMPLES
            if not is_first and began + pace * (n - outcome.done) > end:
                break
            stop = outcome.done + stage
            rows = split.order[outcome.done : min(stop, _FIRST_SAMPLES) if is_first else stop]
            sets = self.sets(state, index, rows)
            outcome.covered[rows] = sets.mask[np.arange(rows.size), codes[rows]]
            outcome.sizes[rows] = sets.sizes
            outcome.done += rows.size
            pace = max(time.monotonic() - began, 1e-6) / rows.size
            stage = int(np.clip(_STAGE_SECONDS / pace, *_STAGE_SAMPLES))
        return outcome


def nearest_alphas(state: State) -> list[State]:
    """The state at the alphas of the slider that it may move to next, the nearest first."""
    nearest = sorted(SLIDER, key=lambda alpha: abs(alpha - state.alpha))
    return [replace(state, alpha=alpha) for alpha in nearest[:_PREPARED]]


# What a tooltip shows of each bin.
_BIN_NUMBERS = ("labels", "count", "coverage", "lower", "upper", "mean_size", "p_value", "holm")


def answer(session: Session, state: State, check: Check = lambda: None) -> str:
    """Numbers of one or two methods at a state, as JSON: tables and charts of the report."""
    return session.answers.get_or_make(
        state, lambda: _shown(session, state, session.evaluations(state, check))
    )


def first_answer(session: Session, state: State, check: Check = lambda: None) -> str:
    """The answer, or where that takes long, the same of the first test samples."""
    end, split = time.monotonic() + _FIRST_SECONDS, session.split(state.seed)
    if state not in session.answers:
        indices = range(len(state.settings))
        outcomes = [session.outcome(state, index, check, end) for index in indices]
        if any(outcome.done < session.n_test for outcome in outcomes):
            parts = [split.evaluate(outcome, state.alpha, is_first=True) for outcome in outcomes]
            return _shown(session, state, dict(zip(state.names, parts, strict=True)))
    return answer(session, state, check)


def words(session: Session, state: State, check: Check = lambda: None) -> dict[str, Any]:
    """The report's verdict, by headings; not in `answer`, because its tests take a while."""
    evaluations = session.evaluations(state, check)
    check()
    predictors = {
        name: session.predictor(setting, state.seed)
        for name, setting in zip(state.names, state.settings, strict=True)
    }
    return {"verdict": verdict(evaluations, predictors)}


def _shown(session: Session, state: State, evaluations: dict[str, Evaluation]) -> str:
    goals, first = division_names(evaluations), next(iter(evaluations.values()))
    plain = to_plain(
        {
            "state": state.to_dict(),
            "methods": list(evaluations),
            "target": f"{100.0 * (1.0 - state.alpha):g}%",
            "deepest": f"{100.0 * deepest_coverage(1.0 - state.alpha):.3g}%",
            "n": [len(session.split(state.seed).calibration), first.n, session.n_test],
            "spoken": _spoken(evaluations),
            "glance": glance(evaluations, goals),
            "divisions": divisions(evaluations),
            "gaps": gap_chart(evaluations, goals),
            "sizes": size_chart(evaluations),
            "lists": bin_lists(evaluations),
            "tables": {name: _tables(evaluation) for name, evaluation in evaluations.items()},
            "points": [_point(evaluation) for evaluation in evaluations.values()],
        }
    )
    return json.dumps(plain, allow_nan=False, separators=(",", ":"))


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
