"""``basis="auto"``: the function class with the lowest loss on held-out tuning samples.

Only tuning samples are used, so the calibration samples stay exchangeable with new ones
whatever is chosen.
"""

from dataclasses import dataclass
from math import comb
from typing import final

import numpy as np

from trustsets._arrays import Array, Floats
from trustsets._draws import Stream, row_uniforms
from trustsets._storage import require, require_numbers, storable
from trustsets.basis.base import Basis, FittedSum, Sum
from trustsets.basis.functions import Intercept, Learned, Polynomial, PrincipalComponents
from trustsets.basis.partitions import Bins, Groups
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, Statistic, Trust

__all__ = ["BasisChoice", "choose_basis"]

# (degree, penalty) of polynomials in the ranks of Conf and Trust; the first did best over all data
# sets measured.
POLYNOMIALS = ((5, 10.0), (3, 10.0), (1, 0.0), (5, 2.0), (5, 40.0))
# Principal components beside them, and their penalty: with so large a penalty they need no rule
# for few calibration samples, because those leave their coefficients at zero.
COMPONENTS = 12
COMPONENT_PENALTY = 10.0
# Components that are fitted on tuning samples, for want of training samples, are fewer.
SAMPLES_PER_COMPONENT = 20
# The learned function beside them. More trees, leaves or quantiles did not do better.
LEARNED = Learned()
# With fewer tuning samples nothing is learned from their scores, and function classes without
# polynomials do not take part: folds so small favour what is simple over what all samples support.
FEWEST_TO_LEARN = 500
# Bins of each of Conf and Trust.
BINS = 6
# A candidate takes part if there are this many tuning samples for each of its columns that has no
# penalty, and for each of its polynomials.
SAMPLES_PER_COLUMN = 4
# Another candidate must beat the first by this many standard errors: with few tuning
# samples the losses differ by chance alone, and then the first is the safer choice.
NEEDED_ERRORS = 2.0
# Losses that differ by less than this share are equal: fits of constant scores differ by rounding.
ROUNDING = 1e-9
# The alpha of the pinball loss that is compared.
ALPHA = 0.1
FOLDS = 3
# At most this many tuning samples are used; more would make the choice slow, not better.
MOST_SAMPLES = 1000
# Penalty of `Groups`: coverage of a group of 100 calibration samples can be lower than 1 - alpha by
# at most 5 percentage points.
GROUP_PENALTY = 5.0
# A group column takes part if its values have this many tuning samples on average. With names of
# patients, say, every new sample would be of an unknown group.
FEWEST_PER_GROUP = 10


@final
@storable
@dataclass(frozen=True)
class BasisChoice:
    """What ``basis="auto"`` compared, and what it chose; `sentence` says it in words.

    Attributes
    ----------
    basis : Basis
        The chosen function class, groups included.
    candidates : tuple of str
        The function classes that were compared, groups apart, in words.
    losses, errors : arrays of shape (C,)
        Their mean pinball loss on held-out tuning samples, in units of the score, and standard
        errors of the differences to the first.
    chosen : int
        Which one was taken.
    groups : tuple of str
        Group columns whose indicators were added.
    n_tuning : int
        Number of tuning samples: what the choice, and all else that is learned, cost.
    """

    basis: Basis
    candidates: tuple[str, ...]
    losses: Floats
    errors: Floats
    chosen: int
    groups: tuple[str, ...]
    n_tuning: int

    def check_state(self) -> None:
        """Refuse numbers that no comparison gives."""
        count = len(self.candidates)
        require_numbers(self.losses, "BasisChoice.losses", count)
        require_numbers(self.errors, "BasisChoice.errors", count)
        require(0 <= self.chosen < count, "BasisChoice.chosen", "must be one of the candidates")

    @property
    def sentence(self) -> str:
        """What was chosen and why, in words."""
        what = self.candidates[self.chosen]
        if len(self.candidates) == 1:
            why = "the tuning samples are too few to compare function classes"
        elif self.chosen:
            gain = self.losses[0] - self.losses[self.chosen]
            why = (
                f"its pinball loss on held-out samples, {self.losses[self.chosen]:.4g}, is "
                f"lower than that of {self.candidates[0]} by {gain:.2g} "
                f"(standard error {self.errors[self.chosen]:.2g})"
            )
        else:
            others = len(self.candidates) - 1
            why = f"none of {others} others had a clearly lower pinball loss on held-out samples"
        groups = bounded = ""
        if self.groups:
            groups = f", and indicators of the groups by {', '.join(self.groups)}"
            bounded = (
                " A group with few or no calibration samples cannot raise a threshold above the "
                "one that all samples need at alpha / 4."
            )
        cost = f" The choice was made on {self.n_tuning:,} tuning samples."
        return f"basis='auto' took {what}{groups}: {why}.{cost}{bounded}"


def choose_basis(
    tuning: ModelOutputs, scores: Floats, training: Array | None = None
) -> BasisChoice:
    """Compare function classes by cross-validation within the tuning samples.

    Trust takes part if they have it, components if they have features.

    Parameters
    ----------
    tuning : ModelOutputs
    scores : array of shape (m,)
        Nonconformity scores of their labels.
    training : array of shape (t, d), optional
        Features of training samples, which the components are fitted on.
    """
    bases = _candidates(tuning, training)
    losses = _held_out_losses(bases, tuning, scores, training)
    if _learns(bases[0]) and losses[:, 1].mean() <= losses[:, 0].mean():
        # What was learned does not predict better: prefer the same without it.
        bases[:2], losses[:, [0, 1]] = bases[1::-1], losses[:, [1, 0]]
    chosen, means, errors = _best(losses)
    columns = tuple(name for name in tuning.groups if _is_grouping(tuning, name))
    basis = bases[chosen]
    if columns:
        basis = basis + Groups(*columns, penalty=GROUP_PENALTY)
    return BasisChoice(
        basis=basis,
        candidates=tuple(_name(basis) for basis in bases),
        losses=means,
        errors=errors,
        chosen=chosen,
        groups=columns,
        n_tuning=len(tuning),
    )


