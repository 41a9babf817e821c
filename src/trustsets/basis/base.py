"""What a function class is: fitted on samples, it maps samples to an (n, p) array.

A `Basis` is a value object without data; its `fit` returns a `FittedBasis`, which can be stored.
Coverage is then guaranteed over every function ``f(x) = phi(x)' beta`` of the fitted basis phi.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Array, Codes, Floats
from trustsets._storage import require, storable
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs

__all__ = [
    "Basis",
    "FittedBasis",
    "FittedPartition",
    "FittedSum",
    "Partition",
    "Sum",
]


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
    def width(self) -> int | None:
        """Number of basis functions p; None where only `design` can tell."""
        return None

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

    def penalty_rows(self, outputs: ModelOutputs | None) -> Floats:
        """Return rows w of shape (q, p); a fit adds the penalty ``sum_j |w_j' beta|`` to its loss.

        Most function classes have none. Coverage weighted by a function ``phi' gamma`` can
        then differ from 1 - alpha by at most ``sum_j |w_j' gamma| / (n + 1)``, where n is the
        number of calibration samples. No samples are needed where `width` is known.
        """
        width = self.width
        if width is None and outputs is not None:
            width = int(self.design(outputs).shape[1])
        return np.zeros((0, width or 0))

    def bounding_rows(self, outputs: ModelOutputs | None) -> Floats:
        """Return penalty rows that only the fits which bound the thresholds use.

        Where there are any, `ConditionalConformal` makes two more fits with these rows among
        the penalties: one at alpha, whose thresholds are lower bounds, and one at alpha / 4
        with twice the penalty, whose thresholds are upper bounds.
        """
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
        self,
        calibration: ModelOutputs,
        tuning: ModelOutputs,
        *,
        scores: Floats | None = None,
        training: Array | None = None,
    ) -> FittedBasis:
        """Fit what learns on tuning samples, and the rest on calibration samples.

        A part that does not learn only takes names from the data, such as those of groups.

        Parameters
        ----------
        calibration, tuning : ModelOutputs
            The same object where no samples were set aside.
        scores : array, optional
            Nonconformity scores of the labels of the tuning samples, for functions that are
            learned from them.
        training : array, optional
            Features of training samples of the classifier, which are neither of these samples.
        """
        return self.fit(tuning if self.learns else calibration)

    def __add__(self, other: "Basis") -> "Sum":
        if not isinstance(other, Basis):
            return NotImplemented
        parts = [part.parts if isinstance(part, Sum) else (part,) for part in (self, other)]
        return Sum(parts[0] + parts[1])

    def __mul__(self, other: "Basis") -> "Basis":
        if not isinstance(other, Basis):
            return NotImplemented
        from trustsets.basis.labels import Product

        return Product(self, other)


class Partition(Basis):
    """A function class of indicators of cells."""

    @abstractmethod
    def fit(self, outputs: ModelOutputs) -> FittedPartition:
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

    def fit(self, outputs: ModelOutputs) -> "FittedSum":
        """Fit every part."""
        return FittedSum(tuple(part.fit(outputs) for part in self.parts))

    def fit_parts(
        self, calibration: ModelOutputs, tuning: ModelOutputs, **learned_from: Any
    ) -> "FittedSum":
        """Fit each part on the samples that it should see."""
        fitted = (part.fit_parts(calibration, tuning, **learned_from) for part in self.parts)
        return FittedSum(tuple(fitted))


@final
@storable
@dataclass(frozen=True)
class FittedSum(FittedBasis):
    """Columns of all parts side by side; columns that depend on one another do no harm."""

    parts: tuple[FittedBasis, ...]

    def check_state(self) -> None:
        """Refuse a sum of nothing."""
        require(self.parts, "FittedSum.parts", "must not be empty")

    @property
    def width(self) -> int | None:
        """Columns of all parts."""
        widths = [part.width for part in self.parts]
        fixed = [width for width in widths if width is not None]
        return sum(fixed) if len(fixed) == len(widths) else None

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

    @property
    def is_additive(self) -> bool:
        """Whether every part is."""
        return all(part.is_additive for part in self.parts)

    def design(self, outputs: ModelOutputs) -> Floats:
        """Return the columns of all parts."""
        return np.hstack([part.design(outputs) for part in self.parts])

    def design_for(self, outputs: ModelOutputs, codes: Codes) -> Floats:
        """Return the columns of all parts at the given labels."""
        return np.hstack([part.design_for(outputs, codes) for part in self.parts])

    def class_cells(self, n_classes: int) -> Codes:
        """Classes share a cell where they do in every part."""
        return joint_cells([part.class_cells(n_classes) for part in self.parts])

    def unseen_groups(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Samples that are of such a group in any part."""
        return np.asarray(np.any([part.unseen_groups(outputs) for part in self.parts], axis=0))

    def penalty_rows(self, outputs: ModelOutputs | None) -> Floats:
        """Return the rows of all parts, each in the columns of its part."""
        return _block_diagonal([part.penalty_rows(outputs) for part in self.parts])

    def bounding_rows(self, outputs: ModelOutputs | None) -> Floats:
        """Return the rows of all parts, each in the columns of its part."""
        return _block_diagonal([part.bounding_rows(outputs) for part in self.parts])

    @property
    def description(self) -> str:
        """The parts, joined."""
        return ", plus every ".join(part.description for part in self.parts)


def joint_cells(parts: list[Codes]) -> Codes:
    """Cells of the classes that share a cell in every one of several divisions."""
    _, cells = np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)
    return np.asarray(cells.reshape(-1), np.int64)


def _block_diagonal(blocks: list[Floats]) -> Floats:
    from scipy.linalg import block_diag

    return np.asarray(block_diag(*blocks))
