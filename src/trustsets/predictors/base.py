"""What all predictors share: calibrate once, then predict sets at any alpha.

`calibrate` works out a complete new state before it replaces the old one, so an error
leaves the predictor as it was.
"""

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, final, get_type_hints

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from trustsets._common import storage
from trustsets._common.arrays import Array, Floats
from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.quantiles import check_alphas
from trustsets.errors import InputError, NotCalibratedError, StorageError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.predictors.class_facts import ClassFacts
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.recalibration.temperature import check_temperature
from trustsets.scores import Score
from trustsets.sets import PredictionSets
from trustsets.statistics import Observed, SupportsTrust
from trustsets.status import Status

__all__ = ["Calibrated", "Limits", "Predictor", "Task", "limits_of", "load"]


_log = logging.getLogger(__name__)

# Counts and seeds are 64-bit numbers.
_LARGEST_COUNT = 1 << 63
_FINITE = tuple(status for status in Status if not status.is_infinite)


@final
@storage.storable
@dataclass(frozen=True)
class Calibrated:
    """All that a calibrated predictor knows besides its parameters."""

    classes: Array
    n_features: int | None
    n: int
    n_tuning: int
    reused: tuple[str, ...]
    temperature: float
    seed: int
    learned: Any
    class_bias: ClassBias | None = None
    class_facts: ClassFacts | None = None

    def check_state(self) -> None:
        """Refuse numbers that no calibration gives, and parts that belong to different data."""
        names = self.classes.tolist() if self.classes.ndim == 1 else []
        # NaN is not equal to itself.
        distinct = names and len(set(names)) == len(names) and names == self.classes.tolist()
        storage.require(distinct, "Calibrated.classes", "must be distinct names")
        for name, least in (("n", 1), ("n_tuning", 0), ("seed", 0), ("n_features", 1)):
            own = getattr(self, name)
            enough = own is None or least <= own < _LARGEST_COUNT
            storage.require(enough, f"Calibrated.{name}", f"must be {least} or more")
        check_temperature(self.temperature)
        checks = hasattr(self.learned, "check_belongs")
        storage.require(checks, "Calibrated.learned", "must be what a method learns")
        self.learned.check_belongs(self.n, len(names))
        fits = self.class_bias is None or self.class_bias.bias_.size == len(names)
        storage.require(fits, "Calibrated.class_bias", "must have a number for each class")
        storage.require(self.class_facts, "Calibrated.class_facts", "must be there")
        assert self.class_facts is not None
        self.class_facts.check_belongs(self.n, len(names))

    def scored(self, outputs: ModelOutputs) -> ModelOutputs:
        """Outputs as the score sees them."""
        return outputs if self.class_bias is None else self.class_bias.transform(outputs)


@final
@dataclass(frozen=True)
class Task:
    """Calibration data, and the data that everything else may be learned from.

    `scores` are those of the calibration labels; ``tuning_scores()`` works out those of the
    tuning labels, for the methods that need them.
    """

    calibration: Observed
    tuning: Observed
    scores: Floats
    tuning_scores: Callable[[], Floats]
    seed: int


@final
@dataclass(frozen=True)
class Limits:
    """Thresholds and statuses of m samples at A levels, both of shape (m, A).

    `per_class` holds thresholds of shape (K, A) instead, where every class has its own.
    """

    thresholds: Floats
    status: NDArray[np.int8]
    per_class: Floats | None = None


