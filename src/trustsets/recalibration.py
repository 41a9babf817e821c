"""Corrections of the model outputs before scores are computed: temperature and class bias."""

import warnings
from typing import Annotated, Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats, read_only
from trustsets._blocks import for_each_block, row_blocks, row_results
from trustsets._draws import Stream, row_uniforms
from trustsets._parameters import Rule, Temperature, check_arguments
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.estimator import Estimator
from trustsets.outputs import ModelOutputs, require_outputs
from trustsets.storage import require_numbers, storable

__all__ = ["ClassBias", "ClassLikelihood", "TemperatureScaling"]

# The likelihood may have no maximum at a finite temperature; beyond this the softmax is uniform.
LARGEST_TEMPERATURE = 100.0
# The logit of a probability of zero, as `ModelOutputs.logits` has it.
ZERO_PROBABILITY = float(np.log(np.finfo(np.float64).tiny))
# Below this every softmax output is 0 or 1 in double precision for common logits.
SMALLEST_TEMPERATURE = 1e-3
_ROOT_STEPS = 100
_RELATIVE_TOLERANCE = 1e-12
# Ridge penalties that are tried, from the strongest; with 100 almost no bias is left.
STRENGTHS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
_FOLDS = 3
# A class is rare with fewer tuning samples than this, or than half of the average class.
_FEWEST = 5
_FIT_STEPS = 60
# With 1 rare classes count as much as frequent ones; beyond 10 only the rarest class counts.
_LARGEST_PREVALENCE = 10.0
# Inverse temperatures beyond these make the softmax constant, or 0 and 1.
_INVERSE_TEMPERATURES = (0.01, 100.0)

Power = Annotated[
    float,
    Rule(
        f"must be a number between 0 and {_LARGEST_PREVALENCE:g}",
        lambda x: 0.0 <= float(x) <= _LARGEST_PREVALENCE,
    ),
]


