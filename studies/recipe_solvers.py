"""Predictors of `recipes.py` that find their thresholds in another way than the package.

Scores, statistics, class biases, groups and the tuning part are those of the default; only the
calibration problem differs: a quadratic penalty over an RKHS (`recipe_kernel.py`), or thresholds
that may not rise with a statistic.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray
from recipe_bases import RANKS
from recipe_kernel import KernelModel, fit_kernel

from trustsets import APS, ConditionalConformal, ModelOutputs, Polynomial
from trustsets.basis import Basis, FittedBasis
from trustsets.basis.functions import FittedPolynomial
from trustsets.engine import Thresholds, fit_quantiles
from trustsets.predictors.base import Predictor
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.conditional_fit import ConditionalLearned
from trustsets.predictors.thresholds import SampleThresholds, side_by_side
from trustsets.predictors.tuning import Method
from trustsets.statistics import FittedStatistic, Observed, Statistic, SupportsTrust

Floats = NDArray[np.float64]


class Model(Protocol):
    """What a fitted calibration problem must be able to do."""

    def thresholds(self, phi_test: Floats, weight: Any = None) -> Thresholds:
        """Threshold of every new row."""


class Solver(ABC):
    """Another calibration problem than the package's, over the smooth part it names."""

    @property
    @abstractmethod
    def smooth(self) -> Basis:
        """Function class of the ranks that goes into phi, before groups."""

    @abstractmethod
    def fit(self, learned: ConditionalLearned, alpha: float) -> Model:
        """Solve it at weight 0."""