class Predictor(BaseEstimator, ABC):
    """A conformal predictor; see `StandardConformal` for the common parameters."""

    score: Score
    temperature: float | TemperatureScaling | str | None
    allow_empty: bool
    tuning_fraction: float | str
    random_state: Any
    state_: Calibrated

    @property
    @abstractmethod
    def _trust(self) -> SupportsTrust | None:
        """The trust score in use, if the method uses one."""

    @abstractmethod
    def _tuned_parts(self) -> list[str]:
        """Names of what the method learns from tuning data, temperature apart."""

    @abstractmethod
    def _guarantee(self, state: Calibrated) -> str:
        """The guarantee as a sentence about "the sets"."""

    @abstractmethod
    def _learn(self, task: Task) -> Any:
        """Return a storable object with what the method keeps of the calibration data."""

    @abstractmethod
    def _limits(self, learned: Any, observed: Observed, alphas: tuple[float, ...]) -> Limits:
        """Thresholds of new samples."""

    def _could_learn(self, learned: Any) -> bool:
        """Whether these parameters could have led to what was learned."""
        return True

    def __sklearn_clone__(self) -> Self:
        # Parameters are shared: scores and bases are frozen, and a fitted trust score or
        # temperature is data to a predictor, which an unfitted copy could not stand in for.
        return type(self)(**self.get_params(deep=False))

    @property
    def _covers_each_class(self) -> bool:
        """Whether the guarantee is for each class, those without calibration samples included."""
        return False

    def _auto_fraction(self, outputs: ModelOutputs) -> float | None:
        """Share that ``tuning_fraction="auto"`` stands for; None where there is no such rule."""
        return None

    @property
    def _class_bias(self) -> ClassBias | str | None:
        """Correction of the classes in use: None, ``"tuning"`` or a fitted `ClassBias`."""
        return None

    @property
    def classes_(self) -> Array:
        """Names of the classes, in the order of the columns."""
        return self._state().classes

    @property
    def temperature_(self) -> float:
        """Temperature that divides the logits before scores are computed."""
        return self._state().temperature

    def calibrate(self, outputs: ModelOutputs, *, tuning: ModelOutputs | None = None) -> Self:
        """Learn thresholds from labelled samples that the classifier was not trained on.

        Parameters
        ----------
        outputs : ModelOutputs
            Calibration samples with labels.
        tuning : ModelOutputs, optional
            Other labelled samples, for what is learned besides the thresholds
            (temperature, bin edges). Without them a random `tuning_fraction` of the
            calibration samples is set aside, if there is anything to learn.
        """
        _check_parameters(self)
        outputs.require_labels("calibrate")
        fraction, seed = _resolve_fraction(self, outputs), _seed(self.random_state)
        tuned = self._all_tuned_parts()
        calibration, tuning = self._tuning_split(outputs, tuning, fraction, seed, tuned)
        reused = tuning is calibration
        bias = _resolve_class_bias(self._class_bias, tuning)
        temperature = _resolve_temperature(
            self.temperature, tuning if bias is None else bias.transform(tuning)
        )
        trust = self._trust

        def scores(part: ModelOutputs, stream: Stream) -> Floats:
            draws = self._draws(seed, stream, part.rows)
            scored = part if bias is None else bias.transform(part)
            return self.score.of_labels(scored, temperature=temperature, draws=draws)

        task = Task(
            calibration=Observed(calibration, trust),
            tuning=Observed(tuning, trust),
            scores=scores(calibration, Stream.CALIBRATION_SCORE),
            tuning_scores=partial(scores, tuning, Stream.TUNING_SCORE),
            seed=seed,
        )
        _log.info(
            "%s: calibrating on %d samples of %d classes, tuning on %d others",
            type(self).__name__, len(calibration), outputs.n_classes,
            0 if reused else len(tuning),
        )  # fmt: skip
        facts = ClassFacts.of(calibration)
        state = Calibrated(
            classes=outputs.classes,
            n_features=None if outputs.features is None else outputs.features.shape[1],
            n=len(calibration),
            n_tuning=0 if reused else len(tuning),
            reused=tuple(tuned) if reused else (),
            temperature=temperature,
            seed=seed,
            learned=self._learn(task),
            class_bias=bias,
            class_facts=facts,
        )
        facts.warn(state.classes, each_class=self._covers_each_class)
        self.state_ = state
        return self

    def predict_set(self, outputs: ModelOutputs, alpha: Any = 0.1) -> PredictionSets:
        """Sets that miss the true class with probability at most `alpha`.

        Parameters
        ----------
        outputs : ModelOutputs
            New samples; labels are not used.
        alpha : float or sequence of float
            Allowed miscoverage. A sequence gives sets for each level, nested in alpha.
        """
        state = self._state()
        alphas, single = check_alphas(alpha)
        _check_same_kind(state, outputs)
        limits = self._limits(state.learned, Observed(outputs, self._trust), alphas)
        draws = self._draws(state.seed, Stream.PREDICTION_SCORE, outputs.draw_keys)
        mask, thresholds = self._apply(limits, state.scored(outputs), state.temperature, draws)
        # A full set always says why it is full.
        bounded = mask.all(axis=1) & np.isin(limits.status, _FINITE)
        status = np.where(bounded, np.int8(Status.ABOVE_ALL_SCORES), limits.status)
        return PredictionSets(
            mask=mask[..., 0] if single else mask,
            thresholds=thresholds[..., 0] if single else thresholds,
            status=status[:, 0] if single else status,
            alpha=alphas[0] if single else alphas,
            classes=state.classes,
        )

    def summary(self, sets: PredictionSets | None = None) -> str:
        """Say in words what is guaranteed, and what became of the sets of a prediction."""
        state = self._state()
        lines = [
            f"{type(self).__name__}, calibrated on {state.n:,} samples"
            + (f" ({state.n_tuning:,} others were used for tuning)." if state.n_tuning else "."),
            f"Guarantee: {self._guarantee(state)}",
            "It is on average over calibration data and new samples from the same source.",
        ]
        if state.reused:
            what = " and ".join(state.reused)
            lines.append(
                f"It holds only approximately here: {what} came from the calibration samples."
            )
        if state.class_facts is not None:
            each = self._covers_each_class
            lines += state.class_facts.sentences(state.classes, each_class=each)
        if sets is not None:
            lines += sets.describe()
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the predictor to a file that `trustsets.load` reads; no pickle, atomic."""
        self._state()
        storage.write(path, self)

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
        from trustsets.trust import TrustScore

        _check_parameters(self)
        self._tuned_parts()
        _seed(self.random_state)
        state, name = self.state_, type(self).__name__
        if self.temperature != "tuning":
            same = _resolve_temperature(self.temperature, None) == state.temperature
            storage.require(same, f"{name}.temperature", "is not the one that was learned")
        if self.tuning_fraction != "auto":
            _resolve_fraction(self, None)
        if self._class_bias != "tuning":
            same = _resolve_class_bias(self._class_bias, None) is not None
            storage.require(
                same or state.class_bias is None, f"{name}.class_bias", "is not the one learned"
            )
        learned = get_type_hints(type(self)._learn)["return"]
        storage.require(isinstance(state.learned, learned), f"{name}.state", "is of another method")
        same = self._could_learn(state.learned)
        storage.require(same, f"{name}.parameters", "do not agree with what was learned")
        if isinstance(self._trust, TrustScore):
            fits = state.n_features in (None, self._trust.n_features_in_)
            storage.require(fits, f"{name}.trust", f"must have {state.n_features} features")
            kinds = {self._trust.classes_.dtype.kind, state.classes.dtype.kind} - {"O"}
            storage.require("U" not in kinds or len(kinds) == 1, f"{name}.trust", "names no class")

    def _apply(
        self, limits: Limits, outputs: ModelOutputs, temperature: float, draws: Floats | None
    ) -> tuple[NDArray[np.bool_], Floats]:
        """Masks of shape (m, K, A), and the thresholds as the result shows them."""
        smallest = 0 if self.allow_empty else 1
        if limits.per_class is None:
            mask = self.score.sets(
                outputs,
                limits.thresholds,
                temperature=temperature,
                draws=draws,
                smallest=smallest,
            )
            return mask, limits.thresholds
        scores = self.score.matrix(outputs, temperature=temperature, draws=draws)
        mask = scores[:, :, None] <= limits.per_class
        if smallest:
            # If the set of any level is empty, all levels get the class, or the sets of the
            # smaller alphas, which may hold other classes, would not be nested.
            empty = ~np.all(mask.any(axis=1), axis=1, keepdims=True)
            mask[np.arange(len(outputs)), outputs.predicted_codes] |= empty
        return mask, np.broadcast_to(limits.per_class, mask.shape)

    def _draws(self, seed: int, stream: Stream, keys: NDArray[np.int64]) -> Floats | None:
        return row_uniforms(seed, stream, keys) if self.score.randomized else None

    def _state(self) -> Calibrated:
        if not hasattr(self, "state_"):
            raise NotCalibratedError(
                f"this {type(self).__name__} is not calibrated; call calibrate first."
            )
        return self.state_

    def _all_tuned_parts(self) -> list[str]:
        words = {"the temperature": self.temperature, "the class biases": self._class_bias}
        tuned = [name for name, word in words.items() if isinstance(word, str)]
        return tuned + self._tuned_parts()

    def _tuning_split(
        self,
        outputs: ModelOutputs,
        tuning: ModelOutputs | None,
        fraction: float,
        seed: int,
        parts: list[str],
    ) -> tuple[ModelOutputs, ModelOutputs]:
        """Calibration part and tuning part; the same samples where nothing is tuned."""
        if tuning is not None or not parts:
            return outputs, outputs if tuning is None else tuning
        if fraction > 0.0:
            # Not stratified: the calibration samples must stay exchangeable with new ones.
            first, rest = outputs.split(fraction, seed=seed)
            return rest, first
        warnings.warn(
            f"{' and '.join(parts)} will be learned from the calibration samples themselves, so "
            "the coverage guarantee holds only approximately; pass tuning= or set "
            "tuning_fraction.",
            TrustSetsWarning,
            stacklevel=3,
        )
        return outputs, outputs


def limits_of(
    predictor: Predictor, task: Task, observed: Observed, alphas: tuple[float, ...]
) -> Limits:
    """Thresholds alone, from scores and statistics that several methods share.

    Parameters
    ----------
    predictor : Predictor
        Names the method; it is not changed.
    task : Task
        Calibration samples with the scores of their labels, at the temperature in use.
    observed : Observed
        New samples.
    alphas : tuple of float
        Levels.

    Returns
    -------
    Limits
        Those that ``calibrate`` and ``predict_set`` would use.
    """
    _check_parameters(predictor)
    predictor._tuned_parts()
    return predictor._limits(predictor._learn(task), observed, alphas)


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


def _check_parameters(predictor: Predictor) -> None:
    if not isinstance(predictor.score, Score):
        raise InputError(
            f"score must be a score such as APS() (an instance); got {predictor.score!r}."
        )


def _resolve_fraction(predictor: Predictor, outputs: ModelOutputs | None) -> float:
    """The share to set aside as a number, from a number or a method's own rule."""
    value = predictor.tuning_fraction
    if value == "auto" and outputs is not None:
        value = predictor._auto_fraction(outputs) or value
    if isinstance(value, str) or not 0.0 <= value < 1.0:
        raise InputError(f"tuning_fraction must lie in [0, 1); got {predictor.tuning_fraction}.")
    return value


