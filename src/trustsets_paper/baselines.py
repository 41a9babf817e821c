"""The authors' STANDARD, and baselines: RC3P, INTERP-Q, plug-in, atypicality and the oracle."""

from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import Any, Self, final

import numpy as np

from trustsets import (
    APS,
    RAPS,
    SAPS,
    Bins,
    ClassBias,
    Confidence,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    PredictionSets,
    Status,
    TemperatureScaling,
    Trust,
)
from trustsets.basis import Basis, FittedBasis
from trustsets.engine import fit_quantiles
from trustsets.errors import InputError
from trustsets.outputs import SupportsTrust
from trustsets.predictors import (
    Calibration,
    Predictor,
    class_thresholds,
    nested_thresholds,
    quantile_thresholds,
)
from trustsets.scores import Score, TopK
from trustsets.statistics import Statistic, Transform
from trustsets.status import Thresholds
from trustsets_paper import Array, Floats, Ints

__all__ = [
    "Atypicality",
    "AuthorsStandard",
    "InterpolatedConformal",
    "PluginConformal",
    "RankCalibratedConformal",
    "atypicality_groups",
    "oracle_sets",
]


def _by_class(values: Array, codes: Ints, n_classes: int) -> list[Array]:
    """Values of the samples of each class, increasing."""
    order = np.lexsort((values, codes))
    return np.split(values[order], np.cumsum(np.bincount(codes, minlength=n_classes))[:-1])


@dataclass(eq=False, repr=False)
class _Baseline(Predictor):
    """The parameters of `StandardConformal`, which all baselines have."""

    _: KW_ONLY
    score: Score = APS()
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float = 0.2
    random_state: Any = 0


# --- STANDARD as the authors compute it


@final
@dataclass(eq=False, repr=False)
class AuthorsStandard(_Baseline):
    """Split conformal prediction with the quantile of the authors' code.

    They ask NumPy for the higher quantile at k / n, k = ceil((n + 1)(1 - alpha)). NumPy counts
    n - 1 steps between n scores, so that this is the (k + 1)-th smallest score and not the k-th of
    the paper's text: the 22,502nd of 25,000 at alpha = 0.1. The largest score stays itself.
    """

    def _fit(self, state: Calibration, calibration: ModelOutputs, tuning: ModelOutputs) -> None:
        """Nothing: a quantile is read off the scores."""

    def _thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: tuple[float, ...]
    ) -> Thresholds:
        values = [_authors_quantile(self._state().scores, alpha) for alpha in alphas]
        status = np.where(np.isinf(values), Status.TOO_FEW_POINTS, Status.EXACT).astype(np.int8)
        shape = (len(outputs), len(alphas))
        return Thresholds(np.broadcast_to(values, shape), np.broadcast_to(status, shape))

    def _guarantee(self) -> str:
        return "the sets contain the true class with probability at least 1 - alpha (marginally)."


def _authors_quantile(scores: Floats, alpha: float) -> float:
    """The threshold of the authors' code; infinite where there are too few scores."""
    level = np.ceil((scores.size + 1) * (1.0 - alpha)) / scores.size
    return float(np.quantile(scores, level, method="higher")) if level <= 1.0 else np.inf


# --- RC3P


def _all_ranks(outputs: ModelOutputs) -> Ints:
    """0-based rank of every class of every sample, shape (m, K); ties to the first column."""
    order = np.argsort(-outputs.probabilities, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(outputs.n_classes)[None, :], axis=1)
    return ranks


def _rank_and_threshold(scores: Floats, ranks: Ints, alpha: float) -> tuple[int, float]:
    """Smallest rank with an error below alpha, and the quantile at what is left of alpha."""
    n, target = scores.size, Fraction(repr(alpha))
    if n == 0:
        return np.iinfo(np.int64).max, np.inf
    # The largest number of samples that is less than alpha n may have a larger rank.
    largest = int(ranks[n - ceil(target * n)])
    error = Fraction(int(np.count_nonzero(ranks > largest)), n)
    order = ceil((n + 1) * (1 - (target - error)))
    return largest, float(scores[order - 1]) if order <= n else np.inf


