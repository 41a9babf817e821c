r"""Weights of samples where the inputs are distributed otherwise than in calibration.

Let t(x) be what tells the two populations apart. If samples with the same t(x) have not changed,
the weight of a sample is the ratio of the new to the old density of t(x). A probabilistic
classifier between m new and n calibration samples estimates it: the odds of "new" times n / m
(Bickel, Brueckner and Scheffer 2009). The classifier is a logistic regression with a quadratic
penalty, so the logarithm of the weight is linear in the columns that describe t(x).

No calibration sample gets its weight from a model that saw it: samples of both kinds are divided
into folds, and each fold is weighted by the model of the others. A new sample has the geometric
mean of the weights by all of these models.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats
from trustsets._draws import Stream, row_uniforms
from trustsets._storage import require, require_numbers, storable
from trustsets.basis import Basis, Custom, FittedBasis, FittedSum, Polynomial, PrincipalComponents
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import ModelOutputs
from trustsets.shift.comparing import effective_size, equal_means, same_distribution
from trustsets.statistics import Confidence, FittedStatistic, Statistic, Trust

__all__ = ["CovariateWeights", "WeightModel", "estimate_weights"]

Bools = NDArray[np.bool_]

_FOLDS = 5
_FEWEST = 20
# Degree of the polynomial of statistics whose exponential is the weight.
_DEGREE = 3
# Principal components that stand for features.
_MOST_COMPONENTS = 64
# Inverse penalties that are compared by the loss of samples that were left out.
_INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
# Against overflow, standardised columns and logarithms of odds are limited to these sizes.
_LARGEST_COLUMN = 100.0
_LARGEST_LOG = 40.0
# A new sample has at least this weight: a larger weight gives a larger threshold. A calibration
# sample of less than the other number counts as 0, so that products keep their digits.
_LEAST_WEIGHT = 1e-3
_SMALLEST = 1e-6
# A new sample is outside if it weighs as much as this share of all calibration samples and itself:
# `StandardConformal` gives it a full set at all smaller alphas.
_OUTSIDE = 0.1
_FEWEST_PREDICTED = 10
_CHECKED_COLUMNS = 64
# Chance of a false warning.
_WARNING_RATE = 1e-3


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
        """Refuse numbers that no fit gives, for `storage`."""
        require(not self.basis.uses_label, "WeightModel.basis", "must not depend on the label")
        width = self.centre.size
        require_numbers(self.centre, "WeightModel.centre", None)
        require_numbers(self.scale, "WeightModel.scale", width)
        require((self.scale > 0.0).all(), "WeightModel.scale", "must be positive")
        n_columns = 2 * width if self.squares else width
        require_numbers(self.coefficients, "WeightModel.coefficients", 1 + n_columns)

    def columns(self, design: Floats) -> Floats:
        """What the logarithm of the weight is linear in, shape (n, D), from basis functions."""
        own = (design - self.centre) / self.scale
        own = np.clip(own, -_LARGEST_COLUMN, _LARGEST_COLUMN)
        return np.hstack([own, own * own]) if self.squares else own

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
    balance_p, features_p : float
        P-values of the hypothesis that weighted calibration samples and unlabelled samples have the
        same distribution of confidence, the same shares of predicted classes, and the same means of
        what tells them apart; and the same means of all features (1 where there are none).
    """

    of: str
    weights: Floats
    n_clipped: int
    n_new: int
    n_outside: int
    balance_p: float
    features_p: float

    @property
    def effective_size(self) -> float:
        """Unweighted samples that would tell as much: (sum of weights)^2 / sum of squares."""
        return effective_size(self.weights)

    def doubts(self) -> list[str]:
        """Sentences on what speaks against the weights; none if nothing does."""
        found = []
        if self.n_outside:
            found.append(
                f"{self.n_outside:,} of {self.n_new:,} unlabelled samples are where there are "
                "hardly any calibration samples. Nothing is known about their labels, and their "
                "sets will be full or nearly so. Label some of them, and update with them."
            )
        if self.n_clipped:
            found.append(
                f"Weights of {self.n_clipped:,} of {self.weights.size:,} calibration samples were "
                f"clipped at {np.sqrt(self.weights.size):.3g} times the mean: new samples are much "
                "like these few, and coverage is kept for a population that is less so."
            )
        if 2 * self.n_outside > self.n_new:
            # Weights cannot make samples alike that have nothing in common.
            return found
        if self.balance_p < _WARNING_RATE:
            found.append(
                "Weighted calibration samples still differ from the unlabelled ones in confidence, "
                f"in predicted classes or in what tells them apart (p = {self.balance_p:.2g}): "
                "adapted sets may cover less than they say. Describe what has changed with of=, "
                "or label some of the new samples, and update with them."
            )
        if self.features_p < _WARNING_RATE:
            found.append(
                "Features of weighted calibration samples still differ from those of unlabelled "
                f"ones (p = {self.features_p:.2g}). Unless that has nothing to do with the labels, "
                'adapted sets may cover less than they say; of="features" takes them into account.'
            )
        return found

    def warn(self) -> None:
        """Warn where there are doubts."""
        if texts := self.doubts():
            warnings.warn(" ".join(texts), TrustSetsWarning, stacklevel=4)


