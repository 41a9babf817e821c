"""Predictors for other populations than that of calibration: label shift and covariate shift.

1. `AdaptedConformal`: a calibrated predictor with weights for another population.
2. Label shift. With f the calibrated probabilities and p the calibration prevalences, the density
   of new outputs is proportional to ``sum_y q_y f_y(x) / p_y``; the q of largest likelihood
   are the estimate. Probabilities are calibrated by a temperature and a constant for each class:
   without the constants the estimate is biased (Alexandari, Kundaje and Shrikumar 2020).
3. Covariate shift. The weight of a sample is the ratio of the new to the old density of t(x), what
   tells the populations apart: the odds of "new" by a logistic regression between m new and n
   calibration samples, times n / m (Bickel, Brueckner and Scheffer 2009). Each fold of samples is
   weighted by the model of the other folds, and a new sample by the geometric mean of all models.
4. How much weighted samples tell, and whether they are distributed as others are.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats
from trustsets._draws import Stream, row_uniforms
from trustsets._parameters import Alphas
from trustsets.basis import Basis, FittedBasis, FittedSum, Polynomial, PrincipalComponents
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.recalibration import ClassLikelihood, possible
from trustsets.statistics import Confidence, FittedStatistic, Statistic, Trust
from trustsets.status import Thresholds
from trustsets.storage import require_numbers, storable

__all__ = ["AdaptedConformal", "ClassPrevalence", "CovariateWeights", "WeightModel", "adapt"]

Bools = NDArray[np.bool_]

# A new sample, or a candidate class, has at least this weight: one whose prevalence was estimated
# as zero may still occur, and a larger weight of the new sample gives a larger threshold.
_LEAST_WEIGHT = 1e-3
# Coverage of one calibration varies by about sqrt(alpha (1 - alpha) / effective size). With fewer
# samples than this times (1 - alpha) / alpha, that is more than half of alpha.
_FEWEST_EFFECTIVE = 4.0
# Chance of a false warning.
_WARNING_RATE = 1e-3


# 1. The predictor.


@final
@storable
@dataclass(eq=False, repr=False)
class AdaptedConformal(Predictor):
    """A predictor for another population; made by ``predictor.adapt``.

    With ``shift="label"``: if only the class prevalences differ, coverage holds among the new
    samples up to the error of the estimated prevalences (`prevalence_`, with intervals). If the
    outputs within a class have changed, too, nothing is guaranteed; `adapt` warns where the outputs
    show it. Every class has thresholds of its own, so thresholds have shape (m, K).

    With ``shift="covariate"``: the same if only the distribution of what tells the populations
    apart differs: `weights_` has the weights and their effective sample size. A sample that is
    unlike all calibration samples has a large weight, and hence a large or full set.

    Calibrate the original predictor, and adapt it again, to change anything.
    """

    _population = "new samples like the unlabelled ones"

    original: Predictor
    shift: "ClassPrevalence | CovariateWeights"
    model: "WeightModel | None" = None

    def __post_init__(self) -> None:
        original = self.original
        self.score, self.trust = original.score_, original.trust
        self.temperature, self.class_bias = original.temperature, original.class_bias
        self.allow_empty, self.random_state = original.allow_empty, original.random_state
        self.tuning_fraction = original.tuning_fraction
        self.state_ = original.state_

    def __repr__(self) -> str:
        shift = "label" if isinstance(self.shift, ClassPrevalence) else "covariate"
        return f"AdaptedConformal({self.original!r}, shift={shift!r})"

    @property
    def prevalence_(self) -> "ClassPrevalence":
        """Estimated class prevalences, with intervals."""
        if not isinstance(self.shift, ClassPrevalence):
            raise AttributeError('prevalence_ is that of shift="label"; see weights_.')
        return self.shift

    @property
    def weights_(self) -> "CovariateWeights":
        """Estimated weights of the calibration samples, and their effective sample size."""
        if not isinstance(self.shift, CovariateWeights):
            raise AttributeError('weights_ are those of shift="covariate"; see prevalence_.')
        return self.shift

    @property
    def is_class_conditional(self) -> bool:
        """Whether the original predictor is."""
        return self.original.is_class_conditional

    @property
    def has_class_thresholds(self) -> bool:
        """Weights of label shift depend on the candidate class."""
        return isinstance(self.shift, ClassPrevalence) or super().has_class_thresholds

    @property
    def conditions_on(self) -> FittedBasis | None:
        """What the original predictor conditions on, and what weights depend on."""
        basis = self.original.conditions_on
        if self.model is None:
            return basis
        return self.model.basis if basis is None else FittedSum((basis, self.model.basis))

    @property
    def smallest_alpha(self) -> float:
        """With smaller ones, coverage varies a lot from one calibration to the next."""
        if not isinstance(self.shift, CovariateWeights):
            return self.original.smallest_alpha
        size = self.shift.effective_size
        functions = self.original.smallest_alpha * len(self.state_)
        return max(
            _FEWEST_EFFECTIVE / (size + _FEWEST_EFFECTIVE), min(functions / max(size, 1.0), 0.5)
        )

    def _fit(self, *_: Any) -> NoReturn:
        raise InputError(
            "an adapted predictor keeps its calibration samples; calibrate, update or forget with "
            "the original predictor, and call its adapt again."
        )

    def calibrate(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: an adapted predictor keeps its calibration samples."""
        self._fit()

    def update(self, more: ModelOutputs) -> NoReturn:
        """Refuse, as `calibrate` does."""
        self._fit()

    def forget(self, rows: Any) -> NoReturn:
        """Refuse, as `calibrate` does."""
        self._fit()

    def leave_one_out(self, alpha: Any = 0.1) -> NoReturn:
        """Refuse: calibration samples are not exchangeable with the new ones."""
        raise InputError("leave_one_out is for the original predictor, before adapt.")

    def _thresholds(self, outputs: ModelOutputs, scores: Floats, alphas: Alphas) -> Thresholds:
        if isinstance(self.shift, ClassPrevalence):
            weights = self.shift.weights[self.state_.codes]
            by_class = np.maximum(self.shift.weights, _LEAST_WEIGHT)
            new = np.broadcast_to(by_class, (len(outputs), by_class.size))
        else:
            assert self.model is not None
            if min(alphas) < self.smallest_alpha:
                self._warn_of_few(min(alphas))
            weights, new = self.shift.weights, self.model.of(outputs)[:, None]
        return self.original.weighted_thresholds(outputs, scores, alphas, weights, new)

    def _warn_of_few(self, alpha: float) -> None:
        warnings.warn(
            f"The effective sample size is {self.weights_.effective_size:.0f}, few for "
            f"alpha={alpha:g}: coverage may be far from 1 - alpha, or sets full. Use an alpha of "
            f"{self.smallest_alpha:.2g} or more, or more calibration samples like the new ones.",
            TrustSetsWarning,
            stacklevel=5,
        )

    def _guarantee(self) -> str:
        guarantee = self.original._guarantee()
        if isinstance(self.shift, ClassPrevalence):
            return (
                "if only the class prevalences differ from those of calibration, and up to the "
                f"error of their estimates, {guarantee}"
            )
        return (
            f"if labels and outputs given {self.shift.of} are distributed as in calibration, and "
            f"up to the error of estimated weights, {guarantee} The effective sample size is "
            f"{self.shift.effective_size:,.0f}."
        )

    def to_state(self) -> dict[str, Any]:
        """Parameters, of which the original predictor has the state, for `storage`."""
        return super().to_state() | {"learned": {}}