@final
@dataclass(eq=False, repr=False)
class RankCalibratedConformal(_Baseline):
    """Class-conditional thresholds joined with the largest rank of each class (RC3P).

    Of the ``n_y`` calibration samples of class y, let ``error_y(k)`` be the share in which y is not
    among the k most likely classes, and ``k_y`` the smallest k with ``error_y(k) < alpha``. The set
    of x contains y if y is among the ``k_y`` most likely classes of x and s(x, y) is at most the
    finite-sample quantile of the scores of class y at ``alpha - error_y(k_y)``.

    The shares are estimates, so that **nothing is guaranteed in finite samples**: class-conditional
    coverage can be lower than 1 - alpha by up to about ``1 / (n_y + 1)``. A class without
    calibration samples is in every set.

    References
    ----------
    Y. Shi, S. Ghosh, T. Belkhouja, J. R. Doppa and Y. Yan. Conformal prediction for class-wise
    coverage via augmented label rank calibration. NeurIPS 2024.
    """

    def _rules(self, alpha: float) -> tuple[Ints, Floats]:
        """Largest rank and largest score of each class, both of shape (K,)."""
        state = self._state()
        rules = [
            _rank_and_threshold(scores, ranks, alpha)
            for scores, ranks in zip(
                _by_class(state.scores, state.codes, state.classes.size),
                _by_class(state.fitted, state.codes, state.classes.size),
                strict=True,
            )
        ]
        ranks, thresholds = zip(*rules, strict=True)
        return np.array(ranks, dtype=np.int64), np.array(thresholds)

    def _fit(self, state: Calibration, calibration: ModelOutputs, tuning: ModelOutputs) -> Ints:
        """0-based rank of the label of each calibration sample."""
        codes = calibration.require_labels("calibrate")
        return np.asarray(_all_ranks(calibration)[np.arange(len(codes)), codes])

    def _thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: tuple[float, ...]
    ) -> Thresholds:
        ranks, seen = _all_ranks(outputs), (self.class_counts_ > 0).all()
        status = np.full(len(ranks), Status.EXACT if seen else Status.UNSEEN_GROUP, np.int8)
        rules = [self._rules(alpha) for alpha in alphas]
        parts = [
            Thresholds(np.where(ranks <= largest, values, -np.inf), status)
            for largest, values in rules
        ]
        return nested_thresholds(parts, alphas)

    def _guarantee(self) -> str:
        return (
            "none in finite samples. The coverage given a class with n calibration samples can be "
            "lower than 1 - alpha by up to about 1 / (n + 1)."
        )


# --- INTERP-Q


@final
@dataclass(eq=False, repr=False)
class InterpolatedConformal(_Baseline):
    """Thresholds between that of all samples and that of each class (INTERP-Q).

    With q the finite-sample quantile of all calibration scores and ``q_y`` that of the scores
    of class y (1, the largest score, where there are too few), class y has the threshold
    ``tau * q_y + (1 - tau) * q``. So `tau` goes from `StandardConformal` (0) to
    ``MondrianConformal(by="class")`` (1). Scores must be at most 1: `APS()` or `Softmax()` in the
    raw scale. Marginal coverage is at least **1 - 2 alpha** for every `tau`.

    References
    ----------
    T. Ding, J.-B. Fermanian and J. Salmon. Conformal prediction for long-tailed classification.
    2025.
    """

    tau: float = 0.5

    def _check_parameters(self) -> None:
        if not 0.0 <= self.tau <= 1.0:
            raise InputError(f"tau must be a number between 0 and 1; got {self.tau!r}.")
        if self.score.scale != "raw" or isinstance(self.score, RAPS | SAPS | TopK):
            raise InputError(
                "InterpolatedConformal needs scores of at most 1: APS() or Softmax() in the raw "
                f"scale; got {self.score!r}."
            )

    @property
    def is_class_conditional(self) -> bool:
        """Whether only the thresholds of the classes count."""
        return self.tau == 1.0

    def _fit(self, state: Calibration, calibration: ModelOutputs, tuning: ModelOutputs) -> None:
        """Nothing: quantiles are read off the scores."""

    def _thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: tuple[float, ...]
    ) -> Thresholds:
        state = self._state()
        cells = _by_class(state.scores, state.codes, state.classes.size)
        classes = quantile_thresholds(cells, alphas)
        if self.tau == 1.0:
            return class_thresholds(classes, len(outputs))
        shared = quantile_thresholds([np.sort(state.scores)], alphas)
        # In this form, equal quantiles give exactly the same threshold.
        steps = np.minimum(classes.values, 1.0) - np.minimum(shared.values, 1.0)
        values = shared.values + self.tau * steps
        status = np.broadcast_to(shared.status, steps.shape)
        parts = [Thresholds(*columns) for columns in zip(values.T, status.T, strict=True)]
        return class_thresholds(nested_thresholds(parts, alphas), len(outputs))

    def _guarantee(self) -> str:
        share = "2 alpha" if 0.0 < self.tau < 1.0 else "alpha"
        within = " within every class" if self.tau == 1.0 else ""
        return f"the sets contain the true class with probability at least 1 - {share}{within}."


# --- plug-in


@final
@dataclass(frozen=True, eq=False)
class _Design:
    """The fitted function class, its values on the calibration samples, and its penalty rows."""

    basis: FittedBasis
    phi: Floats
    penalty: Floats

    def take(self, index: Ints) -> Self:
        return replace(self, phi=self.phi[index])


