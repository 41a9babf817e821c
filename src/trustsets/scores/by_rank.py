"""Scores that count what is ranked above the label: probability, or places."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.storage import storable
from trustsets._common.validation import check_not_negative
from trustsets.errors import InputError
from trustsets.scores.score import Score

__all__ = ["APS", "RAPS", "SAPS", "TopK"]


@dataclass(frozen=True, kw_only=True)
class _OwnMass(Score):
    """A score that counts a share of the label's own mass, or of its own step by rank."""

    own_mass: Literal["exclude", "include", "random"] = "exclude"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own_mass not in ("exclude", "include", "random"):
            raise InputError(
                f'own_mass must be "exclude", "include" or "random"; got {self.own_mass!r}.'
            )

    @property
    def randomized(self) -> bool:
        """Whether a random share of the label's own mass counts."""
        return self.own_mass == "random"

    def _share(self, draws: Floats | None) -> Floats:
        """Share of the label's own mass that counts."""
        if draws is not None and self.randomized:
            return draws[:, None]
        return np.array(1.0 if self.own_mass == "include" else 0.0)


@dataclass(frozen=True, kw_only=True)
class _Cumulative(_OwnMass):
    """Mass ranked above the label, a share of the label's own mass, and a penalty by rank."""

    @abstractmethod
    def _penalty(self, n_classes: int) -> Floats:
        """What is added to the mass at each rank, shape (K,), never decreasing."""

    def _raw(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        mass = np.zeros_like(sorted_probabilities)
        if self.own_mass == "include":
            np.cumsum(sorted_probabilities, axis=1, out=mass)
            # The last rank holds all the mass: exactly 1, not 1 up to rounding.
            np.minimum(mass, 1.0, out=mass)
            mass[:, -1] = 1.0
        else:
            np.cumsum(sorted_probabilities[:, :-1], axis=1, out=mass[:, 1:])
        if self.randomized:
            mass += self._share(draws) * sorted_probabilities
            # Increasing in exact arithmetic; with rounding, a worse rank could score lower.
            np.maximum.accumulate(mass, axis=1, out=mass)
        mass += self._penalty(mass.shape[1])
        return mass

    def _tail(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        rest = np.cumsum(sorted_probabilities[:, ::-1], axis=1)[:, ::-1]
        total = rest[:, :1].copy()
        if self.own_mass != "exclude":
            rest[:, :-1] = rest[:, 1:].copy()
            rest[:, -1] = 0.0
            rest += (1.0 - self._share(draws)) * sorted_probabilities
            np.minimum.accumulate(rest, axis=1, out=rest)
        rest /= total
        penalty = self._penalty(rest.shape[1])
        rest += penalty[-1] - penalty
        rest /= 1.0 + penalty[-1]
        return rest


@final
@storable
@dataclass(frozen=True, kw_only=True)
class APS(_Cumulative):
    """Adaptive prediction sets (Romano, Sesia and Candès 2020).

    With k the rank of the label and p_(1) >= p_(2) >= ... the sorted probabilities,
    ``s = sum_{j<k} p_(j) + c p_(k)``.

    Parameters
    ----------
    scale : {"raw", "tail"}
        See `Score`.
    own_mass : {"exclude", "include", "random"}
        c = 0 (as the paper runs it), c = 1, or c = U with one uniform U per sample.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> outputs = ModelOutputs(probabilities=[[0.5, 0.25, 0.25]], labels=[2])
    >>> APS().of_labels(outputs), APS(own_mass="include").of_labels(outputs)
    (array([0.75]), array([1.]))
    """

    def _penalty(self, n_classes: int) -> Floats:
        return np.zeros(n_classes)


@final
@storable
@dataclass(frozen=True, kw_only=True)
class RAPS(_Cumulative):
    """Regularised adaptive prediction sets (Angelopoulos, Bates, Malik and Jordan 2021).

    APS plus a penalty on labels of high rank k: ``lam * max(0, k - 1 - k_reg)`` with the
    own mass excluded (the penalties of the labels ranked above), and the published
    ``lam * max(0, k - k_reg)`` with the own mass included or randomised.

    Parameters
    ----------
    scale : {"raw", "tail"}
        See `Score`; s is divided by its largest value, 1 plus the penalty of rank K.
    own_mass : {"exclude", "include", "random"}
        As in `APS`.
    lam, k_reg : float, int
        Penalty per rank, and the rank after which it starts; the paper uses 0.01 and 5.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> outputs = ModelOutputs(probabilities=[[0.5, 0.25, 0.25]], labels=[2])
    >>> RAPS(lam=0.1, k_reg=1).of_labels(outputs)
    array([0.85])
    """

    lam: float = 0.01
    k_reg: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(lam=self.lam)
        if self.k_reg < 0 or self.k_reg != int(self.k_reg):
            raise InputError(f"k_reg must be a whole number, 0 or more; got {self.k_reg}.")

    def _penalty(self, n_classes: int) -> Floats:
        counted = np.arange(n_classes) + (self.own_mass != "exclude")
        return np.asarray(self.lam * np.maximum(0.0, counted - float(self.k_reg)))


@final
@storable
@dataclass(frozen=True, kw_only=True)
class SAPS(_OwnMass):
    """Sorted adaptive prediction sets (Huang, Xi, Zhang, Yao, Qiu and Wei 2024).

    Of the probabilities only the largest, p_(1), counts; every further rank adds `lam`. With k the
    rank of the label, ``s = c p_(1)`` for k = 1 and ``s = p_(1) + lam (k - 2 + c)`` else.

    Parameters
    ----------
    scale : {"raw", "tail"}
        See `Score`; s is divided by its largest value, ``1 + lam (K - 1)``.
    own_mass : {"exclude", "include", "random"}
        c = 0, c = 1 (TorchCP's deterministic form), or c = U with one uniform U per sample (the
        published form).
    lam : float
        What a rank adds. The authors choose among 0.02 to 0.6 on tuning samples; 0.2, the default,
        is that of TorchCP. Smaller numbers fit larger sets.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> outputs = ModelOutputs(probabilities=[[0.5, 0.375, 0.125]])
    >>> SAPS(lam=0.25).matrix(outputs), SAPS(lam=0.25, own_mass="include").matrix(outputs)
    (array([[0.  , 0.5 , 0.75]]), array([[0.5 , 0.75, 1.  ]]))
    """

    lam: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(lam=self.lam)

    def _raw(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        largest, share = sorted_probabilities[:, :1], self._share(draws)
        raw = largest + self.lam * (np.arange(sorted_probabilities.shape[1]) - 1.0 + share)
        raw[:, :1] = share * largest
        return raw

    def _tail(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        n_classes, share = sorted_probabilities.shape[1], self._share(draws)
        below = np.cumsum(sorted_probabilities[:, ::-1], axis=1)
        # 1 - p_(1) is the sum of the others, from the smallest upwards: no digits are lost.
        others = below[:, -2:-1] / below[:, -1:] if n_classes > 1 else np.zeros_like(below)
        tail: Floats = others + self.lam * (n_classes - np.arange(n_classes) - share)
        most = self.lam * (n_classes - 1.0)
        tail[:, :1] = ((1.0 - share) + share * others) + most
        tail /= 1.0 + most
        np.minimum.accumulate(tail, axis=1, out=tail)
        return tail


@final
@storable
@dataclass(frozen=True, kw_only=True)
class TopK(_OwnMass):
    """The number of labels ranked above the label: ``s = k - 1 + c`` with k its rank.

    With `StandardConformal` and a fixed c, every set has the k most likely classes; k is the
    smallest number that covers 1 - alpha.

    Parameters
    ----------
    scale : {"raw", "tail"}
        See `Score`; s is divided by its largest value, K.
    own_mass : {"exclude", "include", "random"}
        c = 0, c = 1 (the rank itself, which gives the same sets in the raw scale), or c = U with
        one uniform U per sample, which breaks the ties between equal ranks.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> TopK().matrix(ModelOutputs(probabilities=[[0.25, 0.5, 0.25]]))
    array([[1., 0., 2.]])
    """

    def _raw(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        raw = np.zeros_like(sorted_probabilities)
        raw += np.arange(raw.shape[1]) + self._share(draws)
        return raw

    def _tail(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        n_classes = sorted_probabilities.shape[1]
        tail: Floats = (n_classes - self._raw(sorted_probabilities, draws)) / n_classes
        return tail