def adapt(predictor: Predictor, unlabelled: ModelOutputs, shift: str, of: Any) -> AdaptedConformal:
    """A predictor for the population of unlabelled samples; see `Predictor.adapt`."""
    calibration, state = predictor.calibration_, predictor.state_
    predictor.check_weights()
    if shift == "label":
        prevalence = estimate_prevalence(calibration, unlabelled)
        _warn(prevalence.doubts())
        return AdaptedConformal(predictor.copy(), prevalence)
    model, weights = estimate_weights(
        calibration, unlabelled, of, predictor.conditions_on, state.seed
    )
    _warn(weights.doubts())
    return AdaptedConformal(predictor.copy(), weights, model)


def _warn(doubts: list[str]) -> None:
    if doubts:
        warnings.warn(" ".join(doubts), TrustSetsWarning, stacklevel=4)


# 2. Label shift.

# With fewer unlabelled samples the estimate says little: with one, coverage fell by 10 points.
FEWEST = 50
# Keeps the constants of classes without samples finite.
_PENALTY = 1e-3
_MAX_STEPS = 5000
_STEP_TOL = 1e-9
_NO_INFORMATION = 1e-150  # what is below it counts as zero
# Half the width of intervals of 95%, in standard errors.
_WIDTH = 1.959963984540054
# Steps of the likelihood shrink the prevalence of a class that is not there, but never to zero.
_SMALLEST_SHARE = 1e-12


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

    def doubts(self) -> list[str]:
        """Sentences on what speaks against label shift; none if nothing does."""
        if self.fit_p >= _WARNING_RATE:
            return []
        return [
            "The confidence of the unlabelled samples is not distributed as other class "
            f"prevalences alone would make it (p = {self.fit_p:.2g}): more than the prevalences "
            "has changed, and adapted sets may under-cover. Label some of the new samples, and "
            "calibrate or update with them."
        ]