def estimate_weights(
    calibration: ModelOutputs,
    new: ModelOutputs,
    of: Any,
    conditions_on: FittedBasis | None,
    seed: int,
) -> tuple[WeightModel, CovariateWeights]:
    """Weights of calibration samples, and a model of those of new samples.

    Parameters
    ----------
    calibration, new : ModelOutputs
        n and m samples; labels are not used.
    of : "statistics", "features", Basis or callable
        As in `Predictor.adapt`.
    conditions_on : FittedBasis, optional
        The function class or partition of the predictor, whose statistics are added to Conf and
        Trust.
    seed : int
        Of the folds.
    """
    n, m = len(calibration), len(new)
    if min(n, m) < _FEWEST:
        raise InputError(
            f"adapt to other inputs needs {_FEWEST} calibration samples and as many unlabelled "
            f"ones or more, hundreds better; got {n} and {m}."
        )
    of = _checked(of)
    needs_trust = isinstance(of, Basis) or of == "statistics"
    both = _joined(calibration, new, needs_trust)
    basis, squares, words = _described(of, both, conditions_on)
    start, design = _standardised(basis.fit(both), both, squares)
    columns, is_new = start.columns(design), np.arange(n + m) >= n
    folds = np.concatenate([_folds(own, seed) for own in (calibration, new)])
    logs, coefficients = _best_fit(columns, is_new, folds)
    weights, mean, n_clipped = _normalised(_exp(logs[:n]))
    coefficients[0] -= np.log(mean)
    model = replace(start, coefficients=coefficients)
    of_new = model.of_columns(columns[n:])
    balance_p, features_p = _balance(columns, both, is_new, weights)
    return model, CovariateWeights(
        of=words or f"every {model.basis.description}",
        weights=weights,
        n_clipped=n_clipped,
        n_new=m,
        n_outside=int(np.sum(of_new > _OUTSIDE * (n + of_new))),
        balance_p=balance_p,
        features_p=features_p,
    )


def _checked(of: Any) -> Any:
    """Refuse anything but the two words, a function class or a function."""
    named = isinstance(of, str) and of in ("statistics", "features")
    if named or isinstance(of, Basis) or (callable(of) and not isinstance(of, type)):
        return of
    raise InputError(
        'of must be "statistics", "features", a function class such as Groups("site") or '
        "Polynomial(2), or a function of ModelOutputs, which can look up numbers that are known "
        f"already (lambda outputs: table[outputs.rows]); got {type(of).__name__} {of!r:.60}."
    )