def _resolve_temperature(
    value: float | TemperatureScaling | str | None, tuning: ModelOutputs | None
) -> float:
    """The number to divide logits by, from any of the accepted forms."""
    if value is None:
        return 1.0
    if isinstance(value, TemperatureScaling):
        if not hasattr(value, "temperature_"):
            raise InputError(
                'temperature= got an unfitted TemperatureScaling; fit it, or pass "tuning".'
            )
        return value.temperature_
    if isinstance(value, str):
        if value != "tuning" or tuning is None:
            raise InputError(
                f'temperature must be None, a number, a TemperatureScaling or "tuning"; '
                f"got {value!r}."
            )
        return TemperatureScaling().fit(tuning).temperature_
    return check_temperature(value)


def _resolve_class_bias(
    value: ClassBias | str | None, tuning: ModelOutputs | None
) -> ClassBias | None:
    """The fitted correction, or None where nothing is to be corrected."""
    if isinstance(value, str) and value == "tuning" and tuning is not None:
        return ClassBias().fit(tuning)
    if value is None or (isinstance(value, ClassBias) and hasattr(value, "bias_")):
        return value
    raise InputError(f'class_bias must be None, "tuning" or a fitted ClassBias; got {value!r}.')


def _seed(random_state: Any) -> int:
    """A non-negative integer seed from any of scikit-learn's forms of random_state."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        if random_state < 0:
            raise InputError(f"random_state must not be negative; got {random_state}.")
        return int(random_state)
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(1 << 31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(1 << 31))
    raise InputError(f"random_state must be an integer, None or a generator; got {random_state!r}.")


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
    width = None if outputs.features is None else outputs.features.shape[1]
    if None not in (width, state.n_features) and width != state.n_features:
        raise InputError(
            f"outputs have features of dimension {width}, but calibration had {state.n_features}."
        )
