"""Temperature scaling: divide the logits by one number, fitted by maximum likelihood."""

import warnings
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.blocks import for_each_block
from trustsets._common.estimator import Estimator
from trustsets._common.storage import storable
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import ModelOutputs

__all__ = ["TemperatureScaling"]

# The likelihood may have no maximum at a positive, finite temperature. Beyond this the
# softmax is practically uniform; the order of its classes is still that of the logits.
LARGEST_TEMPERATURE = 100.0
# The logit of a probability of zero, as `ModelOutputs.logits` has it.
ZERO_PROBABILITY = float(np.log(np.finfo(np.float64).tiny))
# Below this every softmax output is 0 or 1 in double precision for common logits.
SMALLEST_TEMPERATURE = 1e-3
_MAX_STEPS = 100
_RELATIVE_TOLERANCE = 1e-12


@final
@storable
class TemperatureScaling(Estimator):
    """Divide the logits by T, with T the maximum-likelihood value on given data.

    In b = 1/T the mean negative log-likelihood is convex; its derivative is the mean of
    E_b[logit] - logit of the true class, with E_b the mean under the scaled softmax.
    The root is found by Newton steps kept inside a bracket, to full precision.

    If every label has the largest logit of its row, the likelihood increases as T goes to 0
    and has no maximum: the temperature stays 1, with a warning.

    Attributes
    ----------
    temperature_ : float
        The fitted T.

    Examples
    --------
    >>> outputs = ModelOutputs(logits=[[4.0, 0.0], [4.0, 0.0], [0.0, 4.0]], labels=[0, 1, 1])
    >>> scaling = TemperatureScaling().fit(outputs)
    >>> round(scaling.temperature_, 4)  # two of three right: sigmoid(4 / T) = 2 / 3
    5.7708
    """

    temperature_: float

    def fit(self, outputs: ModelOutputs) -> Self:
        """Fit T to the labels of `outputs`."""
        codes = outputs.require_labels("TemperatureScaling.fit")
        likelihood = _Likelihood(outputs, codes)
        if likelihood.separated:
            warnings.warn(
                "every label already has the largest logit, so no temperature is best; "
                "the temperature stays 1.",
                TrustSetsWarning,
                stacklevel=2,
            )
            self.temperature_ = 1.0
        else:
            self.temperature_ = 1.0 / _root(likelihood)
        if self.temperature_ >= LARGEST_TEMPERATURE:
            # A forest gives probabilities of zero without being a bad classifier.
            reason = "the classifier does no better than chance on these labels"
            if likelihood.impossible:
                reason = (
                    f"{likelihood.impossible:,} of {len(outputs):,} labels have a probability of "
                    "zero, which no temperature corrects; smooth the probabilities (a forest: "
                    "more trees, or larger leaves) or do without a temperature"
                )
            warnings.warn(
                f"the temperature stops at {LARGEST_TEMPERATURE:g}: {reason}.",
                TrustSetsWarning,
                stacklevel=2,
            )
        return self

    def transform(self, outputs: ModelOutputs) -> ModelOutputs:
        """Return the outputs with logits divided by T."""
        if not hasattr(self, "temperature_"):
            from trustsets.errors import NotCalibratedError

            raise NotCalibratedError("this TemperatureScaling is not fitted; call fit first.")
        return outputs.with_logits(np.asarray(outputs.logits, np.float64) / self.temperature_)

    def to_state(self) -> dict[str, Any]:
        """State for `from_state`."""
        return {"temperature": getattr(self, "temperature_", None)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        new = cls()
        if state["temperature"] is not None:
            new.temperature_ = check_temperature(state["temperature"])
        return new


def check_temperature(value: Any) -> float:
    """Return a positive, finite temperature, or raise."""
    number = float(value)
    if not (np.isfinite(number) and number > 0.0):
        raise InputError(f"temperature must be positive and finite; got {value}.")
    return number


class _Likelihood:
    """First two derivatives in b of the mean negative log-likelihood."""

    def __init__(self, outputs: ModelOutputs, codes: NDArray[np.int64]) -> None:
        self.outputs, self.codes = outputs, codes
        logits = outputs.logits
        own = np.take_along_axis(logits, codes[:, None], axis=1)[:, 0].astype(np.float64)
        self.impossible = int((own == ZERO_PROBABILITY).sum())
        self.own = own - logits.max(axis=1)
        self.logits = logits
        self.separated = bool((self.own == 0.0).all())

    def derivatives(self, b: float) -> tuple[float, float]:
        n, width = self.logits.shape
        first, second = np.empty(n), np.empty(n)

        def fill(block: slice) -> None:
            values = self.logits[block].astype(np.float64)
            values -= values.max(axis=1, keepdims=True)
            weights = np.exp(b * values)
            weights /= weights.sum(axis=1, keepdims=True)
            mean = (weights * values).sum(axis=1)
            first[block] = mean - self.own[block]
            second[block] = (weights * values**2).sum(axis=1) - mean**2

        for_each_block(fill, n, width)
        return float(first.mean()), float(second.mean())


def _root(likelihood: _Likelihood) -> float:
    """Root of the increasing first derivative over the allowed range of b = 1/T."""
    low, high = 1.0 / LARGEST_TEMPERATURE, 1.0 / SMALLEST_TEMPERATURE
    if likelihood.derivatives(low)[0] >= 0.0:
        return low
    b = 1.0
    for _ in range(_MAX_STEPS):
        slope, curvature = likelihood.derivatives(b)
        low, high = (low, b) if slope > 0.0 else (b, high)
        step = b - slope / curvature if curvature > 0.0 else -1.0
        new = step if low < step < high else np.sqrt(low * high)
        if abs(new - b) <= _RELATIVE_TOLERANCE * b or high - low <= _RELATIVE_TOLERANCE * b:
            return float(new)
        b = float(new)
    return b