@final
@dataclass(eq=False, repr=False)
class PluginConformal(_Baseline):
    """Quantile regression of the scores, its fit plugged in as the threshold (BatchGCP).

    This is `ConditionalConformal` without an imputed score of the new sample, so that all samples
    share one fit. There is **no finite-sample guarantee**: with p basis functions and scores
    without ties, coverage is lower than 1 - alpha by about (1/2 - alpha) p / n. The publication
    uses indicators of overlapping groups, ``Groups()``.

    References
    ----------
    C. Jung, G. Noarov, R. Ramalingam and A. Roth. Batch multivalid conformal prediction.
    ICLR 2023 (Algorithm 1, BatchGCP).
    """

    score: Score = APS(scale="tail")
    basis: Basis = Polynomial(degree=5, of=(Confidence(transform="rank"), Trust(transform="rank")))
    trust: SupportsTrust | None = None

    def _tuned(self) -> tuple[str, ...]:
        return ("the function class",) if self.basis.learns else ()

    @property
    def conditions_on(self) -> FittedBasis:
        """The function class."""
        basis: FittedBasis = self._state().fitted.basis
        return basis

    def _fit(self, state: Calibration, calibration: ModelOutputs, tuning: ModelOutputs) -> _Design:
        basis = self.basis.fit_parts(calibration, tuning)
        if basis.uses_label:
            raise InputError(
                "PluginConformal needs basis functions of the sample alone; leave out those of the "
                "label, or use ConditionalConformal."
            )
        return _Design(basis, basis.design(calibration), basis.penalty_rows(calibration))

    def _thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: tuple[float, ...]
    ) -> Thresholds:
        state, design = self._state(), self._state().fitted
        # Sorted, so that the fit cannot depend on the order in which the samples came.
        order = np.lexsort((*design.phi.T, state.scores))
        # A penalty |w'beta| is the loss of two more points, of score 0 and rows w and -w.
        rows = np.vstack([design.phi[order], design.penalty, -design.penalty])
        points = np.concatenate([state.scores[order], np.zeros(2 * len(design.penalty))])
        phi = design.basis.design(outputs)
        fits = [
            fit_quantiles(rows, points, alpha=alpha).thresholds(phi, weight=0.0) for alpha in alphas
        ]
        return nested_thresholds([Thresholds(fit.values, fit.status) for fit in fits], alphas)

    def _guarantee(self) -> str:
        n, width = self._state().fitted.phi.shape
        return (
            "none in finite samples. Where scores have no ties, coverage is lower than 1 - alpha "
            f"by about (1/2 - alpha) p / n, here (1/2 - alpha) {width} / {n:,}."
        )


# --- atypicality

# Eigenvalues of the covariance below this fraction of the largest are rounding noise of
# directions that the training features do not use (SciPy's rule for singular covariances).
_RANK_TOLERANCE = 1e6 * float(np.finfo(np.float64).eps)