def estimate_prevalence(labelled: ModelOutputs, unlabelled: ModelOutputs) -> ClassPrevalence:
    """Class prevalences of the unlabelled samples, from those with labels."""
    if len(unlabelled) < FEWEST:
        raise InputError(
            f"adapt needs {FEWEST} unlabelled samples or more, hundreds better; got "
            f"{len(unlabelled)}."
        )
    codes = labelled.require_labels("adapt")
    calibration = np.bincount(codes, minlength=labelled.n_classes) / codes.size
    seen = np.flatnonzero(calibration > 0.0)
    likely = possible(labelled, "adapt")
    theta = ClassLikelihood(likely.logits, likely.require_labels("adapt")).minimise(_PENALTY)
    likelihood = _MaximumLikelihood(likely, unlabelled, theta, calibration, seen)
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
    """The most likely prevalences, and their standard errors by the influence of each sample.

    Let f be the calibrated probabilities with parameters a and b,
    ``g_y = (f_y / p_y) / sum_k (q_k f_k / p_k)`` and ``pi_k = q_k g_k``. The estimate
    makes the mean of g equal in all directions v that sum to zero. Its derivative in q is minus the
    mean of gg', and in ``log(f_k / p_k)`` it is the mean of ``g_y (1[y = k] - pi_k)``. Labelled
    samples act through a, b and p, and unlabelled ones directly.
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
        prevalences = np.where(prevalences < _SMALLEST_SHARE, 0.0, prevalences)
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
        # Outputs so sure do not show how they are calibrated; the inverse would overflow.
        information[np.abs(information) < _NO_INFORMATION] = 0.0
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


# 3. Covariate shift.

_FOLDS = 5
_FEWEST_SAMPLES = 20
# Degree of the polynomial of statistics whose exponential is the weight.
_DEGREE = 3
# Principal components that stand for features.
_MOST_COMPONENTS = 64
# Inverse penalties that are compared by the loss of samples that were left out.
_INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
# Against overflow, standardised columns and logarithms of odds are limited to these sizes.
_LARGEST_COLUMN = 100.0
_LARGEST_LOG = 40.0
# A calibration sample of a smaller weight counts as 0, so that products keep their digits.
_SMALLEST_WEIGHT = 1e-6
# A new sample is outside if it weighs as much as this share of all calibration samples and itself:
# `StandardConformal` gives it a full set at all smaller alphas.
_OUTSIDE = 0.1
_FEWEST_PREDICTED = 10
_CHECKED_COLUMNS = 64


@final
@storable
@dataclass(frozen=True)
class WeightModel:
    """The weight as a function of a sample: the exponential of a linear function of columns.

    `coefficients` begin with the constant. Columns are standardised, and their squares follow them
    if `squares` is set.
    """

    basis: FittedBasis
    centre: Floats
    scale: Floats
    squares: bool
    coefficients: Floats

    def check_state(self) -> None:
        """Refuse arrays of other shapes, for `storage`."""
        width = self.centre.size
        require_numbers(self.centre, "WeightModel.centre", None)
        require_numbers(self.scale, "WeightModel.scale", width)
        n_columns = 2 * width if self.squares else width
        require_numbers(self.coefficients, "WeightModel.coefficients", 1 + n_columns)

    def columns(self, design: Floats) -> Floats:
        """What the logarithm of the weight is linear in, shape (n, D), from basis functions."""
        columns = (design - self.centre) / self.scale
        columns = np.clip(columns, -_LARGEST_COLUMN, _LARGEST_COLUMN)
        return np.hstack([columns, columns * columns]) if self.squares else columns

    def of_columns(self, columns: Floats) -> Floats:
        """Weights, shape (m,), of new samples with these columns."""
        # Not a matrix product: the last digits of one depend on the other rows of its batch.
        logs = np.einsum("ij,j->i", columns, self.coefficients[1:])
        return np.maximum(_exp(logs + self.coefficients[0]), _LEAST_WEIGHT)

    def of(self, outputs: ModelOutputs) -> Floats:
        """Weights of new samples, shape (m,)."""
        return self.of_columns(self.columns(self.basis.design(outputs)))


@final
@storable
@dataclass(frozen=True)
class CovariateWeights:
    """Weights of the calibration samples where inputs are distributed otherwise than among them.

    Attributes
    ----------
    of : str
        What weights depend on, in words.
    weights : (n,) array
        In the order of `calibration_rows_`, with mean 1.
    n_clipped : int
        How many weights were larger than sqrt(n) times the mean, and were clipped there.
    n_new, n_outside : int
        Unlabelled samples, and how many of them are where there are hardly any calibration
        samples: each weighs more than a ninth of all calibration samples together, so that
        sets of `StandardConformal` are full at alphas up to 0.1.
    balance_p : float
        P-value of the hypothesis that weighted calibration samples and unlabelled samples have the
        same distribution of confidence, the same shares of predicted classes, and the same means of
        what tells them apart and of all features.
    """

    of: str
    weights: Floats
    n_clipped: int
    n_new: int
    n_outside: int
    balance_p: float

    @property
    def effective_size(self) -> float:
        """Unweighted samples that would tell as much: (sum of weights)^2 / sum of squares."""
        return effective_size(self.weights)

    def doubts(self) -> list[str]:
        """Sentences on what speaks against the weights; none if nothing does."""
        texts = []
        if self.n_outside:
            texts.append(
                f"{self.n_outside:,} of {self.n_new:,} unlabelled samples are where there are "
                "hardly any calibration samples. Nothing is known about their labels, and their "
                "sets will be full or nearly so. Label some of them, and update with them."
            )
        if self.n_clipped:
            texts.append(
                f"Weights of {self.n_clipped:,} of {self.weights.size:,} calibration samples were "
                f"clipped at {np.sqrt(self.weights.size):.3g} times the mean: new samples are much "
                "like these few, and coverage is kept for a population that is less so."
            )
        if 2 * self.n_outside > self.n_new:
            # Weights cannot make samples alike that have nothing in common.
            return texts
        if self.balance_p < _WARNING_RATE:
            texts.append(
                "Weighted calibration samples still differ from the unlabelled ones in confidence, "
                "in predicted classes, in features or in what tells them apart "
                f"(p = {self.balance_p:.2g}). Unless that has nothing to do with the labels, "
                "adapted sets may cover less than they say. Describe what has changed with of=, as "
                'of="features" does, or label some of the new samples, and update with them.'
            )
        return texts


def estimate_weights(
    calibration: ModelOutputs,
    new: ModelOutputs,
    of: Any,
    conditions_on: FittedBasis | None,
    seed: int,
) -> tuple[WeightModel, CovariateWeights]:
    """Weights of calibration samples, and a model of those of new samples.

    `of` is that of `Predictor.adapt`. The statistics of `conditions_on`, the function class or
    partition of the predictor, are added to Conf and Trust.
    """
    n, m = len(calibration), len(new)
    if min(n, m) < _FEWEST_SAMPLES:
        raise InputError(
            f"adapting to covariate shift needs {_FEWEST_SAMPLES} calibration samples and as many "
            f"unlabelled ones or more, hundreds better; got {n} and {m}."
        )
    # With squares of the components, densities may differ in their spread, too.
    squares = isinstance(of, str) and of == "features"
    both = _joined(calibration, new, with_trust=not squares)
    basis, words = _described(of, both, conditions_on)
    start, design = _standardised(basis.fit(both), both, squares)
    columns, is_new = start.columns(design), np.arange(n + m) >= n
    folds = np.concatenate([_folds(part, seed) for part in (calibration, new)])
    logs, coefficients = _best_fit(columns, is_new, folds)
    weights, mean, n_clipped = _normalised(_exp(logs[:n]))
    coefficients[0] -= np.log(mean)
    model = replace(start, coefficients=coefficients)
    of_new = model.of_columns(columns[n:])
    return model, CovariateWeights(
        of=words or f"every {model.basis.description}",
        weights=weights,
        n_clipped=n_clipped,
        n_new=m,
        n_outside=int(np.sum(of_new > _OUTSIDE * (n + of_new))),
        balance_p=_balance(columns, both, is_new, weights),
    )


def _described(of: Any, both: ModelOutputs, basis: FittedBasis | None) -> tuple[Basis, str]:
    """What tells the populations apart as functions, and in words."""
    if isinstance(of, Basis):
        return of, ""
    if not isinstance(of, str) or of not in ("statistics", "features"):
        raise InputError(
            'of must be "statistics", "features", or a function class such as Groups("site") or '
            f"Custom(function of ModelOutputs); got {type(of).__name__} {of!r:.60}."
        )
    if of == "statistics":
        chosen = _chosen_statistics(both, basis)
        return Polynomial(_DEGREE, chosen), " and ".join(item.name for item in chosen)
    features = both.features
    if features is None:
        raise InputError(
            'of="features" needs features of calibration samples and unlabelled ones; pass '
            'features= to ModelOutputs, or use of="statistics".'
        )
    count = min(_MOST_COMPONENTS, *features.shape)
    words = "the features" if count == features.shape[1] else f"{count} principal components"
    return PrincipalComponents(count), words


def _chosen_statistics(both: ModelOutputs, basis: FittedBasis | None) -> tuple[Statistic, ...]:
    """Conf, Trust where it is known, and the predictor's own statistics, all as ranks."""
    parts = () if basis is None else basis.summands
    fitted = [item for part in parts for item in getattr(part, "of", ())]
    others = [item.statistic for item in fitted if isinstance(item, FittedStatistic)]
    chosen: dict[type[Statistic], Statistic] = {}
    for item in [Confidence(), *([Trust()] if both.trust is not None else []), *others]:
        chosen.setdefault(type(item), replace(item, transform="rank"))
    return tuple(chosen.values())


