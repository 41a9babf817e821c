"""Function classes and statistics that `recipes.py` tries and the package does not need.

They are also examples of how to write your own: a statistic has a name and a `measure`, a
basis a `fit` that returns a `design` and, if it wants one, a `penalty`.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BSpline
from scipy.linalg import block_diag

from trustsets import Confidence, ModelOutputs, Trust
from trustsets.basis import Basis, FittedBasis
from trustsets.statistics import FittedStatistic, Observed, Statistic

Floats = NDArray[np.float64]
RANKS: tuple[Statistic, ...] = (Confidence(transform="rank"), Trust(transform="rank"))


@dataclass(frozen=True)
class Splines(Basis):
    """Cubic splines of each statistic (added) or of all together (tensor product).

    The penalty is the total variation of the second derivative, as in the quantile smoothing
    splines of Koenker, Ng and Portnoy (1994): absolute third differences of the coefficients.
    """

    knots: int = 6
    tensor: bool = False
    penalty: float = 5.0
    of: tuple[Statistic, ...] = RANKS

    @property
    def learns(self) -> bool:
        """Ranks are learned."""
        return True

    def fit(self, observed: Observed) -> "FittedSplines":
        """Fit the transforms; ranks make uniform knots into quantiles."""
        return FittedSplines(self, tuple(item.fit(observed) for item in self.of))


@dataclass(frozen=True)
class FittedSplines(FittedBasis):
    """Splines on uniform knots of [0, 1]."""

    splines: Splines
    of: tuple[FittedStatistic, ...]

    def design(self, observed: Observed) -> Floats:
        """Return the columns of all statistics, or of their products."""
        parts = [self._columns(item.values(observed)) for item in self.of]
        if not self.splines.tensor:
            return np.hstack(parts)
        product = parts[0]
        for part in parts[1:]:
            product = (product[:, :, None] * part[:, None, :]).reshape(len(part), -1)
        return product

    def penalty_rows(self, observed: Observed | None) -> Floats:
        """Return third differences along each statistic."""
        width = self.splines.knots + 2
        third = self.splines.penalty * np.diff(np.eye(width), n=3, axis=0)
        if not self.splines.tensor:
            return np.asarray(block_diag(*[third] * len(self.of)))
        along = [np.kron(third, np.eye(width)), np.kron(np.eye(width), third)]
        return np.vstack(along) / width

    def _columns(self, values: Floats) -> Floats:
        inner = np.linspace(0.0, 1.0, self.splines.knots)
        knots = np.concatenate([np.zeros(3), inner, np.ones(3)])
        clipped = np.clip(values, 0.0, 1.0 - 1e-12)
        return np.asarray(BSpline.design_matrix(clipped, knots, 3).toarray())

    @property
    def description(self) -> str:
        """In words."""
        return "cubic spline"


@dataclass(frozen=True)
class Agreement(Statistic):
    """Share of the 50 training samples nearest in angle whose label is the predicted one."""

    features: Any = field(kw_only=True, repr=False)
    codes: Any = field(kw_only=True, repr=False)
    known: dict[bytes, Floats] = field(default_factory=dict, repr=False, compare=False)

    def measure(self, observed: Observed) -> Floats:
        """Return the share; looked up where the same samples come again."""
        outputs = observed.outputs
        key = outputs.rows.tobytes()
        if key not in self.known:
            self.known[key] = self._shares(outputs)
        return self.known[key]

    def _shares(self, outputs: ModelOutputs) -> Floats:
        assert outputs.features is not None
        shares = np.empty(len(outputs))
        for start in range(0, len(outputs), 2000):
            own = slice(start, start + 2000)
            angle = _unit(outputs.features[own]) @ self._points.T
            near = np.argpartition(-angle, 50, axis=1)[:, :50]
            agrees = self.codes[near] == outputs.predicted_codes[own, None]
            shares[own] = agrees.mean(axis=1)
        # Ranks need few ties; the confidence orders samples of equal agreement.
        return shares + 1e-6 * outputs.confidence

    @cached_property
    def _points(self) -> NDArray[np.float32]:
        return _unit(self.features)

    @property
    def name(self) -> str:
        """Short name."""
        return "Agreement"


def _unit(features: Any) -> NDArray[np.float32]:
    rows = np.asarray(features, dtype=np.float32)
    length = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return np.asarray(rows / length, dtype=np.float32)
