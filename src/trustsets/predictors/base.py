"""What all predictors share: calibrate once, then predict sets at any alpha.

Who fits what, and when:

1. The user fits the trust score, on training samples, before a predictor is made.
2. `calibrate` splits its samples into calibration and tuning samples, if there is anything to
   learn besides thresholds.
3. `calibrate` fits the class biases on the tuning samples, and then the temperature.
4. `calibrate` computes the scores of the calibration labels and passes all of this to `_learn`,
   where the method fits its groups, bins or basis functions (`Task.fit`) and keeps the scores.
   Only then does the new state replace the old one, so an error leaves the predictor as it was.
5. `predict_set` calls `_thresholds`. A method that needs a fit for each alpha makes it when the
   alpha is first used, and keeps it.
6. `predict_set` compares the scores of all classes with the thresholds.

A predictor is a final subclass with five private methods: `_method` (check and describe the
parameters), `_learn`, `_could_learn`, `_thresholds` and `_guarantee`. It overrides nothing else.
"""

import logging
import os
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from trustsets._common import storage
from trustsets._common.arrays import Array, Floats
from trustsets._common.draws import Stream
from trustsets._common.quantiles import check_alphas
from trustsets.errors import InputError, NotCalibratedError, StorageError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.class_facts import ClassFacts
from trustsets.predictors.leave_one_out import relearn
from trustsets.predictors.making_sets import calibration_alphas, make_sets, sets_of
from trustsets.predictors.p_values import (
    PointPredictions,
    count_alphas,
    grid_of,
    p_from_counts,
    point_predictions,
)
from trustsets.predictors.thresholds import SampleThresholds
from trustsets.predictors.tuning import (
    Method,
    resolve_class_bias,
    resolve_fraction,
    resolve_seed,
    resolve_temperature,
    tuning_split,
)
from trustsets.predictors.updating import (
    KeptSamples,
    changed_state,
    read_numbers,
    task_of,
    with_new_rows,
)
from trustsets.recalibration import TemperatureScaling
from trustsets.scores import Score
from trustsets.sets import PredictionSets
from trustsets.statistics import Observed, SupportsTrust

if TYPE_CHECKING:
    from trustsets.predictors.certificate import ThresholdCertificate
    from trustsets.predictors.explain import Explanation

__all__ = ["Predictor", "load", "thresholds_from"]


_log = logging.getLogger(__name__)