def _joined(calibration: ModelOutputs, new: ModelOutputs, with_trust: bool) -> ModelOutputs:
    """Samples of both kinds end to end, with what both have, and without labels."""
    parts = [calibration, new]
    has_features = all(part.features is not None for part in parts)
    has_trust = with_trust and all(part.trust is not None for part in parts)
    names = [name for name in parts[0].groups if name in parts[1].groups]
    plain = [
        part.replace(
            labels=None,
            classes=parts[0].classes,
            features=part.features if has_features else None,
            trust=part.trust if has_trust else None,
            groups={name: part.groups[name] for name in names},
        )
        for part in parts
    ]
    try:
        return ModelOutputs.concat(plain)
    except InputError as error:
        raise InputError(f"unlabelled samples must be like those of calibrate: {error}") from error


def _standardised(
    basis: FittedBasis, both: ModelOutputs, squares: bool
) -> tuple[WeightModel, Floats]:
    """A model without coefficients, whose columns are standardised, and the basis functions."""
    if basis.uses_label:
        raise InputError("of must not depend on the label, which new samples do not have.")
    design = basis.design(both)
    largest = np.abs(design).max(axis=0)
    unit = np.where(largest > 0.0, largest, 1.0)
    # In units of the largest, so that squares do not overflow.
    centre, spread = (design / unit).mean(axis=0), (design / unit).std(axis=0)
    # A constant says nothing, and rounding must not make it a column that does.
    scale = np.where(spread > 1e-9, spread * unit, 1.0)
    return WeightModel(basis, centre * unit, scale, squares, np.zeros(0)), design


