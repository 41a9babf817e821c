r"""Class shares of unlabelled samples, where only the shares differ from those of calibration.

Under label shift the distribution of the outputs given the class stays the same. The density of the
new outputs is then proportional to :math:`\sum_y q_y f_y(x) / p_y`, with calibrated probabilities
f and calibration shares p, and the shares q of largest likelihood are the estimate. Probabilities
are calibrated first by a temperature and a constant for each class, fitted on the calibration
samples: without the constants the estimate is biased (Alexandari, Kundaje and Shrikumar 2020).

Black-box shift estimation (Lipton, Wang and Smola 2018) uses predicted classes alone and needs no
calibrated probabilities: shares q solve :math:`\mu = C\,(q / p)`, where C holds the calibration
shares of predicted and true classes, and :math:`\mu` the new shares of predicted classes. It is
less accurate, and serves as a check.
"""

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from trustsets._common.arrays import Codes, Floats
from trustsets._common.storage import require, require_numbers, storable
from trustsets.errors import TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.predictors.comparing import same_distribution
from trustsets.recalibration.class_bias import _Likelihood, _minimise

__all__ = ["ClassShares", "estimate_shares"]

# Keeps the constants of classes without samples finite.
_PENALTY = 1e-3
_MAX_STEPS = 5000
_STEP_TOL = 1e-9
# Half the width of intervals of 95%, in standard errors.
_WIDTH = 1.959963984540054
# Chance of a false warning, for each of the two checks.
_WARNING_RATE = 1e-3
# Steps of the likelihood shrink the share of a class that is not there, but never to zero.
_SMALLEST_SHARE = 1e-12
# Below this the shares of predicted classes do not determine those of the classes.
_SINGULAR = 1e-8


@final
@storable
@dataclass(frozen=True)
class ClassShares:
    """Estimated shares of the classes among unlabelled samples; arrays of shape (K,).

    Attributes
    ----------
    shares, low, high : array
        By maximum likelihood, with 95% intervals for the chance in both samples. They are too
        narrow where a temperature and a constant for each class do not calibrate the probabilities.
    check, check_low, check_high : array
        By black-box shift estimation, with 95% intervals for the chance in both samples. Where
        some classes are never predicted, the intervals are from 0 to 1.
    calibration : array
        Shares among the calibration samples.
    fit_p : float
        P-value of the hypothesis that confidence is distributed as label shift with these shares
        says (Kolmogorov and Smirnov; conservative, since the shares were fitted).
    """

    shares: Floats
    low: Floats
    high: Floats
    check: Floats
    check_low: Floats
    check_high: Floats
    calibration: Floats
    fit_p: float

    def check_state(self) -> None:
        """Refuse numbers that are no shares, for `storage`."""
        for name in ("shares", "low", "high", "check", "check_low", "check_high", "calibration"):
            require_numbers(getattr(self, name), f"ClassShares.{name}", len(self.shares))
        for name in ("shares", "calibration"):
            own = getattr(self, name)
            whole = (own >= 0.0).all() and abs(own.sum() - 1.0) < 1e-6
            require(whole, f"ClassShares.{name}", "must be shares that sum to 1")
        require(0.0 <= self.fit_p <= 1.0, "ClassShares.fit_p", "must lie between 0 and 1")

    @property
    def weights(self) -> Floats:
        """Ratio of new to calibration shares; 1 for classes without calibration samples."""
        seen = self.calibration > 0.0
        return np.where(seen, self.shares / np.where(seen, self.calibration, 1.0), 1.0)

    def doubts(self) -> str:
        """Sentence on what speaks against label shift; empty if nothing does."""
        if self.fit_p < _WARNING_RATE:
            return (
                "The confidence of the unlabelled samples is not distributed as other class shares "
                f"alone would make it (p = {self.fit_p:.2g}): more than the shares has changed, "
                "and adapted sets may cover less than they say. Label some of the new samples, and "
                "calibrate or update with them."
            )
        from scipy.special import ndtri

        far = -float(ndtri(_WARNING_RATE / 2.0 / len(self.shares))) / _WIDTH
        spread = far * np.hypot(self.high - self.low, self.check_high - self.check_low) / 2.0
        if (np.abs(self.shares - self.check) > spread + 1e-9).any():
            return (
                "Two estimates of the class shares disagree by more than chance: either more than "
                "the shares has changed, or the probabilities are far from calibrated. Compare "
                "shares_.shares and shares_.check before using the adapted sets."
            )
        return ""

    def warn(self) -> None:
        """Warn where there are doubts."""
        if text := self.doubts():
            warnings.warn(text, TrustSetsWarning, stacklevel=4)


