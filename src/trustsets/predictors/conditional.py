"""CONDITIONAL: coverage over a whole class of functions. Imports base and below.

The method of Gibbs, Cherian and Candès (2023) with the function classes of Kaur, Jordan
and Alaa (2025); the thresholds themselves come from `trustsets.engine`.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.storage import require, require_increasing, require_numbers, storable
from trustsets.basis import (
    Basis,
    BasisChoice,
    FittedBasis,
    FittedSum,
    Polynomial,
    Sum,
    choose_basis,
)
from trustsets.engine import QuantileModel, fit_quantiles
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Calibrated, Limits, Predictor, Task
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score
from trustsets.statistics import Observed, SupportsTrust
from trustsets.status import Status

__all__ = ["ConditionalConformal", "QuantileRegressionPredictor", "nested"]

# Tuning samples that ``tuning_fraction="auto"`` takes: enough to place ranks and to compare
# function classes, and some of each class for its bias; the rest is worth more in calibration.
_TUNING_SAMPLES = 200
_TUNING_PER_CLASS = 20
_LARGEST_TUNING_SHARE = 0.2
# The fit that bounds thresholds of groups from above: its share of alpha, and its price of groups
# in units of the restraint. A smaller share or price lets more sets of all classes through, larger
# ones leave small groups that are hard with less coverage.
_CEILING_SHARE = 0.25
_CEILING_PRICE = 2.0
# The randomised level must lie strictly inside (-alpha, 1 - alpha).
_SMALLEST_DRAW = 2.0**-40
# Randomised thresholds are exact for scores without ties. Adding a uniform draw times this number
# to the score of every sample leaves none; it changes no score by more than rounding to 5 digits.
_TIE_SPREAD = 1e-5


@final
@storable
@dataclass(frozen=True)
class ConditionalLearned:
    """The calibration problem, and the fits made of it so far (one for each alpha)."""

    basis: FittedBasis
    phi: NDArray[np.float64]
    scores: NDArray[np.float64]
    penalty: NDArray[np.float64]
    choice: BasisChoice | None = None
    restraint: NDArray[np.float64] | None = None
    tie_spread: float = 0.0
    _fits: dict[tuple[float, float], QuantileModel] = field(
        default_factory=dict, repr=False, compare=False
    )

    def check_state(self) -> None:
        """Refuse a problem that no calibration gives."""
        width = self.phi.shape[-1] if self.phi.ndim == 2 else 0
        require_numbers(self.phi, "ConditionalLearned.phi", None, None)
        require_numbers(self.scores, "ConditionalLearned.scores", len(self.phi))
        require_increasing(self.scores, "ConditionalLearned.scores")
        known = self.tie_spread in (0.0, _TIE_SPREAD)
        require(known, "ConditionalLearned.tie_spread", f"must be 0 or {_TIE_SPREAD}")
        made = self.basis.could_give(self.phi)
        require(made, "ConditionalLearned.phi", "must hold values of the basis functions")
        for name, rows, own in (
            ("penalty", self.penalty, self.basis.penalty),
            ("restraint", self.restraint, self.basis.restraint),
        ):
            field = f"ConditionalLearned.{name}"
            if rows is not None:
                require_numbers(rows, field, len(rows) if rows.ndim == 2 else 1, width)
            if self.basis.width is not None:
                wanted, found = own(None), np.zeros((0, width)) if rows is None else rows
                require(np.array_equal(found, wanted), field, "must be that of the basis")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot belong to so many samples and classes."""
        require(len(self.phi) == n, "ConditionalLearned.phi", f"must be that of {n} samples")

    def fit(self, alpha: float, price: float = 0.0) -> QuantileModel:
        """Quantile fit at level 1 - alpha, made once; `price` is that of the restraint."""
        if (alpha, price) not in self._fits:
            # |w'beta| is the loss of two points of score 0 and rows w and -w: the losses of a
            # residual r and of -r add up to |r|. A penalised fit is a fit with more points.
            penalty = self.penalty
            if price and self.restraint is not None:
                penalty = np.vstack([penalty, price * self.restraint])
            rows = np.vstack([self.phi, penalty, -penalty])
            scores = np.concatenate([self.scores, np.zeros(2 * len(penalty))])
            self._fits[alpha, price] = fit_quantiles(rows, scores, alpha=alpha)
        return self._fits[alpha, price]

    def prepare(self, alpha: float) -> None:
        """Make all fits that thresholds at this alpha need."""
        self.fit(alpha)
        if self.restraint is not None:
            self.fit(alpha, 1.0)
            self.fit(alpha * _CEILING_SHARE, _CEILING_PRICE)

    def held_thresholds(
        self, phi: NDArray[np.float64], alpha: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """Thresholds and statuses, held between those of the restrained fits.

        They are never below those of the restrained fit at alpha, so its guarantee is theirs.
        """
        own = self.fit(alpha).thresholds(phi)
        if self.restraint is None:
            return own.values, own.status
        low = self.fit(alpha, 1.0).thresholds(phi)
        high = self.fit(alpha * _CEILING_SHARE, _CEILING_PRICE).thresholds(phi)
        # Fits at two levels may cross where data is thin; the guarantee is that of `low`.
        top = np.maximum(low.values, high.values)
        held = np.where(np.isfinite(top), np.int8(Status.RESTRAINED), high.status)
        return np.clip(own.values, low.values, top), np.where(own.values > top, held, own.status)

    def to_state(self) -> dict[str, Any]:
        """The problem alone: fits are made again, to the same bits, when first needed."""
        return {
            "basis": self.basis,
            "phi": self.phi,
            "scores": self.scores,
            "penalty": self.penalty,
            "choice": self.choice,
            "restraint": self.restraint,
            "tie_spread": self.tie_spread,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        return cls(**state)


class QuantileRegressionPredictor(Predictor):
    """Thresholds by quantile regression of the scores on a basis, at some weight of the new point.

    What `ConditionalConformal` and `PluginConformal` share; they differ in the weight u of
    the new sample (the level), and hence in what they guarantee.
    """

    basis: Basis | str
    trust: SupportsTrust | None

    @abstractmethod
    def _level(self, observed: Observed, alpha: float) -> NDArray[np.float64] | float | None:
        """Weight u of each new sample; None means ``1 - alpha``."""

    @property
    def _tie_spread(self) -> float:
        """How far apart random draws move equal scores; 0 leaves them as they are."""
        return 0.0

    @property
    def _trust(self) -> SupportsTrust | None:
        return self.trust

    def _tuned_parts(self) -> list[str]:
        if self.basis == "auto":
            return ["the function class"]
        if not isinstance(self.basis, Basis):
            raise InputError(
                f'basis must be "auto" or a function class such as Polynomial(); got '
                f"{self.basis!r}."
            )
        return ["the function class"] if self.basis.learns else []

    def _could_learn(self, learned: ConditionalLearned) -> bool:
        if learned.tie_spread != self._tie_spread:
            return False
        if isinstance(self.basis, str):
            return learned.choice is not None and learned.choice.basis.could_become(learned.basis)
        return learned.choice is None and self.basis.could_become(learned.basis)

    def _learn(self, task: Task) -> ConditionalLearned:
        choice = None
        if isinstance(self.basis, str):
            choice = choose_basis(task.tuning, task.tuning_scores())
        chosen = self.basis if choice is None else choice.basis
        assert isinstance(chosen, Basis)  # checked by `_tuned_parts`
        basis = _fit_parts(chosen, task)
        phi = basis.design(task.calibration)
        if phi.shape[0] < phi.shape[1]:
            raise InputError(
                f"{phi.shape[0]} calibration samples cannot determine {phi.shape[1]} basis "
                "functions; use a smaller basis or more samples."
            )
        scores, spread = task.scores, self._tie_spread
        if spread:
            rows = task.calibration.outputs.rows
            scores = scores + spread * row_uniforms(task.seed, Stream.CALIBRATION_TIES, rows)
        # One order for the same samples in any order: the fit cannot depend on it then.
        order = np.lexsort((*phi.T, scores))
        penalty = basis.penalty(task.calibration)
        held = basis.restraint(task.calibration)
        restraint = held if len(held) else None
        return ConditionalLearned(
            basis, phi[order], scores[order], penalty, choice, restraint, spread
        )

    def _limits(
        self, learned: ConditionalLearned, observed: Observed, alphas: tuple[float, ...]
    ) -> Limits:
        phi = learned.basis.design(observed)
        shape = (len(phi), len(alphas))
        thresholds, status = np.empty(shape), np.empty(shape, dtype=np.int8)
        for place, alpha in enumerate(alphas):
            level = self._level(observed, alpha)
            if level is None:
                values, codes = learned.held_thresholds(phi, alpha)
            else:
                # Held thresholds would cover more than the level that was asked for.
                found = learned.fit(alpha).thresholds(phi, weight=level)
                values, codes = found.values, found.status
            thresholds[:, place], status[:, place] = values, codes
        if learned.tie_spread:
            # s + draw <= threshold, as in calibration, with the draw on the other side.
            keys, seed = observed.outputs.draw_keys, self._state().seed
            ties = row_uniforms(seed, Stream.PREDICTION_TIES, keys)
            thresholds -= learned.tie_spread * ties[:, None]
        return Limits(nested(thresholds, alphas), status)


@final
@storable
class ConditionalConformal(QuantileRegressionPredictor):
    """Sets whose coverage holds over every function of a class, not only on average.

    With basis phi, calibration scores s_i and pinball loss l, the threshold of a new x is
    ``S*(x) = sup {s : s <= g_s(x)}``, where g_s minimises ``sum_i l(s_i - g(x_i)) +
    l(s - g(x))`` over g = phi' beta. Then E[f(X) (covered - (1 - alpha))] >= 0 for every
    non-negative f = phi' beta: with indicators in the basis, coverage within each group;
    with polynomials of confidence and trust, coverage that does not drift with them.

    The defaults are the recipe that kept coverage most even with the smallest sets on all
    data measured; ``docs/defaults.md`` says what each part of it does.

    Parameters
    ----------
    score : Score
        Default ``APS(scale="tail")``; see `Score` for the scale. ``Softmax(scale="tail")``
        gives smaller sets whose coverage falls off faster with the rank of the label.
    basis : Basis or "auto"
        Function class. ``"auto"`` (default): polynomials in the ranks of Conf and, with a
        trust score, Trust, whose curvature is penalised; degree and penalty are chosen by
        held-out loss within the tuning part. Indicators of all groups that the outputs
        carry are added, with the restraint of `Groups`: those of few samples, or of none,
        have finite thresholds too. `choice_` and `summary` say what was chosen and why.
    trust : TrustScore, optional
        Fitted trust score; needed where the basis looks at Trust.
    temperature, allow_empty, random_state
        As in `StandardConformal`. Rank transforms, bin edges and principal components are
        learned from the tuning part.
    class_bias : "auto", "tuning", ClassBias or None
        Constants added to the logits of the classes before scores are computed, for
        classifiers trained on other shares of the classes than they meet. ``"tuning"``
        learns them from the tuning part, where they may turn out to be zero; ``"auto"``
        (default) does so with ``basis="auto"`` and adds nothing to a basis of your own.
        Conf and Trust stay those of the outputs as given.
    randomized : bool
        Draw the weight of the new sample at random (Theorem 2 of the paper), and break ties
        among scores by draws too small to matter otherwise. With ``allow_empty=True`` and one
        alpha at a time, coverage over the function class is then exactly 1 - alpha, with ties
        or without. Without `allow_empty` it is at least that: the most likely class is kept,
        and a classifier that is right for 98% of samples covers at least 98%. Groups are not
        restrained then.
    tuning_fraction : float or "auto"
        As in `StandardConformal`; ``"auto"`` (default) takes 200 samples, or 20 a class if
        that is more, but never more than a fifth.

    Examples
    --------
    >>> from trustsets import Confidence, ModelOutputs, Polynomial
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 5))
    >>> labels = (logits + rng.gumbel(size=(2000, 5))).argmax(axis=1)
    >>> calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> predictor = ConditionalConformal(basis=Polynomial(degree=2, of=(Confidence(),)))
    >>> predictor.calibrate(calibration).predict_set(test, alpha=0.1)
    PredictionSets(1000 samples, 5 classes, alpha=0.1, mean size 3.37)
    """

    def __init__(
        self,
        score: Score = APS(scale="tail"),
        basis: Basis | str = "auto",
        trust: SupportsTrust | None = None,
        *,
        temperature: float | TemperatureScaling | str | None = None,
        class_bias: ClassBias | str | None = "auto",
        randomized: bool = False,
        allow_empty: bool = False,
        tuning_fraction: float | str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.score = score
        self.basis = basis
        self.trust = trust
        self.temperature = temperature
        self.class_bias = class_bias
        self.randomized = randomized
        self.allow_empty = allow_empty
        self.tuning_fraction = tuning_fraction
        self.random_state = random_state

    @classmethod
    def paper(cls, trust: SupportsTrust | None = None, **changes: Any) -> Self:
        """Return the paper's own setting, to the letter.

        APS without the own mass, raw powers up to degree 5 of Conf (of the unscaled
        softmax) and Trust, a temperature fitted on the calibration samples themselves (so
        `calibrate` warns), and sets that may be empty. The authors' numbers also need
        their trust score, ``TrustScore(neighbour=2, squared=True)``.

        Parameters
        ----------
        trust : TrustScore
            Fitted trust score.
        **changes
            Any parameters of the constructor that should differ.
        """
        setting: dict[str, Any] = {
            "score": APS(),
            "basis": Polynomial(degree=5),
            "temperature": "tuning",
            "class_bias": None,
            "tuning_fraction": 0.0,
            "allow_empty": True,
        }
        return cls(trust=trust, **(setting | changes))

    @property
    def choice_(self) -> BasisChoice | None:
        """What ``basis="auto"`` compared and chose; None for a given basis."""
        choice: BasisChoice | None = self._state().learned.choice
        return choice

    @property
    def _class_bias(self) -> ClassBias | str | None:
        if isinstance(self.class_bias, str) and self.class_bias == "auto":
            return "tuning" if isinstance(self.basis, str) else None
        return self.class_bias

    def _auto_fraction(self, outputs: ModelOutputs) -> float:
        wanted = max(_TUNING_SAMPLES, _TUNING_PER_CLASS * outputs.n_classes)
        return min(_LARGEST_TUNING_SHARE, wanted / len(outputs))

    def _guarantee(self, state: Calibrated) -> str:
        learned: ConditionalLearned = state.learned
        exact = "equals" if learned.tie_spread and self.allow_empty else "is at least"
        text = (
            f"for every non-negative {learned.basis.description}, the coverage of the sets "
            f"weighted by it {exact} 1 - alpha ({learned.phi.shape[1]} basis functions)."
        )
        if learned.penalty.size:
            price = np.abs(learned.penalty).max() / (len(learned.phi) + 1)
            text += (
                f" Functions whose coefficients the fit pays for may be off by at most {price:.3g} "
                "times the sum of the absolute values of those coefficients."
            )
        if learned.restraint is not None and not self.randomized:
            text += (
                " The coverage of a group may fall short by at most "
                f"{np.abs(learned.restraint).max():.3g} / m, m being the number of calibration "
                "samples to be expected in it."
            )
        return text if learned.choice is None else f"{text}\n{learned.choice.sentence}"

    @property
    def _tie_spread(self) -> float:
        return _TIE_SPREAD if self.randomized else 0.0

    def _level(self, observed: Observed, alpha: float) -> NDArray[np.float64] | None:
        if not self.randomized:
            return None
        keys = observed.outputs.draw_keys
        draws = row_uniforms(self._state().seed, Stream.PREDICTION_LEVEL, keys)
        return np.clip(draws, _SMALLEST_DRAW, 1.0 - _SMALLEST_DRAW) - alpha


def _fit_parts(basis: Basis, task: Task) -> FittedBasis:
    """Fit what learns on tuning samples, and the rest (names of groups) on all the others."""
    if isinstance(basis, Sum):
        return FittedSum(tuple(_fit_parts(part, task) for part in basis.parts))
    return basis.fit(task.tuning if basis.learns else task.calibration)


def nested(thresholds: NDArray[np.float64], alphas: tuple[float, ...]) -> NDArray[np.float64]:
    """Lift thresholds that cross: a smaller alpha must not give a smaller set.

    Quantile fits at different levels may cross where data is thin. Taking the larger one
    can only add coverage.
    """
    order = np.argsort(alphas)[::-1]
    lifted = np.empty_like(thresholds)
    lifted[:, order] = np.maximum.accumulate(thresholds[:, order], axis=1)
    return lifted
