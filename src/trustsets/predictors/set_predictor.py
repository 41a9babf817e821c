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
from typing import Any, Self

import numpy as np

from trustsets._common import storage
from trustsets._common.arrays import Array
from trustsets._common.estimator import Estimator
from trustsets.errors import InputError, StorageError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.class_facts import ClassFacts
from trustsets.predictors.making_sets import calibration_alphas, make_sets
from trustsets.predictors.thresholds import SampleThresholds
from trustsets.predictors.tuning import (
    Method,
    resolve_class_bias,
    resolve_fraction,
    resolve_seed,
    resolve_temperature,
    tuning_split,
)
from trustsets.predictors.updating import KeptSamples
from trustsets.recalibration import TemperatureScaling
from trustsets.scores import Score
from trustsets.sets import PredictionSets
from trustsets.statistics import SupportsTrust

__all__ = ["SetPredictor", "as_calibrated"]


_log = logging.getLogger(__name__)


class SetPredictor(Estimator, ABC):
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
    _population = "new samples from the same source"
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
        self, learned: Any, outputs: ModelOutputs, alphas: tuple[float, ...], scoring: Scoring
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
        reused = tuning_part is calibration
        if alphas is not None and calibration is not given:
            alphas = alphas[outputs.split_indices(fraction, seed)[1]]
        n, n_tuning = len(calibration), 0 if reused else len(tuning_part)
        scoring = self._scoring(method, tuning_part, seed)
        _log.info(
            "%s: calibrating on %d samples of %d classes, tuning on %d others",
            type(self).__name__, n, outputs.n_classes, n_tuning,
        )  # fmt: skip
        task = scoring.task(calibration, tuning_part, alphas)
        facts = ClassFacts.of(calibration)
        state = Calibrated(
            classes=outputs.classes,
            n_features=_width(outputs),
            n=n,
            n_tuning=n_tuning,
            reused=tuned if reused else (),
            temperature=scoring.temperature,
            seed=seed,
            learned=self._learn(task),
            class_bias=scoring.class_bias,
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
        outputs = as_calibrated(state, outputs)
        outputs = outputs.with_trust(self.trust if trust is None else trust)
        return make_sets(self, state, outputs, alpha, max_size)

    def _scoring(self, method: Method, tuning: ModelOutputs, seed: int) -> Scoring:
        """Fit the class biases, and then the temperature to the outputs with these added."""
        bias = resolve_class_bias(method.class_bias, tuning)
        corrected = tuning if bias is None else bias.transform(tuning)
        return Scoring(self.score, bias, resolve_temperature(self.temperature, corrected), seed)

    def _samples(self) -> KeptSamples:
        """The calibration samples, which are kept in memory only."""
        self._state()
        if self._kept is None:
            from trustsets.errors import NotCalibratedError

            raise NotCalibratedError(
                "files and copies do not hold the calibration samples; call calibrate with them."
            )
        return self._kept

    @property
    def _task(self) -> Task | None:
        """The calibration samples as one task, where they are in memory."""
        return None if self._kept is None else self._kept_task()

    def _kept_task(self) -> Task:
        """The calibration samples as one task."""
        task = self._samples().whole()
        self._kept = KeptSamples.of(task)
        return task

    def __getstate__(self) -> Any:
        # Copies in other processes answer for new samples; they need no calibration samples.
        return {**vars(self), "_kept": None}

    def summary(self, sets: PredictionSets | None = None) -> str:
        """Say in words what is guaranteed, and what became of the sets of a prediction."""
        state = self._state()
        lines = [
            f"{type(self).__name__}, calibrated on {state.n:,} samples"
            + (f" ({state.n_tuning:,} others were used for tuning)." if state.n_tuning else "."),
            f"Guarantee: {self._guarantee(state)}",
            f"Coverage is averaged over calibration samples and {self._population}.",
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
            from trustsets.errors import NotCalibratedError

            raise NotCalibratedError(
                f"this {type(self).__name__} is not calibrated; call calibrate first."
            )
        return self.state_


def _observe(
    outputs: ModelOutputs, tuning: ModelOutputs | None, trust: Any
) -> tuple[ModelOutputs, ModelOutputs | None]:
    """Both parts with a trust score, or each with its own part of the known values."""
    if tuning is None:
        return outputs.with_trust(trust), None
    parts: Any = trust, trust
    if trust is not None and not isinstance(trust, SupportsTrust):
        parts = np.split(np.asarray(trust), [len(outputs)])
    return outputs.with_trust(parts[0]), tuning.with_trust(parts[1])


def _width(outputs: ModelOutputs) -> int | None:
    return None if outputs.features is None else int(outputs.features.shape[1])


def as_calibrated(
    state: Calibrated, outputs: ModelOutputs, *, uses_labels: bool = False
) -> ModelOutputs:
    """New samples, with the class names of the calibration where they have none of their own.

    The trust score knows the names only. Raises if the samples cannot be of the same classifier, as
    far as shapes and names can tell.
    """
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
    if named or np.array_equal(outputs.classes, state.classes):
        return outputs
    if uses_labels and state.classes.dtype.kind in "iu":
        raise InputError(
            "labels may be names of classes or positions of columns, as the names are integers and "
            "outputs have none; pass ModelOutputs(..., classes=predictor.classes_)."
        )
    return outputs._replaced(classes=state.classes)