def estimate_shares(labelled: ModelOutputs, unlabelled: ModelOutputs) -> ClassShares:
    """Class shares of the unlabelled samples, from those with labels.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> def draw(shares, n):
    ...     labels = rng.choice(2, p=shares, size=n)
    ...     x = rng.normal(size=n) + 2.0 * labels  # logits of a classifier for equal shares
    ...     return ModelOutputs(logits=np.stack([0.0 * x, 2.0 * x - 2.0], axis=1), labels=labels)
    >>> found = estimate_shares(draw([0.5, 0.5], 2000), draw([0.9, 0.1], 2000))
    >>> bool(found.low[0] < 0.9 < found.high[0]), found.doubts()
    (True, '')
    """
    codes = labelled.require_labels("adapt")
    share = np.bincount(codes, minlength=labelled.n_classes) / codes.size
    seen = np.flatnonzero(share > 0.0)
    theta = _minimise(_Likelihood(labelled.logits, codes), _PENALTY)
    likelihood = _MaximumLikelihood(labelled, unlabelled, theta, share, seen)
    shares, error = np.zeros_like(share), np.zeros_like(share)
    shares[seen] = likelihood.estimate()
    error[seen] = likelihood.errors(shares[seen])
    check, check_error = _black_box(labelled, codes, share, unlabelled)
    found: dict[str, Any] = {"shares": shares, "check": check, "calibration": share}
    for prefix, own, width in (("", shares, error), ("check_", check, check_error)):
        found[f"{prefix}low"] = np.clip(own - _WIDTH * width, 0.0, 1.0)
        found[f"{prefix}high"] = np.clip(own + _WIDTH * width, 0.0, 1.0)
    weights = np.divide(shares, share, out=np.zeros_like(share), where=share > 0.0)[codes]
    fit_p = same_distribution(labelled.confidence, weights, unlabelled.confidence)
    return ClassShares(**found, fit_p=fit_p)


class _MaximumLikelihood:
    r"""The most likely shares, and their standard errors by the influence of each sample on them.

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
        share: Floats,
        seen: Codes,
    ) -> None:
        self.codes = np.searchsorted(seen, labelled.require_labels("adapt"))
        self.share = share[seen]
        own = np.concatenate([theta[:1], theta[1:][seen]])
        self.old, self.f_old = _seen_part(labelled, own, seen)
        self.new, self.f_new = _seen_part(unlabelled, own, seen)

    def estimate(self) -> Floats:
        """Shares of largest likelihood, shape (K,).

        The likelihood is concave, so the steps of Saerens, Latinne and Decaestecker (2002) lead to
        its maximum.
        """
        ratios, shares = self.f_new / self.share, self.share
        for _ in range(_MAX_STEPS):
            new = shares * np.mean(ratios / (ratios @ shares)[:, None], axis=0)
            change, shares = float(np.abs(new - shares).max()), new / new.sum()
            if change < _STEP_TOL:
                break
        shares = np.where(shares < _SMALLEST_SHARE, 0.0, shares)
        return np.asarray(shares / shares.sum())

    def errors(self, shares: Floats) -> Floats:
        """Standard errors, shape (K,), of these shares."""
        g = self.f_new / self.share
        g /= (g @ shares)[:, None]
        posterior = g * shares
        width, m = shares.size, len(g)
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
        found = slopes @ np.linalg.pinv(information, rcond=1e-9, hermitian=True)
        found[:, 1:] -= np.eye(width)[self.codes] / self.share - 1.0
        return np.asarray(found)


def _seen_part(outputs: ModelOutputs, theta: Floats, seen: Codes) -> tuple[Floats, Floats]:
    """Logits of some of the classes, and their calibrated probabilities among these."""
    logits = outputs.logits[:, seen].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    scaled = theta[0] * logits + theta[1:]
    scaled = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return logits, scaled / scaled.sum(axis=1, keepdims=True)


def _black_box(
    labelled: ModelOutputs, codes: Codes, share: Floats, unlabelled: ModelOutputs
) -> tuple[Floats, Floats]:
    """Shares by black-box shift estimation, and their standard errors by the delta method."""
    width, n, m = share.size, len(labelled), len(unlabelled)
    predicted = labelled.predicted_codes
    table = np.bincount(predicted * width + codes, minlength=width * width) / n
    table = table.reshape(width, width)
    seen = share > 0.0
    own = table[np.ix_(seen, seen)]
    if np.linalg.svd(own, compute_uv=False).min() < _SINGULAR:
        return share, np.ones(width)
    new = np.bincount(unlabelled.predicted_codes, minlength=width) / m
    inverse = np.linalg.inv(own)
    weights = inverse @ new[seen]
    # Errors of C^-1 mu: those of mu, and those of C times the weights.
    second = own @ weights**2
    first = own @ weights
    of_new = np.diag(new[seen]) - np.outer(new[seen], new[seen])
    of_table = np.diag(second) - np.outer(first, first)
    covariance = inverse @ (of_new / m + of_table / n) @ inverse.T
    shares, error = np.zeros(width), np.zeros(width)
    shares[seen] = weights * share[seen]
    error[seen] = share[seen] * np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    return shares, error