class Predictor(BaseEstimator, ABC):
    """A conformal predictor; see `StandardConformal` for the common parameters.

    `trust` is None and `randomized` is False for methods that have no such parameter.
    """

    score: Score
    temperature: float | TemperatureScaling | str | None
    allow_empty: bool
    tuning_fraction: float | str
    random_state: Any
    trust: SupportsTrust | None = None
    randomized: bool = False
    state_: Calibrated
    _kept: KeptSamples | None = None

    @abstractmethod
    def _method(self) -> Method:
        """Check the parameters of the method, and describe it."""

    @abstractmethod
    def _learn(self, task: Task) -> Learned:
        """Fit what thresholds depend on, and keep what they are computed from."""

    @abstractmethod
    def _could_learn(self, learned: Learned) -> bool:
        """Whether `_learn` with these parameters could have returned `learned`."""

    @abstractmethod
    def _thresholds(
        self, learned: Any, observed: Observed, alphas: tuple[float, ...], scoring: Scoring
    ) -> SampleThresholds:
        """Thresholds of new samples."""

    @abstractmethod
    def _guarantee(self, state: Calibrated) -> str:
        """The guarantee as a sentence about "the sets"."""

    def __sklearn_clone__(self) -> Self:
        # Parameters are shared: scores and bases are frozen, and a fitted trust score or
        # temperature is data to a predictor, which an unfitted copy could not stand in for.
        return type(self)(**self.get_params(deep=False))

    @property
    def classes_(self) -> Array:
        """Names of the classes, in the order of the columns."""
        return self._state().classes

    @property
    def temperature_(self) -> float:
        """Temperature that divides the logits before scores are computed."""
        return self._state().temperature

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """Names of the group columns that thresholds of new samples depend on."""
        basis = self._state().learned.conditions_on
        return () if basis is None else basis.needed_groups

    @property
    def uses_features(self) -> bool:
        """Whether thresholds of new samples may depend on their features."""
        basis = self._state().learned.conditions_on
        return basis is not None and basis.uses_features

    @property
    def draws_at_random(self) -> bool:
        """Whether sets depend on random draws, which are keyed on the rows of the samples."""
        return self.randomized or self.score.randomized

    @property
    def batch_dependence(self) -> str | None:
        """Why the set of a sample depends on the others of its batch; None if it does not."""
        return self._method().batch_dependence

    def prepare(self, alpha: float) -> Self:
        """Make the fits that `predict_set` needs at this alpha now, so that copies share them."""
        self._state().learned.prepare(float(alpha))
        return self

    def calibrate(
        self,
        outputs: ModelOutputs,
        *,
        tuning: ModelOutputs | None = None,
        trust: Any = None,
        alphas: Any = None,
    ) -> Self:
        """Learn thresholds from labelled samples that the classifier was not trained on.

        Parameters
        ----------
        outputs : ModelOutputs
            Calibration samples with labels.
        tuning : ModelOutputs, optional
            Other labelled samples, for what is learned besides the thresholds
            (temperature, bin edges). Without them a random `tuning_fraction` of the
            calibration samples is set aside, if there is anything to learn.
        trust : array of shape (n,), optional
            Trust of each of the samples, where it is known already; the trust score is not
            used then. With `tuning`, the values of its samples follow those of `outputs`.
        alphas : array of shape (n,), optional
            Alpha of each of the samples `outputs`, for `predict_set` with an alpha for each new
            sample. One function of the inputs, which was not learned from these samples, must give
            the alphas of all samples. Only for `ConditionalConformal`.
        """
        method, seed = self._checked_method(), resolve_seed(self.random_state)
        outputs.require_labels("calibrate")
        fraction = resolve_fraction(self.tuning_fraction, method, outputs)
        tuned = method.all_tuned(self.temperature)
        if alphas is not None:
            alphas = calibration_alphas(method, alphas, len(outputs))
        given, others = _observe(outputs, tuning, self.trust if trust is None else trust)
        calibration, tuning_part = tuning_split(given, others, fraction, seed, tuned)
        reused = tuning_part.outputs is calibration.outputs
        if alphas is not None and calibration.outputs is not outputs:
            alphas = alphas[outputs.split_indices(fraction, seed)[1]]
        n, n_tuning = len(calibration.outputs), 0 if reused else len(tuning_part.outputs)
        bias = resolve_class_bias(method.class_bias, tuning_part.outputs)
        corrected = tuning_part.outputs if bias is None else bias.transform(tuning_part.outputs)
        scoring = Scoring(self.score, bias, resolve_temperature(self.temperature, corrected), seed)
        _log.info(
            "%s: calibrating on %d samples of %d classes, tuning on %d others",
            type(self).__name__, n, outputs.n_classes, n_tuning,
        )  # fmt: skip
        task = Task(
            calibration=calibration,
            tuning=tuning_part,
            scores=scoring.of_labels(calibration.outputs, Stream.CALIBRATION_SCORE),
            tuning_scores=partial(scoring.of_labels, tuning_part.outputs, Stream.TUNING_SCORE),
            seed=seed,
            alphas=alphas,
            ranks=scoring.ranks,
        )
        facts = ClassFacts.of(calibration.outputs)
        state = Calibrated(
            classes=outputs.classes,
            n_features=_width(outputs),
            n=n,
            n_tuning=n_tuning,
            reused=tuned if reused else (),
            temperature=scoring.temperature,
            seed=seed,
            learned=self._learn(task),
            class_bias=bias,
            class_facts=facts,
        )
        facts.warn(state.classes, each_class=method.covers_each_class)
        self.state_, self._kept = state, KeptSamples.of(task)
        return self

    def predict_set(
        self,
        outputs: ModelOutputs,
        alpha: Any = 0.1,
        *,
        max_size: int | None = None,
        trust: Any = None,
    ) -> PredictionSets:
        """Sets that miss the true class with probability at most `alpha`.

        Parameters
        ----------
        outputs : ModelOutputs
            New samples; labels are not used.
        alpha : float, sequence of float, or array of shape (m,)
            Allowed miscoverage. A list or tuple gives sets for each alpha, nested in each other. A
            NumPy array, or another array of one dimension, always has one alpha for each sample, a
            function of the inputs. If `ConditionalConformal` was calibrated with `alphas` of the
            same function, each sample is covered at its own alpha over the function class: weighted
            by any f >= 0 of the class, coverage is at least the weighted mean of 1 - alpha.
            Otherwise each sample gets the set that it would get if all had its alpha, rounded down
            to three digits. Coverage is then promised for the samples with one alpha only if the
            indicator of these samples is in the function class (or they are groups or cells of the
            method), or if the alphas do not depend on the inputs.
        max_size : int, optional
            Largest size of a set. The alpha of each sample is raised where so few classes cannot
            keep it; `PredictionSets.alpha` says to what, and it is 1, with a status, where they can
            promise nothing. Only for `ConditionalConformal` with tuning samples of its own;
            ``basis=Intercept()`` gives all samples the same promise.
        trust : array of shape (m,), optional
            Trust of each sample, where it is known already; the trust score is not used then.
        """
        state = self._state()
        _check_same_kind(state, outputs)
        observed = Observed(outputs, self.trust if trust is None else trust)
        return make_sets(self, state, observed, alpha, max_size)

    def leave_one_out(self, alpha: Any = 0.1) -> PredictionSets:
        """Sets of the calibration samples, each as if it had been left out of calibration.

        They are exact: each is the set that the predictor calibrated on all other samples would
        give, so they show coverage and sizes without a test set. What was learned from tuning
        samples (temperature, class biases, bin edges, the choice of a basis) stays fixed, and
        tuning samples have no sets here. The order is that of `calibration_rows_`.

        In closed form for `StandardConformal` and `MondrianConformal`, and by one path for each
        sample for `ConditionalConformal`. Where basis functions depend on the label, and for the
        other predictors, all is learned again for each sample, with a progress bar.

        Parameters
        ----------
        alpha : float or sequence of float
            As in `predict_set`.

        Examples
        --------
        >>> from trustsets import ModelOutputs, StandardConformal
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(500, 5))
        >>> labels = (logits + rng.gumbel(size=(500, 5))).argmax(axis=1)
        >>> outputs = ModelOutputs(logits=logits, labels=labels)
        >>> sets = StandardConformal().calibrate(outputs).leave_one_out(alpha=0.1)
        >>> float(sets.covers(labels).mean())
        0.9
        """
        task, (alphas, single) = self._kept_task(), check_alphas(alpha)
        found = self._thresholds_without(self._state().learned, task, alphas)
        sets = sets_of(self, self._state(), task.calibration, found, alphas)
        return sets.at(alphas[0]) if single else sets

    def explain(
        self, sample: ModelOutputs, alpha: float = 0.1, *, label: Any = None, trust: Any = None
    ) -> "Explanation":
        """Which calibration samples carry the threshold of a sample, how firmly, and words.

        The threshold is a weighted sum of the scores of a few calibration samples. For each of them
        the explanation says how far its score could move, because its label is wrong, say, before
        the set changes. That range is exact: vertices are followed beyond the first change.

        For `ConditionalConformal`, `StandardConformal` and `MondrianConformal`.

        Parameters
        ----------
        sample : ModelOutputs
            One sample, such as ``test[0]``.
        alpha : float
            As in `predict_set`.
        label : class name, optional
            Explain why this class is in the set, or is not. Needed where each class has a threshold
            of its own.
        trust : array of shape (1,), optional
            As in `predict_set`.

        Examples
        --------
        >>> from trustsets import ModelOutputs, StandardConformal
        >>> logits = np.log([[0.7, 0.2, 0.1]] * 19)
        >>> outputs = ModelOutputs(logits=logits, labels=[0] * 14 + [1] * 4 + [2])
        >>> found = StandardConformal().calibrate(outputs).explain(outputs[0], alpha=0.1)
        >>> found.classes, found.samples[0].row, found.samples[0].weight
        ((0, 1), 14, 1.0)
        """
        from trustsets.predictors.explain import explain

        return explain(self, sample, alpha, label, trust)

    def certificate(
        self, sample: ModelOutputs, alpha: float = 0.1, *, label: Any = None, trust: Any = None
    ) -> "ThresholdCertificate":
        """Numbers from which the threshold of a sample can be checked without this package.

        Parameters are those of `explain`. ``certificate(...).save("certificate.json")`` writes
        what ``trustsets verify certificate.json`` checks.
        """
        from trustsets.predictors.explain import certify

        return certify(self, sample, alpha, label, trust)

    @property
    def calibration_rows_(self) -> NDArray[np.int64]:
        """Rows of the samples whose scores were kept, among those given to `calibrate`."""
        return self._kept_task().calibration.outputs.rows

    def _thresholds_without(
        self, learned: Any, task: Task, alphas: tuple[float, ...]
    ) -> SampleThresholds:
        """Thresholds of the calibration samples, each without itself."""
        scoring = self._state().scoring(self.score)

        def thresholds(rest: Task, sample: Observed) -> SampleThresholds:
            return self._thresholds(self._learn(rest), sample, alphas, scoring)

        return relearn(task, thresholds)

    def _samples(self) -> KeptSamples:
        """The calibration samples, which are kept in memory only."""
        self._state()
        if self._kept is None:
            raise NotCalibratedError(
                "files and copies do not hold the calibration samples; call calibrate with them."
            )
        return self._kept

    def _kept_task(self) -> Task:
        """The calibration samples as one task."""
        task = self._samples().whole()
        self._kept = KeptSamples.of(task)
        return task

    def __getstate__(self) -> Any:
        # Copies in other processes answer for new samples; they need no calibration samples.
        return {**super().__getstate__(), "_kept": None}

    def update(self, more: ModelOutputs, *, trust: Any = None) -> Self:
        """Add labelled samples to those that thresholds are computed from.

        Sets are then those of a new calibration on all the samples, exactly, but it takes less
        time: fits start from the present ones when the next sets are asked for. Temperature,
        class biases, bin edges, the chosen basis, its ranks and ranges, and everything else that
        was tuned stay as they are until `calibrate` is called again. So do the doubts of `summary`
        about the order of the columns.

        A loaded predictor can be updated, too. Only groups that calibration lacked, and
        `ClusteredConformal` and `RankCalibratedConformal`, need the calibration samples in memory.

        Parameters
        ----------
        more : ModelOutputs
            Samples with labels. Those without `rows` are numbered after the ones there are.
        trust : array of shape (m,), optional
            As in `calibrate`.

        Examples
        --------
        A window of the last 100 samples:

        >>> from trustsets import ModelOutputs, StandardConformal
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(120, 5))
        >>> labels = (logits + rng.gumbel(size=(120, 5))).argmax(axis=1)
        >>> outputs = ModelOutputs(logits=logits, labels=labels)
        >>> predictor = StandardConformal().calibrate(outputs.take(slice(0, 100)))
        >>> newer = outputs.take(slice(100, 120))
        >>> predictor.update(newer).forget(slice(0, 20)).calibration_rows_[[0, -1]]
        array([ 20, 119])
        """
        state, kept = self._state(), self._kept
        _check_same_kind(state, more)
        added = task_of(state, self.score, with_new_rows(state, kept, more), self._trust_of(trust))
        kept = None if kept is None else kept.plus(added)
        return self._replace(state.learned.with_samples(added), kept, added, 1)

    def forget(self, rows: Any, *, trust: Any = None) -> Self:
        """Remove samples from those that thresholds are computed from.

        As with `update`, sets are then exactly those of a new calibration on the rest, and what
        was tuned stays as it is.

        Parameters
        ----------
        rows : array of int or bool, slice, or ModelOutputs
            Numbers of the samples in the order of `calibration_rows_`, in which those of `update`
            come last. A loaded predictor does not hold its samples: give them again then, as
            ModelOutputs with their labels.
        trust : array, optional
            Trust of the samples given as ModelOutputs, where it is known already.
        """
        state, kept = self._state(), self._kept
        if isinstance(rows, ModelOutputs):
            _check_same_kind(state, rows)
            gone = task_of(state, self.score, rows, self._trust_of(trust))
            kept = None if kept is None else kept.minus(kept.find(gone))
        else:
            kept, numbers = self._samples(), read_numbers(rows, state.n)
            if not numbers.size:
                return self
            gone, kept = kept.take(numbers), kept.minus(numbers)
        return self._replace(state.learned.without_samples(gone), kept, gone, -1)

    def adapt(self, unlabelled: ModelOutputs, *, shift: str = "label") -> "Predictor":
        """Return a predictor for samples with other class shares than those of calibration.

        The shares are estimated from the outputs of unlabelled samples, and each calibration sample
        gets the ratio of new to old share of its class as weight. That is right if the outputs
        given the class have stayed the same (label shift); `adapt` warns where the outputs speak
        against it. `shares_` of the new predictor has the estimates with intervals. This predictor
        does not change.

        Where coverage holds given each class, as with ``MondrianConformal(by="class")`` or
        ``per_class=True``, it holds for all class shares, without weights and estimates. Adapted
        sets are often smaller.

        Parameters
        ----------
        unlabelled : ModelOutputs
            New samples, hundreds or more; labels are not used.
        shift : "label"
            What has changed: the shares of the classes.

        Examples
        --------
        >>> from trustsets import ModelOutputs, StandardConformal
        >>> rng = np.random.default_rng(0)
        >>> def draw(shares, n):
        ...     labels = rng.choice(3, p=shares, size=n)
        ...     logits = rng.normal(size=(n, 3)) + 2.0 * np.eye(3)[labels]
        ...     return ModelOutputs(logits=2.0 * logits, labels=labels)
        >>> predictor = StandardConformal().calibrate(draw([0.6, 0.3, 0.1], 2000))
        >>> predictor.adapt(draw([0.1, 0.3, 0.6], 2000)).shares_.shares.round(1)
        array([0.1, 0.3, 0.6])
        """
        from trustsets.predictors.shift import adapted

        if shift != "label":
            raise InputError(f'shift must be "label" (other class shares); got {shift!r}.')
        state = self._state()
        _check_same_kind(state, unlabelled)
        return adapted(self, self._kept_task(), unlabelled)

    def _trust_of(self, trust: Any) -> Any:
        return self.trust if trust is None else trust

    def _replace(
        self, learned: Learned | None, kept: KeptSamples | None, task: Task, sign: int
    ) -> Self:
        """Take what was learned from other samples, or learn it from all of them."""
        if learned is None:
            learned = self._learn((self._samples() if kept is None else kept).whole())
        self.state_, self._kept = changed_state(self._state(), learned, task, sign), kept
        return self

    def predict_p(self, outputs: ModelOutputs, alphas: Any = None, *, trust: Any = None) -> Floats:
        """P-values of all classes, shape (m, K): the alpha at which each class leaves the set.

        The p-value of the true class is at most a with probability at most a, for every a, and
        over the function class, the groups or the classes in the same sense as coverage. The sets
        ``predict_p(outputs, alphas) > alpha`` are those of ``predict_set(outputs, alphas)`` at
        every alpha of the grid. (A single ``predict_set(outputs, alpha)`` can be smaller where
        thresholds at neighbouring alphas cross.) Unless `allow_empty` is set, the most likely
        class is in every set, so its p-value is 1 where a set would be empty.

        Parameters
        ----------
        outputs : ModelOutputs
            New samples; labels are not used.
        alphas : sequence of float, optional
            The grid. P-values are among these numbers and 1. Default: 100 numbers from 0.001 to
            0.98, finer near 0, without those that are too small for the calibration samples.
        trust : array of shape (m,), optional
            As in `predict_set`.

        Examples
        --------
        >>> from trustsets import APS, ModelOutputs, StandardConformal
        >>> logits = np.log([[0.7, 0.2, 0.1]] * 19)
        >>> outputs = ModelOutputs(logits=logits, labels=[0] * 14 + [1] * 4 + [2])
        >>> predictor = StandardConformal(APS(), allow_empty=True).calibrate(outputs)
        >>> predictor.predict_p(outputs.take([0]), [0.05, 0.1, 0.2, 0.3, 0.5])
        array([[1. , 0.3, 0.1]])
        """
        grid = grid_of(alphas, self._state().learned.smallest_alpha)
        counts = self._count_alphas(outputs, grid, trust)[0]
        if not self.allow_empty:
            # As in `predict_set`: if the smallest set is empty, all sets get the class.
            empty = np.flatnonzero(~(counts == len(grid)).any(axis=1))
            top = self._state().scoring(self.score).corrected(outputs).predicted_codes
            counts[empty, top[empty]] = len(grid)
        return p_from_counts(counts, grid)

    def predict_confidence(
        self, outputs: ModelOutputs, alphas: Any = None, *, trust: Any = None
    ) -> PointPredictions:
        """The most plausible class of each sample with its confidence and credibility.

        Parameters are those of `predict_p`. Classes that are in a set only because it would be
        empty do not count, so that a low credibility shows a sample that no class suits.
        """
        grid = grid_of(alphas, self._state().learned.smallest_alpha)
        counts, scores = self._count_alphas(outputs, grid, trust)
        return point_predictions(p_from_counts(counts, grid), scores, self.classes_)

    def _count_alphas(
        self, outputs: ModelOutputs, grid: tuple[float, ...], trust: Any
    ) -> tuple[NDArray[np.int64], Floats]:
        """At how many alphas each class is within the threshold, and all scores; both (m, K)."""
        state = self._state()
        _check_same_kind(state, outputs)
        observed = Observed(outputs, self.trust if trust is None else trust)
        scoring = state.scoring(self.score)
        found = self._thresholds(state.learned, observed, grid, scoring)
        scores = scoring.matrix(outputs)
        return count_alphas(scores, found), scores

    def summary(self, sets: PredictionSets | None = None) -> str:
        """Say in words what is guaranteed, and what became of the sets of a prediction."""
        state = self._state()
        lines = [
            f"{type(self).__name__}, calibrated on {state.n:,} samples"
            + (f" ({state.n_tuning:,} others were used for tuning)." if state.n_tuning else "."),
            f"Guarantee: {self._guarantee(state)}",
            "Coverage is averaged over calibration samples and new samples from the same source.",
        ]
        if state.reused:
            what = " and ".join(state.reused)
            lines.append(
                f"The guarantee holds only approximately, because {what} came from the "
                "calibration samples."
            )
        if state.class_facts is not None:
            each = self._method().covers_each_class
            lines += state.class_facts.sentences(state.classes, each_class=each)
        if sets is not None:
            lines += sets.describe()
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the predictor to a file that `trustsets.load` reads; no pickle, atomic."""
        state, copied = self._state(), copy(self)
        copied.state_ = replace(state, learned=state.learned.with_starts())
        storage.write(path, copied)

    def to_state(self) -> dict[str, Any]:
        """Parameters and calibrated state, for `storage`."""
        return {"parameters": self.get_params(deep=False), "state": self.state_}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        new = cls(**state["parameters"])
        if not isinstance(state["state"], Calibrated):
            raise StorageError("the calibrated state is missing.")
        new.state_ = state["state"]
        return new

    def check_state(self) -> None:
        """Refuse parameters and a state that do not belong together, for `storage`."""
        method, state, name = self._checked_method(), self.state_, type(self).__name__
        resolve_seed(self.random_state)
        if self.temperature != "tuning":
            same = resolve_temperature(self.temperature) == state.temperature
            storage.require(same, f"{name}.temperature", "is not the one that was learned")
        if self.tuning_fraction != "auto":
            resolve_fraction(self.tuning_fraction, method)
        if not method.learns_class_bias:
            same = resolve_class_bias(method.class_bias) is not None or state.class_bias is None
            storage.require(same, f"{name}.class_bias", "is not the one learned")
        same = self._could_learn(state.learned)
        storage.require(same, f"{name}.parameters", "do not agree with what was learned")
        self._check_trust(state)

    def _check_trust(self, state: Calibrated) -> None:
        """Refuse a trust score of other features or classes, for `storage`."""
        from trustsets.trust import TrustScore

        if isinstance(self.trust, TrustScore):
            name = f"{type(self).__name__}.trust"
            fits = state.n_features in (None, self.trust.n_features_in_)
            storage.require(fits, name, f"must have {state.n_features} features")
            kinds = {self.trust.classes_.dtype.kind, state.classes.dtype.kind} - {"O"}
            storage.require("U" not in kinds or len(kinds) == 1, name, "names no class")

    def _checked_method(self) -> Method:
        """Check all parameters that need no data."""
        if not isinstance(self.score, Score):
            raise InputError(
                f"score must be a score such as APS() (an instance); got {self.score!r}."
            )
        return self._method()

    def _state(self) -> Calibrated:
        if not hasattr(self, "state_"):
            raise NotCalibratedError(
                f"this {type(self).__name__} is not calibrated; call calibrate first."
            )
        return self.state_


def thresholds_from(
    predictor: Predictor, task: Task, observed: Observed, alphas: tuple[float, ...]
) -> SampleThresholds:
    """Thresholds that `calibrate` and `predict_set` would use, from a given calibration task.

    Several methods can share the scores and statistics of a task. The predictor is not changed. Its
    function class must not depend on the label.
    """
    predictor._checked_method()
    scoring, learned = Scoring(predictor.score, None, 1.0, task.seed), predictor._learn(task)
    if learned.conditions_on is not None and learned.conditions_on.uses_label:
        raise InputError("thresholds from a task need basis functions of the sample alone.")
    return predictor._thresholds(learned, observed, alphas, scoring)


def load(path: str | os.PathLike[str]) -> Any:
    """Read a predictor that was written by its `save`.

    A file that is truncated, altered, foreign or of a newer format gives a
    `StorageError`; nothing in a file is ever executed.
    """
    # A file may hold a trust score, which is known to storage once its module is imported.
    import trustsets.trust  # noqa: F401

    value = storage.read(path)
    if not isinstance(value, Predictor):
        raise StorageError(f"{path}: it holds a {type(value).__name__}, not a predictor.")
    _log.info("%s: loaded a %s", path, type(value).__name__)
    return value


def _observe(
    outputs: ModelOutputs, tuning: ModelOutputs | None, trust: Any
) -> tuple[Observed, Observed | None]:
    """Both parts with a trust score, or each with its own part of the known values."""
    if tuning is None:
        return Observed(outputs, trust), None
    parts: Any = trust, trust
    if trust is not None and not isinstance(trust, SupportsTrust):
        parts = np.split(np.asarray(trust), [len(outputs)])
    return Observed(outputs, parts[0]), Observed(tuning, parts[1])


def _width(outputs: ModelOutputs) -> int | None:
    return None if outputs.features is None else int(outputs.features.shape[1])


def _check_same_kind(state: Calibrated, outputs: ModelOutputs) -> None:
    """New samples must come from the same classifier, as far as shapes can tell."""
    if outputs.n_classes != state.classes.size:
        raise InputError(
            f"outputs have {outputs.n_classes} classes, but calibration had {state.classes.size}."
        )
    named = not np.array_equal(outputs.classes, np.arange(outputs.n_classes))
    if named and not np.array_equal(outputs.classes, state.classes):
        raise InputError(
            "outputs name other classes, or the same in another order, than calibration did."
        )
    width = _width(outputs)
    if None not in (width, state.n_features) and width != state.n_features:
        raise InputError(
            f"outputs have features of dimension {width}, but calibration had {state.n_features}."
        )
