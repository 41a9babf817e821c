r"""Class prevalences of unlabelled samples under label shift.

Under label shift the distribution of the outputs given the class stays the same. The density of the
new outputs is then proportional to :math:`\sum_y q_y f_y(x) / p_y`, with calibrated probabilities
f and calibration prevalences p, and the prevalences q of largest likelihood are the estimate.
Probabilities are calibrated first by a temperature and a constant for each class, fitted on the
calibration samples: without the constants the estimate is biased (Alexandari, Kundaje and
Shrikumar 2020).
"""

import warnings
from dataclasses import dataclass
from typing import final

import numpy as np

from trustsets._arrays import Codes, Floats
from trustsets._storage import require_numbers, storable
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.recalibration import ClassLikelihood
from trustsets.shift.comparing import same_distribution

__all__ = ["ClassPrevalence", "estimate_prevalence"]

# With fewer unlabelled samples the estimate says little: with one, coverage fell by 10 points.
FEWEST = 50
# Keeps the constants of classes without samples finite.
_PENALTY = 1e-3
_MAX_STEPS = 5000
_STEP_TOL = 1e-9
# Half the width of intervals of 95%, in standard errors.
_WIDTH = 1.959963984540054
# Probability of a false warning.
_WARNING_RATE = 1e-3
# Steps of the likelihood shrink the prevalence of a class that is not there, but never to zero.
_SMALLEST = 1e-12


@final
@storable
@dataclass(frozen=True)
class ClassPrevalence:
    """Estimated class prevalences among unlabelled samples; arrays of shape (K,).

    Attributes
    ----------
    estimate, low, high : array
        By maximum likelihood, with 95% intervals for the sampling variability of both samples. They
        are too narrow where a temperature and a constant for each class do not calibrate the
        probabilities. A class without calibration samples has the interval from 0 to 1.
    calibration : array
        Prevalences among the calibration samples.
    fit_p : float
        P-value of the hypothesis that confidence is distributed as label shift with these
        prevalences says (Kolmogorov and Smirnov; conservative, since they were fitted).
    """

    estimate: Floats
    low: Floats
    high: Floats
    calibration: Floats
    fit_p: float

    def check_state(self) -> None:
        """Refuse arrays of other shapes, for `storage`."""
        for name in ("estimate", "low", "high", "calibration"):
            require_numbers(getattr(self, name), f"ClassPrevalence.{name}", len(self.estimate))

    @property
    def weights(self) -> Floats:
        """Ratio of new to calibration prevalence; 1 for classes without calibration samples."""
        seen = self.calibration > 0.0
        return np.where(seen, self.estimate / np.where(seen, self.calibration, 1.0), 1.0)

    def doubts(self) -> str:
        """Sentence on what speaks against label shift; empty if nothing does."""
        if self.fit_p >= _WARNING_RATE:
            return ""
        return (
            "The confidence of the unlabelled samples is not distributed as other class "
            f"prevalences alone would make it (p = {self.fit_p:.2g}): more than the prevalences "
            "has changed, and adapted sets may under-cover. Label some of the new samples, and "
            "calibrate or update with them."
        )

    def warn(self) -> None:
        """Warn where there are doubts."""
        if text := self.doubts():
            warnings.warn(text, TrustSetsWarning, stacklevel=4)


def estimate_prevalence(labelled: ModelOutputs, unlabelled: ModelOutputs) -> ClassPrevalence:
    """Class prevalences of the unlabelled samples, from those with labels.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> def draw(prevalence, n):
    ...     labels = rng.choice(2, p=prevalence, size=n)
    ...     x = rng.normal(size=n) + 2.0 * labels  # logits of a classifier for equal prevalences
    ...     return ModelOutputs(logits=np.stack([0.0 * x, 2.0 * x - 2.0], axis=1), labels=labels)
    >>> result = estimate_prevalence(draw([0.5, 0.5], 2000), draw([0.9, 0.1], 2000))
    >>> bool(result.low[0] < 0.9 < result.high[0]), result.doubts()
    (True, '')
    """
    if len(unlabelled) < FEWEST:
        raise InputError(
            f"adapt needs {FEWEST} unlabelled samples or more, hundreds better; got "
            f"{len(unlabelled)}."
        )
    codes = labelled.require_labels("adapt")
    calibration = np.bincount(codes, minlength=labelled.n_classes) / codes.size
    seen = np.flatnonzero(calibration > 0.0)
    theta = ClassLikelihood(labelled.logits, codes).minimise(_PENALTY)
    likelihood = _MaximumLikelihood(labelled, unlabelled, theta, calibration, seen)
    estimate, low, high = np.zeros((3, calibration.size))
    high[calibration == 0.0] = 1.0
    estimate[seen] = likelihood.estimate()
    errors = _WIDTH * likelihood.errors(estimate[seen])
    low[seen] = np.clip(estimate[seen] - errors, 0.0, 1.0)
    high[seen] = np.clip(estimate[seen] + errors, 0.0, 1.0)
    ratios = np.divide(estimate, calibration, out=np.zeros_like(estimate), where=calibration > 0.0)
    fit_p = same_distribution(labelled.confidence, ratios[codes], unlabelled.confidence)
    return ClassPrevalence(estimate, low, high, calibration, fit_p)


