"""A constant for each class, added to its logit. Imports outputs, blocks, draws, errors.

A classifier trained where some classes are rare, or common, ranks them too low, or too
high, wherever their shares are different. Labelled samples show by how much.
"""

from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from trustsets._common.arrays import Codes, Floats, read_only
from trustsets._common.blocks import for_each_block, row_blocks
from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.storage import require, require_numbers, storable
from trustsets.errors import InputError, NotCalibratedError
from trustsets.outputs import ModelOutputs

__all__ = ["ClassBias"]


# Ridge penalties that are tried, from the strongest; 100 leaves almost nothing of a bias.
STRENGTHS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
_FOLDS = 3
# A class is rare with fewer tuning samples than this, or than half of the average class.
_FEWEST = 5
_MAX_STEPS = 60
# Inverse temperatures beyond these make the softmax constant, or 0 and 1.
_INVERSE_TEMPERATURES = (0.01, 100.0)


@final
@storable
class ClassBias(BaseEstimator):
    r"""Add a constant to the logits of each class, by penalised maximum likelihood.

    With logits z, inverse temperature a and biases b, P(y | x) is the softmax of ``a z + b``
    and (a, b) minimise

    .. math:: -\sum_i \log P(y_i \mid x_i) + \tfrac{\lambda}{2} \|b\|^2 .

    Lambda is the one of a short list, or infinity (no bias), that gives held-out samples of
    the same data the largest likelihood in three folds: where nothing is gained, nothing is
    changed. ``b / a`` is what logits get; their temperature stays as it was.

    Likelihood alone would give up rare classes where they are rarer than the classifier
    expects: that is right for most samples and wrong for all samples of these classes. So a
    bias must also raise the held-out likelihood when every class counts the same, and a rare
    class (fewer than 5 samples, or than half of the average class) is never lowered against
    the average sample: its bias is at least the mean bias of the labels.

    Attributes
    ----------
    bias_ : array of shape (K,)
        What is added to the logits; all zero if no bias helps.
    strength_ : float
        The chosen lambda.
    gain_ : float
        By how much the bias lowers the mean negative log-likelihood of held-out samples.

    References
    ----------
    A. Alexandari, A. Kundaje and A. Shrikumar. Maximum likelihood with bias-corrected
    calibration is hard-to-beat at label shift adaptation. ICML 2020.

    Examples
    --------
    A classifier that has seen class 1 nine times too rarely is corrected by about log 9:

    >>> rng = np.random.default_rng(0)
    >>> truth = rng.normal(size=(5000, 2))
    >>> labels = (truth + rng.gumbel(size=(5000, 2))).argmax(axis=1)
    >>> logits = truth - [0.0, np.log(9)]
    >>> bias = ClassBias().fit(ModelOutputs(logits=logits, labels=labels)).bias_
    >>> round(float(bias[1] - bias[0]), 1), round(float(np.log(9)), 1)
    (2.2, 2.2)
    """

    bias_: Floats
    strength_: float
    gain_: float

    def fit(self, outputs: ModelOutputs) -> Self:
        """Learn the biases from the labels of `outputs`."""
        codes = outputs.require_labels("ClassBias.fit")
        strength, gain = _choose_strength(outputs, codes)
        bias = np.zeros(outputs.n_classes)
        if np.isfinite(strength):
            found = _minimise(_Likelihood(outputs.logits, codes), strength)
            bias = _without_harm(found[1:] / found[0], codes)
        self.bias_, self.strength_, self.gain_ = read_only(bias), strength, gain
        return self

    def transform(self, outputs: ModelOutputs) -> ModelOutputs:
        """Return the outputs with the biases added to their logits."""
        if not hasattr(self, "bias_"):
            raise NotCalibratedError("this ClassBias is not fitted; call fit first.")
        if outputs.n_classes != self.bias_.size:
            raise InputError(
                f"outputs have {outputs.n_classes} classes, but the biases are for "
                f"{self.bias_.size}."
            )
        return outputs.shifted(self.bias_) if self.bias_.any() else outputs

    def to_state(self) -> dict[str, Any]:
        """What `from_state` needs to rebuild this object."""
        if not hasattr(self, "bias_"):
            return {"bias": None}
        # JSON has no infinity; "no bias" says the same.
        strength = self.strength_ if np.isfinite(self.strength_) else None
        return {"bias": self.bias_, "strength": strength, "gain": self.gain_}

    def check_state(self) -> None:
        """Refuse numbers that no fit gives."""
        if hasattr(self, "bias_"):
            require_numbers(self.bias_, "ClassBias.bias", None)
            require(self.bias_.dtype == np.float64, "ClassBias.bias", "must be float64")
            for name, own in (("strength", self.strength_), ("gain", self.gain_)):
                number = isinstance(own, float | int)
                require(number, f"ClassBias.{name}", "must be a number")
            require(self.strength_ > 0.0, "ClassBias.strength", "must be positive")
            require(np.isfinite(self.gain_), "ClassBias.gain", "must be finite")

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        new = cls()
        if state["bias"] is not None:
            new.bias_ = read_only(np.asarray(state["bias"]))
            new.strength_ = np.inf if state["strength"] is None else state["strength"]
            new.gain_ = state["gain"]
        return new


