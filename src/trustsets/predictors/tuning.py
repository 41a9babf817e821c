"""What is learned besides thresholds, from which samples, and from which parameters."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.predictors.thresholds import SampleThresholds, SizedThresholds
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.recalibration.temperature import check_temperature

__all__ = [
    "Method",
    "resolve_class_bias",
    "resolve_fraction",
    "resolve_seed",
    "resolve_temperature",
    "tuning_split",
]


@final
@dataclass(frozen=True)
class Method:
    """What the checked parameters of a predictor say about its method."""

    tuned: tuple[str, ...] = ()
    """What the method itself learns from tuning samples, in words."""
    class_bias: ClassBias | str | None = None
    """Constants to add to the logits; ``"tuning"`` or an unfitted `ClassBias` learns them."""
    auto_fraction: Callable[[ModelOutputs], float] | None = None
    """Share of the samples that ``tuning_fraction="auto"`` sets aside."""
    covers_each_class: bool = False
    """Whether coverage is guaranteed given the class, even one without calibration samples."""
    batch_dependence: str | None = None
    """Why the set of a sample depends on the others of its batch."""
    own_alphas: Callable[..., SampleThresholds] | None = None
    """Thresholds of samples with alphas of their own, where calibration samples can have such."""
    sized: Callable[..., SizedThresholds] | None = None
    """Thresholds of sets of limited size, where the method has such."""

    def all_tuned(self, temperature: Any) -> tuple[str, ...]:
        """Everything that is learned from tuning samples, in words."""
        words = {
            "the temperature": isinstance(temperature, str),
            "the class biases": self.learns_class_bias,
        }
        return (*(name for name, learned in words.items() if learned), *self.tuned)

    @property
    def learns_class_bias(self) -> bool:
        """Whether class biases are learned from tuning samples."""
        own = self.class_bias
        unfitted = isinstance(own, ClassBias) and not own.is_fitted
        return unfitted or (isinstance(own, str) and own == "tuning")


def tuning_split(
    given: ModelOutputs,
    tuning: ModelOutputs | None,
    fraction: float,
    seed: int,
    tuned: tuple[str, ...],
) -> tuple[ModelOutputs, ModelOutputs]:
    """Calibration samples and tuning samples; the same ones where nothing is tuned."""
    if tuning is not None or not tuned:
        return given, given if tuning is None else tuning
    if fraction > 0.0:
        # Not stratified: the calibration samples must stay exchangeable with new ones.
        first, rest = given.split(fraction, seed=seed)
        return rest, first
    warnings.warn(
        f"{' and '.join(tuned)} will be learned from the calibration samples themselves, so "
        "the coverage guarantee holds only approximately; pass tuning= or set "
        "tuning_fraction.",
        TrustSetsWarning,
        stacklevel=3,
    )
    return given, given


def resolve_fraction(
    value: float | str, method: Method, outputs: ModelOutputs | None = None
) -> float:
    """The share to set aside as a number, from a number or the rule of the method."""
    found = value
    if value == "auto" and method.auto_fraction is not None and outputs is not None:
        found = method.auto_fraction(outputs)
    if isinstance(found, str) or not 0.0 <= found < 1.0:
        raise InputError(f"tuning_fraction must lie in [0, 1); got {value}.")
    return found


def resolve_temperature(
    value: float | TemperatureScaling | str | None, tuning: ModelOutputs | None = None
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


def resolve_class_bias(
    value: ClassBias | str | None, tuning: ModelOutputs | None = None
) -> ClassBias | None:
    """The fitted class biases, or None where nothing is to be added."""
    if value is None or (isinstance(value, ClassBias) and value.is_fitted):
        return value
    known = isinstance(value, ClassBias) or value == "tuning"
    if known and tuning is not None:
        return ClassBias(prevalence=getattr(value, "prevalence", 0.0)).fit(tuning)
    raise InputError(f'class_bias must be None, "tuning" or a ClassBias; got {value!r}.')


def resolve_seed(random_state: Any) -> int:
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