@final
@storable
class TemperatureScaling(Estimator):
    """Divide the logits by T, with T the maximum-likelihood value on given data.

    Samples whose label has a given probability of zero do not count: no temperature changes it. If
    every other label has the largest logit of its row there is no maximum: the temperature stays 1,
    with a warning.

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

    temperature_: Temperature

    def fit(self, outputs: ModelOutputs) -> Self:
        """Fit T to the labels of `outputs`."""
        outputs = possible(require_outputs(outputs, "outputs"), "TemperatureScaling.fit")
        codes, logits = outputs.require_labels("TemperatureScaling.fit"), outputs.logits
        labels = np.take_along_axis(logits, codes[:, None], axis=1)[:, 0].astype(np.float64)
        gaps = labels - logits.max(axis=1)
        separated = not gaps.any()
        self.temperature_ = 1.0 if separated else 1.0 / _inverse_temperature(logits, gaps)
        message = ""
        if separated:
            message = "every label already has the largest logit, so the temperature stays 1."
        elif self.temperature_ >= LARGEST_TEMPERATURE:
            message = (
                f"the temperature stops at {LARGEST_TEMPERATURE:g}: the classifier does no better "
                "than chance on these labels."
            )
        if message:
            warnings.warn(message, TrustSetsWarning, stacklevel=2)
        return self

    def transform(self, outputs: ModelOutputs) -> ModelOutputs:
        """Return the outputs with logits divided by T."""
        if not hasattr(self, "temperature_"):
            raise self.not_fitted()
        logits = np.asarray(require_outputs(outputs, "outputs").logits, np.float64)
        return outputs.with_logits(logits / self.temperature_)


def possible(outputs: ModelOutputs, purpose: str) -> ModelOutputs:
    """The samples whose label has no given probability of zero; all, where there are none.

    A forest gives zeros without being a bad classifier. They tell nothing about a temperature or a
    bias, which leave them zero, and as logits of -708 they would outweigh all other samples.
    """
    codes, logits = outputs.require_labels(purpose), outputs.logits
    rows = np.flatnonzero(logits[np.arange(len(codes)), codes] != ZERO_PROBABILITY)
    return outputs.take(rows) if 0 < rows.size < len(outputs) else outputs


def _inverse_temperature(logits: NDArray[Any], label_gaps: Floats) -> float:
    """Return 1/T of least negative log-likelihood, the root of its increasing derivative."""

    def derivatives(b: float) -> tuple[float, float]:
        """First and second derivative of the mean."""
        first, second = np.empty(len(logits)), np.empty(len(logits))

        def fill(block: slice) -> None:
            values = logits[block].astype(np.float64)
            values -= values.max(axis=1, keepdims=True)
            weights = np.exp(b * values)
            weights /= weights.sum(axis=1, keepdims=True)
            mean = (weights * values).sum(axis=1)
            first[block] = mean - label_gaps[block]
            second[block] = (weights * values**2).sum(axis=1) - mean**2

        for_each_block(fill, *logits.shape)
        return float(first.mean()), float(second.mean())

    low, high = 1.0 / LARGEST_TEMPERATURE, 1.0 / SMALLEST_TEMPERATURE
    if derivatives(low)[0] >= 0.0:
        return low
    b = 1.0
    # Newton steps, kept inside a bracket.
    for _ in range(_ROOT_STEPS):
        slope, curvature = derivatives(b)
        low, high = (low, b) if slope > 0.0 else (b, high)
        step = b - slope / curvature if curvature > 0.0 else -1.0
        new = step if low < step < high else np.sqrt(low * high)
        if abs(new - b) <= _RELATIVE_TOLERANCE * b or high - low <= _RELATIVE_TOLERANCE * b:
            return float(new)
        b = float(new)
    return b


@final
@storable
class ClassBias(Estimator):
    """Add a constant to the logits of each class, by penalised maximum likelihood.

    With logits z, inverse temperature a and biases b, P(y | x) is the softmax of ``a z + b``
    and (a, b) minimise

        -sum_i log P(y_i | x_i) + lambda |b|^2 / 2

    Lambda has the largest held-out likelihood in three-fold cross-validation; it is infinity where
    no bias helps. ``b / a`` is added to the logits, so their temperature does not change.

    Likelihood alone would sacrifice rare classes. So a bias must also raise the held-out likelihood
    in which every class has the same weight, and that of a rare class (fewer than 5 samples, or
    than half of the average class) is at least the mean bias of the labels.

    Parameters
    ----------
    prevalence : float
        Between 0 and 10. The probability of each class is also divided by this power of its share
        ``(n_y + 1) / (n + K)``: sets hold rare classes more often. With 1, probabilities become
        those of equally frequent classes, up to the temperature.

    Attributes
    ----------
    bias_ : array of shape (K,)
        Added to the logits: the sum of both parts.
    strength_ : float
        The chosen lambda.

    Notes
    -----
    After Alexandari, Kundaje and Shrikumar (ICML 2020, bias-corrected calibration) and Ding,
    Fermanian and Salmon (2025, prevalence-adjusted softmax).

    Examples
    --------
    Three of four samples are of class 0, so class 1 is raised by log(4 / 2) (each count and 1):

    >>> outputs = ModelOutputs(logits=np.zeros((4, 2)), labels=[0, 0, 0, 1])
    >>> ClassBias(prevalence=1.0).fit(outputs).bias_.round(3)
    array([0.   , 0.693])
    """

    bias_: Floats
    strength_: float

    def __init__(self, *, prevalence: Power = 0.0) -> None:
        self.prevalence = prevalence

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` was called."""
        return hasattr(self, "bias_")

    def fit(self, outputs: ModelOutputs) -> Self:
        """Learn the biases from the labels of `outputs`."""
        check_arguments(Power, prevalence=self.prevalence)
        codes = require_outputs(outputs, "outputs").require_labels("ClassBias.fit")
        likely = possible(outputs, "ClassBias.fit")
        likely_codes = likely.require_labels("ClassBias.fit")
        strength = _choose_strength(likely, likely_codes)
        bias = np.zeros(outputs.n_classes)
        if np.isfinite(strength):
            theta = ClassLikelihood(likely.logits, likely_codes).minimise(strength)
            bias = _without_harm(theta[1:] / theta[0], codes)
        counts = np.bincount(codes, minlength=bias.size) + 1.0
        # Counts instead of shares: with equal counts the shift is exactly 0.
        bias = bias + float(self.prevalence) * np.log(counts.max() / counts)
        self.bias_, self.strength_ = read_only(bias), strength
        return self

    def transform(self, outputs: ModelOutputs) -> ModelOutputs:
        """Return the outputs with the biases added to their logits."""
        if not hasattr(self, "bias_"):
            raise self.not_fitted()
        if require_outputs(outputs, "outputs").n_classes != self.bias_.size:
            raise InputError(
                f"outputs have {outputs.n_classes} classes, but the biases are for "
                f"{self.bias_.size}."
            )
        return outputs.shifted(self.bias_) if self.bias_.any() else outputs

    def check_state(self) -> None:
        """Refuse biases that no fit gives, for `storage`."""
        if self.is_fitted:
            require_numbers(self.bias_, "ClassBias.bias_", None)