def _choose_strength(outputs: ModelOutputs, codes: Codes) -> tuple[float, float]:
    """Best penalty by held-out likelihood, and what it gains over none; weaker ones come last."""
    logits, held_out = outputs.logits, _folds(outputs.rows)
    if not held_out:
        return np.inf, 0.0
    parts = [(np.setdiff1d(np.arange(codes.size), rows), rows) for rows in held_out]
    train = [_Likelihood(logits[rows], codes[rows]) for rows, _ in parts]
    test = [_Likelihood(logits[rows], codes[rows]) for _, rows in parts]
    # One row counts every sample the same, the other every class.
    counts = np.bincount(codes, minlength=outputs.n_classes)
    weights = np.stack([np.ones(codes.size), codes.size / counts[codes] / np.sum(counts > 0)])
    weights = weights[:, np.concatenate(held_out)]

    def losses(starts: list[Floats]) -> Floats:
        found = [part.losses(theta) for part, theta in zip(test, starts, strict=True)]
        total: Floats = weights @ np.concatenate(found)
        return total

    starts = [_minimise(part, np.inf) for part in train]
    none = best = losses(starts)
    chosen = np.inf
    for strength in STRENGTHS:
        starts = [_minimise(p, strength, start) for p, start in zip(train, starts, strict=True)]
        loss = losses(starts)
        if loss[0] >= best[0] or loss[1] >= none[1]:
            break
        chosen, best = strength, loss
    return chosen, float(none[0] - best[0]) / len(outputs)


def _folds(rows: Codes) -> list[Codes]:
    """Positions of the held-out samples of each fold; none where a fold would be everything."""
    draws = row_uniforms(0, Stream.CLASS_BIAS_FOLDS, rows)
    order = np.argsort(draws, kind="stable")
    found = [np.sort(order[k::_FOLDS]) for k in range(_FOLDS)]
    return [part for part in found if 0 < part.size < rows.size]


def _without_harm(bias: Floats, codes: Codes) -> Floats:
    """Raise the biases of rare classes to the mean bias of the labels, where they are below it."""
    counts = np.bincount(codes, minlength=bias.size)
    rare = counts < max(_FEWEST, 0.5 * codes.size / bias.size)
    return np.where(rare, np.maximum(bias, bias[codes].mean()), bias)


class _Likelihood:
    """Negative log-likelihood of (a, b) and its gradient, summed in blocks of rows."""

    def __init__(self, logits: NDArray[Any], codes: Codes) -> None:
        self.logits, self.codes = logits, codes
        self.own = np.bincount(codes, minlength=logits.shape[1]).astype(np.float64)

    def __call__(self, theta: Floats) -> tuple[float, Floats]:
        n, width = self.logits.shape
        parts: dict[int, tuple[float, Floats]] = {}

        def add(block: slice) -> None:
            parts[block.start] = self._block(block, theta)

        for_each_block(add, n, width)
        # In the order of the rows: the sum must not depend on which thread came first.
        ordered = [parts[block.start] for block in row_blocks(n, width)]
        value = sum(part[0] for part in ordered)
        gradient = np.sum([part[1] for part in ordered], axis=0)
        gradient[1:] -= self.own
        return float(value), gradient

    def losses(self, theta: Floats) -> Floats:
        """Negative log-likelihood of each sample."""
        result = np.empty(len(self.logits))

        def fill(block: slice) -> None:
            z = self.logits[block].astype(np.float64)
            scaled = theta[0] * (z - z.max(axis=1, keepdims=True)) + theta[1:]
            scaled -= scaled.max(axis=1, keepdims=True)
            own = scaled[np.arange(len(z)), self.codes[block]]
            result[block] = np.log(np.exp(scaled).sum(axis=1)) - own

        for_each_block(fill, *self.logits.shape)
        return result

    def _block(self, block: slice, theta: Floats) -> tuple[float, Floats]:
        z = self.logits[block].astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        scaled = theta[0] * z + theta[1:]
        scaled -= scaled.max(axis=1, keepdims=True)
        rows, codes = np.arange(len(z)), self.codes[block]
        own = scaled[rows, codes]
        weights = np.exp(scaled, out=scaled)
        total = weights.sum(axis=1, keepdims=True)
        weights /= total
        slope = float((weights * z).sum() - z[rows, codes].sum())
        value = float(np.log(total).sum() - own.sum())
        return value, np.concatenate([[slope], weights.sum(axis=0)])


def _minimise(likelihood: _Likelihood, strength: float, start: Floats | None = None) -> Floats:
    """(a, b) of largest penalised likelihood; b = 0 where the penalty is infinite."""
    from scipy.optimize import minimize

    width = likelihood.logits.shape[1]
    first = np.concatenate([[1.0], np.zeros(width)]) if start is None else start
    free = width + 1 if np.isfinite(strength) else 1

    def objective(part: Floats) -> tuple[float, Floats]:
        theta = np.concatenate([part, first[free:]])
        value, gradient = likelihood(theta)
        if free == 1:
            return value, gradient[:1]
        gradient[1:] += strength * theta[1:]
        return value + 0.5 * strength * float(theta[1:] @ theta[1:]), gradient

    bounds = [_INVERSE_TEMPERATURES] + [(None, None)] * (free - 1)
    found = minimize(
        objective,
        first[:free],
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": _MAX_STEPS},
    )
    return np.concatenate([found.x, first[free:]])