@final
@dataclass(frozen=True, eq=False)
class Atypicality(Statistic):
    """Negative log density of the features under the class that makes it largest.

    Each class has a Gaussian density with its own mean ``mu_c``; the covariance S is common to
    all. Both are fitted on training features by maximum likelihood. With ``W W' = S^-1``,

        a(x) = -max_c log N(x; mu_c, S)
             = (r log(2 pi) + log det S + min_c |W'(x - mu_c)|^2) / 2

    Where the covariance is singular, the density is that on the r-dimensional span of the training
    deviations from the class means. `Atypicality.from_training` makes one.

    References
    ----------
    M. Yuksekgonul, L. Zhang, J. Zou and C. Guestrin. Beyond confidence: reliable models
    should also consider atypicality. NeurIPS 2023 (section 2.1).

    Examples
    --------
    >>> train = [[-1.0], [1.0], [9.0], [11.0]]  # means 0 and 10, variance 1
    >>> atypicality = Atypicality.from_training(train, ["cat", "cat", "dog", "dog"])
    >>> outputs = ModelOutputs(logits=[[0.0, 1.0]] * 3, features=[[0.0], [10.0], [5.0]])
    >>> atypicality.measure(outputs).round(4)  # log(2 pi) / 2, twice, and 12.5 more
    array([ 0.9189,  0.9189, 13.4189])
    """

    name = "Atypicality"

    _: KW_ONLY
    mean: Floats = field(repr=False)
    whitening: Floats = field(repr=False)
    centres: Floats = field(repr=False)
    log_scale: float

    @classmethod
    def from_training(cls, features: Any, labels: Any, *, transform: Transform = "raw") -> Self:
        """Fit the Gaussians."""
        matrix, classes = np.asarray(features), np.asarray(labels)
        names, width = np.unique(classes), matrix.shape[1]
        means, covariance = np.empty((names.size, width)), np.zeros((width, width))
        for i, name in enumerate(names):
            rows = matrix[classes == name].astype(np.float64)
            means[i] = rows.mean(axis=0)
            covariance += (rows - means[i]).T @ (rows - means[i])
        values, vectors = np.linalg.eigh(covariance / len(matrix))
        used = values > _RANK_TOLERANCE * values[-1]
        if not used.any():
            raise InputError(
                "features do not vary within any class, so they have no density; "
                "pass several different training samples of at least one class."
            )
        whitening = vectors[:, used] / np.sqrt(values[used])
        mean = means.mean(axis=0)
        return cls(
            transform,
            mean=mean,
            whitening=whitening,
            centres=(means - mean) @ whitening,
            log_scale=float(used.sum() * np.log(2.0 * np.pi) + np.log(values[used]).sum()),
        )

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the negative log density of each sample."""
        features = outputs.features
        if features is None:
            raise InputError("Atypicality needs features; pass features= to ModelOutputs.")
        white = (features.astype(np.float64) - self.mean) @ self.whitening
        # The nearest centre by |z - c|^2 = |z|^2 - 2 z'c + |c|^2; the square is then computed
        # again, without the cancellation of this form.
        far = (self.centres * self.centres).sum(axis=1) - 2.0 * (white @ self.centres.T)
        gaps = white - self.centres[far.argmin(axis=1)]
        return np.asarray(0.5 * (self.log_scale + (gaps * gaps).sum(axis=1)))

    # Equal only to itself: arrays have no single truth value.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def atypicality_groups(
    atypicality: Atypicality, *, groups: int = 6, **parameters: Any
) -> MondrianConformal:
    """Atypicality-aware conformal prediction: thresholds by confidence and atypicality.

    Confidence and atypicality are each divided at their quantiles into `groups` bins, and each
    of the ``groups * groups`` cells gets a threshold of its own. The publication takes the plain
    quantile of a cell; `MondrianConformal`, which gets the further `parameters`, takes the
    finite-sample one and learns the edges from the tuning part: coverage is guaranteed in every
    cell.

    References
    ----------
    M. Yuksekgonul, L. Zhang, J. Zou and C. Guestrin. Beyond confidence: reliable models
    should also consider atypicality. NeurIPS 2023 (section 5, AA-APS and AA-RAPS).
    """
    # Not nested: the published edges are quantiles of each statistic over all samples.
    cells = Bins(Confidence(), atypicality, counts=groups, nested=False)
    return MondrianConformal(by=cells, **parameters)


# --- the oracle

# Sums of K float64 probabilities err by much less than this; nearer to the target than
# this, the comparison is made again in exact arithmetic.
_CLOSE = 1e-9


def oracle_sets(probabilities: Any, alpha: float = 0.1, classes: Any = None) -> PredictionSets:
    """Smallest sets of most likely classes with total true probability at least 1 - alpha.

    With true probabilities p_(1) >= p_(2) >= ... of a sample, its set holds the k most
    likely classes (the first columns among equals), k the smallest number with
    ``p_(1) + ... + p_(k) >= 1 - alpha`` (section 2.2 of the paper). Near 1 - alpha, sums are exact
    and numbers are read as the decimals they print as: ten classes of 0.1 give nine.

    Examples
    --------
    >>> sets = oracle_sets([[0.6, 0.3, 0.1], [0.1, 0.0, 0.9]], alpha=0.1, classes=list("abc"))
    >>> [names.tolist() for names in sets]
    [['a', 'b'], ['c']]
    """
    if not 0.0 < alpha < 1.0:
        raise InputError(f"alpha must lie strictly between 0 and 1; got {alpha!r}.")
    outputs = ModelOutputs(probabilities=probabilities, classes=classes)  # checks both
    values = np.asarray(probabilities, dtype=np.float64)
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    mass = np.cumsum(ranked, axis=1)
    target = (1.0 - alpha) * mass[:, -1:]
    counts = np.count_nonzero(mass < target, axis=1) + 1
    for row in np.flatnonzero((np.abs(mass - target) < _CLOSE).any(axis=1)):
        counts[row] = _exact_count(ranked[row], alpha)
    above = np.hstack([np.zeros((len(ranked), 1)), mass[:, :-1]])
    mask = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(mask, order, np.arange(values.shape[1]) < counts[:, None], axis=1)
    return PredictionSets(
        mask=mask,
        thresholds=np.take_along_axis(above, counts[:, None] - 1, axis=1)[:, 0],
        status=np.full(len(values), Status.EXACT, dtype=np.int8),
        alpha=float(alpha),
        classes=outputs.classes,
    )


def _exact_count(ranked: Floats, alpha: float) -> int:
    terms = [Fraction(repr(value)) for value in ranked.tolist()]
    target = (1 - Fraction(repr(alpha))) * sum(terms)
    return next(count for count, mass in enumerate(accumulate(terms), 1) if mass >= target)