def _choose_strength(outputs: ModelOutputs, codes: Codes) -> float:
    """Best penalty by held-out likelihood.

    Penalties are tried from the strongest, each starting at the fit of the one before.
    """
    logits, held_out = outputs.logits, _folds(outputs.rows)
    if not held_out:
        return np.inf
    parts = [(np.setdiff1d(np.arange(codes.size), rows), rows) for rows in held_out]
    train = [ClassLikelihood(logits[rows], codes[rows]) for rows, _ in parts]
    test = [ClassLikelihood(logits[rows], codes[rows]) for _, rows in parts]
    # In the first row every sample has the same weight, in the second every class.
    counts = np.bincount(codes, minlength=outputs.n_classes)
    weights = np.stack([np.ones(codes.size), codes.size / counts[codes] / np.sum(counts > 0)])
    weights = weights[:, np.concatenate(held_out)]

    def losses(starts: list[Floats]) -> Floats:
        parts = [part.losses(theta) for part, theta in zip(test, starts, strict=True)]
        return np.asarray(weights @ np.concatenate(parts))

    starts = [part.minimise(np.inf) for part in train]
    none = best = losses(starts)
    chosen = np.inf
    for strength in STRENGTHS:
        starts = [p.minimise(strength, start) for p, start in zip(train, starts, strict=True)]
        loss = losses(starts)
        if loss[0] >= best[0] or loss[1] >= none[1]:
            break
        chosen, best = strength, loss
    return chosen


def _folds(rows: Codes) -> list[Codes]:
    """Positions of the held-out samples of each fold; none where a fold would be everything."""
    draws = row_uniforms(0, Stream.CLASS_BIAS_FOLDS, rows)
    order = np.argsort(draws, kind="stable")
    folds = [np.sort(order[k::_FOLDS]) for k in range(_FOLDS)]
    return [fold for fold in folds if 0 < fold.size < rows.size]


def _without_harm(bias: Floats, codes: Codes) -> Floats:
    """Raise the biases of rare classes to the mean bias of the labels, where they are below it."""
    counts = np.bincount(codes, minlength=bias.size)
    rare = counts < max(_FEWEST, 0.5 * codes.size / bias.size)
    return np.where(rare, np.maximum(bias, bias[codes].mean()), bias)


class ClassLikelihood:
    """Negative log-likelihood of (a, b) and its gradient, summed in blocks of rows."""

    def __init__(self, logits: NDArray[Any], codes: Codes) -> None:
        self.logits, self.codes = logits, codes
        self.counts = np.bincount(codes, minlength=logits.shape[1]).astype(np.float64)

    def __call__(self, theta: Floats) -> tuple[float, Floats]:
        """Negative log-likelihood at (a, b), and its gradient."""
        n, width = self.logits.shape
        parts: dict[int, tuple[float, Floats]] = {}

        def add(block: slice) -> None:
            parts[block.start] = self._block(block, theta)

        for_each_block(add, n, width)
        # In the order of the rows: the sum must not depend on which thread came first.
        ordered = [parts[block.start] for block in row_blocks(n, width)]
        value = sum(part[0] for part in ordered)
        gradient = np.sum([part[1] for part in ordered], axis=0)
        gradient[1:] -= self.counts
        return float(value), gradient

    def minimise(self, strength: float, start: Floats | None = None) -> Floats:
        """(a, b) of largest penalised likelihood; b = 0 where the penalty is infinite."""
        from scipy.optimize import minimize

        width = self.logits.shape[1]
        first = np.concatenate([[1.0], np.zeros(width)]) if start is None else start
        free = width + 1 if np.isfinite(strength) else 1

        def objective(part: Floats) -> tuple[float, Floats]:
            theta = np.concatenate([part, first[free:]])
            value, gradient = self(theta)
            if free == 1:
                return value, gradient[:1]
            gradient[1:] += strength * theta[1:]
            return value + 0.5 * strength * float(theta[1:] @ theta[1:]), gradient

        bounds = [_INVERSE_TEMPERATURES] + [(None, None)] * (free - 1)
        result = minimize(
            objective,
            first[:free],
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": _FIT_STEPS},
        )
        return np.concatenate([result.x, first[free:]])

    def losses(self, theta: Floats) -> Floats:
        """Negative log-likelihood of each sample."""

        def loss(block: slice) -> Floats:
            _, scaled, of_labels = self._scaled(block, theta)
            return np.asarray(np.log(np.exp(scaled).sum(axis=1)) - of_labels)

        return row_results(loss, *self.logits.shape)

    def _scaled(self, block: slice, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """Logits z, then ``a z + b``, each row less its largest entry; and that of the label."""
        z = self.logits[block].astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        scaled = theta[0] * z + theta[1:]
        scaled -= scaled.max(axis=1, keepdims=True)
        return z, scaled, scaled[np.arange(len(z)), self.codes[block]]

    def _block(self, block: slice, theta: Floats) -> tuple[float, Floats]:
        """Loss of some samples, and its gradient but for the counts of the labels in b."""
        z, scaled, of_labels = self._scaled(block, theta)
        rows, codes = np.arange(len(z)), self.codes[block]
        weights = np.exp(scaled, out=scaled)
        total = weights.sum(axis=1, keepdims=True)
        weights /= total
        slope = float((weights * z).sum() - z[rows, codes].sum())
        value = float(np.log(total).sum() - of_labels.sum())
        return value, np.concatenate([[slope], weights.sum(axis=0)])