@final
class SolvedConformal(Predictor):
    """`ConditionalConformal` with a given basis and class biases, and the thresholds of a solver.

    It knows the one alpha of the study.
    """

    def __init__(
        self, solver: Solver, basis: Basis, trust: SupportsTrust | None, alpha: float
    ) -> None:
        self.solver = solver
        self.basis = basis
        self.trust = trust
        self.alpha = alpha
        self.score = APS(scale="tail")
        self.temperature = None
        self.allow_empty = False
        self.tuning_fraction = "auto"
        self.random_state = 0

    def _method(self) -> Method:
        like = ConditionalConformal(basis=self.basis, class_bias="tuning")
        return like._method()

    def _learn(self, task: Task) -> ConditionalLearned:
        # All but the fit is the package's.
        learned = ConditionalLearned.of(self.basis, task)
        fits: dict[tuple[float, float], Any] = learned._fits
        fits[self.alpha, 0.0] = self.solver.fit(learned, self.alpha)
        return learned

    def _could_learn(self, learned: Learned) -> bool:
        return isinstance(learned, ConditionalLearned)

    def _thresholds(
        self,
        learned: ConditionalLearned,
        observed: Observed,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        phi = learned.basis.design(observed)
        return side_by_side(learned.thresholds(phi, alphas), alphas)

    def _guarantee(self, state: Calibrated) -> str:
        return f"the one that the docstring of {type(self.solver).__name__} derives."


@final
@dataclass(frozen=True)
class GaussianKernel(Solver):
    """Linear functions of the ranks for free, and a Gaussian RKHS with a quadratic penalty."""

    width: float
    penalty: float

    @property
    def smooth(self) -> Basis:
        """Constants and linear functions."""
        return Polynomial(1, RANKS)

    def fit(self, learned: ConditionalLearned, alpha: float) -> "GaussianModel":
        """Fit at weight 0."""
        points = _ranks(learned.phi)
        words = {"alpha": alpha, "width": self.width, "penalty": self.penalty}
        return GaussianModel(fit_kernel(learned.phi, points, learned.scores, **words))


@final
@dataclass(frozen=True)
class GaussianModel:
    """Reads the ranks, which the kernel looks at, off the linear columns of phi."""

    model: KernelModel

    def thresholds(self, phi_test: Floats, weight: Any = None) -> Thresholds:
        """Threshold of every new row."""
        return self.model.thresholds(phi_test, _ranks(phi_test), weight)


def _ranks(phi: Floats) -> Floats:
    """Columns 1 and 2 of ``Polynomial(1, RANKS)`` are the two ranks on [-1, 1]."""
    return np.ascontiguousarray((phi[:, 1:3] + 1.0) / 2.0)


@final
@dataclass(frozen=True)
class Falling(Solver):
    """The default's polynomial with thresholds that never rise along one of the ranks.

    On a grid of the ranks, neighbours along `axis` (0 Conf, 1 Trust) give rows w, the difference
    of their phi, and the fit must have w'b <= 0. ``M max(w'b, 0)`` with M above every multiplier
    is that constraint; M = n is enough (multipliers reach 300 where n = 8,000), `multiplier`
    asks for another. It is the loss ``max(r, 0) - alpha r`` of a pseudo point of score 0 and row
    -M w, plus ``alpha M w'b``; the linear terms of all rows together are the loss of one pseudo
    point of row ``-alpha / (1 - alpha) M sum w`` and a score that is always above.

    What is guaranteed. The slopes eta_i of the n + 1 losses satisfy sum_i eta_i phi_i = sum_j
    mu_j w_j with multipliers mu_j >= 0 (and the penalty's own term). Missed samples have eta = 1
    - alpha and covered ones -alpha, so for f = phi'c >= 0, as in the package,

        E[f(X) (covered - (1 - alpha))] >= -E[sum_j mu_j w_j'c] / (n + 1),

    which is >= 0 if w_j'c <= 0 for all j: under reweightings that never rise along the axis
    themselves. Where weight rises with it coverage may be lower by any amount.
    """

    axis: int
    grid: int = 15
    multiplier: float | None = None

    @property
    def smooth(self) -> Basis:
        """The default's polynomial."""
        return Polynomial(5, RANKS, penalty=10.0)

    def fit(self, learned: ConditionalLearned, alpha: float) -> Model:
        """Fit with pseudo points for penalty and constraints."""
        rises = self.rows(learned.basis, learned.phi.shape[1])
        largest = self.multiplier or float(len(learned.scores))
        hinges = -largest * rises
        linear = alpha / (1.0 - alpha) * hinges.sum(axis=0)
        penalty = learned.penalty
        phi = np.vstack([learned.phi, penalty, -penalty, hinges, linear])
        scores = np.zeros(len(phi))
        scores[: len(learned.scores)] = learned.scores
        # The total fall over all rows is below the grid's width times the range of the scores.
        scores[-1] = largest * self.grid * 2.0 * np.ptp(learned.scores)
        return fit_quantiles(phi, scores, alpha=alpha)

    def rows(self, fitted: FittedBasis, n_columns: int) -> Floats:
        """Differences of phi between neighbours of the grid, in the polynomial's columns."""
        smooth = getattr(fitted, "parts", (fitted,))[0]
        assert isinstance(smooth, FittedPolynomial)
        ticks = np.linspace(0.0, 1.0, self.grid)
        conf, trust = (values.ravel() for values in np.meshgrid(ticks, ticks, indexing="ij"))
        phi = polynomial_at(smooth, conf, trust).reshape(self.grid, self.grid, -1)
        rises = np.diff(phi, axis=self.axis).reshape(-1, phi.shape[2])
        return np.pad(rises, ((0, 0), (0, n_columns - rises.shape[1])))


def polynomial_at(smooth: FittedPolynomial, *values: Floats) -> Floats:
    """Columns of a fitted polynomial at given values of its statistics."""
    nobody = Observed(ModelOutputs(logits=np.zeros((1, 2))))
    of = tuple(FittedStatistic(Given(values=each), None) for each in values)
    return replace(smooth, of=of).design(nobody)


@final
@dataclass(frozen=True, eq=False)
class Given(Statistic):
    """Values that are known already, whoever asks."""

    values: Any = None

    @property
    def name(self) -> str:
        """Short name."""
        return "given"

    def measure(self, observed: Observed) -> Floats:
        """Return the values."""
        return np.asarray(self.values)