def _described(of: Any, both: ModelOutputs, own: FittedBasis | None) -> tuple[Basis, bool, str]:
    """What tells the populations apart as functions, whether squares count, and words."""
    if isinstance(of, Basis):
        return of, False, ""
    if callable(of):
        return Custom(of), True, "your own columns"
    if of == "statistics":
        chosen = _chosen_statistics(both, own)
        return Polynomial(_DEGREE, chosen), False, " and ".join(item.name for item in chosen)
    features = both.features
    if features is None:
        raise InputError(
            'of="features" needs features of calibration samples and unlabelled ones; pass '
            'features= to ModelOutputs, or use of="statistics".'
        )
    count = min(_MOST_COMPONENTS, *features.shape)
    words = "the features" if count == features.shape[1] else f"{count} principal components"
    return PrincipalComponents(count), True, words


def _chosen_statistics(both: ModelOutputs, own: FittedBasis | None) -> tuple[Statistic, ...]:
    """Conf, Trust where it is known, and the predictor's own statistics, all as ranks."""
    parts = own.parts if isinstance(own, FittedSum) else (own,)
    fitted = [item for part in parts for item in getattr(part, "of", ())]
    others = [item.statistic for item in fitted if isinstance(item, FittedStatistic)]
    found: dict[type[Statistic], Statistic] = {}
    for item in [Confidence(), *([Trust()] if both.trust is not None else []), *others]:
        found.setdefault(type(item), replace(item, transform="rank"))
    return tuple(found.values())


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
    found = np.zeros(len(is_new)), np.zeros(1 + columns.shape[1])
    for inverse in _INVERSE_PENALTIES:
        logs, coefficients = _cross_fit(_logistic(inverse), columns, is_new, folds)
        odds = logs - np.log(np.sum(~is_new) / np.sum(is_new))
        loss = float(np.logaddexp(0.0, sign * odds).mean())
        if loss >= best:
            break
        best, found = loss, (logs, coefficients)
    return found


def _logistic(inverse: float) -> Callable[[Floats, Bools], Floats]:
    """A fit of the logarithm of the odds, by its inverse penalty."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    def fit(columns: Floats, is_new: Bools) -> Floats:
        model = LogisticRegression(C=inverse, solver="newton-cholesky")
        with warnings.catch_warnings():
            # Where nothing varies, the first step gains nothing. A poor fit shows in its loss.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(columns, is_new)
        return np.concatenate([model.intercept_, model.coef_[0]])

    return fit


def _cross_fit(
    fit: Callable[[Floats, Bools], Floats], columns: Floats, is_new: Bools, folds: Codes
) -> tuple[Floats, Floats]:
    """Logarithms of weights, each by a model that did not see the sample, and mean coefficients."""
    logs, all_coefficients = np.empty(len(is_new)), []
    for fold in range(_FOLDS):
        out = folds == fold
        coefficients = fit(columns[~out], is_new[~out])
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
    found = clipped / mean
    found[found < _SMALLEST] = 0.0
    return found, mean, int(np.sum(weights > clip))


def _balance(
    columns: Floats, both: ModelOutputs, is_new: Bools, weights: Floats
) -> tuple[float, float]:
    """P-values of equal distributions after weighting: of what outputs show, and of features."""
    codes, confidence = both.predicted_codes, both.confidence
    counts = np.bincount(codes, minlength=both.n_classes)
    common = np.flatnonzero(counts >= _FEWEST_PREDICTED)
    checked = np.column_stack([columns, confidence, codes[:, None] == common])
    means = equal_means([checked], is_new, weights)
    shape = same_distribution(confidence[~is_new], weights, confidence[is_new])
    features = both.features
    if features is None:
        return min(1.0, 2.0 * min(means, shape)), 1.0
    starts = range(0, features.shape[1], _CHECKED_COLUMNS)
    blocks = (features[:, start : start + _CHECKED_COLUMNS] for start in starts)
    return min(1.0, 2.0 * min(means, shape)), equal_means(blocks, is_new, weights)
