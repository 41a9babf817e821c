"""The data, and what was computed from them: splits, predictors, outcomes of sets.

All of it is kept, the least recently used first to go: at most three splits (a copy of the held-out
outputs each), six predictors (each with its calibration problem and up to 24 fits, some 5 MB a fit
at 21 basis functions), the outcomes of 200 states (9 bytes a test sample), and the sorted scores of
four predictors (8 bytes for each class of each test sample). What takes long is done in stages, and
`check` is called between them: it raises `Superseded` when a newer state has come.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError, TrustSetsWarning
from trustsets.metrics import Binned, Evaluation, evaluate
from trustsets.outputs import ModelOutputs, SupportsTrust
from trustsets.predictors import ConditionalConformal, Predictor
from trustsets.sets import PredictionSets
from trustsets.trust import TrustScore
from trustsets_explorer.state import Knobs, Setting, State

__all__ = ["SLIDER", "Outcome", "Session", "Split", "Superseded"]

SLIDER = tuple(round(0.005 * step, 3) for step in range(1, 101))
"""Alphas of the page's slider."""
T = TypeVar("T")
Array = NDArray[Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Check = Callable[[], None]

_MOST_SPLITS, _MOST_PREDICTORS, _MOST_OUTCOMES, _MOST_RANKED = 3, 6, 200, 4
# Test samples whose sets are made in one stage: a tenth of a second, or some seconds where each
# class has a threshold of its own.
_STAGE, _CANDIDATE_STAGE = 2500, 250
# Resamples behind the intervals of approximate numbers.
_ROUGH_BOOTSTRAP = 100
_TABLES = ("conf_trust", "conf_rank", "conf_frequency", "class", "groups")


class Superseded(Exception):
    """A newer state has come, so that nobody waits for this one any more."""


@final
class Kept(OrderedDict[Hashable, Any]):
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
        found: T = self[key]
        return found


@final
@dataclass(frozen=True, eq=False)
class Split:
    """Calibration and test samples of one seed, with their trust, and the bins of the latter."""

    calibration: ModelOutputs
    test: ModelOutputs
    places: NDArray[np.int64]

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

    @property
    def tables(self) -> list[str]:
        """Metrics that the samples allow."""
        lacking = {"conf_trust"} if self.test.trust is None else set()
        lacking |= set() if self.test.groups else {"groups"}
        return [name for name in _TABLES if name not in lacking]


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of the sets of the test samples: whether they hold the label, and sizes.

    `promised` is the mean of 1 - alpha that sets of limited size promise, None for others. A rough
    outcome is one of approximate sets.
    """

    covered: NDArray[np.bool_]
    sizes: Ints
    promised: float | None
    is_rough: bool = False


@final
class Session:
    """Held-out outputs with labels, and everything that was computed from them so far.

    Parameters
    ----------
    outputs : ModelOutputs
        Held-out samples with labels; a seed splits them into calibration and test samples.
    trust : TrustScore, array of shape (n,) or None
        Fitted trust score, or known values of all samples.
    share : float
        Share of the samples that is for calibration.
    """

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
        groups = tuple(outputs.groups)
        self.knobs = Knobs.of(groups, outputs.n_classes, has_trust=self.trust is not None)
        self._splits, self._predictors = Kept(_MOST_SPLITS), Kept(_MOST_PREDICTORS)
        self._outcomes, self._ranked = Kept(_MOST_OUTCOMES), Kept(_MOST_RANKED)

    @property
    def first_state(self) -> State:
        """What the page shows first: the default method beside the standard one."""
        known = tuple(name for name in ("confidence", "trust") if name in self.knobs.statistics)
        own = Setting(statistics=known)
        standard = replace(own, method="standard", scale="raw")
        return State((own, standard))

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

        return self._predictors.get_or_make(self._key(setting, seed), make)

    @staticmethod
    def _key(setting: Setting, seed: int) -> tuple[Setting, int]:
        """What determines a predictor."""
        return replace(setting.used, max_size=None), seed

    def sets(self, state: State, place: int, rows: Array) -> PredictionSets:
        """Sets of some of the test samples."""
        setting, split = state.settings[place].used, self.split(state.seed)
        predictor = self.predictor(setting, state.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrustSetsWarning)
            return predictor.predict_set(
                split.test.take(rows), state.alpha, max_size=setting.max_size
            )

    def outcome(self, state: State, place: int, check: Check = lambda: None) -> Outcome:
        """Hits and sizes of the sets of all test samples, made in stages."""
        setting = state.settings[place].used
        key = setting, state.alpha, state.seed
        return self._outcomes.get_or_make(key, lambda: self._make_outcome(state, place, check))

    def _make_outcome(self, state: State, place: int, check: Check) -> Outcome:
        split = self.split(state.seed)
        check()
        predictor, n = self.predictor(state.settings[place], state.seed), len(split.places)
        basis = predictor.conditions_on
        stage = _CANDIDATE_STAGE if basis is not None and basis.uses_label else _STAGE
        codes = split.test.require_labels("the explorer")
        covered, sizes, promised = np.empty(n, bool), np.empty(n, np.int64), []
        for start in range(0, n, stage):
            check()
            rows = np.arange(start, min(start + stage, n))
            sets = self.sets(state, place, rows)
            covered[rows] = sets.mask[np.arange(rows.size), codes[rows]]
            sizes[rows] = sets.sizes
            promised += [1.0 - sets.alpha] if isinstance(sets.alpha, np.ndarray) else []
        check()
        mean = float(np.concatenate(promised).mean()) if promised else None
        return Outcome(covered, sizes, mean)

    def preview(self, state: State, place: int, check: Check = lambda: None) -> Outcome | None:
        """Outcome with fitted values in the place of thresholds; None where that is not quick.

        The fitted value is a lower bound of the threshold, so no set is larger than the exact one.
        """
        setting = state.settings[place].used
        predictor, split = self.predictor(setting, state.seed), self.split(state.seed)
        is_made = (setting, state.alpha, state.seed) in self._outcomes
        if is_made or not isinstance(predictor, ConditionalConformal):
            return self.outcome(state, place, check)
        if predictor.conditions_on.uses_label or setting.max_size is not None:
            return None
        check()
        fitted = predictor.fitted_values(split.test, state.alpha)
        check()
        ranked, of_labels = self._ranked.get_or_make(
            self._key(setting, state.seed), lambda: self._sorted_scores(predictor, split.test)
        )
        sizes = np.count_nonzero(ranked <= fitted[:, None], axis=1)
        covered = of_labels <= fitted
        if not predictor.allow_empty:
            # The class of lowest score is kept in a set that would be empty.
            covered |= (sizes == 0) & (of_labels == ranked[:, 0])
            sizes = np.maximum(sizes, 1)
        return Outcome(covered, sizes, None, is_rough=True)

    @staticmethod
    def _sorted_scores(predictor: Predictor, test: ModelOutputs) -> tuple[Floats, Floats]:
        """Nonconformity scores of all classes in increasing order, and those of the labels."""
        scores, codes = predictor.scores(test), test.require_labels("the explorer")
        return np.sort(scores, axis=1), scores[np.arange(len(codes)), codes]

    def prepare_alphas(self, state: State, place: int) -> None:
        """Fit along the alphas of the page's slider, which makes the next moves of alpha faster.

        Unlike everything else here, it may run beside other work: it changes nothing that is kept,
        apart from the fits of a predictor that is there.
        """
        predictor = self._predictors.get(self._key(state.settings[place], state.seed))
        if isinstance(predictor, ConditionalConformal):
            predictor.prepare_along(SLIDER)

    def evaluation(
        self,
        state: State,
        place: int,
        check: Check = lambda: None,
        outcome: Outcome | None = None,
    ) -> Evaluation:
        """The tables of `trustsets.evaluate`, whose bins are made once for each split.

        They are those of the sets of the state, or of another `outcome`.
        """
        found, split = outcome or self.outcome(state, place, check), self.split(state.seed)
        check()
        return evaluate(
            found.covered,
            split.test,
            sizes=found.sizes,
            alpha=state.alpha,
            metrics=split.tables,
            bins=split.binned,
            n_bootstrap=_ROUGH_BOOTSTRAP if found.is_rough else 1000,
        )