def _candidates(tuning: ModelOutputs, training: Array | None) -> list[Basis]:
    """Function classes that the tuning samples can tell apart; constants if there are very few."""
    of: tuple[Statistic, ...] = (Confidence(transform="rank"),)
    if tuning.trust is not None:
        of = (*of, Trust(transform="rank"))
    room = len(tuning) // SAMPLES_PER_COLUMN
    polynomials = [
        Polynomial(degree, of, penalty)
        for degree, penalty in POLYNOMIALS
        if comb(degree + len(of), degree) <= room
    ]
    if not polynomials:
        return [Intercept()]
    many = len(tuning) >= FEWEST_TO_LEARN
    plain: list[Basis] = []
    if many:
        plain = [Intercept(), Bins(*[type(item)() for item in of], counts=BINS)]
    count = _component_count(tuning, training)
    if count == 0:
        return [*polynomials, *plain]
    features: Basis = PrincipalComponents(count, COMPONENT_PENALTY, source="training")
    bases = [polynomials[0] + features]
    if many:
        features = features + LEARNED
        bases.insert(0, polynomials[0] + features)
    return bases + [other + features for other in polynomials[1:]] + [polynomials[0], *plain]


def _parts(basis: Basis) -> tuple[Basis, ...]:
    return basis.parts if isinstance(basis, Sum) else (basis,)


def _learns(basis: Basis) -> bool:
    return LEARNED in _parts(basis)


def _component_count(tuning: ModelOutputs, training: Array | None) -> int:
    """Number of principal components of the features; 0 without features."""
    if tuning.features is None:
        return 0
    if training is None:
        return min(COMPONENTS, int(tuning.features.shape[1]), len(tuning) // SAMPLES_PER_COMPONENT)
    return min(COMPONENTS, *map(int, training.shape))


def _held_out_losses(
    bases: list[Basis], tuning: ModelOutputs, scores: Floats, training: Array | None
) -> Floats:
    """Pinball loss of tuning samples (rows) under fits without their fold (columns)."""
    from trustsets.engine import fit_quantiles

    if len(bases) == 1:
        return np.zeros((scores.size, 1))
    order = np.argsort(row_uniforms(0, Stream.BASIS_FOLDS, tuning.rows), kind="stable")
    compared, learned_from = order[:MOST_SAMPLES], np.arange(len(tuning))
    if _learns(bases[0]):
        # What is learned must be judged by other samples than it was learned from.
        compared = compared[: len(tuning) // 2]
        learned_from = np.sort(order[compared.size :])
    sample, sample_scores = tuning.take(compared), scores[compared]
    # Candidates share parts, and each part is fitted once.
    fitted = {
        part: part.fit_parts(
            sample, tuning.take(learned_from), scores=scores[learned_from], training=training
        )
        for part in dict.fromkeys(part for basis in bases for part in _parts(basis))
    }
    designs = {part: function.design(sample) for part, function in fitted.items()}
    fold = np.arange(compared.size) % FOLDS
    losses = np.empty((compared.size, len(bases)))
    for column, basis in enumerate(bases):
        parts = _parts(basis)
        phi = np.hstack([designs[part] for part in parts])
        penalty = FittedSum(tuple(fitted[part] for part in parts)).penalty_rows(sample)
        for k in range(FOLDS):
            rows = np.vstack([phi[fold != k], penalty, -penalty])
            padded = np.concatenate([sample_scores[fold != k], np.zeros(2 * len(penalty))])
            model = fit_quantiles(rows, padded, alpha=ALPHA)
            fit = model.thresholds(phi[fold == k], weight=0.0).values
            # A sample with a basis function that is zero in the other folds has no finite
            # threshold. It counts as one at the largest score: the set is full either way.
            fit = np.where(np.isfinite(fit), fit, scores.max())
            residual = sample_scores[fold == k] - fit
            losses[fold == k, column] = np.maximum((1.0 - ALPHA) * residual, -ALPHA * residual)
    return losses


def _best(losses: Floats) -> tuple[int, Floats, Floats]:
    """The number of the candidate to take, mean losses, standard errors of the differences."""
    means = losses.mean(axis=0)
    differences = losses - losses[:, :1]
    errors = differences.std(axis=0) / np.sqrt(len(losses))
    clear = means[0] - means > NEEDED_ERRORS * errors + ROUNDING * means[0]
    clear[0] = False
    chosen = int(np.where(clear, means, np.inf).argmin()) if clear.any() else 0
    return chosen, means, errors


def _is_grouping(tuning: ModelOutputs, name: str) -> bool:
    values = np.unique(tuning.groups[name].astype(str))
    return values.size > 1 and len(tuning) >= FEWEST_PER_GROUP * values.size


def _name(basis: Basis) -> str:
    """A function class in words."""
    match basis:
        case Sum(parts):
            return " with ".join(_name(part) for part in parts)
        case Polynomial(degree, of, penalty):
            names = " and ".join(item.name for item in of)
            suffix = f" (penalty {penalty:g})" if penalty else ""
            return f"polynomials of degree {degree} in the ranks of {names}{suffix}"
        case PrincipalComponents(n_components, penalty):
            return f"{n_components} principal components (penalty {penalty:g})"
        case Bins():
            return f"cells of {' x '.join(item.name for item in basis.of)}"
        case Learned():
            return "a learned quantile"
    return "constant functions"
