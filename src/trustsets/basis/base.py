"""The contract of function classes: fit on samples, then map samples to an (n, p) array.

Imports statistics and below. A specification is a value object without data; its `fit`
returns a fitted object that can be stored. Coverage then holds over every function
``f(x) = phi(x)' beta`` of the fitted basis phi.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from trustsets.errors import InputError
from trustsets.statistics import Observed
from trustsets.storage import storable

__all__ = ["Basis", "FittedBasis", "FittedPartition", "FittedSum", "Partition", "Sum"]

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


class FittedBasis(ABC):
    """A basis phi with all it learned."""

    @abstractmethod
    def design(self, observed: Observed) -> Floats:
        """Return phi of each sample, shape (n, p)."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The functions it spans, in words that continue "every ..."."""

    def penalty(self, observed: Observed) -> Floats:
        """Return rows w of shape (q, p); a fit adds ``sum_j |w_j' beta|`` to its loss.

        Most function classes have none. Coverage over a function ``phi' gamma`` can then be
        off by ``sum_j |w_j' gamma| / (n + 1)`` at most, n being the calibration samples.
        """
        return np.zeros((0, self.design(observed).shape[1]))

    def restraint(self, observed: Observed) -> Floats:
        """Return more such rows, for the fits that thresholds are held between.

        Where a class has any, `ConditionalConformal` also fits with these rows among the
        penalties, and keeps its thresholds between those of such a fit at alpha and of one at
        a quarter of alpha and twice the price.
        """
        return np.zeros((0, self.design(observed).shape[1]))


class FittedPartition(FittedBasis):
    """A basis that also puts every sample into at most one of finitely many cells."""

    @abstractmethod
    def cells(self, observed: Observed) -> Codes:
        """Cell of each sample, shape (n,); -1 for a sample that fits none."""

    @property
    @abstractmethod
    def n_cells(self) -> int:
        """Number of cells."""


class Basis(ABC):
    """A function class, before any data is seen; ``a + b`` spans the functions of both."""

    @property
    @abstractmethod
    def learns(self) -> bool:
        """Whether the span depends on the data it is fitted on."""

    @abstractmethod
    def fit(self, observed: Observed) -> FittedBasis:
        """Learn from samples; labels are not used."""

    def __add__(self, other: "Basis") -> "Sum":
        if not isinstance(other, Basis):
            return NotImplemented
        parts = [part.parts if isinstance(part, Sum) else (part,) for part in (self, other)]
        return Sum(parts[0] + parts[1])


class Partition(Basis):
    """A function class of indicators of cells."""

    @abstractmethod
    def fit(self, observed: Observed) -> FittedPartition:
        """Learn the cells from samples; labels are not used."""


@final
@storable
@dataclass(frozen=True)
class Sum(Basis):
    """All sums of functions from several classes; written ``a + b``."""

    parts: tuple[Basis, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise InputError("Sum needs at least one function class.")

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.parts)

    @property
    def learns(self) -> bool:
        """Whether any part learns."""
        return any(part.learns for part in self.parts)

    def fit(self, observed: Observed) -> "FittedSum":
        """Fit every part."""
        return FittedSum(tuple(part.fit(observed) for part in self.parts))


@final
@storable
@dataclass(frozen=True)
class FittedSum(FittedBasis):
    """Columns of all parts side by side; repeated directions are no harm."""

    parts: tuple[FittedBasis, ...]

    def design(self, observed: Observed) -> Floats:
        """Return the columns of all parts."""
        return np.hstack([part.design(observed) for part in self.parts])

    def penalty(self, observed: Observed) -> Floats:
        """Return the rows of all parts, each in the columns of its part."""
        return np.asarray(block_diag(*[part.penalty(observed) for part in self.parts]))

    def restraint(self, observed: Observed) -> Floats:
        """Return the rows of all parts, each in the columns of its part."""
        return np.asarray(block_diag(*[part.restraint(observed) for part in self.parts]))

    @property
    def description(self) -> str:
        """The parts, joined."""
        return ", plus every ".join(part.description for part in self.parts)
