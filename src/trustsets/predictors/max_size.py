r"""Sets of at most k classes, each with an alpha that k classes can reach.

With M a number that does not depend on the calibration samples, the truncated score is
:math:`s'(x, y) = s(x, y)` if y is among the k most likely classes of x, and M (or slightly more, so
that there are no ties) otherwise. It is a score like any other, and its sets have at most k classes
wherever the threshold is below M. Such a threshold exists where alpha is larger than the
probability that the label is not among these classes. So the alpha of a sample is the larger of the
alpha asked for and an estimate of that probability, learned from tuning samples: a function of the
inputs, as thresholds with an alpha for each sample need it (Cherian, Gibbs and Candès 2024). Where
alpha was raised, the set contains all k classes, which can only add coverage.
"""

from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats
from trustsets._storage import require, require_numbers, storable

__all__ = ["MissProbability", "SizeLimits"]

# The guaranteed coverage is never less than 1 - this: thresholds need an alpha below 1.
_MAX_ALPHA = 0.99
ERRORS = 1.0
"""Standard errors by which the estimate is raised. With fewer, some calibrations of few samples
left most samples without a guarantee; with more, all guarantees are weaker
(`studies/max_size.py`)."""
_RIDGES = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
# How far scores beyond M spread out.
_SPREAD = 1e-5
_MOST_STEPS, _SMALLEST_STEP = 100, 1e-9
# A threshold this close to M, as a share of M, may have been M before rounding.
_CLOSE = 1e-9


@final
@storable
@dataclass(frozen=True, eq=False)
class SizeLimits:
    """What the alphas of sets of limited size are learned from.

    Attributes
    ----------
    label_ranks : int array of shape (n,)
        0-based ranks of the calibration labels by probability, in the order of the samples.
    tuning_ranks : int array of shape (t,)
        Ranks of the tuning labels.
    tuning_phi : array of shape (t, p)
        Basis functions of the tuning samples.
    beyond : float
        M, the score of classes beyond the k most likely ones: twice the largest tuning score. A
        much larger number would make fits slower and thresholds near such samples steeper.
    """

    label_ranks: Codes
    tuning_ranks: Codes
    tuning_phi: Floats
    beyond: float

    @classmethod
    def fit(
        cls, label_ranks: Codes, tuning_ranks: Codes, tuning_phi: Floats, tuning_scores: Floats
    ) -> Self:
        """Keep what is learned from; tuning samples are sorted, so their order does not count."""
        order = np.lexsort((*tuning_phi.T, tuning_ranks))
        beyond = 2.0 * float(np.abs(tuning_scores).max(initial=0.0)) or 1.0
        return cls(label_ranks, tuning_ranks[order], tuning_phi[order], beyond)

    def check_belongs(self, n: int, width: int) -> None:
        """Refuse arrays of other samples or functions, for `storage`."""
        require_numbers(self.label_ranks, "SizeLimits.label_ranks", n)
        require_numbers(self.tuning_phi, "SizeLimits.tuning_phi", None, width)
        require_numbers(self.tuning_ranks, "SizeLimits.tuning_ranks", len(self.tuning_phi))
        positive = np.isfinite(self.beyond) and self.beyond > 0.0
        require(positive, "SizeLimits.beyond", "must be positive")

    def take(self, index: Codes) -> Self:
        """The same with some of the calibration samples."""
        return replace(self, label_ranks=self.label_ranks[index])

    def extended(self, label_ranks: Codes) -> Self:
        """The same with more calibration samples."""
        return replace(self, label_ranks=np.concatenate([self.label_ranks, label_ranks]))

    def truncated_scores(self, scores: Floats, size: int) -> Floats:
        """Scores of the calibration labels, M for those beyond the `size` most likely classes."""
        # Without ties where the scores have none, as randomised thresholds need it.
        beyond = self.beyond + _SPREAD * scores / (1.0 + np.abs(scores))
        return np.where(self.label_ranks < size, scores, beyond)

    def alphas(self, phi: Floats, alpha: float, size: int) -> Floats:
        """The larger of alpha and the estimated probability that the label is left out."""
        missed = MissProbability.fit(self.tuning_phi, self.tuning_ranks >= size)
        return np.maximum(alpha, np.minimum(missed(phi), _MAX_ALPHA))

    def reaches(self, thresholds: Floats) -> NDArray[np.bool_]:
        """Where thresholds are M or more, up to rounding: all classes would be in these sets."""
        return np.asarray(thresholds >= (1.0 - _CLOSE) * self.beyond)


