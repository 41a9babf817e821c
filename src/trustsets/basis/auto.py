"""``basis="auto"``: the function class with the lowest loss on held-out tuning samples.

Only tuning samples are used, so the calibration samples stay exchangeable with new ones
whatever is chosen.
"""

from dataclasses import dataclass
from math import comb
from typing import final

import numpy as np

from trustsets._arrays import Floats
from trustsets._draws import Stream, row_uniforms
from trustsets._storage import require, require_numbers, storable
from trustsets.basis.base import Basis
from trustsets.basis.functions import Polynomial
from trustsets.basis.partitions import Groups
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, Statistic, Trust

__all__ = ["BasisChoice", "choose_basis"]

# (degree, penalty); the first did best over all data sets measured.
CANDIDATES = ((5, 10.0), (3, 10.0), (1, 0.0), (5, 2.0), (5, 40.0))
# A candidate takes part if there are this many tuning samples for each of its columns.
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
    """What ``basis="auto"`` compared, and what it chose.

    Attributes
    ----------
    basis : Basis
        The chosen function class, groups included.
    candidates : tuple of str
        The function classes that were compared, groups apart, in words.
    losses : array of shape (C,)
        Their mean pinball loss on held-out tuning samples, in units of the score.
    errors : array of shape (C,)
        Standard errors of the differences to the first.
    chosen : int
        Which one was taken.
    groups : tuple of str
        Group columns whose indicators were added.
    """

    basis: Basis
    candidates: tuple[str, ...]
    losses: Floats
    errors: Floats
    chosen: int
    groups: tuple[str, ...]

    def check_state(self) -> None:
        """Refuse numbers that no comparison gives."""
        count = len(self.candidates)
        require_numbers(self.losses, "BasisChoice.losses", count)
        require_numbers(self.errors, "BasisChoice.errors", count)
        require((self.errors >= 0.0).all(), "BasisChoice.errors", "must not be negative")
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
                f"its pinball loss on held-out tuning samples, {self.losses[self.chosen]:.4g}, is "
                f"lower than that of {self.candidates[0]} by {gain:.2g} "
                f"(standard error {self.errors[self.chosen]:.2g})"
            )
        else:
            why = "no other had a clearly lower pinball loss on held-out tuning samples"
        groups = bounded = ""
        if self.groups:
            groups = f", and indicators of the groups by {', '.join(self.groups)}"
            bounded = (
                " A group with few or no calibration samples cannot raise a threshold above the "
                "one that all samples need at alpha / 4."
            )
        return f"basis='auto' took {what}{groups}: {why}.{bounded}"


def choose_basis(tuning: ModelOutputs, scores: Floats) -> BasisChoice:
    """Compare function classes by cross-validation within the tuning samples.

    Parameters
    ----------
    tuning : ModelOutputs
        m tuning samples; Trust takes part if there is a trust score and features.
    scores : array of shape (m,)
        Scores of their true labels.
    """
    bases = _candidates(tuning)
    names = tuple(_name(basis) for basis in bases)
    losses = _held_out_losses(bases, tuning, scores)
    chosen, means, errors = _best(losses)
    columns = tuple(name for name in tuning.groups if _is_grouping(tuning, name))
    basis: Basis = bases[chosen]
    if columns:
        basis = basis + Groups(*columns, penalty=GROUP_PENALTY)
    return BasisChoice(basis, names, means, errors, chosen, columns)


def _candidates(tuning: ModelOutputs) -> list[Polynomial]:
    """Polynomials that the tuning samples can tell apart; constants if there are very few."""
    of: tuple[Statistic, ...] = (Confidence(transform="rank"),)
    if tuning.trust is not None:
        of = (*of, Trust(transform="rank"))
    room = len(tuning) // SAMPLES_PER_COLUMN
    fitting = [
        Polynomial(degree, of, penalty)
        for degree, penalty in CANDIDATES
        if comb(degree + len(of), degree) <= room
    ]
    return fitting or [Polynomial(0, of)]


def _held_out_losses(bases: list[Polynomial], tuning: ModelOutputs, scores: Floats) -> Floats:
    """Pinball loss of each tuning sample (rows) under fits without its fold (columns)."""
    from trustsets.engine import fit_quantiles

    if len(bases) == 1:
        return np.zeros((scores.size, 1))
    draws = row_uniforms(0, Stream.BASIS_FOLDS, tuning.rows)
    used = np.argsort(draws, kind="stable")[:MOST_SAMPLES]
    scores, fold = scores[used], np.arange(used.size) % FOLDS
    losses = np.empty((scores.size, len(bases)))
    for place, basis in enumerate(bases):
        fitted = basis.fit(tuning)
        phi, penalty = fitted.design(tuning)[used], fitted.penalty_rows(tuning)
        for k in range(FOLDS):
            rows = np.vstack([phi[fold != k], penalty, -penalty])
            padded = np.concatenate([scores[fold != k], np.zeros(2 * len(penalty))])
            model = fit_quantiles(rows, padded, alpha=ALPHA)
            fit = model.thresholds(phi[fold == k], weight=0.0).values
            # A sample with a basis function that is zero in the other folds has no finite
            # threshold. It counts as one at the largest score: the set is full either way.
            residual = scores[fold == k] - np.where(np.isfinite(fit), fit, scores.max())
            losses[fold == k, place] = np.maximum((1.0 - ALPHA) * residual, -ALPHA * residual)
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


def _name(basis: Polynomial) -> str:
    if basis.degree == 0:
        return "constant functions"
    of = " and ".join(item.name for item in basis.of)
    penalty = f" with penalty {basis.penalty:g}" if basis.penalty else ""
    return f"polynomials of degree {basis.degree} in the ranks of {of}{penalty}"
