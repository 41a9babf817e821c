"""What a function class is: fitted on samples, it maps samples to an (n, p) array.

A `Basis` is a value object without data; its `fit` returns a `FittedBasis`, which can be stored.
Coverage is then guaranteed over every function ``f(x) = phi(x)' beta`` of the fitted basis phi.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats
from trustsets._storage import require, storable
from trustsets.outputs import ModelOutputs

__all__ = ["Basis", "FittedBasis", "FittedPartition", "FittedSum", "Partition", "Product", "Sum"]


class FittedBasis(ABC):
    """The basis functions phi, with everything they learned."""

    @abstractmethod
    def design(self, outputs: ModelOutputs) -> Floats:
        """Return phi of each sample, shape (n, p)."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The functions it spans, as words that continue "coverage over every ..."."""

    @property
    def uses_label(self) -> bool:
        """Whether phi depends on the candidate label too; `design` then reads the labels."""
        return False

    @property
    def is_additive(self) -> bool:
        """Whether phi(x, y) is a function of x plus a function of y."""
        return True

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Return phi of each sample with a candidate label, given by its code; shape (n, p)."""
        return self.design(outputs)

    def class_cells(self, n_classes: int) -> Codes:
        """Cell of each class, shape (K,): for classes of one cell phi is the same function."""
        return np.zeros(n_classes, np.int64)

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """Names of the group columns that `design` reads."""
        return ()

    @property
    def uses_features(self) -> bool:
        """Whether `design` may read the features of samples."""
        return True

    def unseen_groups(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Samples of groups that the function class was not fitted on, shape (n,)."""
        return np.zeros(len(outputs), dtype=bool)

    def penalty_rows(self, outputs: ModelOutputs) -> Floats:
        """Return rows w of shape (q, p); a fit adds the penalty ``sum_j |w_j' beta|`` to its loss.

        Most classes have none. Coverage weighted by ``phi' gamma`` can then differ from 1 - alpha
        by at most ``sum_j |w_j' gamma| / (n + 1)``, n being the number of calibration samples.
        """
        return np.zeros((0, self.design(outputs.take([0])).shape[1]))

    def bounding_rows(self, outputs: ModelOutputs) -> Floats:
        """Return penalty rows of the fits that bound the thresholds, as `Groups` describes."""
        return self.penalty_rows(outputs)[:0]


class FittedPartition(FittedBasis):
    """Basis functions that also put every sample into at most one of finitely many cells."""

    @abstractmethod
    def cells(self, outputs: ModelOutputs) -> Codes:
        """Cell of each sample, shape (n,); -1 for a sample in no cell."""

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
    def fit(self, outputs: ModelOutputs) -> FittedBasis:
        """Learn from samples; labels are not used."""

    def fit_parts(
        self, calibration: ModelOutputs, tuning: ModelOutputs, **learned_from: Any
    ) -> FittedBasis:
        """Fit what learns on tuning samples, and the rest on calibration samples.

        A part that does not learn only takes names from the data, such as those of groups.
        `learned_from` has the nonconformity `scores` of the labels of the tuning samples, and the
        features of `training` samples of the classifier, for classes that learn from these.
        """
        return self.fit(tuning if self.learns else calibration)

    def __add__(self, other: "Basis") -> "Sum":
        if not isinstance(other, Basis):
            return NotImplemented
        parts = [part.parts if isinstance(part, Sum) else (part,) for part in (self, other)]
        return Sum(parts[0] + parts[1])

    def __mul__(self, other: "Basis") -> "Product":
        return Product((self, other)) if isinstance(other, Basis) else NotImplemented


class Partition(Basis):
    """A function class of indicators of cells."""

    @abstractmethod
    def fit(self, outputs: ModelOutputs) -> FittedPartition:
        """Learn the cells from samples; labels are not used."""


class _Combined(Basis):
    """What sums and products of function classes have in common."""

    parts: tuple[Basis, ...]

    @property
    def learns(self) -> bool:
        """Whether any part learns."""
        return any(part.learns for part in self.parts)

    @abstractmethod
    def _combine(self, parts: tuple[FittedBasis, ...]) -> FittedBasis:
        """Combine fitted parts."""

    def fit(self, outputs: ModelOutputs) -> FittedBasis:
        """Fit every part."""
        return self._combine(tuple(part.fit(outputs) for part in self.parts))

    def fit_parts(
        self, calibration: ModelOutputs, tuning: ModelOutputs, **learned_from: Any
    ) -> FittedBasis:
        """Fit each part on the samples that it should see."""
        fitted = (part.fit_parts(calibration, tuning, **learned_from) for part in self.parts)
        return self._combine(tuple(fitted))


@final
@storable
@dataclass(frozen=True)
class Sum(_Combined):
    """All sums of functions from several classes; written ``a + b``."""

    parts: tuple[Basis, ...]

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.parts)

    def _combine(self, parts: tuple[FittedBasis, ...]) -> "FittedSum":
        return FittedSum(parts)