class _MaximumLikelihood:
    r"""The most likely prevalences, and their standard errors by the influence of each sample.

    Let f be the calibrated probabilities with parameters a and b, :math:`g_y = (f_y / p_y) /
    \sum_k q_k f_k / p_k` and :math:`\pi_k = q_k g_k`. The estimate makes the mean of g equal in
    all directions v that sum to zero. Its derivative in q is minus the mean of gg', and in
    :math:`\log(f_k / p_k)` it is the mean of :math:`g_y(1\{y = k\} - \pi_k)`. Labelled samples act
    through a, b and p, and unlabelled ones directly.
    """

    def __init__(
        self,
        labelled: ModelOutputs,
        unlabelled: ModelOutputs,
        theta: Floats,
        calibration: Floats,
        seen: Codes,
    ) -> None:
        self.codes = np.searchsorted(seen, labelled.require_labels("adapt"))
        self.calibration = calibration[seen]
        theta = np.concatenate([theta[:1], theta[1:][seen]])
        self.old, self.f_old = _seen_part(labelled, theta, seen)
        self.new, self.f_new = _seen_part(unlabelled, theta, seen)

    def estimate(self) -> Floats:
        """Shares of largest likelihood, shape (K,).

        The likelihood is concave, so the steps of Saerens, Latinne and Decaestecker (2002) lead to
        its maximum.
        """
        ratios, prevalences = self.f_new / self.calibration, self.calibration
        for _ in range(_MAX_STEPS):
            new = prevalences * np.mean(ratios / (ratios @ prevalences)[:, None], axis=0)
            change, prevalences = float(np.abs(new - prevalences).max()), new / new.sum()
            if change < _STEP_TOL:
                break
        prevalences = np.where(prevalences < _SMALLEST, 0.0, prevalences)
        return np.asarray(prevalences / prevalences.sum())

    def errors(self, prevalences: Floats) -> Floats:
        """Standard errors, shape (K,), of these prevalences."""
        g = self.f_new / self.calibration
        g /= (g @ prevalences)[:, None]
        posterior = g * prevalences
        width, m = prevalences.size, len(g)
        directions = np.vstack([np.eye(width - 1), -np.ones(width - 1)])
        curvature = directions.T @ (g.T @ g / m) @ directions
        solve = directions @ np.linalg.pinv(curvature, hermitian=True) @ directions.T
        of_logits = np.diag(g.mean(axis=0)) - g.T @ posterior / m
        of_scale = np.mean(g * (self.new - np.sum(posterior * self.new, axis=1)[:, None]), axis=0)
        direct = solve @ np.cov(g.T, bias=True).reshape(width, width) @ solve / m
        influence = self._influence()
        effects = solve @ np.column_stack([of_scale, of_logits])
        through = effects @ np.cov(influence.T, bias=True) @ effects.T / len(influence)
        return np.asarray(np.sqrt(np.maximum(np.diagonal(direct + through), 0.0)))

    def _influence(self) -> Floats:
        """Influence of each labelled sample on a and on b - log p, shape (n, 1 + K)."""
        n, width = self.f_old.shape
        residuals = np.eye(width)[self.codes] - self.f_old
        slopes = np.column_stack([np.sum(residuals * self.old, axis=1), residuals])
        centred = self.old - np.sum(self.f_old * self.old, axis=1)[:, None]
        mixed = np.mean(self.f_old * centred, axis=0)
        information = np.empty((1 + width, 1 + width))
        information[0, 0] = np.sum(self.f_old * centred**2) / n
        information[0, 1:] = information[1:, 0] = mixed
        information[1:, 1:] = np.diag(self.f_old.mean(axis=0)) - self.f_old.T @ self.f_old / n
        influence = slopes @ np.linalg.pinv(information, rcond=1e-9, hermitian=True)
        influence[:, 1:] -= np.eye(width)[self.codes] / self.calibration - 1.0
        return np.asarray(influence)


def _seen_part(outputs: ModelOutputs, theta: Floats, seen: Codes) -> tuple[Floats, Floats]:
    """Logits of some of the classes, and their calibrated probabilities among these."""
    logits = outputs.logits[:, seen].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    scaled = theta[0] * logits + theta[1:]
    scaled = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return logits, scaled / scaled.sum(axis=1, keepdims=True)