@final
@dataclass(frozen=True)
class MissProbability:
    r"""Upper estimate of a probability given x, by ridge logistic regression on :math:`\phi(x)`.

    The estimate is :math:`\sigma(z'b + c \sqrt{z'H^{-1}z})` with z the standardised basis functions
    and a constant, b the coefficients, H the Hessian of the penalised loss at b, and c = 1 standard
    error. The ridge is the one that makes the samples most likely.

    Examples
    --------
    >>> missed = np.arange(100) % 4 == 0
    >>> share = MissProbability.fit(np.ones((100, 1)), missed)
    >>> share(np.ones((2, 1))).round(3)
    array([0.298, 0.298])
    """

    centre: Floats
    spread: Floats
    coefficients: Floats
    root: Floats
    """Inverse of the Cholesky factor of the Hessian: ``|root @ z|`` is a standard error."""

    @classmethod
    def fit(cls, phi: Floats, happened: NDArray[np.bool_]) -> Self:
        """Learn from samples for which it is known whether it happened."""
        centre, spread = phi.mean(axis=0), phi.std(axis=0)
        # A constant column, up to rounding, has no spread: it is left out.
        spread = np.where(spread > 1e-12 * np.abs(phi).max(axis=0), spread, np.inf)
        rows = _with_constant((phi - centre) / spread)
        # Half an average sample of each kind keeps the intercept finite.
        average = np.eye(1, rows.shape[1])[[0, 0]]
        rows, targets = np.vstack([rows, average]), np.append(happened, [0.0, 1.0])
        weights = np.append(np.ones(len(phi)), [0.5, 0.5])
        coefficients, hessian = _ridge_logistic(rows, targets, weights)
        root = np.linalg.inv(np.linalg.cholesky(hessian))
        return cls(centre, spread, coefficients, root)

    def __call__(self, phi: Floats) -> Floats:
        """Upper estimates for rows of basis functions, shape (m,)."""
        from scipy.special import expit

        with np.errstate(over="ignore", invalid="ignore"):
            rows = _with_constant((phi - self.centre) / self.spread)
            # Not matrix products: the last digits of one depend on the other rows of its batch.
            centre = np.einsum("ij,j->i", rows, self.coefficients)
            errors = np.sqrt((np.einsum("ij,kj->ik", rows, self.root) ** 2).sum(axis=1))
            share = expit(centre + ERRORS * errors)
        # Where numbers overflow, nothing is known.
        return np.asarray(np.where(np.isnan(share), 1.0, share))


def _with_constant(rows: Floats) -> Floats:
    return np.column_stack([np.ones(len(rows)), rows])


def _ridge_logistic(rows: Floats, targets: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Coefficients and Hessian of the ridge that the data make most likely, of `_RIDGES`."""
    found = [_newton(rows, targets, weights, ridge) for ridge in _RIDGES]
    best = int(np.argmax([evidence for _, _, evidence in found]))
    return found[best][:2]


def _newton(
    rows: Floats, targets: Floats, weights: Floats, ridge: float
) -> tuple[Floats, Floats, float]:
    """Coefficients of the smallest penalised loss, the Hessian there, and the log evidence.

    The evidence is Laplace's approximation of the probability of the targets if coefficients, the
    intercept apart, were normal with variance ``1 / ridge``.
    """
    from scipy.special import expit

    penalty = ridge * np.append(0.0, np.ones(rows.shape[1] - 1))

    def loss(at: Floats) -> float:
        margins = rows @ at
        fit = weights @ (np.logaddexp(0.0, margins) - targets * margins)
        return float(fit + 0.5 * penalty @ at**2)

    found = np.zeros(rows.shape[1])
    for _ in range(_MOST_STEPS):
        shares = expit(rows @ found)
        slope = rows.T @ (weights * (shares - targets)) + penalty * found
        curvature = weights * shares * (1.0 - shares)
        hessian = (rows * curvature[:, None]).T @ rows + np.diag(penalty)
        step = np.linalg.solve(hessian, slope)
        # The loss is convex, so halving finds a lower one unless rounding hides it.
        length = 1.0
        while length > _SMALLEST_STEP and loss(found - length * step) > loss(found):
            length *= 0.5
        if length * np.abs(step).max() < _SMALLEST_STEP:
            break
        found = found - length * step
    prior = 0.5 * (rows.shape[1] - 1) * np.log(ridge)
    return found, hessian, float(prior - loss(found) - 0.5 * np.linalg.slogdet(hessian)[1])
