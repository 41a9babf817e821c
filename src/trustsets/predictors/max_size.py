r"""Sets of at most k classes, each with an alpha that k classes can keep.

With M a number that does not depend on the calibration samples, the truncated score is
:math:`s'(x, y) = s(x, y)` if y is among the k most likely classes of x, and M (or slightly more, so
that there are no ties) otherwise. It is a score like any other, and its sets have at most k classes
wherever the threshold is below M. Such a threshold exists where alpha is larger than the chance
that the label is not among these classes. So the alpha of a sample is the larger of the alpha asked
for and an estimate of that chance, learned from tuning samples: a function of the inputs, as
thresholds with an alpha for each sample need it (Cherian, Gibbs and Candès 2024). Where alpha was
raised, the set holds all k classes: a larger set keeps the promise, too.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.storage import require, require_numbers, storable
from trustsets.basis import FittedBasis
from trustsets.predictors.calibrated import Task

__all__ = ["LabelRanks", "MissedShare", "OwnAlphas", "reaches"]

Calibration = tuple[Floats, Floats]

# No sample is promised less than 1 - this: thresholds need an alpha below 1.
_MAX_ALPHA = 0.99
ERRORS = 1.0
"""Standard errors by which the estimate is raised. With fewer, some calibrations of few samples
left most samples without a promise; with more, all promises are weaker (`studies/max_size.py`)."""
_RIDGES = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
# How far scores beyond M spread out.
_SPREAD = 1e-5
_MOST_STEPS, _SMALLEST_STEP = 100, 1e-9
# A threshold this close to M, as a share of M, may have been M before rounding.
_CLOSE = 1e-9


@final
@storable
@dataclass(frozen=True)
class LabelRanks:
    """What the alphas of sets of limited size are learned from.

    Attributes
    ----------
    of_calibration : int array of shape (n,)
        0-based ranks of the calibration labels by probability, in the order of the scores.
    of_tuning : int array of shape (t,)
        Ranks of the tuning labels.
    tuning_phi : array of shape (t, p)
        Basis functions of the tuning samples.
    beyond : float
        M, the score of classes beyond the k most likely ones: twice the largest tuning score. A
        much larger number would make fits slower and thresholds near such samples steeper.
    """

    of_calibration: Codes
    of_tuning: Codes
    tuning_phi: Floats
    beyond: float

    @classmethod
    def of_task(cls, basis: FittedBasis, task: Task) -> Self | None:
        """Keep the ranks if there are own tuning samples to learn from."""
        if task.ranks is None or not task.has_own_tuning or basis.uses_label:
            return None
        phi, tuning = basis.design(task.tuning), task.ranks(task.tuning)
        if not basis.could_give(phi):
            # Some tuning samples are of groups that no calibration sample has.
            known = np.array([basis.could_give(row[None]) for row in phi])
            phi, tuning = phi[known], tuning[known]
        if not len(tuning):
            return None
        # Sorted, so that what is learned cannot depend on the order in which the samples came.
        order = np.lexsort((*phi.T, tuning))
        beyond = 2.0 * float(np.abs(task.tuning_scores()).max(initial=0.0)) or 1.0
        return cls(task.ranks(task.calibration), tuning[order], phi[order], beyond)

    def sorted_by(self, order: Codes) -> Self:
        """The calibration samples in another order."""
        return replace(self, of_calibration=self.of_calibration[order])

    def check_state(self) -> None:
        """Refuse numbers that no calibration gives."""
        require_numbers(self.tuning_phi, "LabelRanks.tuning_phi", None, None)
        is_double = self.tuning_phi.dtype == np.float64
        require(is_double, "LabelRanks.tuning_phi", "must be of type float64")
        require_numbers(self.of_calibration, "LabelRanks.of_calibration", None)
        require_numbers(self.of_tuning, "LabelRanks.of_tuning", len(self.tuning_phi))
        sane = np.isfinite(self.beyond) and self.beyond > 0.0
        require(sane, "LabelRanks.beyond", "must be positive")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        require_numbers(self.of_calibration, "LabelRanks.of_calibration", n)
        for name in ("of_calibration", "of_tuning"):
            ranks = getattr(self, name)
            known = 0 <= ranks.min() and ranks.max() < n_classes
            require(known, f"LabelRanks.{name}", f"must lie between 0 and {n_classes - 1}")

    def problem(
        self, calibration: Calibration, phi: Floats, alpha: float, size: int
    ) -> "OwnAlphas":
        """Truncated scores, and the alphas that sets of at most `size` classes can keep.

        Parameters
        ----------
        calibration : pair of arrays of shape (n, p) and (n,)
            Basis functions and scores of the calibration samples.
        phi : array of shape (m, p)
            Basis functions of the new samples.
        alpha : float
            The smallest alpha.
        size : int
            Number of classes.
        """
        share = MissedShare.fit(self.tuning_phi, self.of_tuning >= size)
        rows, scores = calibration
        # Without ties where the scores have none, as randomised thresholds need it.
        beyond = self.beyond + _SPREAD * scores / (1.0 + np.abs(scores))
        return OwnAlphas(
            key=("max_size", alpha, size),
            scores=np.where(self.of_calibration < size, scores, beyond),
            calibration=_raised(share, rows, alpha),
            alphas=_raised(share, phi, alpha),
        )


@final
@dataclass(frozen=True)
class OwnAlphas:
    """A problem in which every sample has an alpha of its own.

    Attributes
    ----------
    key : hashable
        Names the problem: with the calibration samples it determines `scores` and `calibration`.
    scores, calibration : arrays of shape (n,)
        Scores and alphas of the calibration samples.
    alphas : array of shape (m,)
        Alphas of the new samples.
    """

    key: Hashable
    scores: Floats
    calibration: Floats
    alphas: Floats


def reaches(thresholds: Floats, beyond: float) -> NDArray[np.bool_]:
    """Where thresholds are M or more, up to rounding: all classes would be in these sets."""
    return np.asarray(thresholds >= (1.0 - _CLOSE) * beyond)


@final
@dataclass(frozen=True)
class MissedShare:
    r"""Upper estimate of a probability given x, by ridge logistic regression on :math:`\phi(x)`.

    The estimate is :math:`\sigma(z'b + c \sqrt{z'H^{-1}z})` with z the standardised basis functions
    and a constant, b the coefficients, H the Hessian of the penalised loss at b, and c = 1 standard
    error. The ridge is the one that makes the samples most likely.

    Examples
    --------
    >>> missed = np.arange(100) % 4 == 0
    >>> share = MissedShare.fit(np.ones((100, 1)), missed)
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


def _raised(share: MissedShare, phi: Floats, alpha: float) -> Floats:
    """The larger of alpha and the share of labels that are missed, as far as alphas go."""
    return np.maximum(alpha, np.minimum(share(phi), _MAX_ALPHA))