def _folds(outputs: ModelOutputs, seed: int) -> Codes:
    """Fold of each sample; it depends on the sample and not on the order."""
    draws = row_uniforms(seed, Stream.SHIFT_FOLDS, outputs.draw_keys)
    ranks = np.argsort(np.argsort(draws, kind="stable"), kind="stable")
    return np.asarray(ranks * _FOLDS // len(ranks))


def _best_fit(columns: Floats, is_new: Bools, folds: Codes) -> tuple[Floats, Floats]:
    """Logarithms of weights of samples that were left out, and mean coefficients.

    The penalty is made smaller until the loss of samples that were left out grows.
    """
    sign, best = np.where(is_new, -1.0, 1.0), np.inf
    best_fit = np.zeros(len(is_new)), np.zeros(1 + columns.shape[1])
    for inverse in _INVERSE_PENALTIES:
        logs, coefficients = _cross_fit(columns, is_new, folds, inverse)
        odds = logs - np.log(np.sum(~is_new) / np.sum(is_new))
        loss = float(np.logaddexp(0.0, sign * odds).mean())
        if loss >= best:
            break
        best, best_fit = loss, (logs, coefficients)
    return best_fit


def _log_odds(columns: Floats, is_new: Bools, inverse: float) -> Floats:
    """Coefficients of the logarithm of the odds, by logistic regression."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=inverse, solver="newton-cholesky")
    with warnings.catch_warnings():
        # Where nothing varies, the first step gains nothing. A poor fit shows in its loss.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(columns, is_new)
    return np.concatenate([model.intercept_, model.coef_[0]])


def _cross_fit(
    columns: Floats, is_new: Bools, folds: Codes, inverse: float
) -> tuple[Floats, Floats]:
    """Logarithms of weights, each by a model that did not see the sample, and mean coefficients."""
    logs, all_coefficients = np.empty(len(is_new)), []
    for fold in range(_FOLDS):
        out = folds == fold
        coefficients = _log_odds(columns[~out], is_new[~out], inverse)
        coefficients[0] += np.log(np.sum(~is_new[~out]) / np.sum(is_new[~out]))
        logs[out] = coefficients[0] + columns[out] @ coefficients[1:]
        all_coefficients.append(coefficients)
    return logs, np.asarray(np.mean(all_coefficients, axis=0))


def _exp(logs: Floats) -> Floats:
    return np.exp(np.clip(logs, -_LARGEST_LOG, _LARGEST_LOG))


def _normalised(weights: Floats) -> tuple[Floats, float, int]:
    """Clipped weights of mean 1, what they were divided by, and how many were clipped.

    Clipping at sqrt(n) times the mean keeps the error of weighted sums small, and vanishes as n
    grows (Ionides 2008).
    """
    clip = np.sqrt(weights.size) * weights.mean()
    clipped = np.minimum(weights, clip)
    mean = float(clipped.mean())
    normalised = clipped / mean
    normalised[normalised < _SMALLEST_WEIGHT] = 0.0
    return normalised, mean, int(np.sum(weights > clip))


def _balance(columns: Floats, both: ModelOutputs, is_new: Bools, weights: Floats) -> float:
    """P-value of equal distributions after weighting: of what outputs show, and of features."""
    codes, confidence = both.predicted_codes, both.confidence
    counts = np.bincount(codes, minlength=both.n_classes)
    common = np.flatnonzero(counts >= _FEWEST_PREDICTED)
    checked = np.column_stack([columns, confidence, codes[:, None] == common])
    tests = [
        equal_means([checked], is_new, weights),
        same_distribution(confidence[~is_new], weights, confidence[is_new]),
    ]
    features = both.features
    if features is not None:
        starts = range(0, features.shape[1], _CHECKED_COLUMNS)
        blocks = (features[:, start : start + _CHECKED_COLUMNS] for start in starts)
        tests.append(equal_means(blocks, is_new, weights))
    return min(1.0, len(tests) * min(tests))


# 4. Weighted samples compared with others.


def effective_size(weights: Floats) -> float:
    """(sum of weights)^2 / sum of squares; 0 where all are 0."""
    squares = float(np.sum(weights**2))
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def same_distribution(values: Floats, weights: Floats, new: Floats) -> float:
    """P-value of the largest distance of two distribution functions, the first weighted."""
    from scipy.special import kolmogorov

    order, ordered = np.argsort(values), np.sort(new)
    total = np.concatenate([[0.0], np.cumsum(weights[order])])
    grid = np.concatenate([values, new])
    mine = total[np.searchsorted(values[order], grid, side="right")] / total[-1]
    theirs = np.searchsorted(ordered, grid, side="right") / new.size
    size = effective_size(weights)
    scale = np.sqrt(size * new.size / (size + new.size))
    return float(kolmogorov(scale * np.abs(mine - theirs).max()))


def equal_means(blocks: Iterable[Floats], is_new: NDArray[np.bool_], weights: Floats) -> float:
    """P-value of equal means of all columns among weighted calibration samples and new ones."""
    from scipy.special import ndtr

    count, farthest, total = 0, 0.0, weights.sum()
    for block in blocks:
        values = block.astype(np.float64)
        old, new = values[~is_new], values[is_new]
        mean = weights @ old / total
        variance = weights**2 @ (old - mean) ** 2 / total**2 + new.var(axis=0) / len(new)
        # A constant that rounding made vary says nothing.
        seen = variance > (1e-9 * np.abs(values).max(axis=0)) ** 2
        gaps = np.abs(mean - new.mean(axis=0))[seen] / np.sqrt(variance[seen])
        count, farthest = count + gaps.size, float(max([farthest, *gaps]))
    return float(min(1.0, 2.0 * count * ndtr(-farthest))) if count else 1.0