@final
@storable
@dataclass(frozen=True)
class Product(_Combined):
    """Products of the functions of two classes; written ``a * b``.

    ``Classes() * Groups("site")`` has an indicator for each class within each site. Functions of
    either class alone are not among the products. A penalty on one factor is a penalty on all
    products with its functions.
    """

    parts: tuple[Basis, ...]

    def __repr__(self) -> str:
        return " * ".join(repr(part) for part in self.parts)

    def _combine(self, parts: tuple[FittedBasis, ...]) -> "FittedProduct":
        return FittedProduct(parts)


class _FittedParts(FittedBasis):
    """What sums and products of fitted classes have in common."""

    parts: tuple[FittedBasis, ...]

    @abstractmethod
    def _columns(self, parts: list[Floats]) -> Floats:
        """Columns of the parts, combined."""

    @abstractmethod
    def _penalties(self, parts: list[Floats]) -> Floats:
        """Penalty rows of the parts, combined."""

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return the combined columns of all parts."""
        return self._columns([part.design(outputs) for part in self.parts])

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Return the same at these labels."""
        return self._columns([part.design_for(outputs, codes) for part in self.parts])

    def penalty_rows(self, outputs: ModelOutputs) -> Floats:
        """Return the combined rows of all parts."""
        return self._penalties([part.penalty_rows(outputs) for part in self.parts])

    def bounding_rows(self, outputs: ModelOutputs) -> Floats:
        """Return the combined rows of all parts."""
        return self._penalties([part.bounding_rows(outputs) for part in self.parts])

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """Columns of all parts, each once."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.needed_groups))

    @property
    def uses_features(self) -> bool:
        """Whether any part does."""
        return any(part.uses_features for part in self.parts)

    @property
    def uses_label(self) -> bool:
        """Whether any part does."""
        return any(part.uses_label for part in self.parts)

    def class_cells(self, n_classes: int) -> Codes:
        """Classes share a cell where they do in every part."""
        cells = np.stack([part.class_cells(n_classes) for part in self.parts], axis=1)
        return equal_rows(cells)

    def unseen_groups(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Samples that are of such a group in any part."""
        return np.asarray(np.any([part.unseen_groups(outputs) for part in self.parts], axis=0))


@final
@storable
@dataclass(frozen=True)
class FittedSum(_FittedParts):
    """Columns of all parts side by side; columns that depend on one another do no harm."""

    parts: tuple[FittedBasis, ...]

    def check_state(self) -> None:
        """Refuse a sum of nothing."""
        require(self.parts, "FittedSum.parts", "must not be empty")

    @property
    def is_additive(self) -> bool:
        """Whether every part is."""
        return all(part.is_additive for part in self.parts)

    def _columns(self, parts: list[Floats]) -> Floats:
        return np.hstack(parts)

    def _penalties(self, parts: list[Floats]) -> Floats:
        """Each row is in the columns of its part."""
        from scipy.linalg import block_diag

        return np.asarray(block_diag(*parts))

    @property
    def description(self) -> str:
        """The parts, joined."""
        return ", plus every ".join(part.description for part in self.parts)


@final
@storable
@dataclass(frozen=True)
class FittedProduct(_FittedParts):
    """All products of a function of one factor and one of the other."""

    parts: tuple[FittedBasis, ...]

    def check_state(self) -> None:
        """Refuse other than two factors."""
        require(len(self.parts) == 2, "FittedProduct.parts", "must be two")

    @property
    def is_additive(self) -> bool:
        """Products of functions of the sample and of the label are not."""
        return not self.uses_label

    def _columns(self, parts: list[Floats]) -> Floats:
        left, right = parts
        return np.asarray((left[:, :, None] * right[:, None, :]).reshape(len(left), -1))

    def _penalties(self, parts: list[Floats]) -> Floats:
        """Rows of each factor, once for each function of the other."""
        left, right = parts
        eyes = np.eye(left.shape[1]), np.eye(right.shape[1])
        return np.vstack([np.kron(left, eyes[1]), np.kron(eyes[0], right)])

    @property
    def description(self) -> str:
        """In words."""
        return "product of " + " and ".join(f"a {part.description}" for part in self.parts)


def equal_rows(table: NDArray[Any]) -> Codes:
    """Number of each row of a table among its distinct rows."""
    _, cells = np.unique(table, axis=0, return_inverse=True)
    return np.asarray(cells.reshape(-1), np.int64)


def penalty_on(columns: NDArray[np.bool_], penalty: float) -> Floats:
    """Penalty rows of the coefficients of some columns; none where the penalty is 0."""
    return np.asarray(penalty * np.eye(columns.size)[columns & (penalty > 0.0)])
